/* SPDX-License-Identifier: Apache-2.0
 * Whose ranks may join, and how much each tenant may have. Any thread may change both while the service runs: they are
 * looked at when a rank joins and when a job starts, so what runs goes on. */
#pragma once

#include <pthread.h>

#include "aggd/network.h"
#include "ctl/key_file.h"
#include "ctl/registry.h"

/* The quota of a tenant, or of each that has no entry of its own: */
#define SML_ANY_TENANT "*"
struct sml_tenant {
  char name[SML_KEY_NAME_BYTES]; /* of its key; SML_ONLY_TENANT at a service without keys */
  struct sml_quota quota;
};

struct sml_tenants {
  pthread_mutex_t lock;
  struct sml_key_entry *keys;
  struct sml_tenant *tenants;
  uint32_t num_keys, num_tenants;
  struct sml_network *networks; /* from which connections are taken; none: all */
  uint32_t num_networks;
};

void sml_tenants_init(struct sml_tenants *tenants);
void sml_tenants_destroy(struct sml_tenants *tenants);
/* Copies both tables instead of the old ones; false: out of memory, and the old ones stay. */
bool sml_tenants_set(struct sml_tenants *tenants, const struct sml_key_entry *keys, uint32_t num_keys,
                     const struct sml_tenant *entries, uint32_t num_entries);

/* Likewise, of networks. */
bool sml_tenants_set_networks(struct sml_tenants *tenants, const struct sml_network *networks, uint32_t num_networks);
bool sml_tenants_let_in(struct sml_tenants *tenants, const struct sml_addr *from);

/* The registry's; user: the tenants. */
bool sml_tenants_find_key(void *user, const char *name, struct sml_key *key_out);
bool sml_tenants_find_quota(void *user, const char *name, struct sml_quota *quota_out);

/* Sets the snapshot's tenants: those with an entry, and those that have jobs. False: out of memory. */
struct sml_snapshot;
bool sml_tenants_look(struct sml_tenants *tenants, struct sml_snapshot *snapshot);
