/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection that is being set up, as common/conn/setup.h has it: what connector and acceptor have in common. Each
 * side has its own table of steps; the steps are in:
 *
 *   ib_plan.c     query the ports, choose GIDs, offer, plan
 *   ib_build.c    the comm: completion queues, memory, queue pairs to RTS, a first write over each
 *   ib_cm.c       queue pairs to RTS by the RDMA CM, where the plan says so
 *   ib_connect.c  messages, the words for a peer's refusal, the tables
 *
 * Each piece of a step makes at most one call of the verbs library that may take long.
 */
#ifndef IB_CONNECT_H
#define IB_CONNECT_H

#include "common/net/net_setup.h"
#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_stats.h"
#include "plugin/ib/ib_wire.h"

struct ib_setup {
  struct rail_setup base;
  struct rail_net_ctx *ctx;
  const struct ib_device *device;
  int traffic_class; /* the caller's, else the context's; -1: none */

  struct ib_port_attr *attrs; /* of the device's rails, until the offer is made */
  bool queried;               /* the ports were, and no comm has come of it */
  unsigned int nhints;     /* GIDs of the peer's rails, as far as they are known when ours are chosen */
  struct ib_gid hints[IB_MAX_RAILS];
  struct ib_port *ports[IB_MAX_RAILS]; /* in the order of our offer */
  int gid_index[IB_MAX_RAILS];
  struct ib_offer mine, theirs;
  struct ib_plan plan;

  struct ib_comm *comm;
  struct ib_qps ours, peers;
  unsigned int verified; /* test writes that completed */
};

static inline struct ib_setup *ib_setup_of(struct rail_setup *base) {
  return rail_container_of(base, struct ib_setup, base);
}

/* ---- what a comm has of the RDMA CM (ib_cm.c): comm->cm ------------------------------ */

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

/* ---- the calls: ib_connect.c -------------------------------------------------- */

/* Key file, ports to listen on: once, under the plugin's lock. False, after one line: there must be no devices. */
bool ib_handshake_load(void);

rail_result_t ib_listen(void *ctx, int dev, void *handle, void **listen_comm);
rail_result_t ib_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);
rail_result_t ib_close_listen(void *listen_comm);
rail_result_t ib_connect(void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                         struct rail_net_device_handle **dev_handle);

/* ---- steps: ib_plan.c ----------------------------------------------------------- */

rail_result_t ib_offer_query_ports(struct rail_setup *s); /* ours */
rail_result_t ib_offer_make(struct rail_setup *s);
rail_result_t ib_offer_plan(struct rail_setup *s); /* or refuses, with a line that names both ports */
/* What a listener's handle tells of its ports: GIDs of the first rails; it may be none. */
void ib_offer_hints(const struct ib_device *device, struct ib_hints *hints);
/* Queue depths and inline size of this side's QPs on this port. */
struct ib_qp_sizes ib_offer_sizes(const struct ib_setup *s, const struct ib_port *port);
/* "port A here (GID a) and port B there (GID b)", of one queue pair. */
#define IB_PORTS_TEXT 320
const char *ib_offer_ports_text(const struct ib_setup *s, unsigned int qp, char text[IB_PORTS_TEXT]);

/* ---- steps: ib_build.c ---------------------------------------------------------- */

rail_result_t ib_build_comm(struct rail_setup *s);
rail_result_t ib_build_cqs(struct rail_setup *s);
rail_result_t ib_build_memory(struct rail_setup *s);
rail_result_t ib_build_qps(struct rail_setup *s);
rail_result_t ib_build_inits(struct rail_setup *s);
rail_result_t ib_build_receives(struct rail_setup *s); /* acceptor: receive WRs, flush */
rail_result_t ib_build_rtrs(struct rail_setup *s);
rail_result_t ib_build_rtss(struct rail_setup *s);
rail_result_t ib_build_start(struct rail_setup *s); /* the peer may write to the comm from here on */
rail_result_t ib_build_test_writes(struct rail_setup *s);
rail_result_t ib_build_verified(struct rail_setup *s);
/* While this side waits for other things: a peer that failed sends a refusal or closes. RAIL_IN_PROGRESS: neither. What
 * the data path reads (PING, GOODBYE) stays unread. */
rail_result_t ib_build_recv_refusal(struct ib_setup *s);

/* ---- steps: ib_cm.c -------------------------------------------------------------
 * RAIL_OK at once where the plan is without the RDMA CM. */

rail_result_t ib_cm_open(struct rail_setup *s);
rail_result_t ib_cm_listens(struct rail_setup *s);     /* acceptor */
rail_result_t ib_cm_accepts(struct rail_setup *s);     /* acceptor: until all QPs have been accepted */
rail_result_t ib_cm_established(struct rail_setup *s); /* acceptor: until all are in use, as the peer's QPS says */
rail_result_t ib_cm_connects(struct rail_setup *s);    /* connector: all QPs to RTS */
/* After the QPs. Does nothing without comm->cm. */
void ib_cm_close(struct ib_comm *comm);

#endif
