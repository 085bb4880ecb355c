/* SPDX-License-Identifier: Apache-2.0
 * The calls that fill BMv2, and whatever can go wrong with them, against a stand-in for its runtime server: a Thrift
 * server of this file that does what tables, groups and registers do, records, and errs when told to. */
#include "dataplane/switches.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "dataplane/test_stand_in.h"
#include "dataplane/thrift.h"

/* clang-format off */ /* scripts of calls, a line for each call */

#define MAX_HANDLES 512u
#define MAX_FIELDS 8u

enum fault { NO_FAULT, CLOSES, CUTS, REFUSES, REFUSES_PLAINLY, THROWS, NO_THRIFT, TOO_MANY, TOO_DEEP, UNKNOWN_TYPE,
             ANOTHER_CALL, SILENT, DIES, LENGTHY, NO_NUMBER };

/* ---- the stand-in ---- */

static char live[MAX_HANDLES][64]; /* by handle: the table, "group" or "node" that it is of; "": it is gone */
static int64_t next_handle;

struct call {
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

static void take_fields(struct call *c, uint32_t depth);

/* Texts are names on the outside, and bytes of keys and parameters further in. */
static void take_text(struct call *c, uint32_t field, uint32_t depth) {
  char text[256] = {0};
  const uint32_t num_bytes = take_u32(c);
  if (num_bytes >= sizeof text) c->is_broken = true;
  else take(c, text, num_bytes);
  if (depth == 0) stand_in_note("%s", text);
  for (uint32_t i = 0; depth > 0 && i < num_bytes && !c->is_broken; i++) stand_in_note("%02x", (uint8_t)text[i]);
  if (depth == 0 && field < MAX_FIELDS) snprintf(c->texts[field], sizeof c->texts[field], "%.63s", text);
}

static void take_value(struct call *c, uint8_t type, uint32_t field, uint32_t depth) {
  uint8_t bytes[8], element;
  const size_t num_bytes = type == SML_THRIFT_BOOL ? 1 : type == SML_THRIFT_I32 ? 4 : 8;
  if (type == SML_THRIFT_STRING) {
    take_text(c, field, depth);
  } else if (type == SML_THRIFT_STRUCT) {
    stand_in_note("{");
    take_fields(c, depth + 1);
    stand_in_note("}");
  } else if (type == SML_THRIFT_LIST) {
    take(c, &element, 1);
    const uint32_t num_elems = take_u32(c);
    stand_in_note("[");
    for (uint32_t i = 0; i < num_elems && !c->is_broken; i++) {
      if (i > 0) stand_in_note(" ");
      take_value(c, element, 0, depth + 1);
    }
    stand_in_note("]");
  } else {
    int64_t value = 0;
    take(c, bytes, num_bytes);
    for (size_t i = 0; i < num_bytes; i++) value = (int64_t)((uint64_t)value << 8 | bytes[i]);
    if (num_bytes == 4) value = (int32_t)value;
    stand_in_note(type == SML_THRIFT_I64 ? "%lldL" : "%lld", (long long)value);
    if (depth == 0 && field < MAX_FIELDS && type != SML_THRIFT_I64) c->numbers[field] = value;
  }
}

static void take_fields(struct call *c, uint32_t depth) {
  for (bool is_first = true; !c->is_broken; is_first = false) {
    uint8_t type, field[2];
    take(c, &type, 1);
    if (type == SML_THRIFT_STOP) return;
    take(c, field, sizeof field);
    stand_in_note(is_first && depth > 0 ? "%u=" : " %u=", sml_load_be16(field));
    take_value(c, type, sml_load_be16(field), depth);
  }
}

static void answer(const struct call *c, const struct sml_thrift *reply, uint32_t num_bytes) {
  stand_in_answer(c->fd, reply->call, num_bytes);
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

static void forget(const char *what) {
  for (uint32_t h = 0; h < MAX_HANDLES; h++)
    if (what == NULL || strcmp(live[h], what) == 0) live[h][0] = 0;
}

static bool is_live(int64_t handle, const char *what) {
  return handle >= 0 && handle < MAX_HANDLES && strcmp(live[handle], what) == 0;
}

static int64_t make(const char *what) {
  SML_ASSERT(next_handle < MAX_HANDLES);
  snprintf(live[next_handle], sizeof live[0], "%s", what);
  return next_handle++;
}

/* What exists may be taken away, once. */
static void remove_one(struct sml_thrift *reply, int64_t handle, const char *what) {
  if (is_live(handle, what)) live[handle][0] = 0;
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

static void put_words(struct sml_thrift *reply) {
  sml_thrift_list(reply, 0, SML_THRIFT_I64, SML_ARRAY_LEN(stand_in.words));
  for (uint32_t i = 0; i < SML_ARRAY_LEN(stand_in.words); i++) {
    sml_store_be64(reply->call + reply->call_bytes, (uint64_t)stand_in.words[i]);
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
  const char *name = strchr(c->method, ':') + 1;
  if (strcmp(name, "bm_reset_state") == 0) forget(NULL);
  else if (strcmp(name, "bm_mt_add_entry") == 0) sml_thrift_i32(reply, 0, (int32_t)make(c->texts[2]));
  else if (strcmp(name, "bm_mt_delete_entry") == 0) remove_one(reply, c->numbers[3], c->texts[2]);
  else if (strcmp(name, "bm_dev_mgr_show_ports") == 0) put_ports(reply);
  else if (strcmp(name, "bm_register_read") == 0) read_register(c, reply);
  else if (strcmp(name, "bm_register_read_all") == 0) put_words(reply);
  else if (strcmp(name, "bm_counter_read") == 0) read_counter(c, reply);
  else if (strcmp(name, "bm_mc_mgrp_create") == 0) sml_thrift_i32(reply, 0, (int32_t)make("group"));
  else if (strcmp(name, "bm_mc_node_create") == 0) sml_thrift_i32(reply, 0, (int32_t)make("node"));
  else if (strcmp(name, "bm_mc_mgrp_destroy") == 0) remove_one(reply, c->numbers[2], "group");
  else if (strcmp(name, "bm_mc_node_destroy") == 0) remove_one(reply, c->numbers[2], "node");
  else if (strcmp(name, "bm_mc_node_associate") == 0) {
    if (!is_live(c->numbers[2], "group") || !is_live(c->numbers[3], "node")) add_exception(reply);
  } else if (strcmp(name, "bm_register_write_range") != 0) {
    add_exception(reply);
  }
}

/* False: the connection ends. */
static bool err(struct call *c, struct sml_thrift *reply, uint32_t fault) {
  static const char web[] = "HTTP/1.0 400 Bad Request\r\n\r\n";
  switch (fault) {
    case CUTS:
      carry_out(c, reply);
      answer(c, reply, reply->call_bytes - 1);
      return false;
    case REFUSES: add_exception(reply); break;
    case REFUSES_PLAINLY: /* without a reason */
      sml_thrift_struct(reply, 1);
      sml_thrift_stop(reply);
      break;
    case THROWS:
      begin_answer(c, reply, 3);
      sml_thrift_text(reply, 1, "out of order");
      sml_thrift_i32(reply, 2, -6);
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
    case ANOTHER_CALL: sml_store_be32(reply->call + reply->call_bytes - 4, c->sequence - 1); break;
    case LENGTHY:
      for (uint32_t i = 0; i < STAND_IN_LENGTHY_BYTES / 7; i++) sml_thrift_i32(reply, 0, 1);
      break;
    case NO_NUMBER: break;
    case SILENT: return true;
    case DIES: stand_in_die(); return false;
    default: return false; /* CLOSES */
  }
  sml_thrift_stop(reply);
  answer(c, reply, reply->call_bytes);
  return true;
}

static bool serve_call(int fd) {
  struct call c = {.fd = fd};
  struct sml_thrift reply;
  const uint32_t version = take_u32(&c), name_bytes = take_u32(&c);
  if (c.is_broken || version != 0x80010001 || name_bytes >= sizeof c.method) return false;
  pthread_mutex_lock(&stand_in.lock);
  take(&c, c.method, name_bytes);
  c.sequence = take_u32(&c);
  stand_in_note("%s", c.method);
  take_fields(&c, 0);
  stand_in_note("\n");
  sml_thrift_init(&reply, &stand_in.addr);
  begin_answer(&c, &reply, 2);
  bool goes_on = !c.is_broken;
  const uint32_t fault = goes_on ? stand_in_take_call() : NO_FAULT;
  if (fault != NO_FAULT) {
    goes_on = err(&c, &reply, fault);
  } else if (goes_on) {
    carry_out(&c, &reply);
    sml_thrift_stop(&reply);
    SML_ASSERT(!reply.is_overfull);
    answer(&c, &reply, reply.call_bytes);
  }
  pthread_mutex_unlock(&stand_in.lock);
  return goes_on;
}

static void serve(int fd) {
  while (serve_call(fd)) continue;
}

/* ---- what tests share ---- */

static void start_with(uint32_t packet_lanes, uint32_t pool_slots) {
  memset(live, 0, sizeof live);
  next_handle = 0;
  stand_in_start(NULL, 0, serve);
  stand_in.plane = sml_bmv2_create(&(struct sml_switch_options){
      .runtime = stand_in.addr, .packet_lanes = packet_lanes, .pool_slots = pool_slots, .cpu_port = 5});
  assert_non_null(stand_in.plane);
}

static void start(void) {
  start_with(PACKET_LANES, POOL_SLOTS);
}

static void stop(void) {
  sml_switch_destroy(stand_in.plane);
  stand_in_stop();
}

static uint32_t count_live(const char *what) {
  uint32_t num = 0;
  pthread_mutex_lock(&stand_in.lock);
  for (uint32_t h = 0; h < MAX_HANDLES; h++)
    num += live[h][0] != 0 && (what == NULL || strcmp(live[h], what) == 0);
  pthread_mutex_unlock(&stand_in.lock);
  return num;
}

/* ---- what is asked of the switch ---- */

#define ADD "standard:bm_mt_add_entry 1=0 2="
#define DELETE "standard:bm_mt_delete_entry 1=0 2="
#define READ "standard:bm_register_read 1=0 2="
#define PRE "simple_pre_lag:bm_mc_"

static void the_calls_of_a_start(void **state) {
  (void)state;
  start();
  assert_true(stand_in_open_switch());
  stand_in_expect("standard:bm_reset_state\n"
               READ "SwitchIn.aggregate.sum.value_1_31 3=0\n"
               READ "SwitchIn.aggregate.sum.value_2_0 3=0\n"
               READ "cell_map 3=255\n"
               "standard:bm_dev_mgr_show_ports\n"
               PRE "mgrp_create 1=0 2=1\n"
               PRE "node_create 1=0 2=0 3=100111 4=\n"
               PRE "node_associate 1=0 2=0 3=1\n"
               ADD "source 3=[{1=0 2={1=0a070001}} {1=2 4={1=0005 2=ffff}}] 4=is_own 5=[] 6={1=1}\n"
               ADD "source 3=[{1=0 2={1=0a070001}} {1=2 4={1=0000 2=0000}}] 4=is_forged 5=[] 6={1=2}\n"
               ADD "aggregator 3=[{1=0 2={1=0a070001}} {1=0 2={1=beef}}] 4=is_ours 5=[0005 5a5b5c5d] 6={}\n");
  stop();
}

#define MEMBER(rank, turn, ip, port, ingress) \
  ADD "member 3=[{1=0 2={1=0003}} {1=0 2={1=00000007}} {1=0 2={1=" rank "}} {1=0 2={1=" turn "}} {1=0 2={1=" ip \
      "}} {1=0 2={1=" port "}} {1=0 2={1=beef}} {1=0 2={1=" ingress "}}] 4=is_member 5="

static void the_calls_of_a_job(void **state) {
  (void)state;
  start();
  assert_true(stand_in_open_switch());
  stand_in_forget();
  pthread_mutex_lock(&stand_in.lock);
  stand_in.is_slow = true;
  pthread_mutex_unlock(&stand_in.lock);
  assert_true(stand_in_start_job(7, 2, 32));
  stand_in_expect("standard:bm_register_write_range 1=0 2=cell_phase 3=128 4=192 5=0L\n"
               "standard:bm_register_write_range 1=0 2=cell_map 3=128 4=192 5=0L\n"
               "standard:bm_register_write_range 1=0 2=cursor 3=3 4=4 5=41L\n"
               PRE "mgrp_create 1=0 2=19\n"
               ADD "window 3=[{1=0 2={1=0003}} {1=2 4={1=0040 2=ffe0}} {1=0 2={1=beef}}] 4=is_inside 5=[] 6={1=1}\n"
               ADD "replica 3=[{1=0 2={1=beef}} {1=0 2={1=0061}}] 4=to_member 5=[020000000010 0a070064 9c40] 6={}\n"
               PRE "node_create 1=0 2=97 3=10 4=\n"
               PRE "node_associate 1=0 2=5 3=8\n"
               ADD "replica 3=[{1=0 2={1=beef}} {1=0 2={1=0062}}] 4=to_member 5=[020000000011 0a070065 9c41] 6={}\n"
               PRE "node_create 1=0 2=98 3=100 4=\n"
               PRE "node_associate 1=0 2=5 3=10\n"
               ADD "l2 3=[{1=0 2={1=020000000010}}] 4=forward 5=[0001] 6={}\n"
               ADD "l2 3=[{1=0 2={1=020000000011}}] 4=forward 5=[0002] 6={}\n"
               MEMBER("0000", "00", "0a070064", "9c40", "0001") "[80000001 80000003 80000002 0003 0013 0001 01] 6={}\n"
               MEMBER("0000", "01", "0a070064", "9c40", "0001") "[c0000001 c0000003 c0000002 0003 0013 0001 01] 6={}\n"
               MEMBER("0001", "00", "0a070065", "9c41", "0002") "[80000002 80000003 80000001 0003 0013 0002 01] 6={}\n"
               MEMBER("0001", "01", "0a070065", "9c41", "0002")
               "[c0000002 c0000003 c0000001 0003 0013 0002 01] 6={}\n");
  stand_in.plane->depart(stand_in.plane->user, JOB, 1);
  stand_in_expect(DELETE "member 3=15\n" DELETE "member 3=16\n");
  stand_in_close_job();
  stand_in_expect(DELETE "member 3=13\n" DELETE "member 3=14\n" DELETE "window 3=6\n"
               DELETE "replica 3=7\n" PRE "node_destroy 1=0 2=8\n" DELETE "l2 3=11\n"
               DELETE "replica 3=9\n" PRE "node_destroy 1=0 2=10\n" DELETE "l2 3=12\n"
               PRE "mgrp_destroy 1=0 2=5\n");
  stand_in_close_job(); /* that it no longer has */
  stand_in_expect("");
  stop();
}

static bool has_route(const char *mac, const char *port) {
  char text[128];
  snprintf(text, sizeof text, ADD "l2 3=[{1=0 2={1=%s}}] 4=forward 5=[%s] 6={}\n", mac, port);
  pthread_mutex_lock(&stand_in.lock);
  const bool has = strstr(stand_in.log, text) != NULL;
  pthread_mutex_unlock(&stand_in.lock);
  return has;
}

/* Hosts of several jobs have one entry each, until the last of them ends. Whoever joins a job under such a MAC, from
 * another port, does not get that host's frames while a rank of it is where it was. */
static void routes_stay_with_their_hosts(void **state) {
  (void)state;
  start();
  assert_true(stand_in_open_switch());
  assert_true(stand_in_start_job_of(JOB, 7, 2, 32, 1));
  assert_true(stand_in_start_job_of(JOB + 1, 8, 2, 32, 1));
  assert_int_equal(count_live("l2"), 2);
  stand_in_forget();
  assert_true(stand_in_start_job_of(JOB + 2, 9, 2, 32, 5)); /* as if they were at ports 5 and 6 */
  assert_false(has_route("020000000010", "0005"));
  stand_in.plane->close_job(stand_in.plane->user, JOB);
  assert_false(has_route("020000000010", "0005"));
  assert_int_equal(count_live("l2"), 2);
  stand_in.plane->close_job(stand_in.plane->user, JOB + 1); /* nobody says any more that they are at 1 and 2 */
  assert_true(has_route("020000000010", "0005") && has_route("020000000011", "0006"));
  assert_int_equal(count_live("l2"), 2);
  stand_in.plane->close_job(stand_in.plane->user, JOB + 2);
  assert_int_equal(count_live("l2"), 0);
  stop();
}

static void a_job_leaves_nothing(void **state) {
  (void)state;
  start();
  assert_true(stand_in_open_switch());
  const uint32_t num_before = count_live(NULL);
  assert_true(stand_in_start_job(7, SML_SWITCH_MAX_CONTRIBUTORS, 32));
  assert_int_equal(count_live("member"), 2 * SML_SWITCH_MAX_CONTRIBUTORS);
  assert_true(stand_in_start_job(8, 3, 32)); /* an epoch that follows replaces it */
  assert_int_equal(count_live("member"), 6);
  assert_int_equal(count_live("replica"), 3);
  assert_int_equal(count_live("node"), 1 + 3);
  assert_int_equal(count_live("group"), 2);
  stand_in_close_job();
  assert_int_equal(count_live(NULL), num_before);
  assert_true(stand_in_start_job(9, 3, 32)); /* of a daemon that was killed */
  assert_true(stand_in_open_switch());
  assert_int_equal(count_live(NULL), num_before);
  stop();
}

static void who_blocks_is_found(void **state) {
  (void)state;
  start();
  stand_in_check_who_blocks();
  stop();
}

static void counters_are_read(void **state) {
  (void)state;
  uint64_t counts[SML_NUM_AT_SWITCH] = {0};
  start();
  stand_in_read_counters(counts);
  for (uint32_t i = 0; i < SML_NUM_AT_SWITCH; i++)
    if (i < SML_NUM_DROPS || i >= SML_AT_SWITCH_FIRST) assert_int_equal(counts[i], i);
  for (uint32_t look = 0; look < 100 && (look == 0 || counts[1] != 1); look++) {
    for (uint32_t i = 0; i < SML_NUM_AT_SWITCH; i++) counts[i] = 1000;
    stand_in_plan_fault(SILENT, 3);
    const uint64_t start_ns = sml_clock_ns();
    assert_false(stand_in.plane->read_counters(stand_in.plane->user, counts));
    assert_true(sml_clock_ns() - start_ns >= 90 * SML_NS_PER_MS && counts[2] == 1000);
  }
  assert_int_equal(counts[1], 1); /* some came */
  stand_in_read_counters(counts);
  assert_int_equal(counts[SML_AT_SWITCH_FORWARDED], SML_AT_SWITCH_FORWARDED);
  stop();
}

/* ---- what goes wrong ---- */

static void expect_failure(const char *what) {
  char address[64], expected[512];
  sml_addr_format(&stand_in.addr, address, sizeof address);
  snprintf(expected, sizeof expected, "the switch at %s: %s", address, what);
  assert_string_equal(stand_in.error, expected);
}

static void errors_say_what_happened(void **state) {
  (void)state;
  static const struct {
    enum fault fault;
    const char *error;
  } cases[] = {{CLOSES, "connection closed"},
               {CUTS, "connection closed"},
               {REFUSES, "refused with code 5"},
               {REFUSES_PLAINLY, "refused"},
               {THROWS, "refused with code -6"},
               {NO_THRIFT, "this is no Thrift of the binary protocol"},
               {TOO_MANY, "a list of 2147483647 elements"},
               {TOO_DEEP, "an answer nested too deep"},
               {UNKNOWN_TYPE, "an answer of unknown type 99"},
               {ANOTHER_CALL, "an answer to another call"},
               {DIES, "connection closed"}};
  for (size_t i = 0; i < SML_ARRAY_LEN(cases); i++) {
    char expected[128];
    start();
    stand_in_plan_fault(cases[i].fault, 1);
    assert_false(stand_in_open_switch());
    snprintf(expected, sizeof expected, "standard:bm_reset_state: %s", cases[i].error);
    expect_failure(expected);
    if (cases[i].fault != DIES) assert_true(stand_in_open_switch()); /* nothing of it remains */
    else assert_false(stand_in_open_switch());
    if (cases[i].fault == DIES) expect_failure("standard:bm_reset_state: cannot connect: Connection refused");
    stop();
  }
}

/* Then there is no handle, by which what was added could be taken away. */
static void an_answer_has_its_number(void **state) {
  (void)state;
  start();
  assert_true(stand_in_open_switch());
  stand_in_plan_fault(NO_NUMBER, 5);
  assert_false(stand_in_start_job(7, 2, 32));
  expect_failure("standard:bm_mt_add_entry: an answer without its number");
  stop();
}

static void a_silent_switch_is_given_up(void **state) {
  (void)state;
  start();
  assert_true(stand_in_open_switch());
  stand_in_plan_fault(SILENT, 5);
  const uint64_t start_ns = sml_clock_ns();
  assert_false(stand_in_start_job(7, 2, 32));
  assert_true(sml_clock_ns() - start_ns >= SML_NS_PER_S);
  expect_failure("standard:bm_mt_add_entry: no answer in time");
  stand_in_close_job();
  assert_true(stand_in_start_job(8, 2, 32));
  stop();
}

static void a_dripping_switch_is_given_up(void **state) {
  (void)state;
  start();
  stand_in_check_dripping_is_given_up(LENGTHY);
  stop();
}

static void a_program_that_does_not_fit(void **state) {
  (void)state;
  static const struct {
    uint32_t lanes, slots;
    const char *error;
  } cases[] = {{32, POOL_SLOTS, "the switch's program has not 32 lanes a packet, as --switch-format says"},
               {128, POOL_SLOTS, "the switch's program has not 128 lanes a packet, as --switch-format says"},
               {PACKET_LANES, 2 * POOL_SLOTS, "the switch's program has less than 256 slots: set --slots"}};
  for (size_t i = 0; i < SML_ARRAY_LEN(cases); i++) {
    start_with(cases[i].lanes, cases[i].slots);
    assert_false(stand_in_open_switch());
    assert_string_equal(stand_in.error, cases[i].error);
    stop();
  }
}

static void ranks_must_be_able_to_reach_us(void **state) {
  (void)state;
  start();
  stand_in_check_ranks_must_reach_us();
  stop();
}

static void a_switch_that_dies_is_noticed(void **state) {
  (void)state;
  char address[64], expected[128];
  start();
  sml_addr_format(&stand_in.addr, address, sizeof address);
  snprintf(expected, sizeof expected, "the switch at %s has closed its connection", address);
  stand_in_check_death_is_noticed(expected);
  stop();
}

/* Each call of a job's life goes wrong once, in each way. Only an answer that is cut off was to a call carried out. */
static void any_call_may_fail(void **state) {
  (void)state;
  start();
  assert_true(stand_in_open_switch());
  const uint32_t num_before = stand_in_count_calls();
  assert_true(stand_in_start_job(7, 2, 32));
  const uint32_t num_start = stand_in_count_calls() - num_before;
  (void)stand_in_find_blocked(0);
  stand_in_close_job();
  const uint32_t num_all = stand_in_count_calls() - num_before;
  stop();
  for (enum fault fault = CLOSES; fault <= DIES; fault++) {
    for (uint32_t call = 1; fault != SILENT && call <= num_all; call++) {
      start();
      assert_true(stand_in_open_switch());
      const uint32_t num_made = count_live(NULL);
      stand_in_plan_fault(fault, call);
      const bool is_started = stand_in_start_job(7, 2, 32);
      if (call > num_start) assert_true(is_started);
      if (!is_started) assert_non_null(strstr(stand_in.error, "the switch at 127.0.0.1:"));
      if (is_started) (void)stand_in_find_blocked(0);
      stand_in_close_job();
      if (fault != DIES) {
        const uint32_t num_left = count_live(NULL) - count_live("l2");
        assert_true(num_left <= num_made + 1);
        if (call <= num_start && fault != CUTS) assert_int_equal(num_left, num_made);
        assert_true(stand_in_start_job(8, 2, 32));
        stand_in_close_job();
        assert_int_equal(count_live(NULL), num_made); /* whatever was left */
      } else {
        assert_false(stand_in_start_job(8, 2, 32));
      }
      stop();
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_calls_of_a_start), cmocka_unit_test(the_calls_of_a_job),
      cmocka_unit_test(a_job_leaves_nothing), cmocka_unit_test(routes_stay_with_their_hosts),
      cmocka_unit_test(who_blocks_is_found), cmocka_unit_test(counters_are_read),
      cmocka_unit_test(a_switch_that_dies_is_noticed), cmocka_unit_test(an_answer_has_its_number),
      cmocka_unit_test(errors_say_what_happened), cmocka_unit_test(a_silent_switch_is_given_up),
      cmocka_unit_test(a_dripping_switch_is_given_up), cmocka_unit_test(a_program_that_does_not_fit),
      cmocka_unit_test(ranks_must_be_able_to_reach_us), cmocka_unit_test(any_call_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
