/* SPDX-License-Identifier: Apache-2.0
 * The life of a job: who may join, when it starts, what a departure means, how it ends. */
#include <stdio.h>

#include "ctl/channel.h"
#include "ctl/registry_internal.h"

#define MAX_JOIN_TIMEOUT_NS (7 * 24 * 3600 * SML_NS_PER_S)
#define MAX_WINDOW_SLOTS 32768u
#define MAX_LISTED_RANKS 8u

uint32_t sml_registry_overhead_bytes(bool is_keyed, uint32_t features) {
  return SML_CTL_HEADER_BYTES + (is_keyed ? SML_CTL_KEYED_BYTES : 0) +
         (features & SML_FEATURE_CHECK ? SML_CTL_CHECK_BYTES : 0);
}

/* --- joining --- */

/* What is wrong with a JOIN by itself, whoever else is in the job; NULL: nothing. */
static const char *find_bad_setting(struct sml_registry *r, const struct sml_ctl_join *j) {
  const struct sml_registry_options *o = &r->options;
  if (j->world_size < 2 || j->world_size > SML_CTL_MAX_WORLD_SIZE)
    return sml_registry_text(r, "world size %u is not between 2 and %u", j->world_size, SML_CTL_MAX_WORLD_SIZE);
  if (j->rank >= j->world_size)
    return sml_registry_text(r, "rank %u is not below the world size %u", j->rank, j->world_size);
  if (j->world_size > o->max_connections) {
    return sml_registry_text(r, "world size %u is more than the aggregator's limit of %u connections: raise it there",
                             j->world_size, o->max_connections);
  }
  if ((j->num_slots != 0 && !sml_is_pow2(j->num_slots)) || j->num_slots > MAX_WINDOW_SLOTS) {
    return sml_registry_text(r, "%u slots: the number must be a power of two, at most %u", j->num_slots,
                             MAX_WINDOW_SLOTS);
  }
  if (j->num_slots > o->pool_slots) {
    return sml_registry_text(r, "%u slots a lane are more than the aggregator's %u: ask for fewer, or raise them there",
                             j->num_slots, o->pool_slots);
  }
  if (j->lease_ns < SML_MIN_LEASE_NS || j->lease_ns > SML_MAX_LEASE_NS) {
    return sml_registry_text(r, "a lease of %llu us is not between 20 ms and 1 hour",
                             (unsigned long long)(j->lease_ns / SML_NS_PER_US));
  }
  if (o->max_lease_ns > 0 && j->lease_ns > o->max_lease_ns) {
    return sml_registry_text(r,
                             "a lease of %.1f s is longer than the aggregator's limit of %.1f s: ask for a shorter "
                             "one, or raise --max-lease there",
                             (double)j->lease_ns / 1e9, (double)o->max_lease_ns / 1e9);
  }
  uint32_t overhead_bytes = sml_registry_overhead_bytes(j->key_name[0] != 0, j->features);
  if (j->max_datagram_bytes < SML_MIN_CHUNK_BYTES + overhead_bytes) {
    return sml_registry_text(r, "datagrams of at most %u bytes are asked for, the smallest chunk needs %u",
                             j->max_datagram_bytes, SML_MIN_CHUNK_BYTES + overhead_bytes);
  }
  if (j->resume_chunk_bytes != 0 && j->resume_chunk_bytes < SML_MIN_CHUNK_BYTES) {
    return sml_registry_text(r, "chunks of %u bytes are asked for, the smallest have %u", j->resume_chunk_bytes,
                             SML_MIN_CHUNK_BYTES);
  }
  return NULL;
}

/* A running job that a rank has departed from is at its end, and its name free for the next one: ranks that
 * run two jobs of one name in a row do not leave the first at the same moment. */
static bool is_ending_without(const struct sml_job_entry *job, uint32_t rank) {
  return job->state == SML_JOB_STARTED && job->num_departed > 0 &&
         !(rank < job->world_size && sml_bit_test(job->present, rank));
}

/* The job that a rank means with a name and a key: the one being joined, if there is one beside those at their
 * end. */
