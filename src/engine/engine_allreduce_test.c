/* SPDX-License-Identifier: Apache-2.0
 * Random all-reduces through the shipped engines: world size, lanes, slots, chunk size, faults, order and
 * data are drawn from a seed; each result is compared bit by bit.
 *   engine_allreduce_test [--runs N] [--seed S]
 * Run i uses seed S + i, so a failing run is repeated alone by the command that the failure prints. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/test_world.h"

#define MAX_CALLS 8u
#define LIMIT_NS (600 * SML_NS_PER_S)

static uint64_t num_runs = SML_IS_SLOW_BUILD ? 35 : 70, first_seed = 1, num_all_reduces;
static const char *program = "engine_allreduce_test";

static uint32_t pick(struct sml_prng *prng, const uint32_t *choices, size_t num_choices) {
  return choices[sml_prng_below(prng, num_choices)];
}
#define PICK(prng, ...) pick(prng, (const uint32_t[]){__VA_ARGS__}, SML_ARRAY_LEN(((const uint32_t[]){__VA_ARGS__})))

static double unit(struct sml_prng *prng) {
  return (double)(sml_prng_next(prng) >> 11) * 0x1p-53;
}

static uint64_t log_uniform(struct sml_prng *prng, uint64_t limit) {
  const uint64_t octave = sml_prng_below(prng, 64 - (uint64_t)__builtin_clzll(limit));
  return sml_min_u64(limit, (UINT64_C(1) << octave) + sml_prng_below(prng, UINT64_C(1) << octave));
}

/* Hosts of any sizes, their ranks in any order; all ranks on one as well. */
static void draw_contributors(struct world_options *o, uint64_t seed) {
  struct sml_prng prng = {sml_mix64(seed ^ 0x686f737473)};
  const double others = unit(&prng) * 1.2;
  for (uint32_t r = 0; r < o->world_size; r++) {
    const bool is_new = r == 0 || !sml_prng_chance(&prng, others);
    const uint64_t other = r == 0 ? 0 : sml_prng_below(&prng, o->num_contributors);
    o->contributors[r] = (uint16_t)(is_new ? o->num_contributors++ : other);
  }
}

/* Few ranks and short packets; nothing but the check word, if there is one, would show what was corrupted. */
static void put_in_switch_format(struct world_options *o) {
  o->is_switch_format = true;
  o->chunk_bytes = sml_min_u32(o->chunk_bytes, 1024);
  o->world_size = sml_min_u32(o->world_size, SML_SWITCH_MAX_CONTRIBUTORS);
  o->faults.corrupt = 0;
}

static struct world_options draw_world(struct sml_prng *prng, uint64_t seed) {
  struct world_options o = {.world_size = 2 + (uint32_t)sml_prng_below(prng, 7),
                            .num_lanes = sml_prng_below(prng, 3) == 0 ? 3 : 1,
                            .num_slots = PICK(prng, 1, 2, 4, 16, 64, 256),
                            .chunk_bytes = PICK(prng, 4, 64, 256, 1024, 1408, 1440, 8928),
                            .num_operations = PICK(prng, 1, 2, 4, 8),
                            .seed = sml_prng_next(prng)};
  o.is_unchecked = seed % 4 == 1;
  o.is_unkeyed = seed % 8 == 1 || seed % 8 == 2;
  if (seed % 16 == 0) o.world_size = 65 + (uint32_t)sml_prng_below(prng, 8); /* a second word of ranks */
  const bool is_for_switch = seed % 7 == 5;
  if (is_for_switch) put_in_switch_format(&o);
  if (seed % 3 == 2) draw_contributors(&o, seed); /* of the ranks that a switch leaves */
  o.is_narrow = o.world_size >= 5 && o.is_unchecked && o.num_contributors == 0;
  if (sml_prng_below(prng, 3) == 0) return o;
  o.stall = unit(prng) * 0.5;
  o.faults.loss = unit(prng) * 0.05;
  o.faults.duplicate = unit(prng) * 0.05;
  o.faults.reorder = unit(prng) * 0.2;
  o.faults.corrupt = unit(prng) * 0.01;
  o.faults.reorder_frames = PICK(prng, 2, 16, 64, 400);
  if (sml_prng_below(prng, 4) == 0) o.queue_frames = 32 + (uint32_t)sml_prng_below(prng, 400);
  if (sml_prng_below(prng, 4) == 0) o.kernels = &sml_quant_scalar;
  if (is_for_switch) put_in_switch_format(&o);
  return o;
}

