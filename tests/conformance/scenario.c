/* SPDX-License-Identifier: Apache-2.0 */
#include "scenario.h"

#include <inttypes.h>

/* ---- text ---- */

static void write_value(FILE *out, uint32_t field, struct sml_conform_value v) {
  if (v.symbol == SML_SYMBOL_NONE)
    fprintf(out, field == SML_FIELD_TAG ? "\"0x%08" PRIx64 "\"" : "%" PRId64, v.number);
  else if (v.number == 0)
    fprintf(out, "\"%s\"", sml_conform_symbol_names[v.symbol]);
  else
    fprintf(out, "\"%s%+" PRId64 "\"", sml_conform_symbol_names[v.symbol], v.number);
}

static void write_flags(FILE *out, uint32_t flags) {
  const char *comma = "";
  fputc('[', out);
  for (uint32_t bit = 0; bit < 16; bit++) {
    if (!(flags >> bit & 1u)) continue;
    if (bit < SML_ARRAY_LEN(sml_conform_flag_names))
      fprintf(out, "%s\"%s\"", comma, sml_conform_flag_names[bit]);
    else
      fprintf(out, "%s%u", comma, 1u << bit);
    comma = ",";
  }
  fputc(']', out);
}

static void write_socket(FILE *out, const char *key, uint32_t socket) {
  if (socket == SML_CONFORM_STRANGER)
    fprintf(out, "\"%s\":\"stranger\"", key);
  else if (socket == SML_CONFORM_ALL)
    fprintf(out, "\"%s\":\"all\"", key);
  else
    fprintf(out, "\"%s\":%u", key, socket);
}

static void write_payload(FILE *out, const struct sml_conform_packet *p) {
  const char *comma = "";
  if (p->num_values > 0) fprintf(out, ",\"values\":[");
  for (uint32_t i = 0; i < p->num_values; i++) fprintf(out, "%s%u", i > 0 ? "," : "", p->values[i]);
  if (p->num_values > 0) fputc(']', out);
  if (p->has_missing) fprintf(out, ",\"missing\":[");
  for (uint32_t rank = 0; p->has_missing && rank < SML_CONFORM_MAX_RANKS; rank++) {
    if (!(p->missing >> rank & 1u)) continue;
    fprintf(out, "%s%u", comma, rank);
    comma = ",";
  }
  if (p->has_missing) fputc(']', out);
  if (p->has_nonce) fprintf(out, ",\"nonce\":%" PRId64, p->nonce);
}

static void write_packet(FILE *out, const struct sml_conform_packet *p) {
  const int64_t type = p->fields[SML_FIELD_TYPE].number;
  if (type > 0 && type < 8)
    fprintf(out, "\"type\":\"%s\"", sml_conform_type_names[type]);
  else
    fprintf(out, "\"type\":%" PRId64, type);
  for (uint32_t field = 0; field < SML_NUM_FIELDS; field++) {
    if (field == SML_FIELD_TYPE || !(p->given >> field & 1u)) continue;
    fprintf(out, ",\"%s\":", sml_conform_field_names[field]);
    if (field == SML_FIELD_FLAGS)
      write_flags(out, (uint32_t)p->fields[field].number);
    else
      write_value(out, field, p->fields[field]);
  }
  write_payload(out, p);
  if (p->is_crc_wrong) fprintf(out, ",\"crc\":\"wrong\"");
  if (p->is_mac_wrong) fprintf(out, ",\"mac\":\"wrong\"");
  if (p->is_key_missing || p->is_key_other) fprintf(out, ",\"key\":\"%s\"", p->is_key_other ? "other" : "none");
  if (p->cut_bytes > 0) fprintf(out, ",\"cut\":%u", p->cut_bytes);
  if (p->extra_bytes > 0) fprintf(out, ",\"extra\":%u", p->extra_bytes);
  if (p->is_optional) fprintf(out, ",\"optional\":true");
}

