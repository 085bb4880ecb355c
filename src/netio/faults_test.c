/* SPDX-License-Identifier: Apache-2.0
 * The fault injector over the mem back end: repeatable by seed, faithful in its rates, and no frame
 * vanishes but by draw. */
#include "netio/test_support.h"

#define FRAME_BYTES 64u
#define MAX_ARRIVALS 100000u

struct arrivals {
  uint32_t num;
  uint32_t numbers[MAX_ARRIVALS];
  bool is_intact[MAX_ARRIVALS];
};

/* How a run is cut into bursts; must not matter for what happens to a frame. */
struct rhythm {
  uint32_t send_frames; /* in a burst */
  size_t rx_max;
};

static uint32_t original_number(const struct sml_rx_frame *frame) {
  /* Corruption is at most 8 bits, and the rest of the frame follows from the number. */
  for (uint32_t number = 0; number < MAX_ARRIVALS; number++) {
    uint32_t num_wrong = 0;
    for (uint32_t i = 4; i < frame->num_bytes && num_wrong <= 8; i++)
      num_wrong += frame->data[i] != test_byte(number, i);
    if (num_wrong <= 8) return number;
  }
  return UINT32_MAX;
}

static void take_arrivals(struct sml_netio *io, size_t rx_max, struct arrivals *out) {
  struct sml_rx_frame frames[256];
  const size_t num = io->ops->rx_burst(io, frames, rx_max);
  for (size_t i = 0; i < num; i++) {
    assert_int_equal(frames[i].num_bytes, FRAME_BYTES);
    assert_true(out->num < MAX_ARRIVALS);
    uint32_t number = test_number(&frames[i]);
    out->is_intact[out->num] = test_is_intact(&frames[i], number);
    if (!out->is_intact[out->num]) number = original_number(&frames[i]);
    out->numbers[out->num++] = number;
  }
}

static void run(const struct sml_fault_options *options, uint32_t num_frames, struct rhythm rhythm,
                struct arrivals *out) {
  struct sml_mem_hub *hub = sml_mem_hub_create();
  struct sml_netio *a = sml_mem_open(hub, 1, FRAME_BYTES), *b = sml_mem_open(hub, 4096, FRAME_BYTES);
  struct sml_netio *io = sml_faults_wrap(b, options);
  const struct sml_addr to = test_addr_of(io);
  out->num = 0;
  assert_int_equal(io->max_frame_bytes, FRAME_BYTES);
  for (uint32_t sent = 0; sent < num_frames;) {
    const uint32_t burst = sml_min_u32(rhythm.send_frames, num_frames - sent);
    test_send(a, sent, FRAME_BYTES, burst, FRAME_BYTES, &to, 1);
    sent += burst;
    take_arrivals(io, rhythm.rx_max, out);
  }
  for (uint32_t quiet = 0; quiet < 4;) {
    const uint32_t before = out->num;
    take_arrivals(io, rhythm.rx_max, out);
    quiet = out->num == before ? quiet + 1 : 0;
  }
  assert_int_equal(a->stats.tx_lost_frames, 0);
  assert_int_equal(io->stats.rx_frames, num_frames);
  a->ops->close(a);
  io->ops->close(io);
  sml_mem_hub_destroy(hub);
}

static const struct rhythm plain_rhythm = {16, 256};

static void test_no_faults_is_transparent(void **state) {
  (void)state;
  static const struct sml_fault_options none = {.seed = 5};
  struct arrivals *got = calloc(1, sizeof *got);
  run(&none, 20000, plain_rhythm, got);
  assert_int_equal(got->num, 20000);
  for (uint32_t i = 0; i < got->num; i++) assert_true(got->numbers[i] == i && got->is_intact[i]);
  assert_false(sml_faults_any(&none));
  free(got);
}

static void test_a_seed_repeats_exactly(void **state) {
  (void)state;
  const struct sml_fault_options options = {
      .loss = 0.1, .duplicate = 0.1, .reorder = 0.2, .corrupt = 0.05, .reorder_frames = 8, .seed = 42};
  struct sml_fault_options other = options;
  other.seed = 43;
  struct arrivals *first = calloc(1, sizeof *first), *second = calloc(1, sizeof *second);
  run(&options, 5000, plain_rhythm, first);
  run(&options, 5000, plain_rhythm, second);
  assert_int_equal(first->num, second->num);
  assert_memory_equal(first->numbers, second->numbers, first->num * sizeof first->numbers[0]);
  assert_memory_equal(first->is_intact, second->is_intact, first->num * sizeof first->is_intact[0]);
  run(&other, 5000, plain_rhythm, second);
  assert_true(first->num != second->num ||
              memcmp(first->numbers, second->numbers, first->num * sizeof first->numbers[0]) != 0);
  free(first);
  free(second);
}

static void count_copies(const struct arrivals *got, uint32_t num_frames, uint8_t *num_copies) {
  memset(num_copies, 0, num_frames);
  for (uint32_t i = 0; i < got->num; i++) {
    assert_true(got->numbers[i] < num_frames);
    num_copies[got->numbers[i]]++;
  }
}

