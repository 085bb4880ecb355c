/* SPDX-License-Identifier: Apache-2.0
 * Collectives other than all-reduce, by every way that an operation can go: sums have the bits of all-reduce and slice,
 * copies are exact, and whoever calls something else, or is gone, is named. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "lib/test_calls.h"
#include "lib/test_keeper.h"

#define MOST_PART_ELEMS (SML_IS_SLOW_BUILD ? 5000u : 13000u)
#define MOST_ELEMS (SML_IS_SLOW_BUILD ? 40000u : 60000u)
#define NUM_ROUNDS (SML_IS_SLOW_BUILD ? 12u : 24u)

/* op: it is there once the call has been made that gave the status. */
static sml_status finish(sml_status status, sml_operation **op) {
  if (status != SML_OK) return status;
  status = sml_operation_wait(*op, 30 * SML_NS_PER_S);
  sml_operation_release(*op);
  return status;
}

/* Elements of a rank's part in a round: equal ones, or none, few and many. */
static size_t part_of(uint32_t round, uint32_t rank) {
  static const size_t equal[] = {1, 100, 257, 9001};
  if (round % 3 == 0) return equal[round / 3 % 4];
  const uint64_t random = sml_mix64(round * 64 + rank);
  return random % 4 == 0 ? 0 : random / 4 % (round % 2 == 0 ? 30 : MOST_PART_ELEMS);
}

/* What all ranks call in a round, and this rank's place in it. */
struct round {
  size_t counts[MAX_RANKS], total, first, own, used; /* used: at most so many bytes of out, and one behind them */
  sml_type type;
  size_t elem_bytes;
  uint8_t *in, *whole, *out;
};

static void begin_round(struct rank *r, uint32_t i, struct round *round) {
  static const sml_type types[] = {SML_FLOAT32, SML_INT32, SML_BFLOAT16, SML_INT64, SML_FLOAT32};
  *round = (struct round){.type = types[i % SML_ARRAY_LEN(types)]};
  round->elem_bytes = sml_format_elem_bytes((uint32_t)round->type);
  for (uint32_t k = 0; k < r->world->num_ranks; k++) {
    round->counts[k] = part_of(i, k);
    if (k == r->rank) round->first = round->total * round->elem_bytes;
    round->total += round->counts[k];
  }
  round->own = round->counts[r->rank] * round->elem_bytes;
  round->used = 8 * round->total + MAX_RANKS + 1;
  round->in = malloc(8 * MOST_ELEMS * 3);
  round->whole = round->in + 8 * MOST_ELEMS;
  round->out = round->whole + 8 * MOST_ELEMS;
  memset(round->out, 0x5a, round->used);
  for (size_t e = 0; e < round->total; e++) {
    const uint64_t bits = sml_mix64(e * 64 + r->rank + i);
    const float value = (float)(int32_t)(bits >> 40) * 0x1p-11f;
    const uint16_t half = (uint16_t)(0x3f80 + (bits & 0x7f));
    uint8_t *at = round->in + e * round->elem_bytes;
    if (round->type == SML_FLOAT32) memcpy(at, &value, sizeof value);
    else memcpy(at, round->type == SML_BFLOAT16 ? (const void *)&half : (const void *)&bits, round->elem_bytes);
  }
}

static void scatter_sums(struct rank *r, uint32_t i, struct round *round) {
  const bool is_in_place = i % 2 == 1, is_equal = i % 3 == 0;
  sml_operation *op = NULL;
  CHECK(r, allreduce(r, round->in, round->whole, round->total, round->type, SML_SUM) == SML_OK, "%s",
        sml_error_detail());
  uint8_t *out = is_in_place ? round->in + round->first : round->out;
  const sml_status status =
      sml_reduce_scatter(r->job, round->in, out, is_equal ? round->counts[0] : 0, is_equal ? NULL : round->counts,
                         round->type, SML_SUM, NULL, &op);
  CHECK(r, finish(status, &op) == SML_OK, "%s", sml_error_detail());
  CHECK(r, memcmp(out, round->whole + round->first, round->own) == 0, "round %u", i);
  if (!is_in_place) CHECK(r, out[round->own] == 0x5a);
}

