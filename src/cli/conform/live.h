/* SPDX-License-Identifier: Apache-2.0
 * A stage for conformance vectors at a live aggregator. */
#pragma once

#include "cli/conform/conform.h"

struct sml_status_source;
struct sml_conform_live_options {
  const struct sml_status_source *source; /* the caller's; jobs are keyed if it names a key */
  uint64_t patience_ns;                   /* for each answer */
  uint32_t chunk_bytes;                   /* to ask for; 0: the smallest that there is */
  bool is_loopback;                       /* connections need no pace */
  uint32_t features; /* SML_FEATURE_* that all jobs ask for, besides check words where a vector has them */
};
struct sml_conform_stage *sml_conform_live_create(const struct sml_conform_live_options *options); /* NULL: no memory */
void sml_conform_live_destroy(struct sml_conform_stage *stage);
/* Joins once. False: error says why no job can be made; else in which format its jobs are. */
bool sml_conform_live_look(struct sml_conform_stage *stage, bool *is_switch_out, char *error, size_t error_bytes);
