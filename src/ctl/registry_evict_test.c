/* SPDX-License-Identifier: Apache-2.0
 * Jobs that are ended by hand, or with their keys. */
#include "ctl/test_registry_world.h"

static struct sml_ctl_message evict_message(const char *name, const char *why) {
  struct sml_ctl_message m = {.kind = SML_CTL_EVICT};
  snprintf(m.u.evict.job_name, sizeof m.u.evict.job_name, "%s", name);
  snprintf(m.u.evict.detail, sizeof m.u.evict.detail, "%s", why);
  return m;
}

/* Without keys: from its own host. With keys: from a client that has proved one. */
static void ask(uint32_t conn, const char *key_name, const char *name, const char *why) {
  const struct sml_ctl_message m = evict_message(name, why);
  opened_from(conn, "127.0.0.1:9");
  if (is_keyed && key_name[0]) {
    struct sml_ctl_message status = {.kind = SML_CTL_STATUS, .u.status.nonce = {7, 8}};
    snprintf(status.u.status.key_name, sizeof status.u.status.key_name, "%s", key_name);
    said_once(conn, &status);
    said_once(conn, &(struct sml_ctl_message){.kind = SML_CTL_AUTH});
  }
  said_once(conn, &m);
}

static void test_a_job_is_ended_by_hand(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 2);
  start_world("y", 2, 2);
  ask(9, "a", "x", "it holds all slots");
  EXPECT("c1<ABORT -14; c1 close; c0<ABORT -14; c0 close; end j0; c9<EVICTED 1 2; c9 close; ");
  expect_detail(0, "job 'x' was ended by hand at the aggregator, from 127.0.0.1: it holds all slots");
  assert_non_null(strstr(w.notes, "ended by hand"));
  ask(9, "a", "x", "");
  EXPECT("c9<REFUSE -7; c9 close; ");
  expect_detail(9, is_keyed ? "there is no job 'x' of key a" : "there is no job 'x'");
  opened(5);
  join(5, "z", 0, 2); /* waits */
  ask(9, "a", "z", "");
  EXPECT("c5<REFUSE -14; c5 close; end j0; c9<EVICTED 1 1; c9 close; ");
  expect_detail(5, "job 'z' was ended by hand at the aggregator, from 127.0.0.1");
  assert_true(w.is_open[2] && w.is_open[3]);
}

/* One that is at its end, and its successor under the same name. */
static void test_all_jobs_of_a_name(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 3);
  goodbye(0);
  opened(4);
  join(4, "x", 0, 3);
  ask(9, "a", "x", "");
  assert_non_null(strstr(w.line, "c9<EVICTED 2 3; "));
  expect_all_free();
}

static void test_who_may_not(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 2);
  const struct sml_ctl_message m = evict_message("x", "");
  opened_from(9, "10.0.0.9:1");
  said_once(9, &m);
  EXPECT(is_keyed ? "c9<REFUSE -19; c9 close; " : "c9<REFUSE -7; c9 close; ");
  assert_non_null(strstr(w.notes, "10.0.0.9: "));
  if (is_keyed) {
    ask(9, "", "x", ""); /* its own host is not enough */
    EXPECT("c9<REFUSE -19; c9 close; ");
    w.worker_key = key_b;
    ask(9, "b", "x", "");
    expect_detail(9, "there is no job 'x' of key b");
  }
  said(0, &m); /* nor a rank: it has ABORT */
  assert_non_null(strstr(w.line, "c0<ABORT -17; "));
  assert_false(w.is_open[0]);
  heartbeat(1);
  assert_true(w.is_open[1]);
}

static struct sml_key now_key;
static bool has_key;
static bool find_now_key(void *user, const char *name, struct sml_key *key_out) {
  (void)user;
  *key_out = now_key;
  return has_key || strcmp(name, "a") != 0;
}

static void begin_with_changing_keys(void) {
  struct sml_registry_options options = defaults();
  begin_with(options);
  options = w.options;
  options.find_key = find_now_key;
  w.r = sml_registry_init(take_zeros(sml_registry_memsize(&options)), &options);
  now_key = w.worker_key = key_a;
  has_key = true;
}

static void test_withdrawn_keys_end_their_jobs(void **state) {
  (void)state;
  for (uint32_t is_changed = 0; is_changed < 2; is_changed++) {
    begin_with_changing_keys();
    start_world("x", 0, 2);
    opened(3);
    join(3, "waits", 0, 2);
    opened(4);
    struct sml_ctl_message m = join_message("late", 0, 2);
    m.u.join.key_name[0] = 'a';
    said_once(4, &m); /* challenged */
    opened(5);
    m = (struct sml_ctl_message){.kind = SML_CTL_STATUS, .u.status = {.key_name = "a", .nonce = {7, 8}}};
    said_once(5, &m);
    said_once(5, &(struct sml_ctl_message){.kind = SML_CTL_AUTH}); /* reads the status */
    assert_false(sml_registry_on_withdrawn(w.r));
    take_effects();
    if (is_changed) now_key = key_b;
    else has_key = false;
    assert_true(sml_registry_on_withdrawn(w.r));
    take_effects();
    EXPECT("c1<ABORT -19; c1 close; c0<ABORT -19; c0 close; end j0; ");
    expect_detail(0, "key 'a' of job 'x' was withdrawn at the aggregator");
    assert_true(sml_registry_on_withdrawn(w.r));
    take_effects();
    EXPECT("c3<REFUSE -19; c3 close; end j1; ");
    assert_true(sml_registry_on_withdrawn(w.r));
    take_effects();
    EXPECT("c4 close; ");
    assert_true(sml_registry_on_withdrawn(w.r));
    take_effects();
    EXPECT("c5 close; ");
    assert_false(sml_registry_on_withdrawn(w.r));
    take_effects();
    expect_all_free();
  }
}

static void test_keys_withdrawn_since_the_challenge_are_refused(void **state) {
  (void)state;
  begin_with_changing_keys();
  opened(4);
  struct sml_ctl_message m = join_message("late", 0, 2);
  m.u.join.key_name[0] = 'a';
  said_once(4, &m);
  opened(5);
  m = (struct sml_ctl_message){.kind = SML_CTL_STATUS, .u.status = {.key_name = "a", .nonce = {7, 8}}};
  said_once(5, &m);
  has_key = false;
  for (uint32_t conn = 4; conn < 6; conn++) {
    said_once(conn, &(struct sml_ctl_message){.kind = SML_CTL_AUTH});
    assert_false(w.is_open[conn]);
    expect_detail(conn,
                  "the aggregator has no key 'a', or not the same one: SWITCHML_KEY_FILE of this rank must have that "
                  "line of the aggregator's --key-file");
  }
  expect_all_free();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BOTH(test_a_job_is_ended_by_hand),
      BOTH(test_all_jobs_of_a_name),
      BOTH(test_who_may_not),
      {"test_withdrawn_keys_end_their_jobs", test_withdrawn_keys_end_their_jobs, keyed_world, NULL, NULL},
      {"test_keys_withdrawn_since_the_challenge_are_refused", test_keys_withdrawn_since_the_challenge_are_refused,
       keyed_world, NULL, NULL},
  };
  return cmocka_run_group_tests(tests, NULL, end_world);
}
