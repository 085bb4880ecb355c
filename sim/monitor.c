/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/monitor.h"

#include <stdlib.h>

#include "sim/verdict.h"

#define HEADER_BYTES 32u
#define KEYED_BYTES 4u
#define CHECKSUM_OFFSET 28u /* or the MAC's */
#define FLAG_RETRANSMISSION 1u
#define FLAG_KEYED 2u
#define FLAG_BY_GRANT 8u
#define FLAG_CHECKED 4u
#define MAX_PAYLOAD_BYTES 65536u
#define GRANT_WINDOW 4096u
#define CRC_SHARE 61u /* each so many-th frame's is computed */
#define BUCKETS 4096u
#define ALL_WINDOWS 5u /* with those that go one way: times a job's slots; they begin at a multiple of 8 */
#define ALIGNED_WINDOWS 8u
#define TO_OWNER 2
#define COPY 3
#define FENCE UINT32_MAX /* an owner that is none */
#define MAX_MASKS 8192u  /* more epochs than a world has */

enum type { UPDATE = 1, RESULT = 2, PENDING = 3, ERROR = 4, HELLO = 5, PROBE = 7 };

struct frame {
  uint8_t type, wire, reducer;
  uint16_t job, rank, payload_bytes, slot, flags;
  uint32_t epoch, phase, tag, chunk;
  uint64_t mac; /* 0: unkeyed */
  const uint8_t *payload;
};

/* A hash of lanes that adds up as they do, modulo 2^32 each half: that of a sum is the sum of theirs. */
struct lanes_hash {
  uint32_t a, b;
};

/* The last update of a rank for a slot. */
struct sent {
  uint32_t phase, tag, chunk;
  uint16_t payload_bytes;
  uint8_t kind;
  struct lanes_hash hash;
  uint64_t macs[2]; /* [is a retransmission] */
};
/* A (slot, phase & 1): what its first sender said (I8), and what the aggregator was given. */
struct cell {
  uint32_t said_phase, said_tag, said_chunk;
  uint16_t said_bytes;
  uint8_t said_kind;
  uint8_t kind;
  bool has_result;
  uint32_t phase, tag, grant, owner; /* grant: of a window for all; owner: of one that goes one way */
  uint16_t payload_bytes;
  uint64_t seen;
  struct lanes_hash sum, result;
  uint8_t *combined; /* of what is no sum */
};

/* One (epoch, data port). */
struct lane {
  struct lane *next;
  uint32_t epoch, job_idx, world_size, num_slots;
  uint32_t all_slots; /* with those of one-way windows */
  uint16_t port, job, slot_base;
  uint32_t incarnation;
  uint32_t first_phase, first_chunk;
  struct sent *sent;                   /* [slot * world_size + rank]; one way: [2 * slot + version] instead of slot */
  struct cell *cells;                  /* [2 * slot + version] */
  uint16_t ports[64];                  /* of ranks */
  uint32_t next_grant;                 /* all before it are given */
  uint64_t granted[GRANT_WINDOW / 64]; /* bit 0 of a ring at next_grant % GRANT_WINDOW */
};

/* That the checksums of an epoch without a key have, known from its first datagram. */
struct mask {
  bool is_known;
  uint32_t epoch, mask;
};

struct sim_wire {
  struct mask masks[MAX_MASKS];
  struct sim_wire_options options;
  struct sim_wire_counts counts;
  struct lane *buckets[BUCKETS];
  struct lane *last;
  uint32_t incarnation;
  uint64_t num_frames;
  uint32_t factors_a[MAX_PAYLOAD_BYTES / 4], factors_b[MAX_PAYLOAD_BYTES / 4];
};

/* ---- life ---- */

