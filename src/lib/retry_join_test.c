/* SPDX-License-Identifier: Apache-2.0
 * The aggregator is lost while ranks join it: at each step of the join, which is another one on each rank. With retry
 * the job starts at its successor; without, a rank that was let in says at once what happened. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "core/wire.h"
#include "lib/test_gate.h"
#include "lib/test_keeper.h"
#include "lib/test_world.h"

#define COUNT 3000u
#define NUM_SUMS 3u

static const struct sml_key_entry test_key = {.name = "tests", .key = {1, 2}};
static char key_path[] = "/tmp/sml-retry-join-test-XXXXXX";

static struct keeper keeper;
static struct gate gate;

/* The messages of a join that gets through, of a job without a key and with one. */
static uint32_t steps_before_welcome(bool is_keyed) {
  return is_keyed ? 3 : 1; /* JOIN (CHALLENGE AUTH) | WELCOME PROBED START */
}
static uint32_t num_steps(bool is_keyed) {
  return steps_before_welcome(is_keyed) + 3;
}

static void begin_world(struct world *w, bool is_keyed, uint64_t retry_ns) {
  world_init(w, 2);
  w->job_options.retry_ns = retry_ns;
  w->job_options.lease_ns = PATIENT_LEASE_NS;
  w->job_options.no_shared_memory = 1;
  w->job_options.key_file = is_keyed ? key_path : "";
  if (is_keyed) {
    w->aggd_options.keys = &test_key;
    w->aggd_options.num_keys = 1;
  }
  keeper_start(&keeper, &w->aggd_options);
  gate_start(&gate, keeper.address);
  memcpy(w->address, gate.address, sizeof w->address);
}

static void end_world(struct world *w) {
  world_stop(w);
  gate_stop(&gate);
  keeper_stop(&keeper);
}

static void create(struct rank *r) {
  sml_job_options o = r->world->job_options;
  o.aggregator = r->world->address;
  o.rank = r->rank;
  o.world_size = 2;
  CHECK(r, sml_context_create(NULL, &r->context) == SML_OK, "%s", sml_error_detail());
  r->status = sml_job_create(r->context, &o, &r->job);
}

static void sum(struct rank *r) {
  static int32_t data[2][COUNT];
  for (int32_t k = 1; k <= (int32_t)NUM_SUMS; k++) {
    for (uint32_t i = 0; i < COUNT; i++) data[r->rank][i] = k * ((int32_t)r->rank + 1);
    CHECK(r, allreduce(r, data[r->rank], data[r->rank], COUNT, SML_INT32, SML_SUM) == SML_OK, "%s", sml_error_detail());
    for (uint32_t i = 0; i < COUNT; i++) CHECK(r, data[r->rank][i] == 3 * k, "element %u", i);
  }
}

/* Whoever has got START calls an operation while the other may not have it. */
static void create_and_sum(struct rank *r) {
  create(r);
  if (r->failure[0] != 0) return;
  CHECK(r, r->status == SML_OK, "%s", sml_error_detail());
  sum(r);
}

/* On the thread of the test, which kills and starts aggregators beside the ranks' threads. */
struct killer {
  uint32_t steps[2];
  bool is_met, comes_back;
  int number;
  const char *successor; /* its address; NULL: the same one is started again */
};

static void *kill_at_step(void *argument) {
  struct killer *k = argument;
  k->is_met = gate_await(&gate, 2);
  keeper_signal(&keeper, k->number);
  gate_shut(&gate);
  if (!k->comes_back) return NULL;
  if (k->successor == NULL) keeper_start_again(&keeper);
  else gate_turn(&gate, k->successor);
  gate_open(&gate);
  return NULL;
}

static void run_with(struct world *w, struct killer *k, void (*body)(struct rank *)) {
  pthread_t thread;
  for (uint32_t rank = 0; rank < 2; rank++) gate_limit(&gate, rank, k->steps[rank]);
  assert_int_equal(pthread_create(&thread, NULL, kill_at_step, k), 0);
  world_run(w, body);
  pthread_join(thread, NULL);
  assert_true(k->is_met);
}

