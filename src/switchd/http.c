/* SPDX-License-Identifier: Apache-2.0 */
#include "switchd/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "switchd/http_host.h"
#include "switchd/metrics.h"
#include "switchd/page.h"
#include "switchd/status_json.h"

#define MAX_CONNECTIONS 64u
#define MAX_CONNECTIONS_PER_SOURCE 16u
#define MAX_AGE_NS (10 * SML_NS_PER_S) /* from its first packet to the last one of the answer */
#define LOOK_MS 250                    /* how often ages are looked at */
#define ROUND_MS 1 /* least between two rounds: a guest that no descriptor is left for is always there */
#define CONNECTION_BYTES 16384u
#define FRESH_NS (250 * SML_NS_PER_MS) /* no answer is made more often, whoever asks */

struct answer {
  const char *path, *content_type;
  char *(*render)(const struct sml_snapshot *snapshot); /* NULL: the page */
};
static char *render_status(const struct sml_snapshot *snapshot) {
  return sml_status_json(snapshot, "");
}
static char *render_health(const struct sml_snapshot *snapshot) {
  char *text = NULL;
  return asprintf(&text, "switchmld serves %u jobs\n", snapshot->num_jobs) >= 0 ? text : NULL;
}
static const struct answer answers[] = {
    {"/", "text/html; charset=utf-8", NULL},
    {"/metrics", "text/plain; version=0.0.4; charset=utf-8", sml_metrics_text},
    {"/api/status", "application/json", render_status},
    {"/healthz", "text/plain; charset=utf-8", render_health},
};
#define NUM_ANSWERS SML_ARRAY_LEN(answers)

struct connection {
  struct MHD_Connection *is; /* NULL: nobody */
  int fd;
  uint64_t source, since_ns;
  bool is_closing;
};

struct sml_http {
  struct sml_aggd *aggd;
  struct MHD_Daemon *daemon;
  char *names; /* by which this host may be asked for; NULL: none */
  pthread_t thread;
  int stop_fd;
  /* The thread's alone. */
  struct connection connections[2 * MAX_CONNECTIONS]; /* those that are being closed, too */
  struct MHD_Response *made[NUM_ANSWERS];             /* NULL: none yet */
  uint64_t made_ns[NUM_ANSWERS];
};

