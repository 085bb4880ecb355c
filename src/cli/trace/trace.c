/* SPDX-License-Identifier: Apache-2.0
 * The command line of `switchml trace`. */
#include "cli/trace/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/options.h"

#define MAX_SECONDS 1e9

struct command {
  struct sml_trace_filter filter;
  bool is_json, is_perfetto, is_summary;
  double since_s, until_s; /* NAN: not given */
  struct sml_arguments paths;
};
#define SML_OPTIONS struct command

/* A name that no event has is a mistake, unless a file of a later release has it: this program cannot know. */
static const char *take_events(void *options, const char *text) {
  struct sml_trace_filter *filter = &((struct command *)options)->filter;
  for (const char *name = text + strspn(text, ","); *name != 0; name += strspn(name, ",")) {
    const size_t num_chars = strcspn(name, ",");
    const char *known = NULL;
    for (uint32_t i = 0; i < SML_TRACE_NUM_EVENTS && known == NULL; i++)
      if (strncmp(sml_trace_events[i].name, name, num_chars) == 0 && sml_trace_events[i].name[num_chars] == 0)
        known = sml_trace_events[i].name;
    if (known == NULL) return "there is no event of such a name; switchml(1) has the list";
    if (filter->num_events == SML_TRACE_MAX_NAMES) return "too many names";
    filter->events[filter->num_events++] = known;
    name += num_chars;
  }
  return NULL;
}

static const struct sml_option table[] = {
    {NULL, .help = "What is shown:", .group = 1},
    {"job", 0, "NAME", "Of this job only: its name, or the aggregator's number of it", 1, SML_TEXT(filter.job)},
    {"rank", 0, "R", "Of this rank's process, or about this rank", 1, SML_NUMBER(filter.rank, 0, 65535)},
    {"lane", 0, "L", "Of this lane", 1, SML_NUMBER(filter.lane, 0, 65535)},
    {"slot", 0, "S", "About this slot, counted from the job's first", 1, SML_NUMBER(filter.slot, 0, 65535)},
    {"event", 0, "NAME[,NAME...]", "Of these names", 1, SML_TAKEN_BY(take_events)},
    {"since", 0, "S", "From S seconds after the first event on; negative: before the last one", 1,
     SML_REAL(since_s, -MAX_SECONDS, MAX_SECONDS, 1)},
    {"until", 0, "S", "Up to then, counted alike", 1, SML_REAL(until_s, -MAX_SECONDS, MAX_SECONDS, 1)},
    {NULL, .help = "How:", .group = 2},
    {"summary", 0, NULL, "A few lines: who was waited for, what was dropped, what ended badly", 2,
     SML_FLAG(is_summary)},
    {"json", 0, NULL, "A JSON object a line", 2, SML_FLAG(is_json)},
    {"perfetto", 0, NULL, "For ui.perfetto.dev and chrome://tracing", 2, SML_FLAG(is_perfetto)},
    {0}};

static const char *check(void *options) {
  return ((const struct command *)options)->paths.num == 0 ? "no file" : NULL;
}

/* ---- files ---- */

static bool complain(const char *path, const char *why) {
  fprintf(stderr, "switchml trace: %s: %s\n", path, why);
  return false;
}

static bool open_input(struct sml_trace_input *input, const char *path) {
  struct stat status;
  char error[128];
  input->path = path;
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return complain(path, strerror(errno));
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size <= 0) {
    close(fd);
    return complain(path, "it is no trace of SwitchML");
  }
  input->num_bytes = (size_t)status.st_size;
  input->bytes = mmap(NULL, input->num_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  if (input->bytes == MAP_FAILED) return complain(path, strerror(errno));
  if (!sml_trace_open(&input->file, input->bytes, input->num_bytes, error, sizeof error)) {
    munmap(input->bytes, input->num_bytes);
    return complain(path, error);
  }
  if (input->file.num_cut > 0)
    fprintf(stderr, "switchml trace: %s: it is cut off: %llu events are missing\n", path,
            (unsigned long long)input->file.num_cut);
  return true;
}

