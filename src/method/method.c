/* SPDX-License-Identifier: Apache-2.0 */
#include "method/method.h"

#include <stdarg.h>
#include <stdio.h>

void sml_method_fail_owner(const struct sml_method *r, sml_status status, const uint16_t *ranks, uint32_t num_ranks,
                           const char *format, ...) {
  struct sml_ctl_abort failure = {.status = status, .num_ranks = num_ranks};
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(failure.detail, sizeof failure.detail, format, arguments);
  va_end(arguments);
  for (uint32_t i = 0; i < num_ranks; i++) failure.ranks[i] = ranks[i];
  r->owner_ops->failed(r->owner, &failure);
}
