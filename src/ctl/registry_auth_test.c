/* SPDX-License-Identifier: Apache-2.0
 * Keys: who is challenged, what a wrong answer gets, which jobs meet, which data keys they have. */
#include "ctl/test_registry_world.h"

static struct sml_ctl_message keyed_join(const char *key_name, const char *name, uint32_t rank) {
  struct sml_ctl_message m = join_message(name, rank, 2);
  snprintf(m.u.join.key_name, sizeof m.u.join.key_name, "%s", key_name);
  m.u.join.nonce[0] = 77 + rank;
  return m;
}

/* The handshake with a key of the rank's own; what it ends with is in w.line. */
static void shake(uint32_t conn, const char *key_name, struct sml_key key, const char *name, uint32_t rank) {
  struct sml_ctl_message m = keyed_join(key_name, name, rank);
  w.worker_key = key;
  opened(conn);
  said(conn, &m);
}

static void test_nothing_is_joined_before_auth(void **state) {
  (void)state;
  begin();
  struct sml_ctl_message m = keyed_join("a", "x", 0);
  struct sml_registry_counts counts;
  opened(0);
  said_once(0, &m);
  EXPECT("c0<CHALLENGE; c0 key; ");
  sml_registry_counts(w.r, &counts);
  assert_int_equal(counts.jobs_joining, 0);
  assert_int_equal(counts.unjoined, 1);
  said_once(0, &(struct sml_ctl_message){.kind = SML_CTL_AUTH});
  EXPECT("open j0 e100 n2; expect j0 r0; c0<WELCOME j0 e100; ");
  sml_registry_counts(w.r, &counts);
  assert_int_equal(counts.unjoined, 0);
}

/* However many lanes and slots there are: each lane has some of its own. */
static void test_lanes_have_slots_of_their_own(void **state) {
  (void)state;
  static const struct {
    uint32_t num_slots, num_lanes;
    bool is_one_way;
  } rows[] = {{16, 16, true}, {512, 16, true}, {1024, 16, false}, {8192, 8, false}};
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    struct sml_registry_options options = defaults();
    options.num_lanes = 16;
    options.pool_slots = 65536;
    for (uint32_t lane = 0; lane < 16; lane++) options.data_ports[lane] = (uint16_t)(7000 + lane);
    begin_with(options);
    for (uint32_t rank = 0; rank < 2; rank++) {
      struct sml_ctl_message m = keyed_join("a", "x", rank);
      m.u.join.num_slots = rows[i].num_slots;
      m.u.join.num_lanes = 16;
      m.u.join.features = SML_FEATURE_ONE_WAY;
      w.worker_key = (struct sml_key){1, 2};
      opened(rank);
      said(rank, &m);
    }
    probed(0, 1472);
    probed(1, 1472); /* START, which is looked at */
    assert_int_equal(w.last[0].u.start.num_slots, rows[i].num_slots);
    assert_int_equal(w.last[0].u.start.num_lanes, rows[i].num_lanes);
    assert_int_equal((w.last[0].u.start.features & SML_FEATURE_ONE_WAY) != 0, rows[i].is_one_way);
  }
}

/* What a guesser sees is the same whether the name exists or not. */
static void test_wrong_keys_and_unknown_names(void **state) {
  (void)state;
  static const struct {
    const char *name;
    struct sml_key key;
  } rows[] = {{"a", {1, 3}},      {"a", {3, 4}},      {"b", {1, 2}}, {"nobody", {1, 2}},
              {"nobody", {5, 6}}, {"nobody", {0, 0}}, {"A", {1, 2}}, {"aa", {1, 2}}};
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    char detail[SML_DETAIL_BYTES];
    begin();
    shake(0, rows[i].name, rows[i].key, "x", 0);
    EXPECT("c0<REFUSE -19; c0 close; ");
    snprintf(detail, sizeof detail,
             "the aggregator has no key '%s', or not the same one: SWITCHML_KEY_FILE of this rank must have that "
             "line of the aggregator's --key-file",
             rows[i].name);
    expect_detail(0, detail);
    assert_non_null(strstr(w.notes, ":x:10.0.0.0: the aggregator has no key"));
    expect_all_free();
  }
}

