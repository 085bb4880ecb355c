/* SPDX-License-Identifier: Apache-2.0
 * switchmld: the aggregator as a daemon. Reads the command line, runs the service (src/aggd) until a
 * signal comes. Exit status: 0 stopped by a signal, 1 could not start, 2 wrong usage. */
#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "aggd/aggd.h"
#include "aggd/key_reader.h"
#include "base/log.h"
#include "switchd/http.h"
#include "switchd/notify.h"
#include "switchd/status_json.h"
#include "switchd/trace_files.h"

#define DEFAULT_LISTEN "0.0.0.0:48879"
#define ERROR_BYTES 512u

/* argp looks it up by name from libc. */
__attribute__((visibility("default"))) const char *argp_program_version = "switchmld " SML_VERSION_TEXT;

enum option_key {
  KEY_LISTEN = 'l',
  KEY_DATA_PORT = 0x100,
  KEY_LANES,
  KEY_SLOTS,
  KEY_MAX_JOBS,
  KEY_MAX_CONNECTIONS,
  KEY_NO_OFFLOAD,
  KEY_CPUS,
  KEY_LOG_LEVEL,
  KEY_LOG_FORMAT,
  KEY_HTTP,
  KEY_PORT_FILE,
  KEY_KEY_FILE,
  KEY_MAX_PER_HOST,
  KEY_POLL,
  KEY_MULTICAST,
  KEY_MULTICAST_INTERFACE,
  KEY_MULTICAST_TTL,
  KEY_PCAP,
  KEY_TRACE,
  KEY_TRACE_DIR,
  KEY_TRACE_EVENTS,
};

static const struct argp_option option_table[] = {
    {"listen", KEY_LISTEN, "HOST:PORT", 0,
     "Address of the control port; the data ports are opened at the same host. Port 0: any free one. "
     "Default " DEFAULT_LISTEN,
     0},
    {"data-port", KEY_DATA_PORT, "N", 0,
     "UDP port of the first lane, the others follow. Default: any free ports", 0},
    {"lanes", KEY_LANES, "N", 0, "Engine threads, each with a data port of its own: 1 to 16. Default 1", 0},
    {"slots", KEY_SLOTS, "N", 0, "Slots a lane, all jobs together: 1 to 65536. Default 8192", 0},
    {"max-jobs", KEY_MAX_JOBS, "N", 0, "Jobs that may run at a time: 1 to 1024. Default 64", 0},
    {"max-connections", KEY_MAX_CONNECTIONS, "N", 0,
     "Control connections, one a rank and job: 2 to 65536. Default 1024", 0},
    {"max-connections-per-host", KEY_MAX_PER_HOST, "N", 0,
     "Of these, from one IPv4 address or IPv6 /64: 1 to 65536. Default: no limit", 0},
    {"key-file", KEY_KEY_FILE, "FILE", 0,
     "Take ranks only that have a key of this file; their control connections and datagrams are "
     "authenticated. Default: any rank, no authentication",
     0},
    {"no-offload", KEY_NO_OFFLOAD, NULL, 0, "Never use UDP segmentation offload", 0},
    {"poll", KEY_POLL, "HOW", 0,
     "How to look for datagrams before sleeping for them: auto (for some tens of microseconds after the last ones), "
     "busy (always: a core a lane) or block (never). Default auto",
     0},
    {"cpus", KEY_CPUS, "LIST", 0,
     "Processors of the engine threads, as in 0-3,8: lane l runs on the l-th only. Default: SWITCHML_CPUS, else "
     "any",
     0},
    {"multicast", KEY_MULTICAST, "GROUP[:PORT][/COUNT]", 0,
     "Send results by IP multicast to jobs whose ranks all hear it: COUNT groups (default 64) from GROUP on, one a "
     "job, as in 239.192.7.0/64; lane l uses PORT (default 28879) + l. Default: never",
     0},
    {"multicast-interface", KEY_MULTICAST_INTERFACE, "NAME|ADDRESS", 0,
     "Network interface that multicast leaves by. Default: that of --listen's address, else as routes say", 0},
    {"multicast-ttl", KEY_MULTICAST_TTL, "N", 0,
     "How many networks multicast may cross: 1 to 255. Default 1: not beyond the next router", 0},
    {"pcap", KEY_PCAP, "FILE", 0,
     "Capture the data ports' packets there, up to 256 MiB, for Wireshark; other lanes beside it. Default: never", 0},
    {"trace", KEY_TRACE, "LEVEL", 0,
     "What the flight recorder keeps: notable (what is rare), all (every packet too) or off. Default notable", 0},
    {"trace-dir", KEY_TRACE_DIR, "DIR", 0,
     "Write it to files there, for `switchml trace`: on SIGUSR1, and when a job is aborted. Default: never", 0},
    {"trace-events", KEY_TRACE_EVENTS, "N", 0, "Events that it keeps a lane: 1 to 16777216. Default 16384", 0},
    {"log-level", KEY_LOG_LEVEL, "LEVEL", 0, "error, warning, info or debug. Default info", 0},
    {"log-format", KEY_LOG_FORMAT, "FORMAT", 0, "text or json, one object a line. Default text", 0},
    {"http", KEY_HTTP, "ADDRESS:PORT", 0,
     "Serve metrics (/metrics), the status (/api/status) and a page that shows it (/) there, to whoever reaches it. "
     "Default: no HTTP",
     0},
    {"port-file", KEY_PORT_FILE, "FILE", 0, "Write HOST:PORT of the control port there once ready", 0},
    {0},
};

