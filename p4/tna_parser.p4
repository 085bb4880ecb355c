/* SPDX-License-Identifier: Apache-2.0
 * Ingress parser and deparser of tna.p4. The parser writes each field of the metadata: they begin as what an earlier
 * packet left. */
#define EXTRACT_BLOCK(b) packet.extract(hdr.lanes_##b);
#define EMIT_BLOCK(b) packet.emit(hdr.lanes_##b);

parser IngressParse(packet_in packet, out tna_headers_t hdr, out tna_meta_t m,
                    out ingress_intrinsic_metadata_t intrinsic) {
  Checksum() head;
  state start {
    packet.extract(intrinsic);
    packet.advance(PORT_METADATA_SIZE);
    m.payload = 0;
    m.is_ours = 0;
    m.is_member = 0;
    m.is_inside = 0;
    m.is_here = 0;
    m.is_checked = 0;
    m.is_damaged = false;
    m.cpu_port = 0;
    m.me = 0;
    m.full = 0;
    m.last = 0;
    m.cursor = 0;
    m.group = 0;
    m.port = 0;
    m.index = 0;
    m.y = 0;
    m.x = 0;
    m.s = 0;
    m.op = OP_NONE;
    m.at_tag = 0;
    m.first = 0;
    m.verdict = FORWARDED;
    m.way = WAY_DROP;
    m.is_rewritten = 0;
#if LANES > 32
    transition select(intrinsic.ingress_port[6:0]) {
      AGAIN: parse_again;
      default: parse_new;
    }
  }
  state parse_again { /* as `half` has made it */
    packet.extract(hdr.again);
    m.ingress = hdr.again.ingress;
    m.payload = PAYLOAD_AGAIN;
    packet.extract(hdr.ethernet);
    packet.extract(hdr.ipv4);
    packet.extract(hdr.udp);
    packet.extract(hdr.sml);
    EACH_BLOCK(EXTRACT_BLOCK)
    transition accept;
  }
  state parse_new {
    m.ingress = intrinsic.ingress_port;
#endif
    packet.extract(hdr.ethernet);
    transition select(hdr.ethernet.type) {
      ETHERTYPE_IPV4: parse_ipv4;
      ETHERTYPE_TAG: parse_tagged;
      ETHERTYPE_OUTER_TAG: parse_tagged;
      default: accept;
    }
  }
  state parse_tagged { /* hosts take a tag of VLAN 0 off: nobody could say who it is from */
    m.payload = PAYLOAD_TAGGED;
    transition accept;
  }
  state parse_ipv4 {
    packet.extract(hdr.ipv4);
    head.add(hdr.ipv4);
    transition select(hdr.ipv4.version_ihl, hdr.ipv4.flags_offset, hdr.ipv4.protocol) {
      (IPV4_PLAIN, 0 &&& 0x3fff, PROTOCOL_UDP): parse_udp;
      default: accept;
    }
  }
  state parse_udp {
    m.is_damaged = head.verify();
    packet.extract(hdr.udp);
    transition select(hdr.udp.num_bytes, hdr.ipv4.total_bytes) {
      (UDP_FULL, IPV4_FULL): parse_full;
      (UDP_BARE, IPV4_BARE): parse_none;
      (0 &&& 0xffe0, _): accept;
      (0x20 &&& 0xfff8, _): accept;
      default: parse_other;
    }
  }
  state parse_other {
    packet.extract(hdr.sml);
    transition accept;
  }
  state parse_full {
    packet.extract(hdr.sml);
    transition select(hdr.sml.version_type, hdr.sml.payload_bytes) {
      (HEAD_UPDATE, LANE_BYTES): parse_lanes;
      default: accept;
    }
  }
  state parse_none {
    packet.extract(hdr.sml);
    transition select(hdr.sml.version_type, hdr.sml.payload_bytes) {
      (HEAD_PROBE, 0): parse_bare;
      default: accept;
    }
  }
  state parse_bare {
    m.payload = PAYLOAD_BARE;
    transition accept;
  }
  state parse_lanes {
    m.payload = PAYLOAD_FULL;
    EACH_BLOCK(EXTRACT_BLOCK)
    transition accept;
  }
}

control IngressDeparse(packet_out packet, inout tna_headers_t hdr, in tna_meta_t m,
                       in ingress_intrinsic_metadata_for_deparser_t to_deparser) {
  Checksum() checksum;
  apply {
    if (m.is_rewritten == 1) {
      hdr.ipv4.checksum = checksum.update({hdr.ipv4.version_ihl, hdr.ipv4.tos, hdr.ipv4.total_bytes, hdr.ipv4.id,
                                           hdr.ipv4.flags_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src,
                                           hdr.ipv4.dst});
    }
    TWICE(packet.emit(hdr.again);)
    packet.emit(hdr.ethernet);
    packet.emit(hdr.ipv4);
    packet.emit(hdr.udp);
    packet.emit(hdr.sml);
    packet.emit(hdr.missing);
    EACH_BLOCK(EMIT_BLOCK)
  }
}
