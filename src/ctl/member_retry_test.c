/* SPDX-License-Identifier: Apache-2.0
 * What a rank decides as its aggregator is lost: whether it goes on, for how long, with what; and its deadlines. Then
 * the whole of it with a daemon that goes and comes (test_member_world.h). */
#include "ctl/member_retry.h"

#include "ctl/test_member_world.h"

#define RETRY_NS (30 * S)

static struct sml_member_retry r;
static struct sml_member_situation situation;
static struct sml_ctl_abort failure;
static bool is_first;
static uint64_t patience_ns;

static int begin_retry(void **state) {
  (void)state;
  r = (struct sml_member_retry){.retry_ns = RETRY_NS};
  situation = (struct sml_member_situation){.phase = SML_MEMBER_IS_RUNNING, .join_deadline_ns = 60 * S};
  return 0;
}

static enum sml_member_after_loss lost(sml_status status, uint64_t now_ns) {
  failure = (struct sml_ctl_abort){.status = status, .detail = "why it was"};
  const enum sml_member_after_loss after_loss =
      sml_member_retry_on_lost(&r, &situation, &failure, now_ns, &is_first, &patience_ns);
  if (after_loss == SML_MEMBER_REJOINS) situation.phase = SML_MEMBER_IS_REJOINING;
  return after_loss;
}

static void test_only_a_lost_aggregator_is_replaced(void **state) {
  (void)state;
  for (int status = SML_ERR_KEY; status < 0; status++) {
    begin_retry(NULL);
    const bool is_lost = status == SML_ERR_AGGREGATOR_LOST;
    assert_int_equal(lost((sml_status)status, 9 * S), is_lost ? SML_MEMBER_REJOINS : SML_MEMBER_ENDS);
    assert_int_equal(is_first, is_lost);
    assert_string_equal(failure.detail, "why it was");
  }
}

static void test_without_retry_it_is_the_end(void **state) {
  (void)state;
  r.retry_ns = 0;
  assert_int_equal(lost(SML_ERR_AGGREGATOR_LOST, 9 * S), SML_MEMBER_ENDS);
  situation.phase = SML_MEMBER_IS_JOINING;
  assert_int_equal(lost(SML_ERR_AGGREGATOR_LOST, 9 * S), SML_MEMBER_ENDS);
  begin_retry(NULL);
  situation.has_gone_rank = true; /* it would not join again */
  assert_int_equal(lost(SML_ERR_AGGREGATOR_LOST, 9 * S), SML_MEMBER_ENDS);
  begin_retry(NULL);
  situation.phase = SML_MEMBER_HAS_FAILED;
  assert_int_equal(lost(SML_ERR_AGGREGATOR_LOST, 9 * S), SML_MEMBER_ENDS);
}

/* A successor that goes as soon as it came, is not there yet, or whose data ports are not reached: tried until retry_ns
 * are over. */
static void test_what_passes_is_waited_for(void **state) {
  (void)state;
  static const sml_status passing[] = {SML_ERR_AGGREGATOR_LOST, SML_ERR_UNREACHABLE, SML_ERR_MTU};
  assert_int_equal(lost(SML_ERR_AGGREGATOR_LOST, 9 * S), SML_MEMBER_REJOINS);
  assert_true(is_first && patience_ns == RETRY_NS);
  for (size_t i = 0; i < SML_ARRAY_LEN(passing); i++) {
    assert_int_equal(lost(passing[i], (10 + i) * S), SML_MEMBER_REJOINS);
    assert_false(is_first);
    assert_true(patience_ns == RETRY_NS - (1 + i) * S);
  }
  assert_int_equal(lost(SML_ERR_UNREACHABLE, 9 * S + RETRY_NS - 1), SML_MEMBER_REJOINS);
  assert_int_equal(lost(SML_ERR_UNREACHABLE, 9 * S + RETRY_NS), SML_MEMBER_ENDS);
  assert_int_equal(failure.status, SML_ERR_AGGREGATOR_LOST);
  assert_string_equal(failure.detail,
                      "the aggregator was lost and could not be joined again for 30 s (retry_ns): why it was");
}

