/* SPDX-License-Identifier: Apache-2.0
 * Inputs, connections and deadlines; what they mean for a job is in registry_job.c. */
#include "ctl/registry.h"

#include <stdarg.h>
#include <stdio.h>

#include "ctl/registry_internal.h"

/* The largest input is a member lost while all others wait for an epoch (RANK_GONE, ABORT and CLOSE each),
 * or a stop (message and CLOSE each, two effects a job). */
static uint32_t count_effects(const struct sml_registry_options *o) {
  return 4 * o->max_connections + 2 * SML_REGISTRY_MAX_JOBS + 16;
}

static size_t place_conns(void) {
  return sml_align_up(sizeof(struct sml_registry), 64);
}
static size_t place_jobs(const struct sml_registry_options *o) {
  return sml_align_up(place_conns() + o->max_connections * sizeof(struct sml_conn), 64);
}
static size_t place_effects(const struct sml_registry_options *o) {
  return sml_align_up(place_jobs(o) + SML_REGISTRY_MAX_JOBS * sizeof(struct sml_job_entry), 64);
}

size_t sml_registry_memsize(const struct sml_registry_options *options) {
  return place_effects(options) + count_effects(options) * sizeof(struct sml_effect);
}

struct sml_registry *sml_registry_init(void *mem, const struct sml_registry_options *options) {
  SML_ASSERT(options->num_lanes >= 1 && options->num_lanes <= SML_MAX_LANES);
  SML_ASSERT(options->max_jobs <= SML_REGISTRY_MAX_JOBS && options->random);
  struct sml_registry *r = mem;
  r->options = *options;
  r->conns = (struct sml_conn *)((uint8_t *)mem + place_conns());
  r->jobs = (struct sml_job_entry *)((uint8_t *)mem + place_jobs(options));
  r->effects = (struct sml_effect *)((uint8_t *)mem + place_effects(options));
  r->max_effects = count_effects(options);
  r->sources.seed = options->random(options->random_user);
  for (uint32_t lane = 0; lane < options->num_lanes; lane++) sml_slot_pool_init(&r->pools[lane], options->pool_slots);
  return r;
}

/* --- effects --- */

void sml_registry_begin_input(struct sml_registry *r) {
  SML_ASSERT(r->effects_taken == r->num_effects); /* the owner took all of the last input's */
  r->num_effects = r->effects_taken = r->num_messages = r->num_texts = 0;
  while (r->conns_end > 0 && r->conns[r->conns_end - 1].state == SML_CONN_FREE) r->conns_end--;
}

struct sml_effect *sml_registry_emit(struct sml_registry *r, enum sml_effect_kind kind) {
  SML_ASSERT(r->num_effects < r->max_effects);
  struct sml_effect *effect = &r->effects[r->num_effects++];
  *effect = (struct sml_effect){.kind = kind, .conn = SML_NO_CONN};
  return effect;
}

struct sml_ctl_message *sml_registry_compose(struct sml_registry *r, enum sml_ctl_kind kind) {
  SML_ASSERT(r->num_messages < SML_MAX_CALL_MESSAGES);
  struct sml_ctl_message *message = &r->messages[r->num_messages++];
  memset(message, 0, sizeof *message);
  message->kind = kind;
  return message;
}

struct sml_ctl_message *sml_registry_farewell(struct sml_registry *r, bool is_started, sml_status status,
                                              const uint16_t *ranks, uint32_t num_ranks, const char *text) {
  struct sml_ctl_message *m = sml_registry_compose(r, is_started ? SML_CTL_ABORT : SML_CTL_REFUSE);
  if (is_started) {
    m->u.abort.status = status;
    m->u.abort.num_ranks = num_ranks;
    for (uint32_t i = 0; i < num_ranks; i++) m->u.abort.ranks[i] = ranks[i];
    snprintf(m->u.abort.detail, SML_DETAIL_BYTES, "%s", text);
  } else {
    m->u.refuse.status = status;
    snprintf(m->u.refuse.detail, SML_DETAIL_BYTES, "%s", text);
  }
  return m;
}

void sml_registry_send(struct sml_registry *r, uint32_t conn, const struct sml_ctl_message *message) {
  struct sml_effect *effect = sml_registry_emit(r, SML_EFFECT_SEND);
  effect->conn = conn;
  effect->message = message;
}

