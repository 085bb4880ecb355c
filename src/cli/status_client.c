/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/status_client.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "aggd/key_reader.h"
#include "ctl/channel.h"

#define PATIENCE_NS (5 * SML_NS_PER_S)
#define MAX_TEXT_BYTES (256u << 20) /* far beyond the largest daemon's: what claims more is none */

struct exchange {
  const struct sml_status_source *source;
  struct sml_channel channel;
  int fd;
  uint64_t deadline_ns;
  struct sml_ctl_message message; /* the last that was heard */
  size_t in_bytes;
  uint8_t in[SML_CHANNEL_MAX_FRAME_BYTES];
  char *error;
  size_t error_bytes;
};

static uint64_t clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * SML_NS_PER_S + (uint64_t)now.tv_nsec;
}

__attribute__((format(printf, 2, 3))) static bool fail(struct exchange *x, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(x->error, x->error_bytes, format, args);
  va_end(args);
  return false;
}

/* --- where --- */

static bool read_key(struct sml_status_source *source, char *error, size_t error_bytes) {
  const char *path = getenv("SWITCHML_KEY_FILE"), *name = getenv("SWITCHML_KEY_NAME");
  if (!path || !*path) return true;
  uint32_t num_keys;
  struct sml_key_entry *keys = sml_keys_read(path, &num_keys, error, error_bytes);
  if (!keys) return false;
  if (!name || !*name) name = keys[0].name;
  const struct sml_key *key = sml_key_find(keys, num_keys, name);
  if (key) {
    snprintf(source->key_name, sizeof source->key_name, "%s", name);
    source->key = *key;
  } else {
    snprintf(error, error_bytes, "key file %.120s has no key '%.64s'", path, name);
  }
  sml_keys_free(keys, num_keys);
  return source->key_name[0] != 0;
}

bool sml_status_source_open(struct sml_status_source *source, const char *address, char *error,
                            size_t error_bytes) {
  memset(source, 0, sizeof *source);
  if (!address) address = getenv("SWITCHML_AGGREGATOR");
  if (!address || !*address) {
    snprintf(error, error_bytes, "no aggregator is named: give HOST:PORT, or set SWITCHML_AGGREGATOR");
    return false;
  }
  snprintf(source->text, sizeof source->text, "%s", address);
  return sml_addr_parse(address, 48879, &source->addr, error, error_bytes) &&
         read_key(source, error, error_bytes);
}

/* --- the connection --- */

/* False: the time is over. */
static bool await(struct exchange *x, short events) {
  for (;;) {
    const uint64_t now_ns = clock_ns();
    if (now_ns >= x->deadline_ns) return fail(x, "%s does not answer", x->source->text);
    struct pollfd p = {.fd = x->fd, .events = events};
    const int timeout_ms = (int)sml_div_ceil(x->deadline_ns - now_ns, SML_NS_PER_MS);
    const int n = poll(&p, 1, timeout_ms);
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return fail(x, "poll: %s", strerror(errno));
  }
}

static bool open_connection(struct exchange *x) {
  const struct sockaddr *addr = (const struct sockaddr *)(const void *)x->source->addr.bytes;
  int error = 0;
  socklen_t error_bytes = sizeof error;
  x->fd = socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (x->fd < 0) return fail(x, "cannot open a socket: %s", strerror(errno));
  if (connect(x->fd, addr, x->source->addr.num_bytes) != 0 && errno != EINPROGRESS) error = errno;
  if (error == 0 && !await(x, POLLOUT)) return false;
  if (error == 0) getsockopt(x->fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes);
  return error == 0 ||
         fail(x, "no aggregator at %s: %s; is switchmld running there?", x->source->text, strerror(error));
}

static bool say(struct exchange *x, const struct sml_ctl_message *message) {
  uint8_t frame[512];
  const size_t num_bytes = sml_channel_encode(&x->channel, message, frame, sizeof frame);
  SML_ASSERT(num_bytes > 0);
  /* The buffers of a connection that has sent this little are empty. */
  if (send(x->fd, frame, num_bytes, MSG_NOSIGNAL) == (ssize_t)num_bytes) return true;
  return fail(x, "%s closed the connection", x->source->text);
}

static bool fail_for_garbage(struct exchange *x, enum sml_ctl_decode verdict) {
  if (verdict == SML_CTL_BAD_VERSION)
    return fail(x, "the aggregator at %s speaks another version of the control protocol", x->source->text);
  if (verdict == SML_CTL_BAD_TAG)
    return fail(x, "the aggregator at %s has another key '%s': compare the key files", x->source->text,
                x->source->key_name);
  return fail(x, "what answers at %s is not a switchmld: check the address", x->source->text);
}

