/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buffer.h"

#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20) /* where pages are 4 KiB; elsewhere an alignment like any other */

void *sml_buffer_alloc(size_t num_bytes) {
  const bool is_large = num_bytes >= 2 * HUGE_PAGE_BYTES && num_bytes <= PTRDIFF_MAX - HUGE_PAGE_BYTES;
  const size_t align_bytes = is_large ? HUGE_PAGE_BYTES : 64, room_bytes = sml_align_up(num_bytes, align_bytes);
  void *memory = aligned_alloc(align_bytes, room_bytes);
  if (is_large && memory != NULL) (void)madvise(memory, room_bytes, MADV_HUGEPAGE); /* fails where no page is huge */
  return memory;
}