static void write_step(FILE *out, const struct sml_conform_step *step) {
  fputc('{', out);
  if (step->packet.job > 0) fprintf(out, "\"job\":%u,", step->packet.job);
  write_socket(out, step->is_leave ? "leave" : "from", step->packet.socket);
  if (!step->is_leave) {
    fprintf(out, ",\"send\":{");
    write_packet(out, &step->packet);
    fputc('}', out);
  }
  fprintf(out, ",\"verdict\":\"%s\"", step->verdict);
  if (step->reason[0]) fprintf(out, ",\"reason\":\"%s\"", step->reason);
  for (uint32_t i = 0; i < step->report; i++)
    fprintf(out, "%s%u%s", i == 0 ? ",\"report\":[" : ",", step->reported[i], i + 1 == step->report ? "]" : "");
  fprintf(out, ",\"out\":[");
  for (uint32_t i = 0; i < step->num_out; i++) {
    fprintf(out, "%s{", i > 0 ? "," : "");
    write_socket(out, "to", step->out[i].socket);
    fputc(',', out);
    write_packet(out, &step->out[i]);
    fputc('}', out);
  }
  fprintf(out, "]}\n");
}

static void write_vector(FILE *out, const struct sml_conform_vector *v) {
  fprintf(out, "{\"vector\":\"%s\",\"topic\":\"%s\",\"family\":\"%s\",\"about\":\"%s\",\"needs\":[", v->name,
          v->topic, v->is_switch ? "switch" : "ordinary", v->about);
  const char *comma = "";
  for (uint32_t i = 0; i < SML_NUM_NEEDS; i++) {
    if (!(v->needs >> i & 1u)) continue;
    fprintf(out, "%s\"%s\"", comma, sml_conform_need_names[i]);
    comma = ",";
  }
  fprintf(out, "],\"jobs\":[");
  for (uint32_t i = 0; i < v->num_jobs; i++) {
    const struct sml_conform_job *job = &v->jobs[i];
    fprintf(out, "%s{\"ranks\":%u,\"slots\":%u", i > 0 ? "," : "", job->num_ranks, job->num_slots);
    if (job->is_checked) fprintf(out, ",\"checked\":true");
    if (job->is_narrow) fprintf(out, ",\"narrow\":true");
    if (job->has_one_way) fprintf(out, ",\"one_way\":true");
    if (job->first_phase != 0) fprintf(out, ",\"first_phase\":%u", job->first_phase);
    fputc('}', out);
  }
  fprintf(out, "]}\n");
}

/* ---- scenarios ---- */

void begin(struct scenario *s, const char *topic, const char *name, const char *about, struct shape shape) {
  struct sml_conform_vector *v = &s->vector;
  *v = (struct sml_conform_vector){
      .is_switch = s->is_switch, .needs = shape.needs, .num_jobs = shape.num_ranks_1 > 0 ? 2 : 1};
  snprintf(v->name, sizeof v->name, "%s", name);
  snprintf(v->topic, sizeof v->topic, "%s", topic);
  snprintf(v->about, sizeof v->about, "%s", about);
  for (uint32_t i = 0; i < v->num_jobs; i++)
    v->jobs[i] = (struct sml_conform_job){.num_ranks = i == 0 ? shape.num_ranks : shape.num_ranks_1,
                                          .num_slots = shape.num_slots != 0 ? shape.num_slots : 4,
                                          .is_checked = shape.is_checked,
                                          .is_narrow = shape.is_narrow,
                                          .has_one_way = shape.has_one_way,
                                          .first_phase = shape.first_phase};
  if (shape.first_phase != 0) v->needs |= SML_NEED_FIRST_PHASE;
  if (shape.is_narrow) v->needs |= SML_NEED_NARROW;
  if (shape.has_one_way) v->needs |= SML_NEED_ONE_WAY;
  write_vector(s->out, v);
  s->reference = reference_create(v);
}

void end(struct scenario *s) {
  reference_destroy(s->reference);
  s->reference = NULL;
}

const struct sml_conform_step *put(struct scenario *s, struct sml_conform_packet packet) {
  s->step = (struct sml_conform_step){.packet = packet};
  reference_take(s->reference, &s->step);
  write_step(s->out, &s->step);
  return &s->step;
}

bool would_end_job(struct scenario *s, struct sml_conform_packet packet) {
  /* Only updates that are no mismatch change anything, and only those are no answer to be asked for again. */
  struct sml_conform_step step = {.packet = packet};
  step.packet.fields[SML_FIELD_TYPE].number = SML_PACKET_PROBE;
  step.packet.num_values = 0;
  step.packet.given &= ~(1u << SML_FIELD_BYTES);
  step.packet.fields[SML_FIELD_FLAGS].number = 0;
  step.packet.fields[SML_FIELD_WIRE].number = step.packet.fields[SML_FIELD_REDUCER].number = 0;
  reference_take(s->reference, &step);
  return strcmp(step.verdict, "MISMATCH") == 0 || strcmp(step.verdict, "JUMP") == 0;
}

