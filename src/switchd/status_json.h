/* SPDX-License-Identifier: Apache-2.0
 * The status as JSON, the one form in which `switchml status`, /api/status and the status page get it. Its
 * members are described in docs/operating.md. */
#pragma once

#include "aggd/snapshot.h"

/* A malloc'd text; NULL: out of memory. key_name not "": only what its tenant may know. */
char *sml_status_json(const struct sml_snapshot *snapshot, const char *key_name);

/* By enum sml_happening. */
extern const char *const sml_happening_names[SML_NUM_HAPPENINGS];
/* All ranks' together. */
struct sml_traffic sml_job_traffic(const struct sml_snapshot *snapshot, const struct sml_job_snapshot *job);
