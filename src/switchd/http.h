/* SPDX-License-Identifier: Apache-2.0
 * The daemon's HTTP side: /metrics (metrics.h), /api/status (status_json.h) and a page that shows it (page.html). One
 * thread of its own, which asks the service for snapshots; nothing that it is sent changes anything. */
#pragma once

#include "aggd/aggd.h"

struct sml_http;
/* names: by which requests may ask for this host besides its addresses (http_host.h); NULL: none. 0, or -errno and a
 * sentence in error_out. -ENOSYS: built without libmicrohttpd. */
int sml_http_start(const struct sml_addr *listen, const char *names, struct sml_aggd *aggd, struct sml_http **http_out,
                   char *error_out, size_t error_bytes);
void sml_http_stop(struct sml_http *http); /* before the service's; NULL: nothing */
uint16_t sml_http_port(const struct sml_http *http);