static struct world_call_options draw_call(struct sml_prng *prng, const struct world_options *o, uint64_t seed) {
  /* A few large tensors; the others such that a run takes a fraction of a second. */
  const uint64_t limit_elems = seed % 50 == 7 ? 1000000 : 400000 / o->world_size;
  const uint64_t limit_chunks = 20000 / o->world_size;
  struct world_call_options call = {
      .num_elems = log_uniform(prng, sml_min_u64(limit_elems, limit_chunks * (o->chunk_bytes / 4))),
      .key = sml_prng_next(prng),
      .type = sml_prng_below(prng, 4) == 0 ? SML_INT32 : SML_FLOAT32,
      .is_in_place = sml_prng_below(prng, 2) == 0,
      .is_shifted = sml_prng_below(prng, 4) == 0,
      .fill = sml_prng_below(prng, 4) == 0 ? WORLD_FILL_SPECIAL : WORLD_FILL_RANDOM,
      .seed = sml_prng_next(prng)};
  if (call.type == SML_FLOAT32 && sml_prng_below(prng, 2) == 0) call.reduction = SML_AVG;
  if (seed % 6 == 5) call.discards = call.seed; /* about half of the ranks */
  return call;
}

/* How many of the calls have not ended on a rank, of those it submitted. */
static uint32_t count_outstanding(struct world_call *const *calls, uint32_t num_submitted, uint32_t rank) {
  uint32_t count = 0;
  for (uint32_t c = 0; c < num_submitted; c++) count += calls[c]->parts[rank].num_ended == 0;
  return count;
}

/* Each rank submits the calls in the same order, at a pace of its own. */
static const char *drive(struct world *w, struct sml_prng *prng, struct world_call *const *calls, uint32_t num_calls) {
  const uint32_t n = w->options.world_size;
  uint32_t num_submitted[WORLD_MAX_RANKS] = {0};
  uint32_t num_left = n * num_calls;
  const double eagerness = 0.05 + unit(prng);
  const uint64_t until_ns = w->now_ns + LIMIT_NS;
  bool has_ended = false;
  while (num_left > 0 || !has_ended) {
    for (uint32_t r = 0; r < n; r++) {
      if (num_submitted[r] == num_calls || !sml_prng_chance(prng, eagerness)) continue;
      if (count_outstanding(calls, num_submitted[r], r) == w->options.num_operations) continue;
      world_call_submit(calls[num_submitted[r]++], r);
      num_left--;
    }
    if (!world_pass(w) && num_left == 0 && !world_call_has_ended(calls[num_calls - 1]))
      return "nobody has anything to do, and operations are outstanding";
    if (w->now_ns > until_ns) return "the operations take too long";
    has_ended = true;
    for (uint32_t c = 0; c < num_calls; c++) has_ended = has_ended && world_call_has_ended(calls[c]);
  }
  return NULL;
}

static const char *run(uint64_t seed) {
  struct sml_prng prng = {sml_mix64(seed)};
  const struct world_options options = draw_world(&prng, seed);
  struct world *w = world_create_started(&options);
  struct world_call *calls[MAX_CALLS];
  const uint32_t num_calls = 1 + (uint32_t)sml_prng_below(&prng, MAX_CALLS);
  for (uint32_t c = 0; c < num_calls; c++) {
    const struct world_call_options call = draw_call(&prng, &options, seed);
    calls[c] = world_call_create(w, &call);
  }
  num_all_reduces += num_calls;
  const char *problem = drive(w, &prng, calls, num_calls);
  world_settle(w, SML_NS_PER_S); /* what is still under way changes nothing */
  for (uint32_t c = 0; c < num_calls; c++) {
    if (problem == NULL) problem = world_call_check(calls[c]);
  }
  if (problem == NULL && w->num_events > 0) problem = "the aggregator raised an event";
  world_close_job(w, 0);
  for (uint32_t c = 0; c < num_calls; c++) world_call_free(calls[c]);
  world_destroy(w);
  return problem;
}

static void random_all_reduces_are_exact(void **state) {
  (void)state;
  for (uint64_t seed = first_seed; seed < first_seed + num_runs; seed++) {
    const char *problem = run(seed);
    if (problem != NULL) fail_msg("%s; repeat: %s --runs 1 --seed %llu", problem, program, (unsigned long long)seed);
    if (seed % 1000 == 0) fprintf(stderr, "# seed %llu\n", (unsigned long long)seed);
  }
  fprintf(stderr, "# %llu all-reduces in %llu runs\n", (unsigned long long)num_all_reduces,
          (unsigned long long)num_runs);
}

