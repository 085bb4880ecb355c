/* SPDX-License-Identifier: Apache-2.0 */
#include "switchd/options.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"

/* argp looks it up by name from libc. */
__attribute__((visibility("default"))) const char *argp_program_version = "switchmld " SML_VERSION_TEXT;

#define TEXT_OF(number) #number
#define DEFAULT_TEXT(number) TEXT_OF(number)

#define SML_OPTIONS struct sml_settings
static const char *const polls[] = {
    [SML_POLL_AUTO] = "auto", [SML_POLL_BUSY] = "busy", [SML_POLL_BLOCK] = "block", NULL};
static const char *const trace_levels[] = {
    [SML_TRACE_OFF] = "off", [SML_TRACE_NOTABLE] = "notable", [SML_TRACE_ALL] = "all", NULL};
static const char *const log_levels[] = {
    [SML_LOG_ERROR] = "error", [SML_LOG_WARNING] = "warning", [SML_LOG_INFO] = "info", [SML_LOG_DEBUG] = "debug", NULL};
static const char *const log_formats[] = {[SML_LOG_TEXT] = "text", [SML_LOG_JSON] = "json", NULL};
const char *const sml_dataplane_names[] = {
    [SML_SOFTWARE] = "software", [SML_BMV2] = "bmv2", [SML_DPDK] = "dpdk-p4", [SML_TOFINO] = "tofino", NULL};

static const char *take_cpus(void *options, const char *text) {
  struct sml_settings *s = options;
  return sml_cpus_parse(text, &s->aggd.cpus) ? NULL : "it must be a list of processors, as in 0-3,8";
}

static const char *take_switch_format(void *options, const char *text) {
  struct sml_settings *s = options;
  const char *end = text;
  uint64_t lanes = 0;
  if (!sml_number_parse(text, 256, &lanes, &end) || *end != 0 || lanes < 32 || !sml_is_pow2(lanes))
    return "it must be 32, 64, 128 or 256";
  s->aggd.packet_lanes = (uint32_t)lanes;
  return NULL;
}

