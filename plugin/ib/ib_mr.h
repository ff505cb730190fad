/* SPDX-License-Identifier: Apache-2.0
 * Handles that a comm's caller has not given back. The calls themselves are in ib_calls.h. */
#ifndef IB_MR_H
#define IB_MR_H

struct ib_comm;

/* Gives back all of them; the QPs are gone. */
void ib_mhandles_free(struct ib_comm *comm);

#endif
