/* SPDX-License-Identifier: Apache-2.0
 * Loads and starts the plugin under test, connects over it, and drives sends and receives to their end, with what the
 * contract says of each call checked. */
#include "kit/kit_net.h"

#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/kit_call_trace.h"
#include "kit/kit_process.h"
#include "kit/kit_vtable.h"
#include "loader/install_dirs.h"
#include "loader/netload.h"
#include "loader/netload_slots.h"

static atomic_int warnings;
static void (*on_warning)(const char *text), (*on_info)(const char *text);
static struct { const char *plugin; int version, dev; struct rail_net_vprops_v12 fuse; } target;

void kit_net_on_warning(void (*fn)(const char *text)) { on_warning = fn; }
void kit_net_on_info(void (*fn)(const char *text)) { on_info = fn; }

void kit_net_target(const char *plugin, int version, int dev) {
  target.plugin = plugin;
  target.version = version;
  target.dev = dev;
}

void kit_net_target_fused(const struct rail_net_vprops_v12 *devices) { target.fuse = *devices; }

void kit_net_log(enum rail_log_level level, unsigned long flags, const char *file, int line, const char *fmt, ...) {
  (void)flags;
  if (level == RAIL_LOG_WARN) atomic_fetch_add(&warnings, 1);
  void (*on_line)(const char *) = level == RAIL_LOG_WARN ? on_warning : level == RAIL_LOG_INFO ? on_info : NULL;
  if (!on_line && !getenv("RAIL_TEST_VERBOSE")) return;
  char text[1024];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  if (on_line) on_line(text);
  if (getenv("RAIL_TEST_VERBOSE")) fprintf(stderr, "# [%d] %d %s:%d %s\n", (int)getpid(), (int)level, file, line, text);
}

int kit_net_warnings(void) { return atomic_load(&warnings); }

const char *kit_plugin_path(void) {
  static _Thread_local char path[PATH_MAX];
  const char *env = getenv("RAIL_TEST_PLUGIN"), *build = getenv("RAIL_BUILD");
  if (target.plugin) return target.plugin;
  if (env) return env;
  if (build) {
    snprintf(path, sizeof path, "%s/lib/libnccl-net-socket.so", build);
    return path;
  }
  ENSURE(rail_path_from_bin(path, "../../lib/libnccl-net-socket.so"), "this program's own path is not known");
  return path;
}

/* Traffic of tests stays on the loopback interface unless the caller chooses another. */
static void stay_local(void) {
  if (!getenv("RAIL_KIT_REMOTE")) setenv("NCCL_SOCKET_IFNAME", "lo", 0);
}

static int target_version(void) {
  const char *abi = getenv("RAIL_TEST_ABI");
  return target.plugin ? target.version : abi ? atoi(abi) : 0;
}

void kit_net_load(struct kit_net *n, int version) {
  const char *dev = getenv("RAIL_TEST_DEV");
  char why[1024] = "";
  if (version == KIT_TARGET) version = target_version();
  memset(n, 0, sizeof *n);
  n->dev = target.plugin ? target.dev : dev ? atoi(dev) : 0;
  stay_local();
  kit_call_begin(KIT_CALL_LOAD);
  rail_result_t rc = rail_net_load(kit_plugin_path(), version, &n->any, why, sizeof why);
  kit_call_end();
  ENSURE(rc == RAIL_OK, "%s cannot be loaded: %s", kit_plugin_path(), why);
  n->version = rail_net_version(n->any);
  ENSURE(version == 0 || n->version == version, "%s has no ncclNetPlugin_v%d (the newest below is v%d)",
         kit_plugin_path(), version, n->version);
  n->vt = kit_traced_vtable(n->version == 12 ? rail_net_vtable(n->any) : kit_any_vtable(n->any));
}

