/* SPDX-License-Identifier: Apache-2.0
 * Control frames with MACs: whatever is changed, dropped, repeated, moved or sent back is refused. */
#include "ctl/channel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "switchml/switchml.h"

static const struct sml_key key = {0x1122, 0x3344}, other_key = {0x1122, 0x3345};
static const uint64_t up_nonce[2] = {1, 2}, down_nonce[2] = {3, 4};

struct frame {
  uint8_t bytes[SML_CHANNEL_MAX_FRAME_BYTES];
  size_t num_bytes;
};
static struct sml_channel worker, daemon_end;
static struct sml_ctl_message out;

static struct frame encode(struct sml_channel *from, const struct sml_ctl_message *m) {
  struct frame f = {.num_bytes = 0};
  f.num_bytes = sml_channel_encode(from, m, f.bytes, sizeof f.bytes);
  assert_true(f.num_bytes > 0);
  return f;
}
static struct frame heartbeat(struct sml_channel *from, uint64_t completed) {
  struct sml_ctl_message m = {.kind = SML_CTL_HEARTBEAT, .u.heartbeat.operations_completed = completed};
  return encode(from, &m);
}
static enum sml_ctl_decode decode(struct sml_channel *to, const struct frame *f) {
  size_t consumed = 99;
  uint8_t *exact = malloc(f->num_bytes + 1); /* the sanitizer sees a byte too far */
  assert_non_null(exact);
  memcpy(exact, f->bytes, f->num_bytes);
  enum sml_ctl_decode verdict = sml_channel_decode(to, exact, f->num_bytes, &out, &consumed);
  free(exact);
  assert_int_equal(consumed, verdict == SML_CTL_DECODED ? f->num_bytes : 0);
  return verdict;
}

static struct sml_ctl_message join_message(void) {
  struct sml_ctl_message m = {.kind = SML_CTL_JOIN};
  m.u.join = (struct sml_ctl_join){.job_name = "x",
                                   .rank = 1,
                                   .world_size = 2,
                                   .num_lanes = 1,
                                   .num_slots = 16,
                                   .max_datagram_bytes = 1472,
                                   .lease_ns = 1,
                                   .join_timeout_ns = 1,
                                   .key_name = "a",
                                   .nonce = {up_nonce[0], up_nonce[1]}};
  return m;
}

/* JOIN and CHALLENGE, then both have their key. */
static void shake(const struct sml_key *worker_key) {
  struct sml_ctl_message join = join_message(), challenge = {.kind = SML_CTL_CHALLENGE};
  challenge.u.challenge = (struct sml_ctl_challenge){{down_nonce[0], down_nonce[1]}};
  sml_channel_init(&worker, false);
  sml_channel_init(&daemon_end, true);
  struct frame f = encode(&worker, &join);
  assert_int_equal(decode(&daemon_end, &f), SML_CTL_DECODED);
  f = encode(&daemon_end, &challenge);
  assert_int_equal(decode(&worker, &f), SML_CTL_DECODED);
  sml_channel_set_key(&daemon_end, &key, up_nonce, down_nonce);
  sml_channel_set_key(&worker, worker_key, up_nonce, down_nonce);
}

static void test_both_ways(void **state) {
  (void)state;
  shake(&key);
  for (uint64_t i = 0; i < 100; i++) {
    struct frame up = heartbeat(&worker, i), down = heartbeat(&daemon_end, 1000 + i);
    assert_int_equal(up.num_bytes, SML_CTL_FRAME_BYTES + 24 + SML_CHANNEL_MAC_BYTES);
    assert_int_equal(decode(&daemon_end, &up), SML_CTL_DECODED);
    assert_int_equal(out.u.heartbeat.operations_completed, i);
    assert_int_equal(decode(&worker, &down), SML_CTL_DECODED);
    assert_int_equal(out.u.heartbeat.operations_completed, 1000 + i);
  }
}

/* By what they say: bytes that only pad a struct are nobody's. */
static void assert_same(const struct sml_ctl_message *m, const struct sml_ctl_message *other) {
  static uint8_t frame[SML_CHANNEL_MAX_FRAME_BYTES], again[SML_CHANNEL_MAX_FRAME_BYTES];
  const size_t num_bytes = sml_ctl_encode(m, frame, sizeof frame);
  assert_true(num_bytes > 0);
  assert_int_equal(m->kind, other->kind);
  assert_int_equal(sml_ctl_encode(other, again, sizeof again), num_bytes);
  assert_memory_equal(frame, again, num_bytes);
}

