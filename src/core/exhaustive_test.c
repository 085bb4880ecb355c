/* SPDX-License-Identifier: Apache-2.0
 * Small worlds in full: every way to deliver, lose or repeat each of the first packets of a tiny job, in
 * either direction, in the order in which they are sent. All ranks must end with the exact sums in bounded
 * virtual time, whatever the pattern. The patterns are walked as a tree, so that what two of them have in
 * common happens once, and a packet that is never sent is not branched on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/aggregator.h"
#include "core/worker.h"

#define MAX_RANKS 3u
#define MAX_SLOTS 2u
#define MAX_CHUNKS 4u /* data chunks of an operation */
#define MAX_OPERATIONS 2u
#define MAX_DEPTH 14u
#define MAX_PHASES 16u
#define CHUNK_BYTES 8u
#define CHUNK_ELEMS (CHUNK_BYTES / 4)
#define BLOCK_ELEMS 4u   /* two chunks */
#define WIRE_PACKETS 64u /* power of two */
#define HOP_NS (20 * SML_NS_PER_US)
#define LIMIT_NS (10 * SML_NS_PER_S)
#define LIMIT_SENT 400u

enum fate { DELIVERED, LOST, REPEATED, NUM_FATES };

struct world_options {
  uint32_t num_ranks, num_slots, num_chunks, num_operations;
  bool has_exponents;
  bool is_switch;        /* format */
  uint32_t depth;        /* packets whose fate is branched on */
  uint32_t late_packets; /* a repeat comes behind so many others */
};

struct packet {
  uint64_t at_ns;
  struct sml_header header;
  uint8_t rank; /* from (up) or to (down) whom */
  bool is_up;
  uint8_t payload[CHUNK_BYTES];
};

/* What a rank has got. */
struct output {
  int32_t lanes[MAX_CHUNKS * CHUNK_ELEMS];
  uint8_t codes[MAX_CHUNKS];
  uint8_t num_writes[MAX_CHUNKS + 1]; /* of data chunks, then of the exponent chunk */
  uint8_t ready[1];
  bool is_done;
};

/* All that changes, without a pointer to anywhere else, so that a copy of it is a point in time. */
struct world {
  uint64_t now_ns;
  uint32_t num_sent, num_grants;
  uint32_t sent_head, sent_tail;            /* ring of packets whose fate is not decided yet: [head, tail) */
  uint32_t wire_head, wire_tail;            /* and of those on their way, in the order of arrival */
  uint32_t num_late, late_after[MAX_DEPTH]; /* repeats that wait for num_sent to reach this */
  struct packet sent[WIRE_PACKETS / 2], wire[WIRE_PACKETS / 2], late[MAX_DEPTH];
  struct output outputs[MAX_RANKS][MAX_OPERATIONS];
  uint32_t grants[MAX_SLOTS][MAX_PHASES]; /* + 1; 0: not granted yet */
  uint64_t deadlines_ns[MAX_RANKS]; /* of each worker, since it last changed: it is much to ask for at each step */
  _Alignas(64) uint8_t aggregator[1024];
  _Alignas(64) uint8_t workers[MAX_RANKS][2560];
};

static struct world world, points[MAX_DEPTH];
static struct world_options options;
static struct sml_operation_plan plans[MAX_OPERATIONS];
static struct sml_range range;
static enum fate pattern[MAX_DEPTH];
static uint64_t num_patterns, num_packets;

static struct sml_aggregator *aggregator(void) {
  return (struct sml_aggregator *)(void *)world.aggregator;
}
static struct sml_worker *worker(uint32_t rank) {
  return (struct sml_worker *)(void *)world.workers[rank];
}

/* Says which pattern it is: with it the run can be had again. */
static void check(bool claim, const char *what) {
  if (claim) return;
  char digits[MAX_DEPTH + 1] = "";
  for (uint32_t i = 0; i < options.depth && i < world.num_sent; i++) digits[i] = ".x2"[pattern[i]];
  fail_msg("%s: %u ranks, %u slots, %u operations of %u chunks, %s%s, pattern %s%s", what, options.num_ranks,
           options.num_slots, options.num_operations, options.num_chunks, options.has_exponents ? "float32" : "int32",
           options.is_switch ? " for a switch" : "", digits, options.late_packets > 0 ? " (late)" : "");
}

