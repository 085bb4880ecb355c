/* SPDX-License-Identifier: Apache-2.0
 * Seeded worlds: honest ranks over a network that loses, repeats and reorders, both ways; and members that say
 * anything. */
#include "scenario.h"

#define MAX_FLYING 32u
#define WORLD_SLOTS 2u
#define WORLD_RANKS 3u

struct world {
  struct scenario *s;
  struct sml_prng draw;
  bool is_narrow; /* updates may be */
  int64_t phase[WORLD_RANKS][WORLD_SLOTS];
  bool is_out[WORLD_RANKS][WORLD_SLOTS]; /* sent, no result yet */
  struct sml_conform_packet flying[MAX_FLYING];
  uint32_t num_flying;
};

static void fly(struct world *w, struct sml_conform_packet p) {
  if (w->num_flying < MAX_FLYING) w->flying[w->num_flying++] = p;
}

static struct sml_conform_packet chunk_of(struct world *w, uint32_t rank, uint32_t slot) {
  const int64_t phase = w->phase[rank][slot];
  if (w->is_narrow && (phase + slot) % 5 != 4)
    return (phase * 5 + slot * 2 + rank) % 3 == 0 ? wide_update(w->s, rank, slot, phase, 1)
                                                  : narrow_update(w->s, rank, slot, phase, 1);
  struct sml_conform_packet p =
      (phase + slot) % 5 == 4 ? codes(w->s, rank, slot, phase) : update(w->s, rank, slot, phase);
  p.num_values = 3;
  return p;
}

/* A rank does something: sends what is ready, or asks about what is out. */
static void act(struct world *w) {
  const uint32_t rank = (uint32_t)sml_prng_below(&w->draw, WORLD_RANKS),
                 slot = (uint32_t)sml_prng_below(&w->draw, WORLD_SLOTS);
  const struct sml_conform_packet chunk = chunk_of(w, rank, slot);
  if (!w->is_out[rank][slot]) {
    fly(w, chunk);
    w->is_out[rank][slot] = true;
  } else if (sml_prng_chance(&w->draw, 0.6)) {
    struct sml_conform_packet p = probe(w->s, rank, slot, w->phase[rank][slot]);
    if (w->s->is_switch && chunk.given >> SML_FIELD_WIRE & 1u)
      p = with(with(p, SML_FIELD_WIRE, chunk.fields[SML_FIELD_WIRE].number), SML_FIELD_REDUCER, SML_REDUCE_MAX);
    fly(w, p);
  } else {
    fly(w, flagged(chunk, SML_FLAG_RETRANSMISSION));
  }
}

static void hear(struct world *w, const struct sml_conform_packet *out) {
  if (out->fields[SML_FIELD_TYPE].number != SML_PACKET_RESULT) return;
  const uint32_t slot = (uint32_t)out->fields[SML_FIELD_SLOT].number;
  for (uint32_t rank = 0; rank < WORLD_RANKS; rank++) {
    const bool is_lost = sml_prng_chance(&w->draw, 0.25);
    if (out->socket != SML_CONFORM_ALL && out->socket != rank) continue;
    if (is_lost || w->phase[rank][slot] != out->fields[SML_FIELD_PHASE].number) continue;
    w->phase[rank][slot]++;
    w->is_out[rank][slot] = false;
  }
}

static void arrive(struct world *w) {
  const uint32_t i = (uint32_t)sml_prng_below(&w->draw, w->num_flying);
  const struct sml_conform_packet p = w->flying[i];
  const bool stays = sml_prng_chance(&w->draw, 0.15), is_lost = sml_prng_chance(&w->draw, 0.12);
  if (!stays) w->flying[i] = w->flying[--w->num_flying];
  if (is_lost) return;
  const struct sml_conform_step *step = put(w->s, p);
  for (uint32_t k = 0; k < step->num_out; k++) hear(w, &step->out[k]);
}

static void make_honest_world(struct scenario *s, uint32_t seed, bool is_narrow) {
  struct world w = {.s = s, .draw = {seed}, .is_narrow = is_narrow};
  char name[64];
  snprintf(name, sizeof name, is_narrow ? "narrow_lossy_world_%u" : "lossy_world_%u", seed);
  begin(s, "worlds", name, "Three honest ranks over a network that loses, repeats and reorders both ways",
        (struct shape){.num_ranks = WORLD_RANKS,
                       .num_slots = WORLD_SLOTS,
                       .is_checked = !is_narrow && seed % 2 == 0,
                       .is_narrow = is_narrow});
  for (uint32_t i = 0; i < 200; i++) {
    if (w.num_flying == 0 || sml_prng_chance(&w.draw, 0.5))
      act(&w);
    else
      arrive(&w);
  }
  end(s);
}

/* One field of a right packet is anything near, or far. */
static struct sml_conform_packet bend(struct world *w, struct sml_conform_packet p) {
  const int64_t near = (int64_t)sml_prng_below(&w->draw, 5) - 2;
  switch (sml_prng_below(&w->draw, 10)) {
    case 0:
      return near < 0 ? with(p, SML_FIELD_SLOT, near) : with_symbol(p, SML_FIELD_SLOT, SML_SYMBOL_SLOTS, near);
    case 1:
      return with(p, SML_FIELD_PHASE,
                  p.fields[SML_FIELD_PHASE].number + near < 0 ? 0 : p.fields[SML_FIELD_PHASE].number + near);
    case 2:
      return probe(w->s, p.socket, p.fields[SML_FIELD_SLOT].number, p.fields[SML_FIELD_PHASE].number);
    case 3:
      return with(p, SML_FIELD_EPOCH, near);
    case 4:
      return with(via(p, (uint32_t)sml_prng_below(&w->draw, WORLD_RANKS)), SML_FIELD_RANK, near + 2);
    case 5:
      return flagged(p, 1u << sml_prng_below(&w->draw, 2) * 6);
    case 6:
      return with(p, SML_FIELD_TYPE, (int64_t)sml_prng_below(&w->draw, 2) * 13 + 1 + 13 * (near > 0) % 2);
    case 7:
      return with_symbol(p, SML_FIELD_BYTES, SML_SYMBOL_FULL, 4 * near + 12);
    case 8:
      p.extra_bytes = near > 0 ? 1 : 0;
      return p;
    default:
      return p;
  }
}

static void make_dishonest_world(struct scenario *s, uint32_t seed) {
  struct world w = {.s = s, .draw = {seed * 1000}};
  char name[64];
  snprintf(name, sizeof name, "strange_world_%u", seed);
  begin(s, "worlds", name, "Members that say almost anything, but what shows them as wrong ones: sums stay right",
        (struct shape){.num_ranks = WORLD_RANKS, .num_slots = WORLD_SLOTS});
  for (uint32_t i = 0; i < 80; i++) {
    const uint32_t rank = (uint32_t)sml_prng_below(&w.draw, WORLD_RANKS),
                   slot = (uint32_t)sml_prng_below(&w.draw, WORLD_SLOTS);
    const struct sml_conform_packet p = bend(&w, chunk_of(&w, rank, slot));
    if (would_end_job(s, p)) continue;
    const struct sml_conform_step *step = put(s, p);
    for (uint32_t k = 0; k < step->num_out; k++) hear(&w, &step->out[k]);
  }
  end(s);
}

void make_worlds(struct scenario *s) {
  for (uint32_t seed = 1; seed <= 4; seed++) make_honest_world(s, seed, false);
  for (uint32_t seed = 5; seed <= 6 && !s->is_switch; seed++) make_honest_world(s, seed, true);
  for (uint32_t seed = 1; seed <= 2; seed++) make_dishonest_world(s, seed);
}
