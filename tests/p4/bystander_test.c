/* SPDX-License-Identifier: Apache-2.0
 * Each switch program of p4/, translated to C: two ranks sum, and a host at a port of its own sends hostile frames of
 * every kind in between. It knows job, epoch, addresses, slots and phases, as an eavesdropper would. It hears nothing,
 * every sum is exact and comes out at both ranks at once, and switchmld hears no report. What comes out elsewhere is
 * ordinary traffic: the frame as it was, where its receiver is, and nothing of it in the aggregator's name.
 *
 * bystander_test [--packets N] [--seed S]: N hostile frames for each program. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/base.h"
#include "core/wire.h"
#include "switch_bed.h"

#define NUM_RANKS 2u
#define NUM_SLOTS 4u
#define JOB 3u
#define EPOCH 0x51000001u
#define FIRST_SLOT 64u
#define BYSTANDER 8u
#define MAX_BYTES 1900u
#define GATEWAY_MAC UINT64_C(0x0200000000fe)
#define ETHERTYPE_ARP 0x0806u
#define ETHERTYPE_TRIAL 0x88b5u

enum kind {
  PLAIN,
  OTHER_EPOCH,
  OTHER_MAC,
  ANY_HEAD,
  FRAGMENT,
  OPTIONS,
  TOTAL_LENGTH,
  UDP_LENGTH,
  CUT,
  JUMBO,
  TAGGED,
  STATION_MOVE,
  RESULT_TO_RANK,
  CONTROL,
  BIT_ERRORS,
  GARBAGE,
  NUM_KINDS
};

struct world {
  struct bed bed;
  struct sml_prng prng;
  uint32_t num_forged, num_sums;
  uint32_t phases[NUM_SLOTS];
};

struct frame {
  uint8_t bytes[MAX_BYTES + 8];
  uint32_t num_bytes;
};

static uint32_t below(struct world *w, uint32_t bound) {
  return (uint32_t)sml_prng_below(&w->prng, bound);
}

static void fill(struct world *w, uint8_t *bytes, uint32_t num_bytes) {
  for (uint32_t i = 0; i < num_bytes; i++) bytes[i] = (uint8_t)sml_prng_next(&w->prng);
}

static void put_mac(uint8_t *bytes, uint64_t mac) {
  for (uint32_t i = 0; i < 6; i++) bytes[i] = (uint8_t)(mac >> (40 - 8 * i));
}

static uint64_t mac_at(const uint8_t *bytes) {
  return (uint64_t)sml_load_be16(bytes) << 32 | sml_load_be32(bytes + 2);
}

static uint32_t payload_bytes_of(const struct world *w) {
  return 4 * w->bed.lanes;
}

/* A rank's next update for a slot. */
static struct sml_header next_update(const struct world *w, uint32_t rank, uint32_t slot) {
  return (struct sml_header){.version = SML_WIRE_VERSION,
                             .type = SML_PACKET_UPDATE,
                             .wire = SML_LANES_INT32,
                             .reducer = SML_REDUCE_SUM,
                             .job = JOB,
                             .epoch = EPOCH,
                             .rank = (uint16_t)rank,
                             .payload_bytes = (uint16_t)payload_bytes_of(w),
                             .slot = (uint16_t)(FIRST_SLOT + slot),
                             .phase = w->phases[slot],
                             .tag = 0x1000 * slot + w->phases[slot]};
}

static void wrap(struct frame *f, const struct sml_place *from, const uint8_t *datagram, uint32_t num_bytes) {
  f->num_bytes = bed_wrap(f->bytes, from, BED_AGGREGATOR_MAC, BED_AGGREGATOR_IP, BED_AGGREGATOR_PORT, datagram,
                          num_bytes);
}

/* ---- hostile frames ---- */

static void spoil_head(struct world *w, struct sml_header *h) {
  h->type = (uint8_t)below(w, 16);
  h->version = (uint8_t)(below(w, 2) ? SML_WIRE_VERSION : below(w, 16));
  h->flags = (uint16_t)(below(w, 2) ? below(w, 0x10000) : 0);
  h->wire = (uint8_t)below(w, 4);
  h->reducer = (uint8_t)below(w, 3);
  h->payload_bytes = (uint16_t)(below(w, 2) ? h->payload_bytes : below(w, 0x10000));
}

