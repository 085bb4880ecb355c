/* SPDX-License-Identifier: Apache-2.0
 * `switchml bench --local N`: an aggregator and N workers as processes of this machine, or what another bench runs in
 * their place. Whatever happens, nothing is left: the children die with this process, the port file is gone as soon as
 * it was read. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/bench/bench.h"

#define START_DEADLINE_NS (10 * SML_NS_PER_S)
#define STOP_DEADLINE_NS (5 * SML_NS_PER_S)
/* What the other workers have, after one failed, to see it through the protocol and to say so. */
#define FAIL_DEADLINE_NS (15 * SML_NS_PER_S)

struct child {
  pid_t pid; /* 0: not running */
  bool has_failed;
};

struct launch {
  const struct sml_bench_options *options;
  const struct sml_bench_work *work; /* NULL: this command, with these arguments */
  int argc;
  char **argv;
  char exe[PATH_MAX], daemon_exe[PATH_MAX];
  char directory[PATH_MAX], port_file[PATH_MAX]; /* empty: none */
  char aggregator[64];
  int log;                 /* what the aggregator says: shown if it fails */
  sigset_t mask, old_mask; /* signals taken by wait_signal(); the mask before */
  int stopped_by;          /* signal that ended the run, or 0 */
  struct child aggregator_child;
  struct child workers[SML_BENCH_MAX_LOCAL];
};

/* In the child. argv NULL: it is a rank of the work. */
__attribute__((noreturn)) static void run_child(const struct launch *l, pid_t parent, const char *path,
                                                char *const *argv, uint32_t rank) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127); /* it died before the line above */
  sigprocmask(SIG_SETMASK, &l->old_mask, NULL);
  int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null >= 0) dup2(null, STDIN_FILENO);
  if (!argv) _exit(l->work->run(l->work->user, rank));
  execv(path, argv);
  sml_bench_say("cannot run %s: %s", path, strerror(errno));
  _exit(127);
}

static bool is_executable(const char *path) {
  return access(path, X_OK) == 0;
}

/* Beside this executable when installed, in the neighbouring folder in a build tree. */
static bool find_executables(struct launch *l) {
  ssize_t num_bytes = readlink("/proc/self/exe", l->exe, sizeof l->exe - 1);
  if (num_bytes <= 0) {
    sml_bench_say("cannot find this executable in /proc: %s", strerror(errno));
    return false;
  }
  l->exe[num_bytes] = '\0';
  int folder_bytes = (int)(strrchr(l->exe, '/') - l->exe);
  static const char *const places[] = {"switchmld", "../switchd/switchmld"};
  for (size_t i = 0; i < SML_ARRAY_LEN(places); i++) {
    int length = snprintf(l->daemon_exe, sizeof l->daemon_exe, "%.*s/%s", folder_bytes, l->exe, places[i]);
    if (length < (int)sizeof l->daemon_exe && is_executable(l->daemon_exe)) return true;
  }
  sml_bench_say("the aggregator switchmld is not in %.*s, where this command is; install it there", folder_bytes,
                l->exe);
  return false;
}

static bool make_port_file(struct launch *l) {
  const char *folder = getenv("TMPDIR");
  if (!folder || *folder == '\0') folder = "/tmp";
  int length = snprintf(l->directory, sizeof l->directory - 8, "%s/switchml-bench-XXXXXX", folder);
  if (length >= (int)sizeof l->directory - 8 || !mkdtemp(l->directory)) {
    sml_bench_say("cannot make a folder in %s: %s; set TMPDIR", folder, strerror(errno));
    l->directory[0] = '\0';
    return false;
  }
  snprintf(l->port_file, sizeof l->port_file, "%.*s/port", length, l->directory);
  return true;
}

static void remove_port_file(struct launch *l) {
  if (l->directory[0] == '\0') return;
  unlink(l->port_file);
  rmdir(l->directory);
  l->directory[0] = '\0';
}

static bool start_child(const struct launch *l, struct child *child, const char *path, char *const *argv,
                        void (*prepare)(const struct launch *l, uint32_t rank), uint32_t rank) {
  pid_t parent = getpid(), pid = fork();
  if (pid < 0) {
    sml_bench_say("cannot start a process: %s", strerror(errno));
    return false;
  }
  if (pid == 0) {
    prepare(l, rank);
    run_child(l, parent, path, argv, rank);
  }
  child->pid = pid;
  return true;
}

static void prepare_aggregator(const struct launch *l, uint32_t rank) {
  (void)rank;
  sml_bench_set_faults(l->options, 0);
  dup2(l->log, STDOUT_FILENO);
  dup2(l->log, STDERR_FILENO);
}

static void prepare_worker(const struct launch *l, uint32_t rank) {
  char number[16];
  snprintf(number, sizeof number, "%u", rank);
  setenv("RANK", number, 1);
  snprintf(number, sizeof number, "%u", l->options->num_local);
  setenv("WORLD_SIZE", number, 1);
  if (l->aggregator[0] != '\0') setenv("SWITCHML_AGGREGATOR", l->aggregator, 1);
}

