/* SPDX-License-Identifier: Apache-2.0
 * Ranks that meet at SWITCHML_RENDEZVOUS, however many strangers are there, and in several groups. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/test_world.h"
#include "meet/rendezvous_message.h"

#define NUM_SILENT 300u /* more than rank 0 listens to at a time */

/* ---- the place ---- */

/* Bound, on all addresses, so that nobody else is given it; rank 0 may listen there all the same. */
static int kept_port_fd;
static struct sml_addr place;

static void set_rendezvous(void) {
  const int one = 1;
  char text[64], error[64];
  struct sml_addr any;
  socklen_t num_bytes = sizeof any.bytes;
  assert_true(sml_addr_parse("127.0.0.1:0", 0, &place, error, sizeof error));
  assert_true(sml_addr_parse("0.0.0.0:0", 0, &any, error, sizeof error));
  kept_port_fd = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(setsockopt(kept_port_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
  assert_int_equal(setsockopt(kept_port_fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one), 0);
  assert_int_equal(bind(kept_port_fd, (struct sockaddr *)(void *)any.bytes, any.num_bytes), 0);
  assert_int_equal(getsockname(kept_port_fd, (struct sockaddr *)(void *)any.bytes, &num_bytes), 0);
  sml_addr_set_port(&place, sml_addr_port(&any));
  sml_addr_format(&place, text, sizeof text);
  setenv("SWITCHML_RENDEZVOUS", text, 1);
}

static void unset_rendezvous(void) {
  unsetenv("SWITCHML_RENDEZVOUS");
  close(kept_port_fd);
}

static void start_world(struct world *w, uint32_t num_ranks) {
  world_init(w, num_ranks);
  w->job_options.no_shared_memory = 1;
  w->job_options.join_timeout_ns = 200 * SML_NS_PER_S;
  set_rendezvous();
}

static void stop_world(struct world *w) {
  unset_rendezvous();
  world_stop(w);
}

static char key_path[2][64] = {"", ""};

static void write_keys(void) {
  for (uint32_t i = 0; i < 2; i++) {
    char text[128];
    snprintf(key_path[i], sizeof key_path[i], "/tmp/switchml-rendezvous-%d-%u", (int)getpid(), i);
    snprintf(text, sizeof text, "meeting %032u\n", 4711 + i);
    const int fd = open(key_path[i], O_CREAT | O_TRUNC | O_WRONLY, 0600);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
  }
}

static void remove_keys(void) {
  for (uint32_t i = 0; i < 2; i++) unlink(key_path[i]);
}

/* ---- ranks ---- */

static sml_job_options options_of(const struct rank *r) {
  sml_job_options o = r->world->job_options;
  o.aggregator = "";
  o.rank = r->rank;
  o.world_size = r->world->world_size != 0 ? r->world->world_size : r->world->num_ranks;
  return o;
}

static void join(struct rank *r) {
  const sml_job_options o = options_of(r);
  if (r->context == NULL) CHECK(r, sml_context_create(NULL, &r->context) == SML_OK);
  r->status = sml_job_create(r->context, &o, &r->job);
  CHECK(r, r->status == SML_OK, "%s", sml_error_detail());
}

static void check_sum(struct rank *r) {
  float x[300];
  for (uint32_t i = 0; i < SML_ARRAY_LEN(x); i++) x[i] = (float)(r->rank + i);
  const sml_status status = allreduce(r, x, x, SML_ARRAY_LEN(x), SML_FLOAT32, SML_SUM);
  CHECK(r, status == SML_OK, "%s", sml_error_detail());
  const uint32_t n = r->world->num_ranks;
  for (uint32_t i = 0; i < SML_ARRAY_LEN(x); i++)
    CHECK(r, x[i] == (float)(n * i + n * (n - 1) / 2), "%u: %f", i, (double)x[i]);
}

/* ---- strangers ---- */

/* As soon as rank 0 is there. -1: it is not for half a minute. */
static int come_as_stranger(void) {
  for (uint32_t i = 0; i < 6000; i++) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (const struct sockaddr *)(const void *)place.bytes, place.num_bytes) == 0) return fd;
    close(fd);
    usleep(5000);
  }
  return -1;
}

