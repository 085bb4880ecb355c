/* SPDX-License-Identifier: Apache-2.0
 * The status in Prometheus' text format. What each figure is stands in its HELP line. */
#pragma once

#include "aggd/snapshot.h"

/* Figures of single ranks are left out beyond so many ranks, and the left out are counted: series cost memory. */
#define SML_MAX_RANK_SERIES 4096u

char *sml_metrics_text(const struct sml_snapshot *snapshot); /* malloc'd; NULL: out of memory */
