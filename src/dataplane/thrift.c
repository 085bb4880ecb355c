/* SPDX-License-Identifier: Apache-2.0 */
#include "dataplane/thrift.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "dataplane/connection.h"

#define VERSION_CALL 0x80010001u
#define VERSION_MASK 0xffff0000u
#define MESSAGE_REPLY 2u
#define MAX_TEXT_BYTES (1u << 20)
#define MAX_ELEMS (1u << 20)
#define MAX_DEPTH 8u

void sml_thrift_init(struct sml_thrift *t, const struct sml_addr *addr) {
  memset(t, 0, sizeof *t);
  t->fd = -1;
  t->addr = *addr;
}

void sml_thrift_close(struct sml_thrift *t) {
  if (t->fd >= 0) close(t->fd);
  t->fd = -1;
  t->in_at = t->in_end = 0;
}

__attribute__((format(printf, 2, 3))) static bool fail(struct sml_thrift *t, const char *format, ...) {
  char address[64];
  va_list arguments;
  if (t->error[0] != 0) return false; /* the first one is the reason */
  sml_addr_format(&t->addr, address, sizeof address);
  const int used = snprintf(t->error, sizeof t->error, "the switch at %s: %s: ", address, t->method);
  va_start(arguments, format);
  vsnprintf(t->error + used, sizeof t->error - (size_t)used, format, arguments);
  va_end(arguments);
  return false;
}

bool sml_thrift_fail(struct sml_thrift *t, const char *why) {
  return fail(t, "%s", why);
}

/* ---- the call ---- */

static void put(struct sml_thrift *t, const void *bytes, uint32_t num_bytes) {
  if (SML_THRIFT_CALL_BYTES - t->call_bytes < num_bytes) {
    t->is_overfull = true;
    return;
  }
  memcpy(t->call + t->call_bytes, bytes, num_bytes);
  t->call_bytes += num_bytes;
}

static void put_u32(struct sml_thrift *t, uint32_t value) {
  uint8_t bytes[4];
  sml_store_be32(bytes, value);
  put(t, bytes, sizeof bytes);
}

static void put_field(struct sml_thrift *t, enum sml_thrift_type type, int16_t field) {
  uint8_t bytes[3] = {(uint8_t)type};
  sml_store_be16(bytes + 1, (uint16_t)field);
  put(t, bytes, sizeof bytes);
}

void sml_thrift_element(struct sml_thrift *t, const void *bytes, uint32_t num_bytes) {
  put_u32(t, num_bytes);
  put(t, bytes, num_bytes);
}

void sml_thrift_begin(struct sml_thrift *t, const char *method) {
  t->call_bytes = 0;
  t->is_overfull = false;
  t->error[0] = 0;
  snprintf(t->method, sizeof t->method, "%s", method);
  put_u32(t, VERSION_CALL);
  sml_thrift_element(t, method, (uint32_t)strlen(method));
  put_u32(t, ++t->sequence);
}

void sml_thrift_i32(struct sml_thrift *t, int16_t field, int32_t value) {
  put_field(t, SML_THRIFT_I32, field);
  put_u32(t, (uint32_t)value);
}

void sml_thrift_i64(struct sml_thrift *t, int16_t field, int64_t value) {
  put_field(t, SML_THRIFT_I64, field);
  put_u32(t, (uint32_t)((uint64_t)value >> 32));
  put_u32(t, (uint32_t)value);
}

void sml_thrift_bool(struct sml_thrift *t, int16_t field, bool value) {
  const uint8_t byte = value;
  put_field(t, SML_THRIFT_BOOL, field);
  put(t, &byte, 1);
}

void sml_thrift_bytes(struct sml_thrift *t, int16_t field, const void *bytes, uint32_t num_bytes) {
  put_field(t, SML_THRIFT_STRING, field);
  sml_thrift_element(t, bytes, num_bytes);
}

void sml_thrift_text(struct sml_thrift *t, int16_t field, const char *text) {
  sml_thrift_bytes(t, field, text, (uint32_t)strlen(text));
}

