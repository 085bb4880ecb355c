/* SPDX-License-Identifier: Apache-2.0
 * Text to addresses and back. The only file that asks the resolver. */
#include "netio/addr.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"

#define MAX_HOST_BYTES 256u /* a DNS name has at most 253, an IPv6 address with a zone far less */

_Static_assert(sizeof(struct sockaddr_in6) <= sizeof(((struct sml_addr *)NULL)->bytes), "room for IPv6");

struct host_and_port {
  char host[MAX_HOST_BYTES];
  const char *port; /* NULL: none was given */
  bool is_ipv6;     /* the notation allows only a numeric IPv6 address */
};

__attribute__((format(printf, 3, 4))) static bool fail(char *error_out, size_t error_bytes, const char *format, ...) {
  va_list args;
  va_start(args, format);
  (void)vsnprintf(error_out, error_bytes, format, args);
  va_end(args);
  return false;
}

/* "[v6]", "[v6]:port", "host", "host:port", or more than one colon: a bare IPv6 address. */
static bool split_text(const char *text, struct host_and_port *out, char *error_out, size_t error_bytes) {
  const char *start = text, *end = NULL;
  const char *colon = strchr(text, ':');
  *out = (struct host_and_port){.is_ipv6 = false};
  if (text[0] == '[') {
    start = text + 1;
    end = strchr(start, ']');
    if (end == NULL || (end[1] != '\0' && end[1] != ':'))
      return fail(error_out, error_bytes, "'%.64s': an IPv6 address with a port is written [address]:port", text);
    if (end[1] == ':') out->port = end + 2;
    out->is_ipv6 = true;
  } else if (colon != NULL && strchr(colon + 1, ':') != NULL) {
    end = text + strlen(text);
    out->is_ipv6 = true;
  } else {
    end = colon != NULL ? colon : text + strlen(text);
    if (colon != NULL) out->port = colon + 1;
  }
  const size_t host_bytes = (size_t)(end - start);
  if (host_bytes == 0)
    return fail(error_out, error_bytes, "'%.64s' has no host; for all interfaces write 0.0.0.0 or [::]", text);
  if (host_bytes >= MAX_HOST_BYTES) return fail(error_out, error_bytes, "the host name is too long");
  memcpy(out->host, start, host_bytes);
  out->host[host_bytes] = '\0';
  /* The resolver would take 4000 for the address 0.0.15.160. */
  if (out->host[strspn(out->host, "0123456789")] == '\0')
    return fail(error_out, error_bytes, "'%.64s' is a number, not a host; write host:port", out->host);
  return true;
}

static bool parse_port(const char *text, uint16_t *port_out) {
  uint32_t port = 0;
  if (text[0] == '\0') return false;
  for (const char *c = text; *c != '\0'; c++) {
    if (*c < '0' || *c > '9') return false;
    port = port * 10u + (uint32_t)(*c - '0');
    if (port > UINT16_MAX) return false;
  }
  *port_out = (uint16_t)port;
  return true;
}

/* IPv4 where a name has both: a daemon on 0.0.0.0 is not reached over IPv6, one on [::] is reached over
 * IPv4. */
static const struct addrinfo *choose_result(const struct addrinfo *results) {
  const struct addrinfo *ipv6 = NULL;
  for (const struct addrinfo *r = results; r != NULL; r = r->ai_next) {
    if (r->ai_family == AF_INET) return r;
    if (r->ai_family == AF_INET6 && ipv6 == NULL) ipv6 = r;
  }
  return ipv6;
}

static bool resolve_host(struct host_and_port *hp, bool looks_up, struct sml_addr *addr_out, char *error_out,
                         size_t error_bytes) {
  const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM,
                                 .ai_family = hp->is_ipv6 ? AF_INET6 : AF_UNSPEC,
                                 .ai_flags = hp->is_ipv6 || !looks_up ? AI_NUMERICHOST : 0};
  struct addrinfo *results = NULL;
  if (hp->is_ipv6 && !looks_up) hp->host[strcspn(hp->host, "%")] = '\0';
  const int rc = getaddrinfo(hp->host, NULL, &hints, &results);
  if (rc == EAI_NONAME && !hp->is_ipv6 && !looks_up) return true;
  if (rc != 0 && hp->is_ipv6) return fail(error_out, error_bytes, "'%.64s' is not an IPv6 address", hp->host);
  if (rc != 0)
    return fail(error_out, error_bytes, "cannot resolve '%.64s': %s; check the name, or give the address", hp->host,
                gai_strerror(rc));
  const struct addrinfo *found = choose_result(results);
  if (found != NULL) {
    memcpy(addr_out->bytes, found->ai_addr, found->ai_addrlen);
    addr_out->num_bytes = (uint8_t)found->ai_addrlen;
  }
  freeaddrinfo(results);
  if (found == NULL) return fail(error_out, error_bytes, "'%.64s' has no IPv4 or IPv6 address", hp->host);
  return true;
}

bool sml_addr_read(const char *text, uint16_t default_port, bool looks_up, struct sml_addr *addr_out, char *error_out,
                   size_t error_bytes) {
  struct host_and_port hp;
  uint16_t port = default_port;
  *addr_out = (struct sml_addr){.num_bytes = 0};
  if (text == NULL || text[0] == '\0') return fail(error_out, error_bytes, "the address is empty; write host:port");
  if (!split_text(text, &hp, error_out, error_bytes)) return false;
  if (hp.port == NULL && default_port == 0)
    return fail(error_out, error_bytes, "'%.64s' has no port; write %s", text,
                hp.is_ipv6 ? "[address]:port" : "host:port");
  if (hp.port != NULL && !parse_port(hp.port, &port))
    return fail(error_out, error_bytes, "'%.64s': the port is not a number from 0 to 65535", text);
  if (!resolve_host(&hp, looks_up, addr_out, error_out, error_bytes)) return false;
  sml_addr_set_port(addr_out, port);
  return true;
}

