/* SPDX-License-Identifier: Apache-2.0
 * path [OPTION]... NAME[=BITS]...: a switch with long and bad links, for kernels without netem. It runs in the
 * namespace of a bed's bridge, on its ports. A frame crosses the sender's link, then the path between, then the
 * receiver's link.
 *   --delay US        the path takes so long, one way
 *   --jitter US       and up to so much longer, without overtaking what the same host has sent before
 *   --late SHARE:US   this share of frames takes so much longer, and is overtaken
 *   --loss SHARE      of frames is lost on the path; ARP is not
 *   --queue BYTES     may wait for each link; --mark BYTES: CE on what finds more than that waiting
 *   --seed N          of all that is drawn
 *   NAME=BITS         a port, and what its link carries a second, each way; without BITS it is not limited
 * Rates have no free credit: each frame ends when a link of that rate would have carried it. Frames go on as the
 * kernel hands them over, with what is to be segmented or summed still to be done; bench/netbed.py limits it to single
 * packets where there are rates or losses. Prints "ready", and counters as JSON for each SIGUSR1: error_us says how
 * much later than meant frames left, from their arrival by the kernel's time stamp on. */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

#define MAX_PORTS 128
#define MAX_EVENTS (1u << 19)
#define MAX_HELD_BYTES (2ull << 30)
#define MAX_FRAME_BYTES (70u << 10)
#define VNET_BYTES sizeof(struct virtio_net_hdr)
#define BURST 32
#define MAX_BURSTS 32 /* of a port at once */
#define MAX_DUE 4096u /* leave before the ports are looked at again: what waits there has its time stamp */
#define NOWHERE (-1)
#define LOOK_NS 30000u /* about what a sleep takes too long: it ends so much earlier, and the rest is spent looking */
/* On a long path it does not look, and frames leave together, as a network card gathers interrupts. Else this program
 * would have most of a processor, which the ranks need. */
#define LONG_DELAY_NS 1000000u
#define GATHERED_SHARE 200u /* of the path's time, one way */
#define MAX_GATHERED_NS 250000u
/* The kernel stops a process of our priority for 50 ms of each second in which it does not sleep. */
#define MAX_BUSY_NS 1000000u
#define REST_NS 30000u

struct frame {
  uint32_t num_bytes, wire_bytes, num_events;
  int from;
  uint8_t bytes[];
};

struct event {
  uint64_t due_ns, number; /* equal times: in the order of their making */
  struct frame *frame;
  int to; /* NOWHERE: it is at the end of the path, before the receiver's link */
};

struct link {
  uint64_t free_ns; /* when what waits is through */
};

static struct {
  uint64_t delay_ns, jitter_ns, late_ns, queue_bytes, mark_bytes, seed;
  double late_share, loss;
} path = {.queue_bytes = UINT64_MAX, .seed = 1};

static struct { uint64_t frames, bytes, lost, dropped, marked, late, overrun; } count;

static struct pollfd ports[MAX_PORTS];
static uint8_t stations[MAX_PORTS][6]; /* the one behind each port */
static double bits[MAX_PORTS];         /* a second; 0: not limited */
static struct link up[MAX_PORTS], down[MAX_PORTS];
static uint64_t last_due_ns[MAX_PORTS];
static int num_ports;
static struct event events[MAX_EVENTS]; /* a heap */
static uint32_t num_events;
static uint64_t num_made, held_bytes, kernel_drops;
static uint32_t errors[20000]; /* of 0.5 us each; the last one: and above */
static volatile sig_atomic_t is_asked;

