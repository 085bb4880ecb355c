/* SPDX-License-Identifier: Apache-2.0
 * Conformance vectors (tests/conformance/README.md): packets in, the verdict, and packets out, without numbers that
 * are an aggregator's own choice. read.c parses them, packet.c binds one packet to a live job's numbers and
 * compares what comes, play.c plays a vector on a stage: an engine in a test, or (live.c) an aggregator
 * over the network, which `switchml conform` (conform.c) does. */
#pragma once

#include <stdio.h>

#include "core/wire.h"

#define SML_CONFORM_MAX_RANKS 64u
#define SML_CONFORM_MAX_JOBS 2u
#define SML_CONFORM_MAX_VALUES 40u
#define SML_CONFORM_MAX_OUT 4u
#define SML_CONFORM_MAX_FRAME_BYTES 9000u
#define SML_CONFORM_STRANGER 0xfffeu /* a socket that no rank registered */
#define SML_CONFORM_ALL 0xffffu      /* to each rank, one packet */
/* A job that no aggregator has: numbers are below 1024 at switchmld. */
#define SML_CONFORM_UNKNOWN_JOB 0xffffu

/* ---- one packet ---- */

enum sml_conform_field {
  SML_FIELD_VERSION,
  SML_FIELD_TYPE,
  SML_FIELD_WIRE,
  SML_FIELD_REDUCER,
  SML_FIELD_JOB,
  SML_FIELD_EPOCH,
  SML_FIELD_RANK,
  SML_FIELD_PAYLOAD_BYTES,
  SML_FIELD_SLOT,
  SML_FIELD_FLAGS,
  SML_FIELD_PHASE,
  SML_FIELD_TAG,
  SML_FIELD_CHUNK,
  SML_FIELD_BYTES, /* no field: how long the payload is */
  SML_NUM_FIELDS,
};
extern const char *const sml_conform_field_names[SML_NUM_FIELDS];
extern const char *const sml_conform_type_names[8];
extern const char *const sml_conform_flag_names[8];

/* What numbers are counted from. A slot without symbol counts from the window's first, a phase from the first phase, a
 * chunk from the first chunk, an epoch from the job's. */
enum sml_conform_symbol {
  SML_SYMBOL_NONE,
  SML_SYMBOL_SLOTS,
  SML_SYMBOL_RANKS,
  SML_SYMBOL_FULL,
  SML_SYMBOL_MAX,
  SML_SYMBOL_UNKNOWN,
  SML_SYMBOL_NARROW,
  SML_SYMBOL_OWNER,
  SML_SYMBOL_TO_OWNERS,
  SML_SYMBOL_COPIES
};
extern const char *const sml_conform_symbol_names[10];
struct sml_conform_value {
  /* FULL: the largest payload, check word included; NARROW: that of narrow updates; MAX: 2^32 - 1, whatever the base;
   * OWNER: a chunk that is an owner; TO_OWNERS, COPIES: the first slot of the one-way window for these */
  enum sml_conform_symbol symbol;
  int64_t number;
};

struct sml_conform_packet {
  uint32_t job;    /* index in the vector */
  uint32_t socket; /* whose it is sent from, or comes to: rank, STRANGER, ALL */
  uint32_t given;  /* bits: fields that are named. Sent: else 0, or the right one. Expected: else any */
  struct sml_conform_value fields[SML_NUM_FIELDS];
  /* The payload's elements, again and again until it is full: 32-bit lanes, or bytes with wire type 1. */
  uint32_t values[SML_CONFORM_MAX_VALUES];
  uint32_t num_values;
  bool has_missing, is_optional; /* expected only */
  uint64_t missing;              /* of a PENDING: bits of ranks */
  bool has_nonce;
  int64_t nonce; /* of a HELLO: added to the right one */
  /* Sent only: what is wrong with it. */
  bool is_crc_wrong, is_mac_wrong;
  bool is_key_missing, is_key_other; /* not KEYED in a job that is; KEYED with a key that is not the job's */
  uint32_t cut_bytes, extra_bytes;   /* taken from, added to the end; the header does not know */
};

/* A job's numbers, as the aggregator has chosen them. */
struct sml_conform_binding {
  uint16_t job;
  uint32_t epoch, first_phase, first_chunk;
  uint32_t world_size, num_slots, chunk_bytes;
  uint16_t slot_base;
  bool is_checked, is_switch;
  struct sml_seal seal;
  uint64_t nonces[SML_CONFORM_MAX_RANKS];
};

/* Writes the datagram; returns its bytes, or 0: the job is too small for it. frame: SML_CONFORM_MAX_FRAME_BYTES. */
uint32_t sml_conform_pack(const struct sml_conform_packet *packet, const struct sml_conform_binding *binding,
                          uint8_t *frame);
/* NULL: the datagram is what was expected at the rank's socket; else what differs, in a buffer that the next call
 * uses again. */
const char *sml_conform_compare(const struct sml_conform_packet *expected, const struct sml_conform_binding *binding,
                                uint32_t rank, const uint8_t *frame, uint32_t num_bytes);
/* A PENDING that nobody asked for: an aggregator may send such at any time. */
bool sml_conform_is_hint(const uint8_t *frame, uint32_t num_bytes);
/* For people: "RESULT rank=0 slot=3 ...". */
void sml_conform_describe(const uint8_t *frame, uint32_t num_bytes, char *text, size_t text_bytes);
int64_t sml_conform_resolve(struct sml_conform_value value, const struct sml_conform_binding *binding);

