/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/job.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "base/thread.h"
#include "lib/exact_operation.h"
#include "lib/operation.h"
#include "lib/trace.h"
#include "lib/uncancelled.h"
#include "meet/embedded.h"
#include "meet/job_settings.h"
#include "meet/rendezvous.h"
#include "meet/types.h"
#include "method/alone.h"
#include "method/combine.h"
#include "method/memory.h"

#define LINGER_NS (5 * SML_NS_PER_S)
/* Between heartbeats that tell of completed operations, if inputs are kept until all have told. */
#define BUSY_HEARTBEAT_NS (50 * SML_NS_PER_MS)
#define EMBEDDED_LOOK_NS (1 * SML_NS_PER_MS) /* between looks at what ranks have told the shard in this process */
#define ABORT_SENT_NS (1 * SML_NS_PER_S) /* the control thread is at it; this is for a machine at its limit \
                                          */

/* The engines of the address's family, started if they are not. */
static sml_status find_engines(struct sml_context *context, const struct sml_addr *addr,
                               struct sml_engines **engines_out) {
  const struct sockaddr *a = (const struct sockaddr *)(const void *)addr->bytes;
  struct sml_engines *engines = &context->engines[a->sa_family == AF_INET6 ? 1 : 0];
  sml_status status = SML_OK;
  sml_fork_lock();
  if (engines->num_engines == 0) status = sml_engines_start(engines, &context->settings, a->sa_family);
  sml_fork_unlock();
  *engines_out = engines;
  return status;
}

static void add_to_context(struct sml_context *context, struct sml_job *job) {
  pthread_mutex_lock(&context->lock);
  job->next = context->jobs;
  context->jobs = job;
  pthread_mutex_unlock(&context->lock);
}

static void remove_from_context(struct sml_context *context, struct sml_job *job) {
  pthread_mutex_lock(&context->lock);
  for (struct sml_job **link = &context->jobs; *link; link = &(*link)->next) {
    if (*link != job) continue;
    *link = job->next;
    break;
  }
  pthread_mutex_unlock(&context->lock);
}

static struct sml_job *make_job(struct sml_context *context, const struct sml_job_settings *s) {
  struct sml_job *job = calloc(1, sizeof *job);
  if (job == NULL) return NULL;
  job->recorder = sml_settings_make_recorder(&context->settings, 0);
  if (job->recorder == NULL) {
    free(job);
    return NULL;
  }
  for (uint32_t i = 0; i < SML_MAX_SHARDS; i++) atomic_init(&job->trace_numbers[i], UINT16_MAX);
  job->context = context;
  job->state.rank = s->options.rank;
  job->state.world_size = s->options.world_size;
  job->operation_timeout_ns = s->options.operation_timeout_ns;
  job->num_slots_asked = s->options.num_slots;
  job->state.retry.retry_ns = s->options.retry_ns;
  job->shape = (struct sml_job_shape){.rank = job->state.rank,
                                      .world_size = job->state.world_size,
                                      .formats = sml_types_of_features(s->features),
                                      .is_exact = (s->features & SML_FEATURE_EXACT) != 0,
                                      .lanes = &job->lanes};
  snprintf(job->state.name, sizeof job->state.name, "%s", s->name);
  pthread_mutex_init(&job->lock, NULL);
  sml_thread_init_cond(&job->changed);
  job->retained.lock = &job->lock;
  job->batch = (struct sml_batch){.lock = &job->lock, .context = context, .world_size = job->state.world_size};
  job->lanes.method =
      (struct sml_method){.ops = &sml_alone, .owner_ops = &sml_job_owner_ops, .owner = job, .lock = &job->lock};
  job->method = &job->lanes.method;
  add_to_context(context, job);
  return job;
}

/* As many of them as find room. */
static void list_aggregators(const struct sml_shard_places *places, char *text, size_t room) {
  char place[INET6_ADDRSTRLEN + 24] = "";
  size_t num_bytes = 0;
  for (uint32_t i = 0; i < places->num_shards; i++) {
    sml_addr_format(&places->shards[i].addrs[0], place, sizeof place);
    if (num_bytes + strlen(place) + 2 > room) return;
    num_bytes += (size_t)snprintf(text + num_bytes, room - num_bytes, "%s%s", i > 0 ? " " : "", place);
  }
}

