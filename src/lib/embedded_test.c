/* SPDX-License-Identifier: Apache-2.0
 * Jobs without a configured aggregator: ranks embed it, whatever their number and placement; what a rank that goes
 * takes along, and for whom it waits before. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/test_world.h"
#include "meet/embedded.h"
#include "meet/interfaces.h"
#include "quant/narrow.h"

static struct sml_addr addr_of(const char *text) {
  struct sml_addr addr;
  char error[128];
  if (!sml_addr_parse(text, 5, &addr, error, sizeof error)) fail_msg("%s", error);
  return addr;
}

static sml_status sum(struct rank *r, size_t count) {
  float *data = malloc((count + 1) * sizeof *data);
  for (size_t i = 0; i < count; i++) data[i] = float_value(r->rank, i);
  sml_status status = allreduce(r, data, data, count, SML_FLOAT32, SML_SUM);
  for (size_t i = 0; i < count && status == SML_OK; i++) {
    double expected = 0;
    for (uint32_t k = 0; k < r->world->num_ranks; k++) expected += (double)float_value(k, i);
    if ((double)data[i] != expected) status = SML_ERR_INTEGRITY;
  }
  free(data);
  return status;
}

static const size_t counts[] = {0, 1, 129, 2500, 20000, 300001}, sum_elems = 1 + 129 + 2500 + 20000 + 300001;

static void check_sums(struct rank *r) {
  for (size_t i = 0; i < SML_ARRAY_LEN(counts); i++) {
    const sml_status status = sum(r, counts[i]);
    CHECK(r, status == SML_OK, "%zu: %d %s", counts[i], status, sml_error_detail());
  }
}

static void run_world(uint32_t num_ranks, bool shares_memory, uint32_t num_shards, uint32_t num_threads) {
  struct world w;
  world_init(&w, num_ranks);
  w.job_options.lease_ns = PATIENT_LEASE_NS;
  w.is_embedded = true;
  w.job_options.no_shared_memory = !shares_memory;
  w.context_options.num_threads = num_threads;
  if (num_ranks >= SML_NARROW_MIN_RANKS) w.job_options.check = 2; /* what is checked is not narrow */
  world_join(&w);
  for (uint32_t r = 0; r < num_ranks; r++) {
    const struct sml_job *job = w.ranks[r].job;
    if (num_ranks == 1) continue;
    if (shares_memory && !job->state.start.is_one_host) continue; /* the tests' surroundings forbid it */
    assert_int_equal(job->state.num_shards, num_shards);
    assert_int_equal(job->lanes.num_lanes, num_shards * num_threads);
    assert_int_equal(job->embedded != NULL, r < num_shards);
  }
  world_run(&w, check_sums);
  for (uint32_t r = 0; r < num_ranks && num_ranks > 1 && !shares_memory; r++) { /* narrow updates from 5 ranks on */
    sml_stats stats = SML_STATS_INIT;
    assert_int_equal(sml_job_stats(w.ranks[r].job, &stats), SML_OK);
    if (num_ranks >= SML_NARROW_MIN_RANKS) assert_int_equal(stats.chunk_bytes % SML_NARROW_UNIT, 0);
    if (stats.retransmissions > 0) continue;
    const uint64_t sum_bytes = sizeof(float) * sum_elems;
    if (num_ranks >= SML_NARROW_MIN_RANKS) assert_true(stats.tx_bytes < sum_bytes / 100 * 93);
    else assert_true(stats.tx_bytes > sum_bytes);
  }
  const uint64_t begin_ns = sml_clock_ns();
  world_stop(&w);
  assert_true(sml_clock_ns() - begin_ns < 3 * SML_NS_PER_S); /* nobody waits for anybody in vain */
}

static void any_number_of_ranks(void **state) {
  (void)state;
  run_world(1, false, 0, 1);
  run_world(2, false, 2, 1);
  run_world(3, false, 3, 2);
  run_world(8, false, 8, 1);
}

static void one_host_has_one_shard(void **state) {
  (void)state;
  run_world(4, true, 1, 1);
}

/* Ranks 0, 1 and 2, 3: as if they were on two hosts, over the loopback that they share. */
static void join_of_two_hosts(struct rank *r) {
  sml_job_options o = r->world->job_options;
  o.aggregator = "";
  o.allgather = world_gather;
  o.allgather_user = r;
  o.rank = r->rank;
  o.world_size = r->world->num_ranks;
  sml_test_host = r->rank / 2 + 1;
  CHECK(r, sml_context_create(&r->world->context_options, &r->context) == SML_OK);
  CHECK(r, sml_job_create(r->context, &o, &r->job) == SML_OK, "%s", sml_error_detail());
}

