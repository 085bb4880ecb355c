/* SPDX-License-Identifier: Apache-2.0
 * The way to a membership: name, control port, versions, key. */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "cli/doctor/doctor.h"
#include "core/wire.h"
#include "switchml/switchml.h"

#define PATIENCE_NS (3 * SML_NS_PER_S)
#define LEAST_LEASE_S 3.0 /* what the checks take */
#define LEASE_NS (30 * SML_NS_PER_S)

/* --- the name --- */

/* The resolver knows no deadline of ours, so it works in a thread, which is left behind if it takes too long. */
struct resolution {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool is_done, is_resolved;
  char text[160], error[256];
  struct sml_addr addr;
};

static void *resolve(void *argument) {
  struct resolution *r = argument;
  struct sml_addr addr;
  char error[sizeof r->error] = "";
  const bool is_resolved = sml_addr_parse(r->text, 0, &addr, error, sizeof error);
  pthread_mutex_lock(&r->lock);
  r->is_done = true;
  r->is_resolved = is_resolved;
  r->addr = addr;
  memcpy(r->error, error, sizeof error);
  pthread_cond_signal(&r->changed);
  pthread_mutex_unlock(&r->lock);
  return NULL;
}

/* False: not done in time, or no thread. */
static bool await_resolution(struct resolution *r, uint64_t patience_ns) {
  pthread_t thread;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += (time_t)(patience_ns / SML_NS_PER_S) + 1;
  if (pthread_create(&thread, NULL, resolve, r) != 0) return false;
  pthread_detach(thread);
  pthread_mutex_lock(&r->lock);
  int error = 0;
  while (!r->is_done && error == 0) error = pthread_cond_timedwait(&r->changed, &r->lock, &until);
  const bool is_done = r->is_done;
  pthread_mutex_unlock(&r->lock);
  return is_done;
}

static void find_link(struct sml_doctor_target *t) {
  struct sml_link links[SML_MAX_LINKS];
  struct sockaddr_storage local = {0};
  socklen_t local_bytes = sizeof local;
  struct sml_addr addr = {.num_bytes = 0};
  const struct sockaddr *to = (const struct sockaddr *)(const void *)t->source.addr.bytes;
  const int fd = socket(to->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, to, t->source.addr.num_bytes) == 0 &&
      getsockname(fd, (struct sockaddr *)&local, &local_bytes) == 0 && local_bytes <= sizeof addr.bytes) {
    char text[64];
    memcpy(addr.bytes, &local, local_bytes);
    addr.num_bytes = (uint8_t)local_bytes;
    sml_addr_set_port(&addr, 0);
    sml_addr_format(&addr, text, sizeof text);
    const uint32_t num_links = sml_links_list(links, SML_MAX_LINKS);
    for (uint32_t i = 0; i < num_links; i++) {
      char own[64];
      snprintf(own, sizeof own, strchr(links[i].address, ':') ? "[%s]:0" : "%s:0", links[i].address);
      if (strcmp(own, text) == 0) t->link = links[i];
    }
  }
  if (fd >= 0) close(fd);
}

bool sml_doctor_check_name(struct sml_doctor *d, struct sml_doctor_target *t) {
  struct resolution *r = calloc(1, sizeof *r);
  char text[64];
  if (!r) {
    d->is_broken = true;
    return false;
  }
  pthread_mutex_init(&r->lock, NULL);
  pthread_cond_init(&r->changed, NULL);
  snprintf(r->text, sizeof r->text, "%s", t->text);
  if (!await_resolution(r, sml_doctor_patience(d, 10 * SML_NS_PER_S))) {
    sml_doctor_find(d, SML_DOCTOR_NAME, "name", SML_FINDING_FAILED, NULL,
                    "name the address itself, or look at /etc/resolv.conf: the name server does not answer",
                    "'%s' was not resolved in time", t->text);
    return false; /* r is the thread's */
  }
  if (!r->is_resolved) {
    sml_doctor_find(d, SML_DOCTOR_NAME, "name", SML_FINDING_FAILED, NULL,
                    "SWITCHML_AGGREGATOR is HOST:PORT, the address that switchmld listens on: correct the name, or add "
                    "it to DNS or /etc/hosts",
                    "%s", r->error);
    free(r);
    return false;
  }
  t->source.addr = r->addr;
  free(r);
  sml_addr_format(&t->source.addr, text, sizeof text);
  const size_t num_bytes = (size_t)(strrchr(text, ':') - text); /* without brackets, as links have it */
  const bool is_v6 = text[0] == '[';
  snprintf(t->numeric, sizeof t->numeric, "%.*s", (int)(is_v6 ? num_bytes - 2 : num_bytes), text + is_v6);
  snprintf(t->source.text, sizeof t->source.text, "%s", t->text);
  find_link(t);
  sml_doctor_find(d, SML_DOCTOR_NAME, "name", SML_FINDING_OK, NULL, "", "%s%s%s%s", text,
                  t->link.mtu ? ", by interface " : "", t->link.mtu ? t->link.name : "",
                  t->link.is_loopback ? ": on this host" : "");
  return true;
}