#define NUM_ERRORS (sizeof errors / sizeof errors[0])

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t); /* of the kernel's time stamps */
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* splitmix64, as a share of 1 */
static double draw(void) {
  uint64_t z = path.seed += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static void die(const char *what) {
  fprintf(stderr, "path: %s: %s\n", what, strerror(errno));
  exit(1);
}

/* ---- what is under way ---- */

static int is_before(const struct event *a, const struct event *b) {
  return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->number < b->number;
}

static void release(struct frame *f) {
  if (--f->num_events > 0) return;
  held_bytes -= f->num_bytes;
  free(f);
}

static void push(struct frame *f, int to, uint64_t due_ns) {
  if (num_events == MAX_EVENTS) {
    count.overrun++;
    return;
  }
  const struct event made = {.due_ns = due_ns, .number = num_made++, .frame = f, .to = to};
  f->num_events++;
  uint32_t i = num_events++;
  for (; i > 0 && is_before(&made, &events[(i - 1) / 2]); i = (i - 1) / 2) events[i] = events[(i - 1) / 2];
  events[i] = made;
}

static struct event pop(void) {
  const struct event first = events[0], last = events[--num_events];
  uint32_t i = 0;
  for (uint32_t child; (child = 2 * i + 1) < num_events; i = child) {
    if (child + 1 < num_events && is_before(&events[child + 1], &events[child])) child++;
    if (!is_before(&events[child], &last)) break;
    events[i] = events[child];
  }
  events[i] = last;
  return first;
}

/* ---- links and the path ---- */

static void mark(struct frame *f) {
  uint8_t *ip = f->bytes + VNET_BYTES + ETH_HLEN;
  if (ip[-2] != 0x08 || ip[-1] != 0x00 || (ip[1] & 3) == 0 || (ip[1] & 3) == 3) return;
  const uint32_t before = (uint32_t)ip[0] << 8 | ip[1];
  ip[1] |= 3;
  const uint32_t after = (uint32_t)ip[0] << 8 | ip[1];
  uint32_t sum = (~((uint32_t)ip[10] << 8 | ip[11]) & 0xffff) + (~before & 0xffff) + after; /* RFC 1624 */
  sum = (sum & 0xffff) + (sum >> 16);
  sum = ~((sum & 0xffff) + (sum >> 16)) & 0xffff;
  ip[10] = (uint8_t)(sum >> 8);
  ip[11] = (uint8_t)sum;
  count.marked++;
}

/* When a link of that rate is through with a frame that comes to it now; 0: its queue was full. */
static uint64_t cross(struct link *link, double link_bits, struct frame *f, uint64_t at_ns) {
  if (link_bits <= 0) return at_ns;
  const uint64_t start_ns = link->free_ns > at_ns ? link->free_ns : at_ns;
  const double waiting_bytes = (double)(start_ns - at_ns) * link_bits / 8e9;
  if (waiting_bytes + f->wire_bytes > (double)path.queue_bytes) {
    count.dropped++;
    return 0;
  }
  if (path.mark_bytes > 0 && waiting_bytes > (double)path.mark_bytes) mark(f);
  return link->free_ns = start_ns + (uint64_t)(f->wire_bytes * 8e9 / link_bits);
}

static void enter(struct frame *f, uint64_t arrived_ns) {
  uint64_t due_ns = cross(&up[f->from], bits[f->from], f, arrived_ns);
  if (due_ns == 0) return;
  const uint8_t *type = f->bytes + VNET_BYTES + 12;
  const int is_arp = type[0] == 0x08 && type[1] == 0x06;
  if (path.loss > 0 && !is_arp && draw() < path.loss) {
    count.lost++;
    return;
  }
  due_ns += path.delay_ns + (path.jitter_ns > 0 ? (uint64_t)(draw() * (double)path.jitter_ns) : 0);
  if (due_ns < last_due_ns[f->from]) due_ns = last_due_ns[f->from];
  if (path.late_share > 0 && draw() < path.late_share) {
    due_ns += path.late_ns;
    count.late++;
  } else last_due_ns[f->from] = due_ns;
  push(f, NOWHERE, due_ns);
}

static void deliver(const struct frame *f, int to, uint64_t due_ns) {
  if (send(ports[to].fd, f->bytes, f->num_bytes, 0) < 0) count.overrun++;
  const uint64_t now = now_ns(), late_ns = now > due_ns ? now - due_ns : 0;
  errors[late_ns / 500 < NUM_ERRORS - 1 ? late_ns / 500 : NUM_ERRORS - 1]++;
}

static void leave_path(struct frame *f, uint64_t due_ns) {
  const uint8_t *station = f->bytes + VNET_BYTES;
  int only = NOWHERE;
  for (int p = 0; p < num_ports; p++)
    if (memcmp(stations[p], station, 6) == 0) only = p;
  for (int p = 0; p < num_ports; p++) {
    if (p == f->from || (only != NOWHERE && p != only)) continue;
    const uint64_t through_ns = cross(&down[p], bits[p], f, due_ns);
    if (through_ns == due_ns) deliver(f, p, due_ns);
    else if (through_ns != 0) push(f, p, through_ns);
  }
}

/* ---- ports ---- */

static void open_port(char *text) {
  char *rate = strchr(text, '=');
  if (rate != NULL) *rate++ = '\0';
  if (num_ports == MAX_PORTS) exit(2);
  const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, htons(ETH_P_ALL)), on = 1, room = 64 << 20;
  struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
  address.sll_ifindex = (int)if_nametoindex(text);
  if (fd < 0 || address.sll_ifindex == 0 || setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on) != 0 ||
      setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) != 0 ||
      setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on) != 0 ||
      setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room) != 0 ||
      setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on) != 0 ||
      bind(fd, (struct sockaddr *)&address, sizeof address) != 0)
    die(text);
  bits[num_ports] = rate != NULL ? strtod(rate, NULL) : 0;
  ports[num_ports++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

/* What the links carry of a frame that the kernel has still to cut up: each packet has headers. */
static uint32_t wire_bytes_of(const uint8_t *bytes, uint32_t num_bytes) {
  const struct virtio_net_hdr *vnet = (const void *)bytes;
  const uint32_t frame_bytes = num_bytes - (uint32_t)VNET_BYTES;
  if (vnet->gso_type == VIRTIO_NET_HDR_GSO_NONE || vnet->gso_size == 0) return frame_bytes;
  const uint32_t header_bytes = (vnet->gso_type & ~VIRTIO_NET_HDR_GSO_ECN) == VIRTIO_NET_HDR_GSO_TCPV4 ? 66 : 42;
  if (frame_bytes <= header_bytes) return frame_bytes;
  return frame_bytes + (frame_bytes - header_bytes - 1) / vnet->gso_size * header_bytes;
}

static void take_one(int port, const uint8_t *bytes, uint32_t num_bytes, uint64_t arrived_ns) {
  if (num_bytes < VNET_BYTES + ETH_HLEN + 20) return;
  struct frame *f = held_bytes + num_bytes <= MAX_HELD_BYTES ? malloc(sizeof *f + num_bytes) : NULL;
  if (f == NULL) {
    count.overrun++;
    return;
  }
  *f = (struct frame){
      .num_bytes = num_bytes, .wire_bytes = wire_bytes_of(bytes, num_bytes), .num_events = 1, .from = port};
  memcpy(f->bytes, bytes, num_bytes);
  memcpy(stations[port], bytes + VNET_BYTES + 6, 6);
  held_bytes += num_bytes;
  count.frames++;
  count.bytes += f->wire_bytes;
  enter(f, arrived_ns);
  release(f);
}

static uint64_t stamp_of(struct msghdr *message) {
  for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SO_TIMESTAMPNS) continue;
    struct timespec t;
    memcpy(&t, CMSG_DATA(c), sizeof t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
  }
  return now_ns();
}

