/* SPDX-License-Identifier: Apache-2.0
 * For the registry's tests: an owner without sockets. Each step writes its effects as one line to be
 * compared, and checks each against a small model (open connections, open jobs, lent windows). */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "ctl/channel.h"
#include "ctl/registry.h"
#include "switchml/switchml.h"

#define MAX_CONNS 40u
#define MS SML_NS_PER_MS
#define S SML_NS_PER_S
#define LEASE_NS (2 * S)
#define MAX_NAMED_EPOCHS 1024u

struct world {
  struct sml_registry *r;
  struct sml_registry_options options;
  uint64_t now_ns;
  struct sml_prng prng;
  char line[16384]; /* effects of the last step, notes left out */
  char notes[8192];
  struct sml_ctl_message last[MAX_CONNS]; /* but heartbeats */
  struct sml_ctl_heartbeat heartbeat;     /* the last one to anybody */
  bool is_open[MAX_CONNS];
  struct sml_channel daemon_end[MAX_CONNS], worker_end[MAX_CONNS];
  struct sml_key worker_key; /* what the ranks take for theirs */
  /* Epochs are random. Tests call them 100, 101, ... as they begin; that of a job's HELLOs and its first one alike. */
  struct {
    uint32_t epoch, name;
  } named[MAX_NAMED_EPOCHS];
  uint32_t num_named, next_name;
  uint32_t jobs_end; /* beyond the highest number that was open; the rest of the table is zeros */
  struct {
    bool is_open, is_started;
    uint32_t epoch, world_size;
    struct sml_key key; /* of the epoch, like the next */
    uint64_t secret[2];
    struct sml_ctl_start start;
  } jobs[SML_REGISTRY_MAX_JOBS];
};
static struct world w;
/* Told what the daemon sends, and that it hangs up, if a world's ranks are machines as well (test_member_world.h). */
static void (*on_sent)(uint32_t conn, const struct sml_ctl_message *message);
static void (*on_hung_up)(uint32_t conn);
static bool is_keyed; /* a keyed world: every join() is a handshake, what a test expects stays the same */

static const struct sml_key key_a = {1, 2}, key_b = {3, 4};
static inline bool find_key(void *user, const char *name, struct sml_key *key_out) {
  (void)user;
  *key_out = (struct sml_key){5, 6}; /* means nothing when it returns false */
  if (strcmp(name, "a") == 0) *key_out = key_a;
  if (strcmp(name, "b") == 0) *key_out = key_b;
  return strcmp(name, "a") == 0 || strcmp(name, "b") == 0;
}

static inline int unkeyed_world(void **state) {
  (void)state;
  is_keyed = false;
  return 0;
}
static inline int keyed_world(void **state) {
  (void)state;
  is_keyed = true;
  return 0;
}
/* A test that must pass in both. */
#define BOTH(test)                                \
  {#test, test, unkeyed_world, NULL, NULL}, {     \
#test " keyed", test, keyed_world, NULL, NULL \
  }
#define OVERHEAD_BYTES (SML_CTL_HEADER_BYTES + (is_keyed ? SML_CTL_KEYED_BYTES : 0))

static inline uint64_t draw(void *user) {
  return sml_prng_next(user);
}

/* Zeros, for one world at a time, up to the end of a block. It stays mapped, 14 MB of which most is never touched:
 * asking for it anew took most of a short world's time under sanitizers. */
static inline void *take_zeros(size_t num_bytes) {
  static uint8_t *memory;
  static size_t room_bytes;
  if (memory == NULL || num_bytes > room_bytes || madvise(memory, room_bytes, MADV_DONTNEED) != 0) {
    free(memory);
    room_bytes = sml_align_up(num_bytes, 65536);
    memory = aligned_alloc(65536, room_bytes);
    if (memory == NULL) return NULL;
    memset(memory, 0, room_bytes);
  }
  return memory + room_bytes - sml_align_up(num_bytes, 64);
}

static inline void begin_with(struct sml_registry_options options) {
  memset(w.jobs, 0, w.jobs_end * sizeof w.jobs[0]); /* megabytes, if all of them were */
  memset(&w, 0, offsetof(struct world, jobs));
  w.now_ns = 1000 * S;
  w.prng.state = 3;
  options.random = draw;
  options.random_user = &w.prng;
  if (is_keyed) options.find_key = find_key;
  w.options = options;
  w.worker_key = key_a;
  w.next_name = 100;
  void *mem = take_zeros(sml_registry_memsize(&options));
  assert_non_null(mem);
  w.r = sml_registry_init(mem, &options);
}

