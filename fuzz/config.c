/* SPDX-License-Identifier: Apache-2.0
 * The daemon's configuration file. Input: the file, and behind a byte of 0 what stands there when it is read again. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz/fuzz.h"
#include "switchd/settings.h"

static void check_settings(const struct sml_settings *s) {
  const struct sml_aggd_options *o = &s->aggd;
  CHECK(o->num_lanes >= 1 && o->num_lanes <= SML_MAX_LANES, "%u lanes", o->num_lanes);
  CHECK(o->listen.num_bytes != 0, "no address");
  CHECK(s->http == NULL || s->http_addr.num_bytes != 0, "no address for HTTP");
  CHECK(s->dataplane == SML_SOFTWARE || o->packet_lanes != 0, "a switch without its format");
  for (uint32_t i = 0; i < o->num_keys; i++)
    CHECK((o->keys[i].key.k0 | o->keys[i].key.k1) != 0 && o->keys[i].name[0] != 0, "key %u", i);
}

/* path: kept by reference. */
static bool read_file(const uint8_t *text, size_t num_bytes, char path[64], struct sml_settings *settings_out) {
  char error[512] = "", *arguments[] = {"switchmld", "--config", path, NULL};
  const int fd = memfd_create("config", MFD_CLOEXEC);
  CHECK(fd >= 0 && (num_bytes == 0 || write(fd, text, num_bytes) == (ssize_t)num_bytes), "no memory file");
  snprintf(path, 64, "/proc/self/fd/%d", fd);
  const int status = sml_settings_read(3, arguments, false, settings_out, error, sizeof error);
  close(fd);
  CHECK(status >= 0 && status <= 2, "status %d", status);
  CHECK(status == 0 || (error[0] != 0 && strnlen(error, sizeof error) < sizeof error), "no reason given");
  if (status == 0) check_settings(settings_out);
  return status == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  struct sml_settings first, second;
  char text[256], first_path[64], second_path[64];
  const uint8_t *end = num_bytes == 0 ? NULL : memchr(data, 0, num_bytes);
  const size_t first_bytes = end == NULL ? num_bytes : (size_t)(end - data);
  const bool is_first = read_file(data, first_bytes, first_path, &first);
  if (is_first && end != NULL) {
    const bool is_second = read_file(end + 1, num_bytes - first_bytes - 1, second_path, &second);
    if (is_second) sml_settings_compare(&first, &second, text, sizeof text);
    sml_settings_clear(&second);
  }
  sml_settings_clear(&first);
  return 0;
}