static void show_log(const struct launch *l) {
  char text[16384];
  ssize_t num_bytes = pread(l->log, text, sizeof text, 0);
  if (num_bytes > 0) fwrite(text, 1, (size_t)num_bytes, stderr);
}

static void note_end(struct launch *l, struct child *child, int status, bool is_stopping) {
  child->pid = 0;
  child->has_failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  if (!child->has_failed || (is_stopping && child != &l->aggregator_child)) return;
  char who[32] = "the aggregator";
  if (child != &l->aggregator_child) snprintf(who, sizeof who, "rank %u", (unsigned)(child - l->workers));
  if (WIFSIGNALED(status))
    sml_bench_say("%s was killed by signal %d (%s)", who, WTERMSIG(status), strsignal(WTERMSIG(status)));
  else if (child == &l->aggregator_child) sml_bench_say("%s ended with status %d", who, WEXITSTATUS(status));
  if (child == &l->aggregator_child) show_log(l);
}

static uint32_t reap(struct launch *l, bool is_stopping) {
  int status;
  uint32_t num_running = 0;
  for (uint32_t i = 0; i < l->options->num_local; i++) {
    struct child *child = &l->workers[i];
    if (child->pid != 0 && waitpid(child->pid, &status, WNOHANG) > 0) note_end(l, child, status, is_stopping);
    num_running += child->pid != 0;
  }
  struct child *aggregator = &l->aggregator_child;
  if (aggregator->pid != 0 && waitpid(aggregator->pid, &status, WNOHANG) > 0)
    note_end(l, aggregator, status, is_stopping);
  return num_running;
}

/* Sleeps until a child ended, a signal to stop came (then false) or the time is over. */
static bool wait_signal(struct launch *l, uint64_t timeout_ns) {
  struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / SML_NS_PER_S),
                             .tv_nsec = (long)(timeout_ns % SML_NS_PER_S)};
  int number = sigtimedwait(&l->mask, NULL, &timeout);
  if (number > 0 && number != SIGCHLD) l->stopped_by = number;
  return l->stopped_by == 0;
}

static void signal_all(struct launch *l, int number) {
  for (uint32_t i = 0; i < l->options->num_local; i++)
    if (l->workers[i].pid != 0) kill(l->workers[i].pid, number);
}

/* Reads the address that the aggregator wrote. False: not yet; a line without its end is not whole. */
static bool read_address(struct launch *l) {
  char text[sizeof l->aggregator] = "";
  FILE *file = fopen(l->port_file, "re");
  if (!file) return false;
  char *end = fgets(text, sizeof text, file) ? strchr(text, '\n') : NULL;
  fclose(file);
  if (!end) return false;
  *end = '\0';
  memcpy(l->aggregator, text, sizeof text);
  return true;
}

static bool start_aggregator(struct launch *l) {
  char lanes[16], slots[16];
  snprintf(lanes, sizeof lanes, "%u", sml_max_u32(l->options->num_lanes, 1));
  snprintf(slots, sizeof slots, "%u", sml_max_u32(l->options->num_slots, 8192));
  char *argv[] = {"switchmld", "--listen",    "127.0.0.1:0", "--port-file", l->port_file, "--lanes", lanes, "--slots",
                  slots,       "--log-level", "error",       NULL,          NULL,         NULL,      NULL};
  size_t argc = SML_ARRAY_LEN(argv) - 4;
  if (l->options->no_offload) argv[argc++] = "--no-offload";
  const char *poll = getenv("SWITCHML_POLL"); /* workers read it themselves */
  char poll_argument[32];
  snprintf(poll_argument, sizeof poll_argument, "--poll=%s", poll ? poll : "");
  if (poll && *poll != '\0') argv[argc++] = poll_argument;
  const char *key_file = l->options->key_file ? l->options->key_file : getenv("SWITCHML_KEY_FILE");
  char key_argument[PATH_MAX + 16];
  snprintf(key_argument, sizeof key_argument, "--key-file=%s", key_file ? key_file : "");
  if (key_file && *key_file != '\0') argv[argc++] = key_argument;
  l->log = memfd_create("switchmld-log", MFD_CLOEXEC);
  if (l->log < 0) {
    sml_bench_say("cannot make a file in memory: %s", strerror(errno));
    return false;
  }
  fcntl(l->log, F_SETFL, O_APPEND); /* two descriptors of the child write to it */
  if (!find_executables(l) || !make_port_file(l)) return false;
  if (!start_child(l, &l->aggregator_child, l->daemon_exe, argv, prepare_aggregator, 0)) return false;
  uint64_t deadline_ns = sml_clock_ns() + START_DEADLINE_NS;
  while (!read_address(l)) {
    if (!wait_signal(l, 2 * SML_NS_PER_MS)) return false;
    reap(l, false);
    if (l->aggregator_child.pid == 0) return false; /* it said why */
    if (sml_clock_ns() < deadline_ns) continue;
    sml_bench_say("the aggregator did not come up within %u s", (unsigned)(START_DEADLINE_NS / SML_NS_PER_S));
    return false;
  }
  remove_port_file(l);
  return true;
}

