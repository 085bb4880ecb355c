/* SPDX-License-Identifier: Apache-2.0
 * The data ports: HELLOs there and back, and how large they may be (docs/PROTOCOL.md rules R89 to R91). */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/doctor/doctor.h"
#include "core/wire.h"

#define SMALL_BYTES 96u
#define INTERVAL_NS (20 * SML_NS_PER_MS)
#define PATIENCE_NS (3 * SML_NS_PER_S)
#define NUM_SAMPLES 5u
#define NUM_SIZES 16u /* that are tried at once */
#define MIN_CHUNK_BYTES 256u
#define JUMBO_MTU 9000u

/* --- HELLOs --- */

struct lane {
  uint32_t num_sent, num_echoed, largest_bytes; /* of those that came back */
  int error;                                    /* what the system said of it last: ECONNREFUSED, EMSGSIZE */
  uint64_t rtt_ns;
};

static bool is_keyed(const struct sml_doctor_target *t) {
  return t->source.key_name[0] != 0;
}

static uint32_t udp_overhead_bytes(const struct sml_doctor_target *t) {
  return t->source.addr.num_bytes == sizeof(struct sockaddr_in6) ? 48 : 28;
}

/* Not fragmented on its way, as a rank's (netio/udp.c), and errors of the way come back to us. */
static int open_socket(const struct sml_addr *to) {
  const struct sockaddr *addr = (const struct sockaddr *)(const void *)to->bytes;
  const int v4 = IP_PMTUDISC_PROBE, v6 = IPV6_PMTUDISC_PROBE, buffer_bytes = 1 << 20;
  const int fd = socket(addr->sa_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof buffer_bytes);
  setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &v4, sizeof v4);
  if (addr->sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &v6, sizeof v6);
  if (connect(fd, addr, to->num_bytes) == 0) return fd;
  close(fd);
  return -1;
}

static bool open_sockets(struct sml_doctor_target *t) {
  struct sml_addr to = t->source.addr;
  while (t->num_sockets < t->welcome.num_lanes) {
    sml_addr_set_port(&to, t->welcome.data_ports[t->num_sockets]);
    const int fd = open_socket(&to);
    if (fd < 0) return false;
    t->sockets[t->num_sockets++] = fd;
  }
  return true;
}

static void send_hello(const struct sml_doctor_target *t, uint32_t l, uint32_t num_bytes, struct lane *lane) {
  static uint8_t frame[UINT16_MAX];
  const uint32_t head_bytes = sml_head_bytes(t->seal.is_keyed);
  const struct sml_header header = {.version = SML_WIRE_VERSION,
                                    .type = SML_PACKET_HELLO,
                                    .job = t->welcome.job,
                                    .epoch = t->welcome.epoch,
                                    .payload_bytes = (uint16_t)(num_bytes - head_bytes)};
  memset(frame, 0, num_bytes);
  sml_store_be64(frame + head_bytes, t->welcome.nonce);
  sml_store_be64(frame + head_bytes + 8, sml_clock_ns());
  sml_wire_seal(frame, &header, &t->seal);
  lane->num_sent++;
  if (send(t->sockets[l], frame, num_bytes, 0) < 0 && errno != EAGAIN && errno != EINTR) lane->error = errno;
}

/* Takes what has come. num_bytes: only echoes of that size count; 0: of any. */
static void take_echoes(const struct sml_doctor_target *t, uint32_t l, uint32_t num_bytes, struct lane *lane) {
  static uint8_t frame[UINT16_MAX];
  for (;;) {
    const ssize_t n = recv(t->sockets[l], frame, sizeof frame, 0);
    struct sml_header h;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN) lane->error = errno; /* reported once, and taken so */
    if (n < 0) return;
    if ((num_bytes != 0 && (uint32_t)n != num_bytes) || sml_wire_open(frame, (size_t)n, &h) != SML_WIRE_OK) continue;
    if (!sml_wire_is_authentic(frame, &h, &t->seal)) continue;
    if (h.type != SML_PACKET_HELLO || h.job != t->welcome.job || h.epoch != t->welcome.epoch) continue;
    const uint8_t *payload = frame + sml_head_bytes_of(&h);
    if (h.payload_bytes < 16 || sml_load_be64(payload) != t->welcome.nonce) continue;
    const uint64_t rtt_ns = sml_clock_ns() - sml_load_be64(payload + 8);
    lane->num_echoed++;
    lane->largest_bytes = sml_max_u32(lane->largest_bytes, (uint32_t)n);
    if (lane->rtt_ns == 0 || rtt_ns < lane->rtt_ns) lane->rtt_ns = rtt_ns;
  }
}

