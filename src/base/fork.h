/* SPDX-License-Identifier: Apache-2.0
 * What happens to a context in the child of a fork: its threads are not there, its descriptors are,
 * and would keep connections open that the parent closes. The child closes them and the handles are
 * dead. Descriptors are opened, stored and closed under one lock that fork() takes, so that the child
 * finds all of them. */
#pragma once

#include "base/base.h"

struct sml_fork_watch {
  struct sml_fork_watch *next;
  void (*in_child)(struct sml_fork_watch *watch); /* the lock is held; no other thread exists */
};

void sml_fork_lock(void);
void sml_fork_unlock(void);
void sml_fork_watch(struct sml_fork_watch *watch);
void sml_fork_unwatch(struct sml_fork_watch *watch);