/* START goes to one when the other has probed. */
static bool can_be(uint32_t one, uint32_t other, bool is_keyed) {
  return one < num_steps(is_keyed) || other >= num_steps(is_keyed) - 1;
}

/* Ranks that are at one step, or one apart: all pairs are in ctl/member_retry_test.c. */
static void lose_it_at_each_step(bool is_keyed) {
  for (uint32_t one = 0; one <= num_steps(is_keyed); one++) {
    for (uint32_t other = one; other <= sml_min_u32(one + 1, num_steps(is_keyed)); other++) {
      if (!can_be(one, other, is_keyed) || !can_be(other, one, is_keyed)) continue;
      struct world w;
      struct killer k = {.steps = {one, other}, .comes_back = true, .number = SIGKILL};
      print_message("# rank 0 after %u messages, rank 1 after %u\n", one, other);
      begin_world(&w, is_keyed, 20 * SML_NS_PER_S);
      run_with(&w, &k, create_and_sum);
      end_world(&w);
    }
  }
}

static void the_job_starts_at_the_successor(void **state) {
  (void)state;
  lose_it_at_each_step(false);
}
static void the_job_starts_at_the_successor_with_a_key(void **state) {
  (void)state;
  lose_it_at_each_step(true);
}

/* Who was let in has been promised something; who was not goes on trying, as it would before an aggregator that is
 * started later than the ranks. */
static uint64_t began_ns;
static bool has_start; /* rank 0; it may not have its job yet when the aggregator is lost */
static void fail_at_once(struct rank *r) {
  create(r);
  if (r->failure[0] != 0) return;
  if (r->status == SML_OK) { /* it had START: the next operation says so */
    sml_error error;
    check_failed(r, SML_ERR_AGGREGATOR_LOST, &error);
    return;
  }
  CHECK(r, r->status == SML_ERR_AGGREGATOR_LOST, "%d %s", r->status, sml_error_detail());
  CHECK(r, strstr(sml_error_detail(), "closed the control connection") != NULL, "%s", sml_error_detail());
  const bool is_before = strstr(sml_error_detail(), "before the job had started") != NULL;
  CHECK(r, is_before || (has_start && r->rank == 0), "%s", sml_error_detail());
  CHECK(r, sml_clock_ns() - began_ns < r->world->job_options.join_timeout_ns / 2);
}

static void without_retry_it_is_an_error(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 2; i++) {
    const bool is_keyed = i == 1;
    for (uint32_t step = steps_before_welcome(is_keyed) + 1; step <= num_steps(is_keyed); step++) {
      struct world w;
      struct killer k = {.steps = {step, sml_min_u32(step, num_steps(is_keyed) - 1)}, .number = SIGKILL};
      begin_world(&w, is_keyed, 0);
      w.job_options.join_timeout_ns = 60 * SML_NS_PER_S;
      began_ns = sml_clock_ns();
      has_start = step == num_steps(is_keyed);
      run_with(&w, &k, fail_at_once);
      end_world(&w);
    }
  }
}

/* As operators see it: rank 0 waits for rank 1, and meanwhile the daemon is restarted, killed or with a goodbye. */
static void rank_0_waits_for_rank_1(void **state) {
  (void)state;
  static const int numbers[] = {SIGKILL, SIGTERM};
  for (size_t i = 0; i < SML_ARRAY_LEN(numbers); i++) {
    struct world w;
    struct killer k = {.steps = {3, 0}, .comes_back = true, .number = numbers[i]};
    begin_world(&w, false, 20 * SML_NS_PER_S);
    run_with(&w, &k, create_and_sum);
    end_world(&w);
  }
}

/* The first one's path is short, the successor's long. */
static bool pass_hellos_late(void *user, const uint8_t *data, uint32_t num_bytes) {
  (void)user;
  if (num_bytes > 0 && (data[0] & 0xf) == SML_PACKET_HELLO) usleep(10000);
  return false;
}