int kit_net_fuse(struct kit_net *n) {
  struct rail_net_slots slots;
  struct rail_net_vprops_v12 devices = target.fuse;
  if (devices.ndevs == 0) return 0;
  bool can = !rail_net_slots_fill(&slots, n->version, rail_net_vtable(n->any)) &&
             (slots.make_vdevice_v9 || slots.make_vdevice_v12);
  if (!can) kit_skip("ncclNetPlugin_v%d has no makeVDevice", n->version);
  int rc = n->vt->make_vdevice(&n->dev, &devices);
  return rc == 0 ? n->vt->devices(&n->ndev) : rc;
}

int kit_net_init(struct kit_net *n, rail_profiler_fn profiler, int traffic_class) {
  struct rail_net_slots slots;
  struct rail_net_config config = {.traffic_class = traffic_class};
  n->ctx = NULL; /* as NCCL presets it; whether init writes it is for a check of its own */
  int rc = n->vt->init(&n->ctx, 0x1234, &config, kit_net_log, profiler);
  const char *missing = rail_net_missing_slot(n->any);
  if (!missing && rc == 0) missing = rail_net_slots_fill(&slots, n->version, rail_net_vtable(n->any));
  ENSURE(!missing, "the slot %s of ncclNetPlugin_v%d is NULL, also after init; NCCL calls it without looking", missing,
         n->version);
  if (rc != 0) return rc;
  rc = n->vt->devices(&n->ndev);
  ENSURE(rc == 0, "devices returned %s", kit_rc_text(rc));
  ENSURE(n->ndev > 0, "the plugin has no device here");
  rc = kit_net_fuse(n);
  ENSURE(rc == 0, "makeVDevice of %d devices returned %s", target.fuse.ndevs, kit_rc_text(rc));
  ENSURE(n->dev < n->ndev, "there is no device %d: the plugin has %d", n->dev, n->ndev);
  return 0;
}

void kit_net_open_version(struct kit_net *n, int version) {
  kit_net_load(n, version);
  int rc = kit_net_init(n, NULL, -1);
  ENSURE(rc == 0, "init returned %s", kit_rc_text(rc));
}

void kit_net_open(struct kit_net *n) { kit_net_open_version(n, KIT_TARGET); }

void kit_net_unload(struct kit_net *n) {
  if (n->version != 12) kit_any_vtable_end(n->any);
  kit_call_begin(KIT_CALL_UNLOAD);
  rail_net_unload(n->any);
  kit_call_end();
  kit_traced_vtable_end(n->vt);
  memset(n, 0, sizeof *n);
}

void kit_net_close(struct kit_net *n) {
  int rc = n->vt->finalize ? n->vt->finalize(n->ctx) : 0;
  ENSURE(rc == 0, "finalize returned %s", kit_rc_text(rc));
  kit_net_unload(n);
}

/* ---- connections ---- */

void *kit_net_listen(struct kit_net *n, void *handle) {
  void *comm = KIT_POISON;
  int rc = n->vt->listen(n->ctx, n->dev, handle, &comm);
  ENSURE(rc == 0, "listen returned %s", kit_rc_text(rc));
  ENSURE(comm && comm != KIT_POISON, "listen gave no comm");
  return comm;
}

bool kit_connect_step(struct kit_net *n, void *handle, void **comm) {
  struct rail_net_device_handle *dev_handle = NULL;
  *comm = NULL;
  int rc = n->vt->connect(n->ctx, n->dev, handle, comm, &dev_handle);
  ENSURE(rc == 0, "connect returned %s", kit_rc_text(rc));
  return *comm != NULL;
}

bool kit_accept_step(struct kit_net *n, void *listen, void **comm) {
  struct rail_net_device_handle *dev_handle = NULL;
  *comm = NULL;
  int rc = n->vt->accept(listen, comm, &dev_handle);
  ENSURE(rc == 0, "accept returned %s", kit_rc_text(rc));
  return *comm != NULL;
}

