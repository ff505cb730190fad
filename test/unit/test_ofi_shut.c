/* SPDX-License-Identifier: Apache-2.0
 *
 * Failures that belong to no connection, over a scripted libfabric: the ofi plugin closes the endpoint, and all its
 * connections end in words.
 */
#include "test/unit/ofi_rig.h"

#define SIZE 9000

static struct rig r;
static uint8_t out[SIZE], in[SIZE];

static void open_pair(void) {
  rig_start("nic=fake0");
  rig_open_pair(&r, 1, 1, out, sizeof out, in, sizeof in);
}

static rail_result_t error_of(void *comm) { return rail_first_error(&rig_comm(comm)->error); }

/* What has arrived is read before an endpoint is closed, but not over shm, which may crash then. The watch thread may
 * read, too. */
static _Thread_local int reads;
static ssize_t read_nothing(struct fid_cq *cq, void *buf, size_t count) {
  (void)cq, (void)buf, (void)count;
  reads++;
  return -FI_EAGAIN;
}

TEST(the_last_is_read_but_not_over_shm) {
  for (int shm = 0; shm <= 1; shm++) {
    rig_start(shm ? "nic=fake0 prov=shm" : "nic=fake0");
    rig_open(&r, 1, 1);
    struct ofi_endpoint *endpoint = rig_comm(r.sc)->endpoint;
    CHECK_OK(net->close_send(r.sc));
    CHECK_OK(net->close_recv(r.rc));
    static struct fi_ops_cq counting;
    ofi_endpoint_lock(endpoint);
    counting = *endpoint->nics[0].cq->ops;
    counting.read = read_nothing;
    endpoint->nics[0].cq->ops = &counting;
    ofi_endpoint_unlock(endpoint);
    reads = 0;
    rig_finalize(&r);
    CHECK_INT(reads, !shm);
    rig_end();
  }
}

/* Completions that are lost cannot be told apart: the endpoint is shut, and its connections end in words. */
TEST(a_completion_queue_that_overruns) {
  for (int how = 1; how <= 2; how++) {
    char script[64];
    open_pair();
    snprintf(script, sizeof script, "overrun=%d", how);
    fake_script("cq_size=4");
    struct rig small = {.ctx = {rig_ctx(), rig_ctx()}};
    rig_connect(&small, 0, 0); /* its handshake fits */
    fake_script(script);
    void *mh = rig_reg(small.rc, in, sizeof in);
    rail_result_t result = RAIL_OK;
    void *data = in, *request;
    for (int i = 0; i < 20; i++) (void)net->irecv(small.rc, 1, &data, &(size_t){SIZE}, &i, &mh, NULL, &request);
    for (int i = 0; i < 50; i++) rig_poll(small.sc);
    for (int i = 0; i < 50; i++) rig_poll(small.rc);
    RIG_UNTIL(error_of(small.sc) || error_of(small.rc), {
      result = net->isend(small.sc, out, 0, 99, NULL, NULL, &request);
      rig_poll(small.rc);
    });
    (void)result;
    CHECK_MSG(log_said("the endpoint of fake0 is closed, and all its connections with it"), "%s", log_lines);
    rig_close(&small);
    rig_close_pair(&r);
  }
}

/* First there is no room for it, then the provider refuses it. */
static int tries;
static ssize_t refuse_receive(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t from, void *context) {
  (void)ep, (void)buf, (void)len, (void)desc, (void)from, (void)context;
  return tries++ ? -FI_ENOMEM : -FI_EAGAIN;
}

/* It is the endpoint's own. */
TEST(a_receive_of_control_messages_that_is_refused) {
  open_pair();
  struct fid_ep *ep = rig_comm(r.rc)->endpoint->nics[0].ep;
  const struct fi_ops_msg *usual = ep->msg;
  struct fi_ops_msg refusing = *usual;
  refusing.recv = refuse_receive;
  tries = 0;
  ofi_endpoint_lock(rig_comm(r.rc)->endpoint);
  ep->msg = &refusing;
  ofi_endpoint_unlock(rig_comm(r.rc)->endpoint);
  void *send = rig_send(&r, out, 8, 1, r.mh_out);
  RIG_UNTIL(error_of(r.rc) != RAIL_OK, {
    rig_poll(r.sc);
    rig_poll(r.rc);
  });
  CHECK_INT(tries, 2);
  CHECK_INT(error_of(r.rc), RAIL_SYSTEM_ERROR);
  CHECK(rig_done(send, NULL)); /* it had been sent */
  CHECK_MSG(log_said("the endpoint of fake0 is closed, and all its connections with it"), "%s", log_lines);
  rig_close_pair(&r);
}

/* What is injected has no operation that an error could be reported for: a peer that is gone ends its own connection
 * alone. */
