/* SPDX-License-Identifier: Apache-2.0 */
#include "aggd/network.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static bool has(const char *network, const char *addr) {
  struct sml_network n;
  struct sml_addr a;
  char reason[128], with_port[64];
  snprintf(with_port, sizeof with_port, strchr(addr, ':') ? "[%s]:9" : "%s:9", addr);
  assert_true(sml_network_parse(network, &n));
  assert_true(sml_addr_parse(with_port, 0, &a, reason, sizeof reason));
  return sml_network_has(&n, &a);
}

static void networks(void **state) {
  (void)state;
  static const struct {
    const char *network, *addr;
    bool has;
  } rows[] = {
      {"10.0.0.0/8", "10.255.1.2", true},
      {"10.0.0.0/8", "11.0.0.1", false},
      {"10.1.2.3/8", "10.9.9.9", true},
      {"192.0.2.7", "192.0.2.7", true},
      {"192.0.2.7", "192.0.2.6", false},
      {"192.0.2.8/31", "192.0.2.9", true},
      {"192.0.2.8/31", "192.0.2.10", false},
      {"0.0.0.0/0", "203.0.113.9", true},
      {"0.0.0.0/0", "2001:db8::1", false},
      {"::/0", "2001:db8::1", true},
      {"::/0", "203.0.113.9", true},
      {"2001:db8::/33", "2001:db8:7fff::1", true},
      {"2001:db8::/33", "2001:db8:8000::1", false},
      {"2001:db8::1", "2001:db8::1", true},
      {"2001:db8::1", "2001:db8::2", false},
      {"10.0.0.0/8", "::ffff:10.1.1.1", true},
      {"127.0.0.0/8", "::1", false},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++)
    if (has(rows[i].network, rows[i].addr) != rows[i].has) fail_msg("%s, %s", rows[i].network, rows[i].addr);
}

static void what_is_none(void **state) {
  (void)state;
  static const char *const texts[] = {"",
                                      "10",
                                      "10.0.0.0/",
                                      "10.0.0.0/33",
                                      "10.0.0.0/-1",
                                      "10.0.0/8",
                                      "10.0.0.0/8x",
                                      "2001:db8::/129",
                                      "host/8",
                                      "/8",
                                      "10.0.0.0/ 8",
                                      "10.0.0.0/99999999999999999999",
                                      "1111:2222:3333:4444:5555:6666:7777:8888:9999"};
  struct sml_network n;
  for (size_t i = 0; i < SML_ARRAY_LEN(texts); i++)
    if (sml_network_parse(texts[i], &n)) fail_msg("'%s' is a network", texts[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(networks),
      cmocka_unit_test(what_is_none),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
