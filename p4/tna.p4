/* SPDX-License-Identifier: Apache-2.0
 * The SwitchML aggregator for Tofino (-D__TARGET_TOFINO__=2 for Tofino 2). Of 32 lanes, one a stateful ALU, all in one
 * pass.
 *
 * Phase and word of a cell are one register of two halves and one RegisterAction: newer starts over, equal adds a bit,
 * and the old word comes out unless the packet is stale. So a cell that was never used needs a valid word: the
 * register is made with one, and the control plane writes (0, WORD_VALID), not zeros, when it gives out slots. A
 * packet that is newer by 4 phases looks like one of the same phase; no member can be there. Rules are tables of
 * constants here: a gateway compares too little.
 * One wire a cell is not remembered: a PROBE carries that of its chunk, and tags tell operations apart. */
#include <core.p4>
#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
#else
#include <tna.p4>
#endif
#include "common/headers.p4"

#define PAYLOAD_FULL 1 /* meta_t.has_lanes */
#define PAYLOAD_BARE 2

struct cell_t {
  bit<32> phase;
  bit<32> word;
}
struct tag_t {
  bit<32> tag;
  bit<32> first;
}

control Kind(inout headers_t hdr, inout meta_t m) {
  action is_kind(bit<8> kind) {
    m.kind = kind;
  }
  action is_bad(bit<8> reason) {
    m.kind = KIND_NONE;
    m.verdict = reason;
  }
  table kinds {
    key = {
      hdr.sml.version_type: ternary;
      hdr.sml.flags: ternary;
      hdr.sml.wire_reducer: ternary;
      m.has_lanes: ternary;
    }
    actions = { is_kind; is_bad; }
    const default_action = is_bad(BAD_TYPE);
    const entries = {
      (HEAD_HELLO, _, _, _): is_kind(KIND_HELLO);
      (_, FLAG_KEYED &&& FLAG_KEYED, _, _): is_bad(BAD_KEY);
      (HEAD_UPDATE, 0 &&& 0xfffa, WIRE_SUM, PAYLOAD_FULL): is_kind(KIND_UPDATE);
      (HEAD_UPDATE, 0 &&& 0xfffa, WIRE_MAX, PAYLOAD_FULL): is_kind(KIND_UPDATE);
      (HEAD_UPDATE, 0 &&& 0xfffa, WIRE_SUM, _): is_bad(BAD_LENGTH);
      (HEAD_UPDATE, 0 &&& 0xfffa, WIRE_MAX, _): is_bad(BAD_LENGTH);
      (HEAD_PROBE, 0 &&& 0xffb6, WIRE_SUM, PAYLOAD_BARE): is_kind(KIND_PROBE);
      (HEAD_PROBE, 0 &&& 0xffb6, WIRE_MAX, PAYLOAD_BARE): is_kind(KIND_PROBE);
      (HEAD_PROBE, 0 &&& 0xffb6, WIRE_SUM, _): is_bad(BAD_LENGTH);
      (HEAD_PROBE, 0 &&& 0xffb6, WIRE_MAX, _): is_bad(BAD_LENGTH);
      (0x10 &&& 0xf0, _, _, _): is_bad(BAD_TYPE);
      (_, _, _, _): is_bad(BAD_VERSION);
    }
    size = 16;
  }
  apply {
    kinds.apply();
  }
}

control State(inout headers_t hdr, inout meta_t m) {
  Register<cell_t, bit<32>>(CELLS, {0, WORD_VALID}) cells;
  RegisterAction<cell_t, bit<32>, bit<32>>(cells) contribute = {
    void apply(inout cell_t cell, out bit<32> word) {
      word = 0;
      if (hdr.sml.phase >= cell.phase) word = cell.word;
      if (hdr.sml.phase > cell.phase) {
        cell.word = m.me;
        cell.phase = hdr.sml.phase;
      } else if (hdr.sml.phase == cell.phase) {
        cell.word = cell.word | m.me;
      }
    }
  };
  RegisterAction<cell_t, bit<32>, bit<32>>(cells) look = {
    void apply(inout cell_t cell, out bit<32> word) {
      word = 0;
      if (hdr.sml.phase >= cell.phase) word = cell.word;
    }
  };
  action take() {
    m.word = contribute.execute(m.index);
  }
  action ask() {
    m.word = look.execute(m.index);
  }
  table access {
    key = { m.kind: exact; }
    actions = { take; ask; }
    const entries = {
      KIND_UPDATE: take();
      KIND_PROBE: ask();
    }
    size = 2;
  }
  apply {
    access.apply();
    m.y = m.word ^ m.full;
    m.x = m.word ^ m.last;
    m.s = m.word & m.me;
  }
}

