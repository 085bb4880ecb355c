/* SPDX-License-Identifier: Apache-2.0
 * A worker for tests: all-reduces, or what MEMBER_COLLECTIVE names, on and on through the public interface. It checks
 * every element of every result, and says what happened with the time of CLOCK_MONOTONIC in front, so that other
 * processes can compare:
 *   NS joined TOOK_NS        NS working           NS done OPERATIONS
 *   NS error STATUS RANKS OPERATION "DETAIL"      (RANKS: 1,2 or - ; the status by its number)
 *   NS wrong operation OPERATION element INDEX: SUM
 * MEMBER_ONES: every sum is of int32, rank + 1 in all places. MEMBER_WAIT: it begins when standard input has a line.
 * RANK, WORLD_SIZE (or a launcher's) and the variables of the library are taken from the environment. Exit status:
 * 0 done, 3 an error of the library, 1 a wrong result. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "switchml/switchml.h"

#define NUM_IN_FLIGHT 2u
#define NS_PER_S UINT64_C(1000000000)

enum { EXIT_WRONG = 1, EXIT_ERROR = 3 };

/* All are done in place. In rows, as an operation's number has it: ALL, each in turn, with another root each time;
 * SHARDED, a reduce-scatter and an all-gather at once. */
enum collective { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, REDUCE, BARRIER, ALL, SHARDED };
#define NUM_COLLECTIVES ((uint64_t)ALL)
static const char *const names[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                    "reduce",     "barrier",        "all",        "sharded"};

