/* SPDX-License-Identifier: Apache-2.0
 * The calling thread's last failure, for sml_error_detail(). */
#pragma once

#include "base/base.h"
#include "switchml/switchml.h"

#define SML_ERROR_DETAIL_BYTES sizeof(((sml_error *)0)->detail)

/* Keeps the sentence for this thread and returns status, so that a check is one line:
 * `return sml_fail(SML_ERR_INVALID_ARGUMENT, "rank %u is not below ...", ...)`. */
__attribute__((format(printf, 2, 3))) sml_status sml_fail(sml_status status, const char *format, ...);

/* Copies a caller's sized option struct: what the caller's header does not have yet is zero, and what
 * it has beyond ours must be zero. `what` names the struct in the error. */
sml_status sml_options_copy(void *to, size_t to_bytes, const void *from, const char *what);
/* Writes a sized result struct as far as the caller's header knows it. The first member of both is
 * struct_bytes, and the caller's is kept. */
sml_status sml_result_copy(void *to, const void *from, size_t from_bytes, const char *what);
/* An error's last member is a text: of a caller whose header has a shorter one it ends there. */
sml_status sml_error_copy(sml_error *to, const sml_error *from);
