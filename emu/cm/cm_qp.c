/* SPDX-License-Identifier: Apache-2.0
 * Queue pairs of an id: made with it, and moved through their states as its connection goes. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <string.h>

#include "emu/cm/cm.h"
#include "emu/rail_emu.h"

/* ---- attributes of a state ----------------------------------------------------- */

static void to_init(const struct cm_id *id, struct ibv_qp_attr *a, int *mask) {
  a->port_num = id->place.port;
  *mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  if (id->id.qp_type == IBV_QPT_UD) {
    a->qkey = id->qkey;
    *mask |= IBV_QP_QKEY;
    return;
  }
  a->qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  if (id->responder_resources) a->qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  *mask |= IBV_QP_ACCESS_FLAGS;
}

static struct ibv_ah_attr path_to_peer(const struct cm_id *id) {
  return (struct ibv_ah_attr){.dlid = id->peer.lid, .port_num = id->place.port, .is_global = 1,
                              .grh = {.dgid = id->peer.gid, .sgid_index = (uint8_t)id->place.gid_index,
                                      .hop_limit = 64, .traffic_class = id->tos}};
}

static void to_rtr(const struct cm_id *id, struct ibv_qp_attr *a, int *mask) {
  *mask = IBV_QP_STATE;
  if (id->id.qp_type == IBV_QPT_UD) return;
  uint8_t own = (uint8_t)id->place.attr.active_mtu;
  a->ah_attr = path_to_peer(id);
  a->path_mtu = (enum ibv_mtu)(id->peer.mtu && id->peer.mtu < own ? id->peer.mtu : own);
  a->dest_qp_num = id->peer.qpn;
  a->rq_psn = id->peer.psn & 0xffffff;
  *mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (id->id.qp_type != IBV_QPT_RC) return;
  a->max_dest_rd_atomic = id->responder_resources;
  a->min_rnr_timer = 0; /* 655 ms, as Linux' CM has it */
  *mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
}

static void to_rts(const struct cm_id *id, struct ibv_qp_attr *a, int *mask) {
  a->sq_psn = id->psn;
  *mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (id->id.qp_type != IBV_QPT_RC) return;
  a->timeout = id->ack_timeout;
  a->retry_cnt = id->retry_count;
  a->rnr_retry = id->rnr_retry_count;
  a->max_rd_atomic = id->initiator_depth;
  *mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
}

int cm_qp_attr(const struct cm_id *id, struct ibv_qp_attr *a, int *mask) {
  enum ibv_qp_state state = a->qp_state;
  if (!id->place.device) return ENODEV;
  memset(a, 0, sizeof *a);
  a->qp_state = state;
  switch (state) {
    case IBV_QPS_INIT: to_init(id, a, mask); return 0;
    case IBV_QPS_RTR: to_rtr(id, a, mask); return 0;
    case IBV_QPS_RTS: to_rts(id, a, mask); return 0;
    default: return EINVAL;
  }
}

int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *attr, int *mask) {
  pthread_mutex_lock(&cm.lock);
  int err = cm_qp_attr(cm_id_of(id), attr, mask);
  pthread_mutex_unlock(&cm.lock);
  return cm_result(err);
}

struct ibv_qp *cm_qp_of(const struct cm_id *id) {
  bool by_number = !id->id.qp && id->place.device->context->device->transport_type == IBV_TRANSPORT_IWARP;
  return by_number ? rail_emu_qp(id->qpn) : id->id.qp;
}

static int move(const struct cm_id *id, enum ibv_qp_state state) {
  struct ibv_qp_attr a = {.qp_state = state};
  int mask, err = cm_qp_attr(id, &a, &mask);
  return err ? err : ibv_modify_qp(cm_qp_of(id), &a, mask);
}

/* INIT once more, of a queue pair that the id made: what the peer may do is known only now. */
int cm_qp_connect(struct cm_id *id) {
  if (!cm_qp_of(id) || id->id.qp_type == IBV_QPT_UD) return 0;
  int err = id->id.qp ? move(id, IBV_QPS_INIT) : 0;
  if (!err) err = move(id, IBV_QPS_RTR);
  return err ? err : move(id, IBV_QPS_RTS);
}

void cm_qp_error(struct cm_id *id) {
  struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
  if (id->id.qp && id->id.qp_type != IBV_QPT_UD) (void)ibv_modify_qp(id->id.qp, &a, IBV_QP_STATE);
}

/* ---- made, destroyed --------------------------------------------------------------- */