void *kit_net_connect(struct kit_net *n, void *handle) {
  void *comm;
  int quiet = 0;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (!kit_connect_step(n, handle, &comm)) {
    ENSURE(!rail_deadline_passed(deadline), "no connection within the deadline");
    kit_rest(&quiet);
  }
  return comm;
}

void *kit_net_accept(struct kit_net *n, void *listen) {
  void *comm;
  int quiet = 0;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (!kit_accept_step(n, listen, &comm)) {
    ENSURE(!rail_deadline_passed(deadline), "nothing to accept within the deadline");
    kit_rest(&quiet);
  }
  return comm;
}

void kit_pair_connect(struct kit_pair *p) {
  int quiet = 0;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (!p->send || !p->recv) {
    if (!p->send) kit_connect_step(p->net, p->handle, &p->send);
    if (!p->recv) kit_accept_step(p->net, p->listen, &p->recv);
    ENSURE(!rail_deadline_passed(deadline), "no connection within the deadline (send %p, recv %p)", p->send, p->recv);
    kit_rest(&quiet);
  }
}

void kit_pair_open(struct kit_net *n, struct kit_pair *p) {
  memset(p, 0, sizeof *p);
  p->net = n;
  memset(p->handle, 0xa5, sizeof p->handle);
  p->listen = kit_net_listen(n, p->handle);
  kit_pair_connect(p);
  int rc = n->vt->close_listen(p->listen);
  p->listen = NULL;
  ENSURE(rc == 0, "closeListen returned %s", kit_rc_text(rc));
}

void kit_pair_close(struct kit_pair *p) {
  int a = p->net->vt->close_send(p->send), b = p->net->vt->close_recv(p->recv), c = 0;
  if (p->listen) c = p->net->vt->close_listen(p->listen);
  p->send = p->recv = p->listen = NULL;
  ENSURE(a == 0 && b == 0 && c == 0, "closeSend, closeRecv, closeListen returned %s, %s, %s", kit_rc_text(a),
         kit_rc_text(b), kit_rc_text(c));
}

/* ---- transfers ---- */

struct kit_op kit_op_send(void *comm, const void *data, size_t size, int tag) {
  struct kit_op op = {.kind = KIT_OP_SEND, .comm = comm, .n = 1};
  op.data[0] = (void *)(uintptr_t)data;
  op.size[0] = size;
  op.tag[0] = tag;
  return op;
}

struct kit_op kit_op_recv(void *comm, void *data, size_t size, int tag) {
  struct kit_op op = kit_op_send(comm, data, size, tag);
  op.kind = KIT_OP_RECV;
  return op;
}

bool kit_op_post(struct kit_net *n, struct kit_op *op) {
  int rc;
  if (!op->comm) return op->done = true;
  if (op->n == 0) op->n = 1;
  void *preset = op->optional ? RAIL_NET_OPTIONAL_RECV : KIT_POISON;
  op->req = preset;
  if (op->kind == KIT_OP_SEND) {
    rc = n->vt->isend(op->comm, op->data[0], op->size[0], op->tag[0], op->mh[0], NULL, &op->req);
  } else {
    /* Copies, overwritten after it: the arrays belong to the plugin only during the call. */
    static _Thread_local void *data[KIT_MAX_GROUP];
    static _Thread_local void *mh[KIT_MAX_GROUP];
    static _Thread_local size_t size[KIT_MAX_GROUP];
    static _Thread_local int tag[KIT_MAX_GROUP];
    memcpy(data, op->data, sizeof data);
    memcpy(mh, op->mh, sizeof mh);
    memcpy(size, op->size, sizeof size);
    memcpy(tag, op->tag, sizeof tag);
    rc = n->vt->irecv(op->comm, op->n, data, size, tag, mh, NULL, &op->req);
    memset(data, 0xee, sizeof data);
    memset(mh, 0xee, sizeof mh);
    memset(size, 0xee, sizeof size);
    memset(tag, 0xee, sizeof tag);
  }
  if (rc != 0) {
    op->error = rc;
    op->req = NULL;
    return false;
  }
  ENSURE(op->req != preset,
         "%s returned 0 and did not write *request: NCCL's slot still holds an old pointer and would be tested",
         op->kind == KIT_OP_SEND ? "isend" : "irecv");
  return op->req != NULL;
}

