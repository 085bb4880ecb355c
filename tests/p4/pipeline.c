/* SPDX-License-Identifier: Apache-2.0
 * pipeline --code SPEC CODE: makes C of a program of p4c-dpdk, to be compiled to a shared object.
 * pipeline LIBRARY IO SCRIPT PACKETS: runs that over the packets of a file of frames.py, whose microseconds are the
 * port that each comes in by: the ring IN0, IN1, .. They go out as IO says. One packet is through before the next
 * comes: the pipeline works on several at a time, and one that needs fewer tables would overtake.
 * SCRIPT has a line for each thing that a control plane does first:
 *   entry TABLE match ... action ...     a table entry, in the words of DPDK's table files
 *   default TABLE action ...             what a miss does
 *   register NAME INDEX VALUE
 *   mirror SESSION PORT
 *   show NAME INDEX                      afterwards: prints NAME INDEX VALUE
 * Written for `make check-p4`; no huge pages, no devices. */
#include <rte_eal.h>
#include <rte_mbuf.h>
#include <rte_ring.h>
#include <rte_swx_ctl.h>
#include <rte_swx_pipeline.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INSTRUCTIONS_A_PACKET 20000 /* a few hundred times what one needs, all threads of the pipeline counted */
#define FILE_HEAD_BYTES 24
#define MAX_PORTS 256
#define GROWTH_BYTES 1024 /* an answer with lanes is written before the first byte of the question, which has none */

static void fail(const char *what, const char *of) {
  fprintf(stderr, "pipeline: %s: %s\n", what, of);
  exit(1);
}

static void add_entry(struct rte_swx_ctl_pipeline *control, char *words, int is_default) {
  char *rest;
  const char *table = strtok_r(words, " ", &rest);
  int is_comment = 0;
  struct rte_swx_table_entry *entry = rte_swx_ctl_pipeline_table_entry_read(control, table, rest, &is_comment);
  if (entry == NULL) fail(table, rest);
  const int status = is_default ? rte_swx_ctl_pipeline_table_default_entry_add(control, table, entry)
                                : rte_swx_ctl_pipeline_table_entry_add(control, table, entry);
  if (status != 0) fail("entry refused", table);
}

static void do_line(struct rte_swx_pipeline *pipeline, struct rte_swx_ctl_pipeline *control, char *line) {
  char name[64];
  unsigned index, port;
  unsigned long long value;
  if (strncmp(line, "entry ", 6) == 0) {
    add_entry(control, line + 6, 0);
  } else if (strncmp(line, "default ", 8) == 0) {
    add_entry(control, line + 8, 1);
  } else if (sscanf(line, "register %63s %u %llu", name, &index, &value) == 3) {
    if (rte_swx_ctl_pipeline_regarray_write(pipeline, name, index, value) != 0) fail("register", name);
  } else if (sscanf(line, "mirror %u %u", &index, &port) == 2) {
    struct rte_swx_pipeline_mirroring_session_params session = {.port_id = port, .truncation_length = UINT32_MAX};
    if (rte_swx_ctl_pipeline_mirroring_session_set(pipeline, index, &session) != 0) fail("mirror session", line);
  } else if (strncmp(line, "show ", 5) != 0) {
    fail("what is this", line);
  }
}

static void show(struct rte_swx_pipeline *pipeline, const char *line) {
  char name[64];
  unsigned index;
  uint64_t value;
  if (sscanf(line, "show %63s %u", name, &index) != 2) return;
  if (rte_swx_ctl_pipeline_regarray_read(pipeline, name, index, &value) != 0) fail("register", name);
  printf("%s %u %llu\n", name, index, (unsigned long long)value);
}

