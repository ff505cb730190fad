/* SPDX-License-Identifier: Apache-2.0
 *
 * A send from isend to its completion.
 *
 * isend matches its tag in the CTS ring, takes a request, splits the message into parts, one QP each, and posts them:
 * plain RDMA writes, and as the last of each part a write with immediate, its tail, which reports it to the receiver.
 * What a send queue has no room for waits in `unposted`, and later sends behind it; ib_send_resume goes on there. test
 * calls ib_send_done for each completion; the send is done when all tails have completed. What a lost QP
 * (ib_failover.c) has not brought to the receiver is resent. With the SEND protocol a send waits for its turn
 * (ib_two_sided.c).
 */
#include "plugin/ib/ib_progress.h"

#include <arpa/inet.h>
#include <limits.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/ib/ib_failover.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_stripe.h"

#define BATCH 16 /* writes that are posted at once */
#define UNMATCHED_CALLS 64 /* of so many isends that found no receive of their tag one asks ib_cts_lacks_first */

/* A chain of writes of one part, over one QP, as it is made and posted. */
struct chain {
  struct ib_send *send;
  unsigned int part;       /* its number */
  struct ib_cursor *cursor; /* how far it is posted */
  struct ib_qp *qp;
  struct ibv_send_wr *wrs; /* the writes, of which n are made */
  struct ibv_sge *sges;
  unsigned int n;
  uint64_t body_end;       /* of the part's body: how far this chain goes */
  bool tail;               /* its last write is the part's tail */
};

/* ---- the steps of a send, in their order; each is explained at its definition ---- */

static rail_result_t no_cts(struct ib_send_comm *sc, uint32_t tag, enum ib_cts_found found);
RAIL_COLD static void refuse_size(struct ib_send_comm *sc, struct ib_send *send, uint32_t tag);
static inline struct ib_qp *rotate_qps(struct ib_send_comm *sc, struct ib_send *send);
static rail_result_t isend_in_turn(struct ib_send_comm *sc, struct ib_send *send, void *phandle);
RAIL_HOT_INLINE rail_result_t post_first(struct ib_send_comm *sc, struct ib_send *send, struct ib_qp *qp);
static rail_result_t post_parts(struct ib_send_comm *sc, struct ib_send *send);
RAIL_HOT_INLINE rail_result_t post_batch(struct ib_send_comm *sc, struct chain chain);
RAIL_HOT_INLINE rail_result_t post_tail(struct ib_send_comm *sc, struct chain chain, const struct ib_layout *layout);
static rail_result_t post_body(struct ib_send_comm *sc, struct chain chain, const struct ib_layout *layout);
RAIL_HOT_INLINE rail_result_t post_chain(struct ib_send_comm *sc, const struct chain *chain);

/* ---- isend ----------------------------------------------------------------- */

rail_result_t ib_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                       void **request) {
  struct ib_comm *comm = ib_comm_of(send_comm, IB_SEND_COMM_MAGIC, "isend");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (rail_unlikely(!rail_net_memory_covers(mhandle, comm, data, size) || size > RAIL_NET_MAX_BYTES))
    return ib_comm_refuse_buffer(comm, "isend", mhandle, data, size);
  if (rail_unlikely(rail_first_error(&comm->error) != RAIL_OK)) return rail_first_error(&comm->error);
  struct ib_send_comm *sc = ib_send_comm_of(comm);
  struct ib_request *r = SLIST_FIRST(&sc->free);
  if (rail_unlikely(!r)) {
    rail_stats_add(&comm->stats[IB_COMM_WAITS_ROOM], 1);
    return RAIL_OK;
  }

  /* Match: the oldest buffer of this tag that the receiver posted. */
  struct ib_send *send = rail_container_of(r, struct ib_send, base);
  enum ib_cts_found found = ib_cts_take(&sc->match, (uint32_t)tag, &send->buffer);
  if (found != IB_CTS_TAKEN) return no_cts(sc, (uint32_t)tag, found);

  /* Take the request. */
  SLIST_FIRST(&sc->free) = SLIST_NEXT(r, free);
  ib_request_begin(comm, r, IB_REQ_SEND, 1); /* pending: until ib_send_all_posted */
  send->data = data;
  send->size = send->length = size;
  send->cursor.body_posted = IB_BETWEEN_PARTS;
  send->next_part = 0;
  send->mr = size ? mhandle : NULL;
  if (size) rail_net_memory_hold(&send->mr->memory);
  if (rail_unlikely(size > send->buffer->size)) refuse_size(sc, send, (uint32_t)tag);

  /* Split: over how many QPs, and which. */
  *request = send;
  send->nparts = (uint16_t)ib_count_parts(send->length, sc->most_parts, sc->min_part);
  struct ib_qp *first;
  if (rail_likely(sc->rotates_qps)) first = rotate_qps(sc, send);
  else if (sc->two_sided) return isend_in_turn(sc, send, phandle);
  else first = ib_stripe_divide(sc, send);
  if (rail_unlikely(comm->profiler != NULL)) ib_profile_start(r, &phandle);

  /* Post, behind sends that wait for room. The request exists now: test reports a failure to post. */
  if (rail_likely(STAILQ_EMPTY(&sc->unposted)) && post_first(sc, send, first) != RAIL_IN_PROGRESS) return RAIL_OK;
  rail_stats_add(&comm->stats[IB_COMM_WAITS_ROOM], 1);
  STAILQ_INSERT_TAIL(&sc->unposted, send, link);
  return RAIL_OK;
}

