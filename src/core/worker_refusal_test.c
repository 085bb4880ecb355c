/* SPDX-License-Identifier: Apache-2.0
 * What a worker refuses: packets that do not fit, lies, garbage, and sums whose check word is wrong. */
#include "core/test_worker_calls.h"

/* ---- refusals ---- */

static void each_refusal_has_its_reason(void **state) {
  (void)state;
  struct sml_worker *w = make(&OPTIONS);
  submit(w, ints(0, 2), NULL, w);
  const struct sml_send first = expect_send(w, 0, SML_SEND_UPDATE);
  const struct sml_header good = result_of(&first, 4);
  struct sml_header h;
  for (uint32_t type = 0; type < 16; type++) {
    h = good;
    h.type = (uint8_t)type;
    if (type != SML_PACKET_RESULT && type != SML_PACKET_PENDING) expect_drop(w, h, SML_DROP_BAD_TYPE);
  }
  for (uint32_t slot = 0; slot < 65536; slot++) {
    h = good;
    h.slot = (uint16_t)slot;
    if (slot < 8 || slot >= 12) expect_drop(w, h, SML_DROP_BAD_SLOT);
    else if (slot > 8) expect_drop(w, h, SML_DROP_NOT_OUTSTANDING); /* 9: not sent; 10, 11: nothing to send */
  }
  h = good;
  for (h.phase = 0; h.phase < SML_FIRST_PHASE; h.phase++) expect_drop(w, h, SML_DROP_STALE_PHASE);
  for (uint32_t bit = 2; bit < 32; bit++) {
    h.phase = SML_FIRST_PHASE | 1u << bit;
    expect_drop(w, h, SML_DROP_FUTURE_PHASE);
  }
  for (uint32_t bit = 0; bit < 32; bit++) {
    h = good;
    h.tag ^= 1u << bit;
    expect_drop(w, h, SML_DROP_TAG_MISMATCH);
    h.type = SML_PACKET_PENDING;
    expect_drop(w, h, SML_DROP_TAG_MISMATCH);
  }
  for (uint32_t num_bytes = 0; num_bytes < 65536; num_bytes++) {
    h = good;
    h.payload_bytes = (uint16_t)num_bytes;
    if (num_bytes != CHUNK_BYTES) expect_drop(w, h, SML_DROP_BAD_LENGTH);
    h.type = SML_PACKET_PENDING;
    if (num_bytes != 1) expect_drop(w, h, SML_DROP_BAD_LENGTH);
  }
  h = good;
  h.wire = SML_LANES_UINT8;
  h.reducer = SML_REDUCE_MAX;
  expect_drop(w, h, SML_DROP_BAD_TYPE);
  expect_accept(w, good, 0, 1, SML_ACCEPT_RESULT); /* none of it changed anything */
  free(w);
}

/* An aggregator that grants what it likes: operations may not end, but nothing is touched that has ended,
 * and none of it outlives its operation. */
static void lying_grants_do_no_harm(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 300; seed++) {
    struct sml_prng prng = {.state = seed};
    struct sml_worker_options o = OPTIONS;
    o.num_slots = 8;
    struct sml_worker *w = make(&o);
    uint32_t chunks_left[40], num_submitted = 0;
    uint8_t *ready[40] = {NULL};
    for (int round = 0; round < 400; round++) {
      if (num_submitted < 40 && sml_worker_can_submit(w)) {
        const uint64_t num_chunks = 1 + sml_prng_below(&prng, 70);
        const struct sml_operation_plan plan =
            seed % 2 == 0 ? floats(num_submitted, num_chunks) : ints(num_submitted, num_chunks);
        const uint64_t num_groups = plan.block_elems != 0 ? sml_div_ceil(num_chunks, CHUNK_BYTES) : 0;
        chunks_left[num_submitted] = (uint32_t)(num_chunks + num_groups);
        ready[num_submitted] = calloc(num_groups + 1, 1); /* a sanitizer sees its use after the end */
        submit(w, plan, ready[num_submitted], &chunks_left[num_submitted]);
        num_submitted++;
      }
      struct sml_send send;
      sml_worker_next_send(w, (uint64_t)round, &send);
      if (send.kind == SML_SEND_NONE) continue;
      const uint32_t near = (uint32_t)(seed % 5 == 0 ? sml_prng_next(&prng) : sml_prng_below(&prng, 200));
      const struct sml_header result = result_of(&send, near);
      const struct sml_accept a = expect_accept(w, result, 0, (uint64_t)round, SML_ACCEPT_RESULT);
      uint32_t *left = a.cookie;
      assert_in_range(*left, 1, 200);
      (*left)--;
      assert_int_equal(a.ended != NULL, *left == 0);
      const char *problem = sml_worker_find_violation(w);
      assert_true(problem == NULL || memcmp(problem, "I9", 2) == 0);
      if (*left > 0) continue;
      free(ready[left - chunks_left]);
      ready[left - chunks_left] = NULL;
    }
    for (uint32_t i = 0; i < num_submitted; i++) free(ready[i]);
    free(w);
  }
}

