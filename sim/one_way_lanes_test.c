/* SPDX-License-Identifier: Apache-2.0
 * How long collectives of ranks that embed the aggregation take when they go one way: 8 ranks, 8 lanes, links of
 * 100 Mbit/s and 1 Gbit/s with short queues. In virtual time, so the figures are the same on every machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "sim/kernel.h"
#include "switchml/switchml.h"

#define NUM_RANKS 8u
#define NUM_CALLS 12u
#define NUM_ELEMS (9u << 16) /* of all parts: 2.25 MiB, a layer of a small transformer */
#define PART_ELEMS (NUM_ELEMS / NUM_RANKS)
#define MAX_GATHERS 12u
#define MAX_RECORD_BYTES 512u
#define FIRST_IPV4 0x0a000001u
#define FRAMING 1.07 /* of datagrams of 1,472 bytes: headers and fences */

struct rank {
  uint32_t rank, num_gathers;
  uint64_t begin_ns, end_ns; /* of all calls */
  uint64_t num_repeats, num_updates;
  const char *problem;
};

struct setting {
  const char *name;
  bool gathers, scatters;
  uint64_t bits_per_s, queue_bytes;
  double loss;
  double at_most;      /* times the bound of the links */
  double most_repeats; /* of the updates */
};

static struct rank ranks[NUM_RANKS];
static const struct setting *setting;
static uint32_t num_joined;
static struct {
  uint64_t present;
  uint8_t records[NUM_RANKS][MAX_RECORD_BYTES];
} gathers[MAX_GATHERS];

static int gather(void *user, const void *in, void *out, size_t num_bytes) {
  struct rank *r = user;
  SML_ASSERT(r->num_gathers < MAX_GATHERS && num_bytes <= MAX_RECORD_BYTES);
  const uint32_t number = r->num_gathers++;
  memcpy(gathers[number].records[r->rank], in, num_bytes);
  gathers[number].present |= UINT64_C(1) << r->rank;
  while (gathers[number].present != (UINT64_C(1) << NUM_RANKS) - 1) sim_sleep_ns(SML_NS_PER_MS);
  for (uint32_t rank = 0; rank < NUM_RANKS; rank++)
    memcpy((uint8_t *)out + rank * num_bytes, gathers[number].records[rank], num_bytes);
  return 0;
}

/* Whole numbers, whose sums are exact. */
static float value_of(uint32_t rank, uint32_t i, uint32_t call) {
  return (float)((7 * i + 13 * rank + call) % 1000);
}

static float sum_of(uint32_t i, uint32_t call) {
  float sum = 0;
  for (uint32_t rank = 0; rank < NUM_RANKS; rank++) sum += value_of(rank, i, call);
  return sum;
}

static void wait_for(struct rank *r, sml_operation *operation) {
  sml_status status;
  while ((status = sml_operation_wait(operation, SML_NS_PER_S)) == SML_IN_PROGRESS) continue;
  if (status != SML_OK) r->problem = "an operation failed";
  sml_operation_release(operation);
}

static void check(struct rank *r, const float *parts, const float *sums, uint32_t call) {
  for (uint32_t i = 0; i < NUM_ELEMS && setting->gathers; i++)
    if (parts[i] != value_of(i / PART_ELEMS, i, call)) r->problem = "a copy is wrong";
  for (uint32_t i = 0; i < PART_ELEMS && setting->scatters; i++)
    if (sums[i] != sum_of(r->rank * PART_ELEMS + i, call)) r->problem = "a sum is wrong";
}

static void call_once(struct rank *r, sml_job *job, float *in, float *parts, float *sums, uint32_t call) {
  sml_operation *operations[2] = {NULL};
  for (uint32_t i = 0; i < NUM_ELEMS; i++) in[i] = value_of(r->rank, i, call);
  if (setting->gathers && sml_all_gather(job, in + r->rank * PART_ELEMS, parts, PART_ELEMS * sizeof(float), NULL, NULL,
                                         &operations[0]) != SML_OK)
    r->problem = "an all-gather was refused";
  if (setting->scatters &&
      sml_reduce_scatter(job, in, sums, PART_ELEMS, NULL, SML_FLOAT32, SML_SUM, NULL, &operations[1]) != SML_OK)
    r->problem = "a reduce-scatter was refused";
  for (uint32_t i = 0; i < 2; i++)
    if (operations[i] != NULL) wait_for(r, operations[i]);
  if (r->problem == NULL) check(r, parts, sums, call);
}

