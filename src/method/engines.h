/* SPDX-License-Identifier: Apache-2.0
 * The engine threads of a context for one address family, one a lane: started when the first job
 * needs them, shared by all jobs of the context. */
#pragma once

#include "engine/worker_engine.h"
#include "process/settings.h"

#define SML_MAX_ENGINES 16u

struct sml_engine_unit {
  struct sml_netio *io;
  struct sml_worker_engine *engine;
  struct sml_engine_thread thread;
};

struct sml_engines {
  uint32_t num_engines; /* 0: not started */
  struct sml_engine_unit units[SML_MAX_ENGINES];
  struct sml_recorder *recorders[SML_MAX_ENGINES]; /* made with the unit, and kept for good */
};

/* family: AF_INET or AF_INET6. On failure nothing is left behind. */
sml_status sml_engines_start(struct sml_engines *engines, const struct sml_settings *settings, int family);
void sml_engines_stop(struct sml_engines *engines);           /* their threads end */
void sml_engines_close(struct sml_engines *engines);          /* stopped; not while the process forks */
void sml_engines_free_recorders(struct sml_engines *engines); /* stopped */
/* In the child of a fork: the threads are gone, the descriptors are not. */
void sml_engines_close_descriptors(struct sml_engines *engines);

/* Runs function(engine, argument) on engine `lane`'s thread and returns when it has. */
void sml_engines_call(struct sml_engines *engines, uint32_t lane,
                      void (*function)(struct sml_worker_engine *engine, void *argument), void *argument);
void sml_engines_post(struct sml_engines *engines, uint32_t lane, struct sml_engine_command *command);
/* Datagrams that the system would not take, and the last one that it did not. */
uint64_t sml_engines_unsent(const struct sml_engines *engines, struct sml_unsent *last_out);
