/* SPDX-License-Identifier: Apache-2.0
 * Groups of threads, each with a mapping of its own, and of processes. Results are compared, bit by bit, with
 * what the network gives: block by block, quantized, summed as integers, dequantized. */
#include "shm/shm_group.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_RANKS 9u
#define MAX_BYTES (8 * SML_BLOCK_ELEMS)
#define FOREVER_NS (30 * SML_NS_PER_S)

static uint64_t clock_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * SML_NS_PER_S + (uint64_t)t.tv_nsec;
}

struct world;
struct rank {
  struct world *world;
  uint32_t index;
  struct sml_shm_group *group;
  uint64_t number;
  const char *failure; /* NULL while all is well */
  pthread_t thread;
};
struct world {
  uint32_t num_ranks;
  uint64_t secret;
  void (*body)(struct rank *rank);
  struct rank ranks[MAX_RANKS];
};

#define CHECK(r, claim)              \
  do {                               \
    if (!(claim) && !(r)->failure) { \
      (r)->failure = #claim;         \
      return;                        \
    }                                \
  } while (0)

static struct sml_shm_group *open_group(const struct world *w, uint32_t index) {
  const struct sml_shm_group_options options = {.meeting = {.secret = {w->secret, (uint64_t)getpid()},
                                                            .num_ranks = w->num_ranks,
                                                            .index = index,
                                                            .deadline_ns = clock_ns() + FOREVER_NS},
                                                .kernels = sml_quant_select(NULL)};
  enum sml_shm_met met;
  uint32_t missing;
  char error[SML_SHM_ERROR_BYTES];
  return sml_shm_group_open(&options, &met, &missing, error);
}

static void *run_rank(void *argument) {
  struct rank *r = argument;
  r->group = open_group(r->world, r->index);
  if (r->group == NULL) r->failure = "no group";
  else r->world->body(r);
  sml_shm_group_close(r->group);
  return NULL;
}

static void run(uint32_t num_ranks, void (*body)(struct rank *)) {
  static uint64_t num_worlds;
  static struct world w;
  w = (struct world){.num_ranks = num_ranks, .secret = ++num_worlds, .body = body};
  for (uint32_t i = 0; i < num_ranks; i++) {
    w.ranks[i] = (struct rank){.world = &w, .index = i};
    assert_int_equal(pthread_create(&w.ranks[i].thread, NULL, run_rank, &w.ranks[i]), 0);
  }
  for (uint32_t i = 0; i < num_ranks; i++) pthread_join(w.ranks[i].thread, NULL);
  for (uint32_t i = 0; i < num_ranks; i++)
    if (w.ranks[i].failure != NULL) fail_msg("rank %u of %u: %s", i, num_ranks, w.ranks[i].failure);
}

/* ---- operations ---- */

enum how { ENDED, MISMATCH, DEADLINE, ABORTED, LOST };

static enum how finish(struct rank *r, uint64_t deadline_ns) {
  for (;;) {
    const enum sml_shm_verdict verdict = sml_shm_group_advance(r->group);
    if (verdict == SML_SHM_ENDED) return ENDED;
    if (verdict == SML_SHM_MISMATCH) return MISMATCH;
    const enum sml_shm_wait wait = sml_shm_group_await(r->group, deadline_ns);
    if (wait == SML_SHM_DEADLINE) return DEADLINE;
    if (wait == SML_SHM_ABORTED) return ABORTED;
    if (wait == SML_SHM_LOST) return LOST;
  }
}

static void begin(struct rank *r, const void *in, void *out, const struct sml_shm_plan *plan) {
  struct sml_shm_operation operation = {.plan = *plan, .in = in, .out = out};
  operation.plan.number = r->number++;
  sml_shm_group_begin(r->group, &operation);
}

/* Element i of a rank's input: floats of all magnitudes, in some operations with an Inf or a NaN. A wider type
 * has it at its upper end, a narrower one has that end alone. */