static struct sml_member_options make_member_options(const struct sml_job *job, const struct sml_job_settings *s,
                                                     uint32_t index) {
  const sml_job_options *o = &s->options;
  const struct sml_shard_places *places = &s->places;
  const struct sml_shard_place *place = &places->shards[index];
  struct sml_member_options member = {
      .join = {.rank = o->rank,
               .world_size = o->world_size,
               .num_lanes = sml_min_u32(job->engines->num_engines, SML_MAX_JOB_LANES / places->num_shards),
               .num_slots = sml_shards_num_slots(o->num_slots, places->num_shards),
               .max_datagram_bytes = o->max_datagram_bytes,
               .lease_ns = o->lease_ns,
               .features = s->features | SML_FEATURE_SWITCH | (s->no_one_way ? 0 : SML_FEATURE_ONE_WAY),
               .host = {s->host[0], s->host[1]},
               .shard = index,
               .num_shards = places->num_shards > 1 ? places->num_shards : 0},
      .num_addresses = place->num_addrs,
      .is_keyed = s->key_name[0] != 0,
      .busy_heartbeat_ns = o->retry_ns != 0 ? BUSY_HEARTBEAT_NS : 0,
      /* Grace periods are added to it later. */
      .deadline_ns = sml_min_u64(sml_deadline_after(sml_clock_ns(), o->join_timeout_ns), SML_NEVER / 2)};
  member.join.is_combining = (s->host[0] | s->host[1]) != 0 && o->retry_ns == 0 && !s->no_combining;
  snprintf(member.aggregator, sizeof member.aggregator, "%s", place->text);
  memcpy(member.join.job_name, s->name, sizeof member.join.job_name);
  memcpy(member.join.key_name, s->key_name, sizeof member.join.key_name);
  if (places->num_shards > 1) list_aggregators(places, member.join.aggregators, sizeof member.join.aggregators);
  return member;
}

static void init_session(struct sml_job *job, const struct sml_job_settings *s, uint32_t index) {
  struct sml_session *session = &job->shards[index].session;
  const struct sml_shard_place *place = &s->places.shards[index];
  struct sml_session_options options = {.member = make_member_options(job, s, index),
                                        .control = &job->context->control,
                                        .engines = job->engines,
                                        .process_rank = place->process_rank,
                                        .no_multicast = s->no_multicast,
                                        .events = &sml_job_events,
                                        .user = &job->shards[index]};
  memcpy(options.addrs, place->addrs, sizeof options.addrs);
  sml_session_init(session, &options);
  session->options.key = s->key; /* not on the way through here: it would stay on the stack */
}

static sml_status serve(struct sml_job *job, const struct sml_job_settings *s, struct sml_engines *engines) {
  const uint32_t num_shards = s->places.num_shards;
  job->shards = calloc(num_shards, sizeof *job->shards);
  job->state.shards = calloc(num_shards, sizeof *job->state.shards);
  if (job->shards == NULL || job->state.shards == NULL)
    return sml_fail(SML_ERR_NO_MEMORY, "no memory for %u control connections", num_shards);
  job->state.num_shards = num_shards;
  job->engines = engines;
  sml_job_lanes_init(&job->lanes, engines, &job->context->settings, job->state.rank, job->state.world_size, num_shards);
  for (uint32_t i = 0; i < num_shards; i++) {
    struct sml_job_shard *shard = &job->shards[i];
    shard->job = job;
    shard->index = i;
    job->state.shards[i].member = &shard->session.member;
    job->state.shards[i].process_rank = s->places.shards[i].process_rank;
    init_session(job, s, i);
  }
  /* Any of them may fail the job, and then all are looked at. */
  for (uint32_t i = 0; i < num_shards; i++)
    sml_control_serve(&job->context->control, &job->shards[i].session);
  return SML_OK;
}

/* How it sums, as START says: in memory that ranks share, if they are on one host or some of them are. */
static sml_status choose_method(struct sml_job *job, uint64_t deadline_ns) {
  const struct sml_driver_options options = {.owner = &job->lanes.method,
                                             .lanes = &job->lanes,
                                             .start = &job->state.start,
                                             .welcome = &job->shards[0].session.member.welcome,
                                             .kernels = job->context->settings.kernels,
                                             .deadline_ns = deadline_ns};
  if (!job->state.start.is_one_host && job->state.start.num_ranks == 0) return SML_OK;
  struct sml_method *method = job->state.start.is_one_host ? sml_memory_open(&options) : sml_combine_open(&options);
  pthread_mutex_lock(&job->lock);
  if (method != NULL) job->method = method;
  const sml_status status = sml_job_report_locked(job);
  const struct sml_ctl_rank_gone *gone = &job->state.gone;
  for (uint32_t i = 0; job->state.has_gone_rank && i < gone->num_ranks; i++)
    if (gone->ranks[i] < job->state.world_size && job->method->ops->set_gone != NULL)
      job->method->ops->set_gone(job->method, gone->ranks[i]);
  pthread_mutex_unlock(&job->lock);
  return status;
}

