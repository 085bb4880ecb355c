/* SPDX-License-Identifier: Apache-2.0
 * Open MPI's component coll/switchml (4.1): all-reduce and non-blocking all-reduce of every communicator, below the
 * bindings of all languages. What it does not take goes to the component that had the call before. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "ompi_config.h"

#include "ompi/communicator/communicator.h"
#include "ompi/mca/coll/base/base.h"
#include "ompi/mca/coll/coll.h"
#include "ompi/request/request.h"
#include "opal/runtime/opal_progress.h"

#include "group.h"
#include "types.h"

#if OMPI_MAJOR_VERSION != 4
#error "this component is written for Open MPI 4; MPI programs of other versions can preload libswitchml_pmpi.so"
#endif

/* ---- the component and its parameters ---- */

static struct {
  int priority;
  unsigned long min_count, timeout_s, join_timeout_s;
  double lease_s;
  char *types;
  bool is_required, is_verbose;
} parameters;
static struct sml_mpi_settings settings;

typedef struct {
  mca_coll_base_module_t super;
  struct sml_mpi_group *group;
  ompi_communicator_t *comm;
  /* Who had these calls before. */
  mca_coll_base_module_allreduce_fn_t allreduce;
  mca_coll_base_module_iallreduce_fn_t iallreduce;
  mca_coll_base_module_t *allreduce_module, *iallreduce_module;
} switchml_module;

static void construct_module(switchml_module *m) {
  memset((char *)m + sizeof m->super, 0, sizeof *m - sizeof m->super); /* subclasses are not zeroed */
}

static void destruct_module(switchml_module *m) {
  sml_mpi_group_destroy(m->group);
  if (m->allreduce_module != NULL) OBJ_RELEASE(m->allreduce_module);
  if (m->iallreduce_module != NULL) OBJ_RELEASE(m->iallreduce_module);
}

OBJ_CLASS_DECLARATION(switchml_module);
OBJ_CLASS_INSTANCE(switchml_module, mca_coll_base_module_t, construct_module, destruct_module);

/* ---- what can be taken ---- */

/* MPI_IN_PLACE is a pointer made of a number. */
static const void *input_of(const void *in, void *out) {
  return in == MPI_IN_PLACE ? out : in;
}

static enum sml_mpi_way way_of(switchml_module *m, int count, MPI_Datatype datatype, MPI_Op op,
                               sml_type *type_out) {
  if (op != MPI_SUM || count <= 0 || !sml_mpi_type_of(datatype, type_out)) return SML_MPI_PASSED;
  return sml_mpi_group_way(m->group, *type_out, (size_t)count);
}

/* ---- the two calls ---- */

static int allreduce(const void *in, void *out, int count, MPI_Datatype datatype, MPI_Op op,
                     ompi_communicator_t *comm, mca_coll_base_module_t *module) {
  switchml_module *m = (switchml_module *)module;
  sml_type type;
  sml_operation *operation;
  switch (way_of(m, count, datatype, op, &type)) {
  case SML_MPI_PASSED: return m->allreduce(in, out, count, datatype, op, comm, m->allreduce_module);
  case SML_MPI_FAILED: return OMPI_ERROR;
  case SML_MPI_TAKEN: break;
  }
  return sml_mpi_group_submit(m->group, input_of(in, out), out, (size_t)count, type, &operation) &&
                 sml_mpi_group_wait(m->group, operation)
             ? OMPI_SUCCESS
             : OMPI_ERROR;
}

typedef struct switchml_request {
  ompi_request_t super;
  struct sml_mpi_group *group;
  sml_operation *operation;
  struct switchml_request *next;
} switchml_request;
OBJ_CLASS_DECLARATION(switchml_request);
OBJ_CLASS_INSTANCE(switchml_request, ompi_request_t, NULL, NULL);

static pthread_mutex_t outstanding_mutex = PTHREAD_MUTEX_INITIALIZER;
static switchml_request *outstanding;
static atomic_uint num_outstanding; /* so that MPI's progress pays one load while there is none */
static bool is_registered;

