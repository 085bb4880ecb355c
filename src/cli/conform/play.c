/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/conform/conform.h"

struct play {
  struct sml_conform_stage *stage;
  const struct sml_conform_vector *vector;
  const struct sml_conform_step *step;
  struct sml_conform_binding bindings[SML_CONFORM_MAX_JOBS];
  struct sml_conform_outcome *outcome;
  uint8_t frame[SML_CONFORM_MAX_FRAME_BYTES + 64];
};

static void name_socket(const struct play *p, uint32_t job, uint32_t socket, char *text, size_t text_bytes) {
  if (socket == SML_CONFORM_STRANGER) snprintf(text, text_bytes, "a stranger's socket");
  else if (p->vector->num_jobs > 1) snprintf(text, text_bytes, "rank %u of job %u", socket, job);
  else snprintf(text, text_bytes, "rank %u", socket);
}

static bool broken(struct play *p) {
  p->outcome->result = SML_CONFORM_BROKEN;
  snprintf(p->outcome->seen, sizeof p->outcome->seen, "%s", p->stage->ops->sentence(p->stage));
  return false;
}

/* What a rank should get, as it would be told of a packet: the fields that are named. */
static void describe_expected(const struct sml_conform_packet *e, const struct sml_conform_binding *b, char *text,
                              size_t text_bytes) {
  const int64_t type = e->fields[SML_FIELD_TYPE].number;
  const char *name = type >= 0 && type < 8 ? sml_conform_type_names[type] : NULL;
  int used = snprintf(text, text_bytes, "%s", name ? name : "a packet");
  for (uint32_t f = 0; f < SML_NUM_FIELDS && used >= 0 && (size_t)used < text_bytes; f++) {
    if (f == SML_FIELD_TYPE || !(e->given >> f & 1u)) continue;
    int64_t number = sml_conform_resolve(e->fields[f], b);
    if (f == SML_FIELD_SLOT) number += b->slot_base;
    if (f == SML_FIELD_PHASE) number += b->first_phase;
    if (f == SML_FIELD_CHUNK) number += b->first_chunk;
    used += snprintf(text + used, text_bytes - (size_t)used, f == SML_FIELD_TAG ? " %s=0x%llx" : " %s=%lld",
                     sml_conform_field_names[f], (long long)number);
  }
  for (uint32_t i = 0; i < e->num_values && i < 3 && used >= 0 && (size_t)used < text_bytes; i++)
    used += snprintf(text + used, text_bytes - (size_t)used, "%s%u", i == 0 ? " values=" : ",", e->values[i]);
  if (e->has_missing && used >= 0 && (size_t)used < text_bytes)
    snprintf(text + used, text_bytes - (size_t)used, " missing=0x%llx", (unsigned long long)e->missing);
}

/* frame: what came, or 0 bytes. */
static bool differs(struct play *p, const struct sml_conform_packet *e, uint32_t job, uint32_t socket,
                    uint32_t num_bytes, const char *why) {
  struct sml_conform_outcome *o = p->outcome;
  char who[64], packet[300] = "nothing";
  name_socket(p, job, socket, who, sizeof who);
  o->result = SML_CONFORM_FAILED;
  if (e) describe_expected(e, &p->bindings[job], packet, sizeof packet);
  snprintf(o->expected, sizeof o->expected, "to %s: %s", who, packet);
  snprintf(packet, sizeof packet, "nothing");
  if (num_bytes > 0) sml_conform_describe(p->frame, num_bytes, packet, sizeof packet);
  snprintf(o->seen, sizeof o->seen, "%s%s%s", packet, why ? ": " : "", why ? why : "");
  return false;
}

/* The next packet, from out[*at] on, that should come to the socket; NULL: none. */
static const struct sml_conform_packet *next_expected(const struct play *p, uint32_t job, uint32_t socket,
                                                      uint32_t *at) {
  const struct sml_conform_step *step = p->step;
  for (; *at < step->num_out; (*at)++) {
    const struct sml_conform_packet *e = &step->out[*at];
    const bool is_rank = socket != SML_CONFORM_STRANGER;
    if (e->job == job && (e->socket == socket || (e->socket == SML_CONFORM_ALL && is_rank))) return &step->out[(*at)++];
  }
  return NULL;
}