/* Not all of these sums go one way, where others do: exact ones, those in which tensors begin, and maxima. */
static void scatter_others(struct rank *r, uint32_t i, struct round *round) {
  const uint64_t starts[] = {0, round->total / 3};
  for (uint32_t what = 0; what < 3 && round->total > 300 && round->type == SML_FLOAT32; what++) {
    const sml_reduction reduction = what == 2 ? SML_MAX : SML_SUM;
    sml_operation_options o = SML_OPERATION_OPTIONS_INIT;
    sml_operation *op = NULL;
    if (what == 0) o.exact = 1;
    if (what == 1) o.starts = starts;
    if (what == 1) o.num_starts = SML_ARRAY_LEN(starts);
    sml_status status = sml_allreduce(r->job, round->in, round->whole, round->total, round->type, reduction, &o, &op);
    CHECK(r, finish(status, &op) == SML_OK, "%s", sml_error_detail());
    status = sml_reduce_scatter(r->job, round->in, round->out, 0, round->counts, round->type, reduction, &o, &op);
    CHECK(r, finish(status, &op) == SML_OK, "%s", sml_error_detail());
    CHECK(r, memcmp(round->out, round->whole + round->first, round->own) == 0, "round %u, sum %u", i, what);
  }
}

/* Parts are gathered byte by byte: of any length, and floats that no sum would leave alone. */
static void gather_parts(struct rank *r, uint32_t i, struct round *round) {
  size_t parts_bytes[MAX_RANKS], first = 0, total = 0;
  const bool is_in_place = i % 2 == 0, is_equal = i % 3 == 0;
  for (uint32_t k = 0; k < r->world->num_ranks; k++) {
    parts_bytes[k] = part_of(i, k) + i % 2;
    if (k == r->rank) first = total;
    total += parts_bytes[k];
  }
  uint8_t *own = is_in_place ? round->out + first : round->in;
  for (size_t b = 0; b < parts_bytes[r->rank]; b++) own[b] = (uint8_t)sml_mix64((first + b) * 7 + i);
  sml_operation *op = NULL;
  const sml_status status = sml_all_gather(r->job, own, round->out, is_equal ? parts_bytes[0] : 0,
                                           is_equal ? NULL : parts_bytes, NULL, &op);
  CHECK(r, finish(status, &op) == SML_OK, "%s", sml_error_detail());
  for (size_t b = 0; b < total; b++)
    CHECK(r, round->out[b] == (uint8_t)sml_mix64(b * 7 + i), "round %u, byte %zu of %zu", i, b, total);
  CHECK(r, round->out[total] == 0x5a);
}

static void to_and_from_a_root(struct rank *r, uint32_t i, struct round *round) {
  const uint32_t root = i % r->world->num_ranks;
  const size_t num_bytes = part_of(i, root) * 3 + 1;
  memset(round->out, r->rank == root ? 0x77 : 0x11, round->used);
  for (size_t b = 0; b < num_bytes && r->rank == root; b++) round->out[b] = (uint8_t)sml_mix64(b * 5 + i);
  sml_operation *op = NULL;
  sml_status status = sml_broadcast(r->job, round->out, num_bytes, root, NULL, &op);
  CHECK(r, finish(status, &op) == SML_OK, "%s", sml_error_detail());
  for (size_t b = 0; b < num_bytes; b++)
    CHECK(r, round->out[b] == (uint8_t)sml_mix64(b * 5 + i), "round %u, byte %zu", i, b);
  CHECK(r, round->out[num_bytes] == (r->rank == root ? 0x77 : 0x11));
  begin_round(r, i, round);
  CHECK(r, allreduce(r, round->in, round->whole, round->total, round->type, SML_SUM) == SML_OK);
  uint8_t *out = r->rank == root ? (i % 2 ? round->in : round->out) : NULL;
  status = sml_reduce(r->job, round->in, out, round->total, round->type, SML_SUM, root, NULL, &op);
  CHECK(r, finish(status, &op) == SML_OK, "%s", sml_error_detail());
  CHECK(r, out == NULL || memcmp(out, round->whole, round->total * round->elem_bytes) == 0, "round %u", i);
}

