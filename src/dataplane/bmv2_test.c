/* SPDX-License-Identifier: Apache-2.0
 * The calls that fill BMv2, and whatever can go wrong with them, against a stand-in for its runtime server: a Thrift
 * server of this file that does what tables, groups and registers do, records, and errs when told to. */
#include "dataplane/bmv2.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "dataplane/thrift.h"
#include "engine/engine.h"

#define MAX_HANDLES 512u
#define MAX_FIELDS 8u
#define PACKET_LANES 64u
#define POOL_SLOTS 128u
#define JOB 3u
#define SLOT_BASE 64u

enum fault { NO_FAULT, CLOSES, CUTS, REFUSES, THROWS, NO_THRIFT, TOO_MANY, TOO_DEEP, UNKNOWN_TYPE, ANOTHER_CALL,
             SILENT, DIES };

/* ---- the stand-in ---- */

struct stand_in {
  int listen_fd;
  pthread_t thread;
  pthread_mutex_t lock; /* of what follows */
  struct sml_addr addr;
  char log[16384];
  size_t log_bytes;
  char live[MAX_HANDLES][64]; /* by handle: the table, "group" or "node" that it is of; "": it is gone */
  int64_t next_handle;
  uint32_t num_calls, faulty_call; /* from 1 */
  enum fault fault;
  bool is_slow; /* answers come byte by byte */
  int64_t words[2 * POOL_SLOTS];
};

struct call {
  struct stand_in *s;
  int fd;
  bool is_broken;
  uint32_t sequence;
  int64_t numbers[MAX_FIELDS]; /* of the arguments that are i32, by field; of another type they are as good as none */
  char method[64], texts[MAX_FIELDS][64];
};

static void take(struct call *c, void *to, size_t num_bytes) {
  if (num_bytes == 0 && !c->is_broken) return;
  if (!c->is_broken && recv(c->fd, to, num_bytes, MSG_WAITALL) == (ssize_t)num_bytes) return;
  c->is_broken = true;
  memset(to, 0, num_bytes);
}

static uint32_t take_u32(struct call *c) {
  uint8_t bytes[4];
  take(c, bytes, sizeof bytes);
  return sml_load_be32(bytes);
}

__attribute__((format(printf, 2, 3))) static void note(struct call *c, const char *format, ...) {
  struct stand_in *s = c->s;
  va_list arguments;
  va_start(arguments, format);
  const int n = vsnprintf(s->log + s->log_bytes, sizeof s->log - s->log_bytes, format, arguments);
  va_end(arguments);
  s->log_bytes = sml_min_u64(s->log_bytes + (size_t)n, sizeof s->log - 1);
}

static void take_fields(struct call *c, uint32_t depth);

/* Texts are names on the outside, and bytes of keys and parameters further in. */
static void take_text(struct call *c, uint32_t field, uint32_t depth) {
  char text[256] = {0};
  const uint32_t num_bytes = take_u32(c);
  if (num_bytes >= sizeof text) c->is_broken = true;
  else take(c, text, num_bytes);
  if (depth == 0) note(c, "%s", text);
  for (uint32_t i = 0; depth > 0 && i < num_bytes && !c->is_broken; i++) note(c, "%02x", (uint8_t)text[i]);
  if (depth == 0 && field < MAX_FIELDS) snprintf(c->texts[field], sizeof c->texts[field], "%.63s", text);
}

static void take_value(struct call *c, uint8_t type, uint32_t field, uint32_t depth) {
  uint8_t bytes[8], element;
  const size_t num_bytes = type == SML_THRIFT_BOOL ? 1 : type == SML_THRIFT_I32 ? 4 : 8;
  if (type == SML_THRIFT_STRING) {
    take_text(c, field, depth);
  } else if (type == SML_THRIFT_STRUCT) {
    note(c, "{");
    take_fields(c, depth + 1);
    note(c, "}");
  } else if (type == SML_THRIFT_LIST) {
    take(c, &element, 1);
    const uint32_t num_elems = take_u32(c);
    note(c, "[");
    for (uint32_t i = 0; i < num_elems && !c->is_broken; i++) {
      if (i > 0) note(c, " ");
      take_value(c, element, 0, depth + 1);
    }
    note(c, "]");
  } else {
    int64_t value = 0;
    take(c, bytes, num_bytes);
    for (size_t i = 0; i < num_bytes; i++) value = (int64_t)((uint64_t)value << 8 | bytes[i]);
    if (num_bytes == 4) value = (int32_t)value;
    note(c, type == SML_THRIFT_I64 ? "%lldL" : "%lld", (long long)value);
    if (depth == 0 && field < MAX_FIELDS && type != SML_THRIFT_I64) c->numbers[field] = value;
  }
}

