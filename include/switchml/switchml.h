/* SPDX-License-Identifier: Apache-2.0
 *
 * SwitchML: all-reduce by in-network aggregation. This header is the whole public C API.
 *
 * Words (docs/GLOSSARY.md): a *context* is a process's threads and sockets; a *job* is a group of
 * ranks that sum tensors together; an *operation* is one collective call. Every function that can
 * fail returns an sml_status; sml_error_detail() then has one sentence for people, for the calling
 * thread. No function aborts the process, installs a signal handler or writes to stdout. No wait is
 * unbounded, and none is for a reader of stderr. What the library opens leaves descriptors 0, 1 and 2 alone,
 * also where they are closed; its threads block all signals, and nothing that it writes raises SIGPIPE or SIGXFSZ.
 *
 * Threads: any function may be called from any thread, except a *_destroy or _release, which must
 * be the last use of its handle. pthread_cancel() takes effect when a call has returned, never inside: each holds
 * it off, in callbacks too. Operations submitted by several threads on one job run in the
 * order in which sml_allreduce() returned; that order must be the same on every rank.
 */
#ifndef SWITCHML_SWITCHML_H
#define SWITCHML_SWITCHML_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SML_VERSION_MAJOR 0
#define SML_VERSION_MINOR 1
#define SML_VERSION_PATCH 0

#if defined(SML_BUILDING_LIBRARY)
#define SML_API __attribute__((visibility("default")))
#else
#define SML_API
#endif

/* Status codes are stable: a number never changes its meaning. 0 is success, negative is not. */
typedef enum sml_status {
  SML_OK = 0,
  SML_IN_PROGRESS = 1,           /* sml_operation_test/_wait: not ended; the buffers stay lent */
  SML_ERR_INVALID_ARGUMENT = -1, /* a NULL buffer, bad rank, unknown enum ...: fix the call */
  SML_ERR_UNSUPPORTED = -2,      /* this type, reduction or size is not offered; use another path */
  SML_ERR_NO_MEMORY = -3,
  SML_ERR_BUSY = -4,             /* all operations of the pool are in use; wait for one, retry */
  SML_ERR_SYSTEM = -5,           /* a system call failed; the detail names it and its errno */
  SML_ERR_UNREACHABLE = -6,      /* the aggregator did not answer */
  SML_ERR_REFUSED = -7,          /* the aggregator refused the join; the detail says why */
  SML_ERR_VERSION = -8,          /* the other side speaks another protocol version */
  SML_ERR_MTU = -9,              /* the path does not carry the smallest chunk unfragmented */
  SML_ERR_TIMEOUT = -10,         /* a deadline passed; the detail names who is missing */
  SML_ERR_RANK_LOST = -11,       /* a rank's process is gone or stopped; sml_error.ranks names it */
  SML_ERR_AGGREGATOR_LOST = -12, /* the aggregator is gone or restarted (and retry_ns are over) */
  SML_ERR_MISMATCH = -13,        /* ranks called different operations; sml_error.ranks names two */
  SML_ERR_ABORTED = -14,         /* sml_job_abort() on this or another rank */
  SML_ERR_NOT_CONFIGURED = -15,  /* no aggregator is named, and no allgather callback to do without */
  SML_ERR_FORKED = -16,          /* the handle belongs to the parent of this process */
  SML_ERR_PROTOCOL = -17,        /* the other side broke the protocol */
  SML_ERR_INTEGRITY = -18,       /* a sum's check word was wrong twice: the aggregator does not add right */
  SML_ERR_KEY = -19              /* the aggregator's key is not this rank's, or a control message was forged */
} sml_status;

/* What tensors are made of; float16 is IEEE's binary16, bfloat16 the upper half of a float32. How each travels, and how
 * exact sums are: PROTOCOL.md, "Numbers". */