static void destroy_cqs(struct rdma_cm_id *id) {
  if (id->send_cq) ibv_destroy_cq(id->send_cq);
  if (id->send_cq_channel) ibv_destroy_comp_channel(id->send_cq_channel);
  if (id->recv_cq) ibv_destroy_cq(id->recv_cq);
  if (id->recv_cq_channel) ibv_destroy_comp_channel(id->recv_cq_channel);
  id->send_cq = id->recv_cq = NULL;
  id->send_cq_channel = id->recv_cq_channel = NULL;
}

static bool create_cqs(struct rdma_cm_id *id, uint32_t sends, uint32_t recvs) {
  id->send_cq_channel = ibv_create_comp_channel(id->verbs);
  id->recv_cq_channel = ibv_create_comp_channel(id->verbs);
  if (id->send_cq_channel)
    id->send_cq = ibv_create_cq(id->verbs, sends ? (int)sends : 1, id, id->send_cq_channel, 0);
  if (id->recv_cq_channel)
    id->recv_cq = ibv_create_cq(id->verbs, recvs ? (int)recvs : 1, id, id->recv_cq_channel, 0);
  if (id->send_cq && id->recv_cq) return true;
  destroy_cqs(id);
  return false;
}

static struct ibv_pd *get_pd(struct cm_id *id) {
  struct cm_device *d = id->place.device;
  pthread_mutex_lock(&cm.lock);
  if (!d->pd) d->pd = ibv_alloc_pd(d->context);
  if (d->pd) d->pd_users++;
  id->own_pd = d->pd;
  pthread_mutex_unlock(&cm.lock);
  return d->pd;
}

static void put_pd(struct cm_id *id) {
  struct cm_device *d = id->place.device;
  if (!id->own_pd) return;
  pthread_mutex_lock(&cm.lock);
  id->own_pd = false;
  if (--d->pd_users == 0) {
    ibv_dealloc_pd(d->pd);
    d->pd = NULL;
  }
  pthread_mutex_unlock(&cm.lock);
}

/* Up to the state in which it can be used before the connection is there. 0 or errno. */
static int make_qp(struct cm_id *id, struct ibv_qp_init_attr_ex *attr) {
  struct rdma_cm_id *ibv = &id->id;
  if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD)) {
    attr->comp_mask |= IBV_QP_INIT_ATTR_PD;
    attr->pd = ibv->pd ? ibv->pd : get_pd(id);
    if (!attr->pd) return errno;
  }
  if (attr->pd->context != ibv->verbs) return EINVAL;
  if (!attr->send_cq && !attr->recv_cq && !ibv->send_cq && !ibv->recv_cq) {
    if (!create_cqs(ibv, attr->cap.max_send_wr, attr->cap.max_recv_wr)) return errno;
    id->own_cqs = true;
  }
  if (!attr->send_cq) attr->send_cq = ibv->send_cq;
  if (!attr->recv_cq) attr->recv_cq = ibv->recv_cq;
  if (!attr->srq) attr->srq = ibv->srq;
  ibv->qp_type = attr->qp_type;
  ibv->qp = ibv_create_qp_ex(ibv->verbs, attr);
  if (!ibv->qp) return errno;
  ibv->pd = attr->pd;
  int err = move(id, IBV_QPS_INIT);
  if (!err && attr->qp_type == IBV_QPT_UD) err = move(id, IBV_QPS_RTR);
  if (!err && attr->qp_type == IBV_QPT_UD) err = move(id, IBV_QPS_RTS);
  return err;
}

/* What fails leaves the id and the caller's attributes as they were. */
int rdma_create_qp_ex(struct rdma_cm_id *ibv, struct ibv_qp_init_attr_ex *attr) {
  if (!ibv->verbs || ibv->qp) return cm_result(EINVAL);
  struct ibv_qp_init_attr_ex filled = *attr;
  struct ibv_pd *pd = ibv->pd;
  int err = make_qp(cm_id_of(ibv), &filled);
  if (err) {
    rdma_destroy_qp(ibv);
    ibv->pd = pd;
    return cm_result(err);
  }
  *attr = filled;
  return 0;
}

int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
  struct ibv_qp_init_attr_ex attr = {0};
  if (!init) return cm_result(EINVAL);
  memcpy(&attr, init, sizeof *init); /* the same fields in the same places */
  attr.comp_mask = pd ? IBV_QP_INIT_ATTR_PD : 0;
  attr.pd = pd;
  int result = rdma_create_qp_ex(id, &attr);
  if (result == 0) init->cap = attr.cap;
  return result;
}

/* Also of one that was made in part. */
void rdma_destroy_qp(struct rdma_cm_id *ibv) {
  struct cm_id *id = cm_id_of(ibv);
  if (ibv->qp) ibv_destroy_qp(ibv->qp);
  ibv->qp = NULL;
  if (id->own_cqs) destroy_cqs(ibv);
  id->own_cqs = false;
  if (id->own_pd) ibv->pd = NULL;
  put_pd(id);
}
