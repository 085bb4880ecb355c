/* SPDX-License-Identifier: Apache-2.0
 * An operation that says where its tensors begin: on the wire each of them but the last is filled up to whole blocks,
 * so that blocks begin anew with it (docs/PROTOCOL.md rules R187 to R189). */
#pragma once

#include "base/base.h"
#include "process/status.h"

/* SML_OK, or what is wrong with the starts of an operation of `count` elements. */
sml_status sml_tensors_check(const sml_operation_options *options, size_t count);
/* Elements with what fills blocks up; count, if that is nothing. */
uint64_t sml_tensors_filled(const size_t *starts, size_t num_starts, size_t count);
/* In the place of a caller's key. */
uint64_t sml_tensors_key(const size_t *starts, size_t num_starts, uint64_t key);

/* The tensors of one operation, filled up. */
struct sml_tensors {
  uint8_t *filled; /* behind the starts: input, then sum */
  uint8_t *out;    /* the caller's */
  size_t num_starts, count, elem_bytes;
  size_t starts[];
};
/* Copies `in`. NULL: no memory. Freed by free(). */
struct sml_tensors *sml_tensors_fill(const sml_operation_options *options, const void *in, void *out, size_t count,
                                     size_t elem_bytes);
/* The sum, to the caller. */
void sml_tensors_store(const struct sml_tensors *tensors);
