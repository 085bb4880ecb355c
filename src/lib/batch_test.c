/* SPDX-License-Identifier: Apache-2.0
 * Batches: the bits of single operations, few packets, in every transport; and what goes wrong with them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "ctl/contributors.h"
#include "lib/test_world.h"
#include "meet/job_settings.h"

#define WAIT_NS (30 * SML_NS_PER_S)

/* ---- the transports ---- */

/* NULL: the network for all */
static void start(struct world *w, const char *hosts) {
  w->hosts = hosts;
  w->job_options.no_shared_memory = hosts == NULL;
  world_start(w);
}

static void run_in(const char *hosts, uint32_t num_ranks, void (*body)(struct rank *)) {
  struct world w;
  world_init(&w, num_ranks);
  start(&w, hosts);
  world_run(&w, body);
  world_stop(&w);
}

static void run_everywhere(void (*body)(struct rank *)) {
  run_in(NULL, 3, body);
  run_in("111", 3, body); /* shared memory */
  run_in("122", 3, body); /* hosts combine */
}

/* ---- the same bits ---- */

#define NUM_OPERATIONS 160u
#define MAX_COUNT 6000u
static bool is_batching;
static uint64_t hashes[MAX_RANKS];

struct call {
  sml_operation *op;
  uint8_t *memory, *out;
  size_t count;
};

/* A pure function of i, but for the input, which is the rank's. */
static void call(struct rank *r, struct call *c, uint32_t i, struct sml_prng *prng) {
  static const size_t limits[] = {1, 8, 128, 128, 300, 4096, MAX_COUNT};
  const uint64_t bits = sml_prng_next(prng);
  const bool is_float = bits >> 50 & 1;
  c->count = bits % 29 == 0 ? 0 : 1 + bits % limits[(bits >> 32) % SML_ARRAY_LEN(limits)];
  c->memory = malloc(8 * MAX_COUNT + 64);
  uint8_t *in = c->memory + (bits >> 40) % 13;
  c->out = bits >> 51 & 1 ? in : c->memory + 4 * MAX_COUNT + 32 + (bits >> 44) % 13;
  for (size_t e = 0; e < c->count; e++) {
    uint32_t value = (uint32_t)sml_mix64(bits + e * 8 + r->rank);
    if (is_float && value % 5003 != 0) value &= 0xbfffffffu; /* some NaN and Inf */
    memcpy(in + 4 * e, &value, 4);
  }
  const sml_operation_options o = {.struct_bytes = sizeof o, .key = i % 3};
  CHECK(r,
        sml_allreduce(r->job, in, c->out, c->count, is_float ? SML_FLOAT32 : SML_INT32,
                      (bits >> 52 & 1) == 0 ? SML_SUM : is_float ? SML_AVG : SML_MAX, i % 2 ? &o : NULL,
                      &c->op) == SML_OK,
        "%s", sml_error_detail());
}

static void finish(struct rank *r, struct call *c, uint64_t *h) {
  CHECK(r, sml_operation_wait(c->op, WAIT_NS) == SML_OK, "%s", sml_error_detail());
  sml_operation_release(c->op);
  for (size_t e = 0; e < c->count; e++) {
    uint32_t word;
    memcpy(&word, c->out + 4 * e, 4);
    *h = sml_mix64(*h + word) + e;
  }
  free(c->memory);
}

static void sum_all_kinds(struct rank *r) {
  struct call calls[NUM_OPERATIONS];
  struct sml_prng prng = {7};
  uint64_t h = 1;
  uint32_t first = 0;
  for (uint32_t i = 0; i < NUM_OPERATIONS;) {
    const uint32_t num = sml_min_u32(1 + (uint32_t)sml_prng_below(&prng, 30), NUM_OPERATIONS - i);
    const uint32_t depth = is_batching ? 1 + num % 2 : 0;
    for (uint32_t d = 0; d < depth; d++) CHECK(r, sml_batch_begin(r->job) == SML_OK);
    for (const uint32_t end = i + num; i < end; i++) call(r, &calls[i], i, &prng);
    for (uint32_t d = 0; d < depth; d++) CHECK(r, sml_batch_end(r->job) == SML_OK, "%s", sml_error_detail());
    if (num % 3 == 0) continue; /* the next batch behind this one, under way */
    for (; first < i; first++) finish(r, &calls[first], &h);
  }
  while (first < NUM_OPERATIONS) finish(r, &calls[first++], &h);
  const sml_stats s = stats_of(r);
  CHECK(r, s.operations_submitted == NUM_OPERATIONS && s.operations_completed == NUM_OPERATIONS);
  CHECK(r, r->job->state.next_number == NUM_OPERATIONS);
  hashes[r->rank] = h;
}

