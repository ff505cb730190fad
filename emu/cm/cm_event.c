/* SPDX-License-Identifier: Apache-2.0
 * Channels, and the events in them. A channel's descriptor is readable while it has events, whoever reads them. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "emu/cm/cm.h"

static struct cm_channel *channel_of(struct rdma_event_channel *c) { return (struct cm_channel *)(void *)c; }

struct rdma_event_channel *rdma_create_event_channel(void) {
  struct cm_channel *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  STAILQ_INIT(&c->events);
  c->ch.fd = eventfd(0, EFD_CLOEXEC);
  if (c->ch.fd >= 0) return &c->ch;
  free(c);
  return NULL;
}

static void free_channel(struct cm_channel *c) {
  close(c->ch.fd);
  free(c);
}

/* Under the lock. A thread that waits in the channel waits on, as in a file of the kernel that another thread closes:
 * rping ends like that. A thread that is cancelled there, or was another's at a fork, keeps it from being freed. */
static void destroy_channel(struct cm_channel *c) {
  c->is_destroyed = true;
  if (!c->readers) free_channel(c);
}

void rdma_destroy_event_channel(struct rdma_event_channel *channel) {
  pthread_mutex_lock(&cm.lock);
  destroy_channel(channel_of(channel));
  pthread_mutex_unlock(&cm.lock);
}

/* With its events, and the channel that is its own. */
void cm_free(struct cm_id *id) {
  cm_events_withdraw(id);
  cm_remove(id);
  if (id->sync) destroy_channel(channel_of(id->id.channel));
  free(id->path);
  free(id->late);
  free(id->ep_attr);
  free(id);
}

/* ---- the list of a channel ------------------------------------------------------- */

static void append(struct cm_channel *c, struct cm_event *e) {
  uint64_t one = 1;
  if (STAILQ_EMPTY(&c->events))
    while (write(c->ch.fd, &one, sizeof one) < 0 && errno == EINTR) continue;
  STAILQ_INSERT_TAIL(&c->events, e, link);
}

static void take_off(struct cm_channel *c, struct cm_event *e) {
  uint64_t count;
  STAILQ_REMOVE(&c->events, e, cm_event, link);
  if (STAILQ_EMPTY(&c->events))
    while (read(c->ch.fd, &count, sizeof count) < 0 && errno == EINTR) continue;
}

/* ---- events ------------------------------------------------------------------------ */

struct cm_event *cm_event_alloc(struct cm_id *id, enum rdma_cm_event_type type, int status) {
  struct cm_event *e = calloc(1, sizeof *e);
  if (!e) {
    fprintf(stderr, "rail-emu: out of memory: an event of the RDMA CM is lost\n");
    return NULL;
  }
  e->event = (struct rdma_cm_event){.id = &id->id, .event = type, .status = status};
  e->counted = id;
  if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
    e->event.listen_id = &id->listener->id;
    e->counted = id->listener;
  }
  return e;
}

void cm_event_push(struct cm_event *e) { append(channel_of(e->counted->id.channel), e); }

void cm_report(struct cm_id *id, enum rdma_cm_event_type type, int status) {
  struct cm_event *e = cm_event_alloc(id, type, status);
  if (e) cm_event_push(e);
}

/* Waits without the lock until the channel may have an event. */
static bool wait_for_event(const struct cm_channel *c) {
  struct pollfd p = {.fd = c->ch.fd, .events = POLLIN};
  int flags = fcntl(c->ch.fd, F_GETFL);
  if (flags < 0) return false;
  if (flags & O_NONBLOCK) {
    errno = EAGAIN;
    return false;
  }
  pthread_mutex_unlock(&cm.lock);
  int n = poll(&p, 1, -1);
  pthread_mutex_lock(&cm.lock);
  return n >= 0;
}

struct cm_event *cm_event_read(struct cm_channel *c, void (*on_read)(struct cm_event *event)) {
  struct cm_event *e;
  pthread_mutex_lock(&cm.lock);
  c->readers++;
  while (!(e = STAILQ_FIRST(&c->events)) && wait_for_event(c)) continue;
  if (e) {
    take_off(c, e);
    e->counted->events++;
    on_read(e);
  }
  int err = errno;
  if (!--c->readers && c->is_destroyed) free_channel(c);
  pthread_mutex_unlock(&cm.lock);
  errno = err;
  return e;
}

