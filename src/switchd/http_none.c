/* SPDX-License-Identifier: Apache-2.0
 * Instead of http.c where there is no libmicrohttpd. */
#include <errno.h>
#include <stdio.h>

#include "switchd/http.h"

int sml_http_start(const struct sml_addr *listen, const char *names, struct sml_aggd *aggd, struct sml_http **http_out,
                   char *error_out, size_t error_bytes) {
  (void)listen;
  (void)names;
  (void)aggd;
  *http_out = NULL;
  snprintf(error_out, error_bytes,
           "this switchmld was built without libmicrohttpd: build it again with it, or leave "
           "--http out");
  return -ENOSYS;
}

void sml_http_stop(struct sml_http *http) {
  (void)http;
}

uint16_t sml_http_port(const struct sml_http *http) {
  (void)http;
  return 0;
}
