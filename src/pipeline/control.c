/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/control.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/writer.h"
#include "pipeline/soft_switch.h"

#define MAX_CLIENTS 4u
#define REQUEST_BYTES 65536u
#define ANSWER_BYTES 131072u
#define MAX_NUMBERS 8u
#define MAX_VALUES 8192u /* of a read, as src/dataplane/dpdk.c knows: 15 bytes each fit */

struct client {
  int fd; /* -1: free */
  uint32_t num_bytes;
  char request[REQUEST_BYTES];
};

struct sml_control {
  struct sml_soft_switch *sw;
  uint64_t born_ns; /* another for each run */
  int listen_fd;
  char path[sizeof((struct sockaddr_un *)0)->sun_path];
  struct client clients[MAX_CLIENTS];
  char answer[ANSWER_BYTES];
  uint32_t answer_bytes;
  bool is_dead; /* the switch */
};

/* ---- what is asked ---- */

__attribute__((format(printf, 2, 3))) static void say(struct sml_control *c, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int n = vsnprintf(c->answer + c->answer_bytes, sizeof c->answer - c->answer_bytes, format, arguments);
  va_end(arguments);
  c->answer_bytes = sml_min_u32(c->answer_bytes + (uint32_t)n, sizeof c->answer - 1);
}

static bool refuse(struct sml_control *c, const char *what) {
  c->answer_bytes = 0;
  say(c, "error %s", what);
  return false;
}

/* All of the words are numbers, and there are num of them. */
static bool take_numbers(struct sml_control *c, const char *words, uint64_t *numbers, uint32_t num) {
  for (uint32_t i = 0; i < num; i++) {
    char *end;
    errno = 0;
    numbers[i] = strtoull(words, &end, 0);
    if (end == words || errno != 0) return refuse(c, "a number is missing");
    words = end;
  }
  return words[strspn(words, " ")] == 0 || refuse(c, "more words than were expected");
}

static bool add_member(struct sml_control *c, const uint64_t *numbers) {
  struct sml_soft_switch *h = c->sw;
  if (numbers[0] >= SML_SOFT_SWITCH_MAX_JOBS || numbers[1] >= h->num_devices) return refuse(c, "no such job or port");
  uint32_t *num = &h->jobs[numbers[0]].num_replicas;
  if (*num == SML_SOFT_SWITCH_MAX_REPLICAS) return refuse(c, "a job has too many members");
  h->jobs[numbers[0]].replicas[(*num)++] = (struct sml_replica){
      .port = (uint32_t)numbers[1], .mac = numbers[2], .ip = (uint32_t)numbers[3], .udp_port = (uint16_t)numbers[4]};
  return true;
}

static bool remove_members(struct sml_control *c, const uint64_t *numbers) {
  if (numbers[0] >= SML_SOFT_SWITCH_MAX_JOBS) return refuse(c, "no such job");
  c->sw->jobs[numbers[0]].num_replicas = 0;
  return true;
}

static bool set_cpu(struct sml_control *c, const uint64_t *numbers) {
  if (numbers[0] >= c->sw->num_devices) return refuse(c, "no such port");
  c->sw->cpu_device = (uint32_t)numbers[0];
  c->sw->greeting = (struct sml_greeting){
      .ip = (uint32_t)numbers[1], .udp_port = (uint16_t)numbers[2], .voucher = (uint32_t)numbers[3]};
  return true;
}

static bool show_ports(struct sml_control *c, const uint64_t *numbers) {
  (void)numbers;
  say(c, " %u", c->sw->num_devices);
  return true;
}

static bool show_born(struct sml_control *c, const uint64_t *numbers) {
  (void)numbers;
  say(c, " %llu", (unsigned long long)c->born_ns);
  return true;
}

static bool reset(struct sml_control *c, const uint64_t *numbers) {
  (void)numbers;
  if (sml_soft_switch_reset(c->sw)) return true;
  c->is_dead = true;
  sml_writer_say("switchml-pipeline: %s\n", c->sw->program.error);
  return refuse(c, c->sw->program.error);
}

