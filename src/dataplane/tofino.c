/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "dataplane/bfrt.h"
#include "dataplane/connection.h"
#include "dataplane/jobs.h"
#include "dataplane/switches.h"

#define BATCH 256u /* entries a call */
#define MAX_PIPES 8u
#define PIPE_SHIFT 7u /* a port's number is that of its pipe and 7 bits */
#define MAX_PORTS SML_SWITCH_MAX_PORTS
#define MAX_XIDS 288u       /* entries of $pre.prune: ports from there on would get their own floods back */
#define FLOOD_NODE 0x10000u /* above every rid */
#define WORD_VALID 0x80000000u
#define WORD_RANKS 0x3fffffffu

/* Names that p4/tna.p4 gets, below the pipe; $...: fixed tables and fields. */
#define PIPE "pipe."
#define CELLS PIPE "cells"
#define CURSORS PIPE "cursors"
#define VERDICTS PIPE "verdicts"
#define LANE PIPE "Ingress.aggregate.sum.lane_" /* 32 of them, and the lane */

struct sml_tofino {
  struct sml_switch_options options;
  struct sml_switch_jobs jobs;
  struct sml_bfrt bfrt;
  uint32_t ports[MAX_PORTS], num_ports; /* that get floods unless they are shut */
};

static void begin_work(void *user, uint64_t deadline_ns) {
  struct sml_tofino *t = user;
  t->bfrt.deadline_ns = deadline_ns;
}

static const char *error_of(void *user) {
  const struct sml_tofino *t = user;
  return sml_bfrt_error(&t->bfrt);
}

/* ---- entries ---- */

static void put_entry(struct sml_bfrt *b, enum sml_bfrt_update update, const struct sml_switch_entry *entry) {
  char table[64];
  const uint32_t order = sml_switch_order(entry);
  snprintf(table, sizeof table, PIPE "%s", entry->table);
  sml_bfrt_entry(b, update, table, entry->action);
  for (uint32_t i = 0; i < entry->num_keys; i++) {
    const struct sml_switch_field *k = &entry->keys[i];
    sml_bfrt_key(b, k->name, k->value, k->bits, k->mask);
  }
  if (order != 0) sml_bfrt_key(b, "$MATCH_PRIORITY", order - 1, 32, 0);
  if (update == SML_BFRT_INSERT) {
    sml_bfrt_data(b);
    for (uint32_t i = 0; i < entry->num_data; i++)
      sml_bfrt_value(b, entry->data[i].name, entry->data[i].value, entry->data[i].bits);
  }
  sml_bfrt_end_entry(b);
}

/* Entries are known by their keys: any handle will do. */
static bool add_entry(void *user, const struct sml_switch_entry *entry, int64_t *handle_out) {
  struct sml_tofino *t = user;
  sml_bfrt_begin(&t->bfrt);
  put_entry(&t->bfrt, SML_BFRT_INSERT, entry);
  if (!sml_bfrt_write(&t->bfrt)) return false;
  *handle_out = 0;
  return true;
}

static void delete_entry(void *user, const struct sml_switch_entry *entry, int64_t handle) {
  struct sml_tofino *t = user;
  (void)handle;
  sml_bfrt_begin(&t->bfrt);
  put_entry(&t->bfrt, SML_BFRT_DELETE, entry);
  if (!sml_bfrt_write(&t->bfrt)) t->jobs.is_unsure = true;
}

/* ---- multicast ---- */

static void put_group(struct sml_bfrt *b, enum sml_bfrt_update update, uint32_t group, const uint32_t *node) {
  static const uint32_t no_xid = 0;
  sml_bfrt_entry(b, update, "$pre.mgid", "");
  sml_bfrt_key(b, "$MGID", group, 16, 0);
  if (node != NULL) {
    sml_bfrt_data(b);
    sml_bfrt_numbers(b, "$MULTICAST_NODE_ID", node, 1);
    sml_bfrt_truths(b, "$MULTICAST_NODE_L1_XID_VALID", &no_xid, 1);
    sml_bfrt_numbers(b, "$MULTICAST_NODE_L1_XID", &no_xid, 1);
  }
  sml_bfrt_end_entry(b);
}

