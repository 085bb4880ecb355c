/* SPDX-License-Identifier: Apache-2.0
 * A frame of a host that is not known where it came in becomes a datagram to the software of tna.p4, which learns from
 * it. What was in it follows behind the datagram's end. */
control Listen(inout tna_headers_t hdr, inout tna_meta_t m) {
  @name(".tell") action tell(bit<48> mac, bit<32> src, bit<32> dst, bit<16> port, bit<32> voucher, bit<16> cpu_port) {
    hdr.ethernet.dst = mac;
    hdr.ethernet.type = ETHERTYPE_IPV4;
    hdr.ipv4.setValid();
    hdr.ipv4.version_ihl = IPV4_PLAIN;
    hdr.ipv4.tos = 0;
    hdr.ipv4.total_bytes = IPV4_BARE;
    hdr.ipv4.id = 0;
    hdr.ipv4.flags_offset = 0;
    hdr.ipv4.ttl = 64;
    hdr.ipv4.protocol = PROTOCOL_UDP;
    hdr.ipv4.src = src;
    hdr.ipv4.dst = dst;
    hdr.udp.setValid();
    hdr.udp.src_port = port;
    hdr.udp.dst_port = port;
    hdr.udp.num_bytes = UDP_BARE;
    hdr.sml.setValid();
    hdr.sml.version_type = HEAD_HEARD;
    hdr.sml.wire_reducer = 0;
    hdr.sml.job = 0;
    hdr.sml.epoch = 0;
    hdr.sml.rank = 0;
    hdr.sml.payload_bytes = 0;
    hdr.sml.flags = 0;
    hdr.sml.chunk = 0;
    hdr.sml.crc32c = voucher;
    m.is_rewritten = 1;
    m.cpu_port = cpu_port;
  }
  action nobody_listens() {
    m.verdict = WRONG_SOURCE;
  }
  @name(".listener") table listener {
    key = { m.is_ours: exact @name("is_ours"); }
    actions = { tell; nobody_listens; }
    default_action = nobody_listens();
    size = 2;
  }
  apply {
    if (m.is_ours == 0) listener.apply(); /* else it is a HELLO */
  }
}
