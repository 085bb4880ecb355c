/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/io_figures.h"

uint64_t sml_worker_engine_system_calls(const struct sml_worker_engine *e) {
  return atomic_load_explicit(&sml_worker_engine_io_figures(e)->system_calls, memory_order_relaxed);
}

bool sml_worker_engine_has_offload(const struct sml_worker_engine *e) {
  return atomic_load_explicit(&sml_worker_engine_io_figures(e)->has_offload, memory_order_relaxed);
}

void sml_worker_engine_unsent(const struct sml_worker_engine *e, struct sml_unsent *unsent) {
  const struct sml_io_figures *f = sml_worker_engine_io_figures(e);
  unsent->num_packets = atomic_load_explicit(&f->num_unsent, memory_order_relaxed);
  unsent->at_ns = atomic_load_explicit(&f->unsent_ns, memory_order_relaxed);
  unsent->error = atomic_load_explicit(&f->unsent_error, memory_order_relaxed);
}
