/* SPDX-License-Identifier: Apache-2.0
 * The service with keys, and what it lets one host do on the control port. */
#include "aggd/test_rank_world.h"

#include "aggd/snapshot.h"

static const struct sml_key_entry keys[] = {{"alice", {1, 2}}, {"bob", {3, 4}}};

static struct sml_aggd_options with_keys(void) {
  struct sml_aggd_options options = loopback();
  options.keys = keys;
  options.num_keys = SML_ARRAY_LEN(keys);
  return options;
}

/* JOIN, CHALLENGE, AUTH; what is heard then is the caller's. */
static void shake(struct rank *r, const char *name, uint32_t rank, const char *key_name, struct sml_key key) {
  struct sml_ctl_message m = join_message(name, rank, 2);
  *r = (struct rank){.rank = rank, .tcp = connect_tcp(), .udp = -1};
  snprintf(m.u.join.key_name, sizeof m.u.join.key_name, "%s", key_name);
  m.u.join.nonce[0] = 10 + rank;
  say(r, &m);
  hear(r, SML_CTL_CHALLENGE);
  sml_channel_set_key(&r->channel, &key, m.u.join.nonce, r->last.u.challenge.nonce);
  say(r, &(struct sml_ctl_message){.kind = SML_CTL_AUTH});
}

static void take_welcome(struct rank *r, const char *name, const struct sml_key *key) {
  hear(r, SML_CTL_WELCOME);
  r->welcome = r->last.u.welcome;
  r->is_keyed = true;
  r->key = *key;
  r->job_name = name;
  enter_epoch(r, r->welcome.epoch, r->welcome.secret);
}

static void start_keyed(const char *name, struct rank *first, const struct sml_key_entry *entry) {
  for (uint32_t i = 0; i < 2; i++) {
    shake(&first[i], name, i, entry->name, entry->key);
    take_welcome(&first[i], name, &entry->key);
  }
  for (uint32_t i = 0; i < 2; i++) hello(&first[i]);
  for (uint32_t i = 0; i < 2; i++) {
    hear(&first[i], SML_CTL_START);
    first[i].start = first[i].last.u.start;
    enter_epoch(&first[i], first[i].start.epoch, first[i].start.secret);
  }
}

static void expect_sum(struct rank *first, uint32_t slot) {
  struct sml_header h;
  uint8_t frame[9000];
  update(&first[0], 0, slot, 7, 40, &h, frame, false);
  assert_true(update(&first[1], 0, slot, 7, 2, &h, frame, true));
  assert_int_equal(h.type, SML_PACKET_RESULT);
  assert_int_equal(sml_load_be32(frame + sml_head_bytes(true)), 42);
}

static void test_keyed_job(void **state) {
  (void)state;
  begin_with(with_keys());
  start_keyed("x", ranks, &keys[0]);
  assert_int_equal(ranks[0].start.chunk_bytes, 1032 - 36);
  expect_sum(ranks, 0);
  for (uint32_t i = 0; i < 2; i++)
    say(&ranks[i], &(struct sml_ctl_message){.kind = SML_CTL_EPOCH, .u.epoch.epoch = ranks[i].start.epoch});
  for (uint32_t i = 0; i < 2; i++) {
    hear(&ranks[i], SML_CTL_START);
    ranks[i].start = ranks[i].last.u.start;
    enter_epoch(&ranks[i], ranks[i].start.epoch, ranks[i].start.secret);
  }
  expect_sum(ranks, 1); /* under the new epoch's key */
  for (uint32_t i = 0; i < 2; i++) hang_up(&ranks[i]);
  end();
}

