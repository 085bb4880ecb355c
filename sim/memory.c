/* SPDX-License-Identifier: Apache-2.0
 * A heap a process: each block has a header that names its process, so that it can be counted, and freed
 * when the process is killed. */
#include "sim/internal.h"

#include <errno.h>

#define MAGIC UINT64_C(0x51c0b10c51c0b10c)

struct sim_block {
  struct sim_block *prev, *next; /* of the process */
  struct sim_process *process;   /* NULL: not a simulated one's */
  size_t num_bytes;
  void *base; /* what the real allocator gave */
  uint64_t magic;
};
_Static_assert(sizeof(struct sim_block) % 16 == 0, "what follows a header is aligned as malloc() must");

void *sim_take(size_t num_bytes) {
  void *memory = __real_calloc(1, num_bytes);
  SML_ASSERT(memory != NULL);
  return memory;
}

void *sim_grow(void *array, size_t used_bytes, size_t new_bytes) {
  void *larger = sim_take(new_bytes);
  if (used_bytes > 0) memcpy(larger, array, used_bytes);
  __real_free(array);
  return larger;
}

static void *add_block(void *base, size_t offset, size_t num_bytes) {
  if (base == NULL) return NULL;
  struct sim_block *b = (struct sim_block *)(void *)((uint8_t *)base + offset) - 1;
  struct sim_process *p = sim_current();
  *b = (struct sim_block){.process = p, .num_bytes = num_bytes, .base = base, .magic = MAGIC};
  if (p != NULL) {
    b->next = p->blocks;
    if (p->blocks != NULL) p->blocks->prev = b;
    p->blocks = b;
    p->usage.num_allocations++;
    p->usage.heap_bytes += num_bytes;
    p->usage.max_heap_bytes = sml_max_u64(p->usage.max_heap_bytes, p->usage.heap_bytes);
  }
  return b + 1;
}

static void free_block(struct sim_block *b) {
  struct sim_process *p = b->process;
  if (p != NULL) {
    if (b->prev != NULL) b->prev->next = b->next;
    else p->blocks = b->next;
    if (b->next != NULL) b->next->prev = b->prev;
    p->usage.num_allocations--;
    p->usage.heap_bytes -= b->num_bytes;
  }
  b->magic = 0;
  __real_free(b->base);
}

void sim_heap_free_all(struct sim_process *p) {
  while (p->blocks != NULL) free_block(p->blocks);
}

static bool must_fail(enum sim_call call) {
  if (!sim_is_inside() || sim_call_error(call) == 0) return false;
  errno = ENOMEM;
  return true;
}

void *__wrap_malloc(size_t num_bytes);
void *__wrap_malloc(size_t num_bytes) {
  if (must_fail(SIM_CALL_MALLOC) || num_bytes > SIZE_MAX / 2) return NULL;
  return add_block(__real_malloc(num_bytes + sizeof(struct sim_block)), sizeof(struct sim_block), num_bytes);
}

void *__wrap_calloc(size_t count, size_t num_bytes);
void *__wrap_calloc(size_t count, size_t num_bytes) {
  size_t all_bytes;
  if (must_fail(SIM_CALL_CALLOC) || __builtin_mul_overflow(count, num_bytes, &all_bytes)) return NULL;
  if (all_bytes > SIZE_MAX / 2) return NULL;
  return add_block(__real_calloc(1, all_bytes + sizeof(struct sim_block)), sizeof(struct sim_block), all_bytes);
}

void *__wrap_aligned_alloc(size_t align, size_t num_bytes);
void *__wrap_aligned_alloc(size_t align, size_t num_bytes) {
  if (must_fail(SIM_CALL_ALIGNED_ALLOC) || num_bytes > SIZE_MAX / 2) return NULL;
  const size_t offset = sml_align_up(sizeof(struct sim_block), align);
  return add_block(__real_aligned_alloc(align, sml_align_up(num_bytes + offset, align)), offset, num_bytes);
}

void __wrap_free(void *memory);
void __wrap_free(void *memory) {
  if (memory == NULL) return;
  struct sim_block *b = (struct sim_block *)memory - 1;
  SML_ASSERT(b->magic == MAGIC); /* else it is not from malloc(), or was freed before */
  free_block(b);
}

void *__wrap_realloc(void *memory, size_t num_bytes);
void *__wrap_realloc(void *memory, size_t num_bytes) {
  if (must_fail(SIM_CALL_REALLOC) || num_bytes > SIZE_MAX / 2) return NULL;
  void *larger = add_block(__real_malloc(num_bytes + sizeof(struct sim_block)), sizeof(struct sim_block), num_bytes);
  if (larger == NULL || memory == NULL) return larger;
  memcpy(larger, memory, sml_min_u64(num_bytes, ((struct sim_block *)memory - 1)->num_bytes));
  __wrap_free(memory);
  return larger;
}