void sml_registry_forget(struct sml_registry *r, uint32_t conn) {
  sml_registry_emit(r, SML_EFFECT_CLOSE)->conn = conn;
  sml_registry_free_conn(&r->conns[conn]);
}

void sml_registry_free_conn(struct sml_conn *c) {
  c->state = SML_CONN_FREE;
  sml_key_wipe(&c->tenant, sizeof c->tenant);
}

char *sml_registry_text(struct sml_registry *r, const char *format, ...) {
  SML_ASSERT(r->num_texts < SML_MAX_CALL_MESSAGES);
  char *text = r->texts[r->num_texts++];
  memset(text, 0, SML_DETAIL_BYTES); /* it is copied whole into messages: no leftovers of another job */
  va_list args;
  va_start(args, format);
  vsnprintf(text, SML_DETAIL_BYTES, format, args);
  va_end(args);
  return text;
}

void sml_registry_note(struct sml_registry *r, enum sml_note note, const struct sml_job_entry *job, uint32_t rank,
                       const char *text) {
  struct sml_effect *effect = sml_registry_emit(r, SML_EFFECT_NOTE);
  effect->note = note;
  effect->rank = rank;
  effect->text = text;
  snprintf(effect->job_name, sizeof effect->job_name, "%s", job ? job->name : "");
  snprintf(effect->key_name, sizeof effect->key_name, "%s", job ? job->key_name : "");
  effect->job = job ? (uint16_t)(job - r->jobs) : 0;
  effect->epoch = job ? job->epoch : 0;
  effect->world_size = job ? job->world_size : 0;
}

const struct sml_effect *sml_registry_next_effect(struct sml_registry *r) {
  return r->effects_taken < r->num_effects ? &r->effects[r->effects_taken++] : NULL;
}

/* --- connections --- */

static bool is_waiting(const struct sml_conn *c) {
  return c->state != SML_CONN_FREE && c->state != SML_CONN_MEMBER;
}

/* The connection of one source, or (NULL) of all, that has not joined and has said nothing for longest. */
static uint32_t find_oldest_waiting(const struct sml_registry *r, const uint64_t *source) {
  uint32_t oldest = SML_NO_CONN;
  for (uint32_t i = 0; i < r->conns_end; i++) {
    const struct sml_conn *c = &r->conns[i];
    if (!is_waiting(c) || (source && c->source != *source)) continue;
    if (oldest == SML_NO_CONN || c->heard_at_ns < r->conns[oldest].heard_at_ns) oldest = i;
  }
  return oldest;
}

/* Who must go when a host keeps too many waiting: the oldest, since ranks join at once. SML_NO_CONN: nobody. */
static uint32_t find_over_limit(const struct sml_registry *r, uint64_t source) {
  uint32_t num_waiting = 0;
  for (uint32_t i = 0; i < r->conns_end; i++) num_waiting += is_waiting(&r->conns[i]) && r->conns[i].source == source;
  return num_waiting > r->options.max_unjoined_per_host ? find_oldest_waiting(r, &source) : SML_NO_CONN;
}

static void note_limited(struct sml_registry *r, const char *host, uint64_t now_ns) {
  if (r->limit_noted_ns != 0 && now_ns - r->limit_noted_ns < SML_NS_PER_S) return;
  r->limit_noted_ns = now_ns;
  sml_registry_note(r, SML_NOTE_HOST_LIMITED, NULL, 0,
                    sml_registry_text(r, "%s opens connections too fast, or joins with too few of them", host));
}

static void take_host(const char *peer, char host[SML_PEER_BYTES]) {
  size_t host_bytes = strlen(peer);
  for (size_t i = 0; peer[i]; i++)
    if (peer[i] == ':') host_bytes = i; /* the last one: IPv6 has more */
  snprintf(host, SML_PEER_BYTES, "%.*s", (int)host_bytes, peer);
}

bool sml_registry_admits(struct sml_registry *r, const char *peer, uint64_t now_ns) {
  const uint32_t per_s = r->options.new_connections_per_s;
  char host[SML_PEER_BYTES];
  sml_registry_begin_input(r);
  take_host(peer, host);
  if (per_s == 0 || sml_source_admit(&r->sources, sml_source_of(host), per_s, now_ns)) return true;
  note_limited(r, host, now_ns);
  return false;
}

