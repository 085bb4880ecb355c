/* SPDX-License-Identifier: Apache-2.0 */
#include "calls.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#if defined(OPEN_MPI) && defined(__has_include)
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h> /* there: MPIX_C_FLOAT16, if Open MPI was built with it */
#endif
#endif

/* ---- types and operations ---- */

#define IS_AMONG(handle, handles) is_among((handle), (handles), sizeof(handles) / sizeof(handles)[0])
static bool is_among(MPI_Datatype type, const MPI_Datatype *types, size_t num_types) {
  for (size_t i = 0; i < num_types; i++)
    if (type == types[i]) return true;
  return false;
}

enum class { OTHER, FLOAT, SIGNED, UNSIGNED, BITS, TRUTH };

/* By the name. Long double is none of ours, whatever its width; bytes have bits alone, and booleans truth. */
static enum class class_of(MPI_Datatype type) {
  const MPI_Datatype floats[] =
      {
          MPI_FLOAT,
          MPI_REAL,
          MPI_REAL4,
          MPI_DOUBLE,
          MPI_DOUBLE_PRECISION,
          MPI_REAL8,
#ifdef MPIX_C_FLOAT16
          MPIX_C_FLOAT16,
#endif
      };
  const MPI_Datatype with_sign[] = {MPI_INT, MPI_INT32_T, MPI_INTEGER, MPI_INTEGER4, MPI_LONG, MPI_LONG_LONG,
                                    MPI_INT64_T, MPI_INTEGER8, MPI_INT8_T, MPI_SIGNED_CHAR, MPI_INTEGER1};
  const MPI_Datatype without_sign[] = {MPI_UNSIGNED, MPI_UINT32_T, MPI_UINT64_T, MPI_UNSIGNED_LONG,
                                       MPI_UNSIGNED_LONG_LONG, MPI_UINT8_T, MPI_UNSIGNED_CHAR};
  if (type == MPI_DATATYPE_NULL) return OTHER; /* which names that this MPI lacks may be, too */
  if (type == MPI_BYTE) return BITS;
  if (type == MPI_C_BOOL) return TRUTH;
  if (IS_AMONG(type, floats)) return FLOAT;
  if (IS_AMONG(type, with_sign)) return SIGNED;
  return IS_AMONG(type, without_sign) ? UNSIGNED : OTHER;
}

/* The width as MPI has it: `long` is the system's, and a Fortran compiler may have been told that REAL and INTEGER have
 * 8 bytes. */
static bool find_type(enum class class, int bytes, sml_type *type_out) {
  switch (bytes) {
    case 1: *type_out = class == SIGNED ? SML_INT8 : SML_UINT8; return class != FLOAT;
    case 2: *type_out = SML_FLOAT16; return class == FLOAT;
    case 4: *type_out = class == FLOAT ? SML_FLOAT32 : class == SIGNED ? SML_INT32 : SML_UINT32; return true;
    case 8: *type_out = class == FLOAT ? SML_FLOAT64 : class == SIGNED ? SML_INT64 : SML_UINT64; return true;
    default: return false;
  }
}

static bool find_reduction(MPI_Op op, sml_reduction *reduction_out) {
  const struct {
    MPI_Op op;
    sml_reduction reduction;
  } all[] = {{MPI_SUM, SML_SUM},   {MPI_MIN, SML_MIN}, {MPI_MAX, SML_MAX},   {MPI_PROD, SML_PRODUCT},
             {MPI_BAND, SML_BAND}, {MPI_BOR, SML_BOR}, {MPI_LAND, SML_LAND}, {MPI_LOR, SML_LOR}};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    if (op != all[i].op) continue;
    *reduction_out = all[i].reduction;
    return true;
  }
  return false;
}

/* Whether MPI knows such a reduction. Products of floats depend on the order. */
static bool fits(enum class class, sml_reduction reduction) {
  const bool is_of_bits = reduction == SML_BAND || reduction == SML_BOR;
  const bool is_of_truth = reduction == SML_LAND || reduction == SML_LOR;
  if (class == BITS) return is_of_bits;
  if (class == TRUTH) return is_of_truth;
  return class != OTHER && (class != FLOAT || !(is_of_bits || is_of_truth || reduction == SML_PRODUCT));
}

static int bytes_of(MPI_Datatype type) {
  int bytes;
  return type != MPI_DATATYPE_NULL && PMPI_Type_size(type, &bytes) == MPI_SUCCESS ? bytes : -1;
}

