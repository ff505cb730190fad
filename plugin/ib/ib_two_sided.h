/* SPDX-License-Identifier: Apache-2.0
 *
 * The SEND protocol (RAIL_IB_PROTOCOL=send), in place of RDMA writes: irecv posts receive WRs with the caller's memory,
 * and announces them by a CTS entry behind that, so a SEND always finds one. A queue pair's SENDs go into its receive
 * WRs in order. So the receiver alone decides how a buffer is divided and over which QPs it goes, and says so in the
 * entry; and the sender's messages leave in the order of entries: a send that matches a later one waits for its turn.
 *
 * A part has a receive WR of its own. The parts of a message that is shorter than its buffer are cut off at its end,
 * and those behind it are empty. A message that is larger is empty, and a write of 4 bytes goes before it, into the
 * receiver's ib_ctrl_buf.refused: devices without immediate data (iWARP) can do that, too.
 */
#ifndef IB_TWO_SIDED_H
#define IB_TWO_SIDED_H

#include "plugin/ib/ib_comm.h"

/* ---- the receiver's ------------------------------------------------------------ */

/* Bytes of the largest buffer. */
uint64_t ib_two_sided_max_bytes(const struct ib_plan *plan);
/* Are there as many free receive WRs on each QP as buffers of these sizes need? */
bool ib_two_sided_has_room(const struct ib_recv_comm *rc, unsigned int n, const size_t *sizes);
/* Fills in how the entry's buffer, whose size it has, is divided: over how many parts, and from which QP on. */
void ib_two_sided_divide(struct ib_recv_comm *rc, struct ib_cts *cts);
/* Posts the receive WRs of the entry's buffer, which is at `data`. */
rail_result_t ib_two_sided_receive(struct ib_recv_comm *rc, unsigned int slot, const struct ib_cts *cts,
                                   const void *data);
/* Has the sender refused to send into that buffer, because its message is larger? */
bool ib_two_sided_is_refused(const struct ib_recv_comm *rc, unsigned int slot, unsigned int index);

/* wr_id of its receive WRs: ib_wr_arg. */
static inline unsigned int ib_buffer_arg(unsigned int slot, unsigned int index, unsigned int part) {
  return slot << 10 | index << 7 | part;
}
static inline unsigned int ib_buffer_slot(unsigned int arg) { return arg >> 10 & (IB_MAX_RECVS - 1); }
static inline unsigned int ib_buffer_index(unsigned int arg) { return arg >> 7 & (IB_MAX_GROUP - 1); }
static inline unsigned int ib_buffer_part(unsigned int arg) { return arg & 0x7f; }
_Static_assert(IB_MAX_RECVS == 32 && IB_MAX_GROUP == 8 && IB_MAX_QPS == 128, "5, 3 and 7 bits");

/* ---- the sender's --------------------------------------------------------------- */

struct ib_two_sided {
  struct ib_remote_ring remote; /* the receiver's ib_ctrl_buf */
  uint32_t seq, index;          /* of the buffer whose message leaves next */
  uint32_t empty_tests;         /* tests that found nothing (ib_progress.c) */
  struct ib_send *taken[IB_MAX_RECVS][IB_MAX_GROUP]; /* by buffer: sends that wait for their turn */
};

/* For a send comm whose plan says so, before ib_send_comm_start. False: out of memory. */
bool ib_two_sided_open(struct ib_comm *comm, const struct ib_remote_ring *remote);
void ib_two_sided_close(struct ib_send_comm *sc);
/* A send has matched: those whose turn it is go into `unposted`. False: its entry has values that cannot be. */
bool ib_two_sided_take_turn(struct ib_send_comm *sc, struct ib_send *send);
/* Posts a send whose turn it is. RAIL_IN_PROGRESS: a send queue is full. */
rail_result_t ib_two_sided_post(struct ib_send_comm *sc, struct ib_send *send);
/* Is anything of it the HCA's to complete? */
bool ib_two_sided_is_posted(const struct ib_send_comm *sc);

#endif
