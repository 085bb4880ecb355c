/* SPDX-License-Identifier: Apache-2.0
 * One-way windows: sums that only their owner gets, and copies of what an owner has, in worlds that lose, repeat and
 * delay. Each rank takes each chunk that is for it once, with one contribution of each contributor; nobody is accused;
 * all operations end. */
#include "core/test_worker_world.h"

#include "core/test_aggregator_calls.h"

static const uint32_t sizes[MAX_OPERATIONS] = {20, 3, 1, 40, 7, 60, 2, 90, 33, 5, 1, 1, 64, 12, 100, 31, 8, 4, 50, 9};

static struct world_options one_way(uint64_t seed) {
  struct world_options o = QUIET;
  o.is_one_way = true;
  o.seed = seed;
  o.world_size = 2 + (uint32_t)(seed % 5);
  o.num_slots = 8u << seed % 4;
  o.num_operations = 10 + (uint32_t)(seed % 10);
  return o;
}

static void quiet_worlds_end(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 60; seed++) {
    const struct world_options o = one_way(seed);
    run_once(&o, sizes, true);
  }
}

static void worlds_that_lose_end(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < (SML_IS_SLOW_BUILD ? 60 : 400); seed++) { /* 60 are all kinds of them */
    struct world_options o = one_way(seed);
    o.loss = 0.02 * (double)(seed % 10);
    o.duplicate = 0.1 * (double)(seed % 3);
    o.delay = 0.1 * (double)(seed % 4);
    o.max_delay_ns = 300 * SML_NS_PER_US;
    o.forge = seed % 2 ? 0.05 : 0;
    o.faults_end_ns = 400 * SML_NS_PER_MS;
    struct world *x = make_world(&o, sizes, true);
    run_world(x, 20 * SML_NS_PER_S);
    free_world(x);
  }
}

/* Nothing arrives of some fences before a later one is complete, whose result is lost: seeds that once asked about the
 * former for ever, and some beside them. */
static void worlds_that_lose_half_end(void **state) {
  (void)state;
  static const uint32_t one[MAX_OPERATIONS] = {12};
  for (uint64_t seed = 230; seed < 520; seed += SML_IS_SLOW_BUILD ? 3 : 1) {
    struct world_options o = QUIET;
    o.is_one_way = true;
    o.seed = seed;
    o.world_size = 2;
    o.num_slots = 8;
    o.num_operations = 1;
    o.loss = seed < 500 ? 0.5 : 0.3;
    o.faults_end_ns = 400 * SML_NS_PER_MS;
    struct world *x = make_world(&o, one, false);
    run_world(x, 20 * SML_NS_PER_S);
    free_world(x);
  }
}

/* No rank of sense sends there; nor does it hold up the aggregator's thread, which has other jobs. */
static void a_position_far_ahead_costs_nothing(void **state) {
  (void)state;
  const struct sml_aggregator_options options = {.world_size = 2,
                                                 .num_slots = 512,
                                                 .is_one_way = true,
                                                 .chunk_bytes = CHUNK_BYTES,
                                                 .first_phase = SML_FIRST_PHASE};
  struct sml_aggregator *a = init(&options);
  for (uint32_t rank = 0; rank < 2; rank++) {
    struct sml_header h = update(a, rank, 3 * 512 + rank, UINT32_MAX - 2);
    h.reducer = SML_REDUCE_TO_OWNER;
    h.chunk = 1 - rank;
    assert_int_equal(sml_aggregator_decide(a, &h).verdict, SML_VERDICT_COMPLETE);
  }
  for (uint64_t pass = 1; pass <= 3; pass++) {
    struct sml_header question;
    uint32_t num_questions = 0;
    sml_aggregator_begin_solicit(a, SML_NS_PER_MS + pass * 200 * SML_NS_PER_US);
    while (sml_aggregator_next_lost(a, &question)) assert_true(++num_questions <= 512);
  }
  free(a);
}

