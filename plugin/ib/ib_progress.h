/* SPDX-License-Identifier: Apache-2.0
 *
 * The data path: the calls of the vtable, wr_id, by which a completion finds the file that posted, and what the files
 * of the data path call of each other, errors included. The objects that they work on are in ib_comm.h.
 */
#ifndef IB_PROGRESS_H
#define IB_PROGRESS_H

#include <assert.h>

#include "plugin/ib/ib_comm.h"

/* ---- the calls of the caller's progress thread ---------------------------------- */

rail_result_t ib_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                       void **phandles, void **request);
rail_result_t ib_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request);
rail_result_t ib_iflush(void *recv_comm, int n, void **data, const int *sizes, void **mhandles, void **request);
rail_result_t ib_test(void *request, int *done, int *sizes);

/* ---- wr_id: what a completion is about ---------------------------------------
 * A failed completion says little else, so everything is in it: kind 8 | qp 16 | count 16 | arg 24 bits. */

enum ib_wr_kind {
  IB_WR_SEND = 1,   /* a write of a part: arg = index of the send request, count = writes of the chain up to it */
  IB_WR_RECV = 2,   /* a receive WR of a data QP; with notices arg = the notice's place (ib_notice.c) */
  IB_WR_CTS = 3,    /* a signaled CTS write: count = CTS writes it stands for */
  IB_WR_FLUSH = 4,  /* arg = index of the flush request */
  IB_WR_VERIFY = 5, /* first writes: the handshake's, and of a QP that comes back */
  IB_WR_PROBE = 6,  /* a write of zero bytes: count = itself, and the CTS writes before it that it stands for */
  IB_WR_BUFFER = 7, /* a receive WR with the caller's memory: arg = ib_buffer_arg */
};

static inline uint64_t ib_wr_id(enum ib_wr_kind kind, unsigned int qp, unsigned int count, unsigned int arg) {
  return (uint64_t)kind << 56 | (uint64_t)qp << 40 | (uint64_t)(count & 0xffff) << 24 | (arg & 0xffffff);
}
/* The same, from ib_qp.wr_id_base. */
static inline uint64_t ib_wr_id_of(const struct ib_qp *qp, unsigned int count, unsigned int arg) {
  return qp->wr_id_base | (uint64_t)count << 24 | arg;
}
static inline enum ib_wr_kind ib_wr_kind(uint64_t id) { return (enum ib_wr_kind)(id >> 56); }
static inline unsigned int ib_wr_qp(uint64_t id) { return (unsigned int)(id >> 40) & 0xffff; }
static inline unsigned int ib_wr_count(uint64_t id) { return (unsigned int)(id >> 24) & 0xffff; }
static inline unsigned int ib_wr_arg(uint64_t id) { return (unsigned int)id & 0xffffff; }

/* The argument of IB_WR_BUFFER. */
static inline unsigned int ib_buffer_arg(unsigned int slot, unsigned int index, unsigned int part) {
  return slot << 10 | index << 7 | part;
}
static inline unsigned int ib_buffer_slot(unsigned int arg) { return arg >> 10 & (IB_MAX_RECVS - 1); }
static inline unsigned int ib_buffer_index(unsigned int arg) { return arg >> 7 & (IB_MAX_GROUP - 1); }
static inline unsigned int ib_buffer_part(unsigned int arg) { return arg & 0x7f; }
_Static_assert(IB_MAX_RECVS == 32 && IB_MAX_GROUP == 8 && IB_MAX_QPS == 128, "5, 3 and 7 bits");

/* ---- ib_send.c ------------------------------------------------------------------- */

/* NULL: out of memory. The handshake fills in the rest of the base. */
struct ib_comm *ib_send_comm_alloc(void);
/* The QPs are in RTS, the keys are known. `progress`: ib_progress. False: out of memory. */
bool ib_send_comm_start(struct ib_comm *comm, rail_result_t (*progress)(struct ib_comm *comm));

/* From test: */
void ib_send_done(struct ib_comm *comm, const struct ibv_wc *wc);
/* Nothing completes: is it because all sends wait for the turn of one that is not called (ib_two_sided.c)? Then
 * RAIL_OK, or after RAIL_IB_TAG_TIMEOUT an error; else RAIL_IN_PROGRESS. */