control Decide(inout headers_t hdr, inout meta_t m) {
  action is_verdict(bit<8> verdict, bit<8> op) {
    m.verdict = verdict;
    m.op = op;
    m.missing = m.y & WORD_RANKS;
  }
  action is_new_to_it() { /* a question about what nobody has sent yet */
    m.verdict = ASKED;
    m.op = OP_NONE;
    m.missing = m.full & WORD_RANKS;
  }
  table rules {
    key = {
      m.y: ternary;
      m.x: ternary;
      m.s: ternary;
      m.kind: ternary;
      hdr.sml.wire_reducer: ternary;
      hdr.sml.flags: ternary;
    }
    actions = { is_verdict; is_new_to_it; }
    const default_action = is_verdict(DUPLICATE, OP_NONE);
    const entries = {
      (WORD_VALID &&& WORD_VALID, _, _, _, _, _): is_verdict(STALE_PHASE, OP_NONE);
      (WORD_TURN &&& WORD_TURN, _, _, KIND_UPDATE, _, _): is_verdict(FIRST, OP_WRITE);
      (WORD_TURN &&& WORD_TURN, _, _, _, _, _): is_new_to_it();
      (0, _, _, _, _, _): is_verdict(REPEATED, OP_READ);
      (_, _, _, KIND_PROBE, _, _): is_verdict(ASKED, OP_NONE);
      (_, 0, _, _, WIRE_SUM, _): is_verdict(COMPLETED, OP_ADD);
      (_, 0, _, _, _, _): is_verdict(COMPLETED, OP_MAX);
      (_, _, 0 &&& WORD_RANKS, _, WIRE_SUM, _): is_verdict(ADDED, OP_ADD);
      (_, _, 0 &&& WORD_RANKS, _, _, _): is_verdict(ADDED, OP_MAX);
      (_, _, _, _, _, FLAG_RETRANSMISSION &&& FLAG_RETRANSMISSION): is_verdict(NEEDLESS, OP_NONE);
    }
    size = 16;
  }
  apply {
    rules.apply();
  }
}

control Missing(inout headers_t hdr, inout meta_t m) {
  apply {
    hdr.missing.ranks = m.missing[7:0] ++ m.missing[15:8] ++ m.missing[23:16] ++ m.missing[31:24];
  }
}

control Tag(inout headers_t hdr, inout meta_t m) {
  Register<tag_t, bit<32>>(CELLS) tags;
  RegisterAction<tag_t, bit<32>, bit<32>>(tags) store = {
    void apply(inout tag_t cell) {
      cell.tag = hdr.sml.tag;
      cell.first = (bit<32>)hdr.sml.rank + 1;
    }
  };
  RegisterAction<tag_t, bit<32>, bit<32>>(tags) compare = {
    void apply(inout tag_t cell, out bit<32> first) {
      first = 0;
      if (cell.tag != hdr.sml.tag) first = cell.first;
    }
  };
  bit<32> first;
  apply {
    first = 0;
    if (m.verdict == FIRST) {
      store.execute(m.index);
    } else if (m.y & (WORD_VALID | WORD_TURN) == 0) {
      first = compare.execute(m.index);
    }
    m.first = first[7:0];
  }
}

control Grant(inout headers_t hdr, inout meta_t m) {
  Register<bit<32>, bit<16>>(CURSORS) cursors;
  RegisterAction<bit<32>, bit<16>, bit<32>>(cursors) draw = {
    void apply(inout bit<32> cursor, out bit<32> grant) {
      grant = cursor;
      cursor = cursor + 1;
    }
  };
  Register<bit<32>, bit<32>>(CELLS) grants;
  RegisterAction<bit<32>, bit<32>, bit<32>>(grants) store = {
    void apply(inout bit<32> grant) {
      grant = hdr.sml.chunk;
    }
  };
  RegisterAction<bit<32>, bit<32>, bit<32>>(grants) load = {
    void apply(inout bit<32> grant, out bit<32> chunk) {
      chunk = grant;
    }
  };
  apply {
    if (m.verdict == COMPLETED) hdr.sml.chunk = draw.execute(m.cursor);
    if (m.verdict == COMPLETED) {
      store.execute(m.index);
    } else if (m.verdict == REPEATED) {
      hdr.sml.chunk = load.execute(m.index);
    }
  }
}

