/* SPDX-License-Identifier: Apache-2.0
 * `switchml evict`: ends a job at an aggregator by hand. */
#pragma once

int sml_evict_run(int argc, char **argv); /* argv[0] is the subcommand's name */
