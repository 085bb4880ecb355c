/* SPDX-License-Identifier: Apache-2.0
 * sim: runs seeds of the simulator. One line a seed; a failure says what is wrong and how to see it again. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/options.h"
#include "sim/verdict.h"
#include "sim/world.h"

static char replay[256];

static void print_line(void *user, const char *line) {
  (void)user;
  puts(line);
}

struct options {
  uint64_t first_seed, last_seed;
  bool has_seed, is_verbose;
  struct sim_cuts cuts;
};

static const char *take_seeds(void *options, const char *text) {
  struct options *o = options;
  const char *end;
  o->has_seed = sml_number_parse(text, UINT64_MAX, &o->first_seed, &end);
  o->last_seed = o->first_seed;
  if (o->has_seed && *end == '-') o->has_seed = sml_number_parse(end + 1, UINT64_MAX, &o->last_seed, &end);
  return o->has_seed && *end == 0 && o->first_seed <= o->last_seed ? NULL : "seeds are like 7 or 1-100";
}

static const char *take_incidents(void *options, const char *text) {
  struct options *o = options;
  const char *end;
  uint64_t number;
  if (!sml_number_parse(text, UINT32_MAX - 1, &number, &end) || *end != 0) return "it must be a number";
  o->cuts.num_incidents = (uint32_t)number + 1; /* 0: none are left out */
  return NULL;
}

#define SML_OPTIONS struct options
static const struct sml_option table[] = {
    {"seed", 0, "N", "From which all is drawn", 1, SML_TAKEN_BY(take_seeds)},
    {"seeds", 0, "A-B", "All of these, until one fails", 1, SML_TAKEN_BY(take_seeds)},
    {"verbose", 0, NULL, "A line for each event", 1, SML_FLAG(is_verbose)},
    {NULL, 0, NULL, "Cuts make a seed's run shorter and leave its beginning as it is:", 2, .kind = SML_OPTION_FLAG},
    {"until", 0, "NS", "Faults end then", 2, SML_NUMBER(cuts.faults_end_ns, 0, 0)},
    {"max-ops", 0, "N", "Operations of a round", 2, SML_NUMBER(cuts.num_ops, 0, 0)},
    {"max-rounds", 0, "N", "Memberships of a job", 2, SML_NUMBER(cuts.num_rounds, 0, 0)},
    {"max-incidents", 0, "N", "Kills, pauses, partitions ...", 2, SML_TAKEN_BY(take_incidents)},
    {0}};

static const char *check(void *options) {
  return ((struct options *)options)->has_seed ? NULL : "--seed says which world";
}

static void write_replay(const struct options *o, uint64_t seed) {
  const struct sim_cuts *c = &o->cuts;
  size_t used = (size_t)snprintf(replay, sizeof replay, "build/sim/sim --seed %llu", (unsigned long long)seed);
#define ADD(...) used += (size_t)snprintf(replay + used, sizeof replay - used, __VA_ARGS__)
  if (c->faults_end_ns != 0) ADD(" --until %llu", (unsigned long long)c->faults_end_ns);
  if (c->num_ops != 0) ADD(" --max-ops %u", c->num_ops);
  if (c->num_rounds != 0) ADD(" --max-rounds %u", c->num_rounds);
  if (c->num_incidents != 0) ADD(" --max-incidents %u", c->num_incidents - 1);
#undef ADD
}

/* The product's assertions trap. */
static void on_crash(int number) {
  static const char text[] = "WRONG crash: the product or the simulator stopped itself; replay: ";
  if (write(STDOUT_FILENO, text, sizeof text - 1) > 0 && write(STDOUT_FILENO, replay, strlen(replay)) > 0 &&
      write(STDOUT_FILENO, "\n", 1) > 0)
    signal(number, SIG_DFL);
  signal(number, SIG_DFL);
  raise(number);
}

static void catch_crashes(void) {
  static uint8_t stack[65536];
  const stack_t alternative = {.ss_sp = stack, .ss_size = sizeof stack};
  struct sigaction action = {.sa_handler = on_crash, .sa_flags = (int)(SA_ONSTACK | SA_RESETHAND)};
  sigaltstack(&alternative, NULL);
  const int signals[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGTRAP, SIGABRT};
  for (size_t i = 0; i < SML_ARRAY_LEN(signals); i++) sigaction(signals[i], &action, NULL);
}

static void print_result(const struct sim_scenario *s, const struct sim_result *r) {
  char text[256];
  sim_scenario_describe(s, text, sizeof text);
  printf("seed=%llu %s %s datagrams=%llu events=%llu virtual_s=%.3f", (unsigned long long)s->seed,
         sim_has_failed() ? "WRONG" : "ok", text, (unsigned long long)r->datagrams, (unsigned long long)r->num_events,
         (double)r->virtual_ns / 1e9);
  printf(" ops=%llu ops-failed=%llu joins=%llu joins-failed=%llu", (unsigned long long)r->num_ops_ok,
         (unsigned long long)r->num_ops_failed, (unsigned long long)r->num_joins_ok,
         (unsigned long long)r->num_joins_failed);
  printf(" retransmissions=%llu probes=%llu repeats=%llu sums-checked=%llu one-way=%llu lanes=%llu",
         (unsigned long long)r->wire.retransmissions, (unsigned long long)r->wire.probes,
         (unsigned long long)r->wire.repeats, (unsigned long long)r->wire.sums_checked,
         (unsigned long long)r->wire.one_way, (unsigned long long)r->wire.lanes);
  for (uint32_t k = 0; k < SIM_NUM_KINDS; k++)
    if (r->kinds[k] != 0) printf(" %s=%llu", sim_kind_text((enum sim_kind)k), (unsigned long long)r->kinds[k]);
  for (uint32_t c = SIM_LOST; c < SIM_NUM_COUNTS; c++)
    if (r->counts[c] != 0) printf(" %s=%llu", sim_count_name((enum sim_count)c), (unsigned long long)r->counts[c]);
  printf(" digest=%016llx\n", (unsigned long long)r->digest);
}

static bool run(const struct options *o, uint64_t seed) {
  static struct sim_scenario scenario;
  struct sim_result result;
  write_replay(o, seed);
  sim_scenario_draw(&scenario, seed);
  sim_scenario_cut(&scenario, &o->cuts);
  sim_world_run(&scenario, o->is_verbose ? print_line : NULL, &result);
  print_result(&scenario, &result);
  if (sim_has_failed())
    printf("seed=%llu WRONG %s\nfaults-end=%llu incidents=%u\nreplay: %s --verbose\n", (unsigned long long)seed,
           sim_verdict(), (unsigned long long)scenario.faults_end_ns, scenario.num_incidents, replay);
  fflush(stdout);
  return !sim_has_failed();
}

int main(int argc, char **argv) {
  struct options options = {.first_seed = 0};
  const struct sml_option_parser parser = {
      .table = table, .doc = "Runs the shipped aggregator and library on a simulated network", .check = check};
  sml_options_parse(&parser, argc, argv, &options);
  setvbuf(stdout, NULL, _IOLBF, 0);
  catch_crashes();
  for (uint64_t seed = options.first_seed; seed <= options.last_seed; seed++)
    if (!run(&options, seed)) return 1;
  return 0;
}
