/* SPDX-License-Identifier: Apache-2.0
 * The streams of operations that go one way (docs/PROTOCOL.md rules R193 and R194). Parts may be of any length, so
 * their codes are counted as the walk goes over them: one walk makes exponent chunks, a later one finds each data
 * chunk's codes again. */
#include "core/stream.h"
#include "core/wire.h"

#define LANE_BYTES 4u

/* Where the lane's share of a part begins. Shares are whole pairs of elements: two elements may be a lane. */
static uint64_t begin_of(const struct sml_range *r, uint32_t part, uint32_t lane) {
  if (lane == 0) return r->parts[part]; /* these two without a division: each chunk asks several times */
  if (lane == r->num_lanes) return r->parts[part + 1];
  const uint64_t length = r->parts[part + 1] - r->parts[part];
  const uint64_t share = length / r->num_lanes * lane + length % r->num_lanes * lane / r->num_lanes;
  return r->parts[part] + (share & ~UINT64_C(1));
}

static uint64_t part_chunks(const struct sml_range *r, uint32_t part) {
  return sml_div_ceil(begin_of(r, part, r->lane + 1) - begin_of(r, part, r->lane), r->chunk_elems);
}

uint32_t sml_range_codes(const struct sml_range *r, uint64_t row, uint32_t part, uint64_t *block_out) {
  const uint64_t begin = begin_of(r, part, r->lane) + row * r->chunk_elems, end = begin_of(r, part, r->lane + 1);
  if (begin >= end) return 0;
  *block_out = begin / r->block_elems;
  const uint64_t group_end = sml_min_u64(end, begin + (uint64_t)r->group_rows * r->chunk_elems);
  return (uint32_t)(sml_div_ceil(group_end, r->block_elems) - *block_out);
}

/* The next part: its codes go to a chunk of their own if the part's before it leave no room. */
static void pass(const struct sml_range *r, struct sml_walk *w, uint32_t num_codes) {
  uint64_t block;
  w->part++;
  w->codes += num_codes;
  w->chunk_codes += num_codes;
  if (w->part == r->num_parts || r->block_elems == 0) return;
  if (w->chunk_codes + sml_range_codes(r, w->row, w->part, &block) <= r->most_codes) return;
  w->chunk++;
  w->chunk_codes = 0;
}

/* All parts were passed: the next group begins. */
static void next_group(const struct sml_range *r, struct sml_walk *w) {
  *w = (struct sml_walk){.row = w->row + r->group_rows, .chunk = w->chunk + 1, .codes = w->codes};
}

/* Goes over an exponent chunk, and over what has no codes behind it. Returns how many it has. */
static uint32_t walk_exponents(const struct sml_range *r, struct sml_walk *w, uint32_t *first_part_out) {
  const uint32_t chunk = w->chunk;
  uint32_t num_codes = 0;
  *first_part_out = w->part;
  while (w->part < r->num_parts && w->chunk == chunk) {
    uint64_t block;
    const uint32_t num = sml_range_codes(r, w->row, w->part, &block);
    num_codes += num;
    pass(r, w, num);
  }
  if (w->part == r->num_parts) next_group(r, w);
  return num_codes;
}

/* A group is as many rows as fit a chunk with their codes, or one, whose codes may take several chunks. Exponents are
 * about a window ahead. */
static void make_groups(struct sml_range *r, uint32_t num_parts, uint32_t num_slots) {
  const uint32_t part_codes = r->most_codes / num_parts;
  if (part_codes > 1) r->group_rows = (part_codes - 1) * r->block_elems / r->chunk_elems;
  r->group_rows = sml_max_u32(r->group_rows, 1);
  r->lead_groups = (uint32_t)sml_div_ceil(sml_window_positions(r->way, num_slots), (uint64_t)num_parts * r->group_rows);
  struct sml_walk walk = {0};
  uint32_t first_part;
  while (walk.row < r->num_rows) r->num_blocks += walk_exponents(r, &walk, &first_part);
  r->num_groups = walk.chunk;
}

