/* SPDX-License-Identifier: Apache-2.0
 * What this process's environment says: names that nothing reads, values that nothing takes, and what contradicts. */
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "cli/doctor/doctor.h"
#include "switchml/switchml.h"

extern char **environ;

const char *sml_doctor_nearest_variable(const char *name, bool *is_known) {
  const char *nearest = NULL;
  uint32_t least = 5; /* further off it is another word */
  *is_known = false;
  for (const char *const *known = sml_doctor_variables; *known != NULL; known++) {
    const uint32_t steps = sml_text_distance(*known, name);
    if (steps >= least) continue;
    least = steps;
    nearest = *known;
    if (steps == 0) *is_known = true;
  }
  return nearest;
}

/* The text, or NULL: not set, or empty. */
static const char *variable(const char *name) {
  const char *text = getenv(name);
  return text && *text ? text : NULL;
}

static void find_unknown(struct sml_doctor *d) {
  for (char **entry = environ; *entry; entry++) {
    char name[64], advice[200];
    bool is_known;
    const size_t num_bytes = strcspn(*entry, "=");
    const bool is_ours = strncmp(*entry, "SWITCHML_", 9) == 0 && strncmp(*entry, "SWITCHML_TEST_", 14) != 0 &&
                         strncmp(*entry, "SWITCHML_E2E_", 13) != 0;
    if (!is_ours || num_bytes >= sizeof name) continue;
    snprintf(name, sizeof name, "%.*s", (int)num_bytes, *entry);
    sml_text_make_plain(name);
    const char *nearest = sml_doctor_nearest_variable(name, &is_known);
    if (is_known) continue;
    if (nearest) snprintf(advice, sizeof advice, "did you mean %s?", nearest);
    else snprintf(advice, sizeof advice, "unset it; switchml(1), ENVIRONMENT, has those that there are");
    sml_doctor_find(d, SML_DOCTOR_SETTINGS, "environment", SML_FINDING_WARNING, json_pack("{s:s}", "variable", name),
                    advice, "%s is set, but nothing reads it", name);
  }
}

const char *sml_doctor_advise_on_key_file(const char *why) {
  return strstr(why, "has no key '")
             ? "SWITCHML_KEY_NAME must be the name of a key in that file"
             : "SWITCHML_KEY_FILE must name a file of lines 'NAME 32-HEX-DIGITS' that its owner alone can read";
}

/* The library says itself what it does not take; a job of one rank needs no network. */
static void find_bad_values(struct sml_doctor *d) {
  sml_context *context = NULL;
  sml_job *job = NULL;
  sml_job_options options = SML_JOB_OPTIONS_INIT;
  options.world_size = 1;
  sml_status status = sml_context_create(NULL, &context);
  if (status == SML_OK) status = sml_job_create(context, &options, &job);
  if (status == SML_ERR_KEY || (status != SML_OK && strstr(sml_error_detail(), "key")))
    sml_doctor_find(d, SML_DOCTOR_KEY, "key", SML_FINDING_FAILED, NULL,
                    sml_doctor_advise_on_key_file(sml_error_detail()), "%s", sml_error_detail());
  else if (status != SML_OK)
    sml_doctor_find(d, SML_DOCTOR_SETTINGS, "environment", SML_FINDING_FAILED,
                    json_pack("{s:i}", "status", (int)status), "correct it: every rank ends with this sentence", "%s",
                    sml_error_detail());
  sml_job_destroy(job);
  sml_context_destroy(context);
  if (status != SML_OK) d->has_bad_settings = true;
}

static void contradict(struct sml_doctor *d, bool is_so, enum sml_verdict verdict, const char *advice,
                       const char *seen) {
  if (is_so && verdict == SML_FINDING_FAILED) d->has_bad_settings = true;
  if (is_so) sml_doctor_find(d, SML_DOCTOR_SETTINGS, "environment", verdict, NULL, advice, "%s", seen);
}

static long value_of(const char *name) {
  const char *text = variable(name);
  return text ? strtol(text, NULL, 10) : -1;
}

static void find_contradictions(struct sml_doctor *d) {
  const char *aggregator = d->num_aggregators > 0 ? d->options.addresses : NULL,
             *rendezvous = variable("SWITCHML_RENDEZVOUS");
  const char *retry = variable("SWITCHML_RETRY"), *trace = variable("SWITCHML_TRACE");
  const bool has_retry = retry && strtod(retry, NULL) > 0;
  uint32_t rank, world_size;
  contradict(d, sml_rank_from_environment(&rank, &world_size, NULL) == SML_ERR_INVALID_ARGUMENT, SML_FINDING_FAILED,
             "correct the launcher, or what sets these variables", sml_error_detail());
  contradict(d, has_retry && aggregator && strchr(aggregator, ','), SML_FINDING_FAILED,
             "unset SWITCHML_RETRY, or use one aggregator",
             "SWITCHML_RETRY is set, but works with one aggregator only");
  contradict(d, has_retry && !aggregator, SML_FINDING_FAILED, "unset SWITCHML_RETRY, or set SWITCHML_AGGREGATOR",
             "SWITCHML_RETRY is set, but there is no aggregator whose successor could be waited for");
  contradict(d, variable("SWITCHML_AGGREGATOR") && rendezvous, SML_FINDING_WARNING, "unset the one that is not meant",
             "SWITCHML_AGGREGATOR and SWITCHML_RENDEZVOUS are both set: the latter is not used");
  contradict(d, variable("SWITCHML_KEY_NAME") && !variable("SWITCHML_KEY_FILE"), SML_FINDING_WARNING,
             "set SWITCHML_KEY_FILE as well",
             "SWITCHML_KEY_NAME is set without SWITCHML_KEY_FILE: packets have no key");
  contradict(d, has_retry && value_of("SWITCHML_SHARED_MEMORY") == 1, SML_FINDING_WARNING,
             "unset SWITCHML_RETRY for jobs on one host",
             "SWITCHML_RETRY is set: ranks of one host then do not share memory, whatever SWITCHML_SHARED_MEMORY says");
  contradict(d, variable("SWITCHML_TRACE_DIR") && trace && strcmp(trace, "off") == 0, SML_FINDING_WARNING,
             "unset SWITCHML_TRACE", "SWITCHML_TRACE_DIR is set, but SWITCHML_TRACE=off: there is nothing to write");
  contradict(d, variable("SWITCHML_FAULTS") != NULL, SML_FINDING_WARNING, "unset it, but in tests",
             "SWITCHML_FAULTS is set: this process loses or spoils packets on purpose");
  contradict(d, value_of("SWITCHML_NO_OFFLOAD") == 1, SML_FINDING_WARNING, "unset it where the kernel can segment",
             "SWITCHML_NO_OFFLOAD is set: a packet costs several times the processor time");
}

void sml_doctor_check_environment(struct sml_doctor *d) {
  const int worst = d->worst;
  const size_t num_findings = json_array_size(d->findings);
  uint32_t num_set = 0;
  for (char **entry = environ; *entry; entry++) num_set += strncmp(*entry, "SWITCHML_", 9) == 0;
  find_unknown(d);
  find_contradictions(d);
  find_bad_values(d);
  if (d->worst == worst && json_array_size(d->findings) == num_findings)
    sml_doctor_find(d, SML_DOCTOR_SETTINGS, "environment", SML_FINDING_OK, NULL, "",
                    "%u variables SWITCHML_..., all of them known", num_set);
}
