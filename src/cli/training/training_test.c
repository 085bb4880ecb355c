/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include <math.h>

#include "cli/training/training.h"

/* The sums that the papers, torchvision's weights and the data sets' authors give. */
static const struct {
  const char *name;
  uint64_t num_parameters;
} published[] = {{"alexnet", 61100840},   {"vgg16", 138357544},       {"vgg19", 143667240},    {"resnet50", 25557032},
                 {"resnet101", 44549160}, {"inception_v3", 27161264}, {"googlenet", 6624904},  {"bert_base", 109482240},
                 {"lstm", 66022000},      {"ncf", 31832577},          {"dlrm", 540677217},     {"gpt2", 124439808},
                 {"vit_b_16", 86567656},  {"llama_1b", 1235814400},   {"llama_8b", 8030261248}};

static const char *text_of(const char *name) {
  for (const struct sml_training_builtin *each = sml_training_builtins; each->name; each++)
    if (strcmp(each->name, name) == 0) return each->text;
  fail_msg("there is no table %s", name);
  return NULL;
}

static void tables_have_the_published_totals(void **state) {
  (void)state;
  size_t num_tables = 0;
  while (sml_training_builtins[num_tables].name) num_tables++;
  assert_int_equal(num_tables, SML_ARRAY_LEN(published));
  for (size_t i = 0; i < SML_ARRAY_LEN(published); i++) {
    struct sml_training_model model;
    const char *wrong = sml_training_model_parse(&model, published[i].name, text_of(published[i].name));
    if (wrong) fail_msg("%s: %s", published[i].name, wrong);
    uint64_t sum = 0;
    for (uint32_t k = 0; k < model.num_tensors; k++) sum += model.tensor_elems[k];
    assert_int_equal(sum, published[i].num_parameters);
    assert_int_equal(model.num_parameters, sum);
    static const char *const gpus[] = {"p100", "v100", "a100", "h100", "a10", "l4", "rtx4090"};
    for (size_t k = 0; k < SML_ARRAY_LEN(gpus); k++) assert_non_null(sml_training_find_speed(&model, gpus[k]));
    assert_null(sml_training_find_speed(&model, "abacus"));
    sml_training_model_free(&model);
  }
}

static void wrong_tables_are_refused_with_their_line(void **state) {
  (void)state;
  static const struct {
    const char *text, *sentence;
  } cases[] = {{"", "there are no layers"},
               {"layer a 1\n", "line 1: a layer has a parameter"},
               {"batch 2\nlayer a x w=1\n", "line 2: a layer has a name and FLOPs"},
               {"layer a -1 w=1\n", "line 1: a layer has a name and FLOPs"},
               {"layer a inf w=1\n", "line 1: a layer has a name and FLOPs"},
               {"layer a 1 w=0\n", "line 1: a layer's parameters"},
               {"layer a 1 w\n", "line 1: a layer's parameters"},
               {"layer a 1 =3\n", "line 1: a layer's parameters"},
               {"layer a 1 w=1x\n", "line 1: a layer's parameters"},
               {"layer a 1 w=99999999999999\n", "line 1: a layer's parameters"},
               {"layer a 1 w=1099511627776 v=1\n", "line 1: more than 2^40"},
               {"layer a 0 w=1\n", "no layer has FLOPs"},
               {"parameters 2\nlayer a 1 w=1\n", "the layers have 1 parameters"},
               {"batch 0\n", "line 1: no number"},
               {"speed x\n", "line 1: a speed"},
               {"speed x 0\n", "line 1: a speed"},
               {"speed a-name-that-is-too-long 1\n", "line 1: a speed"},
               {"tensor a\n", "line 1: a line begins"}};
  for (size_t i = 0; i < SML_ARRAY_LEN(cases); i++) {
    struct sml_training_model model;
    const char *wrong = sml_training_model_parse(&model, "x", cases[i].text);
    sml_training_model_free(&model);
    if (!wrong || strncmp(wrong, cases[i].sentence, strlen(cases[i].sentence)) != 0)
      fail_msg("case %zu: '%s'", i, wrong ? wrong : "taken");
  }
  char *line = calloc(1, 8192);
  memset(line, 'x', 8191);
  struct sml_training_model model;
  assert_non_null(sml_training_model_parse(&model, "x", line));
  sml_training_model_free(&model);
  free(line);
}

/* Two layers; 3 s of computing: forward 0.25 and 0.75 s, backward (last layer first) 1.5 and 0.5 s. */
static const char two_layers[] = "batch 1 # a sample\nlayer first 1 w=1000\nlayer last 3 w=3000 b=1000\n";
static const struct sml_training_link even = {.bits_per_s = 32000, .share = 1, .floor = 1}; /* 1,000 a second */

