/* SPDX-License-Identifier: Apache-2.0
 * `switchml bench numerics`: inputs, their exact sum, and all ways. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fd.h"
#include "cli/numerics/numerics.h"
#include "cli/training/training.h"
#include "core/wire.h"

static const struct sml_numerics_path paths[] = {{"a switchmld, MTU 1500", true, false, 1472},
                                                 {"a switchmld, MTU 9000", true, false, 8960},
                                                 {"no switchmld, MTU 1500", false, false, 1472},
                                                 {"no switchmld, MTU 9000", false, false, 8960},
                                                 {"one host's memory", true, true, 0}};

/* Open MPI chooses an algorithm by size and number of ranks, each version by other rules. */
static const struct sml_numerics_peer peers[] = {{SML_NUMERICS_GLOO, "its ring", NULL},
                                                 {SML_NUMERICS_OPENMPI, "as it chooses", NULL},
                                                 {SML_NUMERICS_OPENMPI, "ring", "4"},
                                                 {SML_NUMERICS_OPENMPI, "Rabenseifner", "6"}};

static bool map(struct sml_numerics_run *r) {
  const size_t of_ranks = (size_t)r->num_ranks * r->num_elems, all = of_ranks + r->options->num_buckets * r->num_elems;
  struct sml_numerics_memory *m = &r->memory;
  void *file = MAP_FAILED, *checksums = MAP_FAILED;
  m->file = sml_fd_raise(memfd_create("switchml-numerics", MFD_CLOEXEC));
  if (m->file >= 0 && ftruncate(m->file, (off_t)(all * sizeof(float))) == 0)
    file = mmap(NULL, all * sizeof(float), PROT_READ | PROT_WRITE, MAP_SHARED, m->file, 0);
  checksums = mmap(NULL, sizeof(*m->checksums) * SML_NUMERICS_MAX_RANKS, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  m->in = file == MAP_FAILED ? NULL : file;
  m->checksums = checksums == MAP_FAILED ? NULL : checksums;
  if (m->in) m->peers = m->in + of_ranks;
  if (!m->in || !m->checksums) sml_bench_say("no memory for the gradients of %u ranks", r->num_ranks);
  return m->in && m->checksums;
}

static void unmap(struct sml_numerics_run *r) {
  struct sml_numerics_memory *m = &r->memory;
  if (m->in) munmap(m->in, (r->num_ranks + r->options->num_buckets) * r->num_elems * sizeof(float));
  if (m->checksums) munmap(m->checksums, sizeof(*m->checksums) * SML_NUMERICS_MAX_RANKS);
  if (m->file >= 0) close(m->file);
}

/* All ranks' gradients; the exact sum's checksum. */
static uint32_t fill(const struct sml_numerics_run *r) {
  uint32_t crc = 0;
  for (size_t i = 0; i < r->num_elems; i++) {
    int64_t units = 0;
    for (uint32_t rank = 0; rank < r->num_ranks; rank++) {
      const int64_t one = sml_numerics_draw_element(r->options->seed, rank, i);
      r->memory.in[rank * r->num_elems + i] = sml_numerics_as_float(one);
      units += one;
    }
    const float sum = sml_numerics_as_float(units);
    crc = sml_crc32c(crc, &sum, sizeof sum);
  }
  return crc;
}

static uint32_t *add_row(struct sml_numerics_result *result, const struct sml_numerics_run *run,
                         enum sml_numerics_library library, const char *path) {
  SML_ASSERT(result->num_rows < SML_NUMERICS_MAX_ROWS);
  struct sml_numerics_row *row = &result->rows[result->num_rows++];
  *row = (struct sml_numerics_row){.num_ranks = run->num_ranks, .library = library, .path = path};
  return row->checksums;
}

static bool run_ways(const struct sml_numerics_run *run, struct sml_numerics_result *result) {
  bool is_ok = true;
  for (int is_exact = 1; is_exact >= 0; is_exact--)
    for (size_t p = 0; is_ok && p < SML_ARRAY_LEN(paths); p++)
      is_ok = sml_numerics_run_ours(
          run, &paths[p], is_exact,
          add_row(result, run, is_exact ? SML_NUMERICS_EXACT : SML_NUMERICS_DEFAULT, paths[p].name));
  for (size_t i = 0; is_ok && !run->options->no_peers && i < SML_ARRAY_LEN(peers); i++)
    if (!result->missing[peers[i].library])
      is_ok = sml_numerics_run_peer(run, &peers[i], add_row(result, run, peers[i].library, peers[i].path));
  return is_ok;
}

static bool run_ranks(struct sml_numerics_run *run, struct sml_numerics_result *result) {
  const struct sml_bench_options size = {
      .num_sizes = 1, .size_bytes = {run->num_elems * sizeof(float)}, .num_calls = 1};
  if (!sml_bench_fits_memory(&size, run->num_ranks)) return false;
  run->memory = (struct sml_numerics_memory){.file = -1};
  bool is_ok = map(run);
  if (is_ok) {
    const uint32_t exact = fill(run);
    uint32_t *checksums = add_row(result, run, SML_NUMERICS_INTEGERS, "one after the other");
    for (uint32_t b = 0; b < run->options->num_buckets; b++) checksums[b] = exact;
    if (!run->options->is_json) fprintf(stderr, "%u ranks ...\n", run->num_ranks);
    is_ok = run_ways(run, result);
  }
  unmap(run);
  return is_ok;
}

/* In the order of a backward pass, from the last tensor on. */
static bool take_tensors(struct sml_numerics_run *run, const struct sml_training_model *model, size_t *tensor_elems) {
  run->tensor_elems = tensor_elems;
  run->num_tensors = model->num_tensors;
  if (run->options->num_tensors != 0 && run->options->num_tensors < run->num_tensors)
    run->num_tensors = run->options->num_tensors;
  for (size_t t = 0; tensor_elems && t < run->num_tensors; t++) {
    tensor_elems[t] = (size_t)model->tensor_elems[run->num_tensors - 1 - t];
    run->num_elems += tensor_elems[t];
  }
  if (run->num_elems <= INT32_MAX / sizeof(float)) return tensor_elems != NULL;
  sml_bench_say("%s has too many elements for this; take its first tensors alone (--tensors)", model->name);
  return false;
}

static void clear_environment(void) {
  static const char *const names[] = {"SWITCHML_AGGREGATOR", "SWITCHML_EXACT", "SWITCHML_FAULTS", "SWITCHML_CHECK",
                                      "SWITCHML_RETRY"};
  for (size_t i = 0; i < SML_ARRAY_LEN(names); i++) unsetenv(names[i]);
}

int sml_numerics_main(int argc, char **argv) {
  static struct sml_numerics_options o;
  static struct sml_numerics_result result;
  struct sml_training_model model;
  sml_numerics_options_parse(&o, argc, argv);
  if (!sml_training_model_load(&model, &(struct sml_training_options){0}, o.model_name)) return SML_BENCH_USAGE;
  struct sml_numerics_run run = {.options = &o};
  size_t *tensor_elems = calloc(model.num_tensors, sizeof *tensor_elems);
  bool is_ok = take_tensors(&run, &model, tensor_elems);
  sml_training_model_free(&model);
  clear_environment();
  result.options = &o;
  result.num_elems = run.num_elems;
  result.num_tensors = run.num_tensors;
  for (enum sml_numerics_library l = SML_NUMERICS_GLOO; is_ok && !o.no_peers && l <= SML_NUMERICS_OPENMPI; l++)
    result.missing[l] = sml_numerics_missing(l);
  for (uint32_t i = 0; is_ok && i < o.num_ranks; i++) {
    run.num_ranks = o.ranks[i];
    is_ok = run_ranks(&run, &result);
  }
  free(tensor_elems);
  is_ok = is_ok && sml_numerics_report(&result) && (!o.picture_file || sml_numerics_draw(&result, o.picture_file));
  return is_ok && sml_numerics_judge(&result) ? SML_BENCH_OK : SML_BENCH_FAILED;
}
