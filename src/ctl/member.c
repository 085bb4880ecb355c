/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/member.h"

#include <stdarg.h>
#include <stdio.h>

#include "ctl/member_start.h"
#include "switchml/switchml.h"

#define RETRY_NS (100 * SML_NS_PER_MS)
#define ATTEMPT_NS (3 * SML_NS_PER_S)
#define ATTEMPT_OF_SEVERAL_NS (1 * SML_NS_PER_S)
/* The aggregator gives up at the deadline too, and knows who is missing: let its answer come first. */
#define ANSWER_GRACE_NS (1 * SML_NS_PER_S)
#define LEAVE_NS (1 * SML_NS_PER_S)

void sml_member_init(struct sml_member *m, const struct sml_member_options *options) {
  SML_ASSERT(options->num_addresses > 0);
  memset(m, 0, sizeof *m);
  m->options = *options;
  m->state = SML_MEMBER_WAITING;
}

void sml_member_name_aggregator(struct sml_member *m, const char *text) {
  snprintf(m->options.aggregator, sizeof m->options.aggregator, "%s", text);
}

/* ---- effects ---- */

const struct sml_member_effect *sml_member_next_effect(struct sml_member *m) {
  if (m->first_effect < m->num_effects) return &m->effects[m->first_effect++];
  m->first_effect = m->num_effects = 0;
  return NULL;
}

static struct sml_member_effect *put(struct sml_member *m, enum sml_member_effect_kind kind) {
  SML_ASSERT(m->num_effects < SML_MEMBER_MAX_EFFECTS);
  struct sml_member_effect *effect = &m->effects[m->num_effects++];
  *effect = (struct sml_member_effect){.kind = kind};
  return effect;
}

static void pass_on(struct sml_member *m, enum sml_member_effect_kind kind, const struct sml_ctl_message *message) {
  put(m, kind)->message = message;
}

static void say(struct sml_member *m, enum sml_ctl_kind kind) {
  put(m, SML_MEMBER_SEND)->sent = kind;
}

static void cut(struct sml_member *m) {
  if (!m->has_connection) return;
  m->has_connection = false;
  put(m, SML_MEMBER_CLOSE);
}

void sml_member_compose(const struct sml_member *m, enum sml_ctl_kind kind, struct sml_ctl_message *message) {
  message->kind = kind;
  if (kind == SML_CTL_JOIN) message->u.join = m->options.join;
  else if (kind == SML_CTL_PROBED) message->u.probed = m->probed;
  else if (kind == SML_CTL_HEARTBEAT) message->u.heartbeat = m->heartbeat;
}

/* ---- ends ---- */

__attribute__((format(printf, 3, 4))) static void end(struct sml_member *m, sml_status status, const char *format,
                                                      ...) {
  va_list arguments;
  va_start(arguments, format);
  m->failure = (struct sml_ctl_abort){.status = status};
  vsnprintf(m->failure.detail, sizeof m->failure.detail, format, arguments);
  va_end(arguments);
  cut(m);
  m->state = SML_MEMBER_OVER;
  put(m, SML_MEMBER_ENDED);
}

/* An attempt failed before anything was promised: again, until the join's deadline. */
__attribute__((format(printf, 3, 4))) static void retry(struct sml_member *m, uint64_t now_ns, const char *format,
                                                        ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(m->attempt_failure, sizeof m->attempt_failure, format, arguments);
  va_end(arguments);
  cut(m);
  m->has_no_socket = false;
  m->state = SML_MEMBER_WAITING;
  m->attempt_ns = now_ns + RETRY_NS;
}

void sml_member_leave(struct sml_member *m, uint64_t now_ns) {
  if (m->state >= SML_MEMBER_LEAVING) return;
  if (m->has_connection && m->state >= SML_MEMBER_JOINING && !m->has_eof) {
    say(m, SML_CTL_GOODBYE);
    put(m, SML_MEMBER_FINISH);
    m->leave_deadline_ns = now_ns + LEAVE_NS;
    m->state = SML_MEMBER_LEAVING;
  } else {
    cut(m);
    m->state = SML_MEMBER_CLOSING;
  }
  put(m, SML_MEMBER_CANCEL_PROBE);
}

void sml_member_give_up(struct sml_member *m) {
  if (m->state >= SML_MEMBER_OVER) return;
  if (m->state < SML_MEMBER_PROBING) cut(m);
  m->state = SML_MEMBER_OVER;
}

/* ---- joining ---- */

