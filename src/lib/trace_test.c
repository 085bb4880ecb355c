/* SPDX-License-Identifier: Apache-2.0
 * The flight recorders of ranks and of the aggregator, as files: what they hold, when they are written, and that
 * nothing is written unasked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/test_world.h"
#include "trace/reader.h"

static char folder[] = "/tmp/sml-trace-test-XXXXXX";

/* ---- files ---- */

struct file {
  struct sml_trace_file trace;
  uint8_t *bytes;
};

static void open_file(struct file *f, const char *path) {
  char error[256];
  const size_t room = 16u << 20;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail_msg("%s is not there", path);
  f->bytes = malloc(room);
  const ssize_t num_bytes = read(fd, f->bytes, room);
  close(fd);
  assert_true(num_bytes > 0);
  if (!sml_trace_open(&f->trace, f->bytes, (size_t)num_bytes, error, sizeof error)) fail_msg("%s", error);
}

static void close_file(struct file *f) {
  sml_trace_close(&f->trace);
  free(f->bytes);
}

/* How many records of an event there are; the last of them. */
static uint64_t count(const struct file *f, enum sml_trace_event event, struct sml_record *last_out) {
  uint64_t num_found = 0;
  for (uint32_t s = 0; s < f->trace.num_sources; s++) {
    for (uint32_t i = 0; i < f->trace.sources[s].num_records; i++) {
      struct sml_record r;
      sml_trace_read(&f->trace, &f->trace.sources[s], i, &r);
      if (r.event != event) continue;
      num_found++;
      if (last_out != NULL) *last_out = r;
    }
  }
  return num_found;
}

/* The largest value of its records: another slot may have been asked about, too, and for less. */
static uint64_t largest(const struct file *f, enum sml_trace_event event) {
  uint64_t value = 0;
  for (uint32_t s = 0; s < f->trace.num_sources; s++) {
    for (uint32_t i = 0; i < f->trace.sources[s].num_records; i++) {
      struct sml_record r;
      sml_trace_read(&f->trace, &f->trace.sources[s], i, &r);
      if (r.event == event) value = sml_max_u64(value, r.value);
    }
  }
  return value;
}

/* Files of the folder; the name of one. */
static uint32_t count_files(char *path_out, size_t path_bytes) {
  uint32_t num_files = 0;
  DIR *d = opendir(folder);
  assert_non_null(d);
  for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
    if (e->d_name[0] == '.') continue;
    num_files++;
    if (path_out != NULL) assert_true((size_t)snprintf(path_out, path_bytes, "%s/%s", folder, e->d_name) < path_bytes);
  }
  closedir(d);
  return num_files;
}

static int empty_folder(void **state) {
  (void)state;
  char path[600];
  while (count_files(path, sizeof path) > 0) assert_int_equal(unlink(path), 0);
  unsetenv("SWITCHML_TRACE");
  unsetenv("SWITCHML_TRACE_DIR");
  unsetenv("SWITCHML_TRACE_EVENTS");
  return 0;
}

/* ---- what is in them ---- */

static void reduce_thrice(struct rank *r) {
  static float data[2][3000];
  for (uint32_t i = 0; i < 3; i++)
    CHECK(r, allreduce(r, data[r->rank], data[r->rank], 3000, SML_FLOAT32, SML_SUM) == SML_OK);
}

static void dump_of_rank_0(struct world *w, const char *name, struct file *f) {
  char path[600];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  assert_int_equal(sml_context_dump_trace(w->ranks[0].context, path), SML_OK);
  open_file(f, path);
}

