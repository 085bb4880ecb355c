/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "dataplane/connection.h"
#include "dataplane/jobs.h"
#include "dataplane/switches.h"
#include "dataplane/thrift.h"

#define CONTEXT 0
#define CALL_NS (1 * SML_NS_PER_S) /* one call */
#define MAX_PORTS 512u
#define VALUES "SwitchIn.aggregate.sum.value_" /* registers: 32 lanes, and the lane of them */

struct sml_bmv2 {
  struct sml_switch_options options;
  struct sml_switch_jobs jobs;
  struct sml_thrift thrift;
  uint64_t deadline_ns; /* of the work that is done */
  int64_t *values;      /* [2 * slots of the program] */
};

/* ---- calls ---- */

/* The result's first number goes to *value_out. */
static bool call(struct sml_bmv2 *b, int64_t *value_out) {
  const uint64_t deadline_ns = sml_min_u64(sml_clock_ns() + CALL_NS, b->deadline_ns);
  uint32_t num_values;
  if (!sml_thrift_end(&b->thrift, deadline_ns, value_out, value_out != NULL, &num_values)) return false;
  return value_out == NULL || num_values > 0 || sml_thrift_fail(&b->thrift, "an answer without its number");
}

static void begin(struct sml_bmv2 *b, const char *method) {
  sml_thrift_begin(&b->thrift, method);
  sml_thrift_i32(&b->thrift, 1, CONTEXT);
}

static void begin_work(void *user, uint64_t deadline_ns) {
  struct sml_bmv2 *b = user;
  b->deadline_ns = deadline_ns;
}

static const char *error_of(void *user) {
  const struct sml_bmv2 *b = user;
  return b->thrift.error;
}

static void put_key(struct sml_bmv2 *b, const struct sml_switch_field *k) {
  uint8_t bytes[8];
  struct sml_thrift *t = &b->thrift;
  enum { EXACT = 0, TERNARY = 2 };
  sml_thrift_i32(t, 1, k->mask == 0 ? EXACT : TERNARY);
  sml_thrift_struct(t, k->mask == 0 ? 2 : 4);
  sml_thrift_bytes(t, 1, bytes, sml_switch_bytes(k->value, k->bits, bytes));
  if (k->mask != 0) sml_thrift_bytes(t, 2, bytes, sml_switch_bytes(sml_switch_mask(k->mask), k->bits, bytes));
  sml_thrift_stop(t);
  sml_thrift_stop(t);
}

static bool add_entry(void *user, const struct sml_switch_entry *entry, int64_t *entry_out) {
  struct sml_bmv2 *b = user;
  struct sml_thrift *t = &b->thrift;
  uint8_t bytes[8];
  const uint32_t order = sml_switch_order(entry);
  begin(b, "standard:bm_mt_add_entry");
  sml_thrift_text(t, 2, entry->table);
  sml_thrift_list(t, 3, SML_THRIFT_STRUCT, entry->num_keys);
  for (uint32_t i = 0; i < entry->num_keys; i++) put_key(b, &entry->keys[i]);
  sml_thrift_text(t, 4, entry->action);
  sml_thrift_list(t, 5, SML_THRIFT_STRING, entry->num_data);
  for (uint32_t i = 0; i < entry->num_data; i++)
    sml_thrift_element(t, bytes, sml_switch_bytes(entry->data[i].value, entry->data[i].bits, bytes));
  sml_thrift_struct(t, 6);
  if (order != 0) sml_thrift_i32(t, 1, (int32_t)order);
  sml_thrift_stop(t);
  return call(b, entry_out);
}

/* What has gone cannot be taken away again: errors are nobody's here. */
static void take_away(struct sml_bmv2 *b) {
  if (!call(b, NULL)) b->jobs.is_unsure = true;
}

