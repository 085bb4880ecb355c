/* SPDX-License-Identifier: Apache-2.0
 * Features that all ranks must have alike, jobs that go on where an earlier aggregator was lost, and what
 * the daemon says is confirmed. */
#include "ctl/test_registry_world.h"

static void join_with(uint32_t conn, uint32_t rank, uint32_t features, uint64_t resume, uint64_t oldest,
                      uint32_t chunk_bytes) {
  struct sml_ctl_message m = join_message("x", rank, 3);
  m.u.join.features = features;
  m.u.join.resume_operation = resume;
  m.u.join.oldest_operation = oldest;
  m.u.join.resume_chunk_bytes = chunk_bytes;
  opened(conn);
  said(conn, &m);
}
static void completed(uint32_t conn, uint64_t operations) {
  said(conn, &(struct sml_ctl_message){.kind = SML_CTL_HEARTBEAT, .u.heartbeat = {99, operations, 0}});
}
static void probe_all(uint32_t datagram_bytes) {
  for (uint32_t c = 0; c < 3; c++) probed(c, datagram_bytes);
}

static void test_place_in_the_list_must_be_equal(void **state) {
  (void)state;
  for (uint32_t difference = 0; difference < 2; difference++) {
    struct sml_ctl_message first = join_message("x", 0, 4), second = join_message("x", 1, 4);
    first.u.join.num_shards = 2;
    second.u.join.num_shards = difference == 0 ? 2 : 0;
    second.u.join.shard = difference == 0;
    begin();
    opened(0);
    said(0, &first);
    opened(1);
    said(1, &second);
    EXPECT("c1<REFUSE -7; c1 close; ");
    char detail[SML_DETAIL_BYTES];
    snprintf(detail, sizeof detail,
             "rank 1 takes this aggregator for number %s, but rank 0 of job 'x' for number 1 of 2: SWITCHML_AGGREGATOR "
             "must be the same list on all ranks",
             difference == 0 ? "2 of 2" : "1 of 1");
    expect_detail(1, detail);
  }
}

static void test_features_must_be_equal(void **state) {
  (void)state;
  static const struct {
    uint32_t first, second;
    const char *detail;
  } rows[] = {
      {0, 1, "rank 2 has SWITCHML_CHECK on, but rank 0 of job 'x' has it off: all ranks must set the same"},
      {3, 2, "rank 2 has SWITCHML_CHECK off, but rank 0 of job 'x' has it on: all ranks must set the same"},
      {1, 3, "rank 2 has SWITCHML_RETRY on, but rank 0 of job 'x' has it off: all ranks must set the same"},
      {2, 0, "rank 2 has SWITCHML_RETRY off, but rank 0 of job 'x' has it on: all ranks must set the same"},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    begin();
    join_with(0, 0, rows[i].first, 0, 0, 0);
    join_with(1, 2, rows[i].second, 0, 0, 0);
    EXPECT("c1<REFUSE -7; c1 close; ");
    expect_detail(1, rows[i].detail);
  }
}

static void test_features_are_told_and_cost_bytes(void **state) {
  (void)state;
  struct sml_registry_options roomy = defaults();
  roomy.pool_slots = 4096; /* for one-way windows, too */
  for (uint32_t features = 0; features <= SML_KNOWN_FEATURES; features++) {
    const bool can_go_one_way = (features & (SML_FEATURE_CHECK | SML_FEATURE_RETRY)) == 0;
    const uint32_t told = (features & ~SML_FEATURES_OF_RANKS) | (can_go_one_way ? features & SML_FEATURE_ONE_WAY : 0);
    const bool is_narrow = (features & SML_FEATURE_NARROW) != 0;
    if (is_narrow && (features & 0x78) != 0) continue; /* enough were seen */
    begin_with(roomy);
    for (uint32_t c = 0; c < 3; c++) join_with(c, c, features, 0, 0, 0);
    probe_all(1475);
    assert_int_equal(w.last[1].u.start.features, told);
    uint32_t check_bytes = features & SML_FEATURE_CHECK ? 4 : 0;
    const uint32_t most_bytes = 1472 - OVERHEAD_BYTES - check_bytes;
    assert_int_equal(w.last[1].u.start.chunk_bytes, is_narrow ? most_bytes / 32 * 32 : most_bytes);
    begin(); /* the smallest path that will do, and one byte less */
    for (uint32_t c = 0; c < 3; c++) join_with(c, c, features, 0, 0, 0);
    probe_all(256 + OVERHEAD_BYTES + check_bytes);
    assert_int_equal(w.last[1].u.start.chunk_bytes, 256);
    begin();
    for (uint32_t c = 0; c < 3; c++) join_with(c, c, features, 0, 0, 0);
    probe_all(255 + OVERHEAD_BYTES + check_bytes);
    assert_int_equal(w.last[1].kind, SML_CTL_REFUSE);
    assert_int_equal(w.last[1].u.refuse.status, SML_ERR_MTU);
  }
}

