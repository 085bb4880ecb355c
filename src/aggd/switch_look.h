/* SPDX-License-Identifier: Apache-2.0
 * What a switch's registers say about a job, for people who ask. */
#pragma once

#include "aggd/dataplane.h"

/* words: of both cells of each slot, one after the other; bit c: contributor c has contributed. Sets what the look has
 * about slots that wait, but their phase, and adds to missing_out[num_contributors] those that wait for each. */
void sml_switch_look(const uint32_t *words, uint32_t num_slots, uint32_t num_contributors, struct sml_job_look *look,
                     uint32_t *missing_out);