static bool is_hopeless(const struct lane *lane) {
  return lane->num_echoed == 0 && (lane->error == EMSGSIZE || (lane->error == ECONNREFUSED && lane->num_sent >= 10));
}

/* HELLOs of a size to lanes first .. end - 1, each until num_wanted came back or the time is over. */
static void exchange(const struct sml_doctor_target *t, uint32_t first, uint32_t end, uint32_t num_bytes,
                     uint32_t num_wanted, uint64_t patience_ns, struct lane *lanes) {
  const uint64_t deadline_ns = sml_clock_ns() + patience_ns;
  uint64_t send_ns = 0;
  memset(&lanes[first], 0, (end - first) * sizeof *lanes);
  for (;;) {
    uint64_t now_ns = sml_clock_ns();
    struct pollfd fds[SML_MAX_LANES];
    uint32_t num_open = 0;
    for (uint32_t l = first; l < end; l++) {
      if (lanes[l].num_echoed >= num_wanted || is_hopeless(&lanes[l])) continue;
      if (now_ns >= send_ns) send_hello(t, l, num_bytes, &lanes[l]);
      fds[num_open++] = (struct pollfd){.fd = t->sockets[l], .events = POLLIN};
    }
    if (now_ns >= send_ns) send_ns = now_ns + INTERVAL_NS;
    if (num_open == 0 || now_ns >= deadline_ns) return;
    now_ns = sml_clock_ns();
    const uint64_t until_ns = sml_min_u64(send_ns, deadline_ns);
    const uint64_t wait_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    if (poll(fds, num_open, (int)sml_div_ceil(wait_ns, SML_NS_PER_MS)) > 0)
      for (uint32_t l = first; l < end; l++) {
        const uint32_t num_before = lanes[l].num_echoed;
        take_echoes(t, l, num_bytes, &lanes[l]);
        /* The next one at once: samples of a way that is open need no pace. */
        if (lanes[l].num_echoed > num_before) send_ns = 0;
      }
  }
}

/* --- both ways --- */

/* HELLOs of ours that the aggregator has had; -1: it does not say. */
static long count_arrived(const json_t *status, const struct sml_doctor_target *t, const char *what) {
  const json_t *job = sml_doctor_find_job(status, t->job_name);
  const json_t *value = json_object_get(json_array_get(json_object_get(job, "ranks"), 0), what);
  const json_int_t number = json_is_integer(value) ? json_integer_value(value) : -1;
  return number >= 0 && number < INT32_MAX ? (long)number : -1;
}

/* Which way of a silent lane it is: what arrived of HELLOs sent to it alone. */
static long ask_what_arrived(struct sml_doctor *d, const struct sml_doctor_target *t, uint32_t l, uint32_t *num_sent) {
  struct lane lanes[SML_MAX_LANES];
  json_t *before = sml_doctor_fetch_status(d, t);
  exchange(t, l, l + 1, SMALL_BYTES, 1, sml_doctor_patience(d, 10 * INTERVAL_NS), lanes);
  json_t *after = sml_doctor_fetch_status(d, t);
  const long was = count_arrived(before, t, "hellos"), is = count_arrived(after, t, "hellos");
  json_decref(before);
  json_decref(after);
  *num_sent = lanes[l].num_sent;
  return was < 0 || is < 0 ? -1 : is - was;
}

