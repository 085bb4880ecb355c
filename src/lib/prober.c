/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/prober.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#define IPV4_UDP_BYTES 28u
#define IPV6_UDP_BYTES 48u
#define INTERVAL_NS (20 * SML_NS_PER_MS)
/* The first is what the kernel says the path carries, so its loss is more likely a busy machine than a
 * narrow path; the last decides between a job and none. */
#define PATIENCE_NS (1500 * SML_NS_PER_MS)
#define IMPATIENCE_NS (500 * SML_NS_PER_MS)

enum verdict { PROBE_ASKING, PROBE_ECHOED, PROBE_SILENT };

/* UDP payload that fits the route's MTU as far as the kernel knows it; UINT32_MAX if it does not say. */
static uint32_t ask_kernel(const struct sml_addr *to) {
  const struct sockaddr *addr = (const struct sockaddr *)(const void *)to->bytes;
  const bool is_v6 = addr->sa_family == AF_INET6;
  const int fd = socket(addr->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
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

static void list_candidates(struct sml_prober *p, const struct sml_addr *to, uint32_t max_bytes,
                            bool is_only_size) {
  static const uint32_t usual_bytes[] = {8960, 1472, 1252, 508};
  const uint32_t first = is_only_size ? max_bytes : sml_min_u32(max_bytes, ask_kernel(to));
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
  atomic_store_explicit(&lane->verdict, is_echoed ? PROBE_ECHOED : PROBE_SILENT, memory_order_release);
  wake(user); /* the prober may be gone from here on; whom it wakes outlives the engines */
}

static void begin_hello(struct sml_worker_engine *engine, void *argument) {
  sml_worker_engine_hello(engine, argument);
}

static void ask(struct sml_prober *p, uint32_t l, uint64_t now_ns) {
  struct sml_prober_lane *lane = &p->lanes[l];
  const bool is_extreme = lane->candidate == 0 || lane->candidate + 1 == p->num_candidates;
  lane->hello.datagram_bytes = p->candidates_bytes[lane->candidate];
  lane->hello.interval_ns = INTERVAL_NS;
  lane->hello.deadline_ns = now_ns + (is_extreme ? PATIENCE_NS : IMPATIENCE_NS);
  atomic_store_explicit(&lane->verdict, PROBE_ASKING, memory_order_relaxed);
  sml_engines_call(p->engines, l, begin_hello, &lane->hello);
}

void sml_prober_start(struct sml_prober *p, const struct sml_ctl_welcome *welcome,
                      const struct sml_prober_options *options, uint64_t now_ns) {
  SML_ASSERT(welcome->num_lanes <= p->engines->num_engines);
  p->num_lanes = welcome->num_lanes;
  p->rtt_ns = 0;
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
                                     .is_keyed = options->key != NULL,
                                     .key = options->key != NULL ? *options->key : (struct sml_key){0},
                                     .done = take_verdict,
                                     .user = lane};
    ask(p, l, now_ns);
  }
}

enum sml_prober_state sml_prober_poll(struct sml_prober *p, uint64_t now_ns, uint32_t *datagram_bytes_out) {
  bool is_busy = false;
  uint32_t datagram_bytes = UINT32_MAX;
  for (uint32_t l = 0; l < p->num_lanes; l++) {
    struct sml_prober_lane *lane = &p->lanes[l];
    const int verdict =
        atomic_load_explicit(&lane->verdict, memory_order_acquire); /* pairs with take_verdict */
    if (verdict == PROBE_SILENT && lane->candidate + 1 < p->num_candidates) {
      lane->candidate++;
      ask(p, l, now_ns);
      is_busy = true;
    } else if (verdict == PROBE_ASKING) {
      is_busy = true;
    } else {
      const uint32_t lane_bytes = verdict == PROBE_ECHOED ? lane->hello.datagram_bytes : 0;
      datagram_bytes = sml_min_u32(datagram_bytes, lane_bytes);
      const uint64_t rtt_ns = verdict == PROBE_ECHOED ? lane->hello.rtt_ns : 0;
      if (rtt_ns != 0 && (p->rtt_ns == 0 || rtt_ns < p->rtt_ns)) p->rtt_ns = rtt_ns;
    }
  }
  if (is_busy) return SML_PROBER_BUSY;
  *datagram_bytes_out = p->num_lanes == 0 ? 0 : datagram_bytes;
  return SML_PROBER_DONE;
}

void sml_prober_cancel(struct sml_prober *p) {
  for (uint32_t l = 0; l < p->num_lanes; l++) p->lanes[l].candidate = p->num_candidates - 1;
}
