/* SPDX-License-Identifier: Apache-2.0 */
#include "meet/embedded.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "base/fork.h"
#include "meet/interfaces.h"
#include "quant/narrow.h"

#define MAGIC 0x534d4c48u /* "SMLH" */
#define KEY_NAME "ranks"

/* ---- what ranks tell each other ---- */

/* First: who is where; from rank 0 the key. */
#define WHO_BYTES 56u
struct who {
  bool has_v4, has_v6; /* addresses */
  bool has_failed;     /* it says why in the second round */
  uint64_t place[2];   /* equal for ranks that reach each other over loopback; 0: unknown */
  uint64_t host[2];    /* that combine, see sml_job_settings; 0: alone */
  struct sml_key key;
};

static void write_who(uint8_t *out, const struct who *who) {
  memset(out, 0, WHO_BYTES);
  sml_store_be32(out, MAGIC);
  sml_store_be32(out + 4, (uint32_t)who->has_v4 | (uint32_t)who->has_v6 << 1 | (uint32_t)who->has_failed << 2);
  for (uint32_t i = 0; i < 2; i++) {
    sml_store_be64(out + 8 + 8 * i, who->place[i]);
    sml_store_be64(out + 24 + 8 * i, who->host[i]);
  }
  sml_store_be64(out + 40, who->key.k0);
  sml_store_be64(out + 48, who->key.k1);
}

static void read_who(const uint8_t *in, struct who *who) {
  const uint32_t bits = sml_load_be32(in + 4);
  who->has_v4 = (bits & 1) != 0;
  who->has_v6 = (bits & 2) != 0;
  who->has_failed = (bits & 4) != 0;
  for (uint32_t i = 0; i < 2; i++) {
    who->place[i] = sml_load_be64(in + 8 + 8 * i);
    who->host[i] = sml_load_be64(in + 24 + 8 * i);
  }
  who->key = (struct sml_key){.k0 = sml_load_be64(in + 40), .k1 = sml_load_be64(in + 48)};
}

/* Second: where their shards are, or what failed. */
#define OFFER_DETAIL_BYTES 184u
#define OFFER_ADDRS 16u
#define OFFER_DETAIL (OFFER_ADDRS + SML_MAX_PLACES * 17u)
#define OFFER_BYTES (OFFER_DETAIL + OFFER_DETAIL_BYTES)
struct offer {
  sml_status status;
  struct sml_addr addrs[SML_MAX_PLACES];
  uint32_t num_addrs; /* 0: it embeds no shard */
  char detail[OFFER_DETAIL_BYTES];
};

static void write_offer(uint8_t *out, const struct offer *offer) {
  memset(out, 0, OFFER_BYTES);
  sml_store_be32(out, MAGIC);
  sml_store_be32(out + 4, (uint32_t)offer->status);
  sml_store_be32(out + 8, offer->num_addrs);
  if (offer->num_addrs > 0) sml_store_be32(out + 12, sml_addr_port(&offer->addrs[0]));
  for (uint32_t i = 0; i < offer->num_addrs; i++) {
    uint32_t num_bytes;
    const uint8_t *ip = sml_addr_ip(&offer->addrs[i], &num_bytes);
    out[OFFER_ADDRS + 17 * i] = (uint8_t)num_bytes;
    memcpy(out + OFFER_ADDRS + 17 * i + 1, ip, num_bytes);
  }
  memcpy(out + OFFER_DETAIL, offer->detail, OFFER_DETAIL_BYTES);
}