static void find_closed(struct sml_doctor *d, const struct sml_doctor_target *t, uint32_t l) {
  char advice[400];
  const uint16_t port = t->welcome.data_ports[l];
  snprintf(advice, sizeof advice,
           "something in between takes TCP port %u to the aggregator, but not UDP port %u: forward or publish the UDP "
           "ports as well (--data-port of switchmld fixes them), or restart a switchmld that has lost its port",
           sml_addr_port(&t->source.addr), port);
  sml_doctor_find(
      d, SML_DOCTOR_DATA, "data", SML_FINDING_FAILED, json_pack("{s:i, s:i}", "lane", (int)l, "port", (int)port),
      advice, "UDP port %u (lane %u) of %s is closed: the host answers that nobody listens there", port, l, t->numeric);
}

static void find_silent(struct sml_doctor *d, const struct sml_doctor_target *t, uint32_t l, uint32_t num_silent) {
  char advice[500], seen[200];
  const uint16_t port = t->welcome.data_ports[l];
  uint32_t num_sent;
  const long num_arrived = ask_what_arrived(d, t, l, &num_sent);
  if (num_arrived == 0) {
    snprintf(seen, sizeof seen, "the aggregator got none of them: they are lost on the way there");
    snprintf(advice, sizeof advice,
             "let UDP port %u into the aggregator's host: a firewall there, in between, or (outgoing) here drops it; "
             "--data-port of switchmld fixes the ports, one a lane",
             port);
  } else if (num_arrived > 0) {
    snprintf(seen, sizeof seen, "the aggregator got %ld of %u and answered: the answers are lost on the way back",
             num_arrived, num_sent);
    snprintf(advice, sizeof advice,
             "let UDP from port %u of %s in here: a firewall on this host or in between drops it, or the aggregator "
             "answers over another interface than it is asked at",
             port, t->numeric);
  } else {
    snprintf(seen, sizeof seen, "the aggregator does not say whether it got them");
    snprintf(advice, sizeof advice,
             "let UDP port %u into the aggregator's host, and from there back into this one: a firewall drops it; "
             "--data-port of switchmld fixes the ports, one a lane",
             port);
  }
  sml_doctor_find(d, SML_DOCTOR_DATA, "data", SML_FINDING_FAILED,
                  json_pack("{s:i, s:i, s:i, s:i}", "lane", (int)l, "port", (int)port, "silent_lanes", (int)num_silent,
                            "arrived", (int)num_arrived),
                  advice, "UDP port %u (lane %u%s): no HELLO came back within %.1f s; %s", port, l,
                  num_silent > 1 ? ", and more" : "", (double)PATIENCE_NS / 1e9, seen);
}

bool sml_doctor_check_data(struct sml_doctor *d, struct sml_doctor_target *t) {
  struct lane lanes[SML_MAX_LANES];
  uint32_t num_silent = 0, first_silent = 0;
  if (!open_sockets(t)) {
    sml_doctor_find(d, SML_DOCTOR_DATA, "data", SML_FINDING_FAILED, NULL,
                    "look at the routes and the limit of open files", "no UDP socket to %s: %s", t->text,
                    strerror(errno));
    return false;
  }
  exchange(t, 0, t->num_sockets, SMALL_BYTES, NUM_SAMPLES, sml_doctor_patience(d, PATIENCE_NS), lanes);
  for (uint32_t l = t->num_sockets; l-- > 0;) {
    if (lanes[l].rtt_ns != 0 && (t->rtt_ns == 0 || lanes[l].rtt_ns < t->rtt_ns)) t->rtt_ns = lanes[l].rtt_ns;
    if (lanes[l].num_echoed > 0) continue;
    num_silent++;
    first_silent = l;
  }
  if (num_silent > 0) {
    if (lanes[first_silent].error == ECONNREFUSED) find_closed(d, t, first_silent);
    else find_silent(d, t, first_silent, num_silent);
    return false;
  }
  char ports[8 * SML_MAX_LANES] = "";
  for (uint32_t l = 0; l < t->num_sockets; l++)
    snprintf(ports + strlen(ports), sizeof ports - strlen(ports), "%s%u", l > 0 ? ", " : "", t->welcome.data_ports[l]);
  sml_doctor_find(d, SML_DOCTOR_DATA, "data", SML_FINDING_OK,
                  json_pack("{s:i, s:f}", "lanes", (int)t->num_sockets, "rtt_us", (double)t->rtt_ns / 1e3), "",
                  "UDP port%s %s: HELLOs come back, the fastest after %.0f us", t->num_sockets > 1 ? "s" : "", ports,
                  (double)t->rtt_ns / 1e3);
  return true;
}

