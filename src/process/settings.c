/* SPDX-License-Identifier: Apache-2.0 */
#include "process/settings.h"

#include <stdio.h>
#include <stdlib.h>

#define DEFAULT_OPERATIONS 1024u
#define MAX_OPERATIONS 65536u
#define MAX_THREADS 16u
#define DEFAULT_RX_BUFFER_BYTES (8u << 20)
#define JOB_EVENTS 4096u

const char *sml_settings_environment(const char *name) {
  const char *value = getenv(name);
  return value != NULL && value[0] != 0 ? value : NULL;
}

sml_status sml_settings_read_switch(const char *name, bool *is_on) {
  const char *text = sml_settings_environment(name);
  if (text == NULL) return SML_OK;
  *is_on = strcmp(text, "1") == 0;
  if (*is_on || strcmp(text, "0") == 0) return SML_OK;
  return sml_fail(SML_ERR_INVALID_ARGUMENT, "%s is '%.64s': set 1 or 0", name, text);
}

sml_status sml_settings_read_number(const char *name, uint32_t min, uint32_t max, uint32_t *value) {
  const char *text = sml_settings_environment(name);
  if (text == NULL) return SML_OK;
  char *end;
  const unsigned long number = strtoul(text, &end, 10);
  if (text[0] < '0' || text[0] > '9' || *end != 0 || number < min || number > max)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "%s is '%.64s': set a number from %u to %u", name, text, min, max);
  *value = (uint32_t)number;
  return SML_OK;
}

static sml_status read_threads(struct sml_settings *s) {
  return s->num_threads == 0 ? sml_settings_read_number("SWITCHML_THREADS", 1, MAX_THREADS, &s->num_threads) : SML_OK;
}

static sml_status read_switches(struct sml_settings *s) {
  bool no_offload = false, has_congestion_control = true;
  const sml_status status = sml_settings_read_switch("SWITCHML_NO_OFFLOAD", &no_offload);
  if (status != SML_OK) return status;
  s->no_offload = s->no_offload || no_offload;
  const sml_status congestion_status = sml_settings_read_switch("SWITCHML_CONGESTION", &has_congestion_control);
  s->no_congestion_control = s->no_congestion_control || !has_congestion_control;
  return congestion_status;
}

static sml_status read_poll(struct sml_settings *s) {
  const char *text = sml_settings_environment("SWITCHML_POLL");
  if (text == NULL || s->poll != SML_POLL_AUTO || sml_poll_parse(text, &s->poll)) return SML_OK;
  return sml_fail(SML_ERR_INVALID_ARGUMENT, "SWITCHML_POLL is '%.64s': set auto, busy or block", text);
}

static sml_status read_cpus(struct sml_settings *s, const char *text) {
  if (text == NULL) text = sml_settings_environment("SWITCHML_CPUS");
  if (text == NULL || text[0] == 0 || sml_cpus_parse(text, &s->cpus)) return SML_OK;
  return sml_fail(SML_ERR_INVALID_ARGUMENT,
                  "SWITCHML_CPUS, or the option cpus, is '%.64s': set processors, as in 0-3,8", text);
}

static sml_status read_kernels(struct sml_settings *s) {
  const char *text = sml_settings_environment("SWITCHML_KERNELS");
  s->kernels = sml_quant_select(text);
  if (text == NULL) return SML_OK;
  static const char *const names[] = {"scalar", "avx2", "avx512", "neon"};
  size_t i = 0;
  while (i < SML_ARRAY_LEN(names) && strcmp(text, names[i]) != 0) i++;
  if (i == SML_ARRAY_LEN(names))
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "SWITCHML_KERNELS is '%.64s': set scalar, avx2, avx512 or neon", text);
  if (strcmp(text, s->kernels->name) != 0)
    return sml_fail(SML_ERR_UNSUPPORTED, "SWITCHML_KERNELS is '%s', which this processor does not have", text);
  return SML_OK;
}

static sml_status read_faults(struct sml_settings *s) {
  const char *text = sml_settings_environment("SWITCHML_FAULTS");
  char error[SML_ERROR_DETAIL_BYTES / 2];
  if (text == NULL) return SML_OK;
  if (!sml_faults_parse(text, &s->faults, error, sizeof error))
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "SWITCHML_FAULTS is '%.64s': %s", text, error);
  s->has_faults = sml_faults_any(&s->faults);
  return SML_OK;
}

static sml_status read_log(struct sml_settings *s) {
  const char *text = sml_settings_environment("SWITCHML_DEBUG");
  char complaint[192];
  sml_lib_log_open(sml_settings_environment("SWITCHML_DEBUG_FILE"));
  if (text == NULL || sml_lib_log_parse_level(text, &s->log_level)) return SML_OK;
  snprintf(complaint, sizeof complaint,
           "SWITCHML_DEBUG is '%.64s': set VERSION, WARN, INFO or TRACE; only warnings are shown", text);
  sml_lib_log_line(SML_LIB_LOG_WARN, SML_LIB_LOG_NO_RANK, complaint);
  return SML_OK;
}

