/* SPDX-License-Identifier: Apache-2.0
 * Texts of the status that connections are reading, part by part. There are few places, whoever asks. A fresh text
 * serves all who ask for the same jobs: all, or those of a key. When every place is taken, the oldest text that is not
 * fresh makes room, so slow readers keep nobody from asking. */
#pragma once

#include "ctl/message.h"

#define SML_NUM_SHOWN 8u
#define SML_SHOWN_NONE 0u
#define SML_SHOWN_FRESH_NS (250 * SML_NS_PER_MS)

struct sml_shown {
  uint32_t last_ticket;
  struct sml_shown_text {
    char *text; /* NULL: the place is free */
    size_t num_bytes;
    char key_name[SML_KEY_NAME_BYTES];
    uint64_t made_ns;
    uint32_t ticket; /* what its readers hold */
  } texts[SML_NUM_SHOWN];
};

/* The ticket of a fresh text about the key's jobs ("": all), or SML_SHOWN_NONE: make one and _put() it. */
uint32_t sml_shown_find(const struct sml_shown *shown, const char *key_name, uint64_t now_ns);
/* Whether _put() will find a place: not if all texts are fresh. */
bool sml_shown_has_room(const struct sml_shown *shown, uint64_t now_ns);
/* Takes the text over (malloc'd, terminated). */
uint32_t sml_shown_put(struct sml_shown *shown, const char *key_name, char *text, uint64_t now_ns);
/* The part from offset on; false: it ends before that, or the text has made room. */
bool sml_shown_part(const struct sml_shown *shown, uint32_t ticket, uint32_t offset_bytes,
                    struct sml_ctl_status_part *part_out);
void sml_shown_destroy(struct sml_shown *shown);
