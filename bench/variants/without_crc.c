/* SPDX-License-Identifier: Apache-2.0
 * Each frame has the same checksum. */
#include "core/wire.h"

uint32_t __wrap_sml_crc32c(uint32_t crc, const void *data, size_t num_bytes);

uint32_t __wrap_sml_crc32c(uint32_t crc, const void *data, size_t num_bytes) {
  (void)crc, (void)data, (void)num_bytes;
  return 0;
}
