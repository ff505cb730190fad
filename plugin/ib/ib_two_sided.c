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
#include "plugin/ib/ib_progress.h"

#include <endian.h>
#include <stdlib.h>

#include "plugin/ib/ib_param.h"

/* The number of the latest receive in the slot, of those up to `last`. */
static uint32_t latest_in_slot(uint32_t last, unsigned int slot) { return last - (last - slot) % IB_MAX_RECVS; }

/* ---- the receiver -------------------------------------------------------------- */

uint64_t ib_two_sided_max_bytes(const struct ib_plan *plan) {
  return RAIL_MIN((uint64_t)IB_LARGE_PARTS << plan->max_write_log2, RAIL_NET_MAX_BYTES);
}

/* Into how many parts a buffer is divided. */
static unsigned int parts_of(const struct ib_plan *plan, uint64_t size) {
  uint64_t least = (size + (1ull << plan->max_write_log2) - 1) >> plan->max_write_log2;
  unsigned int wanted = ib_count_parts(size, plan->qps_per_message, (uint64_t)ib_params.min_part);
  return (unsigned int)RAIL_MAX(wanted, least);
}

bool ib_two_sided_has_room(const struct ib_recv_comm *rc, unsigned int n, const size_t *sizes) {
  const unsigned int nqps = rc->base.plan.nqps;
  unsigned int needed = 0;
  for (unsigned int i = 0; i < n; i++) needed += (parts_of(&rc->base.plan, sizes[i]) + nqps - 1) / nqps;
  for (unsigned int i = 0; i < nqps; i++)
    if (atomic_load(&rc->base.qps[i].receives) + needed > IB_RECV_DEPTH) return false;
  return true;
}

void ib_two_sided_divide(struct ib_recv_comm *rc, struct ib_cts *cts) {
  cts->parts = parts_of(&rc->base.plan, cts->size);
  cts->first_qp = rc->next_qp;
  rc->next_qp = (cts->first_qp + cts->parts) % rc->base.plan.nqps;
}

static rail_result_t post_receive(struct ib_recv_comm *rc, struct ib_qp *qp, unsigned int arg, const uint8_t *data,
                                  uint64_t size, const struct ib_mhandle *mr) {
  struct ibv_sge sge = {.addr = (uintptr_t)data, .length = (uint32_t)size, .lkey = size ? mr->lkeys[qp->rail] : 0};
  struct ibv_recv_wr wr = {.wr_id = ib_wr_id(IB_WR_BUFFER, qp->index, 1, arg), .sg_list = &sge, .num_sge = size != 0},
                     *bad;
  atomic_fetch_add(&qp->receives, 1); /* first: ib_comm_drain may wait for it in another thread */
  int err = ibv_post_recv(qp->qp, &wr, &bad);
  if (rail_likely(!err)) return RAIL_OK;
  atomic_fetch_sub(&qp->receives, 1);
  return ib_error_post_or_failover(&rc->base, qp, "ibv_post_recv", err);
}

rail_result_t ib_two_sided_receive(struct ib_recv_comm *rc, unsigned int slot, const struct ib_cts *cts,
                                   const void *data) {
  struct ib_buffer *b = &rc->recvs[slot].buffers[cts->index];
  b->parts = b->left = (uint16_t)cts->parts;
  rc->base.ctrl_buf->refused[slot][cts->index] = htole32(rc->next_seq - 1); /* any number but this receive's */
  for (unsigned int i = 0; i < cts->parts; i++) {
    struct ib_qp *qp = &rc->base.qps[(cts->first_qp + i) % rc->base.plan.nqps];
    struct ib_layout layout = ib_equal_part(cts->size, i, cts->parts);
    RAIL_TRY(post_receive(rc, qp, ib_buffer_arg(slot, cts->index, i), (const uint8_t *)data + layout.offset,
                          layout.size, b->mr));
  }
  return RAIL_OK;
}

/* The peer writes there. All that it can make of it is an error of its own message. */
bool ib_two_sided_is_refused(const struct ib_recv_comm *rc, unsigned int slot, unsigned int index) {
  uint32_t seq = __atomic_load_n(&rc->base.ctrl_buf->refused[slot][index], __ATOMIC_RELAXED);
  return le32toh(seq) == latest_in_slot(rc->next_seq - 1, slot);
}

/* ---- the sender: order ------------------------------------------------------------ */

bool ib_two_sided_open(struct ib_comm *comm, const struct ib_remote_ring *remote) {
  struct ib_two_sided *t = calloc(1, sizeof *t);
  if (!t) return false;
  t->remote = *remote;
  t->seq = 1;
  ib_send_comm_of(comm)->two_sided = t;
  return true;
}

void ib_two_sided_close(struct ib_send_comm *sc) {
  free(sc->two_sided);
  sc->two_sided = NULL;
}

