/* SPDX-License-Identifier: Apache-2.0
 * Who may join a job, and when it starts. */
#include "ctl/test_registry_world.h"

/* --- joining --- */

static void test_join_probe_start(void **state) {
  (void)state;
  begin();
  opened(0);
  EXPECT("");
  join(0, "x", 1, 2);
  EXPECT("open j0 e100 n2; expect j0 r1; c0<WELCOME j0 e100; ");
  assert_int_equal(w.last[0].u.welcome.num_lanes, 2); /* offered 4, the daemon has 2 */
  assert_int_equal(w.last[0].u.welcome.data_ports[1], 4001);
  probed(0, 1472);
  EXPECT("");
  opened(1);
  join(1, "x", 0, 2);
  EXPECT("expect j0 r0; c1<WELCOME j0 e100; ");
  assert_true(w.last[0].u.welcome.nonce != w.last[1].u.welcome.nonce);
  probed(1, 8960);
  EXPECT("start j0 e100; c1<START e100; c0<START e100; ");
  const struct sml_ctl_start *start = &w.last[0].u.start;
  assert_int_equal(start->chunk_bytes, 1472 - OVERHEAD_BYTES);
  assert_int_equal(start->num_slots, 256);
  assert_int_equal(start->num_lanes, 2);
  assert_int_equal(start->first_phase, 2);
  assert_memory_equal(&w.last[0], &w.last[1], sizeof w.last[0]);
}

static void test_settings_of_the_first_epoch(void **state) {
  (void)state;
  struct sml_registry_options options = defaults();
  options.first_phase = 0xfffffff0;
  options.first_chunk = 77;
  begin_with(options);
  start_world("x", 0, 2);
  assert_int_equal(w.last[0].u.start.first_phase, 0xfffffff0);
  assert_int_equal(w.last[0].u.start.first_chunk, 77);
  want_epoch(0, 100);
  want_epoch(1, 100);
  assert_int_equal(w.last[0].u.start.first_phase, 2);
  assert_int_equal(w.last[0].u.start.first_chunk, 0);
}

static void test_lanes_are_the_minimum(void **state) {
  (void)state;
  begin();
  struct sml_ctl_message m = join_message("x", 0, 2);
  m.u.join.num_lanes = 1;
  opened(0);
  said(0, &m);
  assert_int_equal(w.last[0].u.welcome.num_lanes, 1);
  opened(1);
  join(1, "x", 1, 2);
  assert_int_equal(w.last[1].u.welcome.num_lanes, 2);
  probed(0, 8960);
  probed(1, 8960);
  assert_int_equal(w.last[1].u.start.num_lanes, 1);
}

static void test_chunk_size(void **state) {
  (void)state;
  static const struct {
    uint32_t probed, asked, chunk; /* unkeyed: all a header less */
  } rows[] = {
      {8960, 8960, 8928}, {1472, 8960, 1440}, {1471, 8960, 1436}, {1475, 8960, 1440},
      {8960, 1000, 968},  {288, 8960, 256},   {291, 8960, 256},   {65535, 65507, 8928},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    const uint32_t more = OVERHEAD_BYTES - SML_CTL_HEADER_BYTES;
    struct sml_registry_options options = defaults();
    options.max_datagram_bytes += more;
    begin_with(options);
    struct sml_ctl_message m = join_message("x", 0, 2);
    m.u.join.max_datagram_bytes = rows[i].asked == 65507 ? 65507 : rows[i].asked + more;
    opened(0);
    said(0, &m);
    opened(1);
    m = join_message("x", 1, 2);
    m.u.join.max_datagram_bytes += more;
    said(1, &m);
    probed(1, 8960 + more);
    probed(0, rows[i].probed == 65535 ? 65535 : rows[i].probed + more);
    assert_int_equal(w.last[1].u.start.chunk_bytes, rows[i].chunk);
  }
}

