/* SPDX-License-Identifier: Apache-2.0
 *
 * test, and what completions, control messages and the end of an endpoint mean: the table of functions that ofi_poll.c,
 * ofi_op.c, ofi_shut.c and ofi_close.c call. Below it are the files that post: each completion and frame goes to the
 * one that the operation is of.
 */
#ifndef OFI_PROGRESS_H
#define OFI_PROGRESS_H

#include "plugin/ofi/ofi_comm.h"

extern const struct ofi_endpoint_ops ofi_progress_ops;

rail_result_t ofi_test(void *request, int *done, int *sizes);

/* ---- ofi_send.c ------------------------------------------------------------ */

rail_result_t ofi_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                        void **request);
/* A control message has come for a sender. */
void ofi_send_on_frame(struct ofi_send_comm *sc, const struct ofi_frame *frame);
void ofi_send_done(struct ofi_op *op, const struct ofi_completion *completion);
void ofi_send_finish(struct ofi_send *send, int *sizes);
void ofi_send_revoked(struct ofi_send_comm *sc);

/* ---- ofi_recv.c ------------------------------------------------------------ */

rail_result_t ofi_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                        void **phandles, void **request);
/* A control message has come for a receiver. */
void ofi_recv_on_frame(struct ofi_recv_comm *rc, const struct ofi_frame *frame, const void *payload);
void ofi_recv_done(struct ofi_op *op, const struct ofi_completion *completion);
void ofi_recv_finish(struct ofi_recv *recv, int *sizes);

/* ---- ofi_flush.c ----------------------------------------------------------- */

rail_result_t ofi_iflush(void *recv_comm, int n, void **data, const int *sizes, void **mhandles, void **request);
/* At accept, under the lock: memory and address that reads need, where there will be any. 0, or libfabric's error. */
int ofi_flush_prepare(struct ofi_recv_comm *rc);
/* OFI_FLUSH_LATER, under the lock. */
void ofi_flush_begin_later(struct ofi_recv_comm *rc);
void ofi_flush_done(struct ofi_op *op, const struct ofi_completion *completion);
void ofi_flush_finish(struct ofi_flush *flush);

#endif
