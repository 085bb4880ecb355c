/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/tensors.h"

#include <stdlib.h>

#include "base/buffer.h"
#include "quant/quant.h"

#define KEY_START UINT64_C(0x74656e7372310001) /* any constant; part of the protocol */

sml_status sml_tensors_check(const sml_operation_options *o, size_t count) {
  if (o->num_starts == 0 || count == 0) return SML_OK;
  if (o->starts == NULL) return sml_fail(SML_ERR_INVALID_ARGUMENT, "starts is NULL, but num_starts is not 0");
  if (o->starts[0] != 0) return sml_fail(SML_ERR_INVALID_ARGUMENT, "starts[0] is %zu: it must be 0", o->starts[0]);
  for (size_t i = 1; i < o->num_starts; i++)
    if (o->starts[i] <= o->starts[i - 1])
      return sml_fail(SML_ERR_INVALID_ARGUMENT, "starts[%zu] is %zu, not behind the one before, %zu", i, o->starts[i],
                      o->starts[i - 1]);
  if (o->starts[o->num_starts - 1] < count) return SML_OK;
  return sml_fail(SML_ERR_INVALID_ARGUMENT, "starts[%zu] is %zu: count is %zu", o->num_starts - 1,
                  o->starts[o->num_starts - 1], count);
}

uint64_t sml_tensors_filled(const size_t *starts, size_t num_starts, size_t count) {
  uint64_t filled = 0;
  for (size_t i = 1; i < num_starts; i++) filled += sml_align_up(starts[i] - starts[i - 1], SML_BLOCK_ELEMS);
  return filled + count - starts[num_starts - 1];
}

uint64_t sml_tensors_key(const size_t *starts, size_t num_starts, uint64_t key) {
  uint64_t h = KEY_START;
  for (size_t i = 0; i <= num_starts; i++)
    h = sml_mix64(h ^ (i < num_starts ? starts[i] : key)) + UINT64_C(0x9e3779b97f4a7c15);
  return h;
}

/* Copies all tensors between where they are filled up and where they lie one behind the other; zero: what fills. */
static void copy(const struct sml_tensors *t, uint8_t *to, const uint8_t *from, bool is_filling) {
  for (size_t i = 0; i < t->num_starts; i++) {
    const bool is_last = i + 1 == t->num_starts;
    const size_t num_bytes = ((is_last ? t->count : t->starts[i + 1]) - t->starts[i]) * t->elem_bytes;
    const size_t filled_bytes = sml_align_up(num_bytes, SML_BLOCK_ELEMS * t->elem_bytes);
    memcpy(to, from, num_bytes);
    if (is_filling && !is_last) memset(to + num_bytes, 0, filled_bytes - num_bytes);
    to += is_filling ? filled_bytes : num_bytes;
    from += is_filling ? num_bytes : filled_bytes;
  }
}

struct sml_tensors *sml_tensors_fill(const sml_operation_options *o, const void *in, void *out, size_t count,
                                     size_t elem_bytes) {
  const size_t head_bytes = sml_align_up(sizeof(struct sml_tensors) + o->num_starts * sizeof *o->starts, 64);
  const uint64_t filled = sml_tensors_filled(o->starts, o->num_starts, count);
  if (filled > (PTRDIFF_MAX - head_bytes) / elem_bytes) return NULL;
  struct sml_tensors *t = sml_buffer_alloc(head_bytes + filled * elem_bytes);
  if (t == NULL) return NULL;
  *t = (struct sml_tensors){.filled = (uint8_t *)t + head_bytes,
                            .out = out,
                            .num_starts = o->num_starts,
                            .count = count,
                            .elem_bytes = elem_bytes};
  memcpy(t->starts, o->starts, o->num_starts * sizeof *o->starts);
  copy(t, t->filled, in, true);
  return t;
}

void sml_tensors_store(const struct sml_tensors *t) {
  copy(t, t->out, t->filled, false);
}
