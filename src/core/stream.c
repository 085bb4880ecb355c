/* SPDX-License-Identifier: Apache-2.0 */
#include "core/stream.h"

#include "core/wire.h"

#define LANE_BYTES 4u
#define GROUP_TENSOR_BYTES (2u << 20)

/* With chunks of E elements, E / gcd(E, block) blocks are as long as block / gcd(E, block) chunks. A group is a
 * multiple of this unit, and its codes fit one chunk. */
static void make_groups(struct sml_range *r, uint32_t chunk_bytes, uint32_t num_slots) {
  const uint32_t common = sml_min_u32(r->chunk_elems & -r->chunk_elems, r->block_elems);
  const uint32_t unit_chunks = r->block_elems / common, unit_blocks = r->chunk_elems / common;
  const uint32_t most = chunk_bytes / r->code_bytes / unit_blocks;
  const uint32_t ahead_chunks = 4 * num_slots;
  const uint32_t wanted = sml_max_u32(ahead_chunks, GROUP_TENSOR_BYTES / chunk_bytes) / unit_chunks;
  SML_ASSERT(most > 0);
  r->group_chunks = unit_chunks * sml_max_u32(1, sml_min_u32(wanted, most));
  r->lead_groups = (uint32_t)sml_div_ceil(ahead_chunks, r->group_chunks);
  r->num_groups = (uint32_t)sml_div_ceil(r->num_data_chunks, r->group_chunks);
  r->num_blocks = sml_div_ceil(r->num_elems, r->block_elems);
}

void sml_range_make(struct sml_range *r, const struct sml_operation_plan *plan, uint32_t lane, uint32_t num_lanes,
                    uint32_t chunk_bytes, uint32_t num_slots) {
  SML_ASSERT(lane < num_lanes && chunk_bytes >= LANE_BYTES && chunk_bytes % LANE_BYTES == 0);
  SML_ASSERT(plan->elem_lanes <= 1 || plan->lane_elems <= 1);
  SML_ASSERT((plan->block_elems & (plan->block_elems - 1)) == 0);
  *r = (struct sml_range){.block_elems = plan->block_elems, .code_bytes = plan->has_wide_codes ? LANE_BYTES : 1};
  r->elem_bytes = LANE_BYTES * sml_max_u32(plan->elem_lanes, 1) / sml_max_u32(plan->lane_elems, 1);
  if (plan->way == SML_REDUCE_COPY) r->elem_bytes = 1;
  r->chunk_elems = chunk_bytes / r->elem_bytes;
  SML_ASSERT(r->chunk_elems > 0);
  if (plan->way != SML_REDUCE_SUM) {
    sml_range_make_one_way(r, plan, lane, num_lanes, chunk_bytes, num_slots);
    return;
  }
  /* Each lane gets whole blocks: as many at a time as fit a chunk, or one. */
  const uint64_t share_elems =
      plan->block_elems == 0 ? r->chunk_elems : plan->block_elems * sml_max_u32(1, r->chunk_elems / plan->block_elems);
  const uint64_t all_shares = sml_div_ceil(plan->num_elems, share_elems);
  const uint64_t least = all_shares / num_lanes, rest = all_shares % num_lanes;
  const uint64_t begin = least * lane + sml_min_u64(lane, rest), end = begin + least + (lane < rest);
  r->first_elem = sml_min_u64(begin * share_elems, plan->num_elems);
  r->num_elems = sml_min_u64(end * share_elems, plan->num_elems) - r->first_elem;
  r->num_data_chunks = sml_div_ceil(r->num_elems, r->chunk_elems);
  if (plan->block_elems != 0) make_groups(r, chunk_bytes, num_slots);
  r->num_chunks = r->num_data_chunks + r->num_groups;
}

size_t sml_stream_codes_bytes(const struct sml_range *r) {
  return (size_t)r->num_blocks + r->num_groups;
}

static void make_exponent_chunk(const struct sml_range *r, uint32_t group, struct sml_chunk *c) {
  const uint64_t group_elems = (uint64_t)r->group_chunks * r->chunk_elems, offset = group * group_elems;
  c->is_exponent = true;
  c->group = group;
  c->data_chunk = (uint64_t)group * r->group_chunks;
  c->block = offset / r->block_elems;
  c->first_elem = r->first_elem + offset;
  c->num_elems = (uint32_t)sml_div_ceil(sml_min_u64(group_elems, r->num_elems - offset), r->block_elems);
  c->payload_bytes = c->num_elems * r->code_bytes;
}

static void make_data_chunk(const struct sml_range *r, uint64_t data_chunk, struct sml_chunk *c) {
  const uint64_t offset = data_chunk * r->chunk_elems;
  c->is_exponent = false;
  c->group = r->num_groups == 0 ? 0 : (uint32_t)(data_chunk / r->group_chunks);
  c->data_chunk = data_chunk;
  c->block = r->num_groups == 0 ? 0 : offset / r->block_elems;
  c->first_elem = r->first_elem + offset;
  c->num_elems = (uint32_t)sml_min_u64(r->chunk_elems, r->num_elems - offset);
  c->payload_bytes = (c->num_elems * r->elem_bytes + LANE_BYTES - 1) & ~(LANE_BYTES - 1);
}

void sml_range_chunk(const struct sml_range *r, uint64_t position, struct sml_chunk *c) {
  SML_ASSERT(position < r->num_chunks && r->way == SML_REDUCE_SUM);
  const uint32_t num_first = sml_min_u32(r->lead_groups, r->num_groups);
  if (position < num_first) {
    make_exponent_chunk(r, (uint32_t)position, c);
    return;
  }
  /* Then come segments: E(g + lead) and the data of group g. Segments of the last groups have no exponent chunk. */
  const uint64_t segment_chunks = 1 + (uint64_t)r->group_chunks, num_segments = r->num_groups - num_first;
  const uint64_t offset = position - num_first, segment = offset / segment_chunks;
  if (segment >= num_segments) make_data_chunk(r, offset - num_segments, c);
  else if (offset % segment_chunks == 0) make_exponent_chunk(r, (uint32_t)segment + num_first, c);
  else make_data_chunk(r, offset - segment - 1, c);
}

uint64_t sml_tag_base(const struct sml_operation_plan *plan, uint32_t chunk_bytes, uint32_t num_lanes) {
  uint64_t h = UINT64_C(0x53774d4c76310001); /* any constant but 0; part of wire version 1 */
  const uint64_t fields[] = {
      plan->number, plan->num_elems,
      (uint64_t)plan->lane_elems << 24 | (uint64_t)plan->elem_lanes << 16 | (uint64_t)plan->type << 8 | plan->reduction,
      (uint64_t)num_lanes << 32 | chunk_bytes, plan->key};
  for (size_t i = 0; i < SML_ARRAY_LEN(fields); i++) h = sml_mix64(h ^ fields[i]) + UINT64_C(0x9e3779b97f4a7c15);
  return h;
}

uint32_t sml_tag(uint64_t tag_base, uint64_t position) {
  return (uint32_t)(sml_mix64(tag_base + position * UINT64_C(0x9e3779b97f4a7c15)) >> 32);
}
