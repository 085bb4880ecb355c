/* SPDX-License-Identifier: Apache-2.0
 * What tests, fuzzers and the simulator ask engines about their state machines. */
#include "engine/aggregator_engine_internal.h"
#include "engine/worker_engine_internal.h"
#include "switchml/switchml.h"

const char *sml_aggregator_engine_find_violation(const struct sml_aggregator_engine *e) {
  const char *problem = NULL;
  for (uint32_t j = 0; j < SML_MAX_JOBS && problem == NULL; j++)
    if (e->jobs[j] != NULL && e->jobs[j]->aggregator != NULL)
      problem = sml_aggregator_find_violation(e->jobs[j]->aggregator);
  return problem;
}

const char *sml_lane_find_violation(const struct sml_lane *lane) {
  return lane->failed_status != SML_OK ? NULL : sml_worker_find_violation(lane->worker);
}
