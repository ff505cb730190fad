/* SPDX-License-Identifier: Apache-2.0
 * test: moves the connection's data on, whichever request is tested, and reports whether that one is done. */
#include "common/base/log.h"
#include "plugin/template/tpl_comm.h"

rail_result_t tpl_test(void *arg, int *done, int *sizes) {
  struct tpl_request *request = arg;
  struct tpl_comm *comm = request ? tpl_comm_of(request->comm, 0, "test") : NULL;
  if (!comm) return RAIL_BAD_ARGUMENT;
  bool sends = comm->magic == TPL_SEND_MAGIC;
  pthread_mutex_lock(&comm->lock);
  rail_result_t result = RAIL_OK;
  if (request->state == TPL_ACTIVE) result = sends ? tpl_send_progress(comm) : tpl_recv_progress(comm);
  if (request->state == TPL_COMPLETE) { /* before an error that came behind it */
    (sends ? tpl_send_finish : tpl_recv_finish)(request, sizes);
    *done = 1;
    result = RAIL_OK;
  } else if (request->state == TPL_FREE) {
    result = rail_first_error(&comm->error);
    if (result == RAIL_OK) {
      RAIL_WARN(TPL_NAME ": test: request %p is not outstanding; was it tested after it was done?", arg);
      result = RAIL_BAD_ARGUMENT;
    }
  }
  pthread_mutex_unlock(&comm->lock);
  return result;
}