static void put_input(uint8_t *to, uint64_t seed, uint32_t rank, uint64_t i, uint32_t type) {
  const size_t num_bytes = sml_format_elem_bytes(type);
  uint64_t bits = sml_mix64(seed * 977 + rank * 131 + sml_mix64(i + 1));
  if (sml_format_is_float(type)) {
    if (seed % 5 == 0 && bits % 4001 == 0) bits = bits & 1 ? 0x7ff0000000000000u : 0xfff8000000000001u;
    else if (seed % 3 == 0) bits &= 0xbfffffffffffffffu;
    else bits = (bits & 0x83ffffffffffffffu) | 0x3c00000000000000u;
    if (bits == 0x7ff0000000000000u && type != SML_FORMAT_FLOAT64)
      bits = type == SML_FORMAT_FLOAT16 ? 0x7c00000000000000u : 0x7f80000000000000u;
  }
  bits >>= 64 - 8 * num_bytes;
  memcpy(to, &bits, num_bytes);
}

/* What the network gives: codes, their maximum, lanes, their sum. */
static void expect_block(uint8_t *out, uint64_t seed, uint32_t num_ranks, uint64_t first, size_t num_elems,
                         const struct sml_shm_plan *p) {
  const struct sml_quant_kernels *k = &sml_quant_scalar;
  const struct sml_format *f = sml_format_find(p->type, p->shape);
  uint8_t in[MAX_BYTES], lanes[64 * MAX_BYTES], sums[64 * MAX_BYTES], code = 0;
  const size_t num_lanes = p->shape.lane_elems > 1 ? (num_elems + 1) / 2 : num_elems * (p->shape.elem_lanes + 1u);
  for (int pass = 0; pass < 2; pass++) {
    for (uint32_t r = 0; r < num_ranks; r++) {
      for (size_t i = 0; i < num_elems; i++) put_input(in + i * f->elem_bytes, seed, r, first + i, p->type);
      const uint8_t own = pass == 0 && f->block_code != NULL ? f->block_code(k, in, num_elems) : 0;
      code = own > code ? own : code;
      if (pass == 0) continue;
      memset(lanes, 0, sizeof lanes);
      f->put(k, lanes, in, num_elems, code, num_ranks);
      if (r == 0) memset(sums, 0, sizeof sums);
      for (size_t l = 0; l < num_lanes; l++)
        sml_store_be32(sums + 4 * l, sml_load_be32(sums + 4 * l) + sml_load_be32(lanes + 4 * l));
    }
  }
  f->get(k, out, sums, num_elems, code, num_ranks, p->reduction == SML_FORMAT_AVG);
}

static bool is_expected(const struct rank *r, const uint8_t *out, uint64_t seed, const struct sml_shm_plan *p) {
  const struct sml_format *f = sml_format_find(p->type, p->shape);
  const uint32_t block_elems = SML_BLOCK_ELEMS;
  uint8_t expected[MAX_BYTES];
  for (uint64_t first = 0; first < p->num_elems; first += block_elems) {
    const size_t num_elems = (size_t)sml_min_u64(block_elems, p->num_elems - first);
    expect_block(expected, seed, r->world->num_ranks, first, num_elems, p);
    if (memcmp(out + f->elem_bytes * first, expected, f->elem_bytes * num_elems) != 0) return false;
  }
  return true;
}

/* One all-reduce of pseudo-random values, on any alignment, with guards around the result. */
static void reduce_once(struct rank *r, uint64_t seed, const struct sml_shm_plan *plan) {
  const size_t elem_bytes = sml_format_elem_bytes(plan->type);
  const size_t num_bytes = (size_t)plan->num_elems * elem_bytes, shift = sml_mix64(seed + r->index) % 17;
  uint8_t *memory = malloc(2 * (num_bytes + 64));
  uint8_t *in = memory + shift, *out = memory + num_bytes + 64 + shift;
  memset(memory, 0xa5, 2 * (num_bytes + 64));
  for (uint64_t i = 0; i < plan->num_elems; i++) put_input(in + elem_bytes * i, seed, r->index, i, plan->type);
  const bool is_in_place = seed % 2 == 0;
  begin(r, in, is_in_place ? in : out, plan);
  const bool is_right = finish(r, clock_ns() + FOREVER_NS) == ENDED &&
                        is_expected(r, is_in_place ? in : out, seed, plan) && out[num_bytes] == 0xa5 &&
                        out[-1] == 0xa5 && in[num_bytes] == 0xa5;
  free(memory);
  CHECK(r, is_right);
}

