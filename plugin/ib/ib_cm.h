/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue pairs (QPs) that are set up by the RDMA CM (librdmacm): RAIL_IB_CM=rdmacm, and iWARP. The oob connection and
 * its handshake stay; the RDMA CM resolves addresses and routes, and exchanges what moves QPs to RTS.
 *
 *   acceptor     one id per rail listens at the address that the offer names, at a port of its own, which QPS tells; it
 *                is closed when all QPs have been asked for
 *   connector    one id per QP: address, route, connect. The request shows the acceptor's token and the QP's index, the
 *                response the connector's; both are of the offers, so an id of anybody else is rejected
 *
 * QPs are made by this plugin, in its own protection domain, and the ids only know their numbers: this side moves them
 * with attributes that the RDMA CM fills in, and with NCCL's timeouts. QPs of iWARP are moved by their driver.
 *
 * Ids stay until their QP is destroyed: the end of an iWARP id is the end of its connection.
 */
#ifndef IB_CM_H
#define IB_CM_H

#include "common/base/result.h"
#include "plugin/ib/ib_plan.h"
#include "plugin/ib/ib_verbs.h"

struct ib_comm;
struct rail_setup;

enum ib_cm_state {
  IB_CM_NONE,       /* a connector's id is not there yet, an acceptor's was not asked for */
  IB_CM_ADDRESS,    /* connector: being resolved */
  IB_CM_ROUTE,      /* connector: being resolved */
  IB_CM_REQUESTED,  /* connector: it waits for the response */
  IB_CM_ANSWERING,  /* the peer's request or response is there: the QP goes to RTS, then the answer is sent */
  IB_CM_ACCEPTED,   /* acceptor: it waits for the last message */
  IB_CM_UP,
};

struct ib_cm_qp { /* of one QP */
  struct rdma_cm_id *id;
  enum ib_cm_state state;
};

struct ib_cm {
  struct rdma_event_channel *channel;
  struct rdma_cm_id *listeners[IB_MAX_RAILS]; /* an acceptor's, until all QPs are accepted */
  unsigned int nqps;
  struct ib_cm_qp qps[];
};

/* ---- ib_cm_ids.c ------------------------------------------------------------- */

/* comm->cm, for comm->plan.nqps QPs; its channel does not block. RAIL_SYSTEM_ERROR: errno says why. */
rail_result_t ib_cm_open(struct ib_comm *comm);
void ib_cm_close_listeners(struct ib_cm *cm);
/* After the QPs. Does nothing without comm->cm. */
void ib_cm_close(struct ib_comm *comm);

/* ---- steps: ib_cm.c ------------------------------------------------------------ */

/* RAIL_OK at once where the plan is without the RDMA CM. */
rail_result_t ib_cm_listens(struct rail_setup *s);     /* acceptor */
rail_result_t ib_cm_accepts(struct rail_setup *s);     /* acceptor: until all QPs have been accepted */
rail_result_t ib_cm_established(struct rail_setup *s); /* acceptor: until all are in use, as the peer's QPS says */
rail_result_t ib_cm_connects(struct rail_setup *s);    /* connector: all QPs to RTS */

#endif
