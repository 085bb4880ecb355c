/* SPDX-License-Identifier: Apache-2.0
 * What a switchml-pipeline answers. Input: a byte, the most bytes that come at a time; then the answers. */
#include "dataplane/dpdk.h"
#include "fuzz/switch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  struct fuzz_input in = {data, data + num_bytes};
  fuzz_peer_begin(NULL, fuzz_u8(&in));
  fuzz_peer_say(in.at, (size_t)(in.end - in.at));
  const struct sml_dpdk_options options = {.control = "/run/nobody", .packet_lanes = SWITCH_LANES,
                                           .pool_slots = SWITCH_SLOTS, .cpu_port = 1};
  struct sml_dpdk *d = sml_dpdk_create(&options);
  CHECK(d != NULL, "no memory");
  drive_switch(sml_dpdk_dataplane(d));
  sml_dpdk_destroy(d);
  return 0;
}
