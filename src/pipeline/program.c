/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/program.h"

#include <rte_swx_ctl.h>
#include <rte_swx_pipeline.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define RING_SLOTS 1024u /* more than a batch, at any port */
#define BURST 32u
#define INSTRUCTIONS_A_PACKET 256u /* then we look for what has come out */
#define MAX_LOOKS 1000u

__attribute__((format(printf, 2, 3))) static bool fail(struct sml_program *p, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(p->error, sizeof p->error, format, arguments);
  va_end(arguments);
  return false;
}

bool sml_program_make_code(const char *spec_path, const char *code_path) {
  FILE *spec = fopen(spec_path, "r"), *code = spec ? fopen(code_path, "w") : NULL;
  uint32_t line = 0;
  const char *what = NULL;
  if (!code) {
    perror(spec ? code_path : spec_path);
    if (spec) fclose(spec);
    return false;
  }
  bool is_done = rte_swx_pipeline_codegen(spec, code, &line, &what) == 0;
  if (!is_done) fprintf(stderr, "%s:%u: %s\n", spec_path, line, what ? what : "refused");
  fclose(spec);
  if (fclose(code) != 0 && is_done) {
    perror(code_path);
    is_done = false;
  }
  return is_done;
}

/* ---- the pipeline and its rings ---- */

