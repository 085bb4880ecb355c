/* SPDX-License-Identifier: Apache-2.0
 * Open MPI's component coll/switchml (4.1, 5.0): reductions, all-gathers, broadcasts and barriers of every
 * communicator, blocking or not, below the bindings of all languages. What it does not take goes to the component that
 * had the call before. */
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ompi_config.h"

#include "ompi/communicator/communicator.h"
#include "ompi/mca/coll/base/base.h"
#include "ompi/mca/coll/coll.h"
#include "ompi/mca/pml/base/base.h"
#include "ompi/request/request.h"
#include "ompi/runtime/mpiruntime.h"
#include "opal/mca/btl/base/base.h"
#include "opal/runtime/opal_progress.h"

#include "calls.h"

#if OMPI_MAJOR_VERSION < 4 || OMPI_MAJOR_VERSION > 5
#error "this component is written for Open MPI 4 and 5; MPI programs of other versions can preload libswitchml_pmpi.so"
#endif

/* ---- the component and its parameters ---- */

/* Above tuned (30) and han (35 at most): who loads it wants it. Below those that give tensors on GPUs to others as
 * copies on the host (cuda of 4.1 and accelerator of 5.0: 78). */
#define USUAL_PRIORITY 77
static int priority;
static struct sml_mpi_settings settings;

/* As text, for MPI itself takes what is no number for 0. */
static char *priority_text, *lease_text, *types_text;
static struct {
  const char *name, *help;
  uint64_t *value, min, max;
  char *text;
} numbers[] = {
#define NUMBER(name, help, field) \
  { name, help, &settings.field, 0, UINT64_MAX, NULL }
#define SECONDS(name, help, field) \
  { name, help, &settings.field, 1, SML_MPI_MOST_TIMEOUT_S, NULL }
#define MOST_BYTES(name, kind) \
  NUMBER(name "_bytes", "Such calls are short if SwitchML sends at most so many bytes", most_bytes[kind])
    NUMBER("min_count", "Sums of fewer elements stay with the other components", min_count),
    NUMBER("short_hosts", "Short calls are taken if ranks run on so many hosts, over TCP; 0: never", short_hosts),
    MOST_BYTES("allreduce", SML_MPI_ALLREDUCE),
    MOST_BYTES("reduce", SML_MPI_REDUCE),
    MOST_BYTES("reduce_scatter", SML_MPI_REDUCE_SCATTER),
    MOST_BYTES("allgather", SML_MPI_ALLGATHER),
    MOST_BYTES("bcast", SML_MPI_BCAST),
    MOST_BYTES("barrier", SML_MPI_BARRIER),
    NUMBER("one_way_bytes", "Calls of at least so many bytes are taken with SWITCHML_ONE_WAY=1", one_way_bytes),
    SECONDS("timeout", "Seconds that a rank may be late before all get an error", timeout_s),
    SECONDS("join_timeout", "Seconds that an aggregator is waited for", join_timeout_s),
    NUMBER("max_jobs", "Communicators of a process with a job; calls of further ones stay with the other components",
           max_jobs)};
#define NUM_NUMBERS (sizeof numbers / sizeof numbers[0])

/* A non-blocking call: waiting for room, then outstanding, then complete. */
typedef struct switchml_request {
  ompi_request_t super;
  /* MPI takes every collective request for an ompi_coll_base_nbc_request_t, and notes here which types and operation it
   * retains until the end: 4 words in Open MPI 4.1 and 5.0. The header that says so includes others that nobody
   * installs. */
  void *of_mpi[16];
  struct switchml_module *module; /* lives as long as the communicator, which this request retains */
  struct sml_mpi_plan plan;
  sml_operation *operation;
  struct switchml_request *next;
} switchml_request;
OBJ_CLASS_DECLARATION(switchml_request);
static void construct_request(switchml_request *r) {
  memset((char *)r + sizeof r->super, 0, sizeof *r - sizeof r->super); /* subclasses are not zeroed */
}

OBJ_CLASS_INSTANCE(switchml_request, ompi_request_t, construct_request, NULL);