static struct sml_job_entry *find_job(struct sml_registry *r, const struct sml_conn *c, const struct sml_ctl_join *j) {
  struct sml_job_entry *running = NULL;
  for (uint32_t i = 0; i < r->jobs_end; i++) {
    struct sml_job_entry *job = &r->jobs[i];
    if (job->state == SML_JOB_FREE || strcmp(job->name, j->job_name) != 0) continue;
    if (strcmp(job->key_name, j->key_name) != 0) continue;                 /* another tenant's */
    if (memcmp(&job->tenant, &c->tenant, sizeof c->tenant) != 0) continue; /* the key was changed meanwhile */
    if (job->state == SML_JOB_JOINING) return job;
    if (!is_ending_without(job, j->rank)) running = job;
  }
  return running;
}

static uint32_t find_member(const struct sml_registry *r, const struct sml_job_entry *job, uint32_t rank) {
  uint32_t conn = job->first_member;
  while (conn != SML_NO_CONN && r->conns[conn].rank != rank) conn = r->conns[conn].next;
  return conn;
}

/* A rank that resumes with chunks of another size than this one does. */
uint32_t sml_registry_find_other_resume(const struct sml_registry *r, const struct sml_job_entry *job,
                                        uint32_t chunk_bytes) {
  uint32_t conn = job->first_member;
  while (conn != SML_NO_CONN &&
         (r->conns[conn].resume_chunk_bytes == 0 || r->conns[conn].resume_chunk_bytes == chunk_bytes))
    conn = r->conns[conn].next;
  return conn;
}

/* Who resumes asks for the slots that it had, who is new for those that it wants: a member of the same kind. */
static uint32_t find_like(const struct sml_registry *r, const struct sml_job_entry *job, bool is_resuming) {
  uint32_t conn = job->first_member;
  while (conn != SML_NO_CONN && (r->conns[conn].resume_chunk_bytes != 0) != is_resuming) conn = r->conns[conn].next;
  return conn;
}

/* The part of find_conflict() that came with features, shards and resumed jobs. */
static const char *find_feature_conflict(struct sml_registry *r, const struct sml_job_entry *job,
                                         const struct sml_ctl_join *j) {
  uint32_t other_rank = r->conns[job->first_member].rank;
  uint32_t differ = (job->features ^ j->features) & ~SML_FEATURES_OF_RANKS;
  static const char *const on_off[] = {"off", "on"};
  if (j->shard != job->shard || j->num_shards != job->num_shards) {
    return sml_registry_text(r,
                             "rank %u takes this aggregator for number %u of %u, but rank %u of job '%s' for number %u "
                             "of %u: SWITCHML_AGGREGATOR must be the same list on all ranks",
                             j->rank, j->shard + 1, sml_max_u32(j->num_shards, 1), other_rank, job->name,
                             job->shard + 1, sml_max_u32(job->num_shards, 1));
  }
  if (differ != 0) {
    static const char *const names[] = {"SWITCHML_CHECK",
                                        "SWITCHML_RETRY",
                                        NULL,
                                        "SWITCHML_FLOAT_BITS=16",
                                        "SWITCHML_FLOAT_BITS=32",
                                        "SWITCHML_FLOAT64_BITS=64",
                                        "SWITCHML_FLOAT64_BITS=96",
                                        "narrow updates (no aggregator configured)",
                                        NULL,
                                        "SWITCHML_EXACT"};
    const uint32_t number = (uint32_t)__builtin_ctz(differ);
    const bool is_mine = (j->features >> number & 1) != 0;
    return sml_registry_text(r,
                             "rank %u has %s %s, but rank %u of job '%s' has it %s: all ranks must set "
                             "the same",
                             j->rank, names[number], on_off[is_mine], other_rank, job->name, on_off[!is_mine]);
  }
  uint32_t other = j->resume_chunk_bytes ? sml_registry_find_other_resume(r, job, j->resume_chunk_bytes) : SML_NO_CONN;
  if (other != SML_NO_CONN) {
    return sml_registry_text(r,
                             "rank %u resumes with chunks of %u bytes, but rank %u of job '%s' with %u: start "
                             "all ranks anew",
                             j->rank, j->resume_chunk_bytes, r->conns[other].rank, job->name,
                             r->conns[other].resume_chunk_bytes);
  }
  return NULL;
}