/* Blocks until the job runs or failed; the sessions' own deadline bounds it. */
static sml_status join(struct sml_job *job, const struct sml_job_settings *s) {
  struct sml_engines *engines;
  sml_status status = find_engines(job->context, &s->places.shards[0].addrs[0], &engines);
  if (status == SML_OK) status = serve(job, s, engines);
  if (status != SML_OK) return status;
  pthread_mutex_lock(&job->lock);
  while (job->state.phase == SML_MEMBER_IS_JOINING) pthread_cond_wait(&job->changed, &job->lock);
  status = sml_job_report_locked(job);
  pthread_mutex_unlock(&job->lock);
  if (status != SML_OK) return status;
  return choose_method(job, sml_deadline_after(sml_clock_ns(), s->options.join_timeout_ns));
}

static sml_status create_alone(struct sml_context *context, const struct sml_job_settings *s,
                               sml_job **job_out) {
  struct sml_job *job = make_job(context, s);
  if (job == NULL) return sml_fail(SML_ERR_NO_MEMORY, "no memory for a job");
  job->state.phase = SML_MEMBER_IS_RUNNING;
  *job_out = job;
  return SML_OK;
}

/* Collective but for what is wrong with this rank's call by itself. */
static sml_status create(struct sml_context *context, struct sml_job_settings *s, sml_job **job_out) {
  sml_status status = sml_job_settings_check(s);
  if (context->settings.has_faults) memset(s->host, 0, sizeof s->host); /* they are made in packets */
  if (s->options.world_size == 1) return status == SML_OK ? create_alone(context, s, job_out) : status;
  /* Now, so that the others need not wait for a rank that can't start them. */
  struct sml_engines *engines;
  if (status == SML_OK && s->places.num_shards > 0)
    status = find_engines(context, &s->places.shards[0].addrs[0], &engines);
  /* From here on the other ranks hear of what fails here. */
  status = sml_job_settings_exchange(s, status);
  if (status != SML_OK) return status;
  struct sml_embedded *embedded = NULL;
  if (s->places.num_shards == 0) status = sml_embedded_arrange(s, &context->settings, &embedded);
  if (status != SML_OK) return status;
  struct sml_job *job = make_job(context, s);
  if (job != NULL) job->embedded = embedded;
  else sml_embedded_stop(embedded);
  status = job != NULL ? join(job, s) : sml_fail(SML_ERR_NO_MEMORY, "no memory for a job");
  status = sml_job_settings_agree(s, status);
  if (status == SML_OK) {
    *job_out = job;
    return SML_OK;
  }
  if (job != NULL) {
    char detail[SML_ERROR_DETAIL_BYTES];
    snprintf(detail, sizeof detail, "%s", sml_error_detail());
    sml_job_destroy(job);
    sml_fail(status, "%s", detail);
  }
  return status;
}

sml_status sml_job_create(sml_context *context, const sml_job_options *options, sml_job **job_out) {
  SML_UNCANCELLED;
  if (job_out == NULL) return sml_fail(SML_ERR_INVALID_ARGUMENT, "job_out is NULL");
  *job_out = NULL;
  if (context == NULL) return sml_fail(SML_ERR_INVALID_ARGUMENT, "context is NULL");
  if (options == NULL)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "options is NULL: rank and world_size are needed");
  if (sml_context_is_forked(context)) return sml_context_fail_forked();
  struct sml_job_settings s; /* 25 KB */
  sml_status status = sml_job_settings_read(options, &s);
  if (status != SML_OK) return status;
  sml_job_options *o = &s.options;
  if (s.rank_source != NULL && context->settings.log_level >= SML_LIB_LOG_INFO) {
    char text[96];
    snprintf(text, sizeof text, "rank %u of %u, by %s", o->rank, o->world_size, s.rank_source);
    sml_lib_log_line(SML_LIB_LOG_INFO, o->rank, text);
  }
  struct sml_rendezvous rendezvous;
  sml_rendezvous_init(&rendezvous, &s);
  if (rendezvous.address != NULL && o->allgather == NULL && o->aggregator[0] == 0) {
    o->allgather = sml_rendezvous_gather;
    o->allgather_user = &rendezvous;
    s.has_rendezvous = true;
  }
  status = create(context, &s, job_out);
  sml_rendezvous_close(&rendezvous);
  sml_key_wipe(&s.key, sizeof s.key);
  return status;
}

