/* SPDX-License-Identifier: Apache-2.0
 * Vectors from their text: one JSON object a line (tests/conformance/README.md). A line with "vector" begins one.
 */
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>

#include "cli/conform/conform.h"

struct reader {
  struct sml_conform_suite *suite;
  struct sml_conform_vector *vector; /* being read */
  char *error;
  size_t error_bytes;
  uint32_t line;
};

static bool fail(struct reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fail(struct reader *r, const char *format, ...) {
  char text[200];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  snprintf(r->error, r->error_bytes, "line %u: %s", r->line, text);
  return false;
}

/* ---- values ---- */

static bool read_text(struct reader *r, const json_t *object, const char *key, char *out, size_t room) {
  const json_t *value = json_object_get(object, key);
  if (!value) return true;
  const char *text = json_string_value(value);
  if (!text || strlen(text) >= room) return fail(r, "%s is no text, or too long", key);
  memcpy(out, text, strlen(text) + 1);
  return true;
}

static bool read_number(struct reader *r, const json_t *object, const char *key, int64_t low, int64_t high,
                        int64_t *out) {
  const json_t *value = json_object_get(object, key);
  if (!value) return true;
  if (!json_is_integer(value) || json_integer_value(value) < low || json_integer_value(value) > high)
    return fail(r, "%s is no number from %lld to %lld", key, (long long)low, (long long)high);
  *out = json_integer_value(value);
  return true;
}

/* 7, "0x1f", "slots", "slots+1", "full-4" */
static bool read_value(struct reader *r, const json_t *value, const char *key, struct sml_conform_value *out) {
  const char *text = json_string_value(value);
  *out = (struct sml_conform_value){.symbol = SML_SYMBOL_NONE};
  if (json_is_integer(value)) {
    out->number = json_integer_value(value);
    return (out->number >= -(INT64_C(1) << 33) && out->number <= INT64_C(1) << 33) || fail(r, "%s is too large", key);
  }
  if (!text) return fail(r, "%s is neither number nor text", key);
  for (uint32_t i = 1; i < SML_ARRAY_LEN(sml_conform_symbol_names); i++) {
    const size_t num_bytes = strlen(sml_conform_symbol_names[i]);
    if (strncmp(text, sml_conform_symbol_names[i], num_bytes) != 0) continue;
    out->symbol = (enum sml_conform_symbol)i;
    text += num_bytes;
    if (*text == 0) return true;
    if (*text != '+' && *text != '-') return fail(r, "%s: what is '%s'?", key, json_string_value(value));
    break;
  }
  char *end;
  const long long number = strtoll(text, &end, out->symbol == SML_SYMBOL_NONE ? 0 : 10);
  if (*text == 0 || *end != 0 || number > INT64_C(1) << 33 || number < -(INT64_C(1) << 33))
    return fail(r, "%s: what is '%s'?", key, json_string_value(value));
  out->number = number;
  return true;
}

static int find_name(const char *const *names, size_t num_names, const char *text) {
  for (size_t i = 0; i < num_names; i++)
    if (text && names[i] && strcmp(names[i], text) == 0) return (int)i;
  return -1;
}

static bool read_flags(struct reader *r, const json_t *array, struct sml_conform_value *out) {
  size_t i;
  const json_t *flag;
  *out = (struct sml_conform_value){.symbol = SML_SYMBOL_NONE};
  if (!json_is_array(array)) return fail(r, "flags are no list");
  json_array_foreach(array, i, flag) {
    const int bit = find_name(sml_conform_flag_names, SML_ARRAY_LEN(sml_conform_flag_names), json_string_value(flag));
    if (bit < 0 && !json_is_integer(flag)) return fail(r, "there is no such flag");
    out->number |= bit < 0 ? (json_integer_value(flag) & 0xffff) : 1 << bit;
  }
  return true;
}

static bool read_socket(struct reader *r, const json_t *value, uint32_t *out) {
  const char *text = json_string_value(value);
  if (text && strcmp(text, "stranger") == 0) *out = SML_CONFORM_STRANGER;
  else if (text && strcmp(text, "all") == 0) *out = SML_CONFORM_ALL;
  else if (json_is_integer(value) && json_integer_value(value) >= 0 &&
           json_integer_value(value) < SML_CONFORM_MAX_RANKS)
    *out = (uint32_t)json_integer_value(value);
  else return fail(r, "whose socket?");
  return true;
}

static bool read_values(struct reader *r, const json_t *array, struct sml_conform_packet *p) {
  size_t i;
  const json_t *value;
  if (!json_is_array(array) || json_array_size(array) > SML_CONFORM_MAX_VALUES)
    return fail(r, "values are no list of at most %u", SML_CONFORM_MAX_VALUES);
  json_array_foreach(array, i, value) {
    if (!json_is_integer(value)) return fail(r, "a value is no number");
    p->values[i] = (uint32_t)json_integer_value(value);
  }
  p->num_values = (uint32_t)i;
  return true;
}

static bool read_missing(struct reader *r, const json_t *array, struct sml_conform_packet *p) {
  size_t i;
  const json_t *rank;
  if (!json_is_array(array)) return fail(r, "missing is no list");
  p->has_missing = true;
  json_array_foreach(array, i, rank) {
    if (!json_is_integer(rank) || json_integer_value(rank) < 0 || json_integer_value(rank) >= SML_CONFORM_MAX_RANKS)
      return fail(r, "missing has no rank");
    p->missing |= UINT64_C(1) << json_integer_value(rank);
  }
  return true;
}

/* ---- packets ---- */

static bool read_spoilt(struct reader *r, const json_t *object, struct sml_conform_packet *p) {
  char crc[8] = "", mac[8] = "", key[8] = "";
  int64_t cut = 0, extra = 0;
  if (!read_text(r, object, "crc", crc, sizeof crc) || !read_text(r, object, "mac", mac, sizeof mac) ||
      !read_text(r, object, "key", key, sizeof key) || !read_number(r, object, "cut", 0, 8192, &cut) ||
      !read_number(r, object, "extra", 0, 8192, &extra))
    return false;
  p->is_crc_wrong = strcmp(crc, "wrong") == 0;
  p->is_mac_wrong = strcmp(mac, "wrong") == 0;
  p->is_key_missing = strcmp(key, "none") == 0;
  p->is_key_other = strcmp(key, "other") == 0;
  p->cut_bytes = (uint32_t)cut;
  p->extra_bytes = (uint32_t)extra;
  return true;
}

static bool read_field(struct reader *r, const char *key, const json_t *value, uint32_t field,
                       struct sml_conform_packet *p) {
  const int type = find_name(sml_conform_type_names, SML_ARRAY_LEN(sml_conform_type_names), json_string_value(value));
  p->given |= 1u << field;
  if (field == SML_FIELD_FLAGS) return read_flags(r, value, &p->fields[field]);
  if (field != SML_FIELD_TYPE || type < 0) return read_value(r, value, key, &p->fields[field]);
  p->fields[field].number = type;
  return true;
}

static bool read_packet(struct reader *r, const json_t *object, struct sml_conform_packet *p) {
  static const char *const others[] = {"to",    "optional", "crc",    "mac",   "key",    "cut",
                                       "extra", "for",      "values", "nonce", "missing"};
  const char *key;
  json_t *value;
  if (!json_is_object(object)) return fail(r, "a packet is no object");
  json_object_foreach((json_t *)(uintptr_t)object, key, value) {
    const int field = find_name(sml_conform_field_names, SML_NUM_FIELDS, key);
    if (field >= 0 && !read_field(r, key, value, (uint32_t)field, p)) return false;
    if (field < 0 && find_name(others, SML_ARRAY_LEN(others), key) < 0) return fail(r, "what is '%s'?", key);
  }
  const json_t *values = json_object_get(object, "values"), *missing = json_object_get(object, "missing");
  p->is_optional = json_is_true(json_object_get(object, "optional"));
  p->has_nonce = json_object_get(object, "nonce") != NULL;
  if (!(p->given & 1u << SML_FIELD_TYPE)) return fail(r, "a packet has no type");
  return read_spoilt(r, object, p) && (!values || read_values(r, values, p)) &&
         (!missing || read_missing(r, missing, p)) && read_number(r, object, "nonce", -1000, 1000, &p->nonce);
}

/* ---- lines ---- */

static bool read_report(struct reader *r, const json_t *array, struct sml_conform_step *step) {
  size_t i;
  const json_t *rank;
  if (!array) return true;
  if (!json_is_array(array) || json_array_size(array) > SML_ARRAY_LEN(step->reported))
    return fail(r, "report names no ranks");
  json_array_foreach(array, i, rank) step->reported[i] = (uint32_t)json_integer_value(rank);
  step->report = (uint32_t)i;
  return true;
}

static bool read_out(struct reader *r, const json_t *array, struct sml_conform_step *step) {
  size_t i;
  const json_t *packet;
  if (!array) return true;
  if (!json_is_array(array) || json_array_size(array) > SML_CONFORM_MAX_OUT)
    return fail(r, "out is no list of at most %u", SML_CONFORM_MAX_OUT);
  json_array_foreach(array, i, packet) {
    struct sml_conform_packet *p = &step->out[i];
    p->job = step->packet.job;
    if (!read_packet(r, packet, p) || !read_socket(r, json_object_get(packet, "to"), &p->socket)) return false;
  }
  step->num_out = (uint32_t)i;
  return true;
}

static bool read_step(struct reader *r, const json_t *object) {
  struct sml_conform_vector *v = r->vector;
  if (!v) return fail(r, "a step before any vector");
  struct sml_conform_step *steps = realloc(v->steps, (v->num_steps + 1u) * sizeof *steps);
  if (!steps) return fail(r, "out of memory");
  v->steps = steps;
  struct sml_conform_step *step = &steps[v->num_steps++];
  memset(step, 0, sizeof *step);
  int64_t job = 0;
  if (!read_number(r, object, "job", 0, v->num_jobs - 1, &job)) return false;
  step->packet.job = (uint32_t)job;
  const json_t *leave = json_object_get(object, "leave"), *sent = json_object_get(object, "send");
  step->is_leave = leave != NULL;
  if (step->is_leave ? !read_socket(r, leave, &step->packet.socket)
                     : !read_socket(r, json_object_get(object, "from"), &step->packet.socket) ||
                           !read_packet(r, sent, &step->packet))
    return false;
  const bool is_rank = step->packet.socket < v->jobs[job].num_ranks;
  if (!is_rank && (step->is_leave || step->packet.socket != SML_CONFORM_STRANGER))
    return fail(r, "this job has %u ranks: whose step?", v->jobs[job].num_ranks);
  if (!step->is_leave && !is_rank && !(step->packet.given & 1u << SML_FIELD_RANK))
    return fail(r, "a stranger has no rank: say one");
  return read_text(r, object, "verdict", step->verdict, sizeof step->verdict) &&
         read_text(r, object, "reason", step->reason, sizeof step->reason) &&
         read_report(r, json_object_get(object, "report"), step) && read_out(r, json_object_get(object, "out"), step);
}

static bool read_job(struct reader *r, const json_t *object, struct sml_conform_job *job) {
  int64_t num_ranks = 0, num_slots = 4, first_phase = 0;
  if (!read_number(r, object, "ranks", 2, SML_CONFORM_MAX_RANKS, &num_ranks) ||
      !read_number(r, object, "slots", 1, 4096, &num_slots) ||
      !read_number(r, object, "first_phase", 2, UINT32_MAX, &first_phase))
    return false;
  if (num_ranks == 0 || !sml_is_pow2((uint64_t)num_slots)) return fail(r, "a job has ranks, and 2^k slots");
  *job = (struct sml_conform_job){.num_ranks = (uint32_t)num_ranks,
                                  .num_slots = (uint32_t)num_slots,
                                  .is_checked = json_is_true(json_object_get(object, "checked")),
                                  .is_narrow = json_is_true(json_object_get(object, "narrow")),
                                  .has_one_way = json_is_true(json_object_get(object, "one_way")),
                                  .first_phase = (uint32_t)first_phase};
  return true;
}

static bool read_vector(struct reader *r, const json_t *object) {
  struct sml_conform_suite *suite = r->suite;
  struct sml_conform_vector *all = realloc(suite->vectors, (suite->num_vectors + 1u) * sizeof *all);
  if (!all) return fail(r, "out of memory");
  suite->vectors = all;
  struct sml_conform_vector *v = r->vector = &all[suite->num_vectors++];
  memset(v, 0, sizeof *v);
  char family[16] = "";
  size_t i;
  const json_t *job, *need, *jobs = json_object_get(object, "jobs"), *needs = json_object_get(object, "needs");
  if (!read_text(r, object, "vector", v->name, sizeof v->name) ||
      !read_text(r, object, "about", v->about, sizeof v->about) ||
      !read_text(r, object, "topic", v->topic, sizeof v->topic) ||
      !read_text(r, object, "family", family, sizeof family))
    return false;
  v->is_switch = strcmp(family, "switch") == 0;
  if (!v->is_switch && strcmp(family, "ordinary") != 0) return fail(r, "family is neither ordinary nor switch");
  json_array_foreach(needs, i, need) {
    const int bit = find_name(sml_conform_need_names, SML_NUM_NEEDS, json_string_value(need));
    if (bit < 0) return fail(r, "an unknown need");
    v->needs |= 1u << bit;
  }
  if (!json_is_array(jobs) || json_array_size(jobs) < 1 || json_array_size(jobs) > SML_CONFORM_MAX_JOBS)
    return fail(r, "a vector has 1 to %u jobs", SML_CONFORM_MAX_JOBS);
  json_array_foreach(jobs, i, job) if (!read_job(r, job, &v->jobs[i])) return false;
  v->num_jobs = (uint32_t)json_array_size(jobs);
  return true;
}

bool sml_conform_read(struct sml_conform_suite *suite, const char *text, size_t num_bytes, char *error,
                      size_t error_bytes) {
  struct reader r = {.suite = suite, .error = error, .error_bytes = error_bytes};
  const char *end = text + num_bytes;
  for (const char *line = text; line < end;) {
    const char *next = memchr(line, '\n', (size_t)(end - line));
    const size_t line_bytes = (size_t)((next ? next : end) - line);
    json_error_t why;
    json_t *object = line_bytes > 0 ? json_loadb(line, line_bytes, JSON_REJECT_DUPLICATES, &why) : NULL;
    line = next ? next + 1 : end;
    r.line++;
    if (line_bytes == 0) continue;
    const bool is_ok = !object                             ? fail(&r, "%s", why.text)
                       : json_object_get(object, "vector") ? read_vector(&r, object)
                                                           : read_step(&r, object);
    json_decref(object);
    if (!is_ok) return false;
  }
  return true;
}

void sml_conform_free(struct sml_conform_suite *suite) {
  for (uint32_t i = 0; i < suite->num_vectors; i++) free(suite->vectors[i].steps);
  free(suite->vectors);
  *suite = (struct sml_conform_suite){0};
}
