/* SPDX-License-Identifier: Apache-2.0 */
#include "group.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define NS_PER_S UINT64_C(1000000000)
#define NS_PER_US UINT64_C(1000)

#define MOST_JOBS 512u
/* What a job opens at most, beside one connection a rank; and the part of a process's descriptors for all after the
 * first. The rest is the program's. */
#define DESCRIPTORS_OF_JOB 8u
#define PART_OF_DESCRIPTORS 4u
/* Sums of one communicator under way. The context has as many handles for each job: no communicator's sums wait for
 * those of another, which ranks may call in another order. */
#define MAX_OUTSTANDING 128u

/* Calls that are no all-reduce are short as a rule: ranks meet for them, and join, after so many. */
#define MEET_CALLS 16u

#define GATHERED_WORDS 18u /* of those agreed on the last one is the host */
#define NUM_TYPES 10u

enum state { UNDECIDED, AGREED, JOINED, WITHOUT, BROKEN };

/* Why a call is MPI's. */
enum why { KIND, SIZE, HOSTS, NOT_MET, NO_JOB, NOT_OFFERED, NUM_WHYS };
static const char *const whys[NUM_WHYS] = {"type, operation or no data", "size",   "too few hosts",
                                           "ranks had not met",          "no job", "not offered"};

struct sml_mpi_group {
  const char *name;
  uint32_t rank, size;
  enum state state;
  bool has_place; /* one of the process's jobs */
  bool is_meeting;
  struct sml_mpi_settings settings; /* rank 0's, once it is AGREED */
  uint64_t lease_ns;                /* likewise */
  uint32_t num_hosts;               /* likewise */
  sml_allgather_fn allgather;
  int (*progress)(void *user);
  void *user;
  uint64_t (*gathered)[GATHERED_WORDS]; /* of each rank; there from the start: who lacked it would keep all waiting */
  /* What was seen; equal on all ranks in each blocking call. All-reduces: elements of the longest, of sums and of other
   * reductions; bytes of the shortest. Other kinds: how many; whether one would have been taken after MEET_CALLS. */
  size_t longest[2][NUM_TYPES];
  uint64_t shortest;
  uint32_t num_others;
  bool has_wanted_other;
  sml_job *job;
  atomic_uint num_outstanding;
  uint64_t num_taken[SML_MPI_NUM_KINDS], num_passed[NUM_WHYS];
};