/* ---- numbers ---- */

static uint8_t code_of(uint32_t rank, uint32_t operation, uint64_t block) {
  return (uint8_t)(100 + (rank * 7 + operation * 3 + block * 5) % 11);
}

/* Depends on the code that the worker believes to be the maximum: a wrong scale makes a wrong sum. */
static uint32_t lane_of(uint32_t rank, uint32_t operation, uint64_t elem, uint8_t code) {
  return (uint32_t)sml_mix64((uint64_t)rank << 48 | (uint64_t)operation << 40 | (uint64_t)code << 32 | (elem + 1));
}

static void write_payload(struct packet *p, uint32_t operation, const struct sml_chunk *c) {
  const struct output *out = &world.outputs[p->rank][operation];
  for (uint32_t i = 0; i < c->num_elems; i++) {
    if (c->is_exponent) {
      const uint8_t code = code_of(p->rank, operation, c->block + i);
      if (options.is_switch) sml_store_be32(p->payload + 4 * i, code);
      else p->payload[i] = code;
      continue;
    }
    const uint8_t code = options.has_exponents ? out->codes[(c->first_elem + i) / BLOCK_ELEMS] : 0;
    sml_store_be32(p->payload + 4 * i, lane_of(p->rank, operation, c->first_elem + i, code));
  }
}

static void sum(const struct packet *p, uint32_t cell, bool is_first) {
  void *values = sml_aggregator_values(aggregator(), cell);
  uint8_t *codes = values;
  uint32_t *lanes = values;
  if (p->header.wire == SML_LANES_UINT8) {
    for (uint32_t i = 0; i < p->header.payload_bytes; i++)
      codes[i] = is_first || p->payload[i] > codes[i] ? p->payload[i] : codes[i];
  } else if (p->header.wire == SML_LANES_UINT32) {
    for (uint32_t i = 0; i < p->header.payload_bytes / 4; i++)
      lanes[i] = sml_max_u32(is_first ? 0 : lanes[i], sml_load_be32(p->payload + 4 * i));
  } else {
    for (uint32_t i = 0; i < p->header.payload_bytes / 4; i++)
      lanes[i] = (is_first ? 0 : lanes[i]) + sml_load_be32(p->payload + 4 * i);
  }
}

static void read_values(struct packet *p, uint32_t cell) {
  const void *values = sml_aggregator_values(aggregator(), cell);
  const uint32_t *lanes = values;
  if (p->header.wire == SML_LANES_UINT8) memcpy(p->payload, values, p->header.payload_bytes);
  else
    for (uint32_t i = 0; i < p->header.payload_bytes / 4; i++) sml_store_be32(p->payload + 4 * i, lanes[i]);
}

static void store(uint32_t rank, uint32_t operation, const struct sml_chunk *c, const uint8_t *payload) {
  struct output *out = &world.outputs[rank][operation];
  uint8_t *num_writes = &out->num_writes[c->is_exponent ? MAX_CHUNKS : c->data_chunk];
  check((*num_writes)++ == 0, "a chunk was written twice");
  if (c->is_exponent && options.is_switch)
    for (uint32_t i = 0; i < c->num_elems; i++) out->codes[i] = (uint8_t)sml_load_be32(payload + 4 * i);
  else if (c->is_exponent) memcpy(out->codes, payload, c->num_elems);
  else
    for (uint32_t i = 0; i < c->num_elems; i++) out->lanes[c->first_elem + i] = (int32_t)sml_load_be32(payload + 4 * i);
}

static uint8_t max_code(uint32_t operation, uint64_t block) {
  uint32_t code = 0;
  for (uint32_t rank = 0; rank < options.num_ranks; rank++) code = sml_max_u32(code, code_of(rank, operation, block));
  return (uint8_t)code;
}

static void check_output(const struct output *out, uint32_t operation) {
  check(out->is_done, "an operation did not end");
  for (uint32_t elem = 0; elem < plans[operation].num_elems; elem++) {
    const uint8_t code = options.has_exponents ? max_code(operation, elem / BLOCK_ELEMS) : 0;
    uint32_t exact = 0;
    for (uint32_t rank = 0; rank < options.num_ranks; rank++) exact += lane_of(rank, operation, elem, code);
    check((uint32_t)out->lanes[elem] == exact, "a wrong sum");
  }
}

