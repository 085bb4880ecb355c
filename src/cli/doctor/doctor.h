/* SPDX-License-Identifier: Apache-2.0
 * `switchml doctor`: what keeps ranks on this host from summing at an aggregator, or makes it slow, found before a
 * training. A check is a function that looks at one thing and ends in findings; doctor.c has their order, and
 * report.c what becomes of findings. Why it is done this way: docs/adr/0020. */
#pragma once

#include <jansson.h>

#include "cli/ask/exchange.h"
#include "cli/ask/status_client.h"
#include "core/wire.h"

int sml_doctor_run(int argc, char **argv); /* `switchml doctor` */

/* What a finding is about. The number is the exit status if it is FAILED, and SML_DOCTOR_WARNED more if it is a
 * WARNING. */
enum sml_doctor_class {
  SML_DOCTOR_NAME = 4, /* of the aggregator */
  SML_DOCTOR_CONTROL,  /* its control port */
  SML_DOCTOR_VERSION,
  SML_DOCTOR_KEY,
  SML_DOCTOR_ROOM,
  SML_DOCTOR_DATA, /* its data ports */
  SML_DOCTOR_MTU,
  SML_DOCTOR_SUM, /* a job of two ranks, end to end */
  SML_DOCTOR_LINK,
  SML_DOCTOR_SETTINGS, /* of this process, or among the ranks of a job */
  SML_DOCTOR_HOST,
};
#define SML_DOCTOR_WARNED 20
#define SML_DOCTOR_BROKEN 1 /* doctor itself could not do its work */
#define SML_DOCTOR_USAGE 2

enum sml_verdict { SML_FINDING_OK, SML_FINDING_SKIPPED, SML_FINDING_WARNING, SML_FINDING_FAILED };

struct sml_doctor_options {
  const char *addresses, *job;
  bool is_json;
  double seconds, timeout_s;
  uint32_t world_size; /* 0: not known */
};

struct sml_doctor {
  struct sml_doctor_options options;
  uint64_t deadline_ns; /* of all */
  uint32_t num_aggregators;
  const char *aggregator; /* that the findings are about; NULL: this host */
  bool has_color, is_broken;
  bool has_bad_settings; /* no job can be made by this process */
  int worst;             /* exit status so far */
  json_t *findings;
};

/* One aggregator, as far as it is known. */
struct sml_doctor_target {
  const char *text;
  struct sml_status_source source; /* its address, our key */
  char numeric[64];                /* its address, without the port */
  bool has_answered;               /* control versions are the same */
  json_t *status;                  /* NULL: it did not show one */
  char job_name[SML_JOB_NAME_BYTES];
  struct sml_exchange *member; /* joined as rank 0 of that job; NULL: not */
  struct sml_ctl_welcome welcome;
  struct sml_seal seal; /* of HELLOs */
  struct sml_link link; /* of this host, that leads there; mtu 0: not known */
  int sockets[SML_MAX_LANES];
  uint32_t num_sockets;
  bool is_full;        /* a job would be refused */
  uint64_t rtt_ns;     /* of the best HELLO */
  uint32_t path_bytes; /* largest datagram that came back; 0: none */
};

/* --- report.c --- */

bool sml_doctor_begin_report(struct sml_doctor *d);
/* What is looked at from here on; NULL: this host. */
void sml_doctor_about(struct sml_doctor *d, const char *aggregator);
/* id: what was looked at; advice: what to change, "" for nothing; values (stolen, may be NULL): the figures for
 * programs; the sentence: what was seen. */
void sml_doctor_find(struct sml_doctor *d, enum sml_doctor_class class, const char *id, enum sml_verdict verdict,
                     json_t *values, const char *advice, const char *format, ...) __attribute__((format(printf, 7, 8)));
/* The exit status. */
int sml_doctor_end_report(struct sml_doctor *d);
/* Nanoseconds for something that wants so many; fewer where the end of all is near, 0: none are left. */
uint64_t sml_doctor_patience(const struct sml_doctor *d, uint64_t wanted_ns);
/* The status that a finding makes: 0 for OK and SKIPPED. */
int sml_doctor_status_of(enum sml_doctor_class class, enum sml_verdict verdict);
/* The one of two statuses that decides. */
int sml_doctor_worse(int one, int other);

/* --- checks of one aggregator: false, the rest cannot be looked at --- */

bool sml_doctor_check_name(struct sml_doctor *d, struct sml_doctor_target *t); /* control.c */
bool sml_doctor_check_control(struct sml_doctor *d, struct sml_doctor_target *t);
bool sml_doctor_check_version(struct sml_doctor *d, struct sml_doctor_target *t);
bool sml_doctor_check_key(struct sml_doctor *d, struct sml_doctor_target *t); /* joins */
const char *sml_doctor_advise_refused(const char *detail); /* of a join that was refused with that sentence */
void sml_doctor_check_room(struct sml_doctor *d, struct sml_doctor_target *t); /* job.c */
bool sml_doctor_check_data(struct sml_doctor *d, struct sml_doctor_target *t); /* data.c */
bool sml_doctor_check_mtu(struct sml_doctor *d, struct sml_doctor_target *t);
void sml_doctor_check_sum(struct sml_doctor *d,
                          const struct sml_doctor_target *t); /* sum.c; NULL: embedded in this process */
void sml_doctor_check_link(struct sml_doctor *d, const struct sml_doctor_target *t); /* job.c */
void sml_doctor_check_job(struct sml_doctor *d, const struct sml_doctor_target *t);
void sml_doctor_leave(struct sml_doctor_target *t);

/* The status as of now, with our own job in it; NULL: there is none to see. To be given back with json_decref(). */
json_t *sml_doctor_fetch_status(struct sml_doctor *d, const struct sml_doctor_target *t);
/* The job of that name in the running status; NULL: none. */
const json_t *sml_doctor_find_job(const json_t *status, const char *name);

/* --- checks of this host --- */

void sml_doctor_check_environment(struct sml_doctor *d); /* environment.c */
void sml_doctor_check_host(struct sml_doctor *d);        /* host.c */
/* Every variable that some part of SwitchML reads, by the manual page; NULL ends them. */
extern const char *const sml_doctor_variables[];
/* The known variable that is most like it; NULL: none is like it. is_known: it is one itself. */
const char *sml_doctor_nearest_variable(const char *name, bool *is_known);
/* What to change where no key is read; why: the sentence that says so. */
const char *sml_doctor_advise_on_key_file(const char *why);

/* Time of an all-reduce at k aggregators over that of a ring, for n workers whose links are worker_mbps wide. */
double sml_doctor_slowdown(uint32_t num_workers, uint32_t num_aggregators, double worker_mbps, double aggregator_mbps);
