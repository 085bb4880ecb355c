/* SPDX-License-Identifier: Apache-2.0
 * Sending against a scripted kernel: full queues, refused segmentation, peers that cannot be reached,
 * messages taken in part. The file under test is compiled in with its two system calls replaced. */
#define sendmmsg scripted_sendmmsg
#define poll scripted_poll
#include "netio/udp_tx.c"
#undef sendmmsg
#undef poll

#include "netio/test_support.h"

#define ALL 1000
#define MAX_CALLS 64u

int scripted_poll(struct pollfd *fds, nfds_t num_fds, int timeout_ms);

/* One answer a call of sendmmsg: n > 0 takes at most n messages, n < 0 is -errno. The last one repeats. */
static struct {
  int answers[MAX_CALLS];
  uint32_t num_calls, num_polls;
  uint32_t num_messages, num_segmented; /* taken */
  uint64_t num_bytes;
  uint8_t peer_of_message[4096]; /* first byte of the name */
  uint16_t segment_bytes[4096];  /* 0: plain */
  uint8_t frames[8][64];         /* how often a peer was sent a frame: frames of 100 bytes have their numbers in each */
} kernel;

static void script(const int *answers, size_t num) {
  memset(&kernel, 0, sizeof kernel);
  for (size_t i = 0; i < MAX_CALLS; i++) kernel.answers[i] = answers[i < num ? i : num - 1];
}
#define SCRIPT(...) script((const int[]){__VA_ARGS__}, sizeof((const int[]){__VA_ARGS__}) / sizeof(int))

int scripted_sendmmsg(int fd, struct mmsghdr *messages, unsigned int num, int flags) {
  assert_int_equal(fd, 77);
  assert_int_equal(flags, MSG_DONTWAIT);
  assert_in_range(num, 1, SML_UDP_BATCH_MESSAGES);
  const int answer = kernel.answers[sml_min_u32(kernel.num_calls++, MAX_CALLS - 1)];
  if (answer < 0) {
    errno = -answer;
    return -1;
  }
  const uint32_t taken = sml_min_u32(num, (uint32_t)answer);
  for (uint32_t i = 0; i < taken; i++) {
    const struct msghdr *m = &messages[i].msg_hdr;
    struct cmsghdr *c = CMSG_FIRSTHDR(m);
    if (c != NULL) {
      assert_int_equal(c->cmsg_type, UDP_SEGMENT);
      assert_int_equal(c->cmsg_len, CMSG_LEN(2));
      memcpy(&kernel.segment_bytes[kernel.num_messages], CMSG_DATA(c), sizeof kernel.segment_bytes[0]);
      kernel.num_segmented++;
    }
    assert_in_range(m->msg_iovlen, 1, SML_UDP_PIECES);
    const uint8_t peer = *(const uint8_t *)m->msg_name;
    for (size_t piece = 0; piece < m->msg_iovlen; piece++) {
      const struct iovec *data = &m->msg_iov[piece];
      kernel.num_bytes += data->iov_len;
      for (size_t at = 0; at < data->iov_len && peer < 8; at += 100)
        kernel.frames[peer][((const uint8_t *)data->iov_base)[at] % 64]++;
    }
    kernel.peer_of_message[kernel.num_messages++] = peer;
  }
  return (int)taken;
}

int scripted_poll(struct pollfd *fds, nfds_t num_fds, int timeout_ms) {
  assert_int_equal(num_fds, 1);
  assert_int_equal(fds->events, POLLOUT);
  assert_in_range(timeout_ms, 0, 1);
  kernel.num_polls++;
  return 0;
}

static struct sml_udp udp;
static struct sml_addr peers[200];

static void begin(bool is_segmenting) {
  memset(&udp, 0, sizeof udp);
  udp.socket_fd = 77;
  udp.is_segmenting = udp.io.has_segmentation_offload = is_segmenting;
  assert_true(sml_udp_tx_init(&udp));
  for (size_t i = 0; i < SML_ARRAY_LEN(peers); i++)
    peers[i] = (struct sml_addr){.bytes = {(uint8_t)i}, .num_bytes = 16};
}

/* A burst to num_peers from peer `first` on. */
static void queue(uint32_t frame_bytes, uint32_t num_frames, uint32_t last_bytes, size_t first, size_t num_peers) {
  struct sml_tx_burst burst;
  sml_udp_tx_reserve(&udp.io, frame_bytes, &burst);
  assert_in_range(num_frames, 1, burst.max_frames);
  memset(burst.data, 0, (size_t)burst.max_frames * frame_bytes); /* all of it may be used */
  sml_udp_tx_commit(&udp.io, &burst, num_frames, last_bytes, peers + first, num_peers);
}

