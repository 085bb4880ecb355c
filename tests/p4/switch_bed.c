/* SPDX-License-Identifier: Apache-2.0 */
#include "switch_bed.h"

#include <dlfcn.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/wire.h"
#include "dataplane/routes.h"
#include "dataplane/switches.h"

#define RESULTS_PORT BED_NUM_PORTS       /* of PNA: the host makes the copies, as switchml-pipeline does */
#define FLOODS_PORT (BED_NUM_PORTS + 1u)

extern const struct p4_machine p4_v1model, p4_pna, p4_tna, p4_tna64;
static const struct p4_machine *machines[BED_NUM_KINDS] = {&p4_v1model, &p4_pna, &p4_tna, &p4_tna64};
const char *const bed_names[BED_NUM_KINDS] = {"v1model.p4", "pna.p4", "tna.p4", "tna.p4 with 64 lanes"};

bool bed_is_tofino(const struct bed *bed) {
  return bed->kind == BED_TNA || bed->kind == BED_TNA64;
}

int bed_replace(const char *library) {
  static const char *const symbols[BED_NUM_KINDS] = {"p4_v1model", "p4_pna", "p4_tna", "p4_tna64"};
  void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  for (int kind = 0; handle != NULL && kind < BED_NUM_KINDS; kind++) {
    const struct p4_machine *found = dlsym(handle, symbols[kind]);
    if (found == NULL) continue;
    machines[kind] = found;
    return kind;
  }
  return -1;
}

static struct sml_addr make_addr(uint32_t ip, uint16_t port) {
  struct sml_addr addr = {.num_bytes = sizeof(struct sockaddr_in)};
  const struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(ip)};
  memcpy(addr.bytes, &in, sizeof in);
  return addr;
}

struct sml_place bed_place(uint32_t host) {
  return (struct sml_place){.addr = make_addr(0x0a000001u + host, (uint16_t)(6000 + host)),
                            .mac = UINT64_C(0x020000000001) + host,
                            .port = (uint16_t)host};
}

/* ---- the driver ---- */

static uint64_t value_of(const struct bed *bed, const struct sml_switch_entry *entry,
                         const struct sml_switch_field *f) {
  const bool is_port = strcmp(f->name, "ingress") == 0 || strcmp(f->name, "cpu_port") == 0 ||
                       (strcmp(f->name, "port") == 0 && strcmp(entry->table, "replica") != 0 &&
                        strcmp(entry->table, "listener") != 0);
  return f->value + (is_port ? bed->first_port : 0);
}

static bool add_entry(void *user, const struct sml_switch_entry *entry, int64_t *handle_out) {
  struct bed *bed = user;
  uint64_t keys[P4_MAX_KEYS] = {0}, masks[P4_MAX_KEYS] = {0}, data[P4_MAX_DATA] = {0};
  for (uint32_t i = 0; i < entry->num_keys; i++) {
    keys[i] = value_of(bed, entry, &entry->keys[i]);
    masks[i] = sml_switch_mask(entry->keys[i].mask);
  }
  for (uint32_t i = 0; i < entry->num_data; i++) data[i] = value_of(bed, entry, &entry->data[i]);
  *handle_out = 0;
  if (bed->kind == BED_PNA && strcmp(entry->table, "replica") == 0) return true;
  return bed->machine->add(entry->table, entry->action, keys, masks, data) == 0;
}

static void delete_entry(void *user, const struct sml_switch_entry *entry, int64_t handle) {
  struct bed *bed = user;
  uint64_t keys[P4_MAX_KEYS] = {0};
  (void)handle;
  for (uint32_t i = 0; i < entry->num_keys; i++) keys[i] = value_of(bed, entry, &entry->keys[i]);
  if (bed->kind != BED_PNA || strcmp(entry->table, "replica") != 0) (void)bed->machine->remove(entry->table, keys);
}

static void add_one(struct bed *bed, const char *table, const char *action, uint64_t key, uint64_t value) {
  const uint64_t keys[P4_MAX_KEYS] = {key}, masks[P4_MAX_KEYS] = {0}, data[P4_MAX_DATA] = {value};
  SML_ASSERT(bed->machine->add(table, action, keys, masks, data) == 0);
}

static bool make_group(void *user, uint32_t group, int64_t *handle_out) {
  struct bed *bed = user;
  *handle_out = 0;
  bed->num_copies[group] = 0;
  if (bed->kind != BED_PNA) return true;
  (void)bed->machine->remove("copies", (uint64_t[P4_MAX_KEYS]){group});
  add_one(bed, "copies", "copy_1", group, RESULTS_PORT);
  return true;
}

static void delete_group(void *user, uint32_t group, int64_t handle) {
  struct bed *bed = user;
  (void)handle;
  bed->num_copies[group] = 0;
  bed->machine->group(group, 0, NULL, NULL);
}

