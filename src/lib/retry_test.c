/* SPDX-License-Identifier: Apache-2.0
 * Retry: aggregators are killed, stopped and started again while ranks sum, and every result has the bits of
 * an undisturbed run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/operation.h"
#include "lib/test_keeper.h"
#include "lib/test_world.h"

#define MAX_ELEMS 140000u /* of an exact sum: three pieces */
#define MAX_IN_FLIGHT 6u
#define NUM_OPERATIONS (SML_IS_SLOW_BUILD ? 42u : 60u) /* whole batches */

static const struct sml_key_entry test_key = {.name = "tests", .key = {1, 2}};
static char key_path[] = "/tmp/sml-retry-test-XXXXXX";

static struct keeper keeper;

/* A world whose aggregator the keeper has. */
static void begin_world(struct world *w, uint32_t num_ranks, uint32_t num_lanes, bool is_keyed,
                        uint64_t retry_ms) {
  world_init(w, num_ranks);
  w->aggd_options.num_lanes = w->context_options.num_threads = num_lanes;
  w->job_options.max_datagram_bytes = 1472;
  w->job_options.retry_ns = retry_ms * SML_NS_PER_MS;
  w->job_options.key_file = is_keyed ? key_path : "";
  if (is_keyed) {
    w->aggd_options.keys = &test_key;
    w->aggd_options.num_keys = 1;
  }
}

static void start_world(struct world *w) {
  keeper_start(&keeper, &w->aggd_options);
  memcpy(w->address, keeper.address, sizeof w->address);
  world_join(w);
}

static void stop_world(struct world *w) {
  world_stop(w);
  keeper_stop(&keeper);
}

static uint64_t count_rejoins(struct rank *r) {
  sml_stats stats = SML_STATS_INIT;
  return sml_job_stats(r->job, &stats) == SML_OK ? stats.rejoins : 0;
}

/* ---- a run of operations of all kinds ---- */

static uint64_t run_seed;
static uint64_t expected[NUM_OPERATIONS];
static bool is_reference; /* this run makes expected[] */
static _Atomic uint32_t num_done;

struct flight {
  sml_operation *op;
  uint32_t number, count;
  bool is_in_place;
  uint32_t in[MAX_ELEMS], out[MAX_ELEMS]; /* either type */
};

static uint64_t hash(const uint32_t *words, uint32_t count) {
  uint64_t h = count;
  for (uint32_t i = 0; i < count; i++) h = sml_mix64(h ^ words[i]) + 0x9e3779b97f4a7c15u;
  return h;
}

/* Any finite float of 20 binades, any integer: sums are not exact, so that blocks matter. */
static void fill(struct flight *f, uint32_t rank, bool is_float) {
  struct sml_prng values = {run_seed * 1000003 + f->number * 64 + rank};
  for (uint32_t i = 0; i < f->count; i++) {
    const uint32_t bits = (uint32_t)sml_prng_next(&values);
    f->in[i] = is_float ? (bits & 0x807fffffu) | (117 + bits % 20) << 23 : bits;
  }
}

static void submit(struct rank *r, struct flight *f, struct sml_prng *dice) {
  static const uint32_t counts[] = {1, 359, 361, 3000, 20000, MAX_ELEMS};
  const uint64_t kind = sml_prng_next(dice);
  const bool is_float = (kind & 1) != 0, is_avg = is_float && (kind & 4) != 0;
  f->is_in_place = (kind & 2) != 0;
  f->count = counts[sml_prng_below(dice, SML_ARRAY_LEN(counts))];
  const size_t starts[] = {0, 100, 356};
  const bool has_tensors = (kind & 24) == 24 && f->count > starts[2];
  const sml_operation_options o = {
      .struct_bytes = sizeof o, .starts = starts, .num_starts = has_tensors ? 3 : 0, .exact = (kind & 32) != 0};
  fill(f, r->rank, is_float);
  CHECK(r,
        sml_allreduce(r->job, f->in, f->is_in_place ? f->in : f->out, f->count,
                      is_float ? SML_FLOAT32 : SML_INT32, is_avg ? SML_AVG : SML_SUM, &o, &f->op) == SML_OK,
        "%s", sml_error_detail());
  /* Below: what was in the caller's buffer does not matter. A batch is copied at its end, an exact sum by pieces. */
  if (!f->is_in_place && is_reference && o.exact == 0) memset(f->in, 0xee, 4);
}

