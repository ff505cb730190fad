/* SPDX-License-Identifier: Apache-2.0
 * TEST-QUIET
 *
 * Close and deregMr of the ofi plugin with a peer or a fabric that is slow, over a scripted libfabric: they wait for as
 * long as something moves, RAIL_OFI_CLOSE_TIMEOUT after the last of it, and no longer. Of a side that is slow one
 * operation moves every STEP_MS.
 */
#include <pthread.h>

#include "plugin/ofi/ofi_progress.h"
#include "test/unit/ofi_rig.h"

#define SIZE 9000
#define N 12
#define STEP_MS 150
#define CLOSE_MS 1500 /* N steps are longer; this machine may stand still for the time of some */

static unsigned int step_ms;
static struct rig r;
static uint8_t out[N][SIZE], in[N][SIZE];

static void open_pair(const char *offers) {
  rig_start(offers);
  rig_open_pair(&r, 1, 1, out, sizeof out, in, sizeof in);
  for (int i = 0; i < N; i++) memset(out[i], i + 1, SIZE);
  ofi_params.close_ms = CLOSE_MS;
  step_ms = STEP_MS;
}

/* ---- a slow side ------------------------------------------------------------------------- */

static struct fi_ops_cq usual, slow;
static uint64_t next_ns;

static ssize_t read_slowly(struct fid_cq *cq, void *buf, size_t count) {
  if (!rail_deadline_passed(next_ns)) return -FI_EAGAIN;
  ssize_t n = usual.read(cq, buf, count);
  if (n > 0) next_ns = rail_deadline_in_ms(step_ms);
  return n;
}

static void slow_down(void *comm) {
  struct ofi_endpoint *endpoint = rig_comm(comm)->endpoint;
  ofi_endpoint_lock(endpoint);
  struct fid_cq *cq = endpoint->nics[0].cq;
  slow = usual = *cq->ops;
  slow.read = read_slowly;
  next_ns = rail_deadline_in_ms(step_ms);
  cq->ops = &slow;
  ofi_endpoint_unlock(endpoint);
  fake_script("burst=1");
}

/* ---- a peer's caller ------------------------------------------------------------------------ */

static atomic_bool calls;
static void *poll_receiver(void *arg) {
  (void)arg;
  while (atomic_load(&calls)) {
    rig_poll(r.rc);
    poll(NULL, 0, 1);
  }
  return NULL;
}

/* All sends are done, and the receiver takes one after the other, whether its caller or its watch thread polls. */
TEST(messages_that_arrive_slowly) {
  for (int caller = 0; caller <= 1; caller++) {
    pthread_t thread;
    open_pair("nic=fake0");
    slow_down(r.rc);
    for (int i = 0; i < N; i++) RIG_UNTIL(rig_done(rig_send(&r, out[i], 100, 1, r.mh_out), NULL), (void)0);
    atomic_store(&calls, caller);
    CHECK_INT(pthread_create(&thread, NULL, poll_receiver, NULL), 0);
    CHECK_OK(net->dereg_mr(r.sc, r.mh_out));
    CHECK_OK(net->close_send(r.sc));
    atomic_store(&calls, false);
    CHECK_INT(pthread_join(thread, NULL), 0);
    CHECK_MSG(log_warnings() == 0, "caller %d: %s", caller, log_lines);
    CHECK_INT(RIG_LOCKED(r.rc, ofi_recv_comm_of(r.rc)->have.seen), OFI_FIRST_SEQ + N);
    CHECK_OK(net->dereg_mr(r.rc, r.mh_in));
    CHECK_OK(net->close_recv(r.rc));
    rig_finalize(&r);
    rig_end();
  }
}

/* One that takes a message in each such time, of more than close waits for. */
TEST(a_peer_that_holds_close_up) {
  enum { MANY = 80, FIFTH_MS = 100 };
  pthread_t thread;
  open_pair("nic=fake0");
  ofi_params.close_ms = 5 * FIFTH_MS;
  step_ms = FIFTH_MS;
  slow_down(r.rc);
  for (int i = 0; i < MANY; i++) RIG_UNTIL(rig_done(rig_send(&r, out[0], 100, 1, r.mh_out), NULL), (void)0);
  atomic_store(&calls, true);
  CHECK_INT(pthread_create(&thread, NULL, poll_receiver, NULL), 0);
  CHECK_OK(net->dereg_mr(r.sc, r.mh_out));
  CHECK_OK(net->close_send(r.sc));
  CHECK_MSG(RIG_LOCKED(r.rc, ofi_recv_comm_of(r.rc)->have.seen) < OFI_FIRST_SEQ + MANY, "it waited for all");
  atomic_store(&calls, false);
  CHECK_INT(pthread_join(thread, NULL), 0);
  CHECK_OK(net->dereg_mr(r.rc, r.mh_in));
  CHECK_OK(net->close_recv(r.rc));
  rig_finalize(&r);
  rig_end();
}

/* ---- with requests outstanding -------------------------------------------------------------- */

static void begin_writes(void) {
  for (int i = 0; i < N; i++) CHECK(rig_recv(&r, in[i], SIZE, i, r.mh_in));
  RIG_UNTIL(RIG_LOCKED(r.sc, ofi_send_comm_of(r.sc)->grants_applied) == OFI_FIRST_SEQ + N, {
    rig_poll(r.rc);
    rig_poll(r.sc);
  });
}

/* The sender's writes go out one by one: the receiver sees their FINs. Or the sender itself closes. */
TEST(writes_that_complete_slowly) {
  for (int sender = 0; sender <= 1; sender++) {
    open_pair("nic=fake0 prov=tcp;ofi_rxm");
    begin_writes();
    slow_down(r.sc);
    for (int i = 0; i < N; i++) CHECK(rig_send(&r, out[i], SIZE, i, r.mh_out));
    CHECK_OK(sender ? net->dereg_mr(r.sc, r.mh_out) : net->dereg_mr(r.rc, r.mh_in));
    CHECK_MSG(!log_said("is closed, and all"), "sender %d: %s", sender, log_lines);
    CHECK_OK(sender ? net->dereg_mr(r.rc, r.mh_in) : net->dereg_mr(r.sc, r.mh_out));
    rig_close(&r);
    rig_end();
  }
}

/* One that does not complete is not waited for any longer, whatever control messages complete meanwhile. */
TEST(a_write_that_never_completes) {
  open_pair("nic=fake0");
  begin_writes();
  fake_script("hang=write:1");
  for (int i = 0; i < N; i++) CHECK(rig_send(&r, out[i], SIZE, i, r.mh_out));
  ofi_params.close_ms = 700; /* some REVOKEs */
  uint64_t start = rail_now_ns();
  CHECK_OK(net->dereg_mr(r.rc, r.mh_in));
  CHECK(rail_now_ns() - start < 30e9);
  CHECK_MSG(log_said("is closed, and all its connections"), "%s", log_lines);
  CHECK_OK(net->dereg_mr(r.sc, r.mh_out));
  rig_close(&r);
  rig_end();
}

RIG_MAIN(TEST_CASE(messages_that_arrive_slowly), TEST_CASE(a_peer_that_holds_close_up),
         TEST_CASE(writes_that_complete_slowly),
         TEST_CASE(a_write_that_never_completes))
