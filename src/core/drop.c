/* SPDX-License-Identifier: Apache-2.0 */
#include "core/drop.h"

static const char *const names[SML_NUM_DROPS] = {
#define SML_DROP_ENTRY(name, text) [SML_DROP_##name] = #name,
    SML_DROP_LIST(SML_DROP_ENTRY)
#undef SML_DROP_ENTRY
};

const char *sml_drop_name(enum sml_drop drop) {
  SML_ASSERT((unsigned)drop < SML_NUM_DROPS);
  return names[drop];
}

enum sml_drop sml_drop_of_wire(enum sml_wire_error error) {
  static const enum sml_drop drop_of[] = {[SML_WIRE_TRUNCATED] = SML_DROP_TRUNCATED,
                                          [SML_WIRE_OVERLONG] = SML_DROP_OVERLONG,
                                          [SML_WIRE_BAD_VERSION] = SML_DROP_BAD_VERSION,
                                          [SML_WIRE_BAD_TYPE] = SML_DROP_BAD_TYPE};
  SML_ASSERT(error > SML_WIRE_OK && (size_t)error < SML_ARRAY_LEN(drop_of));
  return drop_of[error];
}
