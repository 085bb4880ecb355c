/* SPDX-License-Identifier: Apache-2.0
 * `switchml bench training`: which of its uses is meant. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/training/training.h"

#define MAX_FILE_BYTES (UINT64_C(16) << 20)

/* A file's text, to be freed; NULL: it said why not. */
static char *read_file(const char *path) {
  FILE *file = fopen(path, "re");
  char *text = file ? malloc(MAX_FILE_BYTES + 1) : NULL;
  size_t num_bytes = text ? fread(text, 1, MAX_FILE_BYTES + 1, file) : 0;
  const bool is_ok = text && ferror(file) == 0 && num_bytes <= MAX_FILE_BYTES;
  if (!is_ok) sml_bench_say("cannot read %s: %s", path, text && errno == 0 ? "too long" : strerror(errno));
  if (is_ok) text[num_bytes] = '\0';
  if (file) fclose(file);
  if (is_ok) return text;
  free(text);
  return NULL;
}

static bool parse(struct sml_training_model *model_out, const char *name, const char *text) {
  const char *wrong = sml_training_model_parse(model_out, name, text);
  if (wrong) sml_bench_say("%s: %s", name, wrong);
  if (wrong) sml_training_model_free(model_out);
  return wrong == NULL;
}

bool sml_training_model_load(struct sml_training_model *model_out, const struct sml_training_options *options,
                             const char *name) {
  errno = 0;
  if (options->model_file) {
    char *text = read_file(options->model_file);
    const bool is_ok = text && parse(model_out, options->model_file, text);
    free(text);
    return is_ok;
  }
  for (const struct sml_training_builtin *each = sml_training_builtins; each->name; each++)
    if (strcmp(each->name, name) == 0) return parse(model_out, name, each->text);
  sml_bench_say("there is no table '%s'; --list prints their names", name);
  return false;
}

static int run_replay(const struct sml_training_options *o) {
  struct sml_training_model model;
  struct sml_training_plan plan;
  if (!sml_training_model_load(&model, o, o->model_name)) return SML_BENCH_USAGE;
  uint32_t rank, num_ranks = o->num_ranks != 0 ? o->num_ranks : 8;
  if (!o->is_plan && sml_rank_from_environment(&rank, &num_ranks, NULL) != SML_OK) num_ranks = 1; /* said below */
  const struct sml_training_shape shape = sml_training_shape_of(o, &model, o->rates_bps[0], num_ranks);
  int status = SML_BENCH_USAGE;
  if (!(shape.samples_per_s > 0)) {
    sml_bench_say("%s has no speed of '%s'; --list prints what it has, or say --samples-per-second", model.name,
                  o->gpu);
  } else if (!sml_training_plan_make(&plan, &model, &shape)) {
    sml_bench_say("no memory for the plan, or more than %u all-reduces", SML_TRAINING_MAX_SENDS);
    status = SML_BENCH_FAILED;
  } else {
    struct sml_training_result result;
    bool is_reporter = false, is_ok;
    if (o->is_plan) is_ok = sml_training_report_plan(&plan);
    else is_ok = sml_training_replay(o, &plan, &result, &is_reporter);
    if (is_ok && is_reporter) is_ok = sml_training_report_replay(o, &model, &plan, &result);
    if (is_ok && is_reporter && result.num_wrong != 0)
      sml_bench_say("%llu elements are wrong", (unsigned long long)result.num_wrong);
    status = is_ok && (o->is_plan || result.num_wrong == 0) ? SML_BENCH_OK : SML_BENCH_FAILED;
    sml_training_plan_free(&plan);
  }
  sml_training_model_free(&model);
  return status;
}

/* An aggregator and the workers, each of which runs this command again. */
static int run_local(struct sml_training_options *o, int argc, char **argv) {
  struct sml_training_model model;
  if (!sml_training_model_load(&model, o, o->model_name)) return SML_BENCH_USAGE;
  o->bench.size_bytes[0] = model.num_parameters * 4; /* is there memory for twice this in each process? */
  o->bench.num_sizes = 1;
  sml_training_model_free(&model);
  return sml_bench_local(&o->bench, argc, argv);
}

int sml_training_run(int argc, char **argv, int at) {
  static struct sml_training_options options;
  sml_training_options_parse(&options, argc - at, argv + at);
  char name[] = "training";
  argv[at] = name;
  options.bench.is_local_worker = at > 1;
  if (options.is_list) return sml_training_report_list() ? SML_BENCH_OK : SML_BENCH_FAILED;
  if (options.is_prediction) return sml_training_report_predictions(&options);
  if (options.bench.num_local != 0 && at == 1 && !options.is_plan) return run_local(&options, argc, argv);
  return run_replay(&options);
}
