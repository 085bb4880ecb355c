/* SPDX-License-Identifier: Apache-2.0
 * What a rank asks for when it joins a job: the caller's options with their defaults, checked. */
#pragma once

#include "base/siphash.h"
#include "ctl/message.h"
#include "meet/shards.h"
#include "netio/netio.h"
#include "process/status.h"

struct sml_job_settings {
  sml_job_options options;        /* defaults filled in; aggregator "" if none is configured */
  struct sml_shard_places places; /* of the aggregators; not for world size 1 */
  bool has_rendezvous;            /* allgather is the library's (rendezvous.h), and says itself why it fails */
  const char *rank_source;        /* the variable that named the rank; NULL: the caller did */
  char name[SML_JOB_NAME_BYTES];
  uint32_t features; /* SML_FEATURE_* */
  bool no_multicast, no_one_way;
  uint64_t host[2];                  /* who can share memory with this process; 0: nobody */
  bool no_combining;                 /* memory is shared only if all ranks are on one host */
  char key_name[SML_KEY_NAME_BYTES]; /* "": not keyed */
  struct sml_key key;
};

/* Copies the options and fills in defaults. Fails only for what makes an exchange with the other ranks
 * impossible: an unusable struct or world size. */
sml_status sml_job_settings_read(const sml_job_options *options, struct sml_job_settings *settings_out);
/* Everything else. Resolves the aggregator's name, so it may block as the resolver does. */
sml_status sml_job_settings_check(struct sml_job_settings *settings);

/* Over the caller's all-gather: tells every rank this one's status so far and settings. Fails alike on
 * every rank if any failed or if they differ, naming ranks. Rank 0's random bits then make the job's
 * name unique, so that a second job of that name never meets the first one's stragglers. */
sml_status sml_job_settings_exchange(struct sml_job_settings *settings, sml_status status);
/* The caller's all-gather, and a sentence when it fails. */
sml_status sml_job_settings_gather(const struct sml_job_settings *settings, const void *mine, void *all,
                                   size_t num_bytes);
/* After the join: every rank's outcome becomes the first failed rank's. */
sml_status sml_job_settings_agree(const struct sml_job_settings *settings, sml_status status);

/* sml_shm_identity(), with no descriptor of its own in the child of a fork. */
bool sml_job_settings_identity(uint8_t *id_out);

/* Tests: makes this thread's jobs say that they run on another host than with another value. */
extern _Thread_local uint64_t sml_test_host;
