/* SPDX-License-Identifier: Apache-2.0
 * Many recorders in the order of time: a heap of places in mapped files, so memory does not grow with them. */
#include <stdlib.h>

#include "cli/trace/trace.h"

struct cursor {
  uint32_t input, source, next, end;
  uint64_t time_ns; /* of the next */
};

struct sml_trace_merge {
  const struct sml_trace_input *inputs;
  struct cursor *heap; /* the earliest first */
  uint32_t num_cursors;
  uint64_t first_ns, last_ns;
};

static uint64_t time_at(const struct sml_trace_merge *m, const struct cursor *c, uint32_t i) {
  const struct sml_trace_file *file = &m->inputs[c->input].file;
  struct sml_record record;
  sml_trace_read(file, &file->sources[c->source], i, &record);
  return sml_trace_realtime_ns(file, record.time_ns);
}

/* Where times are equal, the file that was named first comes first: the order is always the same. */
static bool is_before(const struct cursor *a, const struct cursor *b) {
  if (a->time_ns != b->time_ns) return a->time_ns < b->time_ns;
  return a->input != b->input ? a->input < b->input : a->source < b->source;
}

static void sink(struct sml_trace_merge *m, uint32_t i) {
  for (;;) {
    uint32_t least = i;
    for (uint32_t child = 2 * i + 1; child <= 2 * i + 2 && child < m->num_cursors; child++)
      if (is_before(&m->heap[child], &m->heap[least])) least = child;
    if (least == i) return;
    const struct cursor swapped = m->heap[i];
    m->heap[i] = m->heap[least];
    m->heap[least] = swapped;
    i = least;
  }
}

/* ---- dumps of one process: its recorders still have what an earlier dump has, which is to be shown once ---- */

static bool is_same_text(struct sml_trace_text a, struct sml_trace_text b) {
  return a.num_bytes == b.num_bytes && memcmp(a.bytes, b.bytes, a.num_bytes) == 0;
}

/* The next dump of the process of input i; NULL: there is none. */
static const struct sml_trace_file *find_next_dump(const struct sml_trace_input *inputs, uint32_t num_inputs,
                                                   uint32_t i) {
  const struct sml_trace_file *file = &inputs[i].file, *next = NULL;
  for (uint32_t k = 0; k < num_inputs; k++) {
    const struct sml_trace_file *other = &inputs[k].file;
    if (k == i || other->pid != file->pid || !is_same_text(other->host, file->host) ||
        !is_same_text(other->program, file->program))
      continue;
    if (other->monotonic_ns < file->monotonic_ns || (other->monotonic_ns == file->monotonic_ns && k < i)) continue;
    if (next == NULL || other->monotonic_ns < next->monotonic_ns) next = other;
  }
  return next;
}

/* How many of a source's records come before those that the next dump has. Both count from the first that the recorder
 * ever took; if the first that both should have differs, the sources are of two processes that had one number. */
static uint32_t count_shown(const struct sml_trace_file *file, const struct sml_trace_file_source *s,
                            const struct sml_trace_file *next) {
  for (uint32_t k = 0; next != NULL && k < next->num_sources; k++) {
    const struct sml_trace_file_source *n = &next->sources[k];
    if (n->lane != s->lane || !is_same_text(n->name, s->name)) continue;
    const uint64_t first = sml_max_u64(s->num_lost, n->num_lost);
    if (first - s->num_lost >= s->num_records || first - n->num_lost >= n->num_records) continue;
    if (s->num_records - (first - s->num_lost) > n->num_records - (first - n->num_lost)) continue;
    struct sml_record of_file, of_next;
    sml_trace_read(file, s, (uint32_t)(first - s->num_lost), &of_file);
    sml_trace_read(next, n, (uint32_t)(first - n->num_lost), &of_next);
    if (memcmp(&of_file, &of_next, sizeof of_file) == 0) return (uint32_t)(first - s->num_lost);
  }
  return s->num_records;
}

