/* SPDX-License-Identifier: Apache-2.0 */
#include "dataplane/grpc.h"

#include <errno.h>
#include <nghttp2/nghttp2.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dataplane/connection.h"
#include "engine/engine.h"

#define PREFIX_BYTES 5u /* whether compressed, and the length */
#define NO_STATUS UINT32_MAX

void sml_grpc_init(struct sml_grpc *g, const struct sml_addr *addr) {
  memset(g, 0, sizeof *g);
  g->fd = -1;
  g->addr = *addr;
}

static void disconnect(struct sml_grpc *g) {
  nghttp2_session_del(g->session);
  g->session = NULL;
  if (g->fd >= 0) close(g->fd);
  g->fd = -1;
}

void sml_grpc_close(struct sml_grpc *g) {
  disconnect(g);
  sml_pb_free(&g->frames);
}

__attribute__((format(printf, 2, 3))) static bool fail(struct sml_grpc *g, const char *format, ...) {
  char address[64];
  va_list arguments;
  if (g->error[0] != 0) return false; /* the first one is the reason */
  sml_addr_format(&g->addr, address, sizeof address);
  const char *method = strrchr(g->path, '/');
  const int used =
      snprintf(g->error, sizeof g->error, "the switch at %s: %s: ", address, method ? method + 1 : g->path);
  va_start(arguments, format);
  vsnprintf(g->error + used, sizeof g->error - (size_t)used, format, arguments);
  va_end(arguments);
  return false;
}

/* ---- what libnghttp2 asks and tells ---- */

static ssize_t give_data(nghttp2_session *session, int32_t stream, uint8_t *bytes, size_t room_bytes, uint32_t *flags,
                         nghttp2_data_source *source, void *user) {
  struct sml_grpc *g = user;
  size_t num_bytes = 0;
  uint8_t prefix[PREFIX_BYTES] = {0};
  (void)session, (void)stream, (void)source;
  sml_store_be32(prefix + 1, (uint32_t)g->request->num_bytes);
  const size_t all_bytes = PREFIX_BYTES + g->request->num_bytes;
  while (num_bytes < room_bytes && g->sent_bytes < PREFIX_BYTES) bytes[num_bytes++] = prefix[g->sent_bytes++];
  const size_t part = sml_min_u64(room_bytes - num_bytes, all_bytes - g->sent_bytes);
  if (part > 0) memcpy(bytes + num_bytes, g->request->bytes + (g->sent_bytes - PREFIX_BYTES), part);
  g->sent_bytes += part;
  if (g->sent_bytes == all_bytes) *flags |= NGHTTP2_DATA_FLAG_EOF;
  return (ssize_t)(num_bytes + part);
}

/* "%41" stands for "A", and so on; what is no printable character becomes a dot. */
static void take_message(struct sml_grpc *g, const char *text, size_t num_bytes) {
  size_t used = 0;
  for (size_t i = 0; i < num_bytes && used + 1 < sizeof g->message; i++) {
    char digits[3] = {0}, *end;
    long value = (unsigned char)text[i];
    if (text[i] == '%' && i + 2 < num_bytes) {
      memcpy(digits, text + i + 1, 2);
      const long byte = strtol(digits, &end, 16);
      if (end == digits + 2) value = byte, i += 2;
    }
    g->message[used++] = value < 0x20 || value > 0x7e ? '.' : (char)value;
  }
  g->message[used] = 0;
}

static uint32_t to_number(const uint8_t *text, size_t num_bytes) {
  uint32_t value = 0;
  if (num_bytes == 0 || num_bytes > 6) return NO_STATUS;
  for (size_t i = 0; i < num_bytes; i++) {
    if (text[i] < '0' || text[i] > '9') return NO_STATUS;
    value = 10 * value + (uint32_t)(text[i] - '0');
  }
  return value;
}