static void take_fields(struct call *c, uint32_t depth) {
  for (bool is_first = true; !c->is_broken; is_first = false) {
    uint8_t type, field[2];
    take(c, &type, 1);
    if (type == SML_THRIFT_STOP) return;
    take(c, field, sizeof field);
    note(c, is_first && depth > 0 ? "%u=" : " %u=", sml_load_be16(field));
    take_value(c, type, sml_load_be16(field), depth);
  }
}

static void answer(struct call *c, const struct sml_thrift *reply, uint32_t num_bytes) {
  const uint32_t step = c->s->is_slow ? 1 : num_bytes;
  for (uint32_t at = 0; at < num_bytes; at += step) (void)!send(c->fd, reply->call + at, step, MSG_NOSIGNAL);
}

/* The client's own encoder makes the answers: the numbers of their fields differ, the layout does not. */
static void begin_answer(const struct call *c, struct sml_thrift *reply, uint8_t kind) {
  sml_thrift_begin(reply, c->method);
  reply->call[3] = kind;
  sml_store_be32(reply->call + reply->call_bytes - 4, c->sequence);
}

static void add_exception(struct sml_thrift *reply) {
  sml_thrift_struct(reply, 1);
  sml_thrift_i32(reply, 1, 5);
  sml_thrift_stop(reply);
}

static void forget(struct stand_in *s, const char *what) {
  for (uint32_t h = 0; h < MAX_HANDLES; h++)
    if (what == NULL || strcmp(s->live[h], what) == 0) s->live[h][0] = 0;
}

static bool is_live(const struct stand_in *s, int64_t handle, const char *what) {
  return handle >= 0 && handle < MAX_HANDLES && strcmp(s->live[handle], what) == 0;
}

static int64_t make(struct stand_in *s, const char *what) {
  SML_ASSERT(s->next_handle < MAX_HANDLES);
  snprintf(s->live[s->next_handle], sizeof s->live[0], "%s", what);
  return s->next_handle++;
}

/* What exists may be taken away, once. */
static void remove_one(struct call *c, struct sml_thrift *reply, int64_t handle, const char *what) {
  if (is_live(c->s, handle, what)) c->s->live[handle][0] = 0;
  else add_exception(reply);
}

static void put_ports(struct sml_thrift *reply) {
  static const int32_t ports[] = {0, 1, 2, 5};
  sml_thrift_list(reply, 0, SML_THRIFT_STRUCT, SML_ARRAY_LEN(ports));
  for (uint32_t i = 0; i < SML_ARRAY_LEN(ports); i++) {
    sml_thrift_i32(reply, 1, ports[i]);
    sml_thrift_text(reply, 2, "veth");
    sml_thrift_bool(reply, 3, true);
    sml_thrift_stop(reply);
  }
}

static void put_words(const struct call *c, struct sml_thrift *reply) {
  sml_thrift_list(reply, 0, SML_THRIFT_I64, SML_ARRAY_LEN(c->s->words));
  for (uint32_t i = 0; i < SML_ARRAY_LEN(c->s->words); i++) {
    sml_store_be64(reply->call + reply->call_bytes, (uint64_t)c->s->words[i]);
    reply->call_bytes += 8;
  }
}

static void read_register(const struct call *c, struct sml_thrift *reply) {
  const bool is_lane = strcmp(c->texts[2], "SwitchIn.aggregate.sum.value_1_31") == 0;
  const bool has_it = (is_lane || strcmp(c->texts[2], "cell_map") == 0) && c->numbers[3] < 2 * POOL_SLOTS;
  if (has_it) sml_thrift_i64(reply, 0, 0);
  else add_exception(reply);
}

