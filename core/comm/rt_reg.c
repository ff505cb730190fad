/* SPDX-License-Identifier: Apache-2.0 */
#include "core/comm/rt_reg.h"

#include <stdlib.h>

#include "common/base/log.h"
#include "core/comm/rt_param.h"

/* The buffer's registration with one connection. */
struct reg_use {
  struct rt_connector *connector;
  void *mhandle;
  struct reg_use *next;
};

struct reg_entry {
  struct rt_reg_buffer pub; /* first: handles are pointers to it */
  struct reg_use *uses;
};

rail_result_t rt_reg_add(struct ncclComm *comm, void *base, size_t size, struct rt_reg_buffer **out) {
  struct reg_entry *e = calloc(1, sizeof *e);
  if (!e) return RAIL_SYSTEM_ERROR;
  e->pub.base = base;
  e->pub.size = size;
  pthread_mutex_lock(&comm->reg_lock);
  e->pub.next = comm->reg_buffers;
  comm->reg_buffers = &e->pub;
  pthread_mutex_unlock(&comm->reg_lock);
  *out = &e->pub;
  return RAIL_OK;
}

static void entry_free(struct ncclComm *comm, struct reg_entry *e) {
  while (e->uses) {
    struct reg_use *u = e->uses;
    e->uses = u->next;
    u->connector->end->dereg(comm, u->connector, u->mhandle);
    free(u);
  }
  free(e);
}

rail_result_t rt_reg_remove(struct ncclComm *comm, struct rt_reg_buffer *buffer) {
  pthread_mutex_lock(&comm->reg_lock);
  struct rt_reg_buffer **at = &comm->reg_buffers;
  while (*at && *at != buffer) at = &(*at)->next;
  if (*at)
    *at = buffer->next;
  else
    buffer = NULL;
  pthread_mutex_unlock(&comm->reg_lock);
  if (!buffer) return RAIL_BAD_ARGUMENT;
  entry_free(comm, (struct reg_entry *)(void *)buffer);
  return RAIL_OK;
}

void rt_reg_free_all(struct ncclComm *comm) {
  while (comm->reg_buffers) {
    struct rt_reg_buffer *b = comm->reg_buffers;
    comm->reg_buffers = b->next;
    entry_free(comm, (struct reg_entry *)(void *)b);
  }
}

static struct reg_entry *find(struct ncclComm *comm, const char *base, size_t size) {
  for (struct rt_reg_buffer *b = comm->reg_buffers; b; b = b->next)
    if (base >= (char *)b->base && base + size <= (char *)b->base + b->size) return (struct reg_entry *)(void *)b;
  return NULL;
}

/* The entry's handle with c, made at first use; NULL when it cannot be. */
static void *use(struct ncclComm *comm, struct reg_entry *e, struct rt_connector *c) {
  for (struct reg_use *u = e->uses; u; u = u->next)
    if (u->connector == c) return u->mhandle;
  struct reg_use *u = malloc(sizeof *u);
  if (!u) return NULL;
  if (c->end->reg(comm, c, e->pub.base, e->pub.size, &u->mhandle) != RAIL_OK) {
    free(u);
    return NULL;
  }
  u->connector = c;
  u->next = e->uses;
  e->uses = u;
  return u->mhandle;
}

void rt_reg_direct(struct ncclComm *comm, struct rt_connector *c, const void *base, size_t size, struct rt_direct *d,
                   void **mine) {
  *d = (struct rt_direct){0};
  *mine = NULL;
  if (!c->end->reg || !base || size < (size_t)rt_params()->direct_min) return;
  pthread_mutex_lock(&comm->reg_lock);
  struct reg_entry *e = find(comm, base, size);
  void *mhandle = e ? use(comm, e, c) : NULL;
  pthread_mutex_unlock(&comm->reg_lock);
  if (!mhandle && comm->net.cheap_reg) {
    if (c->end->reg(comm, c, (void *)(uintptr_t)base, size, &mhandle) != RAIL_OK) return;
    *mine = mhandle;
  }
  if (mhandle) *d = (struct rt_direct){.base = base, .size = size, .mhandle = mhandle};
}