static bool add_copy(void *user, uint32_t group, int64_t group_handle, uint32_t rid, const struct sml_place *place,
                     int64_t *handle_out) {
  struct bed *bed = user;
  const uint32_t at = bed->num_copies[group]++;
  (void)group_handle;
  *handle_out = rid;
  bed->rids[group][at] = rid;
  bed->ports[group][at] = bed->first_port + place->port;
  bed->places[group][at] = *place;
  bed->machine->group(group, bed->num_copies[group], bed->rids[group], bed->ports[group]);
  return true;
}

static void delete_copy(void *user, uint32_t group, uint32_t rid, int64_t handle) {
  (void)user, (void)group, (void)rid, (void)handle; /* with the group, all of them */
}

static void begin_work(void *user, uint64_t deadline_ns) {
  (void)user, (void)deadline_ns;
}

/* As the drivers of BMv2, of DPDK's pipeline and of a Tofino write them. */
static bool preset(void *user, uint32_t first_cell, uint32_t end_cell, uint32_t cursor, uint32_t grant) {
  struct bed *bed = user;
  const struct p4_machine *m = bed->machine;
  static const char *const names[BED_NUM_KINDS][3] = {{"cell_phase", "cell_map", "cursor"},
                                                      {"aggregate_state_cell_phase", "aggregate_state_cell_map",
                                                       "aggregate_grant_cursor"},
                                                      {"cells.phase", "cells.word", "cursors"},
                                                      {"cells.phase", "cells.word", "cursors"}};
  bool is_done = m->write(names[bed->kind][2], cursor, grant) == 0;
  for (uint32_t cell = first_cell; cell < end_cell; cell++)
    is_done = is_done && m->write(names[bed->kind][0], cell, bed_is_tofino(bed) ? cell & 1 : 0) == 0 &&
              m->write(names[bed->kind][1], cell, bed_is_tofino(bed) ? 0x80000000u : 0) == 0;
  return is_done;
}

static bool read_words(void *user, uint32_t first_cell, uint32_t end_cell, uint32_t *words) {
  (void)user, (void)first_cell, (void)end_cell, (void)words;
  return false;
}

static bool read_counters(void *user, uint64_t *counts) {
  (void)user, (void)counts;
  return false;
}

static bool is_lost(void *user, char *why_out, size_t why_bytes) {
  (void)user, (void)why_out, (void)why_bytes;
  return false;
}

static const char *error_of(void *user) {
  (void)user;
  return "refused";
}

static bool open_switch(void *user, char *error_out, size_t error_bytes) {
  struct bed *bed = user;
  uint32_t rids[BED_NUM_PORTS] = {0}, ports[BED_NUM_PORTS];
  for (uint32_t port = 0; port < BED_NUM_PORTS; port++) ports[port] = bed->first_port + port;
  bed->machine->group(SML_SWITCH_FLOOD_GROUP, BED_NUM_PORTS, rids, ports);
  for (uint32_t port = 0; bed->kind == BED_PNA && port < BED_NUM_PORTS + 2; port++)
    add_one(bed, "ports", "send", port, port);
  if (bed->kind == BED_PNA) add_one(bed, "copies", "copy_1", SML_SWITCH_FLOOD_GROUP, FLOODS_PORT);
  snprintf(error_out, error_bytes, "refused");
  return sml_switch_jobs_add_aggregator(&bed->jobs, BED_CPU_PORT);
}

static void flood_to_open_ports(void *user) {
  struct bed *bed = user;
  uint32_t rids[BED_NUM_PORTS] = {0}, ports[BED_NUM_PORTS], num = 0;
  for (uint32_t port = 0; port < BED_NUM_PORTS; port++)
    if (bed->jobs.shut_until_ns[port] == 0) ports[num++] = bed->first_port + port;
  bed->machine->group(SML_SWITCH_FLOOD_GROUP, num, rids, ports);
}

static void close_switch(void *user) {
  (void)user; /* it belongs to the test */
}

static struct sml_switch_driver driver = {.open = open_switch,
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
                                          .flood = flood_to_open_ports};

/* ---- life ---- */

void bed_open(struct bed *bed, enum bed_kind kind, uint64_t seed) {
  char error[128];
  const struct sml_addr addr = make_addr(BED_AGGREGATOR_IP, BED_AGGREGATOR_PORT);
  *bed = (struct bed){.kind = kind, .machine = machines[kind], .lanes = kind == BED_TNA64 ? 64 : 32};
  bed->first_port = kind == BED_TNA64 ? 128 : 0; /* pipe 1's */
  bed->machine->reset(seed);
  driver.tells_hosts = bed_is_tofino(bed);
  sml_switch_jobs_init(&bed->jobs, &driver, bed);
  bed->jobs.mac = BED_AGGREGATOR_MAC;
  SML_ASSERT(bed->jobs.dataplane.open(bed->jobs.dataplane.user, &addr, BED_VOUCHER, error, sizeof error));
}

void bed_close(struct bed *bed) {
  sml_switch_destroy(&bed->jobs.dataplane);
}

void bed_start_job(struct bed *bed, const struct sml_dataplane_job *job) {
  char error[256];
  SML_ASSERT(bed->jobs.dataplane.start_job(bed->jobs.dataplane.user, job, error, sizeof error));
}

