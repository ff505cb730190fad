/* SPDX-License-Identifier: Apache-2.0
 * What a connection has of the RDMA CM: made and destroyed. */
#include <fcntl.h>
#include <stdlib.h>

#include "plugin/ib/ib_cm.h"
#include "plugin/ib/ib_comm.h"

rail_result_t ib_cm_open(struct ib_comm *comm) {
  struct ib_cm *cm = calloc(1, sizeof *cm + comm->plan.nqps * sizeof cm->qps[0]);
  if (!cm) return RAIL_SYSTEM_ERROR;
  comm->cm = cm;
  cm->nqps = comm->plan.nqps;
  cm->channel = ib_rdmacm.create_event_channel();
  int flags = cm->channel ? fcntl(cm->channel->fd, F_GETFL) : -1;
  return flags >= 0 && fcntl(cm->channel->fd, F_SETFL, flags | O_NONBLOCK) == 0 ? RAIL_OK : RAIL_SYSTEM_ERROR;
}

static void destroy(struct rdma_cm_id **id) {
  if (*id) (void)ib_rdmacm.destroy_id(*id); /* it fails for what is no id */
  *id = NULL;
}

void ib_cm_close_listeners(struct ib_cm *cm) {
  for (unsigned int r = 0; r < IB_MAX_RAILS; r++) destroy(&cm->listeners[r]);
}

void ib_cm_close(struct ib_comm *comm) {
  struct ib_cm *cm = comm->cm;
  if (!cm) return;
  for (unsigned int i = 0; i < cm->nqps; i++) destroy(&cm->qps[i].id);
  ib_cm_close_listeners(cm);
  if (cm->channel) ib_rdmacm.destroy_event_channel(cm->channel);
  free(cm);
  comm->cm = NULL;
}
