/* SPDX-License-Identifier: Apache-2.0
 * Joining when there is no aggregator, or something else in its place: each a clear error in bounded
 * time. Also what ranks find out among themselves over the all-gather callback. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ctl/channel.h"
#include "engine/engine.h"
#include "switchml/switchml.h"

static sml_context *context;

static int set_up(void **state) {
  (void)state;
  unsetenv("SWITCHML_AGGREGATOR");
  return sml_context_create(NULL, &context) != SML_OK;
}

static int tear_down(void **state) {
  (void)state;
  sml_context_destroy(context);
  return 0;
}

static sml_job_options make_options(const char *aggregator, uint64_t join_timeout_ms) {
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  o.aggregator = aggregator;
  o.world_size = 2;
  o.check = 2;
  o.join_timeout_ns = join_timeout_ms * SML_NS_PER_MS;
  return o;
}

static void assert_refused(const sml_job_options *o, sml_status expected, const char *needle) {
  sml_job *job = (sml_job *)&context;
  const sml_status status = sml_job_create(context, o, &job);
  if (status != expected) print_message("detail: %s\n", sml_error_detail());
  assert_int_equal(status, expected);
  assert_null(job);
  if (strstr(sml_error_detail(), needle) == NULL) fail_msg("'%s' lacks '%s'", sml_error_detail(), needle);
}

static void bad_options(void **state) {
  (void)state;
  sml_job_options o = make_options("127.0.0.1:9", 100);
  o.world_size = 0;
  o.rank = 1;
  assert_refused(&o, SML_ERR_INVALID_ARGUMENT, "world_size");
  o.rank = 0;
  o.world_size = 4097;
  assert_refused(&o, SML_ERR_INVALID_ARGUMENT, "world_size");
  o = make_options("127.0.0.1:9", 100);
  o.rank = 2;
  assert_refused(&o, SML_ERR_INVALID_ARGUMENT, "rank is 2");
  o = make_options("127.0.0.1:9", 100);
  o.num_slots = 3;
  assert_refused(&o, SML_ERR_INVALID_ARGUMENT, "power of two");
  o.num_slots = 65536;
  assert_refused(&o, SML_ERR_INVALID_ARGUMENT, "num_slots");
  o = make_options("127.0.0.1:9", 100);
  o.max_datagram_bytes = 100;
  assert_refused(&o, SML_ERR_INVALID_ARGUMENT, "max_datagram_bytes");
  o = make_options("127.0.0.1:9", 100);
  o.lease_ns = 1;
  assert_refused(&o, SML_ERR_INVALID_ARGUMENT, "lease_ns");
  o = make_options("127.0.0.1:9", 100);
  const char *const names[] = {"", "with space", "quote\"",
                               "0123456789012345678901234567890123456789012345678901234567890123"};
  for (size_t i = 0; i < SML_ARRAY_LEN(names); i++) {
    o.name = names[i];
    assert_refused(&o, SML_ERR_INVALID_ARGUMENT, "job name");
  }
  o.struct_bytes = 0;
  assert_refused(&o, SML_ERR_INVALID_ARGUMENT, "struct_bytes");
  sml_job *job;
  assert_int_equal(sml_job_create(context, NULL, &job), SML_ERR_INVALID_ARGUMENT);
  assert_int_equal(sml_job_create(NULL, &o, &job), SML_ERR_INVALID_ARGUMENT);
  assert_int_equal(sml_job_create(context, &o, NULL), SML_ERR_INVALID_ARGUMENT);
  sml_job_destroy(NULL);
  sml_context_destroy(NULL);
}

static void no_aggregator_is_configured(void **state) {
  (void)state;
  const sml_job_options o = make_options(NULL, 100);
  assert_refused(&o, SML_ERR_NOT_CONFIGURED, "SWITCHML_AGGREGATOR");
  setenv("SWITCHML_AGGREGATOR", "", 1);
  assert_refused(&o, SML_ERR_NOT_CONFIGURED, "SWITCHML_AGGREGATOR");
}

static void bad_addresses(void **state) {
  (void)state;
  const char *const texts[] = {"127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "127.0.0.1:0", ":5000",
                               "[::1",      "4000"};
  for (size_t i = 0; i < SML_ARRAY_LEN(texts); i++) {
    const sml_job_options o = make_options(texts[i], 100);
    assert_refused(&o, SML_ERR_INVALID_ARGUMENT, "aggregator '");
  }
}

/* ---- things that are not an aggregator ---- */