static void call_all(struct rank *r) {
  for (uint32_t i = 0; i < NUM_ROUNDS && r->failure[0] == 0; i++) {
    struct round round;
    begin_round(r, i, &round);
    uint8_t *memory = round.in;
    scatter_others(r, i, &round);
    if (r->failure[0] == 0) scatter_sums(r, i, &round);
    memset(round.out, 0x5a, round.used);
    if (r->failure[0] == 0) gather_parts(r, i, &round);
    free(memory);
    round.in = NULL;
    begin_round(r, i, &round);
    memory = round.in;
    if (r->failure[0] == 0) to_and_from_a_root(r, i, &round);
    if (round.in != memory) free(round.in);
    free(memory);
    sml_operation *op = NULL;
    if (r->failure[0] == 0) CHECK(r, finish(sml_barrier(r->job, NULL, &op), &op) == SML_OK, "%s", sml_error_detail());
  }
}

/* Several under way at once, some of them in a batch, some released before they end. */
static void call_at_once(struct rank *r) {
  enum { NUM = 12 };
  static int32_t in[MAX_RANKS][NUM][64], out[MAX_RANKS][NUM][64];
  const uint32_t n = r->world->num_ranks;
  sml_operation *ops[NUM];
  CHECK(r, sml_batch_begin(r->job) == SML_OK);
  for (uint32_t k = 0; k < NUM; k++) {
    sml_operation *barrier;
    for (uint32_t e = 0; e < 8 * n; e++) in[r->rank][k][e] = (int32_t)(r->rank + 1 + k * 100 + e);
    CHECK(r, sml_reduce_scatter(r->job, in[r->rank][k], out[r->rank][k], 8, NULL, SML_INT32, SML_SUM, NULL, &ops[k]) ==
                 SML_OK, "%s", sml_error_detail());
    CHECK(r, sml_barrier(r->job, NULL, &barrier) == SML_OK);
    sml_operation_release(barrier);
    if (k == NUM / 2) CHECK(r, sml_batch_end(r->job) == SML_OK);
  }
  for (uint32_t k = 0; k < NUM; k++) {
    CHECK(r, finish(SML_OK, &ops[k]) == SML_OK, "%s", sml_error_detail());
    for (uint32_t e = 0; e < 8; e++) {
      const uint32_t expected = n * (n + 1) / 2 + n * (k * 100 + 8 * r->rank + e);
      CHECK(r, out[r->rank][k][e] == (int32_t)expected, "%u: %d", k, out[r->rank][k][e]);
    }
  }
}

static void by_every_way(void **state) {
  (void)state;
  struct way {
    uint32_t num_ranks;
    const char *hosts;
    bool is_network, is_embedded, is_checked, is_one_way;
    uint32_t num_aggds, packet_lanes;
    uint64_t retry_ns;
  };
  static const struct way ways[] = {{.num_ranks = 3, .is_network = true},
                                    {.num_ranks = 3},
                                    {.num_ranks = 4, .hosts = "0011"},
                                    {.num_ranks = 3, .is_network = true, .is_embedded = true},
                                    {.num_ranks = 2, .is_network = true, .is_checked = true},
                                    {.num_ranks = 4, .is_network = true, .num_aggds = 2},
                                    {.num_ranks = 2, .is_network = true, .retry_ns = SML_NS_PER_S},
                                    {.num_ranks = 3, .is_network = true, .packet_lanes = 32},
                                    {.num_ranks = 3, .is_network = true, .is_one_way = true},
                                    {.num_ranks = 4, .is_network = true, .is_one_way = true, .num_aggds = 2},
                                    {.num_ranks = 3, .is_network = true, .is_one_way = true, .is_embedded = true},
                                    {.num_ranks = 4, .hosts = "0011", .is_one_way = true},
                                    {.num_ranks = 2, .is_network = true, .is_one_way = true, .is_checked = true},
                                    {.num_ranks = 2, .is_network = true, .is_one_way = true, .retry_ns = SML_NS_PER_S},
                                    {.num_ranks = 3, .is_network = true, .is_one_way = true, .packet_lanes = 32},
                                    {.num_ranks = 1}};
  for (size_t i = 0; i < SML_ARRAY_LEN(ways); i++) {
    struct world w;
    world_init(&w, ways[i].num_ranks);
    w.job_options.lease_ns = PATIENT_LEASE_NS;
    w.job_options.no_shared_memory = ways[i].is_network;
    w.job_options.check = ways[i].is_checked ? 1 : 2;
    w.job_options.retry_ns = ways[i].retry_ns;
    if (!ways[i].is_one_way) setenv("SWITCHML_ONE_WAY", "0", 1);
    w.job_options.num_slots = ways[i].is_one_way ? 8 : 0; /* then few chunks are worth it */
    w.hosts = ways[i].hosts;
    w.num_aggds = ways[i].num_aggds;
    w.is_embedded = ways[i].is_embedded;
    w.aggd_options.packet_lanes = ways[i].packet_lanes;
    if (w.is_embedded) world_join(&w);
    else world_start(&w);
    if (ways[i].hosts == NULL) /* else the environment decides, too */
      assert_int_equal(sml_job_lanes_go_one_way(&w.ranks[0].job->lanes),
                       ways[i].is_one_way && !ways[i].is_checked && ways[i].retry_ns == 0 && ways[i].packet_lanes == 0);
    world_run(&w, call_all);
    world_run(&w, call_at_once);
    world_stop(&w);
    unsetenv("SWITCHML_ONE_WAY");
  }
}

