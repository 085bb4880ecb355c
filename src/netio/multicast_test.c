/* SPDX-License-Identifier: Apache-2.0
 * Ranges of groups: texts, words of messages, and which group is which job's. */
#include "netio/netio.h"

#include "netio/test_support.h"

static void expect_group(const struct sml_multicast *m, uint32_t job, uint32_t lane, const char *text) {
  struct sml_addr group;
  char got[64];
  assert_true(sml_multicast_group(m, job, lane, &group));
  sml_addr_format(&group, got, sizeof got);
  assert_string_equal(got, text);
  assert_true(sml_multicast_is_group(&group));
}

static void test_ranges(void **state) {
  (void)state;
  static const struct {
    const char *text;
    uint32_t num_groups;
    const char *first, *last; /* the last job's, lane 3 */
  } cases[] = {
      {"239.192.7.0", 64, "239.192.7.0:28879", "239.192.7.63:28882"},
      {"239.192.7.250/16", 16, "239.192.7.250:28879", "239.192.8.9:28882"},
      {"239.192.7.1:4000/1", 1, "239.192.7.1:4000", "239.192.7.1:4003"},
      {"ff15::7:0/4", 4, "[ff15::7:0]:28879", "[ff15::7:3]:28882"},
      {"[ff15::7:0]:65520/65536", 65536, "[ff15::7:0]:65520", "[ff15::7:ffff]:65523"},
      {"239.255.255.255/1", 1, "239.255.255.255:28879", "239.255.255.255:28882"},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(cases); i++) {
    struct sml_multicast m = {.num_groups = 0};
    struct sml_addr group;
    char error[160] = "";
    if (!sml_multicast_parse(cases[i].text, &m, error, sizeof error)) fail_msg("%s: %s", cases[i].text, error);
    assert_int_equal(m.num_groups, cases[i].num_groups);
    expect_group(&m, 0, 0, cases[i].first);
    expect_group(&m, m.num_groups - 1, 3, cases[i].last);
    assert_false(sml_multicast_group(&m, m.num_groups, 0, &group));
  }
  const struct sml_multicast none = {.num_groups = 64};
  struct sml_addr group;
  assert_false(sml_multicast_group(&none, 0, 0, &group));
}

static void test_what_is_no_range(void **state) {
  (void)state;
  static const char *const texts[] = {"",
                                      "192.0.2.1",
                                      "ff15::/0",
                                      "239.1.2.3/",
                                      "239.1.2.3/65537",
                                      "239.1.2.3/-1",
                                      "239.1.2.3/x",
                                      "239.1.2.3:0",
                                      "239.1.2.3:65521",
                                      "239.255.255.255/2",
                                      "::1",
                                      "nowhere.invalid./2",
                                      "ff15::ffff:ffff:ffff:ffff/2",
                                      "239.1.2.3/4/5"};
  for (size_t i = 0; i < SML_ARRAY_LEN(texts); i++) {
    struct sml_multicast m = {.num_groups = 0};
    char error[160] = "";
    if (sml_multicast_parse(texts[i], &m, error, sizeof error)) fail_msg("'%s' was taken", texts[i]);
    assert_true(error[0] != 0);
  }
}

static void test_words(void **state) {
  (void)state;
  struct sml_addr group;
  const uint64_t v4[2] = {0, 0xffffefc00701}, v6[2] = {0xff15000000000000, 7}, host[2] = {0, 0xffffc0000201},
                 none[2] = {0, 0};
  char text[64];
  assert_true(sml_multicast_from_words(v4, 28879, &group));
  sml_addr_format(&group, text, sizeof text);
  assert_string_equal(text, "239.192.7.1:28879");
  uint64_t words[2];
  sml_multicast_to_words(&group, words);
  assert_memory_equal(words, v4, sizeof words);
  assert_true(sml_multicast_from_words(v6, 1, &group));
  sml_multicast_to_words(&group, words);
  assert_memory_equal(words, v6, sizeof words);
  assert_false(sml_multicast_from_words(v4, 0, &group));
  assert_false(sml_multicast_from_words(host, 1, &group));
  assert_false(sml_multicast_from_words(none, 1, &group));
}

static void test_interfaces(void **state) {
  (void)state;
  uint32_t by_name = 0, by_address = 0;
  assert_true(sml_multicast_find_interface("lo", &by_name));
  assert_true(sml_multicast_find_interface("127.0.0.1", &by_address));
  assert_true(by_name != 0 && by_name == by_address);
  assert_false(sml_multicast_find_interface("no-such-interface", &by_name));
  assert_false(sml_multicast_find_interface("192.0.2.77", &by_name));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_ranges), cmocka_unit_test(test_what_is_no_range),
                                     cmocka_unit_test(test_words), cmocka_unit_test(test_interfaces)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
