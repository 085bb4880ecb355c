/* SPDX-License-Identifier: Apache-2.0
 * Ranks that say the same host contribute as one: who, which of them sends, and how errors name them. */
#include "ctl/test_registry_world.h"

#include "ctl/contributors.h"

static void join_from(uint32_t rank, uint32_t world_size, uint64_t host, uint32_t features) {
  struct sml_ctl_message m = join_message("x", rank, world_size);
  m.u.join.host[0] = host;
  m.u.join.is_combining = 1;
  m.u.join.features = features;
  opened(rank);
  said(rank, &m);
}

/* A world of ranks with a digit each for their hosts, '0': alone. Ranks join from the last to the first. */
static void start_hosts(const char *hosts, uint32_t features) {
  const uint32_t n = (uint32_t)strlen(hosts);
  begin();
  for (uint32_t rank = n; rank-- > 0;) join_from(rank, n, (uint64_t)(hosts[rank] - '0'), features);
  for (uint32_t rank = 0; rank < n; rank++) probed(rank, 8960);
  assert_non_null(strstr(w.line, "start j0"));
}

static void expect_table(const char *table, uint32_t num_ranks) {
  const struct sml_ctl_start *start = &w.jobs[0].start;
  assert_int_equal(start->num_ranks, num_ranks);
  for (uint32_t rank = 0; rank < num_ranks; rank++) {
    assert_int_equal(start->contributors[rank], table[rank] - '0');
    assert_memory_equal(&w.last[rank].u.start, start, sizeof *start); /* the same to all */
  }
}

static void test_groups(void **state) {
  (void)state;
  static const struct {
    const char *hosts, *table; /* "": none */
  } rows[] = {
      {"0000", ""},           {"1234", ""},     {"1111", ""},       {"1122", "0011"},
      {"2211", "0011"},       {"1212", "0101"}, {"1010", "0102"},   {"0110", "0112"},
      {"3132331", "0102001"}, {"11", ""},       {"12341", "01230"},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    start_hosts(rows[i].hosts, 0);
    expect_table(rows[i].table, (uint32_t)strlen(rows[i].table));
    const uint32_t epoch = w.jobs[0].epoch;
    for (uint32_t rank = 0; rows[i].hosts[rank]; rank++) want_epoch(rank, epoch);
    assert_int_not_equal(w.jobs[0].epoch, epoch);
    expect_table(rows[i].table, (uint32_t)strlen(rows[i].table));
  }
}

static void test_either_half_of_the_identity_counts(void **state) {
  (void)state;
  begin();
  for (uint32_t rank = 0; rank < 4; rank++) {
    struct sml_ctl_message m = join_message("x", rank, 4);
    m.u.join.host[0] = rank < 2 ? 5 : 0;
    m.u.join.host[1] = rank % 2 ? 7 : 6; /* all different */
    m.u.join.is_combining = 1;
    opened(rank);
    said(rank, &m);
  }
  for (uint32_t rank = 0; rank < 4; rank++) probed(rank, 8960);
  expect_table("", 0);
  begin();
  for (uint32_t rank = 0; rank < 3; rank++) {
    struct sml_ctl_message m = join_message("x", rank, 3);
    m.u.join.host[1] = 9 + (rank == 0);
    m.u.join.is_combining = 1;
    opened(rank);
    said(rank, &m);
  }
  for (uint32_t rank = 0; rank < 3; rank++) probed(rank, 8960);
  expect_table("011", 3);
}

/* Only those that want to; who does not stays alone, also where it is the first of its host. */
static void test_not_all_of_a_host_combine(void **state) {
  (void)state;
  begin();
  for (uint32_t rank = 0; rank < 5; rank++) {
    struct sml_ctl_message m = join_message("x", rank, 5);
    m.u.join.host[0] = rank < 4 ? 1 : 2;
    m.u.join.is_combining = rank != 0 && rank != 2;
    opened(rank);
    said(rank, &m);
  }
  for (uint32_t rank = 0; rank < 5; rank++) probed(rank, 8960);
  expect_table("01213", 5);
  assert_int_equal(w.jobs[0].start.is_one_host, 0);
}

static void test_one_host_needs_no_senders(void **state) {
  (void)state;
  start_hosts("111", 0);
  expect_table("", 0);
  assert_int_equal(w.last[2].u.start.is_one_host, 1);
}

static void test_ranks_that_retry_contribute_for_themselves(void **state) {
  (void)state;
  start_hosts("1122", SML_FEATURE_RETRY);
  expect_table("", 0);
}

static void test_only_senders_need_a_path(void **state) {
  (void)state;
  begin();
  for (uint32_t rank = 0; rank < 4; rank++) join_from(rank, 4, 1 + rank / 2, 0);
  probed(0, 1472);
  probed(1, 0); /* nothing came back: rank 0 sends for it */
  probed(2, 8960);
  probed(3, 600);
  expect_table("0011", 4);
  assert_int_equal(w.jobs[0].start.chunk_bytes, (1472 - OVERHEAD_BYTES) & ~3u);
  begin();
  for (uint32_t rank = 0; rank < 4; rank++) join_from(rank, 4, 1 + rank / 2, 0);
  for (uint32_t rank = 1; rank < 4; rank++) probed(rank, 8960);
  probed(0, 0);
  assert_int_equal(w.last[3].u.refuse.status, SML_ERR_UNREACHABLE);
}