/* False: it is none. */
static bool read_offer(const uint8_t *in, struct offer *offer) {
  offer->status = (sml_status)(int32_t)sml_load_be32(in + 4);
  offer->num_addrs = sml_load_be32(in + 8);
  const uint16_t port = (uint16_t)sml_load_be32(in + 12);
  memcpy(offer->detail, in + OFFER_DETAIL, OFFER_DETAIL_BYTES);
  offer->detail[OFFER_DETAIL_BYTES - 1] = 0;
  if (sml_load_be32(in) != MAGIC || offer->num_addrs > SML_MAX_PLACES) return false;
  for (uint32_t i = 0; i < offer->num_addrs; i++) {
    const uint8_t *a = in + OFFER_ADDRS + 17 * i;
    if (a[0] != 4 && a[0] != 16) return false;
    offer->addrs[i] = sml_addr_of_ip(a[0] == 4 ? AF_INET : AF_INET6, a + 1, port);
  }
  return true;
}

/* out: one record of each rank, the caller's to free; NULL if it fails. */
static sml_status gather(const struct sml_job_settings *s, const uint8_t *mine, uint32_t num_bytes, uint8_t **out) {
  const sml_job_options *o = &s->options;
  *out = calloc(o->world_size, num_bytes);
  if (*out == NULL) return sml_fail(SML_ERR_NO_MEMORY, "no memory for the records of %u ranks", o->world_size);
  const sml_status status = sml_job_settings_gather(s, mine, *out, num_bytes);
  if (status == SML_OK) return SML_OK;
  free(*out);
  *out = NULL;
  return status;
}

/* ---- who embeds a shard ---- */

static bool is_same(const uint64_t a[2], const uint64_t b[2]) {
  return (a[0] | a[1]) != 0 && a[0] == b[0] && a[1] == b[1];
}

struct plan {
  uint32_t num_shards;
  uint32_t shard_ranks[SML_MAX_SHARDS]; /* ascending */
  uint32_t mine;                        /* this rank's shard; SML_MAX_SHARDS: none */
  bool is_one_place;                    /* all ranks reach each other over loopback */
  int family;
  struct sml_key key;
  struct who own;
};

/* The lowest rank of each host has a shard, the first of them if there are too many. */
static bool embeds_shard(const uint8_t *all, uint32_t rank) {
  struct who who, other;
  read_who(all + (size_t)rank * WHO_BYTES, &who);
  for (uint32_t r = 0; r < rank; r++) {
    read_who(all + (size_t)r * WHO_BYTES, &other);
    if (is_same(who.host, other.host)) return false;
  }
  return true;
}

static sml_status make_plan(const struct sml_job_settings *s, const uint8_t *whos, struct plan *plan) {
  bool has_v4 = true, has_v6 = true, has_failed = false;
  *plan = (struct plan){.own = plan->own, .mine = SML_MAX_SHARDS, .is_one_place = true};
  for (uint32_t r = 0; r < s->options.world_size; r++) {
    struct who who;
    read_who(whos + (size_t)r * WHO_BYTES, &who);
    if (sml_load_be32(whos + (size_t)r * WHO_BYTES) != MAGIC)
      return sml_fail(SML_ERR_VERSION, "rank %u runs another version of libswitchml", r);
    if (r == 0) plan->key = who.key;
    has_failed = has_failed || who.has_failed;
    plan->is_one_place = plan->is_one_place && is_same(who.place, plan->own.place);
    if (plan->num_shards == SML_MAX_SHARDS || !embeds_shard(whos, r)) continue;
    has_v4 = has_v4 && who.has_v4;
    has_v6 = has_v6 && who.has_v6;
    if (r == s->options.rank) plan->mine = plan->num_shards;
    plan->shard_ranks[plan->num_shards++] = r;
  }
  plan->family = has_v4 || plan->is_one_place || !has_v6 ? AF_INET : AF_INET6;
  if (has_v4 || has_v6 || plan->is_one_place || has_failed) return SML_OK;
  return sml_fail(SML_ERR_SYSTEM,
                  "no aggregator is configured, and the ranks' hosts have no addresses of one kind, IPv4 or IPv6, at "
                  "which they could reach each other: see SWITCHML_INTERFACE");
}

/* ---- this rank's shard ---- */

