/* SPDX-License-Identifier: Apache-2.0
 * A job without a configured aggregator: its ranks embed one shard each, those of one host together one
 * (docs/adr/0019-shards.md). The library embeds the service that switchmld is. Ranks tell each other over the caller's
 * all-gather where their shards are, and a key that rank 0 has made, so that nobody else can join. */
#pragma once

#include "aggd/aggd.h"
#include "base/fork.h"
#include "meet/job_settings.h"
#include "process/settings.h"

/* A shard in this process. */
struct sml_embedded {
  struct sml_fork_watch watch;
  struct sml_aggd *aggd; /* NULL: not yet; under sml_fork_lock() */
};

/* Collective, after sml_job_settings_exchange(): starts this rank's shard, if it embeds one, and fills in places and
 * key. Fails alike on all ranks; then nothing is left running. *embedded_out: NULL, or to be stopped. */
sml_status sml_embedded_arrange(struct sml_job_settings *settings, const struct sml_settings *context_settings,
                                struct sml_embedded **embedded_out);
/* Its members hear that it goes. */
void sml_embedded_stop(struct sml_embedded *embedded);
