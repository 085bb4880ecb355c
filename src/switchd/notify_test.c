/* SPDX-License-Identifier: Apache-2.0 */
#include "switchd/notify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

static uint64_t watchdog_ns(const char *us, const char *pid) {
  setenv("WATCHDOG_USEC", us, 1);
  if (pid) setenv("WATCHDOG_PID", pid, 1);
  else unsetenv("WATCHDOG_PID");
  return sml_notify_watchdog_ns();
}

/* Two words may be late before the manager's patience is over. */
static void a_word_of_life_is_due_three_times(void **state) {
  (void)state;
  char own[24], other[24];
  snprintf(own, sizeof own, "%d", (int)getpid());
  snprintf(other, sizeof other, "%d", (int)getppid());
  assert_int_equal(watchdog_ns("30000000", NULL), UINT64_C(10000000000));
  assert_int_equal(watchdog_ns("30000000", own), UINT64_C(10000000000));
  assert_int_equal(watchdog_ns("30000000", other), 0);
  assert_int_equal(watchdog_ns("30000000", "many"), 0);
  assert_int_equal(watchdog_ns("3600000000", NULL), UINT64_C(1200000000000));
  assert_int_equal(watchdog_ns("7200000000", NULL), UINT64_C(1200000000000)); /* sooner than it wants */
  assert_int_equal(watchdog_ns("99999999999999999999", NULL), UINT64_C(1200000000000));
}

static void no_watch(void **state) {
  (void)state;
  static const char *const texts[] = {"", "0", "-1", "x", "30s", " 30000000", "3600000000x"};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
    if (watchdog_ns(texts[i], NULL) != 0) fail_msg("'%s' is a time", texts[i]);
  unsetenv("WATCHDOG_USEC");
  assert_int_equal(sml_notify_watchdog_ns(), 0);
}

static void words_reach_a_socket_by_its_abstract_name(void **state) {
  (void)state;
  char name[64], heard[64] = "";
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  const int length = snprintf(name, sizeof name, "@switchml-notify-test-%d", (int)getpid());
  for (int i = 1; i < length; i++) address.sun_path[i] = name[i];
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const socklen_t address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)length);
  assert_int_equal(bind(fd, (const struct sockaddr *)&address, address_bytes), 0);
  setenv("NOTIFY_SOCKET", name, 1);
  assert_true(sml_notify("READY=1"));
  assert_int_equal(recv(fd, heard, sizeof heard - 1, 0), 7);
  assert_string_equal(heard, "READY=1");
  close(fd);
  assert_false(sml_notify("READY=1")); /* nobody is there */
  setenv("NOTIFY_SOCKET", "relative", 1);
  assert_false(sml_notify("READY=1"));
  unsetenv("NOTIFY_SOCKET");
  assert_true(sml_notify("READY=1")); /* nobody asked for it */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_word_of_life_is_due_three_times),
      cmocka_unit_test(no_watch),
      cmocka_unit_test(words_reach_a_socket_by_its_abstract_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
