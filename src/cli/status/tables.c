/* SPDX-License-Identifier: Apache-2.0 */
#include <libsmartcols.h>
#include <stdarg.h>
#include <stdlib.h>

#include "base/text.h"
#include "cli/status/screen.h"
#include "cli/status/status.h"

#define TEXT_BYTES 1024u /* all reasons to drop, each with its number */
static const char *const job_rates[] = {"bytes", "packets", "sums", "retransmissions", "repeats"};
static const char *const switch_rates[] = {"updates", "sums", "repeats"};

/* --- JSON --- */

static const char *text_of(const json_t *object, const char *name) {
  const char *text = json_string_value(json_object_get(object, name));
  return text ? text : "";
}

static unsigned long long number_of(const json_t *object, const char *name) {
  return (unsigned long long)json_integer_value(json_object_get(object, name));
}

/* Negative: null, or not there. */
static double real_of(const json_t *object, const char *name) {
  const json_t *value = json_object_get(object, name);
  return json_is_number(value) ? json_number_value(value) : -1;
}

static bool is_unknown(const json_t *object, const char *name) {
  return json_is_null(json_object_get(object, name));
}

static const json_t *find_same_job(const json_t *status, const json_t *job) {
  size_t i;
  const json_t *other;
  json_array_foreach(json_object_get(status, "jobs"), i, other) {
    if (number_of(other, "number") == number_of(job, "number") &&
        strcmp(text_of(other, "name"), text_of(job, "name")) == 0)
      return other;
  }
  return NULL;
}

static void put_rates(json_t *now, const json_t *before, double seconds, const char *const *names, size_t num) {
  json_t *rates = json_object();
  for (size_t r = 0; r < num; r++) {
    const uint64_t was = number_of(before, names[r]), is = number_of(now, names[r]);
    const bool is_known = !is_unknown(before, names[r]) && !is_unknown(now, names[r]);
    const double rate = is > was ? (double)(is - was) / seconds : 0;
    json_object_set_new(rates, names[r], is_known ? json_real(rate) : json_null());
  }
  json_object_set_new(now, "rates", rates);
}

/* Between the two times at which the switch told its counters: the daemon does not ask it each time. */
static void add_switch_rates(json_t *now, const json_t *before, double seconds) {
  json_t *is = json_object_get(now, "switch");
  const json_t *was = json_object_get(before, "switch");
  const double is_old_s = real_of(is, "told_s"), was_old_s = real_of(was, "told_s");
  seconds += was_old_s - is_old_s;
  if (is_old_s < 0 || was_old_s < 0 || seconds < 0.1) return;
  put_rates(is, was, seconds, switch_rates, SML_ARRAY_LEN(switch_rates));
}

bool sml_status_add_rates(json_t *now, const json_t *before) {
  const double seconds = real_of(now, "uptime_s") - real_of(before, "uptime_s");
  size_t i;
  json_t *job;
  json_array_foreach(json_object_get(now, "jobs"), i, job) {
    const json_t *old = find_same_job(before, job);
    if (!old || seconds <= 0 || strcmp(text_of(job, "state"), "running") != 0) continue;
    put_rates(job, old, seconds, job_rates, SML_ARRAY_LEN(job_rates));
  }
  add_switch_rates(now, before, seconds);
  return seconds > 0;
}

bool sml_status_keep_job(json_t *status, const char *name) {
  json_t *jobs = json_object_get(status, "jobs");
  for (size_t i = json_array_size(jobs); i-- > 0;)
    if (strcmp(text_of(json_array_get(jobs, i), "name"), name) != 0) json_array_remove(jobs, i);
  return json_array_size(jobs) > 0;
}

enum sml_status_exit sml_status_judge(const json_t *status) {
  size_t i;
  const json_t *job;
  json_array_foreach(json_object_get(status, "jobs"), i, job) {
    const char *health = text_of(job, "health");
    if (strcmp(health, "late") == 0 || strcmp(health, "lost") == 0) return SML_STATUS_TROUBLE;
  }
  return SML_STATUS_HEALTHY;
}

