/* SPDX-License-Identifier: Apache-2.0
 * The aggregator's state machine for one lane of one job (NSDI'21 algorithm 3, with a phase instead of the version
 * bit). Pure. It decides; the engine sums into sml_aggregator_values() and sends.
 *
 * A rank means a contributor's index here (docs/PROTOCOL.md "Contributors"). That is the rank itself unless ranks of
 * one host contribute as one.
 *
 * Invariants (docs/PROTOCOL.md "Invariants"):
 * I3 a seen bit is set exactly while the rank's contribution to the live phase is in the sum;
 * I4 count = number of seen bits, and complete means count = n;
 * I9 the grant is drawn once, at completion, and stored with the result. */
#pragma once

#include "core/drop.h"
#include "core/wire.h"

struct sml_aggregator_options {
  uint32_t world_size; /* 2 .. SML_MAX_WORLD_SIZE */
  /* How many send. The `rank` of their packets is below this number, and bits and counts are over them. They are fewer
   * than the ranks if ranks of one host contribute as one. 0: world_size */
  uint32_t num_contributors;
  uint32_t num_slots;   /* power of two, <= 32768 */
  bool is_one_way;      /* there are one-way windows behind num_slots (wire.h); not in switch format, and not checked */
  uint16_t slot_base;   /* multiple of num_slots */
  uint32_t chunk_bytes; /* largest payload without check word; multiple of 4 */
  bool is_checked;      /* int32 payloads have a check word, summed like any lane */
  bool is_narrow;       /* updates may be narrow; not in switch format */
  uint32_t first_phase; /* even; SML_FIRST_PHASE but in tests */
  uint32_t first_chunk; /* 0 but in tests; slot s begins with first_chunk + s */
  uint32_t order_slots; /* with this many slots or more, order shows losses; 0: SML_ORDER_SLOTS */
  uint64_t rtt_ns;       /* round trip to the furthest rank, as the join measured it; 0: not known */
  bool is_switch_format; /* it does what a switch can do: docs/PROTOCOL.md "Switch format" */
};

enum sml_verdict {
  SML_VERDICT_DROP,      /* count `drop` */
  SML_VERDICT_FIRST,     /* set the values to the payload (first contribution of the phase) */
  SML_VERDICT_ADD,       /* add the payload */
  SML_VERDICT_COMPLETE,  /* add the payload (is_first: set the values to it), then send the result to all */
  SML_VERDICT_REPEAT,    /* unicast the stored result to the sender, flagged RETRANSMISSION */
  SML_VERDICT_PENDING,   /* unicast PENDING with the missing ranks */
  SML_VERDICT_MISMATCH,  /* drop, and report ranks `rank` and `first_rank` */
  SML_VERDICT_JUMP,      /* drop, and report `rank` */
};

struct sml_decision {
  enum sml_verdict verdict;
  enum sml_drop drop;     /* for DROP, MISMATCH, JUMP */
  bool is_first;          /* COMPLETE: there is one contributor, whose payload is the result */
  uint32_t cell;          /* index of (slot, version): values and result belong to it */
  uint32_t num_passed;    /* COMPLETE of a fence: how many earlier ones that waited are complete with it */
  uint32_t first_rank;    /* MISMATCH: the rank that the slot's operation came from */
  uint32_t blocked_rank;  /* FIRST, ADD; PENDING of a one-way window: a departed rank for which this phase waits, or
                             UINT32_MAX */
};

struct sml_aggregator;
size_t sml_aggregator_memsize(const struct sml_aggregator_options *options);
/* mem: sml_aggregator_memsize() bytes, aligned 64, zero-filled or not. */
struct sml_aggregator *sml_aggregator_init(void *mem, const struct sml_aggregator_options *options);

/* Decides about an UPDATE or PROBE that passed the checks of job, epoch, rank and source. Only FIRST, ADD and COMPLETE
 * change a slot. */
struct sml_decision sml_aggregator_decide(struct sml_aggregator *a, const struct sml_header *header);
/* After the packets of a pass: whom to ask at once for updates that later ones overtook. Call begin, then next until it
 * returns false. Each next gives a PENDING (all but job, epoch, rank, chunk and length) and a bitmap of the ranks that
 * it is for. The bitmap is valid until the next call. */
