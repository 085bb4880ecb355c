/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define LINES_PER_S 200u
#define LINE_BYTES 1024u

static const char *const level_names[] = {"error", "warning", "info", "debug"};

static struct {
  _Atomic int level;
  pthread_mutex_t lock;
  time_t second; /* the counts are of this one */
  uint32_t num_lines, num_left_out;
} log_state = {.level = SML_LOG_INFO, .lock = PTHREAD_MUTEX_INITIALIZER};

bool sml_log_parse_level(const char *text, enum sml_log_level *level_out) {
  for (uint32_t i = 0; i < SML_ARRAY_LEN(level_names); i++) {
    if (strcmp(text, level_names[i]) != 0) continue;
    *level_out = (enum sml_log_level)i;
    return true;
  }
  return false;
}

void sml_log_set_level(enum sml_log_level level) {
  atomic_store(&log_state.level, (int)level);
}

static size_t begin_line(char *line, const struct timespec *now, enum sml_log_level level) {
  struct tm utc;
  gmtime_r(&now->tv_sec, &utc);
  size_t num_bytes = strftime(line, LINE_BYTES, "%Y-%m-%dT%H:%M:%S", &utc);
  return num_bytes + (size_t)snprintf(line + num_bytes, LINE_BYTES - num_bytes, ".%03dZ %s ",
                                      (int)(now->tv_nsec / 1000000), level_names[level]);
}

static void write_line(char *line, size_t num_bytes) {
  if (num_bytes > LINE_BYTES - 2) num_bytes = LINE_BYTES - 2; /* cut by vsnprintf */
  line[num_bytes] = '\n';
  if (write(STDERR_FILENO, line, num_bytes + 1) < 0) return; /* nowhere left to say so */
}

void sml_log(enum sml_log_level level, const char *format, ...) {
  if ((int)level > atomic_load_explicit(&log_state.level, memory_order_relaxed)) return;
  char line[LINE_BYTES];
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  pthread_mutex_lock(&log_state.lock);
  if (log_state.second != now.tv_sec) {
    if (log_state.num_left_out > 0) {
      size_t used = begin_line(line, &now, SML_LOG_WARNING);
      int more =
          snprintf(line + used, LINE_BYTES - used, "log_lines_left_out count=%u", log_state.num_left_out);
      write_line(line, used + (size_t)more);
    }
    log_state.second = now.tv_sec;
    log_state.num_lines = log_state.num_left_out = 0;
  }
  bool is_written = level == SML_LOG_ERROR || log_state.num_lines < LINES_PER_S;
  log_state.num_lines += is_written;
  log_state.num_left_out += !is_written;
  if (is_written) {
    size_t used = begin_line(line, &now, level);
    va_list args;
    va_start(args, format);
    int more = vsnprintf(line + used, LINE_BYTES - used, format, args);
    va_end(args);
    write_line(line, used + (more > 0 ? (size_t)more : 0));
  }
  pthread_mutex_unlock(&log_state.lock);
}