typedef enum sml_type {
  SML_FLOAT32 = 0,
  SML_INT32 = 1,
  SML_FLOAT16 = 2,
  SML_BFLOAT16 = 3,
  SML_FLOAT64 = 4, /* up to 128 elements; longer only where sml_job_options.float64_bits says so */
  SML_INT64 = 5,
  SML_INT8 = 6,
  SML_UINT8 = 7, /* and what has a byte for true or false */
  SML_UINT32 = 8,
  SML_UINT64 = 9
} sml_type;
/* Floats: SUM, AVG, MIN and MAX. Integers: all but AVG. */
typedef enum sml_reduction {
  SML_SUM = 0,
  SML_AVG = 1,
  SML_MIN = 2, /* of floats as IEEE 754's minimum and maximum: -0 is below +0, a NaN makes the result a NaN */
  SML_MAX = 3,
  SML_PRODUCT = 4, /* wraps as unsigned numbers do */
  SML_BAND = 5,    /* bit by bit */
  SML_BOR = 6,
  SML_LAND = 7, /* 1 where no rank has 0, else 0 */
  SML_LOR = 8   /* 0 where all ranks have 0, else 1 */
} sml_reduction;

typedef struct sml_context sml_context;
typedef struct sml_job sml_job;
typedef struct sml_operation sml_operation;

/* Option structs: set struct_bytes = sizeof(the struct) and zero the rest (SML_*_INIT does both).
 * A zero field means its default, so a program built against an older header keeps working. */
#ifdef __cplusplus /* which has designated initializers from C++20 on only */
#define SML_INIT(type) sml_initialized<type>()
#else
#define SML_INIT(type) \
  { .struct_bytes = sizeof(type) }
#endif

typedef struct sml_context_options {
  size_t struct_bytes;
  uint32_t num_threads;     /* engine threads (= lanes offered); default 1, at most 16 */
  uint32_t num_operations;  /* in flight; default 1024, rounded up to a power of two; at most 65536 */
  uint32_t rx_buffer_bytes; /* socket receive buffer asked for; default 8 MiB */
  uint32_t no_offload;      /* 1: never use UDP_SEGMENT/UDP_GRO, as SWITCHML_NO_OFFLOAD=1 */
  /* How a wait for small operations looks for results before it sleeps. 1: all the time (a core each, the lowest
   * latency where there are enough of them); 2: never; 0: SWITCHML_POLL=busy or block, else automatic: for some
   * tens of microseconds after traffic, giving way to any other thread. */
  uint32_t poll;
  /* Processors of the engine threads, "0-3,8": thread l runs on the l-th only. NULL: SWITCHML_CPUS, else any. */
  const char *cpus;
  /* 1, or SWITCHML_CONGESTION=0: the window is all slots whatever is lost or marked (ECN), so that other traffic on the
   * links starves. For networks that are nobody else's. 0: SWITCHML_CONGESTION, else it reacts as TCP's does. */
  uint32_t no_congestion_control;
  uint32_t reserved; /* 0; later an option: at the end there is no padding, which nobody initializes */
} sml_context_options;
#define SML_CONTEXT_OPTIONS_INIT SML_INIT(sml_context_options)

/* Gathers `bytes` bytes of every rank: in[bytes] of this rank, out[world_size * bytes] in rank
 * order. Called only from sml_job_create(), on its thread. Returns 0, or non-zero when it failed. */
typedef int (*sml_allgather_fn)(void *user, const void *in, void *out, size_t bytes);

