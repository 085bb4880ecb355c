/* SPDX-License-Identifier: Apache-2.0
 * A small operating system in virtual time. The programs that run on it are the objects of switchmld and
 * libswitchml as they are shipped: the simulator is linked with --wrap for each system function they use
 * (sim/meson.build), and with sml_udp_open() replaced. Every thread is a fiber; one real thread runs all.
 * Time moves only when nobody can run at the present moment. Whatever is left to chance is drawn from the
 * seed, so a seed is a run: equal seeds and equal calls give equal digests.
 *
 * One simulation at a time: sim_begin() ... sim_end(). Functions marked (fiber) are called by simulated
 * programs, all others from anywhere: from outside, from hooks, or from a simulated program. Outside of
 * simulated programs, and in hooks, the wrapped functions are the real ones. Memory is a process's if a
 * fiber of it took it, else the caller's own. */
#pragma once

#include "base/base.h"

struct sim_host;
struct sim_process;

/* ---- the run ---- */

struct sim_options {
  uint64_t seed;
  /* A fiber that may run does so after wake_min_ns .. wake_min_ns + wake_spread_ns; with late_chance it is
   * up to late_ns later. All zero: 1 us .. 20 us, 1/500 of them up to 2 ms late. */
  uint64_t wake_min_ns, wake_spread_ns, late_ns;
  double late_chance;
  double switch_chance;   /* of a switch at an operation on a mutex, cond or sem; 0: 1/64; < 0: never */
  double spurious_chance; /* of a cond wait that ends without a signal; 0: 1/256; < 0: never */
  uint64_t frame_ns;      /* what a received or sent frame costs its thread; 0: 200 ns */
  /* One line an event, "12.003004005 worker-1 what ..."; NULL: none are made. */
  void (*trace)(void *user, const char *line);
  void *trace_user;
};
void sim_begin(const struct sim_options *options);
/* Ends all processes as sim_kill() does, frees all. Pointers to hosts and processes are gone. */
void sim_end(void);

uint64_t sim_now_ns(void); /* since sim_begin; true time, whatever clocks of processes say */
uint64_t sim_digest(void); /* of all events so far */
uint64_t sim_num_events(void);
/* For the world's own choices: streams of the same seed that do not disturb the kernel's. */
uint64_t sim_draw(uint64_t bound); /* 0 .. bound - 1 */
bool sim_draw_chance(double probability);
void sim_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool sim_is_tracing(void);

enum sim_end_reason {
  SIM_REACHED_TIME,
  SIM_REACHED_GOAL,
  SIM_IDLE,    /* nothing is scheduled, and nothing ever will be: done, or a deadlock */
  SIM_STOPPED, /* by sim_stop() */
};
/* Runs until the time (SML_NEVER: no limit), or until is_reached (may be NULL) says true; it is asked after
 * each event. Called from outside only. */
enum sim_end_reason sim_run_until(uint64_t time_ns, bool (*is_reached)(void *user), void *user);
void sim_stop(void); /* a checker found something: sim_run_until() returns after this event */

/* A call of the world at a time. The caller's memory; zero-initialize. fire may set it again. */
struct sim_timer {
  uint64_t at_ns;    /* valid while set */
  uint64_t order;    /* kernel's */
  uint32_t heap_idx; /* kernel's: index + 1, 0: not set */
  void (*fire)(struct sim_timer *timer);
};
void sim_timer_set(struct sim_timer *timer, uint64_t at_ns); /* sets it anew if it is set */
void sim_timer_clear(struct sim_timer *timer);

/* ---- hosts and the network between them: a star, each host with an up and a down link ---- */

