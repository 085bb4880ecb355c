/* SPDX-License-Identifier: Apache-2.0 */
#include "switch_cells.h"

#include <stdlib.h>

#include "core/drop.h"

struct cell {
  uint32_t phase, seen, tag, first_rank, grant; /* phase 0: never used */
  uint8_t wire, reducer;
  uint8_t *values; /* lanes as they are sent */
};

struct switch_cells {
  struct sml_conform_binding binding;
  uint32_t payload_bytes, full, cursor;
  struct cell *cells;
  uint8_t *values;
};

struct switch_cells *switch_cells_create(const struct sml_conform_binding *b) {
  struct switch_cells *s = calloc(1, sizeof *s);
  SML_ASSERT(s != NULL && b->world_size <= 30);
  s->binding = *b;
  s->payload_bytes = b->chunk_bytes + (b->is_checked ? SML_CHECK_BYTES : 0);
  s->full = (1u << b->world_size) - 1;
  s->cursor = b->first_chunk + b->num_slots;
  s->cells = calloc(2 * b->num_slots, sizeof *s->cells);
  s->values = calloc(2 * b->num_slots, s->payload_bytes);
  SML_ASSERT(s->cells != NULL && s->values != NULL);
  for (uint32_t i = 0; i < 2 * b->num_slots; i++) s->cells[i].values = s->values + (size_t)i * s->payload_bytes;
  return s;
}

void switch_cells_destroy(struct switch_cells *s) {
  if (!s) return;
  free(s->cells);
  free(s->values);
  free(s);
}

static struct switch_decision drop(enum sml_drop reason) {
  return (struct switch_decision){.verdict = "DROP", .reason = sml_drop_name(reason)};
}

static struct switch_decision answer(const struct switch_cells *s, const struct cell *c, const struct sml_header *h,
                                     const char *verdict) {
  const bool is_checked = s->binding.is_checked && c->wire == SML_LANES_INT32;
  struct switch_decision d = {.verdict = verdict, .reason = "", .values = c->values, .first_rank = c->first_rank};
  d.result = *h;
  d.result.wire = c->wire;
  d.result.reducer = c->reducer;
  d.result.payload_bytes = (uint16_t)s->payload_bytes;
  d.result.flags = is_checked ? SML_FLAG_CHECKED : 0;
  d.result.chunk = c->grant;
  d.missing = s->full & ~(c->phase == h->phase ? c->seen : 0);
  return d;
}

static void add_lanes(struct cell *c, const uint8_t *payload, uint32_t num_bytes) {
  for (uint32_t i = 0; i < num_bytes; i += 4) {
    const uint32_t is = sml_load_be32(c->values + i), more = sml_load_be32(payload + i);
    sml_store_be32(c->values + i, c->reducer == SML_REDUCE_MAX ? sml_max_u32(is, more) : is + more);
  }
}

static struct switch_decision contribute(struct switch_cells *s, struct cell *c, const struct sml_header *h,
                                         const uint8_t *payload) {
  const bool is_first = h->phase != c->phase;
  if (is_first) {
    uint8_t *values = c->values;
    *c = (struct cell){.phase = h->phase,
                       .tag = h->tag,
                       .first_rank = h->rank,
                       .wire = h->wire,
                       .reducer = h->reducer,
                       .values = values};
    memset(values, 0, s->payload_bytes);
  }
  c->seen |= 1u << h->rank;
  add_lanes(c, payload, s->payload_bytes);
  if (c->seen != s->full) return answer(s, c, h, is_first ? "FIRST" : "ADD");
  c->grant = s->cursor++;
  return answer(s, c, h, "COMPLETE");
}

struct switch_decision switch_cells_decide(struct switch_cells *s, const struct sml_header *h,
                                           const uint8_t *payload) {
  const uint32_t slot = (uint32_t)h->slot - s->binding.slot_base;
  const bool is_update = h->type == SML_PACKET_UPDATE;
  if (slot >= s->binding.num_slots) return drop(SML_DROP_BAD_SLOT);
  if (h->payload_bytes != (is_update ? s->payload_bytes : 0)) return drop(SML_DROP_BAD_LENGTH);
  if (h->flags & SML_FLAG_BY_GRANT) return drop(SML_DROP_STALE_PHASE);
  struct cell *c = &s->cells[slot * 2 + (h->phase & 1)];
  if (h->phase < s->binding.first_phase || h->phase < c->phase) return drop(SML_DROP_STALE_PHASE);
  if (h->phase > c->phase) return is_update ? contribute(s, c, h, payload) : answer(s, c, h, "PENDING");
  struct switch_decision d = answer(s, c, h, "PENDING");
  d.reason = is_update ? sml_drop_name(SML_DROP_NEEDLESS) : "";
  if (c->tag != h->tag)
    d.verdict = "MISMATCH";
  else if (c->seen == s->full)
    d.verdict = "REPEAT";
  else if (is_update && !(c->seen >> h->rank & 1u))
    d = contribute(s, c, h, payload);
  else if (is_update && !(h->flags & SML_FLAG_RETRANSMISSION))
    d = drop(SML_DROP_DUPLICATE);
  return d;
}

enum sml_wire_error switch_open(const uint8_t *frame, uint32_t num_bytes, struct sml_header *h) {
  uint8_t copy[SML_HEADER_BYTES];
  if (num_bytes < SML_HEADER_BYTES) return SML_WIRE_TRUNCATED;
  memcpy(copy, frame, sizeof copy);
  const uint32_t rest_bytes = num_bytes - SML_HEADER_BYTES, claimed_bytes = sml_load_be16(frame + 10);
  const bool is_codes = frame[1] == (SML_CONFORM_LANES_CODES << 4 | SML_REDUCE_MAX);
  const bool is_bytes = frame[1] == (SML_LANES_UINT8 << 4 | SML_REDUCE_MAX);
  const bool is_keyed = (frame[15] & SML_FLAG_KEYED) != 0;
  if (frame[0] >> 4 == SML_WIRE_VERSION && rest_bytes != claimed_bytes + (is_keyed ? SML_KEYED_BYTES : 0))
    return rest_bytes < claimed_bytes + (is_keyed ? SML_KEYED_BYTES : 0) ? SML_WIRE_TRUNCATED : SML_WIRE_OVERLONG;
  /* All else is as ever: a header alone, with the codes' place in it taken by bytes, and a checksum. */
  if (is_codes) copy[1] = SML_LANES_UINT8 << 4 | SML_REDUCE_MAX;
  copy[15] &= (uint8_t)~SML_FLAG_KEYED;
  sml_store_be16(copy + 10, 0);
  sml_store_be32(copy + 28, 0);
  sml_store_be32(copy + 28, sml_crc32c(0, copy, sizeof copy));
  const enum sml_wire_error error = is_bytes ? SML_WIRE_BAD_TYPE : sml_wire_open(copy, sizeof copy, h);
  if (error != SML_WIRE_OK) return error;
  h->wire = frame[1] >> 4;
  h->payload_bytes = (uint16_t)claimed_bytes;
  h->flags = sml_load_be16(frame + 14);
  return SML_WIRE_OK;
}
