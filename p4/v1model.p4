/* SPDX-License-Identifier: Apache-2.0
 * The SwitchML aggregator for BMv2's simple_switch. All state is in ingress, which has one thread there: reading,
 * adding and writing a register is then one step. How to build, run and fill it: docs/p4.md.
 *
 * Registers, all CELLS long but `cursor` (index of a cell: slot * 2 + (phase & 1)):
 *   cell_phase, cell_map   phase without bit 0, and word (WORD_*); before the first one both are 0
 *   cell_tag, cell_wire, cell_first   tag, wire and reducer, 1 + rank of the first contribution
 *   cell_grant             the chunk that was granted when the cell was complete
 *   value_B_I              lane 32 B + I
 *   cursor                 next grant of each job's lane */
#include <core.p4>
#include <v1model.p4>
#include "common/headers.p4"
#include "common/rules.p4"

control State(inout headers_t hdr, inout meta_t m) {
  @name(".cell_phase") register<bit<32>>(CELLS) cell_phase;
  @name(".cell_map") register<bit<32>>(CELLS) cell_map;
  apply {
    cell_phase.read(m.old, m.index);
    cell_map.read(m.word, m.index);
    bit<32> at = hdr.sml.phase & 0xfffffffe; /* bit 0 is the version, which the index has */
    bit<32> next = m.word | m.me;
    if (at - 2 == m.old && at != 0) {
      m.word = (m.me ^ WORD_TURN) & ~WORD_RANKS;
      next = m.me;
    } else if (at != m.old) {
      m.word = 0;
    }
    if (m.kind == KIND_UPDATE && m.word != 0) {
      cell_phase.write(m.index, at);
      cell_map.write(m.index, next);
    }
    m.y = m.word ^ m.full;
    m.x = m.word ^ m.last;
    m.s = m.word & m.me;
  }
}

control Tag(inout headers_t hdr, inout meta_t m) {
  @name(".cell_tag") register<bit<32>>(CELLS) cell_tag;
  @name(".cell_wire") register<bit<8>>(CELLS) cell_wire;
  @name(".cell_first") register<bit<8>>(CELLS) cell_first;
  apply {
    bit<8> wire;
    if (m.verdict == FIRST) {
      cell_tag.write(m.index, hdr.sml.tag);
      cell_wire.write(m.index, hdr.sml.wire_reducer);
      cell_first.write(m.index, (bit<8>)hdr.sml.rank + 1);
    } else if (m.y & (WORD_VALID | WORD_TURN) == 0) {
      cell_tag.read(m.old, m.index);
      cell_wire.read(wire, m.index);
      if (m.old != hdr.sml.tag || m.kind == KIND_UPDATE && wire != hdr.sml.wire_reducer) {
        cell_first.read(m.first, m.index);
      }
    }
  }
}

control Grant(inout headers_t hdr, inout meta_t m) {
  @name(".cell_grant") register<bit<32>>(CELLS) cell_grant;
  @name(".cursor") register<bit<32>>(CURSORS) cursor;
  apply {
    if (m.verdict == COMPLETED) {
      cursor.read(hdr.sml.chunk, (bit<32>)m.cursor);
      cursor.write((bit<32>)m.cursor, hdr.sml.chunk + 1);
      cell_grant.write(m.index, hdr.sml.chunk);
    } else if (m.verdict == REPEATED) {
      cell_grant.read(hdr.sml.chunk, m.index);
    }
  }
}

