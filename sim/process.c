/* SPDX-License-Identifier: Apache-2.0
 * Processes: their beginning and their ends, clocks, environment, and the calls that are made to fail. */
#include "sim/internal.h"

#include <errno.h>
#include <stdarg.h>

#include "process/log.h"

#define DEFAULT_CLOCK_NS (1000 * SML_NS_PER_S)
#define NS_PER_S_SIGNED INT64_C(1000000000)

/* ---- life ---- */

/* The strings lie behind the array. */
static char **copy_environment(const char *const *environment) {
  size_t num_strings = 0, num_bytes = 0;
  while (environment != NULL && environment[num_strings] != NULL) num_bytes += strlen(environment[num_strings++]) + 1;
  char **copy = sim_take((num_strings + 1) * sizeof(char *) + num_bytes);
  char *text = (char *)(copy + num_strings + 1);
  for (size_t i = 0; i < num_strings; i++) {
    copy[i] = text;
    text = stpcpy(text, environment[i]) + 1;
  }
  return copy;
}

static void *run_main(void *argument) {
  struct sim_process *p = argument;
  p->exit_code = p->main(p->argument);
  sim.doomed = p;
  sim.doomed_state = SIM_EXITED;
  return NULL;
}

struct sim_process *sim_spawn(struct sim_host *host, const char *name, int (*main)(void *argument), void *argument,
                              const char *const *environment) {
  struct sim_process *p = sim_take(sizeof *p);
  p->number = sim.num_processes++;
  (void)snprintf(p->name, sizeof p->name, "%s", name);
  p->host = host;
  p->main = main;
  p->argument = argument;
  p->environment = copy_environment(environment);
  p->clock_offset_ns = DEFAULT_CLOCK_NS;
  *sim.processes_end = p;
  sim.processes_end = &p->next;
  (void)sim_fiber_create(p, "", run_main, p);
  sim_note(EVENT_PROCESS, p->number);
  SIM_TRACE("process %s begins on %s", p->name, host->name);
  return p;
}

void sim_reap(struct sim_process *p, enum sim_process_state state) {
  if (p->state == SIM_EXITED || p->state == SIM_KILLED) return;
  p->state = state;
  sim_note(EVENT_PROCESS, p->number + ((uint64_t)state << 32));
  if (state == SIM_EXITED) {
    p->leaks = p->usage;
    p->leaks.num_threads--; /* main's */
  }
  SIM_TRACE("process %s %s, leaving %llu bytes in %llu allocations, %u descriptors, %u threads", p->name,
            state == SIM_EXITED ? "exits" : "is killed", (unsigned long long)p->usage.heap_bytes,
            (unsigned long long)p->usage.num_allocations, p->usage.num_descriptors + p->usage.num_data_sockets,
            p->usage.num_threads);
  while (p->fibers != NULL) sim_fiber_destroy(p->fibers);
  sim_files_close_all(p);
  sim_sockets_close_all(p);
  sim_heap_free_all(p);
}

void sim_kill(struct sim_process *p) {
  if (p->state == SIM_EXITED || p->state == SIM_KILLED) return;
  sim.counts[SIM_KILLS]++;
  if (sim.fiber != NULL && sim.fiber->process == p) { /* also from a hook on its fiber */
    sim.doomed = p;
    sim.doomed_state = SIM_KILLED;
    sim_end_fiber();
  }
  sim_reap(p, SIM_KILLED);
}

void sim_process_free(struct sim_process *p) {
  __real_free(p->environment);
  __real_free(p->files);
  __real_free(p);
}

void sim_pause(struct sim_process *p) {
  if (p->state != SIM_RUNNING) return;
  sim.counts[SIM_PAUSES]++;
  sim_note(EVENT_PROCESS, p->number + (UINT64_C(5) << 32));
  SIM_TRACE("process %s is stopped", p->name);
  p->state = SIM_PAUSED; /* a fiber of it that runs now ends its step first */
}

void sim_resume(struct sim_process *p) {
  if (p->state != SIM_PAUSED) return;
  p->state = SIM_RUNNING;
  SIM_TRACE("process %s goes on", p->name);
  for (struct sim_fiber *f = p->fibers; f != NULL; f = f->next) {
    if (!f->is_parked) continue;
    f->is_parked = false;
    sim_wake_at(f, sim.now_ns);
  }
}

enum sim_process_state sim_process_state(const struct sim_process *p) {
  return p->state;
}

const char *sim_process_name(const struct sim_process *p) {
  return p->name;
}

