/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/options.h"
#include "cli/status/screen.h"
#include "cli/status/status.h"

#define COLUMN_STEP 8u

struct options {
  const char *address; /* NULL: SWITCHML_AGGREGATOR */
  double interval_s;
  uint64_t count; /* 0: until q */
};
#define SML_OPTIONS struct options

static const struct sml_option table[] = {
    {"count", 'c', "N", "End after so many tables. Default: go on", 0, SML_NUMBER(count, 1, 0)},
    {"interval", 'i', "S", "Seconds between two tables: 0.3 to 3600. Default 1", 0, SML_REAL(interval_s, 0.3, 3600, 1)},
    {0},
};

static struct termios saved_terminal;
static volatile sig_atomic_t should_end, should_pause, has_resized;
static uint32_t first_row, first_column; /* of the text that are on the screen: as the arrows say */

static void end_on_signal(int number) {
  (void)number;
  should_end = 1;
}

static void pause_on_signal(int number) {
  (void)number;
  should_pause = 1;
}

static void draw_on_signal(int number) {
  (void)number;
  has_resized = 1;
}

/* --- the terminal --- */

/* The other screen, no cursor, and keys as they are typed. */
static bool enter_screen(void) {
  struct termios raw = saved_terminal;
  raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
  raw.c_cc[VMIN] = 0;
  raw.c_cc[VTIME] = 0;
  if (tcsetattr(STDIN_FILENO, TCSANOW, &raw) != 0) return false;
  fputs("\033[?1049h\033[?25l", stdout);
  return true;
}

static void leave_screen(void) {
  fputs("\033[?25h\033[?1049l", stdout);
  fflush(stdout);
  tcsetattr(STDIN_FILENO, TCSANOW, &saved_terminal);
}

static bool begin_screen(void) {
  if (!isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO) || tcgetattr(STDIN_FILENO, &saved_terminal) != 0) return false;
  static const struct {
    int number;
    void (*handler)(int);
  } of_user[] = {
      {SIGINT, end_on_signal},    {SIGTERM, end_on_signal},   {SIGHUP, end_on_signal},
      {SIGTSTP, pause_on_signal}, {SIGWINCH, draw_on_signal},
  };
  sigset_t set;
  sigemptyset(&set);
  for (size_t i = 0; i < sizeof of_user / sizeof of_user[0]; i++) {
    const struct sigaction action = {.sa_handler = of_user[i].handler,
                                     .sa_flags = SA_RESTART}; /* poll() ends all the same */
    sigaction(of_user[i].number, &action, NULL);
    sigaddset(&set, of_user[i].number);
  }
  sigprocmask(SIG_UNBLOCK, &set, NULL); /* whoever started us may have blocked them */
  return enter_screen();
}

/* Ctrl-Z: the shell gets its screen back until we go on. */
static void pause_screen(void) {
  leave_screen();
  raise(SIGSTOP);
  should_pause = 0;
  has_resized = 1; /* for all we know */
  (void)enter_screen();
}

static struct winsize window(void) {
  struct winsize size = {0};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0) return size;
  return (struct winsize){.ws_row = 24, .ws_col = 80};
}

/* Keys, and what they would show. Keeps the arrows within the text. */
static void make_help(const char *text, uint32_t rows, uint32_t columns, char *help, size_t help_bytes) {
  uint32_t num_lines = 0, width = 0;
  for (const char *at = text; *at; num_lines++) {
    const size_t num_bytes = strcspn(at, "\n");
    width = sml_max_u32(width, sml_screen_width(at, num_bytes));
    at += num_bytes + (at[num_bytes] != 0);
  }
  first_row = sml_min_u32(first_row, num_lines > rows ? num_lines - rows : 0);
  first_column = sml_min_u32(first_column, width > columns ? width - columns : 0);
  int used = snprintf(help, help_bytes, "q: end");
  if (num_lines > rows)
    used += snprintf(help + used, help_bytes - (size_t)used, "; arrows: %u more lines", num_lines - rows);
  if (width > columns)
    snprintf(help + used, help_bytes - (size_t)used, "%s %u more columns",
             num_lines > rows ? "," : "; arrows:", width - columns);
}

/* As many lines and columns as fit; the rest of the screen is cleared. Each line is cleared before it is written:
 * behind one that fills it the cursor still stands on its last column. */
static void draw(const char *text) {
  char help[128];
  const struct winsize size = window();
  make_help(text, size.ws_row - 1u, size.ws_col, help, sizeof help);
  for (uint32_t row = 0; row < first_row; row++) text += strcspn(text, "\n") + 1;
  fputs("\033[H", stdout);
  for (uint32_t row = 0; row + 1u < size.ws_row; row++) {
    const size_t num_bytes = strcspn(text, "\n");
    fputs("\033[K", stdout);
    sml_screen_cut(stdout, text, num_bytes, first_column, size.ws_col);
    putchar('\n');
    text += num_bytes + (text[num_bytes] != 0);
  }
  printf("\033[K%.*s\033[J", (int)sml_min_u64(strlen(help), size.ws_col), help);
  fflush(stdout);
}

