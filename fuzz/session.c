/* SPDX-License-Identifier: Apache-2.0
 * A rank and a hostile aggregator: the shipped library, with its control thread and its engine, on the simulator's
 * system (sim/kernel.h), joins what the input plays. Whatever that says: no memory is touched that is not the job's,
 * every call returns within its time, and nothing is left behind. Input: what the program wants, then what the
 * aggregator says and does; where it says nothing, it answers as an honest one would that sums what one rank sends. */
#include <errno.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/wire.h"
#include "ctl/message.h"
#include "fuzz/fuzz.h"
#include "netio/netio.h"
#include "sim/kernel.h"
#include "switchml/switchml.h"

#define PORT 48879u
#define DATA_PORT 4000u
#define NUM_LANES 2u
#define JOIN_NS (2 * SML_NS_PER_S)
#define OPERATION_NS (1 * SML_NS_PER_S)
#define NUM_CALLS 3u
/* All calls, retries and graces together: what lasts longer hangs. */
#define LIFE_NS (60 * SML_NS_PER_S)
#define MAX_STEPS 4000u

static struct {
  struct fuzz_input in;
  uint8_t wants; /* features and shapes */
  uint32_t world_size, num_summed;
  bool is_over;
  /* the aggregator's */
  int listen_fd, fd;
  struct sml_netio *io[NUM_LANES];
  struct sml_ctl_join join;
  struct sml_ctl_welcome welcome;
  struct sml_ctl_start start;
  uint8_t rx[65536];
  size_t rx_bytes;
  uint32_t next_grant[NUM_LANES];
} w;

/* ---- shared memory ---- */

int __wrap_memfd_create(const char *name, unsigned flags);
long __wrap_syscall(long number, void *word, int verb, int value, const struct timespec *timeout);

/* A segment would be the real system's: the simulator would take its descriptor for one of its own. fuzz/greeting.c
 * has it. */
int __wrap_memfd_create(const char *name, unsigned flags) {
  (void)name, (void)flags;
  errno = ENOSYS;
  return -1;
}

/* FUTEX_WAIT of a rank that is alone on its host, in simulated time: it looks again. And FUTEX_WAKE. */
long __wrap_syscall(long number, void *word, int verb, int value, const struct timespec *timeout) {
  (void)word, (void)value;
  CHECK(number == SYS_futex, "system call %ld", number);
  if (verb == FUTEX_WAIT) sim_sleep_ns(sml_min_u64((uint64_t)timeout->tv_nsec, SML_NS_PER_MS));
  return 0;
}

/* ---- the rank ---- */

static const struct {
  sml_type type;
  size_t elem_bytes;
} types[] = {{SML_FLOAT32, 4}, {SML_INT32, 4}, {SML_FLOAT16, 2}, {SML_BFLOAT16, 2}, {SML_INT64, 8}};

/* Buffers are exactly as large as the tensor: what is written beyond it is seen. */
static void sum(sml_job *job, uint32_t kind) {
  const size_t count = 1 + kind * 37 % 900, num_bytes = count * types[kind % SML_ARRAY_LEN(types)].elem_bytes;
  uint8_t *in = malloc(num_bytes), *out = kind & 64 ? in : malloc(num_bytes);
  sml_operation *op;
  CHECK(in != NULL && out != NULL, "no memory");
  for (size_t i = 0; i < num_bytes; i++) in[i] = (uint8_t)(i * 7 + kind);
  sml_status status = sml_allreduce(job, in, out, count, types[kind % SML_ARRAY_LEN(types)].type, SML_SUM, NULL, &op);
  if (status == SML_OK) {
    for (uint32_t i = 0; i < 30 && (status = sml_operation_wait(op, SML_NS_PER_S)) == SML_IN_PROGRESS; i++) continue;
    CHECK(status != SML_IN_PROGRESS, "an operation without end");
    sml_operation_release(op);
  }
  CHECK(status == SML_OK || status < 0, "status %d", (int)status);
  w.num_summed += status == SML_OK;
  if (out != in) free(out);
  free(in);
}