struct settings {
  struct sml_aggd_options aggd;
  const char *listen, *port_file, *key_file, *multicast, *multicast_interface, *http;
  struct sml_addr http_addr;
  struct sml_trace_files trace_files;
};

/* A whole decimal number within its range, or the end of the program with what is wrong. */
static uint32_t parse_number(const struct argp_state *state, const char *name, const char *text, uint32_t min,
                             uint32_t max) {
  char *end;
  errno = 0;
  unsigned long value = strtoul(text, &end, 10);
  if (text[0] < '0' || text[0] > '9' || *end || errno || value < min || value > max) {
    argp_error(state, "--%s: '%s' is not a number from %u to %u", name, text, min, max);
  }
  return (uint32_t)value;
}

static enum sml_trace_level parse_trace_level(const struct argp_state *state, const char *text) {
  if (strcmp(text, "off") == 0) return SML_TRACE_OFF;
  if (strcmp(text, "notable") == 0) return SML_TRACE_NOTABLE;
  if (strcmp(text, "all") != 0) argp_error(state, "--trace: '%s' is not off, notable or all", text);
  return SML_TRACE_ALL;
}

static error_t parse_multicast_option(int key, char *argument, struct argp_state *state) {
  struct settings *s = state->input;
  switch (key) {
    case KEY_MULTICAST:
      s->multicast = argument;
      break;
    case KEY_MULTICAST_INTERFACE:
      s->multicast_interface = argument;
      break;
    case KEY_MULTICAST_TTL:
      s->aggd.multicast.ttl = (uint8_t)parse_number(state, "multicast-ttl", argument, 1, 255);
      break;
    default:
      return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

/* What the daemon says, and where. */
static error_t parse_output_option(int key, char *argument, struct argp_state *state) {
  struct settings *s = state->input;
  enum sml_log_level level;
  enum sml_log_format format;
  switch (key) {
    case KEY_LOG_LEVEL:
      if (!sml_log_parse_level(argument, &level)) {
        argp_error(state, "--log-level: '%s' is not error, warning, info or debug", argument);
      }
      sml_log_set_level(level);
      break;
    case KEY_LOG_FORMAT:
      if (!sml_log_parse_format(argument, &format))
        argp_error(state, "--log-format: '%s' is not text or json", argument);
      sml_log_set_format(format);
      break;
    case KEY_HTTP:
      s->http = argument;
      break;
    case KEY_PORT_FILE:
      s->port_file = argument;
      break;
    case ARGP_KEY_ARG:
      argp_error(state, "unexpected argument '%s'", argument);
      break;
    default:
      return parse_multicast_option(key, argument, state);
  }
  return 0;
}

static error_t parse_option(int key, char *argument, struct argp_state *state) {
  struct settings *s = state->input;
  switch (key) {
    case KEY_LISTEN:
      s->listen = argument;
      break;
    case KEY_DATA_PORT:
      s->aggd.first_data_port = (uint16_t)parse_number(state, "data-port", argument, 1, 65535);
      break;
    case KEY_LANES:
      s->aggd.num_lanes = parse_number(state, "lanes", argument, 1, SML_AGGD_MAX_LANES);
      break;
    case KEY_SLOTS:
      s->aggd.pool_slots = parse_number(state, "slots", argument, 1, SML_AGGD_MAX_SLOTS);
      break;
    case KEY_MAX_JOBS:
      s->aggd.max_jobs = parse_number(state, "max-jobs", argument, 1, SML_AGGD_MAX_JOBS);
      break;
    case KEY_MAX_CONNECTIONS:
      s->aggd.max_connections = parse_number(state, "max-connections", argument, 2, 65536);
      break;
    case KEY_MAX_PER_HOST:
      s->aggd.max_connections_per_host = parse_number(state, "max-connections-per-host", argument, 1, 65536);
      break;
    case KEY_KEY_FILE:
      s->key_file = argument;
      break;
    case KEY_NO_OFFLOAD:
      s->aggd.no_offload = true;
      break;
    case KEY_POLL:
      if (!sml_poll_parse(argument, &s->aggd.poll)) {
        argp_error(state, "--poll: '%s' is not auto, busy or block", argument);
      }
      break;
    case KEY_CPUS:
      if (!sml_cpus_parse(argument, &s->aggd.cpus))
        argp_error(state, "--cpus: '%s' is no list of processors, as in 0-3,8", argument);
      break;
    case KEY_PCAP:
      s->aggd.pcap_path = argument;
      break;
    case KEY_TRACE:
      s->aggd.trace_level = parse_trace_level(state, argument);
      break;
    case KEY_TRACE_DIR:
      s->trace_files.folder = argument;
      break;
    case KEY_TRACE_EVENTS:
      s->aggd.trace_events = parse_number(state, "trace-events", argument, 1, SML_TRACE_MAX_EVENTS);
      break;
    default:
      return parse_output_option(key, argument, state);
  }
  return 0;
}

static bool parse_multicast(struct settings *s) {
  char error[ERROR_BYTES];
  struct sml_multicast *m = &s->aggd.multicast;
  if (s->multicast && !sml_multicast_parse(s->multicast, m, error, sizeof error)) {
    fprintf(stderr, "switchmld: --multicast: %s\n", error);
    return false;
  }
  if (s->multicast && m->first.num_bytes != s->aggd.listen.num_bytes) {
    fprintf(stderr, "switchmld: --multicast and --listen must both be IPv4 or both IPv6\n");
    return false;
  }
  if (s->multicast_interface && !sml_multicast_find_interface(s->multicast_interface, &m->interface)) {
    fprintf(stderr, "switchmld: --multicast-interface: no interface has the name or address '%s'\n",
            s->multicast_interface);
    return false;
  }
  return true;
}

static bool parse_settings(int argc, char **argv, struct settings *s) {
  static const struct argp parser = {
      .options = option_table,
      .parser = parse_option,
      .doc =
          "The SwitchML aggregator: sums the tensors of jobs whose ranks join it."
          "\vSWITCHML_FAULTS=loss=0.01,seed=7 in the environment loses, duplicates, "
          "reorders or corrupts received datagrams, for tests. See switchmld(1)."};
  char error[ERROR_BYTES];
  argp_err_exit_status = 2;
  const char *cpus = getenv("SWITCHML_CPUS");
  if (cpus && *cpus && !sml_cpus_parse(cpus, &s->aggd.cpus)) {
    fprintf(stderr, "switchmld: SWITCHML_CPUS: '%s' is no list of processors, as in 0-3,8\n", cpus);
    return false;
  }
  argp_parse(&parser, argc, argv, 0, NULL, s);
  if (!sml_addr_parse(s->listen, 0, &s->aggd.listen, error, sizeof error)) {
    fprintf(stderr, "switchmld: --listen: %s\n", error);
    return false;
  }
  if (!parse_multicast(s)) return false;
  if (s->http && !sml_addr_parse(s->http, 0, &s->http_addr, error, sizeof error)) {
    fprintf(stderr, "switchmld: --http: %s\n", error);
    return false;
  }
  if (s->aggd.first_data_port && s->aggd.first_data_port + s->aggd.num_lanes - 1 > 65535) {
    fprintf(stderr, "switchmld: --data-port: %u lanes from port %u on don't end at 65535\n",
            s->aggd.num_lanes, s->aggd.first_data_port);
    return false;
  }
  if (!sml_faults_parse(getenv("SWITCHML_FAULTS"), &s->aggd.faults, error, sizeof error)) {
    fprintf(stderr, "switchmld: SWITCHML_FAULTS: %s\n", error);
    return false;
  }
  return true;
}

static void log_capture_ended(void *user, const char *text) {
  (void)user;
  sml_log_event(SML_LOG_WARNING, "capture_ended", NULL, 0, text);
}

/* Job events, one line each. */
static void log_note(void *user, const struct sml_aggd_note *note) {
  struct settings *settings = user;
  sml_trace_files_note(&settings->trace_files, note);
  char epoch[16];
  const bool is_of_rank = strncmp(note->name, "rank_", 5) == 0;
  const enum sml_log_level level = note->is_warning ? SML_LOG_WARNING : is_of_rank ? SML_LOG_DEBUG : SML_LOG_INFO;
  const struct sml_log_field fields[] = {{"job", note->job_name, 0},
                                         {"number", NULL, note->job},
                                         {"epoch", epoch, 0},
                                         {is_of_rank ? "rank" : "ranks", NULL,
                                          is_of_rank ? note->rank : note->world_size},
                                         {"key", note->key_name, 0}};
  snprintf(epoch, sizeof epoch, "%08x", note->epoch);
  const size_t num_fields = note->job_name[0] == 0 ? 0 : SML_ARRAY_LEN(fields) - (note->key_name[0] == 0);
  sml_log_event(level, note->name, fields, num_fields, note->text);
}

static char *render_status(void *user, const struct sml_snapshot *snapshot, const char *key_name) {
  (void)user;
  return sml_status_json(snapshot, key_name);
}

/* The service has a copy of the keys once it runs: ours go at once. */
static int start_service(struct settings *s, struct sml_aggd **aggd_out) {
  char error[ERROR_BYTES];
  struct sml_key_entry *keys = NULL;
  if (s->key_file && !(keys = sml_keys_read(s->key_file, &s->aggd.num_keys, error, sizeof error))) {
    fprintf(stderr, "switchmld: %s\n", error);
    return 1;
  }
  s->aggd.keys = keys;
  int status = sml_aggd_start(&s->aggd, aggd_out, error, sizeof error);
  if (keys) sml_keys_free(keys, s->aggd.num_keys);
  s->aggd.keys = NULL;
  if (status != 0) fprintf(stderr, "switchmld: %s\n", error);
  return status;
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
  FILE *file = (size_t)num_bytes < sizeof temporary ? fopen(temporary, "wxe") : NULL;
  bool is_written = file && fprintf(file, "%s\n", addr_text) > 0;
  if (file && fclose(file) != 0) is_written = false;
  if (is_written && rename(temporary, path) == 0) return true;
  fprintf(stderr, "switchmld: cannot write the port file %s: %s\n", path, strerror(errno));
  if (file) unlink(temporary);
  return false;
}

static bool start_http(struct settings *s, struct sml_aggd *aggd, struct sml_http **http_out) {
  char error[ERROR_BYTES];
  if (sml_http_start(&s->http_addr, aggd, http_out, error, sizeof error) != 0) {
    fprintf(stderr, "switchmld: --http: %s\n", error);
    return false;
  }
  sml_addr_set_port(&s->http_addr, sml_http_port(*http_out));
  return true;
}

static void say_ready(const struct settings *s, const char *addr_text) {
  char http_text[64];
  fprintf(stderr, "switchmld: listening on %s, %u lanes\n", addr_text, s->aggd.num_lanes);
  if (s->http) {
    sml_addr_format(&s->http_addr, http_text, sizeof http_text);
    fprintf(stderr, "switchmld: status at http://%s/\n", http_text);
  }
  const struct sml_log_field keys = {"keys", NULL, s->aggd.num_keys};
  if (s->aggd.num_keys > 0) sml_log_event(SML_LOG_INFO, "authenticating", &keys, 1, "");
  if (sml_faults_any(&s->aggd.faults))
    sml_log_event(SML_LOG_WARNING, "faults_injected", NULL, 0, getenv("SWITCHML_FAULTS"));
}

int main(int argc, char **argv) {
  struct settings settings = {.listen = DEFAULT_LISTEN,
                              .aggd = {.num_lanes = 1,
                                       .max_connections = 1024,
                                       .trace_level = SML_TRACE_NOTABLE,
                                       .on_note = log_note,
                                       .render_status = render_status,
                                       .on_capture_ended = log_capture_ended,
                                       .user = &settings}};
  if (!parse_settings(argc, argv, &settings)) return 2;
  signal(SIGPIPE, SIG_IGN);
  sigset_t awaited_signals;
  sigemptyset(&awaited_signals);
  sigaddset(&awaited_signals, SIGTERM);
  sigaddset(&awaited_signals, SIGINT);
  sigaddset(&awaited_signals, SIGHUP);
  sigaddset(&awaited_signals, SIGUSR1); /* stops nothing */
  sigprocmask(SIG_BLOCK, &awaited_signals, NULL); /* taken by sigwait, also while starting */
  raise_descriptor_limit(settings.aggd.max_connections);

  struct sml_aggd *aggd;
  char addr_text[64];
  if (start_service(&settings, &aggd) != 0) return 1;
  struct sml_addr addr;
  sml_aggd_addr(aggd, &addr);
  sml_addr_format(&addr, addr_text, sizeof addr_text);
  struct sml_http *http = NULL;
  if (settings.http && !start_http(&settings, aggd, &http)) {
    sml_aggd_stop(aggd);
    return 1;
  }
  say_ready(&settings, addr_text);
  /* Last: who waits for the file finds everything there, HTTP and what was said about it too. */
  if (settings.port_file && !write_port_file(settings.port_file, addr_text)) {
    sml_http_stop(http);
    sml_aggd_stop(aggd);
    return 1;
  }
  char ready[ERROR_BYTES];
  snprintf(ready, sizeof ready, "READY=1\nSTATUS=listening on %s, %u lanes", addr_text, settings.aggd.num_lanes);
  if (!sml_notify(ready))
    sml_log_event(SML_LOG_WARNING, "service_manager_deaf", NULL, 0, getenv("NOTIFY_SOCKET"));

  int signal_number = 0;
  while (sigwait(&awaited_signals, &signal_number) != 0 || signal_number == SIGUSR1)
    if (signal_number == SIGUSR1) sml_trace_files_on_signal(&settings.trace_files, aggd);
  (void)sml_notify("STOPPING=1\nSTATUS=telling the ranks");
  char drops[ERROR_BYTES];
  sml_aggd_describe_drops(aggd, drops, sizeof drops);
  const struct sml_log_field fields[] = {{"signal", sigabbrev_np(signal_number), 0}, {"dropped_packets", drops, 0}};
  sml_log_event(SML_LOG_INFO, "stopping", fields, SML_ARRAY_LEN(fields), "");
  sml_http_stop(http);
  sml_aggd_stop(aggd);
  return 0;
}
