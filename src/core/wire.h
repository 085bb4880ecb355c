/* SPDX-License-Identifier: Apache-2.0
 * Wire version 1: the 32-byte header of every datagram, big-endian (docs/PROTOCOL.md "Header").
 * This file is the one home of the format; BPF, P4 and dissectors cite it.
 *
 *  0  version:4 type:4 wire:4 reducer:4 job:16
 *  4  epoch:32
 *  8  rank:16 payload_bytes:16
 * 12  slot:16 flags:16
 * 16  phase:32
 * 20  tag:32
 * 24  chunk:32      UPDATE: index in the lane's stream mod 2^32. RESULT: the chunk granted next.
 * 28  crc32c:32     over header (this word zero) and payload, XORed with the epoch's mask
 *
 * A KEYED packet has a longer word instead of the last one, so its header has four bytes more:
 *
 * 28  mac:64        SipHash-2-4 over the 28 bytes before it, four zero ones and the digests of the payload */
#pragma once

#include "base/nh.h"

#define SML_WIRE_VERSION 1
#define SML_HEADER_BYTES 32u
#define SML_KEYED_BYTES 4u  /* the header of KEYED packets is longer by this: a MAC replaces the checksum */
#define SML_CHECK_BYTES 4u  /* the check word: the last lane of CHECKED payloads */
#define SML_MAX_DATAGRAM_BYTES 8960u /* unless a setting asks for more */
#define SML_MAX_WORLD_SIZE 4096u
/* With fewer slots too few packets follow a lost one to show it, and only timers do. This is the default of the
 * options' order_slots. Tests set less, so that small worlds ask as large ones do. */
#define SML_ORDER_SLOTS 16u
#define SML_SWITCH_MAX_CONTRIBUTORS 30u /* switch format: a switch's word has so many bits to spare */
#define SML_SWITCH_BITMAP_BYTES 4u       /* switch format: PENDING's payload */
#define SML_FIRST_PHASE 2u /* zero-filled state is then older than anything */

enum sml_packet_type {
  SML_PACKET_UPDATE = 1,  /* worker -> aggregator: one rank's contribution to a slot */
  SML_PACKET_RESULT = 2,  /* aggregator -> worker: the sum, and the grant of the next chunk */
  SML_PACKET_PENDING = 3, /* aggregator -> worker: not complete; payload = bitmap of missing ranks */
  SML_PACKET_ERROR = 4,   /* aggregator -> worker: job or epoch unknown here; no payload */
  SML_PACKET_HELLO = 5,   /* both ways: registers a data address and probes the MTU; payload = nonce:64, padding */
  SML_PACKET_ABORT = 6,   /* reserved: aborts travel on the control connection */
  SML_PACKET_PROBE = 7,   /* worker -> aggregator: what became of this slot? never a contribution */
};

/* A switch tells its control plane that an UPDATE or PROBE has another tag than its slot: `chunk` is the contributor
 * that the slot's tag came from. From anybody else such a packet is dropped as an unknown type. */
#define SML_PACKET_SWITCH_REPORT 15u
/* Likewise: the switch heard an unknown host at port `slot`; its MAC is in phase (upper bits) and tag. */
#define SML_PACKET_SWITCH_HEARD 13u

enum sml_wire_type {
  SML_LANES_INT32 = 0,
  SML_LANES_UINT8 = 1,
  SML_LANES_UINT32 = 2, /* in switch format exponent codes, too: one a lane */
  SML_LANES_UINT64 = 3, /* two lanes of 32 bits, the upper one first */
};
enum sml_wire_reducer {
  SML_REDUCE_SUM = 0,
  SML_REDUCE_MAX = 1,
  /* One-way windows only; `chunk` is the owner there (docs/PROTOCOL.md "One-way windows"). */
  SML_REDUCE_TO_OWNER = 2, /* int32 SUM of all but the owner, who alone gets it */
  SML_REDUCE_COPY = 3,     /* uint8: what the owner has goes to all others */
  SML_REDUCE_PRODUCT = 4,  /* modulo 2^32 or 2^64 */
  SML_REDUCE_OR = 5,
};

