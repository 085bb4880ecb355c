/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/context.h"

#include <stdlib.h>

#include "lib/operation.h"
#include "lib/uncancelled.h"

static void die_in_child(struct sml_fork_watch *watch) {
  struct sml_context *context = (struct sml_context *)watch;
  atomic_store_explicit(&context->is_forked, true, memory_order_relaxed);
  sml_control_close_descriptors(&context->control);
  for (size_t i = 0; i < SML_ARRAY_LEN(context->engines); i++)
    sml_engines_close_descriptors(&context->engines[i]);
}

sml_status sml_context_create(const sml_context_options *options, sml_context **context_out) {
  SML_UNCANCELLED;
  if (context_out == NULL) return sml_fail(SML_ERR_INVALID_ARGUMENT, "context_out is NULL");
  *context_out = NULL;
  struct sml_settings settings;
  sml_status status = sml_settings_read(options, &settings);
  if (status != SML_OK) return status;
  struct sml_context *context = calloc(1, sizeof *context);
  if (context == NULL) return sml_fail(SML_ERR_NO_MEMORY, "no memory for a context");
  context->settings = settings;
  context->control.epoll_fd = context->control.event_fd = -1;
  context->fork_watch.in_child = die_in_child;
  pthread_mutex_init(&context->lock, NULL);
  sml_fork_watch(&context->fork_watch);
  status = sml_operations_create(context);
  if (status == SML_OK) status = sml_control_start(&context->control);
  if (status != SML_OK) {
    sml_fork_unwatch(&context->fork_watch);
    sml_operations_destroy(context);
    pthread_mutex_destroy(&context->lock);
    free(context);
    return status;
  }
  sml_settings_log(&settings);
  *context_out = context;
  return SML_OK;
}

void sml_context_destroy(sml_context *context) {
  SML_UNCANCELLED;
  /* A child has a copy of the memory, of locks in any state and of no thread: it lets all of it be. */
  if (context == NULL || sml_context_is_forked(context)) return;
  while (context->jobs) sml_job_destroy(context->jobs);
  /* Engines first: an engine's last act for a prober is to wake the control thread. */
  for (size_t i = 0; i < SML_ARRAY_LEN(context->engines); i++) sml_engines_stop(&context->engines[i]);
  sml_control_stop(&context->control);
  sml_fork_lock();
  for (size_t i = 0; i < SML_ARRAY_LEN(context->engines); i++) sml_engines_close(&context->engines[i]);
  sml_fork_unlock();
  sml_fork_unwatch(&context->fork_watch);
  for (size_t i = 0; i < SML_ARRAY_LEN(context->engines); i++) sml_engines_free_recorders(&context->engines[i]);
  sml_operations_destroy(context);
  pthread_mutex_destroy(&context->lock);
  free(context);
  sml_lib_log_rest(); /* the process may end next in ways that wait for nothing */
}
