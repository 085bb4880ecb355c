/* SPDX-License-Identifier: Apache-2.0
 * World sizes at the edges of the bitmaps' words. */
#include "core/aggregator.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define CHUNK_BYTES 64u

static struct sml_aggregator *make(uint32_t world_size) {
  const struct sml_aggregator_options o = {.world_size = world_size, .num_slots = 1, .chunk_bytes = CHUNK_BYTES,
                                           .first_phase = SML_FIRST_PHASE};
  const size_t num_bytes = sml_align_up(sml_aggregator_memsize(&o), 64);
  void *mem = aligned_alloc(64, num_bytes);
  assert_non_null(mem);
  memset(mem, 0xa5, num_bytes);
  return sml_aggregator_init(mem, &o);
}

static struct sml_decision update(struct sml_aggregator *a, uint32_t rank, uint32_t phase) {
  const struct sml_header h = {.type = SML_PACKET_UPDATE, .rank = (uint16_t)rank, .payload_bytes = CHUNK_BYTES,
                               .phase = phase};
  return sml_aggregator_decide(a, &h);
}

static void check_world(uint32_t n) {
  struct sml_aggregator *a = make(n);
  uint64_t missing[SML_BITMAP_WORDS(SML_MAX_WORLD_SIZE)];
  for (uint32_t phase = SML_FIRST_PHASE; phase < SML_FIRST_PHASE + 3; phase++) {
    for (uint32_t i = 0; i < n; i++) {
      const uint32_t rank = n - 1 - i; /* the last word first */
      const enum sml_verdict expected = i == 0      ? SML_VERDICT_FIRST
                                        : i + 1 < n ? SML_VERDICT_ADD
                                                    : SML_VERDICT_COMPLETE;
      assert_int_equal(update(a, rank, phase).verdict, expected);
      assert_int_equal(sml_aggregator_missing(a, 0, phase, missing), rank);
      for (uint32_t r = 0; r < n; r++) assert_int_equal(sml_bit_test(missing, r), r < rank);
      for (uint32_t r = n; r % 64 != 0; r++) assert_false(sml_bit_test(missing, r));
      if (i + 1 < n) assert_int_equal(update(a, rank, phase).drop, SML_DROP_DUPLICATE);
      const char *problem = sml_aggregator_find_violation(a);
      if (problem != NULL) fail_msg("%u ranks: %s", n, problem);
    }
    assert_true(sml_aggregator_has_result(a, phase & 1, phase));
  }
  free(a);
}

static void whole_words_of_ranks(void **state) {
  (void)state;
  static const uint32_t world_sizes[] = {2, 63, 64, 65, 127, 128, 129};
  for (size_t i = 0; i < SML_ARRAY_LEN(world_sizes); i++) check_world(world_sizes[i]);
}

/* The last rank of a word and the first of the next, of a job that waits for both. */
static void departed_ranks_block_in_every_word(void **state) {
  (void)state;
  for (uint32_t rank = 62; rank < 67; rank++) {
    struct sml_aggregator *a = make(130);
    uint32_t blocking;
    sml_aggregator_note_departed(a, rank);
    assert_int_equal(sml_aggregator_find_blocked(a, &blocking), UINT32_MAX); /* nothing waits yet */
    assert_int_equal(update(a, 0, SML_FIRST_PHASE).blocked_rank, rank);
    assert_int_equal(update(a, 129, SML_FIRST_PHASE).blocked_rank, rank);
    sml_aggregator_note_departed(a, 129);
    assert_int_equal(sml_aggregator_find_blocked(a, &blocking), 0);
    assert_int_equal(blocking, rank);
    assert_int_equal(update(a, rank, SML_FIRST_PHASE).blocked_rank, UINT32_MAX); /* the contribution of 129 is in */
    assert_null(sml_aggregator_find_violation(a));
    free(a);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(whole_words_of_ranks),
      cmocka_unit_test(departed_ranks_block_in_every_word),
  };
  return cmocka_run_group_tests_name("aggregator_edge", tests, NULL, NULL);
}
