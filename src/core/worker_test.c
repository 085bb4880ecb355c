/* SPDX-License-Identifier: Apache-2.0
 * One worker, with the test in the place of the aggregator: what it sends and when, what it refuses.
 * Whole worlds are in worker_world_test.c. */
#include "core/test_worker_calls.h"

/* ---- sending ---- */

static void first_window_is_one_chunk_a_slot(void **state) {
  (void)state;
  struct sml_worker *w = make(&OPTIONS);
  int cookie;
  expect_send(w, 0, SML_SEND_NONE);
  assert_true(sml_worker_next_deadline(w) == SML_NEVER);
  submit(w, ints(0, 6), NULL, &cookie);
  for (uint32_t s = 0; s < 4; s++) {
    const struct sml_send send = expect_send(w, 10, SML_SEND_UPDATE);
    const struct sml_header *h = &send.header;
    assert_ptr_equal(send.cookie, &cookie);
    assert_int_equal(send.chunk.first_elem, s * CHUNK_ELEMS);
    assert_true(h->version == SML_WIRE_VERSION && h->type == SML_PACKET_UPDATE);
    assert_true(h->wire == SML_LANES_INT32 && h->reducer == SML_REDUCE_SUM);
    assert_true(h->job == 5 && h->epoch == 77 && h->rank == 1);
    assert_int_equal(h->payload_bytes, CHUNK_BYTES);
    assert_int_equal(h->slot, 8 + s);
    assert_int_equal(h->flags, 0);
    assert_int_equal(h->phase, SML_FIRST_PHASE);
    assert_int_equal(h->chunk, s);
  }
  expect_send(w, 10, SML_SEND_NONE);
  free(w);
}

static void a_result_frees_its_slot_at_once(void **state) {
  (void)state;
  struct sml_worker *w = make(&OPTIONS);
  struct sml_send first[4];
  int cookie;
  submit(w, ints(0, 6), NULL, &cookie);
  for (uint32_t s = 0; s < 4; s++) first[s] = expect_send(w, 0, SML_SEND_UPDATE);
  struct sml_accept a = expect_accept(w, result_of(&first[2], 4), 0, 5, SML_ACCEPT_RESULT);
  assert_int_equal(a.chunk.data_chunk, 2);
  assert_ptr_equal(a.cookie, &cookie);
  assert_null(a.ended);
  struct sml_send next = expect_send(w, 5, SML_SEND_UPDATE);
  assert_int_equal(next.header.slot, 8 + 2);
  assert_int_equal(next.header.phase, SML_FIRST_PHASE + 1);
  assert_int_equal(next.chunk.data_chunk, 4);
  expect_drop(w, result_of(&first[2], 4), SML_DROP_STALE_PHASE); /* the second copy */
  /* A grant beyond the operation waits for the next one. */
  expect_accept(w, result_of(&first[1], 6), 0, 6, SML_ACCEPT_RESULT);
  expect_send(w, 6, SML_SEND_NONE);
  submit(w, ints(1, 1), NULL, &first);
  next = expect_send(w, 7, SML_SEND_UPDATE);
  assert_int_equal(next.header.slot, 8 + 1);
  assert_int_equal(next.header.chunk, 6);
  assert_ptr_equal(next.cookie, &first);
  assert_int_equal(next.chunk.data_chunk, 0);
  free(w);
}

static void data_waits_for_its_exponents(void **state) {
  (void)state;
  struct sml_worker *w = make(&OPTIONS);
  uint8_t ready[2] = {0, 0};
  submit(w, floats(0, 40), ready, ready); /* groups of 32 codes: E0 E1 D(0).. */
  const struct sml_send e0 = expect_send(w, 0, SML_SEND_UPDATE), e1 = expect_send(w, 0, SML_SEND_UPDATE);
  expect_send(w, 0, SML_SEND_NONE); /* two slots hold data chunks */
  assert_true(e0.chunk.is_exponent);
  assert_true(e0.header.wire == SML_LANES_UINT8 && e0.header.reducer == SML_REDUCE_MAX);
  assert_int_equal(e0.chunk.payload_bytes, 32);
  assert_int_equal(e1.chunk.payload_bytes, 8);
  expect_accept(w, result_of(&e1, 4), 0, 1, SML_ACCEPT_RESULT);
  assert_true(ready[0] == 0 && ready[1] == 1);
  expect_send(w, 1, SML_SEND_NONE);
  const struct sml_header waiting = {.type = SML_PACKET_RESULT, .slot = 10, .phase = SML_FIRST_PHASE};
  expect_drop(w, waiting, SML_DROP_NOT_OUTSTANDING);
  expect_accept(w, result_of(&e0, 5), 0, 2, SML_ACCEPT_RESULT);
  for (uint32_t i = 0; i < 4; i++) assert_false(expect_send(w, 2, SML_SEND_UPDATE).chunk.is_exponent);
  expect_send(w, 2, SML_SEND_NONE);
  free(w);
}

