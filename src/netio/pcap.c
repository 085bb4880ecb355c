/* SPDX-License-Identifier: Apache-2.0
 * What an engine sends and receives, as a pcapng file: UDP datagrams of the addresses that they have, with Ethernet and
 * IP headers made up around them. Needs no privilege and sees what no capture of an interface does: loopback's
 * segmented sends as single frames, and only frames that reached the process. Whatever goes wrong with the file ends
 * the capture, with a word, and nothing else.
 * pcapng: draft-ietf-opsawg-pcapng. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "netio/addr.h"
#include "netio/wrap.h"

#define BUFFER_BYTES (1u << 20)
#define DEFAULT_MAX_BYTES (UINT64_C(256) << 20)
#define FLUSH_NS (100 * SML_NS_PER_MS) /* at most so long after an event it stands in the file, if anything waits */
#define MAX_HEAD_BYTES 64u             /* Ethernet 14, IPv6 40, UDP 8 */
#define MAX_BLOCK_BYTES (65536u + 256u)
#define NUM_ROUTES 256u
#define MAX_NAMES 1000u
#define LINKTYPE_ETHERNET 1u
#define BLOCK_SECTION 0x0a0d0d0au
#define BLOCK_INTERFACE 1u
#define BLOCK_PACKET 6u
#define INBOUND 1u
#define OUTBOUND 2u

/* Which address of this host a peer sees. */
struct route {
  struct sml_addr peer, local;
};

struct pcap {
  struct sml_wrap wrap; /* first */
  void (*warn)(void *user, const char *text);
  void *user;
  char *path;
  int fd; /* -1: the capture has ended */
  uint8_t *buffer;
  size_t used;
  uint64_t written_bytes, max_bytes, flushed_ns;
  struct sml_addr local; /* as bound, perhaps to all addresses */
  struct route routes[NUM_ROUTES];
};

static struct pcap *pcap_of(struct sml_netio *io) {
  return (struct pcap *)(void *)io;
}

static uint64_t real_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * SML_NS_PER_S + (uint64_t)now.tv_nsec;
}

/* ---- the file ---- */

static void end_capture(struct pcap *p, const char *why) {
  char text[512];
  snprintf(text, sizeof text, "packet capture to %.300s ends: %.160s", p->path, why);
  close(p->fd);
  p->fd = -1;
  p->used = 0;
  if (p->warn != NULL) p->warn(p->user, text);
}

static void flush(struct pcap *p) {
  size_t done = 0;
  while (p->fd >= 0 && done < p->used) {
    const ssize_t n = sml_fd_write_quietly(p->fd, p->buffer + done, p->used - done);
    if (n > 0) {
      done += (size_t)n;
    } else if (n < 0 && errno != EINTR) {
      const int error = errno;
      /* Half a block would make the file look broken; without it what stands there is whole. */
      if (ftruncate(p->fd, (off_t)p->written_bytes) != 0) end_capture(p, "its last block is incomplete");
      else end_capture(p, strerror(error));
    }
  }
  if (p->fd >= 0) p->written_bytes += p->used;
  p->used = 0;
}

static uint8_t *put32(uint8_t *at, uint32_t value) {
  memcpy(at, &value, 4); /* in the host's order: the section says which */
  return at + 4;
}

static uint8_t *put_option(uint8_t *at, uint16_t code, const void *value, uint16_t num_bytes) {
  memcpy(at, &code, 2);
  memcpy(at + 2, &num_bytes, 2);
  memset(at + 4, 0, sml_align_up(num_bytes, 4));
  memcpy(at + 4, value, num_bytes);
  return at + 4 + sml_align_up(num_bytes, 4);
}

/* Ends a block that began at `block` and reaches to `at`. */
static void end_block(struct pcap *p, uint8_t *block, uint8_t *at) {
  const uint32_t num_bytes = (uint32_t)(at + 4 - block);
  put32(block + 4, num_bytes);
  put32(at, num_bytes);
  p->used += num_bytes;
}

static void begin_file(struct pcap *p, const char *name) {
  static const char application[] = "switchml " SML_VERSION_TEXT;
  static const uint8_t nanoseconds = 9;
  uint8_t *block = p->buffer, *at = put32(block, BLOCK_SECTION) + 4;
  at = put32(put32(at, 0x1a2b3c4du), 1);         /* byte order; version 1.0 */
  at = put32(put32(at, UINT32_MAX), UINT32_MAX); /* length of the section: not known */
  at = put_option(at, 4, application, sizeof application - 1);
  end_block(p, block, put32(at, 0));
  block = p->buffer + p->used;
  at = put32(block, BLOCK_INTERFACE) + 4;
  at = put32(put32(at, LINKTYPE_ETHERNET), 0);
  at = put_option(at, 2, name, (uint16_t)strnlen(name, 64));
  at = put_option(at, 9, &nanoseconds, 1);
  end_block(p, block, put32(at, 0));
}

