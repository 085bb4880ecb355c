/* SPDX-License-Identifier: Apache-2.0 */
#include "process/status.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/text.h"

static __thread char thread_detail[SML_ERROR_DETAIL_BYTES];

const char *sml_version(void) {
  return SML_VERSION_TEXT;
}

const char *sml_error_detail(void) {
  return thread_detail;
}

const char *sml_status_string(sml_status s) {
  switch (s) {
    case SML_OK: return "success";
    case SML_IN_PROGRESS: return "in progress";
    case SML_ERR_INVALID_ARGUMENT: return "invalid argument";
    case SML_ERR_UNSUPPORTED: return "unsupported";
    case SML_ERR_NO_MEMORY: return "out of memory";
    case SML_ERR_BUSY: return "too many operations in flight";
    case SML_ERR_SYSTEM: return "system call failed";
    case SML_ERR_UNREACHABLE: return "aggregator unreachable";
    case SML_ERR_REFUSED: return "refused by the aggregator";
    case SML_ERR_VERSION: return "protocol version mismatch";
    case SML_ERR_MTU: return "path MTU too small";
    case SML_ERR_TIMEOUT: return "timed out";
    case SML_ERR_RANK_LOST: return "rank lost";
    case SML_ERR_AGGREGATOR_LOST: return "aggregator lost";
    case SML_ERR_MISMATCH: return "ranks called different operations";
    case SML_ERR_ABORTED: return "aborted";
    case SML_ERR_NOT_CONFIGURED: return "not configured";
    case SML_ERR_FORKED: return "handle belongs to the parent process";
    case SML_ERR_PROTOCOL: return "protocol violation";
    case SML_ERR_INTEGRITY: return "wrong sum";
    case SML_ERR_KEY: return "keys differ";
  }
  return "unknown status";
}

sml_status sml_fail(sml_status status, const char *format, ...) {
  char text[sizeof thread_detail]; /* an argument may be the old detail */
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  sml_text_make_plain(text); /* others' names and words may be in it */
  memcpy(thread_detail, text, sizeof text);
  return status;
}

#define ENDS_WITH_RESERVED(type) \
  _Static_assert(offsetof(type, reserved) + sizeof(uint32_t) == sizeof(type), "no padding at the end of " #type)
ENDS_WITH_RESERVED(sml_context_options);
ENDS_WITH_RESERVED(sml_job_options);
ENDS_WITH_RESERVED(sml_operation_options);

sml_status sml_options_copy(void *to, size_t to_bytes, const void *from, const char *what) {
  size_t from_bytes;
  memcpy(&from_bytes, from, sizeof from_bytes);
  memset(to, 0, to_bytes);
  /* No struct of ours will ever be a page: a larger figure is memory that nobody initialized. */
  if (from_bytes < sizeof from_bytes || from_bytes > 4096)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "struct_bytes of %s is %zu: initialize the struct with its SML_..._INIT",
                    what, from_bytes);
  for (size_t i = to_bytes - sizeof(uint32_t); i < from_bytes; i++) /* the reserved one, too */
    if (((const uint8_t *)from)[i] != 0)
      return sml_fail(SML_ERR_UNSUPPORTED, "%s sets an option that libswitchml %s does not know: update the library",
                      what, SML_VERSION_TEXT);
  memcpy(to, from, from_bytes < to_bytes ? from_bytes : to_bytes);
  memcpy(to, &to_bytes, sizeof to_bytes);
  return SML_OK;
}

sml_status sml_error_copy(sml_error *to, const sml_error *from) {
  const sml_status status = sml_result_copy(to, from, sizeof *from, "sml_error");
  if (status != SML_OK) return status;
  const size_t to_bytes = to->struct_bytes;
  if (to_bytes > offsetof(sml_error, detail) && to_bytes < sizeof *from) ((char *)to)[to_bytes - 1] = 0;
  return SML_OK;
}

sml_status sml_result_copy(void *to, const void *from, size_t from_bytes, const char *what) {
  size_t to_bytes;
  memcpy(&to_bytes, to, sizeof to_bytes);
  if (to_bytes < sizeof to_bytes || to_bytes > 4096)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "struct_bytes of %s is %zu: initialize the struct with its SML_..._INIT",
                    what, to_bytes);
  memset((uint8_t *)to + sizeof to_bytes, 0, to_bytes - sizeof to_bytes);
  const size_t num_bytes = to_bytes < from_bytes ? to_bytes : from_bytes;
  memcpy((uint8_t *)to + sizeof to_bytes, (const uint8_t *)from + sizeof to_bytes, num_bytes - sizeof to_bytes);
  return SML_OK;
}
