/* SPDX-License-Identifier: Apache-2.0
 * Instead of tofino.c where libnghttp2 is not there to build with. */
#include "dataplane/switches.h"

bool sml_tofino_is_built(void) {
  return false;
}

struct sml_dataplane *sml_tofino_create(const struct sml_switch_options *options) {
  (void)options;
  return NULL;
}
