/* SPDX-License-Identifier: Apache-2.0 */
#include "meet/job_settings.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/fork.h"
#include "core/wire.h"
#include "shm/shm_relay.h"
#include "meet/key.h"
#include "meet/types.h"
#include "process/log.h"
#include "process/settings.h"

#define MAX_WORLD_SIZE SML_CTL_MAX_WORLD_SIZE
#define MIN_LEASE_NS (20 * SML_NS_PER_MS)
#define MAX_LEASE_NS (3600 * SML_NS_PER_S)
#define DEFAULT_LEASE_NS (60 * SML_NS_PER_S) /* a breakpoint, a moved machine, a link that comes back */
#define MAX_SLOTS 32768u
#define MIN_CHUNK_BYTES 256u /* that an aggregator takes */
#define MAX_RETRY_NS (7 * 24 * 3600 * SML_NS_PER_S)
#define MAX_DATAGRAM_BYTES 65507u

sml_status sml_job_settings_read(const sml_job_options *options, struct sml_job_settings *s) {
  memset(s, 0, sizeof *s);
  sml_job_options *o = &s->options;
  const sml_status status = sml_options_copy(o, sizeof *o, options, "sml_job_options");
  if (status != SML_OK) return status;
  if (o->world_size == 0 && o->rank == 0) {
    const sml_status rank_status = sml_rank_from_environment(&o->rank, &o->world_size, &s->rank_source);
    if (rank_status != SML_OK) return rank_status;
  }
  if (o->world_size < 1 || o->world_size > MAX_WORLD_SIZE)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "world_size is %u: from 1 to %u", o->world_size, MAX_WORLD_SIZE);
  if (o->aggregator == NULL) o->aggregator = getenv("SWITCHML_AGGREGATOR");
  if (o->aggregator == NULL) o->aggregator = "";
  if (o->name == NULL) o->name = "default";
  if (o->join_timeout_ns == 0) o->join_timeout_ns = 60 * SML_NS_PER_S;
  if (o->operation_timeout_ns == 0) o->operation_timeout_ns = 60 * SML_NS_PER_S;
  snprintf(s->name, sizeof s->name, "%s", o->name);
  return SML_OK;
}

_Thread_local uint64_t sml_test_host;

static bool is_name(const char *name) {
  static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:/-";
  const size_t num_bytes = strlen(name);
  return num_bytes > 0 && num_bytes < SML_JOB_NAME_BYTES && strspn(name, allowed) == num_bytes;
}

static sml_status read_sizes(struct sml_job_settings *s) {
  sml_job_options *o = &s->options;
  sml_status status = SML_OK;
  if (o->num_slots == 0) status = sml_settings_read_number("SWITCHML_SLOTS", 1, MAX_SLOTS, &o->num_slots);
  if (status == SML_OK && o->max_datagram_bytes == 0) {
    o->max_datagram_bytes = 8960;
    status = sml_settings_read_number("SWITCHML_MAX_DATAGRAM", 1, MAX_DATAGRAM_BYTES, &o->max_datagram_bytes);
  }
  return status;
}

static sml_status read_feature(const char *option, uint32_t value, const char *variable, uint32_t feature,
                               uint32_t *features) {
  bool is_on = value == 1;
  if (value > 2)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "%s is %u: 1 is on, 2 is off, 0 as %s says", option, value, variable);
  const sml_status status = value == 0 ? sml_settings_read_switch(variable, &is_on) : SML_OK;
  if (is_on) *features |= feature;
  return status;
}

/* Whether the option, or 0 in the environment, turns something off. */
static sml_status read_refusal(const char *option, uint32_t no, const char *variable, bool *is_off) {
  bool is_on = true;
  if (no > 1) return sml_fail(SML_ERR_INVALID_ARGUMENT, "%s is %u: 1 or 0", option, no);
  const sml_status status = sml_settings_read_switch(variable, &is_on);
  *is_off = no != 0 || !is_on;
  return status;
}

