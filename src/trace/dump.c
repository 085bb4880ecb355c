/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/dump.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "core/drop.h"

#define BUFFER_BYTES 65536u
#define PATH_BYTES 4096u
#define MAX_TEXT_BYTES 1024u

static void *grow(void *array, uint32_t count, size_t elem_bytes) {
  /* Room is doubled: a power of two is full. */
  if (count != 0 && !sml_is_pow2(count)) return array;
  return realloc(array, (count == 0 ? 1 : 2 * (size_t)count) * elem_bytes);
}

bool sml_trace_add_source(struct sml_trace_dump *dump, const struct sml_recorder *recorder, uint32_t lane,
                          const char *name, ...) {
  if (dump->num_sources == SML_TRACE_MAX_SOURCES) return false;
  struct sml_trace_source *sources = grow(dump->sources, dump->num_sources, sizeof *sources);
  if (sources == NULL) return false;
  dump->sources = sources;
  struct sml_trace_source *s = &sources[dump->num_sources];
  memset(s, 0, sizeof *s);
  s->lane = lane;
  va_list arguments;
  va_start(arguments, name);
  vsnprintf(s->name, sizeof s->name, name, arguments);
  va_end(arguments);
  const uint64_t room = sml_recorder_room(recorder);
  s->records = malloc((room + 1) * sizeof *s->records);
  if (s->records == NULL) return false;
  s->num_records = sml_recorder_copy(recorder, s->records, room, &s->num_lost);
  dump->num_sources++;
  return true;
}

bool sml_trace_add_job(struct sml_trace_dump *dump, const struct sml_trace_job *job) {
  if (dump->num_jobs == UINT16_MAX) return false;
  struct sml_trace_job *jobs = grow(dump->jobs, dump->num_jobs, sizeof *jobs);
  if (jobs == NULL) return false;
  dump->jobs = jobs;
  jobs[dump->num_jobs++] = *job;
  return true;
}

void sml_trace_clear(struct sml_trace_dump *dump) {
  for (uint32_t i = 0; i < dump->num_sources; i++) free(dump->sources[i].records);
  free(dump->sources);
  free(dump->jobs);
  memset(dump, 0, sizeof *dump);
}

/* ---- encoding ---- */

/* Bytes on their way to a file; the first error is kept, and ends the writing. */
struct output {
  int fd, error;
  uint64_t num_bytes; /* so far */
  size_t used;
  uint8_t *buffer; /* NULL: only counted */
};

static void flush(struct output *o) {
  size_t done = 0;
  while (done < o->used && o->error == 0) {
    const ssize_t n = sml_fd_write_quietly(o->fd, o->buffer + done, o->used - done);
    if (n < 0 && errno != EINTR) o->error = errno;
    if (n > 0) done += (size_t)n;
  }
  o->used = 0;
}

static void put_bytes(struct output *o, const void *data, size_t num_bytes) {
  o->num_bytes += num_bytes;
  if (o->buffer == NULL) return;
  if (o->used + num_bytes > BUFFER_BYTES) flush(o);
  memcpy(o->buffer + o->used, data, num_bytes);
  o->used += num_bytes;
}

static void put(struct output *o, uint64_t value, size_t num_bytes) {
  uint8_t bytes[8];
  sml_store_be64(bytes, value);
  put_bytes(o, bytes + 8 - num_bytes, num_bytes);
}

static void put_text(struct output *o, const char *text) {
  const size_t num_bytes = sml_min_u64(strlen(text), MAX_TEXT_BYTES);
  put(o, num_bytes, 2);
  put_bytes(o, text, num_bytes);
}

static void put_events(struct output *o) {
  put(o, SML_TRACE_NUM_EVENTS, 2);
  for (uint32_t i = 0; i < SML_TRACE_NUM_EVENTS; i++) {
    const struct sml_trace_event_info *e = &sml_trace_events[i];
    const char *const names[] = {e->name, e->slot, e->rank, e->phase, e->chunk, e->value};
    put(o, (uint64_t)e->level, 1);
    put(o, (uint64_t)e->kind, 1);
    for (size_t k = 0; k < SML_ARRAY_LEN(names); k++) put_text(o, names[k]);
  }
  put(o, SML_NUM_DROPS, 2);
  for (uint32_t d = 0; d < SML_NUM_DROPS; d++) put_text(o, sml_drop_name((enum sml_drop)d));
}

struct origin {
  struct timespec real, monotonic;
  char host[256];
};

static uint64_t ns_of(const struct timespec *t) {
  return (uint64_t)t->tv_sec * SML_NS_PER_S + (uint64_t)t->tv_nsec;
}

