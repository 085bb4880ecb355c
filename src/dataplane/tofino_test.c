/* SPDX-License-Identifier: Apache-2.0
 * Which calls of BFRuntime a Tofino gets, and whatever can go wrong with them, against a stand-in for the switch's
 * server (test_server.h). It is not the vendor's server, and there was no switch. */
#include "dataplane/switches.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <sys/socket.h>

#include <cmocka.h>

#include "dataplane/protobuf.h"
#include "dataplane/test_server.h"

/* clang-format off */ /* scripts of calls, a line for each call */

static void start_with(uint32_t packet_lanes, uint32_t pool_slots, bool has_more_lanes) {
  server_reset(has_more_lanes);
  stand_in_start(NULL, 0, server_serve);
  stand_in.plane = sml_tofino_create(&(struct sml_switch_options){.runtime = stand_in.addr,
                                                                  .program = "switchml",
                                                                  .packet_lanes = packet_lanes,
                                                                  .pool_slots = pool_slots,
                                                                  .cpu_port = 64});
  assert_non_null(stand_in.plane);
}

static void start(void) {
  start_with(SERVER_LANES, POOL_SLOTS, false);
}

static void stop(void) {
  sml_switch_destroy(stand_in.plane);
  stand_in_stop();
}

/* ---- what is asked of the switch ---- */

static void the_calls_of_a_start(void **state) {
  (void)state;
  start();
  assert_true(stand_in_open_switch());
  stand_in_expect("DELETE pipe.member\n"
               "DELETE pipe.window\n"
               "DELETE pipe.replica\n"
               "DELETE pipe.l2\n"
               "DELETE pipe.host\n"
               "DELETE pipe.source\n"
               "DELETE pipe.aggregator\n"
               "DELETE pipe.listener\n"
               "INSERT $pre.prune $MULTICAST_L2_XID=0000 : $DEV_PORT=[00]\n"
               "INSERT $pre.prune $MULTICAST_L2_XID=0084 : $DEV_PORT=[8401]\n"
               "INSERT $pre.prune $MULTICAST_L2_XID=0005 : $DEV_PORT=[05]\n"
               "INSERT $pre.prune $MULTICAST_L2_XID=0040 : $DEV_PORT=[40]\n"
               "INSERT $pre.node $MULTICAST_NODE_ID=00010000 : $MULTICAST_RID=0000 $MULTICAST_LAG_ID=[] "
               "$DEV_PORT=[0084010540]\n"
               "INSERT $pre.mgid $MGID=0001\n"
               "ADD $pre.mgid $MGID=0001 : $MULTICAST_NODE_ID=[808004] $MULTICAST_NODE_L1_XID_VALID=[00] "
               "$MULTICAST_NODE_L1_XID=[00]\n"
               "INSERT pipe.source src=0a070001 ingress=0040/ffff $MATCH_PRIORITY=00000000 : is_own\n"
               "INSERT pipe.source src=0a070001 ingress=0000/0000 $MATCH_PRIORITY=00000001 : is_forged\n"
               "INSERT pipe.aggregator dst=0a070001 dst_port=beef : is_ours cpu_port=0040 voucher=5a5b5c5d\n"
               "INSERT pipe.listener is_ours=00 : tell mac=000000000000 src=0a070000 dst=0a070001 port=beef "
               "voucher=5a5b5c5d cpu_port=0040\n");
  stop();
}

#define CELL(index, phase) \
  "MODIFY pipe.cells $REGISTER_INDEX=000000" index " : cells.phase=0000000" phase " cells.word=80000000\n"
#define IN_GROUP(node) \
  "$pre.mgid $MGID=0013 : $MULTICAST_NODE_ID=[" node "] $MULTICAST_NODE_L1_XID_VALID=[00] $MULTICAST_NODE_L1_XID=[00]\n"
#define NODE(rid, port) \
  "INSERT $pre.node $MULTICAST_NODE_ID=0000" rid " : $MULTICAST_RID=" rid " $MULTICAST_LAG_ID=[] $DEV_PORT=[" port \
  "]\n"