/* ---- what goes up and down ---- */

#define PART_ELEMS 30000u

static sml_status call_counted(struct rank *r, bool is_sum, uint8_t *in, uint8_t *out) {
  sml_operation *op = NULL;
  if (is_sum) return finish(sml_reduce_scatter(r->job, in, out, PART_ELEMS, NULL, SML_INT32, SML_SUM, NULL, &op), &op);
  return finish(sml_all_gather(r->job, in, out, 4 * PART_ELEMS, NULL, NULL, &op), &op);
}

/* An engine tells after its pass: when it has no more to tell. */
static void read_stats(struct rank *r, sml_stats *stats) {
  uint64_t before;
  *stats = (sml_stats)SML_STATS_INIT;
  do {
    before = stats->rx_packets;
    nanosleep(&(struct timespec){.tv_nsec = 20 * 1000000}, NULL);
    CHECK(r, sml_job_stats(r->job, stats) == SML_OK);
  } while (stats->rx_packets != before);
}

/* A reduce-scatter of S bytes takes (n-1)/n S up and S/n down, an all-gather the other way round. A fence for W/4 - 1
 * chunks goes both ways. Beyond that there is only what was sent again, and PENDING where others asked. */
static void count_bytes(struct rank *r) {
  const uint32_t n = r->world->num_ranks;
  uint8_t *in = calloc(2 * n, 4 * PART_ELEMS), *out = in + (size_t)n * 4 * PART_ELEMS;
  for (uint32_t is_sum = 0; is_sum < 2; is_sum++) {
    sml_stats before, after;
    read_stats(r, &before);
    CHECK(r, call_counted(r, is_sum != 0, in, out) == SML_OK, "%s", sml_error_detail());
    read_stats(r, &after);
    const uint64_t part_chunks = sml_div_ceil(4 * PART_ELEMS, after.chunk_bytes);
    const uint64_t num_fences = sml_div_ceil(n * part_chunks, after.num_slots / 4 - 1);
    const uint64_t one = 4 * PART_ELEMS + part_chunks * 32, others = (n - 1) * one, fences = num_fences * 33;
    const uint64_t again = after.probes + after.retransmissions - before.probes - before.retransmissions;
    const uint64_t tx_bytes = after.tx_bytes - before.tx_bytes, rx_bytes = after.rx_bytes - before.rx_bytes;
    const uint64_t late = after.needless_repeats - before.needless_repeats; /* perhaps asked for in the call before */
    const uint64_t most = (again + late) * (after.chunk_bytes + 32);
    const uint64_t up = fences + (is_sum ? others : one), down = fences + (is_sum ? one : others);
    const uint64_t rx_packets = after.rx_packets - before.rx_packets;
    const uint64_t down_packets = num_fences + part_chunks * (is_sum ? 1 : n - 1);
    CHECK(r, tx_bytes >= up && tx_bytes <= up + most, "%u ranks: %llu bytes up instead of %llu", n,
          (unsigned long long)tx_bytes, (unsigned long long)up);
    CHECK(r, rx_bytes >= down && rx_bytes <= down + most + 33 * (rx_packets - down_packets),
          "%u ranks: %llu bytes down instead of %llu", n, (unsigned long long)rx_bytes, (unsigned long long)down);
  }
  free(in);
}