static void test_goes_on_with_the_slowest(void **state) {
  (void)state;
  begin();
  join_with(0, 0, SML_FEATURE_RETRY, 17, 15, 1000);
  join_with(1, 1, SML_FEATURE_RETRY, 15, 15, 1000);
  join_with(2, 2, SML_FEATURE_RETRY, 16, 14, 1000);
  probe_all(8960);
  for (uint32_t c = 0; c < 3; c++) {
    assert_int_equal(w.last[c].u.start.first_operation, 15);
    assert_int_equal(w.last[c].u.start.chunk_bytes, 1000);
  }
  for (uint32_t c = 0; c < 3; c++) want_epoch(c, w.last[c].u.start.epoch);
  assert_int_equal(w.last[0].u.start.first_operation, 15); /* the job's, in every START */
}

static void test_inputs_that_are_gone(void **state) {
  (void)state;
  begin();
  join_with(0, 0, SML_FEATURE_RETRY, 17, 15, 0);
  join_with(1, 1, SML_FEATURE_RETRY, 14, 14, 0);
  join_with(2, 2, SML_FEATURE_RETRY, 16, 14, 0);
  probe_all(8960);
  EXPECT("c2<REFUSE -7; c2 close; c1<REFUSE -7; c1 close; c0<REFUSE -7; c0 close; end j0; ");
  expect_detail(1,
                "the job can't go on: rank 1 has to repeat operation 14, but rank 0 has kept its inputs from "
                "operation 15 on only: start all ranks anew");
  expect_all_free();
}

/* A rank that was started anew may contribute other values than its predecessor did, of which others may have
 * the sum: in any order, so also those that still lack operation 0. */
static void test_a_new_rank_among_those_that_resume(void **state) {
  (void)state;
  for (uint64_t resume = 0; resume < 2; resume++) {
    begin();
    join_with(0, 0, SML_FEATURE_RETRY, resume, 0, 1000);
    join_with(1, 1, SML_FEATURE_RETRY, 0, 0, 1000);
    join_with(2, 2, SML_FEATURE_RETRY, 0, 0, 0);
    probe_all(8960);
    EXPECT("c2<REFUSE -7; c2 close; c1<REFUSE -7; c1 close; c0<REFUSE -7; c0 close; end j0; ");
    expect_detail(1,
                  "the job can't go on: rank 2 was started anew, but rank 0 goes on with what it has: start all "
                  "ranks anew");
    expect_all_free();
  }
}

static void join_for_slots(uint32_t conn, uint32_t features, uint64_t resume, uint32_t chunk_bytes,
                           uint32_t num_slots) {
  struct sml_ctl_message m = join_message("x", conn, 3);
  m.u.join.features = SML_FEATURE_RETRY | features;
  m.u.join.resume_operation = resume;
  m.u.join.resume_chunk_bytes = chunk_bytes;
  m.u.join.num_slots = num_slots;
  opened(conn);
  said(conn, &m);
}

/* The aggregator was lost when it had told one rank that the job starts, and the others not. Nothing is summed, so all
 * begin together, with the shape that the one has. */