/* --- tables --- */

__attribute__((format(printf, 3, 4))) static void put(struct libscols_line *line, size_t column, const char *format,
                                                      ...) {
  char text[TEXT_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  scols_line_set_data(line, column, text);
}

/* "-": unknown. */
static void put_number(struct libscols_line *line, size_t column, const json_t *object, const char *name) {
  if (is_unknown(object, name)) put(line, column, "-");
  else put(line, column, "%llu", number_of(object, name));
}

static void put_rate(struct libscols_line *line, size_t column, const json_t *job, const char *name, double unit) {
  const double rate = real_of(json_object_get(job, "rates"), name);
  if (rate < 0) put(line, column, "-");
  else put(line, column, unit > 1 ? "%.1f" : "%.0f", rate / unit);
}

/* "BAD_CRC 3, STALE_PHASE 1" or "-". */
static void describe_drops(char *text, size_t room, const json_t *of) {
  const char *name;
  json_t *value;
  size_t used = 0;
  snprintf(text, room, "-");
  json_object_foreach(json_object_get(of, "drops"), name, value) {
    if (used >= room) return;
    used += (size_t)snprintf(text + used, room - used, "%s%s %lld", used ? ", " : "", name,
                             (long long)json_integer_value(value));
  }
}

static struct libscols_table *begin_table(FILE *stream, const char *const *columns, size_t num_columns,
                                          size_t num_left) {
  struct libscols_table *table = scols_new_table();
  if (!table) return NULL;
  scols_table_set_stream(table, stream);
  scols_table_enable_nowrap(table, 1);
  scols_table_set_termforce(table, SCOLS_TERMFORCE_NEVER);
  for (size_t i = 0; i < num_columns; i++)
    scols_table_new_column(table, columns[i], 0, i < num_left ? 0 : SCOLS_FL_RIGHT);
  return table;
}

static bool end_table(struct libscols_table *table) {
  const bool is_ok = scols_print_table(table) == 0;
  scols_unref_table(table);
  return is_ok;
}

static void put_job(struct libscols_line *line, const json_t *job) {
  char drops[TEXT_BYTES];
  const bool is_running = strcmp(text_of(job, "state"), "running") == 0;
  describe_drops(drops, sizeof drops, job);
  const char *key = text_of(job, "key");
  put(line, 0, "%s%s%s", text_of(job, "name"), key[0] ? "@" : "", key);
  put(line, 1, "%s", text_of(job, "health"));
  put(line, 2, "%llu/%llu", number_of(job, "present"), number_of(job, "world_size"));
  put(line, 3, "%llu/%llu", number_of(job, "operations_completed"), number_of(job, "operations_called"));
  if (is_running) put(line, 4, "%llu x %llu", number_of(job, "lanes"), number_of(job, "slots"));
  if (is_running) put_number(line, 5, job, "slots_waiting");
  else put(line, 5, "-");
  put_rate(line, 6, job, "bytes", 1e6);
  put_rate(line, 7, job, "sums", 1);
  put_number(line, 8, job, "retransmissions");
  put(line, 9, "%s", drops);
}

static bool print_jobs(FILE *stream, const json_t *status) {
  static const char *const columns[] = {"job",     "state", "ranks",  "operations", "slots",
                                        "waiting", "MB/s",  "sums/s", "retrans",    "dropped"};
  struct libscols_table *table = begin_table(stream, columns, SML_ARRAY_LEN(columns), 2);
  if (!table) return false;
  size_t i;
  const json_t *job;
  json_array_foreach(json_object_get(status, "jobs"), i, job) {
    struct libscols_line *line = scols_table_new_line(table, NULL);
    if (line) put_job(line, job);
  }
  return end_table(table);
}

static void put_rank(struct libscols_line *line, const json_t *rank) {
  char since[32], heard[32];
  sml_text_age(since, sizeof since, real_of(rank, "since_s"));
  sml_text_age(heard, sizeof heard, real_of(rank, "heard_s"));
  put(line, 0, "%llu", number_of(rank, "rank"));
  put(line, 1, "%s", text_of(rank, "host"));
  put(line, 2, "%s", text_of(rank, "state"));
  put(line, 3, "%s", since);
  put(line, 4, "%s", heard);
  put(line, 5, "%llu/%llu", number_of(rank, "operations_completed"), number_of(rank, "operations_called"));
  if (!json_object_get(rank, "packets")) return;
  put_number(line, 6, rank, "slots_missing");
  put_number(line, 7, rank, "packets");
  if (is_unknown(rank, "bytes")) put(line, 8, "-");
  else put(line, 8, "%.1f", (double)number_of(rank, "bytes") / 1e6);
  put_number(line, 9, rank, "retransmissions");
}

static bool print_ranks(FILE *stream, const json_t *job) {
  static const char *const columns[] = {"rank",       "host",          "state",   "since", "heard",
                                        "operations", "slots_missing", "packets", "MB",    "retrans"};
  fprintf(stream, "\njob %s\n", text_of(job, "name"));
  struct libscols_table *table = begin_table(stream, columns, SML_ARRAY_LEN(columns), 3);
  if (!table) return false;
  size_t i;
  const json_t *rank;
  json_array_foreach(json_object_get(job, "ranks"), i, rank) {
    struct libscols_line *line = scols_table_new_line(table, NULL);
    if (line) put_rank(line, rank);
  }
  return end_table(table);
}

/* --- sentences --- */

/* Why a job is slow, and one line about each late or lost rank. */
static void print_trouble(FILE *stream, const json_t *job) {
  size_t i;
  if (strcmp(text_of(job, "health"), "slow") == 0)
    fprintf(stream, "job %s is slow: %s\n", text_of(job, "name"), text_of(job, "why"));
  const json_t *rank;
  json_array_foreach(json_object_get(job, "ranks"), i, rank) {
    if (text_of(rank, "text")[0]) fprintf(stream, "job %s: %s\n", text_of(job, "name"), text_of(rank, "text"));
  }
}

/* Nothing without one. */
static void print_switch(FILE *stream, const json_t *of) {
  char told[32];
  if (!json_is_object(of)) return;
  const double told_s = real_of(of, "told_s");
  if (told_s < 0) {
    fprintf(stream, "switch: has told nothing yet\n");
    return;
  }
  const json_t *rates = json_object_get(of, "rates");
  fprintf(stream, "switch, %s ago: %llu updates, %llu sums, %llu repeats, %llu pending, %llu forwarded",
          sml_text_age(told, sizeof told, told_s), number_of(of, "updates"), number_of(of, "sums"),
          number_of(of, "repeats"), number_of(of, "pending"), number_of(of, "forwarded"));
  if (rates) fprintf(stream, "; %.0f sums/s, %.0f repeats/s", real_of(rates, "sums"), real_of(rates, "repeats"));
  fprintf(stream, "\n");
}

static void print_send_error(FILE *stream, size_t number, const json_t *lane) {
  char ago[32];
  const json_t *error = json_object_get(lane, "tx_error");
  if (!json_is_object(error)) return;
  fprintf(stream, "lane %zu did not send %llu packets, the last one to %s %s ago: %s\n", number,
          number_of(lane, "tx_lost_packets"), text_of(error, "to"),
          sml_text_age(ago, sizeof ago, real_of(error, "ago_s")), text_of(error, "text"));
}

static void print_heading(FILE *stream, const json_t *status) {
  char up[32], drops[TEXT_BYTES];
  size_t i;
  const json_t *lane, *lanes = json_object_get(status, "lanes");
  fprintf(stream, "switchmld %s, up %s, %zu job%s", text_of(status, "version"),
          sml_text_age(up, sizeof up, real_of(status, "uptime_s")), json_array_size(json_object_get(status, "jobs")),
          json_array_size(json_object_get(status, "jobs")) == 1 ? "" : "s");
  json_array_foreach(lanes, i, lane) {
    fprintf(stream, "%s lane %zu: %llu of %llu slots", i == 0 ? "," : ";", i, number_of(lane, "slots_used"),
            number_of(json_object_get(status, "limits"), "slots"));
  }
  fprintf(stream, "\n");
  json_array_foreach(lanes, i, lane) {
    print_send_error(stream, i, lane);
    if (json_object_size(json_object_get(lane, "drops")) == 0) continue;
    describe_drops(drops, sizeof drops, lane);
    fprintf(stream, "lane %zu dropped: %s\n", i, drops);
  }
  print_switch(stream, json_object_get(status, "switch"));
  const unsigned long long left_out = number_of(status, "log_lines_left_out");
  if (left_out > 0) fprintf(stream, "log: %llu lines left out: too many a second, or nobody reads them\n", left_out);
}

/* One line about each tenant that has a quota. */
static void print_tenants(FILE *stream, const json_t *status) {
  static const char *const whats[] = {"jobs", "workers", "slots"};
  size_t i;
  const json_t *tenant;
  json_array_foreach(json_object_get(status, "tenants"), i, tenant) {
    char text[160] = "", limit_name[16];
    size_t used = 0;
    for (size_t w = 0; w < SML_ARRAY_LEN(whats); w++) {
      snprintf(limit_name, sizeof limit_name, "max_%s", whats[w]);
      if (!json_is_integer(json_object_get(tenant, limit_name))) continue;
      used += (size_t)snprintf(text + used, sizeof text - used, "%s%llu of %llu %s", used ? ", " : "",
                               number_of(tenant, whats[w]), number_of(tenant, limit_name), whats[w]);
    }
    if (used > 0) fprintf(stream, "tenant %s: %s\n", text_of(tenant, "name"), text);
  }
}

static void print_ended(FILE *stream, const json_t *status) {
  size_t i;
  const json_t *ended;
  json_array_foreach(json_object_get(status, "ended"), i, ended) {
    char ago[32];
    if (i >= 5 || !json_is_true(json_object_get(ended, "failed"))) continue;
    fprintf(stream, "job %s failed %s ago: %s\n", text_of(ended, "name"),
            sml_text_age(ago, sizeof ago, real_of(ended, "ago_s")), text_of(ended, "text"));
  }
}

static bool print_sentences(FILE *stream, uint32_t columns, void (*print)(FILE *, const json_t *), const json_t *of) {
  char *text = NULL;
  size_t num_bytes;
  FILE *memory = open_memstream(&text, &num_bytes);
  if (memory) print(memory, of);
  const bool is_ok = memory && fclose(memory) == 0;
  if (is_ok) sml_screen_wrap(stream, text, columns);
  free(text);
  return is_ok;
}

bool sml_status_print(FILE *stream, const json_t *status, bool has_ranks, uint32_t columns) {
  size_t i;
  const json_t *job, *jobs = json_object_get(status, "jobs");
  bool is_ok = print_sentences(stream, columns, print_heading, status);
  is_ok = (json_array_size(jobs) == 0 || print_jobs(stream, status)) && is_ok;
  is_ok = print_sentences(stream, columns, print_tenants, status) && is_ok;
  json_array_foreach(jobs, i, job) is_ok = print_sentences(stream, columns, print_trouble, job) && is_ok;
  json_array_foreach(jobs, i, job) is_ok = (!has_ranks || print_ranks(stream, job)) && is_ok;
  is_ok = print_sentences(stream, columns, print_ended, status) && is_ok;
  return is_ok && fflush(stream) == 0;
}
