/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <stdio.h>

static bool is_shown(uint32_t c) {
  const bool is_control = c < 0x20 || (c >= 0x7f && c < 0xa0), is_surrogate = c >= 0xd800 && c < 0xe000;
  const bool turns_order =
      c == 0x61c || c == 0x200e || c == 0x200f || (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
  const bool ends_line = c == 0x2028 || c == 0x2029;
  return !is_control && !is_surrogate && !turns_order && !ends_line && c <= 0x10ffff;
}

/* Bytes of the character that text begins with; 0: it is not plain. */
static size_t plain_bytes(const char *text, size_t num_bytes) {
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000}; /* by bytes: a longer form is not well-formed */
  const uint8_t first = (uint8_t)text[0];
  const size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if ((first >= 0x80 && first < 0xc0) || first >= 0xf8 || length > num_bytes) return 0;
  uint32_t c = length == 1 ? first : first & (0x7fu >> length);
  for (size_t i = 1; i < length; i++) {
    const uint8_t next = (uint8_t)text[i];
    if ((next & 0xc0) != 0x80) return 0;
    c = c << 6 | (next & 0x3fu);
  }
  return c >= least[length] && is_shown(c) ? length : 0;
}

bool sml_text_is_plain(const char *text, size_t num_bytes) {
  for (size_t at = 0; at < num_bytes;) {
    const size_t length = plain_bytes(text + at, num_bytes - at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

void sml_text_make_plain(char *text) {
  const size_t num_bytes = strlen(text);
  for (size_t at = 0; at < num_bytes;) {
    const size_t length = plain_bytes(text + at, num_bytes - at);
    if (length == 0) text[at] = (uint8_t)text[at] < 0x80 ? ' ' : '?';
    at += length > 0 ? length : 1;
  }
}

bool sml_text_is_loopback(const char *address) {
  return strncmp(address, "127.", 4) == 0 || strncmp(address, "[::1]", 5) == 0 ||
         strncmp(address, "[::ffff:127.", 12) == 0;
}

bool sml_text_lists(const char *list, const char *word) {
  const size_t word_bytes = strlen(word);
  while (list != NULL && list[0] != 0) {
    const size_t num_bytes = strcspn(list, ",");
    if (num_bytes == word_bytes && memcmp(list, word, num_bytes) == 0) return true;
    list += num_bytes + (list[num_bytes] == ',');
  }
  return false;
}

bool sml_text_is_name_byte(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == ':' || c == '/' || c == '-';
}

uint32_t sml_text_distance(const char *a, const char *b) {
  uint32_t row[64];
  const uint32_t num_b = (uint32_t)sml_min_u64(strlen(b), SML_ARRAY_LEN(row) - 1);
  for (uint32_t j = 0; j <= num_b; j++) row[j] = j;
  for (uint32_t i = 0; a[i]; i++) {
    uint32_t diagonal = row[0];
    row[0] = i + 1;
    for (uint32_t j = 0; j < num_b; j++) {
      const uint32_t changed = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = sml_min_u32(changed, sml_min_u32(diagonal, row[j]) + 1);
    }
  }
  return row[num_b];
}

const char *sml_text_age(char *text, size_t room, double seconds) {
  if (seconds < 0) snprintf(text, room, "-");
  else if (seconds < 10) snprintf(text, room, "%.1f s", seconds);
  else if (seconds < 120) snprintf(text, room, "%.0f s", seconds);
  else if (seconds < 7200) snprintf(text, room, "%.0f min", seconds / 60);
  else if (seconds < 172800) snprintf(text, room, "%.0f h", seconds / 3600);
  else snprintf(text, room, "%.0f d", seconds / 86400);
  return text;
}
