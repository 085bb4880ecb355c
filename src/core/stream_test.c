/* SPDX-License-Identifier: Apache-2.0
 * An operation's chunks: together the lanes cover each element once, in a fixed order; blocks are runs of the tensor,
 * each in one group of one lane; and exponents come ahead of their data. */
#include "core/stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define BLOCK_ELEMS 256u

static struct sml_operation_plan make_plan(uint64_t num_elems, bool has_exponents) {
  return (struct sml_operation_plan){
      .number = 7, .num_elems = num_elems, .block_elems = has_exponents ? BLOCK_ELEMS : 0};
}

/* Counters of one walk over a range. */
struct walk {
  uint64_t next_data_chunk, next_elem, next_block;
  uint32_t next_group;
};

static void check_exponent_chunk(const struct sml_range *r, const struct sml_chunk *c, struct walk *walk) {
  const uint64_t group_elems = (uint64_t)r->group_chunks * r->chunk_elems;
  assert_int_equal(c->group, walk->next_group);
  assert_int_equal(c->data_chunk, (uint64_t)c->group * r->group_chunks);
  assert_int_equal(c->block, walk->next_block);
  assert_int_equal(c->first_elem, r->first_elem + c->block * BLOCK_ELEMS); /* and so the tensor's blocks */
  assert_int_equal(c->first_elem, r->first_elem + c->group * group_elems);
  const uint64_t num_left = r->num_elems - c->group * group_elems;
  assert_int_equal(c->num_elems, sml_div_ceil(sml_min_u64(num_left, group_elems), BLOCK_ELEMS));
  assert_int_equal(c->payload_bytes, c->num_elems * r->code_bytes);
  /* As many groups ahead as it should be: just before the data of that group. */
  const uint64_t due = c->group < r->lead_groups ? 0 : (uint64_t)(c->group - r->lead_groups) * r->group_chunks;
  assert_int_equal(walk->next_data_chunk, due);
  walk->next_group++;
  walk->next_block += c->num_elems;
}

static void check_data_chunk(const struct sml_range *r, const struct sml_chunk *c, struct walk *walk) {
  assert_int_equal(c->data_chunk, walk->next_data_chunk);
  assert_int_equal(c->first_elem, walk->next_elem);
  assert_in_range(c->num_elems, 1, r->chunk_elems);
  assert_int_equal(c->payload_bytes, sml_align_up(c->num_elems * r->elem_bytes, 4));
  if (c->data_chunk + 1 < r->num_data_chunks) assert_int_equal(c->num_elems, r->chunk_elems);
  if (r->num_groups > 0) {
    assert_int_equal(c->group, c->data_chunk / r->group_chunks);
    assert_true(c->group < walk->next_group);
    assert_int_equal(c->block, (c->first_elem - r->first_elem) / BLOCK_ELEMS);
    /* Its last code came with its group's, too. */
    assert_true((c->first_elem + c->num_elems - 1 - r->first_elem) / BLOCK_ELEMS < walk->next_block);
  }
  walk->next_data_chunk++;
  walk->next_elem += c->num_elems;
}

/* Walks a whole range; returns the first element behind it. */
static uint64_t walk_range(const struct sml_range *r, uint64_t first_elem) {
  struct walk walk = {.next_elem = first_elem};
  struct sml_chunk c;
  assert_true(r->num_elems == 0 || r->first_elem == first_elem);
  assert_int_equal(r->num_chunks, r->num_data_chunks + r->num_groups);
  assert_int_equal(r->num_blocks, r->block_elems == 0 ? 0 : sml_div_ceil(r->num_elems, BLOCK_ELEMS));
  assert_int_equal(sml_stream_codes_bytes(r), r->num_blocks + r->num_groups);
  assert_true(r->num_groups <= r->num_blocks);
  for (uint64_t position = 0; position < r->num_chunks; position++) {
    sml_range_chunk(r, position, &c);
    if (c.is_exponent) check_exponent_chunk(r, &c, &walk);
    else check_data_chunk(r, &c, &walk);
  }
  assert_int_equal(walk.next_data_chunk, r->num_data_chunks);
  assert_int_equal(walk.next_group, r->num_groups);
  assert_int_equal(walk.next_block, r->num_blocks);
  assert_int_equal(walk.next_elem - first_elem, r->num_elems);
  return walk.next_elem;
}