/* As many packets as the reason's number. */
static void read_counter(const struct call *c, struct sml_thrift *reply) {
  sml_thrift_struct(reply, 0);
  sml_thrift_i64(reply, 1, 1000);
  sml_thrift_i64(reply, 2, c->numbers[3]);
  sml_thrift_stop(reply);
}

static void carry_out(struct call *c, struct sml_thrift *reply) {
  struct stand_in *s = c->s;
  const char *name = strchr(c->method, ':') + 1;
  if (strcmp(name, "bm_reset_state") == 0) forget(s, NULL);
  else if (strcmp(name, "bm_mt_add_entry") == 0) sml_thrift_i32(reply, 0, (int32_t)make(s, c->texts[2]));
  else if (strcmp(name, "bm_mt_delete_entry") == 0) remove_one(c, reply, c->numbers[3], c->texts[2]);
  else if (strcmp(name, "bm_dev_mgr_show_ports") == 0) put_ports(reply);
  else if (strcmp(name, "bm_register_read") == 0) read_register(c, reply);
  else if (strcmp(name, "bm_register_read_all") == 0) put_words(c, reply);
  else if (strcmp(name, "bm_counter_read") == 0) read_counter(c, reply);
  else if (strcmp(name, "bm_mc_mgrp_create") == 0) sml_thrift_i32(reply, 0, (int32_t)make(s, "group"));
  else if (strcmp(name, "bm_mc_node_create") == 0) sml_thrift_i32(reply, 0, (int32_t)make(s, "node"));
  else if (strcmp(name, "bm_mc_mgrp_destroy") == 0) remove_one(c, reply, c->numbers[2], "group");
  else if (strcmp(name, "bm_mc_node_destroy") == 0) remove_one(c, reply, c->numbers[2], "node");
  else if (strcmp(name, "bm_mc_node_associate") == 0) {
    if (!is_live(s, c->numbers[2], "group") || !is_live(s, c->numbers[3], "node")) add_exception(reply);
  } else if (strcmp(name, "bm_register_write_range") != 0) {
    add_exception(reply);
  }
}

/* False: the connection ends. */
static bool err(struct call *c, struct sml_thrift *reply) {
  static const char web[] = "HTTP/1.0 400 Bad Request\r\n\r\n";
  switch (c->s->fault) {
    case CUTS:
      carry_out(c, reply);
      answer(c, reply, reply->call_bytes - 1);
      return false;
    case REFUSES: add_exception(reply); break;
    case THROWS:
      begin_answer(c, reply, 3);
      sml_thrift_text(reply, 1, "out of order");
      sml_thrift_i32(reply, 2, 6);
      break;
    case NO_THRIFT: return send(c->fd, web, sizeof web, MSG_NOSIGNAL) > 0;
    case TOO_MANY: sml_thrift_list(reply, 0, SML_THRIFT_I64, 0x7fffffff); break;
    case TOO_DEEP:
      for (uint32_t i = 0; i < 100; i++) sml_thrift_struct(reply, 0);
      break;
    case UNKNOWN_TYPE:
      reply->call[reply->call_bytes] = 99;
      reply->call_bytes += 3; /* and a field's number */
      break;
    case ANOTHER_CALL: sml_store_be32(reply->call + reply->call_bytes - 4, c->sequence + 1); break;
    case SILENT: return true;
    case DIES: shutdown(c->s->listen_fd, SHUT_RDWR); return false;
    default: return false; /* CLOSES */
  }
  sml_thrift_stop(reply);
  answer(c, reply, reply->call_bytes);
  return true;
}

static bool serve_call(struct stand_in *s, int fd) {
  struct call c = {.s = s, .fd = fd};
  struct sml_thrift reply;
  const uint32_t version = take_u32(&c), name_bytes = take_u32(&c);
  if (c.is_broken || version != 0x80010001 || name_bytes >= sizeof c.method) return false;
  pthread_mutex_lock(&s->lock);
  take(&c, c.method, name_bytes);
  c.sequence = take_u32(&c);
  note(&c, "%s", c.method);
  take_fields(&c, 0);
  note(&c, "\n");
  sml_thrift_init(&reply, &s->addr);
  begin_answer(&c, &reply, 2);
  bool goes_on = !c.is_broken;
  if (goes_on && ++s->num_calls == s->faulty_call) {
    goes_on = err(&c, &reply);
  } else if (goes_on) {
    carry_out(&c, &reply);
    sml_thrift_stop(&reply);
    SML_ASSERT(!reply.is_overfull);
    answer(&c, &reply, reply.call_bytes);
  }
  pthread_mutex_unlock(&s->lock);
  return goes_on;
}

