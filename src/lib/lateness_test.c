/* SPDX-License-Identifier: Apache-2.0
 * What an operation that times out, or is aborted, says: whom it waits for, where, since when, and what the aggregator
 * holds. ctl/member_late_test.c has each sentence; here is where the library and the aggregator know it from. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/test_world.h"

#define TIMEOUT_MS 700u
#define LEASE_MS 800u /* heartbeats each 200 ms: the aggregator knows who has called when it is asked */

static char details[MAX_RANKS][sizeof((sml_error *)0)->detail];
static sml_error errors[MAX_RANKS];
static pthread_barrier_t barrier;

/* The job fails within 10 s; its error is kept. */
static void await_failure(struct rank *r) {
  sml_status status = SML_OK;
  errors[r->rank] = (sml_error)SML_ERROR_INIT;
  for (uint32_t i = 0; i < 1000 && status == SML_OK; i++) {
    status = sml_job_error(r->job, &errors[r->rank]);
    if (status == SML_OK) usleep(10 * 1000);
  }
  memcpy(details[r->rank], errors[r->rank].detail, sizeof details[0]);
}

static void call_on_all(struct rank *r) {
  static float data[MAX_RANKS][9000];
  (void)allreduce(r, data[r->rank], data[r->rank], 9000, SML_FLOAT32, SML_SUM);
  await_failure(r);
}

static void call_but_on_rank_0(struct rank *r) {
  if (r->rank != 0) call_on_all(r);
  await_failure(r);
}

static void check_says(uint32_t rank, const char *needle) {
  if (strstr(details[rank], needle) == NULL) fail_msg("'%s' is not in '%s'", needle, details[rank]);
}

static void world_begin(struct world *w, uint32_t num_ranks) {
  world_init(w, num_ranks);
  w->job_options.operation_timeout_ns = TIMEOUT_MS * SML_NS_PER_MS;
  w->job_options.lease_ns = LEASE_MS * SML_NS_PER_MS;
  w->job_options.no_shared_memory = 1;
}

static void check_all_time_out(const struct world *w) {
  for (uint32_t i = 0; i < w->num_ranks; i++) {
    assert_int_equal(errors[i].status, SML_ERR_TIMEOUT);
    check_says(i, "operation 0 (float32 SUM, 9000 elements) timed out on rank ");
    assert_null(strchr(details[i], '\n'));
  }
}

/* ---- a rank does not call ---- */

static void a_late_rank_is_named_by_the_aggregator_too(void **state) {
  (void)state;
  struct world w;
  world_begin(&w, 3);
  world_start(&w);
  world_run(&w, call_but_on_rank_0);
  check_all_time_out(&w);
  check_says(0, " after 0.7 s: waiting for rank 0 on lane 0 slot ");
  check_says(0, " s; the aggregator: rank 0 (127.0.0.1) has not called for 0.");
  check_says(0, " s, 1 slot waits for rank 0 with 2 of 3 contributions (lane 0 slot 0 phase 2)");
  assert_int_equal(errors[0].num_ranks, 1);
  assert_int_equal(errors[0].ranks[0], 0);
  world_stop(&w);
}

/* ---- shared memory ---- */

#define MANY_ELEMS (1u << 24)
static float *many;

static void call_much_on_all(struct rank *r) {
  sml_operation_options o = SML_OPERATION_OPTIONS_INIT;
  sml_operation *op = NULL;
  float *data = many + (size_t)r->rank * MANY_ELEMS;
  o.timeout_ns = 2 * SML_NS_PER_MS;
  (void)sml_allreduce(r->job, data, data, MANY_ELEMS, SML_FLOAT32, SML_SUM, &o, &op); /* the other may have failed it */
  await_failure(r);
  sml_operation_release(op);
}

/* The deadline passes in the middle of a sum to which all have come: whoever says that somebody is waited for says who,
 * itself if it is itself. Whose turn it is then is chance. */
static void whoever_is_waited_for_has_a_number(void **state) {
  (void)state;
  setenv("SWITCHML_SHARED_MEMORY", "1", 1);
  many = calloc(2 * MANY_ELEMS, sizeof *many);
  for (uint32_t round = 0; round < 12; round++) {
    struct world w;
    world_begin(&w, 2);
    w.job_options.no_shared_memory = 0;
    world_start(&w);
    world_run(&w, call_much_on_all);
    for (uint32_t i = 0; i < 2; i++) {
      const char *waiting = strstr(details[i], "waiting for rank");
      if (waiting == NULL) continue;
      waiting += strlen("waiting for rank");
      waiting += *waiting == 's';
      if (waiting[0] != ' ' || waiting[1] < '0' || waiting[1] > '9') fail_msg("%s", details[i]);
      assert_true(errors[i].num_ranks > 0);
    }
    world_stop(&w);
  }
  free(many);
  unsetenv("SWITCHML_SHARED_MEMORY"); /* the others turn it off by themselves */
}

/* ---- packets do not come ---- */

/* Datagrams of rank 1 do not reach the aggregator any more. */
static void cut_off_rank_1(const struct world *w) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 8 + 8), /* behind UDP's header: the rank */
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 1), BPF_STMT(BPF_RET | BPF_K, 0),
      BPF_STMT(BPF_RET | BPF_K, UINT32_MAX)};
  const struct sock_fprog program = {SML_ARRAY_LEN(code), code};
  uint32_t num_cut = 0;
  for (int fd = 0; fd < 256; fd++) {
    struct sockaddr_in addr = {.sin_family = AF_UNSPEC};
    socklen_t addr_bytes = sizeof addr, type_bytes = sizeof(int);
    int type = 0;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_bytes) != 0 || type != SOCK_DGRAM) continue;
    if (getsockname(fd, (struct sockaddr *)&addr, &addr_bytes) != 0) continue;
    const struct sml_ctl_welcome *welcome = &w->ranks[0].job->shards[0].session.member.welcome;
    if (addr.sin_family != AF_INET || ntohs(addr.sin_port) != welcome->data_ports[0]) continue;
    num_cut += setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
  }
  assert_int_equal(num_cut, 1);
}

