/* SPDX-License-Identifier: Apache-2.0
 * What the kernel's files share. Time in here is true time since sim_begin(), but where a name says local:
 * a fiber that works is ahead of the rest by what its work has cost so far (its debt), and pays by
 * sleeping when it next waits. */
#pragma once

#include <pthread.h>
#include <stdio.h>

#include "process/status.h"
#include "sim/kernel.h"

/* ---- the real functions (the linker's names for what --wrap hides) ---- */

void *__real_malloc(size_t num_bytes);
void *__real_calloc(size_t count, size_t num_bytes);
void *__real_aligned_alloc(size_t align, size_t num_bytes);
void __real_free(void *memory);
/* The kernel's own memory; never NULL. */
void *sim_take(size_t num_bytes);                                 /* zeroed */
void *sim_grow(void *array, size_t used_bytes, size_t new_bytes); /* a larger copy; frees the old */

/* ---- fibers ---- */

struct sim_context {
  void *stack_pointer;
  uint8_t *stack;
  void *fake_stack; /* of the address sanitizer */
};
#define SIM_STACK_BYTES ((size_t)512 << 10)
void sim_context_create(struct sim_context *context, void (*entry)(void));
void sim_context_release(struct sim_context *context); /* its stack is kept for another, in later runs too */
void sim_context_enter(struct sim_context *context);   /* from the scheduler */
void sim_context_leave(struct sim_context *context, bool is_final); /* to the scheduler */
void sim_context_begin(void);                                       /* the first act of an entry function */

struct sim_fiber;
struct sim_queue { /* of fibers that wait for the same thing */
  struct sim_fiber *head, *tail;
};
struct sim_fiber {
  struct sim_timer timer; /* first: its next turn */
  struct sim_context context;
  struct sim_process *process;
  struct sim_fiber *next; /* of the process */
  uint32_t number;
  struct sim_queue *queue; /* it waits in */
  struct sim_fiber *queue_next, *queue_prev;
  uint64_t debt_ns, busy_until_ns;
  bool was_woken, is_parked, is_done;
  int saved_errno;
  void *(*start)(void *);
  void *argument, *result;
  struct sim_queue joiners;
  bool has_detail;
  char detail[SML_ERROR_DETAIL_BYTES]; /* thread-local storage of libswitchml */
  char name[16];
};

struct sim_fiber *sim_fiber_create(struct sim_process *process, const char *name, void *(*start)(void *),
                                   void *argument);
void sim_fiber_destroy(struct sim_fiber *fiber);
/* The caller sleeps until woken or until deadline_ns. queue may be NULL. False: the deadline passed. */
bool sim_block(struct sim_queue *queue, uint64_t deadline_ns);
void sim_wake(struct sim_fiber *fiber);
/* Its turn comes at time_ns plus a drawn delay, if that is before the turn it has. */
void sim_wake_at(struct sim_fiber *fiber, uint64_t time_ns);
void sim_wake_all(struct sim_queue *queue);
void sim_wake_drawn(struct sim_queue *queue); /* one of them, if any */
void sim_pay(void);                           /* sleeps off the debt of the running fiber */
void sim_step(uint64_t cost_ns);              /* adds to the debt, then pays: no loop can go on without time passing */
void sim_maybe_switch(void);
_Noreturn void sim_end_fiber(void);

/* ---- the state of the run ---- */

enum sim_event_kind {
  EVENT_TURN = 1,
  EVENT_MIDWAY,
  EVENT_DELIVERED,
  EVENT_LOST,
  EVENT_STREAM,
  EVENT_PROCESS,
  EVENT_CALL
};

struct sim_state {
  bool is_begun, should_stop;
  struct sim_options options;
  uint64_t now_ns, digest, num_events, next_order;
  struct sml_prng schedule, network, system, world;
  struct sim_fiber *fiber;    /* that runs; NULL: the scheduler */
  uint32_t hook_depth;        /* > 0: in a hook, which is not part of a simulated program */
  struct sim_process *doomed; /* to be reaped as soon as its running fiber is left */
  enum sim_process_state doomed_state;
  struct sim_process *processes, **processes_end;
  uint32_t num_processes, num_fibers;
  struct sim_host *hosts[SIM_MAX_HOSTS];
  uint32_t num_hosts;
  struct sim_monitor monitor;
  uint64_t counts[SIM_NUM_COUNTS];
};
extern struct sim_state sim;

