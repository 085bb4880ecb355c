/* SPDX-License-Identifier: Apache-2.0
 * switchml-pipeline: SwitchML's program in DPDK's software pipeline, between network interfaces. switchmld fills its
 * tables (--dataplane dpdk-p4). docs/p4.md says how to begin. */
#include <getopt.h>
#include <net/if.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/writer.h"
#include "pipeline/control.h"
#include "pipeline/host.h"

#define DEFAULT_CONTROL "/run/switchml-pipeline"
#define DEFAULT_IDLE_US 20u
#define MAX_IDLE_US 1000u
#define PASSES_A_LOOK 64u /* that are busy, until the control socket is looked at */
#define MAX_EAL_ARGUMENTS 128u
#define NAME_BYTES 128u
#define MAX_MTU 9216      /* the rest of a place in AF_PACKET's ring is for what the kernel writes before a frame */
#define RING_FRAMES 1024u /* a queue has 10 MiB of them */
#define RING_BLOCK_BYTES (2 * SML_HOST_FRAME_BYTES) /* whole pages, and whole frames */

struct options {
  const char *control, *library;
  uint32_t idle_us, num_ports;
  const char *ports[SML_HOST_MAX_DEVICES];
  char **eal; /* what stands after -- */
  int num_eal;
};

static volatile sig_atomic_t must_end;

static void end(int number) {
  (void)number;
  must_end = 1;
}

static int usage(FILE *to) {
  fputs(
      "Usage: switchml-pipeline [--control PATH] [--idle-us N] --port NAME [--port NAME ...] LIBRARY [-- EAL ...]\n"
      "   or: switchml-pipeline --code SPEC CODE.c\n"
      "SwitchML's program in DPDK's software pipeline, as a switch between ports 0, 1, ... switchmld --dataplane\n"
      "dpdk-p4 fills its tables.\n\n"
      "  --code             Make C of a .spec of p4c-dpdk. Compiled to a shared object it is a LIBRARY\n"
      "  --control PATH     Socket for switchmld. Default " DEFAULT_CONTROL
      "\n"
      "  --idle-us N        Sleep so long when nothing has come; 0: never, a processor is its own. Default 20\n"
      "  --port NAME        A network interface, or a device of DPDK by its name\n"
      "  EAL                Options of DPDK instead of: no huge pages, no PCI, any processor\n",
      to);
  return to == stdout ? 0 : 2;
}

static bool take_number(const char *text, uint32_t max, uint32_t *value_out) {
  char *rest;
  const unsigned long value = strtoul(text, &rest, 10);
  *value_out = (uint32_t)value;
  return *text >= '0' && *text <= '9' && *rest == 0 && value <= max;
}

/* -1: all is well; else the exit status. */
static int parse(int argc, char **argv, struct options *o) {
  enum { CONTROL = 256, IDLE, PORT, CODE, HELP, VERSION };
  static const struct option names[] = {{"control", required_argument, NULL, CONTROL},
                                        {"idle-us", required_argument, NULL, IDLE},
                                        {"port", required_argument, NULL, PORT},
                                        {"code", no_argument, NULL, CODE},
                                        {"help", no_argument, NULL, HELP},
                                        {"version", no_argument, NULL, VERSION},
                                        {0}};
  bool is_code = false;
  for (int key; (key = getopt_long(argc, argv, "+", names, NULL)) != -1;) {
    if (key == CONTROL) o->control = optarg;
    else if (key == CODE) is_code = true;
    else if (key == HELP) return usage(stdout);
    else if (key == VERSION) return printf("switchml-pipeline %s\n", SML_VERSION_TEXT), 0;
    else if (key == PORT && o->num_ports < SML_HOST_MAX_DEVICES) o->ports[o->num_ports++] = optarg;
    else if (key != IDLE || !take_number(optarg, MAX_IDLE_US, &o->idle_us)) return usage(stderr);
  }
  if (is_code) return argc - optind != 2 ? usage(stderr) : !sml_program_make_code(argv[optind], argv[optind + 1]);
  if (optind == argc || o->num_ports == 0) return usage(stderr);
  o->library = argv[optind++];
  if (optind < argc && strcmp(argv[optind], "--") != 0) return usage(stderr);
  o->eal = argv + optind + (optind < argc);
  o->num_eal = argc - optind - (optind < argc);
  return -1;
}

