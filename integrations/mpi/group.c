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

/* Shorter sums are about as fast over MPI, but for the shortest among many hosts. */
#define DEFAULT_MIN_COUNT 4096u
/* MPI knows no deadlines: ranks may compute for long while others wait. The library's warnings name the late ones. */
#define DEFAULT_TIMEOUT_S 3600u
/* All are there when one joins: they have just gathered. */
#define DEFAULT_JOIN_TIMEOUT_S 10u
/* No floats unless they are asked for: exact sums of float32 take twice its bytes, which is more than MPI's ring moves,
 * and a default must not slow anybody down. */
#define DEFAULT_TYPES (1u << SML_INT32 | 1u << SML_INT64)
/* Each costs the rank that embeds its aggregator three threads and the descriptors below. */
#define DEFAULT_MAX_JOBS 16u
#define MOST_JOBS 512u
/* What a job opens at most, beside one connection a rank; and the part of a process's descriptors for all after the
 * first. The rest is the program's. */
#define DESCRIPTORS_OF_JOB 8u
#define PART_OF_DESCRIPTORS 4u
/* Sums of one communicator under way. The context has as many handles for each job: no communicator's sums wait for
 * those of another, which ranks may call in another order. */
#define MAX_OUTSTANDING 128u

#define GATHERED_WORDS 8u /* of those agreed on the last one is the host */
#define NUM_TYPES 6u
#define DEFAULT_LEASE_S 60.0 /* the library's, too */
#define LEAST_LEASE_S 0.02
#define MOST_LEASE_S 3600.0
#define MOST_TIMEOUT_S 1000000000u

enum state { UNDECIDED, AGREED, JOINED, WITHOUT, BROKEN };

struct sml_mpi_group {
  const char *name;
  uint32_t rank, size;
  enum state state;
  bool has_place; /* one of the process's jobs */
  bool is_meeting;
  struct sml_mpi_settings settings; /* rank 0's, once it is AGREED */
  uint64_t lease_ns;                /* likewise */
  uint32_t num_hosts;               /* likewise */
  bool has_seen_few_doubles;        /* as `longest` */
  sml_allgather_fn allgather;
  int (*progress)(void *user);
  void *user;
  uint64_t (*gathered)[GATHERED_WORDS]; /* of each rank; there from the start: who lacked it would keep all waiting */
  size_t longest[NUM_TYPES];            /* sum of each type that was seen; equal on all ranks in each blocking call */
  sml_job *job;
  atomic_uint num_outstanding;
  uint64_t num_passed;
};

/* ---- settings ---- */

static void say(const struct sml_mpi_group *g, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(const struct sml_mpi_group *g, const char *format, ...) {
  char line[600];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  /* In one call: lines of several ranks don't mix. */
  if (g != NULL) fprintf(stderr, "switchml: rank %u of %s: %s\n", g->rank, g->name, line);
  else fprintf(stderr, "switchml: %s\n", line);
}

static const struct {
  const char *name;
  uint32_t types;
} known[] = {{"float32", 1u << SML_FLOAT32}, {"int32", 1u << SML_INT32},     {"int64", 1u << SML_INT64},
             {"float16", 1u << SML_FLOAT16}, {"float64", 1u << SML_FLOAT64}, {"none", 0}};

void sml_mpi_types_list(uint32_t types, char *list_out) {
  size_t length = 0;
  for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
    if (known[k].types == 0 ? types == 0 : (types & known[k].types) != 0)
      length += (size_t)snprintf(list_out + length, SML_MPI_TYPES_BYTES - length, "%s%s", length > 0 ? "," : "",
                                 known[k].name);
}

bool sml_mpi_types_of(const char *list, uint32_t *types_out) {
  uint32_t types = 0;
  for (const char *at = list; *at != 0;) {
    const size_t length = strcspn(at, ",");
    bool is_known = false;
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
      if (strlen(known[k].name) != length || strncmp(known[k].name, at, length) != 0) continue;
      types |= known[k].types;
      is_known = true;
    }
    if (!is_known) return false;
    at += length;
    if (*at == ',') at++;
  }
  *types_out = types;
  return true;
}

static void read_number(const char *name, uint64_t min, uint64_t max, uint64_t *value) {
  const char *text = getenv(name);
  if (text == NULL || text[0] == 0) return;
  char *end;
  errno = 0;
  const unsigned long long number = strtoull(text, &end, 10);
  if (errno == 0 && *end == 0 && text[0] >= '0' && text[0] <= '9' && number >= min && number <= max) *value = number;
  else
    say(NULL, "%s=%s is no number from %llu to %llu; %llu is used", name, text, (unsigned long long)min,
        (unsigned long long)max, (unsigned long long)*value);
}

