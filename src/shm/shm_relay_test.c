/* SPDX-License-Identifier: Apache-2.0
 * A relay of threads, each with a mapping of its own, over a network that adds integers at once, or a while later in
 * any order. */
#include "shm/shm_relay.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_RANKS 5u
#define PIECE_ELEMS 100u
#define MAX_ELEMS 2000u
#define FOREVER_NS (20 * SML_NS_PER_S)

static uint64_t clock_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * SML_NS_PER_S + (uint64_t)t.tv_nsec;
}

struct rank {
  uint32_t index, num_ranks;
  uint64_t secret;
  struct sml_shm_relay *relay;
  void (*body)(struct rank *rank);
  const char *failure;
  pthread_t thread;
  /* the lead's network: pieces under way */
  struct sml_shm_piece held[SML_SHM_RELAY_DEPTH];
  uint32_t num_held, num_submitted;
  bool holds_back, refuses;
};

#define CHECK(r, claim)              \
  do {                               \
    if (!(claim) && !(r)->failure) { \
      (r)->failure = #claim;         \
      return;                        \
    }                                \
  } while (0)

static void add(struct sml_shm_relay *relay, const struct sml_shm_piece *p) {
  for (uint64_t e = 0; e < p->num_elems; e++) {
    int32_t sum = 0;
    for (uint32_t i = 0; i < p->num_inputs; i++) sum += ((const int32_t *)p->inputs[i])[e];
    ((int32_t *)p->out)[e] = sum;
  }
  sml_shm_relay_done(relay, p->slot);
}

/* The last one first. */
static void release_held(struct rank *r) {
  while (r->num_held > 0) {
    add(r->relay, &r->held[--r->num_held]);
    if (r->holds_back) usleep(100); /* others may look */
  }
}

static bool submit(void *user, const struct sml_shm_piece *piece) {
  struct rank *r = user;
  if (r->refuses) return false;
  r->num_submitted++;
  r->held[r->num_held++] = *piece;
  if (!r->holds_back) release_held(r);
  return true;
}

static void *run(void *argument) {
  struct rank *r = argument;
  const struct sml_shm_relay_options options = {.meeting = {.secret = {r->secret, (uint64_t)getpid()},
                                                            .num_ranks = r->num_ranks,
                                                            .index = r->index,
                                                            .deadline_ns = clock_ns() + FOREVER_NS},
                                                .piece_bytes = 4 * PIECE_ELEMS,
                                                .submit = submit,
                                                .user = r};
  enum sml_shm_met met;
  uint32_t missing;
  char error[SML_SHM_ERROR_BYTES];
  r->relay = sml_shm_relay_open(&options, &met, &missing, error);
  if (r->relay == NULL) {
    r->failure = "open";
    return NULL;
  }
  r->body(r);
  return NULL;
}

static void run_world(uint32_t num_ranks, bool holds_back, void (*body)(struct rank *)) {
  static uint64_t secret = 7;
  struct rank ranks[MAX_RANKS];
  memset(ranks, 0, sizeof ranks);
  secret++;
  for (uint32_t i = 0; i < num_ranks; i++) {
    ranks[i].index = i;
    ranks[i].num_ranks = num_ranks;
    ranks[i].secret = secret;
    ranks[i].body = body;
    ranks[i].holds_back = holds_back;
    assert_int_equal(pthread_create(&ranks[i].thread, NULL, run, &ranks[i]), 0);
  }
  const char *failure = NULL;
  for (uint32_t i = 0; i < num_ranks; i++) {
    pthread_join(ranks[i].thread, NULL);
    if (ranks[i].failure != NULL) failure = ranks[i].failure;
  }
  for (uint32_t i = 0; i < num_ranks; i++) sml_shm_relay_close(ranks[i].relay);
  if (failure != NULL) fail_msg("%s", failure);
}

static struct sml_shm_operation operation_of(const int32_t *in, int32_t *out, uint64_t number, uint64_t num_elems) {
  return (struct sml_shm_operation){
      .plan = {.number = number, .num_elems = num_elems}, .in = in, .out = out, .piece_elems = PIECE_ELEMS};
}

/* Until the oldest operation has ended. */
static enum sml_shm_verdict go_on(struct rank *r) {
  for (;;) {
    const enum sml_shm_verdict verdict = sml_shm_relay_advance(r->relay);
    if (verdict != SML_SHM_WAITING) return verdict;
    if (r->num_held > 0) {
      release_held(r);
      continue;
    }
    if (sml_shm_relay_await(r->relay, clock_ns() + FOREVER_NS) != SML_SHM_READY) return SML_SHM_WAITING;
  }
}