/* ---- headers ---- */

static uint32_t add_words(uint32_t sum, const uint8_t *data, size_t num_bytes) {
  for (size_t i = 0; i + 1 < num_bytes; i += 2) sum += sml_load_be16(data + i);
  if (num_bytes % 2 != 0) sum += (uint32_t)data[num_bytes - 1] << 8;
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return sum;
}

/* A locally administered address, of the IP address's last bytes. */
static void put_mac(uint8_t *mac, const uint8_t *ip_end) {
  mac[0] = 2;
  mac[1] = 0;
  memcpy(mac + 2, ip_end - 4, 4);
}

/* Frames' addresses lie anywhere: no struct may be laid over them. */
static const uint8_t *v4_of(const struct sml_addr *addr) {
  return (const uint8_t *)addr->bytes + offsetof(struct sockaddr_in, sin_addr);
}

static const uint8_t *v6_of(const struct sml_addr *addr) {
  return (const uint8_t *)addr->bytes + offsetof(struct sockaddr_in6, sin6_addr);
}

static size_t put_udp(uint8_t *udp, uint16_t from, uint16_t to, uint32_t num_bytes) {
  sml_store_be16(udp, from);
  sml_store_be16(udp + 2, to);
  sml_store_be16(udp + 4, (uint16_t)(num_bytes + 8));
  sml_store_be16(udp + 6, 0);
  return 8;
}

static size_t put_v6(uint8_t *head, const struct sml_addr *from, const struct sml_addr *to, const uint8_t *data,
                     uint32_t num_bytes) {
  uint8_t *ip = head + 14, *udp = ip + 40, lengths[8] = {0};
  memset(ip, 0, 40);
  ip[0] = 0x60;
  sml_store_be16(ip + 4, (uint16_t)(num_bytes + 8));
  ip[6] = IPPROTO_UDP;
  ip[7] = 64;
  memcpy(ip + 8, v6_of(from), 16);
  memcpy(ip + 24, v6_of(to), 16);
  put_mac(head, ip + 40);
  put_mac(head + 6, ip + 24);
  sml_store_be16(head + 12, 0x86dd);
  put_udp(udp, sml_addr_port(from), sml_addr_port(to), num_bytes);
  sml_store_be32(lengths, num_bytes + 8);
  lengths[7] = IPPROTO_UDP;
  uint32_t sum = add_words(add_words(0, ip + 8, 32), lengths, 8); /* IPv6 has no datagrams without a checksum */
  sum = ~add_words(add_words(sum, udp, 8), data, num_bytes) & 0xffff;
  sml_store_be16(udp + 6, sum == 0 ? 0xffff : (uint16_t)sum);
  return 14 + 40 + 8;
}

static void put_v4_address(uint8_t *to, const struct sml_addr *addr) {
  const uint32_t loopback = htonl(INADDR_LOOPBACK); /* of frames that never were on a network */
  if (sml_addr_family(addr) == AF_INET) memcpy(to, v4_of(addr), 4);
  else memcpy(to, &loopback, 4);
}

static size_t put_v4(uint8_t *head, const struct sml_addr *from, const struct sml_addr *to, uint32_t num_bytes) {
  uint8_t *ip = head + 14;
  memset(ip, 0, 20);
  ip[0] = 0x45;
  sml_store_be16(ip + 2, (uint16_t)(num_bytes + 28));
  sml_store_be16(ip + 6, 0x4000); /* don't fragment */
  ip[8] = 64;
  ip[9] = IPPROTO_UDP;
  put_v4_address(ip + 12, from);
  put_v4_address(ip + 16, to);
  sml_store_be16(ip + 10, (uint16_t)~add_words(0, ip, 20));
  put_mac(head, ip + 20);
  put_mac(head + 6, ip + 16);
  sml_store_be16(head + 12, 0x0800);
  return 14 + 20 + put_udp(ip + 20, sml_addr_port(from), sml_addr_port(to), num_bytes);
}

/* ---- addresses ---- */