static void a_running_job_is_dumped(void **state) {
  (void)state;
  struct world w;
  struct file f;
  struct sml_record r;
  world_init(&w, 2);
  w.job_options.name = "train";
  world_start(&w);
  world_run(&w, reduce_thrice);
  dump_of_rank_0(&w, "notable.trace", &f);
  assert_int_equal(count(&f, SML_TRACE_OPERATION_SUBMITTED, &r), 3);
  assert_int_equal(r.value, 2);
  assert_int_equal(r.chunk, 3000);
  assert_int_equal(count(&f, SML_TRACE_OPERATION_STARTED, NULL), 3);
  assert_int_equal(count(&f, SML_TRACE_OPERATION_ENDED, NULL), 6); /* in the lane, and of the job */
  assert_int_equal(count(&f, SML_TRACE_EPOCH_STARTED, NULL), 1);
  assert_int_equal(count(&f, SML_TRACE_JOB_JOINED, &r), 1);
  assert_true(count(&f, SML_TRACE_HELLO_ANSWERED, NULL) >= 1);
  assert_int_equal(count(&f, SML_TRACE_UPDATE_SENT, NULL), 0); /* packets only if asked for */
  assert_int_equal(f.trace.num_jobs, 1);
  assert_int_equal(f.trace.jobs[0].rank, 0);
  assert_int_equal(f.trace.jobs[0].number, r.job);
  assert_memory_equal(f.trace.jobs[0].name.bytes, "train", 5);
  close_file(&f);
  assert_int_equal(sml_context_dump_trace(w.ranks[0].context, "/no/such/folder/x"), SML_ERR_SYSTEM);
  assert_int_equal(sml_context_dump_trace(w.ranks[0].context, NULL), SML_ERR_INVALID_ARGUMENT);
  assert_int_equal(sml_context_dump_trace(NULL, "x"), SML_ERR_INVALID_ARGUMENT);
  world_stop(&w);
}

static void with_all_every_packet_is_there(void **state) {
  (void)state;
  struct world w;
  struct file f;
  struct sml_record r;
  setenv("SWITCHML_TRACE", "all", 1);
  world_init(&w, 2);
  world_start(&w);
  world_run(&w, reduce_thrice);
  sml_stats stats = SML_STATS_INIT;
  assert_int_equal(sml_job_stats(w.ranks[0].job, &stats), SML_OK);
  dump_of_rank_0(&w, "all.trace", &f);
  assert_int_equal(count(&f, SML_TRACE_RESULT_RECEIVED, &r), stats.chunks_completed);
  assert_true(r.value > 0 && r.value < 30 * SML_NS_PER_S); /* how long it was waited for */
  assert_int_equal(count(&f, SML_TRACE_UPDATE_SENT, NULL), stats.chunks_completed);
  assert_int_equal(count(&f, SML_TRACE_UPDATE_REPEATED, NULL), stats.retransmissions);
  close_file(&f);
  world_stop(&w);
}

static void off_means_none(void **state) {
  (void)state;
  struct world w;
  char path[64];
  snprintf(path, sizeof path, "%s/off", folder);
  setenv("SWITCHML_TRACE", "off", 1);
  world_init(&w, 2);
  world_start(&w);
  world_run(&w, reduce_thrice);
  assert_int_equal(sml_context_dump_trace(w.ranks[0].context, path), SML_ERR_UNSUPPORTED);
  assert_int_equal(count_files(NULL, 0), 0);
  world_stop(&w);
}

/* ---- who is missing ---- */

static void collect_aggregator(struct world *w, const char *path) {
  struct sml_trace_dump dump = {.program = "switchmld", .reason = "test"};
  char error[256];
  assert_true(sml_aggd_collect_trace(w->aggd, &dump));
  assert_int_equal(sml_trace_write(&dump, path, error, sizeof error), 0);
  sml_trace_clear(&dump);
}

static sml_operation *early;
static float early_data[3000];

static void submit_on_0(struct rank *r) {
  if (r->rank == 0)
    CHECK(r, sml_allreduce(r->job, early_data, early_data, 3000, SML_FLOAT32, SML_SUM, NULL, &early) == SML_OK);
}

static void submit_on_1(struct rank *r) {
  static float data[3000];
  if (r->rank == 1) CHECK(r, allreduce(r, data, data, 3000, SML_FLOAT32, SML_SUM) == SML_OK);
  else CHECK(r, sml_operation_wait(early, 20 * SML_NS_PER_S) == SML_OK);
}

