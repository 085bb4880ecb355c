/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/reader.h"

#include <stdio.h>
#include <stdlib.h>

struct input {
  const uint8_t *at, *end;
  bool is_cut; /* more was wanted than there is */
};

static uint64_t take(struct input *in, size_t num_bytes) {
  uint8_t bytes[8] = {0};
  if ((size_t)(in->end - in->at) < num_bytes) {
    in->is_cut = true;
    in->at = in->end;
    return 0;
  }
  memcpy(bytes + 8 - num_bytes, in->at, num_bytes);
  in->at += num_bytes;
  return sml_load_be64(bytes);
}

static struct sml_trace_text take_text(struct input *in) {
  struct sml_trace_text text = {.bytes = "", .num_bytes = (uint32_t)take(in, 2)};
  if ((size_t)(in->end - in->at) < text.num_bytes) {
    in->is_cut = true;
    in->at = in->end;
    text.num_bytes = 0;
    return text;
  }
  text.bytes = (const char *)in->at;
  in->at += text.num_bytes;
  return text;
}

/* A table of so many entries, each of at least min_bytes in the file: a lie about the number costs nothing. */
static void *take_table(struct input *in, size_t min_bytes, size_t entry_bytes, uint32_t *num_out) {
  const uint32_t num = (uint32_t)take(in, 2);
  *num_out = 0;
  if (in->is_cut || (size_t)(in->end - in->at) / min_bytes < num) {
    in->is_cut = true;
    return NULL;
  }
  void *table = calloc(num + 1u, entry_bytes);
  if (table != NULL) *num_out = num;
  else in->is_cut = true;
  return table;
}

static void take_events(struct sml_trace_file *f, struct input *in) {
  f->events = take_table(in, 14, sizeof *f->events, &f->num_events);
  for (uint32_t i = 0; i < f->num_events; i++) {
    struct sml_trace_file_event *e = &f->events[i];
    e->level = (uint8_t)take(in, 1);
    e->kind = (uint8_t)take(in, 1);
    e->name = take_text(in);
    e->slot = take_text(in);
    e->rank = take_text(in);
    e->phase = take_text(in);
    e->chunk = take_text(in);
    e->value = take_text(in);
  }
  f->drops = take_table(in, 2, sizeof *f->drops, &f->num_drops);
  for (uint32_t i = 0; i < f->num_drops; i++) f->drops[i] = take_text(in);
}

static void take_jobs(struct sml_trace_file *f, struct input *in) {
  f->jobs = take_table(in, 12, sizeof *f->jobs, &f->num_jobs);
  for (uint32_t i = 0; i < f->num_jobs; i++) {
    f->jobs[i].number = (uint16_t)take(in, 2);
    f->jobs[i].epoch = (uint32_t)take(in, 4);
    f->jobs[i].rank = (uint32_t)take(in, 4);
    f->jobs[i].name = take_text(in);
  }
}

static void take_sources(struct sml_trace_file *f, struct input *in) {
  f->sources = take_table(in, 18, sizeof *f->sources, &f->num_sources);
  for (uint32_t i = 0; i < f->num_sources; i++) {
    f->sources[i].lane = (uint32_t)take(in, 4);
    f->sources[i].num_lost = take(in, 8);
    f->sources[i].num_records = (uint32_t)take(in, 4);
    f->sources[i].name = take_text(in);
  }
}

static void find_records(struct sml_trace_file *f, const uint8_t *at, const uint8_t *end) {
  for (uint32_t i = 0; i < f->num_sources; i++) {
    struct sml_trace_file_source *s = &f->sources[i];
    const uint64_t num_there = (uint64_t)(end - at) / f->record_bytes;
    s->records = at;
    if (s->num_records > num_there) {
      f->num_cut += s->num_records - num_there;
      s->num_records = (uint32_t)num_there;
    }
    at += (size_t)s->num_records * f->record_bytes;
  }
}

static bool refuse(struct sml_trace_file *f, char *error_out, size_t error_bytes, const char *why) {
  snprintf(error_out, error_bytes, "%s", why);
  sml_trace_close(f);
  return false;
}

