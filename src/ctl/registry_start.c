/* SPDX-License-Identifier: Apache-2.0
 * The start of a job: all ranks are in and have probed. What it gets is decided here, once. */
#include <stdio.h>

#include "ctl/registry_internal.h"

#define PACKET_BYTES 74u /* that a link carries for a chunk beside its payload: our header, UDP, IPv4, Ethernet */

static void refuse_job(struct sml_registry *r, struct sml_job_entry *job, sml_status status, const char *text) {
  sml_registry_end_with(r, job, status, NULL, 0, text, SML_NO_CONN);
}

static uint32_t count_started(const struct sml_registry *r) {
  uint32_t num_jobs = 0;
  for (uint32_t i = 0; i < r->jobs_end; i++) num_jobs += r->jobs[i].state == SML_JOB_STARTED;
  return num_jobs;
}

/* All that started jobs may have on their way at once: each slot is at one place, but for every rank that sends. */
static uint64_t count_windows_bytes(const struct sml_registry *r) {
  uint64_t num_bytes = 0;
  for (uint32_t i = 0; i < r->jobs_end; i++) {
    const struct sml_job_entry *job = &r->jobs[i];
    if (job->state != SML_JOB_STARTED || job->num_members == 0 || sml_registry_is_one_host(r, job)) continue;
    num_bytes += (uint64_t)job->num_slots * job->num_lanes * job->num_contributors * (job->chunk_bytes + PACKET_BYTES);
  }
  return num_bytes;
}

/* All ranks can make use of a second window (member_start.c looks for the same). */
static bool can_go_one_way(const struct sml_registry *r, const struct sml_job_entry *job) {
  bool is_offered = (job->features & (SML_FEATURE_CHECK | SML_FEATURE_RETRY | SML_FEATURE_SWITCH)) == 0 &&
                    job->num_contributors == job->world_size && !sml_registry_is_one_host(r, job) &&
                    job->num_slots >= SML_CTL_LEAST_ONE_WAY_SLOTS;
  for (uint32_t c = job->first_member; c != SML_NO_CONN; c = r->conns[c].next)
    is_offered = is_offered && r->conns[c].can_go_one_way;
  return is_offered;
}

/* Path and place of all ranks, the chunk and the pool decide, and what others do (tuning.h). */
static void choose_num_slots(const struct sml_registry *r, struct sml_job_entry *job) {
  struct sml_tuning tuning = {.num_asked = job->num_slots,
                              .num_lanes = job->num_lanes * sml_max_u32(job->num_shards, 1),
                              .chunk_bytes = job->chunk_bytes,
                              .pool_slots = r->options.pool_slots,
                              .others_bytes = count_windows_bytes(r),
                              .is_loopback = true,
                              .is_embedded = r->options.is_embedded,
                              .most_mib = r->options.max_window_mib};
  for (uint32_t i = 0; i < r->jobs_end; i++)
    if (r->jobs[i].state == SML_JOB_STARTED) tuning.kept_slots += sml_registry_all_slots(&r->jobs[i]);
  tuning.kept_slots += sml_tuning_reserve(r->options.pool_slots, r->options.max_jobs, count_started(r));
  for (uint32_t c = job->first_member; c != SML_NO_CONN; c = r->conns[c].next) {
    const struct sml_conn *conn = &r->conns[c];
    if (conn->is_lead) tuning.rtt_ns = sml_max_u64(tuning.rtt_ns, conn->rtt_ns);
    tuning.is_loopback = tuning.is_loopback && sml_source_is_loopback(conn->source);
  }
  job->rtt_ns = tuning.rtt_ns;
  job->num_slots = sml_tuning_choose(&tuning, &job->slots_why);
  /* A software switch has short queues, which carry the control connections, too. */
  if (r->options.packet_lanes != 0 && job->slots_why != SML_SLOTS_REASON_ASKED)
    job->num_slots = sml_min_u32(job->num_slots, SML_TUNING_FEW_SLOTS);
  job->is_one_way =
      can_go_one_way(r, job) && SML_CTL_ALL_WINDOWS * job->num_slots + tuning.kept_slots <= r->options.pool_slots;
}

static uint32_t find_stride(const struct sml_job_entry *job) {
  return job->num_slots << sml_ceil_log2(sml_registry_num_windows(job));
}

/* So many that each can have slots of its own. */
static void limit_lanes(struct sml_job_entry *job) {
  while (job->key_name[0] && job->num_lanes * find_stride(job) > UINT16_MAX + 1u)
    if (job->is_one_way) job->is_one_way = false;
    else job->num_lanes--;
}

uint16_t sml_registry_slot_base(const struct sml_job_entry *job, uint32_t lane) {
  return job->key_name[0] ? (uint16_t)(lane * find_stride(job)) : job->slot_base[lane];
}

/* The rank with the smallest path, of those that send, which decides for all; NULL: the daemon itself has no larger
 * one. */
