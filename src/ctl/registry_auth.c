/* SPDX-License-Identifier: Apache-2.0
 * Who may join at all: the first JOIN of a connection, the challenge, and what a wrong answer gets. */
#include "ctl/registry_internal.h"

void sml_registry_refuse(struct sml_registry *r, uint32_t conn, sml_status status, const char *text) {
  sml_registry_send(r, conn, sml_registry_farewell(r, false, status, NULL, 0, text));
  sml_registry_note(r, SML_NOTE_JOIN_REFUSED, NULL, 0, text);
  sml_registry_forget(r, conn);
}

/* An unknown name gets a key that nobody has: it fails where, when and how a wrong key does, so that
 * names can't be guessed. */
static struct sml_key key_of(struct sml_registry *r, const char *name) {
  struct sml_key key, random = {r->options.random(r->options.random_user),
                                r->options.random(r->options.random_user)};
  return r->options.find_key(r->options.find_key_user, name, &key) ? key : random;
}

void sml_registry_challenge(struct sml_registry *r, uint32_t conn, const struct sml_ctl_join *join,
                            uint64_t now_ns) {
  struct sml_conn *c = &r->conns[conn];
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
  c->state = SML_CONN_CHALLENGED;
  c->join = *join;
  c->tenant = key_of(r, join->key_name);
  struct sml_ctl_message *m = sml_registry_compose(r, SML_CTL_CHALLENGE);
  for (uint32_t i = 0; i < 2; i++) m->u.challenge.nonce[i] = r->options.random(r->options.random_user);
  sml_registry_send(r, conn, m);
  struct sml_effect *effect = sml_registry_emit(r, SML_EFFECT_SET_KEY);
  effect->conn = conn;
  effect->key = &c->tenant;
  memcpy(effect->worker_nonce, join->nonce, sizeof effect->worker_nonce);
  memcpy(effect->daemon_nonce, m->u.challenge.nonce, sizeof effect->daemon_nonce);
}

void sml_registry_bad_tag(struct sml_registry *r, uint32_t conn) {
  sml_registry_refuse(r, conn, SML_ERR_KEY,
                      sml_registry_text(r,
                                        "the aggregator has no key '%s', or not the same one: SWITCHML_KEY_FILE of "
                                        "this rank must have that line of the aggregator's --key-file",
                                        r->conns[conn].join.key_name));
}
