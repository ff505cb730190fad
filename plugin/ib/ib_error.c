/* SPDX-License-Identifier: Apache-2.0
 * What is said of failures, mostly by the line that ends the connection. Called after a failure only. */
#include "plugin/ib/ib_progress.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/ib/ib_failover.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_stats.h"

#define VENDOR_MELLANOX 0x02c9u

/* ---- tables ------------------------------------------------------------------ */

#define BUG "this should not happen: please report it with this line"

static const struct ib_error_row rows[] = {
  {IBV_WC_SUCCESS, RAIL_OK, "SUCCESS", "no error", "nothing"},
  {IBV_WC_LOC_LEN_ERR, RAIL_INTERNAL_ERROR, "LOC_LEN_ERR",
   "a message did not fit the memory or the size that its work request named",
   "do both sides run the same version? Else " BUG},
  {IBV_WC_LOC_QP_OP_ERR, RAIL_SYSTEM_ERROR, "LOC_QP_OP_ERR", "this side's HCA could not carry out a work request",
   "dmesg and the firmware's version; else " BUG},
  {IBV_WC_LOC_EEC_OP_ERR, RAIL_SYSTEM_ERROR, "LOC_EEC_OP_ERR",
   "this side's HCA met an inconsistency of an end-to-end context, which is not used here",
   "the HCA's driver and firmware"},
  {IBV_WC_LOC_PROT_ERR, RAIL_SYSTEM_ERROR, "LOC_PROT_ERR",
   "this side's HCA may not touch the buffer of a work request: it is not, or no longer, registered",
   "was the buffer freed or deregistered while it was in use? With GPU memory: ACS and IOMMU off for peer-to-peer, "
   "BAR1 large enough, nvidia_peermem or dma-buf working"},
  {IBV_WC_WR_FLUSH_ERR, RAIL_REMOTE_ERROR, "WR_FLUSH_ERR",
   "the queue pair stopped before the transfer was done, without saying why",
   "the other side's log and this one's earlier lines: the error that came first is the cause"},
  {IBV_WC_MW_BIND_ERR, RAIL_INTERNAL_ERROR, "MW_BIND_ERR",
   "a memory window was bound wrongly; none is used here", BUG},
  {IBV_WC_BAD_RESP_ERR, RAIL_REMOTE_ERROR, "BAD_RESP_ERR", "the peer's HCA answered something unexpected",
   "packets altered or mixed up on the way, or a driver or firmware bug at the peer; are two hosts using one address?"},
  {IBV_WC_LOC_ACCESS_ERR, RAIL_SYSTEM_ERROR, "LOC_ACCESS_ERR",
   "an incoming write met local memory that its registration does not allow", "dmesg; else " BUG},
  {IBV_WC_REM_INV_REQ_ERR, RAIL_REMOTE_ERROR, "REM_INV_REQ_ERR", "the peer's HCA refused a request as invalid",
   "versions of both sides; drivers and firmware that differ between the hosts (NCCL_IB_ECE_ENABLE=0 helps where "
   "enhanced connections are the reason)"},
  {IBV_WC_REM_ACCESS_ERR, RAIL_REMOTE_ERROR, "REM_ACCESS_ERR",
   "the peer's HCA did not allow access to the buffer that the peer named",
   "the peer's log: did it deregister the buffer or abort while it was in use? With GPU memory: its nvidia_peermem or "
   "dma-buf, ACS"},
  {IBV_WC_REM_OP_ERR, RAIL_REMOTE_ERROR, "REM_OP_ERR", "the peer's HCA could not carry out the request",
   "dmesg and firmware at the peer; with GPU memory: its peer-to-peer path (ACS, IOMMU)"},
  {IBV_WC_RETRY_EXC_ERR, RAIL_REMOTE_ERROR, "RETRY_EXC_ERR",
   "no acknowledgement came back though all retries were made",
   "is the peer's host up and its port too? Can the two GIDs reach each other (ping -I, rping, ib_write_bw)? RoCE: UDP "
   "port 4791 open, same GID type, PFC or ECN set up, no ARP flux; see docs/roce.md"},
  {IBV_WC_RNR_RETRY_EXC_ERR, RAIL_REMOTE_ERROR, "RNR_RETRY_EXC_ERR",
   "the peer had no receive posted for too long", "is the peer's process overrun or stopped? Else " BUG},
  {IBV_WC_LOC_RDD_VIOL_ERR, RAIL_SYSTEM_ERROR, "LOC_RDD_VIOL_ERR",
   "this side's reliable datagram domains do not match; none are used here", "the HCA's driver and firmware"},
  {IBV_WC_REM_INV_RD_REQ_ERR, RAIL_REMOTE_ERROR, "REM_INV_RD_REQ_ERR",
   "the peer refused a reliable datagram; none are used here", "drivers and firmware of both sides"},
  {IBV_WC_REM_ABORT_ERR, RAIL_REMOTE_ERROR, "REM_ABORT_ERR", "the peer's HCA aborted the operation",
   "dmesg and firmware at the peer"},
  {IBV_WC_INV_EECN_ERR, RAIL_SYSTEM_ERROR, "INV_EECN_ERR",
   "an end-to-end context is invalid; none are used here",
   "the HCA's driver and firmware"},
  {IBV_WC_INV_EEC_STATE_ERR, RAIL_SYSTEM_ERROR, "INV_EEC_STATE_ERR",
   "an end-to-end context is in a wrong state; none are used here", "the HCA's driver and firmware"},
  {IBV_WC_FATAL_ERR, RAIL_SYSTEM_ERROR, "FATAL_ERR", "this side's HCA failed", "dmesg; the HCA may need a reset"},
  {IBV_WC_RESP_TIMEOUT_ERR, RAIL_REMOTE_ERROR, "RESP_TIMEOUT_ERR", "the peer's HCA did not respond in time",
   "the path to the peer, as for RETRY_EXC_ERR"},
  {IBV_WC_GENERAL_ERR, RAIL_SYSTEM_ERROR, "GENERAL_ERR", "the HCA reports an error of no particular kind",
   "the vendor error, dmesg, driver and firmware"},
  {IBV_WC_TM_ERR, RAIL_INTERNAL_ERROR, "TM_ERR", "tag matching of the HCA failed; it is not used here", BUG},
  {IBV_WC_TM_RNDV_INCOMPLETE, RAIL_INTERNAL_ERROR, "TM_RNDV_INCOMPLETE",
   "a rendezvous of the HCA's tag matching is incomplete; it is not used here", BUG},
};