/* Inputs that are gathered on a long path alone. */
static void create_and_sum_floats(struct rank *r) {
  static float data[2][4000];
  create(r);
  if (r->failure[0] != 0) return;
  CHECK(r, r->status == SML_OK, "%s", sml_error_detail());
  for (uint32_t i = 0; i < SML_ARRAY_LEN(data[0]); i++) data[r->rank][i] = (float)r->rank + 1;
  CHECK(r, allreduce(r, data[r->rank], data[r->rank], SML_ARRAY_LEN(data[0]), SML_FLOAT32, SML_SUM) == SML_OK, "%s",
        sml_error_detail());
  for (uint32_t i = 0; i < SML_ARRAY_LEN(data[0]); i++) CHECK(r, data[r->rank][i] == 3, "element %u", i);
}

/* A rank that heard of the start decides by what that said how its operations go, and the other must go likewise. */
static void the_successor_has_another_path(void **state) {
  (void)state;
  struct keeper successor;
  struct world w;
  world_init(&w, 2);
  w.aggd_options.faults.drop = pass_hellos_late;
  keeper_start(&successor, &w.aggd_options);
  begin_world(&w, false, 20 * SML_NS_PER_S);
  struct killer k = {.steps = {4, 3}, .comes_back = true, .number = SIGKILL, .successor = successor.address};
  run_with(&w, &k, create_and_sum_floats);
  end_world(&w);
  keeper_stop(&successor);
}

/* In the aggregator's process, when ranks ask for the first size. */
static bool stop_once(void *user, const uint8_t *data, uint32_t num_bytes) {
  static atomic_bool was_stopped;
  (void)user;
  if (num_bytes == 0 || (data[0] & 0xf) != SML_PACKET_HELLO || atomic_exchange(&was_stopped, true)) return false;
  raise(SIGSTOP);
  return false;
}

static void *continue_late(void *argument) {
  (void)argument;
  usleep(6000000); /* all sizes together are tried for less */
  keeper_signal(&keeper, SIGCONT);
  return NULL;
}

/* That says nothing about the path: neither that it is closed, nor that it is narrow. */
static void the_aggregator_is_stopped_meanwhile(void **state) {
  (void)state;
  struct world w;
  pthread_t thread;
  world_init(&w, 2);
  w.job_options.no_shared_memory = 1;
  w.aggd_options.faults.drop = stop_once;
  keeper_start(&keeper, &w.aggd_options);
  memcpy(w.address, keeper.address, sizeof w.address);
  assert_int_equal(pthread_create(&thread, NULL, continue_late, NULL), 0);
  world_run(&w, create_and_sum);
  pthread_join(thread, NULL);
  for (uint32_t rank = 0; rank < 2; rank++) {
    sml_stats stats = SML_STATS_INIT;
    assert_int_equal(sml_job_stats(w.ranks[rank].job, &stats), SML_OK);
    assert_true(stats.chunk_bytes > 1400);
  }
  world_stop(&w);
  keeper_stop(&keeper);
}

static int write_key(void **state) {
  (void)state;
  static const char line[] = "tests 01000000000000000200000000000000\n";
  const int fd = mkstemp(key_path);
  const bool is_written = fd >= 0 && write(fd, line, sizeof line - 1) == sizeof line - 1;
  if (fd >= 0) close(fd);
  return is_written ? 0 : -1;
}

static int remove_key(void **state) {
  (void)state;
  return unlink(key_path);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rank_0_waits_for_rank_1),         cmocka_unit_test(the_successor_has_another_path),
      cmocka_unit_test(the_job_starts_at_the_successor), cmocka_unit_test(the_job_starts_at_the_successor_with_a_key),
      cmocka_unit_test(without_retry_it_is_an_error),    cmocka_unit_test(the_aggregator_is_stopped_meanwhile),
  };
  return cmocka_run_group_tests(tests, write_key, remove_key);
}
