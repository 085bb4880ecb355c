/* SPDX-License-Identifier: Apache-2.0
 * The test vectors of docs/PROTOCOL.md section 10: a second implementation checks itself against them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/stream.h"
#include "core/wire.h"
#include "quant/check.h"

static const struct sml_operation_plan PLAN = {
    .number = 7, .num_elems = 1000, .key = UINT64_C(0x1122334455667788), .block_elems = SML_BLOCK_ELEMS};

static const uint8_t CODE = 127;

static void tags(void **state) {
  (void)state;
  const uint64_t base = sml_tag_base(&PLAN, 1440, 1);
  assert_true(base == UINT64_C(0xcf2a5ef6615de8f5));
  assert_int_equal(sml_tag(base, 0), 0xfbbfaa87);
  assert_int_equal(sml_tag(base, 1), 0x77b30d07);
  assert_int_equal(sml_tag(base, 2), 0xb65392a4);
}

static void update_frame(void **state) {
  (void)state;
  static const uint8_t expected[44] = {
      0x11, 0x00, 0x00, 0x03, 0xde, 0xad, 0xbe, 0xef, 0x00, 0x02, 0x00, 0x0c, 0x01, 0x03, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x05, 0x77, 0xb3, 0x0d, 0x07, 0x00, 0x00, 0x00, 0x4d, 0x55, 0xa7,
      0x8f, 0x9c, 0x08, 0x00, 0x00, 0x00, 0xfc, 0x00, 0x00, 0x00, 0x00, 0x06, 0x24, 0xdd};
  static const float block[3] = {1.0f, -0.5f, 3.0e-3f};
  uint8_t frame[44];
  assert_int_equal(sml_quant_scalar.block_code(block, 3), 127);
  sml_quant_scalar.quantize(frame + SML_HEADER_BYTES, block, 3, 127, 4);
  const struct sml_header h = {.version = 1, .type = SML_PACKET_UPDATE, .job = 3, .epoch = 0xdeadbeef,
                               .rank = 2, .payload_bytes = 12, .slot = 259, .phase = 5,
                               .tag = 0x77b30d07, .chunk = 77};
  sml_wire_seal(frame, &h, NULL);
  assert_memory_equal(frame, expected, sizeof expected);
}

/* Rank 2's update again, with a check word, and that with a MAC. */
static void checked_and_keyed_frames(void **state) {
  (void)state;
  static const uint32_t checked[12] = {0x11000003, 0xdeadbeef, 0x00020010, 0x01030004, 0x00000005, 0x77b30d07,
                                       0x0000004d, 0xac91ee0b, 0x08000000, 0xfc000000, 0x000624dd, 0x106825d5};
  static const uint32_t keyed[13] = {0x11000003, 0xdeadbeef, 0x00020010, 0x01030006, 0x00000005, 0x77b30d07,
                                     0x0000004d, 0xea1f80bf, 0x05d415b2,
                                     0x08000000, 0xfc000000, 0x000624dd, 0x106825d5};
  const struct sml_key of_epoch = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)};
  const struct sml_seal key = sml_seal_of_key(&of_epoch);
  const struct sml_check check = sml_check_make(0xdeadbeef, 0x77b30d07, &CODE, 1);
  const struct sml_header h = {.version = 1, .type = SML_PACKET_UPDATE, .job = 3, .epoch = 0xdeadbeef,
                               .rank = 2, .payload_bytes = 16, .slot = 259, .flags = SML_FLAG_CHECKED,
                               .phase = 5, .tag = 0x77b30d07, .chunk = 77};
  uint8_t lanes[16], frame[64];
  for (uint32_t i = 0; i < 3; i++) sml_store_be32(lanes + 4 * i, checked[8 + i]);
  sml_store_be32(lanes + 12, sml_check_word(&sml_quant_scalar, &check, lanes, 3, 1, sml_check_rank(2)));
  memcpy(frame + 32, lanes, sizeof lanes);
  sml_wire_seal(frame, &h, NULL);
  for (uint32_t i = 0; i < 12; i++) assert_int_equal(sml_load_be32(frame + 4 * i), checked[i]);
  const struct sml_seal masked = {.mask = 0x5ec2e7d1};
  sml_wire_seal(frame, &h, &masked);
  assert_int_equal(sml_load_be32(frame + 28), 0xf25309da);
  memcpy(frame + 36, lanes, sizeof lanes);
  sml_wire_seal(frame, &h, &key);
  for (uint32_t i = 0; i < 13; i++) assert_int_equal(sml_load_be32(frame + 4 * i), keyed[i]);
}