static bool is_any(const struct sml_addr *addr) {
  if (sml_addr_family(addr) == AF_INET6) return memcmp(v6_of(addr), &in6addr_any, 16) == 0;
  return sml_addr_family(addr) == AF_INET && memcmp(v4_of(addr), "\0\0\0", 4) == 0;
}

static const struct sml_addr *local_for(struct pcap *p, const struct sml_addr *peer) {
  if (!is_any(&p->local)) return &p->local;
  uint64_t words[4] = {0};
  memcpy(words, peer->bytes, sizeof peer->bytes);
  struct route *r = &p->routes[sml_mix64(words[0] ^ sml_mix64(words[1] ^ sml_mix64(words[2]))) % NUM_ROUTES];
  if (!sml_addr_equal(&r->peer, peer)) {
    r->local = p->local;
    if (sml_addr_find_local(peer, &r->local)) sml_addr_set_port(&r->local, sml_addr_port(&p->local));
    r->peer = *peer;
  }
  return &r->local;
}

/* ---- packets ---- */

static void capture(struct pcap *p, const uint8_t *data, uint32_t num_bytes, const struct sml_addr *peer,
                    uint32_t direction, uint64_t now_ns) {
  if (p->fd < 0) return;
  if (p->used + MAX_BLOCK_BYTES > BUFFER_BYTES) flush(p);
  if (p->fd >= 0 && p->written_bytes + p->used + num_bytes + MAX_HEAD_BYTES + 64 > p->max_bytes) {
    flush(p);
    if (p->fd >= 0) end_capture(p, "the file has its largest size");
  }
  if (p->fd < 0) return;
  const struct sml_addr *local = local_for(p, peer);
  const struct sml_addr *from = direction == INBOUND ? peer : local, *to = direction == INBOUND ? local : peer;
  uint8_t *block = p->buffer + p->used, *head = block + 28;
  const size_t head_bytes =
      sml_addr_family(peer) == AF_INET6 ? put_v6(head, from, to, data, num_bytes) : put_v4(head, from, to, num_bytes);
  const uint32_t packet_bytes = (uint32_t)head_bytes + num_bytes;
  memcpy(head + head_bytes, data, num_bytes);
  uint8_t *at = put32(block, BLOCK_PACKET) + 4;
  at = put32(put32(put32(at, 0), (uint32_t)(now_ns >> 32)), (uint32_t)now_ns);
  put32(put32(at, packet_bytes), packet_bytes);
  memset(head + packet_bytes, 0, 4);
  at = put_option(head + sml_align_up(packet_bytes, 4), 2, &direction, 4);
  end_block(p, block, put32(at, 0));
}

static void pcap_close(struct sml_netio *io) {
  struct pcap *p = pcap_of(io);
  p->wrap.inner->ops->close(p->wrap.inner);
  if (p->fd >= 0) flush(p);
  if (p->fd >= 0) close(p->fd);
  free(p->buffer);
  free(p->path);
  free(p);
}

static void pcap_close_descriptors(struct sml_netio *io) {
  sml_wrap_close_descriptors(io);
  if (pcap_of(io)->fd >= 0) close(pcap_of(io)->fd);
}

static size_t pcap_rx_burst(struct sml_netio *io, struct sml_rx_frame *frames, size_t max) {
  struct pcap *p = pcap_of(io);
  const size_t num_frames = p->wrap.inner->ops->rx_burst(p->wrap.inner, frames, max);
  const uint64_t now_ns = num_frames > 0 && p->fd >= 0 ? real_ns() : 0;
  for (size_t i = 0; i < num_frames; i++)
    capture(p, frames[i].data, frames[i].num_bytes, frames[i].from, INBOUND, now_ns);
  sml_wrap_share(io);
  return num_frames;
}

/* Before the frames are the back end's. Whether it can send them is not known yet. */
static void pcap_tx_commit(struct sml_netio *io, struct sml_tx_burst *burst, uint32_t num_frames, uint32_t last_bytes,
                           const struct sml_addr *peers, size_t num_peers) {
  struct pcap *p = pcap_of(io);
  const uint64_t now_ns = num_frames > 0 && p->fd >= 0 ? real_ns() : 0;
  for (size_t k = 0; k < num_peers && p->fd >= 0; k++)
    for (uint32_t i = 0; i < num_frames; i++)
      if (sml_tx_is_for(burst, i, k))
        capture(p, burst->data + (size_t)i * burst->frame_bytes, i + 1 == num_frames ? last_bytes : burst->frame_bytes,
                &peers[k], OUTBOUND, now_ns);
  sml_wrap_tx_commit(io, burst, num_frames, last_bytes, peers, num_peers);
}

