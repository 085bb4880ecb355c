/* SPDX-License-Identifier: Apache-2.0
 * `switchml conform`: plays the conformance vectors at a live aggregator. */
#include "cli/conform/conform.h"

#include <jansson.h>
#include <stdlib.h>

#include "base/options.h"
#include "base/text.h"
#include "cli/conform/live.h"
#include "cli/ask/status_client.h"
#include "ctl/message.h"

struct options {
  const char *address, *file, *only; /* NULL: SWITCHML_AGGREGATOR; those built in; all */
  bool is_json, is_list, is_quiet;
  uint32_t num_tries, chunk_bytes;
  uint64_t patience_ns;
};
#define SML_OPTIONS struct options

struct run {
  struct options options;
  struct sml_conform_suite suite;
  struct sml_status_source source;
  struct sml_conform_stage *stage;
  bool is_switch;
  uint32_t num_passed, num_failed, num_skipped;
  json_t *vectors;
};

static const struct sml_option table[] = {
    {"json", 'j', NULL, "Print one JSON object instead of the table", 0, SML_FLAG(is_json)},
    {"quiet", 'q', NULL, "Of the table only what failed, and the last line", 0, SML_FLAG(is_quiet)},
    {"list", 'l', NULL, "Print what vectors there are, and play none", 0, SML_FLAG(is_list)},
    {"only", 'o', "NAME,...", "Only vectors, or topics, of these names", 0, SML_TEXT(only)},
    {"vectors", 'f', "FILE", "Vectors of a file, instead of those built in", 0, SML_TEXT(file)},
    {"tries", 't', "N",
     "How often a vector is tried until it passes, 1 to 100; on a network that loses packets. Default: 3", 0,
     SML_NUMBER(num_tries, 1, 100)},
    {"chunk", 'c', "BYTES", "Size of the chunks to ask for, a multiple of 4 from 256 to 8192. Default: 256", 0,
     SML_NUMBER(chunk_bytes, 256, 8192)},
    {"timeout", 'w', "S", "Seconds to wait for an answer of the control port and for echoes, 0.1 to 60. Default: 2", 0,
     SML_SECONDS(patience_ns, 0.1, 60)},
    {0},
};

static const char *check(void *options) {
  return ((const struct options *)options)->chunk_bytes % 4 != 0 ? "--chunk must be a multiple of 4" : NULL;
}

static int fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int fail(const char *format, ...) {
  va_list args;
  va_start(args, format);
  fprintf(stderr, "switchml: conform: ");
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  return SML_CONFORM_EXIT_BROKEN;
}

/* ---- vectors ---- */

static bool read_file(struct run *run, char *error, size_t error_bytes) {
  FILE *file = fopen(run->options.file, "rb");
  char *text = file ? malloc(16 << 20) : NULL;
  const size_t num_bytes = text ? fread(text, 1, 16 << 20, file) : 0;
  const bool is_read = text && !ferror(file) && num_bytes > 0;
  if (!is_read) snprintf(error, error_bytes, "cannot be read");
  const bool is_ok = is_read && sml_conform_read(&run->suite, text, num_bytes, error, error_bytes);
  free(text);
  if (file) fclose(file);
  return is_ok;
}

static bool read_vectors(struct run *run) {
  char error[256];
  if (run->options.file) {
    if (read_file(run, error, sizeof error)) return true;
    fail("%s: %s", run->options.file, error);
    return false;
  }
  if (sml_conform_read(&run->suite, (const char *)sml_conform_ordinary, sml_conform_ordinary_bytes, error,
                       sizeof error) &&
      sml_conform_read(&run->suite, (const char *)sml_conform_switch, sml_conform_switch_bytes, error, sizeof error))
    return true;
  fail("built-in vectors: %s", error);
  return false;
}

static bool is_chosen(const struct run *run, const struct sml_conform_vector *v) {
  const char *only = run->options.only;
  return !only || sml_text_lists(only, v->name) || sml_text_lists(only, v->topic);
}