control Sum(inout headers_t hdr, inout meta_t m) {
#define LANE(b, i) hdr.lanes_##b.v##i
#define REGISTER_LANE(b, i) register<bit<32>>(CELLS) value_##b##_##i;
#define WRITE_LANE(b, i) value_##b##_##i.write(m.index, LANE(b, i));
#define READ_LANE(b, i) value_##b##_##i.read(LANE(b, i), m.index);
#define ADD_LANE(b, i) value_##b##_##i.read(m.old, m.index); LANE(b, i) = LANE(b, i) + m.old; WRITE_LANE(b, i)
/* The larger one, without a branch: a + (b - a, or 0 if that is less than 0). */
#define MAX_LANE(b, i) \
  value_##b##_##i.read(m.old, m.index); LANE(b, i) = m.old + (LANE(b, i) |-| m.old); WRITE_LANE(b, i)
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

parser Parse(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t standard) {
  state start {
    packet.extract(hdr.ethernet);
    transition select(hdr.ethernet.type) {
      ETHERTYPE_IPV4: parse_ipv4;
      default: accept;
    }
  }
  state parse_ipv4 {
    packet.extract(hdr.ipv4);
    transition select(hdr.ipv4.version_ihl, hdr.ipv4.flags_offset & 0x3fff, hdr.ipv4.protocol) {
      (IPV4_PLAIN, 0, PROTOCOL_UDP): parse_udp;
      default: accept;
    }
  }
  state parse_udp {
    packet.extract(hdr.udp);
    transition select(hdr.udp.num_bytes) {
      0 &&& 0xffe0: accept; /* less than UDP_BARE: 0 .. 31, 32 .. 39 */
      0x20 &&& 0xfff8: accept;
      default: parse_sml;
    }
  }
  state parse_sml {
    packet.extract(hdr.sml);
    transition select(hdr.sml.version_type, hdr.udp.num_bytes, hdr.ipv4.total_bytes) {
      (HEAD_UPDATE, UDP_FULL, IPV4_FULL): parse_lanes;
      default: accept;
    }
  }
  state parse_lanes {
    m.has_lanes = 1;
    EACH_BLOCK(EXTRACT_BLOCK)
    transition accept;
  }
}

/* A packet with a wrong IPv4 checksum is dropped (SwitchIn), whoever it is for, and counted as TRUNCATED: its head may
 * be anything. */
control VerifyHead(inout headers_t hdr, inout meta_t m) {
  apply {
    verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.version_ihl == IPV4_PLAIN,
                    {hdr.ipv4.version_ihl, hdr.ipv4.tos, hdr.ipv4.total_bytes, hdr.ipv4.id, hdr.ipv4.flags_offset,
                     hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst},
                    hdr.ipv4.checksum, HashAlgorithm.csum16);
  }
}

#define HOSTS 1024
#define PORTS 512
#define STAYS_US 1000000    /* a host that was heard by one port less than a second ago is not at another one */
#define FORGETS_US 300000000
#define ROUND_US 500000     /* longer than a frame needs to go round, shorter than hosts wait for an answer */

/* Ordinary traffic learns where hosts are: what has no entry in l2 goes to the port by which its receiver was heard
 * within five minutes, else to all. A host moves by being heard at another port, after a second of silence. Before that
 * what would be flooded is dropped: it has gone round, over two links to one switch. SwitchOut remembers both ports, so
 * that what comes by the host's one is not flooded by the other one, and round again. State of this target alone, and
 * touched twice by a packet; what has an entry in l2, as the hosts of running jobs do, does not depend on it. ARP goes
 * to all: whoever uses a rank's MAC does not get the answers that the rank waits for. */
control Learn(inout headers_t hdr, inout meta_t m, in standard_metadata_t standard) {
  @name(".host_mac") register<bit<48>>(HOSTS) host_mac;
  @name(".host_port") register<bit<16>>(HOSTS) host_port;
  @name(".host_heard") register<bit<48>>(HOSTS) host_heard;
  apply {
    bit<32> at = 0;
    bit<48> mac = 0;
    bit<16> port = 0;
    bit<48> heard = 0;
    bit<8> is_round = 0;
    hash(at, HashAlgorithm.crc16, 32w0, {hdr.ethernet.src}, 32w1024);
    host_mac.read(mac, at);
    host_port.read(port, at);
    host_heard.read(heard, at);
    heard = standard.ingress_global_timestamp - heard;
    bit<16> home = port;
    if (mac == hdr.ethernet.src && port != m.ingress && heard < STAYS_US) {
      is_round = 1;
    } else if (hdr.ethernet.src[40:40] == 0 && (mac == hdr.ethernet.src || mac == 0 || heard > FORGETS_US)) {
      host_mac.write(at, hdr.ethernet.src);
      host_port.write(at, m.ingress);
      host_heard.write(at, standard.ingress_global_timestamp);
    }
    if (m.way == WAY_GROUP) {
      hash(at, HashAlgorithm.crc16, 32w0, {hdr.ethernet.dst}, 32w1024);
      host_mac.read(mac, at);
      host_port.read(port, at);
      host_heard.read(heard, at);
      heard = standard.ingress_global_timestamp - heard;
      if (is_round == 1) {
        m.way = WAY_ROUND;
        m.port = home;
        m.verdict = WRONG_SOURCE;
      } else if (mac == hdr.ethernet.dst && heard <= FORGETS_US && hdr.ethernet.type != ETHERTYPE_ARP) {
        m.way = WAY_PORT;
        m.port = port;
      }
    }
  }
}

