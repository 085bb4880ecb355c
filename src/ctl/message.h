/* SPDX-License-Identifier: Apache-2.0
 * Control messages between a worker's library and switchmld, over one TCP connection a rank and job
 * (docs/PROTOCOL.md "Control connection"). Pure codec: no I/O.
 *
 * Order:  worker  JOIN
 *         daemon  CHALLENGE  if the JOIN names a key: from here on every frame has a MAC (ctl/channel.h)
 *         worker  AUTH       the first with a MAC: it knows the key
 *         daemon  WELCOME    at once: job id, epoch, data ports and the HELLO nonce (or REFUSE)
 *         worker  sends HELLOs on every lane's data port, padded, until they come back
 *         worker  PROBED     largest datagram that came back on all lanes
 *         daemon  START      when every rank has probed: one answer a job, same for all (or REFUSE)
 *         both    HEARTBEAT  four times before their sender's silence counts as late
 *         worker  EPOCH      at an operation boundary: this rank wants a new epoch
 *         daemon  START      again, with the new epoch, once every rank asked
 *         worker  ABORT      this rank's operation failed: tell everybody
 *         daemon  ABORT      the job is over: reason, ranks, detail
 *         daemon  RANK_GONE  ranks left or were lost while nothing waited for them; the job is not over
 *         worker  GOODBYE    orderly leave; the daemon closes
 *         worker  ASK        an operation is about to time out: whom does the daemon wait for?
 *         daemon  REPORT     the answer
 * Instead of all that, who only wants to know what the daemon does:
 *         anybody STATUS     first, or after AUTH; with a key's name it is challenged as a JOIN is
 *         daemon  STATUS_PART  a part of the status, from the byte that STATUS names
 * and whoever may end jobs that are not his own:
 *         operator EVICT     first, from the daemon's own host, or after STATUS and AUTH with the job's key
 *         daemon  EVICTED    it is ended (or REFUSE); the daemon closes
 * Framing: magic:32 "SML1", version:16, kind:16, body_bytes:32 (<= SML_CTL_MAX_BODY), body; all
 * big-endian, fields in the order of the structs below, strings as length:16 + bytes. The header, and
 * all of REFUSE, are the same in every version, so that a refusal can be read across versions. */
#pragma once

#include "base/base.h"

#define SML_CTL_MAGIC 0x534d4c31u /* "SML1" */
#define SML_CTL_VERSION 10
#define SML_CTL_FRAME_BYTES 12u
#define SML_CTL_MAX_BODY 8448u /* START of the largest world */
#define SML_MAX_LANES 16u
#define SML_MAX_SHARDS 64u     /* aggregators of a job */
#define SML_JOB_NAME_BYTES 64u /* with the terminating 0 */
#define SML_KEY_NAME_BYTES 32u /* with the terminating 0 */
#define SML_DETAIL_BYTES 512u
#define SML_CTL_MAX_RANKS 16u
#define SML_CTL_MAX_GONE 1024u       /* ranks in one RANK_GONE */
#define SML_CTL_MAX_WORLD_SIZE 4096u /* these three: equal to core/wire.h's, which ctl does not see */
#define SML_CTL_HEADER_BYTES 32u
#define SML_CTL_KEYED_BYTES 4u /* by which the header of a keyed job's datagrams is longer: core's too */
#define SML_CTL_CHECK_BYTES 4u /* the check word */
#define SML_CTL_FIRST_PHASE 2u
#define SML_CTL_SWITCH_MAX_CONTRIBUTORS 30u /* core's too */
#define SML_MIN_PACKET_LANES 32u            /* switch format: of a packet; powers of two */
#define SML_MAX_PACKET_LANES 256u

/* Who has said nothing for so long is *late*: people are told, and nothing ends. After the job's lease it is *lost*.
 * Heartbeats come four times in that time. */
#define SML_CTL_LATE_NS (2 * SML_NS_PER_S)
static inline uint64_t sml_ctl_late_ns(uint64_t lease_ns) {
  return sml_min_u64(lease_ns, SML_CTL_LATE_NS);
}
static inline uint64_t sml_ctl_heartbeat_ns(uint64_t lease_ns) {
  return sml_ctl_late_ns(lease_ns) / 4;
}

