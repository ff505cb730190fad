/* SPDX-License-Identifier: Apache-2.0
 *
 * A transition fills attributes from ib_qp_attr and calls modify. Under TRACE it logs them and reads them back, because
 * drivers have silently ignored a service level or a traffic class; a difference is a warning.
 */
#include "plugin/ib/ib_qp.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_verbs.h"

#define HOP_LIMIT 255

static const char *const state_names[] = {
  [IB_QP_NONE] = "NONE", [IB_QP_RESET] = "RESET", [IB_QP_INIT] = "INIT",
  [IB_QP_RTR] = "RTR",   [IB_QP_RTS] = "RTS",     [IB_QP_ERR] = "ERR",
};
_Static_assert(RAIL_COUNT_OF(state_names) == IB_QP_STATES, "a name for each state");

/* ---- lines --------------------------------------------------------------- */

static const char *hint_of(int err, enum ib_qp_state to) {
  switch (err) {
    case ENOMEM: return "the device or the locked memory limit (ulimit -l) has no room for another queue pair";
    case EINVAL:
      return to == IB_QP_INIT ? "does the port have that partition key (NCCL_IB_PKEY)?"
                              : "does the port still have that GID (NCCL_IB_GID_INDEX), and does the driver take that "
                                "MTU, service level (NCCL_IB_SL), timeout (NCCL_IB_TIMEOUT)?";
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
      return "the peer's GID has no route or no neighbour entry from this port: check the addresses, VLAN and MTU of "
             "both interfaces, and NCCL_IB_GID_INDEX";
    case ENODEV:
    case EIO: return "the device is gone or has failed; see dmesg";
    default: return "see dmesg";
  }
}

static rail_result_t fail(const struct ib_qp *qp, const struct ib_port *port, enum ib_qp_state to, int err) {
  const struct ib_qp_attr *p = &qp->attr;
  char gid[IB_GID_TEXT];
  char where[160] = "";
  if (to >= IB_QP_RTR && p->grh)
    snprintf(where, sizeof where, " towards GID %s from GID index %u", ib_gid_text(p->dgid, gid), p->sgid_index);
  else if (to >= IB_QP_RTR) snprintf(where, sizeof where, " towards LID %u", p->dlid);
  RAIL_WARN("RailIB: %s: queue pair %u (0x%x) %s -> %s%s: %s; %s", port->name, qp->index, qp->qp ? qp->qp->qp_num : 0,
            state_names[qp->state], state_names[to], where, strerror(err), hint_of(err, to));
  return RAIL_SYSTEM_ERROR;
}

static void trace(const struct ib_qp *qp, const struct ib_port *port, enum ib_qp_state to) {
  const struct ib_qp_attr *p = &qp->attr;
  char gid[IB_GID_TEXT];
  if (!rail_log_trace_on()) return;
  if (to == IB_QP_RTR)
    RAIL_TRACE(RAIL_SUB_NET,
               "RailIB: %s: queue pair %u (0x%x) INIT -> RTR: to 0x%x, %s %s, LID %u, GID index %u, MTU %u, SL %u, "
               "traffic class %u, first packet 0x%x",
               port->name, qp->index, qp->qp->qp_num, p->dest_qpn, p->grh ? "GID" : "no GRH; GID",
               ib_gid_text(p->dgid, gid), p->dlid, p->sgid_index, 128u << p->mtu, p->sl, p->traffic_class, p->rq_psn);
  else
    RAIL_TRACE(RAIL_SUB_NET, "RailIB: %s: queue pair %u (0x%x) %s -> %s: pkey index %u, timeout %u, retries %u, first "
               "packet 0x%x", port->name, qp->index, qp->qp->qp_num, state_names[qp->state], state_names[to],
               p->pkey_index, p->timeout, p->retry_cnt, p->sq_psn);
}

/* ---- read back ----------------------------------------------------------- */

struct read_back {
  const char *name;
  int mask;
  uint32_t set, is;
};

static void compare(const struct ib_qp *qp, const struct ib_port *port, const struct ibv_qp_attr *set, int mask) {
  struct ibv_qp_attr is;
  struct ibv_qp_init_attr init;
  memset(&is, 0, sizeof is);
  memset(&init, 0, sizeof init);
  if (ib_verbs.query_qp(qp->qp, &is, mask, &init) != 0) return;
  const bool grh = (mask & IBV_QP_AV) && set->ah_attr.is_global;
  const struct read_back rows[] = {
    {"state", IBV_QP_STATE, set->qp_state, is.qp_state},
    {"pkey index", IBV_QP_PKEY_INDEX, set->pkey_index, is.pkey_index},
    {"path MTU", IBV_QP_PATH_MTU, set->path_mtu, is.path_mtu},
    {"peer's queue pair", IBV_QP_DEST_QPN, set->dest_qp_num, is.dest_qp_num},
    {"service level", IBV_QP_AV, set->ah_attr.sl, is.ah_attr.sl},
    {"traffic class", grh ? IBV_QP_AV : 0, set->ah_attr.grh.traffic_class, is.ah_attr.grh.traffic_class},
    {"GID index", grh ? IBV_QP_AV : 0, set->ah_attr.grh.sgid_index, is.ah_attr.grh.sgid_index},
    {"LID", grh ? 0 : IBV_QP_AV, set->ah_attr.dlid, is.ah_attr.dlid},
    {"timeout", IBV_QP_TIMEOUT, set->timeout, is.timeout},
    {"retries", IBV_QP_RETRY_CNT, set->retry_cnt, is.retry_cnt},
    {"retries without receive", IBV_QP_RNR_RETRY, set->rnr_retry, is.rnr_retry},
  };
  for (size_t i = 0; i < RAIL_COUNT_OF(rows); i++)
    if ((mask & rows[i].mask) && rows[i].set != rows[i].is)
      RAIL_WARN("RailIB: %s: queue pair %u (0x%x) in %s: the driver was given %s %u and says %u", port->name, qp->index,
                qp->qp->qp_num, state_names[qp->state], rows[i].name, rows[i].set, rows[i].is);
}