static int run_rank(void *argument) {
  struct rank *r = argument;
  sml_context *context = NULL;
  sml_job *job = NULL;
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  o.rank = r->rank;
  o.world_size = NUM_RANKS;
  o.allgather = gather;
  o.allgather_user = r;
  o.max_datagram_bytes = 1472;
  if (sml_context_create(NULL, &context) != SML_OK || sml_job_create(context, &o, &job) != SML_OK) {
    r->problem = "a rank does not join";
    r->end_ns = sim_now_ns();
    return 1;
  }
  float *in = calloc(NUM_ELEMS, sizeof(float)), *parts = calloc(NUM_ELEMS, sizeof(float)),
        *sums = calloc(PART_ELEMS, sizeof(float));
  SML_ASSERT(in != NULL && parts != NULL && sums != NULL);
  for (num_joined++; num_joined < NUM_RANKS;) sim_sleep_ns(SML_NS_PER_MS);
  sim_sleep_ns(10 * SML_NS_PER_MS);
  r->begin_ns = sim_now_ns();
  for (uint32_t call = 0; call < NUM_CALLS && r->problem == NULL; call++) call_once(r, job, in, parts, sums, call);
  r->end_ns = sim_now_ns();
  sml_stats stats = SML_STATS_INIT;
  (void)sml_job_stats(job, &stats);
  r->num_repeats = stats.retransmissions;
  r->num_updates = stats.tx_packets - stats.retransmissions - stats.probes;
  sim_sleep_ns(SML_NS_PER_S); /* others ask its aggregator */
  sml_job_destroy(job);
  sml_context_destroy(context);
  free(in);
  free(parts);
  free(sums);
  return 0;
}

static bool are_all_done(void *user) {
  (void)user;
  for (uint32_t r = 0; r < NUM_RANKS; r++)
    if (ranks[r].end_ns == 0) return false;
  return true;
}

static void run(const struct setting *s) {
  static const char *const environment[] = {"SWITCHML_SHARED_MEMORY=0", NULL};
  setting = s;
  num_joined = 0;
  memset(gathers, 0, sizeof gathers);
  sim_begin(&(struct sim_options){.seed = 1});
  const struct sim_link link = {
      .bits_per_s = s->bits_per_s, .delay_ns = 10000, .queue_bytes = s->queue_bytes, .faults.loss = s->loss};
  for (uint32_t r = 0; r < NUM_RANKS; r++) {
    char name[32];
    snprintf(name, sizeof name, "rank-%u", r);
    ranks[r] = (struct rank){.rank = r};
    const struct sim_host_options host = {.name = name, .ipv4 = FIRST_IPV4 + r, .up = link, .down = link};
    sim_spawn(sim_host_add(&host), name, run_rank, &ranks[r], environment);
  }
  const bool is_done = sim_run_until(600 * SML_NS_PER_S, are_all_done, NULL) == SIM_REACHED_GOAL;
  sim_end();
  assert_true(is_done);
  uint64_t time_ns = 0, num_repeats = 0, num_updates = 0;
  for (uint32_t r = 0; r < NUM_RANKS; r++) {
    if (ranks[r].problem != NULL) fail_msg("%s: rank %u: %s", s->name, r, ranks[r].problem);
    time_ns = sml_max_u64(time_ns, ranks[r].end_ns - ranks[r].begin_ns);
    num_repeats += ranks[r].num_repeats;
    num_updates += ranks[r].num_updates;
  }
  const double num_bits = 8.0 * FRAMING * NUM_CALLS * NUM_ELEMS * sizeof(float) * (NUM_RANKS - 1) / NUM_RANKS;
  const double bound_ns = num_bits * (s->gathers + s->scatters) / (double)s->bits_per_s * 1e9;
  const double ratio = (double)time_ns / bound_ns, repeats = (double)num_repeats / (double)num_updates;
  printf("# %s: %.2f of the bound, %.4f repeats an update\n", s->name, ratio, repeats);
  if (ratio > s->at_most) fail_msg("%s: %.2f of the bound, not %.2f", s->name, ratio, s->at_most);
  if (repeats > s->most_repeats) fail_msg("%s: %.4f repeats, not %.4f", s->name, repeats, s->most_repeats);
}

/* A queue that holds a tenth of what all lanes' windows would fill. */
static void test_windows_fit_short_queues(void **state) {
  (void)state;
  run(&(struct setting){"all-gather, 100 Mbit/s", true, false, 100000000, 300000, 0, 1.2, 0.02});
  run(&(struct setting){"reduce-scatter, 100 Mbit/s", false, true, 100000000, 300000, 0, 1.5, 0.02});
  run(&(struct setting){"both, 100 Mbit/s", true, true, 100000000, 300000, 0, 1.35, 0.02});
  run(&(struct setting){"both, 1 Gbit/s", true, true, 1000000000, 1000000, 0, 1.35, 0.02});
}

static void test_losses_are_made_good(void **state) {
  (void)state;
  run(&(struct setting){"all-gather, 1 Gbit/s, 0.1 % lost", true, false, 1000000000, 1000000, 0.001, 1.8, 0.02});
  run(&(struct setting){"reduce-scatter, 1 Gbit/s, 0.1 % lost", false, true, 1000000000, 1000000, 0.001, 1.9, 0.02});
  run(&(struct setting){"reduce-scatter, 1 Gbit/s, 1 % lost", false, true, 1000000000, 1000000, 0.01, 3.0, 0.06});
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_windows_fit_short_queues),
                                     cmocka_unit_test(test_losses_are_made_good)};
  return cmocka_run_group_tests_name("one_way_lanes", tests, NULL, NULL);
}