/* The connection that has joined as the rank already, or SML_NO_CONN. */
static uint32_t find_twin(const struct sml_registry *r, const struct sml_job_entry *job, const struct sml_ctl_join *j) {
  const bool is_there = j->world_size == job->world_size && sml_bit_test(job->present, j->rank);
  return is_there ? find_member(r, job, j->rank) : SML_NO_CONN;
}

/* Where a rank is, is told to its own host and to whoever has the job's key: anybody may ask. */
static const char *describe_twin(struct sml_registry *r, const struct sml_job_entry *job, const struct sml_ctl_join *j,
                                 const struct sml_conn *twin, bool may_know) {
  return sml_registry_text(r,
                           "rank %u of job '%s' has already joined from %s: give each process its own rank, each run "
                           "its own job name",
                           j->rank, job->name,
                           may_know ? twin->peer : "another host (the aggregator's log says which)");
}

/* What does not fit between a JOIN and the job it names; NULL: nothing. */
static const char *find_conflict(struct sml_registry *r, const struct sml_job_entry *job, const struct sml_conn *c,
                                 const struct sml_ctl_join *j) {
  uint32_t other_rank = r->conns[job->first_member].rank;
  const uint32_t twin = find_twin(r, job, j);
  if (twin != SML_NO_CONN) {
    const bool may_know = job->key_name[0] || strcmp(r->conns[twin].host, c->host) == 0;
    return describe_twin(r, job, j, &r->conns[twin], may_know);
  }
  if (job->state == SML_JOB_STARTED) {
    return sml_registry_text(r,
                             "job '%s' is already running with %u ranks: use another name, or wait until all of "
                             "them have left",
                             job->name, job->world_size);
  }
  if (j->world_size != job->world_size) {
    return sml_registry_text(r,
                             "rank %u says world size %u, but rank %u of job '%s' said %u: all ranks must say the "
                             "same",
                             j->rank, j->world_size, other_rank, job->name, job->world_size);
  }
  const uint32_t like = find_like(r, job, j->resume_chunk_bytes != 0);
  if (like != SML_NO_CONN && j->num_slots != r->conns[like].slots_asked) {
    return sml_registry_text(r,
                             "rank %u asks for %u slots, but rank %u of job '%s' asked for %u: all ranks must ask "
                             "for the same",
                             j->rank, j->num_slots, r->conns[like].rank, job->name, r->conns[like].slots_asked);
  }
  if (j->lease_ns != job->lease_ns) {
    return sml_registry_text(r,
                             "rank %u asks for a lease of %llu ms, but rank %u of job '%s' asked for %llu ms: all "
                             "ranks must ask for the same",
                             j->rank, (unsigned long long)(j->lease_ns / SML_NS_PER_MS), other_rank, job->name,
                             (unsigned long long)(job->lease_ns / SML_NS_PER_MS));
  }
  return find_feature_conflict(r, job, j);
}

static const struct sml_key *data_key(const struct sml_job_entry *job) {
  return job->key_name[0] ? &job->data_key : NULL;
}

static uint64_t draw(struct sml_registry *r) {
  return r->options.random(r->options.random_user);
}

/* Whoever knows another epoch, or was in the job before it started, knows nothing of this one. Switches have neither
 * MAC nor CRC: there the epoch is all. */
static void enter_epoch(struct sml_registry *r, struct sml_job_entry *job, uint32_t last_epoch) {
  job->epoch = (uint32_t)draw(r);
  if (job->epoch == last_epoch) job->epoch++; /* late packets of the one before must not fit */
  const bool has_secret = !job->key_name[0] && r->options.packet_lanes == 0;
  for (uint32_t k = 0; k < 2; k++) job->secret[k] = has_secret ? draw(r) : 0;
  if (!job->key_name[0]) return;
  job->data_key = sml_ctl_data_key(&job->tenant, job->name, (uint16_t)(job - r->jobs), job->epoch, job->salt);
}

/* NULL: the table is full. Named but not started jobs don't count against max_jobs: that answer is given
 * when the last rank is in, to all ranks alike. */