/* ---- transitions --------------------------------------------------------- */

/* A modify that timed out (address resolution of RoCE) may work a little later. */
static bool try_again(struct ib_qp *qp, int err) {
  if (err != ETIMEDOUT && !ib_params.modify_retry_all) return false;
  if (qp->modify_tries >= (uint32_t)ib_params.modify_retries) return false;
  qp->modify_tries++;
  qp->modify_at = rail_deadline_in_ms((uint64_t)ib_params.modify_retry_ms * qp->modify_tries);
  return true;
}

bool ib_qp_modify_waits(const struct ib_qp *qp) { return qp->modify_tries && !rail_deadline_passed(qp->modify_at); }

rail_result_t ib_qp_modify(struct ib_qp *qp, const struct ib_port *port, enum ib_qp_state to, struct ibv_qp_attr *attr,
                           int mask) {
  if (ib_qp_modify_waits(qp)) return RAIL_IN_PROGRESS;
  trace(qp, port, to);
  int err = ib_verbs.modify_qp(qp->qp, attr, mask);
  if (err < 0) err = errno; /* some providers return -1 and set errno */
  if (err && try_again(qp, err)) {
    RAIL_TRACE(RAIL_SUB_NET, "RailIB: %s: queue pair %u: %s; try %u of %lld again in %lld ms (NCCL_IB_MQP_RETRY_CNT, "
               "_SLEEP_MSEC)", port->name, qp->index, strerror(err), qp->modify_tries,
               (long long)ib_params.modify_retries, (long long)ib_params.modify_retry_ms * qp->modify_tries);
    return RAIL_IN_PROGRESS;
  }
  if (err) return fail(qp, port, to, err);
  qp->modify_tries = 0;
  qp->state = to;
  if (rail_log_trace_on()) compare(qp, port, attr, mask);
  return RAIL_OK;
}

/* The sizes may be the reason. Some providers (bnxt_re) then leave errno unset. */
static bool asked_too_much(int err) { return err == 0 || err == EINVAL || err == ENOMEM || err == EOPNOTSUPP; }

/* No device reports its inline limit: try with less until creation succeeds. */
static struct ibv_qp *create_with_inline(struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
  uint32_t depth = attr->cap.max_send_wr, recv = attr->cap.max_recv_wr;
  for (uint32_t bytes = attr->cap.max_inline_data;; bytes /= 2) {
    attr->cap = (struct ibv_qp_cap){depth, recv, 1, 1, bytes};
    errno = 0;
    struct ibv_qp *qp = ib_verbs.create_qp(pd, attr);
    if (qp || bytes == 0 || !asked_too_much(errno)) return qp;
  }
}

rail_result_t ib_qp_create(struct ib_qp *qp, const struct ib_port *port, struct ibv_cq *cq,
                           const struct ib_qp_sizes *sizes, void *context) {
  struct ibv_qp_init_attr attr = {
    .qp_context = context,
    .send_cq = cq,
    .recv_cq = cq,
    .cap = {.max_send_wr = sizes->send_depth, .max_recv_wr = sizes->recv_depth, .max_inline_data = sizes->inline_bytes},
    .qp_type = IBV_QPT_RC,
    .sq_sig_all = 0,
  };
  qp->qp = create_with_inline(port->hca->pd, &attr);
  if (!qp->qp) {
    int err = errno;
    RAIL_WARN("RailIB: %s: no queue pair of %u send and %u receive requests: %s; %s", port->name, sizes->send_depth,
              sizes->recv_depth, err ? strerror(err) : "the driver gives no reason", hint_of(err, IB_QP_RESET));
    return RAIL_SYSTEM_ERROR;
  }
  atomic_store(&qp->event_qp, qp->qp);
  qp->state = IB_QP_RESET;
  qp->modify_tries = 0; /* an earlier one in its place may have used them up */
  qp->sizes = *sizes;
  qp->sq_avail = sizes->send_depth;
  /* A provider may report inline room that was not asked for: that does not count. */
  qp->max_inline = (uint16_t)(sizes->inline_bytes ? RAIL_MIN(attr.cap.max_inline_data, UINT16_MAX) : 0);
  return RAIL_OK;
}

