/* SPDX-License-Identifier: Apache-2.0
 * A communicator's list of registered buffers, and their registrations with its connections. Called by the user's
 * thread (ncclCommRegister, ncclCommDeregister), by the thread that makes a plan ready, and when the communicator gives
 * up its connections or is freed. reg_lock of the communicator guards the list. */
#include "core/comm/rt_reg.h"

#include <stdlib.h>

#include "common/base/log.h"
#include "core/comm/rt_param.h"

/* The buffer's registration with one connection. */
struct connector_reg {
  struct rt_connector *connector;
  void *mhandle;
  LIST_ENTRY(connector_reg) link;
};

struct rt_reg_buffer {
  void *base;
  size_t size;
  LIST_HEAD(connector_regs, connector_reg) regs;
  LIST_ENTRY(rt_reg_buffer) link;
};

rail_result_t rt_reg_add(struct ncclComm *comm, void *base, size_t size, struct rt_reg_buffer **out) {
  struct rt_reg_buffer *b = calloc(1, sizeof *b);
  if (!b) return RAIL_SYSTEM_ERROR;
  b->base = base;
  b->size = size;
  pthread_mutex_lock(&comm->reg_lock);
  LIST_INSERT_HEAD(&comm->reg_buffers, b, link);
  pthread_mutex_unlock(&comm->reg_lock);
  *out = b;
  return RAIL_OK;
}

static void deregister(struct ncclComm *comm, struct rt_reg_buffer *b) {
  struct connector_reg *reg;
  while ((reg = LIST_FIRST(&b->regs)) != NULL) {
    LIST_REMOVE(reg, link);
    reg->connector->end->dereg(comm, reg->connector, reg->mhandle);
    free(reg);
  }
}

static void buffer_free(struct ncclComm *comm, struct rt_reg_buffer *b) {
  deregister(comm, b);
  free(b);
}

rail_result_t rt_reg_remove(struct ncclComm *comm, struct rt_reg_buffer *handle) {
  pthread_mutex_lock(&comm->reg_lock);
  struct rt_reg_buffer *b = LIST_FIRST(&comm->reg_buffers);
  while (b && b != handle) b = LIST_NEXT(b, link);
  if (b) LIST_REMOVE(b, link);
  pthread_mutex_unlock(&comm->reg_lock);
  if (!b) return RAIL_BAD_ARGUMENT;
  buffer_free(comm, b);
  return RAIL_OK;
}

/* Without the lock: no other thread has a communicator that is freed. */
void rt_reg_free_all(struct ncclComm *comm) {
  struct rt_reg_buffer *b;
  while ((b = LIST_FIRST(&comm->reg_buffers)) != NULL) {
    LIST_REMOVE(b, link);
    buffer_free(comm, b);
  }
}

void rt_reg_drop_connectors(struct ncclComm *comm) {
  struct rt_reg_buffer *b;
  pthread_mutex_lock(&comm->reg_lock);
  LIST_FOREACH(b, &comm->reg_buffers, link) deregister(comm, b);
  pthread_mutex_unlock(&comm->reg_lock);
}

void *rt_reg_base(struct ncclComm *comm, const struct rt_reg_buffer *handle) {
  pthread_mutex_lock(&comm->reg_lock);
  struct rt_reg_buffer *b = LIST_FIRST(&comm->reg_buffers);
  while (b && b != handle) b = LIST_NEXT(b, link);
  void *base = b ? b->base : NULL;
  pthread_mutex_unlock(&comm->reg_lock);
  return base;
}

/* The handle of [base, base+size) with c, if a registered buffer contains it: made at first use. NULL when there is
 * none, or the registration fails. */
static void *find_handle(struct ncclComm *comm, struct rt_connector *c, const char *base, size_t size) {
  struct rt_reg_buffer *b = LIST_FIRST(&comm->reg_buffers);
  while (b && !(base >= (char *)b->base && base + size <= (char *)b->base + b->size)) b = LIST_NEXT(b, link);
  if (!b) return NULL;
  struct connector_reg *reg;
  LIST_FOREACH(reg, &b->regs, link)
    if (reg->connector == c) return reg->mhandle;
  reg = malloc(sizeof *reg);
  if (!reg) return NULL;
  if (c->end->reg(comm, c, b->base, b->size, &reg->mhandle) != RAIL_OK) {
    free(reg);
    return NULL;
  }
  reg->connector = c;
  LIST_INSERT_HEAD(&b->regs, reg, link);
  return reg->mhandle;
}

void rt_reg_direct(struct ncclComm *comm, struct rt_connector *c, const void *base, size_t size, struct rt_direct *d,
                   void **mine) {
  *d = (struct rt_direct){0};
  *mine = NULL;
  if (!c->end->reg || !base || size < (size_t)rt_params()->direct_min) return;
  pthread_mutex_lock(&comm->reg_lock);
  void *mhandle = find_handle(comm, c, base, size);
  pthread_mutex_unlock(&comm->reg_lock);
  if (!mhandle && comm->net.cheap_reg) {
    if (c->end->reg(comm, c, (void *)(uintptr_t)base, size, &mhandle) != RAIL_OK) return;
    *mine = mhandle;
  }
  if (mhandle) *d = (struct rt_direct){.base = base, .size = size, .mhandle = mhandle};
}
