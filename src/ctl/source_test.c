/* SPDX-License-Identifier: Apache-2.0
 * Sources of connections: which addresses are one, and how many may come how fast. */
#include "ctl/source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define S SML_NS_PER_S
#define IPV4 (UINT64_C(0xffff) << 48)

static struct sml_source_table *table;

static void begin(void) {
  free(table);
  table = calloc(1, sizeof *table);
  assert_non_null(table);
  table->seed = 42;
}

static void test_addresses(void **state) {
  (void)state;
  static const struct {
    const char *host;
    uint64_t source;
  } rows[] = {
      {"10.0.0.9", IPV4 | 0x0a000009},
      {"255.255.255.255", IPV4 | 0xffffffff},
      {"0.0.0.0", IPV4},
      {"[::ffff:10.0.0.9]", IPV4 | 0x0a000009},
      {"::ffff:a00:9", IPV4 | 0x0a000009},
      {"2001:db8:1:2:3:4:5:6", 0x20010db800010002},
      {"[2001:db8:1:2::6]", 0x20010db800010002},
      {"[2001:DB8:1:2:ffff::]", 0x20010db800010002},
      {"2001:db8::1", 0x20010db800000000},
      {"2001::1:2:3:4:5", 0x2001000000000001},
      {"fe80::1%eth0", 0xfe80000000000000},
      {"1:2:3:4:5:6:1.2.3.4", 0x0001000200030004},
      {"::", 0},
      {"::1", 0},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++)
    if (sml_source_of(rows[i].host) != rows[i].source)
      fail_msg("%s: %llx", rows[i].host, (unsigned long long)sml_source_of(rows[i].host));
}

static void test_other_texts(void **state) {
  (void)state;
  static const char *const texts[] = {"",
                                      "host",
                                      "1.2.3",
                                      "1.2.3.4.5",
                                      "256.1.1.1",
                                      "1.2.3.1234",
                                      "1:2:3",
                                      ":1",
                                      "1:",
                                      "1::2::3",
                                      "12345::",
                                      "g::",
                                      "::1.2.3",
                                      "1:2:3:4:5:6:7:8:9",
                                      "1:2:3:4:5:6:7:1.2.3.4",
                                      "1:2:3:4:5:6:7::8",
                                      "unix:7",
                                      ":::"};
  for (size_t i = 0; i < SML_ARRAY_LEN(texts); i++) {
    uint64_t source = sml_source_of(texts[i]);
    if (source >> 48 != 0xfffe) fail_msg("%s: %llx", texts[i], (unsigned long long)source);
    for (size_t j = 0; j < i; j++) assert_true(source != sml_source_of(texts[j]));
  }
}

static void test_loopback(void **state) {
  (void)state;
  static const char *const loopback[] = {"127.0.0.1", "127.8.9.1", "::1", "[::1]", "::ffff:127.0.0.1"};
  static const char *const others[] = {"126.0.0.1", "128.0.0.1", "10.0.0.1", "::1:0:0:0:1", "fe80::1", "host"};
  for (size_t i = 0; i < SML_ARRAY_LEN(loopback); i++) assert_true(sml_source_is_loopback(sml_source_of(loopback[i])));
  for (size_t i = 0; i < SML_ARRAY_LEN(others); i++) assert_false(sml_source_is_loopback(sml_source_of(others[i])));
}

static uint32_t count_admitted(const char *host, uint32_t num_tries, uint64_t now_ns) {
  uint32_t num_admitted = 0;
  for (uint32_t i = 0; i < num_tries; i++) num_admitted += sml_source_admit(table, sml_source_of(host), 10, now_ns);
  return num_admitted;
}

static void test_burst_then_rate(void **state) {
  (void)state;
  begin();
  uint64_t now_ns = 1000 * S;
  assert_int_equal(count_admitted("10.0.0.1", 1000, now_ns), 40);
  assert_int_equal(count_admitted("10.0.0.1", 1000, now_ns), 0);
  assert_int_equal(count_admitted("10.0.0.2", 1000, now_ns), 40); /* another's business */
  assert_int_equal(count_admitted("10.0.0.1", 1000, now_ns + S / 10 - 1), 0);
  assert_int_equal(count_admitted("10.0.0.1", 1000, now_ns + S / 10), 1);
  assert_int_equal(count_admitted("10.0.0.1", 1000, now_ns + S), 9);
  assert_int_equal(count_admitted("10.0.0.1", 1000, now_ns + 100 * S), 40); /* rest is not saved up */
  assert_int_equal(count_admitted("127.0.0.1", 1000, now_ns), 640);
}

static void test_one_ipv6_network_is_one_source(void **state) {
  (void)state;
  begin();
  uint32_t num_admitted = 0;
  for (uint32_t i = 0; i < 1000; i++) {
    char host[64];
    snprintf(host, sizeof host, "[2001:db8:1:2::%x]", i + 1);
    num_admitted += count_admitted(host, 1, 1000 * S);
  }
  assert_int_equal(num_admitted, 40);
}

/* Sources beyond the table: the busy ones keep their cells as long as less busy ones are there. */
static void test_many_sources(void **state) {
  (void)state;
  begin();
  struct sml_prng prng = {.state = 1};
  assert_int_equal(count_admitted("10.0.0.1", 1000, 1000 * S), 40);
  for (uint32_t i = 0; i < 100000; i++)
    sml_source_admit(table, IPV4 | 0x0b000000 | sml_prng_below(&prng, 1 << 24), 10, 1000 * S);
  assert_int_equal(count_admitted("10.0.0.1", 1000, 1000 * S), 0);
}

static void test_pace_does_not_wrap(void **state) {
  (void)state;
  uint64_t full_at_ns = 0;
  assert_true(sml_pace_admit(&full_at_ns, 10, 10, 0));
  assert_false(sml_pace_admit(&full_at_ns, 10, 10, 0));
  assert_true(sml_pace_admit(&full_at_ns, 10, 10, UINT64_MAX / 2));
  assert_false(sml_pace_admit(&full_at_ns, 10, 10, 5)); /* a clock that goes back gives nothing away */
}

static int tear_down(void **state) {
  (void)state;
  free(table);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_addresses),
      cmocka_unit_test(test_other_texts),
      cmocka_unit_test(test_loopback),
      cmocka_unit_test(test_burst_then_rate),
      cmocka_unit_test(test_one_ipv6_network_is_one_source),
      cmocka_unit_test(test_many_sources),
      cmocka_unit_test(test_pace_does_not_wrap),
  };
  return cmocka_run_group_tests(tests, NULL, tear_down);
}
