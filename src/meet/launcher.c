/* SPDX-License-Identifier: Apache-2.0
 * Who this process is among those that a launcher has started: what each launcher says of it. */
#include <stdlib.h>

#include "core/wire.h"
#include "process/settings.h"
#include "process/status.h"

/* In this order: what the user says, what frameworks say, what is beneath them. Steps of Slurm may be of fewer tasks
 * than their allocation, and a batch script is none of its tasks: the step's number counts. */
static const struct {
  const char *rank, *world_size;
} launchers[] = {
    {"SWITCHML_RANK", "SWITCHML_WORLD_SIZE"},
    {"RANK", "WORLD_SIZE"}, /* torchrun, Kubernetes' training operators */
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"PMI_RANK", "PMI_SIZE"}, /* MPICH and its relatives */
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
};

static sml_status read_number(const char *name, uint32_t max, uint32_t *value_out) {
  const char *text = sml_settings_environment(name);
  char *end;
  const unsigned long value = strtoul(text, &end, 10);
  if (text[0] < '0' || text[0] > '9' || *end != 0 || value > max)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "%s is '%.64s': set a number up to %u", name, text, max);
  *value_out = (uint32_t)value;
  return SML_OK;
}

sml_status sml_rank_from_environment(uint32_t *rank_out, uint32_t *world_size_out, const char **source_out) {
  if (rank_out == NULL || world_size_out == NULL)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "rank_out or world_size_out is NULL");
  for (size_t i = 0; i < SML_ARRAY_LEN(launchers); i++) {
    const char *rank_name = launchers[i].rank, *size_name = launchers[i].world_size;
    const bool has_rank = sml_settings_environment(rank_name) != NULL;
    if (has_rank != (sml_settings_environment(size_name) != NULL) && i < 2)
      return sml_fail(SML_ERR_INVALID_ARGUMENT, "%s is set, but %s is not: set both", has_rank ? rank_name : size_name,
                      has_rank ? size_name : rank_name);
    if (!has_rank || sml_settings_environment(size_name) == NULL) continue;
    uint32_t rank, world_size;
    sml_status status = read_number(rank_name, SML_MAX_WORLD_SIZE - 1, &rank);
    if (status == SML_OK) status = read_number(size_name, SML_MAX_WORLD_SIZE, &world_size);
    if (status != SML_OK) return status;
    if (rank >= world_size)
      return sml_fail(SML_ERR_INVALID_ARGUMENT, "%s is %u, but %s is %u: ranks are below it", rank_name, rank,
                      size_name, world_size);
    *rank_out = rank;
    *world_size_out = world_size;
    if (source_out != NULL) *source_out = rank_name;
    return SML_OK;
  }
  return sml_fail(SML_ERR_NOT_CONFIGURED,
                  "no launcher says which rank this is: set RANK and WORLD_SIZE, or start it "
                  "by torchrun, mpirun or srun");
}
