/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/events.h"

const struct sml_trace_event_info sml_trace_events[SML_TRACE_NUM_EVENTS] = {
#define EVENT_INFO(id, name, level, slot, rank, phase, chunk, value, kind) \
  [SML_TRACE_##id] = {name, SML_TRACE_##level, slot, rank, phase, chunk, value, SML_TRACE_##kind},
    SML_TRACE_EVENT_LIST(EVENT_INFO)
#undef EVENT_INFO
};
