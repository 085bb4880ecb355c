/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buffer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB ((size_t)1 << 20)

/* What the system says about the mapping around `memory`, or false. */
static bool find_flags(const void *memory, char *flags_out, size_t room_bytes) {
  FILE *maps = fopen("/proc/self/smaps", "re");
  char line[512];
  bool is_there = false, is_found = false;
  while (maps != NULL && !is_found && fgets(line, sizeof line, maps) != NULL) {
    uintptr_t first, end;
    if (sscanf(line, "%zx-%zx ", &first, &end) == 2) is_there = (uintptr_t)memory >= first && (uintptr_t)memory < end;
    is_found = is_there && strncmp(line, "VmFlags:", 8) == 0;
  }
  if (maps != NULL) (void)fclose(maps);
  if (is_found) (void)snprintf(flags_out, room_bytes, "%s", line);
  return is_found;
}

static void test_alloc(void **state) {
  (void)state;
  static const size_t sizes[] = {1, 63, 64, 65, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 5 * MIB + 4097};
  for (size_t i = 0; i < SML_ARRAY_LEN(sizes); i++) {
    uint8_t *memory = sml_buffer_alloc(sizes[i]);
    assert_non_null(memory);
    assert_int_equal((uintptr_t)memory % 64, 0);
    memset(memory, 0x5a, sizes[i]);
    char flags[512];
    if (find_flags(memory, flags, sizeof flags) && access("/sys/kernel/mm/transparent_hugepage", F_OK) == 0)
      assert_int_equal(strstr(flags, " hg") != NULL, sizes[i] >= 4 * MIB);
    free(memory);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_alloc)};
  return cmocka_run_group_tests_name("buffer", tests, NULL, NULL);
}
