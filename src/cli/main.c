/* SPDX-License-Identifier: Apache-2.0
 * The command `switchml`: finds the subcommand and hands over. */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/fd.h"
#include "base/text.h"
#include "cli/bench/bench.h"
#include "cli/conform/conform.h"
#include "cli/doctor/doctor.h"
#include "cli/evict.h"
#include "cli/genkey.h"
#include "cli/numerics/numerics.h"
#include "cli/status/status.h"
#include "cli/trace/trace.h"
#include "cli/training/training.h"

static int run_bench(int argc, char **argv) {
  static struct sml_bench_options options;
  argp_err_exit_status = SML_BENCH_USAGE;
  if (argc > 1 && strcmp(argv[1], "numerics") == 0) return sml_numerics_main(argc - 1, argv + 1);
  const int at = argc > 1 && strcmp(argv[1], "--local-worker") == 0 ? 2 : 1;
  if (argc > at && strcmp(argv[at], "training") == 0) return sml_training_run(argc, argv, at);
  sml_bench_options_parse(&options, argc, argv);
  if (options.num_local != 0 && !options.is_local_worker) return sml_bench_local(&options, argc, argv);
  return sml_bench_worker(&options);
}

static const struct command {
  const char *name;
  int (*run)(int argc, char **argv);
} commands[] = {{"bench", run_bench},     {"conform", sml_conform_run}, {"doctor", sml_doctor_run},
                {"evict", sml_evict_run}, {"genkey", sml_genkey_run},   {"status", sml_status_run},
                {"top", sml_top_run},     {"trace", sml_trace_main}};
static char help_option[] = "--help";
#define COMMAND_NAMES "bench, conform, doctor, evict, genkey, status, top, trace"

struct command_line {
  const struct command *command;
  int argc; /* from the subcommand on */
  char **argv;
};

static const char doc[] =
    "All-reduce by in-network aggregation."
    "\vCommands:\n"
    "  bench    time all-reduces and check every result; `bench training`: the gradients of real networks;\n"
    "           `bench numerics`: is a sum the same, however it is made?\n"
    "  conform  does an aggregator answer each packet as the protocol says?\n"
    "  doctor   what keeps this host from summing, or makes it slow\n"
    "  evict    end a job by hand\n"
    "  genkey   make a key, for a key file\n"
    "  status   what an aggregator does, and who is late or lost\n"
    "  top      the same, again each second\n"
    "  trace    show what flight recorders have kept\n\n"
    "`switchml help COMMAND` says more. The aggregator is a command of its own, switchmld(1).";

static const struct command *find_command(const char *name, struct argp_state *state) {
  uint32_t least = 3; /* further off, nothing is meant */
  const char *nearest = NULL;
  for (size_t i = 0; i < SML_ARRAY_LEN(commands); i++) {
    const uint32_t distance = sml_text_distance(name, commands[i].name);
    if (distance == 0) return &commands[i];
    if (distance >= least) continue;
    least = distance;
    nearest = commands[i].name;
  }
  if (nearest) argp_error(state, "there is no command '%s': do you mean '%s'?", name, nearest);
  else argp_error(state, "there is no command '%s'; there are: " COMMAND_NAMES, name);
  return NULL;
}

/* `help` is --help, and `help COMMAND` is `COMMAND --help`. */
static void take_command(struct command_line *line, const char *name, struct argp_state *state) {
  static char *help[3];
  line->argc = state->argc - state->next + 1;
  line->argv = &state->argv[state->next - 1];
  state->next = state->argc; /* the rest is the subcommand's */
  if (strcmp(name, "help") != 0) {
    line->command = find_command(name, state);
    return;
  }
  if (line->argc == 1) argp_state_help(state, stdout, ARGP_HELP_STD_HELP); /* ends here */
  line->command = find_command(line->argv[1], state);
  help[0] = line->argv[1];
  help[1] = help_option;
  line->argc = 2;
  line->argv = help;
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
  struct command_line *line = state->input;
  switch (key) {
    case ARGP_KEY_ARG: take_command(line, text, state); return 0;
    case ARGP_KEY_NO_ARGS: argp_error(state, "no command; there are: " COMMAND_NAMES); return 0;
    default: return ARGP_ERR_UNKNOWN;
  }
}

static void print_version(FILE *stream, struct argp_state *state) {
  (void)state;
  fprintf(stream, "switchml %s (libswitchml %s)\n", SML_VERSION_TEXT, sml_version());
}

int main(int argc, char **argv) {
  sml_fd_fill_standard();
  static const struct argp parser = {.parser = parse_option, .args_doc = "COMMAND [OPTION...]", .doc = doc};
  struct command_line line = {0};
  static char name[64];
  argp_program_version_hook = print_version;
  argp_err_exit_status = SML_BENCH_USAGE;
  if (argp_parse(&parser, argc, argv, ARGP_IN_ORDER, NULL, &line) != 0) return SML_BENCH_USAGE;
  snprintf(name, sizeof name, "switchml %s", line.command->name);
  line.argv[0] = name; /* for its "Usage:" */
  return line.command->run(line.argc, line.argv);
}
