/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/status/screen.h"

#define INDENT 2u

/* In UTF-8: what continues a character takes none; wide ones begin behind U+1000. */
static uint32_t width_of(char c) {
  const uint8_t byte = (uint8_t)c;
  return (byte & 0xc0) == 0x80 ? 0 : byte > 0xe0 ? 2 : 1;
}

uint32_t sml_screen_width(const char *text, size_t num_bytes) {
  uint32_t width = 0;
  for (size_t i = 0; i < num_bytes; i++) width += width_of(text[i]);
  return width;
}

/* How many bytes go on a line: to the last space that fits, or what fits. At least a character. */
static size_t bytes_that_fit(const char *text, size_t num_bytes, uint32_t columns) {
  uint32_t width = 0;
  size_t end = 0, space = 0;
  for (; end < num_bytes; end++) {
    width += width_of(text[end]);
    if (width > columns && end > 0 && width_of(text[end]) > 0) break;
    if (text[end] == ' ') space = end;
  }
  if (end == num_bytes || text[end] == ' ') return end;
  return space > 0 ? space : end;
}

static void wrap_line(FILE *stream, const char *line, size_t num_bytes, uint32_t columns) {
  const uint32_t indent = columns > 10 * INDENT ? INDENT : 0;
  bool is_first = true;
  do {
    const uint32_t before = is_first ? 0 : indent;
    const size_t n = bytes_that_fit(line, num_bytes, columns - before);
    fprintf(stream, "%*s%.*s\n", (int)before, "", (int)n, line);
    line += n, num_bytes -= n;
    while (num_bytes > 0 && *line == ' ') line++, num_bytes--;
    is_first = false;
  } while (num_bytes > 0);
}

void sml_screen_wrap(FILE *stream, const char *text, uint32_t columns) {
  while (*text) {
    const size_t num_bytes = strcspn(text, "\n");
    if (columns == 0) fprintf(stream, "%.*s\n", (int)num_bytes, text);
    else wrap_line(stream, text, num_bytes, columns);
    text += num_bytes + (text[num_bytes] != 0);
  }
}

void sml_screen_cut(FILE *stream, const char *line, size_t num_bytes, uint32_t first, uint32_t columns) {
  const uint32_t width = sml_screen_width(line, num_bytes);
  const bool has_left = columns > 2 && first > 0 && width > 0, has_right = columns > 2 && width > first + columns;
  const uint32_t from = first + has_left, to = first + columns - has_right;
  uint32_t at = 0, shown = from; /* columns of the line */
  bool is_shown = false;
  if (has_left) fputc('<', stream);
  for (size_t i = 0; i < num_bytes; i++) {
    const uint32_t w = width_of(line[i]);
    if (w > 0) is_shown = at >= from && at + w <= to;
    if (w > 0 && is_shown) {
      while (shown < at) fputc(' ', stream), shown++; /* half of a wide one */
      shown += w;
    }
    if (is_shown) fputc(line[i], stream);
    at += w;
  }
  while (has_right && shown < to) fputc(' ', stream), shown++;
  if (has_right) fputc('>', stream);
}