/* Each of the first packets is lost, or comes again much later; in slow builds each third. */
static void any_one_packet(void **state) {
  (void)state;
  static const uint32_t few[MAX_OPERATIONS] = {5, 6, 3};
  for (uint32_t kind = 0; kind < 3; kind++) {
    for (uint64_t index = SML_IS_SLOW_BUILD ? kind : 0; index < 150; index += SML_IS_SLOW_BUILD ? 3 : 1) {
      struct world_options o = one_way(kind * 9 + 3);
      o.world_size = 3;
      o.num_slots = 8;
      o.num_operations = 3;
      if (kind == 0) o.lost[0] = index;
      else o.repeated = index;
      o.is_delayed_only = kind == 2;
      o.repeat_delay_ns = 3 * SML_NS_PER_MS;
      run_once(&o, few, true);
    }
  }
}

/* Without losses a rank sends and hears what is its own, and fences; nothing is asked twice in this time. */
static void bytes_go_one_way(void **state) {
  (void)state;
  static const uint32_t large[MAX_OPERATIONS] = {300};
  for (uint32_t way = 0; way < 2; way++) {
    struct world_options o = one_way(way * 9 + 3);
    o.world_size = 4;
    o.num_slots = 64;
    o.num_operations = 1;
    struct world *x = make_world(&o, large, false);
    x->plans[0].block_elems = 0;
    sml_range_make(&x->ranges[0], &x->plans[0], 0, 1, o.chunk_bytes, o.num_slots);
    run_world(x, SML_NS_PER_S);
    const struct sml_range *r = &x->ranges[0];
    const uint64_t num_fences = r->num_chunks - r->num_data_chunks;
    uint64_t num_data = 0;
    /* TO_OWNER: n - 1 go up, one down. COPY: one up, n - 1 down. Fences: all up, all down. */
    num_data = r->num_data_chunks * o.world_size;
    const uint64_t least = num_data + 2 * num_fences * o.world_size;
    assert_in_range(x->num_sent, least, least + 40);
    free_world(x);
  }
}

static struct sml_header owned(const struct sml_aggregator *a, uint8_t reducer, uint32_t owner, uint32_t rank,
                               uint32_t slot) {
  struct sml_header h = update(a, rank, slot, SML_FIRST_PHASE);
  h.reducer = reducer;
  h.wire = reducer == SML_REDUCE_COPY ? SML_LANES_UINT8 : SML_LANES_INT32;
  h.chunk = owner;
  return h;
}

static struct sml_aggregator *make_one_way(uint32_t world_size) {
  const struct sml_aggregator_options options = {.world_size = world_size,
                                                 .num_slots = 8,
                                                 .is_one_way = true,
                                                 .chunk_bytes = CHUNK_BYTES,
                                                 .first_phase = SML_FIRST_PHASE};
  return init(&options);
}

static void what_the_aggregator_refuses(void **state) {
  (void)state;
  struct sml_aggregator *a = make_one_way(3);
  /* Slots 8 to 23 are for copies, 24 to 39 for sums. */
  expect(a, owned(a, SML_REDUCE_TO_OWNER, 1, 0, 0), SML_VERDICT_DROP);
  expect(a, owned(a, SML_REDUCE_TO_OWNER, 1, 0, 23), SML_VERDICT_DROP);
  expect(a, owned(a, SML_REDUCE_COPY, 0, 0, 7), SML_VERDICT_DROP);
  expect(a, owned(a, SML_REDUCE_COPY, 0, 0, 24), SML_VERDICT_DROP);
  expect(a, update(a, 0, 24, SML_FIRST_PHASE), SML_VERDICT_DROP);       /* nor a sum to all in these */
  expect(a, owned(a, SML_REDUCE_TO_OWNER, 0, 0, 24), SML_VERDICT_DROP); /* by the owner */
  expect(a, owned(a, SML_REDUCE_COPY, 1, 0, 8), SML_VERDICT_DROP);      /* by another */
  expect(a, owned(a, SML_REDUCE_TO_OWNER, 3, 0, 24), SML_VERDICT_DROP); /* there is no such owner */
  expect(a, owned(a, SML_REDUCE_TO_OWNER, 0, 1, 40), SML_VERDICT_DROP); /* beyond the window */
  expect(a, owned(a, SML_REDUCE_TO_OWNER, 0, 1, 24), SML_VERDICT_FIRST);
  struct sml_header other = owned(a, SML_REDUCE_TO_OWNER, 1, 2, 24);
  expect(a, other, SML_VERDICT_MISMATCH); /* of the owner alone: the tags are the same */
  expect(a, owned(a, SML_REDUCE_TO_OWNER, 0, 2, 24), SML_VERDICT_COMPLETE);
  struct sml_header again = owned(a, SML_REDUCE_TO_OWNER, 0, 2, 24); /* it is no receiver */
  again.flags = SML_FLAG_RETRANSMISSION;
  assert_int_equal(expect(a, again, SML_VERDICT_DROP).drop, SML_DROP_NEEDLESS);
  expect(a, owned(a, SML_REDUCE_COPY, 2, 2, 9), SML_VERDICT_COMPLETE);
  free(a);
}