static inline struct sml_registry_options defaults(void) {
  return (struct sml_registry_options){.max_connections = MAX_CONNS,
                                       .max_unjoined_per_host = 8,
                                       .max_jobs = 4,
                                       .num_lanes = 2,
                                       .data_ports = {4000, 4001},
                                       .pool_slots = 1024,
                                       .max_datagram_bytes = 8960,
                                       .join_grace_ns = 5 * S,
                                       .first_phase = 2,
                                       .first_chunk = 0};
}
static inline void begin(void) {
  begin_with(defaults());
}

__attribute__((format(printf, 3, 4))) static inline void add(char *buffer, size_t room, const char *format, ...) {
  size_t used = strlen(buffer);
  va_list args;
  va_start(args, format);
  vsnprintf(buffer + used, room - used, format, args);
  va_end(args);
}
#define LINE(...) add(w.line, sizeof w.line, __VA_ARGS__)

static inline void name_epoch(uint32_t epoch, uint32_t name) {
  w.named[w.num_named % MAX_NAMED_EPOCHS].epoch = epoch;
  w.named[w.num_named++ % MAX_NAMED_EPOCHS].name = name;
}
static inline uint32_t name_of(uint32_t epoch) {
  for (uint32_t i = w.num_named; i > 0 && i + MAX_NAMED_EPOCHS > w.num_named; i--)
    if (w.named[(i - 1) % MAX_NAMED_EPOCHS].epoch == epoch) return w.named[(i - 1) % MAX_NAMED_EPOCHS].name;
  return epoch;
}
/* The latest of that name, or the number itself. */
static inline uint32_t epoch_of(uint32_t name) {
  for (uint32_t i = w.num_named; i > 0 && i + MAX_NAMED_EPOCHS > w.num_named; i--)
    if (w.named[(i - 1) % MAX_NAMED_EPOCHS].name == name) return w.named[(i - 1) % MAX_NAMED_EPOCHS].epoch;
  return name;
}

static inline void check_start(uint16_t job, const struct sml_ctl_start *start) {
  assert_int_equal(start->epoch, w.jobs[job].epoch);
  assert_memory_equal(start->secret, w.jobs[job].secret, sizeof start->secret);
  assert_true(start->num_lanes >= 1 && start->num_lanes <= w.options.num_lanes);
  for (uint32_t lane = 1; lane < start->num_lanes && w.options.find_key != NULL; lane++)
    assert_true(start->slot_base[lane] >= start->slot_base[lane - 1] + sml_ctl_all_slots(start));
  for (uint32_t lane = 0; lane < start->num_lanes && w.options.find_key == NULL; lane++) {
    assert_true(start->slot_base[lane] + start->num_slots <= w.options.pool_slots);
    for (uint32_t j = 0; j < w.jobs_end; j++) {
      const struct sml_ctl_start *other = &w.jobs[j].start;
      if (j == job || !w.jobs[j].is_started || lane >= other->num_lanes) continue;
      assert_true(start->slot_base[lane] + start->num_slots <= other->slot_base[lane] ||
                  other->slot_base[lane] + other->num_slots <= start->slot_base[lane]);
    }
  }
}

