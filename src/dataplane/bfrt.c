/* SPDX-License-Identifier: Apache-2.0 */
#include "dataplane/bfrt.h"

#include <stdio.h>
#include <string.h>

#include "dataplane/jobs.h"

#define CALL_NS (1 * SML_NS_PER_S) /* one call */
#define CLIENT 0x534d4cu           /* any number that no other controller uses */
#define ALL_PIPES 0xffffu
#define ALL 0xffu
#define NOT_FOUND 5u /* a status of gRPC */

/* Numbers of the fields of messages in bfruntime.proto. */
enum { WRITE_TARGET = 1, WRITE_CLIENT = 2, WRITE_UPDATES = 3, WRITE_PROGRAM = 5 };
enum { READ_TARGET = 1, READ_CLIENT = 2, READ_ENTITIES = 3, READ_PROGRAM = 4, READ_ANSWER_ENTITIES = 1 };
enum { TARGET_DEVICE = 1, TARGET_PIPE = 2, TARGET_DIRECTION = 3, TARGET_PARSER = 4 };
enum { UPDATE_TYPE = 1, UPDATE_ENTITY = 2 };
enum { ENTITY_TABLE_ENTRY = 1, ENTITY_OBJECT = 5 };
enum { ENTRY_TABLE = 1, ENTRY_KEY = 2, ENTRY_DATA = 3, ENTRY_FLAGS = 9, FLAGS_FROM_HW = 1, FLAGS_TAKE = 3 };
enum { KEY_FIELDS = 1, KEY_ID = 1, KEY_EXACT = 2, KEY_TERNARY = 3, MATCH_VALUE = 1, MATCH_MASK = 2 };
enum { DATA_ACTION = 1, DATA_FIELDS = 2, DATA_ID = 1, DATA_STREAM = 2, DATA_NUMBERS = 5, DATA_TRUTHS = 6, LIST = 1 };
enum { OBJECT_TABLE = 1, OBJECT_ID = 3, TABLE_NAME = 1, TABLE_ACTION = 2, TABLE_KEY = 3, TABLE_DATA = 4 };
enum { DATA_NAME_ACTION = 1, DATA_NAME_FIELD = 2, ONLY_NAME = 1 };

void sml_bfrt_init(struct sml_bfrt *b, const struct sml_addr *addr, const char *program) {
  memset(b, 0, sizeof *b);
  b->program = program;
  sml_grpc_init(&b->grpc, addr);
}

void sml_bfrt_close(struct sml_bfrt *b) {
  sml_grpc_close(&b->grpc);
  sml_pb_free(&b->request);
  sml_pb_free(&b->question);
  sml_pb_free(&b->answer);
}

const char *sml_bfrt_error(const struct sml_bfrt *b) {
  return b->grpc.error;
}

static bool call(struct sml_bfrt *b, const char *path, const struct sml_pb *request) {
  const uint64_t deadline_ns = sml_min_u64(sml_clock_ns() + CALL_NS, b->deadline_ns);
  return sml_grpc_call(&b->grpc, path, request, deadline_ns, &b->answer);
}

/* Both requests begin with the same two. */
static void put_target(struct sml_pb *pb) {
  const size_t target = sml_pb_begin(pb, WRITE_TARGET);
  sml_pb_number(pb, TARGET_DEVICE, 0);
  sml_pb_number(pb, TARGET_PIPE, ALL_PIPES);
  sml_pb_number(pb, TARGET_DIRECTION, ALL);
  sml_pb_number(pb, TARGET_PARSER, ALL);
  sml_pb_end(pb, target);
  sml_pb_number(pb, WRITE_CLIENT, CLIENT);
}

/* The first field of that number which has bytes. */
static bool find(struct sml_pb_reader in, uint32_t number, struct sml_pb_reader *inside_out) {
  struct sml_pb_field field;
  while (sml_pb_next(&in, &field)) {
    if (field.number != number || !field.has_bytes) continue;
    *inside_out = field.inside;
    return true;
  }
  return false;
}

