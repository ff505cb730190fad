/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes of the ofi plugin that fail, over a scripted libfabric: a FIN must never tell the receiver of bytes that were
 * not written. Where the provider's endpoints are connections it follows its write at once, else behind the write's
 * completion, and in either case not while a write that it found no room behind is under way. And sends whose calls are
 * refused: they are not done.
 */
#include "test/unit/ofi_rig.h"

#define SIZE 40001
#define N 8

static struct rig r;
static uint8_t out[N][SIZE], in[N][SIZE];
static void *mh_out, *mh_in;

static void open_pair(const char *offers, const char *provider) {
  rig_start(offers);
  ofi_params.provider = provider;
  rig_open(&r, 1, 1);
  mh_out = rig_reg(r.sc, out, sizeof out);
  mh_in = rig_reg(r.rc, in, sizeof in);
  for (int i = 0; i < N; i++) memset(out[i], i + 1, SIZE);
  memset(in, 0xee, sizeof in);
  CHECK_INT(rig_comm(r.rc)->device->rails[0]->protocol, OFI_PROTOCOL_RMA);
}

static void close_pair(void) {
  CHECK_OK(net->dereg_mr(r.sc, mh_out));
  CHECK_OK(net->dereg_mr(r.rc, mh_in));
  rig_close(&r);
  rig_end();
}

static bool arrived(int i) {
  for (int k = 0; k < SIZE; k++)
    if (in[i][k] != i + 1) return false;
  return true;
}

/* All are under way, the k-th write fails: what is received is there, the other side of that message has failed. */
static void fail_write(const char *offers, const char *behaviour, int k) {
  void *recvs[N], *sends[N];
  char script[200];
  rail_result_t failed = RAIL_OK;
  int ndone = 0;
  open_pair(offers, "fake");
  snprintf(script, sizeof script, "%s fail=write:%d:EIO", behaviour, k);
  fake_script(script);
  for (int i = 0; i < N; i++) recvs[i] = rig_recv(&r, in[i], SIZE, i, mh_in);
  for (int i = 0; i < N && failed == RAIL_OK; i++) {
    sends[i] = NULL;
    RIG_UNTIL(sends[i] || failed != RAIL_OK, {
      failed = net->isend(r.sc, out[i], SIZE, i, mh_out, NULL, &sends[i]);
      if (!sends[i]) rig_poll(r.rc);
    });
  }
  RIG_UNTIL(failed != RAIL_OK, {
    rig_poll(r.sc);
    rig_poll(r.rc);
    failed = rail_first_error(&rig_comm(r.sc)->error);
  });
  for (int i = 0; i < 1000; i++) rig_poll(r.rc); /* whatever is still on its way arrives */
  for (int i = 0; i < N; i++) {
    int done = 0, size = 0;
    CHECK_OK(net->test(recvs[i], &done, &size));
    if (done) CHECK_MSG(size == SIZE && arrived(i), "%s: message %d of a failed write was received", behaviour, i);
    ndone += done;
  }
  CHECK_MSG(ndone < N, "nothing failed");
  close_pair();
}

TEST(a_failed_write_is_not_received) {
  static const char *const offers[] = {"nic=fake0", "nic=fake0 no=saw", "nic=fake0 max_msg=10000"};
  static const char *const behaviours[] = {"", "early=0", "late=20 reorder=50", "overtake=60 burst=1", "eagain=50"};
  for (size_t o = 0; o < RAIL_COUNT_OF(offers); o++)
    for (size_t b = 0; b < RAIL_COUNT_OF(behaviours); b++)
      for (int k = 1; k <= N; k++) fail_write(offers[o], behaviours[b], k);
}

static void await_grant(void) {
  RIG_UNTIL(RIG_LOCKED(r.sc, ofi_send_comm_of(r.sc)->grants_applied) != OFI_FIRST_SEQ, {
    rig_poll(r.sc);
    rig_poll(r.rc);
  });
}