static void reduce_some(struct rank *r) {
  static const uint64_t sizes[] = {1, 2, 3, 359, 360, 1000, 4095, 4097, 5000, 65536, 70001, 400009};
  struct sml_prng prng = {r->world->secret};
  for (uint64_t i = 0; i < 60 && r->failure == NULL; i++) {
    const uint64_t bits = sml_prng_next(&prng);
    struct sml_shm_plan plan = {.num_elems = i < SML_ARRAY_LEN(sizes) ? sizes[i] : 1 + bits % 9001,
                                .key = bits % 3,
                                .type = (uint8_t)((bits >> 40) % SML_NUM_FORMAT_TYPES)};
    plan.reduction = sml_format_is_float(plan.type) && (bits >> 50 & 1) ? SML_FORMAT_AVG : SML_FORMAT_SUM;
    plan.shape = sml_format_choose(plan.type, plan.num_elems, r->world->num_ranks,
                                   (struct sml_format_options){.float_bits = (uint8_t)(16 * (bits >> 52 & 3)),
                                                               .float64_bits = bits >> 54 & 1 ? 64 : 96});
    reduce_once(r, bits >> 8, &plan);
  }
}

static void test_mixed_operations(void **state) {
  (void)state;
  run(2, reduce_some);
  run(3, reduce_some);
  run(4, reduce_some);
  run(9, reduce_some);
}

static void test_alone(void **state) {
  (void)state;
  run(1, reduce_some); /* no host has such a group, but it works */
}

/* ---- several processes ---- */

static void test_processes(void **state) {
  (void)state;
  struct world w = {.num_ranks = 4, .secret = 777};
  const uint64_t parent = (uint64_t)getpid();
  pid_t pids[4];
  for (uint32_t i = 0; i < 4; i++) {
    pids[i] = fork();
    assert_true(pids[i] >= 0);
    if (pids[i] > 0) continue;
    struct rank r = {.world = &w, .index = i};
    const struct sml_shm_group_options options = {
        .meeting = {.secret = {parent, 7}, .num_ranks = 4, .index = i, .deadline_ns = clock_ns() + FOREVER_NS},
        .kernels = sml_quant_select(NULL)};
    enum sml_shm_met met;
    uint32_t missing;
    char error[SML_SHM_ERROR_BYTES];
    r.group = sml_shm_group_open(&options, &met, &missing, error);
    if (r.group == NULL) _exit(2);
    reduce_some(&r);
    sml_shm_group_close(r.group);
    _exit(r.failure != NULL);
  }
  for (uint32_t i = 0; i < 4; i++) {
    int status;
    assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
    assert_int_equal(status, 0);
  }
}

/* ---- what goes wrong ---- */

static void call_another(struct rank *r) {
  int32_t value[5000] = {0};
  struct sml_shm_plan plan = {.num_elems = 5};
  begin(r, value, value, &plan);
  CHECK(r, finish(r, clock_ns() + FOREVER_NS) == ENDED);
  plan.num_elems = r->index == 2 ? 5000 : 5; /* one step there, several here */
  begin(r, value, value, &plan);
  CHECK(r, finish(r, clock_ns() + FOREVER_NS) == MISMATCH);
  uint32_t a, b;
  sml_shm_group_mismatch(r->group, &a, &b);
  CHECK(r, a == 0 && b == 2);
}

static void call_with_another_key(struct rank *r) {
  int32_t value = 1;
  const struct sml_shm_plan plan = {.num_elems = 1, .key = r->index == 1};
  begin(r, &value, &value, &plan);
  CHECK(r, finish(r, clock_ns() + FOREVER_NS) == MISMATCH);
}

