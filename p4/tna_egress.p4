/* SPDX-License-Identifier: Apache-2.0
 * Egress of tna.p4. It needs to know of a copy only to whom it goes. Every packet is parsed, and the rid decides before
 * `replica`. */
struct egress_headers_t {
  ethernet_h ethernet;
  ipv4_h ipv4;
  udp_h udp;
}
struct egress_meta_t {
  bit<1> is_addressed;
}

parser EgressParse(packet_in packet, out egress_headers_t hdr, out egress_meta_t m,
                   out egress_intrinsic_metadata_t intrinsic) {
  state start {
    packet.extract(intrinsic);
    m.is_addressed = 0;
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
    if (hdr.udp.isValid() && intrinsic.egress_rid != 0) replica.apply();
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
