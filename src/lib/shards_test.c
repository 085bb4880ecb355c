/* SPDX-License-Identifier: Apache-2.0
 * A job that several aggregators share: right sums whatever the number of chunks, one membership for all that each of
 * them knows, and one rank's error is every rank's. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/wire.h"
#include "ctl/member_start.h"
#include "lib/test_keeper.h"
#include "lib/test_world.h"
#include "meet/job_settings.h"

static pthread_barrier_t barrier;

#define LONG_ELEMS (SML_IS_SLOW_BUILD ? 50000u : 100000u)

/* ---- sums ---- */

static void check_sum(struct rank *r, size_t count, sml_type type, sml_reduction reduction) {
  const uint32_t n = r->world->num_ranks;
  uint32_t *data = malloc((count + 1) * sizeof *data);
  size_t num_wrong = 0;
  for (size_t i = 0; i < count; i++) {
    const float x = float_value(r->rank, i);
    if (type == SML_INT32) data[i] = (uint32_t)int_value(r->rank, i);
    else memcpy(&data[i], &x, sizeof x);
  }
  data[count] = 12345;
  const sml_status status = allreduce(r, data, data, count, type, reduction);
  for (size_t i = 0; i < count && status == SML_OK; i++) {
    double sum = 0;
    uint32_t expected = 0;
    for (uint32_t k = 0; k < n; k++) {
      sum += (double)float_value(k, i);
      expected += (uint32_t)int_value(k, i);
    }
    const float x = (float)(reduction == SML_AVG ? sum / n : sum);
    if (type == SML_FLOAT32) memcpy(&expected, &x, sizeof x);
    num_wrong += data[i] != expected;
  }
  const bool is_overrun = data[count] != 12345;
  free(data);
  CHECK(r, status == SML_OK, "%zu elements: %s", count, sml_error_detail());
  CHECK(r, num_wrong == 0 && !is_overrun, "%zu of %zu wrong", num_wrong, count);
}

/* Fewer chunks than lanes, as many, one more; long ones; in flight together with others. */
static void check_sums(struct rank *r) {
  const size_t chunk_elems = r->job->state.start.chunk_bytes / 4, k = r->job->lanes.num_lanes;
  const size_t counts[] = {0, 1, 2, chunk_elems, chunk_elems + 1, (k - 1) * chunk_elems, k * chunk_elems - 1,
                           k * chunk_elems, k * chunk_elems + 1, LONG_ELEMS, 7 * LONG_ELEMS + 1};
  for (size_t i = 0; i < SML_ARRAY_LEN(counts) && r->failure[0] == 0; i++) {
    check_sum(r, counts[i], SML_FLOAT32, SML_SUM);
    if (r->failure[0] == 0) check_sum(r, counts[i], SML_FLOAT32, SML_AVG);
    if (r->failure[0] == 0) check_sum(r, counts[i], SML_INT32, SML_SUM);
  }
}

static void run_world(uint32_t num_ranks, uint32_t num_aggds, uint32_t num_lanes, uint32_t max_datagram_bytes) {
  struct world w;
  world_init(&w, num_ranks);
  w.num_aggds = num_aggds;
  w.aggd_options.num_lanes = w.context_options.num_threads = num_lanes;
  w.job_options.max_datagram_bytes = max_datagram_bytes;
  w.job_options.no_shared_memory = 1;
  world_start(&w);
  sml_stats stats = SML_STATS_INIT;
  assert_int_equal(sml_job_stats(w.ranks[0].job, &stats), SML_OK);
  assert_int_equal(stats.num_lanes, num_aggds * num_lanes);
  /* They share one window, which is larger where the round trip was long: this machine may be a slow one. */
  assert_true(stats.num_slots * num_aggds <= 256 || stats.slots_why == SML_SLOTS_REASON_PATH);
  world_run(&w, check_sums);
  world_stop(&w);
}

static void sums_are_right_whatever_the_number(void **state) {
  (void)state;
  run_world(2, 2, 1, 1472);
  run_world(3, 3, 2, 0);
  run_world(3, 4, 1, 1472);
}

