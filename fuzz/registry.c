/* SPDX-License-Identifier: Apache-2.0
 * The daemon's membership, driven by messages, ends of connections, engines' reports and time. What each effect may
 * be is ctl/test_registry_world.h's model. At the end nobody says anything any more: then all must be free again. */
#include "ctl/test_registry_world.h"

#include "fuzz/fuzz.h"

#define NUM_CONNS 12u
#define MAX_STEPS 400u
#define MAX_TICKS 200000u

__attribute__((constructor)) static void abort_on_failure(void) {
  setenv("CMOCKA_TEST_ABORT", "1", 1);
}

static bool find_quota(void *user, const char *tenant, struct sml_quota *quota_out) {
  (void)user;
  *quota_out = (struct sml_quota){.max_jobs = 2, .max_workers = 5, .max_slots = 100};
  return tenant[0] != 'b';
}

static void begin_world(struct fuzz_input *in) {
  const uint8_t kind = fuzz_u8(in);
  struct sml_registry_options o = defaults();
  is_keyed = (kind & 1) != 0;
  if (kind & 2) o.max_jobs = 1;
  if (kind & 4) o.pool_slots = 256;
  if ((kind & 6) == 4) o.find_quota = find_quota;
  if (kind & 8) o.max_connections_per_host = 3;
  if (kind & 16) o.new_connections_per_s = 1;
  if (kind & 32) o.max_messages_per_s = 2;
  if (kind & 64) o.max_unjoined_per_host = 2;
  begin_with(o);
}

static void open_one(uint32_t conn, struct fuzz_input *in) {
  static const char *const peers[] = {"10.0.0.1:1",      "10.0.0.2:2",       "127.0.0.1:3",         "[2001:db8::1]:4",
                                      "[2001:db8::2]:5", "[fe80::1%eth0]:6", "[::ffff:10.0.0.1]:7", "host"};
  if (!w.is_open[conn]) opened_from(conn, peers[fuzz_below(in, SML_ARRAY_LEN(peers))]);
}

static struct sml_ctl_message draw_join(struct fuzz_input *in) {
  static const char *const names[] = {"a", "b", "c/d"};
  const uint8_t who = fuzz_u8(in), kind = fuzz_u8(in);
  struct sml_ctl_message m = join_message(names[who >> 6 & 1 ? 2 : who >> 5 & 1], who & 3, 2 + (who >> 2 & 1));
  struct sml_ctl_join *j = &m.u.join;
  if (kind & 1) j->num_slots = 1u << fuzz_below(in, 17);
  if (kind & 2) j->lease_ns = (uint64_t)fuzz_u8(in) << fuzz_below(in, 40);
  if (kind & 4) j->join_timeout_ns = (uint64_t)fuzz_u8(in) << fuzz_below(in, 40);
  if (kind & 8) j->max_datagram_bytes = fuzz_u16(in);
  if (kind & 16) j->features = fuzz_u8(in);
  if (kind & 32) {
    j->resume_operation = fuzz_u8(in) % 8;
    j->oldest_operation = j->resume_operation - sml_min_u64(j->resume_operation, fuzz_u8(in) % 4);
    j->resume_chunk_bytes = fuzz_u8(in) % 2 * 8928u;
  }
  if (kind & 64) j->world_size = fuzz_u16(in);
  j->host[0] = j->is_combining = who >> 7;
  j->num_shards = (kind & 24) == 24 ? 2 : 0;
  if (kind & 128) { /* not the key that said() takes */
    j->key_name[0] = (char)('a' + fuzz_below(in, 3));
    j->nonce[0] = kind;
  }
  return m;
}

static struct sml_ctl_message draw_abort(struct fuzz_input *in) {
  struct sml_ctl_message m = {.kind = SML_CTL_ABORT};
  m.u.abort.status = -(int32_t)fuzz_below(in, 20);
  m.u.abort.num_ranks = fuzz_below(in, 4);
  for (uint32_t i = 0; i < m.u.abort.num_ranks; i++) m.u.abort.ranks[i] = fuzz_u8(in) & 7;
  memset(m.u.abort.detail, 'y', fuzz_u8(in));
  return m;
}

/* Any message that can be written. */
static bool draw_any(struct fuzz_input *in, struct sml_ctl_message *m) {
  uint8_t body[96];
  const uint16_t kind = (uint16_t)(1 + fuzz_below(in, SML_CTL_LAST_KIND));
  const size_t num_bytes = fuzz_below(in, sizeof body);
  for (size_t i = 0; i < num_bytes; i++) body[i] = fuzz_u8(in);
  return sml_ctl_decode_body(kind, body, num_bytes, m);
}