static void test_mismatch(void **state) {
  (void)state;
  run(4, call_another);
  run(2, call_with_another_key);
}

static void come_late(struct rank *r) {
  int32_t value = 1;
  const struct sml_shm_plan plan = {.num_elems = 1};
  if (r->index == 1) {
    const struct timespec late = {.tv_nsec = 150 * 1000 * 1000};
    nanosleep(&late, NULL);
  }
  begin(r, &value, &value, &plan);
  if (r->index != 1) {
    uint32_t absent[MAX_RANKS];
    CHECK(r, finish(r, clock_ns() + 20 * SML_NS_PER_MS) == DEADLINE);
    const uint32_t num_absent = sml_shm_group_find_absent(r->group, false, absent, MAX_RANKS);
    CHECK(r, num_absent >= 1 && num_absent <= 2);
    CHECK(r, absent[0] == 1 || absent[1] == 1);
  }
  /* Late is not lost: the operation goes on. */
  CHECK(r, finish(r, clock_ns() + FOREVER_NS) == ENDED && value == 3);
  CHECK(r, sml_shm_group_num_blocks(r->group) == 1);
}

static void test_late_rank_is_named(void **state) {
  (void)state;
  run(3, come_late);
}

static void *abort_soon(void *argument) {
  const struct timespec soon = {.tv_nsec = 30 * 1000 * 1000};
  nanosleep(&soon, NULL);
  sml_shm_group_abort(argument);
  return NULL;
}

static void be_aborted(struct rank *r) {
  int32_t value = 1;
  const struct sml_shm_plan plan = {.num_elems = 1};
  if (r->index == 1) return;
  pthread_t thread;
  begin(r, &value, &value, &plan);
  CHECK(r, pthread_create(&thread, NULL, abort_soon, r->group) == 0);
  const enum how how = finish(r, SML_NEVER);
  pthread_join(thread, NULL);
  CHECK(r, how == ABORTED);
}

static void test_abort_ends_a_wait(void **state) {
  (void)state;
  run(2, be_aborted);
}

/* Rank 1 ends its part of an operation of several steps and goes: the others end it. Then they miss it. */
static void leave_early(struct rank *r) {
  static int32_t in[MAX_RANKS][50000], out[MAX_RANKS][50000];
  const struct sml_shm_plan plan = {.num_elems = 50000};
  if (r->index != 1) sml_shm_group_set_gone(r->group, 1);
  in[r->index][49999] = 5;
  begin(r, in[r->index], out[r->index], &plan);
  enum how how = finish(r, clock_ns() + FOREVER_NS);
  while (how == LOST) how = finish(r, clock_ns() + FOREVER_NS); /* it was not gone yet */
  CHECK(r, how == ENDED && out[r->index][49999] == 15);
  if (r->index == 1) return;
  begin(r, in[r->index], out[r->index], &plan);
  CHECK(r, finish(r, clock_ns() + FOREVER_NS) == LOST);
  uint32_t absent;
  CHECK(r, sml_shm_group_find_absent(r->group, true, &absent, 1) == 1 && absent == 1);
}

static void test_rank_that_is_gone(void **state) {
  (void)state;
  run(3, leave_early);
}

static void test_size_is_bounded(void **state) {
  (void)state;
  for (uint32_t n = 1; n <= 4096; n *= 2) {
    const size_t num_bytes = sml_shm_segment_bytes(n);
    assert_true(num_bytes % 4096 == 0 && num_bytes < (size_t)192 << 20);
  }
  assert_true(sml_shm_segment_bytes(8) < (size_t)10 << 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_mixed_operations),   cmocka_unit_test(test_alone),
      cmocka_unit_test(test_processes),          cmocka_unit_test(test_mismatch),
      cmocka_unit_test(test_late_rank_is_named), cmocka_unit_test(test_abort_ends_a_wait),
      cmocka_unit_test(test_rank_that_is_gone),  cmocka_unit_test(test_size_is_bounded),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