rail_result_t ib_send_check_turn(struct ib_send_comm *sc);
/* Posts what waited for room in a send queue, as far as there is room now. */
rail_result_t ib_send_resume(struct ib_send_comm *sc);
/* A request that is done goes back into its pool; sizes may be NULL. Returns its result. */
rail_result_t ib_send_finish(struct ib_send *send, int *sizes);

/* The loss and the return of a QP. Messages go over the QPs that are UP (ib_failover.h), from now on. */
void ib_send_update_live(struct ib_send_comm *sc);
/* What follows when a QP is DOWN (ib_failover.h): completes the entries of qp->posted that are done. Those that are
 * left in it are parts to be resent. */
void ib_send_reconcile(struct ib_send_comm *sc, struct ib_qp *qp, const struct ib_posted *done, unsigned int ndone);
/* Resends them. RAIL_IN_PROGRESS: some wait for room in a send queue, or for what is known of another lost QP. */
rail_result_t ib_send_resend(struct ib_send_comm *sc, struct ib_qp *lost);

/* Gives `wr` the `len` bytes of the message from `offset` on; its flags are set anew. ib_two_sided.c's SENDs, too. */
RAIL_HOT_INLINE void ib_attach_payload(const struct ib_send *send, const struct ib_qp *qp, uint64_t offset,
                                       uint64_t len, struct ibv_send_wr *wr, struct ibv_sge *sge) {
  wr->sg_list = sge;
  wr->num_sge = len != 0;
  wr->send_flags = 0;
  if (!len) return;
  assert(send->mr); /* isend refuses bytes without a registration */
  sge->addr = (uintptr_t)send->data + offset;
  sge->length = (uint32_t)len;
  sge->lkey = send->mr->lkeys[qp->rail];
  if (len <= qp->max_inline && send->mr->memory.type == RAIL_PTR_HOST) wr->send_flags = IBV_SEND_INLINE;
}

/* ---- ib_recv.c ------------------------------------------------------------------- */

/* NULL: out of memory. The handshake fills in the rest of the base. */
struct ib_comm *ib_recv_comm_alloc(void);
/* Posts the receive WRs, unless irecv does (ib_two_sided.c); the QPs are in INIT. */
rail_result_t ib_recv_comm_prepost(struct ib_comm *comm);
/* Posts those of one QP; errno of ibv_post_recv, or 0. */
int ib_recv_prepost_qp(struct ib_comm *comm, struct ib_qp *qp);
/* The QPs are in RTS, the keys are known. `progress`: ib_progress. */
void ib_recv_comm_start(struct ib_comm *comm, const struct ib_remote_ring *ring,
                        rail_result_t (*progress)(struct ib_comm *comm));

/* From test: */
rail_result_t ib_recv_done(struct ib_comm *comm, const struct ibv_wc *wc);
/* The same for a receive WR with the caller's memory (ib_two_sided.c). */
rail_result_t ib_recv_buffer_done(struct ib_comm *comm, const struct ibv_wc *wc);
void ib_recv_cts_done(struct ib_comm *comm, const struct ibv_wc *wc);
/* When nothing completes: posts a write whose completion stands for all CTS writes so far. */
rail_result_t ib_recv_probe(struct ib_recv_comm *rc);
/* A request that is done is free again; sizes may be NULL. Returns its result. */
rail_result_t ib_recv_finish(struct ib_recv *recv, int *sizes);

/* The loss of a QP: what follows when the one that carried CTS writes is DOWN (ib_failover.h). Takes another one, and
 * returns how many CTS writes are to be resent. */
unsigned int ib_recv_move_cts(struct ib_recv_comm *rc, unsigned int qp);
/* Resends them. RAIL_IN_PROGRESS: some wait for room in the send queue. */
rail_result_t ib_recv_resend(struct ib_recv_comm *rc);

/* ---- ib_flush.c ------------------------------------------------------------------ */

enum ib_flush_mode { IB_FLUSH_AUTO, IB_FLUSH_ALWAYS, IB_FLUSH_NEVER }; /* RAIL_IB_FLUSH */

