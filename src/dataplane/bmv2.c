/* SPDX-License-Identifier: Apache-2.0 */
#include "dataplane/bmv2.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

#include "dataplane/thrift.h"

#define CONTEXT 0
#define CALL_NS (1 * SML_NS_PER_S)  /* one call */
#define WORK_NS (2 * SML_NS_PER_S)  /* all calls of a job's start or end: leases go on meanwhile */
#define LOOK_NS (100 * SML_NS_PER_MS) /* who asks for figures shall not hold leases up */
#define MAX_PORTS 512u
#define FLOOD_GROUP 1
#define FIRST_JOB_GROUP 16u
#define RANKS_PER_JOB 32u
#define NUM_TURNS 2u
#define WORD_VALID (UINT32_C(1) << 31)
#define NONE INT64_MIN
#define VALUES "SwitchIn.aggregate.sum.value_" /* registers: 32 lanes, and the lane of them */

struct member {
  int64_t entries[NUM_TURNS], replica, node;
};

struct job {
  struct sml_dataplane_job is;
  int64_t window, group;
  struct member members[SML_SWITCH_MAX_CONTRIBUTORS];
};

struct sml_bmv2 {
  struct sml_bmv2_options options;
  struct sml_dataplane dataplane;
  struct sml_thrift thrift;
  uint64_t deadline_ns; /* of the work that is done */
  uint32_t ip;
  uint16_t port;
  int64_t *words; /* [2 * slots of the program] */
  struct job *jobs[SML_MAX_JOBS];
};

/* ---- calls ---- */

/* The result's first number goes to *value_out. */
static bool call(struct sml_bmv2 *b, int64_t *value_out) {
  const uint64_t deadline_ns = sml_min_u64(sml_clock_ns() + CALL_NS, b->deadline_ns);
  return sml_thrift_end(&b->thrift, deadline_ns, value_out, value_out != NULL, NULL);
}

static void begin(struct sml_bmv2 *b, const char *method) {
  sml_thrift_begin(&b->thrift, method);
  sml_thrift_i32(&b->thrift, 1, CONTEXT);
}

struct key {
  uint64_t value;
  uint32_t bits;
  uint64_t mask; /* 0: exact */
};

static uint32_t to_bytes(uint64_t value, uint32_t bits, uint8_t bytes[8]) {
  const uint32_t num_bytes = (bits + 7) / 8;
  for (uint32_t i = 0; i < num_bytes; i++) bytes[i] = (uint8_t)(value >> (8 * (num_bytes - 1 - i)));
  return num_bytes;
}

static void put_key(struct sml_bmv2 *b, const struct key *k) {
  uint8_t bytes[8];
  struct sml_thrift *t = &b->thrift;
  enum { EXACT = 0, TERNARY = 2 };
  sml_thrift_i32(t, 1, k->mask == 0 ? EXACT : TERNARY);
  sml_thrift_struct(t, k->mask == 0 ? 2 : 4);
  sml_thrift_bytes(t, 1, bytes, to_bytes(k->value, k->bits, bytes));
  if (k->mask != 0) sml_thrift_bytes(t, 2, bytes, to_bytes(k->mask, k->bits, bytes));
  sml_thrift_stop(t);
  sml_thrift_stop(t);
}

static bool add_entry(struct sml_bmv2 *b, const char *table, const struct key *keys, uint32_t num_keys,
                      const char *action, const struct key *data, uint32_t num_data, int64_t *entry_out) {
  struct sml_thrift *t = &b->thrift;
  uint8_t bytes[8];
  bool is_ternary = false;
  begin(b, "standard:bm_mt_add_entry");
  sml_thrift_text(t, 2, table);
  sml_thrift_list(t, 3, SML_THRIFT_STRUCT, num_keys);
  for (uint32_t i = 0; i < num_keys; i++) {
    put_key(b, &keys[i]);
    is_ternary = is_ternary || keys[i].mask != 0;
  }
  sml_thrift_text(t, 4, action);
  sml_thrift_list(t, 5, SML_THRIFT_STRING, num_data);
  for (uint32_t i = 0; i < num_data; i++)
    sml_thrift_element(t, bytes, to_bytes(data[i].value, data[i].bits, bytes));
  sml_thrift_struct(t, 6);
  if (is_ternary) sml_thrift_i32(t, 1, 1);
  sml_thrift_stop(t);
  return call(b, entry_out);
}

