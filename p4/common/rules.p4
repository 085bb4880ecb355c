/* SPDX-License-Identifier: Apache-2.0
 * The rules as conditions, for targets that compare freely (v1model, PNA). On TNA they are tables (tna.p4). */

const bit<16> FLAG_BY_GRANT = 8;
const bit<16> FLAG_DEAF = 64;
const bit<8> OVERLONG = 1; /* a verdict, as those of headers.p4 */

/* What is asked of the aggregator. */
const bit<8> KIND_NONE = 0;
const bit<8> KIND_UPDATE = 1;
const bit<8> KIND_PROBE = 2;
const bit<8> KIND_HELLO = 3;

/* What is asked: everything that can be seen without the job. */
control Kind(inout headers_t hdr, inout meta_t m) {
  apply {
    m.kind = KIND_NONE;
    m.verdict = BAD_TYPE;
    bit<16> max_bytes = hdr.udp.num_bytes - UDP_BARE;
    if (hdr.sml.version_type == HEAD_HELLO) {
      m.kind = KIND_HELLO;
    } else if (hdr.sml.version_type & 0xf0 != 0x10) {
      m.verdict = BAD_VERSION;
    } else if (hdr.sml.flags & FLAG_KEYED != 0) {
      m.verdict = BAD_KEY;
    } else if (hdr.sml.payload_bytes > max_bytes) {
      m.verdict = TRUNCATED;
    } else if (hdr.sml.payload_bytes < max_bytes) {
      m.verdict = OVERLONG;
    } else if (hdr.sml.wire_reducer != WIRE_SUM && hdr.sml.wire_reducer != WIRE_MAX) {
      m.verdict = BAD_TYPE;
    } else if (hdr.sml.version_type == HEAD_UPDATE) {
      if (hdr.sml.flags & ~(FLAG_RETRANSMISSION | FLAG_CHECKED) == 0) {
        if (m.has_lanes == 1) {
          m.kind = KIND_UPDATE;
        } else {
          m.verdict = BAD_LENGTH;
        }
      }
    } else if (hdr.sml.version_type == HEAD_PROBE) {
      if (hdr.sml.flags & ~(FLAG_RETRANSMISSION | FLAG_BY_GRANT | FLAG_DEAF) == 0) {
        if (max_bytes == 0) {
          m.kind = KIND_PROBE;
        } else {
          m.verdict = BAD_LENGTH;
        }
      }
    }
  }
}

/* Byte by byte, the lowest first, and each step from what the one before left: p4c-dpdk keeps every part of an
 * expression in a field of its own. */
control Missing(inout headers_t hdr, inout meta_t m) {
  apply {
    hdr.missing.ranks = m.missing & 0xff;
    m.missing = m.missing >> 8;
    hdr.missing.ranks = hdr.missing.ranks << 8;
    hdr.missing.ranks = hdr.missing.ranks | (m.missing & 0xff);
    m.missing = m.missing >> 8;
    hdr.missing.ranks = hdr.missing.ranks << 8;
    hdr.missing.ranks = hdr.missing.ranks | (m.missing & 0xff);
    m.missing = m.missing >> 8;
    hdr.missing.ranks = hdr.missing.ranks << 8;
    hdr.missing.ranks = hdr.missing.ranks | m.missing;
  }
}

/* The cell (docs/PROTOCOL.md rules R16 to R25, and R172), from its word as it was. */
control Decide(inout headers_t hdr, inout meta_t m) {
  apply {
    m.op = OP_NONE;
    m.missing = m.y & WORD_RANKS;
    if (m.y & WORD_VALID != 0) {
      m.verdict = STALE_PHASE;
    } else if (m.y & WORD_TURN != 0) { /* newer than the cell */
      if (m.kind == KIND_UPDATE) {
        m.verdict = FIRST;
        m.op = OP_WRITE;
      } else {
        m.verdict = ASKED;
        m.missing = m.full & WORD_RANKS;
      }
    } else if (m.y == 0) {
      m.verdict = REPEATED;
      m.op = OP_READ;
    } else if (m.kind == KIND_PROBE) {
      m.verdict = ASKED;
    } else if (m.s & WORD_RANKS != 0) {
      m.verdict = hdr.sml.flags & FLAG_RETRANSMISSION != 0 ? NEEDLESS : DUPLICATE;
    } else {
      m.verdict = m.x == 0 ? COMPLETED : ADDED;
      m.op = hdr.sml.wire_reducer == WIRE_MAX ? OP_MAX : OP_ADD;
    }
  }
}
