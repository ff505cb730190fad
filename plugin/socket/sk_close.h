/* SPDX-License-Identifier: Apache-2.0
 * The list of closed connections whose sockets still deliver. */
#ifndef SK_CLOSE_H
#define SK_CLOSE_H

struct sk_comm;

void sk_close_register(struct sk_comm *comm);

/* A few steps of what closed connections still have to do; called in passing. */
void sk_close_reap(void);

/* Takes every comm's sockets away and waits, at most a second, for what was
 * written to arrive: the last context is gone. */
void sk_close_all(void);

#endif
