/* SPDX-License-Identifier: Apache-2.0
 * The plugin behind the wrapper, and the contexts. */
#ifndef TR_WRAP_H
#define TR_WRAP_H

#include "common/net/net_ops.h"
#include "plugin/railtrace/tr_object.h"

struct tr_ctx {
  uint64_t id;
  struct rail_net *net;
  void *real;
  bool live;
  struct tr_ctx *next;
};

/* The wrapped plugin as a caller of this version gets it: its newest vtable that is not newer, which is what NCCL
 * would choose without us. NULL: there is none. */
struct rail_net *tr_wrap_net(int version);
/* Says why RAIL_TRACE_PLUGIN could not be loaded, if so, the first time. */
void tr_wrap_log_failure(void);
/* That of the latest init: calls without a context (devices and the like) go there. NULL: there is no plugin. */
struct rail_net *tr_wrap_current(void);
void tr_wrap_set_current(struct rail_net *net);
void tr_wrap_unload(void);

/* Devices as the plugin reports them. 0 or 1 if it does not. */
int tr_wrap_devices(struct rail_net *net);
unsigned int tr_wrap_max_recvs(struct rail_net *net, int dev);

struct tr_ctx *tr_ctx_new(struct rail_net *net, void *real);
/* NULL, after a finding, when it is none or was finalized. */
struct tr_ctx *tr_ctx_of(void *ctx, const char *call);
/* How many are left. */
unsigned int tr_ctx_end(struct tr_ctx *ctx);
bool tr_ctx_any_live(void);
void tr_ctx_free_all(void);

#endif