/* ---- no buffer to send to, or one too small ------------------------------------- */

/* Measures for how long sends have found the same entries in the ring; any change restarts the timer. So does a send of
 * another tag when the first tag's time is up: the caller may have given that one up. */
static bool has_expired(const struct ib_send_comm *sc, struct ib_match_timer *timer, uint32_t tag, uint64_t ms) {
  bool same = timer->last_seen && timer->next == sc->match.next && timer->takes == sc->match.takes;
  uint64_t now = rail_now_ns();
  if (same) {
    /* Time in which this process or the peer's was stopped does not count: a stopped process posts nothing. */
    if (!atomic_load_explicit(&sc->base.peer_silent, memory_order_relaxed))
      timer->waited += RAIL_MIN(now - timer->last_seen, RAIL_MAX_STEP_NS);
    timer->last_seen = now;
    if (timer->waited < ms * 1000000) return false;
    if (timer->tag == tag) return true;
  }
  *timer = (struct ib_match_timer){.last_seen = now, .tag = tag, .next = sc->match.next, .takes = sc->match.takes};
  return false;
}

/* Receives are posted, of other tags only. That ends soon, or the two sides disagree; unless the next receive is torn,
 * whose tags are not known, and which has a limit of its own. */
static rail_result_t check_tag(struct ib_send_comm *sc, uint32_t tag) {
  uint64_t ms = (uint64_t)ib_params.tag_ms;
  if (!ms || !has_expired(sc, &sc->tag_timer, tag, ms) || ib_cts_lacks_first(&sc->match)) return RAIL_OK;
  return ib_error_tag_timeout(sc, tag);
}

/* A CTS is torn for nanoseconds, or, where a packet of it was lost, until the peer's HCA has sent it again: at most its
 * timeout and 7 retries. With timeout 0 there is no such bound, and RAIL_IB_TAG_TIMEOUT limits the wait. */
RAIL_COLD static rail_result_t check_torn(struct ib_send_comm *sc) {
  const struct ib_qp_attr peers = {.timeout = sc->base.receiver_timeout, .retry_cnt = IB_MAX_RETRIES};
  const uint64_t limit = ib_qp_limit_ms(&peers), ms = limit ? limit : (uint64_t)ib_params.tag_ms;
  return ms && has_expired(sc, &sc->torn_timer, 0, ms) ? ib_error_torn(sc, ms) : RAIL_OK;
}

/* There is no buffer to send to. Without any posted the wait has no limit: a receiver may post when it likes. A peer
 * that is gone or silent ends it by a fault bit. STALLED does not: the HCA has nothing of this send to complete. */