static uint32_t overhead_bytes(const struct sml_member *m) {
  const bool is_checked = (m->options.join.features & SML_FEATURE_CHECK) != 0;
  return SML_CTL_HEADER_BYTES + (m->options.is_keyed ? SML_CTL_KEYED_BYTES : 0) +
         (is_checked ? SML_CTL_CHECK_BYTES : 0);
}

uint32_t sml_member_probe_bytes(const struct sml_member *m) {
  return m->only_datagram_bytes != 0 ? m->only_datagram_bytes : m->options.join.max_datagram_bytes;
}

void sml_member_join_anew(struct sml_member *m, uint64_t now_ns) {
  m->attempt_failure[0] = 0;
  m->attempt_ns = now_ns + RETRY_NS;
  cut(m);
  put(m, SML_MEMBER_CANCEL_PROBE);
  m->state = SML_MEMBER_CLEARING;
}

void sml_member_rejoin(struct sml_member *m, const struct sml_member_resume *resume, uint64_t now_ns) {
  struct sml_ctl_join *join = &m->options.join;
  join->features &= ~SML_FEATURE_NO_RESULT;
  if (resume->has_no_result) join->features |= SML_FEATURE_NO_RESULT;
  join->resume_operation = resume->resume_operation;
  join->oldest_operation = resume->oldest_operation;
  join->resume_chunk_bytes = resume->chunk_bytes;
  join->num_slots = resume->num_slots;
  m->only_datagram_bytes = resume->chunk_bytes + overhead_bytes(m);
  m->options.deadline_ns = resume->deadline_ns;
  sml_member_join_anew(m, now_ns);
}

void sml_member_on_attempt_due(struct sml_member *m, uint64_t now_ns) {
  if (m->state != SML_MEMBER_WAITING || now_ns < m->attempt_ns) return;
  put(m, SML_MEMBER_CONNECT)->address = m->num_attempts++ % m->options.num_addresses;
  m->has_connection = true;
  m->has_eof = m->was_challenged = m->was_welcomed = m->wants_report = false;
  m->num_asked = 0;
  m->state = SML_MEMBER_CONNECTING;
  m->attempt_ns = now_ns + (m->options.num_addresses > 1 ? ATTEMPT_OF_SEVERAL_NS : ATTEMPT_NS);
}

void sml_member_on_attempt_failed(struct sml_member *m, const char *why, uint64_t now_ns) {
  retry(m, now_ns, "%s", why);
}

void sml_member_on_no_socket(struct sml_member *m, const char *why, uint64_t now_ns) {
  retry(m, now_ns, "%s", why);
  m->has_no_socket = true;
}

void sml_member_on_connected(struct sml_member *m, uint64_t now_ns) {
  struct sml_ctl_join *join = &m->options.join;
  join->join_timeout_ns = m->options.deadline_ns > now_ns ? m->options.deadline_ns - now_ns : 1;
  for (size_t i = 0; m->options.is_keyed && i < SML_ARRAY_LEN(join->nonce); i++)
    join->nonce[i] = m->options.random(m->options.user);
  m->state = SML_MEMBER_JOINING;
  say(m, SML_CTL_JOIN);
}

void sml_member_on_probed(struct sml_member *m, const struct sml_ctl_probed *probed) {
  if (m->state == SML_MEMBER_PROBING) {
    m->probed = *probed;
    m->state = SML_MEMBER_PROBED;
    say(m, SML_CTL_PROBED);
  } else if (m->state == SML_MEMBER_CLEARING || m->state == SML_MEMBER_CLOSING) {
    m->state = m->state == SML_MEMBER_CLEARING ? SML_MEMBER_WAITING : SML_MEMBER_CLOSED;
    put(m, SML_MEMBER_LEAVE_GROUPS);
  }
}

/* ---- messages ---- */

static void take_challenge(struct sml_member *m, const struct sml_ctl_challenge *challenge) {
  m->was_challenged = true;
  m->challenge = *challenge;
  put(m, SML_MEMBER_SET_KEY);
  say(m, SML_CTL_AUTH);
}