/* Whether elements are bytes one behind the other, in their order: so are those of the usual types. Others are packed.
 * (MPI_Type_get_envelope fails for types that MPI makes for itself; it broadcasts data of some.) */
static bool is_dense(MPI_Datatype type) {
  const MPI_Datatype others[] = {MPI_CHAR, MPI_CHARACTER, MPI_PACKED, MPI_SHORT, MPI_UNSIGNED_SHORT, MPI_INT16_T};
  MPI_Aint least, extent;
  return (class_of(type) != OTHER || (type != MPI_DATATYPE_NULL && IS_AMONG(type, others))) &&
         PMPI_Type_get_extent(type, &least, &extent) == MPI_SUCCESS && least == 0 && extent == bytes_of(type);
}

/* ---- plans ---- */

static struct sml_mpi_plan plan_of(enum sml_mpi_kind kind, const void *in, void *out, MPI_Datatype type,
                                   MPI_Comm comm) {
  struct sml_mpi_plan p = {.call.kind = kind, .in = in, .out = out, .in_type = type, .type = type, .comm = comm};
  int is_inter = 0;
  p.is_suspect = comm == MPI_COMM_NULL || PMPI_Comm_test_inter(comm, &is_inter) != MPI_SUCCESS || is_inter ||
                 PMPI_Comm_rank(comm, &p.rank) != MPI_SUCCESS || PMPI_Comm_size(comm, &p.size) != MPI_SUCCESS;
  return p;
}

/* Elements of a part. */
static long long count_of(const struct sml_mpi_plan *p, int rank) {
  if (p->counts.at == NULL) return p->each;
#if MPI_VERSION >= 4
  if (p->counts.is_large) return (long long)((const MPI_Count *)p->counts.at)[rank];
#endif
  return ((const int *)p->counts.at)[rank];
}

/* Where a part begins, in elements. */
static MPI_Aint place_of(const struct sml_mpi_plan *p, int rank) {
  if (p->places.at == NULL) return (MPI_Aint)(p->each * rank);
  return p->places.is_large ? ((const MPI_Aint *)p->places.at)[rank] : ((const int *)p->places.at)[rank];
}

static void count_parts(struct sml_mpi_plan *p) {
  long long count = 0;
  for (int r = 0; r < p->size && !p->is_suspect; r++) {
    const long long of_rank = count_of(p, r);
    p->is_suspect = of_rank < 0 || of_rank > LLONG_MAX / 2 - count;
    count += of_rank;
  }
  if (!p->is_suspect) p->call.count = (size_t)count;
}

/* From elements to bytes, as many as MPI can pack. */
static void count_bytes(struct sml_mpi_plan *p) {
  const int bytes = p->is_suspect ? -1 : bytes_of(p->type);
  if (bytes < 0) p->is_suspect = true;
  if (bytes <= 0 || p->is_suspect) return;
  p->call.is_known = p->call.count <= (size_t)(INT_MAX / bytes);
  p->call.count *= (size_t)bytes;
}

static void find_call(struct sml_mpi_plan *p, MPI_Op op) {
  if (p->is_suspect || !find_reduction(op, &p->call.reduction)) return;
  const enum class class = class_of(p->type);
  p->call.is_known = fits(class, p->call.reduction) && find_type(class, bytes_of(p->type), &p->call.type);
  if (p->call.reduction == SML_SUM && p->call.type == SML_UINT8) p->call.type = SML_INT8; /* sums wrap alike */
  if (p->call.reduction == SML_SUM && p->call.type == SML_UINT32) p->call.type = SML_INT32;
  if (p->call.reduction == SML_SUM && p->call.type == SML_UINT64) p->call.type = SML_INT64;
}

static void check_root(struct sml_mpi_plan *p, int root) {
  if (root < 0 || root >= p->size) p->is_suspect = true;
  else p->call.root = (uint32_t)root;
}

struct sml_mpi_plan sml_mpi_plan_barrier(MPI_Comm comm) {
  struct sml_mpi_plan p = plan_of(SML_MPI_BARRIER, NULL, NULL, MPI_BYTE, comm);
  p.call.is_known = true;
  p.call.count = 4; /* bytes that it takes */
  return p;
}

struct sml_mpi_plan sml_mpi_plan_bcast(void *data, long long count, MPI_Datatype type, int root, MPI_Comm comm) {
  struct sml_mpi_plan p = plan_of(SML_MPI_BCAST, data, data, type, comm);
  check_root(&p, root);
  if (count < 0) p.is_suspect = true;
  else p.call.count = (size_t)count;
  p.each = count;
  count_bytes(&p);
  if (data == NULL && p.call.count > 0 && !p.is_suspect && is_dense(type)) p.is_suspect = true;
  return p;
}