static int run_rank(void *argument) {
  (void)argument;
  sml_context_options co = SML_CONTEXT_OPTIONS_INIT;
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  sml_context *context;
  sml_job *job = NULL;
  co.num_threads = NUM_LANES;
  co.num_operations = 16;
  o.rank = w.wants >> 6 & 1;
  o.world_size = w.world_size;
  o.join_timeout_ns = JOIN_NS;
  o.operation_timeout_ns = OPERATION_NS;
  o.lease_ns = SML_NS_PER_S / 2;
  o.check = w.wants & 1 ? 1 : 0;
  o.retry_ns = w.wants & 2 ? SML_NS_PER_S : 0;
  o.num_slots = w.wants & 4 ? 8 : 0;
  CHECK(sml_context_create(&co, &context) == SML_OK, "%s", sml_error_detail());
  const sml_status status = sml_job_create(context, &o, &job);
  for (uint32_t i = 0; status == SML_OK && i < NUM_CALLS; i++) sum(job, w.wants * 5u + i);
  sml_error error = SML_ERROR_INIT;
  if (status == SML_OK && sml_job_error(job, &error) != SML_OK) {
    CHECK(strnlen(error.detail, sizeof error.detail) < sizeof error.detail, "a reason without end");
    CHECK(error.num_ranks <= SML_ARRAY_LEN(error.ranks), "%u ranks", error.num_ranks);
  }
  sml_job_destroy(job);
  sml_context_destroy(context);
  w.is_over = true;
  return 0;
}

/* ---- what the aggregator says on the control connection ---- */

static void say(const struct sml_ctl_message *m) {
  static uint8_t frame[SML_CTL_FRAME_BYTES + SML_CTL_MAX_BODY];
  const size_t num_bytes = sml_ctl_encode(m, frame, sizeof frame);
  if (num_bytes > 0 && w.fd >= 0) (void)!send(w.fd, frame, num_bytes, MSG_NOSIGNAL);
}

/* What its datagrams are sealed with: HELLOs belong to WELCOME, the others to START. */
static void draw_secret(uint64_t secret[2], uint64_t seed) {
  secret[0] = sml_mix64(seed), secret[1] = sml_mix64(secret[0]);
}

/* Without a group: the simulator's sockets join none. */
static void say_welcome(void) {
  struct sml_ctl_message m = {.kind = SML_CTL_WELCOME};
  struct sml_ctl_welcome *x = &m.u.welcome;
  memset(&m.u, 0, sizeof m.u);
  x->job = (uint16_t)fuzz_near(&w.in, 3);
  x->epoch = fuzz_near(&w.in, 9);
  x->nonce = 0x1122334455667788;
  draw_secret(x->secret, x->epoch);
  x->num_lanes = fuzz_near(&w.in, sml_min_u32(w.join.num_lanes, NUM_LANES));
  for (uint32_t l = 0; l < SML_MAX_LANES; l++) x->data_ports[l] = (uint16_t)(DATA_PORT + l % NUM_LANES);
  w.welcome = *x;
  say(&m);
}

static void say_start(void) {
  struct sml_ctl_message m = {.kind = SML_CTL_START};
  struct sml_ctl_start *x = &m.u.start;
  memset(&m.u, 0, sizeof m.u);
  x->epoch = fuzz_near(&w.in, w.welcome.epoch + 1);
  draw_secret(x->secret, x->epoch);
  x->num_lanes = fuzz_near(&w.in, sml_max_u32(1, sml_min_u32(w.welcome.num_lanes, SML_MAX_LANES)));
  x->chunk_bytes = fuzz_near(&w.in, 256) & ~3u;
  x->num_slots = fuzz_near(&w.in, w.join.num_slots != 0 ? w.join.num_slots : 16);
  for (uint32_t l = 0; l < SML_MAX_LANES; l++) x->slot_base[l] = (uint16_t)(l * x->num_slots);
  x->first_phase = fuzz_near(&w.in, SML_FIRST_PHASE);
  x->first_chunk = fuzz_near(&w.in, 0);
  x->features = fuzz_near(&w.in, w.join.features & ~SML_FEATURES_OF_RANKS);
  x->first_operation = fuzz_near(&w.in, (uint32_t)w.join.resume_operation);
  x->is_multicast = fuzz_near(&w.in, 0) & 1;
  x->is_one_host = fuzz_near(&w.in, 0) & 1;
  if (fuzz_near(&w.in, 0) != 0) {
    x->num_ranks = fuzz_near(&w.in, w.world_size) % 64;
    for (uint32_t r = 0; r < x->num_ranks; r++) x->contributors[r] = (uint16_t)(fuzz_u8(&w.in) % (r + 1));
  }
  w.start = *x;
  for (uint32_t l = 0; l < NUM_LANES; l++) w.next_grant[l] = x->first_chunk + x->num_slots;
  say(&m);
}

