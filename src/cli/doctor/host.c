/* SPDX-License-Identifier: Apache-2.0
 * What matters of this host: processors, clock, offload, buffers, limits. What changes no recommendation is not
 * looked at. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "cli/doctor/doctor.h"
#include "quant/quant.h"

#define WANTED_SHARED_BYTES ((size_t)8 << 20) /* of eight ranks of a host, and some more */
#define WANTED_BUFFER_BYTES (8u << 20)        /* the library's default */
#define WANTED_FILES 256u
#define SLOW_CLOCK_NS 300.0

/* The first line of a file; false: there is none. */
static bool read_line(const char *path, char *line, size_t room) {
  FILE *file = fopen(path, "re");
  if (!file) return false;
  const bool is_read = fgets(line, (int)room, file) != NULL;
  fclose(file);
  if (is_read) line[strcspn(line, "\n")] = 0;
  return is_read;
}

/* --- processors --- */

/* Processors that the control group lets us use, as time; 0: all. */
static double read_quota(void) {
  char line[80], period[80];
  double quota_us = 0, period_us = 0;
  if (read_line("/sys/fs/cgroup/cpu.max", line, sizeof line))
    return sscanf(line, "%lf %lf", &quota_us, &period_us) == 2 && period_us > 0 ? quota_us / period_us : 0;
  if (!read_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", line, sizeof line) ||
      !read_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us", period, sizeof period))
    return 0;
  quota_us = strtod(line, NULL);
  period_us = strtod(period, NULL);
  return quota_us > 0 && period_us > 0 ? quota_us / period_us : 0;
}

static void check_processors(struct sml_doctor *d) {
  cpu_set_t allowed;
  char quota_text[64] = "";
  const char *threads_text = getenv("SWITCHML_THREADS");
  const long num_threads = threads_text && atol(threads_text) > 0 ? atol(threads_text) : 1;
  const long num_online = sysconf(_SC_NPROCESSORS_ONLN);
  const double quota = read_quota();
  CPU_ZERO(&allowed);
  const long num_allowed = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? (long)CPU_COUNT(&allowed) : num_online;
  if (quota > 0) snprintf(quota_text, sizeof quota_text, ", a control group's quota of %.2g", quota);
  /* One thread a lane sums; the program's own work wants a processor, too. */
  const bool is_few = num_allowed < num_threads + 1 || (quota > 0 && quota < (double)num_threads + 0.9);
  sml_doctor_find(d, SML_DOCTOR_HOST, "processors", is_few ? SML_FINDING_WARNING : SML_FINDING_OK,
                  json_pack("{s:I, s:I, s:f, s:I}", "allowed", (json_int_t)num_allowed, "online",
                            (json_int_t)num_online, "quota", quota, "threads", (json_int_t)num_threads),
                  is_few ? "let the process run on one processor more than SWITCHML_THREADS (taskset, --cpus of the "
                           "container, cpuset or quota of the control group)"
                         : "",
                  "%ld of %ld processors allowed%s, for %ld engine thread%s and the program", num_allowed, num_online,
                  quota_text, num_threads, num_threads == 1 ? "" : "s");
}

static void check_kernels(struct sml_doctor *d) {
  const char *name = sml_quant_select(getenv("SWITCHML_KERNELS"))->name;
  const bool is_scalar = strcmp(name, "scalar") == 0;
  sml_doctor_find(d, SML_DOCTOR_HOST, "kernels", is_scalar ? SML_FINDING_WARNING : SML_FINDING_OK,
                  json_pack("{s:s}", "kernels", name),
                  is_scalar ? "unset SWITCHML_KERNELS, or let the virtual machine have AVX2 (CPU model 'host')" : "",
                  is_scalar ? "computes with scalar instructions: slower by 4 to 8 times%.0s" : "computes with %s",
                  name);
}

static void check_governor(struct sml_doctor *d) {
  char governor[40], driver[40];
  if (!read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", governor, sizeof governor)) return;
  if (!read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", driver, sizeof driver)) driver[0] = 0;
  /* "powersave" is the ordinary mode of these two drivers, and speeds up as needed. */
  const bool adapts = strncmp(driver, "intel_pstate", 12) == 0 || strncmp(driver, "amd-pstate", 10) == 0;
  if (strcmp(governor, "powersave") != 0 || adapts) return;
  sml_doctor_find(d, SML_DOCTOR_HOST, "governor", SML_FINDING_WARNING, json_pack("{s:s}", "governor", governor),
                  "cpupower frequency-set -g performance (or schedutil)",
                  "the processors are kept at their lowest frequency (governor %s)", governor);
}

/* --- clock --- */

static void check_clock(struct sml_doctor *d) {
  char source[64] = "unknown";
  struct timespec now;
  read_line("/sys/devices/system/clocksource/clocksource0/current_clocksource", source, sizeof source);
  double best_ns = 1e9;
  for (uint32_t round = 0; round < 5; round++) { /* the best of some: others run as well */
    const uint64_t start_ns = sml_clock_ns();
    for (uint32_t i = 0; i < 1000; i++) clock_gettime(CLOCK_MONOTONIC, &now);
    const double ns = (double)(sml_clock_ns() - start_ns) / 1000;
    best_ns = ns < best_ns ? ns : best_ns;
  }
  const bool is_slow = best_ns > SLOW_CLOCK_NS;
  sml_doctor_find(d, SML_DOCTOR_HOST, "clock", is_slow ? SML_FINDING_WARNING : SML_FINDING_OK,
                  json_pack("{s:s, s:f}", "source", source, "ns", best_ns),
                  is_slow
                      ? "boot with clocksource=tsc (tsc=reliable in virtual machines whose host has it), or kvm-clock: "
                        "the clock is read for every burst of packets"
                      : "",
                  "clock source %s: %.0f ns a look", source, best_ns);
}

/* --- sockets --- */

static void check_offload(struct sml_doctor *d, int fd) {
  const int segment_bytes = 1400, on = 1;
  const bool has_segment = setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment_bytes, sizeof segment_bytes) == 0;
  const bool has_gro = setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on) == 0;
  const bool has_both = has_segment && has_gro;
  sml_doctor_find(d, SML_DOCTOR_HOST, "offload", has_both ? SML_FINDING_OK : SML_FINDING_WARNING,
                  json_pack("{s:b, s:b}", "udp_segment", has_segment, "udp_gro", has_gro),
                  has_both ? ""
                           : "use a kernel of 5.0 or later (some sandboxes have none of it): packets cost several "
                             "times the processor time",
                  "UDP_SEGMENT %s, UDP_GRO %s", has_segment ? "works" : "is missing", has_gro ? "works" : "is missing");
}

/* Bytes of the buffer that a job would get. */
static uint32_t get_buffer(int fd, int force_option, int option) {
  const int wanted = WANTED_BUFFER_BYTES;
  int value = 0;
  socklen_t num_bytes = sizeof value;
  if (setsockopt(fd, SOL_SOCKET, force_option, &wanted, sizeof wanted) != 0)
    setsockopt(fd, SOL_SOCKET, option, &wanted, sizeof wanted);
  if (getsockopt(fd, SOL_SOCKET, option, &value, &num_bytes) != 0 || value < 0) return 0;
  return (uint32_t)value / 2; /* the kernel doubles it for its own needs */
}

static void check_buffers(struct sml_doctor *d, int fd) {
  const uint32_t rx_bytes = get_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF);
  const uint32_t tx_bytes = get_buffer(fd, SO_SNDBUFFORCE, SO_SNDBUF);
  const bool is_small = rx_bytes < WANTED_BUFFER_BYTES || tx_bytes < WANTED_BUFFER_BYTES;
  sml_doctor_find(d, SML_DOCTOR_HOST, "buffers", is_small ? SML_FINDING_WARNING : SML_FINDING_OK,
                  json_pack("{s:I, s:I, s:I}", "receive_bytes", (json_int_t)rx_bytes, "send_bytes",
                            (json_int_t)tx_bytes, "wanted_bytes", (json_int_t)WANTED_BUFFER_BYTES),
                  is_small
                      ? "sysctl -w net.core.rmem_max=8388608 net.core.wmem_max=8388608 (16777216 on the aggregator; "
                        "and into /etc/sysctl.d)"
                      : "",
                  "a socket gets %u KiB to receive and %u KiB to send of the %u KiB that a job wants", rx_bytes >> 10,
                  tx_bytes >> 10, WANTED_BUFFER_BYTES >> 10);
}

