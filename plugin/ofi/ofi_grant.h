/* SPDX-License-Identifier: Apache-2.0
 *
 * What a receiver tells its sender: GRANTs, which name its buffers, and ACKs, which report what has arrived and what
 * credit is free again. A GRANT carries the same report, so an ACK goes only where no GRANT does. Both go at once, or
 * with a later poll, which finds the comm in a list of the endpoint's (struct ofi_control_link) and calls
 * ofi_control_send.
 *
 * GRANTs are made in the order of the receives: what stands before a receive that needs one is granted, too. All under
 * the endpoint's lock; an error has failed the comm.
 */
#ifndef OFI_GRANT_H
#define OFI_GRANT_H

#include "plugin/ofi/ofi_comm.h"

/* Must the sender know of the receive? Not where its messages come on credit. */
bool ofi_grant_is_needed(const struct ofi_recv_comm *rc, const struct ofi_recv *recv);
/* After an irecv. The first of several receives that are posted in a row, without a poll in between, is granted at
 * once; the others go together, with the next poll. Whoever polls the endpoint does it: the watch thread if no caller
 * does. */
void ofi_grant_soon(struct ofi_recv_comm *rc);
/* Grants all receives that are not, in as few frames as hold them. */
void ofi_grant_all(struct ofi_recv_comm *rc);

/* Something has arrived, or the sender has asked: an ACK with the next poll if half of the credit can be given back or
 * the sender waits for it, else when no caller polls any more. */
void ofi_ack_soon(struct ofi_recv_comm *rc);

/* From a poll: the comm is in the endpoint's list. Sends GRANTs that were held back, and an ACK if they leave something
 * to report. */
void ofi_control_send(struct ofi_control_link *link);
/* A GRANT or an ACK has gone out, or failed. */
void ofi_control_done(struct ofi_op *op, const struct ofi_completion *completion);

#endif
