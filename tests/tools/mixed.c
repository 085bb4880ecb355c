/* SPDX-License-Identifier: Apache-2.0
 * mixed SEED OPERATIONS MOST_ELEMENTS DEPTH: a worker for tests, whose operations are drawn at random, alike on all
 * ranks: collective, type, reduction, length, equal or unequal parts, root, in place or not. DEPTH are under way.
 * It checks every element of every result. RANK, WORLD_SIZE and the library's variables are those of the environment.
 * Exit status: 0 done, 3 an error of the library, 1 a wrong result; standard error has the words. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "switchml/switchml.h"

#define MAX_RANKS 64u
#define MAX_DEPTH 64u
#define NS_PER_S UINT64_C(1000000000)
#define LOWEST (-1000) /* below every value */

enum { EXIT_WRONG = 1, EXIT_ERROR = 3 };

enum collective { ALL_REDUCE, REDUCE_SCATTER, REDUCE, ALL_GATHER, BROADCAST, BARRIER, NUM_COLLECTIVES };
static const char *const names[] = {"all-reduce", "reduce-scatter", "reduce", "all-gather", "broadcast", "barrier"};
static const sml_type types[] = {SML_FLOAT32, SML_INT32, SML_INT64, SML_UINT8};

struct operation {
  uint64_t number;
  enum collective collective;
  sml_type type;
  sml_reduction reduction;
  size_t counts[MAX_RANKS]; /* the parts */
  size_t num_elems;         /* of all ranks' parts, or of the one tensor */
  size_t first;             /* where this rank's part begins */
  uint32_t root;
  bool is_in_place;
  void *in, *out;        /* allocated; NULL: none */
  void *result;          /* where it is to be */
  sml_operation *handle; /* NULL: none is under way */
};

static uint32_t rank, world_size;
static uint64_t state; /* of the draws, alike on all ranks */

