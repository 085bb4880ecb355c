/* SPDX-License-Identifier: Apache-2.0
 * The frame: golden bytes, every length, every field wrong alone, every bit flipped. */
#include "core/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static const struct sml_header SAMPLE = {.version = 1, .type = SML_PACKET_RESULT, .wire = SML_LANES_UINT8,
                                         .reducer = SML_REDUCE_MAX, .job = 0x1234, .epoch = 0x56789abc,
                                         .rank = 0x0def, .payload_bytes = 4, .slot = 0x4321,
                                         .flags = SML_FLAG_RETRANSMISSION, .phase = 0xfedcba98,
                                         .tag = 0x01020304, .chunk = 0xa0b0c0d0};

/* Makes the checksum right again after a test wrote into the frame. */
static void reseal(uint8_t *frame, size_t num_bytes) {
  sml_store_be32(frame + 28, 0);
  sml_store_be32(frame + 28, sml_crc32c(0, frame, num_bytes));
}

static void assert_same_header(const struct sml_header *a, const struct sml_header *b) {
  assert_int_equal(a->version, b->version);
  assert_int_equal(a->type, b->type);
  assert_int_equal(a->wire, b->wire);
  assert_int_equal(a->reducer, b->reducer);
  assert_int_equal(a->job, b->job);
  assert_int_equal(a->epoch, b->epoch);
  assert_int_equal(a->rank, b->rank);
  assert_int_equal(a->payload_bytes, b->payload_bytes);
  assert_int_equal(a->slot, b->slot);
  assert_int_equal(a->flags, b->flags);
  assert_int_equal(a->phase, b->phase);
  assert_int_equal(a->tag, b->tag);
  assert_int_equal(a->chunk, b->chunk);
}

static void golden_frame(void **state) {
  (void)state;
  uint8_t frame[36] = {[32] = 0x1b, 0x7e, 0x00, 0xff};
  static const uint8_t golden[36] = {0x12, 0x11, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0x0d, 0xef, 0x00, 0x04,
                                     0x43, 0x21, 0x00, 0x01, 0xfe, 0xdc, 0xba, 0x98, 0x01, 0x02, 0x03, 0x04,
                                     0xa0, 0xb0, 0xc0, 0xd0, 0xbf, 0x59, 0xb1, 0x85, 0x1b, 0x7e, 0x00, 0xff};
  sml_wire_seal(frame, &SAMPLE, NULL);
  assert_memory_equal(frame, golden, sizeof golden);
  struct sml_header h;
  assert_int_equal(sml_wire_open(golden, sizeof golden, &h), SML_WIRE_OK);
  assert_same_header(&h, &SAMPLE);
}

static const struct sml_key KEY = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)};
static struct sml_seal KEYED; /* with that key */

static const struct sml_seal MASKED = {.mask = 0x5ec2e7d1};

static bool is_right(const uint8_t *frame, size_t num_bytes) {
  struct sml_header h;
  return sml_wire_open(frame, num_bytes, &h) == SML_WIRE_OK && sml_wire_is_authentic(frame, &h, NULL);
}

/* The same frame with a MAC, which has the checksum's place and four bytes more. */
static void golden_keyed_frame(void **state) {
  (void)state;
  uint8_t frame[40] = {[36] = 0x1b, 0x7e, 0x00, 0xff}, message[48] = {0};
  sml_wire_seal(frame, &SAMPLE, &KEYED);
  memcpy(message, frame, 28); /* header, its last word zero; the payload's digest */
  sml_nh(&KEYED.digest_key, frame + 36, 4, message + 32);
  assert_true(sml_load_be64(frame + 28) == sml_siphash(&KEY, message, sizeof message));
  struct sml_header h, expected = SAMPLE;
  expected.flags |= SML_FLAG_KEYED;
  assert_int_equal(sml_wire_open(frame, sizeof frame, &h), SML_WIRE_OK);
  assert_same_header(&h, &expected);
  assert_int_equal(sml_head_bytes_of(&h), 36);
  assert_true(sml_wire_is_authentic(frame, &h, &KEYED));
  uint8_t again[40] = {[36] = 0x1b, 0x7e, 0x00, 0xff};
  sml_wire_seal(again, &expected, &KEYED); /* the key decides about the flag */
  assert_memory_equal(again, frame, sizeof frame);
  sml_wire_seal(again, &expected, NULL);
  assert_int_equal(sml_wire_open(again, 36, &h), SML_WIRE_OK);
  assert_int_equal(h.flags, SAMPLE.flags);
}

