/* SPDX-License-Identifier: Apache-2.0
 * Every verdict of the aggregator, and its invariants after each of them. */
#include "core/test_aggregator_calls.h"

/* ---- the straight way ---- */

static void phases_complete_for_each_world_size(void **state) {
  (void)state;
  static const uint32_t sizes[] = {2, 3, 63, 64, 65, 127, 128, 129, 4095, 4096};
  for (size_t i = 0; i < SML_ARRAY_LEN(sizes); i++) {
    const uint32_t n = sizes[i];
    struct sml_aggregator *a = make(n, 2, SML_FIRST_PHASE, 0);
    struct sml_prng prng = {.state = n};
    for (uint32_t phase = SML_FIRST_PHASE; phase < SML_FIRST_PHASE + 4; phase++) {
      static bool is_in[SML_MAX_WORLD_SIZE];
      static uint16_t order[SML_MAX_WORLD_SIZE];
      memset(is_in, 0, sizeof is_in);
      for (uint32_t k = 0; k < n; k++) order[k] = (uint16_t)k;
      for (uint32_t k = n; k > 1; k--) {
        const uint32_t other = (uint32_t)sml_prng_below(&prng, k);
        const uint16_t rank = order[k - 1];
        order[k - 1] = order[other];
        order[other] = rank;
      }
      for (uint32_t k = 0; k < n; k++) {
        assert_missing(a, 1, phase, is_in);
        expect(a, probe(a, order[n - 1], 1, phase), SML_VERDICT_PENDING);
        const struct sml_decision d =
            expect(a, update(a, order[k], 1, phase), k == 0       ? SML_VERDICT_FIRST
                                                     : k + 1 < n ? SML_VERDICT_ADD
                                                                 : SML_VERDICT_COMPLETE);
        assert_int_equal(d.blocked_rank, UINT32_MAX);
        is_in[order[k]] = true;
        if (k + 1 < n) expect_drop(a, update(a, order[k], 1, phase), SML_DROP_DUPLICATE);
        else expect(a, update(a, order[k], 1, phase), SML_VERDICT_REPEAT);
      }
      assert_missing(a, 1, phase, is_in);
    }
    free(a);
  }
}

static void result_has_the_contributions_header(void **state) {
  (void)state;
  struct sml_aggregator *a = make(2, 4, SML_FIRST_PHASE, 0);
  for (uint32_t rank = 0; rank < 2; rank++) {
    struct sml_header h = update(a, rank, 3, SML_FIRST_PHASE);
    h.wire = SML_LANES_UINT8;
    h.reducer = SML_REDUCE_MAX;
    h.payload_bytes = 7;
    h.chunk = 1234;
    const struct sml_decision d = expect(a, h, rank == 0 ? SML_VERDICT_FIRST : SML_VERDICT_COMPLETE);
    if (rank == 0) continue;
    struct sml_header result;
    memset(&result, 0xff, sizeof result);
    sml_aggregator_result(a, d.cell, &result);
    assert_int_equal(result.version, SML_WIRE_VERSION);
    assert_int_equal(result.type, SML_PACKET_RESULT);
    assert_int_equal(result.wire, SML_LANES_UINT8);
    assert_int_equal(result.reducer, SML_REDUCE_MAX);
    assert_int_equal(result.payload_bytes, 7);
    assert_int_equal(result.slot, 8 + 3);
    assert_int_equal(result.flags, 0);
    assert_int_equal(result.phase, SML_FIRST_PHASE);
    assert_int_equal(result.tag, h.tag);
    assert_int_equal(result.chunk, 4);
  }
  free(a);
}

static void values_of_cells_do_not_overlap(void **state) {
  (void)state;
  struct sml_aggregator *a = make(65, 8, SML_FIRST_PHASE, 0);
  for (uint32_t cell = 0; cell < 16; cell++) {
    assert_int_equal((uintptr_t)sml_aggregator_values(a, cell) % 64, 0);
    memset(sml_aggregator_values(a, cell), (int)cell, CHUNK_BYTES);
  }
  for (uint32_t cell = 0; cell < 16; cell++) {
    const uint8_t *values = sml_aggregator_values(a, cell);
    for (uint32_t i = 0; i < CHUNK_BYTES; i++) assert_int_equal(values[i], cell);
  }
  complete(a, 0, SML_FIRST_PHASE); /* writing values broke no state */
  free(a);
}

/* ---- grants ---- */

