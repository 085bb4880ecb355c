/* SPDX-License-Identifier: Apache-2.0
 * The aggregator service over real sockets on loopback, against hand-written ranks. */
#include "aggd/test_rank_world.h"

#include <stdatomic.h>

#include "aggd/aggd_internal.h"
#include "aggd/dataplane.h"
#include "aggd/snapshot.h"

static uint64_t count_fds(void) {
  uint64_t num_fds = 0;
  for (int fd = 0; fd < 1024; fd++) num_fds += fcntl(fd, F_GETFD) >= 0;
  return num_fds;
}

static void test_join_sum_goodbye(void **state) {
  (void)state;
  struct sml_aggd_options options = loopback();
  options.num_lanes = 2;
  begin_with(options);
  start_world("x", 2);
  assert_int_equal(ranks[0].start.num_lanes, 2);
  assert_int_equal(ranks[0].start.chunk_bytes, 1000);
  for (uint32_t lane = 0; lane < 2; lane++) {
    struct sml_header h;
    uint8_t frame[9000];
    update(&ranks[0], lane, 3, 7, 40, &h, frame, false);
    assert_true(update(&ranks[1], lane, 3, 7, 2, &h, frame, true));
    assert_int_equal(h.type, SML_PACKET_RESULT);
    assert_int_equal(sml_load_be32(frame + SML_HEADER_BYTES), 42);
  }
  for (uint32_t i = 0; i < 2; i++) say(&ranks[i], &(struct sml_ctl_message){.kind = SML_CTL_GOODBYE});
  await_note("job_ended(x)");
  for (uint32_t i = 0; i < 2; i++) {
    while (hear_any(&ranks[i]) == SML_CTL_RANK_GONE) continue; /* the one that left second hears of the first */
    hang_up(&ranks[i]);
  }
  start_world("x", 2); /* the name is free again */
  for (uint32_t i = 0; i < 2; i++) hang_up(&ranks[i]);
  end();
}

static void test_lost_rank_is_told_and_blocks(void **state) {
  (void)state;
  begin_with(loopback());
  start_world("x", 3);
  hang_up(&ranks[2]);
  for (uint32_t i = 0; i < 2; i++) {
    hear(&ranks[i], SML_CTL_RANK_GONE);
    assert_int_equal(ranks[i].last.u.rank_gone.num_ranks, 1);
    assert_int_equal(ranks[i].last.u.rank_gone.ranks[0], 2);
    assert_string_equal(ranks[i].last.u.rank_gone.detail,
                        "rank 2 (127.0.0.1) was lost: connection closed without goodbye");
  }
  struct sml_header h;
  uint8_t frame[9000];
  update(&ranks[0], 0, 0, 7, 1, &h, frame, false); /* waits for rank 2: now it is an error */
  for (uint32_t i = 0; i < 2; i++) {
    hear(&ranks[i], SML_CTL_ABORT);
    assert_int_equal(ranks[i].last.u.abort.status, SML_ERR_RANK_LOST);
    assert_int_equal(ranks[i].last.u.abort.ranks[0], 2);
    hear(&ranks[i], 0);
    hang_up(&ranks[i]);
  }
  start_world("x", 2);
  for (uint32_t i = 0; i < 2; i++) hang_up(&ranks[i]);
  end();
}

