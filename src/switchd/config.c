/* SPDX-License-Identifier: Apache-2.0
 * libinih cuts the lines up. It knows neither their numbers nor empty sections, and cuts what is too long off: the
 * reader between it and the file does. */
#include "switchd/config.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

#define MAX_LINES 20000u

struct reader {
  FILE *file;
  struct sml_config *config;
  char *line; /* getline's */
  size_t line_bytes, room;
  uint32_t number;
  const char *problem; /* the first one, of line problem_number */
  uint32_t problem_number;
};

static void note_problem(struct reader *r, const char *problem) {
  if (r->problem) return;
  r->problem = problem;
  r->problem_number = r->number;
}

static void add_line(struct reader *r, const char *section, const char *name, const char *value) {
  struct sml_config *c = r->config;
  if (c->num_lines == r->room) {
    const size_t room = 2 * r->room + 16;
    struct sml_config_line *lines = r->room < MAX_LINES ? realloc(c->lines, room * sizeof *lines) : NULL;
    if (!lines) {
      note_problem(r, r->room < MAX_LINES ? "out of memory" : "too many lines");
      return;
    }
    c->lines = lines;
    r->room = room;
  }
  struct sml_config_line *line = &c->lines[c->num_lines];
  *line = (struct sml_config_line){.section = strdup(section), .number = r->number};
  line->name = name ? strdup(name) : NULL;
  line->value = value ? strdup(value) : NULL;
  c->num_lines++;
  if (!line->section || (name && !line->name) || (value && !line->value)) note_problem(r, "out of memory");
}

static void begin_section(struct reader *r, const char *line) {
  char section[64] = "";
  const size_t num_bytes = strcspn(line + 1, "]");
  if (line[1 + num_bytes] != ']') return; /* libinih says so */
  if (num_bytes >= sizeof section - 16) {
    note_problem(r, "the name of the section is too long");
    return;
  }
  memcpy(section, line + 1, num_bytes);
  add_line(r, section, NULL, NULL);
}

/* libinih's fgets. Lines begin at their first character that is not blank: an indented one goes nothing on. */
static char *next_line(char *text, int room, void *user) {
  struct reader *r = user;
  const ssize_t num_read = getline(&r->line, &r->line_bytes, r->file);
  if (num_read < 0) return NULL;
  r->number++;
  const char *start = r->line + strspn(r->line, " \t");
  if (memchr(r->line, 0, (size_t)num_read)) note_problem(r, "this is no text: it has a byte of 0");
  if (*start == '[') begin_section(r, start);
  if (strlen(start) >= (size_t)room) {
    if (*start != '#' && *start != ';') note_problem(r, "the line is too long");
    start = "\n";
  }
  return strcpy(text, start);
}

static int take_line(void *user, const char *section, const char *name, const char *value) {
  add_line(user, section, name, value);
  return 1;
}

/* A pipe would keep whoever waits for signals waiting for a writer. NULL: error says why. */
static FILE *open_file(const char *path, char *error, size_t error_bytes) {
  struct stat st;
  FILE *file = NULL;
  const int fd = sml_fd_raise(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd >= 0 && fstat(fd, &st) == 0 && !S_ISREG(st.st_mode)) {
    const char *what = S_ISDIR(st.st_mode) ? "a folder" : "no regular file";
    snprintf(error, error_bytes, "cannot read %s: it is %s", path, what);
  } else {
    if (fd >= 0) file = fdopen(fd, "r");
    if (!file) snprintf(error, error_bytes, "cannot read %s: %s", path, strerror(errno));
  }
  if (!file && fd >= 0) close(fd);
  return file;
}

/* False: error says why. */
static bool read_all(struct reader *r, const char *path, char *error, size_t error_bytes) {
  const int bad_line = ini_parse_stream(next_line, r, take_line, r);
  if (ferror(r->file)) {
    snprintf(error, error_bytes, "cannot read %s: %s", path, strerror(errno));
    return false;
  }
  if (bad_line > 0 && (!r->problem || (uint32_t)bad_line < r->problem_number)) {
    r->problem = "neither NAME = VALUE nor [SECTION]";
    r->problem_number = (uint32_t)bad_line;
  }
  if (r->problem) snprintf(error, error_bytes, "%s:%u: %s", path, r->problem_number, r->problem);
  return r->problem == NULL;
}

struct sml_config *sml_config_read(const char *path, char *error, size_t error_bytes) {
  struct reader r = {.file = open_file(path, error, error_bytes), .config = calloc(1, sizeof *r.config)};
  if (r.file && !r.config) snprintf(error, error_bytes, "cannot read %s: out of memory", path);
  if (!r.file || !r.config) {
    if (r.file) fclose(r.file);
    free(r.config);
    return NULL;
  }
  const bool is_read = read_all(&r, path, error, error_bytes);
  fclose(r.file);
  free(r.line);
  if (is_read) return r.config;
  sml_config_free(r.config);
  return NULL;
}

void sml_config_free(struct sml_config *config) {
  if (!config) return;
  for (size_t i = 0; i < config->num_lines; i++) {
    free(config->lines[i].section);
    free(config->lines[i].name);
    free(config->lines[i].value);
  }
  free(config->lines);
  free(config);
}
