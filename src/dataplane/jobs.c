/* SPDX-License-Identifier: Apache-2.0 */
#include "dataplane/jobs.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <stdio.h>
#include <stdlib.h>

#include "dataplane/routes.h"
#include "dataplane/switches.h"
#include "netio/netio.h"

#define CALL_NS (1 * SML_NS_PER_S) /* what is asked outside a job's start or end */
#define WORK_NS (2 * SML_NS_PER_S) /* all calls of a job's start or end: leases go on meanwhile */
#define OPEN_NS (10 * SML_NS_PER_S)
#define RANKS_PER_JOB 32u
#define NUM_TURNS 2u
#define WORD_VALID (UINT32_C(1) << 31)
#define NONE SML_SWITCH_NONE

struct member {
  int64_t entries[NUM_TURNS], replica, copy;
  struct sml_switch_route *route;
};

struct sml_switch_job {
  struct sml_dataplane_job is;
  int64_t window, group;
  struct member members[SML_SWITCH_MAX_CONTRIBUTORS];
  uint32_t words[]; /* [2 * is.num_slots] */
};

uint32_t sml_switch_bytes(uint64_t value, uint32_t bits, uint8_t bytes_out[8]) {
  const uint32_t num_bytes = (bits + 7) / 8;
  for (uint32_t i = 0; i < num_bytes; i++) bytes_out[i] = (uint8_t)(value >> (8 * (num_bytes - 1 - i)));
  return num_bytes;
}

uint32_t sml_switch_order(const struct sml_switch_entry *entry) {
  uint32_t order = 0;
  for (uint32_t i = 0; i < entry->num_keys; i++)
    if (entry->keys[i].mask != 0) order = sml_max_u32(order, entry->keys[i].mask == SML_SWITCH_ANY ? 2 : 1);
  return order;
}

uint32_t sml_switch_ip(const struct sml_addr *addr) {
  struct sockaddr_in in;
  memcpy(&in, addr->bytes, sizeof in);
  return ntohl(in.sin_addr.s_addr);
}

/* ---- entries ---- */

/* A host is where one of its ranks is, as long as that says so: somebody else who joins a job under its MAC, from
 * another port, does not get its frames. Only when none is there any more it is where another one is. */
static void settle_route(struct sml_switch_jobs *jobs, struct sml_switch_route *r) {
  const struct sml_place *elsewhere = NULL;
  if (r->mac == jobs->mac) return; /* the daemon's own host */
  for (uint32_t j = 0; j < SML_MAX_JOBS; j++) {
    const struct sml_switch_job *job = jobs->jobs[j];
    for (uint32_t c = 0; job != NULL && c < job->is.num_contributors; c++) {
      if (job->members[c].route != r) continue;
      if (job->is.places[c].port == r->port && r->handle != NONE) return;
      elsewhere = &job->is.places[c];
    }
  }
  if (elsewhere != NULL) sml_routes_set(jobs, r, elsewhere->port);
}

/* Frames to the host need not be flooded, and nobody else gets them. A host of several ranks has one entry. NULL: there
 * is no room, so they are. */
static void use_route(struct sml_switch_jobs *jobs, const struct sml_place *place, struct member *m) {
  m->route = sml_routes_find(jobs, place->mac);
  if (m->route == NULL) return;
  m->route->num_users++;
  settle_route(jobs, m->route);
}

static void leave_route(struct sml_switch_jobs *jobs, struct member *m) {
  struct sml_switch_route *r = m->route;
  m->route = NULL;
  if (r == NULL) return;
  if (--r->num_users == 0) sml_routes_release(jobs, r);
  else settle_route(jobs, r);
}

