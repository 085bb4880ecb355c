/* SPDX-License-Identifier: Apache-2.0
 * Addresses: text to address and back, and everything that must be refused with a reason. */
#include "netio/addr.h"

#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/test_skip.h"
#include "netio/test_support.h"

/* The resolver knows one name more: this host is where ::1, 127.0.0.1 and ::1 are, in that order. */
#define BOTH_NAME "both.invalid"
typedef int resolve(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **results);

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **results) {
  resolve *real;
  *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
  if (strcmp(node, BOTH_NAME) != 0 || (hints->ai_flags & AI_NUMERICHOST)) return real(node, service, hints, results);
  struct addrinfo *v6[2];
  assert_int_equal(real("::1", service, hints, &v6[0]), 0);
  assert_int_equal(real("127.0.0.1", service, hints, &v6[0]->ai_next), 0);
  assert_int_equal(real("::1", service, hints, &v6[1]), 0);
  v6[0]->ai_next->ai_next = v6[1];
  *results = v6[0];
  return 0;
}

static void test_ipv4_comes_before_ipv6(void **state) {
  (void)state;
  struct sml_addr addr;
  char error[160], text[64];
  assert_true(sml_addr_parse(BOTH_NAME ":7", 0, &addr, error, sizeof error));
  sml_addr_format(&addr, text, sizeof text);
  assert_string_equal(text, "127.0.0.1:7");
}

static void test_good_texts(void **state) {
  (void)state;
  static const struct {
    const char *text;
    uint16_t default_port;
    const char *formatted;
    uint8_t num_bytes;
  } rows[] = {
      {"192.0.2.1:48879", 0, "192.0.2.1:48879", sizeof(struct sockaddr_in)},
      {"192.0.2.1", 7, "192.0.2.1:7", sizeof(struct sockaddr_in)},
      {"192.0.2.1:9", 7, "192.0.2.1:9", sizeof(struct sockaddr_in)},
      {"127.0.0.1:0", 0, "127.0.0.1:0", sizeof(struct sockaddr_in)},
      {"0.0.0.0:65535", 0, "0.0.0.0:65535", sizeof(struct sockaddr_in)},
      {"[::1]:48879", 0, "[::1]:48879", sizeof(struct sockaddr_in6)},
      {"[::1]", 5, "[::1]:5", sizeof(struct sockaddr_in6)},
      {"::1", 5, "[::1]:5", sizeof(struct sockaddr_in6)},
      {"::", 5, "[::]:5", sizeof(struct sockaddr_in6)},
      {"[2001:DB8::7]:1", 0, "[2001:db8::7]:1", sizeof(struct sockaddr_in6)},
      {"[fe80::1%1]:2", 0, "[fe80::1%1]:2", sizeof(struct sockaddr_in6)},
      {"127.0.0.1:00080", 0, "127.0.0.1:80", sizeof(struct sockaddr_in)},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    struct sml_addr addr, again;
    char error[160] = "", text[80];
    if (!sml_addr_parse(rows[i].text, rows[i].default_port, &addr, error, sizeof error))
      fail_msg("%s: %s", rows[i].text, error);
    assert_int_equal(addr.num_bytes, rows[i].num_bytes);
    sml_addr_format(&addr, text, sizeof text);
    assert_string_equal(text, rows[i].formatted);
    assert_true(sml_addr_parse(text, 0, &again, error, sizeof error));
    assert_true(sml_addr_equal(&addr, &again));
    for (size_t b = addr.num_bytes; b < sizeof addr.bytes; b++) assert_int_equal(addr.bytes[b], 0);
  }
}

/* As a listener of both sees who comes by IPv4. */
static void test_ipv4_in_ipv6_is_shown_as_ipv4(void **state) {
  (void)state;
  struct sml_addr addr;
  char error[160] = "", text[80];
  assert_true(sml_addr_parse("[::ffff:192.0.2.1]:7", 0, &addr, error, sizeof error));
  sml_addr_format(&addr, text, sizeof text);
  assert_string_equal(text, "192.0.2.1:7");
}

