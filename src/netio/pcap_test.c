/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/test_skip.h"
#include "netio/netio.h"

#define FRAMES 3u

static char folder[] = "/tmp/sml-pcap-test-XXXXXX";
static char warning[512];

static void keep_warning(void *user, const char *text) {
  (void)user;
  assert_string_equal(warning, ""); /* once */
  snprintf(warning, sizeof warning, "%s", text);
}

static struct sml_netio *open_at(const char *host, struct sml_addr *addr_out) {
  struct sml_netio *io;
  struct sml_addr any;
  char error[128];
  assert_true(sml_addr_parse(host, 0, &any, error, sizeof error));
  if (sml_udp_open(&(struct sml_udp_options){.bind_addr = &any}, &io, error, sizeof error) != 0) return NULL;
  io->ops->local_addr(io, addr_out);
  return io;
}

static void send_frames(struct sml_netio *io, const struct sml_addr *to, uint32_t num_frames, uint32_t frame_bytes,
                        uint32_t last_bytes) {
  struct sml_tx_burst burst;
  io->ops->tx_reserve(io, frame_bytes, &burst);
  assert_true(burst.max_frames >= num_frames);
  for (uint32_t i = 0; i < num_frames * frame_bytes; i++) burst.data[i] = (uint8_t)i;
  io->ops->tx_commit(io, &burst, num_frames, last_bytes, to, 1);
  io->ops->tx_flush(io);
}

static uint32_t receive(struct sml_netio *io, uint32_t num_wanted) {
  struct sml_rx_frame frames[16];
  uint32_t num_frames = 0;
  for (uint32_t i = 0; i < 1000 && num_frames < num_wanted; i++) {
    io->ops->wait(io, 10 * SML_NS_PER_MS);
    num_frames += (uint32_t)io->ops->rx_burst(io, frames, 16);
  }
  return num_frames;
}

static size_t read_file(const char *path, uint8_t *bytes, size_t room) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  assert_true(fd >= 0);
  const ssize_t num_bytes = read(fd, bytes, room);
  close(fd);
  assert_true(num_bytes >= 0);
  return (size_t)num_bytes;
}

static uint32_t word(const uint8_t *at) {
  uint32_t value;
  memcpy(&value, at, 4);
  return value;
}

/* Whole blocks, to the end; returns how many packets, and where the last one is. */
static uint32_t count_packets(const uint8_t *bytes, size_t num_bytes, const uint8_t **last_out) {
  uint32_t num_packets = 0;
  for (size_t at = 0; at < num_bytes;) {
    const uint32_t block_bytes = word(bytes + at + 4);
    assert_true(block_bytes % 4 == 0 && block_bytes >= 12 && at + block_bytes <= num_bytes);
    assert_int_equal(word(bytes + at + block_bytes - 4), block_bytes);
    if (word(bytes + at) == 6) {
      num_packets++;
      if (last_out != NULL) *last_out = bytes + at;
    }
    at += block_bytes;
  }
  return num_packets;
}

static uint32_t ones_sum(const uint8_t *data, size_t num_bytes) {
  uint32_t sum = 0;
  for (size_t i = 0; i < num_bytes; i++) sum += i % 2 == 0 ? (uint32_t)data[i] << 8 : data[i];
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return sum;
}

static void exchange(const char *host, const char *name, uint8_t ip_version) {
  char path[96], error[256];
  static uint8_t bytes[65536];
  struct sml_addr a_addr, b_addr;
  struct sml_netio *a = open_at(host, &a_addr), *b = open_at(host, &b_addr), *captured;
  if (a == NULL || b == NULL) SKIP_TEST("this host has no IPv6");
  struct sml_addr to;
  snprintf(path, sizeof path, "%s/%s.pcapng", folder, name);
  const struct sml_pcap_options options = {.path = path, .lane = 0, .warn = keep_warning};
  assert_int_equal(sml_pcap_wrap(a, &options, &captured, error, sizeof error), 0);
  /* Bound to all addresses: the peer's name for it is loopback's. */
  assert_true(sml_addr_parse(ip_version == 6 ? "[::1]:1" : "127.0.0.1:1", 0, &to, error, sizeof error));
  sml_addr_set_port(&to, sml_addr_port(&b_addr));
  send_frames(captured, &to, FRAMES, 100, 37);
  assert_int_equal(receive(b, FRAMES), FRAMES);
  sml_addr_set_port(&to, sml_addr_port(&a_addr));
  send_frames(b, &to, 1, 41, 41);
  assert_int_equal(receive(captured, 1), 1);
  captured->ops->close(captured);
  b->ops->close(b);
  const uint8_t *last = NULL;
  assert_int_equal(count_packets(bytes, read_file(path, bytes, sizeof bytes), &last), FRAMES + 1);
  const uint8_t *ip = last + 28 + 14, *udp = ip + (ip_version == 6 ? 40 : 20);
  assert_int_equal(word(last + 20), 14 + (udp - ip) + 8 + 41);
  assert_int_equal(ip[0] >> 4, ip_version);
  assert_int_equal(sml_load_be16(udp), sml_addr_port(&b_addr));
  assert_int_equal(sml_load_be16(udp + 2), sml_addr_port(&a_addr));
  assert_int_equal(sml_load_be16(udp + 4), 8 + 41);
  if (ip_version == 4) {
    assert_int_equal(ones_sum(ip, 20), 0xffff);
    assert_int_equal(sml_load_be32(ip + 12), 0x7f000001);
    assert_int_equal(sml_load_be32(ip + 16), 0x7f000001);
  } else {
    /* Pseudo header: both addresses, then length and protocol, which are added by hand. */
    assert_int_equal((ones_sum(ip + 8, 32 + 8 + 41) + 8 + 41 + 17 - 1) % 0xffff + 1, 0xffff);
  }
  for (uint32_t i = 0; i < 41; i++) assert_int_equal(udp[8 + i], i);
  assert_int_equal(unlink(path), 0);
}

