/* SPDX-License-Identifier: Apache-2.0
 * What BMv2's runtime answers. Input: a byte of how, then the answers: as they come, or (bit 0) as the results of
 * calls, each with its length and behind a header that fits. */
#include "dataplane/switches.h"
#include "fuzz/switch.h"

static struct fuzz_input answers;

/* A call comes in one piece: version, name, sequence and arguments. Its answer begins with the first three. */
static void answer_call(const uint8_t *call, size_t num_bytes) {
  uint8_t header[96] = {0};
  const size_t header_bytes = num_bytes < 8 ? 0 : 12 + (size_t)sml_load_be32(call + 4);
  if (header_bytes == 0 || header_bytes > num_bytes || header_bytes > sizeof header) return;
  if (fuzz_is_empty(&answers)) return;
  memcpy(header, call, header_bytes);
  header[3] = 2; /* a reply */
  fuzz_peer_say(header, header_bytes);
  fuzz_peer_say_some(&answers);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  answers = (struct fuzz_input){data, data + num_bytes};
  const uint8_t how = fuzz_u8(&answers);
  fuzz_peer_begin(how & 1 ? answer_call : NULL, how >> 4);
  if ((how & 1) == 0) fuzz_peer_say(answers.at, (size_t)(answers.end - answers.at));
  const struct sml_switch_options options = {
      .runtime = fuzz_addr(0x7f000001, 9090), .packet_lanes = SWITCH_LANES, .pool_slots = SWITCH_SLOTS, .cpu_port = 5};
  struct sml_dataplane *plane = sml_bmv2_create(&options);
  CHECK(plane != NULL, "no memory");
  drive_switch(plane);
  sml_switch_destroy(plane);
  return 0;
}