/* Probabilities are per datagram. Links of the two ends both apply. */
struct sim_faults {
  double loss;
  double burst_loss; /* that this and the next 63 datagrams of the link are lost, of those within 100 ms */
  double duplicate;  /* the copy takes a delay of its own */
  double reorder;    /* an extra delay of 0 .. reorder_ns: as many others may pass as come */
  uint64_t reorder_ns;
  double corrupt;  /* 1 .. 8 bits anywhere are flipped */
  double truncate; /* the end is cut off, perhaps all of it */
};
struct sim_link {
  uint64_t bits_per_s; /* 0: no limit */
  uint64_t delay_ns;
  uint64_t queue_bytes;     /* what waits beyond this is lost; 0: no limit */
  struct sim_faults faults; /* datagrams only: streams repeat what is lost */
};
struct sim_host_options {
  const char *name;
  uint32_t ipv4; /* host byte order, 0x0a000001 is 10.0.0.1; distinct */
  struct sim_link up, down;
  uint32_t mtu_bytes;           /* of both links; larger datagrams vanish; 0: 1500 */
  uint32_t told_mtu_bytes;      /* what this host's kernel believes of its paths; 0: mtu_bytes */
  uint32_t max_rx_buffer_bytes; /* cap on what a data socket's receive queue may be asked to hold; 0: none */
};
#define SIM_MAX_HOSTS 256u
struct sim_host *sim_host_add(const struct sim_host_options *options);
const char *sim_host_name(const struct sim_host *host);
uint32_t sim_host_ipv4(const struct sim_host *host);
/* A file that processes of the host may open to read; replaces one of that path. mode as in st_mode:
 * S_IFREG | 0600. */
void sim_host_put_file(struct sim_host *host, const char *path, uint32_t mode, const void *data, size_t num_bytes);
void sim_host_remove_file(struct sim_host *host, const char *path);
/* From now on; what is under way stays as it is. */
void sim_host_set_links(struct sim_host *host, const struct sim_link *up, const struct sim_link *down);
/* Cuts or heals one direction. Streams stall, and go on when it heals within 15 minutes. */
void sim_cut(struct sim_host *from, struct sim_host *to, bool is_cut);
/* A dead host says nothing any more, not even a reset: peers see half-open connections. Kills its
 * processes. With false it is up again, and answers what it does not know with resets. */
void sim_host_set_dead(struct sim_host *host, bool is_dead);

/* What happened to datagrams (and, the last ones, to others). Indices of sim_count(). */
enum sim_count {
  SIM_DATAGRAMS_SENT,      /* by sockets, a copy for each peer */
  SIM_DATAGRAMS_DELIVERED, /* to a program */
  SIM_LOST,
  SIM_LOST_IN_BURST,
  SIM_DUPLICATED,
  SIM_REORDERED,
  SIM_CORRUPTED,
  SIM_TRUNCATED,
  SIM_LOST_BY_CUT,
  SIM_LOST_IN_LINK_QUEUE,
  SIM_LOST_IN_SOCKET_QUEUE,
  SIM_LOST_NO_SOCKET,
  SIM_LOST_TOO_LONG,
  SIM_STREAM_STALLS,
  SIM_STREAM_RESETS,
  SIM_CONNECTS_REFUSED,
  SIM_SHORT_READS,
  SIM_SHORT_WRITES,
  SIM_KILLS,
  SIM_PAUSES,
  SIM_SPURIOUS_WAKES,
  SIM_LATE_WAKES,
  SIM_CALLS_FAILED,
  SIM_NUM_COUNTS
};
uint64_t sim_count(enum sim_count what);
const char *sim_count_name(enum sim_count what);

/* A datagram as hooks see it. Valid during the call. */
struct sim_datagram {
  uint32_t from_ipv4, to_ipv4;
  uint16_t from_port, to_port;
  const uint8_t *data;
  uint32_t num_bytes;
  bool is_forged;  /* by sim_inject() */
  bool is_altered; /* corrupted or truncated on its way (delivered only) */
};
enum sim_fate {
  SIM_FATE_DRAWN, /* faults as the links have them */
  SIM_FATE_PASS,  /* no faults; queues and cuts still apply */
  SIM_FATE_LOSE,
  SIM_FATE_DUPLICATE, /* as PASS, with a copy right behind it */
  SIM_FATE_HOLD,      /* as PASS, 1 s late */
};
struct sim_monitor {
  enum sim_fate (*on_sent)(void *user, const struct sim_datagram *datagram); /* may be NULL */
  void (*on_delivered)(void *user, const struct sim_datagram *datagram);     /* to the program; may be NULL */
  void *user;
};
void sim_set_monitor(const struct sim_monitor *monitor); /* copied; NULL: none */
/* Puts a datagram on the wire as if from_ipv4 had sent it now; that need not be a host (then only the
 * receiver's down link applies). */
