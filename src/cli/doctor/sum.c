/* SPDX-License-Identifier: Apache-2.0
 * Packets summed for real: a job of two ranks, both in this process, through the library as any program uses it. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/doctor/doctor.h"
#include "switchml/switchml.h"

#define NUM_RANKS 2u
#define EXACT_ELEMENTS 20000u
#define NUM_SMALL 300u
#define NUM_WARMUP 20u
#define SMALL_NS (3 * SML_NS_PER_S) /* for all of them */
#define LAST_MARK 65536.0f
#define BULK_ELEMENTS (1u << 20) /* 4 MiB */
#define JOIN_NS (8 * SML_NS_PER_S)
#define OPERATION_NS (8 * SML_NS_PER_S)
#define WAIT_NS (10 * SML_NS_PER_S) /* an operation's own deadline comes first */
#define NOTEWORTHY_LOSS 1e-3

/* What rank 0 hands to rank 1 and back, instead of a framework's store, where no aggregator is named. */
struct exchange_place {
  pthread_barrier_t barrier;
  const void *in[NUM_RANKS];
};

struct run;
struct rank {
  struct run *run;
  uint32_t number;
  pthread_t thread;
  sml_status status;
  char detail[256];
  uint32_t num_wrong;
  sml_stats stats;
};
struct run {
  const char *aggregator; /* "": the ranks embed it */
  char job_name[64];
  double seconds;
  uint64_t patience_ns, small_limit_ns;
  struct exchange_place place;
  struct rank ranks[NUM_RANKS];
  uint64_t small_ns[NUM_SMALL]; /* rank 0's, like all below */
  uint32_t num_small;
  double bulk_s, bulk_bytes;
};

static int gather(void *user, const void *in, void *out, size_t num_bytes) {
  struct rank *rank = user;
  struct exchange_place *place = &rank->run->place;
  place->in[rank->number] = in;
  pthread_barrier_wait(&place->barrier);
  for (uint32_t r = 0; r < NUM_RANKS; r++) memcpy((char *)out + r * num_bytes, place->in[r], num_bytes);
  pthread_barrier_wait(&place->barrier);
  return 0;
}

static bool check(struct rank *rank, sml_status status) {
  if (status == SML_OK || rank->status != SML_OK) return rank->status == SML_OK;
  rank->status = status;
  snprintf(rank->detail, sizeof rank->detail, "%s", sml_error_detail());
  return false;
}

/* One operation, waited for. False: it failed, or an earlier one did. */
static bool sum(struct rank *rank, sml_job *job, const void *in, void *out, size_t count, sml_type type) {
  sml_operation *operation;
  if (!check(rank, sml_allreduce(job, in, out, count, type, SML_SUM, NULL, &operation))) return false;
  const sml_status status = sml_operation_wait(operation, WAIT_NS);
  if (status == SML_IN_PROGRESS) snprintf(rank->detail, sizeof rank->detail, "an operation did not end in time");
  const bool is_ok = status == SML_IN_PROGRESS ? (rank->status = SML_ERR_TIMEOUT, false) : check(rank, status);
  sml_operation_release(operation);
  return is_ok;
}

static void sum_exactly(struct rank *rank, sml_job *job, int32_t *in, int32_t *out) {
  for (uint32_t i = 0; i < EXACT_ELEMENTS; i++) in[i] = (int32_t)(i * 2654435761u * (rank->number ? 3u : 1u));
  if (!sum(rank, job, in, out, EXACT_ELEMENTS, SML_INT32)) return;
  for (uint32_t i = 0; i < EXACT_ELEMENTS; i++) rank->num_wrong += out[i] != (int32_t)(i * 2654435761u * 4u);
}

/* So many, or as many as the time allows where the way is long, which rank 0 says by a large number. */
static void sum_small(struct rank *rank, sml_job *job) {
  const uint64_t begin_ns = sml_clock_ns();
  bool is_last = false;
  for (uint32_t i = 0; i < NUM_WARMUP + NUM_SMALL && !is_last; i++) {
    const uint64_t start_ns = sml_clock_ns();
    const bool is_late = rank->number == 0 && start_ns - begin_ns > rank->run->small_limit_ns;
    const float in = (float)(i + rank->number) + (is_late ? LAST_MARK : 0);
    float out = 0;
    if (!sum(rank, job, &in, &out, 1, SML_FLOAT32)) return;
    is_last = out >= LAST_MARK;
    rank->num_wrong += out - (is_last ? LAST_MARK : 0) != (float)(2 * i + 1); /* a sum as short as this is exact */
    if (rank->number != 0 || (i < NUM_WARMUP && !is_last)) continue;
    rank->run->small_ns[rank->run->num_small++] = sml_clock_ns() - start_ns;
  }
}