/* Anything that can be written. */
static void say_any(void) {
  struct sml_ctl_message m;
  uint8_t body[96];
  memset(&m, 0, sizeof m);
  const uint16_t kind = (uint16_t)(1 + fuzz_below(&w.in, SML_CTL_LAST_KIND));
  const size_t num_bytes = fuzz_below(&w.in, sizeof body);
  for (size_t i = 0; i < num_bytes; i++) body[i] = fuzz_u8(&w.in);
  if (sml_ctl_decode_body(kind, body, num_bytes, &m)) say(&m);
}

static void say_end(enum sml_ctl_kind kind) {
  struct sml_ctl_message m = {.kind = kind};
  memset(&m.u, 0, sizeof m.u);
  const int32_t status = -(int32_t)(1 + fuzz_below(&w.in, 19));
  if (kind == SML_CTL_ABORT) m.u.abort.status = status, m.u.abort.num_ranks = fuzz_below(&w.in, SML_CTL_MAX_RANKS + 1);
  else if (kind == SML_CTL_REFUSE) m.u.refuse.status = status;
  else m.u.rank_gone.status = status, m.u.rank_gone.num_ranks = 1, m.u.rank_gone.ranks[0] = fuzz_u8(&w.in);
  memset(kind == SML_CTL_ABORT    ? m.u.abort.detail
         : kind == SML_CTL_REFUSE ? m.u.refuse.detail
                                  : m.u.rank_gone.detail,
         'x', fuzz_u8(&w.in));
  say(&m);
}

static void say_bytes(void) {
  const size_t wanted_bytes = fuzz_u8(&w.in), num_bytes = sml_min_u64(wanted_bytes, (uint64_t)(w.in.end - w.in.at));
  if (w.fd >= 0) (void)!send(w.fd, w.in.at, num_bytes, MSG_NOSIGNAL);
}

static void answer_message(const struct sml_ctl_message *m) {
  if (m->kind == SML_CTL_JOIN) {
    w.join = m->u.join;
    say_welcome();
  } else if (m->kind == SML_CTL_PROBED || m->kind == SML_CTL_EPOCH) {
    say_start();
  } else if (m->kind == SML_CTL_HEARTBEAT) {
    struct sml_ctl_message beat = {.kind = SML_CTL_HEARTBEAT};
    beat.u.heartbeat.operations_completed = fuzz_near(&w.in, (uint32_t)m->u.heartbeat.operations_completed);
    say(&beat);
  } else if (m->kind == SML_CTL_ASK) {
    struct sml_ctl_message report = {.kind = SML_CTL_REPORT};
    memset(&report.u, 0, sizeof report.u);
    report.u.report.num_ranks = fuzz_below(&w.in, SML_CTL_MAX_RANKS + 1);
    for (uint32_t i = 0; i < report.u.report.num_ranks; i++) report.u.report.ranks[i] = (uint16_t)fuzz_near(&w.in, i);
    memset(report.u.report.detail, 'y', fuzz_u8(&w.in));
    say(&report);
  }
}

static void hang_up(void) {
  if (w.fd >= 0) close(w.fd);
  w.fd = -1;
  w.rx_bytes = 0;
}

