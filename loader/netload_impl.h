/* SPDX-License-Identifier: Apache-2.0
 * Shared by netload*.c, only. */
#ifndef RAIL_NETLOAD_IMPL_H
#define RAIL_NETLOAD_IMPL_H

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>

#include "loader/netload.h"
#include "loader/netload_slots.h"

/* One per plugin and process, however often it is loaded: below v11 a plugin
 * expects one init per process. `next` and `loads` are under a lock in netload.c. */
struct rail_net_instance {
  struct rail_net_instance *next;
  const void *vtable; /* identity */
  int loads;
  pthread_mutex_t init_lock;
  bool initialised; /* v6-v10; under init_lock */
};

struct rail_net {
  struct rail_net_slots slots;
  bool complete;       /* no needed slot is NULL; until then init's success fills them */
  const char *missing; /* the slot that init's success has left NULL */
  int version;
  const void *vtable;
  void *library; /* from dlopen */
  struct rail_net_instance *instance;
  char path[PATH_MAX];
};

/* What rail_net_init hands out for v6-v10, which have no contexts. */
struct rail_net_old_ctx {
  int traffic_class;
};

#endif
