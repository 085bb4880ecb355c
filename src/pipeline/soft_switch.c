/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/soft_switch.h"

#include <rte_ethdev.h>

#include "base/clock.h"
#include "base/writer.h"

/* A switch's answer to a question is longer than the question by the lanes, which a pipeline writes before the packet's
 * first byte. */
#define GROWTH_BYTES 1024u
#define SHORT_BYTES 256u /* what may grow: everything that has no lanes */
#define NUM_BUFFERS 8191u
#define QUEUE_PACKETS 512u

static bool open_device(struct sml_soft_switch *h, const char *name, struct sml_device *d) {
  const struct rte_eth_conf conf = {.rxmode = {.mq_mode = RTE_ETH_MQ_RX_NONE}};
  const int socket = rte_socket_id() == (unsigned)SOCKET_ID_ANY ? 0 : (int)rte_socket_id();
  if (rte_eth_dev_get_port_by_name(name, &d->number) != 0 || d->number >= SML_ARRAY_LEN(h->device_of))
    return sml_writer_say("switchml-pipeline: no interface and no device of DPDK is named %s\n", name), false;
  if (rte_eth_dev_configure(d->number, 1, 1, &conf) != 0 ||
      rte_eth_rx_queue_setup(d->number, 0, QUEUE_PACKETS, (unsigned)socket, NULL, h->pool) != 0 ||
      rte_eth_tx_queue_setup(d->number, 0, QUEUE_PACKETS, (unsigned)socket, NULL) != 0 ||
      rte_eth_dev_start(d->number) != 0)
    return sml_writer_say("switchml-pipeline: %s does not start\n", name), false;
  rte_eth_promiscuous_enable(d->number);
  return true;
}

bool sml_soft_switch_open(struct sml_soft_switch *h, const char *library, const char *const *device_names,
                          uint32_t num_devices) {
  memset(h, 0, sizeof *h);
  h->cpu_device = UINT32_MAX;
  h->pool = rte_pktmbuf_pool_create("FRAMES", NUM_BUFFERS, 0, 0,
                                    RTE_PKTMBUF_HEADROOM + SML_SOFT_SWITCH_FRAME_BYTES + GROWTH_BYTES, SOCKET_ID_ANY);
  if (!h->pool) return sml_writer_say("switchml-pipeline: no memory for frames: %s\n", rte_strerror(rte_errno)), false;
  for (; h->num_devices < num_devices; h->num_devices++) {
    struct sml_device *d = &h->devices[h->num_devices];
    if (!open_device(h, device_names[h->num_devices], d)) return false;
    h->device_of[d->number] = (uint8_t)h->num_devices;
  }
  if (sml_program_open(&h->program, library, num_devices, num_devices + 2)) return true;
  return sml_writer_say("switchml-pipeline: %s\n", h->program.error), false;
}

void sml_soft_switch_close(struct sml_soft_switch *h) {
  for (uint32_t i = 0; i < h->num_devices; i++) {
    rte_eth_dev_stop(h->devices[i].number);
    rte_eth_dev_close(h->devices[i].number);
  }
  if (h->program.library) sml_program_close(&h->program);
}

bool sml_soft_switch_reset(struct sml_soft_switch *h) {
  for (uint32_t job = 0; job < SML_SOFT_SWITCH_MAX_JOBS; job++) h->jobs[job].num_replicas = 0;
  h->cpu_device = UINT32_MAX;
  return sml_program_reset(&h->program);
}

/* ---- out ---- */

static void send_waiting(struct sml_soft_switch *h, struct sml_device *d) {
  if (d->num_waiting == 0) return;
  const uint16_t num_sent = rte_eth_tx_burst(d->number, 0, d->waiting, (uint16_t)d->num_waiting);
  rte_pktmbuf_free_bulk(d->waiting + num_sent, d->num_waiting - num_sent);
  h->num_sent += num_sent;
  h->num_refused += d->num_waiting - num_sent;
  d->num_waiting = 0;
}

static void send_by(struct sml_soft_switch *h, uint32_t device, struct rte_mbuf *packet) {
  struct sml_device *d = &h->devices[device];
  if (device == h->cpu_device)
    sml_frame_mark_hello(rte_pktmbuf_mtod(packet, uint8_t *), rte_pktmbuf_data_len(packet), &h->greeting,
                         h->device_of[packet->port & 0xff]);
  d->waiting[d->num_waiting++] = packet;
  if (d->num_waiting == SML_SOFT_SWITCH_BURST) send_waiting(h, d);
}

