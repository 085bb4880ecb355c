/* SPDX-License-Identifier: Apache-2.0
 * Lines for the operator, on stderr, one for each event that matters: "2026-01-02T03:04:05.678Z warning rank_lost job=x
 * rank=2 "why"", or the same as an object of JSON. For daemons and commands; the pure modules and the library don't
 * log. */
#pragma once

#include "base/base.h"

enum sml_log_level { SML_LOG_ERROR, SML_LOG_WARNING, SML_LOG_INFO, SML_LOG_DEBUG };

void sml_log_set_level(enum sml_log_level level); /* default info */
enum sml_log_format { SML_LOG_TEXT, SML_LOG_JSON };
void sml_log_set_format(enum sml_log_format format); /* default text */

/* A text (of any bytes), or a number. */
struct sml_log_field {
  const char *name, *text; /* text NULL: the number */
  uint64_t number;
};
/* An event: its name, fields, and a sentence ("": none). One line in one write, any thread, in the order of the calls;
 * the writer (base/writer.h) writes it, so that nobody waits for whoever reads. At most 200 lines a second: what others
 * can cause must not fill a disk. Errors are not counted. How many lines were left out, and how many found no room at
 * the writer's, is said afterwards. */
void sml_log_event(enum sml_log_level level, const char *event, const struct sml_log_field *fields, size_t num_fields,
                   const char *sentence);
/* Likewise, of an event that somebody else caused: a tenant by its name, or ("") whoever has none. Each may cause 100
 * lines a second, so that none of them hides what others cause. */
void sml_log_event_of(const char *tenant, enum sml_log_level level, const char *event,
                      const struct sml_log_field *fields, size_t num_fields, const char *sentence);

/* Lines that were left out since the process began, for either reason. */
uint64_t sml_log_num_left_out(void);