/* Whether something is left that is not in the file. */
static bool flush_if_old(struct pcap *p) {
  if (p->used == 0) return false;
  const uint64_t now_ns = real_ns();
  if (now_ns - p->flushed_ns < FLUSH_NS) return true; /* not so after the clock was set back */
  flush(p);
  p->flushed_ns = now_ns;
  return false;
}

static void pcap_tx_flush(struct sml_netio *io) {
  sml_wrap_tx_flush(io);
  (void)flush_if_old(pcap_of(io));
}

static void pcap_wait(struct sml_netio *io, uint64_t timeout_ns) {
  if (flush_if_old(pcap_of(io))) timeout_ns = sml_min_u64(timeout_ns, FLUSH_NS);
  sml_wrap_wait(io, timeout_ns);
}

static const struct sml_netio_ops pcap_ops = {SML_WRAP_OPS,
                                              .name = "pcap",
                                              .close = pcap_close,
                                              .close_descriptors = pcap_close_descriptors,
                                              .rx_burst = pcap_rx_burst,
                                              .tx_commit = pcap_tx_commit,
                                              .tx_flush = pcap_tx_flush,
                                              .wait = pcap_wait};

/* ---- opening ---- */

/* PATH with "-PART" before its extension, which begins at the last dot of the name. */
static void put_name(char *name, size_t name_bytes, const char *path, const char *part) {
  const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
  if (dot == NULL || (slash != NULL && dot < slash)) dot = path + strlen(path);
  snprintf(name, name_bytes, "%.*s%s%s%s", (int)(dot - path), path, part[0] != 0 ? "-" : "", part, dot);
}

/* A new file instead of the one that is there: what comes over the network must not go through a link to a file of
 * this user's choice, or into one that somebody else has open. */
static int open_new(struct pcap *p) {
  struct stat st;
  if (lstat(p->path, &st) == 0 && !S_ISREG(st.st_mode)) return S_ISLNK(st.st_mode) ? -ELOOP : -EEXIST;
  if (unlink(p->path) != 0 && errno != ENOENT) return -errno;
  p->fd = sml_fd_raise(open(p->path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  return p->fd >= 0 ? 0 : -errno;
}

static int open_file(struct pcap *p, const struct sml_pcap_options *o) {
  const size_t path_bytes = strlen(o->path) + 64;
  char part[48];
  p->path = malloc(path_bytes);
  if (p->path == NULL) return -ENOMEM;
  if (!o->is_shared_name) {
    snprintf(part, sizeof part, "lane%u", o->lane);
    put_name(p->path, path_bytes, o->path, o->lane > 0 ? part : "");
    return open_new(p);
  }
  for (uint32_t k = 0; k < MAX_NAMES; k++) {
    const int used = snprintf(part, sizeof part, "%ld", (long)getpid());
    if (k > 0) snprintf(part + used, sizeof part - (size_t)used, "-%u", k);
    put_name(p->path, path_bytes, o->path, part);
    p->fd = sml_fd_raise(open(p->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (p->fd >= 0 || errno != EEXIST) break;
  }
  return p->fd >= 0 ? 0 : -errno;
}

int sml_pcap_wrap(struct sml_netio *inner, const struct sml_pcap_options *options, struct sml_netio **io_out,
                  char *error_out, size_t error_bytes) {
  char name[64];
  int error = -ENOMEM;
  struct pcap *p = calloc(1, sizeof *p);
  if (p != NULL) {
    p->fd = -1;
    p->buffer = malloc(BUFFER_BYTES + MAX_BLOCK_BYTES);
    if (p->buffer != NULL) error = open_file(p, options);
  }
  if (error != 0) {
    snprintf(error_out, error_bytes, "cannot capture packets to %s: %s", options->path,
             error == -ELOOP ? "a link is there, and is not followed" : strerror(-error));
    if (p != NULL) free(p->buffer);
    if (p != NULL) free(p->path);
    free(p);
    return error;
  }
  p->warn = options->warn;
  p->user = options->user;
  p->max_bytes = options->max_bytes != 0 ? options->max_bytes : DEFAULT_MAX_BYTES;
  sml_wrap_init(&p->wrap, &pcap_ops, inner);
  inner->ops->local_addr(inner, &p->local);
  snprintf(name, sizeof name, "lane %u", options->lane);
  begin_file(p, name);
  *io_out = &p->wrap.io;
  return 0;
}
