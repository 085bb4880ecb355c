/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <libsmartcols.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/training/training.h"

/* A row as pairs of a name and a value, from which all three forms are made. */
struct cell {
  const char *name;
  char text[64];
  double number;
  bool is_number;
};
struct row {
  struct cell cells[32];
  uint32_t num_cells;
};

static void put_text(struct row *row, const char *name, const char *text) {
  struct cell *cell = &row->cells[row->num_cells++];
  cell->name = name;
  snprintf(cell->text, sizeof cell->text, "%s", text);
}

static void put_number(struct row *row, const char *name, double value, const char *format) {
  struct cell *cell = &row->cells[row->num_cells++];
  cell->name = name;
  cell->number = value;
  cell->is_number = true;
  char number[32];
  snprintf(number, sizeof number, "%.*f", (int)(format[0] - '0'), value);
  snprintf(cell->text, sizeof cell->text, "%s", number);
}

static json_t *make_object(const struct row *row) {
  json_t *object = json_object();
  for (uint32_t i = 0; i < row->num_cells; i++) {
    const struct cell *cell = &row->cells[i];
    const bool is_whole = cell->is_number && cell->number == floor(cell->number) && fabs(cell->number) < 1e15;
    json_t *value = !cell->is_number ? json_string(cell->text)
                    : is_whole       ? json_integer((json_int_t)cell->number)
                                     : json_real(cell->number);
    json_object_set_new(object, cell->name, value);
  }
  return object;
}

static bool print_json(const struct row *rows, uint32_t num_rows) {
  json_t *results = json_array();
  for (uint32_t i = 0; i < num_rows; i++) json_array_append_new(results, make_object(&rows[i]));
  json_t *root = json_pack("{s:s, s:o}", "version", sml_version(), "results", results);
  const bool is_ok = root && json_dumpf(root, stdout, JSON_REAL_PRECISION(9)) == 0;
  json_decref(root);
  return is_ok && putchar('\n') != EOF;
}

static bool print_csv(const struct row *rows, uint32_t num_rows) {
  for (uint32_t i = 0; i < rows[0].num_cells; i++) printf("%s%s", i ? "," : "", rows[0].cells[i].name);
  putchar('\n');
  for (uint32_t k = 0; k < num_rows; k++) {
    for (uint32_t i = 0; i < rows[k].num_cells; i++) {
      const struct cell *cell = &rows[k].cells[i];
      if (cell->is_number) printf("%s%.9g", i ? "," : "", cell->number);
      else printf("%s\"%s\"", i ? "," : "", cell->text);
    }
    putchar('\n');
  }
  return true;
}

static bool print_table(const struct row *rows, uint32_t num_rows) {
  struct libscols_table *table = scols_new_table();
  if (!table) return false;
  scols_table_enable_nowrap(table, 1);
  scols_table_set_termforce(table, SCOLS_TERMFORCE_NEVER);
  for (uint32_t i = 0; i < rows[0].num_cells; i++)
    scols_table_new_column(table, rows[0].cells[i].name, 0, rows[0].cells[i].is_number ? SCOLS_FL_RIGHT : 0);
  for (uint32_t k = 0; k < num_rows; k++) {
    struct libscols_line *line = scols_table_new_line(table, NULL);
    for (uint32_t i = 0; line && i < rows[k].num_cells; i++) scols_line_set_data(line, i, rows[k].cells[i].text);
  }
  const bool is_ok = scols_print_table(table) == 0;
  scols_unref_table(table);
  return is_ok;
}

static bool print_rows(const struct sml_training_options *o, const struct row *rows, uint32_t num_rows,
                       const char *heading) {
  bool is_ok;
  if (o->bench.is_json) {
    is_ok = print_json(rows, num_rows);
  } else if (o->is_csv) {
    is_ok = print_csv(rows, num_rows);
  } else {
    fputs(heading, stdout);
    is_ok = print_table(rows, num_rows);
  }
  is_ok = is_ok && fflush(stdout) == 0 && !ferror(stdout);
  if (!is_ok) sml_bench_say("the report could not be written to standard output");
  return is_ok;
}

static const char *rate_text(double bps, char *text, size_t text_bytes) {
  if (bps >= 1e9) snprintf(text, text_bytes, "%ggbit", bps / 1e9);
  else snprintf(text, text_bytes, "%gmbit", bps / 1e6);
  return text;
}