static uint64_t find_number(struct sml_pb_reader in, uint32_t number) {
  struct sml_pb_field field;
  while (sml_pb_next(&in, &field))
    if (field.number == number && !field.has_bytes) return field.value;
  return 0;
}

/* An empty one may have no bytes at all, and to NULL nothing is added. */
static struct sml_pb_reader read_all(const struct sml_pb *pb) {
  return (struct sml_pb_reader){pb->bytes, pb->num_bytes == 0 ? pb->bytes : pb->bytes + pb->num_bytes};
}

/* ---- names ---- */

static void ask_for(struct sml_pb *pb, uint32_t kind, const char *table, const char *action, const char *name) {
  const size_t entity = sml_pb_begin(pb, READ_ENTITIES), object = sml_pb_begin(pb, ENTITY_OBJECT);
  const size_t in_table = sml_pb_begin(pb, OBJECT_TABLE);
  sml_pb_text(pb, TABLE_NAME, table);
  if (kind != 0) {
    const size_t field = sml_pb_begin(pb, kind);
    if (kind == TABLE_DATA && action[0] != 0) sml_pb_text(pb, DATA_NAME_ACTION, action);
    sml_pb_text(pb, kind == TABLE_DATA ? DATA_NAME_FIELD : ONLY_NAME, name);
    sml_pb_end(pb, field);
  }
  sml_pb_end(pb, in_table);
  sml_pb_end(pb, object);
  sml_pb_end(pb, entity);
}

static uint32_t ask(struct sml_bfrt *b, uint32_t kind, const char *table, const char *action, const char *name) {
  struct sml_pb_reader entity, object;
  sml_pb_clear(&b->question);
  put_target(&b->question);
  ask_for(&b->question, kind, table, action, name);
  sml_pb_text(&b->question, READ_PROGRAM, b->program);
  if (!call(b, "/bfrt_proto.BfRuntime/Read", &b->question)) return 0;
  if (!find(read_all(&b->answer), READ_ANSWER_ENTITIES, &entity) || !find(entity, ENTITY_OBJECT, &object)) return 0;
  return (uint32_t)find_number(object, OBJECT_ID);
}

/* 0: there is none, or (then there is an error) it could not be asked for. */
static uint32_t find_id(struct sml_bfrt *b, uint32_t kind, const char *table, const char *action, const char *name) {
  char text[sizeof b->names[0].text];
  snprintf(text, sizeof text, "%u %s %s %s", kind, table, action, name);
  for (uint32_t i = 0; i < b->num_names; i++)
    if (strcmp(b->names[i].text, text) == 0) return b->names[i].id;
  const uint32_t id = ask(b, kind, table, action, name);
  if (id == 0 || b->num_names == SML_BFRT_MAX_NAMES) return id;
  struct sml_bfrt_name *known = &b->names[b->num_names++];
  memcpy(known->text, text, sizeof text);
  known->id = id;
  return id;
}

static uint32_t id_of(struct sml_bfrt *b, uint32_t kind, const char *table, const char *action, const char *name) {
  const uint32_t id = b->has_failed ? 0 : find_id(b, kind, table, action, name);
  if (id != 0 || b->has_failed) return id;
  b->has_failed = true;
  if (b->grpc.error[0] == 0)
    snprintf(b->grpc.error, sizeof b->grpc.error, "the switch's program has no %s%s%s", table, name[0] ? " with " : "",
             name);
  return 0;
}

bool sml_bfrt_has_table(struct sml_bfrt *b, const char *table) {
  if (find_id(b, 0, table, "", "") != 0) return true;
  if (b->grpc.status == NOT_FOUND) b->grpc.error[0] = 0;
  return false;
}