/* Anything in any field, many times: no crash, and nothing is believed that does not fit the slot. */
static void garbage_is_refused(void **state) {
  (void)state;
  struct sml_worker *w = make(&OPTIONS);
  struct sml_prng prng = {.state = 8};
  uint8_t ready[2] = {0}, payload[2] = {0xff, 0xff};
  uint32_t num_drops[SML_NUM_DROPS] = {0};
  submit(w, floats(0, 40), ready, ready);
  for (int round = 0; round < 300000; round++) {
    struct sml_send send;
    const uint64_t now_ns = (uint64_t)round * SML_NS_PER_US;
    sml_worker_on_timer(w, now_ns);
    sml_worker_next_send(w, now_ns, &send);
    const struct sml_header h = {.type = (uint8_t)(2 + sml_prng_below(&prng, 3)),
                                 .wire = (uint8_t)sml_prng_below(&prng, 2),
                                 .slot = (uint16_t)(7 + sml_prng_below(&prng, 6)),
                                 .phase = (uint32_t)(1 + sml_prng_below(&prng, 3)),
                                 .payload_bytes = (uint16_t)sml_prng_below(&prng, 40),
                                 .flags = (uint16_t)sml_prng_below(&prng, 2),
                                 .tag = (uint32_t)sml_prng_next(&prng),
                                 .chunk = (uint32_t)sml_prng_next(&prng)};
    const struct sml_accept a = sml_worker_on_packet(w, &h, payload, now_ns);
    assert_int_equal(a.kind, SML_ACCEPT_DROP);
    num_drops[a.drop]++;
    assert_null(sml_worker_find_violation(w));
  }
  assert_int_equal(view_of(w).chunks_completed, 0);
  assert_true(num_drops[SML_DROP_BAD_TYPE] > 1000 && num_drops[SML_DROP_BAD_SLOT] > 1000 &&
              num_drops[SML_DROP_STALE_PHASE] > 1000 && num_drops[SML_DROP_FUTURE_PHASE] > 1000 &&
              num_drops[SML_DROP_NOT_OUTSTANDING] > 1000 && num_drops[SML_DROP_TAG_MISMATCH] > 1000);
  free(w);
}

/* ---- check words ---- */

static void checked_data_is_a_lane_longer(void **state) {
  (void)state;
  struct sml_worker_options options = OPTIONS;
  options.is_checked = true;
  struct sml_worker *w = make(&options);
  uint8_t ready[1] = {0};
  submit(w, floats(0, 2), ready, ready);
  const struct sml_send codes = expect_send(w, 0, SML_SEND_UPDATE);
  assert_true(codes.header.payload_bytes == 2 && codes.header.flags == 0);
  struct sml_header h = result_of(&codes, 4);
  h.flags = SML_FLAG_CHECKED;
  expect_drop(w, h, SML_DROP_BAD_TYPE);
  expect_accept(w, result_of(&codes, 4), 0, 1, SML_ACCEPT_RESULT);

  const struct sml_send data = expect_send(w, 2, SML_SEND_UPDATE);
  assert_int_equal(data.header.payload_bytes, CHUNK_BYTES + SML_CHECK_BYTES);
  assert_int_equal(data.header.flags, SML_FLAG_CHECKED);
  assert_int_equal(data.chunk.payload_bytes, CHUNK_BYTES);
  h = result_of(&data, 5);
  expect_drop(w, h, SML_DROP_BAD_TYPE);
  h.flags = SML_FLAG_CHECKED;
  expect_drop(w, h, SML_DROP_BAD_LENGTH);
  h.payload_bytes = CHUNK_BYTES + SML_CHECK_BYTES;
  const struct sml_accept a = expect_accept(w, h, 0, 3, SML_ACCEPT_RESULT);
  assert_int_equal(a.chunk.payload_bytes, CHUNK_BYTES);

  const struct sml_send last = expect_send(w, 4, SML_SEND_UPDATE);
  expect_accept(w, pending_of(&last), 2, 5, SML_ACCEPT_PENDING); /* mine is missing */
  const struct sml_send again = expect_send(w, 6, SML_SEND_UPDATE);
  assert_int_equal(again.header.flags, SML_FLAG_CHECKED | SML_FLAG_RETRANSMISSION);
  sml_worker_on_timer(w, 300 * SML_NS_PER_MS);
  const struct sml_send probe = expect_send(w, 300 * SML_NS_PER_MS, SML_SEND_PROBE);
  assert_true(probe.header.payload_bytes == 0 && probe.header.flags == 0);
  free(w);
}