static rail_result_t no_cts(struct ib_send_comm *sc, uint32_t tag, enum ib_cts_found found) {
  if (rail_unlikely(found == IB_CTS_INVALID)) return ib_error_invalid_cts(sc);
  rail_stats_add(&sc->base.stats[IB_COMM_WAITS_CTS], 1);
  const uint32_t work = atomic_load_explicit(&sc->base.pending_work, memory_order_acquire);
  /* ib_progress; the next isend may find what it brings. */
  if (rail_unlikely(work & IB_COMM_FAILOVER)) RAIL_TRY(sc->base.progress(&sc->base));
  const uint32_t faults = work & ~IB_COMM_WORK;
  if (rail_unlikely(faults)) return ib_error_faults(&sc->base, faults);
  const bool look = ++sc->unmatched_calls % UNMATCHED_CALLS == 0;
  if (found == IB_CTS_NEXT_TORN || (rail_unlikely(look) && ib_cts_lacks_first(&sc->match))) return check_torn(sc);
  return found == IB_CTS_OTHER_TAGS ? check_tag(sc, tag) : RAIL_OK;
}

RAIL_COLD rail_result_t ib_send_check_turn(struct ib_send_comm *sc) {
  if (!sc->two_sided || ib_two_sided_is_posted(sc)) return RAIL_IN_PROGRESS;
  uint64_t ms = (uint64_t)ib_params.tag_ms;
  return ms && has_expired(sc, &sc->turn_timer, 0, ms) ? ib_error_turn_timeout(sc) : RAIL_OK;
}

/* The message is larger than its buffer: only an immediate with an error code is written, and both sides report the
 * error. */
RAIL_COLD static void refuse_size(struct ib_send_comm *sc, struct ib_send *send, uint32_t tag) {
  RAIL_WARN("RailIB: isend to %s over %s: a message of %llu bytes with tag %u meets a receive buffer of %llu bytes; "
            "send and receive do not fit together", sc->base.peer_text, sc->base.device->name,
            (unsigned long long)send->size, tag, (unsigned long long)send->buffer->size);
  send->base.result = RAIL_BAD_USAGE;
  send->length = 0;
}

/* ---- split ------------------------------------------------------------------ */

/* The parts go over the next QPs. Returns the first part's. */
static inline struct ib_qp *rotate_qps(struct ib_send_comm *sc, struct ib_send *send) {
  struct ib_qp *first = sc->live[sc->next_qp];
  send->first_place = (uint16_t)sc->next_qp;
  sc->next_qp += send->nparts; /* at most nlive */
  if (sc->next_qp >= sc->nlive) sc->next_qp -= sc->nlive;
  return first;
}

/* The rest of isend with the SEND protocol: the receive says over which QPs, and messages leave in the order of
 * receives. The request exists: test reports what fails. */
static __attribute__((noinline)) rail_result_t isend_in_turn(struct ib_send_comm *sc, struct ib_send *send,
                                                             void *phandle) {
  if (!ib_two_sided_take_turn(sc, send)) (void)ib_error_invalid_cts(sc);
  if (sc->base.profiler) ib_profile_start(&send->base, &phandle);
  (void)ib_send_resume(sc);
  if (!STAILQ_EMPTY(&sc->unposted)) rail_stats_add(&sc->base.stats[IB_COMM_WAITS_ROOM], 1);
  return RAIL_OK;
}

/* ---- post ------------------------------------------------------------------- */

/* Posts a send, over `qp` first: mostly one part, and below whole_below one write, its tail. */
RAIL_HOT_INLINE rail_result_t post_first(struct ib_send_comm *sc, struct ib_send *send, struct ib_qp *qp) {
  if (send->nparts != 1 || send->length >= sc->whole_below[qp->rail] || rail_unlikely(!qp->sq_avail))
    return post_parts(sc, send);
  const struct ib_layout whole = {.size = send->length};
  RAIL_TRY(post_tail(sc, (struct chain){.send = send, .cursor = &send->cursor, .qp = qp}, &whole));
  ib_send_all_posted(send);
  return RAIL_OK;
}

/* The QP that the next part is given to. One comparison finds most of them. */
static inline struct ib_qp *qp_of_part(struct ib_send_comm *sc, const struct ib_send *send) {
  const unsigned int place = send->first_place + send->next_part;
  if (rail_likely(place < sc->nlive)) return sc->live[place];
  if (place >= IB_QP_BY_SHARE) return &sc->base.qps[send->shares[send->next_part].qp];
  return sc->live[place % sc->nlive];
}

/* Of a batch that was refused some may be posted, and no completion tells how far: over a QP that is lost, or is about
 * to be, nothing goes on. */