/* The next message into x->message. */
static bool hear(struct exchange *x) {
  for (;;) {
    size_t consumed_bytes;
    const enum sml_ctl_decode verdict =
        sml_channel_decode(&x->channel, x->in, x->in_bytes, &x->message, &consumed_bytes);
    if (verdict == SML_CTL_DECODED) {
      x->in_bytes -= consumed_bytes;
      memmove(x->in, x->in + consumed_bytes, x->in_bytes);
      if (x->message.kind != SML_CTL_REFUSE) return true;
      return fail(x, "%s refuses: %s", x->source->text, x->message.u.refuse.detail);
    }
    if (verdict != SML_CTL_NEED_MORE) return fail_for_garbage(x, verdict);
    if (!await(x, POLLIN)) return false;
    const ssize_t n = recv(x->fd, x->in + x->in_bytes, sizeof x->in - x->in_bytes, 0);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0)
      return fail(x, "%s closed the connection: it may be an older switchmld, or limit connections",
                  x->source->text);
    x->in_bytes += (size_t)n;
  }
}

/* --- the exchange --- */

static bool ask(struct exchange *x, uint32_t offset_bytes, const uint64_t nonce[2]) {
  struct sml_ctl_message m = {.kind = SML_CTL_STATUS, .u.status.offset_bytes = offset_bytes};
  memcpy(m.u.status.key_name, x->source->key_name, sizeof m.u.status.key_name);
  memcpy(m.u.status.nonce, nonce, sizeof m.u.status.nonce);
  return say(x, &m);
}

/* To the first STATUS_PART, past the challenge if there is a key. */
static bool begin(struct exchange *x) {
  uint64_t nonce[2] = {0};
  const bool is_keyed = x->source->key_name[0] != 0;
  sml_channel_init(&x->channel, false);
  if (is_keyed && getrandom(nonce, sizeof nonce, 0) != (ssize_t)sizeof nonce)
    return fail(x, "cannot draw random numbers");
  if (!ask(x, 0, nonce) || !hear(x)) return false;
  if (!is_keyed) return true;
  if (x->message.kind != SML_CTL_CHALLENGE)
    return fail(x, "the aggregator at %s did not ask for a proof of key '%s'", x->source->text,
                x->source->key_name);
  sml_channel_set_key(&x->channel, &x->source->key, nonce, x->message.u.challenge.nonce);
  return say(x, &(struct sml_ctl_message){.kind = SML_CTL_AUTH}) && ask(x, 0, nonce) && hear(x);
}

/* The whole text, malloc'd and terminated. */
static char *take_text(struct exchange *x) {
  const uint32_t total_bytes = x->message.u.status_part.total_bytes;
  const uint64_t nonce[2] = {0};
  uint32_t used_bytes = 0;
  char *text = x->message.kind == SML_CTL_STATUS_PART && total_bytes <= MAX_TEXT_BYTES
                   ? malloc(total_bytes + 1u)
                   : NULL;
  if (!text) {
    fail(x, "the answer of %s is no status", x->source->text);
    return NULL;
  }
  for (;;) {
    const struct sml_ctl_status_part *part = &x->message.u.status_part;
    const bool is_next = x->message.kind == SML_CTL_STATUS_PART && part->total_bytes == total_bytes &&
                         part->offset_bytes == used_bytes &&
                         (part->num_bytes > 0 || used_bytes == total_bytes);
    if (!is_next) fail(x, "the answer of %s makes no sense", x->source->text);
    if (is_next) memcpy(text + used_bytes, part->text, part->num_bytes);
    if (is_next) used_bytes += part->num_bytes;
    if (is_next && used_bytes == total_bytes) break;
    if (is_next && ask(x, used_bytes, nonce) && hear(x)) continue;
    free(text);
    return NULL;
  }
  text[total_bytes] = 0;
  return text;
}

json_t *sml_status_fetch(const struct sml_status_source *source, char *error, size_t error_bytes) {
  struct exchange *x = calloc(1, sizeof *x);
  json_t *status = NULL;
  char *text = NULL;
  if (!x) {
    snprintf(error, error_bytes, "out of memory");
    return NULL;
  }
  x->source = source;
  x->deadline_ns = clock_ns() + PATIENCE_NS;
  x->error = error;
  x->error_bytes = error_bytes;
  if (open_connection(x) && begin(x)) text = take_text(x);
  if (text) {
    status = json_loads(text, 0, NULL);
    if (!json_is_object(status)) {
      fail(x, "the answer of %s is no JSON object", source->text);
      json_decref(status);
      status = NULL;
    }
    say(x, &(struct sml_ctl_message){.kind = SML_CTL_GOODBYE});
  }
  if (x->fd >= 0) close(x->fd);
  free(text);
  free(x);
  return status;
}