static void each_aggregator_has_its_share(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  w.num_aggds = 4;
  w.job_options.no_shared_memory = 1;
  world_start(&w);
  world_run(&w, check_sums);
  for (uint32_t r = 0; r < 2; r++)
    for (uint32_t l = 0; l < 4; l++) {
      struct sml_lane_snapshot s;
      sml_lane_snapshot(w.ranks[r].job->lanes.lanes[l].lane, &s);
      assert_int_equal(w.ranks[r].job->lanes.lanes[l].shard, l);
      assert_true(s.chunks_completed > 100);
    }
  world_stop(&w);
}

static void keyed_and_with_faults(void **state) {
  (void)state;
  struct world w;
  char path[] = "/tmp/switchml-shards-XXXXXX";
  const int fd = mkstemp(path);
  static const char line[] = "team 000102030405060708090a0b0c0d0e0f\n";
  const struct sml_key_entry key = {.name = "team",
                                    .key = {.k0 = 0x0706050403020100, .k1 = 0x0f0e0d0c0b0a0908}};
  assert_true(fd >= 0 && write(fd, line, sizeof line - 1) == sizeof line - 1);
  world_init(&w, 3);
  w.num_aggds = 2;
  w.aggd_options.keys = &key;
  w.aggd_options.num_keys = 1;
  w.aggd_options.faults = (struct sml_fault_options){.loss = 0.02, .seed = 3};
  w.job_options.key_file = path;
  w.job_options.no_shared_memory = 1;
  w.job_options.max_datagram_bytes = 1472;
  world_start(&w);
  world_run(&w, check_sums);
  world_stop(&w);
  close(fd);
  unlink(path);
}

/* Epochs end at an operation boundary, at all shards together. */
static void sum_across_epochs(struct rank *r) {
  const uint32_t epochs[2] = {r->job->state.shards[0].start.epoch, r->job->state.shards[1].start.epoch};
  for (uint32_t i = 0; i < 12 && r->failure[0] == 0; i++) check_sum(r, 60000, SML_FLOAT32, SML_SUM);
  if (r->failure[0] != 0) return;
  CHECK(r, r->job->state.shards[0].start.epoch != epochs[0] && r->job->state.shards[1].start.epoch != epochs[1]);
  CHECK(r, r->job->state.start.first_phase == 2);
}

static void all_move_to_a_new_epoch_together(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 3);
  w.num_aggds = 2;
  w.aggd_options.first_phase = UINT32_MAX - 301;
  w.job_options.no_shared_memory = 1;
  w.job_options.max_datagram_bytes = 1472;
  world_start(&w);
  world_run(&w, sum_across_epochs);
  world_stop(&w);
}

/* ---- failures ---- */

static void run_failing(uint32_t num_ranks, void (*body)(struct rank *)) {
  struct world w;
  world_init(&w, num_ranks);
  w.num_aggds = 3;
  w.job_options.operation_timeout_ns = 700 * SML_NS_PER_MS;
  w.job_options.no_shared_memory = 1;
  world_start(&w);
  pthread_barrier_init(&barrier, NULL, num_ranks);
  world_run(&w, body);
  pthread_barrier_destroy(&barrier);
  world_stop(&w);
}

/* One chunk: only the first shard sees that ranks differ. */
static void call_differently(struct rank *r) {
  float x[4] = {1, 2, 3, 4};
  sml_error error;
  (void)allreduce(r, x, x, r->rank == 1 ? 3 : 4, SML_FLOAT32, SML_SUM);
  check_failed(r, SML_ERR_MISMATCH, &error);
  CHECK(r, is_named(&error, 1), "%s", error.detail);
}