/* Seconds of the environment for an option that was left open. */
static sml_status read_seconds(const char *name, uint64_t min_ns, uint64_t max_ns, uint64_t *option) {
  const char *text = sml_settings_environment(name);
  if (text == NULL || *option != 0) return SML_OK;
  const double min_s = (double)min_ns / (double)SML_NS_PER_S, max_s = (double)max_ns / (double)SML_NS_PER_S;
  char *end;
  const double seconds = strtod(text, &end);
  if (((text[0] < '0' || text[0] > '9') && text[0] != '.') || *end != 0 || !(seconds >= min_s && seconds <= max_s))
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "%s is '%.64s': set seconds, as in 30 or 2.5, from %g to %.0f", name,
                    text, min_s, max_s);
  *option = (uint64_t)(seconds * (double)SML_NS_PER_S);
  return SML_OK;
}

static sml_status read_lease(struct sml_job_settings *s) {
  sml_job_options *o = &s->options;
  const sml_status status = read_seconds("SWITCHML_LEASE", MIN_LEASE_NS, MAX_LEASE_NS, &o->lease_ns);
  if (o->lease_ns == 0) o->lease_ns = DEFAULT_LEASE_NS;
  return status;
}

static sml_status read_retry(struct sml_job_settings *s) {
  sml_job_options *o = &s->options;
  const sml_status status = read_seconds("SWITCHML_RETRY", 0, MAX_RETRY_NS, &o->retry_ns);
  if (status != SML_OK) return status;
  if (o->retry_ns > MAX_RETRY_NS)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "retry_ns is %llu: at most 7 days", (unsigned long long)o->retry_ns);
  if (o->retry_ns != 0) s->features |= SML_FEATURE_RETRY;
  return SML_OK;
}

static sml_status read_key(struct sml_job_settings *s) {
  const sml_job_options *o = &s->options;
  const char *path = o->key_file != NULL ? o->key_file : sml_settings_environment("SWITCHML_KEY_FILE");
  const char *name = o->key_name != NULL ? o->key_name : sml_settings_environment("SWITCHML_KEY_NAME");
  if (name != NULL && name[0] == 0) name = NULL;
  if (path != NULL && path[0] != 0) return sml_key_read(path, name, s->key_name, &s->key);
  if (o->key_name == NULL || name == NULL) return SML_OK;
  return sml_fail(SML_ERR_INVALID_ARGUMENT, "key_name is '%.64s', but no key file is named: set key_file", name);
}

/* As batch systems set it (ulimit -f); it counts for memory that is shared, too. Which rank of a host will allocate it,
 * and how much, shows when all have joined: too late to do without. */
static void heed_file_limit(struct sml_job_settings *s) {
  const uint32_t num_ranks = s->options.world_size;
  const uint64_t group_bytes = sml_shm_segment_bytes(num_ranks);
  const uint64_t relay_bytes = sml_shm_relay_most_bytes(num_ranks);
  const uint64_t limit_bytes = sml_shm_limit_bytes();
  const bool is_too_low = limit_bytes < group_bytes;
  char text[256];
  if (limit_bytes >= sml_max_u64(group_bytes, relay_bytes)) return;
  s->no_combining = true;
  if (is_too_low) memset(s->host, 0, sizeof s->host);
  snprintf(text, sizeof text,
           "job '%.64s': no memory is shared%s: the limit of file sizes (ulimit -f, RLIMIT_FSIZE) is %llu bytes, and "
           "ranks of one host may need %llu",
           s->options.name, is_too_low ? "" : " if there are several hosts", (unsigned long long)limit_bytes,
           (unsigned long long)(is_too_low ? group_bytes : relay_bytes));
  sml_lib_log_line(SML_LIB_LOG_WARN, s->options.rank, text);
}

bool sml_job_settings_identity(uint8_t *id_out) {
  sml_fork_lock();
  const bool has_one = sml_shm_identity(id_out);
  sml_fork_unlock();
  return has_one;
}

