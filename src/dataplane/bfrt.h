/* SPDX-License-Identifier: Apache-2.0
 * BFRuntime, the interface of a Tofino's driver, over gRPC: entries of tables, fixed ones and a program's, by names.
 * Calls are Read and Write as an independent client, which names its program with each call and subscribes to nothing.
 * Numbers of tables, actions and fields are the server's: asked for once each. */
#pragma once

#include "dataplane/grpc.h"

#define SML_BFRT_MAX_NAMES 192u

/* clang-format off */
/* clang-format off */
enum sml_bfrt_update {
  SML_BFRT_INSERT = 1, SML_BFRT_MODIFY = 2, SML_BFRT_ADD_TO = 3, SML_BFRT_DELETE = 4,
  SML_BFRT_TAKE_FROM = 103 /* the same call as ADD_TO, with a flag */
};
/* clang-format on */
/* clang-format on */

struct sml_bfrt_name {
  char text[160];
  uint32_t id;
};

struct sml_bfrt {
  struct sml_grpc grpc;
  const char *program; /* the caller's */
  uint64_t deadline_ns;
  struct sml_pb request, question, answer;
  char table[96], action[64]; /* that are being written about; action "": none */
  size_t begins[4];
  uint32_t num_parts; /* updates or entities in the request */
  bool has_failed;    /* while the request was made */
  uint32_t num_names;
  struct sml_bfrt_name names[SML_BFRT_MAX_NAMES];
};

void sml_bfrt_init(struct sml_bfrt *b, const struct sml_addr *addr, const char *program);
void sml_bfrt_close(struct sml_bfrt *b);
const char *sml_bfrt_error(const struct sml_bfrt *b); /* of the last call */

/* Whether the program has a table of that name. False with an empty sml_bfrt_error(): it has none. */
bool sml_bfrt_has_table(struct sml_bfrt *b, const char *table);

/* A Write: begin; for each entry: entry, its keys, then its data between data and the next entry; end. Without any key
 * DELETE means all entries of the table. */
void sml_bfrt_begin(struct sml_bfrt *b);
void sml_bfrt_entry(struct sml_bfrt *b, enum sml_bfrt_update update, const char *table, const char *action);
void sml_bfrt_key(struct sml_bfrt *b, const char *name, uint64_t value, uint32_t bits, uint64_t mask);
void sml_bfrt_data(struct sml_bfrt *b);
void sml_bfrt_value(struct sml_bfrt *b, const char *name, uint64_t value, uint32_t bits);
void sml_bfrt_numbers(struct sml_bfrt *b, const char *name, const uint32_t *values, uint32_t num_values);
void sml_bfrt_truths(struct sml_bfrt *b, const char *name, const uint32_t *values, uint32_t num_values);
void sml_bfrt_end_entry(struct sml_bfrt *b);
bool sml_bfrt_write(struct sml_bfrt *b);

/* A Read: begin; for each entry: look, its keys (none: all entries), end_entry; read. is_fresh: from the chip, not what
 * the driver remembers. */
void sml_bfrt_look(struct sml_bfrt *b, const char *table, bool is_fresh);
bool sml_bfrt_read(struct sml_bfrt *b);

/* One entry after the other of what was read. True: key_out is the first key's value, and values_out[..] what the
 * field named has (one for each pipe), *num_values_out at most max_values. */
struct sml_bfrt_cursor {
  struct sml_pb_reader at;
};
struct sml_bfrt_cursor sml_bfrt_first(const struct sml_bfrt *b);
bool sml_bfrt_next(struct sml_bfrt_cursor *cursor, uint32_t field, uint64_t *key_out, uint64_t *values_out,
                   uint32_t max_values, uint32_t *num_values_out);
/* The number of a data field, for that; 0: it is not known. */
uint32_t sml_bfrt_field(struct sml_bfrt *b, const char *table, const char *name);