/* A copy that nobody can send any more: whoever asks about it is told. */
static void a_lost_owner_is_found(void **state) {
  (void)state;
  struct sml_aggregator *a = make_one_way(3);
  struct sml_header question = owned(a, SML_REDUCE_COPY, 2, 0, 8);
  question.type = SML_PACKET_PROBE;
  question.payload_bytes = 0;
  assert_int_equal(expect(a, question, SML_VERDICT_PENDING).blocked_rank, UINT32_MAX);
  sml_aggregator_note_departed(a, 2);
  assert_int_equal(expect(a, question, SML_VERDICT_PENDING).blocked_rank, 2);
  /* It need not be there for a sum of its own. */
  expect(a, owned(a, SML_REDUCE_TO_OWNER, 2, 0, 25), SML_VERDICT_FIRST);
  uint64_t words[1];
  const struct sml_header h = owned(a, SML_REDUCE_TO_OWNER, 2, 0, 25);
  assert_int_equal(sml_aggregator_missing_for(a, &h, words), 1);
  assert_int_equal(words[0], 2);
  assert_int_equal(expect(a, owned(a, SML_REDUCE_TO_OWNER, 2, 1, 25), SML_VERDICT_COMPLETE).blocked_rank, UINT32_MAX);
  assert_null(sml_aggregator_find_violation(a));
  free(a);
}

/* Rank 2 of 3, which lacks each result of a fence: a window of 16 slots has 32 positions, each second one a fence. */
static struct sml_worker *make_receiver(const uint64_t *parts) {
  const struct sml_worker_options o = {.rank = 2,
                                       .world_size = 3,
                                       .num_lanes = 1,
                                       .num_slots = 8,
                                       .slot_base = 8,
                                       .num_operations = 4,
                                       .way = SML_REDUCE_COPY,
                                       .chunk_bytes = CHUNK_BYTES,
                                       .first_phase = SML_FIRST_PHASE};
  struct sml_worker *w = sml_worker_init(aligned_alloc(64, sml_align_up(sml_worker_memsize(&o), 64)), &o);
  const struct sml_operation_plan plan = {
      .num_elems = 20 * CHUNK_BYTES, .way = SML_REDUCE_COPY, .num_parts = 3, .parts = parts};
  assert_true(sml_worker_submit(w, &plan, NULL, (void *)(uintptr_t)parts, 0));
  return w;
}

static struct sml_header result_at(const struct sml_operation_plan *plan, uint64_t position) {
  return (struct sml_header){.type = SML_PACKET_RESULT,
                             .wire = SML_LANES_UINT8,
                             .reducer = SML_REDUCE_COPY,
                             .slot = (uint16_t)(8 + position % 16),
                             .phase = SML_FIRST_PHASE + (uint32_t)position / 16,
                             .tag = sml_tag(sml_tag_base(plan, CHUNK_BYTES, 1), position),
                             .payload_bytes = CHUNK_BYTES};
}

