/* SPDX-License-Identifier: Apache-2.0
 * All that the daemon is told: by the environment, the configuration file and the command line, each before the one
 * named ahead of it; and the keys in files that these name. Read at the start, and again for SIGHUP. */
#pragma once

#include "switchd/options.h"

/* 0, or the status to exit with: 1 a file of keys can't be used, 2 wrong usage or configuration. Then error has one
 * sentence, without a program's name. To be cleared in any case. */
int sml_settings_read(int argc, char **argv, bool is_reload, struct sml_settings *settings_out, char *error,
                      size_t error_bytes);
void sml_settings_clear(struct sml_settings *settings);
/* Forgets the keys, once the service has its copy. */
void sml_settings_drop_keys(struct sml_settings *settings);
/* Log lines about options, and sections of tenants, that have no effect. */
void sml_settings_warn(const struct sml_settings *settings);
/* "slots, lanes": options that are others now and count from the next start on; "": none. */
void sml_settings_compare(const struct sml_settings *running, const struct sml_settings *now, char *text,
                          size_t text_bytes);