void sml_registry_on_opened(struct sml_registry *r, uint32_t conn, const char *peer, uint64_t now_ns) {
  sml_registry_begin_input(r);
  r->latest_ns = now_ns;
  struct sml_conn *c = &r->conns[conn];
  SML_ASSERT(conn < r->options.max_connections && c->state == SML_CONN_FREE);
  *c = (struct sml_conn){.state = SML_CONN_UNJOINED, .heard_at_ns = now_ns};
  r->conns_end = sml_max_u32(r->conns_end, conn + 1);
  snprintf(c->peer, sizeof c->peer, "%s", peer);
  take_host(c->peer, c->host);
  c->source = sml_source_of(c->host);
  const uint32_t unwanted = find_over_limit(r, c->source);
  if (unwanted == SML_NO_CONN) return;
  note_limited(r, c->host, now_ns);
  sml_registry_forget(r, unwanted);
}

bool sml_registry_on_full(struct sml_registry *r, uint64_t now_ns) {
  sml_registry_begin_input(r);
  uint32_t oldest = find_oldest_waiting(r, NULL);
  if (oldest == SML_NO_CONN) return sml_registry_make_room(r, now_ns);
  sml_registry_forget(r, oldest);
  return true;
}

void sml_registry_on_closed(struct sml_registry *r, uint32_t conn, enum sml_close_cause cause) {
  sml_registry_begin_input(r);
  struct sml_conn *c = &r->conns[conn];
  if (c->state == SML_CONN_MEMBER) {
    sml_registry_depart(r, conn, true,
                        cause == SML_CLOSED_FIN     ? "connection closed without goodbye"
                        : cause == SML_CLOSED_RESET ? "connection reset without goodbye"
                                                    : "it does not read its control connection");
  }
  sml_registry_free_conn(c);
}

/* The peer broke the order of messages: it is told why (or the reason would look like a lost
 * aggregator), and is gone for its job. */
static void throw_out(struct sml_registry *r, uint32_t conn, sml_status status, const char *why) {
  struct sml_conn *c = &r->conns[conn];
  bool is_member = c->state == SML_CONN_MEMBER;
  bool is_started = is_member && r->jobs[c->job].state == SML_JOB_STARTED;
  uint16_t rank = (uint16_t)c->rank;
  const char *text = why;
  if (is_member) text = sml_registry_text(r, "rank %u (%s) was lost: %.180s", c->rank, c->host, why);
  sml_registry_send(r, conn, sml_registry_farewell(r, is_started, status, &rank, 1, text));
  if (is_member) sml_registry_depart(r, conn, true, why);
  sml_registry_forget(r, conn);
}

void sml_registry_on_garbage(struct sml_registry *r, uint32_t conn, enum sml_ctl_decode verdict) {
  sml_registry_begin_input(r);
  struct sml_conn *c = &r->conns[conn];
  if (c->state == SML_CONN_FREE) return;
  if (verdict == SML_CTL_BAD_VERSION) {
    throw_out(r, conn, SML_ERR_VERSION,
              sml_registry_text(r,
                                "the aggregator speaks control protocol version %d only: install the same "
                                "switchml version on all machines",
                                SML_CTL_VERSION));
  } else if (c->state == SML_CONN_MEMBER) {
    bool is_mac = verdict == SML_CTL_BAD_MAC;
    throw_out(r, conn, is_mac ? SML_ERR_KEY : SML_ERR_PROTOCOL,
              is_mac ? "a control message came with a wrong MAC: somebody changed or repeated it on its way"
                     : "malformed data on the control connection");
  } else if (verdict == SML_CTL_BAD_MAC && c->state == SML_CONN_CHALLENGED) {
    sml_registry_bad_mac(r, conn);
  } else { /* not one of ours: nothing to say to it */
    sml_registry_forget(r, conn);
  }
}

