/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A test that cannot run on this machine says why, in the words of printf, and returns. tools/check.py counts the line.
 * cmocka's skip() will not do: before version 1.1.6 it prints `not ok .. # SKIP`, which is a failure to Meson. */
#define SKIP_TEST(...)                        \
  do {                                        \
    print_message("# skipped: " __VA_ARGS__); \
    print_message("\n");                      \
    return;                                   \
  } while (0)
