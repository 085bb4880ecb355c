/* SPDX-License-Identifier: Apache-2.0
 * switchmld: the aggregator as a daemon. Reads its settings, runs the service (src/aggd) until a signal comes. Exit
 * status: 0 stopped by a signal, 1 could not start, 2 wrong usage. */
#include <errno.h>
#include <libgen.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "aggd/snapshot.h"
#include "base/fd.h"
#include "base/text.h"
#include "base/writer.h"
#include "dataplane/switches.h"
#include "switchd/http.h"
#include "switchd/notify.h"
#include "switchd/settings.h"
#include "switchd/status_json.h"
#include "switchd/trace_files.h"

#define SWITCH_SLOTS 2048u                /* unless asked for: those of p4/ */
#define IDLE_NS (3600 * SML_NS_PER_S)     /* between looks that nobody wants */
#define START_FLUSH_NS (2 * SML_NS_PER_S) /* for a reader that stands still at the start */
#define ERROR_BYTES 4608u                 /* a path and a sentence */

struct daemon {
  int argc;
  char **argv;
  struct sml_settings settings; /* that it was started with */
  struct sml_trace_files trace_files;
  struct sml_aggd *aggd;
  struct sml_http *http;
  char addr_text[64];
  struct sml_dataplane *plane; /* a switch that sums; NULL: the lanes do */
};

static enum sml_log_format log_format;

static void use_log_settings(const struct sml_settings *s) {
  log_format = s->log_format;
  sml_log_set_level(s->log_level);
  sml_log_set_format(s->log_format);
}

/* Why it does not start: the last line, in the form that lines are wanted in. */
__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...) {
  char text[ERROR_BYTES];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (log_format == SML_LOG_JSON) sml_log_event(SML_LOG_ERROR, "cannot_start", NULL, 0, text);
  for (char *rest = text, *line; log_format == SML_LOG_TEXT && (line = strsep(&rest, "\n"));)
    sml_writer_say("switchmld: %s\n", line);
}

/* It would be missed when a job has failed. */
static bool check_trace_folder(const struct sml_settings *s) {
  struct stat st;
  if (!s->trace_folder) return true;
  if (stat(s->trace_folder, &st) == 0 && !S_ISDIR(st.st_mode)) errno = ENOTDIR;
  else if (errno = 0, access(s->trace_folder, W_OK | X_OK) == 0) return true;
  complain("cannot write traces to %s: %s", s->trace_folder, strerror(errno));
  return false;
}

static void log_capture_ended(void *user, const char *text) {
  (void)user;
  sml_log_event(SML_LOG_WARNING, "capture_ended", NULL, 0, text);
}

/* Job events, one line each. */
static void log_note(void *user, const struct sml_aggd_note *note) {
  struct daemon *d = user;
  sml_trace_files_note(&d->trace_files, note);
  char epoch[16];
  const bool is_of_rank = strncmp(note->name, "rank_", 5) == 0;
  const enum sml_log_level level = note->is_warning ? SML_LOG_WARNING : is_of_rank ? SML_LOG_DEBUG : SML_LOG_INFO;
  const struct sml_log_field fields[] = {
      {"job", note->job_name, 0},
      {"number", NULL, note->job},
      {"epoch", epoch, 0},
      {is_of_rank ? "rank" : "ranks", NULL, is_of_rank ? note->rank : note->world_size},
      {"key", note->key_name, 0}};
  const char *tenant = d->settings.aggd.num_keys > 0 ? note->key_name : NULL; /* without keys nobody's name is proved */
  snprintf(epoch, sizeof epoch, "%08x", note->epoch);
  const struct sml_log_field refused[] = {{"job", note->job_name, 0}, {"rank", NULL, note->rank}};
  const size_t num_fields = note->job_name[0] == 0 ? 0 : SML_ARRAY_LEN(fields) - (note->key_name[0] == 0);
  if (num_fields > 0 && strcmp(note->name, "join_refused") == 0)
    sml_log_event_of(tenant, level, note->name, refused, SML_ARRAY_LEN(refused), note->text);
  else sml_log_event_of(tenant, level, note->name, fields, num_fields, note->text);
}

static char *render_status(void *user, const struct sml_snapshot *snapshot, const char *key_name) {
  (void)user;
  return sml_status_json(snapshot, key_name);
}