static void two_hosts_have_two_shards(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 4);
  pthread_barrier_init(&w.gathering, NULL, 4);
  world_run(&w, join_of_two_hosts);
  pthread_barrier_destroy(&w.gathering);
  const struct sml_job *job = w.ranks[3].job;
  if (job->state.start.num_ranks != 0) {
    assert_int_equal(job->state.num_shards, 2);
    assert_int_equal(job->state.shards[1].process_rank, 2);
    assert_true(w.ranks[2].job->embedded != NULL && w.ranks[1].job->embedded == NULL);
  }
  world_run(&w, check_sums);
  world_stop(&w);
}

static void strangers_without_the_key_are_refused(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  w.is_embedded = true;
  w.job_options.no_shared_memory = 1;
  world_join(&w);
  struct sml_addr addr;
  char text[64];
  sml_aggd_addr(w.ranks[0].job->embedded->aggd, &addr);
  sml_addr_format(&addr, text, sizeof text);
  assert_int_equal(strncmp(text, "127.0.0.1:", 10), 0); /* nobody needs it from elsewhere */
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  sml_context *context;
  sml_job *job;
  o.aggregator = text;
  o.world_size = 2;
  o.name = w.ranks[0].job->state.name;
  assert_int_equal(sml_context_create(NULL, &context), SML_OK);
  assert_int_equal(sml_job_create(context, &o, &job), SML_ERR_KEY);
  sml_context_destroy(context);
  world_run(&w, check_sums);
  world_stop(&w);
}

/* ---- leaving ---- */

static pthread_barrier_t others;