static uint64_t run_kinds(const char *where, uint32_t num_threads, uint32_t check, uint64_t retry_ns) {
  struct world w;
  world_init(&w, 3);
  w.context_options.num_threads = w.aggd_options.num_lanes = num_threads;
  w.job_options.check = check;
  w.job_options.retry_ns = retry_ns;
  w.job_options.max_datagram_bytes = check == 1 ? 1480 : 1476; /* equal chunks with a check word and without */
  start(&w, where);
  world_run(&w, sum_all_kinds);
  for (uint32_t r = 1; r < w.num_ranks; r++) assert_true(hashes[r] == hashes[0]);
  world_stop(&w);
  return hashes[0];
}

static void same_bits_as_without(void **state) {
  (void)state;
  is_batching = false;
  const uint64_t want = run_kinds(NULL, 1, 2, 0);
  is_batching = true;
  assert_true(run_kinds(NULL, 1, 2, 0) == want);
  assert_true(run_kinds(NULL, 2, 1, 0) == want);
  assert_true(run_kinds(NULL, 1, 1, 5 * SML_NS_PER_S) == want);
  assert_true(run_kinds("111", 1, 2, 0) == want);
  assert_true(run_kinds("122", 1, 2, 0) == want);
}

static void a_rank_alone_may(void **state) {
  (void)state;
  sml_context *context;
  sml_job *job;
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  o.world_size = 1;
  assert_int_equal(sml_context_create(NULL, &context), SML_OK);
  assert_int_equal(sml_job_create(context, &o, &job), SML_OK);
  sml_operation *op;
  float x = 3, y = 0;
  assert_int_equal(sml_batch_begin(job), SML_OK);
  assert_int_equal(sml_allreduce(job, &x, &y, 1, SML_FLOAT32, SML_SUM, NULL, &op), SML_OK);
  assert_int_equal(sml_batch_end(job), SML_OK);
  assert_true(sml_operation_test(op) == SML_OK && y == 3);
  sml_operation_release(op);
  assert_int_equal(sml_batch_end(job), SML_ERR_INVALID_ARGUMENT);
  assert_int_equal(sml_batch_begin(NULL), SML_ERR_INVALID_ARGUMENT);
  assert_int_equal(sml_batch_end(NULL), SML_ERR_INVALID_ARGUMENT);
  sml_job_destroy(job);
  sml_context_destroy(context);
}

/* ---- how many packets, and when ---- */

static void call_ints(struct rank *r, int32_t *x, uint32_t num, sml_operation **ops) {
  for (uint32_t i = 0; i < num; i++) {
    x[i] = (int32_t)(i + r->rank);
    CHECK(r, sml_allreduce(r->job, &x[i], &x[i], 1, SML_INT32, SML_SUM, NULL, &ops[i]) == SML_OK, "%s",
          sml_error_detail());
  }
}

static void finish_ints(struct rank *r, const int32_t *x, uint32_t num, sml_operation **ops) {
  const uint32_t n = r->world->num_ranks;
  for (uint32_t i = 0; i < num; i++) {
    CHECK(r, sml_operation_wait(ops[i], WAIT_NS) == SML_OK, "%s", sml_error_detail());
    sml_operation_release(ops[i]);
    CHECK(r, x[i] == (int32_t)(n * i + n * (n - 1) / 2), "%u: %d", i, x[i]);
  }
}

