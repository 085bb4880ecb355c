/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cpus.h"

#include <stdlib.h>

/* A number below SML_MAX_CPUS at *text, which moves behind it. */
static bool take_number(const char **text, uint32_t *number_out) {
  char *end;
  if (**text < '0' || **text > '9') return false;
  const unsigned long value = strtoul(*text, &end, 10);
  *text = end;
  *number_out = (uint32_t)value;
  return value < SML_MAX_CPUS;
}

bool sml_cpus_parse(const char *text, struct sml_cpus *cpus_out) {
  struct sml_cpus cpus = {.words = {0}};
  for (;; text++) {
    uint32_t first, last;
    if (!take_number(&text, &first)) return false;
    last = first;
    if (*text == '-') {
      text++;
      if (!take_number(&text, &last)) return false;
    }
    if (last < first) return false;
    for (uint32_t cpu = first; cpu <= last; cpu++) sml_bit_set(cpus.words, cpu);
    if (*text != ',') break;
  }
  if (*text != 0) return false;
  *cpus_out = cpus;
  return true;
}

uint32_t sml_cpus_of_thread(const struct sml_cpus *cpus, uint32_t index) {
  uint32_t num_cpus = 0;
  for (uint32_t w = 0; w < SML_ARRAY_LEN(cpus->words); w++) num_cpus += sml_popcount_u64(cpus->words[w]);
  if (num_cpus == 0) return SML_MAX_CPUS;
  uint32_t left = index % num_cpus, cpu = 0;
  for (;; cpu++)
    if (sml_bit_test(cpus->words, cpu) && left-- == 0) return cpu;
}