/* Until the time is over, which rank 0 says in the first element of what it contributes. */
static void sum_bulk(struct rank *rank, sml_job *job, float *in, float *out) {
  const uint64_t start_ns = sml_clock_ns(), time_ns = (uint64_t)(rank->run->seconds * 1e9);
  uint64_t end_ns = start_ns;
  for (uint32_t i = 0; i < BULK_ELEMENTS; i++) in[i] = (float)(i % 1000);
  for (bool is_last = time_ns == 0; !is_last;) {
    in[0] = rank->number == 0 && sml_clock_ns() - start_ns >= time_ns ? 1 : 0;
    if (!sum(rank, job, in, out, BULK_ELEMENTS, SML_FLOAT32)) return;
    is_last = out[0] > 0.5f;
    rank->num_wrong += fabsf(out[777] - 2 * 777) > 0.01f;
    end_ns = sml_clock_ns();
    if (rank->number == 0) rank->run->bulk_bytes += (double)BULK_ELEMENTS * 4;
  }
  if (rank->number == 0) rank->run->bulk_s = (double)(end_ns - start_ns) / 1e9;
}

static void run_job(struct rank *rank, sml_job *job, void *in, void *out) {
  sum_exactly(rank, job, in, out);
  if (rank->status == SML_OK) sum_small(rank, job);
  if (rank->status == SML_OK) sum_bulk(rank, job, in, out);
  if (rank->status != SML_OK) sml_job_abort(job, "switchml doctor gives up");
  rank->stats = (sml_stats)SML_STATS_INIT;
  sml_job_stats(job, &rank->stats);
}

static void *run_rank(void *argument) {
  struct rank *rank = argument;
  struct run *run = rank->run;
  sml_context *context = NULL;
  sml_job *job = NULL;
  void *in = malloc(BULK_ELEMENTS * 4), *out = malloc(BULK_ELEMENTS * 4);
  sml_job_options options = SML_JOB_OPTIONS_INIT;
  options.aggregator = run->aggregator;
  options.name = run->job_name;
  options.rank = rank->number;
  options.world_size = NUM_RANKS;
  options.join_timeout_ns = sml_min_u64(JOIN_NS, run->patience_ns);
  options.operation_timeout_ns = OPERATION_NS;
  options.no_shared_memory = 1; /* what is tried is the network */
  if (run->aggregator[0] == 0) {
    options.allgather = gather;
    options.allgather_user = rank;
  }
  const bool has_context =
      check(rank, in && out ? SML_OK : SML_ERR_NO_MEMORY) && check(rank, sml_context_create(NULL, &context));
  /* Both or none: the exchange without an aggregator waits for both. */
  pthread_barrier_wait(&run->place.barrier);
  if (has_context && run->ranks[1 - rank->number].status == SML_OK &&
      check(rank, sml_job_create(context, &options, &job)))
    run_job(rank, job, in, out);
  sml_job_destroy(job);
  sml_context_destroy(context);
  free(in);
  free(out);
  return NULL;
}

/* False: no threads. */
static bool run_both(struct run *run) {
  if (pthread_barrier_init(&run->place.barrier, NULL, NUM_RANKS) != 0) return false;
  for (uint32_t r = 0; r < NUM_RANKS; r++) run->ranks[r] = (struct rank){.run = run, .number = r};
  if (pthread_create(&run->ranks[1].thread, NULL, run_rank, &run->ranks[1]) != 0) return false;
  run_rank(&run->ranks[0]);
  pthread_join(run->ranks[1].thread, NULL);
  pthread_barrier_destroy(&run->place.barrier);
  return true;
}

/* --- what came of it --- */