static void test_unkeyed_is_the_plain_codec(void **state) {
  (void)state;
  struct sml_ctl_message m = join_message();
  uint8_t plain[512];
  sml_channel_init(&worker, false);
  sml_channel_init(&daemon_end, true);
  size_t num_bytes = sml_ctl_encode(&m, plain, sizeof plain);
  for (uint32_t i = 0; i < 10; i++) { /* more than the memory of plain frames holds */
    struct frame f = encode(&worker, &m);
    assert_int_equal(f.num_bytes, num_bytes);
    assert_memory_equal(f.bytes, plain, num_bytes);
    assert_int_equal(decode(&daemon_end, &f), SML_CTL_DECODED);
    assert_same(&out, &m);
  }
}

static void test_any_flipped_bit(void **state) {
  (void)state;
  struct sml_ctl_message m = {.kind = SML_CTL_ABORT};
  m.u.abort.status = SML_ERR_ABORTED;
  strcpy(m.u.abort.detail, "why");
  shake(&key);
  struct frame good = encode(&worker, &m);
  for (size_t bit = 0; bit < good.num_bytes * 8; bit++) {
    struct sml_channel copy = daemon_end;
    struct frame bad = good;
    bad.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    assert_int_not_equal(decode(&copy, &bad), SML_CTL_DECODED);
  }
  assert_int_equal(decode(&daemon_end, &good), SML_CTL_DECODED);
}

static void test_order_and_number(void **state) {
  (void)state;
  shake(&key);
  struct frame first = heartbeat(&worker, 1), second = heartbeat(&worker, 2), third = heartbeat(&worker, 3);
  struct sml_channel fresh = daemon_end, copy = fresh;
  assert_int_equal(decode(&copy, &second), SML_CTL_BAD_MAC); /* the first was dropped, or overtaken */
  assert_int_equal(decode(&daemon_end, &first), SML_CTL_DECODED);
  copy = daemon_end;
  assert_int_equal(decode(&copy, &first), SML_CTL_BAD_MAC); /* again */
  copy = daemon_end;
  assert_int_equal(decode(&copy, &third), SML_CTL_BAD_MAC);
  assert_int_equal(decode(&daemon_end, &second), SML_CTL_DECODED);
  assert_int_equal(decode(&daemon_end, &third), SML_CTL_DECODED);
}

static void test_reflected_frame(void **state) {
  (void)state;
  shake(&key);
  struct frame up = heartbeat(&worker, 1), down = heartbeat(&daemon_end, 1);
  assert_int_equal(decode(&worker, &up), SML_CTL_BAD_MAC);
  assert_int_equal(decode(&daemon_end, &down), SML_CTL_BAD_MAC);
  assert_int_equal(up.num_bytes, down.num_bytes);
  assert_memory_equal(up.bytes, down.bytes, up.num_bytes - SML_CHANNEL_MAC_BYTES);
  assert_memory_not_equal(up.bytes, down.bytes, up.num_bytes);
}

static void test_wrong_key_nonce_or_handshake(void **state) {
  (void)state;
  shake(&other_key);
  struct frame f = heartbeat(&worker, 1);
  assert_int_equal(decode(&daemon_end, &f), SML_CTL_BAD_MAC);
  for (uint32_t i = 0; i < 4; i++) { /* each word of the nonces counts */
    uint64_t up[2] = {1, 2}, down[2] = {3, 4};
    (i < 2 ? up : down)[i % 2] ^= 1;
    shake(&key);
    sml_channel_init(&worker, false);
    memcpy(worker.plain, daemon_end.plain, sizeof worker.plain);
    worker.plain_bytes = daemon_end.plain_bytes;
    sml_channel_set_key(&worker, &key, up, down);
    f = heartbeat(&worker, 1);
    assert_int_equal(decode(&daemon_end, &f), SML_CTL_BAD_MAC);
  }
  shake(&key); /* a byte of the plain JOIN was another one here */
  sml_channel_init(&worker, false);
  memcpy(worker.plain, daemon_end.plain, sizeof worker.plain);
  worker.plain_bytes = daemon_end.plain_bytes;
  worker.plain[20] ^= 1;
  sml_channel_set_key(&worker, &key, up_nonce, down_nonce);
  f = heartbeat(&worker, 1);
  assert_int_equal(decode(&daemon_end, &f), SML_CTL_BAD_MAC);
}

/* Every part of the longest JOIN counts, down to the last of its aggregators. */
static void test_longest_handshake(void **state) {
  (void)state;
  struct sml_ctl_message join = join_message(), challenge = {.kind = SML_CTL_CHALLENGE};
  memset(join.u.join.job_name, 'j', SML_JOB_NAME_BYTES - 1);
  memset(join.u.join.key_name, 'k', SML_KEY_NAME_BYTES - 1);
  memset(join.u.join.aggregators, '1', SML_DETAIL_BYTES - 1);
  for (uint32_t is_changed = 0; is_changed <= 1; is_changed++) {
    sml_channel_init(&worker, false);
    sml_channel_init(&daemon_end, true);
    struct frame f = encode(&worker, &join);
    if (is_changed) f.bytes[f.num_bytes - 1] = '2';
    assert_int_equal(decode(&daemon_end, &f), SML_CTL_DECODED);
    f = encode(&daemon_end, &challenge);
    assert_int_equal(decode(&worker, &f), SML_CTL_DECODED);
    sml_channel_set_key(&daemon_end, &key, up_nonce, down_nonce);
    sml_channel_set_key(&worker, &key, up_nonce, down_nonce);
    f = heartbeat(&worker, 1);
    assert_int_equal(decode(&daemon_end, &f), is_changed ? SML_CTL_BAD_MAC : SML_CTL_DECODED);
  }
}

