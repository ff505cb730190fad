/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection made by hand over the emulated device: both comms, their QPs and keys,
 * without handshake, watch thread or registration cache; what the data path meets.
 */
#ifndef IB_PAIR_H
#define IB_PAIR_H

#include "common/base/compiler.h"
#include "common/base/log.h"
#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_progress.h"
#include "test/unit/ib_emu.h"

struct pair_shape {
  unsigned int nrails, nqps, per_message, max_write_log2;
  uint32_t send_depth, inline_bytes;
};
static bool pair_two_sided; /* of the next pair_open: the SEND protocol */

struct pair {
  struct ib_hca hca;
  struct ib_port ports[IB_MAX_RAILS];
  struct ib_device device;
  struct ib_comm *sc, *rc;
  struct ib_mhandle mhandles[8];
  struct ibv_mr *mrs[8];
  unsigned int nmhandles;
  long live; /* verbs objects, before it was opened */
};

static long pair_live(void) {
  return emu_live("qp") + emu_live("cq") + emu_live("mr") + emu_live("pd") + emu_live("context");
}

/* ---- lines of the plugin ------------------------------------------------- */

static char pair_line[1024]; /* the latest warning */
static unsigned int pair_lines;

__attribute__((format(printf, 5, 6))) static void pair_log(enum rail_log_level level, unsigned long flags,
                                                           const char *file, int line, const char *fmt, ...) {
  va_list ap;
  (void)flags, (void)file, (void)line;
  if (level != RAIL_LOG_WARN) return;
  va_start(ap, fmt);
  vsnprintf(pair_line, sizeof pair_line, fmt, ap);
  va_end(ap);
  pair_lines++;
}

/* ---- the HCA, and one side ------------------------------------------------ */

static void pair_open_hca(struct pair *p, unsigned int nrails) {
  struct ibv_device **list = ib_verbs.get_device_list(&(int){0});
  CHECK(list && list[0]);
  p->hca.context = ib_verbs.open_device(list[0]);
  ib_verbs.free_device_list(list);
  CHECK(p->hca.context);
  p->hca.pd = ib_verbs.alloc_pd(p->hca.context);
  snprintf(p->hca.name, sizeof p->hca.name, "emu0");
  snprintf(p->device.name, sizeof p->device.name, "emu0");
  p->device.nrails = nrails;
  for (unsigned int i = 0; i < nrails; i++) {
    p->ports[i] = (struct ib_port){.hca = &p->hca, .number = (uint8_t)(i + 1), .roce = true};
    snprintf(p->ports[i].name, sizeof p->ports[i].name, "emu0:%u", i + 1);
    p->device.rails[i] = &p->ports[i];
  }
}

#define PAIR_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
#define PAIR_GID 3 /* RoCE v2, IPv4 */

static void pair_make_side(struct pair *p, struct ib_comm *comm, const struct pair_shape *shape) {
  comm->device = &p->device;
  comm->plan = (struct ib_plan){
    .nqps = shape->nqps, .qps_per_message = shape->per_message, .max_write_log2 = shape->max_write_log2,
    .two_sided = pair_two_sided};
  comm->nrails = comm->nremote_rails = shape->nrails;
  comm->stats = calloc(IB_COMM_COUNTERS, sizeof *comm->stats);
  snprintf(comm->peer_text, sizeof comm->peer_text, "10.0.0.2:4711");
  for (unsigned int i = 0; i < shape->nrails; i++) {
    struct ib_rail *rail = &comm->rails[i];
    union ibv_gid gid;
    *rail = (struct ib_rail){.port = &p->ports[i], .gid_index = PAIR_GID};
    CHECK_OK(ib_verbs.query_gid(p->hca.context, (uint8_t)(i + 1), PAIR_GID, &gid));
    memcpy(rail->gid, gid.raw, 16);
    rail->cq = ib_verbs.create_cq(p->hca.context, 60000, comm, NULL, 0);
    rail->ctrl_mr = ib_verbs.reg_mr(p->hca.pd, comm->ctrl_buf, sizeof *comm->ctrl_buf, PAIR_ACCESS);
    CHECK(rail->cq && rail->ctrl_mr);
  }
  CHECK(shape->send_depth <= IB_SEND_DEPTH);
  comm->qps = calloc(shape->nqps, sizeof *comm->qps);
  for (unsigned int i = 0; i < shape->nqps; i++) {
    struct ib_qp *qp = &comm->qps[i];
    unsigned int rail = i % shape->nrails;
    struct ib_qp_sizes sizes = {shape->send_depth, comm->sender ? 1 : IB_RECV_DEPTH, shape->inline_bytes};
    CHECK_OK(ib_qp_create(qp, &p->ports[rail], comm->rails[rail].cq, &sizes, comm));
    qp->index = (uint16_t)i;
    qp->rail = qp->remote_rail = (uint8_t)rail;
    qp->attr = (struct ib_qp_attr){.port = (uint8_t)(rail + 1), .sgid_index = PAIR_GID, .grh = true,
                                   .mtu = IBV_MTU_4096, .timeout = 14, .retry_cnt = 7};
    CHECK_OK(ib_qp_to_init(qp, &p->ports[rail], PAIR_ACCESS));
  }
}