static void lost_packets_are_told_from_a_late_rank(void **state) {
  (void)state;
  struct world w;
  world_begin(&w, 2);
  world_start(&w);
  cut_off_rank_1(&w);
  world_run(&w, call_on_all);
  check_all_time_out(&w);
  check_says(0, "; the aggregator: every rank has called what the others have, ");
  check_says(0, "1 slot waits for rank 1 with 1 of 2 contributions (lane 0 slot 0 phase 2)");
  assert_int_equal(errors[0].ranks[0], 1);
  world_stop(&w);
}

/* ---- the system does not take packets ---- */

static _Atomic uint16_t refused_port; /* packets that go there, or (if it is_from) all others; 0: none */
static _Atomic bool is_from;
static _Atomic int refusal;

/* It takes the place of libc's. */
int sendmmsg(int fd, struct mmsghdr *messages, unsigned int num, int flags) {
  struct sockaddr_in to;
  memcpy(&to, messages[0].msg_hdr.msg_name, sizeof to);
  if (refused_port == 0 || (ntohs(to.sin_port) == refused_port) == is_from)
    return (int)syscall(SYS_sendmmsg, fd, messages, num, flags);
  errno = refusal;
  return -1;
}

static void refuse_packets(const struct world *w, bool is_of_aggregator, int error) {
  refusal = error;
  is_from = is_of_aggregator;
  refused_port = w->ranks[0].job->shards[0].session.member.welcome.data_ports[0];
}

static void what_the_system_says_is_said(void **state) {
  (void)state;
  struct world w;
  for (uint32_t round = 0; round < 2; round++) {
    world_begin(&w, 2);
    world_start(&w);
    assert_int_equal(stats_of(&w.ranks[0]).unsent_packets, 0);
    refuse_packets(&w, false, round == 0 ? EMSGSIZE : EPERM);
    world_run(&w, call_on_all);
    refused_port = 0;
    check_all_time_out(&w);
    for (uint32_t i = 0; i < 2; i++) {
      char needle[64];
      snprintf(needle, sizeof needle, "; rank %u's host did not send ", i);
      check_says(i, ": no answer from the aggregator on lane 0 slot ");
      check_says(i, needle);
      check_says(i, round == 0 ? " s ago: Message too long (the MTU is smaller than when the job was joined)"
                               : " s ago: Operation not permitted (a firewall of this host)");
      assert_true(stats_of(&w.ranks[i]).unsent_packets > 0);
      assert_int_equal(stats_of(&w.ranks[i]).unsent_errno, round == 0 ? EMSGSIZE : EPERM);
    }
    world_stop(&w);
  }
}

static void what_the_aggregators_system_says_is_said(void **state) {
  (void)state;
  struct world w;
  world_begin(&w, 2);
  world_start(&w);
  refuse_packets(&w, true, ENETUNREACH);
  world_run(&w, call_on_all);
  refused_port = 0;
  check_all_time_out(&w);
  for (uint32_t i = 0; i < 2; i++) {
    check_says(i, "; the aggregator: it did not send ");
    check_says(i, "; every rank has called what the others have, ");
    check_says(i, " packets, the last one to rank ");
    check_says(i, " (127.0.0.1): Network is unreachable");
    assert_null(strstr(details[i], "'s host did not send "));
    assert_int_equal(stats_of(&w.ranks[i]).unsent_packets, 0);
  }
  world_stop(&w);
}

/* ---- aborts ---- */

static void abort_while_rank_0_is_late(struct rank *r) {
  static float data[MAX_RANKS][9000];
  sml_operation *op = NULL;
  if (r->rank == 1)
    CHECK(r, sml_allreduce(r->job, data[1], data[1], 9000, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK);
  usleep(450 * 1000);
  pthread_barrier_wait(&barrier);
  if (r->rank == 1) CHECK(r, sml_job_abort(r->job, "the loss is NaN") == SML_OK);
  await_failure(r);
  sml_operation_release(op);
}

static void an_abort_says_what_was_outstanding(void **state) {
  (void)state;
  struct world w;
  world_begin(&w, 2);
  w.job_options.operation_timeout_ns = 30 * SML_NS_PER_S;
  world_start(&w);
  pthread_barrier_init(&barrier, NULL, 2);
  world_run(&w, abort_while_rank_0_is_late);
  pthread_barrier_destroy(&barrier);
  for (uint32_t i = 0; i < 2; i++) {
    assert_int_equal(errors[i].status, SML_ERR_ABORTED);
    check_says(i, "the loss is NaN; rank 1 had operation 0 (float32 SUM, 9000 elements) outstanding for 0.");
    check_says(i, " s: waiting for rank 0 on lane 0 slot ");
    check_says(i, "; the aggregator: rank 0 (127.0.0.1) has not called for 0.");
    assert_int_equal(errors[i].num_ranks, 1);
    assert_int_equal(errors[i].ranks[0], 1); /* who ended it */
  }
  world_stop(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_late_rank_is_named_by_the_aggregator_too),
      cmocka_unit_test(whoever_is_waited_for_has_a_number),
      cmocka_unit_test(lost_packets_are_told_from_a_late_rank),
      cmocka_unit_test(what_the_system_says_is_said),
      cmocka_unit_test(what_the_aggregators_system_says_is_said),
      cmocka_unit_test(an_abort_says_what_was_outstanding),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