/* --- how large --- */

static uint32_t job_overhead_bytes(const struct sml_doctor_target *t) {
  const char *check = getenv("SWITCHML_CHECK");
  return sml_head_bytes(is_keyed(t)) + (check && check[0] == '1' ? SML_CHECK_BYTES : 0);
}

static uint64_t probe_patience(const struct sml_doctor *d, const struct sml_doctor_target *t) {
  return sml_doctor_patience(d, sml_max_u64(150 * SML_NS_PER_MS, 4 * t->rtt_ns));
}

static bool carries(struct sml_doctor *d, const struct sml_doctor_target *t, uint32_t num_bytes) {
  struct lane lanes[SML_MAX_LANES];
  exchange(t, 0, 1, num_bytes, 1, probe_patience(d, t), lanes);
  return lanes[0].num_echoed > 0;
}

/* What the route is said to carry: the interface's MTU, or what a router on the way has told since. */
static uint32_t route_mtu(const struct sml_doctor_target *t) {
  int mtu = 0;
  socklen_t num_bytes = sizeof mtu;
  const bool is_v6 = t->source.addr.num_bytes == sizeof(struct sockaddr_in6);
  if (getsockopt(t->sockets[0], is_v6 ? IPPROTO_IPV6 : IPPROTO_IP, is_v6 ? IPV6_MTU : IP_MTU, &mtu, &num_bytes) != 0)
    return 1500;
  return mtu > 0 ? (uint32_t)mtu : 1500;
}

/* What a rank would ask for at most. */
static uint32_t wanted_bytes(void) {
  const char *text = getenv("SWITCHML_MAX_DATAGRAM");
  const long value = text ? strtol(text, NULL, 10) : 0;
  return value >= (long)(MIN_CHUNK_BYTES + SML_HEADER_BYTES) && value <= UINT16_MAX - 28 ? (uint32_t)value
                                                                                         : SML_MAX_DATAGRAM_BYTES;
}

/* The largest of some sizes above low_bytes, up to high_bytes and step_bytes apart, that comes back; low_bytes: none.
 */
static uint32_t probe_between(struct sml_doctor *d, const struct sml_doctor_target *t, uint32_t low_bytes,
                              uint32_t high_bytes, uint32_t step_bytes) {
  struct lane lane = {.largest_bytes = low_bytes};
  const uint64_t deadline_ns = sml_clock_ns() + probe_patience(d, t);
  while (lane.largest_bytes < high_bytes && sml_clock_ns() < deadline_ns) {
    for (uint32_t size = high_bytes; size > lane.largest_bytes; size -= sml_min_u32(size, step_bytes))
      send_hello(t, 0, size, &lane);
    struct pollfd p = {.fd = t->sockets[0], .events = POLLIN};
    if (poll(&p, 1, (int)(INTERVAL_NS / SML_NS_PER_MS)) > 0) take_echoes(t, 0, 0, &lane);
  }
  return lane.largest_bytes;
}

/* The largest datagram that comes back, at most max_bytes. */
static uint32_t search(struct sml_doctor *d, const struct sml_doctor_target *t, uint32_t max_bytes) {
  uint32_t low = SMALL_BYTES, high = max_bytes;
  if (carries(d, t, max_bytes) || carries(d, t, max_bytes))
    return max_bytes; /* twice: a busy machine is no narrow path */
  while (high > low) {
    const uint32_t step = (uint32_t)sml_div_ceil(high - low, NUM_SIZES);
    const uint32_t best = probe_between(d, t, low, high, step);
    high = sml_min_u32(high, best + step - 1);
    low = best;
  }
  return low;
}

/* The MTU that the aggregator's own interface has; 0: it does not say. */
static uint32_t aggregator_mtu(const struct sml_doctor_target *t, const json_t *status) {
  size_t i;
  const json_t *link;
  json_array_foreach(json_object_get(status, "links"), i, link) {
    const char *address = json_string_value(json_object_get(link, "address"));
    if (address && strcmp(address, t->numeric) == 0) return (uint32_t)json_integer_value(json_object_get(link, "mtu"));
  }
  return 0;
}

