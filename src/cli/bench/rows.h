/* SPDX-License-Identifier: Apache-2.0
 * A report's rows: each figure is named once, and printed as JSON, as comma-separated values or as a table. */
#pragma once

#include <jansson.h>

#include "base/base.h"

struct sml_cell {
  const char *name, *column; /* for programs, for the table; NULL: it is not there */
  char text[64];
  double number;
  bool is_number;
};
struct sml_row {
  struct sml_cell cells[32];
  uint32_t num_cells;
};

void sml_row_add_text(struct sml_row *row, const char *name, const char *column, const char *text);
/* digits: behind the point; negative: of a number with an exponent. JSON has no infinity: null. */
void sml_row_add_number(struct sml_row *row, const char *name, const char *column, double value, int digits);

/* An array of objects; NULL: no memory. */
json_t *sml_rows_make_json(const struct sml_row *rows, uint32_t num_rows);
void sml_rows_print_csv(const struct sml_row *rows, uint32_t num_rows);
bool sml_rows_print_table(const struct sml_row *rows, uint32_t num_rows);
/* Flushes standard output, after `is_ok`; says what went wrong. */
bool sml_rows_end(bool is_ok);
