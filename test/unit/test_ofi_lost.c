/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 240
 *
 * The ofi plugin over a fabric that loses what it has completed, while the peer's process answers over TCP: an error by
 * RAIL_OFI_DEADLINE, of which three thirds without activity are reported here by hand (RAIL_OOB_STALLED), but for one
 * case. And no error where the peer is slow or stopped.
 */
#include "test/unit/ofi_rig.h"

#define SIZE 9000
#define MANY 12 /* thirds: more than any deadline has */

static struct rig r;
static uint8_t out[SIZE], in[SIZE];

static void open_pair(const char *offers, int nics) {
  rig_start(offers);
  ofi_params.deadline_ms = ofi_params.peer_warn_ms = 0; /* the watch thread finds nothing stalled or silent by itself */
  rig_open_pair(&r, nics, nics, out, sizeof out, in, sizeof in);
}

static void poll_both(void) {
  for (int i = 0; i < 20; i++) rig_poll(i % 2 ? r.sc : r.rc);
}

/* A third of RAIL_OFI_DEADLINE without activity has passed for a side that waits; the fabric has time to answer. */
static rail_result_t stall(void *comm, void *request) {
  rail_result_t result = RAIL_OK;
  void *refused = NULL;
  int done = 0;
  atomic_fetch_or(&rig_comm(comm)->pending_work, RAIL_OOB_STALLED);
  RIG_UNTIL(!(atomic_load(&rig_comm(comm)->pending_work) & RAIL_OOB_STALLED), {
    if (request) result = net->test(request, &done, NULL);
    else result = net->isend(comm, out, SIZE, 1, r.mh_out, NULL, &refused);
    CHECK(!done && !refused);
  });
  poll_both();
  return result;
}

/* The third time that it stalls is an error, and not before. */
static void fails(void *comm, void *request, const char *why) {
  CHECK_OK(stall(comm, request));
  CHECK_OK(stall(comm, request));
  CHECK_INT(stall(comm, request), RAIL_REMOTE_ERROR);
  CHECK_MSG(log_warnings() >= 1 && log_said(why) && log_said("fake0"), "%s", log_lines);
}

static void end(void) {
  fake_script("reset=1");
  rig_close_pair(&r);
}

/* ---- messages that are lost ------------------------------------------------------------------------ */

static const char nothing[] = "the fabric has carried no message there and back";
static const char message[] = "1 messages and 0 receives";

TEST(a_receive_whose_message_is_lost) {
  static const struct { const char *offers, *script; size_t size; const char *why; } rows[] = {
    {"nic=fake0", "lose=any:1:ever", 100, nothing},          {"nic=fake0", "lose=send:1:1", 100, message},
    {"nic=fake0 prov=tcp;ofi_rxm inject=4096", "lose=send:1:1", 10, message}, /* by fi_inject */
    {"nic=fake0", "lose=any:1:ever", 8000, nothing},         {"nic=fake0", "lose=send:1:1", 8000, message}, /* FIN */
    {"nic=fake0 no=saw", "lose=send:1:1", 8000, message},    {"nic=fake0 no=rma", "lose=any:1:ever", 8000, nothing},
    {"nic=fake0 no=rma", "lose=tsend:1:1", 8000, message}};
  for (size_t i = 0; i < RAIL_COUNT_OF(rows); i++) {
    open_pair(rows[i].offers, 1);
    void *recv = rig_recv(&r, in, rows[i].size, 1, r.mh_in);
    poll_both();
    fake_script(rows[i].script);
    void *send = rig_send(&r, out, rows[i].size, 1, r.mh_out);
    RIG_UNTIL(rig_done(send, NULL), rig_poll(r.sc)); /* its memory is the caller's */
    poll_both(); /* and it has left */
    fails(r.rc, recv, rows[i].why);
    end();
  }
}

/* Both sides wait, and either finds out. */
TEST(a_grant_that_is_lost) {
  for (int sender = 0; sender < 2; sender++)
    for (int all = 0; all < 2; all++) {
      open_pair("nic=fake0", 1);
      fake_script(all ? "lose=any:1:ever" : "lose=send:1:1");
      void *recv = rig_recv(&r, in, SIZE, 1, r.mh_in);
      poll_both();
      fails(sender ? r.sc : r.rc, sender ? NULL : recv, all ? nothing : "0 messages and 1 receives");
      end();
    }
}

/* Of two paths one carries nothing; there may be messages on it that this side cannot know of. */
TEST(one_path_of_two) {
  char script[32];
  open_pair("net=one nic=fake0 nic=fake1", 2);
  void *recv = rig_recv(&r, in, SIZE, 1, r.mh_in);
  poll_both();
  struct sockaddr_in name; /* its port is the endpoint's number */
  memcpy(&name, rig_comm(r.rc)->endpoint->nics[1].name.bytes, sizeof name);
  snprintf(script, sizeof script, "dead=%d", ntohs(name.sin_port));
  fake_script(script);
  fails(r.rc, recv, nothing);
  end();
}

