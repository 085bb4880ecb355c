/* SPDX-License-Identifier: Apache-2.0
 * What a switch program that translate.py made to C stands on: tables, groups, registers and packets. Each generated
 * file includes it once, so all is static but the struct by which the program is driven. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define P4_MAX_KEYS 10
#define P4_MAX_DATA 8
#define P4_MAX_OUT 72
#define P4_MAX_FRAME_BYTES 2048
#define P4_MAX_WAITING 16

struct p4_out {
  uint32_t port, num_bytes;
  uint8_t bytes[P4_MAX_FRAME_BYTES];
};

struct p4_machine {
  const char *name;
  /* Tables empty, registers as they are at the start, counters 0. seed: of what unwritten fields hold. */
  void (*reset)(uint64_t seed);
  /* masks: of ternary keys; the others' are not looked at. -1: no such table or action, or the entry is there. */
  int (*add)(const char *table, const char *action, const uint64_t *keys, const uint64_t *masks, const uint64_t *data);
  int (*remove)(const char *table, const uint64_t *keys); /* -1: it is not there */
  /* A register's field has its name behind a dot. -1: there is none. */
  int (*write)(const char *of, uint32_t index, uint64_t value);
  int64_t (*read)(const char *of, uint32_t index);
  void (*group)(uint32_t number, uint32_t num, const uint32_t *rids, const uint32_t *ports); /* replaces it */
  /* One packet in. Returns how many came out. */
  uint32_t (*take)(uint32_t port, const uint8_t *bytes, uint32_t num_bytes, struct p4_out *out);
  void (*set_time)(uint64_t now_us);
  /* Packets that wait to be taken in again, since the switch sent them to its own port for that. `again` takes one of
   * them, in any order, or loses it (out: NULL); the others go down by one. */
  uint32_t (*num_waiting)(void);
  uint32_t (*again)(uint32_t which, struct p4_out *out);
};

#ifdef P4_PROGRAM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ENTRIES 1024
#define MAX_GROUPS 256
#define MAX_COPIES 40
#define PORTS_PER_PIPE 128u

struct entry {
  uint64_t keys[P4_MAX_KEYS], masks[P4_MAX_KEYS], data[P4_MAX_DATA];
  int action;
};
struct table {
  const char *name;
  const char *const *actions;
  int num_actions, num_keys, num_entries;
  bool is_ternary[P4_MAX_KEYS];
  struct entry entries[MAX_ENTRIES];
};
struct result {
  bool hit;
  int action;
};
struct cells {
  const char *name;
  void *first;
  size_t stride, num;
  uint64_t initial;
  uint64_t *touched; /* of which packet it was last, where a target allows one access */
};
struct group {
  uint32_t number, num, rids[MAX_COPIES], ports[MAX_COPIES];
};

static uint64_t random_state = 1, num_packets, now_us = UINT64_C(1) << 40;
static struct group groups[MAX_GROUPS];
static uint32_t num_groups;
static const uint8_t *in_bytes;
static uint32_t in_at, in_end;
static uint8_t out_bytes[P4_MAX_FRAME_BYTES];
static uint32_t out_end;

__attribute__((noreturn)) static void fail(const char *what, const char *of) {
  fprintf(stderr, "# %s: %s\n", what, of);
  abort();
}