void sml_aggregator_begin_solicit(struct sml_aggregator *a, uint64_t now_ns);
bool sml_aggregator_next_solicit(struct sml_aggregator *a, struct sml_header *header_out, const uint64_t **ranks_out);
/* After begin, likewise: the next update of a sum for its owner that is lost. Gives a PENDING (all but job, epoch and
 * length) for its rank. In jobs with one-way windows only. */
bool sml_aggregator_next_lost(struct sml_aggregator *a, struct sml_header *header_out);
/* The chunk field of that PENDING: the latest chunk that the rank contributed to. */
uint32_t sml_aggregator_latest_chunk(const struct sml_aggregator *a, uint32_t rank);
/* Values of a cell, sml_aggregator_value_bytes() bytes aligned 64: int32 in host order, or exponent codes. */
void *sml_aggregator_values(struct sml_aggregator *a, uint32_t cell);
/* The phase of a cell. */
uint32_t sml_aggregator_phase(const struct sml_aggregator *a, uint32_t cell);
/* Does a cell still hold the complete result of a phase? A later phase may have taken its place. */
bool sml_aggregator_has_result(const struct sml_aggregator *a, uint32_t cell, uint32_t phase);
/* Header of a completed cell's RESULT, without job and epoch. */
void sml_aggregator_result(const struct sml_aggregator *a, uint32_t cell, struct sml_header *header_out);
/* The same for an answer to an UPDATE or PROBE: in switch format it has that packet's wire and reducer. */
void sml_aggregator_result_for(const struct sml_aggregator *a, uint32_t cell, uint8_t wire, uint8_t reducer,
                               struct sml_header *header_out);
/* Contributors missing in `phase` of a slot (relative) as a bitmap of SML_BITMAP_WORDS(n) words; returns how many. */
uint32_t sml_aggregator_missing(const struct sml_aggregator *a, uint32_t slot, uint32_t phase,
                                uint64_t *words_out);
/* The same for the slot of an UPDATE or PROBE, among those who contribute to such a chunk. */
uint32_t sml_aggregator_missing_for(const struct sml_aggregator *a, const struct sml_header *header,
                                    uint64_t *words_out);
/* Is the packet's slot one of a one-way window? */
bool sml_aggregator_is_one_way(const struct sml_aggregator *a, const struct sml_header *header);
/* The chunk field of a PENDING that nobody asked for, in the one-way window of its slot: the latest position, exponents
 * excepted, for which the rank contributed, or all ones. */
uint32_t sml_aggregator_latest_position(const struct sml_aggregator *a, const struct sml_header *header);
/* A contributor, or one of its ranks, is gone. */
void sml_aggregator_note_departed(struct sml_aggregator *a, uint32_t rank);
/* A slot that waits for a contributor that is gone, or UINT32_MAX. *rank_out is that contributor. */
uint32_t sml_aggregator_find_blocked(const struct sml_aggregator *a, uint32_t *rank_out);
const struct sml_aggregator_options *sml_aggregator_options_of(const struct sml_aggregator *a);
/* The largest payload. */
uint32_t sml_aggregator_value_bytes(const struct sml_aggregator_options *options);

/* What a slot (relative) holds, for the status. */
enum sml_slot_state {
  SML_SLOT_UNUSED,   /* nothing yet */
  SML_SLOT_WAITING,  /* for contributors: `count` have contributed to `phase` */
  SML_SLOT_COMPLETE, /* the result of `phase`; nobody has contributed to the next one yet */
};
struct sml_slot_look {
  enum sml_slot_state state;
  uint32_t phase, count;
};
struct sml_slot_look sml_aggregator_look(const struct sml_aggregator *a, uint32_t slot);

/* NULL, or which invariant is broken. Tests ask after every step; it takes time proportional to the slots. No packet
 * can break one. The exception is the switch format, which does not look at the slot's other cell: there I1, I2 and I9
 * hold only if members are honest. */
const char *sml_aggregator_find_violation(const struct sml_aggregator *a);
