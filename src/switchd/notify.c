/* SPDX-License-Identifier: Apache-2.0 */
#include "switchd/notify.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/base.h"
#include "base/fd.h"

bool sml_notify(const char *text) {
  const char *path = getenv("NOTIFY_SOCKET");
  if (path == NULL || path[0] == 0) return true;
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  const size_t path_bytes = strlen(path);
  if ((path[0] != '/' && path[0] != '@') || path_bytes >= sizeof address.sun_path) return false;
  memcpy(address.sun_path, path, path_bytes);
  if (path[0] == '@') address.sun_path[0] = 0;
  const int fd = sml_fd_raise(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd < 0) return false;
  /* A path ends with its 0; an abstract name is as long as it is said to be. */
  const socklen_t address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + path_bytes + (path[0] == '/'));
  const bool is_sent =
      sendto(fd, text, strlen(text), MSG_NOSIGNAL, (struct sockaddr *)&address, address_bytes) == (ssize_t)strlen(text);
  close(fd);
  return is_sent;
}

static uint64_t number_of(const char *variable) {
  const char *text = getenv(variable);
  char *end = NULL;
  const uint64_t value = text != NULL && text[0] >= '0' && text[0] <= '9' ? strtoull(text, &end, 10) : 0;
  return end != NULL && *end == 0 ? value : 0;
}

uint64_t sml_notify_watchdog_ns(void) {
  const uint64_t us = sml_min_u64(number_of("WATCHDOG_USEC"), UINT64_C(3600) * 1000 * 1000);
  const bool is_for_us = getenv("WATCHDOG_PID") == NULL || number_of("WATCHDOG_PID") == (uint64_t)getpid();
  return is_for_us ? us * 1000 / 3 : 0;
}
