/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "cli/bench/rows.h"
#include "cli/training/training.h"

static void put_text(struct sml_row *row, const char *name, const char *text) {
  sml_row_add_text(row, name, name, text);
}

static void put_number(struct sml_row *row, const char *name, double value, int digits) {
  sml_row_add_number(row, name, name, value, digits);
}

static bool print_json(const struct sml_row *rows, uint32_t num_rows) {
  json_t *root = json_pack("{s:s, s:o}", "version", sml_version(), "results", sml_rows_make_json(rows, num_rows));
  const bool is_ok = root && json_dumpf(root, stdout, JSON_REAL_PRECISION(9)) == 0;
  json_decref(root);
  return is_ok && putchar('\n') != EOF;
}

static bool print_rows(const struct sml_training_options *o, const struct sml_row *rows, uint32_t num_rows,
                       const char *heading) {
  bool is_ok = true;
  if (o->bench.is_json) {
    is_ok = print_json(rows, num_rows);
  } else if (o->is_csv) {
    sml_rows_print_csv(rows, num_rows);
  } else {
    fputs(heading, stdout);
    is_ok = sml_rows_print_table(rows, num_rows);
  }
  return sml_rows_end(is_ok);
}

static const char *rate_text(double bps, char *text, size_t text_bytes) {
  if (bps >= 1e9) snprintf(text, text_bytes, "%ggbit", bps / 1e9);
  else snprintf(text, text_bytes, "%gmbit", bps / 1e6);
  return text;
}

static void put_case(struct sml_row *row, const struct sml_training_options *o, const struct sml_training_model *model,
                     const struct sml_training_plan *plan, double bps, uint32_t num_ranks) {
  char rate[32];
  put_text(row, "model", model->name);
  put_number(row, "MB", (double)plan->num_elems * 4 / 1e6, 1);
  put_number(row, "sends", plan->num_sends, 0);
  put_text(row, "gpu", o->samples_per_s > 0 ? "given" : o->gpu);
  put_number(row, "batch", o->batch != 0 ? o->batch : model->batch, 0);
  put_text(row, "rate", rate_text(bps, rate, sizeof rate));
  put_number(row, "ranks", num_ranks, 0);
}

static void put_prediction(struct sml_row *row, const struct sml_training_prediction *ours,
                           const struct sml_training_prediction *ring, const struct sml_training_prediction *gloo) {
  put_number(row, "compute_ms", ours->compute_s * 1e3, 1);
  put_number(row, "link_ms", ours->link_s * 1e3, 1);
  put_number(row, "predicted_ms", ours->iteration_s * 1e3, 1);
  put_number(row, "ring_ms", ring->iteration_s * 1e3, 1);
  if (gloo->iteration_s > 0) put_number(row, "gloo_ms", gloo->iteration_s * 1e3, 1);
  put_number(row, "speedup", ring->iteration_s / ours->iteration_s, 3);
}

/* Ours and a ring, with sharded training also PyTorch's Gloo, over links of that rate. A ring is given its best: the
 * plan's sends, or the buckets that everybody uses with rings, because each send costs it 2(n-1) steps. */
static void predict_all(const struct sml_training_options *o, const struct sml_training_model *model,
                        const struct sml_training_plan *plan, double bps, uint32_t num_ranks,
                        struct sml_training_prediction *ours, struct sml_training_prediction *ring,
                        struct sml_training_prediction *gloo) {
  const struct sml_training_link our_link = sml_training_our_link(o, bps, num_ranks);
  const struct sml_training_link ring_link = sml_training_ring_link(o, bps, num_ranks, false);
  sml_training_predict(plan, &our_link, o->time_scale, ours);
  sml_training_predict(plan, &ring_link, o->time_scale, ring);
  memset(gloo, 0, sizeof *gloo);
  if (o->is_sharded) {
    const struct sml_training_link gloo_link = sml_training_ring_link(o, bps, num_ranks, true);
    sml_training_predict(plan, &gloo_link, o->time_scale, gloo);
    return;
  }
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
  struct sml_training_prediction ours, ring, gloo;
  struct sml_row row = {.num_cells = 0};
  predict_all(o, model, plan, o->rates_bps[0], r->world_size, &ours, &ring, &gloo);
  put_case(&row, o, model, plan, o->rates_bps[0], r->world_size);
  put_number(&row, "iters", r->num_iters, 0);
  put_number(&row, "time_ms", r->median_s * 1e3, 1);
  put_number(&row, "fastest_ms", r->fastest_s * 1e3, 1);
  put_number(&row, "slowest_ms", r->slowest_s * 1e3, 1);
  put_prediction(&row, &ours, &ring, &gloo);
  put_number(&row, "wrong", (double)r->num_wrong, 0);
  put_number(&row, "operations", (double)r->num_operations, 0);
  put_number(&row, "wire_bytes_per_rank", r->tx_bytes, 0);
  put_number(&row, "wire_rx_bytes_per_rank", r->rx_bytes, 0);
  put_number(&row, "retransmits", (double)r->retransmissions, 0);
  put_number(&row, "cpu_s", r->cpu_s, 3);
  put_number(&row, "time_scale", o->time_scale, 3);
  put_text(&row, "path", r->is_shared_memory ? "shared memory" : "network");
  return print_rows(
      o, &row, 1,
      "# time_ms: an iteration of the slowest rank, median; computing is waited for. predicted_ms, ring_ms: "
      "for "
      "links of this rate.\n# wire: UDP payload that a rank sends an iteration. operations: completed by the "
      "library, of all ranks.\n");
}

