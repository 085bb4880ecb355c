/* SPDX-License-Identifier: Apache-2.0
 * The SwitchML aggregator for Tofino (-D__TARGET_TOFINO__=2 for Tofino 2). Of 32 lanes, one a stateful ALU, all in one
 * pass; or of 64 (-DLANES=64), two a stateful ALU, where results pass twice (tna_lanes.p4).
 *
 * Phase and word of a cell are one register of two halves and one RegisterAction: the next phase starts over, the same
 * adds a bit, and the old word comes out unless the packet is of neither. So a cell that was never used needs a valid
 * word, and the phase before its first one: the control plane writes (cell & 1, WORD_VALID), not zeros, when it gives
 * out slots, whose first phases are 2 and 3; phases below are stale by themselves (`access`). Rules are tables of
 * constants here: a gateway compares too little. The control is this target's own, in the order of its stages; tables,
 * rules and outcomes are those of common/aggregate.p4, but that the wire of a cell is not remembered: a mismatch is one
 * of tags.
 * Metadata begin as what an earlier packet left, so the parser (tna_parser.p4) writes each of them. */
#include <core.p4>
#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
#else
#include <tna.p4>
#endif
#include "common/headers.p4"

#define PAYLOAD_FULL 1 /* meta_t.payload */
#define PAYLOAD_BARE 2
#define PAYLOAD_AGAIN 3
#define PAYLOAD_FORGED 4
#define PAYLOAD_TAGGED 5
#define TAG_STORE 1 /* meta_t.at_tag */
#define TAG_COMPARE 2

/* With 64 lanes a result comes in again by its pipe's own port for that, whose lower 7 bits these are; nobody else's
 * packet does. It says by which port the packet came in first, so that all that was asked of it is asked again. */
#if LANES > 32
#define TWICE(...) __VA_ARGS__
#define INGRESS m.ingress
#define OP_LOWER OP_ADD /* zeros */
#define RESULT(flags, way) half(flags)
#ifndef AGAIN_PORT
#if __TARGET_TOFINO__ == 2
#define AGAIN_PORT 6
#else
#define AGAIN_PORT 68
#endif
#endif
const bit<7> AGAIN = AGAIN_PORT;
const bit<8> HEAD_AGAIN = 0x1e; /* the switch's own, to itself: a result that has had its first pass */
const bit<8> RETURNED = 41;     /* verdict of the second pass; the first one counted the packet, too */
const bit<8> WAY_AGAIN = 3;
#else
#define TWICE(...)
#define INGRESS intrinsic.ingress_port
#define OP_LOWER OP_READ
#define RESULT(flags, way) result(flags, way)
#endif

header again_h {
  bit<7> zero;
  bit<9> ingress;
}
struct tna_headers_t {
  TWICE(again_h again;)
  ethernet_h ethernet;
  ipv4_h ipv4;
  udp_h udp;
  sml_h sml;
  missing_h missing;
  EACH_BLOCK(BLOCK_FIELD)
}

struct cell_t {
  bit<32> phase;
  bit<32> word;
}

/* What stateful ALUs take and give lies in whole containers. */
#define PIN(field) @pa_container_size("ingress", field, 32)
PIN("hdr.sml.phase")
PIN("hdr.sml.tag")
PIN("hdr.sml.chunk")
PIN("m.me")
PIN("m.full")
PIN("m.last")
PIN("m.y")
PIN("m.x")
PIN("m.s")
PIN("m.first")
/* Two tables of a stage cannot write to one container. */
#define ALONE(field) @pa_container_size("ingress", field, 8) @pa_solitary("ingress", field)
ALONE("m.payload")
ALONE("m.is_ours")
ALONE("m.is_member")
ALONE("m.is_inside")
ALONE("m.is_here")
struct tna_meta_t {
  bit<8> payload;   /* what the parser found behind the head, or why nobody is to have the packet */
  bit<8> is_ours;   /* what the first tables found */
  bit<8> is_member;
  bit<8> is_inside;
  bit<8> is_here;   /* its source lives where it came in */
  bit<8> is_checked;
  bool is_damaged;  /* its IPv4 checksum is wrong */
  bit<16> cpu_port;
  TWICE(bit<9> ingress;)
  bit<32> me;
  bit<32> full;
  bit<32> last;
  bit<16> cursor;
  bit<16> group;
  bit<16> port;
  bit<16> index;
  bit<32> y;        /* PENDING: the ranks that are missing */
  bit<32> x;
  bit<32> s;
  bit<8> op;
  bit<8> at_tag;
  bit<32> first;
  bit<8> verdict;
  bit<8> way;
  bit<1> is_rewritten;
}

