/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

#include <stdlib.h>

#include "core/aggregator.h"
#include "quant/narrow.h"
#include "quant/quant.h"

struct job {
  struct sml_conform_binding binding;
  struct sml_aggregator *aggregator;
  bool is_departed[SML_CONFORM_MAX_RANKS];
};

struct reference {
  struct job jobs[SML_CONFORM_MAX_JOBS];
  uint32_t num_jobs;
  bool is_switch;
};

/* One datagram on its way through. */
struct taken {
  struct job *job;
  struct sml_header h;
  const uint8_t *payload;
  struct sml_conform_step *step;
};

static void *must(void *memory) {
  SML_ASSERT(memory != NULL);
  return memory;
}

static void add_job(struct reference *r, const struct sml_conform_vector *v, uint32_t index) {
  const struct sml_conform_job *as = &v->jobs[index];
  struct job *job = &r->jobs[index];
  const uint32_t check_bytes = as->is_checked ? SML_CHECK_BYTES : 0;
  const struct sml_aggregator_options options = {
      .world_size = as->num_ranks,
      .num_slots = as->num_slots,
      .is_one_way = as->has_one_way,
      .slot_base = (uint16_t)(as->num_slots * (2 + index) * (as->has_one_way ? SML_ALL_WINDOWS : 1)),
      .chunk_bytes = REFERENCE_CHUNK_BYTES - check_bytes,
      .is_checked = as->is_checked,
      .is_narrow = as->is_narrow,
      .first_phase = as->first_phase != 0 ? as->first_phase : SML_FIRST_PHASE,
      .first_chunk = 1000 * (index + 1),
      .is_switch_format = v->is_switch,
  };
  job->binding = (struct sml_conform_binding){.job = (uint16_t)(3 + index),
                                              .epoch = 0xdeadbeef + 100 * index,
                                              .first_phase = options.first_phase,
                                              .first_chunk = options.first_chunk,
                                              .world_size = options.world_size,
                                              .num_slots = options.num_slots,
                                              .chunk_bytes = options.chunk_bytes,
                                              .slot_base = options.slot_base,
                                              .is_checked = options.is_checked,
                                              .is_switch = v->is_switch};
  if (v->needs & SML_NEED_KEY) job->binding.seal = sml_seal_of_key(&(struct sml_key){11 + index, 13});
  for (uint32_t rank = 0; rank < SML_CONFORM_MAX_RANKS; rank++)
    job->binding.nonces[rank] = 7777 * (rank + 1) + index;
  const size_t num_bytes = sml_align_up(sml_aggregator_memsize(&options), 64);
  job->aggregator = sml_aggregator_init(must(aligned_alloc(64, num_bytes)), &options);
}

struct reference *reference_create(const struct sml_conform_vector *v) {
  struct reference *r = must(calloc(1, sizeof *r));
  r->num_jobs = v->num_jobs;
  r->is_switch = v->is_switch;
  for (uint32_t i = 0; i < v->num_jobs; i++) add_job(r, v, i);
  return r;
}

void reference_destroy(struct reference *r) {
  for (uint32_t i = 0; i < r->num_jobs; i++) free(r->jobs[i].aggregator);
  free(r);
}

const struct sml_conform_binding *reference_binding(const struct reference *r, uint32_t job) {
  return &r->jobs[job].binding;
}

/* ---- packets out, without the numbers that were chosen here ---- */

static struct sml_conform_packet *add_out(struct taken *t, enum sml_packet_type type, uint32_t socket) {
  SML_ASSERT(t->step->num_out < SML_CONFORM_MAX_OUT);
  struct sml_conform_packet *out = &t->step->out[t->step->num_out++];
  *out = (struct sml_conform_packet){.job = t->step->packet.job, .socket = socket};
  out->given = 1u << SML_FIELD_TYPE | 1u << SML_FIELD_FLAGS | 1u << SML_FIELD_RANK;
  out->fields[SML_FIELD_TYPE].number = type;
  return out;
}

static void set(struct sml_conform_packet *out, enum sml_conform_field field, enum sml_conform_symbol symbol,
                int64_t number) {
  out->given |= 1u << field;
  out->fields[field] = (struct sml_conform_value){.symbol = symbol, .number = number};
}