/* Frames that AF_PACKET's ring has no room for would vanish without a word. */
static void warn_of_long_frames(const char *interface) {
  struct ifreq request = {.ifr_mtu = 0};
  const int fd = sml_fd_raise(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
  if (fd >= 0 && ioctl(fd, SIOCGIFMTU, &request) == 0 && request.ifr_mtu > MAX_MTU)
    sml_writer_say(
        "switchml-pipeline: %s has an MTU of %d: frames of more than %d bytes may be lost. Set the MTU "
        "of it, and of the hosts' interfaces, to at most that\n",
        interface, request.ifr_mtu, MAX_MTU);
  if (fd >= 0) close(fd);
}

/* Interfaces become devices of DPDK's AF_PACKET driver. */
static bool start_dpdk(char *program, struct options *o) {
  static char lcores[32], vdevs[SML_HOST_MAX_DEVICES][NAME_BYTES], names[SML_HOST_MAX_DEVICES][32];
  char *arguments[MAX_EAL_ARGUMENTS] = {program};
  char *usual[] = {"--no-huge", "--no-pci", "--no-shconf", "--no-telemetry", "--log-level=4", "-m", "256", lcores};
  uint32_t num = 1;
  snprintf(lcores, sizeof lcores, "--lcores=0@(0-%u)", (unsigned)sysconf(_SC_NPROCESSORS_ONLN) - 1);
  const uint32_t num_given = o->num_eal > 0 ? (uint32_t)o->num_eal : SML_ARRAY_LEN(usual);
  if (num_given + o->num_ports + 1 > MAX_EAL_ARGUMENTS) return false;
  for (uint32_t i = 0; i < num_given; i++) arguments[num++] = o->num_eal > 0 ? o->eal[i] : usual[i];
  for (uint32_t i = 0; i < o->num_ports; i++) {
    if (if_nametoindex(o->ports[i]) == 0) continue;
    warn_of_long_frames(o->ports[i]);
    snprintf(names[i], sizeof names[i], "net_af_packet%u", i);
    snprintf(vdevs[i], sizeof vdevs[i], "--vdev=%.31s,iface=%.15s,blocksz=%u,framesz=%u,framecnt=%u", names[i],
             o->ports[i], RING_BLOCK_BYTES, SML_HOST_FRAME_BYTES, RING_FRAMES);
    o->ports[i] = names[i];
    arguments[num++] = vdevs[i];
  }
  return rte_eal_init((int)num, arguments) >= 0;
}

static bool run(const struct options *o, struct sml_host *host, struct sml_control *control) {
  uint32_t num_busy = 0;
  while (!must_end) {
    const bool is_idle = sml_host_pass(host) == 0;
    num_busy = is_idle ? 0 : num_busy + 1;
    if (!is_idle && num_busy % PASSES_A_LOOK != 0) continue;
    if (!sml_control_serve(control, is_idle ? o->idle_us * SML_NS_PER_US : 0)) return false;
  }
  return true;
}

int main(int argc, char **argv) {
  sml_fd_fill_standard();
  struct options o = {.control = DEFAULT_CONTROL, .idle_us = DEFAULT_IDLE_US};
  const int status = parse(argc, argv, &o);
  if (status >= 0) return status;
  const struct sigaction action = {.sa_handler = end};
  if (!start_dpdk(argv[0], &o)) return fprintf(stderr, "switchml-pipeline: DPDK does not start\n"), 1;
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  prctl(PR_SET_TIMERSLACK, 1000);
  struct sml_host *host = calloc(1, sizeof *host);
  struct sml_control *control = NULL;
  bool is_well = host && sml_host_open(host, o.library, o.ports, o.num_ports) &&
                 (control = sml_control_open(o.control, host)) != NULL;
  if (is_well) {
    sml_writer_say("switchml-pipeline: %u ports, control at %s\n", o.num_ports, o.control);
    is_well = run(&o, host, control);
    sml_writer_say(
        "switchml-pipeline: %llu frames in, %llu out; %llu broken, %llu gone round, %llu refused by a port, "
        "%llu lost inside\n",
        (unsigned long long)host->num_received, (unsigned long long)host->num_sent,
        (unsigned long long)host->num_broken, (unsigned long long)host->num_round,
        (unsigned long long)host->num_refused, (unsigned long long)host->program.num_lost);
  }
  sml_control_close(control);
  if (host) sml_host_close(host);
  free(host);
  return is_well ? 0 : 1;
}
