/* SPDX-License-Identifier: Apache-2.0
 * switchml-pipeline: SwitchML's program in DPDK's software pipeline, between network interfaces. switchmld fills its
 * tables (--dataplane dpdk-p4). docs/p4.md says how to begin. */
#include <argp.h>
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
#include "base/options.h"
#include "base/writer.h"
#include "pipeline/control.h"
#include "pipeline/soft_switch.h"

#define DEFAULT_CONTROL "/run/switchml-pipeline"
#define DEFAULT_IDLE_US 20u
#define PASSES_A_LOOK 64u /* that are busy, until the control socket is looked at */
#define MAX_EAL_ARGUMENTS 128u
#define NAME_BYTES 128u
#define MAX_MTU 9216      /* the rest of a place in AF_PACKET's ring is for what the kernel writes before a frame */
#define RING_FRAMES 1024u /* a queue has 10 MiB of them */
#define RING_BLOCK_BYTES (2 * SML_SOFT_SWITCH_FRAME_BYTES) /* whole pages, and whole frames */

struct options {
  const char *control;
  uint32_t idle_us, num_ports;
  const char *ports[SML_SOFT_SWITCH_MAX_DEVICES];
  bool makes_code;
  struct sml_arguments rest; /* LIBRARY and options of DPDK; or SPEC and CODE */
};
#define SML_OPTIONS struct options

/* argp looks it up by name from libc. */
__attribute__((visibility("default"))) const char *argp_program_version = "switchml-pipeline " SML_VERSION_TEXT;

static const char *take_port(void *options, const char *text) {
  struct options *o = options;
  if (o->num_ports == SML_SOFT_SWITCH_MAX_DEVICES) return "too many ports";
  o->ports[o->num_ports++] = text;
  return NULL;
}

static const struct sml_option table[] = {
    {"code", 0, NULL, "Make C of a .spec of p4c-dpdk. Compiled to a shared object it is a LIBRARY", 0,
     SML_FLAG(makes_code)},
    {"control", 0, "PATH", "Socket for switchmld. Default " DEFAULT_CONTROL, 0, SML_TEXT(control)},
    {"idle-us", 0, "N", "Sleep so long when nothing has come, 0 to 1000; 0: never, a processor is its own. Default 20",
     0, SML_NUMBER(idle_us, 0, 1000)},
    {"port", 0, "NAME", "A network interface, or a device of DPDK by its name; one or more", 0,
     SML_TAKEN_BY(take_port)},
    {0}};

static const char *check(void *options) {
  const struct options *o = options;
  if (o->makes_code) return o->rest.num != 2 ? "which SPEC and CODE.c?" : NULL;
  if (o->rest.num == 0) return "which LIBRARY?";
  if (o->rest.num > 1 && o->rest.texts[1][0] != '-') return "one LIBRARY only; behind it, after --, options of DPDK";
  return o->num_ports == 0 ? "at least one --port" : NULL;
}

static const struct sml_option_parser parser = {
    .table = table,
    .arguments_doc = "LIBRARY [-- EAL...]\n--code SPEC CODE.c",
    .arguments_offset = offsetof(struct options, rest),
    .max_arguments = UINT32_MAX,
    .check = check,
    .doc =
        "SwitchML's program in DPDK's software pipeline, as a switch between ports 0, 1, ... switchmld --dataplane "
        "dpdk-p4 fills its tables."
        "\vEAL: options of DPDK instead of no huge pages, no PCI, any processor. See switchml-pipeline(1)."};

static volatile sig_atomic_t must_end;

static void end(int number) {
  (void)number;
  must_end = 1;
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
  static char lcores[32], vdevs[SML_SOFT_SWITCH_MAX_DEVICES][NAME_BYTES], names[SML_SOFT_SWITCH_MAX_DEVICES][32];
  char *arguments[MAX_EAL_ARGUMENTS] = {program};
  char *usual[] = {"--no-huge", "--no-pci", "--no-shconf", "--no-telemetry", "--log-level=4", "-m", "256", lcores};
  uint32_t num = 1;
  snprintf(lcores, sizeof lcores, "--lcores=0@(0-%u)", (unsigned)sysconf(_SC_NPROCESSORS_ONLN) - 1);
  const uint32_t num_given = o->rest.num > 1 ? o->rest.num - 1 : (uint32_t)SML_ARRAY_LEN(usual);
  if (num_given + o->num_ports + 1 > MAX_EAL_ARGUMENTS) return false;
  for (uint32_t i = 0; i < num_given; i++) arguments[num++] = o->rest.num > 1 ? o->rest.texts[1 + i] : usual[i];
  for (uint32_t i = 0; i < o->num_ports; i++) {
    if (if_nametoindex(o->ports[i]) == 0) continue;
    warn_of_long_frames(o->ports[i]);
    snprintf(names[i], sizeof names[i], "net_af_packet%u", i);
    snprintf(vdevs[i], sizeof vdevs[i], "--vdev=%.31s,iface=%.15s,blocksz=%u,framesz=%u,framecnt=%u", names[i],
             o->ports[i], RING_BLOCK_BYTES, SML_SOFT_SWITCH_FRAME_BYTES, RING_FRAMES);
    o->ports[i] = names[i];
    arguments[num++] = vdevs[i];
  }
  return rte_eal_init((int)num, arguments) >= 0;
}

static bool run(const struct options *o, struct sml_soft_switch *sw, struct sml_control *control) {
  uint32_t num_busy = 0;
  while (!must_end) {
    const bool is_idle = sml_soft_switch_pass(sw) == 0;
    num_busy = is_idle ? 0 : num_busy + 1;
    if (!is_idle && num_busy % PASSES_A_LOOK != 0) continue;
    if (!sml_control_serve(control, is_idle ? o->idle_us * SML_NS_PER_US : 0)) return false;
  }
  return true;
}

int main(int argc, char **argv) {
  sml_fd_fill_standard();
  struct options o = {.control = DEFAULT_CONTROL, .idle_us = DEFAULT_IDLE_US};
  sml_options_parse(&parser, argc, argv, &o);
  if (o.makes_code) return !sml_program_make_code(o.rest.texts[0], o.rest.texts[1]);
  const struct sigaction action = {.sa_handler = end};
  if (!start_dpdk(argv[0], &o)) return fprintf(stderr, "switchml-pipeline: DPDK does not start\n"), 1;
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  prctl(PR_SET_TIMERSLACK, 1000);
  struct sml_soft_switch *sw = calloc(1, sizeof *sw);
  struct sml_control *control = NULL;
  bool is_well = sw && sml_soft_switch_open(sw, o.rest.texts[0], o.ports, o.num_ports) &&
                 (control = sml_control_open(o.control, sw)) != NULL;
  if (is_well) {
    sml_writer_say("switchml-pipeline: %u ports, control at %s\n", o.num_ports, o.control);
    is_well = run(&o, sw, control);
    sml_writer_say(
        "switchml-pipeline: %llu frames in, %llu out; %llu broken, %llu gone round, %llu refused by a port, "
        "%llu lost inside\n",
        (unsigned long long)sw->num_received, (unsigned long long)sw->num_sent, (unsigned long long)sw->num_broken,
        (unsigned long long)sw->num_round, (unsigned long long)sw->num_refused,
        (unsigned long long)sw->program.num_lost);
  }
  sml_control_close(control);
  if (sw) sml_soft_switch_close(sw);
  free(sw);
  return is_well ? 0 : 1;
}
