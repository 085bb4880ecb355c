/* SPDX-License-Identifier: Apache-2.0
 * The simulated packet back end, and what links do to datagrams: every fault occurs as often as it should, is
 * counted, and nothing is lost without a count. */
#include <errno.h>
#include <stdlib.h>

#include "netio/netio.h"
#include "sim/test_support.h"

#define PORT 5000u
#define FRAME_BYTES 200u

static struct sml_netio *open_io(uint32_t ipv4, uint16_t port, uint32_t rx_buffer_bytes) {
  struct sml_addr addr;
  char text[32], error[128];
  struct sml_netio *io = NULL;
  (void)snprintf(text, sizeof text, "%u.%u.%u.%u:%u", ipv4 >> 24, ipv4 >> 16 & 255, ipv4 >> 8 & 255, ipv4 & 255, port);
  CHECK(sml_addr_parse(text, 0, &addr, error, sizeof error));
  const struct sml_udp_options options = {.bind_addr = &addr, .rx_buffer_bytes = rx_buffer_bytes};
  CHECK(sml_udp_open(&options, &io, error, sizeof error) == 0);
  return io;
}

static struct sml_addr addr_of(uint32_t host, uint16_t port) {
  struct sml_addr addr;
  char text[32], error[128];
  (void)snprintf(text, sizeof text, "10.0.0.%u:%u", host + 1, port);
  CHECK(sml_addr_parse(text, 0, &addr, error, sizeof error));
  return addr;
}

struct traffic {
  uint32_t num_bursts, pause_ns;
  uint64_t num_sent, num_received, num_bytes_wrong, num_out_of_order, num_short;
  uint32_t last_number;
  bool is_over;
};

static void fill(uint8_t *frame, uint32_t number) {
  for (uint32_t i = 0; i < FRAME_BYTES; i++) frame[i] = (uint8_t)sml_mix64(number + i);
  sml_store_be32(frame, number);
}

static int main_of_sender(void *argument) {
  struct traffic *t = argument;
  struct sml_netio *io = open_io(0, 0, 0);
  const struct sml_addr to = addr_of(1, PORT);
  for (uint32_t n = 0; n < t->num_bursts; n++) {
    struct sml_tx_burst burst;
    io->ops->tx_reserve(io, FRAME_BYTES, &burst);
    const uint32_t num_frames = 1 + (uint32_t)sim_draw(burst.max_frames);
    for (uint32_t i = 0; i < num_frames; i++) fill(burst.data + i * FRAME_BYTES, (uint32_t)t->num_sent++);
    io->ops->tx_commit(io, &burst, num_frames, FRAME_BYTES, &to, 1);
    io->ops->tx_flush(io);
    sim_sleep_ns(t->pause_ns);
  }
  CHECK(io->stats.tx_frames == t->num_sent && io->stats.tx_lost_frames == 0);
  io->ops->close(io);
  return 0;
}

static void look_at(struct traffic *t, const struct sml_rx_frame *f) {
  uint8_t right[FRAME_BYTES];
  t->num_received++;
  t->num_short += f->num_bytes < FRAME_BYTES;
  if (f->num_bytes < FRAME_BYTES) return;
  const uint32_t number = sml_load_be32(f->data);
  fill(right, number);
  if (memcmp(right, f->data, FRAME_BYTES) != 0) {
    t->num_bytes_wrong++;
    return;
  }
  t->num_out_of_order += t->num_received > 1 && number < t->last_number;
  t->last_number = number;
}

static int main_of_receiver(void *argument) {
  struct traffic *t = argument;
  struct sml_netio *io = open_io(0, PORT, 1u << 20);
  struct sml_rx_frame frames[100];
  while (!t->is_over) {
    const size_t num_frames = io->ops->rx_burst(io, frames, 100);
    for (size_t i = 0; i < num_frames; i++) look_at(t, &frames[i]);
    io->ops->wait(io, SML_NS_PER_S);
  }
  io->ops->close(io);
  return 0;
}

