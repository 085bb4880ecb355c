/* SPDX-License-Identifier: Apache-2.0 */
#include "aggd/tenants.h"

#include <stdio.h>
#include <stdlib.h>

#include "aggd/snapshot.h"

void sml_tenants_init(struct sml_tenants *t) {
  *t = (struct sml_tenants){0};
  pthread_mutex_init(&t->lock, NULL);
}

static void free_keys(struct sml_key_entry *keys, uint32_t num_keys) {
  if (keys) explicit_bzero(keys, num_keys * sizeof *keys);
  free(keys);
}

void sml_tenants_destroy(struct sml_tenants *t) {
  free_keys(t->keys, t->num_keys);
  free(t->tenants);
  free(t->networks);
  pthread_mutex_destroy(&t->lock);
}

bool sml_tenants_set(struct sml_tenants *t, const struct sml_key_entry *keys, uint32_t num_keys,
                     const struct sml_tenant *entries, uint32_t num_entries) {
  struct sml_key_entry *new_keys = calloc(num_keys + 1u, sizeof *new_keys);
  struct sml_tenant *new_tenants = calloc(num_entries + 1u, sizeof *new_tenants);
  if (!new_keys || !new_tenants) {
    free(new_keys);
    free(new_tenants);
    return false;
  }
  if (num_keys > 0) memcpy(new_keys, keys, num_keys * sizeof *keys);
  if (num_entries > 0) memcpy(new_tenants, entries, num_entries * sizeof *entries);
  pthread_mutex_lock(&t->lock);
  struct sml_key_entry *old_keys = t->keys;
  struct sml_tenant *old_tenants = t->tenants;
  const uint32_t num_old_keys = t->num_keys;
  t->keys = new_keys;
  t->num_keys = num_keys;
  t->tenants = new_tenants;
  t->num_tenants = num_entries;
  pthread_mutex_unlock(&t->lock);
  free_keys(old_keys, num_old_keys);
  free(old_tenants);
  return true;
}

bool sml_tenants_set_networks(struct sml_tenants *t, const struct sml_network *networks, uint32_t num_networks) {
  struct sml_network *new_networks = calloc(num_networks + 1u, sizeof *new_networks);
  if (!new_networks) return false;
  if (num_networks > 0) memcpy(new_networks, networks, num_networks * sizeof *networks);
  pthread_mutex_lock(&t->lock);
  struct sml_network *old_networks = t->networks;
  t->networks = new_networks;
  t->num_networks = num_networks;
  pthread_mutex_unlock(&t->lock);
  free(old_networks);
  return true;
}

bool sml_tenants_let_in(struct sml_tenants *t, const struct sml_addr *from) {
  pthread_mutex_lock(&t->lock);
  bool is_let_in = t->num_networks == 0;
  for (uint32_t i = 0; i < t->num_networks && !is_let_in; i++) is_let_in = sml_network_has(&t->networks[i], from);
  pthread_mutex_unlock(&t->lock);
  return is_let_in;
}

bool sml_tenants_find_key(void *user, const char *name, struct sml_key *key_out) {
  struct sml_tenants *t = user;
  pthread_mutex_lock(&t->lock);
  const struct sml_key *key = sml_key_find(t->keys, t->num_keys, name);
  if (key) *key_out = *key;
  pthread_mutex_unlock(&t->lock);
  return key != NULL;
}

static const struct sml_tenant *find(const struct sml_tenants *t, const char *name) {
  const struct sml_tenant *any = NULL;
  for (uint32_t i = 0; i < t->num_tenants; i++) {
    if (strcmp(t->tenants[i].name, name) == 0) return &t->tenants[i];
    if (strcmp(t->tenants[i].name, SML_ANY_TENANT) == 0) any = &t->tenants[i];
  }
  return any;
}

bool sml_tenants_find_quota(void *user, const char *name, struct sml_quota *quota_out) {
  struct sml_tenants *t = user;
  pthread_mutex_lock(&t->lock);
  const struct sml_tenant *tenant = find(t, name);
  if (tenant) *quota_out = tenant->quota;
  pthread_mutex_unlock(&t->lock);
  return tenant != NULL;
}

/* --- for people --- */

static struct sml_tenant_snapshot *add_tenant(struct sml_tenants *t, struct sml_snapshot *s, const char *name) {
  for (uint32_t i = 0; i < s->num_tenants; i++)
    if (strcmp(s->tenants[i].name, name) == 0) return &s->tenants[i];
  struct sml_tenant_snapshot *tenant = &s->tenants[s->num_tenants++];
  const struct sml_tenant *entry = find(t, name);
  snprintf(tenant->name, sizeof tenant->name, "%s", name);
  if (entry) tenant->quota = entry->quota;
  return tenant;
}

bool sml_tenants_look(struct sml_tenants *t, struct sml_snapshot *s) {
  pthread_mutex_lock(&t->lock);
  s->tenants = calloc(t->num_tenants + s->num_jobs + 1u, sizeof *s->tenants);
  for (uint32_t i = 0; s->tenants && i < t->num_tenants; i++)
    if (strcmp(t->tenants[i].name, SML_ANY_TENANT) != 0) add_tenant(t, s, t->tenants[i].name);
  for (uint32_t j = 0; s->tenants && j < s->num_jobs; j++) {
    const struct sml_registry_look *job = &s->jobs[j].is;
    struct sml_tenant_snapshot *tenant = add_tenant(t, s, job->key_name[0] ? job->key_name : SML_ONLY_TENANT);
    if (!job->is_started) continue;
    tenant->use.num_jobs++;
    tenant->use.num_workers += job->world_size;
    tenant->use.num_slots += job->all_slots;
  }
  pthread_mutex_unlock(&t->lock);
  return s->tenants != NULL;
}
