/* SPDX-License-Identifier: Apache-2.0
 * What becomes of findings: lines for people as they come, one JSON object at the end for programs, an exit status.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/doctor/doctor.h"

static const char *const verdict_names[] = {"OK", "SKIPPED", "WARNING", "FAILED"};
static const char *const class_names[] = {"name", "control", "version", "key",      "room", "data",
                                          "mtu",  "sum",     "link",    "settings", "host"};

int sml_doctor_status_of(enum sml_doctor_class class, enum sml_verdict verdict) {
  if (verdict == SML_FINDING_FAILED) return (int)class;
  return verdict == SML_FINDING_WARNING ? (int)class + SML_DOCTOR_WARNED : 0;
}

int sml_doctor_worse(int one, int other) {
  if (one == 0 || other == 0) return one + other;
  return one < other ? one : other; /* failures before warnings, causes before what follows from them */
}

uint64_t sml_doctor_patience(const struct sml_doctor *d, uint64_t wanted_ns) {
  const uint64_t now_ns = sml_clock_ns();
  return now_ns >= d->deadline_ns ? 0 : sml_min_u64(wanted_ns, d->deadline_ns - now_ns);
}

bool sml_doctor_begin_report(struct sml_doctor *d) {
  const char *no_color = getenv("NO_COLOR"), *terminal = getenv("TERM");
  d->has_color = !d->options.is_json && isatty(STDOUT_FILENO) && !(no_color && *no_color) &&
                 !(terminal && strcmp(terminal, "dumb") == 0);
  d->findings = json_array();
  return d->findings != NULL;
}

void sml_doctor_about(struct sml_doctor *d, const char *aggregator) {
  d->aggregator = aggregator;
  if (d->options.is_json) return;
  if (aggregator) printf("aggregator %s\n", aggregator);
  else printf("this host\n");
}

static void print_finding(const struct sml_doctor *d, const char *id, enum sml_verdict verdict, const char *seen,
                          const char *advice) {
  static const char *const colors[] = {"\033[32m", "\033[2m", "\033[33m", "\033[1;31m"};
  printf("  %s%-7s%s  %-12s %s\n", d->has_color ? colors[verdict] : "", verdict_names[verdict],
         d->has_color ? "\033[0m" : "", id, seen);
  if (*advice) printf("  %-7s  %-12s -> %s\n", "", "", advice);
  fflush(stdout);
}

void sml_doctor_find(struct sml_doctor *d, enum sml_doctor_class class, const char *id, enum sml_verdict verdict,
                     json_t *values, const char *advice, const char *format, ...) {
  char seen[640];
  va_list args;
  va_start(args, format);
  vsnprintf(seen, sizeof seen, format, args);
  va_end(args);
  sml_text_make_plain(seen);
  d->worst = sml_doctor_worse(d->worst, sml_doctor_status_of(class, verdict));
  json_t *finding = json_pack("{s:s?, s:s, s:s, s:s, s:s, s:s?, s:o}", "aggregator", d->aggregator, "id", id, "class",
                              class_names[class - SML_DOCTOR_NAME], "verdict", verdict_names[verdict], "seen", seen,
                              "advice", *advice ? advice : NULL, "values", values ? values : json_object());
  if (!finding || json_array_append_new(d->findings, finding) != 0) d->is_broken = true;
  if (!d->options.is_json) print_finding(d, id, verdict, seen, advice);
}

int sml_doctor_end_report(struct sml_doctor *d) {
  bool is_ok = !d->is_broken;
  if (d->options.is_json) {
    json_t *root = json_pack("{s:i, s:s, s:i, s:O}", "schema", 1, "version", SML_VERSION_TEXT, "exit_status", d->worst,
                             "findings", d->findings);
    is_ok =
        is_ok && root && json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) == 0 && putchar('\n') != EOF;
    json_decref(root);
  }
  is_ok = fflush(stdout) == 0 && !ferror(stdout) && is_ok;
  json_decref(d->findings);
  if (is_ok) return d->worst;
  fprintf(stderr, "switchml: doctor: out of memory, or standard output could not be written\n");
  return SML_DOCTOR_BROKEN;
}
