/* SPDX-License-Identifier: Apache-2.0
 *
 * One line per failure that says what is known: peer, device, GIDs, QP,
 * operation, status and vendor error in words, the retry budget, how long ago
 * anything worked, and what to check. docs/rdma-errors.md explains each.
 */
#ifndef IB_ERROR_H
#define IB_ERROR_H

#include "plugin/ib/ib_comm.h"

struct ib_error_row {
  enum ibv_wc_status status;
  rail_result_t result; /* whose fault: the peer's (remote), this host's (system), ours (internal) */
  const char *name;     /* without IBV_WC_ */
  const char *what;     /* what happened */
  const char *check;    /* what to do about it */
};
/* Never NULL. Pure. */
const struct ib_error_row *ib_error_row(enum ibv_wc_status status);
/* Words for a vendor error of a device of that vendor (PCI id); NULL: none are known. Pure. */
const char *ib_error_vendor(uint32_t vendor_id, uint32_t vendor_err);
/* Seconds until a QP reports an unanswered transfer, at least; 0: never. Pure. */
double ib_error_budget(unsigned int timeout, unsigned int retry_cnt);

/* A completion with status != IBV_WC_SUCCESS: logs unless the comm has failed or was stopped, counts, and fails the
 * comm. */
rail_result_t ib_error_completion(struct ib_comm *comm, const struct ibv_wc *wc);
/* The health word says that the comm cannot go on: one line, and the comm fails. RAIL_OK if no bit is set. */
rail_result_t ib_error_health(struct ib_comm *comm, uint32_t comm_health);
/* ibv_post_* or ibv_poll_cq failed with `err`. */
rail_result_t ib_error_post(struct ib_comm *comm, const struct ib_qp *qp, const char *what, int err);

#endif