static bool write_group(struct sml_tofino *t, enum sml_bfrt_update update, uint32_t group, const uint32_t *node) {
  sml_bfrt_begin(&t->bfrt);
  put_group(&t->bfrt, update, group, node);
  return sml_bfrt_write(&t->bfrt);
}

static bool make_group(void *user, uint32_t group, int64_t *handle_out) {
  if (!write_group(user, SML_BFRT_INSERT, group, NULL)) return false;
  *handle_out = 0;
  return true;
}

static void delete_group(void *user, uint32_t group, int64_t handle) {
  struct sml_tofino *t = user;
  (void)handle;
  if (!write_group(t, SML_BFRT_DELETE, group, NULL)) t->jobs.is_unsure = true;
}

static bool write_node(struct sml_tofino *t, enum sml_bfrt_update update, uint32_t node, uint32_t rid,
                       const uint32_t *ports, uint32_t num_ports) {
  struct sml_bfrt *b = &t->bfrt;
  sml_bfrt_begin(b);
  sml_bfrt_entry(b, update, "$pre.node", "");
  sml_bfrt_key(b, "$MULTICAST_NODE_ID", node, 32, 0);
  if (update != SML_BFRT_DELETE) {
    sml_bfrt_data(b);
    sml_bfrt_value(b, "$MULTICAST_RID", rid, 16);
    sml_bfrt_numbers(b, "$MULTICAST_LAG_ID", NULL, 0);
    sml_bfrt_numbers(b, "$DEV_PORT", ports, num_ports);
  }
  sml_bfrt_end_entry(b);
  return sml_bfrt_write(b);
}

/* The node of a copy has its rid as number. */
static bool add_copy(void *user, uint32_t group, int64_t group_handle, uint32_t rid, const struct sml_place *place,
                     int64_t *handle_out) {
  const uint32_t port = place->port;
  (void)group_handle;
  if (!write_node(user, SML_BFRT_INSERT, rid, rid, &port, 1)) return false;
  *handle_out = 0;
  return write_group(user, SML_BFRT_ADD_TO, group, &rid);
}

/* A node that is in a group cannot be deleted. */
static void delete_copy(void *user, uint32_t group, uint32_t rid, int64_t handle) {
  struct sml_tofino *t = user;
  (void)handle;
  const bool is_out = write_group(t, SML_BFRT_TAKE_FROM, group, &rid);
  const bool is_gone = write_node(t, SML_BFRT_DELETE, rid, rid, NULL, 0);
  t->jobs.is_unsure = t->jobs.is_unsure || !is_out || !is_gone;
}

/* Each pipe has registers of its own, so updates that come in by different ones would never meet. */
static bool has_reach(const struct sml_dataplane_job *job, char *error, size_t error_bytes) {
  for (uint32_t c = 1; c < job->num_contributors; c++) {
    const uint32_t first = job->places[0].port, port = job->places[c].port;
    if (port >> PIPE_SHIFT == first >> PIPE_SHIFT) continue;
    snprintf(error, error_bytes,
             "contributors 0 and %u are at ports %u and %u of the switch, which are of pipes %u and %u, and a pipe "
             "sums by itself: attach all hosts of a job to ports of one pipe",
             c, first, port, first >> PIPE_SHIFT, port >> PIPE_SHIFT);
    return false;
  }
  return true;
}

/* ---- registers ---- */

static bool preset_cells(struct sml_bfrt *b, uint32_t first, uint32_t end) {
  sml_bfrt_begin(b);
  for (uint32_t cell = first; cell < end; cell++) {
    sml_bfrt_entry(b, SML_BFRT_MODIFY, CELLS, "");
    sml_bfrt_key(b, "$REGISTER_INDEX", cell, 32, 0);
    sml_bfrt_data(b);
    sml_bfrt_value(b, "cells.phase", cell & 1, 32); /* the one before its first */
    sml_bfrt_value(b, "cells.word", WORD_VALID, 32);
    sml_bfrt_end_entry(b);
  }
  return sml_bfrt_write(b);
}

