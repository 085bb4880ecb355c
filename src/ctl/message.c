/* SPDX-License-Identifier: Apache-2.0
 * One list of fields per kind serves both directions, so that what is written can't differ from what
 * is read, and every range stands once. */
#include "ctl/message.h"

#include "base/text.h"
#include "switchml/switchml.h"

/* The slot field of a datagram has 16 bits; the rest are core/wire.h's bounds, which ctl doesn't see
 * (aggd asserts that they are equal). */
#define CTL_MAX_POOL_SLOTS 65536u
#define LAST_STATUS SML_ERR_KEY

/* A walk over one body. `is_valid` goes false at the first short read, full buffer or bad range. */
struct walk {
  const uint8_t *in; /* NULL when writing */
  uint8_t *out;      /* NULL when reading */
  size_t at_bytes, end_bytes;
  bool is_valid;
};

static bool take(struct walk *w, size_t num_bytes) {
  if (!w->is_valid || w->end_bytes - w->at_bytes < num_bytes) {
    w->is_valid = false;
    return false;
  }
  w->at_bytes += num_bytes;
  return true;
}

static void walk_u16(struct walk *w, uint16_t *field, uint16_t min, uint16_t max) {
  if (!take(w, 2)) return;
  if (w->out) sml_store_be16(w->out + w->at_bytes - 2, *field);
  else *field = sml_load_be16(w->in + w->at_bytes - 2);
  if (*field < min || *field > max) w->is_valid = false;
}

static void walk_u32(struct walk *w, uint32_t *field, uint32_t min, uint32_t max) {
  if (!take(w, 4)) return;
  if (w->out) sml_store_be32(w->out + w->at_bytes - 4, *field);
  else *field = sml_load_be32(w->in + w->at_bytes - 4);
  if (*field < min || *field > max) w->is_valid = false;
}

static void walk_u64(struct walk *w, uint64_t *field, uint64_t min) {
  if (!take(w, 8)) return;
  if (w->out) sml_store_be64(w->out + w->at_bytes - 8, *field);
  else *field = sml_load_be64(w->in + w->at_bytes - 8);
  if (*field < min) w->is_valid = false;
}

static void walk_u128(struct walk *w, uint64_t field[2]) {
  walk_u64(w, &field[0], 0);
  walk_u64(w, &field[1], 0);
}

/* A failure's status: SML_ERR_INVALID_ARGUMENT down to the last one that there is. */
static void walk_status(struct walk *w, int32_t *field) {
  uint32_t bits = (uint32_t)*field;
  walk_u32(w, &bits, 0, UINT32_MAX);
  *field = (int32_t)bits;
  if (*field > SML_ERR_INVALID_ARGUMENT || *field < LAST_STATUS) w->is_valid = false;
}

/* A string of at most room_bytes - 1 bytes; `field` is terminated after a valid walk. Returns its
 * length on the wire: a zero byte within would leave bytes that nobody checks. */
static size_t walk_string(struct walk *w, char *field, size_t room_bytes) {
  uint16_t num_bytes = 0;
  if (w->out) num_bytes = (uint16_t)strnlen(field, room_bytes);
  walk_u16(w, &num_bytes, 0, (uint16_t)(room_bytes - 1));
  if (!take(w, num_bytes)) return 0;
  if (w->out) {
    memcpy(w->out + w->at_bytes - num_bytes, field, num_bytes);
  } else {
    memcpy(field, w->in + w->at_bytes - num_bytes, num_bytes);
    field[num_bytes] = 0;
  }
  return num_bytes;
}

static void walk_name(struct walk *w, char *field, size_t room_bytes, bool may_be_empty) {
  size_t num_bytes = walk_string(w, field, room_bytes);
  if (num_bytes == 0 && !may_be_empty) w->is_valid = false;
  for (size_t i = 0; i < num_bytes; i++)
    if (!sml_text_is_name_byte(field[i])) w->is_valid = false;
}

/* One line for people: it ends in logs, on terminals and in JSON, so only plain text is let through.
 * The writer makes it so (callers pass on texts of their users, and cut them), the reader refuses what is not. */
static void walk_detail(struct walk *w, char *field) {
  if (w->out && memchr(field, 0, SML_DETAIL_BYTES) != NULL) sml_text_make_plain(field);
  const size_t num_bytes = walk_string(w, field, SML_DETAIL_BYTES);
  if (!sml_text_is_plain(field, num_bytes)) w->is_valid = false;
}