static void test_what_does_not_pass_is_the_end(void **state) {
  (void)state;
  lost(SML_ERR_AGGREGATOR_LOST, 9 * S);
  assert_int_equal(lost(SML_ERR_VERSION, 10 * S), SML_MEMBER_ENDS);
  assert_int_equal(failure.status, SML_ERR_VERSION);
  assert_string_equal(failure.detail, "after the aggregator was lost: why it was");
}

/* For 2 s a refusal may be about the connection before, which the aggregator has not seen end. */
static void test_a_refusal_counts_when_it_lasts(void **state) {
  (void)state;
  lost(SML_ERR_AGGREGATOR_LOST, 9 * S);
  assert_int_equal(lost(SML_ERR_REFUSED, 10 * S), SML_MEMBER_REJOINS);
  assert_int_equal(lost(SML_ERR_REFUSED, 12 * S - 1), SML_MEMBER_REJOINS);
  assert_int_equal(lost(SML_ERR_UNREACHABLE, 12 * S), SML_MEMBER_REJOINS); /* nobody refuses: counted anew */
  assert_int_equal(lost(SML_ERR_REFUSED, 13 * S), SML_MEMBER_REJOINS);
  assert_int_equal(lost(SML_ERR_REFUSED, 15 * S), SML_MEMBER_ENDS);
  begin_retry(NULL);
  lost(SML_ERR_AGGREGATOR_LOST, 9 * S);
  situation.was_welcomed = true; /* it was let in: what is refused now is the job */
  assert_int_equal(lost(SML_ERR_REFUSED, 10 * S), SML_MEMBER_ENDS);
}

static void test_a_lost_join_is_joined_anew(void **state) {
  (void)state;
  situation.phase = SML_MEMBER_IS_JOINING;
  assert_int_equal(lost(SML_ERR_UNREACHABLE, 9 * S), SML_MEMBER_ENDS); /* the member tried until its deadline */
  assert_int_equal(lost(SML_ERR_AGGREGATOR_LOST, 9 * S), SML_MEMBER_JOINS_ANEW);
  assert_true(is_first && patience_ns == 51 * S);
  assert_int_equal(lost(SML_ERR_REFUSED, 10 * S), SML_MEMBER_JOINS_ANEW);
  assert_false(is_first);
  assert_int_equal(lost(SML_ERR_REFUSED, 12 * S), SML_MEMBER_ENDS);
  assert_string_equal(failure.detail, "after the aggregator was lost while this rank joined: why it was");
  assert_int_equal(lost(SML_ERR_AGGREGATOR_LOST, 60 * S), SML_MEMBER_ENDS); /* its join's deadline */
}

static void test_what_a_successor_says_is_not_believed(void **state) {
  (void)state;
  const struct sml_ctl_start before = {.num_lanes = 2, .num_slots = 64, .chunk_bytes = 1440};
  struct sml_ctl_start start;
  r.confirmed_operation = 5;
  for (uint64_t first = 3; first < 10; first++) {
    start = before;
    start.first_operation = first;
    assert_int_equal(sml_member_retry_find_fault(&r, &before, &start, 7) == NULL, first >= 5 && first <= 7);
  }
  for (uint32_t i = 0; i < 4; i++) {
    start = before;
    start.first_operation = 6;
    start.num_lanes += i == 0;
    start.num_slots -= i == 1;
    start.chunk_bytes += i == 2 ? 4 : 0;
    assert_int_equal(sml_member_retry_find_fault(&r, &before, &start, 7) == NULL, i == 3);
  }
}

static void test_confirmed_operations_never_fall(void **state) {
  (void)state;
  sml_member_retry_on_confirmed(&r, 7, 9);
  assert_int_equal(r.confirmed_operation, 7);
  sml_member_retry_on_confirmed(&r, 3, 9);
  assert_int_equal(r.confirmed_operation, 7);
  sml_member_retry_on_confirmed(&r, 12, 9); /* not what this rank itself has not completed */
  assert_int_equal(r.confirmed_operation, 9);
}

