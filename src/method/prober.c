/* SPDX-License-Identifier: Apache-2.0 */
#include "method/prober.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/fork.h"

#define IPV4_UDP_BYTES 28u
#define IPV6_UDP_BYTES 48u
#define INTERVAL_NS (20 * SML_NS_PER_MS)
/* The first is what the kernel says the path carries, so its loss is more likely a busy machine than a
 * narrow path; the last decides between a job and none. */
#define PATIENCE_NS (1500 * SML_NS_PER_MS)
#define IMPATIENCE_NS (500 * SML_NS_PER_MS)
#define QUIET_NS SML_NS_PER_S /* two heartbeats */
/* Ten tries: a switch that has just seen this rank join may take some before it lets them through. */
#define GROUP_INTERVAL_NS (50 * SML_NS_PER_MS)
#define GROUP_PATIENCE_NS (500 * SML_NS_PER_MS)

/* They are asked for together with the size before the last, whose silence takes as long as theirs. The larger ones are
 * for MTUs of 1460, 1450 (VXLAN), 1420 (WireGuard), and so on. */
#define COMPANION_BYTES 1252u
static const uint32_t finer_bytes[SML_PROBER_FINER] = {1432, 1422, 1392, 1372, 1332, 1292, 1112, 972, 832, 672};

enum verdict { PROBE_ASKING, PROBE_ECHOED, PROBE_SILENT };