/* The engine knows the verdict before anything moves. */
static void a_look_changes_nothing(void **state) {
  (void)state;
  struct sml_worker *w = make(&OPTIONS);
  int cookie;
  submit(w, ints(0, 6), NULL, &cookie);
  const struct sml_send send = expect_send(w, 0, SML_SEND_UPDATE);
  struct sml_worker_view before, after;
  const uint64_t deadline_ns = sml_worker_next_deadline(w);
  sml_worker_view(w, &before);
  const struct sml_header result = result_of(&send, 4), pending = pending_of(&send);
  const struct sml_accept a = sml_worker_peek_packet(w, &result);
  assert_true(a.kind == SML_ACCEPT_RESULT && a.cookie == &cookie && a.chunk.first_elem == 0);
  assert_int_equal(sml_worker_peek_packet(w, &pending).kind, SML_ACCEPT_PENDING);
  struct sml_header stale = result;
  stale.phase--;
  assert_int_equal(sml_worker_peek_packet(w, &stale).drop, SML_DROP_STALE_PHASE);
  sml_worker_view(w, &after);
  assert_true(after.chunks_completed == 0 && after.num_missing == 0 && after.num_outstanding == before.num_outstanding);
  assert_true(after.is_waiting && after.waiting_slot == before.waiting_slot && after.srtt_ns == before.srtt_ns);
  assert_int_equal(sml_worker_next_deadline(w), deadline_ns);
  assert_null(sml_worker_find_violation(w));
  assert_int_equal(sml_worker_on_packet(w, &result, NULL, 0).kind, SML_ACCEPT_RESULT); /* still the first */
  free(w);
}

/* The first is asked for again at once, also when that was about to happen; the second is one too many. */
static void a_refused_result_is_asked_for_again(void **state) {
  (void)state;
  for (uint32_t is_late = 0; is_late < 2; is_late++) {
    struct sml_worker *w = make(&OPTIONS);
    int cookie;
    submit(w, ints(0, 2), NULL, &cookie);
    const struct sml_send first = expect_send(w, 0, SML_SEND_UPDATE);
    const struct sml_send second = expect_send(w, 0, SML_SEND_UPDATE);
    const struct sml_header h = result_of(&first, 4);
    const uint64_t now_ns = is_late ? 300 * SML_NS_PER_MS : 5;
    if (is_late) sml_worker_on_timer(w, now_ns);
    assert_false(sml_worker_refuse_result(w, &h));
    assert_null(sml_worker_find_violation(w));
    assert_int_equal(view_of(w).num_outstanding, 2);
    const struct sml_send probe = expect_send(w, now_ns, SML_SEND_PROBE);
    assert_int_equal(probe.header.slot, first.header.slot);
    if (is_late) expect_send(w, now_ns, SML_SEND_PROBE);
    expect_send(w, now_ns, SML_SEND_NONE);
    assert_true(sml_worker_refuse_result(w, &h));
    expect_accept(w, h, 0, now_ns, SML_ACCEPT_RESULT); /* had it been right after all */
    const struct sml_header other = result_of(&second, 5);
    assert_false(sml_worker_refuse_result(w, &other)); /* another slot */
    expect_accept(w, other, 0, now_ns, SML_ACCEPT_RESULT);
    submit(w, ints(1, 4), NULL, &cookie);
    struct sml_send next[4];
    for (uint32_t i = 0; i < 4; i++) next[i] = expect_send(w, now_ns, SML_SEND_UPDATE);
    for (uint32_t i = 0; i < 4; i++) {
      const struct sml_header again = result_of(&next[i], 6 + i);
      assert_false(sml_worker_refuse_result(w, &again)); /* another phase */
    }
    assert_null(sml_worker_find_violation(w));
    assert_ptr_equal(sml_worker_take_unfinished(w), &cookie);
    free(w);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_refusal_has_its_reason), cmocka_unit_test(lying_grants_do_no_harm),
      cmocka_unit_test(garbage_is_refused),          cmocka_unit_test(checked_data_is_a_lane_longer),
      cmocka_unit_test(a_look_changes_nothing),      cmocka_unit_test(a_refused_result_is_asked_for_again),
  };
  return cmocka_run_group_tests_name("worker_refusal", tests, NULL, NULL);
}