static void put_header(struct output *o, const struct sml_trace_dump *d, const struct origin *origin,
                       uint32_t header_bytes) {
  put_bytes(o, SML_TRACE_MAGIC, 8);
  put(o, SML_TRACE_VERSION, 2);
  put(o, SML_RECORD_BYTES, 2);
  put(o, header_bytes, 4);
  put(o, ns_of(&origin->real), 8);
  put(o, ns_of(&origin->monotonic), 8);
  put(o, (uint64_t)getpid(), 4);
  put_text(o, d->program);
  put_text(o, SML_VERSION_TEXT);
  put_text(o, origin->host);
  put_text(o, d->reason);
  put_events(o);
  put(o, d->num_jobs, 2);
  for (uint32_t i = 0; i < d->num_jobs; i++) {
    put(o, d->jobs[i].number, 2);
    put(o, d->jobs[i].epoch, 4);
    put(o, d->jobs[i].rank, 4);
    put_text(o, d->jobs[i].name);
  }
  put(o, d->num_sources, 2);
  for (uint32_t i = 0; i < d->num_sources; i++) {
    put(o, d->sources[i].lane, 4);
    put(o, d->sources[i].num_lost, 8);
    put(o, d->sources[i].num_records, 4);
    put_text(o, d->sources[i].name);
  }
  for (uint32_t i = 0; i < d->num_jobs; i++) put(o, d->jobs[i].since_ns, 8);
}

static void put_record(struct output *o, const struct sml_record *r) {
  uint8_t bytes[SML_RECORD_BYTES];
  sml_store_be64(bytes, r->time_ns);
  sml_store_be16(bytes + 8, r->event);
  sml_store_be16(bytes + 10, r->job);
  sml_store_be16(bytes + 12, r->slot);
  sml_store_be16(bytes + 14, r->rank);
  sml_store_be32(bytes + 16, r->phase);
  sml_store_be32(bytes + 20, r->chunk);
  sml_store_be64(bytes + 24, r->value);
  put_bytes(o, bytes, sizeof bytes);
}

static int write_all(int fd, const struct sml_trace_dump *d) {
  struct origin origin;
  memset(&origin, 0, sizeof origin);
  clock_gettime(CLOCK_MONOTONIC, &origin.monotonic);
  clock_gettime(CLOCK_REALTIME, &origin.real);
  if (gethostname(origin.host, sizeof origin.host - 1) != 0) origin.host[0] = 0;
  struct output count = {.fd = -1}, o = {.fd = fd, .buffer = malloc(BUFFER_BYTES)};
  if (o.buffer == NULL) return -ENOMEM;
  put_header(&count, d, &origin, 0);
  put_header(&o, d, &origin, (uint32_t)count.num_bytes);
  for (uint32_t i = 0; i < d->num_sources; i++)
    for (uint64_t k = 0; k < d->sources[i].num_records; k++) put_record(&o, &d->sources[i].records[k]);
  flush(&o);
  free(o.buffer);
  return -o.error;
}

bool sml_trace_find_path(const char *prefix, _Atomic uint32_t *next_number, char *path_out, size_t path_bytes) {
  do {
    const uint32_t number = atomic_fetch_add_explicit(next_number, 1, memory_order_relaxed);
    const int num_bytes = snprintf(path_out, path_bytes, "%s-%ld-%u.trace", prefix, (long)getpid(), number);
    if ((size_t)num_bytes >= path_bytes) return false;
  } while (access(path_out, F_OK) == 0);
  return true;
}

int sml_trace_write(const struct sml_trace_dump *d, const char *path, char *error_out, size_t error_bytes) {
  char temporary[PATH_BYTES];
  int error = 0, fd = -1;
  const int path_bytes = snprintf(temporary, sizeof temporary, "%s.%ld.new", path, (long)getpid());
  if ((size_t)path_bytes >= sizeof temporary) error = -ENAMETOOLONG;
  if (error == 0) (void)unlink(temporary); /* of a process of this number that was killed at it */
  /* Not through a link that somebody put there; and it tells addresses and names of jobs, which are nobody else's. */
  if (error == 0) fd = sml_fd_raise(open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (error == 0 && fd < 0) error = -errno;
  if (error == 0) error = write_all(fd, d);
  if (fd >= 0 && close(fd) != 0 && error == 0) error = -errno;
  if (error == 0) error = -sml_fd_replace_file(temporary, path);
  if (error == 0) return 0;
  if (fd >= 0) (void)unlink(temporary);
  snprintf(error_out, error_bytes, "cannot write %s: %s", path,
           error == -EEXIST ? "a file that is not regular is there" : strerror(-error));
  return error;
}