static void take_welcome(struct sml_member *m, const struct sml_ctl_welcome *welcome, uint64_t now_ns) {
  const struct sml_member_options *o = &m->options;
  if (o->is_keyed && !m->was_challenged) {
    end(m, SML_ERR_KEY,
        "the aggregator at %s did not ask for a proof of key '%s': it has no keys, or is not the one that is "
        "meant",
        o->aggregator, o->join.key_name);
    return;
  }
  const uint32_t twin = o->find_twin(o->user, welcome);
  if (twin != SML_MEMBER_NO_RANK) {
    end(m, SML_ERR_INVALID_ARGUMENT,
        "ranks %u and %u of job '%s' are on one context: give each rank a context of its own", twin, o->join.rank,
        o->join.job_name);
    return;
  }
  if (welcome->num_lanes > o->join.num_lanes) {
    end(m, SML_ERR_PROTOCOL, "the aggregator at %s gave %u lanes where %u were offered", o->aggregator,
        welcome->num_lanes, o->join.num_lanes);
    return;
  }
  m->welcome = *welcome;
  m->was_welcomed = true;
  m->last_heard_ns = m->next_heartbeat_ns = now_ns;
  m->state = SML_MEMBER_PROBING;
  put(m, SML_MEMBER_PROBE);
}

static void take_start(struct sml_member *m, const struct sml_ctl_message *message) {
  const struct sml_ctl_start *start = &message->u.start;
  const struct sml_member_offer offer = {.join = &m->options.join,
                                         .num_lanes = m->welcome.num_lanes,
                                         .datagram_bytes = m->probed.datagram_bytes,
                                         .overhead_bytes = overhead_bytes(m),
                                         .hears_group = m->probed.hearing == SML_CTL_HEARS,
                                         .is_keyed = m->options.is_keyed};
  if (!sml_member_has_agreed(&offer, start)) {
    end(m, SML_ERR_PROTOCOL,
        "the aggregator at %s started the job with %u lanes, %u slots, chunks of %u bytes and features %x, "
        "which are not what was agreed",
        m->options.aggregator, start->num_lanes, start->num_slots, start->chunk_bytes, start->features);
    return;
  }
  if (!start->is_multicast || !sml_member_is_lead(start, m->options.join.rank)) put(m, SML_MEMBER_LEAVE_GROUPS);
  m->state = SML_MEMBER_RUNNING;
  pass_on(m, SML_MEMBER_STARTED, message);
}

void sml_member_on_message(struct sml_member *m, const struct sml_ctl_message *message, uint64_t now_ns) {
  const enum sml_member_state state = m->state;
  if (state >= SML_MEMBER_OVER) return;
  if (message->kind == SML_CTL_REFUSE) {
    end(m, (sml_status)message->u.refuse.status, "%s", message->u.refuse.detail);
  } else if (message->kind == SML_CTL_CHALLENGE && state == SML_MEMBER_JOINING && m->options.is_keyed &&
             !m->was_challenged) {
    take_challenge(m, &message->u.challenge);
  } else if (message->kind == SML_CTL_WELCOME && state == SML_MEMBER_JOINING) {
    take_welcome(m, &message->u.welcome, now_ns);
  } else if (message->kind == SML_CTL_START && (state == SML_MEMBER_PROBED || state == SML_MEMBER_RUNNING)) {
    take_start(m, message);
  } else if (message->kind == SML_CTL_ABORT && state > SML_MEMBER_JOINING) {
    m->failure = message->u.abort;
    m->state = SML_MEMBER_OVER; /* the connection stays, to say goodbye */
    put(m, SML_MEMBER_ENDED);
  } else if (message->kind == SML_CTL_RANK_GONE && state > SML_MEMBER_JOINING) {
    pass_on(m, SML_MEMBER_RANK_GONE, message);
  } else if (message->kind == SML_CTL_REPORT && m->num_asked > 0) {
    m->num_asked--;
    pass_on(m, SML_MEMBER_REPORTED, message);
  } else if (message->kind == SML_CTL_HEARTBEAT) {
    if (state == SML_MEMBER_RUNNING) pass_on(m, SML_MEMBER_HEARTBEAT, message);
  } else {
    end(m, SML_ERR_PROTOCOL, "the aggregator at %s sent a control message (%d) out of place", m->options.aggregator,
        (int)message->kind);
  }
}

