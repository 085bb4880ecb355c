/* SPDX-License-Identifier: Apache-2.0
 * Each switch program of p4/, translated to C, against src/core's aggregator: random packets of members that are
 * honest, broken or hostile, and of strangers, one after the other. What comes out has to be what the core decides,
 * bit for bit, at the right ports. Jobs end by mismatches, and begin again on what they left behind. Then a host that
 * is no member, but knows all that members send: it hears nothing, and changes nothing.
 *
 * differential_test [PACKETS [SEED [LIBRARY]]]: for each program; it prints the seed. With a library (of a seeded bug:
 * mutants.py) only the one program that is in it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "differential_world.h"

/* ---- what is due ---- */

static void answer(struct due *d, const struct job *job, uint32_t rank, const uint8_t *datagram, uint32_t num_bytes) {
  const struct sml_place *to = &job->is.places[rank];
  struct sml_place from = {.addr = bed_place(99).addr, .mac = BED_AGGREGATOR_MAC};
  struct p4_out *out = &d->frames[d->num++];
  out->port = to->port;
  out->num_bytes = bed_wrap(out->bytes, &from, to->mac, sml_switch_ip(&to->addr), sml_addr_port(&to->addr), datagram,
                            num_bytes);
}

static void sum(struct question *q, uint32_t cell, bool is_first) {
  uint32_t *values = sml_aggregator_values(q->job->core, cell);
  if (is_first) q->job->num_sums[cell]++;
  for (uint32_t i = 0; i < q->job->lanes; i++) {
    const uint32_t lane = sml_load_be32(q->datagram + SML_HEADER_BYTES + 4 * i);
    values[i] = is_first ? lane : q->h.reducer == SML_REDUCE_MAX ? sml_max_u32(values[i], lane) : values[i] + lane;
  }
}

static void add_result(struct due *d, struct question *q, uint32_t cell, uint32_t rank, uint16_t flags) {
  uint8_t datagram[MAX_DATAGRAM_BYTES];
  struct sml_header h;
  const uint32_t *values = sml_aggregator_values(q->job->core, cell);
  sml_aggregator_result_for(q->job->core, cell, q->h.wire, q->h.reducer, &h);
  h.job = q->job->is.number;
  h.epoch = q->job->is.epoch;
  h.flags |= flags;
  for (uint32_t i = 0; i < q->job->lanes; i++) sml_store_be32(datagram + SML_HEADER_BYTES + 4 * i, values[i]);
  sml_wire_seal_for_switch(datagram, &h);
  answer(d, q->job, rank, datagram, SML_HEADER_BYTES + q->job->payload_bytes);
}

static void add_pending(struct due *d, struct question *q) {
  uint8_t datagram[SML_HEADER_BYTES + 4];
  uint64_t missing = 0;
  struct sml_header h = q->h;
  sml_aggregator_missing(q->job->core, h.slot - q->job->is.slot_base, h.phase, &missing);
  h.type = SML_PACKET_PENDING;
  h.flags = 0;
  h.payload_bytes = 4;
  for (uint32_t i = 0; i < 4; i++) datagram[SML_HEADER_BYTES + i] = (uint8_t)(missing >> (8 * i));
  sml_wire_seal_for_switch(datagram, &h);
  answer(d, q->job, h.rank, datagram, sizeof datagram);
}

static void add_report(struct due *d, const struct question *q, uint32_t first_rank) {
  uint8_t datagram[SML_HEADER_BYTES];
  const struct sml_place from = bed_place(q->host);
  struct sml_header h = q->h;
  h.type = SML_PACKET_SWITCH_REPORT;
  h.payload_bytes = 0, h.chunk = first_rank;
  sml_wire_seal_for_switch(datagram, &h);
  sml_store_be32(datagram + 28, BED_VOUCHER);
  d->frames[0].port = BED_CPU_PORT;
  d->frames[0].num_bytes = bed_wrap(d->frames[0].bytes, &from, BED_AGGREGATOR_MAC, BED_AGGREGATOR_IP,
                                    BED_AGGREGATOR_PORT, datagram, sizeof datagram);
  d->num = 1;
  d->ends_job = true;
}

static void count(struct world *w, uint32_t verdict) {
  w->counts[verdict]++;
}

