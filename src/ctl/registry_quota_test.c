/* SPDX-License-Identifier: Apache-2.0
 * What tenants may have at a time, and what a job that asks for nothing leaves to those that come later. */
#include "ctl/test_registry_world.h"

static struct sml_quota quota;
static bool asks_one_way;

/* The quota of the tenants of both worlds (the keyed one's ranks have key a). */
static bool find_quota(void *user, const char *tenant, struct sml_quota *quota_out) {
  (void)user;
  assert_true(strcmp(tenant, is_keyed ? "a" : "default") == 0 || strcmp(tenant, "b") == 0);
  *quota_out = quota;
  return strcmp(tenant, "b") != 0;
}

static void begin_with_quota(struct sml_quota q) {
  struct sml_registry_options options = defaults();
  options.max_jobs = 8;
  options.num_lanes = 1;
  options.find_quota = find_quota;
  quota = q;
  begin_with(options);
}

/* Two ranks on connections first and first + 1, as far as their last PROBED. */
static void try_job(const char *name, uint32_t first, uint32_t num_asked) {
  for (uint32_t rank = 0; rank < 2; rank++) {
    struct sml_ctl_message m = join_message(name, rank, 2);
    m.u.join.num_slots = num_asked;
    if (asks_one_way) m.u.join.features |= SML_FEATURE_ONE_WAY;
    opened(first + rank);
    said(first + rank, &m);
  }
  for (uint32_t rank = 0; rank < 2; rank++) probed(first + rank, 1500);
}

static void expect_refused(uint32_t first, const char *detail) {
  char expected[128];
  snprintf(expected, sizeof expected, "c%u<REFUSE -7; c%u close; c%u<REFUSE -7; c%u close; end j", first + 1, first + 1,
           first, first);
  assert_memory_equal(w.line, expected, strlen(expected));
  char tenant[SML_DETAIL_BYTES];
  snprintf(tenant, sizeof tenant,
           "tenant %s has %s: wait for one of its jobs to end, or raise its quota at the aggregator",
           is_keyed ? "a" : "default", detail);
  for (uint32_t c = first; c < first + 2; c++) expect_detail(c, tenant);
  assert_non_null(strstr(w.notes, tenant)); /* once, for the log */
}

static void expect_window(uint32_t conn, uint32_t num_slots, int why) {
  assert_non_null(strstr(w.line, "start j"));
  assert_int_equal(w.last[conn].u.start.num_slots, num_slots);
  assert_int_equal(w.last[conn].u.start.slots_why, why);
}

static void test_jobs(void **state) {
  (void)state;
  begin_with_quota((struct sml_quota){.max_jobs = 2});
  try_job("x", 0, 16);
  try_job("y", 2, 16);
  expect_window(2, 16, SML_SLOTS_REASON_ASKED);
  try_job("z", 4, 16);
  expect_refused(4, "2 of 2 jobs, 4 workers and 32 slots a lane; this job has 2 workers and 16 slots");
  goodbye(0); /* a job that has begun to end still has its slots */
  try_job("z", 4, 16);
  expect_refused(4, "2 of 2 jobs, 4 workers and 32 slots a lane; this job has 2 workers and 16 slots");
  goodbye(1);
  try_job("z", 4, 16);
  expect_window(4, 16, SML_SLOTS_REASON_ASKED);
}

static void test_workers(void **state) {
  (void)state;
  begin_with_quota((struct sml_quota){.max_workers = 5});
  try_job("x", 0, 16);
  try_job("y", 2, 16);
  try_job("z", 4, 16);
  expect_refused(4, "2 jobs, 4 of 5 workers and 32 slots a lane; this job has 2 workers and 16 slots");
  quota.max_workers = 6; /* raised while it runs: the next job has it */
  try_job("z", 4, 16);
  expect_window(4, 16, SML_SLOTS_REASON_ASKED);
  quota.max_workers = 2; /* lowered: what runs goes on */
  try_job("v", 6, 16);
  expect_refused(6, "3 jobs, 6 of 2 workers and 48 slots a lane; this job has 2 workers and 16 slots");
  heartbeat(0);
  EXPECT("");
}

static void expect_waiting_refused(uint32_t conn, const char *use, uint32_t num_workers) {
  char text[SML_DETAIL_BYTES];
  snprintf(text, sizeof text,
           "tenant %s has %s that wait for their ranks; this job has %u workers: wait for those to start, or raise its "
           "quota at the aggregator",
           is_keyed ? "a" : "default", use, num_workers);
  expect_detail(conn, text);
  assert_false(w.is_open[conn]);
}

/* Jobs that never start are a tenant's, too: as many may wait as may run, with as many workers. */
static void test_jobs_that_wait(void **state) {
  (void)state;
  begin_with_quota((struct sml_quota){.max_jobs = 2, .max_workers = 5});
  try_job("run", 0, 16);
  for (uint32_t j = 0; j < 30; j++) {
    char name[8];
    snprintf(name, sizeof name, "n%u", j);
    opened(2 + j);
    join(2 + j, name, 0, 2);
    if (j >= 2) expect_waiting_refused(2 + j, "2 of 2 jobs and 4 of 5 workers", 2);
  }
  opened(4);
  join(4, "n0", 1, 2); /* what is opened fills up */
  assert_true(w.is_open[4]);
  goodbye(3);
  opened(3);
  join(3, "large", 0, 4);
  expect_waiting_refused(3, "1 of 2 jobs and 2 of 5 workers", 4);
  opened(3);
  join(3, "fits", 0, 3);
  assert_true(w.is_open[3]);
}

