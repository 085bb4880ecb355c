/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/evict.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/options.h"
#include "base/text.h"
#include "cli/ask/status_client.h"

#define PATIENCE_NS (5 * SML_NS_PER_S)
#define MAX_REASON_BYTES 256u

enum { FAILED = 1, USAGE = 2, NO_JOB = 4 };

struct options {
  const char *job, *address; /* as they stand */
  const char *reason;
};
#define SML_OPTIONS struct options

static const struct sml_option table[] = {
    {"reason", 'r', "TEXT", "What its ranks are told, at most 256 bytes", 0, SML_TEXT(reason)},
    {0},
};

static const char *check(void *options) {
  const struct options *o = options;
  if (strlen(o->reason) > MAX_REASON_BYTES) return "--reason: more than 256 bytes";
  if (!o->job || !o->job[0]) return "which JOB?";
  bool is_name = strlen(o->job) < SML_JOB_NAME_BYTES;
  for (const char *c = o->job; *c; c++) is_name = is_name && sml_text_is_name_byte(*c);
  return is_name ? NULL : "a job's name has 1 to 63 letters, digits or . _ : / -";
}

static bool evict(struct sml_exchange *x, const struct sml_status_source *source, const struct options *o) {
  struct sml_ctl_message m = {.kind = SML_CTL_EVICT};
  snprintf(m.u.evict.job_name, sizeof m.u.evict.job_name, "%s", o->job);
  snprintf(m.u.evict.detail, sizeof m.u.evict.detail, "%s", o->reason);
  if (!sml_exchange_open(x, source->text, &source->addr, sml_clock_ns() + PATIENCE_NS)) return false;
  if (source->key_name[0] && !sml_status_prove(x, source)) return false;
  if (!sml_exchange_say(x, &m) || !sml_exchange_hear(x, source->key_name)) return false;
  return x->message.kind == SML_CTL_EVICTED ||
         sml_exchange_fail(x, SML_TROUBLE_STRANGER, "the answer of %s makes no sense", x->text);
}

/* Asks one aggregator of a list: a job that they share is at each of them. */
static int evict_at(const char *address, const struct options *o) {
  struct sml_status_source source;
  char error[512];
  struct sml_exchange *x = calloc(1, sizeof *x);
  if (!x || !sml_status_source_open(&source, address, error, sizeof error)) {
    const int result = x ? USAGE : FAILED;
    fprintf(stderr, "switchml: evict: %s\n", x ? error : "out of memory");
    free(x);
    return result;
  }
  int result = 0;
  if (evict(x, &source, o)) {
    printf("%s: ended %u job%s '%s' of %u ranks\n", source.text, x->message.u.evicted.num_jobs,
           x->message.u.evicted.num_jobs == 1 ? "" : "s", o->job, x->message.u.evicted.num_ranks);
  } else {
    const bool is_none = x->trouble == SML_TROUBLE_REFUSED && strstr(x->error, "there is no job") != NULL;
    fprintf(stderr, "switchml: evict: %s\n", x->error);
    result = is_none ? NO_JOB : FAILED;
  }
  sml_exchange_close(x);
  free(x);
  return result;
}

int sml_evict_run(int argc, char **argv) {
  static const struct sml_option_parser parser = {
      .table = table,
      .arguments_doc = "JOB [HOST:PORT]",
      .arguments_offset = offsetof(struct options, job),
      .max_arguments = 2,
      .one_only = "one JOB and one HOST:PORT only",
      .check = check,
      .doc =
          "Ends a job at an aggregator by hand: its ranks' operations end with an error that says so."
          "\vHOST:PORT is what SWITCHML_AGGREGATOR says by default; of a list each is asked. With keys the job's is "
          "needed (SWITCHML_KEY_FILE, SWITCHML_KEY_NAME); without, it has to be on the aggregator's own host. "
          "Exit status: 0 it is ended, 1 no answer or refused, 2 wrong usage, 4 there is no such job."};
  struct options options = {.reason = ""};
  sml_options_parse(&parser, argc, argv, &options);
  const char *addresses = options.address ? options.address : getenv("SWITCHML_AGGREGATOR");
  int result = 0;
  do {
    char address[128];
    const size_t num_bytes = addresses ? strcspn(addresses, ",") : 0;
    snprintf(address, sizeof address, "%.*s", (int)num_bytes, addresses ? addresses : "");
    const int is = evict_at(address[0] ? address : NULL, &options);
    if (result == 0 || is == USAGE || (is == FAILED && result != USAGE)) result = is;
    addresses = addresses && addresses[num_bytes] == ',' ? addresses + num_bytes + 1 : NULL;
  } while (addresses);
  return fflush(stdout) == 0 ? result : FAILED;
}