static bool is_lease(double seconds) {
  return seconds >= LEAST_LEASE_S && seconds <= MOST_LEASE_S;
}

static void read_lease(double *seconds) {
  const char *text = getenv("SWITCHML_LEASE");
  if (text == NULL || text[0] == 0) return;
  char *end;
  const double number = strtod(text, &end);
  if (*end == 0 && is_lease(number)) *seconds = number;
  else
    say(NULL, "SWITCHML_LEASE=%s: set seconds from %g to %g; %g is used", text, LEAST_LEASE_S, MOST_LEASE_S, *seconds);
}

static void check_timeout(uint64_t *seconds, uint64_t usual, const char *prefix, const char *name) {
  if (*seconds >= 1 && *seconds <= MOST_TIMEOUT_S) return;
  say(NULL, "%s%s=%llu: set seconds from 1 to %u; %llu is used", prefix, name, (unsigned long long)*seconds,
      MOST_TIMEOUT_S, (unsigned long long)usual);
  *seconds = usual;
}

void sml_mpi_settings_check(struct sml_mpi_settings *s, const struct sml_mpi_settings *usual, const char *prefix) {
  check_timeout(&s->timeout_s, usual->timeout_s, prefix, "timeout");
  check_timeout(&s->join_timeout_s, usual->join_timeout_s, prefix, "join_timeout");
  if (is_lease(s->lease_s)) return;
  say(NULL, "%slease=%g: set seconds from %g to %g; %g is used", prefix, s->lease_s, LEAST_LEASE_S, MOST_LEASE_S,
      usual->lease_s);
  s->lease_s = usual->lease_s;
}

static bool is_on(const char *name) {
  const char *text = getenv(name);
  return text != NULL && text[0] != 0 && strcmp(text, "0") != 0;
}

