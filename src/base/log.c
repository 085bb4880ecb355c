/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "base/fd.h"
#include "base/writer.h"

#define LINES_PER_S 200u
#define LINES_OF_ONE 60u    /* of these: two do not have all */
#define TENANT_COUNTS 1024u /* by a hash of the name: names are the operator's choice, and need no more than chance */
#define LINE_BYTES 1024u

static const char *const level_names[] = {"error", "warning", "info", "debug"};

static struct {
  _Atomic int level, format;
  pthread_mutex_t lock;
  time_t second; /* the counts are of this one */
  uint32_t num_lines, num_left_out;
  uint8_t num_lines_of[TENANT_COUNTS];
  _Atomic uint64_t all_left_out; /* of all seconds */
} log_state = {.level = SML_LOG_INFO, .lock = PTHREAD_MUTEX_INITIALIZER};

void sml_log_set_level(enum sml_log_level level) {
  atomic_store(&log_state.level, (int)level);
}

void sml_log_set_format(enum sml_log_format format) {
  atomic_store(&log_state.format, (int)format);
}

/* --- a line --- */

/* What does not fit is left out, but never the end of the line: that has room of its own. */
#define END_BYTES 4u
#define RESERVE_BYTES 96u /* behind a value: a quote, and the names of what follows */
struct line {
  bool is_json;
  size_t num_bytes;
  char text[LINE_BYTES];
};

static void add_bytes(struct line *line, const char *bytes, size_t num_bytes) {
  if (num_bytes > LINE_BYTES - END_BYTES - line->num_bytes) return;
  memcpy(line->text + line->num_bytes, bytes, num_bytes);
  line->num_bytes += num_bytes;
}

static void add(struct line *line, const char *text) {
  add_bytes(line, text, strlen(text));
}

/* Bytes of a value. Text of others may be in it: it must not end the value or the line, and JSON is UTF-8. */
static void add_value(struct line *line, const char *text) {
  for (; *text && line->num_bytes < LINE_BYTES - RESERVE_BYTES; text++) {
    char escaped[8];
    const unsigned char c = (unsigned char)*text;
    if (!line->is_json) snprintf(escaped, sizeof escaped, "%c", c == '"' ? '\'' : c < 0x20 || c == 0x7f ? ' ' : c);
    else if (c == '"' || c == '\\' || c < 0x20 || c == 0x7f) snprintf(escaped, sizeof escaped, "\\u%04x", c);
    else snprintf(escaped, sizeof escaped, "%c", c < 0x80 ? c : '?');
    add(line, escaped);
  }
}

static void begin_line(struct line *line, const struct timespec *now, enum sml_log_level level) {
  struct tm utc;
  char text[64], time_text[32];
  gmtime_r(&now->tv_sec, &utc);
  strftime(time_text, sizeof time_text, "%Y-%m-%dT%H:%M:%S", &utc);
  line->num_bytes = 0;
  line->is_json = atomic_load_explicit(&log_state.format, memory_order_relaxed) == SML_LOG_JSON;
  snprintf(text, sizeof text, "%s%s.%03dZ", line->is_json ? "{\"time\":\"" : "", time_text,
           (int)(now->tv_nsec / 1000000));
  add(line, text);
  add(line, line->is_json ? "\",\"level\":\"" : " ");
  add(line, level_names[level]);
  add(line, line->is_json ? "\",\"event\":\"" : " ");
}

static void add_field(struct line *line, const struct sml_log_field *field) {
  if (line->num_bytes >= LINE_BYTES - RESERVE_BYTES) return;
  char number[24];
  snprintf(number, sizeof number, "%llu", (unsigned long long)field->number);
  add(line, line->is_json ? ",\"" : " ");
  add(line, field->name);
  add(line, line->is_json ? "\":" : "=");
  const bool is_quoted = field->text && (line->is_json || field->text[0] == 0 || strpbrk(field->text, " ="));
  if (is_quoted) add(line, "\"");
  add_value(line, field->text ? field->text : number);
  if (is_quoted) add(line, "\"");
}