TEST(a_peer_that_is_gone_while_a_message_is_injected) {
  static const char *const offers[] = {"nic=fake0 prov=shm inject=4096", "nic=fake0 prov=tcp;ofi_rxm inject=4096"};
  for (size_t i = 0; i < RAIL_COUNT_OF(offers); i++) {
    rig_start(offers[i]);
    rig_open_pair(&r, 1, 1, out, sizeof out, in, sizeof in);
    struct rig other = {.ctx = {rig_ctx(), r.ctx[1]}};
    rig_connect(&other, 0, 0);
    CHECK(rig_comm(other.rc)->endpoint == rig_comm(r.rc)->endpoint && rig_comm(r.rc)->endpoint->nics[0].max_inject);
    CHECK_OK(net->close_send(other.sc));
    CHECK_OK(net->finalize(other.ctx[0])); /* its endpoint is closed */
    CHECK_INT(RIG_LOCKED(other.rc, ofi_comm_ping(rig_comm(other.rc), 0)), RAIL_OK);
    CHECK_INT(RIG_LOCKED(other.rc, rig_comm(other.rc)->pings[0].state), OFI_OP_IDLE);
    for (int k = 0; k < 50; k++) rig_poll(r.rc);
    CHECK_OK(net->close_recv(other.rc));
    void *recv = rig_recv(&r, in, SIZE, 1, r.mh_in);
    CHECK_INT(rig_finish(&r, rig_send(&r, out, SIZE, 1, r.mh_out), recv), SIZE);
    CHECK_MSG(!log_said("the endpoint of fake0 is closed"), "%s", log_lines);
    rig_close_pair(&r);
  }
}

/* Registrations of everything are bound to it, and receives are posted: it closes, and nothing is left. */
TEST(an_endpoint_with_registrations) {
  static const char *const offers[] = {"nic=fake0 mr_mode=local,endpoint", "nic=fake0 mr_mode=virt_addr,endpoint"};
  for (size_t i = 0; i < RAIL_COUNT_OF(offers); i++) {
    rig_start(offers[i]);
    rig_open_pair(&r, 1, 1, out, sizeof out, in, sizeof in);
    long open = fake_live("ep");
    CHECK(rig_recv(&r, in, SIZE, 1, r.mh_in));
    struct ofi_endpoint *endpoint = rig_comm(r.rc)->endpoint;
    ofi_endpoint_lock(endpoint);
    ofi_shut(endpoint, "a test");
    ofi_endpoint_unlock(endpoint);
    CHECK_INT(fake_live("ep"), open - 1);
    CHECK_MSG(log_warnings() == 2 && log_said("the endpoint was closed: a test"), "%s", log_lines);
    rig_close_pair(&r);
  }
}

/* isend and irecv return the comm's error also where they do not get the endpoint's lock. */
TEST(an_error_while_another_thread_has_the_endpoint) {
  open_pair();
  void *const comms[] = {r.sc, r.rc};
  for (int i = 0; i < 2; i++) {
    void *data = in, *request = NULL;
    struct ofi_endpoint *endpoint = rig_comm(comms[i])->endpoint;
    ofi_endpoint_lock(endpoint);
    ofi_shut(endpoint, "a test");
    rail_result_t result = i ? net->irecv(r.rc, 1, &data, &(size_t){SIZE}, &(int){1}, &r.mh_in, NULL, &request)
                             : net->isend(r.sc, out, SIZE, 1, r.mh_out, NULL, &request);
    ofi_endpoint_unlock(endpoint);
    CHECK_INT(result, RAIL_SYSTEM_ERROR);
    CHECK(!request);
  }
  rig_close_pair(&r);
}

static int reported;
static ssize_t read_error(struct fid_cq *cq, void *buf, size_t count) {
  (void)cq, (void)buf, (void)count;
  return reported ? -FI_EAGAIN : -FI_EAVAIL;
}
static ssize_t read_error_of_a_send(struct fid_cq *cq, struct fi_cq_err_entry *entry, uint64_t flags) {
  (void)cq, (void)flags;
  *entry = (struct fi_cq_err_entry){.flags = FI_SEND, .err = FI_EIO};
  reported = 1;
  return 1;
}

/* An error of a send that has no operation is an injected message's, where messages are injected; elsewhere something
 * was lost. */
TEST(an_error_that_belongs_to_no_operation) {
  for (int injects = 0; injects <= 1; injects++) {
    rig_start(injects ? "nic=fake0 prov=shm inject=4096" : "nic=fake0");
    rig_open_pair(&r, 1, 1, out, sizeof out, in, sizeof in);
    struct ofi_endpoint *endpoint = rig_comm(r.rc)->endpoint;
    struct fid_cq *cq = endpoint->nics[0].cq;
    struct fi_ops_cq *usual = cq->ops, failing = *usual;
    failing.read = read_error;
    failing.readerr = read_error_of_a_send;
    reported = 0;
    ofi_endpoint_lock(endpoint);
    cq->ops = &failing;
    (void)ofi_poll(endpoint);
    cq->ops = usual;
    ofi_endpoint_unlock(endpoint);
    CHECK_INT(reported, 1);
    CHECK_INT(error_of(r.rc), injects ? RAIL_OK : RAIL_SYSTEM_ERROR);
    rig_close_pair(&r);
  }
}

RIG_MAIN(TEST_CASE(a_completion_queue_that_overruns), TEST_CASE(a_receive_of_control_messages_that_is_refused),
         TEST_CASE(a_peer_that_is_gone_while_a_message_is_injected), TEST_CASE(the_last_is_read_but_not_over_shm),
         TEST_CASE(an_endpoint_with_registrations), TEST_CASE(an_error_that_belongs_to_no_operation),
         TEST_CASE(an_error_while_another_thread_has_the_endpoint))
