/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/trust.h"

#include <sys/stat.h>

#define KEY_FILE "/etc/switchml.keys"

static const char key_text[] = "even 000102030405060708090a0b0c0d0e0f\nodd f0e1d2c3b4a5968778695a4b3c2d1e0f\n";

void sim_job_set_trust(const struct sim_scenario *s, const struct sim_job_spec *spec, sml_job_options *o) {
  o->check = spec->is_checked ? 1 : 2;
  o->retry_ns = spec->retry_ns;
  o->key_file = s->is_keyed ? KEY_FILE : "";
  if (s->is_keyed) o->key_name = spec->num_slots % 3 == 1 ? "odd" : "even"; /* tenants */
}

void sim_daemon_set_trust(const struct sim_scenario *s, struct sml_aggd_options *o) {
  static struct sml_key_entry keys[2];
  size_t num_keys = 0;
  char error[256];
  if (!s->is_keyed) return;
  SML_ASSERT(sml_key_file_parse(key_text, sizeof key_text - 1, keys, 2, &num_keys, error, sizeof error));
  o->keys = keys;
  o->num_keys = (uint32_t)num_keys;
}

void sim_host_set_trust(struct sim_host *host) {
  sim_host_put_file(host, KEY_FILE, S_IFREG | 0600, key_text, sizeof key_text - 1);
}

const char *sim_aggregator_violation(const struct sml_aggregator *a) {
  return sml_aggregator_find_violation(a);
}

const char *sim_worker_violation(const struct sml_worker *w) {
  return sml_worker_find_violation(w);
}

const char *sim_registry_violation(const struct sml_registry *r) {
  return sml_registry_find_violation(r);
}