static void count_chunks(struct rank *r) {
  sml_operation *ops[100];
  int32_t x[100];
  const sml_stats before = stats_of(r);
  CHECK(r, sml_batch_begin(r->job) == SML_OK);
  call_ints(r, x, 100, ops);
  CHECK(r, stats_of(r).operations_submitted == before.operations_submitted);
  CHECK(r, sml_batch_end(r->job) == SML_OK);
  finish_ints(r, x, 100, ops);
  sml_stats after = stats_of(r);
  const struct sml_ctl_start *start = &r->job->state.start;
  const bool sends = sml_contributor_lead(start, sml_contributor_of(start, (uint32_t)r->rank)) == (uint32_t)r->rank;
  CHECK(r, after.chunks_completed - before.chunks_completed == sends, "%llu",
        (unsigned long long)(after.chunks_completed - before.chunks_completed));
  CHECK(r, after.operations_completed - before.operations_completed == 100);
  CHECK(r, after.tensor_bytes - before.tensor_bytes == 400);
  /* Without a batch each is a chunk. */
  call_ints(r, x, 100, ops);
  finish_ints(r, x, 100, ops);
  after = stats_of(r);
  CHECK(r, after.chunks_completed - before.chunks_completed == 101 * sends);
}

static void many_share_one_packet(void **state) {
  (void)state;
  run_everywhere(count_chunks);
}

