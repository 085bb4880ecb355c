/* SPDX-License-Identifier: Apache-2.0 */
#include "dataplane/test_stand_in.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

struct stand_in stand_in;

/* ---- a network in which a byte takes its time ---- */

#define STEP_NS (10 * SML_NS_PER_MS)

static _Thread_local bool answers_drip, requests_drip;
static _Thread_local uint32_t num_steps;

static size_t drip(size_t num_bytes) {
  const struct timespec step = {.tv_nsec = STEP_NS};
  nanosleep(&step, NULL);
  num_steps++;
  return sml_min_u64(num_bytes, 1);
}

/* These take the places of libc's: a socket that is never found empty or full, on however slow a machine. */
ssize_t recv(int fd, void *bytes, size_t num_bytes, int flags) {
  return syscall(SYS_recvfrom, fd, bytes, answers_drip ? drip(num_bytes) : num_bytes, flags, NULL, NULL);
}

ssize_t send(int fd, const void *bytes, size_t num_bytes, int flags) {
  return syscall(SYS_sendto, fd, bytes, requests_drip ? drip(num_bytes) : num_bytes, flags, NULL, 0);
}

static void *run(void *argument) {
  (void)argument;
  for (int fd; (fd = accept(stand_in.listen_fd, NULL, NULL)) >= 0;) {
    pthread_mutex_lock(&stand_in.lock);
    stand_in.client_fd = fd;
    pthread_mutex_unlock(&stand_in.lock);
    stand_in.serve(fd);
    pthread_mutex_lock(&stand_in.lock);
    stand_in.client_fd = -1;
    pthread_mutex_unlock(&stand_in.lock);
    close(fd);
  }
  return NULL;
}

void stand_in_start(const struct sockaddr *addr, socklen_t addr_bytes, void (*serve)(int fd)) {
  struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t in_bytes = sizeof in;
  memset(&stand_in, 0, sizeof stand_in);
  stand_in.serve = serve;
  stand_in.client_fd = -1;
  pthread_mutex_init(&stand_in.lock, NULL);
  stand_in.listen_fd = socket(addr ? addr->sa_family : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const struct sockaddr *at = addr ? addr : (const struct sockaddr *)&in;
  assert_int_equal(bind(stand_in.listen_fd, at, addr ? addr_bytes : in_bytes), 0);
  assert_int_equal(listen(stand_in.listen_fd, 4), 0);
  if (addr == NULL) {
    assert_int_equal(getsockname(stand_in.listen_fd, (struct sockaddr *)&in, &in_bytes), 0);
    stand_in.addr = stand_in_make_addr(INADDR_LOOPBACK, ntohs(in.sin_port));
  }
  assert_int_equal(pthread_create(&stand_in.thread, NULL, run, NULL), 0);
}

void stand_in_die(void) {
  shutdown(stand_in.listen_fd, SHUT_RDWR);
}

void stand_in_stop(void) {
  stand_in_die();
  pthread_join(stand_in.thread, NULL);
  close(stand_in.listen_fd);
  pthread_mutex_destroy(&stand_in.lock);
}

/* ---- the server's ---- */

uint32_t stand_in_take_call(void) {
  return ++stand_in.num_calls == stand_in.faulty_call ? stand_in.fault : 0;
}

void stand_in_note(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const size_t room_bytes = sizeof stand_in.log - stand_in.log_bytes;
  const int n = vsnprintf(stand_in.log + stand_in.log_bytes, room_bytes, format, arguments);
  va_end(arguments);
  stand_in.log_bytes = sml_min_u64(stand_in.log_bytes + (size_t)n, sizeof stand_in.log - 1);
}

void stand_in_answer(int fd, const void *bytes, size_t num_bytes) {
  const size_t step = stand_in.is_slow ? 1 : num_bytes;
  for (size_t at = 0; at < num_bytes; at += step) (void)!send(fd, (const char *)bytes + at, step, MSG_NOSIGNAL);
}

/* ---- the test's ---- */

void stand_in_plan_fault(uint32_t fault, uint32_t call) {
  pthread_mutex_lock(&stand_in.lock);
  stand_in.fault = fault;
  stand_in.faulty_call = stand_in.num_calls + call;
  pthread_mutex_unlock(&stand_in.lock);
}

void stand_in_expect(const char *log) {
  pthread_mutex_lock(&stand_in.lock);
  assert_string_equal(stand_in.log, log);
  pthread_mutex_unlock(&stand_in.lock);
  stand_in_forget();
}

void stand_in_forget(void) {
  pthread_mutex_lock(&stand_in.lock);
  stand_in.log[0] = 0;
  stand_in.log_bytes = 0;
  pthread_mutex_unlock(&stand_in.lock);
}

uint32_t stand_in_count_calls(void) {
  pthread_mutex_lock(&stand_in.lock);
  const uint32_t num_calls = stand_in.num_calls;
  pthread_mutex_unlock(&stand_in.lock);
  return num_calls;
}

void stand_in_hang_up(void) {
  pthread_mutex_lock(&stand_in.lock);
  shutdown(stand_in.client_fd, SHUT_RDWR);
  pthread_mutex_unlock(&stand_in.lock);
}

struct sml_addr stand_in_make_addr(uint32_t ip, uint16_t port) {
  struct sml_addr addr = {.num_bytes = sizeof(struct sockaddr_in)};
  const struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(ip)};
  memcpy(addr.bytes, &in, sizeof in);
  return addr;
}