static void grants_are_drawn_once_and_repeated(void **state) {
  (void)state;
  struct sml_aggregator *a = make(3, 4, SML_FIRST_PHASE, 100);
  struct sml_prng prng = {.state = 4};
  uint32_t phases[4] = {2, 2, 2, 2}, next = 104;
  for (int round = 0; round < 1000; round++) {
    const uint32_t slot = (uint32_t)sml_prng_below(&prng, 4), phase = phases[slot]++;
    assert_int_equal(complete(a, slot, phase), next);
    next++;
    for (uint32_t rank = 0; rank < 3; rank++) {
      struct sml_header first, second;
      const struct sml_decision d = expect(a, probe(a, rank, slot, phase), SML_VERDICT_REPEAT);
      sml_aggregator_result(a, d.cell, &first);
      expect(a, update(a, rank, slot, phase), SML_VERDICT_REPEAT);
      sml_aggregator_result(a, d.cell, &second);
      assert_int_equal(first.chunk, next - 1);
      assert_int_equal(second.chunk, first.chunk);
      assert_int_equal(second.phase, phase);
      assert_int_equal(second.tag, first.tag);
    }
    /* The version before stays, for the ranks that have not received it. */
    if (phase == 2) continue;
    const struct sml_decision d = expect(a, probe(a, 1, slot, phase - 1), SML_VERDICT_REPEAT);
    struct sml_header previous;
    sml_aggregator_result(a, d.cell, &previous);
    assert_int_equal(previous.phase, phase - 1);
    assert_true(previous.chunk < next - 1);
  }
  free(a);
}

static void chunk_numbers_wrap(void **state) {
  (void)state;
  struct sml_aggregator *a = make(2, 4, SML_FIRST_PHASE, UINT32_MAX - 5);
  for (uint32_t i = 0; i < 12; i++)
    assert_int_equal(complete(a, i % 4, SML_FIRST_PHASE + i / 4), (uint32_t)(UINT32_MAX - 1 + i));
  free(a);
}

static void phases_work_up_to_the_end(void **state) {
  (void)state;
  struct sml_aggregator *a = make(2, 1, UINT32_MAX - 5, 0);
  expect_drop(a, update(a, 0, 0, SML_FIRST_PHASE), SML_DROP_STALE_PHASE);
  expect_drop(a, update(a, 0, 0, 0), SML_DROP_STALE_PHASE);
  for (uint32_t i = 0; i <= 5; i++) {
    complete(a, 0, UINT32_MAX - 5 + i);
    if (i >= 2) expect_drop(a, update(a, 0, 0, UINT32_MAX - 5 + i - 2), SML_DROP_STALE_PHASE);
  }
  /* Phases do not wrap: what looks like the next one is old. */
  expect_drop(a, update(a, 0, 0, 0), SML_DROP_STALE_PHASE);
  expect_drop(a, update(a, 0, 0, 1), SML_DROP_STALE_PHASE);
  free(a);
}

/* ---- refusals ---- */

static void stale_is_dropped(void **state) {
  (void)state;
  struct sml_aggregator *a = make(2, 2, SML_FIRST_PHASE, 0);
  expect_drop(a, update(a, 0, 0, 0), SML_DROP_STALE_PHASE);
  expect_drop(a, probe(a, 0, 0, 1), SML_DROP_STALE_PHASE);
  for (uint32_t phase = 2; phase < 10; phase++) {
    complete(a, 0, phase);
    for (uint32_t old = 0; old + 2 <= phase; old++) {
      expect_drop(a, update(a, 1, 0, old), SML_DROP_STALE_PHASE);
      expect_drop(a, probe(a, 1, 0, old), SML_DROP_STALE_PHASE);
    }
  }
  /* Section 2's hazard: rank 1's late copy of phase 8 behind its update of phase 10. */
  expect(a, update(a, 1, 0, 10), SML_VERDICT_FIRST);
  expect_drop(a, update(a, 1, 0, 8), SML_DROP_STALE_PHASE);
  expect(a, update(a, 0, 0, 10), SML_VERDICT_COMPLETE);
  free(a);
}