static bool say(int fd, const void *bytes, size_t num_bytes) {
  return send(fd, bytes, num_bytes, MSG_NOSIGNAL) == (ssize_t)num_bytes;
}

static uint64_t hash_name(const char *name) {
  uint64_t hash = 1;
  for (const char *c = name; *c != 0; c++) hash = sml_mix64(hash + (uint8_t)*c);
  return hash;
}

/* As an earlier version said it, whose rank 0 believed it. */
static bool say_old_hello(int fd, uint32_t rank, uint32_t world_size) {
  uint8_t hello[24] = {0};
  sml_store_be32(hello, 0x534d4c52);
  sml_store_be32(hello + 4, world_size);
  sml_store_be32(hello + 8, rank);
  sml_store_be64(hello + 16, hash_name("default"));
  return say(fd, hello, sizeof hello);
}

/* An answer that goes on comes back; the key is what a rank without the job's key has. */
static bool say_hello(int fd, uint32_t rank, uint32_t world_size, bool is_keyed, struct sml_key *key_out) {
  const struct sml_key none = {0, 0};
  const struct sml_rendezvous_hello hello = {is_keyed, world_size, rank, hash_name("default"), {7, 8}};
  uint8_t said[SML_HELLO_BYTES], heard[SML_ANSWER_BYTES];
  struct sml_rendezvous_answer answer;
  sml_rendezvous_hello_write(said, &hello);
  if (!say(fd, said, sizeof said) || recv(fd, heard, sizeof heard, MSG_WAITALL) != sizeof heard) return false;
  *key_out = sml_rendezvous_key(&none, said, heard);
  return sml_rendezvous_answer_read(heard, &answer) && answer.kind == SML_ANSWER_GO_ON;
}

/* A record has 256 bytes, as jobs' first records do. */
static bool say_record(int fd, const struct sml_key *key) {
  uint8_t frame[SML_FRAME_HEAD_BYTES + 256 + SML_FRAME_MAC_BYTES] = {0};
  uint8_t *body = frame + SML_FRAME_HEAD_BYTES;
  sml_frame_head_write(frame, &(struct sml_frame_head){SML_FRAME_RECORD, 0, 256});
  sml_frame_mac(body + 256, key, frame, body, 256);
  return say(fd, frame, sizeof frame);
}

/* Rank 0 has hung up. */
static bool is_turned_away(int fd) {
  char byte;
  return recv(fd, &byte, 1, 0) <= 0;
}

/* Nonsense and silence, before rank 1 joins. */
static void join_after_nonsense(struct rank *r) {
  static const char web[] = "GET / HTTP/1.1\r\nHost: example\r\n\r\n";
  if (r->rank == 0) usleep(100 * 1000); /* the others look for it again and again */
  for (uint32_t i = 0; r->rank == 1 && i < 2; i++) {
    const int fd = come_as_stranger();
    CHECK(r, fd >= 0);
    if (i == 0) CHECK(r, say(fd, web, sizeof web - 1));
    close(fd);
  }
  join(r);
}

/* Connections that stay, and say nothing. */
static void join_among_the_silent(struct rank *r) {
  static int fds[NUM_SILENT];
  for (uint32_t i = 0; r->rank == 1 && i < NUM_SILENT; i++) CHECK(r, (fds[i] = come_as_stranger()) >= 0);
  join(r);
  for (uint32_t i = 0; r->rank == 1 && i < NUM_SILENT; i++) close(fds[i]);
}

/* Somebody else says that it is rank 1, in every way that it can, and keeps its connections. */
static void join_after_impostors(struct rank *r) {
  const bool is_keyed = r->world->job_options.key_file != NULL;
  int fds[4];
  struct sml_key key;
  for (uint32_t i = 0; r->rank == 1 && i < SML_ARRAY_LEN(fds); i++) {
    CHECK(r, (fds[i] = come_as_stranger()) >= 0);
    if (i == 0) CHECK(r, say_old_hello(fds[i], 1, 2));
    if (i >= 1) CHECK(r, say_hello(fds[i], 1, 2, is_keyed, &key));
    if (i == 2) CHECK(r, say(fds[i], "nonsense", 8));
    if (i == 3 && !is_keyed) key.k0++; /* in a job with a key, it is wrong as it is */
    if (i == 3) CHECK(r, say_record(fds[i], &key) && is_turned_away(fds[i]));
  }
  join(r);
  for (uint32_t i = 0; r->rank == 1 && i < SML_ARRAY_LEN(fds); i++) close(fds[i]);
}

