/* SPDX-License-Identifier: Apache-2.0
 * Completions: polled here, finished in the file that began them. */
#ifndef IB_PROGRESS_H
#define IB_PROGRESS_H

#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_wr.h"

/* Polls all CQs of a comm, within a bound; RAIL_OK or the comm's failure. */
rail_result_t ib_progress(struct ib_comm *comm);

/* ib_send.c, ib_recv.c, ib_flush.c: completions that they began. */
void ib_send_done(struct ib_comm *comm, const struct ibv_wc *wc);
rail_result_t ib_recv_done(struct ib_comm *comm, const struct ibv_wc *wc);
void ib_recv_cts_done(struct ib_comm *comm, const struct ibv_wc *wc);
void ib_flush_done(struct ib_comm *comm, const struct ibv_wc *wc);

/* For error lines: bytes of the message whose send request a wr_id names; 0 if there is none. */
uint64_t ib_send_size(const struct ib_comm *comm, unsigned int arg);

/* vtable calls */
rail_result_t ib_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request);
rail_result_t ib_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                       void **phandles, void **request);
rail_result_t ib_iflush(void *recv_comm, int n, void **data, const int *sizes, void **mhandles, void **request);
rail_result_t ib_test(void *request, int *done, int *sizes);
rail_result_t ib_irecv_consumed(void *recv_comm, int n, void *request);

#endif