static void check_words(void **state) {
  (void)state;
  static const uint32_t t[3] = {0x01fce553, 0x04f8d29f, 0x0f8c1dbd};
  static const uint32_t ranks[4] = {0x01fce552, 0x9f505634, 0x079f4ece, 0x0f8b8b36};
  static const uint32_t words[4] = {0x011b2b99, 0xf166861b, 0x106825d5, 0x6a3fde94};
  static const uint8_t update[12] = {0x08, 0, 0, 0, 0xfc, 0, 0, 0, 0, 0x06, 0x24, 0xdd}, zeros[12];
  static const uint8_t sum[12] = {0x18, 0, 0, 0, 0xf4, 0, 0, 0, 0, 0x12, 0x6e, 0x97};
  const struct sml_quant_kernels *k = &sml_quant_scalar;
  const struct sml_check check = sml_check_make(0xdeadbeef, 0x77b30d07, &CODE, 1);
  assert_true(check.multiplier == 0x9da2ff05 && check.a == 0xf6ff917e && check.b == 0x87cc29d1);
  for (uint32_t i = 0; i < 3; i++) assert_int_equal(sml_check_table[i], t[i]);
  for (uint32_t w = 0; w < 4; w++) {
    assert_int_equal(sml_check_rank(w), ranks[w]);
    assert_int_equal(sml_check_word(k, &check, w < 3 ? update : zeros, 3, 1, ranks[w]), words[w]);
  }
  assert_int_equal(sml_check_word(k, &check, sum, 3, 4, sml_check_ranks(4)), 0x6d29b61d);
}

static void result_values(void **state) {
  (void)state;
  static const uint8_t lanes[12] = {0x18, 0, 0, 0, 0xf4, 0, 0, 0, 0, 0x12, 0x6e, 0x97};
  static const float sum[3] = {0x1.8p+1f, -0x1.8p+0f, 0x1.26e97p-7f};
  static const float average[3] = {0x1.8p-1f, -0x1.8p-2f, 0x1.26e97p-9f};
  float out[3];
  sml_quant_scalar.dequantize(out, lanes, 3, 127, 4, false);
  assert_memory_equal(out, sum, sizeof sum);
  sml_quant_scalar.dequantize(out, lanes, 3, 127, 4, true);
  assert_memory_equal(out, average, sizeof average);
}

static void stream_positions(void **state) {
  (void)state;
  struct sml_operation_plan plan = PLAN;
  plan.num_elems = 10000000;
  struct sml_range r;
  sml_range_make(&r, &plan, 1, 3, 1440, 256);
  assert_true(r.first_elem == 3333376 && r.num_elems == 3333376);
  assert_true(r.num_data_chunks == 9260 && r.num_groups == 10 && r.group_chunks == 1024);
  static const struct {
    uint64_t position, first_elem;
    uint32_t group, num_elems;
    bool is_exponent;
  } expected[] = {{0, 3333376, 0, 1440, true},
                  {1, 3702016, 1, 1440, true},
                  {2, 3333376, 0, 360, false},
                  {1026, 4070656, 2, 1440, true},
                  {9269, 6666616, 9, 136, false}};
  for (size_t i = 0; i < SML_ARRAY_LEN(expected); i++) {
    struct sml_chunk c;
    sml_range_chunk(&r, expected[i].position, &c);
    assert_int_equal(c.is_exponent, expected[i].is_exponent);
    assert_int_equal(c.group, expected[i].group);
    assert_true(c.first_elem == expected[i].first_elem && c.num_elems == expected[i].num_elems);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tags),        cmocka_unit_test(update_frame),  cmocka_unit_test(checked_and_keyed_frames),
      cmocka_unit_test(check_words), cmocka_unit_test(result_values), cmocka_unit_test(stream_positions),
  };
  return cmocka_run_group_tests_name("protocol_vectors", tests, NULL, NULL);
}