static int list_vectors(const struct run *run) {
  for (uint32_t i = 0; i < run->suite.num_vectors; i++) {
    const struct sml_conform_vector *v = &run->suite.vectors[i];
    if (is_chosen(run, v))
      printf("%-8s  %-12s  %-34s  %s\n", v->is_switch ? "switch" : "ordinary", v->topic, v->name, v->about);
  }
  return fflush(stdout) == 0 ? SML_CONFORM_EXIT_PASSED : fail("standard output could not be written");
}

/* NULL: it applies. */
static const char *reason_to_skip(const struct run *run, const struct sml_conform_vector *v) {
  const bool is_keyed = run->source.key_name[0] != 0;
  if (v->needs & SML_NEED_FIRST_PHASE) return "a live aggregator begins with a phase of its own";
  if ((v->needs & SML_NEED_KEY) && !is_keyed) return "there is no key";
  if ((v->needs & SML_NEED_NO_KEY) && is_keyed) return "there is a key";
  return NULL;
}

/* ---- playing ---- */

static void note(struct run *run, const struct sml_conform_vector *v, const struct sml_conform_outcome *o,
                 uint32_t num_tries) {
  static const char *const names[] = {"passed", "FAILED", "skipped", "FAILED"};
  const bool is_failed = o->result == SML_CONFORM_FAILED || o->result == SML_CONFORM_BROKEN;
  run->num_passed += o->result == SML_CONFORM_PASSED;
  run->num_skipped += o->result == SML_CONFORM_SKIPPED;
  run->num_failed += is_failed;
  if (run->options.is_json) {
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:i, s:i}", "name", v->name, "topic", v->topic, "result",
                  is_failed ? "failed" : names[o->result], "steps", (int)v->num_steps, "tries", (int)num_tries);
    if (is_failed) json_object_set_new(object, "step", json_integer(o->step));
    if (is_failed) json_object_set_new(object, "expected", json_string(o->expected));
    if (o->result != SML_CONFORM_PASSED) json_object_set_new(object, is_failed ? "seen" : "why", json_string(o->seen));
    json_array_append_new(run->vectors, object);
    return;
  }
  if (run->options.is_quiet && !is_failed) return;
  printf("%-12s %-34s %4u steps  %s", v->topic, v->name, v->num_steps, names[o->result]);
  if (o->result == SML_CONFORM_SKIPPED) printf(": %s", o->seen);
  if (o->result == SML_CONFORM_PASSED && num_tries > 1) printf(" at try %u", num_tries);
  printf("\n");
  if (is_failed)
    printf("  step %u, of %u tries\n  expected %s\n  seen     %s\n", o->step, num_tries, o->expected, o->seen);
}

/* False: no job can be made any more. */
static bool play(struct run *run, const struct sml_conform_vector *v) {
  struct sml_conform_outcome o = {.result = SML_CONFORM_SKIPPED};
  const char *why = reason_to_skip(run, v);
  uint32_t num_tries = 0;
  if (why) snprintf(o.seen, sizeof o.seen, "%s", why);
  while (!why && num_tries < run->options.num_tries) {
    num_tries++;
    sml_conform_play(run->stage, v, &o);
    if (o.result == SML_CONFORM_PASSED || o.result == SML_CONFORM_SKIPPED) break;
  }
  const bool is_refused = o.result == SML_CONFORM_BROKEN && o.step == 0;
  if (is_refused && (v->needs & (SML_NEED_NARROW | SML_NEED_ONE_WAY)) != 0) {
    o.result = SML_CONFORM_SKIPPED; /* an aggregator need not know such jobs */
  } else if (is_refused) {
    fail("%s: %s", v->name, o.seen);
    return false;
  }
  note(run, v, &o, num_tries);
  return true;
}