static void test_narrow_path_is_refused_for_all(void **state) {
  (void)state;
  static const struct {
    uint32_t probed;
    const char *detail, *keyed_detail;
  } rows[] = {
      {287, "the path of rank 1 (10.0.0.1) carries datagrams of 287 bytes only, 288 are needed: check its MTU",
       "the path of rank 1 (10.0.0.1) carries datagrams of 287 bytes only, 292 are needed: check its MTU"},
      {20, "the path of rank 1 (10.0.0.1) carries datagrams of 20 bytes only, 288 are needed: check its MTU",
       "the path of rank 1 (10.0.0.1) carries datagrams of 20 bytes only, 292 are needed: check its MTU"},
      {0,
       "no datagram of rank 1 (10.0.0.1) came back from the aggregator's data ports (first: UDP 4000): check "
       "firewalls, and that all machines have the same switchml version",
       NULL},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    begin();
    for (uint32_t c = 0; c < 2; c++) {
      opened(c);
      join(c, "x", c, 2);
    }
    probed(1, rows[i].probed);
    EXPECT(""); /* one answer for all, when the last is in */
    probed(0, 8960);
    EXPECT(rows[i].probed == 0 ? "c1<REFUSE -6; c1 close; c0<REFUSE -6; c0 close; end j0; "
                               : "c1<REFUSE -9; c1 close; c0<REFUSE -9; c0 close; end j0; ");
    expect_detail(0, is_keyed && rows[i].keyed_detail ? rows[i].keyed_detail : rows[i].detail);
    expect_all_free();
  }
}

static void test_bad_settings_are_refused(void **state) {
  (void)state;
  static const struct {
    uint32_t rank, world_size, num_slots, datagram;
    uint64_t lease_ns;
    const char *detail;
  } rows[] = {
      {0, 1, 256, 8960, S, "world size 1 is not between 2 and 4096"},
      {0, 0, 256, 8960, S, "world size 0 is not between 2 and 4096"},
      {0, 4097, 256, 8960, S, "world size 4097 is not between 2 and 4096"},
      {4, 4, 256, 8960, S, "rank 4 is not below the world size 4"},
      {65535, 4, 256, 8960, S, "rank 65535 is not below the world size 4"},
      {0, 41, 256, 8960, S, "world size 41 is more than the aggregator's limit of 40 connections: raise it there"},
      {0, 4, 255, 8960, S, "255 slots: the number must be a power of two, at most 32768"},
      {0, 4, 65536, 8960, S, "65536 slots: the number must be a power of two, at most 32768"},
      {0, 4, 2048, 8960, S,
       "2048 slots a lane are more than the aggregator's 1024: ask for fewer, or raise them there"},
      {0, 4, 256, 287, S, NULL},
      {0, 4, 256, 8960, 1, "a lease of 0 us is not between 20 ms and 1 hour"},
      {0, 4, 256, 8960, UINT64_MAX, "a lease of 18446744073709551 us is not between 20 ms and 1 hour"},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    begin();
    struct sml_ctl_message m = join_message("x", rows[i].rank, rows[i].world_size);
    m.u.join.num_slots = rows[i].num_slots;
    m.u.join.max_datagram_bytes = rows[i].datagram;
    m.u.join.lease_ns = rows[i].lease_ns;
    opened(0);
    said(0, &m);
    EXPECT("c0<REFUSE -7; c0 close; ");
    expect_detail(0, rows[i].detail ? rows[i].detail
                     : is_keyed     ? "datagrams of at most 287 bytes are asked for, the smallest chunk needs 292"
                                    : "datagrams of at most 287 bytes are asked for, the smallest chunk needs 288");
    expect_all_free();
  }
}

static void test_settings_must_be_equal(void **state) {
  (void)state;
  static const struct {
    uint32_t world_size, num_slots;
    uint64_t lease_ns;
    const char *detail;
  } rows[] = {
      {8, 256, LEASE_NS, "rank 2 says world size 8, but rank 0 of job 'x' said 4: all ranks must say the same"},
      {4, 128, LEASE_NS,
       "rank 2 asks for 128 slots, but rank 0 of job 'x' asked for 256: all ranks must ask for the same"},
      {4, 256, S,
       "rank 2 asks for a lease of 1000 ms, but rank 0 of job 'x' asked for 2000 ms: all ranks must ask for "
       "the same"},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    begin();
    opened(0);
    join(0, "x", 0, 4);
    struct sml_ctl_message m = join_message("x", 2, rows[i].world_size);
    m.u.join.num_slots = rows[i].num_slots;
    m.u.join.lease_ns = rows[i].lease_ns;
    opened(1);
    said(1, &m);
    EXPECT("c1<REFUSE -7; c1 close; ");
    expect_detail(1, rows[i].detail);
    opened(1); /* the job itself is untouched */
    join(1, "x", 2, 4);
    EXPECT("expect j0 r2; c1<WELCOME j0 e100; ");
  }
}

