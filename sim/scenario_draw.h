/* SPDX-License-Identifier: Apache-2.0
 * Parts of the draw, in the order of their dependence: scenario.c calls scenario_jobs.c. */
#pragma once

#include "sim/scenario.h"

uint64_t sim_pick(struct sml_prng *p, uint64_t low, uint64_t high);     /* both may come */
uint64_t sim_pick_log(struct sml_prng *p, uint64_t low, uint64_t high); /* over orders of magnitude */
void sim_jobs_draw(struct sim_scenario *s, struct sml_prng *p);
void sim_collectives_draw(struct sim_scenario *s); /* the jobs' */
void sim_incidents_draw(struct sim_scenario *s, struct sml_prng *p);