/* --- the control port --- */

static void find_unreachable(struct sml_doctor *d, const struct sml_doctor_target *t, const struct sml_exchange *x) {
  char advice[400];
  const uint16_t port = sml_addr_port(&t->source.addr);
  switch (x->system_error) {
    case ECONNREFUSED:
      snprintf(advice, sizeof advice,
               "the host is there, but nothing listens on TCP port %u: start switchmld on it, or correct the port (its "
               "log says 'listening on')",
               port);
      break;
    case ETIMEDOUT:
      snprintf(advice, sizeof advice,
               "the host is down, the address is another's, or a firewall drops TCP port %u: open it (docs/install.md, "
               "Firewall)",
               port);
      break;
    case EHOSTUNREACH:
    case ENETUNREACH:
      snprintf(advice, sizeof advice, "there is no way to %s: correct the address, or look at 'ip route get %s'",
               t->numeric, t->numeric);
      break;
    default: snprintf(advice, sizeof advice, "correct the address %s, or what the error says", t->text);
  }
  sml_doctor_find(d, SML_DOCTOR_CONTROL, "control", SML_FINDING_FAILED,
                  json_pack("{s:i, s:i}", "errno", x->system_error, "port", (int)port), advice, "TCP port %u of %s: %s",
                  port, t->numeric,
                  x->system_error == ETIMEDOUT ? "no answer to the connection request" : strerror(x->system_error));
}

bool sml_doctor_check_control(struct sml_doctor *d, struct sml_doctor_target *t) {
  struct sml_exchange *x = calloc(1, sizeof *x);
  if (!x) {
    d->is_broken = true;
    return false;
  }
  const uint64_t start_ns = sml_clock_ns();
  const bool is_open = sml_exchange_open(x, t->text, &t->source.addr, start_ns + sml_doctor_patience(d, PATIENCE_NS));
  const double ms = (double)(sml_clock_ns() - start_ns) / 1e6;
  if (is_open)
    sml_doctor_find(d, SML_DOCTOR_CONTROL, "control", SML_FINDING_OK, json_pack("{s:f}", "connect_ms", ms), "",
                    "TCP port %u took the connection in %.2f ms", sml_addr_port(&t->source.addr), ms);
  else find_unreachable(d, t, x);
  sml_exchange_close(x);
  free(x);
  return is_open;
}

/* --- versions --- */

static const char upgrade_advice[] =
    "install the same switchml version on all machines and restart switchmld (docs/install.md, Upgrades)";

static void find_other_version(struct sml_doctor *d, const struct sml_exchange *x) {
  if (x->peer_version != 0)
    sml_doctor_find(
        d, SML_DOCTOR_VERSION, "version", SML_FINDING_FAILED,
        json_pack("{s:i, s:i}", "control_version", SML_CTL_VERSION, "aggregator_control_version", (int)x->peer_version),
        upgrade_advice, "this host (switchml %s) speaks control protocol version %d, the aggregator %u",
        SML_VERSION_TEXT, SML_CTL_VERSION, x->peer_version);
  else
    sml_doctor_find(d, SML_DOCTOR_VERSION, "version", SML_FINDING_FAILED, NULL, upgrade_advice,
                    "this host (switchml %s) speaks control protocol version %d, but %s", SML_VERSION_TEXT,
                    SML_CTL_VERSION, x->message.u.refuse.detail);
}

/* What answered is a switchmld that we understand, or there is a finding why not. */
static bool judge_trouble(struct sml_doctor *d, const struct sml_exchange *x) {
  switch (x->trouble) {
    case SML_TROUBLE_VERSION: find_other_version(d, x); return false;
    case SML_TROUBLE_STRANGER:
      sml_doctor_find(d, SML_DOCTOR_CONTROL, "version", SML_FINDING_FAILED, NULL,
                      "another service listens on that port: give the address of switchmld's control port", "%s",
                      x->error);
      return false;
    case SML_TROUBLE_SILENT:
      sml_doctor_find(d, SML_DOCTOR_CONTROL, "version", SML_FINDING_FAILED, NULL,
                      "switchmld is stopped, or overloaded, or it is another service: look at its process and log",
                      "the connection was taken, but a question was not answered");
      return false;
    case SML_TROUBLE_CLOSED:
      sml_doctor_find(d, SML_DOCTOR_CONTROL, "version", SML_FINDING_FAILED, NULL,
                      "look at its log: it may limit connections (host_limited), or be another service or a much older "
                      "switchmld",
                      "the connection was closed without an answer");
      return false;
    case SML_TROUBLE_SYSTEM: d->is_broken = true; return false;
    default: /* NONE, REFUSED, KEY: it was understood. UNREACHABLE: gone since a moment ago; the join will say so */
      return true;
  }
}