RAIL_COLD static bool may_go_on(const struct ib_comm *comm, unsigned int qp) {
  const struct ib_failover_qp *fq = comm->failover ? &comm->failover->qps[qp] : NULL;
  return !fq || (fq->state == IB_FAILOVER_UP && !(atomic_load(&fq->faults) & IB_FAULT_POST));
}

/* The QP over which a part that is given to `qp` begins, or goes on. NULL: its send queue is full, or what was begun
 * over it waits until the QP is DOWN, and begins anew. */
static inline struct ib_qp *usable_qp(struct ib_send_comm *sc, const struct ib_cursor *cursor, struct ib_qp *qp) {
  if (rail_unlikely(ib_is_begun(cursor))) {
    if (!may_go_on(&sc->base, cursor->qp)) return NULL;
    qp = &sc->base.qps[cursor->qp];
  }
  return rail_likely(qp->sq_avail) ? qp : NULL;
}

/* Posts the parts that are left of a send, each over a QP. RAIL_IN_PROGRESS: a send queue is full, or the QP of a part
 * that was begun is lost. */
static __attribute__((noinline)) rail_result_t post_parts(struct ib_send_comm *sc, struct ib_send *send) {
  while (send->next_part < send->nparts) {
    struct ib_qp *qp = usable_qp(sc, &send->cursor, qp_of_part(sc, send));
    if (rail_unlikely(!qp)) return RAIL_IN_PROGRESS;
    RAIL_TRY(post_batch(sc, (struct chain){.send = send, .part = send->next_part, .cursor = &send->cursor, .qp = qp}));
    if (!ib_is_begun(&send->cursor)) send->next_part++; /* all of the part is posted */
  }
  ib_send_all_posted(send);
  return RAIL_OK;
}

/* The chain's part, split into writes. */
RAIL_HOT_INLINE struct ib_layout layout_of(const struct ib_send_comm *sc, const struct chain *chain) {
  const struct ib_send *send = chain->send;
  struct ib_layout layout;
  if (send->nparts == 1 || !send->shares) layout = ib_equal_part(send->length, chain->part, send->nparts);
  else layout = (struct ib_layout){.offset = send->shares[chain->part].offset, .size = send->shares[chain->part].size};
  ib_split_writes(&layout, sc->base.plan.max_write_log2, send->length > sc->separate_above[chain->qp->rail]);
  if (rail_unlikely(sc->base.plan.notices)) layout.body = layout.size; /* the tail is a SEND that reports it */
  return layout;
}

/* Posts up to BATCH writes of a part: mostly all of it, without a loop. */
RAIL_HOT_INLINE rail_result_t post_batch(struct ib_send_comm *sc, struct chain chain) {
  const struct ib_layout layout = layout_of(sc, &chain);
  if (rail_likely(chain.cursor->body_posted == layout.body)) return post_tail(sc, chain, &layout);
  return post_body(sc, chain, &layout);
}

static inline struct ib_imm immediate_of(const struct ib_send *send, uint64_t body) {
  return (struct ib_imm){.slot = send->buffer->slot,
                         .index = send->buffer->index,
                         .parts = send->nparts,
                         .body = body,
                         .error = rail_unlikely(send->base.result != RAIL_OK) ? IB_IMM_TOO_LARGE : 0};
}

/* One more write, of `len` bytes of the message from `offset` on: what a provider reads of one is set, and nothing
 * else. */
RAIL_HOT_INLINE struct ibv_send_wr *add_write(struct chain *chain, uint64_t offset, uint64_t len) {
  const struct ib_send *send = chain->send;
  const struct ib_qp *qp = chain->qp;
  struct ibv_send_wr *wr = &chain->wrs[chain->n];
  wr->wr_id = ib_wr_id_of(qp, chain->n + 1, send->number);
  wr->next = NULL;
  wr->opcode = IBV_WR_RDMA_WRITE;
  wr->wr.rdma.remote_addr = send->buffer->addr + offset;
  wr->wr.rdma.rkey = send->buffer->rkeys[qp->remote_rail];
  ib_attach_payload(send, qp, offset, len, wr, &chain->sges[chain->n]);
  if (chain->n) chain->wrs[chain->n - 1].next = wr;
  chain->n++;
  return wr;
}

