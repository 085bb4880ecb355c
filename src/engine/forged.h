/* SPDX-License-Identifier: Apache-2.0
 * Somebody without the key sends packets to a job. The first one is reported at once, later ones as a number. */
#pragma once

#include "engine/aggregator_engine.h"

#define SML_FORGED_NS (10 * SML_NS_PER_S) /* between two reports of an engine */

struct sml_forged {
  uint64_t noted_ns, num; /* when the last report was made (0: never); packets since */
};

static inline void sml_forged_note(struct sml_forged *f, const struct sml_aggregator_engine_options *o, uint16_t job,
                                   uint32_t epoch, const struct sml_addr *from, uint64_t now_ns) {
  f->num++;
  if (f->noted_ns != 0 && now_ns - f->noted_ns < SML_FORGED_NS) return;
  const struct sml_aggregator_event event = {
      .kind = SML_EVENT_FORGED, .job = job, .epoch = epoch, .num_packets = f->num, .source = *from};
  *f = (struct sml_forged){.noted_ns = now_ns};
  o->on_event(o->user, &event);
}
