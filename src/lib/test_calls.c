/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test_calls.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "meet/job_settings.h"

#define WAIT_NS (30 * SML_NS_PER_S)

/* ---- all kinds ---- */

struct mixed_call {
  sml_operation *op;
  uint8_t *memory, *out;
  size_t count, num_bytes;
};

static uint64_t hash_bytes(uint64_t h, const uint8_t *bytes, size_t num_bytes) {
  for (size_t i = 0; i < num_bytes; i += 4) {
    uint32_t word = 0;
    memcpy(&word, bytes + i, sml_min_u64(4, num_bytes - i));
    h = sml_mix64(h + word);
  }
  return h;
}

/* The exponents' upper bit is cleared but in some, which are Inf, NaN or very large. */
static void put_mixed(uint8_t *to, sml_type type, uint64_t random) {
  const size_t num_bytes = sml_format_elem_bytes((uint32_t)type);
  uint64_t value = num_bytes == 8 ? random : random & 0xffffffffu;
  const uint64_t exponent_bit = UINT64_C(1) << (8 * num_bytes - 2);
  if (sml_format_is_float((uint32_t)type) && (uint32_t)random % 50021 != 0) value &= ~exponent_bit;
  memcpy(to, &value, num_bytes);
}

static void call_mixed(struct rank *r, const struct mixed_calls *calls, uint32_t i, uint64_t bits,
                       struct mixed_call *c) {
  static const sml_type narrow[] = {SML_FLOAT32, SML_FLOAT16, SML_FLOAT32, SML_BFLOAT16};
  static const sml_type others[] = {SML_INT32, SML_INT64, SML_INT32, SML_FLOAT64};
  const sml_type type = bits >> 50 & 1 ? narrow[bits >> 53 & 3] : others[bits >> 53 & 3];
  const size_t elem_bytes = sml_format_elem_bytes((uint32_t)type);
  uint8_t *in = c->memory + (bits >> 40) % 13;
  c->count = sml_min_u64(calls->count(bits, i), 4 * calls->max_elems / elem_bytes);
  c->num_bytes = c->count * elem_bytes;
  c->out = bits >> 51 & 1 ? in : c->memory + 4 * calls->max_elems + 64 + (bits >> 44) % 13;
  for (size_t e = 0; e < c->count; e++) put_mixed(in + elem_bytes * e, type, sml_mix64(bits + e * 8 + r->rank));
  CHECK(r,
        sml_allreduce(r->job, in, c->out, c->count, type,
                      sml_format_is_float((uint32_t)type) && (bits >> 52 & 1) ? SML_AVG : SML_SUM, NULL,
                      &c->op) == SML_OK,
        "%s", sml_error_detail());
}

void sum_mixed(struct rank *r, const struct mixed_calls *calls, uint64_t *hash_out) {
  enum { DEPTH = 3 };
  struct mixed_call in_flight[DEPTH] = {0};
  struct sml_prng prng = {99};
  uint64_t h = 1;
  for (uint32_t k = 0; k < DEPTH; k++) in_flight[k].memory = malloc(2 * (4 * calls->max_elems + 64));
  for (uint32_t i = 0; i < calls->num + DEPTH; i++) {
    struct mixed_call *c = &in_flight[i % DEPTH];
    if (c->op != NULL) {
      CHECK(r, sml_operation_wait(c->op, WAIT_NS) == SML_OK, "%s", sml_error_detail());
      sml_operation_release(c->op);
      h = hash_bytes(h, c->out, c->num_bytes);
    }
    c->op = NULL;
    if (i < calls->num) call_mixed(r, calls, i, sml_prng_next(&prng), c);
    if (r->failure[0] != 0) return;
  }
  for (uint32_t k = 0; k < DEPTH; k++) free(in_flight[k].memory);
  *hash_out = h;
}

/* ---- who works ---- */

void let_helpers_work(struct rank *r) {
  static int32_t data[MAX_RANKS][20][3000];
  sml_operation *ops[20];
  for (uint32_t i = 0; i < 20; i++) {
    data[r->rank][i][2999] = (int32_t)i;
    CHECK(r,
          sml_allreduce(r->job, data[r->rank][i], data[r->rank][i], 3000, SML_INT32, SML_SUM, NULL, &ops[i]) ==
              SML_OK);
  }
  for (uint32_t i = 0; i < 20; i += 2) sml_operation_release(ops[i]);
  for (uint32_t ms = 0; ms < 10000 && stats_of(r).operations_completed < 20; ms++) usleep(1000);
  CHECK(r, stats_of(r).operations_completed == 20);
  for (uint32_t i = 1; i < 20; i += 2) {
    CHECK(r, sml_operation_test(ops[i]) == SML_OK && data[r->rank][i][2999] == (int32_t)(3 * i));
    sml_operation_release(ops[i]);
  }
}

