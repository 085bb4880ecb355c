/* SPDX-License-Identifier: Apache-2.0
 * What the switch sees of a packet, the numbers of wire version 1 (docs/PROTOCOL.md, src/core/wire.h), and what the
 * parts of the program pass to each other. Fields are 8, 16 or 32 bits wide: every target can hold those. */
#include "lanes.p4"

const bit<16> ETHERTYPE_IPV4 = 0x0800;
#define ETHERTYPE_ARP 16w0x0806
#define ETHERTYPE_TAG 16w0x8100 /* of a VLAN */
#define ETHERTYPE_OUTER_TAG 16w0x88a8
const bit<8> IPV4_PLAIN = 0x45; /* version 4, no options */
const bit<8> PROTOCOL_UDP = 17;

/* Lengths by which the parser knows what follows. */
#define HEAD_BYTES 32
#define LANE_BYTES (LANES * 4)
#define UDP_BARE (8 + HEAD_BYTES)           /* UDP length of a packet without payload */
#define UDP_FULL (8 + HEAD_BYTES + LANE_BYTES)
#define IPV4_BARE (20 + UDP_BARE)
#define IPV4_FULL (20 + UDP_FULL)

/* version:4 type:4 */
const bit<8> HEAD_UPDATE = 0x11;
const bit<8> HEAD_RESULT = 0x12;
const bit<8> HEAD_PENDING = 0x13;
const bit<8> HEAD_HELLO = 0x15;
const bit<8> HEAD_PROBE = 0x17;
#define HEAD_HEARD 8w0x1d /* the switch's own, to its control plane: a host, and where it is */
const bit<8> HEAD_REPORT = 0x1f; /* the switch's own, to its control plane: a mismatch */

/* wire:4 reducer:4 */
const bit<8> WIRE_SUM = 0x00; /* int32 lanes, SUM */
const bit<8> WIRE_MAX = 0x21; /* codes in 32-bit lanes, MAX */

const bit<16> FLAG_RETRANSMISSION = 1;
const bit<16> FLAG_KEYED = 2;
const bit<16> FLAG_CHECKED = 4;

/* A cell's word: valid, bit 1 of its phase, the ranks that have contributed. */
#define WORD_VALID 32w0x80000000
#define WORD_TURN 32w0x40000000
#define WORD_RANKS 32w0x3fffffff

/* What a packet turned out to be: indices of the counter `verdicts`. Below 32: the reasons of src/core/drop.h in their
 * order. */
const bit<8> TRUNCATED = 0;
const bit<8> BAD_VERSION = 2;
const bit<8> BAD_TYPE = 3;
const bit<8> BAD_KEY = 7;
const bit<8> WRONG_SOURCE = 9;
const bit<8> BAD_SLOT = 12;
const bit<8> BAD_LENGTH = 13;
const bit<8> STALE_PHASE = 14;
const bit<8> DUPLICATE = 17;
const bit<8> NEEDLESS = 18;
const bit<8> FIRST = 32;
const bit<8> ADDED = 33;
const bit<8> COMPLETED = 34;
const bit<8> REPEATED = 35;
const bit<8> ASKED = 36;
const bit<8> REPORTED = 37;
const bit<8> GREETED = 38;
const bit<8> PUNTED = 39;
const bit<8> FORWARDED = 40;
#define NUM_VERDICTS 64

/* What is done to the lanes. */
const bit<8> OP_NONE = 0;
const bit<8> OP_WRITE = 1;
const bit<8> OP_ADD = 2;
const bit<8> OP_MAX = 3;
const bit<8> OP_READ = 4;

#define GROUP_OF_FLOODS 16w1

/* Where the packet goes. */
const bit<8> WAY_DROP = 0;
const bit<8> WAY_PORT = 1;
const bit<8> WAY_GROUP = 2;
#define WAY_ROUND 8w4 /* BMv2: it came back by another port than its sender's */

header ethernet_h {
  bit<48> dst;
  bit<48> src;
  bit<16> type;
}

header ipv4_h {
  bit<8> version_ihl;
  bit<8> tos;
  bit<16> total_bytes;
  bit<16> id;
  bit<16> flags_offset;
  bit<8> ttl;
  bit<8> protocol;
  bit<16> checksum;
  bit<32> src;
  bit<32> dst;
}

header udp_h {
  bit<16> src_port;
  bit<16> dst_port;
  bit<16> num_bytes;
  bit<16> checksum;
}

header sml_h {
  bit<8> version_type;
  bit<8> wire_reducer;
  bit<16> job;
  bit<32> epoch;
  bit<16> rank;
  bit<16> payload_bytes;
  bit<16> slot;
  bit<16> flags;
  bit<32> phase;
  bit<32> tag;
  bit<32> chunk;
  bit<32> crc32c; /* 0 in both directions, not looked at; to the control plane the voucher */
}

/* Payload of PENDING: rank r is bit r % 8 of byte r / 8. */
header missing_h {
  bit<32> ranks;
}

#define LANE_FIELD(block, i) bit<32> v##i;
header lanes_h {
  EACH_LANE(LANE_FIELD, 0)
}

#define BLOCK_FIELD(block) lanes_h lanes_##block;
struct headers_t {
  ethernet_h ethernet;
  ipv4_h ipv4;
  udp_h udp;
  sml_h sml;
  missing_h missing;
  EACH_BLOCK(BLOCK_FIELD)
}

struct meta_t {
  /* from the wrapper */
  bit<16> ingress;  /* port that the packet came by */
  bit<8> has_lanes; /* the parser found a payload of LANES lanes */
  /* from the tables */
  bit<16> cpu_port; /* switchmld's */
  bit<32> me;       /* WORD_VALID, the turn of the packet's phase, the member's bit */
  bit<32> full;     /* the same with all ranks */
  bit<32> last;     /* full without this member */
  bit<16> cursor;   /* index of the lane's cursor of grants */
  bit<16> group;    /* out: multicast group of results, or of a flood */
  bit<16> port;     /* out: the member's port */
  bit<16> checked;  /* FLAG_CHECKED if the job's sums have check words; in the end the flags of a result */
  /* made on the way */
  bit<8> turn;      /* bit 1 of the phase */
  bit<8> kind;
  bit<32> index;    /* of the cell: slot and version */
  bit<32> word;     /* the cell's before this packet; 0 if the packet is stale; the other turn if it is newer */
  bit<32> y;        /* word ^ full: what is missing */
  bit<32> x;        /* word ^ last: 0 if this is the last one missing */
  bit<32> s;        /* word & me */
  bit<32> missing;  /* ranks to name in PENDING */
  bit<8> op;
  bit<8> first;     /* 1 + the cell's first contributor if the packet does not agree with it, else 0 */
  bit<8> verdict;
  bit<8> way;
  bit<8> is_rewritten; /* the IPv4 checksum has to be made anew */
  bit<32> old;      /* what a register held */
}
