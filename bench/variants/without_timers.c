/* SPDX-License-Identifier: Apache-2.0
 * Nobody asks about anything, neither by timers nor by the order of what comes. */
#include "core/aggregator.h"
#include "core/worker_internal.h"

struct sml_worker *__real_sml_worker_init(void *mem, const struct sml_worker_options *options);
struct sml_worker *__wrap_sml_worker_init(void *mem, const struct sml_worker_options *options);
struct sml_aggregator *__real_sml_aggregator_init(void *mem, const struct sml_aggregator_options *options);
struct sml_aggregator *__wrap_sml_aggregator_init(void *mem, const struct sml_aggregator_options *options);
uint64_t __wrap_sml_worker_next_deadline(const struct sml_worker *w);
void __wrap_sml_worker_on_timer(struct sml_worker *w, uint64_t now_ns);

struct sml_worker *__wrap_sml_worker_init(void *mem, const struct sml_worker_options *options) {
  struct sml_worker_options o = *options;
  o.order_slots = UINT32_MAX;
  return __real_sml_worker_init(mem, &o);
}

struct sml_aggregator *__wrap_sml_aggregator_init(void *mem, const struct sml_aggregator_options *options) {
  struct sml_aggregator_options o = *options;
  o.order_slots = UINT32_MAX;
  return __real_sml_aggregator_init(mem, &o);
}

/* The engine sees by it that something is outstanding. */
uint64_t __wrap_sml_worker_next_deadline(const struct sml_worker *w) {
  return w->view.num_outstanding == 0 ? SML_NEVER : w->last_update_ns + 3600 * SML_NS_PER_S;
}

void __wrap_sml_worker_on_timer(struct sml_worker *w, uint64_t now_ns) {
  (void)w, (void)now_ns;
}