static void test_fate_does_not_depend_on_bursts(void **state) {
  (void)state;
  enum { FRAMES = 3000 };
  static const struct rhythm rhythms[] = {{16, 256}, {1, 1}, {64, 1}, {64, 2}, {3, 3}, {50, 7}};
  const struct sml_fault_options options = {
      .loss = 0.2, .duplicate = 0.5, .reorder = 0.5, .corrupt = 0.5, .reorder_frames = 30, .seed = 1};
  struct arrivals *got = calloc(1, sizeof *got);
  uint8_t expected[FRAMES], copies[FRAMES];
  for (size_t i = 0; i < SML_ARRAY_LEN(rhythms); i++) {
    run(&options, FRAMES, rhythms[i], got);
    count_copies(got, FRAMES, i == 0 ? expected : copies);
    if (i > 0) assert_memory_equal(expected, copies, FRAMES);
  }
  free(got);
}

static void assert_near(double value, double wanted) {
  /* Six standard deviations of 20000 draws. */
  if (value < wanted - 0.0215 || value > wanted + 0.0215) fail_msg("rate %g, wanted %g", value, wanted);
}

static void test_rates(void **state) {
  (void)state;
  enum { FRAMES = 20000 };
  struct arrivals *got = calloc(1, sizeof *got);
  uint8_t *copies = calloc(1, FRAMES);
  const struct sml_fault_options options = {
      .loss = 0.1, .duplicate = 0.2, .reorder = 0.3, .corrupt = 0.05, .reorder_frames = 10, .seed = 9};
  run(&options, FRAMES, plain_rhythm, got);
  count_copies(got, FRAMES, copies);
  uint32_t num_lost = 0, num_twice = 0, num_corrupt = 0, num_overtaken = 0;
  for (uint32_t i = 0; i < FRAMES; i++) {
    assert_true(copies[i] <= 2);
    num_lost += copies[i] == 0;
    num_twice += copies[i] == 2;
  }
  uint32_t newest = 0;
  for (uint32_t i = 0; i < got->num; i++) {
    num_corrupt += !got->is_intact[i];
    num_overtaken += got->numbers[i] < newest;
    assert_true(got->numbers[i] + options.reorder_frames >= newest);
    newest = sml_max_u32(newest, got->numbers[i]);
  }
  assert_int_equal(got->num, FRAMES - num_lost + num_twice); /* conservation */
  assert_near((double)num_lost / FRAMES, 0.1);
  assert_near((double)num_twice / (FRAMES - num_lost), 0.2);
  assert_near((double)num_corrupt / got->num, 0.05);
  assert_near((double)num_overtaken / (FRAMES - num_lost), 0.3 * 0.95); /* nearly all are overtaken */
  free(copies);
  free(got);
}

static void test_losses_in_bursts(void **state) {
  (void)state;
  enum { FRAMES = 50000, BURST = 64 };
  struct arrivals *got = calloc(1, sizeof *got);
  uint8_t *copies = calloc(1, FRAMES);
  const struct sml_fault_options options = {.loss = 0.2, .loss_burst_frames = BURST, .seed = 3};
  run(&options, FRAMES, plain_rhythm, got);
  count_copies(got, FRAMES, copies);
  uint32_t num_lost = 0, num_in_a_row = 0;
  for (uint32_t i = 0; i < FRAMES; i++) {
    num_lost += copies[i] == 0;
    num_in_a_row = copies[i] == 0 ? num_in_a_row + 1 : 0;
    if (i + 1 == FRAMES || copies[i + 1] == 0) continue;
    assert_int_equal(num_in_a_row % BURST, 0); /* whole bursts, maybe one after the other */
  }
  const double share = (double)num_lost / FRAMES;
  if (share < 0.12 || share > 0.28) fail_msg("share %g, wanted 0.2", share); /* 156 bursts: five deviations */
  run(&(struct sml_fault_options){.loss = 1, .loss_burst_frames = BURST}, 1000, plain_rhythm, got);
  assert_int_equal(got->num, 0);
  free(copies);
  free(got);
}

static void test_certainties(void **state) {
  (void)state;
  struct arrivals *got = calloc(1, sizeof *got);
  const struct rhythm rhythms[] = {{64, 256}, {64, 1}, {64, 2}, {64, 5}};
  for (size_t i = 0; i < SML_ARRAY_LEN(rhythms); i++) {
    run(&(struct sml_fault_options){.loss = 1}, 1000, rhythms[i], got);
    assert_int_equal(got->num, 0);
    run(&(struct sml_fault_options){.duplicate = 1, .corrupt = 1}, 1000, rhythms[i], got);
    assert_int_equal(got->num, 2000);
    for (uint32_t k = 0; k < got->num; k++) assert_true(got->numbers[k] == k / 2 && !got->is_intact[k]);
    run(&(struct sml_fault_options){.duplicate = 1, .reorder = 1, .reorder_frames = 5000}, 2000, rhythms[i], got);
    assert_int_equal(got->num, 4000);
    run(&(struct sml_fault_options){.reorder = 1}, 1000, rhythms[i], got);
    assert_int_equal(got->num, 1000);
  }
  free(got);
}