static void finish(struct rank *r, struct flight *f) {
  const sml_status status = sml_operation_wait(f->op, 60 * SML_NS_PER_S);
  CHECK(r, status == SML_OK, "operation %u: %d %s", f->number, status, sml_error_detail());
  sml_operation_release(f->op);
  f->op = NULL;
  const uint64_t h = hash(f->is_in_place ? f->in : f->out, f->count);
  if (is_reference && r->rank == 0) expected[f->number] = h;
  if (!is_reference) CHECK(r, h == expected[f->number], "operation %u of %u elements", f->number, f->count);
  if (r->rank == 0) num_done = f->number + 1;
}

/* The reference has none: batches change no bits. */
static void submit_in_batches(struct rank *r, struct flight *f, struct sml_prng *dice) {
  if (!is_reference && f->number % 3 == 0) CHECK(r, sml_batch_begin(r->job) == SML_OK);
  submit(r, f, dice);
  if (!is_reference && f->number % 3 == 2) CHECK(r, sml_batch_end(r->job) == SML_OK, "%s", sml_error_detail());
}

static void run_operations(struct rank *r) {
  struct flight *flights = calloc(MAX_IN_FLIGHT, sizeof *flights);
  struct sml_prng dice = {run_seed}, pauses = {run_seed + r->rank};
  for (uint32_t i = 0; i < NUM_OPERATIONS + MAX_IN_FLIGHT && r->failure[0] == 0; i++) {
    struct flight *f = &flights[i % MAX_IN_FLIGHT];
    if (f->op != NULL) finish(r, f);
    if (i >= NUM_OPERATIONS || r->failure[0] != 0) continue;
    f->number = i;
    submit_in_batches(r, f, &dice);
    if (sml_prng_chance(&pauses, 0.2)) usleep((useconds_t)sml_prng_below(&pauses, 8000));
  }
  for (uint32_t i = 0; i < MAX_IN_FLIGHT; i++) sml_operation_release(flights[i].op);
  if (r->failure[0] == 0) free(flights); /* else lent for good */
}

static void make_reference(struct world *w) {
  is_reference = true;
  start_world(w);
  world_run(w, run_operations);
  stop_world(w);
  is_reference = false;
}

/* ---- the disturber ---- */

static _Atomic bool should_rest;
static uint64_t num_rejoins; /* of rank 0 in all runs */

/* Kills the aggregator at random moments: often while the ranks still join the one before. */
static void *disturb(void *argument) {
  struct sml_prng dice = {run_seed * 77};
  const uint32_t num_deaths = *(uint32_t *)argument;
  for (uint32_t i = 0; i < num_deaths && !should_rest; i++) {
    const uint32_t at = (uint32_t)sml_prng_below(&dice, NUM_OPERATIONS * (i + 1) / num_deaths);
    for (uint32_t k = 0; k < 3000 && num_done < at && !should_rest; k++) usleep(1000);
    usleep((useconds_t)sml_prng_below(&dice, 20000));
    keeper_signal(&keeper, sml_prng_chance(&dice, 0.5) ? SIGKILL : SIGTERM);
    usleep((useconds_t)sml_prng_below(&dice, 250000));
    keeper_start_again(&keeper);
    if (!sml_prng_chance(&dice, 0.4)) continue;
    usleep((useconds_t)sml_prng_below(&dice, 300000)); /* it is being joined */
    keeper_signal(&keeper, SIGKILL);
    keeper_start_again(&keeper);
  }
  return NULL;
}

static void check_disturbed(uint32_t num_ranks, uint32_t num_lanes, bool is_keyed,
                            uint32_t first_phase_to_end) {
  struct world w;
  uint32_t num_deaths = 3;
  begin_world(&w, num_ranks, num_lanes, is_keyed, 30000);
  make_reference(&w);
  begin_world(&w, num_ranks, num_lanes, is_keyed, 30000);
  if (first_phase_to_end != 0) w.aggd_options.first_phase = (0u - first_phase_to_end) & ~1u;
  num_done = 0;
  should_rest = false;
  start_world(&w);
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, disturb, &num_deaths), 0);
  world_run(&w, run_operations);
  should_rest = true;
  pthread_join(thread, NULL);
  num_rejoins += count_rejoins(&w.ranks[0]);
  stop_world(&w);
}

static void results_have_the_bits_of_an_undisturbed_run(void **state) {
  (void)state;
  const uint64_t num_seeds = SML_IS_SLOW_BUILD ? 3 : 6;
  for (run_seed = 1; run_seed <= num_seeds; run_seed++)
    check_disturbed(2 + (uint32_t)run_seed % 3, 1 + (uint32_t)run_seed % 2, run_seed % 2 == 0, 0);
  assert_true(num_rejoins >= num_seeds);
}

static void epochs_end_while_aggregators_do(void **state) {
  (void)state;
  for (run_seed = 11; run_seed <= 12; run_seed++) check_disturbed(3, 1, run_seed % 2 == 0, 700);
}

