/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "base/base.h"

/* Memory for the data of a call, aligned to 64 bytes, or NULL; free() ends it. The first touch of each page is a fault,
 * and where the memory of each call is new, those of 4 KiB can take longer than the call. So large memory asks for huge
 * pages. */
void *sml_buffer_alloc(size_t num_bytes);