/* A rank with the key is told where the other one is, and so is one of the same host. The log has it in any case. */
static void expect_twin(uint32_t conn, uint32_t rank, const char *where, bool may_know) {
  char text[SML_DETAIL_BYTES], note[SML_DETAIL_BYTES];
  static const char format[] =
      "rank %u of job 'x' has already joined from %s: give each process its own rank, each run its own job name";
  snprintf(text, sizeof text, format, rank, may_know ? where : "another host (the aggregator's log says which)");
  snprintf(note, sizeof note, format, rank, where);
  expect_detail(conn, text);
  assert_non_null(strstr(w.notes, note));
}

static void test_duplicate_rank_is_refused(void **state) {
  (void)state;
  begin();
  opened_from(3, "10.0.0.3:4242");
  join(3, "x", 1, 2);
  opened(4);
  join(4, "x", 1, 2);
  EXPECT("c4<REFUSE -7; c4 close; ");
  expect_twin(4, 1, "10.0.0.3:4242", is_keyed);
  opened_from(4, "10.0.0.3:777");
  join(4, "x", 1, 2);
  expect_twin(4, 1, "10.0.0.3:4242", true);
  opened(4);
  join(4, "x", 0, 2);
  probed(3, 8960);
  probed(4, 8960);
  opened(5); /* also once it runs */
  join(5, "x", 0, 2);
  expect_twin(5, 0, "10.0.0.4:4244", is_keyed);
  assert_non_null(strstr(w.notes, ":x:10.0.0.5: rank 0"));
}

static void test_running_job_takes_nobody(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 3);
  opened(5);
  join(5, "x", 3, 4);
  EXPECT("c5<REFUSE -7; c5 close; ");
  expect_detail(5, "job 'x' is already running with 3 ranks: use another name, or wait until all of them have left");
}

static void test_ending_job_frees_its_name(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 3);
  goodbye(1);
  opened(5);
  join(5, "x", 1, 3); /* its next job, while the others have not left this one */
  EXPECT("open j1 e101 n3; expect j1 r1; c5<WELCOME j1 e101; ");
  opened(6);
  join(6, "x", 1, 3);
  EXPECT("c6<REFUSE -7; c6 close; ");
  expect_twin(6, 1, "10.0.0.5:4245", is_keyed);
  closed(0, SML_CLOSED_RESET);
  for (uint32_t rank = 0; rank < 3; rank += 2) {
    opened(7 + rank);
    join(7 + rank, "x", rank, 3); /* rank 2's loss in the old job may not have been noticed yet */
    probed(7 + rank, 8960);
  }
  probed(5, 8960);
  EXPECT("start j1 e101; c9<START e101; c7<START e101; c5<START e101; ");
  goodbye(2);
  EXPECT("end j0; c2 close; ");
  opened(10);
  join(10, "x", 0, 3);
  EXPECT("c10<REFUSE -7; c10 close; ");
}

static void test_ending_job_holds_its_ranks(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 3);
  goodbye(1);
  opened(5);
  join(5, "x", 2, 3);
  EXPECT("c5<REFUSE -7; c5 close; ");
  opened(6);
  join(6, "x", 4, 5); /* a world of another size may use the name */
  EXPECT("open j1 e101 n5; expect j1 r4; c6<WELCOME j1 e101; ");
}

static void test_join_deadline_names_the_missing(void **state) {
  (void)state;
  begin();
  struct sml_ctl_message m = join_message("x", 0, 4);
  m.u.join.join_timeout_ns = 1 * S;
  opened(0);
  said(0, &m);
  w.now_ns += 500 * MS;
  opened(1);
  join(1, "x", 1, 4); /* with 60 s: the first deadline counts */
  heartbeat(0);
  while (w.now_ns < 1001 * S) tick();
  EXPECT("c1<REFUSE -10; c1 close; c0<REFUSE -10; c0 close; end j0; ");
  expect_detail(1, "ranks 2, 3 of 4 have not joined");
  expect_all_free();
}

/* Its own sentence is in the log of a process that has ended. */
static void test_join_deadline_tells_of_a_refusal(void **state) {
  (void)state;
  begin();
  for (uint32_t c = 0; c < 3; c++) {
    struct sml_ctl_message m = join_message("x", c, 3);
    m.u.join.join_timeout_ns = 400 * MS;
    m.u.join.num_slots = c == 1 ? 64 : 256;
    opened(c);
    said(c, &m);
  }
  tick();
  const char *told =
      "rank 1 of 3 has not joined; rank 1 from 10.0.0.1 was refused: rank 1 asks for 64 slots, but rank 0 "
      "of job 'x' asked for 256: all ranks must ask for the same";
  expect_detail(0, told);
  expect_detail(2, told);
  expect_all_free();
}

