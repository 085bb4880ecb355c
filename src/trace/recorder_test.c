/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "trace/recorder.h"

static struct sml_recorder *make(enum sml_trace_level level, uint32_t num_events) {
  struct sml_recorder *r = sml_recorder_create(&(struct sml_recorder_options){level, num_events});
  assert_non_null(r);
  return r;
}

static void put_value(struct sml_recorder *r, uint64_t value) {
  sml_recorder_put(r, (struct sml_record){.time_ns = value,
                                          .event = SML_TRACE_UPDATE_SENT,
                                          .slot = (uint16_t)value,
                                          .phase = (uint32_t)value,
                                          .chunk = (uint32_t)value,
                                          .value = value});
}

static void test_what_was_put_comes_out(void **state) {
  (void)state;
  struct sml_record records[8];
  uint64_t num_lost;
  struct sml_recorder *r = make(SML_TRACE_NOTABLE, 5); /* room for 8 */
  assert_int_equal(sml_recorder_room(r), 8);
  assert_int_equal(sml_recorder_copy(r, records, 8, &num_lost), 0);
  const struct sml_record put = {
      .time_ns = 1, .event = 2, .job = 3, .slot = 4, .rank = 5, .phase = 6, .chunk = 7, .value = 8};
  sml_recorder_put(r, put);
  assert_int_equal(sml_recorder_copy(r, records, 8, &num_lost), 1);
  assert_memory_equal(&records[0], &put, sizeof put);
  assert_int_equal(num_lost, 0);
  sml_recorder_destroy(r);
}

static void test_the_last_ones_stay(void **state) {
  (void)state;
  struct sml_record records[8];
  uint64_t num_lost;
  struct sml_recorder *r = make(SML_TRACE_NOTABLE, 8);
  for (uint64_t i = 0; i < 100; i++) put_value(r, i);
  /* The place of the oldest is the next to be written: it may be under the pen already. */
  assert_int_equal(sml_recorder_copy(r, records, 8, &num_lost), 7);
  for (uint64_t i = 0; i < 7; i++) assert_int_equal(records[i].value, 93 + i);
  assert_int_equal(num_lost, 93);
  assert_int_equal(sml_recorder_copy(r, records, 3, &num_lost), 3); /* little room: the newest */
  assert_int_equal(records[0].value, 97);
  assert_int_equal(num_lost, 97);
  sml_recorder_destroy(r);
}

static void test_times_do_not_go_back(void **state) {
  (void)state;
  struct sml_record records[8];
  uint64_t num_lost;
  struct sml_recorder *r = make(SML_TRACE_NOTABLE, 8);
  put_value(r, 5);
  put_value(r, 3);
  put_value(r, 6);
  assert_int_equal(sml_recorder_copy(r, records, 8, &num_lost), 3);
  assert_int_equal(records[1].time_ns, 5);
  assert_int_equal(records[1].value, 3);
  assert_int_equal(records[2].time_ns, 6);
  sml_recorder_destroy(r);
}

static void test_off_records_nothing(void **state) {
  (void)state;
  struct sml_record record;
  uint64_t num_lost;
  struct sml_recorder *off = make(SML_TRACE_OFF, 8), *empty = make(SML_TRACE_ALL, 0);
  put_value(off, 1);
  put_value(empty, 1);
  put_value(&sml_recorder_none, 1);
  assert_int_equal(sml_recorder_copy(off, &record, 1, &num_lost), 0);
  assert_int_equal(sml_recorder_copy(empty, &record, 1, &num_lost), 0);
  assert_int_equal(sml_recorder_copy(&sml_recorder_none, &record, 1, &num_lost), 0);
  assert_false(sml_recorder_takes_all(empty));
  sml_recorder_destroy(off);
  sml_recorder_destroy(empty);
  sml_recorder_destroy(NULL);
}

static void test_a_flood_of_drops_is_thinned(void **state) {
  (void)state;
  struct sml_recorder *r = make(SML_TRACE_NOTABLE, 8), *all = make(SML_TRACE_ALL, 8);
  uint64_t num_taken = 0;
  for (uint64_t i = 0; i < 1000000; i++) num_taken += sml_recorder_takes_drop(r, SML_NS_PER_S + i * 1000); /* for 1 s */
  assert_in_range(num_taken, 1000, 4000);
  for (uint32_t i = 0; i < 1000; i++) assert_true(sml_recorder_takes_drop(all, 0));
  sml_recorder_destroy(r);
  sml_recorder_destroy(all);
}

struct race {
  struct sml_recorder *recorder;
  _Atomic bool has_ended;
};

static void *write_many(void *argument) {
  struct race *race = argument;
  for (uint64_t i = 0; i < 300000; i++) put_value(race->recorder, i);
  atomic_store(&race->has_ended, true);
  return NULL;
}

/* Whatever a reader gets is whole and in order, while the writer laps it. */
static void test_a_copy_beside_the_writer(void **state) {
  (void)state;
  struct race race = {.recorder = make(SML_TRACE_NOTABLE, 64)};
  static struct sml_record records[64];
  pthread_t thread;
  uint64_t num_lost, num_seen = 0;
  assert_int_equal(pthread_create(&thread, NULL, write_many, &race), 0);
  bool has_ended;
  do {
    has_ended = atomic_load(&race.has_ended);
    const uint64_t n = sml_recorder_copy(race.recorder, records, 64, &num_lost);
    for (uint64_t i = 0; i < n; i++) {
      const uint64_t value = num_lost + i;
      assert_int_equal(records[i].value, value);
      assert_int_equal(records[i].time_ns, value);
      assert_int_equal(records[i].slot, (uint16_t)value);
      assert_int_equal(records[i].phase, value);
    }
    num_seen += n;
  } while (!has_ended);
  assert_true(num_seen >= 63);
  pthread_join(thread, NULL);
  sml_recorder_destroy(race.recorder);
}

static void test_names_are_past_tense_and_unique(void **state) {
  (void)state;
  for (uint32_t i = 0; i < SML_TRACE_NUM_EVENTS; i++) {
    const struct sml_trace_event_info *e = &sml_trace_events[i];
    for (uint32_t k = 0; k < i; k++) assert_string_not_equal(e->name, sml_trace_events[k].name);
    assert_true(e->level == SML_TRACE_NOTABLE || e->level == SML_TRACE_ALL);
    const char *end = e->name + strlen(e->name) - 2;
    const bool is_past =
        strcmp(end, "ed") == 0 || strcmp(end, "nt") == 0 || strcmp(end, "st") == 0 || strcmp(end, "ft") == 0;
    if (!is_past) fail_msg("%s is no event in the past tense", e->name);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_was_put_comes_out),
      cmocka_unit_test(test_the_last_ones_stay),
      cmocka_unit_test(test_times_do_not_go_back),
      cmocka_unit_test(test_off_records_nothing),
      cmocka_unit_test(test_a_flood_of_drops_is_thinned),
      cmocka_unit_test(test_a_copy_beside_the_writer),
      cmocka_unit_test(test_names_are_past_tense_and_unique),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
