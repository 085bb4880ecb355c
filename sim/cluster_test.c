/* SPDX-License-Identifier: Apache-2.0
 * The shipped daemon's engines and control thread, and the shipped library, on the simulated system: one
 * aggregator, some workers, sums that are right, and a run that is the same each time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "aggd/aggd.h"
#include "sim/kernel.h"
#include "switchml/switchml.h"

#define MAX_WORKERS 8u
#define AGGREGATOR_IPV4 0x0a000001u
#define PORT 48879u

struct cluster;
struct worker {
  struct cluster *cluster;
  struct sim_process *process;
  uint32_t rank;
  bool is_right, is_done;
  sml_status status;
  char detail[256];
  sml_stats stats;  /* at its end */
  uint64_t last_ns; /* what its last operation took */
};
struct cluster {
  uint32_t num_workers, num_operations, num_slots, max_datagram_bytes;
  size_t num_elems;
  struct sim_process *aggregator;
  struct sim_host *hosts[MAX_WORKERS + 1];
  struct worker workers[MAX_WORKERS];
  bool should_stop;
};

static int run_aggregator(void *argument) {
  struct cluster *c = argument;
  struct sml_aggd_options options = {.max_connections = 64, .max_jobs = 4};
  char error[256];
  struct sml_aggd *aggd;
  if (!sml_addr_parse("0.0.0.0:48879", 0, &options.listen, error, sizeof error)) return 1;
  if (sml_aggd_start(&options, &aggd, error, sizeof error) != 0) return 1;
  while (!c->should_stop) sim_sleep_ns(10 * SML_NS_PER_MS);
  sml_aggd_stop(aggd);
  return 0;
}

static int32_t value_of(uint32_t operation, uint32_t rank, size_t i) {
  return (int32_t)(uint32_t)sml_mix64((uint64_t)operation << 40 ^ (uint64_t)rank << 32 ^ i);
}

static bool sum_once(struct worker *w, sml_job *job, uint32_t operation, int32_t *tensor) {
  const struct cluster *c = w->cluster;
  for (size_t i = 0; i < c->num_elems; i++) tensor[i] = value_of(operation, w->rank, i);
  sml_operation *op;
  w->status = sml_allreduce(job, tensor, tensor, c->num_elems, SML_INT32, SML_SUM, NULL, &op);
  if (w->status != SML_OK) return false;
  while ((w->status = sml_operation_wait(op, SML_NS_PER_S)) == SML_IN_PROGRESS) continue;
  sml_operation_release(op);
  if (w->status != SML_OK) return false;
  for (size_t i = 0; i < c->num_elems; i++) {
    uint32_t sum = 0;
    for (uint32_t r = 0; r < c->num_workers; r++) sum += (uint32_t)value_of(operation, r, i);
    if (tensor[i] != (int32_t)sum) return false;
  }
  return true;
}

static int run_worker(void *argument) {
  struct worker *w = argument;
  const struct cluster *c = w->cluster;
  sml_context *context;
  sml_job *job = NULL;
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  o.rank = w->rank;
  o.world_size = c->num_workers;
  o.num_slots = c->num_slots;
  o.max_datagram_bytes = c->max_datagram_bytes;
  w->status = sml_context_create(NULL, &context);
  if (w->status == SML_OK) w->status = sml_job_create(context, &o, &job);
  snprintf(w->detail, sizeof w->detail, "%s", w->status != SML_OK ? sml_error_detail() : "");
  if (w->status == SML_OK) {
    int32_t *tensor = malloc(c->num_elems * sizeof *tensor);
    w->is_right = tensor != NULL;
    for (uint32_t n = 0; w->is_right && n < c->num_operations; n++) {
      const uint64_t begin_ns = sim_now_ns();
      w->is_right = sum_once(w, job, n, tensor);
      w->last_ns = sim_now_ns() - begin_ns;
    }
    free(tensor);
    w->stats = (sml_stats)SML_STATS_INIT;
    (void)sml_job_stats(job, &w->stats);
  }
  w->is_done = true;
  sml_job_destroy(job);
  sml_context_destroy(context);
  return 0;
}