void sim_inject(uint32_t from_ipv4, uint16_t from_port, uint32_t to_ipv4, uint16_t to_port, const void *data,
                uint32_t num_bytes);

/* ---- processes ---- */

/* Runs main(argument) on a fiber of a new process. environment: NULL or "NAME=value" strings, NULL at the
 * end; copied, as the name is. The process struct lives until sim_end(). */
struct sim_process *sim_spawn(struct sim_host *host, const char *name, int (*main)(void *argument), void *argument,
                              const char *const *environment);
/* kill -9, at this moment. Its sockets are closed by its kernel: peers get what they would from Linux. May be
 * called by the victim itself and then does not return. Nothing happens to a process that has ended. */
void sim_kill(struct sim_process *process);
/* SIGSTOP and SIGCONT. Its sockets still receive while they have room. */
void sim_pause(struct sim_process *process);
void sim_resume(struct sim_process *process);

enum sim_process_state { SIM_RUNNING, SIM_PAUSED, SIM_EXITED, SIM_KILLED };
enum sim_process_state sim_process_state(const struct sim_process *process);
const char *sim_process_name(const struct sim_process *process);
struct sim_host *sim_process_host(const struct sim_process *process);
int sim_process_exit_code(const struct sim_process *process); /* of one that exited */
struct sim_process *sim_self(void);                           /* NULL outside and in hooks */
/* Monotonic clock of the process: begins at offset_ns (default 1000 s), fast by rate_ppb parts in 10^9
 * (at most 10^6, negative: slow). To be set before it runs. */
void sim_process_set_clock(struct sim_process *process, uint64_t offset_ns, int32_t rate_ppb);
uint64_t sim_process_clock_ns(const struct sim_process *process); /* what it shows now */

struct sim_usage {
  uint64_t heap_bytes, max_heap_bytes, num_allocations;    /* now, most ever, now */
  uint32_t num_threads, num_descriptors, num_data_sockets; /* now */
};
void sim_process_usage(const struct sim_process *process, struct sim_usage *usage_out);
/* What a process had not given back when its main returned; zero for one that runs or was killed. */
void sim_process_leaks(const struct sim_process *process, struct sim_usage *leaks_out);

/* Calls of the operating system, to be counted and made to fail. */
enum sim_call {
  SIM_CALL_MALLOC,
  SIM_CALL_CALLOC,
  SIM_CALL_REALLOC,
  SIM_CALL_ALIGNED_ALLOC,
  SIM_CALL_THREAD,
  SIM_CALL_SOCKET,
  SIM_CALL_SETSOCKOPT,
  SIM_CALL_GETSOCKOPT,
  SIM_CALL_GETSOCKNAME,
  SIM_CALL_GETPEERNAME,
  SIM_CALL_BIND,
  SIM_CALL_LISTEN,
  SIM_CALL_CONNECT,
  SIM_CALL_ACCEPT,
  SIM_CALL_SEND,
  SIM_CALL_RECV,
  SIM_CALL_SHUTDOWN,
  SIM_CALL_EPOLL_CREATE,
  SIM_CALL_EPOLL_CTL,
  SIM_CALL_EPOLL_WAIT,
  SIM_CALL_EVENTFD,
  SIM_CALL_READ,
  SIM_CALL_WRITE,
  SIM_CALL_POLL,
  SIM_CALL_SEM_WAIT,
  SIM_CALL_GETRANDOM,
  SIM_CALL_UDP_OPEN,
  SIM_CALL_OPEN,
  SIM_CALL_FSTAT,
  SIM_NUM_CALLS
};
const char *sim_call_name(enum sim_call call);
uint64_t sim_process_num_calls(const struct sim_process *process, enum sim_call call);
/* The call number `nth` (from 1) of this kind by this process fails with this errno (threads: their return
 * value; allocations: NULL). One of these a process; nth 0: none. */
void sim_process_fail_call(struct sim_process *process, enum sim_call call, uint64_t nth, int error);

/* (fiber) True time passes, whatever the process's clock. */
void sim_sleep_ns(uint64_t duration_ns);