void sml_thrift_struct(struct sml_thrift *t, int16_t field) {
  put_field(t, SML_THRIFT_STRUCT, field);
}

void sml_thrift_list(struct sml_thrift *t, int16_t field, enum sml_thrift_type of, uint32_t num_elems) {
  const uint8_t type = (uint8_t)of;
  put_field(t, SML_THRIFT_LIST, field);
  put(t, &type, 1);
  put_u32(t, num_elems);
}

void sml_thrift_stop(struct sml_thrift *t) {
  const uint8_t type = SML_THRIFT_STOP;
  put(t, &type, 1);
}

/* ---- the connection ---- */

static bool fail_by(struct sml_thrift *t, const char *what, int error) {
  return error == -ETIMEDOUT ? fail(t, "no answer in time") : fail(t, "%s: %s", what, strerror(-error));
}

static bool connect_to_switch(struct sml_thrift *t) {
  const struct sockaddr *sockaddr = (const struct sockaddr *)(const void *)t->addr.bytes;
  const int error = sml_connection_open(sockaddr, t->addr.num_bytes, t->deadline_ns, &t->fd);
  return error == 0 || fail_by(t, "cannot connect", error);
}

static bool send_call(struct sml_thrift *t) {
  const int error = sml_connection_send(t->fd, t->call, t->call_bytes, t->deadline_ns);
  return error == 0 || fail_by(t, "connection lost", error);
}

static bool receive(struct sml_thrift *t) {
  size_t num_bytes = 0;
  const int error = sml_connection_receive(t->fd, t->in, sizeof t->in, t->deadline_ns, &num_bytes);
  t->in_at = 0;
  t->in_end = (uint32_t)num_bytes;
  if (error != 0) return fail_by(t, "connection lost", error);
  return num_bytes > 0 || fail(t, "connection closed");
}

/* ---- the answer ---- */

static bool take(struct sml_thrift *t, uint8_t *to, uint32_t num_bytes) {
  while (num_bytes > 0) {
    if (t->in_at == t->in_end && !receive(t)) return false;
    const uint32_t part = sml_min_u32(num_bytes, t->in_end - t->in_at);
    if (to != NULL) memcpy(to, t->in + t->in_at, part);
    if (to != NULL) to += part;
    t->in_at += part;
    num_bytes -= part;
  }
  return true;
}

static bool take_u32(struct sml_thrift *t, uint32_t *value_out) {
  uint8_t bytes[4];
  if (!take(t, bytes, sizeof bytes)) return false;
  *value_out = sml_load_be32(bytes);
  return true;
}

struct numbers {
  int64_t *values;
  uint32_t max, num;
};

static void note(struct numbers *to, int64_t value) {
  if (to->num < to->max) to->values[to->num] = value;
  to->num++;
}

static bool take_value(struct sml_thrift *t, uint8_t type, uint32_t depth, struct numbers *to);

static bool take_number(struct sml_thrift *t, uint32_t num_bytes, struct numbers *to) {
  uint8_t bytes[8];
  uint64_t value = 0;
  if (!take(t, bytes, num_bytes)) return false;
  for (uint32_t i = 0; i < num_bytes; i++) value = value << 8 | bytes[i];
  const uint32_t shift = 64 - 8 * num_bytes;
  note(to, (int64_t)(value << shift) >> shift);
  return true;
}

static bool take_elems(struct sml_thrift *t, bool is_map, uint32_t depth, struct numbers *to) {
  uint8_t types[2];
  uint32_t num_elems;
  if (!take(t, types, is_map ? 2 : 1) || !take_u32(t, &num_elems)) return false;
  if (num_elems > MAX_ELEMS) return fail(t, "a list of %u elements", num_elems);
  for (uint32_t i = 0; i < num_elems; i++) {
    if (!take_value(t, types[0], depth + 1, to)) return false;
    if (is_map && !take_value(t, types[1], depth + 1, to)) return false;
  }
  return true;
}