static void decide(struct world *w, struct question *q, struct due *d) {
  const struct sml_decision s = sml_aggregator_decide(q->job->core, &q->h);
  const bool is_update = q->h.type == SML_PACKET_UPDATE;
  switch (s.verdict) {
    case SML_VERDICT_DROP:
      count(w, s.drop);
      break;
    case SML_VERDICT_FIRST:
    case SML_VERDICT_ADD:
      count(w, s.verdict == SML_VERDICT_FIRST ? SML_AT_SWITCH_FIRST : SML_AT_SWITCH_ADDED);
      sum(q, s.cell, s.verdict == SML_VERDICT_FIRST);
      break;
    case SML_VERDICT_COMPLETE:
      count(w, SML_AT_SWITCH_COMPLETED);
      sum(q, s.cell, false);
      for (uint32_t rank = 0; rank < q->job->is.num_contributors; rank++) add_result(d, q, s.cell, rank, 0);
      break;
    case SML_VERDICT_REPEAT:
      count(w, SML_AT_SWITCH_REPEATED);
      add_result(d, q, s.cell, q->h.rank, SML_FLAG_RETRANSMISSION);
      break;
    case SML_VERDICT_PENDING:
      count(w, is_update ? (uint32_t)SML_DROP_NEEDLESS : SML_AT_SWITCH_PENDING);
      add_pending(d, q);
      break;
    case SML_VERDICT_MISMATCH:
      count(w, SML_AT_SWITCH_REPORTED);
      add_report(d, q, s.first_rank);
      break;
    case SML_VERDICT_JUMP:
      abort();
  }
}

/* Flags that a switch's parser lets pass; what is wrong before that is dropped, whatever it is counted as. */
static bool is_well_formed(const struct question *q, struct sml_header *h) {
  if (sml_wire_open(q->datagram, q->num_bytes, h) != SML_WIRE_OK) return false;
  return (h->flags & (SML_FLAG_KEYED | SML_FLAG_NARROW)) == 0 && h->wire != SML_LANES_UINT8 &&
         (h->type == SML_PACKET_UPDATE || h->type == SML_PACKET_PROBE);
}

/* Has the packet a length that this target's parser looks at? */
static bool is_looked_at(const struct world *w, const struct question *q) {
  return w->bed.kind != BED_PNA || q->num_bytes == SML_HEADER_BYTES ||
         q->num_bytes == SML_HEADER_BYTES + q->job->payload_bytes;
}

static void pass_on(struct due *d, const uint8_t *frame, uint32_t num_bytes) {
  d->num = 1;
  d->frames[0].port = BED_CPU_PORT;
  d->frames[0].num_bytes = num_bytes;
  memcpy(d->frames[0].bytes, frame, num_bytes);
}

static struct due make_due(struct world *w, struct question *q, const uint8_t *frame, uint32_t num_bytes) {
  struct due d = {.num = 0};
  struct job *job = NULL;
  if (q->num_bytes < SML_HEADER_BYTES || !is_looked_at(w, q)) {
    d.is_free = true; /* forwarded: nothing of ours */
    return d;
  }
  if (!is_well_formed(q, &q->h)) return d;
  for (uint32_t j = 0; j < NUM_JOBS; j++)
    if (w->jobs[j].is.number == q->h.job && w->jobs[j].is.epoch == q->h.epoch) job = &w->jobs[j];
  const bool has_length = q->h.payload_bytes == (q->h.type == SML_PACKET_UPDATE ? q->job->payload_bytes : 0);
  if (!has_length) return d;
  if (job == NULL || q->h.rank >= job->is.num_contributors || q->host != job->first_host + q->h.rank ||
      q->port != job->is.places[q->h.rank].port) {
    pass_on(&d, frame, num_bytes);
    return d;
  }
  q->job = job;
  decide(w, q, &d);
  return d;
}

/* ---- comparing ---- */

static bool is_same_frame(const struct p4_out *due, const struct p4_out *got) {
  uint8_t bytes[P4_MAX_FRAME_BYTES];
  if (due->port != got->port || due->num_bytes != got->num_bytes) return false;
  if (bed_ip_checksum(got->bytes + 14) != 0) return false;
  memcpy(bytes, got->bytes, got->num_bytes);
  if (due->port == BED_CPU_PORT) return memcmp(bytes + 42, due->bytes + 42, got->num_bytes - 42) == 0;
  memcpy(bytes + 18, due->bytes + 18, 8);   /* id, flags, time to live, protocol, checksum: looked at above */
  memcpy(bytes + 26, due->bytes + 26, 4);   /* the aggregator's address: checked by its port below */
  memcpy(bytes + 34, due->bytes + 34, 2);
  return sml_load_be32(got->bytes + 26) == BED_AGGREGATOR_IP && sml_load_be16(got->bytes + 34) == BED_AGGREGATOR_PORT &&
         memcmp(bytes, due->bytes, got->num_bytes) == 0;
}

