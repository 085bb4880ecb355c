/* SPDX-License-Identifier: Apache-2.0
 * What an engine's netio did. The engine writes it after each pass, and any thread reads it. The figures are relaxed:
 * each stands for itself. */
#pragma once

#include <stdatomic.h>

#include "engine/worker_engine.h"

struct sml_io_figures {
  _Atomic uint64_t system_calls, num_unsent, unsent_ns;
  _Atomic int32_t unsent_error;
  _Atomic bool has_offload;
};

static inline void sml_io_figures_publish(struct sml_io_figures *f, const struct sml_netio *io) {
  atomic_store_explicit(&f->system_calls, io->stats.system_calls, memory_order_relaxed);
  atomic_store_explicit(&f->has_offload, io->has_segmentation_offload, memory_order_relaxed);
  atomic_store_explicit(&f->num_unsent, io->stats.tx_lost_frames, memory_order_relaxed);
  atomic_store_explicit(&f->unsent_ns, io->stats.tx_error_ns, memory_order_relaxed);
  atomic_store_explicit(&f->unsent_error, io->stats.tx_error, memory_order_relaxed);
}

const struct sml_io_figures *sml_worker_engine_io_figures(const struct sml_worker_engine *engine);
