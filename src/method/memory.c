/* SPDX-License-Identifier: Apache-2.0 */
#include "method/memory.h"

#include <stdlib.h>

struct memory {
  struct sml_driver driver; /* first */
  struct sml_shm_group *group;
};

static struct sml_shm_group *group_of(const struct sml_driver *d) {
  return ((const struct memory *)(const void *)d)->group;
}

/* ---- steps ---- */

static bool meet(struct sml_driver *d, const struct sml_shm_meeting *meeting, enum sml_shm_met *met_out,
                 uint32_t *missing_out, char error_out[SML_SHM_ERROR_BYTES]) {
  const struct sml_shm_group_options options = {.meeting = *meeting, .kernels = d->kernels};
  struct sml_shm_group *group = sml_shm_group_open(&options, met_out, missing_out, error_out);
  ((struct memory *)d)->group = group;
  return group != NULL;
}

static void close_group(struct sml_driver *d) {
  sml_shm_group_close(group_of(d));
}

static void begin(struct sml_driver *d, const struct sml_shm_operation *operation) {
  sml_shm_group_begin(group_of(d), operation);
}

static enum sml_shm_verdict advance(struct sml_driver *d) {
  return sml_shm_group_advance(group_of(d));
}

static enum sml_shm_wait await(struct sml_driver *d, uint64_t deadline_ns) {
  return sml_shm_group_await(group_of(d), deadline_ns);
}

static void find_mismatch(const struct sml_driver *d, uint32_t *a_out, uint32_t *b_out) {
  sml_shm_group_mismatch(group_of(d), a_out, b_out);
}

static void abort_group(struct sml_driver *d) {
  sml_shm_group_abort(group_of(d));
}

static void set_gone(struct sml_driver *d, uint32_t index) {
  sml_shm_group_set_gone(group_of(d), index);
}

static uint32_t find_absent(const struct sml_driver *d, bool only_gone, uint32_t *out, uint32_t room) {
  return sml_shm_group_find_absent(group_of(d), only_gone, out, room);
}

static const struct sml_driver_steps steps = {.meet = meet,
                                              .close = close_group,
                                              .begin = begin,
                                              .advance = advance,
                                              .await = await,
                                              .mismatch = find_mismatch,
                                              .abort = abort_group,
                                              .set_gone = set_gone,
                                              .find_absent = find_absent};

/* ---- as a method ---- */

static void find_wait(const struct sml_method *r, struct sml_member_wait *out) {
  const struct sml_driver *d = (const struct sml_driver *)r;
  out->kind = sml_driver_has_begun(d) ? SML_WAIT_RANKS : SML_WAIT_NONE_BEGUN;
  if (out->kind == SML_WAIT_RANKS) sml_driver_find_absent(d, out);
}

static void add_figures(const struct sml_method *r, sml_stats *stats) {
  const struct sml_driver *d = (const struct sml_driver *)r;
  sml_job_lanes_add_figures(d->lanes, stats);
  stats->num_local_ranks = d->num_ranks > 1 ? d->num_ranks : 0;
  stats->chunks_completed += sml_shm_group_num_blocks(group_of(d));
}

static const struct sml_method_ops memory_ops = {.max_begun = 1,
                                                 .begin = sml_driver_begin,
                                                 .drive = sml_driver_drive,
                                                 .fail = sml_driver_fail,
                                                 .set_gone = sml_driver_set_gone,
                                                 .resume = sml_driver_resume,
                                                 .wait = find_wait,
                                                 .add_figures = add_figures,
                                                 .close = sml_driver_close};

struct sml_method *sml_memory_open(const struct sml_driver_options *options) {
  struct memory *m = calloc(1, sizeof *m);
  if (m != NULL) m->driver = (struct sml_driver){.method.ops = &memory_ops, .steps = &steps};
  return sml_driver_open((struct sml_driver *)m, options);
}
