/* SPDX-License-Identifier: Apache-2.0 */
#include "switchd/http_host.h"

#include <arpa/inet.h>
#include <strings.h>

#define MAX_NAME_BYTES 253u /* of the DNS */

static bool is_port(const char *text) {
  return text[0] == 0 || (text[0] == ':' && strspn(text + 1, "0123456789") == strlen(text + 1));
}

static bool is_address(int family, const char *text, size_t num_bytes) {
  char copy[INET6_ADDRSTRLEN];
  struct in6_addr addr;
  if (num_bytes >= sizeof copy) return false;
  memcpy(copy, text, num_bytes);
  copy[num_bytes] = 0;
  return inet_pton(family, copy, &addr) == 1;
}

static bool is_equal(const char *name, size_t name_bytes, const char *host, size_t host_bytes) {
  return name_bytes == host_bytes && strncasecmp(name, host, host_bytes) == 0;
}

static bool is_listed(const char *names, const char *host, size_t host_bytes) {
  while (names != NULL && names[0] != 0) {
    const size_t name_bytes = strcspn(names, ",");
    if (is_equal(names, name_bytes, host, host_bytes)) return true;
    names += name_bytes + (names[name_bytes] == ',');
  }
  return false;
}

bool sml_http_host_is_ours(const char *host, const char *names) {
  if (host[0] == '[') {
    const size_t num_bytes = strcspn(host + 1, "]");
    return host[1 + num_bytes] == ']' && is_address(AF_INET6, host + 1, num_bytes) && is_port(host + num_bytes + 2);
  }
  size_t num_bytes = strcspn(host, ":");
  if (num_bytes == 0 || !is_port(host + num_bytes)) return false;
  if (is_address(AF_INET, host, num_bytes)) return true;
  if (host[num_bytes - 1] == '.') num_bytes--; /* the same name, spelled out */
  return num_bytes > 0 && (is_equal("localhost", 9, host, num_bytes) || is_listed(names, host, num_bytes));
}

bool sml_http_host_names_are_valid(const char *names) {
  static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_";
  do {
    const size_t name_bytes = strcspn(names, ",");
    if (name_bytes == 0 || name_bytes > MAX_NAME_BYTES || strspn(names, letters) < name_bytes) return false;
    if (names[0] == '.' || names[name_bytes - 1] == '.') return false;
    names += name_bytes;
  } while (*names++ == ',');
  return true;
}