struct fake {
  int listener;
  char address[32];
  const void *answer;
  size_t answer_bytes;
  bool holds_open;
  void *(*run)(void *fake); /* NULL: run_fake */
  pthread_t thread;
  _Atomic uint32_t num_connections;
};

static void *run_fake(void *argument) {
  struct fake *f = argument;
  int held[64];
  size_t num_held = 0;
  for (;;) {
    const int fd = accept(f->listener, NULL, NULL);
    if (fd < 0) break;
    f->num_connections++;
    if (f->answer_bytes > 0) (void)!write(fd, f->answer, f->answer_bytes);
    if (f->holds_open && num_held < SML_ARRAY_LEN(held))
      held[num_held++] = fd;
    else
      close(fd);
  }
  while (num_held > 0) close(held[--num_held]);
  return NULL;
}

static void start_fake(struct fake *f) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t a_bytes = sizeof a;
  f->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(f->listener, (struct sockaddr *)&a, sizeof a), 0);
  assert_int_equal(listen(f->listener, 16), 0);
  assert_int_equal(getsockname(f->listener, (struct sockaddr *)&a, &a_bytes), 0);
  snprintf(f->address, sizeof f->address, "127.0.0.1:%u", ntohs(a.sin_port));
  pthread_create(&f->thread, NULL, f->run != NULL ? f->run : run_fake, f);
}

static void stop_fake(struct fake *f) {
  shutdown(f->listener, SHUT_RDWR);
  pthread_join(f->thread, NULL);
  close(f->listener);
}

static void assert_takes_ms(uint64_t begin_ns, uint64_t min_ms, uint64_t max_ms) {
  const uint64_t took_ms = (sml_clock_ns() - begin_ns) / SML_NS_PER_MS;
  assert_in_range(took_ms, min_ms, max_ms);
}

static void nobody_listens(void **state) {
  (void)state;
  struct fake f = {.listener = -1};
  start_fake(&f);
  stop_fake(&f); /* a port that was free a moment ago */
  const sml_job_options o = make_options(f.address, 400);
  const uint64_t begin_ns = sml_clock_ns();
  assert_refused(&o, SML_ERR_UNREACHABLE, "Connection refused");
  assert_takes_ms(begin_ns, 400, 2000);
}

/* Whose limit it is, and not that the aggregator is to be looked for. */
static void there_is_no_descriptor_for_a_connection(void **state) {
  (void)state;
  struct rlimit limit, none_left;
  const sml_job_options o = make_options("127.0.0.1:9", 100);
  assert_refused(&o, SML_ERR_UNREACHABLE, "Connection refused"); /* and the engines have started */
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const int next = dup(STDERR_FILENO);
  none_left = (struct rlimit){.rlim_cur = (rlim_t)next, .rlim_max = limit.rlim_max};
  assert_true(next >= 0 && close(next) == 0 && setrlimit(RLIMIT_NOFILE, &none_left) == 0);
  sml_job *job;
  const sml_status status = sml_job_create(context, &o, &job);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
  assert_int_equal(status, SML_ERR_UNREACHABLE);
  assert_string_equal(sml_error_detail(),
                      "no connection to the aggregator at 127.0.0.1:9: opening a socket failed: Too many open files; "
                      "raise the limit of open files (ulimit -n)");
}