static void check_sockets(struct sml_doctor *d) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    sml_doctor_find(d, SML_DOCTOR_HOST, "sockets", SML_FINDING_FAILED, NULL,
                    "let the process open UDP sockets (sandbox, seccomp, limit of open files)", "no UDP socket: %s",
                    strerror(errno));
    return;
  }
  check_buffers(d, fd);
  check_offload(d, fd);
  close(fd);
}

/* --- limits --- */

static void check_files(struct sml_doctor *d) {
  struct rlimit limit = {0};
  getrlimit(RLIMIT_NOFILE, &limit);
  const bool is_few = limit.rlim_cur < WANTED_FILES;
  sml_doctor_find(d, SML_DOCTOR_HOST, "files", is_few ? SML_FINDING_WARNING : SML_FINDING_OK,
                  json_pack("{s:I}", "limit", (json_int_t)limit.rlim_cur),
                  is_few ? "ulimit -n 1024 (LimitNOFILE= of a service)" : "", "%llu open files allowed",
                  (unsigned long long)limit.rlim_cur);
}

/* Ranks of one host share a memfd, which no size of /dev/shm bounds, but a limit of file sizes does. */
static void check_shared_memory(struct sml_doctor *d) {
  const int fd = memfd_create("switchml-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const int error = fd < 0 ? errno : sml_fd_allocate_quietly(fd, WANTED_SHARED_BYTES);
  const bool is_limit = error == EFBIG;
  sml_doctor_find(d, SML_DOCTOR_HOST, "memory", error == 0 ? SML_FINDING_OK : SML_FINDING_WARNING, NULL,
                  error == 0 ? ""
                  : is_limit ? "ulimit -f unlimited (LimitFSIZE= of a service): ranks of a host use the network now"
                             : "let the sandbox allow memfd_create: ranks of one host use the network meanwhile",
                  error == 0 ? "ranks of this host can share memory%.0s" : "no memory can be shared: %s",
                  is_limit ? "the limit of file sizes is too low" : strerror(error));
  if (fd >= 0) close(fd);
}

void sml_doctor_check_host(struct sml_doctor *d) {
  check_processors(d);
  check_kernels(d);
  check_governor(d);
  check_clock(d);
  check_sockets(d);
  check_files(d);
  check_shared_memory(d);
}
