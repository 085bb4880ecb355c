/* SPDX-License-Identifier: Apache-2.0
 * For tests of the kernel: programs are C functions on simulated processes. They note what they find wrong;
 * the test asserts on it afterwards, outside. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "sim/kernel.h"

#define HOST_IPV4(i) (0x0a000001u + (uint32_t)(i))

static char test_failure[512]; /* the first */
#define CHECK(claim)                                                                                                  \
  do {                                                                                                                \
    if (!(claim) && test_failure[0] == 0)                                                                             \
      (void)snprintf(test_failure, sizeof test_failure, "line %d at %.9f: %s", __LINE__, (double)sim_now_ns() * 1e-9, \
                     #claim);                                                                                         \
  } while (0)

static struct sim_host *test_hosts[8];
static struct sim_host *add_host(uint32_t i, const struct sim_link *link) {
  char name[16];
  (void)snprintf(name, sizeof name, "host-%u", i);
  const struct sim_host_options options = {.name = name, .ipv4 = HOST_IPV4(i), .up = *link, .down = *link};
  return test_hosts[i] = sim_host_add(&options);
}

static void print_trace(void *user, const char *line) {
  (void)user;
  print_message("# %s\n", line);
}

static const struct sim_link plain_link = {.delay_ns = 100 * SML_NS_PER_US};
/* A run with two hosts. */
static void begin(uint64_t seed) {
  struct sim_options options = {.seed = seed};
  if (getenv("SIM_TRACE") != NULL) options.trace = print_trace;
  test_failure[0] = 0;
  sim_begin(&options);
  (void)add_host(0, &plain_link);
  (void)add_host(1, &plain_link);
}

static void finish(void) {
  sim_end();
  if (test_failure[0] != 0) fail_msg("%s", test_failure);
}

/* Runs until nothing is left to do, and ends the run. */
static void run_out(void) {
  assert_int_equal(sim_run_until(SML_NEVER, NULL, NULL), SIM_IDLE);
}