struct sim_host *sim_process_host(const struct sim_process *p) {
  return p->host;
}

int sim_process_exit_code(const struct sim_process *p) {
  return p->exit_code;
}

struct sim_process *sim_self(void) {
  return sim_current();
}

void sim_process_usage(const struct sim_process *p, struct sim_usage *usage_out) {
  *usage_out = p->usage;
}

void sim_process_leaks(const struct sim_process *p, struct sim_usage *leaks_out) {
  *leaks_out = p->leaks;
}

/* ---- clocks ---- */

void sim_process_set_clock(struct sim_process *p, uint64_t offset_ns, int32_t rate_ppb) {
  SML_ASSERT(rate_ppb >= -1000000 && rate_ppb <= 1000000);
  p->clock_offset_ns = offset_ns;
  p->clock_rate_ppb = rate_ppb;
}

static uint64_t scale(uint64_t x, int64_t numerator, int64_t denominator) {
  return (uint64_t)((__int128)x * numerator / denominator);
}

uint64_t sim_clock_of(const struct sim_process *p, uint64_t time_ns) {
  return p->clock_offset_ns + scale(time_ns, NS_PER_S_SIGNED + p->clock_rate_ppb, NS_PER_S_SIGNED);
}

uint64_t sim_time_of(const struct sim_process *p, uint64_t clock_ns) {
  if (clock_ns <= p->clock_offset_ns) return 0;
  const uint64_t passed_ns = clock_ns - p->clock_offset_ns;
  if (passed_ns > UINT64_MAX / 4) return SML_NEVER;
  uint64_t time_ns = scale(passed_ns, NS_PER_S_SIGNED, NS_PER_S_SIGNED + p->clock_rate_ppb);
  while (sim_clock_of(p, time_ns) < clock_ns) time_ns++; /* rounded down, a little */
  return time_ns;
}

uint64_t sim_process_clock_ns(const struct sim_process *p) {
  return sim_clock_of(p, sim_local_ns());
}

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time) {
  if (!sim_is_inside()) return __real_clock_gettime(clock, time);
  sim.fiber->debt_ns += 20; /* who looks at the clock until it is late sees it move */
  uint64_t ns = sim_clock_of(sim.fiber->process, sim_local_ns());
  if (clock == CLOCK_REALTIME) ns += UINT64_C(1800000000) * SML_NS_PER_S;
  *time = (struct timespec){.tv_sec = (time_t)(ns / SML_NS_PER_S), .tv_nsec = (long)(ns % SML_NS_PER_S)};
  return 0;
}

/* ---- calls that are counted ---- */

static const char *const call_names[SIM_NUM_CALLS] = {
    [SIM_CALL_MALLOC] = "malloc",
    [SIM_CALL_CALLOC] = "calloc",
    [SIM_CALL_REALLOC] = "realloc",
    [SIM_CALL_ALIGNED_ALLOC] = "aligned_alloc",
    [SIM_CALL_THREAD] = "pthread_create",
    [SIM_CALL_SOCKET] = "socket",
    [SIM_CALL_SETSOCKOPT] = "setsockopt",
    [SIM_CALL_GETSOCKOPT] = "getsockopt",
    [SIM_CALL_GETSOCKNAME] = "getsockname",
    [SIM_CALL_GETPEERNAME] = "getpeername",
    [SIM_CALL_BIND] = "bind",
    [SIM_CALL_LISTEN] = "listen",
    [SIM_CALL_CONNECT] = "connect",
    [SIM_CALL_ACCEPT] = "accept4",
    [SIM_CALL_SEND] = "send",
    [SIM_CALL_RECV] = "recv",
    [SIM_CALL_SHUTDOWN] = "shutdown",
    [SIM_CALL_EPOLL_CREATE] = "epoll_create1",
    [SIM_CALL_EPOLL_CTL] = "epoll_ctl",
    [SIM_CALL_EPOLL_WAIT] = "epoll_wait",
    [SIM_CALL_EVENTFD] = "eventfd",
    [SIM_CALL_READ] = "read",
    [SIM_CALL_WRITE] = "write",
    [SIM_CALL_POLL] = "poll",
    [SIM_CALL_SEM_WAIT] = "sem_wait",
    [SIM_CALL_GETRANDOM] = "getrandom",
    [SIM_CALL_UDP_OPEN] = "udp_open",
    [SIM_CALL_OPEN] = "open",
    [SIM_CALL_FSTAT] = "fstat",
};

const char *sim_call_name(enum sim_call call) {
  return call_names[call];
}

