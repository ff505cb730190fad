/* SPDX-License-Identifier: Apache-2.0
 *
 * The wrapper: life cycle, devices, and the operations table. A plugin stands
 * behind it (tr_wrap.c); calls on connections pass through tr_connect.c,
 * tr_memory.c, tr_data.c and tr_test.c, which compare what they see with the
 * rules (tr_finding.c) and write it down (tr_record.c).
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "plugin/railtrace/tr_call.h"
#include "plugin/railtrace/tr_wrap.h"

char rail_plugin_name[RAIL_TRACE_TEXT] = "RailTrace";
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

/* NCCL reads the name right after dlopen and compares it with NCCL_NET: it has to be there by then. */
__attribute__((constructor)) static void learn_name(void) {
  tr_params_load();
  struct rail_net *net = tr_wrap_net(RAIL_NET_VERSION_MAX);
  if (net) snprintf(rail_plugin_name, sizeof rail_plugin_name, "%s+trace", rail_net_name(net));
}

/* After the one that finalizes the context of v6 to v10 (common/net/abi_common.c). */
__attribute__((destructor(101))) static void unload(void) {
  struct rail_trace_end end = {0};
  tr_findings_count(end.findings);
  tr_record_close(&end);
  tr_wrap_log_failure(); /* no caller has begun */
  /* A program that ends in the middle: what is open stays reachable, and the wrapped library stays loaded, as it would
   * without this one in front. */
  if (tr_ctx_any_live()) return;
  tr_ctx_free_all();
  tr_objects_free();
  tr_wrap_unload();
}

/* ---- contexts ---------------------------------------------------------- */