/* The part's tail. `notice` must live until it is posted. */
RAIL_HOT_INLINE void add_tail(const struct ib_send_comm *sc, struct chain *chain, const struct ib_layout *layout,
                              struct ib_notice_wire *notice) {
  const struct ib_imm imm = immediate_of(chain->send, layout->body);
  struct ibv_send_wr *wr = add_write(chain, layout->offset + layout->body, layout->size - layout->body);
  wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  if (rail_unlikely(sc->base.plan.notices)) {
    struct ib_imm copy = imm; /* so that the other stays in registers */
    ib_notice_make(sc, &copy, layout->size, wr, &chain->sges[chain->n - 1], notice);
  } else {
    wr->imm_data = htonl(ib_imm_encode(&imm, sc->base.plan.qps_per_message));
  }
  chain->tail = true;
}

/* Posts a part that is one write, its tail, or of which only that is left. */
RAIL_HOT_INLINE rail_result_t post_tail(struct ib_send_comm *sc, struct chain chain, const struct ib_layout *layout) {
  struct ibv_send_wr wr;
  struct ibv_sge sge;
  struct ib_notice_wire notice;
  chain.wrs = &wr;
  chain.sges = &sge;
  add_tail(sc, &chain, layout, &notice);
  return post_chain(sc, &chain);
}

/* Posts a part with a body, or what is left of it: up to a batch. */
static __attribute__((noinline)) rail_result_t post_body(struct ib_send_comm *sc, struct chain chain,
                                                         const struct ib_layout *layout) {
  struct ibv_send_wr wrs[BATCH];
  struct ibv_sge sges[BATCH];
  struct ib_notice_wire notice;
  const unsigned int most = RAIL_MIN(chain.qp->sq_avail, BATCH);
  chain.wrs = wrs;
  chain.sges = sges;
  chain.body_end = chain.cursor->body_posted;
  while (chain.n < most && chain.body_end != layout->body) {
    const uint64_t len = RAIL_MIN(layout->write, layout->body - chain.body_end);
    (void)add_write(&chain, layout->offset + chain.body_end, len);
    chain.body_end += len;
  }
  if (chain.n < most) add_tail(sc, &chain, layout, &notice);
  return post_chain(sc, &chain);
}

/* An error without failover; with it the QP is lost. Of a batch of n > 1 writes some may have been posted: the part
 * counts as begun. What was begun over a QP that is lost waits until that is DOWN, and begins anew. */
RAIL_COLD static rail_result_t post_failed(struct ib_send_comm *sc, struct ib_cursor *cursor, unsigned int n,
                                           const struct ib_qp *qp, int err) {
  RAIL_TRY(ib_error_post_or_failover(&sc->base, qp, "ibv_post_send", err));
  *cursor = (struct ib_cursor){RAIL_MAX(cursor->body_posted, n > 1 ? IB_PERHAPS_POSTED : IB_BETWEEN_PARTS), qp->index};
  return RAIL_IN_PROGRESS;
}

/* One ibv_post_send. Its last write is signaled; that one's completion stands for all of them. */
RAIL_HOT_INLINE rail_result_t post_chain(struct ib_send_comm *sc, const struct chain *chain) {
  struct ib_send *send = chain->send;
  struct ib_qp *qp = chain->qp;
  struct ibv_send_wr *bad;
  chain->wrs[chain->n - 1].send_flags |= IBV_SEND_SIGNALED;
  int err = ibv_post_send(qp->qp, chain->wrs, &bad);
  if (rail_unlikely(err)) return post_failed(sc, chain->cursor, chain->n, qp, err);
  if (chain->tail) chain->cursor->body_posted = IB_BETWEEN_PARTS;
  else *chain->cursor = (struct ib_cursor){chain->body_end, qp->index};
  *ib_posted_at(&qp->posted, qp->posted.end++) =
    (struct ib_posted){.send = send->number & 0xff, .part = chain->part & 0x7f, .tail = chain->tail};
  if (chain->tail) ib_qp_count_tail(qp);
  send->base.pending++;
  qp->sq_avail -= chain->n;
  rail_stats_add(&sc->base.stats[IB_COMM_WRITES], chain->n);
  return RAIL_OK;
}

/* ---- from test --------------------------------------------------------------- */

