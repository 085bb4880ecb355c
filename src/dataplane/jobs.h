/* SPDX-License-Identifier: Apache-2.0
 * What the jobs of any switch with SwitchML's program need: entries of its tables, by the names of p4/, groups, cells,
 * and in which order. How a switch is told is its driver's. docs/p4.md: tables. */
#pragma once

#include "aggd/dataplane.h"

#define SML_SWITCH_MAX_FIELDS 8u
#define SML_SWITCH_LOOK_NS (100 * SML_NS_PER_MS) /* who asks for figures shall not hold leases up */
#define SML_SWITCH_FLOOD_GROUP 1u
#define SML_SWITCH_FIRST_JOB_GROUP 16u /* and the job's number */
#define SML_SWITCH_NONE INT64_MIN      /* no handle */
#define SML_SWITCH_ANY UINT64_MAX      /* a mask: any value fits */

struct sml_switch_field {
  const char *name;
  uint64_t value;
  uint32_t bits;
  uint64_t mask; /* of a ternary key; 0: exact */
};

struct sml_switch_entry {
  const char *table, *action;
  uint32_t num_keys, num_data;
  struct sml_switch_field keys[SML_SWITCH_MAX_FIELDS], data[SML_SWITCH_MAX_FIELDS];
};

/* Calls to the switch that its driver makes. False: error says why. What is added has a handle, of the driver's choice;
 * what is deleted may be gone already, and of a switch that does not answer nobody hears: is_unsure is set. */
struct sml_switch_driver {
  /* The program's tables empty, but for floods and the aggregator's entry (sml_switch_jobs_add_aggregator). False:
   * error_out has a sentence. */
  bool (*open)(void *user, char *error_out, size_t error_bytes);
  /* Can the switch sum for contributors at these places? False: error_out has a sentence. NULL: any. */
  bool (*has_reach)(const struct sml_dataplane_job *job, char *error_out, size_t error_bytes);
  void (*begin)(void *user, uint64_t deadline_ns); /* of all the calls until the next one */
  bool (*add_entry)(void *user, const struct sml_switch_entry *entry, int64_t *handle_out);
  void (*delete_entry)(void *user, const struct sml_switch_entry *entry, int64_t handle);
  bool (*make_group)(void *user, uint32_t group, int64_t *handle_out);
  void (*delete_group)(void *user, uint32_t group, int64_t handle);
  /* The group's packets go to the place, too; what they are to say there is an entry of "replica". */
  bool (*add_copy)(void *user, uint32_t group, int64_t group_handle, uint32_t rid, const struct sml_place *place,
                   int64_t *handle_out);
  void (*delete_copy)(void *user, uint32_t group, uint32_t rid, int64_t handle);
  /* Cells [first, end) as nobody has used them; the job's cursor at grant. */
  bool (*preset)(void *user, uint32_t first_cell, uint32_t end_cell, uint32_t cursor, uint32_t grant);
  /* The words of cells [first, end), [end - first]. False: it did not answer. */
  bool (*read_words)(void *user, uint32_t first_cell, uint32_t end_cell, uint32_t *words_out);
  /* Makes the calls since begin, if the driver gathers calls. NULL: each is made at once. */
  bool (*finish)(void *user);
  const char *(*error)(void *user);
  /* As in aggd/dataplane.h, within SML_SWITCH_LOOK_NS. */
  bool (*read_counters)(void *user, uint64_t *counts);
  bool (*is_lost)(void *user, char *why_out, size_t why_bytes);
  void (*close)(void *user); /* frees it */
  /* The program learns nothing by itself: it has tables "host" and "listener", and tells this daemon of hosts that are
   * not in the first one (routes.h). flood: floods go to the ports that are not shut (shut_until_ns), from now on. */
  bool tells_hosts;
  void (*flood)(void *user);
};

/* Where frames to a host go while a job needs it, as long as it was learned, or always: an entry of "l2". */
#define SML_SWITCH_MAX_ROUTES 2048u
#define SML_SWITCH_MAX_PORTS 512u
struct sml_switch_route {
  uint64_t mac;
  int64_t handle, host_handle;
  uint64_t heard_ns;   /* learned: when it was heard; 0: it was not */
  uint64_t claimed_ns; /* when it was heard by claimed_port, and by its own no more since; 0: it was not */
  uint16_t port, claimed_port;
  uint16_t num_users; /* 0 and not learned: free */
};

struct sml_switch_jobs {
  struct sml_dataplane dataplane; /* what switchmld calls; the first member */
  const struct sml_switch_driver *driver;
  void *user;  /* of the driver */
  uint32_t ip; /* the aggregator's, as ranks know it; host byte order */
  uint16_t port;
  uint64_t mac;     /* of the interface that has the address; 0: none has it */
  uint32_t voucher; /* aggd/dataplane.h */
  /* A call has failed, so what it was to take away may still be there, or what it was to add. Drivers say so of what
   * they delete. */
  bool is_unsure;
  uint32_t num_routes;
  struct sml_switch_route routes[SML_SWITCH_MAX_ROUTES];
  uint64_t shut_until_ns[SML_SWITCH_MAX_PORTS]; /* 0: open */
  struct sml_switch_job *jobs[SML_MAX_JOBS];
};

/* jobs: stays where it is until sml_switch_destroy(). */
void sml_switch_jobs_init(struct sml_switch_jobs *jobs, const struct sml_switch_driver *driver, void *user);
/* For the driver's open: what is for the aggregator goes to that port, and no other. */
bool sml_switch_jobs_add_aggregator(struct sml_switch_jobs *jobs, uint16_t cpu_port);

/* A mask as switches take it. */
static inline uint64_t sml_switch_mask(uint64_t mask) {
  return mask == SML_SWITCH_ANY ? 0 : mask;
}

/* 0: no key is ternary. Else the lowest decides where several entries fit: those with a key of any value come last. */
uint32_t sml_switch_order(const struct sml_switch_entry *entry);

/* The 32 bits of an IPv4 address, in host byte order. */
uint32_t sml_switch_ip(const struct sml_addr *addr);

/* The value's bytes as P4 counts them, the highest first. Returns how many: bits, rounded up. */
uint32_t sml_switch_bytes(uint64_t value, uint32_t bits, uint8_t bytes_out[8]);
