/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/key_file.h"

#include <stdio.h>

#include "base/text.h"

#define KEY_DIGITS 32u

/* One line without its end; words are separated by blanks. */
struct line {
  const char *at, *end;
};

static bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

/* The next word of the line, of *num_bytes_out bytes; 0: there is none. */
static const char *take_word(struct line *line, size_t *num_bytes_out) {
  while (line->at < line->end && is_blank(*line->at)) line->at++;
  const char *word = line->at;
  while (line->at < line->end && !is_blank(*line->at)) line->at++;
  *num_bytes_out = (size_t)(line->at - word);
  return word;
}

static int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static const char *parse_name(const char *word, size_t num_bytes, char *name) {
  if (num_bytes >= SML_KEY_NAME_BYTES) return "the name has more than 31 characters";
  for (size_t i = 0; i < num_bytes; i++)
    if (!sml_text_is_name_byte(word[i])) return "a name has letters, digits and . _ : / - only";
  memset(name, 0, SML_KEY_NAME_BYTES);
  memcpy(name, word, num_bytes);
  return NULL;
}

static const char *parse_key(const char *word, size_t num_bytes, struct sml_key *key) {
  if (num_bytes == 0) return "the key is missing: a line is a name and 32 hexadecimal digits";
  if (num_bytes != KEY_DIGITS) return "a key has 32 hexadecimal digits";
  uint64_t halves[2] = {0, 0}; /* digits are bytes in order; a half is their little-endian value */
  for (uint32_t i = 0; i < KEY_DIGITS; i++) {
    int digit = digit_of(word[i]);
    if (digit < 0) return "a key has hexadecimal digits only";
    halves[i / 16] |= (uint64_t)digit << (i % 16 / 2 * 8 + (i % 2 ? 0 : 4));
  }
  if ((halves[0] | halves[1]) == 0) return "a key of zeros is no key";
  *key = (struct sml_key){halves[0], halves[1]};
  return NULL;
}

/* NULL, or what is wrong. *is_key_out: the line has a key. */
static const char *parse_line(struct line line, struct sml_key_entry *entry, bool *is_key_out) {
  size_t num_bytes;
  const char *comment = memchr(line.at, '#', (size_t)(line.end - line.at));
  if (comment) line.end = comment;
  const char *word = take_word(&line, &num_bytes);
  *is_key_out = num_bytes > 0;
  if (num_bytes == 0) return NULL;
  const char *bad = parse_name(word, num_bytes, entry->name);
  if (bad) return bad;
  word = take_word(&line, &num_bytes);
  bad = parse_key(word, num_bytes, &entry->key);
  if (bad) return bad;
  take_word(&line, &num_bytes);
  return num_bytes > 0 ? "something follows the key" : NULL;
}

const struct sml_key *sml_key_find(const struct sml_key_entry *entries, size_t num_entries, const char *name) {
  for (size_t i = 0; i < num_entries; i++)
    if (strncmp(entries[i].name, name, SML_KEY_NAME_BYTES) == 0) return &entries[i].key;
  return NULL;
}

bool sml_key_file_parse(const char *text, size_t num_bytes, struct sml_key_entry *entries, size_t max, size_t *num_out,
                        char *error, size_t error_bytes) {
  const char *end = text + num_bytes;
  uint32_t number = 0;
  *num_out = 0;
  for (const char *at = text; at < end;) {
    const char *newline = memchr(at, '\n', (size_t)(end - at));
    struct line line = {at, newline ? newline : end};
    struct sml_key_entry entry;
    bool is_key;
    at = newline ? newline + 1 : end;
    number++;
    const char *bad = parse_line(line, &entry, &is_key);
    if (!bad && is_key && sml_key_find(entries, *num_out, entry.name)) bad = "there is a key of this name already";
    if (!bad && is_key && *num_out == max) bad = "there are too many keys";
    if (bad) {
      snprintf(error, error_bytes, "line %u: %s", number, bad);
      return false;
    }
    if (is_key) entries[(*num_out)++] = entry;
  }
  if (*num_out == 0) snprintf(error, error_bytes, "there is no key in it: a line is a name and 32 hexadecimal digits");
  return *num_out > 0;
}