void sml_member_on_garbage(struct sml_member *m, enum sml_ctl_decode verdict, uint64_t now_ns) {
  const char *who = m->options.aggregator;
  if (m->state >= SML_MEMBER_OVER) return;
  if (m->state == SML_MEMBER_JOINING && m->options.num_addresses > 1) /* its host has an address like that one's */
    retry(m, now_ns, "what answers there is another service");
  else if (verdict == SML_CTL_BAD_VERSION)
    end(m, SML_ERR_VERSION,
        "the aggregator at %s speaks another version of the control protocol than "
        "libswitchml %s: update one of them",
        who, SML_VERSION_TEXT);
  else if (verdict == SML_CTL_BAD_MAC && m->state == SML_MEMBER_JOINING)
    end(m, SML_ERR_KEY, "the aggregator at %s has another key '%s' than this rank: compare the key files", who,
        m->options.join.key_name);
  else if (verdict == SML_CTL_BAD_MAC)
    end(m, SML_ERR_KEY,
        "a control message that seems to come from the aggregator at %s is not authentic: "
        "somebody else writes into the connection",
        who);
  else
    end(m, SML_ERR_PROTOCOL, "what answers at %s is not a switchmld (its answer makes no sense): check the address",
        who);
}

void sml_member_on_closed(struct sml_member *m, const char *why, uint64_t now_ns) {
  m->has_eof = true;
  if (m->state <= SML_MEMBER_JOINING) {
    retry(m, now_ns, "it closed the connection without an answer (%s)", why);
  } else if (m->state < SML_MEMBER_OVER) {
    end(m, SML_ERR_AGGREGATOR_LOST,
        "the aggregator at %s closed the control connection (%s)%s: it has ended or was "
        "restarted",
        m->options.aggregator, why, m->state < SML_MEMBER_RUNNING ? " before the job had started" : "");
  } else {
    cut(m);
  }
}

/* ---- time ---- */

void sml_member_on_bytes(struct sml_member *m, uint64_t now_ns) {
  m->last_heard_ns = now_ns;
}

void sml_member_hasten_heartbeat(struct sml_member *m) {
  m->next_heartbeat_ns = 0;
}

void sml_member_ask(struct sml_member *m) {
  m->wants_report = true;
}

/* However short the lease: an aggregator has more to do than one rank. */
static uint64_t lost_ns(const struct sml_member *m) {
  return sml_max_u64(m->options.join.lease_ns, SML_CTL_LATE_NS);
}

void sml_member_forgive(struct sml_member *m, uint64_t late_ns, uint64_t now_ns) {
  m->last_heard_ns = sml_min_u64(now_ns, m->last_heard_ns + late_ns);
  if (late_ns < lost_ns(m) / 2) return;
  m->stopped_ns = late_ns;
  m->woke_ns = now_ns;
}

void sml_member_add_stop(const struct sml_member *m, uint64_t now_ns, char detail[SML_DETAIL_BYTES]) {
  const size_t used_bytes = strlen(detail);
  if (m->stopped_ns == 0 || now_ns - m->woke_ns >= lost_ns(m)) return;
  snprintf(detail + used_bytes, SML_DETAIL_BYTES - used_bytes,
           "; this process itself was stopped for at least %.1f s just before: after their lease of %.4g s the others "
           "go on without it",
           (double)m->stopped_ns / 1e9, (double)m->options.join.lease_ns / 1e9);
}

/* Datagrams of the aggregator's are signs of life as good as its messages. */
static void listen_to_data(struct sml_member *m, uint64_t num_packets, uint64_t now_ns) {
  if (m->state != SML_MEMBER_RUNNING) return;
  if (num_packets == m->num_packets) return;
  m->num_packets = num_packets;
  m->last_heard_ns = now_ns;
}

static void check_join(struct sml_member *m, uint64_t now_ns) {
  const struct sml_member_options *o = &m->options;
  if (m->state == SML_MEMBER_CONNECTING && now_ns >= m->attempt_ns)
    retry(m, now_ns, "no answer to the connection request");
  if (m->state <= SML_MEMBER_JOINING && now_ns >= o->deadline_ns) {
    if (m->state == SML_MEMBER_JOINING)
      end(m, SML_ERR_UNREACHABLE, "%s accepted the connection but did not answer: is it a switchmld?", o->aggregator);
    else if (m->has_no_socket)
      end(m, SML_ERR_UNREACHABLE, "no connection to the aggregator at %s: %s", o->aggregator, m->attempt_failure);
    else
      end(m, SML_ERR_UNREACHABLE, "no aggregator at %s: %s; is switchmld running there?", o->aggregator,
          m->attempt_failure[0] ? m->attempt_failure : "no answer to the connection request");
  } else if (m->state < SML_MEMBER_RUNNING && now_ns >= o->deadline_ns + ANSWER_GRACE_NS) {
    end(m, SML_ERR_TIMEOUT,
        "not all %u ranks of job '%s' joined in time: start the missing ones, or raise "
        "join_timeout_ns",
        o->join.world_size, o->join.job_name);
  }
}

