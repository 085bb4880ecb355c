/* SPDX-License-Identifier: Apache-2.0
 * A daemon whose jobs are in switch format: what it starts, and whom it refuses with which sentence. */
#include "ctl/test_registry_world.h"

static void begin_switch(uint32_t packet_lanes) {
  struct sml_registry_options options = defaults();
  options.packet_lanes = packet_lanes;
  begin_with(options);
}

static struct sml_ctl_message join_of(uint32_t rank, uint32_t world_size, uint32_t features) {
  struct sml_ctl_message m = join_message("x", rank, world_size);
  m.u.join.features = features;
  return m;
}

static void join_all(uint32_t world_size, uint32_t features) {
  for (uint32_t rank = 0; rank < world_size; rank++) {
    const struct sml_ctl_message m = join_of(rank, world_size, features);
    opened(rank);
    said(rank, &m);
  }
}

static void test_packets_have_their_lanes(void **state) {
  (void)state;
  for (uint32_t packet_lanes = SML_MIN_PACKET_LANES; packet_lanes <= SML_MAX_PACKET_LANES; packet_lanes *= 2)
    for (uint32_t check = 0; check <= SML_FEATURE_CHECK; check += SML_FEATURE_CHECK) {
      begin_switch(packet_lanes);
      join_all(2, SML_FEATURE_SWITCH | check);
      probed(0, 1475);
      probed(1, 32 + 4 * packet_lanes);
      const struct sml_ctl_start *start = &w.last[1].u.start;
      assert_int_equal(w.last[1].kind, SML_CTL_START);
      assert_int_equal(start->features, SML_FEATURE_SWITCH | check);
      assert_int_equal(start->chunk_bytes, 4 * packet_lanes - (check != 0 ? 4 : 0));
      assert_int_equal(sml_ctl_packet_lanes(start), packet_lanes);
      want_epoch(0, start->epoch);
      want_epoch(1, w.last[1].u.start.epoch);
      assert_int_equal(w.last[1].u.start.features, SML_FEATURE_SWITCH | check); /* for good */
      begin_switch(packet_lanes);
      join_all(2, SML_FEATURE_SWITCH | check);
      probed(0, 1475);
      probed(1, 31 + 4 * packet_lanes);
      assert_int_equal(w.last[0].u.refuse.status, SML_ERR_MTU);
    }
}

static void test_who_cannot_is_told_why(void **state) {
  (void)state;
  static const struct {
    uint32_t features, num_shards;
    const char *text;
  } rows[] = {
      {SML_FEATURE_CHECK, 0, "switch format only, which rank 1 can't"},
      {SML_FEATURE_SWITCH | SML_FEATURE_RETRY, 0, "rank 1 has SWITCHML_RETRY on"},
      {SML_FEATURE_SWITCH | SML_FEATURE_NARROW, 0, "rank 1 wants narrow updates"},
      {SML_FEATURE_SWITCH, 2, "rank 1 names 2 aggregators"},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    begin_switch(32);
    struct sml_ctl_message m = join_of(1, 2, rows[i].features);
    m.u.join.num_shards = rows[i].num_shards;
    opened(0);
    said(0, &m);
    EXPECT("c0<REFUSE -7; c0 close; ");
    assert_non_null(strstr(w.last[0].u.refuse.detail, rows[i].text));
  }
  is_keyed = true;
  begin_switch(32);
  opened(0);
  said(0, &(struct sml_ctl_message){.kind = SML_CTL_JOIN, .u = join_of(1, 2, SML_FEATURE_SWITCH).u});
  is_keyed = false;
  expect_detail(0, "the aggregator is a switch, which has no keys: name none");
  begin(); /* elsewhere nobody cares, and ranks that can meet ranks that can't */
  for (uint32_t rank = 0; rank < 2; rank++) {
    struct sml_ctl_message m = join_of(rank, 2, rank * SML_FEATURE_SWITCH);
    opened(rank);
    said(rank, &m);
    probed(rank, 1475);
  }
  assert_int_equal(w.last[0].kind, SML_CTL_START);
  assert_int_equal(w.last[0].u.start.features, 0);
}

/* As many bits as a switch has; what counts is who sends. */
static void test_a_switch_takes_thirty_contributors(void **state) {
  (void)state;
  for (uint32_t is_combining = 0; is_combining < 2; is_combining++)
    for (uint32_t world_size = 30; world_size <= 31; world_size++) {
      begin_switch(64);
      for (uint32_t rank = 0; rank < world_size; rank++) {
        struct sml_ctl_message m = join_of(rank, world_size, SML_FEATURE_SWITCH);
        m.u.join.host[0] = 1 + (rank < 2 ? 0 : rank);
        m.u.join.is_combining = is_combining;
        opened(rank);
        said(rank, &m);
      }
      for (uint32_t rank = 0; rank < world_size; rank++) probed(rank, 1475);
      const bool is_too_many = world_size == 31 && !is_combining;
      assert_int_equal(w.last[30 - 1].kind, is_too_many ? SML_CTL_REFUSE : SML_CTL_START);
      if (is_too_many) expect_detail(0, "the job has 31 contributors, but a switch takes 30 at most");
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_packets_have_their_lanes),
      cmocka_unit_test(test_who_cannot_is_told_why),
      cmocka_unit_test(test_a_switch_takes_thirty_contributors),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