static void *serve(void *user) {
  struct stand_in *s = user;
  for (;;) {
    const int fd = accept(s->listen_fd, NULL, NULL);
    if (fd < 0) return NULL;
    while (serve_call(s, fd)) continue;
    close(fd);
  }
}

/* ---- what tests share ---- */

static struct stand_in stand_in;
static struct sml_bmv2 *bmv2;
static struct sml_dataplane *plane;
static char error[512];

static struct sml_addr make_addr(uint32_t ip, uint16_t port) {
  struct sml_addr addr = {.num_bytes = sizeof(struct sockaddr_in)};
  const struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(ip)};
  memcpy(addr.bytes, &in, sizeof in);
  return addr;
}

static void start(void) {
  struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t in_bytes = sizeof in;
  stand_in = (struct stand_in){.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  pthread_mutex_init(&stand_in.lock, NULL);
  assert_int_equal(bind(stand_in.listen_fd, (const struct sockaddr *)&in, sizeof in), 0);
  assert_int_equal(listen(stand_in.listen_fd, 4), 0);
  assert_int_equal(getsockname(stand_in.listen_fd, (struct sockaddr *)&in, &in_bytes), 0);
  stand_in.addr = make_addr(INADDR_LOOPBACK, ntohs(in.sin_port));
  assert_int_equal(pthread_create(&stand_in.thread, NULL, serve, &stand_in), 0);
  bmv2 = sml_bmv2_create(&(struct sml_bmv2_options){stand_in.addr, PACKET_LANES, POOL_SLOTS, 5});
  assert_non_null(bmv2);
  plane = sml_bmv2_dataplane(bmv2);
  error[0] = 0;
}

static void stop(void) {
  sml_bmv2_destroy(bmv2);
  shutdown(stand_in.listen_fd, SHUT_RDWR);
  pthread_join(stand_in.thread, NULL);
  close(stand_in.listen_fd);
  pthread_mutex_destroy(&stand_in.lock);
}

static void plan_fault(enum fault fault, uint32_t call) {
  pthread_mutex_lock(&stand_in.lock);
  stand_in.fault = fault;
  stand_in.faulty_call = stand_in.num_calls + call;
  pthread_mutex_unlock(&stand_in.lock);
}

static void expect_calls(const char *expected) {
  pthread_mutex_lock(&stand_in.lock);
  assert_string_equal(stand_in.log, expected);
  stand_in.log[0] = 0;
  stand_in.log_bytes = 0;
  pthread_mutex_unlock(&stand_in.lock);
}

static uint32_t count_calls(void) {
  pthread_mutex_lock(&stand_in.lock);
  const uint32_t num_calls = stand_in.num_calls;
  pthread_mutex_unlock(&stand_in.lock);
  return num_calls;
}

static uint32_t count_live(const char *what) {
  uint32_t num = 0;
  pthread_mutex_lock(&stand_in.lock);
  for (uint32_t h = 0; h < MAX_HANDLES; h++)
    num += stand_in.live[h][0] != 0 && (what == NULL || strcmp(stand_in.live[h], what) == 0);
  pthread_mutex_unlock(&stand_in.lock);
  return num;
}

static bool open_switch(void) {
  const struct sml_addr data_addr = make_addr(0x0a070001, 0xbeef);
  return plane->open(plane->user, &data_addr, error, sizeof error);
}

static bool start_job(uint32_t epoch, uint32_t num_contributors) {
  struct sml_dataplane_job job = {.number = JOB, .epoch = epoch, .num_contributors = num_contributors, .num_slots = 32,
                                  .slot_base = SLOT_BASE, .first_chunk = 9, .is_checked = true};
  for (uint32_t c = 0; c < num_contributors; c++)
    job.places[c] = (struct sml_place){make_addr(0x0a070064 + c, (uint16_t)(0x9c40 + c)), 0x020000000010 + c,
                                       (uint16_t)(1 + c)};
  return plane->start_job(plane->user, &job, error, sizeof error);
}

static void close_job(void) {
  plane->close_job(plane->user, JOB);
}

/* ---- what is asked of the switch ---- */

#define ADD "standard:bm_mt_add_entry 1=0 2="
#define DELETE "standard:bm_mt_delete_entry 1=0 2="
#define READ "standard:bm_register_read 1=0 2="
#define PRE "simple_pre_lag:bm_mc_"

static void the_calls_of_a_start(void **state) {
  (void)state;
  start();
  assert_true(open_switch());
  expect_calls("standard:bm_reset_state\n"
               READ "SwitchIn.aggregate.sum.value_1_31 3=0\n"
               READ "SwitchIn.aggregate.sum.value_2_0 3=0\n"
               READ "cell_map 3=255\n"
               "standard:bm_dev_mgr_show_ports\n"
               PRE "mgrp_create 1=0 2=1\n"
               PRE "node_create 1=0 2=0 3=100111 4=\n"
               PRE "node_associate 1=0 2=0 3=1\n"
               ADD "aggregator 3=[{1=0 2={1=0a070001}} {1=0 2={1=beef}}] 4=is_ours 5=[0005] 6={}\n");
  stop();
}

#define MEMBER(rank, turn, ip, port) \
  ADD "member 3=[{1=0 2={1=0003}} {1=0 2={1=00000007}} {1=0 2={1=" rank "}} {1=0 2={1=" turn "}} {1=0 2={1=" ip \
      "}} {1=0 2={1=" port "}} {1=0 2={1=beef}}] 4=is_member 5="

static void the_calls_of_a_job(void **state) {
  (void)state;
  start();
  assert_true(open_switch());
  pthread_mutex_lock(&stand_in.lock);
  stand_in.is_slow = true;
  stand_in.log_bytes = 0;
  pthread_mutex_unlock(&stand_in.lock);
  assert_true(start_job(7, 2));
  expect_calls("standard:bm_register_write_range 1=0 2=cell_phase 3=128 4=192 5=0L\n"
               "standard:bm_register_write_range 1=0 2=cell_map 3=128 4=192 5=0L\n"
               "standard:bm_register_write_range 1=0 2=cursor 3=3 4=4 5=41L\n"
               PRE "mgrp_create 1=0 2=19\n"
               ADD "window 3=[{1=0 2={1=0003}} {1=2 4={1=0040 2=ffe0}}] 4=is_inside 5=[] 6={1=1}\n"
               ADD "replica 3=[{1=0 2={1=beef}} {1=0 2={1=0061}}] 4=to_member 5=[020000000010 0a070064 9c40] 6={}\n"
               PRE "node_create 1=0 2=97 3=10 4=\n"
               PRE "node_associate 1=0 2=3 3=6\n"
               ADD "replica 3=[{1=0 2={1=beef}} {1=0 2={1=0062}}] 4=to_member 5=[020000000011 0a070065 9c41] 6={}\n"
               PRE "node_create 1=0 2=98 3=100 4=\n"
               PRE "node_associate 1=0 2=3 3=8\n"
               ADD "l2 3=[{1=0 2={1=020000000010}}] 4=forward 5=[0001] 6={}\n"
               ADD "l2 3=[{1=0 2={1=020000000011}}] 4=forward 5=[0002] 6={}\n"
               MEMBER("0000", "00", "0a070064", "9c40") "[80000001 80000003 80000002 0003 0013 0001 01] 6={}\n"
               MEMBER("0000", "01", "0a070064", "9c40") "[c0000001 c0000003 c0000002 0003 0013 0001 01] 6={}\n"
               MEMBER("0001", "00", "0a070065", "9c41") "[80000002 80000003 80000001 0003 0013 0002 01] 6={}\n"
               MEMBER("0001", "01", "0a070065", "9c41") "[c0000002 c0000003 c0000001 0003 0013 0002 01] 6={}\n");
  plane->depart(plane->user, JOB, 1);
  expect_calls(DELETE "member 3=13\n" DELETE "member 3=14\n");
  close_job();
  expect_calls(DELETE "member 3=11\n" DELETE "member 3=12\n" DELETE "window 3=4\n"
               DELETE "replica 3=5\n" PRE "node_destroy 1=0 2=6\n"
               DELETE "replica 3=7\n" PRE "node_destroy 1=0 2=8\n"
               PRE "mgrp_destroy 1=0 2=3\n");
  close_job(); /* that it no longer has */
  expect_calls("");
  stop();
}

static void a_job_leaves_nothing_but_routes(void **state) {
  (void)state;
  start();
  assert_true(open_switch());
  const uint32_t num_before = count_live(NULL);
  assert_true(start_job(7, SML_SWITCH_MAX_CONTRIBUTORS));
  assert_int_equal(count_live("member"), 2 * SML_SWITCH_MAX_CONTRIBUTORS);
  assert_true(start_job(8, 3)); /* an epoch that follows replaces it */
  assert_int_equal(count_live("member"), 6);
  assert_int_equal(count_live("replica"), 3);
  assert_int_equal(count_live("node"), 1 + 3);
  assert_int_equal(count_live("group"), 2);
  close_job();
  assert_int_equal(count_live(NULL), num_before + count_live("l2"));
  assert_true(start_job(9, 3)); /* of a daemon that was killed */
  assert_true(open_switch());
  assert_int_equal(count_live(NULL), num_before);
  stop();
}

static void who_blocks_is_found(void **state) {
  (void)state;
  start();
  assert_true(open_switch());
  assert_int_equal(plane->find_blocked(plane->user, JOB, 1), UINT32_MAX);
  assert_true(start_job(7, 3));
  pthread_mutex_lock(&stand_in.lock);
  for (uint32_t cell = 0; cell < 2 * SLOT_BASE; cell++) stand_in.words[cell] = 0x80000001; /* another job's */
  stand_in.words[2 * SLOT_BASE + 4] = 0x80000007;                                          /* complete */
  stand_in.words[2 * SLOT_BASE + 7] = 0xc0000005;
  pthread_mutex_unlock(&stand_in.lock);
  assert_int_equal(plane->find_blocked(plane->user, JOB, 0), UINT32_MAX);
  assert_int_equal(plane->find_blocked(plane->user, JOB, 1), 3);
  stop();
}

static void drops_are_added(void **state) {
  (void)state;
  uint64_t num_drops[SML_NUM_DROPS] = {[SML_DROP_BAD_SLOT] = 1000};
  start();
  plane->add_drops(plane->user, num_drops);
  for (uint32_t d = 0; d < SML_NUM_DROPS; d++)
    assert_int_equal(num_drops[d], d + (d == SML_DROP_BAD_SLOT ? 1000 : 0));
  plan_fault(SILENT, 3);
  const uint64_t start_ns = sml_clock_ns();
  plane->add_drops(plane->user, num_drops);
  assert_true(sml_clock_ns() - start_ns >= 90 * SML_NS_PER_MS);
  assert_int_equal(num_drops[1], 2);
  assert_int_equal(num_drops[2], 2);
  stop();
}

/* ---- what goes wrong ---- */

static void expect_failure(const char *what) {
  char address[64], expected[512];
  sml_addr_format(&stand_in.addr, address, sizeof address);
  snprintf(expected, sizeof expected, "the switch at %s: %s", address, what);
  assert_string_equal(error, expected);
}

static void errors_say_what_happened(void **state) {
  (void)state;
  static const struct {
    enum fault fault;
    const char *error;
  } cases[] = {{CLOSES, "connection closed"},
               {CUTS, "connection closed"},
               {REFUSES, "refused with code 5"},
               {THROWS, "refused with code 6"},
               {NO_THRIFT, "this is no Thrift of the binary protocol"},
               {TOO_MANY, "a list of 2147483647 elements"},
               {TOO_DEEP, "an answer nested too deep"},
               {UNKNOWN_TYPE, "an answer of unknown type 99"},
               {ANOTHER_CALL, "an answer to another call"},
               {DIES, "connection closed"}};
  for (size_t i = 0; i < SML_ARRAY_LEN(cases); i++) {
    char expected[128];
    start();
    plan_fault(cases[i].fault, 1);
    assert_false(open_switch());
    snprintf(expected, sizeof expected, "standard:bm_reset_state: %s", cases[i].error);
    expect_failure(expected);
    if (cases[i].fault != DIES) assert_true(open_switch()); /* nothing of it remains */
    else assert_false(open_switch());
    if (cases[i].fault == DIES) expect_failure("standard:bm_reset_state: cannot connect: Connection refused");
    stop();
  }
}

static void a_silent_switch_is_given_up(void **state) {
  (void)state;
  start();
  assert_true(open_switch());
  plan_fault(SILENT, 5);
  const uint64_t start_ns = sml_clock_ns();
  assert_false(start_job(7, 2));
  assert_true(sml_clock_ns() - start_ns >= SML_NS_PER_S);
  expect_failure("standard:bm_mt_add_entry: no answer in time");
  close_job();
  assert_true(start_job(8, 2));
  stop();
}

static void a_program_that_does_not_fit(void **state) {
  (void)state;
  static const struct sml_bmv2_options wrong[] = {{.packet_lanes = 32, .pool_slots = POOL_SLOTS},
                                                  {.packet_lanes = 128, .pool_slots = POOL_SLOTS},
                                                  {.packet_lanes = PACKET_LANES, .pool_slots = 2 * POOL_SLOTS}};
  static const char *const errors[] = {"the switch's program has not 32 lanes a packet, as --switch-format says",
                                       "the switch's program has not 128 lanes a packet, as --switch-format says",
                                       "the switch's program has less than 256 slots: set --slots"};
  for (size_t i = 0; i < SML_ARRAY_LEN(wrong); i++) {
    start();
    struct sml_bmv2_options options = wrong[i];
    options.runtime = stand_in.addr;
    sml_bmv2_destroy(bmv2);
    bmv2 = sml_bmv2_create(&options);
    plane = sml_bmv2_dataplane(bmv2);
    assert_false(open_switch());
    assert_string_equal(error, errors[i]);
    stop();
  }
}

static void ranks_must_be_able_to_reach_us(void **state) {
  (void)state;
  start();
  const struct sml_addr any = make_addr(INADDR_ANY, 0xbeef);
  assert_false(plane->open(plane->user, &any, error, sizeof error));
  assert_string_equal(error, "with a switch, --listen must be the IPv4 address by which ranks reach this host");
  stop();
}

/* Each call of a job's life goes wrong once, in each way. Only an answer that is cut off was to a call carried out. */
static void any_call_may_fail(void **state) {
  (void)state;
  start();
  assert_true(open_switch());
  const uint32_t num_before = count_calls();
  assert_true(start_job(7, 2));
  const uint32_t num_start = count_calls() - num_before;
  (void)plane->find_blocked(plane->user, JOB, 0);
  close_job();
  const uint32_t num_all = count_calls() - num_before;
  stop();
  for (enum fault fault = CLOSES; fault <= DIES; fault++) {
    for (uint32_t call = 1; fault != SILENT && call <= num_all; call++) {
      start();
      assert_true(open_switch());
      const uint32_t num_made = count_live(NULL);
      plan_fault(fault, call);
      const bool is_started = start_job(7, 2);
      if (call > num_start) assert_true(is_started);
      if (!is_started) assert_non_null(strstr(error, "the switch at 127.0.0.1:"));
      if (is_started) (void)plane->find_blocked(plane->user, JOB, 0);
      close_job();
      if (fault != DIES) {
        const uint32_t num_left = count_live(NULL) - count_live("l2");
        assert_true(num_left <= num_made + 1);
        if (call <= num_start && fault != CUTS) assert_int_equal(num_left, num_made);
        assert_true(start_job(8, 2));
        close_job();
      } else {
        assert_false(start_job(8, 2));
      }
      stop();
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_calls_of_a_start),       cmocka_unit_test(the_calls_of_a_job),
      cmocka_unit_test(a_job_leaves_nothing_but_routes), cmocka_unit_test(who_blocks_is_found),
      cmocka_unit_test(drops_are_added),
      cmocka_unit_test(errors_say_what_happened),   cmocka_unit_test(a_silent_switch_is_given_up),
      cmocka_unit_test(a_program_that_does_not_fit), cmocka_unit_test(ranks_must_be_able_to_reach_us),
      cmocka_unit_test(any_call_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