static void print_line(void *user, const char *line) {
  (void)user;
  printf("# %s\n", line);
}

static void begin_cluster(struct cluster *c, uint64_t seed, const struct sim_link *link) {
  struct sim_options options = {.seed = seed};
  if (getenv("SIM_TRACE") != NULL) options.trace = print_line;
  sim_begin(&options);
  struct sim_host_options host = {
      .name = "hub", .ipv4 = AGGREGATOR_IPV4, .up = *link, .down = *link, .mtu_bytes = 9000};
  c->hosts[0] = sim_host_add(&host);
  c->aggregator = sim_spawn(c->hosts[0], "switchmld", run_aggregator, c, NULL);
  for (uint32_t r = 0; r < c->num_workers; r++) {
    char name[32];
    snprintf(name, sizeof name, "worker-%u", r);
    host.name = name;
    host.ipv4 = AGGREGATOR_IPV4 + 1 + r;
    c->hosts[r + 1] = sim_host_add(&host);
    struct worker *w = &c->workers[r];
    *w = (struct worker){.cluster = c, .rank = r, .status = SML_IN_PROGRESS};
    const char *const environment[] = {"SWITCHML_AGGREGATOR=10.0.0.1:48879", NULL};
    w->process = sim_spawn(c->hosts[r + 1], name, run_worker, w, environment);
    sim_process_set_clock(w->process, (r + 1) * SML_NS_PER_S, (int32_t)(r % 3) * 50000 - 50000);
  }
}

static bool have_workers_exited(void *user) {
  const struct cluster *c = user;
  for (uint32_t r = 0; r < c->num_workers; r++)
    if (sim_process_state(c->workers[r].process) == SIM_RUNNING) return false;
  return true;
}

static void assert_no_leak(const struct sim_process *process) {
  struct sim_usage leaks;
  sim_process_leaks(process, &leaks);
  assert_int_equal(sim_process_state(process), SIM_EXITED);
  assert_int_equal(leaks.num_allocations, 0);
  assert_int_equal(leaks.num_descriptors, 0);
  assert_int_equal(leaks.num_data_sockets, 0);
  assert_int_equal(leaks.num_threads, 0);
}

/* The digest of the whole run. */
static uint64_t run_cluster(struct cluster *c, uint64_t seed, const struct sim_link *link) {
  c->should_stop = false;
  begin_cluster(c, seed, link);
  assert_int_equal(sim_run_until(600 * SML_NS_PER_S, have_workers_exited, c), SIM_REACHED_GOAL);
  for (uint32_t r = 0; r < c->num_workers; r++) {
    const struct worker *w = &c->workers[r];
    if (w->status != SML_OK) print_message("# worker %u: %d %s\n", r, (int)w->status, w->detail);
    assert_int_equal(w->status, SML_OK);
    assert_true(w->is_right);
    assert_no_leak(w->process);
  }
  c->should_stop = true;
  assert_int_equal(sim_run_until(SML_NEVER, NULL, NULL), SIM_IDLE);
  assert_int_equal(sim_process_exit_code(c->aggregator), 0);
  assert_no_leak(c->aggregator);
  return sim_digest();
}

static void report(double wall_s) {
  print_message("# %.3f virtual s, %.3f wall s, %.2f million datagrams/s, %llu events, digest %016llx",
                (double)sim_now_ns() * 1e-9, wall_s, (double)sim_count(SIM_DATAGRAMS_DELIVERED) * 1e-6 / wall_s,
                (unsigned long long)sim_num_events(), (unsigned long long)sim_digest());
  for (uint32_t i = 0; i < SIM_NUM_COUNTS; i++)
    if (sim_count(i) > 0) print_message(" %s=%llu", sim_count_name(i), (unsigned long long)sim_count(i));
  print_message("\n");
}