static void test_reset_while_others_wait(void **state) {
  (void)state;
  begin_with(loopback());
  start_world("x", 2);
  struct sml_header h;
  uint8_t frame[9000];
  update(&ranks[0], 0, 0, 7, 1, &h, frame, false);
  usleep(50000); /* the update is in before the loss, or after it: either way ends in ABORT */
  struct linger hard = {.l_onoff = 1};
  setsockopt(ranks[1].tcp, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  hang_up(&ranks[1]);
  hear(&ranks[0], SML_CTL_RANK_GONE);
  hear(&ranks[0], SML_CTL_ABORT);
  assert_string_equal(ranks[0].last.u.abort.detail, "rank 1 (127.0.0.1) was lost: connection reset without goodbye");
  hang_up(&ranks[0]);
  end();
}

static void test_mismatch_aborts(void **state) {
  (void)state;
  begin_with(loopback());
  start_world("x", 2);
  struct sml_header h;
  uint8_t frame[9000];
  update(&ranks[0], 0, 0, 7, 1, &h, frame, false);
  update(&ranks[1], 0, 0, 8, 1, &h, frame, false);
  for (uint32_t i = 0; i < 2; i++) {
    hear(&ranks[i], SML_CTL_ABORT);
    assert_int_equal(ranks[i].last.u.abort.status, SML_ERR_MISMATCH);
    assert_int_equal(ranks[i].last.u.abort.num_ranks, 2);
    hang_up(&ranks[i]);
  }
  end();
}

static void test_abort_reaches_the_others(void **state) {
  (void)state;
  begin_with(loopback());
  start_world("x", 3);
  struct sml_ctl_message m = {.kind = SML_CTL_ABORT, .u.abort = {.status = SML_ERR_ABORTED, .detail = "enough"}};
  say(&ranks[1], &m);
  for (uint32_t i = 0; i < 3; i += 2) {
    hear(&ranks[i], SML_CTL_ABORT);
    assert_string_equal(ranks[i].last.u.abort.detail, "rank 1 (127.0.0.1) aborted the job: enough");
  }
  hear(&ranks[1], 0);
  for (uint32_t i = 0; i < 3; i++) hang_up(&ranks[i]);
  end();
}

static void test_silent_rank_is_lost(void **state) {
  (void)state;
  begin_with(loopback());
  for (uint32_t i = 0; i < 2; i++) {
    struct sml_ctl_message m = join_message("x", i, 3);
    m.u.join.lease_ns = 200 * SML_NS_PER_MS;
    ranks[i] = (struct rank){.rank = i, .tcp = connect_tcp(), .udp = -1};
    say(&ranks[i], &m);
    hear(&ranks[i], SML_CTL_WELCOME);
    hear(&ranks[i], SML_CTL_HEARTBEAT);
  }
  hear(&ranks[0], SML_CTL_REFUSE);
  assert_string_equal(ranks[0].last.u.refuse.detail,
                      "rank 0 (127.0.0.1) was lost: silent for longer than its lease of 200 ms");
  await_note("rank_lost(x)");
  await_note("job_ended(x)");
  for (uint32_t i = 0; i < 2; i++) hang_up(&ranks[i]);
  end();
}

static void test_join_timeout_names_the_missing(void **state) {
  (void)state;
  begin_with(loopback());
  struct sml_ctl_message m = join_message("x", 1, 4);
  m.u.join.join_timeout_ns = 100 * SML_NS_PER_MS;
  ranks[1] = (struct rank){.rank = 1, .tcp = connect_tcp(), .udp = -1};
  say(&ranks[1], &m);
  hear(&ranks[1], SML_CTL_WELCOME);
  hear(&ranks[1], SML_CTL_REFUSE);
  assert_string_equal(ranks[1].last.u.refuse.detail, "ranks 0, 2, 3 of 4 have not joined");
  hear(&ranks[1], 0);
  hang_up(&ranks[1]);
  end();
}

static void test_new_epoch(void **state) {
  (void)state;
  struct sml_aggd_options options = loopback();
  options.first_phase = 0xfffffff0;
  options.first_chunk = 9;
  begin_with(options);
  start_world("x", 2);
  const struct sml_ctl_start first = ranks[0].start;
  assert_int_equal(ranks[0].start.first_phase, 0xfffffff0);
  for (uint32_t i = 0; i < 2; i++)
    say(&ranks[i], &(struct sml_ctl_message){.kind = SML_CTL_EPOCH, .u.epoch.epoch = first.epoch});
  for (uint32_t i = 0; i < 2; i++) {
    hear(&ranks[i], SML_CTL_START);
    ranks[i].start = ranks[i].last.u.start;
    enter_epoch(&ranks[i], ranks[i].start.epoch, ranks[i].start.secret);
    assert_int_not_equal(ranks[i].start.epoch, first.epoch);
    assert_memory_not_equal(ranks[i].start.secret, first.secret, sizeof first.secret);
    assert_int_equal(ranks[i].start.first_phase, 2);
  }
  struct sml_header h;
  uint8_t frame[9000];
  update(&ranks[0], 0, 0, 7, 1, &h, frame, false);
  assert_true(update(&ranks[1], 0, 0, 7, 1, &h, frame, true));
  assert_int_equal(h.type, SML_PACKET_RESULT);
  assert_int_equal(h.epoch, ranks[0].start.epoch);
  for (uint32_t i = 0; i < 2; i++) hang_up(&ranks[i]);
  end();
}

static void test_bytes_one_at_a_time(void **state) {
  (void)state;
  begin_with(loopback());
  struct sml_ctl_message m = join_message("x", 0, 2);
  uint8_t frame[512];
  size_t num_bytes = sml_ctl_encode(&m, frame, sizeof frame);
  ranks[0] = (struct rank){.rank = 0, .tcp = connect_tcp(), .udp = -1};
  for (size_t i = 0; i < num_bytes; i++) {
    assert_int_equal(send(ranks[0].tcp, frame + i, 1, MSG_NOSIGNAL), 1);
    if (i % 16 == 0) usleep(1000);
  }
  hear(&ranks[0], SML_CTL_WELCOME);
  hang_up(&ranks[0]);
  end();
}

/* The refusal comes in the other version's frame; but for that number it is ours. */
static void expect_version_refusal(uint8_t *frame, size_t num_bytes, uint16_t version) {
  struct sml_ctl_message m;
  size_t consumed;
  assert_int_equal(sml_load_be16(frame + 4), version);
  sml_store_be16(frame + 4, SML_CTL_VERSION);
  assert_int_equal(sml_ctl_decode(frame, num_bytes, &m, &consumed), SML_CTL_DECODED);
  assert_int_equal(m.kind, SML_CTL_REFUSE);
  assert_int_equal(m.u.refuse.status, SML_ERR_VERSION);
}

/* Strangers: random bytes, half a header, an HTTP request, messages that do not belong, each followed by
 * a check that a real job still gets through. */
static void test_garbage(void **state) {
  (void)state;
  begin_with(loopback());
  struct sml_prng prng = {.state = 11};
  for (uint32_t round = 0; round < 200; round++) {
    uint8_t bytes[8192];
    size_t num_bytes = sml_prng_below(&prng, sizeof bytes);
    for (size_t i = 0; i < num_bytes; i++) bytes[i] = (uint8_t)sml_prng_next(&prng);
    if (round % 3 == 0) { /* a good frame around bad content */
      sml_store_be32(bytes, SML_CTL_MAGIC);
      sml_store_be16(bytes + 4, SML_CTL_VERSION);
      sml_store_be16(bytes + 6, (uint16_t)(1 + sml_prng_below(&prng, 12)));
      sml_store_be32(bytes + 8, (uint32_t)sml_prng_below(&prng, 5000));
    }
    int fd = connect_tcp();
    if (send(fd, bytes, num_bytes, MSG_NOSIGNAL) < 0) assert_true(errno == EPIPE || errno == ECONNRESET);
    close(fd);
  }
  int fd = connect_tcp();
  assert_int_equal(send(fd, "GET / HTTP/1.1\r\n", 16, MSG_NOSIGNAL), 16);
  struct pollfd p = {.fd = fd, .events = POLLIN};
  char byte;
  assert_int_equal(poll(&p, 1, WAIT_MS), 1);
  assert_true(recv(fd, &byte, 1, 0) <= 0); /* closed, nothing said */
  close(fd);
  ssize_t heard_bytes = 0;
  for (uint32_t attempt = 0; heard_bytes < 6 && attempt < 500;
       attempt++) { /* the strangers fill the host's share first */
    uint8_t answer[512], other[6] = "SML1";
    sml_store_be16(other + 4, SML_CTL_VERSION + 1);
    fd = connect_tcp();
    p.fd = fd;
    if (send(fd, other, sizeof other, MSG_NOSIGNAL) == sizeof other && poll(&p, 1, WAIT_MS) == 1)
      heard_bytes = recv(fd, answer, sizeof answer, MSG_WAITALL);
    if (heard_bytes >= 6) expect_version_refusal(answer, (size_t)heard_bytes, SML_CTL_VERSION + 1);
    close(fd);
    if (heard_bytes < 6) usleep(10000);
  }
  assert_true(heard_bytes >= 6);
  start_world("x", 2);
  for (uint32_t i = 0; i < 2; i++) hang_up(&ranks[i]);
  end();
}

/* Datagrams that are none, on the data port of a running job. */
static void test_data_port_garbage(void **state) {
  (void)state;
  begin_with(loopback());
  start_world("x", 2);
  struct sml_addr addr;
  sml_aggd_addr(aggd, &addr);
  sml_addr_set_port(&addr, sml_lanes_port(aggd->lanes, 0));
  struct sml_prng prng = {.state = 12};
  for (uint32_t round = 0; round < 2000; round++) {
    uint8_t bytes[256];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)sml_prng_next(&prng);
    sendto(ranks[0].udp, bytes, sml_prng_below(&prng, sizeof bytes), 0, (struct sockaddr *)(void *)addr.bytes,
           addr.num_bytes);
  }
  struct sml_header h;
  uint8_t frame[9000];
  update(&ranks[0], 0, 0, 7, 1, &h, frame, false);
  assert_true(update(&ranks[1], 0, 0, 7, 1, &h, frame, true));
  assert_int_equal(h.type, SML_PACKET_RESULT);
  char drops[512];
  sml_aggd_describe_drops(aggd, drops, sizeof drops);
  assert_non_null(strstr(drops, "="));
  for (uint32_t i = 0; i < 2; i++) hang_up(&ranks[i]);
  end();
}