/* ---- the network ---- */

static void send(const struct packet *p) {
  check(world.sent_tail - world.sent_head < WIRE_PACKETS / 2 && world.num_sent < LIMIT_SENT, "packets without end");
  world.sent[world.sent_tail++ % (WIRE_PACKETS / 2)] = *p;
}

static void put_on_wire(const struct packet *p) {
  check(world.wire_tail - world.wire_head < WIRE_PACKETS / 2, "packets without end");
  struct packet *at = &world.wire[world.wire_tail++ % (WIRE_PACKETS / 2)];
  *at = *p;
  at->at_ns = world.now_ns + HOP_NS;
}

static void release_late(bool is_quiet) {
  while (world.num_late > 0 && (is_quiet || world.late_after[0] <= world.num_sent)) {
    put_on_wire(&world.late[0]);
    world.num_late--;
    for (uint32_t i = 0; i < world.num_late; i++) {
      world.late[i] = world.late[i + 1];
      world.late_after[i] = world.late_after[i + 1];
    }
  }
}

/* The oldest packet that was sent gets its fate. */
static void decide(enum fate fate) {
  const struct packet *p = &world.sent[world.sent_head++ % (WIRE_PACKETS / 2)];
  world.num_sent++;
  num_packets++;
  if (fate != LOST) put_on_wire(p);
  if (fate == REPEATED && options.late_packets > 0) {
    world.late_after[world.num_late] = world.num_sent + options.late_packets;
    world.late[world.num_late++] = *p;
  } else if (fate == REPEATED) {
    put_on_wire(p);
  }
  release_late(false);
}

/* ---- the aggregator ---- */

static void send_result(uint32_t cell, uint32_t rank, uint16_t flags) {
  struct packet p = {.rank = (uint8_t)rank};
  sml_aggregator_result(aggregator(), cell, &p.header);
  p.header.flags = flags;
  check(p.header.chunk + 1 == world.grants[cell / 2][p.header.phase], "a repeat with another grant");
  read_values(&p, cell);
  send(&p);
}

static void complete(const struct packet *p, uint32_t cell) {
  struct sml_header h;
  sml_aggregator_result(aggregator(), cell, &h);
  check(h.phase < MAX_PHASES && world.grants[cell / 2][h.phase] == 0, "a phase was completed twice");
  check(h.chunk == options.num_slots + world.num_grants++, "a chunk was skipped or granted twice");
  check(h.phase == p->header.phase, "another phase was completed");
  world.grants[cell / 2][h.phase] = h.chunk + 1;
  for (uint32_t rank = 0; rank < options.num_ranks; rank++) send_result(cell, rank, 0);
}

static void send_pending(const struct packet *up) {
  struct packet p = {.rank = up->rank, .header = up->header};
  uint64_t words[1];
  sml_aggregator_missing(aggregator(), up->header.slot, up->header.phase, words);
  memcpy(p.payload, words, sizeof p.payload);
  p.header.type = SML_PACKET_PENDING;
  p.header.payload_bytes = options.is_switch ? SML_SWITCH_BITMAP_BYTES : 1;
  send(&p);
}

static void deliver_up(const struct packet *p) {
  const struct sml_decision d = sml_aggregator_decide(aggregator(), &p->header);
  switch (d.verdict) {
    case SML_VERDICT_DROP:
      break;
    case SML_VERDICT_FIRST:
    case SML_VERDICT_ADD:
      sum(p, d.cell, d.verdict == SML_VERDICT_FIRST);
      break;
    case SML_VERDICT_COMPLETE:
      sum(p, d.cell, false);
      complete(p, d.cell);
      break;
    case SML_VERDICT_REPEAT:
      send_result(d.cell, p->rank, SML_FLAG_RETRANSMISSION);
      break;
    case SML_VERDICT_PENDING:
      send_pending(p);
      break;
    case SML_VERDICT_MISMATCH:
    case SML_VERDICT_JUMP:
      check(false, "an honest rank is accused");
  }
}

