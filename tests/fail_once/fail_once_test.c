/* SPDX-License-Identifier: Apache-2.0
 * Each allocation, system call and thread creation of set-up, join, all-reduce, abort and destroy fails once,
 * in turn; and those of ranks that share memory, that combine, that host the aggregator, and of traces and captures.
 * Whatever fails: nothing crashes, hangs or leaks, every call returns success or an error with a
 * sentence, and a sum that is called good is good.
 *
 * The calls are found by counting: the story below runs a few times undisturbed, then once for each call
 * that was seen, up to MAX_ORDINAL of each place in the code. A run has a process of its own and waits more than it
 * works, so several go on at a time. --site ADDRESS --call N runs one of them. */
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "aggd/aggd.h"
#include "aggd/key_reader.h"
#include "base/clock.h"
#include "base/writer.h"
#include "engine/engine.h"
#include "intercept.h"
#include "meet/job_settings.h"
#include "switchml/switchml.h"

#define NUM_RANKS 3u /* the third in END_COMBINING only, beside the first; it adds zeros */
#define NUM_ELEMS 9000u
#define COUNTING_RUNS 3u
#define MAX_ORDINAL 3u
/* How long a rank waits for others, undisturbed and where a call fails: who waits for a rank that could not come need
 * not wait long, but at least four undisturbed stories. A story may take 20 s, and ten of these waits. */
#define COUNTING_NS (20 * SML_NS_PER_S)
#define PATIENCE_NS (SML_NS_PER_S / 2)
#define WATCHDOG_NS (20 * SML_NS_PER_S)
#define NUM_AT_ONCE 8u

enum ending { END_BY_DESTROY, END_BY_ABORT, END_SHARED, END_COMBINING, END_EMBEDDED, END_TRACED, NUM_ENDINGS };
static const char *const ending_names[] = {"set-up, join, all-reduce and destroy",
                                           "abort",
                                           "the same in shared memory",
                                           "the same with ranks that combine",
                                           "ranks that embed the aggregator",
                                           "traces and captures"};

static char key_path[] = "/tmp/fail_once_key_XXXXXX";
static char folder[] = "/tmp/fail_once_XXXXXX"; /* of this process's story; made for stories that write files */

/* Which call fails in this process; caller 0: none. */
static struct {
  uintptr_t caller;
  uint32_t nth;
} failing;

/* One rank, on a thread of its own. */
struct actor {
  pthread_t thread;
  uint32_t rank;
  enum ending ending;
  uint64_t patience_ns;
  char address[64];
  char failure[400]; /* "": none */
};

static uint32_t num_ranks(enum ending ending) {
  return ending == END_COMBINING ? NUM_RANKS : NUM_RANKS - 1;
}

static void note(struct actor *a, const char *what, sml_status status) {
  if (a->failure[0] == 0)
    snprintf(a->failure, sizeof a->failure, "rank %u: %s (%s: %s)", a->rank, what, sml_status_string(status),
             sml_error_detail());
}

/* Every status is success, or an error with a sentence of its own. */
static bool is_ok(struct actor *a, const char *what, sml_status status) {
  if (status == SML_OK) return true;
  if (status > 0 || sml_error_detail()[0] == 0) note(a, what, status);
  return false;
}

/* An operation ends within its own timeout, and the patience of a retry before that: all of that is patience_ns. */
static uint64_t longest_wait_ns(const struct actor *a) {
  return 10 * SML_NS_PER_S + 3 * a->patience_ns;
}

static void sum_floats(struct actor *a, sml_job *job, uint32_t exact) {
  static float buffers[NUM_RANKS][NUM_ELEMS];
  static const float weights[NUM_RANKS] = {1, 0.5f, 0};
  float *buffer = buffers[a->rank];
  for (uint32_t i = 0; i < NUM_ELEMS; i++) buffer[i] = (float)(i % 1000) * weights[a->rank];
  const sml_operation_options o = {.struct_bytes = sizeof o, .exact = exact};
  sml_operation *op;
  if (!is_ok(a, "submitting floats", sml_allreduce(job, buffer, buffer, NUM_ELEMS, SML_FLOAT32, SML_SUM, &o, &op)))
    return;
  const sml_status status = sml_operation_wait(op, longest_wait_ns(a));
  if (is_ok(a, "summing floats", status)) {
    for (uint32_t i = 0; i < NUM_ELEMS; i++)
      if (buffer[i] != (float)(i % 1000) * 1.5f) note(a, "a sum of floats is wrong", SML_OK);
  }
  sml_operation_release(op);
}

