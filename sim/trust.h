/* SPDX-License-Identifier: Apache-2.0
 * What of the product came with check words, keys and retry. */
#pragma once

#include "aggd/aggd.h"
#include "core/aggregator.h"
#include "core/worker.h"
#include "ctl/registry.h"
#include "sim/scenario.h"
#include "switchml/switchml.h"

void sim_job_set_trust(const struct sim_scenario *s, const struct sim_job_spec *spec, sml_job_options *options);
void sim_daemon_set_trust(const struct sim_scenario *s, struct sml_aggd_options *options);
/* Files that processes there read. */
void sim_host_set_trust(struct sim_host *host);
const char *sim_aggregator_violation(const struct sml_aggregator *a);
const char *sim_worker_violation(const struct sml_worker *w);
const char *sim_registry_violation(const struct sml_registry *r);
