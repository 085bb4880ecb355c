/* SPDX-License-Identifier: Apache-2.0
 * Why a received packet was not acted upon: one list (X-macro: name, meaning), with a counter for each line. */
#pragma once

#include "core/wire.h"

#define SML_DROP_LIST(X)                                                                        \
  X(TRUNCATED, "shorter than its header says")                                                  \
  X(OVERLONG, "longer than its header says")                                                    \
  X(BAD_VERSION, "another wire version")                                                        \
  X(BAD_TYPE, "type, wire type, reducer or flags unknown or out of place")                      \
  X(BAD_CRC, "checksum wrong: damaged, of another epoch, or no member's")                       \
  X(UNKNOWN_JOB, "no such job here")                                                            \
  X(WRONG_EPOCH, "another epoch of the job")                                                    \
  X(BAD_KEY, "MAC missing, wrong, or not wanted")                                               \
  X(BAD_RANK, "rank not below the world size")                                                  \
  X(WRONG_SOURCE, "not from the registered address")                                            \
  X(DEPARTED_RANK, "from a rank that left or was lost")                                         \
  X(BAD_NONCE, "HELLO with a wrong nonce")                                                      \
  X(BAD_SLOT, "slot outside the job's window")                                                  \
  X(BAD_LENGTH, "payload length not that of a chunk")                                           \
  X(STALE_PHASE, "phase older than the slot's")                                                 \
  X(FUTURE_PHASE, "phase that no honest member can send")                                       \
  X(TAG_MISMATCH, "another operation than the slot's")                                          \
  X(DUPLICATE, "contribution already counted")                                                  \
  X(NEEDLESS, "repeat of what was there already")                                               \
  X(NOT_STARTED, "job has not started")                                                         \
  X(NOT_OUTSTANDING, "answer for a slot that waits for nothing")                                \
  X(BAD_CHECK, "check word wrong")

enum sml_drop {
#define SML_DROP_ENUM(name, text) SML_DROP_##name,
  SML_DROP_LIST(SML_DROP_ENUM)
#undef SML_DROP_ENUM
      SML_NUM_DROPS
};
const char *sml_drop_name(enum sml_drop drop); /* "STALE_PHASE" */
/* The reason for a frame that sml_wire_open refused. */
enum sml_drop sml_drop_of_wire(enum sml_wire_error error);