static void sum_integers(struct actor *a, sml_job *job) {
  static int32_t in[NUM_RANKS][NUM_ELEMS], out[NUM_RANKS][NUM_ELEMS];
  for (uint32_t i = 0; i < NUM_ELEMS; i++) in[a->rank][i] = (int32_t)(i * ((a->rank + 1) % NUM_RANKS));
  sml_operation *op;
  if (!is_ok(a, "submitting integers",
             sml_allreduce(job, in[a->rank], out[a->rank], NUM_ELEMS, SML_INT32, SML_SUM, NULL, &op)))
    return;
  const sml_status status = sml_operation_wait(op, longest_wait_ns(a));
  if (is_ok(a, "summing integers", status)) {
    for (uint32_t i = 0; i < NUM_ELEMS; i++)
      if (out[a->rank][i] != (int32_t)(i * 3)) note(a, "a sum of integers is wrong", SML_OK);
  }
  sml_operation_release(op);
}

static void sum_batch(struct actor *a, sml_job *job) {
  int32_t x[2] = {(int32_t)a->rank, 1};
  sml_operation *ops[2] = {NULL, NULL};
  (void)is_ok(a, "beginning a batch", sml_batch_begin(job));
  for (uint32_t i = 0; i < 2; i++)
    (void)is_ok(a, "submitting a batch", sml_allreduce(job, &x[i], &x[i], 1, SML_INT32, SML_SUM, NULL, &ops[i]));
  (void)is_ok(a, "ending a batch", sml_batch_end(job));
  for (uint32_t i = 0; i < 2; i++) {
    if (ops[i] == NULL) continue;
    const int32_t n = (int32_t)num_ranks(a->ending);
    if (is_ok(a, "summing a batch", sml_operation_wait(ops[i], longest_wait_ns(a))) &&
        x[i] != (i == 0 ? n * (n - 1) / 2 : n))
      note(a, "a sum of a batch is wrong", SML_OK);
    sml_operation_release(ops[i]);
  }
}

static void dump_trace(struct actor *a, sml_context *context) {
  char path[sizeof folder + 16];
  snprintf(path, sizeof path, "%s/dumped", folder);
  (void)is_ok(a, "dumping a trace", sml_context_dump_trace(context, path));
}

/* Rank 0 submits what rank 1 never will, and aborts; rank 1 hears of it with its next call. */
static void abort_job(struct actor *a, sml_job *job) {
  static float lonely[NUM_ELEMS], late[NUM_ELEMS];
  sml_operation *op;
  if (a->rank == 0) {
    if (a->ending == END_BY_ABORT) intercept_begin(failing.caller, failing.nth);
    /* It takes an entry of the pool that had no floats yet, and this may be what fails. */
    const sml_status status = sml_allreduce(job, lonely, lonely, NUM_ELEMS, SML_FLOAT32, SML_SUM, NULL, &op);
    (void)is_ok(a, "aborting", sml_job_abort(job, "by the test"));
    if (status == SML_OK) {
      if (sml_operation_wait(op, longest_wait_ns(a)) >= 0) note(a, "an aborted operation did not fail", SML_OK);
      sml_operation_release(op);
    }
    return;
  }
  const uint32_t num_looks = failing.caller == 0 ? 1000 : 100;
  for (uint32_t i = 0; i < num_looks && sml_job_error(job, NULL) == SML_OK; i++) usleep(5000);
  const bool has_heard = sml_job_error(job, NULL) != SML_OK;
  if (!has_heard && failing.caller == 0) note(a, "an abort was not heard of within 5 s", SML_OK);
  const sml_status status = sml_allreduce(job, late, late, 10, SML_FLOAT32, SML_SUM, NULL, &op);
  if (status != SML_OK) return;
  /* If what failed is the aggregator's ear, rank 0 is lost: whoever waits for it is told. */
  if (has_heard || sml_operation_wait(op, longest_wait_ns(a)) >= 0)
    note(a, "an aborted job took an operation", SML_OK);
  sml_operation_release(op);
}

