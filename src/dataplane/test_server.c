/* SPDX-License-Identifier: Apache-2.0 */
#include "dataplane/test_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <sys/socket.h>

#include "dataplane/grpc.h"
#include "dataplane/protobuf.h"
#include "dataplane/test_schema.h"

#define FIRST_ID 100u /* of the numbers that names have */
#define MORE_LANES "pipe.Ingress.aggregate.sum.lane_1_"

struct session {
  int fd;
  nghttp2_session *http2;
  char path[96];
  struct sml_pb request, answer;
  size_t sent_bytes;
  char status[8], message[96];
  bool is_over, is_entry;
};

static struct {
  bool has_more_lanes;
  char live[SERVER_MAX_LIVE][256]; /* "table keys" */
} state;                           /* under the stand-in's lock */

static uint64_t number_in(struct sml_pb_reader in, uint32_t number) {
  struct sml_pb_field field;
  while (sml_pb_next(&in, &field))
    if (field.number == number && !field.has_bytes) return field.value;
  return 0;
}

static struct sml_pb_reader message_in(struct sml_pb_reader in, uint32_t number) {
  struct sml_pb_field field;
  while (sml_pb_next(&in, &field))
    if (field.number == number && field.has_bytes) return field.inside;
  return (struct sml_pb_reader){NULL, NULL};
}

/* The line of the schema that has this number. */
static const char *line_of(uint64_t id) {
  return id < FIRST_ID || id - FIRST_ID >= SML_ARRAY_LEN(recorded_schema) ? "?" : recorded_schema[id - FIRST_ID];
}

/* What it is the name of: the last word but for what is said about it. */
static struct sml_pb_reader name_in(const char *line) {
  const char *at = line;
  for (uint32_t word = 0; word < 2 && strchr(at, ' ') != NULL; word++) at = strchr(at, ' ') + 1;
  return (struct sml_pb_reader){(const uint8_t *)at, (const uint8_t *)at + strcspn(at, " ")};
}

#define NAME(id) (int)(name_in(line_of(id)).end - name_in(line_of(id)).at), (const char *)name_in(line_of(id)).at

/* A value of the width that the schema says. */
static bool is_as_wide(uint64_t id, struct sml_pb_reader bytes) {
  const uint8_t *end = name_in(line_of(id)).end;
  return bytes.end - bytes.at == atoi((const char *)end);
}

static bool fails(struct session *c, const char *status, const char *message) {
  snprintf(c->status, sizeof c->status, "%s", status);
  snprintf(c->message, sizeof c->message, "%s", message);
  return false;
}

/* The number of a line: its place in the schema. */
static uint32_t find_line(const char *text) {
  const size_t length = strlen(text);
  if (state.has_more_lanes && strncmp(text, MORE_LANES, strlen(MORE_LANES)) == 0) return 1;
  for (uint32_t i = 0; i < SML_ARRAY_LEN(recorded_schema); i++)
    if (strncmp(recorded_schema[i], text, length) == 0 && strchr(" ", recorded_schema[i][length]) != NULL)
      return FIRST_ID + i;
  return 0;
}

static bool answer_name(struct session *c, struct sml_pb_reader object) {
  char text[160];
  const struct sml_pb_reader table = message_in(object, 1), name = message_in(table, 1);
  const struct sml_pb_reader action = message_in(message_in(table, 2), 1), key = message_in(message_in(table, 3), 1);
  const struct sml_pb_reader of_data = message_in(table, 4), data = message_in(of_data, 2), of = message_in(of_data, 1);
  const struct sml_pb_reader field = action.at ? action : key.at ? key : data;
  int used = snprintf(text, sizeof text, "%.*s", (int)(name.end - name.at), (const char *)name.at);
  if (field.at != NULL && of.at != NULL)
    used += snprintf(text + used, sizeof text - (size_t)used, " %.*s", (int)(of.end - of.at), (const char *)of.at);
  else if (field.at != NULL)
    used += snprintf(text + used, sizeof text - (size_t)used, " %s", action.at ? "action" : key.at ? "key" : "data");
  if (field.at != NULL)
    snprintf(text + used, sizeof text - (size_t)used, " %.*s", (int)(field.end - field.at), (const char *)field.at);
  const uint32_t id = find_line(text);
  if (id == 0 && field.at == NULL) return fails(c, "5", "Table not found.");
  const size_t entity = sml_pb_begin(&c->answer, 1), answer = sml_pb_begin(&c->answer, 5);
  if (id != 0) sml_pb_number(&c->answer, 3, id); /* of a field that it has not the server says 0, and no error */
  sml_pb_end(&c->answer, answer);
  sml_pb_end(&c->answer, entity);
  return true;
}

