/* SPDX-License-Identifier: Apache-2.0
 *
 * The accepting side, the receiver. Each call accepts new TCP connections, then runs the steps of pending connections,
 * one after the other, within a time limit; the first that is ready is the peer of this call.
 *
 * A peer that goes silent, closes or sends something invalid is dropped with a line, and accept waits for the next one.
 * Failures that any peer would meet end accept with an error: ports that do not fit, a local device that fails, a peer
 * that refused.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/ib/ib_listen.h"

#define CALL_NS 300000ull /* for pending connections in one call; the last step may end later */

/* ---- steps that only this side has --------------------------------------- */

static rail_result_t step_hints(struct ib_setup *s) {
  s->nhints = s->theirs.nrails;
  for (unsigned int i = 0; i < s->nhints; i++) {
    s->hints[i] = (struct ib_gid){.type = s->theirs.rails[i].gid_type, .valid = true};
    memcpy(s->hints[i].raw, s->theirs.rails[i].gid, sizeof s->hints[i].raw);
  }
  return RAIL_OK;
}

static rail_result_t step_welcome(struct ib_setup *s) {
  struct ib_answer answer = {.reason = IB_REASON_NONE, .rail_here = -1, .rail_there = -1};
  struct ib_answer_wire wire;
  if (s->oob.authenticated && rail_random_bytes(answer.nonce, sizeof answer.nonce) != RAIL_OK)
    return ib_setup_fail(s, IB_REASON_FAILED, RAIL_SYSTEM_ERROR, "no random bytes from the kernel");
  ib_answer_encode(&answer, &wire);
  RAIL_TRY(ib_oob_send(&s->oob, IB_MESSAGE_ANSWER, &wire, sizeof wire));
  return ib_setup_send_offer(s);
}

static rail_result_t step_ready(struct ib_setup *s) { return ib_oob_send(&s->oob, IB_MESSAGE_READY, NULL, 0); }

static const struct ib_setup_row table[] = {
  {"recv offer", ib_setup_recv_offer, "the peer's offer", false},
  {"hints", step_hints, NULL, false},
  {"query ports", ib_setup_query_ports, NULL, false},
  {"offer", ib_setup_offer, NULL, false},
  {"plan", ib_setup_plan, NULL, false},
  {"welcome", step_welcome, NULL, false},
  {"comm", ib_setup_comm, NULL, false},
  {"completion queues", ib_setup_cqs, NULL, false},
  {"memory", ib_setup_memory, NULL, false},
  {"queue pairs", ib_setup_qps, NULL, false},
  {"to INIT", ib_setup_inits, NULL, false},
  {"receives", ib_setup_receives, "the driver to take flush queue pairs to RTS", false},
  {"send queue pairs", ib_setup_send_qps, NULL, false},
  {"recv queue pairs", ib_setup_recv_qps, "the peer's queue pairs", false},
  {"to RTR", ib_setup_rtrs, "the driver to take queue pairs to RTR (address resolution)", false},
  {"to RTS", ib_setup_rtss, "the driver to take queue pairs to RTS", false},
  {"start", ib_setup_start, NULL, false},
  {"ready", step_ready, NULL, false},
  {"test writes", ib_setup_test_writes, NULL, false},
  {"verified", ib_setup_verified, "the first writes over each queue pair", false},
  {"flushed", ib_setup_flushed, "the peer to read what was sent", false},
};

/* ---- pending connections ----------------------------------------------- */

static void append(struct ib_listen *l, struct ib_pending *pending) {
  pending->next = NULL;
  *l->last = pending;
  l->last = &pending->next;
  l->npending++;
}

/* The list is not empty. */
static struct ib_pending *take_first(struct ib_listen *l) {
  struct ib_pending *pending = l->pending;
  assert(pending);
  l->pending = pending->next;
  if (!l->pending) l->last = &l->pending;
  l->npending--;
  return pending;
}

static void free_one(struct ib_pending *pending) {
  ib_setup_free(&pending->setup);
  free(pending);
}

/* Without a key a HELLO proves little: when there is no room, the oldest connection that sent nothing after its HELLO
 * is dropped. */
static bool evict_oldest(struct ib_listen *l) {
  struct ib_pending **oldest = NULL;
  for (struct ib_pending **at = &l->pending; *at; at = &(*at)->next)
    if ((*at)->setup.state == 0 && (!oldest || (*at)->setup.begun < (*oldest)->setup.begun)) oldest = at;
  if (!oldest) return false;
  struct ib_pending *pending = *oldest;
  *oldest = pending->next;
  if (!pending->next) l->last = oldest;
  l->npending--;
  free_one(pending);
  return true;
}

bool ib_pending_add(struct ib_listen *l, int fd, const union rail_addr *peer, const struct ib_hello_wire *hello) {
  bool room = l->npending < IB_MAX_PENDING || evict_oldest(l);
  struct ib_pending *pending = room ? calloc(1, sizeof *pending) : NULL;
  if (!pending) return false;
  ib_setup_init(&pending->setup, l->in_ctx.ctx, l->device, false, peer, l->in_ctx.ctx->traffic_class);
  ib_oob_init(&pending->setup.oob, fd, false, (l->handle.flags & IB_HANDLE_AUTH) != 0, hello);
  append(l, pending);
  return true;
}

void ib_pending_free(struct ib_listen *l) {
  while (l->pending) free_one(take_first(l));
}

static bool is_only_that_peer(enum ib_reason reason) {
  switch (reason) {
    case IB_REASON_NONE: /* it is gone */
    case IB_REASON_GONE:
    case IB_REASON_MESSAGE:
    case IB_REASON_VERSION:
    case IB_REASON_MAC:
    case IB_REASON_TIMEOUT: return true;
    default: return false;
  }
}

/* Runs the first of them. RAIL_OK with *comm, or without: it waits, or was dropped. */
static rail_result_t progress_one(struct ib_listen *l, uint64_t until, struct ib_comm **comm) {
  struct ib_pending *pending = take_first(l);
  rail_result_t result = ib_setup_run(&pending->setup, table, RAIL_COUNT_OF(table), until);
  if (result == RAIL_IN_PROGRESS) {
    append(l, pending);
    return RAIL_OK;
  }
  if (result == RAIL_OK) result = ib_setup_take(&pending->setup, comm);
  else if (is_only_that_peer(pending->setup.reason)) result = RAIL_OK;
  free_one(pending);
  return result;
}

/* ---- the call ------------------------------------------------------------ */

rail_result_t ib_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle) {
  (void)dev_handle;
  struct ib_listen *l = listen_comm;
  struct ib_comm *comm = NULL;
  if (!recv_comm || !l || l->magic != IB_LISTEN_MAGIC) {
    RAIL_WARN("RailIB: accept: listenComm %p, recvComm %p; allowed: an open listener, and not NULL", listen_comm,
              (void *)recv_comm);
    return RAIL_BAD_ARGUMENT;
  }
  *recv_comm = NULL;
  RAIL_TRY(rail_doors_step(&l->doors));
  uint64_t until = rail_now_ns() + CALL_NS;
  for (unsigned int turns = l->npending; turns > 0 && !comm; turns--) {
    RAIL_TRY(progress_one(l, until, &comm));
    if (rail_now_ns() >= until) break;
  }
  *recv_comm = comm;
  return RAIL_OK;
}