static bool preset(void *user, uint32_t first_cell, uint32_t end_cell, uint32_t cursor, uint32_t grant) {
  struct sml_tofino *t = user;
  struct sml_bfrt *b = &t->bfrt;
  for (uint32_t cell = first_cell; cell < end_cell; cell += BATCH)
    if (!preset_cells(b, cell, sml_min_u32(end_cell, cell + BATCH))) return false;
  sml_bfrt_begin(b);
  sml_bfrt_entry(b, SML_BFRT_MODIFY, CURSORS, "");
  sml_bfrt_key(b, "$REGISTER_INDEX", cursor, 32, 0);
  sml_bfrt_data(b);
  sml_bfrt_value(b, "cursors.f1", grant, 32);
  sml_bfrt_end_entry(b);
  return sml_bfrt_write(b);
}

static bool look_at(struct sml_bfrt *b, const char *table, const char *index, uint32_t first, uint32_t end) {
  sml_bfrt_begin(b);
  for (uint32_t i = first; i < end; i++) {
    sml_bfrt_look(b, table, true);
    sml_bfrt_key(b, index, i, 32, 0);
    sml_bfrt_end_entry(b);
  }
  return sml_bfrt_read(b);
}

/* One value a pipe comes; only the pipe of the job's ports has changed it. */
static bool read_cells(struct sml_tofino *t, uint32_t field, uint32_t first, uint32_t end, uint32_t *words) {
  uint64_t cell, values[MAX_PIPES];
  uint32_t num_values;
  if (!look_at(&t->bfrt, CELLS, "$REGISTER_INDEX", first, end)) return false;
  struct sml_bfrt_cursor cursor = sml_bfrt_first(&t->bfrt);
  while (sml_bfrt_next(&cursor, field, &cell, values, MAX_PIPES, &num_values)) {
    if (cell < first || cell >= end) continue;
    words[cell - first] = WORD_VALID;
    for (uint32_t i = 0; i < num_values; i++)
      if ((values[i] & WORD_RANKS) != 0) words[cell - first] = (uint32_t)values[i];
  }
  return true;
}

static bool read_words(void *user, uint32_t first_cell, uint32_t end_cell, uint32_t *words) {
  struct sml_tofino *t = user;
  const uint32_t field = sml_bfrt_field(&t->bfrt, CELLS, "cells.word");
  if (field == 0) return false;
  memset(words, 0, (end_cell - first_cell) * sizeof *words); /* of a cell that the answer leaves out nothing is known */
  for (uint32_t cell = first_cell; cell < end_cell; cell += BATCH)
    if (!read_cells(t, field, cell, sml_min_u32(end_cell, cell + BATCH), words + (cell - first_cell))) return false;
  return true;
}

/* ---- the switch ---- */

static bool read_keys(struct sml_bfrt *b, const char *table, uint32_t *keys, uint32_t max_keys,
                      uint32_t *num_keys_out) {
  uint64_t key;
  uint32_t num_values;
  *num_keys_out = 0;
  sml_bfrt_begin(b);
  sml_bfrt_look(b, table, false);
  sml_bfrt_end_entry(b);
  if (!sml_bfrt_read(b)) return false;
  struct sml_bfrt_cursor cursor = sml_bfrt_first(b);
  while (*num_keys_out < max_keys && sml_bfrt_next(&cursor, 0, &key, NULL, 0, &num_values))
    if (key <= UINT32_MAX) keys[(*num_keys_out)++] = (uint32_t)key; /* beyond: a default entry's */
  return true;
}

/* The driver cannot empty its own tables at once, as it can the program's. */
static bool delete_each(struct sml_bfrt *b, const char *table, const char *key, uint32_t bits) {
  uint32_t keys[BATCH], num_keys;
  for (;;) {
    if (!read_keys(b, table, keys, BATCH, &num_keys)) return false;
    if (num_keys == 0) return true;
    sml_bfrt_begin(b);
    for (uint32_t i = 0; i < num_keys; i++) {
      sml_bfrt_entry(b, SML_BFRT_DELETE, table, "");
      sml_bfrt_key(b, key, keys[i], bits, 0);
      sml_bfrt_end_entry(b);
    }
    if (!sml_bfrt_write(b)) return false;
  }
}

