/* SPDX-License-Identifier: Apache-2.0 */
#include "aggd/tenants.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "aggd/snapshot.h"

static const struct sml_key_entry keys[] = {{"alice", {1, 2}}, {"bob", {3, 4}}};
static const struct sml_tenant entries[] = {
    {"bob", {.max_jobs = 3}}, {SML_ANY_TENANT, {.max_slots = 64}}, {"idle", {.max_workers = 5}}};
static struct sml_tenants tenants;

static int begin(void **state) {
  (void)state;
  sml_tenants_init(&tenants);
  return sml_tenants_set(&tenants, keys, SML_ARRAY_LEN(keys), entries, SML_ARRAY_LEN(entries)) ? 0 : 1;
}

static int end(void **state) {
  (void)state;
  sml_tenants_destroy(&tenants);
  return 0;
}

static void test_quotas(void **state) {
  (void)state;
  struct sml_quota quota;
  assert_true(sml_tenants_find_quota(&tenants, "bob", &quota));
  assert_int_equal(quota.max_jobs, 3);
  assert_int_equal(quota.max_slots, 0); /* an entry of one's own is all there is */
  assert_true(sml_tenants_find_quota(&tenants, "alice", &quota));
  assert_int_equal(quota.max_slots, 64);
  assert_true(sml_tenants_set(&tenants, keys, 1, entries, 1));
  assert_false(sml_tenants_find_quota(&tenants, "alice", &quota));
  struct sml_key key;
  assert_true(sml_tenants_find_key(&tenants, "alice", &key));
  assert_int_equal(key.k0, 1);
  assert_false(sml_tenants_find_key(&tenants, "bob", &key));
}

static void put_job(struct sml_snapshot *s, const char *key_name, bool is_started) {
  struct sml_registry_look *is = &s->jobs[s->num_jobs++].is;
  *is = (struct sml_registry_look){.is_started = is_started, .world_size = 4, .all_slots = is_started ? 32 : 0};
  snprintf(is->key_name, sizeof is->key_name, "%s", key_name);
}

static void test_use(void **state) {
  (void)state;
  struct sml_job_snapshot jobs[4] = {0};
  struct sml_snapshot s = {.jobs = jobs};
  put_job(&s, "alice", true);
  put_job(&s, "bob", false);
  put_job(&s, "alice", true);
  put_job(&s, "", true);
  assert_true(sml_tenants_look(&tenants, &s));
  static const struct sml_tenant_snapshot expected[] = {{"bob", {.max_jobs = 3}, {0}},
                                                        {"idle", {.max_workers = 5}, {0}},
                                                        {"alice", {.max_slots = 64}, {2, 8, 64}},
                                                        {"default", {.max_slots = 64}, {1, 4, 32}}};
  assert_int_equal(s.num_tenants, SML_ARRAY_LEN(expected));
  for (uint32_t i = 0; i < s.num_tenants; i++) assert_memory_equal(&s.tenants[i], &expected[i], sizeof expected[i]);
  free(s.tenants);
}

/* The registry asks while the tables change. */
static void *keep_changing(void *argument) {
  (void)argument;
  for (uint32_t i = 0; i < 2000; i++) (void)sml_tenants_set(&tenants, keys, 1 + i % 2, entries, i % 4);
  return NULL;
}

static void test_changed_while_asked(void **state) {
  (void)state;
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, keep_changing, NULL), 0);
  for (uint32_t i = 0; i < 2000; i++) {
    struct sml_key key;
    struct sml_quota quota;
    assert_true(sml_tenants_find_key(&tenants, "alice", &key));
    (void)sml_tenants_find_quota(&tenants, "bob", &quota);
  }
  pthread_join(thread, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_quotas, begin, end),
      cmocka_unit_test_setup_teardown(test_use, begin, end),
      cmocka_unit_test_setup_teardown(test_changed_while_asked, begin, end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
