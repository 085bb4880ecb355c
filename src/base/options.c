/* SPDX-License-Identifier: Apache-2.0 */
#include "base/options.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_OPTIONS 64u /* of a command */
#define FIRST_KEY 0x100 /* beyond all letters */

/* ---- one value ---- */

bool sml_number_parse(const char *text, uint64_t max, uint64_t *value_out, const char **end_out) {
  if (*text < '0' || *text > '9') return false;
  char *end;
  errno = 0;
  const unsigned long long value = strtoull(text, &end, 10);
  if (errno != 0 || value > max) return false;
  *value_out = value;
  *end_out = end;
  return true;
}

static bool refuse(char *error, size_t error_bytes, const char *text, const char *what) {
  snprintf(error, error_bytes, "'%s' is %s", text, what);
  return false;
}

static void store(void *to, size_t num_bytes, uint64_t value) {
  switch (num_bytes) {
    case 1: *(uint8_t *)to = (uint8_t)value; return;
    case 2: *(uint16_t *)to = (uint16_t)value; return;
    case 4: *(uint32_t *)to = (uint32_t)value; return;
    default: SML_ASSERT(num_bytes == 8); *(uint64_t *)to = value;
  }
}

static bool take_number(const struct sml_option *o, const char *text, void *to, char *error, size_t error_bytes) {
  char what[96];
  uint64_t value;
  const char *end;
  const uint64_t max = o->max > 0 ? (uint64_t)o->max : UINT64_MAX >> (64 - 8 * o->num_bytes);
  if (sml_number_parse(text, max, &value, &end) && *end == 0 && value >= (uint64_t)o->min)
    return store(to, o->num_bytes, value), true;
  if (o->max > 0) snprintf(what, sizeof what, "not a number from %.0f to %.0f", o->min, o->max);
  else snprintf(what, sizeof what, "not a whole number from %.0f on", o->min);
  return refuse(error, error_bytes, text, what);
}

static bool take_real(const struct sml_option *o, const char *text, void *to, char *error, size_t error_bytes) {
  char *end, what[96];
  const double value = strtod(text, &end);
  if (end == text || *end != 0 || !(value >= o->min && value <= o->max)) {
    const char *unit = o->value != NULL && strcmp(o->value, "S") == 0 ? " of seconds" : "";
    snprintf(what, sizeof what, "not a number%s from %g to %g", unit, o->min, o->max);
    return refuse(error, error_bytes, text, what);
  }
  if (o->kind == SML_OPTION_REAL) *(double *)to = value * o->scale;
  else *(uint64_t *)to = (uint64_t)(value * o->scale);
  return true;
}

static bool take_word(const struct sml_option *o, const char *text, void *to, char *error, size_t error_bytes) {
  char what[256];
  size_t used = (size_t)snprintf(what, sizeof what, "not");
  for (uint64_t i = 0; o->words[i] != NULL; i++) {
    if (strcmp(o->words[i], text) == 0) return store(to, o->num_bytes, i), true;
    const char *before = i == 0 ? " " : o->words[i + 1] != NULL ? ", " : " or ";
    used += (size_t)snprintf(what + used, sizeof what - used, "%s%s", before, o->words[i]);
  }
  return refuse(error, error_bytes, text, what);
}

static bool take_flag(const char *text, void *to, char *error, size_t error_bytes) {
  *(bool *)to = strcmp(text, "yes") == 0;
  return *(bool *)to || strcmp(text, "no") == 0 || refuse(error, error_bytes, text, "not yes or no");
}

bool sml_option_take(const struct sml_option *o, const char *text, void *options, char *error, size_t error_bytes) {
  void *to = (char *)options + o->offset;
  const char *why = NULL;
  switch (o->kind) {
    case SML_OPTION_FLAG: return take_flag(text, to, error, error_bytes);
    case SML_OPTION_TEXT: *(const char **)to = text; return true;
    case SML_OPTION_NUMBER: return take_number(o, text, to, error, error_bytes);
    case SML_OPTION_REAL:
    case SML_OPTION_SCALED: return take_real(o, text, to, error, error_bytes);
    case SML_OPTION_WORD: return take_word(o, text, to, error, error_bytes);
    default: why = o->take(options, text);
  }
  if (why != NULL) snprintf(error, error_bytes, "'%s': %s", text, why);
  return why == NULL;
}