/* One descriptor a connection: as many as the system lets us have. */
static void raise_descriptor_limit(uint32_t max_connections) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < max_connections + 64u) {
    const struct sml_log_field fields[] = {{"limit", NULL, limit.rlim_cur}, {"connections", NULL, max_connections}};
    sml_log_event(SML_LOG_WARNING, "few_descriptors", fields, SML_ARRAY_LEN(fields),
                  "raise the hard limit of open files");
  }
}

/* Whole or not at all: who waits for the file must not read half an address. */
static bool write_port_file(const char *path, const char *addr_text) {
  char temporary[4096];
  int num_bytes = snprintf(temporary, sizeof temporary, "%s.%ld", path, (long)getpid());
  (void)unlink(temporary); /* of a process of this number that was killed at it */
  FILE *file = (size_t)num_bytes < sizeof temporary ? fopen(temporary, "wxe") : NULL;
  bool is_written = file && fprintf(file, "%s\n", addr_text) > 0;
  if (file && fclose(file) != 0) is_written = false;
  const int error = is_written ? sml_fd_replace_file(temporary, path) : errno;
  if (error == 0) return true;
  complain("cannot write the port file %s: %s", path,
           error == EEXIST ? "a file that is not regular is there" : strerror(error));
  if (file) unlink(temporary);
  return false;
}

static bool start_http(struct daemon *d) {
  char error[ERROR_BYTES];
  struct sml_settings *s = &d->settings;
  if (sml_http_start(&s->http_addr, s->http_host, d->aggd, &d->http, error, sizeof error) != 0) {
    complain("--http: %s", error);
    return false;
  }
  sml_addr_set_port(&s->http_addr, sml_http_port(d->http));
  return true;
}

/* What the options let it have; a service manager's limit belongs above it. */
static void say_memory(const struct daemon *d) {
  struct sml_aggd_memory m;
  sml_aggd_memory(d->aggd, &m);
  const struct sml_log_field fields[] = {{"most_mib", NULL, (m.total_bytes >> 20) + 1},
                                         {"slots_mib", NULL, m.slots_bytes >> 20},
                                         {"connections_mib", NULL, m.connections_bytes >> 20},
                                         {"status_mib", NULL, m.status_bytes >> 20}};
  sml_log_event(SML_LOG_INFO, "memory", fields, SML_ARRAY_LEN(fields), "");
}

/* Without keys whoever reaches the port may join, and be in the way of those who do; HTTP has no keys. */
static void warn_of_strangers(const struct daemon *d, const char *http_text) {
  const struct sml_aggd_options *o = &d->settings.aggd;
  const struct sml_log_field address = {"address", d->addr_text, 0}, http = {"address", http_text, 0};
  if (d->settings.http && !sml_text_is_loopback(http_text))
    sml_log_event(SML_LOG_WARNING, "open_to_strangers", &http, 1,
                  "whoever reaches this address sees all jobs, hosts and names of keys: give --http 127.0.0.1, or an "
                  "address that only the scraper reaches");
  if (o->num_keys > 0 || o->num_networks > 0 || sml_text_is_loopback(d->addr_text)) return;
  sml_log_event(SML_LOG_WARNING, "open_to_strangers", &address, 1,
                o->packet_lanes > 0 ? "whoever reaches this address may join, hold and end jobs: name the networks of "
                                      "the ranks with --allow"
                                    : "whoever reaches this address may join, hold and end jobs: give --key-file, name "
                                      "the networks of the ranks with --allow, or listen on 127.0.0.1");
}