/* Returns whether there may be more. */
static int take(int port) {
  static uint8_t buffers[BURST][MAX_FRAME_BYTES], controls[BURST][64];
  struct mmsghdr messages[BURST];
  struct iovec vectors[BURST];
  for (int i = 0; i < BURST; i++) {
    vectors[i] = (struct iovec){buffers[i], MAX_FRAME_BYTES};
    messages[i] = (struct mmsghdr){
        .msg_hdr = {
            .msg_iov = &vectors[i], .msg_iovlen = 1, .msg_control = controls[i], .msg_controllen = sizeof controls[i]}};
  }
  const int num = recvmmsg(ports[port].fd, messages, BURST, 0, NULL);
  for (int i = 0; i < num; i++) take_one(port, buffers[i], messages[i].msg_len, stamp_of(&messages[i].msg_hdr));
  return num == BURST;
}

/* ---- counters ---- */

static double error_us(double share) {
  uint64_t total = 0, sum = 0;
  for (size_t i = 0; i < NUM_ERRORS; i++) total += errors[i];
  for (size_t i = 0; i < NUM_ERRORS; i++)
    if ((double)(sum += errors[i]) >= share * (double)total) return (double)i / 2;
  return 0;
}

static void ask(int number) {
  (void)number;
  is_asked = 1;
}

static void report(void) {
  is_asked = 0;
  for (int p = 0; p < num_ports; p++) {
    struct tpacket_stats stats; /* reading sets them to 0 */
    socklen_t size = sizeof stats;
    if (getsockopt(ports[p].fd, SOL_PACKET, PACKET_STATISTICS, &stats, &size) == 0) kernel_drops += stats.tp_drops;
  }
  printf(
      "{\"frames\": %llu, \"bytes\": %llu, \"lost\": %llu, \"dropped\": %llu, \"marked\": %llu, \"late\": %llu, "
      "\"overrun\": %llu, \"error_us\": {\"median\": %.1f, \"p99\": %.1f, \"worst\": %.1f}}\n",
      (unsigned long long)count.frames, (unsigned long long)count.bytes, (unsigned long long)count.lost,
      (unsigned long long)count.dropped, (unsigned long long)count.marked, (unsigned long long)count.late,
      (unsigned long long)(count.overrun + kernel_drops), error_us(0.5), error_us(0.99), error_us(1));
  fflush(stdout);
  memset(errors, 0, sizeof errors);
}

