/* SPDX-License-Identifier: Apache-2.0
 * memcopy PROCESSES BYTES: how fast so many processes together copy memory, each its own buffer of this size over and
 * over for 0.3 s: the bound of everything that moves tensors within one host. Prints bytes copied a second. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_PROCESSES 256
#define MEASURED_S 0.3

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Bytes a second of this process from `start_s` on; the first copy, ahead of it, brings the pages in. */
static double copy(size_t num_bytes, double start_s) {
  uint8_t *from = malloc(num_bytes), *to = malloc(num_bytes);
  if (!from || !to) return 0;
  memset(from, 1, num_bytes);
  memcpy(to, from, num_bytes);
  while (now_s() < start_s) usleep(200);
  double end_s = now_s();
  const double begin_s = end_s;
  size_t num_copied = 0;
  while (end_s - begin_s < MEASURED_S) {
    from[num_copied % num_bytes]++;
    memcpy(to, from, num_bytes);
    __asm__ volatile("" : : "r"(to) : "memory");
    num_copied += num_bytes;
    end_s = now_s();
  }
  return (double)num_copied / (end_s - begin_s);
}

int main(int argc, char **argv) {
  const int num_processes = argc == 3 ? atoi(argv[1]) : 0;
  const long num_bytes = argc == 3 ? atol(argv[2]) : 0;
  if (num_processes < 1 || num_processes > MAX_PROCESSES || num_bytes < 1) return 2;
  double *rates = mmap(NULL, MAX_PROCESSES * sizeof *rates, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (rates == MAP_FAILED) return 1;
  const double start_s = now_s() + 0.3;
  for (int i = 0; i < num_processes; i++) {
    pid_t pid = fork();
    if (pid < 0) return 1;
    if (pid == 0) {
      rates[i] = copy((size_t)num_bytes, start_s);
      _exit(rates[i] > 0 ? 0 : 1);
    }
  }
  double total = 0;
  for (int i = 0; i < num_processes; i++) {
    int status = 0;
    if (wait(&status) < 0 || status != 0) return 1;
  }
  for (int i = 0; i < num_processes; i++) total += rates[i];
  printf("%.0f\n", total);
  return 0;
}