/* All lanes have one key, and chunks at one place of their streams one tag. */
static void test_moved_to_another_lane(void **state) {
  (void)state;
  struct sml_aggd_options options = with_keys();
  options.num_lanes = 2;
  begin_with(options);
  start_keyed("x", ranks, &keys[0]);
  assert_int_equal(ranks[0].start.num_lanes, 2);
  uint8_t frame[9000] = {0};
  struct sml_header h = header_of(&ranks[0], SML_PACKET_UPDATE, ranks[0].start.chunk_bytes);
  h.slot = ranks[0].start.slot_base[0];
  h.phase = ranks[0].start.first_phase;
  h.tag = 7;
  sml_store_be32(frame + sml_head_bytes(true), 40);
  exchange(&ranks[0], 1, &h, frame, false);
  update(&ranks[0], 1, 0, 7, 1, &h, frame, false);
  assert_true(update(&ranks[1], 1, 0, 7, 2, &h, frame, true));
  assert_int_equal(sml_load_be32(frame + sml_head_bytes(true)), 3);
  for (uint32_t i = 0; i < 2; i++) hang_up(&ranks[i]);
  end();
}

static void test_two_tenants_with_one_name(void **state) {
  (void)state;
  begin_with(with_keys());
  start_keyed("x", &ranks[0], &keys[0]);
  start_keyed("x", &ranks[2], &keys[1]);
  expect_sum(&ranks[0], 0);
  expect_sum(&ranks[2], 0);
  for (uint32_t i = 0; i < 4; i++) hang_up(&ranks[i]);
  end();
}

/* An update without a MAC, and one with another key's, from the right address: nothing happens. */
static void test_forged_datagrams(void **state) {
  (void)state;
  begin_with(with_keys());
  start_keyed("x", ranks, &keys[0]);
  for (uint32_t round = 0; round < 2; round++) {
    struct sml_header h;
    uint8_t frame[9000];
    struct rank forger = ranks[0];
    forger.is_keyed = forger.seal.is_keyed = round == 1;
    forger.seal.key.k0 ^= 1;
    update(&forger, 0, 0, 7, 666, &h, frame, false);
  }
  expect_sum(ranks, 0);
  char drops[512];
  sml_aggd_describe_drops(aggd, drops, sizeof drops);
  assert_non_null(strstr(drops, "BAD_KEY=2"));
  for (uint32_t i = 0; i < 2; i++) hang_up(&ranks[i]);
  end();
}

static void test_refusals(void **state) {
  (void)state;
  static const struct {
    const char *name;
    struct sml_key key;
  } rows[] = {{"alice", {1, 3}}, {"alice", {3, 4}}, {"carol", {1, 2}}};
  begin_with(with_keys());
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    shake(&ranks[0], "x", 0, rows[i].name, rows[i].key);
    hear(&ranks[0], SML_CTL_REFUSE);
    assert_int_equal(ranks[0].last.u.refuse.status, SML_ERR_KEY);
    assert_non_null(strstr(ranks[0].last.u.refuse.detail, "SWITCHML_KEY_FILE"));
    hear(&ranks[0], 0);
    hang_up(&ranks[0]);
  }
  struct sml_ctl_message m = join_message("x", 0, 2);
  ranks[0] = (struct rank){.tcp = connect_tcp(), .udp = -1};
  say(&ranks[0], &m);
  hear(&ranks[0], SML_CTL_REFUSE);
  assert_int_equal(ranks[0].last.u.refuse.status, SML_ERR_KEY);
  hang_up(&ranks[0]);
  end();
  begin_with(loopback());
  ranks[0] = (struct rank){.tcp = connect_tcp(), .udp = -1};
  strcpy(m.u.join.key_name, "alice");
  say(&ranks[0], &m);
  hear(&ranks[0], SML_CTL_REFUSE);
  assert_int_equal(ranks[0].last.u.refuse.status, SML_ERR_KEY);
  hang_up(&ranks[0]);
  end();
}

