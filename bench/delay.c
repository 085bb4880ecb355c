/* SPDX-License-Identifier: Apache-2.0
 * delay MICROSECONDS INTERFACE...: an Ethernet switch whose frames take that long. For kernels without netem: it runs
 * in the namespace of a bed's bridge, on its ports. Frames go on as the kernel hands them over, with what is to be
 * segmented or summed still to be done. Prints "ready". */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define MAX_PORTS 128
#define MAX_FRAMES 4096u
#define FRAME_BYTES (70u << 10)
#define VNET_BYTES 10u /* struct virtio_net_hdr */

struct frame {
  uint64_t due_ns;
  int from;
  ssize_t num_bytes;
  uint8_t *bytes;
};

static struct frame frames[MAX_FRAMES];
static uint32_t first, num_frames;
static struct pollfd ports[MAX_PORTS];
static uint8_t stations[MAX_PORTS][6]; /* the one behind each port */
static int num_ports;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int open_port(const char *name) {
  const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, htons(ETH_P_ALL)), on = 1;
  struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
  address.sll_ifindex = (int)if_nametoindex(name);
  if (fd < 0 || address.sll_ifindex == 0 || setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on) != 0 ||
      setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) != 0 ||
      bind(fd, (struct sockaddr *)&address, sizeof address) != 0) {
    fprintf(stderr, "delay: %s: %s\n", name, strerror(errno));
    exit(1);
  }
  return fd;
}

static void take(int port, uint64_t delay_ns) {
  while (num_frames < MAX_FRAMES) {
    struct frame *f = &frames[(first + num_frames) % MAX_FRAMES];
    if (f->bytes == NULL && (f->bytes = malloc(FRAME_BYTES)) == NULL) exit(1);
    f->num_bytes = recv(ports[port].fd, f->bytes, FRAME_BYTES, 0);
    if (f->num_bytes < (ssize_t)(VNET_BYTES + ETH_HLEN)) return;
    f->due_ns = now_ns() + delay_ns;
    f->from = port;
    memcpy(stations[port], f->bytes + VNET_BYTES + 6, 6);
    num_frames++;
  }
}

static void deliver(const struct frame *f) {
  const uint8_t *to = f->bytes + VNET_BYTES;
  int only = -1;
  for (int p = 0; p < num_ports; p++)
    if (memcmp(stations[p], to, 6) == 0) only = p;
  for (int p = 0; p < num_ports; p++)
    if (p != f->from && (only < 0 || p == only) && send(ports[p].fd, f->bytes, (size_t)f->num_bytes, 0) < 0)
      continue; /* lost, as on any link */
}

int main(int argc, char **argv) {
  if (argc < 3 || argc - 2 > MAX_PORTS) return 2;
  const uint64_t delay_ns = strtoull(argv[1], NULL, 10) * 1000;
  for (num_ports = 0; num_ports < argc - 2; num_ports++)
    ports[num_ports] = (struct pollfd){.fd = open_port(argv[num_ports + 2]), .events = POLLIN};
  puts("ready");
  fflush(stdout);
  for (;;) {
    struct timespec wait = {0}, *until = NULL;
    if (num_frames > 0) {
      const uint64_t now = now_ns(), due = frames[first].due_ns;
      wait.tv_nsec = due > now ? (long)(due - now) : 0;
      until = &wait;
    }
    if (ppoll(ports, (nfds_t)num_ports, until, NULL) < 0) return 1;
    for (int p = 0; p < num_ports; p++)
      if (ports[p].revents & POLLIN) take(p, delay_ns);
    while (num_frames > 0 && frames[first].due_ns <= now_ns()) {
      deliver(&frames[first]);
      first = (first + 1) % MAX_FRAMES;
      num_frames--;
    }
  }
}
