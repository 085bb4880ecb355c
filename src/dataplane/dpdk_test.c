/* SPDX-License-Identifier: Apache-2.0
 * What is asked of DPDK's pipeline, and whatever can go wrong with that, against a stand-in for the control socket of
 * switchml-pipeline: a server of this file that records, knows a few registers, and errs when told to. */
#include "dataplane/switches.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include <sys/un.h>

#include <cmocka.h>

#include "dataplane/test_stand_in.h"

/* clang-format off */ /* scripts of calls, a line for each call */

#define NUM_PORTS 3u
#define NUM_SLOTS 16u
#define MAX_VALUES 8192u /* of a read: switchml-pipeline refuses more */
#define MANY_SLOTS 8192u

enum fault { NO_FAULT, CLOSES, CUTS, REFUSES, NONSENSE, NO_TEXT, LONG, TOO_FEW, SILENT, DIES, LENGTHY };

static char path[64];
static uint32_t born, num_cells; /* of the stand-in; it has the lock */

/* ---- the stand-in ---- */

/* The value of a register, if there is such a one; counters count as many packets as their number. */
static bool look_up(const char *name, uint32_t index, uint64_t *value_out) {
  *value_out = 0;
  if (strcmp(name, "verdicts_0") == 0) return *value_out = index, index < 64;
  if (strcmp(name, "aggregate_sum_value_1_30") == 0) return true;
  if (strcmp(name, "aggregate_state_cell_map") != 0 || index >= num_cells) return false;
  *value_out = index < SML_ARRAY_LEN(stand_in.words) ? stand_in.words[index] : index + 1 == num_cells ? 1 : 0;
  return true;
}

static void answer_line(const char *line, char *answer, size_t answer_bytes) {
  char name[64];
  uint32_t first, end;
  size_t used = strlen(answer);
  if (strcmp(line, "ports") == 0) snprintf(answer + used, answer_bytes - used, " %u", NUM_PORTS);
  if (strcmp(line, "born") == 0) snprintf(answer + used, answer_bytes - used, " %u", born);
  if (sscanf(line, "read %63s %u %u", name, &first, &end) != 3) return;
  if (end - first > MAX_VALUES) {
    snprintf(answer, answer_bytes, "error too many values");
    return;
  }
  for (uint32_t i = first; i < end; i++) {
    uint64_t value;
    if (!look_up(name, i, &value)) {
      snprintf(answer, answer_bytes, "error no register %s %u", name, i);
      return;
    }
    used += (size_t)snprintf(answer + used, answer_bytes - used, " %llu", (unsigned long long)value);
  }
}

