/* SPDX-License-Identifier: Apache-2.0
 * The list of closed connections whose sockets still deliver. */
#ifndef SK_CLOSE_H
#define SK_CLOSE_H

#include <stdbool.h>

/* A few steps of what closed connections still have to do; called in passing. */
void sk_close_reap(void);
/* Is there anything to do? */
bool sk_close_is_lingering(void);

/* Takes every comm's sockets away and waits, at most RAIL_SOCKET_CLOSE_TIMEOUT, for what was
 * written to arrive: the last context is gone, and the watch thread with it. */
void sk_close_all(void);

/* Around fork (sk_watch.c): a child keeps nothing of the list. */
void sk_close_before_fork(void);
void sk_close_after_fork(bool child);

#endif
