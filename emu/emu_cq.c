/* SPDX-License-Identifier: Apache-2.0
 * Completions, completion events, asynchronous events. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "emu/emu.h"

static struct emu_cq *cq_of(struct ibv_cq *cq) { return (struct emu_cq *)(void *)cq; }
static struct emu_channel *channel_of(struct ibv_comp_channel *c) { return (struct emu_channel *)(void *)c; }

/* A descriptor counts the events of a list, both changed under the lock: it is readable while there is one. */
static void count_up(int fd) {
  uint64_t one = 1;
  while (write(fd, &one, sizeof one) < 0 && errno == EINTR) continue;
}

/* Not in a child: the descriptor counts what its parent has. A thread that waits for events may be cancelled, but not
 * here, under the lock. */
static void count_down(int fd, struct ibv_context *context) {
  uint64_t one;
  int state;
  if (emu_context_of(context)->inherited) return;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  while (read(fd, &one, sizeof one) < 0 && errno == EINTR) continue;
  pthread_setcancelstate(state, &state);
}

/* ---- completions ------------------------------------------------------------ */

static void notify(struct emu_cq *cq, bool solicited) {
  if (cq->armed == EMU_UNARMED || (cq->armed == EMU_ARM_SOLICITED && !solicited)) return;
  cq->armed = EMU_UNARMED;
  if (!cq->ibv.channel || cq->is_ready) return;
  struct emu_channel *channel = channel_of(cq->ibv.channel);
  cq->is_ready = true;
  STAILQ_INSERT_TAIL(&channel->ready, cq, ready);
  count_up(channel->ibv.fd);
}

void emu_complete(struct emu_qp *qp, bool recv, uint64_t place, bool solicited, const struct ibv_wc *wc) {
  struct emu_cq *cq = cq_of(recv ? qp->ex.qp_base.recv_cq : qp->ex.qp_base.send_cq);
  uint32_t count = atomic_load_explicit(&cq->count, memory_order_relaxed);
  if (count == cq->cap && !cq->overrun) {
    struct ibv_async_event event = {.element.cq = &cq->ibv, .event_type = IBV_EVENT_CQ_ERR};
    cq->overrun = true;
    emu_raise(emu_device_of(cq->ibv.context), &event);
  }
  if (cq->overrun) {
    emu.overrun = true;
    return;
  }
  uint32_t at = cq->head + count;
  struct emu_cqe *cqe = &cq->ring[at >= cq->cap ? at - cq->cap : at];
  cqe->wc = *wc;
  cqe->wc.qp_num = qp->ex.qp_base.qp_num;
  cqe->place = place;
  cqe->recv = recv;
  atomic_store_explicit(&cq->count, count + 1, memory_order_release);
  if (cq->armed != EMU_UNARMED) notify(cq, solicited || wc->status != IBV_WC_SUCCESS);
}

void emu_cq_forget(struct emu_cq *cq, uint32_t qpn) {
  uint32_t kept = 0, count = atomic_load_explicit(&cq->count, memory_order_relaxed);
  for (uint32_t i = 0; i < count; i++) {
    struct emu_cqe *cqe = &cq->ring[(cq->head + i) % cq->cap];
    if (cqe->wc.qp_num != qpn) cq->ring[(cq->head + kept++) % cq->cap] = *cqe;
  }
  atomic_store_explicit(&cq->count, kept, memory_order_relaxed);
}

/* Places in the queues are given back by polling, as by a driver. */
int emu_cq_take(struct emu_cq *cq, int n, struct ibv_wc *wc) {
  uint32_t count = atomic_load_explicit(&cq->count, memory_order_relaxed);
  int got = 0;
  for (; got < n && count; got++, count--) {
    const struct emu_cqe *cqe = &cq->ring[cq->head];
    struct emu_qp *qp = emu_qp_find(cqe->wc.qp_num);
    wc[got] = cqe->wc;
    if (qp && cqe->recv) qp->rq.freed = cqe->place + 1;
    if (qp && !cqe->recv) qp->sq_freed = cqe->place + 1;
    if (++cq->head == cq->cap) cq->head = 0;
  }
  atomic_store_explicit(&cq->count, count, memory_order_relaxed);
  return got;
}

/* ---- completion channels ------------------------------------------------------ */

/* Until there may be an event. -1: errno says why. */
static int wait_for(int fd) {
  struct pollfd p = {.fd = fd, .events = POLLIN};
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0) return -1;
  if (flags & O_NONBLOCK) {
    errno = EAGAIN;
    return -1;
  }
  return poll(&p, 1, -1) < 0 ? -1 : 0;
}

static void take_off(struct emu_cq *cq) {
  struct emu_channel *channel = channel_of(cq->ibv.channel);
  STAILQ_REMOVE(&channel->ready, cq, emu_cq, ready);
  cq->is_ready = false;
  count_down(channel->ibv.fd, cq->ibv.context);
}

void emu_cq_withdraw_event(struct emu_cq *cq) {
  if (cq->is_ready) take_off(cq);
}