/* What has gone cannot be taken away again: errors are nobody's here. The next job meets a dead switch. */
static void delete_entry(struct sml_bmv2 *b, const char *table, int64_t *entry) {
  if (*entry == NONE) return;
  begin(b, "standard:bm_mt_delete_entry");
  sml_thrift_text(&b->thrift, 2, table);
  sml_thrift_i32(&b->thrift, 3, (int32_t)*entry);
  (void)call(b, NULL);
  *entry = NONE;
}

/* Tables, groups and their nodes, registers, counters: what an earlier daemon left would get copies of results. */
static bool reset_switch(struct sml_bmv2 *b) {
  sml_thrift_begin(&b->thrift, "standard:bm_reset_state");
  return call(b, NULL);
}

static bool write_registers(struct sml_bmv2 *b, const char *name, uint32_t first, uint32_t end, uint32_t value) {
  begin(b, "standard:bm_register_write_range");
  sml_thrift_text(&b->thrift, 2, name);
  sml_thrift_i32(&b->thrift, 3, (int32_t)first);
  sml_thrift_i32(&b->thrift, 4, (int32_t)end);
  sml_thrift_i64(&b->thrift, 5, value);
  return call(b, NULL);
}

static bool has_register(struct sml_bmv2 *b, const char *name, uint32_t index) {
  int64_t value;
  begin(b, "standard:bm_register_read");
  sml_thrift_text(&b->thrift, 2, name);
  sml_thrift_i32(&b->thrift, 3, (int32_t)index);
  return call(b, &value);
}

static bool make_group(struct sml_bmv2 *b, int32_t number, int64_t *group_out) {
  begin(b, "simple_pre_lag:bm_mc_mgrp_create");
  sml_thrift_i32(&b->thrift, 2, number);
  return call(b, group_out);
}

/* ports: of 0 and 1, the last character is port 0's. */
static bool make_node(struct sml_bmv2 *b, int64_t group, uint32_t rid, const char *ports, int64_t *node_out) {
  begin(b, "simple_pre_lag:bm_mc_node_create");
  sml_thrift_i32(&b->thrift, 2, (int32_t)rid);
  sml_thrift_text(&b->thrift, 3, ports);
  sml_thrift_text(&b->thrift, 4, "");
  if (!call(b, node_out)) return false;
  begin(b, "simple_pre_lag:bm_mc_node_associate");
  sml_thrift_i32(&b->thrift, 2, (int32_t)group);
  sml_thrift_i32(&b->thrift, 3, (int32_t)*node_out);
  return call(b, NULL);
}

static void destroy_mc(struct sml_bmv2 *b, const char *method, int64_t *handle) {
  if (*handle == NONE) return;
  begin(b, method);
  sml_thrift_i32(&b->thrift, 2, (int32_t)*handle);
  (void)call(b, NULL);
  *handle = NONE;
}

static bool tell(const struct sml_bmv2 *b, char *error, size_t error_bytes) {
  snprintf(error, error_bytes, "%s", b->thrift.error);
  return false;
}

/* ---- the switch ---- */

static void port_map(char text[MAX_PORTS + 1], const uint32_t *ports, uint32_t num_ports) {
  uint32_t end = 1;
  for (uint32_t i = 0; i < num_ports; i++) end = sml_max_u32(end, ports[i] + 1);
  memset(text, '0', end);
  text[end] = 0;
  for (uint32_t i = 0; i < num_ports; i++) text[end - 1 - ports[i]] = '1';
}

