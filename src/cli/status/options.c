/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "cli/status/status.h"

static const struct argp_option option_table[] = {
    {"interval", 'i', "S", 0, "Seconds between two looks, from 0.3 on. Defaults: status 0.3 (0: no rates), top 1", 0},
    {0},
};

static error_t parse_option(int key, char *text, struct argp_state *state) {
  struct sml_status_options *o = state->input;
  char *end;
  switch (key) {
    case 'i':
      o->interval_s = strtod(text, &end);
      if (*end || end == text ||
          !((o->interval_s == 0 && o->may_be_zero) || (o->interval_s >= 0.3 && o->interval_s <= o->max_interval_s)))
        argp_error(state, "--interval: '%s' is not %sa number of seconds from 0.3 to %g", text,
                   o->may_be_zero ? "0, nor " : "", o->max_interval_s);
      return 0;
    case ARGP_KEY_ARG:
      if (o->address) argp_error(state, "one HOST:PORT only");
      o->address = text;
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

const struct argp_child sml_status_children[] = {
    {&(const struct argp){.options = option_table, .parser = parse_option}, 0, NULL, 0}, {0}};