static void test_deadlines_stand_still(void **state) {
  (void)state;
  sml_member_retry_on_silent(&r, 20 * S);
  sml_member_retry_on_silent(&r, 21 * S); /* another aggregator */
  assert_true(sml_member_retry_on_heard(&r) == 20 * S);
  assert_true(sml_member_retry_on_heard(&r) == 0);
  /* submitted before, meanwhile; and what an operation has in all */
  assert_true(sml_member_retry_deadline(10 * S, 40 * S, 90 * S, 20 * S, 25 * S) == 45 * S);
  assert_true(sml_member_retry_deadline(22 * S, 52 * S, 90 * S, 20 * S, 25 * S) == 55 * S);
  assert_true(sml_member_retry_deadline(10 * S, 40 * S, 42 * S, 20 * S, 25 * S) == 42 * S);
  r.retry_ns = 0;
  sml_member_retry_on_silent(&r, 20 * S);
  assert_true(sml_member_retry_on_heard(&r) == 0);
}

static void test_a_loss_goes_back_to_when_it_was_silent(void **state) {
  (void)state;
  sml_member_retry_on_silent(&r, 7 * S);
  lost(SML_ERR_AGGREGATOR_LOST, 9 * S);
  const struct sml_ctl_start start = {.first_operation = 4};
  assert_true(sml_member_retry_on_started(&r, &start) == 7 * S);
  assert_int_equal(r.confirmed_operation, 4);
  assert_int_equal(r.num_rejoins, 1);
  situation.phase = SML_MEMBER_IS_RUNNING;
  lost(SML_ERR_AGGREGATOR_LOST, 19 * S);
  assert_true(is_first);
  assert_true(sml_member_retry_on_started(&r, &start) == 19 * S);
}

/* All ranks have the results of 0 to 2, but an engine still reads the input of 1. After a rejoin others may need what
 * is left, but for what is read already. */
static void test_what_somebody_reads_stays(void **state) {
  (void)state;
  struct sml_member_inputs inputs = {NULL, NULL};
  struct sml_member_input kept[5];
  static const uint64_t order[] = {2, 0, 4, 3, 1}; /* stages of exact sums come behind later operations */
  for (uint64_t i = 0; i < 5; i++)
    kept[i] = (struct sml_member_input){.number = i, .reader = i == 1 || i == 3 ? &r : NULL};
  for (uint64_t i = 0; i < 5; i++) sml_member_inputs_insert(&inputs, &kept[order[i]]);
  r.confirmed_operation = 3;
  assert_ptr_equal(sml_member_inputs_pop(&inputs, &r), &kept[0]);
  assert_null(sml_member_inputs_pop(&inputs, &r));
  assert_ptr_equal(sml_member_inputs_next_replay(&inputs, NULL), &kept[2]);
  assert_ptr_equal(sml_member_inputs_next_replay(&inputs, &kept[2]), &kept[4]);
  assert_null(sml_member_inputs_next_replay(&inputs, &kept[4]));
  kept[1].reader = kept[3].reader = NULL;
  assert_ptr_equal(sml_member_inputs_pop(&inputs, &r), &kept[1]);
  assert_ptr_equal(sml_member_inputs_pop(&inputs, &r), &kept[2]);
  assert_null(sml_member_inputs_pop(&inputs, &r)); /* not confirmed */
  r.confirmed_operation = 5;
  while (sml_member_inputs_pop(&inputs, &r) != NULL) continue;
  assert_true(inputs.oldest == NULL && inputs.newest == NULL);
}

/* ---- with both halves ---- */

static struct sml_member_retry retries[MAX_RANKS];

