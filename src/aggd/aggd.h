/* SPDX-License-Identifier: Apache-2.0
 * The aggregator as a service: one control thread (membership over TCP) and one engine thread a lane (sums
 * over UDP). The daemon switchmld is one of these and a command line. */
#pragma once

#include "aggd/tenants.h"
#include "ctl/key_file.h"
#include "engine/cpus.h"
#include "engine/engine.h"
#include "netio/netio.h"
#include "trace/dump.h"

#define SML_AGGD_MAX_LANES 16u
#define SML_AGGD_MAX_JOBS 1024u
#define SML_AGGD_MAX_SLOTS 65536u
#define SML_AGGD_TRACE_SHARE 4u /* a job's recorder has so many fewer events than its lane's, or the control thread's */

struct sml_snapshot;
struct sml_dataplane;

/* What the operator wants to know. Pointers are valid during the call. */
struct sml_aggd_note {
  const char *name; /* "job_started", "rank_lost" ... */
  bool is_warning;
  const char *job_name; /* "" when no job is concerned. "join_refused": with `rank`, as the rank says; no `job` */
  const char *key_name; /* of the job; "": none */
  uint32_t job, epoch, world_size, rank;
  const char *text; /* one sentence, or settings as key=value */
};

/* Zero fields mean their defaults. */
struct sml_aggd_options {
  struct sml_addr listen;   /* TCP; the data ports are opened at the same host */
  uint16_t first_data_port; /* lane l uses first_data_port + l; 0: any free ports */
  uint32_t num_lanes;       /* default 1 */
  uint32_t pool_slots;      /* a lane, all jobs together; default 8192 */
  /* All jobs are in switch format (docs/PROTOCOL.md) with so many lanes a packet: 32, 64, 128 or 256. 0: none is. Not
   * with keys or multicast groups. */
  uint32_t packet_lanes;
  const struct sml_dataplane *dataplane; /* a switch that sums; NULL: the lanes' engines do. Then one lane */
  uint32_t max_jobs;                     /* default 256 */
  uint32_t max_connections;              /* default 1024; a world can't be larger */
  uint32_t max_datagram_bytes;           /* of a job; default: as long as sockets take */
  uint32_t max_window_mib;               /* of a job, a lane: 1 to 1024; default 16 */
  uint32_t rx_buffer_bytes;              /* default 16 MiB, or as much as the window */
  bool no_offload;
  enum sml_poll poll;              /* how engine threads look for frames */
  struct sml_cpus cpus;            /* of the engine threads; none: any */
  struct sml_fault_options faults; /* lane l draws from seed + l */
  /* Groups by which results may go to all ranks of a job at once; none: they never do. ttl: default 1; interface:
   * default that of `listen`, or as routes say. */
  struct sml_multicast multicast;
  const char *pcap_path; /* packets of lane l are captured there (sml_pcap_wrap); NULL: not */
  void (*on_capture_ended)(void *user, const char *text); /* engine's thread; may be NULL; user below */
  /* Events that each flight recorder keeps, one a lane and one of the control thread; default 16384. OFF: none. */
  uint32_t trace_events;
  enum sml_trace_level trace_level;
  uint64_t join_grace_ns; /* until a connection must have joined; default 5 s */
  /* Whose keys ranks may have; copied. None: ranks are not authenticated. */
  const struct sml_key_entry *keys;
  uint32_t num_keys;
  /* What they may have at a time; copied. None: all there is. */
  const struct sml_tenant *tenants;
  uint32_t num_tenants;
  /* From where connections are taken; copied. None: from anywhere. */
  const struct sml_network *networks;
  uint32_t num_networks;
  /* Limits of the control port, by source: an IPv4 address or an IPv6 /64. */
  uint32_t max_connections_per_host;  /* joined ones; default no limit, since a host may have many ranks */
  uint32_t new_connections_per_s;     /* default 100, and 400 at once; loopback has 16 times as much */
  uint32_t max_messages_per_s;        /* of a connection; default 1000 */
  uint64_t max_lease_ns, max_join_ns; /* as in ctl/registry.h; default: what the protocol has */
  bool is_embedded;        /* in a rank's process: windows are larger, and sml_aggd_lowest_completed() is wanted */
  struct sml_addr seen_at; /* is_embedded: where other hosts find this one, whose own ranks come over loopback; empty:
                            * it is the only one */
  uint32_t first_phase, first_chunk; /* tests only: where a job's first epoch begins */
  uint64_t late_note_ns;             /* a rank that is late for so long is noted; default 10 s */
  void (*on_note)(void *user, const struct sml_aggd_note *note); /* control thread; may be NULL */
  /* The status as a text (malloc'd; NULL: out of memory) for `switchml status`: of all jobs, or of a key's alone
   * (key_name not ""). Control thread. NULL: who asks is refused. */
  char *(*render_status)(void *user, const struct sml_snapshot *snapshot, const char *key_name);
  void *user;
};

