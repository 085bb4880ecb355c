/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/bench/job_options.h"

#define SML_OPTIONS struct sml_bench_options

static const char *const no_yes[] = {"no", "yes", NULL};

const struct sml_option sml_bench_job_options[] = {
    {"local", 'l', "N", "Start an aggregator and N workers on this machine", 1,
     SML_NUMBER(num_local, 1, SML_BENCH_MAX_LOCAL)},
    {"iters", 'n', "N",
     "Timed runs (default 3 trainings; of all-reduces 50 up to 64K, 20 up to 64M, then fewer, at least 5)", 1,
     SML_NUMBER(num_iters, 1, SML_BENCH_MAX_ITERS)},
    {"warmup", 'w', "N", "Runs before those (default 1 training, 3 all-reduces)", 1,
     SML_NUMBER(num_warmup, 0, SML_BENCH_MAX_ITERS)},
    {"lanes", 'T', "N", "Engine threads of each worker, and of the aggregator with --local (default 1)", 5,
     SML_NUMBER(num_lanes, 1, 16)},
    {"threads", .group = 5, .kind = SML_OPTION_ALIAS},
    {"slots", 0, "N", "Chunks in flight a lane, a power of two (default: chosen at the join)", 5,
     SML_NUMBER(num_slots, 1, 32768)},
    {"no-offload", 0, NULL, "Do not use segmentation offload, as SWITCHML_NO_OFFLOAD=1", 5, SML_FLAG(no_offload)},
    {"shared-memory", 0, "yes|no",
     "Whether workers of one host share memory, as SWITCHML_SHARED_MEMORY=1 or 0 (default of a training: no)", 5,
     SML_WORD(shared_memory, no_yes)},
    {"timeout", 0, "S", "Seconds until joining or an all-reduce counts as failed (default 60)", 5,
     SML_SECONDS(timeout_ns, 0.001, 1e6)},
    {"key-file", 0, "FILE", "Keys, as SWITCHML_KEY_FILE; with --local also the aggregator's", 5, SML_TEXT(key_file)},
    {"job", 0, "NAME", "Name of the job at the aggregator (default bench, or training)", 5, SML_TEXT(job_name)},
    {"json", 'j', NULL, "Print one JSON object instead of the table", 6, SML_FLAG(is_json)},
    {0}};

const char *sml_bench_check_job(const struct sml_bench_options *o) {
  if (o->num_slots != 0 && !sml_is_pow2(o->num_slots)) return "--slots must be a power of two";
  if (o->job_name[0] == 0 || strlen(o->job_name) > 63) return "--job must have 1 to 63 bytes";
  return NULL;
}