uint64_t sim_process_num_calls(const struct sim_process *p, enum sim_call call) {
  return p->num_calls[call];
}

void sim_process_fail_call(struct sim_process *p, enum sim_call call, uint64_t nth, int error) {
  p->failing_call = call;
  p->failing_nth = nth;
  p->failing_error = error;
}

int sim_call_error(enum sim_call call) {
  struct sim_process *p = sim.fiber->process;
  const uint64_t nth = ++p->num_calls[call];
  if (p->failing_nth != nth || p->failing_call != call) return 0;
  sim.counts[SIM_CALLS_FAILED]++;
  sim_note(EVENT_CALL, call);
  SIM_TRACE("%s number %llu fails: %s", call_names[call], (unsigned long long)nth, strerror(p->failing_error));
  return p->failing_error;
}

/* ---- the rest of what a process asks its system for ---- */

char *__real_getenv(const char *name);
char *__wrap_getenv(const char *name);
char *__wrap_getenv(const char *name) {
  if (!sim_is_inside()) return __real_getenv(name);
  const size_t name_bytes = strlen(name);
  for (char **e = sim.fiber->process->environment; *e != NULL; e++)
    if (strncmp(*e, name, name_bytes) == 0 && (*e)[name_bytes] == '=') return *e + name_bytes + 1;
  return NULL;
}

pid_t __real_getpid(void);
pid_t __wrap_getpid(void);
pid_t __wrap_getpid(void) {
  return sim_is_inside() ? (pid_t)(1000 + sim.fiber->process->number) : __real_getpid();
}

ssize_t __real_getrandom(void *data, size_t num_bytes, unsigned flags);
ssize_t __wrap_getrandom(void *data, size_t num_bytes, unsigned flags);
ssize_t __wrap_getrandom(void *data, size_t num_bytes, unsigned flags) {
  if (!sim_is_inside()) return __real_getrandom(data, num_bytes, flags);
  const int error = sim_call_error(SIM_CALL_GETRANDOM);
  if (error != 0) {
    errno = error;
    return -1;
  }
  for (size_t i = 0; i < num_bytes; i++) ((uint8_t *)data)[i] = (uint8_t)sml_prng_next(&sim.system);
  return (ssize_t)num_bytes;
}

int __wrap_prctl(int option, ...); /* only the slack of timers: here all are exact */
int __wrap_prctl(int option, ...) {
  (void)option;
  return 0;
}

/* What a process says on its standard error goes into the trace. */
int __wrap_fprintf(FILE *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));
int __wrap_fprintf(FILE *stream, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int num_bytes;
  if (sim_is_inside() && stream == stderr) {
    char text[768];
    num_bytes = vsnprintf(text, sizeof text, format, arguments);
    text[strcspn(text, "\n")] = 0;
    SIM_TRACE("says: %s", text);
  } else {
    num_bytes = vfprintf(stream, format, arguments);
  }
  va_end(arguments);
  return num_bytes;
}

/* So do the lines of the library, which would name the real host and thread. */
void __wrap_sml_lib_log_line(enum sml_lib_log_level level, uint32_t rank, const char *text);
void __wrap_sml_lib_log_line(enum sml_lib_log_level level, uint32_t rank, const char *text) {
  (void)level;
  (void)rank;
  if (sim_is_inside()) SIM_TRACE("says: %s", text);
}
void __wrap_sml_lib_log_open(const char *pattern);
void __wrap_sml_lib_log_open(const char *pattern) {
  (void)pattern;
}

/* libswitchml's list of contexts for fork() is one a process; nobody forks here, so the lock is all of it. */
/* Simulated processes share nothing. */
bool __wrap_sml_shm_identity(uint8_t *id_out);
bool __wrap_sml_shm_identity(uint8_t *id_out) {
  memset(id_out, 0, 16);
  return false;
}

void __wrap_sml_fork_lock(void);
void __wrap_sml_fork_lock(void) {
  (void)pthread_mutex_lock(&sim.fiber->process->fork_lock);
}

void __wrap_sml_fork_unlock(void);
void __wrap_sml_fork_unlock(void) {
  (void)pthread_mutex_unlock(&sim.fiber->process->fork_lock);
}

struct sml_fork_watch;
void __wrap_sml_fork_watch(struct sml_fork_watch *watch);
void __wrap_sml_fork_watch(struct sml_fork_watch *watch) {
  (void)watch;
}

void __wrap_sml_fork_unwatch(struct sml_fork_watch *watch);
void __wrap_sml_fork_unwatch(struct sml_fork_watch *watch) {
  (void)watch;
}