static void expect_after_loss(uint32_t rank, enum sml_member_after_loss expected) {
  struct rank *k = &ranks[rank];
  const struct sml_member_situation s = {
      .phase = retries[rank].lost_ns != 0 ? SML_MEMBER_IS_REJOINING : SML_MEMBER_IS_RUNNING,
      .was_welcomed = k->m.was_welcomed};
  assert_int_equal(sml_member_retry_on_lost(&retries[rank], &s, &k->m.failure, w.now_ns, &is_first, &patience_ns),
                   expected);
  if (expected != SML_MEMBER_REJOINS) return;
  const struct sml_member_resume resume = sml_member_retry_resume(
      &retries[rank], &k->start, k->progress.operations_completed, k->progress.operations_completed == 0);
  sml_member_rejoin(&k->m, &resume, w.now_ns);
}

/* Daemons come and go; whoever has the fewest results says where the next one begins. */
static void test_successors_one_after_the_other(void **state) {
  (void)state;
  begin_world(3);
  for (uint32_t i = 0; i < 3; i++) {
    ranks[i].m.options.join.features = SML_FEATURE_RETRY;
    retries[i] = (struct sml_member_retry){.retry_ns = RETRY_NS};
  }
  settle();
  for (uint32_t round = 0; round < 5; round++) {
    for (uint32_t i = 0; i < 3; i++) ranks[i].progress.operations_completed = 10 * round + i;
    lose_daemon();
    forget_lines();
    for (uint32_t i = 0; i < 3; i++) expect_after_loss(i, SML_MEMBER_REJOINS);
    wait_for(round * S);
    begin_successor();
    wait_for(S);
    expect_lines("started e200; ");
    for (uint32_t i = 0; i < 3; i++) {
      assert_int_equal(ranks[i].start.first_operation, 10 * round);
      assert_true(sml_member_retry_find_fault(&retries[i], &ranks[i].start, &ranks[i].start,
                                              ranks[i].progress.operations_completed) == NULL);
      sml_member_retry_on_started(&retries[i], &ranks[i].start);
      retries[i].lost_ns = 0; /* as `phase` says it here */
    }
  }
}

/* A rank that was cut off knocks again while the daemon still has its earlier connection. */
static void test_a_rank_that_comes_back_too_early(void **state) {
  (void)state;
  begin_world(2);
  for (uint32_t i = 0; i < 2; i++) {
    ranks[i].m.options.join.features = SML_FEATURE_RETRY;
    ranks[i].m.options.join.lease_ns = 60 * S;
    retries[i] = (struct sml_member_retry){.retry_ns = RETRY_NS};
  }
  settle();
  forget_lines();
  ranks[0].is_cut_off = true;
  ranks[0].conn = MAX_CONNS;
  sml_member_on_closed(&ranks[0].m, "Connection reset by peer", w.now_ns);
  while (sml_member_next_effect(&ranks[0].m)) continue;
  expect_after_loss(0, SML_MEMBER_REJOINS);
  ranks[0].is_cut_off = false;
  settle();
  wait_for(200 * MS);
  expect_line(0, "ended -7; ");
  expect_after_loss(0, SML_MEMBER_REJOINS); /* refused, but not for long */
  assert_false(is_first);
}

/* The rank's job, as far as it is about losing and joining: what came last decides. */
static bool has_ended(const struct rank *k) {
  const size_t n = strlen(k->line);
  const char *last = strstr(k->line, "ended");
  for (const char *next = last; next != NULL; next = strstr(next + 1, "ended")) last = next;
  return last != NULL && strchr(last, ';') == k->line + n - 2;
}
static void take_loss(uint32_t rank) {
  struct rank *k = &ranks[rank];
  if (!has_ended(k)) return;
  const bool has_started = k->start.num_lanes != 0;
  const struct sml_member_situation s = {.phase = !has_started                 ? SML_MEMBER_IS_JOINING
                                                  : retries[rank].lost_ns != 0 ? SML_MEMBER_IS_REJOINING
                                                                               : SML_MEMBER_IS_RUNNING,
                                         .was_welcomed = k->m.was_welcomed,
                                         .join_deadline_ns = k->m.options.deadline_ns};
  const enum sml_member_after_loss after_loss =
      sml_member_retry_on_lost(&retries[rank], &s, &k->m.failure, w.now_ns, &is_first, &patience_ns);
  assert_int_equal(after_loss, has_started ? SML_MEMBER_REJOINS : SML_MEMBER_JOINS_ANEW);
  const struct sml_member_resume resume = sml_member_retry_resume(&retries[rank], &k->start, 0, true);
  if (has_started) sml_member_rejoin(&k->m, &resume, w.now_ns);
  else sml_member_join_anew(&k->m, w.now_ns);
  k->line[0] = 0;
}