/* Whoever has not the key cannot make the MAC; nor does a bit that was flipped on the way fit it. */
static void only_the_key_makes_the_mac(void **state) {
  (void)state;
  enum { HEAD_BYTES = SML_HEADER_BYTES + SML_KEYED_BYTES };
  uint8_t good[HEAD_BYTES + 21] = {0}, frame[sizeof good];
  struct sml_header h = SAMPLE;
  uint32_t num_opened = 0;
  h.payload_bytes = 21;
  for (uint8_t i = 0; i < 21; i++) good[HEAD_BYTES + i] = (uint8_t)(i * 37);
  sml_wire_seal(good, &h, &KEYED);
  for (uint32_t bit = 0; bit < 8 * sizeof good; bit++) {
    memcpy(frame, good, sizeof frame);
    frame[bit / 8] ^= (uint8_t)(1u << bit % 8);
    if (sml_wire_open(frame, sizeof frame, &h) != SML_WIRE_OK) continue;
    assert_false(sml_wire_is_authentic(frame, &h, &KEYED));
    num_opened++;
  }
  assert_true(num_opened >= 8 * (sizeof good - 6)); /* all but those of kind, length and flags */
  const struct sml_key others[] = {{KEY.k0 ^ 1, KEY.k1}, {KEY.k0, KEY.k1 ^ UINT64_C(1) << 63}, {0, 0}};
  assert_int_equal(sml_wire_open(good, sizeof good, &h), SML_WIRE_OK);
  for (size_t i = 0; i < SML_ARRAY_LEN(others); i++) {
    const struct sml_seal other = sml_seal_of_key(&others[i]);
    assert_false(sml_wire_is_authentic(good, &h, &other));
  }
}

static void a_tag_is_there_exactly_where_it_is_wanted(void **state) {
  (void)state;
  uint8_t frame[40] = {0};
  struct sml_header h;
  sml_wire_seal(frame, &SAMPLE, NULL);
  assert_int_equal(sml_wire_open(frame, 36, &h), SML_WIRE_OK);
  assert_true(sml_wire_is_authentic(frame, &h, NULL));
  assert_false(sml_wire_is_authentic(frame, &h, &KEYED));
  sml_wire_seal(frame, &SAMPLE, &KEYED);
  assert_int_equal(sml_wire_open(frame, 40, &h), SML_WIRE_OK);
  assert_false(sml_wire_is_authentic(frame, &h, NULL));
}

/* A mask does not make the CRC see less, and whoever does not know it is wrong but for 1 of 2^32. */
static void only_the_mask_makes_the_crc(void **state) {
  (void)state;
  uint8_t frame[36] = {0};
  struct sml_header h;
  sml_wire_seal(frame, &SAMPLE, &MASKED);
  assert_int_equal(sml_wire_open(frame, sizeof frame, &h), SML_WIRE_OK);
  assert_same_header(&h, &SAMPLE);
  assert_true(sml_wire_is_authentic(frame, &h, &MASKED));
  assert_false(sml_wire_is_authentic(frame, &h, NULL));
  assert_false(sml_wire_is_authentic(frame, &h, &KEYED));
  assert_int_equal(sml_wire_mask(frame, &h), MASKED.mask);
  for (uint32_t bit = 0; bit < 32; bit++) {
    const struct sml_seal other = {.mask = MASKED.mask ^ 1u << bit};
    assert_false(sml_wire_is_authentic(frame, &h, &other));
  }
  for (uint32_t bit = 8 * 16; bit < 8 * sizeof frame; bit++) {
    frame[bit / 8] ^= (uint8_t)(1u << bit % 8);
    assert_int_equal(sml_wire_open(frame, sizeof frame, &h), SML_WIRE_OK);
    assert_false(sml_wire_is_authentic(frame, &h, &MASKED));
    frame[bit / 8] ^= (uint8_t)(1u << bit % 8);
  }
  sml_wire_seal(frame, &SAMPLE, NULL); /* what anybody makes */
  assert_int_equal(sml_wire_open(frame, sizeof frame, &h), SML_WIRE_OK);
  assert_true(sml_wire_is_authentic(frame, &h, NULL));
  assert_false(sml_wire_is_authentic(frame, &h, &MASKED));
  const uint64_t secret[2] = {UINT64_C(0x5ec2e7d1) << 32 | 7, 9};
  assert_int_equal(sml_seal_of(NULL, secret).mask, MASKED.mask);
  assert_true(sml_seal_of(&KEYED.key, secret).is_keyed);
}

