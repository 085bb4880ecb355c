/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "core/drop.h"
#include "trace/reader.h"

#define RECORDS 5u

struct written {
  char folder[64], path[96];
  uint8_t bytes[65536];
  size_t num_bytes;
};

static struct sml_record make_record(uint32_t i) {
  return (struct sml_record){.time_ns = 1000 + i,
                             .event = SML_TRACE_PACKET_DROPPED,
                             .job = 3,
                             .slot = (uint16_t)(40000 + i),
                             .rank = 2,
                             .phase = UINT32_MAX - i,
                             .chunk = i,
                             .value = SML_DROP_BAD_KEY};
}

static void fill(struct sml_trace_dump *dump) {
  struct sml_recorder *r = sml_recorder_create(&(struct sml_recorder_options){SML_TRACE_NOTABLE, 16});
  for (uint32_t i = 0; i < RECORDS; i++) sml_recorder_put(r, make_record(i));
  *dump = (struct sml_trace_dump){.program = "dump_test", .reason = "to see"};
  assert_true(sml_trace_add_source(dump, r, 0, "lane %u", 0u));
  assert_true(sml_trace_add_source(dump, r, 1, "lane %u", 1u));
  assert_true(sml_trace_add_source(dump, &sml_recorder_none, SML_TRACE_NONE, "nothing"));
  assert_true(sml_trace_add_job(dump, &(struct sml_trace_job){.number = 3, .epoch = 9, .rank = 1, .name = "train"}));
  assert_true(sml_trace_add_job(dump, &(struct sml_trace_job){.number = 4, .rank = SML_TRACE_NONE, .name = "b"}));
  assert_true(sml_trace_add_job(dump, &(struct sml_trace_job){.number = 5, .rank = SML_TRACE_NONE, .name = "c"}));
  sml_recorder_destroy(r);
}

static int set_up(void **state) {
  umask(0); /* whatever it is: nobody else reads them */
  struct written *w = calloc(1, sizeof *w);
  snprintf(w->folder, sizeof w->folder, "%s", "/tmp/sml-dump-test-XXXXXX");
  assert_non_null(mkdtemp(w->folder));
  snprintf(w->path, sizeof w->path, "%s/a.trace", w->folder);
  struct sml_trace_dump dump;
  char error[256] = "";
  fill(&dump);
  assert_int_equal(sml_trace_write(&dump, w->path, error, sizeof error), 0);
  assert_string_equal(error, "");
  sml_trace_clear(&dump);
  struct stat st;
  assert_int_equal(stat(w->path, &st), 0);
  assert_int_equal(st.st_mode & 07777, 0600);
  const int fd = open(w->path, O_RDONLY | O_CLOEXEC);
  w->num_bytes = (size_t)read(fd, w->bytes, sizeof w->bytes);
  close(fd);
  *state = w;
  return 0;
}

static int tear_down(void **state) {
  struct written *w = *state;
  unlink(w->path);
  assert_int_equal(rmdir(w->folder), 0); /* nothing else was left there */
  free(w);
  return 0;
}

static void assert_text(struct sml_trace_text text, const char *expected) {
  assert_int_equal(text.num_bytes, strlen(expected));
  assert_memory_equal(text.bytes, expected, text.num_bytes);
}

static void test_what_was_written_is_read(void **state) {
  struct written *w = *state;
  struct sml_trace_file f;
  char error[256];
  assert_true(sml_trace_open(&f, w->bytes, w->num_bytes, error, sizeof error));
  assert_text(f.program, "dump_test");
  assert_text(f.reason, "to see");
  assert_text(f.release, SML_VERSION_TEXT);
  assert_int_equal(f.pid, getpid());
  assert_int_equal(f.num_events, SML_TRACE_NUM_EVENTS);
  assert_text(f.events[SML_TRACE_PENDING_SENT].name, "pending_sent");
  assert_text(f.events[SML_TRACE_PENDING_SENT].value, "missing");
  assert_text(f.drops[SML_DROP_BAD_KEY], "BAD_KEY");
  assert_int_equal(f.num_jobs, 3);
  assert_text(f.jobs[0].name, "train");
  assert_int_equal(f.jobs[2].rank, SML_TRACE_NONE);
  assert_int_equal(f.num_sources, 3);
  assert_int_equal(f.sources[2].num_records, 0);
  assert_int_equal(f.num_cut, 0);
  for (uint32_t s = 0; s < 2; s++) {
    assert_int_equal(f.sources[s].num_records, RECORDS);
    for (uint32_t i = 0; i < RECORDS; i++) {
      struct sml_record r;
      const struct sml_record expected = make_record(i);
      sml_trace_read(&f, &f.sources[s], i, &r);
      assert_memory_equal(&r, &expected, sizeof r);
    }
  }
  assert_true(sml_trace_realtime_ns(&f, f.monotonic_ns) == f.realtime_ns);
  sml_trace_close(&f);
}