/* clang-format off */
bool sml_switch_jobs_add_aggregator(struct sml_switch_jobs *jobs, uint16_t cpu_port) {
  int64_t handle;
  struct sml_switch_route *r = jobs->mac != 0 ? sml_routes_find(jobs, jobs->mac) : NULL;
  if (r != NULL) {
    r->num_users = 1;
    sml_routes_set(jobs, r, cpu_port);
  }
  const struct sml_switch_entry entries[] = {
      {"source", "is_own", 2, 0, {{"src", jobs->ip, 32, 0}, {"ingress", cpu_port, 16, 0xffff}}, {{NULL, 0, 0, 0}}},
      {"source", "is_forged", 2, 0, {{"src", jobs->ip, 32, 0}, {"ingress", 0, 16, SML_SWITCH_ANY}}, {{NULL, 0, 0, 0}}},
      {"aggregator", "is_ours", 2, 2, {{"dst", jobs->ip, 32, 0}, {"dst_port", jobs->port, 16, 0}},
       {{"cpu_port", cpu_port, 16, 0}, {"voucher", jobs->voucher, 32, 0}}}};
  for (size_t i = 0; i < SML_ARRAY_LEN(entries); i++)
    if (!jobs->driver->add_entry(jobs->user, &entries[i], &handle)) return false;
  const struct sml_switch_entry listener = {"listener", "tell", 1, 6, {{"is_ours", 0, 8, 0}},
                                            {{"mac", jobs->mac, 48, 0},
                                             {"src", jobs->ip ^ 1, 32, 0}, /* a neighbour's: no host takes its own */
                                             {"dst", jobs->ip, 32, 0},
                                             {"port", jobs->port, 16, 0},
                                             {"voucher", jobs->voucher, 32, 0},
                                             {"cpu_port", cpu_port, 16, 0}}};
  return !jobs->driver->tells_hosts || jobs->driver->add_entry(jobs->user, &listener, &handle);
}

static struct sml_switch_entry window_entry(const struct sml_switch_jobs *jobs, const struct sml_dataplane_job *is) {
  return (struct sml_switch_entry){"window", "is_inside", 3, 0,
                                   {{"job", is->number, 16, 0},
                                    {"slot", is->slot_base, 16, 0xffff & ~(uint64_t)(is->num_slots - 1)},
                                    {"dst_port", jobs->port, 16, 0}},
                                   {{NULL, 0, 0, 0}}};
}

static struct sml_switch_entry member_entry(const struct sml_switch_jobs *jobs, const struct sml_dataplane_job *is,
                                            uint32_t c, uint32_t turn) {
  const struct sml_place *place = &is->places[c];
  const uint32_t base = WORD_VALID | turn << 30, full = base | ((UINT32_C(1) << is->num_contributors) - 1);
  return (struct sml_switch_entry){"member", "is_member", 8, 7,
                                   {{"job", is->number, 16, 0},
                                    {"epoch", is->epoch, 32, 0},
                                    {"rank", c, 16, 0},
                                    {"turn", turn, 8, 0},
                                    {"src", sml_switch_ip(&place->addr), 32, 0},
                                    {"src_port", sml_addr_port(&place->addr), 16, 0},
                                    {"dst_port", jobs->port, 16, 0},
                                    {"ingress", place->port, 16, 0}},
                                   {{"me", base | UINT32_C(1) << c, 32, 0},
                                    {"full", full, 32, 0},
                                    {"last", full ^ UINT32_C(1) << c, 32, 0},
                                    {"cursor", is->number, 16, 0},
                                    {"group", SML_SWITCH_FIRST_JOB_GROUP + is->number, 16, 0},
                                    {"port", place->port, 16, 0},
                                    {"is_checked", is->is_checked, 8, 0}}};
}

static uint32_t rid_of(const struct sml_dataplane_job *is, uint32_t c) {
  return 1 + RANKS_PER_JOB * is->number + c;
}