static void close_inputs(struct sml_trace_input *inputs, uint32_t num_inputs) {
  for (uint32_t i = 0; i < num_inputs; i++) {
    sml_trace_close(&inputs[i].file);
    munmap(inputs[i].bytes, inputs[i].num_bytes);
  }
  free(inputs);
}

/* ---- showing ---- */

static uint64_t instant(double seconds, uint64_t first_ns, uint64_t last_ns) {
  const uint64_t distance_ns = (uint64_t)llround(fabs(seconds) * 1e9);
  if (signbit(seconds)) return last_ns - sml_min_u64(distance_ns, last_ns);
  return first_ns + sml_min_u64(distance_ns, UINT64_MAX - first_ns);
}

static bool show_lines(const struct command *c, struct sml_trace_merge *merge) {
  struct sml_trace_item item;
  bool is_well = true;
  while (is_well && sml_trace_merge_next(merge, &c->filter, &item)) {
    if (c->is_json) is_well = sml_trace_print_json(stdout, &item);
    else sml_trace_print_line(stdout, &item);
    is_well = is_well && ferror(stdout) == 0;
  }
  return is_well;
}

static bool show(const struct command *c, struct sml_trace_merge *merge, const struct sml_trace_input *inputs,
                 uint64_t first_ns) {
  struct sml_trace_item item;
  bool is_well = true;
  if (c->is_summary) {
    struct sml_trace_summary *summary = sml_trace_summary_begin();
    if (summary == NULL) return false;
    while (sml_trace_merge_next(merge, &c->filter, &item)) sml_trace_summary_add(summary, &item);
    sml_trace_summary_end(summary, stdout);
  } else if (c->is_perfetto) {
    struct sml_trace_perfetto *perfetto = sml_trace_perfetto_begin(stdout, inputs, c->paths.num, first_ns);
    if (perfetto == NULL) return false;
    while (is_well && sml_trace_merge_next(merge, &c->filter, &item)) is_well = sml_trace_perfetto_add(perfetto, &item);
    sml_trace_perfetto_end(perfetto);
  } else {
    is_well = show_lines(c, merge);
  }
  return is_well && fflush(stdout) == 0;
}

static int run(struct command *c) {
  struct sml_trace_input *inputs = calloc(c->paths.num, sizeof *inputs);
  uint32_t num_inputs = 0;
  while (inputs != NULL && num_inputs < c->paths.num && open_input(&inputs[num_inputs], c->paths.texts[num_inputs]))
    num_inputs++;
  bool is_well = inputs != NULL && num_inputs == c->paths.num;
  if (is_well) {
    uint64_t first_ns, last_ns;
    struct sml_trace_merge *merge = sml_trace_merge_begin(inputs, num_inputs);
    is_well = merge != NULL;
    if (is_well) (void)sml_trace_merge_range(merge, &first_ns, &last_ns);
    if (is_well && !isnan(c->since_s)) c->filter.since_ns = instant(c->since_s, first_ns, last_ns);
    if (is_well && !isnan(c->until_s)) c->filter.until_ns = instant(c->until_s, first_ns, last_ns);
    if (is_well && !show(c, merge, inputs, first_ns)) {
      /* Who reads may have seen enough. */
      is_well = errno == EPIPE || complain("output", strerror(errno));
    }
    sml_trace_merge_end(merge);
  }
  if (inputs != NULL) close_inputs(inputs, num_inputs);
  return is_well ? 0 : SML_TRACE_FAILED;
}

int sml_trace_main(int argc, char **argv) {
  static const struct sml_option_parser parser = {
      .table = table,
      .arguments_doc = "FILE...",
      .arguments_offset = offsetof(struct command, paths),
      .max_arguments = UINT32_MAX,
      .check = check,
      .doc =
          "Shows what flight recorders have kept: files of libswitchml (SWITCHML_TRACE_DIR) and switchmld "
          "(--trace-dir), merged by time."};
  struct command c = {.filter = {.rank = UINT32_MAX, .slot = UINT32_MAX, .lane = UINT32_MAX, .until_ns = UINT64_MAX},
                      .since_s = NAN,
                      .until_s = NAN};
  static char name[] = "switchml trace";
  argv[0] = name;
  sml_options_parse(&parser, argc, argv, &c);
  return run(&c);
}
