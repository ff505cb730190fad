/* SPDX-License-Identifier: Apache-2.0
 *
 * Closing connections. Close never fails, and takes bounded time: an error would end NCCL's own clean-up.
 *
 * With no request outstanding a receiver has nothing to wait for. A sender waits until its peer has reported that all
 * that was sent is there: a send is done before. With requests outstanding the connection goes through these states
 * before its memory is the caller's again:
 *
 *   stopped   no call begins anything; operations that wait for room in libfabric are dropped, but those that tell the
 *             peer that the connection ends (REVOKE, REVOKED, a refusal)
 *   revoked   a receiver has asked its peer (REVOKE) to write nothing more, and the peer has said so (REVOKED), has
 *             closed, or is dead. A message that the fabric loses with its connection is sent anew. Without an answer
 *             the connection may end all the same if the peer writes to none of the receives that are left
 *   idle      tagged receives are cancelled, and libfabric has completed every operation that names the caller's memory
 *
 * Where nothing has moved on the way to that for RAIL_OFI_CLOSE_TIMEOUT it never may: a send that libfabric does not
 * give back, writes that may be half here. Then the endpoint is shut, which ends the other connections over it too:
 * memory that is written after it was freed would be worse.
 */
#include <sched.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/conn/watch.h"
#include "plugin/ofi/ofi_comm.h"

#define FIRST_PING_MS 1
#define PING_MS 50 /* between two requests that the peer's watch thread poll */
#define REVOKE_MS 200 /* between two REVOKEs */
#define GONE_MS 50 /* of polling: what the host of a peer that is gone had sent has been read */

/* ---- how long close waits ----------------------------------------------------------- */

/* RAIL_OFI_CLOSE_TIMEOUT counts from when what close waits for last became less than ever. A peer that lets it become
 * less one by one holds close for so many of those times at most. */
#define MOST_TIMES 10

struct wait {
  uint64_t begun_ns, moved_ns;
  uint32_t left;
};

static struct wait begin_wait(uint32_t left) {
  const uint64_t now = rail_now_ns();
  return (struct wait){.begun_ns = now, .moved_ns = now, .left = left};
}

/* Has nothing moved for so long, or too little? */
static bool is_over(struct wait *wait, uint32_t left, int64_t ms) {
  const uint64_t ns = (uint64_t)ms * 1000000;
  if (left < wait->left) {
    wait->left = left;
    wait->moved_ns = rail_now_ns();
  }
  return rail_deadline_passed(wait->moved_ns + ns) || rail_deadline_passed(wait->begun_ns + MOST_TIMES * ns);
}

static unsigned long long waited_ms(const struct wait *wait) { return (rail_now_ns() - wait->begun_ns) / 1000000; }

/* Of a comm that is stopped: its operations, and the frames of messages that its peer may still send, at most. */
static uint32_t left_to_end(const struct ofi_comm *comm) {
  const uint32_t most = OFI_MAX_RECVS * OFI_MAX_GROUP * OFI_MAX_PATHS + OFI_MAX_EAGER;
  return comm->nops + most - RAIL_MIN(comm->late_frames, most);
}

/* Messages that the peer has not reported. */
static uint32_t left_to_arrive(const struct ofi_send_comm *sc) {
  return sc->next_eager - sc->report.seen + sc->granted_sends - sc->report.filled;
}

/* ---- stopping, under the lock ------------------------------------------------------ */

static void cancel(struct ofi_op *op, bool posted) {
  if (op->state == OFI_OP_WAITING || (posted && op->state == OFI_OP_POSTED)) (void)ofi_op_cancel(op);
}

/* Operations that wait are dropped, but REVOKE, REVOKED and a refusal, which the peer may wait for; data operations
 * that are posted are cancelled where that is asked for. */
static void cancel_all(struct ofi_comm *comm, bool posted) {
  for (unsigned int i = 0; i < OFI_MAX_PATHS; i++) {
    cancel(&comm->pings[i], false);
    cancel(&comm->pongs[i], false);
  }
  if (comm->sender) {
    struct ofi_send_comm *sc = ofi_send_comm_of(comm);
    for (uint32_t i = 0; i < sc->sends_used; i++) {
      struct ofi_send *send = &sc->sends[i];
      for (unsigned int p = 0; p < OFI_MAX_PATHS; p++) {
        cancel(&send->parts[p].data, posted);
        cancel(&send->parts[p].fin, false);
      }
    }
    cancel(&sc->ask, false);
    return;
  }
  struct ofi_recv_comm *rc = ofi_recv_comm_of(comm);
  for (unsigned int r = 0; r < OFI_MAX_RECVS; r++) {
    for (unsigned int p = 0; p < OFI_MAX_PATHS; p++) cancel(&rc->flushes[r].ops[p], false);
    cancel(&rc->recvs[r].grant, false);
    for (unsigned int i = 0; i < OFI_MAX_GROUP; i++) cancel(&rc->recvs[r].buffers[i].op, posted);
  }
  cancel(&rc->ack, false);
}