struct sml_aggd;
/* 0, or -errno with a sentence in error_out. Threads run with all signals blocked. */
int sml_aggd_start(const struct sml_aggd_options *options, struct sml_aggd **aggd_out, char *error_out,
                   size_t error_bytes);
/* Other keys and quotas from now on; both are copied. Jobs that run go on, whatever is gone; so do joins that have been
 * challenged. Any thread. 0; -ENOMEM, -EINVAL: with keys instead of none, or none instead of some, a service has to be
 * started anew; nothing was changed. */
int sml_aggd_set_tenants(struct sml_aggd *aggd, const struct sml_key_entry *keys, uint32_t num_keys,
                         const struct sml_tenant *tenants, uint32_t num_tenants);
/* Ends jobs whose keys are not there any more, soon. Any thread. */
void sml_aggd_end_withdrawn(struct sml_aggd *aggd);
/* Likewise, other networks; connections that are there stay. 0; -ENOMEM. */
int sml_aggd_set_networks(struct sml_aggd *aggd, const struct sml_network *networks, uint32_t num_networks);
/* What the service needs at most, whoever asks for whatever, by its options (aggd/memory.c). It must be started. */
struct sml_aggd_memory {
  uint64_t total_bytes;
  uint64_t slots_bytes;       /* of this: when all slots are lent to the largest jobs */
  uint64_t connections_bytes; /* ranks and jobs, at all lanes */
  uint64_t status_bytes;      /* when it is asked for on all connections */
};
void sml_aggd_memory(const struct sml_aggd *aggd, struct sml_aggd_memory *memory_out);
/* Tells the members of all jobs that the aggregator goes, waits at most 300 ms for them to hear it. */
void sml_aggd_stop(struct sml_aggd *aggd);
/* The first operation that some rank of a started job, which has not left, has not said to have completed; the most
 * there is, if no rank is there. As of the control thread's last pass; any thread; only where is_embedded. */
uint64_t sml_aggd_lowest_completed(const struct sml_aggd *aggd);
/* In the child of a fork, where its threads are not: closes what it had open. Nothing else is allowed there. */
void sml_aggd_close_descriptors(struct sml_aggd *aggd);
/* Where it listens, with the real port. */
void sml_aggd_addr(const struct sml_aggd *aggd, struct sml_addr *addr_out);
/* Adds what the flight recorders hold now, for sml_trace_write(). Any thread. False: out of memory. */
bool sml_aggd_collect_trace(struct sml_aggd *aggd, struct sml_trace_dump *dump);
/* "STALE_PHASE=3 BAD_CRC=1": dropped packets by reason, "" if none. Any thread. */
void sml_aggd_describe_drops(const struct sml_aggd *aggd, char *text, size_t text_bytes);
/* What it does now (aggd/snapshot.h), at most 100 ms old, or ten times what it takes
 * to make; to be released. Any thread; NULL: out of memory, or no answer
 * within a second. */
struct sml_snapshot *sml_aggd_snapshot(struct sml_aggd *aggd);