static int compare_times(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

static void find_failure(struct sml_doctor *d, const struct sml_doctor_target *t, const struct rank *rank) {
  const bool is_room = rank->status == SML_ERR_REFUSED && t;
  const char *advice;
  switch (rank->status) {
    case SML_ERR_REFUSED: advice = sml_doctor_advise_refused(rank->detail); break;
    case SML_ERR_AGGREGATOR_LOST:
    case SML_ERR_UNREACHABLE:
      advice = "it answered a moment ago: look in its log, or the service manager's, why switchmld ended";
      break;
    case SML_ERR_TIMEOUT:
      advice =
          "packets are lost, or the aggregator is stopped or overloaded: look at 'switchml status' (dropped, "
          "retrans) while doctor runs";
      break;
    case SML_ERR_INTEGRITY:
      advice = "the aggregator adds wrong: take its machine out of service and test its memory";
      break;
    case SML_ERR_INVALID_ARGUMENT:
    case SML_ERR_UNSUPPORTED: advice = "correct the setting that is named"; break;
    default:
      advice = t ? "do what the sentence says; the aggregator's log has its side of it"
                 : "do what the sentence says: it is this host's own loopback";
  }
  sml_doctor_find(d, is_room ? SML_DOCTOR_ROOM : SML_DOCTOR_SUM, is_room ? "room" : "sum", SML_FINDING_FAILED,
                  json_pack("{s:i, s:s}", "status", (int)rank->status, "status_text", sml_status_string(rank->status)),
                  advice, "a job of 2 ranks of this process failed: %s",
                  rank->detail[0] ? rank->detail : sml_status_string(rank->status));
}

static void find_latency(struct sml_doctor *d, struct run *run) {
  uint64_t *ns = run->small_ns;
  const uint32_t n = run->num_small;
  qsort(ns, n, sizeof *ns, compare_times);
  const double min_us = (double)ns[0] / 1e3, median_us = (double)ns[n / 2] / 1e3,
               p99_us = (double)ns[n * 99 / 100] / 1e3;
  sml_doctor_find(
      d, SML_DOCTOR_SUM, "latency", SML_FINDING_OK,
      json_pack("{s:f, s:f, s:f, s:i}", "min_us", min_us, "median_us", median_us, "p99_us", p99_us, "count", (int)n),
      "", "%u all-reduces of 4 bytes: %.0f us at least, %.0f us median, %.0f us p99", n, min_us, median_us, p99_us);
}

static void find_loss(struct sml_doctor *d, const struct run *run) {
  uint64_t num_sent = 0, num_updates = 0, num_results = 0, num_asked = 0, num_dropped = 0;
  for (uint32_t r = 0; r < NUM_RANKS; r++) {
    num_sent += run->ranks[r].stats.tx_packets;
    num_updates += run->ranks[r].stats.retransmissions;
    num_results += run->ranks[r].stats.lost_results;
    num_asked += run->ranks[r].stats.probes;
    num_dropped += run->ranks[r].stats.dropped_packets;
  }
  /* A lost update is sent again, a lost result comes again. Questions are no measure: a busy machine asks about what is
   * only late. */
  const double sent = num_sent > 0 ? (double)num_sent : 1, up = (double)num_updates / sent,
               down = (double)num_results / sent;
  const bool is_ok = up < NOTEWORTHY_LOSS && down < NOTEWORTHY_LOSS;
  sml_doctor_find(
      d, SML_DOCTOR_SUM, "loss", is_ok ? SML_FINDING_OK : SML_FINDING_WARNING,
      json_pack("{s:I, s:I, s:I, s:I, s:I}", "packets", (json_int_t)num_sent, "retransmissions",
                (json_int_t)num_updates, "lost_results", (json_int_t)num_results, "probes", (json_int_t)num_asked,
                "dropped", (json_int_t)num_dropped),
      is_ok ? ""
            : "sums stay right, but it costs time: raise net.core.rmem_max on both hosts (buffers, above), look at "
              "the NICs' and switches' counters (ethtool -S), and at what else the links carry",
      "%llu packets sent: %llu updates (%.2f %%) and %llu results (%.2f %%) were lost and came again; %llu questions, "
      "%llu packets received in vain",
      (unsigned long long)num_sent, (unsigned long long)num_updates, up * 100, (unsigned long long)num_results,
      down * 100, (unsigned long long)num_asked, (unsigned long long)num_dropped);
}

/* The system's own word, before anything is guessed from what was lost. */
static void find_unsent(struct sml_doctor *d, const struct run *run) {
  uint64_t num_packets = 0, num_sent = 0;
  int error = 0;
  for (uint32_t r = 0; r < NUM_RANKS; r++) {
    num_packets += run->ranks[r].stats.unsent_packets;
    num_sent += run->ranks[r].stats.tx_packets;
    if (run->ranks[r].stats.unsent_errno != 0) error = (int)run->ranks[r].stats.unsent_errno;
  }
  if (num_packets == 0) return;
  sml_doctor_find(d, SML_DOCTOR_SUM, "sending", SML_FINDING_WARNING,
                  json_pack("{s:I, s:I, s:s}", "unsent", (json_int_t)num_packets, "packets", (json_int_t)num_sent,
                            "error", strerror(error)),
                  "look at this host's firewall (outgoing), routes, MTU, and its queue (tc -s qdisc)",
                  "this host's system did not take %llu packets, for the last one: %s", (unsigned long long)num_packets,
                  strerror(error));
}

static void find_rate(struct sml_doctor *d, const struct sml_doctor_target *t, const struct run *run) {
  const sml_stats *stats = &run->ranks[0].stats;
  if (run->bulk_s <= 0) return;
  const double mbytes_s = run->bulk_bytes / run->bulk_s / 1e6, mbps = NUM_RANKS * mbytes_s * 8;
  char share[120] = "";
  if (t && t->link.mbps)
    snprintf(share, sizeof share, ": the 2 ranks together %.0f %% of %s's %u Mbit/s", 100 * mbps / t->link.mbps,
             t->link.name, t->link.mbps);
  sml_doctor_find(
      d, SML_DOCTOR_SUM, "rate", SML_FINDING_OK,
      json_pack("{s:f, s:f, s:i, s:i, s:i}", "MB_per_s", mbytes_s, "seconds", run->bulk_s, "slots",
                (int)stats->num_slots, "chunk_bytes", (int)stats->chunk_bytes, "lanes", (int)stats->num_lanes),
      "", "%.0f MB/s each way and rank over %.1f s (%u lane%s, %u slots, chunks of %u bytes)%s", mbytes_s, run->bulk_s,
      stats->num_lanes, stats->num_lanes == 1 ? "" : "s", stats->num_slots, stats->chunk_bytes, share);
}

static void find_all(struct sml_doctor *d, const struct sml_doctor_target *t, struct run *run) {
  const struct rank *bad = NULL;
  uint32_t num_wrong = 0;
  for (uint32_t r = 0; r < NUM_RANKS; r++) {
    num_wrong += run->ranks[r].num_wrong;
    /* Who gives up because the other one did only repeats it. */
    if (run->ranks[r].status != SML_OK && (!bad || bad->status == SML_ERR_ABORTED)) bad = &run->ranks[r];
  }
  if (bad) {
    find_failure(d, t, bad);
  } else if (num_wrong > 0) {
    sml_doctor_find(
        d, SML_DOCTOR_SUM, "sum", SML_FINDING_FAILED, json_pack("{s:i}", "wrong", (int)num_wrong),
        "do not train with it: set SWITCHML_CHECK=1 on all ranks to have it found at once, compare versions, "
        "and test the machines' memory",
        "%u sums of a job of 2 ranks were wrong", num_wrong);
  } else {
    sml_doctor_find(d, SML_DOCTOR_SUM, "sum", SML_FINDING_OK, NULL, "",
                    "a job of 2 ranks, %s, summed %u integers and %u floats right",
                    t ? "both here" : "with an aggregator embedded in this process, over loopback", EXACT_ELEMENTS,
                    run->num_small);
    find_latency(d, run);
    find_unsent(d, run);
    find_loss(d, run);
    find_rate(d, t, run);
  }
}

void sml_doctor_check_sum(struct sml_doctor *d, const struct sml_doctor_target *t) {
  struct run *run = calloc(1, sizeof *run);
  if (!run) {
    d->is_broken = true;
    return;
  }
  run->aggregator = t ? t->text : "";
  unsetenv("SWITCHML_RETRY"); /* or a lost aggregator would be waited for */
  run->patience_ns = sml_doctor_patience(d, 2 * JOIN_NS);
  snprintf(run->job_name, sizeof run->job_name, "%.50s.sum", t ? t->job_name : "doctor");
  run->small_limit_ns = sml_min_u64(SMALL_NS, run->patience_ns / 4);
  run->seconds = fmin(d->options.seconds, (double)run->patience_ns / 2e9);
  if (d->has_bad_settings)
    sml_doctor_find(d, SML_DOCTOR_SUM, "sum", SML_FINDING_SKIPPED, NULL, "", "no job can be made with these settings");
  else if (t && t->is_full)
    sml_doctor_find(d, SML_DOCTOR_SUM, "sum", SML_FINDING_SKIPPED, NULL, "", "there is no room for a job");
  else if (run->patience_ns < SML_NS_PER_S)
    sml_doctor_find(d, SML_DOCTOR_SUM, "sum", SML_FINDING_SKIPPED, NULL, "raise --timeout", "no time is left");
  else if (run_both(run)) find_all(d, t, run);
  else d->is_broken = true;
  free(run);
}