static bool open_at(uint32_t ip) {
  const struct sml_addr addr = stand_in_make_addr(ip, 0xbeef);
  return stand_in.plane->open(stand_in.plane->user, &addr, STAND_IN_VOUCHER, stand_in.error, sizeof stand_in.error);
}

bool stand_in_open_switch(void) {
  return open_at(0x0a070001);
}

static void fill_places(struct sml_place *places, uint32_t num_contributors, uint32_t first_port) {
  for (uint32_t c = 0; c < num_contributors; c++)
    places[c] = (struct sml_place){stand_in_make_addr(0x0a070064 + c, (uint16_t)(0x9c40 + c)), 0x020000000010 + c,
                                   (uint16_t)(first_port + c)};
}

bool stand_in_move(uint16_t number, uint32_t num_contributors, uint32_t first_port, uint32_t contributor,
                   uint32_t port) {
  struct sml_place places[SML_SWITCH_MAX_CONTRIBUTORS];
  fill_places(places, num_contributors, first_port);
  places[contributor].port = (uint16_t)port;
  return stand_in.plane->follow(stand_in.plane->user, number, places, stand_in.error, sizeof stand_in.error);
}

bool stand_in_start_job_of(uint16_t number, uint32_t epoch, uint32_t num_contributors, uint32_t num_slots,
                           uint32_t first_port) {
  struct sml_dataplane_job job = {.number = number,
                                  .epoch = epoch,
                                  .num_contributors = num_contributors,
                                  .num_slots = num_slots,
                                  .slot_base = SLOT_BASE,
                                  .first_chunk = 9,
                                  .is_checked = true};
  fill_places(job.places, num_contributors, first_port);
  return stand_in.plane->start_job(stand_in.plane->user, &job, stand_in.error, sizeof stand_in.error);
}

bool stand_in_start_job(uint32_t epoch, uint32_t num_contributors, uint32_t num_slots) {
  return stand_in_start_job_of(JOB, epoch, num_contributors, num_slots, 1);
}

void stand_in_close_job(void) {
  stand_in.plane->close_job(stand_in.plane->user, JOB);
}

/* ---- checks ---- */

uint32_t stand_in_find_blocked(uint32_t contributor) {
  uint32_t found = UINT32_MAX;
  const uint32_t slot = stand_in.plane->find_blocked(stand_in.plane->user, JOB, 1u << contributor, &found);
  assert_int_equal(found, slot == UINT32_MAX ? UINT32_MAX : contributor);
  return slot;
}

/* A look has 100 ms, which a busy machine may take away. */
void stand_in_read_counters(uint64_t *counts) {
  uint32_t look = 0;
  while (!stand_in.plane->read_counters(stand_in.plane->user, counts)) assert_true(++look < 100);
}

