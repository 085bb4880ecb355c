/* SPDX-License-Identifier: Apache-2.0
 * How long silence is borne: what is a sign of life, what is done when there is none, and where the lease is set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <signal.h>
#include <unistd.h>

#include "core/wire.h"
#include "lib/test_gate.h"
#include "lib/test_keeper.h"
#include "lib/test_world.h"
#include "meet/job_settings.h"

#define LEASE_NS (3 * SML_NS_PER_S)
#define COUNT 2000u

static struct gate gate;
static struct keeper keeper;
static _Atomic uint64_t end_ns;

static void start_behind_gate(struct world *w) {
  world_init(w, 2);
  w->job_options.lease_ns = LEASE_NS;
  w->job_options.no_shared_memory = 1;
  world_start_aggd(w);
  gate_start(&gate, w->address);
  memcpy(w->address, gate.address, sizeof w->address);
  world_join(w);
}

static void sum_once(struct rank *r) {
  static int32_t data[2][COUNT];
  for (uint32_t i = 0; i < COUNT; i++) data[r->rank][i] = (int32_t)r->rank + 1;
  CHECK(r, allreduce(r, data[r->rank], data[r->rank], COUNT, SML_INT32, SML_SUM) == SML_OK, "%s", sml_error_detail());
  for (uint32_t i = 0; i < COUNT; i++) CHECK(r, data[r->rank][i] == 3);
}

/* Rank 1 follows: the same number of operations on both. */
static void sum_for_three_leases(struct rank *r) {
  static _Atomic uint32_t num_wanted;
  if (r->rank == 0) num_wanted = 0;
  for (uint32_t k = 0; r->failure[0] == 0; k++) {
    if (r->rank == 0) num_wanted = sml_clock_ns() < end_ns ? k + 1 : UINT32_MAX;
    while (num_wanted <= k) usleep(1000);
    if (num_wanted == UINT32_MAX) return;
    sum_once(r);
    usleep(20 * 1000); /* data in plenty, and a processor for others */
  }
}

/* TCP is stuck, as after a link was down for long, and datagrams flow again: nobody is lost on either side. */
static void data_is_a_sign_of_life(void **state) {
  (void)state;
  struct world w;
  start_behind_gate(&w);
  world_run(&w, sum_once);
  gate_freeze(&gate, true);
  end_ns = sml_clock_ns() + 3 * LEASE_NS;
  world_run(&w, sum_for_three_leases);
  gate_freeze(&gate, false);
  world_run(&w, sum_once);
  world_stop(&w);
  gate_stop(&gate);
}

static void be_lost(struct rank *r) {
  sml_status status = SML_OK;
  sml_error error = SML_ERROR_INIT;
  const uint64_t deadline_ns = sml_clock_ns() + 10 * LEASE_NS;
  while (status == SML_OK && sml_clock_ns() < deadline_ns) {
    usleep(10 * 1000);
    status = sml_job_error(r->job, &error);
  }
  CHECK(r, status == SML_ERR_AGGREGATOR_LOST || status == SML_ERR_RANK_LOST, "%d %s", status, error.detail);
  CHECK(r, strstr(error.detail, "silent") != NULL, "%s", error.detail);
}

/* Without data the lease holds. */
static void silence_without_data_is_loss(void **state) {
  (void)state;
  struct world w;
  start_behind_gate(&w);
  world_run(&w, sum_once);
  const uint64_t begin_ns = sml_clock_ns();
  gate_freeze(&gate, true);
  world_run(&w, be_lost);
  assert_true(sml_clock_ns() - begin_ns >= LEASE_NS - SML_NS_PER_S); /* it was heard less than a second before */
  world_stop(&w);
  gate_stop(&gate);
}

/* ---- a silent aggregator, in a job with retry ---- */

#define STOP_MS 9000u
#define TIMEOUT_NS (6 * SML_NS_PER_S) /* less, and long after 2 s of silence were noticed */

static pthread_barrier_t barrier;