/* What a rank could say next, or nearly. Returns its bytes. */
static uint32_t forge_datagram(struct world *w, enum kind kind, uint8_t *datagram, uint32_t *rank_out) {
  static const uint8_t types[] = {SML_PACKET_UPDATE, SML_PACKET_PROBE,        SML_PACKET_UPDATE,
                                  SML_PACKET_HELLO,  SML_PACKET_RESULT, SML_PACKET_SWITCH_REPORT};
  const uint32_t rank = *rank_out = below(w, NUM_RANKS);
  struct sml_header h = next_update(w, rank, below(w, NUM_SLOTS));
  h.type = types[below(w, SML_ARRAY_LEN(types))];
  const bool has_lanes = h.type == SML_PACKET_UPDATE || h.type == SML_PACKET_RESULT || h.type == SML_PACKET_HELLO;
  if (!has_lanes) h.payload_bytes = 0;
  const uint32_t num_bytes = SML_HEADER_BYTES + h.payload_bytes;
  if (below(w, 3) == 0) h.flags = SML_FLAG_RETRANSMISSION;
  if (below(w, 3) == 0) h.phase += below(w, 5) - 2;
  if (below(w, 8) == 0) h.tag ^= 1u << below(w, 32);
  if (below(w, 8) == 0) h.rank = (uint16_t)below(w, 40);
  if (kind == OTHER_EPOCH) h.epoch ^= 1 + below(w, UINT32_MAX);
  if (kind == ANY_HEAD) spoil_head(w, &h);
  fill(w, datagram, num_bytes);
  sml_wire_seal_for_switch(datagram, &h);
  return num_bytes;
}

static void renew_checksum(uint8_t *head) {
  sml_store_be16(head + 10, 0);
  sml_store_be16(head + 10, bed_ip_checksum(head));
}

static void insert(struct frame *f, uint32_t at, uint32_t num_bytes) {
  memmove(f->bytes + at + num_bytes, f->bytes + at, f->num_bytes - at);
  f->num_bytes += num_bytes;
}

static void append(struct world *w, struct frame *f, uint32_t num_bytes) {
  fill(w, f->bytes + f->num_bytes, num_bytes);
  f->num_bytes += num_bytes;
}

/* The checksum of 24 bytes is not renewed: no program looks at that of a head with options, and hosts drop it. */
static void add_options(struct frame *f) {
  insert(f, 34, 4);
  f->bytes[14] = 0x46;
  memset(f->bytes + 34, 1, 4);
  sml_store_be16(f->bytes + 16, (uint16_t)(f->num_bytes - 14));
}

static void add_tag(struct world *w, struct frame *f) {
  static const uint16_t tags[] = {0, 0xe000, 1, 0x0fff};
  insert(f, 12, 4);
  sml_store_be16(f->bytes + 12, below(w, 4) ? 0x8100 : 0x88a8);
  sml_store_be16(f->bytes + 14, tags[below(w, SML_ARRAY_LEN(tags))]);
}

/* In the name of a rank, of the aggregator or of others, to one of these, or to all. */
static void move_station(struct world *w, struct frame *f, uint16_t type) {
  const uint64_t macs[] = {bed_place(0).mac, bed_place(1).mac, BED_AGGREGATOR_MAC, GATEWAY_MAC,
                           UINT64_C(0xffffffffffff)};
  put_mac(f->bytes, macs[below(w, 5)]);
  put_mac(f->bytes + 6, macs[below(w, 4)]);
  sml_store_be16(f->bytes + 12, type);
  f->num_bytes = 14;
  append(w, f, below(w, 1400));
}