/* What an earlier daemon left would get copies of results. */
static bool clear_tables(struct sml_bfrt *b) {
  static const char *const tables[] = {PIPE "member", PIPE "window", PIPE "replica",    PIPE "l2",
                                       PIPE "host",   PIPE "source", PIPE "aggregator", PIPE "listener"};
  for (uint32_t i = 0; i < SML_ARRAY_LEN(tables); i++) {
    sml_bfrt_begin(b);
    sml_bfrt_entry(b, SML_BFRT_DELETE, tables[i], "");
    sml_bfrt_end_entry(b);
    if (!sml_bfrt_write(b)) return false;
  }
  return delete_each(b, "$pre.mgid", "$MGID", 16) && delete_each(b, "$pre.node", "$MULTICAST_NODE_ID", 32);
}

/* The ports of the front, and the daemon's own, which may be the processor's and is then not among them. */
static bool find_ports(struct sml_tofino *t, uint32_t *ports, uint32_t *num_ports_out) {
  uint32_t found[MAX_PORTS], num_found, num_ports = 0;
  const uint32_t cpu_port = t->options.cpu_port;
  bool has_cpu_port = false;
  if (!read_keys(&t->bfrt, "$PORT", found, MAX_PORTS - 1, &num_found)) return false;
  for (uint32_t i = 0; i < num_found; i++) {
    has_cpu_port = has_cpu_port || found[i] == cpu_port;
    if (found[i] < MAX_XIDS) ports[num_ports++] = found[i];
  }
  if (!has_cpu_port && cpu_port < MAX_XIDS) ports[num_ports++] = cpu_port;
  *num_ports_out = num_ports;
  return true;
}

/* A frame that came by a port has that port as exclusion, which is what keeps it from going back. The table always has
 * all its entries: what is there is replaced. */
static bool prune(struct sml_bfrt *b, const uint32_t *ports, uint32_t num_ports) {
  sml_bfrt_begin(b);
  for (uint32_t i = 0; i < num_ports; i++) {
    sml_bfrt_entry(b, SML_BFRT_INSERT, "$pre.prune", "");
    sml_bfrt_key(b, "$MULTICAST_L2_XID", ports[i], 16, 0);
    sml_bfrt_data(b);
    sml_bfrt_numbers(b, "$DEV_PORT", &ports[i], 1);
    sml_bfrt_end_entry(b);
  }
  return sml_bfrt_write(b);
}

static bool flood_to_all_ports(struct sml_tofino *t) {
  static const uint32_t node = FLOOD_NODE;
  int64_t handle;
  return find_ports(t, t->ports, &t->num_ports) && prune(&t->bfrt, t->ports, t->num_ports) &&
         write_node(t, SML_BFRT_INSERT, node, 0, t->ports, t->num_ports) &&
         make_group(t, SML_SWITCH_FLOOD_GROUP, &handle) &&
         write_group(t, SML_BFRT_ADD_TO, SML_SWITCH_FLOOD_GROUP, &node);
}

static void flood_to_open_ports(void *user) {
  struct sml_tofino *t = user;
  uint32_t open_ports[MAX_PORTS], num_open = 0;
  for (uint32_t i = 0; i < t->num_ports; i++)
    if (t->jobs.shut_until_ns[t->ports[i]] == 0) open_ports[num_open++] = t->ports[i];
  (void)write_node(t, SML_BFRT_MODIFY, FLOOD_NODE, 0, open_ports, num_open);
}

static bool tell(const struct sml_tofino *t, char *error, size_t error_bytes, const char *instead) {
  snprintf(error, error_bytes, "%s", t->bfrt.grpc.error[0] != 0 ? t->bfrt.grpc.error : instead);
  return false;
}