static void abort_by_member(struct sml_registry *r, uint32_t conn, const struct sml_ctl_abort *abort) {
  struct sml_conn *c = &r->conns[conn];
  struct sml_job_entry *job = &r->jobs[c->job];
  uint16_t ranks[SML_CTL_MAX_RANKS];
  uint32_t num_ranks = 0;
  for (uint32_t i = 0; i < abort->num_ranks; i++)
    if (abort->ranks[i] < job->world_size) ranks[num_ranks++] = abort->ranks[i];
  if (num_ranks == 0) ranks[num_ranks++] = (uint16_t)c->rank;
  /* A member that gives up because it heard of a lost rank only repeats us: the others get the cause. */
  bool is_echo = abort->status == SML_ERR_RANK_LOST && !sml_bit_test(job->present, ranks[0]);
  const char *text = is_echo ? sml_registry_departure(r, job, ranks[0])
                             : sml_registry_text(r, "rank %u (%s) aborted the job: %.420s", c->rank, c->host,
                                                 abort->detail[0] ? abort->detail : "no reason given");
  sml_registry_end_with(r, job, (sml_status)abort->status, ranks, num_ranks, text, conn);
}

static const char *const kind_names[] = {
    "",       "JOIN",      "WELCOME", "PROBED", "START",       "HEARTBEAT", "EPOCH",  "ABORT", "RANK_GONE", "GOODBYE",
    "REFUSE", "CHALLENGE", "AUTH",    "STATUS", "STATUS_PART", "ASK",       "REPORT", "EVICT", "EVICTED"};

/* Ranks that keep inputs learn soon that they need not any more, but not of each operation. */
static void take_progress(struct sml_registry *r, uint32_t conn, uint64_t completed, uint64_t now_ns) {
  struct sml_conn *c = &r->conns[conn];
  struct sml_job_entry *job = &r->jobs[c->job];
  if (completed <= c->completed) return;
  c->completed = completed;
  if (job->state != SML_JOB_STARTED || !(job->features & SML_FEATURE_RETRY)) return;
  job->early_at_ns =
      sml_min_u64(job->early_at_ns, sml_max_u64(now_ns, job->looked_at_ns + sml_ctl_heartbeat_ns(job->lease_ns) / 4));
}

/* They called different operations, as their datagrams or their heartbeats show. */
static void end_differing(struct sml_registry *r, struct sml_job_entry *entry, uint32_t rank_a, uint32_t rank_b) {
  const uint32_t low = sml_min_u32(rank_a, rank_b), high = sml_max_u32(rank_a, rank_b);
  static const char advice[] =
      "every rank must call the same operations in the same order, with the same sizes, types, reductions and keys";
  uint16_t ranks[2 * SML_CTL_MAX_RANKS] = {(uint16_t)low, (uint16_t)high};
  char one[96], other[96];
  uint32_t num_low = sml_registry_describe(r, entry, low, one, sizeof one, ranks, SML_CTL_MAX_RANKS);
  uint32_t num_high = sml_registry_describe(r, entry, high, other, sizeof other,
                                            ranks + sml_min_u32(num_low, SML_CTL_MAX_RANKS), SML_CTL_MAX_RANKS);
  bool is_plain = num_low == 1 && num_high == 1;
  char *text = is_plain ? sml_registry_text(r, "ranks %u and %u called different operations: %s", low, high, advice)
                        : sml_registry_text(r, "%s and %s called different operations: %s", one, other, advice);
  if (num_low + num_high > SML_CTL_MAX_RANKS) { /* then those that lead */
    ranks[0] = (uint16_t)low;
    ranks[1] = (uint16_t)high;
    num_low = num_high = 1;
  }
  sml_registry_end_with(r, entry, SML_ERR_MISMATCH, ranks, num_low + num_high, text, SML_NO_CONN);
}

/* PROTOCOL.md rule R223. Ranks of one contributor find it in their memory. */
static void compare_called(struct sml_registry *r, uint32_t conn, const struct sml_ctl_heartbeat *heartbeat) {
  const struct sml_conn *c = &r->conns[conn];
  struct sml_job_entry *job = &r->jobs[c->job];
  const uint64_t number = heartbeat->operations_completed;
  if (job->state != SML_JOB_STARTED || heartbeat->called == 0) return;
  if (job->called == 0 || number > job->called_number) {
    job->called = heartbeat->called;
    job->called_number = number;
    job->called_rank = c->rank;
    job->called_contributor = c->contributor;
  } else if (number == job->called_number && heartbeat->called != job->called &&
             c->contributor != job->called_contributor) {
    end_differing(r, job, job->called_rank, c->rank);
  }
}

