/* SPDX-License-Identifier: Apache-2.0 */
#include "dataplane/protobuf.h"

#include <stdlib.h>
#include <string.h>

#define MAX_VARINT_BYTES 10u

enum wire_type { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

void sml_pb_clear(struct sml_pb *pb) {
  pb->num_bytes = 0;
  pb->is_broken = false;
}

void sml_pb_free(struct sml_pb *pb) {
  free(pb->bytes);
  *pb = (struct sml_pb){.bytes = NULL};
}

static bool make_room(struct sml_pb *pb, size_t num_bytes) {
  if (pb->is_broken) return false;
  if (pb->room_bytes - pb->num_bytes >= num_bytes) return true;
  const size_t room_bytes = 2 * (pb->num_bytes + num_bytes);
  uint8_t *bytes = realloc(pb->bytes, room_bytes);
  if (bytes == NULL) return pb->is_broken = true, false;
  pb->bytes = bytes;
  pb->room_bytes = room_bytes;
  return true;
}

void sml_pb_append(struct sml_pb *pb, const void *bytes, size_t num_bytes) {
  if (num_bytes == 0 || !make_room(pb, num_bytes)) return;
  memcpy(pb->bytes + pb->num_bytes, bytes, num_bytes);
  pb->num_bytes += num_bytes;
}

static uint32_t to_varint(uint64_t value, uint8_t bytes[MAX_VARINT_BYTES]) {
  uint32_t num_bytes = 0;
  for (; value >= 0x80; value >>= 7) bytes[num_bytes++] = (uint8_t)(value | 0x80);
  bytes[num_bytes++] = (uint8_t)value;
  return num_bytes;
}

static void put_varint(struct sml_pb *pb, uint64_t value) {
  uint8_t bytes[MAX_VARINT_BYTES];
  const uint32_t num_bytes = to_varint(value, bytes);
  sml_pb_append(pb, bytes, num_bytes);
}

static void put_tag(struct sml_pb *pb, uint32_t field, enum wire_type type) {
  put_varint(pb, (uint64_t)field << 3 | (uint64_t)type);
}

void sml_pb_number(struct sml_pb *pb, uint32_t field, uint64_t value) {
  put_tag(pb, field, VARINT);
  put_varint(pb, value);
}

void sml_pb_bytes(struct sml_pb *pb, uint32_t field, const void *bytes, size_t num_bytes) {
  put_tag(pb, field, BYTES);
  put_varint(pb, num_bytes);
  sml_pb_append(pb, bytes, num_bytes);
}

void sml_pb_text(struct sml_pb *pb, uint32_t field, const char *text) {
  sml_pb_bytes(pb, field, text, strlen(text));
}

size_t sml_pb_begin(struct sml_pb *pb, uint32_t field) {
  put_tag(pb, field, BYTES);
  return pb->num_bytes;
}

/* The length stands before what it counts, and is not known earlier. */
void sml_pb_end(struct sml_pb *pb, size_t begin) {
  uint8_t bytes[MAX_VARINT_BYTES];
  const size_t inside_bytes = pb->num_bytes - begin;
  const uint32_t num_bytes = to_varint(inside_bytes, bytes);
  if (!make_room(pb, num_bytes)) return;
  memmove(pb->bytes + begin + num_bytes, pb->bytes + begin, inside_bytes);
  memcpy(pb->bytes + begin, bytes, num_bytes);
  pb->num_bytes += num_bytes;
}

void sml_pb_list(struct sml_pb *pb, uint32_t field, const uint32_t *values, uint32_t num_values) {
  const size_t list = sml_pb_begin(pb, field);
  for (uint32_t i = 0; i < num_values; i++) put_varint(pb, values[i]);
  sml_pb_end(pb, list);
}

static bool take_varint(struct sml_pb_reader *reader, uint64_t *value_out) {
  uint64_t value = 0;
  for (uint32_t i = 0; i < MAX_VARINT_BYTES && reader->at < reader->end; i++) {
    const uint8_t byte = *reader->at++;
    value |= (uint64_t)(byte & 0x7f) << (7 * i);
    if (byte < 0x80) return *value_out = value, true;
  }
  return false;
}

static bool take_bytes(struct sml_pb_reader *reader, uint64_t num_bytes, struct sml_pb_reader *inside_out) {
  if (num_bytes > (uint64_t)(reader->end - reader->at)) return false;
  *inside_out = (struct sml_pb_reader){reader->at, reader->at + num_bytes};
  reader->at += num_bytes;
  return true;
}

bool sml_pb_next(struct sml_pb_reader *reader, struct sml_pb_field *field) {
  uint64_t tag, num_bytes;
  *field = (struct sml_pb_field){.number = 0};
  if (reader->at == reader->end || !take_varint(reader, &tag) || tag >> 3 == 0 || tag >> 3 > UINT32_MAX) return false;
  field->number = (uint32_t)(tag >> 3);
  switch (tag & 7) {
    case VARINT: return take_varint(reader, &field->value);
    case FIXED64: num_bytes = 8; break;
    case FIXED32: num_bytes = 4; break;
    case BYTES:
      field->has_bytes = true;
      if (!take_varint(reader, &num_bytes)) return false;
      break;
    default: return false;
  }
  return take_bytes(reader, num_bytes, &field->inside);
}

uint64_t sml_pb_to_number(const struct sml_pb_reader *bytes) {
  uint64_t value = 0;
  for (const uint8_t *at = bytes->at; at < bytes->end; at++) value = value << 8 | *at;
  return value;
}