/* Is there a FIN while the write has not completed? */
static bool fin_is_at_once(const char *offers, const char *provider) {
  open_pair(offers, provider);
  CHECK(rig_recv(&r, in[0], SIZE, 1, mh_in));
  await_grant();
  fake_script("hang=write:1");
  struct ofi_send *send = rig_send(&r, out[0], SIZE, 1, mh_out);
  bool at_once = RIG_LOCKED(r.sc, send->parts[0].fin.kind == OFI_OP_FIN);
  for (int i = 0; i < 100; i++) {
    rig_poll(r.sc);
    rig_poll(r.rc);
  }
  CHECK(RIG_LOCKED(r.sc, send->parts[0].fin.kind == OFI_OP_FIN) == at_once);
  CHECK_INT(RIG_LOCKED(r.sc, send->parts[0].data.state), OFI_OP_POSTED);
  ofi_params.close_ms = 20; /* the write never ends */
  close_pair();
  return at_once;
}

TEST(over_connections_the_fin_follows_at_once) {
  CHECK(fin_is_at_once("nic=verbs0 prov=verbs;ofi_rxm", "verbs"));
  CHECK(!fin_is_at_once("nic=fake0", "fake"));
  CHECK(!fin_is_at_once("nic=verbs0 prov=verbs;ofi_rxm no=saw", "verbs"));
}

/* The write found no room at first, and then never completes: its FIN must stay where it is. */
TEST(a_fin_without_room_waits_for_its_write) {
  open_pair("nic=verbs0 prov=verbs;ofi_rxm", "verbs");
  void *recv = rig_recv(&r, in[0], SIZE, 1, mh_in);
  await_grant();
  fake_script("hang=write:1 eagain_next=1");
  struct ofi_send *send = rig_send(&r, out[0], SIZE, 1, mh_out);
  RIG_UNTIL(RIG_LOCKED(r.sc, send->parts[0].data.state) == OFI_OP_POSTED, rig_poll(r.sc));
  for (int i = 0; i < 100; i++) {
    rig_poll(r.sc);
    CHECK_INT(RIG_LOCKED(r.sc, send->parts[0].fin.state), OFI_OP_WAITING);
  }
  int done = 0;
  CHECK_OK(net->test(recv, &done, NULL));
  CHECK(!done);
  ofi_params.close_ms = 20; /* the write never ends */
  close_pair();
  CHECK(log_said("is closed, and all its connections"));
}

/* A provider's largest message may be smaller than NCCL's. */
TEST(large_messages_go_in_several_writes) {
  static const struct { const char *offers, *provider; } rows[] = {
    {"nic=fake0 max_msg=10000", "fake"},
    {"nic=fake0 no=saw max_msg=10000", "fake"},
    {"nic=verbs0 prov=verbs;ofi_rxm max_msg=10000", "verbs"}};
  static const char *const behaviours[] = {"", "late=20 reorder=50", "overtake=60 burst=1", "torn=4096", "eagain=50"};
  for (size_t o = 0; o < RAIL_COUNT_OF(rows); o++)
    for (size_t b = 0; b < RAIL_COUNT_OF(behaviours); b++) {
      open_pair(rows[o].offers, rows[o].provider);
      fake_script(behaviours[b]);
      for (int i = 0; i < N; i++) {
        size_t size = i % 2 ? SIZE : 10000 * (size_t)i;
        long writes = fake_calls("write");
        void *recv = rig_recv(&r, in[i], SIZE, i, mh_in), *send = rig_send(&r, out[i], RAIL_MIN(size, SIZE), i, mh_out);
        CHECK_INT(rig_finish(&r, send, recv), RAIL_MIN(size, SIZE));
        CHECK(memcmp(in[i], out[i], RAIL_MIN(size, SIZE)) == 0);
        CHECK_INT(fake_calls("write") - writes, RAIL_DIV_UP(RAIL_MIN(size, SIZE), 10000));
      }
      close_pair();
      CHECK_MSG(log_warnings() == 0, "%s", log_warning);
    }
}