static void end_line(struct line *line) {
  line->text[line->num_bytes++] = '\n';
}

static void end_event(struct line *line, const struct sml_log_field *fields, size_t num_fields, const char *sentence) {
  if (line->is_json) add(line, "\"");
  for (size_t i = 0; i < num_fields; i++) add_field(line, &fields[i]);
  if (sentence[0]) {
    add(line, line->is_json ? ",\"text\":\"" : " \"");
    add_value(line, sentence);
    line->text[line->num_bytes++] = '"'; /* of the end's room */
  }
  if (line->is_json) line->text[line->num_bytes++] = '}';
  end_line(line);
}

static void make_left_out(struct line *line, const struct timespec *now, uint64_t num_lines, const char *why) {
  const struct sml_log_field count = {.name = "count", .number = num_lines};
  begin_line(line, now, SML_LOG_WARNING);
  add(line, "log_lines_left_out");
  end_event(line, &count, 1, why);
}

/* --- the writer's thread --- */

static void write_line(const char *text, size_t num_bytes) {
  (void)sml_fd_write_stderr(text, num_bytes); /* nowhere left to say that it failed */
}

static void write_left_out(uint64_t num_lines) {
  struct line line;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  make_left_out(&line, &now, num_lines, "nobody read what was written before");
  write_line(line.text, line.num_bytes);
}

static const struct sml_outlet outlet = {.write = write_line, .write_left_out = write_left_out};

static void put_line(const struct line *line) {
  (void)sml_writer_put(&outlet, line->text, line->num_bytes);
}

/* --- how many --- */

static uint64_t hash(const char *text) {
  uint64_t sum = 0;
  for (; *text; text++) sum = sml_mix64(sum * 31 + (uint8_t)*text);
  return sum;
}

/* With the lock. At the first line of a second, those of the one before that were left out are told. */
static bool may_write(const char *tenant, enum sml_log_level level, const struct timespec *now) {
  if (log_state.second != now->tv_sec) {
    if (log_state.num_left_out > 0) {
      struct line line;
      make_left_out(&line, now, log_state.num_left_out, "");
      put_line(&line);
    }
    log_state.second = now->tv_sec;
    log_state.num_lines = log_state.num_left_out = 0;
    memset(log_state.num_lines_of, 0, sizeof log_state.num_lines_of);
  }
  uint8_t *num_of = tenant != NULL ? &log_state.num_lines_of[hash(tenant) % TENANT_COUNTS] : NULL;
  const bool has_share = num_of == NULL || *num_of < LINES_OF_ONE;
  const bool is_written = level == SML_LOG_ERROR || (log_state.num_lines < LINES_PER_S && has_share);
  log_state.num_lines += is_written;
  if (num_of != NULL && has_share) *num_of += is_written;
  log_state.num_left_out += !is_written;
  if (!is_written) atomic_fetch_add_explicit(&log_state.all_left_out, 1, memory_order_relaxed); /* a figure */
  return is_written;
}

void sml_log_event_of(const char *tenant, enum sml_log_level level, const char *event,
                      const struct sml_log_field *fields, size_t num_fields, const char *sentence) {
  if ((int)level > atomic_load_explicit(&log_state.level, memory_order_relaxed)) return;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  pthread_mutex_lock(&log_state.lock);
  if (may_write(tenant, level, &now)) {
    struct line line;
    begin_line(&line, &now, level);
    add_value(&line, event);
    end_event(&line, fields, num_fields, sentence);
    put_line(&line);
  }
  pthread_mutex_unlock(&log_state.lock);
}

void sml_log_event(enum sml_log_level level, const char *event, const struct sml_log_field *fields, size_t num_fields,
                   const char *sentence) {
  sml_log_event_of(NULL, level, event, fields, num_fields, sentence);
}

uint64_t sml_log_num_left_out(void) {
  return atomic_load_explicit(&log_state.all_left_out, memory_order_relaxed) + sml_writer_num_left_out();
}