static bool flood_to_all_ports(struct sml_bmv2 *b) {
  int64_t values[2 * MAX_PORTS], group, node;
  uint32_t num_values = 0, ports[MAX_PORTS], num_ports = 0;
  char map[MAX_PORTS + 1];
  sml_thrift_begin(&b->thrift, "standard:bm_dev_mgr_show_ports");
  if (!sml_thrift_end(&b->thrift, sml_clock_ns() + CALL_NS, values, SML_ARRAY_LEN(values), &num_values)) return false;
  for (uint32_t i = 0; i + 1 < sml_min_u32(num_values, SML_ARRAY_LEN(values)); i += 2) /* number, and whether up */
    if (values[i] >= 0 && values[i] < MAX_PORTS) ports[num_ports++] = (uint32_t)values[i];
  port_map(map, ports, num_ports);
  return make_group(b, FLOOD_GROUP, &group) && make_node(b, group, 0, map, &node);
}

static bool open_switch(void *user, const struct sml_addr *data_addr, char *error, size_t error_bytes) {
  struct sml_bmv2 *b = user;
  struct sockaddr_in in;
  char last_lane[64], beyond[64];
  memcpy(&in, data_addr->bytes, sizeof in);
  if (data_addr->num_bytes != sizeof in || in.sin_family != AF_INET || in.sin_addr.s_addr == 0) {
    snprintf(error, error_bytes, "with a switch, --listen must be the IPv4 address by which ranks reach this host");
    return false;
  }
  b->ip = ntohl(in.sin_addr.s_addr);
  b->port = sml_addr_port(data_addr);
  b->deadline_ns = sml_clock_ns() + 5 * SML_NS_PER_S;
  if (!reset_switch(b)) return tell(b, error, error_bytes);
  const uint32_t last = b->options.packet_lanes / 32 - 1;
  snprintf(last_lane, sizeof last_lane, VALUES "%u_31", last & 0xff);
  snprintf(beyond, sizeof beyond, VALUES "%u_0", (last + 1) & 0xff);
  if (!has_register(b, last_lane, 0) || has_register(b, beyond, 0)) {
    if (b->thrift.fd < 0) return tell(b, error, error_bytes);
    snprintf(error, error_bytes, "the switch's program has not %u lanes a packet, as --switch-format says",
             b->options.packet_lanes);
    return false;
  }
  if (!has_register(b, "cell_map", 2 * b->options.pool_slots - 1)) {
    if (b->thrift.fd < 0) return tell(b, error, error_bytes);
    snprintf(error, error_bytes, "the switch's program has less than %u slots: set --slots", b->options.pool_slots);
    return false;
  }
  int64_t entry;
  const struct key keys[] = {{b->ip, 32, 0}, {b->port, 16, 0}}, port = {b->options.cpu_port, 16, 0};
  if (!flood_to_all_ports(b) || !add_entry(b, "aggregator", keys, 2, "is_ours", &port, 1, &entry))
    return tell(b, error, error_bytes);
  return true;
}

/* ---- jobs ---- */

static uint32_t ip_of(const struct sml_addr *addr) {
  struct sockaddr_in in;
  memcpy(&in, addr->bytes, sizeof in);
  return ntohl(in.sin_addr.s_addr);
}

static bool add_member(struct sml_bmv2 *b, struct job *job, uint32_t c) {
  const struct sml_dataplane_job *is = &job->is;
  const struct sml_place *place = &is->places[c];
  struct member *m = &job->members[c];
  const uint16_t port = sml_addr_port(&place->addr);
  for (uint32_t turn = 0; turn < NUM_TURNS; turn++) {
    const uint32_t base = WORD_VALID | turn << 30, full = base | ((UINT32_C(1) << is->num_contributors) - 1);
    const struct key keys[] = {{is->number, 16, 0}, {is->epoch, 32, 0}, {c, 16, 0}, {turn, 8, 0},
                               {ip_of(&place->addr), 32, 0}, {port, 16, 0}, {b->port, 16, 0}};
    const struct key data[] = {{base | UINT32_C(1) << c, 32, 0}, {full, 32, 0}, {full ^ UINT32_C(1) << c, 32, 0},
                               {is->number, 16, 0}, {FIRST_JOB_GROUP + is->number, 16, 0}, {place->port, 16, 0},
                               {is->is_checked, 8, 0}};
    if (!add_entry(b, "member", keys, SML_ARRAY_LEN(keys), "is_member", data, SML_ARRAY_LEN(data), &m->entries[turn]))
      return false;
  }
  return true;
}

