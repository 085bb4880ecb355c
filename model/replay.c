/* SPDX-License-Identifier: Apache-2.0
 * replay: reads worlds that job.pml printed and lets the C state machines live them: the same submits,
 * timers, packets, losses, repeats, departures and restarts in the same order. Whatever the model says
 * that follows (packets sent, the aggregator's verdict, its answers with their grants, what a worker takes,
 * whether a sum is right, who ends when) must follow here too, and nothing else. Exit status 1 at the
 * first difference. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/aggregator.h"
#include "core/worker.h"

#define MAX_RANKS 3u
#define MAX_SLOTS 2u
#define MAX_OPERATIONS 4u
#define MAX_IN_FLIGHT 4u /* C of the model, a queue */
#define MAX_FOLLOWING 16u
#define CHUNK_BYTES 8u
#define STEP_NS (10 * SML_NS_PER_US)
#define TIMER_NS SML_NS_PER_S /* longer than any timeout, so that every slot asks */

/* Names of packets in the model. */
enum kind { UPDATE = 1, AGAIN, PROBE, RESULT, REPEAT, PENDING };

/* Contributions in a sum. */
struct sum {
  uint32_t epoch, chunk;
  uint8_t counts[MAX_RANKS];
  bool is_mixed; /* of another epoch or chunk as well */
};

struct packet {
  struct sml_header header;
  struct sum sum;
  uint8_t missing[8]; /* PENDING's payload */
};

struct queue {
  uint32_t num;
  struct packet packets[MAX_IN_FLIGHT];
};

/* What the C code did and the model must say too. */
struct following {
  uint32_t queue;
  struct packet packet;
};

struct member {
  struct sml_worker *worker;
  bool is_running;
  uint32_t epoch, num_done;
  uint32_t num_submitted;
  uint8_t ready[MAX_OPERATIONS];
};

static struct world {
  uint32_t number, num_ranks, num_slots, num_operations, operation_chunks;
  bool has_exponents, is_open, is_blocked, has_closed, may_close;
  uint32_t epoch, departed;
  uint64_t now_ns;
  struct sml_aggregator *aggregator;
  struct sum cells[2 * MAX_SLOTS];
  struct member members[MAX_RANKS];
  struct queue queues[2 * MAX_RANKS]; /* as in the model: w goes up from worker w, num_ranks + w down to it */
  struct following following[MAX_FOLLOWING];
  uint32_t num_following;
  char outcome[32]; /* verdict or acceptance that the model must name */
  uint32_t done_rank;
} world;

static struct counts {
  uint64_t lines, worlds, actions, packets, lost, repeated, results, repeats, pendings, questions, refused, stale;
  uint64_t closes;
} counts;

static _Alignas(64) uint8_t aggregator_memory[1 << 12];
static _Alignas(64) uint8_t worker_memory[MAX_RANKS][1 << 14];

__attribute__((format(printf, 1, 2), noreturn)) static void differ(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "replay: world %u, line %llu: ", world.number, (unsigned long long)counts.lines);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

static void check(bool claim, const char *what) {
  if (!claim) differ("%s", what);
}

/* ---- names ---- */

static struct sml_operation_plan plan_of(uint32_t operation) {
  const uint32_t num_data = world.operation_chunks - world.has_exponents;
  return (struct sml_operation_plan){.number = operation,
                                     .num_elems = num_data * CHUNK_BYTES / 4,
                                     .block_elems = world.has_exponents ? CHUNK_BYTES / 4 : 0};
}

static uint32_t tag_of(uint32_t chunk) {
  const struct sml_operation_plan plan = plan_of(chunk / world.operation_chunks);
  return sml_tag(sml_tag_base(&plan, CHUNK_BYTES, 1), chunk % world.operation_chunks);
}

static uint32_t chunk_of(uint32_t tag) {
  const uint32_t num_chunks = world.num_operations * world.operation_chunks;
  uint32_t chunk = 0;
  while (chunk < num_chunks && tag_of(chunk) != tag) chunk++;
  check(chunk < num_chunks, "a tag that belongs to no chunk");
  return chunk;
}

