/* SPDX-License-Identifier: Apache-2.0
 * The service asked about itself: by connections, by ranks that wait, by other threads. */
#include "aggd/test_rank_world.h"

#include "aggd/snapshot.h"

#define LONG_BYTES 40000u

static uint32_t num_rendered;

/* Which jobs there are, then filler up to several parts. */
static char *render(void *user, const struct sml_snapshot *s, const char *key_name) {
  (void)user;
  char *text = malloc(LONG_BYTES + 1);
  assert_non_null(text);
  memset(text, '.', LONG_BYTES);
  text[LONG_BYTES] = 0;
  num_rendered++;
  int used = snprintf(text, LONG_BYTES, "%u jobs for '%s'", s->num_jobs, key_name);
  text[used] = '.';
  return text;
}

static struct sml_aggd_options with_status(void) {
  struct sml_aggd_options options = loopback();
  options.render_status = render;
  return options;
}

static void ask(struct rank *r, uint32_t offset_bytes) {
  say(r, &(struct sml_ctl_message){.kind = SML_CTL_STATUS, .u.status.offset_bytes = offset_bytes});
}

static void test_a_connection_reads_the_status(void **state) {
  (void)state;
  begin_with(with_status());
  start_world("x", 2);
  struct rank viewer = {.tcp = connect_tcp(), .udp = -1};
  uint32_t offset_bytes = 0;
  do {
    ask(&viewer, offset_bytes);
    hear(&viewer, SML_CTL_STATUS_PART);
    assert_int_equal(viewer.last.u.status_part.offset_bytes, offset_bytes);
    assert_int_equal(viewer.last.u.status_part.total_bytes, LONG_BYTES);
    if (offset_bytes == 0) assert_memory_equal(viewer.last.u.status_part.text, "1 jobs for ''.", 14);
    offset_bytes += viewer.last.u.status_part.num_bytes;
  } while (offset_bytes < LONG_BYTES);
  ask(&viewer, LONG_BYTES + 1);
  hear(&viewer, SML_CTL_REFUSE);
  hang_up(&viewer);
  for (uint32_t i = 0; i < 2; i++) hang_up(&ranks[i]);
  end();
}

/* However many ask, a text is made four times a second. */
static void test_texts_are_made_for_all_who_ask(void **state) {
  (void)state;
  begin_with(with_status());
  num_rendered = 0;
  const uint64_t began_ns = sml_clock_ns();
  for (uint32_t i = 0; i < 200; i++) {
    struct rank viewer = {.tcp = connect_tcp(), .udp = -1};
    ask(&viewer, 0);
    hear(&viewer, SML_CTL_STATUS_PART);
    hang_up(&viewer);
  }
  const uint64_t most = 1 + (sml_clock_ns() - began_ns) / (250 * SML_NS_PER_MS);
  assert_in_range(num_rendered, 1, most);
  end();
}

/* False: the connection is cut off. */
static bool can_ask(struct rank *r) {
  uint8_t frame[SML_CHANNEL_MAX_FRAME_BYTES];
  const struct sml_ctl_message m = {.kind = SML_CTL_STATUS, .u.status.offset_bytes = 0};
  const size_t num_bytes = sml_channel_encode(&r->channel, &m, frame, sizeof frame);
  assert_true(num_bytes > 0);
  const ssize_t n = send(r->tcp, frame, num_bytes, MSG_NOSIGNAL);
  if (n < 0) assert_true(errno == ECONNRESET || errno == EPIPE);
  return n == (ssize_t)num_bytes;
}

/* Who asks for parts and does not read them is cut off: when the system's buffers are full, which hold megabytes. So
 * nothing is read before, or the reader is slow only if the machine makes him so. */
static void test_slow_reader(void **state) {
  (void)state;
  begin_with(with_status());
  struct rank viewer = {.tcp = connect_tcp(), .udp = -1};
  const uint32_t most = 64 * 1024; /* half a gigabyte of parts */
  uint32_t num_asked = 0;
  while (num_asked < most && can_ask(&viewer)) num_asked++;
  assert_true(num_asked < most);
  int heard;
  uint32_t num_parts = 0;
  while ((heard = hear_any(&viewer)) == SML_CTL_STATUS_PART) num_parts++;
  assert_int_equal(heard, 0);
  assert_true(num_parts < num_asked);
  hang_up(&viewer);
  start_world("x", 2); /* and nobody else noticed */
  for (uint32_t i = 0; i < 2; i++) hang_up(&ranks[i]);
  end();
}

static void test_a_service_without_text(void **state) {
  (void)state;
  begin_with(loopback());
  struct rank viewer = {.tcp = connect_tcp(), .udp = -1};
  ask(&viewer, 0);
  hear(&viewer, SML_CTL_REFUSE);
  assert_non_null(strstr(viewer.last.u.refuse.detail, "shows no status"));
  hang_up(&viewer);
  end();
}