static void only_sums_of_lanes_have_a_check_word(void **state) {
  (void)state;
  uint8_t frame[SML_HEADER_BYTES] = {0};
  for (uint8_t type = 1; type <= 7; type++) {
    for (uint8_t wire = 0; wire < 2; wire++) {
      struct sml_header h = {.type = type, .wire = wire, .reducer = wire, .flags = SML_FLAG_CHECKED};
      sml_wire_seal(frame, &h, NULL);
      const bool is_sum = wire == 0 && (type == SML_PACKET_UPDATE || type == SML_PACKET_RESULT);
      assert_int_equal(sml_wire_open(frame, sizeof frame, &h), is_sum ? SML_WIRE_OK : SML_WIRE_BAD_TYPE);
    }
  }
}

static void only_updates_of_lanes_are_narrow(void **state) {
  (void)state;
  uint8_t frame[SML_HEADER_BYTES] = {0};
  for (uint8_t type = 1; type <= 7; type++) {
    for (uint8_t wire = 0; wire < 2; wire++) {
      struct sml_header h = {.type = type, .wire = wire, .reducer = wire, .flags = SML_FLAG_NARROW};
      sml_wire_seal(frame, &h, NULL);
      const bool is_fit = wire == 0 && type == SML_PACKET_UPDATE;
      assert_int_equal(sml_wire_open(frame, sizeof frame, &h), is_fit ? SML_WIRE_OK : SML_WIRE_BAD_TYPE);
      h.flags |= SML_FLAG_CHECKED; /* the check word is no lane of a float */
      sml_wire_seal(frame, &h, NULL);
      assert_int_equal(sml_wire_open(frame, sizeof frame, &h), SML_WIRE_BAD_TYPE);
    }
  }
}

static void only_pending_tells_of_marks(void **state) {
  (void)state;
  uint8_t frame[SML_HEADER_BYTES] = {0};
  for (uint8_t type = 1; type <= 7; type++) {
    struct sml_header h = {.type = type, .flags = SML_FLAG_MARKED};
    sml_wire_seal(frame, &h, NULL);
    const bool is_pending = type == SML_PACKET_PENDING;
    assert_int_equal(sml_wire_open(frame, sizeof frame, &h), is_pending ? SML_WIRE_OK : SML_WIRE_BAD_TYPE);
    assert_int_equal(h.flags, SML_FLAG_MARKED);
  }
}

static void random_headers_round_trip(void **state) {
  (void)state;
  static uint8_t frame[SML_MAX_DATAGRAM_BYTES];
  struct sml_prng prng = {.state = 5};
  for (int round = 0; round < 2000; round++) {
    const bool is_exponent = sml_prng_below(&prng, 2) != 0;
    const bool is_keyed = sml_prng_below(&prng, 2) != 0;
    const struct sml_key key = {sml_prng_next(&prng), sml_prng_next(&prng)};
    const struct sml_seal seal = sml_seal_of(is_keyed ? &key : NULL, (const uint64_t[2]){sml_prng_next(&prng), 0});
    const uint32_t head_bytes = sml_head_bytes(is_keyed);
    struct sml_header h = {
        .version = 1,
        .type = (uint8_t)(1 + sml_prng_below(&prng, 7)),
        .wire = is_exponent ? SML_LANES_UINT8 : SML_LANES_INT32,
        .reducer = is_exponent ? SML_REDUCE_MAX : SML_REDUCE_SUM,
        .job = (uint16_t)sml_prng_next(&prng),
        .epoch = (uint32_t)sml_prng_next(&prng),
        .rank = (uint16_t)sml_prng_next(&prng),
        .payload_bytes = (uint16_t)sml_prng_below(&prng, sizeof frame - head_bytes + 1),
        .slot = (uint16_t)sml_prng_next(&prng),
        .flags = (uint16_t)sml_prng_below(&prng, 2),
        .phase = (uint32_t)sml_prng_next(&prng),
        .tag = (uint32_t)sml_prng_next(&prng),
        .chunk = (uint32_t)sml_prng_next(&prng)};
    for (size_t i = 0; i < h.payload_bytes; i++) frame[head_bytes + i] = (uint8_t)sml_prng_next(&prng);
    sml_wire_seal(frame, &h, &seal);
    if (is_keyed) h.flags |= SML_FLAG_KEYED;
    struct sml_header opened;
    assert_int_equal(sml_wire_open(frame, head_bytes + h.payload_bytes, &opened), SML_WIRE_OK);
    assert_true(sml_wire_is_authentic(frame, &opened, &seal));
    assert_same_header(&opened, &h);
  }
}

