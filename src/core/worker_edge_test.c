/* SPDX-License-Identifier: Apache-2.0
 * What happens to a worker's slot between the decision to ask about it and the question. */
#include "core/worker.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define CHUNK_BYTES 32u
#define MS SML_NS_PER_MS

static const struct sml_worker_options OPTIONS = {.job = 5, .epoch = 77, .rank = 1, .world_size = 3, .num_lanes = 1,
                                                  .num_slots = 2, .slot_base = 8, .chunk_bytes = CHUNK_BYTES,
                                                  .first_phase = SML_FIRST_PHASE, .num_operations = 4, .seed = 1};
static int cookie;

/* Both slots sent, 10 ms apart; the later one's result is back, so the earlier one is to be asked about. */
static struct sml_worker *make_overtaken(struct sml_send *first_out) {
  const struct sml_operation_plan plan = {.num_elems = 2 * CHUNK_BYTES / 4, .type = 1};
  void *mem = aligned_alloc(64, sml_align_up(sml_worker_memsize(&OPTIONS), 64));
  assert_non_null(mem);
  struct sml_worker *w = sml_worker_init(mem, &OPTIONS);
  struct sml_send second;
  assert_true(sml_worker_submit(w, &plan, NULL, &cookie, 0));
  sml_worker_next_send(w, MS, first_out);
  sml_worker_next_send(w, 11 * MS, &second);
  struct sml_header h = second.header;
  h.type = SML_PACKET_RESULT;
  h.chunk = 2;
  assert_int_equal(sml_worker_on_packet(w, &h, NULL, 12 * MS).kind, SML_ACCEPT_RESULT);
  assert_true(sml_worker_next_deadline(w) <= 12 * MS);
  sml_worker_on_timer(w, 12 * MS);
  assert_int_equal(sml_worker_peek_send(w), 0);
  return w;
}

static struct sml_accept answer_pending(struct sml_worker *w, const struct sml_send *update, uint8_t missing) {
  struct sml_header h = update->header;
  h.type = SML_PACKET_PENDING;
  h.payload_bytes = 1;
  return sml_worker_on_packet(w, &h, &missing, 12 * MS);
}

static uint64_t asked_again_after(struct sml_worker *w) {
  struct sml_send probe;
  sml_worker_next_send(w, 12 * MS, &probe);
  assert_int_equal(probe.kind, SML_SEND_PROBE);
  assert_null(sml_worker_find_violation(w));
  return sml_worker_next_deadline(w) - 12 * MS;
}

/* PENDING for others, ahead of the question that was decided on: it is still asked, but then rarely. */
static void pending_ahead_of_the_question_slows_the_next_one(void **state) {
  (void)state;
  struct sml_send update;
  struct sml_worker_view view;
  struct sml_worker *w = make_overtaken(&update);
  sml_worker_view(w, &view);
  const uint64_t unanswered_ns = asked_again_after(w);
  free(w);
  w = make_overtaken(&update);
  assert_int_equal(answer_pending(w, &update, 1 << 2).kind, SML_ACCEPT_PENDING);
  assert_null(sml_worker_find_violation(w));
  const uint64_t answered_ns = asked_again_after(w);
  assert_true(unanswered_ns >= view.rto_ns && answered_ns >= unanswered_ns + view.rto_ns / 2);
  sml_worker_view(w, &view);
  assert_true(view.num_missing == 1 && view.missing[0] == 2);
  free(w);
}

/* PENDING because its own update was lost, ahead of the question: the question, then the update, each once. */
static void own_loss_ahead_of_the_question_is_repaired_once(void **state) {
  (void)state;
  struct sml_send update, repeat;
  struct sml_worker *w = make_overtaken(&update);
  assert_int_equal(answer_pending(w, &update, 1 << 1).kind, SML_ACCEPT_PENDING);
  assert_int_equal(answer_pending(w, &update, 1 << 1).kind, SML_ACCEPT_PENDING);
  (void)asked_again_after(w);
  sml_worker_next_send(w, 12 * MS, &repeat);
  assert_int_equal(repeat.kind, SML_SEND_UPDATE);
  assert_int_equal(repeat.header.flags, SML_FLAG_RETRANSMISSION);
  assert_true(repeat.header.slot == update.header.slot && repeat.header.phase == update.header.phase);
  assert_true(repeat.header.chunk == update.header.chunk && repeat.header.tag == update.header.tag);
  assert_int_equal(sml_worker_peek_send(w), UINT32_MAX);
  assert_null(sml_worker_find_violation(w));
  free(w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pending_ahead_of_the_question_slows_the_next_one),
      cmocka_unit_test(own_loss_ahead_of_the_question_is_repaired_once),
  };
  return cmocka_run_group_tests_name("worker_edge", tests, NULL, NULL);
}