/* Called by whatever MPI call waits for something. Returns how many requests it completed. */
static int complete_requests(void) {
  int num_completed = 0;
  switchml_request *ended = NULL;
  if (atomic_load_explicit(&num_outstanding, memory_order_relaxed) == 0) return 0;
  if (pthread_mutex_trylock(&outstanding_mutex) != 0) return 0; /* another thread is at it, or this one, from within */
  for (switchml_request **at = &outstanding; *at != NULL;) {
    switchml_request *request = *at;
    bool is_good;
    if (!sml_mpi_group_test(request->group, request->operation, &is_good)) {
      at = &request->next;
      continue;
    }
    *at = request->next;
    request->super.req_status.MPI_ERROR = is_good ? MPI_SUCCESS : MPI_ERR_OTHER;
    request->next = ended;
    ended = request;
  }
  pthread_mutex_unlock(&outstanding_mutex);
  while (ended != NULL) {
    switchml_request *next = ended->next; /* once complete, it may be freed at any time */
    atomic_fetch_sub_explicit(&num_outstanding, 1, memory_order_relaxed);
    ompi_request_complete(&ended->super, true);
    ended = next;
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

static void remember(switchml_request *request) {
  pthread_mutex_lock(&outstanding_mutex);
  switchml_request **end = &outstanding; /* in order: most often the first ends first */
  while (*end != NULL) end = &(*end)->next;
  *end = request;
  atomic_fetch_add_explicit(&num_outstanding, 1, memory_order_relaxed);
  const bool is_first = !is_registered;
  is_registered = true;
  pthread_mutex_unlock(&outstanding_mutex);
  if (is_first) opal_progress_register(complete_requests);
}

static int iallreduce(const void *in, void *out, int count, MPI_Datatype datatype, MPI_Op op,
                      ompi_communicator_t *comm, ompi_request_t **request_out, mca_coll_base_module_t *module) {
  switchml_module *m = (switchml_module *)module;
  sml_type type;
  switch (way_of(m, count, datatype, op, &type)) {
  case SML_MPI_PASSED:
    return m->iallreduce(in, out, count, datatype, op, comm, request_out, m->iallreduce_module);
  case SML_MPI_FAILED: return OMPI_ERROR;
  case SML_MPI_TAKEN: break;
  }
  switchml_request *request = OBJ_NEW(switchml_request);
  if (request == NULL) return OMPI_ERR_OUT_OF_RESOURCE;
  OMPI_REQUEST_INIT(&request->super, false);
  request->super.req_type = OMPI_REQUEST_COLL;
  request->super.req_state = OMPI_REQUEST_ACTIVE;
  request->super.req_free = free_request;
  request->super.req_mpi_object.comm = comm;
  OBJ_RETAIN(comm); /* MPI_Comm_free() does not end what is under way */
  request->super.req_status.MPI_ERROR = MPI_SUCCESS;
  request->group = m->group;
  request->next = NULL;
  if (!sml_mpi_group_submit(m->group, input_of(in, out), out, (size_t)count, type, &request->operation)) {
    ompi_request_t *failed = &request->super;
    free_request(&failed);
    return OMPI_ERROR;
  }
  remember(request);
  *request_out = &request->super;
  return OMPI_SUCCESS;
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

/* ---- how Open MPI takes it in ---- */

static int enable(mca_coll_base_module_t *module, ompi_communicator_t *comm) {
  switchml_module *m = (switchml_module *)module;
  mca_coll_base_comm_coll_t *before = comm->c_coll;
  if (before->coll_allreduce == NULL || before->coll_iallreduce == NULL) return OMPI_ERR_NOT_FOUND;
  m->comm = comm;
  m->group = sml_mpi_group_create(comm->c_name, (uint32_t)ompi_comm_rank(comm), (uint32_t)ompi_comm_size(comm),
                                  &settings, gather, let_mpi_go_on, m);
  if (m->group == NULL) return OMPI_ERR_OUT_OF_RESOURCE;
  m->allreduce = before->coll_allreduce;
  m->allreduce_module = before->coll_allreduce_module;
  OBJ_RETAIN(m->allreduce_module);
  m->iallreduce = before->coll_iallreduce;
  m->iallreduce_module = before->coll_iallreduce_module;
  OBJ_RETAIN(m->iallreduce_module);
  return OMPI_SUCCESS;
}

static mca_coll_base_module_t *query(ompi_communicator_t *comm, int *priority_out) {
  if (parameters.priority < 0 || OMPI_COMM_IS_INTER(comm) || ompi_comm_size(comm) < 2) return NULL;
  switchml_module *m = OBJ_NEW(switchml_module);
  if (m == NULL) return NULL;
  m->super.coll_module_enable = enable;
  m->super.coll_allreduce = allreduce;
  m->super.coll_iallreduce = iallreduce;
  *priority_out = parameters.priority;
  return &m->super;
}

static int init_query(bool enable_progress_threads, bool enable_mpi_threads) {
  (void)enable_progress_threads;
  (void)enable_mpi_threads; /* any number of them */
  return OMPI_SUCCESS;
}

static int register_parameters(void);

static int open_component(void) {
  settings.min_count = parameters.min_count;
  settings.timeout_s = parameters.timeout_s;
  settings.join_timeout_s = parameters.join_timeout_s;
  settings.lease_s = parameters.lease_s;
  settings.is_required = parameters.is_required;
  settings.is_verbose = parameters.is_verbose;
  if (sml_mpi_types_of(parameters.types, &settings.types)) return OMPI_SUCCESS;
  opal_output(0, "coll_switchml_types=%s: there are " SML_MPI_TYPE_NAMES, parameters.types);
  return OMPI_ERR_BAD_PARAM;
}

static int close_component(void) {
  if (is_registered) opal_progress_unregister(complete_requests);
  is_registered = false;
  return OMPI_SUCCESS;
}

typedef mca_coll_base_component_2_0_0_t component;
__attribute__((visibility("default"))) component mca_coll_switchml_component = {
    .collm_version = {MCA_COLL_BASE_VERSION_2_0_0,
                      .mca_component_name = "switchml",
                      MCA_BASE_MAKE_VERSION(component, SML_VERSION_MAJOR, SML_VERSION_MINOR, SML_VERSION_PATCH),
                      .mca_open_component = open_component,
                      .mca_close_component = close_component,
                      .mca_register_component_params = register_parameters},
    .collm_data = {.param_field = MCA_BASE_METADATA_PARAM_CHECKPOINT},
    .collm_init_query = init_query,
    .collm_comm_query = query};

static int add(const char *name, const char *help, mca_base_var_type_t type, void *storage) {
  const int index =
      mca_base_component_var_register(&mca_coll_switchml_component.collm_version, name, help, type, NULL, 0, 0,
                                      OPAL_INFO_LVL_4, MCA_BASE_VAR_SCOPE_READONLY, storage);
  return index < 0 ? index : OMPI_SUCCESS;
}

static int register_parameters(void) {
  static char default_types[SML_MPI_TYPES_BYTES];
  const struct sml_mpi_settings s = sml_mpi_settings_of_environment();
  parameters.priority = 90; /* above tuned (30) and han (35 at most): who loads it wants it */
  parameters.min_count = s.min_count;
  parameters.timeout_s = s.timeout_s;
  parameters.join_timeout_s = s.join_timeout_s;
  parameters.lease_s = s.lease_s;
  parameters.is_required = s.is_required;
  parameters.is_verbose = s.is_verbose;
  sml_mpi_types_list(s.types, default_types);
  parameters.types = default_types;
  int rc = add("priority", "Priority of coll/switchml; negative: off", MCA_BASE_VAR_TYPE_INT, &parameters.priority);
  if (rc == OMPI_SUCCESS)
    rc = add("min_count", "Sums of fewer elements stay with the other components", MCA_BASE_VAR_TYPE_UNSIGNED_LONG,
             &parameters.min_count);
  if (rc == OMPI_SUCCESS)
    rc = add("types", "Which types are taken, with commas: " SML_MPI_TYPE_NAMES, MCA_BASE_VAR_TYPE_STRING,
             &parameters.types);
  if (rc == OMPI_SUCCESS)
    rc = add("timeout", "Seconds that a rank may be late before all get an error", MCA_BASE_VAR_TYPE_UNSIGNED_LONG,
             &parameters.timeout_s);
  if (rc == OMPI_SUCCESS)
    rc = add("join_timeout", "Seconds that an aggregator is waited for", MCA_BASE_VAR_TYPE_UNSIGNED_LONG,
             &parameters.join_timeout_s);
  if (rc == OMPI_SUCCESS)
    rc = add("lease", "Seconds of silence after which a rank counts as lost",
             MCA_BASE_VAR_TYPE_DOUBLE, &parameters.lease_s);
  if (rc == OMPI_SUCCESS)
    rc = add("require", "Whether a sum that should be taken and cannot be is an error", MCA_BASE_VAR_TYPE_BOOL,
             &parameters.is_required);
  if (rc == OMPI_SUCCESS)
    rc = add("verbose", "Whether each communicator's job says how it starts and ends", MCA_BASE_VAR_TYPE_BOOL,
             &parameters.is_verbose);
  return rc;
}
