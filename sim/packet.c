/* SPDX-License-Identifier: Apache-2.0
 * Memory of packets: pools that only grow, so that a datagram costs no allocation. */
#include "sim/network.h"

#define SMALLEST_BYTES 512u
#define NUM_CLASSES 8u /* 512 bytes .. 64 KiB */
#define CHUNK_PACKETS 256u

struct chunk {
  struct chunk *next;
  struct sim_packet packets[CHUNK_PACKETS];
};
static struct chunk *chunks;
static struct sim_packet *free_packets;
static struct sim_buffer *free_buffers[NUM_CLASSES];
static uint64_t num_buffers_out;

struct sim_buffer *sim_buffer_take(uint32_t num_bytes) {
  uint32_t size_class = 0;
  while (SMALLEST_BYTES << size_class < num_bytes) size_class++;
  SML_ASSERT(size_class < NUM_CLASSES);
  struct sim_buffer *b = free_buffers[size_class];
  if (b != NULL) {
    free_buffers[size_class] = b->next;
  } else {
    b = __real_aligned_alloc(64, sizeof *b + (SMALLEST_BYTES << size_class));
    SML_ASSERT(b != NULL);
    b->size_class = size_class;
  }
  b->num_refs = 1;
  num_buffers_out++;
  return b;
}

void sim_buffer_release(struct sim_buffer *b) {
  if (--b->num_refs > 0) return;
  num_buffers_out--;
  b->next = free_buffers[b->size_class];
  free_buffers[b->size_class] = b;
}

struct sim_packet *sim_packet_take(void) {
  if (free_packets == NULL) {
    struct chunk *chunk = sim_take(sizeof *chunk);
    chunk->next = chunks;
    chunks = chunk;
    for (uint32_t i = 0; i < CHUNK_PACKETS; i++) {
      chunk->packets[i].next = free_packets;
      free_packets = &chunk->packets[i];
    }
  }
  struct sim_packet *p = free_packets;
  free_packets = p->next;
  p->next = NULL;
  p->is_forged = p->is_altered = p->has_faults = false;
  return p;
}

void sim_packet_release(struct sim_packet *p) {
  sim_buffer_release(p->buffer);
  p->buffer = NULL;
  p->next = free_packets;
  free_packets = p;
}

/* Packets still under way are freed with their chunks; their buffers here. */
void sim_packets_free(void) {
  while (chunks != NULL) {
    struct chunk *chunk = chunks;
    chunks = chunk->next;
    for (uint32_t i = 0; i < CHUNK_PACKETS; i++)
      if (chunk->packets[i].buffer != NULL) sim_buffer_release(chunk->packets[i].buffer);
    __real_free(chunk);
  }
  free_packets = NULL;
  SML_ASSERT(num_buffers_out == 0);
  for (uint32_t c = 0; c < NUM_CLASSES; c++) {
    while (free_buffers[c] != NULL) {
      struct sim_buffer *b = free_buffers[c];
      free_buffers[c] = b->next;
      __real_free(b);
    }
  }
}
