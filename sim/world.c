/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/world.h"

#include <stdio.h>
#include <stdlib.h>

#include "ctl/registry.h"
#include "sim/trust.h"
#include "sim/verdict.h"

#define GUARD_BYTES 64u
#define PATIENCE_NS (700 * SML_NS_PER_S) /* behind the last fault: more than all deadlines of a program */
#define JOIN_GRACE_NS (5 * SML_NS_PER_S) /* the daemon's, for connections that have not joined */
#define STOP_NS (3 * SML_NS_PER_S)

/* ---- processes ---- */

struct sim_trouble *sim_world_add_trouble(struct sim_world *w, enum sim_kind kind, uint32_t job, uint32_t rank) {
  SML_ASSERT(w->num_troubles < SIM_MAX_TROUBLES);
  struct sim_trouble *t = &w->troubles[w->num_troubles++];
  *t = (struct sim_trouble){.kind = kind, .job = job, .rank = rank, .from_ns = sim_now_ns(), .to_ns = SML_NEVER};
  return t;
}

/* A process's clock: the same whenever the seed is. */
static void set_clock(const struct sim_world *w, struct sim_process *process, uint64_t number) {
  struct sml_prng p = {w->scenario->seed ^ number << 32};
  if (!sim_has(w->scenario, SIM_KIND_CLOCK)) return;
  const uint64_t offset_ns = sml_prng_below(&p, 1000000) * SML_NS_PER_S + SML_NS_PER_S;
  sim_process_set_clock(process, offset_ns, (int32_t)sml_prng_below(&p, 400000) - 200000);
}

void sim_world_start_rank(struct sim_rank *r) {
  char name[48];
  snprintf(name, sizeof name, "%s/%u", r->job->spec->name, r->rank);
  r->is_running = true;
  r->is_paused = r->has_exited_early = false;
  r->doing = "begins";
  static const char *const no_one_way[] = {"SWITCHML_ONE_WAY=0", NULL};
  r->process = sim_spawn(r->host, name, sim_worker_main, r, r->job->spec->asks_one_way ? NULL : no_one_way);
  r->job->world->num_running++;
  set_clock(r->job->world, r->process, r->job->idx * 100u + r->rank + 1);
}

void sim_world_rank_ended(struct sim_rank *r) {
  if (!r->is_running) return;
  r->is_running = false;
  r->job->world->num_running--;
}

void sim_world_start_daemon(struct sim_world *w) {
  w->daemon.should_stop = false;
  sim_wire_on_daemon(w->wire);
  w->daemon.process = sim_spawn(w->daemon.host, "switchmld", sim_daemon_main, w, NULL);
  set_clock(w, w->daemon.process, 0);
}

static void fire_start(struct sim_timer *timer) {
  struct sim_rank *r = (struct sim_rank *)(void *)((uint8_t *)timer - offsetof(struct sim_rank, start));
  r->job->world->num_coming--;
  sim_world_start_rank(r);
}

/* ---- jobs ---- */

static void open_memory(struct sim_job *job) {
  const struct sim_job_spec *spec = job->spec;
  const size_t chunk_bytes = spec->max_datagram_bytes - 32;
  const size_t max_bytes = sml_max_u64(spec->max_chunks * chunk_bytes, 65536) + 8;
  const size_t num_areas = 2 * (size_t)spec->world_size * spec->num_submitters * spec->depth;
  job->area_bytes = sml_align_up(max_bytes + 2 * GUARD_BYTES + 8, 64);
  job->memory = malloc(num_areas * job->area_bytes);
  job->num_answers = spec->num_submitters * spec->depth + 1;
  SML_ASSERT(job->memory != NULL);
  for (uint32_t i = 0; i < job->num_answers; i++) {
    job->answers[i].bits = malloc(max_bytes);
    SML_ASSERT(job->answers[i].bits != NULL);
  }
}

