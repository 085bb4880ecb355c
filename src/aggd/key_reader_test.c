/* SPDX-License-Identifier: Apache-2.0
 * Key files as the file system has them: permissions, kinds, sizes. The lines are key_file_test.c's. */
#include "aggd/key_reader.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/test_skip.h"

static char directory[] = "/tmp/sml-keys-XXXXXX";
static char path[64];
static const char good[] = "# ours\nalice 000102030405060708090a0b0c0d0e0f\n";

static int set_up(void **state) {
  (void)state;
  if (!mkdtemp(directory)) return -1;
  snprintf(path, sizeof path, "%s/keys", directory);
  return 0;
}
static int tear_down(void **state) {
  (void)state;
  return rmdir(directory);
}

static void write_file(const char *text, size_t num_bytes, mode_t mode) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_int_equal(fwrite(text, 1, num_bytes, file), num_bytes);
  assert_int_equal(fclose(file), 0);
  assert_int_equal(chmod(path, mode), 0);
}

static void expect_error(const char *format) {
  char error[512], expected[512];
  uint32_t num_keys;
  assert_null(sml_keys_read(path, &num_keys, error, sizeof error));
  snprintf(expected, sizeof expected, format, path);
  assert_string_equal(error, expected);
}

static void test_good_file(void **state) {
  (void)state;
  char error[512];
  uint32_t num_keys;
  write_file(good, strlen(good), 0600);
  struct sml_key_entry *keys = sml_keys_read(path, &num_keys, error, sizeof error);
  assert_non_null(keys);
  assert_int_equal(num_keys, 1);
  assert_string_equal(keys[0].name, "alice");
  assert_true(keys[0].key.k0 == UINT64_C(0x0706050403020100));
  sml_keys_free(keys, num_keys);
  unlink(path);
}

static void test_permissions(void **state) {
  (void)state;
  static const mode_t bad[] = {0640, 0604, 0620, 0602, 0644, 0610, 0777};
  for (size_t i = 0; i < SML_ARRAY_LEN(bad); i++) {
    write_file(good, strlen(good), bad[i]);
    expect_error(
        "key file %s is not used: others than its owner may read or write it: run chmod 600 on it, and make new "
        "keys if somebody could");
    unlink(path);
  }
  write_file(good, strlen(good), 0400);
  char error[512];
  uint32_t num_keys;
  struct sml_key_entry *keys = sml_keys_read(path, &num_keys, error, sizeof error);
  assert_non_null(keys);
  sml_keys_free(keys, num_keys);
  unlink(path);
}

static void test_owner(void **state) {
  (void)state;
  if (geteuid() != 0) SKIP_TEST("only root gives files away");
  char error[512];
  uint32_t num_keys;
  struct sml_key_entry *keys = NULL;
  write_file(good, strlen(good), 0600);
  assert_int_equal(chown(path, 4711, (gid_t)-1), 0);
  expect_error(
      "key file %s is not used: it is another user's, who may read and change it: run chown on it, and make new keys");
  /* Whoever it belongs to may use it. Root's is used by all who can read it, as a service manager hands it out. */
  assert_int_equal(chmod(directory, 0711), 0);
  assert_int_equal(seteuid(4711), 0);
  keys = sml_keys_read(path, &num_keys, error, sizeof error);
  assert_int_equal(seteuid(0), 0);
  assert_non_null(keys);
  sml_keys_free(keys, num_keys);
  unlink(path);
}

/* The owner and a user read, the owner's group and others as they are given. False: the file system has no lists. */
static bool give_to(uint32_t user, uint16_t group_rights, uint16_t other_rights) {
  const struct {
    uint16_t tag, rights;
    uint32_t user;
  } entries[] = {{1, 4, UINT32_MAX},
                 {2, 4, user},
                 {4, group_rights, UINT32_MAX},
                 {16, 4, UINT32_MAX}, /* the mask */
                 {32, other_rights, UINT32_MAX}};
  uint8_t list[4 + sizeof entries] = {2};
  for (size_t i = 0; i < SML_ARRAY_LEN(entries); i++) {
    uint8_t *entry = list + 4 + 8 * i;
    entry[0] = (uint8_t)entries[i].tag;
    entry[2] = (uint8_t)entries[i].rights;
    for (uint32_t k = 0; k < 4; k++) entry[4 + k] = (uint8_t)(entries[i].user >> (8 * k));
  }
  unlink(path);
  write_file(good, strlen(good), 0400);
  return setxattr(path, "system.posix_acl_access", list, sizeof list, 0) == 0;
}

/* As systemd hands out credentials: root's, with mode 440, and a list that has the service's user. */
static void test_lists(void **state) {
  (void)state;
  static const char refused[] =
      "key file %s is not used: others than its owner may read or write it: run chmod 600 on it, and make new keys if "
      "somebody could";
  char error[512];
  uint32_t num_keys;
  struct stat st;
  if (!give_to(geteuid(), 0, 0)) {
    unlink(path);
    SKIP_TEST("this file system has no access control lists");
  }
  assert_int_equal(stat(path, &st), 0);
  assert_int_equal(st.st_mode & 0777, 0440);
  struct sml_key_entry *keys = sml_keys_read(path, &num_keys, error, sizeof error);
  assert_non_null(keys);
  sml_keys_free(keys, num_keys);
  assert_true(give_to(geteuid() + 1, 0, 0));
  expect_error(refused);
  assert_true(give_to(geteuid() + 256, 0, 0));
  expect_error(refused);
  assert_true(give_to(geteuid(), 4, 0));
  expect_error(refused);
  assert_true(give_to(geteuid(), 0, 4));
  expect_error(refused);
  unlink(path);
}

static void test_no_file(void **state) {
  (void)state;
  expect_error("cannot read key file %s: No such file or directory");
}

static void test_other_kinds(void **state) {
  (void)state;
  assert_int_equal(mkdir(path, 0700), 0);
  expect_error("key file %s is not used: it is no regular file");
  rmdir(path);
  assert_int_equal(mkfifo(path, 0600), 0);
  expect_error("key file %s is not used: it is no regular file"); /* and does not wait for a writer */
  unlink(path);
}

static void test_bad_lines_and_sizes(void **state) {
  (void)state;
  write_file("", 0, 0600);
  expect_error("key file %s, there is no key in it: a line is a name and 32 hexadecimal digits");
  write_file("# a\nalice 12\n", 13, 0600);
  expect_error("key file %s, line 2: a key has 32 hexadecimal digits");
  size_t num_bytes = SML_KEY_FILE_MAX_BYTES + 1;
  char *large = malloc(num_bytes);
  assert_non_null(large);
  memset(large, '#', num_bytes);
  write_file(large, num_bytes, 0600);
  expect_error("key file %s is not used: it has more than 1 MiB");
  free(large);
  unlink(path);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_good_file),
      cmocka_unit_test(test_permissions),
      cmocka_unit_test(test_owner),
      cmocka_unit_test(test_lists),
      cmocka_unit_test(test_no_file),
      cmocka_unit_test(test_other_kinds),
      cmocka_unit_test(test_bad_lines_and_sizes),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
