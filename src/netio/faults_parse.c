/* SPDX-License-Identifier: Apache-2.0
 * Fault options from text. Numbers are read by hand: strtod follows the program's locale. */
#include <stdio.h>

#include "netio/netio.h"

#define MAX_SEED_DIGITS 20u
#define MAX_REORDER_FRAMES 1024u

struct key {
  const char *name;
  enum { KEY_PROBABILITY, KEY_FRAMES, KEY_SEED } kind;
  size_t offset; /* of the field in struct sml_fault_options */
};

static const struct key keys[] = {
    {"loss", KEY_PROBABILITY, offsetof(struct sml_fault_options, loss)},
    {"duplicate", KEY_PROBABILITY, offsetof(struct sml_fault_options, duplicate)},
    {"reorder", KEY_PROBABILITY, offsetof(struct sml_fault_options, reorder)},
    {"corrupt", KEY_PROBABILITY, offsetof(struct sml_fault_options, corrupt)},
    {"mark", KEY_PROBABILITY, offsetof(struct sml_fault_options, mark)},
    {"burst", KEY_FRAMES, offsetof(struct sml_fault_options, loss_burst_frames)},
    {"reorder_frames", KEY_FRAMES, offsetof(struct sml_fault_options, reorder_frames)},
    {"seed", KEY_SEED, offsetof(struct sml_fault_options, seed)},
};

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/* All of [text, end) as a decimal integer. */
static bool parse_integer(const char *text, const char *end, uint64_t *value_out) {
  uint64_t value = 0;
  if (text == end || end - text > (ptrdiff_t)MAX_SEED_DIGITS) return false;
  for (; text < end; text++) {
    if (!is_digit(*text)) return false;
    if (__builtin_mul_overflow(value, UINT64_C(10), &value)) return false;
    if (__builtin_add_overflow(value, (uint64_t)(*text - '0'), &value)) return false;
  }
  *value_out = value;
  return true;
}

/* All of [text, end) as 0..1: "1", "0.05", ".5", "1e-4". */
static bool parse_probability(const char *text, const char *end, double *value_out) {
  double value = 0, scale = 1;
  const char *at = text;
  size_t num_digits = 0;
  for (; at < end && is_digit(*at); at++, num_digits++) value = value * 10 + (*at - '0');
  if (at < end && *at == '.') {
    for (at++; at < end && is_digit(*at); at++, num_digits++) {
      value = value * 10 + (*at - '0');
      scale *= 10;
    }
  }
  if (num_digits == 0 || num_digits > 17) return false;
  if (at < end && (*at == 'e' || *at == 'E')) {
    uint64_t exponent;
    if (end - at < 3 || at[1] != '-' || !parse_integer(at + 2, end, &exponent) || exponent > 99) return false;
    for (; exponent > 0; exponent--) scale *= 10;
    at = end;
  }
  *value_out = value / scale;
  return at == end && *value_out <= 1;
}

static bool set_value(struct sml_fault_options *options, const struct key *key, const char *text, const char *end) {
  void *field = (char *)options + key->offset;
  uint64_t frames;
  switch (key->kind) {
    case KEY_PROBABILITY: return parse_probability(text, end, field);
    case KEY_SEED: return parse_integer(text, end, field);
    case KEY_FRAMES:
      if (!parse_integer(text, end, &frames) || frames < 1 || frames > MAX_REORDER_FRAMES) return false;
      *(uint32_t *)field = (uint32_t)frames;
      return true;
  }
  return false;
}

static const char *describe_value(const struct key *key) {
  switch (key->kind) {
    case KEY_PROBABILITY: return "a probability from 0 to 1, such as 0.01";
    case KEY_FRAMES: return "a number from 1 to 1024";
    case KEY_SEED: return "a whole number";
  }
  return "";
}

/* One "key=value" in [text, end). */
static bool parse_item(struct sml_fault_options *options, const char *text, const char *end, char *error_out,
                       size_t error_bytes) {
  const int shown = (int)sml_min_u64((uint64_t)(end - text), 40);
  const char *equals = memchr(text, '=', (size_t)(end - text));
  for (size_t i = 0; equals != NULL && i < SML_ARRAY_LEN(keys); i++) {
    const size_t name_bytes = strlen(keys[i].name);
    if ((size_t)(equals - text) != name_bytes || memcmp(text, keys[i].name, name_bytes) != 0) continue;
    if (set_value(options, &keys[i], equals + 1, end)) return true;
    (void)snprintf(error_out, error_bytes, "'%.*s': %s must be %s", shown, text, keys[i].name,
                   describe_value(&keys[i]));
    return false;
  }
  (void)snprintf(error_out, error_bytes,
                 "'%.*s' is no fault; write loss=0.01 or duplicate, reorder, corrupt, mark, burst, reorder_frames, "
                 "seed, separated by commas",
                 shown, text);
  return false;
}

bool sml_faults_parse(const char *text, struct sml_fault_options *options_out, char *error_out, size_t error_bytes) {
  *options_out = (struct sml_fault_options){.loss = 0};
  if (text == NULL || text[0] == '\0') return true;
  for (const char *at = text;;) {
    const char *end = at + strcspn(at, ",");
    if (!parse_item(options_out, at, end, error_out, error_bytes)) return false;
    if (*end == '\0') return true;
    at = end + 1;
  }
}