/* The child of a fork has the shard's descriptors, and must not keep its connections open. */
static void close_in_child(struct sml_fork_watch *watch) {
  void *embedding = (uint8_t *)watch - offsetof(struct sml_embedded, watch);
  struct sml_embedded *embedded = embedding;
  if (embedded->aggd != NULL) sml_aggd_close_descriptors(embedded->aggd);
}

static sml_status start(const struct sml_job_settings *s, const struct sml_settings *c, const struct plan *plan,
                        const struct sml_addr *seen_at, struct sml_embedded **embedded_out) {
  struct sml_embedded *embedded = calloc(1, sizeof *embedded);
  if (embedded == NULL) return sml_fail(SML_ERR_NO_MEMORY, "no memory for a shard");
  const uint32_t world_size = s->options.world_size;
  const uint8_t any[16] = {0}, loopback[4] = {127, 0, 0, 1};
  struct sml_key_entry entry = {.key = s->key};
  snprintf(entry.name, sizeof entry.name, "%s", s->key_name);
  const struct sml_aggd_options options = {
      .listen = sml_addr_of_ip(plan->family, plan->is_one_place ? loopback : any, 0),
      .num_lanes = sml_min_u32(c->num_threads, sml_max_u32(1, SML_MAX_SHARDS / plan->num_shards)),
      .pool_slots = sml_min_u32(s->options.num_slots * (s->no_one_way ? 1 : SML_CTL_ALL_WINDOWS), SML_AGGD_MAX_SLOTS),
      .max_jobs = 1,
      .max_connections = 2 * world_size + 64,
      .new_connections_per_s = world_size + 100,
      .no_offload = c->no_offload,
      .poll = c->poll,
      .keys = &entry,
      .num_keys = 1,
      .is_embedded = true,
      .seen_at = *seen_at};
  char error[SML_ERROR_DETAIL_BYTES / 2];
  embedded->watch.in_child = close_in_child;
  sml_fork_watch(&embedded->watch);
  sml_fork_lock();
  const int failed = sml_aggd_start(&options, &embedded->aggd, error, sizeof error);
  if (failed != 0) embedded->aggd = NULL;
  sml_fork_unlock();
  sml_key_wipe(&entry, sizeof entry);
  if (failed == 0) {
    *embedded_out = embedded;
    return SML_OK;
  }
  sml_fork_unwatch(&embedded->watch);
  free(embedded);
  return sml_fail(SML_ERR_SYSTEM, "a shard of the aggregation cannot start: %s", error);
}

void sml_embedded_stop(struct sml_embedded *embedded) {
  if (embedded == NULL) return;
  sml_fork_lock(); /* which none of its threads takes */
  sml_aggd_stop(embedded->aggd);
  embedded->aggd = NULL;
  sml_fork_unlock();
  sml_fork_unwatch(&embedded->watch);
  free(embedded);
}

/* Rank 0 makes the key, unless the ranks have one. */
static sml_status make_key(const struct sml_job_settings *s, struct sml_key *key_out) {
  if (s->key_name[0] != 0 || s->options.rank != 0) return SML_OK;
  if (getrandom(key_out, sizeof *key_out, 0) == (ssize_t)sizeof *key_out) return SML_OK;
  return sml_fail(SML_ERR_SYSTEM, "no random key can be had (getrandom): %s", strerror(errno));
}

/* Where others may find the shard. */
static void list_addresses(const struct sml_interfaces *interfaces, const struct plan *plan, uint16_t port,
                           struct offer *offer) {
  const uint8_t loopback[16] = {127, 0, 0, 1};
  for (uint32_t i = 0; i < interfaces->num_addrs && offer->num_addrs < SML_MAX_PLACES && !plan->is_one_place; i++) {
    struct sml_addr addr = interfaces->addrs[i].addr;
    if (plan->family != (addr.num_bytes == sizeof(struct sockaddr_in6) ? AF_INET6 : AF_INET)) continue;
    sml_addr_set_port(&addr, port);
    offer->addrs[offer->num_addrs++] = addr;
  }
  if (plan->is_one_place) offer->addrs[offer->num_addrs++] = sml_addr_of_ip(AF_INET, loopback, port);
}

