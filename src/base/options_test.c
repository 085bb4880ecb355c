/* SPDX-License-Identifier: Apache-2.0 */
#include "base/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum color { RED, GREEN, BLUE };
struct inner {
  bool is_quiet;
};
struct options {
  bool is_json;
  const char *name;
  uint8_t byte;
  uint16_t port;
  uint32_t count;
  uint64_t seed, wait_ns;
  double share;
  enum color color;
  uint32_t squared;
  struct inner inner;
  const char *address, *file;
  struct sml_arguments all;
};
static const char *const colors[] = {"red", "green", "blue", NULL};

static const char *take_square(void *options, const char *text) {
  if (text[0] < '0' || text[0] > '9' || text[1] != 0) return "one digit is wanted";
  ((struct options *)options)->squared = (uint32_t)((text[0] - '0') * (text[0] - '0'));
  return NULL;
}

#define SML_OPTIONS struct options
static const struct sml_option table[] = {{NULL, .help = "A title:", .group = 1},
                                          {"json", 'j', NULL, "a flag", 1, SML_FLAG(is_json)},
                                          {"name", 'n', "NAME", "a text", 1, SML_TEXT(name)},
                                          {"title", .group = 1, .kind = SML_OPTION_ALIAS},
                                          {"byte", 0, "N", "a number", 1, SML_NUMBER(byte, 0, 255)},
                                          {"port", 0, "N", "a number", 1, SML_NUMBER(port, 1, 65535)},
                                          {"count", 0, "N", "a number without an end", 1, SML_NUMBER(count, 1, 0)},
                                          {"seed", 0, "N", "the same", 1, SML_NUMBER(seed, 0, 0)},
                                          {"wait", 0, "S", "seconds", 1, SML_SECONDS(wait_ns, 0.5, 60)},
                                          {"share", 0, "PERCENT", "a real number", 1, SML_REAL(share, -100, 100, 0.01)},
                                          {"color", 0, "COLOR", "a word", 1, SML_WORD(color, colors)},
                                          {"square", 0, "D", "something else", 1, SML_TAKEN_BY(take_square)},
                                          {0}};
#undef SML_OPTIONS
#define SML_OPTIONS struct inner
static const struct sml_option common[] = {{"quiet", 'q', NULL, NULL, 2, SML_FLAG(is_quiet)}, {0}};

static const char *check(void *options) {
  return ((const struct options *)options)->byte == 13 ? "13 is none" : NULL;
}

static const struct sml_option_parser parser = {.table = table,
                                                .common = common,
                                                .common_offset = offsetof(struct options, inner),
                                                .doc = "A test.",
                                                .arguments_doc = "[ADDRESS [FILE]]",
                                                .arguments_offset = offsetof(struct options, address),
                                                .max_arguments = 2,
                                                .one_only = "one ADDRESS and one FILE only",
                                                .check = check};

#define MAX_ARGUMENTS 8
static void read_line(const struct sml_option_parser *p, struct options *o, const char *const *arguments) {
  static char *argv[MAX_ARGUMENTS + 2];
  int argc = 0;
  memset(o, 0, sizeof *o);
  argv[argc++] = (char *)"program"; /* argp changes their order only */
  for (; *arguments != NULL; arguments++) argv[argc++] = (char *)*arguments;
  argv[argc] = NULL;
  sml_options_parse(p, argc, argv, o);
}
#define READ(p, o, ...) read_line(p, o, (const char *const[]){__VA_ARGS__, NULL})

/* The exit status of a process that reads this, and what it says. */
static int status_of(const struct sml_option_parser *p, char *said, size_t room, const char *const *arguments) {
  int fds[2], status;
  size_t used = 0;
  assert_int_equal(pipe(fds), 0);
  fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    struct options o;
    dup2(fds[1], 1);
    dup2(fds[1], 2);
    read_line(p, &o, arguments);
    _exit(99);
  }
  close(fds[1]);
  for (ssize_t n; used + 1 < room && (n = read(fds[0], said + used, room - used - 1)) > 0;) used += (size_t)n;
  said[used] = 0;
  close(fds[0]);
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status));
  return WEXITSTATUS(status);
}

static void expect_refusal(const struct sml_option_parser *p, const char *sentence, const char *const *arguments) {
  char said[4096];
  const int status = status_of(p, said, sizeof said, arguments);
  if (status != 2 || strstr(said, sentence) == NULL) fail_msg("%d, not '%s': %s", status, sentence, said);
}
#define REFUSED(p, sentence, ...) expect_refusal(p, sentence, (const char *const[]){__VA_ARGS__, NULL})

