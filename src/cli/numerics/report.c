/* SPDX-License-Identifier: Apache-2.0
 * What `switchml bench numerics` found, as tables or as JSON. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/bench/rows.h"
#include "cli/numerics/numerics.h"

const char *const sml_numerics_library_names[] = {
    "exact, by integers", "SwitchML, exact mode", "SwitchML, default", "Gloo", "Open MPI", NULL};

uint32_t sml_numerics_count(const struct sml_numerics_result *result, uint32_t num_ranks,
                            enum sml_numerics_library library, uint32_t *num_ways_out) {
  static uint32_t seen[SML_NUMERICS_MAX_ROWS * SML_NUMERICS_MAX_LIST];
  uint32_t num_seen = 0, num_ways = 0;
  for (uint32_t i = 0; i < result->num_rows; i++) {
    const struct sml_numerics_row *row = &result->rows[i];
    if (row->num_ranks != num_ranks || row->library != library) continue;
    for (uint32_t b = 0; b < result->options->num_buckets; b++) {
      uint32_t at = 0;
      while (at < num_seen && seen[at] != row->checksums[b]) at++;
      if (at == num_seen) seen[num_seen++] = row->checksums[b];
      num_ways++;
    }
  }
  if (num_ways_out) *num_ways_out = num_ways;
  return num_seen;
}

bool sml_numerics_judge(const struct sml_numerics_result *result) {
  bool is_ok = true;
  uint32_t exact = 0;
  for (uint32_t i = 0; i < result->num_rows; i++) {
    const struct sml_numerics_row *row = &result->rows[i];
    if (row->library == SML_NUMERICS_INTEGERS) exact = row->checksums[0];
    for (uint32_t b = 0; b < result->options->num_buckets && row->library == SML_NUMERICS_EXACT; b++)
      if (row->checksums[b] != exact) is_ok = false;
    if (row->library == SML_NUMERICS_DEFAULT)
      is_ok = is_ok && sml_numerics_count(result, row->num_ranks, row->library, NULL) == 1;
  }
  if (!is_ok) sml_bench_say("a sum of SwitchML is another than it must be: that is a bug, please report it");
  return is_ok;
}

static char bucket_names[SML_NUMERICS_MAX_LIST][16]; /* of columns, which are kept by reference */

static void fill_row(struct sml_row *out, const struct sml_numerics_result *result,
                     const struct sml_numerics_row *row) {
  sml_row_add_number(out, "ranks", "ranks", row->num_ranks, 0);
  sml_row_add_text(out, "library", "library", sml_numerics_library_names[row->library]);
  sml_row_add_text(out, "path", "path", row->path);
  for (uint32_t b = 0; b < result->options->num_buckets; b++) {
    char *name = bucket_names[b], checksum[16];
    snprintf(name, sizeof bucket_names[b], "%u_MiB", result->options->bucket_mib[b]);
    snprintf(checksum, sizeof checksum, "%08x", row->checksums[b]);
    sml_row_add_text(out, name, name, checksum);
  }
}

/* One for each library and number of ranks. Returns how many. */
static uint32_t fill_counts(struct sml_row *out, const struct sml_numerics_result *result) {
  uint32_t num = 0;
  for (uint32_t i = 0; i < result->options->num_ranks; i++)
    for (enum sml_numerics_library l = SML_NUMERICS_EXACT; l < SML_NUMERICS_NUM_LIBRARIES; l++) {
      uint32_t num_ways;
      const uint32_t num_sums = sml_numerics_count(result, result->options->ranks[i], l, &num_ways);
      if (num_ways == 0) continue;
      sml_row_add_number(&out[num], "ranks", "ranks", result->options->ranks[i], 0);
      sml_row_add_text(&out[num], "library", "library", sml_numerics_library_names[l]);
      sml_row_add_number(&out[num], "ways", "ways", num_ways, 0);
      sml_row_add_number(&out[num], "sums", "different_sums", num_sums, 0);
      num++;
    }
  return num;
}

static bool print_json(const struct sml_numerics_result *result, const struct sml_row *rows,
                       const struct sml_row *counts, uint32_t num_counts) {
  json_t *missing = json_object();
  for (enum sml_numerics_library l = 0; l < SML_NUMERICS_NUM_LIBRARIES; l++)
    if (result->missing[l])
      json_object_set_new(missing, sml_numerics_library_names[l], json_string(result->missing[l]));
  json_t *root = json_pack("{s:s, s:s, s:I, s:I, s:I, s:o, s:o, s:o}", "version", sml_version(), "model",
                           result->options->model_name, "seed", (json_int_t)result->options->seed, "elements",
                           (json_int_t)result->num_elems, "tensors", (json_int_t)result->num_tensors, "ways",
                           sml_rows_make_json(rows, result->num_rows), "counts", sml_rows_make_json(counts, num_counts),
                           "missing", missing);
  const bool is_ok = root && json_dumpf(root, stdout, 0) == 0;
  json_decref(root);
  return is_ok && putchar('\n') != EOF;
}

static bool print_tables(const struct sml_numerics_result *result, const struct sml_row *rows,
                         const struct sml_row *counts, uint32_t num_counts) {
  printf("# switchml %s  gradients like those of %s: %zu float32 in %zu tensors  seed %llu\n", sml_version(),
         result->options->model_name, result->num_elems, result->num_tensors,
         (unsigned long long)result->options->seed);
  printf(
      "# CRC-32C of each sum, by the buckets in which it was made. Each rank is a host of its own on the loopback "
      "device,\n"
      "# with datagrams as for that MTU, except in one host's memory.\n");
  bool is_ok =
      sml_rows_print_table(rows, result->num_rows) && putchar('\n') != EOF && sml_rows_print_table(counts, num_counts);
  if (!result->options->no_peers)
    printf("# Two numbers add up to the same bits in any order, so with 2 ranks all have one sum.\n");
  for (enum sml_numerics_library l = 0; l < SML_NUMERICS_NUM_LIBRARIES; l++)
    if (result->missing[l]) printf("# %s\n", result->missing[l]);
  return is_ok;
}

bool sml_numerics_report(const struct sml_numerics_result *result) {
  struct sml_row *rows = calloc(SML_NUMERICS_MAX_ROWS, sizeof *rows);
  struct sml_row *counts = calloc(SML_NUMERICS_MAX_LIST * SML_NUMERICS_NUM_LIBRARIES, sizeof *counts);
  bool is_ok = rows && counts;
  for (uint32_t i = 0; is_ok && i < result->num_rows; i++) fill_row(&rows[i], result, &result->rows[i]);
  const uint32_t num_counts = is_ok ? fill_counts(counts, result) : 0;
  if (is_ok && result->options->is_json) is_ok = print_json(result, rows, counts, num_counts);
  else if (is_ok) is_ok = print_tables(result, rows, counts, num_counts);
  free(rows);
  free(counts);
  return sml_rows_end(is_ok);
}