/* ---- the workers ---- */

/* The operation's number as a cookie: no pointer, so that a copied world means the same. */
static void *cookie_of(uint32_t operation) {
  return (void *)(uintptr_t)(operation + 1);
}
static uint32_t operation_of(const void *cookie) {
  return (uint32_t)(uintptr_t)cookie - 1;
}

static void flush(uint32_t rank) {
  for (;;) {
    struct sml_send s;
    sml_worker_next_send(worker(rank), world.now_ns, &s);
    if (s.kind == SML_SEND_NONE) break;
    struct packet p = {.rank = (uint8_t)rank, .is_up = true, .header = s.header};
    if (s.kind == SML_SEND_UPDATE) write_payload(&p, operation_of(s.cookie), &s.chunk);
    send(&p);
  }
  world.deadlines_ns[rank] = sml_worker_next_deadline(worker(rank));
}

static void deliver_down(const struct packet *p) {
  const struct sml_accept a = sml_worker_on_packet(worker(p->rank), &p->header, p->payload, world.now_ns);
  if (a.kind == SML_ACCEPT_RESULT) {
    const uint32_t operation = operation_of(a.cookie);
    store(p->rank, operation, &a.chunk, p->payload);
    if (a.ended != NULL) {
      check(!world.outputs[p->rank][operation].is_done, "an operation ended twice");
      world.outputs[p->rank][operation].is_done = true;
    }
  }
  flush(p->rank);
}

/* ---- the walk ---- */

static uint64_t next_deadline(void) {
  uint64_t deadline_ns = SML_NEVER;
  for (uint32_t rank = 0; rank < options.num_ranks; rank++)
    deadline_ns = sml_min_u64(deadline_ns, world.deadlines_ns[rank]);
  return deadline_ns;
}

/* One event, with nothing left to decide. Returns false when there is none any more. */
static bool step(void) {
  if (world.wire_head == world.wire_tail) release_late(true);
  const bool has_packet = world.wire_head != world.wire_tail;
  const struct packet *p = &world.wire[world.wire_head % (WIRE_PACKETS / 2)];
  const uint64_t deadline_ns = next_deadline();
  if (has_packet && p->at_ns <= deadline_ns) {
    const struct packet arrived = *p;
    world.wire_head++;
    world.now_ns = sml_max_u64(world.now_ns, arrived.at_ns);
    if (arrived.is_up) deliver_up(&arrived);
    else deliver_down(&arrived);
    return true;
  }
  if (deadline_ns == SML_NEVER) return false;
  world.now_ns = sml_max_u64(world.now_ns, deadline_ns);
  check(world.now_ns < LIMIT_NS, "no end in sight");
  for (uint32_t rank = 0; rank < options.num_ranks; rank++) {
    if (world.deadlines_ns[rank] > world.now_ns) continue;
    sml_worker_on_timer(worker(rank), world.now_ns);
    flush(rank);
  }
  return true;
}

static void check_end(void) {
  for (uint32_t rank = 0; rank < options.num_ranks; rank++)
    for (uint32_t i = 0; i < options.num_operations; i++) check_output(&world.outputs[rank][i], i);
  check(world.num_grants == options.num_operations * range.num_chunks, "not as many grants as chunks");
  num_patterns++;
}

static void walk(void) {
  for (;;) {
    while (world.sent_head == world.sent_tail) {
      if (step()) continue;
      check_end();
      return;
    }
    if (world.num_sent >= options.depth) {
      decide(DELIVERED);
      continue;
    }
    const uint32_t place = world.num_sent;
    memcpy(&points[place], &world, sizeof world);
    for (enum fate fate = 0; fate < NUM_FATES; fate++) {
      if (fate != 0) memcpy(&world, &points[place], sizeof world);
      pattern[place] = fate;
      decide(fate);
      walk();
    }
    return;
  }
}