/* The shortest list that gives the payload when it is said again and again. */
static void set_payload(struct sml_conform_packet *out, const struct sml_conform_binding *b, const uint8_t *payload,
                        uint32_t num_bytes, uint32_t size) {
  const uint32_t num_values = num_bytes / size, full = b->chunk_bytes + (b->is_checked ? SML_CHECK_BYTES : 0);
  uint32_t period = 1;
  while (memcmp(payload, payload + period * size, num_bytes - period * size) != 0) period++;
  SML_ASSERT(period <= SML_CONFORM_MAX_VALUES && period <= num_values);
  out->num_values = period;
  for (uint32_t i = 0; i < period; i++) out->values[i] = size == 1 ? payload[i] : sml_load_be32(payload + 4 * i);
  if (num_bytes + 8 < full)
    set(out, SML_FIELD_BYTES, SML_SYMBOL_NONE, num_bytes);
  else
    set(out, SML_FIELD_BYTES, SML_SYMBOL_FULL, (int64_t)num_bytes - full);
}

/* As the packet that came says it, if it is that: it may have counted from the window's end. */
static void set_place(struct sml_conform_packet *out, const struct taken *t, const struct sml_header *h) {
  const struct sml_conform_binding *b = &t->job->binding;
  const struct sml_conform_packet *in = &t->step->packet;
  set(out, SML_FIELD_SLOT, SML_SYMBOL_NONE, h->slot - b->slot_base);
  set(out, SML_FIELD_PHASE, SML_SYMBOL_NONE, (int64_t)h->phase - b->first_phase);
  set(out, SML_FIELD_TAG, SML_SYMBOL_NONE, h->tag);
  if (h->slot == t->h.slot) out->fields[SML_FIELD_SLOT] = in->fields[SML_FIELD_SLOT];
  if (h->phase == t->h.phase) out->fields[SML_FIELD_PHASE] = in->fields[SML_FIELD_PHASE];
}

static void add_result(struct taken *t, const struct sml_header *h, const uint8_t *payload, uint32_t socket,
                       uint16_t flags) {
  const struct sml_conform_binding *b = &t->job->binding;
  struct sml_conform_packet *out = add_out(t, SML_PACKET_RESULT, socket);
  set(out, SML_FIELD_FLAGS, SML_SYMBOL_NONE, h->flags | flags);
  set(out, SML_FIELD_WIRE, SML_SYMBOL_NONE, h->wire);
  set(out, SML_FIELD_REDUCER, SML_SYMBOL_NONE, h->reducer);
  set_place(out, t, h);
  if (h->slot >= b->slot_base + b->num_slots) {
    const bool is_fence = h->chunk == SML_FENCE;
    set(out, SML_FIELD_CHUNK, is_fence ? SML_SYMBOL_MAX : SML_SYMBOL_OWNER, is_fence ? 0 : h->chunk);
  } else
    set(out, SML_FIELD_CHUNK, SML_SYMBOL_SLOTS, (int64_t)(h->chunk - b->first_chunk) - b->num_slots);
  set_payload(out, b, payload, h->payload_bytes, h->wire == SML_LANES_UINT8 ? 1 : 4);
}

static void add_pending(struct taken *t, uint64_t missing) {
  struct sml_conform_packet *out = add_out(t, SML_PACKET_PENDING, t->h.rank);
  set(out, SML_FIELD_RANK, SML_SYMBOL_NONE, t->h.rank);
  set_place(out, t, &t->h);
  out->has_missing = true;
  out->missing = missing;
}

/* ---- verdicts ---- */

static void say(struct taken *t, const char *verdict, const char *reason) {
  snprintf(t->step->verdict, sizeof t->step->verdict, "%s", verdict);
  snprintf(t->step->reason, sizeof t->step->reason, "%s", reason);
}

static void drop(struct taken *t, enum sml_drop reason) {
  say(t, "DROP", sml_drop_name(reason));
}

