/* SPDX-License-Identifier: Apache-2.0
 * How the service begins and ends, and what other threads ask of it. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "aggd/aggd_internal.h"
#include "base/fd.h"
#include "base/thread.h"
#include "ctl/tuning.h"

#define MAX_UNJOINED_PER_HOST 64u

/* The system is asked once, while a failure can still be told: SipHash of a counter under that key. */
static uint64_t draw_random(void *user) {
  struct sml_aggd *a = user;
  a->num_draws++;
  return sml_siphash(&a->random_key, &a->num_draws, sizeof a->num_draws);
}

static int seed_random(struct sml_aggd *a, char *error_out, size_t error_bytes) {
  if (getrandom(&a->random_key, sizeof a->random_key, 0) == (ssize_t)sizeof a->random_key) return 0;
  int error = errno;
  snprintf(error_out, error_bytes, "cannot draw random numbers (getrandom): %s", strerror(error));
  return -error;
}

static uint64_t count_packets(void *user, uint16_t job, uint32_t rank) {
  const struct sml_aggd *a = user;
  return sml_lanes_packets(a->lanes, job, rank);
}

static void set_defaults(struct sml_aggd *a) {
  struct sml_aggd_options *o = &a->options;
  if (o->num_lanes == 0) o->num_lanes = 1;
  if (o->pool_slots == 0) o->pool_slots = 8192;
  if (o->max_jobs == 0) o->max_jobs = 256;
  if (o->max_connections == 0) o->max_connections = 1024;
  if (o->rx_buffer_bytes == 0) o->rx_buffer_bytes = sml_max_u32(o->max_window_mib, SML_TUNING_MOST_MIB) << 20;
  if (o->join_grace_ns == 0) o->join_grace_ns = 5 * SML_NS_PER_S;
  if (o->new_connections_per_s == 0) o->new_connections_per_s = 100;
  if (o->max_messages_per_s == 0) o->max_messages_per_s = 1000;
  if (o->trace_events == 0) o->trace_events = SML_TRACE_DEFAULT_EVENTS;
  if (o->late_note_ns == 0) o->late_note_ns = 10 * SML_NS_PER_S;
  if (o->first_phase == 0) o->first_phase = SML_FIRST_PHASE;
  if (o->multicast.ttl == 0) o->multicast.ttl = 1;
}

static bool check_options(const struct sml_aggd_options *o, char *error_out, size_t error_bytes) {
  const char *bad = NULL;
  if (o->num_lanes > SML_MAX_LANES) bad = "at most 16 lanes";
  else if (o->pool_slots > SML_AGGD_MAX_SLOTS) bad = "at most 65536 slots a lane";
  else if (o->max_jobs > SML_AGGD_MAX_JOBS) bad = "at most 1024 jobs";
  else if (o->max_connections > (1u << 20)) bad = "at most 1048576 connections";
  else if (o->first_data_port && o->first_data_port + o->num_lanes > 65536) bad = "data ports end at 65535";
  else if (o->first_phase % 2 != 0) bad = "the first phase is even";
  else if (o->packet_lanes != 0 && (!sml_is_pow2(o->packet_lanes) || o->packet_lanes < SML_MIN_PACKET_LANES ||
                                    o->packet_lanes > SML_MAX_PACKET_LANES))
    bad = "packets in switch format have 32, 64, 128 or 256 lanes";
  else if (o->dataplane && (o->packet_lanes == 0 || o->num_lanes != 1))
    bad = "a switch has one lane, and --switch-format";
  else if (o->packet_lanes != 0 && (o->num_keys > 0 || o->multicast.first.num_bytes > 0))
    bad = "in switch format there are neither keys nor multicast groups";
  else if (o->multicast.first.num_bytes > 0 && o->multicast.first.num_bytes != o->listen.num_bytes)
    bad = "multicast groups and the address to listen on are both IPv4 or both IPv6";
  if (bad) snprintf(error_out, error_bytes, "an aggregator has limits: %s", bad);
  return bad == NULL;
}

