/* SPDX-License-Identifier: Apache-2.0
 * For tests: a process that keeps an aggregator as a child of its own, so that one can be killed and started
 * again at the same address while the test has threads. */
#pragma once

#include <sys/types.h>

#include "aggd/aggd.h"

struct keeper {
  pid_t pid;
  int to, from;
  char address[80];
};

/* Starts the keeper and an aggregator. Call before there are threads; free ports are chosen at once. */
void keeper_start(struct keeper *k, const struct sml_aggd_options *options);
/* SIGKILL, SIGTERM (it says goodbye), SIGSTOP or SIGCONT to the aggregator; after the first two it is gone.
 */
void keeper_signal(struct keeper *k, int number);
/* A new one at the same address. */
void keeper_start_again(struct keeper *k);
void keeper_stop(struct keeper *k);
