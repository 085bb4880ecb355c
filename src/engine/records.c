/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/records.h"

uint32_t sml_record_count_bits(const uint8_t *bitmap, uint32_t num_bytes, uint32_t *first_out) {
  uint32_t count = 0;
  *first_out = 0;
  for (uint32_t i = 0; i < num_bytes; i++) {
    if (bitmap[i] == 0) continue;
    if (count == 0) *first_out = i * 8 + (uint32_t)__builtin_ctz(bitmap[i]);
    count += sml_popcount_u64(bitmap[i]);
  }
  return count;
}

void sml_record_send(struct sml_recorder *recorder, uint64_t now_ns, const struct sml_send *send, uint32_t slot_base) {
  const struct sml_header *h = &send->header;
  enum sml_trace_event event = h->flags & SML_FLAG_RETRANSMISSION ? SML_TRACE_UPDATE_REPEATED : SML_TRACE_UPDATE_SENT;
  if (send->kind == SML_SEND_PROBE)
    event = h->flags & SML_FLAG_BY_GRANT ? SML_TRACE_GRANT_PROBE_SENT : SML_TRACE_PROBE_SENT;
  sml_record_packet(recorder, event, now_ns, h, slot_base, 0);
}

void sml_record_accept(struct sml_recorder *recorder, uint64_t now_ns, const struct sml_header *h,
                       const struct sml_accept *accept, const uint8_t *payload, uint32_t slot_base,
                       uint64_t waited_ns) {
  if (accept->kind == SML_ACCEPT_RESULT) {
    if (sml_recorder_takes_all(recorder))
      sml_record_packet(recorder, SML_TRACE_RESULT_RECEIVED, now_ns, h, slot_base, waited_ns);
    if (accept->was_asked) sml_record_packet(recorder, SML_TRACE_SLOT_RECOVERED, now_ns, h, slot_base, waited_ns);
    return;
  }
  struct sml_header about = *h;
  uint32_t first;
  about.chunk = sml_record_count_bits(payload, h->payload_bytes, &first);
  about.rank = (uint16_t)first;
  sml_record_packet(recorder, SML_TRACE_PENDING_RECEIVED, now_ns, &about, slot_base, waited_ns);
}

void sml_record_drop(struct sml_recorder *recorder, uint64_t now_ns, const struct sml_header *h, uint32_t slot_base,
                     enum sml_drop reason) {
  if (!sml_recorder_takes_drop(recorder, now_ns)) return;
  static const struct sml_header unknown = {.job = UINT16_MAX, .slot = UINT16_MAX, .rank = UINT16_MAX};
  sml_record_packet(recorder, SML_TRACE_PACKET_DROPPED, now_ns, h != NULL ? h : &unknown, h != NULL ? slot_base : 0,
                    (uint64_t)reason);
}

void sml_record_event(struct sml_recorder *recorder, enum sml_trace_event event, uint64_t now_ns, uint16_t job,
                      struct sml_record record) {
  record.time_ns = now_ns;
  record.event = (uint16_t)event;
  record.job = job;
  sml_recorder_put(recorder, record);
}
