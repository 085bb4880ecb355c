/* SPDX-License-Identifier: Apache-2.0
 * Both halves of the control protocol face to face: the daemon's registry (test_registry_world.h) and ranks' members,
 * in one thread and virtual time. Each step goes on until nobody has anything to say; what happened to each rank's job
 * is its line. */
#pragma once

#include "ctl/member.h"
#include "ctl/test_registry_world.h"

#define MAX_RANKS 4u
#define MAX_INBOX 16u
#define STEP_NS (50 * MS) /* a member's and the daemon's deadlines are met that late at most */

struct rank {
  struct sml_member m;
  uint32_t conn; /* MAX_CONNS: none */
  bool is_probing;
  bool is_stopped;         /* it does not run */
  bool is_cut_off;         /* its messages are lost, and the daemon's to it */
  uint32_t datagram_bytes; /* that come back to it */
  struct sml_member_progress progress;
  struct sml_ctl_start start;
  uint64_t due_ns; /* when its next pass was to be */
  uint32_t num_in, num_connects;
  uint32_t num_heard, most_heard; /* messages but heartbeats; what comes behind the last one stays on its way */
  bool is_hung_up;
  struct sml_ctl_message inbox[MAX_INBOX];
  char line[512];
};
static struct rank ranks[MAX_RANKS];
static uint32_t num_ranks;
/* For whole jobs (test_job_world.h), or NULL: a member's news; before each of its passes; when all is said. */
static void (*on_told)(uint32_t rank, const struct sml_member_effect *effect);
static void (*on_tick)(uint32_t rank);
static bool (*on_settled)(void); /* true: it did something */
static bool is_down, is_deaf;    /* the daemon: nobody listens; it takes connections and says nothing */

static inline uint64_t draw_for_rank(void *user) {
  (void)user;
  return sml_prng_next(&w.prng);
}
static inline uint32_t twin_of(void *user, const struct sml_ctl_welcome *welcome) {
  (void)user, (void)welcome;
  return SML_MEMBER_NO_RANK;
}

static inline struct rank *rank_at(uint32_t conn) {
  for (uint32_t i = 0; i < num_ranks; i++)
    if (ranks[i].conn == conn) return &ranks[i];
  return NULL;
}
static inline void take_sent(uint32_t conn, const struct sml_ctl_message *message) {
  struct rank *k = rank_at(conn);
  if (k == NULL || k->is_cut_off) return;
  assert_true(k->num_in < MAX_INBOX);
  k->inbox[k->num_in++] = *message;
}
static inline void take_hung_up(uint32_t conn) {
  struct rank *k = rank_at(conn);
  if (k != NULL && !k->is_cut_off) k->is_hung_up = true;
}

static inline struct sml_member_options member_options(uint32_t rank, uint32_t world_size) {
  struct sml_member_options o = {.join = join_message("x", rank, world_size).u.join,
                                 .aggregator = "10.0.0.9:4242",
                                 .num_addresses = 1,
                                 .is_keyed = is_keyed,
                                 .deadline_ns = w.now_ns + 60 * S,
                                 .random = draw_for_rank,
                                 .find_twin = twin_of};
  if (is_keyed) o.join.key_name[0] = 'a';
  return o;
}
static inline void begin_rank(uint32_t rank, const struct sml_member_options *options) {
  struct rank *k = &ranks[rank];
  memset(k, 0, sizeof *k);
  k->conn = MAX_CONNS;
  k->datagram_bytes = 8960;
  k->most_heard = UINT32_MAX;
  num_ranks = sml_max_u32(num_ranks, rank + 1);
  sml_member_init(&k->m, options);
}
/* A daemon, and ranks that have not connected yet. */
static inline void begin_world(uint32_t world_size) {
  begin();
  on_sent = take_sent;
  on_hung_up = take_hung_up;
  num_ranks = 0;
  is_down = is_deaf = false;
  on_told = NULL;
  on_tick = NULL;
  on_settled = NULL;
  for (uint32_t i = 0; i < world_size; i++) {
    const struct sml_member_options o = member_options(i, world_size);
    begin_rank(i, &o);
  }
}

/* ---- what a member wants done ---- */