static enum sml_shm_verdict drive(struct rank *r, const struct sml_shm_operation *operation) {
  sml_shm_relay_begin(r->relay, operation);
  return go_on(r);
}

/* ---- sums ---- */

static void sum_many(struct rank *r) {
  int32_t in[MAX_ELEMS], out[MAX_ELEMS];
  uint32_t num_pieces = 0;
  for (uint32_t i = 0; i < 60; i++) {
    const uint64_t num_elems = i % 3 == 0 ? 1 + i : (uint64_t)i * 33;
    int32_t *result = i % 2 ? in : out;
    for (uint32_t e = 0; e < num_elems; e++) in[e] = (int32_t)(e * (r->index + 1) + i);
    const struct sml_shm_operation operation = operation_of(in, result, i, num_elems);
    CHECK(r, drive(r, &operation) == SML_SHM_ENDED);
    num_pieces += (uint32_t)sml_div_ceil(num_elems, PIECE_ELEMS);
    const uint32_t n = r->num_ranks;
    for (uint32_t e = 0; e < num_elems; e++) CHECK(r, result[e] == (int32_t)(e * n * (n + 1) / 2 + i * n));
  }
  CHECK(r, r->num_submitted == (r->index == 0 ? num_pieces : 0));
}

static void test_sums(void **state) {
  (void)state;
  for (uint32_t num_ranks = 1; num_ranks <= MAX_RANKS; num_ranks += 2)
    for (uint32_t holds_back = 0; holds_back < 2; holds_back++) run_world(num_ranks, holds_back, sum_many);
}

/* Several operations at a time: as many pieces of them are under way as there may be, and they end in their order. */
static void overlap(struct rank *r) {
  static const uint64_t lengths[SML_SHM_RELAY_DEPTH] = {50, 150, 1, 350};
  int32_t in[SML_SHM_RELAY_DEPTH][400], out[SML_SHM_RELAY_DEPTH][400];
  const uint32_t n = r->num_ranks;
  for (uint32_t round = 0; round < 20; round++) {
    const uint32_t num_before = r->num_submitted;
    for (uint32_t k = 0; k < SML_SHM_RELAY_DEPTH; k++) {
      for (uint32_t e = 0; e < lengths[k]; e++) in[k][e] = (int32_t)(e * (r->index + 1) + k + round);
      const struct sml_shm_operation operation = operation_of(in[k], out[k], round * 4 + k, lengths[k]);
      sml_shm_relay_begin(r->relay, &operation);
    }
    while (r->index == 0 && r->num_submitted - num_before < SML_SHM_RELAY_DEPTH) { /* none is done meanwhile */
      CHECK(r, sml_shm_relay_advance(r->relay) == SML_SHM_WAITING);
      if (r->num_submitted - num_before < SML_SHM_RELAY_DEPTH)
        CHECK(r, sml_shm_relay_await(r->relay, clock_ns() + FOREVER_NS) == SML_SHM_READY);
    }
    for (uint32_t k = 0; k < SML_SHM_RELAY_DEPTH; k++) {
      CHECK(r, go_on(r) == SML_SHM_ENDED);
      for (uint32_t e = 0; e < lengths[k]; e++) CHECK(r, out[k][e] == (int32_t)(e * n * (n + 1) / 2 + (k + round) * n));
    }
  }
}

static void test_overlap(void **state) {
  (void)state;
  for (uint32_t num_ranks = 1; num_ranks <= MAX_RANKS; num_ranks += 2) run_world(num_ranks, true, overlap);
}

/* ---- who is missing, and what differs ---- */

static _Atomic uint32_t num_finished;

static void miss_the_last(struct rank *r) {
  int32_t x[MAX_ELEMS] = {0};
  uint32_t absent[MAX_RANKS];
  const struct sml_shm_operation operation = operation_of(x, x, 0, MAX_ELEMS);
  if (r->index < 2) {
    sml_shm_relay_begin(r->relay, &operation);
    CHECK(r, sml_shm_relay_advance(r->relay) == SML_SHM_WAITING);
    CHECK(r, sml_shm_relay_await(r->relay, clock_ns() + 100 * SML_NS_PER_MS) == SML_SHM_DEADLINE);
    CHECK(r, sml_shm_relay_find_absent(r->relay, false, absent, MAX_RANKS) == 1 && absent[0] == 2);
    CHECK(r, sml_shm_relay_find_absent(r->relay, true, absent, MAX_RANKS) == 0);
    sml_shm_relay_set_gone(r->relay, 2);
    CHECK(r, sml_shm_relay_await(r->relay, clock_ns() + FOREVER_NS) == SML_SHM_LOST);
    CHECK(r, sml_shm_relay_find_absent(r->relay, true, absent, MAX_RANKS) == 1 && absent[0] == 2);
    sml_shm_relay_abort(r->relay);
    CHECK(r, sml_shm_relay_await(r->relay, clock_ns() + FOREVER_NS) == SML_SHM_ABORTED);
  }
}