static _Atomic bool is_taken;

/* A stranger that does all that a rank without a key does is taken for it as long as it stays, and no longer. */
static void join_after_a_perfect_impostor(struct rank *r) {
  if (r->rank == 2) {
    struct sml_key key;
    uint8_t heard[SML_FRAME_HEAD_BYTES];
    const int fd = come_as_stranger();
    CHECK(r, fd >= 0 && say_hello(fd, 1, 3, false, &key) && say_record(fd, &key));
    CHECK(r, recv(fd, heard, sizeof heard, MSG_WAITALL) == sizeof heard); /* rank 0 says so */
    is_taken = true;
    usleep(300 * 1000); /* rank 1 is told so, and comes again */
    close(fd);
  }
  while (r->rank == 1 && !is_taken) usleep(1000);
  join(r);
}

static void ranks_meet_at_a_rendezvous(void **state) {
  (void)state;
  struct world w;
  start_world(&w, 3);
  world_run(&w, join_after_nonsense);
  world_run(&w, check_sum);
  stop_world(&w);
}

static void run_with_and_without_key(uint32_t num_ranks, void (*body)(struct rank *r)) {
  for (uint32_t is_keyed = 0; is_keyed < 2; is_keyed++) {
    struct world w;
    start_world(&w, num_ranks);
    if (is_keyed) w.job_options.key_file = key_path[0];
    world_run(&w, body);
    world_run(&w, check_sum);
    stop_world(&w);
  }
}

static void silent_strangers_do_not_delay_a_job(void **state) {
  (void)state;
  struct rlimit limit;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = sml_min_u64(limit.rlim_max, 4 * NUM_SILENT);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
  run_with_and_without_key(2, join_among_the_silent);
}

static void impostors_do_not_take_a_place(void **state) {
  (void)state;
  run_with_and_without_key(2, join_after_impostors);
}

static void a_place_is_free_again_when_its_holder_goes(void **state) {
  (void)state;
  struct world w;
  start_world(&w, 3);
  is_taken = false;
  world_run(&w, join_after_a_perfect_impostor);
  world_run(&w, check_sum);
  stop_world(&w);
}

/* ---- a clock that leaps ---- */

/* Ranks that give up by a deadline have an hour, however busy the machine is; each one's clock leaps over it as soon as
 * it has heard of the other what it then says. */
#define HOUR_NS (3600 * SML_NS_PER_S)

static _Thread_local const struct rank *leaping; /* whose clock this thread's is; NULL: the system's */
static _Atomic uint64_t leapt_ns[2];             /* of each rank */
static uint32_t num_unsealed;                    /* what rank 1 heard */

uint64_t __real_sml_clock_ns(void);
uint64_t __wrap_sml_clock_ns(void);
uint64_t __wrap_sml_clock_ns(void) {
  return __real_sml_clock_ns() + (leaping != NULL ? leapt_ns[leaping->rank] : 0);
}

typedef bool has_mac(const uint8_t mac[SML_FRAME_MAC_BYTES], const struct sml_key *key,
                     const uint8_t head[SML_FRAME_HEAD_BYTES], const void *body, size_t num_bytes);
has_mac __real_sml_frame_has_mac, __wrap_sml_frame_has_mac;
/* The first that rank 1 hears is that it is taken, and who is waited for. It stays until rank 0 has given up. */
bool __wrap_sml_frame_has_mac(const uint8_t mac[SML_FRAME_MAC_BYTES], const struct sml_key *key,
                              const uint8_t head[SML_FRAME_HEAD_BYTES], const void *body, size_t num_bytes) {
  const bool has = __real_sml_frame_has_mac(mac, key, head, body, num_bytes);
  if (leaping != NULL && leaping->rank == 1 && has) leapt_ns[0] = 2 * HOUR_NS;
  return has;
}