int ibv_get_cq_event(struct ibv_comp_channel *ibv, struct ibv_cq **cq, void **cq_context) {
  struct emu_channel *channel = channel_of(ibv);
  for (;;) {
    pthread_mutex_lock(&emu.lock);
    struct emu_cq *ready = STAILQ_FIRST(&channel->ready);
    if (ready) {
      take_off(ready);
      ready->comp_events++;
      *cq = &ready->ibv;
      *cq_context = ready->ibv.cq_context;
    }
    pthread_mutex_unlock(&emu.lock);
    if (ready) return 0;
    if (wait_for(ibv->fd) != 0) return -1;
  }
}

void ibv_ack_cq_events(struct ibv_cq *ibv, unsigned int n) {
  struct emu_cq *cq = cq_of(ibv);
  pthread_mutex_lock(&emu.lock);
  cq->comp_events -= n < cq->comp_events ? n : cq->comp_events;
  pthread_cond_broadcast(&emu.acked);
  pthread_mutex_unlock(&emu.lock);
}

/* ---- asynchronous events -------------------------------------------------------- */

enum about { ABOUT_DEVICE, ABOUT_QP, ABOUT_CQ, ABOUT_SRQ };

static enum about about(enum ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_CQ_ERR: return ABOUT_CQ;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED: return ABOUT_QP;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED: return ABOUT_SRQ;
    default: return ABOUT_DEVICE;
  }
}

static struct ibv_context *owner(const struct ibv_async_event *e) {
  switch (about(e->event_type)) {
    case ABOUT_QP: return e->element.qp->context;
    case ABOUT_CQ: return e->element.cq->context;
    case ABOUT_SRQ: return e->element.srq->context;
    default: return NULL;
  }
}

static const void *object_of(const struct ibv_async_event *e) {
  switch (about(e->event_type)) {
    case ABOUT_QP: return e->element.qp;
    case ABOUT_CQ: return e->element.cq;
    case ABOUT_SRQ: return e->element.srq;
    default: return NULL;
  }
}

static unsigned int *counter_of(const struct ibv_async_event *e) {
  switch (about(e->event_type)) {
    case ABOUT_QP: return &emu_qp_of(e->element.qp)->events;
    case ABOUT_CQ: return &cq_of(e->element.cq)->async_events;
    case ABOUT_SRQ: return &((struct emu_srq *)(void *)e->element.srq)->events;
    default: return NULL;
  }
}

/* Of an object: to the context that has it. Of a port or the device: to all of this process. */
void emu_raise(struct emu_device *device, const struct ibv_async_event *event) {
  struct ibv_context *only = owner(event);
  struct emu_context *c;
  LIST_FOREACH(c, &device->contexts, link) {
    if (only && only != &c->verbs.context) continue;
    struct emu_event *e = calloc(1, sizeof *e);
    if (!e) {
      fprintf(stderr, "rail-emu: out of memory: an event of %s is lost\n", device->ibv.name);
      return;
    }
    e->event = *event;
    STAILQ_INSERT_TAIL(&c->events, e, link);
    count_up(c->verbs.context.async_fd);
  }
}

void emu_raise_qp(struct emu_qp *qp, enum ibv_event_type type) {
  struct ibv_async_event event = {.element.qp = &qp->ex.qp_base, .event_type = type};
  emu_raise(qp->device, &event);
}

/* Those of an object that goes; of NULL: all. */
void emu_forget_events(struct emu_context *c, const void *object) {
  STAILQ_HEAD(, emu_event) kept = STAILQ_HEAD_INITIALIZER(kept);
  for (struct emu_event *e; (e = STAILQ_FIRST(&c->events)) != NULL;) {
    STAILQ_REMOVE_HEAD(&c->events, link);
    if (object && object_of(&e->event) != object) {
      STAILQ_INSERT_TAIL(&kept, e, link);
      continue;
    }
    count_down(c->verbs.context.async_fd, &c->verbs.context);
    free(e);
  }
  STAILQ_CONCAT(&c->events, &kept);
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
  struct emu_context *c = emu_context_of(context);
  for (;;) {
    pthread_mutex_lock(&emu.lock);
    struct emu_event *e = STAILQ_FIRST(&c->events);
    if (e) {
      STAILQ_REMOVE_HEAD(&c->events, link);
      count_down(context->async_fd, context);
      *event = e->event;
      unsigned int *counter = counter_of(event);
      if (counter) ++*counter;
    }
    pthread_mutex_unlock(&emu.lock);
    free(e);
    if (e) return 0;
    if (wait_for(context->async_fd) != 0) return -1;
  }
}

void ibv_ack_async_event(struct ibv_async_event *event) {
  pthread_mutex_lock(&emu.lock);
  unsigned int *counter = counter_of(event);
  if (counter && *counter) --*counter;
  pthread_cond_broadcast(&emu.acked);
  pthread_mutex_unlock(&emu.lock);
}

void emu_wait_acked(const unsigned int *events) {
  while (*events) pthread_cond_wait(&emu.acked, &emu.lock);
}