#include "tna_tags.p4"
#include "tna_lanes.p4"
#include "tna_hosts.p4"

/* In the order of the stages. 0: the first three tables and the index; 1: the cell; 2: the rules; 3 .. 11: tag, cursor,
 * grant and lanes, of which none waits for another but the grant; beside them where the packet goes. */
control Aggregate(inout tna_headers_t hdr, inout tna_meta_t m, in ingress_intrinsic_metadata_t intrinsic) {
  Tag() tag;
  Draw() draw;
  Grant() grant;
  Sum() sum;
  Listen() listen;
  Hash<bit<16>>(HashAlgorithm_t.IDENTITY) index_of;
  Hash<bit<32>>(HashAlgorithm_t.IDENTITY) bytes_of;
  Hash<bit<32>>(HashAlgorithm_t.IDENTITY) mac_high;
  Hash<bit<32>>(HashAlgorithm_t.IDENTITY) mac_low;

  @name(".is_here") action is_here() {
    m.is_here = 1;
  }
  @name(".host") table host {
    key = {
      hdr.ethernet.src: exact @name("src");
      INGRESS: exact @name("ingress");
    }
    actions = { is_here; NoAction; }
    default_action = NoAction();
    size = 4096;
  }

  @name(".is_own") action is_own() {}
  @name(".is_forged") action is_forged() {
    m.payload = PAYLOAD_FORGED;
  }
  @name(".source") table source {
    key = {
      hdr.ipv4.src: exact @name("src");
      INGRESS: ternary @name("ingress");
    }
    actions = { is_own; is_forged; NoAction; }
    default_action = NoAction();
    size = 64;
  }

  /* The voucher leaves in HELLO and REPORT alone. */
  @name(".is_ours") action is_ours(bit<16> cpu_port, bit<32> voucher) {
    m.is_ours = 1;
    m.cpu_port = cpu_port;
    hdr.sml.crc32c = voucher;
  }
  @name(".aggregator") table aggregator {
    key = {
      hdr.ipv4.dst: exact @name("dst");
      hdr.udp.dst_port: exact @name("dst_port");
    }
    actions = { is_ours; NoAction; }
    default_action = NoAction();
    size = 256;
  }

  @name(".is_member") action is_member(bit<32> me, bit<32> full, bit<32> last, bit<16> cursor, bit<16> group,
                                       bit<16> port, bit<8> is_checked) {
    m.is_member = 1;
    m.me = me;
    m.full = full;
    m.last = last;
    m.cursor = cursor;
    m.group = group;
    m.port = port;
    m.is_checked = is_checked;
  }
  @name(".member") table member {
    key = {
      hdr.sml.job: exact @name("job");
      hdr.sml.epoch: exact @name("epoch");
      hdr.sml.rank: exact @name("rank");
      hdr.sml.phase[1:1]: exact @name("turn");
      hdr.ipv4.src: exact @name("src");
      hdr.udp.src_port: exact @name("src_port");
      hdr.udp.dst_port: exact @name("dst_port");
      INGRESS: exact @name("ingress");
    }
    actions = { is_member; NoAction; }
    default_action = NoAction();
    size = 4096;
  }

  @name(".is_inside") action is_inside() {
    m.is_inside = 1;
  }
  @name(".window") table window {
    key = {
      hdr.sml.job: exact @name("job");
      hdr.sml.slot: ternary @name("slot");
      hdr.udp.dst_port: exact @name("dst_port");
    }
    actions = { is_inside; NoAction; }
    default_action = NoAction();
    size = 1024;
  }

  @name(".forward") action forward(bit<16> port) {
    m.way = WAY_PORT;
    m.port = port;
  }
  @name(".flood") action flood(bit<16> group) {
    m.way = WAY_GROUP;
    m.group = group;
  }
  @name(".discard") action discard() {
    m.way = WAY_DROP;
  }
  @name(".l2") table l2 {
    key = { hdr.ethernet.dst: exact @name("dst"); }
    actions = { forward; flood; discard; }
    default_action = flood(1);
    size = 4096;
  }

  /* The cell: its next phase starts over, the same adds a bit; the old word comes out, 0 for any other phase. */
  @name(".cells") Register<cell_t, bit<16>>(CELLS, {0, WORD_VALID}) cells;
  RegisterAction<cell_t, bit<16>, bit<32>>(cells) contribute = {
    void apply(inout cell_t cell, out bit<32> word) {
      word = 0;
      if (hdr.sml.phase == cell.phase + 2 || hdr.sml.phase == cell.phase) word = cell.word;
      if (hdr.sml.phase == cell.phase + 2) {
        cell.word = m.me;
        cell.phase = hdr.sml.phase;
      } else if (hdr.sml.phase == cell.phase) {
        cell.word = cell.word | m.me;
      }
    }
  };
  RegisterAction<cell_t, bit<16>, bit<32>>(cells) look = {
    void apply(inout cell_t cell, out bit<32> word) {
      word = 0;
      if (hdr.sml.phase == cell.phase + 2 || hdr.sml.phase == cell.phase) word = cell.word;
    }
  };
  action take() {
    bit<32> word = contribute.execute(m.index);
    m.y = word ^ m.full;
    m.x = word ^ m.last;
    m.s = word & m.me;
  }
  action ask() {
    bit<32> word = look.execute(m.index);
    m.y = word ^ m.full;
    m.x = word ^ m.last;
    m.s = word & m.me;
  }
  action is_hello() {
    m.verdict = GREETED;
  }
  action is_other(bit<8> verdict) {
    m.verdict = verdict;
  }
#define UPDATE_OF(wire) \
      (1, HEAD_UPDATE, 0 &&& 0xfffa, wire, PAYLOAD_FULL, 0, _, _, _, _, _): is_other(PUNTED); \
      (1, HEAD_UPDATE, 0 &&& 0xfffa, wire, PAYLOAD_FULL, _, 0, _, _, _, _): is_other(BAD_SLOT);
#define TAKE(wire, flags, is) \
      (_, HEAD_UPDATE, flags &&& 0xfffe, wire, PAYLOAD_FULL, _, _, is, 0 &&& 0xfffffffe, _, _): is_other(STALE_PHASE); \
      (_, HEAD_UPDATE, flags &&& 0xfffe, wire, PAYLOAD_FULL, _, _, is, _, _, _): take();
#define PROBE_OF(wire) \
      (1, HEAD_PROBE, 0 &&& 0xffb6, wire, PAYLOAD_BARE, 0, _, _, _, _, _): is_other(PUNTED); \
      (1, HEAD_PROBE, 0 &&& 0xffb6, wire, PAYLOAD_BARE, _, 0, _, _, _, _): is_other(BAD_SLOT); \
      (1, HEAD_PROBE, 8 &&& 0xffbe, wire, PAYLOAD_BARE, _, _, _, _, _, _): is_other(STALE_PHASE); /* by grant */ \
      (1, HEAD_PROBE, 0 &&& 0xffb6, wire, PAYLOAD_BARE, _, _, _, 0 &&& 0xfffffffe, _, _): is_other(STALE_PHASE); \
      (1, HEAD_PROBE, 0 &&& 0xffb6, wire, PAYLOAD_BARE, _, _, _, _, _, _): ask(); \
      (1, HEAD_PROBE, 0 &&& 0xffb6, wire, _, _, _, _, _, _, _): is_other(BAD_LENGTH);
  table access {
    key = {
      m.is_ours: ternary;
      hdr.sml.version_type: ternary;
      hdr.sml.flags: ternary;
      hdr.sml.wire_reducer: ternary;
      m.payload: ternary;
      m.is_member: ternary;
      m.is_inside: ternary;
      m.is_checked: ternary;
      hdr.sml.phase: ternary;
      m.is_damaged: ternary;
      m.is_here: ternary;
    }
    actions = { take; ask; is_hello; is_other; }
    const default_action = is_other(FORWARDED);
    const entries = {
      (_, _, _, _, PAYLOAD_FORGED, _, _, _, _, _, _): is_other(WRONG_SOURCE);
      (_, _, _, _, PAYLOAD_TAGGED, _, _, _, _, _, _): is_other(BAD_TYPE);
      TWICE((0, _, _, _, PAYLOAD_AGAIN, _, _, _, _, _, _): is_other(STALE_PHASE);)
      (0, _, _, _, _, _, _, _, _, _, 1): is_other(FORWARDED);
      (0, _, _, _, _, _, _, _, _, _, _): is_hello(); /* of a host that is new, by whatever it sends */
      TWICE((_, HEAD_AGAIN, _, _, PAYLOAD_AGAIN, 1, 1, _, _, _, _): ask();)
      TWICE((_, _, _, _, PAYLOAD_AGAIN, _, _, _, _, _, _): is_other(STALE_PHASE);) /* its job has ended meanwhile */
      (_, _, _, _, _, _, _, _, _, true, _): is_other(TRUNCATED);
      (_, HEAD_HELLO, _, _, _, _, _, _, _, _, _): is_hello();
      (_, 0x10 &&& 0xf0, FLAG_KEYED &&& FLAG_KEYED, _, _, _, _, _, _, _, _): is_other(BAD_KEY);
      UPDATE_OF(WIRE_SUM)
      TAKE(WIRE_SUM, 0, 0)
      TAKE(WIRE_SUM, FLAG_CHECKED, 1)
      (_, HEAD_UPDATE, 0 &&& 0xfffa, WIRE_SUM, PAYLOAD_FULL, _, _, _, _, _, _): is_other(BAD_TYPE);
      (_, HEAD_UPDATE, 0 &&& 0xfffa, WIRE_SUM, _, _, _, _, _, _, _): is_other(BAD_LENGTH);
      UPDATE_OF(WIRE_MAX)
      TAKE(WIRE_MAX, 0, _)
      (_, HEAD_UPDATE, 0 &&& 0xfffa, WIRE_MAX, PAYLOAD_FULL, _, _, _, _, _, _): is_other(BAD_TYPE);
      (_, HEAD_UPDATE, 0 &&& 0xfffa, WIRE_MAX, _, _, _, _, _, _, _): is_other(BAD_LENGTH);
      PROBE_OF(WIRE_SUM)
      PROBE_OF(WIRE_MAX)
      (_, 0x10 &&& 0xf0, _, _, _, _, _, _, _, _, _): is_other(BAD_TYPE);
      (_, _, _, _, _, _, _, _, _, _, _): is_other(BAD_VERSION);
    }
    size = 41;
  }

  action is_verdict(bit<8> verdict, bit<8> op, bit<8> at_tag) {
    m.verdict = verdict;
    m.op = op;
    m.at_tag = at_tag;
  }
  action is_new_to_it() { /* a question about what nobody has sent yet */
    m.verdict = ASKED;
    m.y = m.full & WORD_RANKS;
  }
  table rules {
    key = {
      m.y: ternary;
      m.x: ternary;
      m.s: ternary;
      hdr.sml.version_type: ternary;
      hdr.sml.wire_reducer: ternary;
      hdr.sml.flags: ternary;
    }
    actions = { is_verdict; is_new_to_it; }
    const default_action = is_verdict(DUPLICATE, OP_NONE, TAG_COMPARE);
    const entries = {
      TWICE((0, _, _, HEAD_AGAIN, _, _): is_verdict(RETURNED, OP_READ, 0);)
      TWICE((_, _, _, HEAD_AGAIN, _, _): is_verdict(STALE_PHASE, OP_NONE, 0);) /* the cell is another sum's meanwhile */
      (WORD_VALID &&& WORD_VALID, _, _, _, _, _): is_verdict(STALE_PHASE, OP_NONE, 0);
      (WORD_TURN &&& WORD_TURN, _, _, HEAD_UPDATE, _, _): is_verdict(FIRST, OP_WRITE, TAG_STORE);
      (WORD_TURN &&& WORD_TURN, _, _, _, _, _): is_new_to_it();
      (0, _, _, _, _, _): is_verdict(REPEATED, OP_LOWER, TAG_COMPARE);
      (_, _, _, HEAD_PROBE, _, _): is_verdict(ASKED, OP_NONE, TAG_COMPARE);
      (_, 0, _, _, WIRE_SUM, _): is_verdict(COMPLETED, OP_ADD, TAG_COMPARE);
      (_, 0, _, _, _, _): is_verdict(COMPLETED, OP_MAX, TAG_COMPARE);
      (_, _, 0 &&& WORD_RANKS, _, WIRE_SUM, _): is_verdict(ADDED, OP_ADD, TAG_COMPARE);
      (_, _, 0 &&& WORD_RANKS, _, _, _): is_verdict(ADDED, OP_MAX, TAG_COMPARE);
      (_, _, _, _, _, FLAG_RETRANSMISSION &&& FLAG_RETRANSMISSION): is_verdict(NEEDLESS, OP_NONE, TAG_COMPARE);
    }
    size = 16;
  }

#if LANES > 32
  /* What zeros are added to is read. */
#define ZERO_LANE(b, i) hdr.lanes_##b.v##i = 0;
#define ZERO_BLOCK(b) hdr.lanes_##b.setValid(); EACH_LANE(ZERO_LANE, b)
  action zero() {
    EACH_BLOCK(ZERO_BLOCK)
  }
  table clear {
    key = {
      m.y: ternary;
      hdr.sml.version_type: ternary;
    }
    actions = { zero; NoAction; }
    const default_action = NoAction();
    const entries = {
      (_, HEAD_AGAIN): NoAction();
      (0, _): zero();
    }
    size = 2;
  }
#endif

  action hand_up() {
    m.way = WAY_PORT;
    m.port = m.cpu_port;
  }
  action punt() {
    hdr.sml.crc32c = 0;
    hand_up();
  }
  action greet() {
    hdr.sml.slot = (bit<16>)intrinsic.ingress_port;
    hdr.udp.checksum = 0;
    hand_up();
  }
  /* A packet from the aggregator to the sender of this one. */
  action answer() {
    bit<48> mac = hdr.ethernet.dst;
    bit<32> ip = hdr.ipv4.dst;
    bit<16> port = hdr.udp.dst_port;
    hdr.ethernet.dst = hdr.ethernet.src;
    hdr.ethernet.src = mac;
    hdr.ipv4.dst = hdr.ipv4.src;
    hdr.ipv4.src = ip;
    hdr.udp.dst_port = hdr.udp.src_port;
    hdr.udp.src_port = port;
    m.is_rewritten = 1;
    hdr.ipv4.id = 0;
    hdr.ipv4.ttl = 64;
    hdr.udp.checksum = 0;
    hdr.sml.crc32c = 0;
  }
#define SHOW_BLOCK(b) hdr.lanes_##b.setValid();
#define HIDE_BLOCK(b) hdr.lanes_##b.setInvalid();
#if LANES > 32
  /* The upper lanes are another pass's. Until then it keeps what it has to be asked for again, but says what flags the
   * result will have. */
  action half(bit<16> flags) {
    m.way = WAY_AGAIN;
    m.is_rewritten = 1;
    hdr.again.setValid();
    hdr.again.zero = 0;
    hdr.again.ingress = m.ingress;
    hdr.ipv4.total_bytes = IPV4_FULL;
    hdr.udp.num_bytes = UDP_FULL;
    hdr.sml.version_type = HEAD_AGAIN;
    hdr.sml.payload_bytes = LANE_BYTES;
    hdr.sml.flags = flags;
    EACH_BLOCK(SHOW_BLOCK)
  }
  action finish(bit<8> way) {
    answer();
    m.way = way;
    hdr.again.setInvalid();
    hdr.sml.version_type = HEAD_RESULT;
    hdr.sml.rank = 0;
  }
#else
  action result(bit<16> flags, bit<8> way) {
    answer();
    m.way = way;
    hdr.ipv4.total_bytes = IPV4_FULL;
    hdr.udp.num_bytes = UDP_FULL;
    hdr.sml.version_type = HEAD_RESULT;
    hdr.sml.rank = 0;
    hdr.sml.payload_bytes = LANE_BYTES;
    hdr.sml.flags = flags;
    EACH_BLOCK(SHOW_BLOCK)
  }
#endif
  action pend() {
    answer();
    m.way = WAY_PORT;
    hdr.ipv4.total_bytes = IPV4_BARE + 4;
    hdr.udp.num_bytes = UDP_BARE + 4;
    hdr.sml.version_type = HEAD_PENDING;
    hdr.sml.payload_bytes = 4;
    hdr.sml.flags = 0;
    hdr.missing.setValid();
    EACH_BLOCK(HIDE_BLOCK)
  }
  /* Two members do not agree: switchmld hears of it and ends the job. */
  action report() {
    m.verdict = REPORTED;
    m.is_rewritten = 1;
    hdr.ipv4.total_bytes = IPV4_BARE;
    hdr.udp.num_bytes = UDP_BARE;
    hdr.udp.checksum = 0;
    hdr.sml.version_type = HEAD_REPORT;
    hdr.sml.payload_bytes = 0;
    hdr.sml.chunk = m.first - 1;
    EACH_BLOCK(HIDE_BLOCK)
    hand_up();
  }
  table outcome {
    key = {
      m.verdict: ternary;
      m.first: ternary;
      hdr.sml.wire_reducer: ternary;
      m.is_checked: ternary;
      TWICE(hdr.sml.flags: ternary;)
    }
    actions = {
#if LANES > 32
      half;
      finish;
#else
      result;
#endif
      pend; report; punt; greet; NoAction;
    }
    const default_action = NoAction();
#define ANY TWICE(, _)
    const entries = {
      (COMPLETED, 0, WIRE_SUM, 1 ANY): RESULT(FLAG_CHECKED, WAY_GROUP);
      (COMPLETED, 0, _, _ ANY): RESULT(0, WAY_GROUP);
      (REPEATED, 0, WIRE_SUM, 1 ANY): RESULT(FLAG_RETRANSMISSION | FLAG_CHECKED, WAY_PORT);
      (REPEATED, 0, _, _ ANY): RESULT(FLAG_RETRANSMISSION, WAY_PORT);
      TWICE((RETURNED, _, _, _, FLAG_RETRANSMISSION &&& FLAG_RETRANSMISSION): finish(WAY_PORT);)
      TWICE((RETURNED, _, _, _, _): finish(WAY_GROUP);)
      (ASKED, 0, _, _ ANY): pend();
      (NEEDLESS, 0, _, _ ANY): pend();
      (PUNTED, _, _, _ ANY): punt();
      (GREETED, _, _, _ ANY): greet();
      (_, 0, _, _ ANY): NoAction();
      (_, _, _, _ ANY): report();
    }
    size = 16;
  }

  apply {
    host.apply();
    if (hdr.ipv4.isValid()) source.apply();
    if (hdr.sml.isValid()) {
      m.index = index_of.get({hdr.sml.slot[14:0], hdr.sml.phase[0:0]});
      aggregator.apply();
      member.apply();
      window.apply();
    }
    switch (access.apply().action_run) {
      take:
      ask: {
        TWICE(clear.apply();) /* before the rules, which write m.y: it has to be in their stage */
        rules.apply();
      }
      is_hello: {
        hdr.sml.phase = mac_high.get({hdr.ethernet.src[47:16]});
        if (m.verdict == GREETED) hdr.sml.tag = mac_low.get({16w0, hdr.ethernet.src[15:0]}); /* a table of its own */
        listen.apply(hdr, m);
      }
    }
    tag.apply(hdr, m);
    draw.apply(hdr, m);
    sum.apply(hdr, m);
    hdr.missing.ranks = bytes_of.get({m.y[7:0], m.y[15:8], m.y[23:16], m.y[31:24]});
    if (m.verdict == FORWARDED) {
      l2.apply();
    } else {
      outcome.apply();
    }
    grant.apply(hdr, m);
  }
}