static void it_answers_nonsense(void **state) {
  (void)state;
  static const char http[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
  struct fake f = {.answer = http, .answer_bytes = sizeof http - 1, .holds_open = true};
  start_fake(&f);
  const sml_job_options o = make_options(f.address, 5000);
  const uint64_t begin_ns = sml_clock_ns();
  assert_refused(&o, SML_ERR_PROTOCOL, "not a switchmld");
  assert_takes_ms(begin_ns, 0, 2000);
  stop_fake(&f);
}

static void it_speaks_another_version(void **state) {
  (void)state;
  uint8_t answer[SML_CTL_FRAME_BYTES];
  const struct sml_ctl_message m = {.kind = SML_CTL_GOODBYE};
  assert_int_equal(sml_ctl_encode(&m, answer, sizeof answer), sizeof answer);
  answer[5]++;
  struct fake f = {.answer = answer, .answer_bytes = sizeof answer, .holds_open = true};
  start_fake(&f);
  const sml_job_options o = make_options(f.address, 5000);
  assert_refused(&o, SML_ERR_VERSION, "update");
  stop_fake(&f);
}

static void it_sends_a_message_out_of_place(void **state) {
  (void)state;
  uint8_t answer[64];
  struct sml_ctl_message m = {.kind = SML_CTL_PROBED};
  struct fake f = {
      .answer = answer, .answer_bytes = sml_ctl_encode(&m, answer, sizeof answer), .holds_open = true};
  start_fake(&f);
  const sml_job_options o = make_options(f.address, 5000);
  assert_refused(&o, SML_ERR_PROTOCOL, "out of place");
  stop_fake(&f);
}

static void make_key_file(char *path) {
  const int fd = mkstemp(path);
  assert_true(fd >= 0 && write(fd, "red 000102030405060708090a0b0c0d0e0f\n", 37) == 37);
  close(fd);
}

static void it_does_not_ask_for_the_key(void **state) {
  (void)state;
  char path[] = "/tmp/sml-job-test-XXXXXX";
  make_key_file(path);
  uint8_t answer[128];
  struct sml_ctl_message m = {.kind = SML_CTL_WELCOME, .u.welcome = {.num_lanes = 1, .data_ports = {9}}};
  struct fake f = {
      .answer = answer, .answer_bytes = sml_ctl_encode(&m, answer, sizeof answer), .holds_open = true};
  start_fake(&f);
  sml_job_options o = make_options(f.address, 5000);
  o.key_file = path;
  assert_refused(&o, SML_ERR_KEY, "'red'");
  stop_fake(&f);
  unlink(path);
}

/* The aggregator's end of a keyed connection, up to a message that was changed on its way. */
static void *run_keyed_fake(void *argument) {
  static const struct sml_key key = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)};
  const struct fake *f = argument;
  const int fd = accept(f->listener, NULL, NULL);
  struct sml_channel ch;
  struct sml_ctl_message m;
  uint8_t in[512], out[512];
  size_t in_bytes = 0, consumed_bytes;
  sml_channel_init(&ch, true);
  for (bool has_auth = false; !has_auth;) {
    const ssize_t n = read(fd, in + in_bytes, sizeof in - in_bytes);
    if (n <= 0) break;
    in_bytes += (size_t)n;
    while (sml_channel_decode(&ch, in, in_bytes, &m, &consumed_bytes) == SML_CTL_DECODED) {
      in_bytes -= consumed_bytes;
      memmove(in, in + consumed_bytes, in_bytes);
      has_auth = m.kind == SML_CTL_AUTH;
      if (m.kind != SML_CTL_JOIN) continue;
      const struct sml_ctl_message challenge = {.kind = SML_CTL_CHALLENGE, .u.challenge.nonce = {1, 2}};
      (void)!write(fd, out, sml_channel_encode(&ch, &challenge, out, sizeof out));
      sml_channel_set_key(&ch, &key, m.u.join.nonce, challenge.u.challenge.nonce);
    }
  }
  m = (struct sml_ctl_message){.kind = SML_CTL_WELCOME, .u.welcome = {.num_lanes = 1, .data_ports = {9}}};
  size_t out_bytes = sml_channel_encode(&ch, &m, out, sizeof out);
  m = (struct sml_ctl_message){.kind = SML_CTL_HEARTBEAT};
  out_bytes += sml_channel_encode(&ch, &m, out + out_bytes, sizeof out - out_bytes);
  out[out_bytes - 1] ^= 1;
  (void)!write(fd, out, out_bytes);
  while (read(fd, in, sizeof in) > 0) continue;
  close(fd);
  return NULL;
}

static void a_message_of_it_was_changed(void **state) {
  (void)state;
  char path[] = "/tmp/sml-job-test-XXXXXX";
  struct fake f = {.run = run_keyed_fake};
  make_key_file(path);
  start_fake(&f);
  sml_job_options o = make_options(f.address, 5000);
  o.key_file = path;
  assert_refused(&o, SML_ERR_KEY, "is not authentic");
  stop_fake(&f);
  unlink(path);
}

static void it_gives_more_lanes_than_offered(void **state) {
  (void)state;
  uint8_t answer[128];
  struct sml_ctl_message m = {.kind = SML_CTL_WELCOME,
                              .u.welcome = {.num_lanes = 3, .data_ports = {1, 2, 3}}};
  struct fake f = {
      .answer = answer, .answer_bytes = sml_ctl_encode(&m, answer, sizeof answer), .holds_open = true};
  start_fake(&f);
  const sml_job_options o = make_options(f.address, 5000);
  assert_refused(&o, SML_ERR_PROTOCOL, "3 lanes");
  stop_fake(&f);
}

