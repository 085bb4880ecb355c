/* SPDX-License-Identifier: Apache-2.0
 * What goes wrong at a moment and is made good at another: processes, hosts, partitions. */
#include "sim/world.h"

#define GRACE_RESTART_NS (10 * SML_NS_PER_MS)

static struct sim_rank *rank_of(const struct sim_incident_run *run) {
  return &run->world->jobs[run->incident->job].ranks[run->incident->rank];
}

static bool is_of_daemon(enum sim_kind kind) {
  return kind == SIM_KIND_DAEMON_KILL || kind == SIM_KIND_DAEMON_STOP || kind == SIM_KIND_DAEMON_PAUSE;
}

static bool is_daemon_running(const struct sim_world *w) {
  return sim_process_state(w->daemon.process) == SIM_RUNNING;
}

static void cut(const struct sim_incident_run *run, bool is_cut) {
  sim_cut(rank_of(run)->host, run->world->daemon.host, is_cut);
  if (!run->incident->is_one_way) sim_cut(run->world->daemon.host, rank_of(run)->host, is_cut);
}

static void kill_rank(struct sim_rank *r) {
  r->attempts[r->round].was_killed = true;
  r->doing = "was killed";
  sim_world_rank_ended(r);
  sim_kill(r->process);
}

/* ---- ends ---- */

static void come_back(struct sim_incident_run *run) {
  struct sim_rank *r = rank_of(run);
  run->world->num_coming--;
  r->round++;
  sim_world_start_rank(r);
}

static void end(struct sim_incident_run *run) {
  struct sim_world *w = run->world;
  if (!run->is_on) return;
  run->is_on = false;
  run->trouble->to_ns = sim_now_ns();
  sim_trace("end of %s", sim_kind_text(run->incident->kind));
  switch (run->incident->kind) {
    case SIM_KIND_CUT: cut(run, false); break;
    case SIM_KIND_PAUSE:
      rank_of(run)->is_paused = false;
      sim_resume(rank_of(run)->process);
      break;
    case SIM_KIND_KILL: come_back(run); break;
    case SIM_KIND_DAEMON_PAUSE: sim_resume(w->daemon.process); break;
    default: sim_world_start_daemon(w);
  }
}

static void fire_end(struct sim_timer *timer) {
  end((struct sim_incident_run *)(void *)((uint8_t *)timer - offsetof(struct sim_incident_run, end)));
}

/* ---- begins ---- */

/* False: it does not apply, since who it is about is not running. */
static bool begin(struct sim_incident_run *run) {
  struct sim_world *w = run->world;
  struct sim_rank *r = rank_of(run);
  switch (run->incident->kind) {
    case SIM_KIND_CUT: cut(run, true); return true;
    case SIM_KIND_PAUSE:
      if (!r->is_running || r->is_paused) return false;
      r->is_paused = true;
      sim_pause(r->process);
      return true;
    case SIM_KIND_KILL:
      if (!r->is_running || r->is_paused) return false;
      kill_rank(r);
      return true;
    case SIM_KIND_HOST:
      if (!r->is_running || r->is_paused) return false;
      r->is_host_dead = true;
      kill_rank(r);
      sim_host_set_dead(r->host, true);
      return true;
    case SIM_KIND_DAEMON_KILL:
      if (!is_daemon_running(w) || w->daemon.should_stop) return false;
      sim_kill(w->daemon.process);
      return true;
    case SIM_KIND_DAEMON_STOP:
      if (!is_daemon_running(w) || w->daemon.should_stop) return false;
      w->daemon.should_stop = true;
      return true;
    case SIM_KIND_DAEMON_PAUSE:
      if (!is_daemon_running(w) || w->daemon.should_stop) return false;
      sim_pause(w->daemon.process);
      return true;
    default: return false;
  }
}

/* Whether somebody will come back after it: a killed process does for the next round. */
static bool has_end(const struct sim_incident_run *run) {
  const enum sim_kind kind = run->incident->kind;
  if (kind == SIM_KIND_HOST) return false;
  if (kind != SIM_KIND_KILL) return true;
  const struct sim_rank *r = rank_of(run);
  return run->incident->duration_ns != SML_NEVER && r->round + 1 < r->job->spec->num_rounds;
}

