/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/status/status.h"

#include <stdlib.h>
#include <unistd.h>

struct options {
  struct sml_status_options common;
  const char *job;
  bool is_json;
};

static const struct argp_option option_table[] = {
    {"json", 'j', NULL, 0, "Print one JSON object instead of the tables", 0},
    {"job", 'n', "NAME", 0, "Only the jobs of that name, with their ranks", 0},
    {0},
};

static error_t parse_option(int key, char *text, struct argp_state *state) {
  struct options *options = state->input;
  switch (key) {
    case 'j':
      options->is_json = true;
      return 0;
    case 'n':
      options->job = text;
      return 0;
    case ARGP_KEY_INIT:
      state->child_inputs[0] = &options->common;
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static int fail(const char *error) {
  fprintf(stderr, "switchml: status: %s\n", error);
  return SML_STATUS_NO_ANSWER;
}

/* With rates, if they are wanted; NULL: error says why. */
static json_t *fetch(const struct sml_status_source *source, double interval_s, char *error,
                     size_t error_bytes) {
  json_t *status = sml_status_fetch(source, error, error_bytes);
  if (!status || interval_s == 0) return status;
  usleep((useconds_t)(interval_s * 1e6));
  json_t *before = status;
  status = sml_status_fetch(source, error, error_bytes);
  if (status) sml_status_add_rates(status, before);
  json_decref(before);
  return status;
}

int sml_status_run(int argc, char **argv) {
  static const struct argp parser = {
      .options = option_table,
      .parser = parse_option,
      .children = sml_status_children,
      .args_doc = "[HOST:PORT]",
      .doc =
          "What an aggregator does: its jobs, their ranks, who is late or lost and since when."
          "\vHOST:PORT is what SWITCHML_AGGREGATOR says by default. Exit status: 0 all is well, 1 no answer, "
          "2 wrong "
          "usage, 3 a rank is late or lost, 4 there is no such job."};
  struct options options = {.common = {.interval_s = 0.3, .max_interval_s = 60, .may_be_zero = true}};
  struct sml_status_source source;
  char error[512];
  argp_err_exit_status = SML_STATUS_USAGE;
  if (argp_parse(&parser, argc, argv, 0, NULL, &options) != 0) return SML_STATUS_USAGE;
  if (!sml_status_source_open(&source, options.common.address, error, sizeof error)) {
    fail(error);
    return SML_STATUS_USAGE;
  }
  json_t *status = fetch(&source, options.common.interval_s, error, sizeof error);
  if (!status) return fail(error);
  int result = SML_STATUS_HEALTHY;
  if (options.job && !sml_status_keep_job(status, options.job)) result = SML_STATUS_NO_JOB;
  if (result == SML_STATUS_HEALTHY) result = (int)sml_status_judge(status);
  bool is_ok = true;
  if (options.is_json) {
    is_ok = json_dumpf(status, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(12)) == 0 &&
            putchar('\n') != EOF && fflush(stdout) == 0;
  } else if (result == SML_STATUS_NO_JOB) {
    fprintf(stderr, "switchml: status: no job '%s' at %s\n", options.job, source.text);
  } else {
    is_ok = sml_status_print(stdout, status, options.job != NULL, 0);
  }
  json_decref(status);
  return is_ok ? result : fail("standard output could not be written");
}
