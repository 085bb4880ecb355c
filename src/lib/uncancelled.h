/* SPDX-License-Identifier: Apache-2.0
 * A thread that is ended by pthread_cancel() inside the library would leave locks that nobody releases, and a destroy
 * that waits for them for ever. So each public function holds cancellation off until it returns, as every wait ends by
 * itself; the thread ends at its next cancellation point outside. tools/tidy.py looks at all of switchml.map. */
#pragma once

#include <pthread.h>

static inline int sml_cancellation_hold(void) {
  int before;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  return before;
}

static inline void sml_cancellation_restore(const int *before) {
  pthread_setcancelstate(*before, NULL);
}

/* The first line of a public function: until the end of its block. */
#define SML_UNCANCELLED \
  const int cancellation_before __attribute__((cleanup(sml_cancellation_restore), unused)) = sml_cancellation_hold()
