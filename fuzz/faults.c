/* SPDX-License-Identifier: Apache-2.0
 * The text of fault options. Input: the text. */
#include "fuzz/fuzz.h"
#include "netio/netio.h"

static bool is_probability(double value) {
  return value >= 0 && value <= 1; /* no NaN either */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  struct sml_fault_options options;
  char error[96], *text = fuzz_text(data, num_bytes);
  memset(&options, 0xa5, sizeof options);
  memset(error, 'x', sizeof error);
  if (sml_faults_parse(text, &options, error, sizeof error)) {
    CHECK(is_probability(options.loss) && is_probability(options.duplicate), "%s", text);
    CHECK(is_probability(options.reorder) && is_probability(options.corrupt), "%s", text);
    CHECK(is_probability(options.mark), "%s", text);
    CHECK(options.reorder_frames <= 1024 && options.loss_burst_frames <= 1024, "%s", text);
    CHECK(options.drop == NULL && options.drop_user == NULL, "%s", text);
    const bool any =
        options.loss > 0 || options.duplicate > 0 || options.reorder > 0 || options.corrupt > 0 || options.mark > 0;
    CHECK(sml_faults_any(&options) == any, "%s", text);
  } else {
    CHECK(error[0] != 0 && strnlen(error, sizeof error) < sizeof error, "no reason given");
  }
  free(text);
  return 0;
}