/* ---- calls that the provider refuses ------------------------------------------------------------ */

static struct fi_ops_rma usual_rma;
static struct fi_ops_msg usual_msg;
static int allowed; /* calls; the others are refused */

static bool is_refused(void) { return allowed-- <= 0; }

static ssize_t write_or_refuse(struct fid_ep *ep, const struct fi_msg_rma *msg, uint64_t flags) {
  return is_refused() ? -FI_EINVAL : usual_rma.writemsg(ep, msg, flags);
}
static ssize_t send_or_refuse(struct fid_ep *ep, const struct fi_msg *msg, uint64_t flags) {
  return is_refused() ? -FI_EINVAL : usual_msg.sendmsg(ep, msg, flags);
}
static ssize_t refuse_tagged(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t to, uint64_t tag,
                             void *context) {
  (void)ep, (void)buf, (void)len, (void)desc, (void)to, (void)tag, (void)context;
  return is_refused() ? -FI_EINVAL : -FI_EAGAIN;
}
static ssize_t refuse_inject(struct fid_ep *ep, const void *buf, size_t len, fi_addr_t to) {
  (void)ep, (void)buf, (void)len, (void)to;
  return is_refused() ? -FI_EINVAL : -FI_EAGAIN;
}

/* The sender's calls from now on. */
static void set_calls(int nics, struct fi_ops_rma *rma, struct fi_ops_msg *msg, struct fi_ops_tagged *tagged) {
  struct ofi_endpoint *endpoint = rig_comm(r.sc)->endpoint;
  ofi_endpoint_lock(endpoint);
  for (int i = 0; i < nics; i++) {
    endpoint->nics[i].ep->rma = rma;
    endpoint->nics[i].ep->msg = msg;
    endpoint->nics[i].ep->tagged = tagged;
  }
  ofi_endpoint_unlock(endpoint);
}

/* One isend, whose calls of libfabric are refused after so many, and how many are. Its operations up to there complete;
 * the send does not, nor does the receive. */
static void refuse_after(const char *offers, const char *provider, int nics, size_t size, int n, int refused) {
  rig_start(offers);
  ofi_params.provider = provider;
  ofi_params.min_part = 4096;
  rig_open_pair(&r, nics, nics, out, sizeof out, in, sizeof in);
  void *recv = rig_recv(&r, in[0], size, 1, r.mh_in);
  if (size == SIZE) await_grant();
  struct fid_ep *ep = rig_comm(r.sc)->endpoint->nics[0].ep;
  struct fi_ops_rma *rma = ep->rma, refusing_rma = usual_rma = *rma;
  struct fi_ops_msg *msg = ep->msg, refusing_msg = usual_msg = *msg;
  struct fi_ops_tagged *tagged = ep->tagged, refusing_tagged = *tagged;
  refusing_rma.writemsg = write_or_refuse;
  refusing_msg.sendmsg = send_or_refuse;
  refusing_msg.inject = refuse_inject;
  refusing_tagged.send = refuse_tagged;
  allowed = n;
  set_calls(nics, &refusing_rma, &refusing_msg, &refusing_tagged);
  void *send = rig_send(&r, out[0], size, 1, r.mh_out);
  CHECK_INT(rig_error(send), RAIL_SYSTEM_ERROR);
  RIG_UNTIL(RIG_LOCKED(r.sc, rig_comm(r.sc)->nops) == 0, {
    rig_poll(r.sc);
    rig_poll(r.rc);
  });
  CHECK_INT(allowed, -refused);
  CHECK_INT(rig_error(send), RAIL_SYSTEM_ERROR);
  CHECK(!rig_done(recv, NULL));
  CHECK_INT(log_warnings(), 1);
  CHECK_MSG(log_said("it could not be posted"), "%s", log_lines);
  set_calls(nics, rma, msg, tagged);
  rig_close_pair(&r);
}

