/* SPDX-License-Identifier: Apache-2.0
 * After a keyed job has ended and its key was withdrawn, no byte of this process that can be written is of a key of it:
 * aggregator and ranks are all here, so one look at the memory is a look at both. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "aggd/key_reader.h"
#include "ctl/channel.h"
#include "lib/test_world.h"

#define RANKS 2u
#define MAX_SECRETS 8u
#define MAX_MAPPING_BYTES (UINT64_C(1) << 30)

/* What is looked for is known by its hash only: the look must not find itself. */
struct secret {
  const char *what;
  uint64_t hashes[2];
};
static struct secret secrets[MAX_SECRETS];
static uint32_t num_secrets;
static bool is_telling; /* where they are */
static char path[] = "/tmp/sml-key-wipe-test-XXXXXX";

static void remember(const char *what, const struct sml_key *key) {
  for (uint32_t i = 0; i < num_secrets; i++)
    if (secrets[i].hashes[0] == sml_mix64(key->k0)) return;
  assert_true(num_secrets < MAX_SECRETS);
  secrets[num_secrets++] = (struct secret){.what = what, .hashes = {sml_mix64(key->k0), sml_mix64(key->k1)}};
}

/* How many places have a secret. */
static uint32_t look_at(const uint64_t *words, size_t num_words, const char *mapping) {
  uint32_t num_found = 0;
  for (size_t i = 0; i + 1 < num_words; i++) {
    const uint64_t first = sml_mix64(words[i]);
    for (uint32_t s = 0; s < num_secrets; s++) {
      if (first != secrets[s].hashes[0] || sml_mix64(words[i + 1]) != secrets[s].hashes[1]) continue;
      if (is_telling) print_message("# %s is at %p, in %s", secrets[s].what, (const void *)&words[i], mapping);
      num_found++;
    }
  }
  return num_found;
}

/* In all that can be written, the stacks of threads included, but for this thread's: it has read the key by itself. */
static uint32_t look_everywhere(void) {
  char line[512];
  uint32_t num_found = 0;
  FILE *maps = fopen("/proc/self/maps", "re");
  assert_non_null(maps);
  while (fgets(line, sizeof line, maps) != NULL) {
    uintptr_t from, to;
    if (sscanf(line, "%lx-%lx rw-", &from, &to) != 2 || strstr(line, " rw-p ") == NULL) continue;
    if (to - from > MAX_MAPPING_BYTES || strstr(line, "[stack]") != NULL) continue;
    num_found += look_at((const uint64_t *)from, (to - from) / 8, line); /* NOLINT: an address that the kernel gave */
  }
  fclose(maps);
  return num_found;
}

static void make_key_file(void) {
  char text[64] = "red ";
  uint8_t bytes[16];
  assert_int_equal(getentropy(bytes, sizeof bytes), 0);
  for (size_t i = 0; i < sizeof bytes; i++) sprintf(text + 4 + 2 * i, "%02x", bytes[i]);
  const int fd = mkstemp(path);
  assert_true(fd >= 0 && write(fd, text, 36) == 36);
  close(fd);
  explicit_bzero(text, sizeof text);
  explicit_bzero(bytes, sizeof bytes);
}

static void sum_keyed(struct rank *r) {
  int32_t one = 1, sum = 0;
  for (int i = 0; i < 20; i++)
    CHECK(r, allreduce(r, &one, &sum, 1, SML_INT32, SML_SUM) == SML_OK && sum == (int)RANKS, "%s", sml_error_detail());
}

static void note_keys(struct world *w) {
  for (uint32_t i = 0; i < RANKS; i++) {
    const struct sml_session *s = &w->ranks[i].job->shards[0].session;
    struct sml_seal seal;
    sml_session_seal(s, w->ranks[i].job->state.start.epoch, w->ranks[i].job->state.start.secret, &seal);
    assert_true(seal.is_keyed);
    remember("the key of the job's data", &seal.key);
    remember("a key of a connection", &s->channel.tx_key);
    remember("a key of a connection", &s->channel.rx_key);
    sml_key_wipe(&seal, sizeof seal);
  }
}

static void no_key_outlives_its_job(void **state) {
  (void)state;
  struct world w;
  char error[256];
  uint32_t num_keys;
  world_init(&w, RANKS);
  struct sml_key_entry *keys = sml_keys_read(path, &num_keys, error, sizeof error);
  assert_non_null(keys);
  remember("the tenant's key", &keys[0].key);
  w.aggd_options.keys = keys;
  w.aggd_options.num_keys = num_keys;
  w.job_options.key_file = path;
  world_start(&w);
  world_run(&w, sum_keyed);
  note_keys(&w);
  assert_int_equal(num_secrets, 2 + 2 * RANKS);
  assert_true(look_everywhere() >= 2 + 2 * RANKS); /* they are found where they are */
  const struct sml_key_entry other = {.name = "other", .key = {1, 2}};
  assert_int_equal(sml_aggd_set_tenants(w.aggd, &other, 1, NULL, 0), 0);
  sml_keys_free(keys, num_keys);
  for (uint32_t i = 0; i < RANKS; i++) {
    sml_job_destroy(w.ranks[i].job);
    w.ranks[i].job = NULL;
  }
  /* The daemon closes the connections a moment after the ranks have. */
  const uint64_t deadline_ns = sml_clock_ns() + 20 * SML_NS_PER_S;
  uint32_t num_found;
  while ((num_found = look_everywhere()) > 0 && sml_clock_ns() < deadline_ns) usleep(200 * 1000);
  is_telling = true;
  if (num_found > 0) num_found = look_everywhere();
  assert_int_equal(num_found, 0);
  world_stop(&w);
  unlink(path);
}

int main(void) {
  make_key_file();
  const struct CMUnitTest tests[] = {cmocka_unit_test(no_key_outlives_its_job)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
