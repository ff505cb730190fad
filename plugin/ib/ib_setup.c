/* SPDX-License-Identifier: Apache-2.0
 * Running a side's table, its messages, and what is logged when it fails. */
#include "plugin/ib/ib_setup.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_watch.h"

void ib_setup_init(struct ib_setup *s, struct rail_net_ctx *ctx, const struct ib_device *device, bool connector,
                   const union rail_addr *peer, int traffic_class) {
  memset(s, 0, sizeof *s);
  s->ctx = ctx;
  s->device = device;
  s->connector = connector;
  s->peer = *peer;
  s->traffic_class = traffic_class;
  rail_handshake_init(&s->handshake);
}

void ib_setup_free(struct ib_setup *s) {
  if (s->comm) ib_comm_destroy(s->comm);
  s->comm = NULL;
  rail_handshake_close(&s->handshake);
  free(s->attrs);
  s->attrs = NULL;
}

/* ---- failing ------------------------------------------------------------- */

rail_result_t ib_setup_fail(struct ib_setup *s, unsigned int reason, rail_result_t result, const char *fmt, ...) {
  char peer[RAIL_ADDR_TEXT], what[768];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(what, sizeof what, fmt, ap);
  va_end(ap);
  RAIL_WARN("RailIB: %s %s over %s: %s", s->connector ? "connect to" : "accept of", rail_addr_text(&s->peer, peer),
            s->device->name, what);
  s->reason = reason;
  rail_handshake_refuse(&s->handshake, reason, NULL);
  return result;
}

/* The line names the two ports of the peer's refusal. */
static rail_result_t refused(struct ib_setup *s, const struct rail_message *answer) {
  struct ib_refused_plan plan;
  ib_stats_count(s->device->name, IB_DEVICE_REFUSED);
  if (answer->reason != IB_REASON_PLAN) {
    ib_setup_fail(s, RAIL_REASON_NONE, RAIL_REMOTE_ERROR, "refused: %s",
                  rail_reason_text(&ib_protocol, answer->reason));
  } else {
    const char *wrong = ib_refused_plan_decode(answer->body, answer->size, &plan), *here = "one of ours";
    if (wrong) return ib_setup_fail(s, RAIL_REASON_MESSAGE, RAIL_REMOTE_ERROR, "it sent %s", wrong);
    if (plan.rail_there >= 0 && (unsigned int)plan.rail_there < s->mine.nrails)
      here = s->mine.rails[plan.rail_there].name;
    ib_setup_fail(s, RAIL_REASON_NONE, RAIL_REMOTE_ERROR, "refused: port %s here and port %s there do not fit: %s",
                  here, plan.name[0] ? plan.name : "(all)", ib_refusal_text(plan.refusal));
  }
  s->reason = answer->reason;
  return RAIL_REMOTE_ERROR;
}

/* ---- messages ------------------------------------------------------------ */

rail_result_t ib_setup_recv(struct ib_setup *s, unsigned int wanted, struct rail_message *message) {
  enum rail_reason reason = RAIL_REASON_NONE;
  const char *why = "";
  rail_result_t result = rail_handshake_recv(&s->handshake, message, &reason, &why);
  if (result == RAIL_IN_PROGRESS) return result;
  if (result != RAIL_OK) return ib_setup_fail(s, reason, RAIL_REMOTE_ERROR, "%s", why);
  return ib_setup_check(s, wanted, message);
}

rail_result_t ib_setup_check(struct ib_setup *s, unsigned int wanted, const struct rail_message *message) {
  if (message->type == RAIL_MESSAGE_ANSWER && message->reason != RAIL_REASON_NONE) return refused(s, message);
  if (message->type == wanted) return RAIL_OK;
  return ib_setup_fail(s, RAIL_REASON_MESSAGE, RAIL_REMOTE_ERROR, "it sent message %u where message %u was expected",
                       message->type, wanted);
}

rail_result_t ib_setup_send_offer(struct ib_setup *s) {
  struct ib_offer_wire wire;
  size_t size = ib_offer_encode(&s->mine, &wire);
  return rail_handshake_send(&s->handshake, IB_MESSAGE_OFFER, &wire, size);
}

rail_result_t ib_setup_recv_offer(struct ib_setup *s) {
  struct rail_message message;
  RAIL_TRY(ib_setup_recv(s, IB_MESSAGE_OFFER, &message));
  const char *why = ib_offer_decode(message.body, message.size, &s->theirs);
  if (!why && s->theirs.sender == s->connector) why = "an offer with the role of this side";
  if (why) return ib_setup_fail(s, RAIL_REASON_MESSAGE, RAIL_REMOTE_ERROR, "it sent %s", why);
  return RAIL_OK;
}

rail_result_t ib_setup_send_qps(struct ib_setup *s) {
  struct ib_qps_wire wire;
  for (unsigned int i = 0; i < s->plan.nqps; i++) {
    struct ib_qp_info *side = &s->ours.qps[i];
    struct ibv_ece ece = {0};
    const struct ib_qp *qp = &s->comm->qps[i];
    /* The acceptor sends what its device supports; the connector answers with what both support. */
    if (s->plan.ece && (!s->connector || qp->attr.use_ece)) (void)ib_qp_query_ece(qp, &ece);
    side->qpn = qp->qp->qp_num;
    side->psn = qp->attr.sq_psn;
    side->ece_vendor = ece.vendor_id;
    side->ece_options = ece.options;
    side->ece_comp_mask = ece.comp_mask;
  }
  size_t size = ib_qps_encode(&s->ours, &wire);
  return rail_handshake_send(&s->handshake, IB_MESSAGE_QPS, &wire, size);
}

