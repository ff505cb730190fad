/* SPDX-License-Identifier: Apache-2.0
 * Parameters and devices once a process; contexts counted. */
#include "common/net/net_process.h"

#include <unistd.h>

#include "common/base/log.h"

/* Under the lock. */
static void load(struct rail_net_process *p) {
  if (!p->loaded) {
    p->load();
    p->loader = getpid();
    p->loaded = true;
  }
  if (p->load_devices) p->load_devices();
}

rail_result_t rail_net_process_init(struct rail_net_process *p, void **ctx_out, const struct rail_net_init *args) {
  struct rail_net_ctx *ctx = NULL;
  pthread_mutex_lock(&p->lock);
  rail_log_set_prefix(p->log_prefix);
  if (args->log) rail_log_set_sink(args->log);
  load(p);
  rail_result_t result = p->begin();
  if (result == RAIL_OK) {
    result = rail_net_ctx_new(p->plugin, args, &ctx);
    if (result == RAIL_OK) p->contexts++;
    else p->end(p->contexts);
  }
  pthread_mutex_unlock(&p->lock);
  *ctx_out = ctx;
  return result;
}

rail_result_t rail_net_process_finalize(struct rail_net_process *p, void *arg) {
  if (!arg) return RAIL_OK;
  struct rail_net_ctx *ctx = rail_net_ctx_of(p->plugin, arg, "finalize");
  if (!ctx) return RAIL_BAD_ARGUMENT;
  rail_net_ctx_free(ctx, p->drop_attempt, p->close_listener);
  pthread_mutex_lock(&p->lock);
  p->end(--p->contexts);
  pthread_mutex_unlock(&p->lock);
  return RAIL_OK;
}

rail_result_t rail_net_process_devices(struct rail_net_process *p, int *ndev) {
  pthread_mutex_lock(&p->lock);
  load(p);
  *ndev = p->count_devices();
  pthread_mutex_unlock(&p->lock);
  return RAIL_OK;
}

rail_result_t rail_net_process_fuse(struct rail_net_process *p, int *dev, const struct rail_net_vprops_v12 *props) {
  if (!dev || !props) {
    RAIL_WARN("%s: makeVDevice: dev %p, props %p; neither may be NULL", p->plugin, (void *)dev, (const void *)props);
    return RAIL_BAD_ARGUMENT;
  }
  pthread_mutex_lock(&p->lock);
  load(p);
  rail_result_t result = p->fuse(dev, props);
  pthread_mutex_unlock(&p->lock);
  return result;
}

bool rail_net_process_may_unload(const struct rail_net_process *p) {
  return !p->contexts && p->loaded && p->loader == getpid();
}