void leave(struct scenario *s, uint32_t rank) {
  s->step = (struct sml_conform_step){.is_leave = true, .packet.socket = rank};
  reference_leave(s->reference, &s->step);
  write_step(s->out, &s->step);
}

/* ---- packets ---- */

static uint32_t tag_of(int64_t slot, int64_t phase) {
  return (uint32_t)sml_mix64((uint64_t)slot * 1000003 + (uint64_t)phase + 1);
}

struct sml_conform_packet with(struct sml_conform_packet p, enum sml_conform_field field, int64_t number) {
  return with_symbol(p, field, SML_SYMBOL_NONE, number);
}

struct sml_conform_packet with_symbol(struct sml_conform_packet p, enum sml_conform_field field,
                                      enum sml_conform_symbol symbol, int64_t number) {
  p.given |= 1u << field;
  p.fields[field] = (struct sml_conform_value){.symbol = symbol, .number = number};
  return p;
}

static struct sml_conform_packet packet_of(enum sml_packet_type type, uint32_t rank, int64_t slot, int64_t phase) {
  struct sml_conform_packet p = {.socket = rank};
  p = with(p, SML_FIELD_TYPE, type);
  p = with(p, SML_FIELD_SLOT, slot);
  p = with(p, SML_FIELD_PHASE, phase);
  return with(p, SML_FIELD_TAG, tag_of(slot, phase));
}

/* Many elements, so that no lane is taken for another, where there are few ranks. */
static void fill(const struct scenario *s, struct sml_conform_packet *p, int64_t slot, int64_t phase,
                 uint32_t mask) {
  const uint32_t num_ranks = s->vector.jobs[0].num_ranks;
  p->num_values = num_ranks <= 4 ? 5 : 3;
  for (uint32_t i = 0; i < p->num_values; i++)
    p->values[i] = (uint32_t)sml_mix64(((uint64_t)tag_of(slot, phase) << 16) + p->socket * 64 + i) & mask;
}

struct sml_conform_packet update(const struct scenario *s, uint32_t rank, int64_t slot, int64_t phase) {
  struct sml_conform_packet p = packet_of(SML_PACKET_UPDATE, rank, slot, phase);
  if (s->vector.jobs[0].is_checked) p = with(p, SML_FIELD_FLAGS, SML_FLAG_CHECKED);
  p = with_symbol(p, SML_FIELD_BYTES, SML_SYMBOL_FULL, 0);
  fill(s, &p, slot, phase, UINT32_MAX);
  return p;
}

struct sml_conform_packet codes(const struct scenario *s, uint32_t rank, int64_t slot, int64_t phase) {
  struct sml_conform_packet p = packet_of(SML_PACKET_UPDATE, rank, slot, phase);
  const bool is_shorter = s->vector.jobs[0].is_checked && !s->is_switch;
  p = with(p, SML_FIELD_WIRE, s->is_switch ? SML_LANES_UINT32 : SML_LANES_UINT8);
  p = with(p, SML_FIELD_REDUCER, SML_REDUCE_MAX);
  p = with_symbol(p, SML_FIELD_BYTES, SML_SYMBOL_FULL, is_shorter ? -(int64_t)SML_CHECK_BYTES : 0);
  fill(s, &p, slot, phase, 0xff);
  return p;
}

struct sml_conform_packet probe(const struct scenario *s, uint32_t rank, int64_t slot, int64_t phase) {
  (void)s;
  return packet_of(SML_PACKET_PROBE, rank, slot, phase);
}

struct sml_conform_packet flagged(struct sml_conform_packet p, uint32_t flags) {
  return with(p, SML_FIELD_FLAGS, p.fields[SML_FIELD_FLAGS].number | flags);
}

struct sml_conform_packet of_job(struct sml_conform_packet p, uint32_t job) {
  p.job = job;
  return p;
}

struct sml_conform_packet via(struct sml_conform_packet p, uint32_t socket) {
  if (!(p.given & 1u << SML_FIELD_RANK)) p = with(p, SML_FIELD_RANK, p.socket);
  p.socket = socket;
  return p;
}

void put_all(struct scenario *s, uint32_t first, int64_t slot, int64_t phase) {
  const uint32_t n = s->vector.jobs[0].num_ranks;
  for (uint32_t i = 0; i < n; i++) put(s, update(s, (first + i) % n, slot, phase));
}
