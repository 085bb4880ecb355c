/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/frames.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define NUM_BYTES 74u /* Ethernet, IPv4, UDP, the header */

/* A packet of this version and type from 02:00:00:00:00:01 to 10.0.0.254:48879, of job 7. */
static void make(uint8_t frame[NUM_BYTES], uint8_t version_type) {
  static const uint8_t head[42] = {2,    0, 0,  0,  0, 0xfe, 2,    0,    0,    0,    0,    1,    8,    0,
                                   0x45, 0, 0,  60, 0, 1,    0x40, 0,    64,   17,   0xab, 0xcd, 10,   0,
                                   0,    1, 10, 0,  0, 0xfe, 0x12, 0x34, 0xbe, 0xef, 0,    40,   0x55, 0xaa};
  memset(frame, 0, NUM_BYTES);
  memcpy(frame, head, sizeof head);
  frame[42] = version_type;
  sml_store_be16(frame + 44, 7);
}

static void frames_that_are_cut_off_are_told(void **state) {
  uint8_t frame[NUM_BYTES + 6];
  (void)state;
  make(frame, 0x11);
  assert_true(sml_frame_is_whole(frame, NUM_BYTES));
  assert_true(sml_frame_is_whole(frame, NUM_BYTES + 6)); /* Ethernet's padding */
  for (uint32_t n = 0; n < NUM_BYTES; n++) assert_false(sml_frame_is_whole(frame, n));
  sml_store_be16(frame + 12, 0x0806); /* ARP: nothing is said about its length */
  assert_true(sml_frame_is_whole(frame, 14));
  assert_false(sml_frame_is_whole(frame, 13));
}

static void a_frame_tells_its_job(void **state) {
  static const struct {
    uint32_t at;
    uint8_t value;
  } others[] = {{12, 0x86}, {14, 0x46}, {20, 0x20}, {21, 1}, {23, 6}};
  uint8_t frame[NUM_BYTES];
  (void)state;
  make(frame, 0x12);
  assert_int_equal(sml_frame_job(frame, NUM_BYTES), 7);
  assert_int_equal(sml_frame_job(frame, NUM_BYTES - 1), SML_NO_JOB);
  for (uint32_t i = 0; i < SML_ARRAY_LEN(others); i++) { /* not IPv4; options; fragments; not UDP */
    make(frame, 0x12);
    frame[others[i].at] = others[i].value;
    assert_int_equal(sml_frame_job(frame, NUM_BYTES), SML_NO_JOB);
  }
}

static void a_copy_is_its_receivers(void **state) {
  const struct sml_replica to = {.mac = 0x0600deadbeefull, .ip = 0x0a000002, .udp_port = 4711};
  uint8_t frame[NUM_BYTES], before[NUM_BYTES];
  uint32_t sum = 0;
  (void)state;
  make(frame, 0x12);
  memcpy(before, frame, NUM_BYTES);
  sml_frame_readdress(frame, &to);
  assert_memory_equal(frame, "\x06\x00\xde\xad\xbe\xef", 6);
  assert_int_equal(sml_load_be32(frame + 30), 0x0a000002);
  assert_int_equal(sml_load_be16(frame + 36), 4711);
  assert_int_equal(sml_load_be16(frame + 40), 0);
  for (uint32_t at = 14; at < 34; at += 2) sum += sml_load_be16(frame + at);
  assert_int_equal((sum & 0xffff) + (sum >> 16), 0xffff); /* the checksum is right */
  assert_memory_equal(frame + 6, before + 6, 18);
  assert_memory_equal(frame + 26, before + 26, 4);
  assert_memory_equal(frame + 42, before + 42, NUM_BYTES - 42);
}

static void hellos_say_where_they_come_from(void **state) {
  const struct sml_greeting ours = {.ip = 0x0a0000fe, .voucher = 0x5a5b5c5d, .udp_port = 48879};
  const struct sml_greeting others[] = {{.ip = 0x0a0000fd, .udp_port = 48879}, {.ip = 0x0a0000fe, .udp_port = 48880}};
  uint8_t frame[NUM_BYTES], before[NUM_BYTES];
  (void)state;
  make(frame, 0x15);
  memcpy(before, frame, NUM_BYTES);
  for (uint32_t i = 0; i < 2; i++) sml_frame_mark_hello(frame, NUM_BYTES, &others[i], 3);
  sml_frame_mark_hello(frame, NUM_BYTES - 1, &ours, 3);
  assert_memory_equal(frame, before, NUM_BYTES);
  sml_frame_mark_hello(frame, NUM_BYTES, &ours, 3);
  assert_int_equal(sml_load_be16(frame + 54), 3);
  assert_int_equal(sml_load_be32(frame + 58), 0x02000000);
  assert_int_equal(sml_load_be32(frame + 62), 0x0001);
  assert_int_equal(sml_load_be32(frame + 70), 0x5a5b5c5d);
  assert_int_equal(sml_load_be16(frame + 40), 0);
  make(frame, 0x11); /* an update */
  memcpy(before, frame, NUM_BYTES);
  sml_frame_mark_hello(frame, NUM_BYTES, &ours, 3);
  assert_memory_equal(frame, before, NUM_BYTES);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(frames_that_are_cut_off_are_told),
      cmocka_unit_test(a_frame_tells_its_job),
      cmocka_unit_test(a_copy_is_its_receivers),
      cmocka_unit_test(hellos_say_where_they_come_from),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
