/* SPDX-License-Identifier: Apache-2.0
 * The SwitchML aggregator for DPDK's software switch (p4c-dpdk, SWX pipeline). One pipeline is one thread, which
 * leaves a packet only at tables: reading, adding and writing a register is one step. Registers are those of
 * v1model.p4.
 *
 * What this target lacks, and what stands in its place: it has no egress and no multicast groups, and all copies of a
 * packet are alike. So a result goes to one address, the job's multicast group (docs/PROTOCOL.md, Groups), which table
 * `replica` gives per lane; a group of ports is one port and up to three mirror sessions (table `copies`); table
 * `ports` is the identity, because a port can only be named by a table. A packet whose length is not that of an update
 * or probe is not looked at: HELLO teaches nothing here. IPv4 checksums are made, not verified.
 *
 * SWX counts the bytes of a packet's metadata in 8 bits, and p4c-dpdk puts every part of an expression there, in a
 * field of its own: hence the spare ways of doing things in here and in rules.p4 (tests/p4/check.py counts). */
#include <core.p4>
#include <pna.p4>
#define PASSES_HELLO
#include "common/headers.p4"
#include "common/rules.p4"

#ifndef MIRRORS
#define MIRRORS 3
#endif

control State(inout headers_t hdr, inout meta_t m) {
  Register<bit<32>, bit<32>>(CELLS) cell_phase;
  Register<bit<32>, bit<32>>(CELLS) cell_map;
  apply {
    m.old = cell_phase.read(m.index);
    m.y = cell_map.read(m.index); /* the word, until the last line: else x, y and s are made of it anew each time */
    m.x = hdr.sml.phase & 0xfffffffe; /* the phase, until then; bit 0 is the version, which the index has */
    m.s = m.x - 2;
    bit<32> next = m.y | m.me;
    if (m.s == m.old && m.x != 0) {
      m.y = (m.me ^ WORD_TURN) & ~WORD_RANKS;
      next = m.me;
    } else if (m.x != m.old) {
      m.y = 0;
    }
    if (m.kind == KIND_UPDATE && m.y != 0) {
      cell_phase.write(m.index, m.x);
      cell_map.write(m.index, next);
    }
    m.x = m.y ^ m.last;
    m.s = m.y & m.me;
    m.y = m.y ^ m.full;
  }
}

control Tag(inout headers_t hdr, inout meta_t m) {
  Register<bit<32>, bit<32>>(CELLS) cell_tag;
  Register<bit<8>, bit<32>>(CELLS) cell_wire;
  Register<bit<8>, bit<32>>(CELLS) cell_first;
  apply {
    if (m.verdict == FIRST) {
      cell_tag.write(m.index, hdr.sml.tag);
      cell_wire.write(m.index, hdr.sml.wire_reducer);
      cell_first.write(m.index, (bit<8>)hdr.sml.rank + 1);
    } else if (m.y & (WORD_VALID | WORD_TURN) == 0) {
      m.old = cell_tag.read(m.index);
      bit<8> wire = cell_wire.read(m.index);
      if (m.old != hdr.sml.tag || m.kind == KIND_UPDATE && wire != hdr.sml.wire_reducer) {
        m.first = cell_first.read(m.index);
      }
    }
  }
}

control Grant(inout headers_t hdr, inout meta_t m) {
  Register<bit<32>, bit<32>>(CELLS) cell_grant;
  Register<bit<32>, bit<32>>(CURSORS) cursor;
  apply {
    if (m.verdict == COMPLETED) {
      m.old = cursor.read((bit<32>)m.cursor);
      hdr.sml.chunk = m.old;
      cell_grant.write(m.index, m.old);
      m.old = m.old + 1;
      cursor.write((bit<32>)m.cursor, m.old);
    } else if (m.verdict == REPEATED) {
      hdr.sml.chunk = cell_grant.read(m.index);
    }
  }
}

control Sum(inout headers_t hdr, inout meta_t m) {
#define LANE(b, i) hdr.lanes_##b.v##i
#define REGISTER_LANE(b, i) Register<bit<32>, bit<32>>(CELLS) value_##b##_##i;
#define WRITE_LANE(b, i) value_##b##_##i.write(m.index, LANE(b, i));
#define READ_LANE(b, i) LANE(b, i) = value_##b##_##i.read(m.index);
#define ADD_LANE(b, i) m.old = value_##b##_##i.read(m.index); LANE(b, i) = LANE(b, i) + m.old; WRITE_LANE(b, i)
#define MAX_LANE(b, i) \
  m.old = value_##b##_##i.read(m.index); if (m.old > LANE(b, i)) LANE(b, i) = m.old; WRITE_LANE(b, i)
#define REGISTER_BLOCK(b) EACH_LANE(REGISTER_LANE, b)
#define WRITE_BLOCK(b) EACH_LANE(WRITE_LANE, b)
#define READ_BLOCK(b) EACH_LANE(READ_LANE, b)
#define ADD_BLOCK(b) EACH_LANE(ADD_LANE, b)
#define MAX_BLOCK(b) EACH_LANE(MAX_LANE, b)
  EACH_BLOCK(REGISTER_BLOCK)
  apply {
    if (m.op == OP_ADD) {
      EACH_BLOCK(ADD_BLOCK)
    } else if (m.op == OP_WRITE) {
      EACH_BLOCK(WRITE_BLOCK)
    } else if (m.op == OP_READ) {
      EACH_BLOCK(READ_BLOCK)
    } else if (m.op == OP_MAX) {
      EACH_BLOCK(MAX_BLOCK)
    }
  }
}