/* One burst of 100-byte frames with a last one of 40. */
static void commit(bool is_segmenting, uint32_t num_frames, size_t num_peers) {
  begin(is_segmenting);
  queue(100, num_frames, 40, 0, num_peers);
  assert_int_equal(kernel.num_calls, 0);
  sml_udp_tx_flush(&udp.io);
  free(udp.tx.buffer);
  assert_int_equal(udp.io.stats.tx_frames + udp.io.stats.tx_lost_frames, num_frames * num_peers);
  assert_int_equal(udp.io.stats.tx_bytes, kernel.num_bytes);
  assert_int_equal(udp.io.stats.system_calls, kernel.num_calls + kernel.num_polls);
  assert_int_equal(udp.io.has_segmentation_offload, udp.is_segmenting);
}

static void expect(uint64_t num_lost, uint32_t num_calls, uint32_t num_polls, uint32_t num_segmented) {
  assert_int_equal(udp.io.stats.tx_lost_frames, num_lost);
  assert_int_equal(kernel.num_calls, num_calls);
  assert_int_equal(kernel.num_polls, num_polls);
  assert_int_equal(kernel.num_segmented, num_segmented);
}

static void test_all_is_taken(void **state) {
  (void)state;
  SCRIPT(ALL);
  commit(true, 10, 8);
  expect(0, 1, 0, 8); /* a burst to eight peers: one system call */
  assert_int_equal(kernel.num_bytes, 8 * 940);
  SCRIPT(ALL);
  commit(true, 1, 8); /* a single frame goes without segmentation */
  expect(0, 1, 0, 0);
  SCRIPT(ALL);
  commit(true, 64, 130);
  expect(0, 3, 0, 130);
  SCRIPT(ALL);
  commit(false, 10, 13); /* 130 messages, peer by peer */
  expect(0, 3, 0, 0);
  for (uint32_t i = 0; i < 130; i++) assert_int_equal(kernel.peer_of_message[i], i / 10);
  SCRIPT(ALL);
  commit(true, 10, 0);
  expect(0, 0, 0, 0);
}

static void test_some_bursts_go_apart(void **state) {
  (void)state;
  SCRIPT(ALL);
  begin(true);
  for (uint32_t i = 0; i < 6; i++) {
    struct sml_tx_burst burst;
    sml_udp_tx_reserve(&udp.io, 100, &burst);
    memset(burst.data, 0, 1000);
    burst.goes_apart = i % 2 == 0;
    sml_udp_tx_commit(&udp.io, &burst, 10, 100, peers, 1);
  }
  queue(100, 10, 100, 0, 1);
  sml_udp_tx_flush(&udp.io);
  free(udp.tx.buffer);
  expect(0, 1, 0, 4);
  assert_int_equal(udp.io.stats.tx_frames, 70);
}

/* Ten frames: each peer gets all but its own, once, and the last peer, whose they all but are, gets none. */
static void commit_partly(bool is_segmenting, const uint16_t not_for[10], uint64_t num_lost) {
  struct sml_tx_burst burst;
  uint64_t num_frames = 0, num_sent = 0;
  begin(is_segmenting);
  sml_udp_tx_reserve(&udp.io, 100, &burst);
  for (uint32_t i = 0; i < 10; i++) {
    memset(burst.data + (size_t)100 * i, (int)i, 100);
    burst.not_for[i] = not_for[i];
  }
  sml_udp_tx_commit(&udp.io, &burst, 10, 40, peers, 4);
  for (uint32_t i = 0; i < 10; i++)
    for (size_t peer = 0; peer < 4; peer++) num_frames += sml_tx_is_for(&burst, i, peer);
  sml_udp_tx_flush(&udp.io);
  free(udp.tx.buffer);
  for (uint32_t i = 0; i < 10; i++)
    for (size_t peer = 0; peer < 4; peer++) {
      assert_in_range(kernel.frames[peer][i], 0, sml_tx_is_for(&burst, i, peer) ? 1 : 0);
      num_sent += kernel.frames[peer][i];
    }
  assert_int_equal(num_sent, num_frames - num_lost);
  assert_int_equal(udp.io.stats.tx_frames, num_sent);
  assert_int_equal(udp.io.stats.tx_lost_frames, num_lost);
  assert_int_equal(udp.io.stats.tx_bytes, kernel.num_bytes);
}

