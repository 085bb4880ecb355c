/* SPDX-License-Identifier: Apache-2.0
 * Results by multicast on loopback, with an aggregator and ranks of this process: whether a job uses it, that its sums
 * are right, what strangers in its group can do, and that nobody is left in a group. */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/test_world.h"

#define COUNT 50000u

/* What the aggregator said. */
struct notes {
  pthread_mutex_t lock;
  uint32_t num_started, num_deaf;
  char started[SML_DETAIL_BYTES], deaf[SML_DETAIL_BYTES];
};
static struct notes notes = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A copy; its lock is not for use. */
static struct notes read_notes(void) {
  pthread_mutex_lock(&notes.lock);
  const struct notes copy = notes;
  pthread_mutex_unlock(&notes.lock);
  return copy;
}

static void take_note(void *user, const struct sml_aggd_note *note) {
  (void)user;
  pthread_mutex_lock(&notes.lock);
  if (strcmp(note->name, "job_started") == 0) {
    notes.num_started++;
    snprintf(notes.started, sizeof notes.started, "%s", note->text);
  }
  if (strcmp(note->name, "no_multicast") == 0) {
    notes.num_deaf++;
    snprintf(notes.deaf, sizeof notes.deaf, "%s", note->text);
  }
  pthread_mutex_unlock(&notes.lock);
}

/* A group of this process's own. */
static void set_group(struct world *w) {
  char text[64], error[128];
  const unsigned pid = (unsigned)getpid();
  snprintf(text, sizeof text, "239.%u.%u.%u/2", 216 + (pid >> 15 & 15), pid >> 7 & 255, pid << 1 & 255);
  if (!sml_multicast_parse(text, &w->aggd_options.multicast, error, sizeof error)) fail_msg("%s", error);
  w->aggd_options.on_note = take_note;
  w->job_options.no_shared_memory = 1;
  notes.num_started = notes.num_deaf = 0;
}

/* Sockets of this process's network that are in the group of job 0. */
static uint32_t count_members(const struct world *w) {
  uint64_t words[2];
  sml_multicast_to_words(&w->aggd_options.multicast.first, words);
  char line[256], wanted[16];
  uint32_t num_members = 0;
  snprintf(wanted, sizeof wanted, "%08X", htonl((uint32_t)words[1]));
  FILE *file = fopen("/proc/net/igmp", "re");
  assert_non_null(file);
  while (fgets(line, sizeof line, file) != NULL) {
    char group[16];
    unsigned users;
    if (sscanf(line, " %15s %u", group, &users) == 2 && strcmp(group, wanted) == 0) num_members += users;
  }
  (void)fclose(file);
  return num_members;
}

static void sum_all(struct rank *r) {
  const uint32_t n = r->world->num_ranks;
  float *x = malloc(COUNT * sizeof *x);
  for (uint32_t round = 0; round < 3; round++) {
    const size_t count = round == 1 ? 3 : COUNT;
    for (size_t i = 0; i < count; i++) x[i] = float_value(r->rank, i);
    CHECK(r, allreduce(r, x, x, count, SML_FLOAT32, SML_SUM) == SML_OK, "%s", sml_error_detail());
    for (size_t i = 0; i < count; i++) {
      float sum = 0;
      for (uint32_t k = 0; k < n; k++) sum += float_value(k, i);
      CHECK(r, x[i] == sum, "element %zu", i);
    }
  }
  free(x);
}

/* The aggregator tells the ranks first that the job has started, and then writes its notes. */
static void expect_use(bool is_used) {
  struct notes seen = read_notes();
  for (uint32_t i = 0; i < 2000 && (seen.num_started == 0 || seen.num_deaf != (is_used ? 0 : 1)); i++) {
    (void)usleep(10000);
    seen = read_notes();
  }
  assert_true(seen.num_started > 0);
  assert_int_equal(strstr(seen.started, "multicast=1") != NULL, is_used);
  assert_int_equal(seen.num_deaf, is_used ? 0 : 1);
}

static void test_all_hear(void **state) {
  (void)state;
  for (uint32_t num_lanes = 1; num_lanes <= 2; num_lanes++) {
    struct world w;
    world_init(&w, 4);
    set_group(&w);
    w.aggd_options.num_lanes = w.context_options.num_threads = num_lanes;
    world_start(&w);
    assert_int_equal(count_members(&w), 4 * num_lanes);
    world_run(&w, sum_all);
    expect_use(true);
    world_stop(&w);
    assert_int_equal(count_members(&w), 0);
  }
}

/* Later epochs of a job go on with it. */
static void test_epochs(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  set_group(&w);
  w.aggd_options.first_phase = UINT32_MAX - 201;
  world_start(&w);
  for (uint32_t i = 0; i < 3; i++) world_run(&w, sum_all);
  expect_use(true);
  world_stop(&w);
}

static void join_all_but_one(struct rank *r) {
  sml_job_options o = r->world->job_options;
  o.aggregator = r->world->address;
  o.rank = r->rank;
  o.world_size = r->world->num_ranks;
  o.no_multicast = r->rank == 1;
  CHECK(r, sml_context_create(&r->world->context_options, &r->context) == SML_OK, "%s", sml_error_detail());
  CHECK(r, sml_job_create(r->context, &o, &r->job) == SML_OK, "%s", sml_error_detail());
}