static void sum(struct taken *t, uint32_t cell, bool is_first) {
  void *values = sml_aggregator_values(t->job->aggregator, cell);
  const struct sml_quant_kernels *k = &sml_quant_scalar;
  static uint8_t wide[REFERENCE_CHUNK_BYTES];
  const uint32_t num_lanes = sml_lanes_bytes_of(&t->h) / 4;
  const uint8_t *lanes_in = t->payload;
  if (t->h.flags & SML_FLAG_NARROW) {
    sml_widen_lanes(wide, t->payload, num_lanes);
    lanes_in = wide;
  }
  if (t->h.wire == SML_LANES_UINT8) {
    if (is_first)
      memcpy(values, t->payload, t->h.payload_bytes);
    else
      k->max_uint8(values, t->payload, t->h.payload_bytes);
  } else if (is_first) {
    k->set_int32(values, lanes_in, num_lanes);
  } else if (t->h.wire == SML_LANES_INT32) {
    k->add_int32(values, lanes_in, num_lanes);
  } else {
    k->combine(values, lanes_in, num_lanes, (enum sml_combine)(t->h.wire << 4 | t->h.reducer));
  }
}

static void add_stored(struct taken *t, uint32_t cell, uint32_t socket, uint16_t flags) {
  static uint8_t payload[REFERENCE_CHUNK_BYTES];
  struct sml_header h;
  sml_aggregator_result_for(t->job->aggregator, cell, t->h.wire, t->h.reducer, &h);
  const void *values = sml_aggregator_values(t->job->aggregator, cell);
  if (h.wire == SML_LANES_UINT8)
    memcpy(payload, values, h.payload_bytes);
  else
    sml_quant_scalar.pack_int32(payload, values, h.payload_bytes / 4u);
  add_result(t, &h, payload, socket, flags);
}

/* To all, or to the chunk's receivers: those that do not contribute to it. */
static void add_completed(struct taken *t, uint32_t cell) {
  if (!sml_has_owner(t->h.reducer)) {
    add_stored(t, cell, SML_CONFORM_ALL, 0);
    return;
  }
  for (uint32_t rank = 0; rank < t->job->binding.world_size; rank++)
    if (!sml_contributes(t->h.reducer, t->h.chunk, rank)) add_stored(t, cell, rank, 0);
}

static void report(struct taken *t, const char *verdict, enum sml_drop reason, uint32_t first_rank,
                   uint32_t num_ranks) {
  say(t, verdict, sml_drop_name(reason));
  t->step->report = num_ranks;
  t->step->reported[0] = t->h.rank;
  t->step->reported[1] = first_rank;
}

static void decide(struct taken *t) {
  const struct sml_decision d = sml_aggregator_decide(t->job->aggregator, &t->h);
  const char *needless = t->h.type == SML_PACKET_UPDATE ? sml_drop_name(SML_DROP_NEEDLESS) : "";
  uint64_t missing = 0;
  switch (d.verdict) {
    case SML_VERDICT_DROP:
      drop(t, d.drop);
      break;
    case SML_VERDICT_FIRST:
    case SML_VERDICT_ADD:
      sum(t, d.cell, d.verdict == SML_VERDICT_FIRST);
      say(t, d.verdict == SML_VERDICT_FIRST ? "FIRST" : "ADD", "");
      break;
    case SML_VERDICT_COMPLETE:
      sum(t, d.cell, d.is_first);
      say(t, "COMPLETE", "");
      add_completed(t, d.cell);
      break;
    case SML_VERDICT_REPEAT:
      say(t, "REPEAT", needless);
      add_stored(t, d.cell, t->h.rank, SML_FLAG_RETRANSMISSION);
      break;
    case SML_VERDICT_PENDING:
      say(t, "PENDING", needless);
      sml_aggregator_missing_for(t->job->aggregator, &t->h, &missing);
      add_pending(t, missing);
      break;
    case SML_VERDICT_MISMATCH:
      report(t, "MISMATCH", d.drop, d.first_rank, 2);
      break;
    case SML_VERDICT_JUMP:
      report(t, "JUMP", d.drop, 0, 1);
      break;
  }
}

/* ---- what comes before ---- */

