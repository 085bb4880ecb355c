/* SPDX-License-Identifier: Apache-2.0
 * What tna.p4 keeps of a sum beside its values: the tag of its first contributor and who that was, and its grant. */
struct tag_t {
  bit<32> tag;
  bit<32> first;
}

control Tag(inout tna_headers_t hdr, inout tna_meta_t m) {
  Register<tag_t, bit<16>>(CELLS) tags;
  RegisterAction<tag_t, bit<16>, bit<32>>(tags) store = {
    void apply(inout tag_t cell) {
      cell.tag = hdr.sml.tag;
      cell.first = (bit<32>)hdr.sml.rank + 1;
    }
  };
  RegisterAction<tag_t, bit<16>, bit<32>>(tags) compare = {
    void apply(inout tag_t cell, out bit<32> first) {
      first = 0;
      if (cell.tag != hdr.sml.tag) first = cell.first;
    }
  };
  action do_store() {
    store.execute(m.index);
  }
  action do_compare() {
    m.first = compare.execute(m.index);
  }
  table tag {
    key = { m.at_tag: exact; }
    actions = { do_store; do_compare; @defaultonly NoAction; }
    const default_action = NoAction();
    const entries = {
      TAG_STORE: do_store();
      TAG_COMPARE: do_compare();
    }
    size = 2;
  }
  apply {
    tag.apply();
  }
}

control Draw(inout tna_headers_t hdr, inout tna_meta_t m) {
  @name(".cursors") Register<bit<32>, bit<16>>(CURSORS) cursors;
  RegisterAction<bit<32>, bit<16>, bit<32>>(cursors) draw = {
    void apply(inout bit<32> cursor, out bit<32> grant) {
      grant = cursor;
      cursor = cursor + 1;
    }
  };
  apply {
    if (m.verdict == COMPLETED) hdr.sml.chunk = draw.execute(m.cursor);
  }
}

control Grant(inout tna_headers_t hdr, inout tna_meta_t m) {
  Register<bit<32>, bit<16>>(CELLS) grants;
  RegisterAction<bit<32>, bit<16>, bit<32>>(grants) store = {
    void apply(inout bit<32> grant) {
      grant = hdr.sml.chunk;
    }
  };
  RegisterAction<bit<32>, bit<16>, bit<32>>(grants) load = {
    void apply(inout bit<32> grant, out bit<32> chunk) {
      chunk = grant;
    }
  };
  action do_store() {
    store.execute(m.index);
  }
  action do_load() {
    hdr.sml.chunk = load.execute(m.index);
  }
  table grant {
    key = { m.verdict: exact; }
    actions = { do_store; do_load; @defaultonly NoAction; }
    const default_action = NoAction();
    const entries = {
      COMPLETED: do_store();
      REPEATED: do_load();
    }
    size = 2;
  }
  apply {
    grant.apply();
  }
}