rail_result_t ib_qp_to_init(struct ib_qp *qp, const struct ib_port *port, int access) {
  struct ibv_qp_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.qp_state = IBV_QPS_INIT;
  attr.pkey_index = qp->attr.pkey_index;
  attr.port_num = qp->attr.port;
  attr.qp_access_flags = (unsigned int)access;
  return ib_qp_modify(qp, port, IB_QP_INIT, &attr,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

/* Uses what the peer offered; a driver without ECE has offered none. */
static rail_result_t set_ece(struct ib_qp *qp, const struct ib_port *port) {
  if (!qp->attr.use_ece || !ib_verbs.set_ece) return RAIL_OK;
  int err = ib_verbs.set_ece(qp->qp, &qp->attr.ece);
  if (err < 0) err = errno;
  if (err == 0 || err == EOPNOTSUPP || err == ENOSYS) return RAIL_OK;
  RAIL_WARN("RailIB: %s: queue pair %u (0x%x): the peer's enhanced connection (vendor 0x%x, options 0x%x) cannot be "
            "set: %s; NCCL_IB_ECE_ENABLE=0 on one side does without", port->name, qp->index, qp->qp->qp_num,
            qp->attr.ece.vendor_id, qp->attr.ece.options, strerror(err));
  return RAIL_SYSTEM_ERROR;
}

rail_result_t ib_qp_to_rtr(struct ib_qp *qp, const struct ib_port *port) {
  const struct ib_qp_attr *p = &qp->attr;
  struct ibv_qp_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = (enum ibv_mtu)p->mtu;
  attr.dest_qp_num = p->dest_qpn;
  attr.rq_psn = p->rq_psn;
  attr.max_dest_rd_atomic = IB_RD_ATOMIC;
  attr.min_rnr_timer = IB_MIN_RNR_TIMER;
  attr.ah_attr.port_num = p->port; /* the local port that packets leave from */
  attr.ah_attr.dlid = p->dlid;
  attr.ah_attr.sl = p->sl;
  if (p->grh) {
    attr.ah_attr.is_global = 1;
    memcpy(attr.ah_attr.grh.dgid.raw, p->dgid, sizeof attr.ah_attr.grh.dgid.raw);
    attr.ah_attr.grh.sgid_index = p->sgid_index;
    attr.ah_attr.grh.hop_limit = HOP_LIMIT;
    attr.ah_attr.grh.traffic_class = p->traffic_class;
  }
  if (!qp->modify_tries) RAIL_TRY(set_ece(qp, port));
  return ib_qp_modify(qp, port, IB_QP_RTR, &attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

rail_result_t ib_qp_to_rts(struct ib_qp *qp, const struct ib_port *port) {
  const struct ib_qp_attr *p = &qp->attr;
  struct ibv_qp_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = p->timeout;
  attr.retry_cnt = p->retry_cnt;
  attr.rnr_retry = IB_RNR_RETRY;
  attr.sq_psn = p->sq_psn;
  attr.max_rd_atomic = IB_RD_ATOMIC;
  return ib_qp_modify(qp, port, IB_QP_RTS, &attr,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                        IBV_QP_MAX_QP_RD_ATOMIC);
}

bool ib_qp_query_ece(const struct ib_qp *qp, struct ibv_ece *ece) {
  memset(ece, 0, sizeof *ece);
  return ib_verbs.query_ece && ib_verbs.query_ece(qp->qp, ece) == 0;
}

void ib_qp_to_err(struct ib_qp *qp) {
  struct ibv_qp_attr attr;
  if (!qp->qp || qp->state == IB_QP_RESET || qp->state == IB_QP_ERR) return;
  memset(&attr, 0, sizeof attr);
  attr.qp_state = IBV_QPS_ERR;
  int err = ib_verbs.modify_qp(qp->qp, &attr, IBV_QP_STATE);
  qp->state = IB_QP_ERR;
  if (err < 0) err = errno;
  if (err) RAIL_TRACE(RAIL_SUB_NET, "RailIB: queue pair 0x%x -> ERR: %s", qp->qp->qp_num, strerror(err));
}

void ib_qp_destroy(struct ib_qp *qp) {
  if (!qp->qp) return;
  int err = ib_verbs.destroy_qp(qp->qp);
  if (err) RAIL_TRACE(RAIL_SUB_NET, "RailIB: queue pair not destroyed: %s", strerror(err < 0 ? errno : err));
  atomic_store(&qp->event_qp, NULL);
  qp->qp = NULL;
  qp->state = IB_QP_NONE;
}

/* ---- time limits ------------------------------------------------------------ */

double ib_qp_retry_s(unsigned int timeout, unsigned int retry_cnt) {
  return timeout ? (double)(IB_ACK_NS << (timeout & 31)) * 1e-9 * (double)(retry_cnt + 1) : 0;
}

uint64_t ib_qp_limit_ms(const struct ib_qp_attr *attr) {
  if (!attr->timeout) return 0;
  return (uint64_t)(IB_ACK_TOLERANCE * ib_qp_retry_s(attr->timeout, attr->retry_cnt) * 1000) + IB_GRACE_MS;
}