static void operations_may_end_out_of_order(void **state) {
  (void)state;
  struct sml_worker_options o = OPTIONS;
  o.num_operations = 2;
  struct sml_worker *w = make(&o);
  int cookies[3];
  submit(w, ints(0, 1), NULL, &cookies[0]);
  submit(w, ints(1, 1), NULL, &cookies[1]);
  assert_false(sml_worker_can_submit(w));
  const struct sml_send first = expect_send(w, 0, SML_SEND_UPDATE);
  const struct sml_send second = expect_send(w, 0, SML_SEND_UPDATE);
  struct sml_accept a = expect_accept(w, result_of(&second, 4), 0, 1, SML_ACCEPT_RESULT);
  assert_ptr_equal(a.ended, &cookies[1]);
  assert_false(sml_worker_can_submit(w)); /* its place is behind one that is in use */
  a = expect_accept(w, result_of(&first, 5), 0, 1, SML_ACCEPT_RESULT);
  assert_ptr_equal(a.ended, &cookies[0]);
  assert_true(sml_worker_can_submit(w));
  assert_true(sml_worker_next_deadline(w) == SML_NEVER);
  assert_false(view_of(w).is_waiting);
  free(w);
}

static void unfinished_are_taken_once(void **state) {
  (void)state;
  struct sml_worker *w = make(&OPTIONS);
  int cookies[4];
  for (uint64_t i = 0; i < 4; i++) submit(w, ints(i, 1), NULL, &cookies[i]);
  expect_send(w, 0, SML_SEND_UPDATE);
  const struct sml_send second = expect_send(w, 0, SML_SEND_UPDATE);
  expect_accept(w, result_of(&second, 4), 0, 1, SML_ACCEPT_RESULT);
  assert_ptr_equal(sml_worker_take_unfinished(w), &cookies[0]);
  assert_ptr_equal(sml_worker_take_unfinished(w), &cookies[2]);
  assert_ptr_equal(sml_worker_take_unfinished(w), &cookies[3]);
  assert_null(sml_worker_take_unfinished(w));
  assert_null(sml_worker_take_unfinished(w));
  free(w);
}

static void an_empty_range_is_nothing_to_do(void **state) {
  (void)state;
  struct sml_worker_options o = OPTIONS;
  o.num_lanes = 2;
  o.lane = 1;
  struct sml_worker *w = make(&o);
  const struct sml_operation_plan plan = ints(0, 1); /* lane 0 has it all */
  assert_false(sml_worker_submit(w, &plan, NULL, &o, 0));
  expect_send(w, 0, SML_SEND_NONE);
  assert_null(sml_worker_take_unfinished(w));
  free(w);
}

static void the_epochs_room_is_counted(void **state) {
  (void)state;
  struct sml_worker_options o = OPTIONS;
  o.first_phase = UINT32_MAX - 99;
  o.first_chunk = UINT32_MAX;
  struct sml_worker *w = make(&o);
  assert_int_equal(sml_worker_chunks_left(w), 99);
  submit(w, ints(0, 60), NULL, &o);
  assert_int_equal(sml_worker_chunks_left(w), 39);
  uint8_t ready[2] = {0};
  submit(w, floats(1, 33), ready, &o);
  assert_int_equal(sml_worker_chunks_left(w), 4);
  submit(w, ints(2, 4), NULL, &o);
  assert_int_equal(sml_worker_chunks_left(w), 0);
  free(w);
}

/* ---- time ---- */

