/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions that move the data of a connection: test, and what completions, control messages and the end of an
 * endpoint mean (the table of functions that ofi_op.c and ofi_close.c call); below it the files that post, each
 * with its calls of the vtable and with what becomes of its operations and frames.
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
/* An EAGER has come (ofi_is_eager), of so many bytes with its frame. */
void ofi_recv_on_eager(struct ofi_recv_comm *rc, const struct ofi_frame_wire *wire, size_t size);
/* Another control message has come for a receiver. */
void ofi_recv_on_frame(struct ofi_recv_comm *rc, const struct ofi_frame *frame, const void *payload);
void ofi_recv_done(struct ofi_op *op, const struct ofi_completion *completion);
void ofi_recv_finish(struct ofi_recv *recv, int *sizes);

/* ---- ofi_grant.c: under the endpoint's lock; an error has failed the comm -------------------- */

/* Must the sender know of the receive? Not where its messages come on credit. */
bool ofi_grant_is_needed(const struct ofi_recv_comm *rc, const struct ofi_recv *recv);
/* Grants all receives that are not, in as few frames as hold them: tagged receives are posted, then the frame. */
void ofi_grant_all(struct ofi_recv_comm *rc);
/* With the next poll of the endpoint, whoever makes it: the watch thread if no caller does. */
void ofi_grant_with_next_poll(struct ofi_recv_comm *rc);
/* Something has arrived, or the sender has asked: an ACK with the next poll if half of the credit can be given back or
 * the sender waits for it, else when no caller polls any more. */
void ofi_ack_soon(struct ofi_recv_comm *rc);
/* From a poll: the comm is in the endpoint's list. Sends GRANTs that were held back, and an ACK if they leave something
 * to report. */
void ofi_control_send(struct ofi_control_link *link);
/* A GRANT or an ACK has gone out, or failed. */
void ofi_control_done(struct ofi_op *op, const struct ofi_completion *completion);

/* At the sender: the GRANTs of a frame, or an ACK. False: none that a receiver sends. */
bool ofi_handle_grants(struct ofi_send_comm *sc, const struct ofi_frame *frame);
bool ofi_handle_ack(struct ofi_send_comm *sc, const struct ofi_frame *frame);

/* ---- ofi_flush.c ----------------------------------------------------------- */

rail_result_t ofi_iflush(void *recv_comm, int n, void **data, const int *sizes, void **mhandles, void **request);
/* At accept, under the lock: memory and address that reads need, where there will be any. 0, or libfabric's error. */
int ofi_flush_prepare(struct ofi_recv_comm *rc);
/* OFI_FLUSH_LATER, under the lock. */
void ofi_flush_begin_later(struct ofi_recv_comm *rc);
void ofi_flush_done(struct ofi_op *op, const struct ofi_completion *completion);
void ofi_flush_finish(struct ofi_flush *flush);

#endif
