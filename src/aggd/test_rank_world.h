/* SPDX-License-Identifier: Apache-2.0
 * For the service's tests: a service on loopback and hand-written ranks, which are the codec on a TCP socket
 * and frames made by core/wire on a UDP socket. */
#pragma once

#include "aggd/aggd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/wire.h"
#include "ctl/channel.h"
#include "engine/engine.h"
#include "switchml/switchml.h"

#define WAIT_MS 5000
#define LEASE_NS (60 * SML_NS_PER_S) /* no test here may fail because a loaded machine was slow */

struct rank {
  int tcp, udp;
  uint32_t rank;
  struct sml_channel channel;
  bool is_keyed;
  struct sml_key key;   /* the tenant's */
  struct sml_seal seal; /* the epoch's */
  const char *job_name; /* keyed */
  size_t in_bytes;
  uint8_t in[16384];
  struct sml_ctl_message last;
  struct sml_ctl_welcome welcome;
  struct sml_ctl_start start;
};

static struct sml_aggd *aggd;
static struct rank ranks[8];
static char notes[65536];
static pthread_mutex_t notes_lock = PTHREAD_MUTEX_INITIALIZER;

static inline void take_note(void *user, const struct sml_aggd_note *note) {
  (void)user;
  pthread_mutex_lock(&notes_lock);
  size_t used = strlen(notes);
  snprintf(notes + used, sizeof notes - used, "%s(%s) ", note->name, note->job_name);
  pthread_mutex_unlock(&notes_lock);
}

static inline bool has_note(const char *text) {
  pthread_mutex_lock(&notes_lock);
  bool has = strstr(notes, text) != NULL;
  pthread_mutex_unlock(&notes_lock);
  return has;
}

static inline void forget_notes(void) {
  pthread_mutex_lock(&notes_lock);
  notes[0] = 0;
  pthread_mutex_unlock(&notes_lock);
}

static inline void await_note(const char *text) {
  for (uint32_t ms = 0; ms < WAIT_MS && !has_note(text); ms++) usleep(1000);
  if (!has_note(text)) fail_msg("no note %s in: %s", text, notes);
}

static inline struct sml_aggd_options loopback(void) {
  struct sml_aggd_options options = {.on_note = take_note};
  char error[256];
  assert_true(sml_addr_parse("127.0.0.1:0", 0, &options.listen, error, sizeof error));
  return options;
}

static inline void begin_with(struct sml_aggd_options options) {
  char error[256];
  forget_notes();
  if (sml_aggd_start(&options, &aggd, error, sizeof error) != 0) fail_msg("%s", error);
}

static inline void end(void) {
  sml_aggd_stop(aggd);
  aggd = NULL;
}

/* --- a rank --- */

static inline int connect_tcp(void) {
  struct sml_addr addr;
  sml_aggd_addr(aggd, &addr);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(fd >= 0);
  assert_int_equal(connect(fd, (struct sockaddr *)(void *)addr.bytes, addr.num_bytes), 0);
  return fd;
}

static inline void say(struct rank *r, const struct sml_ctl_message *m) {
  uint8_t frame[SML_CHANNEL_MAX_FRAME_BYTES];
  size_t num_bytes = sml_channel_encode(&r->channel, m, frame, sizeof frame);
  assert_true(num_bytes > 0);
  assert_int_equal(send(r->tcp, frame, num_bytes, MSG_NOSIGNAL), num_bytes);
}

/* That of its WELCOME, later that of its START. */
static inline void enter_epoch(struct rank *r, uint32_t epoch, const uint64_t secret[2]) {
  r->welcome.epoch = epoch;
  const struct sml_key key =
      sml_ctl_data_key(&r->key, r->is_keyed ? r->job_name : "", r->welcome.job, epoch, r->welcome.salt);
  r->seal = sml_seal_of(r->is_keyed ? &key : NULL, secret);
}

/* The next message, or 0 at the end of the connection. */
static inline int hear_any(struct rank *r) {
  for (;;) {
    size_t consumed;
    enum sml_ctl_decode verdict = sml_channel_decode(&r->channel, r->in, r->in_bytes, &r->last, &consumed);
    if (verdict == SML_CTL_DECODED) {
      r->in_bytes -= consumed;
      memmove(r->in, r->in + consumed, r->in_bytes);
      return (int)r->last.kind;
    }
    assert_int_equal(verdict, SML_CTL_NEED_MORE);
    struct pollfd p = {.fd = r->tcp, .events = POLLIN};
    if (poll(&p, 1, WAIT_MS) <= 0) fail_msg("rank %u heard nothing", r->rank);
    ssize_t n = recv(r->tcp, r->in + r->in_bytes, sizeof r->in - r->in_bytes, 0);
    if (n <= 0) return 0;
    r->in_bytes += (size_t)n;
  }
}

static inline void hear(struct rank *r, int kind) {
  int heard;
  do heard = hear_any(r);
  while (heard == SML_CTL_HEARTBEAT && kind != SML_CTL_HEARTBEAT);
  if (heard != kind) {
    fail_msg("rank %u heard %d, not %d: %s", r->rank, heard, kind,
             heard == SML_CTL_REFUSE ? r->last.u.refuse.detail : "");
  }
}

