/* SPDX-License-Identifier: Apache-2.0
 * Who runs when. A fiber that becomes runnable gets its turn after a drawn delay, so that threads meet in all
 * orders; what its work costs delays its next turn. */
#include "sim/internal.h"

#include <errno.h>
#include <stdarg.h>

struct sim_state sim;

static char *thread_detail(void) {
  return (char *)(uintptr_t)sml_error_detail(); /* libswitchml's own array, of this one real thread */
}

/* ---- turns ---- */

static uint64_t draw_delay(void) {
  const struct sim_options *o = &sim.options;
  uint64_t delay_ns = o->wake_min_ns + sml_prng_below(&sim.schedule, o->wake_spread_ns + 1);
  if (sml_prng_chance(&sim.schedule, o->late_chance)) {
    sim.counts[SIM_LATE_WAKES]++;
    delay_ns += sml_prng_below(&sim.schedule, o->late_ns + 1);
  }
  return delay_ns;
}

static void run_fiber(struct sim_fiber *f) {
  if (f->has_detail) memcpy(thread_detail(), f->detail, sizeof f->detail);
  sim.fiber = f;
  errno = f->saved_errno;
  sim_context_enter(&f->context);
  sim.fiber = NULL;
  sim.hook_depth = 0;
  if (sim.doomed != NULL) {
    struct sim_process *doomed = sim.doomed;
    sim.doomed = NULL;
    sim_reap(doomed, sim.doomed_state);
  } else if (f->is_done) {
    sim_context_release(&f->context); /* the rest is kept for whoever joins it */
  }
}

static void take_turn(struct sim_timer *timer) {
  struct sim_fiber *f = (struct sim_fiber *)timer;
  sim_note(EVENT_TURN, f->number);
  if (f->process->state == SIM_PAUSED) {
    f->is_parked = true;
    return;
  }
  run_fiber(f);
}

static void leave_fiber(struct sim_fiber *f, bool is_final) {
  char *detail = thread_detail();
  if (detail[0] != 0 || f->has_detail) {
    memcpy(f->detail, detail, sizeof f->detail);
    f->has_detail = true;
    detail[0] = 0;
  }
  f->saved_errno = errno;
  sim_context_leave(&f->context, is_final);
  errno = f->saved_errno;
}

static void enter_first_time(void) {
  sim_context_begin();
  struct sim_fiber *f = sim.fiber;
  f->result = f->start(f->argument);
  sim_end_fiber();
}

_Noreturn void sim_end_fiber(void) {
  struct sim_fiber *f = sim.fiber;
  f->is_done = true;
  sim_wake_all(&f->joiners);
  leave_fiber(f, true);
  __builtin_trap(); /* nobody enters it again */
}

struct sim_fiber *sim_fiber_create(struct sim_process *process, const char *name, void *(*start)(void *),
                                   void *argument) {
  struct sim_fiber *f = sim_take(sizeof *f);
  f->timer.fire = take_turn;
  f->process = process;
  f->number = sim.num_fibers++;
  f->start = start;
  f->argument = argument;
  (void)snprintf(f->name, sizeof f->name, "%s", name);
  struct sim_fiber **link = &process->fibers;
  while (*link != NULL) link = &(*link)->next;
  *link = f;
  process->usage.num_threads++;
  sim_context_create(&f->context, enter_first_time);
  sim_wake(f);
  return f;
}

/* ---- waiting ---- */

static void enqueue(struct sim_queue *queue, struct sim_fiber *f) {
  f->queue = queue;
  f->queue_next = NULL;
  f->queue_prev = queue->tail;
  if (queue->tail != NULL) queue->tail->queue_next = f;
  else queue->head = f;
  queue->tail = f;
}

static void dequeue(struct sim_fiber *f) {
  struct sim_queue *queue = f->queue;
  if (queue == NULL) return;
  if (f->queue_prev != NULL) f->queue_prev->queue_next = f->queue_next;
  else queue->head = f->queue_next;
  if (f->queue_next != NULL) f->queue_next->queue_prev = f->queue_prev;
  else queue->tail = f->queue_prev;
  f->queue = NULL;
}

void sim_fiber_destroy(struct sim_fiber *f) {
  sim_timer_clear(&f->timer);
  dequeue(f);
  for (struct sim_fiber **link = &f->process->fibers; *link != NULL; link = &(*link)->next) {
    if (*link != f) continue;
    *link = f->next;
    break;
  }
  f->process->usage.num_threads--;
  sim_context_release(&f->context);
  __real_free(f);
}

bool sim_block(struct sim_queue *queue, uint64_t deadline_ns) {
  struct sim_fiber *f = sim.fiber;
  f->busy_until_ns = sim.now_ns + f->debt_ns;
  f->debt_ns = 0;
  f->was_woken = false;
  if (queue != NULL) enqueue(queue, f);
  if (deadline_ns != SML_NEVER) sim_timer_set(&f->timer, sml_max_u64(deadline_ns, f->busy_until_ns));
  leave_fiber(f, false);
  dequeue(f);
  return f->was_woken;
}

void sim_wake_at(struct sim_fiber *f, uint64_t time_ns) {
  const uint64_t from_ns = sml_max_u64(sml_max_u64(time_ns, sim_local_ns()), f->busy_until_ns);
  if (f->is_parked || (f->timer.heap_idx != 0 && f->timer.at_ns <= from_ns)) return;
  const uint64_t at_ns = from_ns + draw_delay();
  if (f->timer.heap_idx == 0 || f->timer.at_ns > at_ns) sim_timer_set(&f->timer, at_ns);
}