const struct sml_option sml_daemon_options[] = {
    {"listen", 'l', "HOST:PORT",
     "Address of the control port; the data ports are opened at the same host. Port 0: any free one. "
     "Default " SML_DEFAULT_LISTEN,
     0, SML_TEXT(listen)},
    {"data-port", 0, "N", "UDP port of the first lane, the others follow. Default: any free ports", 0,
     SML_NUMBER(aggd.first_data_port, 1, 65535)},
    {"lanes", 0, "N", "Engine threads, each with a data port of its own: 1 to 16. Default 1", 0,
     SML_NUMBER(aggd.num_lanes, 1, SML_AGGD_MAX_LANES)},
    {"slots", 0, "N", "Slots a lane, all jobs together: 1 to 65536. Default 8192", 0,
     SML_NUMBER(aggd.pool_slots, 1, SML_AGGD_MAX_SLOTS)},
    {"max-jobs", 0, "N", "Jobs that may run at a time: 1 to 1024. Default 256", 0,
     SML_NUMBER(aggd.max_jobs, 1, SML_AGGD_MAX_JOBS)},
    {"max-connections", 0, "N", "Control connections, one a rank and job: 2 to 65536. Default 1024", 0,
     SML_NUMBER(aggd.max_connections, 2, 65536)},
    {"max-connections-per-host", 0, "N", "Of these, from one IPv4 address or IPv6 /64: 1 to 65536. Default: no limit",
     0, SML_NUMBER(aggd.max_connections_per_host, 1, 65536)},
    {"max-datagram", 0, "BYTES",
     "The longest datagrams that a job gets, whatever its ranks ask for; two chunks of that size are kept for each "
     "slot: 576 to 65507. Default " DEFAULT_TEXT(SML_DEFAULT_MAX_DATAGRAM),
     0, SML_NUMBER(aggd.max_datagram_bytes, 576, 65507)},
    {"max-window", 0, "MIB",
     "The most that a rank of a job may have under way on a lane, for long paths: 1 to 1024. Jobs get it by their "
     "round "
     "trip, as far as --slots has room. Default 16",
     0, SML_NUMBER(aggd.max_window_mib, 1, 1024)},
    {"max-lease", 0, "SECONDS",
     "The longest lease that a rank may ask for, so the longest that one keeps its places which has gone without a "
     "word: 1 to 3600. Default " DEFAULT_TEXT(SML_DEFAULT_MAX_LEASE_S),
     0, SML_SECONDS(aggd.max_lease_ns, 1, 3600)},
    {"max-join-time", 0, "SECONDS",
     "The longest that a job waits for its ranks, whatever they ask for: 1 to 604800. Default " DEFAULT_TEXT(
         SML_DEFAULT_MAX_JOIN_S),
     0, SML_SECONDS(aggd.max_join_ns, 1, 604800)},
    {"key-file", 0, "FILE",
     "Take ranks only that have a key of this file; their control connections and datagrams are "
     "authenticated. Default: any rank, no authentication",
     0, SML_TEXT(key_file), .marks = SML_LIVE},
    {"end-withdrawn", 0, NULL,
     "When SIGHUP finds a key gone, or another one under its name, end the jobs that run with it. Default: they go on",
     0, SML_FLAG(ends_withdrawn), .marks = SML_LIVE},
    {"allow", 0, "NETWORK",
     "Take control connections from there only, as in 10.1.0.0/16, 2001:db8::/32 or 192.0.2.7; may stand several "
     "times. Default: from anywhere",
     0, SML_TEXT(allow), .marks = SML_LIVE | SML_LIST},
    {"no-offload", 0, NULL, "Never use UDP segmentation offload", 0, SML_FLAG(aggd.no_offload)},
    {"poll", 0, "HOW",
     "How to look for datagrams before sleeping for them: auto (for some tens of microseconds after the last ones), "
     "busy (always: a core a lane) or block (never). Default auto",
     0, SML_WORD(aggd.poll, polls)},
    {"cpus", 0, "LIST",
     "Processors of the engine threads, as in 0-3,8: lane l runs on the l-th only. Default: SWITCHML_CPUS, else "
     "any",
     0, SML_TAKEN_BY(take_cpus)},
    {"multicast", 0, "GROUP[:PORT][/COUNT]",
     "Send results by IP multicast to jobs whose ranks all hear it: COUNT groups (default 64) from GROUP on, one a "
     "job, as in 239.192.7.0/64; lane l uses PORT (default 28879) + l. Default: never",
     0, SML_TEXT(multicast)},
    {"multicast-interface", 0, "NAME|ADDRESS",
     "Network interface that multicast leaves by. Default: that of --listen's address, else as routes say", 0,
     SML_TEXT(multicast_interface)},
    {"multicast-ttl", 0, "N", "How many networks multicast may cross: 1 to 255. Default 1: not beyond the next router",
     0, SML_NUMBER(aggd.multicast.ttl, 1, 255)},
    {"pcap", 0, "FILE",
     "Capture the data ports' packets there, up to 256 MiB, for Wireshark; other lanes beside it. Default: never", 0,
     SML_TEXT(aggd.pcap_path)},
    {"trace", 0, "LEVEL",
     "What the flight recorder keeps: notable (what is rare), all (every packet too) or off. Default notable", 0,
     SML_WORD(aggd.trace_level, trace_levels)},
    {"trace-dir", 0, "DIR",
     "Write it to files there, for `switchml trace`: on SIGUSR1, and when a job is aborted. Default: never", 0,
     SML_TEXT(trace_folder)},
    {"trace-events", 0, "N",
     "Events that it keeps a lane, and a quarter of that for each job: 1 to 16777216. Default 16384", 0,
     SML_NUMBER(aggd.trace_events, 1, SML_TRACE_MAX_EVENTS)},
    {"switch-format", 0, "LANES",
     "Run all jobs as a programmable switch would: 32, 64, 128 or 256 lanes a packet, at most 30 ranks, without keys "
     "and retry. Default: never",
     0, SML_TAKEN_BY(take_switch_format)},
    {"dataplane", 0, "WHAT",
     "Who sums: software, or what stands between this host and the ranks with SwitchML's program: bmv2, a "
     "simple_switch; dpdk-p4, a switchml-pipeline; tofino, a Tofino (never run on one). Then with --switch-format, "
     "one lane, and an address in --listen. Default software",
     0, SML_WORD(dataplane, sml_dataplane_names)},
    {"switch", 0, "WHERE",
     "The switch's control: of bmv2 the address and port of its runtime (Thrift), default 127.0.0.1:9090; of dpdk-p4 "
     "the path of its socket, default /run/switchml-pipeline; of tofino the address and port of gRPC, default "
     "127.0.0.1:50052",
     0, SML_TEXT(switch_runtime)},
    {"switch-program", 0, "NAME", "Under which name a tofino has loaded SwitchML's program. Default switchml", 0,
     SML_TEXT(switch_program)},
    {"switch-cpu-port", 0, "N", "The switch's port to this host: 0 to 511. Default 0", 0,
     SML_NUMBER(switch_cpu_port, 0, 511)},
    {"log-level", 0, "LEVEL", "error, warning, info or debug. Default info", 0, SML_WORD(log_level, log_levels),
     .marks = SML_LIVE},
    {"log-format", 0, "FORMAT", "text or json, one object a line. Default text", 0, SML_WORD(log_format, log_formats),
     .marks = SML_LIVE},
    {"http", 0, "ADDRESS:PORT",
     "Serve metrics (/metrics), the status (/api/status) and a page that shows it (/) there, to whoever reaches it. "
     "Default: no HTTP",
     0, SML_TEXT(http)},
    {"http-host", 0, "NAME[,NAME]",
     "Names by which browsers and scrapers may ask for --http. Default: none but localhost; addresses always do", 0,
     SML_TEXT(http_host)},
    {"config", 0, "FILE",
     "Take options from there, and quotas and keys of tenants; options of the command line come first. SIGHUP reads it "
     "again. See switchmld(1). Default: no file",
     0, SML_TEXT(config_path), .marks = SML_ONLY_COMMAND_LINE},
    {"check-config", 0, NULL, "Say what is wrong with the options, the file and its keys, and exit", 0,
     SML_FLAG(is_check), .marks = SML_ONLY_COMMAND_LINE},
    {"port-file", 0, "FILE", "Write HOST:PORT of the control port there once ready", 0, SML_TEXT(port_file)},
    {0},
};