static struct sml_switch_entry replica_entry(const struct sml_switch_jobs *jobs, const struct sml_dataplane_job *is,
                                             uint32_t c) {
  const struct sml_place *place = &is->places[c];
  return (struct sml_switch_entry){
      "replica", "to_member", 2, 3,
      {{"src_port", jobs->port, 16, 0}, {"rid", rid_of(is, c), 16, 0}},
      {{"mac", place->mac, 48, 0},
       {"ip", sml_switch_ip(&place->addr), 32, 0},
       {"port", sml_addr_port(&place->addr), 16, 0}}};
}
/* clang-format on */

static void delete_entry(struct sml_switch_jobs *jobs, struct sml_switch_entry entry, int64_t *handle) {
  if (*handle != NONE) jobs->driver->delete_entry(jobs->user, &entry, *handle);
  *handle = NONE;
}

/* ---- jobs ---- */

static bool add_replica(struct sml_switch_jobs *jobs, struct sml_switch_job *job, uint32_t c) {
  const struct sml_switch_entry entry = replica_entry(jobs, &job->is, c);
  return jobs->driver->add_entry(jobs->user, &entry, &job->members[c].replica) &&
         jobs->driver->add_copy(jobs->user, SML_SWITCH_FIRST_JOB_GROUP + job->is.number, job->group,
                                rid_of(&job->is, c), &job->is.places[c], &job->members[c].copy);
}

static bool add_member(struct sml_switch_jobs *jobs, struct sml_switch_job *job, uint32_t c) {
  for (uint32_t turn = 0; turn < NUM_TURNS; turn++) {
    const struct sml_switch_entry entry = member_entry(jobs, &job->is, c, turn);
    if (!jobs->driver->add_entry(jobs->user, &entry, &job->members[c].entries[turn])) return false;
  }
  return true;
}

/* Registers first, and who may use them last. */
static bool fill(struct sml_switch_jobs *jobs, struct sml_switch_job *job) {
  const struct sml_dataplane_job *is = &job->is;
  const struct sml_switch_entry window = window_entry(jobs, is);
  if (!jobs->driver->preset(jobs->user, 2 * is->slot_base, 2 * (is->slot_base + is->num_slots), is->number,
                            is->first_chunk + is->num_slots) ||
      !jobs->driver->make_group(jobs->user, SML_SWITCH_FIRST_JOB_GROUP + is->number, &job->group) ||
      !jobs->driver->add_entry(jobs->user, &window, &job->window))
    return false;
  for (uint32_t c = 0; c < is->num_contributors; c++)
    if (!add_replica(jobs, job, c)) return false;
  for (uint32_t c = 0; c < is->num_contributors; c++) use_route(jobs, &is->places[c], &job->members[c]);
  for (uint32_t c = 0; c < is->num_contributors; c++)
    if (!add_member(jobs, job, c)) return false;
  return true;
}

static bool finish(struct sml_switch_jobs *jobs) {
  const bool is_done = jobs->driver->finish == NULL || jobs->driver->finish(jobs->user);
  jobs->is_unsure = jobs->is_unsure || !is_done;
  return is_done;
}

static bool fail(struct sml_switch_jobs *jobs, char *error, size_t error_bytes) {
  jobs->is_unsure = true;
  snprintf(error, error_bytes, "%s", jobs->driver->error(jobs->user));
  return false;
}

static void remove_member(struct sml_switch_jobs *jobs, struct sml_switch_job *job, uint32_t c) {
  for (uint32_t turn = 0; turn < NUM_TURNS; turn++)
    delete_entry(jobs, member_entry(jobs, &job->is, c, turn), &job->members[c].entries[turn]);
}

static void remove_replica(struct sml_switch_jobs *jobs, struct sml_switch_job *job, uint32_t c) {
  struct member *m = &job->members[c];
  const uint32_t group = SML_SWITCH_FIRST_JOB_GROUP + job->is.number;
  delete_entry(jobs, replica_entry(jobs, &job->is, c), &m->replica);
  if (m->copy != NONE) jobs->driver->delete_copy(jobs->user, group, rid_of(&job->is, c), m->copy);
  m->copy = NONE;
}