void sim_wake(struct sim_fiber *f) {
  f->was_woken = true;
  dequeue(f);
  sim_wake_at(f, sim.now_ns);
}

void sim_wake_all(struct sim_queue *queue) {
  while (queue->head != NULL) sim_wake(queue->head);
}

void sim_wake_drawn(struct sim_queue *queue) {
  struct sim_fiber *chosen = queue->head;
  if (chosen == NULL) return;
  uint64_t num_seen = 1;
  for (struct sim_fiber *f = chosen->queue_next; f != NULL; f = f->queue_next)
    if (sml_prng_below(&sim.schedule, ++num_seen) == 0) chosen = f;
  sim_wake(chosen);
}

void sim_pay(void) {
  struct sim_fiber *f = sim.fiber;
  if (f->debt_ns > 0) (void)sim_block(NULL, sim.now_ns + f->debt_ns);
}

void sim_step(uint64_t cost_ns) {
  sim.fiber->debt_ns += cost_ns + sml_prng_below(&sim.schedule, cost_ns + 1);
  sim_pay();
}

void sim_maybe_switch(void) {
  sim.fiber->debt_ns += 20;
  if (sml_prng_chance(&sim.schedule, sim.options.switch_chance)) sim_step(draw_delay());
}

void sim_sleep_ns(uint64_t duration_ns) {
  SML_ASSERT(sim_is_inside());
  (void)sim_block(NULL, sim_local_ns() + duration_ns);
}

/* ---- the run ---- */

static double default_chance(double chance, double usual) {
  return chance == 0 ? usual : chance < 0 ? 0 : chance;
}

void sim_begin(const struct sim_options *options) {
  SML_ASSERT(!sim.is_begun);
  memset(&sim, 0, sizeof sim);
  sim.is_begun = true;
  struct sim_options *o = &sim.options;
  *o = *options;
  if (o->wake_min_ns == 0 && o->wake_spread_ns == 0 && o->late_ns == 0 && o->late_chance == 0) {
    o->wake_min_ns = SML_NS_PER_US;
    o->wake_spread_ns = 19 * SML_NS_PER_US;
    o->late_ns = 2 * SML_NS_PER_MS;
    o->late_chance = 1.0 / 500;
  }
  o->switch_chance = default_chance(o->switch_chance, 1.0 / 64);
  o->spurious_chance = default_chance(o->spurious_chance, 1.0 / 256);
  if (o->frame_ns == 0) o->frame_ns = 200;
  struct sml_prng *const streams[] = {&sim.schedule, &sim.network, &sim.system, &sim.world};
  for (size_t i = 0; i < SML_ARRAY_LEN(streams); i++) streams[i]->state = sml_mix64(o->seed * 8 + i + 1);
  sim.processes_end = &sim.processes;
  sim.digest = o->seed;
}

void sim_end(void) {
  SML_ASSERT(sim.is_begun && sim.fiber == NULL);
  sim.options.trace = NULL;
  for (struct sim_process *p = sim.processes; p != NULL; p = p->next) sim_kill(p);
  sim_streams_free();
  sim_packets_free();
  sim_hosts_free();
  while (sim.processes != NULL) {
    struct sim_process *p = sim.processes;
    sim.processes = p->next;
    sim_process_free(p);
  }
  sim_timers_reset();
  sim.is_begun = false;
}

enum sim_end_reason sim_run_until(uint64_t time_ns, bool (*is_reached)(void *user), void *user) {
  SML_ASSERT(sim.fiber == NULL);
  sim.should_stop = false;
  while (!sim.should_stop) {
    if (is_reached != NULL && is_reached(user)) return SIM_REACHED_GOAL;
    struct sim_timer *timer = sim_timers_first();
    if (timer == NULL) return SIM_IDLE;
    if (timer->at_ns > time_ns) {
      sim.now_ns = sml_max_u64(sim.now_ns, time_ns);
      return SIM_REACHED_TIME;
    }
    sim.now_ns = sml_max_u64(sim.now_ns, timer->at_ns);
    sim.num_events++;
    sim_timers_pop();
    timer->fire(timer);
  }
  return SIM_STOPPED;
}

void sim_stop(void) {
  sim.should_stop = true;
}

uint64_t sim_now_ns(void) {
  return sim_local_ns();
}

uint64_t sim_digest(void) {
  return sim.digest;
}

uint64_t sim_num_events(void) {
  return sim.num_events;
}

uint64_t sim_draw(uint64_t bound) {
  return sml_prng_below(&sim.world, bound);
}

bool sim_draw_chance(double probability) {
  return sml_prng_chance(&sim.world, probability);
}

bool sim_is_tracing(void) {
  return sim.options.trace != NULL;
}

void sim_trace(const char *format, ...) {
  if (sim.options.trace == NULL) return;
  char line[1024];
  const uint64_t now_ns = sim_local_ns();
  const struct sim_fiber *f = sim_is_inside() ? sim.fiber : NULL;
  int used = snprintf(line, sizeof line, "%4llu.%09llu %s%s%s ", (unsigned long long)(now_ns / SML_NS_PER_S),
                      (unsigned long long)(now_ns % SML_NS_PER_S), f != NULL ? f->process->name : "-",
                      f != NULL && f->name[0] != 0 ? "/" : "", f != NULL ? f->name : "");
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(line + used, sizeof line - (size_t)used, format, arguments);
  va_end(arguments);
  sim.hook_depth++;
  sim.options.trace(sim.options.trace_user, line);
  sim.hook_depth--;
}