static enum kind kind_of(const struct sml_header *h) {
  const bool is_again = h->flags & SML_FLAG_RETRANSMISSION;
  switch (h->type) {
    case SML_PACKET_UPDATE: return is_again ? AGAIN : UPDATE;
    case SML_PACKET_RESULT: return is_again ? REPEAT : RESULT;
    case SML_PACKET_PROBE: return PROBE;
    default: return PENDING;
  }
}

static bool is_right(const struct sum *sum) {
  if (sum->is_mixed) return false;
  for (uint32_t rank = 0; rank < world.num_ranks; rank++)
    if (sum->counts[rank] != 1) return false;
  return true;
}

static bool is_named(const struct packet *p, enum kind kind, uint32_t slot, uint32_t phase, uint32_t chunk) {
  return kind_of(&p->header) == kind && p->header.slot == slot && p->header.phase == phase &&
         p->header.tag == tag_of(chunk);
}

static uint32_t flag_of(const struct packet *p, uint32_t rank) {
  if (p->header.type == SML_PACKET_PENDING) return p->missing[0] >> rank & 1;
  return p->header.type == SML_PACKET_RESULT && !is_right(&p->sum);
}

/* ---- what follows an action ---- */

static void expect_packet(uint32_t queue, const struct packet *p) {
  check(world.num_following < MAX_FOLLOWING, "the code sends packets without end");
  world.following[world.num_following++] = (struct following){.queue = queue, .packet = *p};
}

static void expect_outcome(const char *outcome) {
  snprintf(world.outcome, sizeof world.outcome, "%s", outcome);
}

/* The action before this line is over: nothing may be left that the code did and the model did not. */
static void finish_action(void) {
  if (world.num_following > 0) {
    const struct following *f = &world.following[0];
    differ("the code sent kind %d, slot %u, phase %u in queue %u, the model did not", (int)kind_of(&f->packet.header),
           f->packet.header.slot, f->packet.header.phase, f->queue);
  }
  if (world.outcome[0] != '\0') differ("the code says '%s', the model nothing", world.outcome);
  check(world.done_rank == UINT32_MAX, "a worker has all its sums here, but not in the model");
  check(!world.is_blocked || world.has_closed, "the code says that a slot waits for a lost rank, the model does not");
  check(!world.has_closed || world.is_blocked || world.may_close, "a job ended, but no slot waits for a lost rank");
  world.is_blocked = world.has_closed = world.may_close = false;
}

static void follow_packet(uint32_t queue, enum kind kind, uint32_t slot, uint32_t phase, uint32_t chunk, uint32_t grant,
                          uint32_t flag, bool is_lost) {
  for (uint32_t i = 0; i < world.num_following; i++) {
    const struct following f = world.following[i];
    if (f.queue != queue || !is_named(&f.packet, kind, slot, phase, chunk)) continue;
    if (queue >= world.num_ranks && flag_of(&f.packet, queue - world.num_ranks) != flag) continue;
    if (f.packet.header.type == SML_PACKET_RESULT && f.packet.header.chunk != grant)
      differ("the code grants chunk %u, the model %u", f.packet.header.chunk, grant);
    world.following[i] = world.following[--world.num_following];
    struct queue *q = &world.queues[queue];
    if (is_lost) return;
    check(q->num < MAX_IN_FLIGHT, "more packets in flight than the model has");
    q->packets[q->num++] = f.packet;
    return;
  }
  differ("the model sends kind %d, slot %u, phase %u, chunk %u in queue %u, the code does not", (int)kind, slot, phase,
         chunk, queue);
}

static void follow_outcome(const char *outcome) {
  if (strcmp(outcome, world.outcome) != 0)
    differ("the model says '%s', the code '%s'", outcome, world.outcome[0] ? world.outcome : "nothing");
  world.outcome[0] = '\0';
}