static void abort_on_rank_1(struct rank *r) {
  static float data[3][50000];
  sml_error error;
  sml_operation *op;
  if (r->rank == 1) {
    await_waiting(r);
    CHECK(r, sml_job_abort(r->job, "a test") == SML_OK);
    check_failed(r, SML_ERR_ABORTED, &error);
    return;
  }
  CHECK(r, sml_allreduce(r->job, data[r->rank], data[r->rank], 50000, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK);
  note_waiting(r);
  CHECK(r, sml_operation_wait(op, 20 * SML_NS_PER_S) == SML_ERR_ABORTED, "%s", sml_error_detail());
  check_failed(r, SML_ERR_ABORTED, &error);
  CHECK(r, is_named(&error, 1) && strstr(error.detail, "a test"), "%s", error.detail);
  sml_operation_release(op);
}

static void be_late_on_rank_2(struct rank *r) {
  static float data[3][50000];
  sml_error error;
  if (r->rank != 2) (void)allreduce(r, data[r->rank], data[r->rank], 50000, SML_FLOAT32, SML_SUM);
  check_failed(r, SML_ERR_TIMEOUT, &error);
  CHECK(r, is_named(&error, 2) && strstr(error.detail, "waiting for rank 2"), "%s", error.detail);
}

static void leave_on_rank_2(struct rank *r) {
  static float data[3][50000];
  sml_error error;
  pthread_barrier_wait(&barrier);
  if (r->rank == 2) {
    sml_job_destroy(r->job);
    r->job = NULL;
    return;
  }
  (void)allreduce(r, data[r->rank], data[r->rank], 50000, SML_FLOAT32, SML_SUM);
  check_failed(r, SML_ERR_RANK_LOST, &error);
  CHECK(r, is_named(&error, 2), "%s", error.detail);
}

static void an_error_of_one_shard_ends_every_rank(void **state) {
  (void)state;
  run_failing(3, call_differently);
  run_failing(3, abort_on_rank_1);
  run_failing(3, be_late_on_rank_2);
  run_failing(3, leave_on_rank_2);
}

static struct keeper keeper;
static int keeper_number;

static void lose_the_second(struct rank *r) {
  static float data[2][500000];
  sml_error error;
  check_sum(r, 5000, SML_INT32, SML_SUM);
  if (r->failure[0] != 0) return;
  if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) keeper_signal(&keeper, keeper_number);
  for (uint32_t i = 0; i < 100; i++) /* until it notices */
    if (allreduce(r, data[r->rank], data[r->rank], 500000, SML_FLOAT32, SML_SUM) != SML_OK) break;
  check_failed(r, SML_ERR_AGGREGATOR_LOST, &error);
  CHECK(r, strstr(error.detail, keeper.address), "%s", error.detail);
}

static void lose_one_of_two(int number) {
  struct world w;
  const struct sml_aggd_options options = {.num_lanes = 1};
  keeper_number = number;
  keeper_start(&keeper, &options);
  world_init(&w, 2);
  w.job_options.no_shared_memory = 1;
  w.job_options.lease_ns = 2 * SML_NS_PER_S;
  world_start_aggd(&w);
  strcat(strcat(w.address, ","), keeper.address);
  world_join(&w);
  pthread_barrier_init(&barrier, NULL, 2);
  world_run(&w, lose_the_second);
  pthread_barrier_destroy(&barrier);
  world_stop(&w);
  keeper_stop(&keeper);
}

static void the_lost_aggregator_is_named(void **state) {
  (void)state;
  lose_one_of_two(SIGKILL);
  lose_one_of_two(SIGSTOP);
}

/* ---- joining ---- */

struct joiner {
  struct world *world;
  uint32_t rank;
  const char *aggregators;
  uint64_t timeout_ns;
  sml_status status;
  char detail[256];
};

static void *run_joiner(void *argument) {
  struct joiner *j = argument;
  sml_context *context;
  sml_job *job = NULL;
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  o.aggregator = j->aggregators;
  o.rank = j->rank;
  o.world_size = 2;
  o.join_timeout_ns = j->timeout_ns;
  o.lease_ns = 500 * SML_NS_PER_MS;
  j->status = sml_context_create(NULL, &context);
  if (j->status == SML_OK) j->status = sml_job_create(context, &o, &job);
  snprintf(j->detail, sizeof j->detail, "%s", sml_error_detail());
  sml_job_destroy(job);
  sml_context_destroy(context);
  return NULL;
}