static struct sml_training_plan plan_of(const char *text, struct sml_training_shape shape) {
  struct sml_training_model model;
  struct sml_training_plan plan;
  assert_null(sml_training_model_parse(&model, "x", text));
  shape.batch = model.batch;
  if (shape.time_scale == 0) shape.time_scale = 1;
  if (shape.samples_per_s == 0) shape.samples_per_s = 1.0 / 3;
  assert_true(sml_training_plan_make(&plan, &model, &shape));
  sml_training_model_free(&model);
  return plan;
}

static void expect_time(double seen, double expected) {
  if (fabs(seen - expected) > 1e-6) fail_msg("%g, but %g was expected", seen, expected);
}

static void gradients_get_ready_from_the_last_layer_on(void **state) {
  (void)state;
  struct sml_training_plan p = plan_of(two_layers, (struct sml_training_shape){0});
  assert_int_equal(p.num_sends, 3);
  const struct {
    uint64_t first, num, ready_ns;
  } expected[] = {{0, 1000, 1500000000}, {1000, 3000, 1500000000}, {4000, 1000, 2000000000}};
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(p.sends[i].first_elem, expected[i].first);
    assert_int_equal(p.sends[i].num_elems, expected[i].num);
    assert_int_equal(p.sends[i].ready_ns, expected[i].ready_ns);
  }
  assert_int_equal(p.num_needed[0], 3);
  assert_int_equal(p.num_needed[1], 3);
  assert_int_equal(p.forward_ns[0], 250000000);
  assert_int_equal(p.forward_ns[1], 750000000);
  assert_int_equal(p.backward_ns, 2000000000);
  sml_training_plan_free(&p);
}

static void prediction_is_that_of_a_serial_link(void **state) {
  (void)state;
  struct sml_training_plan p = plan_of(two_layers, (struct sml_training_shape){0});
  struct sml_training_prediction predicted;
  sml_training_predict(&p, &even, 1, &predicted); /* 1.5 + 5 s of link, then 1 s of forward pass */
  expect_time(predicted.iteration_s, 7.5);
  expect_time(predicted.compute_s, 3);
  expect_time(predicted.link_s, 5);
  expect_time(predicted.exposed_s, 4.5);
  assert_string_equal(sml_training_regime(&predicted), "network-bound");
  struct sml_training_link link = even;
  link.bits_per_s *= 100;
  sml_training_predict(&p, &link, 1, &predicted); /* the last layer's are through at 1.54, the first one's at 2.01 */
  expect_time(predicted.iteration_s, 3.01);
  assert_string_equal(sml_training_regime(&predicted), "compute-bound");
  link.share = 1.75; /* of a ring of eight */
  link.floor = 1.05;
  link.serial_s = 0.1;
  sml_training_predict(&p, &link, 1,
                       &predicted); /* the first layer's, from 2.0 on: a serial part, 0.01 s of bytes 1.8375 times */
  expect_time(predicted.iteration_s, 2 + 0.1 + 0.018375 + 1);
  sml_training_plan_free(&p);
}

static void all_scales_alike(void **state) {
  (void)state;
  struct sml_training_plan p = plan_of(two_layers, (struct sml_training_shape){.time_scale = 10});
  assert_int_equal(p.backward_ns, UINT64_C(20000000000));
  struct sml_training_prediction predicted;
  sml_training_predict(&p, &even, 10, &predicted);
  expect_time(predicted.iteration_s, 7.5);
  sml_training_plan_free(&p);
}

static void priority_lets_the_forward_pass_begin_early(void **state) {
  (void)state;
  const struct sml_training_shape shape = {.has_priority = true, .piece_bytes = 4 * 500, .link = even};
  struct sml_training_plan p = plan_of(two_layers, shape);
  /* From 1.5 s on a piece each 0.5 s: one of the last layer is under way until 2.0, then the first layer's
   * two. */
  const uint32_t layers[] = {1, 0, 0, 1, 1, 1, 1, 1, 1, 1};
  assert_int_equal(p.num_sends, SML_ARRAY_LEN(layers));
  uint64_t num_elems = 0;
  for (uint32_t i = 0; i < p.num_sends; i++) {
    assert_int_equal(p.sends[i].first_layer, layers[i]);
    num_elems += p.sends[i].num_elems;
    if (i > 0) assert_true(p.sends[i].ready_ns >= p.sends[i - 1].ready_ns);
  }
  assert_int_equal(num_elems, 5000);
  assert_int_equal(p.num_needed[0], 3);
  assert_int_equal(p.num_needed[1], 10);
  struct sml_training_prediction predicted;
  sml_training_predict(&p, &even, 1, &predicted); /* the last layer's forward pass waits until 6.5 */
  expect_time(predicted.iteration_s, 6.5 + 0.75);
  sml_training_plan_free(&p);
}