#define MEMBER(rank, turn, ip, port, ingress) \
  " pipe.member job=0003 epoch=00000007 rank=" rank " turn=" turn " src=" ip " src_port=" port \
  " dst_port=beef ingress=" ingress

static void the_calls_of_a_job(void **state) {
  (void)state;
  start();
  assert_true(stand_in_open_switch());
  stand_in_forget();
  assert_true(stand_in_start_job(7, 2, 2));
  stand_in_expect(CELL("80", "0") CELL("81", "1") CELL("82", "0") CELL("83", "1")
               "MODIFY pipe.cursors $REGISTER_INDEX=00000003 : cursors.f1=0000000b\n"
               "INSERT $pre.mgid $MGID=0013\n"
               "INSERT pipe.window job=0003 slot=0040/fffe dst_port=beef $MATCH_PRIORITY=00000000 : is_inside\n"
               "INSERT pipe.replica src_port=beef rid=0061 : to_member mac=020000000010 ip=0a070064 port=9c40\n"
               NODE("0061", "01") "ADD " IN_GROUP("61")
               "INSERT pipe.replica src_port=beef rid=0062 : to_member mac=020000000011 ip=0a070065 port=9c41\n"
               NODE("0062", "02") "ADD " IN_GROUP("62")
               "INSERT pipe.l2 dst=020000000010 : forward port=0001\n"
               "INSERT pipe.host src=020000000010 ingress=0001 : is_here\n"
               "INSERT pipe.l2 dst=020000000011 : forward port=0002\n"
               "INSERT pipe.host src=020000000011 ingress=0002 : is_here\n"
               "INSERT" MEMBER("0000", "00", "0a070064", "9c40", "0001") " : is_member me=80000001 full=80000003 "
               "last=80000002 cursor=0003 group=0013 port=0001 is_checked=01\n"
               "INSERT" MEMBER("0000", "01", "0a070064", "9c40", "0001") " : is_member me=c0000001 full=c0000003 "
               "last=c0000002 cursor=0003 group=0013 port=0001 is_checked=01\n"
               "INSERT" MEMBER("0001", "00", "0a070065", "9c41", "0002") " : is_member me=80000002 full=80000003 "
               "last=80000001 cursor=0003 group=0013 port=0002 is_checked=01\n"
               "INSERT" MEMBER("0001", "01", "0a070065", "9c41", "0002") " : is_member me=c0000002 full=c0000003 "
               "last=c0000001 cursor=0003 group=0013 port=0002 is_checked=01\n");
  stand_in.plane->depart(stand_in.plane->user, JOB, 1);
  stand_in_expect("DELETE" MEMBER("0001", "00", "0a070065", "9c41", "0002") "\n"
               "DELETE" MEMBER("0001", "01", "0a070065", "9c41", "0002") "\n");
  stand_in_close_job();
  stand_in_expect("DELETE" MEMBER("0000", "00", "0a070064", "9c40", "0001") "\n"
               "DELETE" MEMBER("0000", "01", "0a070064", "9c40", "0001") "\n"
               "DELETE pipe.window job=0003 slot=0040/fffe dst_port=beef $MATCH_PRIORITY=00000000\n"
               "DELETE pipe.replica src_port=beef rid=0061\n"
               "TAKE " IN_GROUP("61") "DELETE $pre.node $MULTICAST_NODE_ID=00000061\n"
               "DELETE pipe.replica src_port=beef rid=0062\n"
               "TAKE " IN_GROUP("62") "DELETE $pre.node $MULTICAST_NODE_ID=00000062\n"
               "DELETE $pre.mgid $MGID=0013\n");
  stand_in_close_job(); /* that it no longer has */
  stand_in_expect("");
  stop();
}