static void say_ready(const struct daemon *d) {
  char http_text[64] = "";
  const struct sml_settings *s = &d->settings;
  const struct sml_log_field place[] = {{"address", d->addr_text, 0}, {"lanes", NULL, s->aggd.num_lanes}};
  if (log_format == SML_LOG_JSON) sml_log_event(SML_LOG_INFO, "listening", place, SML_ARRAY_LEN(place), "");
  else sml_writer_say("switchmld: listening on %s, %u lanes\n", d->addr_text, s->aggd.num_lanes);
  if (s->http) {
    sml_addr_format(&s->http_addr, http_text, sizeof http_text);
    const struct sml_log_field http = {"address", http_text, 0};
    if (log_format == SML_LOG_JSON) sml_log_event(SML_LOG_INFO, "http", &http, 1, "");
    else sml_writer_say("switchmld: status at http://%s/\n", http_text);
  }
  const struct sml_log_field keys = {"keys", NULL, s->aggd.num_keys};
  if (s->aggd.num_keys > 0) sml_log_event(SML_LOG_INFO, "authenticating", &keys, 1, "");
  warn_of_strangers(d, http_text);
  say_memory(d);
  if (sml_faults_any(&s->aggd.faults))
    sml_log_event(SML_LOG_WARNING, "faults_injected", NULL, 0, getenv("SWITCHML_FAULTS"));
}

static void tell_manager(const struct daemon *d, const char *state) {
  char text[ERROR_BYTES];
  snprintf(text, sizeof text, "%s\nSTATUS=listening on %s, %u lanes", state, d->addr_text, d->settings.aggd.num_lanes);
  if (!sml_notify(text)) sml_log_event(SML_LOG_WARNING, "service_manager_deaf", NULL, 0, getenv("NOTIFY_SOCKET"));
}

/* A core has the keys, and who may trace the process reads them. By the limit alone it would still go to a collector of
 * the system's. */
static void keep_keys_out_of_cores(const struct sml_settings *s) {
  if (s->aggd.num_keys > 0 && prctl(PR_SET_DUMPABLE, 0) != 0)
    sml_log_event(SML_LOG_WARNING, "dumpable", NULL, 0, "a core of this process would have the keys");
}

static bool use_switch(struct daemon *d) {
  static struct sml_dataplane *(*const makers[])(const struct sml_switch_options *) = {
      [SML_BMV2] = sml_bmv2_create, [SML_DPDK] = sml_dpdk_create, [SML_TOFINO] = sml_tofino_create};
  struct sml_settings *s = &d->settings;
  if (s->aggd.pool_slots == 0) s->aggd.pool_slots = SWITCH_SLOTS;
  const struct sml_switch_options options = {.runtime = s->switch_addr,
                                             .control = s->switch_runtime,
                                             .program = s->switch_program,
                                             .packet_lanes = s->aggd.packet_lanes,
                                             .pool_slots = s->aggd.pool_slots,
                                             .cpu_port = (uint16_t)s->switch_cpu_port};
  s->aggd.dataplane = d->plane = makers[s->dataplane](&options);
  if (!d->plane) complain("out of memory");
  return d->plane != NULL;
}

/* Before it is tried: whoever reads why it failed should know that nobody has seen it work. */
static void warn_of_untried(const struct sml_settings *s) {
  if (s->dataplane == SML_TOFINO)
    sml_log_event(SML_LOG_WARNING, "untried_switch", NULL, 0,
                  "--dataplane tofino has never run on a Tofino: see docs/tofino.md, and check sums (switchml bench)");
}

/* Service, HTTP, port file. False: something was said on stderr. */
static bool start(struct daemon *d) {
  char error[ERROR_BYTES];
  struct sml_settings *s = &d->settings;
  struct sml_addr addr;
  warn_of_untried(s);
  if (s->dataplane != SML_SOFTWARE && !use_switch(d)) return false;
  if (sml_aggd_start(&s->aggd, &d->aggd, error, sizeof error) != 0) {
    complain("%s", error);
    return false;
  }
  sml_settings_warn(s);
  sml_settings_drop_keys(s);
  sml_aggd_addr(d->aggd, &addr);
  sml_addr_format(&addr, d->addr_text, sizeof d->addr_text);
  if (s->http && !start_http(d)) return false;
  say_ready(d);
  (void)sml_writer_flush(START_FLUSH_NS);
  /* Last: who waits for the file finds everything there, HTTP and what was said about it too. */
  return !s->port_file || write_port_file(s->port_file, d->addr_text);
}

static void stop(struct daemon *d) {
  sml_http_stop(d->http);
  if (d->aggd) sml_aggd_stop(d->aggd);
  sml_switch_destroy(d->plane);
  sml_settings_clear(&d->settings);
}

/* --- SIGHUP --- */

static bool has_files_to_read(const struct daemon *d) {
  return d->settings.config_path || d->settings.key_file;
}