static void test_half_open_is_closed(void **state) {
  (void)state;
  struct sml_aggd_options options = loopback();
  options.join_grace_ns = 100 * SML_NS_PER_MS;
  begin_with(options);
  int fd = connect_tcp();
  assert_int_equal(send(fd, "SML1", 4, MSG_NOSIGNAL), 4);
  struct pollfd p = {.fd = fd, .events = POLLIN};
  char byte;
  assert_int_equal(poll(&p, 1, WAIT_MS), 1);
  assert_int_equal(recv(fd, &byte, 1, 0), 0);
  close(fd);
  end();
}

static void test_full_house_is_refused(void **state) {
  (void)state;
  struct sml_aggd_options options = loopback();
  options.max_connections = 2;
  begin_with(options);
  join(&ranks[0], "x", 0, 2);
  join(&ranks[1], "x", 1, 2);
  ranks[2] = (struct rank){.rank = 2, .tcp = connect_tcp(), .udp = -1};
  hear(&ranks[2], SML_CTL_REFUSE);
  hear(&ranks[2], 0);
  for (uint32_t i = 0; i < 3; i++) hang_up(&ranks[i]);
  end();
}

/* A member that never reads: the kernel's buffers fill, then ours; it is lost and the daemon goes on. */
static void test_slow_reader_is_lost(void **state) {
  (void)state;
  begin_with(loopback());
  struct sml_ctl_message m = join_message("x", 0, 2);
  m.u.join.lease_ns = 20 * SML_NS_PER_MS; /* heartbeats every 5 ms */
  int small = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sml_addr addr;
  sml_aggd_addr(aggd, &addr);
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  assert_int_equal(connect(fd, (struct sockaddr *)(void *)addr.bytes, addr.num_bytes), 0);
  ranks[0] = (struct rank){.rank = 0, .tcp = fd, .udp = -1};
  say(&ranks[0], &m);
  await_note("rank_joined(x)"); /* it says nothing any more either: the lease ends it, whatever fills first */
  await_note("rank_lost(x)");
  hang_up(&ranks[0]);
  start_world("y", 2);
  for (uint32_t i = 0; i < 2; i++) hang_up(&ranks[i]);
  end();
}