static void find_versions(struct sml_doctor *d, const struct sml_doctor_target *t) {
  const char *version = json_string_value(json_object_get(t->status, "version"));
  const bool is_same = version && strcmp(version, SML_VERSION_TEXT) == 0;
  const json_t *wire = json_object_get(t->status, "wire_version");
  if (json_is_integer(wire) && json_integer_value(wire) != SML_WIRE_VERSION)
    sml_doctor_find(d, SML_DOCTOR_VERSION, "version", SML_FINDING_FAILED,
                    json_pack("{s:i, s:O}", "wire_version", SML_WIRE_VERSION, "aggregator_wire_version", wire),
                    upgrade_advice, "this host's datagrams are of wire version %d, the aggregator's of %lld",
                    SML_WIRE_VERSION, (long long)json_integer_value(wire));
  else if (!version)
    sml_doctor_find(d, SML_DOCTOR_VERSION, "version", SML_FINDING_OK, NULL, "",
                    "control protocol version %d on both sides (it does not show this host its status)",
                    SML_CTL_VERSION);
  else
    sml_doctor_find(d, SML_DOCTOR_VERSION, "version", is_same ? SML_FINDING_OK : SML_FINDING_WARNING,
                    json_pack("{s:s, s:s}", "version", SML_VERSION_TEXT, "aggregator_version", version),
                    is_same ? "" : "within a series they work together; upgrade the older one when you can",
                    "switchml %s here, switchmld %s there; control protocol version %d", SML_VERSION_TEXT, version,
                    SML_CTL_VERSION);
}

bool sml_doctor_check_version(struct sml_doctor *d, struct sml_doctor_target *t) {
  struct sml_exchange *x = calloc(1, sizeof *x);
  char error[256];
  if (!x) {
    d->is_broken = true;
    return false;
  }
  if (!sml_status_read_key(&t->source, error, sizeof error)) { /* the key check says it */
    memset(&t->source.key, 0, sizeof t->source.key);
    t->source.key_name[0] = 0;
  }
  t->status = sml_status_exchange(x, &t->source, sml_doctor_patience(d, PATIENCE_NS));
  t->has_answered = judge_trouble(d, x);
  if (t->has_answered) find_versions(d, t);
  free(x);
  return t->has_answered;
}

json_t *sml_doctor_fetch_status(struct sml_doctor *d, const struct sml_doctor_target *t) {
  struct sml_exchange *x = t->status ? calloc(1, sizeof *x) : NULL;
  if (!x) return NULL;
  usleep(300000); /* a text is for all who ask within 250 ms */
  json_t *status = sml_status_exchange(x, &t->source, sml_doctor_patience(d, PATIENCE_NS));
  free(x);
  return status;
}

/* --- the key, and membership --- */

/* As ranks would ask for it, if that is shorter, but not below what the checks take. */
static uint64_t lease_ns(void) {
  const char *text = getenv("SWITCHML_LEASE");
  const double lease_s = text ? strtod(text, NULL) : 0;
  if (!(lease_s > 0 && lease_s * 1e9 < (double)LEASE_NS)) return LEASE_NS;
  return (uint64_t)((lease_s > LEAST_LEASE_S ? lease_s : LEAST_LEASE_S) * 1e9);
}

static bool join(struct sml_exchange *x, struct sml_doctor_target *t) {
  struct sml_ctl_message m = {.kind = SML_CTL_JOIN};
  struct sml_ctl_join *join = &m.u.join;
  const char *key_name = t->source.key_name;
  uint32_t random;
  if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random ||
      getrandom(join->nonce, sizeof join->nonce, 0) != (ssize_t)sizeof join->nonce)
    return sml_exchange_fail(x, SML_TROUBLE_SYSTEM, "cannot draw random numbers");
  snprintf(t->job_name, sizeof t->job_name, "doctor.%d.%08x", (int)getpid(), random);
  memcpy(join->job_name, t->job_name, sizeof join->job_name);
  memcpy(join->key_name, key_name, sizeof join->key_name);
  if (!key_name[0]) memset(join->nonce, 0, sizeof join->nonce);
  join->world_size = 2;
  join->num_lanes = SML_MAX_LANES;
  join->max_datagram_bytes = UINT16_MAX;
  join->lease_ns = lease_ns();
  join->join_timeout_ns = LEASE_NS;
  if (!sml_exchange_say(x, &m) || !sml_exchange_hear(x, key_name)) return false;
  if (key_name[0] && !(sml_exchange_prove(x, &t->source.key, key_name, join->nonce) && sml_exchange_hear(x, key_name)))
    return false;
  if (x->message.kind != SML_CTL_WELCOME)
    return sml_exchange_fail(x, SML_TROUBLE_STRANGER, "%s answered the join with a message (%d) out of place", t->text,
                             (int)x->message.kind);
  t->welcome = x->message.u.welcome;
  const struct sml_key key =
      sml_ctl_data_key(&t->source.key, t->job_name, t->welcome.job, t->welcome.epoch, t->welcome.salt);
  t->seal = sml_seal_of(key_name[0] ? &key : NULL, t->welcome.secret);
  return true;
}

