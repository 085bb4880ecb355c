/* SPDX-License-Identifier: Apache-2.0
 * Each allocation, system call and thread creation of set-up, join, all-reduce, abort and destroy fails once,
 * in turn. Whatever fails: nothing crashes, hangs or leaks, every call returns success or an error with a
 * sentence, and a sum that is called good is good.
 *
 * The calls are found by counting: the story below runs a few times undisturbed, then once for each call
 * that was seen, up to MAX_ORDINAL of each place in the code. --site ADDRESS --call N
 * runs one of them. */
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "aggd/aggd.h"
#include "aggd/key_reader.h"
#include "engine/engine.h"
#include "intercept.h"
#include "lib/job_settings.h"
#include "switchml/switchml.h"

#define NUM_RANKS 3u /* the third in END_COMBINING only, beside the first; it adds zeros */
#define NUM_ELEMS 9000u
#define COUNTING_RUNS 3u
#define MAX_ORDINAL 3u
#define WATCHDOG_S 20u

enum ending { END_BY_DESTROY, END_BY_ABORT, END_SHARED, END_COMBINING, NUM_ENDINGS };
static const char *const ending_names[] = {"set-up, join, all-reduce and destroy", "abort",
                                           "the same in shared memory",
                                           "the same with ranks that combine"};

static char key_path[] = "/tmp/fail_once_key_XXXXXX";

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

static void sum_floats(struct actor *a, sml_job *job) {
  static float buffers[NUM_RANKS][NUM_ELEMS];
  static const float weights[NUM_RANKS] = {1, 0.5f, 0};
  float *buffer = buffers[a->rank];
  for (uint32_t i = 0; i < NUM_ELEMS; i++) buffer[i] = (float)(i % 1000) * weights[a->rank];
  sml_operation *op;
  if (!is_ok(a, "submitting floats", sml_allreduce(job, buffer, buffer, NUM_ELEMS, SML_FLOAT32, SML_SUM, NULL, &op)))
    return;
  const sml_status status = sml_operation_wait(op, UINT64_C(10000000000));
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
  const sml_status status = sml_operation_wait(op, UINT64_C(10000000000));
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
    if (is_ok(a, "summing a batch", sml_operation_wait(ops[i], UINT64_C(10000000000))) &&
        x[i] != (i == 0 ? n * (n - 1) / 2 : n))
      note(a, "a sum of a batch is wrong", SML_OK);
    sml_operation_release(ops[i]);
  }
}