static int take_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_bytes,
                       const uint8_t *value, size_t value_bytes, uint8_t flags, void *user) {
  struct sml_grpc *g = user;
  (void)session, (void)flags, (void)name_bytes; /* both end with a zero byte */
  if (frame->hd.stream_id != g->stream) return 0;
  if (strcmp((const char *)name, ":status") == 0) g->http_status = to_number(value, value_bytes);
  else if (strcmp((const char *)name, "grpc-status") == 0) g->status = to_number(value, value_bytes);
  else if (strcmp((const char *)name, "grpc-message") == 0) take_message(g, (const char *)value, value_bytes);
  return 0;
}

static int take_data(nghttp2_session *session, uint8_t flags, int32_t stream, const uint8_t *bytes, size_t num_bytes,
                     void *user) {
  struct sml_grpc *g = user;
  (void)session, (void)flags;
  if (stream != g->stream) return 0;
  if (g->frames.num_bytes + num_bytes > SML_GRPC_MAX_ANSWER_BYTES) {
    fail(g, "an answer of more than %u bytes", SML_GRPC_MAX_ANSWER_BYTES);
    return NGHTTP2_ERR_CALLBACK_FAILURE;
  }
  sml_pb_append(&g->frames, bytes, num_bytes);
  return 0;
}

static int take_end(nghttp2_session *session, int32_t stream, uint32_t code, void *user) {
  struct sml_grpc *g = user;
  (void)session;
  if (stream != g->stream) return 0;
  g->is_ended = true;
  if (code != 0) fail(g, "the call was reset with code %u", code);
  return 0;
}

/* ---- the connection ---- */

static bool fail_by(struct sml_grpc *g, const char *what, int error) {
  return error == -ETIMEDOUT ? fail(g, "no answer in time") : fail(g, "%s: %s", what, strerror(-error));
}

static bool connect_to_switch(struct sml_grpc *g) {
  const struct sockaddr *sockaddr = (const struct sockaddr *)(const void *)g->addr.bytes;
  const int error = sml_connection_open(sockaddr, g->addr.num_bytes, g->deadline_ns, &g->fd);
  return error == 0 || fail_by(g, "cannot connect", error);
}

static bool open_session(struct sml_grpc *g) {
  static const nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_ENABLE_PUSH, 0}};
  nghttp2_session_callbacks *callbacks;
  if (nghttp2_session_callbacks_new(&callbacks) != 0) return fail(g, "out of memory");
  nghttp2_session_callbacks_set_on_header_callback(callbacks, take_header);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, take_data);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, take_end);
  const int error = nghttp2_session_client_new(&g->session, callbacks, g);
  nghttp2_session_callbacks_del(callbacks);
  if (error != 0 || nghttp2_submit_settings(g->session, 0, settings, SML_ARRAY_LEN(settings)) != 0)
    return fail(g, "out of memory");
  return true;
}

static bool send_all(struct sml_grpc *g) {
  for (;;) {
    const uint8_t *bytes;
    const ssize_t num_bytes = nghttp2_session_mem_send(g->session, &bytes);
    if (num_bytes < 0) return fail(g, "%s", nghttp2_strerror((int)num_bytes));
    if (num_bytes == 0) return true;
    const int error = sml_connection_send(g->fd, bytes, (size_t)num_bytes, g->deadline_ns);
    if (error != 0) return fail_by(g, "connection lost", error);
  }
}

static bool take_some(struct sml_grpc *g) {
  uint8_t bytes[16384];
  size_t num_bytes;
  const int error = sml_connection_receive(g->fd, bytes, sizeof bytes, g->deadline_ns, &num_bytes);
  if (error != 0) return fail_by(g, "connection lost", error);
  if (num_bytes == 0) return fail(g, "connection closed");
  const ssize_t used = nghttp2_session_mem_recv(g->session, bytes, num_bytes);
  if (used < 0) return fail(g, "this is no gRPC: %s", nghttp2_strerror((int)used));
  return true;
}

/* ---- the call ---- */

