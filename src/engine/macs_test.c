/* SPDX-License-Identifier: Apache-2.0
 * MACs made together give each received frame the verdict that it would get alone. */
#include "engine/macs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define FRAMES 40u
#define MOST_BYTES 128u

static const struct sml_seal KEYS[2] = {{.is_keyed = true, .key = {1, 2}}, {.is_keyed = true, .key = {1, 3}}};

/* Frames as the network may bring them: runs and none, of two jobs, sources and keys, of some lengths, some changed
 * after they were made, some without a MAC. */
struct burst {
  uint8_t bytes[FRAMES][MOST_BYTES];
  struct sml_rx_frame frames[FRAMES];
  struct sml_addr sources[2];
};

static void fill(struct burst *b, struct sml_prng *prng) {
  uint32_t source = 0, job = 0, payload_bytes = 0, key = 0;
  for (uint32_t i = 0; i < 2; i++) b->sources[i] = (struct sml_addr){.bytes = {(uint8_t)i}, .num_bytes = 4};
  for (uint32_t i = 0; i < FRAMES; i++) {
    if (sml_prng_below(prng, 8) == 0) source = (uint32_t)sml_prng_below(prng, 2);
    if (sml_prng_below(prng, 8) == 0) job = (uint32_t)sml_prng_below(prng, 2);
    if (sml_prng_below(prng, 8) == 0) key = (uint32_t)sml_prng_below(prng, 2);
    if (sml_prng_below(prng, 8) == 0) payload_bytes = 4 * (uint32_t)sml_prng_below(prng, 4);
    const bool is_keyed = sml_prng_below(prng, 16) != 0;
    struct sml_header h = {.version = SML_WIRE_VERSION, .type = SML_PACKET_UPDATE, .reducer = SML_REDUCE_SUM,
                           .wire = SML_LANES_INT32, .job = (uint16_t)job, .epoch = 7, .slot = (uint16_t)i,
                           .payload_bytes = (uint16_t)payload_bytes};
    const uint32_t num_bytes = sml_head_bytes(is_keyed) + payload_bytes;
    for (uint32_t k = 0; k < MOST_BYTES; k++) b->bytes[i][k] = (uint8_t)sml_prng_next(prng);
    sml_wire_seal(b->bytes[i], &h, is_keyed ? &KEYS[key] : NULL);
    if (sml_prng_below(prng, 10) == 0) b->bytes[i][28 + sml_prng_below(prng, num_bytes - 28 + 1)] ^= 1;
    b->frames[i] = (struct sml_rx_frame){.data = b->bytes[i], .num_bytes = num_bytes, .from = &b->sources[source]};
  }
}

static void as_alone(void **state) {
  (void)state;
  struct sml_prng prng = {.state = 7};
  uint32_t num_authentic = 0, num_refused = 0;
  struct sml_macs macs = {.num_frames = 0};
  for (uint32_t round = 0; round < 400; round++) {
    struct burst b;
    fill(&b, &prng);
    macs.is_per_source = round % 2 == 1;
    sml_macs_begin(&macs);
    for (uint32_t i = 0; i < FRAMES; i++) {
      struct sml_header h;
      if (sml_wire_open(b.frames[i].data, b.frames[i].num_bytes, &h) != SML_WIRE_OK) continue;
      const struct sml_seal *key = sml_prng_below(&prng, 8) == 0 ? NULL : &KEYS[h.job]; /* the right one, often */
      const bool is_authentic = sml_wire_is_authentic(b.frames[i].data, &h, key);
      assert_int_equal(sml_macs_check(&macs, &b.frames[i], b.frames + FRAMES, &h, key), is_authentic);
      num_authentic += is_authentic;
      num_refused += !is_authentic;
    }
  }
  assert_true(num_authentic > 1000 && num_refused > 1000);
}

/* The first check makes the MACs of all frames of one job and length; where each source has a key of its own, those
 * of that source's frames. */
static void runs_are_made_at_once(void **state) {
  (void)state;
  struct burst b = {.sources = {{.bytes = {1}, .num_bytes = 4}, {.bytes = {2}, .num_bytes = 4}}};
  struct sml_header h = {.version = SML_WIRE_VERSION, .type = SML_PACKET_UPDATE, .reducer = SML_REDUCE_SUM,
                         .wire = SML_LANES_INT32, .payload_bytes = 8};
  for (uint32_t i = 0; i < FRAMES; i++) {
    h.payload_bytes = i == 12 ? 4 : 8;
    sml_wire_seal(b.bytes[i], &h, &KEYS[0]);
    b.frames[i] = (struct sml_rx_frame){.data = b.bytes[i], .num_bytes = sml_head_bytes(true) + h.payload_bytes,
                                        .from = &b.sources[i >= 5]};
  }
  assert_int_equal(sml_wire_open(b.bytes[0], b.frames[0].num_bytes, &h), SML_WIRE_OK);
  static const struct {
    bool is_per_source;
    uint32_t first, num_frames;
  } rows[] = {{false, 0, 8}, {false, 8, 4}, {false, 13, 8}, {false, FRAMES - 3, 3}, {true, 0, 5}, {true, 5, 7}};
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    struct sml_macs macs = {.is_per_source = rows[i].is_per_source};
    sml_macs_begin(&macs);
    assert_true(sml_macs_check(&macs, &b.frames[rows[i].first], b.frames + FRAMES, &h, &KEYS[0]));
    assert_int_equal(macs.num_frames, rows[i].num_frames);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(as_alone), cmocka_unit_test(runs_are_made_at_once)};
  return cmocka_run_group_tests_name("macs", tests, NULL, NULL);
}
