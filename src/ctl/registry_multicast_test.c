/* SPDX-License-Identifier: Apache-2.0
 * Results by multicast: which group a job is offered, when it is used, and what the log says when it is not. */
#include "ctl/test_registry_world.h"

static void begin_offering(uint32_t num_groups) {
  struct sml_registry_options options = defaults();
  options.first_group[0] = 0;
  options.first_group[1] = 0xffffefc00700;
  options.group_port = 28879;
  options.num_groups = num_groups;
  begin_with(options);
}

static void heard(uint32_t conn, enum sml_ctl_hearing hearing) {
  const struct sml_ctl_message m = {.kind = SML_CTL_PROBED,
                                    .u.probed = {.datagram_bytes = 1472, .hearing = (uint32_t)hearing}};
  said(conn, &m);
}

static void open_world(const char *name, uint32_t first, uint32_t world_size) {
  for (uint32_t rank = 0; rank < world_size; rank++) {
    opened(first + rank);
    join(first + rank, name, rank, world_size);
  }
}

static void test_each_job_has_a_group(void **state) {
  (void)state;
  begin_offering(2);
  open_world("a", 0, 2);
  open_world("b", 2, 2);
  open_world("c", 4, 2); /* none is left */
  for (uint32_t conn = 0; conn < 6; conn++) {
    const struct sml_ctl_welcome *welcome = &w.last[conn].u.welcome;
    assert_int_equal(welcome->group[0], 0);
    assert_int_equal(welcome->group[1], conn < 4 ? 0xffffefc00700 + conn / 2 : 0);
    assert_int_equal(welcome->group_port, conn < 4 ? 28879 : 0);
  }
  for (uint32_t conn = 0; conn < 6; conn++) heard(conn, conn < 4 ? SML_CTL_HEARS : SML_CTL_NO_GROUP);
  for (uint32_t job = 0; job < 3; job++) assert_int_equal(w.jobs[job].start.is_multicast, job < 2);
  assert_null(strstr(w.notes, "unicast")); /* it was not offered: nothing to say */
  goodbye(0);
  goodbye(1);
  open_world("d", 0, 2); /* a's number, and group */
  assert_int_equal(w.last[0].u.welcome.group[1], 0xffffefc00700);
  begin();
  open_world("a", 0, 2);
  assert_int_equal(w.last[0].u.welcome.group_port, 0);
}

static void test_all_must_hear(void **state) {
  (void)state;
  static const struct {
    enum sml_ctl_hearing hearing[6];
    const char *text;
  } rows[] = {
      {{2, 2, 2, 2, 2, 2}, NULL},
      {{2, 2, 1, 2, 2, 2}, "unicast: rank 2 did not get its probes; "},
      {{0, 2, 2, 2, 2, 1}, "unicast: rank 0 does not take part, rank 5 did not get its probes; "},
      {{1, 1, 1, 1, 1, 1},
       "rank 1 did not get its probes, rank 2 did not get its probes, rank 3 did not get its probes and others; "},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    begin_offering(1);
    open_world("x", 0, 6);
    for (uint32_t rank = 6; rank-- > 0;) heard(rank, rows[i].hearing[rank]);
    for (uint32_t rank = 0; rank < 6; rank++) assert_int_equal(w.last[rank].u.start.is_multicast, rows[i].text == NULL);
    assert_int_equal(strstr(w.notes, " multicast=1") != NULL, rows[i].text == NULL);
    if (rows[i].text) assert_non_null(strstr(w.notes, rows[i].text));
    const uint32_t epoch = w.jobs[0].epoch;
    for (uint32_t rank = 0; rank < 6; rank++) want_epoch(rank, epoch);
    assert_int_equal(w.jobs[0].start.is_multicast, rows[i].text == NULL); /* as before, and nothing more is said */
    assert_null(strstr(w.notes, "unicast"));
  }
}

/* Ranks of one host need no network; of those that contribute as one, the lead alone gets results. */
static void test_hosts(void **state) {
  (void)state;
  for (uint32_t num_hosts = 1; num_hosts <= 2; num_hosts++) {
    begin_offering(1);
    for (uint32_t rank = 0; rank < 4; rank++) {
      struct sml_ctl_message m = join_message("x", rank, 4);
      m.u.join.host[0] = 1 + rank % num_hosts;
      m.u.join.is_combining = 1;
      opened(rank);
      said(rank, &m);
    }
    for (uint32_t rank = 0; rank < 4; rank++) heard(rank, rank < 2 ? SML_CTL_HEARS : SML_CTL_DEAF);
    assert_int_equal(w.jobs[0].start.is_multicast, num_hosts == 2);
    assert_null(strstr(w.notes, "unicast"));
  }
}

static void test_deaf_later(void **state) {
  (void)state;
  begin_offering(1);
  open_world("x", 0, 2);
  heard(0, SML_CTL_HEARS);
  heard(1, SML_CTL_HEARS);
  const uint32_t epoch = w.jobs[0].epoch;
  sml_registry_on_deaf(w.r, 0, epoch, 1);
  take_effects();
  EXPECT("");
  assert_non_null(strstr(w.notes, "rank 1 does not get the results that go to the group"));
  sml_registry_on_deaf(w.r, 0, epoch + 1, 1); /* of another epoch */
  take_effects();
  assert_string_equal(w.notes, "");
}

int main(void) {
  const struct CMUnitTest tests[] = {BOTH(test_each_job_has_a_group), BOTH(test_all_must_hear), BOTH(test_hosts),
                                     BOTH(test_deaf_later)};
  return cmocka_run_group_tests(tests, NULL, end_world);
}
