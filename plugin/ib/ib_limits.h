/* SPDX-License-Identifier: Apache-2.0
 * Numbers that both sides of a connection build on, and the sizes of tables. */
#ifndef IB_LIMITS_H
#define IB_LIMITS_H

#include "rail/net.h"

#define IB_MAX_PORTS 32   /* active ports of this machine that are looked at */
#define IB_MAX_DEVICES 256 /* ports and the devices fused from them */
#define IB_MAX_RAILS 8    /* ports of one fused device (net v12) */
#define IB_MAX_QPS 128    /* data QPs of one connection */

#define IB_MAX_GROUP 8                       /* buffers of one grouped receive: maxRecvs */
#define IB_MAX_RECVS RAIL_NET_MAX_REQUESTS   /* grouped receives outstanding on one connection: 32 */
#define IB_MAX_SENDS (IB_MAX_RECVS * IB_MAX_GROUP) /* sends outstanding on one connection: 256 */
#define IB_MAX_FLUSHES IB_MAX_RECVS

#define IB_ALIGN 128 /* parts of a message end at multiples of it, so that no LL128 line is torn between QPs */

#define IB_RECV_SPARE 32                             /* receive WRs are given back in chains of up to this many */
#define IB_RECV_DEPTH (IB_MAX_SENDS + IB_RECV_SPARE) /* receive queue of each data QP */
#define IB_SEND_DEPTH 512                            /* send queue of each data QP, where the device allows it */

#endif