/* ---- */

static void sleep_for(uint64_t ns) {
  (void)nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

static int parse(int argc, char **argv) {
  static const struct option options[] = {{"delay", 1, NULL, 'd'}, {"jitter", 1, NULL, 'j'}, {"late", 1, NULL, 'l'},
                                          {"loss", 1, NULL, 'p'},  {"queue", 1, NULL, 'q'},  {"mark", 1, NULL, 'm'},
                                          {"seed", 1, NULL, 's'},  {NULL, 0, NULL, 0}};
  int option;
  while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
    char *end = optarg;
    const double value = option == '?' ? 0 : strtod(optarg, &end);
    switch (option) {
      case 'd': path.delay_ns = (uint64_t)(value * 1e3); break;
      case 'j': path.jitter_ns = (uint64_t)(value * 1e3); break;
      case 'l':
        path.late_share = value;
        path.late_ns = *end == ':' ? (uint64_t)(strtod(end + 1, NULL) * 1e3) : 0;
        break;
      case 'p': path.loss = value; break;
      case 'q': path.queue_bytes = (uint64_t)value; break;
      case 'm': path.mark_bytes = (uint64_t)value; break;
      case 's': path.seed = (uint64_t)value; break;
      default: return 0;
    }
  }
  for (; optind < argc; optind++) open_port(argv[optind]);
  return num_ports > 0;
}

int main(int argc, char **argv) {
  if (!parse(argc, argv)) {
    fputs(
        "usage: path [--delay US] [--jitter US] [--late SHARE:US] [--loss SHARE] [--queue BYTES] [--mark BYTES]\n"
        "            [--seed N] NAME[=BITS]...\n",
        stderr);
    return 2;
  }
  const struct sched_param priority = {.sched_priority = 1};
  (void)sched_setscheduler(0, SCHED_FIFO, &priority); /* if it may: frames leave on time */
  (void)prctl(PR_SET_TIMERSLACK, 1);
  sigset_t blocked, open;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  sigprocmask(SIG_BLOCK, &blocked, &open); /* it comes in ppoll alone */
  signal(SIGUSR1, ask);
  puts("ready");
  fflush(stdout);
  uint64_t gathered_ns = path.delay_ns / GATHERED_SHARE, rested_ns = now_ns();
  if (gathered_ns > MAX_GATHERED_NS) gathered_ns = MAX_GATHERED_NS;
  const uint64_t look_ns = path.delay_ns < LONG_DELAY_NS ? LOOK_NS : 0;
  for (;;) {
    if (look_ns == 0 && num_events > 0) {
      sleep_for(gathered_ns);
      rested_ns = now_ns();
    }
    if (now_ns() - rested_ns > MAX_BUSY_NS) {
      sleep_for(REST_NS);
      rested_ns = now_ns();
    }
    const uint64_t now = now_ns();
    struct timespec wait = {0}, *until = NULL;
    if (num_events > 0) {
      const uint64_t due_ns = events[0].due_ns, wait_ns = due_ns > now + look_ns ? due_ns - now - look_ns : 0;
      wait = (struct timespec){.tv_sec = (time_t)(wait_ns / 1000000000u), .tv_nsec = (long)(wait_ns % 1000000000u)};
      until = &wait;
    }
    const int num_ready = ppoll(ports, (nfds_t)num_ports, until, &open);
    if (num_ready < 0 && errno != EINTR) die("ppoll");
    if (now_ns() - now > REST_NS) rested_ns = now_ns();
    if (is_asked) report();
    for (int p = 0; p < num_ports && num_ready > 0; p++)
      if (ports[p].revents & POLLIN)
        for (int i = 0; i < MAX_BURSTS && take(p); i++) continue;
    for (uint32_t i = 0; i < MAX_DUE && num_events > 0 && events[0].due_ns <= now_ns(); i++) {
      const struct event e = pop();
      if (e.to == NOWHERE) leave_path(e.frame, e.due_ns);
      else deliver(e.frame, e.to, e.due_ns);
      release(e.frame);
    }
  }
}
