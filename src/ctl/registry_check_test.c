/* SPDX-License-Identifier: Apache-2.0
 * The checker of the registry's invariants must see each of them broken: every row breaks one on purpose. */
#include "ctl/registry_internal.h"
#include "ctl/test_registry_world.h"

static struct sml_job_entry *x, *y; /* started, with ranks on connections 0, 1 and 2, 3 */

static void break_list(void) {
  w.r->conns[1].next = SML_NO_CONN;
}
static void break_back_link(void) {
  w.r->conns[0].prev = 3;
}
static void break_count(void) {
  x->num_members = 3;
}
static void break_count_down(void) {
  x->num_members = 1;
}
static void break_state(void) {
  w.r->conns[0].state = SML_CONN_UNJOINED;
}
static void break_owner(void) {
  w.r->conns[0].job = 1;
}
static void break_range(void) {
  x->first_member = MAX_CONNS + 1;
}
static void break_rank(void) {
  w.r->conns[0].rank = 2;
}
static void break_present(void) {
  sml_bit_set(x->present, 77);
}
static void break_probed(void) {
  w.r->conns[0].has_probed = false;
}
static void break_member_lanes(void) {
  w.r->conns[0].num_lanes = 3;
}
static void break_progress(void) {
  w.r->conns[0].resume_operation = 5;
}
static void break_epoch_wait(void) {
  w.r->conns[0].wants_epoch = w.r->conns[1].wants_epoch = true;
}
static void break_departed(void) {
  x->num_departed = 1;
}
static void break_lanes(void) {
  x->num_lanes = 0;
}
static void break_chunk(void) {
  x->chunk_bytes = 1001;
}
static void break_confirmed(void) {
  x->confirmed = 1;
}
static void break_first(void) {
  x->first_operation = 1;
}
static void break_alignment(void) {
  x->slot_base[0] += 1;
}
static void break_window(void) {
  x->slot_base[1] = (uint16_t)w.options.pool_slots;
}
static void break_meeting(void) {
  x->slot_base[0] = y->slot_base[0];
}
static void break_pool(void) {
  w.r->pools[0].used[0] &= ~UINT64_C(1);
}
static void break_leak(void) {
  w.r->pools[1].used[1000 / 64] |= 1;
}
static void break_epochs(void) {
  x->epoch = y->epoch;
}
static void break_names(void) {
  memcpy(x->name, y->name, sizeof x->name);
}
static void break_keys(void) {
  x->key_name[0] = x->key_name[0] ? 0 : 'z';
}
static void break_table(void) {
  w.r->jobs_end = 1;
}
static void break_conn_table(void) {
  w.r->conns_end = 2;
}
static void break_stray(void) {
  w.r->conns[5].state = SML_CONN_MEMBER;
}
static void break_limit(void) {
  w.r->options.max_jobs = 1;
}
static void break_empty(void) {
  x->state = SML_JOB_JOINING;
  x->first_member = SML_NO_CONN;
  x->num_members = 0;
  memset(x->present, 0, sizeof x->present);
}

static const struct {
  void (*breaks)(void);
  const char *found;
} rows[] = {
    {break_list, "a job's list has fewer members than its count"},
    {break_back_link, "a list of members is not linked both ways"},
    {break_count, "a job's list has fewer members than its count"},
    {break_count_down, "a job's list has more members than its count"},
    {break_state, "a member's connection is no member's"},
    {break_owner, "a member's connection belongs to another job"},
    {break_range, "a member's connection is outside the table"},
    {break_rank, "a member's rank is not present"},
    {break_present, "the ranks present are not as many as the members"},
    {break_probed, "a rank of a started job has not probed"},
    {break_member_lanes, "a member has more lanes than the daemon"},
    {break_progress, "a member's operations are out of order"},
    {break_epoch_wait, "all ranks wait for an epoch that was not given"},
    {break_departed, "a started job's ranks don't add up"},
    {break_lanes, "a job's lanes are not the daemon's"},
    {break_chunk, "a job's chunk size is impossible"},
    {break_confirmed, "more is confirmed than a rank has completed"},
    {break_first, "less is confirmed than the job began with"},
    {break_alignment, "a job's window is not in the pool"},
    {break_window, "a job's window is not in the pool"},
    {break_meeting, "two jobs have a slot in common"},
    {break_pool, "a job's slot is not taken from the pool"},
    {break_leak, "slots are taken from the pool that no job has"},
    {break_epochs, "two jobs have one epoch"},
    {break_names, "two jobs of one name and key are at work"},
    {break_keys, "a job has a key at a daemon without, or none at one with keys"},
    {break_table, "a job is outside the table"},
    {break_conn_table, "a connection is outside the table"},
    {break_stray, "a connection is in no job's list of members"},
    {break_limit, "more jobs are started than may be"},
    {break_empty, "a job has no members"},
};

static void begin_two_jobs(void) {
  begin();
  start_world("x", 0, 2);
  start_world("y", 2, 2);
  opened(6);
  x = &w.r->jobs[0];
  y = &w.r->jobs[1];
}

static void test_each_violation_is_found(void **state) {
  (void)state;
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    begin_two_jobs();
    assert_null(sml_registry_find_violation(w.r));
    rows[i].breaks();
    const char *found = sml_registry_find_violation(w.r);
    if (!found) fail_msg("row %zu was not found: %s", i, rows[i].found);
    assert_string_equal(found, rows[i].found);
  }
}

static void test_two_joined_under_one_name(void **state) {
  (void)state;
  begin();
  for (uint32_t c = 0; c < 2; c++) {
    opened(c);
    join(c, c == 0 ? "x" : "y", 0, 2);
  }
  memcpy(w.r->jobs[0].name, w.r->jobs[1].name, sizeof w.r->jobs[0].name);
  assert_string_equal(sml_registry_find_violation(w.r), "two jobs of one name and key are joined");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BOTH(test_each_violation_is_found),
      BOTH(test_two_joined_under_one_name),
  };
  return cmocka_run_group_tests(tests, NULL, end_world);
}