/* All are in; the lead has it under way, or died with it. */
static void miss_the_lead(struct rank *r) {
  int32_t x[MAX_ELEMS] = {0};
  uint32_t absent[MAX_RANKS];
  const struct sml_shm_operation operation = operation_of(x, x, 0, 10);
  r->refuses = true;
  sml_shm_relay_begin(r->relay, &operation);
  CHECK(r, sml_shm_relay_advance(r->relay) == SML_SHM_WAITING);
  (void)atomic_fetch_add(&num_finished, 1);
  while (atomic_load(&num_finished) % r->num_ranks != 0) usleep(1000);
  if (r->index == 0) {
    CHECK(r, sml_shm_relay_find_absent(r->relay, false, absent, MAX_RANKS) == 0);
    return;
  }
  CHECK(r, sml_shm_relay_find_absent(r->relay, false, absent, MAX_RANKS) == 1 && absent[0] == 0);
  CHECK(r, sml_shm_relay_find_absent(r->relay, true, absent, MAX_RANKS) == 0);
  sml_shm_relay_set_gone(r->relay, 0);
  CHECK(r, sml_shm_relay_await(r->relay, clock_ns() + FOREVER_NS) == SML_SHM_LOST);
}

static void differ(struct rank *r) {
  int32_t x[MAX_ELEMS] = {0};
  uint32_t a, b;
  const struct sml_shm_operation first = operation_of(x, x, 0, 150);
  CHECK(r, drive(r, &first) == SML_SHM_ENDED);
  const struct sml_shm_operation second = operation_of(x, x, 1, r->index == 2 ? 1500 : 150);
  CHECK(r, drive(r, &second) == SML_SHM_MISMATCH);
  sml_shm_relay_mismatch(r->relay, &a, &b);
  CHECK(r, a == 0 && b == 2);
}

/* An operation before the one that differs is under way when that shows. */
static void differ_behind(struct rank *r) {
  int32_t x[MAX_ELEMS] = {0};
  const struct sml_shm_operation first = operation_of(x, x, 0, 150);
  const struct sml_shm_operation second = operation_of(x + 200, x + 200, 1, r->index == 2 ? 250 : 150);
  uint32_t a, b;
  x[0] = (int32_t)r->index;
  sml_shm_relay_begin(r->relay, &first);
  sml_shm_relay_begin(r->relay, &second);
  CHECK(r, go_on(r) == SML_SHM_ENDED);
  CHECK(r, x[0] == 6 && go_on(r) == SML_SHM_MISMATCH);
  sml_shm_relay_mismatch(r->relay, &a, &b);
  CHECK(r, a == 0 && b == 2);
}

/* Whoever waits hears of another operation. */
static void interrupt(struct rank *r) {
  int32_t x[MAX_ELEMS] = {0};
  const struct sml_shm_operation operation = operation_of(x, x, 0, 10);
  if (r->index != 0) return;
  sml_shm_relay_begin(r->relay, &operation);
  CHECK(r, sml_shm_relay_await(r->relay, clock_ns() + SML_NS_PER_MS) == SML_SHM_DEADLINE);
  sml_shm_relay_interrupt(r->relay);
  CHECK(r, sml_shm_relay_await(r->relay, clock_ns() + FOREVER_NS) == SML_SHM_READY);
  CHECK(r, sml_shm_relay_await(r->relay, clock_ns() + SML_NS_PER_MS) == SML_SHM_DEADLINE);
}

static void test_missing_ranks(void **state) {
  (void)state;
  run_world(3, false, miss_the_last);
}
static void test_missing_lead(void **state) {
  (void)state;
  run_world(3, false, miss_the_lead);
}
static void test_mismatch(void **state) {
  (void)state;
  run_world(4, false, differ);
  run_world(4, true, differ_behind);
}
static void test_interrupt(void **state) {
  (void)state;
  run_world(2, false, interrupt);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sums),          cmocka_unit_test(test_overlap),      cmocka_unit_test(test_interrupt),
      cmocka_unit_test(test_missing_ranks), cmocka_unit_test(test_missing_lead), cmocka_unit_test(test_mismatch),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
