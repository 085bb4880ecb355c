/* SPDX-License-Identifier: Apache-2.0
 * Seeded worlds of ranks that embed the aggregation themselves: 5 to 8 of them, whose updates of floats are
 * narrow, on a network that loses, repeats, reorders, damages; in some of them a rank is killed, and its
 * shard with it. Sums are right bit for bit on every rank, or the lost rank is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "sim/kernel.h"
#include "sim/reference.h"
#include "switchml/switchml.h"

#define MAX_RANKS 8u
#define MAX_OPS 6u
#define MAX_WORDS 24000u
#define MAX_GATHERS 12u
#define MAX_RECORD_BYTES 512u
#define FIRST_IPV4 0x0a000001u
#define NEWS_NS (12 * SML_NS_PER_S) /* leases, and the time that a shard waits for ranks that lack a result */
#define TYPE_UPDATE 1u
#define FLAG_NARROW 128u

struct op {
  struct sim_tensor tensor;
  uint32_t num_words;
  bool is_average;
};

struct world;
struct rank {
  struct world *world;
  uint32_t rank, num_gathers;
  struct sim_process *process;
  sml_status status; /* of the first that was not right */
  sml_error error;
  uint64_t ended_ns;
  uint32_t num_right;
};
struct world {
  uint64_t seed;
  uint32_t num_ranks, num_ops, max_datagram_bytes, num_created;
  struct op ops[MAX_OPS];
  struct rank ranks[MAX_RANKS];
  struct {
    uint64_t present;
    uint8_t records[MAX_RANKS][MAX_RECORD_BYTES];
  } gathers[MAX_GATHERS];
  struct sim_timer kill;
  uint32_t victim; /* MAX_RANKS: none */
  uint64_t kill_after_ns, killed_ns;
  uint32_t chunk_bytes;
  uint64_t num_narrow, num_wide; /* updates on the wire */
  char failure[300];             /* the first */
};

