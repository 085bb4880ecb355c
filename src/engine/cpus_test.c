/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cpus.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/engine.h"

static void lists(void **state) {
  (void)state;
  struct sml_cpus cpus = {.words = {0}};
  assert_int_equal(sml_cpus_of_thread(&cpus, 3), SML_MAX_CPUS);
  assert_true(sml_cpus_parse("0-3,8", &cpus));
  static const uint32_t in_turn[] = {0, 1, 2, 3, 8, 0, 1};
  for (uint32_t i = 0; i < SML_ARRAY_LEN(in_turn); i++)
    assert_int_equal(sml_cpus_of_thread(&cpus, i), in_turn[i]);
  assert_true(sml_cpus_parse("1023,64-64", &cpus));
  assert_int_equal(sml_cpus_of_thread(&cpus, 0), 64);
  assert_int_equal(sml_cpus_of_thread(&cpus, 1), 1023);
}

static void what_is_no_list(void **state) {
  (void)state;
  static const char *const bad[] = {"", ",", "0,", ",0", "-1", "1-", "3-1", "1024", "0-1024", "a", "0 ", "0x1", "0--1",
                                    "0-1-2", "99999999999999999999999"};
  for (size_t i = 0; i < SML_ARRAY_LEN(bad); i++) {
    struct sml_cpus cpus = {.words = {6}};
    assert_false(sml_cpus_parse(bad[i], &cpus));
    assert_int_equal(cpus.words[0], 6);
  }
}

/* An engine that says where it runs. */
static _Atomic uint32_t seen_cpu;
static uint64_t look(void *engine, uint64_t now_ns) {
  (void)engine;
  (void)now_ns;
  atomic_store(&seen_cpu, (uint32_t)sched_getcpu());
  return SML_NEVER;
}

static void threads_run_where_they_are_told_to(void **state) {
  (void)state;
  struct sml_mem_hub *hub = sml_mem_hub_create();
  struct sml_engine_thread thread = {.io = sml_mem_open(hub, 16, 1500), .run_once = look};
  cpu_set_t allowed;
  assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  for (uint32_t cpu = 0; cpu < SML_MAX_CPUS; cpu++) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    thread.is_pinned = true;
    thread.cpu = cpu;
    atomic_store(&seen_cpu, UINT32_MAX);
    assert_int_equal(sml_engine_thread_start(&thread, "test"), 0);
    while (atomic_load(&seen_cpu) == UINT32_MAX) sched_yield();
    sml_engine_thread_stop(&thread);
    assert_int_equal(atomic_load(&seen_cpu), cpu);
  }
  thread.cpu = SML_MAX_CPUS - 1;
  if (!CPU_ISSET(thread.cpu, &allowed)) assert_int_not_equal(sml_engine_thread_start(&thread, "test"), 0);
  thread.io->ops->close(thread.io);
  sml_mem_hub_destroy(hub);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lists),
      cmocka_unit_test(what_is_no_list),
      cmocka_unit_test(threads_run_where_they_are_told_to),
  };
  return cmocka_run_group_tests_name("cpus", tests, NULL, NULL);
}