static int await_change(struct sml_job *job, uint64_t deadline_ns) {
  const struct timespec deadline = sml_timespec(deadline_ns);
  return pthread_cond_timedwait(&job->changed, &job->lock, &deadline);
}

/* What the others lack still. */
static bool is_needed(const struct sml_job *job) {
  if (job->state.oldest != NULL) return true;
  if (job->embedded != NULL) return sml_aggd_lowest_completed(job->embedded->aggd) < job->state.next_number;
  return job->state.retry.confirmed_operation < job->state.next_number && !job->state.has_gone_rank;
}

/* Should the aggregator be lost now, then the others need what is kept here: as long as they may lack a result, and
 * none of them is gone, without which they can't get it. And if the aggregator is in this process, it goes with it: as
 * long as a rank that is there has not said that it has all results. */
static void linger(struct sml_job *job) {
  const uint64_t deadline_ns = sml_clock_ns() + LINGER_NS;
  int error = 0;
  job->is_lingering = true;
  sml_control_wake(&job->context->control);
  while (job->state.phase != SML_MEMBER_HAS_FAILED && error == 0 && is_needed(job)) {
    const uint64_t look_ns = job->embedded != NULL ? sml_clock_ns() + EMBEDDED_LOOK_NS : SML_NEVER;
    error = await_change(job, sml_min_u64(look_ns, deadline_ns));
    if (look_ns < deadline_ns) error = 0;
  }
}

static void leave(struct sml_job *job) {
  pthread_mutex_lock(&job->lock);
  const bool keeps = job->state.retry.retry_ns != 0 || job->embedded != NULL;
  if (keeps && sml_member_job_first_unfinished(&job->state) == job->state.next_number) linger(job);
  if (job->state.oldest != NULL || job->batch.open != NULL) {
    /* The aggregator tells the others which rank it was. */
    const struct sml_ctl_abort failure =
        sml_member_failure(SML_ERR_ABORTED, "it destroyed its job with operations outstanding");
    sml_job_fail_locked(job, &failure, true);
  }
  while (job->state.oldest != NULL) pthread_cond_wait(&job->changed, &job->lock); /* engines end them at once */
  job->wants_leave = true;
  sml_control_wake(&job->context->control);
  while (!job->is_closed) pthread_cond_wait(&job->changed, &job->lock);
  pthread_mutex_unlock(&job->lock);
}

void sml_job_destroy(sml_job *job) {
  SML_UNCANCELLED;
  if (job == NULL || sml_context_is_forked(job->context)) return;
  if (job->engines != NULL) leave(job);
  if (job->method->ops->close != NULL) job->method->ops->close(job->method);
  sml_embedded_stop(job->embedded);
  remove_from_context(job->context, job);
  sml_retained_free_all(&job->retained);
  if (job->shards != NULL) sml_key_wipe(job->shards, job->state.num_shards * sizeof *job->shards);
  free(job->shards);
  free(job->state.shards);
  sml_batch_free_all(&job->batch);
  sml_exact_operation_free(job->spare_exact);
  pthread_cond_destroy(&job->changed);
  pthread_mutex_destroy(&job->lock);
  sml_recorder_destroy(job->recorder);
  free(job);
}

/* Who aborts often exits next, and the reason would be lost with the process. */
static void await_abort_sent(struct sml_job *job) {
  const uint64_t deadline_ns = sml_clock_ns() + ABORT_SENT_NS;
  int error = 0;
  while (job->engines != NULL && job->wants_abort && error == 0) error = await_change(job, deadline_ns);
}

