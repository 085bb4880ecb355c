/* SPDX-License-Identifier: Apache-2.0
 * Open MPI's component coll/switchml (4.1, 5.0): all-reduce and non-blocking all-reduce of every communicator, below
 * the bindings of all languages. What it does not take goes to the component that had the call before. Barriers and
 * broadcasts only pass through: what blocks is where ranks may meet. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "ompi_config.h"

#include "ompi/communicator/communicator.h"
#include "ompi/mca/coll/base/base.h"
#include "ompi/mca/coll/coll.h"
#include "ompi/mca/pml/base/base.h"
#include "ompi/request/request.h"
#include "opal/mca/btl/base/base.h"
#include "opal/runtime/opal_progress.h"

#include "group.h"
#include "types.h"

#if OMPI_MAJOR_VERSION < 4 || OMPI_MAJOR_VERSION > 5
#error "this component is written for Open MPI 4 and 5; MPI programs of other versions can preload libswitchml_pmpi.so"
#endif

/* ---- the component and its parameters ---- */

static int priority;
static char *types;
static struct sml_mpi_settings settings, defaults; /* where the launcher says nothing */

/* A non-blocking sum: waiting for room, then outstanding, then complete. */
typedef struct switchml_request {
  ompi_request_t super;
  struct switchml_module *module; /* lives as long as the communicator, which this request retains */
  const void *in;
  void *out;
  size_t count;
  sml_type type;
  sml_operation *operation;
  struct switchml_request *next;
} switchml_request;
OBJ_CLASS_DECLARATION(switchml_request);
OBJ_CLASS_INSTANCE(switchml_request, ompi_request_t, NULL, NULL);

typedef struct {
  switchml_request *first, **end; /* end: the last one's `next`, if there is one */
} request_list;

typedef struct switchml_module {
  mca_coll_base_module_t super;
  struct sml_mpi_group *group;
  ompi_communicator_t *comm;
  /* Guarded by requests_mutex. */
  request_list waiting; /* for room, in the order of their calls */
  struct switchml_module *next_waiting;
  /* Who had these calls before. */
  mca_coll_base_module_allreduce_fn_t allreduce;
  mca_coll_base_module_iallreduce_fn_t iallreduce;
  mca_coll_base_module_barrier_fn_t barrier;
  mca_coll_base_module_bcast_fn_t bcast;
  mca_coll_base_module_t *allreduce_module, *iallreduce_module, *barrier_module, *bcast_module;
} switchml_module;

static void construct_module(switchml_module *m) {
  memset((char *)m + sizeof m->super, 0, sizeof *m - sizeof m->super); /* subclasses are not zeroed */
}

static void release(mca_coll_base_module_t *module) {
  if (module != NULL) OBJ_RELEASE(module);
}

static void destruct_module(switchml_module *m) {
  sml_mpi_group_destroy(m->group);
  release(m->allreduce_module);
  release(m->iallreduce_module);
  release(m->barrier_module);
  release(m->bcast_module);
}

OBJ_CLASS_DECLARATION(switchml_module);
OBJ_CLASS_INSTANCE(switchml_module, mca_coll_base_module_t, construct_module, destruct_module);

/* ---- what can be taken ---- */

/* MPI_IN_PLACE is a pointer made of a number. */
static const void *input_of(const void *in, void *out) {
  return in == MPI_IN_PLACE ? out : in;
}

static enum sml_mpi_way way_of(switchml_module *m, int count, MPI_Datatype datatype, MPI_Op op, bool is_blocking,
                               sml_type *type_out) {
  if (op == MPI_SUM && count > 0 && sml_mpi_type_of(datatype, type_out))
    return sml_mpi_group_way(m->group, *type_out, (size_t)count, is_blocking);
  if (is_blocking) sml_mpi_group_meet(m->group);
  return SML_MPI_PASSED;
}

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
  return sml_mpi_group_start(r->module->group, r->in, r->out, r->count, r->type, &r->operation);
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
    if (sml_mpi_group_test(request->module->group, request->operation, &is_good)) end_locked(request, is_good, ended);
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