static int print_end(struct run *run) {
  const char *family = run->is_switch ? "switch" : "ordinary";
  bool is_ok;
  if (run->options.is_json) {
    json_t *report = json_pack("{s:s, s:s, s:b, s:i, s:i, s:i, s:O}", "aggregator", run->source.text, "family", family,
                               "keyed", run->source.key_name[0] != 0, "passed", (int)run->num_passed, "failed",
                               (int)run->num_failed, "skipped", (int)run->num_skipped, "vectors", run->vectors);
    is_ok = report && json_dumpf(report, stdout, JSON_INDENT(1)) == 0 && putchar('\n') != EOF;
    json_decref(report);
  } else {
    is_ok =
        printf("%s, jobs in %s format%s: %u passed, %u failed, %u skipped\n", run->source.text, family,
               run->source.key_name[0] != 0 ? ", keyed" : "", run->num_passed, run->num_failed, run->num_skipped) > 0;
  }
  if (fflush(stdout) != 0 || !is_ok) return fail("standard output could not be written");
  return run->num_failed > 0 ? SML_CONFORM_EXIT_FAILED : SML_CONFORM_EXIT_PASSED;
}

static int play_all(struct run *run) {
  uint32_t num_chosen = 0;
  for (uint32_t i = 0; i < run->suite.num_vectors; i++) {
    const struct sml_conform_vector *v = &run->suite.vectors[i];
    if (v->is_switch != run->is_switch || !is_chosen(run, v)) continue;
    num_chosen++;
    if (!play(run, v)) return SML_CONFORM_EXIT_BROKEN;
  }
  if (num_chosen == 0)
    return fail("there is no such vector for jobs in %s format", run->is_switch ? "switch" : "ordinary");
  return print_end(run);
}

static int run_at(struct run *run) {
  char error[512];
  if (!sml_status_source_open(&run->source, run->options.address, error, sizeof error)) {
    fail("%s", error);
    return SML_CONFORM_EXIT_USAGE;
  }
  char address[64];
  sml_addr_format(&run->source.addr, address, sizeof address);
  const struct sml_conform_live_options live = {.source = &run->source,
                                                .patience_ns = run->options.patience_ns,
                                                .chunk_bytes = run->options.chunk_bytes,
                                                .is_loopback = sml_text_is_loopback(address),
                                                .features = SML_FEATURE_SWITCH};
  run->stage = sml_conform_live_create(&live);
  run->vectors = json_array();
  if (!run->stage || !run->vectors) return fail("out of memory");
  if (!sml_conform_live_look(run->stage, &run->is_switch, error, sizeof error)) return fail("%s", error);
  return play_all(run);
}

int sml_conform_run(int argc, char **argv) {
  static const struct sml_option_parser parser = {
      .table = table,
      .arguments_doc = "[HOST:PORT]",
      .arguments_offset = offsetof(struct options, address),
      .max_arguments = 1,
      .one_only = "one HOST:PORT only",
      .check = check,
      .doc =
          "Plays conformance vectors at a live aggregator: joins jobs there, with all ranks in this process, sends "
          "packets and compares what comes back with what the protocol says."
          "\vHOST:PORT is what SWITCHML_AGGREGATOR says by default; SWITCHML_KEY_FILE as for ranks. Exit status: 0 "
          "all vectors passed, 1 one failed, 2 wrong usage, 3 it could not do its work."};
  static struct run run;
  run = (struct run){.options = {.num_tries = 3, .patience_ns = 2 * SML_NS_PER_S}};
  sml_options_parse(&parser, argc, argv, &run.options);
  int status = SML_CONFORM_EXIT_BROKEN;
  if (read_vectors(&run)) status = run.options.is_list ? list_vectors(&run) : run_at(&run);
  if (run.stage) sml_conform_live_destroy(run.stage);
  json_decref(run.vectors);
  sml_conform_free(&run.suite);
  return status;
}
