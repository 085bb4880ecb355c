/* SPDX-License-Identifier: Apache-2.0
 * Calls by Apache Thrift's binary protocol over TCP, as BMv2's runtime takes them: what is needed of it, with a
 * deadline for each call, which Debian's C library for Thrift does not have. */
#pragma once

#include "netio/netio.h"

#define SML_THRIFT_CALL_BYTES 4096u
#define SML_THRIFT_ERROR_BYTES 200u

/* clang-format off */
/* clang-format off */
enum sml_thrift_type {
  SML_THRIFT_STOP = 0, SML_THRIFT_BOOL = 2, SML_THRIFT_BYTE = 3, SML_THRIFT_DOUBLE = 4, SML_THRIFT_I16 = 6,
  SML_THRIFT_I32 = 8, SML_THRIFT_I64 = 10, SML_THRIFT_STRING = 11, SML_THRIFT_STRUCT = 12, SML_THRIFT_MAP = 13,
  SML_THRIFT_SET = 14, SML_THRIFT_LIST = 15,
};
/* clang-format on */
/* clang-format on */

struct sml_thrift {
  int fd; /* -1: not connected */
  struct sml_addr addr;
  uint32_t sequence;
  uint64_t deadline_ns;
  uint8_t call[SML_THRIFT_CALL_BYTES];
  uint32_t call_bytes;
  bool is_overfull;
  uint8_t in[4096];
  uint32_t in_at, in_end;
  char method[64];
  char error[SML_THRIFT_ERROR_BYTES]; /* of the last call; "": none */
  bool was_lost;                      /* a call found the connection closed; its owner sets it to false */
};

void sml_thrift_init(struct sml_thrift *t, const struct sml_addr *addr);
void sml_thrift_close(struct sml_thrift *t);

/* A call: begin, its arguments by field number, end. */
void sml_thrift_begin(struct sml_thrift *t, const char *method);
void sml_thrift_i32(struct sml_thrift *t, int16_t field, int32_t value);
void sml_thrift_i64(struct sml_thrift *t, int16_t field, int64_t value);
void sml_thrift_bool(struct sml_thrift *t, int16_t field, bool value);
void sml_thrift_bytes(struct sml_thrift *t, int16_t field, const void *bytes, uint32_t num_bytes);
void sml_thrift_text(struct sml_thrift *t, int16_t field, const char *text);
/* A field that is a struct; its end is sml_thrift_stop(). A list's elements follow without headers: of structs their
 * fields and a stop, of strings sml_thrift_element(). */
void sml_thrift_struct(struct sml_thrift *t, int16_t field);
void sml_thrift_list(struct sml_thrift *t, int16_t field, enum sml_thrift_type of, uint32_t num_elems);
void sml_thrift_element(struct sml_thrift *t, const void *bytes, uint32_t num_bytes);
void sml_thrift_stop(struct sml_thrift *t);

/* Sends the call and takes the answer, connecting first if need be. All numbers of the result, in their order, go to
 * values_out (texts are skipped); *num_values_out: how many there were, of which at most max_values were written.
 * False: t->error says why: no answer by the deadline, or what the switch said; after the former the connection is
 * closed. */
bool sml_thrift_end(struct sml_thrift *t, uint64_t deadline_ns, int64_t *values_out, uint32_t max_values,
                    uint32_t *num_values_out);
/* What was answered is of no use: t->error says so from here on. Returns false. */
bool sml_thrift_fail(struct sml_thrift *t, const char *why);