static struct sim_host *add_host(const struct sim_world *w, const char *name, uint32_t ipv4, struct sim_link up,
                                 struct sim_link down) {
  up.faults = down.faults = (struct sim_faults){.loss = 0};
  const struct sim_host_options options = {.name = name,
                                           .ipv4 = ipv4,
                                           .up = up,
                                           .down = down,
                                           .mtu_bytes = w->scenario->mtu_bytes,
                                           .told_mtu_bytes = w->scenario->told_mtu_bytes};
  struct sim_host *host = sim_host_add(&options);
  sim_host_set_trust(host);
  return host;
}

static void open_job(struct sim_world *w, const struct sim_job_spec *spec) {
  const uint32_t idx = w->num_jobs++;
  struct sim_job *job = &w->jobs[idx];
  struct sml_prng p = {w->scenario->seed ^ 0x57a27 ^ (uint64_t)idx << 32};
  job->world = w;
  job->spec = spec;
  job->idx = idx;
  job->ranks = calloc(spec->world_size, sizeof *job->ranks);
  SML_ASSERT(job->ranks != NULL);
  open_memory(job);
  for (uint32_t rank = 0; rank < spec->world_size; rank++) {
    struct sim_rank *r = &job->ranks[rank];
    char name[48];
    snprintf(name, sizeof name, "host-%s-%u", spec->name, rank);
    r->job = job;
    r->rank = rank;
    r->doing = "has not begun";
    r->host = add_host(w, name, sim_worker_ipv4(idx, rank), w->scenario->worker_up, w->scenario->worker_down);
    r->start.fire = fire_start;
    w->num_coming++;
    sim_timer_set(&r->start, sim_now_ns() + sml_prng_below(&p, spec->start_spread_ns + 1));
  }
}

static void close_job(struct sim_job *job) {
  for (uint32_t i = 0; i < job->num_answers; i++) free(job->answers[i].bits);
  free(job->memory);
  free(job->ranks);
}

/* ---- the run ---- */

static enum sim_fate on_sent(void *user, const struct sim_datagram *datagram) {
  struct sim_world *w = user;
  sim_wire_on_sent(w->wire, datagram);
  if (w->intruder != NULL && !w->are_faults_over) sim_intruder_on_sent(w->intruder, datagram);
  return SIM_FATE_DRAWN;
}

static void on_delivered(void *user, const struct sim_datagram *datagram) {
  sim_wire_on_delivered(((struct sim_world *)user)->wire, datagram);
}

static void fire_faults_begin(struct sim_timer *timer) {
  struct sim_world *w = (struct sim_world *)(void *)((uint8_t *)timer - offsetof(struct sim_world, faults_begin));
  sim_world_set_links(w, true);
}

static void fire_faults_end(struct sim_timer *timer) {
  struct sim_world *w = (struct sim_world *)(void *)((uint8_t *)timer - offsetof(struct sim_world, faults_end));
  sim_trace("faults are over");
  w->are_faults_over = true;
  w->faults_over_ns = sim_now_ns();
  sim_world_set_links(w, false);
  sim_incidents_end_all(w);
}

static struct sim_wire *open_wire(const struct sim_scenario *s) {
  struct sim_wire_options options = {.daemon_ipv4 = SIM_DAEMON_IPV4,
                                     .first_phase = s->first_phase,
                                     .first_chunk = s->first_chunk,
                                     .num_jobs = s->num_jobs + 1};
  for (uint32_t j = 0; j < s->num_jobs; j++) {
    const struct sim_job_spec *job = &s->jobs[j];
    options.jobs[j] = (struct sim_wire_job){.world_size = job->world_size,
                                            .num_slots = job->num_slots,
                                            .has_one_way = sim_job_has_one_way(job),
                                            .may_differ = !job->has_fresh_names};
    for (uint32_t r = 0; r < job->num_rounds; r++)
      options.jobs[j].may_differ = options.jobs[j].may_differ || job->rounds[r].misdeed != SIM_MISDEED_NONE;
  }
  options.jobs[s->num_jobs] = (struct sim_wire_job){.world_size = 2, .num_slots = s->pool_slots};
  return sim_wire_create(&options);
}