/* What a job does besides summing; equal on all its ranks. */
#define SML_FEATURE_CHECK 1u /* every int32 chunk carries a check word */
#define SML_FEATURE_RETRY 2u /* ranks keep inputs until all have the result, to survive a lost aggregator */
/* JOIN: this rank can run jobs in switch format, if the aggregator wants them so. START: this job is. */
#define SML_FEATURE_SWITCH 4u
/* How floats travel, if all ranks want it otherwise than by type (quant/format.h): with 16 or 32 bits; and whether
 * long operations of float64 do, with 64 or 96. */
#define SML_FEATURE_FLOAT_BITS_16 8u
#define SML_FEATURE_FLOAT_BITS_32 16u
#define SML_FEATURE_FLOAT64_BITS_64 32u
#define SML_FEATURE_FLOAT64_BITS_96 64u
/* Ranks may send narrow updates (PROTOCOL.md rules R66 to R69), and chunks have a size at which whole ones can be. */
#define SML_FEATURE_NARROW 128u
#define SML_CTL_NARROW_UNIT 32u /* core's too */
/* JOIN of a rank that resumes: it has the result of no operation yet. */
#define SML_FEATURE_NO_RESULT 256u
/* What ranks say of themselves, and need not be equal. */
#define SML_FEATURES_OF_RANKS (SML_FEATURE_SWITCH | SML_FEATURE_NO_RESULT | SML_FEATURE_ONE_WAY)
/* Floats are summed in exact mode, where a call does not say otherwise. */
#define SML_FEATURE_EXACT 512u
/* JOIN: this rank can make use of one-way windows. START: each lane has them, behind the other. */
#define SML_FEATURE_ONE_WAY 1024u
#define SML_CTL_LEAST_ONE_WAY_SLOTS 8u /* core's too, like the next */
#define SML_CTL_ALL_WINDOWS 5u
#define SML_KNOWN_FEATURES 2047u

enum sml_ctl_kind {
  SML_CTL_JOIN = 1,
  SML_CTL_WELCOME,
  SML_CTL_PROBED,
  SML_CTL_START,
  SML_CTL_HEARTBEAT,
  SML_CTL_EPOCH,
  SML_CTL_ABORT,
  SML_CTL_RANK_GONE,
  SML_CTL_GOODBYE,
  SML_CTL_REFUSE,
  SML_CTL_CHALLENGE,
  SML_CTL_AUTH,
  SML_CTL_STATUS,
  SML_CTL_STATUS_PART,
  SML_CTL_ASK,
  SML_CTL_REPORT,
  SML_CTL_EVICT,
  SML_CTL_EVICTED,
};
#define SML_CTL_LAST_KIND SML_CTL_EVICTED
#define SML_STATUS_PART_BYTES 8192u

