/* SPDX-License-Identifier: Apache-2.0 */
#include "switchd/http_host.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void addresses_and_names(void **state) {
  (void)state;
  static const struct {
    const char *host, *names;
    bool is_ours;
  } cases[] = {
      {"127.0.0.1", NULL, true},
      {"127.0.0.1:9477", NULL, true},
      {"192.0.2.1:80", "agg", true},
      {"[::1]", NULL, true},
      {"[2001:db8::1]:9477", NULL, true},
      {"localhost", NULL, true},
      {"LocalHost:9477", NULL, true},
      {"localhost.", NULL, true},
      {"agg", "agg", true},
      {"agg.example.org:9477", "agg,agg.example.org", true},
      {"AGG.example.org.", "agg,agg.example.org", true},
      {"agg", NULL, false},
      {"evil.example", NULL, false},
      {"evil.example:9477", "agg", false},
      {"ag", "agg", false},
      {"aggg", "agg", false},
      {"agg,", "agg,", false},
      {"", "agg", false},
      {".", "agg", false},
      {":9477", "agg", false},
      {"127.0.0.1.evil.example", NULL, false},
      {"127.0.0.1:80:80", NULL, false},
      {"127.0.0.1:80@evil.example", NULL, false},
      {"127.1", NULL, false},
      {"0x7f000001", NULL, false},
      {"::1", NULL, false},
      {"[::1", NULL, false},
      {"[::1]x", NULL, false},
      {"[evil.example]", NULL, false},
      {"[127.0.0.1]", NULL, false},
      {"localhost.evil.example", NULL, false},
      {"[1111:2222:3333:4444:5555:6666:7777:8888:9999:aaaa:bbbb:cccc:dddd]", NULL, false},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(cases); i++)
    if (sml_http_host_is_ours(cases[i].host, cases[i].names) != cases[i].is_ours) fail_msg("'%s'", cases[i].host);
}

static void lists_of_names(void **state) {
  (void)state;
  static const char *const good[] = {"agg", "agg,agg.example.org", "a_b-c.d"};
  static const char *const bad[] = {"",      ",",        "agg,",       ",agg", "agg,,b",
                                    "agg b", "agg:9477", "http://agg", ".agg", "agg."};
  for (size_t i = 0; i < SML_ARRAY_LEN(good); i++) assert_true(sml_http_host_names_are_valid(good[i]));
  for (size_t i = 0; i < SML_ARRAY_LEN(bad); i++)
    if (sml_http_host_names_are_valid(bad[i])) fail_msg("'%s'", bad[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(addresses_and_names), cmocka_unit_test(lists_of_names)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
