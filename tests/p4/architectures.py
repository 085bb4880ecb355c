# SPDX-License-Identifier: Apache-2.0
"""What translate.py has to know of v1model, PNA and TNA beside the programs: what their headers define, which parts a
program has, and the C that takes a packet through them."""
from p4_source import TYPES

# What the compilers' own headers define, as far as p4/ uses it.
FOREIGN = {
    "v1model": {"standard_metadata_t": [("ingress_port", 9), ("egress_spec", 9), ("egress_port", 9), ("mcast_grp", 16),
                                        ("ingress_global_timestamp", 48),
                                        ("egress_rid", 16), ("checksum_error", 1), ("parser_error", 8)]},
    "pna": {"pna_main_input_metadata_t": [("input_port", TYPES["pna"]["PortId_t"])],
            "pna_main_parser_input_metadata_t": [("input_port", TYPES["pna"]["PortId_t"])],
            "pna_main_output_metadata_t": [("port", 32), ("is_dropped", 8)]},
    "tna": {"ingress_intrinsic_metadata_t": [("ingress_port", 9)], "ingress_intrinsic_metadata_from_parser_t": [],
            "ingress_intrinsic_metadata_for_deparser_t": [("drop_ctl", 3)],
            "ingress_intrinsic_metadata_for_tm_t": [("ucast_egress_port", 9), ("mcast_grp_a", 16),
                                                    ("level2_exclusion_id", 9), ("bypass_egress", 1)],
            "egress_intrinsic_metadata_t": [("egress_rid", 16), ("egress_port", 9)],
            "egress_intrinsic_metadata_from_parser_t": [],
            "egress_intrinsic_metadata_for_deparser_t": [("drop_ctl", 3)],
            "egress_intrinsic_metadata_for_output_port_t": []},
}
# The parts of a program in their order, and the globals that their parameters are bound to.
PARTS = {
    "v1model": [["packet", "H", "M", "S"], ["H", "M"], ["H", "M", "S"], ["H", "M", "S"], ["H", "M"], ["packet", "H"]],
    "pna": [["packet", "H", "M", "P"], ["H", "M", "Q", "Q"], ["H", "M", "S", "O"], ["packet", "H", "M", "O"]],
    "tna": [["packet", "H", "M", "I"], ["H", "M", "I", "F", "D", "T"], ["packet", "H", "M", "D"],
            ["packet", "EH", "EM", "E"], ["EH", "EM", "E", "EF", "ED", "EO"], ["packet", "EH", "EM", "ED"]],
}
GLUE = {
    "v1model": """
static void leave(uint64_t port, uint64_t rid, struct p4_out *out, uint32_t *num_out) {
  S.egress_port = port;
  S.egress_rid = rid;
  S.egress_spec = 0;
  part_3();
  if (S.egress_spec == 511) return;
  part_4();
  out_end = 0;
  part_5();
  put_rest();
  go_out(out, num_out, port);
}

static uint32_t take(uint32_t port, const uint8_t *bytes, uint32_t num_bytes, struct p4_out *out) {
  uint32_t num_out = 0;
  begin(bytes, num_bytes);
  memset(&M, 0, sizeof M); /* as BMv2 does */
  memset(&S, 0, sizeof S);
  S.ingress_port = port;
  S.ingress_global_timestamp = now_us;
  S.parser_error = !part_0();
  part_1();
  part_2();
  if (S.mcast_grp == 0) {
    if (S.egress_spec != 511) leave(S.egress_spec, 0, out, &num_out);
    return num_out;
  }
  const struct group *g = find_group(S.mcast_grp);
  for (uint32_t i = 0; g != NULL && i < g->num; i++) {
    const __typeof__(H) h = H;
    const __typeof__(M) m = M;
    const __typeof__(S) s = S;
    leave(g->ports[i], g->rids[i], out, &num_out);
    H = h;
    M = m;
    S = s;
  }
  return num_out;
}
""",
    "pna": """
static uint32_t take(uint32_t port, const uint8_t *bytes, uint32_t num_bytes, struct p4_out *out) {
  uint32_t num_out = 0;
  begin(bytes, num_bytes);
  S.input_port = P.input_port = port;
  O.port = O.is_dropped = 0;
  if (!part_0()) return 0;
  part_2();
  if (O.is_dropped) return 0;
  out_end = 0;
  part_3();
  put_rest();
  go_out(out, &num_out, O.port);
  return num_out;
}
""",
    "tna": """
static void leave(uint64_t port, uint64_t rid, struct p4_out *out, uint32_t *num_out) {
  static uint8_t bytes[P4_MAX_FRAME_BYTES];
  const uint32_t num_bytes = out_end;
  memcpy(bytes, out_bytes, num_bytes);
  noise();
  memset(&ED, 0, sizeof ED);
  E.egress_rid = rid;
  E.egress_port = port;
  in_bytes = bytes;
  in_at = 0;
  in_end = num_bytes;
  if (!part_3()) return;
  part_4();
  if (ED.drop_ctl != 0) return;
  out_end = 0;
  part_5();
  put_rest();
  go_out(out, num_out, port);
}

/* One pass of ingress. False: the packet is dropped. */
static bool enter(uint32_t port, const uint8_t *bytes, uint32_t num_bytes) {
  begin(bytes, num_bytes);
  memset(&D, 0, sizeof D);
  memset(&T, 0, sizeof T);
  I.ingress_port = port;
  if (!part_0()) return false;
  part_1();
  out_end = 0;
  part_2();
  put_rest();
  return D.drop_ctl == 0;
}

static uint32_t pass(uint32_t port, const uint8_t *bytes, uint32_t num_bytes, struct p4_out *out) {
  static uint8_t sent[P4_MAX_FRAME_BYTES];
  uint32_t num_out = 0;
  if (!enter(port, bytes, num_bytes)) return 0;
  const uint32_t num_sent = out_end;
  memcpy(sent, out_bytes, num_sent);
  if (T.mcast_grp_a == 0) leave(T.ucast_egress_port, 0, out, &num_out);
  const struct group *g = find_group(T.mcast_grp_a);
  for (uint32_t i = 0; g != NULL && i < g->num; i++) {
    if (g->rids[i] == 0 && g->ports[i] == T.level2_exclusion_id) continue; /* the packet's rid is 0, too */
    memcpy(out_bytes, sent, num_sent);
    out_end = num_sent;
    leave(g->ports[i], g->rids[i], out, &num_out);
  }
  return num_out;
}

static uint32_t take(uint32_t port, const uint8_t *bytes, uint32_t num_bytes, struct p4_out *out) {
  return keep_waiting(port, out, pass(port, bytes, num_bytes, out));
}

static uint32_t again(uint32_t which, struct p4_out *out) {
  const struct p4_out in = leave_waiting(which);
  return out == NULL ? 0 : keep_waiting(in.port, out, pass(in.port, in.bytes, in.num_bytes, out));
}
""",
}
for of in ("v1model", "pna"):
    GLUE[of] += """
static uint32_t again(uint32_t which, struct p4_out *out) {
  (void)which, (void)out;
  fail("no second passes", "again");
}
"""
SIZES = {"v1model": {"S": "standard_metadata_t"},
         "pna": {"S": "pna_main_input_metadata_t", "P": "pna_main_parser_input_metadata_t",
                 "O": "pna_main_output_metadata_t"},
         "tna": {"I": "ingress_intrinsic_metadata_t", "F": "ingress_intrinsic_metadata_from_parser_t",
                 "D": "ingress_intrinsic_metadata_for_deparser_t", "T": "ingress_intrinsic_metadata_for_tm_t",
                 "E": "egress_intrinsic_metadata_t", "EF": "egress_intrinsic_metadata_from_parser_t",
                 "ED": "egress_intrinsic_metadata_for_deparser_t", "EO": "egress_intrinsic_metadata_for_output_port_t"}}
