/* SPDX-License-Identifier: Apache-2.0
 * Layer tables of `switchml bench training`, and the plans that are made of them. Input: a byte of the plan's shape,
 * then the table. */
#include "cli/training/training.h"

#include "fuzz/fuzz.h"

static void check_plan(const struct sml_training_model *model, const struct sml_training_plan *plan) {
  uint64_t num_elems = 0;
  CHECK(plan->num_sends >= 1 && plan->num_sends <= SML_TRAINING_MAX_SENDS, "%u sends", plan->num_sends);
  for (uint32_t i = 0; i < plan->num_sends; i++) {
    const struct sml_training_send *send = &plan->sends[i];
    CHECK(send->num_elems > 0 && send->first_elem <= plan->num_elems &&
              send->num_elems <= plan->num_elems - send->first_elem,
          "send %u", i);
    CHECK(send->first_layer < plan->num_layers, "send %u", i);
    num_elems += send->num_elems;
  }
  CHECK(num_elems == plan->num_elems && num_elems == model->num_parameters, "not all is sent, or some twice");
  for (uint32_t i = 0; i < plan->num_layers; i++) CHECK(plan->num_needed[i] <= plan->num_sends, "layer %u", i);
}

static void use(const struct sml_training_model *model, uint8_t kind) {
  const struct sml_training_link link = {.bits_per_s = 1e10, .share = 1, .floor = 1.05, .serial_s = 1e-5};
  const struct sml_training_shape shape = {.samples_per_s = 100,
                                           .batch = model->batch,
                                           .time_scale = 1,
                                           .bucket_bytes = kind & 1 ? 1u << 20 : 0,
                                           .has_priority = (kind & 2) != 0,
                                           .piece_bytes = 4u << 20,
                                           .link = link};
  struct sml_training_plan plan;
  struct sml_training_prediction p;
  if (sml_training_plan_make(&plan, model, &shape)) {
    check_plan(model, &plan);
    sml_training_predict(&plan, &link, shape.time_scale, &p);
    CHECK(sml_training_regime(&p) != NULL, " ");
  }
  sml_training_plan_free(&plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  struct fuzz_input in = {data, data + num_bytes};
  struct sml_training_model model;
  const uint8_t kind = fuzz_u8(&in);
  char *text = fuzz_text(in.at, (size_t)(in.end - in.at));
  const char *wrong = sml_training_model_parse(&model, "fuzz", text);
  CHECK(wrong == NULL || wrong[0] != 0, "no reason given");
  CHECK(sml_training_find_speed(&model, "no such one") == NULL || wrong != NULL, " ");
  if (wrong == NULL) use(&model, kind);
  sml_training_model_free(&model);
  free(text);
  return 0;
}
