/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <libsmartcols.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/bench/bench.h"

static const char *reduction_name(const struct sml_bench_options *options) {
  return options->reduction == SML_AVG ? "avg" : "sum";
}

/* JSON has no infinity; an error that is not finite is null. */
static json_t *real_or_null(double value) {
  return isfinite(value) ? json_real(value) : json_null();
}

static json_t *make_result(const struct sml_bench_report *report, const struct sml_bench_result *r) {
  return json_pack(
      "{s:I, s:I, s:s, s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:I, s:o, s:o, s:f, s:f, s:I, s:I, s:f, s:I, s:I, "
      "s:f, s:f, s:f}",
      "bytes", (json_int_t)r->size_bytes, "count", (json_int_t)r->num_elems, "type",
      sml_bench_type_name(report->options->type), "op", reduction_name(report->options), "ranks",
      (int)report->world_size, "iters", (int)r->num_iters, "time_us_median", r->median_us, "time_us_p99", r->p99_us,
      "algbw_GBps", r->algbw_gbps, "busbw_GBps", r->busbw_gbps, "wrong", (json_int_t)r->check.num_wrong, "max_error",
      real_or_null(r->check.max_error), "max_error_bound", real_or_null(r->check.max_error_bound),
      "wire_bytes_per_rank", r->tx_bytes, "wire_rx_bytes_per_rank", r->rx_bytes, "retransmits",
      (json_int_t)r->retransmissions, "needless_repeats", (json_int_t)r->needless_repeats, "slot_spread",
      r->slot_spread, "window_reductions", (json_int_t)r->window_reductions, "ecn_marks", (json_int_t)r->ecn_marks,
      "syscalls_per_chunk", r->system_calls_per_chunk, "cpu_s", r->cpu_s, "cpu_s_per_GB", r->cpu_s_per_gb);
}

static const char *why_slots(const struct sml_bench_report *report) {
  static const char *const names[] = {
      [SML_SLOTS_REASON_NONE] = "none",   [SML_SLOTS_REASON_ASKED] = "asked",       [SML_SLOTS_REASON_USUAL] = "usual",
      [SML_SLOTS_REASON_PATH] = "path",   [SML_SLOTS_REASON_LOOPBACK] = "loopback", [SML_SLOTS_REASON_POOL] = "pool",
      [SML_SLOTS_REASON_QUOTA] = "quota", [SML_SLOTS_REASON_FEWER] = "fewer"};
  return report->slots_why < SML_ARRAY_LEN(names) ? names[report->slots_why] : "unknown";
}

static bool print_json(const struct sml_bench_report *report) {
  const struct sml_bench_options *o = report->options;
  json_t *results = json_array();
  for (uint32_t i = 0; i < report->num_results; i++)
    json_array_append_new(results, make_result(report, &report->results[i]));
  json_t *root = json_pack("{s:s, s:i, s:i, s:i, s:s, s:f, s:i, s:b, s:b, s:b, s:i, s:b, s:f, s:I, s:o}", "version",
                           sml_version(), "ranks", (int)report->world_size, "lanes", (int)report->num_lanes, "slots",
                           (int)report->num_slots, "slots_why", why_slots(report), "join_rtt_us",
                           (double)report->join_rtt_ns / 1e3, "chunk_bytes", (int)report->chunk_bytes, "offload",
                           (int)report->has_offload, "shared_memory", (int)(report->num_local_ranks != 0), "in_place",
                           (int)o->is_in_place, "calls", (int)o->num_calls, "batch", (int)o->is_batched, "loss",
                           o->loss < 0 ? 0 : o->loss, "seed", (json_int_t)o->seed, "results", results);
  bool is_ok = root && json_dumpf(root, stdout, JSON_REAL_PRECISION(12)) == 0;
  json_decref(root);
  return is_ok && putchar('\n') != EOF && fflush(stdout) == 0;
}