static bool do_registers(struct sml_control *c, const char *name, const char *words, bool is_write) {
  uint64_t numbers[3] = {0};
  if (!take_numbers(c, words, numbers, is_write ? 3 : 2)) return false;
  if (numbers[1] > UINT32_MAX || numbers[0] > numbers[1]) return refuse(c, "no such range");
  if (!is_write && numbers[1] - numbers[0] > MAX_VALUES) return refuse(c, "too many values");
  for (uint32_t i = (uint32_t)numbers[0]; i < numbers[1]; i++) {
    uint64_t value = numbers[2];
    struct sml_program *p = &c->sw->program;
    if (is_write ? !sml_program_write(p, name, i, value) : !sml_program_read(p, name, i, &value))
      return refuse(c, p->error);
    if (!is_write) say(c, " %llu", (unsigned long long)value);
  }
  return true;
}

/* Words that have a name first. */
static bool do_named(struct sml_control *c, const char *verb, char *words, bool *is_known_out) {
  char *rest = words + strcspn(words, " ");
  *is_known_out = true;
  if (*rest != 0) *rest++ = 0;
  struct sml_program *p = &c->sw->program;
  if (strcmp(verb, "add") == 0) return sml_program_add_entry(p, words, rest) || refuse(c, p->error);
  if (strcmp(verb, "remove") == 0) return sml_program_remove_entry(p, words, rest) || refuse(c, p->error);
  if (strcmp(verb, "write") == 0) return do_registers(c, words, rest, true);
  if (strcmp(verb, "read") == 0) return do_registers(c, words, rest, false);
  return *is_known_out = false;
}

static bool do_line(struct sml_control *c, char *line) {
  static const struct {
    const char *verb;
    uint32_t num_numbers;
    bool (*work)(struct sml_control *c, const uint64_t *numbers);
  } verbs[] = {{"reset", 0, reset}, {"ports", 0, show_ports},  {"born", 0, show_born},
               {"cpu", 4, set_cpu}, {"member", 5, add_member}, {"nobody", 1, remove_members}};
  char *words = line + strcspn(line, " ");
  bool is_known;
  if (*words != 0) *words++ = 0;
  for (uint32_t i = 0; i < SML_ARRAY_LEN(verbs); i++) {
    uint64_t numbers[MAX_NUMBERS];
    if (strcmp(verbs[i].verb, line) == 0)
      return take_numbers(c, words, numbers, verbs[i].num_numbers) && verbs[i].work(c, numbers);
  }
  return do_named(c, line, words, &is_known) || (!is_known && refuse(c, "no such command"));
}

/* The lines of a request, which end at `end`. */
static void do_request(struct sml_control *c, char *lines, const char *end) {
  bool is_well = true;
  c->answer_bytes = 0;
  say(c, "ok");
  while (is_well && lines < end) {
    char *line = lines;
    lines += strcspn(lines, "\n");
    *lines++ = 0;
    is_well = do_line(c, line);
  }
  if (c->is_dead) return;
  if (is_well && !sml_program_commit(&c->sw->program)) is_well = refuse(c, c->sw->program.error);
  if (!is_well) sml_program_abort(&c->sw->program);
}

/* ---- clients ---- */

static void drop(struct client *client) {
  close(client->fd);
  client->fd = -1;
}

/* Where the first request ends: its line "."; NULL: it has not. */
static char *find_end(struct client *client) {
  if (strncmp(client->request, ".\n", 2) == 0) return client->request;
  char *found = strstr(client->request, "\n.\n");
  return found ? found + 1 : NULL;
}