static void be_aggregator(struct world *w, struct frame *f, const uint8_t *datagram, uint32_t num_bytes) {
  const struct sml_place to = bed_place(below(w, NUM_RANKS));
  struct sml_place from = bed_place(99);
  from.mac = BED_AGGREGATOR_MAC;
  f->num_bytes = bed_wrap(f->bytes, &from, to.mac, sml_switch_ip(&to.addr), sml_addr_port(&to.addr), datagram,
                          num_bytes);
  sml_store_be32(f->bytes + 26, BED_AGGREGATOR_IP);
  sml_store_be16(f->bytes + 34, BED_AGGREGATOR_PORT);
  renew_checksum(f->bytes + 14);
}

static void forge(struct world *w, enum kind kind, struct frame *f) {
  static const uint16_t offsets[] = {0x2000, 0x2001, 0x0004, 0x1fff, 0x8000};
  static const uint32_t tails[] = {1, 4, 32, 60};
  const uint64_t macs[] = {bed_place(BYSTANDER).mac, GATEWAY_MAC, BED_AGGREGATOR_MAC};
  uint8_t datagram[SML_HEADER_BYTES + 4 * BED_MAX_LANES];
  uint32_t rank;
  const uint32_t num_bytes = forge_datagram(w, kind, datagram, &rank);
  struct sml_place from = bed_place(rank);
  if (kind == OTHER_MAC) from.mac = macs[below(w, 3)];
  wrap(f, &from, datagram, num_bytes);
  switch (kind) {
    case FRAGMENT:
      sml_store_be16(f->bytes + 20, offsets[below(w, SML_ARRAY_LEN(offsets))]);
      renew_checksum(f->bytes + 14);
      break;
    case OPTIONS: add_options(f); break;
    case TOTAL_LENGTH:
      append(w, f, tails[below(w, 4)]);
      sml_store_be16(f->bytes + 16, (uint16_t)(below(w, 2) ? f->num_bytes - 14 : below(w, 0x10000)));
      renew_checksum(f->bytes + 14);
      break;
    case UDP_LENGTH: sml_store_be16(f->bytes + 38, (uint16_t)below(w, 0x10000)); break;
    case CUT: f->num_bytes = below(w, f->num_bytes); break;
    case JUMBO: append(w, f, MAX_BYTES - f->num_bytes - below(w, 300)); break;
    case TAGGED:
      if (below(w, 2)) be_aggregator(w, f, datagram, num_bytes);
      for (uint32_t i = 1 + below(w, 3); i > 0; i--) add_tag(w, f);
      break;
    case STATION_MOVE: move_station(w, f, below(w, 4) ? ETHERTYPE_TRIAL : ETHERTYPE_ARP); break;
    case RESULT_TO_RANK:
      be_aggregator(w, f, datagram, num_bytes);
      if (below(w, 4) == 0) sml_store_be16(f->bytes + 20, offsets[below(w, SML_ARRAY_LEN(offsets))]);
      renew_checksum(f->bytes + 14);
      if (below(w, 8) == 0) add_options(f);
      break;
    case CONTROL:
      f->bytes[23] = 6;
      renew_checksum(f->bytes + 14);
      break;
    case BIT_ERRORS:
      for (uint32_t i = 1 + below(w, 3); i > 0; i--) f->bytes[14 + below(w, 28)] ^= (uint8_t)(1u << below(w, 8));
      break;
    case GARBAGE: move_station(w, f, (uint16_t)(below(w, 2) ? 0x0800 : below(w, 0x10000))); break;
    default: break;
  }
}

/* ---- what may come out ---- */

/* A report of this job and epoch, wherever it begins, that switchmld would believe. */
static bool has_report(const struct p4_out *out) {
  for (uint32_t i = 14; i + SML_HEADER_BYTES <= out->num_bytes; i++)
    if (out->bytes[i] == (SML_WIRE_VERSION << 4 | SML_PACKET_SWITCH_REPORT) &&
        sml_load_be16(out->bytes + i + 2) == JOB && sml_load_be32(out->bytes + i + 4) == EPOCH &&
        sml_load_be32(out->bytes + i + 28) == BED_VOUCHER)
      return true;
  return false;
}