static bool predict_model(const struct sml_training_options *o, const char *name, struct sml_row *rows,
                          uint32_t *num_rows) {
  struct sml_training_model model;
  if (!sml_training_model_load(&model, o, name)) return false;
  bool is_ok = true;
  for (uint32_t i = 0; is_ok && i < o->num_rates; i++) {
    const uint32_t num_ranks = o->num_ranks != 0 ? o->num_ranks : 8;
    const struct sml_training_shape shape = sml_training_shape_of(o, &model, o->rates_bps[i], num_ranks);
    struct sml_training_plan plan;
    struct sml_training_prediction ours, ring, gloo;
    is_ok = shape.samples_per_s > 0;
    if (!is_ok)
      sml_bench_say("%s has no speed of '%s'; --list prints what it has, or say --samples-per-second", name, o->gpu);
    if (!is_ok) break;
    is_ok = sml_training_plan_make(&plan, &model, &shape);
    if (!is_ok) sml_bench_say("%s: no memory for the plan, or more than %u all-reduces", name, SML_TRAINING_MAX_SENDS);
    if (!is_ok) break;
    predict_all(o, &model, &plan, o->rates_bps[i], num_ranks, &ours, &ring, &gloo);
    struct sml_row *row = &rows[(*num_rows)++];
    row->num_cells = 0;
    put_case(row, o, &model, &plan, o->rates_bps[i], num_ranks);
    put_prediction(row, &ours, &ring, &gloo);
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
  struct sml_row *rows = calloc((size_t)num_models * o->num_rates, sizeof *rows);
  bool is_ok = rows != NULL;
  if (is_ok && !is_all) is_ok = predict_model(o, o->model_file ? o->model_file : o->model_name, rows, &num_rows);
  for (const struct sml_training_builtin *each = sml_training_builtins; is_ok && is_all && each->name; each++)
    is_ok = predict_model(o, each->name, rows, &num_rows);
  char heading[400];
  snprintf(heading, sizeof heading,
           "# An iteration: computing alone, the link alone, both with SwitchML; with a ring%s.\n"
           "# speedup: ring_ms / predicted_ms. Computing: published or estimated, --list says which.\n",
           o->is_sharded ? "; with Gloo,\n# a ring whose reduce-scatters are all-reduces, as in PyTorch"
                         : ", in buckets of 25 MiB if that is better");
  const bool is_printed = is_ok && print_rows(o, rows, num_rows, heading);
  free(rows);
  return is_printed ? SML_BENCH_OK : is_ok ? SML_BENCH_FAILED : SML_BENCH_USAGE;
}

static bool report_sharded(const struct sml_training_plan *p) {
  printf("fsdp %u %u %llu\n", p->num_steps, p->num_sends, (unsigned long long)p->num_elems);
  for (uint32_t i = 0; i < p->num_steps; i++)
    printf("%u %llu\n", (unsigned)p->steps[i].act, (unsigned long long)p->steps[i].number);
  for (uint32_t i = 0; i < p->num_sends; i++)
    printf("%u %llu %llu\n", (unsigned)p->sends[i].call, (unsigned long long)p->sends[i].first_elem,
           (unsigned long long)p->sends[i].num_elems);
  return fflush(stdout) == 0 && !ferror(stdout);
}

/* Layers that wait for as many sends are one. */
bool sml_training_report_plan(const struct sml_training_plan *p) {
  if (p->num_steps != 0) return report_sharded(p);
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
        printf("  %-6s %12.4g samples/s  %s\n", model.speeds[i].gpu, model.speeds[i].samples_per_s,
               model.speeds[i].source);
    }
    sml_training_model_free(&model);
  }
  return fflush(stdout) == 0 && !ferror(stdout);
}