typedef struct {
  switchml_request *first, **end; /* end: the last one's `next`, if there is one */
} request_list;

#define BLOCKING(X) X(allreduce) X(reduce) X(reduce_scatter) X(reduce_scatter_block) X(allgather) X(allgatherv)
#define OTHERS(X) X(iallreduce) X(ireduce) X(ireduce_scatter) X(ireduce_scatter_block) X(iallgather) X(iallgatherv)
#define EACH_CALL(X) BLOCKING(X) OTHERS(X) X(bcast) X(ibcast) X(barrier) X(ibarrier)

typedef struct switchml_module {
  mca_coll_base_module_t super;
  struct sml_mpi_group *group;
  ompi_communicator_t *comm;
  /* Guarded by requests_mutex. */
  request_list waiting; /* for room, in the order of their calls */
  struct switchml_module *next_waiting;
  /* Who had these calls before. */
#define FIELDS(call)                       \
  mca_coll_base_module_##call##_fn_t call; \
  mca_coll_base_module_t *call##_module;
  EACH_CALL(FIELDS)
#undef FIELDS
} switchml_module;

static void construct_module(switchml_module *m) {
  memset((char *)m + sizeof m->super, 0, sizeof *m - sizeof m->super); /* likewise */
}

static void destruct_module(switchml_module *m) {
  sml_mpi_group_destroy(m->group);
#define RELEASE(call) \
  if (m->call##_module != NULL) OBJ_RELEASE(m->call##_module);
  EACH_CALL(RELEASE)
#undef RELEASE
}

OBJ_CLASS_DECLARATION(switchml_module);
OBJ_CLASS_INSTANCE(switchml_module, mca_coll_base_module_t, construct_module, destruct_module);

/* ---- requests ---- */

static pthread_mutex_t requests_mutex = PTHREAD_MUTEX_INITIALIZER;
static request_list outstanding;
static switchml_module *waiting_modules; /* those whose requests wait for room */
static atomic_uint num_requests; /* waiting or outstanding: so that MPI's progress pays one load while there is none */
static bool is_registered;

static void append(request_list *list, switchml_request *request) {
  if (list->first == NULL) list->end = &list->first;
  request->next = NULL;
  *list->end = request;
  list->end = &request->next;
}

static switchml_request *take_first(request_list *list) {
  switchml_request *request = list->first;
  list->first = request->next;
  return request;
}

static enum sml_mpi_start start(switchml_request *r) {
  return sml_mpi_group_start(r->module->group, &r->plan.call, &r->operation);
}

static void end_locked(switchml_request *request, bool is_good, request_list *ended) {
  request->super.req_status.MPI_ERROR = is_good ? MPI_SUCCESS : MPI_ERR_OTHER;
  append(ended, request);
}

static void test_outstanding_locked(request_list *ended) {
  request_list rest = {0};
  while (outstanding.first != NULL) {
    switchml_request *request = take_first(&outstanding);
    bool is_good;
    if (sml_mpi_group_test(request->module->group, &request->plan.call, request->operation, &is_good))
      end_locked(request, is_good, ended);
    else append(&rest, request);
  }
  outstanding = rest;
}

/* Those of each communicator in their order: behind one that finds no room the others wait, too. */
static void start_waiting_locked(request_list *ended) {
  for (switchml_module **at = &waiting_modules; *at != NULL;) {
    switchml_module *m = *at;
    while (m->waiting.first != NULL) {
      const enum sml_mpi_start started = start(m->waiting.first);
      if (started == SML_MPI_NO_ROOM) break;
      switchml_request *request = take_first(&m->waiting);
      if (started == SML_MPI_STARTED) append(&outstanding, request);
      else end_locked(request, false, ended);
    }
    if (m->waiting.first == NULL) *at = m->next_waiting;
    else at = &m->next_waiting;
  }
}

/* Outside of the mutex: what is unpacked may be long. */
static void end_plan(switchml_request *request) {
  const bool is_good = request->super.req_status.MPI_ERROR == MPI_SUCCESS;
  if (!sml_mpi_plan_end(&request->plan, is_good)) request->super.req_status.MPI_ERROR = MPI_ERR_OTHER;
}

/* Called by whatever MPI call waits for something. Returns how many requests it completed. */
static int complete_requests(void) {
  int num_completed = 0;
  request_list ended = {0};
  if (atomic_load_explicit(&num_requests, memory_order_relaxed) == 0) return 0;
  if (pthread_mutex_trylock(&requests_mutex) != 0) return 0; /* another thread is at it, or this one, from within */
  test_outstanding_locked(&ended);
  start_waiting_locked(&ended);
  pthread_mutex_unlock(&requests_mutex);
  while (ended.first != NULL) {
    switchml_request *request = take_first(&ended); /* once complete, it may be freed at any time */
    atomic_fetch_sub_explicit(&num_requests, 1, memory_order_relaxed);
    end_plan(request);
    ompi_request_complete(&request->super, true);
    num_completed++;
  }
  return num_completed;
}

static int free_request(ompi_request_t **request) {
  ompi_communicator_t *comm = (*request)->req_mpi_object.comm;
  OMPI_REQUEST_FINI(*request);
  OBJ_RELEASE(*request);
  OBJ_RELEASE(comm);
  *request = MPI_REQUEST_NULL;
  return OMPI_SUCCESS;
}

static switchml_request *new_request(switchml_module *m, const struct sml_mpi_plan *plan) {
  switchml_request *request = OBJ_NEW(switchml_request);
  if (request == NULL) return NULL;
  OMPI_REQUEST_INIT(&request->super, false);
  request->super.req_type = OMPI_REQUEST_COLL;
  request->super.req_state = OMPI_REQUEST_ACTIVE;
  request->super.req_free = free_request;
  request->super.req_mpi_object.comm = m->comm;
  OBJ_RETAIN(m->comm); /* MPI_Comm_free() does not end what is under way */
  request->super.req_status = (ompi_status_public_t){.MPI_SOURCE = MPI_ANY_SOURCE, .MPI_TAG = MPI_ANY_TAG};
  request->super.req_status.MPI_ERROR = MPI_SUCCESS;
  request->module = m;
  request->plan = *plan;
  return request;
}

/* False: an error, and nothing has changed. */
static bool start_or_wait(switchml_request *request) {
  switchml_module *m = request->module;
  pthread_mutex_lock(&requests_mutex);
  const bool is_first = m->waiting.first == NULL;
  const enum sml_mpi_start started = is_first ? start(request) : SML_MPI_NO_ROOM;
  if (started == SML_MPI_STARTED) append(&outstanding, request);
  if (started == SML_MPI_NO_ROOM) {
    append(&m->waiting, request);
    if (is_first) {
      m->next_waiting = waiting_modules;
      waiting_modules = m;
    }
  }
  const bool is_to_register = started != SML_MPI_BAD && !is_registered;
  if (started != SML_MPI_BAD) {
    is_registered = true;
    atomic_fetch_add_explicit(&num_requests, 1, memory_order_relaxed);
  }
  pthread_mutex_unlock(&requests_mutex);
  if (is_to_register) opal_progress_register(complete_requests);
  return started != SML_MPI_BAD;
}

/* ---- the calls ---- */

static bool has_waiting(switchml_module *m) {
  pthread_mutex_lock(&requests_mutex);
  const bool has_some = m->waiting.first != NULL;
  pthread_mutex_unlock(&requests_mutex);
  return has_some;
}

/* Not while MPI starts or ends, when processes that were spawned meet their parents. */
static bool is_running(void) {
  return ompi_mpi_state >= OMPI_MPI_STATE_INIT_COMPLETED &&
         ompi_mpi_state < OMPI_MPI_STATE_FINALIZE_PAST_COMM_SELF_DESTRUCT;
}

/* A call that blocks, behind those that wait for room. Whether SwitchML has done it, and how; else it is MPI's. */
static bool is_done(switchml_module *m, struct sml_mpi_plan plan, int *result_out) {
  const enum sml_mpi_way way = sml_mpi_group_way(m->group, &plan.call, true);
  if (way == SML_MPI_PASSED) return false;
  *result_out = OMPI_ERROR;
  if (way == SML_MPI_FAILED) return true;
  while (has_waiting(m)) opal_progress();
  const bool is_good = sml_mpi_plan_prepare(&plan, m->group) && sml_mpi_group_do(m->group, &plan.call);
  if (sml_mpi_plan_end(&plan, is_good)) *result_out = OMPI_SUCCESS;
  return true;
}

/* So of one that does not block. */
static bool is_begun(switchml_module *m, struct sml_mpi_plan plan, ompi_request_t **request_out, int *result_out) {
  const enum sml_mpi_way way = sml_mpi_group_way(m->group, &plan.call, false);
  if (way == SML_MPI_PASSED) return false;
  *result_out = OMPI_ERROR;
  if (way == SML_MPI_FAILED) return true;
  switchml_request *request = new_request(m, &plan);
  if (request == NULL) sml_mpi_group_give_up(m->group, &plan.call, "no memory");
  *result_out = request == NULL ? OMPI_ERR_OUT_OF_RESOURCE : OMPI_SUCCESS;
  if (request == NULL) return true;
  *request_out = &request->super;
  if (sml_mpi_plan_prepare(&request->plan, m->group) && start_or_wait(request)) return true;
  (void)sml_mpi_plan_end(&request->plan, false);
  free_request(request_out);
  *result_out = OMPI_ERROR;
  return true;
}

/* The two functions of a call, with MPI's arguments and as a plan; the function that had it before gets the rest. */
#define UNPACKED(...) __VA_ARGS__
#define CALLS(call, parameters, arguments, plan)                                                                       \
  static int call(parameters ompi_communicator_t *comm, mca_coll_base_module_t *module) {                              \
    switchml_module *m = (switchml_module *)module;                                                                    \
    int result;                                                                                                        \
    if (is_running() && is_done(m, plan, &result)) return result;                                                      \
    return m->call(arguments comm, m->call##_module);                                                                  \
  }                                                                                                                    \
  static int i##call(parameters ompi_communicator_t *comm, ompi_request_t **request, mca_coll_base_module_t *module) { \
    switchml_module *m = (switchml_module *)module;                                                                    \
    int result;                                                                                                        \
    if (is_running() && is_begun(m, plan, request, &result)) return result;                                            \
    return m->i##call(arguments comm, request, m->i##call##_module);                                                   \
  }
#define INTS(numbers) ((struct sml_mpi_numbers){.at = (numbers)})

CALLS(allreduce, UNPACKED(const void *in, void *out, int count, MPI_Datatype type, MPI_Op op, ),
      UNPACKED(in, out, count, type, op, ), sml_mpi_plan_reduce(in, out, count, type, op, SML_MPI_NO_ROOT, comm))
CALLS(reduce, UNPACKED(const void *in, void *out, int count, MPI_Datatype type, MPI_Op op, int root, ),
      UNPACKED(in, out, count, type, op, root, ), sml_mpi_plan_reduce(in, out, count, type, op, root, comm))
CALLS(reduce_scatter, UNPACKED(const void *in, void *out, const int *counts, MPI_Datatype type, MPI_Op op, ),
      UNPACKED(in, out, counts, type, op, ), sml_mpi_plan_reduce_scatter(in, out, 0, INTS(counts), type, op, comm))
CALLS(reduce_scatter_block, UNPACKED(const void *in, void *out, int count, MPI_Datatype type, MPI_Op op, ),
      UNPACKED(in, out, count, type, op, ), sml_mpi_plan_reduce_scatter(in, out, count, INTS(NULL), type, op, comm))
CALLS(allgather,
      UNPACKED(const void *in, int in_count, MPI_Datatype in_type, void *out, int count, MPI_Datatype type, ),
      UNPACKED(in, in_count, in_type, out, count, type, ),
      sml_mpi_plan_allgather(in, in_count, in_type, out, count, INTS(NULL), INTS(NULL), type, comm))
CALLS(allgatherv,
      UNPACKED(const void *in, int in_count, MPI_Datatype in_type, void *out, const int *counts, const int *places,
               MPI_Datatype type, ),
      UNPACKED(in, in_count, in_type, out, counts, places, type, ),
      sml_mpi_plan_allgather(in, in_count, in_type, out, 0, INTS(counts), INTS(places), type, comm))
CALLS(bcast, UNPACKED(void *data, int count, MPI_Datatype type, int root, ), UNPACKED(data, count, type, root, ),
      sml_mpi_plan_bcast(data, count, type, root, comm))
CALLS(barrier, , , sml_mpi_plan_barrier(comm))

/* ---- what the group borrows ---- */

static int gather(void *user, const void *in, void *out, size_t bytes) {
  switchml_module *m = user;
  if (bytes > INT32_MAX) return 1;
  return m->allgather(in, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, m->comm, m->allgather_module);
}

static int let_mpi_go_on(void *user) {
  (void)user;
  opal_progress();
  return 0;
}

/* Whether messages between hosts go by TCP: on other fabrics MPI's short sums are faster than ours. */
static bool is_over_tcp(void) {
  static const char *const usual[] = {"tcp", "self", "vader", "sm"};
  mca_btl_base_selected_module_t *each;
  if (strcmp(mca_pml_base_selected_component.pmlm_version.mca_component_name, "ob1") != 0) return false;
  OPAL_LIST_FOREACH(each, &mca_btl_base_modules_initialized, mca_btl_base_selected_module_t) {
    bool is_usual = false;
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++)
      is_usual = is_usual || strcmp(each->btl_component->btl_version.mca_component_name, usual[i]) == 0;
    if (!is_usual) return false;
  }
  return true;
}