/* Rank 0 is done and goes; rank 1 looks at its result much later, and has it. */
static void leave_early_on_rank_0(struct rank *r) {
  static float data[3][400000];
  sml_operation *op;
  CHECK(r, sml_allreduce(r->job, data[r->rank], data[r->rank], 400000, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK);
  if (r->rank == 0) {
    CHECK(r, sml_operation_wait(op, 20 * SML_NS_PER_S) == SML_OK);
    sml_operation_release(op);
    sml_job_destroy(r->job);
    r->job = NULL;
    return;
  }
  usleep(900 * 1000);
  CHECK(r, sml_operation_wait(op, 20 * SML_NS_PER_S) == SML_OK, "%s", sml_error_detail());
  sml_operation_release(op);
  sml_error error = SML_ERROR_INIT;
  float x = 1;
  const sml_status before = sml_job_error(r->job, NULL);
  pthread_barrier_wait(&others);            /* the next call fails the job for both */
  CHECK(r, before == SML_OK, "%d", before); /* rank 0 had done all that it had to do */
  sml_status status = sml_allreduce(r->job, &x, &x, 1, SML_FLOAT32, SML_SUM, NULL, &op);
  if (status == SML_OK) {
    status = sml_operation_wait(op, 10 * SML_NS_PER_S);
    sml_operation_release(op);
  }
  CHECK(r, status == SML_ERR_RANK_LOST, "%d %s", status, sml_error_detail());
  CHECK(r, sml_job_error(r->job, &error) == SML_ERR_RANK_LOST && error.ranks[0] == 0, "%s", error.detail);
}

static void who_is_done_may_go(void **state) {
  (void)state;
  for (uint32_t shares_memory = 0; shares_memory < 2; shares_memory++) {
    struct world w;
    world_init(&w, 3);
    w.is_embedded = true;
    w.job_options.no_shared_memory = !shares_memory;
    world_join(&w);
    pthread_barrier_init(&others, NULL, 2);
    world_run(&w, leave_early_on_rank_0);
    pthread_barrier_destroy(&others);
    world_stop(&w);
  }
}

static void wait_for_rank_1(struct rank *r) {
  float x = 1;
  sml_operation *op;
  if (r->rank == 1) {
    await_waiting(r);
    sml_job_destroy(r->job);
    r->job = NULL;
    return;
  }
  CHECK(r, sml_allreduce(r->job, &x, &x, 1, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK);
  note_waiting(r);
  const sml_status status = sml_operation_wait(op, 20 * SML_NS_PER_S);
  sml_operation_release(op);
  sml_error error = SML_ERROR_INIT;
  CHECK(r, status == SML_ERR_RANK_LOST, "%d %s", status, sml_error_detail());
  CHECK(r, sml_job_error(r->job, &error) == status && error.ranks[0] == 1, "%s", error.detail);
}

static void who_leaves_others_waiting_is_named(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 3);
  w.is_embedded = true;
  w.job_options.no_shared_memory = 1;
  world_join(&w);
  world_run(&w, wait_for_rank_1);
  world_stop(&w);
}

static void abort_on_rank_1(struct rank *r) {
  static float data[3][100000];
  sml_operation *op;
  if (r->rank == 1) {
    await_waiting(r);
    sml_job_abort(r->job, "the loss is no number");
    sml_job_destroy(r->job); /* as scripts do that fail */
    r->job = NULL;
    return;
  }
  CHECK(r, sml_allreduce(r->job, data[r->rank], data[r->rank], 100000, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK);
  note_waiting(r);
  const sml_status status = sml_operation_wait(op, 20 * SML_NS_PER_S);
  sml_operation_release(op);
  CHECK(r, status == SML_ERR_ABORTED && strstr(sml_error_detail(), "no number"), "%d %s", status, sml_error_detail());
}

static void who_aborts_is_heard(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 3);
  w.is_embedded = true;
  w.job_options.no_shared_memory = 1;
  world_join(&w);
  world_run(&w, abort_on_rank_1);
  world_stop(&w);
}

/* ---- processes that die ---- */

#define NUM_PROCESSES 3u

/* What processes share: an all-gather, and how they fared. */
struct shared {
  pthread_barrier_t barrier;
  uint8_t records[NUM_PROCESSES][4096];
  _Atomic uint32_t num_joined; /* before that nobody is lost but who others wait for without end, in the barrier */
  struct {
    sml_status status;
    uint32_t num_ranks, first_rank;
    uint64_t took_ns;
    char detail[sizeof(((sml_error *)0)->detail)];
  } ends[NUM_PROCESSES];
};
static struct shared *shared;
static uint32_t process_rank;

static int gather_in_shared(void *user, const void *in, void *out, size_t num_bytes) {
  (void)user;
  memcpy(shared->records[process_rank], in, num_bytes);
  pthread_barrier_wait(&shared->barrier);
  for (uint32_t i = 0; i < NUM_PROCESSES; i++) memcpy((uint8_t *)out + i * num_bytes, shared->records[i], num_bytes);
  pthread_barrier_wait(&shared->barrier);
  return 0;
}

static void be_rank(uint32_t rank, bool shares_memory) {
  static float data[1 << 20];
  sml_context *context;
  sml_job *job;
  sml_operation *op;
  sml_error error = SML_ERROR_INIT;
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  process_rank = rank;
  o.aggregator = "";
  o.rank = rank;
  o.world_size = NUM_PROCESSES;
  o.allgather = gather_in_shared;
  o.no_shared_memory = !shares_memory;
  o.lease_ns = SML_NS_PER_S;
  if (sml_context_create(NULL, &context) != SML_OK || sml_job_create(context, &o, &job) != SML_OK) {
    fprintf(stderr, "# rank %u: %s\n", rank, sml_error_detail());
    _exit(2);
  }
  uint64_t begin_ns;
  sml_status status;
  shared->num_joined++;
  do {
    begin_ns = sml_clock_ns();
    status = sml_allreduce(job, data, data, SML_ARRAY_LEN(data), SML_FLOAT32, SML_SUM, NULL, &op);
    if (status != SML_OK) break;
    status = sml_operation_wait(op, 30 * SML_NS_PER_S);
    sml_operation_release(op);
  } while (status == SML_OK);
  shared->ends[rank].status = sml_job_error(job, &error);
  shared->ends[rank].took_ns = sml_clock_ns() - begin_ns;
  shared->ends[rank].num_ranks = error.num_ranks;
  shared->ends[rank].first_rank = error.ranks[0];
  memcpy(shared->ends[rank].detail, error.detail, sizeof error.detail);
  sml_job_destroy(job);
  sml_context_destroy(context);
  _exit(0);
}

static void lose_a_process(uint32_t victim, int signal_number, bool shares_memory) {
  pthread_barrierattr_t attributes;
  pid_t pids[NUM_PROCESSES];
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(shared != MAP_FAILED);
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->barrier, &attributes, NUM_PROCESSES);
  for (uint32_t r = 0; r < NUM_PROCESSES; r++) {
    pids[r] = fork();
    if (pids[r] != 0) continue;
    alarm(60); /* not longer than its parent, whatever happens */
    be_rank(r, shares_memory);
  }
  for (uint32_t i = 0; i < 3000 && shared->num_joined < NUM_PROCESSES; i++) usleep(10 * 1000);
  usleep(400 * 1000);
  kill(pids[victim], signal_number);
  for (uint32_t r = 0; r < NUM_PROCESSES; r++) {
    int status;
    if (r == victim) continue;
    assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    if (shared->ends[r].status != SML_ERR_RANK_LOST || shared->ends[r].num_ranks != 1 ||
        shared->ends[r].first_rank != victim)
      fail_msg("rank %u: %d %s", r, shared->ends[r].status, shared->ends[r].detail);
    assert_true(shared->ends[r].took_ns < 15 * SML_NS_PER_S);
  }
  kill(pids[victim], SIGKILL);
  waitpid(pids[victim], NULL, 0);
  munmap(shared, sizeof *shared);
}