static void close_job(void *user, uint16_t number) {
  struct sml_switch_jobs *jobs = user;
  struct sml_switch_job *job = jobs->jobs[number];
  const uint32_t group = SML_SWITCH_FIRST_JOB_GROUP + number;
  if (job == NULL) return;
  jobs->driver->begin(jobs->user, sml_clock_ns() + WORK_NS);
  for (uint32_t c = 0; c < job->is.num_contributors; c++) remove_member(jobs, job, c);
  delete_entry(jobs, window_entry(jobs, &job->is), &job->window);
  for (uint32_t c = 0; c < job->is.num_contributors; c++) {
    remove_replica(jobs, job, c);
    leave_route(jobs, &job->members[c]);
  }
  if (job->group != NONE) jobs->driver->delete_group(jobs->user, group, job->group);
  (void)finish(jobs);
  free(job);
  jobs->jobs[number] = NULL;
}

static bool empty_switch(struct sml_switch_jobs *jobs, uint64_t deadline_ns, char *error, size_t error_bytes) {
  jobs->driver->begin(jobs->user, deadline_ns);
  sml_routes_forget(jobs);
  for (uint32_t j = 0; j < SML_MAX_JOBS; j++)
    for (uint32_t c = 0; jobs->jobs[j] != NULL && c < jobs->jobs[j]->is.num_contributors; c++)
      jobs->jobs[j]->members[c].route = NULL;
  jobs->is_unsure = !jobs->driver->open(jobs->user, error, error_bytes);
  return !jobs->is_unsure;
}

static bool has_jobs(const struct sml_switch_jobs *jobs) {
  uint32_t j = 0;
  while (j < SML_MAX_JOBS && jobs->jobs[j] == NULL) j++;
  return j < SML_MAX_JOBS;
}

/* What an earlier job may have left would stand in the way of this one, or let that one's ranks in. As long as other
 * jobs run it cannot be told from what is theirs. */
static bool clear_leftovers(struct sml_switch_jobs *jobs, uint64_t deadline_ns, char *error, size_t error_bytes) {
  return !jobs->is_unsure || has_jobs(jobs) || empty_switch(jobs, deadline_ns, error, error_bytes);
}

static bool start_job(void *user, const struct sml_dataplane_job *is, char *error, size_t error_bytes) {
  struct sml_switch_jobs *jobs = user;
  close_job(jobs, is->number); /* an earlier epoch */
  if (jobs->driver->has_reach != NULL && !jobs->driver->has_reach(is, error, error_bytes)) return false;
  const uint64_t deadline_ns = sml_clock_ns() + WORK_NS;
  if (!clear_leftovers(jobs, deadline_ns, error, error_bytes)) return false;
  struct sml_switch_job *job = calloc(1, sizeof *job + 2 * is->num_slots * sizeof job->words[0]);
  if (job == NULL) return snprintf(error, error_bytes, "out of memory"), false;
  job->is = *is;
  job->window = job->group = NONE;
  for (uint32_t c = 0; c < SML_SWITCH_MAX_CONTRIBUTORS; c++)
    job->members[c] = (struct member){{NONE, NONE}, NONE, NONE, NULL};
  jobs->jobs[is->number] = job;
  jobs->driver->begin(jobs->user, deadline_ns);
  return (fill(jobs, job) && finish(jobs)) || fail(jobs, error, error_bytes);
}

static bool is_same_place(const struct sml_place *a, const struct sml_place *b) {
  return a->port == b->port && a->mac == b->mac;
}

/* The group is made anew: a driver may know no other way to take one copy out of it. What comes meanwhile is lost, as
 * packets are. */