static struct sml_job_entry *open_job(struct sml_registry *r, const struct sml_conn *c, const struct sml_ctl_join *j,
                                      uint64_t now_ns) {
  uint32_t i = 0;
  while (i < SML_REGISTRY_MAX_JOBS && r->jobs[i].state != SML_JOB_FREE) i++;
  if (i == SML_REGISTRY_MAX_JOBS) return NULL;
  r->jobs_end = sml_max_u32(r->jobs_end, i + 1);
  struct sml_job_entry *job = &r->jobs[i];
  const uint32_t last_epoch = job->epoch; /* of the last job with this number */
  memset(job, 0, sizeof *job);
  memcpy(job->name, j->job_name, sizeof job->name);
  memcpy(job->key_name, j->key_name, sizeof job->key_name);
  job->tenant = c->tenant;
  for (uint32_t k = 0; k < 2; k++) job->salt[k] = draw(r);
  enter_epoch(r, job, last_epoch);
  job->state = SML_JOB_JOINING;
  job->world_size = j->world_size;
  job->num_slots = j->num_slots;
  job->features = j->features & ~SML_FEATURES_OF_RANKS;
  job->shard = j->shard;
  job->num_shards = j->num_shards;
  memcpy(job->aggregators, j->aggregators, sizeof job->aggregators);
  job->lease_ns = j->lease_ns;
  job->deadline_ns = SML_NEVER;
  job->heartbeat_at_ns = now_ns + sml_ctl_heartbeat_ns(j->lease_ns);
  job->early_at_ns = SML_NEVER;
  job->looked_at_ns = job->since_ns = now_ns;
  job->source = c->source;
  job->first_member = SML_NO_CONN;
  struct sml_effect *effect = sml_registry_emit(r, SML_EFFECT_OPEN_JOB);
  effect->job = (uint16_t)i;
  effect->epoch = job->epoch;
  effect->world_size = job->world_size;
  effect->key = data_key(job);
  memcpy(effect->secret, job->secret, sizeof effect->secret);
  return job;
}

static void add_member(struct sml_registry *r, struct sml_job_entry *job, uint32_t conn, const struct sml_ctl_join *j) {
  struct sml_conn *c = &r->conns[conn];
  c->state = SML_CONN_MEMBER;
  c->job = (uint16_t)(job - r->jobs);
  c->rank = j->rank;
  c->num_lanes = sml_min_u32(j->num_lanes, r->options.num_lanes);
  c->max_datagram_bytes = j->max_datagram_bytes;
  c->resume_operation = c->completed = j->resume_operation;
  c->oldest_operation = j->oldest_operation;
  c->resume_chunk_bytes = j->resume_chunk_bytes;
  c->has_no_result = j->resume_operation == 0 && (j->features & SML_FEATURE_NO_RESULT) != 0;
  c->can_go_one_way = (j->features & SML_FEATURE_ONE_WAY) != 0;
  c->slots_asked = j->num_slots;
  if (j->resume_chunk_bytes != 0) job->num_slots = j->num_slots;
  memcpy(c->share_host, j->host, sizeof c->share_host);
  c->is_combining = j->is_combining;
  c->prev = SML_NO_CONN;
  c->next = job->first_member;
  if (c->next != SML_NO_CONN) r->conns[c->next].prev = conn;
  job->first_member = conn;
  job->num_members++;
  sml_bit_set(job->present, j->rank);
}

static void welcome(struct sml_registry *r, const struct sml_job_entry *job, uint32_t conn) {
  const struct sml_conn *c = &r->conns[conn];
  struct sml_ctl_message *m = sml_registry_compose(r, SML_CTL_WELCOME);
  m->u.welcome.job = c->job;
  m->u.welcome.epoch = job->epoch;
  memcpy(m->u.welcome.secret, job->secret, sizeof job->secret);
  m->u.welcome.nonce = draw(r);
  m->u.welcome.num_lanes = c->num_lanes;
  for (uint32_t lane = 0; lane < c->num_lanes; lane++) m->u.welcome.data_ports[lane] = r->options.data_ports[lane];
  memcpy(m->u.welcome.salt, job->salt, sizeof job->salt);
  sml_registry_offer_group(r, c->job, &m->u.welcome);
  struct sml_effect *effect = sml_registry_emit(r, SML_EFFECT_EXPECT_HELLO);
  effect->conn = conn;
  effect->job = c->job;
  effect->epoch = job->epoch;
  effect->rank = c->rank;
  effect->nonce = m->u.welcome.nonce;
  sml_registry_send(r, conn, m);
}