/* Rank 0 submits what rank 1 never will, and aborts; rank 1 hears of it with its next call. */
static void abort_job(struct actor *a, sml_job *job) {
  static float lonely[NUM_ELEMS], late[NUM_ELEMS];
  sml_operation *op;
  if (a->rank == 0) {
    /* Of an entry of the pool that had no floats yet: this may be what fails. */
    const sml_status status = sml_allreduce(job, lonely, lonely, NUM_ELEMS, SML_FLOAT32, SML_SUM, NULL, &op);
    (void)is_ok(a, "aborting", sml_job_abort(job, "by the test"));
    if (status == SML_OK) {
      if (sml_operation_wait(op, UINT64_C(10000000000)) >= 0) note(a, "an aborted operation did not fail", SML_OK);
      sml_operation_release(op);
    }
    return;
  }
  for (uint32_t i = 0; i < 1000 && sml_job_error(job, NULL) == SML_OK; i++) usleep(5000);
  if (sml_job_error(job, NULL) == SML_OK) note(a, "an abort was not heard of within 5 s", SML_OK);
  if (sml_allreduce(job, late, late, 10, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK) {
    note(a, "an aborted job took an operation", SML_OK);
    sml_operation_release(op);
  }
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
  options.num_slots = 8;
  options.max_datagram_bytes = 1472;
  options.join_timeout_ns = options.operation_timeout_ns = a->patience_ns;
  options.lease_ns = SML_NS_PER_S;
  options.check = 1;
  options.key_file = key_path;
  options.retry_ns = a->ending >= END_SHARED ? 0 : a->patience_ns;
  options.no_shared_memory = a->ending < END_SHARED;
  sml_job *job = NULL;
  if (is_ok(a, "joining", sml_job_create(context, &options, &job))) {
    sum_floats(a, job);
    sum_integers(a, job);
    sum_batch(a, job);
    if (a->ending == END_BY_ABORT && sml_job_error(job, NULL) == SML_OK) abort_job(a, job);
    sml_job_destroy(job);
  }
  sml_context_destroy(context);
  return NULL;
}

/* The whole story; what went wrong is in failure, which begins empty. */
static void run_story(enum ending ending, uint64_t patience_ns, char *failure, size_t failure_bytes) {
  struct sml_aggd_options options = {.num_lanes = 1, .pool_slots = 64, .max_connections = 16};
  struct sml_aggd *aggd = NULL;
  struct actor actors[NUM_RANKS];
  memset(actors, 0, sizeof actors);
  char error[256] = "";
  struct sml_key_entry *keys = sml_keys_read(key_path, &options.num_keys, error, sizeof error);
  options.keys = keys;
  const bool is_started = keys != NULL && sml_addr_parse("127.0.0.1:0", 0, &options.listen, error, sizeof error) &&
                          sml_aggd_start(&options, &aggd, error, sizeof error) == 0;
  if (keys != NULL) sml_keys_free(keys, options.num_keys);
  if (!is_started) {
    if (error[0] == 0) snprintf(failure, failure_bytes, "the aggregator did not start and did not say why");
    return;
  }
  struct sml_addr addr;
  sml_aggd_addr(aggd, &addr);
  for (uint32_t r = 0; r < num_ranks(ending); r++) {
    actors[r].rank = r;
    actors[r].ending = ending;
    actors[r].patience_ns = patience_ns;
    sml_addr_format(&addr, actors[r].address, sizeof actors[r].address);
    if (intercept_start_thread(&actors[r].thread, act, &actors[r]) != 0) abort();
  }
  for (uint32_t r = 0; r < num_ranks(ending); r++) {
    pthread_join(actors[r].thread, NULL);
    if (failure[0] == 0) snprintf(failure, failure_bytes, "%s", actors[r].failure);
  }
  sml_aggd_stop(aggd);
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
  size_t num_sites;
  struct site sites[MAX_SITES];
};
static struct result *result; /* shared with the child */

static void run_in_child(enum ending ending, uintptr_t caller, uint32_t nth) {
  char *failure = result->failure;
  const size_t failure_bytes = sizeof result->failure;
  const uint32_t num_descriptors = count_entries("/proc/self/fd"), num_threads = count_entries("/proc/self/task");
  const long num_blocks = intercept_num_blocks();
  alarm(WATCHDOG_S);
  intercept_begin(caller, nth);
  /* Who waits for a rank that could not come need not wait long. */
  run_story(ending, caller == 0 ? 10 * SML_NS_PER_S : SML_NS_PER_S / 2, failure, failure_bytes);
  result->has_failed = intercept_end();
  /* A thread that was joined may still be on its way out of the kernel's list. */
  for (uint32_t i = 0; i < 200 && count_entries("/proc/self/task") != num_threads; i++) usleep(1000);
  if (failure[0] == 0 && intercept_num_blocks() != num_blocks)
    snprintf(failure, failure_bytes, "%ld blocks of memory leaked", intercept_num_blocks() - num_blocks);
  const uint32_t num_left = count_entries("/proc/self/fd");
  if (failure[0] == 0 && num_left != num_descriptors)
    snprintf(failure, failure_bytes, "%d descriptors leaked", (int)num_left - (int)num_descriptors);
  if (failure[0] == 0 && count_entries("/proc/self/task") != num_threads)
    snprintf(failure, failure_bytes, "a thread was left");
  result->num_sites = intercept_num_sites();
  for (size_t i = 0; i < result->num_sites; i++) result->sites[i] = *intercept_site(i);
}

/* Runs the story with one failing call (caller 0: none). */
static void run_with(enum ending ending, uintptr_t caller, uint32_t nth) {
  memset(result, 0, sizeof *result);
  const pid_t child = fork();
  if (child == 0) {
    for (int number = 1; number < SIGRTMIN; number++) signal(number, SIG_DFL); /* the framework's handlers */
    run_in_child(ending, caller, nth);
    _exit(0);
  }
  int status = 0;
  assert_true(child > 0 && waitpid(child, &status, 0) == child);
  if (!WIFSIGNALED(status)) return;
  const int signal_number = WTERMSIG(status);
  snprintf(result->failure, sizeof result->failure, "%s",
           signal_number == SIGALRM ? "it did not end" : strsignal(signal_number));
}

extern char __executable_start;
static uintptr_t offset_of(uintptr_t caller) {
  return caller - (uintptr_t)&__executable_start;
}

/* Adds places, with the most calls that a counting run saw; returns how many there are then. */
static size_t count_calls(enum ending ending, struct site *places, size_t num_places) {
  for (uint32_t run = 0; run < COUNTING_RUNS; run++) {
    run_with(ending, 0, 0);
    if (result->failure[0] != 0) fail_msg("undisturbed: %s", result->failure);
    for (size_t i = 0; i < result->num_sites; i++) {
      const struct site *seen = &result->sites[i];
      size_t place = 0;
      while (place < num_places && places[place].caller != seen->caller) place++;
      if (place == num_places) places[num_places++] = *seen;
      if (seen->num_calls > places[place].num_calls) places[place].num_calls = seen->num_calls;
    }
  }
  return num_places;
}

static bool is_among(const struct site *place, const struct site *places, size_t num_places) {
  for (size_t i = 0; i < num_places; i++)
    if (places[i].caller == place->caller) return true;
  return false;
}

/* In shared memory, and of ranks that combine, only what the stories before do not reach. */
static void fail_each_call(enum ending ending, uint32_t least) {
  static struct site places[MAX_SITES], others[MAX_SITES];
  size_t num_others = ending >= END_SHARED ? count_calls(END_BY_DESTROY, others, 0) : 0;
  if (ending == END_COMBINING) num_others = count_calls(END_SHARED, others, num_others);
  const size_t num_places = count_calls(ending, places, 0);
  uint32_t num_reached = 0, num_failures = 0;
  for (size_t i = 0; i < num_places; i++) {
    const struct site *place = &places[i];
    if (is_among(place, others, num_others)) continue;
    for (uint32_t nth = 1; nth <= MAX_ORDINAL && nth <= place->num_calls; nth++) {
      run_with(ending, place->caller, nth);
      num_reached += result->has_failed;
      if (result->failure[0] == 0) continue;
      num_failures++;
      print_error("%s, call %u (--site %zx --call %u; addr2line -e): %s\n", place->function, nth,
                  (size_t)offset_of(place->caller), nth, result->failure);
    }
  }
  print_message("# %s: %u calls at %zu places failed, one at a time\n", ending_names[ending], num_reached,
                num_places);
  assert_int_equal(num_failures, 0);
  assert_true(num_reached > least);
}

static void test_set_up_join_allreduce_destroy(void **state) {
  (void)state;
  fail_each_call(END_BY_DESTROY, 60);
}

static void test_abort(void **state) {
  (void)state;
  fail_each_call(END_BY_ABORT, 60);
}

static void test_shared_memory(void **state) {
  (void)state;
  setenv("SWITCHML_SHARED_MEMORY", "1", 1);
  fail_each_call(END_SHARED, 25);
}

static void test_combining(void **state) {
  (void)state;
  setenv("SWITCHML_SHARED_MEMORY", "1", 1);
  fail_each_call(END_COMBINING, 4);
}

static int run_one(uintptr_t offset, uint32_t nth) {
  for (int ending = 0; ending < NUM_ENDINGS; ending++) {
    run_with((enum ending)ending, offset + (uintptr_t)&__executable_start, nth);
    printf("%s: the call %s; %s\n", ending_names[ending], result->has_failed ? "failed" : "was not reached",
           result->failure[0] != 0 ? result->failure : "all well");
  }
  return 0;
}

int main(int argc, char **argv) {
  result = mmap(NULL, sizeof *result, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (result == MAP_FAILED) return 1;
  static const char keys[] = "tenant 00112233445566778899aabbccddeeff\n";
  const int key_fd = mkstemp(key_path);
  if (key_fd < 0 || write(key_fd, keys, sizeof keys - 1) != (ssize_t)sizeof keys - 1) return 1;
  close(key_fd);
  if (argc == 5) return run_one((uintptr_t)strtoull(argv[2], NULL, 16), (uint32_t)atoi(argv[4]));
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_set_up_join_allreduce_destroy),
      cmocka_unit_test(test_abort),
      cmocka_unit_test(test_shared_memory),
      cmocka_unit_test(test_combining),
  };
  const int num_failed = cmocka_run_group_tests(tests, NULL, NULL);
  unlink(key_path);
  return num_failed;
}
