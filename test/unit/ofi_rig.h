/* SPDX-License-Identifier: Apache-2.0
 *
 * The ofi plugin over libfakefabric.so, through its operations table: contexts, connections and one message in one
 * process, whose sides are two contexts and so two endpoints. Every case chooses what the provider offers: rig_start
 * drops the device table and has it built anew. What is logged is kept (log_lines.h).
 */
#ifndef OFI_RIG_H
#define OFI_RIG_H

#include <poll.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/kit_ensure.h"
#include "plugin/ofi/ofi_comm.h"
#include "plugin/ofi/ofi_device.h"
#include "plugin/ofi/ofi_param.h"
#include "test/harness/log_lines.h"
#include "test/unit/ofi_fake.h"

#define RIG_PATIENCE_MS 60000

static const struct rail_net_ops *const net = &rail_plugin_ops;
static struct ofi_params rig_defaults;

__attribute__((unused)) static void *rig_ctx(void) {
  void *ctx = NULL;
  CHECK_OK(net->init(&ctx, &(struct rail_net_init){.version = 12, .log = log_capture}));
  CHECK(ctx);
  return ctx;
}

/* Once, first in main: parameters are read, and cases may change them. `program` NULL: over the real library. */
__attribute__((unused)) static void rig_use(const char *program) {
  void *ctx = NULL;
  if (program) fake_use(program, "nics=none");
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  if (net->init(&ctx, &(struct rail_net_init){.version = 12, .log = log_capture}) != RAIL_OK) abort();
  if (net->finalize(ctx) != RAIL_OK) abort();
  rig_defaults = ofi_params;
  if (!program) return;
  rig_defaults.provider = "fake";   /* taken only when named */
  rig_defaults.inline_bytes = 2048; /* whatever the provider's name is */
}

#define RIG_MAIN(...)                                                               \
  int main(int argc, char **argv) {                                                 \
    static const struct tap_case cases[] = {__VA_ARGS__};                           \
    rig_use(argv[0]);                                                               \
    return tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);             \
  }

static const char *const rig_kinds[] = {"mr", "ep", "av", "cq", "domain", "fabric", "info"};
static long rig_live[RAIL_COUNT_OF(rig_kinds)]; /* what a case that failed has left */

/* What the provider offers from now on; all parameters have the values of rig_use, but the provider is that of the
 * offers.
 * Before it all contexts are finalized. */
__attribute__((unused)) static void rig_start(const char *offers) {
  static char provider[64];
  const char *prov = strstr(offers, "prov=");
  char script[1024];
  ofi_devices_unload();
  snprintf(script, sizeof script, "nics=none reset=1 %s", offers);
  fake_script(script);
  fake_forgive();
  log_forget();
  ofi_params = rig_defaults;
  if (prov) {
    snprintf(provider, sizeof provider, "%.*s", (int)strcspn(prov + 5, " "), prov + 5);
    ofi_params.provider = provider;
  }
  ofi_params.close_ms = RIG_PATIENCE_MS; /* this machine may stand still for longer than the default */
  for (size_t i = 0; i < RAIL_COUNT_OF(rig_kinds); i++) rig_live[i] = fake_live(rig_kinds[i]);
}

/* Everything is closed: nothing is left, and nothing was done that libfabric forbids. */
__attribute__((unused)) static void rig_end(void) {
  ofi_devices_unload();
  CHECK_MSG(fake_violations() == 0, "%ld violations, the last: %s", fake_violations(), fake_violation());
  for (size_t i = 0; i < RAIL_COUNT_OF(rig_kinds); i++)
    CHECK_MSG(fake_live(rig_kinds[i]) == rig_live[i], "%ld of %s are left", fake_live(rig_kinds[i]) - rig_live[i],
              rig_kinds[i]);
}

/* The device fused from the first n. */
__attribute__((unused)) static int rig_fuse(int n) {
  struct rail_net_vprops_v12 props = {.ndevs = n};
  int dev = -1;
  for (int i = 0; i < n; i++) props.devs[i] = i;
  if (n == 1) return 0;
  ofi_params.fuse_no_pci = 1;
  CHECK_OK(net->make_vdevice(&dev, &props));
  return dev;
}