static int add_bytes(char *text, size_t room_bytes, struct sml_pb_reader bytes) {
  int used = 0;
  for (const uint8_t *at = bytes.at; at < bytes.end && (size_t)used < room_bytes; at++)
    used += snprintf(text + used, room_bytes - (size_t)used, "%02x", *at);
  return used;
}

static void describe_key(struct sml_pb_reader key, char *text, size_t room_bytes) {
  struct sml_pb_field field;
  size_t used = 0;
  text[0] = 0;
  while (sml_pb_next(&key, &field) && used < room_bytes) {
    const struct sml_pb_reader exact = message_in(field.inside, 2), ternary = message_in(field.inside, 3);
    const struct sml_pb_reader value = message_in(exact.at ? exact : ternary, 1);
    const uint64_t id = number_in(field.inside, 1);
    const bool is_ternary = strstr(line_of(id), " ternary") != NULL;
    used += (size_t)snprintf(text + used, room_bytes - used, " %.*s=", NAME(id));
    used += (size_t)add_bytes(text + used, room_bytes - used, value);
    if (!is_as_wide(id, value) || is_ternary != (exact.at == NULL)) text[0] = 0, used = 0; /* which no test expects */
    if (exact.at != NULL) continue;
    used += (size_t)snprintf(text + used, room_bytes - used, "/");
    used += (size_t)add_bytes(text + used, room_bytes - used, message_in(ternary, 2));
  }
}

static void describe_data(struct sml_pb_reader data) {
  struct sml_pb_field field;
  char text[64];
  if (data.at == NULL) return;
  stand_in_note(" :");
  if (number_in(data, 1) != 0) stand_in_note(" %.*s", NAME(number_in(data, 1)));
  while (sml_pb_next(&data, &field)) {
    if (field.number != 2) continue;
    const struct sml_pb_reader stream = message_in(field.inside, 2), ints = message_in(field.inside, 5);
    const struct sml_pb_reader list = message_in(ints.at ? ints : message_in(field.inside, 6), 1);
    const uint64_t id = number_in(field.inside, 1);
    const bool is_list = strstr(line_of(id), " list") != NULL;
    text[0] = 0;
    add_bytes(text, sizeof text, stream.at ? stream : list); /* a list's numbers as varints */
    if (is_list != (stream.at == NULL) || (!is_list && !is_as_wide(id, stream))) stand_in_note(" refused:");
    stand_in_note(stream.at ? " %.*s=%s" : " %.*s=[%s]", NAME(id), text);
  }
}

static uint32_t find_live(const char *text) {
  uint32_t i = 0;
  while (i < SERVER_MAX_LIVE && strcmp(state.live[i], text) != 0) i++;
  return i;
}

static bool keep(struct session *c, const char *table, const char *key, uint64_t type) {
  char text[256];
  snprintf(text, sizeof text, "%s%s", table, key);
  const uint32_t at = find_live(text);
  if (type == 4 && key[0] == 0 && table[0] == '$') return fails(c, "12", "Table Entry delete all failed");
  if (type == 4 && key[0] == 0) {
    for (uint32_t i = 0; i < SERVER_MAX_LIVE; i++)
      if (strncmp(state.live[i], text, strlen(text)) == 0) state.live[i][0] = 0;
  } else if (type == 4) {
    if (at == SERVER_MAX_LIVE) return fails(c, "5", "Table Entry delete failed");
    state.live[at][0] = 0;
  } else if (type == 1) {
    if (at < SERVER_MAX_LIVE && strcmp(table, "$pre.prune") == 0) return true; /* that always has all its entries */
    if (at < SERVER_MAX_LIVE) return fails(c, "6", "Table Add failed");
    const uint32_t room = find_live("");
    SML_ASSERT(room < SERVER_MAX_LIVE);
    snprintf(state.live[room], sizeof state.live[0], "%s", text);
  } else if (type == 3 && at == SERVER_MAX_LIVE) {
    return fails(c, "5", "Table Entry modify incremental failed");
  }
  return true;
}

