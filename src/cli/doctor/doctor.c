/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/doctor/doctor.h"

#include <stdlib.h>

#include "base/options.h"
#include "base/text.h"
#include "switchml/switchml.h"

#define SML_OPTIONS struct sml_doctor_options
static const struct sml_option table[] = {
    {"json", 'j', NULL, "Print one JSON object instead of the lines", 0, SML_FLAG(is_json)},
    {"job", 'n', "NAME", "Look at that job, too: who is missing, whose settings differ", 0, SML_TEXT(job)},
    {"seconds", 's', "S", "Sum 4 MiB again and again for so long, 0 to 60, for rate and loss. Default 1", 0,
     SML_REAL(seconds, 0, 60, 1)},
    {"timeout", 't', "S", "Begin nothing new after so many seconds, 1 to 3600. Default 60", 0,
     SML_REAL(timeout_s, 1, 3600, 1)},
    {"world-size", 'w', "N",
     "Workers (hosts) of the job that is meant, to judge the aggregator's link by, 2 to 4096. Default: WORLD_SIZE", 0,
     SML_NUMBER(world_size, 2, 4096)},
    {0},
};

static const struct sml_option_parser parser = {
    .table = table,
    .arguments_doc = "[HOST:PORT[,HOST:PORT...]]",
    .arguments_offset = offsetof(struct sml_doctor_options, addresses),
    .max_arguments = 1,
    .one_only = "one HOST:PORT[,HOST:PORT...] only",
    .doc =
        "What keeps ranks on this host from summing at an aggregator, or makes it slow, and what to change."
        "\vHOST:PORT is what SWITCHML_AGGREGATOR says by default. Without either, this host is looked at alone, with "
        "a job over its own loopback.\n\n"
        "Exit status: 0 all is well, 1 doctor could not work, 2 wrong usage. The worst finding decides: one that "
        "FAILED before a WARNING, then the first of: 4 name, 5 control port, 6 version, 7 key, 8 room, 9 data port, "
        "10 MTU, 11 sum, 12 link, 13 settings, 14 host. A WARNING is 20 more: 24 to 34."};

/* --- the order --- */

/* Else what others took is no fault of this aggregator. */
static bool has_time(struct sml_doctor *d, enum sml_doctor_class class, const char *id) {
  if (sml_doctor_patience(d, SML_NS_PER_S) > 0) return true;
  sml_doctor_find(d, class, id, SML_FINDING_WARNING, NULL, "raise --timeout", "no time is left to look at it");
  return false;
}

/* From the name to a sum: what fails makes the rest pointless. */
static void look_at_path(struct sml_doctor *d, struct sml_doctor_target *t) {
  if (!has_time(d, SML_DOCTOR_NAME, "name") || !sml_doctor_check_name(d, t)) return;
  if (!has_time(d, SML_DOCTOR_CONTROL, "control") || !sml_doctor_check_control(d, t)) return;
  if (!sml_doctor_check_version(d, t)) return;
  sml_doctor_check_room(d, t);
  const bool is_path_open = has_time(d, SML_DOCTOR_KEY, "key") && sml_doctor_check_key(d, t) &&
                            sml_doctor_check_data(d, t) && sml_doctor_check_mtu(d, t);
  if (is_path_open) sml_doctor_check_sum(d, t);
  sml_doctor_check_link(d, t);
  sml_doctor_check_job(d, t);
}

static void look_at_aggregator(struct sml_doctor *d, const char *address) {
  static struct sml_doctor_target target;
  target = (struct sml_doctor_target){.text = address};
  sml_doctor_about(d, address);
  look_at_path(d, &target);
  sml_doctor_leave(&target);
}

static void look_at_host(struct sml_doctor *d) {
  sml_doctor_about(d, NULL);
  sml_doctor_check_environment(d);
  sml_doctor_check_host(d);
  if (d->num_aggregators == 0) sml_doctor_check_sum(d, NULL);
}

int sml_doctor_run(int argc, char **argv) {
  static struct sml_doctor d;
  d.options = (struct sml_doctor_options){.seconds = 1, .timeout_s = 60};
  uint32_t rank;
  (void)sml_rank_from_environment(&rank, &d.options.world_size, NULL); /* else 0; what is wrong is found below */
  sml_options_parse(&parser, argc, argv, &d.options);
  if (!d.options.addresses) d.options.addresses = getenv("SWITCHML_AGGREGATOR");
  char *list = strdup(d.options.addresses ? d.options.addresses : "");
  if (!list || !sml_doctor_begin_report(&d)) {
    free(list);
    return SML_DOCTOR_BROKEN;
  }
  sml_text_make_plain(list);
  d.deadline_ns = sml_clock_ns() + (uint64_t)(d.options.timeout_s * 1e9);
  d.num_aggregators = *list != 0;
  for (const char *c = list; *c; c++) d.num_aggregators += *c == ',';
  char *rest = list;
  look_at_host(&d);
  for (uint32_t i = 0; i < d.num_aggregators; i++) look_at_aggregator(&d, strsep(&rest, ","));
  free(list);
  return sml_doctor_end_report(&d);
}
