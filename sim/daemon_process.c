/* SPDX-License-Identifier: Apache-2.0
 * The daemon's process, and the look inside state machines: the linker passes their calls through here, so each
 * is asked for broken invariants while it is alive for certain. */
#include <stdio.h>

#include "core/aggregator.h"
#include "core/worker.h"
#include "ctl/registry.h"
#include "sim/trust.h"
#include "sim/verdict.h"
#include "sim/world.h"

#define POLL_NS (20 * SML_NS_PER_MS)
#define LOOK_SHARE 128u /* a look costs as much as many steps */

int sim_daemon_main(void *argument) {
  struct sim_world *w = argument;
  const struct sim_scenario *s = w->scenario;
  struct sml_aggd_options options = {.num_lanes = s->daemon_lanes,
                                     .pool_slots = s->pool_slots,
                                     .max_jobs = s->max_jobs,
                                     .max_connections = SIM_MAX_JOBS * SIM_MAX_WORLD_SIZE + 64,
                                     .first_data_port = s->first_data_port,
                                     .rx_buffer_bytes = 16u << 20,
                                     .first_phase = s->first_phase,
                                     .first_chunk = s->first_chunk};
  char error[256] = "the address is malformed";
  sim_daemon_set_trust(s, &options);
  if (!sml_addr_parse(SIM_AGGREGATOR, 0, &options.listen, error, sizeof error) ||
      sml_aggd_start(&options, &w->daemon.aggd, error, sizeof error) != 0) {
    sim_fail("failure", "the daemon does not start: %s", error);
    return 1;
  }
  sim_trace("listens");
  while (!w->daemon.should_stop) sim_sleep_ns(POLL_NS);
  sml_aggd_stop(w->daemon.aggd);
  w->daemon.aggd = NULL;
  sim_trace("ends");
  return 0;
}

/* ---- looks ---- */

static struct sml_registry *registry;
static uint32_t num_steps;

struct sml_registry *__real_sml_registry_init(void *mem, const struct sml_registry_options *options);
struct sml_registry *__wrap_sml_registry_init(void *mem, const struct sml_registry_options *options);
struct sml_registry *__wrap_sml_registry_init(void *mem, const struct sml_registry_options *options) {
  return registry = __real_sml_registry_init(mem, options);
}

bool sim_daemon_counts(struct sml_registry_counts *counts_out) {
  if (registry == NULL) return false;
  sml_registry_counts(registry, counts_out);
  return true;
}

const struct sml_effect *__real_sml_registry_next_effect(struct sml_registry *r);
const struct sml_effect *__wrap_sml_registry_next_effect(struct sml_registry *r);
const struct sml_effect *__wrap_sml_registry_next_effect(struct sml_registry *r) {
  const struct sml_effect *effect = __real_sml_registry_next_effect(r);
  const char *violation = effect == NULL ? sim_registry_violation(r) : NULL;
  if (violation != NULL) sim_fail("internal", "registry: %s", violation);
  return effect;
}

struct sml_decision __real_sml_aggregator_decide(struct sml_aggregator *a, const struct sml_header *header);
struct sml_decision __wrap_sml_aggregator_decide(struct sml_aggregator *a, const struct sml_header *header);
struct sml_decision __wrap_sml_aggregator_decide(struct sml_aggregator *a, const struct sml_header *header) {
  const struct sml_decision decision = __real_sml_aggregator_decide(a, header);
  const char *violation = num_steps++ % LOOK_SHARE == 0 ? sim_aggregator_violation(a) : NULL;
  if (violation != NULL) sim_fail("internal", "aggregator: %s", violation);
  return decision;
}

struct sml_accept __real_sml_worker_on_packet(struct sml_worker *w, const struct sml_header *header,
                                              const uint8_t *payload, uint64_t now_ns);
struct sml_accept __wrap_sml_worker_on_packet(struct sml_worker *w, const struct sml_header *header,
                                              const uint8_t *payload, uint64_t now_ns);
struct sml_accept __wrap_sml_worker_on_packet(struct sml_worker *w, const struct sml_header *header,
                                              const uint8_t *payload, uint64_t now_ns) {
  const struct sml_accept accept = __real_sml_worker_on_packet(w, header, payload, now_ns);
  const char *violation = num_steps++ % LOOK_SHARE == 0 ? sim_worker_violation(w) : NULL;
  if (violation != NULL) sim_fail("internal", "worker: %s", violation);
  return accept;
}
