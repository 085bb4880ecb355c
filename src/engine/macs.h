/* SPDX-License-Identifier: Apache-2.0
 * MACs of received frames. One system call brings runs of frames with one job and one length. Making the MACs of a run
 * together takes a third of the time (base/siphash.h). Every verdict is that of sml_wire_is_authentic. */
#pragma once

#include "core/wire.h"
#include "netio/netio.h"

struct sml_macs {
  bool is_per_source; /* each sender has a key of its own, so a run is of one source */
  const struct sml_rx_frame *first; /* of the run whose MACs are known */
  uint32_t num_frames;
  struct sml_key key;
  uint64_t macs[SML_SIPHASH_MANY];
};

/* New frames are there. */
static inline void sml_macs_begin(struct sml_macs *macs) {
  macs->num_frames = 0;
}

/* For KEYED frames. end: where the frames end that lie behind this one. */
bool sml_macs_check_keyed(struct sml_macs *macs, const struct sml_rx_frame *frame, const struct sml_rx_frame *end,
                          const struct sml_key *key);

/* Is the opened frame authentic? */
static inline bool sml_macs_check(struct sml_macs *macs, const struct sml_rx_frame *frame,
                                  const struct sml_rx_frame *end, const struct sml_header *header,
                                  const struct sml_seal *seal) {
  if (seal == NULL || !seal->is_keyed) return sml_wire_is_authentic(frame->data, header, seal);
  return (header->flags & SML_FLAG_KEYED) != 0 && sml_macs_check_keyed(macs, frame, end, &seal->key);
}
