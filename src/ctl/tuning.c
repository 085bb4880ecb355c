/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/tuning.h"

/* All by measurement, over all lanes together. */
#define USUAL_SLOTS 256u
#define USUAL_BYTES (5u << 18)
#define LOOPBACK_BYTES (5u << 17)
#define PATH_BYTES_PER_US 1250u             /* 10 Gbit/s: nobody knows the rate before there is traffic */
#define OTHERS_NS_PER_BYTE 8u               /* 1 Gbit/s: a slower aggregator's jobs may get unequal windows */
#define LOOPBACK_RTT_NS (2 * SML_NS_PER_MS) /* above it somebody has put a delay there, which is to be served */

/* The largest power of two of slots within num_bytes a lane, but not below FEW. */
static uint32_t slots_within(uint64_t num_bytes, uint32_t chunk_bytes, uint32_t most) {
  uint32_t num_slots = most;
  while (num_slots > SML_TUNING_FEW_SLOTS && (uint64_t)num_slots * chunk_bytes > num_bytes) num_slots /= 2;
  return num_slots;
}

/* The largest power of two that is at most half of the pool, and leaves what is kept for others: no job takes more by
 * itself, unless the pool is tiny. */
static uint32_t share_of(const struct sml_tuning *t) {
  const uint32_t few = sml_min_u32(t->pool_slots, SML_TUNING_FEW_SLOTS);
  const uint32_t spare = t->pool_slots - sml_min_u32(t->pool_slots, t->kept_slots);
  const uint32_t most = sml_max_u32(sml_min_u32(t->pool_slots / 2, spare), few);
  return 1u << (sml_ceil_log2(most + 1) - 1);
}

uint32_t sml_tuning_reserve(uint32_t pool_slots, uint32_t max_jobs, uint32_t num_running) {
  const uint32_t num_sure = sml_min_u32(max_jobs, pool_slots / 2 / SML_TUNING_FEW_SLOTS);
  return num_sure > num_running + 1 ? (num_sure - num_running - 1) * SML_TUNING_FEW_SLOTS : 0;
}

/* The round trip of the path alone: a window need not cover the queue of others; it would only add to it. */
static uint64_t path_rtt(const struct sml_tuning *t) {
  const uint64_t others_ns = sml_min_u64(t->others_bytes, UINT64_MAX / OTHERS_NS_PER_BYTE) * OTHERS_NS_PER_BYTE;
  return t->rtt_ns > others_ns ? t->rtt_ns - others_ns : 0;
}

uint32_t sml_tuning_choose(const struct sml_tuning *t, sml_slots_reason *why_out) {
  SML_ASSERT(t->num_lanes >= 1 && t->chunk_bytes >= 1 && t->pool_slots >= 1);
  *why_out = SML_SLOTS_REASON_ASKED;
  const uint64_t most_bytes = (uint64_t)(t->most_mib != 0 ? t->most_mib : SML_TUNING_MOST_MIB) << 20;
  if (t->num_asked != 0) return slots_within(most_bytes, t->chunk_bytes, t->num_asked);
  const uint32_t share = share_of(t);
  const uint64_t rtt_ns = path_rtt(t);
  const bool is_near = t->is_loopback && rtt_ns < LOOPBACK_RTT_NS;
  const uint32_t num_windows = t->is_embedded && !is_near ? SML_TUNING_EMBEDDED_WINDOWS : 1;
  const uint32_t usual = sml_max_u32(SML_TUNING_FEW_SLOTS, num_windows * USUAL_SLOTS >> sml_ceil_log2(t->num_lanes));
  const uint64_t base_bytes = is_near ? LOOPBACK_BYTES : num_windows * USUAL_BYTES;
  uint32_t num_slots = slots_within(base_bytes / t->num_lanes, t->chunk_bytes, usual);
  *why_out = is_near ? SML_SLOTS_REASON_LOOPBACK : SML_SLOTS_REASON_USUAL;
  if (!is_near) {
    const uint64_t path_bytes = sml_min_u64(rtt_ns / SML_NS_PER_US, most_bytes) * PATH_BYTES_PER_US;
    const uint64_t window_bytes = sml_min_u64(path_bytes, most_bytes) / t->num_lanes;
    const uint32_t path_slots = slots_within(window_bytes, t->chunk_bytes, sml_max_u32(share, SML_TUNING_FEW_SLOTS));
    if (path_slots > num_slots) *why_out = SML_SLOTS_REASON_PATH;
    num_slots = sml_max_u32(num_slots, path_slots);
  }
  if (num_slots <= share) return num_slots;
  *why_out = SML_SLOTS_REASON_POOL;
  return share;
}
