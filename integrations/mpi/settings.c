/* SPDX-License-Identifier: Apache-2.0 */
#include "settings.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Shorter sums are about as fast over MPI, but for the shortest among many hosts. */
#define DEFAULT_MIN_COUNT 4096u
/* One-way windows carry what has more than a quarter of them: up to some hundred KiB (decision 45). */
#define DEFAULT_ONE_WAY_BYTES (1u << 20)
/* MPI knows no deadlines: ranks may compute for long while others wait. The library's warnings name the late ones. */
#define DEFAULT_TIMEOUT_S 3600u
/* All are there when one joins: they have just gathered. */
#define DEFAULT_JOIN_TIMEOUT_S 10u
/* No floats unless they are asked for: exact sums of float32 take twice its bytes, which is more than MPI's ring moves,
 * and a default must not slow anybody down. Nor bytes, whose sums take two each. */
#define DEFAULT_TYPES (1u << SML_INT32 | 1u << SML_INT64)
/* Each costs the rank that embeds its aggregator three threads and some descriptors. */
#define DEFAULT_MAX_JOBS 16u
#define DEFAULT_LEASE_S 60.0 /* the library's, too */
#define LEAST_LEASE_S 0.02
#define MOST_LEASE_S 3600.0

const char *const sml_mpi_kind_names[SML_MPI_NUM_KINDS] = {"allreduce", "reduce", "reduce_scatter",
                                                           "allgather", "bcast",  "barrier"};

void sml_mpi_say(const char *format, ...) {
  char text[800], line[sizeof text + 16];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  snprintf(line, sizeof line, "switchml: %s\n", text);
  fputs(line, stderr);
}

static const struct {
  const char *name;
  uint32_t types;
} known[] = {{"float32", 1u << SML_FLOAT32},
             {"int32", 1u << SML_INT32},
             {"int64", 1u << SML_INT64},
             {"float16", 1u << SML_FLOAT16},
             {"float64", 1u << SML_FLOAT64},
             {"int8", 1u << SML_INT8},
             {"none", 0}};

void sml_mpi_types_list(uint32_t types, char *list_out) {
  size_t length = 0;
  for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
    if (known[k].types == 0 ? types == 0 : (types & known[k].types) != 0)
      length += (size_t)snprintf(list_out + length, SML_MPI_TYPES_BYTES - length, "%s%s", length > 0 ? "," : "",
                                 known[k].name);
}

static bool find_types(const char *list, uint32_t *types_out) {
  uint32_t types = 0;
  bool has_none = false;
  for (const char *at = list; *at != 0;) {
    const size_t length = strcspn(at, ",");
    bool is_known = false;
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
      if (strlen(known[k].name) != length || strncmp(known[k].name, at, length) != 0) continue;
      types |= known[k].types;
      has_none = has_none || known[k].types == 0;
      is_known = true;
    }
    if (!is_known) return false;
    at += length;
    if (*at == ',') at++;
  }
  if (has_none && types != 0) return false;
  *types_out = types;
  return true;
}

static bool is_set(const char *text) {
  return text != NULL && text[0] != 0;
}

void sml_mpi_read_types(const char *name, const char *text, uint32_t *types) {
  if (is_set(text) && !find_types(text, types))
    sml_mpi_say("%s=%s: there are " SML_MPI_TYPE_NAMES "; those of the default are taken", name, text);
}

void sml_mpi_read_number(const char *name, const char *text, uint64_t min, uint64_t max, uint64_t *value) {
  if (!is_set(text)) return;
  char *end;
  errno = 0;
  const unsigned long long number = strtoull(text, &end, 10);
  if (errno == 0 && *end == 0 && text[0] >= '0' && text[0] <= '9' && number >= min && number <= max) *value = number;
  else
    sml_mpi_say("%s=%s is no number from %llu to %llu; %llu is used", name, text, (unsigned long long)min,
                (unsigned long long)max, (unsigned long long)*value);
}

static void read_number(const char *name, uint64_t min, uint64_t max, uint64_t *value) {
  sml_mpi_read_number(name, getenv(name), min, max, value);
}