/* ---- vectors ---- */

enum sml_conform_need {
  SML_NEED_KEY = 1, /* a job with a key */
  SML_NEED_NO_KEY = 2,
  SML_NEED_FIRST_PHASE = 4, /* jobs begin with the first phase that they name */
  SML_NEED_MEMBERSHIP = 8,  /* HELLOs, and ranks that leave: not of the data path alone */
  SML_NEED_NARROW = 16,     /* jobs whose updates may be narrow */
  SML_NEED_ONE_WAY = 32,    /* jobs with one-way windows */
};
#define SML_NUM_NEEDS 6u
extern const char *const sml_conform_need_names[SML_NUM_NEEDS];

struct sml_conform_job {
  uint32_t num_ranks, num_slots; /* at least so many slots */
  bool is_checked, is_narrow, has_one_way;
  uint32_t first_phase; /* 0: the aggregator's */
};

struct sml_conform_step {
  bool is_leave; /* the rank `packet.socket` of job `packet.job` leaves; nothing is sent */
  struct sml_conform_packet packet;
  char verdict[12]; /* FIRST, ADD, COMPLETE, REPEAT, PENDING, MISMATCH, JUMP, ECHO, DROP, LEFT */
  char reason[20];  /* what the packet counts as dropped for (core/drop.h); "" : nothing */
  uint32_t report;  /* MISMATCH, JUMP: how many ranks are named, which: */
  uint32_t reported[2];
  struct sml_conform_packet out[SML_CONFORM_MAX_OUT];
  uint32_t num_out;
};

struct sml_conform_vector {
  char name[64], about[256], topic[24];
  bool is_switch;
  uint32_t needs; /* bits */
  struct sml_conform_job jobs[SML_CONFORM_MAX_JOBS];
  uint32_t num_jobs;
  struct sml_conform_step *steps;
  uint32_t num_steps;
};

struct sml_conform_suite {
  struct sml_conform_vector *vectors;
  uint32_t num_vectors;
};
/* Adds what a text has to the suite, which begins all zero. False: error has the line and a sentence. To be freed in
 * any case. */
bool sml_conform_read(struct sml_conform_suite *suite, const char *text, size_t num_bytes, char *error,
                      size_t error_bytes);
void sml_conform_free(struct sml_conform_suite *suite);

/* ---- playing ---- */

enum sml_conform_result { SML_CONFORM_PASSED, SML_CONFORM_FAILED, SML_CONFORM_SKIPPED, SML_CONFORM_BROKEN };

/* Where vectors are played. Each function that returns bool: false when it cannot go on, and sentence() says why. */
struct sml_conform_stage {
  const struct sml_conform_stage_ops *ops;
};
struct sml_conform_stage_ops {
  /* Makes the vector's jobs, all ranks registered and started. */
  bool (*open)(struct sml_conform_stage *stage, const struct sml_conform_vector *vector,
               struct sml_conform_binding *bindings_out);
  void (*close)(struct sml_conform_stage *stage);
  bool (*send)(struct sml_conform_stage *stage, uint32_t job, uint32_t socket, const uint8_t *frame,
               uint32_t num_bytes);
  /* Returns when all that was sent has been taken, and the answers can be received. ends_job: if all is right the job
   * is over then. */
  bool (*settle)(struct sml_conform_stage *stage, bool ends_job);
  /* The next datagram that came to a socket, or 0. */
  uint32_t (*receive)(struct sml_conform_stage *stage, uint32_t job, uint32_t socket, uint8_t *frame);
  bool (*leave)(struct sml_conform_stage *stage, uint32_t job, uint32_t rank);
  /* What was reported of a job since it began: "MISMATCH", "JUMP", or "", and the ranks. settled before. NULL: nobody
   * can know. */
  bool (*reported)(struct sml_conform_stage *stage, uint32_t job, bool is_expected, const char **what,
                   uint32_t ranks[2], uint32_t *num_ranks);
  /* The reason that was counted for the last packet, "" for none, NULL: not known. */
  const char *(*dropped)(struct sml_conform_stage *stage);
  const char *(*sentence)(struct sml_conform_stage *stage);
};

struct sml_conform_outcome {
  enum sml_conform_result result;
  uint32_t step; /* FAILED, BROKEN: from 1 */
  char expected[400], seen[400];
};
void sml_conform_play(struct sml_conform_stage *stage, const struct sml_conform_vector *vector,
                      struct sml_conform_outcome *outcome);

/* ---- the command ---- */

enum sml_conform_exit {
  SML_CONFORM_EXIT_PASSED = 0,
  SML_CONFORM_EXIT_FAILED = 1, /* a vector failed */
  SML_CONFORM_EXIT_USAGE = 2,
  SML_CONFORM_EXIT_BROKEN = 3, /* no answer, refused, or no vectors: it could not do its work */
};
int sml_conform_run(int argc, char **argv);

/* The texts that are built in (tests/conformance/vectors). */
extern const unsigned char sml_conform_ordinary[], sml_conform_switch[];
extern const size_t sml_conform_ordinary_bytes, sml_conform_switch_bytes;