static void a_silent_slot_is_asked_about_ever_more_rarely(void **state) {
  (void)state;
  struct sml_worker *w = make(&OPTIONS);
  submit(w, ints(0, 1), NULL, w);
  expect_send(w, 1000, SML_SEND_UPDATE);
  uint64_t now_ns = 1000;
  for (uint32_t k = 0; k < 12; k++) {
    const uint64_t base_ns = sml_min_u64(SML_RTO_INITIAL_NS << k, SML_RTO_CEILING_NS);
    const uint64_t deadline_ns = sml_worker_next_deadline(w);
    assert_in_range(deadline_ns - now_ns, base_ns, base_ns + SML_RTO_INITIAL_NS / 8);
    sml_worker_on_timer(w, deadline_ns - 1);
    expect_send(w, deadline_ns - 1, SML_SEND_NONE);
    now_ns = deadline_ns;
    sml_worker_on_timer(w, now_ns);
    assert_true(sml_worker_next_deadline(w) == SML_NEVER); /* queued, so not timed as well */
    const struct sml_send probe = expect_send(w, now_ns, SML_SEND_PROBE);
    assert_int_equal(probe.header.type, SML_PACKET_PROBE);
    assert_int_equal(probe.header.phase, SML_FIRST_PHASE);
    expect_send(w, now_ns, SML_SEND_NONE);
  }
  const struct sml_worker_view view = view_of(w);
  assert_int_equal(view.probes, 12);
  assert_int_equal(view.retransmissions, 0);
  free(w);
}

/* An aggregator that says nothing: the error text must name a slot that really waits. */
static void the_view_names_the_slot_that_waits_longest(void **state) {
  (void)state;
  struct sml_worker *w = make(&OPTIONS);
  submit(w, ints(0, 2), NULL, w);
  const struct sml_send first = expect_send(w, 10, SML_SEND_UPDATE);
  expect_send(w, 20, SML_SEND_UPDATE);
  assert_int_equal(view_of(w).waiting_slot, 0);
  expect_accept(w, result_of(&first, 4), 0, 30, SML_ACCEPT_RESULT);
  assert_int_equal(view_of(w).waiting_slot, 1);
  free(w);
}

static void data_goes_again_only_if_it_is_missing(void **state) {
  (void)state;
  struct sml_worker *w = make(&OPTIONS);
  submit(w, ints(0, 1), NULL, w);
  const struct sml_send first = expect_send(w, 0, SML_SEND_UPDATE);
  uint64_t now_ns = sml_worker_next_deadline(w);
  sml_worker_on_timer(w, now_ns);
  struct sml_send probe = expect_send(w, now_ns, SML_SEND_PROBE);
  expect_accept(w, pending_of(&probe), 0xfd, now_ns, SML_ACCEPT_PENDING); /* 0 and 2, and bits of no rank */
  expect_send(w, now_ns, SML_SEND_NONE);
  struct sml_worker_view view = view_of(w);
  assert_true(view.num_missing == 2 && view.missing[0] == 0 && view.missing[1] == 2);
  assert_int_equal(view.waiting_slot, 0);
  expect_accept(w, pending_of(&probe), 0x06, now_ns, SML_ACCEPT_PENDING); /* 1 is me */
  expect_accept(w, pending_of(&probe), 0x06, now_ns, SML_ACCEPT_PENDING); /* the network's copy */
  view = view_of(w);
  assert_true(view.num_missing == 1 && view.missing[0] == 2);
  const struct sml_send again = expect_send(w, now_ns, SML_SEND_UPDATE);
  expect_send(w, now_ns, SML_SEND_NONE);
  assert_int_equal(again.header.flags, SML_FLAG_RETRANSMISSION); /* I5: nothing else differs */
  assert_true(again.header.tag == first.header.tag && again.header.phase == first.header.phase &&
              again.header.chunk == first.header.chunk && again.header.slot == first.header.slot &&
              again.chunk.first_elem == first.chunk.first_elem && again.cookie == first.cookie);
  /* The repeat gets the patience of a first send. */
  assert_in_range(sml_worker_next_deadline(w) - now_ns, SML_RTO_INITIAL_NS, SML_RTO_INITIAL_NS * 9 / 8);
  /* The result comes while the slot is in both queues: nothing of it is sent any more. */
  now_ns = sml_worker_next_deadline(w);
  sml_worker_on_timer(w, now_ns);
  expect_accept(w, pending_of(&first), 0x02, now_ns, SML_ACCEPT_PENDING);
  assert_non_null(expect_accept(w, result_of(&first, 4), 0, now_ns, SML_ACCEPT_RESULT).ended);
  expect_send(w, now_ns, SML_SEND_NONE);
  assert_true(sml_worker_next_deadline(w) == SML_NEVER);
  assert_int_equal(view_of(w).num_missing, 0);
  free(w);
}