/* A number is given or refused; what nobody asked for becomes smaller, down to few. */
static void test_slots(void **state) {
  (void)state;
  begin_with_quota((struct sml_quota){.max_jobs = 7, .max_slots = 300});
  try_job("x", 0, 128);
  try_job("y", 2, 256);
  expect_refused(2, "1 of 7 jobs, 2 workers and 128 of 300 slots a lane; this job has 2 workers and 256 slots");
  try_job("y", 2, 0);
  expect_window(2, 128, SML_SLOTS_REASON_QUOTA);
  try_job("z", 4, 0);
  expect_window(4, 32, SML_SLOTS_REASON_QUOTA);
  try_job("v", 6, 0);
  expect_refused(6, "3 of 7 jobs, 6 workers and 288 of 300 slots a lane; this job has 2 workers and 32 slots");
  try_job("v", 6, 8);
  expect_window(6, 8, SML_SLOTS_REASON_ASKED);
  quota.max_slots = 100;
  try_job("u", 8, 1);
  expect_refused(8, "4 of 7 jobs, 8 workers and 296 of 100 slots a lane; this job has 2 workers and 1 slots");
}

/* They take four times the window again, but nothing from the half of the quota that is left to later jobs. */
static void test_one_way_windows(void **state) {
  (void)state;
  begin_with_quota((struct sml_quota){.max_jobs = 7, .max_slots = 320});
  asks_one_way = true;
  try_job("x", 0, 16);
  assert_int_equal(w.last[0].u.start.features & SML_FEATURE_ONE_WAY, SML_FEATURE_ONE_WAY);
  try_job("y", 2, 16);
  assert_int_equal(w.last[2].u.start.features & SML_FEATURE_ONE_WAY, SML_FEATURE_ONE_WAY);
  try_job("z", 4, 16);
  assert_int_equal(w.last[4].u.start.features & SML_FEATURE_ONE_WAY, 0);
  try_job("u", 6, 128);
  expect_window(6, 128, SML_SLOTS_REASON_ASKED);
  asks_one_way = false;
}

static void test_other_tenants_do_not_count(void **state) {
  (void)state;
  begin_with_quota((struct sml_quota){.max_jobs = 1});
  try_job("x", 0, 16);
  w.worker_key = key_b;
  for (uint32_t rank = 0; rank < 2; rank++) {
    struct sml_ctl_message m = join_message("x", rank, 2);
    m.u.join.key_name[0] = 'b';
    m.u.join.nonce[0] = 7;
    opened(2 + rank);
    said(2 + rank, &m);
  }
  for (uint32_t rank = 0; rank < 2; rank++) probed(2 + rank, 1500);
  assert_non_null(strstr(w.line, "start j"));
  w.worker_key = key_a;
  try_job("y", 4, 16);
  expect_refused(4, "1 of 1 jobs, 2 workers and 16 slots a lane; this job has 2 workers and 16 slots");
}

/* However many slots the first jobs would like, each of max_jobs gets some. */
static void test_early_jobs_leave_room(void **state) {
  (void)state;
  struct sml_registry_options options = defaults();
  options.max_jobs = 16;
  options.num_lanes = 1;
  begin_with(options);
  uint32_t num_slots = 0;
  for (uint32_t j = 0; j < 16; j++) {
    char name[8];
    snprintf(name, sizeof name, "n%u", j);
    try_job(name, 2 * j, 0);
    assert_non_null(strstr(w.line, "start j"));
    const struct sml_ctl_start *start = &w.last[2 * j].u.start;
    if (j == 0) expect_window(0, 256, SML_SLOTS_REASON_USUAL);
    assert_true(start->num_slots >= 32 && (j == 0 || start->num_slots <= w.last[2 * j - 2].u.start.num_slots));
    num_slots += start->num_slots;
  }
  assert_int_equal(w.last[30].u.start.num_slots, 32);
  assert_int_equal(w.last[30].u.start.slots_why, SML_SLOTS_REASON_POOL);
  assert_in_range(num_slots, 1024 - 31, 1024);
}

/* A key that was changed while a job was joined: two jobs, since its ranks could not read each other's packets. */
static struct sml_key changed_key;
static bool find_changed_key(void *user, const char *name, struct sml_key *key_out) {
  (void)user;
  (void)name;
  *key_out = changed_key;
  return true;
}

static void test_key_changed_while_joining(void **state) {
  (void)state;
  struct sml_registry_options options = defaults();
  begin_with(options);
  options = w.options;
  options.find_key = find_changed_key;
  w.r = sml_registry_init(take_zeros(sml_registry_memsize(&options)), &options);
  changed_key = w.worker_key = key_a;
  opened(0);
  join(0, "x", 0, 2);
  changed_key = w.worker_key = key_b;
  opened(1);
  join(1, "x", 1, 2);
  assert_non_null(strstr(w.line, "open j1"));
  opened(2);
  join(2, "x", 0, 2);
  for (uint32_t c = 1; c < 3; c++) probed(c, 1500);
  assert_non_null(strstr(w.line, "start j1"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BOTH(test_jobs),
      BOTH(test_workers),
      BOTH(test_jobs_that_wait),
      BOTH(test_slots),
      BOTH(test_one_way_windows),
      {"test_other_tenants_do_not_count", test_other_tenants_do_not_count, keyed_world, NULL, NULL},
      BOTH(test_early_jobs_leave_room),
      {"test_key_changed_while_joining", test_key_changed_while_joining, keyed_world, NULL, NULL},
  };
  return cmocka_run_group_tests(tests, NULL, end_world);
}