const struct ib_error_row *ib_error_row(enum ibv_wc_status status) {
  static const struct ib_error_row unknown = {
    IBV_WC_GENERAL_ERR, RAIL_SYSTEM_ERROR, "unknown status",
    "the driver reports a status that verbs does not know",
    "the vendor error, dmesg; is libibverbs newer than this plugin?"};
  for (size_t i = 0; i < RAIL_COUNT_OF(rows); i++)
    if (rows[i].status == status) return &rows[i];
  return &unknown;
}

/* NVIDIA publishes no list; these are what mlx5 devices are seen to report, each with the status beside it
 * (docs/rdma-errors.md names where). */
const char *ib_error_vendor(uint32_t vendor_id, uint32_t vendor_err) {
  static const struct { uint32_t code; const char *words; } mlx5[] = {
    {0x51, "memory key or address of a local buffer"},
    {0x81, "transport retries used up"},
    {0x88, "access denied by the remote HCA"},
    {0x89, "operation failed in the remote HCA"},
    {0x8a, "request invalid for the remote HCA"},
    {0xf9, "flushed after an earlier error"},
  };
  for (size_t i = 0; vendor_id == VENDOR_MELLANOX && i < RAIL_COUNT_OF(mlx5); i++)
    if (mlx5[i].code == vendor_err) return mlx5[i].words;
  return NULL;
}

