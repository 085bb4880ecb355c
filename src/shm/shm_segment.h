/* SPDX-License-Identifier: Apache-2.0
 * Memory that processes of one host share, and how its descriptor gets from one to another. The memory is
 * a memfd: it has no name in any file system; it is allocated before it is shared; and its size is sealed, so
 * that no process can make another fail by shrinking it. The descriptor travels over a socket of the abstract
 * name space, whose peers must run under this process's effective user; a secret keeps jobs apart. No
 * descriptor is left open when a call returns. */
#pragma once

#include "base/base.h"

#define SML_SHM_ERROR_BYTES 192u

/* A number that is equal for two processes exactly if they can share memory in this way: boot, network,
 * and user name spaces and effective user are the same. id_out: 16 bytes. False, and zeros: shared
 * memory does not work here. */
bool sml_shm_identity(uint8_t *id_out);

/* The limit of file sizes, which counts for segments, too. */
uint64_t sml_shm_limit_bytes(void);

struct sml_shm_segment {
  void *memory; /* NULL: none */
  size_t num_bytes;
};

/* Who takes part in sharing a segment, and until when. */
struct sml_shm_meeting {
  uint64_t secret[2]; /* known to those who meet; names the socket too */
  uint32_t num_ranks, index;
  uint64_t deadline_ns;            /* sml_clock_ns() */
  bool (*should_stop)(void *user); /* asked every few milliseconds */
  void *user;
};

enum sml_shm_met {
  SML_SHM_MET,
  SML_SHM_STOPPED,  /* should_stop() said so */
  SML_SHM_TOO_LATE, /* the deadline; *missing_out is an index that did not come, or 0: who has the segment */
  SML_SHM_FAILED,   /* a system call failed; error_out says which */
};

/* Index 0: makes a segment of zeros and gives it to all others. All of it is allocated before: if memory is short, that
 * is an error, and no SIGBUS of a rank that writes there. */
enum sml_shm_met sml_shm_segment_offer(struct sml_shm_segment *segment, size_t num_bytes,
                                       const struct sml_shm_meeting *meeting, uint32_t *missing_out,
                                       char error_out[SML_SHM_ERROR_BYTES]);
/* The others: gets it, and insists on its size. */
enum sml_shm_met sml_shm_segment_obtain(struct sml_shm_segment *segment, size_t num_bytes,
                                        const struct sml_shm_meeting *meeting, uint32_t *missing_out,
                                        char error_out[SML_SHM_ERROR_BYTES]);
void sml_shm_segment_close(struct sml_shm_segment *segment);

/* Sleeps while *word is `value`, until somebody wakes it, or the time is over. Sequentially consistent: who changes the
 * word and then finds no sleeper need not wake. */
void sml_shm_sleep(_Atomic uint32_t *word, uint32_t value, _Atomic uint32_t *num_sleepers, uint64_t most_ns);
void sml_shm_wake(_Atomic uint32_t *word); /* all that sleep, of all processes */
