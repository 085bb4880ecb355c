/* SPDX-License-Identifier: Apache-2.0
 * Our ranks, each a process. */
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "cli/numerics/numerics.h"
#include "core/wire.h"

struct ours {
  const struct sml_numerics_run *run;
  struct sml_bench_options options;
  size_t *first, *starts; /* room for each size of bucket's tensors, and for where they begin in theirs */
  sml_operation **operations;
};

static bool wait_for(sml_operation **operations, size_t num) {
  bool is_ok = true;
  for (size_t i = 0; i < num; i++) {
    const sml_status status = sml_operation_wait(operations[i], SML_NEVER);
    sml_error error = SML_ERROR_INIT;
    if (status != SML_OK) sml_operation_error(operations[i], &error);
    if (status != SML_OK && is_ok) sml_bench_say("a sum failed: %s: %s", sml_status_string(status), error.detail);
    is_ok = is_ok && status == SML_OK;
    sml_operation_release(operations[i]);
  }
  return is_ok;
}

/* All buckets are under way at once, as in a backward pass. */
static bool sum_buckets(const struct ours *o, sml_job *job, uint32_t bucket_mib, const float *in, float *out) {
  const struct sml_numerics_run *r = o->run;
  const size_t num_buckets = sml_numerics_cut(r->tensor_elems, r->num_tensors, bucket_mib, o->first);
  size_t begin = 0, num_called = 0;
  for (size_t b = 0; b < num_buckets; b++) {
    size_t num_elems = 0;
    for (size_t t = o->first[b]; t < o->first[b + 1]; t++) {
      o->starts[t] = num_elems;
      num_elems += r->tensor_elems[t];
    }
    sml_operation_options options = SML_OPERATION_OPTIONS_INIT;
    options.starts = o->starts + o->first[b];
    options.num_starts = o->first[b + 1] - o->first[b];
    const sml_status status = sml_allreduce(job, in + begin, out + begin, num_elems, SML_FLOAT32, SML_SUM, &options,
                                            &o->operations[num_called]);
    if (status != SML_OK) sml_bench_say("a sum was refused: %s: %s", sml_status_string(status), sml_error_detail());
    if (status != SML_OK) break;
    begin += num_elems;
    if (++num_called % 512 == 0 && !wait_for(o->operations + num_called - 512, 512)) return false;
  }
  return wait_for(o->operations + num_called / 512 * 512, num_called % 512) && num_called == num_buckets;
}

static int run_rank(void *user, uint32_t rank) {
  struct ours *o = user;
  const struct sml_numerics_run *r = o->run;
  sml_context *context = NULL;
  sml_job *job = NULL;
  float *out = calloc(r->num_elems, sizeof *out);
  if (!out) sml_bench_say("rank %u: out of memory", rank);
  bool is_ok = out && sml_bench_join(&o->options, rank, r->num_ranks, &context, &job);
  for (uint32_t b = 0; is_ok && b < r->options->num_buckets; b++) {
    is_ok = sum_buckets(o, job, r->options->bucket_mib[b], r->memory.in + rank * r->num_elems, out);
    r->memory.checksums[rank][b] = sml_crc32c(0, out, r->num_elems * sizeof *out);
  }
  if (job) sml_job_destroy(job);
  if (context) sml_context_destroy(context);
  free(out);
  return is_ok ? SML_BENCH_OK : SML_BENCH_FAILED;
}

/* Ranks without an aggregator meet at a port that is free on all addresses, as rank 0 listens. The socket keeps it from
 * others until then, which SO_REUSEADDR on both allows. Returns the socket, or -1. */
static int hold_rendezvous(void) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
  socklen_t num_bytes = sizeof address;
  char text[32];
  const int fd = sml_fd_raise(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)) == 0 &&
      bind(fd, (struct sockaddr *)&address, num_bytes) == 0 &&
      getsockname(fd, (struct sockaddr *)&address, &num_bytes) == 0) {
    snprintf(text, sizeof text, "127.0.0.1:%u", ntohs(address.sin_port));
    if (setenv("SWITCHML_RENDEZVOUS", text, 1) == 0) return fd;
  }
  sml_bench_say("there is no free port at 127.0.0.1");
  if (fd >= 0) close(fd);
  return -1;
}

bool sml_numerics_run_ours(const struct sml_numerics_run *run, const struct sml_numerics_path *path, bool is_exact,
                           uint32_t *checksums_out) {
  struct ours o = {.run = run,
                   .options = {.num_local = run->num_ranks,
                               .is_local_worker = true,
                               .is_exact = is_exact,
                               .float_bits = 32,
                               .max_datagram_bytes = path->max_datagram_bytes,
                               .shared_memory = path->shares_memory ? SML_BENCH_YES : SML_BENCH_NO,
                               .loss = -1,
                               .timeout_ns = 60 * SML_NS_PER_S,
                               .job_name = "numerics"},
                   .first = calloc(run->num_tensors + 1, sizeof *o.first),
                   .starts = calloc(run->num_tensors, sizeof *o.starts),
                   .operations = calloc(run->num_tensors, sizeof(sml_operation *))};
  const struct sml_bench_work work = {
      .run = run_rank, .user = &o, .has_aggregator = path->has_aggregator, .limit_ns = 600 * SML_NS_PER_S};
  const int held = path->has_aggregator ? -1 : hold_rendezvous();
  bool is_ok = o.first && o.starts && o.operations && (path->has_aggregator || held >= 0) &&
               sml_bench_local_work(&o.options, &work) == SML_BENCH_OK;
  if (held >= 0) close(held);
  free(o.first);
  free(o.starts);
  free(o.operations);
  for (uint32_t b = 0; is_ok && b < run->options->num_buckets; b++) {
    checksums_out[b] = run->memory.checksums[0][b];
    for (uint32_t rank = 1; rank < run->num_ranks; rank++)
      if (run->memory.checksums[rank][b] != checksums_out[b]) is_ok = false;
    if (!is_ok) sml_bench_say("%s: ranks have different sums, which is a bug", path->name);
  }
  return is_ok;
}