/* ---- pieces of the line -------------------------------------------------------- */

#define PIECE 256

/* Bytes of the message whose send request a wr_id names; 0 if there is none. */
static uint64_t size_of_send(const struct ib_comm *comm, unsigned int arg) {
  const struct ib_send_comm *sc = rail_container_of(comm, const struct ib_send_comm, base);
  return comm->sender && arg < IB_MAX_SENDS ? sc->sends[arg].size : 0;
}

static const char *operation(const struct ib_comm *comm, const struct ibv_wc *wc, char text[PIECE]) {
  uint64_t size;
  switch (ib_wr_kind(wc->wr_id)) {
    case IB_WR_SEND:
      size = size_of_send(comm, ib_wr_arg(wc->wr_id));
      snprintf(text, PIECE, "isend of %llu bytes to", (unsigned long long)size);
      return text;
    case IB_WR_BUFFER:
    case IB_WR_RECV: return "irecv from";
    case IB_WR_PROBE:
    case IB_WR_CTS: return "irecv (CTS write) from";
    case IB_WR_FLUSH: return "iflush of what came from";
    case IB_WR_VERIFY: return "the connection's first write to";
  }
  return "a transfer with";
}

/* By wr_id, because QP numbers are unique only within an HCA. A flush QP is not among the comm's. */
static const struct ib_qp *find_qp(const struct ib_comm *comm, const struct ibv_wc *wc) {
  unsigned int i = ib_wr_qp(wc->wr_id);
  return comm->qps && ib_wr_kind(wc->wr_id) != IB_WR_FLUSH && i < comm->plan.nqps ? &comm->qps[i] : NULL;
}

/* Flush QPs are counted by rail. */
static const struct ib_port *wc_port(const struct ib_comm *comm, const struct ibv_wc *wc) {
  const struct ib_qp *qp = find_qp(comm, wc);
  unsigned int rail = qp ? qp->rail : ib_wr_kind(wc->wr_id) == IB_WR_FLUSH ? ib_wr_qp(wc->wr_id) : 0;
  return comm->rails[rail < comm->nrails ? rail : 0].port;
}

static const struct ib_rail *qp_rail(const struct ib_comm *comm, const struct ib_qp *qp) {
  return &comm->rails[qp && qp->rail < comm->nrails ? qp->rail : 0];
}

/* "GID 10.0.0.1 to 10.0.0.2, QP 0x11 to 0x12". */
static const char *ends(const struct ib_comm *comm, const struct ib_qp *qp, uint32_t qp_num, char text[PIECE]) {
  char mine[IB_GID_TEXT], theirs[IB_GID_TEXT], lid[32] = "";
  if (!qp) {
    snprintf(text, PIECE, "QP %#x, connected to itself", qp_num);
    return text;
  }
  const struct ib_rail *rail = qp_rail(comm, qp);
  const uint8_t *gid = qp->remote_rail < comm->nremote_rails ? comm->remote_rails[qp->remote_rail].gid : qp->attr.dgid;
  if (!ib_port_is_ethernet(rail->port)) snprintf(lid, sizeof lid, ", LID %u", qp->attr.dlid);
  snprintf(text, PIECE, "GID %s to %s%s, QP %#x to %#x", ib_gid_text(rail->gid, mine), ib_gid_text(gid, theirs), lid,
           qp_num, qp->attr.dest_qpn);
  return text;
}

static const char *vendor(const struct ib_port *port, uint32_t vendor_err, char text[PIECE]) {
  const char *words = ib_error_vendor(port->hca->attr.vendor_id, vendor_err);
  snprintf(text, PIECE, "vendor error %#x%s%s", vendor_err, words ? ": " : "", words ? words : "");
  return text;
}