static inline void show_message(uint32_t conn, const struct sml_ctl_message *m) {
  uint8_t frame[SML_CHANNEL_MAX_FRAME_BYTES];
  struct sml_ctl_message again;
  size_t consumed, num_bytes = sml_channel_encode(&w.daemon_end[conn], m, frame, sizeof frame);
  assert_true(num_bytes > 0);
  assert_int_equal(sml_channel_decode(&w.worker_end[conn], frame, num_bytes, &again, &consumed), SML_CTL_DECODED);
  assert_memory_equal(m, &again, sizeof again);
  if (m->kind != SML_CTL_HEARTBEAT) w.last[conn] = *m;
  if (on_sent) on_sent(conn, &again);
  switch (m->kind) {
    case SML_CTL_WELCOME:
      LINE("c%u<WELCOME j%u e%u; ", conn, m->u.welcome.job, name_of(m->u.welcome.epoch));
      assert_int_equal(m->u.welcome.epoch, w.jobs[m->u.welcome.job].epoch);
      assert_memory_equal(m->u.welcome.secret, w.jobs[m->u.welcome.job].secret, sizeof m->u.welcome.secret);
      break;
    case SML_CTL_START: LINE("c%u<START e%u; ", conn, name_of(m->u.start.epoch)); break;
    case SML_CTL_HEARTBEAT:
      w.heartbeat = m->u.heartbeat;
      LINE("c%u<HEARTBEAT; ", conn);
      break;
    case SML_CTL_ABORT: LINE("c%u<ABORT %d; ", conn, m->u.abort.status); break;
    case SML_CTL_RANK_GONE:
      LINE("c%u<GONE", conn);
      for (uint32_t i = 0; i < m->u.rank_gone.num_ranks; i++) LINE(" r%u", m->u.rank_gone.ranks[i]);
      LINE("; ");
      break;
    case SML_CTL_CHALLENGE: LINE("c%u<CHALLENGE; ", conn); break;
    case SML_CTL_EVICTED: LINE("c%u<EVICTED %u %u; ", conn, m->u.evicted.num_jobs, m->u.evicted.num_ranks); break;
    case SML_CTL_REPORT: LINE("c%u<REPORT; ", conn); break;
    case SML_CTL_REFUSE: LINE("c%u<REFUSE %d; ", conn, m->u.refuse.status); break;
    default: fail_msg("the daemon sent kind %d", (int)m->kind);
  }
}

/* OPEN_JOB and START_JOB have an epoch and a key or a secret that nothing had before: with each number that the job has
 * in common with the last epoch, who was told of that one knows more of this one than he should. */
static inline void take_epoch(const struct sml_effect *e) {
  const bool has_secret = !is_keyed && w.options.packet_lanes == 0;
  assert_int_equal(name_of(e->epoch), e->epoch); /* a new one */
  assert_int_equal(e->key != NULL, is_keyed);
  if (e->key) assert_memory_not_equal(e->key, &w.jobs[e->job].key, sizeof *e->key);
  if (e->key) w.jobs[e->job].key = *e->key;
  for (uint32_t i = 0; i < 2; i++) {
    assert_int_equal(e->secret[i] != 0, has_secret);
    if (has_secret) assert_true(e->secret[i] != w.jobs[e->job].secret[i]);
    w.jobs[e->job].secret[i] = e->secret[i];
  }
  w.jobs[e->job].epoch = e->epoch;
}

static inline void expect_consistent(void) {
  const char *bad = sml_registry_find_violation(w.r);
  if (bad) fail_msg("%s, after: %s", bad, w.line);
}

static inline void show_departed(const struct sml_effect *e) {
  assert_int_equal(e->world_size, w.jobs[e->job].world_size);
  LINE("depart j%u", e->job);
  for (uint32_t rank = 0; rank < SML_CTL_MAX_WORLD_SIZE; rank++) {
    if (!sml_bit_test(e->ranks, rank)) continue;
    assert_true(rank < e->world_size);
    LINE(" r%u", rank);
  }
  LINE("; ");
}

/* What its slots hold nobody knows here. */
static inline void answer_asker(uint32_t conn, uint16_t job) {
  const struct sml_waiting_slots slots = {.num_waiting = 0};
  struct sml_ctl_message m;
  memset(&m, 0, sizeof m);
  m.kind = SML_CTL_REPORT;
  if (sml_registry_report(w.r, job, &slots, w.now_ns, &m.u.report)) show_message(conn, &m);
}