static void both_ends_name_the_late_rank(void **state) {
  (void)state;
  struct world w;
  struct file f;
  struct sml_record r;
  char path[64];
  world_init(&w, 2);
  w.aggd_options.trace_level = SML_TRACE_NOTABLE;
  world_start(&w);
  world_run(&w, submit_on_0);
  usleep(300 * 1000);
  dump_of_rank_0(&w, "late.trace", &f);
  assert_true(count(&f, SML_TRACE_PROBE_SENT, NULL) > 0);
  assert_true(count(&f, SML_TRACE_PENDING_RECEIVED, &r) > 0);
  assert_int_equal(r.rank, 1); /* missing */
  assert_int_equal(r.chunk, 1);
  assert_in_range(r.value, 50 * SML_NS_PER_MS, 20 * SML_NS_PER_S); /* since when */
  close_file(&f);
  snprintf(path, sizeof path, "%s/aggregator.trace", folder);
  collect_aggregator(&w, path);
  open_file(&f, path);
  assert_true(count(&f, SML_TRACE_PENDING_SENT, &r) > 0);
  assert_int_equal(r.value, 1);
  assert_int_equal(r.rank, 0);
  assert_int_equal(count(&f, SML_TRACE_RANK_JOINED, NULL), 2);
  assert_int_equal(count(&f, SML_TRACE_JOB_STARTED, NULL), 1);
  assert_int_equal(f.trace.num_jobs, 1);
  assert_int_equal(f.trace.jobs[0].rank, SML_TRACE_NONE);
  close_file(&f);
  world_run(&w, submit_on_1);
  dump_of_rank_0(&w, "recovered.trace", &f);
  assert_true(largest(&f, SML_TRACE_SLOT_RECOVERED) > 50 * SML_NS_PER_MS);
  close_file(&f);
  sml_operation_release(early);
  world_stop(&w);
}

/* ---- failures ---- */

static char details[2][sizeof(((sml_error *)0)->detail)];

static void abort_on_1(struct rank *r) {
  sml_error error = SML_ERROR_INIT;
  if (r->rank == 1) CHECK(r, sml_job_abort(r->job, "enough") == SML_OK);
  for (uint32_t i = 0; i < 1000 && sml_job_error(r->job, &error) == SML_OK; i++) usleep(10000);
  CHECK(r, error.status == SML_ERR_ABORTED);
  memcpy(details[r->rank], error.detail, sizeof details[0]);
}

static void a_failed_job_leaves_a_trace_where_it_was_told_to(void **state) {
  (void)state;
  struct world w;
  struct file f;
  struct sml_record r;
  char path[600];
  setenv("SWITCHML_TRACE_DIR", folder, 1);
  world_init(&w, 2);
  w.job_options.name = "../a/job"; /* stays in the folder */
  world_start(&w);
  world_run(&w, reduce_thrice);
  world_run(&w, abort_on_1);
  world_stop(&w);
  assert_int_equal(count_files(path, sizeof path), 2); /* of each rank */
  for (uint32_t k = 0; k < 2; k++) {
    const char *note = strstr(details[k], " (trace: ");
    char number[16];
    snprintf(number, sizeof number, "rank%u-", k);
    assert_non_null(note);
    assert_non_null(strstr(note, number)); /* its own, and not the other's too */
    assert_null(strstr(note + 1, " (trace: "));
    snprintf(path, sizeof path, "%s", note + strlen(" (trace: "));
    path[strlen(path) - 1] = 0;
    open_file(&f, path);
    assert_int_equal(count(&f, SML_TRACE_JOB_FAILED, &r), 1);
    assert_int_equal((int64_t)r.value, SML_ERR_ABORTED);
    assert_int_equal(count(&f, SML_TRACE_OPERATION_ENDED, NULL), 6);
    close_file(&f);
  }
}

/* While nobody can have written it, the error does not name it; whoever reads the error can open what it names. */
static void fail_and_look(struct rank *r) {
  sml_error error = SML_ERROR_INIT;
  char path[600];
  const struct sml_ctl_abort failure = sml_member_failure(SML_ERR_ABORTED, "enough");
  if (r->rank == 0) return; /* or one of them would hear of the other's end first */
  pthread_mutex_lock(&r->job->lock);
  sml_job_fail_locked(r->job, &failure, true);
  const bool is_named_early = strstr(r->job->state.error.detail, "(trace: ") != NULL;
  pthread_mutex_unlock(&r->job->lock);
  CHECK(r, !is_named_early);
  CHECK(r, sml_job_error(r->job, &error) == SML_ERR_ABORTED);
  const char *note = strstr(error.detail, " (trace: ");
  CHECK(r, note != NULL, "'%s'", error.detail);
  snprintf(path, sizeof path, "%.*s", (int)(strlen(note) - 10), note + 9);
  CHECK(r, access(path, R_OK) == 0, "%s", path);
}

static void a_trace_is_there_when_the_error_names_it(void **state) {
  (void)state;
  struct world w;
  setenv("SWITCHML_TRACE_DIR", folder, 1);
  world_init(&w, 2);
  world_start(&w);
  world_run(&w, fail_and_look);
  world_stop(&w);
}

