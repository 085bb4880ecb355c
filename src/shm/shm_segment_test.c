/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/shm_segment.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/siphash.h"

#define NUM_BYTES ((size_t)64 << 10)

static uint64_t clock_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * SML_NS_PER_S + (uint64_t)t.tv_nsec;
}

static struct sml_shm_meeting make_meeting(uint64_t secret, uint32_t num_ranks, uint32_t index, uint64_t timeout_ms) {
  return (struct sml_shm_meeting){.secret = {secret, (uint64_t)getpid()},
                                  .num_ranks = num_ranks,
                                  .index = index,
                                  .deadline_ns = clock_ns() + timeout_ms * SML_NS_PER_MS};
}

static void test_identity(void **state) {
  (void)state;
  uint8_t a[16], b[16], none[16] = {0};
  assert_true(sml_shm_identity(a) && sml_shm_identity(b));
  assert_memory_equal(a, b, 16);
  assert_memory_not_equal(a, none, 16);
}

struct party {
  struct sml_shm_meeting meeting;
  size_t num_bytes;
  struct sml_shm_segment segment;
  enum sml_shm_met met;
  uint32_t missing;
  char error[SML_SHM_ERROR_BYTES];
  pthread_t thread;
};

static void *meet(void *argument) {
  struct party *p = argument;
  p->met = (p->meeting.index == 0 ? sml_shm_segment_offer : sml_shm_segment_obtain)(&p->segment, p->num_bytes,
                                                                                    &p->meeting, &p->missing, p->error);
  return NULL;
}

static void start(struct party *p, uint64_t secret, uint32_t num_ranks, uint32_t index, uint64_t timeout_ms) {
  *p = (struct party){.meeting = make_meeting(secret, num_ranks, index, timeout_ms), .num_bytes = NUM_BYTES};
  assert_int_equal(pthread_create(&p->thread, NULL, meet, p), 0);
}

static int count_descriptors(void) {
  int count = 0;
  for (int fd = 0; fd < 256; fd++) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

static void test_all_see_the_same_memory(void **state) {
  (void)state;
  struct party parties[3];
  const int num_open = count_descriptors();
  for (uint32_t i = 3; i-- > 0;) start(&parties[i], 1, 3, i, 20000); /* the one that offers comes last */
  for (uint32_t i = 0; i < 3; i++) pthread_join(parties[i].thread, NULL);
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(parties[i].met, SML_SHM_MET);
    ((uint8_t *)parties[i].segment.memory)[i * 5000] = (uint8_t)(i + 1);
  }
  for (uint32_t i = 0; i < 3; i++) {
    const uint8_t *memory = parties[i].segment.memory;
    for (uint32_t k = 0; k < 3; k++) assert_int_equal(memory[k * 5000], k + 1);
  }
  for (uint32_t i = 0; i < 3; i++) sml_shm_segment_close(&parties[i].segment);
  assert_int_equal(count_descriptors(), num_open);
}

static void test_missing_is_named(void **state) {
  (void)state;
  struct party offers, obtains;
  start(&offers, 2, 3, 0, 150);
  start(&obtains, 2, 3, 1, 150);
  pthread_join(offers.thread, NULL);
  pthread_join(obtains.thread, NULL);
  assert_int_equal(offers.met, SML_SHM_TOO_LATE);
  assert_int_equal(offers.missing, 2);
  assert_null(offers.segment.memory);
  assert_int_equal(obtains.met, SML_SHM_MET);
  sml_shm_segment_close(&obtains.segment);
  start(&obtains, 3, 2, 1, 50); /* nobody offers */
  pthread_join(obtains.thread, NULL);
  assert_int_equal(obtains.met, SML_SHM_TOO_LATE);
  assert_int_equal(obtains.missing, 0);
}