static void test_both_sides_must_want_a_key(void **state) {
  (void)state;
  begin();
  struct sml_ctl_message m = join_message("x", 0, 2);
  opened(0);
  said_once(0, &m);
  EXPECT("c0<REFUSE -19; c0 close; ");
  expect_detail(0,
                "the aggregator takes ranks with a key only: set SWITCHML_KEY_FILE on all ranks to a file with a "
                "key of its --key-file");
  assert_non_null(strstr(w.notes, ":x:10.0.0.0: "));
  is_keyed = false;
  begin();
  m = keyed_join("a", "x", 0);
  opened(0);
  said_once(0, &m);
  EXPECT("c0<REFUSE -19; c0 close; ");
  expect_detail(0,
                "this rank has a key, but the aggregator has none: start it with --key-file, or unset "
                "SWITCHML_KEY_FILE on all ranks");
  expect_all_free();
}

static void test_jobs_of_other_keys_never_meet(void **state) {
  (void)state;
  begin();
  shake(0, "a", key_a, "x", 0);
  EXPECT("open j0 e100 n2; expect j0 r0; c0<WELCOME j0 e100; ");
  shake(1, "b", key_b, "x", 0);
  EXPECT("open j1 e101 n2; expect j1 r0; c1<WELCOME j1 e101; ");
  shake(2, "a", key_a, "x", 1);
  EXPECT("expect j0 r1; c2<WELCOME j0 e100; ");
  shake(3, "b", key_b, "x", 1);
  for (uint32_t c = 0; c < 4; c++) probed(c, 8960);
  EXPECT("start j1 e101; c3<START e101; c1<START e101; ");
  assert_memory_not_equal(&w.jobs[0].key, &w.jobs[1].key, sizeof(struct sml_key));
}

static void test_data_keys(void **state) {
  (void)state;
  begin();
  uint64_t salt[2];
  opened(0);
  join(0, "x", 0, 2);
  memcpy(salt, w.last[0].u.welcome.salt, sizeof salt);
  assert_true(salt[0] != 0 && salt[1] != 0);
  opened(1);
  join(1, "x", 1, 2);
  assert_memory_equal(salt, w.last[1].u.welcome.salt, sizeof salt);
  struct sml_key expected = sml_ctl_data_key(&key_a, "x", 0, w.last[0].u.welcome.epoch, salt);
  assert_memory_equal(&w.jobs[0].key, &expected, sizeof expected);
  probed(0, 8960);
  probed(1, 8960);
  want_epoch(0, 100);
  want_epoch(1, 100);
  expected = sml_ctl_data_key(&key_a, "x", 0, w.last[0].u.start.epoch, salt);
  assert_memory_equal(&w.jobs[0].key, &expected, sizeof expected);
  for (uint32_t c = 0; c < 2; c++) goodbye(c);
  start_world("x", 0, 2); /* the same name and number: other salt */
  assert_memory_not_equal(salt, w.last[0].u.welcome.salt, sizeof salt);
}

/* Whoever changes the plain JOIN on its way makes the two ends' keys differ. */
static void test_changed_join_is_found_out(void **state) {
  (void)state;
  begin();
  struct sml_ctl_message m = keyed_join("a", "x", 0), changed;
  uint8_t frame[SML_CHANNEL_MAX_FRAME_BYTES];
  size_t consumed, num_bytes;
  opened(0);
  num_bytes = sml_channel_encode(&w.worker_end[0], &m, frame, sizeof frame);
  m.u.join.rank = 1;
  num_bytes = sml_ctl_encode(&m, frame, sizeof frame);
  assert_int_equal(sml_channel_decode(&w.daemon_end[0], frame, num_bytes, &changed, &consumed), SML_CTL_DECODED);
  sml_registry_on_message(w.r, 0, &changed, w.now_ns);
  take_effects();
  EXPECT("c0<CHALLENGE; c0 key; ");
  said_once(0, &(struct sml_ctl_message){.kind = SML_CTL_AUTH});
  EXPECT("c0<REFUSE -19; c0 close; ");
}

static void test_challenged_connections_are_bounded(void **state) {
  (void)state;
  begin();
  struct sml_ctl_message m = keyed_join("a", "x", 0);
  opened(0);
  w.now_ns += 4 * S;
  said_once(0, &m); /* the grace began with the connection */
  tick();
  EXPECT("c0 close; ");
  assert_int_equal(w.now_ns, 1005 * S);
  for (uint32_t c = 0; c < 8; c++) {
    opened_from(c, "10.0.0.9:5");
    said_once(c, &m);
    assert_non_null(strstr(w.line, "CHALLENGE"));
  }
  opened_from(8, "10.0.0.9:6");
  EXPECT("c0 close; ");
  sml_registry_on_stop(w.r);
  take_effects();
  expect_all_free();
}