static const char *name_at(const struct sml_trace_file *f, uint16_t number, uint64_t time_ns, uint64_t epoch) {
  static char name[32];
  const struct sml_record r = {.time_ns = time_ns,
                               .job = number,
                               .value = epoch,
                               .event = epoch ? SML_TRACE_JOB_OPENED : SML_TRACE_PENDING_SENT};
  const struct sml_trace_file_job *job = sml_trace_find_job(f, &r);
  snprintf(name, sizeof name, "%.*s", job != NULL ? (int)job->name.num_bytes : 1, job != NULL ? job->name.bytes : "-");
  return name;
}

/* An event is of the job that had the number at that time, whatever came later. */
static void test_numbers_are_used_again(void **state) {
  struct written *w = *state;
  static uint8_t bytes[65536];
  char path[128], error[256] = "";
  struct sml_trace_dump dump = {.program = "dump_test", .reason = "again"};
  struct sml_trace_file f;
  const struct sml_trace_job jobs[] = {{.number = 7, .epoch = 11, .since_ns = 1000, .name = "idle-carol"},
                                       {.number = 8, .epoch = 12, .since_ns = 1500, .name = "other"},
                                       {.number = 7, .epoch = 13, .since_ns = 3000, .name = "tr"}};
  for (size_t i = 0; i < SML_ARRAY_LEN(jobs); i++) assert_true(sml_trace_add_job(&dump, &jobs[i]));
  snprintf(path, sizeof path, "%s/again.trace", w->folder);
  assert_int_equal(sml_trace_write(&dump, path, error, sizeof error), 0);
  sml_trace_clear(&dump);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t num_bytes = read(fd, bytes, sizeof bytes);
  close(fd);
  unlink(path);
  assert_true(sml_trace_open(&f, bytes, (size_t)num_bytes, error, sizeof error));
  assert_string_equal(name_at(&f, 7, 2000, 0), "idle-carol");
  assert_string_equal(name_at(&f, 7, 2999, 0), "idle-carol");
  assert_string_equal(name_at(&f, 7, 3000, 0), "tr");
  assert_string_equal(name_at(&f, 7, 2990, 13), "tr"); /* its engine was ahead of the note */
  assert_string_equal(name_at(&f, 8, 5000, 0), "other");
  assert_string_equal(name_at(&f, 7, 999, 0), "-"); /* of one before that, whose name is gone */
  assert_string_equal(name_at(&f, 9, 5000, 0), "-");
  sml_trace_close(&f);
}

/* Cut off anywhere: the header must be whole, and of the records those are there that are. */
static void test_cut_off(void **state) {
  struct written *w = *state;
  const size_t header_bytes = sml_load_be32(w->bytes + 12);
  for (size_t n = 0; n < w->num_bytes; n++) {
    uint8_t *copy = malloc(n + 1); /* its end is the sanitizer's */
    memcpy(copy, w->bytes, n);
    struct sml_trace_file f;
    char error[256] = "";
    const bool is_open = sml_trace_open(&f, copy, n, error, sizeof error);
    assert_int_equal(is_open, n >= header_bytes);
    if (is_open) {
      const uint64_t num_there = (n - header_bytes) / SML_RECORD_BYTES;
      assert_int_equal(f.sources[0].num_records + f.sources[1].num_records, num_there);
      assert_int_equal(f.num_cut, 2 * RECORDS - num_there);
      sml_trace_close(&f);
    } else {
      assert_string_not_equal(error, "");
    }
    free(copy);
  }
}