static const char *find_host_limit(struct sml_registry *r, const struct sml_conn *joining) {
  uint32_t max = r->options.max_connections_per_host, num_members = 0;
  for (uint32_t i = 0; max > 0 && i < r->conns_end; i++) {
    const struct sml_conn *c = &r->conns[i];
    num_members += c->state == SML_CONN_MEMBER && c->source == joining->source;
  }
  if (max == 0 || num_members < max) return NULL;
  return sml_registry_text(r,
                           "host %s has %u connections to the aggregator, its limit: wait for a job to end, or "
                           "raise it there",
                           joining->host, num_members);
}

/* The other ranks wait for this one, and hear of it when they give up; who asks shall. */
static void remember_refusal(struct sml_job_entry *job, const struct sml_conn *c, uint32_t rank, const char *text,
                             uint64_t now_ns) {
  struct sml_refusal *refusal = &job->refusals[job->num_refusals++ % SML_MAX_REFUSALS];
  refusal->rank = rank;
  refusal->at_ns = now_ns;
  memcpy(refusal->host, c->host, sizeof refusal->host);
  snprintf(refusal->text, sizeof refusal->text, "%s", text);
}

static void refuse_join(struct sml_registry *r, uint32_t conn, const struct sml_job_entry *job,
                        const struct sml_ctl_join *join, const char *text) {
  const uint32_t twin = job ? find_twin(r, job, join) : SML_NO_CONN;
  const char *note = twin != SML_NO_CONN ? describe_twin(r, job, join, &r->conns[twin], true) : text;
  sml_registry_turn_away(r, conn, SML_NOTE_JOIN_REFUSED, SML_ERR_REFUSED, text, note);
}

/* The first rank whose patience ends gives the job up, or the aggregator, which lets none wait for longer. */
static void limit_waiting(const struct sml_registry *r, struct sml_job_entry *job, const struct sml_ctl_join *join,
                          uint64_t now_ns) {
  const uint64_t most_ns = r->options.max_join_ns > 0 ? r->options.max_join_ns : MAX_JOIN_TIMEOUT_NS;
  const uint64_t deadline_ns = now_ns + sml_min_u64(join->join_timeout_ns, most_ns);
  job->joined_at_ns = now_ns;
  if (deadline_ns >= job->deadline_ns) return;
  job->deadline_ns = deadline_ns;
  job->is_capped = join->join_timeout_ns > most_ns;
}

void sml_registry_join(struct sml_registry *r, uint32_t conn, const struct sml_ctl_join *join, uint64_t now_ns) {
  const char *bad = find_bad_setting(r, join);
  struct sml_job_entry *job = bad ? NULL : find_job(r, &r->conns[conn], join);
  if (job) bad = find_conflict(r, job, &r->conns[conn], join);
  if (job && bad) remember_refusal(job, &r->conns[conn], join->rank, bad, now_ns);
  if (!bad) bad = sml_registry_find_switch_conflict(r, join);
  if (!bad) bad = find_host_limit(r, &r->conns[conn]);
  if (!bad && !job) bad = sml_registry_find_waiting_limit(r, join);
  if (bad) {
    refuse_join(r, conn, job, join, bad);
    return;
  }
  if (!job) job = open_job(r, &r->conns[conn], join, now_ns);
  if (!job && sml_registry_make_room(r, now_ns)) job = open_job(r, &r->conns[conn], join, now_ns);
  if (!job) {
    sml_registry_refuse(r, conn, SML_ERR_REFUSED, "the aggregator's job table is full: wait for a job to end");
    return;
  }
  add_member(r, job, conn, join);
  limit_waiting(r, job, join, now_ns);
  welcome(r, job, conn);
  sml_registry_note(r, SML_NOTE_RANK_JOINED, job, join->rank, r->conns[conn].peer);
}

/* --- ranks in sentences --- */

static void append(char *text, size_t room_bytes, const char *more) {
  size_t used_bytes = strlen(text);
  snprintf(text + used_bytes, room_bytes - used_bytes, "%s", more);
}

/* "rank 2" or "ranks 2, 3" of the ranks without a connection, or of those that have not probed; the count
 * comes back. Long lists end with "and 9 more". */
