/* SPDX-License-Identifier: Apache-2.0 */
#include "dataplane/routes.h"

#include <inttypes.h>
#include <stdio.h>

#define NONE SML_SWITCH_NONE
#define SILENCE_NS (900 * SML_NS_PER_MS) /* hosts repeat a question that was lost after a second */
#define STAYS_NS (300 * SML_NS_PER_S)    /* then a host has to be heard again, within the same time */
#define SHUT_NS (300 * SML_NS_PER_S)
#define HOSTS_PER_PORT 256u /* so that none takes all the room */
#define GROUP_BIT (UINT64_C(1) << 40)

static struct sml_switch_entry l2_entry(const struct sml_switch_route *r) {
  return (struct sml_switch_entry){"l2", "forward", 1, 1, {{"dst", r->mac, 48, 0}}, {{"port", r->port, 16, 0}}};
}

static struct sml_switch_entry host_entry(const struct sml_switch_route *r) {
  return (struct sml_switch_entry){
      "host", "is_here", 2, 0, {{"src", r->mac, 48, 0}, {"ingress", r->port, 16, 0}}, {{NULL, 0, 0, 0}}};
}

static bool is_free(const struct sml_switch_route *r) {
  return r->num_users == 0 && r->heard_ns == 0;
}

struct sml_switch_route *sml_routes_find(struct sml_switch_jobs *jobs, uint64_t mac) {
  struct sml_switch_route *unused = NULL;
  for (uint32_t i = 0; i < jobs->num_routes; i++) {
    struct sml_switch_route *r = &jobs->routes[i];
    if (!is_free(r) && r->mac == mac) return r;
    if (is_free(r)) unused = r;
  }
  if (unused == NULL && jobs->num_routes < SML_SWITCH_MAX_ROUTES) unused = &jobs->routes[jobs->num_routes++];
  if (unused != NULL) *unused = (struct sml_switch_route){.mac = mac, .handle = NONE, .host_handle = NONE};
  return unused;
}

static void put_entry(struct sml_switch_jobs *jobs, const struct sml_switch_entry *entry, int64_t *handle) {
  if (*handle != NONE || jobs->driver->add_entry(jobs->user, entry, handle)) return;
  *handle = NONE;
  jobs->is_unsure = true;
}

static void remove_entry(struct sml_switch_jobs *jobs, const struct sml_switch_entry *entry, int64_t *handle) {
  if (*handle != NONE) jobs->driver->delete_entry(jobs->user, entry, *handle);
  *handle = NONE;
}

static void trust(struct sml_switch_jobs *jobs, struct sml_switch_route *r) {
  const struct sml_switch_entry target = l2_entry(r), source = host_entry(r);
  put_entry(jobs, &target, &r->handle);
  if (jobs->driver->tells_hosts) put_entry(jobs, &source, &r->host_handle);
}

static void doubt(struct sml_switch_jobs *jobs, struct sml_switch_route *r) {
  const struct sml_switch_entry entry = host_entry(r);
  remove_entry(jobs, &entry, &r->host_handle);
}

static void remove_route(struct sml_switch_jobs *jobs, struct sml_switch_route *r) {
  const struct sml_switch_entry entry = l2_entry(r);
  doubt(jobs, r);
  remove_entry(jobs, &entry, &r->handle);
}

void sml_routes_set(struct sml_switch_jobs *jobs, struct sml_switch_route *r, uint16_t port) {
  remove_route(jobs, r);
  r->port = port;
  r->claimed_ns = 0;
  trust(jobs, r);
}

void sml_routes_release(struct sml_switch_jobs *jobs, struct sml_switch_route *r) {
  if (jobs->driver->tells_hosts) r->heard_ns = sml_clock_ns(); /* it is learned now */
  else remove_route(jobs, r);
}

void sml_routes_forget(struct sml_switch_jobs *jobs) {
  jobs->num_routes = 0;
  memset(jobs->shut_until_ns, 0, sizeof jobs->shut_until_ns);
}

/* ---- what the switch tells ---- */