static void check_plan(const struct sml_operation_plan *plan, uint32_t num_lanes, uint32_t chunk_bytes,
                       uint32_t num_slots) {
  uint64_t next_elem = 0, fewest = UINT64_MAX, most = 0, unit = 1;
  for (uint32_t lane = 0; lane < num_lanes; lane++) {
    struct sml_range r;
    sml_range_make(&r, plan, lane, num_lanes, chunk_bytes, num_slots);
    assert_int_equal(r.num_groups != 0, plan->block_elems != 0 && r.num_elems > 0);
    unit = plan->block_elems == 0 ? r.chunk_elems : BLOCK_ELEMS * sml_max_u32(1, r.chunk_elems / BLOCK_ELEMS);
    if (next_elem < plan->num_elems) assert_int_equal(r.first_elem % unit, 0);
    next_elem = walk_range(&r, next_elem);
    fewest = sml_min_u64(fewest, sml_div_ceil(r.num_elems, unit));
    most = sml_max_u64(most, sml_div_ceil(r.num_elems, unit));
  }
  assert_int_equal(next_elem, plan->num_elems);
  assert_true(most - fewest <= 1);
}

static void check_operation(uint64_t num_elems, bool has_exponents, uint32_t num_lanes, uint32_t chunk_bytes,
                            uint32_t num_slots) {
  const struct sml_operation_plan plan = make_plan(num_elems, has_exponents);
  check_plan(&plan, num_lanes, chunk_bytes, num_slots);
}

/* Switch format, and elements of half a lane and of several. */
static void other_formats_have_the_same_blocks(void **state) {
  (void)state;
  static const uint32_t chunk_bytes[] = {124, 128, 252, 508, 512, 1024, 1440, 1452};
  struct sml_prng prng = {.state = 14};
  for (size_t i = 0; i < SML_ARRAY_LEN(chunk_bytes); i++)
    for (uint64_t num_elems = 129; num_elems < 500000; num_elems = num_elems * 3 + num_elems % 7)
      for (uint32_t kind = 0; kind < 8; kind++) {
        struct sml_operation_plan plan = make_plan(num_elems, true);
        plan.has_wide_codes = kind % 2 != 0;
        plan.lane_elems = kind / 2 == 1 ? 2 : 0;
        plan.elem_lanes = (uint8_t)(kind / 2 >= 2 ? kind / 2 : 0);
        check_plan(&plan, 1 + (uint32_t)sml_prng_below(&prng, 64), chunk_bytes[i], 1u << sml_prng_below(&prng, 10));
      }
}

static void small_sizes_are_covered_once(void **state) {
  (void)state;
  static const uint32_t chunk_bytes[] = {4, 8, 12, 32, 64};
  for (size_t i = 0; i < SML_ARRAY_LEN(chunk_bytes); i++)
    for (uint32_t num_lanes = 1; num_lanes <= 16; num_lanes++)
      for (uint64_t num_elems = 1; num_elems <= 130; num_elems++)
        for (uint32_t has_exponents = 0; has_exponents < 2; has_exponents++)
          check_operation(num_elems, has_exponents != 0, num_lanes, chunk_bytes[i], 1u << (num_elems % 4));
}

static void log_uniform_sizes_are_covered_once(void **state) {
  (void)state;
  static const uint32_t chunk_bytes[] = {256, 1024, 1440, 8928};
  struct sml_prng prng = {.state = 11};
  for (int round = 0; round < 400; round++) {
    const uint64_t bound = UINT64_C(1) << sml_prng_below(&prng, 24);
    check_operation(1 + sml_prng_below(&prng, bound), round % 3 != 0, 1 + (uint32_t)sml_prng_below(&prng, 16),
                    chunk_bytes[sml_prng_below(&prng, 4)], 1u << sml_prng_below(&prng, 10));
  }
}

static struct sml_range range_of(uint32_t chunk_bytes, uint32_t num_slots) {
  const struct sml_operation_plan plan = make_plan(1, true);
  struct sml_range r;
  sml_range_make(&r, &plan, 0, 1, chunk_bytes, num_slots);
  return r;
}

