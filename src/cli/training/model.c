/* SPDX-License-Identifier: Apache-2.0
 * A layer table from its text. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/training/training.h"

#define MAX_ELEMS (UINT64_C(1) << 40)

struct reader {
  struct sml_training_model *model;
  uint64_t num_elems; /* read so far */
  uint32_t layer_room, tensor_room;
  const char *wrong;
};

static char sentence[256];

/* The next word of a line, which is cut there; NULL: no more. */
static char *take_word(char **line) {
  char *word = *line + strspn(*line, " \t\r");
  if (*word == '\0') return NULL;
  char *end = word + strcspn(word, " \t\r");
  *line = *end ? end + 1 : end;
  *end = '\0';
  return word;
}

static bool to_count(const char *text, uint64_t max, uint64_t *value_out) {
  if (!text || *text < '0' || *text > '9') return false;
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  if (errno != 0 || *end != '\0' || value > max) return false;
  *value_out = value;
  return true;
}

static bool to_real(const char *text, double min, double *value_out) {
  if (!text) return false;
  char *end;
  double value = strtod(text, &end);
  if (end == text || *end != '\0' || !isfinite(value) || value < min) return false;
  *value_out = value;
  return true;
}

static bool fail(struct reader *r, const char *wrong) {
  r->wrong = wrong;
  return false;
}

static bool add_tensor(struct reader *r, uint64_t num_elems) {
  struct sml_training_model *m = r->model;
  if (m->num_tensors == r->tensor_room) {
    uint32_t room = sml_max_u32(64, 2 * r->tensor_room);
    uint64_t *larger = room > 65536 ? NULL : realloc(m->tensor_elems, room * sizeof *larger);
    if (!larger) return fail(r, "too many tensors");
    m->tensor_elems = larger;
    r->tensor_room = room;
  }
  m->tensor_elems[m->num_tensors++] = num_elems;
  m->layers[m->num_layers - 1].num_tensors++;
  r->num_elems += num_elems;
  return r->num_elems <= MAX_ELEMS || fail(r, "more than 2^40 parameters");
}

static bool read_layer(struct reader *r, char *line) {
  struct sml_training_model *m = r->model;
  if (m->num_layers == r->layer_room) {
    uint32_t room = sml_max_u32(64, 2 * r->layer_room);
    struct sml_training_layer *larger = room > 65536 ? NULL : realloc(m->layers, room * sizeof *larger);
    if (!larger) return fail(r, "too many layers");
    m->layers = larger;
    r->layer_room = room;
  }
  struct sml_training_layer *layer = &m->layers[m->num_layers];
  memset(layer, 0, sizeof *layer);
  const char *name = take_word(&line), *flops = take_word(&line);
  if (!name || !to_real(flops, 0, &layer->flops)) return fail(r, "a layer has a name and FLOPs");
  snprintf(layer->name, sizeof layer->name, "%s", name);
  m->num_layers++;
  for (char *word; (word = take_word(&line)) != NULL;) {
    char *equals = strchr(word, '=');
    uint64_t num_elems;
    if (!equals || equals == word || !to_count(equals + 1, MAX_ELEMS, &num_elems) || num_elems == 0)
      return fail(r, "a layer's parameters are NAME=ELEMENTS");
    if (!add_tensor(r, num_elems)) return false;
  }
  return layer->num_tensors != 0 || fail(r, "a layer has a parameter at least");
}

static bool read_speed(struct reader *r, char *line) {
  struct sml_training_model *m = r->model;
  if (m->num_speeds == SML_TRAINING_MAX_GPUS) return fail(r, "there may be 8 speeds at most");
  struct sml_training_speed *speed = &m->speeds[m->num_speeds++];
  const char *gpu = take_word(&line), *rate = take_word(&line);
  if (!gpu || strlen(gpu) >= sizeof speed->gpu || !to_real(rate, 1e-6, &speed->samples_per_s))
    return fail(r, "a speed is a GPU's name and samples a second");
  snprintf(speed->gpu, sizeof speed->gpu, "%s", gpu);
  snprintf(speed->source, sizeof speed->source, "%s", line);
  return true;
}

static bool read_line(struct reader *r, char *line) {
  line[strcspn(line, "#")] = '\0';
  const char *key = take_word(&line);
  uint64_t number;
  if (!key || strcmp(key, "source") == 0) return true;
  if (strcmp(key, "layer") == 0) return read_layer(r, line);
  if (strcmp(key, "speed") == 0) return read_speed(r, line);
  if (strcmp(key, "parameters") == 0)
    return to_count(take_word(&line), MAX_ELEMS, &r->model->num_parameters) || fail(r, "no number of parameters");
  if (strcmp(key, "batch") == 0) {
    if (!to_count(take_word(&line), 1u << 30, &number) || number == 0) return fail(r, "no number of samples");
    r->model->batch = (uint32_t)number;
    return true;
  }
  return fail(r, "a line begins with source, parameters, batch, speed or layer");
}

static const char *check_whole(const struct reader *r) {
  const struct sml_training_model *m = r->model;
  if (m->num_layers == 0) return "there are no layers";
  double flops = 0;
  for (uint32_t i = 0; i < m->num_layers; i++) flops += m->layers[i].flops;
  if (!(flops > 0)) return "no layer has FLOPs, so that time cannot be shared out";
  if (m->num_parameters == 0 || m->num_parameters == r->num_elems) return NULL;
  snprintf(sentence, sizeof sentence, "the layers have %llu parameters, but the line `parameters` says %llu",
           (unsigned long long)r->num_elems, (unsigned long long)m->num_parameters);
  return sentence;
}

const char *sml_training_model_parse(struct sml_training_model *model_out, const char *name, const char *text) {
  memset(model_out, 0, sizeof *model_out);
  struct reader r = {.model = model_out};
  snprintf(model_out->name, sizeof model_out->name, "%s", name);
  model_out->batch = 64;
  for (uint32_t number = 1; *text != '\0'; number++) {
    char line[4096];
    size_t num_bytes = strcspn(text, "\n");
    if (num_bytes >= sizeof line) num_bytes = sizeof line - 1, r.wrong = "the line is too long";
    memcpy(line, text, num_bytes);
    line[num_bytes] = '\0';
    if (r.wrong || !read_line(&r, line)) {
      snprintf(sentence, sizeof sentence, "line %u: %s", number, r.wrong);
      return sentence;
    }
    text += num_bytes;
    text += *text == '\n';
  }
  const char *wrong = check_whole(&r);
  model_out->num_parameters = r.num_elems;
  return wrong;
}

void sml_training_model_free(struct sml_training_model *model) {
  free(model->layers);
  free(model->tensor_elems);
  memset(model, 0, sizeof *model);
}

const struct sml_training_speed *sml_training_find_speed(const struct sml_training_model *model, const char *gpu) {
  for (uint32_t i = 0; i < model->num_speeds; i++)
    if (strcmp(model->speeds[i].gpu, gpu) == 0) return &model->speeds[i];
  return NULL;
}