static void buckets_are_filled_in_the_order_of_the_backward_pass(void **state) {
  (void)state;
  char text[512] = "batch 1\n";
  for (uint32_t i = 0; i < 4; i++) strcat(text, "layer x 1 w=300000\n"); /* 1.2 MB each */
  struct sml_training_plan p = plan_of(text, (struct sml_training_shape){.bucket_bytes = 2 << 20});
  assert_int_equal(p.num_sends, 3); /* the first one is closed at 1 MiB, the next one at 2 */
  assert_int_equal(p.sends[0].num_elems, 300000);
  assert_int_equal(p.sends[1].num_elems, 600000);
  assert_int_equal(p.sends[1].ready_ns, 1500000000); /* when its last tensor is */
  assert_int_equal(p.sends[2].num_elems, 300000);
  assert_int_equal(p.sends[2].first_elem + p.sends[2].num_elems, p.num_elems);
  sml_training_plan_free(&p);
}

/* Two layers of 3 s of computing on two ranks. */
static void sharded_steps_are_those_of_fsdp2(void **state) {
  (void)state;
  struct sml_training_plan p = plan_of("batch 1\nlayer a 1 w=5\nlayer b 1 w=2\nlayer c 1 w=4\n",
                                       (struct sml_training_shape){.is_sharded = true, .num_ranks = 4});
  const struct sml_training_step expected[] = {{SML_TRAINING_CALL, 0},
                                               {SML_TRAINING_CALL, 1}, /* two ahead */
                                               {SML_TRAINING_WAIT, 0},
                                               {SML_TRAINING_CALL, 2},
                                               {SML_TRAINING_COMPUTE, 333333333},
                                               {SML_TRAINING_WAIT, 1},
                                               {SML_TRAINING_COMPUTE, 333333333},
                                               {SML_TRAINING_WAIT, 2},
                                               {SML_TRAINING_COMPUTE, 333333333},
                                               {SML_TRAINING_CALL, 3}, /* the last layer's again */
                                               {SML_TRAINING_WAIT, 3},
                                               {SML_TRAINING_CALL, 4},
                                               {SML_TRAINING_COMPUTE, 666666666},
                                               {SML_TRAINING_CALL, 5},
                                               {SML_TRAINING_WAIT, 4},
                                               {SML_TRAINING_CALL, 6},
                                               {SML_TRAINING_COMPUTE, 666666666},
                                               {SML_TRAINING_WAIT, 5},
                                               {SML_TRAINING_CALL, 7},
                                               {SML_TRAINING_WAIT, 6},
                                               {SML_TRAINING_COMPUTE, 666666666},
                                               {SML_TRAINING_WAIT, 7},
                                               {SML_TRAINING_CALL, 8},
                                               {SML_TRAINING_WAIT, 8}};
  assert_int_equal(p.num_steps, SML_ARRAY_LEN(expected));
  for (uint32_t i = 0; i < p.num_steps; i++) {
    assert_int_equal(p.steps[i].act, expected[i].act);
    assert_int_equal(p.steps[i].number, expected[i].number);
  }
  const struct {
    enum sml_training_call call;
    uint64_t first, num; /* whole parts */
  } calls[] = {{SML_TRAINING_GATHER, 0, 8},  {SML_TRAINING_GATHER, 8, 4},  {SML_TRAINING_GATHER, 12, 4},
               {SML_TRAINING_GATHER, 12, 4}, {SML_TRAINING_GATHER, 8, 4},  {SML_TRAINING_SCATTER, 12, 4},
               {SML_TRAINING_GATHER, 0, 8},  {SML_TRAINING_SCATTER, 8, 4}, {SML_TRAINING_SCATTER, 0, 8}};
  assert_int_equal(p.num_sends, SML_ARRAY_LEN(calls));
  assert_int_equal(p.num_elems, 16);
  for (uint32_t i = 0; i < p.num_sends; i++) {
    assert_int_equal(p.sends[i].call, calls[i].call);
    assert_int_equal(p.sends[i].first_elem, calls[i].first);
    assert_int_equal(p.sends[i].num_elems, calls[i].num);
  }
  sml_training_plan_free(&p);
  p = plan_of("batch 1\nlayer a 1 w=5\nlayer b 1 w=2\nlayer c 1 w=4\n",
              (struct sml_training_shape){.is_sharded = true, .num_ranks = 4, .bucket_bytes = 28});
  assert_int_equal(p.num_sends, 6); /* a and b are one unit */
  assert_int_equal(p.sends[0].num_elems, 8);
  sml_training_plan_free(&p);
}

