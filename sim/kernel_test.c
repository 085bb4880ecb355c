/* SPDX-License-Identifier: Apache-2.0
 * Fibers, threads and what they wait for, timers, processes, clocks, heaps, failing calls. */
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "sim/test_support.h"

static uint64_t clock_ns(void) {
  struct timespec t;
  CHECK(clock_gettime(CLOCK_MONOTONIC, &t) == 0);
  return (uint64_t)t.tv_sec * SML_NS_PER_S + (uint64_t)t.tv_nsec;
}

/* ---- timers ---- */

struct numbered {
  struct sim_timer timer;
  uint64_t time_ns;
  uint32_t number;
};
static uint64_t last_ns;
static uint32_t last_number, num_fired;

static void fire_in_order(struct sim_timer *timer) {
  const struct numbered *n = (struct numbered *)timer;
  CHECK(sim_now_ns() == n->time_ns);
  CHECK(n->time_ns > last_ns || (n->time_ns == last_ns && n->number > last_number) || num_fired == 0);
  last_ns = n->time_ns;
  last_number = n->number;
  num_fired++;
}

static void test_timers_fire_in_order(void **state) {
  (void)state;
  static struct numbered timers[5000];
  begin(1);
  memset(timers, 0, sizeof timers);
  num_fired = 0;
  uint32_t order = 0, num_set = 0;
  for (uint32_t round = 0; round < 20000; round++) { /* set, moved and cleared in any order */
    struct numbered *n = &timers[sim_draw(SML_ARRAY_LEN(timers))];
    n->timer.fire = fire_in_order;
    if (sim_draw(4) == 0) {
      sim_timer_clear(&n->timer);
      continue;
    }
    n->time_ns = sim_draw(1000); /* many are equal: then the order of setting counts */
    n->number = ++order;
    sim_timer_set(&n->timer, n->time_ns);
  }
  for (uint32_t i = 0; i < SML_ARRAY_LEN(timers); i++) num_set += timers[i].timer.heap_idx != 0;
  run_out();
  assert_int_equal(num_fired, num_set);
  finish();
}

static void test_time_limit_and_goal(void **state) {
  (void)state;
  begin(1);
  assert_int_equal(sim_run_until(5 * SML_NS_PER_S, NULL, NULL), SIM_IDLE);
  struct numbered n = {.timer.fire = fire_in_order, .time_ns = 100, .number = 1};
  num_fired = 0;
  sim_timer_set(&n.timer, 100);
  assert_int_equal(sim_run_until(99, NULL, NULL), SIM_REACHED_TIME);
  assert_int_equal(sim_now_ns(), 99);
  assert_int_equal(num_fired, 0);
  run_out();
  assert_int_equal(num_fired, 1);
  finish();
}

/* ---- threads ---- */

struct shared {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  sem_t sem;
  uint32_t value, num_inside, order[8], num_ordered;
  bool is_over;
};

static void *add_often(void *argument) {
  struct shared *s = argument;
  for (uint32_t i = 0; i < 200; i++) {
    pthread_mutex_lock(&s->lock);
    CHECK(s->num_inside++ == 0);
    const uint32_t value = s->value;
    if (i % 16 == 0) sim_sleep_ns(1000); /* others come by while it is held */
    s->value = value + 1;
    s->num_inside--;
    pthread_mutex_unlock(&s->lock);
  }
  return s;
}

static int main_of_adders(void *argument) {
  struct shared *s = argument;
  pthread_t threads[5];
  CHECK(pthread_mutex_init(&s->lock, NULL) == 0);
  for (uint32_t i = 0; i < SML_ARRAY_LEN(threads); i++) CHECK(pthread_create(&threads[i], NULL, add_often, s) == 0);
  for (uint32_t i = 0; i < SML_ARRAY_LEN(threads); i++) {
    void *result = NULL;
    CHECK(pthread_join(threads[i], &result) == 0 && result == s);
  }
  CHECK(s->value == 1000);
  pthread_mutex_destroy(&s->lock);
  return 7;
}

static void test_mutexes_exclude(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 20; seed++) {
    begin(seed);
    struct shared s = {.value = 0};
    const struct sim_process *p = sim_spawn(test_hosts[0], "p", main_of_adders, &s, NULL);
    run_out();
    assert_int_equal(sim_process_state(p), SIM_EXITED);
    assert_int_equal(sim_process_exit_code(p), 7);
    finish();
  }
}