static void jumps_are_reported_and_change_nothing(void **state) {
  (void)state;
  struct sml_aggregator *a = make(2, 2, SML_FIRST_PHASE, 0);
  static const uint32_t far[] = {3, 4, 5, 6, 1000, UINT32_MAX - 1, UINT32_MAX};
  for (size_t i = 0; i < SML_ARRAY_LEN(far); i++) { /* fresh slot: only the first phase */
    const struct sml_decision d = expect(a, update(a, 0, 0, far[i]), SML_VERDICT_JUMP);
    assert_int_equal(d.drop, SML_DROP_FUTURE_PHASE);
    expect(a, probe(a, 0, 0, far[i]), SML_VERDICT_JUMP);
  }
  expect(a, update(a, 0, 0, 2), SML_VERDICT_FIRST);
  expect(a, update(a, 0, 0, 3), SML_VERDICT_JUMP); /* phase 2 has no result that it could hold */
  expect(a, update(a, 0, 0, 4), SML_VERDICT_JUMP);
  expect(a, update(a, 1, 0, 2), SML_VERDICT_COMPLETE);
  expect(a, update(a, 0, 0, 4), SML_VERDICT_JUMP); /* phase 3 is not complete */
  expect(a, update(a, 0, 0, 5), SML_VERDICT_JUMP);
  expect(a, update(a, 0, 0, 3), SML_VERDICT_FIRST);
  expect(a, update(a, 0, 0, 4), SML_VERDICT_JUMP);
  expect(a, update(a, 1, 0, 2), SML_VERDICT_REPEAT); /* I2: nobody overwrites what rank 1 may need */
  expect(a, update(a, 1, 0, 3), SML_VERDICT_COMPLETE);
  expect(a, update(a, 1, 0, 6), SML_VERDICT_JUMP);
  expect(a, update(a, 1, 0, 5), SML_VERDICT_JUMP);
  expect(a, update(a, 1, 0, 4), SML_VERDICT_FIRST);
  free(a);
}

static void mismatch_names_both_ranks(void **state) {
  (void)state;
  struct sml_aggregator *a = make(3, 2, SML_FIRST_PHASE, 0);
  expect(a, update(a, 2, 1, 2), SML_VERDICT_FIRST);
  for (int field = 0; field < 4; field++) {
    struct sml_header h = update(a, 1, 1, 2);
    if (field == 0) h.tag ^= 1;
    if (field == 1) h.payload_bytes -= 4;
    if (field == 2) h.wire = SML_LANES_UINT8;
    if (field == 3) h.reducer = SML_REDUCE_MAX;
    const struct sml_decision d = expect(a, h, SML_VERDICT_MISMATCH);
    assert_int_equal(d.drop, SML_DROP_TAG_MISMATCH);
    assert_int_equal(d.first_rank, 2);
  }
  struct sml_header h = probe(a, 0, 1, 2);
  h.tag ^= UINT32_C(0x80000000);
  expect(a, h, SML_VERDICT_MISMATCH);
  expect(a, update(a, 1, 1, 2), SML_VERDICT_ADD); /* nothing of that was counted */
  expect(a, update(a, 0, 1, 2), SML_VERDICT_COMPLETE);
  h = update(a, 0, 1, 2);
  h.tag++;
  expect(a, h, SML_VERDICT_MISMATCH); /* a finished slot doesn't answer another operation either */
  free(a);
}

static void bad_slots_and_lengths_are_dropped(void **state) {
  (void)state;
  struct sml_aggregator *a = make(2, 4, SML_FIRST_PHASE, 0);
  static const uint32_t slots[] = {0, 7, 12, 65535};
  for (size_t i = 0; i < SML_ARRAY_LEN(slots); i++) {
    struct sml_header h = update(a, 0, 0, 2);
    h.slot = (uint16_t)slots[i];
    expect_drop(a, h, SML_DROP_BAD_SLOT);
    h.type = SML_PACKET_PROBE;
    expect_drop(a, h, SML_DROP_BAD_SLOT);
  }
  static const uint16_t lengths[] = {0, 1, 2, 3, 5, 63, CHUNK_BYTES + 1, CHUNK_BYTES + 4, 65535};
  for (size_t i = 0; i < SML_ARRAY_LEN(lengths); i++) {
    struct sml_header h = update(a, 0, 0, 2);
    h.payload_bytes = lengths[i];
    expect_drop(a, h, SML_DROP_BAD_LENGTH);
    h.type = SML_PACKET_PROBE;
    if (h.payload_bytes > 0) expect_drop(a, h, SML_DROP_BAD_LENGTH);
    h = update(a, 0, 0, 2);
    h.wire = SML_LANES_UINT8;
    h.reducer = SML_REDUCE_MAX;
    h.payload_bytes = lengths[i];
    if (h.payload_bytes == 0 || h.payload_bytes > CHUNK_BYTES) expect_drop(a, h, SML_DROP_BAD_LENGTH);
  }
  expect(a, update(a, 0, 0, 2), SML_VERDICT_FIRST);
  free(a);
}