struct sml_ctl_join {
  char job_name[SML_JOB_NAME_BYTES];
  uint32_t rank, world_size;
  uint32_t num_lanes;                /* offered; the job gets the minimum over members and the daemon */
  uint32_t num_slots;                /* asked for a lane, 0: the aggregator chooses; must be equal on all ranks */
  uint32_t max_datagram_bytes;       /* upper limit asked for */
  uint64_t lease_ns;                 /* who is silent for so long is lost; must be equal on all ranks */
  uint64_t join_timeout_ns;          /* the daemon gives up at the first member's deadline */
  uint32_t features;                 /* SML_FEATURE_*; must be equal on all ranks, but for those OF_RANKS */
  char key_name[SML_KEY_NAME_BYTES]; /* "": unkeyed. Jobs of different keys never meet */
  uint64_t nonce[2];                 /* of this connection, unpredictable; 0 when unkeyed */
  uint64_t resume_operation;         /* the first operation that this rank has not completed */
  uint64_t oldest_operation;         /* the first whose input it still has; <= resume_operation */
  uint32_t resume_chunk_bytes;       /* 0: any; else the job must get exactly this */
  uint64_t host[2];                  /* equal for ranks that can share memory; 0: it does not want to */
  uint32_t is_combining;             /* 1: among several hosts, it would contribute as one with others of its host */
  uint32_t shard, num_shards;        /* which of the job's aggregators it is, equal on all ranks; 0, 0: the only one */
  /* All of them, for people: addresses with ports, a space between two. */
  char aggregators[SML_DETAIL_BYTES];
};
struct sml_ctl_welcome {
  uint16_t job;
  uint32_t epoch; /* of HELLOs; START brings another */
  uint64_t nonce; /* goes into this rank's HELLOs */
  uint32_t num_lanes;
  uint16_t data_ports[SML_MAX_LANES]; /* at the address the control connection reached */
  uint64_t salt[2];                   /* the job's, random; goes into its data keys */
  /* The multicast group by which results may come, IPv4 mapped into IPv6; lane l's port is group_port + l.
   * All 0: there is none. */
  uint64_t group[2];
  uint16_t group_port;
  uint64_t secret[2]; /* of the HELLOs' epoch, as in START */
};
enum sml_ctl_hearing {
  SML_CTL_NO_GROUP, /* there was none, or the rank does not want it */
  SML_CTL_DEAF,     /* it did not get its HELLOs back by the group */
  SML_CTL_HEARS,    /* on all lanes */
};
struct sml_ctl_probed {
  uint32_t datagram_bytes;
  uint64_t rtt_ns;  /* the smallest of a HELLO; 0: not known */
  uint32_t hearing; /* enum sml_ctl_hearing */
};
struct sml_ctl_start {
  uint32_t epoch;                    /* random */
  uint32_t num_lanes;                /* this many of the welcome's ports are used */
  uint32_t chunk_bytes;              /* payload of a full data chunk; multiple of 4 */
  uint32_t num_slots;                /* at most as many as asked for, if any were */
  uint16_t slot_base[SML_MAX_LANES]; /* per lane; multiple of num_slots, or of all windows' */
  uint32_t first_phase, first_chunk; /* where phases and the chunk stream begin */
  uint32_t features;                 /* those of the joins; SWITCH as the aggregator decides */
  uint64_t rtt_ns;                   /* of the furthest rank, as PROBED said; 0: not known */
  uint32_t slots_why;                /* sml_slots_reason (switchml.h) */
  uint64_t first_operation;          /* the smallest resume_operation of all ranks; every START says the same */
  uint32_t is_multicast;             /* 1: results come by the welcome's group, all else and repeats by unicast */
  uint32_t is_one_host;              /* 1: all ranks named the same host: they add up in shared memory */
  /* Random: what shows that a datagram of this epoch is a member's or the aggregator's in a job without a key. 0: it
   * has one, or is in switch format. */
  uint64_t secret[2];
  /* Which contributor each rank is, or is part of (ctl/contributors.h): numbered by their lowest ranks. num_ranks: the
   * world size, or 0: each rank contributes for itself, and no table is sent. */
  uint32_t num_ranks;
  uint16_t contributors[SML_CTL_MAX_WORLD_SIZE];
};
/* Slots of a lane, one-way windows included. */
static inline uint32_t sml_ctl_all_slots(const struct sml_ctl_start *start) {
  return start->num_slots * ((start->features & SML_FEATURE_ONE_WAY) != 0 ? SML_CTL_ALL_WINDOWS : 1);
}
static inline bool sml_ctl_is_window(const struct sml_ctl_start *start, uint16_t slot_base) {
  const uint32_t num_windows = sml_ctl_all_slots(start) / start->num_slots;
  return slot_base % (start->num_slots << sml_ceil_log2(num_windows)) == 0 &&
         slot_base + sml_ctl_all_slots(start) <= UINT16_MAX + 1u;
}

