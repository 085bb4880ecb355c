/* SPDX-License-Identifier: Apache-2.0 */
#include "aggd/key_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/xattr.h>
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

/* An access control list as Linux hands it out, little-endian: version:32, then tag:16 rights:16 user:32 of each entry.
 * Longer ones are none of ours. */
enum { ACL_VERSION = 2, ACL_ENTRIES = 8, ACL_OWNER = 1, ACL_USER = 2, ACL_MASK = 16 };

/* Whether a list lets nobody but the owner and our user in. The bits of the group are the list's mask then: systemd
 * hands out credentials as root's, with mode 440 and such a list. */
static bool is_ours_by_list(int fd) {
  uint8_t list[4 + 8 * ACL_ENTRIES];
  const ssize_t num_bytes = fgetxattr(fd, "system.posix_acl_access", list, sizeof list);
  if (num_bytes < 4 || list[0] != ACL_VERSION) return false;
  for (const uint8_t *entry = list + 4; entry + 8 <= list + num_bytes; entry += 8) {
    const uint32_t user = entry[4] | (uint32_t)entry[5] << 8 | (uint32_t)entry[6] << 16 | (uint32_t)entry[7] << 24;
    const bool is_ours = entry[0] == ACL_OWNER || entry[0] == ACL_MASK || (entry[0] == ACL_USER && user == geteuid());
    if (!is_ours && entry[2] != 0) return false;
  }
  return true;
}

/* What speaks against the file, before a byte of it is read; NULL: nothing. */
static const char *find_objection(int fd, const struct stat *st) {
  if (!S_ISREG(st->st_mode)) return "it is no regular file";
  if (st->st_uid != geteuid() && st->st_uid != 0)
    return "it is another user's, who may read and change it: run chown on it, and make new keys";
  if ((st->st_mode & S_IRWXO) || ((st->st_mode & S_IRWXG) && !is_ours_by_list(fd)))
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
  const char *objection = find_objection(fd, &st);
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