/* How long the HCA retries: the specification's minimum; devices may take up to four times as long. */
static const char *budget(const struct ib_qp *qp, char text[PIECE]) {
  if (!qp) return "";
  unsigned int timeout = qp->attr.timeout, retries = qp->attr.retry_cnt;
  if (timeout)
    snprintf(text, PIECE, "retries: %u after %.3g s each, about %.1f s in all (timeout %u, retry_cnt %u); ", retries,
             ib_qp_retry_s(timeout, 0), ib_qp_retry_s(timeout, retries), timeout, retries);
  else
    snprintf(text, PIECE, "retries: no time limit (timeout 0); ");
  return text;
}

static const char *last_progress(const struct ib_comm *comm, char text[PIECE]) {
  uint64_t then = comm->last_progress, now = rail_now_ns();
  if (then) snprintf(text, PIECE, "last progress %.1f s ago", then < now ? (double)(now - then) / 1e9 : 0.0);
  else snprintf(text, PIECE, "nothing ever completed");
  return text;
}

static const char *port_state(const struct ib_port *port, char text[PIECE]) {
  snprintf(text, PIECE, "port %s, went down %llu times",
           atomic_load(&port->faults) & IB_PORT_DOWN ? "is DOWN" : "is up",
           (unsigned long long)atomic_load(&port->flaps));
  return text;
}

/* What had failed before, and was not the end. */
static const char *lost_before(const struct ib_comm *comm, char text[PIECE]) {
  size_t used = 0;
  text[0] = 0;
  for (unsigned int i = 0; comm->failover && i < comm->plan.nqps && used < PIECE; i++)
    if (comm->failover->qps[i].state != IB_FAILOVER_UP)
      used += (size_t)snprintf(text + used, PIECE - used, "%s%u of port %s",
                               used ? ", " : "; queue pairs lost before: ", i,
                               comm->rails[comm->qps[i].rail].port->name);
  return text;
}

static void count_error(const struct ib_port *port) {
  if (port->stats) rail_stats_add_shared(&port->stats[IB_DEVICE_ERRORS], 1);
}

/* ---- what ends a connection ------------------------------------------------------ */

rail_result_t ib_error_completion(struct ib_comm *comm, const struct ibv_wc *wc) {
  const struct ib_error_row *row = ib_error_row(wc->status);
  const struct ib_qp *qp = find_qp(comm, wc);
  const struct ib_port *port = wc_port(comm, wc);
  char op[PIECE], way[PIECE], vend[PIECE], tries[PIECE], last[PIECE], state[PIECE], lost[PIECE];
  if (rail_first_error(&comm->error) != RAIL_OK) return rail_first_error(&comm->error);
  count_error(port);
  RAIL_WARN("RailIB: %s %s over %s (%s): %s (IBV_WC_%s, status %d, %s); %s%s; %s%s; check: %s",
            operation(comm, wc, op), comm->peer_text, port->name, ends(comm, qp, wc->qp_num, way), row->what,
            row->name, (int)wc->status, vendor(port, wc->vendor_err, vend), budget(qp, tries),
            last_progress(comm, last), port_state(port, state), lost_before(comm, lost), row->check);
  return ib_comm_fail(comm, row->result);
}

struct fault {
  uint32_t bit; /* IB_COMM_*; 0: another file has found it */
  rail_result_t result;
  const char *what, *check;
};