static void each_kind_goes_where_the_table_says(void **state) {
  (void)state;
  struct options o;
  READ(&parser, &o, "-j", "--name=a", "--byte=255", "--port", "65535", "here", "-q");
  assert_true(o.is_json && o.inner.is_quiet);
  assert_string_equal(o.name, "a");
  assert_int_equal(o.byte, 255);
  assert_int_equal(o.port, 65535);
  assert_int_equal(o.count, 0); /* what stands beside it is untouched */
  assert_string_equal(o.address, "here");
  assert_null(o.file);
  READ(&parser, &o, "--count=4294967295", "--seed=18446744073709551615", "--wait=1.5", "--share=-50", "--color=blue");
  assert_int_equal(o.count, UINT32_MAX);
  assert_true(o.seed == UINT64_MAX);
  assert_int_equal(o.wait_ns, 1500 * SML_NS_PER_MS);
  assert_true(o.share == -0.5);
  assert_int_equal(o.color, BLUE);
  READ(&parser, &o, "--square=7", "--title", "b", "-n", "c", "x", "--", "-y");
  assert_int_equal(o.squared, 49);
  assert_string_equal(o.name, "c"); /* the last one counts */
  assert_string_equal(o.address, "x");
  assert_string_equal(o.file, "-y");
}

static void what_is_wrong_is_told(void **state) {
  (void)state;
  REFUSED(&parser, "--byte: '256' is not a number from 0 to 255", "--byte=256");
  REFUSED(&parser, "--byte: '' is not a number", "--byte=");
  REFUSED(&parser, "--port: '0' is not a number from 1 to 65535", "--port=0");
  REFUSED(&parser, "--port: '-1' is not a number", "--port=-1");
  REFUSED(&parser, "--port: ' 1' is not a number", "--port= 1");
  REFUSED(&parser, "--port: '1x' is not a number", "--port=1x");
  REFUSED(&parser, "--count: '4294967296' is not a whole number from 1 on", "--count=4294967296");
  REFUSED(&parser, "--seed: '18446744073709551616' is not a whole number", "--seed=18446744073709551616");
  REFUSED(&parser, "--wait: '0.4' is not a number of seconds from 0.5 to 60", "--wait=0.4");
  REFUSED(&parser, "--wait: 'nan' is not a number", "--wait=nan");
  REFUSED(&parser, "--share: '101' is not a number from -100 to 100", "--share=101");
  REFUSED(&parser, "--color: 'pink' is not red, green or blue", "--color=pink");
  REFUSED(&parser, "--square: 'x': one digit is wanted", "--square=x");
  REFUSED(&parser, "13 is none", "--byte=13");
  REFUSED(&parser, "one ADDRESS and one FILE only", "a", "b", "c");
  REFUSED(&parser, "unrecognized option '--jsn'", "--jsn");
  REFUSED(&parser, "requires an argument", "--byte");
}

static void help_has_each_option_but_those_without_a_text(void **state) {
  (void)state;
  char said[4096];
  assert_int_equal(status_of(&parser, said, sizeof said, (const char *const[]){"--help", NULL}), 0);
  assert_non_null(strstr(said, "[ADDRESS [FILE]]"));
  assert_non_null(strstr(said, " A title:"));
  assert_non_null(strstr(said, "-n, --name=NAME, --title=NAME"));
  assert_non_null(strstr(said, "--share=PERCENT"));
  assert_null(strstr(said, "quiet"));
}

static void other_arguments_come_as_a_list(void **state) {
  (void)state;
  const struct sml_option_parser all = {
      .table = table, .arguments_offset = offsetof(struct options, all), .max_arguments = UINT32_MAX};
  struct options o;
  READ(&all, &o, "a", "-j", "b", "--", "-c");
  assert_true(o.is_json);
  assert_int_equal(o.all.num, 3);
  assert_string_equal(o.all.texts[0], "a");
  assert_string_equal(o.all.texts[1], "b");
  assert_string_equal(o.all.texts[2], "-c");
  const struct sml_option_parser none = {.table = table};
  REFUSED(&none, "unexpected argument 'a'", "a");
}

static bool note(void *options, uint32_t number, const char *text) {
  struct options *o = options;
  o->count = number;
  o->name = text;
  return strcmp(text, "full") != 0;
}

static void texts_can_be_noted_instead(void **state) {
  (void)state;
  const struct sml_option_parser noting = {.table = table, .note = note};
  struct options o;
  READ(&noting, &o, "--byte=1000");
  assert_string_equal(table[o.count].name, "byte");
  assert_string_equal(o.name, "1000");
  READ(&noting, &o, "-j");
  assert_string_equal(o.name, "yes");
  char said[256];
  assert_int_equal(status_of(&noting, said, sizeof said, (const char *const[]){"--name=full", NULL}), 1);
  assert_non_null(strstr(said, "out of memory"));
}

static void a_file_says_yes_or_no_to_a_flag(void **state) {
  (void)state;
  struct options o = {.is_json = true};
  char error[128];
  assert_true(sml_option_take(&table[1], "no", &o, error, sizeof error) && !o.is_json);
  assert_true(sml_option_take(&table[1], "yes", &o, error, sizeof error) && o.is_json);
  assert_false(sml_option_take(&table[1], "1", &o, error, sizeof error));
  assert_string_equal(error, "'1' is not yes or no");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_kind_goes_where_the_table_says),
      cmocka_unit_test(what_is_wrong_is_told),
      cmocka_unit_test(help_has_each_option_but_those_without_a_text),
      cmocka_unit_test(other_arguments_come_as_a_list),
      cmocka_unit_test(texts_can_be_noted_instead),
      cmocka_unit_test(a_file_says_yes_or_no_to_a_flag),
  };
  return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