static void find_narrow(struct sml_doctor *d, const struct sml_doctor_target *t, uint32_t mtu, bool is_too_small) {
  char advice[400], way[160] = "";
  json_t *status = sml_doctor_fetch_status(d, t);
  const long arrived_bytes = count_arrived(status, t, "hello_bytes");
  const uint32_t path_mtu = t->path_bytes + udp_overhead_bytes(t), their_mtu = aggregator_mtu(t, status);
  json_decref(status);
  if (arrived_bytes > (long)t->path_bytes + 8) /* some devices let a little more in */
    snprintf(way, sizeof way, "; the way there carries %ld, so it is the way back", arrived_bytes);
  else if (arrived_bytes > 0) snprintf(way, sizeof way, "; nothing larger arrived there");
  if (their_mtu != 0 && their_mtu < mtu)
    snprintf(advice, sizeof advice,
             "the aggregator's interface has MTU %u, %s here %u: set the same on all of the path (ip link set dev NAME "
             "mtu %u)",
             their_mtu, t->link.name, mtu, mtu);
  else
    snprintf(advice, sizeof advice,
             "a link in between is narrower than %s here (a tunnel, VXLAN, VPN?): raise its MTU to %u, or lower this "
             "one's to %u, and let ICMP 'fragmentation needed' through",
             t->link.name, mtu, path_mtu);
  json_t *values =
      json_pack("{s:i, s:i, s:i}", "mtu", (int)mtu, "path_mtu", (int)path_mtu, "datagram_bytes", (int)t->path_bytes);
  if (is_too_small)
    sml_doctor_find(d, SML_DOCTOR_MTU, "mtu", SML_FINDING_FAILED, values, advice,
                    "MTU %u here, but datagrams of at most %u bytes come back, and a job needs %u%s", mtu,
                    t->path_bytes, MIN_CHUNK_BYTES + job_overhead_bytes(t), way);
  else
    sml_doctor_find(d, SML_DOCTOR_MTU, "mtu", SML_FINDING_WARNING, values, advice,
                    "MTU %u here, but the path carries %u only (datagrams of %u bytes; a job, which tries only a few "
                    "sizes, may have smaller ones)%s",
                    mtu, path_mtu, t->path_bytes, way);
}

bool sml_doctor_check_mtu(struct sml_doctor *d, struct sml_doctor_target *t) {
  const uint32_t first_mtu = t->link.mtu ? sml_min_u32(t->link.mtu, 65535) : route_mtu(t);
  const uint32_t link_bytes = first_mtu - udp_overhead_bytes(t), max_bytes = sml_min_u32(wanted_bytes(), link_bytes);
  t->path_bytes = search(d, t, max_bytes);
  if (t->path_bytes < MIN_CHUNK_BYTES + job_overhead_bytes(t)) {
    find_narrow(d, t, first_mtu, true);
    return false;
  }
  if (t->path_bytes + 4 < max_bytes) {
    find_narrow(d, t, first_mtu, false);
    return true;
  }
  const uint32_t chunk_bytes = (t->path_bytes - job_overhead_bytes(t)) & ~3u;
  const uint32_t jumbo_bytes = (JUMBO_MTU - udp_overhead_bytes(t) - job_overhead_bytes(t)) & ~3u;
  char gain[160] = "";
  if (first_mtu < JUMBO_MTU && max_bytes == link_bytes)
    snprintf(gain, sizeof gain,
             "MTU %u on all of the path would make chunks %.1f times as large, and packets and their "
             "cost as few",
             JUMBO_MTU, (double)jumbo_bytes / chunk_bytes);
  sml_doctor_find(d, SML_DOCTOR_MTU, "mtu", SML_FINDING_OK,
                  json_pack("{s:i, s:i, s:i}", "mtu", (int)first_mtu, "datagram_bytes", (int)t->path_bytes,
                            "chunk_bytes", (int)chunk_bytes),
                  gain, "MTU %u; datagrams of %u bytes come back whole: chunks of %u bytes", first_mtu, t->path_bytes,
                  chunk_bytes);
  return true;
}