static void join_pair(struct joiner pair[2]) {
  pthread_t threads[2];
  for (uint32_t i = 0; i < 2; i++) {
    pair[i].rank = i;
    pthread_create(&threads[i], NULL, run_joiner, &pair[i]);
  }
  for (uint32_t i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

static void lists_that_differ_are_refused(void **state) {
  (void)state;
  struct world w;
  char swapped[80];
  world_init(&w, 2);
  w.num_aggds = 2;
  world_start_aggd(&w);
  const char *comma = strchr(w.address, ',');
  snprintf(swapped, sizeof swapped, "%s,%.*s", comma + 1, (int)(comma - w.address), w.address);
  struct joiner pair[2] = {{.aggregators = w.address, .timeout_ns = 800 * SML_NS_PER_MS},
                           {.aggregators = swapped, .timeout_ns = 800 * SML_NS_PER_MS}};
  join_pair(pair);
  assert_true(pair[0].status != SML_OK && pair[1].status != SML_OK);
  const char *refused = pair[0].status == SML_ERR_REFUSED ? pair[0].detail : pair[1].detail;
  if (strstr(refused, "SWITCHML_AGGREGATOR must be the same list") == NULL) fail_msg("%s", refused);
  char first[80];
  snprintf(first, sizeof first, "%.*s", (int)(comma - w.address), w.address);
  pair[1].aggregators = first; /* two and one */
  join_pair(pair);
  assert_true(pair[0].status != SML_OK && pair[1].status != SML_OK);
  pair[1].aggregators = w.address;
  join_pair(pair); /* nothing is left of those */
  assert_int_equal(pair[0].status, SML_OK);
  assert_int_equal(pair[1].status, SML_OK);
  world_stop(&w);
}

/* Who could join one of two leaves it again, and says why: nobody waits there for the rest. */
static void one_that_is_not_there_ends_the_join(void **state) {
  (void)state;
  struct world w;
  char list[100];
  world_init(&w, 2);
  world_start_aggd(&w);
  snprintf(list, sizeof list, "%s,127.0.0.1:9", w.address);
  struct joiner pair[2] = {{.aggregators = list, .timeout_ns = 600 * SML_NS_PER_MS},
                           {.aggregators = list, .timeout_ns = 600 * SML_NS_PER_MS}};
  join_pair(pair);
  for (uint32_t i = 0; i < 2; i++)
    if (pair[i].status != SML_ERR_UNREACHABLE || strstr(pair[i].detail, "127.0.0.1:9") == NULL)
      fail_msg("%d %s", pair[i].status, pair[i].detail);
  pair[0].aggregators = pair[1].aggregators = w.address;
  join_pair(pair);
  assert_int_equal(pair[0].status, SML_OK);
  world_stop(&w);
}

static void lists_are_read_with_care(void **state) {
  (void)state;
  static const struct {
    const char *text;
    uint32_t num_shards;
    const char *needle;
  } lists[] = {{"127.0.0.1:1", 1, NULL},
               {"127.0.0.1:1,127.0.0.2:1,127.0.0.1:2", 3, NULL},
               {"[::1]:1,[::1]:2", 2, NULL},
               {"127.0.0.1:1,", 0, "empty place"},
               {",127.0.0.1:1", 0, "empty place"},
               {"127.0.0.1:1,127.0.0.1:1", 0, "listed twice"},
               {"127.0.0.1:1,127.0.0.1", 0, "no port"},
               {"127.0.0.1:1,127.0.0.1:0", 0, "port 0"},
               {"127.0.0.1:1,[::1]:1", 0, "IPv6"}};
  struct sml_shard_places places;
  for (size_t i = 0; i < SML_ARRAY_LEN(lists); i++) {
    const sml_status status = sml_shards_parse(lists[i].text, &places);
    assert_int_equal(status, lists[i].needle != NULL ? SML_ERR_INVALID_ARGUMENT : SML_OK);
    if (status == SML_OK) assert_int_equal(places.num_shards, lists[i].num_shards);
    else if (strstr(sml_error_detail(), lists[i].needle) == NULL) fail_msg("%s", sml_error_detail());
  }
  char many[SML_MAX_SHARDS * 16 + 32] = "127.0.0.1:1";
  for (uint32_t i = 0; i < SML_MAX_SHARDS; i++) sprintf(many + strlen(many), ",127.0.0.1:%u", i + 2);
  assert_int_equal(sml_shards_parse(many, &places), SML_ERR_INVALID_ARGUMENT);
}

static void retry_wants_one_aggregator(void **state) {
  (void)state;
  sml_context *context;
  sml_job *job;
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  o.aggregator = "127.0.0.1:1,127.0.0.1:2";
  o.world_size = 2;
  o.retry_ns = SML_NS_PER_S;
  assert_int_equal(sml_context_create(NULL, &context), SML_OK);
  assert_int_equal(sml_job_create(context, &o, &job), SML_ERR_UNSUPPORTED);
  assert_non_null(strstr(sml_error_detail(), "retry_ns"));
  sml_context_destroy(context);
}

/* What several aggregators chose. */
static void starts_are_put_together(void **state) {
  (void)state;
  struct sml_ctl_start shards[2], start;
  const struct sml_ctl_start *const starts[] = {&shards[0], &shards[1]};
  shards[0] = (struct sml_ctl_start){.epoch = 7, .chunk_bytes = 8928, .num_slots = 128, .first_phase = 2};
  shards[1] = (struct sml_ctl_start){.epoch = 9, .chunk_bytes = 1440, .num_slots = 64, .first_phase = 4};
  assert_null(sml_member_combine_starts(starts, 2, &start));
  assert_int_equal(start.chunk_bytes, 1440);
  assert_int_equal(start.first_phase, 4);
  shards[1].is_one_host = 1;
  assert_non_null(sml_member_combine_starts(starts, 2, &start));
  assert_int_equal(sml_shards_num_slots(256, 1), 256);
  assert_int_equal(sml_shards_num_slots(256, 3), 64);
  assert_int_equal(sml_shards_num_slots(256, 64), 16);
  assert_int_equal(sml_shards_num_slots(8, 64), 8);
}

static void join_of_two_hosts(struct rank *r) {
  sml_job_options o = r->world->job_options;
  o.aggregator = r->world->address;
  o.rank = r->rank;
  o.world_size = r->world->num_ranks;
  sml_test_host = r->rank / 2 + 1;
  CHECK(r, sml_context_create(&r->world->context_options, &r->context) == SML_OK);
  CHECK(r, sml_job_create(r->context, &o, &r->job) == SML_OK, "%s", sml_error_detail());
}

static void ranks_of_a_host_combine(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 4);
  w.num_aggds = 2;
  world_start_aggd(&w);
  world_run(&w, join_of_two_hosts);
  sml_stats stats = SML_STATS_INIT;
  assert_int_equal(sml_job_stats(w.ranks[1].job, &stats), SML_OK);
  const bool shares_memory = stats.num_local_ranks == 2;
  world_run(&w, check_sums);
  assert_int_equal(sml_job_stats(w.ranks[1].job, &stats), SML_OK);
  if (shares_memory) assert_int_equal(stats.tx_packets, 0);
  world_stop(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lists_are_read_with_care),
      cmocka_unit_test(starts_are_put_together),
      cmocka_unit_test(retry_wants_one_aggregator),
      cmocka_unit_test(the_lost_aggregator_is_named),
      cmocka_unit_test(sums_are_right_whatever_the_number),
      cmocka_unit_test(each_aggregator_has_its_share),
      cmocka_unit_test(keyed_and_with_faults),
      cmocka_unit_test(all_move_to_a_new_epoch_together),
      cmocka_unit_test(an_error_of_one_shard_ends_every_rank),
      cmocka_unit_test(lists_that_differ_are_refused),
      cmocka_unit_test(one_that_is_not_there_ends_the_join),
      cmocka_unit_test(ranks_of_a_host_combine),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