bool kit_op_test(struct kit_net *n, struct kit_op *op) {
  if (!op->comm) return op->done = true;
  const int poison = 0x5a5a5a5a;
  int done = poison, sizes[KIT_MAX_GROUP + 1];
  for (int i = 0; i <= KIT_MAX_GROUP; i++) sizes[i] = poison;
  if (op->kind == KIT_OP_RECV) memset(sizes, 0, sizeof sizes[0] * (size_t)op->n); /* as NCCL does, net.cc:1617 */
  int rc = n->vt->test(op->req, &done, sizes);
  if (rc != 0) {
    op->error = rc;
    return true;
  }
  ENSURE(done == 0 || done == 1, "test returned 0 and left *done at %#x, expected 0 or 1 (NCCL's is not initialised)",
         (unsigned)done);
  if (!done) return false;
  for (int i = op->n; i <= KIT_MAX_GROUP; i++)
    ENSURE(sizes[i] == poison, "test wrote sizes[%d] of a request with %d buffers", i, op->n);
  memcpy(op->sizes, sizes, sizeof op->sizes);
  op->done = true;
  op->req = NULL;
  return true;
}

static const char *op_name(const struct kit_op *op) { return op->kind == KIT_OP_SEND ? "send" : "receive"; }

static bool has_ended(const struct kit_op *op) { return op->done || op->error || !op->comm; }

/* The one before i on i's comm, NULL for the first. */
static const struct kit_op *before(const struct kit_op *ops, int i) {
  for (int j = i - 1; j >= 0; j--)
    if (ops[j].comm == ops[i].comm) return &ops[j];
  return NULL;
}

static bool may_post(const struct kit_op *ops, int i) {
  const struct kit_op *older = before(ops, i);
  return !older || older->req || has_ended(older);
}

static bool may_test(const struct kit_op *ops, int i, enum kit_ops_order order) {
  if (order != KIT_OPS_OLDEST) return true;
  const struct kit_op *older = before(ops, i);
  return !older || has_ended(older);
}

#define LOOK_AHEAD 600 /* operations behind the first one that is not posted */

/* Transfers under way: kit_ops_run's. */
struct run {
  struct kit_net *net;
  struct kit_op *ops;
  struct kit_ops_options how;
  int count, left, failed;
  int first; /* all before it are posted */
  int *order; /* in which they are tested */
};

static void count_end(struct run *r, const struct kit_op *op) {
  r->left--;
  if (op->error) r->failed++;
}

static void post_some(struct run *r) {
  struct kit_op *ops = r->ops;
  while (r->first < r->count && (ops[r->first].req || has_ended(&ops[r->first]))) r->first++;
  for (int i = r->first; i < r->count && i < r->first + LOOK_AHEAD; i++) {
    if (ops[i].req || has_ended(&ops[i]) || !may_post(ops, i)) continue;
    kit_op_post(r->net, &ops[i]);
    if (ops[i].error) count_end(r, &ops[i]);
  }
}

static void test_some(struct run *r) {
  if (r->how.order == KIT_OPS_SHUFFLED) kit_rng_shuffle(r->how.rng, r->order, r->count);
  for (int k = 0; k < r->count; k++) {
    struct kit_op *op = &r->ops[r->order[k]];
    if (!op->req || has_ended(op) || !may_test(r->ops, r->order[k], r->how.order)) continue;
    if (kit_op_test(r->net, op)) count_end(r, op);
  }
}

static void check_errors(const struct run *r) {
  for (int i = 0; i < r->count; i++)
    ENSURE(!r->ops[i].error, "%s %d of %d ended with error %s", op_name(&r->ops[i]), i, r->count,
           kit_rc_text(r->ops[i].error));
}

