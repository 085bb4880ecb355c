/* SPDX-License-Identifier: Apache-2.0
 * The engines of an aggregator: one lane = one UDP port, one engine, one thread. Commands go to all lanes
 * and are done when the call returns, so that a worker never hears of a state that its engine is not in;
 * they are rare (joins, starts, ends). All functions are the control thread's. */
#pragma once

#include "aggd/aggd.h"
#include "ctl/message.h"
#include "engine/aggregator_engine.h"

struct sml_lanes;
/* event_fd is written to when sml_lanes_next_event() has something. 0, or -errno and a sentence. */
int sml_lanes_open(const struct sml_aggd_options *options, int event_fd, struct sml_lanes **lanes_out, char *error_out,
                   size_t error_bytes);
void sml_lanes_close(struct sml_lanes *lanes);             /* jobs must be closed */
void sml_lanes_close_descriptors(struct sml_lanes *lanes); /* in the child of a fork */
uint16_t sml_lanes_port(const struct sml_lanes *lanes, uint32_t lane);
uint32_t sml_lanes_max_datagram_bytes(const struct sml_lanes *lanes);
void sml_lanes_drops(const struct sml_lanes *lanes, uint64_t *num_drops); /* [SML_NUM_DROPS]; any thread */

/* Adds the lanes' flight recorders; any thread. False: out of memory. */
bool sml_lanes_collect_trace(const struct sml_lanes *lanes, struct sml_trace_dump *dump);

/* seal: of the epoch's datagrams. False: out of memory; the job is to be closed. */
bool sml_lanes_open_job(struct sml_lanes *lanes, uint16_t job, uint32_t epoch, uint32_t world_size,
                        const struct sml_seal *seal);
bool sml_lanes_start_job(struct sml_lanes *lanes, uint16_t job, uint32_t world_size, const struct sml_ctl_start *start,
                         const struct sml_seal *seal);
/* A rank has moved, says an event: the switch takes its packets from there. False: the job is to be closed. */
bool sml_lanes_follow(struct sml_lanes *lanes, uint16_t job, uint32_t epoch);
/* The switch does not know a host at that port. True: why_out has a sentence for people. */
bool sml_lanes_hear(struct sml_lanes *lanes, uint64_t mac, uint16_t port, char *why_out, size_t why_bytes);
/* A sentence about the switch's last failure, "" without one. */
const char *sml_lanes_failure(const struct sml_lanes *lanes);
/* Looks, now and then, whether slots of a switch wait for ranks that have departed, which makes an event, and whether
 * the switch is still there: when next, or SML_NEVER. */
uint64_t sml_lanes_watch(struct sml_lanes *lanes, uint64_t now_ns);
/* The next job whose switch has gone, once each; sml_lanes_failure() says why. False: none left. */
bool sml_lanes_next_lost(struct sml_lanes *lanes, uint16_t *job_out, uint32_t *epoch_out);
/* False: out of memory, as above. */
bool sml_lanes_expect_hello(struct sml_lanes *lanes, uint16_t job, uint32_t rank, uint64_t nonce, uint64_t host);
void sml_lanes_forget_rank(struct sml_lanes *lanes, uint16_t job, uint32_t rank); /* it left before the start */
void sml_lanes_depart(struct sml_lanes *lanes, uint16_t job, const uint64_t *ranks, uint32_t world_size); /* a bitmap */
void sml_lanes_close_job(struct sml_lanes *lanes, uint16_t job);

uint32_t sml_lanes_count(const struct sml_lanes *lanes);
/* For the status: adds every lane's figures of jobs to the looks, in one command a lane. */
struct sml_lane_look {
  uint16_t job;
  struct sml_job_look *look;
};
void sml_lanes_look(struct sml_lanes *lanes, const struct sml_lane_look *looks, uint32_t num_looks);
/* UPDATEs of the rank that were added so far, on all lanes; where a switch does that, those that looks at its cells
 * have shown, a few times a second. Asks no engine. */
uint64_t sml_lanes_packets(struct sml_lanes *lanes, uint16_t job, uint32_t rank);
/* What is known of the slots of a job that a switch sums, at most 5 s old. Asks the switch again after 1 s. */
void sml_lanes_look_at_switch(struct sml_lanes *lanes, uint16_t job, uint64_t now_ns, struct sml_job_look *look);
/* What the switch has counted, [SML_NUM_AT_SWITCH], and when it said so, 0: never; likewise. NULL: there is none. */
const uint64_t *sml_lanes_count_at_switch(struct sml_lanes *lanes, uint64_t now_ns, uint64_t *read_ns_out);
/* Its drops: with those that the switch last told. */
void sml_lanes_look_at_port(struct sml_lanes *lanes, uint32_t lane, uint16_t *port_out,
                            struct sml_netio_stats *stats_out, uint64_t *num_drops); /* [SML_NUM_DROPS] */

/* Events of the engines, the first of each job and kind; false: none left. */
bool sml_lanes_next_event(struct sml_lanes *lanes, struct sml_aggregator_event *event_out);