static void print_heading(const struct sml_bench_report *report) {
  const struct sml_bench_options *o = report->options;
  printf("# switchml %s  ranks %u  type %s  op %s%s  seed %llu", sml_version(), report->world_size,
         sml_bench_type_name(o->type), reduction_name(o), o->is_in_place ? "  in place" : "",
         (unsigned long long)o->seed);
  if (o->loss >= 0) printf("  loss %g at each receiver", o->loss);
  if (o->num_calls > 1) printf("  calls %u at once%s", o->num_calls, o->is_batched ? ", one batch" : "");
  printf("\n# path: %s",
         report->num_local_ranks == 0 ? "network"
         : report->num_local_ranks < report->world_size
             ? "network, from one rank of each host"
             : "shared memory of one host, no network (--shared-memory=no:\n"
               "# the loopback device; without --local, RANK and WORLD_SIZE set on each host: the network)");
  printf(
      "\n# chunk %u bytes (+ 32 of header, 36 if keyed)  lanes %u  slots %u a lane (%s, rtt %.0f us)  "
      "segmentation offload %s\n",
      report->chunk_bytes, report->num_lanes, report->num_slots, why_slots(report), (double)report->join_rtt_ns / 1e3,
      report->has_offload ? "yes" : "no");
  printf(
      "# times: of the slowest rank. algbw = bytes / median, the figure to judge an aggregator by;\n"
      "# busbw = algbw x 2(n-1)/n is defined for rings. wire: UDP payload that a rank sends per all-reduce.\n"
      "# error, bound: of the largest of 256 neighbours, its ranks' absolute values added (integers: as they are).\n"
      "# retrans: of all ranks and iterations. calls: system calls a chunk. CPU: of a worker, s a GB.\n");
}

/* Bytes of a size, with the largest unit that divides them. */
static void put_size(char *text, size_t text_bytes, uint64_t size_bytes) {
  static const char units[] = {'G', 'M', 'K'};
  for (uint32_t i = 0; i < 3; i++) {
    uint64_t unit = UINT64_C(1) << (30 - 10 * i);
    if (size_bytes < unit || size_bytes % unit != 0) continue;
    snprintf(text, text_bytes, "%llu%c", (unsigned long long)(size_bytes / unit), units[i]);
    return;
  }
  snprintf(text, text_bytes, "%llu", (unsigned long long)size_bytes);
}

__attribute__((format(printf, 3, 4))) static void put_cell(struct libscols_line *line, size_t column,
                                                           const char *format, ...) {
  char text[64];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  scols_line_set_data(line, column, text);
}

static void put_row(struct libscols_line *line, const struct sml_bench_result *r) {
  char size[32];
  put_size(size, sizeof size, r->size_bytes);
  size_t column = 0;
  put_cell(line, column++, "%s", size);
  put_cell(line, column++, "%llu", (unsigned long long)r->num_elems);
  put_cell(line, column++, "%u", r->num_iters);
  put_cell(line, column++, "%.1f", r->median_us);
  put_cell(line, column++, "%.1f", r->p99_us);
  put_cell(line, column++, "%.3f", r->algbw_gbps);
  put_cell(line, column++, "%.3f", r->busbw_gbps);
  put_cell(line, column++, "%llu", (unsigned long long)r->check.num_wrong);
  put_cell(line, column++, "%.2e", r->check.max_error);
  put_cell(line, column++, "%.2e", r->check.max_error_bound);
  put_cell(line, column++, "%.0f", r->tx_bytes);
  put_cell(line, column++, "%llu", (unsigned long long)r->retransmissions);
  put_cell(line, column++, "%.3f", r->system_calls_per_chunk);
  put_cell(line, column++, "%.2f", r->cpu_s_per_gb);
}

static bool print_table(const struct sml_bench_report *report) {
  static const char *const columns[] = {"bytes", "count", "iters", "median_us",  "p99_us",  "algbw_GB/s", "busbw_GB/s",
                                        "wrong", "error", "bound", "wire_bytes", "retrans", "calls",      "CPU_s/GB"};
  print_heading(report);
  struct libscols_table *table = scols_new_table();
  if (!table) return false;
  scols_table_enable_nowrap(table, 1);
  scols_table_set_termforce(table, SCOLS_TERMFORCE_NEVER);
  for (size_t i = 0; i < SML_ARRAY_LEN(columns); i++) scols_table_new_column(table, columns[i], 0, SCOLS_FL_RIGHT);
  for (uint32_t i = 0; i < report->num_results; i++) {
    struct libscols_line *line = scols_table_new_line(table, NULL);
    if (line) put_row(line, &report->results[i]);
  }
  bool is_ok = scols_print_table(table) == 0;
  scols_unref_table(table);
  return is_ok && fflush(stdout) == 0;
}

bool sml_bench_report_print(const struct sml_bench_report *report) {
  bool is_ok = report->options->is_json ? print_json(report) : print_table(report);
  if (!is_ok) sml_bench_say("the report could not be written to standard output");
  return is_ok;
}