/* The most specific one first. */
static const struct fault fault_rows[] = {
  {IB_COMM_DEVICE_FATAL, RAIL_SYSTEM_ERROR, "the HCA failed (IBV_EVENT_DEVICE_FATAL)",
   "dmesg; the HCA may need a reset"},
  {IB_COMM_CQ_ERROR, RAIL_SYSTEM_ERROR, "completions were lost (IBV_EVENT_CQ_ERR)",
   "dmesg, driver and firmware; else " BUG},
  {IB_COMM_QP_FATAL, RAIL_SYSTEM_ERROR, "a queue pair failed (asynchronous event; an earlier line has it)",
   "the other side's log, dmesg, driver and firmware"},
  {IB_COMM_PEER_LOST, RAIL_REMOTE_ERROR, "the peer's process or host is gone: the oob connection broke",
   "the peer's log; was it killed (dmesg: out of memory)?"},
  {IB_COMM_HOST_SILENT, RAIL_REMOTE_ERROR, "the peer's host has not answered for RAIL_IB_DEADLINE",
   "is the host up, is the network of the oob connection (NCCL_SOCKET_IFNAME) cut?"},
  {IB_COMM_PEER_SILENT, RAIL_REMOTE_ERROR, "the peer's process has not answered for RAIL_IB_PEER_TIMEOUT",
   "is it stopped (SIGSTOP, debugger, checkpoint), is its host swapping?"},
  {IB_COMM_STALLED, RAIL_SYSTEM_ERROR, "the HCA has lost a work request: it has not completed, though all retries "
   "are over", "dmesg, driver and firmware; did a port of this host go down?"},
  {IB_COMM_PEER_CLOSED, RAIL_REMOTE_ERROR, "the peer closed the connection while requests were outstanding",
   "the peer's log: did it abort?"},
};

static const struct fault all_lost = {
  .result = RAIL_REMOTE_ERROR, .what = "the peer has given up the last queue pair, or its connection has failed",
  .check = "the other side's log"};

static const struct fault send_stalled = { /* with the SEND protocol */
  .result = RAIL_SYSTEM_ERROR,
  .what = "the HCA has lost a work request, or the peer has not posted what it announced: it has not completed, though "
          "all retries are over",
  .check = "dmesg, driver and firmware; did a port of this host go down? Is the peer of another release?"};

static rail_result_t fail_by(struct ib_comm *comm, const struct fault *fault) {
  char last[PIECE], state[PIECE], lost[PIECE];
  if (rail_first_error(&comm->error) != RAIL_OK) return rail_first_error(&comm->error);
  const struct ib_port *port = comm->rails[0].port;
  count_error(port);
  RAIL_WARN("RailIB: %s %s over %s: %s; %u requests outstanding; %s; %s%s; check: %s",
            comm->sender ? "sending to" : "receiving from", comm->peer_text, comm->device->name, fault->what,
            atomic_load(&comm->outstanding), last_progress(comm, last), port_state(port, state),
            lost_before(comm, lost), fault->check);
  return ib_comm_fail(comm, fault->result);
}

rail_result_t ib_error_faults(struct ib_comm *comm, uint32_t faults) {
  for (size_t i = 0; i < RAIL_COUNT_OF(fault_rows); i++)
    if (faults & fault_rows[i].bit) return fail_by(comm, &fault_rows[i]);
  return rail_first_error(&comm->error);
}

rail_result_t ib_error_all_lost(struct ib_comm *comm) { return fail_by(comm, &all_lost); }

rail_result_t ib_error_stalled(struct ib_comm *comm) {
  if (comm->sender && comm->plan.two_sided) return fail_by(comm, &send_stalled);
  return ib_error_faults(comm, IB_COMM_STALLED);
}

/* `qp` is NULL where `what` polls a CQ. The reason for a failure to post is always on this host. */
rail_result_t ib_error_post(struct ib_comm *comm, const struct ib_qp *qp, const char *what, int err) {
  char way[PIECE], state[PIECE], lost[PIECE];
  if (rail_first_error(&comm->error) != RAIL_OK) return rail_first_error(&comm->error);
  const struct ib_port *port = qp_rail(comm, qp)->port;
  count_error(port);
  RAIL_WARN("RailIB: %s %s over %s%s%s%s: %s: %s; %s%s; check: dmesg, driver and firmware; else " BUG,
            comm->sender ? "sending to" : "receiving from", comm->peer_text, port->name, qp ? " (" : "",
            qp && qp->qp ? ends(comm, qp, qp->qp->qp_num, way) : "", qp ? ")" : "", what,
            err > 0 ? strerror(err) : "failed", port_state(port, state), lost_before(comm, lost));
  return ib_comm_fail(comm, RAIL_SYSTEM_ERROR);
}