typedef struct sml_job_options {
  size_t struct_bytes;
  /* "host:port" or "[v6]:port"; NULL: SWITCHML_AGGREGATOR. Several, with commas between them, share the job: the same
   * list on all ranks, at most 64. None (unset, or "") and an allgather callback, or SWITCHML_RENDEZVOUS=host:port,
   * where rank 0 listens meanwhile: the ranks aggregate themselves, each host a share in its lowest rank's process, on
   * any free ports of the interfaces in SWITCHML_INTERFACE (names with commas; unset: any), under a key that rank 0
   * makes. sml_job_destroy() then waits up to 5 s for ranks that lack a result still, and who is lost takes a share
   * along: every rank's next operation ends in SML_ERR_RANK_LOST. */
  const char *aggregator;
  /* Same on all ranks, unique at the aggregator; NULL: "default". 1 to 63 letters, digits or . _ : / - */
  const char *name;
  uint32_t rank;              /* 0 .. world_size - 1 */
  uint32_t world_size;        /* 1 .. 4096; 0, and rank 0: as sml_rank_from_environment() says */
  sml_allgather_fn allgather; /* out-of-band exchange (a framework's store, MPI ...); may be NULL */
  void *allgather_user;
  uint64_t join_timeout_ns;      /* until every rank is in; default 60 s */
  uint64_t operation_timeout_ns; /* default deadline of an operation; default 60 s */
  /* Silence after which a rank, or the aggregator, counts as lost, which ends the job; 20 ms to 1 h, equal on all
   * ranks. 0: SWITCHML_LEASE in seconds, else 60 s, which a breakpoint, a moved machine and a link that comes back
   * survive. A rank silent for 2 s is late: the status, the logs and errors name it, and nothing ends. Any datagram is
   * a sign of life. A process that ends, however, closes its connection and is lost at once; and an operation still
   * ends at its own deadline. A lease below 2 s holds for ranks; the aggregator is believed in for 2 s. */
  uint64_t lease_ns;
  /* Slots a lane, that is chunks in flight: a power of two up to 32768, equal on all ranks. 0: SWITCHML_SLOTS, else the
   * aggregator chooses by round trip, chunk and lanes (PROTOCOL.md, "Slots"). */
  uint32_t num_slots;
  uint32_t max_datagram_bytes; /* upper limit of a UDP payload; 0: SWITCHML_MAX_DATAGRAM, else 8960 */
  /* 1: every sum carries a check word that the aggregator can't make up for a wrong one (PROTOCOL.md,
   * "Check word"); 2: none; 0: SWITCHML_CHECK=1 or 0, else none. Equal on all ranks. */
  uint32_t check;
  /* Lines `name key`, a key being 32 hex digits; no other user may read the file. Packets and control
   * messages are then authenticated, and an aggregator without the key is refused. NULL: SWITCHML_KEY_FILE,
   * else no key; "": no key. key_name picks a line, the same one on all ranks; NULL: SWITCHML_KEY_NAME, else
   * the first. The key is read once, here. */
  const char *key_file, *key_name;
  /* Retry: how long a lost aggregator is waited for. Within that time the ranks join its successor at the same address
   * and do again what some of them lack, with the same bits; callers only notice that it takes longer. The deadline of
   * an operation stands still meanwhile, for at most retry_ns in all. One that is lost while ranks join is waited for
   * until join_timeout_ns. It costs a copy of every input, made in sml_allreduce() or sml_batch_end() and kept until
   * all ranks are known to have the result: of what is outstanding and of about the last 0.25 s, but as much memory as
   * was needed at most stays allocated until sml_job_destroy(), which waits up to 5 s for the others. 0: SWITCHML_RETRY
   * in seconds, else no retry. At most 7 days. With several aggregators, or none, SML_ERR_UNSUPPORTED. On or off
   * alike on all ranks; with an allgather callback, equal. */
  uint64_t retry_ns;
  /* Ranks of one host add up in memory that they share (a few MiB, allocated when the job starts) instead of the
   * network, with the same bits, if all ranks of the job are on one host, run under one user in the same network
   * and user name spaces, no limit of file sizes (ulimit -f) is below it, and retry is off. Then there is no check
   * word. In a job over several hosts those of each host combine in such memory (8 MiB a rank), and the lowest of
   * them sends and receives for all. 1: this rank does neither, nor does a job on one host then; 0: as
   * SWITCHML_SHARED_MEMORY=1 or 0 says, else it does. */
  uint32_t no_shared_memory;
  /* An aggregator may send the sums to all ranks at once by IP multicast (switchmld --multicast). That is tried when
   * the job is joined, and used if every rank that receives from it hears it. 1: not here, and so not in this job; 0:
   * as SWITCHML_MULTICAST=1 or 0 says, else it is tried. */
  uint32_t no_multicast;
  /* Bits on the wire of an element of float32, float16 and bfloat16: 32, or 16 (half the bytes; beside the largest
   * element of its datagram, of any rank, a small one loses digits: PROTOCOL.md, "Numbers"). 0: SWITCHML_FLOAT_BITS,
   * else 32 for float32, and for the others 16 in jobs of up to 16 ranks, 32 above. With more than 128 ranks it is 32.
   * Equal on all ranks. */
  uint32_t float_bits;
  /* 64 or 96: bits on the wire of an element of float64 in operations of more than 128 elements. It has then up to 53
   * digits, but fewer than it has alone beside larger elements of its datagram. 0: SWITCHML_FLOAT64_BITS, else such
   * operations are not offered. (Shorter ones are exact sums.) Equal on all ranks. */
  uint32_t float64_bits;
  /* 1: floats of all types are summed exactly and rounded once, in operations of any length; a sum is then the same
   * however tensors are cut, and an Inf or NaN is its element's alone. About twice the bytes of float32 travel, and of
   * float64 about as many as by a ring. 2: they are not; 0: as SWITCHML_EXACT=1 or 0 says, else they are not. Equal on
   * all ranks. */
  uint32_t exact;
  uint32_t reserved; /* 0; later an option: at the end there is no padding, which nobody initializes */
} sml_job_options;
#define SML_JOB_OPTIONS_INIT SML_INIT(sml_job_options)

