/* SPDX-License-Identifier: Apache-2.0
 * Gloo and Open MPI, by a helper in Python that starts their ranks. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fd.h"
#include "cli/numerics/numerics.h"
#include "core/wire.h"

/* PyTorch may belong to the Python in PATH, or to the distribution's. */
static const char *const pythons[] = {"python3", "/usr/bin/python3"};

struct helper {
  const char *python, *library, *algorithm;
  char *file, *cuts; /* NULL: it is only asked whether the library is there */
  char num_ranks[16], num_elems[24];
};

static int exec_helper(void *user, uint32_t rank) {
  const struct helper *h = user;
  (void)rank;
  const int null = h->file ? -1 : sml_fd_raise(open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (null >= 0) dup2(null, STDERR_FILENO);
  setenv("OMP_NUM_THREADS", "1", 1);
  if (h->algorithm) setenv("OMPI_MCA_coll_tuned_use_dynamic_rules", "1", 1);
  if (h->algorithm) setenv("OMPI_MCA_coll_tuned_allreduce_algorithm", h->algorithm, 1);
  /* Its own text is sys.argv[0] there, for those that it starts. */
  static const char start[] = "import sys; sys.argv = sys.argv[1:]; exec(sys.argv[0])";
  execlp(h->python, h->python, "-c", start, sml_numerics_helper, h->library, h->file, h->num_ranks, h->num_elems,
         h->cuts, NULL);
  return SML_BENCH_FAILED;
}

static bool run_helper(struct helper *h) {
  const struct sml_bench_options one = {.num_local = 1, .loss = -1};
  const struct sml_bench_work work = {.run = exec_helper, .user = h, .limit_ns = 600 * SML_NS_PER_S};
  return sml_bench_local_work(&one, &work) == SML_BENCH_OK;
}

static const char *const names[SML_NUMERICS_NUM_LIBRARIES] = {
    [SML_NUMERICS_GLOO] = "gloo", [SML_NUMERICS_OPENMPI] = "openmpi"};

static const char *found[SML_NUMERICS_NUM_LIBRARIES]; /* the Python that has it */

const char *sml_numerics_missing(enum sml_numerics_library library) {
  for (size_t i = 0; !found[library] && i < SML_ARRAY_LEN(pythons); i++)
    if (run_helper(&(struct helper){.python = pythons[i], .library = names[library]})) found[library] = pythons[i];
  if (found[library]) return NULL;
  return library == SML_NUMERICS_GLOO ? "Gloo is left out: no python3 here has PyTorch. Install it (Debian: apt "
                                        "install python3-torch; elsewhere: "
                                        "pip install torch)"
                                      : "Open MPI is left out: there is no mpirun of Open MPI, or no python3 that "
                                        "finds libmpi. Install it (Debian: "
                                        "apt install openmpi-bin python3)";
}

/* "[[elements of a bucket, ...], for each size of bucket]". NULL: out of memory. */
static char *make_cuts(const struct sml_numerics_run *r) {
  char *text = NULL;
  size_t num_bytes = 0, *first = calloc(r->num_tensors + 1, sizeof *first);
  FILE *stream = first ? open_memstream(&text, &num_bytes) : NULL;
  for (uint32_t b = 0; stream && b < r->options->num_buckets; b++) {
    const size_t num = sml_numerics_cut(r->tensor_elems, r->num_tensors, r->options->bucket_mib[b], first);
    for (size_t i = 0; i < num; i++) {
      size_t num_elems = 0;
      for (size_t t = first[i]; t < first[i + 1]; t++) num_elems += r->tensor_elems[t];
      fprintf(stream, "%s%zu", i > 0 ? "," : b > 0 ? "],[" : "[[", num_elems);
    }
  }
  if (stream) fputs("]]", stream);
  if (stream && fclose(stream) != 0) text = NULL;
  free(first);
  return text;
}

bool sml_numerics_run_peer(const struct sml_numerics_run *run, const struct sml_numerics_peer *peer,
                           uint32_t *checksums_out) {
  const enum sml_numerics_library library = peer->library;
  char file[64];
  struct helper h = {.python = found[library],
                     .library = names[library],
                     .algorithm = peer->algorithm,
                     .file = file,
                     .cuts = make_cuts(run)};
  snprintf(file, sizeof file, "/proc/%d/fd/%d", (int)getpid(), run->memory.file);
  snprintf(h.num_ranks, sizeof h.num_ranks, "%u", run->num_ranks);
  snprintf(h.num_elems, sizeof h.num_elems, "%zu", run->num_elems);
  const bool is_ok = h.cuts && run_helper(&h);
  free(h.cuts);
  for (uint32_t b = 0; is_ok && b < run->options->num_buckets; b++)
    checksums_out[b] = sml_crc32c(0, run->memory.peers + b * run->num_elems, run->num_elems * sizeof(float));
  if (!is_ok) sml_bench_say("%s failed", sml_numerics_library_names[library]);
  return is_ok;
}