/* Whoever sends to a position knows of the fence before it. So that need not come. */
static void later_results_prove_a_fence(void **state) {
  (void)state;
  static const uint64_t parts[] = {0, 20 * CHUNK_BYTES, 20 * CHUNK_BYTES, 20 * CHUNK_BYTES};
  const struct sml_operation_plan plan = {
      .num_elems = 20 * CHUNK_BYTES, .way = SML_REDUCE_COPY, .num_parts = 3, .parts = parts};
  struct sml_worker *w = make_receiver(parts);
  struct sml_header h = result_at(&plan, 32);
  struct sml_send send;
  assert_false(sml_worker_take_proof(w, &h, 1)); /* a lie: this rank lacks position 0 */
  for (uint64_t position = 0; position < 6; position += 2) {
    h = result_at(&plan, position);
    assert_int_equal(sml_worker_on_packet(w, &h, NULL, 2).kind, SML_ACCEPT_RESULT);
  }
  h = result_at(&plan, 32);
  assert_false(sml_worker_take_proof(w, &h, 3)); /* its own contribution to the fence has not left */
  for (uint32_t i = 0; i < 3; i++) {
    sml_worker_next_send(w, 4, &send);
    assert_true(send.kind == SML_SEND_UPDATE && send.chunk.is_fence);
  }
  assert_int_equal(sml_worker_peek_packet(w, &h).drop, SML_DROP_FUTURE_PHASE);
  h = result_at(&plan, 34); /* it proves the fences at 1 and 3, not that at 5 */
  assert_true(sml_worker_take_proof(w, &h, 5));
  assert_null(sml_worker_next_ended(w));
  assert_int_equal(sml_worker_on_packet(w, &h, NULL, 5).kind, SML_ACCEPT_RESULT);
  h = result_at(&plan, 32);
  assert_false(sml_worker_take_proof(w, &h, 6));
  assert_int_equal(sml_worker_on_packet(w, &h, NULL, 6).kind, SML_ACCEPT_RESULT);
  h = result_at(&plan, 36); /* so does a PENDING */
  h.type = SML_PACKET_PENDING;
  assert_int_equal(sml_worker_peek_packet(w, &h).drop, SML_DROP_FUTURE_PHASE);
  assert_true(sml_worker_take_proof(w, &h, 7));
  assert_null(sml_worker_next_ended(w));
  h.type = SML_PACKET_RESULT;
  assert_int_equal(sml_worker_on_packet(w, &h, NULL, 7).kind, SML_ACCEPT_RESULT);
  assert_null(sml_worker_find_violation(w));
  free(w);
}

/* The aggregator finds what a rank left out of a sum: when enough later ones have come, after some time, once. */
static void lost_updates_of_sums_show(void **state) {
  (void)state;
  struct sml_aggregator *a = make_one_way(3);
  struct sml_header h;
  for (uint32_t slot = 24; slot < 32; slot++) {
    expect(a, owned(a, SML_REDUCE_TO_OWNER, 2, 1, slot), SML_VERDICT_FIRST);
    if (slot != 26) expect(a, owned(a, SML_REDUCE_TO_OWNER, 2, 0, slot), SML_VERDICT_COMPLETE);
    sml_aggregator_begin_solicit(a, SML_NS_PER_S);
    assert_false(sml_aggregator_next_lost(a, &h));
  }
  sml_aggregator_begin_solicit(a, SML_NS_PER_S + 99 * SML_NS_PER_US);
  assert_false(sml_aggregator_next_lost(a, &h));
  for (uint32_t i = 0; i < 2; i++) {
    sml_aggregator_begin_solicit(a, SML_NS_PER_S + (1 + i) * 100 * SML_NS_PER_US);
    if (i == 0) assert_false(sml_aggregator_next_lost(a, &h));
  }
  assert_true(sml_aggregator_next_lost(a, &h));
  assert_true(h.type == SML_PACKET_PENDING && h.rank == 0 && h.slot == 26 && h.chunk == 2);
  assert_false(sml_aggregator_next_lost(a, &h));
  sml_aggregator_begin_solicit(a, 2 * SML_NS_PER_S);
  assert_false(sml_aggregator_next_lost(a, &h));
  expect(a, owned(a, SML_REDUCE_TO_OWNER, 2, 0, 26), SML_VERDICT_COMPLETE);
  assert_null(sml_aggregator_find_violation(a));
  free(a);
}