/* ---- how Open MPI takes it in ---- */

static int enable(mca_coll_base_module_t *module, ompi_communicator_t *comm) {
  switchml_module *m = (switchml_module *)module;
  mca_coll_base_comm_coll_t *before = comm->c_coll;
#define CHECK(call) \
  if (before->coll_##call == NULL) return OMPI_ERR_NOT_FOUND;
  EACH_CALL(CHECK)
#undef CHECK
  m->comm = comm;
  struct sml_mpi_settings own = settings;
  if (!is_over_tcp()) own.short_hosts = 0;
  m->group = sml_mpi_group_create(comm->c_name, (uint32_t)ompi_comm_rank(comm), (uint32_t)ompi_comm_size(comm), &own,
                                  gather, let_mpi_go_on, m);
  /* An error that Open MPI heard of would be this rank's alone: it would call others than the rest does, unnoticed. */
  if (m->group == NULL) sml_mpi_say("rank %d of %s: out of memory: its calls fail", ompi_comm_rank(comm), comm->c_name);
#define KEEP(call)                                 \
  m->call = before->coll_##call;                   \
  m->call##_module = before->coll_##call##_module; \
  OBJ_RETAIN(m->call##_module);
  EACH_CALL(KEEP)
#undef KEEP
  return OMPI_SUCCESS;
}

static mca_coll_base_module_t *query(ompi_communicator_t *comm, int *priority_out) {
  if (priority < 0 || OMPI_COMM_IS_INTER(comm) || ompi_comm_size(comm) < 2) return NULL;
  switchml_module *m = OBJ_NEW(switchml_module);
  if (m == NULL) return NULL;
  m->super.coll_module_enable = enable;
#define TAKE(call) m->super.coll_##call = call;
  EACH_CALL(TAKE)
#undef TAKE
  *priority_out = priority;
  return &m->super;
}

static int init_query(bool enable_progress_threads, bool enable_mpi_threads) {
  (void)enable_progress_threads;
  (void)enable_mpi_threads; /* any number of them */
  return OMPI_SUCCESS;
}

static int register_parameters(void);

static void read_priority(void) {
  char *end;
  priority = USUAL_PRIORITY;
  if (priority_text == NULL || priority_text[0] == 0) return;
  const long number = strtol(priority_text, &end, 10);
  if (*end == 0 && number >= INT_MIN && number <= INT_MAX) priority = (int)number;
  else sml_mpi_say("coll_switchml_priority=%s is no number; %d is used", priority_text, priority);
}

/* The component is there whatever the launcher says: a rank without it would wait elsewhere than those that have it. */
static int open_component(void) {
  for (size_t i = 0; i < NUM_NUMBERS; i++) {
    char name[64];
    snprintf(name, sizeof name, "coll_switchml_%s", numbers[i].name);
    sml_mpi_read_number(name, numbers[i].text, numbers[i].min, numbers[i].max, numbers[i].value);
  }
  read_priority();
  sml_mpi_read_lease("coll_switchml_lease", lease_text, &settings.lease_s);
  sml_mpi_read_types("coll_switchml_types", types_text, &settings.types);
  if (settings.is_disabled) settings.types = 0;
  return OMPI_SUCCESS;
}

static int close_component(void) {
  if (is_registered) opal_progress_unregister(complete_requests);
  is_registered = false;
  return OMPI_SUCCESS;
}

#if OMPI_MAJOR_VERSION == 4
#define COLL_VERSION MCA_COLL_BASE_VERSION_2_0_0
#else
#define COLL_VERSION MCA_COLL_BASE_VERSION_2_4_0
#endif

typedef mca_coll_base_component_t component;
__attribute__((visibility("default"))) component mca_coll_switchml_component = {
    .collm_version = {COLL_VERSION, .mca_component_name = "switchml",
                      MCA_BASE_MAKE_VERSION(component, SML_VERSION_MAJOR, SML_VERSION_MINOR, SML_VERSION_PATCH),
                      .mca_open_component = open_component, .mca_close_component = close_component,
                      .mca_register_component_params = register_parameters},
    .collm_data = {.param_field = MCA_BASE_METADATA_PARAM_CHECKPOINT},
    .collm_init_query = init_query,
    .collm_comm_query = query};

static int add(const char *name, const char *help, mca_base_var_type_t type, void *storage) {
  return mca_base_component_var_register(&mca_coll_switchml_component.collm_version, name, help, type, NULL, 0, 0,
                                         OPAL_INFO_LVL_4, MCA_BASE_VAR_SCOPE_READONLY, storage);
}

static int add_text(const char *name, const char *help, char *usual, char **text) {
  *text = usual;
  return add(name, help, MCA_BASE_VAR_TYPE_STRING, text);
}

static int register_parameters(void) {
  static char usual[NUM_NUMBERS + 3][SML_MPI_TYPES_BYTES];
  char *of_priority = usual[NUM_NUMBERS], *of_lease = usual[NUM_NUMBERS + 1], *of_types = usual[NUM_NUMBERS + 2];
  int index = 0;
  settings = sml_mpi_settings_of_environment();
  for (size_t i = 0; i < NUM_NUMBERS && index >= 0; i++) {
    snprintf(usual[i], sizeof usual[i], "%llu", (unsigned long long)*numbers[i].value);
    index = add_text(numbers[i].name, numbers[i].help, usual[i], &numbers[i].text);
  }
  snprintf(of_priority, sizeof usual[0], "%d", USUAL_PRIORITY);
  snprintf(of_lease, sizeof usual[0], "%.15g", settings.lease_s);
  sml_mpi_types_list(settings.types, of_types);
  if (index >= 0) index = add_text("priority", "Priority of coll/switchml; negative: off", of_priority, &priority_text);
  if (index >= 0)
    index = add_text("lease", "Seconds of silence after which a rank counts as lost", of_lease, &lease_text);
  if (index >= 0)
    index = add_text("types", "Of which types long sums are taken, with commas: " SML_MPI_TYPE_NAMES, of_types,
                     &types_text);
  if (index >= 0)
    index = add("require", "Whether a call that should be taken and cannot be is an error", MCA_BASE_VAR_TYPE_BOOL,
                &settings.is_required);
  if (index >= 0)
    index = add("verbose", "Whether each communicator's job says how it starts and ends", MCA_BASE_VAR_TYPE_BOOL,
                &settings.is_verbose);
  return index < 0 ? index : OMPI_SUCCESS;
}
