/* SPDX-License-Identifier: Apache-2.0
 * Threads, and waits that go by sml_clock_ns(). */
#pragma once

#include <pthread.h>
#include <time.h>

#include "base/clock.h"

/* A thread that no handler of the program's runs on: all signals are blocked there. 0, or an errno. */
int sml_thread_start(pthread_t *thread, const char *name, void *(*run)(void *argument), void *argument);
/* Its timed waits go by sml_clock_ns(). */
void sml_thread_init_cond(pthread_cond_t *cond);
/* A time, or a duration, as system calls take it. */
static inline struct timespec sml_timespec(uint64_t ns) {
  return (struct timespec){.tv_sec = (time_t)(ns / SML_NS_PER_S), .tv_nsec = (long)(ns % SML_NS_PER_S)};
}