static void *act(void *argument) {
  struct actor *a = argument;
  sml_context_options context_options = SML_CONTEXT_OPTIONS_INIT;
  context_options.num_operations = 4;
  sml_context *context = NULL;
  if (!is_ok(a, "creating a context", sml_context_create(&context_options, &context))) return NULL;
  sml_job_options options = SML_JOB_OPTIONS_INIT;
  options.aggregator = a->address;
  options.rank = a->rank;
  options.world_size = num_ranks(a->ending);
  sml_test_host = a->ending == END_COMBINING ? 1 + a->rank % 2 : 0;
  if (a->ending == END_EMBEDDED) options.name = "embedded";
  options.num_slots = 8;
  options.max_datagram_bytes = 1472;
  options.join_timeout_ns = options.operation_timeout_ns = a->patience_ns;
  options.lease_ns = SML_NS_PER_S;
  options.check = 1;
  options.key_file = a->ending == END_EMBEDDED ? "" : key_path; /* rank 0 makes one */
  options.retry_ns = a->ending >= END_SHARED ? 0 : a->patience_ns;
  options.no_shared_memory = a->ending != END_SHARED && a->ending != END_COMBINING;
  sml_job *job = NULL;
  if (is_ok(a, "joining", sml_job_create(context, &options, &job))) {
    sum_floats(a, job, 0);
    sum_floats(a, job, 1);
    sum_integers(a, job);
    sum_batch(a, job);
    if (a->ending == END_TRACED) dump_trace(a, context);
    if ((a->ending == END_BY_ABORT || a->ending == END_TRACED) && sml_job_error(job, NULL) == SML_OK) abort_job(a, job);
    sml_job_destroy(job);
  }
  sml_context_destroy(context);
  return NULL;
}

static struct sml_aggd *start_aggregator(char *address, size_t address_bytes, char *error, size_t error_bytes) {
  struct sml_aggd_options options = {.num_lanes = 1, .pool_slots = 64, .max_connections = 16};
  struct sml_aggd *aggd = NULL;
  struct sml_key_entry *keys = sml_keys_read(key_path, &options.num_keys, error, error_bytes);
  options.keys = keys;
  const bool is_started = keys != NULL && sml_addr_parse("127.0.0.1:0", 0, &options.listen, error, error_bytes) &&
                          sml_aggd_start(&options, &aggd, error, error_bytes) == 0;
  if (keys != NULL) sml_keys_free(keys, options.num_keys);
  if (!is_started) return NULL;
  struct sml_addr addr;
  sml_aggd_addr(aggd, &addr);
  sml_addr_format(&addr, address, address_bytes);
  return aggd;
}

/* The whole story; what went wrong is in failure, which begins empty. */
static void run_story(enum ending ending, uint64_t patience_ns, char *failure, size_t failure_bytes) {
  struct actor actors[NUM_RANKS];
  memset(actors, 0, sizeof actors);
  char address[64] = "", error[256] = "";
  struct sml_aggd *aggd =
      ending == END_EMBEDDED ? NULL : start_aggregator(address, sizeof address, error, sizeof error);
  if (aggd == NULL && ending != END_EMBEDDED) {
    if (error[0] == 0) snprintf(failure, failure_bytes, "the aggregator did not start and did not say why");
    return;
  }
  for (uint32_t r = 0; r < num_ranks(ending); r++) {
    actors[r].rank = r;
    actors[r].ending = ending;
    actors[r].patience_ns = patience_ns;
    snprintf(actors[r].address, sizeof actors[r].address, "%s", address);
    if (intercept_start_thread(&actors[r].thread, act, &actors[r]) != 0) abort();
  }
  for (uint32_t r = 0; r < num_ranks(ending); r++) {
    pthread_join(actors[r].thread, NULL);
    if (failure[0] == 0) snprintf(failure, failure_bytes, "%s", actors[r].failure);
  }
  if (aggd != NULL) sml_aggd_stop(aggd);
}