/* By the clock. */
TEST(by_the_deadline) {
  open_pair("nic=fake0", 1);
  ofi_params.deadline_ms = 600;
  struct rig b = {.ctx = {r.ctx[0], r.ctx[1]}};
  rig_connect(&b, 0, 0); /* limits are read when a connection is made */
  void *recv = rig_recv(&r, in, SIZE, 1, r.mh_in);
  poll_both();
  fake_script("lose=any:1:ever");
  void *send = rig_send(&r, out, 100, 1, r.mh_out);
  RIG_UNTIL(rig_done(send, NULL), rig_poll(r.sc));
  CHECK_INT(rig_error(recv), RAIL_REMOTE_ERROR);
  fake_script("reset=1");
  CHECK_OK(net->close_send(b.sc));
  CHECK_OK(net->close_recv(b.rc));
  end();
}

/* ---- what is no error ------------------------------------------------------------------------------ */

TEST(a_sender_that_is_late) {
  static const char *const offers[] = {"nic=fake0", "nic=fake0 no=rma", "net=one nic=fake0 nic=fake1"};
  for (size_t i = 0; i < RAIL_COUNT_OF(offers); i++) {
    open_pair(offers[i], i == 2 ? 2 : 1);
    void *recv = rig_recv(&r, in, SIZE, 1, r.mh_in);
    poll_both();
    for (int k = 0; k < MANY; k++) CHECK_OK(stall(r.rc, recv));
    CHECK_INT(rig_finish(&r, rig_send(&r, out, SIZE, 1, r.mh_out), recv), SIZE);
    rig_close_idle_pair(&r);
  }
}

/* The receiver's caller does not call, after messages on credit that it has not taken. */
TEST(a_receiver_that_is_late) {
  open_pair("nic=fake0", 1);
  void *sends[3];
  for (int i = 0; i < 3; i++) sends[i] = rig_send(&r, out, 100, 2, r.mh_out);
  for (int i = 0; i < 3; i++) RIG_UNTIL(rig_done(sends[i], NULL), rig_poll(r.sc));
  for (int k = 0; k < MANY; k++) CHECK_OK(stall(r.sc, NULL));
  void *recv = rig_recv(&r, in, SIZE, 1, r.mh_in);
  CHECK_INT(rig_finish(&r, rig_send(&r, out, SIZE, 1, r.mh_out), recv), SIZE);
  for (int i = 0; i < 3; i++) CHECK_INT(rig_finish(&r, NULL, rig_recv(&r, in, 100, 2, r.mh_in)), 100);
  rig_close_idle_pair(&r);
}

/* What of its process answers no PING over TCP either, now and then, is RAIL_OFI_PEER_TIMEOUT's. */
TEST(a_peer_that_is_stopped) {
  open_pair("nic=fake0", 1);
  void *recv = rig_recv(&r, in, SIZE, 1, r.mh_in);
  poll_both();
  fake_script("lose=any:1:ever");
  for (int k = 0; k < MANY; k++) {
    if (k % 2) atomic_store(&rig_comm(r.rc)->peer_silent, true);
    CHECK_OK(stall(r.rc, recv));
  }
  fails(r.rc, recv, nothing);
  end();
}

/* PINGs leave no trace in what tells whether anything moves: a peer that is stopped would be found active. */
TEST(a_ping_is_no_activity) {
  open_pair("nic=fake0", 1);
  void *recv = rig_recv(&r, in, SIZE, 1, r.mh_in);
  poll_both();
  uint64_t *stats = rig_comm(r.rc)->stats, *theirs = rig_comm(r.sc)->stats, before[2];
  before[0] = RIG_LOCKED(r.rc, rail_stats_get(&stats[OFI_COMM_COMPLETIONS]));
  before[1] = RIG_LOCKED(r.sc, rail_stats_get(&theirs[OFI_COMM_COMPLETIONS]));
  long sent = fake_calls("send");
  CHECK_OK(stall(r.rc, recv));
  CHECK(fake_calls("send") >= sent + 2);
  CHECK_INT(RIG_LOCKED(r.rc, rail_stats_get(&stats[OFI_COMM_COMPLETIONS])), before[0]);
  CHECK_INT(RIG_LOCKED(r.sc, rail_stats_get(&theirs[OFI_COMM_COMPLETIONS])), before[1]);
  end();
}

RIG_MAIN(TEST_CASE(a_receive_whose_message_is_lost), TEST_CASE(a_grant_that_is_lost), TEST_CASE(one_path_of_two),
         TEST_CASE(by_the_deadline), TEST_CASE(a_sender_that_is_late), TEST_CASE(a_receiver_that_is_late),
         TEST_CASE(a_peer_that_is_stopped), TEST_CASE(a_ping_is_no_activity))