/* In a container the next run's process has the same number. */
static void an_earlier_runs_trace_stays(void **state) {
  (void)state;
  struct world w;
  struct stat st;
  char path[600];
  setenv("SWITCHML_TRACE_DIR", folder, 1);
  world_init(&w, 2);
  w.job_options.name = "again";
  for (uint32_t rank = 0; rank < 2; rank++) {
    for (uint32_t number = 0; number < 32; number++) {
      snprintf(path, sizeof path, "%s/switchml-again-rank%u-%ld-%u.trace", folder, rank, (long)getpid(), number);
      close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    }
  }
  world_start(&w);
  world_run(&w, abort_on_1);
  world_stop(&w);
  assert_int_equal(count_files(NULL, 0), 2 * 32 + 2);
  for (uint32_t k = 0; k < 2; k++) {
    const char *note = strstr(details[k], " (trace: ");
    assert_non_null(note);
    snprintf(path, sizeof path, "%.*s", (int)(strlen(note) - 10), note + 9);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > 0);
  }
}

static void nothing_is_written_unasked(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  world_start(&w);
  world_run(&w, abort_on_1);
  world_stop(&w);
  assert_int_equal(count_files(NULL, 0), 0);
  assert_null(strstr(details[0], "trace"));
}

/* A folder that is not there: the job's own error stays what it is. */
static void a_trace_that_cannot_be_written_does_no_harm(void **state) {
  (void)state;
  struct world w;
  setenv("SWITCHML_TRACE_DIR", "/no/such/folder", 1);
  world_init(&w, 2);
  world_start(&w);
  world_run(&w, abort_on_1);
  world_stop(&w);
  for (uint32_t k = 0; k < 2; k++) assert_non_null(strstr(details[k], "enough"));
}

/* ---- captures ---- */

/* Files of the folder that have these bytes. */
static uint32_t count_captures_with(const uint8_t *bytes, size_t num_bytes) {
  static uint8_t content[1 << 20];
  uint32_t num_found = 0;
  DIR *dir = opendir(folder);
  assert_non_null(dir);
  for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t length = fd < 0 ? -1 : read(fd, content, sizeof content);
    if (fd >= 0) close(fd);
    num_found += length > 0 && memmem(content, (size_t)length, bytes, num_bytes) != NULL;
  }
  closedir(dir);
  return num_found;
}

static void sum_one(struct rank *r) {
  int32_t x = 0x11223344;
  CHECK(r, allreduce(r, &x, &x, 1, SML_INT32, SML_SUM) == SML_OK && x == 0x22446688);
}

/* Callers have run the engine, and nobody calls any more. */
static void an_idle_rank_writes_what_it_captured(void **state) {
  (void)state;
  static const uint8_t sum[] = {0x22, 0x44, 0x66, 0x88};
  struct world w;
  char path[128];
  snprintf(path, sizeof path, "%s/run.pcapng", folder);
  setenv("SWITCHML_PCAP", path, 1);
  world_init(&w, 2);
  w.job_options.no_shared_memory = 1;
  world_start(&w);
  world_run(&w, sum_one);
  uint32_t num_waits = 0;
  while (count_captures_with(sum, sizeof sum) < 2 && num_waits++ < 500) usleep(10 * 1000);
  assert_int_equal(count_captures_with(sum, sizeof sum), 2);
  world_stop(&w);
  unsetenv("SWITCHML_PCAP");
}

int main(void) {
  if (mkdtemp(folder) == NULL) return 1;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(a_running_job_is_dumped, empty_folder),
      cmocka_unit_test_teardown(with_all_every_packet_is_there, empty_folder),
      cmocka_unit_test_teardown(off_means_none, empty_folder),
      cmocka_unit_test_teardown(both_ends_name_the_late_rank, empty_folder),
      cmocka_unit_test_teardown(a_failed_job_leaves_a_trace_where_it_was_told_to, empty_folder),
      cmocka_unit_test_teardown(a_trace_is_there_when_the_error_names_it, empty_folder),
      cmocka_unit_test_teardown(an_earlier_runs_trace_stays, empty_folder),
      cmocka_unit_test_teardown(nothing_is_written_unasked, empty_folder),
      cmocka_unit_test_teardown(a_trace_that_cannot_be_written_does_no_harm, empty_folder),
      cmocka_unit_test_teardown(an_idle_rank_writes_what_it_captured, empty_folder),
  };
  const int num_failed = cmocka_run_group_tests(tests, NULL, NULL);
  rmdir(folder);
  return num_failed;
}
