/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "cli/bench/bench.h"
#include "cli/bench/rows.h"

static const char *why_slots(const struct sml_bench_report *report) {
  static const char *const names[] = {
      [SML_SLOTS_REASON_NONE] = "none",   [SML_SLOTS_REASON_ASKED] = "asked",       [SML_SLOTS_REASON_USUAL] = "usual",
      [SML_SLOTS_REASON_PATH] = "path",   [SML_SLOTS_REASON_LOOPBACK] = "loopback", [SML_SLOTS_REASON_POOL] = "pool",
      [SML_SLOTS_REASON_QUOTA] = "quota", [SML_SLOTS_REASON_FEWER] = "fewer"};
  return report->slots_why < SML_ARRAY_LEN(names) ? names[report->slots_why] : "unknown";
}

static void print_heading(const struct sml_bench_report *report) {
  const struct sml_bench_options *o = report->options;
  printf("# switchml %s  ranks %u  type %s  op %s%s  seed %llu", sml_version(), report->world_size,
         sml_bench_type_name(o->type), sml_bench_reduction_name(o->reduction), o->is_in_place ? "  in place" : "",
         (unsigned long long)o->seed);
  if (o->collective != SML_BENCH_ALL_REDUCE) printf("  collective %s", sml_bench_collective_name(o->collective));
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
      "# busbw, defined for rings: algbw x 2(n-1)/n, (n-1)/n of a reduce_scatter or an all_gather, 1 of broadcast\n"
      "# and reduce. wire: UDP payload that a rank sends per call.\n"
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

static void fill_row(struct sml_row *row, const struct sml_bench_report *report, const struct sml_bench_result *r) {
  char size[32];
  put_size(size, sizeof size, r->size_bytes);
  sml_row_add_number(row, "bytes", NULL, (double)r->size_bytes, 0);
  sml_row_add_number(row, NULL, "bytes", 0, 0);
  memcpy(row->cells[row->num_cells - 1].text, size, sizeof size); /* "4K", to the right as numbers are */
  sml_row_add_number(row, "count", "count", (double)r->num_elems, 0);
  sml_row_add_text(row, "type", NULL, sml_bench_type_name(report->options->type));
  sml_row_add_text(row, "op", NULL, sml_bench_reduction_name(report->options->reduction));
  sml_row_add_text(row, "collective", report->options->collective == SML_BENCH_ALL ? "collective" : NULL,
                   sml_bench_collective_name(r->collective));
  sml_row_add_number(row, "ranks", NULL, report->world_size, 0);
  sml_row_add_number(row, "iters", "iters", r->num_iters, 0);
  sml_row_add_number(row, "time_us_median", "median_us", r->median_us, 1);
  sml_row_add_number(row, "time_us_p99", "p99_us", r->p99_us, 1);
  sml_row_add_number(row, "algbw_GBps", "algbw_GB/s", r->algbw_gbps, 3);
  sml_row_add_number(row, "busbw_GBps", "busbw_GB/s", r->busbw_gbps, 3);
  sml_row_add_number(row, "wrong", "wrong", (double)r->check.num_wrong, 0);
  sml_row_add_number(row, "max_error", "error", r->check.max_error, -2);
  sml_row_add_number(row, "max_error_bound", "bound", r->check.max_error_bound, -2);
  sml_row_add_number(row, "wire_bytes_per_rank", "wire_bytes", r->tx_bytes, 0);
  sml_row_add_number(row, "wire_rx_bytes_per_rank", NULL, r->rx_bytes, 0);
  sml_row_add_number(row, "retransmits", "retrans", (double)r->retransmissions, 0);
  sml_row_add_number(row, "needless_repeats", NULL, (double)r->needless_repeats, 0);
  sml_row_add_number(row, "slot_spread", NULL, r->slot_spread, 0);
  sml_row_add_number(row, "window_reductions", NULL, (double)r->window_reductions, 0);
  sml_row_add_number(row, "ecn_marks", NULL, (double)r->ecn_marks, 0);
  sml_row_add_number(row, "syscalls_per_chunk", "calls", r->system_calls_per_chunk, 3);
  sml_row_add_number(row, "cpu_s", NULL, r->cpu_s, 0);
  sml_row_add_number(row, "cpu_s_per_GB", "CPU_s/GB", r->cpu_s_per_gb, 2);
}

static bool print_json(const struct sml_bench_report *report, const struct sml_row *rows) {
  const struct sml_bench_options *o = report->options;
  json_t *root = json_pack(
      "{s:s, s:i, s:i, s:i, s:s, s:f, s:i, s:b, s:b, s:b, s:i, s:b, s:f, s:I, s:o}", "version", sml_version(), "ranks",
      (int)report->world_size, "lanes", (int)report->num_lanes, "slots", (int)report->num_slots, "slots_why",
      why_slots(report), "join_rtt_us", (double)report->join_rtt_ns / 1e3, "chunk_bytes", (int)report->chunk_bytes,
      "offload", (int)report->has_offload, "shared_memory", (int)(report->num_local_ranks != 0), "in_place",
      (int)o->is_in_place, "calls", (int)o->num_calls, "batch", (int)o->is_batched, "loss", o->loss < 0 ? 0 : o->loss,
      "seed", (json_int_t)o->seed, "results", sml_rows_make_json(rows, report->num_results));
  bool is_ok = root && json_dumpf(root, stdout, JSON_REAL_PRECISION(12)) == 0;
  json_decref(root);
  return is_ok && putchar('\n') != EOF;
}

bool sml_bench_report_print(const struct sml_bench_report *report) {
  struct sml_row *rows = calloc(sml_max_u32(report->num_results, 1), sizeof *rows);
  bool is_ok = rows != NULL;
  for (uint32_t i = 0; is_ok && i < report->num_results; i++) fill_row(&rows[i], report, &report->results[i]);
  if (is_ok && report->options->is_json) {
    is_ok = print_json(report, rows);
  } else if (is_ok) {
    print_heading(report);
    is_ok = sml_rows_print_table(rows, report->num_results);
  }
  free(rows);
  return sml_rows_end(is_ok);
}