/* The same arguments, with the one that makes it a worker in front. */
static bool start_workers(struct launch *l) {
  bool is_ok = true;
  for (uint32_t rank = 0; l->work && is_ok && rank < l->options->num_local; rank++)
    is_ok = start_child(l, &l->workers[rank], NULL, NULL, prepare_worker, rank);
  if (l->work) return is_ok;
  char **argv = calloc((size_t)l->argc + 3, sizeof *argv);
  if (!argv) return false;
  argv[0] = "switchml";
  argv[1] = "bench";
  argv[2] = "--local-worker";
  for (int i = 1; i < l->argc; i++) argv[i + 2] = l->argv[i];
  for (uint32_t rank = 0; is_ok && rank < l->options->num_local; rank++)
    is_ok = start_child(l, &l->workers[rank], l->exe, argv, prepare_worker, rank);
  free(argv);
  return is_ok;
}

static bool has_failed_worker(const struct launch *l) {
  for (uint32_t i = 0; i < l->options->num_local; i++)
    if (l->workers[i].has_failed) return true;
  return false;
}

static bool wait_for_workers(struct launch *l) {
  const uint64_t limit_ns = l->work ? sml_clock_ns() + l->work->limit_ns : SML_NEVER;
  uint64_t deadline_ns = limit_ns;
  while (reap(l, false) != 0) {
    uint64_t now_ns = sml_clock_ns();
    if (deadline_ns == limit_ns && has_failed_worker(l))
      deadline_ns = sml_min_u64(limit_ns - 1, now_ns + FAIL_DEADLINE_NS);
    if (now_ns >= deadline_ns) {
      const char *why = deadline_ns == limit_ns ? "within its time" : "after another failed";
      for (uint32_t i = 0; i < l->options->num_local; i++)
        if (l->workers[i].pid != 0) sml_bench_say("rank %u did not end %s; killed", i, why);
      return false;
    }
    if (!wait_signal(l, sml_min_u64(SML_NS_PER_S, deadline_ns - now_ns))) return false;
  }
  return !has_failed_worker(l);
}

/* Ends whatever still runs: workers at once, the aggregator in its own orderly way if it is quick. */
static bool stop_all(struct launch *l) {
  signal_all(l, SIGKILL);
  if (l->aggregator_child.pid != 0) kill(l->aggregator_child.pid, SIGTERM);
  uint64_t deadline_ns = sml_clock_ns() + STOP_DEADLINE_NS;
  while (reap(l, true) != 0 || l->aggregator_child.pid != 0) {
    const struct timespec pause = {.tv_nsec = (long)(20 * SML_NS_PER_MS)};
    sigtimedwait(&l->mask, NULL, &pause); /* a second Ctrl-C changes nothing */
    if (sml_clock_ns() < deadline_ns || l->aggregator_child.pid == 0) continue;
    sml_bench_say("the aggregator did not end when asked; killed");
    kill(l->aggregator_child.pid, SIGKILL);
    deadline_ns = SML_NEVER;
  }
  remove_port_file(l); /* last: the aggregator may have been about to write it */
  return !l->aggregator_child.has_failed;
}

static int run(const struct launch *what) {
  static struct launch l;
  l = *what;
  sigemptyset(&l.mask);
  for (size_t i = 0; i < 4; i++) sigaddset(&l.mask, (const int[]){SIGINT, SIGTERM, SIGHUP, SIGCHLD}[i]);
  sigprocmask(SIG_BLOCK, &l.mask, &l.old_mask);
  bool is_ok =
      ((l.work && !l.work->has_aggregator) || start_aggregator(&l)) && start_workers(&l) && wait_for_workers(&l);
  is_ok = stop_all(&l) && is_ok;
  if (l.log >= 0) close(l.log);
  if (l.stopped_by != 0) signal(l.stopped_by, SIG_DFL); /* end as the signal would have ended this process */
  if (l.stopped_by != 0) raise(l.stopped_by);
  sigprocmask(SIG_SETMASK, &l.old_mask, NULL);
  return is_ok ? SML_BENCH_OK : SML_BENCH_FAILED;
}

int sml_bench_local(const struct sml_bench_options *options, int argc, char **argv) {
  if (!sml_bench_fits_memory(options, options->num_local)) return SML_BENCH_FAILED;
  return run(&(struct launch){.options = options, .argc = argc, .argv = argv, .log = -1});
}

int sml_bench_local_work(const struct sml_bench_options *options, const struct sml_bench_work *work) {
  return run(&(struct launch){.options = options, .work = work, .log = -1});
}