/* A job with retry keeps inputs and replays operations over the network: it does not share memory. */
static sml_status read_shared_memory(struct sml_job_settings *s) {
  bool is_off = false;
  const sml_status status =
      read_refusal("no_shared_memory", s->options.no_shared_memory, "SWITCHML_SHARED_MEMORY", &is_off);
  if (status != SML_OK || is_off || (s->features & SML_FEATURE_RETRY) != 0) return status;
  uint8_t host[16];
  if (s->options.world_size > 1 && sml_job_settings_identity(host)) memcpy(s->host, host, sizeof s->host);
  if ((s->host[0] | s->host[1]) == 0) return SML_OK;
  s->host[1] ^= sml_test_host;
  heed_file_limit(s);
  return SML_OK;
}

/* By itself it gives nobody a say that has none: who sends to a group must still look like the aggregator. So it is
 * tried wherever the aggregator's operator offers it. */
static sml_status read_multicast(struct sml_job_settings *s) {
  return read_refusal("no_multicast", s->options.no_multicast, "SWITCHML_MULTICAST", &s->no_multicast);
}

static sml_status read_one_way(struct sml_job_settings *s) {
  return read_refusal("no_one_way", 0, "SWITCHML_ONE_WAY", &s->no_one_way);
}

/* What the smallest chunk needs. */
static uint32_t min_datagram_bytes(const struct sml_job_settings *s) {
  return sml_head_bytes(s->key_name[0] != 0) + MIN_CHUNK_BYTES +
         ((s->features & SML_FEATURE_CHECK) != 0 ? SML_CHECK_BYTES : 0);
}

/* No aggregator is configured: the ranks embed it. */
static sml_status check_embedded(const sml_job_options *o) {
  if (o->allgather == NULL)
    return sml_fail(SML_ERR_NOT_CONFIGURED,
                    "no aggregator is configured: set SWITCHML_AGGREGATOR=host:port, the address of a running "
                    "switchmld, or SWITCHML_RENDEZVOUS=host:port, where rank 0 listens and the ranks do without");
  if (o->retry_ns != 0)
    return sml_fail(
        SML_ERR_UNSUPPORTED,
        "retry_ns, or SWITCHML_RETRY, is set, but no aggregator is configured: ranks that aggregate themselves "
        "can't outlive the loss of one");
  return SML_OK;
}

sml_status sml_job_settings_check(struct sml_job_settings *s) {
  const sml_job_options *o = &s->options;
  sml_status status = read_sizes(s);
  if (status == SML_OK) status = read_feature("check", o->check, "SWITCHML_CHECK", SML_FEATURE_CHECK, &s->features);
  if (status == SML_OK) status = read_lease(s);
  if (status == SML_OK) status = read_retry(s);
  if (status == SML_OK) status = sml_types_read(&s->options, &s->features);
  if (status == SML_OK) status = read_feature("exact", o->exact, "SWITCHML_EXACT", SML_FEATURE_EXACT, &s->features);
  if (status == SML_OK) status = read_shared_memory(s);
  if (status == SML_OK) status = read_multicast(s);
  if (status == SML_OK) status = read_one_way(s);
  if (status == SML_OK) status = read_key(s);
  if (status != SML_OK) return status;
  if (o->rank >= o->world_size)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "rank is %u: it must be below world_size, %u", o->rank, o->world_size);
  if (!is_name(o->name))
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "job name '%.70s': 1 to 63 letters, digits or . _ : / -", o->name);
  if (o->lease_ns < MIN_LEASE_NS || o->lease_ns > MAX_LEASE_NS)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "lease_ns is %llu: from 20 ms to 1 h", (unsigned long long)o->lease_ns);
  if ((o->num_slots != 0 && !sml_is_pow2(o->num_slots)) || o->num_slots > MAX_SLOTS)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "num_slots, or SWITCHML_SLOTS, is %u: a power of two up to %u",
                    o->num_slots, MAX_SLOTS);
  if (o->max_datagram_bytes < min_datagram_bytes(s) || o->max_datagram_bytes > MAX_DATAGRAM_BYTES)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "max_datagram_bytes, or SWITCHML_MAX_DATAGRAM, is %u: from %u to %u",
                    o->max_datagram_bytes, min_datagram_bytes(s), MAX_DATAGRAM_BYTES);
  if (o->world_size == 1) return SML_OK;
  if (o->aggregator[0] == 0) return check_embedded(o);
  status = sml_shards_parse(o->aggregator, &s->places);
  if (status == SML_OK && s->places.num_shards > 1 && o->retry_ns != 0)
    return sml_fail(
        SML_ERR_UNSUPPORTED,
        "retry_ns, or SWITCHML_RETRY, is set and %u aggregators are listed: a job can only go on after the loss "
        "of one that it has alone",
        s->places.num_shards);
  return status;
}

