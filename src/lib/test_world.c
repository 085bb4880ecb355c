/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "meet/job_settings.h"

void note_failure(struct rank *r, int line, const char *claim, const char *format, ...) {
  const int used =
      snprintf(r->failure, sizeof r->failure, "rank %u, line %d: %.200s; ", r->rank, line, claim);
  va_list arguments;
  va_start(arguments, format); /* a surplus argument of CHECK's is not looked at */
  vsnprintf(r->failure + used, sizeof r->failure - (size_t)used, format, arguments);
  va_end(arguments);
}

void world_init(struct world *w, uint32_t num_ranks) {
  memset(w, 0, sizeof *w);
  assert_true(num_ranks <= MAX_RANKS);
  w->num_ranks = num_ranks;
  w->context_options = (sml_context_options)SML_CONTEXT_OPTIONS_INIT;
  w->job_options = (sml_job_options)SML_JOB_OPTIONS_INIT;
  w->job_options.join_timeout_ns = 20 * SML_NS_PER_S;
  w->job_options.operation_timeout_ns = 30 * SML_NS_PER_S;
  for (uint32_t r = 0; r < num_ranks; r++) {
    w->ranks[r].world = w;
    w->ranks[r].rank = r;
  }
}

void world_start_aggd(struct world *w) {
  char error[256];
  const char *host = w->host ? w->host : "127.0.0.1:0";
  assert_true(sml_addr_parse(host, 0, &w->aggd_options.listen, error, sizeof error));
  size_t used = 0;
  for (uint32_t i = 0; i == 0 || i < w->num_aggds; i++) {
    struct sml_aggd **aggd = i == 0 ? &w->aggd : &w->other_aggds[i - 1];
    if (sml_aggd_start(&w->aggd_options, aggd, error, sizeof error) != 0) fail_msg("%s", error);
    struct sml_addr addr;
    sml_aggd_addr(*aggd, &addr);
    if (i > 0) w->many_addresses[used++] = ',';
    sml_addr_format(&addr, w->many_addresses + used, sizeof w->many_addresses - used);
    used = strlen(w->many_addresses);
  }
  if (used < sizeof w->address) memcpy(w->address, w->many_addresses, used + 1);
}

int world_gather(void *user, const void *in, void *out, size_t num_bytes) {
  struct rank *r = user;
  struct world *w = r->world;
  w->gathered[r->rank] = in;
  pthread_barrier_wait(&w->gathering);
  for (uint32_t i = 0; i < w->num_ranks; i++) memcpy((uint8_t *)out + i * num_bytes, w->gathered[i], num_bytes);
  pthread_barrier_wait(&w->gathering);
  return 0;
}

static void *run_body(void *argument) {
  struct rank *r = argument;
  r->body(r);
  return NULL;
}

static void run_all(struct world *w, void (*body)(struct rank *)) {
  for (uint32_t r = 0; r < w->num_ranks; r++) {
    w->ranks[r].body = body;
    w->ranks[r].failure[0] = 0;
    assert_int_equal(pthread_create(&w->ranks[r].thread, NULL, run_body, &w->ranks[r]), 0);
  }
  for (uint32_t r = 0; r < w->num_ranks; r++) pthread_join(w->ranks[r].thread, NULL);
}

void world_run(struct world *w, void (*body)(struct rank *)) {
  run_all(w, body);
  bool has_failed = false;
  for (uint32_t r = 0; r < w->num_ranks; r++) {
    if (w->ranks[r].failure[0] == 0) continue;
    print_message("%s\n", w->ranks[r].failure);
    has_failed = true;
  }
  assert_false(has_failed);
}

void note_waiting(struct rank *r) {
  r->world->num_waiting++;
}

void await_waiting(struct rank *r) {
  for (uint32_t ms = 0; ms < 20000 && r->world->num_waiting < r->world->num_ranks - 1; ms++) usleep(1000);
  usleep(50 * 1000);
}

static void join(struct rank *r) {
  sml_job_options o = r->world->job_options;
  if (r->world->is_embedded) {
    o.aggregator = "";
    o.allgather = world_gather;
    o.allgather_user = r;
  } else {
    o.aggregator = r->world->address[0] != '\0' ? r->world->address : r->world->many_addresses;
  }
  o.rank = r->rank;
  o.world_size = r->world->world_size ? r->world->world_size : r->world->num_ranks;
  if (r->world->unwilling >> r->rank & 1) o.no_shared_memory = 1;
  if (r->world->hosts != NULL) sml_test_host = (uint64_t)r->world->hosts[r->rank];
  CHECK(r, sml_context_create(&r->world->context_options, &r->context) == SML_OK, "%s", sml_error_detail());
  r->status = sml_job_create(r->context, &o, &r->job);
  CHECK(r, r->status == SML_OK, "%s", sml_error_detail());
}

void world_join(struct world *w) {
  if (w->is_embedded) pthread_barrier_init(&w->gathering, NULL, w->num_ranks);
  world_run(w, join);
  if (w->is_embedded) pthread_barrier_destroy(&w->gathering);
}

void world_start(struct world *w) {
  world_start_aggd(w);
  world_join(w);
}

static void leave(struct rank *r) {
  sml_job_destroy(r->job);
  sml_context_destroy(r->context);
  r->job = NULL;
  r->context = NULL;
}

void world_stop(struct world *w) {
  run_all(w, leave);
  if (w->aggd) sml_aggd_stop(w->aggd);
  w->aggd = NULL;
  for (uint32_t i = 0; i < SML_ARRAY_LEN(w->other_aggds); i++) {
    if (w->other_aggds[i]) sml_aggd_stop(w->other_aggds[i]);
    w->other_aggds[i] = NULL;
  }
}

sml_stats stats_of(const struct rank *r) {
  sml_stats stats = SML_STATS_INIT;
  sml_job_stats(r->job, &stats);
  return stats;
}

bool is_named(const sml_error *error, uint32_t rank) {
  for (uint32_t i = 0; i < error->num_ranks; i++)
    if (error->ranks[i] == rank) return true;
  return false;
}

void check_failed(struct rank *r, sml_status expected, sml_error *error_out) {
  sml_status status = SML_OK;
  *error_out = (sml_error)SML_ERROR_INIT;
  for (uint32_t i = 0; i < 1000 && status == SML_OK; i++) {
    status = sml_job_error(r->job, error_out);
    if (status == SML_OK) usleep(10 * 1000);
  }
  CHECK(r, status == expected, "%d %s", status, error_out->detail);
  CHECK(r, error_out->detail[0] != 0 && strcmp(sml_error_detail(), error_out->detail) == 0, "%s", sml_error_detail());
  float x = 0;
  sml_operation *op;
  CHECK(r, sml_allreduce(r->job, &x, &x, 1, SML_FLOAT32, SML_SUM, NULL, &op) == expected && op == NULL);
}

sml_status allreduce(struct rank *r, const void *in, void *out, size_t count, sml_type type,
                     sml_reduction reduction) {
  sml_operation *op;
  sml_status status = sml_allreduce(r->job, in, out, count, type, reduction, NULL, &op);
  if (status != SML_OK) return status;
  status = sml_operation_wait(op, 30 * SML_NS_PER_S);
  sml_operation_release(op);
  return status;
}

float float_value(uint32_t rank, size_t i) {
  return (float)((int)((i * 7 + rank * 13 + i / 1000) % 2001) - 1000);
}

int32_t int_value(uint32_t rank, size_t i) {
  return (int32_t)(uint32_t)sml_mix64(i * 64 + rank + 1); /* all 32 bits, so that sums wrap */
}