static void describe(const char *what, const struct p4_out *out) {
  printf("#   %s at port %u, %u bytes:", what, out->port, out->num_bytes);
  for (uint32_t i = 42; i < sml_min_u32(out->num_bytes, 90); i++)
    printf("%s%02x", i % 4 == 2 ? " " : "", out->bytes[i]);
  printf("\n");
}

static bool compare(const struct due *due, const struct bed_out *got) {
  if (due->is_free) return true;
  bool is_same = due->num == got->num;
  for (uint32_t i = 0; is_same && i < due->num; i++) {
    bool is_there = false; /* copies come in any order */
    for (uint32_t k = 0; k < got->num; k++) is_there = is_there || is_same_frame(&due->frames[i], &got->frames[k]);
    is_same = is_there;
  }
  return is_same;
}

static void explain(const struct world *w, const struct question *q, const struct due *due, const struct bed_out *got) {
  printf("# packet %u: type %u wire %u:%u job %u rank %u slot %u flags %#x phase %u tag %#x from host %u at port %u\n",
         w->num_packets, q->h.type, q->h.wire, q->h.reducer, q->h.job, q->h.rank, q->h.slot, q->h.flags, q->h.phase,
         q->h.tag, q->host, q->port);
  for (uint32_t i = 0; i < due->num; i++) describe("due", &due->frames[i]);
  for (uint32_t i = 0; i < got->num; i++) describe("got", &got->frames[i]);
  if (due->num == 0) printf("#   nothing is due\n");
}

static bool is_result(const struct due *due) {
  return due->num > 0 && due->frames[0].bytes[42] == (SML_WIRE_VERSION << 4 | SML_PACKET_RESULT);
}

/* Members that hear a result go on; now and then one does not hear it. */
static void hear(struct world *w, const struct question *q, const struct due *due) {
  struct job *job = q->job;
  const uint32_t slot = q->h.slot - job->is.slot_base;
  if (!is_result(due)) return;
  for (uint32_t rank = 0; rank < job->is.num_contributors; rank++) {
    const bool is_told = due->num > 1 || q->h.rank == rank;
    if (is_told && job->phases[rank][slot] == q->h.phase && below(w, 8) != 0) job->phases[rank][slot]++;
  }
}

/* ---- second passes ---- */

/* Where results pass twice, nothing comes out yet. */
static void put_off(struct world *w, const struct question *q, struct due *due) {
  const uint32_t cell = (q->h.slot - q->job->is.slot_base) * 2 + (q->h.phase & 1);
  if (w->bed.kind != BED_TNA64 || !is_result(due)) return;
  SML_ASSERT(w->num_halves < P4_MAX_WAITING);
  w->halves[w->num_halves++] = (struct half){*q, *due, q->job->is.epoch, cell, q->job->num_sums[cell]};
  due->num = 0;
}

/* In any order, however late: what comes out is whole, and of the one sum that the first pass was of, or nothing. */
static bool play_second_pass(struct world *w) {
  static struct bed_out got;
  static struct half half;
  const uint32_t which = below(w, w->num_halves);
  half = w->halves[which];
  w->num_halves--;
  memmove(&w->halves[which], &w->halves[which + 1], (w->num_halves - which) * sizeof half);
  if (below(w, 16) == 0) {
    w->num_lost++;
    bed_again(&w->bed, which, NULL);
    return true;
  }
  const bool is_late = half.epoch != half.q.job->is.epoch || half.sum != half.q.job->num_sums[half.cell];
  if (is_late) half.due.num = 0;
  w->num_late += is_late;
  count(w, is_late ? (uint32_t)SML_DROP_STALE_PHASE : NUM_RETURNED);
  bed_again(&w->bed, which, &got);
  if (!compare(&half.due, &got) || bed_num_waiting(&w->bed) != w->num_halves) {
    printf("# the second pass of:\n");
    explain(w, &half.q, &half.due, &got);
    return false;
  }
  hear(w, &half.q, &half.due);
  return true;
}

/* Some of those that wait, mostly while there are few. */
static bool play_second_passes(struct world *w) {
  bool is_right = true;
  while (is_right && w->num_halves > 0 && (w->num_halves == P4_MAX_WAITING || below(w, 3) == 0))
    is_right = play_second_pass(w);
  return is_right;
}

