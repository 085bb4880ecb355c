/* SPDX-License-Identifier: Apache-2.0
 * What the programs share that replay a plan of `switchml bench training --plan` with another library. One thread
 * waits as a GPU would compute, and lets sends get ready; others take them in their order, sum them, and say so. C and
 * C++. */
#pragma once

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

#define REPLAY_OFFSETS 64u /* as in src/cli/training/replay.c: values, and where the input of a send begins */
#define REPLAY_VALUES 1000u

struct replay_section { /* of the forward pass: waits for so many of the sends */
  unsigned num_needed;
  int64_t time_ns;
};
enum { REPLAY_ALL_REDUCE, REPLAY_GATHER, REPLAY_SCATTER };
struct replay_send {
  int64_t ready_ns, first_elem, num_elems;
  unsigned call;
};
enum { REPLAY_COMPUTE, REPLAY_CALL, REPLAY_WAIT };
struct replay_step { /* of sharded training */
  unsigned act;
  int64_t number; /* ns, or a send */
};
struct replay {
  unsigned num_sections, num_sends, num_iters; /* iterations with those that are not timed */
  int64_t num_elems, backward_ns;
  struct replay_section *sections;
  struct replay_send *sends;
  unsigned num_steps; /* of sharded training, else 0 */
  struct replay_step *steps;
  float *in, *out, *own; /* own: this rank's parts of what is scattered */
  int rank, world_size;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int64_t num_ready, num_taken, num_done; /* sends since the start; all below num_done are summed */
  unsigned char *is_done;
  int64_t *starts_ns; /* of the backward passes */
};

static inline int64_t replay_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline double replay_cpu_s(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static inline void replay_sleep_until(int64_t time_ns) {
  struct timespec time;
  time.tv_sec = (time_t)(time_ns / 1000000000);
  time.tv_nsec = (long)(time_ns % 1000000000);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) != 0) continue;
}

static inline void replay_read_steps(struct replay *r, FILE *file) {
  if (fscanf(file, " %u %u %ld ", &r->num_steps, &r->num_sends, &r->num_elems) != 3) exit(2);
  r->steps = (struct replay_step *)calloc(r->num_steps, sizeof *r->steps);
  r->sends = (struct replay_send *)calloc(r->num_sends, sizeof *r->sends);
  if (!r->steps || !r->sends) exit(2);
  for (unsigned i = 0; i < r->num_steps; i++)
    if (fscanf(file, "%u %ld ", &r->steps[i].act, &r->steps[i].number) != 2) exit(2);
  for (unsigned i = 0; i < r->num_sends; i++) {
    struct replay_send *send = &r->sends[i];
    if (fscanf(file, "%u %ld %ld ", &send->call, &send->first_elem, &send->num_elems) != 3) exit(2);
  }
}

static inline void replay_read(struct replay *r, FILE *file) {
  char kind[8];
  if (fscanf(file, "%7s", kind) != 1) exit(2);
  if (strcmp(kind, "fsdp") == 0) {
    replay_read_steps(r, file);
    return;
  }
  if (fscanf(file, " %u %u %ld %ld ", &r->num_sections, &r->num_sends, &r->num_elems, &r->backward_ns) != 4) exit(2);
  r->sections = (struct replay_section *)calloc(r->num_sections, sizeof *r->sections);
  r->sends = (struct replay_send *)calloc(r->num_sends, sizeof *r->sends);
  for (unsigned i = 0; i < r->num_sections; i++)
    if (fscanf(file, "forward %u %ld ", &r->sections[i].num_needed, &r->sections[i].time_ns) != 2) exit(2);
  for (unsigned i = 0; i < r->num_sends; i++) {
    struct replay_send *send = &r->sends[i];
    if (fscanf(file, "send %ld %ld %ld ", &send->ready_ns, &send->first_elem, &send->num_elems) != 3) exit(2);
  }
}

/* Reads a plan and fills the input of a rank; ends the process when it cannot. */
static inline void replay_init(struct replay *r, const char *path, int rank, int world_size, unsigned num_iters) {
  FILE *file = fopen(path, "r");
  memset(r, 0, sizeof *r);
  r->num_iters = num_iters;
  r->rank = rank;
  r->world_size = world_size;
  if (!file) exit(2);
  replay_read(r, file);
  fclose(file);
  int64_t largest = 0;
  for (unsigned i = 0; i < r->num_sends; i++)
    largest = r->sends[i].num_elems > largest ? r->sends[i].num_elems : largest;
  r->in = (float *)malloc((size_t)(largest + REPLAY_OFFSETS) * sizeof(float));
  r->out = (float *)malloc((size_t)r->num_elems * sizeof(float));
  r->own = (float *)malloc((size_t)(r->num_elems / world_size + 1) * sizeof(float));
  r->is_done = (unsigned char *)calloc((size_t)r->num_sends * num_iters, 1);
  r->starts_ns = (int64_t *)calloc(num_iters + 1u, sizeof(int64_t));
  if (!r->in || !r->out || !r->own || !r->is_done || !r->starts_ns) exit(2);
  for (int64_t i = 0; i < largest + (int64_t)REPLAY_OFFSETS; i++) r->in[i] = (float)(i % REPLAY_VALUES * (rank + 1));
  memset(r->out, 0xff, (size_t)r->num_elems * sizeof(float));
  memset(r->own, 0xff, (size_t)(r->num_elems / world_size) * sizeof(float));
  pthread_mutex_init(&r->mutex, NULL);
  pthread_cond_init(&r->changed, NULL);
  prctl(PR_SET_TIMERSLACK, 1000ul);
}

static inline const float *replay_input(const struct replay *r, int64_t number) {
  return r->in + number % r->num_sends % REPLAY_OFFSETS;
}