/* Waits for it while `step` is run. */
#define RIG_UNTIL(cond, step)                                                                        \
  do {                                                                                               \
    uint64_t rig_end_ = rail_deadline_in_ms(RIG_PATIENCE_MS);                                        \
    while (!(cond)) {                                                                                \
      CHECK_MSG(!rail_deadline_passed(rig_end_), "%s: never; said so far:\n%s", #cond, log_lines); \
      step;                                                                                          \
    }                                                                                                \
  } while (0)

/* ---- a connection ------------------------------------------------------------------- */

struct rig {
  void *ctx[2]; /* the sender's, the receiver's */
  void *listen, *sc, *rc;
  char handle[RAIL_NET_HANDLE_SIZE];
  void *mh_out, *mh_in; /* of rig_open_pair: the sender's memory, the receiver's */
};

__attribute__((unused)) static struct ofi_comm *rig_comm(void *comm) { return comm; }

/* One call of each side. False: one has failed, with *result. */
__attribute__((unused)) static bool rig_step(struct rig *r, int dev_s, rail_result_t *result) {
  *result = RAIL_OK;
  if (!r->sc) *result = net->connect(r->ctx[0], dev_s, r->handle, -1, &r->sc, NULL);
  if (!r->rc && *result == RAIL_OK) *result = net->accept(r->listen, &r->rc, NULL);
  return *result == RAIL_OK;
}

__attribute__((unused)) static void rig_listen(struct rig *r, int dev) {
  CHECK_MSG(net->listen(r->ctx[1], dev, r->handle, &r->listen) == RAIL_OK, "%s", log_lines);
  CHECK(r->listen);
}

/* One more connection between the contexts. */
__attribute__((unused)) static void rig_connect(struct rig *r, int dev_s, int dev_r) {
  rail_result_t result = RAIL_OK;
  r->sc = r->rc = NULL;
  rig_listen(r, dev_r);
  RIG_UNTIL(r->sc && r->rc,
            CHECK_MSG(rig_step(r, dev_s, &result), "result %d; said so far:\n%s", result, log_lines));
  CHECK_OK(net->close_listen(r->listen));
  r->listen = NULL;
}

/* Both sides, of n NICs each. */
__attribute__((unused)) static void rig_open(struct rig *r, int nics_s, int nics_r) {
  memset(r, 0, sizeof *r);
  r->ctx[0] = rig_ctx();
  r->ctx[1] = rig_ctx();
  int dev_s = rig_fuse(nics_s), dev_r = nics_r == nics_s ? dev_s : rig_fuse(nics_r);
  rig_connect(r, dev_s, dev_r);
}

__attribute__((unused)) static void rig_finalize(struct rig *r) {
  for (int i = 0; i < 2; i++) {
    if (r->ctx[i]) CHECK_OK(net->finalize(r->ctx[i]));
    r->ctx[i] = NULL;
  }
}

__attribute__((unused)) static void rig_close(struct rig *r) {
  CHECK_OK(net->close_send(r->sc));
  CHECK_OK(net->close_recv(r->rc));
  r->sc = r->rc = NULL;
  rig_finalize(r);
}

/* ---- calls --------------------------------------------------------------------------- */

__attribute__((unused)) static void *rig_reg(void *comm, void *data, size_t size) {
  void *mhandle = NULL;
  CHECK_OK(net->reg_mr(comm, data, size, RAIL_PTR_HOST, &mhandle));
  CHECK(mhandle);
  return mhandle;
}

/* A connection and memory of both sides, after rig_start. */
__attribute__((unused)) static void rig_open_pair(struct rig *r, int nics_s, int nics_r, void *out, size_t out_size,
                                                  void *in, size_t in_size) {
  rig_open(r, nics_s, nics_r);
  r->mh_out = rig_reg(r->sc, out, out_size);
  r->mh_in = rig_reg(r->rc, in, in_size);
}

/* And all that rig_start began. */
__attribute__((unused)) static void rig_close_pair(struct rig *r) {
  CHECK_OK(net->dereg_mr(r->rc, r->mh_in));
  CHECK_OK(net->dereg_mr(r->sc, r->mh_out));
  rig_close(r);
  rig_end();
}

/* The same where all requests are done, and nothing has gone wrong. */
__attribute__((unused)) static void rig_close_idle_pair(struct rig *r) {
  CHECK_INT(atomic_load(&rig_comm(r->sc)->outstanding) + atomic_load(&rig_comm(r->rc)->outstanding), 0);
  CHECK_INT(atomic_load(&((struct ofi_mhandle *)r->mh_in)->memory.outstanding), 0);
  CHECK_INT(atomic_load(&((struct ofi_mhandle *)r->mh_out)->memory.outstanding), 0);
  rig_close_pair(r);
  CHECK_MSG(log_warnings() == 0, "%s", log_warning);
}

/* NULL: not now. */
__attribute__((unused)) static void *rig_isend(void *comm, void *data, size_t size, int tag, void *mhandle) {
  void *request = NULL;
  CHECK_OK(net->isend(comm, data, size, tag, mhandle, NULL, &request));
  return request;
}
__attribute__((unused)) static void *rig_irecv(void *comm, void *data, size_t size, int tag, void *mhandle) {
  void *request = NULL;
  CHECK_OK(net->irecv(comm, 1, &data, &size, &tag, &mhandle, NULL, &request));
  return request;
}

/* A caller of another connection over the comm's endpoint: progress is manual. */
__attribute__((unused)) static void rig_poll(void *comm) {
  struct ofi_endpoint *endpoint = rig_comm(comm)->endpoint;
  ofi_endpoint_lock(endpoint);
  (void)ofi_poll(endpoint);
  ofi_endpoint_unlock(endpoint);
}

/* Until there is room, or a receive of the tag is granted. */
__attribute__((unused)) static void *rig_send(struct rig *r, void *data, size_t size, int tag, void *mhandle) {
  void *request = NULL;
  RIG_UNTIL(request, {
    request = rig_isend(r->sc, data, size, tag, mhandle);
    if (!request) rig_poll(r->rc);
  });
  return request;
}
__attribute__((unused)) static void *rig_recv(struct rig *r, void *data, size_t size, int tag, void *mhandle) {
  void *request = NULL;
  RIG_UNTIL(request, {
    request = rig_irecv(r->rc, data, size, tag, mhandle);
    if (!request) rig_poll(r->sc);
  });
  return request;
}

/* A group. "Not now" may also mean that the watch thread polls. */
__attribute__((unused)) static void *rig_recv_group(struct rig *r, int n, void **data, const size_t *sizes,
                                                    const int *tags, void **mhandles) {
  void *request = NULL;
  RIG_UNTIL(request && request != RAIL_NET_OPTIONAL_RECV, {
    request = RAIL_NET_OPTIONAL_RECV;
    CHECK_OK(net->irecv(r->rc, n, data, sizes, tags, mhandles, NULL, &request));
    if (!request) rig_poll(r->sc);
  });
  return request;
}

/* What the watch thread may be writing. */
#define RIG_LOCKED(comm, value)                             \
  __extension__({                                           \
    ofi_endpoint_lock(rig_comm(comm)->endpoint);            \
    __typeof__(value) rig_value_ = (value);                 \
    ofi_endpoint_unlock(rig_comm(comm)->endpoint);          \
    rig_value_;                                             \
  })

__attribute__((unused)) static bool rig_done(void *request, int *sizes) {
  int done = 0;
  CHECK_MSG(net->test(request, &done, sizes) == RAIL_OK, "test has failed; said so far:\n%s", log_lines);
  CHECK(done == 0 || done == 1);
  return done;
}

/* Tests both, and returns what the receiver got. */
__attribute__((unused)) static int rig_finish(struct rig *r, void *send, void *recv) {
  int sent = -1, got[OFI_MAX_GROUP] = {-1};
  bool send_done = !send, recv_done = !recv;
  RIG_UNTIL(send_done && recv_done, {
    if (!recv_done) recv_done = rig_done(recv, got);
    else rig_poll(r->rc); /* its reports go out */
    if (!send_done) send_done = rig_done(send, &sent);
    else rig_poll(r->sc);
  });
  return recv ? got[0] : sent;
}

/* The result of testing until there is an error; it must come, and done must be 0. */
__attribute__((unused)) static rail_result_t rig_error(void *request) {
  rail_result_t result = RAIL_OK;
  int done = 0;
  RIG_UNTIL(result != RAIL_OK, {
    result = net->test(request, &done, NULL);
    CHECK_INT(done, 0);
  });
  return result;
}

#endif