#include "tna_parser.p4"

control Ingress(inout tna_headers_t hdr, inout tna_meta_t m, in ingress_intrinsic_metadata_t intrinsic,
                in ingress_intrinsic_metadata_from_parser_t from_parser,
                inout ingress_intrinsic_metadata_for_deparser_t to_deparser,
                inout ingress_intrinsic_metadata_for_tm_t to_tm) {
  Aggregate() aggregate;
  @name(".verdicts") Counter<bit<64>, bit<8>>(NUM_VERDICTS, CounterType_t.PACKETS_AND_BYTES) verdicts;
  apply {
    aggregate.apply(hdr, m, intrinsic);
    verdicts.count(m.verdict);
    if (m.way == WAY_PORT) {
      to_tm.ucast_egress_port = (PortId_t)m.port;
    } else if (m.way == WAY_GROUP) {
      to_tm.mcast_grp_a = m.group;
      to_tm.level2_exclusion_id = (bit<9>)intrinsic.ingress_port; /* prunes a flood */
#if LANES > 32
    } else if (m.way == WAY_AGAIN) {
      to_tm.ucast_egress_port = intrinsic.ingress_port[8:7] ++ AGAIN;
#endif
    } else {
      to_deparser.drop_ctl = 1;
    }
  }
}

#include "tna_egress.p4"

Pipeline(IngressParse(), Ingress(), IngressDeparse(), EgressParse(), Egress(), EgressDeparse()) pipe;
Switch(pipe) main;