static void pair_connect(struct pair *p, struct ib_comm *a, const struct ib_comm *b) {
  for (unsigned int i = 0; i < a->plan.nqps; i++) {
    struct ib_qp *qp = &a->qps[i];
    qp->attr.dest_qpn = b->qps[i].qp->qp_num;
    memcpy(qp->attr.dgid, b->rails[qp->remote_rail].gid, 16);
    CHECK_OK(ib_qp_to_rtr(qp, &p->ports[qp->rail]));
    CHECK_OK(ib_qp_to_rts(qp, &p->ports[qp->rail]));
  }
}

/* ---- a connection ---------------------------------------------------------- */

static struct ib_remote_ring pair_ctrl_of(const struct ib_comm *comm) {
  struct ib_remote_ring ctrl = {.addr = (uintptr_t)comm->ctrl_buf};
  for (unsigned int i = 0; i < comm->nrails; i++) ctrl.rkeys[i] = comm->rails[i].ctrl_mr->rkey;
  return ctrl;
}

__attribute__((unused)) static void pair_open(struct pair *p, const struct pair_shape *shape) {
  memset(p, 0, sizeof *p);
  emu_do("reset; progress post");
  CHECK(ib_verbs_open());
  p->live = pair_live();
  rail_log_set_sink(pair_log);
  pair_open_hca(p, shape->nrails);
  p->sc = ib_send_comm_alloc();
  p->rc = ib_recv_comm_alloc();
  CHECK(p->sc && p->rc);
  pair_make_side(p, p->sc, shape);
  pair_make_side(p, p->rc, shape);
  CHECK_OK(ib_recv_comm_prepost(p->rc));
  pair_connect(p, p->sc, p->rc);
  pair_connect(p, p->rc, p->sc);
  struct ib_remote_ring senders = pair_ctrl_of(p->sc), receivers = pair_ctrl_of(p->rc);
  ib_recv_comm_start(p->rc, &senders, ib_progress);
  if (pair_two_sided) CHECK(ib_two_sided_open(p->sc, &receivers));
  CHECK(ib_send_comm_start(p->sc, ib_progress));
}

static void pair_close_side(struct ib_comm *comm) {
  if (!comm) return;
  for (unsigned int i = 0; comm->qps && i < comm->plan.nqps; i++) ib_qp_destroy(&comm->qps[i]);
  for (unsigned int i = 0; i < comm->nrails; i++) {
    if (comm->rails[i].ctrl_mr) CHECK_OK(ib_verbs.dereg_mr(comm->rails[i].ctrl_mr));
    if (comm->rails[i].cq) CHECK_OK(ib_verbs.destroy_cq(comm->rails[i].cq));
  }
  free(comm->stats);
  ib_comm_free(comm);
}

__attribute__((unused)) static void pair_close(struct pair *p) {
  for (unsigned int i = 0; i < p->nmhandles; i++) CHECK_OK(ib_verbs.dereg_mr(p->mrs[i]));
  pair_close_side(p->sc);
  pair_close_side(p->rc);
  CHECK_OK(ib_verbs.dealloc_pd(p->hca.pd));
  CHECK_OK(ib_verbs.close_device(p->hca.context));
  rail_log_set_sink(NULL);
  CHECK_INT(pair_live(), p->live);
}

/* What regMr would give for it. */
__attribute__((unused)) static struct ib_mhandle *pair_reg(struct pair *p, struct ib_comm *comm, void *data,
                                                           size_t size) {
  struct ib_mhandle *mh = &p->mhandles[p->nmhandles];
  struct ibv_mr *mr = p->mrs[p->nmhandles++] = ib_verbs.reg_mr(p->hca.pd, data, size, PAIR_ACCESS);
  CHECK(mr);
  *mh = (struct ib_mhandle){
    .memory = {.magic = RAIL_NET_MEMORY_MAGIC, .type = RAIL_PTR_HOST, .comm = comm, .addr = (uintptr_t)data,
               .size = size}};
  for (unsigned int i = 0; i < comm->nrails; i++) {
    mh->lkeys[i] = mr->lkey;
    mh->rkeys[i] = mr->rkey;
  }
  return mh;
}

/* ---- calls ------------------------------------------------------------------ */

__attribute__((unused)) static void *pair_isend(struct pair *p, void *data, size_t size, int tag,
                                                struct ib_mhandle *mh) {
  void *request = NULL;
  CHECK_OK(ib_isend(p->sc, data, size, tag, mh, NULL, &request));
  return request;
}

__attribute__((unused)) static void *pair_irecv(struct pair *p, void *data, size_t size, int tag,
                                                struct ib_mhandle *mh) {
  void *request = (void *)0x5555, *mhs = mh;
  CHECK_OK(ib_irecv(p->rc, 1, &data, &size, &tag, &mhs, NULL, &request));
  return request;
}

/* Done within so many tests, with that result; returns the size. */
__attribute__((unused)) static int pair_finish(void *request, rail_result_t expected) {
  int done = 0, size = -1;
  rail_result_t result = RAIL_OK;
  for (int i = 0; i < 100000; i++) {
    done = 0;
    result = ib_test(request, &done, &size);
    CHECK(done == 0 || done == 1);
    if (done || result != RAIL_OK) break;
  }
  CHECK_INT(result, expected);
  CHECK_INT(done, 1);
  return size;
}

#endif