/* ---- what goes wrong ---- */

void call_differently(struct rank *r, uint32_t differing, uint32_t other) {
  static float data[MAX_RANKS][2][30000];
  sml_operation *ops[2];
  for (uint32_t k = 0; k < 2; k++) {
    const size_t count = k == 1 && r->rank == differing ? 29999 : 30000;
    float *x = data[r->rank][k];
    CHECK(r, sml_allreduce(r->job, x, x, count, SML_FLOAT32, SML_SUM, NULL, &ops[k]) == SML_OK);
  }
  const sml_status last = sml_operation_wait(ops[1], 20 * SML_NS_PER_S);
  sml_error error = SML_ERROR_INIT;
  const bool is_right = last == SML_ERR_MISMATCH && sml_operation_error(ops[1], &error) == SML_ERR_MISMATCH &&
                        error.num_ranks < r->world->num_ranks + (r->world->hosts != NULL) &&
                        is_named(&error, differing) && is_named(&error, other);
  for (uint32_t k = 0; k < 2; k++) sml_operation_release(ops[k]);
  CHECK(r, is_right, "%d %s", last, error.detail);
}

void abort_while_others_wait(struct rank *r, uint32_t aborting) {
  static float data[MAX_RANKS][500000];
  sml_operation *op = NULL;
  if (r->rank == aborting) {
    await_waiting(r);
    sml_job_abort(r->job, "enough");
    return;
  }
  CHECK(r,
        sml_allreduce(r->job, data[r->rank], data[r->rank], 500000, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK);
  note_waiting(r);
  if (r->rank == 2) { /* and one leaves it to the helper */
    for (uint32_t i = 0; i < 10000 && sml_operation_test(op) == SML_IN_PROGRESS; i++) usleep(1000);
  }
  const sml_status status = sml_operation_wait(op, 20 * SML_NS_PER_S);
  sml_error error = SML_ERROR_INIT;
  sml_operation_error(op, &error);
  sml_operation_release(op);
  CHECK(r, status == SML_ERR_ABORTED && is_named(&error, aborting) && strstr(error.detail, "enough") != NULL, "%s",
        error.detail);
}

sml_status sum_for_ever(sml_job *job, float *data, sml_error *error_out) {
  sml_status status = SML_OK;
  for (uint32_t i = 0; i < 100000 && status == SML_OK; i++) {
    sml_operation *op;
    status = sml_allreduce(job, data, data, LARGE_ELEMS, SML_FLOAT32, SML_AVG, NULL, &op);
    if (status != SML_OK) break;
    status = sml_operation_wait(op, WAIT_NS);
    sml_operation_release(op);
  }
  sml_job_error(job, error_out);
  return status;
}

/* ---- a process ---- */

static void run_child(const struct world *w, int address_fd) {
  char address[80] = {0};
  sml_context *context;
  sml_job *job;
  sml_error error = SML_ERROR_INIT;
  sml_job_options o = w->job_options;
  alarm(60);
  if (read(address_fd, address, sizeof address - 1) <= 0) _exit(1);
  o.aggregator = address;
  o.rank = w->num_ranks;
  o.world_size = w->num_ranks + 1;
  if (w->hosts != NULL) sml_test_host = (uint64_t)w->hosts[o.rank];
  if (sml_context_create(NULL, &context) != SML_OK || sml_job_create(context, &o, &job) != SML_OK) _exit(2);
  sum_for_ever(job, calloc(LARGE_ELEMS, sizeof(float)), &error);
  _exit(0);
}

static pid_t child;
static int child_signal;

static void lose_the_child(struct rank *r) {
  static float data[MAX_RANKS][LARGE_ELEMS];
  sml_error error = SML_ERROR_INIT;
  if (r->rank == 0) {
    CHECK(r, allreduce(r, data[0], data[0], LARGE_ELEMS, SML_FLOAT32, SML_AVG) == SML_OK, "%s", sml_error_detail());
    kill(child, child_signal);
  }
  const sml_status status = sum_for_ever(r->job, data[r->rank], &error);
  CHECK(r, status == SML_ERR_RANK_LOST && is_named(&error, r->world->num_ranks), "%d %s", status, error.detail);
}

void lose_a_child(struct world *w, int signal_number) {
  int address[2];
  w->world_size = w->num_ranks + 1;
  w->job_options.lease_ns = 2 * SML_NS_PER_S;
  assert_int_equal(pipe(address), 0);
  child = fork();
  if (child == 0) run_child(w, address[0]);
  world_start_aggd(w);
  assert_int_equal(write(address[1], w->address, strlen(w->address)), strlen(w->address));
  child_signal = signal_number;
  world_join(w);
  world_run(w, lose_the_child);
  world_stop(w);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  close(address[0]);
  close(address[1]);
}