/* Does a recv comm need flush QPs at all? */
bool ib_flush_is_needed(const struct ib_comm *comm);
/* The same by what is said and by what memory can be registered. Pure. */
bool ib_flush_wanted(enum ib_flush_mode mode, bool disabled, bool gpu_direct, bool dmabuf);
/* Makes a recv comm's flush QPs where they are needed, one step per call: RAIL_IN_PROGRESS calls again. */
rail_result_t ib_flush_open(struct ib_comm *comm);
void ib_flush_close(struct ib_comm *comm);

/* From test: */
void ib_flush_done(struct ib_comm *comm, const struct ibv_wc *wc);
rail_result_t ib_flush_finish(struct ib_request *flush);

/* The loss and the return of a rail. It has no QP left that is up: no flush waits for it any more. */
void ib_flush_lose_rail(struct ib_recv_comm *rc, unsigned int rail);
/* Makes the QP of such a rail anew, one step per call, each behind a poll that found nothing. RAIL_OK: flushes wait for
 * it again; RAIL_IN_PROGRESS; or an error, after which it may be called again later. */
rail_result_t ib_flush_return_rail(struct ib_recv_comm *rc, unsigned int rail);
bool ib_flush_is_pending(const struct ib_recv_comm *rc);

/* ---- ib_notice.c: parts reported by a SEND, where a device has no immediates ------- */

/* The receiver's memory for them, of a comm whose plan has notices. False: out of memory. */
bool ib_notices_open(struct ib_comm *comm);
/* For the QPs over that rail. False: errno says why. */
bool ib_notices_register(struct ib_comm *comm, unsigned int rail);
/* The QPs are destroyed. Does nothing where there are none. */
void ib_notices_close(struct ib_comm *comm);
/* Gives a batch of IB_RECV_BATCH receive WRs of that QP the memory whose notices have been taken longest ago. */
void ib_notices_attach(struct ib_recv_comm *rc, struct ib_qp *qp, struct ibv_recv_wr *wrs, struct ibv_sge *sges);
/* Reads the one that has come. False: it is none. */
bool ib_notice_take(const struct ib_recv_comm *rc, const struct ibv_wc *wc, uint32_t *imm, uint64_t *rest);

/* The sender's: makes `wr` the notice of a part of `size` bytes. `imm` has slot, index and number of parts; its body is
 * set here. `notice` must live until `wr` is posted. */
void ib_notice_make(const struct ib_send_comm *sc, struct ib_imm *imm, uint64_t size, struct ibv_send_wr *wr,
                    struct ibv_sge *sge, struct ib_notice_wire *notice);

/* ---- ib_two_sided.c: the SEND protocol --------------------------------------------- */

/* The receiver's. Bytes of the largest buffer. */
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

/* The sender's. */
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

/* ---- ib_progress.c ----------------------------------------------------------------- */

/* Polls all CQs of a comm, within a bound, and posts what waited for room; RAIL_OK or the comm's failure. */
rail_result_t ib_progress(struct ib_comm *comm);

/* After ib_comm_stop of a recv comm: waits until the HCA writes to no memory for it any more, which each QP shows by
 * flushing an unused receive WR, or with the SEND protocol by completing all that irecv posted. Microseconds; a second
 * at most for all calls together, then false. Any thread. */
bool ib_comm_drain(struct ib_comm *comm);

/* ---- ib_wait.c: event-driven progress (RAIL_IB_PROGRESS) ----------------------------- */

enum ib_progress_kind { IB_PROGRESS_POLL, IB_PROGRESS_EVENT, IB_PROGRESS_AUTO };

/* Makes the rail's completion queue, with a channel if RAIL_IB_PROGRESS asks for it and the device has them; if it has
 * none, one line for each HCA says so. False: errno says why there is no queue. */
bool ib_wait_create_cq(struct ib_comm *comm, struct ib_rail *rail, int entries);
/* All of them are made. */
void ib_wait_open(struct ib_comm *comm);
/* Before its completion queues are destroyed, which takes all events to be acknowledged. Idempotent. */
void ib_wait_close(struct ib_comm *comm);
/* After that; errno of ibv_destroy_comp_channel, or 0. */
int ib_wait_destroy_channel(struct ib_rail *rail);