/* UDP payload that fits the route's MTU as far as the kernel knows it; UINT32_MAX if it does not say. */
static uint32_t ask_kernel(const struct sml_addr *to) {
  const struct sockaddr *addr = (const struct sockaddr *)(const void *)to->bytes;
  const bool is_v6 = addr->sa_family == AF_INET6;
  const int fd = sml_fd_raise(socket(addr->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (fd < 0) return UINT32_MAX;
  int mtu = 0;
  socklen_t mtu_bytes = sizeof mtu;
  uint32_t payload_bytes = UINT32_MAX;
  if (connect(fd, addr, to->num_bytes) == 0 &&
      getsockopt(fd, is_v6 ? IPPROTO_IPV6 : IPPROTO_IP, is_v6 ? IPV6_MTU : IP_MTU, &mtu, &mtu_bytes) == 0) {
    const uint32_t overhead_bytes = is_v6 ? IPV6_UDP_BYTES : IPV4_UDP_BYTES;
    if (mtu > (int)overhead_bytes) payload_bytes = (uint32_t)mtu - overhead_bytes;
  }
  close(fd);
  return payload_bytes;
}

static void list_candidates(struct sml_prober *p, const struct sml_addr *to, uint32_t max_bytes, bool is_only_size) {
  static const uint32_t usual_bytes[] = {8960, 1472, COMPANION_BYTES, 508};
  uint32_t first = max_bytes;
  if (!is_only_size) {
    sml_fork_lock(); /* a descriptor is opened */
    first = sml_min_u32(max_bytes, ask_kernel(to));
    sml_fork_unlock();
  }
  p->num_candidates = 0;
  p->candidates_bytes[p->num_candidates++] = first;
  if (is_only_size) return;
  for (size_t i = 0; i < SML_ARRAY_LEN(usual_bytes); i++)
    if (usual_bytes[i] < first) p->candidates_bytes[p->num_candidates++] = usual_bytes[i];
}

static void take_verdict(struct sml_hello *hello, bool is_echoed) {
  struct sml_prober_lane *lane = hello->user;
  struct sml_prober *prober = lane->prober;
  void (*wake)(void *) = prober->wake;
  void *user = prober->user;
  if (is_echoed && (lane->largest == NULL || lane->largest->datagram_bytes < hello->datagram_bytes))
    lane->largest = hello;
  if (--lane->num_asked > 0) return;
  atomic_store_explicit(&lane->verdict, lane->largest != NULL ? PROBE_ECHOED : PROBE_SILENT, memory_order_release);
  wake(user); /* the prober may be gone from here on; whom it wakes outlives the engines */
}

static void begin_hellos(struct sml_worker_engine *engine, void *argument) {
  struct sml_prober_lane *lane = argument;
  const bool is_last = lane->candidate + 1 == lane->prober->num_candidates; /* or the only one: nothing else will do */
  const bool has_finer = lane->hello.datagram_bytes == COMPANION_BYTES && !is_last && !lane->hello.is_to_group;
  lane->largest = NULL;
  lane->num_asked = 0;
  for (uint32_t i = 0; has_finer && i < SML_PROBER_FINER; i++) {
    if (finer_bytes[i] >= lane->prober->candidates_bytes[0]) continue; /* more than may be sent */
    struct sml_hello *finer = &lane->finer[lane->num_asked++];
    *finer = lane->hello;
    finer->datagram_bytes = finer_bytes[i];
    sml_worker_engine_hello(engine, finer);
  }
  lane->num_asked++;
  sml_worker_engine_hello(engine, &lane->hello);
}

static void ask(struct sml_prober *p, uint32_t l, uint64_t now_ns) {
  struct sml_prober_lane *lane = &p->lanes[l];
  const bool is_extreme = lane->candidate == 0 || lane->candidate + 1 == p->num_candidates;
  lane->hello.datagram_bytes = p->candidates_bytes[lane->candidate];
  lane->hello.interval_ns = INTERVAL_NS;
  lane->hello.deadline_ns = now_ns + (is_extreme ? PATIENCE_NS : IMPATIENCE_NS);
  atomic_store_explicit(&lane->verdict, PROBE_ASKING, memory_order_relaxed);
  sml_engines_call(p->engines, l, begin_hellos, lane);
}

void sml_prober_start(struct sml_prober *p, const struct sml_ctl_welcome *welcome,
                      const struct sml_prober_options *options, uint64_t now_ns) {
  SML_ASSERT(welcome->num_lanes <= p->engines->num_engines);
  p->num_lanes = welcome->num_lanes;
  p->rtt_ns = 0;
  p->phase = SML_PROBER_SIZES;
  p->is_cancelled = p->hears_group = false;
  p->group_error = 0;
  if (options->no_multicast || !sml_multicast_from_words(welcome->group, welcome->group_port, &p->group))
    p->group.num_bytes = 0;
  uint32_t max_bytes = options->max_datagram_bytes;
  for (uint32_t l = 0; l < p->num_lanes; l++)
    max_bytes = sml_min_u32(max_bytes, p->engines->units[l].io->max_frame_bytes);
  struct sml_addr to = *options->aggregator;
  sml_addr_set_port(&to, welcome->data_ports[0]);
  list_candidates(p, &to, max_bytes, options->is_only_size);
  for (uint32_t l = 0; l < p->num_lanes; l++) {
    struct sml_prober_lane *lane = &p->lanes[l];
    sml_addr_set_port(&to, welcome->data_ports[l]);
    lane->prober = p;
    lane->candidate = 0;
    lane->hello = (struct sml_hello){.job = welcome->job,
                                     .epoch = welcome->epoch,
                                     .rank = (uint16_t)options->rank,
                                     .nonce = welcome->nonce,
                                     .to = to,
                                     .seal = *options->seal,
                                     .done = take_verdict,
                                     .user = lane};
    ask(p, l, now_ns);
  }
}

/* True: it came back in some size on all lanes, or (0) on some lane in none. A silence says nothing of the path if the
 * aggregator is silent on the control connection as well: it is stopped, or cut off. */
static bool poll_sizes(struct sml_prober *p, uint64_t heard_ns, uint64_t now_ns) {
  const bool is_quiet = !p->is_cancelled && now_ns >= heard_ns + QUIET_NS;
  bool is_busy = false;
  uint32_t datagram_bytes = p->num_lanes == 0 ? 0 : UINT32_MAX;
  for (uint32_t l = 0; l < p->num_lanes; l++) {
    struct sml_prober_lane *lane = &p->lanes[l];
    const int verdict = atomic_load_explicit(&lane->verdict, memory_order_acquire); /* pairs with take_verdict */
    if (verdict == PROBE_SILENT && (is_quiet || lane->candidate + 1 < p->num_candidates)) {
      lane->candidate += !is_quiet;
      ask(p, l, now_ns);
      is_busy = true;
    } else if (verdict == PROBE_ASKING) {
      is_busy = true;
    } else {
      if (verdict == PROBE_ECHOED && lane->largest != &lane->hello) lane->hello = *lane->largest;
      lane->largest = &lane->hello;
      const uint32_t lane_bytes = verdict == PROBE_ECHOED ? lane->hello.datagram_bytes : 0;
      datagram_bytes = sml_min_u32(datagram_bytes, lane_bytes);
      const uint64_t rtt_ns = verdict == PROBE_ECHOED ? lane->hello.rtt_ns : 0;
      if (rtt_ns != 0 && (p->rtt_ns == 0 || rtt_ns < p->rtt_ns)) p->rtt_ns = rtt_ns;
    }
  }
  p->datagram_bytes = datagram_bytes;
  return !is_busy;
}

/* ---- the group ---- */

struct membership {
  struct sml_netio *io;
  const struct sml_addr *group, *via;
  int error;
};

static void join_group(struct sml_worker_engine *engine, void *argument) {
  struct membership *m = argument;
  (void)engine;
  m->error = -m->io->ops->join_group(m->io, m->group, m->via);
}

static void leave_group(struct sml_worker_engine *engine, void *argument) {
  struct membership *m = argument;
  (void)engine;
  m->io->ops->leave_group(m->io, m->group);
}

/* A descriptor is opened or closed: not while the process forks. */
static void change_membership(struct sml_prober *p, uint32_t l, struct membership *m,
                              void (*change)(struct sml_worker_engine *engine, void *argument)) {
  m->io = p->engines->units[l].io;
  sml_fork_lock();
  sml_engines_call(p->engines, l, change, m);
  sml_fork_unlock();
}

void sml_prober_leave_groups(struct sml_prober *p) {
  p->hears_group = false;
  for (uint32_t l = 0; l < p->num_lanes; l++) {
    struct membership m = {.group = &p->lanes[l].group};
    if (m.group->num_bytes == 0) continue;
    change_membership(p, l, &m, leave_group);
    p->lanes[l].group.num_bytes = 0;
  }
}

/* False: it cannot be joined. */
static bool join_groups(struct sml_prober *p) {
  for (uint32_t l = 0; l < p->num_lanes && p->group_error == 0; l++) {
    struct sml_prober_lane *lane = &p->lanes[l];
    struct sml_addr group = p->group;
    sml_addr_set_port(&group, (uint16_t)(sml_addr_port(&group) + l));
    struct membership m = {.group = &group, .via = &lane->hello.to};
    change_membership(p, l, &m, join_group);
    p->group_error = m.error;
    if (m.error == 0) lane->group = group;
  }
  return p->group_error == 0;
}

static void begin_group(struct sml_prober *p, uint64_t now_ns) {
  p->phase = SML_PROBER_OVER;
  if (p->group.num_bytes == 0 || p->datagram_bytes == 0) return;
  if (!join_groups(p)) {
    sml_prober_leave_groups(p);
    return;
  }
  p->phase = SML_PROBER_GROUP;
  for (uint32_t l = 0; l < p->num_lanes; l++) {
    struct sml_hello *hello = &p->lanes[l].hello;
    hello->is_to_group = true;
    hello->datagram_bytes = p->datagram_bytes;
    hello->interval_ns = GROUP_INTERVAL_NS;
    hello->deadline_ns = now_ns + GROUP_PATIENCE_NS;
    atomic_store_explicit(&p->lanes[l].verdict, PROBE_ASKING, memory_order_relaxed);
    sml_engines_call(p->engines, l, begin_hellos, &p->lanes[l]);
  }
}

static void poll_group(struct sml_prober *p) {
  uint32_t num_echoed = 0;
  for (uint32_t l = 0; l < p->num_lanes; l++) {
    const int verdict = atomic_load_explicit(&p->lanes[l].verdict, memory_order_acquire); /* pairs with take_verdict */
    if (verdict == PROBE_ASKING) return;
    num_echoed += verdict == PROBE_ECHOED;
  }
  p->phase = SML_PROBER_OVER;
  p->hears_group = num_echoed == p->num_lanes;
  if (!p->hears_group) sml_prober_leave_groups(p);
}

enum sml_ctl_hearing sml_prober_hearing(const struct sml_prober *p) {
  if (p->group.num_bytes == 0) return SML_CTL_NO_GROUP;
  return p->hears_group ? SML_CTL_HEARS : SML_CTL_DEAF;
}

/* ---- */

enum sml_prober_state sml_prober_poll(struct sml_prober *p, uint64_t heard_ns, uint64_t now_ns,
                                      uint32_t *datagram_bytes_out) {
  if (p->phase == SML_PROBER_SIZES && poll_sizes(p, heard_ns, now_ns)) begin_group(p, now_ns);
  if (p->phase == SML_PROBER_GROUP) poll_group(p);
  if (p->phase != SML_PROBER_OVER) return SML_PROBER_BUSY;
  *datagram_bytes_out = p->datagram_bytes;
  return SML_PROBER_DONE;
}

void sml_prober_cancel(struct sml_prober *p) {
  p->is_cancelled = true;
  p->group.num_bytes = 0; /* what is joined is the lanes' */
  for (uint32_t l = 0; l < p->num_lanes; l++) p->lanes[l].candidate = p->num_candidates - 1;
}