struct sml_mpi_plan sml_mpi_plan_reduce(const void *in, void *out, long long count, MPI_Datatype type, MPI_Op op,
                                        int root, MPI_Comm comm) {
  struct sml_mpi_plan p = plan_of(root == SML_MPI_NO_ROOT ? SML_MPI_ALLREDUCE : SML_MPI_REDUCE, in, out, type, comm);
  if (root != SML_MPI_NO_ROOT) check_root(&p, root);
  const bool has_out = root == SML_MPI_NO_ROOT || root == p.rank;
  if (count < 0 || in == NULL || (has_out && (out == NULL || in == out || out == MPI_IN_PLACE))) p.is_suspect = true;
  if (!has_out && in == MPI_IN_PLACE) p.is_suspect = true;
  if (count > 0) p.call.count = (size_t)count;
  find_call(&p, op);
  return p;
}

struct sml_mpi_plan sml_mpi_plan_reduce_scatter(const void *in, void *out, long long each,
                                                struct sml_mpi_numbers counts, MPI_Datatype type, MPI_Op op,
                                                MPI_Comm comm) {
  struct sml_mpi_plan p = plan_of(SML_MPI_REDUCE_SCATTER, in, out, type, comm);
  p.each = each;
  p.counts = counts;
  count_parts(&p);
  const bool has_out = !p.is_suspect && (in == MPI_IN_PLACE || count_of(&p, p.rank) > 0);
  if (in == NULL || out == MPI_IN_PLACE || (has_out && out == NULL)) p.is_suspect = true;
  find_call(&p, op);
  return p;
}

struct sml_mpi_plan sml_mpi_plan_allgather(const void *in, long long in_count, MPI_Datatype in_type, void *out,
                                           long long each, struct sml_mpi_numbers counts, struct sml_mpi_numbers places,
                                           MPI_Datatype type, MPI_Comm comm) {
  struct sml_mpi_plan p = plan_of(SML_MPI_ALLGATHER, in, out, type, comm);
  p.in_count = in_count;
  p.in_type = in_type;
  p.each = each;
  p.counts = counts;
  p.places = places;
  count_parts(&p);
  count_bytes(&p);
  if (p.is_suspect || p.call.count == 0) return p;
  if (out == MPI_IN_PLACE || (out == NULL && is_dense(type))) p.is_suspect = true;
  if (in == MPI_IN_PLACE || in_count == 0) return p;
  if (in_count < 0 || bytes_of(in_type) < 0 || (in == NULL && is_dense(in_type))) p.is_suspect = true;
  return p;
}

/* ---- what is packed ---- */

/* MPI_COMM_SELF: the program's communicator may have been freed when a call ends, and all ranks have one format. */
static bool pack(const void *from, long long count, MPI_Datatype type, char *to, size_t num_bytes) {
  int at = 0;
  return count == 0 || PMPI_Pack(from, (int)count, type, to, (int)num_bytes, &at, MPI_COMM_SELF) == MPI_SUCCESS;
}

static bool unpack(const struct sml_mpi_plan *p, const char *from, size_t num_bytes, void *to, long long count) {
  int at = 0;
  return count == 0 || PMPI_Unpack(from, (int)num_bytes, &at, to, (int)count, p->type, MPI_COMM_SELF) == MPI_SUCCESS;
}

static size_t first_of(const struct sml_mpi_plan *p, int rank) {
  size_t first = 0;
  for (int r = 0; r < rank; r++) first += p->parts[r];
  return first;
}

static char *at_place(const struct sml_mpi_plan *p, int rank) {
  MPI_Aint least = 0, extent = 0;
  PMPI_Type_get_extent(p->type, &least, &extent);
  return (char *)p->out + place_of(p, rank) * extent;
}

/* Whether the parts lie in `out` as they travel. */
static bool are_whole(const struct sml_mpi_plan *p) {
  MPI_Aint place = 0;
  if (!is_dense(p->type)) return false;
  for (int r = 0; r < p->size; r++) {
    if (count_of(p, r) > 0 && place_of(p, r) != place) return false;
    place += (MPI_Aint)count_of(p, r);
  }
  return true;
}

