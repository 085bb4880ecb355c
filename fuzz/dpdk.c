/* SPDX-License-Identifier: Apache-2.0
 * What a switchml-pipeline answers. Input: a byte, the most bytes that come at a time; then the answers. */
#include "dataplane/switches.h"
#include "fuzz/switch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  struct fuzz_input in = {data, data + num_bytes};
  fuzz_peer_begin(NULL, fuzz_u8(&in));
  fuzz_peer_say(in.at, (size_t)(in.end - in.at));
  const struct sml_switch_options options = {
      .control = "/run/nobody", .packet_lanes = SWITCH_LANES, .pool_slots = SWITCH_SLOTS, .cpu_port = 1};
  struct sml_dataplane *plane = sml_dpdk_create(&options);
  CHECK(plane != NULL, "no memory");
  drive_switch(plane);
  sml_switch_destroy(plane);
  return 0;
}
