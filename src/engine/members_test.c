/* SPDX-License-Identifier: Apache-2.0
 * The ranks of a job that fills up, in whatever order they come and go; and that memory is for those that have come. */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/test_skip.h"
#include "engine/members.h"

#define MANY_JOBS 256u
#define NUM_STEPS 4000u

/* Without what the allocator needs for itself; SIZE_MAX: it does not say. */
#if defined(SML_SANITIZE_ADDRESS) || defined(SML_SANITIZE_THREAD)
size_t __sanitizer_get_current_allocated_bytes(void); /* of gcc's and clang's, but gcc's header is not everywhere */
static size_t allocated_bytes(void) {
  return __sanitizer_get_current_allocated_bytes();
}
#else
static size_t allocated_bytes(void) {
  void *probe = malloc(1000); /* valgrind's allocator says 0 */
  const struct mallinfo2 info = mallinfo2();
  free(probe);
  return info.uordblks + info.hblkhd > 0 ? info.uordblks + info.hblkhd : SIZE_MAX;
}
#endif

static void a_world_size_costs_nothing(void **state) {
  (void)state;
  struct sml_mem_hub *hub = sml_mem_hub_create();
  struct sml_netio *io = sml_mem_open(hub, 16, 1500);
  const struct sml_aggregator_engine_options options = {.io = io, .kernels = sml_quant_select(NULL)};
  struct sml_aggregator_engine *engine = sml_aggregator_engine_create(&options);
  const size_t before_bytes = allocated_bytes();
  if (before_bytes == SIZE_MAX) SKIP_TEST("the allocator does not say how much it has lent");
  for (uint32_t job = 0; job < MANY_JOBS; job++) {
    assert_true(sml_aggregator_engine_open_job(engine, (uint16_t)job, job, SML_MAX_WORLD_SIZE, NULL));
    sml_aggregator_engine_expect_hello(engine, (uint16_t)job, job * 15 % SML_MAX_WORLD_SIZE, job);
  }
  const size_t grown_bytes = allocated_bytes() - before_bytes;
  assert_in_range(grown_bytes, MANY_JOBS * 100, MANY_JOBS * 4096);
  for (uint32_t job = 0; job < MANY_JOBS; job++) assert_null(sml_aggregator_engine_close_job(engine, (uint16_t)job));
  assert_in_range(allocated_bytes(), before_bytes, before_bytes + (32 << 10)); /* what the allocator keeps at hand */
  sml_aggregator_engine_destroy(engine);
  io->ops->close(io);
  sml_mem_hub_destroy(hub);
}

/* Against a table that has room for all. */
static void check(const struct sml_members *m, const uint64_t *nonces, uint32_t world_size) {
  uint32_t num = 0;
  for (uint32_t rank = 0; rank < world_size; rank++) {
    const struct sml_member *member = sml_members_find(m, rank);
    assert_int_equal(member->has_nonce, nonces[rank] != 0);
    if (nonces[rank] == 0) continue;
    assert_int_equal(member->nonce, nonces[rank]);
    assert_int_equal(member->rank, rank);
    num++;
  }
  assert_int_equal(m->num, num);
  assert_in_range(m->room, num, sml_max_u32(4, 4 * num));
}

static void ranks_come_and_go(void **state) {
  (void)state;
  struct sml_prng prng = {.state = 15};
  print_message("# seed 15\n");
  for (uint32_t world_size = 2; world_size < 70; world_size += 1 + world_size / 4) {
    struct sml_members m = {.world_size = world_size};
    uint64_t nonces[70] = {0};
    for (uint32_t step = 0; step < NUM_STEPS; step++) {
      const uint32_t rank = (uint32_t)(sml_prng_next(&prng) % world_size);
      const bool is_leaving = sml_prng_next(&prng) % 3 == 0;
      nonces[rank] = is_leaving ? 0 : step + 1;
      if (is_leaving) sml_members_forget(&m, rank);
      else assert_true(sml_members_expect(&m, rank, step + 1));
      if (step % 16 == 0) check(&m, nonces, world_size);
    }
    for (uint32_t rank = world_size; rank-- > 0; nonces[rank] = rank + 1)
      assert_true(sml_members_expect(&m, rank, rank + 1));
    check(&m, nonces, world_size);
    sml_members_seat(&m, NULL);
    for (uint32_t rank = 0; rank < world_size; rank++) assert_int_equal(m.leads[rank], rank);
    assert_int_equal(sml_members_depart(&m, 1), 1);
    assert_int_equal(sml_members_find_departed(&m, 1), 1);
    sml_members_free(&m);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_world_size_costs_nothing),
      cmocka_unit_test(ranks_come_and_go),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