static void test_new_ranks_among_those_that_have_no_result(void **state) {
  (void)state;
  for (uint32_t started = 0; started < 3; started++) {
    begin();
    for (uint32_t c = 0; c < 3; c++)
      if (c == started) join_for_slots(c, SML_FEATURE_NO_RESULT, 0, 1000, 128);
      else join_for_slots(c, 0, 0, 0, 0);
    probe_all(8960);
    for (uint32_t c = 0; c < 3; c++) {
      assert_int_equal(w.last[c].kind, SML_CTL_START);
      assert_int_equal(w.last[c].u.start.features, SML_FEATURE_RETRY);
      assert_int_equal(w.last[c].u.start.first_operation, 0);
      assert_int_equal(w.last[c].u.start.chunk_bytes, 1000);
      assert_int_equal(w.last[c].u.start.num_slots, 128);
    }
  }
  begin(); /* one has a result, so nobody may be new: not even beside another that has none */
  join_for_slots(0, SML_FEATURE_NO_RESULT, 0, 1000, 128);
  join_for_slots(1, 0, 0, 1000, 128);
  join_for_slots(2, 0, 0, 0, 0);
  probe_all(8960);
  assert_int_equal(w.last[0].u.refuse.status, SML_ERR_REFUSED);
  expect_detail(0,
                "the job can't go on: rank 2 was started anew, but rank 1 goes on with what it has: start all "
                "ranks anew");
  begin(); /* who has completed an operation has a result, whatever it says */
  join_for_slots(0, SML_FEATURE_NO_RESULT, 1, 1000, 128);
  join_for_slots(1, 0, 0, 0, 0);
  join_for_slots(2, 0, 0, 0, 0);
  probe_all(8960);
  assert_int_equal(w.last[1].u.refuse.status, SML_ERR_REFUSED);
  begin(); /* slots are equal among those that resume, and among those that are new */
  join_for_slots(0, SML_FEATURE_NO_RESULT, 0, 1000, 128);
  join_for_slots(1, 0, 0, 0, 0);
  join_for_slots(2, SML_FEATURE_NO_RESULT, 0, 1000, 64);
  EXPECT("c2<REFUSE -7; c2 close; ");
  expect_detail(2, "rank 2 asks for 64 slots, but rank 0 of job 'x' asked for 128: all ranks must ask for the same");
  join_for_slots(2, 0, 0, 0, 32);
  expect_detail(2, "rank 2 asks for 32 slots, but rank 1 of job 'x' asked for 0: all ranks must ask for the same");
}

static void test_chunk_size_of_a_resumed_job(void **state) {
  (void)state;
  begin();
  join_with(0, 0, SML_FEATURE_RETRY, 5, 5, 0);
  join_with(1, 1, SML_FEATURE_RETRY, 5, 5, 1000); /* one asks: all get it */
  join_with(2, 2, SML_FEATURE_RETRY, 5, 5, 0);
  probe_all(1000 + OVERHEAD_BYTES);
  assert_int_equal(w.last[0].u.start.chunk_bytes, 1000);

  begin();
  join_with(0, 0, 0, 0, 0, 0);
  join_with(1, 1, 0, 5, 5, 1000);
  join_with(2, 2, 0, 5, 5, 1004);
  EXPECT("c2<REFUSE -7; c2 close; ");
  expect_detail(2, "rank 2 resumes with chunks of 1004 bytes, but rank 1 of job 'x' with 1000: start all ranks anew");
  join_with(2, 2, 0, 5, 5, 252);
  EXPECT("c2<REFUSE -7; c2 close; ");
  expect_detail(2, "chunks of 252 bytes are asked for, the smallest have 256");

  begin(); /* the path has become smaller */
  char detail[SML_DETAIL_BYTES];
  for (uint32_t c = 0; c < 3; c++) join_with(c, c, 0, 5, 5, 1000);
  probed(0, 8960);
  probed(1, 999 + OVERHEAD_BYTES);
  probed(2, 8960);
  assert_int_equal(w.last[0].u.refuse.status, SML_ERR_MTU);
  snprintf(detail, sizeof detail,
           "the path of rank 1 (10.0.0.1) carries datagrams of %u bytes only, %u are needed: check its MTU",
           999 + OVERHEAD_BYTES, 1000 + OVERHEAD_BYTES);
  expect_detail(0, detail);

  struct sml_registry_options options = defaults(); /* or the new daemon's limit is */
  options.max_datagram_bytes = 1000;
  begin_with(options);
  for (uint32_t c = 0; c < 3; c++) join_with(c, c, 0, 5, 5, 1000);
  probe_all(8960);
  snprintf(detail, sizeof detail,
           "the job must go on with datagrams of %u bytes, but the aggregator takes 1000 bytes only: start all "
           "ranks anew",
           1000 + OVERHEAD_BYTES);
  expect_detail(0, detail);
  expect_all_free();
}