static void test_tag_where_none_is_wanted(void **state) {
  (void)state;
  shake(&key);
  struct frame f = heartbeat(&worker, 1);
  sml_channel_init(&daemon_end, true);
  assert_int_equal(decode(&daemon_end, &f), SML_CTL_BAD_MAC);
  sml_channel_init(&worker, false); /* nor one under the key that an end without a key happens to hold */
  worker.is_keyed = true;
  f = heartbeat(&worker, 1);
  assert_int_equal(decode(&daemon_end, &f), SML_CTL_BAD_MAC);
}

/* The MAC is right, what it is behind is not: a sender that has the key can still be wrong. */
static void test_malformed_behind_a_good_tag(void **state) {
  (void)state;
  shake(&key);
  struct frame f = heartbeat(&worker, 1);
  uint8_t covered[8 + sizeof f.bytes];
  size_t frame_bytes = f.num_bytes - SML_CHANNEL_MAC_BYTES;
  sml_store_be16(f.bytes + 6, SML_CTL_EPOCH | SML_CTL_HAS_MAC); /* whose body is shorter */
  sml_store_be64(covered, 0);
  memcpy(covered + 8, f.bytes, frame_bytes);
  sml_store_be64(f.bytes + frame_bytes, sml_siphash(&worker.tx_key, covered, 8 + frame_bytes));
  assert_int_equal(decode(&daemon_end, &f), SML_CTL_MALFORMED);
}

static void test_no_tag_where_one_is_wanted(void **state) {
  (void)state;
  struct frame f = {.num_bytes = 0};
  for (int kind = SML_CTL_PROBED; kind <= SML_CTL_LAST_KIND; kind++) {
    struct sml_ctl_message m = {.kind = (enum sml_ctl_kind)kind};
    m.u.refuse.status = SML_ERR_REFUSED;
    f.num_bytes = sml_ctl_encode(&m, f.bytes, sizeof f.bytes);
    shake(&key);
    if (f.num_bytes > 0 && kind != SML_CTL_REFUSE) assert_int_equal(decode(&worker, &f), SML_CTL_BAD_MAC);
  }
}

/* The daemon must be able to say that the keys differ; once they don't, no plain REFUSE counts. */
static void test_refusal_across_keys(void **state) {
  (void)state;
  struct sml_ctl_message refuse = {.kind = SML_CTL_REFUSE};
  refuse.u.refuse.status = SML_ERR_KEY;
  strcpy(refuse.u.refuse.detail, "not yours");
  shake(&other_key);
  struct frame f = encode(&daemon_end, &refuse);
  assert_int_equal(decode(&worker, &f), SML_CTL_DECODED);
  assert_same(&out, &refuse);

  shake(&key);
  struct frame auth = encode(&worker, &(struct sml_ctl_message){.kind = SML_CTL_AUTH});
  assert_int_equal(decode(&daemon_end, &auth), SML_CTL_DECODED);
  struct frame keyed = encode(&daemon_end, &refuse); /* it knows that the rank has the key */
  assert_int_equal(keyed.num_bytes, f.num_bytes + SML_CHANNEL_MAC_BYTES);
  assert_int_equal(decode(&worker, &keyed), SML_CTL_DECODED);
  assert_int_equal(decode(&worker, &f), SML_CTL_BAD_MAC);
}

static void test_refusal_across_versions(void **state) {
  (void)state;
  struct sml_ctl_message refuse = {.kind = SML_CTL_REFUSE};
  refuse.u.refuse.status = SML_ERR_VERSION;
  sml_channel_init(&daemon_end, true);
  struct frame f = {.bytes = "SML1\0\1\0\1", .num_bytes = 8}; /* JOIN of version 1 */
  assert_int_equal(decode(&daemon_end, &f), SML_CTL_BAD_VERSION);
  f = encode(&daemon_end, &refuse);
  assert_int_equal(sml_load_be16(f.bytes + 4), 1); /* it can read this one: header and REFUSE never change */
  sml_store_be16(f.bytes + 4, SML_CTL_VERSION);
  sml_channel_init(&worker, false);
  assert_int_equal(decode(&worker, &f), SML_CTL_DECODED);
  assert_same(&out, &refuse);
}