uint32_t sml_bfrt_field(struct sml_bfrt *b, const char *table, const char *name) {
  b->has_failed = false;
  return id_of(b, TABLE_DATA, table, "", name);
}

/* ---- requests ---- */

void sml_bfrt_begin(struct sml_bfrt *b) {
  sml_pb_clear(&b->request);
  b->num_parts = 0;
  b->has_failed = false;
  put_target(&b->request);
}

enum { PART, ENTITY, ENTRY, INSIDE };

static void begin_entry(struct sml_bfrt *b, const char *table, const char *action) {
  snprintf(b->table, sizeof b->table, "%s", table);
  snprintf(b->action, sizeof b->action, "%s", action);
  b->num_parts++;
  b->begins[ENTRY] = sml_pb_begin(&b->request, ENTITY_TABLE_ENTRY);
  sml_pb_number(&b->request, ENTRY_TABLE, id_of(b, 0, table, "", ""));
  b->begins[INSIDE] = 0;
}

static void put_flag(struct sml_bfrt *b, uint32_t flag) {
  const size_t flags = sml_pb_begin(&b->request, ENTRY_FLAGS);
  sml_pb_number(&b->request, flag, 1);
  sml_pb_end(&b->request, flags);
}

void sml_bfrt_entry(struct sml_bfrt *b, enum sml_bfrt_update update, const char *table, const char *action) {
  const bool takes = update == SML_BFRT_TAKE_FROM;
  b->begins[PART] = sml_pb_begin(&b->request, WRITE_UPDATES);
  sml_pb_number(&b->request, UPDATE_TYPE, takes ? SML_BFRT_ADD_TO : (uint64_t)update);
  b->begins[ENTITY] = sml_pb_begin(&b->request, UPDATE_ENTITY);
  begin_entry(b, table, action);
  if (takes) put_flag(b, FLAGS_TAKE);
}

void sml_bfrt_look(struct sml_bfrt *b, const char *table, bool is_fresh) {
  b->begins[PART] = sml_pb_begin(&b->request, READ_ENTITIES);
  b->begins[ENTITY] = 0;
  begin_entry(b, table, "");
  if (is_fresh) put_flag(b, FLAGS_FROM_HW);
}

void sml_bfrt_end_entry(struct sml_bfrt *b) {
  if (b->begins[INSIDE] != 0) sml_pb_end(&b->request, b->begins[INSIDE]);
  sml_pb_end(&b->request, b->begins[ENTRY]);
  if (b->begins[ENTITY] != 0) sml_pb_end(&b->request, b->begins[ENTITY]);
  sml_pb_end(&b->request, b->begins[PART]);
}

void sml_bfrt_key(struct sml_bfrt *b, const char *name, uint64_t value, uint32_t bits, uint64_t mask) {
  struct sml_pb *pb = &b->request;
  uint8_t bytes[8];
  const uint32_t id = id_of(b, TABLE_KEY, b->table, "", name);
  if (b->begins[INSIDE] == 0) b->begins[INSIDE] = sml_pb_begin(pb, ENTRY_KEY);
  const size_t field = sml_pb_begin(pb, KEY_FIELDS);
  sml_pb_number(pb, KEY_ID, id);
  const size_t match = sml_pb_begin(pb, mask == 0 ? KEY_EXACT : KEY_TERNARY);
  sml_pb_bytes(pb, MATCH_VALUE, bytes, sml_switch_bytes(value, bits, bytes));
  if (mask != 0) sml_pb_bytes(pb, MATCH_MASK, bytes, sml_switch_bytes(sml_switch_mask(mask), bits, bytes));
  sml_pb_end(pb, match);
  sml_pb_end(pb, field);
}

void sml_bfrt_data(struct sml_bfrt *b) {
  const uint32_t action = b->action[0] == 0 ? 0 : id_of(b, TABLE_ACTION, b->table, "", b->action);
  if (b->begins[INSIDE] != 0) sml_pb_end(&b->request, b->begins[INSIDE]);
  b->begins[INSIDE] = sml_pb_begin(&b->request, ENTRY_DATA);
  if (action != 0) sml_pb_number(&b->request, DATA_ACTION, action);
}