/* Numbers, no names: a page makes links of them. */
static void walk_addresses(struct walk *w, char *field) {
  const size_t num_bytes = walk_string(w, field, SML_DETAIL_BYTES);
  for (size_t i = 0; w->is_valid && i < num_bytes; i++)
    w->is_valid = memchr("0123456789abcdef.:[]% ", field[i], 22) != NULL;
}

static void walk_join(struct walk *w, struct sml_ctl_join *join) {
  /* Only what no honest library can say is malformed; the registry refuses the rest with a sentence. */
  walk_name(w, join->job_name, SML_JOB_NAME_BYTES, false);
  walk_u32(w, &join->rank, 0, UINT16_MAX);
  walk_u32(w, &join->world_size, 0, UINT16_MAX);
  walk_u32(w, &join->num_lanes, 1, SML_MAX_LANES);
  walk_u32(w, &join->num_slots, 0, CTL_MAX_POOL_SLOTS);
  walk_u32(w, &join->max_datagram_bytes, SML_CTL_HEADER_BYTES, UINT16_MAX);
  walk_u64(w, &join->lease_ns, 1);
  walk_u64(w, &join->join_timeout_ns, 1);
  walk_u32(w, &join->features, 0, SML_KNOWN_FEATURES);
  walk_name(w, join->key_name, SML_KEY_NAME_BYTES, true);
  walk_u128(w, join->nonce);
  walk_u64(w, &join->resume_operation, 0);
  walk_u64(w, &join->oldest_operation, 0);
  if (join->oldest_operation > join->resume_operation) w->is_valid = false;
  walk_u32(w, &join->resume_chunk_bytes, 0, UINT16_MAX - SML_CTL_HEADER_BYTES);
  if (join->resume_chunk_bytes % 4 != 0) w->is_valid = false;
  walk_u128(w, join->host);
  walk_u32(w, &join->is_combining, 0, 1);
  walk_u32(w, &join->shard, 0, SML_MAX_SHARDS - 1);
  walk_u32(w, &join->num_shards, 0, SML_MAX_SHARDS);
  if (join->shard > 0 && join->shard >= join->num_shards) w->is_valid = false;
  walk_addresses(w, join->aggregators);
}

static void walk_welcome(struct walk *w, struct sml_ctl_welcome *welcome) {
  walk_u16(w, &welcome->job, 0, UINT16_MAX);
  walk_u32(w, &welcome->epoch, 0, UINT32_MAX);
  walk_u64(w, &welcome->nonce, 0);
  walk_u32(w, &welcome->num_lanes, 1, SML_MAX_LANES);
  for (uint32_t i = 0; w->is_valid && i < welcome->num_lanes; i++) walk_u16(w, &welcome->data_ports[i], 1, UINT16_MAX);
  walk_u128(w, welcome->salt);
  walk_u128(w, welcome->group);
  const bool has_group = (welcome->group[0] | welcome->group[1]) != 0;
  walk_u16(w, &welcome->group_port, has_group ? 1 : 0, has_group ? UINT16_MAX - SML_MAX_LANES + 1 : 0);
  walk_u128(w, welcome->secret);
}

static void walk_start(struct walk *w, struct sml_ctl_start *start) {
  walk_u32(w, &start->epoch, 0, UINT32_MAX);
  walk_u32(w, &start->num_lanes, 1, SML_MAX_LANES);
  walk_u32(w, &start->chunk_bytes, 4, UINT16_MAX - SML_CTL_HEADER_BYTES);
  walk_u32(w, &start->num_slots, 1, CTL_MAX_POOL_SLOTS / 2);
  if (start->chunk_bytes % 4 != 0 || !sml_is_pow2(start->num_slots)) w->is_valid = false;
  for (uint32_t i = 0; w->is_valid && i < start->num_lanes; i++) walk_u16(w, &start->slot_base[i], 0, UINT16_MAX);
  walk_u32(w, &start->first_phase, SML_CTL_FIRST_PHASE, UINT32_MAX - 1);
  if (start->first_phase % 2 != 0) w->is_valid = false;
  walk_u32(w, &start->first_chunk, 0, UINT32_MAX);
  walk_u32(w, &start->features, 0, SML_KNOWN_FEATURES);
  for (uint32_t i = 0; w->is_valid && i < start->num_lanes; i++)
    if (!sml_ctl_is_window(start, start->slot_base[i])) w->is_valid = false;
  const uint32_t packet_lanes = w->is_valid ? sml_ctl_packet_lanes(start) : 0;
  if (packet_lanes != 0 &&
      (!sml_is_pow2(packet_lanes) || packet_lanes < SML_MIN_PACKET_LANES || packet_lanes > SML_MAX_PACKET_LANES))
    w->is_valid = false;
  walk_u64(w, &start->rtt_ns, 0);
  walk_u32(w, &start->slots_why, 0, SML_SLOTS_REASON_QUOTA);
  walk_u64(w, &start->first_operation, 0);
  walk_u32(w, &start->is_multicast, 0, 1);
  walk_u32(w, &start->is_one_host, 0, 1);
  walk_u128(w, start->secret);
  walk_u32(w, &start->num_ranks, 0, SML_CTL_MAX_WORLD_SIZE);
  uint16_t num_contributors = 0;
  for (uint32_t rank = 0; w->is_valid && rank < start->num_ranks; rank++) {
    walk_u16(w, &start->contributors[rank], 0, num_contributors);
    if (start->contributors[rank] == num_contributors) num_contributors++;
  }
}