static void test_heartbeats_say_what_is_confirmed(void **state) {
  (void)state;
  static const uint64_t steps[][4] = {{3, 0, 0, 0}, {3, 2, 1, 1}, {3, 1, 2, 2}, {4, 9, 4, 4}};
  begin();
  for (uint32_t c = 0; c < 3; c++) join_with(c, c, 0, 0, 0, 0);
  probe_all(8960);
  for (size_t i = 0; i < SML_ARRAY_LEN(steps); i++) {
    for (uint32_t c = 0; c < 3; c++) completed(c, steps[i][c]);
    EXPECT(""); /* without the feature nobody waits for it */
    tick();
    EXPECT("c2<HEARTBEAT; c1<HEARTBEAT; c0<HEARTBEAT; ");
    assert_int_equal(w.heartbeat.operations_completed, steps[i][3]);
    assert_int_equal(w.heartbeat.operations_submitted, 0);
  }
}

static void test_nothing_is_confirmed_while_joining(void **state) {
  (void)state;
  begin();
  join_with(0, 0, SML_FEATURE_RETRY, 7, 7, 0);
  completed(0, 8);
  tick();
  EXPECT("c0<HEARTBEAT; ");
  assert_int_equal(w.heartbeat.operations_completed, 0);
}

static void test_early_heartbeats_are_few(void **state) {
  (void)state;
  begin();
  for (uint32_t c = 0; c < 3; c++) join_with(c, c, SML_FEATURE_RETRY, 0, 0, 0);
  probe_all(8960);
  uint64_t start_ns = w.now_ns;
  completed(0, 1);
  completed(1, 1);
  tick(); /* looks, and finds nothing */
  EXPECT("");
  assert_int_equal(w.now_ns, start_ns + LEASE_NS / 16);
  completed(2, 1);
  tick();
  EXPECT("c2<HEARTBEAT; c1<HEARTBEAT; c0<HEARTBEAT; ");
  assert_int_equal(w.heartbeat.operations_completed, 1);
  assert_int_equal(w.now_ns, start_ns + 2 * (LEASE_NS / 16));
  uint32_t num_beats = 0;
  for (uint64_t op = 2; w.now_ns < start_ns + LEASE_NS; op++) { /* an operation a millisecond */
    w.now_ns += MS;
    for (uint32_t c = 0; c < 3; c++) completed(c, op);
    while (sml_registry_next_deadline(w.r) <= w.now_ns) {
      tick();
      num_beats += w.line[0] != 0;
    }
  }
  assert_true(num_beats >= 12 && num_beats <= 14);
}

/* Who is gone may lack the last operations: others must keep their inputs. */
static void test_nothing_more_is_confirmed_without_a_rank(void **state) {
  (void)state;
  begin();
  for (uint32_t c = 0; c < 3; c++) join_with(c, c, SML_FEATURE_RETRY, 0, 0, 0);
  probe_all(8960);
  for (uint32_t c = 0; c < 3; c++) completed(c, 4);
  tick();
  closed(2, SML_CLOSED_RESET);
  for (uint32_t c = 0; c < 2; c++) completed(c, 5);
  for (uint32_t i = 0; i < 3; i++) tick();
  assert_int_equal(w.heartbeat.operations_completed, 4);
}

static void test_progress_never_goes_back(void **state) {
  (void)state;
  begin();
  for (uint32_t c = 0; c < 3; c++) join_with(c, c, SML_FEATURE_RETRY, 5, 5, 0);
  probe_all(8960);
  for (uint32_t c = 0; c < 3; c++) completed(c, 6);
  tick();
  for (uint32_t c = 0; c < 3; c++) completed(c, 2);
  do tick();
  while (w.line[0] == 0);
  assert_int_equal(w.heartbeat.operations_completed, 6);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BOTH(test_place_in_the_list_must_be_equal),
      BOTH(test_features_must_be_equal),
      BOTH(test_features_are_told_and_cost_bytes),
      BOTH(test_goes_on_with_the_slowest),
      BOTH(test_inputs_that_are_gone),
      BOTH(test_a_new_rank_among_those_that_resume),
      BOTH(test_new_ranks_among_those_that_have_no_result),
      BOTH(test_chunk_size_of_a_resumed_job),
      BOTH(test_heartbeats_say_what_is_confirmed),
      BOTH(test_nothing_is_confirmed_while_joining),
      BOTH(test_early_heartbeats_are_few),
      BOTH(test_nothing_more_is_confirmed_without_a_rank),
      BOTH(test_progress_never_goes_back),
  };
  return cmocka_run_group_tests(tests, NULL, end_world);
}