/* ---- one moment in particular ---- */

static pthread_barrier_t barrier;

/* Rank 1 receives one packet in five, so that rank 0, with room for two operations only, is far ahead of what
 * rank 1 has completed; then it must do many again, for rank 1. */
#define NUM_SMALL 300u
static _Atomic bool is_ahead;

static bool is_behind(struct rank *r, uint64_t operation) {
  pthread_mutex_lock(&r->job->lock);
  const bool is_so = sml_member_job_first_unfinished(&r->job->state) < operation;
  pthread_mutex_unlock(&r->job->lock);
  return is_so;
}

static void be_ahead(struct rank *r) {
  int32_t x[NUM_SMALL][4];
  sml_operation *ops[NUM_SMALL];
  const uint32_t room = r->rank == 0 ? 2 : NUM_SMALL;
  bool has_killed = false;
  for (uint32_t i = 0; i < NUM_SMALL; i++) {
    if (i >= room) {
      CHECK(r, sml_operation_wait(ops[i - room], 30 * SML_NS_PER_S) == SML_OK, "%u: %s", i - room,
            sml_error_detail());
      sml_operation_release(ops[i - room]);
    }
    for (uint32_t k = 0; k < 4; k++) x[i][k] = (int32_t)(i + k + r->rank);
    CHECK(r, sml_allreduce(r->job, x[i], x[i], 4, SML_INT32, SML_SUM, NULL, &ops[i]) == SML_OK, "%s",
          sml_error_detail());
    if (r->rank == 0 && !has_killed && i >= 100) {
      is_ahead = is_behind(&r->world->ranks[1], i - 50);
      if (!is_ahead && i < 250) continue; /* a busy machine runs rank 0 too late */
      keeper_signal(&keeper, SIGKILL);
      keeper_start_again(&keeper);
      has_killed = true;
    }
  }
  for (uint32_t i = NUM_SMALL - room; i < NUM_SMALL; i++) {
    CHECK(r, sml_operation_wait(ops[i], 60 * SML_NS_PER_S) == SML_OK, "%s", sml_error_detail());
    sml_operation_release(ops[i]);
  }
  for (uint32_t i = 0; i < NUM_SMALL; i++)
    for (uint32_t k = 0; k < 4; k++) CHECK(r, x[i][k] == (int32_t)(2 * (i + k) + 1), "operation %u", i);
  if (r->failure[0] == 0) CHECK(r, count_rejoins(r) == 1);
}

static void join_with_faults(struct rank *r) {
  sml_job_options o = r->world->job_options;
  o.aggregator = r->world->address;
  o.rank = r->rank;
  o.world_size = r->world->num_ranks;
  CHECK(r, sml_job_create(r->context, &o, &r->job) == SML_OK, "%s", sml_error_detail());
}

static void a_rank_ahead_contributes_again(void **state) {
  (void)state;
  struct world w;
  begin_world(&w, 2, 1, false, 30000);
  keeper_start(&keeper, &w.aggd_options);
  memcpy(w.address, keeper.address, sizeof w.address);
  w.context_options.num_operations = 2;
  w.job_options.operation_timeout_ns = UINT64_MAX; /* "never" is never for what is said again, too */
  assert_int_equal(sml_context_create(&w.context_options, &w.ranks[0].context), SML_OK);
  w.context_options.num_operations = 1024;
  setenv("SWITCHML_FAULTS", "loss=0.8,seed=3", 1);
  assert_int_equal(sml_context_create(&w.context_options, &w.ranks[1].context), SML_OK);
  unsetenv("SWITCHML_FAULTS");
  world_run(&w, join_with_faults);
  world_run(&w, be_ahead);
  assert_true(is_ahead);
  stop_world(&w);
}

/* A rank that has all its results and leaves stays as long as another may need it. Whether rank 1, which loses most of
 * its packets, has the result before rank 0 looks is chance on a busy machine: they sum until it has not. */
static void leave_early(struct rank *r) {
  int32_t x = 1;
  sml_operation *op = NULL;
  for (uint32_t i = 0; i < 50 && !is_ahead; i++) {
    if (op != NULL) sml_operation_release(op);
    x = 1;
    pthread_barrier_wait(&barrier);
    CHECK(r, sml_allreduce(r->job, &x, &x, 1, SML_INT32, SML_SUM, NULL, &op) == SML_OK);
    CHECK(r, r->rank == 1 || sml_operation_wait(op, 20 * SML_NS_PER_S) == SML_OK, "%s", sml_error_detail());
    if (r->rank == 0) {
      is_ahead = is_behind(&r->world->ranks[1], i + 1);
      if (is_ahead) keeper_signal(&keeper, SIGKILL);
    }
    pthread_barrier_wait(&barrier);
    if (r->rank == 1 && !is_ahead)
      CHECK(r, sml_operation_wait(op, 20 * SML_NS_PER_S) == SML_OK, "%s", sml_error_detail());
  }
  if (r->rank == 0) {
    sml_operation_release(op);
    sml_job_destroy(r->job);
    r->job = NULL;
    return;
  }
  usleep(300 * 1000);
  keeper_start_again(&keeper);
  CHECK(r, sml_operation_wait(op, 20 * SML_NS_PER_S) == SML_OK && x == 2, "%s", sml_error_detail());
  sml_operation_release(op);
}