/* Takes of the new settings what can change while jobs run, and names the rest. */
static void use_settings(struct daemon *d, const struct sml_settings *now) {
  char others[512];
  int error = sml_aggd_set_tenants(d->aggd, now->keys, now->aggd.num_keys, now->aggd.tenants, now->aggd.num_tenants);
  if (!error) error = sml_aggd_set_networks(d->aggd, now->networks, now->aggd.num_networks);
  if (error) {
    sml_log_event(SML_LOG_WARNING, "reload_refused", NULL, 0,
                  error == -ENOMEM ? "out of memory" : "keys instead of none, or none instead of keys, need a restart");
    return;
  }
  if (now->ends_withdrawn) sml_aggd_end_withdrawn(d->aggd);
  use_log_settings(now);
  sml_settings_warn(now);
  sml_settings_compare(&d->settings, now, others, sizeof others);
  const struct sml_log_field options = {"options", others, 0};
  if (others[0])
    sml_log_event(SML_LOG_WARNING, "restart_needed", &options, 1, "what these are now counts from the next start on");
  const struct sml_log_field counts[] = {{"keys", NULL, now->aggd.num_keys}, {"tenants", NULL, now->aggd.num_tenants}};
  sml_log_event(SML_LOG_INFO, "reloaded", counts, SML_ARRAY_LEN(counts), "");
}

static void reload(struct daemon *d) {
  char error[ERROR_BYTES], state[64];
  struct sml_settings now;
  snprintf(state, sizeof state, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(sml_clock_ns() / 1000));
  tell_manager(d, state);
  if (sml_settings_read(d->argc, d->argv, true, &now, error, sizeof error) == 0) use_settings(d, &now);
  else sml_log_event(SML_LOG_WARNING, "reload_refused", NULL, 0, error);
  sml_settings_clear(&now);
  tell_manager(d, "READY=1");
}

/* Says that the daemon is alive if its control thread is: that answers who asks for a snapshot, or does not within a
 * second. This thread only waits for signals. */
static void feed_watchdog(struct daemon *d) {
  struct sml_snapshot *snapshot = sml_aggd_snapshot(d->aggd);
  if (snapshot) (void)sml_notify("WATCHDOG=1");
  else sml_log_event(SML_LOG_WARNING, "control_thread_stuck", NULL, 0, "the service manager is not told of life");
  sml_snapshot_release(snapshot);
}

/* The next signal; 0: none until then. */
static int await_signal(const sigset_t *awaited_signals, uint64_t until_ns) {
  const uint64_t now_ns = sml_clock_ns(), patience_ns = until_ns > now_ns ? until_ns - now_ns : 0;
  const struct timespec patience = {.tv_sec = (time_t)(patience_ns / SML_NS_PER_S),
                                    .tv_nsec = (long)(patience_ns % SML_NS_PER_S)};
  const int number = sigtimedwait(awaited_signals, NULL, &patience);
  return number > 0 ? number : 0;
}

/* Until a signal that ends the daemon, which comes back. */
static int serve(struct daemon *d, const sigset_t *awaited_signals) {
  const uint64_t watchdog_ns = sml_notify_watchdog_ns(), period_ns = watchdog_ns > 0 ? watchdog_ns : IDLE_NS;
  uint64_t feed_at_ns = sml_clock_ns();
  for (;;) {
    const int number = await_signal(awaited_signals, feed_at_ns);
    if (sml_clock_ns() >= feed_at_ns) {
      if (watchdog_ns > 0) feed_watchdog(d);
      feed_at_ns = sml_clock_ns() + period_ns;
    }
    if (number == 0) continue;
    if (number == SIGUSR1) sml_trace_files_on_signal(&d->trace_files, d->aggd);
    else if (number == SIGHUP && has_files_to_read(d)) reload(d);
    else return number;
  }
}

/* --- */

/* A file that would be made anew. */
static bool check_file(const char *what, const char *path) {
  char folder[4096];
  struct stat st;
  if (!path) return true;
  snprintf(folder, sizeof folder, "%s", path);
  const bool is_taken = stat(path, &st) == 0 && !S_ISREG(st.st_mode);
  if (!is_taken && access(dirname(folder), W_OK | X_OK) == 0) return true;
  complain("cannot write the %s %s: %s", what, path,
           is_taken ? "a file that is not regular is there" : strerror(errno));
  return false;
}