static void test_names(void **state) {
  (void)state;
  struct sml_addr addr;
  char error[160] = "", text[80];
  if (!sml_addr_parse("localhost:80", 0, &addr, error, sizeof error))
    SKIP_TEST("this host cannot resolve localhost: %s", error);
  sml_addr_format(&addr, text, sizeof text);
  assert_string_equal(text, "127.0.0.1:80"); /* where ::1 is there too */
}

static void test_bad_texts(void **state) {
  (void)state;
  static const struct {
    const char *text;
    const char *says;
  } rows[] = {
      {NULL, "empty"},
      {"", "empty"},
      {":80", "no host"},
      {"[]:80", "no host"},
      {"[::1", "[address]:port"},
      {"[::1]80", "[address]:port"},
      {"[::1]x:80", "[address]:port"},
      {"[::1]:", "port"},
      {"127.0.0.1", "no port"},
      {"::1", "no port"},
      {"[::1]", "no port"},
      {"127.0.0.1:", "port"},
      {"127.0.0.1:65536", "port"},
      {"127.0.0.1:4294967297", "port"},
      {"127.0.0.1:99999999999999999999999999", "port"},
      {"127.0.0.1:-1", "port"},
      {"127.0.0.1:+1", "port"},
      {"127.0.0.1: 1", "port"},
      {"127.0.0.1:1x", "port"},
      {"127.0.0.1:http", "port"},
      {"4000", "is a number"},
      {"4000:1", "is a number"},
      {"[127.0.0.1]:80", "not an IPv6"},
      {"[localhost]:80", "not an IPv6"},
      {"[::g]:80", "not an IPv6"},
      {"[1:2:3:4:5:6:7:8:9]:80", "not an IPv6"},
      {"256.0.0.1.:80", "cannot resolve"},
      {"bad name with spaces:80", "cannot resolve"},
      {"name.invalid:80", "cannot resolve"},
      {"[fe80::1]:80", "add its interface, as in [fe80::1%eth0]:80"},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    struct sml_addr addr;
    char error[160] = "";
    if (sml_addr_parse(rows[i].text, 0, &addr, error, sizeof error)) fail_msg("%s was taken", rows[i].text);
    if (strstr(error, rows[i].says) == NULL) fail_msg("%s: said %s", rows[i].text, error);
    assert_int_equal(addr.num_bytes, 0);
  }
}

/* Nor does an interface have to be there; a bad text is one for either. */
static void test_nothing_is_looked_up_by_a_check(void **state) {
  (void)state;
  static const char *const texts[][2] = {{"192.0.2.1:7", "192.0.2.1:7"},
                                         {"[::1]", "[::1]:9"},
                                         {"[fe80::1%nowhere]:7", "[fe80::1]:7"},
                                         {BOTH_NAME ":7", "none"},
                                         {"name.invalid", "none"}};
  struct sml_addr addr;
  char error[160] = "", text[64];
  for (size_t i = 0; i < SML_ARRAY_LEN(texts); i++) {
    if (!sml_addr_check(texts[i][0], 9, &addr, error, sizeof error)) fail_msg("%s: %s", texts[i][0], error);
    sml_addr_format(&addr, text, sizeof text);
    assert_string_equal(text, texts[i][1]);
  }
  assert_false(sml_addr_check("[fe80::1]:7", 9, &addr, error, sizeof error)); /* as always */
  assert_false(sml_addr_check("name.invalid:x", 9, &addr, error, sizeof error));
  assert_false(sml_addr_check("[name.invalid]:7", 9, &addr, error, sizeof error));
}

