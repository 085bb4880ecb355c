/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "dataplane/connection.h"
#include "dataplane/jobs.h"
#include "dataplane/switches.h"

#define CALL_NS (1 * SML_NS_PER_S)
#define REQUEST_BYTES 49152u /* 30 members' entries are half of it */
#define READ_VALUES 8192u    /* that a pipeline tells at a time */
#define ERROR_BYTES 256u
/* Registers, as p4c-dpdk names them: the first lane of 32 has no number of its own, the last one 30. */
#define MAP "aggregate_state_cell_map"
#define PHASE "aggregate_state_cell_phase"
#define CURSOR "aggregate_grant_cursor"
#define VALUES "aggregate_sum_value_"
#define VERDICTS "verdicts_0"

struct sml_dpdk {
  struct sml_switch_options options;
  struct sml_switch_jobs jobs;
  uint64_t deadline_ns; /* of the work that is done */
  int fd;               /* -1: not connected */
  bool was_lost;        /* a request found the connection closed, and nobody was told yet */
  uint32_t num_ports;   /* of the pipeline; its port for results comes next, and one for floods */
  uint64_t born;        /* which run of it was filled; 0: none yet */
  uint64_t *values;     /* [2 * slots of the program] */
  char request[REQUEST_BYTES];
  uint32_t request_bytes;
  char in[4096];
  uint32_t in_at, in_end;
  char error[ERROR_BYTES];
};

/* ---- requests ---- */

__attribute__((format(printf, 2, 3))) static bool fail(struct sml_dpdk *d, const char *format, ...) {
  va_list arguments;
  const int used = snprintf(d->error, sizeof d->error, "the pipeline at %.107s: ", d->options.control);
  va_start(arguments, format);
  vsnprintf(d->error + used, sizeof d->error - (size_t)used, format, arguments);
  va_end(arguments);
  return false;
}

static bool tell(const struct sml_dpdk *d, char *error, size_t error_bytes) {
  snprintf(error, error_bytes, "%s", d->error);
  return false;
}

static void hang_up(struct sml_dpdk *d) {
  if (d->fd >= 0) close(d->fd);
  d->fd = -1;
}

static bool fail_by(struct sml_dpdk *d, const char *what, int error) {
  return error == -ETIMEDOUT ? fail(d, "no answer in time") : fail(d, "%s: %s", what, strerror(-error));
}

/* A local socket takes the connection at once, or there is nobody. */
static bool dial(struct sml_dpdk *d) {
  struct sockaddr_un addr = {.sun_family = AF_UNIX};
  if (strlen(d->options.control) >= sizeof addr.sun_path) return fail(d, "the path is too long");
  snprintf(addr.sun_path, sizeof addr.sun_path, "%s", d->options.control);
  d->in_at = d->in_end = 0;
  const int error = sml_connection_open((const struct sockaddr *)&addr, sizeof addr, 0, &d->fd);
  return error == 0 || fail_by(d, "cannot connect", error);
}

static bool send_text(struct sml_dpdk *d, const char *text, size_t num_bytes, uint64_t deadline_ns) {
  const int error = sml_connection_send(d->fd, text, num_bytes, deadline_ns);
  return error == 0 || fail_by(d, "connection lost", error);
}

static bool receive(struct sml_dpdk *d, uint64_t deadline_ns) {
  size_t num_bytes = 0;
  const int error = sml_connection_receive(d->fd, d->in, sizeof d->in, deadline_ns, &num_bytes);
  d->in_at = 0;
  d->in_end = (uint32_t)num_bytes;
  if (error != 0) return fail_by(d, "connection lost", error);
  return num_bytes > 0 || fail(d, "it has closed the connection");
}

/* The next character of the answer; 0: there is none. */
static char next(struct sml_dpdk *d, uint64_t deadline_ns) {
  if (d->in_at == d->in_end && !receive(d, deadline_ns)) return 0;
  const char c = d->in[d->in_at++];
  if (c == 0) fail(d, "an answer that is no text");
  return c;
}

/* The rest of the line; longer ones are cut. False: the connection is of no more use. */
static bool take_sentence(struct sml_dpdk *d, uint64_t deadline_ns) {
  char text[128];
  uint32_t num = 0;
  for (char c; (c = next(d, deadline_ns)) != '\n';) {
    if (c == 0) return false;
    if (num + 1 < sizeof text) text[num++] = c;
  }
  text[num] = 0;
  fail(d, "%s", text);
  return true;
}

