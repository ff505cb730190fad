/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 240
 *
 * The end of ofi connections, over a scripted libfabric: close and deregMr with everything in flight, on both sides and
 * in any order, with peers that go on and peers that do not. What was the plugin's may not be touched afterwards: it is
 * taken away, so that a touch ends this program.
 */
#include <netinet/in.h>
#include <sys/mman.h>

#include "test/unit/ofi_rig.h"

#define SIDE (4u << 20)
#define SIZE_OF_OTHERS 9000

static struct rig r;
static uint8_t *out, *in; /* pages of their own */
static void *mh_out, *mh_in;

static uint8_t *pages(void) {
  void *p = mmap(NULL, SIDE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(p != MAP_FAILED);
  return p;
}

/* What close waits for comes, unless a case says otherwise: however long the machine takes. */
static void start(const char *offers) {
  rig_start(offers);
  ofi_params.close_ms = RIG_PATIENCE_MS;
}

static void open_pair(const char *offers, int nics) {
  start(offers);
  rig_open(&r, nics, nics);
  out = pages();
  in = pages();
  mh_out = rig_reg(r.sc, out, SIDE);
  mh_in = rig_reg(r.rc, in, SIDE);
}

static void take_away(uint8_t *memory) { CHECK(mprotect(memory, SIDE, PROT_NONE) == 0); }

static void end(void) {
  rig_finalize(&r);
  rig_end();
  munmap(out, SIDE);
  munmap(in, SIDE);
}

/* ---- in flight ----------------------------------------------------------------------------------- */

#define N 12
#define SLOT (SIDE / 16)
static void *recvs[N], *sends[N];

/* Receives of every kind, some in a group; half of them are sent for, and moved by so many polls. */
static void begin_all(unsigned int polls) {
  static const size_t sizes[] = {100, 40000, 0, 3000, 200000};
  memset(recvs, 0, sizeof recvs);
  memset(sends, 0, sizeof sends);
  for (int i = 0; i < N; i++) recvs[i] = rig_recv(&r, in + (size_t)i * SLOT, SLOT, i, mh_in);
  void *data[4], *mhs[4];
  size_t group_sizes[4];
  int tags[4];
  for (int i = 0; i < 4; i++) {
    data[i] = in + (12 + (size_t)i) * SLOT;
    group_sizes[i] = i % 2 ? 64 : SLOT;
    tags[i] = 100 + i;
    mhs[i] = mh_in;
  }
  CHECK(rig_recv_group(&r, 4, data, group_sizes, tags, mhs));
  for (int i = 0; i < N; i += 2) sends[i] = rig_send(&r, out + (size_t)i * SLOT, sizes[i % 5], i, mh_out);
  for (unsigned int i = 0; i < polls; i++) rig_poll(i % 2 ? r.sc : r.rc);
}

/* Tests them until each is done or has failed; nothing but a remote error may come. */
static void until_over(void **requests, int n) {
  for (int i = 0; i < n; i++) {
    int done = 0;
    rail_result_t result = RAIL_OK;
    if (!requests[i]) continue;
    RIG_UNTIL(done || result != RAIL_OK, result = net->test(requests[i], &done, NULL));
    if (result != RAIL_OK) CHECK_INT(result, RAIL_REMOTE_ERROR);
  }
}

static const char *const kinds[] = {"nic=fake0",
                                    "nic=fake0 no=saw",
                                    "nic=fake0 no=rma",
                                    "nic=fake0 no=rma,sas mr_mode=local,endpoint",
                                    "nic=fake0 mr_mode=local,endpoint mode=context2 tx_size=8 rx_size=16",
                                    "net=one nic=fake0 nic=fake1"};
static const char *const behaviours[] = {"", "late=5 reorder=50 overtake=50", "eager=0 burst=1", "eagain=40"};
enum { RECEIVER_FIRST, SENDER_FIRST, DEREG_RECEIVER, DEREG_SENDER, DEREG_BOTH, NEVER, WAYS };

static void close_in_flight(int way) {
  if (way == DEREG_RECEIVER || way == DEREG_BOTH) {
    CHECK_OK(net->dereg_mr(r.rc, mh_in));
    take_away(in);
  }
  if (way == DEREG_SENDER || way == DEREG_BOTH) {
    CHECK_OK(net->dereg_mr(r.sc, mh_out));
    take_away(out);
  }
  if (way == NEVER) { /* the contexts are finalized, the watch thread has ended, and then comms are closed */
    ofi_params.close_ms = 20;
    rig_finalize(&r);
    take_away(in);
    take_away(out);
  }
  if (way == SENDER_FIRST) {
    CHECK_OK(net->close_send(r.sc));
    take_away(out);
    until_over(recvs, N);
  }
  if (way == DEREG_SENDER && atomic_load(&rig_comm(r.sc)->stopped))
    until_over(recvs, N); /* it had something in flight */
  CHECK_OK(net->close_recv(r.rc));
  if (way == RECEIVER_FIRST || way == SENDER_FIRST || way == DEREG_SENDER) take_away(in);
  if (way == RECEIVER_FIRST || way == DEREG_RECEIVER) until_over(sends, N);
  if (way != SENDER_FIRST) CHECK_OK(net->close_send(r.sc));
}

TEST(with_everything_in_flight) {
  for (size_t k = 0; k < RAIL_COUNT_OF(kinds); k++)
    for (size_t b = 0; b < RAIL_COUNT_OF(behaviours); b++)
      for (int way = 0; way < WAYS; way++) {
        open_pair(kinds[k], strstr(kinds[k], "fake1") ? 2 : 1);
        fake_script(behaviours[b]);
        begin_all((unsigned int)(k + b + (size_t)way) % 7);
        close_in_flight(way);
        CHECK_MSG(way == NEVER || !log_said("is closed, and all"), "%s", log_lines);
        end();
      }
}

/* Receives that nothing was sent for, and a sender that does not call. */
TEST(a_sender_that_has_sent_nothing) {
  for (size_t k = 0; k < RAIL_COUNT_OF(kinds); k++) {
    open_pair(kinds[k], strstr(kinds[k], "fake1") ? 2 : 1);
    for (int i = 0; i < 4; i++) CHECK(rig_recv(&r, in + i * 65536, 65536, i, mh_in));
    for (int i = 0; i < 20; i++) {
      rig_poll(r.sc);
      rig_poll(r.rc);
    }
    RIG_UNTIL(RIG_LOCKED(r.sc, rig_comm(r.sc)->nops) == 0, rig_poll(r.sc));
    poll(NULL, 0, 20); /* its endpoint is idle now */
    CHECK_OK(net->close_recv(r.rc));
    take_away(in);
    CHECK_MSG(log_warnings() == 0, "%s", log_warning);
    CHECK_OK(net->close_send(r.sc));
    end();
  }
}

/* ---- a message that comes late ------------------------------------------------------------------------ */

/* As a peer may send it: a tagged message to the first buffer that a comm granted. Its sender's queue is read for it by
 * hand; nothing else may be under way there. */
static void send_late(struct ofi_endpoint *from, fi_addr_t to, uint64_t tag) {
  static struct fi_context2 context;
  static uint8_t late[3000];
  struct fi_cq_msg_entry entry = {0};
  struct fi_cq_err_entry failed = {0};
  ssize_t n = -FI_EAGAIN;
  memset(late, 0xee, sizeof late);
  ofi_endpoint_lock(from);
  CHECK_INT((int)fi_tsend(from->nics[0].ep, late, sizeof late, NULL, to, tag, &context), 0);
  RIG_UNTIL(n != -FI_EAGAIN, n = fi_cq_read(from->nics[0].cq, &entry, 1));
  if (n == -FI_EAVAIL) CHECK_INT((int)fi_cq_readerr(from->nics[0].cq, &failed, 0), 1);
  CHECK(entry.op_context == &context || failed.op_context == &context);
  ofi_endpoint_unlock(from);
}

/* It lies in the provider as unexpected until there is a receive of its tag: never one of another connection. */
TEST(a_message_for_a_comm_that_is_closed) {
  open_pair("nic=fake0 no=rma", 1);
  struct rig other = {.ctx = {r.ctx[0], r.ctx[1]}};
  rig_connect(&other, 0, 0); /* keeps the endpoints */
  uint32_t index = rig_comm(r.rc)->index;
  uint64_t tag = ofi_tag(index, rig_comm(r.rc)->token, OFI_FIRST_SEQ, 0), token = rig_comm(r.rc)->token;
  struct ofi_endpoint *from = rig_comm(r.sc)->endpoint;
  fi_addr_t to = rig_comm(r.sc)->paths[0].to;
  CHECK_OK(net->close_send(r.sc));
  CHECK_OK(net->close_recv(r.rc));
  RIG_UNTIL(RIG_LOCKED(other.sc, from->nops) == 0, rig_poll(other.sc));
  send_late(from, to, tag);
  for (;;) { /* until one has the index, and not by chance those bits of the token */
    rig_connect(&r, 0, 0);
    uint64_t differ = (rig_comm(r.rc)->token ^ token) & ((1u << OFI_TAG_TOKEN_BITS) - 1);
    if (rig_comm(r.rc)->index == index && differ) break;
    CHECK_OK(net->close_send(r.sc));
    CHECK_OK(net->close_recv(r.rc));
  }
  mh_out = rig_reg(r.sc, out, SIDE);
  mh_in = rig_reg(r.rc, in, SIDE);
  memset(out, 0x11, 9000);
  void *recv = rig_recv(&r, in, 9000, 1, mh_in);
  for (int i = 0; i < 50; i++) {
    CHECK(!rig_done(recv, NULL));
    rig_poll(r.sc);
  }
  CHECK_INT(rig_finish(&r, rig_send(&r, out, 9000, 1, mh_out), recv), 9000);
  CHECK(memcmp(in, out, 9000) == 0);
  CHECK_OK(net->dereg_mr(r.rc, mh_in));
  CHECK_OK(net->dereg_mr(r.sc, mh_out));
  CHECK_OK(net->close_send(r.sc));
  CHECK_OK(net->close_recv(r.rc));
  CHECK_OK(net->close_send(other.sc));
  CHECK_OK(net->close_recv(other.rc));
  end();
}

static ssize_t cancel_nothing(struct fid *fid, void *context) {
  (void)fid, (void)context;
  return 0;
}

/* A provider that does not end the cancelled receive of a peer that has closed may still write to its buffer. */
TEST(a_receive_that_the_provider_keeps) {
  open_pair("nic=fake0 no=rma", 1);
  struct rig other = {.ctx = {r.ctx[0], r.ctx[1]}};
  rig_connect(&other, 0, 0);
  struct ofi_comm *comm = rig_comm(r.rc);
  uint64_t tag = ofi_tag(comm->index, comm->token, OFI_FIRST_SEQ, 0);
  struct ofi_endpoint *from = rig_comm(r.sc)->endpoint;
  fi_addr_t to = rig_comm(r.sc)->paths[0].to;
  CHECK(rig_recv(&r, in, 9000, 1, mh_in));
  RIG_UNTIL(RIG_LOCKED(r.rc, comm->nops == 1 && comm->noutgoing == 0), {
    rig_poll(r.rc);
    rig_poll(r.sc);
  });
  CHECK_OK(net->dereg_mr(r.sc, mh_out));
  CHECK_OK(net->close_send(r.sc));
  RIG_UNTIL(atomic_load(&comm->pending_work), poll(NULL, 0, 1)); /* its GOODBYE */
  static struct fi_ops_ep keeping;
  ofi_endpoint_lock(comm->endpoint);
  keeping = *comm->endpoint->nics[0].ep->ops;
  keeping.cancel = cancel_nothing;
  comm->endpoint->nics[0].ep->ops = &keeping;
  ofi_endpoint_unlock(comm->endpoint);
  ofi_params.close_ms = 300;
  CHECK_OK(net->dereg_mr(r.rc, mh_in));
  take_away(in);
  send_late(from, to, tag);
  for (int i = 0; i < 50; i++) rig_poll(other.rc);
  CHECK_MSG(log_said("may use its memory (RAIL_OFI_CLOSE_TIMEOUT)"), "%s", log_lines);
  CHECK_OK(net->close_recv(r.rc));
  CHECK_OK(net->close_send(other.sc));
  CHECK_OK(net->close_recv(other.rc));
  end();
}

/* ---- REVOKE, or its answer, that the fabric does not carry --------------------------------------------- */

/* One is lost: it comes anew, and another connection over the endpoint goes on. */
TEST(a_revoke_that_is_lost) {
  static const char *const scripts[] = {"fail=send:1:ECONNRESET:5:1", "lose=send:1:1", /* REVOKE */
                                        "fail=send:2:ECONNRESET:5:1", "lose=send:2:1" /* REVOKED */};
  for (size_t i = 0; i < 2 * RAIL_COUNT_OF(scripts); i++) {
    open_pair(i % 2 ? "nic=fake0 no=rma" : "nic=fake0", 1);
    struct rig other = {.ctx = {r.ctx[0], r.ctx[1]}};
    rig_connect(&other, 0, 0);
    CHECK(rig_recv(&r, in, 9000, 1, mh_in));
    RIG_UNTIL(RIG_LOCKED(r.rc, rig_comm(r.rc)->noutgoing) == 0 && RIG_LOCKED(r.sc, rig_comm(r.sc)->nops) == 0 &&
              RIG_LOCKED(r.sc, ((struct ofi_send_comm *)r.sc)->grants_applied) == OFI_FIRST_SEQ + 1, {
      rig_poll(r.rc);
      rig_poll(r.sc);
    });
    fake_script(scripts[i / 2]);
    CHECK_OK(net->dereg_mr(r.rc, mh_in));
    take_away(in);
    CHECK_MSG(!log_said("is closed, and all"), "%s: %s", scripts[i / 2], log_lines);
    CHECK_OK(rail_first_error(&rig_comm(other.rc)->error));
    CHECK_OK(net->close_recv(r.rc));
    CHECK_OK(net->close_send(r.sc));
    CHECK_OK(net->close_send(other.sc));
    CHECK_OK(net->close_recv(other.rc));
    end();
  }
}

/* ---- a fabric that is dead towards one peer -------------------------------------------------------------- */

static void kill_endpoint(void *comm) {
  char script[32];
  struct sockaddr_in name; /* its port is the endpoint's number */
  memcpy(&name, rig_comm(comm)->endpoint->nics[0].name.bytes, sizeof name);
  snprintf(script, sizeof script, "dead=%d", ntohs(name.sin_port));
  fake_script(script);
}

static bool has_grant(void *comm) {
  return RIG_LOCKED(comm, ((struct ofi_send_comm *)comm)->grants_applied) == OFI_FIRST_SEQ + 1;
}

static void poll_both(void) {
  rig_poll(r.rc);
  rig_poll(r.sc);
}

/* That peer alone loses its connections, unless it may have begun a write that nothing keeps out. What it sends when
 * the fabric carries messages again touches no memory. */
TEST(a_fabric_that_is_dead_towards_one_peer) {
  static const struct { const char *offers; size_t size; bool all_end; } rows[] = {
    {"nic=fake0 no=rma", 9000, false},
    {"nic=fake0 prov=verbs;ofi_rxm", 9000, true},
    {"nic=fake0 prov=tcp;ofi_rxm", 9000, true},
    {"nic=fake0 prov=tcp;ofi_rxm", 100, false}}; /* comes in a control message */
  for (size_t i = 0; i < RAIL_COUNT_OF(rows); i++) {
    uint8_t got[SIZE_OF_OTHERS];
    open_pair(rows[i].offers, 1);
    struct rig other = {.ctx = {rig_ctx(), r.ctx[1]}};
    rig_connect(&other, 0, 0);
    void *mo = rig_reg(other.sc, out, SIDE), *mi = rig_reg(other.rc, got, sizeof got);
    CHECK(rig_recv(&r, in, rows[i].size, 1, mh_in));
    RIG_UNTIL(rows[i].size <= rig_comm(r.rc)->max_inline || has_grant(r.sc), poll_both());
    kill_endpoint(r.sc);
    CHECK(rig_isend(r.sc, out, RAIL_MIN(rows[i].size, 3000), 1, mh_out));
    ofi_params.close_ms = 200;
    CHECK_OK(net->dereg_mr(r.rc, mh_in));
    ofi_params.close_ms = RIG_PATIENCE_MS;
    take_away(in);
    CHECK_MSG(log_said("is closed, and all its connections") == rows[i].all_end, "row %zu: %s", i, log_lines);
    fake_script("reset=1");
    RIG_UNTIL(RIG_LOCKED(r.sc, rig_comm(r.sc)->nops) == 0, poll_both());
    if (!rows[i].all_end) {
      void *recv = rig_recv(&other, got, sizeof got, 1, mi);
      CHECK_INT(rig_finish(&other, rig_send(&other, out, sizeof got, 1, mo), recv), sizeof got);
    }
    CHECK_OK(net->close_recv(r.rc));
    CHECK_OK(net->dereg_mr(r.sc, mh_out));
    CHECK_OK(net->close_send(r.sc));
    CHECK_OK(net->dereg_mr(other.sc, mo));
    CHECK_OK(net->dereg_mr(other.rc, mi));
    CHECK_OK(net->close_send(other.sc));
    CHECK_OK(net->close_recv(other.rc));
    CHECK_OK(net->finalize(other.ctx[0]));
    end();
  }
}

static struct ofi_comm *flushing;
static int late_reads;
static ssize_t no_room_for_reads(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t from, uint64_t addr,
                                 uint64_t key, void *context) {
  (void)ep, (void)buf, (void)len, (void)desc, (void)from, (void)addr, (void)key, (void)context;
  late_reads += atomic_load(&flushing->stopped);
  return -FI_EAGAIN;
}

/* A pair whose receiver flushes host memory, too. */
static void open_flushing(void) {
  start("nic=fake0");
  ofi_params.flush = OFI_FLUSH_ALWAYS;
  rig_open(&r, 1, 1);
  out = pages();
  in = pages();
  mh_in = rig_reg(r.rc, in, SIDE);
}

/* A flush that found no room is not begun for a connection that has ended. */
TEST(a_flush_that_waits) {
  open_flushing();
  flushing = rig_comm(r.rc);
  ofi_endpoint_lock(flushing->endpoint);
  struct fid_ep *ep = flushing->endpoint->nics[0].ep;
  struct fi_ops_rma *rma = ep->rma, full = *rma;
  full.read = no_room_for_reads;
  ep->rma = &full;
  ofi_endpoint_unlock(flushing->endpoint);
  void *data = in, *request = NULL;
  CHECK_OK(net->iflush(r.rc, 1, &data, &(int){8}, &mh_in, &request));
  CHECK(request);
  CHECK_INT(RIG_LOCKED(r.rc, ((struct ofi_flush *)request)->ops[0].state), OFI_OP_WAITING);
  CHECK_OK(net->dereg_mr(r.rc, mh_in));
  CHECK_INT(late_reads, 0);
  CHECK_INT(log_warnings(), 0);
  RIG_LOCKED(r.rc, ep->rma = rma);
  CHECK_OK(net->close_send(r.sc));
  CHECK_OK(net->close_recv(r.rc));
  end();
}

/* ---- an endpoint that is never idle -------------------------------------------------------------------- */

static struct ofi_op busy;
static struct fi_ops_cq usual_cq;

/* There is always a completion, of another connection's. */
static ssize_t read_one_more(struct fid_cq *cq, void *buf, size_t count) {
  ssize_t n = usual_cq.read(cq, buf, count);
  if (n != -FI_EAGAIN) return n;
  busy.comm->nops++;
  busy.comm->noutgoing++;
  busy.comm->endpoint->nops++;
  *(struct fi_cq_msg_entry *)buf = (struct fi_cq_msg_entry){.op_context = &busy};
  return 1;
}

TEST(a_peer_that_goes_while_others_are_busy) {
  open_pair("nic=fake0", 1);
  struct rig other = {.ctx = {r.ctx[0], r.ctx[1]}};
  rig_connect(&other, 0, 0);
  struct ofi_endpoint *endpoint = rig_comm(r.rc)->endpoint;
  void *recv = rig_recv(&r, in, 9000, 1, mh_in);
  busy = (struct ofi_op){.kind = OFI_OP_PING, .comm = rig_comm(other.rc), .nic = &endpoint->nics[0]};
  ofi_endpoint_lock(endpoint);
  struct fi_ops_cq *cq = endpoint->nics[0].cq->ops, counting = usual_cq = *cq;
  counting.read = read_one_more;
  endpoint->nics[0].cq->ops = &counting;
  ofi_endpoint_unlock(endpoint);
  CHECK_OK(net->close_send(r.sc));
  CHECK_INT(rig_error(recv), RAIL_REMOTE_ERROR);
  CHECK_MSG(log_said("the peer closed the connection while requests were outstanding"), "%s", log_lines);
  ofi_endpoint_lock(endpoint);
  endpoint->nics[0].cq->ops = cq;
  ofi_endpoint_unlock(endpoint);
  CHECK_OK(net->dereg_mr(r.rc, mh_in));
  CHECK_OK(net->close_recv(r.rc));
  CHECK_OK(net->close_send(other.sc));
  CHECK_OK(net->close_recv(other.rc));
  end();
}

/* ---- a flush that does not get the endpoint's lock ------------------------------------------------------ */

/* It waits for nobody: test posts it. Reads need nothing that is made only then. */
TEST(a_flush_while_another_thread_polls) {
  open_flushing();
  struct ofi_comm *comm = rig_comm(r.rc);
  void *data = in, *flushed[2] = {NULL, NULL};
  long reads = fake_calls("read"), registered = fake_calls("mr_reg"), inserted = fake_calls("av_insert");
  ofi_endpoint_lock(comm->endpoint);
  for (int i = 0; i < 2; i++) CHECK_OK(net->iflush(r.rc, 1, &data, &(int){8}, &mh_in, &flushed[i]));
  CHECK(flushed[0] && flushed[1] && fake_calls("read") == reads);
  CHECK(!rig_done(flushed[1], NULL));
  ofi_endpoint_unlock(comm->endpoint);
  for (int i = 1; i >= 0; i--) RIG_UNTIL(rig_done(flushed[i], NULL), (void)0);
  CHECK_INT(fake_calls("read"), reads + 2);
  CHECK_INT(fake_calls("mr_reg"), registered);
  CHECK_INT(fake_calls("av_insert"), inserted);
  CHECK_INT(RIG_LOCKED(r.rc, atomic_load(&comm->outstanding)), 0);
  CHECK_OK(net->dereg_mr(r.rc, mh_in));
  CHECK_OK(net->close_send(r.sc));
  CHECK_OK(net->close_recv(r.rc));
  end();
}

/* What deregMr or another end of the connection comes before is not begun. */
TEST(an_end_that_comes_before_a_flush) {
  for (int stopped = 0; stopped < 2; stopped++) {
    open_flushing();
    struct ofi_comm *comm = rig_comm(r.rc);
    void *data = in, *flushed = NULL;
    long reads = fake_calls("read");
    ofi_endpoint_lock(comm->endpoint);
    CHECK_OK(net->iflush(r.rc, 1, &data, &(int){8}, &mh_in, &flushed));
    ofi_endpoint_unlock(comm->endpoint);
    CHECK(flushed);
    if (stopped) atomic_store(&comm->stopped, true);
    CHECK_OK(net->dereg_mr(r.rc, mh_in));
    CHECK_INT(rig_error(flushed), RAIL_BAD_USAGE);
    CHECK_INT(fake_calls("read"), reads);
    CHECK_OK(net->close_send(r.sc));
    CHECK_OK(net->close_recv(r.rc));
    end();
  }
}

RIG_MAIN(TEST_CASE(with_everything_in_flight), TEST_CASE(a_sender_that_has_sent_nothing),
         TEST_CASE(a_message_for_a_comm_that_is_closed), TEST_CASE(a_receive_that_the_provider_keeps),
         TEST_CASE(a_revoke_that_is_lost), TEST_CASE(a_fabric_that_is_dead_towards_one_peer),
         TEST_CASE(a_flush_that_waits),
         TEST_CASE(a_peer_that_goes_while_others_are_busy), TEST_CASE(a_flush_while_another_thread_polls),
         TEST_CASE(an_end_that_comes_before_a_flush))
