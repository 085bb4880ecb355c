/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/verdict.h"

#include <stdarg.h>
#include <stdio.h>

#include "sim/kernel.h"

static char verdict[512];

void sim_verdict_reset(void) {
  verdict[0] = 0;
}

void sim_fail(const char *checker, const char *format, ...) {
  if (verdict[0] != 0) return;
  const int used_bytes = snprintf(verdict, sizeof verdict, "%s: ", checker);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(verdict + used_bytes, sizeof verdict - (size_t)used_bytes, format, arguments);
  va_end(arguments);
  sim_trace("WRONG %s", verdict);
  sim_stop();
}

bool sim_has_failed(void) {
  return verdict[0] != 0;
}

const char *sim_verdict(void) {
  return verdict;
}
