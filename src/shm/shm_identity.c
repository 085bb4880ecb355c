/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/siphash.h"
#include "base/fd.h"
#include "shm/shm_segment.h"

/* Abstract sockets belong to a network name space, user numbers to a user name space. */
static const char *const name_spaces[] = {"/proc/self/ns/net", "/proc/self/ns/user"};

static bool add_boot(struct sml_siphash *hash) {
  char boot[64];
  const int fd = sml_fd_raise(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  if (fd < 0) return false;
  const ssize_t num_bytes = read(fd, boot, sizeof boot);
  close(fd);
  if (num_bytes < 36) return false;
  sml_siphash_update(hash, boot, 36);
  return true;
}

static bool add_name_spaces(struct sml_siphash *hash) {
  for (size_t i = 0; i < SML_ARRAY_LEN(name_spaces); i++) {
    struct stat s;
    if (stat(name_spaces[i], &s) != 0) return false;
    const uint64_t which[2] = {(uint64_t)s.st_dev, (uint64_t)s.st_ino};
    sml_siphash_update(hash, which, sizeof which);
  }
  return true;
}

/* A sandbox may forbid any of it. */
static bool has_what_it_takes(void) {
  const int memory = sml_fd_raise(memfd_create("switchml-try", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int peer = sml_fd_raise(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const bool has_all = memory >= 0 && peer >= 0 && sml_fd_allocate_quietly(memory, 1) == 0;
  if (memory >= 0) close(memory);
  if (peer >= 0) close(peer);
  return has_all;
}

uint64_t sml_shm_limit_bytes(void) {
  struct rlimit limit;
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 ? limit.rlim_cur : UINT64_MAX;
}

bool sml_shm_identity(uint8_t *id_out) {
  const uint64_t user = geteuid();
  memset(id_out, 0, 16);
  if (!has_what_it_takes()) return false;
  for (size_t half = 0; half < 2; half++) {
    const struct sml_key key = {.k0 = UINT64_C(0x73776974636d6c48), .k1 = half};
    struct sml_siphash hash;
    sml_siphash_init(&hash, &key);
    if (!add_boot(&hash) || !add_name_spaces(&hash)) {
      memset(id_out, 0, 16);
      return false;
    }
    sml_siphash_update(&hash, &user, sizeof user);
    sml_store_be64(id_out + 8 * half, sml_siphash_final(&hash));
  }
  return true;
}
