/* SPDX-License-Identifier: Apache-2.0
 * generate ordinary|switch: the conformance vectors of a wire format, on standard output. The same bytes every
 * time. */
#include "scenario.h"

int main(int argc, char **argv) {
  struct scenario s = {.out = stdout, .is_switch = argc == 2 && strcmp(argv[1], "switch") == 0};
  if (argc != 2 || (!s.is_switch && strcmp(argv[1], "ordinary") != 0)) {
    fprintf(stderr, "generate ordinary|switch\n");
    return 2;
  }
  make_sums(&s);
  make_losses(&s);
  make_orders(&s);
  make_phases(&s);
  make_mismatches(&s);
  make_strangers(&s);
  make_garbage(&s);
  make_keys(&s);
  make_membership(&s);
  if (!s.is_switch) make_narrow(&s);
  make_one_way(&s);
  make_worlds(&s);
  return fflush(stdout) == 0 ? 0 : 1;
}
