/* SPDX-License-Identifier: Apache-2.0
 * What a context and a job run with: options of the caller and the environment. Input: numbers for the options, then
 * lines, each a letter that says which variable and its value. Names are not resolved (fuzz/numeric.c). */
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz/fuzz.h"
#include "meet/job_settings.h"
#include "process/settings.h"

static const struct {
  char letter;
  const char *name;
} variables[] = {{'t', "SWITCHML_THREADS"},      {'n', "SWITCHML_NO_OFFLOAD"}, {'k', "SWITCHML_KERNELS"},
                 {'f', "SWITCHML_FAULTS"},       {'d', "SWITCHML_DEBUG"},      {'a', "SWITCHML_AGGREGATOR"},
                 {'c', "SWITCHML_CHECK"},        {'r', "SWITCHML_RETRY"},      {'K', "SWITCHML_KEY_NAME"},
                 {'p', "SWITCHML_POLL"},         {'w', "SWITCHML_CONGESTION"}, {'b', "SWITCHML_FLOAT_BITS"},
                 {'D', "SWITCHML_FLOAT64_BITS"}, {'E', "SWITCHML_EXACT"},      {'l', "SWITCHML_LEASE"}};
#define KEY_FILE_LETTER 'F' /* its value is a line of the key file; several make several lines */
#define JOB_NAME_LETTER 'j'

struct lines {
  char key_file[64]; /* path */
  int key_file_fd;   /* in memory; -1: none */
  char *job_name;    /* NULL: the default */
};

static void add_key_line(struct lines *lines, const char *value) {
  if (lines->key_file_fd < 0) {
    lines->key_file_fd = memfd_create("keys", 0);
    CHECK(lines->key_file_fd >= 0 && fchmod(lines->key_file_fd, 0600) == 0, "no memory file");
    (void)snprintf(lines->key_file, sizeof lines->key_file, "/proc/self/fd/%d", lines->key_file_fd);
  }
  CHECK(write(lines->key_file_fd, value, strlen(value)) >= 0 && write(lines->key_file_fd, "\n", 1) == 1, "write");
}

static void take_line(struct lines *lines, const char *line) {
  if (line[0] == KEY_FILE_LETTER) add_key_line(lines, line + 1);
  if (line[0] == JOB_NAME_LETTER) {
    free(lines->job_name);
    lines->job_name = fuzz_text(line + 1, strlen(line + 1));
  }
  for (size_t i = 0; i < SML_ARRAY_LEN(variables); i++)
    if (line[0] == variables[i].letter) CHECK(setenv(variables[i].name, line + 1, 1) == 0, "setenv");
}

static void take_lines(struct lines *lines, struct fuzz_input *in) {
  char *text = fuzz_text(in->at, (size_t)(in->end - in->at)), *rest = text;
  for (size_t i = 0; i < SML_ARRAY_LEN(variables); i++) CHECK(unsetenv(variables[i].name) == 0, "unsetenv");
  for (char *line; (line = strsep(&rest, "\n")) != NULL;) take_line(lines, line);
  if (lines->key_file_fd >= 0) CHECK(setenv("SWITCHML_KEY_FILE", lines->key_file, 1) == 0, "setenv");
  else CHECK(unsetenv("SWITCHML_KEY_FILE") == 0, "unsetenv");
  free(text);
}

static void check_refusal(sml_status status) {
  const bool is_of_these = status == SML_ERR_INVALID_ARGUMENT || status == SML_ERR_UNSUPPORTED ||
                           status == SML_ERR_NOT_CONFIGURED || status == SML_ERR_KEY;
  CHECK(is_of_these, "status %d: %s", (int)status, sml_error_detail());
  CHECK(sml_error_detail()[0] != 0, "no reason given for status %d", (int)status);
}

static void check_context(struct fuzz_input *in) {
  sml_context_options options = SML_CONTEXT_OPTIONS_INIT;
  struct sml_settings s;
  options.num_threads = fuzz_near(in, 0);
  options.num_operations = fuzz_near(in, 100);
  options.no_offload = fuzz_u8(in) & 1;
  options.struct_bytes -= fuzz_near(in, 0);
  const sml_status status = sml_settings_read(&options, &s);
  if (status != SML_OK) {
    check_refusal(status);
    return;
  }
  CHECK(s.num_threads >= 1 && s.num_threads <= 16, "%u threads", s.num_threads);
  CHECK(sml_is_pow2(s.num_operations) && s.num_operations <= 65536, "%u operations", s.num_operations);
  CHECK(s.kernels != NULL && s.rx_buffer_bytes > 0, " ");
  CHECK(s.faults.loss >= 0 && s.faults.loss <= 1 && s.faults.corrupt >= 0 && s.faults.corrupt <= 1, "faults");
  CHECK(s.has_faults == sml_faults_any(&s.faults), "faults");
  CHECK(s.log_level <= SML_LIB_LOG_TRACE, "%d", (int)s.log_level);
}

static void check_job(struct fuzz_input *in, const char *job_name) {
  sml_job_options options = SML_JOB_OPTIONS_INIT;
  struct sml_job_settings s;
  options.world_size = fuzz_near(in, 2);
  options.rank = fuzz_near(in, 1);
  options.num_slots = fuzz_near(in, 0);
  options.max_datagram_bytes = fuzz_near(in, 0);
  options.check = fuzz_near(in, 0);
  options.name = job_name;
  options.struct_bytes -= fuzz_near(in, 0) % sizeof options;
  sml_status status = sml_job_settings_read(&options, &s);
  if (status == SML_OK) status = sml_job_settings_check(&s);
  if (status != SML_OK) {
    check_refusal(status);
    return;
  }
  const sml_job_options *o = &s.options;
  CHECK(o->world_size >= 1 && o->world_size <= SML_CTL_MAX_WORLD_SIZE && o->rank < o->world_size, "rank");
  CHECK((o->num_slots == 0 || sml_is_pow2(o->num_slots)) && o->num_slots <= 32768, "%u slots", o->num_slots);
  CHECK(o->max_datagram_bytes >= 288 && o->max_datagram_bytes <= 65507, "%u", o->max_datagram_bytes);
  CHECK(s.name[0] != 0 && strnlen(s.name, sizeof s.name) < sizeof s.name, "job name");
  CHECK((s.features & ~SML_KNOWN_FEATURES) == 0, "features %x", s.features);
  CHECK(((s.features & SML_FEATURE_RETRY) != 0) == (o->retry_ns != 0), "retry");
  CHECK((s.key_name[0] != 0) == ((s.key.k0 | s.key.k1) != 0), "key");
  if (o->world_size > 1) CHECK(s.places.num_shards >= 1, "aggregators");
  for (uint32_t i = 0; o->world_size > 1 && i < s.places.num_shards; i++)
    CHECK(sml_addr_port(&s.places.shards[i].addrs[0]) != 0, "an aggregator's port");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  struct fuzz_input numbers = {data, data + sml_min_u64(num_bytes, 16)}, in = {numbers.end, data + num_bytes};
  struct lines lines = {.key_file_fd = -1};
  take_lines(&lines, &in);
  check_context(&numbers);
  check_job(&numbers, lines.job_name);
  if (lines.key_file_fd >= 0) (void)close(lines.key_file_fd);
  free(lines.job_name);
  return 0;
}
