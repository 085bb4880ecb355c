/* SPDX-License-Identifier: Apache-2.0 */
#include "switchd/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

#include "switchd/metrics.h"
#include "switchd/page.h"
#include "switchd/status_json.h"

#define MAX_CONNECTIONS 32u
#define MAX_CONNECTIONS_PER_HOST 16u
#define TIMEOUT_S 5u
#define CONNECTION_BYTES 16384u
#define FRESH_NS (250 * SML_NS_PER_MS) /* no answer is made more often, whoever asks */

struct answer {
  const char *path, *content_type;
  char *(*render)(const struct sml_snapshot *snapshot); /* NULL: the page */
};
static char *render_status(const struct sml_snapshot *snapshot) {
  return sml_status_json(snapshot, "");
}
static const struct answer answers[] = {
    {"/", "text/html; charset=utf-8", NULL},
    {"/metrics", "text/plain; version=0.0.4; charset=utf-8", sml_metrics_text},
    {"/api/status", "application/json", render_status},
};
#define NUM_ANSWERS SML_ARRAY_LEN(answers)

struct sml_http {
  struct sml_aggd *aggd;
  struct MHD_Daemon *daemon;
  /* The thread's alone. */
  struct MHD_Response *made[NUM_ANSWERS]; /* NULL: none yet */
  uint64_t made_ns[NUM_ANSWERS];
};

static struct MHD_Response *make_response(const void *text, size_t num_bytes,
                                          enum MHD_ResponseMemoryMode mode, const char *content_type) {
  /* The types of MHD want a pointer that it may free. */
  struct MHD_Response *response = MHD_create_response_from_buffer(num_bytes, (void *)(uintptr_t)text, mode);
  if (!response) return NULL;
  MHD_add_response_header(response, "Content-Type", content_type);
  MHD_add_response_header(response, "Cache-Control", "no-store");
  MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
  MHD_add_response_header(
      response, "Content-Security-Policy",
      "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'");
  return response;
}

/* NULL: no memory, or the service does not answer. */
static struct MHD_Response *make_answer(struct sml_http *http, const struct answer *a) {
  if (!a->render) return make_response(sml_page, sml_page_bytes, MHD_RESPMEM_PERSISTENT, a->content_type);
  struct sml_snapshot *snapshot = sml_aggd_snapshot(http->aggd);
  char *text = snapshot ? a->render(snapshot) : NULL;
  sml_snapshot_release(snapshot);
  if (!text) return NULL;
  struct MHD_Response *response = make_response(text, strlen(text), MHD_RESPMEM_MUST_FREE, a->content_type);
  if (!response) free(text);
  return response;
}

/* The response stays with us: others get the same one while it is fresh. */
static struct MHD_Response *find_answer(struct sml_http *http, size_t i) {
  const uint64_t now_ns = sml_clock_ns();
  if (http->made[i] && (!answers[i].render || now_ns - http->made_ns[i] < FRESH_NS)) return http->made[i];
  struct MHD_Response *response = make_answer(http, &answers[i]);
  if (!response) return NULL;
  if (http->made[i]) MHD_destroy_response(http->made[i]);
  http->made[i] = response;
  http->made_ns[i] = now_ns;
  return response;
}

static enum MHD_Result say(struct MHD_Connection *connection, unsigned status, const char *sentence) {
  struct MHD_Response *response =
      make_response(sentence, strlen(sentence), MHD_RESPMEM_PERSISTENT, "text/plain; charset=utf-8");
  if (!response) return MHD_NO;
  if (status == MHD_HTTP_METHOD_NOT_ALLOWED) MHD_add_response_header(response, "Allow", "GET, HEAD");
  const enum MHD_Result result = MHD_queue_response(connection, status, response);
  MHD_destroy_response(response);
  return result;
}

static enum MHD_Result take_request(void *argument, struct MHD_Connection *connection, const char *path,
                                    const char *method, const char *version, const char *upload,
                                    size_t *upload_bytes, void **request) {
  (void)version;
  (void)upload;
  (void)request;
  if (*upload_bytes != 0) return MHD_NO; /* nobody has anything to send us */
  if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
    return say(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET only\n");
  for (size_t i = 0; i < NUM_ANSWERS; i++) {
    if (strcmp(path, answers[i].path) != 0) continue;
    struct MHD_Response *response = find_answer(argument, i);
    if (response) return MHD_queue_response(connection, MHD_HTTP_OK, response);
    return say(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "the aggregator does not answer\n");
  }
  return say(connection, MHD_HTTP_NOT_FOUND, "there are: / /metrics /api/status\n");
}

int sml_http_start(const struct sml_addr *listen, struct sml_aggd *aggd, struct sml_http **http_out,
                   char *error_out, size_t error_bytes) {
  struct sml_http *http = calloc(1, sizeof *http);
  *http_out = http;
  if (!http) {
    snprintf(error_out, error_bytes, "out of memory");
    return -ENOMEM;
  }
  struct sockaddr_storage addr = {0};
  memcpy(&addr, listen->bytes, listen->num_bytes);
  http->aggd = aggd;
  const unsigned flags =
      MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD | (addr.ss_family == AF_INET6 ? MHD_USE_IPv6 : 0);
  errno = 0;
  http->daemon = MHD_start_daemon(
      flags, sml_addr_port(listen), NULL, NULL, take_request, http, MHD_OPTION_SOCK_ADDR, &addr,
      MHD_OPTION_CONNECTION_LIMIT, MAX_CONNECTIONS, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
      MAX_CONNECTIONS_PER_HOST, MHD_OPTION_CONNECTION_TIMEOUT, TIMEOUT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
      (size_t)CONNECTION_BYTES, MHD_OPTION_END);
  if (http->daemon) return 0;
  const int error = errno != 0 ? errno : EIO;
  char text[64];
  sml_addr_format(listen, text, sizeof text);
  snprintf(error_out, error_bytes, "cannot serve HTTP on %s: %s", text, strerror(error));
  free(http);
  *http_out = NULL;
  return -error;
}

void sml_http_stop(struct sml_http *http) {
  if (!http) return;
  MHD_stop_daemon(http->daemon);
  for (size_t i = 0; i < NUM_ANSWERS; i++)
    if (http->made[i]) MHD_destroy_response(http->made[i]);
  free(http);
}

uint16_t sml_http_port(const struct sml_http *http) {
  const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_BIND_PORT);
  return info ? info->port : 0;
}