static void its_data_port_is_dead(void **state) {
  (void)state;
  uint8_t answer[128];
  /* Discard's port: the HELLOs go nowhere, and a refusal would come only after the probing. */
  struct sml_ctl_message m = {.kind = SML_CTL_WELCOME, .u.welcome = {.num_lanes = 1, .data_ports = {9}}};
  struct fake f = {
      .answer = answer, .answer_bytes = sml_ctl_encode(&m, answer, sizeof answer), .holds_open = true};
  start_fake(&f);
  const sml_job_options o = make_options(f.address, 300);
  const uint64_t begin_ns = sml_clock_ns();
  assert_refused(&o, SML_ERR_TIMEOUT, "join");
  assert_takes_ms(begin_ns, 300, 5000);
  stop_fake(&f);
}

static void it_is_silent(void **state) {
  (void)state;
  struct fake f = {.holds_open = true};
  start_fake(&f);
  const sml_job_options o = make_options(f.address, 300);
  const uint64_t begin_ns = sml_clock_ns();
  assert_refused(&o, SML_ERR_UNREACHABLE, "did not answer");
  assert_takes_ms(begin_ns, 300, 2000);
  stop_fake(&f);
}

static void it_hangs_up(void **state) {
  (void)state;
  struct fake f = {.holds_open = false};
  start_fake(&f);
  const sml_job_options o = make_options(f.address, 700);
  assert_refused(&o, SML_ERR_UNREACHABLE, "answer"); /* "without an answer", or what the last try waits for */
  assert_in_range(f.num_connections, 2, 10);         /* tried again, not in a hurry */
  stop_fake(&f);
}

static void it_refuses(void **state) {
  (void)state;
  uint8_t answer[512];
  struct sml_ctl_message m = {.kind = SML_CTL_REFUSE,
                              .u.refuse = {.status = SML_ERR_REFUSED, .detail = "rank 0 has joined already"}};
  struct fake f = {
      .answer = answer, .answer_bytes = sml_ctl_encode(&m, answer, sizeof answer), .holds_open = true};
  start_fake(&f);
  const sml_job_options o = make_options(f.address, 5000);
  assert_refused(&o, SML_ERR_REFUSED, "rank 0 has joined already");
  stop_fake(&f);
}

/* ---- the exchange among ranks ---- */

struct table {
  pthread_barrier_t barrier;
  uint8_t bytes[4][4096];
  int fail;
};
struct member {
  struct table *table;
  sml_context *context; /* NULL: the one of all tests */
  sml_job_options options;
  sml_status status;
  char detail[256];
};

static int gather(void *user, const void *in, void *out, size_t num_bytes) {
  struct member *m = user;
  struct table *t = m->table;
  memcpy(t->bytes[m->options.rank], in, num_bytes);
  pthread_barrier_wait(&t->barrier);
  for (uint32_t r = 0; r < 2; r++) memcpy((uint8_t *)out + r * num_bytes, t->bytes[r], num_bytes);
  pthread_barrier_wait(&t->barrier);
  return t->fail;
}

static void *run_member(void *argument) {
  struct member *m = argument;
  sml_job *job;
  m->options.allgather = gather;
  m->options.allgather_user = m;
  m->status = sml_job_create(m->context != NULL ? m->context : context, &m->options, &job);
  snprintf(m->detail, sizeof m->detail, "%s", sml_error_detail());
  sml_job_destroy(job);
  return NULL;
}

static void run_pair(struct member members[2], int fail) {
  struct table table = {.fail = fail};
  pthread_t threads[2];
  pthread_barrier_init(&table.barrier, NULL, 2);
  for (uint32_t r = 0; r < 2; r++) {
    members[r].table = &table;
    members[r].options.rank = r;
    pthread_create(&threads[r], NULL, run_member, &members[r]);
  }
  for (uint32_t r = 0; r < 2; r++) pthread_join(threads[r], NULL);
  pthread_barrier_destroy(&table.barrier);
}

static void assert_both(const struct member members[2], sml_status expected, const char *needle) {
  for (uint32_t r = 0; r < 2; r++) {
    if (members[r].status != expected || strstr(members[r].detail, needle) == NULL)
      fail_msg("rank %u: %d '%s' lacks '%s'", r, members[r].status, members[r].detail, needle);
  }
}

