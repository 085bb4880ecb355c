/* SPDX-License-Identifier: Apache-2.0
 * `switchml status` and `switchml top`: what they share. ask/status_client.c fetches, tables.c makes tables. */
#pragma once

#include <stdio.h>

#include "cli/ask/status_client.h"

/* 0 and 3 are answers, the others are none. */
enum sml_status_exit {
  SML_STATUS_HEALTHY = 0,
  SML_STATUS_NO_ANSWER = 1,
  SML_STATUS_USAGE = 2,
  SML_STATUS_TROUBLE = 3, /* a rank is late or lost */
  SML_STATUS_NO_JOB = 4,  /* --job: there is none of that name */
};

int sml_status_run(int argc, char **argv); /* `switchml status`; argv[0] is the subcommand's name */
int sml_top_run(int argc, char **argv);

/* Adds "rates" to each job of `now`, and to its switch: per second, since `before`. Jobs that were not there then get
 * none, nor does a switch that has told nothing since. False: both are the same answer, which a busy daemon gives to
 * all who ask within a while. */
bool sml_status_add_rates(json_t *now, const json_t *before);
/* Only the jobs of that name stay; false: there is none. */
bool sml_status_keep_job(json_t *status, const char *name);
enum sml_status_exit sml_status_judge(const json_t *status);
/* For people. has_ranks: a table of each job's ranks too. columns: sentences longer than that go on in further lines,
 * tables do not; 0: nothing does. False: out of memory or not written. */
bool sml_status_print(FILE *stream, const json_t *status, bool has_ranks, uint32_t columns);