static uint32_t list_ranks(const struct sml_registry *r, const struct sml_job_entry *job, bool is_probing, char *text,
                           size_t room_bytes) {
  uint64_t wanted[SML_BITMAP_WORDS(SML_CTL_MAX_WORLD_SIZE)] = {0};
  uint32_t num_ranks = 0;
  for (uint32_t rank = 0; rank < job->world_size; rank++)
    if (!is_probing && !sml_bit_test(job->present, rank)) sml_bit_set(wanted, rank);
  for (uint32_t c = job->first_member; is_probing && c != SML_NO_CONN; c = r->conns[c].next)
    if (!r->conns[c].has_probed) sml_bit_set(wanted, r->conns[c].rank);
  char list[128] = "", item[32];
  for (uint32_t rank = 0; rank < job->world_size; rank++) {
    if (!sml_bit_test(wanted, rank) || ++num_ranks > MAX_LISTED_RANKS) continue;
    snprintf(item, sizeof item, "%s%u", num_ranks > 1 ? ", " : "", rank);
    append(list, sizeof list, item);
  }
  if (num_ranks > MAX_LISTED_RANKS) {
    snprintf(item, sizeof item, " and %u more", num_ranks - MAX_LISTED_RANKS);
    append(list, sizeof list, item);
  }
  snprintf(text, room_bytes, "%s %s", num_ranks == 1 ? "rank" : "ranks", list);
  return num_ranks;
}

/* Why a rank that is missing was not let in: the latest. NULL: none came. */
static const struct sml_refusal *find_refusal(const struct sml_job_entry *job) {
  for (uint32_t i = 1; i <= sml_min_u32(job->num_refusals, SML_MAX_REFUSALS); i++) {
    const struct sml_refusal *refusal = &job->refusals[(job->num_refusals - i) % SML_MAX_REFUSALS];
    if (!sml_bit_test(job->present, refusal->rank)) return refusal;
  }
  return NULL;
}

void sml_registry_join_timeout(struct sml_registry *r, struct sml_job_entry *job) {
  char ranks[160];
  bool is_probing = job->num_members == job->world_size;
  uint32_t num_ranks = list_ranks(r, job, is_probing, ranks, sizeof ranks);
  const char *have = num_ranks == 1 ? "has" : "have";
  char capped[96] = "";
  if (job->is_capped)
    snprintf(capped, sizeof capped, " within %.0f s, the aggregator's limit: start all at once, or raise %s",
             (double)r->options.max_join_ns / 1e9, "--max-join-time");
  const struct sml_refusal *refusal = find_refusal(job);
  char *text;
  if (is_probing)
    text = sml_registry_text(r, "%s of %u %s joined job '%.63s' but not finished probing its data path", ranks,
                             job->world_size, have, job->name);
  else if (refusal != NULL)
    text = sml_registry_text(r, "%s of %u %s not joined%s; rank %u from %s was refused: %s", ranks, job->world_size,
                             have, capped, refusal->rank, refusal->host, refusal->text);
  else text = sml_registry_text(r, "%s of %u %s not joined%s", ranks, job->world_size, have, capped);
  sml_registry_end_with(r, job, SML_ERR_TIMEOUT, NULL, 0, text, SML_NO_CONN);
}

/* --- starting --- */

/* Begins the next epoch. Engines first: when the ranks hear of it, the aggregator is ready. */
void sml_registry_send_start(struct sml_registry *r, struct sml_job_entry *job, uint32_t first_phase,
                             uint32_t first_chunk) {
  struct sml_ctl_message *m = sml_registry_compose(r, SML_CTL_START);
  struct sml_ctl_start *start = &m->u.start;
  enter_epoch(r, job, job->epoch);
  start->epoch = job->epoch;
  memcpy(start->secret, job->secret, sizeof start->secret);
  start->num_lanes = job->num_lanes;
  start->chunk_bytes = job->chunk_bytes;
  start->num_slots = job->num_slots;
  for (uint32_t l = 0; l < job->num_lanes; l++) start->slot_base[l] = sml_registry_slot_base(job, l);
  start->first_phase = first_phase;
  start->first_chunk = first_chunk;
  start->features = job->features | (job->is_one_way ? SML_FEATURE_ONE_WAY : 0);
  start->first_operation = job->first_operation;
  start->rtt_ns = job->rtt_ns;
  start->slots_why = job->slots_why;
  start->is_multicast = job->is_multicast;
  start->is_one_host = sml_registry_is_one_host(r, job);
  sml_registry_list_contributors(r, job, start);
  struct sml_effect *effect = sml_registry_emit(r, SML_EFFECT_START_JOB);
  effect->job = (uint16_t)(job - r->jobs);
  effect->epoch = job->epoch;
  effect->world_size = job->world_size;
  effect->message = m;
  effect->key = data_key(job);
  memcpy(effect->secret, job->secret, sizeof effect->secret);
  for (uint32_t c = job->first_member; c != SML_NO_CONN; c = r->conns[c].next) sml_registry_send(r, c, m);
}

