/* SPDX-License-Identifier: Apache-2.0 */
#include "method/engines.h"

#include <errno.h>
#include <netinet/in.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void close_unit(struct sml_engine_unit *unit) {
  if (unit->engine) sml_worker_engine_destroy(unit->engine);
  if (unit->io) unit->io->ops->close(unit->io);
  memset(unit, 0, sizeof *unit);
}

static struct sml_addr any_address(int family) {
  struct sml_addr addr = {.num_bytes = 0};
  if (family == AF_INET6) {
    const struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    memcpy(addr.bytes, &v6, addr.num_bytes = sizeof v6);
  } else {
    const struct sockaddr_in v4 = {.sin_family = AF_INET};
    memcpy(addr.bytes, &v4, addr.num_bytes = sizeof v4);
  }
  return addr;
}

/* Ranks that were given one seed must not lose the same frames, but the same ones each time. */
static uint64_t fault_seed(uint64_t seed, uint32_t lane) {
  const char *rank = getenv("RANK");
  uint64_t process = seed == 0 ? (uint64_t)getpid() : 0;
  if (rank != NULL) process = strtoull(rank, NULL, 10);
  return sml_mix64(seed + lane) ^ sml_mix64(process + 1);
}

static sml_status add_faults(struct sml_engine_unit *unit, const struct sml_settings *settings, uint32_t lane) {
  struct sml_fault_options faults = settings->faults;
  faults.seed = fault_seed(faults.seed, lane);
  struct sml_netio *wrapped = sml_faults_wrap(unit->io, &faults);
  if (wrapped == NULL) return sml_fail(SML_ERR_NO_MEMORY, "no memory for the fault injector");
  unit->io = wrapped;
  return SML_OK;
}

static void warn_of_capture(void *user, const char *text) {
  (void)user;
  sml_lib_log_line(SML_LIB_LOG_WARN, SML_LIB_LOG_NO_RANK, text);
}

static sml_status open_io(struct sml_engine_unit *unit, const struct sml_settings *settings, int family,
                          uint32_t lane) {
  const struct sml_addr bind_addr = any_address(family);
  const struct sml_udp_options options = {.bind_addr = &bind_addr,
                                          .rx_buffer_bytes = settings->rx_buffer_bytes,
                                          .no_offload = settings->no_offload,
                                          .no_ecn = settings->no_congestion_control,
                                          .polls_device = settings->poll == SML_POLL_BUSY};
  char error[SML_ERROR_DETAIL_BYTES];
  if (sml_udp_open(&options, &unit->io, error, sizeof error) != 0) {
    unit->io = NULL;
    return sml_fail(SML_ERR_SYSTEM, "opening a data socket failed: %s", error);
  }
  const sml_status status = settings->has_faults ? add_faults(unit, settings, lane) : SML_OK;
  if (status != SML_OK || settings->pcap_path[0] == 0) return status;
  /* Outermost: it shows what the engine sees. A capture is a help, and no reason to fail. */
  const struct sml_pcap_options pcap = {
      .path = settings->pcap_path, .lane = lane, .is_shared_name = true, .warn = warn_of_capture};
  if (sml_pcap_wrap(unit->io, &pcap, &unit->io, error, sizeof error) != 0) warn_of_capture(NULL, error);
  return SML_OK;
}

static sml_status start_unit(struct sml_engine_unit *unit, const struct sml_settings *settings, int family,
                             uint32_t lane, struct sml_recorder *recorder) {
  const sml_status status = open_io(unit, settings, family, lane);
  if (status != SML_OK) return status;
  const struct sml_worker_engine_options options = {.io = unit->io, .kernels = settings->kernels, .recorder = recorder};
  unit->engine = sml_worker_engine_create(&options);
  if (unit->engine == NULL) return sml_fail(SML_ERR_NO_MEMORY, "no memory for engine %u", lane);
  const uint32_t cpu = sml_cpus_of_thread(&settings->cpus, lane);
  unit->thread = (struct sml_engine_thread){.io = unit->io,
                                            .engine = unit->engine,
                                            .run_once = sml_worker_engine_run_once,
                                            .is_pinned = cpu != SML_MAX_CPUS,
                                            .cpu = cpu,
                                            .spin_ns = sml_poll_spin_ns(settings->poll),
                                            /* Its own thread writes what a rank captured, and is idle since. */
                                            .is_shared = settings->pcap_path[0] == 0};
  char name[16];
  snprintf(name, sizeof name, "sml-engine-%u", lane % 100);
  const int error = sml_engine_thread_start(&unit->thread, name);
  if (error != 0 && unit->thread.is_pinned)
    return sml_fail(SML_ERR_SYSTEM, "starting an engine thread on processor %u failed: %s", cpu, strerror(error));
  if (error != 0) return sml_fail(SML_ERR_SYSTEM, "starting an engine thread failed: %s", strerror(error));
  return SML_OK;
}

