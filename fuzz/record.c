/* SPDX-License-Identifier: Apache-2.0
 * The records that ranks exchange over the caller's all-gather. Input: the world size, who looks, then changes to the
 * honest records. Whatever they say, all ranks come to the same verdict, which is a success only for honest ones. */
#include "fuzz/fuzz.h"
#include "meet/job_settings.h"

#define MAX_RANKS 6u
#define RECORD_BYTES 256u
enum { MAGIC_AT = 0, VERSION_AT = 4, WORLD_SIZE_AT = 8, RANK_AT = 12, STATUS_AT = 16, HASH_AT = 24, RANDOM_AT = 32 };

struct exchange {
  uint32_t world_size;
  struct fuzz_input changes;
  bool has_records;
  uint8_t records[MAX_RANKS * RECORD_BYTES];
};

/* The first rank to call decides what all get: honest records, then changed. */
static int gather(void *user, const void *mine, void *all, size_t num_bytes) {
  struct exchange *e = user;
  CHECK(num_bytes == RECORD_BYTES, "%zu", num_bytes);
  if (!e->has_records) {
    for (uint32_t rank = 0; rank < e->world_size; rank++) {
      uint8_t *record = e->records + rank * RECORD_BYTES;
      memcpy(record, mine, RECORD_BYTES);
      sml_store_be32(record + RANK_AT, rank);
      sml_store_be64(record + RANDOM_AT, rank * UINT64_C(0x0123456789abcdef));
    }
    while (!fuzz_is_empty(&e->changes)) {
      const uint32_t at = fuzz_u16(&e->changes) % (e->world_size * RECORD_BYTES);
      e->records[at] = fuzz_u8(&e->changes);
    }
    e->has_records = true;
  }
  memcpy(all, e->records, e->world_size * RECORD_BYTES);
  return 0;
}

static bool is_honest(const struct exchange *e, const uint8_t *mine) {
  for (uint32_t rank = 0; rank < e->world_size; rank++) {
    const uint8_t *record = e->records + rank * RECORD_BYTES;
    const bool is_same = memcmp(record, mine, RANK_AT) == 0 && memcmp(record + HASH_AT, e->records + HASH_AT, 8) == 0;
    if (!is_same || sml_load_be32(record + RANK_AT) != rank) return false;
  }
  return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  struct fuzz_input in = {data, data + num_bytes};
  struct exchange e = {.world_size = 1 + fuzz_below(&in, MAX_RANKS)};
  const uint32_t viewer = fuzz_u8(&in) % e.world_size;
  const sml_status before = fuzz_u8(&in) & 1 ? SML_ERR_NO_MEMORY : SML_OK;
  e.changes = in;
  struct sml_job_settings first, second;
  sml_job_options options = SML_JOB_OPTIONS_INIT;
  options.world_size = e.world_size;
  options.aggregator = "192.0.2.1:1";
  options.allgather = gather;
  options.allgather_user = &e;
  CHECK(sml_job_settings_read(&options, &first) == SML_OK, "%s", sml_error_detail());
  options.rank = viewer;
  CHECK(sml_job_settings_read(&options, &second) == SML_OK, "%s", sml_error_detail());

  const sml_status verdict = sml_job_settings_exchange(&first, before);
  char *detail = fuzz_text(sml_error_detail(), strlen(sml_error_detail()));
  CHECK(sml_job_settings_exchange(&second, SML_OK) == verdict, "rank %u has another verdict", viewer);
  if (verdict == SML_OK) {
    uint8_t honest[RECORD_BYTES] = {0};
    memcpy(honest, e.records, RECORD_BYTES);
    CHECK(is_honest(&e, honest), "dishonest records pass");
    CHECK(strcmp(first.name, second.name) == 0, "%s and %s", first.name, second.name);
    CHECK(strnlen(first.name, sizeof first.name) < sizeof first.name, "job name");
  } else {
    CHECK(verdict < 0 && verdict >= SML_ERR_KEY, "%d", (int)verdict);
    CHECK(detail[0] != 0 && strcmp(detail, sml_error_detail()) == 0, "rank %u has another reason", viewer);
  }
  free(detail);
  return 0;
}
