/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of what a verbs device does: two ends, each a context, a protection domain, a CQ, registered memory and a
 * queue pair. They are on the devices of RAIL_TEST_VERBS_DEVICES=A[,B], or the first of the list. The library is that
 * of the library path, or the emulated one, which the programs are linked with.
 *
 * Where a device is known not to do what a case asserts, the case begins with DEVIATES and says so.
 */
#ifndef TEST_VERBS_H
#define TEST_VERBS_H

#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "test/harness/tap.h"

#define ALL_ACCESS \
  (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
enum { BYTES = 1 << 20, DEPTH = 64, SOFT_ROCE = 0xffffff, WAIT_MS = 60000 };

struct end {
  struct ibv_context *context;
  struct ibv_device_attr attr;
  struct ibv_pd *pd;
  struct ibv_comp_channel *channel; /* the CQ's; NULL: it has none */
  struct ibv_cq *cq;
  struct ibv_srq *srq; /* NULL: a receive queue of its own */
  struct ibv_mr *mr;
  struct ibv_qp *qp;
  char *data;
  int gid_index;
  union ibv_gid gid;
  struct ibv_port_attr port;
};

/* What QPs of a case are made with, and connected with. */
struct shape {
  enum ibv_qp_type type;
  uint32_t sends, recvs, sges, inline_bytes;
  int access, rnr_retry, retry_cnt, timeout, min_rnr_timer, max_rd_atomic, all_signaled;
  bool srq, channel;
  int cqe;
  enum ibv_mtu mtu;
};
#define USUAL_SHAPE                                                                                              \
  (struct shape) {                                                                                               \
    .type = IBV_QPT_RC, .sends = DEPTH, .recvs = DEPTH, .sges = 2, .access = ALL_ACCESS, .rnr_retry = 7,         \
    .retry_cnt = 6, .timeout = 14, .min_rnr_timer = 12, .max_rd_atomic = 4, .cqe = 4 * DEPTH,                    \
    .mtu = IBV_MTU_1024                                                                                          \
  }

#define DEVIATES(end, vendor, why) \
  do { if ((end)->attr.vendor_id == (vendor)) tap_skip_case("known deviation of this device: %s", why); } while (0)

/* A command of the emulated device; false: this is none. */
__attribute__((unused)) static bool emu_command(const char *text) {
  int (*command)(const char *);
  void *symbol = dlsym(RTLD_DEFAULT, "rail_emu_command");
  if (!symbol) return false;
  memcpy(&command, &symbol, sizeof command);
  CHECK_OK(command(text));
  return true;
}

__attribute__((unused)) static long now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- ends ------------------------------------------------------------------------ */

/* The last GID that is there: on Ethernet an IP address with RoCE v2. */
static void find_gid(struct end *e) {
  static const union ibv_gid zero;
  e->gid_index = -1;
  for (int i = 0; i < e->port.gid_tbl_len && i < 16; i++) {
    union ibv_gid gid;
    if (ibv_query_gid(e->context, 1, i, &gid) != 0 || memcmp(&gid, &zero, sizeof gid) == 0) continue;
    e->gid = gid;
    e->gid_index = i;
  }
  CHECK(e->gid_index >= 0);
}

static struct ibv_context *open_device(unsigned int which) {
  const char *wanted = getenv("RAIL_TEST_VERBS_DEVICES");
  char names[128], *rest = NULL, *name = NULL;
  int n;
  struct ibv_device **list = ibv_get_device_list(&n);
  struct ibv_context *context = NULL;
  CHECK(list);
  snprintf(names, sizeof names, "%s", wanted ? wanted : "");
  for (char *word = strtok_r(names, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
    name = word;
    if (which-- == 0) break;
  }
  for (int i = 0; i < n && !context; i++)
    if (!name || strcmp(ibv_get_device_name(list[i]), name) == 0) context = ibv_open_device(list[i]);
  ibv_free_device_list(list);
  CHECK_MSG(context, "no device %s", name ? name : "");
  return context;
}

static void end_open(struct end *e, unsigned int which) {
  memset(e, 0, sizeof *e);
  e->context = open_device(which);
  CHECK_OK(ibv_query_device(e->context, &e->attr));
  CHECK_OK(ibv_query_port(e->context, 1, &e->port));
  find_gid(e);
  e->pd = ibv_alloc_pd(e->context);
  CHECK(e->pd);
  e->data = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(e->data != MAP_FAILED);
  e->mr = ibv_reg_mr(e->pd, e->data, BYTES, ALL_ACCESS);
  CHECK(e->mr);
}

static void end_make_qp(struct end *e, const struct shape *s) {
  struct ibv_srq_init_attr srq = {.attr = {.max_wr = DEPTH, .max_sge = 2}};
  if (s->channel) {
    e->channel = ibv_create_comp_channel(e->context);
    CHECK(e->channel);
  }
  e->cq = ibv_create_cq(e->context, s->cqe, e, e->channel, 0);
  CHECK(e->cq);
  if (s->srq) {
    e->srq = ibv_create_srq(e->pd, &srq);
    CHECK(e->srq);
  }
  struct ibv_qp_init_attr init = {.qp_context = e, .send_cq = e->cq, .recv_cq = e->cq, .srq = e->srq,
                                  .cap = {s->sends, s->recvs, s->sges, s->sges, s->inline_bytes},
                                  .qp_type = s->type, .sq_sig_all = s->all_signaled};
  e->qp = ibv_create_qp(e->pd, &init);
  CHECK(e->qp);
}

__attribute__((unused)) static void end_drop_qp(struct end *e) {
  if (e->qp) CHECK_OK(ibv_destroy_qp(e->qp));
  if (e->srq) CHECK_OK(ibv_destroy_srq(e->srq));
  if (e->cq) CHECK_OK(ibv_destroy_cq(e->cq));
  if (e->channel) CHECK_OK(ibv_destroy_comp_channel(e->channel));
  e->channel = NULL;
  e->qp = NULL;
  e->srq = NULL;
  e->cq = NULL;
}

__attribute__((unused)) static void end_close(struct end *e) {
  end_drop_qp(e);
  CHECK_OK(ibv_dereg_mr(e->mr));
  munmap(e->data, BYTES);
  CHECK_OK(ibv_dealloc_pd(e->pd));
  CHECK_OK(ibv_close_device(e->context));
}

/* A command about one queue pair. */
__attribute__((unused)) static void emu_command_for(const char *words, const struct end *e) {
  char text[128];
  snprintf(text, sizeof text, "%s qp=%u", words, e->qp->qp_num);
  CHECK(emu_command(text));
}

/* A key of the end's port: "bandwidth" (MB/s, 0: no limit), "latency" (us). */
__attribute__((unused)) static void emu_port(const struct end *e, const char *key, int value) {
  char text[96];
  snprintf(text, sizeof text, "port %s 1 %s=%d", ibv_get_device_name(e->context->device), key, value);
  CHECK(emu_command(text));
}

/* ---- states ------------------------------------------------------------------------ */

#define INIT_MASK (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define RTR_MASK                                                                                                  \
  (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |     \
   IBV_QP_MIN_RNR_TIMER)
#define RTS_MASK \
  (IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)
#define UC_RTR_MASK (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN)
#define UD_INIT_MASK (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)

/* PSNs begin near their end, so that every case goes over it. */
enum { FIRST_PSN = 0xfffff0, QKEY = 0x1234 };

__attribute__((unused)) static struct ibv_qp_attr init_attr(const struct shape *s) {
  return (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY,
                              .qp_access_flags = (unsigned int)s->access};
}

__attribute__((unused)) static struct ibv_qp_attr rtr_attr(const struct end *e, const struct end *peer,
                                                           const struct shape *s) {
  struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR, .path_mtu = s->mtu, .dest_qp_num = peer->qp->qp_num,
                          .rq_psn = FIRST_PSN, .max_dest_rd_atomic = (uint8_t)s->max_rd_atomic,
                          .min_rnr_timer = (uint8_t)s->min_rnr_timer};
  a.ah_attr.port_num = 1;
  a.ah_attr.is_global = 1;
  a.ah_attr.dlid = peer->port.lid;
  a.ah_attr.grh.dgid = peer->gid;
  a.ah_attr.grh.sgid_index = (uint8_t)e->gid_index;
  a.ah_attr.grh.hop_limit = 64;
  return a;
}

__attribute__((unused)) static struct ibv_qp_attr rts_attr(const struct shape *s) {
  return (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = (uint8_t)s->timeout,
                              .retry_cnt = (uint8_t)s->retry_cnt, .rnr_retry = (uint8_t)s->rnr_retry,
                              .sq_psn = FIRST_PSN, .max_rd_atomic = (uint8_t)s->max_rd_atomic};
}

__attribute__((unused)) static void to_init(struct end *e, const struct shape *s) {
  struct ibv_qp_attr a = init_attr(s);
  CHECK_OK(ibv_modify_qp(e->qp, &a, s->type == IBV_QPT_UD ? UD_INIT_MASK : INIT_MASK));
}

__attribute__((unused)) static void to_rtr(struct end *e, const struct end *peer, const struct shape *s) {
  struct ibv_qp_attr a = rtr_attr(e, peer, s);
  int mask = s->type == IBV_QPT_RC ? RTR_MASK : s->type == IBV_QPT_UC ? UC_RTR_MASK : IBV_QP_STATE;
  CHECK_OK(ibv_modify_qp(e->qp, &a, mask));
}

__attribute__((unused)) static void to_rts(struct end *e, const struct shape *s) {
  struct ibv_qp_attr a = rts_attr(s);
  CHECK_OK(ibv_modify_qp(e->qp, &a, s->type == IBV_QPT_RC ? RTS_MASK : IBV_QP_STATE | IBV_QP_SQ_PSN));
}

__attribute__((unused)) static void to_state(struct end *e, enum ibv_qp_state state) {
  struct ibv_qp_attr a = {.qp_state = state};
  CHECK_OK(ibv_modify_qp(e->qp, &a, IBV_QP_STATE));
}

__attribute__((unused)) static enum ibv_qp_state state_of(struct end *e) {
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  CHECK_OK(ibv_query_qp(e->qp, &attr, IBV_QP_STATE, &init));
  return attr.qp_state;
}

__attribute__((unused)) static void connect_ends(struct end *a, struct end *b, const struct shape *s) {
  to_init(a, s);
  to_init(b, s);
  to_rtr(a, b, s);
  to_rtr(b, a, s);
  to_rts(a, s);
  to_rts(b, s);
}

/* Two connected ends. */
__attribute__((unused)) static void pair_open(struct end *a, struct end *b, const struct shape *s) {
  end_open(a, 0);
  end_open(b, 1);
  end_make_qp(a, s);
  end_make_qp(b, s);
  connect_ends(a, b, s);
}

__attribute__((unused)) static void pair_close(struct end *a, struct end *b) {
  end_close(a);
  end_close(b);
}

/* A pair over the emulated device, whose faults are forgotten before and after. */
__attribute__((unused)) static void emu_pair_open(struct end *a, struct end *b, const struct shape *s) {
  CHECK(emu_command("reset; seed 7"));
  pair_open(a, b, s);
}

__attribute__((unused)) static void emu_pair_close(struct end *a, struct end *b) {
  CHECK(emu_command("reset; clock real"));
  pair_close(a, b);
}

/* ---- work ------------------------------------------------------------------------------ */

/* Of a's bytes [at, at + length) to or from the same place of b's; the fields may be changed before it is posted. */
struct work {
  struct ibv_sge sge;
  struct ibv_send_wr wr;
};

__attribute__((unused)) static struct ibv_send_wr *work(struct work *w, const struct end *a, const struct end *b,
                                                        enum ibv_wr_opcode op, uint64_t id, uint32_t at,
                                                        uint32_t length) {
  w->sge = (struct ibv_sge){.addr = (uintptr_t)a->data + at, .length = length, .lkey = a->mr->lkey};
  w->wr = (struct ibv_send_wr){.wr_id = id, .sg_list = &w->sge, .num_sge = 1, .opcode = op,
                               .send_flags = IBV_SEND_SIGNALED};
  bool atomic = op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD;
  if (atomic) {
    w->wr.wr.atomic.remote_addr = (uintptr_t)b->data + at;
    w->wr.wr.atomic.rkey = b->mr->rkey;
  } else {
    w->wr.wr.rdma.remote_addr = (uintptr_t)b->data + at;
    w->wr.wr.rdma.rkey = b->mr->rkey;
  }
  return &w->wr;
}

__attribute__((unused)) static int post(struct end *e, struct ibv_send_wr *wr) {
  struct ibv_send_wr *bad = NULL;
  int err = ibv_post_send(e->qp, wr, &bad);
  CHECK(err == 0 || bad == wr || e->attr.vendor_id == SOFT_ROCE); /* which may say nothing of the request */
  return err;
}

__attribute__((unused)) static void send_work(struct end *a, const struct end *b, enum ibv_wr_opcode op, uint64_t id,
                                              uint32_t at, uint32_t length) {
  struct work w;
  CHECK_OK(post(a, work(&w, a, b, op, id, at, length)));
}

/* Where datagrams to `peer` go. */
__attribute__((unused)) static struct ibv_ah *path_to(const struct end *e, const struct end *peer) {
  const struct shape any = {.type = IBV_QPT_UD};
  struct ibv_qp_attr a = rtr_attr(e, peer, &any);
  struct ibv_ah *ah = ibv_create_ah(e->pd, &a.ah_attr);
  CHECK(ah);
  return ah;
}

__attribute__((unused)) static void send_datagram(struct end *e, struct ibv_ah *ah, uint32_t qpn, uint64_t id,
                                                  uint32_t length) {
  struct work w;
  work(&w, e, e, IBV_WR_SEND, id, 0, length);
  w.wr.wr.ud.ah = ah;
  w.wr.wr.ud.remote_qpn = qpn;
  w.wr.wr.ud.remote_qkey = QKEY;
  CHECK_OK(post(e, &w.wr));
}

__attribute__((unused)) static int try_receive(struct end *e, uint64_t id, uint32_t at, uint32_t length) {
  struct ibv_sge sge = {.addr = (uintptr_t)e->data + at, .length = length, .lkey = e->mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
  return e->srq ? ibv_post_srq_recv(e->srq, &wr, &bad) : ibv_post_recv(e->qp, &wr, &bad);
}
__attribute__((unused)) static void receive(struct end *e, uint64_t id, uint32_t at, uint32_t length) {
  CHECK_OK(try_receive(e, id, at, length));
}

/* The next completion, however long it takes. */
__attribute__((unused)) static struct ibv_wc completion(struct end *e) {
  struct ibv_wc wc;
  long end = now_ms() + WAIT_MS;
  for (unsigned int i = 1;; i++) {
    int n = ibv_poll_cq(e->cq, 1, &wc);
    CHECK(n >= 0);
    if (n) return wc;
    if (i % 1024 == 0) {
      CHECK_MSG(now_ms() < end, "no completion within %d ms", WAIT_MS);
      poll(NULL, 0, 1);
    }
  }
}

#define CHECK_COMPLETION(end, id, wanted)                                                                         \
  do {                                                                                                            \
    struct ibv_wc wc_ = completion(end);                                                                          \
    CHECK_MSG(wc_.wr_id == (id) && wc_.status == (wanted), "request %llu: status %d, expected request %llu: %d",  \
              (unsigned long long)wc_.wr_id, (int)wc_.status, (unsigned long long)(id), (int)(wanted));           \
  } while (0)

/* Whether there is no completion: now, for what must not come has no time by which it would. */
__attribute__((unused)) static bool is_quiet(struct end *e) {
  struct ibv_wc wc;
  return ibv_poll_cq(e->cq, 1, &wc) == 0;
}

__attribute__((unused)) static void fill(char *data, size_t size, unsigned int seed) {
  for (size_t i = 0; i < size; i++) data[i] = (char)(seed + i * 7 + (i >> 8));
}

/* The next event of a type; others are passed over. */
__attribute__((unused)) static void wait_event(struct end *e, enum ibv_event_type type) {
  struct pollfd fd = {.fd = e->context->async_fd, .events = POLLIN};
  for (struct ibv_async_event event;;) {
    CHECK_MSG(poll(&fd, 1, WAIT_MS) == 1, "no event %d within %d ms", (int)type, WAIT_MS);
    CHECK_OK(ibv_get_async_event(e->context, &event));
    ibv_ack_async_event(&event);
    if (event.event_type == type) return;
  }
}

#endif