typedef bool is_sealed(const uint8_t answer[SML_ANSWER_BYTES], const struct sml_key *key);
is_sealed __real_sml_rendezvous_answer_is_sealed, __wrap_sml_rendezvous_answer_is_sealed;
/* Rank 1 has another key. When it is answered once more, rank 0 has seen it go. */
bool __wrap_sml_rendezvous_answer_is_sealed(const uint8_t answer[SML_ANSWER_BYTES], const struct sml_key *key) {
  const bool is = __real_sml_rendezvous_answer_is_sealed(answer, key);
  if (leaping != NULL && !is && ++num_unsealed == 2) leapt_ns[0] = leapt_ns[1] = 2 * HOUR_NS;
  return is;
}

static void join_until_the_leap(struct rank *r, const char *key_file) {
  sml_job_options o = options_of(r);
  o.join_timeout_ns = HOUR_NS;
  o.key_file = key_file;
  leaping = r;
  CHECK(r, sml_context_create(NULL, &r->context) == SML_OK);
  r->status = sml_job_create(r->context, &o, &r->job);
  if (r->rank == 0) leapt_ns[1] = 2 * HOUR_NS;
}

static void run_until_the_leap(uint32_t world_size, void (*body)(struct rank *r)) {
  struct world w;
  start_world(&w, 2);
  w.world_size = world_size;
  leapt_ns[0] = leapt_ns[1] = 0;
  num_unsealed = 0;
  world_run(&w, body);
  stop_world(&w);
}

/* ---- who is missing ---- */

static void come_without_others(struct rank *r) {
  join_until_the_leap(r, NULL);
  const char *why = sml_error_detail();
  CHECK(r, r->status == SML_ERR_TIMEOUT && strstr(why, "SWITCHML_RENDEZVOUS="), "%d %s", r->status, why);
  if (r->rank == 0) CHECK(r, strstr(why, "2 of 4 ranks came to"), "%s", why);
  if (r->rank == 0) CHECK(r, strstr(why, "ranks 2 and 3 are missing"), "%s", why);
  if (r->rank == 1) CHECK(r, strstr(why, "rank 0 had taken this rank, and waited for ranks 2 and 3"), "%s", why);
}

static void missing_ranks_are_named_to_all(void **state) {
  (void)state;
  run_until_the_leap(4, come_without_others);
}

static void come_with_different_keys(struct rank *r) {
  join_until_the_leap(r, key_path[r->rank]);
  const char *why = sml_error_detail();
  CHECK(r, r->status != SML_OK);
  if (r->rank == 0) CHECK(r, strstr(why, "rank 1 is missing") && strstr(why, "(rank 1?) went"), "%s", why);
  if (r->rank == 1) CHECK(r, strstr(why, "does not have the key 'meeting'"), "%s", why);
}

static void another_key_is_named(void **state) {
  (void)state;
  run_until_the_leap(2, come_with_different_keys);
}

/* Says at once what is wrong with its own key file. */
static void come_without_the_key_file(struct rank *r) {
  sml_job_options o = options_of(r);
  o.join_timeout_ns = r->rank == 0 ? SML_NS_PER_S : 3600 * SML_NS_PER_S;
  o.key_file = r->rank == 0 ? key_path[0] : "/nonexistent";
  CHECK(r, sml_context_create(NULL, &r->context) == SML_OK);
  r->status = sml_job_create(r->context, &o, &r->job);
  CHECK(r, r->status != SML_OK);
  if (r->rank == 1) CHECK(r, strstr(sml_error_detail(), "/nonexistent"), "%s", sml_error_detail());
}

static void who_cannot_read_its_key_does_not_wait(void **state) {
  (void)state;
  struct world w;
  start_world(&w, 2);
  world_run(&w, come_without_the_key_file);
  stop_world(&w);
}