void cm_events_withdraw(struct cm_id *id) {
  struct cm_channel *c = channel_of(id->id.channel);
  struct cm_event *e, *next;
  for (e = STAILQ_FIRST(&c->events); e; e = next) {
    next = STAILQ_NEXT(e, link);
    if (e->counted != id && e->event.id != &id->id) continue;
    if (e->counted != id) e->counted->requests--; /* its CONNECT_REQUEST, which counts for the listener */
    take_off(c, e);
    free(e);
  }
}

/* Those of an id, and of its requests that nobody has read: whoever reads its channel reads them. */
static void move_events(struct cm_id *id, struct rdma_event_channel *to) {
  struct cm_channel *from = channel_of(id->id.channel);
  struct cm_event *e, *next;
  struct cm_id *other;
  if (&from->ch == to) return;
  for (e = STAILQ_FIRST(&from->events); e; e = next) {
    next = STAILQ_NEXT(e, link);
    if (e->counted != id && cm_id_of(e->event.id)->listener != id) continue;
    take_off(from, e);
    append(channel_of(to), e);
  }
  id->id.channel = to;
  LIST_FOREACH(other, &cm.ids, link)
    if (other->listener == id) other->id.channel = to;
}

bool cm_own_channel(struct cm_id *id) {
  struct rdma_event_channel *own = rdma_create_event_channel();
  if (!own) return false;
  move_events(id, own);
  id->sync = true;
  return true;
}

void cm_wait_acked(const struct cm_id *id) {
  while (id->events) pthread_cond_wait(&cm.acked, &cm.lock);
}

int rdma_ack_cm_event(struct rdma_cm_event *event) {
  if (!event) return cm_result(EINVAL);
  struct cm_event *e = (struct cm_event *)(void *)event;
  pthread_mutex_lock(&cm.lock);
  e->counted->events--;
  pthread_cond_broadcast(&cm.acked);
  pthread_mutex_unlock(&cm.lock);
  free(e);
  return 0;
}

/* Its events move to the other channel. Those that were given out are waited for: whoever has them may use the id. */
int rdma_migrate_id(struct rdma_cm_id *ibv, struct rdma_event_channel *channel) {
  struct cm_id *id = cm_id_of(ibv);
  struct rdma_event_channel *own = channel ? NULL : rdma_create_event_channel();
  if (!channel && !own) return -1;
  if (id->sync && ibv->event) {
    rdma_ack_cm_event(ibv->event);
    ibv->event = NULL;
  }
  pthread_mutex_lock(&cm.lock);
  struct rdma_event_channel *old = ibv->channel;
  move_events(id, channel ? channel : own);
  bool was_sync = id->sync;
  id->sync = own;
  cm_wait_acked(id);
  if (was_sync) destroy_channel(channel_of(old));
  pthread_mutex_unlock(&cm.lock);
  return 0;
}

const char *rdma_event_str(enum rdma_cm_event_type type) {
  static const char *const names[] = {
    "RDMA_CM_EVENT_ADDR_RESOLVED", "RDMA_CM_EVENT_ADDR_ERROR", "RDMA_CM_EVENT_ROUTE_RESOLVED",
    "RDMA_CM_EVENT_ROUTE_ERROR", "RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
    "RDMA_CM_EVENT_CONNECT_ERROR", "RDMA_CM_EVENT_UNREACHABLE", "RDMA_CM_EVENT_REJECTED", "RDMA_CM_EVENT_ESTABLISHED",
    "RDMA_CM_EVENT_DISCONNECTED", "RDMA_CM_EVENT_DEVICE_REMOVAL", "RDMA_CM_EVENT_MULTICAST_JOIN",
    "RDMA_CM_EVENT_MULTICAST_ERROR", "RDMA_CM_EVENT_ADDR_CHANGE", "RDMA_CM_EVENT_TIMEWAIT_EXIT"};
  return type < sizeof names / sizeof names[0] ? names[type] : "UNKNOWN EVENT";
}