struct member {
  bool is_launched; /* no RANK: a launcher says who this is, and the library finds it */
  bool has_ones;
  uint32_t rank, world_size;
  enum collective collective;
  uint64_t num_operations, pause_ns; /* 0: without end */
  size_t num_elems;
  sml_context *context;
  sml_job *job;
};

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static uint64_t number_from(const char *name, uint64_t otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static int say_error(const sml_error *error, sml_status status) {
  char ranks[128] = "-";
  size_t used = 0;
  for (uint32_t i = 0; i < error->num_ranks && used < sizeof ranks; i++)
    used += (size_t)snprintf(ranks + used, sizeof ranks - used, "%s%u", i ? "," : "", error->ranks[i]);
  printf("%" PRIu64 " error %d %s %" PRIu64 " \"%s\"\n", now_ns(), (int)status, ranks, error->operation,
         error->detail[0] ? error->detail : sml_error_detail());
  fflush(stdout);
  return EXIT_ERROR;
}

static enum collective collective_of(const struct member *m, uint64_t operation) {
  if (m->collective == SHARDED) return operation % 2 == 0 ? REDUCE_SCATTER : ALL_GATHER;
  return m->collective == ALL ? (enum collective)(operation % NUM_COLLECTIVES) : m->collective;
}

static uint32_t root_of(const struct member *m, uint64_t operation) {
  return (uint32_t)(operation / NUM_COLLECTIVES % m->world_size);
}

static bool is_copy(enum collective collective) {
  return collective == ALL_GATHER || collective == BROADCAST;
}

/* Whole numbers that float32 holds and block fixed point keeps, in either type. They come again after PERIOD elements,
 * so that a test's time goes into what it tests. */
enum { PERIOD = 4099 };

static int32_t input_of(const struct member *m, uint32_t rank, uint64_t operation, size_t i) {
  if (m->has_ones) return (int32_t)rank + 1;
  return (int32_t)((rank * 131u + operation * 31u + i * 7u) % PERIOD) - 2049;
}

static sml_type type_of(const struct member *m, uint64_t operation) {
  const bool is_float = operation % 2 == 0 && !m->has_ones && !is_copy(collective_of(m, operation));
  return is_float ? SML_FLOAT32 : SML_INT32;
}

static void fill(const struct member *m, uint64_t operation, void *buffer) {
  size_t num = m->num_elems < PERIOD ? m->num_elems : PERIOD;
  for (size_t i = 0; i < num; i++) {
    const int32_t value = input_of(m, m->rank, operation, i);
    if (type_of(m, operation) == SML_INT32) ((int32_t *)buffer)[i] = value;
    else ((float *)buffer)[i] = (float)value;
  }
  for (size_t more; num < m->num_elems; num += more) {
    more = m->num_elems - num < num ? m->num_elems - num : num;
    memcpy((int32_t *)buffer + num, buffer, more * sizeof(int32_t));
  }
}

static int32_t result_of(const struct member *m, uint64_t operation, size_t i) {
  const enum collective collective = collective_of(m, operation);
  if (collective == ALL_GATHER) return input_of(m, (uint32_t)(i / (m->num_elems / m->world_size)), operation, i);
  if (collective == BROADCAST) return input_of(m, root_of(m, operation), operation, i);
  int32_t sum = 0;
  for (uint32_t rank = 0; rank < m->world_size; rank++) sum += input_of(m, rank, operation, i);
  return sum;
}

/* Elements whose results come again after PERIOD. */
static bool are_right(const struct member *m, uint64_t operation, const void *buffer, size_t first, size_t end) {
  const bool is_int = type_of(m, operation) == SML_INT32;
  int32_t results[PERIOD];
  for (size_t k = 0; k < PERIOD && first + k < end; k++) results[k] = result_of(m, operation, first + k);
  for (size_t i = first, k = 0; i < end; i++, k = k + 1 < PERIOD ? k + 1 : 0) {
    const double is = is_int ? (double)((const int32_t *)buffer)[i] : (double)((const float *)buffer)[i];
    if (is == results[k]) continue;
    printf("%" PRIu64 " wrong operation %" PRIu64 " element %zu: %g\n", now_ns(), operation, i, is);
    return false;
  }
  return true;
}

static bool is_right(const struct member *m, uint64_t operation, const void *buffer) {
  const enum collective collective = collective_of(m, operation);
  const size_t each = m->num_elems / m->world_size;
  if (collective == BARRIER) return true;
  if (collective == REDUCE && root_of(m, operation) != m->rank) return true;
  if (collective == REDUCE_SCATTER) return are_right(m, operation, buffer, m->rank * each, (m->rank + 1) * each);
  if (collective != ALL_GATHER) return are_right(m, operation, buffer, 0, m->num_elems);
  for (size_t rank = 0; rank < m->world_size; rank++)
    if (!are_right(m, operation, buffer, rank * each, (rank + 1) * each)) return false;
  return true;
}

static sml_status call(const struct member *m, uint64_t operation, void *buffer, sml_operation **handle_out) {
  const sml_type type = type_of(m, operation);
  const size_t each = m->num_elems / m->world_size;
  const uint32_t root = root_of(m, operation);
  void *own = (int32_t *)buffer + m->rank * each;
  switch (collective_of(m, operation)) {
    case REDUCE_SCATTER: return sml_reduce_scatter(m->job, buffer, own, each, NULL, type, SML_SUM, NULL, handle_out);
    case ALL_GATHER: return sml_all_gather(m->job, own, buffer, each * sizeof(int32_t), NULL, NULL, handle_out);
    case BROADCAST:
      return sml_broadcast(m->job, buffer, m->num_elems * sizeof(int32_t), root, NULL, handle_out);
    case REDUCE:
      return sml_reduce(m->job, buffer, m->rank == root ? buffer : NULL, m->num_elems, type, SML_SUM, root, NULL,
                        handle_out);
    case BARRIER: return sml_barrier(m->job, NULL, handle_out);
    default: return sml_allreduce(m->job, buffer, buffer, m->num_elems, type, SML_SUM, NULL, handle_out);
  }
}

static int submit(const struct member *m, uint64_t operation, void *buffer, sml_operation **handle_out) {
  sml_error error = SML_ERROR_INIT;
  fill(m, operation, buffer);
  const sml_status status = call(m, operation, buffer, handle_out);
  if (status == SML_OK) return 0;
  (void)sml_job_error(m->job, &error);
  return say_error(&error, status);
}

/* Waits for one operation and checks it. */
static int take(const struct member *m, uint64_t operation, const void *buffer, sml_operation *handle) {
  sml_error error = SML_ERROR_INIT;
  sml_status status = SML_IN_PROGRESS;
  while (status == SML_IN_PROGRESS) status = sml_operation_wait(handle, NS_PER_S);
  if (status != SML_OK) (void)sml_operation_error(handle, &error);
  sml_operation_release(handle);
  if (status != SML_OK) return say_error(&error, status);
  return is_right(m, operation, buffer) ? 0 : EXIT_WRONG;
}

static int work(const struct member *m, void **buffers) {
  sml_operation *handles[NUM_IN_FLIGHT] = {NULL};
  uint64_t num_submitted = 0, num_done = 0;
  int failed = 0;
  while (failed == 0 && (m->num_operations == 0 || num_done < m->num_operations)) {
    const bool has_more = m->num_operations == 0 || num_submitted < m->num_operations;
    if (has_more && num_submitted - num_done < NUM_IN_FLIGHT) {
      const uint64_t slot = num_submitted % NUM_IN_FLIGHT;
      failed = submit(m, num_submitted, buffers[slot], &handles[slot]);
      if (failed == 0) num_submitted++;
      continue;
    }
    const uint64_t slot = num_done % NUM_IN_FLIGHT;
    failed = take(m, num_done++, buffers[slot], handles[slot]);
    if (num_done == 1 && failed == 0) {
      printf("%" PRIu64 " working\n", now_ns());
      fflush(stdout);
    }
    const struct timespec pause = {.tv_sec = (time_t)(m->pause_ns / NS_PER_S),
                                   .tv_nsec = (long)(m->pause_ns % NS_PER_S)};
    if (m->pause_ns != 0) nanosleep(&pause, NULL);
  }
  /* After a failure the others end too, all the buffers are the library's until then. */
  for (; num_done < num_submitted; num_done++) {
    while (sml_operation_wait(handles[num_done % NUM_IN_FLIGHT], NS_PER_S) == SML_IN_PROGRESS) continue;
    sml_operation_release(handles[num_done % NUM_IN_FLIGHT]);
  }
  if (failed == 0) printf("%" PRIu64 " done %" PRIu64 "\n", now_ns(), num_done);
  return failed;
}

/* NS packets SENT RECEIVED RETRANSMISSIONS PROBES. An engine tells after its pass: when it has no more to tell. */
static void say_stats(const struct member *m) {
  sml_stats stats = SML_STATS_INIT;
  uint64_t before;
  do {
    before = stats.rx_packets;
    nanosleep(&(struct timespec){.tv_nsec = 50 * 1000000}, NULL);
    if (sml_job_stats(m->job, &stats) != SML_OK) return;
  } while (stats.rx_packets != before);
  printf("%" PRIu64 " packets %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", now_ns(), stats.tx_packets,
         stats.rx_packets, stats.retransmissions, stats.probes);
}

static int join(struct member *m) {
  sml_job_options options = SML_JOB_OPTIONS_INIT;
  if (!m->is_launched) {
    options.rank = m->rank;
    options.world_size = m->world_size;
  }
  options.name = getenv("MEMBER_JOB");
  options.num_slots = (uint32_t)number_from("MEMBER_SLOTS", 0);
  options.lease_ns = number_from("MEMBER_LEASE_MS", 0) * UINT64_C(1000000);
  options.operation_timeout_ns = number_from("MEMBER_TIMEOUT_MS", 0) * UINT64_C(1000000);
  options.join_timeout_ns = number_from("MEMBER_JOIN_TIMEOUT_S", 0) * NS_PER_S;
  const uint64_t start_ns = now_ns();
  sml_status status = sml_context_create(NULL, &m->context);
  if (status == SML_OK) status = sml_job_create(m->context, &options, &m->job);
  if (status != SML_OK) return say_error(&(sml_error)SML_ERROR_INIT, status);
  printf("%" PRIu64 " joined %" PRIu64 "\n", now_ns(), now_ns() - start_ns);
  fflush(stdout);
  return 0;
}

static enum collective collective_from(const char *name) {
  uint32_t i = ALL_REDUCE;
  while (name != NULL && i < SHARDED && strcmp(name, names[i]) != 0) i++;
  return (enum collective)i;
}

int main(void) {
  struct member m = {.rank = (uint32_t)number_from("RANK", 0),
                     .world_size = (uint32_t)number_from("WORLD_SIZE", 1),
                     .num_operations = number_from("MEMBER_OPERATIONS", 0),
                     .pause_ns = number_from("MEMBER_PAUSE_US", 0) * 1000,
                     .num_elems = number_from("MEMBER_ELEMENTS", 100000),
                     .collective = collective_from(getenv("MEMBER_COLLECTIVE")),
                     .has_ones = number_from("MEMBER_ONES", 0) != 0};
  m.is_launched = getenv("RANK") == NULL;
  if (m.is_launched && sml_rank_from_environment(&m.rank, &m.world_size, NULL) != SML_OK)
    return say_error(&(sml_error)SML_ERROR_INIT, SML_ERR_NOT_CONFIGURED);
  if (m.collective != ALL_REDUCE) m.num_elems -= m.num_elems % m.world_size; /* parts are alike */
  void *buffers[NUM_IN_FLIGHT];
  for (uint32_t i = 0; i < NUM_IN_FLIGHT; i++) {
    buffers[i] = calloc(m.num_elems, sizeof(int32_t));
    if (!buffers[i]) return EXIT_WRONG;
  }
  int failed = join(&m);
  if (failed == 0 && number_from("MEMBER_WAIT", 0) != 0)
    for (int c = getchar(); c != '\n' && c != EOF;) c = getchar();
  if (failed == 0) failed = work(&m, buffers);
  if (failed == 0 && number_from("MEMBER_STATS", 0) != 0) say_stats(&m);
  fflush(stdout);
  if (m.job) sml_job_destroy(m.job);
  if (m.context) sml_context_destroy(m.context);
  for (uint32_t i = 0; i < NUM_IN_FLIGHT; i++) free(buffers[i]);
  return failed;
}