typedef struct sml_operation_options {
  size_t struct_bytes;
  uint64_t key;        /* caller's name for what is summed, equal on all ranks; goes into the tag, so
                          that two calls alike in everything but content are told apart */
  uint64_t timeout_ns; /* deadline from submission; default the job's */
  /* Where tensors begin in it, in elements: ascending, the first one 0, equal on all ranks; read during the call. The
   * sums of floats are then those of each tensor's blocks: the same bits in whatever operations tensors lie, alone or
   * between others (none of up to 128 elements is an exact sum then). Integers have no blocks. Unless all lengths but
   * the last are multiples of 256, the operation is done in a copy. num_starts 0: it is one tensor. */
  const size_t *starts;
  size_t num_starts;
  /* 1: floats are summed exactly, as sml_job_options.exact has it; 2: they are not; 0: as the job has it. Equal on all
   * ranks. Starts of tensors then mean nothing, and 64 Ki elements at a time the operation takes two of its job's
   * numbers. */
  uint32_t exact;
  uint32_t reserved; /* 0; later an option: at the end there is no padding, which nobody initializes */
} sml_operation_options;
#define SML_OPERATION_OPTIONS_INIT SML_INIT(sml_operation_options)

/* Why an operation or a job failed. */
#define SML_MAX_NAMED_RANKS 16
typedef struct sml_error {
  size_t struct_bytes;
  sml_status status;
  uint32_t num_ranks;                  /* how many are in ranks[] */
  uint32_t ranks[SML_MAX_NAMED_RANKS]; /* the ranks that are to blame or missing */
  uint64_t operation;                  /* number of the operation in the job's order, from 0 */
  char detail[512];                    /* one line: what happened and what to do; of a timeout also what the aggregator
                                          holds (docs/troubleshooting.md) */
} sml_error;
#define SML_ERROR_INIT SML_INIT(sml_error)

/* Why a job has the slots that it has. */
typedef enum sml_slots_reason {
  SML_SLOTS_REASON_NONE = 0,     /* it has none: one rank, or no answer yet */
  SML_SLOTS_REASON_ASKED = 1,    /* num_slots or SWITCHML_SLOTS */
  SML_SLOTS_REASON_USUAL = 2,    /* enough for a path that adds little time of its own */
  SML_SLOTS_REASON_PATH = 3,     /* more: the round trip is long */
  SML_SLOTS_REASON_LOOPBACK = 4, /* fewer: all on one host, where what is in flight should stay in the caches */
  SML_SLOTS_REASON_POOL = 5,     /* fewer: the aggregator had no more to spare */
  SML_SLOTS_REASON_QUOTA = 6,    /* fewer: the tenant's quota at the aggregator has no more */
  SML_SLOTS_REASON_FEWER = 7     /* fewer than num_slots or SWITCHML_SLOTS asks for: several aggregators share them, or
                                  * chunks are so long that more than 16 MiB a lane would be on the way */
} sml_slots_reason;

