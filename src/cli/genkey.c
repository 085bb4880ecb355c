/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/genkey.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "aggd/key_reader.h"
#include "base/fd.h"
#include "base/options.h"

#define ERROR_BYTES 4608u /* a path and a sentence */
#define LINE_BYTES (SML_KEY_NAME_BYTES + 2u * sizeof(struct sml_key) + 8u)

enum { FAILED = 1 };

struct options {
  const char *name;
  const char *file; /* NULL: standard output */
};

/* A line of a key file, all of it new; false: the system has no random bytes, or the name is none. */
static bool make_line(const char *name, char line[LINE_BYTES], char *error, size_t error_bytes) {
  uint8_t bytes[sizeof(struct sml_key)];
  struct sml_key_entry entry;
  size_t num_keys, used;
  if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) {
    snprintf(error, error_bytes, "no random bytes: %s", strerror(errno));
    return false;
  }
  used = (size_t)snprintf(line, LINE_BYTES, "%s ", name);
  for (size_t i = 0; i < sizeof bytes && used < LINE_BYTES; i++)
    used += (size_t)snprintf(line + used, LINE_BYTES - used, i + 1 < sizeof bytes ? "%02x" : "%02x\n", bytes[i]);
  const bool is_good = used < LINE_BYTES && sml_key_file_parse(line, used, &entry, 1, &num_keys, error, error_bytes);
  if (!is_good) snprintf(error, error_bytes, "'%.64s' is no name: letters, digits and . _ : / -, at most 31", name);
  explicit_bzero(bytes, sizeof bytes);
  explicit_bzero(&entry, sizeof entry);
  return is_good;
}

/* Opens the file at its end, a new one for its owner only; -1: error says why. */
static int open_file(const struct options *o, bool *is_new, char *error, size_t error_bytes) {
  int fd = open(o->file, O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  *is_new = fd >= 0;
  if (fd >= 0) return fd;
  uint32_t num_keys;
  struct sml_key_entry *keys = errno == EEXIST ? sml_keys_read(o->file, &num_keys, error, error_bytes) : NULL;
  if (errno != EEXIST && !keys) snprintf(error, error_bytes, "cannot write %s: %s", o->file, strerror(errno));
  if (!keys) return -1;
  const bool is_taken = sml_key_find(keys, num_keys, o->name) != NULL;
  sml_keys_free(keys, num_keys);
  if (is_taken) {
    snprintf(error, error_bytes, "%s has a key '%s' already: take its line out first", o->file, o->name);
    return -1;
  }
  fd = open(o->file, O_RDWR | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0)
    snprintf(error, error_bytes, "cannot write %s: %s", o->file,
             errno == ELOOP ? "it is a symbolic link: name the file itself" : strerror(errno));
  return fd;
}

/* After a last line without an end, which becomes two, the key has a line of its own. If there is no room for all of
 * it, nothing of it stays: the daemon takes no file that has half a key. */
static bool append(int fd, const char *line) {
  char text[LINE_BYTES + 1], last = '\n';
  const off_t end = lseek(fd, 0, SEEK_END);
  if (end < 0 || (end > 0 && pread(fd, &last, 1, end - 1) != 1)) return false;
  const int num_bytes = snprintf(text, sizeof text, "%s%s", last == '\n' ? "" : "\n", line);
  ssize_t done = 0, num_written = 0;
  for (; done < num_bytes && num_written >= 0; done += num_written)
    num_written = sml_fd_write_quietly(fd, text + done, (size_t)(num_bytes - done));
  const bool is_written = num_written >= 0 && fsync(fd) == 0;
  const int why = errno;
  explicit_bzero(text, sizeof text);
  if (is_written) return true;
  if (ftruncate(fd, end) == 0) errno = why;
  return false;
}

static bool add_to_file(const struct options *o, const char *line, char *error, size_t error_bytes) {
  bool is_new;
  const int fd = open_file(o, &is_new, error, error_bytes);
  if (fd < 0) return false;
  const bool is_written = append(fd, line);
  if (!is_written) snprintf(error, error_bytes, "cannot write %s: %s", o->file, strerror(errno));
  if (!is_written && is_new) (void)unlink(o->file);
  close(fd);
  return is_written;
}

int sml_genkey_run(int argc, char **argv) {
  static const struct sml_option no_options[] = {{0}};
  static const struct sml_option_parser parser = {
      .table = no_options,
      .arguments_doc = "[NAME [FILE]]",
      .arguments_offset = offsetof(struct options, name),
      .max_arguments = 2,
      .one_only = "one NAME and one FILE only",
      .doc =
          "Make a key: a line for a key file, of 128 random bits, under NAME (default: default).\v"
          "With FILE it is added to that file, which is made for its owner alone if it is not there, and nothing is "
          "printed. The aggregator has the file as --key-file and reads it again at SIGHUP; the ranks have a copy "
          "as SWITCHML_KEY_FILE. Whoever has it can join jobs of that key."};
  struct options o = {.name = "default"};
  char line[LINE_BYTES], error[ERROR_BYTES];
  sml_options_parse(&parser, argc, argv, &o);
  bool is_done = make_line(o.name, line, error, sizeof error);
  if (is_done && o.file) is_done = add_to_file(&o, line, error, sizeof error);
  else if (is_done && (fputs(line, stdout) == EOF || fflush(stdout) != 0))
    is_done = snprintf(error, sizeof error, "cannot write the key: %s", strerror(errno)) < 0;
  explicit_bzero(line, sizeof line);
  if (!is_done) fprintf(stderr, "switchml genkey: %s\n", error);
  return is_done ? 0 : FAILED;
}
