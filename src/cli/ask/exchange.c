/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/ask/exchange.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "switchml/switchml.h"

bool sml_exchange_fail(struct sml_exchange *x, enum sml_trouble trouble, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(x->error, sizeof x->error, format, args);
  va_end(args);
  x->trouble = trouble;
  return false;
}

/* False: the time is over. */
static bool await(struct sml_exchange *x, short events) {
  for (;;) {
    const uint64_t now_ns = sml_clock_ns();
    if (now_ns >= x->deadline_ns) return sml_exchange_fail(x, SML_TROUBLE_SILENT, "%s does not answer", x->text);
    struct pollfd p = {.fd = x->fd, .events = events};
    const int timeout_ms = (int)sml_div_ceil(x->deadline_ns - now_ns, SML_NS_PER_MS);
    const int n = poll(&p, 1, timeout_ms);
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return sml_exchange_fail(x, SML_TROUBLE_SYSTEM, "poll: %s", strerror(errno));
  }
}

bool sml_exchange_open(struct sml_exchange *x, const char *text, const struct sml_addr *to, uint64_t deadline_ns) {
  const struct sockaddr *addr = (const struct sockaddr *)(const void *)to->bytes;
  int error = 0;
  socklen_t error_bytes = sizeof error;
  memset(x, 0, sizeof *x);
  x->text = text;
  x->deadline_ns = deadline_ns;
  sml_channel_init(&x->channel, false);
  x->fd = socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (x->fd < 0) return sml_exchange_fail(x, SML_TROUBLE_SYSTEM, "cannot open a socket: %s", strerror(errno));
  if (connect(x->fd, addr, to->num_bytes) != 0 && errno != EINPROGRESS) error = errno;
  if (error == 0 && !await(x, POLLOUT)) {
    if (x->trouble == SML_TROUBLE_SILENT) x->trouble = SML_TROUBLE_UNREACHABLE;
    x->system_error = ETIMEDOUT;
    return false;
  }
  if (error == 0) getsockopt(x->fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes);
  x->system_error = error;
  return error == 0 || sml_exchange_fail(x, SML_TROUBLE_UNREACHABLE,
                                         "no aggregator at %s: %s; is switchmld running there?", text, strerror(error));
}

void sml_exchange_close(struct sml_exchange *x) {
  if (x->fd >= 0) close(x->fd);
  x->fd = -1;
}

bool sml_exchange_say(struct sml_exchange *x, const struct sml_ctl_message *message) {
  uint8_t frame[512];
  const size_t num_bytes = sml_channel_encode(&x->channel, message, frame, sizeof frame);
  SML_ASSERT(num_bytes > 0);
  /* The buffers of a connection that has sent this little are empty. */
  if (send(x->fd, frame, num_bytes, MSG_NOSIGNAL) == (ssize_t)num_bytes) return true;
  return sml_exchange_fail(x, SML_TROUBLE_CLOSED, "%s closed the connection", x->text);
}

static bool fail_for_garbage(struct sml_exchange *x, enum sml_ctl_decode verdict, const char *key_name) {
  if (verdict == SML_CTL_BAD_VERSION) {
    x->peer_version = sml_load_be16(x->in + 4);
    return sml_exchange_fail(x, SML_TROUBLE_VERSION,
                             "the aggregator at %s speaks another version of the control protocol", x->text);
  }
  if (verdict == SML_CTL_BAD_MAC)
    return sml_exchange_fail(x, SML_TROUBLE_KEY, "the aggregator at %s has another key '%s': compare the key files",
                             x->text, key_name);
  return sml_exchange_fail(x, SML_TROUBLE_STRANGER, "what answers at %s is not a switchmld: check the address",
                           x->text);
}

static bool fail_for_refusal(struct sml_exchange *x) {
  const bool is_version = x->message.u.refuse.status == SML_ERR_VERSION;
  return sml_exchange_fail(x, is_version ? SML_TROUBLE_VERSION : SML_TROUBLE_REFUSED, "%s refuses: %s", x->text,
                           x->message.u.refuse.detail);
}

bool sml_exchange_hear(struct sml_exchange *x, const char *key_name) {
  for (;;) {
    size_t consumed_bytes;
    const enum sml_ctl_decode verdict =
        sml_channel_decode(&x->channel, x->in, x->in_bytes, &x->message, &consumed_bytes);
    if (verdict == SML_CTL_DECODED) {
      x->in_bytes -= consumed_bytes;
      memmove(x->in, x->in + consumed_bytes, x->in_bytes);
      return x->message.kind != SML_CTL_REFUSE || fail_for_refusal(x);
    }
    if (verdict != SML_CTL_NEED_MORE) return fail_for_garbage(x, verdict, key_name);
    if (!await(x, POLLIN)) return false;
    const ssize_t n = recv(x->fd, x->in + x->in_bytes, sizeof x->in - x->in_bytes, 0);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0)
      return sml_exchange_fail(x, SML_TROUBLE_CLOSED,
                               "%s closed the connection: it may be an older switchmld, or limit connections", x->text);
    x->in_bytes += (size_t)n;
  }
}

bool sml_exchange_prove(struct sml_exchange *x, const struct sml_key *key, const char *key_name,
                        const uint64_t nonce[2]) {
  if (x->message.kind != SML_CTL_CHALLENGE)
    return sml_exchange_fail(x, SML_TROUBLE_KEY, "the aggregator at %s did not ask for a proof of key '%s'", x->text,
                             key_name);
  sml_channel_set_key(&x->channel, key, nonce, x->message.u.challenge.nonce);
  return sml_exchange_say(x, &(struct sml_ctl_message){.kind = SML_CTL_AUTH});
}