control Lane(inout bit<32> value, inout meta_t m) {
  Register<bit<32>, bit<32>>(CELLS) values;
  RegisterAction<bit<32>, bit<32>, bit<32>>(values) write = {
    void apply(inout bit<32> cell) {
      cell = value;
    }
  };
  RegisterAction<bit<32>, bit<32>, bit<32>>(values) add = {
    void apply(inout bit<32> cell, out bit<32> sum) {
      cell = cell + value;
      sum = cell;
    }
  };
  RegisterAction<bit<32>, bit<32>, bit<32>>(values) largest = {
    void apply(inout bit<32> cell, out bit<32> sum) {
      cell = max(cell, value);
      sum = cell;
    }
  };
  RegisterAction<bit<32>, bit<32>, bit<32>>(values) read = {
    void apply(inout bit<32> cell, out bit<32> sum) {
      sum = cell;
    }
  };
  action do_write() {
    write.execute(m.index);
  }
  action do_add() {
    value = add.execute(m.index);
  }
  action do_max() {
    value = largest.execute(m.index);
  }
  action do_read() {
    value = read.execute(m.index);
  }
  table lane {
    key = { m.op: exact; }
    actions = { do_write; do_add; do_max; do_read; @defaultonly NoAction; }
    const default_action = NoAction();
    const entries = {
      OP_WRITE: do_write();
      OP_ADD: do_add();
      OP_MAX: do_max();
      OP_READ: do_read();
    }
    size = 4;
  }
  apply {
    lane.apply();
  }
}

control Sum(inout headers_t hdr, inout meta_t m) {
#define MAKE_LANE(b, i) Lane() lane_##b##_##i;
#define APPLY_LANE(b, i) lane_##b##_##i.apply(hdr.lanes_##b.v##i, m);
#define MAKE_BLOCK(b) EACH_LANE(MAKE_LANE, b)
#define APPLY_BLOCK(b) EACH_LANE(APPLY_LANE, b)
  EACH_BLOCK(MAKE_BLOCK)
  apply {
    EACH_BLOCK(APPLY_BLOCK)
  }
}

#include "common/aggregate.p4"

#define EXTRACT_BLOCK(b) packet.extract(hdr.lanes_##b);
#define EMIT_BLOCK(b) packet.emit(hdr.lanes_##b);

parser IngressParse(packet_in packet, out headers_t hdr, out meta_t m, out ingress_intrinsic_metadata_t intrinsic) {
  state start {
    packet.extract(intrinsic);
    packet.advance(PORT_METADATA_SIZE);
    m.has_lanes = 0;
    m.is_rewritten = 0;
    packet.extract(hdr.ethernet);
    transition select(hdr.ethernet.type) {
      ETHERTYPE_IPV4: parse_ipv4;
      default: accept;
    }
  }
  state parse_ipv4 {
    packet.extract(hdr.ipv4);
    transition select(hdr.ipv4.version_ihl, hdr.ipv4.flags_offset, hdr.ipv4.protocol) {
      (IPV4_PLAIN, 0 &&& 0x3fff, PROTOCOL_UDP): parse_udp;
      default: accept;
    }
  }
  state parse_udp {
    packet.extract(hdr.udp);
    transition select(hdr.udp.num_bytes) {
      0 &&& 0xffe0: accept;
      0x20 &&& 0xfff8: accept;
      default: parse_sml;
    }
  }
  state parse_sml {
    packet.extract(hdr.sml);
    transition select(hdr.sml.version_type, hdr.udp.num_bytes, hdr.ipv4.total_bytes, hdr.sml.payload_bytes) {
      (HEAD_UPDATE, UDP_FULL, IPV4_FULL, LANE_BYTES): parse_lanes;
      (HEAD_PROBE, UDP_BARE, IPV4_BARE, 0): parse_bare;
      default: accept;
    }
  }
  state parse_bare {
    m.has_lanes = PAYLOAD_BARE;
    transition accept;
  }
  state parse_lanes {
    m.has_lanes = PAYLOAD_FULL;
    EACH_BLOCK(EXTRACT_BLOCK)
    transition accept;
  }
}

