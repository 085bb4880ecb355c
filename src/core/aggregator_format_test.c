/* SPDX-License-Identifier: Apache-2.0
 * The aggregator's other formats: check words, switch format, narrow updates. */
#include "core/test_aggregator_calls.h"

/* A check word on lanes and on nothing else, and one element at least before it. */
static void check_words_are_due_or_not(void **state) {
  (void)state;
  struct sml_aggregator_options options = {.world_size = 2,
                                           .num_slots = 4,
                                           .chunk_bytes = CHUNK_BYTES,
                                           .is_checked = true,
                                           .first_phase = SML_FIRST_PHASE};
  struct sml_aggregator *a = init(&options);
  assert_int_equal(sml_aggregator_value_bytes(&options), CHUNK_BYTES + SML_CHECK_BYTES);
  assert_true((uint8_t *)sml_aggregator_values(a, 1) - (uint8_t *)sml_aggregator_values(a, 0) >= 68);
  struct sml_header h = update(a, 0, 0, 2);
  expect_drop(a, h, SML_DROP_BAD_TYPE); /* none, where one is due */
  h.flags = SML_FLAG_CHECKED;
  static const uint16_t wrong[] = {0, 4, 2, 6, CHUNK_BYTES + 2, CHUNK_BYTES + 8, UINT16_MAX};
  for (size_t i = 0; i < SML_ARRAY_LEN(wrong); i++) {
    h.payload_bytes = wrong[i];
    expect_drop(a, h, SML_DROP_BAD_LENGTH);
  }
  h.wire = h.reducer = 1;
  expect_drop(a, h, SML_DROP_BAD_TYPE); /* exponents have none */
  h.flags = 0;
  h.payload_bytes = CHUNK_BYTES + 1;
  expect_drop(a, h, SML_DROP_BAD_LENGTH);
  h.payload_bytes = CHUNK_BYTES;
  for (h.rank = 0; h.rank < 2; h.rank++) (void)sml_aggregator_decide(a, &h);
  struct sml_header result;
  sml_aggregator_result(a, 0, &result);
  assert_int_equal(result.flags, 0);
  h = update(a, 0, 1, 2);
  h.flags = SML_FLAG_CHECKED | SML_FLAG_RETRANSMISSION;
  h.payload_bytes = 8;
  for (h.rank = 0; h.rank < 2; h.rank++) (void)sml_aggregator_decide(a, &h);
  sml_aggregator_result(a, 2, &result);
  assert_true(result.flags == SML_FLAG_CHECKED && result.payload_bytes == 8);
  assert_null(sml_aggregator_find_violation(a));
  free(a);
  a = make(2, 4, SML_FIRST_PHASE, 0);
  h = update(a, 0, 0, 2);
  h.flags = SML_FLAG_CHECKED;
  expect_drop(a, h, SML_DROP_BAD_TYPE); /* one, where none is due */
  free(a);
}

/* What a switch can: it takes the next phase of a cell only, finds no grants, and takes packets of one length. */
static void switch_format(void **state) {
  (void)state;
  const struct sml_aggregator_options options = {
      .world_size = 3, .num_slots = 4, .slot_base = 8, .chunk_bytes = CHUNK_BYTES, .first_phase = 2,
      .is_checked = true, .order_slots = 1, .is_switch_format = true};
  struct sml_aggregator *a = init(&options);
  struct sml_header h = update(a, 0, 0, 2);
  h.flags = SML_FLAG_CHECKED;
  expect(a, h, SML_VERDICT_DROP); /* short of the check word */
  h.payload_bytes += SML_CHECK_BYTES;
  expect(a, h, SML_VERDICT_FIRST);
  h.rank = 1;
  h.wire = SML_LANES_UINT8;
  h.reducer = SML_REDUCE_MAX;
  h.flags = 0;
  assert_int_equal(sml_aggregator_decide(a, &h).drop, SML_DROP_BAD_TYPE);
  h = update(a, 2, 1, 2); /* codes are lanes, and as many */
  h.wire = SML_LANES_UINT32;
  h.reducer = SML_REDUCE_MAX;
  assert_int_equal(sml_aggregator_decide(a, &h).drop, SML_DROP_BAD_LENGTH);
  h.payload_bytes += SML_CHECK_BYTES;
  for (h.rank = 0; h.rank < 3; h.rank++)
    expect(a, h, h.rank == 0 ? SML_VERDICT_FIRST : h.rank == 1 ? SML_VERDICT_ADD : SML_VERDICT_COMPLETE);
  struct sml_header result;
  sml_aggregator_result(a, 2, &result);
  assert_int_equal(result.wire, SML_LANES_UINT32);
  assert_int_equal(result.flags, 0);
  assert_int_equal(result.payload_bytes, CHUNK_BYTES + SML_CHECK_BYTES);
  h = probe(a, 0, 0, 0);
  h.flags = SML_FLAG_BY_GRANT;
  h.chunk = result.chunk;
  assert_int_equal(sml_aggregator_decide(a, &h).drop, SML_DROP_STALE_PHASE);
  assert_null(sml_aggregator_find_violation(a));
  /* From here on no honest rank. */
  static const uint32_t wrong[] = {0, 1, 5, 6, 8, 200, UINT32_MAX}; /* phase 2 of the slot is complete, 3 was never */
  for (uint32_t i = 0; i < SML_ARRAY_LEN(wrong); i++) {
    h = update(a, 1, 1, wrong[i]);
    h.flags = SML_FLAG_CHECKED;
    h.payload_bytes += SML_CHECK_BYTES;
    assert_int_equal(sml_aggregator_decide(a, &h).drop, SML_DROP_STALE_PHASE);
    h = probe(a, 1, 1, wrong[i]);
    assert_int_equal(sml_aggregator_decide(a, &h).drop, SML_DROP_STALE_PHASE);
  }
  h.wire = SML_LANES_UINT8;
  assert_int_equal(sml_aggregator_decide(a, &h).drop, SML_DROP_BAD_TYPE);
  expect(a, probe(a, 1, 1, 4), SML_VERDICT_PENDING);
  expect(a, probe(a, 1, 1, 3), SML_VERDICT_PENDING);
  sml_aggregator_result_for(a, 2, SML_LANES_INT32, SML_REDUCE_SUM, &result); /* as it is asked for */
  assert_int_equal(result.wire, SML_LANES_INT32);
  assert_int_equal(result.flags, SML_FLAG_CHECKED);
  free(a);
}