static uint32_t count_entries(const char *path) {
  uint32_t count = 0;
  DIR *directory = opendir(path);
  if (directory == NULL) return 0;
  while (readdir(directory) != NULL) count++;
  closedir(directory);
  return count;
}

/* What a run leaves for the test: it has a process of its own, so that a crash is one of its results. */
struct result {
  bool has_failed; /* the call was reached */
  char failure[500];
  uint64_t story_ns;
  size_t num_sites;
  struct site sites[MAX_SITES];
};

struct run {
  pid_t child; /* 0: none */
  enum ending ending;
  uintptr_t caller; /* 0: nothing fails */
  uint32_t nth;
  struct result *result; /* shared with the child */
};
static struct run runs[NUM_AT_ONCE];
static uint64_t story_ns; /* the longest undisturbed one so far: how slow and busy this machine is */

/* ---- in the child ---- */

/* A port of 127.0.0.1 that nobody else is given; rank 0 may listen there all the same. */
static void set_rendezvous(void) {
  struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t num_bytes = sizeof addr;
  const int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
      bind(fd, (struct sockaddr *)&addr, sizeof addr) != 0 ||
      getsockname(fd, (struct sockaddr *)&addr, &num_bytes) != 0)
    abort();
  char text[32];
  snprintf(text, sizeof text, "127.0.0.1:%u", ntohs(addr.sin_port));
  setenv("SWITCHML_RENDEZVOUS", text, 1);
}

static void set_trace(void) {
  char path[sizeof folder + 16];
  if (mkdtemp(folder) == NULL) abort();
  snprintf(path, sizeof path, "%s/captured", folder);
  setenv("SWITCHML_PCAP", path, 1);
  setenv("SWITCHML_TRACE", "all", 1);
  setenv("SWITCHML_TRACE_EVENTS", "1000", 1);
  setenv("SWITCHML_TRACE_DIR", folder, 1);
}

static void set_environment(enum ending ending) {
  if (ending == END_SHARED || ending == END_COMBINING) setenv("SWITCHML_SHARED_MEMORY", "1", 1);
  if (ending == END_EMBEDDED) set_rendezvous();
  if (ending == END_TRACED) set_trace();
}

/* Removes what a story wrote; returns whether a file was left half written. */
static bool remove_folder(void) {
  bool is_half = false;
  DIR *directory = opendir(folder);
  for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
    is_half = is_half || strstr(entry->d_name, ".new") != NULL;
    (void)unlinkat(dirfd(directory), entry->d_name, 0);
  }
  if (directory != NULL) closedir(directory);
  rmdir(folder);
  return is_half;
}

static void run_in_child(const struct run *run) {
  struct result *result = run->result;
  char *failure = result->failure;
  const size_t failure_bytes = sizeof result->failure;
  set_environment(run->ending);
  const uint32_t num_descriptors = count_entries("/proc/self/fd"), num_threads = count_entries("/proc/self/task");
  const long num_blocks = intercept_num_blocks();
  const bool is_counting = run->caller == 0;
  const uint64_t patience_ns = is_counting ? COUNTING_NS : sml_max_u64(PATIENCE_NS, 4 * story_ns);
  alarm((uint32_t)((WATCHDOG_NS + 10 * patience_ns) / SML_NS_PER_S));
  failing.caller = run->caller;
  failing.nth = run->nth;
  if (run->ending != END_BY_ABORT) intercept_begin(run->caller, run->nth);
  const uint64_t begun_ns = sml_clock_ns();
  run_story(run->ending, patience_ns, failure, failure_bytes);
  result->story_ns = sml_clock_ns() - begun_ns;
  result->has_failed = intercept_end();
  /* The last context gave the writer of messages 0.1 s, which a busy machine may not have. */
  (void)sml_writer_end(20 * SML_NS_PER_S);
  /* A thread that was joined may still be on its way out of the kernel's list. */
  for (uint32_t i = 0; i < 200 && count_entries("/proc/self/task") != num_threads; i++) usleep(1000);
  if (failure[0] == 0 && intercept_num_blocks() != num_blocks)
    snprintf(failure, failure_bytes, "%ld blocks of memory leaked", intercept_num_blocks() - num_blocks);
  const uint32_t num_left = count_entries("/proc/self/fd");
  if (failure[0] == 0 && num_left != num_descriptors)
    snprintf(failure, failure_bytes, "%d descriptors leaked", (int)num_left - (int)num_descriptors);
  if (failure[0] == 0 && count_entries("/proc/self/task") != num_threads)
    snprintf(failure, failure_bytes, "a thread was left");
  if (run->ending == END_TRACED && remove_folder() && failure[0] == 0)
    snprintf(failure, failure_bytes, "half a trace was left");
  result->num_sites = intercept_num_sites();
  for (size_t i = 0; i < result->num_sites; i++) result->sites[i] = *intercept_site(i);
}