/* The peer's side cannot begin anything any more: it has closed, or its process has ended. */
static bool peer_is_gone(const struct ofi_comm *comm) {
  return atomic_load(&comm->pending_work) & (RAIL_OOB_PEER_CLOSED | RAIL_OOB_PEER_GONE | RAIL_OOB_PEER_LOST);
}

/* Polls once; another thread may have the lock in between. The peer's caller may not call any more, and what the
 * fabric has for its endpoint is found by polling alone: its watch thread is asked to, over the oob connection. */
static void poll_once(struct ofi_comm *comm, uint64_t *ping) {
  struct ofi_endpoint *endpoint = comm->endpoint;
  bool any = ofi_poll(endpoint);
  if (rail_deadline_passed(*ping)) {
    if (comm->watch) rail_watch_ping(comm->watch, &comm->watched);
    *ping = rail_deadline_in_ms(PING_MS);
  }
  if (any || endpoint->shut) return;
  ofi_endpoint_unlock(endpoint);
  sched_yield();
  ofi_endpoint_lock(endpoint);
}

/* A receiver: nothing more will be written to its buffers. False: nothing has moved for so long. REVOKE is sent every
 * REVOKE_MS until it is answered: a provider that connects anew (tcp, rxm) loses what it had sent over the connection
 * that broke. */
static bool await_revoked(struct ofi_comm *comm, struct wait *wait, int64_t ms) {
  uint64_t gone = 0, ping = rail_now_ns(), revoke = ping;
  while (!comm->revoked && !comm->endpoint->shut) {
    if (rail_deadline_passed(revoke) && !peer_is_gone(comm)) {
      ofi_comm_revoke(comm);
      revoke = rail_deadline_in_ms(REVOKE_MS);
    }
    poll_once(comm, &ping);
    if (!gone && peer_is_gone(comm)) gone = rail_deadline_in_ms(GONE_MS);
    if (rail_deadline_passed(gone)) return true;
    if (is_over(wait, left_to_end(comm), ms)) return false;
  }
  return true;
}

static bool names_memory(const struct ofi_op *op) { return op->state == OFI_OP_POSTED && op->size; }

/* Has libfabric an operation that reads or writes the caller's memory? */
static bool any_names_memory(struct ofi_comm *comm) {
  bool any = false;
  if (comm->sender) {
    struct ofi_send_comm *sc = ofi_send_comm_of(comm);
    for (uint32_t i = 0; i < sc->sends_used; i++)
      for (unsigned int p = 0; p < OFI_MAX_PATHS; p++) any |= names_memory(&sc->sends[i].parts[p].data);
    return any;
  }
  struct ofi_recv_comm *rc = ofi_recv_comm_of(comm);
  for (unsigned int r = 0; r < OFI_MAX_RECVS; r++) {
    for (unsigned int i = 0; i < OFI_MAX_GROUP; i++) any |= names_memory(&rc->recvs[r].buffers[i].op);
    for (unsigned int p = 0; p < OFI_MAX_PATHS; p++) any |= names_memory(&rc->flushes[r].ops[p]);
  }
  return any;
}

/* libfabric has completed the comm's operations. A provider may never complete those with a peer that is gone, or that
 * does not answer: when none has ended for a while, control messages are abandoned, and stay in the comm's memory until
 * the endpoint is closed. What names the caller's memory is not. */
static bool await_idle(struct ofi_comm *comm, bool answers, struct wait *wait) {
  uint64_t gone = 0, ping = rail_now_ns();
  for (uint32_t before = comm->nops; comm->nops && !comm->endpoint->shut; before = comm->nops) {
    poll_once(comm, &ping);
    if ((answers && !peer_is_gone(comm)) || comm->nops != before) gone = 0;
    else if (!gone) gone = rail_deadline_in_ms(GONE_MS);
    if (rail_deadline_passed(gone) && !any_names_memory(comm)) return true;
    if (is_over(wait, left_to_end(comm), ofi_params.close_ms)) return !any_names_memory(comm);
  }
  return true;
}

/* Has a receiver told its peer of buffers that may still be written to? */
static bool is_granting(struct ofi_comm *comm) {
  return !comm->sender && atomic_load_explicit(&comm->outstanding, memory_order_relaxed) != 0;
}

/* Else a receive that is cancelled is all that reaches the caller's memory. */
static bool is_written_to(const struct ofi_recv_comm *rc) {
  for (unsigned int r = 0; r < OFI_MAX_RECVS; r++) {
    const struct ofi_recv *recv = &rc->recvs[r];
    for (unsigned int i = 0; recv->pending && recv->granted && i < recv->n; i++)
      if (recv->buffers[i].kind == OFI_BUFFER_RMA && !recv->buffers[i].done) return true;
  }
  return false;
}