static void test_one_does_not_want_it(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 3);
  set_group(&w);
  world_start_aggd(&w);
  world_run(&w, join_all_but_one);
  assert_int_equal(count_members(&w), 0); /* the others have left it again */
  world_run(&w, sum_all);
  expect_use(false);
  assert_non_null(strstr(read_notes().deaf, "rank 1 does not take part"));
  world_stop(&w);
}

/* Somebody has the group's port on all addresses: it cannot be joined. */
static void test_port_is_taken(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  set_group(&w);
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  struct sockaddr_in taken = {.sin_family = AF_INET};
  socklen_t taken_bytes = sizeof taken;
  assert_true(fd >= 0 && bind(fd, (const struct sockaddr *)&taken, sizeof taken) == 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&taken, &taken_bytes), 0);
  sml_addr_set_port(&w.aggd_options.multicast.first, ntohs(taken.sin_port));
  world_start(&w);
  world_run(&w, sum_all);
  expect_use(false);
  assert_non_null(strstr(read_notes().deaf, "rank 0 did not get its probes, rank 1 did not"));
  world_stop(&w);
  close(fd);
}

static void count_drops(struct rank *r) {
  sml_stats stats = SML_STATS_INIT;
  CHECK(r, sml_job_stats(r->job, &stats) == SML_OK);
  CHECK(r, stats.dropped_packets >= 100, "%llu", (unsigned long long)stats.dropped_packets);
}

/* Datagrams of a stranger: garbage, and frames that look right but come from elsewhere. */
static void test_strangers(void **state) {
  (void)state;
  struct world w;
  char error[128];
  struct sml_addr group, addr;
  struct sml_netio *io;
  world_init(&w, 3);
  set_group(&w);
  world_start(&w);
  world_run(&w, sum_all);
  assert_true(sml_addr_parse("127.0.0.1:0", 0, &addr, error, sizeof error));
  const struct sml_udp_options options = {.bind_addr = &addr, .multicast_ttl = 1};
  assert_int_equal(sml_udp_open(&options, &io, error, sizeof error), 0);
  assert_true(sml_multicast_group(&w.aggd_options.multicast, 0, 0, &group));
  for (uint32_t i = 0; i < 100; i++) {
    struct sml_tx_burst burst;
    const struct sml_header h = {.version = SML_WIRE_VERSION,
                                 .type = SML_PACKET_RESULT,
                                 .epoch = w.ranks[0].job->state.shards[0].start.epoch,
                                 .payload_bytes = 64,
                                 .slot = (uint16_t)i};
    io->ops->tx_reserve(io, SML_HEADER_BYTES + 64, &burst);
    memset(burst.data, 0x77, SML_HEADER_BYTES + 64);
    if (i % 2) sml_wire_seal(burst.data, &h, NULL);
    io->ops->tx_commit(io, &burst, 1, SML_HEADER_BYTES + 64, &group, 1);
    io->ops->tx_flush(io);
  }
  io->ops->close(io);
  world_run(&w, sum_all);
  world_run(&w, count_drops);
  world_stop(&w);
}

/* The aggregator is replaced: joined again, heard again. */
static void test_rejoin(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  set_group(&w);
  w.job_options.retry_ns = 30 * SML_NS_PER_S;
  world_start(&w);
  world_run(&w, sum_all);
  sml_aggd_stop(w.aggd);
  char again[sizeof w.address];
  memcpy(again, w.address, sizeof again);
  w.host = again;
  world_start_aggd(&w);
  world_run(&w, sum_all);
  assert_int_equal(read_notes().num_started, 2);
  expect_use(true);
  assert_int_equal(count_members(&w), 2);
  world_stop(&w);
  assert_int_equal(count_members(&w), 0);
}

static void test_settings(void **state) {
  (void)state;
  static const char *const texts[] = {"2", "yes", "on "};
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  sml_context *context;
  sml_job *job;
  o.world_size = 2;
  o.aggregator = "127.0.0.1:9";
  assert_int_equal(sml_context_create(NULL, &context), SML_OK);
  for (size_t i = 0; i < SML_ARRAY_LEN(texts); i++) {
    setenv("SWITCHML_MULTICAST", texts[i], 1);
    assert_int_equal(sml_job_create(context, &o, &job), SML_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(sml_error_detail(), "SWITCHML_MULTICAST"));
  }
  unsetenv("SWITCHML_MULTICAST");
  o.no_multicast = 2;
  assert_int_equal(sml_job_create(context, &o, &job), SML_ERR_INVALID_ARGUMENT);
  sml_context_destroy(context);
  setenv("SWITCHML_MULTICAST", "0", 1);
  struct world w;
  world_init(&w, 2);
  set_group(&w);
  world_start(&w);
  unsetenv("SWITCHML_MULTICAST");
  expect_use(false);
  world_stop(&w);
}

int main(void) {
  unsetenv("SWITCHML_MULTICAST");
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_hear),     cmocka_unit_test(test_epochs),
                                     cmocka_unit_test(test_one_does_not_want_it),
                                     cmocka_unit_test(test_port_is_taken), cmocka_unit_test(test_strangers),
                                     cmocka_unit_test(test_rejoin),       cmocka_unit_test(test_settings)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