static void test_long_texts_and_short_rooms(void **state) {
  (void)state;
  struct sml_addr addr;
  char error[160], longest[5000];
  memset(longest, 'a', sizeof longest - 1);
  longest[sizeof longest - 1] = '\0';
  assert_false(sml_addr_parse(longest, 80, &addr, error, sizeof error));
  memset(longest, ':', sizeof longest - 1);
  assert_false(sml_addr_parse(longest, 80, &addr, error, sizeof error));
  memset(longest, '[', sizeof longest - 1);
  assert_false(sml_addr_parse(longest, 80, &addr, error, sizeof error));
  memset(longest, '1', sizeof longest - 1);
  assert_false(sml_addr_parse(longest, 80, &addr, error, sizeof error));
  char two[2] = "xx";
  assert_false(sml_addr_parse("", 80, &addr, two, sizeof two));
  assert_int_equal(two[1], '\0');

  assert_true(sml_addr_parse("192.0.2.1:1", 0, &addr, error, sizeof error));
  char room[6] = "#####";
  sml_addr_format(&addr, room, sizeof room);
  assert_string_equal(room, "192.0");
  sml_addr_format(&addr, room, 1);
  assert_string_equal(room, "");
  sml_addr_format(&addr, NULL, 0);
}

static void test_ports(void **state) {
  (void)state;
  struct sml_addr addr;
  char error[160], text[32];
  assert_true(sml_addr_parse("[::1]:1", 0, &addr, error, sizeof error));
  sml_addr_set_port(&addr, 0xbeef);
  assert_int_equal(sml_addr_port(&addr), 0xbeef);
  struct sml_addr none = {.num_bytes = 0}, garbage = {.bytes = {0x77, 0x77, 1, 2}, .num_bytes = 4};
  sml_addr_set_port(&none, 5);
  sml_addr_set_port(&garbage, 5);
  assert_int_equal(sml_addr_port(&none), 0);
  assert_int_equal(sml_addr_port(&garbage), 0);
  assert_int_equal(garbage.bytes[2], 1);
  sml_addr_format(&none, text, sizeof text);
  assert_string_equal(text, "none");
  sml_addr_format(&garbage, text, sizeof text);
  assert_string_equal(text, "unknown");
  const struct sml_addr mem = {.bytes = {0xff, 0xff, 0, 3}, .num_bytes = SML_ADDR_MEM_BYTES};
  assert_int_equal(sml_addr_port(&mem), 3);
  sml_addr_format(&mem, text, sizeof text);
  assert_string_equal(text, "mem:3");
  assert_false(sml_addr_equal(&mem, &garbage));
}

static void test_hosts(void **state) {
  (void)state;
  static const struct {
    const char *one, *other;
    bool is_same;
  } rows[] = {{"192.0.2.1:1", "192.0.2.1:2", true},
              {"192.0.2.1:1", "192.0.2.2:1", false},
              {"192.0.2.1:1", "[::ffff:192.0.2.1]:1", true},
              {"[2001:db8::1]:1", "[2001:db8::2:3]:1", true},
              {"[2001:db8::1]:1", "[2001:db8:0:1::1]:1", false},
              {"127.0.0.1:1", "[::1]:1", true},
              {"127.0.0.1:1", "[::ffff:127.0.0.2]:1", true},
              {"127.0.0.1:1", "128.0.0.1:1", false}};
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    struct sml_addr one, other;
    char error[160];
    assert_true(sml_addr_parse(rows[i].one, 0, &one, error, sizeof error));
    assert_true(sml_addr_parse(rows[i].other, 0, &other, error, sizeof error));
    if ((sml_addr_host(&one) == sml_addr_host(&other)) != rows[i].is_same)
      fail_msg("%s %s", rows[i].one, rows[i].other);
    assert_int_equal(sml_addr_host(&one) == 0, strncmp(rows[i].one, "127.", 4) == 0);
  }
  assert_int_equal(sml_addr_host(&(struct sml_addr){.num_bytes = 0}), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_good_texts),
                                     cmocka_unit_test(test_ipv4_in_ipv6_is_shown_as_ipv4),
                                     cmocka_unit_test(test_names),
                                     cmocka_unit_test(test_ipv4_comes_before_ipv6),
                                     cmocka_unit_test(test_bad_texts),
                                     cmocka_unit_test(test_nothing_is_looked_up_by_a_check),
                                     cmocka_unit_test(test_long_texts_and_short_rooms),
                                     cmocka_unit_test(test_ports),
                                     cmocka_unit_test(test_hosts)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