static double wall_seconds(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static const struct sim_link clean_link = {
    .bits_per_s = UINT64_C(10000000000), .delay_ns = 10000, .queue_bytes = 1 << 20};

static void test_two_workers(void **state) {
  (void)state;
  struct cluster c = {.num_workers = 2, .num_operations = 3, .num_elems = 100000};
  const double start_s = wall_seconds();
  (void)run_cluster(&c, 1, &clean_link);
  report(wall_seconds() - start_s);
  sim_end();
}

static void test_all_faults(void **state) {
  (void)state;
  struct sim_link link = clean_link;
  link.faults = (struct sim_faults){.loss = 0.02,
                                    .burst_loss = 0.002,
                                    .duplicate = 0.02,
                                    .reorder = 0.05,
                                    .reorder_ns = SML_NS_PER_MS,
                                    .corrupt = 0.01,
                                    .truncate = 0.005};
  uint64_t digests[2];
  for (uint64_t seed = 1; seed <= 4; seed++) {
    for (uint32_t run = 0; run < 2; run++) {
      struct cluster c = {.num_workers = 3, .num_operations = 4, .num_elems = 20000, .max_datagram_bytes = 700};
      digests[run] = run_cluster(&c, seed, &link);
      for (enum sim_count what = SIM_LOST; what <= SIM_TRUNCATED; what++) assert_true(sim_count(what) > 0);
      sim_end();
    }
    assert_int_equal(digests[0], digests[1]);
  }
}

/* The round trip is measured at the join, and the slots that it needs are given: one window of 256 would take ten
 * round trips for this tensor. A near one keeps the usual number. The first operation opens the window of congestion,
 * which takes six round trips; the second has all slots. */
static void test_slots_follow_the_round_trip(void **state) {
  (void)state;
  static const struct {
    uint64_t delay_ns;
    uint32_t num_slots;
    sml_slots_reason why;
  } rows[] = {{10000, 256, SML_SLOTS_REASON_USUAL},
              {1250000, 4096, SML_SLOTS_REASON_PATH},
              {12500000, 4096, SML_SLOTS_REASON_PATH}};
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    const struct sim_link link = {
        .bits_per_s = UINT64_C(1000000000), .delay_ns = rows[i].delay_ns, .queue_bytes = 16 << 20};
    struct cluster c = {.num_workers = 2, .num_operations = 2, .num_elems = 1000000, .max_datagram_bytes = 1472};
    (void)run_cluster(&c, 1, &link);
    const sml_stats *stats = &c.workers[0].stats;
    const uint64_t rtt_ns = 4 * rows[i].delay_ns; /* up and down twice */
    assert_int_equal(stats->num_slots, rows[i].num_slots);
    assert_int_equal(stats->slots_why, rows[i].why);
    assert_in_range(stats->join_rtt_ns, rtt_ns, rtt_ns + 200000);              /* and four links' time for a datagram */
    assert_in_range(c.workers[0].last_ns, 0, 2 * rtt_ns + 80 * SML_NS_PER_MS); /* the hub takes 67 for both */
    assert_int_equal(stats->retransmissions, 0);
    sim_end();
  }
}

static int run_speed(uint32_t num_operations) {
  struct cluster c = {.num_workers = 4, .num_operations = num_operations, .num_elems = 1000000};
  const double start_s = wall_seconds();
  (void)run_cluster(&c, 1, &clean_link);
  report(wall_seconds() - start_s);
  sim_end();
  c.max_datagram_bytes = 300;
  const double again_s = wall_seconds();
  (void)run_cluster(&c, 1, &clean_link);
  report(wall_seconds() - again_s);
  sim_end();
  return 0;
}

int main(int argc, char **argv) {
  if (argc == 3 && strcmp(argv[1], "--speed") == 0) return run_speed((uint32_t)atoi(argv[2]));
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_two_workers), cmocka_unit_test(test_all_faults),
                                     cmocka_unit_test(test_slots_follow_the_round_trip)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
