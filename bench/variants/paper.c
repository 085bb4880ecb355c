/* SPDX-License-Identifier: Apache-2.0 */
#include "paper.h"

#include <stdlib.h>

#include "core/worker_queue.h"

uint64_t sml_paper_timeout_ns;

struct sml_worker *__real_sml_worker_init(void *mem, const struct sml_worker_options *options);
struct sml_worker *__wrap_sml_worker_init(void *mem, const struct sml_worker_options *options);
void __real_sml_worker_activate(struct sml_worker *w, uint32_t s);
void __wrap_sml_worker_activate(struct sml_worker *w, uint32_t s);
void __real_sml_worker_next_send(struct sml_worker *w, uint64_t now_ns, struct sml_send *out);
void __wrap_sml_worker_next_send(struct sml_worker *w, uint64_t now_ns, struct sml_send *out);
struct sml_accept __real_sml_worker_on_packet(struct sml_worker *w, const struct sml_header *h, const uint8_t *payload,
                                              uint64_t now_ns);
struct sml_accept __wrap_sml_worker_on_packet(struct sml_worker *w, const struct sml_header *h, const uint8_t *payload,
                                              uint64_t now_ns);
uint64_t __real_sml_worker_next_deadline(const struct sml_worker *w);
uint64_t __wrap_sml_worker_next_deadline(const struct sml_worker *w);
void __real_sml_worker_on_timer(struct sml_worker *w, uint64_t now_ns);
void __wrap_sml_worker_on_timer(struct sml_worker *w, uint64_t now_ns);

__attribute__((constructor)) static void read_environment(void) {
  const char *text = getenv("SWITCHML_PAPER_TIMEOUT_US");
  if (text != NULL) sml_paper_timeout_ns = sml_min_u64(strtoull(text, NULL, 10), 1000000) * SML_NS_PER_US;
}

struct sml_worker *__wrap_sml_worker_init(void *mem, const struct sml_worker_options *options) {
  struct sml_worker_options o = *options;
  if (sml_paper_timeout_ns != 0) {
    o.has_fixed_window = true;
    o.order_slots = UINT32_MAX;
  }
  return __real_sml_worker_init(mem, &o);
}

void __wrap_sml_worker_activate(struct sml_worker *w, uint32_t s) {
  struct slot *slot = &w->slots[s];
  const uint64_t num_before = slot->phase - w->options.first_phase; /* of the slot's chunks */
  if (sml_paper_timeout_ns != 0) slot->chunk = w->options.first_chunk + s + num_before * w->options.num_slots;
  __real_sml_worker_activate(w, s);
}

void __wrap_sml_worker_next_send(struct sml_worker *w, uint64_t now_ns, struct sml_send *out) {
  __real_sml_worker_next_send(w, now_ns, out);
  /* The paper's aggregator tells repeats by the seen bit alone. */
  if (sml_paper_timeout_ns != 0 && out->kind == SML_SEND_UPDATE)
    out->header.flags &= (uint16_t)~SML_FLAG_RETRANSMISSION;
}

struct sml_accept __wrap_sml_worker_on_packet(struct sml_worker *w, const struct sml_header *h, const uint8_t *payload,
                                              uint64_t now_ns) {
  const struct sml_accept a = sml_worker_peek_packet(w, h);
  if (sml_paper_timeout_ns != 0 && a.kind == SML_ACCEPT_PENDING) return a;
  return __real_sml_worker_on_packet(w, h, payload, now_ns);
}

uint64_t __wrap_sml_worker_next_deadline(const struct sml_worker *w) {
  if (sml_paper_timeout_ns == 0) return __real_sml_worker_next_deadline(w);
  const uint32_t head = w->levels[0].head;
  return head == NONE ? SML_NEVER : w->slots[head].sent_ns + sml_paper_timeout_ns;
}

void __wrap_sml_worker_on_timer(struct sml_worker *w, uint64_t now_ns) {
  if (sml_paper_timeout_ns == 0) {
    __real_sml_worker_on_timer(w, now_ns);
    return;
  }
  while (__wrap_sml_worker_next_deadline(w) <= now_ns) {
    const uint32_t s = w->levels[0].head;
    list_remove(w, s);
    list_append(w, s, 0, now_ns);
    want_update(w, s);
    w->view.timeouts++;
  }
}