void sml_mpi_read_lease(const char *name, const char *text, double *seconds) {
  if (!is_set(text)) return;
  char *end;
  const double number = strtod(text, &end);
  if (*end == 0 && number >= LEAST_LEASE_S && number <= MOST_LEASE_S) *seconds = number;
  else sml_mpi_say("%s=%s: set seconds from %g to %g; %g is used", name, text, LEAST_LEASE_S, MOST_LEASE_S, *seconds);
}

static void read_switch(const char *name, bool *is_on) {
  static const char *const words[] = {"0", "1", "no", "yes", "off", "on", "false", "true"};
  const char *text = getenv(name);
  if (!is_set(text)) return;
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
    if (strcasecmp(text, words[i]) != 0) continue;
    *is_on = i % 2 == 1;
    return;
  }
  sml_mpi_say("%s=%s: set 1 or 0; %d is used", name, text, *is_on);
}

/* In MPI's broadcasts and reductions to a root most ranks wait for nobody, and its barriers are as fast (README.md). */
static bool is_short_by_default(enum sml_mpi_kind kind) {
  return kind != SML_MPI_BCAST && kind != SML_MPI_REDUCE && kind != SML_MPI_BARRIER;
}

static void read_most_bytes(enum sml_mpi_kind kind, uint64_t *bytes) {
  char name[48];
  const int length = snprintf(name, sizeof name, "SWITCHML_MPI_%s_BYTES", sml_mpi_kind_names[kind]);
  for (int i = 0; i < length; i++) name[i] = (char)toupper((unsigned char)name[i]);
  *bytes = is_short_by_default(kind) ? SML_MPI_SHORT_BYTES : 0;
  read_number(name, 0, UINT64_MAX, bytes);
}

/* By default sums of floats are exact: in block fixed point they would lose digits beside a large one, up to all.
 * The owner of a gradient accepts that; a program that sums temperatures beside a fill value of 1e20 does not. */
static bool is_exact(void) {
  bool is_on = !is_set(getenv("SWITCHML_FLOAT_BITS")) && !is_set(getenv("SWITCHML_FLOAT64_BITS"));
  read_switch("SWITCHML_EXACT", &is_on);
  return is_on;
}

struct sml_mpi_settings sml_mpi_settings_of_environment(void) {
  struct sml_mpi_settings s = {.min_count = DEFAULT_MIN_COUNT,
                               .timeout_s = DEFAULT_TIMEOUT_S,
                               .join_timeout_s = DEFAULT_JOIN_TIMEOUT_S,
                               .lease_s = DEFAULT_LEASE_S,
                               .max_jobs = DEFAULT_MAX_JOBS,
                               .short_hosts = SML_MPI_SHORT_HOSTS,
                               .one_way_bytes = DEFAULT_ONE_WAY_BYTES};
  s.types = DEFAULT_TYPES;
  for (uint32_t k = 0; k < SML_MPI_NUM_KINDS; k++) read_most_bytes((enum sml_mpi_kind)k, &s.most_bytes[k]);
  read_number("SWITCHML_MPI_ONE_WAY_BYTES", 0, UINT64_MAX, &s.one_way_bytes);
  read_number("SWITCHML_MPI_SHORT_HOSTS", 0, UINT32_MAX, &s.short_hosts);
  read_number("SWITCHML_MPI_MIN_COUNT", 0, UINT64_MAX, &s.min_count);
  read_number("SWITCHML_MPI_TIMEOUT", 1, SML_MPI_MOST_TIMEOUT_S, &s.timeout_s);
  read_number("SWITCHML_MPI_JOIN_TIMEOUT", 1, SML_MPI_MOST_TIMEOUT_S, &s.join_timeout_s);
  read_number("SWITCHML_MPI_MAX_JOBS", 0, UINT32_MAX, &s.max_jobs);
  sml_mpi_read_lease("SWITCHML_LEASE", getenv("SWITCHML_LEASE"), &s.lease_s);
  sml_mpi_read_types("SWITCHML_MPI_TYPES", getenv("SWITCHML_MPI_TYPES"), &s.types);
  read_switch("SWITCHML_DISABLE", &s.is_disabled);
  if (s.is_disabled) s.types = 0;
  read_switch("SWITCHML_ONE_WAY", &s.is_one_way);
  read_switch("SWITCHML_REQUIRE", &s.is_required);
  read_switch("SWITCHML_MPI_VERBOSE", &s.is_verbose);
  s.is_exact = is_exact();
  return s;
}