static void note(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note(struct world *w, const char *format, ...) {
  va_list arguments;
  if (w->failure[0] != 0) return;
  va_start(arguments, format);
  vsnprintf(w->failure, sizeof w->failure, format, arguments);
  va_end(arguments);
}

/* ---- a rank ---- */

static int gather(void *user, const void *in, void *out, size_t num_bytes) {
  struct rank *r = user;
  struct world *w = r->world;
  SML_ASSERT(r->num_gathers < MAX_GATHERS && num_bytes <= MAX_RECORD_BYTES);
  const uint32_t number = r->num_gathers++;
  memcpy(w->gathers[number].records[r->rank], in, num_bytes);
  w->gathers[number].present |= UINT64_C(1) << r->rank;
  while (w->gathers[number].present != (UINT64_C(1) << w->num_ranks) - 1) sim_sleep_ns(SML_NS_PER_MS);
  for (uint32_t rank = 0; rank < w->num_ranks; rank++)
    memcpy((uint8_t *)out + rank * num_bytes, w->gathers[number].records[rank], num_bytes);
  return 0;
}

static void fire_kill(struct sim_timer *timer) {
  struct world *w = (struct world *)(void *)((uint8_t *)timer - offsetof(struct world, kill));
  w->killed_ns = sim_now_ns();
  sim_kill(w->ranks[w->victim].process);
}

static sml_status join(struct rank *r, sml_context **context, sml_job **job) {
  struct world *w = r->world;
  sml_context_options of_context = SML_CONTEXT_OPTIONS_INIT;
  of_context.num_threads = 1 + (uint32_t)w->seed % 2;
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  o.rank = r->rank;
  o.world_size = w->num_ranks;
  o.allgather = gather;
  o.allgather_user = r;
  o.max_datagram_bytes = w->max_datagram_bytes;
  o.lease_ns = SML_NS_PER_S;
  o.check = 2;
  sml_status status = sml_context_create(&of_context, context);
  if (status == SML_OK) status = sml_job_create(*context, &o, job);
  if (status != SML_OK) {
    note(w, "rank %u does not join: %s", r->rank, sml_error_detail());
    return status;
  }
  sml_stats stats = SML_STATS_INIT;
  (void)sml_job_stats(*job, &stats);
  w->chunk_bytes = stats.chunk_bytes;
  if (++w->num_created == w->num_ranks && w->victim < MAX_RANKS)
    sim_timer_set(&w->kill, sim_now_ns() + w->kill_after_ns);
  return SML_OK;
}

static sml_type type_of(enum sim_elem elem) {
  static const sml_type types[] = {[SIM_INT32] = SML_INT32,
                                   [SIM_FLOAT32] = SML_FLOAT32,
                                   [SIM_INT64] = SML_INT64,
                                   [SIM_FLOAT16] = SML_FLOAT16,
                                   [SIM_BFLOAT16] = SML_BFLOAT16};
  return types[elem];
}

static sml_status submit(sml_job *job, const struct rank *r, const struct op *op, uint32_t *words,
                         sml_operation **out) {
  const enum sim_elem elem = op->tensor.elem;
  sim_tensor_fill(&op->tensor, r->rank, 0, op->num_words, words);
  const uint64_t num_elems = elem == SIM_INT64                             ? op->num_words / 2
                             : elem == SIM_FLOAT16 || elem == SIM_BFLOAT16 ? 2 * op->num_words
                                                                           : op->num_words;
  return sml_allreduce(job, words, words, num_elems, type_of(elem), op->is_average ? SML_AVG : SML_SUM, NULL, out);
}

static void check(struct rank *r, uint32_t number, const uint32_t *got) {
  static uint32_t expected[MAX_WORDS], scratch[MAX_RANKS * SIM_BLOCK_WORDS];
  struct world *w = r->world;
  const struct op *op = &w->ops[number];
  const struct sim_sum sum = {
      .tensor = op->tensor, .count = op->num_words, .world_size = w->num_ranks, .is_average = op->is_average};
  sim_sum_make(&sum, expected, scratch);
  r->num_right++;
  for (uint32_t i = 0; i < op->num_words; i++)
    if (got[i] != expected[i])
      note(w, "operation %u (type %u, kind %u, %u words) is wrong at rank %u: word %u is %08x, must be %08x", number,
           op->tensor.elem, op->tensor.kind, op->num_words, r->rank, i, got[i], expected[i]);
}

static int run_rank(void *argument) {
  struct rank *r = argument;
  struct world *w = r->world;
  sml_context *context = NULL;
  sml_job *job = NULL;
  sml_operation *operations[MAX_OPS] = {NULL};
  uint32_t *words = malloc(MAX_OPS * MAX_WORDS * sizeof *words);
  SML_ASSERT(words != NULL);
  r->status = join(r, &context, &job);
  uint32_t num_submitted = 0;
  for (; r->status == SML_OK && num_submitted < w->num_ops; num_submitted++) {
    r->status = submit(job, r, &w->ops[num_submitted], words + num_submitted * MAX_WORDS, &operations[num_submitted]);
    if (r->status != SML_OK) sml_job_error(job, &r->error);
    sim_sleep_ns((w->seed + num_submitted * 7 + r->rank) % 5 * SML_NS_PER_MS);
  }
  for (uint32_t i = 0; i < num_submitted && operations[i] != NULL; i++) {
    sml_status status;
    while ((status = sml_operation_wait(operations[i], SML_NS_PER_S)) == SML_IN_PROGRESS) continue;
    if (status == SML_OK) check(r, i, words + i * MAX_WORDS);
    else if (r->num_right == i) sml_operation_error(operations[i], &r->error);
    if (r->status == SML_OK) r->status = status;
    sml_operation_release(operations[i]);
  }
  r->ended_ns = sim_now_ns();
  sml_job_destroy(job);
  sml_context_destroy(context);
  free(words);
  return 0;
}

/* ---- worlds ---- */

static enum sim_fate on_sent(void *user, const struct sim_datagram *d) {
  struct world *w = user;
  if (d->num_bytes < 32 || d->data[0] != (0x10 | TYPE_UPDATE) || d->data[1] != 0) return SIM_FATE_DRAWN;
  const bool is_narrow = (sml_load_be16(d->data + 14) & FLAG_NARROW) != 0;
  const uint32_t payload_bytes = sml_load_be16(d->data + 10);
  w->num_narrow += is_narrow;
  w->num_wide += !is_narrow;
  if (is_narrow && (payload_bytes % 28 != 0 || payload_bytes > w->chunk_bytes / 8 * 7))
    note(w, "a narrow update of %u bytes in chunks of %u", payload_bytes, w->chunk_bytes);
  return SIM_FATE_DRAWN;
}

/* Floats of 32 bits mostly: the last chunk has any number of lanes, so some of it is not narrow. */
static void draw_ops(struct world *w, struct sml_prng *p) {
  static const uint8_t elems[] = {SIM_FLOAT32, SIM_FLOAT32, SIM_FLOAT32, SIM_FLOAT32, SIM_FLOAT32,
                                  SIM_INT32,   SIM_INT64,   SIM_FLOAT16, SIM_BFLOAT16};
  w->num_ops = 3 + (uint32_t)sml_prng_below(p, MAX_OPS - 2);
  for (uint32_t i = 0; i < w->num_ops; i++) {
    struct op *op = &w->ops[i];
    const uint32_t most = i == 0 ? MAX_WORDS : i % 3 == 0 ? 700 : MAX_WORDS / 4;
    op->num_words = most / 2 + 2 * (uint32_t)sml_prng_below(p, most / 4 + 1);
    op->tensor = (struct sim_tensor){.seed = sml_prng_next(p),
                                     .kind = i == 0 ? SIM_DATA_PLAIN : (uint8_t)sml_prng_below(p, SIM_NUM_DATA_KINDS),
                                     .elem = i == 0 ? SIM_FLOAT32 : elems[sml_prng_below(p, sizeof elems)]};
    const bool is_integer = op->tensor.elem == SIM_INT32 || op->tensor.elem == SIM_INT64;
    if (!is_integer && op->num_words > 2) op->num_words -= (uint32_t)sml_prng_below(p, 2);
    op->is_average = !is_integer && sml_prng_chance(p, 0.3);
  }
}

static struct sim_link draw_link(struct sml_prng *p) {
  struct sim_link link = {.bits_per_s = UINT64_C(1000000000) << sml_prng_below(p, 4),
                          .delay_ns = (1 + sml_prng_below(p, 100)) * 2000,
                          .queue_bytes = 1 << 20};
  if (sml_prng_chance(p, 0.8)) link.faults.loss = 0.02 * (double)(1 + sml_prng_below(p, 4));
  if (sml_prng_chance(p, 0.3)) link.faults.burst_loss = 0.001;
  if (sml_prng_chance(p, 0.6)) link.faults.duplicate = 0.1;
  if (sml_prng_chance(p, 0.6)) link.faults.reorder = 0.1;
  if (sml_prng_chance(p, 0.3)) link.faults.corrupt = 0.01;
  if (sml_prng_chance(p, 0.3)) link.faults.truncate = 0.01;
  link.faults.reorder_ns = SML_NS_PER_MS << sml_prng_below(p, 6);
  return link;
}

static bool are_ranks_done(void *user) {
  const struct world *w = user;
  for (uint32_t r = 0; r < w->num_ranks; r++)
    if (sim_process_state(w->ranks[r].process) == SIM_RUNNING) return false;
  return true;
}

static void print_line(void *user, const char *line) {
  (void)user;
  printf("# %s\n", line);
}

static void begin_world(struct world *w, uint64_t seed, uint32_t num_ranks, bool has_kill) {
  static const uint32_t sizes[] = {0, 400, 700, 1472, 8960};
  struct sml_prng p = {sml_mix64(seed + 0x4057)};
  *w = (struct world){.seed = seed, .num_ranks = num_ranks, .victim = MAX_RANKS};
  w->max_datagram_bytes = sizes[sml_prng_below(&p, SML_ARRAY_LEN(sizes))];
  draw_ops(w, &p);
  const struct sim_link link = draw_link(&p);
  if (has_kill) {
    w->victim = (uint32_t)sml_prng_below(&p, num_ranks);
    w->kill_after_ns = sml_prng_below(&p, 8 * SML_NS_PER_MS) + 1;
  }
  w->kill.fire = fire_kill;
  struct sim_options options = {.seed = seed};
  if (getenv("SIM_TRACE") != NULL) options.trace = print_line;
  sim_begin(&options);
  sim_set_monitor(&(struct sim_monitor){.on_sent = on_sent, .user = w});
  for (uint32_t r = 0; r < num_ranks; r++) {
    char name[32];
    snprintf(name, sizeof name, "rank-%u", r);
    const struct sim_host_options host = {
        .name = name, .ipv4 = FIRST_IPV4 + r, .up = link, .down = link, .mtu_bytes = 9000};
    w->ranks[r] = (struct rank){.world = w, .rank = r, .status = SML_IN_PROGRESS, .error = SML_ERROR_INIT};
    w->ranks[r].process = sim_spawn(sim_host_add(&host), name, run_rank, &w->ranks[r], NULL);
    sim_process_set_clock(w->ranks[r].process, (r + 1) * SML_NS_PER_S, (int32_t)(r % 3) * 50000 - 50000);
  }
}

/* What the survivors of a killed rank may see: everything is right, or this rank was lost, soon. */
static void check_survivor(struct world *w, const struct rank *r) {
  if (r->status == SML_OK) return;
  if (r->status != SML_ERR_RANK_LOST || r->error.num_ranks != 1 || r->error.ranks[0] != w->victim)
    note(w, "rank %u got %s (%s) when rank %u was killed", r->rank, sml_status_string(r->status), r->error.detail,
         w->victim);
  if (r->ended_ns > w->killed_ns + NEWS_NS)
    note(w, "rank %u heard of it %.1f s later", r->rank, (double)(r->ended_ns - w->killed_ns) / 1e9);
}

static void check_rank(struct world *w, const struct rank *r) {
  struct sim_usage leaks;
  if (r->rank == w->victim && w->killed_ns != 0) return;
  if (w->killed_ns != 0) check_survivor(w, r);
  else if (r->status != SML_OK || r->num_right != w->num_ops)
    note(w, "rank %u got %s (%s)", r->rank, sml_status_string(r->status), r->error.detail);
  sim_process_leaks(r->process, &leaks);
  if (leaks.num_allocations + leaks.num_descriptors + leaks.num_data_sockets + leaks.num_threads != 0)
    note(w, "rank %u leaks %llu blocks, %u descriptors, %u threads", r->rank, (unsigned long long)leaks.num_allocations,
         leaks.num_descriptors, leaks.num_threads);
}

static struct world world;
static uint64_t counts[SIM_NUM_COUNTS]; /* of all worlds so far */
static bool is_soak;                    /* goes on after one that is wrong */

/* The run's digest. */
static uint64_t run_world(struct world *w, uint64_t seed, uint32_t num_ranks, bool has_kill) {
  begin_world(w, seed, num_ranks, has_kill);
  if (sim_run_until(600 * SML_NS_PER_S, are_ranks_done, w) != SIM_REACHED_GOAL) note(w, "it stands still");
  for (uint32_t r = 0; r < num_ranks && w->failure[0] == 0; r++) check_rank(w, &w->ranks[r]);
  const uint64_t digest = sim_digest();
  for (uint32_t i = 0; i < SIM_NUM_COUNTS; i++) counts[i] += sim_count((enum sim_count)i);
  sim_end();
  if (w->failure[0] != 0 && !is_soak)
    fail_msg("seed %llu, %u ranks: %s", (unsigned long long)seed, num_ranks, w->failure);
  return digest;
}

static void test_narrow_sums_over_bad_networks(void **state) {
  (void)state;
  uint64_t digests[2];
  for (uint64_t seed = 1; seed <= 16; seed++) {
    (void)run_world(&world, seed, 5 + (uint32_t)seed % 4, false);
    assert_true(world.num_narrow > 0 && world.chunk_bytes % 32 == 0);
  }
  for (uint32_t i = 0; i < 2; i++) digests[i] = run_world(&world, 17, 6, false);
  assert_int_equal(digests[0], digests[1]);
  for (uint32_t what = SIM_LOST; what <= SIM_TRUNCATED; what++) assert_true(counts[what] > 0);
}

static void test_a_killed_rank_is_named(void **state) {
  (void)state;
  uint32_t num_losses = 0;
  for (uint64_t seed = 100; seed < 112; seed++) {
    (void)run_world(&world, seed, 5 + (uint32_t)seed % 4, true);
    assert_true(world.killed_ns != 0);
    for (uint32_t r = 0; r < world.num_ranks; r++) num_losses += world.ranks[r].status == SML_ERR_RANK_LOST;
  }
  assert_true(num_losses > 20); /* they were not all killed when all was done */
}

static void test_few_ranks_are_not_narrow(void **state) {
  (void)state;
  for (uint64_t seed = 200; seed < 203; seed++) {
    (void)run_world(&world, seed, 2 + (uint32_t)seed % 3, false);
    assert_true(world.num_narrow == 0 && world.num_wide > 0);
  }
}

/* sim_embedded_test FIRST COUNT: more worlds, with and without a kill. */
static int run_many(uint64_t first, uint64_t count) {
  int status = 0;
  is_soak = true;
  for (uint64_t seed = first; seed < first + count; seed++) {
    (void)run_world(&world, seed, 2 + (uint32_t)seed % (MAX_RANKS - 1), seed % 2 == 0);
    if (world.failure[0] == 0) continue;
    printf("seed %llu: %s\n", (unsigned long long)seed, world.failure);
    status = 1;
  }
  for (uint32_t i = 0; i < SIM_NUM_COUNTS; i++)
    if (counts[i] > 0) printf("%s=%llu ", sim_count_name((enum sim_count)i), (unsigned long long)counts[i]);
  puts("");
  return status;
}

int main(int argc, char **argv) {
  if (argc == 3) return run_many(strtoull(argv[1], NULL, 10), strtoull(argv[2], NULL, 10));
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_narrow_sums_over_bad_networks),
                                     cmocka_unit_test(test_a_killed_rank_is_named),
                                     cmocka_unit_test(test_few_ranks_are_not_narrow)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