struct sml_trace_merge *sml_trace_merge_begin(const struct sml_trace_input *inputs, uint32_t num_inputs) {
  struct sml_trace_merge *m = calloc(1, sizeof *m);
  uint32_t num_sources = 0;
  for (uint32_t i = 0; i < num_inputs; i++) num_sources += inputs[i].file.num_sources;
  if (m == NULL || (m->heap = calloc(num_sources + 1u, sizeof *m->heap)) == NULL) {
    free(m);
    return NULL;
  }
  m->inputs = inputs;
  m->first_ns = UINT64_MAX;
  for (uint32_t i = 0; i < num_inputs; i++) {
    const struct sml_trace_file *next = find_next_dump(inputs, num_inputs, i);
    for (uint32_t s = 0; s < inputs[i].file.num_sources; s++) {
      const uint32_t num_records = count_shown(&inputs[i].file, &inputs[i].file.sources[s], next);
      if (num_records == 0) continue;
      struct cursor *c = &m->heap[m->num_cursors++];
      *c = (struct cursor){.input = i, .source = s, .end = num_records};
      c->time_ns = time_at(m, c, 0);
      m->first_ns = sml_min_u64(m->first_ns, c->time_ns);
      m->last_ns = sml_max_u64(m->last_ns, time_at(m, c, num_records - 1));
    }
  }
  for (uint32_t i = m->num_cursors; i-- > 0;) sink(m, i);
  return m;
}

void sml_trace_merge_end(struct sml_trace_merge *m) {
  if (m == NULL) return;
  free(m->heap);
  free(m);
}

bool sml_trace_merge_range(const struct sml_trace_merge *m, uint64_t *first_ns_out, uint64_t *last_ns_out) {
  *first_ns_out = m->first_ns;
  *last_ns_out = m->last_ns;
  return m->first_ns != UINT64_MAX;
}

static bool passes(const struct sml_trace_filter *f, const struct sml_trace_item *item) {
  const struct sml_trace_file_event *e = item->event;
  const bool has_slot = e != NULL && e->slot.num_bytes > 0 && sml_trace_text_is(e->slot, "slot");
  if (item->time_ns < f->since_ns || item->time_ns > f->until_ns) return false;
  if (f->lane != UINT32_MAX && item->origin->lane != f->lane) return false;
  if (f->slot != UINT32_MAX && (!has_slot || item->record.slot != f->slot)) return false;
  if (f->rank != UINT32_MAX) {
    const bool is_own = item->job != NULL && item->job->rank == f->rank;
    const bool is_named = e != NULL && e->rank.num_bytes > 0 && item->record.rank == f->rank;
    const bool is_missing = e != NULL && sml_trace_text_is(e->value, "missing") && item->record.value == f->rank;
    if (!is_own && !is_named && !is_missing) return false;
  }
  if (f->job != NULL) {
    char number[16];
    snprintf(number, sizeof number, "%u", item->record.job);
    if (strcmp(f->job, number) != 0 && (item->job == NULL || !sml_trace_text_is(item->job->name, f->job))) return false;
  }
  if (f->num_events == 0) return true;
  for (uint32_t i = 0; e != NULL && i < f->num_events; i++)
    if (sml_trace_text_is(e->name, f->events[i])) return true;
  return false;
}

bool sml_trace_merge_next(struct sml_trace_merge *m, const struct sml_trace_filter *filter,
                          struct sml_trace_item *item) {
  while (m->num_cursors > 0) {
    struct cursor *c = &m->heap[0];
    const struct sml_trace_file *file = &m->inputs[c->input].file;
    *item = (struct sml_trace_item){.input = c->input,
                                    .source = c->source,
                                    .file = file,
                                    .origin = &file->sources[c->source],
                                    .time_ns = c->time_ns};
    sml_trace_read(file, item->origin, c->next, &item->record);
    item->event = item->record.event < file->num_events ? &file->events[item->record.event] : NULL;
    item->job = sml_trace_find_job(file, &item->record);
    if (++c->next < c->end) c->time_ns = time_at(m, c, c->next);
    else m->heap[0] = m->heap[--m->num_cursors];
    sink(m, 0);
    if (passes(filter, item)) return true;
  }
  return false;
}