static void a_killed_rank_is_named_though_its_shard_is_gone_too(void **state) {
  (void)state;
  lose_a_process(1, SIGKILL, false);
  lose_a_process(0, SIGKILL, true);
}

static void a_stopped_rank_is_named(void **state) {
  (void)state;
  lose_a_process(2, SIGSTOP, false);
}

/* ---- fork ---- */

/* The child holds nothing of the shard's: its port can be bound again as soon as the parent has left. */
static void a_child_lets_the_shard_go(void **state) {
  (void)state;
  struct world w;
  int to_child[2];
  char byte;
  world_init(&w, 2);
  w.is_embedded = true;
  w.job_options.no_shared_memory = 1;
  world_join(&w);
  struct sml_addr addr;
  sml_aggd_addr(w.ranks[0].job->embedded->aggd, &addr);
  assert_int_equal(pipe(to_child), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    close(to_child[1]);
    sml_job_destroy(w.ranks[0].job); /* both do nothing here */
    sml_context_destroy(w.ranks[0].context);
    _exit(read(to_child[0], &byte, 1) == 0 ? 0 : 1);
  }
  close(to_child[0]);
  world_run(&w, check_sums);
  world_stop(&w);
  const struct sml_aggd_options options = {.listen = addr};
  struct sml_aggd *aggd;
  char error[256];
  if (sml_aggd_start(&options, &aggd, error, sizeof error) != 0) fail_msg("%s", error);
  sml_aggd_stop(aggd);
  close(to_child[1]);
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_int_equal(status, 0);
}

/* ---- addresses ---- */

static void near_and_own_addresses_are_known(void **state) {
  (void)state;
  const struct sml_interfaces i = {
      .num_addrs = 2,
      .addrs = {{.addr = addr_of("10.1.2.3"), .prefix_bits = 23}, {.addr = addr_of("2001:db8::1"), .prefix_bits = 64}}};
  const struct sml_addr own = addr_of("10.1.2.3:9"), near = addr_of("10.1.3.255"), far = addr_of("10.1.4.0"),
                        near6 = addr_of("2001:db8::ffff"), far6 = addr_of("2001:db8:0:1::1");
  assert_true(sml_interfaces_is_own(&i, &own) && sml_interfaces_is_near(&i, &own));
  assert_true(!sml_interfaces_is_own(&i, &near) && sml_interfaces_is_near(&i, &near));
  assert_false(sml_interfaces_is_near(&i, &far));
  assert_true(sml_interfaces_is_near(&i, &near6) && !sml_interfaces_is_own(&i, &near6));
  assert_false(sml_interfaces_is_near(&i, &far6));
  struct sml_interfaces here;
  assert_true(sml_interfaces_list("no-such-interface", &here));
  assert_int_equal(here.num_addrs, 0);
  assert_true(sml_interfaces_list(NULL, &here));
}

static void join_in_vain(struct rank *r) {
  sml_job_options o = r->world->job_options;
  o.aggregator = "";
  o.allgather = world_gather;
  o.allgather_user = r;
  o.rank = r->rank;
  o.world_size = r->world->num_ranks;
  CHECK(r, sml_context_create(NULL, &r->context) == SML_OK);
  r->status = sml_job_create(r->context, &o, &r->job);
  CHECK(r,
        r->status == SML_ERR_INVALID_ARGUMENT && strstr(sml_error_detail(), getenv("SWITCHML_INTERFACE")) &&
            strstr(sml_error_detail(), "lo has none"),
        "%s", sml_error_detail());
}

static void interfaces_of_no_use_are_said(void **state) {
  (void)state;
  static const char *const names[] = {"eth9", "lo"};
  for (size_t i = 0; i < SML_ARRAY_LEN(names); i++) {
    struct world w;
    world_init(&w, 2);
    setenv("SWITCHML_INTERFACE", names[i], 1);
    pthread_barrier_init(&w.gathering, NULL, 2);
    world_run(&w, join_in_vain);
    pthread_barrier_destroy(&w.gathering);
    unsetenv("SWITCHML_INTERFACE");
    world_stop(&w);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      /* forks, before there are threads */
      cmocka_unit_test(a_killed_rank_is_named_though_its_shard_is_gone_too),
      cmocka_unit_test(a_stopped_rank_is_named),
      cmocka_unit_test(any_number_of_ranks),
      cmocka_unit_test(one_host_has_one_shard),
      cmocka_unit_test(two_hosts_have_two_shards),
      cmocka_unit_test(strangers_without_the_key_are_refused),
      cmocka_unit_test(who_is_done_may_go),
      cmocka_unit_test(who_leaves_others_waiting_is_named),
      cmocka_unit_test(who_aborts_is_heard),
      cmocka_unit_test(near_and_own_addresses_are_known),
      cmocka_unit_test(interfaces_of_no_use_are_said),
      cmocka_unit_test(a_child_lets_the_shard_go),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
