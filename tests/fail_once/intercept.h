/* SPDX-License-Identifier: Apache-2.0
 * Every allocation, system call and thread creation of the library and the daemon goes through here
 * (linked with --wrap), is counted by where it stands in the code, and can be made to fail once. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_SITES 512u

/* One place in the code that calls one function. */
struct site {
  const char *function;
  uintptr_t caller;   /* where it returns to */
  uint32_t num_calls; /* since intercept_begin() */
  uint32_t num_calls_failed;
};

/* Forgets all counts. The nth call from `caller` (0: none) will fail, once. */
void intercept_begin(uintptr_t caller, uint32_t nth_call);
/* Counts stop; returns whether the call was made to fail. */
bool intercept_end(void);
/* Sites seen so far, in the order they were first reached. */
size_t intercept_num_sites(void);
const struct site *intercept_site(size_t i);
/* pthread_create for the test itself: not counted. */
int intercept_start_thread(pthread_t *thread, void *(*run)(void *), void *argument);
/* Blocks allocated and not given back, of all time. */
long intercept_num_blocks(void);