/* SplitMix64's finalizer. */
static uint64_t mix(uint64_t x) {
  x += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

static uint64_t draw(uint64_t end) {
  state = mix(state);
  return state % end;
}

/* Whole numbers that every type keeps; uint8 modulo 256. */
static int value_of(uint64_t number, uint32_t r, size_t i) {
  return (int)(mix(number * 1000003 + r * 7919 + i * UINT64_C(2654435761)) % 201) - 100;
}

static size_t size_of(sml_type type) {
  return type == SML_UINT8 ? 1 : type == SML_INT64 ? 8 : 4;
}

static void store(void *at, sml_type type, size_t i, int value) {
  switch (type) {
    case SML_FLOAT32: ((float *)at)[i] = (float)value; break;
    case SML_INT32: ((int32_t *)at)[i] = value; break;
    case SML_INT64: ((int64_t *)at)[i] = value; break;
    default: ((uint8_t *)at)[i] = (uint8_t)value; break;
  }
}

static bool holds(const void *at, sml_type type, size_t i, int value) {
  switch (type) {
    case SML_FLOAT32: return ((const float *)at)[i] == (float)value;
    case SML_INT32: return ((const int32_t *)at)[i] == value;
    case SML_INT64: return ((const int64_t *)at)[i] == value;
    default: return ((const uint8_t *)at)[i] == (uint8_t)value;
  }
}

static bool is_summed(enum collective collective) {
  return collective == ALL_REDUCE || collective == REDUCE_SCATTER || collective == REDUCE;
}

static bool has_parts(enum collective collective) {
  return collective == REDUCE_SCATTER || collective == ALL_GATHER;
}

/* Many are short, and a third about as long as may be. Parts: equal, or any, and some empty. */
static void draw_lengths(struct operation *o, size_t most_elems) {
  size_t left = (size_t)draw((most_elems >> draw(20)) + 1);
  if (draw(3) == 0) left = most_elems - (size_t)draw(most_elems / 4);
  const bool is_unequal = draw(3) == 0;
  const uint64_t seed = draw(UINT64_MAX);
  o->num_elems = has_parts(o->collective) ? 0 : left;
  for (uint32_t r = 0; r < world_size && has_parts(o->collective); r++) {
    const size_t some = mix(seed + r) % 4 == 0 ? 0 : (size_t)(mix(seed - r - 1) % (left + 1));
    o->counts[r] = is_unequal ? some : left / (world_size - r);
    left -= o->counts[r];
    if (r == rank) o->first = o->num_elems;
    o->num_elems += o->counts[r];
  }
}

static void draw_operation(struct operation *o, uint64_t number, size_t most_elems) {
  static const enum collective also[] = {REDUCE_SCATTER, ALL_GATHER}; /* more often than the others */
  const uint64_t kind = draw(2 * NUM_COLLECTIVES);
  *o = (struct operation){.number = number,
                          .collective = kind < NUM_COLLECTIVES ? (enum collective)kind : also[kind % 2]};
  o->type = is_summed(o->collective) ? types[draw(4)] : SML_UINT8;
  o->reduction = o->type != SML_FLOAT32 && o->type != SML_UINT8 && draw(3) == 0 ? SML_MAX : SML_SUM;
  draw_lengths(o, most_elems);
  o->root = (uint32_t)draw(world_size);
  o->is_in_place = draw(3) == 0;
}

static void *memory_for(size_t num_elems, sml_type type) {
  const size_t num_bytes = (num_elems + 1) * size_of(type);
  void *memory = malloc(num_bytes);
  if (memory == NULL) exit(EXIT_ERROR);
  return memset(memory, 0xee, num_bytes);
}

static void fill(const struct operation *o, void *at, size_t num_elems) {
  for (size_t i = 0; i < num_elems; i++) store(at, o->type, i, value_of(o->number, rank, i));
}

static sml_status call_summed(sml_job *job, struct operation *o) {
  const bool is_scatter = o->collective == REDUCE_SCATTER;
  o->in = memory_for(o->num_elems, o->type);
  fill(o, o->in, o->num_elems);
  if (!o->is_in_place) o->out = memory_for(is_scatter ? o->counts[rank] : o->num_elems, o->type);
  o->result = o->is_in_place ? (char *)o->in + (is_scatter ? o->first * size_of(o->type) : 0) : o->out;
  if (is_scatter)
    return sml_reduce_scatter(job, o->in, o->result, o->counts[rank], o->counts, o->type, o->reduction, NULL,
                              &o->handle);
  if (o->collective == REDUCE)
    return sml_reduce(job, o->in, o->result, o->num_elems, o->type, o->reduction, o->root, NULL, &o->handle);
  return sml_allreduce(job, o->in, o->result, o->num_elems, o->type, o->reduction, NULL, &o->handle);
}

static sml_status call_copied(sml_job *job, struct operation *o) {
  o->out = o->result = memory_for(o->num_elems, o->type);
  if (o->collective == BROADCAST) {
    if (rank == o->root) fill(o, o->out, o->num_elems);
    return sml_broadcast(job, o->out, o->num_elems, o->root, NULL, &o->handle);
  }
  if (!o->is_in_place) o->in = memory_for(o->counts[rank], o->type);
  void *own = o->is_in_place ? (char *)o->out + o->first : o->in;
  fill(o, own, o->counts[rank]);
  return sml_all_gather(job, own, o->out, o->counts[rank], o->counts, NULL, &o->handle);
}

static int say_error(const struct operation *o, sml_status status, const char *detail) {
  fprintf(stderr, "rank %u, operation %" PRIu64 ", %s of %zu: status %d: %s\n", rank, o->number, names[o->collective],
          o->num_elems, (int)status, detail);
  return EXIT_ERROR;
}

static int submit(sml_job *job, struct operation *o) {
  sml_status status;
  if (o->collective == BARRIER) status = sml_barrier(job, NULL, &o->handle);
  else status = is_summed(o->collective) ? call_summed(job, o) : call_copied(job, o);
  return status == SML_OK ? 0 : say_error(o, status, sml_error_detail());
}

/* Over all ranks. */
static int reduced(const struct operation *o, size_t i) {
  int result = o->reduction == SML_MAX ? LOWEST : 0;
  for (uint32_t r = 0; r < world_size; r++) {
    const int value = value_of(o->number, r, i);
    if (o->reduction == SML_SUM) result += value;
    else if (value > result) result = value;
  }
  return result;
}

static int check(const struct operation *o) {
  size_t num_elems = o->num_elems, first = 0, of_part = 0;
  uint32_t owner = 0;
  if (o->collective == BARRIER || (o->collective == REDUCE && rank != o->root)) return 0;
  if (o->collective == REDUCE_SCATTER) {
    num_elems = o->counts[rank];
    first = o->first;
  }
  for (size_t i = 0; i < num_elems; i++, of_part++) {
    for (; o->collective == ALL_GATHER && of_part == o->counts[owner]; owner++) of_part = 0;
    const int is = is_summed(o->collective)      ? reduced(o, first + i)
                   : o->collective == ALL_GATHER ? value_of(o->number, owner, of_part)
                                                 : value_of(o->number, o->root, i);
    if (holds(o->result, o->type, i, is)) continue;
    fprintf(stderr, "rank %u, operation %" PRIu64 ", %s of %zu, type %d: element %zu is wrong\n", rank, o->number,
            names[o->collective], o->num_elems, (int)o->type, i);
    return EXIT_WRONG;
  }
  return 0;
}

/* Waits for the operation, if one is under way, and checks it. */
static int take(struct operation *o) {
  if (o->handle == NULL) return 0;
  sml_error error = SML_ERROR_INIT;
  sml_status status = SML_IN_PROGRESS;
  while (status == SML_IN_PROGRESS) status = sml_operation_wait(o->handle, NS_PER_S);
  if (status != SML_OK) (void)sml_operation_error(o->handle, &error);
  sml_operation_release(o->handle);
  o->handle = NULL;
  const int failed = status != SML_OK ? say_error(o, status, error.detail) : check(o);
  free(o->in);
  free(o->out);
  return failed;
}

static int work(sml_job *job, uint64_t num_operations, size_t most_elems, uint32_t depth) {
  static struct operation operations[MAX_DEPTH];
  int failed = 0;
  for (uint64_t number = 0; number < num_operations && failed == 0; number++) {
    struct operation *o = &operations[number % depth];
    failed = take(o);
    draw_operation(o, number, most_elems);
    if (failed == 0) failed = submit(job, o);
    const uint64_t late = mix(number * MAX_RANKS + rank);
    const struct timespec pause = {.tv_nsec = (long)(late % 30000000)};
    if (late % 64 == 0) nanosleep(&pause, NULL); /* this rank, and not the others */
  }
  for (uint64_t i = 0; i < depth; i++) {
    const int also_failed = take(&operations[(num_operations + i) % depth]);
    if (failed == 0) failed = also_failed;
  }
  return failed;
}

static uint32_t number_from(const char *name) {
  const char *text = getenv(name);
  return text ? (uint32_t)strtoul(text, NULL, 10) : 0;
}

int main(int argc, char **argv) {
  uint64_t numbers[4] = {0};
  for (int i = 0; i < 4 && i + 1 < argc; i++) numbers[i] = strtoull(argv[i + 1], NULL, 10);
  rank = number_from("RANK");
  world_size = number_from("WORLD_SIZE");
  state = numbers[0];
  if (world_size == 0 || world_size > MAX_RANKS || numbers[2] < 4 || numbers[3] == 0 || numbers[3] > MAX_DEPTH) {
    fprintf(stderr, "usage: mixed SEED OPERATIONS MOST_ELEMENTS DEPTH, with up to %u ranks\n", MAX_RANKS);
    return 2;
  }
  sml_job_options options = SML_JOB_OPTIONS_INIT;
  sml_context *context = NULL;
  sml_job *job = NULL;
  options.rank = rank;
  options.world_size = world_size;
  if (sml_context_create(NULL, &context) != SML_OK || sml_job_create(context, &options, &job) != SML_OK) {
    fprintf(stderr, "rank %u: %s\n", rank, sml_error_detail());
    return EXIT_ERROR;
  }
  const int failed = work(job, numbers[1], (size_t)numbers[2], (uint32_t)numbers[3]);
  sml_job_destroy(job);
  sml_context_destroy(context);
  return failed;
}