/* Who was not heard for long has to speak again, and who does not is forgotten. */
static void expire(struct sml_switch_jobs *jobs, uint64_t now_ns) {
  for (uint32_t i = 0; i < jobs->num_routes; i++) {
    struct sml_switch_route *r = &jobs->routes[i];
    if (r->num_users > 0 || r->heard_ns == 0 || now_ns - r->heard_ns < STAYS_NS) continue;
    doubt(jobs, r);
    if (now_ns - r->heard_ns < 2 * STAYS_NS) continue;
    remove_route(jobs, r);
    r->heard_ns = 0;
  }
  for (uint32_t port = 0; port < SML_SWITCH_MAX_PORTS; port++) {
    if (jobs->shut_until_ns[port] == 0 || now_ns < jobs->shut_until_ns[port]) continue;
    jobs->shut_until_ns[port] = 0;
    jobs->driver->flood(jobs->user);
  }
}

static void forget_hosts_at(struct sml_switch_jobs *jobs, uint16_t port) {
  for (uint32_t i = 0; i < jobs->num_routes; i++) {
    struct sml_switch_route *r = &jobs->routes[i];
    if (is_free(r) || r->num_users > 0 || r->port != port) continue;
    remove_route(jobs, r);
    r->heard_ns = 0;
  }
}

static void shut(struct sml_switch_jobs *jobs, const struct sml_switch_route *r, uint16_t port, uint64_t now_ns,
                 char *why, size_t why_bytes) {
  bool is_needed = false;
  for (uint32_t i = 0; i < jobs->num_routes; i++)
    is_needed = is_needed || (jobs->routes[i].num_users > 0 && jobs->routes[i].port == port);
  snprintf(why, why_bytes,
           "%012" PRIx64
           " is at port %u of the switch and its frames come by port %u, too: two links lead to one "
           "network (attach one of them), or somebody there uses its address; port %u %s",
           r->mac, r->port, port, port,
           is_needed ? "has ranks, so it stays open" : "gets no floods for 5 minutes, and nobody new is learned there");
  if (is_needed) return;
  jobs->shut_until_ns[port] = now_ns + SHUT_NS;
  jobs->driver->flood(jobs->user);
  forget_hosts_at(jobs, port);
}

static void learn(struct sml_switch_jobs *jobs, struct sml_switch_route *r, uint16_t port, uint64_t now_ns) {
  uint32_t num_there = 0;
  for (uint32_t i = 0; i < jobs->num_routes; i++)
    num_there += jobs->routes[i].heard_ns != 0 && jobs->routes[i].port == port ? 1 : 0;
  if (num_there >= HOSTS_PER_PORT) return;
  r->heard_ns = now_ns;
  sml_routes_set(jobs, r, port);
}

void sml_routes_hear(struct sml_switch_jobs *jobs, uint64_t mac, uint16_t port, uint64_t now_ns, char *why,
                     size_t why_bytes) {
  why[0] = 0;
  if ((mac & GROUP_BIT) != 0 || mac == 0 || port >= SML_SWITCH_MAX_PORTS) return;
  expire(jobs, now_ns);
  struct sml_switch_route *r = jobs->shut_until_ns[port] == 0 ? sml_routes_find(jobs, mac) : NULL;
  if (r == NULL) return;
  const bool is_claimed = r->claimed_ns != 0;
  if (is_free(r)) {
    learn(jobs, r, port, now_ns);
  } else if (r->port == port) {
    if (r->heard_ns != 0) r->heard_ns = now_ns;
    r->claimed_ns = 0;
    trust(jobs, r);
    if (is_claimed) shut(jobs, r, r->claimed_port, now_ns, why, why_bytes);
  } else if (mac == jobs->mac) {
    shut(jobs, r, port, now_ns, why, why_bytes);
  } else if (!is_claimed || r->claimed_port != port) {
    r->claimed_ns = now_ns;
    r->claimed_port = port;
    doubt(jobs, r);
  } else if (now_ns - r->claimed_ns >= SILENCE_NS && r->num_users == 0) {
    r->heard_ns = now_ns;
    sml_routes_set(jobs, r, port);
  }
}
