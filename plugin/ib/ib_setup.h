/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection that is being set up: what connector and acceptor have in common. Each side is a table of steps that run
 * in order (ib_connect.c, ib_listen.c); most steps are here:
 *
 *   ib_offer.c   query the ports, choose GIDs, offer, plan
 *   ib_build.c   the comm: completion queues, memory, queue pairs to RTS, a first write over each
 *   ib_setup.c   messages, running the table, lines about failures
 *
 * A step returns RAIL_OK (the next one follows), RAIL_IN_PROGRESS (called again later), or the result of ib_setup_fail.
 * A step with several pieces does one per call (ib_setup_piece_done), each with at most one call of the verbs library
 * that may take long, so that a call of connect or accept stays short.
 */
#ifndef IB_SETUP_H
#define IB_SETUP_H

#include "common/conn/handshake.h"
#include "common/net/net_ctx.h"
#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_gid.h"
#include "plugin/ib/ib_stats.h"
#include "plugin/ib/ib_wire.h"

struct ib_setup {
  struct rail_net_ctx *ctx;
  const struct ib_device *device;
  bool connector;
  int traffic_class; /* the caller's; -1: none */
  union rail_addr peer;
  unsigned int state; /* row of the side's table */
  unsigned int piece; /* of its step */
  bool more;          /* the step has pieces left that need not wait */
  unsigned int reason; /* after a failure: the kind of it, of enum rail_reason or ib_reason */
  struct rail_handshake handshake;

  struct ib_port_attr *attrs; /* of the device's rails, until the offer is made */
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

struct ib_setup_row {
  const char *name;
  rail_result_t (*step)(struct ib_setup *s);
  const char *waits_for; /* NULL: does not wait */
  bool unlimited; /* the peer's process may take any time, or drop the connection: the step handles both */
};

/* ib_connect.c */
rail_result_t ib_connect(void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                         struct rail_net_device_handle **dev_handle);
void ib_connect_drop(void *attempt); /* of a context's attempts */

/* The peer is known; the TCP connection is not there yet (handshake.fd -1). */
void ib_setup_init(struct ib_setup *s, struct rail_net_ctx *ctx, const struct ib_device *device, bool connector,
                   const union rail_addr *peer, int traffic_class);
/* Frees everything; the comm too, unless it was taken. */
void ib_setup_free(struct ib_setup *s);
/* Runs steps until `until`, at least one. RAIL_OK after the last row; RAIL_IN_PROGRESS; or the failure, after a line
 * and a refusal for the peer. */
rail_result_t ib_setup_run(struct ib_setup *s, const struct ib_setup_row *rows, unsigned int nrows, uint64_t until);
/* Moves the comm, watched, to the caller. */
rail_result_t ib_setup_take(struct ib_setup *s, struct ib_comm **comm);

/* One line, "RailIB: connect to PEER over DEVICE: ...", and a refusal for the peer unless `reason` is NONE. Returns
 * `result`. */
__attribute__((format(printf, 4, 5)))
rail_result_t ib_setup_fail(struct ib_setup *s, unsigned int reason, rail_result_t result, const char *fmt, ...);
/* Has the peer taken longer than RAIL_IB_CONNECT_TIMEOUT? */
bool ib_setup_is_late(const struct ib_setup *s);
/* Counts pieces: RAIL_OK when that was the last of `n`. */
rail_result_t ib_setup_piece_done(struct ib_setup *s, unsigned int n);
/* Fails with "the peer has refused" if it has, or with what is wrong with its message instead of a `wanted` one.
 * RAIL_OK: it is one. */
rail_result_t ib_setup_check(struct ib_setup *s, unsigned int wanted, const struct rail_message *message);
/* The same for the next message. */
rail_result_t ib_setup_recv(struct ib_setup *s, unsigned int wanted, struct rail_message *message);

/* ---- steps --------------------------------------------------------------- */

rail_result_t ib_setup_query_ports(struct ib_setup *s); /* ours */
rail_result_t ib_setup_offer(struct ib_setup *s);
rail_result_t ib_setup_send_offer(struct ib_setup *s);
rail_result_t ib_setup_recv_offer(struct ib_setup *s);
rail_result_t ib_setup_plan(struct ib_setup *s); /* or refuses, with a line that names both ports */

rail_result_t ib_setup_comm(struct ib_setup *s);
rail_result_t ib_setup_cqs(struct ib_setup *s);
rail_result_t ib_setup_memory(struct ib_setup *s);
rail_result_t ib_setup_qps(struct ib_setup *s);
rail_result_t ib_setup_inits(struct ib_setup *s);
rail_result_t ib_setup_receives(struct ib_setup *s); /* acceptor: receive WRs, flush */
rail_result_t ib_setup_send_qps(struct ib_setup *s);
rail_result_t ib_setup_recv_qps(struct ib_setup *s);
rail_result_t ib_setup_rtrs(struct ib_setup *s);
rail_result_t ib_setup_rtss(struct ib_setup *s);
rail_result_t ib_setup_start(struct ib_setup *s); /* the peer may write to the comm from here on */

rail_result_t ib_setup_test_writes(struct ib_setup *s);
rail_result_t ib_setup_verified(struct ib_setup *s);
rail_result_t ib_setup_flushed(struct ib_setup *s); /* all messages are written */

/* What a listener's handle tells of its ports: GIDs of the first rails; it may be none. */
void ib_offer_hints(const struct ib_device *device, struct ib_hints *hints);
/* Queue depths and inline size of this side's QPs on this port. */
struct ib_qp_sizes ib_setup_sizes(const struct ib_setup *s, const struct ib_port *port);

#endif