/* A stray answer makes a slot that was never asked about wait for others: it stays timed. */
static void answers_that_nobody_asked_for(void **state) {
  (void)state;
  struct sml_worker *w = make(&OPTIONS);
  submit(w, ints(0, 1), NULL, w);
  const struct sml_send first = expect_send(w, 0, SML_SEND_UPDATE);
  for (uint64_t i = 1; i < 100; i++)
    expect_accept(w, pending_of(&first), (uint8_t)(i % 2 == 0 ? 2 : 1), i, SML_ACCEPT_PENDING);
  expect_send(w, 100, SML_SEND_UPDATE);
  expect_send(w, 100, SML_SEND_NONE);
  const uint64_t deadline_ns = sml_worker_next_deadline(w);
  for (uint64_t now_ns = 200; now_ns < 2 * SML_RTO_CEILING_NS; now_ns += SML_NS_PER_MS) {
    expect_accept(w, pending_of(&first), 1, now_ns, SML_ACCEPT_PENDING);
    sml_worker_on_timer(w, now_ns);
    if (sml_worker_peek_send(w) == 0) break;
  }
  const struct sml_send probe = expect_send(w, 2 * SML_RTO_CEILING_NS, SML_SEND_PROBE);
  assert_int_equal(probe.header.phase, SML_FIRST_PHASE);
  assert_true(deadline_ns < SML_RTO_CEILING_NS);
  free(w);
}

/* Slot 0 is silent while slot 1 goes on; returns when slot 0 is asked about. */
static uint64_t run_until_probe(struct sml_worker *w, struct sml_send *going, uint64_t now_ns,
                                uint32_t *grant) {
  for (;;) {
    now_ns += 50 * SML_NS_PER_US;
    expect_accept(w, result_of(going, (*grant)++), 0, now_ns, SML_ACCEPT_RESULT);
    sml_worker_on_timer(w, now_ns);
    if (sml_worker_peek_send(w) == 0) {
      assert_int_equal(expect_send(w, now_ns, SML_SEND_PROBE).header.slot, 8);
      *going = expect_send(w, now_ns, SML_SEND_UPDATE);
      return now_ns;
    }
    *going = expect_send(w, now_ns, SML_SEND_UPDATE);
  }
}

static void an_overtaken_slot_is_asked_about_at_once(void **state) {
  (void)state;
  struct sml_worker_options o = OPTIONS;
  o.num_slots = 2;
  struct sml_worker *w = make(&o);
  submit(w, ints(0, 1000), NULL, w);
  const struct sml_send lost = expect_send(w, 0, SML_SEND_UPDATE);
  struct sml_send going = expect_send(w, 0, SML_SEND_UPDATE);
  uint32_t grant = 2;
  /* Sent at 150 us, beyond the 100 us by which paths reorder, and back at 200 us. */
  uint64_t now_ns = run_until_probe(w, &going, 0, &grant);
  assert_int_equal(now_ns, 200 * SML_NS_PER_US);
  /* The question is lost as well. */
  uint64_t asked_ns = now_ns;
  now_ns = run_until_probe(w, &going, now_ns, &grant);
  assert_int_equal(now_ns - asked_ns, 200 * SML_NS_PER_US);
  /* The data goes again, and is lost again. */
  expect_accept(w, pending_of(&lost), 2, now_ns, SML_ACCEPT_PENDING);
  assert_int_equal(expect_send(w, now_ns, SML_SEND_UPDATE).header.flags, SML_FLAG_RETRANSMISSION);
  asked_ns = now_ns;
  now_ns = run_until_probe(w, &going, now_ns, &grant);
  assert_int_equal(now_ns - asked_ns, 200 * SML_NS_PER_US);
  /* Once the aggregator said that it waits for another rank, there is no hurry. */
  expect_accept(w, pending_of(&lost), 1, now_ns, SML_ACCEPT_PENDING);
  asked_ns = now_ns;
  now_ns = run_until_probe(w, &going, now_ns, &grant);
  assert_true(now_ns - asked_ns >= 2 * SML_RTO_FLOOR_NS);
  free(w);
}