#define HEAR(mac, port) stand_in.plane->hear(stand_in.plane->user, mac, port, why, sizeof why)
#define FLOODS_TO(ports) \
  "MODIFY $pre.node $MULTICAST_NODE_ID=00010000 : $MULTICAST_RID=0000 $MULTICAST_LAG_ID=[] $DEV_PORT=[" ports "]\n"

static void the_calls_of_a_host_that_is_heard(void **state) {
  (void)state;
  char why[512];
  start();
  assert_true(stand_in_open_switch());
  stand_in_forget();
  HEAR(0x020000000099, 5);
  stand_in_expect("INSERT pipe.l2 dst=020000000099 : forward port=0005\n"
                  "INSERT pipe.host src=020000000099 ingress=0005 : is_here\n");
  HEAR(0x020000000099, 132); /* also there: it has to be heard at its own port again */
  stand_in_expect("DELETE pipe.host src=020000000099 ingress=0005\n");
  assert_string_equal(why, "");
  HEAR(0x020000000099, 5);
  assert_string_equal(why, "020000000099 is at port 5 of the switch and its frames come by port 132, too: two links "
                           "lead to one network (attach one of them), or somebody there uses its address; port 132 "
                           "gets no floods for 5 minutes, and nobody new is learned there");
  stand_in_expect("INSERT pipe.host src=020000000099 ingress=0005 : is_here\n" FLOODS_TO("000540"));
  HEAR(0x020000000098, 132);
  HEAR(0x010000000098, 5);
  HEAR(0x020000000099, 512);
  stand_in_expect("");
  stop();
}

static void hosts_at_two_pipes_are_refused(void **state) {
  (void)state;
  start();
  assert_true(stand_in_open_switch());
  stand_in_forget();
  assert_false(stand_in_start_job_of(JOB, 7, 4, 64, 126));
  assert_non_null(strstr(stand_in.error, "contributors 0 and 2 are at ports 126 and 128 of the switch, which are of "
                                         "pipes 0 and 1, and a pipe sums by itself: attach"));
  stand_in_expect("");
  assert_true(stand_in_start_job_of(JOB, 7, 4, 64, 128));
  stand_in_close_job();
  stop();
}

static void a_job_leaves_nothing(void **state) {
  (void)state;
  start();
  assert_true(stand_in_open_switch());
  const uint32_t num_before = server_count_live("");
  assert_true(stand_in_start_job(7, SML_SWITCH_MAX_CONTRIBUTORS, 64));
  assert_int_equal(server_count_live("pipe.member"), 2 * SML_SWITCH_MAX_CONTRIBUTORS);
  assert_true(stand_in_start_job(8, 3, 64)); /* an epoch that follows replaces it */
  assert_int_equal(server_count_live("pipe.member"), 6);
  assert_int_equal(server_count_live("$pre.node"), 1 + 3);
  stand_in_close_job();
  assert_int_equal(server_count_live("pipe.l2"), SML_SWITCH_MAX_CONTRIBUTORS); /* where hosts are stays known */
  assert_int_equal(server_count_live("pipe.host"), SML_SWITCH_MAX_CONTRIBUTORS);
  assert_int_equal(server_count_live(""), num_before + 2 * SML_SWITCH_MAX_CONTRIBUTORS);
  assert_true(stand_in_start_job(9, 3, 64)); /* of a daemon that was killed */
  assert_true(stand_in_open_switch());
  assert_int_equal(server_count_live(""), num_before);
  stop();
}

static void who_blocks_is_found(void **state) {
  (void)state;
  start();
  stand_in_check_who_blocks();
  stand_in_plan_fault(REFUSES, 1);
  assert_int_equal(stand_in_find_blocked(1), UINT32_MAX);
  stop();
}

static void ranks_must_reach_us(void **state) {
  (void)state;
  start();
  stand_in_check_ranks_must_reach_us();
  stop();
}

