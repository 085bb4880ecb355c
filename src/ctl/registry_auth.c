/* SPDX-License-Identifier: Apache-2.0
 * Who may join at all: the first JOIN of a connection, the challenge, and what a wrong answer gets. */
#include <stdio.h>

#include "base/text.h"
#include "ctl/registry_internal.h"

void sml_registry_turn_away(struct sml_registry *r, uint32_t conn, enum sml_note note, sml_status status,
                            const char *text, const char *noted) {
  sml_registry_send(r, conn, sml_registry_farewell(r, false, status, NULL, 0, text));
  sml_registry_note(r, note, NULL, 0, sml_registry_text(r, "%s: %.420s", r->conns[conn].host, noted));
  if (note == SML_NOTE_JOIN_REFUSED) { /* a job of that name need not be there */
    struct sml_effect *effect = &r->effects[r->num_effects - 1];
    snprintf(effect->job_name, sizeof effect->job_name, "%s", r->conns[conn].join.job_name);
    effect->rank = r->conns[conn].join.rank;
  }
  sml_registry_forget(r, conn);
}

void sml_registry_refuse(struct sml_registry *r, uint32_t conn, sml_status status, const char *text) {
  sml_registry_turn_away(r, conn, SML_NOTE_JOIN_REFUSED, status, text, text);
}

static void refuse_status(struct sml_registry *r, uint32_t conn, const char *text) {
  sml_registry_turn_away(r, conn, SML_NOTE_STATUS_REFUSED, SML_ERR_KEY, text, text);
}

/* An unknown name gets a key that nobody has: it fails where, when and how a wrong key does, so that
 * names can't be guessed. */
static struct sml_key key_of(struct sml_registry *r, const char *name) {
  struct sml_key key, random = {r->options.random(r->options.random_user), r->options.random(r->options.random_user)};
  return r->options.find_key(r->options.find_key_user, name, &key) ? key : random;
}

static void challenge(struct sml_registry *r, uint32_t conn, const char *key_name, const uint64_t nonce[2]) {
  struct sml_conn *c = &r->conns[conn];
  c->state = SML_CONN_CHALLENGED;
  c->tenant = key_of(r, key_name);
  struct sml_ctl_message *m = sml_registry_compose(r, SML_CTL_CHALLENGE);
  for (uint32_t i = 0; i < 2; i++) m->u.challenge.nonce[i] = r->options.random(r->options.random_user);
  sml_registry_send(r, conn, m);
  struct sml_effect *effect = sml_registry_emit(r, SML_EFFECT_SET_KEY);
  effect->conn = conn;
  effect->key = &c->tenant;
  memcpy(effect->worker_nonce, nonce, sizeof effect->worker_nonce);
  memcpy(effect->daemon_nonce, m->u.challenge.nonce, sizeof effect->daemon_nonce);
}

void sml_registry_challenge(struct sml_registry *r, uint32_t conn, const struct sml_ctl_join *join, uint64_t now_ns) {
  struct sml_conn *c = &r->conns[conn];
  c->join = *join;
  if (!join->key_name[0] && !r->options.find_key) {
    sml_registry_join(r, conn, join, now_ns);
    return;
  }
  if (!r->options.find_key) {
    sml_registry_refuse(r, conn, SML_ERR_KEY,
                        "this rank has a key, but the aggregator has none: start it with --key-file, or unset "
                        "SWITCHML_KEY_FILE on all ranks");
    return;
  }
  if (!join->key_name[0]) {
    sml_registry_refuse(r, conn, SML_ERR_KEY,
                        "the aggregator takes ranks with a key only: set SWITCHML_KEY_FILE on all ranks to a "
                        "file with a key of its --key-file");
    return;
  }
  c->wants_status = false;
  challenge(r, conn, join->key_name, join->nonce);
}

/* Without keys, to whoever asks: he could join as well. With keys, of a tenant's jobs to whoever proves that key, and
 * of all jobs to whoever is on the daemon's own host. */
void sml_registry_show(struct sml_registry *r, uint32_t conn, const struct sml_ctl_status *status) {
  struct sml_conn *c = &r->conns[conn];
  const bool is_keyed = r->options.find_key != NULL;
  if (c->state == SML_CONN_UNJOINED && status->key_name[0]) {
    if (!is_keyed) {
      refuse_status(r, conn, "the aggregator has no keys: ask without one");
      return;
    }
    memset(&c->join, 0, sizeof c->join);
    memcpy(c->join.key_name, status->key_name, sizeof c->join.key_name);
    c->wants_status = true;
    challenge(r, conn, status->key_name, status->nonce);
    return;
  }
  if (c->state == SML_CONN_UNJOINED && is_keyed && !sml_text_is_loopback(c->host)) {
    refuse_status(r, conn,
                  "only those with a key of its --key-file see the aggregator's status: name yours with "
                  "SWITCHML_KEY_FILE");
    return;
  }
  struct sml_effect *effect = sml_registry_emit(r, SML_EFFECT_SHOW);
  effect->conn = conn;
  snprintf(effect->key_name, sizeof effect->key_name, "%s", c->state == SML_CONN_VIEWER ? c->join.key_name : "");
  effect->offset_bytes = status->offset_bytes;
}

void sml_registry_take_auth(struct sml_registry *r, uint32_t conn, uint64_t now_ns) {
  struct sml_conn *c = &r->conns[conn];
  if (sml_registry_is_withdrawn(r, c->join.key_name, &c->tenant)) { /* since it was challenged */
    sml_registry_bad_mac(r, conn);
    return;
  }
  if (c->wants_status) {
    c->state = SML_CONN_VIEWER;
    return;
  }
  struct sml_ctl_join join = c->join; /* joining writes to the connection */
  sml_registry_join(r, conn, &join, now_ns);
}

void sml_registry_bad_mac(struct sml_registry *r, uint32_t conn) {
  sml_registry_refuse(r, conn, SML_ERR_KEY,
                      sml_registry_text(r,
                                        "the aggregator has no key '%s', or not the same one: SWITCHML_KEY_FILE of "
                                        "this rank must have that line of the aggregator's --key-file",
                                        r->conns[conn].join.key_name));
}