static void open_record(struct rail_net *net, int version) {
  struct rail_trace_header h = {.clock_ns = rail_now_ns(), .pid = (uint32_t)getpid()};
  struct timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  h.realtime_ns = (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
  h.caller_version = (uint32_t)version;
  h.plugin_version = (uint32_t)rail_net_version(net);
  if (gethostname(h.host, sizeof h.host - 1) != 0) h.host[0] = 0;
  snprintf(h.program, sizeof h.program, "%s", program_invocation_short_name);
  snprintf(h.plugin_path, sizeof h.plugin_path, "%s", rail_net_path(net));
  snprintf(h.plugin_name, sizeof h.plugin_name, "%s", rail_net_name(net));
  tr_record_open(&h);
}

static void check_environment(void) {
  static const struct rail_param_table *const tables[] = {&tr_param_table};
  rail_param_check_unknown(tables, RAIL_COUNT_OF(tables));
  if (!tr_params.plugin)
    RAIL_WARN("railtrace has no plugin to watch, so there are no devices: set RAIL_TRACE_PLUGIN to the path of one, or "
              "to its name as for NCCL_NET_PLUGIN");
}

static rail_result_t init_wrapped(struct rail_net *net, void **ctx_out, const struct rail_net_init *args) {
  struct rail_trace_event e;
  void *real = NULL;
  open_record(net, args->version);
  tr_begin(&e, RAIL_TRACE_INIT);
  e.dev = args->version;
  e.value = args->comm_id;
  e.tag = args->traffic_class;
  e.made = 0;
  rail_result_t result = rail_net_init(net, args, &real);
  tr_end(&e, (int)result);
  if (result == RAIL_OK) {
    struct tr_ctx *ctx = tr_ctx_new(net, real);
    if (!ctx) (void)rail_net_finalize(net, real);
    result = ctx ? RAIL_OK : RAIL_SYSTEM_ERROR;
    e.made = ctx ? ctx->id : 0;
    *ctx_out = ctx;
  }
  if (result == RAIL_OK) tr_wrap_set_current(net);
  tr_record(&e);
  return result;
}

static rail_result_t tr_init(void **ctx_out, const struct rail_net_init *args) {
  static bool checked;
  pthread_mutex_lock(&init_lock);
  rail_log_set_prefix("NET/railtrace");
  if (args->log) rail_log_set_sink(args->log);
  struct rail_net *net = tr_wrap_net(args->version);
  rail_result_t result = RAIL_OK;
  if (!checked) check_environment();
  if (!net) tr_wrap_log_failure();
  checked = true;
  if (net) {
    result = init_wrapped(net, ctx_out, args);
  } else { /* success with no devices: NCCL goes on to the next plugin without a crash (2.28.9) */
    *ctx_out = tr_ctx_new(NULL, NULL);
    if (!*ctx_out) result = RAIL_SYSTEM_ERROR;
  }
  pthread_mutex_unlock(&init_lock);
  return result;
}

static rail_result_t tr_finalize(void *arg) {
  struct rail_trace_event e;
  if (!arg) return RAIL_OK;
  struct tr_ctx *ctx = tr_ctx_of(arg, "finalize");
  if (!ctx) return RAIL_BAD_ARGUMENT;
  tr_begin(&e, RAIL_TRACE_FINALIZE);
  e.ctx = ctx->id;
  rail_result_t result = ctx->net ? rail_net_finalize(ctx->net, ctx->real) : RAIL_OK;
  tr_end(&e, (int)result);
  tr_record(&e);
  tr_attempts_drop(ctx);
  if (tr_ctx_end(ctx) == 0 && ctx->net) {
    tr_record_flush();
    tr_summary();
  }
  return result;
}

static rail_result_t tr_set_net_attr(void *arg, const struct rail_net_attr *attr) {
  struct rail_trace_event e;
  struct tr_ctx *ctx = tr_ctx_of(arg, "setNetAttr");
  if (!ctx) return RAIL_BAD_ARGUMENT;
  if (!ctx->net) return RAIL_OK;
  tr_begin(&e, RAIL_TRACE_SET_ATTR);
  e.ctx = ctx->id;
  e.attr = *attr;
  rail_result_t result = rail_net_set_attr(ctx->net, ctx->real, attr);
  tr_end(&e, (int)result);
  tr_record(&e);
  return result;
}

/* ---- devices ----------------------------------------------------------- */

static rail_result_t tr_devices(int *ndev) {
  struct rail_trace_event e;
  struct rail_net *net = tr_wrap_current();
  *ndev = 0;
  if (!net) return RAIL_OK;
  tr_begin(&e, RAIL_TRACE_DEVICES);
  rail_result_t result = rail_net_devices(net, ndev);
  tr_end(&e, (int)result);
  e.value = (uint64_t)*ndev;
  tr_record(&e);
  return result;
}

static rail_result_t tr_get_properties(int dev, struct rail_net_props_v12 *props) {
  struct rail_trace_event e;
  struct rail_net *net = tr_wrap_current();
  if (!net) return RAIL_BAD_ARGUMENT;
  tr_begin(&e, RAIL_TRACE_PROPERTIES);
  rail_result_t result = rail_net_properties(net, dev, props);
  tr_end(&e, (int)result);
  e.dev = dev;
  if (result != RAIL_OK) memset(props, 0, sizeof *props);
  e.props = *props;
  tr_record(&e);
  return result;
}

static rail_result_t tr_make_vdevice(int *dev, const struct rail_net_vprops_v12 *props) {
  struct rail_trace_event e;
  struct rail_net *net = tr_wrap_current();
  if (!net) return RAIL_BAD_ARGUMENT;
  tr_begin(&e, RAIL_TRACE_MAKE_VDEVICE);
  rail_result_t result = rail_net_make_vdevice(net, dev, props);
  tr_end(&e, (int)result);
  e.dev = result == RAIL_OK ? *dev : -1;
  e.n = (unsigned int)RAIL_MAX(0, RAIL_MIN(props->ndevs, (int)RAIL_COUNT_OF(props->devs)));
  for (unsigned int i = 0; i < e.n; i++) e.bufs[i] = (struct rail_trace_buf){.tag = props->devs[i]};
  tr_record(&e);
  return result;
}

const struct rail_net_ops rail_plugin_ops = {
  .name = rail_plugin_name, .params = &tr_param_table,
  /* process and devices */
  .init = tr_init,
  .finalize = tr_finalize,
  .devices = tr_devices,
  .get_properties = tr_get_properties,
  .make_vdevice = tr_make_vdevice,
  .set_net_attr = tr_set_net_attr,
  /* connections */
  .listen = tr_listen,
  .connect = tr_connect,
  .accept = tr_accept,
  .close_send = tr_close_send,
  .close_recv = tr_close_recv,
  .close_listen = tr_close_listen,
  /* memory */
  .reg_mr = tr_reg_mr,
  .reg_mr_dmabuf = tr_reg_mr_dmabuf,
  .dereg_mr = tr_dereg_mr,
  .get_device_mr = tr_get_device_mr,
  /* data */
  .isend = tr_isend,
  .irecv = tr_irecv,
  .iflush = tr_iflush,
  .test = tr_test,
  .irecv_consumed = tr_irecv_consumed,
};
