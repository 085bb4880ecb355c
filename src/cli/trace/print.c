/* SPDX-License-Identifier: Apache-2.0
 * Events as lines for people, and as lines of JSON. */
#include <jansson.h>
#include <stdlib.h>
#include <time.h>

#include "cli/trace/trace.h"
#include "switchml/switchml.h"

#define NO_JOB UINT16_MAX

bool sml_trace_text_is(struct sml_trace_text text, const char *expected) {
  return text.num_bytes == strlen(expected) && memcmp(text.bytes, expected, text.num_bytes) == 0;
}

void sml_trace_put_text(char *to, size_t room, struct sml_trace_text text) {
  size_t n = sml_min_u64(text.num_bytes, room - 1);
  for (size_t i = 0; i < n; i++) to[i] = text.bytes[i] >= ' ' && text.bytes[i] <= '~' ? text.bytes[i] : '?';
  to[n] = 0;
}

void sml_trace_job_text(const struct sml_trace_item *item, char *text) {
  text[0] = 0;
  if (item->job != NULL) sml_trace_put_text(text, SML_TRACE_NAME_BYTES, item->job->name);
  else if (item->record.job != NO_JOB) snprintf(text, SML_TRACE_NAME_BYTES, "%u", item->record.job);
}

void sml_trace_reason_text(const struct sml_trace_file *file, uint64_t reason, char *text, size_t text_bytes) {
  if (reason < file->num_drops) sml_trace_put_text(text, text_bytes, file->drops[reason]);
  else snprintf(text, text_bytes, "%llu", (unsigned long long)reason);
}

static void put_value(const struct sml_trace_item *item, char *text, size_t text_bytes) {
  const uint64_t value = item->record.value;
  switch (item->event->kind) {
    case SML_TRACE_NS: snprintf(text, text_bytes, "%.3fms", (double)value / (double)SML_NS_PER_MS); break;
    case SML_TRACE_REASON: sml_trace_reason_text(item->file, value, text, text_bytes); break;
    case SML_TRACE_STATUS:
      snprintf(text, text_bytes, "%lld (%s)", (long long)value, sml_status_string((sml_status)(int64_t)value));
      break;
    default: snprintf(text, text_bytes, "%llu", (unsigned long long)value);
  }
}

struct column {
  struct sml_trace_text name;
  uint64_t value;
};

/* The fields that the event uses, but for `value`. */
static uint32_t list_columns(const struct sml_trace_item *item, struct column columns[4]) {
  const struct sml_trace_file_event *e = item->event;
  const struct sml_record *r = &item->record;
  const struct column all[4] = {{e->slot, r->slot}, {e->rank, r->rank}, {e->phase, r->phase}, {e->chunk, r->chunk}};
  uint32_t num_columns = 0;
  for (uint32_t i = 0; i < 4; i++)
    if (all[i].name.num_bytes > 0) columns[num_columns++] = all[i];
  return num_columns;
}

static void put_time(char *text, size_t text_bytes, uint64_t time_ns) {
  const time_t seconds = (time_t)(time_ns / SML_NS_PER_S);
  struct tm utc;
  memset(&utc, 0, sizeof utc);
  (void)gmtime_r(&seconds, &utc); /* a time that is none stays zero */
  const size_t used = strftime(text, text_bytes, "%Y-%m-%dT%H:%M:%S", &utc);
  snprintf(text + used, text_bytes - used, ".%09lluZ", (unsigned long long)(time_ns % SML_NS_PER_S));
}

/* "rank 3", or the program where it is none. */
static void put_who(const struct sml_trace_item *item, char *text, size_t text_bytes) {
  if (item->job != NULL && item->job->rank != SML_TRACE_NONE) snprintf(text, text_bytes, "rank %u", item->job->rank);
  else sml_trace_put_text(text, text_bytes, item->file->program);
}

void sml_trace_print_line(FILE *out, const struct sml_trace_item *item) {
  char when[64], who[48], where[SML_TRACE_NAME_BYTES], job[SML_TRACE_NAME_BYTES], text[128];
  put_time(when, sizeof when, item->time_ns);
  put_who(item, who, sizeof who);
  sml_trace_put_text(where, sizeof where, item->origin->name);
  sml_trace_job_text(item, job);
  fprintf(out, "%s %-11s %-13s ", when, who, where);
  if (item->event == NULL) {
    fprintf(out, "event %u of a later release\n", item->record.event);
    return;
  }
  sml_trace_put_text(text, sizeof text, item->event->name);
  fprintf(out, "%-20s", text);
  if (job[0] != 0) fprintf(out, " job=%s", job);
  struct column columns[4];
  const uint32_t num_columns = list_columns(item, columns);
  for (uint32_t i = 0; i < num_columns; i++) {
    sml_trace_put_text(text, sizeof text, columns[i].name);
    fprintf(out, " %s=%llu", text, (unsigned long long)columns[i].value);
  }
  if (item->event->value.num_bytes > 0) {
    char value[128];
    sml_trace_put_text(text, sizeof text, item->event->value);
    put_value(item, value, sizeof value);
    fprintf(out, " %s=%s", text, value);
  }
  fputc('\n', out);
}

static bool set(json_t *object, const char *name, json_t *value) {
  return json_object_set_new(object, name, value) == 0;
}

bool sml_trace_set_fields(json_t *object, const struct sml_trace_item *item) {
  char name[128], value[128];
  struct column columns[4];
  const uint32_t num_columns = list_columns(item, columns);
  bool is_made = true;
  for (uint32_t i = 0; i < num_columns; i++) {
    sml_trace_put_text(name, sizeof name, columns[i].name);
    is_made = is_made && set(object, name, json_integer((json_int_t)columns[i].value));
  }
  if (item->event->value.num_bytes == 0) return is_made;
  sml_trace_put_text(name, sizeof name - 4, item->event->value);
  put_value(item, value, sizeof value);
  if (item->event->kind == SML_TRACE_NS) memcpy(name + strlen(name), "_ns", 4);
  const bool is_named = item->event->kind == SML_TRACE_REASON;
  return is_made && set(object, name, is_named ? json_string(value) : json_integer((json_int_t)item->record.value));
}

bool sml_trace_print_json(FILE *out, const struct sml_trace_item *item) {
  char text[128];
  json_t *line = json_object();
  bool is_made = line != NULL;
#define SET(name, made) is_made = is_made && set(line, name, made)
  put_time(text, sizeof text, item->time_ns);
  SET("time", json_string(text));
  SET("time_ns", json_integer((json_int_t)item->time_ns));
  sml_trace_put_text(text, sizeof text, item->file->program);
  SET("program", json_string(text));
  sml_trace_put_text(text, sizeof text, item->file->host);
  SET("host", json_string(text));
  SET("pid", json_integer(item->file->pid));
  sml_trace_put_text(text, sizeof text, item->origin->name);
  SET("source", json_string(text));
  if (item->origin->lane != SML_TRACE_NONE) SET("lane", json_integer(item->origin->lane));
  if (item->job != NULL && item->job->rank != SML_TRACE_NONE) SET("own_rank", json_integer(item->job->rank));
  sml_trace_job_text(item, text);
  if (text[0] != 0) SET("job", json_string(text));
  if (item->event == NULL) {
    SET("event_number", json_integer(item->record.event));
  } else {
    sml_trace_put_text(text, sizeof text, item->event->name);
    SET("event", json_string(text));
    is_made = is_made && sml_trace_set_fields(line, item);
  }
#undef SET
  if (is_made) is_made = json_dumpf(line, out, JSON_COMPACT) == 0 && fputc('\n', out) != EOF;
  json_decref(line);
  return is_made;
}