static inline void take_effect(const struct sml_effect *e) {
  uint32_t name;
  switch (e->kind) {
    case SML_EFFECT_SEND: show_message(e->conn, e->message); break;
    case SML_EFFECT_SET_KEY:
      LINE("c%u key; ", e->conn);
      sml_channel_set_key(&w.daemon_end[e->conn], e->key, e->worker_nonce, e->daemon_nonce);
      sml_channel_set_key(&w.worker_end[e->conn], &w.worker_key, e->worker_nonce, w.last[e->conn].u.challenge.nonce);
      break;
    case SML_EFFECT_CLOSE:
      LINE("c%u close; ", e->conn);
      w.is_open[e->conn] = false;
      if (on_hung_up) on_hung_up(e->conn);
      break;
    case SML_EFFECT_OPEN_JOB:
      assert_false(w.jobs[e->job].is_open);
      w.jobs[e->job].is_open = true;
      w.jobs_end = sml_max_u32(w.jobs_end, e->job + 1u);
      w.jobs[e->job].world_size = e->world_size;
      take_epoch(e);
      name_epoch(e->epoch, w.next_name++);
      LINE("open j%u e%u n%u; ", e->job, name_of(e->epoch), e->world_size);
      break;
    case SML_EFFECT_EXPECT_HELLO: LINE("expect j%u r%u; ", e->job, e->rank); break;
    case SML_EFFECT_FORGET_RANK: LINE("forget j%u r%u; ", e->job, e->rank); break;
    case SML_EFFECT_START_JOB:
      name = w.jobs[e->job].is_started ? w.next_name++ : name_of(w.jobs[e->job].epoch);
      take_epoch(e);
      name_epoch(e->epoch, name);
      check_start(e->job, &e->message->u.start);
      w.jobs[e->job].start = e->message->u.start;
      w.jobs[e->job].is_started = true;
      LINE("start j%u e%u; ", e->job, name);
      break;
    case SML_EFFECT_DEPART: show_departed(e); break;
    case SML_EFFECT_CLOSE_JOB:
      memset(&w.jobs[e->job], 0, sizeof w.jobs[e->job]);
      LINE("end j%u; ", e->job);
      break;
    case SML_EFFECT_NOTE: add(w.notes, sizeof w.notes, "%d:%s:%s; ", (int)e->note, e->job_name, e->text); break;
    case SML_EFFECT_SHOW: LINE("c%u show '%s' from %u; ", e->conn, e->key_name, e->offset_bytes); break;
    case SML_EFFECT_REPORT:
      LINE("c%u report j%u e%u; ", e->conn, e->job, name_of(e->epoch));
      if (on_sent) answer_asker(e->conn, e->job);
      break;
  }
}

static inline void take_effects(void) {
  const struct sml_effect *e;
  w.line[0] = w.notes[0] = 0;
  while ((e = sml_registry_next_effect(w.r))) {
    if (e->kind <= SML_EFFECT_CLOSE) assert_true(e->conn < MAX_CONNS && w.is_open[e->conn]);
    if (e->kind >= SML_EFFECT_EXPECT_HELLO && e->kind <= SML_EFFECT_CLOSE_JOB) assert_true(w.jobs[e->job].is_open);
    if (e->kind == SML_EFFECT_EXPECT_HELLO || e->kind == SML_EFFECT_FORGET_RANK)
      assert_true(e->rank < w.jobs[e->job].world_size);
    take_effect(e);
  }
  expect_consistent();
}

/* --- steps; each leaves its effects in w.line --- */