static uint64_t num_gone(void) {
  uint64_t sum = 0;
  for (enum sim_count what = SIM_LOST; what <= SIM_LOST_TOO_LONG; what++)
    if (what != SIM_DUPLICATED && what != SIM_REORDERED && what != SIM_CORRUPTED && what != SIM_TRUNCATED)
      sum += sim_count(what);
  return sum;
}

/* Sends from host 0 to host 1 over such links; the digest. */
static uint64_t run_traffic(uint64_t seed, const struct sim_link *link, struct traffic *t) {
  struct sim_options options = {.seed = seed};
  test_failure[0] = 0;
  sim_begin(&options);
  (void)add_host(0, link);
  (void)add_host(1, link);
  sim_spawn(test_hosts[1], "receiver", main_of_receiver, t, NULL);
  (void)sim_run_until(SML_NS_PER_MS, NULL, NULL);
  sim_spawn(test_hosts[0], "sender", main_of_sender, t, NULL);
  (void)sim_run_until(20 * SML_NS_PER_S, NULL, NULL);
  t->is_over = true;
  run_out();
  assert_int_equal(sim_count(SIM_DATAGRAMS_SENT), t->num_sent);
  assert_int_equal(sim_count(SIM_DATAGRAMS_DELIVERED), t->num_received);
  assert_int_equal(t->num_sent + sim_count(SIM_DUPLICATED), t->num_received + num_gone()); /* all accounted for */
  return sim_digest();
}

static void test_a_clean_link_keeps_order(void **state) {
  (void)state;
  const struct sim_link link = {.bits_per_s = 1000000000, .delay_ns = 50000};
  struct traffic t = {.num_bursts = 200, .pause_ns = 100000};
  (void)run_traffic(1, &link, &t);
  assert_int_equal(t.num_received, t.num_sent);
  assert_int_equal(t.num_bytes_wrong + t.num_out_of_order + t.num_short, 0);
  finish();
}

struct fault_case {
  const char *name;
  enum sim_count count;
  struct sim_faults faults;
  double expected; /* of sent, both links together */
};
static const struct fault_case fault_cases[] = {
    {"loss", SIM_LOST, {.loss = 0.05}, 0.0975},
    {"burst", SIM_LOST_IN_BURST, {.burst_loss = 0.0005}, 0.06},
    {"duplicate", SIM_DUPLICATED, {.duplicate = 0.1, .reorder_ns = 1000000}, 0.1},
    {"reorder", SIM_REORDERED, {.reorder = 0.1, .reorder_ns = 10000000}, 0.1},
    {"corrupt", SIM_CORRUPTED, {.corrupt = 0.05}, 0.1},
    {"truncate", SIM_TRUNCATED, {.truncate = 0.05}, 0.1},
};

static void test_each_fault_is_drawn_and_counted(void **state) {
  (void)state;
  for (size_t i = 0; i < SML_ARRAY_LEN(fault_cases); i++) {
    const struct fault_case *c = &fault_cases[i];
    const struct sim_link link = {.bits_per_s = UINT64_C(10000000000), .delay_ns = 50000, .faults = c->faults};
    uint64_t digests[2];
    for (uint32_t run = 0; run < 2; run++) {
      struct traffic t = {.num_bursts = 1000, .pause_ns = 50000};
      digests[run] = run_traffic(7, &link, &t);
      const double share = (double)sim_count(c->count) / (double)t.num_sent;
      print_message("# %s: %.4f of %llu\n", c->name, share, (unsigned long long)t.num_sent);
      assert_true(share > 0.6 * c->expected && share < 1.5 * c->expected);
      for (enum sim_count what = SIM_LOST; what <= SIM_TRUNCATED; what++)
        if (what != c->count) assert_int_equal(sim_count(what), 0);
      assert_true((t.num_out_of_order > 0) == (c->count == SIM_REORDERED || c->count == SIM_DUPLICATED));
      assert_true((t.num_bytes_wrong > 0) == (c->count == SIM_CORRUPTED));
      assert_true((t.num_short > 0) == (c->count == SIM_TRUNCATED));
      finish();
    }
    assert_int_equal(digests[0], digests[1]);
  }
}

