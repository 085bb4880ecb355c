/* SPDX-License-Identifier: Apache-2.0 */
#include "aggd/key_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

/* False: errno says why. A file that grows meanwhile is cut at the room. */
static bool read_all(int fd, char *text, size_t room_bytes, size_t *num_bytes_out) {
  *num_bytes_out = 0;
  while (*num_bytes_out < room_bytes) {
    ssize_t n = read(fd, text + *num_bytes_out, room_bytes - *num_bytes_out);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    if (n == 0) break;
    *num_bytes_out += (size_t)n;
  }
  return true;
}

/* What speaks against the file, before a byte of it is read; NULL: nothing. */
static const char *find_objection(const struct stat *st) {
  if (!S_ISREG(st->st_mode)) return "it is no regular file";
  if (st->st_uid != geteuid() && st->st_uid != 0)
    return "it is another user's, who may read and change it: run chown on it, and make new keys";
  if (st->st_mode & (S_IRWXG | S_IRWXO))
    return "others than its owner may read or write it: run chmod 600 on it, and make new keys if somebody could";
  return st->st_size > SML_KEY_FILE_MAX_BYTES ? "it has more than 1 MiB" : NULL;
}

static struct sml_key_entry *parse(const char *path, int fd, char *text, uint32_t *num_keys_out, char *error,
                                   size_t error_bytes) {
  char reason[160];
  size_t num_bytes, num_keys = 0;
  struct sml_key_entry *keys = calloc(SML_KEY_FILE_MAX_KEYS, sizeof *keys);
  if (!keys || !text) {
    snprintf(error, error_bytes, "cannot read key file %s: out of memory", path);
  } else if (!read_all(fd, text, SML_KEY_FILE_MAX_BYTES, &num_bytes)) {
    snprintf(error, error_bytes, "cannot read key file %s: %s", path, strerror(errno));
  } else if (!sml_key_file_parse(text, num_bytes, keys, SML_KEY_FILE_MAX_KEYS, &num_keys, reason, sizeof reason)) {
    snprintf(error, error_bytes, "key file %s, %s", path, reason);
  } else {
    *num_keys_out = (uint32_t)num_keys;
    return keys;
  }
  if (keys) sml_keys_free(keys, SML_KEY_FILE_MAX_KEYS);
  return NULL;
}

struct sml_key_entry *sml_keys_read(const char *path, uint32_t *num_keys_out, char *error, size_t error_bytes) {
  struct stat st;
  int fd = sml_fd_raise(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)); /* a fifo must not hold us up */
  if (fd < 0 || fstat(fd, &st) != 0) {
    snprintf(error, error_bytes, "cannot read key file %s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return NULL;
  }
  struct sml_key_entry *keys = NULL;
  const char *objection = find_objection(&st);
  if (objection) {
    snprintf(error, error_bytes, "key file %s is not used: %s", path, objection);
  } else {
    char *text = malloc(SML_KEY_FILE_MAX_BYTES);
    keys = parse(path, fd, text, num_keys_out, error, error_bytes);
    if (text) explicit_bzero(text, SML_KEY_FILE_MAX_BYTES);
    free(text);
  }
  close(fd);
  return keys;
}

void sml_keys_free(struct sml_key_entry *keys, uint32_t num_keys) {
  explicit_bzero(keys, num_keys * sizeof *keys);
  free(keys);
}