/* Every other length is refused; the memory is exact, so that a sanitizer sees a read beyond it. */
static void every_other_length_is_refused(void **state) {
  (void)state;
  struct sml_header h = SAMPLE, opened;
  h.payload_bytes = 100;
  uint8_t whole[132] = {0};
  for (uint8_t i = 0; i < 100; i++) whole[SML_HEADER_BYTES + i] = i;
  sml_wire_seal(whole, &h, NULL);
  for (size_t num_bytes = 0; num_bytes <= 200; num_bytes++) {
    uint8_t *frame = malloc(num_bytes + (num_bytes == 0));
    assert_non_null(frame);
    memset(frame, 0, num_bytes);
    memcpy(frame, whole, num_bytes < sizeof whole ? num_bytes : sizeof whole);
    const enum sml_wire_error expected = num_bytes < sizeof whole    ? SML_WIRE_TRUNCATED
                                         : num_bytes > sizeof whole ? SML_WIRE_OVERLONG
                                                                     : SML_WIRE_OK;
    assert_int_equal(sml_wire_open(frame, num_bytes, &opened), expected);
    free(frame);
  }
}

/* In switch format nobody makes a CRC, or looks at one; the rest of the header is looked at as ever. */
static void packets_for_switches_have_no_crc(void **state) {
  (void)state;
  for (uint8_t type = SML_PACKET_UPDATE; type <= SML_PACKET_PROBE; type++) {
    uint8_t frame[36], again[36] = {0};
    struct sml_header h = SAMPLE, opened;
    h.type = type;
    h.flags = 0;
    memset(frame, 0, sizeof frame);
    sml_store_be32(frame + 28, 0xa5a5a5a5);
    sml_wire_seal_for_switch(frame, &h);
    assert_int_equal(sml_load_be32(frame + 28), 0);
    assert_int_equal(sml_wire_open(frame, sizeof frame, &opened), SML_WIRE_OK);
    assert_false(sml_wire_is_authentic(frame, &opened, NULL));
    sml_wire_seal_for_switch(again, &opened);
    assert_memory_equal(again, frame, sizeof frame);
    const bool may_be = type != SML_PACKET_HELLO && type != SML_PACKET_ERROR;
    assert_int_equal(sml_wire_is_without_crc(&opened), may_be);
    opened.flags = SML_FLAG_CHECKED; /* these are codes */
    assert_false(sml_wire_is_without_crc(&opened));
  }
}

static void each_field_wrong_alone(void **state) {
  (void)state;
  uint8_t good[36] = {0}, frame[36];
  struct sml_header h;
  sml_wire_seal(good, &SAMPLE, NULL);
  for (uint32_t value = 0; value < 256; value++) {
    memcpy(frame, good, sizeof frame);
    frame[0] = (uint8_t)value; /* version and type */
    reseal(frame, sizeof frame);
    const uint32_t type = value & 15;
    const enum sml_wire_error expected = value >> 4 != 1          ? SML_WIRE_BAD_VERSION
                                         : type >= 1 && type <= 7 ? SML_WIRE_OK
                                                                  : SML_WIRE_BAD_TYPE;
    assert_int_equal(sml_wire_open(frame, sizeof frame, &h), expected);
    memcpy(frame, good, sizeof frame);
    frame[1] = (uint8_t)value; /* wire type and reducer go together */
    reseal(frame, sizeof frame);
    const bool is_known = value == 0x00 || value == 0x11 || value == 0x21 || value == 0x31 || value == 0x24 ||
                          value == 0x34 || value == 0x25 || value == 0x02 || value == 0x13;
    assert_int_equal(sml_wire_open(frame, sizeof frame, &h), is_known ? SML_WIRE_OK : SML_WIRE_BAD_TYPE);
  }
  for (uint32_t bit = 0; bit < 16; bit++) {
    memcpy(frame, good, sizeof frame);
    sml_store_be16(frame + 14, (uint16_t)(1u << bit));
    reseal(frame, sizeof frame);
    const enum sml_wire_error expected = bit == 0   ? SML_WIRE_OK
                                         : bit == 1 ? SML_WIRE_TRUNCATED /* KEYED: the extension is missing */
                                                    : SML_WIRE_BAD_TYPE; /* CHECKED: these are exponents */
    assert_int_equal(sml_wire_open(frame, sizeof frame, &h), expected);
  }
  for (uint32_t payload_bytes = 0; payload_bytes < 65536; payload_bytes += 1 + payload_bytes / 16) {
    memcpy(frame, good, sizeof frame);
    sml_store_be16(frame + 10, (uint16_t)payload_bytes);
    reseal(frame, sizeof frame);
    const enum sml_wire_error expected = payload_bytes < 4   ? SML_WIRE_OVERLONG
                                         : payload_bytes > 4 ? SML_WIRE_TRUNCATED
                                                             : SML_WIRE_OK;
    assert_int_equal(sml_wire_open(frame, sizeof frame, &h), expected);
  }
}

