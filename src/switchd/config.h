/* SPDX-License-Identifier: Apache-2.0
 * A configuration file as sections and lines, in the order of the file. What they mean is settings.c's business. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sml_config_line {
  char *section;      /* "": none yet */
  char *name, *value; /* NULL: the section begins here */
  uint32_t number;    /* from 1 */
};
/* A line that is none. */
struct sml_config_problem {
  const char *text;
  uint32_t number;
};
#define SML_CONFIG_MAX_PROBLEMS 21u /* further ones are not kept */
struct sml_config {
  struct sml_config_line *lines;
  size_t num_lines;
  struct sml_config_problem problems[SML_CONFIG_MAX_PROBLEMS]; /* by number */
  uint32_t num_problems;
};

/* NULL: it cannot be read; error has one sentence that names the file. */
struct sml_config *sml_config_read(const char *path, char *error, size_t error_bytes);
void sml_config_free(struct sml_config *config); /* NULL: nothing */
