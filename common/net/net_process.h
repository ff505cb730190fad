/* SPDX-License-Identifier: Apache-2.0
 *
 * What init, finalize, devices and makeVDevice do in every plugin: parameters and devices are loaded once
 * a process, contexts are counted, and all of it is under one lock. A plugin has one struct rail_net_process, and
 * functions of one line in its table that call these with it.
 */
#ifndef RAIL_NET_PROCESS_H
#define RAIL_NET_PROCESS_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#include "common/net/net_ctx.h"

struct rail_net_process {
  const char *plugin;     /* begins every message: "RailSocket" */
  const char *log_prefix; /* begins every log line: "NET/RailSocket" */

  /* Under the lock: */
  void (*load)(void);            /* once: parameters */
  /* With each init, devices and makeVDevice; looks again only if it could not look before. Or NULL. */
  void (*load_devices)(void);
  int (*count_devices)(void);
  rail_result_t (*fuse)(int *dev, const struct rail_net_vprops_v12 *props); /* NULL: makeVDevice is not offered */
  rail_result_t (*begin)(void);  /* before a context is made: counters, threads. A failure has been undone */
  void (*end)(unsigned int left); /* undoes begin; so many contexts are left */

  /* What is half open in a context; not under the lock. */
  void (*drop_attempt)(void *attempt);
  void (*close_listener)(struct rail_net_ctx_link *link);

  pthread_mutex_t lock; /* PTHREAD_MUTEX_INITIALIZER; guards what follows */
  unsigned int contexts;
  bool loaded;
  pid_t loader; /* the process that did */
};

rail_result_t rail_net_process_init(struct rail_net_process *p, void **ctx, const struct rail_net_init *args);
/* Frees the context with all that is half open in it. */
rail_result_t rail_net_process_finalize(struct rail_net_process *p, void *ctx);
rail_result_t rail_net_process_devices(struct rail_net_process *p, int *ndev);
rail_result_t rail_net_process_fuse(struct rail_net_process *p, int *dev, const struct rail_net_vprops_v12 *props);

/* For a destructor: may what load_devices opened be closed? Not with contexts that are open, whose threads use it, nor
 * by a forked child, whose parent's it is. */
bool rail_net_process_may_unload(const struct rail_net_process *p);

#endif