/* ---- the aggregator ---- */

static void open_job(uint32_t epoch) {
  const struct sml_aggregator_options options = {.world_size = world.num_ranks,
                                                 .num_slots = world.num_slots,
                                                 .chunk_bytes = CHUNK_BYTES,
                                                 .first_phase = SML_FIRST_PHASE};
  check(sml_aggregator_memsize(&options) <= sizeof aggregator_memory, "the aggregator's memory is too small");
  world.aggregator = sml_aggregator_init(aggregator_memory, &options);
  memset(world.cells, 0, sizeof world.cells);
  world.epoch = epoch;
  world.is_open = true;
  world.departed = 0;
}

static void close_job(void) {
  world.is_open = false;
  world.has_closed = true;
  world.departed = 0;
  counts.closes++;
}

static void send_result(uint32_t cell, uint32_t rank, uint16_t flags) {
  struct packet p = {.sum = world.cells[cell]};
  sml_aggregator_result(world.aggregator, cell, &p.header);
  p.header.epoch = world.epoch;
  p.header.flags = flags;
  expect_packet(world.num_ranks + rank, &p);
}

static void send_pending(const struct packet *up) {
  struct packet p = {.header = up->header};
  uint64_t words[1];
  sml_aggregator_missing(world.aggregator, up->header.slot, up->header.phase, words);
  memcpy(p.missing, words, sizeof p.missing);
  p.header.type = SML_PACKET_PENDING;
  p.header.flags = 0;
  p.header.payload_bytes = 1;
  expect_packet(world.num_ranks + up->header.rank, &p);
  expect_outcome("pending");
  counts.pendings++;
}

static void add(const struct packet *p, const struct sml_decision *d) {
  struct sum *sum = &world.cells[d->cell];
  if (d->verdict == SML_VERDICT_FIRST) *sum = p->sum;
  else {
    sum->is_mixed |= sum->epoch != p->sum.epoch || sum->chunk != p->sum.chunk;
    sum->counts[p->header.rank]++;
  }
  if (d->verdict == SML_VERDICT_COMPLETE) {
    for (uint32_t rank = 0; rank < world.num_ranks; rank++)
      if ((world.departed >> rank & 1) == 0) send_result(d->cell, rank, 0);
    expect_outcome("complete");
    return;
  }
  uint64_t missing[1];
  char seen[16];
  sml_aggregator_missing(world.aggregator, p->header.slot, p->header.phase, missing);
  const uint64_t mask = ((UINT64_C(1) << world.num_ranks) - 1) & ~missing[0];
  check((d->verdict == SML_VERDICT_FIRST) == (sml_popcount_u64(mask) == 1), "FIRST is not the first contribution");
  snprintf(seen, sizeof seen, "%u", (unsigned)mask);
  expect_outcome(seen);
  world.is_blocked = d->blocked_rank != UINT32_MAX;
}

static void deliver_up(const struct packet *p) {
  if (!world.is_open || p->header.epoch != world.epoch || (world.departed >> p->header.rank & 1) != 0) {
    counts.refused++;
    expect_outcome("refused");
    return;
  }
  const struct sml_decision d = sml_aggregator_decide(world.aggregator, &p->header);
  switch (d.verdict) {
    case SML_VERDICT_DROP:
      check(d.drop == SML_DROP_STALE_PHASE || d.drop == SML_DROP_DUPLICATE, "an honest packet was dropped");
      counts.stale += d.drop == SML_DROP_STALE_PHASE;
      expect_outcome(d.drop == SML_DROP_STALE_PHASE ? "stale" : "duplicate");
      break;
    case SML_VERDICT_FIRST:
    case SML_VERDICT_ADD:
    case SML_VERDICT_COMPLETE: add(p, &d); break;
    case SML_VERDICT_REPEAT:
      send_result(d.cell, p->header.rank, SML_FLAG_RETRANSMISSION);
      expect_outcome("repeat");
      counts.repeats++;
      break;
    case SML_VERDICT_PENDING: send_pending(p); break;
    case SML_VERDICT_MISMATCH:
    case SML_VERDICT_JUMP: differ("the code accuses rank %u", p->header.rank);
  }
}

