/* SPDX-License-Identifier: Apache-2.0
 * How much a worker's engine gives to its own host's queue, and how often it asks what waits there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/send_queue.h"
#include "engine/test_world.h"

#define NUM_SLOTS 256u
#define CHUNK_BYTES 1440u
#define FRAME_BYTES (CHUNK_BYTES + SML_HEADER_BYTES)
#define NUM_CHUNKS 4000u
#define PASS_NS (100 * SML_NS_PER_MS) /* so slow a path that no rate raises the limit */
#define LIMIT_NS (600 * SML_NS_PER_S)

/* A hub whose ports say that so much waits. */
static struct {
  struct sml_mem_hub *hub;
  struct sml_netio_ops ops;
  uint64_t waiting_bytes;
  uint32_t num_asked;
} host;

static uint64_t say_waiting(struct sml_netio *io) {
  (void)io;
  host.num_asked++;
  return host.waiting_bytes;
}

static struct sml_netio *open_io(void *user, uint32_t queue_frames, uint32_t max_frame_bytes) {
  (void)user;
  struct sml_netio *io = sml_mem_open(host.hub, queue_frames, max_frame_bytes);
  if (io == NULL) return NULL;
  host.ops = *io->ops;
  host.ops.tx_waiting = say_waiting;
  io->ops = &host.ops;
  return io;
}

/* The most frames that rank 0 sent in one pass. */
static uint64_t run_windows(uint64_t waiting_bytes, bool has_fixed_window, uint32_t num_windows,
                            uint64_t *most_gather_ns) {
  host.hub = sml_mem_hub_create();
  host.waiting_bytes = waiting_bytes;
  host.num_asked = 0;
  const struct world_options options = {.world_size = 2,
                                        .num_slots = NUM_SLOTS,
                                        .chunk_bytes = CHUNK_BYTES,
                                        .has_fixed_window = has_fixed_window,
                                        .num_windows = num_windows,
                                        .is_unkeyed = true,
                                        .is_unchecked = true,
                                        .seed = 3,
                                        .open_io = open_io};
  struct world *w = world_create_started(&options);
  const struct world_call_options what = {.num_elems = NUM_CHUNKS * CHUNK_BYTES / 4, .type = SML_INT32, .seed = 4};
  struct world_call *call = world_call_create(w, &what);
  world_call_submit_all(call);
  const struct sml_netio *io = w->worker_ports[0][0].io;
  const uint64_t until_ns = w->now_ns + LIMIT_NS;
  uint64_t most = 0;
  *most_gather_ns = 0;
  while (!world_call_has_ended(call)) {
    const uint64_t before = io->stats.tx_frames;
    w->now_ns += PASS_NS;
    assert_true(world_pass(w) && w->now_ns < until_ns);
    most = sml_max_u64(most, io->stats.tx_frames - before);
    *most_gather_ns = sml_max_u64(*most_gather_ns, io->gather_ns);
  }
  assert_null(world_call_check(call));
  world_call_free(call);
  world_close_job(w, 0);
  world_destroy(w);
  sml_mem_hub_destroy(host.hub);
  return most;
}

static uint64_t run(uint64_t waiting_bytes, bool has_fixed_window, uint64_t *most_gather_ns) {
  return run_windows(waiting_bytes, has_fixed_window, 1, most_gather_ns);
}

/* Nor does one pass send more. It asks only when there might be as much: once for each limit that is sent. */
static void nothing_waits(void **state) {
  (void)state;
  uint64_t gather_ns;
  const uint32_t most_frames = SML_SEND_QUEUE_BYTES / FRAME_BYTES;
  assert_int_equal(run(0, false, &gather_ns), most_frames);
  assert_in_range(host.num_asked, 1, 2 * (NUM_CHUNKS / most_frames + 2));
}

static void up_to_the_limit(void **state) {
  (void)state;
  uint64_t gather_ns;
  assert_int_equal(run(SML_SEND_QUEUE_BYTES - 100 * FRAME_BYTES, false, &gather_ns), 100);
  assert_int_equal(gather_ns, SML_SEND_QUEUE_LOOK_NS); /* results gather until it is looked at again */
}

/* Nothing is under way in such a pass: so it goes on, by what one segmented send is. */
static void a_full_one_does_not_stop_a_lane(void **state) {
  (void)state;
  uint64_t gather_ns;
  assert_int_equal(run(UINT64_C(1) << 40, false, &gather_ns), SML_SEND_QUEUE_FEW_CHUNKS);
}

static void a_fixed_window_does_not_ask(void **state) {
  (void)state;
  uint64_t gather_ns;
  assert_int_equal(run(UINT64_C(1) << 40, true, &gather_ns), NUM_SLOTS);
  assert_int_equal(host.num_asked, 0);
}

/* Also where hosts aggregate: only one-way windows take turns. In pieces the same took three times the system calls. */
static void a_sum_leaves_at_once(void **state) {
  (void)state;
  uint64_t gather_ns;
  assert_int_equal(run_windows(0, true, 4, &gather_ns), NUM_SLOTS);
}