static void fire_begin(struct sim_timer *timer) {
  struct sim_incident_run *run =
      (struct sim_incident_run *)(void *)((uint8_t *)timer - offsetof(struct sim_incident_run, begin));
  const struct sim_incident *incident = run->incident;
  if (run->world->are_faults_over || !begin(run)) return;
  const bool is_global = is_of_daemon(incident->kind);
  sim_trace("begin of %s", sim_kind_text(incident->kind));
  run->trouble = sim_world_add_trouble(run->world, incident->kind, is_global ? SIM_ALL_JOBS : incident->job,
                                       is_global ? SIM_ALL_RANKS : incident->rank);
  if (!has_end(run)) return;
  run->is_on = true;
  if (incident->kind == SIM_KIND_KILL) run->world->num_coming++;
  uint64_t duration_ns = incident->duration_ns;
  if (incident->kind == SIM_KIND_DAEMON_STOP) duration_ns = sml_max_u64(duration_ns, 500 * SML_NS_PER_MS);
  sim_timer_set(&run->end, sim_now_ns() + duration_ns);
}

/* ---- the world's ---- */

void sim_incidents_init(struct sim_world *w) {
  const struct sim_scenario *s = w->scenario;
  for (uint32_t i = 0; i < s->num_incidents; i++) {
    struct sim_incident_run *run = &w->incidents[i];
    run->world = w;
    run->incident = &s->incidents[i];
    run->begin.fire = fire_begin;
    run->end.fire = fire_end;
    if (!run->incident->is_at_op) sim_timer_set(&run->begin, run->incident->at_ns);
  }
}

void sim_incidents_on_submit(struct sim_rank *r, uint32_t op) {
  struct sim_world *w = r->job->world;
  for (uint32_t i = 0; i < w->scenario->num_incidents; i++) {
    struct sim_incident_run *run = &w->incidents[i];
    const struct sim_incident *incident = run->incident;
    if (!incident->is_at_op || run->has_begun || w->are_faults_over) continue;
    if (incident->job != r->job->idx || incident->rank != r->rank || incident->round != r->round) continue;
    if (incident->op != op) continue;
    run->has_begun = true;
    sim_timer_set(&run->begin, sim_now_ns() + incident->at_ns);
  }
}

void sim_incidents_end_all(struct sim_world *w) {
  for (uint32_t i = 0; i < w->scenario->num_incidents; i++) {
    struct sim_incident_run *run = &w->incidents[i];
    sim_timer_clear(&run->begin);
    if (!run->is_on) continue;
    const enum sim_kind kind = run->incident->kind;
    if (kind == SIM_KIND_KILL) continue; /* comes back when it is due */
    if (kind == SIM_KIND_DAEMON_STOP && sim_process_state(w->daemon.process) == SIM_RUNNING) {
      sim_timer_set(&run->end, sim_now_ns() + SML_NS_PER_S); /* it is still at it */
      continue;
    }
    sim_timer_clear(&run->end);
    end(run);
  }
}

void sim_world_set_links(struct sim_world *w, bool with_faults) {
  const struct sim_scenario *s = w->scenario;
  struct sim_link up = s->worker_up, down = s->worker_down, daemon_up = s->daemon_up, daemon_down = s->daemon_down;
  if (!with_faults) {
    struct sim_link *const links[] = {&up, &down, &daemon_up, &daemon_down};
    for (size_t i = 0; i < SML_ARRAY_LEN(links); i++) {
      links[i]->faults = (struct sim_faults){.loss = 0};
      if (w->are_faults_over) links[i]->queue_bytes = 0;
    }
  }
  sim_host_set_links(w->daemon.host, &daemon_up, &daemon_down);
  for (uint32_t j = 0; j < w->num_jobs; j++)
    for (uint32_t r = 0; r < w->jobs[j].spec->world_size; r++) sim_host_set_links(w->jobs[j].ranks[r].host, &up, &down);
}
