/* SPDX-License-Identifier: Apache-2.0
 * The file of a flight recorder. All numbers are big-endian; a string is length:16 and bytes.
 *
 *   "SMLTRACE"  version:16 = 1  record_bytes:16  header_bytes:32 (all before the first record)
 *   realtime_ns:64 monotonic_ns:64 (the same instant, at the dump)  pid:32  program  release  host  reason
 *   num_events:16   of each: level:8 kind:8, then the names of event, slot, rank, phase, chunk, value ("": not used)
 *   num_drops:16    of each reason: its name
 *   num_jobs:16     of each: number:16 epoch:32 rank:32 (of this process; 2^32 - 1: it is the aggregator)  name
 *   num_sources:16  of each: lane:32 (2^32 - 1: none) num_lost:64 num_records:32  name
 *   of each job: since_ns:64 (monotonic), from when on the number is its: numbers are used again, later jobs come later
 *   the records of the first source, oldest first, then those of the next:
 *   time_ns:64 (monotonic) event:16 job:16 slot:16 rank:16 phase:32 chunk:32 value:64, and perhaps more
 *
 * A reader skips what it does not know of the header and of a record, so both may grow within a version. */
#pragma once

#include "trace/recorder.h"

#define SML_TRACE_MAGIC "SMLTRACE"
#define SML_TRACE_VERSION 1u
#define SML_TRACE_NONE UINT32_MAX /* lane, rank */
#define SML_TRACE_NAME_BYTES 64u
#define SML_TRACE_MAX_SOURCES 65535u

struct sml_trace_job {
  uint16_t number;
  uint32_t epoch, rank; /* epoch: its first */
  uint64_t since_ns;
  char name[SML_TRACE_NAME_BYTES];
};

/* A recorder's records, copied. */
struct sml_trace_source {
  char name[SML_TRACE_NAME_BYTES]; /* "lane 0", "job train" ... */
  uint32_t lane;
  uint64_t num_records, num_lost;
  struct sml_record *records; /* from malloc */
};

struct sml_trace_dump {
  const char *program, *reason;
  struct sml_trace_job *jobs; /* from malloc, like the next one */
  struct sml_trace_source *sources;
  uint32_t num_jobs, num_sources;
};

/* Adds a copy of what the recorder holds now. False: out of memory, or too many. */
__attribute__((format(printf, 4, 5))) bool sml_trace_add_source(struct sml_trace_dump *dump,
                                                                const struct sml_recorder *recorder, uint32_t lane,
                                                                const char *name, ...);
bool sml_trace_add_job(struct sml_trace_dump *dump, const struct sml_trace_job *job);
void sml_trace_clear(struct sml_trace_dump *dump);
/* A name that no file has: PREFIX-PID-N.trace with the least N from *next_number on, which is behind it then. In
 * containers the processes of all runs may have one PID. False: it is too long. */
bool sml_trace_find_path(const char *prefix, _Atomic uint32_t *next_number, char *path_out, size_t path_bytes);
/* Writes the file, whole or not at all, over one that is there. 0, or -errno with a sentence. */
int sml_trace_write(const struct sml_trace_dump *dump, const char *path, char *error_out, size_t error_bytes);