/* By trying them: this process does nothing else any more. */
static bool check_cpus(const struct sml_settings *s) {
  for (uint32_t l = 0; l < s->aggd.num_lanes; l++) {
    const uint32_t cpu = sml_cpus_of_thread(&s->aggd.cpus, l);
    cpu_set_t set;
    CPU_ZERO(&set);
    if (cpu == SML_MAX_CPUS) return true;
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) == 0) continue;
    complain("cannot run a thread on processor %u, one of --cpus or SWITCHML_CPUS: %s", cpu, strerror(errno));
    return false;
  }
  return true;
}

/* At a port of the system's choice: the daemon that runs may have the one that is wanted. */
static bool check_address(const char *what, const struct sml_addr *wanted) {
  char text[64];
  struct sml_addr addr = *wanted;
  const struct sockaddr *sockaddr = (const struct sockaddr *)(const void *)addr.bytes;
  if (addr.num_bytes == 0) return true;
  sml_addr_set_port(&addr, 0);
  const int fd = sml_fd_raise(socket(sockaddr->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool is_fine = fd >= 0 && bind(fd, sockaddr, addr.num_bytes) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (is_fine) return true;
  sml_addr_format(wanted, text, sizeof text);
  complain("%scannot listen on %s: %s; choose an address of this host, or 0.0.0.0 for all of them", what, text,
           strerror(error));
  return false;
}

static int say_checked(const struct sml_settings *s) {
  bool is_fine = check_cpus(s);
  is_fine = check_address("", &s->aggd.listen) && is_fine;
  is_fine = check_address("--http: ", &s->http_addr) && is_fine;
  is_fine = check_file("port file", s->port_file) && is_fine;
  is_fine = check_file("capture", s->aggd.pcap_path) && is_fine;
  if (!is_fine) return 1;
  sml_settings_warn(s);
  printf("%s is fine: %u keys, %u tenants\n", s->config_path ? s->config_path : "the command line", s->aggd.num_keys,
         s->aggd.num_tenants);
  return 0;
}

int main(int argc, char **argv) {
  sml_fd_fill_standard();
  static struct daemon d; /* a file of the flight recorder may be being written at the end */
  d.argc = argc;
  d.argv = argv;
  struct sml_settings *s = &d.settings;
  char error[ERROR_BYTES];
  int status = sml_settings_read(argc, argv, false, s, error, sizeof error);
  use_log_settings(s);
  if (status != 0) complain("%s", error);
  else if (!check_trace_folder(s)) status = 1;
  if (status == 0 && s->is_check) status = say_checked(s);
  if (status != 0 || s->is_check) {
    sml_settings_clear(s);
    return status;
  }
  keep_keys_out_of_cores(s);
  s->aggd.on_note = log_note;
  s->aggd.render_status = render_status;
  s->aggd.on_capture_ended = log_capture_ended;
  s->aggd.user = &d;
  d.trace_files.folder = s->trace_folder;
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of its writer */
  sigset_t awaited_signals;
  sigemptyset(&awaited_signals);
  sigaddset(&awaited_signals, SIGTERM);
  sigaddset(&awaited_signals, SIGINT);
  sigaddset(&awaited_signals, SIGHUP);
  sigaddset(&awaited_signals, SIGUSR1);
  sigprocmask(SIG_BLOCK, &awaited_signals, NULL); /* taken by sigwait, also while starting */
  raise_descriptor_limit(s->aggd.max_connections);
  if (!start(&d)) {
    stop(&d);
    return 1;
  }
  tell_manager(&d, "READY=1");

  const int signal_number = serve(&d, &awaited_signals);
  (void)sml_notify("STOPPING=1\nSTATUS=telling the ranks");
  char drops[512];
  sml_aggd_describe_drops(d.aggd, drops, sizeof drops);
  const struct sml_log_field fields[] = {{"signal", sigabbrev_np(signal_number), 0}, {"dropped_packets", drops, 0}};
  sml_log_event(SML_LOG_INFO, "stopping", fields, SML_ARRAY_LEN(fields), "");
  stop(&d);
  sml_trace_files_finish(&d.trace_files, SML_NS_PER_S);
  return 0;
}
