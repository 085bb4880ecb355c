/* SPDX-License-Identifier: Apache-2.0 */
#include "core/stream.h"

#define LANE_BYTES 4u
#define GROUP_TENSOR_BYTES (2u << 20)
#define SWITCH_BLOCK_LANES 512u

uint32_t sml_group_chunks(uint32_t chunk_bytes, uint32_t num_slots) {
  const uint32_t wanted = sml_max_u32(4 * num_slots, GROUP_TENSOR_BYTES / chunk_bytes);
  return sml_min_u32(chunk_bytes, wanted);
}

uint32_t sml_switch_block_chunks(uint32_t packet_lanes) {
  return sml_max_u32(SWITCH_BLOCK_LANES / packet_lanes, 1);
}

void sml_range_make(struct sml_range *r, const struct sml_operation_plan *plan, uint32_t lane,
                    uint32_t num_lanes, uint32_t chunk_bytes, uint32_t num_slots) {
  SML_ASSERT(lane < num_lanes && chunk_bytes >= LANE_BYTES && chunk_bytes % LANE_BYTES == 0);
  SML_ASSERT(plan->elem_lanes <= 1 || plan->lane_elems <= 1);
  r->elem_bytes = LANE_BYTES * sml_max_u32(plan->elem_lanes, 1) / sml_max_u32(plan->lane_elems, 1);
  r->chunk_elems = chunk_bytes / r->elem_bytes;
  SML_ASSERT(r->chunk_elems > 0 && (plan->block_chunks == 0 || plan->has_exponents));
  r->block_chunks = sml_max_u32(plan->block_chunks, 1);
  r->code_bytes = plan->block_chunks == 0 ? 1 : LANE_BYTES;
  const uint64_t all_chunks = sml_div_ceil(plan->num_elems, r->chunk_elems);
  const uint64_t all_blocks = r->block_chunks == 1 ? all_chunks : sml_div_ceil(all_chunks, r->block_chunks);
  const uint64_t share = all_blocks / num_lanes, rest = all_blocks % num_lanes;
  const uint64_t first_chunk = (share * lane + sml_min_u64(lane, rest)) * r->block_chunks;
  r->num_data_chunks = (share + (lane < rest)) * r->block_chunks;
  if (r->num_data_chunks > all_chunks - sml_min_u64(first_chunk, all_chunks))
    r->num_data_chunks = all_chunks - sml_min_u64(first_chunk, all_chunks);
  r->first_elem = sml_min_u64(first_chunk * r->chunk_elems, plan->num_elems);
  r->num_elems = sml_min_u64(r->num_data_chunks * r->chunk_elems, plan->num_elems - r->first_elem);
  r->group_chunks = plan->block_chunks == 0 ? sml_group_chunks(chunk_bytes, num_slots)
                                            : plan->block_chunks * (chunk_bytes / LANE_BYTES);
  r->num_groups = plan->has_exponents ? (uint32_t)sml_div_ceil(r->num_data_chunks, r->group_chunks) : 0;
  r->num_chunks = r->num_data_chunks + r->num_groups;
}

size_t sml_stream_codes_bytes(const struct sml_range *r) {
  return r->num_groups == 0 ? 0 : (size_t)r->num_data_chunks + r->num_groups;
}

static void make_exponent_chunk(const struct sml_range *r, uint32_t group, struct sml_chunk *c) {
  c->is_exponent = true;
  c->group = group;
  c->data_chunk = (uint64_t)group * r->group_chunks;
  const uint64_t num_chunks = sml_min_u64(r->group_chunks, r->num_data_chunks - c->data_chunk);
  c->num_elems = (uint32_t)sml_div_ceil(num_chunks, r->block_chunks);
  c->block = c->data_chunk / r->block_chunks;
  c->first_elem = r->first_elem + c->data_chunk * r->chunk_elems;
  c->payload_bytes = c->num_elems * r->code_bytes;
}

static void make_data_chunk(const struct sml_range *r, uint64_t data_chunk, uint32_t group,
                            struct sml_chunk *c) {
  const uint64_t offset = data_chunk * r->chunk_elems;
  c->is_exponent = false;
  c->group = group;
  c->data_chunk = data_chunk;
  c->block = r->block_chunks == 1 ? data_chunk : data_chunk / r->block_chunks;
  c->first_elem = r->first_elem + offset;
  c->num_elems = (uint32_t)sml_min_u64(r->chunk_elems, r->num_elems - offset);
  c->payload_bytes = (c->num_elems * r->elem_bytes + LANE_BYTES - 1) & ~(LANE_BYTES - 1);
}

void sml_range_chunk(const struct sml_range *r, uint64_t position, struct sml_chunk *c) {
  SML_ASSERT(position < r->num_chunks);
  if (r->num_groups == 0) {
    make_data_chunk(r, position, 0, c);
    return;
  }
  if (position == 0) {
    make_exponent_chunk(r, 0, c);
    return;
  }
  /* Behind E0 come segments of 1 + group_chunks: E(k+1), then the data of group k. The last group's
   * segment has no exponent chunk. */
  const uint64_t segment_chunks = 1 + (uint64_t)r->group_chunks;
  const uint32_t group = (uint32_t)((position - 1) / segment_chunks);
  uint64_t offset = (position - 1) % segment_chunks;
  if (group + 1 < r->num_groups) {
    if (offset == 0) {
      make_exponent_chunk(r, group + 1, c);
      return;
    }
    offset--;
  }
  make_data_chunk(r, (uint64_t)group * r->group_chunks + offset, group, c);
}

uint64_t sml_tag_base(const struct sml_operation_plan *plan, uint32_t chunk_bytes, uint32_t num_lanes) {
  uint64_t h = UINT64_C(0x53774d4c76310001); /* any constant but 0; part of wire version 1 */
  const uint64_t fields[] = {plan->number, plan->num_elems,
                             (uint64_t)plan->lane_elems << 24 | (uint64_t)plan->elem_lanes << 16 |
                                 (uint64_t)plan->type << 8 | plan->reduction,
                             (uint64_t)num_lanes << 32 | chunk_bytes, plan->key};
  for (size_t i = 0; i < SML_ARRAY_LEN(fields); i++) h = sml_mix64(h ^ fields[i]) + UINT64_C(0x9e3779b97f4a7c15);
  return h;
}

uint32_t sml_tag(uint64_t tag_base, uint64_t position) {
  return (uint32_t)(sml_mix64(tag_base + position * UINT64_C(0x9e3779b97f4a7c15)) >> 32);
}
