/* SPDX-License-Identifier: Apache-2.0 */
/* allreduce HOST:PORT RANK WORLD_SIZE: sums a million floats over all ranks, and prints one of the sums.
 *   cc allreduce.c $(pkg-config --cflags --libs switchml) -o allreduce */
#include <stdio.h>
#include <stdlib.h>

#include <switchml/switchml.h>

#define COUNT (1 << 20)

static int fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, sml_error_detail());
  return 1;
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: allreduce HOST:PORT RANK WORLD_SIZE\n");
    return 2;
  }
  static float in[COUNT], out[COUNT];
  for (int i = 0; i < COUNT; i++) in[i] = (float)(i % 100);

  sml_context *context = NULL;
  if (sml_context_create(NULL, &context)) return fail("sml_context_create");
  sml_job_options options = SML_JOB_OPTIONS_INIT;
  options.aggregator = argv[1];
  options.rank = (uint32_t)strtoul(argv[2], NULL, 10);
  options.world_size = (uint32_t)strtoul(argv[3], NULL, 10);
  sml_job *job = NULL;
  if (sml_job_create(context, &options, &job)) return fail("sml_job_create");

  sml_operation *operation = NULL;
  if (sml_allreduce(job, in, out, COUNT, SML_FLOAT32, SML_SUM, NULL, &operation)) return fail("sml_allreduce");
  if (sml_operation_wait(operation, UINT64_C(60000000000))) return fail("sml_operation_wait"); /* 60 s in nanoseconds */
  printf("rank %s of %s: 99 on each rank is %g in all\n", argv[2], argv[3], (double)out[99]);

  sml_operation_release(operation);
  sml_job_destroy(job);
  sml_context_destroy(context);
  return 0;
}