sml_status sml_engines_start(struct sml_engines *engines, const struct sml_settings *settings, int family) {
  for (uint32_t i = 0; i < settings->num_threads; i++) {
    if (engines->recorders[i] == NULL)
      engines->recorders[i] = sml_settings_make_recorder(settings, SML_TRACE_MAX_EVENTS);
    const sml_status status = engines->recorders[i] == NULL
                                  ? sml_fail(SML_ERR_NO_MEMORY, "no memory for a flight recorder")
                                  : start_unit(&engines->units[i], settings, family, i, engines->recorders[i]);
    if (status == SML_OK) {
      engines->num_engines++;
      continue;
    }
    close_unit(&engines->units[i]);
    sml_engines_stop(engines);
    sml_engines_close(engines);
    return status;
  }
  return SML_OK;
}

void sml_engines_stop(struct sml_engines *engines) {
  for (uint32_t i = 0; i < engines->num_engines; i++) sml_engine_thread_stop(&engines->units[i].thread);
}

void sml_engines_close(struct sml_engines *engines) {
  for (uint32_t i = 0; i < engines->num_engines; i++) close_unit(&engines->units[i]);
  engines->num_engines = 0;
}

void sml_engines_free_recorders(struct sml_engines *engines) {
  for (uint32_t i = 0; i < SML_MAX_ENGINES; i++) sml_recorder_destroy(engines->recorders[i]);
}

void sml_engines_close_descriptors(struct sml_engines *engines) {
  for (uint32_t i = 0; i < engines->num_engines; i++)
    engines->units[i].io->ops->close_descriptors(engines->units[i].io);
}

struct call {
  struct sml_engine_command command; /* first: run_call() gets its address */
  void (*function)(struct sml_worker_engine *engine, void *argument);
  void *argument;
  sem_t has_run;
};

static void run_call(struct sml_engine_command *command, void *engine, uint64_t now_ns) {
  (void)now_ns;
  struct call *call = (struct call *)command;
  call->function(engine, call->argument);
  sem_post(&call->has_run);
}

void sml_engines_call(struct sml_engines *engines, uint32_t lane,
                      void (*function)(struct sml_worker_engine *engine, void *argument), void *argument) {
  struct call call = {.command.run = run_call, .function = function, .argument = argument};
  sem_init(&call.has_run, 0, 0);
  sml_engines_post(engines, lane, &call.command);
  while (sem_wait(&call.has_run) != 0) SML_ASSERT(errno == EINTR);
  sem_destroy(&call.has_run);
}

void sml_engines_post(struct sml_engines *engines, uint32_t lane, struct sml_engine_command *command) {
  SML_ASSERT(lane < engines->num_engines);
  struct sml_engine_unit *unit = &engines->units[lane];
  sml_mailbox_post(sml_worker_engine_mailbox(unit->engine), command, NULL);
  sml_engine_thread_wake(&unit->thread);
}

uint64_t sml_engines_unsent(const struct sml_engines *engines, struct sml_unsent *last) {
  uint64_t num_packets = 0;
  *last = (struct sml_unsent){.error = 0};
  for (uint32_t e = 0; e < engines->num_engines; e++) {
    struct sml_unsent unsent;
    sml_worker_engine_unsent(engines->units[e].engine, &unsent);
    num_packets += unsent.num_packets;
    if (unsent.error != 0 && unsent.at_ns >= last->at_ns) *last = unsent;
  }
  return num_packets;
}