void sml_range_make_one_way(struct sml_range *r, const struct sml_operation_plan *plan, uint32_t lane,
                            uint32_t num_lanes, uint32_t chunk_bytes, uint32_t num_slots) {
  SML_ASSERT(num_slots >= SML_LEAST_ONE_WAY_SLOTS);
  uint32_t num_parts = 0;
  r->way = plan->way;
  r->parts = plan->parts;
  r->num_parts = plan->num_parts;
  r->lane = lane;
  r->num_lanes = num_lanes;
  r->num_elems = plan->num_elems;
  r->fence_chunks = sml_stretch(num_slots, num_lanes) - 1;
  r->most_codes = chunk_bytes / r->code_bytes;
  for (uint32_t p = 0; p < r->num_parts; p++) {
    r->num_data_chunks += part_chunks(r, p);
    r->num_rows = sml_max_u64(r->num_rows, part_chunks(r, p));
    num_parts += part_chunks(r, p) > 0;
  }
  if (r->num_data_chunks == 0) return;
  if (r->block_elems != 0) make_groups(r, num_parts, num_slots);
  const uint64_t num_chunks = r->num_data_chunks + r->num_groups;
  r->num_chunks = num_chunks + sml_div_ceil(num_chunks, r->fence_chunks);
}

/* Goes to the next part with a chunk in the row, or in a later row. */
static void move_on(const struct sml_range *r, struct sml_row *row) {
  while (row->data.part == r->num_parts || part_chunks(r, row->data.part) <= row->chunk) {
    uint64_t block;
    if (row->data.part < r->num_parts) {
      pass(r, &row->data, r->num_groups == 0 ? 0 : sml_range_codes(r, row->data.row, row->data.part, &block));
      continue;
    }
    row->chunk++;
    if (r->num_groups > 0 && row->chunk % r->group_rows == 0) {
      next_group(r, &row->data);
      row->group = row->data;
    }
    row->data = row->group;
  }
}

static void make_exponents(const struct sml_range *r, struct sml_row *row, struct sml_chunk *c) {
  c->is_exponent = true;
  c->group = row->exponents.chunk;
  c->block = row->exponents.codes;
  c->data_chunk = row->exponents.row;
  c->num_elems = walk_exponents(r, &row->exponents, &c->owner);
  c->payload_bytes = c->num_elems * r->code_bytes;
}

static void make_data(const struct sml_range *r, struct sml_row *row, struct sml_chunk *c) {
  const uint32_t part = row->data.part;
  uint64_t block;
  c->owner = part;
  c->first_elem = begin_of(r, part, r->lane) + row->chunk * r->chunk_elems;
  c->num_elems = (uint32_t)sml_min_u64(r->chunk_elems, begin_of(r, part, r->lane + 1) - c->first_elem);
  const uint32_t num_bytes = c->num_elems * r->elem_bytes;
  c->payload_bytes = r->way == SML_REDUCE_COPY ? num_bytes : (uint32_t)sml_align_up(num_bytes, LANE_BYTES);
  if (r->num_groups == 0) {
    row->data.part++;
    return;
  }
  const uint32_t num_codes = sml_range_codes(r, row->data.row, part, &block);
  c->group = row->data.chunk;
  c->block = row->data.codes + c->first_elem / r->block_elems - block;
  pass(r, &row->data, num_codes);
}

void sml_range_one_way_chunk(const struct sml_range *r, uint64_t position, struct sml_row *row, struct sml_chunk *c) {
  SML_ASSERT(position < r->num_chunks);
  *c = (struct sml_chunk){.is_fence =
                              position + 1 == r->num_chunks || position % (r->fence_chunks + 1u) == r->fence_chunks};
  if (c->is_fence) {
    c->is_exponent = true;
    c->payload_bytes = 1;
    return;
  }
  if (row->exponents.chunk < r->num_groups) {
    const uint64_t ahead = (uint64_t)r->lead_groups * r->group_rows;
    move_on(r, row);
    if (row->exponents.row <= row->chunk / r->group_rows * r->group_rows + ahead) {
      make_exponents(r, row, c);
      return;
    }
  }
  move_on(r, row);
  make_data(r, row, c);
}