static void send_copy(struct sml_soft_switch *h, uint32_t device, struct rte_mbuf *packet,
                      const struct sml_replica *to) {
  struct rte_mbuf *copy = rte_pktmbuf_copy(packet, h->pool, 0, UINT32_MAX);
  if (!copy) {
    h->num_refused++;
    return;
  }
  if (to) sml_frame_readdress(rte_pktmbuf_mtod(copy, uint8_t *), to);
  send_by(h, device, copy);
}

static void send_results(struct sml_soft_switch *h, struct rte_mbuf *packet) {
  const uint32_t job = sml_frame_job(rte_pktmbuf_mtod(packet, const uint8_t *), rte_pktmbuf_data_len(packet));
  for (uint32_t i = 0; job < SML_SOFT_SWITCH_MAX_JOBS && i < h->jobs[job].num_replicas; i++)
    send_copy(h, h->jobs[job].replicas[i].port, packet, &h->jobs[job].replicas[i]);
  rte_pktmbuf_free(packet);
}

static void flood(struct sml_soft_switch *h, struct rte_mbuf *packet) {
  const uint8_t *frame = rte_pktmbuf_mtod(packet, const uint8_t *);
  const uint32_t came_by = h->device_of[packet->port & 0xff];
  const uint32_t from = sml_stations_find(&h->stations, sml_stations_source(frame), h->now_ns);
  const uint32_t to = sml_stations_find(&h->stations, sml_stations_target(frame), h->now_ns);
  if (from != SML_NO_STATION && from != came_by) {
    h->num_round++;
    sml_stations_note_round(&h->stations, came_by, from, h->now_ns);
  } else if (to == SML_NO_STATION || sml_frame_is_arp(frame)) {
    for (uint32_t device = 0; device < h->num_devices; device++)
      if (device != came_by && !sml_stations_goes_round(&h->stations, came_by, device, h->now_ns))
        send_copy(h, device, packet, NULL);
  } else if (to != came_by) {
    send_by(h, to, packet);
    return;
  }
  rte_pktmbuf_free(packet);
}

static void take(void *user, uint32_t port, struct rte_mbuf *packet) {
  struct sml_soft_switch *h = user;
  if (port < h->num_devices) send_by(h, port, packet);
  else if (port == h->num_devices) send_results(h, packet);
  else flood(h, packet);
}

/* ---- in ---- */

/* Whether the program may see it. */
static bool prepare(struct sml_soft_switch *h, struct rte_mbuf *packet) {
  const uint32_t num_bytes = rte_pktmbuf_data_len(packet);
  uint8_t *frame = rte_pktmbuf_mtod(packet, uint8_t *);
  /* AF_PACKET has taken a tag off, so the program, which drops what has one, would not see it. */
  const bool is_tagged = (packet->ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED) != 0;
  if (packet->nb_segs != 1 || is_tagged || !sml_frame_is_whole(frame, num_bytes)) {
    h->num_broken++;
    rte_pktmbuf_free(packet);
    return false;
  }
  (void)sml_stations_hear(&h->stations, sml_stations_source(frame), h->device_of[packet->port & 0xff], h->now_ns);
  if (num_bytes <= SHORT_BYTES && rte_pktmbuf_tailroom(packet) >= GROWTH_BYTES) {
    memmove(frame + GROWTH_BYTES, frame, num_bytes);
    packet->data_off = (uint16_t)(packet->data_off + GROWTH_BYTES);
  }
  return true;
}

uint32_t sml_soft_switch_pass(struct sml_soft_switch *h) {
  uint32_t num_received = 0;
  h->now_ns = sml_clock_ns();
  for (uint32_t i = 0; i < h->num_devices && num_received + SML_SOFT_SWITCH_BURST <= SML_PROGRAM_BATCH; i++) {
    struct rte_mbuf *packets[SML_SOFT_SWITCH_BURST];
    uint32_t num_packets = 0;
    const uint32_t n = rte_eth_rx_burst(h->devices[i].number, 0, packets, SML_SOFT_SWITCH_BURST);
    for (uint32_t k = 0; k < n; k++)
      if (prepare(h, packets[k])) packets[num_packets++] = packets[k];
    sml_program_put(&h->program, i, packets, num_packets);
    num_received += n;
  }
  h->num_received += num_received;
  if (h->program.num_inside > 0) sml_program_run(&h->program, take, h);
  for (uint32_t i = 0; i < h->num_devices; i++) send_waiting(h, &h->devices[i]);
  return num_received;
}
