/* SPDX-License-Identifier: Apache-2.0
 * Queue pairs in ERR, send queues in SQE: what is outstanding ends with a flush. */
#include "emu/emu.h"

void emu_qp_flush(struct emu_qp *qp) {
  struct ibv_wc wc = {.status = IBV_WC_WR_FLUSH_ERR, .vendor_err = 0xf9};
  for (; qp->sq_una < qp->sq_posted; qp->sq_una++) {
    wc.wr_id = qp->sq[qp->sq_una % qp->sq_cap].wr_id;
    emu_complete(qp, false, qp->sq_una, false, &wc);
  }
  qp->sq_next = qp->sq_una;
  qp->next_packet = 0;
  qp->reads_outstanding = 0;
  if (qp->ex.qp_base.state == IBV_QPS_SQE) return;
  if (qp->recv_taken) { /* the message that was coming in */
    qp->recv_taken = false;
    wc.wr_id = qp->recv.wr_id;
    emu_complete(qp, true, qp->recv_place, false, &wc);
  }
  for (; qp->rq.taken < qp->rq.posted; qp->rq.taken++) {
    wc.wr_id = qp->rq.wqes[qp->rq.taken % qp->rq.cap].wr_id;
    emu_complete(qp, true, qp->rq.taken, false, &wc);
  }
}

static void stop(struct emu_qp *qp, enum ibv_qp_state state) {
  qp->ex.qp_base.state = state;
  emu_timer_off(qp, EMU_TIMER_ACK);
  emu_timer_off(qp, EMU_TIMER_PAUSE);
  emu_qp_flush(qp);
}

void emu_sq_error(struct emu_qp *qp) {
  if (qp->ex.qp_base.qp_type == IBV_QPT_RC) emu_qp_error(qp);
  else if (qp->ex.qp_base.state != IBV_QPS_ERR) stop(qp, IBV_QPS_SQE);
}

void emu_qp_error(struct emu_qp *qp) {
  if (qp->ex.qp_base.state == IBV_QPS_ERR) return;
  stop(qp, IBV_QPS_ERR);
  if (qp->srq) emu_raise_qp(qp, IBV_EVENT_QP_LAST_WQE_REACHED);
}

static bool is_overrun(const struct ibv_cq *cq) { return ((const struct emu_cq *)(const void *)cq)->overrun; }

/* They are flushed into CQs that take no completion any more: nobody learns of it but by the events. */
void emu_cqs_overrun(void) {
  for (unsigned int i = 0; i < EMU_QPS; i++) {
    struct emu_qp *qp = emu.qps[i];
    if (!qp || qp->ex.qp_base.state == IBV_QPS_RESET || qp->ex.qp_base.state == IBV_QPS_ERR) continue;
    if (!is_overrun(qp->ex.qp_base.send_cq) && !is_overrun(qp->ex.qp_base.recv_cq)) continue;
    emu_qp_error(qp);
    emu_raise_qp(qp, IBV_EVENT_QP_FATAL);
  }
  emu.overrun = false;
}

void emu_device_fatal(struct emu_device *device) {
  struct ibv_async_event event = {.event_type = IBV_EVENT_DEVICE_FATAL};
  device->fatal = true;
  for (unsigned int i = 0; i < EMU_QPS; i++)
    if (emu.qps[i] && emu.qps[i]->device == device) emu_qp_error(emu.qps[i]);
  emu_raise(device, &event);
}
