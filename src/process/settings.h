/* SPDX-License-Identifier: Apache-2.0
 * What a context runs with: the caller's options and the environment, checked once. A value that
 * cannot be used is an error, never ignored; but for SWITCHML_DEBUG, for which nobody should lose a job. */
#pragma once

#include "engine/cpus.h"
#include "engine/engine.h"
#include "netio/netio.h"
#include "process/log.h"
#include "process/status.h"
#include "quant/quant.h"
#include "trace/recorder.h"

struct sml_settings {
  uint32_t num_threads, num_operations, rx_buffer_bytes;
  bool no_offload;
  bool no_congestion_control;
  enum sml_poll poll;
  struct sml_cpus cpus; /* of the engine threads */
  const struct sml_quant_kernels *kernels;
  struct sml_fault_options faults;
  bool has_faults;
  enum sml_lib_log_level log_level;
  enum sml_trace_level trace_level;
  uint32_t trace_events;  /* of an engine's recorder */
  char pcap_path[512];    /* "": packets are not captured */
  char trace_folder[512]; /* for the trace of a job that failed; "": none is written */
};

/* NULL when unset or empty. */
const char *sml_settings_environment(const char *name);
/* 1 or 0, and a number of this range. Where it is unset or empty, the value stays. */
sml_status sml_settings_read_switch(const char *name, bool *is_on);
sml_status sml_settings_read_number(const char *name, uint32_t min, uint32_t max, uint32_t *value);

/* options may be NULL. */
sml_status sml_settings_read(const sml_context_options *options, struct sml_settings *settings_out);

/* A flight recorder with what SWITCHML_TRACE and SWITCHML_TRACE_EVENTS say: of an engine, or of a job, which has fewer
 * events. NULL: out of memory. */
struct sml_recorder *sml_settings_make_recorder(const struct sml_settings *settings, uint32_t max_events);

/* The library's version, the settings and the environment, for people: as far as the level goes. */
void sml_settings_log(const struct sml_settings *settings);