void sml_registry_probed(struct sml_registry *r, uint32_t conn, const struct sml_ctl_probed *probed) {
  struct sml_job_entry *job = &r->jobs[r->conns[conn].job];
  r->conns[conn].has_probed = true;
  job->num_probed++;
  r->conns[conn].probed_bytes = probed->datagram_bytes;
  r->conns[conn].rtt_ns = probed->rtt_ns;
  r->conns[conn].hearing = probed->hearing;
  if (job->num_probed == job->world_size) sml_registry_start(r, job);
}

/* --- running --- */

/* A rank that is gone may lack the rest: then nothing more is confirmed. */
uint64_t sml_registry_confirmed(const struct sml_registry *r, const struct sml_job_entry *job) {
  if (job->state != SML_JOB_STARTED || job->num_departed > 0) return job->confirmed;
  uint64_t confirmed = UINT64_MAX;
  for (uint32_t c = job->first_member; c != SML_NO_CONN; c = r->conns[c].next)
    confirmed = sml_min_u64(confirmed, r->conns[c].completed);
  return sml_max_u64(confirmed, job->confirmed);
}

uint64_t sml_registry_lowest_completed(const struct sml_registry *r) {
  uint64_t lowest = UINT64_MAX;
  for (uint32_t i = 0; i < r->jobs_end; i++) {
    if (r->jobs[i].state != SML_JOB_STARTED) continue;
    for (uint32_t c = r->jobs[i].first_member; c != SML_NO_CONN; c = r->conns[c].next)
      lowest = sml_min_u64(lowest, r->conns[c].completed);
  }
  return lowest;
}

const char *sml_registry_departure(struct sml_registry *r, const struct sml_job_entry *job, uint32_t rank) {
  for (uint32_t i = 0; i < sml_min_u32(job->num_departed, SML_MAX_DEPARTURES); i++)
    if (job->departures[i].rank == rank) return job->departures[i].text;
  return sml_registry_text(r, "rank %u has left or was lost", rank);
}

/* A job that misses a rank can't end another operation: whoever waits for a new epoch learns it now. */
static void end_if_epoch_is_vain(struct sml_registry *r, struct sml_job_entry *job) {
  if (job->num_departed == 0 || job->num_wanting == 0) return;
  uint16_t rank = (uint16_t)job->departures[0].rank;
  sml_registry_end_with(r, job, SML_ERR_RANK_LOST, &rank, 1, job->departures[0].text, SML_NO_CONN);
}

void sml_registry_want_epoch(struct sml_registry *r, uint32_t conn) {
  struct sml_job_entry *job = &r->jobs[r->conns[conn].job];
  r->conns[conn].wants_epoch = true;
  job->num_wanting++;
  end_if_epoch_is_vain(r, job);
  if (job->state == SML_JOB_FREE || job->num_wanting < job->num_members) return;
  for (uint32_t c = job->first_member; c != SML_NO_CONN; c = r->conns[c].next) r->conns[c].wants_epoch = false;
  job->num_wanting = 0;
  /* From the beginning of the number space: where the first epoch began is a test's business. */
  sml_registry_send_start(r, job, SML_CTL_FIRST_PHASE, 0);
  sml_registry_note(r, SML_NOTE_EPOCH_RENEWED, job, 0, "all ranks have asked for it");
}