static bool take_struct(struct sml_thrift *t, uint32_t depth, struct numbers *to) {
  for (;;) {
    uint8_t type, field[2];
    if (!take(t, &type, 1)) return false;
    if (type == SML_THRIFT_STOP) return true;
    if (!take(t, field, sizeof field) || !take_value(t, type, depth + 1, to)) return false;
  }
}

/* Whatever comes: bounded in depth and size, and by the deadline in time. */
static bool take_value(struct sml_thrift *t, uint8_t type, uint32_t depth, struct numbers *to) {
  uint32_t num_bytes;
  if (depth > MAX_DEPTH) return fail(t, "an answer nested too deep");
  switch (type) {
    case SML_THRIFT_BOOL:
    case SML_THRIFT_BYTE: return take_number(t, 1, to);
    case SML_THRIFT_I16: return take_number(t, 2, to);
    case SML_THRIFT_I32: return take_number(t, 4, to);
    case SML_THRIFT_I64: return take_number(t, 8, to);
    case SML_THRIFT_DOUBLE: return take(t, NULL, 8);
    case SML_THRIFT_STRING:
      if (!take_u32(t, &num_bytes)) return false;
      return num_bytes > MAX_TEXT_BYTES ? fail(t, "a text of %u bytes", num_bytes) : take(t, NULL, num_bytes);
    case SML_THRIFT_STRUCT: return take_struct(t, depth, to);
    case SML_THRIFT_MAP: return take_elems(t, true, depth, to);
    case SML_THRIFT_SET:
    case SML_THRIFT_LIST: return take_elems(t, false, depth, to);
    default: return fail(t, "an answer of unknown type %u", type);
  }
}

/* The result is a struct: field 0 is what the method returns, another one why it failed, which has a code. */
static bool take_answer(struct sml_thrift *t, struct numbers *to, bool *is_refused) {
  uint32_t version, name_bytes, sequence;
  *is_refused = false;
  if (!take_u32(t, &version) || !take_u32(t, &name_bytes)) return false;
  if ((version & VERSION_MASK) != (VERSION_CALL & VERSION_MASK) || name_bytes > sizeof t->method)
    return fail(t, "this is no Thrift of the binary protocol");
  if (!take(t, NULL, name_bytes) || !take_u32(t, &sequence)) return false;
  if (sequence != t->sequence) return fail(t, "an answer to another call");
  const bool is_exception = (version & 0xff) != MESSAGE_REPLY;
  for (;;) {
    uint8_t type, field[2];
    int64_t code = 0;
    struct numbers codes = {&code, 1, 0};
    if (!take(t, &type, 1)) return false;
    if (type == SML_THRIFT_STOP) break;
    if (!take(t, field, sizeof field)) return false;
    const bool is_result = sml_load_be16(field) == 0 && !is_exception;
    if (!take_value(t, type, 1, is_result ? to : &codes)) return false;
    if (!is_result) *is_refused = true;
    if (!is_result && codes.num > 0) fail(t, "refused with code %lld", (long long)code);
  }
  if (is_exception || *is_refused) return *is_refused = true, fail(t, "refused");
  return true;
}

bool sml_thrift_end(struct sml_thrift *t, uint64_t deadline_ns, int64_t *values_out, uint32_t max_values,
                    uint32_t *num_values_out) {
  struct numbers to = {values_out, max_values, 0};
  bool is_refused = false;
  t->deadline_ns = deadline_ns;
  sml_thrift_stop(t);
  if (t->is_overfull) return fail(t, "the call is too long");
  const bool is_connected = t->fd >= 0;
  const bool is_done = (is_connected || connect_to_switch(t)) && send_call(t) && take_answer(t, &to, &is_refused);
  if (num_values_out != NULL) *num_values_out = to.num;
  if (!is_done && !is_refused) {
    t->was_lost = t->was_lost || (is_connected && sml_connection_is_closed(t->fd));
    sml_thrift_close(t);
  }
  return is_done;
}
