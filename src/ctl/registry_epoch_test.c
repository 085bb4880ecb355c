/* SPDX-License-Identifier: Apache-2.0
 * New epochs, and what a job knows of those before. */
#include "ctl/test_registry_world.h"

static void test_new_epoch_when_all_asked(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 2);
  uint32_t chunk_bytes = w.last[0].u.start.chunk_bytes;
  want_epoch(0, 100);
  EXPECT("");
  want_epoch(1, 100);
  EXPECT("start j0 e101; c1<START e101; c0<START e101; ");
  assert_int_equal(w.last[0].u.start.chunk_bytes, chunk_bytes);
  want_epoch(1, 101);
  want_epoch(0, 101);
  EXPECT("start j0 e102; c1<START e102; c0<START e102; ");
  start_world("y", 2, 2);
  EXPECT("start j1 e103; c3<START e103; c2<START e103; ");
}

static void test_epoch_with_a_rank_gone_is_vain(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 3);
  want_epoch(0, 100);
  closed(2, SML_CLOSED_FIN);
  EXPECT("depart j0 r2; c1<GONE r2; c0<GONE r2; c1<ABORT -11; c1 close; c0<ABORT -11; c0 close; end j0; ");
  start_world("x", 0, 3);
  closed(2, SML_CLOSED_FIN);
  want_epoch(0, 101);
  EXPECT("c1<ABORT -11; c1 close; c0<ABORT -11; c0 close; end j0; ");
  assert_int_equal(w.last[0].u.abort.ranks[0], 2);
}

/* No number that somebody has seen tells another: neither of the next job, nor of the job's own next epoch. */
static void test_epochs_are_drawn(void **state) {
  (void)state;
  uint32_t epochs[48], num_epochs = 0;
  begin();
  for (uint32_t round = 0; round < 8; round++) {
    start_world("x", 0, 2);
    start_world("y", 2, 2);
    epochs[num_epochs++] = w.last[0].u.start.epoch;
    epochs[num_epochs++] = w.last[2].u.start.epoch;
    for (uint32_t c = 0; c < 4; c++) want_epoch(c, w.last[c].u.start.epoch);
    epochs[num_epochs++] = w.last[0].u.start.epoch;
    epochs[num_epochs++] = w.last[2].u.start.epoch;
    for (uint32_t c = 0; c < 4; c++) goodbye(c);
  }
  for (uint32_t i = 0; i < num_epochs; i++)
    for (uint32_t j = 0; j < i; j++) assert_true(epochs[i] - epochs[j] + 1000 > 2000);
}

static uint64_t draw_the_same(void *user) {
  (void)user;
  return 77;
}

/* Late packets of an epoch never fit the next one of that job number. */
static void test_an_epoch_is_not_the_last_one_again(void **state) {
  (void)state;
  struct sml_registry_options options = defaults();
  begin_with(options);
  options.random = draw_the_same;
  struct sml_registry *r = sml_registry_init(calloc(1, sml_registry_memsize(&options)), &options);
  uint32_t last = 0;
  for (uint32_t round = 0; round < 3; round++) {
    sml_registry_on_opened(r, 0, "10.0.0.1:1", w.now_ns);
    struct sml_ctl_message m = join_message("x", 0, 2);
    sml_registry_on_message(r, 0, &m, w.now_ns);
    for (const struct sml_effect *e; (e = sml_registry_next_effect(r));) {
      if (e->kind != SML_EFFECT_OPEN_JOB) continue;
      assert_int_not_equal(e->epoch, last);
      last = e->epoch;
    }
    sml_registry_on_closed(r, 0, SML_CLOSED_FIN);
    while (sml_registry_next_effect(r)) continue;
  }
  free(r);
}

/* Who joined and left before the start knows neither the epoch nor the secret of those that started. */
static void test_who_left_before_the_start_knows_nothing(void **state) {
  (void)state;
  begin();
  opened(1);
  join(1, "x", 1, 2);
  opened(0);
  join(0, "x", 0, 2);
  const struct sml_ctl_welcome seen = w.last[0].u.welcome;
  goodbye(0);
  opened(2);
  join(2, "x", 0, 2);
  probed(1, 8960);
  probed(2, 8960);
  const struct sml_ctl_start *start = &w.last[1].u.start;
  assert_int_equal(w.last[1].kind, SML_CTL_START);
  assert_int_not_equal(start->epoch, seen.epoch);
  for (uint32_t i = 0; i < 2 && !is_keyed; i++) {
    assert_true(start->secret[i] != 0);
    assert_true(start->secret[i] != seen.secret[i]);
  }
}

/* How many words of the registry's memory have this value. */
static uint32_t count_words(uint64_t value) {
  uint32_t num_words = 0;
  const uint8_t *bytes = (const uint8_t *)w.r;
  const size_t num_bytes = sml_registry_memsize(&w.options);
  for (size_t at = 0; at + sizeof value <= num_bytes; at += sizeof value)
    num_words += memcmp(bytes + at, &value, sizeof value) == 0;
  return num_words;
}

/* Neither the key of its last epoch nor, without a key, its secret. A START that went out lies there until another one
 * does. */
static void test_a_job_that_is_no_more_leaves_no_secret(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 2);
  const uint64_t secret = is_keyed ? w.jobs[0].key.k0 : w.last[0].u.start.secret[1];
  const uint32_t num_before = count_words(secret);
  assert_true(secret != 0 && num_before > 0);
  start_world("y", 4, 2);
  for (uint32_t rank = 0; rank < 2; rank++) goodbye(rank);
  if (count_words(secret) != 0) fail_msg("%u of %u copies are there", count_words(secret), num_before);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BOTH(test_new_epoch_when_all_asked),
      BOTH(test_epoch_with_a_rank_gone_is_vain),
      BOTH(test_epochs_are_drawn),
      BOTH(test_an_epoch_is_not_the_last_one_again),
      BOTH(test_who_left_before_the_start_knows_nothing),
      BOTH(test_a_job_that_is_no_more_leaves_no_secret),
  };
  return cmocka_run_group_tests(tests, NULL, end_world);
}