void stand_in_check_who_blocks(void) {
  assert_true(stand_in_open_switch());
  assert_int_equal(stand_in_find_blocked(1), UINT32_MAX); /* there is no job */
  assert_true(stand_in_start_job(7, 3, 32));
  pthread_mutex_lock(&stand_in.lock);
  for (uint32_t cell = 0; cell < 2 * SLOT_BASE; cell++) stand_in.words[cell] = 0x80000001; /* another job's */
  stand_in.words[2 * SLOT_BASE + 4] = 0x80000007;                                          /* complete */
  stand_in.words[2 * SLOT_BASE + 7] = 0xc0000005;
  stand_in.words[2 * SLOT_BASE + 63] = 0xc0000003; /* the last one */
  pthread_mutex_unlock(&stand_in.lock);
  assert_int_equal(stand_in_find_blocked(0), UINT32_MAX);
  assert_int_equal(stand_in_find_blocked(1), 3);
  assert_int_equal(stand_in_find_blocked(2), 31);
  uint32_t found = UINT32_MAX;
  assert_int_equal(stand_in.plane->find_blocked(stand_in.plane->user, JOB, 7, &found), 3); /* of all three */
  assert_int_equal(found, 1);
  uint32_t words[64], look = 0;
  while (!stand_in.plane->read_words(stand_in.plane->user, JOB, words)) assert_true(++look < 100);
  for (uint32_t cell = 0; cell < 64; cell++) /* a driver may write "valid" into those that nobody has used */
    assert_int_equal(words[cell] & 0x3fffffff, stand_in.words[2 * SLOT_BASE + cell] & 0x3fffffff);
  assert_false(stand_in.plane->read_words(stand_in.plane->user, JOB + 1, words));
}

/* Whoever closes the connection, also where another call meets that first; not one that was given up here. */
void stand_in_check_death_is_noticed(const char *why) {
  struct sml_dataplane *plane = stand_in.plane;
  char text[512];
  uint64_t counts[SML_NUM_AT_SWITCH];
  assert_false(plane->is_lost(plane->user, text, sizeof text)); /* nothing was asked yet */
  for (uint32_t round = 0; round < 2; round++) {
    assert_true(stand_in_open_switch());
    assert_true(stand_in_start_job(7, 2, 2));
    assert_false(plane->is_lost(plane->user, text, sizeof text));
    stand_in_hang_up();
    if (round == 1) assert_false(plane->read_counters(plane->user, counts));
    assert_true(plane->is_lost(plane->user, text, sizeof text));
    assert_string_equal(text, why);
    assert_false(plane->is_lost(plane->user, text, sizeof text)); /* once */
    stand_in_close_job();
  }
}

/* Byte by byte, and never none for long. A call may take a second, all those of a job's start two. */
void stand_in_check_dripping_is_given_up(uint32_t lengthy) {
  assert_true(stand_in_open_switch());
  for (uint32_t is_request = 0; is_request < 2; is_request++) {
    if (!is_request) stand_in_plan_fault(lengthy, 1);
    num_steps = 0;
    answers_drip = !is_request;
    requests_drip = is_request;
    const uint64_t start_ns = sml_clock_ns();
    const bool is_started = stand_in_start_job(7, SML_SWITCH_MAX_CONTRIBUTORS, 32);
    const uint64_t took_ns = sml_clock_ns() - start_ns;
    answers_drip = requests_drip = false;
    assert_in_range(num_steps, 1, 2 * SML_NS_PER_S / STEP_NS + 1);
    assert_false(is_started);
    assert_non_null(strstr(stand_in.error, ": no answer in time"));
    assert_true(took_ns >= SML_NS_PER_S);
    stand_in_close_job();
  }
  assert_true(stand_in_start_job(8, 2, 32));
}

void stand_in_check_ranks_must_reach_us(void) {
  assert_false(open_at(INADDR_ANY));
  assert_string_equal(stand_in.error,
                      "with a switch, --listen must be the IPv4 address by which ranks reach this host");
}
