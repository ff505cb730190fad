/* SPDX-License-Identifier: Apache-2.0
 *
 * How a receiver tells its sender of receives. GRANTs are made in the order of the receives: what stands before a
 * receive that needs one is granted, too. All under the endpoint's lock; an error has failed the comm.
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

#endif