/* ---- runs ---- */

/* Begins the story with one failing call (caller 0: none). */
static void start_run(struct run *run, enum ending ending, uintptr_t caller, uint32_t nth) {
  run->ending = ending;
  run->caller = caller;
  run->nth = nth;
  memset(run->result, 0, sizeof *run->result);
  run->child = fork();
  assert_true(run->child >= 0);
  if (run->child > 0) return;
  for (int number = 1; number < SIGRTMIN; number++) signal(number, SIG_DFL); /* the framework's handlers */
  run_in_child(run);
  _exit(0);
}

/* The next run that ends; NULL: there is none. */
static struct run *finish_run(void) {
  int status = 0;
  const pid_t child = waitpid(-1, &status, 0);
  struct run *run = runs;
  while (run < runs + NUM_AT_ONCE && (child <= 0 || run->child != child)) run++;
  if (run == runs + NUM_AT_ONCE) return NULL;
  run->child = 0;
  if (WIFSIGNALED(status))
    snprintf(run->result->failure, sizeof run->result->failure, "%s",
             WTERMSIG(status) == SIGALRM ? "it did not end" : strsignal(WTERMSIG(status)));
  return run;
}

extern char __executable_start;
static uintptr_t offset_of(uintptr_t caller) {
  return caller - (uintptr_t)&__executable_start;
}

/* ---- stories ---- */

/* Where a story calls, and how often at most, as counting runs saw it. */
static struct places {
  size_t count;
  struct site sites[MAX_SITES];
} places[NUM_ENDINGS];

static const struct site *find_place(const struct places *p, uintptr_t caller) {
  for (size_t i = 0; i < p->count; i++)
    if (p->sites[i].caller == caller) return &p->sites[i];
  return NULL;
}

static void note_calls(struct places *p, const struct result *result) {
  for (size_t i = 0; i < result->num_sites; i++) {
    const struct site *seen = &result->sites[i];
    struct site *place = &p->sites[p->count];
    for (size_t k = 0; k < p->count; k++)
      if (p->sites[k].caller == seen->caller) place = &p->sites[k];
    if (place == &p->sites[p->count]) {
      p->count++;
      *place = *seen;
    }
    place->num_calls = sml_max_u32(place->num_calls, seen->num_calls);
  }
}

static const struct places *count_calls(enum ending ending) {
  struct places *p = &places[ending];
  if (p->count > 0) return p;
  for (uint32_t i = 0; i < COUNTING_RUNS; i++) start_run(&runs[i], ending, 0, 0);
  char failure[sizeof runs->result->failure] = "";
  for (const struct run *run; (run = finish_run()) != NULL;) {
    if (run->result->failure[0] != 0) memcpy(failure, run->result->failure, sizeof failure);
    story_ns = sml_max_u64(story_ns, run->result->story_ns);
    note_calls(p, run->result);
  }
  if (failure[0] != 0) fail_msg("%s, undisturbed: %s", ending_names[ending], failure);
  return p;
}

/* What the stories before it reach fails there, but once a place where what is around it is another. */
static uint32_t num_to_fail(enum ending ending, const struct site *place) {
  bool is_known = false;
  if (ending > END_BY_ABORT) is_known = find_place(count_calls(END_BY_DESTROY), place->caller) != NULL;
  if (ending == END_COMBINING || ending == END_TRACED)
    is_known = is_known || find_place(count_calls(ending == END_TRACED ? END_BY_ABORT : END_SHARED), place->caller);
  const uint32_t most = !is_known ? MAX_ORDINAL : ending == END_EMBEDDED ? 1 : 0;
  return sml_min_u32(most, place->num_calls);
}