static switchml_request *new_request(switchml_module *m) {
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

/* A sum that blocks, behind those that wait for room. */
static int sum(switchml_module *m, const void *in, void *out, size_t count, sml_type type) {
  while (has_waiting(m)) opal_progress();
  return sml_mpi_group_sum(m->group, in, out, count, type) ? OMPI_SUCCESS : OMPI_ERROR;
}

static int allreduce(const void *in, void *out, int count, MPI_Datatype datatype, MPI_Op op, ompi_communicator_t *comm,
                     mca_coll_base_module_t *module) {
  switchml_module *m = (switchml_module *)module;
  sml_type type;
  switch (way_of(m, count, datatype, op, true, &type)) {
    case SML_MPI_PASSED: return m->allreduce(in, out, count, datatype, op, comm, m->allreduce_module);
    case SML_MPI_FAILED: return OMPI_ERROR;
    case SML_MPI_TAKEN: break;
  }
  return sum(m, input_of(in, out), out, (size_t)count, type);
}

static int iallreduce(const void *in, void *out, int count, MPI_Datatype datatype, MPI_Op op, ompi_communicator_t *comm,
                      ompi_request_t **request_out, mca_coll_base_module_t *module) {
  switchml_module *m = (switchml_module *)module;
  sml_type type;
  switch (way_of(m, count, datatype, op, false, &type)) {
    case SML_MPI_PASSED: return m->iallreduce(in, out, count, datatype, op, comm, request_out, m->iallreduce_module);
    case SML_MPI_FAILED: return OMPI_ERROR;
    case SML_MPI_TAKEN: break;
  }
  switchml_request *request = new_request(m);
  if (request == NULL) return OMPI_ERR_OUT_OF_RESOURCE;
  request->in = input_of(in, out);
  request->out = out;
  request->count = (size_t)count;
  request->type = type;
  *request_out = &request->super;
  if (start_or_wait(request)) return OMPI_SUCCESS;
  free_request(request_out);
  return OMPI_ERROR;
}

static int barrier(ompi_communicator_t *comm, mca_coll_base_module_t *module) {
  switchml_module *m = (switchml_module *)module;
  sml_mpi_group_meet(m->group);
  return m->barrier(comm, m->barrier_module);
}

static int bcast(void *buffer, int count, MPI_Datatype datatype, int root, ompi_communicator_t *comm,
                 mca_coll_base_module_t *module) {
  switchml_module *m = (switchml_module *)module;
  sml_mpi_group_meet(m->group);
  return m->bcast(buffer, count, datatype, root, comm, m->bcast_module);
}

/* ---- what the group borrows ---- */

static int gather(void *user, const void *in, void *out, size_t bytes) {
  ompi_communicator_t *comm = ((switchml_module *)user)->comm;
  if (bytes > INT32_MAX) return 1;
  return comm->c_coll->coll_allgather(in, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, comm,
                                      comm->c_coll->coll_allgather_module);
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
  if (before->coll_allreduce == NULL || before->coll_iallreduce == NULL || before->coll_barrier == NULL ||
      before->coll_bcast == NULL)
    return OMPI_ERR_NOT_FOUND;
  m->comm = comm;
  struct sml_mpi_settings own = settings;
  if (!is_over_tcp()) own.short_hosts = 0;
  m->group = sml_mpi_group_create(comm->c_name, (uint32_t)ompi_comm_rank(comm), (uint32_t)ompi_comm_size(comm), &own,
                                  gather, let_mpi_go_on, m);
  if (m->group == NULL) return OMPI_ERR_OUT_OF_RESOURCE;
#define KEEP(call)                                 \
  m->call = before->coll_##call;                   \
  m->call##_module = before->coll_##call##_module; \
  OBJ_RETAIN(m->call##_module)
  KEEP(allreduce);
  KEEP(iallreduce);
  KEEP(barrier);
  KEEP(bcast);
#undef KEEP
  return OMPI_SUCCESS;
}

static mca_coll_base_module_t *query(ompi_communicator_t *comm, int *priority_out) {
  if (priority < 0 || OMPI_COMM_IS_INTER(comm) || ompi_comm_size(comm) < 2) return NULL;
  switchml_module *m = OBJ_NEW(switchml_module);
  if (m == NULL) return NULL;
  m->super.coll_module_enable = enable;
  m->super.coll_allreduce = allreduce;
  m->super.coll_iallreduce = iallreduce;
  m->super.coll_barrier = barrier;
  m->super.coll_bcast = bcast;
  *priority_out = priority;
  return &m->super;
}

static int init_query(bool enable_progress_threads, bool enable_mpi_threads) {
  (void)enable_progress_threads;
  (void)enable_mpi_threads; /* any number of them */
  return OMPI_SUCCESS;
}

static int register_parameters(void);

/* The component is there whatever the launcher says: a rank without it would wait elsewhere than those that have it. */
static int open_component(void) {
  sml_mpi_settings_check(&settings, &defaults, "coll_switchml_");
  if (sml_mpi_types_of(types, &settings.types)) return OMPI_SUCCESS;
  opal_output(0, "coll_switchml_types=%s: there are " SML_MPI_TYPE_NAMES "; those of the default are taken", types);
  settings.types = defaults.types;
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

static int register_parameters(void) {
  static char list[SML_MPI_TYPES_BYTES];
  const struct {
    const char *name, *help;
    mca_base_var_type_t type;
    void *storage;
  } parameters[] = {
      {"priority", "Priority of coll/switchml; negative: off", MCA_BASE_VAR_TYPE_INT, &priority},
      {"min_count", "Sums of fewer elements stay with the other components", MCA_BASE_VAR_TYPE_UINT64_T,
       &settings.min_count},
      {"short_hosts", "Sums of up to 8 doubles are taken if ranks run on so many hosts, over TCP; 0: never",
       MCA_BASE_VAR_TYPE_UINT64_T, &settings.short_hosts},
      {"types", "Which types are taken, with commas: " SML_MPI_TYPE_NAMES, MCA_BASE_VAR_TYPE_STRING, &types},
      {"timeout", "Seconds that a rank may be late before all get an error", MCA_BASE_VAR_TYPE_UINT64_T,
       &settings.timeout_s},
      {"join_timeout", "Seconds that an aggregator is waited for", MCA_BASE_VAR_TYPE_UINT64_T,
       &settings.join_timeout_s},
      {"max_jobs", "Communicators of a process with a job; sums of further ones stay with the other components",
       MCA_BASE_VAR_TYPE_UINT64_T, &settings.max_jobs},
      {"lease", "Seconds of silence after which a rank counts as lost", MCA_BASE_VAR_TYPE_DOUBLE, &settings.lease_s},
      {"require", "Whether a sum that should be taken and cannot be is an error", MCA_BASE_VAR_TYPE_BOOL,
       &settings.is_required},
      {"verbose", "Whether each communicator's job says how it starts and ends", MCA_BASE_VAR_TYPE_BOOL,
       &settings.is_verbose}};
  priority = 90; /* above tuned (30) and han (35 at most): who loads it wants it */
  defaults = sml_mpi_settings_of_environment();
  settings = defaults;
  sml_mpi_types_list(defaults.types, list);
  types = list;
  for (size_t i = 0; i < sizeof parameters / sizeof parameters[0]; i++) {
    const int index = mca_base_component_var_register(
        &mca_coll_switchml_component.collm_version, parameters[i].name, parameters[i].help, parameters[i].type, NULL, 0,
        0, OPAL_INFO_LVL_4, MCA_BASE_VAR_SCOPE_READONLY, parameters[i].storage);
    if (index < 0) return index;
  }
  return OMPI_SUCCESS;
}