static size_t begin_value(struct sml_bfrt *b, const char *name) {
  const uint32_t id = id_of(b, TABLE_DATA, b->table, b->action, name);
  const size_t field = sml_pb_begin(&b->request, DATA_FIELDS);
  sml_pb_number(&b->request, DATA_ID, id);
  return field;
}

void sml_bfrt_value(struct sml_bfrt *b, const char *name, uint64_t value, uint32_t bits) {
  uint8_t bytes[8];
  const size_t field = begin_value(b, name);
  sml_pb_bytes(&b->request, DATA_STREAM, bytes, sml_switch_bytes(value, bits, bytes));
  sml_pb_end(&b->request, field);
}

static void put_list(struct sml_bfrt *b, uint32_t kind, const char *name, const uint32_t *values, uint32_t num_values) {
  const size_t field = begin_value(b, name), list = sml_pb_begin(&b->request, kind);
  sml_pb_list(&b->request, LIST, values, num_values);
  sml_pb_end(&b->request, list);
  sml_pb_end(&b->request, field);
}

void sml_bfrt_numbers(struct sml_bfrt *b, const char *name, const uint32_t *values, uint32_t num_values) {
  put_list(b, DATA_NUMBERS, name, values, num_values);
}

void sml_bfrt_truths(struct sml_bfrt *b, const char *name, const uint32_t *values, uint32_t num_values) {
  put_list(b, DATA_TRUTHS, name, values, num_values);
}

static bool send_request(struct sml_bfrt *b, const char *path, uint32_t program_field) {
  if (b->has_failed) return false;
  sml_pb_text(&b->request, program_field, b->program);
  return call(b, path, &b->request);
}

bool sml_bfrt_write(struct sml_bfrt *b) {
  return send_request(b, "/bfrt_proto.BfRuntime/Write", WRITE_PROGRAM);
}

bool sml_bfrt_read(struct sml_bfrt *b) {
  return send_request(b, "/bfrt_proto.BfRuntime/Read", READ_PROGRAM);
}

/* ---- answers ---- */

struct sml_bfrt_cursor sml_bfrt_first(const struct sml_bfrt *b) {
  return (struct sml_bfrt_cursor){read_all(&b->answer)};
}

static uint64_t key_of(struct sml_pb_reader entry) {
  struct sml_pb_reader key, field, match, value;
  if (!find(entry, ENTRY_KEY, &key) || !find(key, KEY_FIELDS, &field) || !find(field, KEY_EXACT, &match) ||
      !find(match, MATCH_VALUE, &value))
    return UINT64_MAX; /* as of a default entry */
  return sml_pb_to_number(&value);
}

bool sml_bfrt_next(struct sml_bfrt_cursor *cursor, uint32_t number, uint64_t *key_out, uint64_t *values_out,
                   uint32_t max_values, uint32_t *num_values_out) {
  struct sml_pb_field field;
  struct sml_pb_reader entry, data, value;
  *num_values_out = 0;
  do {
    if (!sml_pb_next(&cursor->at, &field)) return false;
  } while (field.number != READ_ANSWER_ENTITIES || !field.has_bytes || !find(field.inside, ENTITY_TABLE_ENTRY, &entry));
  *key_out = key_of(entry);
  if (!find(entry, ENTRY_DATA, &data)) return true;
  while (sml_pb_next(&data, &field)) {
    if (field.number != DATA_FIELDS || !field.has_bytes || find_number(field.inside, DATA_ID) != number) continue;
    if (*num_values_out < max_values && find(field.inside, DATA_STREAM, &value))
      values_out[(*num_values_out)++] = sml_pb_to_number(&value);
  }
  return true;
}