static bool check_socket(struct play *p, uint32_t job, uint32_t socket) {
  const struct sml_conform_packet *e;
  uint32_t at = 0, num_bytes;
  while ((num_bytes = p->stage->ops->receive(p->stage, job, socket, p->frame)) > 0) {
    if (sml_conform_is_hint(p->frame, num_bytes)) continue;
    const char *why = NULL;
    do {
      e = next_expected(p, job, socket, &at);
      why = e ? sml_conform_compare(e, &p->bindings[job], socket, p->frame, num_bytes) : NULL;
    } while (e && why && e->is_optional);
    if (!e || why) return differs(p, e, job, socket, num_bytes, why);
  }
  while ((e = next_expected(p, job, socket, &at)) != NULL)
    if (!e->is_optional) return differs(p, e, job, socket, 0, NULL);
  return true;
}

static bool check_report(struct play *p, uint32_t job) {
  const struct sml_conform_step *step = p->step;
  struct sml_conform_outcome *o = p->outcome;
  const bool is_expected = step->report > 0 && step->packet.job == job;
  const char *what = "";
  uint32_t ranks[2] = {0}, num_ranks = 0;
  if (!p->stage->ops->reported) return true;
  if (!p->stage->ops->reported(p->stage, job, is_expected, &what, ranks, &num_ranks)) return broken(p);
  if (!is_expected && !*what) return true;
  bool is_same = is_expected && strcmp(what, step->verdict) == 0 && num_ranks == step->report;
  for (uint32_t i = 0; is_same && i < num_ranks; i++) /* in either order */
    is_same = ranks[i] == step->reported[i] || ranks[i] == step->reported[step->report - 1 - i];
  if (is_same) return true;
  o->result = SML_CONFORM_FAILED;
  snprintf(o->expected, sizeof o->expected, "a report of %s, %u ranks: %u %u", is_expected ? step->verdict : "nothing",
           is_expected ? step->report : 0, step->reported[0], step->reported[1]);
  snprintf(o->seen, sizeof o->seen, "a report of %s, %u ranks: %u %u", *what ? what : "nothing", num_ranks, ranks[0],
           ranks[1]);
  return false;
}

static bool check_reason(struct play *p) {
  const char *reason = p->stage->ops->dropped ? p->stage->ops->dropped(p->stage) : NULL;
  if (!reason || strcmp(reason, p->step->reason) == 0) return true;
  p->outcome->result = SML_CONFORM_FAILED;
  snprintf(p->outcome->expected, sizeof p->outcome->expected, "counted as '%s'", p->step->reason);
  snprintf(p->outcome->seen, sizeof p->outcome->seen, "counted as '%s'", reason);
  return false;
}

static bool play_step(struct play *p) {
  const struct sml_conform_packet *in = &p->step->packet;
  const struct sml_conform_stage_ops *ops = p->stage->ops;
  if (p->step->is_leave) {
    if (!ops->leave(p->stage, in->job, in->socket)) return broken(p);
  } else {
    const uint32_t num_bytes = sml_conform_pack(in, &p->bindings[in->job], p->frame);
    if (num_bytes == 0) {
      p->outcome->result = SML_CONFORM_SKIPPED;
      snprintf(p->outcome->seen, sizeof p->outcome->seen, "the job's chunks are too large or too small for it");
      return false;
    }
    if (!ops->send(p->stage, in->job, in->socket, p->frame, num_bytes) || !ops->settle(p->stage, p->step->report > 0))
      return broken(p);
  }
  for (uint32_t job = 0; job < p->vector->num_jobs; job++) {
    for (uint32_t rank = 0; rank < p->vector->jobs[job].num_ranks; rank++)
      if (!check_socket(p, job, rank)) return false;
    if (!check_socket(p, job, SML_CONFORM_STRANGER) || !check_report(p, job)) return false;
  }
  return check_reason(p);
}

void sml_conform_play(struct sml_conform_stage *stage, const struct sml_conform_vector *vector,
                      struct sml_conform_outcome *outcome) {
  struct play p = {.stage = stage, .vector = vector, .outcome = outcome};
  *outcome = (struct sml_conform_outcome){.result = SML_CONFORM_PASSED};
  bool is_ok = stage->ops->open(stage, vector, p.bindings) || broken(&p);
  for (uint32_t i = 0; is_ok && i < vector->num_steps; i++) {
    p.step = &vector->steps[i];
    outcome->step = i + 1;
    is_ok = play_step(&p);
  }
  stage->ops->close(stage);
}
