/* SPDX-License-Identifier: Apache-2.0
 * This host's interfaces, as far as people want to know of them. */
#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

#include "netio/netio.h"

/* 0: there is no such figure, or a negative one, as of a link that is down. */
static uint32_t read_figure(const char *interface, const char *what) {
  char path[64];
  long value = 0;
  snprintf(path, sizeof path, "/sys/class/net/%.15s/%s", interface, what);
  FILE *file = fopen(path, "re");
  if (file == NULL) return 0;
  const bool is_read = fscanf(file, "%ld", &value) == 1;
  fclose(file);
  return is_read && value > 0 && value < INT32_MAX ? (uint32_t)value : 0;
}

/* A device that stands for hardware, or on one that does. What others (veth, tun) say of their speed is made up. */
static bool is_real(const char *interface) {
  char path[64];
  snprintf(path, sizeof path, "/sys/class/net/%.15s", interface);
  DIR *folder = opendir(path);
  bool is_found = false;
  for (const struct dirent *entry; folder != NULL && !is_found && (entry = readdir(folder)) != NULL;)
    is_found = strcmp(entry->d_name, "device") == 0 || strncmp(entry->d_name, "lower_", 6) == 0;
  if (folder != NULL) closedir(folder);
  return is_found;
}

static bool read_link(const struct ifaddrs *i, struct sml_link *link) {
  if (i->ifa_addr == NULL || (i->ifa_flags & IFF_UP) == 0) return false;
  const int family = i->ifa_addr->sa_family;
  if (family != AF_INET && family != AF_INET6) return false;
  const size_t offset =
      family == AF_INET ? offsetof(struct sockaddr_in, sin_addr) : offsetof(struct sockaddr_in6, sin6_addr);
  memset(link, 0, sizeof *link);
  snprintf(link->name, sizeof link->name, "%s", i->ifa_name);
  if (inet_ntop(family, (const char *)i->ifa_addr + offset, link->address, sizeof link->address) == NULL) return false;
  link->mtu = read_figure(i->ifa_name, "mtu");
  if (is_real(i->ifa_name)) link->mbps = read_figure(i->ifa_name, "speed");
  link->is_loopback = (i->ifa_flags & IFF_LOOPBACK) != 0;
  return true;
}

uint32_t sml_links_list(struct sml_link *links, uint32_t room) {
  struct ifaddrs *all;
  uint32_t num_links = 0;
  if (getifaddrs(&all) != 0) return 0;
  for (const struct ifaddrs *i = all; i != NULL && num_links < room; i = i->ifa_next)
    num_links += read_link(i, &links[num_links]);
  freeifaddrs(all);
  return num_links;
}