static void counters_are_read(void **state) {
  (void)state;
  uint64_t counts[SML_NUM_AT_SWITCH] = {0};
  start();
  stand_in_read_counters(counts);
  for (uint32_t i = 0; i < SML_NUM_AT_SWITCH; i++) assert_int_equal(counts[i], i + 1); /* of both pipes */
  for (uint32_t i = 0; i < SML_NUM_AT_SWITCH; i++) counts[i] = 1000;
  stand_in_plan_fault(SILENT, 1);
  const uint64_t start_ns = sml_clock_ns();
  assert_false(stand_in.plane->read_counters(stand_in.plane->user, counts));
  assert_true(sml_clock_ns() - start_ns >= 90 * SML_NS_PER_MS);
  assert_int_equal(counts[1], 1000);
  stop();
}

/* ---- what goes wrong ---- */

static void expect_failure(const char *what) {
  char address[64], expected[512];
  sml_addr_format(&stand_in.addr, address, sizeof address);
  snprintf(expected, sizeof expected, "the switch at %s: %s", address, what);
  assert_string_equal(stand_in.error, expected);
}

static const struct {
  enum fault fault;
  const char *error;
} faults[] = {{CLOSES, "connection closed"},
              {REFUSES, "refused with code 13: out of order"},
              {NO_HTTP2, "this is no gRPC, or it wants no more calls"},
              {NO_GRPC, "this is no gRPC: HTTP status 404"},
              {CUTS, "a message that is cut off"},
              {COMPRESSES, "a compressed message, which nobody asked for"},
              {RESETS, "the call was reset with code 2"},
              {TOO_LONG, "an answer of more than 4194304 bytes"},
              {DIES, "connection closed"}};

static void errors_say_what_happened(void **state) {
  (void)state;
  for (size_t i = 0; i < SML_ARRAY_LEN(faults); i++) {
    char expected[128];
    start();
    stand_in_plan_fault(faults[i].fault, 1);
    assert_false(stand_in_open_switch());
    snprintf(expected, sizeof expected, "Write: %s", faults[i].error);
    expect_failure(expected);
    if (faults[i].fault != DIES) assert_true(stand_in_open_switch()); /* nothing of it remains */
    else assert_false(stand_in_open_switch());
    if (faults[i].fault == DIES) expect_failure("Read: cannot connect: Connection refused");
    stop();
  }
}

static void a_silent_switch_is_given_up(void **state) {
  (void)state;
  start();
  assert_true(stand_in_open_switch());
  stand_in_plan_fault(SILENT, 5);
  const uint64_t start_ns = sml_clock_ns();
  assert_false(stand_in_start_job(7, 2, 2));
  assert_true(sml_clock_ns() - start_ns >= SML_NS_PER_S);
  expect_failure("Write: no answer in time");
  stand_in_close_job();
  assert_true(stand_in_start_job(8, 2, 2));
  stop();
}

static void a_dripping_switch_is_given_up(void **state) {
  (void)state;
  start();
  stand_in_check_dripping_is_given_up(LENGTHY);
  stop();
}

static void a_program_that_does_not_fit(void **state) {
  (void)state;
  static const struct {
    uint32_t lanes, slots;
    bool has_more_lanes;
    const char *error;
  } cases[] = {{SERVER_LANES, POOL_SLOTS, true,
                "the switch's program has not 32 lanes a packet, as --switch-format says"},
               {64, POOL_SLOTS, false, "the switch's program has not 64 lanes a packet, as --switch-format says"},
               {SERVER_LANES, 2 * POOL_SLOTS, false, "the switch's program has less than 256 slots: set --slots"}};
  for (size_t i = 0; i < SML_ARRAY_LEN(cases); i++) {
    start_with(cases[i].lanes, cases[i].slots, cases[i].has_more_lanes);
    assert_false(stand_in_open_switch());
    assert_string_equal(stand_in.error, cases[i].error);
    stop();
  }
}

/* Its pairs of lanes have the names of their upper ones: the last lane is there as in any program. */
static void a_program_with_64_lanes(void **state) {
  (void)state;
  start_with(64, POOL_SLOTS, true);
  assert_true(stand_in_open_switch());
  stop();
}

