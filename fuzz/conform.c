/* SPDX-License-Identifier: Apache-2.0
 * Texts of conformance vectors, and what is made of those that can be read: each packet is bound to a job's numbers,
 * and compared with the bytes of the text itself. */
#include "cli/conform/conform.h"

#include "fuzz/fuzz.h"

static void use(const struct sml_conform_packet *packet, const struct sml_conform_binding *b, const uint8_t *data,
                uint32_t num_bytes) {
  static uint8_t frame[SML_CONFORM_MAX_FRAME_BYTES];
  char text[100];
  const uint32_t frame_bytes = sml_conform_pack(packet, b, frame);
  CHECK(frame_bytes <= sizeof frame, "%u bytes", frame_bytes);
  (void)sml_conform_compare(packet, b, 1, data, num_bytes);
  if (frame_bytes > 0) (void)sml_conform_compare(packet, b, 1, frame, frame_bytes);
  sml_conform_describe(data, num_bytes, text, sizeof text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  struct sml_conform_suite suite = {0};
  char error[256] = "";
  char *text = fuzz_text(data, num_bytes);
  const bool is_ok = sml_conform_read(&suite, text, num_bytes, error, sizeof error);
  CHECK(is_ok || error[0] != 0, "no reason is given");
  for (uint32_t i = 0; i < suite.num_vectors; i++) {
    const struct sml_conform_vector *v = &suite.vectors[i];
    for (uint32_t k = 0; is_ok && k < v->num_steps; k++) {
      const struct sml_conform_step *step = &v->steps[k];
      const struct sml_conform_binding b = {.job = 3,
                                            .epoch = 5,
                                            .first_phase = 2,
                                            .world_size = 3,
                                            .num_slots = 4,
                                            .chunk_bytes = 64,
                                            .is_checked = k % 2 == 0,
                                            .seal = {.is_keyed = k % 3 == 0, .mask = k},
                                            .is_switch = v->is_switch};
      use(&step->packet, &b, data, (uint32_t)num_bytes);
      for (uint32_t o = 0; o < step->num_out; o++) use(&step->out[o], &b, data, (uint32_t)num_bytes);
    }
  }
  sml_conform_free(&suite);
  free(text);
  return 0;
}
