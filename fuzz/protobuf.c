/* SPDX-License-Identifier: Apache-2.0
 * Messages of Protocol Buffers: what can be read, at any depth, lies within the input; and fields that are written are
 * read again as they were. Input: the message. */
#include "dataplane/protobuf.h"

#include "fuzz/fuzz.h"

#define MAX_DEPTH 8u

static void read_message(struct sml_pb_reader in, uint32_t depth) {
  struct sml_pb_field field;
  const uint8_t *begin = in.at, *end = in.end;
  while (sml_pb_next(&in, &field)) {
    CHECK(field.number != 0 && in.at > begin && in.at <= end && in.end == end, "field %u", field.number);
    CHECK(field.inside.at == NULL || (field.inside.at >= begin && field.inside.end <= end), "field %u", field.number);
    (void)sml_pb_to_number(&field.inside);
    if (field.has_bytes && depth < MAX_DEPTH) read_message(field.inside, depth + 1);
  }
  CHECK(in.at <= end, "beyond the end");
}

/* The message's fields, each within one more message. */
static void write_again(struct sml_pb_reader in) {
  struct sml_pb pb = {.bytes = NULL};
  struct sml_pb_field field, again;
  for (uint32_t i = 0; i < 64 && sml_pb_next(&in, &field); i++) {
    const size_t num_bytes = field.has_bytes ? (size_t)(field.inside.end - field.inside.at) : 0;
    sml_pb_clear(&pb);
    const size_t begin = sml_pb_begin(&pb, 7);
    if (field.has_bytes) sml_pb_bytes(&pb, field.number, field.inside.at, num_bytes);
    else sml_pb_number(&pb, field.number, field.value);
    sml_pb_end(&pb, begin);
    CHECK(!pb.is_broken, "no memory");
    struct sml_pb_reader outer = {pb.bytes, pb.bytes + pb.num_bytes};
    CHECK(sml_pb_next(&outer, &again) && again.number == 7 && again.has_bytes && outer.at == outer.end, "outer");
    struct sml_pb_reader inner = again.inside;
    CHECK(sml_pb_next(&inner, &again) && again.number == field.number && inner.at == inner.end, "%u", field.number);
    CHECK(again.has_bytes == field.has_bytes && again.value == field.value, "%u", field.number);
    CHECK(num_bytes == 0 || ((size_t)(again.inside.end - again.inside.at) == num_bytes &&
                             memcmp(again.inside.at, field.inside.at, num_bytes) == 0),
          "%u", field.number);
  }
  sml_pb_free(&pb);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  uint8_t *copy = fuzz_copy(data, num_bytes);
  const struct sml_pb_reader in = {copy, copy + num_bytes};
  read_message(in, 0);
  write_again(in);
  free(copy);
  return 0;
}