static void no_more_bytes_than_needed(void **state) {
  (void)state;
  for (uint32_t n = 4; n <= 8; n += 4) {
    struct world w;
    world_init(&w, n);
    w.job_options.lease_ns = PATIENT_LEASE_NS;
    w.job_options.no_shared_memory = 1;
    w.job_options.check = 2;
    w.job_options.num_slots = 64;
    w.job_options.max_datagram_bytes = 1472;
    world_start(&w);
    world_run(&w, count_bytes);
    world_stop(&w);
  }
}

/* ---- wrong calls ---- */

static void refuse(struct rank *r) {
  int32_t x[64] = {0};
  const size_t counts[2] = {SIZE_MAX / 16, SIZE_MAX / 16};
  sml_operation *op;
  sml_job *job = r->job;
  const size_t place = 8 * r->rank;
  CHECK(r, sml_barrier(NULL, NULL, &op) == SML_ERR_INVALID_ARGUMENT);
  CHECK(r, sml_barrier(job, NULL, NULL) == SML_ERR_INVALID_ARGUMENT);
  CHECK(r, sml_broadcast(job, x, 4, 2, NULL, &op) == SML_ERR_INVALID_ARGUMENT);
  CHECK(r, strstr(sml_error_detail(), "root is 2") != NULL);
  CHECK(r, sml_broadcast(job, NULL, 4, 0, NULL, &op) == SML_ERR_INVALID_ARGUMENT);
  CHECK(r, sml_broadcast(job, x, SIZE_MAX, 0, NULL, &op) == SML_ERR_INVALID_ARGUMENT);
  CHECK(r, strstr(sml_error_detail(), "no buffer is that large") != NULL);
  CHECK(r, sml_reduce(job, x, x, 4, SML_INT32, SML_AVG, 0, NULL, &op) == SML_ERR_UNSUPPORTED);
  CHECK(r, sml_reduce(job, x, x, 4, (sml_type)99, SML_SUM, 0, NULL, &op) == SML_ERR_INVALID_ARGUMENT);
  CHECK(r, sml_reduce(job, x, x, SIZE_MAX, SML_INT32, SML_SUM, 0, NULL, &op) == SML_ERR_INVALID_ARGUMENT);
  CHECK(r, sml_reduce_scatter(job, x, x + place + 1, 8, NULL, SML_INT32, SML_SUM, NULL, &op) ==
               SML_ERR_INVALID_ARGUMENT);
  CHECK(r, strstr(sml_error_detail(), "overlap") != NULL);
  CHECK(r, sml_reduce_scatter(job, x, NULL, 8, NULL, SML_INT32, SML_SUM, NULL, &op) == SML_ERR_INVALID_ARGUMENT);
  CHECK(r, sml_reduce_scatter(job, x, x + 32, 0, counts, SML_INT32, SML_SUM, NULL, &op) == SML_ERR_INVALID_ARGUMENT);
  CHECK(r, sml_all_gather(job, x + place + 1, x, 32, NULL, NULL, &op) == SML_ERR_INVALID_ARGUMENT);
  CHECK(r, sml_all_gather(job, NULL, x, 32, NULL, NULL, &op) == SML_ERR_INVALID_ARGUMENT);
  CHECK(r, op == NULL);
  CHECK(r, finish(sml_all_gather(job, NULL, NULL, 0, NULL, NULL, &op), &op) == SML_OK);
  CHECK(r, finish(sml_barrier(job, NULL, &op), &op) == SML_OK);
}

static void wrong_arguments(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  world_start(&w);
  world_run(&w, refuse);
  world_stop(&w);
}