static void put_case(struct row *row, const struct sml_training_options *o, const struct sml_training_model *model,
                     const struct sml_training_plan *plan, double bps, uint32_t num_ranks) {
  char rate[32];
  put_text(row, "model", model->name);
  put_number(row, "MB", (double)plan->num_elems * 4 / 1e6, "1");
  put_number(row, "sends", plan->num_sends, "0");
  put_text(row, "gpu", o->samples_per_s > 0 ? "given" : o->gpu);
  put_number(row, "batch", o->batch != 0 ? o->batch : model->batch, "0");
  put_text(row, "rate", rate_text(bps, rate, sizeof rate));
  put_number(row, "ranks", num_ranks, "0");
}

static void put_prediction(struct row *row, const struct sml_training_prediction *ours,
                           const struct sml_training_prediction *ring) {
  put_number(row, "compute_ms", ours->compute_s * 1e3, "1");
  put_number(row, "link_ms", ours->link_s * 1e3, "1");
  put_number(row, "predicted_ms", ours->iteration_s * 1e3, "1");
  put_number(row, "ring_ms", ring->iteration_s * 1e3, "1");
  put_number(row, "speedup", ring->iteration_s / ours->iteration_s, "3");
}

/* Both over links of that rate. A ring is given its best: the plan's sends, or the buckets that everybody
 * uses with rings, because each send costs it 2(n-1) steps. */
static void predict_both(const struct sml_training_options *o, const struct sml_training_model *model,
                         const struct sml_training_plan *plan, double bps, uint32_t num_ranks,
                         struct sml_training_prediction *ours, struct sml_training_prediction *ring) {
  const struct sml_training_link our_link = sml_training_our_link(o, bps, num_ranks);
  const struct sml_training_link ring_link = sml_training_ring_link(o, bps, num_ranks);
  sml_training_predict(plan, &our_link, o->time_scale, ours);
  sml_training_predict(plan, &ring_link, o->time_scale, ring);
  struct sml_training_shape shape = sml_training_shape_of(o, model, bps, num_ranks);
  struct sml_training_plan buckets;
  shape.has_priority = false;
  shape.bucket_bytes = UINT64_C(25) << 20;
  if (!sml_training_plan_make(&buckets, model, &shape)) return;
  struct sml_training_prediction other;
  sml_training_predict(&buckets, &ring_link, o->time_scale, &other);
  if (other.iteration_s < ring->iteration_s) *ring = other;
  sml_training_plan_free(&buckets);
}

bool sml_training_report_replay(const struct sml_training_options *o, const struct sml_training_model *model,
                                const struct sml_training_plan *plan, const struct sml_training_result *r) {
  struct sml_training_prediction ours, ring;
  struct row row = {.num_cells = 0};
  predict_both(o, model, plan, o->rates_bps[0], r->world_size, &ours, &ring);
  put_case(&row, o, model, plan, o->rates_bps[0], r->world_size);
  put_number(&row, "iters", r->num_iters, "0");
  put_number(&row, "time_ms", r->median_s * 1e3, "1");
  put_number(&row, "fastest_ms", r->fastest_s * 1e3, "1");
  put_number(&row, "slowest_ms", r->slowest_s * 1e3, "1");
  put_prediction(&row, &ours, &ring);
  put_number(&row, "wrong", (double)r->num_wrong, "0");
  put_number(&row, "operations", (double)r->num_operations, "0");
  put_number(&row, "wire_bytes_per_rank", r->tx_bytes, "0");
  put_number(&row, "wire_rx_bytes_per_rank", r->rx_bytes, "0");
  put_number(&row, "retransmits", (double)r->retransmissions, "0");
  put_number(&row, "cpu_s", r->cpu_s, "3");
  put_number(&row, "time_scale", o->time_scale, "3");
  put_text(&row, "path", r->is_shared_memory ? "shared memory" : "network");
  return print_rows(
      o, &row, 1,
      "# time_ms: an iteration of the slowest rank, median; computing is waited for. predicted_ms, ring_ms: "
      "for "
      "links of this rate.\n# wire: UDP payload that a rank sends an iteration. operations: completed by the "
      "library, of all ranks.\n");
}

