/* SPDX-License-Identifier: Apache-2.0
 * What a trace says in a few lines: who was waited for, where and how long; what was dropped; what ended badly. Memory
 * is bounded: tables that are full say so. */
#include <stdlib.h>

#include "cli/trace/trace.h"

#define MAX_WAITS 65536u /* power of two */
#define MAX_ENDINGS 20u
#define MAX_COUNTS 256u
#define SHOWN_WAITS 10u
#define NAME_BYTES 64u

/* A slot's phase for which a rank is missing, as one end has it. */
struct wait {
  bool is_used;
  uint32_t input, phase, missing, num_missing;
  uint16_t job, slot;
  uint64_t first_ns, longest_ns;
  char who[32], job_name[SML_TRACE_NAME_BYTES];
};

struct count {
  char name[NAME_BYTES];
  uint64_t number;
};

struct sml_trace_summary {
  struct wait *waits; /* open addressing */
  uint32_t num_waits;
  bool is_full;
  struct count events[MAX_COUNTS], drops[MAX_COUNTS];
  uint32_t num_events, num_drops, num_endings;
  uint64_t first_ns, last_ns, num_items, longest_recovery_ns;
  char *endings; /* lines */
  size_t endings_bytes;
  FILE *endings_out;
};

struct sml_trace_summary *sml_trace_summary_begin(void) {
  struct sml_trace_summary *s = calloc(1, sizeof *s);
  if (s == NULL) return NULL;
  s->waits = calloc(MAX_WAITS, sizeof *s->waits);
  s->endings_out = open_memstream(&s->endings, &s->endings_bytes);
  if (s->waits != NULL && s->endings_out != NULL) return s;
  if (s->endings_out != NULL) (void)fclose(s->endings_out);
  free(s->endings);
  free(s->waits);
  free(s);
  return NULL;
}

static void add_count(struct count *counts, uint32_t *num_counts, const char *name) {
  uint32_t i = 0;
  while (i < *num_counts && strcmp(counts[i].name, name) != 0) i++;
  if (i == MAX_COUNTS) return;
  if (i == *num_counts) {
    (*num_counts)++;
    snprintf(counts[i].name, sizeof counts[i].name, "%s", name);
  }
  counts[i].number++;
}

static struct wait *find_wait(struct sml_trace_summary *s, const struct sml_trace_item *item, uint32_t missing) {
  const struct sml_record *r = &item->record;
  uint64_t hash = sml_mix64(((uint64_t)r->phase << 32 | (uint32_t)r->slot << 16 | r->job) + item->input);
  for (hash = sml_mix64(hash + missing);; hash++) {
    struct wait *w = &s->waits[hash & (MAX_WAITS - 1)];
    if (w->is_used) {
      if (w->input == item->input && w->job == r->job && w->slot == r->slot && w->phase == r->phase &&
          w->missing == missing)
        return w;
      continue;
    }
    if (s->num_waits == MAX_WAITS / 2) {
      s->is_full = true;
      return NULL;
    }
    s->num_waits++;
    *w = (struct wait){.is_used = true,
                       .input = item->input,
                       .job = r->job,
                       .slot = r->slot,
                       .phase = r->phase,
                       .missing = missing,
                       .first_ns = item->time_ns};
    sml_trace_job_text(item, w->job_name);
    if (item->job != NULL && item->job->rank != SML_TRACE_NONE)
      snprintf(w->who, sizeof w->who, "rank %u", item->job->rank);
    else snprintf(w->who, sizeof w->who, "the aggregator");
    return w;
  }
}

/* missing: a contributor's number, which is its rank unless ranks of a host contribute as one. */
static void add_wait(struct sml_trace_summary *s, const struct sml_trace_item *item, uint64_t missing,
                     uint64_t waited_ns, uint32_t num_missing) {
  struct wait *w = find_wait(s, item, (uint32_t)missing);
  if (w == NULL) return;
  w->num_missing = num_missing;
  /* The aggregator has no clock of a slot: since it was first asked. */
  w->longest_ns = sml_max_u64(w->longest_ns, sml_max_u64(waited_ns, item->time_ns - w->first_ns));
}