static void let_time_pass(struct fuzz_input *in) {
  w.now_ns += (uint64_t)fuzz_u8(in) << fuzz_below(in, 32);
  const uint64_t deadline_ns = sml_registry_next_deadline(w.r);
  if (fuzz_u8(in) & 1 && deadline_ns < w.now_ns) {
    sml_registry_forgive(w.r, w.now_ns - deadline_ns, w.now_ns);
    take_effects();
  }
  for (uint32_t i = 0; i < MAX_TICKS && sml_registry_next_deadline(w.r) <= w.now_ns; i++) {
    sml_registry_on_timer(w.r, w.now_ns);
    take_effects();
  }
  assert_true(sml_registry_next_deadline(w.r) > w.now_ns);
}

static void report(struct fuzz_input *in) {
  const uint16_t job = fuzz_u8(in) % 6;
  const uint32_t world_size = w.jobs[job].is_open ? w.jobs[job].world_size : 1;
  const uint32_t epoch = fuzz_near(in, w.jobs[job].epoch), rank = fuzz_u8(in) % world_size;
  switch (fuzz_below(in, 4)) {
    case 0: sml_registry_on_mismatch(w.r, job, epoch, rank, fuzz_u8(in) % world_size); break;
    case 1: sml_registry_on_blocked(w.r, job, epoch, rank); break;
    case 2: sml_registry_on_jump(w.r, job, epoch, rank); break;
    default: sml_registry_on_job_failed(w.r, job, epoch, NULL);
  }
  take_effects();
}

static void speak(uint32_t conn, uint8_t op, struct fuzz_input *in) {
  uint8_t frame[SML_CTL_FRAME_BYTES + SML_CTL_MAX_BODY];
  struct sml_ctl_message m;
  memset(&m, 0, sizeof m);
  if (!w.is_open[conn]) return;
  switch (op) {
    case 0: m = draw_join(in); break;
    case 1:
      m.kind = SML_CTL_PROBED;
      m.u.probed.datagram_bytes = fuzz_near(in, 8960);
      m.u.probed.rtt_ns = (uint64_t)m.u.probed.datagram_bytes << (m.u.probed.datagram_bytes & 63);
      break;
    case 2:
      m.kind = SML_CTL_HEARTBEAT;
      m.u.heartbeat.operations_completed = fuzz_u8(in) & 15;
      m.u.heartbeat.called = fuzz_u8(in) & 3;
      break;
    case 3:
      m.kind = SML_CTL_EPOCH;
      m.u.epoch.epoch = fuzz_near(in, w.last[conn].kind == SML_CTL_START ? w.last[conn].u.start.epoch : 100);
      break;
    case 4: m = draw_abort(in); break;
    case 5: m.kind = SML_CTL_GOODBYE; break;
    default:
      if (!draw_any(in, &m)) return;
  }
  if (sml_ctl_encode(&m, frame, sizeof frame) > 0) said(conn, &m); /* else no decoder would let it through */
}

/* All ranks of a job join and probe. */
static void start_one(struct fuzz_input *in) {
  const uint32_t first = fuzz_below(in, NUM_CONNS - 3), num_ranks = 2 + fuzz_below(in, 2);
  const uint8_t kind = fuzz_u8(in);
  for (uint32_t rank = 0; rank < num_ranks; rank++) {
    struct sml_ctl_message m = join_message(kind & 1 ? "a" : "b", rank, num_ranks);
    open_one(first + rank, &(struct fuzz_input){NULL, NULL});
    if (kind & 2) m.u.join.features = SML_FEATURE_CHECK | SML_FEATURE_RETRY;
    if (w.is_open[first + rank]) said(first + rank, &m);
  }
  for (uint32_t rank = 0; rank < num_ranks; rank++)
    if (w.is_open[first + rank]) probed(first + rank, 8960);
}

static void step(struct fuzz_input *in) {
  const uint8_t op = fuzz_u8(in) % 20;
  const uint32_t conn = fuzz_below(in, NUM_CONNS);
  if (op < 2) open_one(conn, in);
  else if (op < 14) speak(conn, op % 7, in);
  else if (op == 14 && w.is_open[conn]) closed(conn, (enum sml_close_cause)fuzz_below(in, 3));
  else if (op == 15 && w.is_open[conn]) garbage(conn, (enum sml_ctl_decode)(2 + fuzz_below(in, 4)));
  else if (op == 16) let_time_pass(in);
  else if (op == 17) report(in);
  else if (op == 18) start_one(in);
  else if (op == 19 && sml_registry_next_deadline(w.r) != SML_NEVER) tick();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  struct fuzz_input in = {data, data + num_bytes};
  begin_world(&in);
  for (uint32_t i = 0; i < MAX_STEPS && !fuzz_is_empty(&in); i++) step(&in);
  if (num_bytes % 4 == 0) {
    sml_registry_on_stop(w.r);
    take_effects();
  }
  for (uint32_t i = 0; i < MAX_TICKS && sml_registry_next_deadline(w.r) != SML_NEVER; i++) tick();
  expect_all_free();
  for (uint32_t conn = 0; conn < MAX_CONNS; conn++) assert_false(w.is_open[conn]);
  return 0;
}