/* The lanes of each packet of a job in switch format; of another job 0. */
static inline uint32_t sml_ctl_packet_lanes(const struct sml_ctl_start *start) {
  const uint32_t check_bytes = (start->features & SML_FEATURE_CHECK) != 0 ? SML_CTL_CHECK_BYTES : 0;
  return (start->features & SML_FEATURE_SWITCH) != 0 ? (start->chunk_bytes + check_bytes) / 4 : 0;
}
struct sml_ctl_heartbeat {
  uint64_t operations_submitted; /* the daemon sends 0 */
  /* Number of the first operation that is not completed, without a gap before it: at this rank, or (from
   * the daemon, once the job has started) at the rank that is furthest behind. */
  uint64_t operations_completed;
  uint64_t called; /* the hash of that operation (PROTOCOL.md rule R223), if the rank has called it; else 0 */
};
struct sml_ctl_epoch {
  uint32_t epoch; /* the one to be left */
};
struct sml_ctl_abort {
  int32_t status; /* enum sml_status */
  uint32_t num_ranks;
  uint16_t ranks[SML_CTL_MAX_RANKS];
  char detail[SML_DETAIL_BYTES];
};
/* Ranks that left or were lost since the last one; the first is whom the detail is about. */
struct sml_ctl_rank_gone {
  int32_t status;
  uint32_t num_ranks; /* at least 1 */
  uint16_t ranks[SML_CTL_MAX_GONE];
  char detail[SML_DETAIL_BYTES];
};
struct sml_ctl_refuse {
  int32_t status;
  char detail[SML_DETAIL_BYTES];
};
struct sml_ctl_challenge {
  uint64_t nonce[2]; /* of this connection, unpredictable */
};
struct sml_ctl_status {
  char key_name[SML_KEY_NAME_BYTES]; /* as in JOIN: "": the asker has none */
  uint64_t nonce[2];
  uint32_t offset_bytes; /* 0: a fresh status; else the next part of that one */
};
struct sml_ctl_status_part {
  uint32_t total_bytes, offset_bytes; /* of the text (JSON); total stays the same until offset is 0 again */
  uint16_t num_bytes;                 /* of this part */
  char text[SML_STATUS_PART_BYTES];   /* not terminated */
};
struct sml_ctl_report {
  uint32_t num_ranks; /* whom the daemon waits for: late or lost ones */
  uint16_t ranks[SML_CTL_MAX_RANKS];
  char detail[SML_DETAIL_BYTES]; /* who, since when, and what the slots hold */
};

struct sml_ctl_evict {
  char job_name[SML_JOB_NAME_BYTES];
  char detail[SML_DETAIL_BYTES]; /* why, for its ranks; may be empty */
};
struct sml_ctl_evicted {
  uint32_t num_jobs, num_ranks;
};

struct sml_ctl_message {
  enum sml_ctl_kind kind;
  union {
    struct sml_ctl_join join;
    struct sml_ctl_welcome welcome;
    struct sml_ctl_probed probed;
    struct sml_ctl_start start;
    struct sml_ctl_heartbeat heartbeat;
    struct sml_ctl_epoch epoch;
    struct sml_ctl_abort abort;
    struct sml_ctl_rank_gone rank_gone;
    struct sml_ctl_refuse refuse;
    struct sml_ctl_challenge challenge;
    struct sml_ctl_status status;
    struct sml_ctl_status_part status_part;
    struct sml_ctl_report report;
    struct sml_ctl_evict evict;
    struct sml_ctl_evicted evicted;
  } u;
};

/* Bytes written (header and body), or 0 when room_bytes is too small or a field is out of its range.
 * A detail is made plain text (base/text.h). */
size_t sml_ctl_encode(const struct sml_ctl_message *message, uint8_t *out, size_t room_bytes);

enum sml_ctl_decode {
  SML_CTL_NEED_MORE,   /* not a whole message yet; nothing was consumed */
  SML_CTL_DECODED,     /* *consumed_out bytes made *message_out */
  SML_CTL_BAD_MAGIC,   /* not this protocol: close, say nothing */
  SML_CTL_BAD_VERSION, /* another version: answer REFUSE with SML_ERR_VERSION and close */
  SML_CTL_MALFORMED,   /* over-long, unknown kind, field out of its range: close */
  SML_CTL_BAD_MAC,     /* only from sml_channel_decode(): MAC missing, wrong, or not wanted: close */
};
enum sml_ctl_decode sml_ctl_decode(const uint8_t *in, size_t num_bytes, struct sml_ctl_message *message_out,
                                   size_t *consumed_out);

/* The two halves of sml_ctl_decode(), for the channel, which puts a MAC between them. */
struct sml_ctl_frame {
  uint16_t kind; /* SML_CTL_HAS_MAC may be set */
  uint32_t body_bytes;
};
#define SML_CTL_HAS_MAC 0x8000u /* in the kind: 8 bytes of MAC follow the body, not counted by body_bytes */
/* Judges the header as early as its bytes are there; DECODED: *frame_out is set, the body may be missing. */
enum sml_ctl_decode sml_ctl_decode_header(const uint8_t *in, size_t num_bytes, struct sml_ctl_frame *frame_out);
/* False: malformed. */
bool sml_ctl_decode_body(uint16_t kind, const uint8_t *body, size_t body_bytes, struct sml_ctl_message *message_out);
