/* SPDX-License-Identifier: Apache-2.0 */
#include "paper.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/worker.h"

#define NUM_SLOTS 64u
#define MS SML_NS_PER_MS

/* The next chunk of a slot is num_slots further, and data goes again after the timeout, without a word. */
static void the_papers_scheme(void **state) {
  (void)state;
  const struct sml_worker_options o = {.epoch = 1,
                                       .rank = 1,
                                       .world_size = 3,
                                       .num_lanes = 1,
                                       .num_slots = NUM_SLOTS,
                                       .chunk_bytes = 64,
                                       .first_phase = SML_FIRST_PHASE,
                                       .num_operations = 4};
  const struct sml_operation_plan plan = {.num_elems = 1000 * 16, .type = 1};
  struct sml_send send;
  sml_paper_timeout_ns = 10 * MS;
  void *memory = aligned_alloc(64, sml_align_up(sml_worker_memsize(&o), 64));
  assert_non_null(memory);
  struct sml_worker *w = sml_worker_init(memory, &o);
  assert_true(sml_worker_submit(w, &plan, NULL, NULL, MS));
  struct sml_header result = {0};
  for (uint32_t s = 0; s < NUM_SLOTS; s++) {
    sml_worker_next_send(w, MS, &send);
    assert_int_equal(send.kind, SML_SEND_UPDATE);
    if (s == 3) result = send.header;
  }
  assert_int_equal(sml_worker_next_deadline(w), 11 * MS);
  result.type = SML_PACKET_RESULT;
  result.chunk = 77; /* whatever is granted */
  assert_int_equal(sml_worker_on_packet(w, &result, NULL, 2 * MS).kind, SML_ACCEPT_RESULT);
  sml_worker_next_send(w, 2 * MS, &send);
  assert_int_equal(send.header.chunk, NUM_SLOTS + 3);
  sml_worker_on_timer(w, 11 * MS);
  for (uint32_t s = 0; s < NUM_SLOTS; s++) {
    if (s == 3) continue;
    sml_worker_next_send(w, 11 * MS, &send);
    assert_int_equal(send.kind, SML_SEND_UPDATE);
    assert_int_equal(send.header.slot, s);
    assert_int_equal(send.header.flags, 0);
  }
  sml_worker_next_send(w, 11 * MS, &send);
  assert_int_equal(send.kind, SML_SEND_NONE);
  assert_null(sml_worker_find_violation(w));
  free(memory);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_papers_scheme)};
  return cmocka_run_group_tests_name("paper", tests, NULL, NULL);
}