static void *take_numbers(void *argument) {
  struct shared *s = argument;
  pthread_mutex_lock(&s->lock);
  while (!s->is_over) {
    while (s->value == 0 && !s->is_over) pthread_cond_wait(&s->changed, &s->lock);
    if (s->value > 0) s->value--, s->num_inside++;
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

static int main_of_conds(void *argument) {
  struct shared *s = argument;
  pthread_condattr_t attr;
  pthread_t threads[3];
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->changed, &attr);
  for (uint32_t i = 0; i < SML_ARRAY_LEN(threads); i++) pthread_create(&threads[i], NULL, take_numbers, s);
  for (uint32_t i = 0; i < 300; i++) {
    pthread_mutex_lock(&s->lock);
    s->value++;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (i % 4 == 0) sim_sleep_ns(100 * SML_NS_PER_US); /* the others wait meanwhile */
  }
  while (s->num_inside < 300) sim_sleep_ns(SML_NS_PER_US); /* hangs if a signal is lost */
  pthread_mutex_lock(&s->lock);
  const uint64_t start_ns = clock_ns(), deadline_ns = start_ns + 30 * SML_NS_PER_MS;
  const struct timespec deadline = {.tv_sec = (time_t)(deadline_ns / SML_NS_PER_S),
                                    .tv_nsec = (long)(deadline_ns % SML_NS_PER_S)};
  int error = 0;
  while (error == 0) error = pthread_cond_timedwait(&s->changed, &s->lock, &deadline);
  CHECK(error == ETIMEDOUT && clock_ns() >= deadline_ns);
  CHECK(clock_ns() < deadline_ns + 5 * SML_NS_PER_MS); /* late by what wakes and the lock cost */
  s->is_over = true;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
  for (uint32_t i = 0; i < SML_ARRAY_LEN(threads); i++) pthread_join(threads[i], NULL);
  pthread_cond_destroy(&s->changed);
  pthread_mutex_destroy(&s->lock);
  return 0;
}

static void test_conds_wake_and_time_out(void **state) {
  (void)state;
  uint64_t num_spurious = 0;
  for (uint64_t seed = 1; seed <= 20; seed++) {
    begin(seed);
    struct shared s = {.value = 0};
    struct sim_process *p = sim_spawn(test_hosts[0], "p", main_of_conds, &s, NULL);
    sim_process_set_clock(p, seed * 12345, (int32_t)(seed % 3) * 100000 - 100000);
    run_out();
    assert_int_equal(sim_process_state(p), SIM_EXITED);
    num_spurious += sim_count(SIM_SPURIOUS_WAKES);
    finish();
  }
  assert_true(num_spurious > 0);
}

static void *post_often(void *argument) {
  struct shared *s = argument;
  for (uint32_t i = 0; i < 100; i++) {
    s->value++;
    sem_post(&s->sem);
  }
  return NULL;
}

static int main_of_semaphores(void *argument) {
  struct shared *s = argument;
  pthread_t thread;
  sem_init(&s->sem, 0, 2);
  CHECK(sem_wait(&s->sem) == 0 && sem_wait(&s->sem) == 0 && s->value == 0);
  pthread_create(&thread, NULL, post_often, s);
  for (uint32_t i = 1; i <= 100; i++) CHECK(sem_wait(&s->sem) == 0 && s->value >= i);
  pthread_join(thread, NULL);
  sem_destroy(&s->sem);
  return 0;
}

static void test_semaphores_count(void **state) {
  (void)state;
  begin(3);
  struct shared s = {.value = 0};
  const struct sim_process *p = sim_spawn(test_hosts[0], "p", main_of_semaphores, &s, NULL);
  run_out();
  assert_int_equal(sim_process_state(p), SIM_EXITED);
  finish();
}

static void *note_order(void *argument) {
  struct shared *s = argument;
  s->order[s->num_ordered++] = (uint32_t)sim_now_ns();
  return NULL;
}

static int main_of_order(void *argument) {
  pthread_t threads[8];
  for (uint32_t i = 0; i < 8; i++) pthread_create(&threads[i], NULL, note_order, argument);
  for (uint32_t i = 0; i < 8; i++) pthread_join(threads[i], NULL);
  return 0;
}

static uint64_t digest_of_order(uint64_t seed, struct shared *s) {
  begin(seed);
  memset(s, 0, sizeof *s);
  sim_spawn(test_hosts[0], "p", main_of_order, s, NULL);
  run_out();
  const uint64_t digest = sim_digest();
  finish();
  return digest;
}

static void test_a_seed_is_a_run(void **state) {
  (void)state;
  struct shared a, b;
  assert_int_equal(digest_of_order(5, &a), digest_of_order(5, &b));
  assert_memory_equal(a.order, b.order, sizeof a.order);
  assert_int_not_equal(digest_of_order(6, &b), digest_of_order(5, &a));
  assert_memory_not_equal(a.order, b.order, sizeof a.order);
}

static int wait_forever(void *argument) {
  sem_t never;
  (void)argument;
  sem_init(&never, 0, 0);
  sem_wait(&never);
  return 0;
}

static void test_deadlock_is_idle(void **state) {
  (void)state;
  begin(1);
  const struct sim_process *p = sim_spawn(test_hosts[0], "p", wait_forever, NULL, NULL);
  run_out();
  assert_int_equal(sim_process_state(p), SIM_RUNNING); /* it hangs: that is for the caller to see */
  finish();
}

/* ---- processes ---- */

static void *volatile held[4]; /* written, so that compilers do not leave an allocation out */

static void *hold_things(void *argument) {
  (void)argument;
  void *memory = held[0] = aligned_alloc(4096, 8192);
  CHECK(memory != NULL && (uintptr_t)memory % 4096 == 0);
  memset(memory, 1, 8192);
  CHECK(eventfd(0, EFD_NONBLOCK) >= 0);
  while (sim_now_ns() < SML_NEVER) sim_sleep_ns(SML_NS_PER_MS);
  return NULL;
}

static int main_of_holder(void *argument) {
  pthread_t thread;
  char *memory = held[1] = malloc(100);
  memory = held[1] = realloc(memory, 1000);
  pthread_create(&thread, NULL, hold_things, NULL);
  volatile size_t huge = SIZE_MAX / 2;
  CHECK((held[3] = calloc(huge, 3)) == NULL);
  memset(memory, 2, 1000);
  if (argument != NULL) {
    sim_sleep_ns(20 * SML_NS_PER_MS);
    sim_kill(sim_self());
    CHECK(false); /* does not return */
  }
  while (sim_now_ns() < SML_NEVER) sim_sleep_ns(SML_NS_PER_MS);
  return 0;
}

static void test_kill_frees_all(void **state) {
  (void)state;
  begin(1);
  struct sim_process *a = sim_spawn(test_hosts[0], "a", main_of_holder, NULL, NULL);
  const struct sim_process *b = sim_spawn(test_hosts[0], "b", main_of_holder, &a, NULL);
  struct sim_usage usage;
  (void)sim_run_until(10 * SML_NS_PER_MS, NULL, NULL);
  sim_process_usage(a, &usage);
  assert_int_equal(usage.heap_bytes, 8192 + 1000);
  assert_int_equal(usage.num_allocations, 2);
  assert_int_equal(usage.num_threads, 2);
  assert_int_equal(usage.num_descriptors, 1);
  sim_kill(a);
  sim_kill(a);
  run_out(); /* nothing of them is left that could run */
  const struct sim_process *const dead[] = {a, b};
  for (uint32_t i = 0; i < 2; i++) {
    assert_int_equal(sim_process_state(dead[i]), SIM_KILLED);
    sim_process_usage(dead[i], &usage);
    const uint64_t max_bytes = usage.max_heap_bytes;
    assert_true(max_bytes >= 9192);
    usage.max_heap_bytes = 0;
    const struct sim_usage none = {.heap_bytes = 0};
    assert_memory_equal(&usage, &none, sizeof none);
  }
  assert_int_equal(sim_count(SIM_KILLS), 2);
  finish();
}

static int main_of_leaker(void *argument) {
  pthread_t thread;
  (void)argument;
  CHECK((held[2] = malloc(33)) != NULL);
  pthread_create(&thread, NULL, hold_things, NULL);
  sim_sleep_ns(SML_NS_PER_MS);
  return 3;
}

static void test_leaks_of_an_exit(void **state) {
  (void)state;
  begin(1);
  const struct sim_process *p = sim_spawn(test_hosts[0], "p", main_of_leaker, NULL, NULL);
  run_out();
  struct sim_usage leaks;
  sim_process_leaks(p, &leaks);
  assert_int_equal(sim_process_exit_code(p), 3);
  assert_int_equal(leaks.heap_bytes, 33 + 8192);
  assert_int_equal(leaks.num_allocations, 2);
  assert_int_equal(leaks.num_descriptors, 1);
  assert_int_equal(leaks.num_threads, 1);
  finish();
}

static uint32_t num_ticks;
static int main_of_ticker(void *argument) {
  (void)argument;
  for (; sim_now_ns() < SML_NEVER; num_ticks++) sim_sleep_ns(SML_NS_PER_MS);
  return 0;
}

static void test_pause_and_resume(void **state) {
  (void)state;
  begin(1);
  num_ticks = 0;
  struct sim_process *p = sim_spawn(test_hosts[0], "p", main_of_ticker, NULL, NULL);
  (void)sim_run_until(100 * SML_NS_PER_MS, NULL, NULL);
  const uint32_t num_before = num_ticks;
  assert_in_range(num_before, 80, 100);
  sim_pause(p);
  assert_int_equal(sim_process_state(p), SIM_PAUSED);
  assert_int_equal(sim_run_until(SML_NS_PER_S, NULL, NULL), SIM_IDLE);
  assert_int_equal(num_ticks, num_before);
  sim_resume(p);
  (void)sim_run_until(sim_now_ns() + 100 * SML_NS_PER_MS, NULL, NULL);
  assert_in_range(num_ticks, num_before + 80, num_before + 101);
  sim_pause(p);
  sim_kill(p);
  assert_int_equal(sim_process_state(p), SIM_KILLED);
  run_out();
  finish();
}

static int main_of_clock(void *argument) {
  (void)argument;
  const uint64_t start_ns = clock_ns();
  CHECK(start_ns >= 5 * SML_NS_PER_S && start_ns < 5 * SML_NS_PER_S + SML_NS_PER_MS);
  sim_sleep_ns(1000 * SML_NS_PER_S);
  const uint64_t passed_ns = clock_ns() - start_ns;
  CHECK(passed_ns >= 1000 * SML_NS_PER_S + 100 * SML_NS_PER_MS);
  CHECK(passed_ns < 1000 * SML_NS_PER_S + 101 * SML_NS_PER_MS);
  CHECK(strcmp(getenv("COLOR"), "red") == 0 && strcmp(getenv("EMPTY"), "") == 0);
  CHECK(getenv("COLO") == NULL && getenv("PATH") == NULL);
  uint64_t random = 0;
  CHECK(getrandom(&random, sizeof random, 0) == sizeof random && random != 0);
  CHECK(getpid() >= 1000);
  return 0;
}

static void test_clock_environment_random(void **state) {
  (void)state;
  begin(1);
  const char *const environment[] = {"EMPTY=", "COLOR=red", NULL};
  struct sim_process *p = sim_spawn(test_hosts[0], "p", main_of_clock, NULL, environment);
  sim_process_set_clock(p, 5 * SML_NS_PER_S, 100000); /* 100 ppm fast */
  run_out();
  assert_int_equal(sim_process_state(p), SIM_EXITED);
  finish();
}

/* ---- calls ---- */

static int main_of_failures(void *argument) {
  (void)argument;
  for (uint32_t i = 1; i <= 3; i++) {
    void *memory = held[3] = malloc(10);
    CHECK((memory == NULL) == (i == 2));
    if (memory == NULL) CHECK(errno == ENOMEM);
    free(memory);
  }
  sim_process_fail_call(sim_self(), SIM_CALL_EVENTFD, 1, EMFILE);
  CHECK(eventfd(0, 0) == -1 && errno == EMFILE);
  pthread_t thread;
  sim_process_fail_call(sim_self(), SIM_CALL_THREAD, 1, EAGAIN);
  CHECK(pthread_create(&thread, NULL, post_often, NULL) == EAGAIN);
  return 0;
}

static void test_calls_fail_once(void **state) {
  (void)state;
  begin(1);
  struct sim_process *p = sim_spawn(test_hosts[0], "p", main_of_failures, NULL, NULL);
  sim_process_fail_call(p, SIM_CALL_MALLOC, 2, ENOMEM);
  run_out();
  assert_int_equal(sim_process_num_calls(p, SIM_CALL_MALLOC), 3);
  assert_int_equal(sim_process_num_calls(p, SIM_CALL_EVENTFD), 1);
  assert_int_equal(sim_count(SIM_CALLS_FAILED), 3);
  for (uint32_t i = 0; i < SIM_NUM_CALLS; i++) assert_non_null(sim_call_name((enum sim_call)i));
  for (uint32_t i = 0; i < SIM_NUM_COUNTS; i++) assert_non_null(sim_count_name((enum sim_count)i));
  finish();
}

static int main_of_descriptors(void *argument) {
  (void)argument;
  uint64_t value = 3;
  struct epoll_event event = {.events = EPOLLIN, .data.u32 = 9}, found[4];
  const int set = epoll_create1(0), counter = eventfd(0, EFD_NONBLOCK);
  CHECK(set == 3 && counter == 4);
  CHECK(epoll_ctl(set, EPOLL_CTL_ADD, counter, &event) == 0);
  CHECK(epoll_ctl(set, EPOLL_CTL_ADD, counter, &event) == -1 && errno == EEXIST);
  CHECK(read(counter, &value, sizeof value) == -1 && errno == EAGAIN);
  const uint64_t start_ns = clock_ns();
  CHECK(epoll_wait(set, found, 4, 20) == 0);
  CHECK(clock_ns() - start_ns >= 20 * SML_NS_PER_MS && clock_ns() - start_ns < 25 * SML_NS_PER_MS);
  CHECK(write(counter, &value, sizeof value) == 8 && write(counter, &value, sizeof value) == 8);
  CHECK(epoll_wait(set, found, 4, -1) == 1 && found[0].events == EPOLLIN && found[0].data.u32 == 9);
  CHECK(read(counter, &value, sizeof value) == 8 && value == 6);
  CHECK(epoll_wait(set, found, 4, 0) == 0);
  CHECK(close(counter) == 0 && epoll_wait(set, found, 4, 0) == 0);
  CHECK(read(counter, &value, sizeof value) == -1 && errno == EBADF);
  CHECK(eventfd(1, 0) == 4); /* the lowest free number */
  CHECK(open("/etc/keys", O_RDONLY) == 5 && open("/etc/passwd", O_RDONLY) == -1 && errno == ENOENT);
  struct stat st;
  char text[16] = "";
  CHECK(fstat(5, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 0777) == 0600 && st.st_size == 5);
  CHECK(read(5, text, 2) == 2 && read(5, text + 2, 10) == 3 && read(5, text, 10) == 0);
  CHECK(strcmp(text, "hello") == 0 && close(5) == 0 && close(4) == 0 && close(set) == 0);
  return 0;
}

static void test_descriptors(void **state) {
  (void)state;
  begin(1);
  sim_host_put_file(test_hosts[0], "/etc/keys", S_IFREG | 0600, "hello", 5);
  const struct sim_process *p = sim_spawn(test_hosts[0], "p", main_of_descriptors, NULL, NULL);
  run_out();
  assert_int_equal(sim_process_state(p), SIM_EXITED);
  finish();
}

static int main_of_interfaces(void *argument) {
  (void)argument;
  struct ifaddrs *all;
  CHECK(getifaddrs(&all) == 0 && all->ifa_next == NULL && strcmp(all->ifa_name, "eth0") == 0);
  struct sockaddr_in addr;
  memcpy(&addr, all->ifa_addr, sizeof addr);
  CHECK(all->ifa_flags == IFF_UP && addr.sin_family == AF_INET);
  CHECK(ntohl(addr.sin_addr.s_addr) == sim_host_ipv4(test_hosts[1]));
  freeifaddrs(all);
  return 0;
}

static void test_a_host_has_one_interface(void **state) {
  (void)state;
  begin(1);
  const struct sim_process *p = sim_spawn(test_hosts[1], "p", main_of_interfaces, NULL, NULL);
  run_out();
  struct sim_usage leaks;
  sim_process_leaks(p, &leaks);
  assert_true(sim_process_state(p) == SIM_EXITED && leaks.num_allocations == 0);
  finish();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_timers_fire_in_order),
      cmocka_unit_test(test_time_limit_and_goal),
      cmocka_unit_test(test_mutexes_exclude),
      cmocka_unit_test(test_conds_wake_and_time_out),
      cmocka_unit_test(test_semaphores_count),
      cmocka_unit_test(test_a_seed_is_a_run),
      cmocka_unit_test(test_deadlock_is_idle),
      cmocka_unit_test(test_kill_frees_all),
      cmocka_unit_test(test_leaks_of_an_exit),
      cmocka_unit_test(test_pause_and_resume),
      cmocka_unit_test(test_clock_environment_random),
      cmocka_unit_test(test_calls_fail_once),
      cmocka_unit_test(test_descriptors),
      cmocka_unit_test(test_a_host_has_one_interface),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