/* A frame whose IPv4 header was changed on the way is nobody's. DPDK's pipeline does not look. */
static bool play_damaged(struct world *w) {
  static struct bed_out got;
  uint8_t frame[BED_MAX_FRAME_BYTES];
  struct question q = {.job = &w->jobs[below(w, NUM_JOBS)]};
  if (w->bed.kind == BED_PNA || below(w, 64) != 0) return true;
  ask_honestly(w, &q);
  write_question(w, &q);
  const struct sml_place from = bed_place(q.host);
  const uint32_t num_bytes = bed_wrap(frame, &from, BED_AGGREGATOR_MAC, BED_AGGREGATOR_IP, BED_AGGREGATOR_PORT,
                                      q.datagram, q.num_bytes);
  frame[15 + 9 * below(w, 2)] ^= (uint8_t)(1u << below(w, 8)); /* the TOS or the checksum */
  bed_take(&w->bed, q.port, frame, num_bytes, &got);
  if (q.num_bytes < SML_HEADER_BYTES || (got.num == 0 && bed_num_waiting(&w->bed) == w->num_halves)) return true;
  printf("# a damaged IPv4 header was believed\n");
  return false;
}

static bool play_one(struct world *w) {
  static struct bed_out got;
  static struct due due;
  uint8_t frame[BED_MAX_FRAME_BYTES];
  struct question q = make_question(w);
  const struct sml_place from = bed_place(q.host);
  const uint32_t num_bytes = bed_wrap(frame, &from, BED_AGGREGATOR_MAC, BED_AGGREGATOR_IP, BED_AGGREGATOR_PORT,
                                      q.datagram, q.num_bytes);
  w->num_packets++;
  due = make_due(w, &q, frame, num_bytes);
  put_off(w, &q, &due);
  bed_take(&w->bed, q.port, frame, num_bytes, &got);
  if (!compare(&due, &got) || bed_num_waiting(&w->bed) != w->num_halves) {
    explain(w, &q, &due, &got);
    return false;
  }
  if (due.ends_job) start_job(w, q.job);
  else if (!due.is_free) hear(w, &q, &due);
  return play_second_passes(w);
}

/* ---- the bystander ---- */

static bool is_for_members(const struct bed_out *out) {
  for (uint32_t i = 0; i < out->num; i++)
    if (out->frames[i].port != BED_CPU_PORT && out->frames[i].port != BYSTANDER) return true;
  return false;
}

static bool is_heard_by_bystander(const struct bed_out *out) {
  for (uint32_t i = 0; i < out->num; i++)
    if (out->frames[i].port == BYSTANDER) return true;
  return false;
}

/* Would switchmld take it for the switch's word? */
static bool is_report(const struct bed_out *out) {
  for (uint32_t i = 0; i < out->num; i++)
    if (out->frames[i].port == BED_CPU_PORT && out->frames[i].num_bytes >= 74 &&
        out->frames[i].bytes[42] == (SML_WIRE_VERSION << 4 | SML_PACKET_SWITCH_REPORT) &&
        sml_load_be16(out->frames[i].bytes + 52) == 0 && sml_load_be32(out->frames[i].bytes + 70) == BED_VOUCHER)
      return true;
  return false;
}

/* It draws from whatever a member could send next, with its addresses, or the bystander's own MAC. */
static bool play_forgery(struct world *w) {
  static struct bed_out got;
  uint8_t frame[BED_MAX_FRAME_BYTES];
  struct question q = make_question(w);
  const bool is_own = q.host > 4 && q.port > 4;
  struct sml_place from = bed_place(is_own ? 0 : q.host);
  if (below(w, 2) == 0) from.mac = bed_place(BYSTANDER).mac;
  const uint32_t num_bytes = bed_wrap(frame, &from, BED_AGGREGATOR_MAC, BED_AGGREGATOR_IP, BED_AGGREGATOR_PORT,
                                      q.datagram, q.num_bytes);
  bed_take(&w->bed, BYSTANDER, frame, num_bytes, &got);
  if (!is_for_members(&got) && !is_heard_by_bystander(&got) && !is_report(&got) &&
      bed_num_waiting(&w->bed) == w->num_halves)
    return true;
  const struct due nothing = {.num = 0};
  printf("# from the bystander's port:\n");
  explain(w, &q, &nothing, &got);
  return false;
}