static void test_garbage_and_other_versions(void **state) {
  struct written *w = *state;
  struct sml_trace_file f;
  char error[256];
  assert_false(sml_trace_open(&f, (const uint8_t *)"hello, world, this is text", 26, error, sizeof error));
  assert_string_equal(error, "it is no trace of SwitchML");
  w->bytes[9] = 2;
  assert_false(sml_trace_open(&f, w->bytes, w->num_bytes, error, sizeof error));
  assert_non_null(strstr(error, "version 2"));
  w->bytes[9] = 1;
  w->bytes[11] = 31; /* bytes of a record */
  assert_false(sml_trace_open(&f, w->bytes, w->num_bytes, error, sizeof error));
  w->bytes[11] = 32;
  struct sml_prng prng = {.state = 7};
  for (uint32_t i = 0; i < 20000; i++) { /* one wrong byte in the header: whatever it is, nothing breaks */
    const size_t at = (size_t)sml_prng_below(&prng, sml_load_be32(w->bytes + 12));
    const uint8_t before = w->bytes[at];
    w->bytes[at] = (uint8_t)sml_prng_next(&prng);
    if (sml_trace_open(&f, w->bytes, w->num_bytes, error, sizeof error)) {
      for (uint32_t s = 0; s < f.num_sources; s++) {
        struct sml_record r;
        for (uint32_t k = 0; k < f.sources[s].num_records; k++) sml_trace_read(&f, &f.sources[s], k, &r);
      }
      sml_trace_close(&f);
    }
    w->bytes[at] = before;
  }
}

/* A later release may add to header and records: both say how long they are. */
static void test_what_a_newer_writer_adds_is_skipped(void **state) {
  struct written *w = *state;
  const size_t header_bytes = sml_load_be32(w->bytes + 12), added = 6, record_bytes = SML_RECORD_BYTES + 8;
  uint8_t *newer = calloc(1, w->num_bytes + added + 2 * RECORDS * 8);
  memcpy(newer, w->bytes, header_bytes);
  sml_store_be32(newer + 12, (uint32_t)(header_bytes + added));
  sml_store_be16(newer + 10, (uint16_t)record_bytes);
  for (uint32_t i = 0; i < 2 * RECORDS; i++)
    memcpy(newer + header_bytes + added + i * record_bytes, w->bytes + header_bytes + i * SML_RECORD_BYTES,
           SML_RECORD_BYTES);
  struct sml_trace_file f;
  char error[256];
  assert_true(sml_trace_open(&f, newer, w->num_bytes + added + 2 * RECORDS * 8, error, sizeof error));
  struct sml_record r;
  const struct sml_record expected = make_record(RECORDS - 1);
  sml_trace_read(&f, &f.sources[1], RECORDS - 1, &r);
  assert_memory_equal(&r, &expected, sizeof r);
  sml_trace_close(&f);
  free(newer);
}

static void test_a_file_that_cannot_be_written(void **state) {
  struct written *w = *state;
  struct sml_trace_dump dump;
  char error[256], path[128], long_path[5000];
  fill(&dump);
  snprintf(path, sizeof path, "%s/no/such/folder.trace", w->folder);
  assert_true(sml_trace_write(&dump, path, error, sizeof error) < 0);
  assert_non_null(strstr(error, "No such file"));
  memset(long_path, 'a', sizeof long_path - 1);
  long_path[sizeof long_path - 1] = 0;
  assert_true(sml_trace_write(&dump, long_path, error, sizeof error) < 0);
  snprintf(path, sizeof path, "%s/folder", w->folder);
  assert_int_equal(mkdir(path, 0700), 0); /* the last step fails: nothing is left beside it */
  assert_true(sml_trace_write(&dump, path, error, sizeof error) < 0);
  assert_int_equal(rmdir(path), 0);
  struct stat s;
  assert_int_equal(mkfifo(path, 0600), 0); /* as /dev/null would be: who may replace it does not mean to */
  assert_true(sml_trace_write(&dump, path, error, sizeof error) < 0);
  assert_non_null(strstr(error, "not regular"));
  assert_true(stat(path, &s) == 0 && S_ISFIFO(s.st_mode));
  assert_int_equal(unlink(path), 0);
  assert_int_equal(sml_trace_write(&dump, w->path, error, sizeof error), 0); /* over the one that is there */
  sml_trace_clear(&dump);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_what_was_written_is_read, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_cut_off, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_numbers_are_used_again, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_garbage_and_other_versions, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_what_a_newer_writer_adds_is_skipped, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_a_file_that_cannot_be_written, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