#include "common/aggregate.p4"

#define EXTRACT_BLOCK(b) packet.extract(hdr.lanes_##b);
#define EMIT_BLOCK(b) packet.emit(hdr.lanes_##b);

control Before(in headers_t hdr, inout meta_t m, in pna_pre_input_metadata_t standard,
               inout pna_pre_output_metadata_t out_standard) {
  apply {}
}

parser Parse(packet_in packet, out headers_t hdr, inout meta_t m, in pna_main_parser_input_metadata_t standard) {
  state start {
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
    transition select(hdr.ipv4.version_ihl, hdr.ipv4.protocol) {
      (IPV4_PLAIN, PROTOCOL_UDP): parse_whole;
      default: accept;
    }
  }
  state parse_whole { /* whole, with or without the mark that it must not be cut */
    transition select(hdr.ipv4.flags_offset) {
      0: parse_udp;
      0x4000: parse_udp;
      default: accept;
    }
  }
  state parse_udp {
    packet.extract(hdr.udp);
    transition select(hdr.udp.num_bytes, hdr.ipv4.total_bytes) {
      (UDP_FULL, IPV4_FULL): parse_full;
      (UDP_BARE, IPV4_BARE): parse_bare;
      default: accept;
    }
  }
  state parse_bare {
    packet.extract(hdr.sml);
    transition accept;
  }
  state parse_full {
    packet.extract(hdr.sml);
    transition select(hdr.sml.version_type) {
      HEAD_UPDATE: parse_lanes;
      default: accept;
    }
  }
  state parse_lanes {
    m.has_lanes = 1;
    EACH_BLOCK(EXTRACT_BLOCK)
    transition accept;
  }
}

control Main(inout headers_t hdr, inout meta_t m, in pna_main_input_metadata_t standard,
             inout pna_main_output_metadata_t out_standard) {
  Aggregate() aggregate;
  Counter<bit<64>, bit<32>>(NUM_VERDICTS, PNA_CounterType_t.PACKETS) verdicts;

  @name(".send") action send(PortId_t port) {
    send_to_port(port);
  }
  @name(".stop") action stop() {
    drop_packet();
  }
  @name(".ports") table ports {
    key = { m.port: exact @name("port"); }
    actions = { send; stop; }
    default_action = stop();
    size = 64;
  }

#define SLOT(n, session) mirror_packet((MirrorSlotId_t)n, (MirrorSessionId_t)session)
  @name(".copy_1") action copy_1(PortId_t port) {
    send_to_port(port);
  }
  @name(".copy_2") action copy_2(PortId_t port) {
    send_to_port(port);
    SLOT(1, 1);
  }
  @name(".copy_3") action copy_3(PortId_t port) {
    send_to_port(port);
    SLOT(1, 1);
    SLOT(2, 2);
  }
  @name(".copy_4") action copy_4(PortId_t port) {
    send_to_port(port);
    SLOT(1, 1);
    SLOT(2, 2);
    SLOT(3, 3);
  }
  @name(".copies") table copies {
    key = { m.group: exact @name("group"); }
    actions = {
      copy_1;
      copy_2;
      copy_3;
      copy_4;
      stop;
    }
    default_action = stop();
    size = 1024;
  }

  @name(".to_member") action to_member(bit<48> mac, bit<32> ip, bit<16> port) {
    hdr.ethernet.dst = mac;
    hdr.ipv4.dst = ip;
    hdr.udp.dst_port = port;
  }
  @name(".replica") table replica {
    key = { hdr.udp.src_port: exact @name("src_port"); }
    actions = { to_member; NoAction; }
    default_action = NoAction();
    size = 256;
  }

  InternetChecksum() checksum;

  apply {
    m.ingress = (bit<16>)(bit<32>)standard.input_port;
    aggregate.apply(hdr, m);
    verdicts.count((bit<32>)m.verdict);
    if (m.verdict == COMPLETED) replica.apply();
    if (m.is_rewritten == 1) {
      hdr.ipv4.checksum = 0;
      checksum.clear();
      checksum.add(hdr.ipv4);
      hdr.ipv4.checksum = checksum.get();
    }
    if (m.way == WAY_PORT) {
      ports.apply();
    } else if (m.way == WAY_GROUP) {
      copies.apply();
    } else {
      drop_packet();
    }
  }
}

control Deparse(packet_out packet, in headers_t hdr, in meta_t m, in pna_main_output_metadata_t standard) {
  apply {
    packet.emit(hdr.ethernet);
    packet.emit(hdr.ipv4);
    packet.emit(hdr.udp);
    packet.emit(hdr.sml);
    packet.emit(hdr.missing);
    EACH_BLOCK(EMIT_BLOCK)
  }
}

PNA_NIC(Parse(), Before(), Main(), Deparse()) main;