static void check_lease(struct sml_member *m, uint64_t num_packets, uint64_t now_ns) {
  if (m->state != SML_MEMBER_RUNNING || now_ns < m->last_heard_ns + lost_ns(m)) return;
  listen_to_data(m, num_packets, now_ns);
  if (m->last_heard_ns == now_ns) return;
  end(m, SML_ERR_AGGREGATOR_LOST, "the aggregator at %s has been silent for %.1f s: it is stopped or cut off",
      m->options.aggregator, (double)(now_ns - m->last_heard_ns) / 1e9);
}

static void watch_silence(struct sml_member *m, uint64_t now_ns) {
  const bool is_silent = m->state == SML_MEMBER_RUNNING && now_ns >= m->last_heard_ns + SML_CTL_LATE_NS;
  if (is_silent && m->silent_since_ns == 0) {
    m->silent_since_ns = m->last_heard_ns;
    put(m, SML_MEMBER_SILENT)->since_ns = m->silent_since_ns;
  } else if (!is_silent && m->silent_since_ns != 0) {
    if (m->state == SML_MEMBER_RUNNING) put(m, SML_MEMBER_HEARD)->since_ns = m->silent_since_ns;
    m->silent_since_ns = 0;
  }
}

static void beat(struct sml_member *m, const struct sml_member_progress *progress, uint64_t now_ns) {
  if (!m->has_connection || m->state < SML_MEMBER_PROBING || m->state > SML_MEMBER_OVER) return;
  if (now_ns < m->next_heartbeat_ns) return;
  m->next_heartbeat_ns = now_ns + sml_ctl_heartbeat_ns(m->options.join.lease_ns);
  listen_to_data(m, progress->num_packets, now_ns);
  if (progress->is_stuck) return;
  m->heartbeat = (struct sml_ctl_heartbeat){.operations_submitted = progress->operations_submitted,
                                            .operations_completed = progress->operations_completed,
                                            .called = progress->called};
  const bool has_news = m->heartbeat.operations_completed != m->told_operation;
  m->told_operation = m->heartbeat.operations_completed;
  if (has_news && m->options.busy_heartbeat_ns != 0)
    m->next_heartbeat_ns = sml_min_u64(m->next_heartbeat_ns, now_ns + m->options.busy_heartbeat_ns);
  say(m, SML_CTL_HEARTBEAT);
}

/* Behind a heartbeat: the aggregator is to know what this rank has called. */
static void ask(struct sml_member *m, const struct sml_member_progress *progress, uint64_t now_ns) {
  if (!m->wants_report || m->state != SML_MEMBER_RUNNING) return;
  m->wants_report = false;
  m->next_heartbeat_ns = 0;
  beat(m, progress, now_ns);
  if (progress->is_stuck) return;
  m->num_asked++;
  say(m, SML_CTL_ASK);
}

void sml_member_on_timer(struct sml_member *m, const struct sml_member_progress *progress, uint64_t now_ns) {
  check_join(m, now_ns);
  check_lease(m, progress->num_packets, now_ns);
  watch_silence(m, now_ns);
  ask(m, progress, now_ns);
  beat(m, progress, now_ns);
  if (m->state != SML_MEMBER_LEAVING || (m->has_connection && now_ns < m->leave_deadline_ns)) return;
  cut(m);
  m->state = SML_MEMBER_CLOSING;
}

uint64_t sml_member_next_deadline(const struct sml_member *m) {
  uint64_t deadline_ns = SML_NEVER;
  if (m->state == SML_MEMBER_WAITING || m->state == SML_MEMBER_CONNECTING) deadline_ns = m->attempt_ns;
  if (m->state <= SML_MEMBER_JOINING) return sml_min_u64(deadline_ns, m->options.deadline_ns);
  if (m->state == SML_MEMBER_LEAVING) return m->leave_deadline_ns;
  if (m->has_connection && m->state <= SML_MEMBER_OVER) deadline_ns = m->next_heartbeat_ns;
  if (m->state < SML_MEMBER_RUNNING) return sml_min_u64(deadline_ns, m->options.deadline_ns + ANSWER_GRACE_NS);
  if (m->state == SML_MEMBER_RUNNING) return sml_min_u64(deadline_ns, m->last_heard_ns + lost_ns(m));
  return deadline_ns; /* OVER and CLOSING wait for others, who wake */
}