/* Whether there are as many fields as the table, or its action, wants. */
static bool is_complete(const char *table, struct sml_pb_reader part, int name_bytes, const char *name,
                        uint32_t fields_number) {
  char text[160];
  struct sml_pb_field field;
  uint32_t num_missing = 0;
  snprintf(text, sizeof text, "%s %.*s ", table, name_bytes, name);
  for (uint32_t i = 0; i < SML_ARRAY_LEN(recorded_schema); i++)
    if (strncmp(recorded_schema[i], text, strlen(text)) == 0 && strstr(recorded_schema[i], " optional") == NULL)
      num_missing++;
  while (sml_pb_next(&part, &field))
    if (field.number == fields_number && field.has_bytes && num_missing > 0) num_missing--;
  return num_missing == 0;
}

static bool carry_out(struct session *c, struct sml_pb_reader update) {
  static const char *const types[] = {"?", "INSERT", "MODIFY", "ADD", "DELETE"};
  const struct sml_pb_reader entry = message_in(message_in(update, 2), 1), key = message_in(entry, 2);
  const uint64_t type = number_in(update, 1);
  const char *table = line_of(number_in(entry, 1));
  const bool takes = number_in(message_in(entry, 9), 3) != 0;
  char text[192];
  describe_key(key, text, sizeof text);
  stand_in_note("%s %s%s", takes ? "TAKE" : types[type < 5 ? type : 0], table, text);
  const struct sml_pb_reader data = message_in(entry, 3);
  const uint64_t action = number_in(data, 1);
  describe_data(data);
  if (key.at != NULL && !is_complete(table, key, 3, "key", 1)) stand_in_note(" and more keys");
  if (action != 0 && !is_complete(table, data, NAME(action), 2)) stand_in_note(" and more data");
  if (action == 0 && data.at != NULL && !is_complete(table, data, 4, "data", 2)) stand_in_note(" and more data");
  stand_in_note("\n");
  return type == 2 || keep(c, table, text, type);
}

static bool write_entries(struct session *c, struct sml_pb_reader in) {
  struct sml_pb_field field;
  bool is_done = true;
  while (sml_pb_next(&in, &field))
    if (field.number == 3 && field.has_bytes) is_done = carry_out(c, field.inside) && is_done;
  return is_done;
}

static void put_stream(struct sml_pb *pb, uint32_t field, uint64_t id, uint32_t value) {
  uint8_t bytes[4];
  const size_t at = sml_pb_begin(pb, field);
  sml_store_be32(bytes, value);
  sml_pb_number(pb, 1, id);
  if (field == 1) { /* of a key */
    const size_t exact = sml_pb_begin(pb, 2);
    sml_pb_bytes(pb, 1, bytes, 4);
    sml_pb_end(pb, exact);
  } else {
    sml_pb_bytes(pb, 2, bytes, 4);
  }
  sml_pb_end(pb, at);
}

/* An entry with a value for each of two pipes; of no field: with its key alone. */
static void put_entry(struct session *c, const char *field, uint32_t key, uint32_t first, uint32_t second) {
  struct sml_pb *pb = &c->answer;
  const size_t entity = sml_pb_begin(pb, 1), entry = sml_pb_begin(pb, 1), keys = sml_pb_begin(pb, 2);
  put_stream(pb, 1, 1, key);
  sml_pb_end(pb, keys);
  const size_t data = sml_pb_begin(pb, 3);
  put_stream(pb, 2, 7, 0xffffffff); /* a field that nobody asked for */
  for (uint32_t pipe = 0; field != NULL && pipe < 2; pipe++)
    put_stream(pb, 2, find_line(field), pipe == 0 ? first : second);
  sml_pb_end(pb, data);
  sml_pb_end(pb, entry);
  sml_pb_end(pb, entity);
}

/* All entries of a table of the driver, and as the server does the default one, which has no key. */
static void read_live(struct session *c, const char *table) {
  const size_t length = strlen(table);
  for (uint32_t i = 0; i < SERVER_MAX_LIVE; i++)
    if (strncmp(state.live[i], table, length) == 0 && state.live[i][length] == ' ')
      put_entry(c, NULL, (uint32_t)strtoul(strchr(state.live[i], '=') + 1, NULL, 16), 0, 0);
  const size_t entity = sml_pb_begin(&c->answer, 1), entry = sml_pb_begin(&c->answer, 1);
  sml_pb_number(&c->answer, 5, 1);
  sml_pb_end(&c->answer, entry);
  sml_pb_end(&c->answer, entity);
}

