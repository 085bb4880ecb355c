/* SPDX-License-Identifier: Apache-2.0
 * The command line of `switchml trace`. */
#include "cli/trace/trace.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_SECONDS 1e9

enum option_key {
  KEY_JOB = 0x100,
  KEY_RANK,
  KEY_LANE,
  KEY_SLOT,
  KEY_EVENT,
  KEY_SINCE,
  KEY_UNTIL,
  KEY_JSON,
  KEY_PERFETTO,
  KEY_SUMMARY,
};

static const struct argp_option option_table[] = {
    {NULL, 0, NULL, 0, "What is shown:", 1},
    {"job", KEY_JOB, "NAME", 0, "Of this job only: its name, or the aggregator's number of it", 1},
    {"rank", KEY_RANK, "R", 0, "Of this rank's process, or about this rank", 1},
    {"lane", KEY_LANE, "L", 0, "Of this lane", 1},
    {"slot", KEY_SLOT, "S", 0, "About this slot, counted from the job's first", 1},
    {"event", KEY_EVENT, "NAME[,NAME...]", 0, "Of these names", 1},
    {"since", KEY_SINCE, "S", 0, "From S seconds after the first event on; negative: before the last one", 1},
    {"until", KEY_UNTIL, "S", 0, "Up to then, counted alike", 1},
    {NULL, 0, NULL, 0, "How:", 2},
    {"summary", KEY_SUMMARY, NULL, 0, "A few lines: who was waited for, what was dropped, what ended badly", 2},
    {"json", KEY_JSON, NULL, 0, "A JSON object a line", 2},
    {"perfetto", KEY_PERFETTO, NULL, 0, "For ui.perfetto.dev and chrome://tracing", 2},
    {0}};

struct command {
  struct sml_trace_filter filter;
  enum sml_trace_format format;
  double since_s, until_s;
  bool has_since, has_until;
  char **paths;
  uint32_t num_paths;
};

static uint32_t need_number(const struct argp_state *state, const char *what, const char *text, uint32_t max) {
  char *end;
  errno = 0;
  const unsigned long value = strtoul(text, &end, 10);
  if (text[0] < '0' || text[0] > '9' || *end != 0 || errno != 0 || value > max)
    argp_error(state, "--%s is '%s', but must be a number up to %u", what, text, max);
  return (uint32_t)value;
}

static double need_seconds(const struct argp_state *state, const char *what, const char *text) {
  char *end;
  const double value = strtod(text, &end);
  if (end == text || *end != 0 || !(value >= -MAX_SECONDS && value <= MAX_SECONDS))
    argp_error(state, "--%s is '%s', but must be seconds, like 1.5 or -0.2", what, text);
  return value;
}

/* A name that no event has is a mistake, unless a file of a later release has it: this program cannot know. */
static void add_events(const struct argp_state *state, struct sml_trace_filter *filter, char *text) {
  char *rest = NULL;
  for (char *name = strtok_r(text, ",", &rest); name != NULL; name = strtok_r(NULL, ",", &rest)) {
    uint32_t i = 0;
    while (i < SML_TRACE_NUM_EVENTS && strcmp(sml_trace_events[i].name, name) != 0) i++;
    if (i == SML_TRACE_NUM_EVENTS) argp_error(state, "--event: there is no event '%s'; switchml(1) has the list", name);
    if (filter->num_events == SML_TRACE_MAX_NAMES) argp_error(state, "--event: at most %u names", SML_TRACE_MAX_NAMES);
    filter->events[filter->num_events++] = name;
  }
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
  struct command *c = state->input;
  switch (key) {
    case KEY_JOB:
      c->filter.job = text;
      return 0;
    case KEY_RANK:
      c->filter.rank = need_number(state, "rank", text, 65535);
      return 0;
    case KEY_LANE:
      c->filter.lane = need_number(state, "lane", text, 65535);
      return 0;
    case KEY_SLOT:
      c->filter.slot = need_number(state, "slot", text, 65535);
      return 0;
    case KEY_EVENT:
      add_events(state, &c->filter, text);
      return 0;
    case KEY_SINCE:
      c->since_s = need_seconds(state, "since", text);
      c->has_since = true;
      return 0;
    case KEY_UNTIL:
      c->until_s = need_seconds(state, "until", text);
      c->has_until = true;
      return 0;
    case KEY_JSON:
      c->format = SML_TRACE_AS_JSON;
      return 0;
    case KEY_PERFETTO:
      c->format = SML_TRACE_AS_PERFETTO;
      return 0;
    case KEY_SUMMARY:
      c->format = SML_TRACE_AS_SUMMARY;
      return 0;
    case ARGP_KEY_ARGS:
      c->paths = &state->argv[state->next];
      c->num_paths = (uint32_t)(state->argc - state->next);
      return 0;
    case ARGP_KEY_NO_ARGS:
      argp_error(state, "no file");
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
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
    if (c->format == SML_TRACE_AS_JSON) is_well = sml_trace_print_json(stdout, &item);
    else sml_trace_print_line(stdout, &item);
    is_well = is_well && ferror(stdout) == 0;
  }
  return is_well;
}