static void test_queues_are_bounded(void **state) {
  (void)state;
  struct sim_link link = {.bits_per_s = 10000000, .delay_ns = 50000, .queue_bytes = 20000};
  struct traffic t = {.num_bursts = 100, .pause_ns = 100000};
  (void)run_traffic(1, &link, &t);
  assert_true(sim_count(SIM_LOST_IN_LINK_QUEUE) > t.num_sent / 2);
  assert_int_equal(t.num_out_of_order + t.num_bytes_wrong, 0);
  finish();
  link = (struct sim_link){.delay_ns = 50000};
  t = (struct traffic){.num_bursts = 300, .pause_ns = 1000};
  struct sim_options options = {.seed = 1};
  sim_begin(&options);
  (void)add_host(0, &link);
  const struct sim_host_options host = {.name = "small", .ipv4 = HOST_IPV4(1), .max_rx_buffer_bytes = 100000};
  struct sim_process *receiver = sim_spawn(test_hosts[1] = sim_host_add(&host), "receiver", main_of_receiver, &t, NULL);
  (void)sim_run_until(SML_NS_PER_MS, NULL, NULL);
  sim_pause(receiver); /* its system still receives, until the queue is full */
  sim_spawn(test_hosts[0], "sender", main_of_sender, &t, NULL);
  (void)sim_run_until(20 * SML_NS_PER_S, NULL, NULL);
  sim_resume(receiver);
  (void)sim_run_until(30 * SML_NS_PER_S, NULL, NULL);
  assert_int_equal(t.num_received, 100000 / (FRAME_BYTES + 256));
  assert_int_equal(sim_count(SIM_LOST_IN_SOCKET_QUEUE), t.num_sent - t.num_received);
  finish();
}

/* ---- the table of the back end ---- */

static uint64_t wait_time(struct sml_netio *io, uint64_t timeout_ns) {
  const uint64_t start_ns = sim_now_ns();
  io->ops->wait(io, timeout_ns);
  return sim_now_ns() - start_ns;
}

static void send_numbers(struct sml_netio *io, uint32_t num_frames, const struct sml_addr *peers, size_t num_peers) {
  struct sml_tx_burst burst;
  io->ops->tx_reserve(io, FRAME_BYTES, &burst);
  for (uint32_t i = 0; i < num_frames; i++) fill(burst.data + i * FRAME_BYTES, i);
  io->ops->tx_commit(io, &burst, num_frames, FRAME_BYTES, peers, num_peers);
  io->ops->tx_flush(io);
}

static int main_of_waits(void *argument) {
  (void)argument;
  struct sml_netio *io = open_io(0, PORT, 0);
  struct sml_rx_frame frames[8];
  const uint64_t slack_ns = 3 * SML_NS_PER_MS; /* late wakes */
  const struct sml_addr self = addr_of(0, PORT);
  struct sml_tx_burst burst;
  for (uint32_t i = 0; i < 200; i++) {
    const uint64_t timeout_ns = sim_draw(5 * SML_NS_PER_MS), took_ns = wait_time(io, timeout_ns);
    CHECK(took_ns >= timeout_ns && took_ns < timeout_ns + slack_ns);
  }
  io->ops->wake(io);
  io->ops->wake(io);
  CHECK(wait_time(io, SML_NEVER) < slack_ns); /* sticky, once */
  CHECK(wait_time(io, 10 * SML_NS_PER_MS) >= 10 * SML_NS_PER_MS);
  send_numbers(io, 5, &self, 1);
  CHECK(wait_time(io, SML_NEVER) < slack_ns);
  sim_sleep_ns(SML_NS_PER_MS);
  CHECK(io->ops->rx_burst(io, frames, 2) == 2 && sml_load_be32(frames[1].data) == 1);
  CHECK(sml_addr_equal(frames[0].from, &self));
  CHECK(wait_time(io, SML_NEVER) < slack_ns); /* there are more */
  CHECK(io->ops->rx_burst(io, frames, 8) == 3 && io->ops->rx_burst(io, frames, 8) == 0);
  io->gather_ns = 10 * SML_NS_PER_MS;
  send_numbers(io, 3, &self, 1);
  sim_sleep_ns(SML_NS_PER_MS);
  CHECK(wait_time(io, SML_NEVER) >= 10 * SML_NS_PER_MS); /* they are there and do not end it */
  CHECK(io->ops->rx_burst(io, frames, 2) == 2 && wait_time(io, SML_NEVER) < slack_ns); /* more, so no wait */
  CHECK(wait_time(io, SML_NS_PER_MS) < SML_NS_PER_MS + slack_ns);
  io->ops->tx_reserve(io, 0, &burst);
  CHECK(burst.max_frames == 0);
  io->ops->tx_reserve(io, io->max_frame_bytes + 1, &burst);
  CHECK(burst.max_frames == 0);
  io->ops->tx_reserve(io, io->max_frame_bytes, &burst);
  CHECK(burst.max_frames >= 1);
  io->ops->tx_commit(io, &burst, 1, 1473, &self, 1); /* more than the MTU of 1500 carries */
  CHECK(io->stats.tx_lost_frames == 1);
  io->ops->close(io);
  return 0;
}

