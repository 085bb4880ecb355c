/* SPDX-License-Identifier: Apache-2.0 */
#include "switchd/options.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"

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
  KEY_HTTP_HOST,
  KEY_PORT_FILE,
  KEY_KEY_FILE,
  KEY_ALLOW,
  KEY_END_WITHDRAWN,
  KEY_MAX_PER_HOST,
  KEY_MAX_LEASE,
  KEY_MAX_DATAGRAM,
  KEY_MAX_JOIN_TIME,
  KEY_POLL,
  KEY_MULTICAST,
  KEY_MULTICAST_INTERFACE,
  KEY_MULTICAST_TTL,
  KEY_PCAP,
  KEY_TRACE,
  KEY_TRACE_DIR,
  KEY_TRACE_EVENTS,
  KEY_SWITCH_FORMAT,
  KEY_DATAPLANE,
  KEY_SWITCH,
  KEY_SWITCH_PROGRAM,
  KEY_SWITCH_CPU_PORT,
  KEY_CONFIG,
  KEY_CHECK_CONFIG,
};

#define TEXT_OF(number) #number
#define DEFAULT_TEXT(number) TEXT_OF(number)

static const struct argp_option option_table[] = {
    {"listen", KEY_LISTEN, "HOST:PORT", 0,
     "Address of the control port; the data ports are opened at the same host. Port 0: any free one. "
     "Default " SML_DEFAULT_LISTEN,
     0},
    {"data-port", KEY_DATA_PORT, "N", 0,
     "UDP port of the first lane, the others follow. Default: any free ports", 0},
    {"lanes", KEY_LANES, "N", 0, "Engine threads, each with a data port of its own: 1 to 16. Default 1", 0},
    {"slots", KEY_SLOTS, "N", 0, "Slots a lane, all jobs together: 1 to 65536. Default 8192", 0},
    {"max-jobs", KEY_MAX_JOBS, "N", 0, "Jobs that may run at a time: 1 to 1024. Default 256", 0},
    {"max-connections", KEY_MAX_CONNECTIONS, "N", 0,
     "Control connections, one a rank and job: 2 to 65536. Default 1024", 0},
    {"max-connections-per-host", KEY_MAX_PER_HOST, "N", 0,
     "Of these, from one IPv4 address or IPv6 /64: 1 to 65536. Default: no limit", 0},
    {"max-datagram", KEY_MAX_DATAGRAM, "BYTES", 0,
     "The longest datagrams that a job gets, whatever its ranks ask for; two chunks of that size are kept for each "
     "slot: 576 to 65507. Default " DEFAULT_TEXT(SML_DEFAULT_MAX_DATAGRAM),
     0},
    {"max-lease", KEY_MAX_LEASE, "SECONDS", 0,
     "The longest lease that a rank may ask for, so the longest that one keeps its places which has gone without a "
     "word: 1 to 3600. Default " DEFAULT_TEXT(SML_DEFAULT_MAX_LEASE_S),
     0},
    {"max-join-time", KEY_MAX_JOIN_TIME, "SECONDS", 0,
     "The longest that a job waits for its ranks, whatever they ask for: 1 to 604800. Default " DEFAULT_TEXT(
         SML_DEFAULT_MAX_JOIN_S),
     0},
    {"key-file", KEY_KEY_FILE, "FILE", 0,
     "Take ranks only that have a key of this file; their control connections and datagrams are "
     "authenticated. Default: any rank, no authentication",
     0},
    {"end-withdrawn", KEY_END_WITHDRAWN, NULL, 0,
     "When SIGHUP finds a key gone, or another one under its name, end the jobs that run with it. Default: they go on",
     0},
    {"allow", KEY_ALLOW, "NETWORK", 0,
     "Take control connections from there only, as in 10.1.0.0/16, 2001:db8::/32 or 192.0.2.7; may stand several "
     "times. Default: from anywhere",
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
    {"trace-events", KEY_TRACE_EVENTS, "N", 0,
     "Events that it keeps a lane, and a quarter of that for each job: 1 to 16777216. Default 16384", 0},
    {"switch-format", KEY_SWITCH_FORMAT, "LANES", 0,
     "Run all jobs as a programmable switch would: 32, 64, 128 or 256 lanes a packet, at most 30 ranks, without keys "
     "and retry. Default: never",
     0},
    {"dataplane", KEY_DATAPLANE, "WHAT", 0,
     "Who sums: software, or what stands between this host and the ranks with SwitchML's program: bmv2, a "
     "simple_switch; dpdk-p4, a switchml-pipeline; tofino, a Tofino (never run on one). Then with --switch-format, "
     "one lane, and an address in --listen. Default software",
     0},
    {"switch", KEY_SWITCH, "WHERE", 0,
     "The switch's control: of bmv2 the address and port of its runtime (Thrift), default 127.0.0.1:9090; of dpdk-p4 "
     "the path of its socket, default /run/switchml-pipeline; of tofino the address and port of gRPC, default "
     "127.0.0.1:50052",
     0},
    {"switch-program", KEY_SWITCH_PROGRAM, "NAME", 0,
     "Under which name a tofino has loaded SwitchML's program. Default switchml", 0},
    {"switch-cpu-port", KEY_SWITCH_CPU_PORT, "N", 0, "The switch's port to this host: 0 to 511. Default 0", 0},
    {"log-level", KEY_LOG_LEVEL, "LEVEL", 0, "error, warning, info or debug. Default info", 0},
    {"log-format", KEY_LOG_FORMAT, "FORMAT", 0, "text or json, one object a line. Default text", 0},
    {"http", KEY_HTTP, "ADDRESS:PORT", 0,
     "Serve metrics (/metrics), the status (/api/status) and a page that shows it (/) there, to whoever reaches it. "
     "Default: no HTTP",
     0},
    {"http-host", KEY_HTTP_HOST, "NAME[,NAME]", 0,
     "Names by which browsers and scrapers may ask for --http. Default: none but localhost; addresses always do", 0},
    {"config", KEY_CONFIG, "FILE", 0,
     "Take options from there, and quotas and keys of tenants; options of the command line come first. SIGHUP reads it "
     "again. See switchmld(1). Default: no file",
     0},
    {"check-config", KEY_CHECK_CONFIG, NULL, 0,
     "Say what is wrong with the options, the file and its keys, and exit", 0},
    {"port-file", KEY_PORT_FILE, "FILE", 0, "Write HOST:PORT of the control port there once ready", 0},
    {0},
};


#define NUM_OPTIONS (SML_ARRAY_LEN(option_table) - 1)
_Static_assert(NUM_OPTIONS <= SML_MAX_OPTIONS, "each option has a place");

/* --- the command line --- */

bool sml_option_note(uint32_t number, const char *text, struct sml_option_texts *texts) {
  if (!sml_option_is_list(number)) return texts->texts[number] = text, true;
  char *list = NULL;
  const int num_chars = asprintf(&list, "%s%s%s", texts->list ? texts->list : "", texts->list ? "," : "", text);
  if (num_chars < 0) return false;
  free(texts->list);
  texts->texts[number] = texts->list = list;
  return true;
}

static error_t note_option(int key, char *argument, struct argp_state *state) {
  struct sml_option_texts *texts = state->input;
  if (key == ARGP_KEY_ARG) argp_error(state, "unexpected argument '%s'", argument);
  for (uint32_t i = 0; i < NUM_OPTIONS; i++) {
    if (option_table[i].key != key) continue;
    if (!sml_option_note(i, argument ? argument : "yes", texts)) argp_error(state, "out of memory");
    return 0;
  }
  return ARGP_ERR_UNKNOWN;
}

static const struct argp parser = {
    .options = option_table,
    .parser = note_option,
    .doc = "The SwitchML aggregator: sums the tensors of jobs whose ranks join it."
           "\vSWITCHML_FAULTS=loss=0.01,seed=7 in the environment loses, duplicates, "
           "reorders or corrupts received datagrams, for tests. See switchmld(1)."};

void sml_options_parse(int argc, char **argv, struct sml_option_texts *texts) {
  argp_err_exit_status = 2;
  argp_parse(&parser, argc, argv, 0, NULL, texts);
}

/* --- the table --- */

uint32_t sml_options_count(void) {
  return NUM_OPTIONS;
}

const char *sml_option_name(uint32_t number) {
  return option_table[number].name;
}

bool sml_option_is_of_file(uint32_t number) {
  return option_table[number].key != KEY_CONFIG && option_table[number].key != KEY_CHECK_CONFIG;
}

bool sml_option_is_list(uint32_t number) {
  return option_table[number].key == KEY_ALLOW;
}

bool sml_option_is_live(uint32_t number) {
  const int key = option_table[number].key;
  return key == KEY_LOG_LEVEL || key == KEY_LOG_FORMAT || key == KEY_KEY_FILE || key == KEY_ALLOW ||
         key == KEY_END_WITHDRAWN;
}

uint32_t sml_option_find(const char *name, const char **nearest) {
  uint32_t least = 4; /* further off, nothing is meant */
  *nearest = NULL;
  for (uint32_t i = 0; i < NUM_OPTIONS; i++) {
    if (!sml_option_is_of_file(i)) continue;
    const uint32_t d = sml_text_distance(name, option_table[i].name);
    if (d == 0) return i;
    if (d >= least) continue;
    least = d;
    *nearest = option_table[i].name;
  }
  return SML_MAX_OPTIONS;
}

/* --- what texts mean --- */

bool sml_parse_number(const char *text, uint32_t min, uint32_t max, uint32_t *value_out, char *error,
                      size_t error_bytes) {
  char *end;
  errno = 0;
  unsigned long value = strtoul(text, &end, 10);
  *value_out = (uint32_t)value;
  if (text[0] >= '0' && text[0] <= '9' && !*end && !errno && value >= min && value <= max) return true;
  snprintf(error, error_bytes, "'%s' is not a number from %u to %u", text, min, max);
  return false;
}

struct reason {
  char *text;
  size_t room_bytes;
};

/* A claim that the text is what it has to be. */
static bool expect(bool is_fine, const char *text, const char *what, const struct reason *why) {
  if (!is_fine) snprintf(why->text, why->room_bytes, "'%s' is %s", text, what);
  return is_fine;
}

static bool take_trace_level(const char *text, enum sml_trace_level *level, const struct reason *why) {
  *level = strcmp(text, "off") == 0 ? SML_TRACE_OFF : strcmp(text, "all") == 0 ? SML_TRACE_ALL : SML_TRACE_NOTABLE;
  return expect(*level != SML_TRACE_NOTABLE || strcmp(text, "notable") == 0, text, "not off, notable or all", why);
}

static bool take_number(int key, const char *text, struct sml_settings *s, const struct reason *why) {
  uint32_t value;
  static const struct {
    int key;
    uint32_t min, max;
  } ranges[] = {{KEY_DATA_PORT, 1, 65535},
                {KEY_LANES, 1, SML_AGGD_MAX_LANES},
                {KEY_SLOTS, 1, SML_AGGD_MAX_SLOTS},
                {KEY_MAX_JOBS, 1, SML_AGGD_MAX_JOBS},
                {KEY_MAX_CONNECTIONS, 2, 65536},
                {KEY_MAX_PER_HOST, 1, 65536},
                {KEY_MAX_DATAGRAM, 576, 65507},
                {KEY_MAX_LEASE, 1, 3600},
                {KEY_MAX_JOIN_TIME, 1, 604800},
                {KEY_MULTICAST_TTL, 1, 255},
                {KEY_SWITCH_FORMAT, 32, 256},
                {KEY_SWITCH_CPU_PORT, 0, 511},
                {KEY_TRACE_EVENTS, 1, SML_TRACE_MAX_EVENTS}};
  uint32_t i = 0;
  while (ranges[i].key != key) SML_ASSERT(++i < SML_ARRAY_LEN(ranges));
  if (!sml_parse_number(text, ranges[i].min, ranges[i].max, &value, why->text, why->room_bytes)) return false;
  if (key == KEY_SWITCH_FORMAT && !sml_is_pow2(value)) return expect(false, text, "not 32, 64, 128 or 256", why);
  if (key == KEY_DATA_PORT) s->aggd.first_data_port = (uint16_t)value;
  else if (key == KEY_LANES) s->aggd.num_lanes = value;
  else if (key == KEY_SLOTS) s->aggd.pool_slots = value;
  else if (key == KEY_MAX_JOBS) s->aggd.max_jobs = value;
  else if (key == KEY_MAX_CONNECTIONS) s->aggd.max_connections = value;
  else if (key == KEY_MAX_PER_HOST) s->aggd.max_connections_per_host = value;
  else if (key == KEY_MAX_DATAGRAM) s->aggd.max_datagram_bytes = value;
  else if (key == KEY_MAX_LEASE) s->aggd.max_lease_ns = value * SML_NS_PER_S;
  else if (key == KEY_MAX_JOIN_TIME) s->aggd.max_join_ns = value * SML_NS_PER_S;
  else if (key == KEY_SWITCH_CPU_PORT) s->switch_cpu_port = value;
  else if (key == KEY_SWITCH_FORMAT) s->aggd.packet_lanes = value;
  else if (key == KEY_MULTICAST_TTL) s->aggd.multicast.ttl = (uint8_t)value;
  else s->aggd.trace_events = value;
  return true;
}

static bool is_switch(const char *text) {
  return strcmp(text, "bmv2") == 0 || strcmp(text, "dpdk-p4") == 0 || strcmp(text, "tofino") == 0;
}

/* Takes names of files, a word of a few, and what is parsed later. */
static bool take_text(int key, const char *text, struct sml_settings *s, const struct reason *why) {
  static const char no_yes[] = "not yes or no";
  switch (key) {
    case KEY_NO_OFFLOAD:
      s->aggd.no_offload = strcmp(text, "yes") == 0;
      return expect(s->aggd.no_offload || strcmp(text, "no") == 0, text, no_yes, why);
    case KEY_END_WITHDRAWN:
      s->ends_withdrawn = strcmp(text, "yes") == 0;
      return expect(s->ends_withdrawn || strcmp(text, "no") == 0, text, no_yes, why);
    case KEY_POLL:
      return expect(sml_poll_parse(text, &s->aggd.poll), text, "not auto, busy or block", why);
    case KEY_CPUS:
      return expect(sml_cpus_parse(text, &s->aggd.cpus), text, "no list of processors, as in 0-3,8", why);
    case KEY_DATAPLANE:
      s->dataplane = is_switch(text) ? text : NULL;
      return expect(s->dataplane || strcmp(text, "software") == 0, text, "not software, bmv2, dpdk-p4 or tofino", why);
    case KEY_TRACE:
      return take_trace_level(text, &s->aggd.trace_level, why);
    case KEY_LOG_LEVEL:
      return expect(sml_log_parse_level(text, &s->log_level), text, "not error, warning, info or debug", why);
    case KEY_LOG_FORMAT:
      return expect(sml_log_parse_format(text, &s->log_format), text, "not text or json", why);
    default:
      return take_number(key, text, s, why);
  }
}

bool sml_option_take(uint32_t number, const char *text, struct sml_settings *s, char *error, size_t error_bytes) {
  const struct reason why = {error, error_bytes};
  const struct {
    int key;
    const char **to;
  } kept[] = {{KEY_LISTEN, &s->listen},
              {KEY_KEY_FILE, &s->key_file},
              {KEY_ALLOW, &s->allow},
              {KEY_MULTICAST, &s->multicast},
              {KEY_MULTICAST_INTERFACE, &s->multicast_interface},
              {KEY_PCAP, &s->aggd.pcap_path},
              {KEY_TRACE_DIR, &s->trace_folder},
              {KEY_HTTP, &s->http},
              {KEY_HTTP_HOST, &s->http_host},
              {KEY_SWITCH, &s->switch_runtime},
              {KEY_SWITCH_PROGRAM, &s->switch_program},
              {KEY_PORT_FILE, &s->port_file},
              {KEY_CONFIG, &s->config_path}};
  const int key = option_table[number].key;
  for (size_t i = 0; i < SML_ARRAY_LEN(kept); i++) {
    if (kept[i].key != key) continue;
    *kept[i].to = text;
    return true;
  }
  if (key != KEY_CHECK_CONFIG) return take_text(key, text, s, &why);
  s->is_check = true;
  return true;
}