/* The ranks have met, and an aggregator is there, but their datagrams are lost until the time is over. */
static void come_to_no_path(struct rank *r) {
  sml_job_options o = options_of(r);
  o.join_timeout_ns = 3 * SML_NS_PER_S;
  CHECK(r, sml_context_create(NULL, &r->context) == SML_OK);
  r->status = sml_job_create(r->context, &o, &r->job);
  const char *why = sml_error_detail();
  CHECK(r, r->status != SML_OK && strstr(why, "ranks 0, 1 of 2 have joined"), "%d %s", r->status, why);
}

static void who_ran_out_of_time_is_not_missing(void **state) {
  (void)state;
  struct world w;
  setenv("SWITCHML_FAULTS", "loss=1", 1);
  start_world(&w, 2);
  world_run(&w, come_to_no_path);
  stop_world(&w);
  unsetenv("SWITCHML_FAULTS");
}

/* ---- groups ---- */

/* Four ranks: pairs of neighbours, then pairs across; all meet at the same port, at once. */
static void join_two_groups(struct rank *r) {
  CHECK(r, sml_context_create(NULL, &r->context) == SML_OK);
  for (uint32_t is_across = 0; is_across < 2; is_across++) {
    const uint32_t group = is_across ? r->rank % 2 : r->rank / 2, rank = is_across ? r->rank / 2 : r->rank % 2;
    char name[32];
    sml_job_options o = r->world->job_options;
    sml_operation *op;
    sml_job *job;
    int32_t x = 1 << r->rank;
    snprintf(name, sizeof name, "%s.%u", is_across ? "across" : "near", group);
    o.name = name;
    o.aggregator = "";
    o.rank = rank;
    o.world_size = 2;
    if (r->rank == 0) usleep(50 * 1000); /* each order comes, in the rounds of the test */
    CHECK(r, sml_job_create(r->context, &o, &job) == SML_OK, "%s: %s", name, sml_error_detail());
    CHECK(r, sml_allreduce(job, &x, &x, 1, SML_INT32, SML_SUM, NULL, &op) == SML_OK);
    CHECK(r, sml_operation_wait(op, 20 * SML_NS_PER_S) == SML_OK, "%s", sml_error_detail());
    sml_operation_release(op);
    CHECK(r, x == (is_across ? 5 << group : 3 << (2 * group)), "%d", x);
    sml_job_destroy(job);
  }
}

static void groups_meet_at_one_port(void **state) {
  (void)state;
  for (uint32_t round = 0; round < 3; round++) {
    struct world w;
    start_world(&w, 4);
    world_run(&w, join_two_groups);
    stop_world(&w);
  }
}

/* Threads of one process that each are rank 0 of a job; and rank 0 that is there twice waits for its turn. */
static void join_side_by_side(struct rank *r) {
  char name[32];
  sml_job_options o = r->world->job_options;
  snprintf(name, sizeof name, "side.%u", r->rank / 4);
  o.name = name;
  o.aggregator = "";
  o.rank = r->rank % 2;
  o.world_size = 2;
  CHECK(r, sml_context_create(NULL, &r->context) == SML_OK);
  r->status = sml_job_create(r->context, &o, &r->job);
  CHECK(r, r->status == SML_OK, "%s", sml_error_detail());
}

static void threads_create_jobs_at_once(void **state) {
  (void)state;
  struct world w;
  start_world(&w, 8);
  world_run(&w, join_side_by_side);
  stop_world(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ranks_meet_at_a_rendezvous),
      cmocka_unit_test(silent_strangers_do_not_delay_a_job),
      cmocka_unit_test(impostors_do_not_take_a_place),
      cmocka_unit_test(a_place_is_free_again_when_its_holder_goes),
      cmocka_unit_test(missing_ranks_are_named_to_all),
      cmocka_unit_test(another_key_is_named),
      cmocka_unit_test(who_ran_out_of_time_is_not_missing),
      cmocka_unit_test(who_cannot_read_its_key_does_not_wait),
      cmocka_unit_test(groups_meet_at_one_port),
      cmocka_unit_test(threads_create_jobs_at_once),
  };
  write_keys();
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  remove_keys();
  return failed;
}