static void ask(struct sml_registry *r, uint32_t conn) {
  struct sml_effect *effect = sml_registry_emit(r, SML_EFFECT_REPORT);
  effect->conn = conn;
  effect->job = r->conns[conn].job;
  effect->epoch = r->jobs[effect->job].epoch;
}

static void on_member_message(struct sml_registry *r, uint32_t conn, const struct sml_ctl_message *m, uint64_t now_ns) {
  struct sml_conn *c = &r->conns[conn];
  struct sml_job_entry *job = &r->jobs[c->job];
  bool is_joining = job->state == SML_JOB_JOINING;
  bool is_expected = true;
  switch (m->kind) {
    case SML_CTL_HEARTBEAT:
      sml_registry_note_called(r, c, m->u.heartbeat.operations_submitted, now_ns);
      take_progress(r, conn, m->u.heartbeat.operations_completed, now_ns);
      compare_called(r, conn, &m->u.heartbeat);
      break;
    case SML_CTL_ASK:
      is_expected = !is_joining;
      if (is_expected) ask(r, conn);
      break;
    case SML_CTL_PROBED:
      is_expected = is_joining && !c->has_probed;
      if (is_expected) sml_registry_probed(r, conn, &m->u.probed);
      break;
    case SML_CTL_EPOCH:
      is_expected = !is_joining && !c->wants_epoch && m->u.epoch.epoch == job->epoch;
      if (is_expected) sml_registry_want_epoch(r, conn);
      break;
    case SML_CTL_ABORT: abort_by_member(r, conn, &m->u.abort); break;
    case SML_CTL_GOODBYE:
      sml_registry_depart(r, conn, false, "");
      sml_registry_forget(r, conn);
      break;
    default: is_expected = false;
  }
  if (is_expected) return;
  throw_out(r, conn, SML_ERR_PROTOCOL,
            sml_registry_text(r, "control message %s does not belong here", kind_names[m->kind]));
}

static bool is_too_fast(struct sml_registry *r, struct sml_conn *c, uint64_t now_ns) {
  uint32_t per_s = r->options.max_messages_per_s;
  return per_s > 0 && !sml_pace_admit(&c->paced_ns, SML_NS_PER_S / per_s, SML_NS_PER_S, now_ns);
}

void sml_registry_on_message(struct sml_registry *r, uint32_t conn, const struct sml_ctl_message *message,
                             uint64_t now_ns) {
  sml_registry_begin_input(r);
  r->latest_ns = now_ns;
  struct sml_conn *c = &r->conns[conn];
  if (c->state == SML_CONN_FREE) return;
  if (is_too_fast(r, c, now_ns)) {
    throw_out(r, conn, SML_ERR_PROTOCOL,
              sml_registry_text(r, "it sends more than %u control messages a second", r->options.max_messages_per_s));
  } else if (c->state == SML_CONN_MEMBER) {
    c->heard_at_ns = now_ns;
    on_member_message(r, conn, message, now_ns);
  } else if (message->kind == SML_CTL_GOODBYE) {
    sml_registry_forget(r, conn);
  } else if (c->state == SML_CONN_UNJOINED && message->kind == SML_CTL_JOIN) {
    sml_registry_challenge(r, conn, &message->u.join, now_ns);
  } else if (message->kind == SML_CTL_STATUS && c->state != SML_CONN_CHALLENGED) {
    sml_registry_show(r, conn, &message->u.status);
  } else if (message->kind == SML_CTL_EVICT && c->state != SML_CONN_CHALLENGED) {
    sml_registry_evict(r, conn, &message->u.evict);
  } else if (c->state == SML_CONN_CHALLENGED && message->kind == SML_CTL_AUTH) {
    sml_registry_take_auth(r, conn, now_ns);
  } else {
    throw_out(r, conn, SML_ERR_PROTOCOL,
              c->state != SML_CONN_CHALLENGED ? "the first control message must be JOIN"
                                              : "the answer to CHALLENGE must be AUTH");
  }
}