static bool read_entry(struct session *c, struct sml_pb_reader entry) {
  static const uint32_t ports[] = {0, 132, 300, 5};
  const char *table = line_of(number_in(entry, 1));
  const struct sml_pb_reader value = message_in(message_in(message_in(message_in(entry, 2), 1), 2), 1);
  const uint32_t index = (uint32_t)sml_pb_to_number(&value);
  if (strcmp(table, "$PORT") == 0)
    for (uint32_t i = 0; i < SML_ARRAY_LEN(ports); i++) put_entry(c, NULL, ports[i], 0, 0);
  else if (table[0] == '$') read_live(c, table);
  else if (strcmp(table, "pipe.verdicts") == 0) put_entry(c, "pipe.verdicts data $COUNTER_SPEC_PKTS", index, index, 1);
  else if (strcmp(table, "pipe.cells") != 0 || index >= 2 * POOL_SLOTS) return fails(c, "3", "Entry not found");
  else put_entry(c, "pipe.cells data cells.word", index, 0x80000000, stand_in.words[index]);
  return true;
}

static bool read_entries(struct session *c, struct sml_pb_reader in) {
  struct sml_pb_field field;
  while (sml_pb_next(&in, &field)) {
    if (field.number != 3 || !field.has_bytes) continue;
    const struct sml_pb_reader entry = message_in(field.inside, 1), object = message_in(field.inside, 5);
    if (object.at != NULL ? !answer_name(c, object) : !read_entry(c, entry)) return false;
  }
  return true;
}

/* ---- the stand-in's HTTP/2 ---- */

static ssize_t give_answer(nghttp2_session *session, int32_t stream, uint8_t *bytes, size_t room_bytes, uint32_t *flags,
                           nghttp2_data_source *source, void *user) {
  struct session *c = user;
  const size_t part = sml_min_u64(room_bytes, c->answer.num_bytes - c->sent_bytes);
  (void)source;
  if (part > 0) memcpy(bytes, c->answer.bytes + c->sent_bytes, part);
  c->sent_bytes += part;
  if (c->sent_bytes < c->answer.num_bytes) return (ssize_t)part;
  *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
  const nghttp2_nv trailers[] = {
      {(uint8_t *)(uintptr_t) "grpc-status", (uint8_t *)c->status, 11, strlen(c->status), 0},
      {(uint8_t *)(uintptr_t) "grpc-message", (uint8_t *)c->message, 12, strlen(c->message), 0}};
  nghttp2_submit_trailer(session, stream, trailers, c->message[0] != 0 ? 2 : 1);
  return (ssize_t)part;
}

static void respond(struct session *c, int32_t stream, const char *status) {
  const nghttp2_nv headers[] = {
      {(uint8_t *)(uintptr_t) ":status", (uint8_t *)(uintptr_t)status, 7, 3, 0},
      {(uint8_t *)(uintptr_t) "content-type", (uint8_t *)(uintptr_t) "application/grpc", 12, 16, 0}};
  const nghttp2_data_provider provider = {.read_callback = give_answer};
  const bool has_body = strcmp(status, "200") == 0;
  c->sent_bytes = 0;
  nghttp2_submit_response(c->http2, stream, headers, 2, has_body ? &provider : NULL);
}

/* The message, in two where it is longer than one byte: as a server may that streams. */
static void frame_answer(struct session *c) {
  struct sml_pb framed = {.bytes = NULL};
  const uint8_t prefix[5] = {0};
  sml_pb_append(&framed, prefix, 5);
  sml_store_be32(framed.bytes + 1, (uint32_t)c->answer.num_bytes);
  sml_pb_append(&framed, c->answer.bytes, c->answer.num_bytes);
  sml_pb_append(&framed, prefix, 5); /* and an empty one */
  sml_pb_free(&c->answer);
  c->answer = framed;
}

static void err(struct session *c, int32_t stream, uint32_t fault) {
  static const char web[] = "HTTP/1.0 400 Bad Request\r\n\r\n";
  frame_answer(c);
  if (fault == REFUSES) fails(c, "13", "out of%20order");
  if (fault == CUTS) sml_store_be32(c->answer.bytes + 1, (uint32_t)c->answer.num_bytes - 4); /* a byte too few */
  if (fault == COMPRESSES) c->answer.bytes[0] = 1;
  if (fault == NO_HTTP2) (void)!send(c->fd, web, sizeof web, MSG_NOSIGNAL);
  if (fault == DIES) stand_in_die();
  if (fault == CLOSES || fault == DIES) c->is_over = true;
  else if (fault == RESETS) nghttp2_submit_rst_stream(c->http2, 0, stream, NGHTTP2_INTERNAL_ERROR);
  else if (fault == TOO_LONG || fault == LENGTHY) {
    const uint32_t more_bytes = fault == TOO_LONG ? SML_GRPC_MAX_ANSWER_BYTES : STAND_IN_LENGTHY_BYTES;
    uint8_t *much = calloc(1, more_bytes);
    sml_pb_append(&c->answer, much, more_bytes);
    free(much);
    respond(c, stream, "200");
  } else if (fault != SILENT && fault != NO_HTTP2) respond(c, stream, fault == NO_GRPC ? "404" : "200");
}

