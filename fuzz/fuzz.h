/* SPDX-License-Identifier: Apache-2.0
 * What the fuzz targets share. A target reads its input as a small program: every byte string is a valid one, and
 * what is missing at the end reads as zero, so that mutations stay meaningful. A target has no state between
 * inputs. */
#pragma once

#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"

/* libFuzzer's entry point. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes);

/* What must hold whatever the input. By dprintf: the simulator has a standard error of its own. */
#define CHECK(claim, ...)                                                                                      \
  ((claim) ? (void)0                                                                                           \
           : (dprintf(2, "%s:%d: does not hold: %s\n  ", __FILE__, __LINE__, #claim), dprintf(2, __VA_ARGS__), \
              dprintf(2, "\n"), abort()))
/* For sml_*_find_violation(). */
#define CHECK_SOUND(expression)            \
  do {                                     \
    const char *problem = (expression);    \
    CHECK(problem == NULL, "%s", problem); \
  } while (0)

/* A live state machine's state is looked at after every step in a replay (fuzz/main.c), after every few and the last
 * one with libFuzzer: there most of the time would go into that. */
#ifndef FUZZ_CHECK_STEPS
#define FUZZ_CHECK_STEPS 1u
#endif
static inline bool fuzz_is_due(uint32_t step) {
  return step % FUZZ_CHECK_STEPS == 0;
}

struct fuzz_input {
  const uint8_t *at, *end;
};
static inline bool fuzz_is_empty(const struct fuzz_input *in) {
  return in->at == in->end;
}
static inline uint8_t fuzz_u8(struct fuzz_input *in) {
  return fuzz_is_empty(in) ? 0 : *in->at++;
}
static inline uint16_t fuzz_u16(struct fuzz_input *in) {
  const uint16_t high = fuzz_u8(in);
  return (uint16_t)(high << 8 | fuzz_u8(in));
}
static inline uint32_t fuzz_u32(struct fuzz_input *in) {
  const uint32_t high = fuzz_u16(in);
  return high << 16 | fuzz_u16(in);
}
static inline uint64_t fuzz_u64(struct fuzz_input *in) {
  const uint64_t high = fuzz_u32(in);
  return high << 32 | fuzz_u32(in);
}
static inline uint32_t fuzz_below(struct fuzz_input *in, uint32_t bound) {
  return fuzz_u8(in) % bound;
}
/* Mostly `usual`; sometimes something near it, rarely anything at all. */
static inline uint32_t fuzz_near(struct fuzz_input *in, uint32_t usual) {
  const uint8_t kind = fuzz_u8(in);
  if (kind < 224) return usual;
  return kind < 250 ? usual + fuzz_u8(in) - 128 : fuzz_u32(in);
}

/* What a parser leaves behind is looked at by the sanitizers only if it lies in memory of its own. */
static inline void *fuzz_copy(const void *data, size_t num_bytes) {
  uint8_t *copy = malloc(num_bytes + (num_bytes == 0));
  CHECK(copy != NULL, "no memory");
  if (num_bytes > 0) memcpy(copy, data, num_bytes);
  return copy;
}
/* The same as a string. */
static inline char *fuzz_text(const void *data, size_t num_bytes) {
  char *text = malloc(num_bytes + 1);
  CHECK(text != NULL, "no memory");
  if (num_bytes > 0) memcpy(text, data, num_bytes);
  text[num_bytes] = 0;
  return text;
}