static void a_rank_that_leaves_waits_for_the_others(void **state) {
  (void)state;
  struct world w;
  begin_world(&w, 2, 1, false, 30000);
  keeper_start(&keeper, &w.aggd_options);
  memcpy(w.address, keeper.address, sizeof w.address);
  assert_int_equal(sml_context_create(&w.context_options, &w.ranks[0].context), SML_OK);
  setenv("SWITCHML_FAULTS", "loss=0.9,seed=5", 1);
  assert_int_equal(sml_context_create(&w.context_options, &w.ranks[1].context), SML_OK);
  unsetenv("SWITCHML_FAULTS");
  pthread_barrier_init(&barrier, NULL, 2);
  is_ahead = false;
  world_run(&w, join_with_faults);
  world_run(&w, leave_early);
  assert_true(is_ahead);
  pthread_barrier_destroy(&barrier);
  stop_world(&w);
}

/* ---- memory ---- */

static void keep_little(struct rank *r) {
  static float data[2][8][50000];
  sml_stats stats = SML_STATS_INIT;
  for (uint32_t i = 0; i < 400; i++) {
    const size_t count = 1 + (size_t)sml_mix64(i) % 50000;
    CHECK(r, allreduce(r, data[r->rank][i % 8], data[r->rank][i % 8], count, SML_FLOAT32, SML_SUM) == SML_OK,
          "%s", sml_error_detail());
    pthread_mutex_lock(&r->job->lock);
    const struct sml_retained_inputs inputs = r->job->retained;
    pthread_mutex_unlock(&r->job->lock);
    CHECK(r, inputs.used_bytes + inputs.free_bytes <= inputs.most_used_bytes);
    CHECK(r, inputs.input_bytes <= inputs.used_bytes);
  }
  for (uint32_t i = 0; i < 100; i++) {
    CHECK(r, sml_job_stats(r->job, &stats) == SML_OK);
    if (stats.retained_bytes == 0) break;
    usleep(50 * 1000);
  }
  CHECK(r, stats.retained_bytes == 0 && stats.rejoins == 0);
}

static void inputs_are_kept_until_all_have_told(void **state) {
  (void)state;
  struct world w;
  begin_world(&w, 2, 1, false, 20000);
  w.job_options.lease_ns = 800 * SML_NS_PER_MS;
  start_world(&w);
  world_run(&w, keep_little);
  stop_world(&w);
}

static void alone_nothing_is_kept(void **state) {
  (void)state;
  sml_context *context;
  sml_job *job;
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  sml_stats stats = SML_STATS_INIT;
  float x = 1;
  sml_operation *op;
  o.world_size = 1;
  o.retry_ns = SML_NS_PER_S;
  assert_int_equal(sml_context_create(NULL, &context), SML_OK);
  assert_int_equal(sml_job_create(context, &o, &job), SML_OK);
  assert_int_equal(sml_allreduce(job, &x, &x, 1, SML_FLOAT32, SML_SUM, NULL, &op), SML_OK);
  sml_operation_release(op);
  assert_int_equal(sml_job_stats(job, &stats), SML_OK);
  assert_int_equal(stats.retained_bytes, 0);
  sml_context_destroy(context);
}

static int make_key_file(void **state) {
  (void)state;
  static const char text[] = "tests 01000000000000000200000000000000\n";
  const int fd = mkstemp(key_path);
  return fd < 0 || write(fd, text, sizeof text - 1) != sizeof text - 1 || close(fd) != 0;
}

static int remove_key_file(void **state) {
  (void)state;
  return unlink(key_path);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(results_have_the_bits_of_an_undisturbed_run),
      cmocka_unit_test(epochs_end_while_aggregators_do),
      cmocka_unit_test(a_rank_ahead_contributes_again),
      cmocka_unit_test(a_rank_that_leaves_waits_for_the_others),
      cmocka_unit_test(inputs_are_kept_until_all_have_told),
      cmocka_unit_test(alone_nothing_is_kept),
  };
  return cmocka_run_group_tests(tests, make_key_file, remove_key_file);
}