/* False: the connection ends. */
static bool answer(int fd, char *request) {
  static char long_answer[5000];
  static char text[131072];
  char *rest;
  snprintf(text, sizeof text, "ok");
  pthread_mutex_lock(&stand_in.lock);
  const uint32_t fault = stand_in_take_call();
  stand_in_note("%s.\n", request);
  for (char *line = strtok_r(request, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
    if (strncmp(text, "ok", 2) == 0) answer_line(line, text, sizeof text);
  pthread_mutex_unlock(&stand_in.lock);
  if (fault == DIES) stand_in_die();
  if (fault == CLOSES || fault == DIES) return false;
  if (fault == SILENT) return true;
  if (fault == CUTS) return (void)!send(fd, text, 1, MSG_NOSIGNAL), false;
  if (fault == NO_TEXT) return send(fd, "ok\0\n", 4, MSG_NOSIGNAL) == 4;
  if (fault == LONG) {
    memset(long_answer, 'x', sizeof long_answer);
    memcpy(long_answer, "error ", 6);
    long_answer[sizeof long_answer - 1] = '\n';
    return send(fd, long_answer, sizeof long_answer, MSG_NOSIGNAL) > 0;
  }
  if (fault == REFUSES) snprintf(text, sizeof text, "error not today");
  if (fault == NONSENSE) snprintf(text, sizeof text, "why");
  if (fault == TOO_FEW) snprintf(text, sizeof text, "ok 1 2 x");
  if (fault == LENGTHY) snprintf(text, sizeof text, "error %0*u", (int)STAND_IN_LENGTHY_BYTES, 0);
  strcat(text, "\n");
  stand_in_answer(fd, text, strlen(text));
  return true;
}

static void serve(int fd) {
  static char request[65536];
  size_t num_bytes = 0;
  ssize_t n;
  while ((n = recv(fd, request + num_bytes, sizeof request - 1 - num_bytes, 0)) > 0) {
    num_bytes += (size_t)n;
    request[num_bytes] = 0;
    if (num_bytes < 2 || strcmp(request + num_bytes - 2, ".\n") != 0) continue; /* one is asked at a time */
    request[num_bytes - 2] = 0;
    num_bytes = 0;
    if (!answer(fd, request)) return;
  }
}

static void create(uint32_t packet_lanes, uint32_t pool_slots, uint16_t cpu_port) {
  const struct sml_switch_options options = {
      .control = path, .packet_lanes = packet_lanes, .pool_slots = pool_slots, .cpu_port = cpu_port};
  sml_switch_destroy(stand_in.plane);
  stand_in.plane = sml_dpdk_create(&options);
  assert_non_null(stand_in.plane);
}

static void start(void) {
  struct sockaddr_un addr = {.sun_family = AF_UNIX};
  born = 11;
  num_cells = 2 * POOL_SLOTS;
  snprintf(path, sizeof path, "/tmp/switchml-dpdk-test-%d", (int)getpid());
  snprintf(addr.sun_path, sizeof addr.sun_path, "%s", path);
  stand_in_start((const struct sockaddr *)&addr, sizeof addr, serve);
  create(PACKET_LANES, POOL_SLOTS, 1);
}

static void stop(void) {
  sml_switch_destroy(stand_in.plane);
  stand_in.plane = NULL;
  stand_in_stop();
  unlink(path);
}

/* ---- what is asked ---- */

static void what_a_start_asks(void **state) {
  (void)state;
  start();
  assert_true(stand_in_open_switch());
  stand_in_expect("reset\nports\nborn\n.\n"
                  "cpu 1 168230913 48879 1515936861\n"
                  "add _source match 0xa070001 0x1/0xffff priority 1 action _is_own_0\n"
                  "add _source match 0xa070001 0x0/0x0 priority 2 action _is_forged_0\n"
                  "add _aggregator match 0xa070001 0xbeef action _is_ours_0 cpu_port 0x1 voucher 0x5a5b5c5d\n"
                  "add copies match 0x1 action copy_1 port 0x4\n"
                  "add ports match 0x0 action send port 0x0\n"
                  "add ports match 0x1 action send port 0x1\n"
                  "add ports match 0x2 action send port 0x2\n.\n"
                  "read aggregate_sum_value_1_30 0 1\n.\n"
                  "read aggregate_sum_value_2 0 1\n.\n"
                  "read aggregate_state_cell_map 255 256\n.\n");
  stop();
}

#define MEMBER(verb, rank, turn, ip, port, ingress) \
  verb " _member match 0x3 0x7 " rank " " turn " " ip " " port " 0xbeef " ingress

static void what_a_job_asks(void **state) {
  (void)state;
  start();
  pthread_mutex_lock(&stand_in.lock);
  stand_in.is_slow = true;
  pthread_mutex_unlock(&stand_in.lock);
  assert_true(stand_in_open_switch());
  stand_in_forget();
  assert_true(stand_in_start_job(7, 2, NUM_SLOTS));
  stand_in_expect("write aggregate_state_cell_phase 128 160 0\nwrite aggregate_state_cell_map 128 160 0\n"
                  "write aggregate_grant_cursor 3 4 25\n"
                  "nobody 3\nadd copies match 0x13 action copy_1 port 0x3\n"
                  "add _window match 0x3 0x40/0xfff0 0xbeef priority 1 action _is_inside_0\n"
                  "member 3 1 2199023255568 168231012 40000\n"
                  "member 3 2 2199023255569 168231013 40001\n"
                  "add _l2 match 0x20000000010 action _forward_0 port 0x1\n"
                  "add _l2 match 0x20000000011 action _forward_0 port 0x2\n"
                  MEMBER("add", "0x0", "0x0", "0xa070064", "0x9c40", "0x1") " action _is_member_0 me 0x80000001 full "
                  "0x80000003 last 0x80000002 cursor 0x3 group 0x13 port 0x1 is_checked 0x1\n"
                  MEMBER("add", "0x0", "0x1", "0xa070064", "0x9c40", "0x1") " action _is_member_0 me 0xc0000001 full "
                  "0xc0000003 last 0xc0000002 cursor 0x3 group 0x13 port 0x1 is_checked 0x1\n"
                  MEMBER("add", "0x1", "0x0", "0xa070065", "0x9c41", "0x2") " action _is_member_0 me 0x80000002 full "
                  "0x80000003 last 0x80000001 cursor 0x3 group 0x13 port 0x2 is_checked 0x1\n"
                  MEMBER("add", "0x1", "0x1", "0xa070065", "0x9c41", "0x2") " action _is_member_0 me 0xc0000002 full "
                  "0xc0000003 last 0xc0000001 cursor 0x3 group 0x13 port 0x2 is_checked 0x1\n.\n");
  stand_in.plane->depart(stand_in.plane->user, JOB, 1);
  stand_in_expect(MEMBER("remove", "0x1", "0x0", "0xa070065", "0x9c41", "0x2") "\n"
                  MEMBER("remove", "0x1", "0x1", "0xa070065", "0x9c41", "0x2") "\n.\n");
  stand_in.plane->depart(stand_in.plane->user, JOB, 1); /* again */
  stand_in_expect("");
  stand_in.plane->close_job(stand_in.plane->user, JOB);
  stand_in_expect(MEMBER("remove", "0x0", "0x0", "0xa070064", "0x9c40", "0x1") "\n"
                  MEMBER("remove", "0x0", "0x1", "0xa070064", "0x9c40", "0x1") "\n"
                  "remove _window match 0x3 0x40/0xfff0 0xbeef priority 1\n"
                  "remove _l2 match 0x20000000010\nremove _l2 match 0x20000000011\n"
                  "remove copies match 0x13\nnobody 3\n.\n");
  stand_in.plane->close_job(stand_in.plane->user, JOB); /* that it no longer has */
  stand_in.plane->depart(stand_in.plane->user, JOB, 0);
  stand_in_expect("");
  assert_true(stand_in_start_job(8, SML_SWITCH_MAX_CONTRIBUTORS, NUM_SLOTS)); /* the longest request */
  stop();
}

/* Its entries first go, then come with the new port; so do its frames, and the copies of results with everybody's. */
static void what_a_move_asks(void **state) {
  (void)state;
  start();
  assert_true(stand_in_open_switch());
  assert_true(stand_in_start_job(7, 2, NUM_SLOTS));
  stand_in_forget();
  assert_true(stand_in_move(JOB, 2, 1, 0, 1)); /* where it is */
  stand_in_expect("");
  assert_true(stand_in_move(JOB, 2, 1, 0, 0));
  stand_in_expect(MEMBER("remove", "0x0", "0x0", "0xa070064", "0x9c40", "0x1") "\n"
                  MEMBER("remove", "0x0", "0x1", "0xa070064", "0x9c40", "0x1") "\n"
                  "remove _l2 match 0x20000000010\n"
                  "remove copies match 0x13\nnobody 3\nnobody 3\nadd copies match 0x13 action copy_1 port 0x3\n"
                  "member 3 0 2199023255568 168231012 40000\n"
                  "member 3 2 2199023255569 168231013 40001\n"
                  "add _l2 match 0x20000000010 action _forward_0 port 0x0\n"
                  MEMBER("add", "0x0", "0x0", "0xa070064", "0x9c40", "0x0") " action _is_member_0 me 0x80000001 full "
                  "0x80000003 last 0x80000002 cursor 0x3 group 0x13 port 0x0 is_checked 0x1\n"
                  MEMBER("add", "0x0", "0x1", "0xa070064", "0x9c40", "0x0") " action _is_member_0 me 0xc0000001 full "
                  "0xc0000003 last 0xc0000002 cursor 0x3 group 0x13 port 0x0 is_checked 0x1\n.\n");
  stand_in.plane->depart(stand_in.plane->user, JOB, 0);
  stand_in_forget();
  assert_true(stand_in_move(JOB, 2, 1, 0, 2)); /* one that has departed does not come back */
  pthread_mutex_lock(&stand_in.lock);
  assert_null(strstr(stand_in.log, "_member"));
  pthread_mutex_unlock(&stand_in.lock);
  stand_in_close_job();
  stand_in_forget();
  assert_true(stand_in_move(JOB, 2, 1, 0, 1)); /* of a job that has ended */
  stand_in_expect("");
  assert_true(stand_in_start_job_of(JOB, 8, SML_SWITCH_MAX_CONTRIBUTORS, NUM_SLOTS, 1));
  assert_true(stand_in_move(JOB, SML_SWITCH_MAX_CONTRIBUTORS, 31, 0, 30)); /* all of them: the longest request */
  stand_in_plan_fault(CLOSES, 1);
  assert_false(stand_in_move(JOB, SML_SWITCH_MAX_CONTRIBUTORS, 1, 0, 1));
  assert_non_null(strstr(stand_in.error, "connection"));
  stop();
}

static void who_blocks_is_found(void **state) {
  (void)state;
  start();
  stand_in_check_who_blocks();
  stop();
}

/* A job may have more cells than are told at a time. */
static void who_blocks_a_large_job_is_found(void **state) {
  (void)state;
  start();
  create(PACKET_LANES, SLOT_BASE + MANY_SLOTS, 1);
  pthread_mutex_lock(&stand_in.lock);
  num_cells = 2 * (SLOT_BASE + MANY_SLOTS);
  pthread_mutex_unlock(&stand_in.lock);
  assert_true(stand_in_open_switch());
  assert_true(stand_in_start_job(7, 2, MANY_SLOTS));
  assert_int_equal(stand_in_find_blocked(0), UINT32_MAX);
  assert_int_equal(stand_in_find_blocked(1), MANY_SLOTS - 1);
  stop();
}

static void a_pipeline_that_dies_is_noticed(void **state) {
  (void)state;
  char expected[128];
  start();
  snprintf(expected, sizeof expected, "the pipeline at %s: it has closed the connection", path);
  stand_in_check_death_is_noticed(expected);
  stop();
}

static void counters_are_read(void **state) {
  (void)state;
  uint64_t counts[SML_NUM_AT_SWITCH] = {0};
  start();
  stand_in_read_counters(counts);
  for (uint32_t i = 0; i < SML_NUM_AT_SWITCH; i++)
    if (i < SML_NUM_DROPS || i >= SML_AT_SWITCH_FIRST) assert_int_equal(counts[i], i);
  for (uint32_t i = 0; i < SML_NUM_AT_SWITCH; i++) counts[i] = 1000;
  stand_in_plan_fault(SILENT, 1);
  const uint64_t start_ns = sml_clock_ns();
  assert_false(stand_in.plane->read_counters(stand_in.plane->user, counts));
  assert_true(sml_clock_ns() - start_ns >= 90 * SML_NS_PER_MS);
  assert_int_equal(counts[1], 1000);
  stand_in_read_counters(counts);
  assert_int_equal(counts[SML_AT_SWITCH_FORWARDED], SML_AT_SWITCH_FORWARDED);
  stop();
}

/* ---- what goes wrong ---- */

static void expect_failure(const char *what) {
  char expected[512];
  snprintf(expected, sizeof expected, "the pipeline at %s: %s", path, what);
  assert_string_equal(stand_in.error, expected);
}

static void errors_say_what_happened(void **state) {
  (void)state;
  static const struct {
    enum fault fault;
    const char *error;
  } cases[] = {{CLOSES, "it has closed the connection"},
               {CUTS, "it has closed the connection"},
               {REFUSES, "not today"},
               {NONSENSE, "an answer that is none"},
               {NO_TEXT, "an answer that is no text"},
               {TOO_FEW, "an answer that is none"},
               {DIES, "it has closed the connection"}};
  for (size_t i = 0; i < SML_ARRAY_LEN(cases); i++) {
    start();
    stand_in_plan_fault(cases[i].fault, 1);
    assert_false(stand_in_open_switch());
    expect_failure(cases[i].error);
    if (cases[i].fault != DIES) assert_true(stand_in_open_switch()); /* nothing of it remains */
    else assert_false(stand_in_open_switch());
    if (cases[i].fault == DIES) expect_failure("cannot connect: Connection refused");
    stop();
  }
  start();
  stand_in_plan_fault(LONG, 1);
  assert_false(stand_in_open_switch());
  assert_true(strlen(stand_in.error) < 256);
  assert_true(stand_in_open_switch());
  stop();
  create(PACKET_LANES, POOL_SLOTS, 1);
  assert_false(stand_in_open_switch());
  expect_failure("cannot connect: No such file or directory");
  sml_switch_destroy(stand_in.plane);
  stand_in.plane = NULL;
}

static void a_silent_pipeline_is_given_up(void **state) {
  (void)state;
  start();
  assert_true(stand_in_open_switch());
  stand_in_plan_fault(SILENT, 1);
  const uint64_t start_ns = sml_clock_ns();
  assert_false(stand_in_start_job(7, 2, NUM_SLOTS));
  assert_true(sml_clock_ns() - start_ns >= SML_NS_PER_S);
  expect_failure("no answer in time");
  stand_in.plane->close_job(stand_in.plane->user, JOB);
  assert_true(stand_in_start_job(8, 2, NUM_SLOTS));
  stop();
}

static void a_dripping_pipeline_is_given_up(void **state) {
  (void)state;
  start();
  stand_in_check_dripping_is_given_up(LENGTHY);
  stop();
}

static void one_that_was_started_again_is_told(void **state) {
  (void)state;
  start();
  assert_true(stand_in_open_switch());
  stand_in_plan_fault(CLOSES, 1);
  assert_false(stand_in_start_job(7, 2, NUM_SLOTS));
  assert_true(stand_in_start_job(8, 2, NUM_SLOTS)); /* the same one */
  pthread_mutex_lock(&stand_in.lock);
  born++;
  pthread_mutex_unlock(&stand_in.lock);
  stand_in_plan_fault(CLOSES, 1);
  stand_in.plane->close_job(stand_in.plane->user, JOB);
  for (uint32_t i = 0; i < 2; i++) {
    assert_false(stand_in_start_job(9, 2, NUM_SLOTS));
    expect_failure("it was started again, and is empty: start switchmld again, too");
  }
  stop();
}

static void a_program_that_does_not_fit(void **state) {
  (void)state;
  static const struct {
    uint32_t packet_lanes, pool_slots;
    uint16_t cpu_port;
    const char *error;
  } cases[] = {{32, POOL_SLOTS, 1, "its program has not 32 lanes a packet, as --switch-format says"},
               {128, POOL_SLOTS, 1, "its program has not 128 lanes a packet, as --switch-format says"},
               {PACKET_LANES, 2 * POOL_SLOTS, 1, "its program has less than 256 slots: set --slots"},
               {PACKET_LANES, POOL_SLOTS, NUM_PORTS, "it has 3 ports, and none numbered 3"}};
  for (size_t i = 0; i < SML_ARRAY_LEN(cases); i++) {
    start();
    create(cases[i].packet_lanes, cases[i].pool_slots, cases[i].cpu_port);
    assert_false(stand_in_open_switch());
    expect_failure(cases[i].error);
    stop();
  }
}

static void ranks_must_be_able_to_reach_us(void **state) {
  (void)state;
  start();
  stand_in_check_ranks_must_reach_us();
  stop();
}

/* Each request of a job's life goes wrong once, in each way; the next job is none the worse for it. */
static void any_request_may_fail(void **state) {
  (void)state;
  for (enum fault fault = CLOSES; fault <= DIES; fault++) {
    for (uint32_t request = 1; fault != SILENT && request <= 4; request++) {
      start();
      assert_true(stand_in_open_switch());
      stand_in_plan_fault(fault, request);
      assert_int_equal(stand_in_start_job(7, 2, NUM_SLOTS), request > 1);
      (void)stand_in_find_blocked(0);
      stand_in.plane->depart(stand_in.plane->user, JOB, 1);
      stand_in.plane->close_job(stand_in.plane->user, JOB);
      assert_int_equal(stand_in_start_job(8, 2, NUM_SLOTS), fault != DIES);
      stop();
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_a_start_asks),          cmocka_unit_test(what_a_job_asks),
      cmocka_unit_test(what_a_move_asks),
      cmocka_unit_test(who_blocks_is_found),        cmocka_unit_test(counters_are_read),
      cmocka_unit_test(who_blocks_a_large_job_is_found),
      cmocka_unit_test(a_pipeline_that_dies_is_noticed),
      cmocka_unit_test(errors_say_what_happened),   cmocka_unit_test(a_silent_pipeline_is_given_up),
      cmocka_unit_test(a_dripping_pipeline_is_given_up),
      cmocka_unit_test(one_that_was_started_again_is_told),
      cmocka_unit_test(a_program_that_does_not_fit), cmocka_unit_test(ranks_must_be_able_to_reach_us),
      cmocka_unit_test(any_request_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
