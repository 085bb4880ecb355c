/* SPDX-License-Identifier: Apache-2.0
 * Messages in the encoding of Protocol Buffers: what calls of BFRuntime need of it, written field by field and read
 * field by field, without a description of the messages. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A message that is written, or bytes that grow. Zeroed: empty. */
struct sml_pb {
  uint8_t *bytes;
  size_t num_bytes, room_bytes;
  bool is_broken; /* there was no memory: what is in it is not the message */
};

void sml_pb_clear(struct sml_pb *pb); /* keeps the memory */
void sml_pb_free(struct sml_pb *pb);
void sml_pb_append(struct sml_pb *pb, const void *bytes, size_t num_bytes);
void sml_pb_number(struct sml_pb *pb, uint32_t field, uint64_t value);
void sml_pb_bytes(struct sml_pb *pb, uint32_t field, const void *bytes, size_t num_bytes);
void sml_pb_text(struct sml_pb *pb, uint32_t field, const char *text);
/* A message inside: what is written until its end, which takes what its begin returned. */
size_t sml_pb_begin(struct sml_pb *pb, uint32_t field);
void sml_pb_end(struct sml_pb *pb, size_t begin);
/* A packed list of numbers. */
void sml_pb_list(struct sml_pb *pb, uint32_t field, const uint32_t *values, uint32_t num_values);

struct sml_pb_reader {
  const uint8_t *at, *end;
};
struct sml_pb_field {
  uint32_t number;
  bool has_bytes; /* inside has them; else value is the number */
  uint64_t value;
  struct sml_pb_reader inside;
};

/* The next field. False: there is none, or what is left is no message. */
bool sml_pb_next(struct sml_pb_reader *reader, struct sml_pb_field *field_out);
/* Up to 8 bytes as a number, the highest first; of more the last ones. */
uint64_t sml_pb_to_number(const struct sml_pb_reader *bytes);
