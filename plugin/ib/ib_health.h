/* SPDX-License-Identifier: Apache-2.0
 *
 * Health words: what the watch thread learns, and all it does. The thread of
 * the caller reads them where it has time to: when there is nothing to poll.
 */
#ifndef IB_HEALTH_H
#define IB_HEALTH_H

/* ib_hca.health */
#define IB_HCA_FATAL 1u /* IBV_EVENT_DEVICE_FATAL: nothing works any more */

/* ib_port.health */
#define IB_PORT_DOWN 1u /* for now; the HCA retries what is under way */

/* ib_comm.health */
#define IB_COMM_QP_FATAL 1u    /* IBV_EVENT_QP_FATAL, QP_REQ_ERR, QP_ACCESS_ERR of one of its QPs */
#define IB_COMM_CQ_ERROR 2u    /* IBV_EVENT_CQ_ERR: completions were lost */
#define IB_COMM_PEER_CLOSED 4u /* the peer said goodbye */
#define IB_COMM_PEER_LOST 8u   /* the side channel broke without goodbye: the peer's process is dead, or its host */
#define IB_COMM_PEER_SILENT 16u /* the peer's process answers nothing any more, though its host does: stopped */
#define IB_COMM_DEVICE_FATAL 32u /* IBV_EVENT_DEVICE_FATAL of an HCA of one of its rails */
/* Nothing has moved for a while, with requests outstanding: a question, not an end. The caller's thread takes it back
 * when something has moved, or the HCA has answered. */
#define IB_COMM_STILL 64u

/* Beside PEER_CLOSED, of a sender's peer: its side channel has ended, and with it the time for which it answers what is
 * sent again. */
#define IB_COMM_PEER_GONE 256u
#define IB_COMM_HOST_SILENT 128u /* the peer's host answers nothing any more */

#endif