/* A key that is gone ends nothing that runs, and lets nobody in; a quota counts from the next job on. */
static void test_tenants_change(void **state) {
  (void)state;
  static const struct sml_tenant one_job[] = {{"bob", {.max_jobs = 1}}};
  begin_with(with_keys());
  start_keyed("x", &ranks[0], &keys[0]);
  start_keyed("y", &ranks[2], &keys[1]);
  assert_int_equal(sml_aggd_set_tenants(aggd, &keys[1], 1, one_job, 1), 0);
  assert_int_equal(sml_aggd_set_tenants(aggd, NULL, 0, NULL, 0), -EINVAL);
  expect_sum(&ranks[0], 0);
  expect_sum(&ranks[2], 0);
  shake(&ranks[4], "z", 0, keys[0].name, keys[0].key);
  hear(&ranks[4], SML_CTL_REFUSE);
  assert_int_equal(ranks[4].last.u.refuse.status, SML_ERR_KEY);
  hang_up(&ranks[4]);
  for (uint32_t i = 0; i < 2; i++) {
    shake(&ranks[4 + i], "z", i, keys[1].name, keys[1].key);
    take_welcome(&ranks[4 + i], "z", &keys[1].key);
  }
  for (uint32_t i = 4; i < 6; i++) hello(&ranks[i]);
  for (uint32_t i = 4; i < 6; i++) {
    hear(&ranks[i], SML_CTL_REFUSE);
    assert_non_null(strstr(ranks[i].last.u.refuse.detail, "tenant bob has 1 of 1 jobs, 2 workers"));
  }
  struct sml_snapshot *s = sml_aggd_snapshot(aggd);
  assert_non_null(s);
  assert_int_equal(s->num_tenants, 2);
  assert_string_equal(s->tenants[0].name, "bob");
  assert_int_equal(s->tenants[0].use.num_slots, 16);
  sml_snapshot_release(s);
  for (uint32_t i = 0; i < 6; i++) hang_up(&ranks[i]);
  end();
}

/* A bit of a member's message with a MAC changes on its way. */
static void test_changed_message_ends_the_member(void **state) {
  (void)state;
  begin_with(with_keys());
  start_keyed("x", ranks, &keys[0]);
  struct sml_ctl_message m = {.kind = SML_CTL_HEARTBEAT};
  uint8_t frame[64];
  size_t num_bytes = sml_channel_encode(&ranks[1].channel, &m, frame, sizeof frame);
  frame[20] ^= 1;
  assert_int_equal(send(ranks[1].tcp, frame, num_bytes, MSG_NOSIGNAL), num_bytes);
  hear(&ranks[1], SML_CTL_ABORT);
  assert_int_equal(ranks[1].last.u.abort.status, SML_ERR_KEY);
  hear(&ranks[0], SML_CTL_RANK_GONE);
  for (uint32_t i = 0; i < 2; i++) hang_up(&ranks[i]);
  end();
}

enum fate { LET_IN, SHUT_OUT, TOLD };
/* SHUT_OUT: closed without a word. TOLD: something was said. */
static enum fate fate_of(int fd, int wait_ms) {
  char byte;
  struct pollfd p = {.fd = fd, .events = POLLIN};
  if (poll(&p, 1, wait_ms) == 0) return LET_IN;
  return recv(fd, &byte, 1, MSG_DONTWAIT) > 0 ? TOLD : SHUT_OUT;
}

/* Strangers that come too fast hold no place, even if they don't hang up. */
static void test_flood_of_connections(void **state) {
  (void)state;
  struct sml_aggd_options options = loopback();
  options.new_connections_per_s = 1; /* on loopback: 16, and 64 at once */
  options.max_connections = 40;
  begin_with(options);
  start_world("x", 2);
  int held[80], fd = connect_tcp();
  uint32_t num_shut_out = 0;
  for (uint32_t i = 0; i < 10000 && fate_of(fd, 10) != SHUT_OUT; i++) {
    close(fd);
    fd = connect_tcp();
  }
  close(fd);
  for (uint32_t i = 0; i < SML_ARRAY_LEN(held); i++) held[i] = connect_tcp();
  for (uint32_t i = 0; i < SML_ARRAY_LEN(held); i++) {
    enum fate fate = fate_of(held[i], 200);
    num_shut_out += fate == SHUT_OUT;
    assert_true(fate != TOLD); /* that there is no room */
  }
  assert_true(num_shut_out > 0);
  assert_true(has_note("host_limited()"));
  struct sml_header h;
  uint8_t frame[9000];
  update(&ranks[0], 0, 0, 7, 40, &h, frame, false); /* members don't notice */
  assert_true(update(&ranks[1], 0, 0, 7, 2, &h, frame, true));
  for (uint32_t i = 0; i < SML_ARRAY_LEN(held); i++) close(held[i]);
  for (uint32_t i = 0; i < 2; i++) hang_up(&ranks[i]);
  end();
}

