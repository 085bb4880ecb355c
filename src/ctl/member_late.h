/* SPDX-License-Identifier: Apache-2.0
 * When operations of a job are late, and what a job waits for, in words: as this rank sees it, and as its aggregators
 * say when they are asked (ASK, REPORT). They know which ranks have called and what the slots hold; this rank knows
 * that only from what reached it. Pure. */
#pragma once

#include "ctl/member_job.h"

/* The aggregators are asked that long before a deadline, or half the time to it if that is less. */
#define SML_MEMBER_ASK_NS (200 * SML_NS_PER_MS)

/* What the current operation waits for. RANKS: ranks of this host. LEAD: only the lead, which itself waits for other
 * hosts and knows which. NETWORK: other ranks, by the network. */
enum sml_member_wait_kind { SML_WAIT_NONE_BEGUN, SML_WAIT_RANKS, SML_WAIT_LEAD, SML_WAIT_NETWORK };
struct sml_member_wait {
  enum sml_member_wait_kind kind;
  uint32_t num_absent;               /* of RANKS and LEAD; 0: this rank's own part is missing */
  uint32_t ranks[SML_CTL_MAX_RANKS]; /* the first ones */
};

/* What the owner sees of its lanes and engines. */
struct sml_member_sight {
  struct sml_member_wait wait;
  /* the slot that has waited longest */
  bool has_slot;
  bool has_error_reply; /* the aggregator answered there that it does not know job or epoch, first at error_reply_ns */
  bool is_fence;        /* those that are missing there may themselves wait for others: the aggregator knows */
  uint32_t lane, slot, num_missing;
  uint16_t missing[SML_CTL_MAX_RANKS]; /* contributors */
  uint64_t since_ns, error_reply_ns;
  /* datagrams that this host's system would not take, and why it did not take the last one; "": it took all */
  uint64_t num_unsent, unsent_ns;
  char unsent_why[128];
};

/* Whether something is late, and the earliest moment at which that may change. */
enum sml_member_late_kind {
  SML_MEMBER_NOT_LATE,
  SML_MEMBER_LATE_WARNS,     /* `operation`, the oldest one, has waited for long: the owner says so in its log */
  SML_MEMBER_LATE_TIMES_OUT, /* `operation`, at deadline_ns */
  SML_MEMBER_LATE_IN_BATCH,  /* `operation`, which was not submitted: its caller has not ended the batch */
};
struct sml_member_late {
  enum sml_member_late_kind kind;
  const struct sml_member_operation *operation;
  uint64_t deadline_ns;
  uint64_t look_ns;
  bool has_asked; /* members will ask on their next timers */
};
/* noted: the first one that is due of a batch that has not ended; NULL: none. */
struct sml_member_late sml_member_late_check(struct sml_member_job *j, const struct sml_member_sight *sight,
                                             const struct sml_member_operation *noted, uint64_t now_ns);
/* Asks each aggregator that the job runs with; what they said before is forgotten. */
void sml_member_late_ask(struct sml_member_job *j, uint64_t now_ns);
/* All that were asked have answered. */
bool sml_member_late_has_reports(const struct sml_member_job *j);
/* The aggregator is there, but not the one that had the job. */
bool sml_member_late_is_unknown(const struct sml_member_job *j, const struct sml_member_sight *sight, uint64_t now_ns,
                                struct sml_ctl_abort *failure);

/* The failure of TIMES_OUT. what: "operation 7 (...)", submitted at submitted_ns, whose deadline that is. */
struct sml_ctl_abort sml_member_late_failure(const struct sml_member_job *j, const struct sml_member_late *late,
                                             const char *what, uint64_t submitted_ns,
                                             const struct sml_member_sight *sight, uint64_t now_ns);
/* "waiting for ranks 1, 3 on lane 0 slot 12 for 59.9 s; the aggregator: ..." to the end of the failure's detail; the
 * ranks too. */
void sml_member_late_explain(const struct sml_member_job *j, const struct sml_member_sight *sight, uint64_t now_ns,
                             struct sml_ctl_abort *failure);
/* "; rank 1's host did not send 12 packets, ...: Message too long" to the end of the failure's detail, which is cut for
 * it, if its system would not take packets while the oldest operation waited, or the job was being joined. */
void sml_member_late_add_unsent(const struct sml_member_job *j, const struct sml_member_sight *sight, uint64_t now_ns,
                                struct sml_ctl_abort *failure);