/* ---- the others' ---- */

/* Its addresses in the order in which this rank tries them. */
static void order_addresses(const struct offer *offer, const struct sml_interfaces *interfaces, bool is_here,
                            struct sml_shard_place *place) {
  static const uint8_t loopback[2][16] = {{127, 0, 0, 1}, {[15] = 1}};
  place->num_addrs = 0;
  if (is_here) {
    const bool is_v6 = offer->addrs[0].num_bytes == sizeof(struct sockaddr_in6);
    place->addrs[place->num_addrs++] =
        sml_addr_of_ip(is_v6 ? AF_INET6 : AF_INET, loopback[is_v6], sml_addr_port(&offer->addrs[0]));
    return;
  }
  for (uint32_t pass = 0; pass < 2; pass++)
    for (uint32_t i = 0; i < offer->num_addrs; i++) {
      const struct sml_addr *addr = &offer->addrs[i];
      if (sml_interfaces_is_own(interfaces, addr)) continue; /* a bridge that every host has */
      if (sml_interfaces_is_near(interfaces, addr) == (pass == 0)) place->addrs[place->num_addrs++] = *addr;
    }
  if (place->num_addrs > 0) return;
  memcpy(place->addrs, offer->addrs, sizeof place->addrs); /* there is nothing else to try */
  place->num_addrs = offer->num_addrs;
}

static sml_status take_offers(struct sml_job_settings *s, const struct plan *plan, const uint8_t *offers,
                              const uint8_t *whos, const struct sml_interfaces *interfaces) {
  struct offer offer;
  uint32_t num_offers = 0;
  for (uint32_t r = 0; r < s->options.world_size; r++) {
    if (!read_offer(offers + (size_t)r * OFFER_BYTES, &offer))
      return sml_fail(SML_ERR_VERSION, "rank %u runs another version of libswitchml", r);
    if (offer.status != SML_OK && offer.status >= SML_ERR_KEY && offer.status < 0)
      return sml_fail(offer.status, "rank %u: %s", r, offer.detail);
    num_offers += offer.num_addrs > 0;
  }
  if (num_offers != plan->num_shards)
    return sml_fail(SML_ERR_PROTOCOL, "%u ranks offer shards where %u should", num_offers, plan->num_shards);
  s->places.num_shards = plan->num_shards;
  for (uint32_t i = 0; i < plan->num_shards; i++) {
    const uint32_t rank = plan->shard_ranks[i];
    struct sml_shard_place *place = &s->places.shards[i];
    struct who who;
    read_who(whos + (size_t)rank * WHO_BYTES, &who);
    read_offer(offers + (size_t)rank * OFFER_BYTES, &offer);
    if (offer.num_addrs == 0)
      return sml_fail(SML_ERR_PROTOCOL, "rank %u should offer a shard, and another one does", rank);
    *place = (struct sml_shard_place){.process_rank = rank};
    snprintf(place->text, sizeof place->text, "rank %u", rank);
    order_addresses(&offer, interfaces, is_same(who.place, plan->own.place), place);
  }
  return SML_OK;
}

/* ---- all of it ---- */

static sml_status look_around(const struct sml_job_settings *s, struct sml_interfaces *interfaces, struct who *who) {
  const char *only = sml_settings_environment("SWITCHML_INTERFACE");
  uint8_t place[16];
  *who = (struct who){.host = {s->host[0], s->host[1]}};
  if (sml_job_settings_identity(place)) memcpy(who->place, place, sizeof who->place);
  interfaces->num_addrs = 0;
  if (!sml_interfaces_list(only, interfaces))
    return sml_fail(SML_ERR_SYSTEM, "the network interfaces cannot be listed: %s", strerror(errno));
  who->has_v4 = sml_interfaces_has_family(interfaces, AF_INET);
  who->has_v6 = sml_interfaces_has_family(interfaces, AF_INET6);
  if (only == NULL || interfaces->num_addrs > 0) return SML_OK;
  return sml_fail(SML_ERR_INVALID_ARGUMENT,
                  "SWITCHML_INTERFACE is '%.64s': no interface of that name is up and has an address that other hosts "
                  "can reach (lo has none); ranks of one host alone need no interface: unset it",
                  only);
}