static void a_switch_that_dies_is_noticed(void **state) {
  (void)state;
  char address[64], why[128];
  start();
  sml_addr_format(&stand_in.addr, address, sizeof address);
  snprintf(why, sizeof why, "the switch at %s has closed its connection", address);
  stand_in_check_death_is_noticed(why);
  stop();
}

/* Each call of a job's life goes wrong once, in each way. */
static void any_call_may_fail(void **state) {
  (void)state;
  start();
  assert_true(stand_in_open_switch());
  const uint32_t num_before = stand_in_count_calls();
  assert_true(stand_in_start_job(7, 2, 2));
  const uint32_t num_start = stand_in_count_calls() - num_before;
  (void)stand_in_find_blocked(0);
  stand_in_close_job();
  const uint32_t num_all = stand_in_count_calls() - num_before;
  stop();
  for (size_t i = 0; i < SML_ARRAY_LEN(faults); i++) {
    for (uint32_t call = 1; faults[i].fault != TOO_LONG && call <= num_all; call++) {
      start();
      assert_true(stand_in_open_switch());
      const uint32_t num_made = server_count_live("");
      stand_in_plan_fault(faults[i].fault, call);
      const bool is_started = stand_in_start_job(7, 2, 2);
      if (call > num_start) assert_true(is_started);
      if (!is_started) assert_non_null(strstr(stand_in.error, "the switch at 127.0.0.1:"));
      if (is_started) (void)stand_in_find_blocked(0);
      stand_in_close_job();
      if (faults[i].fault != DIES) {
        const uint32_t num_of_hosts = server_count_live("pipe.l2") + server_count_live("pipe.host");
        assert_true(server_count_live("") - num_of_hosts <= num_made + 1);
        assert_true(stand_in_start_job(8, 2, 2)); /* whatever is left */
        stand_in_close_job();
        const uint32_t num_learned = server_count_live("pipe.l2") + server_count_live("pipe.host");
        assert_int_equal(server_count_live("") - num_learned, num_made);
      } else {
        assert_false(stand_in_start_job(8, 2, 2));
      }
      stop();
    }
  }
}

/* Every message cut anywhere, and bytes of chance: a reader ends, within them. */
static void garbage_is_read_to_its_end(void **state) {
  (void)state;
  uint64_t seed = 1;
  for (uint32_t round = 0; round < 20000; round++) {
    uint8_t bytes[24];
    for (size_t i = 0; i < sizeof bytes; i++) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      bytes[i] = (uint8_t)(seed >> 56) & (round % 2 ? 0xff : 0x1f);
    }
    struct sml_pb_reader reader = {bytes, bytes + seed % (sizeof bytes + 1)};
    struct sml_pb_field field;
    const uint8_t *end = reader.end;
    while (sml_pb_next(&reader, &field)) {
      assert_true(field.number != 0 && reader.at <= end);
      if (field.has_bytes) assert_true(field.inside.at >= bytes && field.inside.end <= end);
    }
    assert_true(reader.at <= end);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_calls_of_a_start), cmocka_unit_test(the_calls_of_a_job),
      cmocka_unit_test(the_calls_of_a_host_that_is_heard), cmocka_unit_test(a_job_leaves_nothing),
      cmocka_unit_test(hosts_at_two_pipes_are_refused),
      cmocka_unit_test(who_blocks_is_found),
      cmocka_unit_test(ranks_must_reach_us), cmocka_unit_test(counters_are_read),
      cmocka_unit_test(a_switch_that_dies_is_noticed),
      cmocka_unit_test(errors_say_what_happened),
      cmocka_unit_test(a_silent_switch_is_given_up),
      cmocka_unit_test(a_dripping_switch_is_given_up),
      cmocka_unit_test(a_program_that_does_not_fit), cmocka_unit_test(a_program_with_64_lanes),
      cmocka_unit_test(any_call_may_fail),
      cmocka_unit_test(garbage_is_read_to_its_end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
