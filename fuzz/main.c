/* SPDX-License-Identifier: Apache-2.0
 * A fuzz target without libFuzzer: main CORPUS [--random N] [--seed S] runs every input of a corpus file, and N
 * mutations of them, through the target. Prints the Test Anything Protocol. An input that the target does not
 * survive ends the process; its bytes are then in the file named on stderr. */
#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include "fuzz/fuzz.h"

#define MAX_INPUT_BYTES 8192u
#define MAX_INPUTS 1024u

struct input {
  uint8_t *bytes;
  size_t num_bytes;
};
static struct input inputs[MAX_INPUTS];
static size_t num_inputs;

/* The input under test, for the signal handler. */
static uint8_t current[MAX_INPUT_BYTES];
static size_t current_bytes;

/* Only what a signal handler may call. */
static void keep_current(int signal_number) {
  char path[] = "/tmp/fuzz-crash-XXXXXX";
  const int fd = mkstemp(path);
  if (fd >= 0) {
    static const char text[] = "the input is in ";
    if (write(fd, current, current_bytes) < 0 || write(2, text, sizeof text - 1) < 0 ||
        write(2, path, sizeof path - 1) < 0 || write(2, "\n", 1) < 0)
      _exit(1);
  }
  (void)signal(signal_number, SIG_DFL);
  (void)raise(signal_number);
}

static void run(const uint8_t *bytes, size_t num_bytes) {
  memcpy(current, bytes, num_bytes);
  current_bytes = num_bytes;
  uint8_t *copy = fuzz_copy(bytes, num_bytes); /* exactly as large: reads beyond it are seen */
  (void)LLVMFuzzerTestOneInput(copy, num_bytes);
  free(copy);
}

static uint8_t digit_of(char c) {
  const char *digits = "0123456789abcdef", *found = strchr(digits, c);
  CHECK(c != 0 && found != NULL, "'%c' is no hexadecimal digit", c);
  return (uint8_t)(found - digits);
}

/* A name and the bytes in hexadecimal. */
static void take_line(char *line) {
  char *hex = strchr(line, ' ');
  CHECK(hex != NULL && num_inputs < MAX_INPUTS, "input %zu: a line is a name and bytes", num_inputs);
  hex++;
  struct input *input = &inputs[num_inputs++];
  input->num_bytes = strcspn(hex, "\n") / 2;
  CHECK(input->num_bytes <= MAX_INPUT_BYTES, "input %zu has more than %u bytes", num_inputs, MAX_INPUT_BYTES);
  input->bytes = malloc(MAX_INPUT_BYTES); /* room for mutations */
  CHECK(input->bytes != NULL, "no memory");
  for (size_t i = 0; i < input->num_bytes; i++)
    input->bytes[i] = (uint8_t)(digit_of(hex[2 * i]) << 4 | digit_of(hex[2 * i + 1]));
}

static void load(const char *path) {
  static char line[2 * MAX_INPUT_BYTES + 128];
  FILE *in = fopen(path, "r");
  CHECK(in != NULL, "%s: %s", path, strerror(errno));
  while (fgets(line, sizeof line, in) != NULL)
    if (line[0] != '#') take_line(line);
  (void)fclose(in);
  CHECK(num_inputs > 0, "%s has no inputs", path);
}

/* One to eight small changes of one input, or a splice of two. */
static size_t mutate(struct sml_prng *prng, uint8_t *out) {
  const struct input *from = &inputs[sml_prng_below(prng, num_inputs)];
  size_t num_bytes = from->num_bytes;
  memcpy(out, from->bytes, num_bytes);
  for (uint64_t i = 1 + sml_prng_below(prng, 8); i > 0; i--) {
    const struct input *other = &inputs[sml_prng_below(prng, num_inputs)];
    const size_t at = (size_t)sml_prng_below(prng, num_bytes + 1);
    size_t count = (size_t)sml_prng_below(prng, 16);
    switch (sml_prng_below(prng, 6)) {
      case 0: /* another byte */
        if (at < num_bytes) out[at] = (uint8_t)sml_prng_next(prng);
        break;
      case 1: /* another bit */
        if (at < num_bytes) out[at] = (uint8_t)(out[at] ^ 1u << sml_prng_below(prng, 8));
        break;
      case 2: /* a byte more */
        if (num_bytes == MAX_INPUT_BYTES) break;
        memmove(out + at + 1, out + at, num_bytes - at);
        out[at] = (uint8_t)sml_prng_next(prng);
        num_bytes++;
        break;
      case 3: /* some bytes less */
        count = count < num_bytes - at ? count : num_bytes - at;
        memmove(out + at, out + at + count, num_bytes - at - count);
        num_bytes -= count;
        break;
      case 4: /* some bytes from elsewhere, once more */
        count = count < num_bytes - at ? count : num_bytes - at;
        memmove(out + sml_prng_below(prng, num_bytes - count + 1), out + at, count);
        break;
      default: /* the end of another */
        if (at >= other->num_bytes) break;
        memcpy(out + at, other->bytes + at, other->num_bytes - at);
        num_bytes = other->num_bytes;
    }
  }
  return num_bytes;
}

int main(int argc, char **argv) {
  uint64_t num_random = 0;
  struct sml_prng prng = {1};
  CHECK(argc >= 2, "usage: %s CORPUS [--random N] [--seed S]", argv[0]);
  for (int i = 2; i + 1 < argc; i += 2)
    if (strcmp(argv[i], "--random") == 0) num_random = strtoull(argv[i + 1], NULL, 10);
    else if (strcmp(argv[i], "--seed") == 0) prng.state = strtoull(argv[i + 1], NULL, 10);
    else CHECK(false, "unknown option %s", argv[i]);
  static const int signals[] = {SIGABRT, SIGSEGV, SIGILL, SIGBUS, SIGFPE, SIGTRAP};
  for (size_t i = 0; i < SML_ARRAY_LEN(signals); i++) (void)signal(signals[i], keep_current);
  load(argv[1]);
  printf("1..2\n");
  for (size_t i = 0; i < num_inputs; i++) run(inputs[i].bytes, inputs[i].num_bytes);
  printf("ok 1 - the %zu inputs of the corpus\n", num_inputs);
  static uint8_t bytes[MAX_INPUT_BYTES];
  for (uint64_t i = 0; i < num_random; i++) run(bytes, mutate(&prng, bytes));
  printf("ok 2 - %llu mutations of them\n", (unsigned long long)num_random);
  for (size_t i = 0; i < num_inputs; i++) free(inputs[i].bytes);
  return 0;
}
