/* SPDX-License-Identifier: Apache-2.0
 * Floods a UDP port with datagrams that must change nothing, one by one (no segmentation offload), at a rate:
 *   flood PORT RATE SECONDS random [SEED]
 *   flood PORT RATE SECONDS fields JOB EPOCH RANK SLOT PHASE MASK [SEED [FROM_PORT]]
 * random: bytes of every length up to 1500. fields: packets of a live job with one header field wrong in each, in
 * turn, or the length, or the MAC of a key, or nothing but the address it comes from; the checksum is right but for
 * those where it is the wrong field. With FROM_PORT they come from that port, which is another's (needs root).
 * It says "begun" first; at the end, or at SIGTERM, the datagrams sent and the seconds it took. */
#include <arpa/inet.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/wire.h"

#define MAX_BYTES 1500u
#define BATCH 64u
#define NUM_DATAGRAMS 4096u /* made in advance, sent round and round */
#define PAYLOAD_BYTES 1024u
#define UDP_BYTES 8u

struct datagram {
  uint16_t num_bytes;
  uint8_t bytes[MAX_BYTES];
};

static struct datagram datagrams[NUM_DATAGRAMS];
static volatile sig_atomic_t should_stop;

static void stop(int number_of_signal) {
  (void)number_of_signal;
  should_stop = 1;
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * SML_NS_PER_S + (uint64_t)now.tv_nsec;
}

static void fill_random(struct sml_prng *draw, uint8_t *out, size_t num_bytes) {
  for (size_t i = 0; i < num_bytes; i++) out[i] = (uint8_t)sml_prng_next(draw);
}

static void make_random(struct sml_prng *draw, struct datagram *d) {
  d->num_bytes = (uint16_t)sml_prng_below(draw, MAX_BYTES + 1);
  fill_random(draw, d->bytes, d->num_bytes);
}

enum wrong {
  WRONG_VERSION, WRONG_TYPE, WRONG_WIRE, WRONG_REDUCER, WRONG_JOB, WRONG_EPOCH, WRONG_RANK, WRONG_LENGTH, WRONG_SLOT,
  WRONG_FLAGS, WRONG_PHASE, WRONG_CHUNK, WRONG_CRC, WRONG_CUT, WRONG_MAC, WRONG_ADDRESS_ONLY, NUM_WRONG
};

/* A live packet with one thing wrong. */
static void make_near_valid(struct sml_prng *draw, const struct sml_header *live, uint32_t mask, enum wrong wrong,
                            struct datagram *d) {
  static const uint8_t types[] = {SML_PACKET_UPDATE, SML_PACKET_RESULT, SML_PACKET_PENDING, SML_PACKET_PROBE,
                                  SML_PACKET_ERROR, SML_PACKET_HELLO};
  struct sml_header h = *live;
  const uint32_t other = (uint32_t)sml_prng_next(draw) | 1u;
  h.type = types[sml_prng_below(draw, SML_ARRAY_LEN(types))];
  h.slot = (uint16_t)(live->slot + sml_prng_below(draw, 64));
  h.phase = live->phase + (uint32_t)sml_prng_below(draw, 64);
  h.tag = other;
  h.payload_bytes = h.type == SML_PACKET_UPDATE || h.type == SML_PACKET_RESULT ? PAYLOAD_BYTES : 8;
  const struct sml_seal guess = {.is_keyed = true, .key = {.k0 = other, .k1 = 1}};
  const struct sml_seal right = {.mask = mask}, *seal = wrong == WRONG_MAC ? &guess : &right;
  d->num_bytes = (uint16_t)(sml_head_bytes(seal->is_keyed) + h.payload_bytes);
  fill_random(draw, d->bytes + SML_HEADER_BYTES, d->num_bytes - SML_HEADER_BYTES);
  if (wrong == WRONG_TYPE) h.type = (uint8_t)(8 + other % 8);
  if (wrong == WRONG_WIRE) h.wire = (uint8_t)(2 + other % 14);
  if (wrong == WRONG_REDUCER) h.reducer = (uint8_t)(2 + other % 14);
  if (wrong == WRONG_JOB) h.job = (uint16_t)(h.job + (other & 0xfff) + 1);
  if (wrong == WRONG_EPOCH) h.epoch += other;
  if (wrong == WRONG_RANK) h.rank = (uint16_t)(h.rank + (other & 0xfff) + 1);
  if (wrong == WRONG_SLOT) h.slot = (uint16_t)(h.slot + 0x8000);
  if (wrong == WRONG_FLAGS) h.flags = (uint16_t)(8 | (other & 0xfff8));
  if (wrong == WRONG_PHASE) h.phase += other;
  if (wrong == WRONG_CHUNK) h.chunk = other;
  sml_wire_seal(d->bytes, &h, seal);
  if (wrong == WRONG_LENGTH) sml_store_be16(d->bytes + 10, (uint16_t)(h.payload_bytes + 1 + other % 1000));
  if (wrong == WRONG_VERSION) d->bytes[0] = (uint8_t)((2 + other % 14) << 4 | h.type);
  if (wrong == WRONG_CRC) d->bytes[28 + other % 4] ^= (uint8_t)(1u << (other >> 8) % 8);
  if (wrong == WRONG_CUT) d->num_bytes = (uint16_t)(other % d->num_bytes);
}