static void different_settings_fail_on_every_rank(void **state) {
  (void)state;
  struct member m[2];
#define BOTH(statement_on_rank_1, expected, needle)                                                       \
  do {                                                                                                    \
    for (uint32_t r = 0; r < 2; r++) m[r] = (struct member){.options = make_options("127.0.0.1:9", 200)}; \
    statement_on_rank_1;                                                                                  \
    run_pair(m, 0);                                                                                       \
    assert_both(m, expected, needle);                                                                     \
  } while (0)
  BOTH(m[1].options.num_slots = 128, SML_ERR_INVALID_ARGUMENT, "ranks 0 and 1");
  BOTH(m[1].options.max_datagram_bytes = 1472, SML_ERR_INVALID_ARGUMENT, "ranks 0 and 1");
  BOTH(m[1].options.lease_ns = SML_NS_PER_S, SML_ERR_INVALID_ARGUMENT, "ranks 0 and 1");
  BOTH(m[1].options.check = 1, SML_ERR_INVALID_ARGUMENT, "ranks 0 and 1");
  BOTH(m[1].options.retry_ns = SML_NS_PER_S, SML_ERR_INVALID_ARGUMENT, "ranks 0 and 1");
  BOTH(m[1].options.key_file = "/nope", SML_ERR_INVALID_ARGUMENT, "rank 1: cannot read key file");
  BOTH(m[1].options.name = "another", SML_ERR_INVALID_ARGUMENT, "ranks 0 and 1");
  BOTH(m[1].options.aggregator = "127.0.0.1:10", SML_ERR_INVALID_ARGUMENT, "ranks 0 and 1");
  BOTH(m[1].options.world_size = 3, SML_ERR_INVALID_ARGUMENT, "world_size 3");
  BOTH(m[1].options.aggregator = NULL, SML_ERR_INVALID_ARGUMENT, "ranks 0 and 1");
  BOTH((m[0].options.aggregator = m[1].options.aggregator = NULL, m[1].options.retry_ns = SML_NS_PER_S),
       SML_ERR_UNSUPPORTED, "rank 1: retry_ns, or SWITCHML_RETRY, is set, but no aggregator");
  BOTH(m[0].options.num_slots = 5, SML_ERR_INVALID_ARGUMENT, "rank 0: num_slots, or SWITCHML_SLOTS, is 5");
  BOTH((void)0, SML_ERR_UNREACHABLE, "rank 0: no aggregator at");
#undef BOTH
}

static void a_failing_callback_is_an_error(void **state) {
  (void)state;
  struct member m[2];
  for (uint32_t r = 0; r < 2; r++) m[r] = (struct member){.options = make_options("127.0.0.1:9", 200)};
  run_pair(m, 5);
  assert_both(m, SML_ERR_SYSTEM, "returned 5");
}

/* A limit of a rank's host, as of threads, here a processor that there is not, is what every rank reads, and not that
 * the rank has not joined. With an aggregator they read it at once. */
static void who_cannot_start_says_so_on_every_rank(void **state) {
  (void)state;
  struct member m[2];
  sml_context_options o = SML_CONTEXT_OPTIONS_INIT;
  o.cpus = "1000";
  sml_context *limited;
  assert_int_equal(sml_context_create(&o, &limited), SML_OK);
  for (uint32_t is_embedded = 0; is_embedded < 2; is_embedded++) {
    for (uint32_t r = 0; r < 2; r++)
      m[r] = (struct member){.options = make_options(is_embedded ? "" : "127.0.0.1:9", is_embedded ? 500 : 60000)};
    m[1].context = limited;
    const uint64_t begin_ns = sml_clock_ns();
    run_pair(m, 0);
    assert_both(m, SML_ERR_SYSTEM, "rank 1: starting an engine thread on processor 1000 failed");
    assert_takes_ms(begin_ns, 0, 10000);
  }
  sml_context_destroy(limited);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bad_options),
      cmocka_unit_test(no_aggregator_is_configured),
      cmocka_unit_test(bad_addresses),
      cmocka_unit_test(nobody_listens),
      cmocka_unit_test(there_is_no_descriptor_for_a_connection),
      cmocka_unit_test(it_answers_nonsense),
      cmocka_unit_test(it_speaks_another_version),
      cmocka_unit_test(it_sends_a_message_out_of_place),
      cmocka_unit_test(it_does_not_ask_for_the_key),
      cmocka_unit_test(a_message_of_it_was_changed),
      cmocka_unit_test(it_gives_more_lanes_than_offered),
      cmocka_unit_test(its_data_port_is_dead),
      cmocka_unit_test(it_is_silent),
      cmocka_unit_test(it_hangs_up),
      cmocka_unit_test(it_refuses),
      cmocka_unit_test(different_settings_fail_on_every_rank),
      cmocka_unit_test(a_failing_callback_is_an_error),
      cmocka_unit_test(who_cannot_start_says_so_on_every_rank),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