static bool is_key_trouble(const struct sml_exchange *x) {
  return x->trouble == SML_TROUBLE_KEY ||
         (x->trouble == SML_TROUBLE_REFUSED && x->message.u.refuse.status == SML_ERR_KEY);
}

static void find_bad_key(struct sml_doctor *d, const struct sml_doctor_target *t, const struct sml_exchange *x) {
  const char *name = t->source.key_name,
             *detail = x->trouble == SML_TROUBLE_REFUSED ? x->message.u.refuse.detail : x->error;
  const bool has_none = strstr(detail, "has none") != NULL || strstr(detail, "did not ask for a proof") != NULL;
  const char *advice =
      !name[0] ? "set SWITCHML_KEY_FILE on all ranks to a file with a key of the aggregator's --key-file"
      : has_none
          ? "start switchmld with --key-file, or unset SWITCHML_KEY_FILE on all ranks"
          : "copy the line of that name from the aggregator's --key-file (then SIGHUP or restart switchmld if it "
            "is new there), or choose another with SWITCHML_KEY_NAME";
  sml_doctor_find(d, SML_DOCTOR_KEY, "key", SML_FINDING_FAILED, json_pack("{s:s}", "key", name), advice, "%s", detail);
}

const char *sml_doctor_advise_refused(const char *detail) {
  return strstr(detail, "--max-lease")
             ? "set SWITCHML_LEASE on all ranks to that limit or less, or start switchmld with a longer --max-lease"
             : "wait for a job to end, or raise the limit that is named at switchmld (--max-jobs, --slots, "
               "--max-connections, --max-connections-per-host)";
}

bool sml_doctor_check_key(struct sml_doctor *d, struct sml_doctor_target *t) {
  char error[256];
  struct sml_exchange *x = calloc(1, sizeof *x);
  bool is_joined = false;
  if (!x) {
    d->is_broken = true;
  } else if (!sml_status_read_key(&t->source, error, sizeof error)) {
    sml_doctor_find(d, SML_DOCTOR_KEY, "key", SML_FINDING_FAILED, NULL, sml_doctor_advise_on_key_file(error), "%s",
                    error);
  } else if (sml_exchange_open(x, t->text, &t->source.addr, sml_clock_ns() + sml_doctor_patience(d, PATIENCE_NS)) &&
             join(x, t)) {
    is_joined = true;
    sml_doctor_find(d, SML_DOCTOR_KEY, "key", SML_FINDING_OK, NULL, "",
                    t->source.key_name[0] ? "key '%s' is the aggregator's" : "none here, none there%s",
                    t->source.key_name);
  } else if (is_key_trouble(x)) {
    find_bad_key(d, t, x);
  } else if (x->trouble == SML_TROUBLE_REFUSED) {
    t->is_full = true;
    sml_doctor_find(d, SML_DOCTOR_ROOM, "room", SML_FINDING_FAILED, NULL,
                    sml_doctor_advise_refused(x->message.u.refuse.detail), "a join was refused: %s",
                    x->message.u.refuse.detail);
  } else {
    sml_doctor_find(d, SML_DOCTOR_CONTROL, "join", SML_FINDING_FAILED, NULL,
                    "look at the aggregator's log: it ended, or limits connections (host_limited)", "%s", x->error);
  }
  if (is_joined) t->member = x;
  else if (x) sml_exchange_close(x);
  if (!is_joined) free(x);
  return is_joined;
}

void sml_doctor_leave(struct sml_doctor_target *t) {
  if (t->member) {
    sml_exchange_say(t->member, &(struct sml_ctl_message){.kind = SML_CTL_GOODBYE});
    sml_exchange_close(t->member);
    free(t->member);
    t->member = NULL;
  }
  for (uint32_t i = 0; i < t->num_sockets; i++) close(t->sockets[i]);
  t->num_sockets = 0;
  json_decref(t->status);
  t->status = NULL;
}