static uint64_t draw(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

static uint64_t ones(uint32_t width) {
  return width >= 64 ? UINT64_MAX : (UINT64_C(1) << width) - 1;
}

static const struct entry *find(const struct table *t, const uint64_t *keys) {
  for (int i = 0; i < t->num_entries; i++) {
    bool fits = true;
    const struct entry *e = &t->entries[i];
    for (int k = 0; k < t->num_keys && fits; k++) fits = ((e->keys[k] ^ keys[k]) & e->masks[k]) == 0;
    if (fits) return e;
  }
  return NULL;
}

static bool take_bytes(uint32_t width, uint64_t *value) {
  *value = 0;
  if (in_at + width / 8 > in_end) return false;
  for (uint32_t i = 0; i < width / 8; i++) *value = *value << 8 | in_bytes[in_at++];
  return true;
}

static void put_bytes(uint32_t width, uint64_t value) {
  if (out_end + width / 8 > sizeof out_bytes) fail("too long", "a packet that goes out");
  for (uint32_t i = width / 8; i-- > 0;) out_bytes[out_end++] = (uint8_t)(value >> (8 * i));
}

static void put_rest(void) {
  if (out_end + in_end - in_at > sizeof out_bytes) fail("too long", "a packet that goes out");
  memcpy(out_bytes + out_end, in_bytes + in_at, in_end - in_at);
  out_end += in_end - in_at;
}

/* The internet's checksum of fields of whole bytes, one after the other. */
struct checksum {
  uint32_t sum, num_bytes;
};
__attribute__((unused)) static void checksum_add(struct checksum *c, uint32_t width, uint64_t value) {
  for (uint32_t i = width / 8; i-- > 0;)
    c->sum += (uint32_t)(uint8_t)(value >> (8 * i)) << (c->num_bytes++ % 2 ? 0 : 8);
}
__attribute__((unused)) static uint64_t checksum_end(const struct checksum *c) {
  uint32_t sum = c->sum;
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return sum ^ 0xffff;
}

/* A register's cell, which a packet may touch once where is_once. */
__attribute__((unused)) static uint64_t at(const struct cells *r, uint64_t index, bool is_once) {
  if (index >= r->num) fail("an index beyond the end of register", r->name);
  if (is_once) {
    if (r->touched[0] == num_packets) fail("touched twice by a packet: register", r->name);
    r->touched[0] = num_packets;
  }
  return index;
}

static void set_time(uint64_t time_us) {
  now_us = time_us;
}

/* Some hash: no program may depend on which. */
__attribute__((unused)) static uint64_t mix(uint64_t value) {
  return (value * UINT64_C(0x9e3779b97f4a7c15)) >> 33;
}

__attribute__((unused)) static const struct group *find_group(uint64_t number) {
  for (uint32_t i = 0; i < num_groups; i++)
    if (groups[i].number == number) return &groups[i];
  return NULL;
}

static void go_out(struct p4_out *out, uint32_t *num_out, uint64_t port) {
  if (*num_out >= P4_MAX_OUT) fail("too many", "packets out of one");
  out[*num_out].port = (uint32_t)port;
  out[*num_out].num_bytes = out_end;
  memcpy(out[(*num_out)++].bytes, out_bytes, out_end);
}

static struct p4_out waiting[P4_MAX_WAITING];
static uint32_t num_waiting;

static uint32_t count_waiting(void) {
  return num_waiting;
}

/* What came out of the port by which it comes in again, of the pipe that it was in, is kept. Returns how many of the
 * num are left. */
__attribute__((unused)) static uint32_t keep_waiting(uint32_t port, struct p4_out *out, uint32_t num) {
  uint32_t left = 0;
  for (uint32_t i = 0; i < num; i++) {
    if (out[i].port % PORTS_PER_PIPE != P4_AGAIN) {
      if (left++ != i) out[left - 1] = out[i];
      continue;
    }
    if (out[i].port / PORTS_PER_PIPE != port / PORTS_PER_PIPE) fail("sent to another pipe", "a second pass");
    if (num_waiting == P4_MAX_WAITING) fail("too many", "packets that wait for a second pass");
    waiting[num_waiting++] = out[i];
  }
  return left;
}

__attribute__((unused)) static struct p4_out leave_waiting(uint32_t which) {
  if (which >= num_waiting) fail("nothing waits", "again");
  const struct p4_out in = waiting[which];
  num_waiting--;
  memmove(&waiting[which], &waiting[which + 1], (num_waiting - which) * sizeof waiting[0]);
  return in;
}

static void set_group(uint32_t number, uint32_t num, const uint32_t *rids, const uint32_t *ports) {
  struct group *g = (struct group *)find_group(number);
  if (g == NULL) g = &groups[num_groups++];
  if (num_groups > MAX_GROUPS || num > MAX_COPIES) fail("too many", "groups or copies");
  g->number = number;
  g->num = num;
  if (num > 0) memcpy(g->rids, rids, num * sizeof *rids);
  if (num > 0) memcpy(g->ports, ports, num * sizeof *ports);
}

static struct table *find_table(struct table *const *tables, const char *name) {
  for (; *tables != NULL; tables++)
    if (strcmp((*tables)->name, name) == 0) return *tables;
  return NULL;
}

static int add_to(struct table *t, const char *action, const uint64_t *keys, const uint64_t *masks,
                  const uint64_t *data) {
  int number = 0;
  if (t == NULL) return -1;
  while (number < t->num_actions && strcmp(t->actions[number], action) != 0) number++;
  if (number == t->num_actions) return -1;
  if (t->num_entries == MAX_ENTRIES) fail("full", t->name);
  struct entry *e = &t->entries[t->num_entries];
  *e = (struct entry){.action = number};
  memcpy(e->data, data, sizeof e->data);
  for (int k = 0; k < t->num_keys; k++) {
    e->keys[k] = keys[k];
    e->masks[k] = t->is_ternary[k] ? masks[k] : UINT64_MAX;
  }
  for (const struct entry *o = t->entries; o < e; o++)
    if (memcmp(o->keys, e->keys, sizeof e->keys) == 0 && memcmp(o->masks, e->masks, sizeof e->masks) == 0) return -1;
  t->num_entries++;
  return 0;
}

static int remove_from(struct table *t, const uint64_t *keys) {
  for (int i = 0; t != NULL && i < t->num_entries; i++) {
    if (memcmp(t->entries[i].keys, keys, (size_t)t->num_keys * sizeof *keys) != 0) continue;
    t->entries[i] = t->entries[--t->num_entries];
    return 0;
  }
  return -1;
}
#endif