static void test_join_deadline_other_words(void **state) {
  (void)state;
  static const struct {
    uint32_t world_size, num_joined;
    bool probe_first;
    const char *detail;
  } rows[] = {
      {4, 3, false, "rank 3 of 4 has not joined"},
      {20, 3, false, "ranks 3, 4, 5, 6, 7, 8, 9, 10 and 9 more of 20 have not joined"},
      {2, 2, true, "rank 1 of 2 has joined job 'x' but not finished probing its data path"},
      {2, 2, false, "ranks 0, 1 of 2 have joined job 'x' but not finished probing its data path"},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    begin();
    for (uint32_t c = 0; c < rows[i].num_joined; c++) {
      struct sml_ctl_message m = join_message("x", c, rows[i].world_size);
      m.u.join.join_timeout_ns = 400 * MS;
      opened(c);
      said(c, &m);
    }
    if (rows[i].probe_first) probed(0, 8960);
    tick();
    expect_detail(0, rows[i].detail);
    expect_all_free();
  }
}

static void test_huge_join_timeout_does_not_wrap(void **state) {
  (void)state;
  begin();
  struct sml_ctl_message m = join_message("x", 0, 2);
  m.u.join.join_timeout_ns = UINT64_MAX;
  opened(0);
  said(0, &m);
  tick();
  EXPECT("c0<HEARTBEAT; ");
}

static void test_departure_while_joining_lets_the_rank_return(void **state) {
  (void)state;
  begin();
  for (uint32_t c = 0; c < 2; c++) {
    opened(c);
    join(c, "x", c, 3);
    probed(c, 8960);
  }
  closed(0, SML_CLOSED_RESET);
  EXPECT("forget j0 r0; ");
  opened(2);
  join(2, "x", 2, 3);
  probed(2, 8960);
  EXPECT("");
  opened(3);
  join(3, "x", 0, 3);
  EXPECT("expect j0 r0; c3<WELCOME j0 e100; ");
  probed(3, 8960);
  EXPECT("start j0 e100; c3<START e100; c2<START e100; c1<START e100; ");
}

static void test_last_one_out_while_joining_frees_the_name(void **state) {
  (void)state;
  begin();
  opened(0);
  join(0, "x", 0, 2);
  closed(0, SML_CLOSED_FIN);
  EXPECT("end j0; ");
  opened(0);
  join(0, "x", 0, 3);
  EXPECT("open j0 e101 n3; expect j0 r0; c0<WELCOME j0 e101; ");
  goodbye(0);
  EXPECT("end j0; c0 close; ");
  expect_all_free();
}

static void test_slots_run_out(void **state) {
  (void)state;
  char name[8];
  struct sml_registry_options options = defaults();
  options.pool_slots = 1024; /* 256 a job */
  begin_with(options);
  for (uint32_t j = 0; j < 4; j++) {
    snprintf(name, sizeof name, "j%u", j);
    start_world(name, j * 2, 2);
    assert_int_equal(w.last[j * 2].u.start.slot_base[1], is_keyed ? 256 : j * 256);
  }
  w.options.max_jobs = 0;
  options.max_jobs = 5;
  begin_with(options);
  for (uint32_t j = 0; j < 4; j++) {
    snprintf(name, sizeof name, "j%u", j);
    start_world(name, j * 2, 2);
  }
  opened(8);
  join(8, "y", 0, 2);
  probed(8, 8960);
  opened(9);
  join(9, "y", 1, 2);
  EXPECT("expect j4 r1; c9<WELCOME j4 e104; ");
  probed(9, 8960);
  EXPECT("c9<REFUSE -7; c9 close; c8<REFUSE -7; c8 close; end j4; ");
  expect_detail(8,
                "no 256 slots in a row are free on lane 0 of the aggregator (1024 in all): wait for a job to end, ask "
                "for fewer, or raise them there");
  goodbye(2); /* job 1 ends: its window is free at once */
  goodbye(3);
  start_world("y", 8, 2);
  assert_int_equal(w.last[8].u.start.slot_base[0], is_keyed ? 0 : 256);
}