static void delete_entry(void *user, const struct sml_switch_entry *entry, int64_t handle) {
  struct sml_bmv2 *b = user;
  begin(b, "standard:bm_mt_delete_entry");
  sml_thrift_text(&b->thrift, 2, entry->table);
  sml_thrift_i32(&b->thrift, 3, (int32_t)handle);
  take_away(b);
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

static bool make_group(void *user, uint32_t group, int64_t *group_out) {
  struct sml_bmv2 *b = user;
  begin(b, "simple_pre_lag:bm_mc_mgrp_create");
  sml_thrift_i32(&b->thrift, 2, (int32_t)group);
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

static void destroy_mc(struct sml_bmv2 *b, const char *method, int64_t handle) {
  begin(b, method);
  sml_thrift_i32(&b->thrift, 2, (int32_t)handle);
  take_away(b);
}

static void delete_group(void *user, uint32_t group, int64_t handle) {
  (void)group;
  destroy_mc(user, "simple_pre_lag:bm_mc_mgrp_destroy", handle);
}

static void delete_copy(void *user, uint32_t group, uint32_t rid, int64_t handle) {
  (void)group, (void)rid;
  destroy_mc(user, "simple_pre_lag:bm_mc_node_destroy", handle);
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

static bool add_copy(void *user, uint32_t group, int64_t group_handle, uint32_t rid, const struct sml_place *place,
                     int64_t *node_out) {
  struct sml_bmv2 *b = user;
  char map[MAX_PORTS + 1];
  const uint32_t port = place->port;
  (void)group;
  if (port >= MAX_PORTS) return false;
  port_map(map, &port, 1);
  return make_node(b, group_handle, rid, map, node_out);
}

static bool flood_to_all_ports(struct sml_bmv2 *b) {
  int64_t values[2 * MAX_PORTS], group, node;
  uint32_t num_values = 0, ports[MAX_PORTS], num_ports = 0;
  char map[MAX_PORTS + 1];
  sml_thrift_begin(&b->thrift, "standard:bm_dev_mgr_show_ports");
  const uint64_t deadline_ns = sml_min_u64(sml_clock_ns() + CALL_NS, b->deadline_ns);
  if (!sml_thrift_end(&b->thrift, deadline_ns, values, SML_ARRAY_LEN(values), &num_values)) return false;
  for (uint32_t i = 0; i + 1 < sml_min_u32(num_values, SML_ARRAY_LEN(values)); i += 2) /* number, and whether up */
    if (values[i] >= 0 && values[i] < MAX_PORTS) ports[num_ports++] = (uint32_t)values[i];
  port_map(map, ports, num_ports);
  return make_group(b, SML_SWITCH_FLOOD_GROUP, &group) && make_node(b, group, 0, map, &node);
}

static bool open_switch(void *user, char *error, size_t error_bytes) {
  struct sml_bmv2 *b = user;
  char last_lane[64], beyond[64];
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
  if (!flood_to_all_ports(b) || !sml_switch_jobs_add_aggregator(&b->jobs, b->options.cpu_port))
    return tell(b, error, error_bytes);
  return true;
}

/* ---- jobs ---- */

static bool preset(void *user, uint32_t first_cell, uint32_t end_cell, uint32_t cursor, uint32_t grant) {
  struct sml_bmv2 *b = user;
  return write_registers(b, "cell_phase", first_cell, end_cell, 0) &&
         write_registers(b, "cell_map", first_cell, end_cell, 0) &&
         write_registers(b, "cursor", cursor, cursor + 1, grant);
}

/* A register is read in a piece. */
static bool read_words(void *user, uint32_t first_cell, uint32_t end_cell, uint32_t *words) {
  struct sml_bmv2 *b = user;
  uint32_t num_values = 0;
  begin(b, "standard:bm_register_read_all");
  sml_thrift_text(&b->thrift, 2, "cell_map");
  if (!sml_thrift_end(&b->thrift, b->deadline_ns, b->values, 2 * b->options.pool_slots, &num_values) ||
      num_values < end_cell)
    return false;
  for (uint32_t cell = first_cell; cell < end_cell; cell++) *words++ = (uint32_t)b->values[cell];
  return true;
}

/* A call each, so those that nothing is counted as are left out. */
static bool read_counters(void *user, uint64_t *counts) {
  struct sml_bmv2 *b = user;
  const uint64_t deadline_ns = sml_clock_ns() + SML_SWITCH_LOOK_NS;
  for (uint32_t i = 0; i < SML_NUM_AT_SWITCH; i = i + 1 == SML_NUM_DROPS ? (uint32_t)SML_AT_SWITCH_FIRST : i + 1) {
    int64_t values[2]; /* bytes, packets */
    uint32_t num_values;
    begin(b, "standard:bm_counter_read");
    sml_thrift_text(&b->thrift, 2, "verdicts");
    sml_thrift_i32(&b->thrift, 3, (int32_t)i);
    if (!sml_thrift_end(&b->thrift, deadline_ns, values, 2, &num_values) || num_values < 2) return false;
    counts[i] = (uint64_t)values[1];
  }
  return true;
}

/* A connection that was given up here, for want of an answer, says nothing. */
static bool is_lost(void *user, char *why, size_t why_bytes) {
  struct sml_bmv2 *b = user;
  char address[64];
  if (!b->thrift.was_lost && !sml_connection_is_closed(b->thrift.fd)) return false;
  sml_addr_format(&b->options.runtime, address, sizeof address);
  snprintf(why, why_bytes, "the switch at %s has closed its connection", address);
  sml_thrift_close(&b->thrift);
  b->thrift.was_lost = false;
  return true;
}

static void close_switch(void *user) {
  struct sml_bmv2 *b = user;
  sml_thrift_close(&b->thrift);
  free(b->values);
  free(b);
}

static const struct sml_switch_driver driver = {.open = open_switch,
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
                                                .close = close_switch};

struct sml_dataplane *sml_bmv2_create(const struct sml_switch_options *options) {
  struct sml_bmv2 *b = calloc(1, sizeof *b);
  if (b == NULL) return NULL;
  b->options = *options;
  sml_switch_jobs_init(&b->jobs, &driver, b);
  sml_thrift_init(&b->thrift, &options->runtime);
  b->values = calloc(2 * (size_t)options->pool_slots, sizeof *b->values);
  if (b->values != NULL) return &b->jobs.dataplane;
  sml_switch_destroy(&b->jobs.dataplane);
  return NULL;
}