static void frames_of_both_ways_are_there(void **state) {
  (void)state;
  exchange("0.0.0.0:0", "v4", 4);
}

static void ipv6_has_checksums(void **state) {
  (void)state;
  exchange("[::]:0", "v6", 6);
}

static struct sml_netio *wrap_mem(struct sml_mem_hub *hub, const char *path, bool is_shared_name, uint64_t max_bytes) {
  char error[256];
  struct sml_netio *io = sml_mem_open(hub, 64, 9000), *captured;
  const struct sml_pcap_options options = {
      .path = path, .is_shared_name = is_shared_name, .max_bytes = max_bytes, .warn = keep_warning};
  assert_int_equal(sml_pcap_wrap(io, &options, &captured, error, sizeof error), 0);
  return captured;
}

static void a_full_file_ends_the_capture_with_a_word(void **state) {
  (void)state;
  char path[96];
  static uint8_t bytes[65536];
  struct sml_addr to;
  struct sml_mem_hub *hub = sml_mem_hub_create();
  snprintf(path, sizeof path, "%s/full", folder);
  warning[0] = 0;
  struct sml_netio *io = wrap_mem(hub, path, false, 10000), *other = sml_mem_open(hub, 64, 9000);
  other->ops->local_addr(other, &to);
  for (uint32_t i = 0; i < 20; i++) send_frames(io, &to, 1, 1000, 1000);
  assert_int_equal(receive(other, 20), 20); /* they go on their way */
  assert_int_equal(io->ops->tx_waiting(io), 0);
  assert_non_null(strstr(warning, "largest size"));
  io->ops->close(io);
  other->ops->close(other);
  sml_mem_hub_destroy(hub);
  const size_t num_bytes = read_file(path, bytes, sizeof bytes);
  assert_in_range(num_bytes, 8000, 10000);
  assert_in_range(count_packets(bytes, num_bytes, NULL), 8, 9);
  assert_int_equal(unlink(path), 0);
}

/* The limit of a file's size does what a full disk does: part of a write, then an error. */
static void a_full_disk_leaves_whole_blocks(void **state) {
  (void)state;
  char path[96];
  static uint8_t bytes[65536];
  struct sml_addr to;
  snprintf(path, sizeof path, "%s/disk", folder);
  const pid_t child = fork();
  if (child == 0) {
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = 5000;
    setrlimit(RLIMIT_FSIZE, &limit);
    signal(SIGXFSZ, SIG_IGN);
    struct sml_mem_hub *hub = sml_mem_hub_create();
    warning[0] = 0;
    struct sml_netio *io = wrap_mem(hub, path, false, 0), *other = sml_mem_open(hub, 64, 9000);
    other->ops->local_addr(other, &to);
    for (uint32_t i = 0; i < 3; i++) {
      send_frames(io, &to, 1, 1000, 1000);
      usleep(110 * 1000); /* so that each stands in the file */
    }
    for (uint32_t i = 0; i < 10; i++) send_frames(io, &to, 1, 1000, 1000);
    usleep(110 * 1000);
    send_frames(io, &to, 1, 1000, 1000);
    const bool is_well = receive(other, 14) == 14 && strstr(warning, "File too large") != NULL;
    io->ops->close(io);
    other->ops->close(other);
    sml_mem_hub_destroy(hub);
    _exit(is_well ? 0 : 1);
  }
  int status;
  waitpid(child, &status, 0);
  assert_int_equal(status, 0);
  assert_in_range(count_packets(bytes, read_file(path, bytes, sizeof bytes), NULL), 1, 4);
  assert_int_equal(unlink(path), 0);
}

