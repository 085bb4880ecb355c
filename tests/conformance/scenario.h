/* SPDX-License-Identifier: Apache-2.0
 * How the generator's scenarios are told: begin(), then packets one after the other, each answered by the reference at
 * once and written as a line. */
#pragma once

#include "cli/conform/conform.h"
#include "reference.h"

struct scenario {
  FILE *out;
  bool is_switch; /* the family that is made */
  struct sml_conform_vector vector;
  struct reference *reference;
  struct sml_conform_step step; /* the last one */
};

/* ---- scenario.c ---- */

/* A job of so many ranks. The next vector's needs and jobs are set before begin() by what it is given. */
struct shape {
  uint32_t num_ranks, num_slots; /* 0 slots: 4 */
  bool is_checked, is_narrow, has_one_way;
  uint32_t first_phase;
  uint32_t needs;
  uint32_t num_ranks_1; /* not 0: a second job of so many ranks, with as many slots */
};
void begin(struct scenario *s, const char *topic, const char *name, const char *about, struct shape shape);
void end(struct scenario *s);
/* Takes and writes it. The step says what came of it. */
const struct sml_conform_step *put(struct scenario *s, struct sml_conform_packet packet);
void leave(struct scenario *s, uint32_t rank);
/* Not written, and nothing may have come of it: verdicts MISMATCH and JUMP, which end a job. */
bool would_end_job(struct scenario *s, struct sml_conform_packet packet);

/* A rank's packets as an honest one sends them: full payloads, values and tag made of rank, slot and phase. */
struct sml_conform_packet update(const struct scenario *s, uint32_t rank, int64_t slot, int64_t phase);
struct sml_conform_packet codes(const struct scenario *s, uint32_t rank, int64_t slot, int64_t phase);
struct sml_conform_packet probe(const struct scenario *s, uint32_t rank, int64_t slot, int64_t phase);
/* The same with one thing different. */
struct sml_conform_packet with(struct sml_conform_packet p, enum sml_conform_field field, int64_t number);
struct sml_conform_packet with_symbol(struct sml_conform_packet p, enum sml_conform_field field,
                                      enum sml_conform_symbol symbol, int64_t number);
struct sml_conform_packet flagged(struct sml_conform_packet p, uint32_t flags);
struct sml_conform_packet of_job(struct sml_conform_packet p, uint32_t job);
struct sml_conform_packet via(struct sml_conform_packet p, uint32_t socket);
/* scenarios_narrow.c: of 8 lanes a column, any bits; and the same chunk in full. */
struct sml_conform_packet narrow_update(const struct scenario *s, uint32_t rank, int64_t slot, int64_t phase,
                                        uint32_t num_columns);
struct sml_conform_packet wide_update(const struct scenario *s, uint32_t rank, int64_t slot, int64_t phase,
                                      uint32_t num_columns);
/* All ranks' updates of a slot, from rank `first` on. */
void put_all(struct scenario *s, uint32_t first, int64_t slot, int64_t phase);

/* ---- the scenarios ---- */

void make_sums(struct scenario *s);     /* scenarios_honest.c: what well-behaved ranks send over bad networks */
void make_losses(struct scenario *s);
void make_orders(struct scenario *s);
void make_phases(struct scenario *s);   /* scenarios_strange.c: what no honest rank sends */
void make_mismatches(struct scenario *s);
void make_strangers(struct scenario *s);
void make_garbage(struct scenario *s);
void make_keys(struct scenario *s);
void make_membership(struct scenario *s);
void make_narrow(struct scenario *s);   /* scenarios_narrow.c: updates of 28 bits a lane */
void make_one_way(struct scenario *s);  /* scenarios_one_way.c: one-way windows */
void make_worlds(struct scenario *s);   /* worlds.c: seeded */