static bool renew_group(struct sml_switch_jobs *jobs, struct sml_switch_job *job, const struct sml_place *places) {
  const uint32_t group = SML_SWITCH_FIRST_JOB_GROUP + job->is.number;
  for (uint32_t c = 0; c < job->is.num_contributors; c++) remove_replica(jobs, job, c);
  jobs->driver->delete_group(jobs->user, group, job->group);
  job->group = NONE;
  memcpy(job->is.places, places, job->is.num_contributors * sizeof *places);
  if (!jobs->driver->make_group(jobs->user, group, &job->group)) return false;
  for (uint32_t c = 0; c < job->is.num_contributors; c++)
    if (!add_replica(jobs, job, c)) return false;
  return true;
}

/* First nobody may send from where it was, last it may from where it is. */
static bool move_members(struct sml_switch_jobs *jobs, struct sml_switch_job *job, const struct sml_place *places) {
  bool is_moving[SML_SWITCH_MAX_CONTRIBUTORS], is_here[SML_SWITCH_MAX_CONTRIBUTORS];
  for (uint32_t c = 0; c < job->is.num_contributors; c++) {
    is_moving[c] = !is_same_place(&job->is.places[c], &places[c]);
    is_here[c] = job->members[c].entries[0] != NONE; /* it has not departed */
    if (!is_moving[c]) continue;
    remove_member(jobs, job, c);
    leave_route(jobs, &job->members[c]);
  }
  if (!renew_group(jobs, job, places)) return false;
  for (uint32_t c = 0; c < job->is.num_contributors; c++)
    if (is_moving[c]) use_route(jobs, &places[c], &job->members[c]);
  for (uint32_t c = 0; c < job->is.num_contributors; c++)
    if (is_moving[c] && is_here[c] && !add_member(jobs, job, c)) return false;
  return true;
}

static bool follow(void *user, uint16_t number, const struct sml_place *places, char *error, size_t error_bytes) {
  struct sml_switch_jobs *jobs = user;
  struct sml_switch_job *job = jobs->jobs[number];
  if (job == NULL) return true;
  struct sml_dataplane_job is = job->is;
  bool has_moved = false;
  for (uint32_t c = 0; c < is.num_contributors; c++) {
    has_moved = has_moved || !is_same_place(&is.places[c], &places[c]);
    is.places[c] = places[c];
  }
  if (!has_moved) return true;
  if (jobs->driver->has_reach != NULL && !jobs->driver->has_reach(&is, error, error_bytes)) return false;
  jobs->driver->begin(jobs->user, sml_clock_ns() + WORK_NS);
  return (move_members(jobs, job, is.places) && finish(jobs)) || fail(jobs, error, error_bytes);
}

static void depart(void *user, uint16_t number, uint32_t c) {
  struct sml_switch_jobs *jobs = user;
  if (jobs->jobs[number] == NULL) return;
  jobs->driver->begin(jobs->user, sml_clock_ns() + CALL_NS);
  remove_member(jobs, jobs->jobs[number], c);
  (void)finish(jobs);
}

static bool read_words_within(struct sml_switch_jobs *jobs, const struct sml_dataplane_job *is, uint64_t time_ns,
                              uint32_t *words_out) {
  jobs->driver->begin(jobs->user, sml_clock_ns() + time_ns);
  return jobs->driver->read_words(jobs->user, 2 * is->slot_base, 2 * (is->slot_base + is->num_slots), words_out);
}

static bool read_words(void *user, uint16_t number, uint32_t *words_out) {
  struct sml_switch_jobs *jobs = user;
  const struct sml_switch_job *job = jobs->jobs[number];
  return job != NULL && read_words_within(jobs, &job->is, SML_SWITCH_LOOK_NS, words_out);
}

static uint32_t find_blocked(void *user, uint16_t number, uint32_t contributors, uint32_t *contributor) {
  struct sml_switch_jobs *jobs = user;
  struct sml_switch_job *job = jobs->jobs[number];
  if (job == NULL || !read_words_within(jobs, &job->is, CALL_NS, job->words)) return UINT32_MAX;
  const uint32_t all = (UINT32_C(1) << job->is.num_contributors) - 1;
  for (uint32_t cell = 0; cell < 2 * job->is.num_slots; cell++) {
    const uint32_t ranks = job->words[cell] & all, missing = contributors & all & ~ranks;
    if (ranks == 0 || missing == 0) continue;
    *contributor = (uint32_t)__builtin_ctz(missing);
    return cell / 2;
  }
  return UINT32_MAX;
}

