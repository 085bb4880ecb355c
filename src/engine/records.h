/* SPDX-License-Identifier: Apache-2.0
 * What the engines tell their flight recorders (trace/events.h). */
#pragma once

#include "core/worker.h"
#include "trace/recorder.h"

/* An event about a packet's slot; slot_base: where the job's window begins. */
static inline void sml_record_packet(struct sml_recorder *recorder, enum sml_trace_event event, uint64_t now_ns,
                                     const struct sml_header *h, uint32_t slot_base, uint64_t value) {
  sml_recorder_put(recorder, (struct sml_record){.time_ns = now_ns,
                                                 .event = (uint16_t)event,
                                                 .job = h->job,
                                                 .slot = (uint16_t)(h->slot - slot_base),
                                                 .rank = h->rank,
                                                 .phase = h->phase,
                                                 .chunk = h->chunk,
                                                 .value = value});
}

static inline void sml_record_value(struct sml_recorder *recorder, enum sml_trace_event event, uint64_t now_ns,
                                    uint16_t job, uint64_t value) {
  sml_recorder_put(recorder,
                   (struct sml_record){.time_ns = now_ns, .event = (uint16_t)event, .job = job, .value = value});
}

/* A packet that a worker sends. */
void sml_record_send(struct sml_recorder *recorder, uint64_t now_ns, const struct sml_send *send, uint32_t slot_base);

/* A packet that a worker is to accept, and how long its slot has waited for it. */
void sml_record_accept(struct sml_recorder *recorder, uint64_t now_ns, const struct sml_header *h,
                       const struct sml_accept *accept, const uint8_t *payload, uint32_t slot_base,
                       uint64_t waited_ns);
void sml_record_event(struct sml_recorder *recorder, enum sml_trace_event event, uint64_t now_ns, uint16_t job,
                      struct sml_record record);
/* h: NULL if nothing of the packet can be believed. */
void sml_record_drop(struct sml_recorder *recorder, uint64_t now_ns, const struct sml_header *h, uint32_t slot_base,
                     enum sml_drop reason);
/* How many bits of a bitmap are set, and the first of them (0 if none). */
uint32_t sml_record_count_bits(const uint8_t *bitmap, uint32_t num_bytes, uint32_t *first_out);