/* What waits to be written is the parent's; the child has a copy of it. */
static void a_forked_child_writes_nothing(void **state) {
  (void)state;
  char path[96];
  static uint8_t bytes[65536];
  struct sml_addr to;
  int status;
  struct sml_mem_hub *hub = sml_mem_hub_create();
  snprintf(path, sizeof path, "%s/fork", folder);
  struct sml_netio *io = wrap_mem(hub, path, false, 0), *other = sml_mem_open(hub, 64, 9000);
  other->ops->local_addr(other, &to);
  send_frames(io, &to, 1, 100, 100); /* which goes into the file at once */
  send_frames(io, &to, 3, 100, 100);
  const pid_t child = fork();
  if (child == 0) {
    io->ops->close_descriptors(io);
    _exit(0);
  }
  waitpid(child, &status, 0);
  assert_int_equal(status, 0);
  io->ops->close(io);
  other->ops->close(other);
  sml_mem_hub_destroy(hub);
  assert_int_equal(count_packets(bytes, read_file(path, bytes, sizeof bytes), NULL), 4);
  assert_int_equal(unlink(path), 0);
}

static void processes_do_not_share_a_file(void **state) {
  (void)state;
  char path[96], first[128], second[128], error[256];
  struct sml_mem_hub *hub = sml_mem_hub_create();
  snprintf(path, sizeof path, "%s/run.1.pcapng", folder);
  snprintf(first, sizeof first, "%s/run.1-%ld.pcapng", folder, (long)getpid());
  snprintf(second, sizeof second, "%s/run.1-%ld-1.pcapng", folder, (long)getpid());
  struct sml_netio *a = wrap_mem(hub, path, true, 0), *b = wrap_mem(hub, path, true, 0);
  a->ops->close(a);
  b->ops->close(b);
  assert_int_equal(unlink(first), 0);
  assert_int_equal(unlink(second), 0);
  struct sml_netio *inner = sml_mem_open(hub, 64, 9000), *io;
  const struct sml_pcap_options options = {.path = "/no/such/folder/x"};
  assert_true(sml_pcap_wrap(inner, &options, &io, error, sizeof error) < 0);
  assert_non_null(strstr(error, "No such file"));
  inner->ops->close(inner);
  sml_mem_hub_destroy(hub);
}

/* A capture is written by a daemon, perhaps root's, at a name that others may know. */
static void no_file_of_others_is_written_to(void **state) {
  (void)state;
  char path[96], victim[96], error[256];
  static uint8_t bytes[65536];
  struct stat st;
  snprintf(path, sizeof path, "%s/capture", folder);
  snprintf(victim, sizeof victim, "%s/victim", folder);
  struct sml_mem_hub *hub = sml_mem_hub_create();
  struct sml_netio *inner = sml_mem_open(hub, 64, 9000), *io;
  const struct sml_pcap_options options = {.path = path};
  int fd = open(victim, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  assert_int_equal(write(fd, "precious", 8), 8);
  close(fd);
  assert_int_equal(symlink(victim, path), 0);
  assert_true(sml_pcap_wrap(inner, &options, &io, error, sizeof error) < 0);
  assert_non_null(strstr(error, "a link is there, and is not followed"));
  unlink(path);
  assert_int_equal(mkfifo(path, 0600), 0); /* whose opening would wait for a reader */
  assert_true(sml_pcap_wrap(inner, &options, &io, error, sizeof error) < 0);
  unlink(path);
  assert_int_equal(link(victim, path), 0); /* a second name of theirs becomes a file of ours */
  assert_int_equal(sml_pcap_wrap(inner, &options, &io, error, sizeof error), 0);
  io->ops->close(io);
  assert_int_equal(read_file(victim, bytes, sizeof bytes), 8);
  assert_int_equal(stat(path, &st), 0);
  assert_true((st.st_mode & 07777) == 0600 && st.st_nlink == 1);
  unlink(path);
  unlink(victim);
  sml_mem_hub_destroy(hub);
}

int main(void) {
  if (mkdtemp(folder) == NULL) return 1;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(frames_of_both_ways_are_there),
      cmocka_unit_test(ipv6_has_checksums),
      cmocka_unit_test(a_full_file_ends_the_capture_with_a_word),
      cmocka_unit_test(a_full_disk_leaves_whole_blocks),
      cmocka_unit_test(a_forked_child_writes_nothing),
      cmocka_unit_test(processes_do_not_share_a_file),
      cmocka_unit_test(no_file_of_others_is_written_to),
  };
  const int num_failed = cmocka_run_group_tests(tests, NULL, NULL);
  rmdir(folder);
  return num_failed;
}
