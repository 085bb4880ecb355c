/* SPDX-License-Identifier: Apache-2.0
 * The aggregator and the ordinary switch around it, for v1model and PNA (tna.p4 has its own). Before it, by target,
 * all with (inout headers_t hdr, inout meta_t m):
 *   Kind    kind, or why not (verdict)
 *   State   the cell's word: UPDATE puts its bit in, PROBE only looks
 *   Decide  verdict, op, missing
 *   Tag     FIRST stores tag, wire and rank; others of the same phase compare (m.first)
 *   Grant   COMPLETED draws and stores, REPEATED reads into the packet
 *   Sum     op on all lanes
 *   Missing m.missing as the payload of PENDING
 * A target that defines PASSES_HELLO on hands it to the software as it came.
 * Rule: one access to a register a packet. A table is never applied twice either.
 *
 * Tables that the control plane fills (docs/p4.md says with what):
 *   source      by which port the aggregator's own packets come: by any other one its address is forged
 *   aggregator  which address and port is the aggregator's, behind which port its software is, and by what that knows
 *               what this switch has written: the voucher
 *   member      who may send, by which port, and its words, twice: for phases with bit 1 clear and set
 *   window      which slots are a job's lane's
 *   l2          where the others live */
control Aggregate(inout headers_t hdr, inout meta_t m) {
  Kind() kind;
  State() state;
  Decide() decide;
  Tag() tag;
  Grant() grant;
  Sum() sum;
  Missing() missing;

  @name(".is_own") action is_own() {}
  @name(".is_forged") action is_forged() {
    m.verdict = WRONG_SOURCE;
  }
  @name(".source") table source {
    key = {
      hdr.ipv4.src: exact @name("src");
      m.ingress: ternary @name("ingress");
    }
    actions = { is_own; is_forged; NoAction; }
    default_action = NoAction();
    size = 64;
  }

  /* The voucher leaves in HELLO and REPORT alone. */
  @name(".is_ours") action is_ours(bit<16> cpu_port, bit<32> voucher) {
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
    m.me = me;
    m.full = full;
    m.last = last;
    m.cursor = cursor;
    m.group = group;
    m.port = port;
    m.checked = (bit<16>)is_checked << 2; /* FLAG_CHECKED or 0 */
  }
  @name(".member") table member {
    key = {
      hdr.sml.job: exact @name("job");
      hdr.sml.epoch: exact @name("epoch");
      hdr.sml.rank: exact @name("rank");
      m.turn: exact @name("turn");
      hdr.ipv4.src: exact @name("src");
      hdr.udp.src_port: exact @name("src_port");
      hdr.udp.dst_port: exact @name("dst_port");
      m.ingress: exact @name("ingress");
    }
    actions = { is_member; NoAction; }
    default_action = NoAction();
    size = 4096;
  }

  @name(".is_inside") action is_inside() {}
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

  action punt() {
    m.way = WAY_PORT;
    m.port = m.cpu_port;
  }

  /* Learning by greeting: switchmld reads where a member is out of its HELLO. */
  action greet() {
    m.verdict = GREETED;
#ifndef PASSES_HELLO
    hdr.sml.slot = m.ingress;
    hdr.sml.phase = hdr.ethernet.src[47:16];
    hdr.sml.tag = (bit<32>)hdr.ethernet.src[15:0];
    hdr.udp.checksum = 0;
#endif
    punt();
  }

  /* A packet from the aggregator to the sender of this one. */
  action answer() {
    bit<48> mac = hdr.ethernet.dst;
    bit<16> port = hdr.udp.dst_port;
    m.old = hdr.ipv4.dst;
    hdr.ethernet.dst = hdr.ethernet.src;
    hdr.ethernet.src = mac;
    hdr.ipv4.dst = hdr.ipv4.src;
    hdr.ipv4.src = m.old;
    hdr.udp.dst_port = hdr.udp.src_port;
    hdr.udp.src_port = port;
    m.is_rewritten = 1;
    hdr.ipv4.id = 0;
    hdr.ipv4.ttl = 64;
    hdr.udp.checksum = 0;
    hdr.sml.crc32c = 0;
    m.way = WAY_PORT;
  }

#define SHOW_BLOCK(b) hdr.lanes_##b.setValid();
#define HIDE_BLOCK(b) hdr.lanes_##b.setInvalid();
  action result() {
    answer();
    hdr.ipv4.total_bytes = IPV4_FULL;
    hdr.udp.num_bytes = UDP_FULL;
    hdr.sml.version_type = HEAD_RESULT;
    hdr.sml.rank = 0;
    hdr.sml.payload_bytes = LANE_BYTES;
    hdr.sml.flags = m.checked;
  }
  action pend() {
    answer();
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
    hdr.sml.chunk = (bit<32>)m.first - 1;
    EACH_BLOCK(HIDE_BLOCK)
    punt();
  }

  apply {
    m.verdict = FORWARDED;
    m.way = WAY_DROP;
    if (hdr.ipv4.isValid()) source.apply();
    if (hdr.ethernet.type == ETHERTYPE_TAG || hdr.ethernet.type == ETHERTYPE_OUTER_TAG) {
      m.verdict = BAD_TYPE; /* hosts take a tag of VLAN 0 off: nobody could say who it is from */
    } else if (m.verdict != FORWARDED) {
      m.way = WAY_DROP;
    } else if (hdr.sml.isValid() && aggregator.apply().hit) {
      kind.apply(hdr, m);
      if (m.kind == KIND_HELLO) {
        greet();
      } else if (m.kind != KIND_NONE) {
        m.turn = (bit<8>)hdr.sml.phase[1:1];
        bit<16> checked = hdr.sml.flags & FLAG_CHECKED;
        if (!member.apply().hit) {
          m.verdict = PUNTED; /* switchmld knows the reason */
          hdr.sml.crc32c = 0;
          punt();
        } else if (!window.apply().hit) {
          m.verdict = BAD_SLOT;
        } else if (m.kind == KIND_UPDATE && hdr.sml.wire_reducer == WIRE_SUM && checked != m.checked) {
          m.verdict = BAD_TYPE;
        } else if (m.kind == KIND_UPDATE && hdr.sml.wire_reducer != WIRE_SUM && checked != 0) {
          m.verdict = BAD_TYPE;
        } else if (hdr.sml.flags & FLAG_BY_GRANT != 0) {
          m.verdict = STALE_PHASE; /* a switch keeps no list of grants */
        } else {
          m.index = (bit<32>)(hdr.sml.slot ++ hdr.sml.phase[0:0]);
          m.first = 0;
          state.apply(hdr, m);
          decide.apply(hdr, m);
          tag.apply(hdr, m);
          if (m.first != 0) {
            report();
          } else {
            if (m.verdict == REPEATED) {
              EACH_BLOCK(SHOW_BLOCK)
            }
            grant.apply(hdr, m);
            sum.apply(hdr, m);
            if (m.verdict == COMPLETED || m.verdict == REPEATED) {
              if (hdr.sml.wire_reducer != WIRE_SUM) m.checked = 0;
              if (m.verdict == REPEATED) m.checked = m.checked | FLAG_RETRANSMISSION;
              result();
              if (m.verdict == COMPLETED) m.way = WAY_GROUP;
            } else if (m.verdict == ASKED || m.verdict == NEEDLESS) {
              pend();
              missing.apply(hdr, m);
            }
          }
        }
      }
    } else if (hdr.ethernet.type == ETHERTYPE_ARP) {
      m.way = WAY_GROUP; /* not by l2: a host that has moved is told nothing where it was, and must ask before it can
                          * greet */
      m.group = GROUP_OF_FLOODS;
    } else {
      l2.apply();
    }
  }
}
