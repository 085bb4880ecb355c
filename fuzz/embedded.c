/* SPDX-License-Identifier: Apache-2.0
 * The records by which ranks arrange to host a job's aggregation. Input: the world size, which ranks are on which
 * hosts, then changes to the honest records of both rounds. The last rank looks; no aggregator can start here. */
#include "aggd/aggd.h"
#include "fuzz/fuzz.h"
#include "meet/embedded.h"

#define MAX_RANKS 6u
#define WHO_BYTES 56u
#define MAX_RECORD_BYTES 1024u
/* As embedded.c writes them. */
enum { WHO_BITS = 4, WHO_HOST = 24, OFFER_STATUS = 4, OFFER_NUM_ADDRS = 8, OFFER_PORT = 12, OFFER_ADDRS = 16 };

static struct {
  uint32_t world_size;
  uint32_t hosts; /* two bits a rank */
  struct fuzz_input changes;
} w;

int __wrap_sml_aggd_start(const struct sml_aggd_options *options, struct sml_aggd **aggd_out, char *error_out,
                          size_t error_bytes);

int __wrap_sml_aggd_start(const struct sml_aggd_options *options, struct sml_aggd **aggd_out, char *error_out,
                          size_t error_bytes) {
  (void)options, (void)aggd_out;
  snprintf(error_out, error_bytes, "no port");
  return -1;
}

static uint32_t host_of(uint32_t rank) {
  return rank + 1 == w.world_size ? 1 : 1 + (w.hosts >> 2 * (rank % 4) & 3); /* rank 0 may be on the last one's */
}

static bool is_lowest(uint32_t rank) {
  for (uint32_t r = 0; r < rank; r++)
    if (host_of(r) == host_of(rank)) return false;
  return true;
}

/* Honest records of all, from that of the rank that looks; then changed. */
static int gather(void *user, const void *mine, void *all, size_t num_bytes) {
  (void)user;
  CHECK(num_bytes <= MAX_RECORD_BYTES, "%zu", num_bytes);
  for (uint32_t rank = 0; rank < w.world_size; rank++) {
    uint8_t *record = (uint8_t *)all + rank * num_bytes;
    memcpy(record, mine, num_bytes);
    if (num_bytes == WHO_BYTES) {
      sml_store_be32(record + WHO_BITS, 1);
      sml_store_be64(record + WHO_HOST, host_of(rank));
    } else {
      sml_store_be32(record + OFFER_STATUS, 0);
      sml_store_be32(record + OFFER_NUM_ADDRS, is_lowest(rank));
      sml_store_be32(record + OFFER_PORT, 4000 + rank);
      memcpy(record + OFFER_ADDRS, (const uint8_t[]){4, 10, 9, 0, (uint8_t)rank}, 5);
    }
  }
  for (uint32_t i = fuzz_u8(&w.changes); i > 0 && !fuzz_is_empty(&w.changes); i--) {
    const uint32_t at = fuzz_u16(&w.changes) % (uint32_t)(w.world_size * num_bytes);
    ((uint8_t *)all)[at] = fuzz_u8(&w.changes);
  }
  return 0;
}

static void check_places(const struct sml_job_settings *s) {
  CHECK(s->places.num_shards >= 1 && s->places.num_shards <= SML_MAX_SHARDS, "%u shards", s->places.num_shards);
  for (uint32_t i = 0; i < s->places.num_shards; i++) {
    const struct sml_shard_place *place = &s->places.shards[i];
    CHECK(place->process_rank < w.world_size, "shard %u is at rank %u", i, place->process_rank);
    CHECK(place->num_addrs >= 1 && place->num_addrs <= SML_MAX_PLACES, "shard %u: %u addresses", i, place->num_addrs);
    for (uint32_t k = 0; k < place->num_addrs; k++) CHECK(place->addrs[k].num_bytes != 0, "shard %u address %u", i, k);
  }
  CHECK(s->key_name[0] != 0, "no key");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  struct fuzz_input in = {data, data + num_bytes};
  sml_job_options options = SML_JOB_OPTIONS_INIT;
  struct sml_job_settings s;
  struct sml_settings context = {.num_threads = 1};
  struct sml_embedded *embedded;
  w.world_size = 2 + fuzz_below(&in, MAX_RANKS - 1);
  w.hosts = fuzz_u8(&in);
  w.changes = in;
  options.world_size = w.world_size;
  options.rank = w.world_size - 1;
  options.aggregator = "192.0.2.1:1"; /* read here, and arranged over below */
  options.allgather = gather;
  CHECK(sml_job_settings_read(&options, &s) == SML_OK, "%s", sml_error_detail());
  s.host[0] = 1;
  memset(&s.places, 0xa5, sizeof s.places);
  const sml_status status = sml_embedded_arrange(&s, &context, &embedded);
  CHECK(embedded == NULL, "an aggregator that did not start");
  CHECK(status == SML_OK || (status < 0 && sml_error_detail()[0] != 0), "status %d", (int)status);
  if (status == SML_OK) check_places(&s);
  return 0;
}