uint64_t bed_count(const struct bed *bed, uint32_t verdict) {
  return (uint64_t)bed->machine->read("verdicts", verdict);
}

/* ---- packets ---- */

uint16_t bed_ip_checksum(const uint8_t *head) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < 20; i += 2) sum += sml_load_be16(head + i);
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return (uint16_t)~sum;
}

static void put_mac(uint8_t *bytes, uint64_t mac) {
  for (uint32_t i = 0; i < 6; i++) bytes[i] = (uint8_t)(mac >> (40 - 8 * i));
}

static void renew_ip_checksum(uint8_t *head) {
  sml_store_be16(head + 10, 0);
  sml_store_be16(head + 10, bed_ip_checksum(head));
}

uint32_t bed_wrap(uint8_t *frame, const struct sml_place *from, uint64_t mac_to, uint32_t ip_to, uint16_t port_to,
                  const uint8_t *datagram, uint32_t num_bytes) {
  SML_ASSERT(num_bytes + 42 <= BED_MAX_FRAME_BYTES);
  memset(frame, 0, 42);
  put_mac(frame, mac_to);
  put_mac(frame + 6, from->mac);
  sml_store_be16(frame + 12, 0x0800);
  frame[14] = 0x45;
  sml_store_be16(frame + 16, (uint16_t)(28 + num_bytes));
  sml_store_be16(frame + 20, 0x4000);
  frame[22] = 64;
  frame[23] = 17;
  sml_store_be32(frame + 26, sml_switch_ip(&from->addr));
  sml_store_be32(frame + 30, ip_to);
  renew_ip_checksum(frame + 14);
  sml_store_be16(frame + 34, sml_addr_port(&from->addr));
  sml_store_be16(frame + 36, port_to);
  sml_store_be16(frame + 38, (uint16_t)(8 + num_bytes));
  memcpy(frame + 42, datagram, num_bytes);
  return 42 + num_bytes;
}

/* What switchml-pipeline does with the packets of its two ports that are no devices. */
static void go_by_host(const struct bed *bed, uint32_t port, const struct p4_out *in, struct bed_out *out) {
  const uint32_t group = SML_SWITCH_FIRST_JOB_GROUP + sml_load_be16(in->bytes + 44);
  if (in->port == FLOODS_PORT) {
    for (uint32_t p = 0; p < BED_NUM_PORTS; p++) {
      if (p == port) continue;
      out->frames[out->num] = *in;
      out->frames[out->num++].port = p;
    }
    return;
  }
  for (uint32_t c = 0; c < bed->num_copies[group]; c++) {
    const struct sml_place *place = &bed->places[group][c];
    struct p4_out *copy = &out->frames[out->num++];
    *copy = *in;
    copy->port = place->port;
    put_mac(copy->bytes, place->mac);
    sml_store_be32(copy->bytes + 30, sml_switch_ip(&place->addr));
    renew_ip_checksum(copy->bytes + 14);
    sml_store_be16(copy->bytes + 36, sml_addr_port(&place->addr));
  }
}

uint32_t bed_num_waiting(const struct bed *bed) {
  return bed->machine->num_waiting();
}

void bed_again(struct bed *bed, uint32_t which, struct bed_out *out) {
  const uint32_t num = bed->machine->again(which, out != NULL ? out->frames : NULL);
  if (out != NULL) out->num = num;
  for (uint32_t i = 0; i < num; i++) out->frames[i].port -= bed->first_port;
}

bool bed_hear(struct bed *bed, const struct p4_out *out, uint64_t now_ns, char *why, size_t why_bytes) {
  const uint8_t *head = out->bytes + 42;
  why[0] = 0;
  if (out->port != BED_CPU_PORT || out->num_bytes < 42 + SML_HEADER_BYTES ||
      head[0] != (SML_WIRE_VERSION << 4 | SML_PACKET_SWITCH_HEARD) || !sml_wire_has_voucher(head, BED_VOUCHER))
    return false;
  sml_routes_hear(&bed->jobs, (uint64_t)sml_load_be32(head + 16) << 16 | sml_load_be16(head + 22),
                  (uint16_t)(sml_load_be16(head + 12) - bed->first_port), now_ns, why, why_bytes);
  return true;
}

void bed_take(struct bed *bed, uint32_t port, const uint8_t *frame, uint32_t num_bytes, struct bed_out *out) {
  static struct p4_out raw[P4_MAX_OUT];
  const uint32_t num = bed->machine->take(bed->first_port + port, frame, num_bytes, raw);
  out->num = 0;
  for (uint32_t i = 0; i < num; i++) {
    if (bed->kind == BED_PNA && raw[i].port >= RESULTS_PORT) go_by_host(bed, port, &raw[i], out);
    else out->frames[out->num++] = raw[i];
  }
  for (uint32_t i = 0; i < out->num; i++) {
    SML_ASSERT(out->frames[i].port >= bed->first_port);
    out->frames[i].port -= bed->first_port;
  }
}