/* --- engines --- */

struct sml_job_entry *sml_registry_find_started(struct sml_registry *r, uint16_t job, uint32_t epoch) {
  if (job >= SML_REGISTRY_MAX_JOBS) return NULL;
  struct sml_job_entry *entry = &r->jobs[job];
  return entry->state == SML_JOB_STARTED && entry->epoch == epoch ? entry : NULL;
}

void sml_registry_on_mismatch(struct sml_registry *r, uint16_t job, uint32_t epoch, uint32_t rank_a, uint32_t rank_b) {
  sml_registry_begin_input(r);
  struct sml_job_entry *entry = sml_registry_find_started(r, job, epoch);
  if (entry) end_differing(r, entry, rank_a, rank_b);
}

void sml_registry_on_blocked(struct sml_registry *r, uint16_t job, uint32_t epoch, uint32_t rank) {
  sml_registry_begin_input(r);
  struct sml_job_entry *entry = sml_registry_find_started(r, job, epoch);
  if (!entry) return;
  uint16_t ranks[1] = {(uint16_t)rank};
  const char *text = sml_registry_departure(r, entry, rank);
  sml_registry_end_with(r, entry, SML_ERR_RANK_LOST, ranks, 1, text, SML_NO_CONN);
}

void sml_registry_on_jump(struct sml_registry *r, uint16_t job, uint32_t epoch, uint32_t rank) {
  sml_registry_begin_input(r);
  struct sml_job_entry *entry = sml_registry_find_started(r, job, epoch);
  if (!entry) return;
  uint16_t ranks[1] = {(uint16_t)rank};
  char *text = sml_registry_text(r,
                                 "rank %u sent a packet that no working library sends (phase jumped): check that "
                                 "all ranks run the same switchml version",
                                 rank);
  sml_registry_end_with(r, entry, SML_ERR_PROTOCOL, ranks, 1, text, SML_NO_CONN);
}

void sml_registry_on_job_failed(struct sml_registry *r, uint16_t job, uint32_t epoch, const char *why) {
  sml_registry_begin_input(r);
  struct sml_job_entry *entry = &r->jobs[job];
  if (entry->state == SML_JOB_FREE || entry->epoch != epoch) return;
  sml_registry_end_with(
      r, entry, why ? SML_ERR_AGGREGATOR_LOST : SML_ERR_NO_MEMORY, NULL, 0,
      why ? why : "the aggregator has no memory for this job: ask for fewer slots or smaller datagrams", SML_NO_CONN);
}

void sml_registry_on_stop(struct sml_registry *r) {
  sml_registry_begin_input(r);
  static const char text[] = "the aggregator is shutting down";
  struct sml_ctl_message *abort = sml_registry_farewell(r, true, SML_ERR_AGGREGATOR_LOST, NULL, 0, text);
  struct sml_ctl_message *refuse = sml_registry_farewell(r, false, SML_ERR_AGGREGATOR_LOST, NULL, 0, text);
  for (uint32_t i = 0; i < r->jobs_end; i++) {
    struct sml_job_entry *job = &r->jobs[i];
    if (job->state == SML_JOB_FREE) continue;
    sml_registry_end_job(r, job, job->state == SML_JOB_STARTED ? abort : refuse, SML_NO_CONN);
  }
  for (uint32_t i = 0; i < r->conns_end; i++)
    if (r->conns[i].state != SML_CONN_FREE) sml_registry_forget(r, i);
}

/* --- time --- */

static uint64_t conn_deadline(const struct sml_registry *r, const struct sml_conn *c) {
  if (c->state == SML_CONN_FREE) return SML_NEVER;
  if (c->state == SML_CONN_MEMBER) return c->heard_at_ns + r->jobs[c->job].lease_ns;
  return c->heard_at_ns + r->options.join_grace_ns;
}

static uint64_t job_deadline(const struct sml_job_entry *job) {
  if (job->state == SML_JOB_FREE) return SML_NEVER;
  if (job->state == SML_JOB_JOINING) return sml_min_u64(job->deadline_ns, job->heartbeat_at_ns);
  return sml_min_u64(sml_registry_tell_deadline(job), sml_min_u64(job->early_at_ns, job->heartbeat_at_ns));
}