static void test_a_rank_asks_whom_it_waits_for(void **state) {
  (void)state;
  begin_with(loopback());
  start_world("x", 3);
  struct sml_header h;
  uint8_t frame[9000];
  for (uint32_t i = 0; i < 2; i++) update(&ranks[i], 0, 3, 7, 1, &h, frame, false);
  h = header_of(&ranks[1], SML_PACKET_PROBE, 0);
  h.slot = (uint16_t)(ranks[1].start.slot_base[0] + 3);
  h.phase = ranks[1].start.first_phase;
  h.tag = 7;
  assert_true(exchange(&ranks[1], 0, &h, frame, true)); /* so both are in */
  for (uint32_t i = 0; i < 2; i++) {
    say(&ranks[i], &(struct sml_ctl_message){.kind = SML_CTL_ASK});
    hear(&ranks[i], SML_CTL_REPORT);
    assert_string_equal(ranks[i].last.u.report.detail,
                        "every rank has called what the others have, 1 slot waits for rank 2 with 2 of 3 contributions "
                        "(lane 0 slot 3 phase 2)");
    assert_int_equal(ranks[i].last.u.report.num_ranks, 1);
    assert_int_equal(ranks[i].last.u.report.ranks[0], 2);
  }
  for (uint32_t i = 0; i < 3; i++) hang_up(&ranks[i]);
  end();
}

/* A service in a rank's process: that host's ranks come over loopback, which is no name for the others. */
static void test_ranks_of_this_host_have_its_address(void **state) {
  (void)state;
  char error[64];
  for (uint32_t is_v6 = 0; is_v6 < 2; is_v6++) {
    const char *expected = is_v6 ? "2001:db8::7" : "192.0.2.7";
    struct sml_aggd_options options = loopback();
    options.is_embedded = true;
    assert_true(sml_addr_parse(is_v6 ? "[2001:db8::7]:0" : "192.0.2.7:0", 0, &options.seen_at, error, sizeof error));
    begin_with(options);
    start_world("x", 2);
    usleep(110000); /* what was asked for before is no answer */
    struct sml_snapshot *s = sml_aggd_snapshot(aggd);
    assert_non_null(s);
    for (uint32_t i = 0; i < 2; i++) assert_non_null(strstr(s->ranks[i].member.host, expected));
    sml_snapshot_release(s);
    for (uint32_t i = 0; i < 2; i++) hang_up(&ranks[i]);
    end();
  }
}

static void test_snapshots(void **state) {
  (void)state;
  struct sml_aggd_options options = loopback();
  options.num_lanes = 2;
  begin_with(options);
  start_world("x", 2);
  for (uint32_t lane = 0; lane < 2; lane++) {
    struct sml_header h;
    uint8_t frame[9000];
    update(&ranks[0], lane, 3, 7, 40, &h, frame, false);
    assert_true(update(&ranks[1], lane, 3, 7, 2, &h, frame, true));
  }
  usleep(110000); /* what was asked for before is no answer */
  struct sml_snapshot *s = sml_aggd_snapshot(aggd);
  assert_non_null(s);
  assert_int_equal(s->num_lanes, 2);
  assert_int_equal(s->num_jobs, 1);
  assert_string_equal(s->jobs[0].is.name, "x");
  assert_int_equal(s->jobs[0].does.num_results, 2);
  assert_int_equal(s->jobs[0].num_ranks, 2);
  assert_int_equal(s->lanes[1].slots_used, 16);
  assert_true(s->lanes[1].io.rx_frames >= 4);
  assert_int_equal(s->ranks[0].look.traffic.num_packets, 2);
  assert_int_equal(s->num_happened[SML_HAPPENED_JOB_STARTED], 1);
  for (uint32_t i = 0; i < 2; i++) say(&ranks[i], &(struct sml_ctl_message){.kind = SML_CTL_GOODBYE});
  await_note("job_ended(x)");
  for (uint32_t i = 0; i < 2; i++) hang_up(&ranks[i]);
  struct sml_snapshot *later = NULL;
  do { /* the note comes before the lanes have let go of the job */
    usleep(110000);
    sml_snapshot_release(later);
    later = sml_aggd_snapshot(aggd);
    assert_non_null(later);
  } while (later->num_jobs != 0);
  assert_int_equal(later->num_ended, 1);
  assert_string_equal(later->ended[0].name, "x");
  assert_false(later->ended[0].is_failure);
  sml_snapshot_release(later);
  end();
  assert_string_equal(s->jobs[0].is.name, "x"); /* the holder's as long as he wants */
  sml_snapshot_release(s);
}

static void *keep_asking(void *argument) {
  (void)argument;
  for (uint32_t i = 0; i < 50; i++) {
    struct sml_snapshot *s = sml_aggd_snapshot(aggd);
    assert_non_null(s);
    sml_snapshot_release(s);
  }
  return NULL;
}

static void test_many_threads_ask(void **state) {
  (void)state;
  begin_with(loopback());
  pthread_t threads[4];
  for (uint32_t i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, keep_asking, NULL), 0);
  for (uint32_t i = 0; i < 5; i++) {
    start_world("x", 2);
    for (uint32_t r = 0; r < 2; r++) hang_up(&ranks[r]);
    await_note("job_ended(x)");
    forget_notes();
  }
  for (uint32_t i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  end();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_connection_reads_the_status),
      cmocka_unit_test(test_texts_are_made_for_all_who_ask),
      cmocka_unit_test(test_slow_reader),
      cmocka_unit_test(test_a_service_without_text),
      cmocka_unit_test(test_a_rank_asks_whom_it_waits_for),
      cmocka_unit_test(test_snapshots),
      cmocka_unit_test(test_ranks_of_this_host_have_its_address),
      cmocka_unit_test(test_many_threads_ask),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