static void walk_abort(struct walk *w, struct sml_ctl_abort *abort) {
  walk_status(w, &abort->status);
  walk_u32(w, &abort->num_ranks, 0, SML_CTL_MAX_RANKS);
  for (uint32_t i = 0; w->is_valid && i < abort->num_ranks; i++)
    walk_u16(w, &abort->ranks[i], 0, SML_CTL_MAX_WORLD_SIZE - 1);
  walk_detail(w, abort->detail);
}

static void walk_rank_gone(struct walk *w, struct sml_ctl_rank_gone *gone) {
  walk_status(w, &gone->status);
  walk_u32(w, &gone->num_ranks, 1, SML_CTL_MAX_GONE);
  for (uint32_t i = 0; w->is_valid && i < gone->num_ranks; i++)
    walk_u16(w, &gone->ranks[i], 0, SML_CTL_MAX_WORLD_SIZE - 1);
  walk_detail(w, gone->detail);
}

static void walk_status_request(struct walk *w, struct sml_ctl_status *status) {
  walk_name(w, status->key_name, SML_KEY_NAME_BYTES, true);
  walk_u128(w, status->nonce);
  walk_u32(w, &status->offset_bytes, 0, UINT32_MAX);
}

static void walk_status_part(struct walk *w, struct sml_ctl_status_part *part) {
  walk_u32(w, &part->total_bytes, 0, UINT32_MAX);
  walk_u32(w, &part->offset_bytes, 0, UINT32_MAX);
  walk_u16(w, &part->num_bytes, 0, SML_STATUS_PART_BYTES);
  if (w->is_valid &&
      (part->offset_bytes > part->total_bytes || part->num_bytes > part->total_bytes - part->offset_bytes))
    w->is_valid = false;
  if (!take(w, part->num_bytes)) return;
  if (w->out) memcpy(w->out + w->at_bytes - part->num_bytes, part->text, part->num_bytes);
  else memcpy(part->text, w->in + w->at_bytes - part->num_bytes, part->num_bytes);
}

static void walk_report(struct walk *w, struct sml_ctl_report *report) {
  walk_u32(w, &report->num_ranks, 0, SML_CTL_MAX_RANKS);
  for (uint32_t i = 0; w->is_valid && i < report->num_ranks; i++)
    walk_u16(w, &report->ranks[i], 0, SML_CTL_MAX_WORLD_SIZE - 1);
  walk_detail(w, report->detail);
}

static void walk_probed(struct walk *w, struct sml_ctl_probed *probed) {
  walk_u32(w, &probed->datagram_bytes, 0, UINT16_MAX); /* 0: nothing came back */
  walk_u64(w, &probed->rtt_ns, 0);
  walk_u32(w, &probed->hearing, SML_CTL_NO_GROUP, SML_CTL_HEARS);
}

static void walk_body(struct walk *w, struct sml_ctl_message *m) {
  switch (m->kind) {
    case SML_CTL_JOIN: walk_join(w, &m->u.join); break;
    case SML_CTL_WELCOME: walk_welcome(w, &m->u.welcome); break;
    case SML_CTL_PROBED: walk_probed(w, &m->u.probed); break;
    case SML_CTL_START: walk_start(w, &m->u.start); break;
    case SML_CTL_HEARTBEAT:
      walk_u64(w, &m->u.heartbeat.operations_submitted, 0);
      walk_u64(w, &m->u.heartbeat.operations_completed, 0);
      walk_u64(w, &m->u.heartbeat.called, 0);
      break;
    case SML_CTL_EPOCH: walk_u32(w, &m->u.epoch.epoch, 0, UINT32_MAX); break;
    case SML_CTL_ABORT: walk_abort(w, &m->u.abort); break;
    case SML_CTL_RANK_GONE: walk_rank_gone(w, &m->u.rank_gone); break;
    case SML_CTL_GOODBYE:
    case SML_CTL_AUTH:
    case SML_CTL_ASK: break;
    case SML_CTL_STATUS: walk_status_request(w, &m->u.status); break;
    case SML_CTL_STATUS_PART: walk_status_part(w, &m->u.status_part); break;
    case SML_CTL_REPORT: walk_report(w, &m->u.report); break;
    case SML_CTL_EVICT:
      walk_name(w, m->u.evict.job_name, SML_JOB_NAME_BYTES, false);
      walk_detail(w, m->u.evict.detail);
      break;
    case SML_CTL_EVICTED:
      walk_u32(w, &m->u.evicted.num_jobs, 1, UINT32_MAX);
      walk_u32(w, &m->u.evicted.num_ranks, 0, UINT32_MAX);
      break;
    case SML_CTL_REFUSE:
      walk_status(w, &m->u.refuse.status);
      walk_detail(w, m->u.refuse.detail);
      break;
    case SML_CTL_CHALLENGE: walk_u128(w, m->u.challenge.nonce); break;
    default: w->is_valid = false;
  }
}