static void test_every_split(void **state) {
  (void)state;
  shake(&key);
  struct frame first = heartbeat(&worker, 1), second = heartbeat(&worker, 2);
  uint8_t both[128];
  size_t consumed, num_bytes = first.num_bytes + second.num_bytes;
  memcpy(both, first.bytes, first.num_bytes);
  memcpy(both + first.num_bytes, second.bytes, second.num_bytes);
  for (size_t cut = 0; cut <= num_bytes; cut++) {
    struct sml_channel copy = daemon_end;
    size_t at = 0, num_decoded = 0;
    for (int half = 0; half < 2; half++) {
      size_t end = half == 0 ? cut : num_bytes;
      while (sml_channel_decode(&copy, both + at, end - at, &out, &consumed) == SML_CTL_DECODED) {
        at += consumed;
        assert_int_equal(out.u.heartbeat.operations_completed, ++num_decoded);
      }
      assert_int_equal(consumed, 0);
    }
    assert_int_equal(num_decoded, 2);
  }
}

static void test_encode_needs_all_its_room(void **state) {
  (void)state;
  shake(&key);
  struct sml_ctl_message m = {.kind = SML_CTL_HEARTBEAT};
  struct sml_channel copy = worker;
  struct frame f = encode(&copy, &m);
  for (size_t room = 0; room < f.num_bytes; room++) {
    uint8_t *exact = malloc(room + 1);
    assert_non_null(exact);
    assert_int_equal(sml_channel_encode(&worker, &m, exact, room), 0);
    free(exact);
  }
  assert_int_equal(worker.num_sent, 0); /* what was not encoded is not counted */
  struct frame again = encode(&worker, &m);
  assert_memory_equal(f.bytes, again.bytes, f.num_bytes);
}

static void test_data_keys_differ(void **state) {
  (void)state;
  const uint64_t salt[2] = {5, 6}, salt_2[2] = {5, 7}, salt_3[2] = {4, 6};
  struct sml_key keys[8] = {
      sml_ctl_data_key(&key, "x", 1, 2, salt),   sml_ctl_data_key(&other_key, "x", 1, 2, salt),
      sml_ctl_data_key(&key, "xx", 1, 2, salt),  sml_ctl_data_key(&key, "x", 2, 2, salt),
      sml_ctl_data_key(&key, "x", 1, 3, salt),   sml_ctl_data_key(&key, "x", 1, 2, salt_2),
      sml_ctl_data_key(&key, "x", 1, 2, salt_3), key,
  };
  struct sml_key again = sml_ctl_data_key(&key, "x", 1, 2, salt);
  assert_memory_equal(&again, &keys[0], sizeof again);
  for (uint32_t i = 0; i < 8; i++)
    for (uint32_t j = 0; j < i; j++) assert_true(keys[i].k0 != keys[j].k0 || keys[i].k1 != keys[j].k1);
}

/* Random changes of a random number of frames: what is accepted is a prefix of what was sent. */
static void test_random_changes(void **state) {
  (void)state;
  struct sml_prng prng = {.state = 9};
  shake(&key);
  struct sml_channel from = worker, to = daemon_end;
  for (uint32_t round = 0; round < 20000; round++) {
    uint64_t num_accepted = 0;
    worker = from;
    daemon_end = to;
    struct frame frames[4];
    for (uint32_t i = 0; i < 4; i++) frames[i] = heartbeat(&worker, i);
    uint32_t hit = (uint32_t)sml_prng_below(&prng, 4), bit = (uint32_t)sml_prng_below(&prng, 36 * 8);
    frames[hit].bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    for (uint32_t i = 0; i < 4 && decode(&daemon_end, &frames[i]) == SML_CTL_DECODED; i++) num_accepted++;
    assert_int_equal(num_accepted, hit);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_both_ways),
      cmocka_unit_test(test_unkeyed_is_the_plain_codec),
      cmocka_unit_test(test_any_flipped_bit),
      cmocka_unit_test(test_order_and_number),
      cmocka_unit_test(test_reflected_frame),
      cmocka_unit_test(test_wrong_key_nonce_or_handshake),
      cmocka_unit_test(test_longest_handshake),
      cmocka_unit_test(test_tag_where_none_is_wanted),
      cmocka_unit_test(test_malformed_behind_a_good_tag),
      cmocka_unit_test(test_no_tag_where_one_is_wanted),
      cmocka_unit_test(test_refusal_across_keys),
      cmocka_unit_test(test_refusal_across_versions),
      cmocka_unit_test(test_every_split),
      cmocka_unit_test(test_encode_needs_all_its_room),
      cmocka_unit_test(test_data_keys_differ),
      cmocka_unit_test(test_random_changes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
