/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 240
 *
 * The handshake of the ofi plugin, over a scripted libfabric: sides of different providers, a fabric that carries
 * nothing, peers that vanish in each step, closes in each step, and that nothing is left of many.
 */
#include "plugin/ofi/ofi_comm.h"
#include "test/unit/ofi_rig.h"

static struct rig r;

static void begin(const char *offers) {
  memset(&r, 0, sizeof r);
  rig_start(offers);
  r.ctx[0] = rig_ctx();
  r.ctx[1] = rig_ctx();
  rig_listen(&r, 0);
}

static void end(void) {
  CHECK_OK(net->close_listen(r.listen));
  r.listen = NULL;
  rig_close(&r);
  rig_end();
}

/* Until one side, or both, have ended: the results. A side that has failed is not called again. */
static void run(int dev_s, rail_result_t *connect, rail_result_t *accept) {
  *connect = *accept = RAIL_OK;
  RIG_UNTIL((*connect != RAIL_OK || r.sc) && (*accept != RAIL_OK || r.rc || *connect != RAIL_OK), {
    if (*connect == RAIL_OK && !r.sc) *connect = net->connect(r.ctx[0], dev_s, r.handle, -1, &r.sc, NULL);
    if (*accept == RAIL_OK && !r.rc) *accept = net->accept(r.listen, &r.rc, NULL);
  });
}

/* ---- that do not come about -------------------------------------------------------------------- */

/* Device 1's provider is another: the same name of a library does not make a common fabric. */
TEST(another_provider) {
  rail_result_t connect, accept;
  begin("nic=fake0 nic=fake1");
  /* Both devices are of the provider that was chosen; one is renamed, as another host's would be. */
  char other[] = "other;fake";
  struct ofi_nic *nic = (struct ofi_nic *)(uintptr_t)ofi_nic_at(1);
  const char *was = nic->provider;
  nic->provider = other;
  run(1, &connect, &accept);
  nic->provider = was;
  CHECK_INT(connect, RAIL_REMOTE_ERROR);
  CHECK_MSG(log_said("other;fake") && (log_said("different libfabric providers") || log_said("FI_PROVIDER")), "%s",
            log_lines);
  end();
}

/* TCP reaches the peer, and the fabric does not: an error by its deadline, in words. */
TEST(a_fabric_that_carries_nothing) {
  static const char *const scripts[] = {"lose=send:1:1000000", "hang=send:1:1000000"};
  for (size_t i = 0; i < RAIL_COUNT_OF(scripts); i++) {
    rail_result_t connect, accept;
    begin("nic=fake0");
    ofi_params.connect_ms = 1500;
    ofi_params.close_ms = 50;
    fake_script(scripts[i]);
    run(0, &connect, &accept);
    CHECK(connect != RAIL_OK && !r.sc && !r.rc);
    CHECK_MSG(log_said("RAIL_OFI_CONNECT_TIMEOUT") && log_said("fake0") && log_said("carried no message"), "%s",
              log_lines);
    end();
  }
}

/* One of two paths is enough to fail. */
TEST(one_path_that_carries_nothing) {
  rail_result_t connect, accept;
  memset(&r, 0, sizeof r);
  rig_start("net=one nic=fake0 nic=fake1");
  ofi_params.connect_ms = 1500;
  r.ctx[0] = rig_ctx();
  r.ctx[1] = rig_ctx();
  int dev = rig_fuse(2);
  rig_listen(&r, dev);
  fake_script("lose=send:2:1");
  run(dev, &connect, &accept);
  CHECK(connect != RAIL_OK || accept != RAIL_OK || !r.rc);
  CHECK_MSG(log_said("carried no message"), "%s", log_lines);
  if (r.sc) CHECK_OK(net->close_send(r.sc));
  if (r.rc) CHECK_OK(net->close_recv(r.rc));
  r.sc = r.rc = NULL;
  end();
}

TEST(a_first_message_that_fails) {
  rail_result_t connect, accept;
  begin("nic=fake0");
  fake_script("fail=send:1:EHOSTUNREACH:5:9 err_text=no_way");
  run(0, &connect, &accept);
  CHECK_INT(connect, RAIL_REMOTE_ERROR);
  CHECK_MSG(log_said("first message (fi_send)") && log_said("no way"), "%s", log_lines);
  end();
}

TEST(an_address_that_is_refused) {
  rail_result_t connect, accept;
  begin("nic=fake0");
  fake_script("fail=av_insert:1:EINVAL:0:9");
  run(0, &connect, &accept);
  CHECK(connect != RAIL_OK || accept != RAIL_OK);
  CHECK_MSG(log_said("does not take the peer's address"), "%s", log_lines);
  end();
}