/* What was outstanding and waited for whom, if anything was: the caller knows why it ends it, not what hung. */
static void add_outstanding(struct sml_job *job, struct sml_ctl_abort *failure) {
  const uint64_t deadline_ns = sml_clock_ns() + SML_MEMBER_ASK_NS;
  char text[96];
  int error = 0;
  if (job->state.oldest == NULL || job->state.phase == SML_MEMBER_HAS_FAILED || job->state.num_shards == 0) return;
  job->wants_reports = true;
  sml_control_wake(&job->context->control);
  while (error == 0 && job->state.phase != SML_MEMBER_HAS_FAILED &&
         (job->wants_reports || !sml_member_late_has_reports(&job->state)))
    error = await_change(job, deadline_ns);
  if (job->state.oldest == NULL || job->state.phase == SML_MEMBER_HAS_FAILED) return;
  const uint64_t now_ns = sml_clock_ns();
  struct sml_ctl_abort lateness = {.num_ranks = 0};
  struct sml_member_sight sight;
  sml_job_look_locked(job, &sight);
  sml_member_late_explain(&job->state, &sight, now_ns, &lateness);
  sml_operation_describe(sml_operation_of(job->state.oldest), text, sizeof text);
  const size_t used = strlen(failure->detail);
  snprintf(failure->detail + used, sizeof failure->detail - used, "; rank %u had %s outstanding for %.3g s: %.300s",
           job->state.rank, text, (double)(now_ns - job->state.oldest->submitted_ns) / 1e9, lateness.detail);
}

sml_status sml_job_abort(sml_job *job, const char *why) {
  SML_UNCANCELLED;
  const sml_status checked = sml_job_check(job);
  if (checked != SML_OK) return checked;
  struct sml_ctl_abort failure =
      sml_member_failure(SML_ERR_ABORTED, "%s",
                      why != NULL && why[0] != 0 ? why : "sml_job_abort() was called without a reason");
  sml_text_make_plain(failure.detail); /* one line, as the other ranks get it */
  failure.ranks[failure.num_ranks++] = (uint16_t)job->state.rank;
  pthread_mutex_lock(&job->lock);
  add_outstanding(job, &failure);
  sml_job_fail_locked(job, &failure, true);
  await_abort_sent(job);
  sml_job_await_dump_locked(job); /* likewise */
  pthread_mutex_unlock(&job->lock);
  return SML_OK;
}

sml_status sml_job_error(sml_job *job, sml_error *error_out) {
  SML_UNCANCELLED;
  const sml_status checked = sml_job_check(job);
  if (checked != SML_OK) return checked;
  pthread_mutex_lock(&job->lock);
  const sml_status status = sml_job_report_locked(job);
  const sml_error error = job->state.error;
  pthread_mutex_unlock(&job->lock);
  const sml_status copied = error_out != NULL ? sml_error_copy(error_out, &error) : SML_OK;
  return copied != SML_OK ? copied : status;
}

sml_status sml_job_stats(sml_job *job, sml_stats *stats_out) {
  SML_UNCANCELLED;
  if (job == NULL || stats_out == NULL) return sml_fail(SML_ERR_INVALID_ARGUMENT, "job or stats_out is NULL");
  if (sml_context_is_forked(job->context)) return sml_context_fail_forked();
  sml_stats stats = SML_STATS_INIT;
  pthread_mutex_lock(&job->lock);
  stats.operations_submitted = job->state.next_number - job->num_extra_numbers;
  stats.operations_completed = job->operations_completed;
  stats.operations_failed = job->operations_failed;
  stats.tensor_bytes = job->tensor_bytes;
  stats.rejoins = job->state.retry.num_rejoins;
  stats.retained_bytes = job->retained.input_bytes;
  if (job->method->ops->add_figures != NULL) job->method->ops->add_figures(job->method, &stats);
  pthread_mutex_unlock(&job->lock);
  stats.num_lanes = job->lanes.num_lanes;
  stats.num_slots = job->state.start.num_slots;
  stats.chunk_bytes = job->state.start.chunk_bytes;
  stats.join_rtt_ns = job->state.start.rtt_ns;
  stats.slots_why = (uint32_t)sml_job_find_slots_reason(job);
  struct sml_unsent last = {.error = 0};
  if (job->engines != NULL) stats.unsent_packets = sml_engines_unsent(job->engines, &last);
  stats.unsent_errno = (uint32_t)last.error;
  for (uint32_t e = 0; job->engines != NULL && e < job->engines->num_engines; e++)
    stats.system_calls += sml_worker_engine_system_calls(job->engines->units[e].engine);
  if (job->engines != NULL)
    stats.has_segmentation_offload = sml_worker_engine_has_offload(job->engines->units[0].engine);
  return sml_result_copy(stats_out, &stats, sizeof stats, "sml_stats");
}