#define HEADER(name, text) \
  { (uint8_t *)(uintptr_t)(name), (uint8_t *)(uintptr_t)(text), sizeof(name) - 1, strlen(text), NGHTTP2_NV_FLAG_NONE }

static bool submit(struct sml_grpc *g) {
  char authority[64], timeout[32];
  const uint64_t now_ns = sml_clock_ns(), left_ns = g->deadline_ns > now_ns ? g->deadline_ns - now_ns : 0;
  sml_addr_format(&g->addr, authority, sizeof authority);
  snprintf(timeout, sizeof timeout, "%um", (unsigned)sml_min_u64(sml_div_ceil(left_ns, SML_NS_PER_MS), 99999999));
  const nghttp2_nv headers[] = {HEADER(":method", "POST"),      HEADER(":scheme", "http"),
                                HEADER(":path", g->path),       HEADER(":authority", authority),
                                HEADER("te", "trailers"),       HEADER("content-type", "application/grpc"),
                                HEADER("grpc-timeout", timeout)};
  const nghttp2_data_provider provider = {.read_callback = give_data};
  g->stream = nghttp2_submit_request(g->session, NULL, headers, SML_ARRAY_LEN(headers), &provider, NULL);
  return g->stream > 0 || fail(g, "%s", nghttp2_strerror(g->stream));
}

/* Messages without what stands before them. */
static bool take_frames(struct sml_grpc *g, struct sml_pb *answer_out) {
  const struct sml_pb *f = &g->frames;
  sml_pb_clear(answer_out);
  for (size_t at = 0; at < f->num_bytes;) {
    if (f->num_bytes - at < PREFIX_BYTES) return fail(g, "a message that is cut off");
    const uint32_t num_bytes = sml_load_be32(f->bytes + at + 1);
    if (f->bytes[at] != 0) return fail(g, "a compressed message, which nobody asked for");
    at += PREFIX_BYTES;
    if (num_bytes > f->num_bytes - at) return fail(g, "a message that is cut off");
    sml_pb_append(answer_out, f->bytes + at, num_bytes);
    at += num_bytes;
  }
  return !f->is_broken && !answer_out->is_broken ? true : fail(g, "out of memory");
}

static bool is_refused(const struct sml_grpc *g) {
  return g->is_ended && g->status != NO_STATUS && g->status != 0;
}

static bool exchange(struct sml_grpc *g) {
  if (g->session == NULL && (!connect_to_switch(g) || !open_session(g))) return false;
  if (!submit(g)) return false;
  while (!g->is_ended) {
    if (!send_all(g)) return false;
    if (!nghttp2_session_want_read(g->session)) return fail(g, "this is no gRPC, or it wants no more calls");
    if (!take_some(g)) return false;
  }
  if (is_refused(g)) return fail(g, "refused with code %u: %s", g->status, g->message);
  if (g->status == NO_STATUS) return fail(g, "this is no gRPC: HTTP status %u", g->http_status);
  return send_all(g); /* that what came was taken */
}

bool sml_grpc_call(struct sml_grpc *g, const char *path, const struct sml_pb *request, uint64_t deadline_ns,
                   struct sml_pb *answer_out) {
  g->deadline_ns = deadline_ns;
  g->request = request;
  g->sent_bytes = 0;
  g->stream = -1;
  g->is_ended = false;
  g->http_status = 0;
  g->status = NO_STATUS;
  g->message[0] = g->error[0] = 0;
  snprintf(g->path, sizeof g->path, "%s", path);
  sml_pb_clear(&g->frames);
  if (request->is_broken) return fail(g, "out of memory");
  const bool is_connected = g->session != NULL;
  const bool is_done = exchange(g) && take_frames(g, answer_out);
  if (!is_done && !is_refused(g)) {
    g->was_lost = g->was_lost || (is_connected && sml_connection_is_closed(g->fd));
    disconnect(g);
  }
  return is_done;
}