static void test_what_is_asked_for_is_given(void **state) {
  (void)state;
  static const struct {
    uint32_t num_asked, datagram_bytes, num_slots;
  } rows[] = {{256, 1472, 256},  {1024, 1472, 1024}, {512, 32800, 512}, {512, 32804, 256},
              {256, 65504, 256}, {1024, 65504, 256}, {16, 65504, 16}};
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    struct sml_registry_options options = defaults();
    const uint32_t more = OVERHEAD_BYTES - SML_CTL_HEADER_BYTES, max_bytes = 65504 + more;
    options.max_datagram_bytes = max_bytes;
    begin_with(options);
    for (uint32_t c = 0; c < 2; c++) {
      struct sml_ctl_message m = join_message("x", c, 2);
      m.u.join.num_slots = rows[i].num_asked;
      m.u.join.max_datagram_bytes = max_bytes;
      opened(c);
      said(c, &m);
    }
    probed(0, max_bytes);
    probed(1, rows[i].datagram_bytes + more);
    assert_int_equal(w.last[0].u.start.chunk_bytes, rows[i].datagram_bytes - 32);
    assert_int_equal(w.last[0].u.start.num_slots, rows[i].num_slots);
  }
}

static void join_and_probe(const char *const *peers, uint32_t num_asked, const uint64_t *rtts_ns) {
  for (uint32_t c = 0; c < 2; c++) {
    struct sml_ctl_message m = join_message("x", c, 2);
    m.u.join.num_slots = num_asked;
    opened_from(c, peers[c]);
    said(c, &m);
  }
  for (uint32_t c = 0; c < 2; c++)
    said(c,
         &(struct sml_ctl_message){.kind = SML_CTL_PROBED, .u.probed = {.datagram_bytes = 1472, .rtt_ns = rtts_ns[c]}});
  for (uint32_t c = 0; c < 2; c++) assert_int_equal(w.last[c].kind, SML_CTL_START);
  assert_memory_equal(&w.last[0].u.start, &w.last[1].u.start, sizeof w.last[0].u.start);
}

/* The rule is tuning.c's, with a test of its own: here, what goes into it, and that all ranks hear the same. */
static void test_slots_are_chosen(void **state) {
  (void)state;
  static const struct {
    const char *peers[2];
    uint32_t num_asked;
    uint64_t rtts_ns[2];
    uint32_t num_slots, why;
  } rows[] = {
      {{"10.0.0.1:7", "10.0.0.2:7"}, 0, {1, 1}, 256, SML_SLOTS_REASON_USUAL},
      {{"10.0.0.1:7", "10.0.0.2:7"}, 0, {0, 0}, 256, SML_SLOTS_REASON_USUAL},
      {{"10.0.0.1:7", "10.0.0.2:7"}, 0, {5000000, 100}, 4096, SML_SLOTS_REASON_PATH}, /* the longer way decides */
      {{"10.0.0.1:7", "127.0.0.1:7"}, 0, {100, 5000000}, 4096, SML_SLOTS_REASON_PATH},
      {{"127.0.0.1:6", "127.0.0.1:7"}, 0, {90000, 80000}, 256, SML_SLOTS_REASON_LOOPBACK},
      {{"10.0.0.1:7", "10.0.0.2:7"}, 512, {UINT64_MAX, 1}, 512, SML_SLOTS_REASON_ASKED},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    struct sml_registry_options options = defaults();
    options.pool_slots = 65536;
    options.num_lanes = 1;
    begin_with(options);
    join_and_probe(rows[i].peers, rows[i].num_asked, rows[i].rtts_ns);
    const struct sml_ctl_start *start = &w.last[0].u.start;
    assert_int_equal(start->num_slots, rows[i].num_slots);
    assert_int_equal(start->slots_why, rows[i].why);
    assert_true(start->rtt_ns == sml_max_u64(rows[i].rtts_ns[0], rows[i].rtts_ns[1]));
  }
}

/* A rank that joins while another job fills the queues measures them: its job gets no larger window for that. */
static void test_slots_beside_others(void **state) {
  (void)state;
  struct sml_registry_options options = defaults();
  options.pool_slots = 65536;
  options.num_lanes = 1;
  options.max_jobs = 5;
  begin_with(options);
  const uint32_t num_slots[] = {256, 256, 256, 8192, 256};
  const uint64_t rtts_ns[] = {100000, 6000000, 12000000, 50000000, 12000000};
  for (uint32_t j = 0; j < SML_ARRAY_LEN(rtts_ns); j++) {
    const char name[] = {(char)('a' + j), 0};
    for (uint32_t rank = 0; rank < 2; rank++) {
      struct sml_ctl_message m = join_message(name, rank, 2);
      m.u.join.num_slots = 0;
      opened(2 * j + rank);
      said(2 * j + rank, &m);
    }
    for (uint32_t rank = 0; rank < 2; rank++)
      said(2 * j + rank, &(struct sml_ctl_message){.kind = SML_CTL_PROBED,
                                                   .u.probed = {.datagram_bytes = 1472, .rtt_ns = rtts_ns[j]}});
    assert_int_equal(w.last[2 * j].u.start.num_slots, num_slots[j]);
    assert_true(w.last[2 * j].u.start.rtt_ns == rtts_ns[j]);
  }
}