/* False: the user wants to go. */
static bool take_keys(void) {
  char keys[32];
  const ssize_t num_keys = read(STDIN_FILENO, keys, sizeof keys);
  for (ssize_t i = 0; i < num_keys; i++) {
    if (keys[i] == 'q' || keys[i] == 'Q' || keys[i] == 3) return false;
    if (keys[i] != '\033' || i + 2 >= num_keys || keys[i + 1] != '[') continue;
    const char arrow = keys[i += 2];
    if (arrow == 'A') first_row -= first_row > 0;
    else if (arrow == 'B') first_row++;
    else if (arrow == 'C') first_column += COLUMN_STEP;
    else if (arrow == 'D') first_column -= sml_min_u32(first_column, COLUMN_STEP);
    has_resized = 1;
  }
  return num_keys > 0;
}

/* --- what is shown --- */

static double rate_of(const json_t *job) {
  return json_number_value(json_object_get(json_object_get(job, "rates"), "bytes"));
}

static int compare_rates(const void *a, const void *b) {
  json_t *const *one = a, *const *other = b;
  const double x = rate_of(*one), y = rate_of(*other);
  return x > y ? -1 : x < y;
}

/* The busiest job first. */
static void sort_jobs(json_t *status) {
  const json_t *jobs = json_object_get(status, "jobs");
  const size_t num_jobs = json_array_size(jobs);
  json_t **order = calloc(num_jobs + 1, sizeof *order), *sorted = json_array();
  for (size_t i = 0; order && i < num_jobs; i++) order[i] = json_array_get(jobs, i);
  if (order) qsort(order, num_jobs, sizeof *order, compare_rates);
  for (size_t i = 0; order && i < num_jobs; i++) json_array_append(sorted, order[i]);
  if (order) json_object_set(status, "jobs", sorted);
  json_decref(sorted);
  free(order);
}

static bool show(const json_t *status, bool is_screen) {
  size_t num_bytes;
  char *text = NULL;
  if (!is_screen) return sml_status_print(stdout, status, false, 0) && putchar('\n') != EOF && fflush(stdout) == 0;
  FILE *memory = open_memstream(&text, &num_bytes);
  bool is_ok = memory &&
               sml_status_print(memory, status, json_array_size(json_object_get(status, "jobs")) == 1, window().ws_col);
  if (memory) is_ok = fclose(memory) == 0 && is_ok;
  if (is_ok) draw(text);
  free(text);
  return is_ok;
}

/* False: the user wants to go. Draws again what is shown when the window has changed. */
static bool wait_for_user(double seconds, const json_t *shown, bool is_screen) {
  if (!is_screen) return usleep((useconds_t)(seconds * 1e6)) == 0 || !should_end;
  const uint64_t until_ns = sml_clock_ns() + (uint64_t)(seconds * 1e9);
  for (;;) {
    const uint64_t now_ns = sml_clock_ns();
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    if (should_end) return false;
    if (should_pause) pause_screen();
    else if (!has_resized && now_ns >= until_ns) return true;
    if (has_resized) {
      has_resized = 0; /* before: it may again, meanwhile */
      if (shown) (void)show(shown, true);
    }
    const int n = poll(&p, 1, now_ns < until_ns ? (int)((until_ns - now_ns) / 1000000 + 1) : 0);
    if (n > 0 && !take_keys()) return false;
  }
}

/* Until the user goes, or the aggregator does not answer any more. */
static int watch(const struct sml_status_source *source, const struct options *options, bool is_screen, char *error,
                 size_t error_bytes) {
  json_t *before = sml_status_fetch(source, error, error_bytes);
  int result = before ? SML_STATUS_HEALTHY : SML_STATUS_NO_ANSWER;
  double wait_s = 0.3; /* the first table comes soon */
  for (uint64_t n = 0; before && (options->count == 0 || n < options->count); n++) {
    if (!wait_for_user(wait_s, n > 0 ? before : NULL, is_screen)) break;
    wait_s = options->interval_s;
    json_t *status = sml_status_fetch(source, error, error_bytes);
    if (!status) result = SML_STATUS_NO_ANSWER;
    if (!status) break;
    sml_status_add_rates(status, before);
    sort_jobs(status);
    json_decref(before);
    before = status;
    if (!show(status, is_screen)) break;
  }
  json_decref(before);
  return result;
}

int sml_top_run(int argc, char **argv) {
  static const struct sml_option_parser parser = {
      .table = table,
      .arguments_doc = "[HOST:PORT]",
      .arguments_offset = offsetof(struct options, address),
      .max_arguments = 1,
      .one_only = "one HOST:PORT only",
      .doc =
          "An aggregator's jobs, the busiest first, again each second."
          "\vHOST:PORT is what SWITCHML_AGGREGATOR says by default. q ends it, arrows show what is beyond the screen. "
          "On something that is no terminal each table follows the one before."};
  struct options options = {.interval_s = 1};
  struct sml_status_source source;
  char error[512] = "";
  sml_options_parse(&parser, argc, argv, &options);
  int result = SML_STATUS_USAGE;
  if (sml_status_source_open(&source, options.address, error, sizeof error)) {
    const bool is_screen = begin_screen();
    result = watch(&source, &options, is_screen, error, sizeof error);
    if (is_screen) leave_screen();
  }
  if (result != SML_STATUS_HEALTHY) fprintf(stderr, "switchml: top: %s\n", error);
  return result;
}
