/* SPDX-License-Identifier: Apache-2.0
 * The options of a command, as one table: what --help says of each, what texts it takes, and where in the command's own
 * struct the value goes. argp does the rest (help, usage, abbreviations). A configuration file reads the same table. */
#pragma once

#include "base/base.h"

enum sml_option_kind {
  SML_OPTION_FLAG = 0, /* bool: it is there, or "yes" or "no" in a file */
  SML_OPTION_TEXT,     /* const char *, kept by reference */
  SML_OPTION_NUMBER,   /* an unsigned integer of any size: a whole number from min to max; max 0: no limit */
  SML_OPTION_REAL,     /* double: from min to max, times scale */
  SML_OPTION_SCALED,   /* uint64_t: a number from min to max, times scale, as seconds in nanoseconds */
  SML_OPTION_WORD,     /* an enum: the number of the text in `words` */
  SML_OPTION_OTHER,    /* what `take` makes of it */
  SML_OPTION_ALIAS,    /* another name of the option before it */
};

struct sml_option {
  const char *name;
  int letter;        /* as in -j; 0: none */
  const char *value; /* what --help calls its value; NULL: it has none */
  const char *help;  /* NULL: --help keeps silent about it. Without a name: a title of the group */
  int group;         /* --help shows them by group */
  enum sml_option_kind kind;
  size_t offset, num_bytes; /* of what it sets */
  double min, max;
  double scale;
  const char *const *words; /* NULL ends them */
  /* NULL: it is taken, else a sentence that says why not. */
  const char *(*take)(void *options, const char *text);
  uint32_t marks; /* the owner's own */
};

/* What stands in a row of a table behind its group. SML_OPTIONS: the struct, defined by the file that has the table. */
#define SML_TAKES(what, field) \
  .kind = SML_OPTION_##what, .offset = offsetof(SML_OPTIONS, field), .num_bytes = sizeof(((SML_OPTIONS *)NULL)->field)
#define SML_FLAG(field) SML_TAKES(FLAG, field)
#define SML_TEXT(field) SML_TAKES(TEXT, field)
#define SML_NUMBER(field, low, high) SML_TAKES(NUMBER, field), .min = low, .max = high
#define SML_REAL(field, low, high, factor) SML_TAKES(REAL, field), .min = low, .max = high, .scale = factor
#define SML_SCALED(field, low, high, factor) SML_TAKES(SCALED, field), .min = low, .max = high, .scale = factor
#define SML_SECONDS(field, low, high) SML_SCALED(field, low, high, (double)SML_NS_PER_S)
#define SML_WORD(field, names) SML_TAKES(WORD, field), .words = names
#define SML_TAKEN_BY(function) .kind = SML_OPTION_OTHER, .take = function

/* All arguments that are no options, in argv. */
struct sml_arguments {
  char **texts;
  uint32_t num;
};

struct sml_option_parser {
  const struct sml_option *table;  /* a name and a help of NULL end it */
  const struct sml_option *common; /* further ones, that several commands have; NULL: none */
  size_t common_offset;            /* of their struct within the command's */
  const char *doc, *arguments_doc;
  /* Other arguments go to as many `const char *` from there on, or, where this is UINT32_MAX, to a struct
   * sml_arguments. */
  size_t arguments_offset;
  uint32_t max_arguments;
  const char *one_only; /* the sentence about one too many; NULL: it is quoted */
  /* What the values mean together: NULL, or a sentence that says what is wrong. */
  const char *(*check)(void *options);
  /* Instead of all the above: the option's number in the table and its text, "yes" for a flag. False: no memory. */
  bool (*note)(void *options, uint32_t number, const char *text);
};

/* Reads a command line. It ends the process with status 2 and a sentence if that is wrong, and with 0 after --help. */
void sml_options_parse(const struct sml_option_parser *parser, int argc, char **argv, void *options);
/* Gives one option its value. False: error says what the text is not. */
bool sml_option_take(const struct sml_option *option, const char *text, void *options, char *error, size_t error_bytes);

/* A decimal number up to `max`, neither sign nor space before it, the end of which is left in *end_out. */
bool sml_number_parse(const char *text, uint64_t max, uint64_t *value_out, const char **end_out);