static void wait_for_the_stopped(struct rank *r) {
  sum_once(r);
  if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) keeper_signal(&keeper, SIGSTOP);
  pthread_barrier_wait(&barrier);
  sml_operation *op;
  int32_t x = (int32_t)r->rank + 1;
  CHECK(r, sml_allreduce(r->job, &x, &x, 1, SML_INT32, SML_SUM, NULL, &op) == SML_OK);
  if (r->rank == 0) {
    usleep(STOP_MS * 1000);
    keeper_signal(&keeper, SIGCONT);
  }
  const sml_status status = sml_operation_wait(op, 60 * SML_NS_PER_S);
  sml_operation_release(op);
  CHECK(r, status == SML_OK && x == 3, "%d %s", status, sml_error_detail());
  CHECK(r, stats_of(r).rejoins == 0);
}

/* join NULL: as usual. */
static void run_with_retry(void (*join)(struct rank *), void (*body)(struct rank *)) {
  struct world w;
  world_init(&w, 2);
  w.job_options.retry_ns = 20 * SML_NS_PER_S;
  w.job_options.operation_timeout_ns = TIMEOUT_NS;
  keeper_start(&keeper, &w.aggd_options);
  memcpy(w.address, keeper.address, sizeof w.address);
  pthread_barrier_init(&barrier, NULL, 2);
  if (join != NULL) world_run(&w, join);
  else world_join(&w);
  world_run(&w, body);
  world_stop(&w);
  keeper_stop(&keeper);
  pthread_barrier_destroy(&barrier);
}

/* It is not lost within the lease, so nobody joins anew; but it is not there either, so no deadline passes. */
static void deadlines_stand_still_while_it_is_silent(void **state) {
  (void)state;
  run_with_retry(NULL, wait_for_the_stopped);
}

static _Atomic bool is_deaf[2];

static bool drop_results(void *user, const uint8_t *data, uint32_t num_bytes) {
  return *(_Atomic bool *)user && num_bytes > 0 && (data[0] & 0xf) == SML_PACKET_RESULT;
}

static void join_deaf(struct rank *r) {
  sml_job_options o = r->world->job_options;
  o.aggregator = r->world->address;
  o.rank = r->rank;
  o.world_size = 2;
  CHECK(r, sml_context_create(NULL, &r->context) == SML_OK, "%s", sml_error_detail());
  r->context->settings.faults = (struct sml_fault_options){.drop = drop_results, .drop_user = &is_deaf[r->rank]};
  r->context->settings.has_faults = true;
  CHECK(r, sml_job_create(r->context, &o, &r->job) == SML_OK, "%s", sml_error_detail());
}

/* Rank 0 has the sum and adds again for rank 1, as long as it hears nothing itself. */
static void add_again_for_the_deaf(struct rank *r) {
  sml_operation *op;
  int32_t x = (int32_t)r->rank + 1;
  CHECK(r, sml_allreduce(r->job, &x, &x, 1, SML_INT32, SML_SUM, NULL, &op) == SML_OK);
  CHECK(r, r->rank == 1 || sml_operation_wait(op, 60 * SML_NS_PER_S) == SML_OK, "%s", sml_error_detail());
  if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
    is_deaf[0] = true;
    keeper_signal(&keeper, SIGKILL);
    keeper_start_again(&keeper);
  }
  while (stats_of(r).rejoins == 0 && sml_job_error(r->job, NULL) == SML_OK) usleep(1000);
  if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
    keeper_signal(&keeper, SIGSTOP);
    usleep(STOP_MS * 1000);
    keeper_signal(&keeper, SIGCONT);
    is_deaf[0] = is_deaf[1] = false;
  }
  const sml_status status = sml_operation_wait(op, 60 * SML_NS_PER_S);
  sml_operation_release(op);
  CHECK(r, status == SML_OK && x == 3, "%d %s", status, sml_error_detail());
  pthread_barrier_wait(&barrier);
  CHECK(r, sml_job_error(r->job, NULL) == SML_OK, "%s", sml_error_detail());
  CHECK(r, stats_of(r).rejoins == 1);
}