static void only_clean_samples_count(void **state) {
  (void)state;
  struct sml_worker *w = make(&OPTIONS);
  submit(w, ints(0, 100), NULL, w);
  struct sml_send sends[4];
  for (uint32_t s = 0; s < 4; s++) sends[s] = expect_send(w, 0, SML_SEND_UPDATE);
  struct sml_header repeat = result_of(&sends[0], 4);
  repeat.flags = SML_FLAG_RETRANSMISSION;
  expect_accept(w, repeat, 0, 7 * SML_NS_PER_MS, SML_ACCEPT_RESULT); /* answers a probe, not the update */
  assert_int_equal(view_of(w).srtt_ns, 0);
  expect_accept(w, pending_of(&sends[1]), 1, 8 * SML_NS_PER_MS, SML_ACCEPT_PENDING);
  expect_accept(w, result_of(&sends[1], 5), 0, 9 * SML_NS_PER_MS, SML_ACCEPT_RESULT); /* rank 0 was late */
  assert_int_equal(view_of(w).srtt_ns, 0);
  expect_accept(w, pending_of(&sends[2]), 2, 9 * SML_NS_PER_MS, SML_ACCEPT_PENDING);
  for (uint32_t i = 0; i < 3; i++) expect_send(w, 9 * SML_NS_PER_MS, SML_SEND_UPDATE);
  expect_accept(w, result_of(&sends[2], 6), 0, 10 * SML_NS_PER_MS, SML_ACCEPT_RESULT); /* sent twice: Karn */
  assert_int_equal(view_of(w).srtt_ns, 0);
  expect_accept(w, result_of(&sends[3], 7), 0, 11 * SML_NS_PER_MS, SML_ACCEPT_RESULT);
  assert_int_equal(view_of(w).srtt_ns, 11 * SML_NS_PER_MS);
  free(w);
}

/* Loss of another rank's packet holds a chunk up as well: those sent later come before it. */
static void repairs_are_not_the_path(void **state) {
  (void)state;
  struct sml_worker *w = make(&OPTIONS);
  submit(w, ints(0, 100), NULL, w);
  struct sml_send sends[4];
  for (uint32_t s = 0; s < 4; s++) sends[s] = expect_send(w, 0, SML_SEND_UPDATE);
  uint64_t now_ns = 0;
  for (uint32_t i = 0; i < 90; i++) {
    now_ns += 100 * SML_NS_PER_US;
    expect_accept(w, result_of(&sends[1], 4 + i), 0, now_ns, SML_ACCEPT_RESULT);
    sends[1] = expect_send(w, now_ns, SML_SEND_UPDATE);
  }
  assert_int_equal(view_of(w).srtt_ns, 100 * SML_NS_PER_US);
  expect_accept(w, result_of(&sends[0], 200), 0, now_ns, SML_ACCEPT_RESULT);
  assert_int_equal(view_of(w).srtt_ns, 100 * SML_NS_PER_US);
  free(w);
}

/* Parts of one chunk each, and a fence behind each: this rank waits for rank 2's update of its own part, and at the
 * fence before it for ranks 0 and 2. What is said of a chunk of data counts more. */