control Ingress(inout headers_t hdr, inout meta_t m, in ingress_intrinsic_metadata_t intrinsic,
                in ingress_intrinsic_metadata_from_parser_t from_parser,
                inout ingress_intrinsic_metadata_for_deparser_t to_deparser,
                inout ingress_intrinsic_metadata_for_tm_t to_tm) {
  Aggregate() aggregate;
  Counter<bit<64>, bit<8>>(NUM_VERDICTS, CounterType_t.PACKETS_AND_BYTES) verdicts;
  apply {
    m.ingress = (bit<16>)intrinsic.ingress_port;
    aggregate.apply(hdr, m);
    verdicts.count(m.verdict);
    if (m.way == WAY_PORT) {
      to_tm.ucast_egress_port = (PortId_t)m.port;
    } else if (m.way == WAY_GROUP) {
      to_tm.mcast_grp_a = m.group;
      to_tm.level2_exclusion_id = (bit<9>)intrinsic.ingress_port; /* prunes a flood */
    } else {
      to_deparser.drop_ctl = 1;
    }
  }
}

control IngressDeparse(packet_out packet, inout headers_t hdr, in meta_t m,
                       in ingress_intrinsic_metadata_for_deparser_t to_deparser) {
  Checksum() checksum;
  apply {
    if (m.is_rewritten == 1) {
      hdr.ipv4.checksum = checksum.update({hdr.ipv4.version_ihl, hdr.ipv4.tos, hdr.ipv4.total_bytes, hdr.ipv4.id,
                                           hdr.ipv4.flags_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src,
                                           hdr.ipv4.dst});
    }
    packet.emit(hdr.ethernet);
    packet.emit(hdr.ipv4);
    packet.emit(hdr.udp);
    packet.emit(hdr.sml);
    packet.emit(hdr.missing);
    EACH_BLOCK(EMIT_BLOCK)
  }
}

/* Egress needs to know of a copy only to whom it goes. */
struct egress_headers_t {
  ethernet_h ethernet;
  ipv4_h ipv4;
  udp_h udp;
}
struct egress_meta_t {
  bit<8> is_addressed;
}

parser EgressParse(packet_in packet, out egress_headers_t hdr, out egress_meta_t m,
                   out egress_intrinsic_metadata_t intrinsic) {
  state start {
    packet.extract(intrinsic);
    m.is_addressed = 0;
    transition select(intrinsic.egress_rid) {
      0: accept;
      default: parse_result;
    }
  }
  state parse_result {
    packet.extract(hdr.ethernet);
    packet.extract(hdr.ipv4);
    packet.extract(hdr.udp);
    transition accept;
  }
}

control Egress(inout egress_headers_t hdr, inout egress_meta_t m, in egress_intrinsic_metadata_t intrinsic,
               in egress_intrinsic_metadata_from_parser_t from_parser,
               inout egress_intrinsic_metadata_for_deparser_t to_deparser,
               inout egress_intrinsic_metadata_for_output_port_t to_port) {
  @name(".to_member") action to_member(bit<48> mac, bit<32> ip, bit<16> port) {
    hdr.ethernet.dst = mac;
    hdr.ipv4.dst = ip;
    hdr.udp.dst_port = port;
    m.is_addressed = 1;
  }
  action is_nobodys() {
    to_deparser.drop_ctl = 1;
  }
  @name(".replica") table replica {
    key = {
      hdr.udp.src_port: exact @name("src_port");
      intrinsic.egress_rid: exact @name("rid");
    }
    actions = { to_member; is_nobodys; }
    default_action = is_nobodys();
    size = 4096;
  }
  apply {
    if (hdr.udp.isValid()) replica.apply();
  }
}

control EgressDeparse(packet_out packet, inout egress_headers_t hdr, in egress_meta_t m,
                      in egress_intrinsic_metadata_for_deparser_t to_deparser) {
  Checksum() checksum;
  apply {
    if (m.is_addressed == 1) {
      hdr.ipv4.checksum = checksum.update({hdr.ipv4.version_ihl, hdr.ipv4.tos, hdr.ipv4.total_bytes, hdr.ipv4.id,
                                           hdr.ipv4.flags_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src,
                                           hdr.ipv4.dst});
    }
    packet.emit(hdr);
  }
}

Pipeline(IngressParse(), Ingress(), IngressDeparse(), EgressParse(), Egress(), EgressDeparse()) pipe;
Switch(pipe) main;
