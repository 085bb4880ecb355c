/* SPDX-License-Identifier: Apache-2.0
 * What a service manager is told: the datagrams of sd_notify(3). The protocol is one environment variable and
 * lines of text, and is documented to be spoken without libsystemd. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Sends `text`, lines such as "READY=1\nSTATUS=...", to the socket that NOTIFY_SOCKET names: a path, or an abstract
 * name that begins with '@'. True: sent, or nobody asked to be told. Never blocks. */
bool sml_notify(const char *text);

/* How often the service manager wants to hear WATCHDOG=1: a third of its patience, as sd_watchdog_enabled(3) has it.
 * 0: never. */
uint64_t sml_notify_watchdog_ns(void);
