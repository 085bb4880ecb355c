/* SPDX-License-Identifier: Apache-2.0
 * Reads a dump that lies in memory (mapped), believing nothing: it may be cut off, of a newer release, or no dump
 * at all. */
#pragma once

#include "trace/dump.h"

struct sml_trace_text {
  const char *bytes; /* in the file, not terminated */
  uint32_t num_bytes;
};

struct sml_trace_file_event {
  uint8_t level, kind;
  struct sml_trace_text name, slot, rank, phase, chunk, value;
};
struct sml_trace_file_job {
  uint16_t number;
  uint32_t epoch, rank;
  uint64_t since_ns; /* 0: the file does not say */
  struct sml_trace_text name;
};
struct sml_trace_file_source {
  uint32_t lane;
  uint64_t num_lost;
  uint32_t num_records; /* that are in the file */
  struct sml_trace_text name;
  const uint8_t *records;
};

struct sml_trace_file {
  uint32_t record_bytes, pid;
  uint64_t realtime_ns, monotonic_ns; /* the same instant */
  struct sml_trace_text program, release, host, reason;
  uint32_t num_events, num_drops, num_jobs, num_sources;
  struct sml_trace_file_event *events;
  struct sml_trace_text *drops;
  struct sml_trace_file_job *jobs;
  struct sml_trace_file_source *sources;
  uint64_t num_cut; /* records that should be there, but the file ends before */
};

/* The file points into bytes. False: error_out says what is wrong; nothing is to be closed then. */
bool sml_trace_open(struct sml_trace_file *file, const uint8_t *bytes, size_t num_bytes, char *error_out,
                    size_t error_bytes);
void sml_trace_close(struct sml_trace_file *file);
/* Record i of a source, i < num_records. */
void sml_trace_read(const struct sml_trace_file *file, const struct sml_trace_file_source *source, uint32_t i,
                    struct sml_record *record_out);
/* Whose event this is; NULL: of none that the file names. */
const struct sml_trace_file_job *sml_trace_find_job(const struct sml_trace_file *file, const struct sml_record *record);
/* CLOCK_REALTIME of a record; what cannot be is 0. */
uint64_t sml_trace_realtime_ns(const struct sml_trace_file *file, uint64_t time_ns);