static bool open_switch(void *user, char *error, size_t error_bytes) {
  struct sml_tofino *t = user;
  char last_lane[64], beyond[64], wrong[128];
  const uint32_t last = t->options.packet_lanes / 32 - 1;
  t->bfrt.num_names = 0; /* it may have been loaded anew */
  if (!clear_tables(&t->bfrt)) return tell(t, error, error_bytes, "");
  snprintf(last_lane, sizeof last_lane, LANE "%u_31.values", last & 0xff);
  snprintf(beyond, sizeof beyond, LANE "%u_0.values", (last + 1) & 0xff);
  snprintf(wrong, sizeof wrong, "the switch's program has not %u lanes a packet, as --switch-format says",
           t->options.packet_lanes);
  if (!sml_bfrt_has_table(&t->bfrt, last_lane) || sml_bfrt_has_table(&t->bfrt, beyond) || t->bfrt.grpc.error[0] != 0)
    return tell(t, error, error_bytes, wrong);
  if (!look_at(&t->bfrt, CELLS, "$REGISTER_INDEX", 2 * t->options.pool_slots - 1, 2 * t->options.pool_slots)) {
    if (t->bfrt.grpc.fd < 0) return tell(t, error, error_bytes, "");
    snprintf(error, error_bytes, "the switch's program has less than %u slots: set --slots", t->options.pool_slots);
    return false;
  }
  if (!flood_to_all_ports(t) || !sml_switch_jobs_add_aggregator(&t->jobs, t->options.cpu_port))
    return tell(t, error, error_bytes, "");
  return true;
}

/* The counters of all pipes. Nobody sets them to 0: they count since the program was loaded. */
static bool read_counters(void *user, uint64_t *counts) {
  struct sml_tofino *t = user;
  uint64_t verdict, values[MAX_PIPES];
  uint32_t num_values, num_read = 0;
  t->bfrt.deadline_ns = sml_clock_ns() + SML_SWITCH_LOOK_NS;
  const uint32_t field = sml_bfrt_field(&t->bfrt, VERDICTS, "$COUNTER_SPEC_PKTS");
  if (field == 0 || !look_at(&t->bfrt, VERDICTS, "$COUNTER_INDEX", 0, SML_NUM_AT_SWITCH)) return false;
  struct sml_bfrt_cursor cursor = sml_bfrt_first(&t->bfrt);
  while (sml_bfrt_next(&cursor, field, &verdict, values, MAX_PIPES, &num_values)) {
    if (verdict >= SML_NUM_AT_SWITCH) continue;
    num_read++;
    counts[verdict] = 0;
    for (uint32_t i = 0; i < num_values; i++) counts[verdict] += values[i];
  }
  return num_read >= SML_NUM_AT_SWITCH;
}

/* A connection that was given up here, for want of an answer, says nothing. */
static bool is_lost(void *user, char *why, size_t why_bytes) {
  struct sml_tofino *t = user;
  char address[64];
  if (!t->bfrt.grpc.was_lost && !sml_connection_is_closed(t->bfrt.grpc.fd)) return false;
  sml_addr_format(&t->options.runtime, address, sizeof address);
  snprintf(why, why_bytes, "the switch at %s has closed its connection", address);
  sml_grpc_close(&t->bfrt.grpc);
  t->bfrt.grpc.was_lost = false;
  return true;
}

static void close_switch(void *user) {
  struct sml_tofino *t = user;
  sml_bfrt_close(&t->bfrt);
  free(t);
}

static const struct sml_switch_driver driver = {.open = open_switch,
                                                .has_reach = has_reach,
                                                .begin = begin_work,
                                                .add_entry = add_entry,
                                                .delete_entry = delete_entry,
                                                .make_group = make_group,
                                                .delete_group = delete_group,
                                                .add_copy = add_copy,
                                                .delete_copy = delete_copy,
                                                .preset = preset,
                                                .read_words = read_words,
                                                .error = error_of,
                                                .read_counters = read_counters,
                                                .is_lost = is_lost,
                                                .close = close_switch,
                                                .tells_hosts = true,
                                                .flood = flood_to_open_ports};

bool sml_tofino_is_built(void) {
  return true;
}

struct sml_dataplane *sml_tofino_create(const struct sml_switch_options *options) {
  struct sml_tofino *t = calloc(1, sizeof *t);
  if (t == NULL) return NULL;
  t->options = *options;
  sml_switch_jobs_init(&t->jobs, &driver, t);
  sml_bfrt_init(&t->bfrt, &options->runtime, options->program);
  return &t->jobs.dataplane;
}