/* This rank's part between the two rounds; what fails is told in the second. */
static void prepare(struct sml_job_settings *s, const struct sml_settings *c, const struct plan *plan,
                    const struct sml_interfaces *interfaces, sml_status status, struct offer *offer,
                    struct sml_embedded **embedded_out) {
  *offer = (struct offer){.num_addrs = 0};
  if (s->key_name[0] == 0) {
    s->key = plan->key;
    snprintf(s->key_name, sizeof s->key_name, KEY_NAME);
  }
  list_addresses(interfaces, plan, 0, offer);
  const struct sml_addr seen_at = plan->is_one_place ? (struct sml_addr){.num_bytes = 0} : offer->addrs[0];
  if (status == SML_OK && plan->mine != SML_MAX_SHARDS) status = start(s, c, plan, &seen_at, embedded_out);
  offer->num_addrs = 0;
  offer->status = status;
  if (status != SML_OK) {
    snprintf(offer->detail, sizeof offer->detail, "%s", sml_error_detail());
  } else if (*embedded_out != NULL) {
    struct sml_addr listen;
    sml_aggd_addr((*embedded_out)->aggd, &listen);
    list_addresses(interfaces, plan, sml_addr_port(&listen), offer);
  }
}

static sml_status arrange(struct sml_job_settings *s, const struct sml_settings *c,
                          struct sml_embedded **embedded_out) {
  struct sml_interfaces interfaces;
  struct plan plan;
  struct offer offer;
  uint8_t mine[OFFER_BYTES];
  sml_status status = look_around(s, &interfaces, &plan.own);
  if (status == SML_OK) status = make_key(s, &plan.own.key);
  plan.own.has_failed = status != SML_OK;
  char why[SML_ERROR_DETAIL_BYTES];
  snprintf(why, sizeof why, "%s", sml_error_detail());
  write_who(mine, &plan.own);
  uint8_t *whos, *offers;
  const sml_status met = gather(s, mine, WHO_BYTES, &whos);
  if (met != SML_OK) return met;
  const sml_status planned = make_plan(s, whos, &plan);
  if (status != SML_OK) sml_fail(status, "%s", why);
  prepare(s, c, &plan, &interfaces, status != SML_OK ? status : planned, &offer, embedded_out);
  write_offer(mine, &offer);
  status = gather(s, mine, OFFER_BYTES, &offers);
  if (status == SML_OK) status = take_offers(s, &plan, offers, whos, &interfaces);
  free(offers);
  sml_key_wipe(whos, (size_t)s->options.world_size * WHO_BYTES);
  free(whos);
  sml_key_wipe(&plan, sizeof plan);
  sml_key_wipe(mine, sizeof mine);
  return status;
}

sml_status sml_embedded_arrange(struct sml_job_settings *s, const struct sml_settings *c,
                                struct sml_embedded **embedded_out) {
  *embedded_out = NULL;
  const sml_status status = arrange(s, c, embedded_out);
  /* A host's link carries updates and results: what updates save, it has more of both. */
  const bool is_narrow = s->options.world_size >= SML_NARROW_MIN_RANKS && (s->features & SML_FEATURE_CHECK) == 0;
  if (is_narrow) s->features |= SML_FEATURE_NARROW;
  if (status == SML_OK) return SML_OK;
  sml_embedded_stop(*embedded_out);
  *embedded_out = NULL;
  return status;
}