static inline void opened_from(uint32_t conn, const char *peer) {
  w.is_open[conn] = sml_registry_admits(w.r, peer, w.now_ns);
  take_effects();
  if (!w.is_open[conn]) return;
  memset(&w.last[conn], 0, sizeof w.last[conn]);
  sml_channel_init(&w.daemon_end[conn], true);
  sml_channel_init(&w.worker_end[conn], false);
  sml_registry_on_opened(w.r, conn, peer, w.now_ns);
  take_effects();
}
static inline void opened(uint32_t conn) {
  char peer[SML_PEER_BYTES];
  snprintf(peer, sizeof peer, "10.0.0.%u:%u", conn, 4240 + conn);
  opened_from(conn, peer);
}
static inline void closed(uint32_t conn, enum sml_close_cause cause) {
  w.is_open[conn] = false;
  sml_registry_on_closed(w.r, conn, cause);
  take_effects();
}
static inline void garbage(uint32_t conn, enum sml_ctl_decode verdict) {
  sml_registry_on_garbage(w.r, conn, verdict);
  take_effects();
}
/* Through both ends of the channel, if it can be written at all. */
static inline void said_once(uint32_t conn, const struct sml_ctl_message *m) {
  uint8_t frame[SML_CHANNEL_MAX_FRAME_BYTES];
  struct sml_ctl_message again = *m;
  size_t consumed, num_bytes = sml_channel_encode(&w.worker_end[conn], m, frame, sizeof frame);
  enum sml_ctl_decode verdict = SML_CTL_DECODED;
  if (num_bytes > 0) verdict = sml_channel_decode(&w.daemon_end[conn], frame, num_bytes, &again, &consumed);
  if (verdict == SML_CTL_DECODED) {
    sml_registry_on_message(w.r, conn, &again, w.now_ns);
    take_effects();
  } else {
    garbage(conn, verdict);
  }
}
static inline void said(uint32_t conn, const struct sml_ctl_message *m) {
  struct sml_ctl_message named = *m;
  bool is_handshake = is_keyed && m->kind == SML_CTL_JOIN && w.last[conn].kind == 0 && w.is_open[conn];
  if (is_handshake && !named.u.join.key_name[0]) {
    named.u.join.key_name[0] = 'a';
    named.u.join.nonce[0] = sml_prng_next(&w.prng);
  }
  said_once(conn, &named);
  if (!is_handshake || w.last[conn].kind != SML_CTL_CHALLENGE) return;
  char expected[64];
  snprintf(expected, sizeof expected, "c%u<CHALLENGE; c%u key; ", conn, conn);
  assert_string_equal(w.line, expected);
  said_once(conn, &(struct sml_ctl_message){.kind = SML_CTL_AUTH});
}
static inline struct sml_ctl_message join_message(const char *name, uint32_t rank, uint32_t world_size) {
  struct sml_ctl_message m = {.kind = SML_CTL_JOIN};
  snprintf(m.u.join.job_name, sizeof m.u.join.job_name, "%s", name);
  m.u.join.rank = rank;
  m.u.join.world_size = world_size;
  m.u.join.num_lanes = 4;
  m.u.join.num_slots = 256;
  m.u.join.max_datagram_bytes = 8960;
  m.u.join.lease_ns = LEASE_NS;
  m.u.join.join_timeout_ns = 60 * S;
  return m;
}
static inline void join(uint32_t conn, const char *name, uint32_t rank, uint32_t world_size) {
  struct sml_ctl_message m = join_message(name, rank, world_size);
  said(conn, &m);
}
static inline void probed(uint32_t conn, uint32_t datagram_bytes) {
  said(conn, &(struct sml_ctl_message){.kind = SML_CTL_PROBED, .u.probed.datagram_bytes = datagram_bytes});
}
static inline void want_epoch(uint32_t conn, uint32_t epoch) {
  said(conn, &(struct sml_ctl_message){.kind = SML_CTL_EPOCH, .u.epoch.epoch = epoch_of(epoch)});
}
static inline void goodbye(uint32_t conn) {
  said(conn, &(struct sml_ctl_message){.kind = SML_CTL_GOODBYE});
}
static inline void heartbeat(uint32_t conn) {
  said(conn, &(struct sml_ctl_message){.kind = SML_CTL_HEARTBEAT});
}

/* One timer call at the registry's own next deadline. */
static inline void tick(void) {
  uint64_t deadline_ns = sml_registry_next_deadline(w.r);
  assert_true(deadline_ns != SML_NEVER);
  w.now_ns = sml_max_u64(w.now_ns, deadline_ns);
  sml_registry_on_timer(w.r, w.now_ns);
  take_effects();
}

/* World of n ranks on connections first .. first + n - 1, started. */
static inline void start_world(const char *name, uint32_t first, uint32_t world_size) {
  for (uint32_t rank = 0; rank < world_size; rank++) {
    opened(first + rank);
    join(first + rank, name, rank, world_size);
  }
  for (uint32_t rank = 0; rank < world_size; rank++) probed(first + rank, 8960);
  assert_non_null(strstr(w.line, "start j"));
}

#define EXPECT(text) assert_string_equal(w.line, text)
static inline void expect_detail(uint32_t conn, const char *detail) {
  const struct sml_ctl_message *m = &w.last[conn];
  assert_string_equal(m->kind == SML_CTL_ABORT       ? m->u.abort.detail
                      : m->kind == SML_CTL_RANK_GONE ? m->u.rank_gone.detail
                                                     : m->u.refuse.detail,
                      detail);
}
static inline void expect_all_free(void) {
  struct sml_registry_counts counts;
  sml_registry_counts(w.r, &counts);
  assert_int_equal(counts.connections + counts.jobs_joining + counts.jobs_started + counts.slots_used, 0);
  for (uint32_t j = 0; j < w.jobs_end; j++) assert_false(w.jobs[j].is_open);
}

static inline int end_world(void **state) {
  (void)state;
  w.r = NULL;
  return 0;
}