static void open_world(struct sim_world *w, const struct sim_scenario *s) {
  w->scenario = s;
  w->wire = open_wire(s);
  w->scratch = malloc(sizeof *w->scratch * SIM_MAX_WORLD_SIZE * SIM_BLOCK_WORDS);
  SML_ASSERT(w->scratch != NULL);
  const struct sim_monitor monitor = {.on_sent = on_sent, .on_delivered = on_delivered, .user = w};
  sim_set_monitor(&monitor);
  w->daemon.host = add_host(w, "host-switchmld", SIM_DAEMON_IPV4, s->daemon_up, s->daemon_down);
  sim_world_start_daemon(w);
  for (uint32_t j = 0; j < s->num_jobs; j++) open_job(w, &s->jobs[j]);
  w->faults_begin.fire = fire_faults_begin;
  w->faults_end.fire = fire_faults_end;
  sim_timer_set(&w->faults_begin, s->faults_begin_ns);
  sim_timer_set(&w->faults_end, s->faults_end_ns);
  if (sim_has(s, SIM_KIND_REPLAY) || sim_has(s, SIM_KIND_FORGE)) w->intruder = sim_intruder_create(w);
  sim_incidents_init(w);
}

static void close_world(struct sim_world *w) {
  for (uint32_t j = 0; j < w->num_jobs; j++) close_job(&w->jobs[j]);
  if (w->intruder != NULL) sim_intruder_destroy(w->intruder);
  sim_wire_destroy(w->wire);
  free(w->scratch);
}

static bool are_ranks_done(void *user) {
  const struct sim_world *w = user;
  return (w->num_running == 0 && w->num_coming == 0) || sim_has_failed();
}

static void run_ranks(struct sim_world *w, uint64_t limit_ns) {
  sim_run_until(limit_ns, are_ranks_done, w);
  if (!are_ranks_done(w)) sim_check_hang(w);
}

/* ---- the end ---- */

static void check_registry(void) {
  struct sml_registry_counts c;
  if (!sim_daemon_counts(&c)) return;
  if (c.connections + c.unjoined + c.jobs_joining + c.jobs_started + c.slots_used == 0) return;
  sim_fail("leaks",
           "all ranks are gone, but the daemon has %u connections, %u joining and %u running jobs with %u slots",
           c.connections, c.jobs_joining, c.jobs_started, c.slots_used);
}

/* A job that needs every slot there is: it starts only if all came back. */
static void run_auditor(struct sim_world *w) {
  struct sim_job_spec *a = &w->auditor;
  *a = (struct sim_job_spec){.name = "auditor",
                             .world_size = 2,
                             .num_slots = w->scenario->pool_slots,
                             .max_datagram_bytes = 320,
                             .num_operations = 16,
                             .num_submitters = 1,
                             .depth = 1,
                             .max_chunks = 4,
                             .num_threads = w->scenario->daemon_lanes,
                             .lease_ns = SML_NS_PER_S,
                             .join_timeout_ns = 30 * SML_NS_PER_S,
                             .operation_timeout_ns = 60 * SML_NS_PER_S,
                             .has_fresh_names = true,
                             .num_rounds = 1};
  a->rounds[0].num_ops = 1;
  a->rounds[0].ops[0] = (struct sim_op_spec){.type = SML_INT32, .size_rule = SIM_SIZE_LONG};
  open_job(w, a);
  run_ranks(w, sim_now_ns() + 120 * SML_NS_PER_S);
}

static void check_leaks(const struct sim_process *process) {
  struct sim_usage leaks;
  sim_process_leaks(process, &leaks);
  if (leaks.heap_bytes == 0 && leaks.num_threads == 0 && leaks.num_descriptors == 0 && leaks.num_data_sockets == 0)
    return;
  sim_fail("leaks", "%s ended with %llu bytes in %llu blocks, %u threads, %u descriptors, %u data sockets",
           sim_process_name(process), (unsigned long long)leaks.heap_bytes, (unsigned long long)leaks.num_allocations,
           leaks.num_threads, leaks.num_descriptors, leaks.num_data_sockets);
}