/* ---- the workers ---- */

static void flush(uint32_t rank) {
  struct member *member = &world.members[rank];
  for (;;) {
    struct sml_send send;
    sml_worker_next_send(member->worker, world.now_ns, &send);
    if (send.kind == SML_SEND_NONE) return;
    struct packet p = {.header = send.header};
    check(send.header.epoch == member->epoch && send.header.rank == rank, "a header of another epoch or rank");
    p.sum.epoch = member->epoch;
    p.sum.chunk = chunk_of(send.header.tag);
    check(send.header.chunk == p.sum.chunk, "a packet of another chunk than its tag");
    p.sum.counts[rank] = 1;
    expect_packet(rank, &p);
  }
}

static void begin(uint32_t rank, uint32_t epoch) {
  struct member *member = &world.members[rank];
  const struct sml_worker_options options = {.epoch = epoch,
                                             .rank = (uint16_t)rank,
                                             .world_size = world.num_ranks,
                                             .num_lanes = 1,
                                             .num_slots = world.num_slots,
                                             .chunk_bytes = CHUNK_BYTES,
                                             .first_phase = SML_FIRST_PHASE,
                                             .num_operations = MAX_OPERATIONS,
                                             .seed = rank};
  check(sml_worker_memsize(&options) <= sizeof worker_memory[rank], "a worker's memory is too small");
  *member = (struct member){.is_running = true, .epoch = epoch};
  member->worker = sml_worker_init(worker_memory[rank], &options);
}

static void leave(uint32_t rank) {
  struct member *member = &world.members[rank];
  uint32_t num_unfinished = 0;
  while (member->is_running && sml_worker_take_unfinished(member->worker) != NULL) num_unfinished++;
  if (member->is_running)
    check(num_unfinished == member->num_submitted - member->num_done, "operations were forgotten");
  member->is_running = false;
}

static void submit(uint32_t rank) {
  struct member *member = &world.members[rank];
  const uint32_t operation = member->num_submitted++;
  const struct sml_operation_plan plan = plan_of(operation);
  check(sml_worker_can_submit(member->worker), "no room for an operation");
  sml_worker_submit(member->worker, &plan, &member->ready[operation], member, world.now_ns);
  flush(rank);
}

static void take_sum(uint32_t rank, const struct packet *p, const struct sml_accept *a) {
  struct member *member = &world.members[rank];
  const uint32_t chunk = chunk_of(p->header.tag);
  check(is_right(&p->sum) && p->sum.epoch == member->epoch && p->sum.chunk == chunk, "a wrong sum is taken");
  check(a->chunk.is_exponent == (world.has_exponents && chunk % world.operation_chunks == 0), "wrong kind of chunk");
  if (!a->chunk.is_exponent)
    check(a->chunk.data_chunk == chunk % world.operation_chunks - world.has_exponents, "a sum goes to a wrong place");
  counts.results++;
  expect_outcome("result");
  flush(rank);
  if (a->ended == NULL || ++member->num_done < world.num_operations) return;
  world.done_rank = rank;
  check(sml_worker_next_deadline(member->worker) == SML_NEVER, "a timer is armed with nothing outstanding");
}

static void deliver_down(uint32_t rank, const struct packet *p) {
  struct member *member = &world.members[rank];
  if (!member->is_running || p->header.epoch != member->epoch) {
    counts.refused++;
    expect_outcome("refused");
    return;
  }
  const struct sml_accept a = sml_worker_on_packet(member->worker, &p->header, p->missing, world.now_ns);
  if (a.kind == SML_ACCEPT_RESULT) {
    take_sum(rank, p, &a);
  } else if (a.kind == SML_ACCEPT_PENDING) {
    expect_outcome("pending");
    flush(rank);
  } else {
    expect_outcome("drop");
  }
}