#define NUM_OPTIONS (SML_ARRAY_LEN(sml_daemon_options) - 1)
_Static_assert(NUM_OPTIONS <= SML_MAX_OPTIONS, "each option has a place");

/* --- the command line --- */

bool sml_option_note(uint32_t number, const char *text, struct sml_option_texts *texts) {
  if ((sml_daemon_options[number].marks & SML_LIST) == 0) return texts->texts[number] = text, true;
  char *list = NULL;
  const int num_chars = asprintf(&list, "%s%s%s", texts->list ? texts->list : "", texts->list ? "," : "", text);
  if (num_chars < 0) return false;
  free(texts->list);
  texts->texts[number] = texts->list = list;
  return true;
}

static bool note(void *texts, uint32_t number, const char *text) {
  return sml_option_note(number, text, texts);
}

void sml_settings_parse(int argc, char **argv, struct sml_option_texts *texts) {
  static const struct sml_option_parser parser = {
      .table = sml_daemon_options,
      .note = note,
      .doc =
          "The SwitchML aggregator: sums the tensors of jobs whose ranks join it."
          "\vSWITCHML_FAULTS=loss=0.01,seed=7 in the environment loses, duplicates, reorders or corrupts received "
          "datagrams, for tests. See switchmld(1)."};
  sml_options_parse(&parser, argc, argv, texts);
}

/* --- the table --- */

uint32_t sml_option_find(const char *name, const char **nearest) {
  uint32_t least = 4; /* further off, nothing is meant */
  *nearest = NULL;
  for (uint32_t i = 0; i < NUM_OPTIONS; i++) {
    if (sml_daemon_options[i].marks & SML_ONLY_COMMAND_LINE) continue;
    const uint32_t d = sml_text_distance(name, sml_daemon_options[i].name);
    if (d == 0) return i;
    if (d >= least) continue;
    least = d;
    *nearest = sml_daemon_options[i].name;
  }
  return SML_MAX_OPTIONS;
}
