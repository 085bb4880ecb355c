/* SPDX-License-Identifier: Apache-2.0
 * How processes of one host meet to share memory: what they greet each other with, and the descriptor that is handed
 * over. Input: a byte, whether this process offers the segment or wants it; then what those say who come, or what comes
 * with the answer. Whoever offers has met exactly those who greeted well; whoever wants takes no segment that could
 * shrink or has another size. Time is the target's: a millisecond for each look at the clock. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "fuzz/peer.h"
#include "shm/shm_segment.h"

#define NUM_RANKS 3u
#define SEGMENT_BYTES 4096u
#define GREETING_BYTES 40u /* magic:64 secret:128 bytes:64 ranks:32 index:32, as the host has them */
#define WAIT_MS 200u

static struct fuzz_input in;
static uint64_t now_ns;
static bool greeted_well[NUM_RANKS];

int __wrap_accept4(int fd, struct sockaddr *addr, socklen_t *addr_bytes, int flags);
int __wrap_bind(int fd, const struct sockaddr *addr, socklen_t addr_bytes);
int __wrap_listen(int fd, int backlog);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *value_bytes);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now_out);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags);

int __wrap_bind(int fd, const struct sockaddr *addr, socklen_t addr_bytes) {
  (void)fd, (void)addr, (void)addr_bytes;
  return 0;
}

int __wrap_listen(int fd, int backlog) {
  (void)fd, (void)backlog;
  return 0;
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *now_out) {
  (void)clock;
  now_ns += SML_NS_PER_MS;
  *now_out = (struct timespec){.tv_sec = (time_t)(now_ns / SML_NS_PER_S), .tv_nsec = (long)(now_ns % SML_NS_PER_S)};
  return 0;
}

/* Whose process it is. */
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *value_bytes) {
  (void)fd, (void)level, (void)name;
  const struct ucred credentials = {.uid = geteuid() + (fuzz_u8(&in) >= 240)};
  memcpy(value, &credentials, sml_min_u64(sizeof credentials, *value_bytes));
  return 0;
}

/* The next one greets, well or as the input has it; then it says a byte, or does not. */
int __wrap_accept4(int fd, struct sockaddr *addr, socklen_t *addr_bytes, int flags) {
  const uint64_t magic = UINT64_C(0x73776d6c686f7374), secret[2] = {1, 2}, num_bytes = SEGMENT_BYTES;
  const uint32_t num_ranks = NUM_RANKS, index = fuzz_below(&in, NUM_RANKS + 1);
  const uint8_t kind = fuzz_u8(&in);
  uint8_t greeting[GREETING_BYTES], honest[GREETING_BYTES];
  uint32_t said_index;
  (void)fd, (void)addr, (void)addr_bytes, (void)flags;
  memcpy(greeting, &magic, 8), memcpy(greeting + 8, secret, 16), memcpy(greeting + 24, &num_bytes, 8);
  memcpy(greeting + 32, &num_ranks, 4), memcpy(greeting + 36, &index, 4);
  memcpy(honest, greeting, sizeof honest);
  if (kind & 1) greeting[fuzz_u8(&in) % GREETING_BYTES] ^= (uint8_t)(1 + fuzz_u8(&in) % 255);
  const size_t said_bytes = kind & 2 ? fuzz_u8(&in) % (GREETING_BYTES + 1) : GREETING_BYTES;
  fuzz_peer_begin(NULL, said_bytes); /* a message at a time */
  fuzz_peer_say(greeting, said_bytes);
  if ((kind & 4) == 0) fuzz_peer_say("x", 1);
  memcpy(&said_index, greeting + 36, 4); /* it may be another's */
  const bool is_well = said_bytes == GREETING_BYTES && memcmp(greeting, honest, 36) == 0 && (kind & 4) == 0;
  if (is_well && said_index < NUM_RANKS) greeted_well[said_index] = true;
  return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags) {
  (void)fd, (void)message, (void)flags;
  return 1;
}

/* A descriptor comes, or two, or none, of memory that is sealed, or not, and has the size, or another. */
ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags) {
  (void)fd, (void)flags;
  const uint8_t kind = fuzz_u8(&in);
  message->msg_controllen = 0;
  if (kind & 1) return kind & 2 ? 0 : 1;
  const int memory_fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK(memory_fd >= 0 && ftruncate(memory_fd, kind & 4 ? 100 : SEGMENT_BYTES) == 0, "no memory file");
  if ((kind & 8) == 0) CHECK(fcntl(memory_fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0, "no seal");
  message->msg_controllen = CMSG_SPACE(sizeof memory_fd);
  struct cmsghdr *c = CMSG_FIRSTHDR(message);
  *c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof memory_fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
  memcpy(CMSG_DATA(c), &memory_fd, sizeof memory_fd);
  return 1;
}

static void offer(const struct sml_shm_meeting *m) {
  struct sml_shm_segment s;
  uint32_t missing = 0;
  char error[SML_SHM_ERROR_BYTES] = "";
  const enum sml_shm_met met = sml_shm_segment_offer(&s, SEGMENT_BYTES, m, &missing, error);
  CHECK(met == SML_SHM_MET || met == SML_SHM_TOO_LATE, "met %d: %s", (int)met, error);
  CHECK(met == SML_SHM_MET ? s.memory != NULL : s.memory == NULL && missing < NUM_RANKS, "met %d", (int)met);
  for (uint32_t i = 1; met == SML_SHM_MET && i < NUM_RANKS; i++)
    CHECK(greeted_well[i], "rank %u was met, and has not greeted", i);
  sml_shm_segment_close(&s);
}

static void obtain(const struct sml_shm_meeting *m) {
  struct sml_shm_segment s;
  uint32_t missing;
  char error[SML_SHM_ERROR_BYTES] = "";
  const enum sml_shm_met met = sml_shm_segment_obtain(&s, SEGMENT_BYTES, m, &missing, error);
  CHECK(met == SML_SHM_MET || met == SML_SHM_TOO_LATE, "met %d: %s", (int)met, error);
  if (met == SML_SHM_MET) memset(s.memory, 1, SEGMENT_BYTES); /* all of it is there */
  sml_shm_segment_close(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  in = (struct fuzz_input){data, data + num_bytes};
  now_ns = SML_NS_PER_S;
  memset(greeted_well, 0, sizeof greeted_well);
  const uint8_t how = fuzz_u8(&in);
  const struct sml_shm_meeting m = {
      .secret = {1, 2}, .num_ranks = NUM_RANKS, .index = how & 1, .deadline_ns = now_ns + WAIT_MS * SML_NS_PER_MS};
  fuzz_peer_begin(NULL, 0);
  if (how & 1) obtain(&m);
  else offer(&m);
  return 0;
}