static bool take_word(struct sml_dpdk *d, char word[8], char *last_out, uint64_t deadline_ns) {
  uint32_t num = 0;
  for (;;) {
    *last_out = next(d, deadline_ns);
    if (*last_out == 0) return false;
    if (*last_out == ' ' || *last_out == '\n') break;
    if (num == 7) return fail(d, "an answer that is none");
    word[num++] = *last_out;
  }
  word[num] = 0;
  return true;
}

/* " 1 2 3\n", exactly num of them. */
static bool take_values(struct sml_dpdk *d, uint64_t *values_out, uint32_t num, uint64_t deadline_ns) {
  for (uint32_t i = 0; i < num; i++) {
    uint64_t value = 0;
    uint32_t num_digits = 0;
    char c;
    while ((c = next(d, deadline_ns)) >= '0' && c <= '9') {
      value = value * 10 + (uint64_t)(c - '0');
      num_digits++;
    }
    if (c == 0) return false;
    if (num_digits == 0 || num_digits > 20 || c != (i + 1 < num ? ' ' : '\n')) return fail(d, "an answer that is none");
    values_out[i] = value;
  }
  return true;
}

/* False: d->error; *is_sound_out: the connection can still be used. */
static bool take_answer(struct sml_dpdk *d, uint64_t *values_out, uint32_t num, uint64_t deadline_ns,
                        bool *is_sound_out) {
  char word[8], last;
  *is_sound_out = false;
  if (!take_word(d, word, &last, deadline_ns)) return false;
  if (strcmp(word, "error") == 0 && last == ' ') {
    *is_sound_out = take_sentence(d, deadline_ns);
    return false;
  }
  if (strcmp(word, "ok") != 0 || (last == ' ') != (num > 0)) return fail(d, "an answer that is none");
  return *is_sound_out = num == 0 || take_values(d, values_out, num, deadline_ns);
}

static void begin(struct sml_dpdk *d) {
  d->request_bytes = 0;
}

__attribute__((format(printf, 2, 3))) static void put(struct sml_dpdk *d, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int n = vsnprintf(d->request + d->request_bytes, REQUEST_BYTES - d->request_bytes, format, arguments);
  va_end(arguments);
  d->request_bytes += (uint32_t)n;
  SML_ASSERT(d->request_bytes < REQUEST_BYTES);
}

static bool ask(struct sml_dpdk *d, const char *text, size_t num_bytes, uint64_t *values_out, uint32_t num,
                uint64_t deadline_ns) {
  bool is_sound = false;
  const bool is_done =
      send_text(d, text, num_bytes, deadline_ns) && take_answer(d, values_out, num, deadline_ns, &is_sound);
  if (is_done || is_sound) return is_done;
  d->was_lost = d->was_lost || sml_connection_is_closed(d->fd);
  hang_up(d); /* a late answer would be taken for that of the next request */
  return is_done;
}

/* Connected, and to the run of the pipeline that was filled: another one is empty. */
static bool connect_again(struct sml_dpdk *d, uint64_t deadline_ns) {
  static const char question[] = "born\n.\n";
  uint64_t born;
  if (d->fd >= 0) return true;
  if (!dial(d)) return false;
  if (d->born == 0) return true;
  if (!ask(d, question, sizeof question - 1, &born, 1, deadline_ns)) return false;
  if (born == d->born) return true;
  hang_up(d);
  return fail(d, "it was started again, and is empty: start switchmld again, too");
}

/* Sends what was put; the answer has num values. */
static bool end(struct sml_dpdk *d, uint64_t *values_out, uint32_t num, uint64_t deadline_ns) {
  put(d, ".\n");
  return connect_again(d, deadline_ns) && ask(d, d->request, d->request_bytes, values_out, num, deadline_ns);
}

/* ---- what jobs need: gathered, so that a request has all of it or nothing ---- */

static void begin_work(void *user, uint64_t deadline_ns) {
  struct sml_dpdk *d = user;
  d->deadline_ns = deadline_ns;
  begin(d);
}