/* An IPv4 header with the aggregator's address, behind tags that a host might take off, too. */
static bool is_in_the_aggregators_name(const struct p4_out *out) {
  for (uint32_t at = 12; at + 18 <= out->num_bytes; at += 4) {
    const uint16_t type = sml_load_be16(out->bytes + at);
    if (type == 0x8100 || type == 0x88a8) continue;
    return type == 0x0800 && sml_load_be32(out->bytes + at + 14) == BED_AGGREGATOR_IP;
  }
  return false;
}

static const char *wrong_with(const struct frame *f, const struct p4_out *out) {
  const uint64_t to = mac_at(f->bytes);
  const bool is_same = out->num_bytes == f->num_bytes && memcmp(out->bytes, f->bytes, f->num_bytes) == 0;
  if (out->port == BYSTANDER) /* v1model.p4 has learned that the gateway is here */
    return is_same && to == GATEWAY_MAC ? NULL : "the bystander hears something";
  if (out->port == BED_CPU_PORT) return has_report(out) ? "switchmld would hear a report" : NULL;
  if (!is_same) return "a host hears what was made of the frame";
  if (is_in_the_aggregators_name(out)) return "a host hears the aggregator's name";
  if (sml_load_be16(f->bytes + 12) == ETHERTYPE_ARP) return NULL; /* it goes to all */
  if (to == BED_AGGREGATOR_MAC) return "a host hears what is for the aggregator";
  if (to == bed_place(1 - out->port % 2).mac) return "a host hears what is for a rank";
  return NULL;
}

static bool play_forgery(struct world *w) {
  static struct bed_out got;
  static struct frame f;
  const enum kind kind = (enum kind)below(w, NUM_KINDS);
  const char *wrong = NULL;
  char why[512];
  forge(w, kind, &f);
  w->num_forged++;
  bed_take(&w->bed, BYSTANDER, f.bytes, f.num_bytes, &got);
  if (bed_num_waiting(&w->bed) != 0) wrong = "a second pass begins";
  for (uint32_t i = 0; i < got.num && wrong == NULL; i++)
    if (!bed_hear(&w->bed, &got.frames[i], sml_clock_ns(), why, sizeof why)) wrong = wrong_with(&f, &got.frames[i]);
  if (wrong == NULL) return true;
  printf("# forgery %u, of kind %d, %u bytes: %s\n#", w->num_forged, (int)kind, f.num_bytes, wrong);
  for (uint32_t i = 0; i < sml_min_u32(f.num_bytes, 80); i++) printf(" %02x", f.bytes[i]);
  printf("\n");
  return false;
}

/* ---- what ranks do ---- */

static bool is_sum(const struct world *w, const struct p4_out *out, uint32_t slot, const uint32_t *values) {
  struct sml_header h;
  if (out->num_bytes != 42 + SML_HEADER_BYTES + payload_bytes_of(w)) return false;
  if (sml_wire_open(out->bytes + 42, out->num_bytes - 42, &h) != SML_WIRE_OK || h.type != SML_PACKET_RESULT ||
      h.epoch != EPOCH || h.job != JOB || h.slot != FIRST_SLOT + slot || h.phase != w->phases[slot])
    return false;
  for (uint32_t i = 0; i < w->bed.lanes; i++)
    if (sml_load_be32(out->bytes + 42 + SML_HEADER_BYTES + 4 * i) != values[i]) return false;
  return mac_at(out->bytes) == bed_place(out->port).mac;
}

/* A frame of the control connection from the aggregator to a rank: there, and nowhere else. */
static bool play_control(struct world *w) {
  static struct bed_out got;
  static const uint8_t segment[60];
  static struct frame f;
  be_aggregator(w, &f, segment, sizeof segment);
  f.bytes[23] = 6;
  renew_checksum(f.bytes + 14);
  bed_take(&w->bed, BED_CPU_PORT, f.bytes, f.num_bytes, &got);
  if (got.num == 1 && bed_place(got.frames[0].port).mac == mac_at(f.bytes)) return true;
  printf("# a frame of the aggregator to a rank came out %u times\n", got.num);
  return false;
}