/* ---- lines ---- */

static void replay_packet(const char *line) {
  uint32_t q, fate, kind, epoch, slot, phase, chunk, grant, flag, i = 0;
  check(sscanf(line, "packet %u %u %u %u %u %u %u %u %u", &q, &fate, &kind, &epoch, &slot, &phase, &chunk, &grant,
               &flag) == 9,
        "a line that cannot be read");
  struct queue *queue = &world.queues[q];
  const bool is_down = q >= world.num_ranks;
  for (; i < queue->num; i++) {
    const struct packet *p = &queue->packets[i];
    if (p->header.epoch != epoch || !is_named(p, (enum kind)kind, slot, phase, chunk)) continue;
    if (!is_down || (flag_of(p, q - world.num_ranks) == flag && (kind == PENDING || p->header.chunk == grant))) break;
  }
  check(i < queue->num, "the model has a packet in flight that the code never sent");
  const struct packet packet = queue->packets[i];
  if (fate != 1) queue->packets[i] = queue->packets[--queue->num];
  counts.packets++;
  counts.lost += fate == 2;
  counts.repeated += fate == 1;
  if (fate == 2) return;
  if (is_down) deliver_down(q - world.num_ranks, &packet);
  else deliver_up(&packet);
}

static void replay_following(const char *line) {
  uint32_t a, kind, slot, phase, chunk, grant = 0, flag = 0, is_lost;
  char word[32];
  if (sscanf(line, "> send %u %u %u %u %u %u", &a, &kind, &slot, &phase, &chunk, &is_lost) == 6)
    follow_packet(a, (enum kind)kind, slot, phase, chunk, 0, 0, is_lost);
  else if (sscanf(line, "> answer %u %u %u %u %u %u %u %u", &a, &kind, &slot, &phase, &chunk, &grant, &flag,
                  &is_lost) == 8)
    follow_packet(world.num_ranks + a, (enum kind)kind, slot, phase, chunk, grant, flag, is_lost);
  else if (sscanf(line, "> verdict %31s", word) == 1 || sscanf(line, "> accept %31s", word) == 1) follow_outcome(word);
  else if (sscanf(line, "> open %u", &a) == 1) open_job(a);
  else if (strcmp(line, "> close\n") == 0) close_job();
  else if (sscanf(line, "> leave %u", &a) == 1) leave(a);
  else if (sscanf(line, "> done %u", &a) == 1) {
    check(world.done_rank == a, "a worker has all its sums in the model, but not here");
    world.done_rank = UINT32_MAX;
    world.members[a].is_running = false;
  } else differ("a line that cannot be read: %s", line);
}

static void start_world(const char *line) {
  uint32_t has_exponents;
  memset(&world, 0, sizeof world);
  world.done_rank = UINT32_MAX;
  check(sscanf(line, "world %u %u %u %u %u %u", &world.number, &world.num_ranks, &world.num_slots,
               &world.num_operations, &world.operation_chunks, &has_exponents) == 6,
        "a line that cannot be read");
  world.has_exponents = has_exponents;
  check(world.num_ranks <= MAX_RANKS && world.num_slots <= MAX_SLOTS && world.num_operations <= MAX_OPERATIONS,
        "a larger world than this program knows");
}

/* What the control connection says; notices as in the model: 1 lost, 2 gave up, 3 goodbye, 4 wants an epoch. */
static void hear(uint32_t rank, uint32_t notice) {
  world.may_close = true; /* for a departed rank that has slots or epochs waiting: which of them is told below */
  if (notice != 1 && notice != 3) return;
  world.departed |= 1u << rank;
  uint32_t blocking;
  sml_aggregator_note_departed(world.aggregator, rank);
  world.is_blocked = sml_aggregator_find_blocked(world.aggregator, &blocking) != UINT32_MAX;
}

/* Unasked. A result is asked for by its grant, as by a worker that lacks it; a question is worded as by
 * sml_aggregator_next_solicit(), and always answered, as one that did not cross the update. */
