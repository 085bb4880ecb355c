/* SPDX-License-Identifier: Apache-2.0
 * What a Tofino's BFRuntime answers over gRPC. Input: a byte of how, then the answers: as they come, or (bit 0) as the
 * messages of calls, each with its length; then HTTP/2 and gRPC are spoken well around them, but for bit 1, where the
 * frames of messages are the input's, too. */
#include "dataplane/switches.h"
#include "fuzz/switch.h"

enum { DATA = 0, HEADERS = 1, SETTINGS = 4, END_STREAM = 1, END_HEADERS = 4, PREFACE_BYTES = 24, FRAME_BYTES = 9 };

static struct fuzz_input answers;
static uint8_t how;
static bool has_greeted;

static void say_frame(uint8_t type, uint8_t flags, uint32_t stream, const uint8_t *payload, size_t num_bytes) {
  uint8_t head[FRAME_BYTES];
  sml_store_be32(head, (uint32_t)num_bytes << 8 | type);
  head[4] = flags;
  sml_store_be32(head + 5, stream);
  fuzz_peer_say(head, sizeof head);
  fuzz_peer_say(payload, num_bytes);
}

static void say_answer(uint32_t stream) {
  static const uint8_t ok[] = {0x88}; /* :status 200 */
  static const uint8_t trailers[] =
      "\0\x0bgrpc-status\x01"
      "0";
  uint8_t message[5 + 1024];
  if (fuzz_is_empty(&answers)) return;
  size_t num_bytes = fuzz_u8(&answers) * 4u; /* of a list's many entries, too */
  num_bytes = sml_min_u64(num_bytes, (uint64_t)(answers.end - answers.at));
  message[0] = 0;
  sml_store_be32(message + 1, (uint32_t)num_bytes);
  memcpy(message + 5, answers.at, num_bytes);
  answers.at += num_bytes;
  if (!has_greeted) say_frame(SETTINGS, 0, 0, NULL, 0);
  has_greeted = true;
  say_frame(HEADERS, END_HEADERS, stream, ok, sizeof ok);
  const size_t prefix_bytes = how & 2 ? 5 : 0;
  say_frame(DATA, 0, stream, message + prefix_bytes, 5 + num_bytes - prefix_bytes);
  say_frame(HEADERS, END_STREAM | END_HEADERS, stream, trailers, sizeof trailers - 1);
}

/* libnghttp2 gives whole frames. A call has ended with the frame that ends its stream. */
static void answer_call(const uint8_t *bytes, size_t num_bytes) {
  if (num_bytes >= PREFACE_BYTES && memcmp(bytes, "PRI ", 4) == 0) {
    bytes += PREFACE_BYTES;
    num_bytes -= PREFACE_BYTES;
    has_greeted = false; /* another connection */
  }
  while (num_bytes >= FRAME_BYTES) {
    const size_t frame_bytes = FRAME_BYTES + (sml_load_be32(bytes) >> 8);
    if (frame_bytes > num_bytes) return;
    if (bytes[3] == DATA && (bytes[4] & END_STREAM) != 0) say_answer(sml_load_be32(bytes + 5));
    bytes += frame_bytes;
    num_bytes -= frame_bytes;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  answers = (struct fuzz_input){data, data + num_bytes};
  how = fuzz_u8(&answers);
  fuzz_peer_begin(how & 1 ? answer_call : NULL, how >> 4);
  if ((how & 1) == 0) fuzz_peer_say(answers.at, (size_t)(answers.end - answers.at));
  const struct sml_switch_options options = {.runtime = fuzz_addr(0x7f000001, 50052),
                                             .program = "switchml",
                                             .packet_lanes = SWITCH_LANES,
                                             .pool_slots = SWITCH_SLOTS,
                                             .cpu_port = 5};
  struct sml_dataplane *plane = sml_tofino_create(&options);
  CHECK(plane != NULL, "no memory");
  drive_switch(plane);
  sml_switch_destroy(plane);
  return 0;
}