static const struct sml_conn *find_narrowest(const struct sml_registry *r, const struct sml_job_entry *job,
                                             uint32_t *datagram_bytes_out) {
  const struct sml_conn *narrowest = NULL;
  *datagram_bytes_out = r->options.max_datagram_bytes;
  for (uint32_t i = job->first_member; i != SML_NO_CONN; i = r->conns[i].next) {
    const struct sml_conn *c = &r->conns[i];
    uint32_t datagram_bytes = sml_min_u32(c->probed_bytes, c->max_datagram_bytes);
    if (!c->is_lead || datagram_bytes >= *datagram_bytes_out) continue;
    *datagram_bytes_out = datagram_bytes;
    narrowest = c;
  }
  return narrowest;
}

/* Who resumes has results in blocks of the old chunks, and others must get the same bits. */
static uint32_t find_resume_chunk_bytes(const struct sml_registry *r, const struct sml_job_entry *job) {
  uint32_t conn = sml_registry_find_other_resume(r, job, 0);
  return conn == SML_NO_CONN ? 0 : r->conns[conn].resume_chunk_bytes;
}

/* False: the path is too small, and the job was refused. */
static bool choose_chunk_size(struct sml_registry *r, struct sml_job_entry *job) {
  uint32_t overhead_bytes = sml_registry_overhead_bytes(job->key_name[0] != 0, job->features);
  uint32_t resume_bytes = find_resume_chunk_bytes(r, job), min_bytes;
  uint32_t needed_bytes = (resume_bytes ? resume_bytes : SML_MIN_CHUNK_BYTES) + overhead_bytes;
  const struct sml_conn *narrowest = find_narrowest(r, job, &min_bytes);
  if (r->options.packet_lanes != 0 && min_bytes > 0) {
    sml_status status;
    const char *unfit = sml_registry_choose_switch_chunk(r, job, narrowest, min_bytes, &status);
    if (unfit) refuse_job(r, job, status, unfit);
    return !unfit;
  }
  if (min_bytes >= needed_bytes) {
    const uint32_t unit_bytes = job->features & SML_FEATURE_NARROW ? SML_CTL_NARROW_UNIT : 4;
    job->chunk_bytes = resume_bytes ? resume_bytes : (min_bytes - overhead_bytes) / unit_bytes * unit_bytes;
    return true;
  }
  const char *text;
  if (!narrowest) { /* only a resumed job needs more than the daemon itself has */
    text = sml_registry_text(r,
                             "the job must go on with datagrams of %u bytes, but the aggregator takes %u bytes "
                             "only: start all ranks anew",
                             needed_bytes, min_bytes);
  } else if (min_bytes == 0) {
    text = sml_registry_text(r,
                             "no datagram of rank %u (%s) came back from the aggregator's data ports (first: UDP "
                             "%u): check firewalls, and that all machines have the same switchml version",
                             narrowest->rank, narrowest->host, r->options.data_ports[0]);
  } else {
    text = sml_registry_text(r,
                             "the path of rank %u (%s) carries datagrams of %u bytes only, %u are needed: check "
                             "its MTU",
                             narrowest->rank, narrowest->host, min_bytes, needed_bytes);
  }
  refuse_job(r, job, min_bytes == 0 ? SML_ERR_UNREACHABLE : SML_ERR_MTU, text);
  return false;
}

/* Nobody knows whether a rank that was started anew would contribute again what its predecessor did, and of an
 * operation that has ended somewhere, in whatever order, ranks would then hold different sums. If none has ended, all
 * begin: an aggregator was lost that had told some of its ranks, and not others, that the job starts. */
static bool check_nobody_is_new(struct sml_registry *r, struct sml_job_entry *job) {
  const struct sml_conn *newcomer = NULL, *resumer = NULL;
  for (uint32_t i = job->first_member; i != SML_NO_CONN; i = r->conns[i].next) {
    const struct sml_conn *c = &r->conns[i];
    if (c->resume_operation == 0 && c->resume_chunk_bytes == 0) newcomer = c;
    else if (!c->has_no_result) resumer = c;
  }
  if (!newcomer || !resumer) return true;
  refuse_job(r, job, SML_ERR_REFUSED,
             sml_registry_text(r,
                               "the job can't go on: rank %u was started anew, but rank %u goes on with what it has: "
                               "start all ranks anew",
                               newcomer->rank, resumer->rank));
  return false;
}

/* The job goes on with the first operation that some rank lacks. False: another rank has forgotten its
 * input of it, and the job was refused: for good, not as AGGREGATOR_LOST, after which ranks come again. */
static bool choose_first_operation(struct sml_registry *r, struct sml_job_entry *job) {
  const struct sml_conn *behind = NULL, *forgetful = NULL;
  for (uint32_t i = job->first_member; i != SML_NO_CONN; i = r->conns[i].next) {
    const struct sml_conn *c = &r->conns[i];
    if (!behind || c->resume_operation < behind->resume_operation) behind = c;
    if (!forgetful || c->oldest_operation > forgetful->oldest_operation) forgetful = c;
  }
  job->first_operation = job->confirmed = behind->resume_operation;
  if (forgetful->oldest_operation <= job->first_operation) return check_nobody_is_new(r, job);
  refuse_job(r, job, SML_ERR_REFUSED,
             sml_registry_text(r,
                               "the job can't go on: rank %u has to repeat operation %llu, but rank %u has kept its "
                               "inputs from operation %llu on only: start all ranks anew",
                               behind->rank, (unsigned long long)job->first_operation, forgetful->rank,
                               (unsigned long long)forgetful->oldest_operation));
  return false;
}

