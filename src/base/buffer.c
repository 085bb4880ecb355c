/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buffer.h"

#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20) /* where pages are 4 KiB; elsewhere an alignment like any other */

void *sml_buffer_alloc(size_t num_bytes) {
  const bool is_large = num_bytes >= 2 * HUGE_PAGE_BYTES && num_bytes <= PTRDIFF_MAX - HUGE_PAGE_BYTES;
  void *memory = aligned_alloc(is_large ? HUGE_PAGE_BYTES : 64, sml_align_up(num_bytes, 64));
  /* Other allocations may have a part in the last page. The call fails, and harms nobody, where no page is huge. */
  if (is_large && memory != NULL) (void)madvise(memory, num_bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES, MADV_HUGEPAGE);
  return memory;
}