_Noreturn static void fail_late(const struct run *r) {
  int i = 0;
  while (has_ended(&r->ops[i])) i++;
  kit_failed(__FILE__, __LINE__, "%d of %d transfers not done at the deadline; the first is %s %d, %s", r->left,
             r->count, op_name(&r->ops[i]), i, r->ops[i].req ? "posted" : "not posted");
}

bool kit_ops_run(struct kit_net *n, struct kit_op *ops, int count, struct kit_ops_options how) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(how.deadline_ms ? how.deadline_ms : KIT_PATIENCE_MS));
  struct run r = {.net = n, .ops = ops, .how = how, .count = count};
  r.order = malloc(sizeof *r.order * (size_t)(count + 1));
  ENSURE(r.order, "out of memory");
  for (int i = 0; i < count; i++) {
    r.order[i] = how.order == KIT_OPS_BACKWARD ? count - 1 - i : i;
    r.left += !has_ended(&ops[i]);
  }
  for (int quiet = 0; r.left > 0;) {
    int left_before = r.left;
    post_some(&r);
    test_some(&r);
    if (r.failed && !how.errors_are_fine) check_errors(&r);
    if (r.left < left_before) {
      quiet = 0;
      continue;
    }
    if (rail_deadline_passed(deadline)) fail_late(&r);
    kit_rest(&quiet);
  }
  free(r.order);
  return r.failed == 0;
}

void kit_op_finish(struct kit_net *n, struct kit_op *op) {
  int quiet = 0;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (!has_ended(op)) {
    if (!op->req) kit_op_post(n, op);
    if (op->req) kit_op_test(n, op);
    ENSURE(!op->error, "%s ended with error %s", op_name(op), kit_rc_text(op->error));
    ENSURE(!rail_deadline_passed(deadline), "%s of %zu bytes not done at the deadline", op_name(op), op->size[0]);
    if (!op->done) kit_rest(&quiet);
  }
}

/* The end that is not here is the peer's to drive. */
void kit_pair_ping(struct kit_pair *p, size_t size, uint64_t seed) {
  struct kit_guarded out = kit_guard_high(size ? size : 1), in = kit_guard_high(size ? size : 1);
  kit_pattern_fill(out.data, size, seed);
  memset(in.data, 0xcc, size);
  struct kit_op ops[2] = {kit_op_recv(p->recv, in.data, size, 7), kit_op_send(p->send, out.data, size, 7)};
  if (p->recv) ops[0].mh[0] = kit_mr_reg(p->net, p->recv, in.data, in.size);
  if (p->send) ops[1].mh[0] = kit_mr_reg(p->net, p->send, out.data, out.size);
  kit_ops_run(p->net, ops, 2, (struct kit_ops_options){0});
  if (p->recv) {
    ENSURE(ops[0].sizes[0] == (int)size, "received %d bytes of %zu", ops[0].sizes[0], size);
    ssize_t wrong = kit_pattern_check(in.data, size, seed);
    ENSURE(wrong < 0, "byte %zd of %zu arrived wrong", wrong, size);
    kit_mr_dereg(p->net, p->recv, ops[0].mh[0]);
  }
  if (p->send) kit_mr_dereg(p->net, p->send, ops[1].mh[0]);
  kit_guard_free(&out);
  kit_guard_free(&in);
}

void *kit_mr_reg(struct kit_net *n, void *comm, void *data, size_t size) {
  void *mh = NULL;
  int rc = n->vt->reg_mr(comm, data, size, RAIL_PTR_HOST, &mh);
  ENSURE(rc == 0, "regMr of %zu bytes returned %s", size, kit_rc_text(rc));
  return mh;
}

void kit_mr_dereg(struct kit_net *n, void *comm, void *mh) {
  int rc = n->vt->dereg_mr(comm, mh);
  ENSURE(rc == 0, "deregMr returned %s", kit_rc_text(rc));
}