typedef struct sml_stats {
  size_t struct_bytes;
  uint64_t operations_submitted;
  uint64_t operations_completed;
  uint64_t operations_failed;
  uint64_t tensor_bytes;         /* of completed operations */
  uint64_t tx_packets, tx_bytes; /* UDP payload bytes, headers of ours included */
  uint64_t rx_packets, rx_bytes;
  uint64_t chunks_completed; /* data and exponent chunks; among ranks of one host blocks of 256 elements or lanes */
  uint64_t retransmissions;  /* update packets sent again */
  uint64_t probes;           /* PROBE packets sent */
  uint64_t dropped_packets;  /* received and not acted upon, all reasons */
  uint64_t system_calls;     /* of the engine threads of this job's context, since its creation */
  uint64_t srtt_ns, rto_ns;  /* of lane 0 */
  uint32_t num_lanes, num_slots, chunk_bytes;
  uint32_t has_segmentation_offload;
  uint64_t check_failures;    /* results whose check word was wrong; one is asked for again, two end the job */
  uint64_t key_failures;      /* packets whose MAC was missing, wrong or not wanted; also in dropped_packets */
  uint64_t rejoins;           /* times the job went on at an aggregator's successor */
  uint64_t retained_bytes;    /* of inputs kept for that case, now */
  uint32_t num_local_ranks;   /* of this host, that add up in shared memory; 0: none, but the network. Below the world
                             * size: the sum of this host goes over the network, sent by the lowest of them */
  uint64_t join_rtt_ns;       /* the furthest rank's round trip to the aggregator, measured at the join; 0: not known */
  uint32_t slots_why;         /* sml_slots_reason: why the job has num_slots */
  uint32_t window_chunks;     /* chunks that may be under way now, of all lanes; at most num_lanes * num_slots */
  uint64_t window_reductions; /* how often it shrank, because packets were lost or marked */
  uint64_t ecn_marks;         /* packets that came marked (ECN), and the aggregator's words that updates did */
  uint64_t needless_repeats;  /* results that were sent again and had come already; also in dropped_packets */
  uint32_t busiest_slot_chunks; /* results of the slot that had most: over the mean of all slots, how far slots that
                                 * waited for a repair were passed by (since the epoch began) */
  uint64_t lost_results;        /* that came only when they were sent again; lost updates are in retransmissions */
  uint64_t unsent_packets; /* that this host's system would not take (too long, a firewall, no route, a full queue), of
                            * the engine threads of this job's context, since its creation; they are sent again */
  uint32_t unsent_errno;   /* of the last of them; 0: it took all */
} sml_stats;
#define SML_STATS_INIT SML_INIT(sml_stats)

SML_API const char *sml_version(void);               /* "0.1.0"; static */
SML_API const char *sml_status_string(sml_status s); /* never NULL; static */
SML_API const char *sml_error_detail(void);          /* last failure of this thread; "" if none */

/* Starts engine and control threads. options may be NULL. Errors: INVALID_ARGUMENT, NO_MEMORY,
 * SYSTEM. Destroy its jobs first; destroy stops the threads and says goodbye for what is left. */
SML_API sml_status sml_context_create(const sml_context_options *options, sml_context **context_out);
SML_API void sml_context_destroy(sml_context *context);

/* Writes what the context's flight recorders hold, the last events of each engine thread and job, to a file for
 * `switchml trace`; over one that is there. May be called at any time, also while operations hang: it waits for
 * none. The library does so by itself only for a job that fails while SWITCHML_TRACE_DIR names a folder
 * (docs/troubleshooting.md), and never on a signal: it installs no handler; a program that wants a dump on SIGUSR1
 * calls this from a thread that waits for it.
 * Errors: INVALID_ARGUMENT, UNSUPPORTED (SWITCHML_TRACE=off), NO_MEMORY, SYSTEM (the detail names the file). */
SML_API sml_status sml_context_dump_trace(sml_context *context, const char *path);