rail_result_t ib_setup_recv_qps(struct ib_setup *s) {
  struct rail_message message;
  RAIL_TRY(ib_setup_recv(s, IB_MESSAGE_QPS, &message));
  const char *why = ib_qps_decode(message.body, message.size, &s->peers);
  if (!why && (s->peers.nqps != s->plan.nqps || s->peers.nrails != s->theirs.nrails))
    why = "a list of queue pairs that is not what both planned";
  if (why) return ib_setup_fail(s, RAIL_REASON_MESSAGE, RAIL_REMOTE_ERROR, "it sent %s", why);
  return RAIL_OK;
}

rail_result_t ib_setup_flushed(struct ib_setup *s) {
  rail_result_t result = rail_handshake_flush(&s->handshake);
  if (result == RAIL_OK || result == RAIL_IN_PROGRESS) return result;
  return ib_setup_fail(s, RAIL_REASON_NONE, result, "%s", strerror(errno));
}

/* ---- running the table ------------------------------------------- */

rail_result_t ib_setup_piece_done(struct ib_setup *s, unsigned int n) {
  s->piece++;
  if (s->piece >= n) return RAIL_OK;
  s->more = true;
  return RAIL_IN_PROGRESS;
}

static void trace(const struct ib_setup *s, const struct ib_setup_row *rows, unsigned int nrows) {
  char peer[RAIL_ADDR_TEXT];
  if (!rail_log_trace_on()) return;
  RAIL_TRACE(RAIL_SUB_NET, "RailIB: %s %s over %s: %s -> %s", s->connector ? "connect to" : "accept of",
             rail_addr_text(&s->peer, peer), s->device->name, rows[s->state].name,
             s->state + 1 < nrows ? rows[s->state + 1].name : "done");
}

bool ib_setup_is_late(const struct ib_setup *s) { return rail_handshake_is_late(&s->handshake, ib_params.connect_ms); }

static rail_result_t too_late(struct ib_setup *s, const struct ib_setup_row *row) {
  return ib_setup_fail(s, RAIL_REASON_TIMEOUT, RAIL_REMOTE_ERROR, "not ready within %lld ms (RAIL_IB_CONNECT_TIMEOUT): "
                       "waited for %s; does the peer's process run, and does its log say more?",
                       (long long)ib_params.connect_ms, row->waits_for ? row->waits_for : row->name);
}

rail_result_t ib_setup_run(struct ib_setup *s, const struct ib_setup_row *rows, unsigned int nrows, uint64_t until) {
  rail_result_t result;
  rail_handshake_note_time(&s->handshake);
  bool late = ib_setup_is_late(s); /* before the step, which may have a better line about it */
  do {
    s->more = false;
    if (s->handshake.fd >= 0 && rows[s->state].unlimited) {
      (void)rail_handshake_flush(&s->handshake); /* the step reports a failure */
    } else if (s->handshake.fd >= 0) {
      result = ib_setup_flushed(s);
      if (result != RAIL_OK && result != RAIL_IN_PROGRESS) return result;
    }
    result = rows[s->state].step(s);
    if (result == RAIL_OK) {
      trace(s, rows, nrows);
      s->piece = 0;
      if (++s->state == nrows) return RAIL_OK;
      s->more = true;
    } else if (result != RAIL_IN_PROGRESS) {
      return result;
    }
  } while (s->more && rail_now_ns() < until);
  late = late && ib_setup_is_late(s); /* a step may have reset `waited` */
  return late && !rows[s->state].unlimited ? too_late(s, &rows[s->state]) : RAIL_IN_PROGRESS;
}

/* ---- the end ------------------------------------------------------------- */

static void log_connected(const struct ib_setup *s) {
  const struct ib_comm *c = s->comm;
  char mine[IB_GID_TEXT], theirs[IB_GID_TEXT];
  RAIL_INFO(RAIL_SUB_NET, "RailIB: %s %s over %s (GID %s) and its %s (GID %s), %u queue pair%s%s%s",
            s->connector ? "connected to" : "accepted", c->peer_text, s->device->name,
            ib_gid_text(s->mine.rails[0].gid, mine), s->theirs.rails[0].name,
            ib_gid_text(s->theirs.rails[0].gid, theirs),
            c->plan.nqps, c->plan.nqps > 1 ? "s" : "", c->plan.verify ? ", verified" : "",
            s->handshake.session.keyed ? ", authenticated" : "");
}

rail_result_t ib_setup_take(struct ib_setup *s, struct ib_comm **out) {
  struct ib_comm *comm = s->comm;
  comm->oob_fd = s->handshake.fd;
  s->handshake.fd = -1;
  RAIL_TRY(ib_watch_add(comm)); /* on failure ib_setup_free frees it */
  log_connected(s);
  ib_stats_count(s->device->name, s->connector ? IB_DEVICE_CONNECTED : IB_DEVICE_ACCEPTED);
  s->comm = NULL;
  *out = comm;
  return RAIL_OK;
}
