/* SPDX-License-Identifier: Apache-2.0
 * The trace event format of Chrome's viewer, which Perfetto reads too: operations as spans of each lane and job, the
 * slots that are out as counters, all else as instants. Written as it comes; times in microseconds from the first. */
#include <stdlib.h>

#include "cli/trace/trace.h"

struct sml_trace_perfetto {
  FILE *out;
  uint64_t first_ns;
  bool has_any;
  uint32_t *first_source; /* of each input: index into num_outstanding */
  uint32_t *num_outstanding;
};

/* Writes only those characters of a file's text that need no escape. */
static void put(FILE *out, struct sml_trace_text text) {
  for (uint32_t i = 0; i < text.num_bytes; i++) {
    const char c = text.bytes[i];
    fputc(c >= ' ' && c <= '~' && c != '"' && c != '\\' ? c : '?', out);
  }
}

static FILE *begin(struct sml_trace_perfetto *p) {
  fputs(p->has_any ? ",\n{" : "{", p->out);
  p->has_any = true;
  return p->out;
}

static void name_tracks(struct sml_trace_perfetto *p, const struct sml_trace_input *input, uint32_t i) {
  const struct sml_trace_file *f = &input->file;
  FILE *out = begin(p);
  fprintf(out, "\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%u,\"args\":{\"name\":\"", i + 1);
  put(out, f->program);
  for (uint32_t j = 0; j < f->num_jobs && f->jobs[j].rank != SML_TRACE_NONE; j++) {
    fprintf(out, ", rank %u of ", f->jobs[j].rank);
    put(out, f->jobs[j].name);
  }
  fprintf(out, " (%u@", f->pid);
  put(out, f->host);
  fputs(")\"}}", out);
  for (uint32_t s = 0; s < f->num_sources; s++) {
    begin(p);
    fprintf(out, "\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":\"", i + 1, s + 1);
    put(out, f->sources[s].name);
    fputs("\"}}", out);
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

static void put_head(struct sml_trace_perfetto *p, const struct sml_trace_item *item, const char *ph) {
  const uint64_t ns = item->time_ns - p->first_ns;
  fprintf(begin(p), "\"ph\":\"%s\",\"pid\":%u,\"tid\":%u,\"ts\":%llu.%03u", ph, item->input + 1, item->source + 1,
          (unsigned long long)(ns / 1000), (unsigned)(ns % 1000));
}

static void put_operation(struct sml_trace_perfetto *p, const struct sml_trace_item *item, bool begins) {
  const unsigned long long number = item->record.value;
  put_head(p, item, begins ? "b" : "e");
  fprintf(p->out, ",\"cat\":\"source %u\",\"id\":\"%u-%llu\",\"name\":\"operation %llu\"}", item->source + 1,
          item->record.job, number, number);
}

static void put_counter(struct sml_trace_perfetto *p, const struct sml_trace_item *item, bool is_sent) {
  uint32_t *count = &p->num_outstanding[p->first_source[item->input] + item->source];
  *count = is_sent ? *count + 1 : *count - (*count > 0);
  put_head(p, item, "C");
  fputs(",\"name\":\"slots out, ", p->out);
  put(p->out, item->origin->name);
  fprintf(p->out, "\",\"args\":{\"slots\":%u}}", *count);
}

static void put_instant(struct sml_trace_perfetto *p, const struct sml_trace_item *item) {
  const struct sml_trace_file_event *e = item->event;
  const struct sml_record *r = &item->record;
  const struct {
    struct sml_trace_text name;
    uint64_t value;
  } fields[] = {
      {e->slot, r->slot}, {e->rank, r->rank}, {e->phase, r->phase}, {e->chunk, r->chunk}, {e->value, r->value}};
  char text[SML_TRACE_NAME_BYTES];
  put_head(p, item, "i");
  fputs(",\"s\":\"t\",\"name\":\"", p->out);
  put(p->out, e->name);
  sml_trace_job_text(item, text);
  fputs("\",\"args\":{\"job\":\"", p->out);
  put(p->out, (struct sml_trace_text){text, (uint32_t)strlen(text)});
  fputc('"', p->out);
  for (size_t i = 0; i < SML_ARRAY_LEN(fields); i++) {
    if (fields[i].name.num_bytes == 0) continue;
    fputs(",\"", p->out);
    put(p->out, fields[i].name);
    if (i == 4 && e->kind == SML_TRACE_REASON) {
      sml_trace_reason_text(item->file, r->value, text, sizeof text);
      fputs("\":\"", p->out);
      put(p->out, (struct sml_trace_text){text, (uint32_t)strlen(text)});
      fputc('"', p->out);
    } else if (i == 4 && e->kind == SML_TRACE_STATUS) {
      fprintf(p->out, "\":%lld", (long long)fields[i].value);
    } else {
      fprintf(p->out, "\":%llu", (unsigned long long)fields[i].value);
    }
  }
  fputs("}}", p->out);
}

bool sml_trace_perfetto_add(struct sml_trace_perfetto *p, const struct sml_trace_item *item) {
  if (item->event == NULL) return true;
  const struct sml_trace_text name = item->event->name;
  const bool is_begin =
      sml_trace_text_is(name, "operation_started") || sml_trace_text_is(name, "operation_submitted");
  const bool is_end = sml_trace_text_is(name, "operation_ended") || sml_trace_text_is(name, "operation_failed");
  const bool is_sent = sml_trace_text_is(name, "update_sent");
  if (is_begin || is_end) put_operation(p, item, is_begin);
  else if (is_sent || sml_trace_text_is(name, "result_received")) put_counter(p, item, is_sent);
  else put_instant(p, item);
  return ferror(p->out) == 0;
}

void sml_trace_perfetto_end(struct sml_trace_perfetto *p) {
  fputs("\n]}\n", p->out);
  free(p->first_source);
  free(p->num_outstanding);
  free(p);
}