struct sml_mpi_settings sml_mpi_settings_of_environment(void) {
  struct sml_mpi_settings s = {.min_count = DEFAULT_MIN_COUNT,
                               .timeout_s = DEFAULT_TIMEOUT_S,
                               .join_timeout_s = DEFAULT_JOIN_TIMEOUT_S,
                               .lease_s = DEFAULT_LEASE_S,
                               .max_jobs = DEFAULT_MAX_JOBS,
                               .short_hosts = SML_MPI_SHORT_HOSTS};
  s.types = DEFAULT_TYPES;
  read_number("SWITCHML_MPI_SHORT_HOSTS", 0, UINT32_MAX, &s.short_hosts);
  read_number("SWITCHML_MPI_MIN_COUNT", 0, UINT64_MAX, &s.min_count);
  read_number("SWITCHML_MPI_TIMEOUT", 1, MOST_TIMEOUT_S, &s.timeout_s);
  read_number("SWITCHML_MPI_JOIN_TIMEOUT", 1, MOST_TIMEOUT_S, &s.join_timeout_s);
  read_number("SWITCHML_MPI_MAX_JOBS", 0, UINT32_MAX, &s.max_jobs);
  read_lease(&s.lease_s);
  const char *types = getenv("SWITCHML_MPI_TYPES");
  if (types != NULL && !sml_mpi_types_of(types, &s.types))
    say(NULL, "SWITCHML_MPI_TYPES=%s: there are " SML_MPI_TYPE_NAMES "; those of the default are taken", types);
  if (is_on("SWITCHML_DISABLE")) s.types = 0;
  s.is_required = is_on("SWITCHML_REQUIRE");
  s.is_verbose = is_on("SWITCHML_MPI_VERBOSE");
  return s;
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

/* Once a process: communicators may be many. */
static void say_lack(const struct sml_mpi_group *g, uint32_t rank, enum lack lack) {
  if (g->rank != 0 || atomic_exchange(&has_said_lack, true)) return;
  say(g, "no job: rank %u %s; %s, here and in later communicators", rank,
      lack == LACKS_JOBS ? "has as many jobs as it may (SWITCHML_MPI_MAX_JOBS or coll_switchml_max_jobs)"
                         : "keeps the rest of its descriptors for the program (ulimit -n)",
      g->settings.is_required ? "sums are errors, as SWITCHML_REQUIRE=1 wants it" : "MPI does the sums");
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
  g->allgather = allgather;
  g->progress = progress;
  g->user = user;
  return g;
}

void sml_mpi_group_destroy(struct sml_mpi_group *g) {
  if (g == NULL) return;
  sml_stats stats = SML_STATS_INIT;
  if (g->job != NULL) sml_job_stats(g->job, &stats);
  if (g->settings.is_verbose && g->state != UNDECIDED)
    say(g, "%llu sums of %llu bytes taken, %llu passed on; %llu chunks, %llu packets sent",
        (unsigned long long)stats.operations_completed, (unsigned long long)stats.tensor_bytes,
        (unsigned long long)g->num_passed, (unsigned long long)stats.chunks_completed,
        (unsigned long long)stats.tx_packets);
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

static int compare_words(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* How many different ones ranks told; 1 if it cannot be said. */
static uint32_t count_hosts(const struct sml_mpi_group *g) {
  uint64_t *hosts = calloc(g->size, sizeof *hosts);
  uint32_t num = 1;
  if (hosts == NULL) return 1;
  for (uint32_t r = 0; r < g->size; r++) hosts[r] = g->gathered[r][GATHERED_WORDS - 1];
  qsort(hosts, g->size, sizeof *hosts, compare_words);
  for (uint32_t r = 1; r < g->size; r++) num += hosts[r] != hosts[r - 1];
  if (hosts[0] == 0) num = 1;
  free(hosts);
  return num;
}

static void agree(struct sml_mpi_group *g) {
  const uint64_t mine[GATHERED_WORDS] = {g->settings.min_count,      g->settings.timeout_s,
                                         g->settings.types,          g->settings.is_required,
                                         g->settings.join_timeout_s, (uint64_t)(g->settings.lease_s * NS_PER_S),
                                         g->settings.short_hosts,    host_number()};
  if (!gather(g, mine)) return;
  g->state = AGREED;
  for (uint32_t r = 1; r < g->size; r++) {
    if (memcmp(g->gathered[r], g->gathered[0], sizeof mine - sizeof mine[0]) == 0) continue;
    static const char others[] =
        "rank %u has other settings (SWITCHML_MPI_*, SWITCHML_LEASE, _REQUIRE, _DISABLE or coll_switchml_*); "
        "all use those of rank 0";
    if (g->rank == 0) say(g, others, r);
    break;
  }
  g->settings.min_count = g->gathered[0][0];
  g->settings.timeout_s = g->gathered[0][1];
  g->settings.types = (uint32_t)g->gathered[0][2];
  g->settings.is_required = g->gathered[0][3] != 0;
  g->settings.join_timeout_s = g->gathered[0][4];
  g->lease_ns = g->gathered[0][5];
  g->settings.short_hosts = g->gathered[0][6];
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

/* Else floats are exact sums: in block fixed point they would lose digits beside a large one, down to all of them. The
 * owner of a gradient accepts that; a program that sums temperatures beside a fill value of 1e20 does not. */
static bool says_how_floats_travel(void) {
  static const char *const names[] = {"SWITCHML_EXACT", "SWITCHML_FLOAT_BITS", "SWITCHML_FLOAT64_BITS"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (getenv(names[i]) != NULL && getenv(names[i])[0] != 0) return true;
  return false;
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
  o.exact = says_how_floats_travel() ? 0 : 1;
  if (sml_job_create(context, &o, &g->job) == SML_OK) {
    if (g->settings.is_verbose && g->rank == 0)
      say(g, "job %s of %u ranks takes sums of at least %llu elements", text, g->size,
          (unsigned long long)g->settings.min_count);
    return;
  }
  g->job = NULL;
  has_failed = true;
  if (g->rank == 0)
    say(g, "no job: %s%s", sml_error_detail(),
        g->settings.is_required ? "" : "; MPI does the sums (SWITCHML_REQUIRE=1 makes that an error)");
}

static void join(struct sml_mpi_group *g) {
  uint64_t name;
  if (is_ready(g, &name)) create_job(g, name);
  if (g->job == NULL) leave_place(g);
  if (g->state != BROKEN) g->state = g->job != NULL ? JOINED : WITHOUT;
}

static bool has_seen(const struct sml_mpi_group *g, uint32_t types, size_t min_count) {
  for (uint32_t t = 0; t < NUM_TYPES; t++)
    if ((types >> t & 1) != 0 && g->longest[t] > 0 && g->longest[t] >= min_count) return true;
  return false;
}

/* A rule of what is equal on all ranks: short_hosts is rank 0's. "none" in `types` means these, too. */
static bool takes_few_doubles(const struct sml_mpi_group *g) {
  return g->settings.short_hosts > 0 && g->num_hosts >= g->settings.short_hosts && g->settings.types != 0;
}

static bool are_few_doubles(sml_type type, size_t count) {
  return type == SML_FLOAT64 && count > 0 && count <= SML_MPI_SHORT_COUNT;
}

static bool wants_job(const struct sml_mpi_group *g) {
  return has_seen(g, g->settings.types, g->settings.min_count) || (g->has_seen_few_doubles && takes_few_doubles(g));
}

void sml_mpi_group_meet(struct sml_mpi_group *g) {
  if ((g->state != UNDECIDED && g->state != AGREED) || g->is_meeting) return;
  g->is_meeting = true; /* MPI's all-gather may be made of other blocking calls */
  if (g->state == UNDECIDED && has_seen(g, UINT32_MAX, 0)) agree(g);
  if (g->state == AGREED && wants_job(g)) join(g);
  g->is_meeting = false;
}

enum sml_mpi_way sml_mpi_group_way(struct sml_mpi_group *g, sml_type type, size_t count, bool is_blocking) {
  if (count > g->longest[type]) g->longest[type] = count;
  if (are_few_doubles(type, count)) g->has_seen_few_doubles = true;
  if (is_blocking) sml_mpi_group_meet(g);
  if (g->state == BROKEN) return SML_MPI_FAILED;
  const bool is_asked_for = (g->settings.types >> type & 1) != 0 && count > 0 && count >= g->settings.min_count;
  const bool is_wanted =
      g->state != UNDECIDED && (is_asked_for || (are_few_doubles(type, count) && takes_few_doubles(g)));
  if (is_wanted && g->state == WITHOUT && g->settings.is_required) return SML_MPI_FAILED;
  if (is_wanted && g->state == JOINED && sml_supported(g->job, type, SML_SUM, count)) return SML_MPI_TAKEN;
  g->num_passed++;
  return SML_MPI_PASSED;
}

/* ---- operations ---- */

static bool has_ended(struct sml_mpi_group *g, sml_operation *op, sml_status status) {
  if (status != SML_OK) {
    sml_error error = SML_ERROR_INIT;
    sml_operation_error(op, &error);
    say(g, "all-reduce failed: %s", error.detail[0] != 0 ? error.detail : sml_status_string(status));
  }
  sml_operation_release(op);
  atomic_fetch_sub_explicit(&g->num_outstanding, 1, memory_order_relaxed);
  return status == SML_OK;
}

enum sml_mpi_start sml_mpi_group_start(struct sml_mpi_group *g, const void *in, void *out, size_t count, sml_type type,
                                       sml_operation **op_out) {
  if (atomic_load_explicit(&g->num_outstanding, memory_order_relaxed) >= MAX_OUTSTANDING) return SML_MPI_NO_ROOM;
  const sml_status status = sml_allreduce(g->job, in, out, count, type, SML_SUM, NULL, op_out);
  if (status == SML_ERR_BUSY) return SML_MPI_NO_ROOM;
  if (status != SML_OK) {
    say(g, "all-reduce failed: %s", sml_error_detail());
    return SML_MPI_BAD;
  }
  atomic_fetch_add_explicit(&g->num_outstanding, 1, memory_order_relaxed);
  return SML_MPI_STARTED;
}

bool sml_mpi_group_test(struct sml_mpi_group *g, sml_operation *op, bool *is_good_out) {
  const sml_status status = sml_operation_test(op);
  if (status == SML_IN_PROGRESS) return false;
  *is_good_out = has_ended(g, op, status);
  return true;
}

static bool wait_for(struct sml_mpi_group *g, sml_operation *op) {
  uint64_t patience_ns = 50 * NS_PER_US; /* the longer it takes the less it matters, up to a millisecond */
  sml_status status;
  while ((status = sml_operation_wait(op, patience_ns)) == SML_IN_PROGRESS) {
    g->progress(g->user);
    if (patience_ns < 1000 * NS_PER_US) patience_ns *= 2;
  }
  return has_ended(g, op, status);
}

bool sml_mpi_group_sum(struct sml_mpi_group *g, const void *in, void *out, size_t count, sml_type type) {
  sml_operation *op;
  enum sml_mpi_start started;
  while ((started = sml_mpi_group_start(g, in, out, count, type, &op)) == SML_MPI_NO_ROOM) g->progress(g->user);
  return started == SML_MPI_STARTED && wait_for(g, op);
}
