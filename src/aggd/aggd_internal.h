/* SPDX-License-Identifier: Apache-2.0
 * The service's own state, shared by aggd.c (the control thread) and aggd_start.c (how it begins and ends). */
#pragma once

#include <pthread.h>
#include <sys/epoll.h>

#include "aggd/aggd.h"
#include "aggd/answers.h"
#include "aggd/lanes.h"
#include "aggd/trace.h"
#include "ctl/channel.h"
#include "ctl/registry.h"

#define OUT_BYTES 12288u /* unsent messages of a connection: START of the largest world and a dozen others */
/* Numbers in the epoll set, beside connections' numbers. */
#define TAG_LISTEN UINT32_MAX
#define TAG_EVENT (UINT32_MAX - 1)

enum conn_state {
  CONN_FREE,
  CONN_OPEN,
  CONN_LINGERING, /* the registry has forgotten it; what it still says is thrown away */
};

struct conn {
  int fd;
  enum conn_state state;
  bool is_broken; /* OPEN: to be reported closed once the effects are done */
  enum sml_close_cause cause;
  bool wants_out;  /* EPOLLOUT is armed */
  bool has_spoken; /* something was said to the peer */
  uint64_t linger_until_ns;
  uint32_t shown; /* the ticket of the status that it is shown */
  size_t in_bytes, out_bytes;
  struct conn_buffers *buffers;
};

/* Apart from the connections, which each pass looks through. */
struct conn_buffers {
  struct sml_channel channel;
  uint8_t in[SML_CHANNEL_MAX_FRAME_BYTES];
  uint8_t out[OUT_BYTES];
};

/* What was turned away for one reason since the log had it last. */
struct turned_away {
  uint64_t noted_ns, num;
};

struct sml_aggd {
  struct sml_aggd_options options;
  struct sml_lanes *lanes;
  struct sml_registry *registry;
  struct sml_registry_options registry_options; /* for its size */
  struct conn *conns;
  struct conn_buffers *buffers; /* pages of connections never used stay untouched */
  struct epoll_event *epoll_events;
  struct sml_tenants tenants;
  struct sml_key random_key;
  uint64_t num_draws;
  struct sml_aggd_trace trace;
  int listen_fd, epoll_fd, event_fd;
  struct sml_addr addr;
  uint64_t accept_paused_until_ns; /* 0: not paused */
  uint64_t now_ns, watch_at_ns;
  struct turned_away kept_out, without_room; /* connections: from networks that are not allowed; when all are taken */
  struct sml_answers answers;
  pthread_t thread;
  bool is_running;
  _Atomic bool should_stop, should_end_withdrawn; /* release: sml_aggd_stop and _end_withdrawn; acquire: the thread */
  _Atomic uint64_t lowest_completed;
};

/* The control thread, until it is told to stop. */
void *sml_aggd_run(void *aggd);