static bool show(const struct command *c, struct sml_trace_merge *merge, const struct sml_trace_input *inputs,
                 uint64_t first_ns) {
  struct sml_trace_item item;
  bool is_well = true;
  if (c->format == SML_TRACE_AS_SUMMARY) {
    struct sml_trace_summary *summary = sml_trace_summary_begin();
    if (summary == NULL) return false;
    while (sml_trace_merge_next(merge, &c->filter, &item)) sml_trace_summary_add(summary, &item);
    sml_trace_summary_end(summary, stdout);
  } else if (c->format == SML_TRACE_AS_PERFETTO) {
    struct sml_trace_perfetto *perfetto = sml_trace_perfetto_begin(stdout, inputs, c->num_paths, first_ns);
    if (perfetto == NULL) return false;
    while (is_well && sml_trace_merge_next(merge, &c->filter, &item)) is_well = sml_trace_perfetto_add(perfetto, &item);
    sml_trace_perfetto_end(perfetto);
  } else {
    is_well = show_lines(c, merge);
  }
  return is_well && fflush(stdout) == 0;
}

static int run(struct command *c) {
  struct sml_trace_input *inputs = calloc(c->num_paths, sizeof *inputs);
  uint32_t num_inputs = 0;
  while (inputs != NULL && num_inputs < c->num_paths && open_input(&inputs[num_inputs], c->paths[num_inputs]))
    num_inputs++;
  bool is_well = inputs != NULL && num_inputs == c->num_paths;
  if (is_well) {
    uint64_t first_ns, last_ns;
    struct sml_trace_merge *merge = sml_trace_merge_begin(inputs, num_inputs);
    is_well = merge != NULL;
    if (is_well) (void)sml_trace_merge_range(merge, &first_ns, &last_ns);
    if (is_well && c->has_since) c->filter.since_ns = instant(c->since_s, first_ns, last_ns);
    if (is_well && c->has_until) c->filter.until_ns = instant(c->until_s, first_ns, last_ns);
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
  static const struct argp parser = {
      .options = option_table,
      .parser = parse_option,
      .args_doc = "FILE...",
      .doc = "Shows what flight recorders have kept: files of libswitchml (SWITCHML_TRACE_DIR) and switchmld "
             "(--trace-dir), merged by time."};
  struct command c = {.filter = {.rank = UINT32_MAX,
                                 .slot = UINT32_MAX,
                                 .lane = UINT32_MAX,
                                 .until_ns = UINT64_MAX}};
  static char name[] = "switchml trace";
  argv[0] = name;
  argp_err_exit_status = SML_TRACE_USAGE;
  if (argp_parse(&parser, argc, argv, 0, NULL, &c) != 0) return SML_TRACE_USAGE;
  return run(&c);
}
