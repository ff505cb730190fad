/* SPDX-License-Identifier: Apache-2.0
 *
 * Posting work and polling for completions: inline functions of libibverbs' header that call through a table in the
 * context. The table of each context that the plugin opens gets ours in front.
 *
 * A poll that finds nothing is not counted: there are millions. One that found something and is to fail loses what it
 * found, as a completion queue does that has failed.
 */
#include <errno.h>

#include "kit/preload/fault.h"

#if __has_include(<infiniband/verbs.h>)
#include <infiniband/verbs.h>

enum { MAX_CONTEXTS = 64 }; /* contexts; later ones are left alone */

static struct kept_ops {
  _Atomic(struct ibv_context *) context;
  struct ibv_context_ops ops;
} kept[MAX_CONTEXTS];

/* There is one: ours are called only by way of a context that has been changed. */
static const struct ibv_context_ops *theirs(const struct ibv_context *context) {
  int i = 0;
  while (i < MAX_CONTEXTS - 1 && atomic_load_explicit(&kept[i].context, memory_order_acquire) != context) i++;
  return &kept[i].ops;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
  if (!kit_fault_must_fail(KIT_FAIL_POST, "ibv_post_send", ENOMEM, CALLER))
    return theirs(qp->context)->post_send(qp, wr, bad);
  *bad = wr;
  return ENOMEM;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
  if (!kit_fault_must_fail(KIT_FAIL_POST, "ibv_post_recv", ENOMEM, CALLER))
    return theirs(qp->context)->post_recv(qp, wr, bad);
  *bad = wr;
  return ENOMEM;
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc) {
  int found = theirs(cq->context)->poll_cq(cq, n, wc);
  return found > 0 && kit_fault_must_fail(KIT_FAIL_POST, "ibv_poll_cq", EIO, CALLER) ? -1 : found;
}

/* Opening is rare, and a context that is closed may come again at its address. */
void kit_fault_posts(void *opened) {
  struct ibv_context *context = opened, *none;
  for (int i = 0; i < MAX_CONTEXTS; i++) {
    none = NULL;
    bool old = atomic_load(&kept[i].context) == context;
    if (!old && !atomic_compare_exchange_strong(&kept[i].context, &none, context)) continue;
    if (context->ops.post_send == post_send) return; /* opened once, given out twice */
    kept[i].ops = context->ops;
    context->ops.post_send = post_send;
    context->ops.post_recv = post_recv;
    context->ops.poll_cq = poll_cq;
    return;
  }
}

#else
void kit_fault_posts(void *opened) { (void)opened; }
#endif