static void serve(struct sml_control *c, struct client *client) {
  const ssize_t n =
      recv(client->fd, client->request + client->num_bytes, REQUEST_BYTES - 1 - client->num_bytes, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) { /* also if the request is too long */
    drop(client);
    return;
  }
  client->num_bytes += (uint32_t)n;
  client->request[client->num_bytes] = 0;
  for (char *end; (end = find_end(client)) != NULL;) {
    do_request(c, client->request, end);
    say(c, "\n");
    client->num_bytes -= (uint32_t)(end + 2 - client->request);
    memmove(client->request, end + 2, client->num_bytes + 1);
    if (send(client->fd, c->answer, c->answer_bytes, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)c->answer_bytes) {
      drop(client);
      return;
    }
  }
}

static void admit(struct sml_control *c) {
  const int fd = sml_fd_raise(accept4(c->listen_fd, NULL, NULL, SOCK_CLOEXEC));
  if (fd < 0) return;
  for (uint32_t i = 0; i < MAX_CLIENTS; i++) {
    struct client *client = &c->clients[i];
    if (client->fd >= 0) continue;
    client->fd = fd;
    client->num_bytes = 0;
    return;
  }
  close(fd);
}

bool sml_control_serve(struct sml_control *c, uint64_t wait_ns) {
  struct pollfd fds[MAX_CLIENTS + 1];
  const struct timespec wait = {.tv_nsec = (long)wait_ns};
  for (uint32_t i = 0; i < MAX_CLIENTS; i++) fds[i] = (struct pollfd){.fd = c->clients[i].fd, .events = POLLIN};
  fds[MAX_CLIENTS] = (struct pollfd){.fd = c->listen_fd, .events = POLLIN};
  if (ppoll(fds, MAX_CLIENTS + 1, &wait, NULL) <= 0) return true;
  for (uint32_t i = 0; i < MAX_CLIENTS; i++)
    if (fds[i].fd >= 0 && fds[i].revents != 0) serve(c, &c->clients[i]);
  if (fds[MAX_CLIENTS].revents != 0) admit(c);
  return !c->is_dead;
}

/* ---- the socket ---- */

static bool is_abandoned(const struct sockaddr_un *addr) {
  const int fd = sml_fd_raise(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool is_so = fd >= 0 && connect(fd, (const struct sockaddr *)addr, sizeof *addr) != 0 && errno == ECONNREFUSED;
  if (fd >= 0) close(fd);
  return is_so;
}

static bool listen_at(struct sml_control *c, const char *path) {
  struct sockaddr_un addr = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof addr.sun_path) return errno = ENAMETOOLONG, false;
  strcpy(addr.sun_path, path);
  if (is_abandoned(&addr)) unlink(path);
  c->listen_fd = sml_fd_raise(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (c->listen_fd < 0) return false;
  const mode_t mask = umask(0177);
  const bool is_bound = bind(c->listen_fd, (const struct sockaddr *)&addr, sizeof addr) == 0;
  umask(mask);
  if (!is_bound) return false;
  strcpy(c->path, path);
  return listen(c->listen_fd, MAX_CLIENTS) == 0;
}

struct sml_control *sml_control_open(const char *path, struct sml_soft_switch *sw) {
  struct sml_control *c = calloc(1, sizeof *c);
  if (!c) return sml_writer_say("switchml-pipeline: out of memory\n"), NULL;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  c->sw = sw;
  c->born_ns = (uint64_t)now.tv_sec * SML_NS_PER_S + (uint64_t)now.tv_nsec;
  for (uint32_t i = 0; i < MAX_CLIENTS; i++) c->clients[i].fd = -1;
  if (listen_at(c, path)) return c;
  sml_writer_say("switchml-pipeline: %s: %s\n", path, strerror(errno));
  sml_control_close(c);
  return NULL;
}

void sml_control_close(struct sml_control *c) {
  if (!c) return;
  for (uint32_t i = 0; i < MAX_CLIENTS; i++)
    if (c->clients[i].fd >= 0) drop(&c->clients[i]);
  if (c->listen_fd >= 0) close(c->listen_fd);
  if (c->path[0]) unlink(c->path);
  free(c);
}