static inline struct sml_ctl_message join_message(const char *name, uint32_t rank, uint32_t world_size) {
  struct sml_ctl_message m = {.kind = SML_CTL_JOIN};
  m.u.join = (struct sml_ctl_join){.rank = rank,
                                   .world_size = world_size,
                                   .num_lanes = 16,
                                   .num_slots = 16,
                                   .max_datagram_bytes = 8960,
                                   .lease_ns = LEASE_NS,
                                   .join_timeout_ns = 60 * SML_NS_PER_S};
  snprintf(m.u.join.job_name, sizeof m.u.join.job_name, "%s", name);
  return m;
}

static inline void join(struct rank *r, const char *name, uint32_t rank, uint32_t world_size) {
  struct sml_ctl_message m = join_message(name, rank, world_size);
  *r = (struct rank){.rank = rank, .tcp = connect_tcp(), .udp = -1};
  say(r, &m);
  hear(r, SML_CTL_WELCOME);
  r->welcome = r->last.u.welcome;
  enter_epoch(r, r->welcome.epoch, r->welcome.secret);
}

static inline void hang_up(struct rank *r) {
  close(r->tcp);
  if (r->udp >= 0) close(r->udp);
}

/* Sends a frame to a lane; true: an answer came, it is in frame. */
/* What a switch writes into HELLO and REPORT on the way, if one is played. */
static struct {
  bool is_there;
  uint32_t voucher;
} played_switch;

static inline bool exchange(struct rank *r, uint32_t lane, struct sml_header *h, uint8_t *frame, bool wants_answer) {
  struct sml_addr addr;
  sml_aggd_addr(aggd, &addr);
  sml_addr_set_port(&addr, r->welcome.data_ports[lane]);
  if (r->udp < 0) r->udp = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  assert_true(r->udp >= 0);
  sml_wire_seal(frame, h, &r->seal);
  if (played_switch.is_there) sml_store_be32(frame + SML_HEADER_BYTES - 4, played_switch.voucher);
  size_t num_bytes = sml_head_bytes(r->is_keyed) + h->payload_bytes;
  assert_int_equal(sendto(r->udp, frame, num_bytes, 0, (struct sockaddr *)(void *)addr.bytes, addr.num_bytes),
                   num_bytes);
  if (!wants_answer) return false;
  struct pollfd p = {.fd = r->udp, .events = POLLIN};
  if (poll(&p, 1, WAIT_MS) <= 0) return false;
  ssize_t n = recv(r->udp, frame, 9000, 0);
  return n > 0 && sml_wire_open(frame, (size_t)n, h) == SML_WIRE_OK && sml_wire_is_authentic(frame, h, &r->seal);
}

static inline struct sml_header header_of(const struct rank *r, enum sml_packet_type type, uint32_t payload_bytes) {
  return (struct sml_header){.version = SML_WIRE_VERSION,
                             .type = (uint8_t)type,
                             .job = r->welcome.job,
                             .epoch = r->welcome.epoch,
                             .rank = (uint16_t)r->rank,
                             .payload_bytes = (uint16_t)payload_bytes};
}

static inline void hello(struct rank *r) {
  for (uint32_t lane = 0; lane < r->welcome.num_lanes; lane++) {
    uint8_t frame[9000] = {0};
    struct sml_header h = header_of(r, SML_PACKET_HELLO, 1000);
    sml_store_be64(frame + sml_head_bytes(r->is_keyed), r->welcome.nonce);
    assert_true(exchange(r, lane, &h, frame, true));
    assert_int_equal(h.type, SML_PACKET_HELLO);
  }
  say(r, &(struct sml_ctl_message){.kind = SML_CTL_PROBED, .u.probed.datagram_bytes = 1032});
}

static inline void start_world(const char *name, uint32_t world_size) {
  for (uint32_t i = 0; i < world_size; i++) join(&ranks[i], name, i, world_size);
  for (uint32_t i = 0; i < world_size; i++) hello(&ranks[i]);
  for (uint32_t i = 0; i < world_size; i++) {
    hear(&ranks[i], SML_CTL_START);
    ranks[i].start = ranks[i].last.u.start;
    enter_epoch(&ranks[i], ranks[i].start.epoch, ranks[i].start.secret);
  }
}

/* An UPDATE of one int32 lane, in the first window of a slot. */
static inline bool update(struct rank *r, uint32_t lane, uint32_t slot, uint32_t tag, int32_t value,
                          struct sml_header *answer, uint8_t *frame, bool wants_answer) {
  memset(frame, 0, 9000);
  *answer = header_of(r, SML_PACKET_UPDATE, r->start.chunk_bytes);
  answer->slot = (uint16_t)(r->start.slot_base[lane] + slot);
  answer->phase = r->start.first_phase;
  answer->tag = tag;
  answer->chunk = r->start.first_chunk + slot;
  sml_store_be32(frame + sml_head_bytes(r->is_keyed), (uint32_t)value);
  return exchange(r, lane, answer, frame, wants_answer);
}
