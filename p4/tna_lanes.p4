/* SPDX-License-Identifier: Apache-2.0
 * The lanes of tna.p4: a table that chooses what a stateful ALU does, for each. 32 lanes have an ALU each. 64 have one
 * for two of them, lane i and lane 32 + i, which are the halves of one entry: an update goes into both in one access,
 * but an access hands out one word. So a result's lower lanes come out in its first pass, and its upper ones in a
 * second (docs/p4.md says why nothing can come between). Four actions are all that an ALU holds, so the lower half is
 * read by adding zero. */
#if LANES == 32
control Lane(inout bit<32> value, inout tna_meta_t m) {
  Register<bit<32>, bit<16>>(CELLS) values;
  RegisterAction<bit<32>, bit<16>, bit<32>>(values) write = {
    void apply(inout bit<32> cell) {
      cell = value;
    }
  };
  RegisterAction<bit<32>, bit<16>, bit<32>>(values) add = {
    void apply(inout bit<32> cell, out bit<32> sum) {
      cell = cell + value;
      sum = cell;
    }
  };
  RegisterAction<bit<32>, bit<16>, bit<32>>(values) largest = {
    void apply(inout bit<32> cell, out bit<32> sum) {
      cell = max(cell, value);
      sum = cell;
    }
  };
  RegisterAction<bit<32>, bit<16>, bit<32>>(values) read = {
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

control Sum(inout tna_headers_t hdr, inout tna_meta_t m) {
#define MAKE_LANE(b, i) Lane() lane_##b##_##i;
#define APPLY_LANE(b, i) lane_##b##_##i.apply(hdr.lanes_##b.v##i, m);
  EACH_LANE(MAKE_LANE, 0)
  apply {
    EACH_LANE(APPLY_LANE, 0)
  }
}
#elif LANES == 64
struct pair_t {
  bit<32> low;
  bit<32> high;
}

control Pair(inout bit<32> low, inout bit<32> high, inout tna_meta_t m) {
  Register<pair_t, bit<16>>(CELLS) values;
  RegisterAction<pair_t, bit<16>, bit<32>>(values) write = {
    void apply(inout pair_t cell) {
      cell.low = low;
      cell.high = high;
    }
  };
  RegisterAction<pair_t, bit<16>, bit<32>>(values) add = {
    void apply(inout pair_t cell, out bit<32> sum) {
      cell.low = cell.low + low;
      cell.high = cell.high + high;
      sum = cell.low;
    }
  };
  RegisterAction<pair_t, bit<16>, bit<32>>(values) largest = {
    void apply(inout pair_t cell, out bit<32> sum) {
      cell.low = max(cell.low, low);
      cell.high = max(cell.high, high);
      sum = cell.low;
    }
  };
  RegisterAction<pair_t, bit<16>, bit<32>>(values) read = {
    void apply(inout pair_t cell, out bit<32> sum) {
      sum = cell.high;
    }
  };
  action do_write() {
    write.execute(m.index);
  }
  action do_add() {
    low = add.execute(m.index);
  }
  action do_max() {
    low = largest.execute(m.index);
  }
  action do_read() {
    high = read.execute(m.index);
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

/* A pair has the name of its upper lane: who asks for the last lane finds it. */
control Sum(inout tna_headers_t hdr, inout tna_meta_t m) {
#define MAKE_PAIR(b, i) Pair() lane_1_##i;
#define APPLY_PAIR(b, i) lane_1_##i.apply(hdr.lanes_0.v##i, hdr.lanes_1.v##i, m);
  EACH_LANE(MAKE_PAIR, 0)
  apply {
    EACH_LANE(APPLY_PAIR, 0)
  }
}
#else
#error "LANES is 32 or 64"
#endif