static void test_stop_tells_members(void **state) {
  (void)state;
  begin_with(loopback());
  start_world("x", 2);
  join(&ranks[2], "y", 0, 2);
  uint64_t start_ns = sml_clock_ns();
  end();
  assert_true(sml_clock_ns() - start_ns < SML_NS_PER_S);
  for (uint32_t i = 0; i < 2; i++) {
    hear(&ranks[i], SML_CTL_ABORT);
    assert_int_equal(ranks[i].last.u.abort.status, SML_ERR_AGGREGATOR_LOST);
    assert_string_equal(ranks[i].last.u.abort.detail, "the aggregator is shutting down");
  }
  hear(&ranks[2], SML_CTL_REFUSE);
  for (uint32_t i = 0; i < 3; i++) hang_up(&ranks[i]);
}

static void test_port_in_use(void **state) {
  (void)state;
  begin_with(loopback());
  struct sml_aggd_options options = loopback();
  struct sml_aggd *other = NULL;
  char error[256], expected[256], addr_text[64];
  sml_aggd_addr(aggd, &options.listen);
  sml_addr_format(&options.listen, addr_text, sizeof addr_text);
  snprintf(expected, sizeof expected,
           "cannot listen on %s: Address already in use; stop the process that has this "
           "port, or choose another port",
           addr_text);
  assert_int_equal(sml_aggd_start(&options, &other, error, sizeof error), -EADDRINUSE);
  assert_string_equal(error, expected);
  options = loopback(); /* the data port is taken */
  options.first_data_port = sml_lanes_port(aggd->lanes, 0);
  assert_true(sml_aggd_start(&options, &other, error, sizeof error) < 0);
  assert_true(strlen(error) > 10);
  assert_null(other);
  end();
}