static void hear_rank(void) {
  const ssize_t n = recv(w.fd, w.rx + w.rx_bytes, sizeof w.rx - w.rx_bytes, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    hang_up();
    return;
  }
  w.rx_bytes += (size_t)n;
  for (struct sml_ctl_message m; w.fd >= 0;) {
    size_t consumed;
    if (sml_ctl_decode(w.rx, w.rx_bytes, &m, &consumed) != SML_CTL_DECODED) return;
    w.rx_bytes -= consumed;
    memmove(w.rx, w.rx + consumed, w.rx_bytes);
    answer_message(&m);
  }
}

/* ---- what it says by datagrams ---- */

static void reply(struct sml_netio *io, const struct sml_rx_frame *to, const struct sml_header *h,
                  const uint8_t *payload, uint32_t num_bytes) {
  struct sml_tx_burst burst;
  const struct sml_addr peer = *to->from;
  io->ops->tx_reserve(io, SML_HEADER_BYTES + num_bytes, &burst);
  if (burst.max_frames == 0) return;
  memcpy(burst.data + SML_HEADER_BYTES, payload, num_bytes);
  const struct sml_seal seal = sml_seal_of(NULL, h->epoch == w.welcome.epoch ? w.welcome.secret : w.start.secret);
  sml_wire_seal(burst.data, h, &seal);
  io->ops->tx_commit(io, &burst, 1, SML_HEADER_BYTES + num_bytes, &peer, 1);
  io->ops->tx_flush(io);
}

/* As an honest one would; the input changes it. */
static void answer_frame(uint32_t lane, const struct sml_rx_frame *frame) {
  static uint8_t payload[65536];
  struct sml_header h;
  if (sml_wire_open(frame->data, frame->num_bytes, &h) != SML_WIRE_OK || (h.flags & SML_FLAG_KEYED) != 0) return;
  const uint8_t *said = frame->data + sml_head_bytes_of(&h);
  uint32_t num_bytes = h.payload_bytes;
  memcpy(payload, said, num_bytes);
  h.flags &= SML_FLAG_CHECKED;
  if (h.type != SML_PACKET_HELLO) {
    h.rank = 0;
    h.reducer = h.wire == SML_LANES_INT32 ? SML_REDUCE_SUM : SML_REDUCE_MAX;
  }
  if (h.type == SML_PACKET_UPDATE) h.type = SML_PACKET_RESULT, h.chunk = w.next_grant[lane]++;
  if (h.type == SML_PACKET_PROBE) h.type = SML_PACKET_PENDING, num_bytes = (w.world_size + 7) / 8, payload[0] = 1;
  const uint8_t kind = fuzz_u8(&w.in);
  if (kind & 1) h.chunk = fuzz_near(&w.in, h.chunk + 1);
  if (kind & 2) h.type = fuzz_u8(&w.in) & 15;
  if (kind & 4) num_bytes = fuzz_near(&w.in, num_bytes + 4) % 2000;
  if (kind & 8) h.flags ^= (uint16_t)(1u << fuzz_below(&w.in, 8));
  if (kind & 16) h.slot = (uint16_t)fuzz_near(&w.in, h.slot + 1u), h.phase = fuzz_near(&w.in, h.phase + 1);
  if (kind & 32) h.wire = h.reducer = fuzz_u8(&w.in) % 3, h.tag = fuzz_near(&w.in, h.tag + 1);
  for (uint32_t i = 0; (kind & 64) && i < sml_min_u32(num_bytes, 16); i++) payload[i] = fuzz_u8(&w.in);
  h.payload_bytes = (uint16_t)num_bytes;
  reply(w.io[lane], frame, &h, payload, num_bytes);
  if (kind & 128) reply(w.io[lane], frame, &h, payload, num_bytes); /* once more */
}

static void hear_lanes(void) {
  for (uint32_t l = 0; l < NUM_LANES; l++) {
    struct sml_rx_frame frames[64];
    const size_t num_frames = w.io[l]->ops->rx_burst(w.io[l], frames, SML_ARRAY_LEN(frames));
    for (size_t i = 0; i < num_frames; i++) answer_frame(l, &frames[i]);
  }
}

/* ---- the aggregator ---- */