static void serve_call(struct session *c, int32_t stream) {
  const struct sml_pb_reader in = {c->request.bytes + 5, c->request.bytes + c->request.num_bytes};
  pthread_mutex_lock(&stand_in.lock);
  sml_pb_clear(&c->answer);
  snprintf(c->status, sizeof c->status, "0");
  c->message[0] = 0;
  SML_ASSERT(c->request.num_bytes >= 5 && sml_load_be32(c->request.bytes + 1) == c->request.num_bytes - 5);
  SML_ASSERT(number_in(message_in(in, 1), 2) == 0xffff);
  const bool is_name = message_in(message_in(in, 3), 5).at != NULL;
  const uint32_t fault = is_name ? NO_FAULT : stand_in_take_call();
  if (fault != NO_FAULT) {
    err(c, stream, fault);
  } else {
    const bool is_write = strcmp(c->path, "/bfrt_proto.BfRuntime/Write") == 0;
    if (is_write) write_entries(c, in);
    else if (strcmp(c->path, "/bfrt_proto.BfRuntime/Read") == 0) read_entries(c, in);
    else fails(c, "12", "");
    const struct sml_pb_reader program = message_in(in, is_write ? 5 : 4);
    if (program.end - program.at != 8 || memcmp(program.at, "switchml", 8) != 0) fails(c, "3", "program");
    frame_answer(c);
    respond(c, stream, "200");
  }
  pthread_mutex_unlock(&stand_in.lock);
}

static int take_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_bytes,
                       const uint8_t *value, size_t value_bytes, uint8_t flags, void *user) {
  struct session *c = user;
  (void)session, (void)frame, (void)name_bytes, (void)flags;
  if (strcmp((const char *)name, ":path") == 0)
    snprintf(c->path, sizeof c->path, "%.*s", (int)value_bytes, (const char *)value);
  return 0;
}

static int take_data(nghttp2_session *session, uint8_t flags, int32_t stream, const uint8_t *bytes, size_t num_bytes,
                     void *user) {
  struct session *c = user;
  (void)session, (void)flags, (void)stream;
  sml_pb_append(&c->request, bytes, num_bytes);
  return 0;
}

static int take_frame(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
  struct session *c = user;
  (void)session;
  const bool is_last = frame->hd.type == NGHTTP2_DATA && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
  if (!is_last) return 0;
  serve_call(c, frame->hd.stream_id);
  sml_pb_clear(&c->request);
  return 0;
}

static bool send_all(struct session *c) {
  const uint8_t *bytes;
  ssize_t num_bytes;
  while ((num_bytes = nghttp2_session_mem_send(c->http2, &bytes)) > 0) stand_in_answer(c->fd, bytes, (size_t)num_bytes);
  return num_bytes == 0;
}

void server_serve(int fd) {
  struct session c = {.fd = fd};
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  uint8_t bytes[4096];
  ssize_t n;
  nghttp2_session_callbacks *callbacks;
  SML_ASSERT(nghttp2_session_callbacks_new(&callbacks) == 0);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, take_header);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, take_data);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, take_frame);
  SML_ASSERT(nghttp2_session_server_new(&c.http2, callbacks, &c) == 0);
  nghttp2_session_callbacks_del(callbacks);
  nghttp2_submit_settings(c.http2, 0, NULL, 0);
  while (!c.is_over && send_all(&c) && (n = recv(fd, bytes, sizeof bytes, 0)) > 0)
    if (nghttp2_session_mem_recv(c.http2, bytes, (size_t)n) < 0) break;
  nghttp2_session_del(c.http2);
  sml_pb_free(&c.request);
  sml_pb_free(&c.answer);
}

/* ---- for tests ---- */

void server_reset(bool has_more_lanes) {
  memset(&state, 0, sizeof state);
  state.has_more_lanes = has_more_lanes;
}

uint32_t server_count_live(const char *table) {
  uint32_t num = 0;
  pthread_mutex_lock(&stand_in.lock);
  for (uint32_t i = 0; i < SERVER_MAX_LIVE; i++)
    num += state.live[i][0] != 0 && strncmp(state.live[i], table, strlen(table)) == 0;
  pthread_mutex_unlock(&stand_in.lock);
  return num;
}