/* One sum of a slot, with forgeries before each update. */
static bool play_sum(struct world *w) {
  static struct bed_out got;
  uint8_t datagram[SML_HEADER_BYTES + 4 * BED_MAX_LANES];
  uint32_t values[BED_MAX_LANES] = {0};
  struct frame f;
  const uint32_t slot = below(w, NUM_SLOTS), first = below(w, NUM_RANKS);
  for (uint32_t n = 0; n < NUM_RANKS; n++) {
    for (uint32_t i = below(w, 24); i > 0; i--)
      if (!play_forgery(w)) return false;
    const uint32_t rank = (first + n) % NUM_RANKS;
    const struct sml_header h = next_update(w, rank, slot);
    const struct sml_place from = bed_place(rank);
    for (uint32_t i = 0; i < w->bed.lanes; i++) {
      const uint32_t value = (uint32_t)sml_prng_next(&w->prng);
      values[i] += value;
      sml_store_be32(datagram + SML_HEADER_BYTES + 4 * i, value);
    }
    sml_wire_seal_for_switch(datagram, &h);
    wrap(&f, &from, datagram, SML_HEADER_BYTES + payload_bytes_of(w));
    bed_take(&w->bed, rank, f.bytes, f.num_bytes, &got);
    if (n + 1 == NUM_RANKS || got.num == 0) continue;
    printf("# the first rank's update of sum %u is answered\n", w->num_sums);
    return false;
  }
  if (w->bed.kind == BED_TNA64) bed_again(&w->bed, 0, &got);
  const bool is_right = got.num == NUM_RANKS && got.frames[0].port + got.frames[1].port == 1 &&
                        is_sum(w, &got.frames[0], slot, values) && is_sum(w, &got.frames[1], slot, values);
  if (!is_right) printf("# sum %u is not what was due: %u frames\n", w->num_sums, got.num);
  w->phases[slot]++;
  w->num_sums++;
  return is_right && play_control(w);
}

static bool play(enum bed_kind kind, uint32_t num_packets, uint64_t seed) {
  static struct world w;
  memset(&w, 0, sizeof w);
  w.prng.state = seed;
  bed_open(&w.bed, kind, seed);
  struct sml_dataplane_job job = {.number = JOB, .epoch = EPOCH, .num_contributors = NUM_RANKS, .num_slots = NUM_SLOTS,
                                  .slot_base = FIRST_SLOT};
  for (uint32_t rank = 0; rank < NUM_RANKS; rank++) job.places[rank] = bed_place(rank);
  for (uint32_t slot = 0; slot < NUM_SLOTS; slot++) w.phases[slot] = SML_FIRST_PHASE;
  bed_start_job(&w.bed, &job);
  bool is_right = true;
  while (is_right && w.num_forged < num_packets) is_right = play_sum(&w);
  printf("# %u hostile frames, %u sums\n", w.num_forged, w.num_sums);
  bed_close(&w.bed);
  return is_right;
}

int main(int argc, char **argv) {
  uint32_t num_packets = 100000;
  uint64_t seed = (uint64_t)time(NULL);
  bool is_right = true;
  for (int i = 1; i < argc; i += 2) {
    const bool is_packets = strcmp(argv[i], "--packets") == 0;
    if (i + 1 == argc || (!is_packets && strcmp(argv[i], "--seed") != 0)) {
      fprintf(stderr, "usage: %s [--packets N] [--seed S]\n", argv[0]);
      return 2;
    }
    if (is_packets) num_packets = (uint32_t)strtoul(argv[i + 1], NULL, 0);
    else seed = strtoull(argv[i + 1], NULL, 0);
  }
  printf("1..%d\n# seed %" PRIu64 "\n", BED_NUM_KINDS, seed);
  for (int kind = 0; kind < BED_NUM_KINDS; kind++) {
    const bool is_ok = play((enum bed_kind)kind, num_packets, seed);
    printf("%sok %d - %s: what a bystander sends changes no sum\n", is_ok ? "" : "not ", kind + 1, bed_names[kind]);
    is_right = is_right && is_ok;
  }
  return is_right ? 0 : 1;
}