size_t sml_ctl_encode(const struct sml_ctl_message *message, uint8_t *out, size_t room_bytes) {
  if (room_bytes < SML_CTL_FRAME_BYTES) return 0;
  struct sml_ctl_message copy = *message; /* the walk wants fields that it may write */
  struct walk w = {.out = out + SML_CTL_FRAME_BYTES, .is_valid = true};
  w.end_bytes = sml_min_u64(room_bytes - SML_CTL_FRAME_BYTES, SML_CTL_MAX_BODY);
  walk_body(&w, &copy);
  if (!w.is_valid) return 0;
  sml_store_be32(out, SML_CTL_MAGIC);
  sml_store_be16(out + 4, SML_CTL_VERSION);
  sml_store_be16(out + 6, (uint16_t)message->kind);
  sml_store_be32(out + 8, (uint32_t)w.at_bytes);
  return SML_CTL_FRAME_BYTES + w.at_bytes;
}

enum sml_ctl_decode sml_ctl_decode_header(const uint8_t *in, size_t num_bytes, struct sml_ctl_frame *frame_out) {
  /* Each word is judged as soon as it is there, so that a stranger is found out by its first bytes. */
  uint8_t magic[4];
  sml_store_be32(magic, SML_CTL_MAGIC);
  if (num_bytes > 0 && memcmp(in, magic, sml_min_u64(num_bytes, 4)) != 0) return SML_CTL_BAD_MAGIC;
  if (num_bytes >= 6 && sml_load_be16(in + 4) != SML_CTL_VERSION) return SML_CTL_BAD_VERSION;
  if (num_bytes < SML_CTL_FRAME_BYTES) return SML_CTL_NEED_MORE;
  frame_out->kind = sml_load_be16(in + 6);
  frame_out->body_bytes = sml_load_be32(in + 8);
  uint16_t kind = frame_out->kind & (uint16_t)~SML_CTL_HAS_MAC;
  if (kind < SML_CTL_JOIN || kind > SML_CTL_LAST_KIND) return SML_CTL_MALFORMED;
  return frame_out->body_bytes > SML_CTL_MAX_BODY ? SML_CTL_MALFORMED : SML_CTL_DECODED;
}

bool sml_ctl_decode_body(uint16_t kind, const uint8_t *body, size_t body_bytes, struct sml_ctl_message *message_out) {
  memset(message_out, 0, sizeof *message_out);
  message_out->kind = (enum sml_ctl_kind)kind;
  struct walk w = {.in = body, .end_bytes = body_bytes, .is_valid = true};
  walk_body(&w, message_out);
  return w.is_valid && w.at_bytes == w.end_bytes;
}

enum sml_ctl_decode sml_ctl_decode(const uint8_t *in, size_t num_bytes, struct sml_ctl_message *message_out,
                                   size_t *consumed_out) {
  struct sml_ctl_frame frame;
  *consumed_out = 0;
  enum sml_ctl_decode verdict = sml_ctl_decode_header(in, num_bytes, &frame);
  if (verdict != SML_CTL_DECODED) return verdict;
  if (frame.kind & SML_CTL_HAS_MAC) return SML_CTL_MALFORMED;
  if (num_bytes - SML_CTL_FRAME_BYTES < frame.body_bytes) return SML_CTL_NEED_MORE;
  if (!sml_ctl_decode_body(frame.kind, in + SML_CTL_FRAME_BYTES, frame.body_bytes, message_out))
    return SML_CTL_MALFORMED;
  *consumed_out = SML_CTL_FRAME_BYTES + frame.body_bytes;
  return SML_CTL_DECODED;
}
