/* SPDX-License-Identifier: Apache-2.0
 * `switchml trace`: the files of flight recorders, merged by time, filtered, and shown. */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "trace/reader.h"

#define SML_TRACE_MAX_NAMES 64u

/* Exit statuses. */
enum { SML_TRACE_FAILED = 1, SML_TRACE_USAGE = 2 };

struct sml_trace_filter {
  const char *job;                         /* name or number; NULL: any */
  uint32_t rank, slot, lane;               /* UINT32_MAX: any */
  const char *events[SML_TRACE_MAX_NAMES]; /* names; none: any */
  uint32_t num_events;
  uint64_t since_ns, until_ns; /* CLOCK_REALTIME */
};

/* A file that was opened. */
struct sml_trace_input {
  const char *path;
  void *bytes; /* mapped */
  size_t num_bytes;
  struct sml_trace_file file;
};

/* One event of the merged order. */
struct sml_trace_item {
  uint32_t input, source; /* indices */
  const struct sml_trace_file *file;
  const struct sml_trace_file_source *origin;
  const struct sml_trace_file_event *event; /* NULL: the file does not say what it is */
  const struct sml_trace_file_job *job;     /* NULL: unknown, or of none */
  struct sml_record record;
  uint64_t time_ns; /* CLOCK_REALTIME */
};

/* ---- merge.c ---- */

struct sml_trace_merge;
struct sml_trace_merge *sml_trace_merge_begin(const struct sml_trace_input *inputs, uint32_t num_inputs);
void sml_trace_merge_end(struct sml_trace_merge *merge);
/* When the first and the last of all happened; false: there are none. */
bool sml_trace_merge_range(const struct sml_trace_merge *merge, uint64_t *first_ns_out, uint64_t *last_ns_out);
/* The next that the filter passes; false: no more. */
bool sml_trace_merge_next(struct sml_trace_merge *merge, const struct sml_trace_filter *filter,
                          struct sml_trace_item *item_out);

/* ---- print.c ---- */

bool sml_trace_text_is(struct sml_trace_text text, const char *expected);
/* "train", or the number, or "" for an event of none; at most 64 bytes. */
void sml_trace_job_text(const struct sml_trace_item *item, char *text);
void sml_trace_reason_text(const struct sml_trace_file *file, uint64_t reason, char *text, size_t text_bytes);
/* Texts of a file are anybody's: what would act on a terminal is '?'. */
void sml_trace_put_text(char *to, size_t room, struct sml_trace_text text);
/* What the event says, of slot, rank and so on. False: out of memory. */
bool sml_trace_set_fields(json_t *object, const struct sml_trace_item *item);
void sml_trace_print_line(FILE *out, const struct sml_trace_item *item);
bool sml_trace_print_json(FILE *out, const struct sml_trace_item *item); /* false: out of memory */

/* ---- perfetto.c: the JSON of Chrome's trace viewer and Perfetto ---- */

struct sml_trace_perfetto;
struct sml_trace_perfetto *sml_trace_perfetto_begin(FILE *out, const struct sml_trace_input *inputs,
                                                    uint32_t num_inputs, uint64_t first_ns);
bool sml_trace_perfetto_add(struct sml_trace_perfetto *perfetto, const struct sml_trace_item *item);
void sml_trace_perfetto_end(struct sml_trace_perfetto *perfetto);

/* ---- summary.c ---- */

struct sml_trace_summary;
struct sml_trace_summary *sml_trace_summary_begin(void);
void sml_trace_summary_add(struct sml_trace_summary *summary, const struct sml_trace_item *item);
void sml_trace_summary_end(struct sml_trace_summary *summary, FILE *out); /* prints and frees */

/* The command; argv[0] is "trace". */
int sml_trace_main(int argc, char **argv);