static inline bool sim_is_inside(void) {
  return sim.fiber != NULL && sim.hook_depth == 0;
}
static inline uint64_t sim_local_ns(void) {
  return sim.now_ns + (sim.fiber != NULL ? sim.fiber->debt_ns : 0);
}
static inline void sim_note(enum sim_event_kind kind, uint64_t what) {
  sim.digest = (sim.digest ^ what ^ (uint64_t)kind << 56 ^ sim.now_ns) * UINT64_C(0x9e3779b97f4a7c15);
  sim.digest ^= sim.digest >> 29;
}
#define SIM_TRACE(...)                                     \
  do {                                                     \
    if (sim.options.trace != NULL) sim_trace(__VA_ARGS__); \
  } while (0)

void sim_timers_reset(void);
struct sim_timer *sim_timers_first(void); /* NULL: none */
void sim_timers_pop(void);

/* ---- processes ---- */

struct sim_block; /* of a heap */
struct sim_file;
struct sim_socket; /* of datagrams */
struct sim_process {
  struct sim_process *next;
  uint32_t number;
  char name[32];
  struct sim_host *host;
  enum sim_process_state state;
  struct sim_fiber *fibers;
  int (*main)(void *argument);
  void *argument;
  int exit_code;
  char **environment;
  uint64_t clock_offset_ns;
  int64_t clock_rate_ppb;
  struct sim_block *blocks;
  struct sim_usage usage, leaks;
  struct sim_file **files;
  uint32_t max_files;
  struct sim_socket *sockets;
  pthread_mutex_t fork_lock;
  uint64_t num_calls[SIM_NUM_CALLS];
  enum sim_call failing_call;
  uint64_t failing_nth;
  int failing_error;
};
static inline struct sim_process *sim_current(void) {
  return sim_is_inside() ? sim.fiber->process : NULL;
}
void sim_reap(struct sim_process *process, enum sim_process_state state);
void sim_process_free(struct sim_process *process);
/* Counts the call; 0, or the errno it is to fail with. */
int sim_call_error(enum sim_call call);
uint64_t sim_clock_of(const struct sim_process *process, uint64_t time_ns);
uint64_t sim_time_of(const struct sim_process *process, uint64_t clock_ns); /* when the clock reaches it */

void sim_heap_free_all(struct sim_process *process);
void sim_files_close_all(struct sim_process *process);
void sim_sockets_close_all(struct sim_process *process);

/* ---- descriptors ---- */

struct sim_epoll_item;
struct sim_file_ops {
  const char *name;
  uint32_t (*events)(struct sim_file *file);                            /* EPOLL... bits that hold now */
  int64_t (*read)(struct sim_file *file, void *data, size_t num_bytes); /* -errno */
  int64_t (*write)(struct sim_file *file, const void *data, size_t num_bytes);
  void (*close)(struct sim_file *file); /* frees it */
};
struct sim_file {
  const struct sim_file_ops *ops;
  struct sim_process *process;
  bool is_nonblocking;
  struct sim_epoll_item *items; /* that watch it */
  struct sim_queue waiters;     /* blocking calls */
};
/* The new descriptor. */
int sim_file_install(struct sim_file *file);
struct sim_file *sim_file_of(int fd); /* NULL: none of this process */
void sim_file_changed(struct sim_file *file);
/* For calls: sets errno and returns -1 for negative results. */
int64_t sim_result(int64_t result);

/* ---- hosts ---- */

struct sim_packet;
struct sim_link_state {
  struct sim_link options;
  uint64_t busy_until_ns;
  uint32_t burst_left;
  uint64_t burst_end_ns;
};
struct sim_endpoint;
#define SIM_PORT_BUCKETS 64u
struct sim_host {
  struct sim_timer timer; /* first: of the packets that left the up link */
  char name[32];
  uint32_t ipv4, idx;
  uint32_t mtu_bytes, told_mtu_bytes, max_rx_buffer_bytes;
  bool is_dead;
  struct sim_link_state up, down;
  uint64_t cut_to[SIM_MAX_HOSTS / 64];
  struct sim_packet *flight_head, *flight_tail; /* between the links, in order of time */
  struct sim_socket *sockets[SIM_PORT_BUCKETS]; /* by port, modulo their number */
  struct sim_endpoint *listeners;
  struct sim_stored_file *files;
  uint16_t last_port;
};
struct sim_socket *sim_socket_at(const struct sim_host *host, uint16_t port); /* NULL: none */
struct sim_host *sim_host_of(uint32_t ipv4, struct sim_host *self);           /* 127.x is self; NULL: none */
bool sim_path_is_open(const struct sim_host *from, const struct sim_host *to);
uint64_t sim_path_delay(const struct sim_host *from, const struct sim_host *to); /* with a drawn jitter */
void sim_hosts_free(void);
void sim_host_free_files(struct sim_host *host);
void sim_packets_free(void);
void sim_streams_vanish(struct sim_host *host); /* those with an end on a host that dies */
void sim_streams_free(void);
