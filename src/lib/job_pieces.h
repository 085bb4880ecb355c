/* SPDX-License-Identifier: Apache-2.0
 * A job in which ranks of one host contribute as one (START has a table) cuts its operations into pieces, on all
 * ranks equally, and each piece is an operation of its own for the engines (PROTOCOL.md rules R123 to R125). What a
 * piece is, how many chunks an operation takes so, and the pieces that a lead has under way. */
#ifndef SML_LIB_JOB_PIECES_H
#define SML_LIB_JOB_PIECES_H

#include "ctl/contributors.h"
#include "host/host_relay.h"
#include "lib/job.h"

static inline bool sml_job_cuts(const struct sml_ctl_start *start) {
  return start->num_ranks != 0;
}

/* Data chunks of the job that share a code, as a plan has it. */
uint16_t sml_job_block_chunks(const struct sml_ctl_start *start);

/* Of a tensor, at most (sml_host_relay_piece_bytes()). But a piece has a block at least. */
uint64_t sml_job_piece_bytes(const struct sml_ctl_start *start, uint32_t world_size);
/* Elements of the operation's full pieces: whole blocks. */
uint64_t sml_job_piece_elems(const struct sml_job *job, const struct sml_operation_plan *plan);
/* The piece that begins at first_elem, as an operation. */
struct sml_operation_plan sml_job_piece_plan(const struct sml_operation_plan *plan, uint64_t first_elem,
                                             uint64_t num_elems);
/* The lane's part of an operation, or of a piece; of any job. */
void sml_job_lane_range(const struct sml_job *job, const struct sml_operation_plan *plan, uint32_t lane,
                        struct sml_range *range_out);
/* Chunks that the operation takes on a lane; of any job. */
uint64_t sml_job_count_chunks(const struct sml_job *job, const struct sml_operation_plan *plan, uint32_t lane);

/* What a lead has under way. */
struct sml_job_pieces {
  struct sml_job_piece {
    struct sml_engine_operation engine; /* first: engines hand back its address */
    struct sml_job *job;
    uint32_t slot;
  } pieces[SML_HOST_RELAY_DEPTH];
  _Atomic uint32_t num_in_flight; /* written with job->lock held; a hint to others */
};

/* Memory for what engines need; false: there is none. */
bool sml_job_pieces_init(struct sml_job_pieces *pieces, struct sml_job *job, uint64_t piece_elems);
void sml_job_pieces_free(struct sml_job_pieces *pieces);
/* So small that it is over sooner than a thread wakes up: whoever drives the lead runs the engine, too. */
bool sml_job_pieces_run_small(const struct sml_job *job, const struct sml_operation_plan *plan);
/* A relay's submit(): pushes the piece of job->host->current to the lanes. */
bool sml_job_pieces_submit(void *job, const struct sml_host_piece *piece);

#endif