/* ---- the exchange ---- */

#define RECORD_MAGIC 0x534d4c58u /* "SMLX" */
#define API_VERSION ((uint32_t)(SML_VERSION_MAJOR << 16 | SML_VERSION_MINOR))
#define DETAIL_OFFSET 40u
#define RECORD_BYTES 256u
#define RECORD_DETAIL_BYTES (RECORD_BYTES - DETAIL_OFFSET)

struct record {
  uint32_t magic, api_version, world_size, rank;
  int32_t status;
  uint64_t settings_hash, random;
  char detail[RECORD_DETAIL_BYTES];
};

static void write_record(uint8_t *out, const struct record *r) {
  memset(out, 0, RECORD_BYTES);
  sml_store_be32(out, r->magic);
  sml_store_be32(out + 4, r->api_version);
  sml_store_be32(out + 8, r->world_size);
  sml_store_be32(out + 12, r->rank);
  sml_store_be32(out + 16, (uint32_t)r->status);
  sml_store_be64(out + 24, r->settings_hash);
  sml_store_be64(out + 32, r->random);
  memcpy(out + DETAIL_OFFSET, r->detail, RECORD_DETAIL_BYTES);
}

static void read_record(const uint8_t *in, struct record *r) {
  r->magic = sml_load_be32(in);
  r->api_version = sml_load_be32(in + 4);
  r->world_size = sml_load_be32(in + 8);
  r->rank = sml_load_be32(in + 12);
  r->status = (int32_t)sml_load_be32(in + 16);
  r->settings_hash = sml_load_be64(in + 24);
  r->random = sml_load_be64(in + 32);
  memcpy(r->detail, in + DETAIL_OFFSET, RECORD_DETAIL_BYTES);
  r->detail[RECORD_DETAIL_BYTES - 1] = 0;
}

static uint64_t hash_bytes(uint64_t h, const void *data, size_t num_bytes) {
  for (size_t i = 0; i < num_bytes; i++) h = sml_mix64(h + ((const uint8_t *)data)[i] + 1);
  return h;
}

static uint64_t hash_settings(const struct sml_job_settings *s) {
  const sml_job_options *o = &s->options;
  const uint64_t numbers[] = {o->num_slots, o->max_datagram_bytes, o->lease_ns, o->retry_ns, s->features};
  uint64_t h = hash_bytes(1, numbers, sizeof numbers);
  h = hash_bytes(h, s->key_name, strlen(s->key_name) + 1); /* the name only: the records are public */
  h = hash_bytes(h, o->aggregator, strlen(o->aggregator) + 1);
  return hash_bytes(h, s->name, strlen(s->name));
}

static bool has_failed(const struct record *r) {
  return r->status >= SML_ERR_KEY && r->status < 0;
}

/* A rank that only waited for others, or was told of them, knows less than one that failed by itself. */
static sml_status blame(const uint8_t *records, uint32_t world_size, uint32_t first) {
  struct record r;
  for (uint32_t i = first; i < world_size; i++) {
    read_record(records + (size_t)i * RECORD_BYTES, &r);
    const bool is_of_another =
        r.status == SML_ERR_TIMEOUT || r.status == SML_ERR_RANK_LOST || r.status == SML_ERR_ABORTED;
    if (r.magic == RECORD_MAGIC && has_failed(&r) && !is_of_another)
      return sml_fail((sml_status)r.status, "rank %u: %s", i, r.detail);
  }
  read_record(records + (size_t)first * RECORD_BYTES, &r);
  return sml_fail((sml_status)r.status, "rank %u: %s", first, r.detail);
}

/* The first rank that failed or sees the job differently than rank 0 decides for all: they look at the
 * same records in the same order. */
