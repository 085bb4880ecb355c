/* SPDX-License-Identifier: Apache-2.0
 * For tests: one worker, with the test in the place of the aggregator. */
#pragma once

#include "core/worker.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/rto.h"

#define CHUNK_BYTES 32u
#define CHUNK_ELEMS (CHUNK_BYTES / 4)
#define NUM_RANKS 3u

static struct sml_worker_options OPTIONS = {.job = 5,
                                            .epoch = 77,
                                            .rank = 1,
                                            .world_size = NUM_RANKS,
                                            .num_lanes = 1,
                                            .num_slots = 4,
                                            .slot_base = 8,
                                            .chunk_bytes = CHUNK_BYTES,
                                            .first_phase = SML_FIRST_PHASE,
                                            .num_operations = 4,
                                            .seed = 1};

static inline struct sml_worker *make(const struct sml_worker_options *options) {
  const size_t num_bytes = sml_worker_memsize(options);
  void *mem = aligned_alloc(64, sml_align_up(num_bytes, 64));
  assert_non_null(mem);
  memset(mem, 0xa5, num_bytes);
  return sml_worker_init(mem, options);
}

static inline struct sml_operation_plan ints(uint64_t number, uint64_t num_chunks) {
  return (struct sml_operation_plan){.number = number, .num_elems = num_chunks * CHUNK_ELEMS, .type = 1};
}

static inline struct sml_operation_plan floats(uint64_t number, uint64_t num_chunks) {
  return (struct sml_operation_plan){
      .number = number, .num_elems = num_chunks * CHUNK_ELEMS, .block_elems = CHUNK_ELEMS};
}

static inline void submit(struct sml_worker *w, const struct sml_operation_plan plan, uint8_t *ready, void *cookie) {
  assert_true(sml_worker_can_submit(w));
  assert_true(sml_worker_submit(w, &plan, ready, cookie, 0));
}

static inline struct sml_send expect_send(struct sml_worker *w, uint64_t now_ns, enum sml_send_kind kind) {
  struct sml_send send;
  const uint32_t peeked = sml_worker_peek_send(w);
  sml_worker_next_send(w, now_ns, &send);
  assert_int_equal(send.kind, kind);
  assert_int_equal(peeked, kind == SML_SEND_NONE ? UINT32_MAX : send.header.payload_bytes);
  return send;
}

/* The aggregator's answer to an update. */
static inline struct sml_header result_of(const struct sml_send *send, uint32_t grant) {
  struct sml_header h = send->header;
  h.type = SML_PACKET_RESULT;
  h.payload_bytes = (uint16_t)send->chunk.payload_bytes;
  h.flags = 0;
  h.chunk = grant;
  return h;
}

static inline struct sml_header pending_of(const struct sml_send *send) {
  struct sml_header h = send->header;
  h.type = SML_PACKET_PENDING;
  h.payload_bytes = 1;
  return h;
}

static inline struct sml_accept expect_accept(struct sml_worker *w, const struct sml_header h, uint8_t missing,
                                              uint64_t now_ns, enum sml_accept_kind kind) {
  const struct sml_accept a = sml_worker_on_packet(w, &h, &missing, now_ns);
  assert_int_equal(a.kind, kind);
  return a;
}

static inline void expect_drop(struct sml_worker *w, const struct sml_header h, enum sml_drop reason) {
  const struct sml_accept a = expect_accept(w, h, 0xff, 0, SML_ACCEPT_DROP);
  assert_int_equal(a.drop, reason);
}

static inline struct sml_worker_view view_of(const struct sml_worker *w) {
  struct sml_worker_view view;
  sml_worker_view(w, &view);
  return view;
}
