/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/bench/rows.h"

#include <libsmartcols.h>
#include <math.h>
#include <stdio.h>

#include "cli/bench/bench.h"

void sml_row_add_text(struct sml_row *row, const char *name, const char *column, const char *text) {
  SML_ASSERT(row->num_cells < SML_ARRAY_LEN(row->cells));
  struct sml_cell *cell = &row->cells[row->num_cells++];
  *cell = (struct sml_cell){.name = name, .column = column};
  snprintf(cell->text, sizeof cell->text, "%s", text);
}

void sml_row_add_number(struct sml_row *row, const char *name, const char *column, double value, int digits) {
  char text[64];
  snprintf(text, sizeof text, digits < 0 ? "%.*e" : "%.*f", digits < 0 ? -digits : digits, value);
  sml_row_add_text(row, name, column, text);
  row->cells[row->num_cells - 1].number = value;
  row->cells[row->num_cells - 1].is_number = true;
}

static json_t *make_value(const struct sml_cell *cell) {
  if (!cell->is_number) return json_string(cell->text);
  if (!isfinite(cell->number)) return json_null();
  const bool is_whole = cell->number == floor(cell->number) && fabs(cell->number) < 1e15;
  return is_whole ? json_integer((json_int_t)cell->number) : json_real(cell->number);
}

json_t *sml_rows_make_json(const struct sml_row *rows, uint32_t num_rows) {
  json_t *results = json_array();
  for (uint32_t k = 0; k < num_rows; k++) {
    json_t *object = json_object();
    for (uint32_t i = 0; i < rows[k].num_cells; i++)
      if (rows[k].cells[i].name) json_object_set_new(object, rows[k].cells[i].name, make_value(&rows[k].cells[i]));
    json_array_append_new(results, object);
  }
  return results;
}

void sml_rows_print_csv(const struct sml_row *rows, uint32_t num_rows) {
  for (uint32_t i = 0; i < rows[0].num_cells; i++) printf("%s%s", i ? "," : "", rows[0].cells[i].name);
  putchar('\n');
  for (uint32_t k = 0; k < num_rows; k++) {
    for (uint32_t i = 0; i < rows[k].num_cells; i++) {
      const struct sml_cell *cell = &rows[k].cells[i];
      if (cell->is_number) printf("%s%.9g", i ? "," : "", cell->number);
      else printf("%s\"%s\"", i ? "," : "", cell->text);
    }
    putchar('\n');
  }
}

bool sml_rows_print_table(const struct sml_row *rows, uint32_t num_rows) {
  struct libscols_table *table = scols_new_table();
  if (!table) return false;
  scols_table_enable_nowrap(table, 1);
  scols_table_set_termforce(table, SCOLS_TERMFORCE_NEVER);
  for (uint32_t i = 0; num_rows > 0 && i < rows[0].num_cells; i++) {
    const struct sml_cell *cell = &rows[0].cells[i];
    if (cell->column) scols_table_new_column(table, cell->column, 0, cell->is_number ? SCOLS_FL_RIGHT : 0);
  }
  for (uint32_t k = 0; k < num_rows; k++) {
    struct libscols_line *line = scols_table_new_line(table, NULL);
    size_t column = 0;
    for (uint32_t i = 0; line && i < rows[k].num_cells; i++)
      if (rows[k].cells[i].column) scols_line_set_data(line, column++, rows[k].cells[i].text);
  }
  const bool is_ok = scols_print_table(table) == 0;
  scols_unref_table(table);
  return is_ok;
}

bool sml_rows_end(bool is_ok) {
  is_ok = is_ok && fflush(stdout) == 0 && !ferror(stdout);
  if (!is_ok) sml_bench_say("the report could not be written to standard output");
  return is_ok;
}