/* ---- a command line ---- */

struct reading {
  const struct sml_option_parser *parser;
  void *options;
  uint32_t num_own; /* of the table; those in common follow */
  struct argp_option list[MAX_OPTIONS + 1];
};

static uint32_t add_to_list(struct reading *r, uint32_t at, const struct sml_option *table) {
  for (; table->name != NULL || table->help != NULL; table++, at++) {
    SML_ASSERT(at < MAX_OPTIONS);
    const bool is_alias = table->kind == SML_OPTION_ALIAS, has_no_key = is_alias || table->name == NULL;
    r->list[at] = (struct argp_option){.name = table->name,
                                       .key = table->letter != 0 || has_no_key ? table->letter : FIRST_KEY + (int)at,
                                       .arg = table->value,
                                       .flags = is_alias              ? OPTION_ALIAS
                                                : table->help == NULL ? OPTION_HIDDEN
                                                                      : 0,
                                       .doc = table->help,
                                       .group = table->group};
  }
  return at;
}

static void take_option(const struct reading *r, uint32_t i, const char *text, const struct argp_state *state) {
  const struct sml_option_parser *p = r->parser;
  const bool is_own = i < r->num_own;
  const struct sml_option *o = is_own ? &p->table[i] : &p->common[i - r->num_own];
  char error[512];
  if (p->note != NULL) {
    if (!p->note(r->options, i, text)) argp_failure(state, 1, 0, "out of memory");
  } else if (!sml_option_take(o, text, (char *)r->options + (is_own ? 0 : p->common_offset), error, sizeof error)) {
    argp_error(state, "--%s: %s", o->name, error);
  }
}

static void take_argument(const struct reading *r, char *text, const struct argp_state *state) {
  const struct sml_option_parser *p = r->parser;
  void *to = (char *)r->options + p->arguments_offset;
  if (p->max_arguments == UINT32_MAX) {
    struct sml_arguments *all = to;
    if (all->num++ == 0) all->texts = &state->argv[state->next - 1]; /* argp has moved the options before them */
  } else if (state->arg_num < p->max_arguments) {
    ((const char **)to)[state->arg_num] = text;
  } else if (p->one_only != NULL) {
    argp_error(state, "%s", p->one_only);
  } else {
    argp_error(state, "unexpected argument '%s'", text);
  }
}

static error_t take(int key, char *text, struct argp_state *state) {
  const struct reading *r = state->input;
  const char *wrong = NULL;
  if (key == ARGP_KEY_ARG) return take_argument(r, text, state), 0;
  if (key == ARGP_KEY_END && r->parser->check != NULL) wrong = r->parser->check(r->options);
  if (wrong != NULL) argp_error(state, "%s", wrong);
  for (uint32_t i = 0; r->list[i].name != NULL || r->list[i].doc != NULL; i++)
    if (r->list[i].key == key && key > 0) return take_option(r, i, text != NULL ? text : "yes", state), 0;
  return ARGP_ERR_UNKNOWN;
}

void sml_options_parse(const struct sml_option_parser *parser, int argc, char **argv, void *options) {
  struct reading r = {.parser = parser, .options = options};
  r.num_own = add_to_list(&r, 0, parser->table);
  if (parser->common != NULL) (void)add_to_list(&r, r.num_own, parser->common);
  const bool has_options = r.list[0].name != NULL || r.list[0].doc != NULL; /* glibc's help leaks for an empty list */
  const struct argp argp = {
      .options = has_options ? r.list : NULL, .parser = take, .doc = parser->doc, .args_doc = parser->arguments_doc};
  argp_err_exit_status = 2;
  if (argp_parse(&argp, argc, argv, 0, NULL, &r) != 0) exit(2);
}