/* ---- values that need care, one block each ---- */

#define BLOCK_ELEMS SML_BLOCK_ELEMS
#define NUM_BLOCKS 10u

static void write_special(uint32_t rank, float *to, uint64_t num_elems) {
  for (uint64_t i = 0; i < num_elems; i++) {
    const bool is_mine = rank == 1 && i % BLOCK_ELEMS == 5;
    switch (i / BLOCK_ELEMS) {
      case 0:
        to[i] = -0.0f;
        break;
      case 1:
        to[i] = 0x1p-140f;
        break; /* denormal: flushed */
      case 2:
        to[i] = 0x1.fffffep-101f;
        break; /* the largest that is flushed */
      case 3:
        to[i] = is_mine ? 0x1p-100f : 0;
        break; /* the smallest that is not */
      case 4:
        to[i] = is_mine ? __builtin_inff() : 1;
        break;
      case 5:
        to[i] = is_mine ? __builtin_nanf("") : 1;
        break;
      case 6:
        to[i] = 0x1.fffffep127f;
        break; /* the sum is beyond float's range */
      case 7:
        to[i] = rank == 0 ? 0x1.fffffep127f : -0x1.fffffep127f;
        break;
      case 8:
        to[i] = is_mine ? 0x1p100f : 1;
        break; /* the others are lost in its scale */
      default:
        to[i] = (float)(rank + 1) * (float)i;
        break;
    }
  }
}

static void expect_block(const float *out, uint32_t block, float expected) {
  for (uint32_t i = 0; i < BLOCK_ELEMS; i++)
    assert_memory_equal(&out[block * BLOCK_ELEMS + i], &expected, sizeof expected);
}

static void special_values_stay_in_their_blocks(void **state) {
  (void)state;
  for (uint8_t reduction = SML_SUM; reduction <= SML_AVG; reduction++) {
    const struct world_options options = {
        .world_size = 2, .num_lanes = 1, .num_slots = 4, .chunk_bytes = 4 * 60, .num_operations = 1};
    struct world *w = world_create_started(&options);
    const struct world_call_options call_options = {
        .num_elems = NUM_BLOCKS * BLOCK_ELEMS, .reduction = reduction, .write_input = write_special};
    struct world_call *call = world_call_create(w, &call_options);
    world_call_submit_all(call);
    assert_true(world_call_run(call, LIMIT_NS));
    assert_null(world_call_check(call));
    const float *out = (const float *)(const void *)call->parts[0].out;
    const bool is_average = reduction == SML_AVG;
    for (uint32_t block = 0; block < 3; block++) expect_block(out, block, 0.0f);
    assert_true(out[3 * BLOCK_ELEMS + 5] == (is_average ? 0x1p-101f : 0x1p-100f));
    for (uint32_t block = 4; block < 6; block++) {
      for (uint32_t i = 0; i < BLOCK_ELEMS; i++) assert_true(__builtin_isnan(out[block * BLOCK_ELEMS + i]));
    }
    if (!is_average) expect_block(out, 6, __builtin_inff());
    expect_block(out, 7, 0.0f);
    assert_true(out[8 * BLOCK_ELEMS] == 0 && out[8 * BLOCK_ELEMS + 5] >= 0x1p99f);
    for (uint32_t i = 9 * BLOCK_ELEMS; i < NUM_BLOCKS * BLOCK_ELEMS; i++) /* integers are exact */
      assert_true(out[i] == 3 * (float)i / (is_average ? 2 : 1));
    world_call_free(call);
    world_destroy(w);
  }
}

int main(int argc, char **argv) {
  program = argv[0];
  for (int i = 1; i < argc; i += 2) {
    char *end = NULL;
    const uint64_t value = i + 1 < argc ? strtoull(argv[i + 1], &end, 10) : 0;
    const bool is_number = end != NULL && end != argv[i + 1] && *end == '\0';
    if (is_number && strcmp(argv[i], "--runs") == 0) num_runs = value;
    else if (is_number && strcmp(argv[i], "--seed") == 0) first_seed = value;
    else {
      fprintf(stderr, "usage: %s [--runs N] [--seed S]\n", argv[0]);
      return 2;
    }
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(special_values_stay_in_their_blocks),
      cmocka_unit_test(random_all_reduces_are_exact),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