/* ---- questions ---- */

static void probes_never_contribute(void **state) {
  (void)state;
  struct sml_aggregator *a = make(2, 2, SML_FIRST_PHASE, 0);
  static const bool nobody[2] = {false, false};
  for (int i = 0; i < 5; i++) {
    expect(a, probe(a, 0, 0, 2), SML_VERDICT_PENDING);
    expect(a, probe(a, 1, 0, 2), SML_VERDICT_PENDING);
    assert_missing(a, 0, 2, nobody);
  }
  expect(a, update(a, 1, 0, 2), SML_VERDICT_FIRST);
  expect(a, probe(a, 0, 0, 2), SML_VERDICT_PENDING);
  assert_missing(a, 0, 2, (const bool[]){false, true});
  expect(a, update(a, 0, 0, 2), SML_VERDICT_COMPLETE);
  /* A phase that has not begun: all are missing, whatever the version held before. */
  complete(a, 0, 3);
  expect(a, probe(a, 0, 0, 4), SML_VERDICT_PENDING);
  assert_missing(a, 0, 4, nobody);
  expect(a, probe(a, 0, 0, 2), SML_VERDICT_REPEAT);
  free(a);
}

static void duplicates_are_answered_only_if_asked(void **state) {
  (void)state;
  struct sml_aggregator *a = make(3, 2, SML_FIRST_PHASE, 0);
  struct sml_header again = update(a, 0, 0, 2);
  again.flags = SML_FLAG_RETRANSMISSION;
  expect(a, again, SML_VERDICT_FIRST); /* the first send was lost */
  expect_drop(a, update(a, 0, 0, 2), SML_DROP_DUPLICATE);
  expect(a, again, SML_VERDICT_PENDING);
  expect(a, update(a, 1, 0, 2), SML_VERDICT_ADD);
  expect(a, again, SML_VERDICT_PENDING);
  assert_missing(a, 0, 2, (const bool[]){true, true, false});
  expect(a, update(a, 2, 0, 2), SML_VERDICT_COMPLETE);
  expect(a, again, SML_VERDICT_REPEAT);
  free(a);
}

/* ---- ranks that left ---- */

/* Returns the slot that waits for a departed rank, and which that is. */
static uint32_t depart(struct sml_aggregator *a, uint32_t rank, uint32_t *blocking_out) {
  sml_aggregator_note_departed(a, rank);
  return sml_aggregator_find_blocked(a, blocking_out);
}

static void departed_ranks_block(void **state) {
  (void)state;
  struct sml_aggregator *a = make(130, 4, SML_FIRST_PHASE, 0);
  uint32_t blocking;
  assert_int_equal(depart(a, 129, &blocking), UINT32_MAX); /* nothing waits yet */
  struct sml_decision d = expect(a, update(a, 0, 2, 2), SML_VERDICT_FIRST);
  assert_int_equal(d.blocked_rank, 129);
  assert_int_equal(depart(a, 129, &blocking), 2);
  assert_int_equal(depart(a, 0, &blocking), 2);
  assert_int_equal(blocking, 129); /* what rank 0 contributed is in */
  d = expect(a, update(a, 5, 2, 2), SML_VERDICT_ADD);
  assert_int_equal(d.blocked_rank, 129);
  d = expect(a, update(a, 129, 2, 2), SML_VERDICT_ADD); /* on its way before it left */
  assert_int_equal(d.blocked_rank, UINT32_MAX);
  assert_int_equal(depart(a, 64, &blocking), 2);
  assert_int_equal(blocking, 64);
  for (uint32_t rank = 0; rank < 130; rank++) {
    if (rank == 0 || rank == 5 || rank == 129) continue;
    d = expect(a, update(a, rank, 2, 2), rank < 128 ? SML_VERDICT_ADD : SML_VERDICT_COMPLETE);
    assert_int_equal(d.blocked_rank, rank < 64 ? 64 : UINT32_MAX);
  }
  assert_int_equal(depart(a, 7, &blocking), UINT32_MAX); /* a complete phase waits for nobody */
  d = expect(a, update(a, 1, 2, 3), SML_VERDICT_FIRST);
  assert_int_equal(d.blocked_rank, 0); /* the lowest */
  free(a);
}

/* ---- anything at all, against a second opinion ---- */

struct model_cell {
  uint32_t phase, tag, grant;
  bool is_in[3];
};