/* Nothing can be sent to, or bound at, an address that each link has. */
static bool has_scope(const char *text, bool looks_up, struct sml_addr *addr, char *error_out, size_t error_bytes) {
  struct sockaddr_in6 v6;
  char host[INET6_ADDRSTRLEN];
  memcpy(&v6, addr->bytes, sizeof v6);
  if (sml_addr_family(addr) != AF_INET6 || !IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr)) return true;
  if (looks_up ? v6.sin6_scope_id != 0 : strchr(text, '%') != NULL) return true;
  (void)inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof host);
  (void)fail(error_out, error_bytes, "'%.64s' is an address that each link has: add its interface, as in [%s%%eth0]:%u",
             text, host, sml_addr_port(addr));
  *addr = (struct sml_addr){.num_bytes = 0};
  return false;
}

bool sml_addr_parse(const char *text, uint16_t default_port, struct sml_addr *addr_out, char *error_out,
                    size_t error_bytes) {
  return sml_addr_read(text, default_port, true, addr_out, error_out, error_bytes) &&
         has_scope(text, true, addr_out, error_out, error_bytes);
}

bool sml_addr_check(const char *text, uint16_t default_port, struct sml_addr *addr_out, char *error_out,
                    size_t error_bytes) {
  return sml_addr_read(text, default_port, false, addr_out, error_out, error_bytes) &&
         has_scope(text, false, addr_out, error_out, error_bytes);
}

void sml_addr_format(const struct sml_addr *addr, char *text, size_t text_bytes) {
  const uint32_t port = sml_addr_port(addr);
  char host[INET6_ADDRSTRLEN] = "";
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
  switch (sml_addr_family(addr)) {
    case AF_INET:
      memcpy(&v4, addr->bytes, sizeof v4);
      (void)inet_ntop(AF_INET, &v4.sin_addr, host, sizeof host);
      (void)snprintf(text, text_bytes, "%s:%u", host, port);
      break;
    case AF_INET6:
      memcpy(&v6, addr->bytes, sizeof v6);
      (void)inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof host);
      if (v6.sin6_scope_id != 0) (void)snprintf(text, text_bytes, "[%s%%%u]:%u", host, v6.sin6_scope_id, port);
      else if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr))
        (void)snprintf(text, text_bytes, "%s:%u", host + strlen("::ffff:"), port);
      else (void)snprintf(text, text_bytes, "[%s]:%u", host, port);
      break;
    case SML_ADDR_FAMILY_MEM: (void)snprintf(text, text_bytes, "mem:%u", port); break;
    default: (void)snprintf(text, text_bytes, "%s", addr->num_bytes == 0 ? "none" : "unknown"); break;
  }
}

static bool has_port(const struct sml_addr *addr) {
  const uint16_t family = sml_addr_family(addr);
  return family == AF_INET || family == AF_INET6 || family == SML_ADDR_FAMILY_MEM;
}

uint16_t sml_addr_port(const struct sml_addr *addr) {
  return has_port(addr) ? sml_load_be16(addr->bytes + 2) : 0;
}

void sml_addr_set_port(struct sml_addr *addr, uint16_t port) {
  if (has_port(addr)) sml_store_be16(addr->bytes + 2, port);
}

uint64_t sml_addr_host(const struct sml_addr *addr) {
  static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
  struct sockaddr_in v4 = {0};
  struct sockaddr_in6 v6 = {0};
  const uint16_t family = sml_addr_family(addr);
  if (family == AF_INET) {
    memcpy(&v4, addr->bytes, sizeof v4);
  } else if (family == AF_INET6) {
    memcpy(&v6, addr->bytes, sizeof v6);
    if (memcmp(&v6.sin6_addr, mapped, sizeof mapped) != 0) return sml_load_be64(v6.sin6_addr.s6_addr); /* ::1: 0 */
    memcpy(&v4.sin_addr, v6.sin6_addr.s6_addr + sizeof mapped, sizeof v4.sin_addr);
  } else return family == SML_ADDR_FAMILY_MEM ? UINT64_C(0xfffe) << 32 | sml_addr_port(addr) : 0;
  const uint32_t host = ntohl(v4.sin_addr.s_addr);
  return host >> 24 == IN_LOOPBACKNET ? 0 : UINT64_C(0xffff) << 32 | host; /* no IPv6 host begins like this */
}

bool sml_addr_find_local(const struct sml_addr *peer, struct sml_addr *local_out) {
  struct sml_addr local = {.num_bytes = peer->num_bytes};
  socklen_t local_bytes = sizeof local.bytes;
  const int fd = sml_fd_raise(socket(sml_addr_family(peer), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (fd < 0) return false;
  const bool is_known = connect(fd, (const struct sockaddr *)(const void *)peer->bytes, peer->num_bytes) == 0 &&
                        getsockname(fd, (struct sockaddr *)(void *)local.bytes, &local_bytes) == 0;
  (void)close(fd);
  if (is_known) *local_out = local;
  return is_known;
}
