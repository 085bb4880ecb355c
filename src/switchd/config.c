/* SPDX-License-Identifier: Apache-2.0
 * libinih cuts the lines up. It knows neither their numbers nor empty sections, and cuts what is too long off: the
 * reader between it and the file does. */
#include "switchd/config.h"

#include <ctype.h>
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
  bool is_open; /* the line was given to libinih, which has taken nothing of it yet */
  bool is_lost; /* in a section whose name is not known */
  bool is_full;
};

/* One a line. */
static void note_problem(struct reader *r, const char *problem) {
  struct sml_config *c = r->config;
  if (c->num_problems == SML_CONFIG_MAX_PROBLEMS) return;
  if (c->num_problems > 0 && c->problems[c->num_problems - 1].number == r->number) return;
  c->problems[c->num_problems++] = (struct sml_config_problem){problem, r->number};
}

static void add_line(struct reader *r, const char *section, const char *name, const char *value) {
  struct sml_config *c = r->config;
  if (r->is_full) return;
  if (c->num_lines == r->room) {
    const size_t room = 2 * r->room + 16;
    struct sml_config_line *lines = r->room < MAX_LINES ? realloc(c->lines, room * sizeof *lines) : NULL;
    if (!lines) {
      note_problem(r, r->room < MAX_LINES ? "out of memory" : "too many lines");
      r->is_full = true;
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
  if (line->section && (!name || line->name) && (!value || line->value)) return;
  free(line->section), free(line->name), free(line->value);
  c->num_lines--;
  note_problem(r, "out of memory");
  r->is_full = true;
}

static const char no_line[] = "neither NAME = VALUE nor [SECTION]";

/* Its end is before what libinih takes for a comment. */
static void begin_section(struct reader *r, const char *line) {
  char section[64] = "";
  size_t num_bytes = 0;
  r->is_lost = true;
  for (const char *at = line + 1; *at && *at != ']' && !(*at == ';' && num_bytes > 0 && isspace((uint8_t)at[-1])); at++)
    num_bytes++;
  if (line[1 + num_bytes] != ']') {
    note_problem(r, no_line);
    return;
  }
  if (num_bytes >= sizeof section - 16) {
    note_problem(r, "the name of the section is too long");
    return;
  }
  const char *rest = line + 2 + num_bytes;
  rest += strspn(rest, " \t\n\v\f\r");
  if (*rest && *rest != ';' && *rest != '#') {
    note_problem(r, "behind a section's ] goes nothing but a comment");
    return;
  }
  r->is_lost = false;
  memcpy(section, line + 1, num_bytes);
  add_line(r, section, NULL, NULL);
}

static void end_line(struct reader *r) {
  if (r->is_open) note_problem(r, no_line);
  r->is_open = false;
}

/* libinih's fgets. Lines begin at their first character that is not blank: an indented one goes nothing on. */
static char *next_line(char *text, int room, void *user) {
  struct reader *r = user;
  end_line(r);
  const ssize_t num_read = getline(&r->line, &r->line_bytes, r->file);
  if (num_read < 0) return NULL;
  r->number++;
  const char *start = r->line + strspn(r->line, " \t");
  if (r->number == 1 && strncmp(start, "\xef\xbb\xbf", 3) == 0) start += 3; /* as some editors begin files */
  if (memchr(r->line, 0, (size_t)num_read)) note_problem(r, "this is no text: it has a byte of 0");
  if (*start == '[') begin_section(r, start);
  if (strlen(start) >= (size_t)room) {
    if (*start != '#' && *start != ';') note_problem(r, "the line is too long");
    start = "\n";
  }
  r->is_open = *start != '[' && *start != '#' && *start != ';' && start[strspn(start, " \t\n\v\f\r")] != 0;
  return strcpy(text, start);
}

static int take_line(void *user, const char *section, const char *name, const char *value) {
  struct reader *r = user;
  r->is_open = false;
  if (!r->is_lost) add_line(r, section, name, value);
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
  end_line(r);
  if (ferror(r->file)) {
    snprintf(error, error_bytes, "cannot read %s: %s", path, strerror(errno));
    return false;
  }
  if (bad_line != 0 && r->config->num_problems == 0) {
    r->number = bad_line > 0 ? (uint32_t)bad_line : r->number;
    note_problem(r, bad_line > 0 ? no_line : "out of memory");
  }
  return true;
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