/* Each part is a SEND, and all QPs exist. */
static bool is_possible(const struct ib_plan *plan, const struct ib_cts *cts) {
  return cts->parts >= 1 && cts->parts <= IB_MAX_QPS && cts->first_qp < plan->nqps &&
         cts->size <= (uint64_t)cts->parts << plan->max_write_log2;
}

/* The send of the buffer that is next, which is next no longer; NULL: it has not been called. */
static struct ib_send *next_in_turn(struct ib_send_comm *sc) {
  struct ib_two_sided *t = sc->two_sided;
  const unsigned int slot = t->seq % IB_MAX_RECVS, index = t->index;
  struct ib_send *send = t->taken[slot][index];
  if (!send) return NULL;
  t->taken[slot][index] = NULL;
  t->index = index + 1 < send->buffer->count ? index + 1 : 0;
  if (!t->index) t->seq++;
  return send;
}

bool ib_two_sided_take_turn(struct ib_send_comm *sc, struct ib_send *send) {
  const struct ib_cts *cts = send->buffer;
  if (!is_possible(&sc->base.plan, cts)) return false;
  send->nparts = (uint16_t)cts->parts;
  send->first_place = (uint16_t)cts->first_qp;
  sc->two_sided->taken[cts->slot][cts->index] = send;
  for (struct ib_send *next; (next = next_in_turn(sc)) != NULL;) STAILQ_INSERT_TAIL(&sc->unposted, next, link);
  return true;
}

/* ---- the sender: SENDs ------------------------------------------------------------ */

/* The write that tells of a refused message: of the number of its receive, in the word of its buffer, which stays as it
 * is until the buffer's slot is used again. Its receive is the latest in its slot of which a send has had its turn. */
static void make_refusal(const struct ib_send_comm *sc, const struct ib_send *send, const struct ib_qp *qp,
                         struct ibv_send_wr *wr, struct ibv_sge *sge) {
  const struct ib_two_sided *t = sc->two_sided;
  const struct ib_remote_ring *remote = &t->remote;
  struct ib_ctrl_buf *ours = sc->base.ctrl_buf;
  uint32_t *word = &ours->refused[send->buffer->slot][send->buffer->index];
  *word = htole32(latest_in_slot(t->index ? t->seq : t->seq - 1, send->buffer->slot));
  *sge = (struct ibv_sge){.addr = (uintptr_t)word, .length = sizeof *word,
                          .lkey = sc->base.rails[qp->rail].ctrl_mr->lkey};
  *wr = (struct ibv_send_wr){.wr_id = ib_wr_id_of(qp, 1, send->number), .sg_list = sge, .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .wr.rdma = {.remote_addr = remote->addr + ((uintptr_t)word - (uintptr_t)ours),
                                         .rkey = remote->rkeys[qp->remote_rail]}};
}

static rail_result_t post_part(struct ib_send_comm *sc, struct ib_send *send, struct ib_qp *qp, bool refused) {
  struct ibv_send_wr wrs[2], *first = refused ? &wrs[0] : &wrs[1], *bad;
  struct ibv_sge sges[2];
  struct ib_layout layout = ib_equal_part(send->buffer->size, send->next_part, send->nparts);
  uint64_t left = layout.offset < send->length ? send->length - layout.offset : 0;
  if (refused) make_refusal(sc, send, qp, &wrs[0], &sges[0]);
  wrs[0].next = &wrs[1];
  wrs[1] = (struct ibv_send_wr){.wr_id = ib_wr_id_of(qp, 1u + refused, send->number), .opcode = IBV_WR_SEND};
  ib_attach_payload(send, qp, layout.offset, RAIL_MIN(layout.size, left), &wrs[1], &sges[1]);
  wrs[1].send_flags |= IBV_SEND_SIGNALED;
  int err = ibv_post_send(qp->qp, first, &bad);
  if (rail_unlikely(err)) return ib_error_post_or_failover(&sc->base, qp, "ibv_post_send", err);
  qp->posted.end++;
  qp->sq_avail -= 1u + refused;
  send->base.pending++;
  rail_stats_add(&sc->base.stats[IB_COMM_WRITES], 1u + refused);
  return RAIL_OK;
}

rail_result_t ib_two_sided_post(struct ib_send_comm *sc, struct ib_send *send) {
  while (send->next_part < send->nparts) {
    struct ib_qp *qp = &sc->base.qps[(send->first_place + send->next_part) % sc->base.plan.nqps];
    const bool refused = send->base.result != RAIL_OK && send->next_part == 0;
    if (qp->sq_avail < 1u + refused) return RAIL_IN_PROGRESS;
    RAIL_TRY(post_part(sc, send, qp, refused));
    send->next_part++;
  }
  ib_send_all_posted(send);
  return RAIL_OK;
}

bool ib_two_sided_is_posted(const struct ib_send_comm *sc) {
  for (unsigned int i = 0; i < sc->base.plan.nqps; i++)
    if (sc->base.qps[i].posted.first != sc->base.qps[i].posted.end) return true;
  return false;
}