static bool is_full(const struct model_cell *c) { return c->is_in[0] && c->is_in[1] && c->is_in[2]; }

/* Random packets, most of them nearly right: whatever comes, a contribution is counted once, for its own
 * phase, and grants are drawn in order. */
static void random_packets_keep_the_invariants(void **state) {
  (void)state;
  struct sml_aggregator *a = make(3, 2, SML_FIRST_PHASE, 0);
  struct sml_prng prng = {.state = 9};
  struct model_cell cells[4] = {{0}};
  uint32_t cursor = 2, num_verdicts[8] = {0};
  for (int round = 0; round < 300000; round++) {
    const uint32_t slot = (uint32_t)sml_prng_below(&prng, 2), rank = (uint32_t)sml_prng_below(&prng, 3);
    const uint32_t newest = sml_max_u32(cells[2 * slot].phase, cells[2 * slot + 1].phase);
    const uint32_t phase = newest - 2 + (uint32_t)sml_prng_below(&prng, 5);
    const bool is_probe = sml_prng_below(&prng, 4) == 0;
    struct sml_header h = is_probe ? probe(a, rank, slot, phase) : update(a, rank, slot, phase);
    struct model_cell *c = &cells[2 * slot + (phase & 1)], *other = &cells[2 * slot + (~phase & 1)];
    /* Not on a phase that begins: it would never complete, as its honest contributions are refused. */
    if (c->phase == phase && sml_prng_below(&prng, 50) == 0) h.tag ^= 1u << sml_prng_below(&prng, 32);
    h.flags = (uint16_t)sml_prng_below(&prng, 2);
    const struct sml_decision d = sml_aggregator_decide(a, &h);
    num_verdicts[d.verdict]++;
    assert_null(sml_aggregator_find_violation(a));
    if (d.verdict == SML_VERDICT_FIRST) {
      assert_true(phase == 2 ? c->phase == 0 : other->phase == phase - 1 && is_full(other));
      assert_true(c->phase == 0 || (c->phase == phase - 2 && is_full(c)));
      *c = (struct model_cell){.phase = phase, .tag = h.tag};
    }
    if (d.verdict <= SML_VERDICT_COMPLETE && d.verdict != SML_VERDICT_DROP) {
      assert_false(is_probe);
      assert_true(c->phase == phase && c->tag == h.tag && !c->is_in[rank]);
      c->is_in[rank] = true;
      assert_int_equal(d.verdict == SML_VERDICT_COMPLETE, is_full(c));
      if (is_full(c)) c->grant = cursor++;
    }
    if (d.verdict == SML_VERDICT_REPEAT) assert_true(c->phase == phase && c->tag == h.tag && is_full(c));
    for (uint32_t i = 0; i < 4; i++) {
      if (cells[i].phase == 0) continue;
      assert_missing(a, i / 2, cells[i].phase, cells[i].is_in); /* I3, I4 */
      struct sml_header result;
      assert_int_equal(sml_aggregator_has_result(a, i, cells[i].phase), is_full(&cells[i]));
      assert_false(sml_aggregator_has_result(a, i, cells[i].phase - 2) ||
                   sml_aggregator_has_result(a, i, cells[i].phase + 2));
      if (!is_full(&cells[i])) continue;
      sml_aggregator_result(a, i, &result);
      assert_int_equal(result.chunk, cells[i].grant);
    }
  }
  for (size_t i = 0; i < SML_ARRAY_LEN(num_verdicts); i++) assert_true(num_verdicts[i] > 1000);
  free(a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(phases_complete_for_each_world_size),
      cmocka_unit_test(result_has_the_contributions_header),
      cmocka_unit_test(values_of_cells_do_not_overlap),
      cmocka_unit_test(grants_are_drawn_once_and_repeated),
      cmocka_unit_test(chunk_numbers_wrap),
      cmocka_unit_test(phases_work_up_to_the_end),
      cmocka_unit_test(stale_is_dropped),
      cmocka_unit_test(jumps_are_reported_and_change_nothing),
      cmocka_unit_test(mismatch_names_both_ranks),
      cmocka_unit_test(bad_slots_and_lengths_are_dropped),
      cmocka_unit_test(probes_never_contribute),
      cmocka_unit_test(duplicates_are_answered_only_if_asked),
      cmocka_unit_test(departed_ranks_block),
      cmocka_unit_test(random_packets_keep_the_invariants),
  };
  return cmocka_run_group_tests_name("aggregator", tests, NULL, NULL);
}