static bool drop_third(void *user, const uint8_t *data, uint32_t num_bytes) {
  uint32_t *num_calls = user;
  assert_int_equal(num_bytes, FRAME_BYTES);
  (*num_calls)++;
  return sml_load_be32(data) == 3;
}

static void test_targeted_drop(void **state) {
  (void)state;
  uint32_t num_calls = 0;
  const struct sml_fault_options options = {.loss = 1, .drop = drop_third, .drop_user = &num_calls};
  struct arrivals *got = calloc(1, sizeof *got);
  assert_true(sml_faults_any(&options));
  run(&options, 10, plain_rhythm, got);
  assert_int_equal(got->num, 9);
  assert_int_equal(got->numbers[3], 4);
  assert_int_equal(num_calls, 10);
  free(got);
}

static void test_held_frames_come_out(void **state) {
  (void)state;
  struct sml_mem_hub *hub = sml_mem_hub_create();
  struct sml_netio *io = sml_mem_open(hub, 8, FRAME_BYTES);
  const struct sml_fault_options options = {.reorder = 1, .reorder_frames = 100};
  struct sml_rx_frame frames[8];
  io = sml_faults_wrap(io, &options);
  assert_string_equal(io->ops->name, "faults");
  const struct sml_addr self = test_addr_of(io);
  test_send(io, 5, FRAME_BYTES, 1, FRAME_BYTES, &self, 1); /* sending passes through */
  assert_int_equal(io->stats.tx_frames, 1);
  const uint64_t start_ns = test_now_ns();
  size_t num = 0;
  for (int i = 0; i < 3; i++) { /* it takes two empty bursts; waits without limit end soon */
    assert_int_equal(num, 0);
    num = io->ops->rx_burst(io, frames, 8);
    if (num == 0) io->ops->wait(io, SML_NEVER);
  }
  assert_int_equal(num, 1);
  assert_true(test_is_intact(&frames[0], 5) && sml_addr_equal(frames[0].from, &self));
  assert_true(test_now_ns() - start_ns < SML_NS_PER_S);
  io->ops->wake(io);
  io->ops->wait(io, SML_NEVER);
  /* Frames that did not fit the caller's array do not wait. */
  test_send(io, 0, FRAME_BYTES, 5, FRAME_BYTES, &self, 1);
  test_send(io, 5, FRAME_BYTES, 3, FRAME_BYTES, &self, 1);
  for (num = 0; num < 8;) {
    num += io->ops->rx_burst(io, frames, 1);
    if (num < 8) io->ops->wait(io, SML_NEVER);
  }
  io->ops->close(io);
  sml_mem_hub_destroy(hub);
}

static void test_leftovers_end_a_wait(void **state) {
  (void)state;
  struct sml_mem_hub *hub = sml_mem_hub_create();
  const struct sml_fault_options options = {.duplicate = 1};
  struct sml_netio *io = sml_faults_wrap(sml_mem_open(hub, 8, FRAME_BYTES), &options);
  const struct sml_addr self = test_addr_of(io);
  test_send(io, 0, FRAME_BYTES, 3, FRAME_BYTES, &self, 1);
  for (uint32_t i = 0; i < 6; i++) {
    struct sml_rx_frame frame;
    io->ops->wait(io, SML_NEVER);
    assert_int_equal(io->ops->rx_burst(io, &frame, 1), 1);
    assert_true(test_is_intact(&frame, i / 2));
  }
  io->ops->close(io);
  sml_mem_hub_destroy(hub);
}

static void test_corruption_changes_even_one_byte(void **state) {
  (void)state;
  struct sml_mem_hub *hub = sml_mem_hub_create();
  const struct sml_fault_options options = {.corrupt = 1};
  struct sml_netio *io = sml_faults_wrap(sml_mem_open(hub, 1, FRAME_BYTES), &options);
  const struct sml_addr self = test_addr_of(io);
  struct sml_rx_frame frames[2];
  for (uint32_t i = 0; i < 2000; i++) {
    test_send(io, i, 1, 1, 1, &self, 1);
    assert_int_equal(io->ops->rx_burst(io, frames, 2), 1);
    assert_int_equal(frames[0].num_bytes, 1);
    assert_false(test_is_intact(&frames[0], i));
    assert_int_equal(io->ops->rx_burst(io, frames, 2), 0);
  }
  io->ops->close(io);
  sml_mem_hub_destroy(hub);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_faults_is_transparent),
                                     cmocka_unit_test(test_a_seed_repeats_exactly),
                                     cmocka_unit_test(test_fate_does_not_depend_on_bursts),
                                     cmocka_unit_test(test_rates),
                                     cmocka_unit_test(test_losses_in_bursts),
                                     cmocka_unit_test(test_certainties),
                                     cmocka_unit_test(test_targeted_drop),
                                     cmocka_unit_test(test_held_frames_come_out),
                                     cmocka_unit_test(test_leftovers_end_a_wait),
                                     cmocka_unit_test(test_corruption_changes_even_one_byte)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