/* Lanes of each width are whole ones, without a check word; a cell is of one pair; a switch has maxima of 32 bits. */
static void other_reductions_have_whole_lanes(void **state) {
  (void)state;
  static const uint8_t pairs[] = {0x21, 0x31, 0x24, 0x34, 0x25};
  const struct sml_aggregator_options options = {
      .world_size = 2, .num_slots = 4, .slot_base = 8, .chunk_bytes = CHUNK_BYTES, .first_phase = 2,
      .is_checked = true};
  struct sml_aggregator_options of_switch = options;
  of_switch.is_switch_format = true;
  for (size_t i = 0; i < SML_ARRAY_LEN(pairs); i++) {
    struct sml_aggregator *a = init(&options), *s = init(&of_switch);
    struct sml_header h = update(a, 0, 0, 2), result;
    h.wire = pairs[i] >> 4;
    h.reducer = pairs[i] & 15;
    h.payload_bytes = 12;
    expect(a, h, h.wire == SML_LANES_UINT64 ? SML_VERDICT_DROP : SML_VERDICT_FIRST);
    h.payload_bytes = 8;
    h.slot++;
    expect(a, h, SML_VERDICT_FIRST);
    h.rank = 1;
    h.flags = SML_FLAG_CHECKED;
    assert_int_equal(sml_aggregator_decide(a, &h).drop, SML_DROP_BAD_TYPE);
    h.flags = 0;
    h.reducer = h.reducer == SML_REDUCE_MAX ? SML_REDUCE_PRODUCT : SML_REDUCE_MAX;
    expect(a, h, SML_VERDICT_MISMATCH);
    h.reducer = pairs[i] & 15;
    expect(a, h, SML_VERDICT_COMPLETE);
    sml_aggregator_result(a, 2, &result);
    assert_true(result.wire == h.wire && result.reducer == h.reducer && result.flags == 0);
    h.payload_bytes = CHUNK_BYTES + SML_CHECK_BYTES;
    assert_true((sml_aggregator_decide(s, &h).drop == SML_DROP_BAD_TYPE) == (pairs[i] != 0x21));
    free(a);
    free(s);
  }
}

/* Narrow and other updates of a slot are added up; the result is as long as the lanes. */
static void narrow_updates_count_as_their_lanes(void **state) {
  (void)state;
  const struct sml_aggregator_options options = {
      .world_size = 3, .num_slots = 4, .slot_base = 8, .chunk_bytes = CHUNK_BYTES, .first_phase = 2, .is_narrow = true};
  struct sml_aggregator *a = init(&options);
  struct sml_header h = update(a, 0, 0, 2), result;
  h.flags = SML_FLAG_NARROW;
  static const uint16_t wrong[] = {0, 4, 27, 32, 52, CHUNK_BYTES, 84, 65520, UINT16_MAX};
  for (size_t i = 0; i < SML_ARRAY_LEN(wrong); i++) {
    h.payload_bytes = wrong[i];
    expect_drop(a, h, SML_DROP_BAD_LENGTH);
  }
  h.payload_bytes = 56;
  expect(a, h, SML_VERDICT_FIRST);
  expect(a, update(a, 1, 0, 2), SML_VERDICT_ADD);
  h.rank = 2;
  h.payload_bytes = 28;
  expect(a, h, SML_VERDICT_MISMATCH);
  h.payload_bytes = 56;
  expect(a, h, SML_VERDICT_COMPLETE);
  sml_aggregator_result(a, 0, &result);
  assert_int_equal(result.payload_bytes, CHUNK_BYTES);
  assert_int_equal(result.flags, 0);
  assert_null(sml_aggregator_find_violation(a));
  free(a);
  a = make(2, 4, 2, 0);
  h = update(a, 0, 0, 2);
  h.flags = SML_FLAG_NARROW;
  h.payload_bytes = 56;
  expect_drop(a, h, SML_DROP_BAD_TYPE); /* the job has none */
  free(a);
}

/* A cell holds what a packet of the switch does: as narrow lanes the same bytes would be more. */
static void nothing_is_narrow_in_switch_format(void **state) {
  (void)state;
  const struct sml_aggregator_options options = {.world_size = 2, .num_slots = 4, .slot_base = 8, .chunk_bytes = 256,
                                                 .first_phase = 2, .is_switch_format = true, .is_narrow = true};
  struct sml_aggregator *a = init(&options);
  struct sml_header h = update(a, 0, 3, 2);
  h.flags = SML_FLAG_NARROW;
  for (h.payload_bytes = 0; h.payload_bytes < 2048; h.payload_bytes += 4)
    expect_drop(a, h, SML_DROP_BAD_TYPE);
  free(a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(check_words_are_due_or_not),
      cmocka_unit_test(switch_format),
      cmocka_unit_test(other_reductions_have_whole_lanes),
      cmocka_unit_test(narrow_updates_count_as_their_lanes),
      cmocka_unit_test(nothing_is_narrow_in_switch_format),
  };
  return cmocka_run_group_tests_name("aggregator_format", tests, NULL, NULL);
}