/* Within a call's time, and that of the work. */
static bool end_work(struct sml_dpdk *d, uint64_t *values_out, uint32_t num) {
  return end(d, values_out, num, sml_min_u64(sml_clock_ns() + CALL_NS, d->deadline_ns));
}

static bool finish(void *user) {
  struct sml_dpdk *d = user;
  return d->request_bytes == 0 || end_work(d, NULL, 0);
}

static const char *error_of(void *user) {
  const struct sml_dpdk *d = user;
  return d->error;
}

/* The host of the pipeline writes where copies go to, as add_copy() tells it. */
static bool has_table(const struct sml_switch_entry *entry) {
  return strcmp(entry->table, "replica") != 0;
}

/* p4c-dpdk puts an underscore before tables of the shared control, and _0 behind their actions. */
static void put_keys(struct sml_dpdk *d, const char *verb, const struct sml_switch_entry *entry) {
  const uint32_t order = sml_switch_order(entry);
  put(d, "%s _%s match", verb, entry->table);
  for (uint32_t i = 0; i < entry->num_keys; i++) {
    const struct sml_switch_field *k = &entry->keys[i];
    put(d, " 0x%llx", (unsigned long long)k->value);
    if (k->mask != 0) put(d, "/0x%llx", (unsigned long long)sml_switch_mask(k->mask));
  }
  if (order != 0) put(d, " priority %u", order);
}

/* Entries are known by their keys: any handle will do. */
static bool add_entry(void *user, const struct sml_switch_entry *entry, int64_t *handle_out) {
  struct sml_dpdk *d = user;
  *handle_out = 0;
  if (!has_table(entry)) return true;
  put_keys(d, "add", entry);
  put(d, " action _%s_0", entry->action);
  for (uint32_t i = 0; i < entry->num_data; i++)
    put(d, " %s 0x%llx", entry->data[i].name, (unsigned long long)entry->data[i].value);
  put(d, "\n");
  return true;
}

static void delete_entry(void *user, const struct sml_switch_entry *entry, int64_t handle) {
  struct sml_dpdk *d = user;
  (void)handle;
  if (!has_table(entry)) return;
  put_keys(d, "remove", entry);
  put(d, "\n");
}

static bool make_group(void *user, uint32_t group, int64_t *handle_out) {
  struct sml_dpdk *d = user;
  *handle_out = 0;
  put(d, "nobody %u\nadd copies match 0x%x action copy_1 port 0x%x\n", group - SML_SWITCH_FIRST_JOB_GROUP, group,
      d->num_ports);
  return true;
}

static void delete_group(void *user, uint32_t group, int64_t handle) {
  (void)handle;
  put(user, "remove copies match 0x%x\nnobody %u\n", group, group - SML_SWITCH_FIRST_JOB_GROUP);
}

static bool add_copy(void *user, uint32_t group, int64_t group_handle, uint32_t rid, const struct sml_place *place,
                     int64_t *handle_out) {
  (void)group_handle, (void)rid;
  *handle_out = 0;
  put(user, "member %u %u %llu %u %u\n", group - SML_SWITCH_FIRST_JOB_GROUP, place->port,
      (unsigned long long)place->mac, sml_switch_ip(&place->addr), sml_addr_port(&place->addr));
  return true;
}

/* With the group, all of them. */
static void delete_copy(void *user, uint32_t group, uint32_t rid, int64_t handle) {
  (void)user, (void)group, (void)rid, (void)handle;
}

static bool preset(void *user, uint32_t first_cell, uint32_t end_cell, uint32_t cursor, uint32_t grant) {
  put(user, "write " PHASE " %u %u 0\nwrite " MAP " %u %u 0\n", first_cell, end_cell, first_cell, end_cell);
  put(user, "write " CURSOR " %u %u %u\n", cursor, cursor + 1, grant);
  return true;
}

/* ---- the switch ---- */