static int make_code(const char *spec_path, const char *code_path) {
  FILE *spec = fopen(spec_path, "r"), *code = fopen(code_path, "w");
  uint32_t line = 0;
  const char *what = NULL;
  if (spec == NULL || code == NULL) fail("cannot open", spec_path);
  if (rte_swx_pipeline_codegen(spec, code, &line, &what) != 0) {
    fprintf(stderr, "%s:%u: %s\n", spec_path, (unsigned)line, what == NULL ? "refused" : what);
    return 1;
  }
  return fclose(code) == 0 ? 0 : 1;
}

static void run_packets(struct rte_swx_pipeline *pipeline, struct rte_mempool *pool, struct rte_ring **in,
                        const char *path) {
  FILE *file = fopen(path, "rb");
  uint32_t head[4]; /* seconds, port, bytes that are here, bytes that it had */
  if (file == NULL || fseek(file, FILE_HEAD_BYTES, SEEK_SET) != 0) fail("cannot read", path);
  while (fread(head, sizeof(head), 1, file) == 1) {
    struct rte_mbuf *packet = rte_pktmbuf_alloc(pool);
    if (packet == NULL || head[2] + GROWTH_BYTES > rte_pktmbuf_tailroom(packet)) fail("no room for a packet", path);
    packet->data_off = (uint16_t)(packet->data_off + GROWTH_BYTES);
    if (fread(rte_pktmbuf_append(packet, (uint16_t)head[2]), head[2], 1, file) != 1) fail("cut short", path);
    if (head[1] >= MAX_PORTS || rte_ring_enqueue(in[head[1]], packet) != 0) fail("ring", "full");
    rte_swx_pipeline_run(pipeline, INSTRUCTIONS_A_PACKET);
    rte_swx_pipeline_flush(pipeline);
  }
  fclose(file);
}

int main(int argc, char **argv) {
  const int makes_code = argc == 4 && strcmp(argv[1], "--code") == 0;
  if (argc != 5 && !makes_code) fail("usage", "pipeline --code SPEC CODE | LIBRARY IO SCRIPT PACKETS");
  char *eal[] = {argv[0], "--no-huge", "--no-pci", "--no-shconf", "--log-level=3", "--no-telemetry", "-m", "256",
                 "-l",    "0"};
  if (rte_eal_init((int)(sizeof(eal) / sizeof(eal[0])), eal) < 0) fail("DPDK", "does not start");
  if (makes_code) return make_code(argv[2], argv[3]);
  struct rte_mempool *pool = rte_pktmbuf_pool_create("POOL", 4095, 0, 0, 2176 + GROWTH_BYTES, 0);
  struct rte_ring *in[MAX_PORTS];
  for (unsigned port = 0; port < MAX_PORTS; port++) {
    char name[8];
    snprintf(name, sizeof(name), "IN%u", port);
    in[port] = rte_ring_create(name, 4, 0, RING_F_SP_ENQ | RING_F_SC_DEQ);
    if (in[port] == NULL) fail("ring", "no memory");
  }
  if (pool == NULL) fail("pool", "no memory");

  FILE *io = fopen(argv[2], "r"), *script = fopen(argv[3], "r");
  if (io == NULL || script == NULL) fail("cannot read", argv[2]);
  struct rte_swx_pipeline *pipeline;
  if (rte_swx_pipeline_build_from_lib(&pipeline, "switchml", argv[1], io, 0) != 0) fail("no pipeline of", argv[1]);
  struct rte_swx_ctl_pipeline *control = rte_swx_ctl_pipeline_create(pipeline);
  if (control == NULL) fail("control", argv[1]);

  char line[1024];
  while (fgets(line, sizeof(line), script) != NULL) {
    line[strcspn(line, "\n")] = 0;
    do_line(pipeline, control, line);
  }
  if (rte_swx_ctl_pipeline_commit(control, 1) != 0) fail("commit", "refused");
  run_packets(pipeline, pool, in, argv[4]);
  rewind(script);
  while (fgets(line, sizeof(line), script) != NULL) show(pipeline, line);
  rte_swx_pipeline_free(pipeline);
  return 0;
}