struct tally {
  uint32_t num_tried, num_reached, num_failures;
};

static void take_result(const struct run *run, struct tally *tally) {
  tally->num_reached += run->result->has_failed;
  if (run->result->failure[0] == 0) return;
  tally->num_failures++;
  const struct site *place = find_place(&places[run->ending], run->caller);
  print_error("%s, call %u (--site %zx --call %u; addr2line -e): %s\n", place->function, run->nth,
              (size_t)offset_of(run->caller), run->nth, run->result->failure);
}

/* Which calls are tried depends on what the stories before it reached; a call that was seen once is not made each time,
 * but most are. */
static void fail_each_call(enum ending ending) {
  const struct places *all = count_calls(ending);
  struct tally tally = {0, 0, 0};
  uint32_t num_running = 0;
  for (size_t i = 0; i < all->count; i++) {
    const uint32_t count = num_to_fail(ending, &all->sites[i]);
    for (uint32_t nth = 1; nth <= count; nth++) {
      struct run *run = num_running < NUM_AT_ONCE ? &runs[num_running++] : finish_run();
      if (run->caller != 0) take_result(run, &tally);
      start_run(run, ending, all->sites[i].caller, nth);
      tally.num_tried++;
    }
  }
  for (const struct run *run; (run = finish_run()) != NULL;) take_result(run, &tally);
  for (uint32_t i = 0; i < NUM_AT_ONCE; i++) runs[i].caller = 0;
  print_message("# %s: %u of %u calls failed, one at a time; %zu places\n", ending_names[ending], tally.num_reached,
                tally.num_tried, all->count);
  assert_int_equal(tally.num_failures, 0);
  assert_true(all->count >= 30);
  assert_true(tally.num_reached >= tally.num_tried / 2);
}

static void test_set_up_join_allreduce_destroy(void **state) {
  (void)state;
  fail_each_call(END_BY_DESTROY);
}

static void test_abort(void **state) {
  (void)state;
  fail_each_call(END_BY_ABORT);
}

static void test_shared_memory(void **state) {
  (void)state;
  fail_each_call(END_SHARED);
}

static void test_combining(void **state) {
  (void)state;
  fail_each_call(END_COMBINING);
}

static void test_embedded(void **state) {
  (void)state;
  fail_each_call(END_EMBEDDED);
}

static void test_tracing(void **state) {
  (void)state;
  fail_each_call(END_TRACED);
}

static int run_one(uintptr_t offset, uint32_t nth) {
  for (int ending = 0; ending < NUM_ENDINGS; ending++) {
    start_run(&runs[0], (enum ending)ending, offset + (uintptr_t)&__executable_start, nth);
    const struct result *result = finish_run()->result;
    printf("%s: the call %s; %s\n", ending_names[ending], result->has_failed ? "failed" : "was not reached",
           result->failure[0] != 0 ? result->failure : "all well");
  }
  return 0;
}

int main(int argc, char **argv) {
  struct result *results =
      mmap(NULL, NUM_AT_ONCE * sizeof *results, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (results == MAP_FAILED) return 1;
  for (uint32_t i = 0; i < NUM_AT_ONCE; i++) runs[i].result = &results[i];
  static const char keys[] = "tenant 00112233445566778899aabbccddeeff\n";
  const int key_fd = mkstemp(key_path);
  if (key_fd < 0 || write(key_fd, keys, sizeof keys - 1) != (ssize_t)sizeof keys - 1) return 1;
  close(key_fd);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_set_up_join_allreduce_destroy),
      cmocka_unit_test(test_abort),
      cmocka_unit_test(test_shared_memory),
      cmocka_unit_test(test_combining),
      cmocka_unit_test(test_embedded),
      cmocka_unit_test(test_tracing),
  };
  const int status = argc == 5 ? run_one((uintptr_t)strtoull(argv[2], NULL, 16), (uint32_t)atoi(argv[4]))
                               : cmocka_run_group_tests(tests, NULL, NULL);
  unlink(key_path);
  return status;
}
