/* SPDX-License-Identifier: Apache-2.0
 * When a thread looks for frames, and when it sleeps for them. */
#include "engine/spin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define SPIN_NS (50 * SML_NS_PER_US)
#define PASS_NS (40 * SML_NS_PER_US)

struct bed {
  struct sml_spin spin;
  uint64_t num_frames, now_ns;
};

static bool pass(struct bed *b, uint32_t num_frames, uint64_t ns) {
  b->now_ns += ns;
  b->num_frames += num_frames;
  return sml_spin_after_pass(&b->spin, b->num_frames, SPIN_NS, b->now_ns);
}

/* Passes full of frames for so long: whether it still looked after the last. */
static bool run(struct bed *b, uint64_t ns) {
  bool looks = false;
  for (uint64_t done = 0; done < ns; done += PASS_NS) looks = pass(b, 30, PASS_NS);
  return looks;
}

static void test_light_passes_look_for_a_while(void **state) {
  (void)state;
  struct bed b = {.now_ns = SML_NS_PER_S};
  assert_false(pass(&b, 0, PASS_NS));
  for (uint32_t i = 0; i < 10000; i++) assert_true(pass(&b, SML_SPIN_LIGHT_FRAMES, PASS_NS));
  assert_true(pass(&b, 0, SPIN_NS - 1));
  assert_false(pass(&b, 0, 1));
}

static void test_a_long_operation_is_slept_through(void **state) {
  (void)state;
  struct bed b = {.now_ns = SML_NS_PER_S};
  assert_true(run(&b, SML_SPIN_MIDDLE_NS));
  assert_false(run(&b, SML_NS_PER_MS));
  assert_false(pass(&b, 1, SML_SPIN_BULK_NS / 2)); /* so it goes on, or the next one begins */
  assert_false(run(&b, SML_NS_PER_MS));
  assert_true(pass(&b, 1, SML_SPIN_BULK_NS)); /* it is over */
}

static void test_middle_operations_are_not(void **state) {
  (void)state;
  struct bed b = {.now_ns = SML_NS_PER_S};
  for (uint32_t i = 0; i < 100; i++) {
    assert_true(run(&b, SML_SPIN_MIDDLE_NS / 2));
    assert_true(pass(&b, 2, PASS_NS)); /* the exponents of the next one */
    (void)pass(&b, 0, SPIN_NS);
  }
  /* A few light passes among the many of a long one change nothing. */
  for (uint32_t i = 0; i < 100; i++) {
    (void)run(&b, SML_SPIN_MIDDLE_NS / 2);
    (void)pass(&b, 1, PASS_NS);
  }
  assert_false(run(&b, PASS_NS));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_light_passes_look_for_a_while),
                                     cmocka_unit_test(test_a_long_operation_is_slept_through),
                                     cmocka_unit_test(test_middle_operations_are_not)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