static bool predict_model(const struct sml_training_options *o, const char *name, struct row *rows,
                          uint32_t *num_rows) {
  struct sml_training_model model;
  if (!sml_training_model_load(&model, o, name)) return false;
  bool is_ok = true;
  for (uint32_t i = 0; is_ok && i < o->num_rates; i++) {
    const uint32_t num_ranks = o->num_ranks != 0 ? o->num_ranks : 8;
    const struct sml_training_shape shape = sml_training_shape_of(o, &model, o->rates_bps[i], num_ranks);
    struct sml_training_plan plan;
    struct sml_training_prediction ours, ring;
    is_ok = shape.samples_per_s > 0;
    if (!is_ok)
      sml_bench_say("%s has no speed of '%s'; --list prints what it has, or say --samples-per-second", name, o->gpu);
    if (!is_ok) break;
    is_ok = sml_training_plan_make(&plan, &model, &shape);
    if (!is_ok) sml_bench_say("%s: no memory for the plan, or more than %u all-reduces", name, SML_TRAINING_MAX_SENDS);
    if (!is_ok) break;
    predict_both(o, &model, &plan, o->rates_bps[i], num_ranks, &ours, &ring);
    struct row *row = &rows[(*num_rows)++];
    row->num_cells = 0;
    put_case(row, o, &model, &plan, o->rates_bps[i], num_ranks);
    put_prediction(row, &ours, &ring);
    put_text(row, "regime", sml_training_regime(&ours));
    put_text(row, "ring_regime", sml_training_regime(&ring));
    sml_training_plan_free(&plan);
  }
  sml_training_model_free(&model);
  return is_ok;
}

int sml_training_report_predictions(const struct sml_training_options *o) {
  uint32_t num_models = 1, num_rows = 0;
  const bool is_all = !o->model_file && strcmp(o->model_name, "all") == 0;
  for (const struct sml_training_builtin *each = sml_training_builtins; is_all && each->name; each++) num_models++;
  struct row *rows = calloc((size_t)num_models * o->num_rates, sizeof *rows);
  bool is_ok = rows != NULL;
  if (is_ok && !is_all) is_ok = predict_model(o, o->model_file ? o->model_file : o->model_name, rows, &num_rows);
  for (const struct sml_training_builtin *each = sml_training_builtins; is_ok && is_all && each->name; each++)
    is_ok = predict_model(o, each->name, rows, &num_rows);
  const bool is_printed =
      is_ok && print_rows(o, rows, num_rows,
                          "# An iteration: computing alone, the link alone, both with SwitchML; with a ring, "
                          "in buckets of 25 MiB if that is better.\n# speedup: ring_ms / predicted_ms.\n");
  free(rows);
  return is_printed ? SML_BENCH_OK : is_ok ? SML_BENCH_FAILED : SML_BENCH_USAGE;
}

/* Layers that wait for as many sends are one. */
bool sml_training_report_plan(const struct sml_training_plan *p) {
  uint32_t num_sections = 0;
  for (uint32_t i = 0; i < p->num_layers; i++) num_sections += i == 0 || p->num_needed[i] != p->num_needed[i - 1];
  printf("plan %u %u %llu %llu\n", num_sections, p->num_sends, (unsigned long long)p->num_elems,
         (unsigned long long)p->backward_ns);
  for (uint32_t i = 0; i < p->num_layers;) {
    const uint32_t need = p->num_needed[i];
    uint64_t forward_ns = 0;
    for (; i < p->num_layers && p->num_needed[i] == need; i++) forward_ns += p->forward_ns[i];
    printf("forward %u %llu\n", need, (unsigned long long)forward_ns);
  }
  for (uint32_t i = 0; i < p->num_sends; i++)
    printf("send %llu %llu %llu\n", (unsigned long long)p->sends[i].ready_ns,
           (unsigned long long)p->sends[i].first_elem, (unsigned long long)p->sends[i].num_elems);
  return fflush(stdout) == 0 && !ferror(stdout);
}

bool sml_training_report_list(void) {
  for (const struct sml_training_builtin *each = sml_training_builtins; each->name; each++) {
    struct sml_training_model model;
    if (!sml_training_model_parse(&model, each->name, each->text)) {
      printf("%-14s %7.1f MB  %4u tensors  batch %u\n", model.name, (double)model.num_parameters * 4 / 1e6,
             model.num_tensors, model.batch);
      for (uint32_t i = 0; i < model.num_speeds; i++)
        printf("  %-6s %12.1f samples/s  %s\n", model.speeds[i].gpu, model.speeds[i].samples_per_s,
               model.speeds[i].source);
    }
    sml_training_model_free(&model);
  }
  return fflush(stdout) == 0 && !ferror(stdout);
}