/* Beyond the limit of file sizes, which would raise SIGXFSZ. */
static void test_a_limit_is_an_error(void **state) {
  (void)state;
  struct party p = {.meeting = make_meeting(4, 2, 0, 20000), .num_bytes = NUM_BYTES};
  struct rlimit before, limit;
  const int num_open = count_descriptors();
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  limit = (struct rlimit){NUM_BYTES - 1, before.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
  meet(&p);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
  assert_int_equal(p.met, SML_SHM_FAILED);
  assert_null(p.segment.memory);
  assert_string_equal(p.error,
                      "allocating 65536 bytes of shared memory failed: the limit of file sizes (ulimit -f) is lower");
  assert_int_equal(count_descriptors(), num_open);
}

/* Looks at the segment while it is offered, and ends that. */
static bool look_at_blocks(void *user) {
  char path[64], name[64];
  struct stat segment;
  for (int fd = 0; fd < 256; fd++) {
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(path, name, sizeof name - 1);
    name[length < 0 ? 0 : length] = 0;
    if (strncmp(name, "/memfd:switchml ", 16) == 0 && fstat(fd, &segment) == 0)
      *(uint64_t *)user = (uint64_t)segment.st_blocks * 512;
  }
  return true;
}

/* All of it is there before anybody writes: pages that are only touched later might lack memory then. */
static void test_memory_is_allocated(void **state) {
  (void)state;
  uint64_t allocated_bytes = 0;
  struct party p = {.meeting = make_meeting(5, 2, 0, 20000), .num_bytes = NUM_BYTES};
  p.meeting.should_stop = look_at_blocks;
  p.meeting.user = &allocated_bytes;
  meet(&p);
  assert_int_equal(p.met, SML_SHM_STOPPED);
  assert_int_equal(allocated_bytes, NUM_BYTES);
}

/* Another secret has another name; another size or number of ranks under the same one gets nothing. */
static void test_strangers_get_nothing(void **state) {
  (void)state;
  struct party offers, obtains;
  for (int what = 0; what < 3; what++) {
    start(&offers, 10, 2, 0, 100);
    obtains = (struct party){.meeting = make_meeting(what == 0 ? 11 : 10, what == 1 ? 3 : 2, 1, 100),
                             .num_bytes = what == 2 ? 2 * NUM_BYTES : NUM_BYTES};
    assert_int_equal(pthread_create(&obtains.thread, NULL, meet, &obtains), 0);
    pthread_join(offers.thread, NULL);
    pthread_join(obtains.thread, NULL);
    assert_int_equal(offers.met, SML_SHM_TOO_LATE);
    assert_int_equal(obtains.met, SML_SHM_TOO_LATE);
  }
}

static bool stop_at_once(void *user) {
  return ++*(int *)user > 3;
}

static void test_stops_when_told(void **state) {
  (void)state;
  for (uint32_t index = 0; index < 2; index++) {
    int num_asked = 0;
    struct party p = {.meeting = make_meeting(20, 2, index, 60000), .num_bytes = NUM_BYTES};
    p.meeting.should_stop = stop_at_once;
    p.meeting.user = &num_asked;
    meet(&p);
    assert_int_equal(p.met, SML_SHM_STOPPED);
  }
}

/* Who holds the name gives a segment that it could shrink, or none: it is not taken. */
static void *offer_badly(void *argument) {
  const int listener = *(const int *)argument;
  for (int i = 0; i < 2; i++) {
    const int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    const int fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    char byte = 1, greeting[64], room[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1};
    if (recv(peer, greeting, sizeof greeting, 0) > 0 && ftruncate(fd, (off_t)NUM_BYTES) == 0) {
      if (i == 0) {
        m.msg_control = room;
        m.msg_controllen = sizeof room;
        *CMSG_FIRSTHDR(&m) =
            (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &fd, sizeof fd);
      }
      sendmsg(peer, &m, MSG_NOSIGNAL);
    }
    close(fd);
    close(peer);
  }
  return NULL;
}

static void test_unsealed_memory_is_not_taken(void **state) {
  (void)state;
  const struct sml_key key = {.k0 = 30, .k1 = (uint64_t)getpid()};
  const struct sml_key derived = sml_key_derive(&key, "switchml host socket", NULL, 0);
  struct sockaddr_un name = {.sun_family = AF_UNIX};
  const int used = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "switchml-%016llx%016llx",
                            (unsigned long long)derived.k0, (unsigned long long)derived.k1);
  int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const socklen_t name_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)used);
  assert_int_equal(bind(listener, (struct sockaddr *)(void *)&name, name_bytes), 0);
  assert_int_equal(listen(listener, 4), 0);
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, offer_badly, &listener), 0);
  struct party obtains;
  start(&obtains, 30, 2, 1, 300);
  pthread_join(thread, NULL);
  close(listener);
  pthread_join(obtains.thread, NULL);
  assert_int_equal(obtains.met, SML_SHM_TOO_LATE);
  assert_null(obtains.segment.memory);
}

/* Two of three ranks wait for the third one; a child of fork() keeps neither the segment nor a socket. */
static void test_a_child_keeps_no_descriptor(void **state) {
  (void)state;
  const int before = count_descriptors();
  struct party parties[2];
  int status = 0;
  for (uint32_t i = 0; i < 2; i++) start(&parties[i], 78, 3, i, 500);
  for (uint32_t i = 0; i < 100 && status == 0; i++) {
    const pid_t pid = fork();
    if (pid == 0) _exit(count_descriptors() != before);
    assert_int_equal(waitpid(pid, &status, 0), pid);
  }
  for (uint32_t i = 0; i < 2; i++) pthread_join(parties[i].thread, NULL);
  for (uint32_t i = 0; i < 2; i++) sml_shm_segment_close(&parties[i].segment);
  assert_int_equal(status, 0);
  assert_int_equal(count_descriptors(), before);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_identity),
      cmocka_unit_test(test_all_see_the_same_memory),
      cmocka_unit_test(test_missing_is_named),
      cmocka_unit_test(test_strangers_get_nothing),
      cmocka_unit_test(test_stops_when_told),
      cmocka_unit_test(test_unsealed_memory_is_not_taken),
      cmocka_unit_test(test_a_limit_is_an_error),
      cmocka_unit_test(test_memory_is_allocated),
      cmocka_unit_test(test_a_child_keeps_no_descriptor),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