static void expect_exit(const struct sim_process *process) {
  struct sim_usage leaks;
  assert_int_equal(sim_process_state(process), SIM_EXITED);
  sim_process_leaks(process, &leaks);
  assert_int_equal(leaks.num_data_sockets, 0);
}

static void test_waits_and_wakes(void **state) {
  (void)state;
  begin(1);
  const struct sim_process *p = sim_spawn(test_hosts[0], "p", main_of_waits, NULL, NULL);
  run_out();
  expect_exit(p);
  finish();
}

static int main_of_multicast(void *argument) {
  (void)argument;
  struct sml_netio *ios[3], *sender = open_io(HOST_IPV4(0), 0, 0);
  struct sml_addr peers[4];
  struct sml_rx_frame frames[100];
  for (uint16_t i = 0; i < 3; i++) {
    ios[i] = open_io(0, (uint16_t)(PORT + i), 0);
    peers[i] = addr_of(0, (uint16_t)(PORT + i));
  }
  peers[3] = addr_of(0, 999);
  send_numbers(sender, 20, peers, 4);
  sim_sleep_ns(SML_NS_PER_MS);
  for (uint32_t i = 0; i < 3; i++) {
    CHECK(ios[i]->ops->rx_burst(ios[i], frames, 100) == 20 && sml_load_be32(frames[19].data) == 19);
    ios[i]->ops->close(ios[i]);
  }
  char error[128];
  struct sml_netio *second;
  struct sml_addr addr;
  sender->ops->local_addr(sender, &addr);
  const struct sml_udp_options options = {.bind_addr = &addr};
  CHECK(sml_udp_open(&options, &second, error, sizeof error) == -EADDRINUSE && second == NULL);
  sender->ops->close(sender);
  return 0;
}

static void test_a_burst_to_several_peers(void **state) {
  (void)state;
  begin(1);
  const struct sim_process *p = sim_spawn(test_hosts[0], "p", main_of_multicast, NULL, NULL);
  run_out();
  expect_exit(p);
  assert_int_equal(sim_count(SIM_LOST_NO_SOCKET), 20);
  finish();
}

/* ---- hooks ---- */

struct script {
  uint32_t num_sent, num_delivered, num_altered;
  struct sim_process *victim; /* killed at its third datagram */
};

static enum sim_fate decide(void *user, const struct sim_datagram *d) {
  static const enum sim_fate fates[] = {SIM_FATE_PASS, SIM_FATE_LOSE, SIM_FATE_DUPLICATE, SIM_FATE_HOLD};
  struct script *s = user;
  CHECK(sim_self() == NULL && d->from_ipv4 == HOST_IPV4(0) && d->to_port == PORT && d->num_bytes == FRAME_BYTES);
  if (s->victim != NULL && s->num_sent == 2) sim_kill(s->victim);
  return fates[s->num_sent++ % SML_ARRAY_LEN(fates)];
}