static void stop_locked(struct ofi_comm *comm) {
  atomic_store(&comm->stopped, true);
  cancel_all(comm, false);
  struct wait wait = begin_wait(left_to_end(comm));
  bool granting = is_granting(comm), written = granting && is_written_to(ofi_recv_comm_of(comm));
  bool quiet = !granting || await_revoked(comm, &wait, written ? ofi_params.close_ms : ofi_params.close_ms / 2);
  cancel_all(comm, true);
  if (await_idle(comm, quiet, &wait) && (quiet || !written)) return;
  RAIL_INFO(RAIL_SUB_NET, "RailOFI: connection with %s over %s: close has waited for %llu ms "
            "(RAIL_OFI_CLOSE_TIMEOUT: %lld ms in which nothing moves); %s, and %u operations have not ended",
            comm->peer_text, comm->device->name, waited_ms(&wait), (long long)ofi_params.close_ms,
            quiet ? "the peer writes no more" : "the peer has not said that it writes no more", comm->nops);
  ofi_shut(comm->endpoint, "a connection was closed whose operations did not end, and may use its memory "
           "(RAIL_OFI_CLOSE_TIMEOUT)");
}

/* Sends GOODBYE, if its handshake was over. */
static void unwatch(struct ofi_comm *comm) {
  if (comm->watch) rail_watch_remove(comm->watch, &comm->watched, true);
}

void ofi_comm_stop(struct ofi_comm *comm) {
  if (comm->forked) return;
  ofi_endpoint_lock(comm->endpoint);
  if (!atomic_load(&comm->stopped)) stop_locked(comm);
  ofi_endpoint_unlock(comm->endpoint);
  unwatch(comm); /* sends GOODBYE: nothing of ours will be written or sent any more */
}

/* Its sends are done, but libfabric, or the network, may still have some of them, and the process may end right after
 * close. The peer's endpoint takes them whether or not its caller calls, and its watch thread, which the PINGs wake,
 * reports them one by one: ASK may be behind them. */
static void await_arrival(struct ofi_send_comm *sc) {
  struct ofi_comm *comm = &sc->base;
  uint64_t ping = rail_deadline_in_ms(FIRST_PING_MS);
  bool asked = false, late = false;
  ofi_endpoint_lock(comm->endpoint);
  struct wait wait = begin_wait(left_to_arrive(sc));
  while (!late && ofi_comm_status(comm) == RAIL_OK && !ofi_comm_has_arrived(sc) && !peer_is_gone(comm)) {
    if (!asked) asked = ofi_comm_ask(sc);
    poll_once(comm, &ping);
    late = is_over(&wait, left_to_arrive(sc), ofi_params.close_ms);
  }
  ofi_endpoint_unlock(comm->endpoint);
  if (late)
    RAIL_WARN("RailOFI: sending to %s over %s: close has waited for %llu ms (RAIL_OFI_CLOSE_TIMEOUT: %lld ms in which "
              "nothing moves), and the peer has not said that it has the last %u messages; check: the peer's log, is "
              "its process stopped?", comm->peer_text, comm->device->name, waited_ms(&wait),
              (long long)ofi_params.close_ms, wait.left);
}

/* A receiver has something to report, which its sender may be waiting for. */
static void send_last_ack(struct ofi_recv_comm *rc) {
  struct ofi_endpoint *endpoint = rc->base.endpoint;
  ofi_endpoint_lock(endpoint);
  if (rc->control.due && !endpoint->shut && !peer_is_gone(&rc->base)) endpoint->ops->send_control(&rc->control);
  ofi_endpoint_unlock(endpoint);
}

/* ---- closing ---------------------------------------------------------------------------- */

/* In a child of fork nothing is freed: the endpoint is the parent's. */
void ofi_comm_destroy(struct ofi_comm *comm) {
  if (comm->forked || comm->endpoint->process != getpid()) return;
  struct ofi_endpoint *endpoint = comm->endpoint;
  bool outstanding = atomic_load(&comm->outstanding) != 0;
  if (!outstanding && comm->sender) await_arrival(ofi_send_comm_of(comm));
  else if (!outstanding) send_last_ack(ofi_recv_comm_of(comm));
  if (outstanding) ofi_comm_stop(comm);
  else unwatch(comm);
  rail_sock_close(&comm->oob_fd);
  ofi_endpoint_lock(endpoint);
  comm->magic = 0;
  atomic_store(&comm->stopped, true);
  cancel_all(comm, false);
  endpoint->nrequests -= atomic_load(&comm->outstanding); /* which will never be done */
  comm->closed = true; /* control messages may still be libfabric's: it is freed behind the last */
  if (comm->nops == 0) ofi_comm_free(comm);
  ofi_endpoint_unlock(endpoint);
  ofi_endpoint_put(endpoint);
}

rail_result_t ofi_close_send(void *send_comm) {
  if (!send_comm) return RAIL_OK;
  struct ofi_comm *comm = ofi_comm_of(send_comm, OFI_SEND_COMM_MAGIC, "closeSend");
  if (comm) ofi_comm_destroy(comm); /* else the line is written; an error would end the caller's clean-up */
  return RAIL_OK;
}

rail_result_t ofi_close_recv(void *recv_comm) {
  if (!recv_comm) return RAIL_OK;
  struct ofi_comm *comm = ofi_comm_of(recv_comm, OFI_RECV_COMM_MAGIC, "closeRecv");
  if (comm) ofi_comm_destroy(comm);
  return RAIL_OK;
}