static inline bool sml_has_owner(uint8_t reducer) {
  return reducer == SML_REDUCE_TO_OWNER || reducer == SML_REDUCE_COPY;
}

/* Who contributes to a chunk, by its reducer. In one-way windows all others are receivers. */
static inline bool sml_contributes(uint8_t reducer, uint32_t owner, uint32_t rank) {
  if (reducer == SML_REDUCE_TO_OWNER) return rank != owner;
  return reducer != SML_REDUCE_COPY || rank == owner;
}

/* One-way windows (docs/PROTOCOL.md R192): behind the num_slots slots of a lane are twice as many for copies, and as
 * many for sums to their owners, since a chunk and its fence wait in the same queues. Each slot has two versions, so a
 * window holds two positions a slot. */
#define SML_FENCE UINT32_MAX /* `chunk` of a fence's packets; of exponents 0 */
#define SML_ALL_WINDOWS 5u   /* times num_slots */
static inline uint32_t sml_window_slots(uint8_t way, uint32_t num_slots) {
  return sml_has_owner(way) ? 2 * num_slots : num_slots;
}
static inline uint32_t sml_window_base(uint8_t way, uint32_t num_slots) {
  return way == SML_REDUCE_COPY ? num_slots : way == SML_REDUCE_TO_OWNER ? 3 * num_slots : 0;
}
static inline uint32_t sml_window_positions(uint8_t way, uint32_t num_slots) {
  return 2 * sml_window_slots(way, num_slots);
}

enum sml_packet_flags {
  SML_FLAG_RETRANSMISSION = 1u << 0, /* UPDATE sent again; RESULT repeated from the stored one */
  SML_FLAG_KEYED = 1u << 1,          /* the header ends with the MAC instead of the checksum */
  SML_FLAG_CHECKED = 1u << 2,        /* int32 UPDATE and RESULT: the last lane is the check word */
  SML_FLAG_BY_GRANT = 1u << 3,       /* PROBE: for the result that granted `chunk`; slot, phase and tag are not used */
  SML_FLAG_UNASKED = 1u << 4,        /* PENDING: no answer to a probe; later packets of the rank overtook its update */
  SML_FLAG_MARKED = 1u << 5,         /* PENDING: it says only that the update of `chunk` came with a congestion mark */
  SML_FLAG_DEAF = 1u << 6,           /* PROBE: the rank's latest results came as repeats only, not by the job's group */
  SML_FLAG_NARROW = 1u << 7,         /* int32 UPDATE: lanes of 28 bits, eight in the space of seven */
};

struct sml_header {
  uint8_t version, type, wire, reducer;
  uint16_t job;
  uint32_t epoch;
  uint16_t rank;
  uint16_t payload_bytes;
  uint16_t slot; /* absolute number at the aggregator's engine */
  uint16_t flags;
  uint32_t phase;
  uint32_t tag;
  uint32_t chunk;
};

enum sml_wire_error {
  SML_WIRE_OK,
  SML_WIRE_TRUNCATED,   /* shorter than a header, or than the header says */
  SML_WIRE_OVERLONG,    /* longer than the header says */
  SML_WIRE_BAD_VERSION,
  SML_WIRE_BAD_TYPE,    /* type, wire type, reducer or flags that version 1 does not have */
};

/* What shows that a datagram belongs to a job's epoch: the key of its MAC, or the mask of its CRC. Only the members and
 * the aggregator know it, but whoever reads the path can compute the mask. NULL: a CRC without a mask. */
struct sml_seal {
  bool is_keyed;
  uint32_t mask;      /* not keyed */
  struct sml_key key; /* keyed */
  struct sml_nh_key digest_key; /* made of it */
};
/* key: the epoch's, or NULL; secret: the epoch's, from WELCOME or START. sml_seal_of returns the seal, and may leave a
 * copy of the key on the stack. */