static void edges_of_chunk_and_group(void **state) {
  (void)state;
  static const uint32_t chunk_bytes[] = {4, 128, 1440, 8928};
  for (size_t i = 0; i < SML_ARRAY_LEN(chunk_bytes); i++) {
    const struct sml_range r = range_of(chunk_bytes[i], 64);
    const uint64_t chunk = r.chunk_elems, group = chunk * r.group_chunks;
    for (uint64_t groups = 0; groups <= 3; groups++)
      for (uint32_t num_lanes = 1; num_lanes <= 3; num_lanes++)
        for (int edge = 0; edge < 6; edge++) {
          const uint64_t offsets[] = {(uint64_t)-1, 0, 1, chunk - 1, chunk, chunk + 1};
          const uint64_t num_elems = groups * group * num_lanes + offsets[edge];
          if (num_elems == 0 || num_elems == UINT64_MAX) continue;
          check_operation(num_elems, true, num_lanes, chunk_bytes[i], 64);
          check_operation(num_elems, false, num_lanes, chunk_bytes[i], 64);
        }
  }
}

static void groups_are_sized_for_the_lane(void **state) {
  (void)state;
  for (uint32_t chunk_bytes = 4; chunk_bytes <= 8928; chunk_bytes += 4)
    for (uint32_t num_slots = 1; num_slots <= 32768; num_slots *= 2) {
      const struct sml_range r = range_of(chunk_bytes, num_slots);
      const uint64_t group_elems = (uint64_t)r.group_chunks * r.chunk_elems;
      assert_int_equal(group_elems % BLOCK_ELEMS, 0);
      assert_in_range(group_elems / BLOCK_ELEMS, 1, chunk_bytes); /* its codes fit one packet */
      assert_true(r.lead_groups >= 1 && (uint64_t)r.lead_groups * r.group_chunks >= 4 * num_slots);
      assert_true((uint64_t)(r.lead_groups - 1) * r.group_chunks < 4 * num_slots); /* and no more than that */
    }
  const struct sml_range usual = range_of(1440, 256), jumbo = range_of(8928, 64), many_slots = range_of(1440, 1024);
  assert_true(usual.group_chunks == 1024 && usual.lead_groups == 1);
  assert_true(jumbo.group_chunks == 256 && jumbo.lead_groups == 1);
  assert_true(many_slots.group_chunks == 1024 && many_slots.lead_groups == 4);
}

/* Too large to walk: look at both ends of each lane and of some groups. */
static void huge_counts_do_not_overflow(void **state) {
  (void)state;
  static const uint64_t counts[] = {UINT64_C(1) << 31, (UINT64_C(1) << 32) - 1, (UINT64_C(1) << 32) + 1,
                                    (UINT64_C(1) << 40) - 1, UINT64_C(1) << 40};
  struct sml_prng prng = {.state = 12};
  for (size_t i = 0; i < SML_ARRAY_LEN(counts); i++) {
    for (uint32_t num_lanes = 1; num_lanes <= 16; num_lanes += 5) {
      const struct sml_operation_plan plan = make_plan(counts[i], i % 2 == 0);
      uint64_t next_elem = 0;
      for (uint32_t lane = 0; lane < num_lanes; lane++) {
        struct sml_range r;
        struct sml_chunk c;
        sml_range_make(&r, &plan, lane, num_lanes, 1024, 256); /* a chunk is a block */
        assert_int_equal(r.first_elem, next_elem);
        next_elem += r.num_elems;
        assert_int_equal(r.num_data_chunks, sml_div_ceil(r.num_elems, 256));
        if (plan.block_elems != 0) assert_int_equal(r.num_groups, sml_div_ceil(r.num_data_chunks, 1024));
        sml_range_chunk(&r, r.num_chunks - 1, &c);
        assert_false(c.is_exponent);
        assert_int_equal(c.first_elem + c.num_elems, next_elem);
        for (int k = 0; k < 1000; k++) {
          sml_range_chunk(&r, sml_prng_below(&prng, r.num_chunks), &c);
          assert_true(c.data_chunk < r.num_data_chunks);
          assert_int_equal(c.first_elem, r.first_elem + c.data_chunk * 256);
          if (plan.block_elems != 0) assert_int_equal(c.group, c.data_chunk / 1024);
        }
      }
      assert_int_equal(next_elem, counts[i]);
    }
  }
}

/* ---- tags ---- */

