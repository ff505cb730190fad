/* SPDX-License-Identifier: Apache-2.0
 *
 * One line per failure. Of a failed transfer: peer, device, GIDs, QP, operation, status and vendor error in words, the
 * retry budget, the time of the last progress, and what to check. docs/rdma-errors.md explains each.
 */
#ifndef IB_ERROR_H
#define IB_ERROR_H

#include "plugin/ib/ib_comm.h"

struct ib_error_row {
  enum ibv_wc_status status;
  rail_result_t result; /* where the fault is: the peer (remote), this host (system), this plugin (internal) */
  const char *name;     /* without IBV_WC_ */
  const char *what;     /* what happened */
  const char *check;    /* what to do about it */
};
/* Never NULL. Pure. */
const struct ib_error_row *ib_error_row(enum ibv_wc_status status);
/* Words for a vendor error of a device of that vendor (PCI id); NULL: none are known. Pure. */
const char *ib_error_vendor(uint32_t vendor_id, uint32_t vendor_err);

/* A completion with status != IBV_WC_SUCCESS: logs unless the comm has failed or was stopped, counts, and fails the
 * comm. */
rail_result_t ib_error_completion(struct ib_comm *comm, const struct ibv_wc *wc);
/* A fault bit ends the comm: one line, and the comm fails. RAIL_OK if none is set. */
rail_result_t ib_error_faults(struct ib_comm *comm, uint32_t faults);
/* Nothing completes, and the time for it is over (IB_COMM_STALLED). */
rail_result_t ib_error_stalled(struct ib_comm *comm);
/* The progress thread: a work request could not be posted. Without failover as ib_error_post; with it the QP is lost,
 * and what it was to carry goes over another one: RAIL_OK. */
RAIL_COLD rail_result_t ib_post_failed(struct ib_comm *comm, const struct ib_qp *qp, const char *call, int err);
/* ibv_post_* or ibv_poll_cq failed with `err`. */
rail_result_t ib_error_post(struct ib_comm *comm, const struct ib_qp *qp, const char *what, int err);

/* ---- sends that find no receive: the line, and the comm fails ---- */

/* A receive's values cannot be. */
RAIL_COLD rail_result_t ib_error_invalid_cts(struct ib_send_comm *sc);
/* Receives are posted, none of the tag, for RAIL_IB_TAG_TIMEOUT. */
RAIL_COLD rail_result_t ib_error_tag_timeout(struct ib_send_comm *sc, uint32_t tag);
/* The next receive's CTS has been torn for so long. */
RAIL_COLD rail_result_t ib_error_torn(struct ib_send_comm *sc, uint64_t ms);
/* All sends wait for one before them, for RAIL_IB_TAG_TIMEOUT (ib_two_sided.c). */
RAIL_COLD rail_result_t ib_error_turn_timeout(struct ib_send_comm *sc);

/* ---- lost queue pairs, for ib_failover.c: the line, and the comm fails where an error is returned ---- */

/* The peer has nothing left to go on with. */
rail_result_t ib_error_all_lost(struct ib_comm *comm);
/* The last one failed, by those faults of ib_failover_qp. */
rail_result_t ib_error_last_qp(struct ib_comm *comm, unsigned int index, uint32_t faults);
/* In ERR for so long, and no receive WR was flushed. */
rail_result_t ib_error_never_flushed(struct ib_comm *comm, unsigned int index, int ms);
/* STOPPED with a count that cannot be. */
rail_result_t ib_error_bad_count(struct ib_comm *comm, unsigned int index, uint32_t count);
/* STOPPED of one that is DOWN: both sides have stopped it, and neither has begun another. */
rail_result_t ib_error_second_stopped(struct ib_comm *comm, unsigned int index);
/* STOPPED cannot be sent, and without the peer's nothing can be resent. */
rail_result_t ib_error_cannot_notify(struct ib_comm *comm, unsigned int index);
/* Words, of one that is not UP. */
const char *ib_error_why_lost(const struct ib_comm *comm, unsigned int index);
/* All that was lost at about the same time is resent: one warning, and the comm goes on. */
void ib_error_report_loss(struct ib_comm *comm);

#endif
