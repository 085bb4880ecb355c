/* SPDX-License-Identifier: Apache-2.0
 * The sums of `switchml bench numerics` as a picture: a square for each way, a colour for each sum. */
#include <errno.h>
#include <stdio.h>

#include "cli/numerics/numerics.h"

#define LINE 22u
#define FIRST_Y 80u
#define FIRST_X 172u

/* Which sum of this number of ranks it is, in the order of the rows: 0 is the exact one. */
static uint32_t sum_number(const struct sml_numerics_result *result, uint32_t num_ranks, uint32_t checksum) {
  uint32_t seen[64], num_seen = 0;
  for (uint32_t i = 0; i < result->num_rows; i++)
    for (uint32_t b = 0; b < result->options->num_buckets && result->rows[i].num_ranks == num_ranks; b++) {
      const uint32_t each = result->rows[i].checksums[b];
      uint32_t at = 0;
      while (at < num_seen && seen[at] != each) at++;
      if (each == checksum) return at;
      if (at == num_seen && num_seen < SML_ARRAY_LEN(seen)) seen[num_seen++] = each;
    }
  return num_seen;
}

static void draw_head(FILE *to, uint32_t height) {
  static const char *const colours[] = {"#5b8c5a", "#2b6cb0", "#d9822b", "#c1272d", "#7b3294", "#b8a100",
                                        "#1b9e9e", "#d6599b", "#8c564b", "#4b4bc8", "#7f9f00", "#a05a2c"};
  fprintf(to,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"760\" height=\"%u\" viewBox=\"0 0 760 %u\" "
          "font-family=\"sans-serif\" font-size=\"12\">\n<style>\n"
          "svg { background: #ffffff } text { fill: #222222 } .more { fill: #777777 }\n"
          "@media (prefers-color-scheme: dark) { svg { background: #16181c } text { fill: #e6e6e6 } }\n",
          height, height);
  for (uint32_t i = 0; i < SML_ARRAY_LEN(colours); i++) fprintf(to, ".s%u { fill: %s }\n", i, colours[i]);
  fprintf(
      to,
      "</style>\n<text x=\"12\" y=\"24\" font-size=\"16\">The same gradients, summed in many ways</text>\n"
      "<text x=\"12\" y=\"42\">A square is a way: a size of bucket, by a path. Equal colours are equal sums, bit for "
      "bit.</text>\n<text x=\"12\" y=\"58\">Green is the exact sum, rounded once.</text>\n");
}

static void draw_library(FILE *to, const struct sml_numerics_result *result, uint32_t num_ranks,
                         enum sml_numerics_library library, uint32_t y) {
  uint32_t num_ways, num_paths = 0;
  const uint32_t num_sums = sml_numerics_count(result, num_ranks, library, &num_ways);
  fprintf(to, "<text x=\"28\" y=\"%u\">%s</text>\n", y + 13, sml_numerics_library_names[library]);
  for (uint32_t i = 0; i < result->num_rows; i++) {
    const struct sml_numerics_row *row = &result->rows[i];
    if (row->num_ranks != num_ranks || row->library != library) continue;
    const uint32_t x = FIRST_X + num_paths++ * (18 * result->options->num_buckets + 8);
    for (uint32_t b = 0; b < result->options->num_buckets; b++) {
      const uint32_t number = sum_number(result, num_ranks, row->checksums[b]);
      fprintf(
          to,
          "<rect class=\"%s%u\" x=\"%u\" y=\"%u\" width=\"16\" height=\"16\"><title>%s, %u MiB: %08x</title></rect>\n",
          number < 12 ? "s" : "more s", number, x + 18 * b, y, row->path, result->options->bucket_mib[b],
          row->checksums[b]);
    }
  }
  fprintf(to, "<text x=\"%u\" y=\"%u\">%u sum%s in %u way%s</text>\n",
          FIRST_X + 8 + num_paths * (18 * result->options->num_buckets + 8), y + 13, num_sums, num_sums == 1 ? "" : "s",
          num_ways, num_ways == 1 ? "" : "s");
}

bool sml_numerics_draw(const struct sml_numerics_result *result, const char *path) {
  const struct sml_numerics_options *o = result->options;
  FILE *to = fopen(path, "we");
  uint32_t y = FIRST_Y, num_lines = 0;
  for (uint32_t i = 0; i < o->num_ranks; i++)
    for (enum sml_numerics_library l = SML_NUMERICS_EXACT; l < SML_NUMERICS_NUM_LIBRARIES; l++)
      num_lines += sml_numerics_count(result, o->ranks[i], l, NULL) != 0;
  if (to) draw_head(to, FIRST_Y + LINE * (num_lines + o->num_ranks) + 14 * o->num_ranks);
  for (uint32_t i = 0; to && i < o->num_ranks; i++) {
    fprintf(to, "<text x=\"12\" y=\"%u\" font-weight=\"bold\">%u ranks</text>\n", y + 8, o->ranks[i]);
    y += LINE;
    for (enum sml_numerics_library l = SML_NUMERICS_EXACT; l < SML_NUMERICS_NUM_LIBRARIES; l++) {
      if (sml_numerics_count(result, o->ranks[i], l, NULL) == 0) continue;
      draw_library(to, result, o->ranks[i], l, y);
      y += LINE;
    }
    y += 14;
  }
  if (to) fputs("</svg>\n", to);
  const bool is_ok = to && !ferror(to);
  if ((to && fclose(to) != 0) || !is_ok) {
    sml_bench_say("cannot write the picture %s: %s", path, strerror(errno));
    return false;
  }
  return true;
}