static void act(void) {
  const uint8_t op = fuzz_u8(&w.in);
  if (op < 200) return;
  if (op < 208) say_any();
  else if (op < 214) say_start();
  else if (op < 220) say_welcome();
  else if (op < 226) say_end(SML_CTL_ABORT);
  else if (op < 232) say_end(SML_CTL_RANK_GONE);
  else if (op < 236) say_end(SML_CTL_REFUSE);
  else if (op < 242) hang_up();
  else if (op < 248) sim_sleep_ns((uint64_t)fuzz_u8(&w.in) << 22); /* up to a second */
  else say_bytes();
}

static void open_ports(void) {
  const struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(PORT)};
  w.fd = -1;
  w.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  CHECK(w.listen_fd >= 0 && bind(w.listen_fd, (const struct sockaddr *)&any, sizeof any) == 0 &&
            listen(w.listen_fd, 8) == 0,
        "no port");
  for (uint32_t l = 0; l < NUM_LANES; l++) {
    struct sml_addr addr;
    char text[32], error[128];
    snprintf(text, sizeof text, "0.0.0.0:%u", DATA_PORT + l);
    const struct sml_udp_options options = {.bind_addr = &addr, .rx_buffer_bytes = 1u << 20};
    CHECK(sml_addr_parse(text, 0, &addr, error, sizeof error), "%s", error);
    CHECK(sml_udp_open(&options, &w.io[l], error, sizeof error) == 0, "%s", error);
  }
}

static int run_aggregator(void *argument) {
  (void)argument;
  open_ports();
  for (uint32_t step = 0; step < MAX_STEPS && !w.is_over; step++) {
    const int fd = w.fd >= 0 ? -1 : accept4(w.listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) w.fd = fd, w.rx_bytes = 0;
    if (w.fd >= 0) hear_rank();
    hear_lanes();
    act();
    sim_sleep_ns(step < 300 ? SML_NS_PER_MS / 4 : 20 * SML_NS_PER_MS);
  }
  hang_up();
  close(w.listen_fd);
  for (uint32_t l = 0; l < NUM_LANES; l++) w.io[l]->ops->close(w.io[l]);
  return 0;
}

static bool is_over(void *user) {
  return sim_process_state(user) != SIM_RUNNING;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  const struct sim_link link = {.delay_ns = 20 * SML_NS_PER_US};
  struct sim_host_options host = {.name = "rank", .ipv4 = 0x0a000002, .up = link, .down = link, .mtu_bytes = 9000};
  const char *const environment[] = {"SWITCHML_AGGREGATOR=10.0.0.1:48879", "SWITCHML_DEBUG=NONE", NULL};
  struct sim_usage leaks;
  memset(&w, 0, sizeof w);
  w.in = (struct fuzz_input){data, data + num_bytes};
  w.wants = fuzz_u8(&w.in);
  w.world_size = w.wants & 32 ? 5 : 2;
  sim_begin(&(struct sim_options){.seed = 1, .switch_chance = -1, .spurious_chance = -1});
  struct sim_process *rank = sim_spawn(sim_host_add(&host), "rank", run_rank, NULL, environment);
  host.name = "aggregator", host.ipv4 = 0x0a000001;
  sim_spawn(sim_host_add(&host), "aggregator", run_aggregator, NULL, NULL);
  (void)sim_run_until(LIFE_NS, is_over, rank);
  CHECK(sim_process_state(rank) == SIM_EXITED, "the rank hangs");
  const bool is_honest = num_bytes <= 1 && (w.wants & 1) == 0; /* 1: what one rank sends has no check word for all */
  CHECK(!is_honest || w.num_summed == NUM_CALLS, "%u sums of an honest one", w.num_summed);
  sim_process_leaks(rank, &leaks);
  CHECK(leaks.num_allocations + leaks.num_threads + leaks.num_descriptors + leaks.num_data_sockets == 0,
        "%u allocations, %u threads, %u descriptors are left", (unsigned)leaks.num_allocations, leaks.num_threads,
        leaks.num_descriptors);
  sim_end();
  return 0;
}