struct sim_wire *sim_wire_create(const struct sim_wire_options *options) {
  struct sim_wire *w = calloc(1, sizeof *w);
  SML_ASSERT(w != NULL);
  w->options = *options;
  struct sml_prng p = {0xabacadaba};
  for (uint32_t k = 0; k < MAX_PAYLOAD_BYTES / 4; k++) {
    w->factors_a[k] = (uint32_t)sml_prng_next(&p) | 1;
    w->factors_b[k] = (uint32_t)sml_prng_next(&p) | 1;
  }
  return w;
}

static void free_lane(struct lane *lane) {
  for (uint32_t i = 0; i < 2 * lane->all_slots; i++) free(lane->cells[i].combined);
  free(lane->cells);
  free(lane->sent);
  free(lane);
}

void sim_wire_destroy(struct sim_wire *w) {
  for (uint32_t b = 0; b < BUCKETS; b++) {
    while (w->buckets[b] != NULL) {
      struct lane *lane = w->buckets[b];
      w->buckets[b] = lane->next;
      free_lane(lane);
    }
  }
  free(w);
}

const struct sim_wire_counts *sim_wire_counts(const struct sim_wire *w) {
  return &w->counts;
}

void sim_wire_on_daemon(struct sim_wire *w) {
  w->incarnation++;
}

/* ---- frames ---- */