bool sml_trace_open(struct sml_trace_file *f, const uint8_t *bytes, size_t num_bytes, char *error_out,
                    size_t error_bytes) {
  memset(f, 0, sizeof *f);
  struct input in = {.at = bytes, .end = bytes + num_bytes};
  if (num_bytes < 8 || memcmp(bytes, SML_TRACE_MAGIC, 8) != 0)
    return refuse(f, error_out, error_bytes, "it is no trace of SwitchML");
  in.at += 8;
  const uint32_t version = (uint32_t)take(&in, 2);
  f->record_bytes = (uint32_t)take(&in, 2);
  const uint32_t header_bytes = (uint32_t)take(&in, 4);
  if (!in.is_cut && version != SML_TRACE_VERSION) {
    char why[96];
    snprintf(why, sizeof why, "its format has version %u; this program reads version %u", version, SML_TRACE_VERSION);
    return refuse(f, error_out, error_bytes, why);
  }
  if (in.is_cut || header_bytes > num_bytes || header_bytes < (size_t)(in.at - bytes))
    return refuse(f, error_out, error_bytes, "it is cut off within its header");
  in.end = bytes + header_bytes;
  f->realtime_ns = take(&in, 8);
  f->monotonic_ns = take(&in, 8);
  f->pid = (uint32_t)take(&in, 4);
  f->program = take_text(&in);
  f->release = take_text(&in);
  f->host = take_text(&in);
  f->reason = take_text(&in);
  take_events(f, &in);
  take_jobs(f, &in);
  take_sources(f, &in);
  /* What later releases wrote behind, earlier ones did not. */
  for (uint32_t i = 0; i < f->num_jobs && in.end - in.at >= 8; i++) f->jobs[i].since_ns = take(&in, 8);
  if (in.is_cut || f->record_bytes < SML_RECORD_BYTES) return refuse(f, error_out, error_bytes, "its header is broken");
  find_records(f, bytes + header_bytes, bytes + num_bytes);
  return true;
}

void sml_trace_close(struct sml_trace_file *f) {
  free(f->events);
  free(f->drops);
  free(f->jobs);
  free(f->sources);
  memset(f, 0, sizeof *f);
}

void sml_trace_read(const struct sml_trace_file *f, const struct sml_trace_file_source *source, uint32_t i,
                    struct sml_record *r) {
  SML_ASSERT(i < source->num_records);
  const uint8_t *bytes = source->records + (size_t)i * f->record_bytes;
  *r = (struct sml_record){.time_ns = sml_load_be64(bytes),
                           .event = sml_load_be16(bytes + 8),
                           .job = sml_load_be16(bytes + 10),
                           .slot = sml_load_be16(bytes + 12),
                           .rank = sml_load_be16(bytes + 14),
                           .phase = sml_load_be32(bytes + 16),
                           .chunk = sml_load_be32(bytes + 20),
                           .value = sml_load_be64(bytes + 24)};
}

static bool has_epoch(const struct sml_trace_file *f, const struct sml_record *r) {
  const struct sml_trace_text value = r->event < f->num_events ? f->events[r->event].value : (struct sml_trace_text){0};
  return value.num_bytes == 5 && memcmp(value.bytes, "epoch", 5) == 0;
}

/* An engine opens a job a moment before or after the control thread notes it: there its epoch says it, which no two
 * jobs have in common. */
const struct sml_trace_file_job *sml_trace_find_job(const struct sml_trace_file *f, const struct sml_record *r) {
  for (uint32_t j = f->num_jobs; j-- > 0 && has_epoch(f, r);)
    if (f->jobs[j].number == r->job && f->jobs[j].epoch != 0 && f->jobs[j].epoch == r->value) return &f->jobs[j];
  for (uint32_t j = f->num_jobs; j-- > 0;)
    if (f->jobs[j].number == r->job && f->jobs[j].since_ns <= r->time_ns) return &f->jobs[j];
  return NULL;
}

uint64_t sml_trace_realtime_ns(const struct sml_trace_file *f, uint64_t time_ns) {
  const uint64_t offset_ns = f->realtime_ns - f->monotonic_ns; /* modulo 2^64 */
  return time_ns + offset_ns;
}