static struct MHD_Response *make_response(const void *text, size_t num_bytes, enum MHD_ResponseMemoryMode mode,
                                          const char *content_type) {
  /* The types of MHD want a pointer that it may free. */
  struct MHD_Response *response = MHD_create_response_from_buffer(num_bytes, (void *)(uintptr_t)text, mode);
  if (!response) return NULL;
  MHD_add_response_header(response, "Content-Type", content_type);
  MHD_add_response_header(response, "Cache-Control", "no-store");
  MHD_add_response_header(response, "Connection", "close"); /* so the age of a connection is that of its request */
  MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
  MHD_add_response_header(response, "Content-Security-Policy", sml_page_policy);
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

/* ---- connections: a request has an age, however its bytes come, and a source its share ---- */

/* libmicrohttpd finds out, and closes it. */
static void close_early(struct connection *c) {
  c->is_closing = true;
  shutdown(c->fd, SHUT_RDWR);
}

/* The oldest connection makes room, of this source or of all: a request that is none of those that wait takes
 * milliseconds. */
static void make_room(struct sml_http *http, uint64_t source) {
  struct connection *oldest = NULL, *own_oldest = NULL;
  uint32_t num = 0, num_own = 0;
  for (size_t i = 0; i < SML_ARRAY_LEN(http->connections); i++) {
    struct connection *c = &http->connections[i];
    if (c->is == NULL || c->is_closing) continue;
    num++;
    if (oldest == NULL || c->since_ns < oldest->since_ns) oldest = c;
    if (c->source != source) continue;
    num_own++;
    if (own_oldest == NULL || c->since_ns < own_oldest->since_ns) own_oldest = c;
  }
  if (num_own == MAX_CONNECTIONS_PER_SOURCE) close_early(own_oldest);
  else if (num == MAX_CONNECTIONS) close_early(oldest);
}

static struct connection *find(struct sml_http *http, const struct MHD_Connection *is) {
  for (size_t i = 0; i < SML_ARRAY_LEN(http->connections); i++)
    if (http->connections[i].is == is) return &http->connections[i];
  return NULL;
}

/* An IPv4 address or an IPv6 /64, as on the control port. */
static uint64_t source_of(struct MHD_Connection *is) {
  const struct sockaddr *addr = MHD_get_connection_info(is, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
  uint64_t network;
  if (addr->sa_family != AF_INET6) {
    memcpy(&v4, addr, sizeof v4);
    return v4.sin_addr.s_addr;
  }
  memcpy(&v6, addr, sizeof v6);
  memcpy(&network, &v6.sin6_addr, sizeof network);
  return network;
}

static void note_connection(void *argument, struct MHD_Connection *is, void **context,
                            enum MHD_ConnectionNotificationCode code) {
  struct sml_http *http = argument;
  (void)context;
  struct connection *c = find(http, code == MHD_CONNECTION_NOTIFY_STARTED ? NULL : is);
  if (c == NULL) return; /* there are no more connections than places: it is the limit of libmicrohttpd */
  *c = (struct connection){.fd = -1};
  if (code != MHD_CONNECTION_NOTIFY_STARTED) return;
  const uint64_t source = source_of(is);
  make_room(http, source);
  *c = (struct connection){.is = is,
                           .fd = MHD_get_connection_info(is, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd,
                           .source = source,
                           .since_ns = sml_clock_ns()};
}

static void close_old(struct sml_http *http) {
  const uint64_t now_ns = sml_clock_ns();
  for (size_t i = 0; i < SML_ARRAY_LEN(http->connections); i++) {
    struct connection *c = &http->connections[i];
    if (c->is != NULL && !c->is_closing && now_ns - c->since_ns >= MAX_AGE_NS) close_early(c);
  }
}

static void *run(void *argument) {
  struct sml_http *http = argument;
  struct pollfd fds[] = {
      {.fd = http->stop_fd, .events = POLLIN},
      {.fd = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd, .events = POLLIN}};
  while (fds[0].revents == 0) {
    MHD_UNSIGNED_LONG_LONG left_ms = LOOK_MS;
    if (MHD_get_timeout(http->daemon, &left_ms) != MHD_YES || left_ms > LOOK_MS) left_ms = LOOK_MS;
    (void)poll(fds, SML_ARRAY_LEN(fds), (int)left_ms);
    (void)poll(fds, 1, ROUND_MS);
    MHD_run(http->daemon);
    close_old(http);
  }
  return NULL;
}

/* ---- requests ---- */

struct hosts {
  const char *names;
  bool has_other;
};

static enum MHD_Result look_at_host(void *argument, enum MHD_ValueKind kind, const char *name, const char *value) {
  struct hosts *hosts = argument;
  (void)kind;
  if (strcasecmp(name, MHD_HTTP_HEADER_HOST) == 0 && (value == NULL || !sml_http_host_is_ours(value, hosts->names)))
    hosts->has_other = true;
  return MHD_YES;
}

/* By each Host that the request has: a proxy may have gone by another one of them than the first. Whoever says none is
 * no browser. */
static bool is_for_us(const struct sml_http *http, struct MHD_Connection *connection) {
  struct hosts hosts = {.names = http->names};
  (void)MHD_get_connection_values(connection, MHD_HEADER_KIND, look_at_host, &hosts);
  return !hosts.has_other;
}

static enum MHD_Result take_request(void *argument, struct MHD_Connection *connection, const char *path,
                                    const char *method, const char *version, const char *upload, size_t *upload_bytes,
                                    void **request) {
  (void)version;
  (void)upload;
  (void)request;
  if (*upload_bytes != 0) return MHD_NO; /* nobody has anything to send us */
  if (!is_for_us(argument, connection))
    return say(connection, MHD_HTTP_MISDIRECTED_REQUEST,
               "ask for this host by its address, or by a name that its switchmld was told: --http-host\n");
  if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
    return say(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET only\n");
  for (size_t i = 0; i < NUM_ANSWERS; i++) {
    if (strcmp(path, answers[i].path) != 0) continue;
    struct MHD_Response *response = find_answer(argument, i);
    if (response) return MHD_queue_response(connection, MHD_HTTP_OK, response);
    return say(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
               "the aggregator does not answer: its control thread hangs, or waits for an engine that does\n");
  }
  return say(connection, MHD_HTTP_NOT_FOUND, "there are: / /metrics /api/status /healthz\n");
}

/* ---- from start to end ---- */

static void release(struct sml_http *http) {
  if (http->daemon) MHD_stop_daemon(http->daemon);
  for (size_t i = 0; i < NUM_ANSWERS; i++)
    if (http->made[i]) MHD_destroy_response(http->made[i]);
  if (http->stop_fd >= 0) close(http->stop_fd);
  free(http->names);
  free(http);
}

static int start(struct sml_http *http, const struct sml_addr *listen) {
  struct sockaddr_storage addr = {0};
  memcpy(&addr, listen->bytes, listen->num_bytes);
  http->stop_fd = sml_fd_raise(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (http->stop_fd < 0) return errno;
  errno = 0;
  http->daemon =
      MHD_start_daemon(MHD_USE_EPOLL | (addr.ss_family == AF_INET6 ? MHD_USE_IPv6 : 0), sml_addr_port(listen), NULL,
                       NULL, take_request, http, MHD_OPTION_SOCK_ADDR, &addr, MHD_OPTION_CONNECTION_LIMIT,
                       (unsigned)SML_ARRAY_LEN(http->connections), MHD_OPTION_NOTIFY_CONNECTION, note_connection, http,
                       MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_END);
  if (!http->daemon) return errno != 0 ? errno : EIO;
  return pthread_create(&http->thread, NULL, run, http);
}

int sml_http_start(const struct sml_addr *listen, const char *names, struct sml_aggd *aggd, struct sml_http **http_out,
                   char *error_out, size_t error_bytes) {
  struct sml_http *http = calloc(1, sizeof *http);
  char *copy = names ? strdup(names) : NULL;
  *http_out = http;
  if (!http || (names && !copy)) {
    free(http);
    free(copy);
    *http_out = NULL;
    snprintf(error_out, error_bytes, "out of memory");
    return -ENOMEM;
  }
  http->aggd = aggd;
  http->names = copy;
  const int error = start(http, listen);
  if (error == 0) return 0;
  char text[64];
  sml_addr_format(listen, text, sizeof text);
  snprintf(error_out, error_bytes, "cannot serve HTTP on %s: %s", text, strerror(error));
  release(http);
  *http_out = NULL;
  return -error;
}

void sml_http_stop(struct sml_http *http) {
  if (!http) return;
  const uint64_t one = 1;
  (void)!write(http->stop_fd, &one, sizeof one);
  pthread_join(http->thread, NULL);
  release(http);
}

uint16_t sml_http_port(const struct sml_http *http) {
  const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_BIND_PORT);
  return info ? info->port : 0;
}
