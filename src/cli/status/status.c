/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/status/status.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/options.h"

#define MAX_LOOKS 5u /* for rates, where a busy daemon gives the same answer again */

struct options {
  const char *address; /* NULL: SWITCHML_AGGREGATOR */
  const char *job;
  double interval_s; /* 0: it asks once */
  bool is_json;
};
#define SML_OPTIONS struct options

static const struct sml_option table[] = {
    {"json", 'j', NULL, "Print one JSON object instead of the tables", 0, SML_FLAG(is_json)},
    {"job", 'n', "NAME", "Only the jobs of that name, with their ranks", 0, SML_TEXT(job)},
    {"interval", 'i', "S", "Seconds over which rates are taken: 0.3 to 60, or 0 for none. Default 0.3", 0,
     SML_REAL(interval_s, 0, 60, 1)},
    {0},
};

static const char *check(void *options) {
  const struct options *o = options;
  return o->interval_s > 0 && o->interval_s < 0.3 ? "--interval must be 0, or from 0.3 to 60" : NULL;
}

static int fail(const char *error) {
  fprintf(stderr, "switchml: status: %s\n", error);
  return SML_STATUS_NO_ANSWER;
}

/* With rates, if they are wanted; NULL: error says why. */
static json_t *fetch(const struct sml_status_source *source, double interval_s, char *error, size_t error_bytes) {
  json_t *status = sml_status_fetch(source, error, error_bytes);
  if (!status || interval_s == 0) return status;
  json_t *before = status;
  for (uint32_t i = 0; i < MAX_LOOKS; i++) {
    if (i > 0) json_decref(status);
    usleep((useconds_t)(interval_s * 1e6));
    status = sml_status_fetch(source, error, error_bytes);
    if (!status || sml_status_add_rates(status, before)) break;
  }
  json_decref(before);
  return status;
}

int sml_status_run(int argc, char **argv) {
  static const struct sml_option_parser parser = {
      .table = table,
      .arguments_doc = "[HOST:PORT]",
      .arguments_offset = offsetof(struct options, address),
      .max_arguments = 1,
      .one_only = "one HOST:PORT only",
      .check = check,
      .doc =
          "What an aggregator does: its jobs, their ranks, who is late or lost and since when."
          "\vHOST:PORT is what SWITCHML_AGGREGATOR says by default. Exit status: 0 all is well, 1 no answer, 2 wrong "
          "usage, 3 a rank is late or lost, 4 there is no such job."};
  struct options options = {.interval_s = 0.3};
  struct sml_status_source source;
  char error[512];
  sml_options_parse(&parser, argc, argv, &options);
  if (!sml_status_source_open(&source, options.address, error, sizeof error)) {
    fail(error);
    return SML_STATUS_USAGE;
  }
  json_t *status = fetch(&source, options.interval_s, error, sizeof error);
  if (!status) return fail(error);
  int result = SML_STATUS_HEALTHY;
  if (options.job && !sml_status_keep_job(status, options.job)) result = SML_STATUS_NO_JOB;
  if (result == SML_STATUS_HEALTHY) result = (int)sml_status_judge(status);
  bool is_ok = true;
  if (options.is_json) {
    is_ok = json_dumpf(status, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(12)) == 0 && putchar('\n') != EOF &&
            fflush(stdout) == 0;
  } else if (result == SML_STATUS_NO_JOB) {
    fprintf(stderr, "switchml: status: no job '%s' at %s\n", options.job, source.text);
  } else {
    is_ok = sml_status_print(stdout, status, options.job != NULL, 0);
  }
  json_decref(status);
  return is_ok ? result : fail("standard output could not be written");
}