uint64_t sml_registry_next_deadline(const struct sml_registry *r) {
  uint64_t deadline_ns = SML_NEVER;
  for (uint32_t i = 0; i < r->conns_end; i++) deadline_ns = sml_min_u64(deadline_ns, conn_deadline(r, &r->conns[i]));
  for (uint32_t i = 0; i < r->jobs_end; i++) deadline_ns = sml_min_u64(deadline_ns, job_deadline(&r->jobs[i]));
  return deadline_ns;
}

void sml_registry_forgive(struct sml_registry *r, uint64_t late_ns, uint64_t now_ns) {
  for (uint32_t i = 0; i < r->conns_end; i++) {
    struct sml_conn *c = &r->conns[i];
    if (c->state == SML_CONN_MEMBER) c->heard_at_ns = sml_min_u64(now_ns, c->heard_at_ns + late_ns);
  }
}

static void expire_conn(struct sml_registry *r, uint32_t conn) {
  struct sml_conn *c = &r->conns[conn];
  if (c->state == SML_CONN_MEMBER) {
    if (sml_registry_listen(r, c, r->latest_ns)) return;
    uint64_t lease_ms = r->jobs[c->job].lease_ns / SML_NS_PER_MS;
    char *why = sml_registry_text(r, "silent for longer than its lease of %llu ms", (unsigned long long)lease_ms);
    throw_out(r, conn, SML_ERR_RANK_LOST, why);
  } else {
    sml_registry_forget(r, conn);
  }
}

/* At their time, and before it only if more is confirmed. */
static void send_heartbeats(struct sml_registry *r, struct sml_job_entry *job, uint64_t now_ns) {
  uint64_t confirmed = sml_registry_confirmed(r, job);
  bool is_news = confirmed > job->confirmed;
  job->confirmed = confirmed;
  job->early_at_ns = SML_NEVER;
  job->looked_at_ns = now_ns;
  if (!is_news && job->heartbeat_at_ns > now_ns) return;
  struct sml_ctl_message *m = sml_registry_compose(r, SML_CTL_HEARTBEAT);
  m->u.heartbeat.operations_completed = confirmed;
  for (uint32_t c = job->first_member; c != SML_NO_CONN; c = r->conns[c].next) sml_registry_send(r, c, m);
  if (job->heartbeat_at_ns <= now_ns) sml_registry_watch_lateness(r, job, now_ns);
  job->heartbeat_at_ns = now_ns + sml_ctl_heartbeat_ns(job->lease_ns);
}

void sml_registry_on_timer(struct sml_registry *r, uint64_t now_ns) {
  sml_registry_begin_input(r);
  r->latest_ns = now_ns;
  for (uint32_t i = 0; i < r->conns_end; i++) {
    if (conn_deadline(r, &r->conns[i]) > now_ns) continue;
    expire_conn(r, i);
    return;
  }
  for (uint32_t i = 0; i < r->jobs_end; i++) {
    struct sml_job_entry *job = &r->jobs[i];
    if (job_deadline(job) > now_ns) continue;
    if (job->state == SML_JOB_JOINING && job->deadline_ns <= now_ns) sml_registry_join_timeout(r, job);
    else if (sml_registry_tell_deadline(job) <= now_ns) sml_registry_tell_gone(r, job, now_ns);
    else send_heartbeats(r, job, now_ns);
    return;
  }
}

void sml_registry_counts(const struct sml_registry *r, struct sml_registry_counts *counts_out) {
  *counts_out = (struct sml_registry_counts){0};
  for (uint32_t i = 0; i < r->conns_end; i++) {
    counts_out->connections += r->conns[i].state != SML_CONN_FREE;
    counts_out->unjoined += is_waiting(&r->conns[i]);
  }
  for (uint32_t i = 0; i < r->jobs_end; i++) {
    const struct sml_job_entry *job = &r->jobs[i];
    counts_out->jobs_joining += job->state == SML_JOB_JOINING;
    counts_out->jobs_started += job->state == SML_JOB_STARTED;
    if (job->state == SML_JOB_STARTED) counts_out->slots_used += sml_registry_all_slots(job);
  }
}