/* The next send to sum, by its number since the start; -1: there are no more. Blocks until it is ready. */
static inline int64_t replay_take(struct replay *r) {
  const int64_t num_all = (int64_t)r->num_sends * r->num_iters;
  pthread_mutex_lock(&r->mutex);
  while (r->num_taken == r->num_ready && r->num_taken < num_all) pthread_cond_wait(&r->changed, &r->mutex);
  const int64_t number = r->num_taken < num_all ? r->num_taken++ : -1;
  pthread_mutex_unlock(&r->mutex);
  return number;
}

static inline void replay_finish(struct replay *r, int64_t number) {
  const int64_t num_all = (int64_t)r->num_sends * r->num_iters;
  pthread_mutex_lock(&r->mutex);
  r->is_done[number] = 1;
  while (r->num_done < num_all && r->is_done[r->num_done]) r->num_done++;
  pthread_cond_broadcast(&r->changed);
  pthread_mutex_unlock(&r->mutex);
}

/* One iteration of sharded training. */
static inline void replay_steps(struct replay *r, unsigned iter, int64_t *now_ns) {
  for (unsigned i = 0; i < r->num_steps; i++) {
    const struct replay_step *step = &r->steps[i];
    if (step->act == REPLAY_COMPUTE) replay_sleep_until(*now_ns += step->number);
    else {
      pthread_mutex_lock(&r->mutex);
      if (step->act == REPLAY_CALL) r->num_ready++;
      pthread_cond_broadcast(&r->changed);
      while (step->act == REPLAY_WAIT && !r->is_done[(int64_t)iter * r->num_sends + step->number])
        pthread_cond_wait(&r->changed, &r->mutex);
      pthread_mutex_unlock(&r->mutex);
      const int64_t time_ns = replay_now_ns();
      if (step->act == REPLAY_WAIT && time_ns > *now_ns) *now_ns = time_ns;
    }
  }
}

/* The thread that would compute. argument: the replay. */
static inline void *replay_compute(void *argument) {
  struct replay *r = (struct replay *)argument;
  int64_t now_ns = replay_now_ns();
  for (unsigned iter = 0; iter <= r->num_iters && r->num_steps != 0; iter++) {
    r->starts_ns[iter] = now_ns;
    if (iter < r->num_iters) replay_steps(r, iter, &now_ns);
  }
  if (r->num_steps != 0) return NULL;
  now_ns = replay_now_ns();
  for (unsigned iter = 0; iter <= r->num_iters; iter++) {
    for (unsigned i = 0; i < r->num_sections; i++) {
      const int64_t need = iter == 0 ? 0 : (int64_t)(iter - 1) * r->num_sends + r->sections[i].num_needed;
      pthread_mutex_lock(&r->mutex);
      const int has_waited = r->num_done < need;
      while (r->num_done < need) pthread_cond_wait(&r->changed, &r->mutex);
      pthread_mutex_unlock(&r->mutex);
      const int64_t time_ns = replay_now_ns();
      if (has_waited && time_ns > now_ns) now_ns = time_ns;
      now_ns += r->sections[i].time_ns;
    }
    replay_sleep_until(now_ns);
    r->starts_ns[iter] = now_ns;
    if (iter == r->num_iters) break;
    for (unsigned first = 0, end; first < r->num_sends; first = end) {
      for (end = first + 1; end < r->num_sends && r->sends[end].ready_ns == r->sends[first].ready_ns;) end++;
      replay_sleep_until(now_ns + r->sends[first].ready_ns);
      pthread_mutex_lock(&r->mutex);
      r->num_ready += end - first;
      pthread_cond_broadcast(&r->changed);
      pthread_mutex_unlock(&r->mutex);
    }
    now_ns += r->backward_ns;
  }
  return NULL;
}

static inline long replay_count_other(const float *out, int64_t num_elems, int64_t first, int factor) {
  long num_wrong = 0;
  for (int64_t j = 0; j < num_elems; j++) num_wrong += out[j] != (float)((first + j) % REPLAY_VALUES) * (float)factor;
  return num_wrong;
}

/* What the forward pass gathered, a third of all calls, the backward pass has overwritten. */
static inline long replay_count_wrong(const struct replay *r) {
  const int n = r->world_size, factor = n * (n + 1) / 2;
  long num_wrong = 0;
  for (unsigned i = r->num_steps != 0 ? r->num_sends / 3 : 0; i < r->num_sends; i++) {
    const struct replay_send *send = &r->sends[i];
    const float *out = r->out + send->first_elem;
    const int64_t part = send->num_elems / n, first = i % REPLAY_OFFSETS;
    if (send->call == REPLAY_ALL_REDUCE) num_wrong += replay_count_other(out, send->num_elems, first, factor);
    if (send->call == REPLAY_SCATTER)
      num_wrong += replay_count_other(r->own + send->first_elem / n, part, first + part * r->rank, factor);
    for (int rank = 0; send->call == REPLAY_GATHER && rank < n; rank++)
      num_wrong += replay_count_other(out + part * rank, part, first, rank + 1);
  }
  return num_wrong;
}

/* One line of JSON: this rank's times of the last num_timed iterations, and its processor seconds an iteration. */
static inline void replay_print(const struct replay *r, unsigned num_timed, double cpu_s, long num_wrong) {
  printf("{\"replay\": 1, \"cpu_s\": %.6f, \"wrong\": %ld, \"times_s\": [", cpu_s / r->num_iters, num_wrong);
  for (unsigned i = r->num_iters - num_timed; i < r->num_iters; i++)
    printf("%s%.6f", i > r->num_iters - num_timed ? ", " : "", 1e-9 * (double)(r->starts_ns[i + 1] - r->starts_ns[i]));
  printf("]}\n");
  fflush(stdout);
}
