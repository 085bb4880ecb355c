/* SPDX-License-Identifier: Apache-2.0
 * The trace event format of Chrome's viewer, which Perfetto reads too: operations as spans of each lane and job, the
 * slots that are out as counters, all else as instants. Written as it comes; times in microseconds from the first. */
#include <stdlib.h>

#include "cli/trace/trace.h"

struct sml_trace_perfetto {
  FILE *out;
  uint64_t first_ns;
  bool has_any;
  bool has_failed;        /* there was no memory, or no room */
  uint32_t *first_source; /* of each input: index into num_outstanding */
  uint32_t *num_outstanding;
};

/* Takes the event. */
static void put(struct sml_trace_perfetto *p, json_t *event) {
  if (p->has_any) fputs(",\n", p->out);
  if (event == NULL || json_dumpf(event, p->out, JSON_COMPACT | JSON_REAL_PRECISION(15)) != 0) p->has_failed = true;
  p->has_any = true;
  json_decref(event);
}

static void name_track(struct sml_trace_perfetto *p, const char *what, uint32_t process, uint32_t thread,
                       const char *name) {
  put(p, json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "ph", "M", "name", what, "pid", (int)process, "tid", (int)thread,
                   "args", "name", name));
}

static void name_tracks(struct sml_trace_perfetto *p, const struct sml_trace_input *input, uint32_t i) {
  const struct sml_trace_file *f = &input->file;
  char name[1024], text[SML_TRACE_NAME_BYTES];
  sml_trace_put_text(text, sizeof text, f->program);
  size_t used = (size_t)snprintf(name, sizeof name, "%s", text);
  for (uint32_t j = 0; j < f->num_jobs && f->jobs[j].rank != SML_TRACE_NONE && used < sizeof name / 2; j++) {
    sml_trace_put_text(text, sizeof text, f->jobs[j].name);
    used += (size_t)snprintf(name + used, sizeof name - used, ", rank %u of %s", f->jobs[j].rank, text);
  }
  sml_trace_put_text(text, sizeof text, f->host);
  snprintf(name + used, sizeof name - used, " (%u@%s)", f->pid, text);
  name_track(p, "process_name", i + 1, 0, name);
  for (uint32_t s = 0; s < f->num_sources; s++) {
    sml_trace_put_text(text, sizeof text, f->sources[s].name);
    name_track(p, "thread_name", i + 1, s + 1, text);
  }
}

struct sml_trace_perfetto *sml_trace_perfetto_begin(FILE *out, const struct sml_trace_input *inputs,
                                                    uint32_t num_inputs, uint64_t first_ns) {
  struct sml_trace_perfetto *p = calloc(1, sizeof *p);
  if (p == NULL) return NULL;
  uint32_t num_sources = 0;
  p->out = out;
  p->first_ns = first_ns;
  p->first_source = calloc(num_inputs + 1u, sizeof *p->first_source);
  for (uint32_t i = 0; p->first_source != NULL && i < num_inputs; i++) {
    p->first_source[i] = num_sources;
    num_sources += inputs[i].file.num_sources;
  }
  p->num_outstanding = calloc(num_sources + 1u, sizeof *p->num_outstanding);
  if (p->first_source == NULL || p->num_outstanding == NULL) {
    free(p->first_source);
    free(p->num_outstanding);
    free(p);
    return NULL;
  }
  fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n", out);
  for (uint32_t i = 0; i < num_inputs; i++) name_tracks(p, &inputs[i], i);
  return p;
}

/* The parts of an event that all have; `more` is added to it, and taken. */
static void put_event(struct sml_trace_perfetto *p, const struct sml_trace_item *item, const char *ph, json_t *more) {
  const double us = (double)(item->time_ns - p->first_ns) / 1e3;
  json_t *event =
      json_pack("{s:s, s:i, s:i, s:f}", "ph", ph, "pid", (int)item->input + 1, "tid", (int)item->source + 1, "ts", us);
  if (event != NULL && (more == NULL || json_object_update(event, more) != 0)) p->has_failed = true;
  json_decref(more);
  put(p, event);
}

static void put_operation(struct sml_trace_perfetto *p, const struct sml_trace_item *item, bool begins) {
  char category[32], id[48], name[48];
  const unsigned long long number = item->record.value;
  snprintf(category, sizeof category, "source %u", item->source + 1);
  snprintf(id, sizeof id, "%u-%llu", item->record.job, number);
  snprintf(name, sizeof name, "operation %llu", number);
  put_event(p, item, begins ? "b" : "e", json_pack("{s:s, s:s, s:s}", "cat", category, "id", id, "name", name));
}

static void put_counter(struct sml_trace_perfetto *p, const struct sml_trace_item *item, bool is_sent) {
  char source[SML_TRACE_NAME_BYTES], name[SML_TRACE_NAME_BYTES + 16];
  uint32_t *count = &p->num_outstanding[p->first_source[item->input] + item->source];
  *count = is_sent ? *count + 1 : *count - (*count > 0);
  sml_trace_put_text(source, sizeof source, item->origin->name);
  snprintf(name, sizeof name, "slots out, %s", source);
  put_event(p, item, "C", json_pack("{s:s, s:{s:I}}", "name", name, "args", "slots", (json_int_t)*count));
}

static void put_instant(struct sml_trace_perfetto *p, const struct sml_trace_item *item) {
  char job[SML_TRACE_NAME_BYTES], name[SML_TRACE_NAME_BYTES];
  sml_trace_job_text(item, job);
  sml_trace_put_text(name, sizeof name, item->event->name);
  json_t *arguments = json_pack("{s:s}", "job", job);
  if (arguments == NULL || !sml_trace_set_fields(arguments, item)) p->has_failed = true;
  put_event(p, item, "i", json_pack("{s:s, s:s, s:o}", "s", "t", "name", name, "args", arguments));
}

bool sml_trace_perfetto_add(struct sml_trace_perfetto *p, const struct sml_trace_item *item) {
  if (item->event == NULL) return true;
  const struct sml_trace_text name = item->event->name;
  const bool is_begin = sml_trace_text_is(name, "operation_started") || sml_trace_text_is(name, "operation_submitted");
  const bool is_end = sml_trace_text_is(name, "operation_ended") || sml_trace_text_is(name, "operation_failed");
  const bool is_sent = sml_trace_text_is(name, "update_sent");
  if (is_begin || is_end) put_operation(p, item, is_begin);
  else if (is_sent || sml_trace_text_is(name, "result_received")) put_counter(p, item, is_sent);
  else put_instant(p, item);
  return !p->has_failed && ferror(p->out) == 0;
}

void sml_trace_perfetto_end(struct sml_trace_perfetto *p) {
  fputs("\n]}\n", p->out);
  free(p->first_source);
  free(p->num_outstanding);
  free(p);
}