TEST(a_call_that_is_refused) {
  static const char writes[] = "net=one nic=fake0 nic=fake1", verbs[] = "net=one prov=verbs;ofi_rxm nic=v0 nic=v1";
  for (int n = 0; n < 2; n++) refuse_after(writes, "fake", 2, SIZE, n, 1);
  for (int n = 0; n < 4; n++) refuse_after(verbs, "verbs", 2, SIZE, n, 1); /* each write's FIN follows at once */
  refuse_after("nic=fake0 no=rma", "fake", 1, SIZE, 0, 1);
  refuse_after("nic=fake0", "fake", 1, 50, 0, 1);
  /* ofi_op_inject, and ofi_op_post, whose answer counts. */
  refuse_after("nic=fake0 prov=shm inject=4096", "shm", 1, 50, 0, 2);
  refuse_after("nic=fake0 prov=shm inject=4096", "shm", 1, 50, 1, 1);
}

/* ---- peers that take nothing --------------------------------------------------------------------- */

static fi_addr_t good_peer;
static bool good_is_full;
static ssize_t only_to_the_good_peer(struct fid_ep *ep, const struct fi_msg *msg, uint64_t flags) {
  return msg->addr != good_peer || good_is_full ? -FI_EAGAIN : usual_msg.sendmsg(ep, msg, flags);
}

/* The watch thread sets flags of the comm meanwhile, which nothing here looks at. */
__attribute__((no_sanitize("thread"))) static void copy_comm(volatile char *to, const volatile char *from) {
  for (size_t i = 0; i < sizeof(struct ofi_send_comm); i++) to[i] = from[i];
}

/* However many peers take nothing, what waits behind their messages for another one goes out. */
TEST(a_peer_behind_many_that_take_nothing) {
  enum { MANY = 40 };
  static struct ofi_send_comm others[MANY];
  static struct ofi_peer peers[MANY];
  open_pair("nic=fake0", "fake");
  struct ofi_comm *comm = rig_comm(r.sc);
  struct ofi_endpoint *endpoint = comm->endpoint;
  RIG_UNTIL(RIG_LOCKED(r.sc, comm->nops) == 0, rig_poll(r.sc));
  ofi_endpoint_lock(endpoint);
  struct fi_ops_msg *msg = endpoint->nics[0].ep->msg, choosy = usual_msg = *msg;
  choosy.sendmsg = only_to_the_good_peer;
  good_peer = comm->paths[0].to;
  good_is_full = true;
  endpoint->nics[0].ep->msg = &choosy;
  for (int i = 0; i < MANY; i++) {
    copy_comm((char *)&others[i], (const char *)ofi_send_comm_of(comm));
    peers[i] = (struct ofi_peer){.addr = 1000 + (fi_addr_t)i};
    others[i].base.paths[0].peer = &peers[i];
    others[i].base.paths[0].to = peers[i].addr;
    CHECK_OK(ofi_comm_ping(&others[i].base, 0));
  }
  CHECK_OK(ofi_comm_ping(comm, 0));
  CHECK_INT(comm->pings[0].state, OFI_OP_WAITING);
  good_is_full = false;
  (void)ofi_poll(endpoint);
  CHECK(comm->pings[0].state != OFI_OP_WAITING);
  for (int i = 0; i < MANY; i++) {
    CHECK_INT(others[i].base.pings[0].state, OFI_OP_WAITING);
    CHECK_INT(ofi_op_cancel(&others[i].base.pings[0]), 0);
  }
  endpoint->nics[0].ep->msg = msg;
  ofi_endpoint_unlock(endpoint);
  close_pair();
}

RIG_MAIN(TEST_CASE(a_failed_write_is_not_received), TEST_CASE(large_messages_go_in_several_writes),
         TEST_CASE(over_connections_the_fin_follows_at_once),
         TEST_CASE(a_fin_without_room_waits_for_its_write), TEST_CASE(a_call_that_is_refused),
         TEST_CASE(a_peer_behind_many_that_take_nothing))