void sml_registry_give_windows(struct sml_registry *r, struct sml_job_entry *job, uint32_t num_lanes) {
  for (uint32_t lane = 0; lane < num_lanes; lane++)
    sml_slot_pool_give(&r->pools[lane], job->num_slots, sml_registry_num_windows(job), job->slot_base[lane]);
}

/* The lane that has no room, or num_lanes: all windows were taken. */
static uint32_t try_windows(struct sml_registry *r, struct sml_job_entry *job) {
  for (uint32_t lane = 0; lane < job->num_lanes; lane++) {
    const uint32_t num_windows = sml_registry_num_windows(job);
    if (sml_slot_pool_take(&r->pools[lane], job->num_slots, num_windows, &job->slot_base[lane])) continue;
    sml_registry_give_windows(r, job, lane);
    return lane;
  }
  return job->num_lanes;
}

/* What nobody asked for may become smaller than was chosen. */
static bool take_windows(struct sml_registry *r, struct sml_job_entry *job) {
  uint32_t lane;
  while ((lane = try_windows(r, job)) < job->num_lanes) {
    if (job->is_one_way) {
      job->is_one_way = false;
      continue;
    }
    if (job->slots_why != SML_SLOTS_REASON_ASKED && job->num_slots > SML_TUNING_FEW_SLOTS) {
      job->num_slots /= 2;
      job->slots_why = SML_SLOTS_REASON_POOL;
      continue;
    }
    char *text = sml_registry_text(r,
                                   "no %u slots in a row are free on lane %u of the aggregator (%u in all): wait for "
                                   "a job to end, ask for fewer, or raise them there",
                                   job->num_slots, lane, r->options.pool_slots);
    refuse_job(r, job, SML_ERR_REFUSED, text);
    return false;
  }
  return true;
}

/* Ranks that have gone keep their places at the engines until their jobs end, and need no connection. */
static bool has_rank_places(struct sml_registry *r, struct sml_job_entry *job) {
  uint64_t num_ranks = job->world_size;
  for (uint32_t i = 0; i < r->jobs_end; i++)
    if (r->jobs[i].state == SML_JOB_STARTED) num_ranks += r->jobs[i].world_size;
  if (num_ranks <= (uint64_t)SML_REGISTRY_MAX_RANKS_FACTOR * r->options.max_connections) return true;
  refuse_job(
      r, job, SML_ERR_REFUSED,
      sml_registry_text(r,
                        "the aggregator's jobs would have %llu ranks, gone ones included, and its limit is %u: "
                        "end jobs whose ranks have gone, or raise --max-connections there",
                        (unsigned long long)num_ranks, SML_REGISTRY_MAX_RANKS_FACTOR * r->options.max_connections));
  return false;
}

void sml_registry_start(struct sml_registry *r, struct sml_job_entry *job) {
  if (count_started(r) >= r->options.max_jobs) {
    refuse_job(r, job, SML_ERR_REFUSED,
               sml_registry_text(r,
                                 "the aggregator runs %u jobs already, its limit: wait for one to end, or raise it "
                                 "there",
                                 r->options.max_jobs));
    return;
  }
  if (!has_rank_places(r, job)) return;
  job->num_lanes = r->options.num_lanes;
  for (uint32_t c = job->first_member; c != SML_NO_CONN; c = r->conns[c].next)
    job->num_lanes = sml_min_u32(job->num_lanes, r->conns[c].num_lanes);
  sml_registry_group(r, job);
  if (!choose_chunk_size(r, job) || !choose_first_operation(r, job)) return;
  choose_num_slots(r, job);
  limit_lanes(job);
  const char *over_quota = sml_registry_meet_quota(r, job);
  if (over_quota) refuse_job(r, job, SML_ERR_REFUSED, over_quota);
  if (over_quota || !take_windows(r, job)) return;
  job->state = SML_JOB_STARTED;
  job->since_ns = r->latest_ns;
  job->is_multicast = sml_registry_choose_multicast(r, job);
  sml_registry_send_start(r, job, r->options.first_phase, r->options.first_chunk);
  sml_registry_note(r, SML_NOTE_JOB_STARTED, job, 0,
                    sml_registry_text(r, "lanes=%u slots=%u chunk_bytes=%u contributors=%u rtt_us=%llu%s%s",
                                      job->num_lanes, job->num_slots, job->chunk_bytes, job->num_contributors,
                                      (unsigned long long)(job->rtt_ns / SML_NS_PER_US),
                                      job->is_multicast ? " multicast=1" : "", job->is_one_way ? " one_way=1" : ""));
}
