/* SPDX-License-Identifier: Apache-2.0
 * Asks an aggregator for its status over its control port (docs/PROTOCOL.md rules R145 to R148). */
#pragma once

#include <jansson.h>

#include "cli/ask/exchange.h"

struct sml_status_source {
  char text[128]; /* as it was given, for sentences */
  struct sml_addr addr;
  char key_name[SML_KEY_NAME_BYTES]; /* "": none */
  struct sml_key key;
};

/* address NULL: SWITCHML_AGGREGATOR. The key as SWITCHML_KEY_FILE and SWITCHML_KEY_NAME say. False: error has
 * a sentence. */
bool sml_status_source_open(struct sml_status_source *source, const char *address, char *error, size_t error_bytes);
/* The key alone; true: it is set, or none is named. */
bool sml_status_read_key(struct sml_status_source *source, char *error, size_t error_bytes);
/* On an open exchange, first: proves the source's key. */
bool sml_status_prove(struct sml_exchange *x, const struct sml_status_source *source);
/* NULL: x says what the trouble is. Takes at most patience_ns. */
json_t *sml_status_exchange(struct sml_exchange *x, const struct sml_status_source *source, uint64_t patience_ns);
/* NULL: error has a sentence. Takes at most 5 s. */
json_t *sml_status_fetch(const struct sml_status_source *source, char *error, size_t error_bytes);