/* A pool gives what it has to spare, and keeps a few slots for each job that may still come. */
static void test_chosen_slots_make_do(void **state) {
  (void)state;
  static const struct {
    uint32_t num_asked, num_slots;
    sml_slots_reason why;
  } rows[] = {{0, 256, SML_SLOTS_REASON_USUAL}, {32, 32, SML_SLOTS_REASON_ASKED}, {0, 64, SML_SLOTS_REASON_POOL},
              {0, 64, SML_SLOTS_REASON_POOL},   {0, 32, SML_SLOTS_REASON_POOL},   {0, 32, SML_SLOTS_REASON_POOL},
              {64, 0, SML_SLOTS_REASON_NONE}};
  struct sml_registry_options options = defaults();
  options.pool_slots = 512;
  options.num_lanes = 1;
  options.max_jobs = SML_ARRAY_LEN(rows);
  begin_with(options);
  for (uint32_t j = 0; j < SML_ARRAY_LEN(rows); j++) {
    const char name[] = {(char)('a' + j), 0};
    for (uint32_t rank = 0; rank < 2; rank++) {
      struct sml_ctl_message m = join_message(name, rank, 2);
      m.u.join.num_slots = rows[j].num_asked;
      opened(2 * j + rank);
      said(2 * j + rank, &m);
    }
    for (uint32_t rank = 0; rank < 2; rank++) probed(2 * j + rank, 1472);
    assert_int_equal(w.last[2 * j].kind, rows[j].num_slots != 0 ? SML_CTL_START : SML_CTL_REFUSE);
    if (rows[j].num_slots == 0) continue;
    assert_int_equal(w.last[2 * j].u.start.num_slots, rows[j].num_slots);
    assert_int_equal(w.last[2 * j].u.start.slots_why, rows[j].why);
  }
}

static void test_too_many_jobs(void **state) {
  (void)state;
  struct sml_registry_options options = defaults();
  options.max_jobs = 1;
  begin_with(options);
  start_world("x", 0, 2);
  for (uint32_t c = 2; c < 4; c++) {
    opened(c);
    join(c, "y", c - 2, 2);
    assert_non_null(strstr(w.line, "WELCOME"));
  }
  probed(2, 8960);
  EXPECT("");
  probed(3, 8960);
  EXPECT("c3<REFUSE -7; c3 close; c2<REFUSE -7; c2 close; end j1; ");
  expect_detail(2, "the aggregator runs 1 jobs already, its limit: wait for one to end, or raise it there");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BOTH(test_join_probe_start),
      BOTH(test_settings_of_the_first_epoch),
      BOTH(test_lanes_are_the_minimum),
      BOTH(test_chunk_size),
      BOTH(test_narrow_path_is_refused_for_all),
      BOTH(test_bad_settings_are_refused),
      BOTH(test_settings_must_be_equal),
      BOTH(test_duplicate_rank_is_refused),
      BOTH(test_running_job_takes_nobody),
      BOTH(test_ending_job_frees_its_name),
      BOTH(test_ending_job_holds_its_ranks),
      BOTH(test_join_deadline_names_the_missing),
      BOTH(test_join_deadline_tells_of_a_refusal),
      BOTH(test_join_deadline_other_words),
      BOTH(test_huge_join_timeout_does_not_wrap),
      BOTH(test_departure_while_joining_lets_the_rank_return),
      BOTH(test_last_one_out_while_joining_frees_the_name),
      BOTH(test_slots_run_out),
      BOTH(test_what_is_asked_for_is_given),
      BOTH(test_slots_are_chosen),
      BOTH(test_slots_beside_others),
      BOTH(test_chosen_slots_make_do),
      BOTH(test_too_many_jobs),
  };
  return cmocka_run_group_tests(tests, NULL, end_world);
}