uint32_t sim_crc32c(const uint8_t *bytes, size_t num_bytes) {
  uint32_t crc = UINT32_MAX;
  for (size_t i = 0; i < num_bytes; i++) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

uint32_t sim_frame_crc(const uint8_t *frame, size_t num_bytes) {
  static uint8_t copy[MAX_PAYLOAD_BYTES + 64];
  if (num_bytes > sizeof copy || num_bytes < HEADER_BYTES) return 0;
  memcpy(copy, frame, num_bytes);
  memset(copy + 28, 0, 4);
  return sim_crc32c(copy, num_bytes);
}

static bool has_known_pair(const struct frame *f) {
  static const uint8_t pairs[] = {0x00, 0x11, 0x21, 0x31, 0x24, 0x34, 0x25, 0x02, 0x13}; /* as the header's byte */
  for (uint32_t i = 0; i < SML_ARRAY_LEN(pairs); i++)
    if (pairs[i] == (f->wire << 4 | f->reducer)) return true;
  return false;
}

static bool parse(const struct sim_datagram *d, struct frame *f) {
  const uint8_t *b = d->data;
  if (d->num_bytes < HEADER_BYTES || b[0] >> 4 != 1) return false;
  *f = (struct frame){.type = b[0] & 15,
                      .wire = b[1] >> 4,
                      .reducer = b[1] & 15,
                      .job = sml_load_be16(b + 2),
                      .epoch = sml_load_be32(b + 4),
                      .rank = sml_load_be16(b + 8),
                      .payload_bytes = sml_load_be16(b + 10),
                      .slot = sml_load_be16(b + 12),
                      .flags = sml_load_be16(b + 14),
                      .phase = sml_load_be32(b + 16),
                      .tag = sml_load_be32(b + 20),
                      .chunk = sml_load_be32(b + 24)};
  const uint32_t head_bytes = HEADER_BYTES + (f->flags & FLAG_KEYED ? KEYED_BYTES : 0);
  if ((f->flags & FLAG_KEYED) && d->num_bytes >= head_bytes) f->mac = sml_load_be64(b + CHECKSUM_OFFSET);
  f->payload = b + head_bytes;
  return d->num_bytes == head_bytes + f->payload_bytes && has_known_pair(f);
}

/* The place of an epoch's, or where it would be. */
static struct mask *find_mask(struct sim_wire *w, uint32_t epoch) {
  uint32_t i = epoch % MAX_MASKS;
  while (w->masks[i].is_known && w->masks[i].epoch != epoch) i = (i + 1) % MAX_MASKS;
  return &w->masks[i];
}

static uint32_t mask_of(const struct sim_datagram *d) {
  return sim_frame_crc(d->data, d->num_bytes) ^ sml_load_be32(d->data + CHECKSUM_OFFSET);
}

/* Tagged ones have none, and pass; so do ERRORs, which have the mask of what they answer. */
static bool has_right_crc(struct sim_wire *w, const struct sim_datagram *d, const struct frame *f) {
  if ((f->flags & FLAG_KEYED) || f->type == ERROR) return true;
  const struct mask *m = find_mask(w, f->epoch);
  return m->is_known && m->mask == mask_of(d);
}

static void note_mask(struct sim_wire *w, const struct sim_datagram *d, const struct frame *f) {
  if ((f->flags & FLAG_KEYED) || f->type == ERROR) return;
  struct mask *m = find_mask(w, f->epoch);
  if (!m->is_known) *m = (struct mask){.is_known = true, .epoch = f->epoch, .mask = mask_of(d)};
}

static struct lanes_hash hash_payload(const struct sim_wire *w, const struct frame *f) {
  struct lanes_hash h = {0, 0};
  if (f->wire == 0) {
    const uint32_t num_words = f->payload_bytes / 4u;
    for (uint32_t k = 0; k < num_words; k++) {
      const uint32_t x = sml_load_be32(f->payload + 4 * k);
      h.a += x * w->factors_a[k];
      h.b += x * w->factors_b[k];
    }
  } else {
    for (uint32_t k = 0; k < f->payload_bytes; k++) {
      h.a += f->payload[k] * w->factors_a[k];
      h.b += f->payload[k] * w->factors_b[k];
    }
  }
  return h;
}

static bool is_same_hash(struct lanes_hash x, struct lanes_hash y) {
  return x.a == y.a && x.b == y.b;
}

/* wire type, reducer and whether a check word is there: must agree as the length must. */
static uint8_t kind_of(const struct frame *f) {
  return (uint8_t)(f->wire | (f->flags & FLAG_CHECKED ? 4 : 0) | (f->flags & FLAG_KEYED ? 8 : 0) | f->reducer << 4);
}

static bool is_sum(const struct frame *f) {
  return f->wire == 0;
}

/* What is no sum: word by word, as the header says. A copy is the maximum of it and of nothing. */
static void combine(const struct frame *f, uint8_t *combined) {
  const uint32_t num_bytes = f->wire == 1 ? 1 : f->wire == 2 ? 4 : 8;
  for (uint32_t i = 0; i + num_bytes <= f->payload_bytes; i += num_bytes) {
    uint64_t a = 0, b = 0;
    for (uint32_t k = 0; k < num_bytes; k++) {
      a = a << 8 | combined[i + k];
      b = b << 8 | f->payload[i + k];
    }
    a = f->reducer == 4 ? a * b : f->reducer == 5 ? a | b : sml_max_u64(a, b);
    for (uint32_t k = num_bytes; k-- > 0; a >>= 8) combined[i + k] = (uint8_t)a;
  }
}

/* Who contributes to a chunk (docs/PROTOCOL.md R196). */
static uint64_t contributors_of(const struct lane *lane, uint8_t reducer, uint32_t owner) {
  const uint64_t all = lane->world_size == 64 ? UINT64_MAX : (UINT64_C(1) << lane->world_size) - 1;
  const uint64_t own = owner < 64 ? UINT64_C(1) << owner : 0;
  return reducer == TO_OWNER ? all & ~own : reducer == COPY ? all & own : all;
}

/* ---- lanes ---- */

static struct lane *find_lane(struct sim_wire *w, uint32_t epoch, uint16_t port) {
  if (w->last != NULL && w->last->epoch == epoch && w->last->port == port) return w->last;
  struct lane *lane = w->buckets[sml_mix64((uint64_t)epoch << 16 | port) % BUCKETS];
  while (lane != NULL && (lane->epoch != epoch || lane->port != port)) lane = lane->next;
  if (lane != NULL) w->last = lane;
  return lane;
}

static bool is_one_way(const struct lane *lane, uint32_t slot) {
  return slot >= lane->num_slots;
}

/* A rank's last update there; in one-way windows each version has its own. */
static struct sent *sent_of(const struct lane *lane, uint32_t slot, uint32_t phase, uint32_t rank) {
  const uint32_t place = is_one_way(lane, slot) ? 2 * slot + (phase & 1) : slot;
  return &lane->sent[place * lane->world_size + rank];
}

/* The first update says where slots, phases and chunks begin. */
static struct lane *add_lane(struct sim_wire *w, const struct sim_datagram *d, const struct frame *f) {
  const uint32_t job_idx = d->from_ipv4 >> 8 & 0xff;
  const struct sim_wire_job *job = &w->options.jobs[job_idx];
  struct lane *lane = calloc(1, sizeof *lane);
  SML_ASSERT(lane != NULL);
  lane->epoch = f->epoch;
  lane->port = d->to_port;
  lane->job = f->job;
  lane->job_idx = job_idx;
  lane->world_size = job->world_size;
  lane->num_slots = job->num_slots;
  lane->all_slots = job->num_slots * (job->has_one_way ? ALL_WINDOWS : 1);
  const uint32_t aligned_slots = job->num_slots * (job->has_one_way ? ALIGNED_WINDOWS : 1);
  lane->slot_base = (uint16_t)(f->slot & ~(aligned_slots - 1));
  lane->incarnation = w->incarnation;
  lane->first_phase = f->phase & ~1u; /* in a one-way window the other version may come first */
  /* In a one-way window it has no chunk. */
  lane->first_chunk = f->chunk - (uint32_t)(f->slot - lane->slot_base);
  if ((uint32_t)f->slot - lane->slot_base >= lane->num_slots)
    lane->first_chunk = lane->first_phase == 2 ? 0 : w->options.first_chunk;
  lane->next_grant = lane->first_chunk + lane->num_slots;
  lane->sent = calloc(2 * (size_t)lane->all_slots * lane->world_size, sizeof *lane->sent);
  lane->cells = calloc(2 * (size_t)lane->all_slots, sizeof *lane->cells);
  SML_ASSERT(lane->sent != NULL && lane->cells != NULL);
  struct lane **bucket = &w->buckets[sml_mix64((uint64_t)lane->epoch << 16 | lane->port) % BUCKETS];
  lane->next = *bucket;
  *bucket = lane;
  w->counts.lanes++;
  if (lane->first_phase == 2 && w->options.first_phase != 0) w->counts.renewals++;
  const bool is_usual = lane->first_phase == 2 && lane->first_chunk == 0;
  if (!is_usual && (lane->first_phase != w->options.first_phase || lane->first_chunk != w->options.first_chunk))
    sim_fail("wire", "epoch %08x begins at phase %u and chunk %u", f->epoch, lane->first_phase, lane->first_chunk);
  return lane;
}

/* ---- what workers send ---- */

static void check_said(struct sim_wire *w, const struct lane *lane, struct cell *c, const struct frame *f) {
  if (c->said_phase < f->phase) {
    c->said_phase = f->phase;
    c->said_tag = f->tag;
    c->said_chunk = f->chunk;
    c->said_bytes = f->payload_bytes;
    c->said_kind = kind_of(f);
    return;
  }
  const bool is_same = c->said_tag == f->tag && c->said_chunk == f->chunk && c->said_bytes == f->payload_bytes &&
                       c->said_kind == kind_of(f);
  if (!is_same && !w->options.jobs[lane->job_idx].may_differ)
    sim_fail("wire",
             "I8: rank %u sends tag %08x chunk %u of %u bytes for slot %u phase %u of epoch %08x, another rank sent "
             "tag %08x chunk %u of %u bytes",
             f->rank, f->tag, f->chunk, f->payload_bytes, f->slot, f->phase, f->epoch, c->said_tag, c->said_chunk,
             c->said_bytes);
}

/* A rank goes to a new phase: everybody was in the one before, its result was out, and says which chunk. */
static void check_step(const struct lane *lane, uint32_t slot, const struct sent *sent, const struct frame *f) {
  const struct cell *before = &lane->cells[2 * slot + (sent->phase & 1)];
  if (sent->phase == 0) {
    if (f->phase != lane->first_phase || f->chunk != lane->first_chunk + slot)
      sim_fail("wire", "rank %u begins slot %u of epoch %08x with phase %u chunk %u", f->rank, f->slot, f->epoch,
               f->phase, f->chunk);
    return;
  }
  if (f->phase != sent->phase + 1) {
    sim_fail("wire", "I1: rank %u goes from phase %u to %u in slot %u of epoch %08x", f->rank, sent->phase, f->phase,
             f->slot, f->epoch);
    return;
  }
  for (uint32_t rank = 0; rank < lane->world_size; rank++) {
    const uint32_t phase = lane->sent[slot * lane->world_size + rank].phase;
    if (phase + 1 != f->phase && phase != f->phase)
      sim_fail("wire", "I1: rank %u is in phase %u of slot %u of epoch %08x, rank %u only in %u", f->rank, f->phase,
               f->slot, f->epoch, rank, phase);
  }
  if (before->phase != sent->phase || !before->has_result)
    sim_fail("wire", "rank %u leaves phase %u of slot %u of epoch %08x, which has no result", f->rank, sent->phase,
             f->slot, f->epoch);
  else if (f->chunk != before->grant)
    sim_fail("wire", "I9: rank %u sends chunk %u on slot %u of epoch %08x in phase %u, granted was %u", f->rank,
             f->chunk, f->slot, f->epoch, f->phase, before->grant);
}

/* In a one-way window: it is the rank's to send, and what stood in the cell before has been heard by all that are to
 * hear it, so it is complete. */
static void check_one_way(const struct lane *lane, uint32_t slot, const struct frame *f) {
  const struct cell *before = &lane->cells[2 * slot + (f->phase & 1)];
  if ((contributors_of(lane, f->reducer, f->chunk) >> f->rank & 1) == 0)
    sim_fail("wire", "rank %u sends slot %u phase %u of epoch %08x, to which it does not contribute", f->rank, f->slot,
             f->phase, f->epoch);
  const bool is_passed_fence = before->kind >> 4 == 1 && before->owner == FENCE; /* a later one may be complete */
  if (before->phase != 0 && before->phase < f->phase && !before->has_result && !is_passed_fence)
    sim_fail("wire", "rank %u sends phase %u of slot %u of epoch %08x before phase %u has its result", f->rank,
             f->phase, f->slot, f->epoch, before->phase);
}

static void check_repeat(const struct sent *sent, const struct frame *f, struct lanes_hash hash) {
  const bool is_same = sent->tag == f->tag && sent->chunk == f->chunk && sent->payload_bytes == f->payload_bytes &&
                       sent->kind == kind_of(f) && is_same_hash(sent->hash, hash);
  if (!is_same)
    sim_fail("wire", "I5: rank %u sends something else again for slot %u phase %u of epoch %08x", f->rank, f->slot,
             f->phase, f->epoch);
  if (!(f->flags & FLAG_RETRANSMISSION))
    sim_fail("wire", "rank %u sends slot %u phase %u of epoch %08x twice and does not say so", f->rank, f->slot,
             f->phase, f->epoch);
}

static void watch_update(struct sim_wire *w, struct lane *lane, uint32_t slot, const struct frame *f) {
  struct sent *sent = sent_of(lane, slot, f->phase, f->rank);
  const struct lanes_hash hash = hash_payload(w, f);
  const bool is_repeat = (f->flags & FLAG_RETRANSMISSION) != 0;
  w->counts.updates++;
  if (is_repeat) w->counts.retransmissions++;
  if (f->phase == sent->phase) {
    check_repeat(sent, f, hash);
    sent->macs[is_repeat] = f->mac;
    return;
  }
  if (is_one_way(lane, slot)) check_one_way(lane, slot, f);
  else check_step(lane, slot, sent, f);
  if (is_repeat)
    sim_fail("wire", "rank %u calls its first update for slot %u phase %u of epoch %08x a retransmission", f->rank,
             f->slot, f->phase, f->epoch);
  check_said(w, lane, &lane->cells[2 * slot + (f->phase & 1)], f);
  *sent = (struct sent){f->phase, f->tag, f->chunk, f->payload_bytes, kind_of(f), hash, {f->mac, 0}};
}

static void watch_worker(struct sim_wire *w, const struct sim_datagram *d, const struct frame *f) {
  const uint32_t rank = d->from_ipv4 & 0xff;
  if (f->rank != rank) sim_fail("wire", "rank %u calls itself rank %u", rank, f->rank);
  if (f->type == HELLO) {
    w->counts.hellos++;
    return;
  }
  if (f->type != UPDATE && f->type != PROBE) {
    sim_fail("wire", "rank %u sends a datagram of type %u", rank, f->type);
    return;
  }
  struct lane *lane = find_lane(w, f->epoch, d->to_port);
  /* A receiver may ask before anybody has sent. */
  const bool may_be_first = f->type == UPDATE || f->reducer == TO_OWNER || f->reducer == COPY;
  if (lane == NULL && may_be_first) lane = add_lane(w, d, f);
  const uint32_t job = d->from_ipv4 >> 8 & 0xff;
  const uint32_t slot = lane == NULL ? 0 : (uint32_t)f->slot - lane->slot_base;
  if (lane == NULL || lane->job_idx != job || lane->job != f->job || slot >= lane->all_slots) {
    sim_fail("wire", "rank %u sends for job %u, slot %u, epoch %08x, which are not its own", rank, f->job, f->slot,
             f->epoch);
    return;
  }
  if (lane->ports[rank] == 0) lane->ports[rank] = d->from_port;
  if (f->type == UPDATE) {
    watch_update(w, lane, slot, f);
    return;
  }
  w->counts.probes++;
  if (f->flags & FLAG_BY_GRANT) return; /* names no slot */
  const struct sent *sent = sent_of(lane, slot, f->phase, rank);
  if (is_one_way(lane, slot) && (contributors_of(lane, f->reducer, f->chunk) >> rank & 1) == 0) return; /* a receiver */
  if (f->phase != sent->phase || f->tag != sent->tag)
    sim_fail("wire", "rank %u asks about slot %u phase %u of epoch %08x, but is in phase %u", rank, f->slot, f->phase,
             f->epoch, sent->phase);
}

/* ---- what the aggregator is given, and says ---- */

static void take_update(struct sim_wire *w, struct lane *lane, const struct frame *f) {
  struct cell *c = &lane->cells[2 * ((uint32_t)f->slot - lane->slot_base) + (f->phase & 1)];
  if (f->phase < c->phase) return;
  if (f->phase > c->phase) {
    c->phase = f->phase;
    c->tag = f->tag;
    c->kind = kind_of(f);
    c->payload_bytes = f->payload_bytes;
    c->seen = 0;
    c->has_result = false;
    c->sum = (struct lanes_hash){0, 0};
    c->owner = f->chunk;
    if (!is_sum(f) && c->combined == NULL) c->combined = calloc(1, MAX_PAYLOAD_BYTES);
  }
  const bool is_other = c->tag != f->tag || c->payload_bytes != f->payload_bytes || c->kind != kind_of(f);
  const bool is_first = c->seen == 0;
  if (is_other || (c->seen >> f->rank & 1) != 0) return;
  c->seen |= UINT64_C(1) << f->rank;
  if (!is_sum(f)) {
    if (is_first) memcpy(c->combined, f->payload, f->payload_bytes);
    else combine(f, c->combined);
  } else {
    const struct lanes_hash hash = hash_payload(w, f);
    c->sum.a += hash.a;
    c->sum.b += hash.b;
  }
}

void sim_wire_on_delivered(struct sim_wire *w, const struct sim_datagram *d) {
  struct frame f;
  if (d->to_ipv4 != w->options.daemon_ipv4 || !sim_ipv4_is_worker(d->from_ipv4)) return;
  if (!parse(d, &f) || f.type != UPDATE || f.rank != (d->from_ipv4 & 0xff)) return;
  /* Two flips of one bit leave it as it was. */
  if ((d->is_altered || d->is_forged) && !has_right_crc(w, d, &f)) return;
  struct lane *lane = find_lane(w, f.epoch, d->to_port);
  if (lane == NULL || lane->job != f.job || lane->ports[f.rank] != d->from_port) return;
  const uint32_t slot = (uint32_t)f.slot - lane->slot_base;
  if (slot >= lane->all_slots) return;
  /* An intruder's, or altered under a tag: only what the rank itself has sent counts. */
  const struct sent *sent = sent_of(lane, slot, f.phase, f.rank);
  const bool is_own = sent->phase == f.phase && sent->tag == f.tag && sent->chunk == f.chunk &&
                      sent->kind == kind_of(&f) && sent->payload_bytes == f.payload_bytes &&
                      sent->macs[(f.flags & FLAG_RETRANSMISSION) != 0] == f.mac;
  const bool is_suspect = d->is_forged || (d->is_altered && f.mac != 0);
  if (!is_suspect || (is_own && is_same_hash(sent->hash, hash_payload(w, &f)))) take_update(w, lane, &f);
}

static void take_grant(struct lane *lane, const struct frame *f) {
  const uint32_t ahead = f->chunk - lane->next_grant;
  const uint32_t bit = f->chunk % GRANT_WINDOW;
  if (ahead > lane->num_slots) {
    sim_fail("wire", "I9: slot %u phase %u of epoch %08x is granted chunk %u, all up to %u are given", f->slot,
             f->phase, f->epoch, f->chunk, lane->next_grant - 1);
    return;
  }
  if (sml_bit_test(lane->granted, bit))
    sim_fail("wire", "I9: slot %u phase %u of epoch %08x is granted chunk %u, which another has", f->slot, f->phase,
             f->epoch, f->chunk);
  sml_bit_set(lane->granted, bit);
  while (sml_bit_test(lane->granted, lane->next_grant % GRANT_WINDOW)) {
    sml_bit_clear(lane->granted, lane->next_grant % GRANT_WINDOW);
    lane->next_grant++;
  }
}

static void check_sum(struct sim_wire *w, const struct cell *c, const struct frame *f, struct lanes_hash hash) {
  bool is_right = is_sum(f) ? is_same_hash(hash, c->sum) : memcmp(c->combined, f->payload, f->payload_bytes) == 0;
  /* R218: what came when a later fence was complete does not count. */
  if (f->reducer == 1 && f->chunk == FENCE && f->payload_bytes == 1) is_right = f->payload[0] <= c->combined[0];
  w->counts.sums_checked++;
  if (!is_right)
    sim_fail("wire", "the result of slot %u phase %u of epoch %08x is not what the ranks sent makes by reducer %u",
             f->slot, f->phase, f->epoch, f->reducer);
}

/* rank: to which it goes. */
static void watch_result(struct sim_wire *w, struct lane *lane, const struct frame *f, uint32_t rank) {
  struct cell *c = &lane->cells[2 * ((uint32_t)f->slot - lane->slot_base) + (f->phase & 1)];
  const uint32_t slot = (uint32_t)f->slot - lane->slot_base;
  const uint64_t all = contributors_of(lane, f->reducer, c->owner);
  w->counts.results++;
  w->counts.one_way += is_one_way(lane, slot);
  if (f->flags & FLAG_RETRANSMISSION) w->counts.repeats++;
  const bool is_fence = is_one_way(lane, slot) && f->reducer == 1 && f->chunk == FENCE;
  /* R218: updates of a fence are dropped that come when a later one is complete, perhaps all of them. It has no result
   * then: the one before it is still the cell's, and a late question about that is answered. */
  if (is_fence && f->phase < c->phase && !c->has_result && (f->flags & FLAG_RETRANSMISSION) != 0) return;
  if (f->phase != c->phase || (c->seen != all && !is_fence)) {
    sim_fail("wire",
             "a result of slot %u phase %u of epoch %08x is sent, but the slot is in phase %u with %u of %u "
             "ranks",
             f->slot, f->phase, f->epoch, c->phase, sml_popcount_u64(c->seen), lane->world_size);
    return;
  }
  if (f->tag != c->tag || f->payload_bytes != c->payload_bytes || kind_of(f) != c->kind) {
    sim_fail("wire", "the result of slot %u phase %u of epoch %08x has another tag, length or type than its updates",
             f->slot, f->phase, f->epoch);
    return;
  }
  const bool has_owner = f->reducer == TO_OWNER || f->reducer == COPY;
  if (has_owner && (f->chunk != c->owner || (all >> rank & 1) != 0))
    sim_fail("wire", "the result of slot %u phase %u of epoch %08x, of owner %u, goes to rank %u", f->slot, f->phase,
             f->epoch, f->chunk, rank);
  const struct lanes_hash hash = hash_payload(w, f);
  if (!c->has_result) {
    c->has_result = true;
    c->result = hash;
    c->grant = f->chunk;
    check_sum(w, c, f, hash);
    if (!is_one_way(lane, slot)) take_grant(lane, f);
  } else if (!is_same_hash(hash, c->result) || f->chunk != c->grant) {
    sim_fail("wire", "I9: the result of slot %u phase %u of epoch %08x is repeated with another %s", f->slot, f->phase,
             f->epoch, f->chunk != c->grant ? "grant" : "content");
  }
}

static void watch_daemon(struct sim_wire *w, const struct sim_datagram *d, const struct frame *f) {
  if (f->type == PENDING) w->counts.pending++;
  if (f->type == ERROR) w->counts.errors++;
  if (f->type != RESULT) return;
  struct lane *lane = find_lane(w, f->epoch, d->from_port);
  if (lane == NULL || lane->job != f->job || (uint32_t)f->slot - lane->slot_base >= lane->all_slots) {
    sim_fail("wire", "a result for slot %u of epoch %08x is sent, which nobody uses", f->slot, f->epoch);
    return;
  }
  if (lane->incarnation != w->incarnation)
    sim_fail("wire", "epoch %08x of an aggregator that is gone has a result again", f->epoch);
  if (lane->job_idx != (d->to_ipv4 >> 8 & 0xff))
    sim_fail("wire", "a result of job %u goes to a rank of another", lane->job_idx);
  watch_result(w, lane, f, d->to_ipv4 & 0xff);
}

void sim_wire_on_sent(struct sim_wire *w, const struct sim_datagram *d) {
  struct frame f;
  if (d->is_forged || sim_has_failed()) return;
  if (!parse(d, &f)) {
    sim_fail("wire", "a malformed datagram of %u bytes is sent", d->num_bytes);
    return;
  }
  note_mask(w, d, &f);
  if (w->num_frames++ % CRC_SHARE == 0 && !has_right_crc(w, d, &f))
    sim_fail("wire", "a datagram is sent with a wrong checksum");
  if (d->from_ipv4 == w->options.daemon_ipv4) watch_daemon(w, d, &f);
  else watch_worker(w, d, &f);
}