static inline void hang_up(struct rank *k, enum sml_close_cause cause) {
  const uint32_t conn = k->conn;
  k->conn = MAX_CONNS;
  k->num_in = 0;
  k->is_hung_up = false;
  if (conn < MAX_CONNS && w.is_open[conn] && !is_deaf) closed(conn, cause);
}
static inline void connect_rank(struct rank *k) {
  uint32_t conn = 0;
  k->num_connects++;
  if (is_down) {
    sml_member_on_attempt_failed(&k->m, "Connection refused", w.now_ns);
    return;
  }
  if (k->is_cut_off) return; /* no answer */
  while (conn < MAX_CONNS && (w.is_open[conn] || rank_at(conn) != NULL)) conn++;
  assert_true(conn < MAX_CONNS);
  k->conn = conn;
  k->num_in = 0;
  k->is_hung_up = false;
  opened(conn);
  sml_member_on_connected(&k->m, w.now_ns);
}
static inline void send_from(struct rank *k, enum sml_ctl_kind kind) {
  struct sml_ctl_message m;
  if (k->conn == MAX_CONNS || k->is_cut_off || is_deaf || !w.is_open[k->conn]) return;
  memset(&m, 0, sizeof m);
  sml_member_compose(&k->m, kind, &m);
  said_once(k->conn, &m);
}
#define NOTE(k, ...) add((k)->line, sizeof(k)->line, __VA_ARGS__)
static inline void note_effect(struct rank *k, const struct sml_member_effect *e) {
  switch (e->kind) {
    case SML_MEMBER_STARTED:
      k->start = e->message->u.start;
      NOTE(k, "started e%u; ", name_of(k->start.epoch));
      break;
    case SML_MEMBER_ENDED: NOTE(k, "ended %d; ", k->m.failure.status); break;
    case SML_MEMBER_RANK_GONE: NOTE(k, "gone r%u; ", e->message->u.rank_gone.ranks[0]); break;
    case SML_MEMBER_REPORTED: NOTE(k, "reported; "); break;
    case SML_MEMBER_SILENT: NOTE(k, "silent; "); break;
    case SML_MEMBER_HEARD: NOTE(k, "heard; "); break;
    default: assert_int_equal(e->kind, SML_MEMBER_HEARTBEAT);
  }
  if (on_told != NULL) on_told((uint32_t)(k - ranks), e);
}
/* True: there was one. */
static inline bool carry_out(struct rank *k) {
  const struct sml_member_effect *e;
  bool is_first = true;
  for (; (e = sml_member_next_effect(&k->m)) != NULL; is_first = false)
    if (e->kind == SML_MEMBER_CONNECT) connect_rank(k);
    else if (e->kind == SML_MEMBER_SEND) send_from(k, e->sent);
    else if (e->kind == SML_MEMBER_SET_KEY) assert_true(is_keyed); /* test_registry_world.h does */
    else if (e->kind == SML_MEMBER_CLOSE) hang_up(k, SML_CLOSED_FIN);
    else if (e->kind == SML_MEMBER_PROBE) k->is_probing = true;
    else if (e->kind != SML_MEMBER_CANCEL_PROBE && e->kind != SML_MEMBER_LEAVE_GROUPS && e->kind != SML_MEMBER_FINISH)
      note_effect(k, e);
  return !is_first;
}

/* ---- time ---- */

static inline bool feed(struct rank *k) {
  if (k->num_in > 0 && k->num_heard < k->most_heard) {
    const struct sml_ctl_message m = k->inbox[0];
    memmove(k->inbox, k->inbox + 1, --k->num_in * sizeof m);
    k->num_heard += m.kind != SML_CTL_HEARTBEAT;
    sml_member_on_bytes(&k->m, w.now_ns);
    sml_member_on_message(&k->m, &m, w.now_ns);
    carry_out(k);
  } else if (k->is_hung_up) {
    k->is_hung_up = false;
    sml_member_on_closed(&k->m, "end of stream", w.now_ns);
    carry_out(k);
  } else {
    return false;
  }
  return true;
}
static inline bool pass(struct rank *k) {
  const enum sml_member_state before = k->m.state;
  if (k->due_ns != 0 && w.now_ns > k->due_ns) sml_member_forgive(&k->m, w.now_ns - k->due_ns, w.now_ns);
  if (on_tick != NULL) on_tick((uint32_t)(k - ranks));
  sml_member_on_attempt_due(&k->m, w.now_ns);
  bool has_done = carry_out(k);
  while (feed(k)) has_done = true;
  sml_member_on_timer(&k->m, &k->progress, w.now_ns);
  has_done |= carry_out(k);
  const struct sml_ctl_probed probed = {.datagram_bytes = k->datagram_bytes, .rtt_ns = MS};
  if (k->is_probing || k->m.state == SML_MEMBER_CLEARING || k->m.state == SML_MEMBER_CLOSING)
    sml_member_on_probed(&k->m, &probed);
  k->is_probing = false;
  has_done |= carry_out(k);
  k->due_ns = sml_member_next_deadline(&k->m);
  return has_done || k->m.state != before;
}
/* Until nobody has anything to say. */
static inline void settle(void) {
  bool has_done = true;
  for (uint32_t round = 0; has_done; round++) {
    assert_true(round < 1000);
    has_done = false;
    for (uint32_t i = 0; i < num_ranks; i++)
      if (!ranks[i].is_stopped) has_done |= pass(&ranks[i]);
    if (on_settled != NULL) has_done |= on_settled();
    while (!is_down && !is_deaf && sml_registry_next_deadline(w.r) <= w.now_ns) tick();
  }
}
static inline void wait_for(uint64_t time_ns) {
  const uint64_t until_ns = w.now_ns + time_ns;
  settle();
  while (w.now_ns < until_ns) {
    w.now_ns = sml_min_u64(until_ns, w.now_ns + STEP_NS);
    settle();
  }
}

/* ---- daemons that go and come ---- */

/* It ends, and with it all connections, and what was on its way. */
static inline void lose_daemon(void) {
  is_down = true;
  for (uint32_t i = 0; i < num_ranks; i++) {
    ranks[i].num_in = 0;
    if (ranks[i].conn < MAX_CONNS && !ranks[i].is_cut_off) ranks[i].is_hung_up = true;
  }
  for (uint32_t c = 0; c < MAX_CONNS; c++) w.is_open[c] = false;
  settle();
}
/* One that knows nothing of before. */
static inline void begin_successor(void) {
  const uint64_t now_ns = w.now_ns;
  begin();
  w.now_ns = now_ns;
  w.next_name = 200;
  is_down = false;
}

static inline void forget_lines(void) {
  for (uint32_t i = 0; i < num_ranks; i++) ranks[i].line[0] = 0;
}
static inline void expect_lines(const char *line) {
  for (uint32_t i = 0; i < num_ranks; i++) assert_string_equal(ranks[i].line, line);
}
static inline void expect_line(uint32_t rank, const char *line) {
  assert_string_equal(ranks[rank].line, line);
}
static inline void expect_failure(uint32_t rank, sml_status status, const char *sentence) {
  assert_int_equal(ranks[rank].m.failure.status, status);
  if (strstr(ranks[rank].m.failure.detail, sentence) == NULL)
    fail_msg("'%s' is not in '%s'", sentence, ranks[rank].m.failure.detail);
}