static void take_hello(struct taken *t) {
  const struct sml_conform_packet *in = &t->step->packet;
  const uint64_t nonce = t->job->binding.nonces[t->h.rank];
  if (t->h.payload_bytes < 8 || sml_load_be64(t->payload) != nonce) {
    drop(t, SML_DROP_BAD_NONCE);
  } else if (in->socket != t->h.rank) {
    drop(t, SML_DROP_WRONG_SOURCE);
  } else {
    say(t, "ECHO", "");
    struct sml_conform_packet *out = add_out(t, SML_PACKET_HELLO, in->socket);
    set(out, SML_FIELD_RANK, SML_SYMBOL_NONE, t->h.rank);
    out->has_nonce = true;
    set(out, SML_FIELD_BYTES, SML_SYMBOL_NONE, t->h.payload_bytes);
  }
}

/* Who asks about a job that is not there may be told so: at most so many a second are. */
static void add_error(struct taken *t) {
  const struct sml_conform_packet *in = &t->step->packet;
  if (t->h.type != SML_PACKET_UPDATE && t->h.type != SML_PACKET_PROBE) return;
  struct sml_conform_packet *out = add_out(t, SML_PACKET_ERROR, in->socket);
  set(out, SML_FIELD_RANK, SML_SYMBOL_NONE, t->h.rank);
  out->is_optional = true;
  if (in->given & 1u << SML_FIELD_JOB) set(out, SML_FIELD_JOB, SML_SYMBOL_UNKNOWN, 0);
  if (in->given & 1u << SML_FIELD_EPOCH)
    set(out, SML_FIELD_EPOCH, SML_SYMBOL_NONE, in->fields[SML_FIELD_EPOCH].number);
}

static struct job *find_job(struct reference *r, const struct sml_header *h) {
  for (uint32_t i = 0; i < r->num_jobs; i++)
    if (r->jobs[i].binding.job == h->job) return &r->jobs[i];
  return NULL;
}

static void judge(struct reference *r, struct taken *t, const uint8_t *frame) {
  const struct sml_conform_packet *in = &t->step->packet;
  t->job = find_job(r, &t->h);
  if (!t->job) {
    drop(t, SML_DROP_UNKNOWN_JOB);
    add_error(t);
    return;
  }
  const struct sml_conform_binding *b = &t->job->binding;
  const bool is_keyed = (t->h.flags & SML_FLAG_KEYED) != 0;
  t->payload = frame + sml_head_bytes_of(&t->h);
  if (b->epoch != t->h.epoch)
    drop(t, SML_DROP_WRONG_EPOCH);
  else if (is_keyed != b->seal.is_keyed)
    drop(t, SML_DROP_BAD_KEY);
  else if (!(r->is_switch && sml_wire_is_without_crc(&t->h)) && !sml_wire_is_authentic(frame, &t->h, &b->seal))
    drop(t, is_keyed ? SML_DROP_BAD_KEY : SML_DROP_BAD_CRC);
  else if (t->h.rank >= b->world_size)
    drop(t, SML_DROP_BAD_RANK);
  else if (t->job->is_departed[t->h.rank])
    drop(t, SML_DROP_DEPARTED_RANK);
  else if (t->h.type == SML_PACKET_HELLO)
    take_hello(t);
  else if (t->h.type != SML_PACKET_UPDATE && t->h.type != SML_PACKET_PROBE)
    drop(t, SML_DROP_BAD_TYPE);
  else if (in->socket != t->h.rank || &r->jobs[in->job] != t->job)
    drop(t, SML_DROP_WRONG_SOURCE);
  else
    decide(t);
}

void reference_take(struct reference *r, struct sml_conform_step *step) {
  static uint8_t frame[SML_CONFORM_MAX_FRAME_BYTES];
  struct taken t = {.step = step};
  const uint32_t num_bytes = sml_conform_pack(&step->packet, &r->jobs[step->packet.job].binding, frame);
  step->num_out = step->report = 0;
  SML_ASSERT(num_bytes > 0 || step->packet.cut_bytes > 0);
  const enum sml_wire_error error = sml_wire_open(frame, num_bytes, &t.h);
  if (error != SML_WIRE_OK)
    drop(&t, sml_drop_of_wire(error));
  else
    judge(r, &t, frame);
}

void reference_leave(struct reference *r, struct sml_conform_step *step) {
  r->jobs[step->packet.job].is_departed[step->packet.socket] = true;
  snprintf(step->verdict, sizeof step->verdict, "LEFT");
}