/* A peer's address that libfabric would read beyond its end, or beyond what was sent. */
TEST(an_address_without_an_end) {
  static const struct { const char *offers; uint16_t size; } rows[] = {{"nic=fake0 addr=str", OFI_ADDR_SIZE},
                                                                       {"nic=fake0 addr=in", 5}};
  for (size_t i = 0; i < RAIL_COUNT_OF(rows); i++) {
    rail_result_t connect, accept;
    begin(rows[i].offers);
    run(0, &connect, &accept);
    CHECK(r.sc && r.rc);
    struct ofi_endpoint *endpoint = rig_comm(r.sc)->endpoint;
    CHECK_OK(net->close_send(r.sc));
    CHECK_OK(net->close_recv(r.rc));
    r.sc = r.rc = NULL;
    ofi_endpoint_lock(endpoint); /* what the next connection's sender says of itself */
    endpoint->nics[0].name.size = rows[i].size;
    memset(endpoint->nics[0].name.bytes, 'a', OFI_ADDR_SIZE);
    ofi_endpoint_unlock(endpoint);
    long inserted = fake_calls("av_insert");
    run(0, &connect, &accept);
    CHECK_INT(connect, RAIL_REMOTE_ERROR);
    CHECK_INT(fake_calls("av_insert"), inserted);
    CHECK_MSG(log_said("it sent an address that is none of provider fake's"), "%s", log_lines);
    end();
  }
}

/* ---- that end half-way ------------------------------------------------------------------------------ */

/* After so many calls of each side one gives up: its context is finalized, or its listener closed. The other ends. */
TEST(ended_after_each_call) {
  for (int who = 0; who < 3; who++)
    for (int calls = 0; calls < 24; calls++) {
      rail_result_t result = RAIL_OK;
      begin("nic=fake0");
      ofi_params.connect_ms = 2000;
      for (int i = 0; i < calls && !(r.sc && r.rc) && result == RAIL_OK; i++) (void)rig_step(&r, 0, &result);
      if (!r.sc && !r.rc && result == RAIL_OK) {
        if (who == 0) { /* the connector goes */
          CHECK_OK(net->finalize(r.ctx[0]));
          r.ctx[0] = NULL;
          for (int i = 0; i < 50 && !r.rc; i++) (void)net->accept(r.listen, &r.rc, NULL);
        } else if (who == 1) { /* the acceptor goes, and the connector hears of it */
          CHECK_OK(net->close_listen(r.listen));
          r.listen = NULL;
          RIG_UNTIL(result != RAIL_OK || r.sc, result = net->connect(r.ctx[0], 0, r.handle, -1, &r.sc, NULL));
        } else { /* all goes */
          CHECK_OK(net->finalize(r.ctx[1]));
          CHECK_OK(net->finalize(r.ctx[0]));
          r.ctx[0] = r.ctx[1] = r.listen = NULL;
        }
      }
      end();
    }
}

/* ---- many ------------------------------------------------------------------------------------------------ */

TEST(many_in_turn) {
  begin("nic=fake0");
  CHECK_OK(net->close_listen(r.listen));
  r.listen = NULL;
  const int n = kit_sanitized() ? 60 : 200;
  int fds = 0, threads = 0;
  long rss = 0;
  for (int i = 0; i < n; i++) {
    rig_connect(&r, 0, 0);
    CHECK_OK(net->close_send(r.sc));
    CHECK_OK(net->close_recv(r.rc));
    r.sc = r.rc = NULL;
    if (i == n / 2) fds = kit_fd_count(), threads = kit_thread_count(), rss = kit_rss_kb();
  }
  CHECK_INT(kit_fd_count(), fds);
  CHECK_INT(kit_thread_count(), threads);
  if (!kit_sanitized()) CHECK_MSG(kit_rss_kb() - rss < 4096, "%ld KiB more after half of them", kit_rss_kb() - rss);
  CHECK_INT(fake_live("ep"), 2);
  end();
}

RIG_MAIN(TEST_CASE(another_provider), TEST_CASE(a_fabric_that_carries_nothing),
         TEST_CASE(one_path_that_carries_nothing), TEST_CASE(a_first_message_that_fails),
         TEST_CASE(an_address_that_is_refused), TEST_CASE(an_address_without_an_end),
         TEST_CASE(ended_after_each_call), TEST_CASE(many_in_turn))
