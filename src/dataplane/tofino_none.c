/* SPDX-License-Identifier: Apache-2.0
 * Instead of tofino.c where libnghttp2 is not there to build with. */
#include "dataplane/tofino.h"

bool sml_tofino_is_built(void) {
  return false;
}

struct sml_tofino *sml_tofino_create(const struct sml_tofino_options *options) {
  (void)options;
  return NULL;
}

void sml_tofino_destroy(struct sml_tofino *t) {
  (void)t;
}

struct sml_dataplane *sml_tofino_dataplane(struct sml_tofino *t) {
  (void)t;
  return NULL;
}
