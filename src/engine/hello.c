/* SPDX-License-Identifier: Apache-2.0
 * A worker's HELLOs. They show whether datagrams of the job's size pass both ways, and how long that takes (PROTOCOL.md
 * rule R89). */
#include "engine/worker_engine_internal.h"
#include "switchml/switchml.h"

#define HELLO_BYTES 16u /* the nonce, and when it was sent by the sender's clock */
#define GREETING_NS SML_NS_PER_S
#define LATE_NS (500 * SML_NS_PER_MS) /* has a HELLO at least whose time was over before it left */
#define HELLO_ECHOES 4u /* one may have waited for a processor, but the smallest of so many is the round trip */

static void record_hello(struct sml_worker_engine *e, enum sml_trace_event event, const struct sml_hello *hello) {
  sml_recorder_put(e->recorder, (struct sml_record){.time_ns = e->now_ns,
                                                    .event = (uint16_t)event,
                                                    .job = hello->job,
                                                    .rank = hello->rank,
                                                    .value = hello->datagram_bytes});
}

void sml_hello_take(struct sml_worker_engine *e, const struct sml_header *h, const struct sml_rx_frame *f,
                    uint64_t now_ns) {
  if (h->payload_bytes < HELLO_BYTES) return;
  for (struct sml_hello **link = &e->hellos; *link != NULL; link = &(*link)->next) {
    struct sml_hello *hello = *link;
    if (hello->job != h->job || hello->epoch != h->epoch || hello->rank != h->rank) continue;
    if (f->num_bytes != hello->datagram_bytes) continue;
    if (!sml_wire_is_authentic(f->data, h, &hello->seal)) continue;
    const uint8_t *payload = f->data + sml_head_bytes_of(h);
    if (sml_load_be64(payload) != hello->nonce) continue;
    if (sml_hello_is_to_group(payload, h->payload_bytes) != hello->is_to_group) continue;
    /* Results will come the same way as this echo, and must have the lane's source. */
    if (hello->is_to_group && !sml_addr_equal(&hello->from, f->from)) continue;
    const uint64_t rtt_ns = sml_max_u64(now_ns - sml_min_u64(sml_load_be64(payload + 8), now_ns), 1);
    hello->rtt_ns = hello->num_echoes == 0 ? rtt_ns : sml_min_u64(hello->rtt_ns, rtt_ns);
    hello->from = *f->from; /* the nonce shows that it is the aggregator's */
    hello->next_send_ns = now_ns;
    if (++hello->num_echoes < HELLO_ECHOES && !hello->is_to_group) return;
    *link = hello->next;
    record_hello(e, SML_TRACE_HELLO_ANSWERED, hello);
    hello->done(hello, true);
    return;
  }
}

/* to: must stay until the pass ends. */
static void send_hello(struct sml_worker_engine *e, const struct sml_hello *hello, const struct sml_addr *to,
                       uint64_t now_ns) {
  struct sml_netio *io = e->options.io;
  struct sml_tx_burst burst;
  const uint32_t head_bytes = sml_head_bytes(hello->seal.is_keyed);
  const struct sml_header h = {.version = SML_WIRE_VERSION,
                               .type = SML_PACKET_HELLO,
                               .job = hello->job,
                               .epoch = hello->epoch,
                               .rank = hello->rank,
                               .payload_bytes = (uint16_t)(hello->datagram_bytes - head_bytes)};
  io->ops->tx_reserve(io, hello->datagram_bytes, &burst);
  memset(burst.data + head_bytes, 0, h.payload_bytes);
  sml_store_be64(burst.data + head_bytes, hello->nonce);
  sml_store_be64(burst.data + head_bytes + 8, now_ns);
  if (hello->is_to_group) burst.data[head_bytes + SML_HELLO_GROUP_OFFSET] = 1;
  sml_wire_seal(burst.data, &h, &hello->seal);
  io->ops->tx_commit(io, &burst, 1, hello->datagram_bytes, to, 1);
}

void sml_worker_engine_hello(struct sml_worker_engine *e, struct sml_hello *hello) {
  SML_ASSERT(hello->datagram_bytes >= sml_head_bytes(hello->seal.is_keyed) + HELLO_BYTES + hello->is_to_group);
  hello->next_send_ns = hello->rtt_ns = 0;
  hello->num_echoes = 0;
  hello->next = e->hellos;
  e->hellos = hello;
}

uint64_t sml_hello_pump(struct sml_worker_engine *e, uint64_t now_ns) {
  uint64_t deadline = SML_NEVER;
  for (struct sml_hello **link = &e->hellos; *link != NULL;) {
    struct sml_hello *hello = *link;
    const bool is_due = now_ns >= hello->next_send_ns;
    if (hello->next_send_ns == 0) hello->deadline_ns = sml_max_u64(hello->deadline_ns, now_ns + LATE_NS);
    if (is_due && now_ns >= hello->deadline_ns) {
      *link = hello->next;
      record_hello(e, SML_TRACE_HELLO_EXPIRED, hello);
      hello->done(hello, hello->num_echoes > 0);
      continue;
    }
    if (is_due) {
      send_hello(e, hello, &hello->to, now_ns);
      record_hello(e, SML_TRACE_HELLO_SENT, hello);
      hello->next_send_ns = now_ns + hello->interval_ns;
    }
    deadline = sml_min_u64(deadline, hello->next_send_ns);
    link = &hello->next;
  }
  return deadline;
}

/* Nobody answers this HELLO (docs/PROTOCOL.md rule R182). */
uint64_t sml_hello_greet(struct sml_worker_engine *e, struct sml_lane *lane, uint64_t now_ns) {
  const struct sml_lane_options *o = &lane->options;
  if (!o->greets || lane->failed_status != SML_OK) return SML_NEVER;
  if (now_ns < lane->greet_at_ns) return lane->greet_at_ns;
  const struct sml_hello hello = {.job = o->worker.job,
                                  .epoch = o->worker.epoch,
                                  .rank = o->rank,
                                  .nonce = o->nonce,
                                  .datagram_bytes = SML_HEADER_BYTES + HELLO_BYTES,
                                  .seal = o->seal};
  send_hello(e, &hello, &o->aggregator, now_ns);
  return lane->greet_at_ns = now_ns + GREETING_NS;
}
