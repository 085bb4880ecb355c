/* SPDX-License-Identifier: Apache-2.0
 * The library's lines for people: SWITCHML_DEBUG, SWITCHML_DEBUG_FILE (docs/troubleshooting.md). They go where NCCL's
 * would, and look alike: "host:pid:thread [rank] SWITCHML INFO ...". The daemon's log is another one (base/log.h). */
#pragma once

#include "base/base.h"

/* Each with those before it. */
enum sml_lib_log_level { SML_LIB_LOG_WARN, SML_LIB_LOG_VERSION, SML_LIB_LOG_INFO, SML_LIB_LOG_TRACE };
#define SML_LIB_LOG_NO_RANK UINT32_MAX /* of the process, not of a job */

/* "version", "WARN", ...: in any case. False: no such level. */
bool sml_lib_log_parse_level(const char *text, enum sml_lib_log_level *level_out);
/* Where lines of the whole process go from now on: a file to append to, with %h (host), %p (process) and %% in its
 * name; NULL: standard error, as for a file that cannot be opened, which is said once. */
void sml_lib_log_open(const char *pattern);
/* One line in one write, any thread; it waits for nobody, as the writer (base/writer.h) writes it. Should the file not
 * take it, standard error does, from then on. */
void sml_lib_log_line(enum sml_lib_log_level level, uint32_t rank, const char *text);
/* Waits until lines are written that were said before, but not long: whoever should read them may stand still. Else no
 * thread is left. */
void sml_lib_log_rest(void);
/* INFO: what SWITCHML_... is set to. No secret is in one: keys are in files. */
void sml_lib_log_environment(void);