/* One or two flipped bits of a frame are always seen: CRC-32C has distance 4 at this length. */
static void every_flipped_bit_is_refused(void **state) {
  (void)state;
  uint8_t frame[SML_HEADER_BYTES + 64];
  const uint32_t num_bits = 8 * sizeof frame;
  struct sml_header h = SAMPLE, opened;
  h.payload_bytes = 64;
  for (uint8_t i = 0; i < 64; i++) frame[SML_HEADER_BYTES + i] = (uint8_t)(i * 37);
  sml_wire_seal(frame, &h, NULL);
  for (uint32_t i = 0; i < num_bits; i++) {
    frame[i / 8] ^= (uint8_t)(1u << i % 8);
    assert_false(is_right(frame, sizeof frame));
    for (uint32_t k = i + 1; k < num_bits; k++) {
      frame[k / 8] ^= (uint8_t)(1u << k % 8);
      assert_false(is_right(frame, sizeof frame));
      frame[k / 8] ^= (uint8_t)(1u << k % 8);
    }
    frame[i / 8] ^= (uint8_t)(1u << i % 8);
  }
  assert_int_equal(sml_wire_open(frame, sizeof frame, &opened), SML_WIRE_OK);
}

static void garbage_is_refused(void **state) {
  (void)state;
  struct sml_prng prng = {.state = 6};
  for (int round = 0; round < 20000; round++) {
    const size_t num_bytes = (size_t)sml_prng_below(&prng, 80);
    uint8_t *frame = malloc(num_bytes + (num_bytes == 0));
    assert_non_null(frame);
    for (size_t i = 0; i < num_bytes; i++) frame[i] = (uint8_t)sml_prng_next(&prng);
    if (num_bytes >= SML_HEADER_BYTES && round % 2 == 0) {
      frame[0] = 0x11; /* deeper into the checks */
      sml_store_be16(frame + 10, (uint16_t)(num_bytes - SML_HEADER_BYTES));
    }
    struct sml_header h;
    assert_int_not_equal(sml_wire_open(frame, num_bytes, &h), SML_WIRE_OK);
    free(frame);
  }
}

int main(void) {
  KEYED = sml_seal_of_key(&KEY);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(golden_frame),
      cmocka_unit_test(golden_keyed_frame),
      cmocka_unit_test(only_the_key_makes_the_mac),
      cmocka_unit_test(a_tag_is_there_exactly_where_it_is_wanted),
      cmocka_unit_test(only_the_mask_makes_the_crc),
      cmocka_unit_test(only_sums_of_lanes_have_a_check_word),
      cmocka_unit_test(only_updates_of_lanes_are_narrow),
      cmocka_unit_test(only_pending_tells_of_marks),
      cmocka_unit_test(random_headers_round_trip),
      cmocka_unit_test(every_other_length_is_refused),
      cmocka_unit_test(packets_for_switches_have_no_crc),
      cmocka_unit_test(each_field_wrong_alone),
      cmocka_unit_test(every_flipped_bit_is_refused),
      cmocka_unit_test(garbage_is_refused),
  };
  return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
