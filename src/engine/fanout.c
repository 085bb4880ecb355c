/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/fanout.h"

#include <stdlib.h>

struct sml_fanout *sml_fanout_create(const struct sml_addr *group, uint32_t num_contributors) {
  struct sml_fanout *f = calloc(1, sizeof *f);
  if (f == NULL) return NULL;
  f->num_contributors = num_contributors;
  f->targets = calloc(1 + (size_t)num_contributors, sizeof *f->targets);
  f->deaf = calloc(SML_BITMAP_WORDS(num_contributors), sizeof *f->deaf);
  if (f->targets == NULL || f->deaf == NULL) {
    sml_fanout_destroy(f);
    return NULL;
  }
  f->targets[f->num_targets++] = *group;
  return f;
}

void sml_fanout_destroy(struct sml_fanout *f) {
  if (f == NULL) return;
  free(f->targets);
  free(f->deaf);
  free(f);
}

bool sml_fanout_add_deaf(struct sml_fanout *f, uint32_t contributor, const struct sml_addr *addr) {
  SML_ASSERT(contributor < f->num_contributors);
  if (sml_bit_test(f->deaf, contributor)) return false;
  sml_bit_set(f->deaf, contributor);
  f->targets[f->num_targets++] = *addr;
  f->is_over = 2 * (f->num_targets - 1) > f->num_contributors;
  return true;
}
