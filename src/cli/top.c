/* SPDX-License-Identifier: Apache-2.0 */
#include <argp.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "cli/status.h"

struct options {
  const char *address;
  double interval_s;
  unsigned long count; /* 0: until q */
};

static const struct argp_option option_table[] = {
    {"interval", 'i', "S", 0, "Seconds between two looks, 0.3 to 3600. Default 1", 0},
    {"count", 'c', "N", 0, "End after so many tables. Default: go on", 0},
    {0},
};

static struct termios saved_terminal;
static volatile sig_atomic_t should_end;

static void end_on_signal(int number) {
  (void)number;
  should_end = 1;
}

static void wake_on_signal(int number) {
  (void)number; /* the window's size: poll ends, and the next table fits */
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
  struct options *options = state->input;
  char *end;
  switch (key) {
    case 'i':
      options->interval_s = strtod(text, &end);
      if (*end || !(options->interval_s >= 0.3 && options->interval_s <= 3600))
        argp_error(state, "--interval: '%s' is not a number of seconds from 0.3 to 3600", text);
      return 0;
    case 'c':
      options->count = strtoul(text, &end, 10);
      if (*end || text[0] < '0' || text[0] > '9' || options->count == 0)
        argp_error(state, "--count: '%s' is not a number from 1 on", text);
      return 0;
    case ARGP_KEY_ARG:
      if (options->address) argp_error(state, "one HOST:PORT only");
      options->address = text;
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

/* --- the terminal --- */

static bool begin_screen(void) {
  if (!isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO) || tcgetattr(STDIN_FILENO, &saved_terminal) != 0)
    return false;
  struct termios raw = saved_terminal;
  raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
  raw.c_cc[VMIN] = 0;
  raw.c_cc[VTIME] = 0;
  const struct sigaction ends = {.sa_handler = end_on_signal}, wakes = {.sa_handler = wake_on_signal};
  sigaction(SIGINT, &ends, NULL);
  sigaction(SIGTERM, &ends, NULL);
  sigaction(SIGWINCH, &wakes, NULL);
  if (tcsetattr(STDIN_FILENO, TCSANOW, &raw) != 0) return false;
  fputs("\033[?1049h\033[?25l", stdout); /* the other screen, no cursor */
  return true;
}

static void end_screen(void) {
  fputs("\033[?25h\033[?1049l", stdout);
  fflush(stdout);
  tcsetattr(STDIN_FILENO, TCSANOW, &saved_terminal);
}

/* As many lines and columns as fit; the rest of the screen is cleared. */
static void draw(const char *text) {
  struct winsize size = {0};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0)
    size = (struct winsize){.ws_row = 24, .ws_col = 80};
  fputs("\033[H", stdout);
  for (uint32_t row = 0; row + 1u < size.ws_row; row++) {
    const size_t num_bytes = strcspn(text, "\n");
    printf("%.*s\033[K\n", (int)sml_min_u64(num_bytes, size.ws_col), text);
    text += num_bytes + (text[num_bytes] != 0);
  }
  fputs("q: end\033[K\033[J", stdout);
  fflush(stdout);
}

/* False: the user wants to go. Returns early, to draw again, when the window changes. */
static bool wait_for_user(double seconds, bool is_screen) {
  if (!is_screen) return usleep((useconds_t)(seconds * 1e6)) == 0 || !should_end;
  struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
  char key = 0;
  const int n = poll(&p, 1, (int)(seconds * 1e3));
  if (n > 0 && (read(STDIN_FILENO, &key, 1) <= 0 || key == 'q' || key == 'Q' || key == 3)) return false;
  return !should_end;
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

static bool show(json_t *status, bool is_screen) {
  char *text = NULL;
  size_t num_bytes;
  if (!is_screen)
    return sml_status_print(stdout, status, false) && putchar('\n') != EOF && fflush(stdout) == 0;
  FILE *memory = open_memstream(&text, &num_bytes);
  const bool is_ok =
      memory && sml_status_print(memory, status, json_array_size(json_object_get(status, "jobs")) == 1);
  if (memory) fclose(memory);
  if (is_ok) draw(text);
  free(text);
  return is_ok;
}

/* Until the user goes, or the aggregator does not answer any more. */
static int watch(const struct sml_status_source *source, const struct options *options, bool is_screen,
                 char *error, size_t error_bytes) {
  json_t *before = sml_status_fetch(source, error, error_bytes);
  int result = before ? SML_STATUS_HEALTHY : SML_STATUS_NO_ANSWER;
  double wait_s = 0.3; /* the first table comes soon */
  for (unsigned long n = 0; before && (options->count == 0 || n < options->count); n++) {
    if (!wait_for_user(wait_s, is_screen)) break;
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
  static const struct argp parser = {.options = option_table,
                                     .parser = parse_option,
                                     .args_doc = "[HOST:PORT]",
                                     .doc =
                                         "An aggregator's jobs, the busiest first, again each second."
                                         "\vHOST:PORT is what SWITCHML_AGGREGATOR says by default. q ends "
                                         "it. On something that is no terminal each "
                                         "table follows the one before."};
  struct options options = {.interval_s = 1};
  struct sml_status_source source;
  char error[512] = "";
  argp_err_exit_status = SML_STATUS_USAGE;
  if (argp_parse(&parser, argc, argv, 0, NULL, &options) != 0) return SML_STATUS_USAGE;
  int result = SML_STATUS_NO_ANSWER;
  if (sml_status_source_open(&source, options.address, error, sizeof error)) {
    const bool is_screen = begin_screen();
    result = watch(&source, &options, is_screen, error, sizeof error);
    if (is_screen) end_screen();
  }
  if (result == SML_STATUS_NO_ANSWER) fprintf(stderr, "switchml: top: %s\n", error);
  return result;
}
