/* SPDX-License-Identifier: Apache-2.0 */
#include "aggd/shown.h"

#include <stdio.h>
#include <stdlib.h>

static bool is_fresh(const struct sml_shown_text *t, uint64_t now_ns) {
  return t->text && now_ns - t->made_ns < SML_SHOWN_FRESH_NS;
}

uint32_t sml_shown_find(const struct sml_shown *shown, const char *key_name, uint64_t now_ns) {
  for (uint32_t i = 0; i < SML_NUM_SHOWN; i++) {
    const struct sml_shown_text *t = &shown->texts[i];
    if (is_fresh(t, now_ns) && strcmp(t->key_name, key_name) == 0) return t->ticket;
  }
  return SML_SHOWN_NONE;
}

/* SML_NUM_SHOWN: none. */
static uint32_t find_place(const struct sml_shown *shown, uint64_t now_ns) {
  uint32_t place = SML_NUM_SHOWN;
  for (uint32_t i = 0; i < SML_NUM_SHOWN; i++) {
    const struct sml_shown_text *t = &shown->texts[i];
    if (!t->text) return i;
    if (is_fresh(t, now_ns)) continue;
    if (place == SML_NUM_SHOWN || t->made_ns < shown->texts[place].made_ns) place = i;
  }
  return place;
}

bool sml_shown_has_room(const struct sml_shown *shown, uint64_t now_ns) {
  return find_place(shown, now_ns) != SML_NUM_SHOWN;
}

uint32_t sml_shown_put(struct sml_shown *shown, const char *key_name, char *text, uint64_t now_ns) {
  const uint32_t place = find_place(shown, now_ns);
  SML_ASSERT(place != SML_NUM_SHOWN);
  struct sml_shown_text *t = &shown->texts[place];
  free(t->text);
  if (++shown->last_ticket == SML_SHOWN_NONE) shown->last_ticket++;
  *t =
      (struct sml_shown_text){.text = text, .num_bytes = strlen(text), .made_ns = now_ns, .ticket = shown->last_ticket};
  snprintf(t->key_name, sizeof t->key_name, "%s", key_name);
  return t->ticket;
}

bool sml_shown_part(const struct sml_shown *shown, uint32_t ticket, uint32_t offset_bytes,
                    struct sml_ctl_status_part *part) {
  for (uint32_t i = 0; i < SML_NUM_SHOWN; i++) {
    const struct sml_shown_text *t = &shown->texts[i];
    if (!t->text || ticket == SML_SHOWN_NONE || t->ticket != ticket) continue;
    if (offset_bytes > t->num_bytes || t->num_bytes > UINT32_MAX) return false;
    part->total_bytes = (uint32_t)t->num_bytes;
    part->offset_bytes = offset_bytes;
    part->num_bytes = (uint16_t)sml_min_u64(t->num_bytes - offset_bytes, SML_STATUS_PART_BYTES);
    memcpy(part->text, t->text + offset_bytes, part->num_bytes);
    return true;
  }
  return false;
}

void sml_shown_destroy(struct sml_shown *shown) {
  for (uint32_t i = 0; i < SML_NUM_SHOWN; i++) free(shown->texts[i].text);
}