static sml_status read_path(const char *name, char *path, size_t path_bytes) {
  const char *text = sml_settings_environment(name);
  if (text == NULL) return SML_OK;
  if (strlen(text) >= path_bytes)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "%s has more than %zu bytes", name, path_bytes - 1);
  memcpy(path, text, strlen(text) + 1);
  return SML_OK;
}

static sml_status read_trace(struct sml_settings *s) {
  static const char *const names[] = {
      [SML_TRACE_OFF] = "off", [SML_TRACE_NOTABLE] = "notable", [SML_TRACE_ALL] = "all"};
  const char *level = sml_settings_environment("SWITCHML_TRACE");
  s->trace_level = SML_TRACE_NOTABLE;
  s->trace_events = SML_TRACE_DEFAULT_EVENTS;
  size_t i = 0;
  while (level != NULL && i < SML_ARRAY_LEN(names) && strcmp(level, names[i]) != 0) i++;
  if (i == SML_ARRAY_LEN(names))
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "SWITCHML_TRACE is '%.64s': set off, notable or all", level);
  if (level != NULL) s->trace_level = (enum sml_trace_level)i;
  sml_status status = sml_settings_read_number("SWITCHML_TRACE_EVENTS", 0, SML_TRACE_MAX_EVENTS, &s->trace_events);
  if (status == SML_OK) status = read_path("SWITCHML_PCAP", s->pcap_path, sizeof s->pcap_path);
  if (status == SML_OK) status = read_path("SWITCHML_TRACE_DIR", s->trace_folder, sizeof s->trace_folder);
  return status;
}

sml_status sml_settings_read(const sml_context_options *options, struct sml_settings *s) {
  memset(s, 0, sizeof *s);
  sml_context_options o = SML_CONTEXT_OPTIONS_INIT;
  if (options != NULL) {
    const sml_status status = sml_options_copy(&o, sizeof o, options, "sml_context_options");
    if (status != SML_OK) return status;
  }
  if (o.num_threads > MAX_THREADS)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "num_threads is %u: at most %u", o.num_threads, MAX_THREADS);
  if (o.num_operations > MAX_OPERATIONS)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "num_operations is %u: at most %u", o.num_operations, MAX_OPERATIONS);
  if (o.poll > SML_POLL_BLOCK)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "poll is %u: 0 (auto), 1 (busy) or 2 (block)", o.poll);
  if (o.no_offload > 1 || o.no_congestion_control > 1)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "no_offload is %u, no_congestion_control %u: 0 or 1", o.no_offload,
                    o.no_congestion_control);
  s->poll = (enum sml_poll)o.poll;
  s->num_threads = o.num_threads;
  s->num_operations = o.num_operations == 0 ? DEFAULT_OPERATIONS : 1u << sml_ceil_log2(o.num_operations);
  s->rx_buffer_bytes = o.rx_buffer_bytes == 0 ? DEFAULT_RX_BUFFER_BYTES : o.rx_buffer_bytes;
  s->no_offload = o.no_offload != 0;
  s->no_congestion_control = o.no_congestion_control != 0;
  const sml_status cpus_status = read_cpus(s, o.cpus);
  if (cpus_status != SML_OK) return cpus_status;
  sml_status (*const readers[])(struct sml_settings *) = {read_threads, read_switches, read_poll, read_kernels,
                                                          read_faults,  read_log,      read_trace};
  for (size_t i = 0; i < SML_ARRAY_LEN(readers); i++) {
    const sml_status status = readers[i](s);
    if (status != SML_OK) return status;
  }
  if (s->num_threads == 0) s->num_threads = 1;
  return SML_OK;
}

struct sml_recorder *sml_settings_make_recorder(const struct sml_settings *s, uint32_t max_events) {
  return sml_recorder_create(&(struct sml_recorder_options){
      .level = s->trace_level, .num_events = sml_min_u32(s->trace_events, max_events != 0 ? max_events : JOB_EVENTS)});
}

void sml_settings_log(const struct sml_settings *s) {
  static const char *const polls[] = {[SML_POLL_AUTO] = "auto", [SML_POLL_BUSY] = "busy", [SML_POLL_BLOCK] = "block"};
  char text[256];
  if (s->log_level < SML_LIB_LOG_VERSION) return;
  sml_lib_log_line(SML_LIB_LOG_VERSION, SML_LIB_LOG_NO_RANK, "libswitchml " SML_VERSION_TEXT);
  if (s->log_level < SML_LIB_LOG_INFO) return;
  sml_lib_log_environment();
  snprintf(text, sizeof text,
           "%u engine thread%s on %s, kernels %s, waits poll %s, %u operations in flight, receive buffers of %u KiB%s",
           s->num_threads, s->num_threads == 1 ? "" : "s",
           sml_cpus_of_thread(&s->cpus, 0) == SML_MAX_CPUS ? "any processor" : "processors of their own",
           s->kernels->name, polls[s->poll], s->num_operations, s->rx_buffer_bytes / 1024,
           s->has_faults ? "; FAULTS ARE MADE (SWITCHML_FAULTS)" : "");
  sml_lib_log_line(SML_LIB_LOG_INFO, SML_LIB_LOG_NO_RANK, text);
}