rail_result_t ib_send_resume(struct ib_send_comm *sc) {
  while (!STAILQ_EMPTY(&sc->unposted)) {
    struct ib_send *send = STAILQ_FIRST(&sc->unposted);
    rail_result_t result = sc->two_sided ? ib_two_sided_post(sc, send) : post_parts(sc, send);
    if (result != RAIL_OK) return result == RAIL_IN_PROGRESS ? RAIL_OK : result;
    STAILQ_REMOVE_HEAD(&sc->unposted, link);
  }
  return RAIL_OK;
}

/* A signaled write is over: with the last one what isend (post_first, post_parts) began is done. */
static inline void write_done(struct ib_comm *comm, struct ib_send *send) {
  uint64_t *stats = comm->stats;
  if (--send->base.pending) return;
  rail_stats_add(&stats[IB_COMM_MESSAGES], 1);
  rail_stats_add(&stats[IB_COMM_BYTES], send->length);
  if (send->mr) rail_net_memory_release(&send->mr->memory);
  ib_outstanding_drop(comm, stats);
}

RAIL_HOT_INLINE void signaled_done(struct ib_comm *comm, struct ib_qp *qp, const struct ibv_wc *wc) {
  qp->sq_avail += ib_wr_count(wc->wr_id);
  qp->posted.first++;
  write_done(comm, &ib_send_comm_of(comm)->sends[ib_wr_arg(wc->wr_id)]);
}

/* Apart, so that a connection without striping pays a branch. */
static __attribute__((noinline)) void striped_done(struct ib_comm *comm, struct ib_qp *qp, const struct ibv_wc *wc) {
  struct ib_send_comm *sc = ib_send_comm_of(comm);
  ib_stripe_done(sc->stripe, qp, &sc->sends[ib_wr_arg(wc->wr_id)], *ib_posted_at(&qp->posted, qp->posted.first));
  signaled_done(comm, qp, wc);
}

void ib_send_done(struct ib_comm *comm, const struct ibv_wc *wc) {
  struct ib_qp *qp = &comm->qps[ib_wr_qp(wc->wr_id)];
  if (rail_unlikely(qp->ignore_completions)) return; /* the receiver's count has decided it */
  if (rail_unlikely(ib_send_comm_of(comm)->stripe != NULL)) striped_done(comm, qp, wc);
  else signaled_done(comm, qp, wc);
}

rail_result_t ib_send_finish(struct ib_send *send, int *sizes) {
  if (sizes) sizes[0] = send->length > INT_MAX ? INT_MAX : (int)send->length;
  send->base.magic = IB_REQ_FREE;
  SLIST_INSERT_HEAD(&ib_send_comm_of(send->base.comm)->free, &send->base, free);
  return send->base.result;
}

/* ---- the loss and the return of a QP ---------------------------------------------------- */

/* A message has as many parts as an immediate can name: all, or a power of two. */
void ib_send_update_live(struct ib_send_comm *sc) {
  const struct ib_plan *plan = &sc->base.plan;
  unsigned int n = 0;
  for (unsigned int i = 0; i < plan->nqps; i++)
    if (sc->base.failover->qps[i].state == IB_FAILOVER_UP) sc->live[n++] = &sc->base.qps[i];
  sc->nlive = n;
  sc->next_qp %= n; /* the last one is not given up */ // NOLINT(clang-analyzer-core.DivideZero)
  sc->most_parts = plan->qps_per_message;
  if (sc->most_parts > n) sc->most_parts = 1u << (31 - (unsigned int)__builtin_clz(n));
  if (sc->stripe) ib_stripe_update_live(sc);
}

/* A part that was begun over a QP that is DOWN begins again, over another one. */
static void restart(struct ib_cursor *cursor, const struct ib_qp *qp) {
  if (ib_is_begun(cursor) && cursor->qp == qp->index) cursor->body_posted = IB_BETWEEN_PARTS;
}

void ib_send_reconcile(struct ib_send_comm *sc, struct ib_qp *qp, const struct ib_posted *done, unsigned int ndone) {
  for (unsigned int i = 0; i < ndone; i++) {
    struct ib_send *send = &sc->sends[done[i].send];
    if (sc->stripe) ib_stripe_done(sc->stripe, qp, send, done[i]);
    write_done(&sc->base, send);
  }
  if (!STAILQ_EMPTY(&sc->unposted)) restart(&STAILQ_FIRST(&sc->unposted)->cursor, qp); /* the only one that is begun */
  restart(&sc->resend, qp);
  const bool left = qp->posted.first != qp->posted.end;
  if (!left && sc->resend_of == qp->index) sc->resend.body_posted = IB_BETWEEN_PARTS; /* nothing of it is left */
}