/* Not in ib_failover.c, which calls the functions that post, and these call this one. */
rail_result_t ib_error_post_or_failover(struct ib_comm *comm, const struct ib_qp *qp, const char *call, int err) {
  if (!comm->failover) return ib_error_post(comm, qp, call, err);
  ib_failover_qp(comm, qp->index)->post_errno = err;
  ib_qp_fault(comm, qp->index, IB_FAULT_POST);
  return RAIL_OK;
}

/* ---- sends that find no receive ----------------------------------------------------- */

#define TAGS_SHOWN 8

rail_result_t ib_error_invalid_cts(struct ib_send_comm *sc) {
  RAIL_WARN("RailIB: isend to %s over %s: protocol error: the peer posted a receive whose values cannot be (receive "
            "%u); is it of another release?", sc->base.peer_text, sc->base.device->name, sc->match.next);
  return ib_comm_fail(&sc->base, RAIL_REMOTE_ERROR);
}

rail_result_t ib_error_tag_timeout(struct ib_send_comm *sc, uint32_t tag) {
  uint32_t tags[TAGS_SHOWN];
  char text[TAGS_SHOWN * 12] = "";
  unsigned int n = ib_cts_tags(&sc->match, tags, TAGS_SHOWN);
  for (unsigned int i = 0, at = 0; i < RAIL_MIN(n, TAGS_SHOWN); i++)
    at += (unsigned int)snprintf(text + at, sizeof text - at, " %u", tags[i]);
  RAIL_WARN("RailIB: isend to %s over %s: no receive of tag %u for %lld ms (RAIL_IB_TAG_TIMEOUT), while %u buffers are "
            "posted with tag%s%s; send and receive do not fit together", sc->base.peer_text, sc->base.device->name,
            tag, (long long)ib_params.tag_ms, n, text, n > TAGS_SHOWN ? " ..." : "");
  return ib_comm_fail(&sc->base, RAIL_BAD_USAGE);
}

rail_result_t ib_error_torn(struct ib_send_comm *sc, uint64_t ms) {
  RAIL_WARN("RailIB: isend to %s over %s: the CTS of receive %u has been torn (only a part of it is there) for %llu "
            "ms, longer than the peer's HCA may retry; check: memory and HCA of both hosts, dmesg, driver and firmware",
            sc->base.peer_text, sc->base.device->name, sc->match.next, (unsigned long long)ms);
  return ib_comm_fail(&sc->base, RAIL_SYSTEM_ERROR);
}

rail_result_t ib_error_turn_timeout(struct ib_send_comm *sc) {
  const struct ib_two_sided *t = sc->two_sided;
  RAIL_WARN("RailIB: isend to %s over %s: no send of tag %u for %lld ms (RAIL_IB_TAG_TIMEOUT), while %u sends wait for "
            "it: with RAIL_IB_PROTOCOL=send messages leave in the order of receives; send and receive do not fit "
            "together", sc->base.peer_text, sc->base.device->name,
            sc->match.buffers[t->seq % IB_MAX_RECVS][t->index].tag, (long long)ib_params.tag_ms,
            atomic_load(&sc->base.outstanding));
  return ib_comm_fail(&sc->base, RAIL_BAD_USAGE);
}

/* ---- lost queue pairs -------------------------------------------------------------- */

rail_result_t ib_error_last_qp(struct ib_comm *comm, unsigned int index, uint32_t faults) {
  const struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  if (fq->has_wc) return ib_error_completion(comm, &fq->wc);
  if (faults & IB_FAULT_POST) return ib_error_post(comm, &comm->qps[index], "ibv_post", fq->post_errno);
  if (faults & IB_FAULT_DEVICE) return ib_error_faults(comm, IB_COMM_DEVICE_FATAL);
  if (faults & IB_FAULT_EVENT) return ib_error_faults(comm, IB_COMM_QP_FATAL);
  return ib_error_all_lost(comm);
}

