/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/retained.h"

#include <stdlib.h>

#include "base/buffer.h"
#include "quant/format.h"

#define MIN_ROOM_LOG2 8u

static uint32_t room_for(size_t num_bytes) {
  uint32_t room_log2 = MIN_ROOM_LOG2;
  while ((UINT64_C(1) << room_log2) < num_bytes) room_log2++;
  return room_log2;
}

static struct sml_retained *next_of(const struct sml_retained *r) {
  return (struct sml_retained *)r->input.next;
}

static struct sml_retained *pop_free(struct sml_retained_inputs *inputs, uint32_t room_log2) {
  struct sml_retained *r = inputs->free[room_log2];
  if (r == NULL) return NULL;
  inputs->free[room_log2] = next_of(r);
  inputs->free_bytes -= UINT64_C(1) << room_log2;
  return r;
}

/* What is free makes room for what is needed, the largest first, until no more is allocated than was used at
 * one time. Returns them for the caller to free without the lock. */
static struct sml_retained *trim(struct sml_retained_inputs *inputs) {
  struct sml_retained *trimmed = NULL;
  for (uint32_t room_log2 = SML_RETAINED_ROOMS; room_log2-- > 0;) {
    while (inputs->free[room_log2] != NULL &&
           inputs->used_bytes + inputs->free_bytes > inputs->most_used_bytes) {
      struct sml_retained *r = pop_free(inputs, room_log2);
      r->input.next = trimmed != NULL ? &trimmed->input : NULL;
      trimmed = r;
    }
  }
  return trimmed;
}

static void free_list(struct sml_retained *list) {
  while (list != NULL) {
    struct sml_retained *next = next_of(list);
    free(list);
    list = next;
  }
}

sml_status sml_retained_copy(struct sml_retained_inputs *inputs, const void *in, size_t num_bytes,
                             struct sml_retained **retained_out) {
  const uint32_t room_log2 = room_for(num_bytes);
  const uint64_t room_bytes = UINT64_C(1) << room_log2;
  pthread_mutex_lock(inputs->lock);
  struct sml_retained *r = pop_free(inputs, room_log2);
  const uint64_t most_used_bytes = inputs->most_used_bytes;
  inputs->used_bytes += room_bytes;
  inputs->most_used_bytes = sml_max_u64(most_used_bytes, inputs->used_bytes);
  struct sml_retained *trimmed = r == NULL ? trim(inputs) : NULL;
  pthread_mutex_unlock(inputs->lock);
  free_list(trimmed);
  if (r == NULL) r = sml_buffer_alloc(sizeof *r + room_bytes);
  if (r == NULL) {
    pthread_mutex_lock(inputs->lock);
    inputs->used_bytes -= room_bytes;
    inputs->most_used_bytes = sml_max_u64(most_used_bytes, inputs->used_bytes);
    pthread_mutex_unlock(inputs->lock);
    return sml_fail(SML_ERR_NO_MEMORY, "no memory for a copy of %zu bytes, which retry needs", num_bytes);
  }
  r->room_log2 = room_log2;
  memcpy(r->data, in, num_bytes);
  *retained_out = r;
  return SML_OK;
}

static uint64_t input_bytes(const struct sml_retained *r) {
  return r->plan.num_elems * sml_format_elem_bytes(r->plan.type);
}

void sml_retained_append(struct sml_retained_inputs *inputs, struct sml_retained *r,
                         const struct sml_operation *reader) {
  r->input.number = r->plan.number;
  r->input.reader = reader;
  sml_member_inputs_insert(&inputs->listed, &r->input);
  inputs->input_bytes += input_bytes(r);
}

void sml_retained_give_back(struct sml_retained_inputs *inputs, struct sml_retained *r) {
  const uint64_t room_bytes = UINT64_C(1) << r->room_log2;
  inputs->used_bytes -= room_bytes;
  inputs->free_bytes += room_bytes;
  r->input.next = (struct sml_member_input *)inputs->free[r->room_log2];
  inputs->free[r->room_log2] = r;
}

void sml_retained_drop_confirmed(struct sml_retained_inputs *inputs, const struct sml_member_retry *retry) {
  struct sml_retained *r;
  while ((r = (struct sml_retained *)sml_member_inputs_pop(&inputs->listed, retry)) != NULL) {
    inputs->input_bytes -= input_bytes(r);
    sml_retained_give_back(inputs, r);
  }
}

void sml_retained_free_all(struct sml_retained_inputs *inputs) {
  free_list((struct sml_retained *)inputs->listed.oldest);
  for (uint32_t i = 0; i < SML_RETAINED_ROOMS; i++) free_list(inputs->free[i]);
}