control SwitchIn(inout headers_t hdr, inout meta_t m, inout standard_metadata_t standard) {
  Aggregate() aggregate;
  Learn() learn;
  @name(".verdicts") counter(NUM_VERDICTS, CounterType.packets_and_bytes) verdicts;
  apply {
    m.ingress = (bit<16>)standard.ingress_port;
    if (standard.checksum_error == 1 || standard.parser_error != error.NoError) {
      mark_to_drop(standard);
      verdicts.count((bit<32>)TRUNCATED);
    } else {
      aggregate.apply(hdr, m);
      if (m.verdict == FORWARDED) learn.apply(hdr, m, standard);
      verdicts.count((bit<32>)m.verdict);
      if (m.way == WAY_PORT) {
        standard.egress_spec = (bit<9>)m.port;
      } else if (m.way == WAY_GROUP) {
        standard.mcast_grp = m.group;
      } else if (m.way == WAY_ROUND) {
        standard.egress_spec = standard.ingress_port; /* where it ends */
      } else {
        mark_to_drop(standard);
      }
    }
  }
}

/* Copies of a result are addressed here; rid is 0 on copies of a flood. The UDP source port says which lane's members
 * they go to. */
control SwitchOut(inout headers_t hdr, inout meta_t m, inout standard_metadata_t standard) {
  @name(".to_member") action to_member(bit<48> mac, bit<32> ip, bit<16> port) {
    hdr.ethernet.dst = mac;
    hdr.ipv4.dst = ip;
    hdr.udp.dst_port = port;
  }
  @name(".replica") table replica {
    key = {
      hdr.udp.src_port: exact @name("src_port");
      standard.egress_rid: exact @name("rid");
    }
    actions = { to_member; NoAction; }
    default_action = NoAction();
    size = 4096;
  }
  /* By port: where a host is whose frame came by this one, and when it did. */
  @name(".twin_port") register<bit<16>>(PORTS) twin_port;
  @name(".twin_heard") register<bit<48>>(PORTS) twin_heard;
  apply {
    bit<16> twin = 0;
    bit<48> heard = 0;
    bit<32> at = (bit<32>)standard.egress_port;
    if (standard.egress_rid != 0) {
      if (!replica.apply().hit) mark_to_drop(standard);
    } else if (m.way == WAY_ROUND) {
      twin_port.write(at, m.port);
      twin_heard.write(at, standard.ingress_global_timestamp);
      mark_to_drop(standard);
    } else if (m.way == WAY_GROUP) {
      twin_port.read(twin, at);
      twin_heard.read(heard, at);
      heard = standard.ingress_global_timestamp - heard;
      if (standard.egress_port == standard.ingress_port || (twin == m.ingress && heard < ROUND_US)) {
        mark_to_drop(standard);
      }
    }
  }
}

control RenewHead(inout headers_t hdr, inout meta_t m) {
  apply {
    update_checksum(m.is_rewritten == 1,
                    {hdr.ipv4.version_ihl, hdr.ipv4.tos, hdr.ipv4.total_bytes, hdr.ipv4.id, hdr.ipv4.flags_offset,
                     hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst},
                    hdr.ipv4.checksum, HashAlgorithm.csum16);
  }
}

control Deparse(packet_out packet, in headers_t hdr) {
  apply {
    packet.emit(hdr.ethernet);
    packet.emit(hdr.ipv4);
    packet.emit(hdr.udp);
    packet.emit(hdr.sml);
    packet.emit(hdr.missing);
    EACH_BLOCK(EMIT_BLOCK)
  }
}

V1Switch(Parse(), VerifyHead(), SwitchIn(), SwitchOut(), RenewHead(), Deparse()) main;