static void start(const struct world_options *o) {
  options = *o;
  memset(&world, 0, sizeof world);
  const struct sml_aggregator_options a = {.world_size = o->num_ranks,
                                           .num_slots = o->num_slots,
                                           .chunk_bytes = CHUNK_BYTES,
                                           .first_phase = SML_FIRST_PHASE,
                                           .is_switch_format = o->is_switch};
  assert_true(sml_aggregator_memsize(&a) <= sizeof world.aggregator);
  sml_aggregator_init(world.aggregator, &a);
  for (uint32_t i = 0; i < o->num_operations; i++) /* the last chunk is a short one */
    plans[i] = (struct sml_operation_plan){.number = i,
                                           .num_elems = o->num_chunks * CHUNK_ELEMS - 1,
                                           .block_elems = o->has_exponents ? BLOCK_ELEMS : 0,
                                           .has_wide_codes = o->is_switch};
  sml_range_make(&range, &plans[0], 0, 1, CHUNK_BYTES, o->num_slots);
  for (uint32_t rank = 0; rank < o->num_ranks; rank++) {
    const struct sml_worker_options w = {.rank = (uint16_t)rank,
                                         .world_size = o->num_ranks,
                                         .num_lanes = 1,
                                         .num_slots = o->num_slots,
                                         .chunk_bytes = CHUNK_BYTES,
                                         .first_phase = SML_FIRST_PHASE,
                                         .packet_lanes = o->is_switch ? CHUNK_ELEMS : 0,
                                         .num_operations = MAX_OPERATIONS,
                                         .seed = rank};
    assert_true(sml_worker_memsize(&w) <= sizeof world.workers[rank]);
    sml_worker_init(world.workers[rank], &w);
    for (uint32_t i = 0; i < o->num_operations; i++)
      assert_true(sml_worker_submit(worker(rank), &plans[i], world.outputs[rank][i].ready, cookie_of(i), 0));
    flush(rank);
  }
}

/* ---- the worlds ---- */

/* How deep: twelve packets, but nine where that would take long: repeats that come late, two operations, and
 * eight for everything in a build that is slow. */
static uint32_t depth = SML_IS_SLOW_BUILD ? 8 : 12;
static uint32_t side_depth = SML_IS_SLOW_BUILD ? 8 : 9;

/* Operations shorter than the window, as long as it, and just above. */
static void walk_all(struct world_options o) {
  const uint64_t patterns_before = num_patterns, packets_before = num_packets;
  for (o.num_ranks = 2; o.num_ranks <= MAX_RANKS; o.num_ranks++)
    for (o.num_slots = 1; o.num_slots <= MAX_SLOTS; o.num_slots++)
      for (o.num_chunks = 1; o.num_chunks <= o.num_slots + 1; o.num_chunks++) {
        start(&o);
        walk();
      }
  print_message("# %llu patterns, %llu packets\n", (unsigned long long)(num_patterns - patterns_before),
                (unsigned long long)(num_packets - packets_before));
}

static void int32_survives_every_pattern(void **state) {
  (void)state;
  walk_all((struct world_options){.num_operations = 1, .depth = depth});
}

static void float32_survives_every_pattern(void **state) {
  (void)state;
  walk_all((struct world_options){.num_operations = 1, .depth = depth, .has_exponents = true});
}

/* Three packets later another phase of the slot may have begun, ten later the one after it, in the same cell. */
static void late_repeats_are_survived(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 2; i++) {
    walk_all((struct world_options){.num_operations = 1, .depth = side_depth, .late_packets = 3, .has_exponents = i});
    walk_all((struct world_options){.num_operations = 2, .depth = side_depth, .late_packets = 10, .has_exponents = i});
  }
}

static void two_operations_survive_every_pattern(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 2; i++)
    walk_all((struct world_options){.num_operations = 2, .depth = side_depth, .has_exponents = i});
}

static void switch_format_survives_every_pattern(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 2; i++)
    walk_all((struct world_options){.num_operations = 1, .depth = side_depth, .has_exponents = i, .is_switch = true});
}

/* --soak: twelve packets everywhere. */
int main(int num_arguments, char **arguments) {
  if (num_arguments > 1 && strcmp(arguments[1], "--soak") == 0) depth = side_depth = 12;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(int32_survives_every_pattern),
      cmocka_unit_test(float32_survives_every_pattern),
      cmocka_unit_test(late_repeats_are_survived),
      cmocka_unit_test(two_operations_survive_every_pattern),
      cmocka_unit_test(switch_format_survives_every_pattern),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