static void test_who_is_missing_at_a_fence(void **state) {
  (void)state;
  static const uint64_t parts[] = {0, CHUNK_ELEMS, 2 * CHUNK_ELEMS, 3 * CHUNK_ELEMS};
  struct sml_worker_options o = OPTIONS;
  struct sml_operation_plan plan = ints(0, 3);
  o.num_slots = 8;
  o.slot_base = 16;
  o.way = SML_REDUCE_TO_OWNER;
  plan.way = SML_REDUCE_TO_OWNER;
  plan.num_parts = NUM_RANKS;
  plan.parts = parts;
  struct sml_worker *w = make(&o);
  submit(w, plan, NULL, NULL);
  (void)expect_send(w, 0, SML_SEND_UPDATE); /* part 0 */
  const struct sml_send fence = expect_send(w, 0, SML_SEND_UPDATE);
  assert_true(fence.chunk.is_fence);
  expect_accept(w, pending_of(&fence), 5, 1, SML_ACCEPT_PENDING);
  struct sml_worker_view v = view_of(w);
  assert_true(v.is_at_fence && v.num_missing == 2 && v.missing[0] == 0 && v.missing[1] == 2 && v.waiting_slot == 1);
  struct sml_send own = fence;
  own.header.slot++;
  own.header.chunk = 1;
  own.header.tag = sml_tag(sml_tag_base(&plan, CHUNK_BYTES, 1), 2);
  expect_accept(w, pending_of(&own), 4, 2, SML_ACCEPT_PENDING);
  expect_accept(w, pending_of(&fence), 5, 3, SML_ACCEPT_PENDING);
  v = view_of(w);
  assert_true(!v.is_at_fence && v.num_missing == 1 && v.missing[0] == 2 && v.waiting_slot == 2);
  free(w);
}

/* Ranks 0 and 2 may both ask about what rank 1 sends. A PENDING that names what left later shows a loss at once, any
 * other one after a silence. That for the other receiver asks for the same. */
static void one_repeat_answers_all_receivers(void **state) {
  (void)state;
  static const uint64_t parts[] = {0, 0, CHUNK_BYTES, CHUNK_BYTES};
  for (uint32_t i = 0; i < 2; i++) {
    struct sml_worker_options o = OPTIONS;
    struct sml_operation_plan plan = ints(0, 4);
    o.num_slots = 8;
    o.slot_base = 8;
    o.way = plan.way = SML_REDUCE_COPY;
    plan.num_parts = NUM_RANKS;
    plan.parts = parts;
    struct sml_worker *w = make(&o);
    submit(w, plan, NULL, NULL);
    const struct sml_send first = expect_send(w, 0, SML_SEND_UPDATE);
    (void)expect_send(w, 0, SML_SEND_UPDATE); /* the fence */
    struct sml_header h = pending_of(&first);
    h.flags = SML_FLAG_UNASKED;
    h.chunk = i == 0 ? 0 : 1; /* 1: the fence */
    uint64_t now_ns = 1;
    expect_accept(w, h, 2, now_ns, SML_ACCEPT_PENDING);
    if (i == 0) {
      expect_send(w, now_ns, SML_SEND_NONE);
      now_ns += 2 * view_of(w).rto_ns;
      expect_accept(w, h, 2, now_ns, SML_ACCEPT_PENDING);
    }
    (void)expect_send(w, now_ns, SML_SEND_UPDATE);
    (void)expect_send(w, now_ns, SML_SEND_UPDATE); /* twice, since everything has left */
    expect_accept(w, h, 2, ++now_ns, SML_ACCEPT_PENDING);
    expect_send(w, now_ns, SML_SEND_NONE);
    now_ns += 2 * view_of(w).rto_ns;
    expect_accept(w, h, 2, now_ns, SML_ACCEPT_PENDING);
    (void)expect_send(w, now_ns, SML_SEND_UPDATE); /* that was lost, too */
    free(w);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_repeat_answers_all_receivers),
      cmocka_unit_test(test_who_is_missing_at_a_fence),
      cmocka_unit_test(first_window_is_one_chunk_a_slot),
      cmocka_unit_test(a_result_frees_its_slot_at_once),
      cmocka_unit_test(data_waits_for_its_exponents),
      cmocka_unit_test(operations_may_end_out_of_order),
      cmocka_unit_test(unfinished_are_taken_once),
      cmocka_unit_test(an_empty_range_is_nothing_to_do),
      cmocka_unit_test(the_epochs_room_is_counted),
      cmocka_unit_test(a_silent_slot_is_asked_about_ever_more_rarely),
      cmocka_unit_test(the_view_names_the_slot_that_waits_longest),
      cmocka_unit_test(data_goes_again_only_if_it_is_missing),
      cmocka_unit_test(answers_that_nobody_asked_for),
      cmocka_unit_test(an_overtaken_slot_is_asked_about_at_once),
      cmocka_unit_test(only_clean_samples_count),
      cmocka_unit_test(repairs_are_not_the_path),
  };
  return cmocka_run_group_tests_name("worker", tests, NULL, NULL);
}