/* Control traffic between a member's host and the aggregator. */
static bool play_control(struct world *w) {
  static struct bed_out got;
  static const uint8_t segment[60];
  uint8_t frame[BED_MAX_FRAME_BYTES];
  const struct job *job = &w->jobs[below(w, NUM_JOBS)];
  const struct sml_place *member = &job->is.places[below(w, job->is.num_contributors)];
  const struct sml_place aggregator = {.addr = bed_place(99).addr, .mac = BED_AGGREGATOR_MAC, .port = BED_CPU_PORT};
  const bool is_up = below(w, 2) == 0;
  const uint32_t num_bytes =
      is_up ? bed_wrap(frame, member, BED_AGGREGATOR_MAC, BED_AGGREGATOR_IP, 7, segment, sizeof segment)
            : bed_wrap(frame, &aggregator, member->mac, sml_switch_ip(&member->addr), 7, segment, sizeof segment);
  bed_take(&w->bed, is_up ? member->port : aggregator.port, frame, num_bytes, &got);
  if (got.num == 1 && got.frames[0].port == (is_up ? aggregator.port : member->port)) return true;
  printf("# a frame %s the aggregator came out %u times, first at port %u\n", is_up ? "to" : "of", got.num,
         got.frames[0].port);
  return false;
}

/* Members' packets, of which the core knows what is due, among forgeries, of which it knows nothing. */
static bool play_bystander(enum bed_kind kind, uint32_t num_packets, uint64_t seed) {
  static struct world w;
  bool is_right = true;
  open_world(&w, kind, seed);
  while (is_right && w.num_packets < num_packets / 4) {
    for (uint32_t i = below(&w, 8); is_right && i > 0; i--) is_right = play_forgery(&w);
    is_right = is_right && play_control(&w) && play_one(&w);
  }
  close_world(&w);
  return is_right;
}

static bool counts_agree(const struct world *w) {
  static const uint32_t verdicts[] = {SML_DROP_DUPLICATE,      SML_DROP_NEEDLESS,     SML_AT_SWITCH_FIRST,
                                      SML_AT_SWITCH_ADDED,     SML_AT_SWITCH_COMPLETED, SML_AT_SWITCH_REPEATED,
                                      SML_AT_SWITCH_PENDING,   SML_AT_SWITCH_REPORTED, SML_DROP_BAD_SLOT,
                                      SML_DROP_STALE_PHASE,    NUM_RETURNED};
  bool is_same = true;
  for (uint32_t i = 0; i < SML_ARRAY_LEN(verdicts); i++) {
    const uint32_t v = verdicts[i];
    if (bed_count(&w->bed, v) == w->counts[v]) continue;
    printf("# verdict %u: counted %" PRIu64 " times instead of %" PRIu64 "\n", v, bed_count(&w->bed, v), w->counts[v]);
    is_same = false;
  }
  return is_same;
}

static bool play(enum bed_kind kind, uint32_t num_packets, uint64_t seed) {
  static struct world w;
  bool is_right = true;
  open_world(&w, kind, seed);
  while (is_right && w.num_packets < num_packets) is_right = play_damaged(&w) && play_one(&w);
  is_right = is_right && counts_agree(&w);
  printf("# %u packets, %u epochs, %u results; second passes: %u, late %u, lost %u\n", w.num_packets, w.num_epochs,
         (uint32_t)w.counts[SML_AT_SWITCH_COMPLETED], (uint32_t)w.counts[NUM_RETURNED], w.num_late, w.num_lost);
  if (kind == BED_TNA64 && num_packets >= 10000) is_right = is_right && w.num_late > 0 && w.num_lost > 0;
  close_world(&w);
  return is_right;
}

static int play_library(const char *library, uint32_t num_packets, uint64_t seed) {
  const int kind = bed_replace(library);
  if (kind < 0) printf("# no program in %s\n", library);
  const bool is_right = kind >= 0 && play((enum bed_kind)kind, num_packets, seed) &&
                        play_bystander((enum bed_kind)kind, num_packets, seed);
  return is_right ? 0 : 1;
}

int main(int argc, char **argv) {
  const uint32_t num_packets = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 30000;
  const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)time(NULL);
  bool is_right = true;
  if (argc > 3) return play_library(argv[3], num_packets, seed);
  printf("1..%d\n# seed %" PRIu64 "\n", 2 * BED_NUM_KINDS, seed);
  for (int kind = 0; kind < BED_NUM_KINDS; kind++) {
    const bool is_ok = play((enum bed_kind)kind, num_packets, seed);
    printf("%sok %d - %s does with random packets what the core does\n", is_ok ? "" : "not ", kind + 1,
           bed_names[kind]);
    is_right = is_right && is_ok;
  }
  for (int kind = 0; kind < BED_NUM_KINDS; kind++) {
    const bool is_ok = play_bystander((enum bed_kind)kind, num_packets, seed);
    printf("%sok %d - %s: a bystander hears nothing, and changes nothing\n", is_ok ? "" : "not ",
           BED_NUM_KINDS + kind + 1, bed_names[kind]);
    is_right = is_right && is_ok;
  }
  return is_right ? 0 : 1;
}