static void question(uint32_t rank, uint32_t cell, bool is_complete, uint32_t phase, uint32_t chunk) {
  counts.questions++;
  if (is_complete) {
    struct sml_header h;
    sml_aggregator_result(world.aggregator, cell, &h);
    check(h.phase == phase && h.tag == tag_of(chunk), "another phase or chunk is complete");
    const struct sml_header ask = {
        .type = SML_PACKET_PROBE, .flags = SML_FLAG_BY_GRANT, .rank = (uint16_t)rank, .chunk = h.chunk};
    const struct sml_decision d = sml_aggregator_decide(world.aggregator, &ask);
    check(d.verdict == SML_VERDICT_REPEAT && d.cell == cell, "a result is not found by its grant");
    send_result(cell, rank, SML_FLAG_RETRANSMISSION);
    return;
  }
  const struct packet about = {.header = {.type = SML_PACKET_PENDING,
                                          .epoch = world.epoch,
                                          .rank = (uint16_t)rank,
                                          .slot = (uint16_t)(cell / 2),
                                          .phase = phase,
                                          .tag = tag_of(chunk)}};
  send_pending(&about);
  world.outcome[0] = '\0'; /* nobody asked for it */
}

static void replay_action(const char *line) {
  uint32_t a, b, is_complete, phase, chunk;
  finish_action();
  counts.actions++;
  world.now_ns += STEP_NS;
  if (strncmp(line, "packet ", 7) == 0) replay_packet(line);
  else if (sscanf(line, "submit %u", &a) == 1) submit(a);
  else if (sscanf(line, "timer %u", &a) == 1) {
    world.now_ns += TIMER_NS;
    sml_worker_on_timer(world.members[a].worker, world.now_ns);
    flush(a);
  } else if (sscanf(line, "begin %u %u", &a, &b) == 2) begin(a, b);
  else if (sscanf(line, "hear %u %u", &a, &b) == 2) hear(a, b);
  else if (sscanf(line, "question %u %u %u %u %u", &a, &b, &is_complete, &phase, &chunk) == 5)
    question(a, b, is_complete, phase, chunk);
  else if (strcmp(line, "restart\n") == 0) world.may_close = true;
  else if (strncmp(line, "join ", 5) != 0 && strncmp(line, "refuse ", 7) != 0 && strncmp(line, "told ", 5) != 0 &&
           strncmp(line, "kill ", 5) != 0)
    differ("a line that cannot be read: %s", line);
}

int main(void) {
  char line[128];
  bool has_ended = true;
  while (fgets(line, sizeof line, stdin) != NULL) {
    counts.lines++;
    if (line[0] == '>') replay_following(line);
    else if (strncmp(line, "world ", 6) == 0) {
      check(has_ended, "a world without an end");
      has_ended = false;
      start_world(line);
    } else if (strcmp(line, "end\n") == 0) {
      finish_action();
      has_ended = true;
      counts.worlds++;
    } else if (!has_ended) replay_action(line);
    else if (strstr(line, "process") == NULL) differ("a line that cannot be read: %s", line); /* spin's last words */
  }
  check(has_ended && counts.worlds > 0, "the trace has no end");
  const struct {
    uint64_t count;
    const char *what;
  } words[] = {{counts.worlds, "worlds"},
               {counts.actions, "actions"},
               {counts.packets, "packets"},
               {counts.lost, "of them lost"},
               {counts.repeated, "repeated"},
               {counts.results, "sums"},
               {counts.repeats, "repeated results"},
               {counts.pendings, "PENDING"},
               {counts.questions, "questions"},
               {counts.stale, "stale"},
               {counts.refused, "refused"},
               {counts.closes, "jobs ended"}};
  for (size_t i = 0; i < SML_ARRAY_LEN(words); i++)
    printf("%s%llu %s", i > 0 ? ", " : "", (unsigned long long)words[i].count, words[i].what);
  putchar('\n');
  return 0;
}
