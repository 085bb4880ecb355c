/* SPDX-License-Identifier: Apache-2.0
 * What a rank hears at SWITCHML_RENDEZVOUS, in two rounds. Input: a byte of how (bit 0: a key; bits 1 and 2: the answer
 * to HELLO is the input's, or right; the rest: how much comes at a time), then what rank 0 says, frame by frame: a byte
 * of how, and its body. Tags are right unless the frame says otherwise. Time is the target's: a millisecond for each
 * look at the clock. */
#include "fuzz/peer.h"
#include "meet/rendezvous.h"
#include "meet/rendezvous_message.h"

#define WORLD_SIZE 3u
#define RECORD_BYTES 24u
#define JOIN_MS 300u

static struct fuzz_input in;
static uint8_t how;
static uint64_t now_ns;
static struct sml_key key;

uint64_t __wrap_sml_clock_ns(void);
uint64_t __wrap_sml_random_bits(void);

uint64_t __wrap_sml_clock_ns(void) {
  return now_ns += SML_NS_PER_MS;
}

uint64_t __wrap_sml_random_bits(void) {
  return 12345;
}

/* As rank 0 does that has all records. */
static void say_frame(void) {
  uint8_t head[SML_FRAME_HEAD_BYTES], tag[SML_FRAME_MAC_BYTES], body[WORLD_SIZE * RECORD_BYTES];
  const uint8_t kind = fuzz_u8(&in);
  struct sml_frame_head h = {.kind = SML_FRAME_ALL, .round = kind >> 7, .num_bytes = sizeof body};
  if (kind & 1) h.kind = (enum sml_frame_kind)fuzz_below(&in, 6);
  if (kind & 2) h.num_bytes = fuzz_near(&in, 4 * (1 + SML_MAX_NEWS));
  if (kind & 4) h.round = fuzz_near(&in, h.round + 1);
  for (size_t i = 0; i < sizeof body; i++) body[i] = kind & 8 ? fuzz_u8(&in) : (uint8_t)i;
  const uint32_t num_bytes = sml_min_u32(h.num_bytes, sizeof body);
  sml_frame_head_write(head, &h);
  if (kind & 16) head[fuzz_u8(&in) % sizeof head] = fuzz_u8(&in);
  sml_frame_mac(tag, &key, head, body, num_bytes);
  if (kind & 32) tag[0] ^= 1;
  fuzz_peer_say(head, sizeof head);
  fuzz_peer_say(body, num_bytes);
  fuzz_peer_say(tag, sizeof tag);
}

/* HELLO comes as one send. Then all that will be said on this connection is said. */
static void answer(const uint8_t *bytes, size_t num_bytes) {
  static const struct sml_key none = {0, 0}, ours = {1, 2};
  uint8_t said[SML_ANSWER_BYTES];
  struct sml_rendezvous_hello hello;
  if (num_bytes != SML_HELLO_BYTES || !sml_rendezvous_hello_read(bytes, &hello)) return;
  struct sml_rendezvous_answer a = {SML_ANSWER_GO_ON, WORLD_SIZE, {7, 8}};
  if (how & 2) a.kind = (enum sml_answer_kind)(fuzz_u8(&in) % 7);
  sml_rendezvous_answer_write(said, &a);
  key = sml_rendezvous_key(how & 1 ? &ours : &none, bytes, said);
  sml_rendezvous_answer_seal(said, &key);
  if (how & 4) said[fuzz_u8(&in) % sizeof said] ^= fuzz_u8(&in);
  fuzz_peer_begin(answer, how >> 4);
  fuzz_peer_say(said, sizeof said);
  for (uint32_t i = 0; i < 3 && !fuzz_is_empty(&in); i++) say_frame();
}

/* out is exactly as large as the world. */
static bool gather(struct sml_rendezvous *r) {
  const uint8_t mine[RECORD_BYTES] = {1};
  uint8_t *all = malloc(WORLD_SIZE * RECORD_BYTES);
  CHECK(all != NULL, "no memory");
  const bool is_done = sml_rendezvous_gather(r, mine, all, sizeof mine) == 0;
  CHECK(is_done || sml_error_detail()[0] != 0, "no reason given");
  free(all);
  return is_done;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  struct sml_job_settings settings = {.options = SML_JOB_OPTIONS_INIT};
  struct sml_rendezvous r;
  in = (struct fuzz_input){data, data + num_bytes};
  how = fuzz_u8(&in);
  now_ns = SML_NS_PER_S;
  settings.options.rank = 1;
  settings.options.world_size = WORLD_SIZE;
  settings.options.name = settings.name;
  settings.options.join_timeout_ns = JOIN_MS * SML_NS_PER_MS;
  snprintf(settings.name, sizeof settings.name, "job");
  if (how & 1) {
    snprintf(settings.key_name, sizeof settings.key_name, "key");
    settings.key = (struct sml_key){1, 2};
  }
  CHECK(setenv("SWITCHML_RENDEZVOUS", "10.7.0.1:5", 1) == 0, "setenv");
  fuzz_peer_begin(answer, how >> 4);
  sml_rendezvous_init(&r, &settings);
  if (gather(&r)) (void)gather(&r);
  CHECK(now_ns < 15 * SML_NS_PER_S, "it tries for ever");
  sml_rendezvous_close(&r);
  return 0;
}