static uint32_t mistake;
static void expect_mismatch(struct rank *r, sml_status status) {
  sml_error error;
  CHECK(r, status == SML_ERR_MISMATCH, "mistake %u: %d", mistake, status);
  check_failed(r, SML_ERR_MISMATCH, &error);
  CHECK(r, is_named(&error, 0) && is_named(&error, 1), "%s", error.detail);
}

/* Rank 1 means something else by it: as all-reduces these two would be alike. */
static void differ(struct rank *r) {
  static int32_t data[MAX_RANKS][64];
  static const size_t counts[2][2] = {{8, 8}, {4, 12}};
  int32_t *x = data[r->rank];
  sml_operation *op = NULL;
  sml_status status;
  if (mistake == 0) status = sml_broadcast(r->job, x, 64, r->rank, NULL, &op);
  else if (mistake == 1) status = sml_reduce(r->job, x, x, 16, SML_INT32, SML_SUM, r->rank, NULL, &op);
  else if (mistake == 2)
    status = sml_reduce_scatter(r->job, x, x + 32, 0, counts[r->rank], SML_INT32, SML_SUM, NULL, &op);
  else if (mistake == 3) status = sml_broadcast(r->job, x, 61 + r->rank, 0, NULL, &op);
  else if (mistake == 4) status = sml_broadcast(r->job, x, 63 + r->rank, 0, NULL, &op);
  else if (r->rank == 1) status = sml_barrier(r->job, NULL, &op);
  else status = sml_allreduce(r->job, x, x, 1, SML_INT32, SML_SUM, NULL, &op);
  expect_mismatch(r, finish(status, &op));
}

static void calls_that_differ(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 12; i++) {
    struct world w;
    world_init(&w, 2);
    mistake = i % 6;
    w.job_options.no_shared_memory = i < 6;
    world_start(&w);
    world_run(&w, differ);
    world_stop(&w);
  }
}

/* What rank 0 calls goes another way than what rank 1 calls, so no slot compares them; the heartbeats do. */
static void differ_in_way(struct rank *r) {
  static int32_t data[MAX_RANKS][3][1 << 16];
  int32_t *x = data[r->rank][0], *y = data[r->rank][1];
  const size_t count = SML_ARRAY_LEN(data[0][0]);
  sml_operation *op = NULL;
  sml_status status;
  if (r->rank == 1) status = sml_all_gather(r->job, x, y, sizeof data[0][0], NULL, NULL, &op);
  else if (mistake == 0) status = sml_reduce_scatter(r->job, x, y, count / 2, NULL, SML_INT32, SML_SUM, NULL, &op);
  else if (mistake == 1) status = sml_allreduce(r->job, x, x, count, SML_INT32, SML_SUM, NULL, &op);
  else status = sml_all_gather(r->job, x, y, 8, NULL, NULL, &op); /* small: as an all-reduce */
  expect_mismatch(r, finish(status, &op));
}

static void calls_that_go_different_ways(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 6; i++) {
    struct world w;
    world_init(&w, 2);
    mistake = i % 3;
    w.num_aggds = i < 3 ? 1 : 2;
    w.job_options.no_shared_memory = 1;
    w.job_options.num_slots = 8;
    world_start(&w);
    world_run(&w, differ_in_way);
    world_stop(&w);
  }
}

/* ---- an aggregator that is killed ---- */

static struct keeper keeper;

static void call_on(struct rank *r) {
  if (r->rank == 0) {
    keeper_signal(&keeper, SIGKILL);
    keeper_start_again(&keeper);
  }
  call_all(r);
}

static void same_bits_after_a_retry(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 3);
  w.job_options.no_shared_memory = 1;
  w.job_options.retry_ns = 20 * SML_NS_PER_S;
  keeper_start(&keeper, &w.aggd_options);
  memcpy(w.address, keeper.address, sizeof w.address);
  world_join(&w);
  world_run(&w, call_all);
  world_run(&w, call_on);
  world_stop(&w);
  keeper_stop(&keeper);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(same_bits_after_a_retry), /* first: it forks */
      cmocka_unit_test(by_every_way),
      cmocka_unit_test(no_more_bytes_than_needed),
      cmocka_unit_test(wrong_arguments),
      cmocka_unit_test(calls_that_differ),
      cmocka_unit_test(calls_that_go_different_ways),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