/* Over the QPs in rotation. The entry stays until the part's tail is posted, and with it the request's `pending`. */
RAIL_COLD rail_result_t ib_send_resend(struct ib_send_comm *sc, struct ib_qp *lost) {
  while (lost->posted.first != lost->posted.end) {
    const struct ib_posted entry = *ib_posted_at(&lost->posted, lost->posted.first);
    struct ib_send *send = &sc->sends[entry.send];
    struct ib_qp *qp = usable_qp(sc, &sc->resend, sc->live[sc->next_qp]);
    if (!qp) return RAIL_IN_PROGRESS;
    sc->resend_of = lost->index;
    RAIL_TRY(post_batch(sc, (struct chain){.send = send, .part = entry.part, .cursor = &sc->resend, .qp = qp}));
    if (ib_is_begun(&sc->resend)) continue;
    if (sc->stripe) ib_stripe_move(sc->stripe, send, entry.part, qp);
    if (++sc->next_qp >= sc->nlive) sc->next_qp = 0;
    lost->posted.first++;
    send->base.pending--; /* the write that was lost; the new one counts */
    rail_stats_add(&sc->base.stats[IB_COMM_RESENT], 1);
  }
  return RAIL_OK;
}

/* ---- the sender's side of a comm: made ------------------------------------- */

struct ib_comm *ib_send_comm_alloc(void) {
  struct ib_send_comm *sc = calloc(1, sizeof *sc);
  if (!sc || !ib_comm_init(&sc->base, IB_SEND_COMM_MAGIC)) {
    free(sc);
    return NULL;
  }
  ib_request_pool_init(&sc->free, sc->sends, sizeof sc->sends[0], IB_MAX_SENDS, &sc->base);
  for (unsigned int i = 0; i < IB_MAX_SENDS; i++) sc->sends[i].number = (uint16_t)i;
  STAILQ_INIT(&sc->unposted);
  ib_cts_match_init(&sc->match, &sc->base.ctrl_buf->ring);
  return &sc->base;
}

/* NCCL's rule: InfiniBand switches may route adaptively, Ethernet switches are taken not to. */
static bool routes_adaptively(const struct ib_port *port) {
  return ib_params.adaptive_routing < 0 ? !ib_port_is_ethernet(port) : ib_params.adaptive_routing != 0;
}

bool ib_send_comm_start(struct ib_comm *comm, rail_result_t (*progress)(struct ib_comm *comm)) {
  struct ib_send_comm *sc = ib_send_comm_of(comm);
  comm->progress = progress;
  comm->test_has_more = comm->nrails > 1 || comm->event_driven || comm->plan.two_sided || ib_detect_is_possible(comm);
  free(sc->posted);
  sc->posted = calloc(comm->plan.nqps, IB_SEND_DEPTH * sizeof *sc->posted);
  if (!sc->posted) return false;
  for (unsigned int i = 0; i < comm->plan.nqps; i++) {
    comm->qps[i].posted.entries = &sc->posted[i * IB_SEND_DEPTH];
    comm->qps[i].wr_id_base = ib_wr_id(IB_WR_SEND, i, 0, 0);
    sc->live[i] = &comm->qps[i];
  }
  sc->nlive = comm->plan.nqps;
  sc->most_parts = comm->plan.qps_per_message;
  sc->min_part = (uint64_t)ib_params.min_part;
  ib_stripe_close(sc);
  if (!sc->two_sided && !ib_stripe_open(sc)) return false;
  sc->rotates_qps = !sc->stripe && !sc->two_sided;
  for (unsigned int i = 0; i < comm->nrails; i++) {
    sc->separate_above[i] = routes_adaptively(comm->rails[i].port) ? (uint64_t)ib_params.ar_threshold : UINT64_MAX;
    const uint64_t whole = RAIL_MIN(sc->separate_above[i], 1ull << comm->plan.max_write_log2);
    sc->whole_below[i] = comm->plan.notices ? 0 : whole + 1;
  }
  ib_comm_limit_inline(comm);
  return true;
}