/* A poll found completions. For comms that are `event_driven` only; here and below. */
void ib_wait_found(struct ib_comm *comm);
/* A test of `request` found nothing. May wait. True: poll again, the queues are armed now or an event came. */
bool ib_wait_idle(struct ib_comm *comm, const struct ib_request *request);

/* ---- ib_error.c: what is said of failures ----------------------------------------------
 *
 * One line per failure. Of a failed transfer: peer, device, GIDs, QP, operation, status and vendor error in words, the
 * retry budget, the time of the last progress, and what to check. docs/rdma-errors.md explains each.
 */

struct ib_error_row {
  enum ibv_wc_status status;
  rail_result_t result; /* where the fault is: the peer (remote), this host (system), this plugin (internal) */
  const char *name;     /* without IBV_WC_ */
  const char *what;     /* what happened */
  const char *check;    /* what to do about it */
};
/* Never NULL. Pure. */
const struct ib_error_row *ib_error_row(enum ibv_wc_status status);
/* Words for a vendor error of a device of that vendor (PCI id); NULL: none are known. Pure. */
const char *ib_error_vendor(uint32_t vendor_id, uint32_t vendor_err);

/* A completion with status != IBV_WC_SUCCESS: logs unless the comm has failed or was stopped, counts, and fails the
 * comm. */
rail_result_t ib_error_completion(struct ib_comm *comm, const struct ibv_wc *wc);
/* A fault bit ends the comm: one line, and the comm fails. RAIL_OK if none is set. */
rail_result_t ib_error_faults(struct ib_comm *comm, uint32_t faults);
/* Nothing completes, and the time for it is over (IB_COMM_STALLED). */
rail_result_t ib_error_stalled(struct ib_comm *comm);
/* The progress thread: a work request could not be posted. Without failover as ib_error_post; with it RAIL_OK: the QP
 * has IB_FAULT_POST, and at its next run ib_failover.c sends what it was to carry over another one. */
RAIL_COLD rail_result_t ib_error_post_or_failover(struct ib_comm *comm, const struct ib_qp *qp, const char *call,
                                                  int err);
/* ibv_post_* or ibv_poll_cq failed with `err`. */
rail_result_t ib_error_post(struct ib_comm *comm, const struct ib_qp *qp, const char *what, int err);

/* Sends that find no receive: the line, and the comm fails. */

/* A receive's values cannot be. */
RAIL_COLD rail_result_t ib_error_invalid_cts(struct ib_send_comm *sc);
/* Receives are posted, none of the tag, for RAIL_IB_TAG_TIMEOUT. */
RAIL_COLD rail_result_t ib_error_tag_timeout(struct ib_send_comm *sc, uint32_t tag);
/* The next receive's CTS has been torn for so long. */
RAIL_COLD rail_result_t ib_error_torn(struct ib_send_comm *sc, uint64_t ms);
/* All sends wait for one before them, for RAIL_IB_TAG_TIMEOUT (ib_two_sided.c). */
RAIL_COLD rail_result_t ib_error_turn_timeout(struct ib_send_comm *sc);

/* Lost queue pairs, for ib_failover.c: the line, and the comm fails where an error is returned. */

/* The peer has nothing left to go on with. */
rail_result_t ib_error_all_lost(struct ib_comm *comm);
/* The last one failed, by those faults of ib_failover_qp. */
rail_result_t ib_error_last_qp(struct ib_comm *comm, unsigned int index, uint32_t faults);
/* In ERR for so long, and no receive WR was flushed. */
rail_result_t ib_error_never_flushed(struct ib_comm *comm, unsigned int index, int ms);
/* STOPPED with a count that cannot be. */
rail_result_t ib_error_bad_count(struct ib_comm *comm, unsigned int index, uint32_t count);
/* STOPPED of one that is DOWN: both sides have stopped it, and neither has begun another. */
rail_result_t ib_error_second_stopped(struct ib_comm *comm, unsigned int index);
/* STOPPED cannot be sent, and without the peer's nothing can be resent. */
rail_result_t ib_error_cannot_notify(struct ib_comm *comm, unsigned int index);
/* Words, of one that is not UP. */
const char *ib_error_why_lost(const struct ib_comm *comm, unsigned int index);
/* All that was lost at about the same time is resent: one warning, and the comm goes on. */
void ib_error_report_loss(struct ib_comm *comm);

#endif
