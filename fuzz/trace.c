/* SPDX-License-Identifier: Apache-2.0
 * Files of flight recorders. Input: the file. What is opened can be read to the end, and lies within the file. */
#include "trace/reader.h"

#include "fuzz/fuzz.h"

static const uint8_t *file_begin, *file_end;

static void check_text(struct sml_trace_text text) {
  if (text.num_bytes == 0) return;
  const uint8_t *at = (const uint8_t *)text.bytes;
  CHECK(at >= file_begin && at + text.num_bytes <= file_end, "a text of %u bytes", text.num_bytes);
}

static void check_file(const struct sml_trace_file *f) {
  check_text(f->program);
  check_text(f->release);
  check_text(f->host);
  check_text(f->reason);
  for (uint32_t i = 0; i < f->num_events; i++) {
    const struct sml_trace_file_event *e = &f->events[i];
    const struct sml_trace_text texts[] = {e->name, e->slot, e->rank, e->phase, e->chunk, e->value};
    for (size_t k = 0; k < SML_ARRAY_LEN(texts); k++) check_text(texts[k]);
  }
  for (uint32_t i = 0; i < f->num_drops; i++) check_text(f->drops[i]);
  for (uint32_t i = 0; i < f->num_jobs; i++) check_text(f->jobs[i].name);
  uint64_t sum = 0;
  for (uint32_t s = 0; s < f->num_sources; s++) {
    const struct sml_trace_file_source *source = &f->sources[s];
    check_text(source->name);
    if (source->num_records == 0) continue;
    struct sml_record record;
    sml_trace_read(f, source, 0, &record);
    sum += record.value;
    sml_trace_read(f, source, source->num_records - 1, &record);
    sum += sml_trace_realtime_ns(f, record.time_ns);
    CHECK(source->records + (size_t)source->num_records * f->record_bytes <= file_end, "source %u", s);
  }
  (void)sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  struct sml_trace_file file;
  char error[96];
  uint8_t *copy = fuzz_copy(data, num_bytes);
  file_begin = copy;
  file_end = copy + num_bytes;
  error[0] = 0;
  if (sml_trace_open(&file, copy, num_bytes, error, sizeof error)) {
    check_file(&file);
    sml_trace_close(&file);
  } else {
    CHECK(error[0] != 0 && strnlen(error, sizeof error) < sizeof error, "no reason given");
  }
  free(copy);
  return 0;
}