static void say(const struct sml_mpi_group *g, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(const struct sml_mpi_group *g, const char *format, ...) {
  char line[600];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  sml_mpi_say("rank %u of %s: %s", g->rank, g->name, line);
}

/* ---- places: the jobs of this process, which share a context ---- */

enum lack { LACKS_NOTHING, LACKS_CONTEXT, LACKS_JOBS, LACKS_DESCRIPTORS };

static pthread_mutex_t places_mutex = PTHREAD_MUTEX_INITIALIZER;
static sml_context *context;
static uint64_t num_places, num_descriptors; /* taken; what they may have open */
static bool has_failed; /* a join, so that not every communicator waits in vain; told the others before each join */
static atomic_bool has_said_lack;

static uint64_t descriptors_of(const struct sml_mpi_group *g) {
  return DESCRIPTORS_OF_JOB + g->size;
}

static uint64_t most_jobs(const struct sml_mpi_group *g) {
  return g->settings.max_jobs < MOST_JOBS ? g->settings.max_jobs : MOST_JOBS;
}

static bool has_descriptors(const struct sml_mpi_group *g) {
  struct rlimit limit;
  if (num_places == 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
  return num_descriptors + descriptors_of(g) <= limit.rlim_cur / PART_OF_DESCRIPTORS;
}

static enum lack take_place_locked(struct sml_mpi_group *g) {
  if (num_places >= most_jobs(g)) return LACKS_JOBS;
  if (!has_descriptors(g)) return LACKS_DESCRIPTORS;
  if (context == NULL) {
    sml_context_options o = SML_CONTEXT_OPTIONS_INIT;
    o.num_operations = (uint32_t)most_jobs(g) * MAX_OUTSTANDING;
    if (sml_context_create(&o, &context) != SML_OK) {
      say(g, "cannot start: %s", sml_error_detail());
      context = NULL;
      return LACKS_CONTEXT;
    }
  }
  num_places++;
  num_descriptors += descriptors_of(g);
  g->has_place = true;
  return LACKS_NOTHING;
}

static enum lack take_place(struct sml_mpi_group *g) {
  pthread_mutex_lock(&places_mutex);
  const enum lack lack = take_place_locked(g);
  pthread_mutex_unlock(&places_mutex);
  return lack;
}

static void leave_place(struct sml_mpi_group *g) {
  if (!g->has_place) return;
  g->has_place = false;
  pthread_mutex_lock(&places_mutex);
  num_descriptors -= descriptors_of(g);
  sml_context *last = --num_places == 0 ? context : NULL;
  if (last != NULL) context = NULL;
  pthread_mutex_unlock(&places_mutex);
  sml_context_destroy(last);
}

/* One for all, but where a rank's error may end the program before rank 0 has said why. */
static bool says_why(const struct sml_mpi_group *g) {
  return g->rank == 0 || g->settings.is_required;
}

/* Once a process: communicators may be many. */
static void say_lack(const struct sml_mpi_group *g, uint32_t rank, enum lack lack) {
  if (!says_why(g) || atomic_exchange(&has_said_lack, true)) return;
  say(g, "no job: rank %u %s; %s, here and in later communicators", rank,
      lack == LACKS_JOBS ? "has as many jobs as it may (SWITCHML_MPI_MAX_JOBS or coll_switchml_max_jobs)"
                         : "keeps the rest of its descriptors for the program (ulimit -n)",
      g->settings.is_required ? "calls are errors, as SWITCHML_REQUIRE=1 wants it" : "MPI does the calls");
}

/* ---- agreeing, joining ---- */

struct sml_mpi_group *sml_mpi_group_create(const char *name, uint32_t rank, uint32_t size,
                                           const struct sml_mpi_settings *settings, sml_allgather_fn allgather,
                                           int (*progress)(void *user), void *user) {
  struct sml_mpi_group *g = calloc(1, sizeof *g);
  if (g == NULL) return NULL;
  g->gathered = calloc(size, sizeof *g->gathered);
  if (g->gathered == NULL) {
    free(g);
    return NULL;
  }
  g->name = name;
  g->rank = rank;
  g->size = size;
  g->settings = *settings;
  g->shortest = UINT64_MAX;
  g->allgather = allgather;
  g->progress = progress;
  g->user = user;
  return g;
}

/* "3 by size, 1 by too few hosts"; of what is not 0. */
static void list(const uint64_t *numbers, const char *const *names, size_t num, char *text, size_t text_bytes) {
  size_t length = 0;
  text[0] = 0;
  for (size_t i = 0; i < num && length < text_bytes; i++)
    if (numbers[i] > 0)
      length += (size_t)snprintf(text + length, text_bytes - length, "%s%llu %s", length > 0 ? ", " : "",
                                 (unsigned long long)numbers[i], names[i]);
  if (length == 0) snprintf(text, text_bytes, "none");
}

void sml_mpi_group_destroy(struct sml_mpi_group *g) {
  if (g == NULL) return;
  sml_stats stats = SML_STATS_INIT;
  if (g->job != NULL) sml_job_stats(g->job, &stats);
  if (g->settings.is_verbose && g->state != UNDECIDED) {
    char taken[160], passed[160];
    list(g->num_taken, sml_mpi_kind_names, SML_MPI_NUM_KINDS, taken, sizeof taken);
    list(g->num_passed, whys, NUM_WHYS, passed, sizeof passed);
    say(g, "%llu calls of %llu bytes taken (%s); MPI's: %s; %llu chunks, %llu packets sent",
        (unsigned long long)stats.operations_completed, (unsigned long long)stats.tensor_bytes, taken, passed,
        (unsigned long long)stats.chunks_completed, (unsigned long long)stats.tx_packets);
  }
  sml_job_destroy(g->job);
  leave_place(g);
  free(g->gathered);
  free(g);
}

static bool gather(struct sml_mpi_group *g, const uint64_t words[GATHERED_WORDS]) {
  if (g->allgather(g->user, words, g->gathered, sizeof g->gathered[0]) == 0) return true;
  say(g, "MPI's all-gather failed");
  g->state = BROKEN;
  return false;
}

/* Equal for ranks that reach each other without a network: one kernel, and one set of interfaces. 0: not known. */
static uint64_t host_number(void) {
  struct stat network;
  char boot[64] = "";
  FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
  const bool is_read = file != NULL && fgets(boot, sizeof boot, file) != NULL;
  if (file != NULL) fclose(file);
  if (!is_read || stat("/proc/self/ns/net", &network) != 0) return 0;
  uint64_t number = 0xcbf29ce484222325 ^ network.st_ino;
  for (const char *at = boot; *at != 0; at++) number = (number ^ (uint8_t)*at) * 0x100000001b3;
  return number;
}

static uint64_t host_of(const void *words) {
  return ((const uint64_t *)words)[GATHERED_WORDS - 1];
}

static int compare_hosts(const void *a, const void *b) {
  const uint64_t x = host_of(a), y = host_of(b);
  return (x > y) - (x < y);
}

/* How many different ones ranks told; 1 if it cannot be said. Sorts what was gathered, in place: a rank that lacked the
 * memory for a copy would count others than the rest, and go other ways. */
static uint32_t count_hosts(struct sml_mpi_group *g) {
  uint32_t num = 1;
  qsort(g->gathered, g->size, sizeof g->gathered[0], compare_hosts);
  for (uint32_t r = 1; r < g->size; r++) num += host_of(g->gathered[r]) != host_of(g->gathered[r - 1]);
  return host_of(g->gathered[0]) == 0 ? 1 : num;
}

static void agree(struct sml_mpi_group *g) {
  struct sml_mpi_settings *s = &g->settings;
  const uint64_t flags = s->is_required | (uint64_t)s->is_one_way << 1 | (uint64_t)s->is_exact << 2;
  uint64_t mine[GATHERED_WORDS] = {
      s->min_count,   s->timeout_s,     s->types, s->join_timeout_s, (uint64_t)(s->lease_s * NS_PER_S),
      s->short_hosts, s->one_way_bytes, flags};
  memcpy(&mine[8], s->most_bytes, sizeof s->most_bytes);
  mine[GATHERED_WORDS - 1] = host_number();
  if (!gather(g, mine)) return;
  g->state = AGREED;
  for (uint32_t r = 1; r < g->size; r++) {
    if (memcmp(g->gathered[r], g->gathered[0], sizeof mine - sizeof mine[0]) == 0) continue;
    static const char others[] =
        "rank %u has other settings (SWITCHML_MPI_*, _LEASE, _REQUIRE, _DISABLE, _ONE_WAY, _EXACT or coll_switchml_*); "
        "all use those of rank 0";
    if (g->rank == 0) say(g, others, r);
    break;
  }
  const uint64_t *of_rank_0 = g->gathered[0];
  s->min_count = of_rank_0[0];
  s->timeout_s = of_rank_0[1];
  s->types = (uint32_t)of_rank_0[2];
  s->join_timeout_s = of_rank_0[3];
  g->lease_ns = of_rank_0[4];
  s->short_hosts = of_rank_0[5];
  s->one_way_bytes = of_rank_0[6];
  s->is_required = (of_rank_0[7] & 1) != 0;
  s->is_one_way = (of_rank_0[7] & 2) != 0;
  s->is_exact = (of_rank_0[7] & 4) != 0;
  memcpy(s->most_bytes, &of_rank_0[8], sizeof s->most_bytes);
  g->num_hosts = count_hosts(g);
}

/* Whether all ranks are ready to join, and under which name. */
static bool is_ready(struct sml_mpi_group *g, uint64_t *name_out) {
  uint64_t mine[GATHERED_WORDS] = {0};
  if (!has_failed) {
    const enum lack lack = take_place(g);
    const bool has_name = getrandom(&mine[1], sizeof mine[1], 0) == (ssize_t)sizeof mine[1];
    if (!has_name) say(g, "no random numbers: %s", strerror(errno));
    mine[0] = lack == LACKS_NOTHING && has_name;
    mine[2] = lack;
  }
  if (!gather(g, mine)) return false;
  *name_out = g->gathered[0][1]; /* rank 0's */
  for (uint32_t r = 0; r < g->size; r++) {
    if (g->gathered[r][0] != 0) continue;
    const enum lack lack = (enum lack)g->gathered[r][2];
    if (lack == LACKS_JOBS || lack == LACKS_DESCRIPTORS) say_lack(g, r, lack);
    else has_failed = true;
    return false;
  }
  return true;
}

/* The job of all ranks, who are ready; or none, on all of them alike. */
static void create_job(struct sml_mpi_group *g, uint64_t name) {
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  char text[32];
  snprintf(text, sizeof text, "mpi-%016llx", (unsigned long long)name);
  o.name = text;
  o.rank = g->rank;
  o.world_size = g->size;
  o.allgather = g->allgather;
  o.allgather_user = g->user;
  o.join_timeout_ns = g->settings.join_timeout_s * NS_PER_S;
  o.operation_timeout_ns = g->settings.timeout_s * NS_PER_S;
  o.lease_ns = g->lease_ns;
  o.exact = g->settings.is_exact ? 1 : 2;
  if (sml_job_create(context, &o, &g->job) == SML_OK) {
    if (g->settings.is_verbose && g->rank == 0)
      say(g, "job %s of %u ranks on %u hosts takes sums of at least %llu elements", text, g->size, g->num_hosts,
          (unsigned long long)g->settings.min_count);
    return;
  }
  g->job = NULL;
  has_failed = true;
  if (says_why(g))
    say(g, "no job: %s%s", sml_error_detail(),
        g->settings.is_required ? "" : "; MPI does the calls (SWITCHML_REQUIRE=1 makes that an error)");
}

static void join(struct sml_mpi_group *g) {
  uint64_t name;
  if (is_ready(g, &name)) create_job(g, name);
  if (g->job == NULL) leave_place(g);
  if (g->state != BROKEN) g->state = g->job != NULL ? JOINED : WITHOUT;
}

/* ---- what is taken: a function of what is equal on all ranks ---- */

static bool is_float(sml_type type) {
  return type == SML_FLOAT32 || type == SML_FLOAT16 || type == SML_BFLOAT16 || type == SML_FLOAT64;
}

static bool has_bytes(sml_type type) {
  return type == SML_INT8 || type == SML_UINT8;
}

static uint64_t bytes_of(sml_type type) {
  if (has_bytes(type)) return 1;
  if (type == SML_FLOAT16 || type == SML_BFLOAT16) return 2;
  return type == SML_FLOAT64 || type == SML_INT64 || type == SML_UINT64 ? 8 : 4;
}

static bool is_copy(const struct sml_mpi_call *call) {
  return call->kind == SML_MPI_ALLGATHER || call->kind == SML_MPI_BCAST || call->kind == SML_MPI_BARRIER;
}

/* Up to 128 floats are exact sums in one round; with more of them there are two. */
static bool is_two_rounds(const struct sml_mpi_call *call) {
  return !is_copy(call) && call->reduction == SML_SUM && is_float(call->type) && call->count > 128;
}

/* At most, of an element on the wire. */
static uint64_t bytes_sent_of(const struct sml_mpi_call *call) {
  const uint64_t bytes = bytes_of(call->type);
  if (call->reduction == SML_LAND || call->reduction == SML_LOR) return 1;
  if (call->reduction == SML_PRODUCT) return bytes == 1 ? 4 : bytes;
  if (call->reduction != SML_SUM) return bytes;
  if (is_two_rounds(call)) return bytes == 8 ? 12 : 8;
  if (is_float(call->type)) return bytes == 8 ? 512 : 64;
  return bytes == 8 ? 12 : bytes == 1 ? 2 : bytes;
}

static uint64_t bytes_sent(const struct sml_mpi_call *call) {
  return is_copy(call) ? call->count : call->count * bytes_sent_of(call);
}

static sml_type signed_of(sml_type type) {
  return type == SML_UINT8 ? SML_INT8 : type == SML_UINT32 ? SML_INT32 : type == SML_UINT64 ? SML_INT64 : type;
}

/* Whether a long all-reduce sends no more than MPI's does. Products of bytes travel in four. */
static bool pays_when_long(const struct sml_mpi_settings *s, sml_type type, sml_reduction reduction) {
  if (reduction == SML_SUM) return (s->types >> signed_of(type) & 1) != 0;
  return s->types != 0 && !(reduction == SML_PRODUCT && has_bytes(type));
}

static bool is_long(const struct sml_mpi_settings *s, const struct sml_mpi_call *call) {
  return call->kind == SML_MPI_ALLREDUCE && call->count >= s->min_count &&
         pays_when_long(s, call->type, call->reduction);
}

/* Whether one exchange with an aggregator takes less time than MPI's several, if there are enough hosts. */
static bool is_short(const struct sml_mpi_settings *s, const struct sml_mpi_call *call) {
  return s->types != 0 && bytes_sent(call) <= s->most_bytes[call->kind] &&
         !(is_two_rounds(call) && (s->types >> call->type & 1) == 0);
}

static bool has_hosts(const struct sml_mpi_group *g) {
  return g->settings.short_hosts > 0 && g->num_hosts >= g->settings.short_hosts;
}

/* Sums and copies that one-way windows carry, where the job may have them. */
static bool is_one_way(const struct sml_mpi_settings *s, const struct sml_mpi_call *call) {
  if (!s->is_one_way || s->types == 0 || call->kind == SML_MPI_ALLREDUCE || call->kind == SML_MPI_BARRIER) return false;
  const uint64_t bytes = is_copy(call) ? call->count : call->count * bytes_of(call->type);
  if (bytes < s->one_way_bytes || is_copy(call)) return bytes >= s->one_way_bytes;
  return call->reduction == SML_SUM && pays_when_long(s, call->type, SML_SUM) && !(is_float(call->type) && s->is_exact);
}

static bool is_wanted(const struct sml_mpi_group *g, const struct sml_mpi_call *call) {
  const struct sml_mpi_settings *s = &g->settings;
  return is_long(s, call) || is_one_way(s, call) || (is_short(s, call) && has_hosts(g));
}

/* Where MPI copies a communicator without waiting, it combines some numbers of its ranks by such calls, at times that
 * differ between ranks: not in the order of the program's calls. */
static bool may_be_of_mpi(const struct sml_mpi_call *call, bool is_blocking) {
  return !is_blocking && call->kind == SML_MPI_ALLREDUCE && call->reduction != SML_SUM && call->count < MEET_CALLS;
}

/* ---- meeting ---- */

static bool has_seen(const struct sml_mpi_group *g, const struct sml_mpi_settings *s, size_t min_count) {
  for (uint32_t t = 0; t < NUM_TYPES; t++)
    for (uint32_t r = 0; r < 2; r++) {
      const sml_reduction reduction = r == 0 ? SML_SUM : SML_MAX;
      if (g->longest[r][t] > 0 && g->longest[r][t] >= min_count &&
          (s == NULL || pays_when_long(s, (sml_type)t, reduction)))
        return true;
    }
  return false;
}

static bool wants_job(const struct sml_mpi_group *g) {
  const struct sml_mpi_settings *s = &g->settings;
  return has_seen(g, s, s->min_count) || g->has_wanted_other ||
         (s->types != 0 && g->shortest <= s->most_bytes[SML_MPI_ALLREDUCE] && has_hosts(g));
}

void sml_mpi_group_meet(struct sml_mpi_group *g) {
  if ((g->state != UNDECIDED && g->state != AGREED) || g->is_meeting) return;
  g->is_meeting = true; /* MPI's all-gather may be made of other blocking calls */
  if (g->state == UNDECIDED && (has_seen(g, NULL, 0) || g->num_others >= MEET_CALLS)) agree(g);
  if (g->state == AGREED && wants_job(g)) join(g);
  g->is_meeting = false;
}

/* Before the ranks have agreed nothing here may depend on a setting. */
static void note(struct sml_mpi_group *g, const struct sml_mpi_call *call) {
  if (call->kind != SML_MPI_ALLREDUCE) {
    if (g->num_others < MEET_CALLS) g->num_others++;
    else if (g->state == AGREED && is_wanted(g, call)) g->has_wanted_other = true;
    return;
  }
  size_t *longest = &g->longest[call->reduction != SML_SUM][call->type];
  if (call->count > *longest) *longest = call->count;
  if (!is_two_rounds(call) && bytes_sent(call) < g->shortest) g->shortest = bytes_sent(call);
}

static enum sml_mpi_way pass(struct sml_mpi_group *g, enum why why) {
  g->num_passed[why]++;
  return SML_MPI_PASSED;
}

enum sml_mpi_way sml_mpi_group_way(struct sml_mpi_group *g, const struct sml_mpi_call *call, bool is_blocking) {
  if (g == NULL) return SML_MPI_FAILED;
  const bool is_ours = call->is_known && call->count > 0 && !may_be_of_mpi(call, is_blocking);
  if (is_ours && !g->is_meeting) note(g, call);
  if (is_blocking) sml_mpi_group_meet(g);
  if (g->state == BROKEN) return SML_MPI_FAILED;
  if (!is_ours) return pass(g, KIND);
  if (g->state == UNDECIDED) return pass(g, NOT_MET);
  if (!is_wanted(g, call)) return pass(g, is_short(&g->settings, call) ? HOSTS : SIZE);
  if (g->state == WITHOUT && g->settings.is_required) return SML_MPI_FAILED;
  if (g->state != JOINED) return pass(g, g->state == WITHOUT ? NO_JOB : NOT_MET);
  if (!is_copy(call) && !sml_supported(g->job, call->type, call->reduction, call->count)) return pass(g, NOT_OFFERED);
  g->num_taken[call->kind]++;
  return SML_MPI_TAKEN;
}

/* ---- operations ---- */

static bool has_ended(struct sml_mpi_group *g, const struct sml_mpi_call *call, sml_operation *op, sml_status status) {
  if (status != SML_OK) {
    sml_error error = SML_ERROR_INIT;
    sml_operation_error(op, &error);
    say(g, "%s failed: %s", sml_mpi_kind_names[call->kind],
        error.detail[0] != 0 ? error.detail : sml_status_string(status));
  }
  sml_operation_release(op);
  atomic_fetch_sub_explicit(&g->num_outstanding, 1, memory_order_relaxed);
  return status == SML_OK;
}

void sml_mpi_group_give_up(struct sml_mpi_group *g, const struct sml_mpi_call *call, const char *detail) {
  char why[400];
  snprintf(why, sizeof why, "%s failed: %s", sml_mpi_kind_names[call->kind], detail);
  say(g, "%s", why);
  sml_job_abort(g->job, why);
}

static sml_status submit(struct sml_mpi_group *g, const struct sml_mpi_call *c, sml_operation **op_out) {
  const size_t each = c->parts != NULL ? 0 : c->count / g->size;
  switch (c->kind) {
    case SML_MPI_REDUCE:
      return sml_reduce(g->job, c->in, c->out, c->count, c->type, c->reduction, c->root, NULL, op_out);
    case SML_MPI_REDUCE_SCATTER:
      return sml_reduce_scatter(g->job, c->in, c->out, each, c->parts, c->type, c->reduction, NULL, op_out);
    case SML_MPI_ALLGATHER: return sml_all_gather(g->job, c->in, c->out, each, c->parts, NULL, op_out);
    case SML_MPI_BCAST: return sml_broadcast(g->job, c->out, c->count, c->root, NULL, op_out);
    case SML_MPI_BARRIER: return sml_barrier(g->job, NULL, op_out);
    default: return sml_allreduce(g->job, c->in, c->out, c->count, c->type, c->reduction, NULL, op_out);
  }
}

enum sml_mpi_start sml_mpi_group_start(struct sml_mpi_group *g, const struct sml_mpi_call *call,
                                       sml_operation **op_out) {
  if (atomic_load_explicit(&g->num_outstanding, memory_order_relaxed) >= MAX_OUTSTANDING) return SML_MPI_NO_ROOM;
  const sml_status status = submit(g, call, op_out);
  if (status == SML_ERR_BUSY) return SML_MPI_NO_ROOM;
  if (status != SML_OK) {
    sml_mpi_group_give_up(g, call, sml_error_detail());
    return SML_MPI_BAD;
  }
  atomic_fetch_add_explicit(&g->num_outstanding, 1, memory_order_relaxed);
  return SML_MPI_STARTED;
}

bool sml_mpi_group_test(struct sml_mpi_group *g, const struct sml_mpi_call *call, sml_operation *op,
                        bool *is_good_out) {
  const sml_status status = sml_operation_test(op);
  if (status == SML_IN_PROGRESS) return false;
  *is_good_out = has_ended(g, call, op, status);
  return true;
}

static bool wait_for(struct sml_mpi_group *g, const struct sml_mpi_call *call, sml_operation *op) {
  uint64_t patience_ns = 50 * NS_PER_US; /* the longer it takes the less it matters, up to a millisecond */
  sml_status status;
  while ((status = sml_operation_wait(op, patience_ns)) == SML_IN_PROGRESS) {
    g->progress(g->user);
    if (patience_ns < 1000 * NS_PER_US) patience_ns *= 2;
  }
  return has_ended(g, call, op, status);
}

bool sml_mpi_group_do(struct sml_mpi_group *g, const struct sml_mpi_call *call) {
  sml_operation *op;
  enum sml_mpi_start started;
  while ((started = sml_mpi_group_start(g, call, &op)) == SML_MPI_NO_ROOM) g->progress(g->user);
  return started == SML_MPI_STARTED && wait_for(g, call, op);
}