static bool add_replica(struct sml_bmv2 *b, struct job *job, uint32_t c) {
  const struct sml_place *place = &job->is.places[c];
  const uint32_t rid = 1 + RANKS_PER_JOB * job->is.number + c, port = place->port;
  char map[MAX_PORTS + 1];
  if (port >= MAX_PORTS) return false;
  port_map(map, &port, 1);
  const struct key keys[] = {{b->port, 16, 0}, {rid, 16, 0}};
  const struct key data[] = {
      {place->mac, 48, 0}, {ip_of(&place->addr), 32, 0}, {sml_addr_port(&place->addr), 16, 0}};
  return add_entry(b, "replica", keys, 2, "to_member", data, 3, &job->members[c].replica) &&
         make_node(b, job->group, rid, map, &job->members[c].node);
}

/* That frames to the member need not be flooded; a second entry for a host is refused, which is fine. */
static void add_route(struct sml_bmv2 *b, const struct sml_place *place) {
  int64_t entry;
  const struct key mac = {place->mac, 48, 0}, port = {place->port, 16, 0};
  (void)add_entry(b, "l2", &mac, 1, "forward", &port, 1, &entry);
}

/* Registers first, and who may use them last. */
static bool fill(struct sml_bmv2 *b, struct job *job) {
  const struct sml_dataplane_job *is = &job->is;
  const uint32_t first = 2 * is->slot_base, end = 2 * (is->slot_base + is->num_slots);
  const struct key window[] = {{is->number, 16, 0}, {is->slot_base, 16, 0xffff & ~(uint64_t)(is->num_slots - 1)}};
  if (!write_registers(b, "cell_phase", first, end, 0) || !write_registers(b, "cell_map", first, end, 0) ||
      !write_registers(b, "cursor", is->number, is->number + 1u, is->first_chunk + is->num_slots) ||
      !make_group(b, (int32_t)(FIRST_JOB_GROUP + is->number), &job->group) ||
      !add_entry(b, "window", window, 2, "is_inside", NULL, 0, &job->window))
    return false;
  for (uint32_t c = 0; c < is->num_contributors; c++)
    if (!add_replica(b, job, c)) return false;
  for (uint32_t c = 0; c < is->num_contributors; c++) add_route(b, &is->places[c]);
  for (uint32_t c = 0; c < is->num_contributors; c++)
    if (!add_member(b, job, c)) return false;
  return true;
}

static void remove_member(struct sml_bmv2 *b, struct job *job, uint32_t c) {
  for (uint32_t turn = 0; turn < NUM_TURNS; turn++) delete_entry(b, "member", &job->members[c].entries[turn]);
}

static void close_job(void *user, uint16_t number) {
  struct sml_bmv2 *b = user;
  struct job *job = b->jobs[number];
  if (job == NULL) return;
  b->deadline_ns = sml_clock_ns() + WORK_NS;
  for (uint32_t c = 0; c < job->is.num_contributors; c++) remove_member(b, job, c);
  delete_entry(b, "window", &job->window);
  for (uint32_t c = 0; c < job->is.num_contributors; c++) {
    delete_entry(b, "replica", &job->members[c].replica);
    destroy_mc(b, "simple_pre_lag:bm_mc_node_destroy", &job->members[c].node);
  }
  destroy_mc(b, "simple_pre_lag:bm_mc_mgrp_destroy", &job->group);
  free(job);
  b->jobs[number] = NULL;
}