static sml_status judge_records(const uint8_t *records, uint32_t world_size, uint64_t *random_out) {
  struct record first;
  read_record(records, &first);
  for (uint32_t i = 0; i < world_size; i++) {
    struct record r;
    read_record(records + (size_t)i * RECORD_BYTES, &r);
    if (r.magic != RECORD_MAGIC || r.api_version != first.api_version)
      return sml_fail(SML_ERR_VERSION, "rank %u runs another version of libswitchml than rank 0", i);
    if (has_failed(&r)) return blame(records, world_size, i);
    if (r.rank != i)
      return sml_fail(SML_ERR_INVALID_ARGUMENT, "the all-gather callback's rank %u calls itself rank %u", i, r.rank);
    if (r.world_size != first.world_size)
      return sml_fail(SML_ERR_INVALID_ARGUMENT, "rank %u has world_size %u, but rank 0 has %u", i, r.world_size,
                      first.world_size);
    if (r.settings_hash != first.settings_hash)
      return sml_fail(SML_ERR_INVALID_ARGUMENT,
                      "ranks 0 and %u have different settings: aggregator, name, num_slots, "
                      "max_datagram_bytes, lease_ns, check, retry_ns, key_name, float_bits, float64_bits and exact "
                      "must be equal on all ranks",
                      i);
  }
  *random_out = first.random;
  return SML_OK;
}

sml_status sml_job_settings_gather(const struct sml_job_settings *s, const void *mine, void *all, size_t num_bytes) {
  const sml_job_options *o = &s->options;
  const int error = o->allgather(o->allgather_user, mine, all, num_bytes);
  if (error == 0) return SML_OK;
  if (s->has_rendezvous) return (sml_status)error; /* it has said why */
  return sml_fail(SML_ERR_SYSTEM, "the all-gather callback failed (it returned %d)", error);
}

/* Ranks that have a key take none that could not read its own: it need not knock. */
static bool is_shut_out(const struct sml_job_settings *s, sml_status status) {
  const char *path = s->options.key_file != NULL ? s->options.key_file : sml_settings_environment("SWITCHML_KEY_FILE");
  return status != SML_OK && s->has_rendezvous && path != NULL && path[0] != 0 && s->key_name[0] == 0;
}

static sml_status exchange(const struct sml_job_settings *s, sml_status status, uint64_t *random_out) {
  const sml_job_options *o = &s->options;
  struct record r = {.magic = RECORD_MAGIC,
                     .api_version = API_VERSION,
                     .world_size = o->world_size,
                     .rank = o->rank,
                     .status = status,
                     .settings_hash = hash_settings(s),
                     .random = sml_random_bits()};
  if (is_shut_out(s, status)) return status;
  char detail[SML_ERROR_DETAIL_BYTES];
  snprintf(detail, sizeof detail, "%s", status != SML_OK ? sml_error_detail() : "");
  snprintf(r.detail, sizeof r.detail, "%.*s", (int)sizeof r.detail - 1, detail);
  uint8_t mine[RECORD_BYTES];
  write_record(mine, &r);
  uint8_t *all = calloc(o->world_size, RECORD_BYTES);
  if (all == NULL) return sml_fail(SML_ERR_NO_MEMORY, "no memory for the records of %u ranks", o->world_size);
  sml_status verdict = sml_job_settings_gather(s, mine, all, RECORD_BYTES);
  if (verdict == SML_OK) verdict = judge_records(all, o->world_size, random_out);
  else if (status != SML_OK) verdict = sml_fail(status, "%s", detail); /* why others left, or wait */
  free(all);
  return verdict;
}

sml_status sml_job_settings_exchange(struct sml_job_settings *s, sml_status status) {
  if (s->options.allgather == NULL) return status;
  uint64_t random;
  const sml_status verdict = exchange(s, status, &random);
  if (verdict != SML_OK) return verdict;
  snprintf(s->name, sizeof s->name, "%.46s.%016llx", s->options.name, (unsigned long long)random);
  return SML_OK;
}

sml_status sml_job_settings_agree(const struct sml_job_settings *s, sml_status status) {
  uint64_t unused;
  return s->options.allgather == NULL ? status : exchange(s, status, &unused);
}