void sml_seal_set(struct sml_seal *seal, const struct sml_key *key, const uint64_t secret[2]);
static inline struct sml_seal sml_seal_of(const struct sml_key *key, const uint64_t secret[2]) {
  struct sml_seal seal;
  sml_seal_set(&seal, key, secret);
  return seal;
}
static inline struct sml_seal sml_seal_of_key(const struct sml_key *key) {
  return sml_seal_of(key, (const uint64_t[2]){0, 0});
}

/* Where the payload begins. */
static inline uint32_t sml_head_bytes(bool is_keyed) {
  return is_keyed ? SML_HEADER_BYTES + SML_KEYED_BYTES : SML_HEADER_BYTES;
}
static inline uint32_t sml_head_bytes_of(const struct sml_header *header) {
  return sml_head_bytes((header->flags & SML_FLAG_KEYED) != 0);
}

/* Narrow updates (quant/narrow.h): from the bytes of lanes, a multiple of SML_NARROW_UNIT, to those of the payload; and
 * from an UPDATE's payload back to the bytes of its lanes. */
#define SML_NARROW_UNIT 32u
#define SML_NARROW_UNIT_BYTES 28u
static inline uint32_t sml_narrow_bytes(uint32_t lanes_bytes) {
  return lanes_bytes / SML_NARROW_UNIT * SML_NARROW_UNIT_BYTES;
}
static inline uint32_t sml_lanes_bytes_of(const struct sml_header *header) {
  return (header->flags & SML_FLAG_NARROW) == 0 ? header->payload_bytes
                                                : header->payload_bytes / SML_NARROW_UNIT_BYTES * SML_NARROW_UNIT;
}

/* A HELLO's payload: nonce:64, time:64, a byte that is 1 if the echo shall come by the job's multicast group, zeros. */
#define SML_HELLO_GROUP_OFFSET 16u
static inline bool sml_hello_is_to_group(const uint8_t *payload, uint32_t payload_bytes) {
  return payload_bytes > SML_HELLO_GROUP_OFFSET && payload[SML_HELLO_GROUP_OFFSET] == 1;
}

/* Writes header and CRC or MAC before the payload, which already stands at frame + sml_head_bytes(seal->is_keyed). The
 * seal decides about the KEYED flag, whatever the header has. */
void sml_wire_seal(uint8_t *frame, const struct sml_header *header, const struct sml_seal *seal);
/* Checks length, version and known values. Believe nothing before sml_wire_is_authentic says so. The payload is at
 * frame + sml_head_bytes_of(header_out). */
enum sml_wire_error sml_wire_open(const uint8_t *frame, size_t num_bytes, struct sml_header *header_out);

/* Jobs in switch format: UPDATE, PROBE, RESULT and PENDING have 0 for a CRC, and nobody checks it. */
void sml_wire_seal_for_switch(uint8_t *frame, const struct sml_header *header);
/* In such a job: is an opened frame one without a CRC? */
bool sml_wire_is_without_crc(const struct sml_header *header);
/* Does an opened frame have what the seal asks for: KEYED with the right MAC, or not KEYED with the right CRC under the
 * mask? */
bool sml_wire_is_authentic(const uint8_t *frame, const struct sml_header *header, const struct sml_seal *seal);
/* The mask with which an opened frame, not KEYED, was sealed, if it is not damaged. An aggregator that does not know
 * the job can seal its answer with it, so that the sender, and nobody else, takes it for the answer to this frame. */
uint32_t sml_wire_mask(const uint8_t *frame, const struct sml_header *header);
/* Did a switch write this voucher into the frame (PROTOCOL.md, R183)? */
bool sml_wire_has_voucher(const uint8_t *frame, uint32_t voucher);

/* CRC-32C (Castagnoli), continued from crc (0 to begin); RFC 3720 appendix B.4. */
uint32_t sml_crc32c(uint32_t crc, const void *data, size_t num_bytes);