/* Where only the network counts an iteration takes 1.875, 2.625 and 3.5 S/B, for 8 ranks and many units. */
static void sharded_steps_are_predicted(void **state) {
  (void)state;
  char text[8192] = "batch 1\n";
  for (uint32_t i = 0; i < 100; i++) strcat(text, "layer x 1 w=80\n");
  struct sml_training_plan p =
      plan_of(text, (struct sml_training_shape){.is_sharded = true, .num_ranks = 8, .samples_per_s = 1e9});
  struct sml_training_options o = {.mtu = 1500};
  struct sml_training_prediction predicted;
  const struct {
    struct sml_training_link link;
    double units;
  } cases[] = {{sml_training_our_link(&o, 256000, 8), 1.875},
               {sml_training_ring_link(&o, 256000, 8, false), 2.625},
               {sml_training_ring_link(&o, 256000, 8, true), 3.5}};
  for (size_t i = 0; i < SML_ARRAY_LEN(cases); i++) { /* S/B: 1 s */
    sml_training_predict(&p, &cases[i].link, 1, &predicted);
    if (fabs(predicted.iteration_s / cases[i].link.floor - cases[i].units) > 0.01)
      fail_msg("%g S/B, but %g was expected", predicted.iteration_s / cases[i].link.floor, cases[i].units);
    assert_string_equal(sml_training_regime(&predicted), "network-bound");
  }
  o.aggregator = SML_TRAINING_EMBEDDED;
  const struct sml_training_link embedded = sml_training_our_link(&o, 256000, 8);
  sml_training_predict(&p, &embedded, 1, &predicted);
  assert_true(fabs(predicted.iteration_s / embedded.floor - 2.625) < 0.01);
  sml_training_plan_free(&p);
}

static void too_many_pieces_are_refused(void **state) {
  (void)state;
  struct sml_training_model model;
  struct sml_training_plan plan;
  assert_null(sml_training_model_parse(&model, "x", "layer a 1 w=1000000000\n"));
  const struct sml_training_shape shape = {
      .samples_per_s = 1, .batch = 1, .time_scale = 1, .has_priority = true, .piece_bytes = 1024, .link = even};
  assert_false(sml_training_plan_make(&plan, &model, &shape));
  sml_training_model_free(&model);
}

static void links_are_those_of_the_kinds_of_aggregators(void **state) {
  (void)state;
  struct sml_training_options o = {.mtu = 1500, .ring_step_s = 1e-5};
  expect_time(sml_training_our_link(&o, 1e9, 8).share, 1);
  expect_time(sml_training_our_link(&o, 1e9, 8).floor, 1514 / 1440.0);
  o.aggregator = SML_TRAINING_EMBEDDED;
  expect_time(sml_training_our_link(&o, 1e9, 8).share, 1.75);
  o.aggregator = SML_TRAINING_LINK;
  o.aggregator_bps = 4e9;
  expect_time(sml_training_our_link(&o, 1e9, 8).share, 2);
  expect_time(sml_training_our_link(&o, 1e9, 3).share, 1);
  expect_time(sml_training_ring_link(&o, 1e9, 4, false).share, 1.5);
  expect_time(sml_training_ring_link(&o, 1e9, 4, false).serial_s, 6e-5);
}

static void rates_are_read(void **state) {
  (void)state;
  double bps = 0;
  assert_true(sml_training_parse_rate("2.5gbit", &bps));
  assert_true(fabs(bps - 2.5e9) < 1);
  assert_true(sml_training_parse_rate("100mbit", &bps));
  assert_true(fabs(bps - 1e8) < 1);
  static const char *const wrong[] = {"", "1", "gbit", "1gbps", "-1gbit", "1e30gbit", "0gbit", "nangbit", "inf gbit"};
  for (size_t i = 0; i < SML_ARRAY_LEN(wrong); i++)
    if (sml_training_parse_rate(wrong[i], &bps)) fail_msg("'%s' was taken", wrong[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tables_have_the_published_totals),
      cmocka_unit_test(wrong_tables_are_refused_with_their_line),
      cmocka_unit_test(gradients_get_ready_from_the_last_layer_on),
      cmocka_unit_test(prediction_is_that_of_a_serial_link),
      cmocka_unit_test(all_scales_alike),
      cmocka_unit_test(priority_lets_the_forward_pass_begin_early),
      cmocka_unit_test(buckets_are_filled_in_the_order_of_the_backward_pass),
      cmocka_unit_test(sharded_steps_are_those_of_fsdp2),
      cmocka_unit_test(sharded_steps_are_predicted),
      cmocka_unit_test(too_many_pieces_are_refused),
      cmocka_unit_test(links_are_those_of_the_kinds_of_aggregators),
      cmocka_unit_test(rates_are_read),
  };
  return cmocka_run_group_tests_name("training", tests, NULL, NULL);
}