static void look_for_lost(struct sml_aggregator *a, uint64_t *now_ns) {
  for (uint32_t i = 0; i < 2; i++) {
    struct sml_header h;
    *now_ns += 100 * SML_NS_PER_US;
    sml_aggregator_begin_solicit(a, *now_ns);
    if (i == 0) assert_false(sml_aggregator_next_lost(a, &h));
  }
}

/* A fence to which nobody has contributed yet hides nothing behind it. That of a rank shows all that it sent before. */
static void fences_show_lost_updates(void **state) {
  (void)state;
  struct sml_aggregator *a = make_one_way(3);
  struct sml_header h;
  uint64_t now_ns = SML_NS_PER_S;
  for (uint32_t slot = 24; slot < 34; slot++) {
    const uint32_t owner = (slot - 8) % 3;
    for (uint32_t rank = 0; rank < 3; rank++)
      if (slot != 25 && rank != owner && !(slot == 28 && rank == 0))
        (void)sml_aggregator_decide(a, &(struct sml_header){.type = SML_PACKET_UPDATE,
                                                            .rank = (uint16_t)rank,
                                                            .slot = (uint16_t)slot,
                                                            .phase = SML_FIRST_PHASE,
                                                            .reducer = SML_REDUCE_TO_OWNER,
                                                            .chunk = owner,
                                                            .payload_bytes = CHUNK_BYTES});
  }
  look_for_lost(a, &now_ns);
  assert_true(sml_aggregator_next_lost(a, &h));
  assert_true(h.rank == 0 && h.slot == 28);
  assert_int_equal(sml_aggregator_latest_position(a, &h), 9);
  assert_false(sml_aggregator_next_lost(a, &h));
  /* What only one position came after is lost if that is a fence. */
  expect(a, owned(a, SML_REDUCE_TO_OWNER, 2, 1, 34), SML_VERDICT_FIRST);
  look_for_lost(a, &now_ns);
  assert_false(sml_aggregator_next_lost(a, &h));
  struct sml_header fence = update(a, 0, 35, SML_FIRST_PHASE);
  fence.wire = SML_LANES_UINT8;
  fence.reducer = SML_REDUCE_MAX;
  fence.payload_bytes = 1;
  fence.chunk = SML_FENCE;
  expect(a, fence, SML_VERDICT_FIRST);
  look_for_lost(a, &now_ns);
  assert_true(sml_aggregator_next_lost(a, &h));
  assert_true(h.rank == 0 && h.slot == 34);
  assert_int_equal(sml_aggregator_latest_position(a, &h), 11);
  assert_false(sml_aggregator_next_lost(a, &h));
  assert_null(sml_aggregator_find_violation(a));
  free(a);
}

/* Rank 2 hears that others wait for it at a fence: it asks about what it lacks before that, but not again and again. */
static void who_is_awaited_asks(void **state) {
  (void)state;
  static const uint64_t parts[] = {0, 20 * CHUNK_BYTES, 20 * CHUNK_BYTES, 20 * CHUNK_BYTES};
  const struct sml_operation_plan plan = {
      .num_elems = 20 * CHUNK_BYTES, .way = SML_REDUCE_COPY, .num_parts = 3, .parts = parts};
  struct sml_worker *w = make_receiver(parts);
  const uint8_t missing = 1 << 2, others = 1 << 1;
  struct sml_send send;
  struct sml_header h = result_at(&plan, 0);
  assert_int_equal(sml_worker_on_packet(w, &h, NULL, SML_NS_PER_S).kind, SML_ACCEPT_RESULT);
  sml_worker_next_send(w, SML_NS_PER_S, &send); /* its fence at 1; it lacks 2, and 4 behind the fence at 3 */
  assert_true(send.kind == SML_SEND_UPDATE && send.chunk.is_fence);
  h = result_at(&plan, 3);
  h.type = SML_PACKET_PENDING;
  h.flags = SML_FLAG_UNASKED;
  h.payload_bytes = 1;
  const uint64_t now_ns = SML_NS_PER_S + SML_NS_PER_MS;
  assert_int_equal(sml_worker_on_packet(w, &h, &others, now_ns).kind, SML_ACCEPT_PENDING);
  assert_int_equal(sml_worker_peek_send(w), UINT32_MAX);
  assert_int_equal(sml_worker_on_packet(w, &h, &missing, now_ns).kind, SML_ACCEPT_PENDING);
  sml_worker_next_send(w, now_ns, &send);
  assert_true(send.kind == SML_SEND_PROBE && send.header.slot == 8 + 2);
  assert_int_equal(sml_worker_on_packet(w, &h, &missing, now_ns + 1000).kind, SML_ACCEPT_PENDING);
  assert_int_equal(sml_worker_peek_send(w), UINT32_MAX);
  assert_null(sml_worker_find_violation(w));
  free(w);
}