static int open_listener(struct sml_aggd *a, char *error_out, size_t error_bytes) {
  char text[SML_PEER_BYTES];
  const struct sml_addr *addr = &a->options.listen;
  const struct sockaddr *sockaddr = (const struct sockaddr *)(const void *)addr->bytes;
  sml_addr_format(addr, text, sizeof text);
  struct sockaddr_storage local = {0};
  socklen_t local_bytes = sizeof local;
  int one = 1;
  a->listen_fd = sml_fd_raise(socket(sockaddr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  /* Connections of a daemon that just went are still fading out; they must not keep its successor off. */
  if (a->listen_fd < 0 || setsockopt(a->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
      bind(a->listen_fd, sockaddr, addr->num_bytes) != 0 || listen(a->listen_fd, 1024) != 0 ||
      getsockname(a->listen_fd, (struct sockaddr *)&local, &local_bytes) != 0) {
    int error = errno;
    const char *advice = error == EADDRINUSE      ? "; stop the process that has this port, or choose another port"
                         : error == EADDRNOTAVAIL ? "; choose an address of this host, or 0.0.0.0 for all of them"
                         : error == EACCES        ? "; choose a port above 1023"
                                                  : "";
    snprintf(error_out, error_bytes, "cannot listen on %s: %s%s", text, strerror(error), advice);
    return -error;
  }
  a->addr.num_bytes = (uint8_t)sml_min_u64(local_bytes, sizeof a->addr.bytes);
  memcpy(a->addr.bytes, &local, a->addr.num_bytes);
  return 0;
}

static int open_epoll(struct sml_aggd *a, char *error_out, size_t error_bytes) {
  a->epoll_fd = sml_fd_raise(epoll_create1(EPOLL_CLOEXEC));
  a->event_fd = sml_fd_raise(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  struct epoll_event on_listen = {.events = EPOLLIN, .data.u32 = TAG_LISTEN};
  struct epoll_event on_event = {.events = EPOLLIN, .data.u32 = TAG_EVENT};
  if (a->epoll_fd >= 0 && a->event_fd >= 0 && epoll_ctl(a->epoll_fd, EPOLL_CTL_ADD, a->listen_fd, &on_listen) == 0 &&
      epoll_ctl(a->epoll_fd, EPOLL_CTL_ADD, a->event_fd, &on_event) == 0)
    return 0;
  int error = errno;
  snprintf(error_out, error_bytes, "cannot set up epoll: %s", strerror(error));
  return -error;
}

static int open_registry(struct sml_aggd *a, char *error_out, size_t error_bytes) {
  const struct sml_aggd_options *o = &a->options;
  struct sml_registry_options options = {.max_connections = o->max_connections,
                                         .max_unjoined_per_host = MAX_UNJOINED_PER_HOST,
                                         .max_jobs = o->max_jobs,
                                         .num_lanes = o->num_lanes,
                                         .pool_slots = o->pool_slots,
                                         .max_window_mib = o->max_window_mib,
                                         .packet_lanes = o->packet_lanes,
                                         .is_embedded = o->is_embedded,
                                         .max_datagram_bytes = sml_lanes_max_datagram_bytes(a->lanes),
                                         .join_grace_ns = o->join_grace_ns,
                                         .max_lease_ns = o->max_lease_ns,
                                         .max_join_ns = o->max_join_ns,
                                         .first_phase = o->first_phase,
                                         .first_chunk = o->first_chunk,
                                         .random = draw_random,
                                         .random_user = a,
                                         .find_key = o->num_keys > 0 ? sml_tenants_find_key : NULL,
                                         .find_key_user = &a->tenants,
                                         .count_packets = count_packets,
                                         .count_packets_user = a,
                                         .find_quota = sml_tenants_find_quota,
                                         .find_quota_user = &a->tenants,
                                         .max_connections_per_host = o->max_connections_per_host,
                                         .new_connections_per_s = o->new_connections_per_s,
                                         .max_messages_per_s = o->max_messages_per_s,
                                         .late_note_ns = o->late_note_ns};
  for (uint32_t l = 0; l < o->num_lanes; l++) options.data_ports[l] = sml_lanes_port(a->lanes, l);
  if (o->multicast.first.num_bytes > 0) {
    sml_multicast_to_words(&o->multicast.first, options.first_group);
    options.num_groups = o->multicast.num_groups;
    options.group_port = sml_addr_port(&o->multicast.first);
  }
  const struct sml_recorder_options trace = {o->trace_level, o->trace_events};
  const bool has_trace = sml_aggd_trace_open(&a->trace, &trace, o->max_jobs);
  a->registry_options = options;
  void *mem = calloc(1, sml_registry_memsize(&options));
  a->conns = calloc(o->max_connections, sizeof *a->conns);
  a->buffers = calloc(o->max_connections, sizeof *a->buffers);
  a->epoll_events = calloc(o->max_connections + 2, sizeof *a->epoll_events);
  const bool has_tenants = sml_tenants_set(&a->tenants, o->keys, o->num_keys, o->tenants, o->num_tenants);
  const bool has_networks = sml_tenants_set_networks(&a->tenants, o->networks, o->num_networks);
  a->options.keys = NULL; /* the caller's */
  a->options.networks = NULL;
  a->options.tenants = NULL;
  if (mem) a->registry = sml_registry_init(mem, &options);
  a->answers.options = &a->options;
  a->answers.registry = a->registry;
  a->answers.lanes = a->lanes;
  a->answers.tenants = &a->tenants;
  a->answers.addr = a->addr;
  a->answers.event_fd = a->event_fd;
  a->answers.reports = calloc(SML_REGISTRY_MAX_JOBS, sizeof *a->answers.reports);
  const bool has_arrays = a->conns && a->buffers && a->epoll_events && a->answers.reports;
  if (mem && has_arrays && has_tenants && has_networks && has_trace) return 0;
  snprintf(error_out, error_bytes, "out of memory for %u connections", o->max_connections);
  return -ENOMEM;
}

static int start_thread(struct sml_aggd *a, char *error_out, size_t error_bytes) {
  const int error = sml_thread_start(&a->thread, "sml-aggd", sml_aggd_run, a);
  a->is_running = error == 0;
  if (error != 0) snprintf(error_out, error_bytes, "cannot start a thread: %s", strerror(error));
  return -error;
}

static void destroy(struct sml_aggd *a) {
  if (a->lanes) sml_lanes_close(a->lanes);
  if (a->trace.max_jobs) sml_aggd_trace_close(&a->trace);
  if (a->listen_fd >= 0) close(a->listen_fd);
  if (a->epoll_fd >= 0) close(a->epoll_fd);
  if (a->event_fd >= 0) close(a->event_fd);
  sml_answers_destroy(&a->answers);
  free(a->registry);
  free(a->conns);
  free(a->buffers);
  free(a->epoll_events);
  sml_tenants_destroy(&a->tenants);
  free(a);
}

int sml_aggd_start(const struct sml_aggd_options *options, struct sml_aggd **aggd_out, char *error_out,
                   size_t error_bytes) {
  struct sml_aggd *a = calloc(1, sizeof *a);
  if (!a) {
    snprintf(error_out, error_bytes, "out of memory");
    return -ENOMEM;
  }
  a->options = *options;
  sml_answers_init(&a->answers);
  sml_tenants_init(&a->tenants);
  a->listen_fd = a->epoll_fd = a->event_fd = -1;
  a->watch_at_ns = SML_NEVER;
  int error = seed_random(a, error_out, error_bytes);
  if (!error) set_defaults(a);
  if (!error && !check_options(&a->options, error_out, error_bytes)) error = -EINVAL;
  if (!error) error = open_listener(a, error_out, error_bytes);
  if (!error) error = open_epoll(a, error_out, error_bytes);
  if (!error) error = sml_lanes_open(&a->options, a->event_fd, &a->lanes, error_out, error_bytes);
  if (!error) error = open_registry(a, error_out, error_bytes);
  if (!error) error = start_thread(a, error_out, error_bytes);
  if (error) {
    destroy(a);
    return error;
  }
  *aggd_out = a;
  return 0;
}

int sml_aggd_set_tenants(struct sml_aggd *a, const struct sml_key_entry *keys, uint32_t num_keys,
                         const struct sml_tenant *tenants, uint32_t num_tenants) {
  if ((num_keys > 0) != (a->options.num_keys > 0)) return -EINVAL;
  return sml_tenants_set(&a->tenants, keys, num_keys, tenants, num_tenants) ? 0 : -ENOMEM;
}

void sml_aggd_end_withdrawn(struct sml_aggd *a) {
  const uint64_t one = 1;
  atomic_store_explicit(&a->should_end_withdrawn, true, memory_order_release); /* pairs with sml_aggd_run */
  while (write(a->event_fd, &one, sizeof one) < 0 && errno == EINTR) continue; /* full: it wakes all the same */
}

int sml_aggd_set_networks(struct sml_aggd *a, const struct sml_network *networks, uint32_t num_networks) {
  return sml_tenants_set_networks(&a->tenants, networks, num_networks) ? 0 : -ENOMEM;
}

void sml_aggd_stop(struct sml_aggd *a) {
  uint64_t one = 1;
  atomic_store_explicit(&a->should_stop, true, memory_order_release);          /* pairs with sml_aggd_run */
  while (write(a->event_fd, &one, sizeof one) < 0 && errno == EINTR) continue; /* full: it wakes all the same */
  pthread_join(a->thread, NULL);
  destroy(a);
}

uint64_t sml_aggd_lowest_completed(const struct sml_aggd *a) {
  return atomic_load_explicit(&a->lowest_completed, memory_order_relaxed);
}

void sml_aggd_close_descriptors(struct sml_aggd *a) {
  for (uint32_t i = 0; i < a->options.max_connections; i++)
    if (a->conns[i].state != CONN_FREE && a->conns[i].fd >= 0) close(a->conns[i].fd);
  close(a->listen_fd);
  close(a->epoll_fd);
  close(a->event_fd);
  sml_lanes_close_descriptors(a->lanes);
}

void sml_aggd_addr(const struct sml_aggd *a, struct sml_addr *addr_out) {
  *addr_out = a->addr;
}

bool sml_aggd_collect_trace(struct sml_aggd *a, struct sml_trace_dump *dump) {
  return sml_lanes_collect_trace(a->lanes, dump) && sml_aggd_trace_add(&a->trace, dump);
}

struct sml_snapshot *sml_aggd_snapshot(struct sml_aggd *a) {
  return sml_answers_ask(&a->answers);
}

void sml_aggd_describe_drops(const struct sml_aggd *a, char *text, size_t text_bytes) {
  uint64_t num_drops[SML_NUM_DROPS];
  size_t used_bytes = 0;
  sml_lanes_drops(a->lanes, num_drops);
  text[0] = 0;
  for (uint32_t d = 0; d < SML_NUM_DROPS; d++) {
    if (num_drops[d] == 0 || used_bytes >= text_bytes) continue;
    used_bytes += (size_t)snprintf(text + used_bytes, text_bytes - used_bytes, "%s%s=%llu", used_bytes ? " " : "",
                                   sml_drop_name((enum sml_drop)d), (unsigned long long)num_drops[d]);
  }
}