static void test_limits_of_options(void **state) {
  (void)state;
  struct sml_aggd *other = NULL;
  for (uint32_t row = 0; row < 5; row++) {
    struct sml_aggd_options options = loopback();
    char error[256] = "";
    if (row == 0) options.num_lanes = 17;
    if (row == 1) options.pool_slots = 65537;
    if (row == 2) options.max_jobs = 1025;
    if (row == 3) options.first_data_port = 65535, options.num_lanes = 2;
    if (row == 4) options.first_phase = 3;
    assert_int_equal(sml_aggd_start(&options, &other, error, sizeof error), -EINVAL);
    assert_true(strlen(error) > 10);
  }
}

/* The descriptor limit is reached: new connections wait, the daemon does not spin, and goes on after. */
static void test_out_of_descriptors(void **state) {
  (void)state;
  begin_with(loopback());
  join(&ranks[0], "x", 0, 2);
  int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct rlimit before, tight;
  getrlimit(RLIMIT_NOFILE, &before);
  tight = before;
  tight.rlim_cur = (rlim_t)client + 1; /* all lower numbers are in use */
  for (int fd = 0; fd < client; fd++) assert_true(fcntl(fd, F_GETFD) >= 0);
  setrlimit(RLIMIT_NOFILE, &tight);
  struct sml_addr addr;
  sml_aggd_addr(aggd, &addr);
  assert_int_equal(connect(client, (struct sockaddr *)(void *)addr.bytes, addr.num_bytes), 0);
  struct timespec cpu;
  usleep(300000);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  double cpu_before = (double)cpu.tv_sec + (double)cpu.tv_nsec * 1e-9;
  usleep(300000);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  assert_true((double)cpu.tv_sec + (double)cpu.tv_nsec * 1e-9 - cpu_before < 0.1);
  setrlimit(RLIMIT_NOFILE, &before);
  ranks[1] = (struct rank){.rank = 1, .tcp = client, .udp = -1};
  struct sml_ctl_message m = join_message("x", 1, 2);
  say(&ranks[1], &m);
  hear(&ranks[1], SML_CTL_WELCOME);
  for (uint32_t i = 0; i < 2; i++) hang_up(&ranks[i]);
  end();
}

/* Jobs come and go; nothing stays. */
static void test_nothing_leaks(void **state) {
  (void)state;
  struct sml_aggd_options options = loopback();
  options.max_jobs = 1;
  options.pool_slots = 16;
  uint64_t fds_before = count_fds();
  begin_with(options);
  for (uint32_t round = 0; round < 100; round++) {
    start_world("x", 2);
    forget_notes();
    for (uint32_t i = 0; i < 2; i++) hang_up(&ranks[i]);
    await_note("job_ended(x)");
  }
  end();
  assert_int_equal(count_fds(), fds_before);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_join_sum_goodbye),
      cmocka_unit_test(test_lost_rank_is_told_and_blocks),
      cmocka_unit_test(test_reset_while_others_wait),
      cmocka_unit_test(test_mismatch_aborts),
      cmocka_unit_test(test_abort_reaches_the_others),
      cmocka_unit_test(test_silent_rank_is_lost),
      cmocka_unit_test(test_join_timeout_names_the_missing),
      cmocka_unit_test(test_new_epoch),
      cmocka_unit_test(test_bytes_one_at_a_time),
      cmocka_unit_test(test_garbage),
      cmocka_unit_test(test_data_port_garbage),
      cmocka_unit_test(test_half_open_is_closed),
      cmocka_unit_test(test_full_house_is_refused),
      cmocka_unit_test(test_slow_reader_is_lost),
      cmocka_unit_test(test_stop_tells_members),
      cmocka_unit_test(test_port_in_use),
      cmocka_unit_test(test_limits_of_options),
      cmocka_unit_test(test_out_of_descriptors),
      cmocka_unit_test(test_nothing_leaks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