static void test_frames_that_are_not_for_a_peer(void **state) {
  (void)state;
  static const uint16_t bursts[][10] = {
      {0, 1, 1, 2, 2, 3, 3, 3, 0, 4},                                  /* begin, middle, end */
      {1, 1, 2, 2, 2, 2, 4, 4, 4, 4}, {4, 4, 4, 4, 4, 4, 4, 4, 4, 4},  /* nothing for the last peer */
      {1, 1, 1, 1, 1, 1, 1, 1, 1, 1},                                  /* nor for the first one */
      {0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, {2, 1, 0, 4, 3, 5, 5, 5, 9, 9}}; /* peers that are not of this commit */
  for (size_t i = 0; i < SML_ARRAY_LEN(bursts); i++) {
    SCRIPT(ALL);
    commit_partly(true, bursts[i], 0);
    SCRIPT(ALL);
    commit_partly(false, bursts[i], 0);
    SCRIPT(1); /* taken one by one */
    commit_partly(true, bursts[i], 0);
    SCRIPT(3, 2, 1);
    commit_partly(false, bursts[i], 0);
    SCRIPT(1, -EIO, ALL); /* segmentation is refused in the middle */
    commit_partly(true, bursts[i], 0);
    assert_false(udp.is_segmenting);
  }
  SCRIPT(1, -EMSGSIZE, ALL); /* the second peer's 8 frames are lost */
  commit_partly(true, bursts[0], 8);
  SCRIPT(2, -EAGAIN); /* the third one's 7, the fourth one's 9 */
  commit_partly(true, bursts[0], 16);
}

static void test_taken_in_part(void **state) {
  (void)state;
  SCRIPT(3, 1, ALL);
  commit(true, 10, 8);
  expect(0, 3, 0, 8);
  for (uint32_t i = 0; i < 8; i++) assert_int_equal(kernel.peer_of_message[i], i);
}

static void test_full_queue(void **state) {
  (void)state;
  SCRIPT(5, -EAGAIN, ALL);
  commit(true, 10, 8);
  expect(0, 3, 1, 8);
  SCRIPT(5, -EAGAIN, 1, -ENOBUFS);
  commit(true, 10, 8); /* one poll a burst, then the rest is lost */
  expect(20, 4, 1, 6);
  SCRIPT(-EAGAIN);
  commit(false, 64, 100);
  expect(6400, 2, 1, 0);
  SCRIPT(0);
  commit(false, 2, 1); /* a kernel that takes nothing and says nothing */
  expect(2, 2, 1, 0);
}

static void test_unreachable_peers(void **state) {
  (void)state;
  SCRIPT(2, -ENETUNREACH, ALL);
  commit(true, 10, 8);
  expect(10, 3, 0, 7);
  assert_int_equal(kernel.peer_of_message[2], 3);
  SCRIPT(-EMSGSIZE);
  commit(true, 10, 8);
  expect(80, 8, 0, 0);
  assert_true(udp.is_segmenting);
  SCRIPT(-EPERM, ALL);
  commit(false, 10, 1);
  expect(1, 2, 0, 0);
}

static void test_refused_segmentation(void **state) {
  (void)state;
  /* The kernel takes the same frames plain: segmentation is off from now on. */
  SCRIPT(2, -EIO, ALL);
  commit(true, 10, 5);
  expect(0, 4, 0, 2);
  assert_false(udp.is_segmenting);
  assert_int_equal(kernel.num_messages, 2 + 10 + 20);
  assert_int_equal(kernel.num_bytes, 5 * 940);
  SCRIPT(-EINVAL, ALL);
  commit(true, 2, 1);
  expect(0, 2, 0, 0);
  assert_false(udp.is_segmenting);
  /* Not this peer's frames either way: only it is lost. */
  SCRIPT(2, -EINVAL, -EINVAL, -EINVAL, ALL);
  commit(true, 2, 5);
  expect(2, 5, 0, 4);
  assert_true(udp.is_segmenting);
  assert_int_equal(kernel.peer_of_message[2], 3);
  /* Full-sized frames are too long and only the short last one passes: that proves nothing. */
  SCRIPT(-EINVAL, -EMSGSIZE, 1, ALL);
  commit(true, 2, 2);
  expect(1, 4, 0, 1);
  assert_true(udp.is_segmenting);
  /* A full queue meanwhile costs one poll in all. */
  SCRIPT(-EINVAL, -EAGAIN, -EAGAIN, -EAGAIN, -EAGAIN);
  commit(true, 10, 5);
  expect(50, 4, 1, 0);
}

static void finish(uint64_t num_frames) {
  sml_udp_tx_flush(&udp.io);
  const uint32_t num_calls = kernel.num_calls;
  sml_udp_tx_flush(&udp.io); /* nothing is left */
  assert_int_equal(kernel.num_calls, num_calls);
  free(udp.tx.buffer);
  assert_int_equal(udp.io.stats.tx_frames + udp.io.stats.tx_lost_frames, num_frames);
  assert_int_equal(udp.io.stats.tx_bytes, kernel.num_bytes);
}

static void test_bursts_share_a_call(void **state) {
  (void)state;
  SCRIPT(ALL);
  begin(true);
  queue(1000, 4, 1000, 0, 8);
  queue(100, 1, 90, 3, 1);
  queue(32, 64, 32, 5, 2);
  queue(8960, 7, 1, 0, 0); /* to nobody */
  queue(8960, 7, 1, 9, 1);
  assert_int_equal(kernel.num_calls, 0);
  finish(4 * 8 + 1 + 64 * 2 + 7);
  expect(0, 1, 0, 11);
  static const uint8_t names[] = {0, 1, 2, 3, 4, 5, 6, 7, 3, 5, 6, 9};
  static const uint16_t segments[] = {1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 0, 32, 32, 8960};
  assert_int_equal(kernel.num_messages, SML_ARRAY_LEN(names));
  assert_memory_equal(kernel.peer_of_message, names, sizeof names);
  assert_memory_equal(kernel.segment_bytes, segments, sizeof segments);
}

static void test_a_full_table_or_buffer_is_flushed(void **state) {
  (void)state;
  SCRIPT(ALL);
  begin(true);
  for (uint32_t i = 0; i < 3 * SML_UDP_TX_BURSTS; i++) queue(40, 1, 40, 0, 1);
  expect(0, 2, 0, 0);
  finish(3 * SML_UDP_TX_BURSTS);
  expect(0, 3, 0, 0);
  static const uint32_t sizes[] = {65507, 8960, 1472, 1023, 33, 1};
  for (size_t s = 0; s < SML_ARRAY_LEN(sizes); s++) {
    SCRIPT(ALL);
    begin(true);
    const uint32_t num_frames = sml_min_u32(64, 65507 / sizes[s]);
    for (uint32_t i = 0; i < 100; i++) queue(sizes[s], num_frames, sizes[s], 0, 1);
    finish(100 * (uint64_t)num_frames);
    assert_in_range(kernel.num_calls, 2, 13);
    assert_int_equal(kernel.num_bytes, (uint64_t)100 * num_frames * sizes[s]);
  }
}

static void test_errors_are_of_one_burst(void **state) {
  (void)state;
  /* The kernel stops within the second burst; its peer 1 cannot be reached. */
  SCRIPT(3, -ENETUNREACH, ALL);
  begin(true);
  for (uint32_t i = 0; i < 3; i++) queue(100, 5, 100, 0, 2);
  finish(30);
  expect(5, 3, 0, 5);
  /* Each burst may wait once for room; what finds none is lost. */
  SCRIPT(-EAGAIN, -EAGAIN, -EAGAIN, ALL);
  begin(true);
  for (uint32_t i = 0; i < 3; i++) queue(100, 5, 100, 0, 2);
  finish(30);
  expect(10, 4, 2, 4);
  /* Refused segmentation, found in the second burst, holds for the third. */
  SCRIPT(2, -EIO, ALL);
  begin(true);
  for (uint32_t i = 0; i < 3; i++) queue(100, 5, 100, 0, 2);
  finish(30);
  expect(0, 4, 0, 2);
  assert_int_equal(kernel.num_messages, 2 + 5 + 5 + 10);
  assert_false(udp.is_segmenting);
}

static void test_room(void **state) {
  (void)state;
  static const struct {
    uint32_t frame_bytes, max_frames;
  } rows[] = {{0, 0},     {1, 64},    {1023, 64}, {1024, 63}, {1472, 44},     {8960, 7},
              {32753, 2}, {32754, 1}, {65507, 1}, {65508, 0}, {UINT32_MAX, 0}};
  uint8_t buffer[1]; /* nothing is written */
  memset(&udp, 0, sizeof udp);
  udp.tx.buffer = buffer;
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    struct sml_tx_burst burst;
    sml_udp_tx_reserve(&udp.io, rows[i].frame_bytes, &burst);
    assert_int_equal(burst.max_frames, rows[i].max_frames);
    sml_udp_tx_commit(&udp.io, &burst, 0, 0, NULL, 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_is_taken),
                                     cmocka_unit_test(test_some_bursts_go_apart),
                                     cmocka_unit_test(test_frames_that_are_not_for_a_peer),
                                     cmocka_unit_test(test_taken_in_part),
                                     cmocka_unit_test(test_full_queue),
                                     cmocka_unit_test(test_unreachable_peers),
                                     cmocka_unit_test(test_refused_segmentation),
                                     cmocka_unit_test(test_room),
                                     cmocka_unit_test(test_bursts_share_a_call),
                                     cmocka_unit_test(test_a_full_table_or_buffer_is_flushed),
                                     cmocka_unit_test(test_errors_are_of_one_burst)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