void sml_trace_summary_add(struct sml_trace_summary *s, const struct sml_trace_item *item) {
  static const char *const endings[] = {"job_failed",        "job_aborted",       "lane_failed",         "rank_lost",
                                        "job_refused",       "join_refused",      "operations_differed", "phase_jumped",
                                        "operation_blocked", "operation_delayed", "aggregator_lost"};
  char name[NAME_BYTES];
  s->first_ns = s->num_items == 0 ? item->time_ns : sml_min_u64(s->first_ns, item->time_ns);
  s->last_ns = sml_max_u64(s->last_ns, item->time_ns);
  s->num_items++;
  if (item->event == NULL) return;
  sml_trace_put_text(name, sizeof name, item->event->name);
  add_count(s->events, &s->num_events, name);
  const struct sml_record *r = &item->record;
  if (strcmp(name, "pending_received") == 0) add_wait(s, item, r->rank, r->value, r->chunk);
  if (strcmp(name, "pending_sent") == 0) add_wait(s, item, r->value, 0, r->chunk);
  if (strcmp(name, "slot_recovered") == 0) s->longest_recovery_ns = sml_max_u64(s->longest_recovery_ns, r->value);
  if (strcmp(name, "packet_dropped") == 0) {
    sml_trace_reason_text(item->file, r->value, name, sizeof name);
    add_count(s->drops, &s->num_drops, name);
    return;
  }
  for (size_t i = 0; i < SML_ARRAY_LEN(endings); i++)
    if (strcmp(name, endings[i]) == 0 && s->num_endings++ < MAX_ENDINGS) sml_trace_print_line(s->endings_out, item);
}

static int compare_waits(const void *a, const void *b) {
  const struct wait *x = a, *y = b;
  if (x->is_used != y->is_used) return x->is_used ? -1 : 1;
  if (x->longest_ns != y->longest_ns) return x->longest_ns > y->longest_ns ? -1 : 1;
  return x->input != y->input ? (x->input < y->input ? -1 : 1) : (int)x->slot - (int)y->slot;
}

static int compare_counts(const void *a, const void *b) {
  const struct count *x = a, *y = b;
  return x->number != y->number ? (x->number > y->number ? -1 : 1) : strcmp(x->name, y->name);
}

static void print_waits(const struct sml_trace_summary *s, FILE *out) {
  qsort(s->waits, MAX_WAITS, sizeof *s->waits, compare_waits);
  if (s->num_waits > 0) fputs("Waits, the longest first:\n", out);
  for (uint32_t i = 0; i < s->num_waits && i < SHOWN_WAITS; i++) {
    const struct wait *w = &s->waits[i];
    fprintf(out, "  slot %u phase %u of job %s: rank %u missing for %.0f ms", w->slot, w->phase, w->job_name,
            w->missing, (double)w->longest_ns / (double)SML_NS_PER_MS);
    if (w->num_missing > 1) fprintf(out, ", and %u more", w->num_missing - 1);
    fprintf(out, " (%s)\n", w->who);
  }
  if (s->num_waits > SHOWN_WAITS)
    fprintf(out, "  and %s%u others\n", s->is_full ? "at least " : "", s->num_waits - SHOWN_WAITS);
  if (s->longest_recovery_ns > 0)
    fprintf(out, "The longest wait for a slot that was asked about and then completed: %.3f ms\n",
            (double)s->longest_recovery_ns / (double)SML_NS_PER_MS);
}

static void print_counts(FILE *out, const char *title, struct count *counts, uint32_t num_counts) {
  qsort(counts, num_counts, sizeof *counts, compare_counts);
  if (num_counts > 0) fputs(title, out);
  for (uint32_t i = 0; i < num_counts; i++)
    fprintf(out, "  %-24s %llu\n", counts[i].name, (unsigned long long)counts[i].number);
}

void sml_trace_summary_end(struct sml_trace_summary *s, FILE *out) {
  (void)fclose(s->endings_out);
  fprintf(out, "%llu events in %.6f s\n", (unsigned long long)s->num_items,
          (double)(s->last_ns - s->first_ns) / (double)SML_NS_PER_S);
  if (s->num_endings > 0) fprintf(out, "What ended badly, or nearly:\n%s", s->endings);
  if (s->num_endings > MAX_ENDINGS) fprintf(out, "and %u others\n", s->num_endings - MAX_ENDINGS);
  print_waits(s, out);
  print_counts(out, "Packets dropped, by reason:\n", s->drops, s->num_drops);
  print_counts(out, "Events:\n", s->events, s->num_events);
  free(s->endings);
  free(s->waits);
  free(s);
}