/* Which rank this process is, and of how many, as the launcher says that started it: by the first pair that is set of
 * SWITCHML_RANK, SWITCHML_WORLD_SIZE; RANK, WORLD_SIZE (torchrun); OMPI_COMM_WORLD_RANK, _SIZE (Open MPI's mpirun);
 * PMI_RANK, PMI_SIZE (MPICH's); SLURM_PROCID, SLURM_STEP_NUM_TASKS (srun). *source_out: the first name of that pair,
 * static; source_out may be NULL. Errors: NOT_CONFIGURED (none is set), INVALID_ARGUMENT (no numbers, or not below the
 * size, or half of one of the first two pairs); nothing is written then. */
SML_API sml_status sml_rank_from_environment(uint32_t *rank_out, uint32_t *world_size_out, const char **source_out);

/* Joins a job: blocks until all ranks are in or join_timeout_ns passed. Collective; with an
 * allgather callback the outcome is the same on every rank. world_size 1 needs no aggregator. Two
 * ranks of one job in one process need a context each.
 * Errors: INVALID_ARGUMENT, NOT_CONFIGURED, UNREACHABLE, REFUSED, VERSION, MTU, TIMEOUT, KEY, SYSTEM... */
SML_API sml_status sml_job_create(sml_context *context, const sml_job_options *options, sml_job **job_out);
/* Ends outstanding operations with SML_ERR_ABORTED, says goodbye, frees. Not collective. Operation
 * handles of the job must have been released. */
SML_API void sml_job_destroy(sml_job *job);

/* 1 if sml_allreduce would accept this on every rank alike; depends on nothing local. */
SML_API int sml_supported(const sml_job *job, sml_type type, sml_reduction reduction, size_t count);

/* Submits out[i] = reduction over ranks of in[i], i < count; returns before it is done. `in` and
 * `out` (equal for in place, else disjoint; any alignment) are lent to the library until the
 * operation ends: do not write `in` nor touch `out` before. count 0 completes at once. On failure
 * nothing is sent and *operation_out is NULL. Floats of all types are summed exactly and rounded once if count is at
 * most 128, else in block fixed point (PROTOCOL.md, "Numbers", has bits and bounds): every rank gets the same bits,
 * which are a function of the inputs alone, whatever carries them. A block, 256 elements from the first one on, with an
 * Inf or NaN on any rank is NaN everywhere. Cuts at multiples of 256 elements change no bit, if no part has fewer than
 * 129, or where options->starts says where tensors begin. An exact sum has the Inf or NaN in its element alone, and of
 * float64 also the sign of a zero, as processors add. SUM and PRODUCT of integers of k bits wrap modulo 2^k. Every
 * other reduction has one result too, element by element, in whatever order ranks come (PROTOCOL.md, "Other
 * reductions"); a NaN that it gives is the type's quiet one. SML_ERR_UNSUPPORTED are AVG of integers, PRODUCT of floats
 * (it would depend on the order), PRODUCT in a job with check words (none would show a wrong one), in switch format
 * what a switch cannot do (it has SUM, LAND, LOR, and MIN and MAX of up to 32 bits), and sums of more than 128 elements
 * of float64 unless the job's float64_bits is set. Where packets are too short for an exact sum of float64 (a switch's;
 * paths of below 500 bytes) float64_bits is needed for all.
 * Errors: INVALID_ARGUMENT, UNSUPPORTED, BUSY, NO_MEMORY, or the status the job failed with. */
SML_API sml_status sml_allreduce(sml_job *job, const void *in, void *out, size_t count, sml_type type,
                                 sml_reduction reduction, const sml_operation_options *options,
                                 sml_operation **operation_out);