/* ---- the switch ---- */

static uint64_t mac_of_interface(const struct ifaddrs *all, const char *name) {
  for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
    struct sockaddr_ll ll;
    uint64_t mac = 0;
    if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_PACKET || strcmp(i->ifa_name, name) != 0) continue;
    memcpy(&ll, i->ifa_addr, sizeof ll);
    for (uint32_t b = 0; b < 6; b++) mac = mac << 8 | ll.sll_addr[b];
    return mac;
  }
  return 0;
}

static uint64_t mac_of_address(uint32_t ip) {
  struct ifaddrs *all;
  uint64_t mac = 0;
  if (getifaddrs(&all) != 0) return 0;
  for (const struct ifaddrs *i = all; i != NULL && mac == 0; i = i->ifa_next) {
    struct sockaddr_in in;
    if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET) continue;
    memcpy(&in, i->ifa_addr, sizeof in);
    if (ntohl(in.sin_addr.s_addr) == ip) mac = mac_of_interface(all, i->ifa_name);
  }
  freeifaddrs(all);
  return mac;
}

static bool open_switch(void *user, const struct sml_addr *data_addr, uint32_t voucher, char *error,
                        size_t error_bytes) {
  struct sml_switch_jobs *jobs = user;
  struct sockaddr_in in;
  memcpy(&in, data_addr->bytes, sizeof in);
  if (data_addr->num_bytes != sizeof in || in.sin_family != AF_INET || in.sin_addr.s_addr == 0) {
    snprintf(error, error_bytes, "with a switch, --listen must be the IPv4 address by which ranks reach this host");
    return false;
  }
  jobs->ip = ntohl(in.sin_addr.s_addr);
  jobs->port = sml_addr_port(data_addr);
  jobs->voucher = voucher;
  if (jobs->mac == 0) jobs->mac = mac_of_address(jobs->ip);
  return empty_switch(jobs, sml_clock_ns() + OPEN_NS, error, error_bytes);
}

static void hear(void *user, uint64_t mac, uint16_t port, char *why, size_t why_bytes) {
  struct sml_switch_jobs *jobs = user;
  jobs->driver->begin(jobs->user, sml_clock_ns() + CALL_NS);
  sml_routes_hear(jobs, mac, port, sml_clock_ns(), why, why_bytes);
  (void)finish(jobs);
}

static bool read_counters(void *user, uint64_t *counts) {
  struct sml_switch_jobs *jobs = user;
  return jobs->driver->read_counters(jobs->user, counts);
}

static bool is_lost(void *user, char *why, size_t why_bytes) {
  struct sml_switch_jobs *jobs = user;
  return jobs->driver->is_lost(jobs->user, why, why_bytes);
}

void sml_switch_jobs_init(struct sml_switch_jobs *jobs, const struct sml_switch_driver *driver, void *user) {
  *jobs = (struct sml_switch_jobs){.driver = driver, .user = user};
  jobs->dataplane = (struct sml_dataplane){.user = jobs,
                                           .open = open_switch,
                                           .start_job = start_job,
                                           .follow = follow,
                                           .depart = depart,
                                           .find_blocked = find_blocked,
                                           .close_job = close_job,
                                           .read_counters = read_counters,
                                           .read_words = read_words,
                                           .is_lost = is_lost,
                                           .hear = hear};
}

void sml_switch_destroy(struct sml_dataplane *plane) {
  struct sml_switch_jobs *jobs = (struct sml_switch_jobs *)plane;
  if (jobs == NULL) return;
  for (uint32_t j = 0; j < SML_MAX_JOBS; j++) free(jobs->jobs[j]);
  jobs->driver->close(jobs->user);
}
