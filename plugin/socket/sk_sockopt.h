/* SPDX-License-Identifier: Apache-2.0
 * Options that a socket must have before it connects or listens: those that
 * count from the first packet on, and that accepted sockets inherit. */
#ifndef SK_SOCKOPT_H
#define SK_SOCKOPT_H

#include <stdbool.h>

/* Does the kernel allow the congestion control that is asked for? Logs it, once, if not. Call after the
 * parameters are loaded. */
void sk_sockopt_load(void);

/* Buffer sizes, congestion control, traffic class (-1: the system's). */
void sk_sockopt_set(int fd, int traffic_class);

/* The class a connection gets: RAIL_SOCKET_TC, else the call's, else its context's. -1: the system's. */
int sk_traffic_class(int of_call, int of_ctx);

#endif
