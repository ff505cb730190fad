/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 240
 *
 * Endpoints of the ofi plugin, over a scripted libfabric: one that takes long to open, and many peers in turn.
 */
#include <pthread.h>

#include "plugin/ofi/ofi_fabric.h"
#include "test/unit/ofi_rig.h"

static struct rig r;

/* ---- opening ------------------------------------------------------------------------------------ */

static __typeof__(ofi_fabric.fabric) usual_fabric;
static _Atomic bool opening, may_open;
static void *third;

static int slow_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context) {
  atomic_store(&opening, true);
  while (!atomic_load(&may_open)) poll(NULL, 0, 1);
  return usual_fabric(attr, fabric, context);
}

static void *connect_third(void *arg) {
  void *comm = NULL;
  (void)arg;
  RIG_UNTIL(atomic_load(&opening), CHECK_OK(net->connect(third, 0, r.handle, -1, &comm, NULL)));
  return NULL;
}

/* While a provider opens one, the watch thread goes on polling the others, for whose peers a PING is to be answered. */
TEST(an_endpoint_that_takes_long_to_open) {
  pthread_t thread;
  rig_start("nic=fake0");
  rig_open(&r, 1, 1);
  rig_listen(&r, 0);
  third = rig_ctx();
  usual_fabric = ofi_fabric.fabric;
  ofi_fabric.fabric = slow_fabric;
  CHECK(pthread_create(&thread, NULL, connect_third, NULL) == 0);
  RIG_UNTIL(atomic_load(&opening), poll(NULL, 0, 1));
  struct ofi_endpoint *endpoint = rig_comm(r.rc)->endpoint;
  uint64_t polls = RIG_LOCKED(r.rc, endpoint->polls);
  ofi_endpoint_wake(endpoint); /* as a PING over the oob connection does */
  RIG_UNTIL(RIG_LOCKED(r.rc, endpoint->polls) > polls, poll(NULL, 0, 1));
  atomic_store(&may_open, true);
  CHECK(pthread_join(thread, NULL) == 0);
  ofi_fabric.fabric = usual_fabric;
  CHECK_OK(net->finalize(third));
  CHECK_OK(net->close_listen(r.listen));
  rig_close(&r);
  CHECK_MSG(log_warnings() == 0, "%s", log_warning);
  rig_end();
}

/* ---- peers in turn ------------------------------------------------------------------------------- */

static uint8_t out[8], in[8];

/* The port, or the name, that libfabric had chosen was taken meanwhile: the endpoint is opened anew, as often as a
 * process that is killed again and again, and has the same id each time, leaves names. */
TEST(an_endpoint_whose_port_is_taken) {
  static const struct { const char *error; int times; } faults[] = {{"EADDRINUSE", 1}, {"EBUSY", 1}, {"EBUSY", 20}};
  for (size_t i = 0; i < RAIL_COUNT_OF(faults); i++) {
    char script[64];
    rail_result_t result = RAIL_OK;
    memset(&r, 0, sizeof r);
    rig_start("nic=fake0 mr_mode=local");
    r.ctx[0] = rig_ctx();
    r.ctx[1] = rig_ctx();
    rig_listen(&r, 0);
    const long before = fake_calls("enable");
    snprintf(script, sizeof script, "fail=enable:1:%s:0:%d", faults[i].error, faults[i].times);
    fake_script(script);
    RIG_UNTIL(result != RAIL_OK || (r.sc && r.rc), (void)rig_step(&r, 0, &result));
    CHECK_INT(result, RAIL_OK);
    CHECK_INT(fake_calls("enable") - before, 2 + faults[i].times); /* two endpoints */
    CHECK_INT(log_warnings(), 0);
    CHECK_OK(net->close_listen(r.listen));
    rig_close(&r);
    rig_end();
  }
}

/* As processes that are restarted: each has an endpoint of its own, and meets one that goes on. */
static void meet_many(const char *behaviour, unsigned int most) {
  rig_start("nic=fake0");
  rig_open(&r, 1, 1);
  fake_script(behaviour);
  const struct ofi_endpoint_nic *nic = &rig_comm(r.rc)->endpoint->nics[0];
  for (int i = 0; i < 40; i++) {
    struct rig one = {.ctx = {rig_ctx(), r.ctx[1]}};
    rig_connect(&one, 0, 0);
    void *mo = rig_reg(one.sc, out, sizeof out), *mi = rig_reg(one.rc, in, sizeof in);
    void *recv = rig_recv(&one, in, sizeof in, 1, mi);
    CHECK_INT(rig_finish(&one, rig_send(&one, out, sizeof out, 1, mo), recv), sizeof out);
    CHECK_OK(net->dereg_mr(one.sc, mo));
    CHECK_OK(net->dereg_mr(one.rc, mi));
    CHECK_OK(net->close_send(one.sc));
    CHECK_OK(net->close_recv(one.rc));
    CHECK_OK(net->finalize(one.ctx[0]));
    unsigned int n = 0;
    const struct ofi_peer *peer;
    ofi_endpoint_lock(rig_comm(r.rc)->endpoint);
    SLIST_FOREACH(peer, &nic->peers, link) n++;
    ofi_endpoint_unlock(rig_comm(r.rc)->endpoint);
    CHECK_MSG(n <= most, "%u peers are kept", n);
  }
  rig_close(&r);
  CHECK_MSG(log_warnings() == 0, "%s", log_warning);
  rig_end();
}

TEST(many_peers_in_turn) {
  meet_many("av_size=0", 1 + OFI_IDLE_PEERS + 1); /* the last one's comm may wait for its last completion */
  meet_many("av_size=8", 8);
}

RIG_MAIN(TEST_CASE(an_endpoint_that_takes_long_to_open), TEST_CASE(an_endpoint_whose_port_is_taken),
         TEST_CASE(many_peers_in_turn))