static bool list_parts(struct sml_mpi_plan *p, size_t bytes_each) {
  p->parts = calloc((size_t)p->size, sizeof *p->parts);
  if (p->parts == NULL) return false;
  for (int r = 0; r < p->size; r++) p->parts[r] = (size_t)count_of(p, r) * bytes_each;
  p->call.parts = p->parts;
  return true;
}

static bool prepare_bcast(struct sml_mpi_plan *p) {
  p->call.out = p->out;
  if (is_dense(p->type)) return true;
  p->packed = malloc(p->call.count);
  p->call.out = p->packed;
  if (p->packed == NULL) return false;
  return p->rank != (int)p->call.root || pack(p->in, p->each, p->type, p->packed, p->call.count);
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
  return (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

/* Open MPI takes a part that lies anywhere in the whole, maybe on one rank alone; SwitchML one in its own place. */
static bool prepare_allgather(struct sml_mpi_plan *p) {
  if (!list_parts(p, (size_t)bytes_of(p->type))) return false;
  const bool is_in_place = p->in == MPI_IN_PLACE, is_whole = are_whole(p);
  if (!is_whole && (p->packed = malloc(p->call.count)) == NULL) return false;
  p->call.out = is_whole ? p->out : p->packed;
  char *own = (char *)p->call.out + first_of(p, p->rank);
  const size_t own_bytes = p->parts[p->rank];
  p->call.in = own;
  if (is_in_place) return is_whole || pack(at_place(p, p->rank), count_of(p, p->rank), p->type, own, own_bytes);
  if (own_bytes == 0) return true;
  if (!is_dense(p->in_type)) return pack(p->in, p->in_count, p->in_type, own, own_bytes);
  if (is_whole && p->in != own && overlap(p->in, own_bytes, p->out, p->call.count)) memmove(own, p->in, own_bytes);
  else p->call.in = p->in;
  return true;
}

/* In place the sum takes its part's place in the input first; elsewhere in the input, memory of its own. */
static bool prepare_reduce_scatter(struct sml_mpi_plan *p) {
  if (!list_parts(p, 1)) return false;
  const size_t bytes = (size_t)bytes_of(p->type), own_bytes = p->parts[p->rank] * bytes;
  const bool is_in_place = p->in == MPI_IN_PLACE;
  p->call.in = is_in_place ? p->out : p->in;
  char *own = (char *)p->call.in + first_of(p, p->rank) * bytes;
  p->call.out = is_in_place ? own : p->out;
  if (p->call.out == own || !overlap(p->out, own_bytes, p->in, p->call.count * bytes)) return true;
  p->call.out = p->packed = malloc(own_bytes);
  return p->packed != NULL;
}

static bool prepare(struct sml_mpi_plan *p) {
  switch (p->call.kind) {
    case SML_MPI_BARRIER: return true;
    case SML_MPI_BCAST: return prepare_bcast(p);
    case SML_MPI_ALLGATHER: return prepare_allgather(p);
    case SML_MPI_REDUCE_SCATTER: return prepare_reduce_scatter(p);
    default: break;
  }
  p->call.in = p->in == MPI_IN_PLACE ? p->out : p->in; /* which is a pointer made of a number */
  p->call.out = p->out;
  return true;
}

bool sml_mpi_plan_prepare(struct sml_mpi_plan *p, struct sml_mpi_group *g) {
  if (prepare(p)) return true;
  sml_mpi_group_give_up(g, &p->call, "no memory, or MPI cannot pack the data");
  return false;
}

static bool place_result(const struct sml_mpi_plan *p) {
  if (p->call.kind == SML_MPI_REDUCE_SCATTER && p->call.out != p->out)
    memmove(p->out, p->call.out, p->parts[p->rank] * (size_t)bytes_of(p->type));
  if (p->packed == NULL || p->call.kind == SML_MPI_REDUCE_SCATTER) return true;
  if (p->call.kind == SML_MPI_BCAST)
    return p->rank == (int)p->call.root || unpack(p, p->packed, p->call.count, p->out, p->each);
  const char *from = p->packed;
  for (int r = 0; r < p->size; from += p->parts[r++])
    if (!unpack(p, from, p->parts[r], at_place(p, r), count_of(p, r))) return false;
  return true;
}

bool sml_mpi_plan_end(struct sml_mpi_plan *p, bool is_good) {
  const bool is_placed = is_good && place_result(p);
  free(p->packed);
  free(p->parts);
  p->packed = NULL;
  p->parts = NULL;
  return is_placed;
}