static uint32_t number(const char *text) {
  return (uint32_t)strtoul(text, NULL, 0);
}

static bool make_datagrams(int argc, char **argv) {
  const bool is_random = argc >= 5 && strcmp(argv[4], "random") == 0;
  const bool is_near_valid = argc >= 11 && strcmp(argv[4], "fields") == 0;
  const int seed_at = is_random ? 5 : 11;
  if (!is_random && !is_near_valid) return false;
  struct sml_prng draw = {.state = argc > seed_at ? number(argv[seed_at]) : 1};
  struct sml_header live = {.version = SML_WIRE_VERSION};
  uint32_t mask = 0;
  if (is_near_valid) {
    live.job = (uint16_t)number(argv[5]);
    live.epoch = number(argv[6]);
    live.rank = (uint16_t)number(argv[7]);
    live.slot = (uint16_t)number(argv[8]);
    live.phase = number(argv[9]);
    mask = number(argv[10]);
  }
  for (uint32_t i = 0; i < NUM_DATAGRAMS; i++) {
    if (is_random) make_random(&draw, &datagrams[i]);
    else make_near_valid(&draw, &live, mask, (enum wrong)(i % NUM_WRONG), &datagrams[i]);
  }
  return true;
}

/* A raw socket's datagrams begin with the UDP header; 0 instead of its checksum: none. */
static void put_udp_header(struct datagram *d, uint16_t from_port, uint16_t to_port) {
  const uint16_t num_bytes = (uint16_t)sml_min_u32(d->num_bytes, MAX_BYTES - UDP_BYTES);
  memmove(d->bytes + UDP_BYTES, d->bytes, num_bytes);
  d->num_bytes = (uint16_t)(num_bytes + UDP_BYTES);
  sml_store_be16(d->bytes, from_port);
  sml_store_be16(d->bytes + 2, to_port);
  sml_store_be16(d->bytes + 4, d->num_bytes);
  sml_store_be16(d->bytes + 6, 0);
}

static int connect_to(uint16_t port, bool is_raw) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  const int fd = is_raw ? socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_UDP)
                        : socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (is_raw) to.sin_port = 0;
  if (fd >= 0 && connect(fd, (const struct sockaddr *)(const void *)&to, sizeof to) == 0) return fd;
  perror("flood");
  exit(1);
}

/* Batches at their times; late ones are not made up for beyond a tenth of a second. */
static uint64_t send_all(int fd, uint64_t rate, uint64_t end_ns) {
  struct mmsghdr messages[BATCH];
  struct iovec iov[BATCH];
  uint64_t num_sent = 0, next_ns = now_ns();
  const uint64_t interval_ns = SML_NS_PER_S * BATCH / rate;
  memset(messages, 0, sizeof messages);
  for (uint64_t at = 0; !should_stop && now_ns() < end_ns; at += BATCH) {
    for (uint32_t i = 0; i < BATCH; i++) {
      struct datagram *d = &datagrams[(at + i) % NUM_DATAGRAMS];
      iov[i] = (struct iovec){.iov_base = d->bytes, .iov_len = d->num_bytes};
      messages[i].msg_hdr.msg_iov = &iov[i];
      messages[i].msg_hdr.msg_iovlen = 1;
    }
    const int sent = sendmmsg(fd, messages, BATCH, 0);
    if (sent > 0) num_sent += (uint64_t)sent;
    const uint64_t now = now_ns();
    next_ns = sml_max_u64(next_ns + interval_ns, now - SML_NS_PER_S / 10);
    if (next_ns <= now) continue;
    const struct timespec pause = {.tv_sec = 0, .tv_nsec = (long)sml_min_u64(next_ns - now, SML_NS_PER_S - 1)};
    nanosleep(&pause, NULL);
  }
  return num_sent;
}

int main(int argc, char **argv) {
  if (argc < 5 || number(argv[2]) == 0 || !make_datagrams(argc, argv)) {
    fprintf(stderr, "usage: flood PORT RATE SECONDS random [SEED] | fields JOB EPOCH RANK SLOT PHASE MASK [SEED "
                    "[FROM_PORT]]\n");
    return 2;
  }
  const uint16_t port = (uint16_t)number(argv[1]), from_port = (uint16_t)(argc > 11 ? number(argv[11]) : 0);
  const int fd = connect_to(port, from_port != 0);
  for (uint32_t i = 0; from_port != 0 && i < NUM_DATAGRAMS; i++) put_udp_header(&datagrams[i], from_port, port);
  signal(SIGTERM, stop);
  printf("begun\n"); /* from here on a signal ends it with its sums */
  fflush(stdout);
  const uint64_t start_ns = now_ns();
  const uint64_t num_sent =
      send_all(fd, number(argv[2]), start_ns + (uint64_t)(strtod(argv[3], NULL) * (double)SML_NS_PER_S));
  printf("%" PRIu64 " %.3f\n", num_sent, (double)(now_ns() - start_ns) / (double)SML_NS_PER_S);
  close(fd);
  return 0;
}