/* Other collectives. They are operations like sml_allreduce()'s: asynchronous, in one order on all ranks, with the same
 * options, deadlines, failures and retry; ranks that differ in the kind, the parts or the root get SML_ERR_MISMATCH.
 * Their memory is lent in the same way. A rank's *part* of a tensor has counts[rank] elements (parts_bytes[rank]
 * bytes), the same array on all ranks, read during the call; NULL: `count` (num_bytes) on every rank. Parts lie one
 * behind the other in the order of ranks; they may be empty. Sums have the bits of sml_allreduce() over the whole
 * tensor; options->starts counts in that, too. What is copied and not summed arrives as it is, byte by byte, and
 * options->starts means nothing there. Long ones send to a rank only what is for it
 * (docs/adr/0045-one-way-collectives.md); others, and all with SWITCHML_ONE_WAY=0, travel as all-reduces, and take
 * memory for the parts of others where they have no result here.
 *
 * reduce_scatter: `in` has all parts, `out` gets the sum of this rank's. It may be that part's place in `in`.
 * reduce: `out` of the rank `root` gets the sum, and may be `in`; that of others is not looked at.
 * all_gather: `out` gets all parts, `in` is this rank's. It may be that part's place in `out`.
 * broadcast: `data` of the rank `root` goes to all.
 * barrier: ends when all ranks have called it.
 * Errors: as sml_allreduce(). */
SML_API sml_status sml_reduce_scatter(sml_job *job, const void *in, void *out, size_t count, const size_t *counts,
                                      sml_type type, sml_reduction reduction, const sml_operation_options *options,
                                      sml_operation **operation_out);
SML_API sml_status sml_reduce(sml_job *job, const void *in, void *out, size_t count, sml_type type,
                              sml_reduction reduction, uint32_t root, const sml_operation_options *options,
                              sml_operation **operation_out);
SML_API sml_status sml_all_gather(sml_job *job, const void *in, void *out, size_t num_bytes, const size_t *parts_bytes,
                                  const sml_operation_options *options, sml_operation **operation_out);
SML_API sml_status sml_broadcast(sml_job *job, void *data, size_t num_bytes, uint32_t root,
                                 const sml_operation_options *options, sml_operation **operation_out);
SML_API sml_status sml_barrier(sml_job *job, const sml_operation_options *options, sml_operation **operation_out);

/* Batches: small operations called between begin and end share packets, so that k of them cost about one packet's
 * round, not k. Those of at most 16 KiB of int32, 1365 elements of int64, 128 of float32, float16 or bfloat16, or 36 of
 * float64, are noted by sml_allreduce() and sent together by sml_batch_end(), or earlier when what is noted has filled
 * 64 KiB of what is sent (a float is 44 to 64 bytes, a double 288 to 452); all others go their own way at once, ahead
 * of what is noted. Nothing waits for later calls: what end has returned for is under way. A batch changes no bit of a
 * result. Each operation keeps its handle, key, status and deadline, which counts from its own call; wait for it after
 * end. A batch not ended by the first deadline in it is a TIMEOUT. All in one must fit num_operations, or the rest is
 * BUSY. Begin, end and the calls between are the same on all ranks, in one order, else the job ends with
 * SML_ERR_MISMATCH. Batches nest: the outermost end counts.
 * Errors: INVALID_ARGUMENT, FORKED; of end also the status that the job, and what was noted, has failed with. */
SML_API sml_status sml_batch_begin(sml_job *job);
SML_API sml_status sml_batch_end(sml_job *job);

/* SML_IN_PROGRESS, or the terminal status (the buffers are the caller's again). test never blocks;
 * wait blocks at most timeout_ns. That a wait timed out does not end the operation. */
SML_API sml_status sml_operation_test(sml_operation *operation);
SML_API sml_status sml_operation_wait(sml_operation *operation, uint64_t timeout_ns);
/* Details of a failed operation; SML_OK and a zeroed error when it did not fail. */
SML_API sml_status sml_operation_error(sml_operation *operation, sml_error *error_out);
/* Gives the handle back. An operation that has not ended is detached: it still ends by itself. */
SML_API void sml_operation_release(sml_operation *operation);

/* Ends every outstanding and later operation of the job with SML_ERR_ABORTED, on every rank. */
SML_API sml_status sml_job_abort(sml_job *job, const char *why);
/* The status the job has failed with, SML_OK while it works. error_out may be NULL. */
SML_API sml_status sml_job_error(sml_job *job, sml_error *error_out);
SML_API sml_status sml_job_stats(sml_job *job, sml_stats *stats_out);

#ifdef __cplusplus
}

template <typename Struct>
inline Struct sml_initialized() {
  Struct zero = Struct();
  zero.struct_bytes = sizeof(Struct);
  return zero;
}
#endif
#endif