static void tags_differ_in_each_field(void **state) {
  (void)state;
  const struct sml_operation_plan base = {.number = 5, .num_elems = 1000, .key = 9};
  uint64_t bases[2 * 64 * 3 + 2 * 8 + 64];
  size_t num_bases = 0;
  bases[num_bases++] = sml_tag_base(&base, 1440, 2);
  for (uint32_t bit = 0; bit < 64; bit++) {
    struct sml_operation_plan plan = base;
    plan.number ^= UINT64_C(1) << bit;
    bases[num_bases++] = sml_tag_base(&plan, 1440, 2);
    plan = base;
    plan.num_elems ^= UINT64_C(1) << bit;
    bases[num_bases++] = sml_tag_base(&plan, 1440, 2);
    plan = base;
    plan.key ^= UINT64_C(1) << bit;
    bases[num_bases++] = sml_tag_base(&plan, 1440, 2);
  }
  struct sml_operation_plan plan = base;
  plan.type = 1;
  bases[num_bases++] = sml_tag_base(&plan, 1440, 2);
  plan.reduction = 1;
  bases[num_bases++] = sml_tag_base(&plan, 1440, 2);
  plan.type = 0;
  bases[num_bases++] = sml_tag_base(&plan, 1440, 2);
  bases[num_bases++] = sml_tag_base(&base, 1440, 1);
  bases[num_bases++] = sml_tag_base(&base, 1440, 3);
  bases[num_bases++] = sml_tag_base(&base, 1436, 2);
  bases[num_bases++] = sml_tag_base(&base, 8928, 2);
  /* Fields that swap their values must not cancel out. */
  plan = (struct sml_operation_plan){.number = 1000, .num_elems = 5, .key = 9};
  bases[num_bases++] = sml_tag_base(&plan, 1440, 2);
  plan = (struct sml_operation_plan){.number = 9, .num_elems = 1000, .key = 5};
  bases[num_bases++] = sml_tag_base(&plan, 1440, 2);
  assert_true(num_bases <= SML_ARRAY_LEN(bases));
  for (size_t i = 0; i < num_bases; i++)
    for (size_t k = 0; k < i; k++) {
      assert_true(bases[i] != bases[k]);
      assert_int_not_equal(sml_tag(bases[i], 0), sml_tag(bases[k], 0));
    }
}

static int compare_tags(const void *a, const void *b) {
  const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

/* 2^14 tags of 32 bits: chance alone gives 0.03 equal pairs. */
static void tags_differ_in_position_and_operation(void **state) {
  (void)state;
  enum { NUM_OPERATIONS = 64, NUM_POSITIONS = 256 };
  static uint32_t tags[NUM_OPERATIONS * NUM_POSITIONS];
  for (uint64_t number = 0; number < NUM_OPERATIONS; number++) {
    const struct sml_operation_plan plan = {.number = number, .num_elems = 1 << 20};
    const uint64_t base = sml_tag_base(&plan, 1440, 1);
    assert_true(base == sml_tag_base(&plan, 1440, 1));
    for (uint64_t position = 0; position < NUM_POSITIONS; position++)
      tags[number * NUM_POSITIONS + position] = sml_tag(base, position);
  }
  qsort(tags, SML_ARRAY_LEN(tags), sizeof tags[0], compare_tags);
  for (size_t i = 1; i < SML_ARRAY_LEN(tags); i++) assert_int_not_equal(tags[i], tags[i - 1]);
}

/* Part of wire version 1: members built from different sources must agree. */
static void tags_are_golden(void **state) {
  (void)state;
  const struct sml_operation_plan plan = {
      .number = 3, .num_elems = 1000003, .key = UINT64_C(0x0123456789abcdef), .type = 0, .reduction = 1};
  const uint64_t base = sml_tag_base(&plan, 1440, 4);
  assert_true(base == UINT64_C(0x401bc2185ea79e41));
  assert_int_equal(sml_tag(base, 0), 0x54557b2e);
  assert_int_equal(sml_tag(base, 1), 0x73165519);
  assert_int_equal(sml_tag(base, UINT64_C(1) << 33), 0x75ae5b5d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(other_formats_have_the_same_blocks),
      cmocka_unit_test(small_sizes_are_covered_once),
      cmocka_unit_test(log_uniform_sizes_are_covered_once),
      cmocka_unit_test(edges_of_chunk_and_group),
      cmocka_unit_test(groups_are_sized_for_the_lane),
      cmocka_unit_test(huge_counts_do_not_overflow),
      cmocka_unit_test(tags_differ_in_each_field),
      cmocka_unit_test(tags_differ_in_position_and_operation),
      cmocka_unit_test(tags_are_golden),
  };
  return cmocka_run_group_tests_name("stream", tests, NULL, NULL);
}