rail_result_t ib_error_never_flushed(struct ib_comm *comm, unsigned int index, int ms) {
  RAIL_WARN("RailIB: connection with %s over %s: lost queue pair %u (0x%x) does not stop within %d ms, so that it is "
            "not known what it still writes; check: dmesg, driver and firmware", comm->peer_text,
            ib_qp_port(comm, index)->name, index, comm->qps[index].qp->qp_num, ms);
  return ib_comm_fail(comm, RAIL_SYSTEM_ERROR);
}

rail_result_t ib_error_bad_count(struct ib_comm *comm, unsigned int index, uint32_t count) {
  RAIL_WARN("RailIB: connection with %s over %s: protocol error: the peer says that it has received %u parts over lost "
            "queue pair %u, which cannot be; is it of another release?", comm->peer_text,
            ib_qp_port(comm, index)->name, count, index);
  return ib_comm_fail(comm, RAIL_REMOTE_ERROR);
}

rail_result_t ib_error_second_stopped(struct ib_comm *comm, unsigned int index) {
  RAIL_WARN("RailIB: connection with %s over %s: protocol error: the peer sent a second STOPPED for lost queue "
            "pair %u; is it of another release?", comm->peer_text, ib_qp_port(comm, index)->name, index);
  return ib_comm_fail(comm, RAIL_REMOTE_ERROR);
}

const char *ib_error_why_lost(const struct ib_comm *comm, unsigned int index) {
  const struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  uint32_t faults = atomic_load(&fq->faults);
  if (faults & IB_FAULT_DEVICE) return "its HCA failed";
  if (faults & IB_FAULT_PORT) return "its port went down";
  if (faults & IB_FAULT_SILENT) return "nothing completed over it, while the peer answered over another";
  if (fq->has_wc && fq->wc.status != IBV_WC_WR_FLUSH_ERR) return ib_error_row(fq->wc.status)->what;
  if (faults & IB_FAULT_EVENT) return "an asynchronous event said so";
  if (faults & IB_FAULT_POST) return "a work request could not be posted";
  if (faults & IB_FAULT_PEER_STOPPED) return "the peer has lost it, and its log says why";
  return "it stopped without saying why";
}

rail_result_t ib_error_cannot_notify(struct ib_comm *comm, unsigned int index) {
  RAIL_WARN("RailIB: connection with %s over %s: queue pair %u is lost (%s), and the peer cannot be notified: the oob "
            "connection has ended or its network is down; check: the peer's log, the network of NCCL_SOCKET_IFNAME",
            comm->peer_text, ib_qp_port(comm, index)->name, index, ib_error_why_lost(comm, index));
  return ib_comm_fail(comm, RAIL_REMOTE_ERROR);
}

static double ms(uint64_t from, uint64_t to) { return from < to ? (double)(to - from) / 1e6 : 0; }

void ib_error_report_loss(struct ib_comm *comm) {
  const struct ib_failover *f = comm->failover;
  const struct ib_failover_qp *fq = ib_failover_qp(comm, f->first);
  char status[64] = "";
  if (fq->has_wc) snprintf(status, sizeof status, " (IBV_WC_%s)", ib_error_row(fq->wc.status)->name);
  RAIL_WARN("RailIB: %s %s over %s goes on without %u of %u queue pairs, the first of port %s to %s: %s%s; %u %s "
            "resent; %.1f ms without a completion when it was noticed, %.1f ms until both sides had stopped it, "
            "%.1f ms until all was resent; %u queue pairs are left",
            comm->sender ? "sending to" : "receiving from", comm->peer_text, comm->device->name, f->lost,
            comm->plan.nqps, ib_qp_port(comm, f->first)->name,
            comm->remote_rails[comm->qps[f->first].remote_rail].name, fq->why_lost, status, f->resent,
            comm->sender ? "parts were" : "CTS writes were", (double)f->idle_ns / 1e6, ms(f->noticed, f->switched),
            ms(f->switched, rail_now_ns()), ib_count_qps_up(comm));
}
