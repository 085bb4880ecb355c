/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/contributors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static const struct sml_ctl_start alone = {.num_ranks = 0};
/* Ranks 0-2, 3-6, then two that take turns and one by itself. */
static const struct sml_ctl_start mixed = {.num_ranks = 12, .contributors = {0, 0, 0, 1, 1, 1, 1, 2, 3, 2, 3, 4}};

static void test_without_a_table_each_rank_is_one(void **state) {
  (void)state;
  uint16_t ranks[2] = {9, 9};
  char text[32];
  assert_int_equal(sml_contributors_count(&alone, 4096), 4096);
  assert_int_equal(sml_contributor_of(&alone, 4095), 4095);
  assert_int_equal(sml_contributor_lead(&alone, 7), 7);
  assert_int_equal(sml_contributor_ranks(&alone, 7, ranks, 2), 1);
  assert_int_equal(ranks[0], 7);
  assert_int_equal(ranks[1], 9);
  assert_int_equal(sml_contributor_describe(&alone, 7, text, sizeof text), 6);
  assert_string_equal(text, "rank 7");
}

static void test_leads_and_ranks(void **state) {
  (void)state;
  static const uint32_t leads[] = {0, 3, 7, 8, 11}, counts[] = {3, 4, 2, 2, 1};
  uint16_t ranks[3] = {0};
  assert_int_equal(sml_contributors_count(&mixed, 12), 5);
  for (uint32_t c = 0; c < 5; c++) {
    assert_int_equal(sml_contributor_lead(&mixed, c), leads[c]);
    assert_int_equal(sml_contributor_of(&mixed, leads[c]), c);
    assert_int_equal(sml_contributor_ranks(&mixed, c, NULL, 0), counts[c]);
  }
  assert_int_equal(sml_contributor_ranks(&mixed, 1, ranks, 2), 4);
  assert_int_equal(ranks[0], 3);
  assert_int_equal(ranks[1], 4);
  assert_int_equal(ranks[2], 0); /* not more than asked for */
}

static void test_sentences(void **state) {
  (void)state;
  static const char *const texts[] = {"ranks 0-2 on the host of rank 0", "ranks 3-6 on the host of rank 3",
                                      "ranks 7, 9 on the host of rank 7", "ranks 8, 10 on the host of rank 8",
                                      "rank 11"};
  char text[64], cut[64];
  for (uint32_t c = 0; c < SML_ARRAY_LEN(texts); c++) {
    assert_int_equal(sml_contributor_describe(&mixed, c, text, sizeof text), strlen(texts[c]));
    assert_string_equal(text, texts[c]);
    for (size_t room = 1; room <= strlen(text); room++) { /* cut, and never beyond the room */
      memset(cut, 'x', sizeof cut);
      assert_int_equal(sml_contributor_describe(&mixed, c, cut, room), room - 1);
      assert_int_equal(strlen(cut), room - 1);
      assert_memory_equal(cut, text, room - 1);
      assert_int_equal(cut[room], 'x');
    }
  }
  static const struct sml_ctl_start gaps = {.num_ranks = 9, .contributors = {0, 0, 1, 0, 0, 0, 1, 0, 0}};
  sml_contributor_describe(&gaps, 0, text, sizeof text);
  assert_string_equal(text, "ranks 0-1, 3-5, 7-8 on the host of rank 0");
}

static void test_lists_for_errors(void **state) {
  (void)state;
  uint16_t ranks[SML_CTL_MAX_RANKS];
  static const uint16_t some[] = {1, 4, 60000, 2};
  assert_int_equal(sml_contributors_name(&mixed, 12, some, 4, ranks), 7);
  static const uint16_t all_of_some[] = {3, 4, 5, 6, 11, 7, 9};
  assert_memory_equal(ranks, all_of_some, sizeof all_of_some);
  /* Two hosts of nine: too many to name, so their leads. */
  static const struct sml_ctl_start large = {.num_ranks = 18,
                                             .contributors = {0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1}};
  static const uint16_t both[] = {0, 1}, leads[] = {0, 9};
  assert_int_equal(sml_contributors_name(&large, 18, both, 2, ranks), 2);
  assert_memory_equal(ranks, leads, sizeof leads);
  uint16_t many[40];
  for (uint16_t i = 0; i < 40; i++) many[i] = i;
  assert_int_equal(sml_contributors_name(&alone, 64, many, 40, ranks), SML_CTL_MAX_RANKS);
  assert_int_equal(ranks[15], 15);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_without_a_table_each_rank_is_one),
      cmocka_unit_test(test_leads_and_ranks),
      cmocka_unit_test(test_sentences),
      cmocka_unit_test(test_lists_for_errors),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
