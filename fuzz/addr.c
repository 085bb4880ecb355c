/* SPDX-License-Identifier: Apache-2.0
 * Addresses from text. Input: a default port, then the text. Names are not resolved (fuzz/numeric.c). */
#include "netio/addr.h"

#include "fuzz/fuzz.h"

/* The port that is written, else the default. */
static uint32_t port_in(const char *text, uint16_t default_port) {
  const char *colon = strrchr(text, ':');
  if (text[0] == '[' ? colon[-1] != ']' : colon == NULL || strchr(text, ':') != colon) return default_port;
  uint64_t port = 0;
  for (const char *c = colon + 1; *c != 0; c++) port = sml_min_u64(port * 10 + (uint64_t)(*c - '0'), UINT32_MAX);
  return (uint32_t)port;
}

static void check_parsed(const struct sml_addr *addr, const char *text) {
  char shown[96], shown_again[96], error[128];
  struct sml_addr again;
  sml_addr_format(addr, shown, sizeof shown);
  CHECK(strnlen(shown, sizeof shown) < sizeof shown, "%s", text);
  CHECK(sml_addr_parse(shown, 0, &again, error, sizeof error), "%s is shown as %s: %s", text, shown, error);
  sml_addr_format(&again, shown_again, sizeof shown_again);
  CHECK(strcmp(shown, shown_again) == 0, "%s is shown as %s, then as %s", text, shown, shown_again);
  const bool is_mapped = addr->num_bytes != again.num_bytes; /* IPv4 in IPv6 */
  CHECK(is_mapped || sml_addr_equal(addr, &again), "%s is shown as %s", text, shown);
  sml_addr_set_port(&again, (uint16_t)(sml_addr_port(addr) ^ 0x1234));
  CHECK(sml_addr_port(&again) == (uint16_t)(sml_addr_port(addr) ^ 0x1234), "%s", text);
  CHECK(!sml_addr_equal(addr, &again), "%s", text);
  for (size_t room = 1; room < sizeof shown; room += 7) {
    char *small = malloc(room);
    CHECK(small != NULL, "no memory");
    sml_addr_format(addr, small, room);
    CHECK(strnlen(small, room) < room, "%s", text);
    free(small);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  struct fuzz_input in = {data, data + num_bytes};
  struct sml_addr addr;
  char error[64];
  const uint16_t default_port = fuzz_u16(&in);
  char *text = fuzz_text(in.at, (size_t)(in.end - in.at));
  memset(error, 'x', sizeof error);
  if (sml_addr_parse(text, default_port, &addr, error, sizeof error)) {
    CHECK(sml_addr_port(&addr) == port_in(text, default_port), "%s has port %u", text, sml_addr_port(&addr));
    check_parsed(&addr, text);
  } else {
    CHECK(error[0] != 0 && strnlen(error, sizeof error) < sizeof error, "no reason given");
  }
  free(text);
  return 0;
}