/* Nor does the one of what is done again. */
static void deadlines_of_what_is_done_again_stand_still(void **state) {
  (void)state;
  is_deaf[0] = false;
  is_deaf[1] = true;
  run_with_retry(join_deaf, add_again_for_the_deaf);
}

/* Without retry it runs: the error says since when nothing was heard. */
static void time_out_before_it_is_lost(struct rank *r) {
  sum_once(r);
  if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) keeper_signal(&keeper, SIGSTOP);
  pthread_barrier_wait(&barrier);
  sml_operation *op;
  sml_error error = SML_ERROR_INIT;
  int32_t x = 1;
  CHECK(r, sml_allreduce(r->job, &x, &x, 1, SML_INT32, SML_SUM, NULL, &op) == SML_OK);
  const sml_status status = sml_operation_wait(op, 60 * SML_NS_PER_S);
  (void)sml_operation_error(op, &error);
  sml_operation_release(op);
  CHECK(r, status == SML_ERR_TIMEOUT, "%d %s", status, error.detail);
  CHECK(r, strstr(error.detail, "no answer from the aggregator on lane 0 slot") != NULL, "%s", error.detail);
  CHECK(r, strstr(error.detail, "; the aggregator: it has been silent for ") != NULL, "%s", error.detail);
}

static void an_error_says_since_when_it_is_silent(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  w.job_options.operation_timeout_ns = TIMEOUT_NS;
  w.job_options.no_shared_memory = 1;
  keeper_start(&keeper, &w.aggd_options);
  memcpy(w.address, keeper.address, sizeof w.address);
  pthread_barrier_init(&barrier, NULL, 2);
  world_join(&w);
  world_run(&w, time_out_before_it_is_lost);
  keeper_signal(&keeper, SIGCONT);
  world_stop(&w);
  keeper_stop(&keeper);
  pthread_barrier_destroy(&barrier);
}

/* ---- where it is set ---- */

static void the_environment_sets_it(void **state) {
  (void)state;
  static const struct {
    const char *text;
    uint64_t lease_ns, expected_ns; /* 0: refused */
  } rows[] = {{NULL, 0, 60 * SML_NS_PER_S},
              {"", 0, 60 * SML_NS_PER_S},
              {"2.5", 0, 2500 * SML_NS_PER_MS},
              {"300", 0, 300 * SML_NS_PER_S},
              {"300", SML_NS_PER_S, SML_NS_PER_S}, /* the option wins */
              {"0.01", 0, 0},
              {"3601", 0, 0},
              {"2s", 0, 0},
              {"-1", 0, 0},
              {"nan", 0, 0},
              {NULL, 1, 0}};
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    struct sml_job_settings s;
    sml_job_options o = SML_JOB_OPTIONS_INIT;
    o.world_size = 2;
    o.lease_ns = rows[i].lease_ns;
    o.aggregator = "127.0.0.1:1";
    if (rows[i].text != NULL) setenv("SWITCHML_LEASE", rows[i].text, 1);
    else unsetenv("SWITCHML_LEASE");
    assert_int_equal(sml_job_settings_read(&o, &s), SML_OK);
    const sml_status status = sml_job_settings_check(&s);
    assert_int_equal(status, rows[i].expected_ns != 0 ? SML_OK : SML_ERR_INVALID_ARGUMENT);
    if (status == SML_OK) assert_int_equal(s.options.lease_ns, rows[i].expected_ns);
    else assert_non_null(strstr(sml_error_detail(), rows[i].text != NULL ? "SWITCHML_LEASE" : "lease_ns"));
  }
  unsetenv("SWITCHML_LEASE");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(deadlines_stand_still_while_it_is_silent), /* it forks: before there are threads */
      cmocka_unit_test(deadlines_of_what_is_done_again_stand_still),
      cmocka_unit_test(an_error_says_since_when_it_is_silent),
      cmocka_unit_test(data_is_a_sign_of_life),
      cmocka_unit_test(silence_without_data_is_loss),
      cmocka_unit_test(the_environment_sets_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
