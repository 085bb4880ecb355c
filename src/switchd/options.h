/* SPDX-License-Identifier: Apache-2.0
 * The daemon's options: one table for the command line and the configuration file, in which they have their long names.
 * Both give texts; sml_option_set() makes settings of them. */
#pragma once

#include "aggd/aggd.h"
#include "base/log.h"
#include "base/options.h"

#define SML_DEFAULT_LISTEN "0.0.0.0:48879"
#define SML_DEFAULT_MAX_DATAGRAM 8960
#define SML_DEFAULT_MAX_LEASE_S 600
#define SML_DEFAULT_MAX_JOIN_S 3600
#define SML_MAX_OPTIONS 40u

/* By the option's number. NULL: not given. */
struct sml_option_texts {
  const char *texts[SML_MAX_OPTIONS];
  uint32_t lines[SML_MAX_OPTIONS]; /* of the configuration file; 0: of the command line */
  char *list; /* owned: of the option that may stand several times, with commas between them; NULL: not given */
};

/* Who sums: this daemon's own lanes, or a switch. */
enum sml_dataplane_kind { SML_SOFTWARE = 0, SML_BMV2, SML_DPDK, SML_TOFINO };
extern const char *const sml_dataplane_names[];

struct sml_settings {
  struct sml_aggd_options aggd; /* keys and tenants are the settings' own */
  enum sml_log_level log_level;
  enum sml_log_format log_format;
  const char *listen, *port_file, *key_file, *multicast, *multicast_interface, *trace_folder, *config_path;
  const char *http, *http_host; /* NULL: no HTTP; by no name */
  enum sml_dataplane_kind dataplane;
  const char *switch_runtime, *switch_program;
  struct sml_addr switch_addr; /* of switch_runtime, if it is an address */
  uint32_t switch_cpu_port;
  bool is_check; /* --check-config */
  bool ends_withdrawn;
  const char *allow;
  struct sml_network *networks; /* that it names */
  struct sml_addr http_addr;
  struct sml_option_texts texts;
  struct sml_config *config; /* has the texts of the file; NULL: none */
  struct sml_key_entry *keys;
  struct sml_tenant *tenants;
};

/* Reads the command line; ends the process with status 2, or 0, as argp does. */
void sml_settings_parse(int argc, char **argv, struct sml_option_texts *texts_out);

/* The daemon's options, which end with one without a name. */
enum sml_option_marks { SML_ONLY_COMMAND_LINE = 1, SML_LIVE = 2 /* no restart */, SML_LIST = 4 /* several times */ };
extern const struct sml_option sml_daemon_options[];
/* Notes an option of the command line or the file. False: out of memory. */
bool sml_option_note(uint32_t number, const char *text, struct sml_option_texts *texts);
/* The option with this name, or SML_MAX_OPTIONS; *nearest_out: the one that may be meant then, or NULL. */
uint32_t sml_option_find(const char *name, const char **nearest_out);