/* What leaves in the time that is allowed at the present rate, or four segmented sends; all lanes together. */
static void test_the_limit(void **state) {
  (void)state;
  struct sml_send_queue q = {0};
  assert_int_equal(sml_send_queue_room(&q, 0, 1024, 1), SML_SEND_QUEUE_BYTES / 1024);
  sml_send_queue_count(&q, 1000000, 0, 1); /* not known yet */
  sml_send_queue_count(&q, 1000000, 10 * SML_NS_PER_MS, 1);
  sml_send_queue_count(&q, 3000000, 10 * SML_NS_PER_MS, 1);
  sml_send_queue_end_pass(&q, 500000);
  assert_int_equal(sml_send_queue_room(&q, 0, 1000, 1), 1200 - 500);
  assert_int_equal(sml_send_queue_room(&q, 699001, 1000, 1), 0);
  sml_send_queue_end_pass(&q, 0); /* idle */
  assert_int_equal(sml_send_queue_room(&q, 0, 1000, 1), 0);
  q.most_bytes = 0;
  assert_int_equal(sml_send_queue_room(&q, 0, 1, 1), SML_SEND_QUEUE_BYTES);
  sml_send_queue_count(&q, UINT64_C(1) << 24, 1, 1);
  sml_send_queue_end_pass(&q, 0);
  assert_int_equal(sml_send_queue_room(&q, 0, 1, 1), UINT32_MAX - 1);
  /* Several windows: as much more of both. */
  /* One-way windows: what leaves in 3 ms, as two questions show. */
  q = (struct sml_send_queue){0};
  sml_send_queue_ask(&q, 0, SML_NS_PER_S);
  sml_send_queue_end_pass(&q, 1000000);
  sml_send_queue_ask(&q, 700000, SML_NS_PER_S + 2 * SML_NS_PER_MS);
  sml_send_queue_go_one_way(&q);
  assert_int_equal(q.limit_bytes, 450000);
  sml_send_queue_ask(&q, 0, SML_NS_PER_S + 2 * SML_NS_PER_MS + 1); /* too soon to tell */
  assert_int_equal(q.rate_bytes, 450000);

  /* Sums and copies at once have a limit of their own, and look again before half of it has left. */
  assert_int_equal(sml_send_queue_room_below(&q, 60000, 1000, 94000), 34);
  assert_int_equal(sml_send_queue_room_below(&q, 94000, 1000, 94000), 0);
  assert_int_equal(sml_send_queue_look_ns(&q, 90000), 300 * SML_NS_PER_US);
  assert_int_equal(sml_send_queue_look_ns(&q, 1000), SML_SEND_QUEUE_LEAST_LOOK_NS);
  assert_int_equal(sml_send_queue_look_ns(&q, 900000), SML_SEND_QUEUE_LOOK_NS);

  q = (struct sml_send_queue){0};
  assert_int_equal(sml_send_queue_room(&q, 0, 1, 4), 4 * SML_SEND_QUEUE_BYTES);
  sml_send_queue_count(&q, 4000000, 10 * SML_NS_PER_MS, 4);
  sml_send_queue_end_pass(&q, 0);
  assert_int_equal(sml_send_queue_room(&q, 0, 1, 4), 4800000);
}

/* How long what is sent now waits, at the rate of a queue that did not run empty. */
static void test_the_wait(void **state) {
  (void)state;
  struct sml_send_queue q = {0};
  uint64_t now_ns = SML_NS_PER_S;
  sml_send_queue_ask(&q, 0, now_ns);
  sml_send_queue_end_pass(&q, 1000);
  sml_send_queue_ask(&q, 0, now_ns += SML_NS_PER_MS); /* little was sent: that is no rate of the link */
  sml_send_queue_end_pass(&q, 300000);
  assert_int_equal(sml_send_queue_wait_ns(&q, 0, now_ns), 0);
  sml_send_queue_ask(&q, 200000, now_ns += SML_NS_PER_MS); /* perhaps it began to leave just now */
  assert_int_equal(sml_send_queue_wait_ns(&q, 0, now_ns), 0);
  sml_send_queue_ask(&q, 100000, now_ns += SML_NS_PER_MS);
  assert_int_equal(sml_send_queue_wait_ns(&q, 0, now_ns), SML_NS_PER_MS);
  assert_int_equal(sml_send_queue_wait_ns(&q, 50000, now_ns), 1500 * SML_NS_PER_US);
  assert_int_equal(sml_send_queue_wait_ns(&q, 0, now_ns + 400 * SML_NS_PER_US), 600 * SML_NS_PER_US);
  assert_int_equal(sml_send_queue_wait_ns(&q, 0, now_ns + SML_NS_PER_S), 0);
  for (uint32_t i = 0; i < 100; i++) sml_send_queue_ask(&q, 100000, now_ns += SML_NS_PER_MS); /* the link is down */
  assert_in_range(sml_send_queue_wait_ns(&q, 0, now_ns), 1, SML_SEND_QUEUE_MOST_WAIT_NS);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_limit),
      cmocka_unit_test(test_the_wait),
      cmocka_unit_test(nothing_waits),
      cmocka_unit_test(up_to_the_limit),
      cmocka_unit_test(a_full_one_does_not_stop_a_lane),
      cmocka_unit_test(a_fixed_window_does_not_ask),
      cmocka_unit_test(a_sum_leaves_at_once),
  };
  return cmocka_run_group_tests_name("engine_send_queue", tests, NULL, NULL);
}