static struct rte_ring *make_ring(const char *what, uint32_t number) {
  char name[32];
  snprintf(name, sizeof name, "%s%u", what, number);
  return rte_ring_create(name, RING_SLOTS, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
}

static bool build(struct sml_program *p) {
  FILE *io = tmpfile();
  if (!io) return fail(p, "no temporary file");
  fprintf(io, "mirroring slots 4 sessions 64\n");
  for (uint32_t port = 0; port < p->num_in; port++) fprintf(io, "port in %u ring IN%u bsz %u\n", port, port, BURST);
  for (uint32_t port = 0; port < p->num_ports; port++)
    fprintf(io, "port out %u ring OUT%u bsz %u\n", port, port, BURST);
  rewind(io);
  const int status = rte_swx_pipeline_build_from_lib(&p->pipeline, "switchml", p->library, io, SOCKET_ID_ANY);
  fclose(io);
  if (status != 0) {
    p->pipeline = NULL;
    return fail(p, "%s: no pipeline can be made of it: error %d", p->library, -status);
  }
  p->control = rte_swx_ctl_pipeline_create(p->pipeline);
  return p->control || fail(p, "%s: no control of the pipeline", p->library);
}

static void tear_down(struct sml_program *p) {
  if (p->control) rte_swx_ctl_pipeline_free(p->control);
  if (p->pipeline) rte_swx_pipeline_free(p->pipeline);
  p->control = NULL;
  p->pipeline = NULL;
}

bool sml_program_open(struct sml_program *p, const char *library, uint32_t num_in, uint32_t num_out) {
  bool has_rings = true;
  *p = (struct sml_program){.library = library, .num_in = 1, .num_ports = num_out};
  while (p->num_in < num_in) p->num_in *= 2;
  SML_ASSERT(p->num_in <= SML_PROGRAM_MAX_PORTS && num_out <= SML_PROGRAM_MAX_PORTS);
  for (uint32_t port = 0; port < p->num_in; port++) {
    p->in[port] = make_ring("IN", port);
    has_rings = has_rings && p->in[port];
  }
  for (uint32_t port = 0; port < num_out; port++) {
    p->out[port] = make_ring("OUT", port);
    has_rings = has_rings && p->out[port];
  }
  return has_rings ? build(p) : fail(p, "no memory for rings");
}

void sml_program_close(struct sml_program *p) {
  tear_down(p);
  for (uint32_t port = 0; port < p->num_in; port++) rte_ring_free(p->in[port]);
  for (uint32_t port = 0; port < p->num_ports; port++) rte_ring_free(p->out[port]);
}

bool sml_program_reset(struct sml_program *p) {
  tear_down(p);
  return build(p);
}

/* ---- packets ---- */

/* DPDK adds a port of its own, the last one, which takes and frees what the program drops. */
static uint64_t count_dropped(const struct sml_program *p) {
  struct rte_swx_port_out_stats stats = {0};
  rte_swx_ctl_pipeline_port_out_stats_read(p->pipeline, p->num_ports, &stats);
  return stats.n_pkts_drop;
}

void sml_program_put(struct sml_program *p, uint32_t port, struct rte_mbuf **packets, uint32_t num_packets) {
  SML_ASSERT(rte_ring_enqueue_burst(p->in[port], (void **)packets, num_packets, NULL) == num_packets);
  p->num_inside += num_packets;
  SML_ASSERT(p->num_inside <= SML_PROGRAM_BATCH);
}

void sml_program_run(struct sml_program *p, void (*take)(void *user, uint32_t port, struct rte_mbuf *packet),
                     void *user) {
  const uint64_t num_before = count_dropped(p);
  const uint32_t num_packets = p->num_inside;
  uint32_t num_out = 0, num_gone = 0;
  p->num_inside = 0;
  for (uint32_t look = 0; num_gone < num_packets && look < MAX_LOOKS; look++) {
    rte_swx_pipeline_run(p->pipeline, INSTRUCTIONS_A_PACKET * (num_packets - num_gone));
    rte_swx_pipeline_flush(p->pipeline);
    for (uint32_t port = 0; port < p->num_ports; port++) {
      struct rte_mbuf *done[BURST];
      uint32_t n;
      while ((n = rte_ring_dequeue_burst(p->out[port], (void **)done, BURST, NULL)) > 0) {
        for (uint32_t i = 0; i < n; i++) take(user, port, done[i]);
        num_out += n;
      }
    }
    num_gone = num_out + (uint32_t)(count_dropped(p) - num_before);
  }
  if (num_gone < num_packets) p->num_lost += num_packets - num_gone;
}

/* ---- control ---- */

static struct rte_swx_table_entry *read_entry(struct sml_program *p, const char *table, const char *words) {
  int is_comment = 0;
  struct rte_swx_table_entry *entry = rte_swx_ctl_pipeline_table_entry_read(p->control, table, words, &is_comment);
  if (!entry) fail(p, "table %s has no such entries", table);
  return entry;
}

static void free_entry(struct rte_swx_table_entry *entry) {
  free(entry->action_data);
  free(entry->key_mask);
  free(entry->key);
  free(entry);
}

bool sml_program_add_entry(struct sml_program *p, const char *table, const char *words) {
  struct rte_swx_table_entry *entry = read_entry(p, table, words);
  if (!entry) return false;
  const int status = rte_swx_ctl_pipeline_table_entry_add(p->control, table, entry);
  free_entry(entry);
  return status == 0 || fail(p, "table %s refuses an entry: error %d", table, -status);
}

bool sml_program_remove_entry(struct sml_program *p, const char *table, const char *words) {
  struct rte_swx_table_entry *entry = read_entry(p, table, words);
  if (!entry) return false;
  const int status = rte_swx_ctl_pipeline_table_entry_delete(p->control, table, entry);
  free_entry(entry);
  return status == 0 || fail(p, "table %s keeps an entry: error %d", table, -status);
}

bool sml_program_commit(struct sml_program *p) {
  return rte_swx_ctl_pipeline_commit(p->control, 1) == 0 || fail(p, "the tables refuse the entries: are they full?");
}

void sml_program_abort(struct sml_program *p) {
  rte_swx_ctl_pipeline_abort(p->control);
}

bool sml_program_write(struct sml_program *p, const char *name, uint32_t index, uint64_t value) {
  return rte_swx_ctl_pipeline_regarray_write(p->pipeline, name, index, value) == 0 ||
         fail(p, "no register %s %u", name, index);
}

bool sml_program_read(struct sml_program *p, const char *name, uint32_t index, uint64_t *value_out) {
  return rte_swx_ctl_pipeline_regarray_read(p->pipeline, name, index, value_out) == 0 ||
         fail(p, "no register %s %u", name, index);
}