static void test_who_rejoins_before_the_start_is_grouped_anew(void **state) {
  (void)state;
  begin();
  join_from(1, 3, 1, 0);
  join_from(0, 3, 1, 0);
  probed(0, 8960);
  probed(1, 8960);
  closed(0, SML_CLOSED_FIN);
  join_from(2, 3, 2, 0);
  join_from(0, 3, 2, 0); /* on another host now */
  probed(0, 8960);
  probed(2, 8960);
  expect_table("010", 3);
}

static void test_mismatch_names_the_hosts(void **state) {
  (void)state;
  static const struct {
    const char *hosts;
    uint32_t a, b, num_ranks;
    uint16_t ranks[8];
    const char *begin;
  } rows[] = {
      {"11112222",
       4,
       0,
       8,
       {0, 1, 2, 3, 4, 5, 6, 7},
       "ranks 0-3 on the host of rank 0 and ranks 4-7 on the host of rank 4 called"},
      {"1213", 1, 0, 3, {0, 2, 1}, "ranks 0, 2 on the host of rank 0 and rank 1 called"},
      {"1123", 2, 3, 2, {2, 3}, "ranks 2 and 3 called"},
      {"0000", 3, 1, 2, {1, 3}, "ranks 1 and 3 called"},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    start_hosts(rows[i].hosts, 0);
    sml_registry_on_mismatch(w.r, 0, w.jobs[0].epoch, rows[i].a, rows[i].b);
    take_effects();
    for (uint32_t c = 0; rows[i].hosts[c]; c++) {
      const struct sml_ctl_abort *abort = &w.last[c].u.abort;
      assert_int_equal(w.last[c].kind, SML_CTL_ABORT);
      assert_int_equal(abort->status, SML_ERR_MISMATCH);
      assert_int_equal(abort->num_ranks, rows[i].num_ranks);
      assert_memory_equal(abort->ranks, rows[i].ranks, rows[i].num_ranks * sizeof rows[i].ranks[0]);
      assert_memory_equal(abort->detail, rows[i].begin, strlen(rows[i].begin));
    }
  }
}

static void test_mismatch_of_hosts_that_are_too_many_or_gone(void **state) {
  (void)state;
  start_hosts("111111111222222222", 0); /* 18 ranks, an error names 16 */
  sml_registry_on_mismatch(w.r, 0, w.jobs[0].epoch, 0, 9);
  take_effects();
  assert_int_equal(w.last[5].u.abort.num_ranks, 2);
  assert_int_equal(w.last[5].u.abort.ranks[0], 0);
  assert_int_equal(w.last[5].u.abort.ranks[1], 9);
  start_hosts("1122", 0);
  closed(2, SML_CLOSED_RESET); /* it led, and had contributed */
  sml_registry_on_mismatch(w.r, 0, w.jobs[0].epoch, 0, 2);
  take_effects();
  const char begin_text[] = "ranks 0-1 on the host of rank 0 and rank 2 called";
  assert_memory_equal(w.last[0].u.abort.detail, begin_text, sizeof begin_text - 1);
  assert_int_equal(w.last[0].u.abort.num_ranks, 3);
}

static void test_each_rank_is_lost_by_itself(void **state) {
  (void)state;
  start_hosts("1122", 0);
  closed(3, SML_CLOSED_RESET);
  EXPECT("depart j0 r3; c0<GONE r3; c1<GONE r3; c2<GONE r3; ");
  sml_registry_on_blocked(w.r, 0, w.jobs[0].epoch, 3);
  take_effects();
  for (uint32_t c = 0; c < 3; c++) {
    assert_int_equal(w.last[c].u.abort.status, SML_ERR_RANK_LOST);
    assert_int_equal(w.last[c].u.abort.num_ranks, 1);
    assert_int_equal(w.last[c].u.abort.ranks[0], 3);
    expect_detail(c, "rank 3 (10.0.0.3) was lost: connection reset without goodbye");
  }
  expect_all_free();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BOTH(test_groups),
      BOTH(test_either_half_of_the_identity_counts),
      BOTH(test_not_all_of_a_host_combine),
      BOTH(test_one_host_needs_no_senders),
      BOTH(test_ranks_that_retry_contribute_for_themselves),
      BOTH(test_only_senders_need_a_path),
      BOTH(test_who_rejoins_before_the_start_is_grouped_anew),
      BOTH(test_mismatch_names_the_hosts),
      BOTH(test_mismatch_of_hosts_that_are_too_many_or_gone),
      BOTH(test_each_rank_is_lost_by_itself),
  };
  return cmocka_run_group_tests(tests, NULL, end_world);
}