static int connect_from(const char *host) {
  struct sml_addr addr, local;
  char error[64];
  sml_aggd_addr(aggd, &addr);
  assert_true(sml_addr_parse(host, 0, &local, error, sizeof error));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)(void *)local.bytes, local.num_bytes), 0);
  assert_int_equal(connect(fd, (struct sockaddr *)(void *)addr.bytes, addr.num_bytes), 0);
  return fd;
}

/* Nor do they end the handshake of somebody else when there is no other place. */
static void test_flood_takes_no_place(void **state) {
  (void)state;
  struct sml_aggd_options options = loopback();
  options.new_connections_per_s = 1;
  options.max_connections = 3;
  begin_with(options);
  start_world("x", 2);
  int hasty = connect_from("127.0.0.2:0");
  for (uint32_t i = 0; i < 10000 && fate_of(hasty, 10) != SHUT_OUT; i++) {
    close(hasty);
    hasty = connect_from("127.0.0.2:0");
  }
  close(hasty);
  bool is_too_fast = false; /* it is not, 16 times a second */
  for (uint32_t i = 0; i < 20 && !is_too_fast; i++) {
    const int patient = connect_tcp();
    assert_int_equal(fate_of(patient, 10), LET_IN);
    hasty = connect_from("127.0.0.2:0");
    is_too_fast = fate_of(hasty, 10) == SHUT_OUT;
    if (is_too_fast) assert_int_equal(fate_of(patient, 10), LET_IN);
    close(patient);
    close(hasty);
  }
  assert_true(is_too_fast);
  for (uint32_t i = 0; i < 2; i++) hang_up(&ranks[i]);
  end();
}

static void test_limits_of_a_member(void **state) {
  (void)state;
  struct sml_aggd_options options = loopback();
  options.max_connections_per_host = 2;
  options.max_messages_per_s = 20;
  begin_with(options);
  start_world("x", 2);
  struct sml_ctl_message m = join_message("y", 0, 2);
  ranks[2] = (struct rank){.tcp = connect_tcp(), .udp = -1};
  say(&ranks[2], &m);
  hear(&ranks[2], SML_CTL_REFUSE);
  assert_non_null(strstr(ranks[2].last.u.refuse.detail, "host 127.0.0.1 has 2 connections"));
  for (uint32_t i = 0; i < 100; i++) {
    uint8_t frame[64];
    m = (struct sml_ctl_message){.kind = SML_CTL_HEARTBEAT};
    size_t num_bytes = sml_channel_encode(&ranks[1].channel, &m, frame, sizeof frame);
    if (send(ranks[1].tcp, frame, num_bytes, MSG_NOSIGNAL) < 0) break;
  }
  hear(&ranks[0], SML_CTL_RANK_GONE);
  assert_non_null(strstr(ranks[0].last.u.rank_gone.detail, "more than 20 control messages a second"));
  for (uint32_t i = 0; i < 3; i++) hang_up(&ranks[i]);
  end();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_keyed_job),
      cmocka_unit_test(test_moved_to_another_lane),
      cmocka_unit_test(test_two_tenants_with_one_name),
      cmocka_unit_test(test_forged_datagrams),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_tenants_change),
      cmocka_unit_test(test_changed_message_ends_the_member),
      cmocka_unit_test(test_flood_of_connections),
      cmocka_unit_test(test_flood_takes_no_place),
      cmocka_unit_test(test_limits_of_a_member),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