/* Owner of what rank 2 gets: a PENDING shows a loss only by what left later and has arrived, or when all has left long
 * ago. */
static void what_left_later_shows_a_loss(void **state) {
  (void)state;
  static const uint64_t parts[] = {0, 0, 0, 20 * CHUNK_BYTES};
  const struct sml_operation_plan plan = {
      .num_elems = 20 * CHUNK_BYTES, .way = SML_REDUCE_COPY, .num_parts = 3, .parts = parts};
  struct sml_worker *w = make_receiver(parts);
  const uint8_t missing = 1 << 2;
  struct sml_send send;
  uint64_t now_ns = SML_NS_PER_S;
  for (uint32_t i = 0; i < 32; i++) sml_worker_next_send(w, now_ns, &send);
  struct sml_header h = result_at(&plan, 2);
  h.type = SML_PACKET_PENDING;
  h.flags = SML_FLAG_UNASKED;
  h.payload_bytes = 1;
  h.chunk = 1;
  sml_worker_set_leaving(w, now_ns + 20 * SML_NS_PER_MS);
  (void)sml_worker_on_packet(w, &h, &missing, now_ns += 10 * SML_NS_PER_MS);
  assert_int_equal(sml_worker_peek_send(w), UINT32_MAX);
  h.chunk = 3;
  (void)sml_worker_on_packet(w, &h, &missing, now_ns);
  sml_worker_next_send(w, now_ns, &send);
  assert_true(send.kind == SML_SEND_UPDATE && send.header.slot == 8 + 2);
  (void)sml_worker_on_packet(w, &h, &missing, now_ns); /* that left before the repeat */
  assert_int_equal(sml_worker_peek_send(w), UINT32_MAX);
  (void)sml_worker_on_packet(w, &h, &missing, now_ns += 14 * SML_NS_PER_MS); /* 4 ms after the repeat left */
  assert_int_equal(sml_worker_peek_send(w), UINT32_MAX);
  (void)sml_worker_on_packet(w, &h, &missing, now_ns += 2 * SML_NS_PER_MS);
  sml_worker_next_send(w, now_ns, &send);
  assert_true(send.kind == SML_SEND_UPDATE && send.header.slot == 8 + 2);
  free(w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(quiet_worlds_end),
      cmocka_unit_test(worlds_that_lose_end),
      cmocka_unit_test(worlds_that_lose_half_end),
      cmocka_unit_test(a_position_far_ahead_costs_nothing),
      cmocka_unit_test(any_one_packet),
      cmocka_unit_test(bytes_go_one_way),
      cmocka_unit_test(what_the_aggregator_refuses),
      cmocka_unit_test(a_lost_owner_is_found),
      cmocka_unit_test(later_results_prove_a_fence),
      cmocka_unit_test(lost_updates_of_sums_show),
      cmocka_unit_test(fences_show_lost_updates),
      cmocka_unit_test(who_is_awaited_asks),
      cmocka_unit_test(what_left_later_shows_a_loss),
  };
  return cmocka_run_group_tests_name("one_way", tests, NULL, NULL);
}