static void test_challenged_and_something_else(void **state) {
  (void)state;
  for (int kind = SML_CTL_JOIN; kind <= SML_CTL_LAST_KIND; kind++) {
    struct sml_ctl_message join = keyed_join("a", "x", 0), m = {.kind = (enum sml_ctl_kind)kind};
    if (kind == SML_CTL_JOIN) m = join;
    begin();
    opened(0);
    said_once(0, &join);
    said_once(0, &m);
    if (kind == SML_CTL_AUTH) assert_non_null(strstr(w.line, "WELCOME"));
    else if (kind == SML_CTL_GOODBYE) EXPECT("c0 close; ");
    else EXPECT("c0<REFUSE -17; c0 close; ");
  }
  static const enum sml_ctl_decode garbages[] = {SML_CTL_BAD_MAGIC, SML_CTL_MALFORMED, SML_CTL_BAD_VERSION,
                                                 SML_CTL_BAD_MAC};
  static const char *const lines[] = {"c0 close; ", "c0 close; ", "c0<REFUSE -8; c0 close; ",
                                      "c0<REFUSE -19; c0 close; "};
  for (size_t i = 0; i < SML_ARRAY_LEN(lines); i++) {
    struct sml_ctl_message join = keyed_join("a", "x", 0);
    begin();
    opened(0);
    said_once(0, &join);
    garbage(0, garbages[i]);
    assert_string_equal(w.line, lines[i]);
  }
  begin();
  opened(0);
  garbage(0, SML_CTL_BAD_MAC); /* a MAC before there is a key: a stranger */
  EXPECT("c0 close; ");
}

static void test_members_wrong_tag(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 2);
  garbage(1, SML_CTL_BAD_MAC);
  EXPECT("c1<ABORT -19; depart j0 r1; c0<GONE r1; c1 close; ");
  expect_detail(0,
                "rank 1 (10.0.0.1) was lost: a control message came with a wrong MAC: somebody changed or "
                "repeated it on its way");
}

/* AUTH of an old connection, and all that followed, said again on a new one. */
static void test_replayed_session(void **state) {
  (void)state;
  begin();
  struct sml_ctl_message m = keyed_join("a", "x", 0), heard;
  uint8_t join_frame[512], auth_frame[64];
  size_t consumed;
  opened(0);
  struct sml_channel worker = w.worker_end[0];
  size_t join_bytes = sml_channel_encode(&worker, &m, join_frame, sizeof join_frame);
  said_once(0, &m);
  struct sml_ctl_message auth = {.kind = SML_CTL_AUTH};
  struct sml_channel copy = w.worker_end[0];
  size_t auth_bytes = sml_channel_encode(&copy, &auth, auth_frame, sizeof auth_frame);
  said_once(0, &auth);
  assert_non_null(strstr(w.line, "WELCOME"));
  opened(1);
  assert_int_equal(sml_channel_decode(&w.daemon_end[1], join_frame, join_bytes, &heard, &consumed), SML_CTL_DECODED);
  sml_registry_on_message(w.r, 1, &heard, w.now_ns);
  take_effects();
  EXPECT("c1<CHALLENGE; c1 key; ");
  assert_int_equal(sml_channel_decode(&w.daemon_end[1], auth_frame, auth_bytes, &heard, &consumed), SML_CTL_BAD_MAC);
  garbage(1, SML_CTL_BAD_MAC);
  EXPECT("c1<REFUSE -19; c1 close; ");
}

#define KEYED(test) \
  { #test, test, keyed_world, NULL, NULL }

int main(void) {
  const struct CMUnitTest tests[] = {
      KEYED(test_nothing_is_joined_before_auth),
      KEYED(test_lanes_have_slots_of_their_own),
      KEYED(test_wrong_keys_and_unknown_names),
      KEYED(test_both_sides_must_want_a_key),
      KEYED(test_jobs_of_other_keys_never_meet),
      KEYED(test_data_keys),
      KEYED(test_changed_join_is_found_out),
      KEYED(test_challenged_connections_are_bounded),
      KEYED(test_challenged_and_something_else),
      KEYED(test_members_wrong_tag),
      KEYED(test_replayed_session),
  };
  return cmocka_run_group_tests(tests, NULL, end_world);
}
