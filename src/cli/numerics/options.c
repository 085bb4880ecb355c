/* SPDX-License-Identifier: Apache-2.0 */
#include "base/options.h"

#include <stdio.h>

#include "cli/numerics/numerics.h"
#include "cli/training/training.h"

#define SML_OPTIONS struct sml_numerics_options
#define WRONG_RANKS "--ranks takes up to 8 numbers from 2 to 32, such as 2,4,8"
#define WRONG_BUCKETS "--buckets takes up to 8 sizes from 1 to 1024 MiB, such as 1,5,25"

static bool take_list(const char *text, uint32_t least, uint32_t most, uint32_t *list, uint32_t *num_out) {
  *num_out = 0;
  for (;;) {
    uint64_t value = 0;
    if (!sml_number_parse(text, most, &value, &text) || value < least || *num_out == SML_NUMERICS_MAX_LIST)
      return false;
    list[(*num_out)++] = (uint32_t)value;
    if (*text == '\0') return true;
    if (*text++ != ',') return false;
  }
}

static const char *take_ranks(void *options, const char *text) {
  struct sml_numerics_options *o = options;
  return take_list(text, 2, SML_NUMERICS_MAX_RANKS, o->ranks, &o->num_ranks) ? NULL : WRONG_RANKS;
}

static const char *take_buckets(void *options, const char *text) {
  struct sml_numerics_options *o = options;
  return take_list(text, 1, 1024, o->bucket_mib, &o->num_buckets) ? NULL : WRONG_BUCKETS;
}

static const struct sml_option table[] = {
    {"ranks", 0, "LIST", "How many ranks, each for itself a host (default 2,4,8)", 1, SML_TAKEN_BY(take_ranks)},
    {"buckets", 0, "LIST", "MiB of gradients that are summed at once (default 1,5,25)", 1, SML_TAKEN_BY(take_buckets)},
    {"model", 'm', "NAME", "Whose tensors; `bench training --list` prints the names (default googlenet, 25 MiB)", 1,
     SML_TEXT(model_name)},
    {"tensors", 0, "N", "Only the model's first N tensors", 1, SML_NUMBER(num_tensors, 1, 1u << 20)},
    {"seed", 0, "N", "Decides the gradients (default 1)", 1, SML_NUMBER(seed, 0, 0)},
    {"no-peers", 0, NULL, "SwitchML alone, without Gloo and Open MPI", 1, SML_FLAG(no_peers)},
    {"picture", 0, "FILE", "Draw the sums into FILE, as SVG", 2, SML_TEXT(picture_file)},
    {"json", 'j', NULL, "Print one JSON object instead of the tables", 2, SML_FLAG(is_json)},
    {0}};

static const char doc[] =
    "Sums the same gradients on this machine in many ways, and counts the different sums."
    "\vThe ways: buckets of several sizes, which have whole tensors as DistributedDataParallel's do; datagrams for an "
    "MTU of "
    "1500 and of 9000; a switchmld, none, or one host's memory; SwitchML in exact mode and in its default mode, with "
    "the "
    "tensors' starts; Gloo (by PyTorch) and Open MPI where they are installed. A sum is shown by its checksum.\n"
    "The exit status is 0 only if SwitchML has one sum in each mode, and exact mode has the exact one, 1 if not or if "
    "something failed, 2 for wrong arguments.";

void sml_numerics_options_parse(struct sml_numerics_options *o, int argc, char **argv) {
  static const struct sml_option_parser parser = {.table = table, .doc = doc};
  static char name[] = "switchml bench numerics";
  *o = (struct sml_numerics_options){.model_name = "googlenet",
                                     .ranks = {2, 4, 8},
                                     .num_ranks = 3,
                                     .bucket_mib = {1, 5, 25},
                                     .num_buckets = 3,
                                     .seed = 1};
  argv[0] = name;
  sml_options_parse(&parser, argc, argv, o);
}