static void remove_member(struct sml_registry *r, struct sml_job_entry *job, uint32_t conn) {
  struct sml_conn *c = &r->conns[conn];
  if (c->prev != SML_NO_CONN) r->conns[c->prev].next = c->next;
  else job->first_member = c->next;
  if (c->next != SML_NO_CONN) r->conns[c->next].prev = c->prev;
  job->num_members--;
  job->num_probed -= c->has_probed;
  job->num_wanting -= c->wants_epoch;
  sml_bit_clear(job->present, c->rank);
  sml_registry_free_conn(c);
}

/* Number, name and slots are free from here on. */
static void close_job(struct sml_registry *r, struct sml_job_entry *job, enum sml_note note, const char *text) {
  SML_ASSERT(job->num_members == 0);
  if (job->state == SML_JOB_STARTED) sml_registry_give_windows(r, job, job->num_lanes);
  sml_registry_emit(r, SML_EFFECT_CLOSE_JOB)->job = (uint16_t)(job - r->jobs);
  sml_registry_note(r, note, job, 0, text);
  job->state = SML_JOB_FREE;
  sml_key_wipe(&job->tenant, sizeof job->tenant);
  sml_key_wipe(&job->data_key, sizeof job->data_key);
  sml_key_wipe(job->secret, sizeof job->secret);
  while (r->jobs_end > 0 && r->jobs[r->jobs_end - 1].state == SML_JOB_FREE) r->jobs_end--;
}

void sml_registry_end_job(struct sml_registry *r, struct sml_job_entry *job, const struct sml_ctl_message *farewell,
                          uint32_t silent_conn) {
  bool is_started = job->state == SML_JOB_STARTED;
  SML_ASSERT(farewell->kind == (is_started ? SML_CTL_ABORT : SML_CTL_REFUSE));
  while (job->first_member != SML_NO_CONN) {
    uint32_t conn = job->first_member;
    if (conn != silent_conn) sml_registry_send(r, conn, farewell);
    remove_member(r, job, conn);
    sml_registry_forget(r, conn);
  }
  close_job(r, job, is_started ? SML_NOTE_JOB_ABORTED : SML_NOTE_JOB_REFUSED,
            is_started ? farewell->u.abort.detail : farewell->u.refuse.detail);
}

void sml_registry_end_with(struct sml_registry *r, struct sml_job_entry *job, sml_status status, const uint16_t *ranks,
                           uint32_t num_ranks, const char *text, uint32_t silent_conn) {
  const bool is_started = job->state == SML_JOB_STARTED;
  sml_registry_end_job(r, job, sml_registry_farewell(r, is_started, status, ranks, num_ranks, text), silent_conn);
}

void sml_registry_depart(struct sml_registry *r, uint32_t conn, bool is_lost, const char *why) {
  struct sml_conn *c = &r->conns[conn];
  struct sml_job_entry *job = &r->jobs[c->job];
  uint32_t rank = c->rank;
  char *text = is_lost ? sml_registry_text(r, "rank %u (%s) was lost: %s", rank, c->host, why)
                       : sml_registry_text(r, "rank %u (%s) left the job", rank, c->host);
  sml_registry_note(r, is_lost ? SML_NOTE_RANK_LOST : SML_NOTE_RANK_LEFT, job, rank, text);
  remove_member(r, job, conn);
  if (job->num_members == 0) {
    close_job(r, job, SML_NOTE_JOB_ENDED, "all ranks are gone");
    return;
  }
  if (job->state == SML_JOB_JOINING) { /* the others wait on: it may join again until the deadline */
    struct sml_effect *effect = sml_registry_emit(r, SML_EFFECT_FORGET_RANK);
    effect->job = (uint16_t)(job - r->jobs);
    effect->rank = rank;
    return;
  }
  if (job->num_departed < SML_MAX_DEPARTURES) {
    struct sml_departure *departure = &job->departures[job->num_departed];
    departure->rank = rank;
    departure->is_lost = is_lost;
    departure->at_ns = r->latest_ns;
    memcpy(departure->host, c->host, sizeof departure->host);
    memcpy(departure->text, text, SML_DETAIL_BYTES);
  }
  job->num_departed++;
  sml_registry_note_gone(r, job, rank, text);
  end_if_epoch_is_vain(r, job);
}