/* What does not fit together is sent before the end, what is large at once. */
static void fill_up(struct rank *r) {
  static int32_t data[MAX_RANKS][6][4096];
  static float large[MAX_RANKS][200];
  sml_operation *ops[6], *op;
  CHECK(r, sml_batch_begin(r->job) == SML_OK);
  for (uint32_t i = 0; i < 6; i++) {
    int32_t *x = data[r->rank][i];
    x[4095] = 1;
    CHECK(r, stats_of(r).operations_submitted == (i > 4 ? 4 : 0));
    CHECK(r, sml_allreduce(r->job, x, x, 4096, SML_INT32, SML_SUM, NULL, &ops[i]) == SML_OK);
  }
  float *y = large[r->rank];
  CHECK(r, sml_allreduce(r->job, y, y, 200, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK);
  CHECK(r, stats_of(r).operations_submitted == 5);
  CHECK(r, sml_operation_wait(op, WAIT_NS) == SML_OK); /* others need not end theirs */
  sml_operation_release(op);
  CHECK(r, sml_operation_wait(ops[3], WAIT_NS) == SML_OK && data[r->rank][3][4095] == 3);
  CHECK(r, sml_operation_wait(ops[5], 0) == SML_IN_PROGRESS);
  CHECK(r, sml_operation_wait(ops[5], SML_NS_PER_MS) == SML_IN_PROGRESS);
  CHECK(r, sml_batch_end(r->job) == SML_OK);
  for (uint32_t i = 0; i < 6; i++) {
    CHECK(r, sml_operation_wait(ops[i], WAIT_NS) == SML_OK && data[r->rank][i][4095] == 3);
    sml_operation_release(ops[i]);
  }
}

static void what_does_not_fit_goes_before(void **state) {
  (void)state;
  run_everywhere(fill_up);
}

/* Without a batch: each operation is sent when it is called, while those before are under way, up to the number of
 * slots; it waits for no later call of anybody. */
static pthread_barrier_t sent;
static void send_at_once(struct rank *r) {
  enum { NUM = 16 };
  sml_operation *ops[NUM];
  int32_t x[NUM];
  if (r->rank != 0) pthread_barrier_wait(&sent);
  call_ints(r, x, NUM, ops);
  if (r->rank == 0) {
    for (uint32_t ms = 0; ms < 20000 && stats_of(r).tx_packets < NUM; ms++) usleep(1000);
    const uint64_t num_sent = stats_of(r).tx_packets;
    pthread_barrier_wait(&sent);
    CHECK(r, num_sent >= NUM, "%llu", (unsigned long long)num_sent);
  }
  finish_ints(r, x, NUM, ops);
}

static void calls_wait_for_no_later_ones(void **state) {
  (void)state;
  pthread_barrier_init(&sent, NULL, 3);
  struct world w;
  world_init(&w, 3);
  w.job_options.num_slots = 16;
  start(&w, NULL);
  world_run(&w, send_at_once);
  world_stop(&w);
  pthread_barrier_destroy(&sent);
}

/* Some wait for what is not submitted yet, some released it. */
static void *wait_in_thread(void *operation) {
  return sml_operation_wait(operation, WAIT_NS) == SML_OK ? operation : NULL;
}
static void wait_and_release_early(struct rank *r) {
  for (uint32_t i = 0; i < 10; i++) {
    sml_operation *ops[3];
    int32_t x[3];
    pthread_t thread;
    void *result;
    CHECK(r, sml_batch_begin(r->job) == SML_OK);
    call_ints(r, x, 3, ops);
    CHECK(r, pthread_create(&thread, NULL, wait_in_thread, ops[1]) == 0);
    sml_operation_release(ops[0]);
    if (i % 2) usleep(3000);
    CHECK(r, sml_batch_end(r->job) == SML_OK);
    pthread_join(thread, &result);
    CHECK(r, result == ops[1] && x[1] == 6);
    CHECK(r, sml_operation_wait(ops[2], WAIT_NS) == SML_OK && x[2] == 9 && x[0] == 3);
    sml_operation_release(ops[1]);
    sml_operation_release(ops[2]);
  }
  CHECK(r, stats_of(r).operations_completed == 30);
}

static void others_may_wait_already(void **state) {
  (void)state;
  run_everywhere(wait_and_release_early);
}

/* ---- what goes wrong ---- */

static uint32_t way_to_differ;

static void batch_differently(struct rank *r) {
  const bool differs = r->rank == 1;
  sml_operation *ops[4] = {NULL};
  const sml_operation_options key = {.struct_bytes = sizeof key, .key = 9};
  sml_status status = sml_batch_begin(r->job);
  for (uint32_t i = 0; status == SML_OK && i < 4; i++) {
    /* In one batch or two; the second longer or the third; a key; another type. All are of equal bytes. */
    if (way_to_differ == 0 && differs && i == 2) {
      CHECK(r, sml_batch_end(r->job) == SML_OK);
      CHECK(r, sml_batch_begin(r->job) == SML_OK);
    }
    const size_t count = way_to_differ == 1 ? (i == (differs ? 1 : 2) ? 2 : 1) : way_to_differ == 3 && differs ? 11 : 1;
    static float floats[MAX_RANKS][4][16];
    static int32_t ints[MAX_RANKS][4][16];
    const bool is_float = way_to_differ == 3 && !differs;
    void *data = is_float ? (void *)floats[r->rank][i] : (void *)ints[r->rank][i];
    status = sml_allreduce(r->job, data, data, count, is_float ? SML_FLOAT32 : SML_INT32, SML_SUM,
                           way_to_differ == 2 && differs && i == 3 ? &key : NULL, &ops[i]);
  }
  if (status == SML_OK) status = sml_batch_end(r->job);
  sml_error error = SML_ERROR_INIT;
  for (uint32_t i = 0; i < 4; i++) {
    if (ops[i] == NULL) continue;
    const sml_status ended = sml_operation_wait(ops[i], WAIT_NS);
    if (ended != SML_OK) status = ended;
    if (ended != SML_OK) sml_operation_error(ops[i], &error);
    sml_operation_release(ops[i]);
  }
  sml_job_error(r->job, &error);
  CHECK(r, status == SML_ERR_MISMATCH && is_named(&error, 1), "%u: %d %s", way_to_differ, status, error.detail);
}

static void ranks_that_batch_differently_are_told(void **state) {
  (void)state;
  for (way_to_differ = 0; way_to_differ < 4; way_to_differ++) run_everywhere(batch_differently);
}

/* The operation is named, not the batch; all of the batch end. */
static void let_one_be_late(struct rank *r) {
  if (r->rank == 0) return;
  const sml_operation_options hurry = {.struct_bytes = sizeof hurry, .timeout_ns = 300 * SML_NS_PER_MS};
  sml_operation *ops[3];
  int32_t x[3] = {0};
  CHECK(r, sml_batch_begin(r->job) == SML_OK);
  for (uint32_t i = 0; i < 3; i++)
    CHECK(r, sml_allreduce(r->job, &x[i], &x[i], 1, SML_INT32, SML_SUM, i == 1 ? &hurry : NULL, &ops[i]) == SML_OK);
  CHECK(r, sml_batch_end(r->job) == SML_OK);
  sml_status status[3];
  for (uint32_t i = 3; i-- > 0;) status[i] = sml_operation_wait(ops[i], WAIT_NS);
  sml_error error = SML_ERROR_INIT;
  sml_operation_error(ops[0], &error);
  for (uint32_t i = 0; i < 3; i++) sml_operation_release(ops[i]);
  for (uint32_t i = 0; i < 3; i++) CHECK(r, status[i] == SML_ERR_TIMEOUT, "%d %s", status[i], error.detail);
  CHECK(r, is_named(&error, 0), "%s", error.detail);
  CHECK(r, error.operation <= 1 && strstr(error.detail, "operation 1 (int32 SUM, 1 elements)") != NULL, "%s",
        error.detail);
}

static void deadlines_are_of_operations(void **state) {
  (void)state;
  run_everywhere(let_one_be_late);
}

static void forget_to_end(struct rank *r) {
  const sml_operation_options hurry = {.struct_bytes = sizeof hurry, .timeout_ns = 200 * SML_NS_PER_MS};
  sml_operation *op;
  float x = 0;
  CHECK(r, sml_batch_begin(r->job) == SML_OK);
  const sml_status status = sml_allreduce(r->job, &x, &x, 1, SML_FLOAT32, SML_SUM, r->rank == 1 ? &hurry : NULL, &op);
  if (status != SML_OK) return; /* rank 1 was fast */
  if (r->rank != 1) sml_batch_end(r->job);
  CHECK(r, sml_operation_wait(op, WAIT_NS) == SML_ERR_TIMEOUT);
  sml_error error = SML_ERROR_INIT;
  sml_operation_error(op, &error);
  sml_operation_release(op);
  CHECK(r, strstr(error.detail, "sml_batch_end") != NULL, "%s", error.detail);
  if (r->rank == 1) CHECK(r, sml_batch_end(r->job) == SML_ERR_TIMEOUT);
}

static void batches_without_end_time_out(void **state) {
  (void)state;
  run_everywhere(forget_to_end);
}

/* What is noted ends with the job, and with the process's part in it. */
static pthread_barrier_t noted;
static void abort_in_batch(struct rank *r) {
  sml_operation *ops[2], *other;
  int32_t x[2], y = 0;
  CHECK(r, sml_batch_begin(r->job) == SML_OK);
  call_ints(r, x, 2, ops);
  pthread_barrier_wait(&noted);
  sml_operation_release(ops[1]); /* nobody's any more */
  if (r->rank == 2) CHECK(r, sml_job_abort(r->job, "because") == SML_OK);
  CHECK(r, sml_operation_wait(ops[0], WAIT_NS) == SML_ERR_ABORTED);
  CHECK(r, sml_allreduce(r->job, &y, &y, 1, SML_INT32, SML_SUM, NULL, &other) == SML_ERR_ABORTED && other == NULL);
  CHECK(r, sml_batch_end(r->job) == SML_ERR_ABORTED);
  sml_operation_release(ops[0]);
}

static void leave_in_batch(struct rank *r) {
  sml_operation *op;
  int32_t x = 1;
  CHECK(r, sml_batch_begin(r->job) == SML_OK);
  CHECK(r, sml_allreduce(r->job, &x, &x, 1, SML_INT32, SML_SUM, NULL, &op) == SML_OK);
  sml_operation_release(op);
} /* and the job is destroyed */

static void what_is_noted_ends_with_the_job(void **state) {
  (void)state;
  pthread_barrier_init(&noted, NULL, 3);
  run_everywhere(abort_in_batch);
  pthread_barrier_destroy(&noted);
  run_everywhere(leave_in_batch);
}

int main(void) {
  setenv("SWITCHML_SHARED_MEMORY", "1", 1);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(same_bits_as_without),
      cmocka_unit_test(a_rank_alone_may),
      cmocka_unit_test(many_share_one_packet),
      cmocka_unit_test(what_does_not_fit_goes_before),
      cmocka_unit_test(calls_wait_for_no_later_ones),
      cmocka_unit_test(others_may_wait_already),
      cmocka_unit_test(ranks_that_batch_differently_are_told),
      cmocka_unit_test(deadlines_are_of_operations),
      cmocka_unit_test(batches_without_end_time_out),
      cmocka_unit_test(what_is_noted_ends_with_the_job),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