static bool has_daemon_ended(void *user) {
  const struct sim_world *w = user;
  return sim_process_state(w->daemon.process) == SIM_EXITED || sim_has_failed();
}

static void stop_daemon(struct sim_world *w) {
  w->daemon.should_stop = true;
  sim_run_until(sim_now_ns() + STOP_NS, has_daemon_ended, w);
  if (!has_daemon_ended(w)) sim_fail("liveness", "the daemon does not end when it is told to");
}

static void finish(struct sim_world *w) {
  uint64_t lease_ns = JOIN_GRACE_NS;
  for (uint32_t j = 0; j < w->num_jobs; j++) lease_ns = sml_max_u64(lease_ns, w->jobs[j].spec->lease_ns);
  if (!w->are_faults_over) {
    sim_timer_clear(&w->faults_end);
    fire_faults_end(&w->faults_end);
  }
  sim_run_until(sim_now_ns() + lease_ns + 2500 * SML_NS_PER_MS, NULL, NULL);
  if (!sim_has_failed()) sim_check_jobs(w);
  if (!sim_has_failed()) sim_check_storm(w);
  if (!sim_has_failed()) check_registry();
  if (!sim_has_failed()) run_auditor(w);
  if (!sim_has_failed()) stop_daemon(w);
  if (sim_has_failed()) return;
  check_leaks(w->daemon.process);
  for (uint32_t j = 0; j < w->num_jobs; j++) {
    for (uint32_t r = 0; r < w->jobs[j].spec->world_size; r++) {
      const struct sim_rank *rank = &w->jobs[j].ranks[r];
      if (!rank->has_exited_early && sim_process_state(rank->process) == SIM_EXITED) check_leaks(rank->process);
    }
  }
}

static void report(const struct sim_world *w, struct sim_result *out) {
  *out = (struct sim_result){.digest = sim_digest(),
                             .virtual_ns = sim_now_ns(),
                             .datagrams = sim_count(SIM_DATAGRAMS_SENT),
                             .num_events = sim_num_events(),
                             .wire = *sim_wire_counts(w->wire),
                             .num_ops_ok = w->num_ops_ok,
                             .num_ops_failed = w->num_ops_failed,
                             .num_joins_ok = w->num_joins_ok,
                             .num_joins_failed = w->num_joins_failed};
  for (uint32_t c = 0; c < SIM_NUM_COUNTS; c++) out->counts[c] = sim_count((enum sim_count)c);
  for (uint32_t t = 0; t < w->num_troubles; t++) out->kinds[w->troubles[t].kind]++;
  out->kinds[SIM_KIND_EPOCH] = out->wire.renewals;
  out->kinds[SIM_KIND_CLOCK] = sim_has(w->scenario, SIM_KIND_CLOCK);
  out->kinds[SIM_KIND_CAPACITY] = sim_has(w->scenario, SIM_KIND_CAPACITY) ? w->num_refusals : 0;
  out->kinds[SIM_KIND_HASTE] = sim_has(w->scenario, SIM_KIND_HASTE) ? w->num_ops_failed : 0;
  if (w->intruder == NULL) return;
  out->kinds[SIM_KIND_REPLAY] = sim_intruder_count(w->intruder, SIM_KIND_REPLAY);
  out->kinds[SIM_KIND_FORGE] = sim_intruder_count(w->intruder, SIM_KIND_FORGE);
}

void sim_world_run(const struct sim_scenario *s, void (*trace)(void *user, const char *line),
                   struct sim_result *result_out) {
  static struct sim_world world;
  struct sim_world *w = &world;
  memset(w, 0, sizeof *w);
  sim_verdict_reset();
  struct sim_options options = s->options;
  options.trace = trace;
  sim_begin(&options);
  open_world(w, s);
  run_ranks(w, s->faults_end_ns + PATIENCE_NS);
  if (!sim_has_failed()) finish(w);
  report(w, result_out);
  sim_end();
  close_world(w);
}