/* What the pipeline knows of this daemon, from nothing. */
static bool fill_base(struct sml_dpdk *d) {
  uint64_t values[2];
  begin(d);
  put(d, "reset\nports\nborn\n");
  if (!end_work(d, values, 2)) return false;
  const uint64_t num_ports = values[0];
  if (num_ports == 0 || num_ports > 255 || d->options.cpu_port >= num_ports)
    return fail(d, "it has %u ports, and none numbered %u", (unsigned)num_ports, d->options.cpu_port);
  d->num_ports = (uint32_t)num_ports;
  d->born = values[1];
  begin(d);
  put(d, "cpu %u %u %u %u\n", d->options.cpu_port, d->jobs.ip, d->jobs.port, d->jobs.voucher);
  (void)sml_switch_jobs_add_aggregator(&d->jobs, d->options.cpu_port); /* this is put, as the rest is */
  put(d, "add copies match 0x%x action copy_1 port 0x%x\n", SML_SWITCH_FLOOD_GROUP, d->num_ports + 1);
  for (uint32_t port = 0; port < d->num_ports; port++)
    put(d, "add ports match 0x%x action send port 0x%x\n", port, port);
  return end_work(d, NULL, 0);
}

/* Whether the program has the register; false with a connection: it has not. */
static bool has_register(struct sml_dpdk *d, const char *name, uint32_t index) {
  uint64_t value;
  begin(d);
  put(d, "read %s %u %u\n", name, index, index + 1);
  return end_work(d, &value, 1);
}

static bool fits_program(struct sml_dpdk *d) {
  char last_lane[64], beyond[64];
  const uint32_t last = d->options.packet_lanes / 32 - 1;
  snprintf(last_lane, sizeof last_lane, VALUES "%u_30", last);
  snprintf(beyond, sizeof beyond, VALUES "%u", last + 1);
  if (!has_register(d, last_lane, 0) || has_register(d, beyond, 0))
    return d->fd >= 0 &&
           fail(d, "its program has not %u lanes a packet, as --switch-format says", d->options.packet_lanes);
  if (!has_register(d, MAP, 2 * d->options.pool_slots - 1))
    return d->fd >= 0 && fail(d, "its program has less than %u slots: set --slots", d->options.pool_slots);
  return true;
}

static bool open_switch(void *user, char *error, size_t error_bytes) {
  struct sml_dpdk *d = user;
  return (fill_base(d) && fits_program(d)) || tell(d, error, error_bytes);
}

/* ---- jobs ---- */

static bool read_words(void *user, uint32_t first_cell, uint32_t end_cell, uint32_t *words) {
  struct sml_dpdk *d = user;
  for (uint32_t cell = first_cell; cell < end_cell; cell += READ_VALUES) {
    const uint32_t num = sml_min_u32(end_cell - cell, READ_VALUES);
    begin(d);
    put(d, "read " MAP " %u %u\n", cell, cell + num);
    if (!end(d, d->values, num, d->deadline_ns)) return false;
    for (uint32_t i = 0; i < num; i++) *words++ = (uint32_t)d->values[i];
  }
  return true;
}

static bool read_counters(void *user, uint64_t *counts) {
  struct sml_dpdk *d = user;
  uint64_t values[SML_NUM_AT_SWITCH];
  begin(d);
  put(d, "read " VERDICTS " 0 %u\n", (unsigned)SML_NUM_AT_SWITCH);
  if (!end(d, values, SML_NUM_AT_SWITCH, sml_clock_ns() + SML_SWITCH_LOOK_NS)) return false;
  memcpy(counts, values, sizeof values);
  return true;
}

/* A connection that was given up here, for want of an answer, says nothing. */
static bool is_lost(void *user, char *why, size_t why_bytes) {
  struct sml_dpdk *d = user;
  if (!d->was_lost && !sml_connection_is_closed(d->fd)) return false;
  hang_up(d);
  d->was_lost = false;
  fail(d, "it has closed the connection");
  tell(d, why, why_bytes);
  return true;
}

static void close_switch(void *user) {
  struct sml_dpdk *d = user;
  hang_up(d);
  free(d->values);
  free(d);
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
                                                .finish = finish,
                                                .error = error_of,
                                                .read_counters = read_counters,
                                                .is_lost = is_lost,
                                                .close = close_switch};

struct sml_dataplane *sml_dpdk_create(const struct sml_switch_options *options) {
  struct sml_dpdk *d = calloc(1, sizeof *d);
  if (d == NULL) return NULL;
  d->options = *options;
  d->fd = -1;
  sml_switch_jobs_init(&d->jobs, &driver, d);
  d->values = calloc(2 * (size_t)options->pool_slots, sizeof *d->values);
  if (d->values != NULL) return &d->jobs.dataplane;
  sml_switch_destroy(&d->jobs.dataplane);
  return NULL;
}
