/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/ask/status_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "aggd/key_reader.h"
#include "base/text.h"
#include "cli/ask/exchange.h"

#define PATIENCE_NS (5 * SML_NS_PER_S)
#define MAX_TEXT_BYTES (256u << 20) /* far beyond the largest daemon's: what claims more is none */

/* --- where --- */

bool sml_status_read_key(struct sml_status_source *source, char *error, size_t error_bytes) {
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

bool sml_status_source_open(struct sml_status_source *source, const char *address, char *error, size_t error_bytes) {
  memset(source, 0, sizeof *source);
  if (!address) address = getenv("SWITCHML_AGGREGATOR");
  if (!address || !*address) {
    snprintf(error, error_bytes, "no aggregator is named: give HOST:PORT, or set SWITCHML_AGGREGATOR");
    return false;
  }
  if (strchr(address, ',')) {
    snprintf(error, error_bytes, "'%.128s' are several aggregators: give the HOST:PORT of one", address);
    return false;
  }
  snprintf(source->text, sizeof source->text, "%s", address);
  return sml_addr_parse(address, 48879, &source->addr, error, error_bytes) &&
         sml_status_read_key(source, error, error_bytes);
}

/* --- the exchange --- */

static bool ask(struct sml_exchange *x, const struct sml_status_source *source, uint32_t offset_bytes,
                const uint64_t nonce[2]) {
  struct sml_ctl_message m = {.kind = SML_CTL_STATUS, .u.status.offset_bytes = offset_bytes};
  memcpy(m.u.status.key_name, source->key_name, sizeof m.u.status.key_name);
  memcpy(m.u.status.nonce, nonce, sizeof m.u.status.nonce);
  return sml_exchange_say(x, &m);
}

bool sml_status_prove(struct sml_exchange *x, const struct sml_status_source *source) {
  uint64_t nonce[2];
  if (getrandom(nonce, sizeof nonce, 0) != (ssize_t)sizeof nonce)
    return sml_exchange_fail(x, SML_TROUBLE_SYSTEM, "cannot draw random numbers");
  return ask(x, source, 0, nonce) && sml_exchange_hear(x, source->key_name) &&
         sml_exchange_prove(x, &source->key, source->key_name, nonce);
}

/* To the first STATUS_PART, past the challenge if there is a key. */
static bool begin(struct sml_exchange *x, const struct sml_status_source *source) {
  const uint64_t nonce[2] = {0};
  if (source->key_name[0] && !sml_status_prove(x, source)) return false;
  return ask(x, source, 0, nonce) && sml_exchange_hear(x, source->key_name);
}

/* The whole text, malloc'd and terminated. */
static char *take_text(struct sml_exchange *x, const struct sml_status_source *source) {
  const uint32_t total_bytes = x->message.u.status_part.total_bytes;
  const uint64_t nonce[2] = {0};
  uint32_t used_bytes = 0;
  char *text =
      x->message.kind == SML_CTL_STATUS_PART && total_bytes <= MAX_TEXT_BYTES ? malloc(total_bytes + 1u) : NULL;
  if (!text) {
    sml_exchange_fail(x, SML_TROUBLE_STRANGER, "the answer of %s is no status", x->text);
    return NULL;
  }
  for (;;) {
    const struct sml_ctl_status_part *part = &x->message.u.status_part;
    const bool is_next = x->message.kind == SML_CTL_STATUS_PART && part->total_bytes == total_bytes &&
                         part->offset_bytes == used_bytes && (part->num_bytes > 0 || used_bytes == total_bytes);
    if (!is_next) sml_exchange_fail(x, SML_TROUBLE_STRANGER, "the answer of %s makes no sense", x->text);
    if (is_next) memcpy(text + used_bytes, part->text, part->num_bytes);
    if (is_next) used_bytes += part->num_bytes;
    if (is_next && used_bytes == total_bytes) break;
    if (is_next && ask(x, source, used_bytes, nonce) && sml_exchange_hear(x, source->key_name)) continue;
    free(text);
    return NULL;
  }
  text[total_bytes] = 0;
  return text;
}

/* ---- what it says ---- */

/* malloc'd; NULL: it is plain, is none, or there is no memory. */
static char *make_plain(const char *text) {
  char *plain = text == NULL || sml_text_is_plain(text, strlen(text)) ? NULL : strdup(text);
  if (plain != NULL) sml_text_make_plain(plain);
  return plain;
}

/* Whoever answers need not be what it says: its texts are words and nothing else, wherever they are shown. */
static void make_all_plain(json_t *value) {
  const char *name;
  json_t *inner;
  void *next;
  size_t i;
  json_object_foreach_safe(value, next, name, inner) {
    char *plain = make_plain(name);
    make_all_plain(inner);
    if (plain != NULL) json_object_set(value, plain, inner);
    if (plain != NULL) json_object_del(value, name);
    free(plain);
  }
  json_array_foreach(value, i, inner) make_all_plain(inner);
  char *plain = make_plain(json_string_value(value));
  if (plain != NULL) json_string_set(value, plain);
  free(plain);
}

json_t *sml_status_exchange(struct sml_exchange *x, const struct sml_status_source *source, uint64_t patience_ns) {
  json_t *status = NULL;
  char *text = NULL;
  if (sml_exchange_open(x, source->text, &source->addr, sml_clock_ns() + patience_ns) && begin(x, source))
    text = take_text(x, source);
  if (text) {
    status = json_loads(text, 0, NULL);
    if (!json_is_object(status)) {
      sml_exchange_fail(x, SML_TROUBLE_STRANGER, "the answer of %s is no JSON object", x->text);
      json_decref(status);
      status = NULL;
    }
    make_all_plain(status);
    sml_exchange_say(x, &(struct sml_ctl_message){.kind = SML_CTL_GOODBYE});
  }
  sml_exchange_close(x);
  free(text);
  return status;
}

json_t *sml_status_fetch(const struct sml_status_source *source, char *error, size_t error_bytes) {
  struct sml_exchange *x = calloc(1, sizeof *x);
  json_t *status = x ? sml_status_exchange(x, source, PATIENCE_NS) : NULL;
  if (!status) snprintf(error, error_bytes, "%s", x ? x->error : "out of memory");
  free(x);
  return status;
}
