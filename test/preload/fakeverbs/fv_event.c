/* SPDX-License-Identifier: Apache-2.0
 * Asynchronous events: delivered, held back or lost. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "test/preload/fakeverbs/fv.h"

static enum fv_delivery delivery;
static struct { struct fv_device *device; struct ibv_async_event event; } held[FV_EVENTS];
static unsigned int nheld;

/* The objects of an event belong to one context; of a port or device, to all. */
static struct ibv_context *context_of(const struct ibv_async_event *event) {
  switch (event->event_type) {
    case IBV_EVENT_CQ_ERR: return event->element.cq->context;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_PATH_MIG: return event->element.qp->context;
    default: return NULL;
  }
}

/* What counts the events of its object that were not acknowledged; NULL: it has none. */
static unsigned int *counter_of(const struct ibv_async_event *event) {
  if (!context_of(event)) return NULL;
  if (event->event_type == IBV_EVENT_CQ_ERR) return &((struct fv_cq *)(void *)event->element.cq)->events;
  return &((struct fv_qp *)(void *)event->element.qp)->events;
}

static void deliver(struct fv_device *device, const struct ibv_async_event *event) {
  struct ibv_context *only = context_of(event);
  for (struct fv_context *c = device->contexts; c; c = c->next)
    if ((!only || only == &c->ibv) && write(c->event_out, event, sizeof *event) != sizeof *event)
      fprintf(stderr, "fakeverbs: an event of %s is lost: nobody reads them\n", device->ibv.name);
}

void fv_raise(struct fv_device *device, const struct ibv_async_event *event) {
  if (delivery == FV_DELIVER) deliver(device, event);
  if (delivery != FV_HOLD || nheld == FV_EVENTS) return;
  held[nheld].device = device;
  held[nheld++].event = *event;
}

/* The objects of events that are held back may be gone by now. */
static bool is_alive(const struct ibv_async_event *event) {
  bool cq = event->event_type == IBV_EVENT_CQ_ERR;
  for (struct fv_qp *qp = fv.qps; qp && !cq; qp = qp->next)
    if (&qp->ibv == event->element.qp) return true;
  for (struct fv_cq *q = fv.cqs; q && cq; q = q->next)
    if (&q->ibv == event->element.cq) return true;
  return false;
}

static bool is_about_object(enum ibv_event_type type) {
  return type == IBV_EVENT_CQ_ERR || type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
         type == IBV_EVENT_QP_ACCESS_ERR || type == IBV_EVENT_COMM_EST || type == IBV_EVENT_PATH_MIG;
}

void fv_deliver(enum fv_delivery how) {
  delivery = how;
  for (unsigned int i = 0; i < nheld && how == FV_DELIVER; i++)
    if (!is_about_object(held[i].event.event_type) || is_alive(&held[i].event)) deliver(held[i].device, &held[i].event);
  if (how != FV_HOLD) nheld = 0;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
  struct ibv_async_event got;
  ssize_t n = read(context->async_fd, &got, sizeof got);
  if (n != sizeof got) {
    if (n >= 0) errno = EIO;
    return -1;
  }
  pthread_mutex_lock(&fv.lock);
  unsigned int *counter = is_about_object(got.event_type) && !is_alive(&got) ? NULL : counter_of(&got);
  bool gone = is_about_object(got.event_type) && !counter;
  if (counter) ++*counter;
  pthread_mutex_unlock(&fv.lock);
  if (gone) { /* the kernel takes the events of an object with it */
    errno = EAGAIN;
    return -1;
  }
  *event = got;
  return 0;
}

void ibv_ack_async_event(struct ibv_async_event *event) {
  pthread_mutex_lock(&fv.lock);
  unsigned int *counter = counter_of(event);
  if (counter && *counter) --*counter;
  pthread_cond_broadcast(&fv.acked);
  pthread_mutex_unlock(&fv.lock);
}

void fv_wait_acked(const unsigned int *events) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 5;
  while (*events)
    if (pthread_cond_timedwait(&fv.acked, &fv.lock, &until) == ETIMEDOUT) {
      fprintf(stderr, "fakeverbs: an object is destroyed whose event nobody acknowledged: it would wait for ever\n");
      abort();
    }
}

#define EVENT_NAME(type) \
  case type: return &#type[sizeof "IBV_EVENT_" - 1]
const char *ibv_event_type_str(enum ibv_event_type type) {
  switch (type) {
    EVENT_NAME(IBV_EVENT_CQ_ERR);
    EVENT_NAME(IBV_EVENT_QP_FATAL);
    EVENT_NAME(IBV_EVENT_QP_REQ_ERR);
    EVENT_NAME(IBV_EVENT_QP_ACCESS_ERR);
    EVENT_NAME(IBV_EVENT_COMM_EST);
    EVENT_NAME(IBV_EVENT_PATH_MIG);
    EVENT_NAME(IBV_EVENT_DEVICE_FATAL);
    EVENT_NAME(IBV_EVENT_PORT_ACTIVE);
    EVENT_NAME(IBV_EVENT_PORT_ERR);
    EVENT_NAME(IBV_EVENT_GID_CHANGE);
    default: return "another event";
  }
}