static bool start_job(void *user, const struct sml_dataplane_job *is, char *error, size_t error_bytes) {
  struct sml_bmv2 *b = user;
  close_job(b, is->number); /* an earlier epoch */
  struct job *job = calloc(1, sizeof *job);
  if (job == NULL) return snprintf(error, error_bytes, "out of memory"), false;
  job->is = *is;
  job->window = job->group = NONE;
  for (uint32_t c = 0; c < SML_SWITCH_MAX_CONTRIBUTORS; c++)
    job->members[c] = (struct member){{NONE, NONE}, NONE, NONE};
  b->jobs[is->number] = job;
  b->deadline_ns = sml_clock_ns() + WORK_NS;
  return fill(b, job) || tell(b, error, error_bytes);
}

static void depart(void *user, uint16_t number, uint32_t c) {
  struct sml_bmv2 *b = user;
  b->deadline_ns = sml_clock_ns() + CALL_NS;
  if (b->jobs[number] != NULL) remove_member(b, b->jobs[number], c);
}

static uint32_t find_blocked(void *user, uint16_t number, uint32_t c) {
  struct sml_bmv2 *b = user;
  const struct job *job = b->jobs[number];
  if (job == NULL) return UINT32_MAX;
  const struct sml_dataplane_job *is = &job->is;
  const uint32_t end = 2 * (is->slot_base + is->num_slots), all = (UINT32_C(1) << is->num_contributors) - 1;
  uint32_t num_words = 0;
  begin(b, "standard:bm_register_read_all");
  sml_thrift_text(&b->thrift, 2, "cell_map");
  if (!sml_thrift_end(&b->thrift, sml_clock_ns() + CALL_NS, b->words, 2 * b->options.pool_slots, &num_words))
    return UINT32_MAX;
  for (uint32_t cell = 2 * is->slot_base; cell < sml_min_u32(end, num_words); cell++) {
    const uint32_t ranks = (uint32_t)b->words[cell] & all;
    if (ranks != 0 && ranks != all && (ranks >> c & 1) == 0) return cell / 2 - is->slot_base;
  }
  return UINT32_MAX;
}

/* The counter's first entries are the reasons in core's order. */
static void add_drops(void *user, uint64_t *num_drops) {
  struct sml_bmv2 *b = user;
  const uint64_t deadline_ns = sml_clock_ns() + LOOK_NS;
  for (uint32_t d = 0; d < SML_NUM_DROPS; d++) {
    int64_t values[2]; /* bytes, packets */
    uint32_t num_values;
    begin(b, "standard:bm_counter_read");
    sml_thrift_text(&b->thrift, 2, "verdicts");
    sml_thrift_i32(&b->thrift, 3, (int32_t)d);
    if (!sml_thrift_end(&b->thrift, deadline_ns, values, 2, &num_values) || num_values < 2) return;
    num_drops[d] += (uint64_t)values[1];
  }
}

struct sml_bmv2 *sml_bmv2_create(const struct sml_bmv2_options *options) {
  struct sml_bmv2 *b = calloc(1, sizeof *b);
  if (b == NULL) return NULL;
  b->options = *options;
  b->words = calloc(2 * (size_t)options->pool_slots, sizeof *b->words);
  if (b->words == NULL) {
    free(b);
    return NULL;
  }
  b->dataplane = (struct sml_dataplane){b, open_switch, start_job, depart, find_blocked, close_job, add_drops};
  sml_thrift_init(&b->thrift, &options->runtime);
  return b;
}

void sml_bmv2_destroy(struct sml_bmv2 *b) {
  if (b == NULL) return;
  for (uint32_t j = 0; j < SML_MAX_JOBS; j++) free(b->jobs[j]);
  sml_thrift_close(&b->thrift);
  free(b->words);
  free(b);
}

struct sml_dataplane *sml_bmv2_dataplane(struct sml_bmv2 *b) {
  return &b->dataplane;
}