static void count_delivered(void *user, const struct sim_datagram *d) {
  struct script *s = user;
  s->num_delivered++;
  s->num_altered += d->is_altered;
  CHECK(!d->is_forged || (d->from_ipv4 == 0x01020304 && d->from_port == 77));
}

static void test_hooks_decide(void **state) {
  (void)state;
  const struct sim_link link = {.delay_ns = 50000, .faults = {.loss = 0.9, .corrupt = 1}};
  begin(1);
  sim_host_set_links(test_hosts[0], &link, &link);
  struct script s = {.num_sent = 0};
  const struct sim_monitor monitor = {.on_sent = decide, .on_delivered = count_delivered, .user = &s};
  struct traffic t = {.num_bursts = 10, .pause_ns = 1000};
  sim_set_monitor(&monitor);
  sim_spawn(test_hosts[1], "receiver", main_of_receiver, &t, NULL);
  struct sim_process *sender = sim_spawn(test_hosts[0], "sender", main_of_sender, &t, NULL);
  (void)sim_run_until(500 * SML_NS_PER_MS, NULL, NULL);
  assert_int_equal(s.num_sent, t.num_sent);
  const uint32_t num_early = s.num_delivered;
  sim_inject(0x01020304, 77, HOST_IPV4(1), PORT, "", 0);
  (void)sim_run_until(3 * SML_NS_PER_S, NULL, NULL);
  const uint32_t num_full = s.num_sent / 4;
  assert_in_range(num_early, 3 * num_full, 3 * num_full + 3);
  assert_in_range(s.num_delivered, 4 * num_full + 1, 4 * num_full + 5); /* lost and doubled are even */
  assert_int_equal(s.num_altered + t.num_bytes_wrong, 0);
  assert_int_equal(sim_process_state(sender), SIM_EXITED);
  s = (struct script){.victim = sim_spawn(test_hosts[0], "sender", main_of_sender, &t, NULL)};
  (void)sim_run_until(6 * SML_NS_PER_S, NULL, NULL);
  assert_int_equal(sim_process_state(s.victim), SIM_KILLED); /* in the midst of its burst */
  assert_int_equal(s.num_sent, 2);
  finish();
}

static void test_cuts_and_dead_hosts(void **state) {
  (void)state;
  begin(1);
  struct traffic t = {.num_bursts = 100, .pause_ns = 10 * (uint32_t)SML_NS_PER_MS};
  sim_spawn(test_hosts[1], "receiver", main_of_receiver, &t, NULL);
  sim_spawn(test_hosts[0], "sender", main_of_sender, &t, NULL);
  sim_cut(test_hosts[1], test_hosts[0], true); /* the other direction */
  (void)sim_run_until(200 * SML_NS_PER_MS, NULL, NULL);
  assert_int_equal(sim_count(SIM_LOST_BY_CUT), 0);
  sim_cut(test_hosts[0], test_hosts[1], true);
  (void)sim_run_until(400 * SML_NS_PER_MS, NULL, NULL);
  const uint64_t num_before = t.num_received;
  assert_true(sim_count(SIM_LOST_BY_CUT) > 0 && num_before > 0);
  sim_cut(test_hosts[0], test_hosts[1], false);
  (void)sim_run_until(600 * SML_NS_PER_MS, NULL, NULL);
  assert_true(t.num_received > num_before);
  const uint64_t num_cut = sim_count(SIM_LOST_BY_CUT);
  sim_host_set_dead(test_hosts[1], true);
  run_out();
  assert_true(sim_count(SIM_LOST_BY_CUT) > num_cut);
  finish();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_clean_link_keeps_order), cmocka_unit_test(test_each_fault_is_drawn_and_counted),
      cmocka_unit_test(test_queues_are_bounded),       cmocka_unit_test(test_waits_and_wakes),
      cmocka_unit_test(test_a_burst_to_several_peers), cmocka_unit_test(test_hooks_decide),
      cmocka_unit_test(test_cuts_and_dead_hosts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