static void begin_join(uint32_t one, uint32_t other) {
  begin_world(2);
  for (uint32_t i = 0; i < 2; i++) {
    ranks[i].m.options.join.features = SML_FEATURE_RETRY;
    ranks[i].most_heard = i == 0 ? one : other;
    retries[i] = (struct sml_member_retry){.retry_ns = RETRY_NS};
  }
  settle();
}

/* Whatever each of the ranks has heard of the first aggregator when it is lost. */
static void test_the_job_starts_at_the_successor(void **state) {
  (void)state;
  for (uint32_t one = 0; one <= 3; one++) {
    for (uint32_t other = 0; other <= 3; other++) {
      begin_join(one, other);
      lose_daemon();
      begin_successor();
      for (uint32_t i = 0; i < 2; i++) ranks[i].most_heard = UINT32_MAX;
      for (uint32_t round = 0; round < 50; round++) {
        for (uint32_t i = 0; i < 2; i++) take_loss(i);
        wait_for(100 * MS);
      }
      for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(ranks[i].m.state, SML_MEMBER_RUNNING);
        assert_int_equal(name_of(ranks[i].start.epoch), 200);
        assert_int_equal(ranks[i].start.first_operation, 0);
      }
    }
  }
}

/* The time of the join is over, and the error says that there was an aggregator. */
static void test_a_successor_that_does_not_come(void **state) {
  (void)state;
  begin_join(1 + is_keyed, 0); /* WELCOME */
  lose_daemon();
  take_loss(0);
  wait_for(61 * S);
  expect_line(0, "ended -6; ");
  situation = (struct sml_member_situation){.phase = SML_MEMBER_IS_JOINING, .join_deadline_ns = w.now_ns};
  assert_int_equal(
      sml_member_retry_on_lost(&retries[0], &situation, &ranks[0].m.failure, w.now_ns, &is_first, &patience_ns),
      SML_MEMBER_ENDS);
  expect_failure(0, SML_ERR_UNREACHABLE, "after the aggregator was lost while this rank joined: no aggregator at");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_only_a_lost_aggregator_is_replaced, begin_retry),
      cmocka_unit_test_setup(test_without_retry_it_is_the_end, begin_retry),
      cmocka_unit_test_setup(test_what_passes_is_waited_for, begin_retry),
      cmocka_unit_test_setup(test_what_does_not_pass_is_the_end, begin_retry),
      cmocka_unit_test_setup(test_a_refusal_counts_when_it_lasts, begin_retry),
      cmocka_unit_test_setup(test_a_lost_join_is_joined_anew, begin_retry),
      cmocka_unit_test_setup(test_what_a_successor_says_is_not_believed, begin_retry),
      cmocka_unit_test_setup(test_confirmed_operations_never_fall, begin_retry),
      cmocka_unit_test_setup(test_deadlines_stand_still, begin_retry),
      cmocka_unit_test_setup(test_a_loss_goes_back_to_when_it_was_silent, begin_retry),
      cmocka_unit_test_setup(test_what_somebody_reads_stays, begin_retry),
      BOTH(test_successors_one_after_the_other),
      BOTH(test_a_rank_that_comes_back_too_early),
      BOTH(test_the_job_starts_at_the_successor),
      BOTH(test_a_successor_that_does_not_come),
  };
  return cmocka_run_group_tests(tests, NULL, end_world);
}
