/* SPDX-License-Identifier: Apache-2.0
 * Closing connections: half-made ones of every degree, receivers that linger, and that nothing is left. */
#include <sys/eventfd.h>

#include "test/unit/ib_watch_rig.h"

struct left { long mr, cq, qp; };

static struct left live(void) { return (struct left){emu_live("mr"), emu_live("cq"), emu_live("qp")}; }

static bool same(struct left a) {
  struct left b = live();
  return a.mr == b.mr && a.cq == b.cq && a.qp == b.qp;
}

static int open_fds(void) {
  int count = 0;
  for (int fd = 0; fd < 512; fd++) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

TEST(half_made_ones) {
  struct left before = live();
  int fds = open_fds();
  for (int degree = RIG_BARE; degree <= RIG_WATCHED; degree++) {
    ib_comm_destroy(rig_comm(true, (enum rig_degree)degree, 4, NULL));
    ib_comm_destroy(rig_comm(false, (enum rig_degree)degree, 4, NULL));
    CHECK_MSG(same(before), "degree %d leaves something", degree);
    CHECK_INT(open_fds(), fds);
  }
  ib_comm_destroy(NULL);
  CHECK_INT(rail_stats_get(&ib_port_at(0)->stats[IB_DEVICE_COMMS]), 0);
  CHECK_INT(rail_stats_get(&ib_port_at(0)->stats[IB_DEVICE_QPS]), 0);
}

TEST(a_sender_says_goodbye) {
  struct left before = live();
  int peer;
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 3, &peer);
  CHECK_INT(rail_stats_get(&comm->rails[0].port->stats[IB_DEVICE_COMMS]), 1);
  CHECK_INT(rail_stats_get(&comm->rails[0].port->stats[IB_DEVICE_QPS]), 3);
  CHECK_OK(ib_close_send(comm));
  CHECK(same(before));
  CHECK_INT(recv_frame(peer, NULL, 1000), RAIL_OOB_GOODBYE);
  CHECK_INT(recv_frame(peer, NULL, 1000), 0);
  close(peer);
}

TEST(success_whatever_it_is_given) {
  char nothing[4096] = {0};
  log_forget();
  CHECK_OK(ib_close_send(NULL));
  CHECK_OK(ib_close_recv(NULL));
  CHECK_OK(ib_close_send(nothing));
  CHECK_OK(ib_close_recv(nothing));
  CHECK_INT(log_warnings(), 2);
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, NULL);
  CHECK_OK(ib_close_recv(comm)); /* it is no receiver, and stays */
  CHECK_INT(log_warnings(), 3);
  CHECK_OK(ib_close_send(comm));
}

/* A receiver that is closed keeps its QPs until the peer says goodbye, or that nothing is unacknowledged. */
TEST(lingers_until_told) {
  static const enum rail_oob_frame_type words[] = {RAIL_OOB_GOODBYE, RAIL_OOB_DRAINED};
  struct left before = live();
  int peer;
  for (size_t i = 0; i < RAIL_COUNT_OF(words); i++) {
    struct ib_comm *comm = rig_comm(false, RIG_WATCHED, 2, &peer);
    CHECK_OK(ib_close_recv(comm));
    CHECK_INT(recv_frame(peer, NULL, 1000), RAIL_OOB_GOODBYE);
    poll(NULL, 0, 30);
    CHECK(!same(before));
    send_frame(peer, words[i], 0);
    RIG_WAIT(same(before), 500);
    CHECK_INT(recv_frame(peer, NULL, 1000), 0);
    close(peer);
  }
}

/* Occupies the watch thread until a PING is there that it has not read, and the lingering one's time is over. */
static atomic_bool lingers;

static bool ping_meanwhile(void *peer) {
  RIG_WAIT(atomic_load(&lingers), 5000);
  send_frame(*(const int *)peer, RAIL_OOB_PING, 1);
  poll(NULL, 0, 20);
  return false;
}

/* Closing the socket then would reset the connection, and with it the GOODBYE. */
TEST(a_goodbye_at_the_end_is_not_reset_away) {
  static struct rail_watch_fd source;
  static int peer;
  struct left before = live();
  int64_t was = ib_params.linger_ms;
  char byte;
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  ib_params.linger_ms = 10;
  comm->rails[0].port->iwarp = true;
  source = (struct rail_watch_fd){.fd = eventfd(1, EFD_CLOEXEC), .readable = ping_meanwhile, .arg = &peer};
  CHECK(rail_watch_add_fd(&ib_watch, &source));
  struct ib_port *port = comm->rails[0].port;
  CHECK_OK(ib_close_send(comm));
  atomic_store(&lingers, true);
  RIG_WAIT(same(before), 5000);
  port->iwarp = false;
  CHECK_INT(recv_frame(peer, NULL, 5000), RAIL_OOB_GOODBYE);
  CHECK_INT(read(peer, &byte, 1), 0);
  close(peer);
  close(source.fd);
  ib_params.linger_ms = was;
}

/* Unless RAIL_IB_LINGER says how long: until the sender's HCA has sent again. */
TEST(how_long_it_lingers) {
  struct ib_comm *comm = rig_comm(false, RIG_RAILS, 1, NULL);
  int64_t was = ib_params.linger_ms;
  ib_params.linger_ms = -1;
  comm->sender_timeout = 20;
  CHECK_INT(ib_comm_linger_ms(comm), 1000 + 17179);
  comm->sender_timeout = 17;
  CHECK_INT(ib_comm_linger_ms(comm), 1000 + 2147);
  comm->sender_timeout = 0; /* it sends nothing again */
  CHECK_INT(ib_comm_linger_ms(comm), 1000);
  comm->sender_timeout = 31;
  CHECK_INT(ib_comm_linger_ms(comm), 60000);
  ib_params.linger_ms = 250;
  CHECK_INT(ib_comm_linger_ms(comm), 250);
  ib_params.linger_ms = was;
  ib_comm_destroy(comm);
}

/* The receiver has closed: it learns when the last send is acknowledged, and that is no reason to lose the peer. */
TEST(a_sender_says_that_it_is_drained) {
  struct left before = live();
  for (int pending = 0; pending < 2; pending++) {
    int peer;
    struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
    atomic_store(&comm->outstanding, (uint32_t)pending);
    send_frame(peer, RAIL_OOB_GOODBYE, 0);
    if (pending) {
      struct pollfd p = {.fd = peer, .events = POLLIN};
      CHECK_INT(poll(&p, 1, 100), 0);
      atomic_store(&comm->outstanding, 0);
    }
    CHECK_INT(recv_frame(peer, NULL, 1000), RAIL_OOB_DRAINED);
    close(peer);
    poll(NULL, 0, 20);
    CHECK_INT(atomic_load(&comm->pending_work), IB_COMM_PEER_CLOSED);
    CHECK_OK(ib_close_send(comm));
    CHECK(same(before));
  }
  int peer; /* the receiver does not wait any more */
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  atomic_store(&comm->outstanding, 1);
  send_frame(peer, RAIL_OOB_GOODBYE, 0);
  close(peer);
  RIG_WAIT(atomic_load(&comm->pending_work) == (IB_COMM_PEER_CLOSED | IB_COMM_PEER_GONE), 10000);
  atomic_store(&comm->outstanding, 0);
  CHECK_OK(ib_close_send(comm));
}

/* Only a receiver that has closed may be told so. */
TEST(drained_out_of_turn) {
  for (int sender = 0; sender < 2; sender++) {
    int peer;
    struct ib_comm *comm = rig_comm(sender, RIG_WATCHED, 1, &peer);
    send_frame(peer, RAIL_OOB_DRAINED, 0);
    RIG_WAIT(atomic_load(&comm->pending_work) == IB_COMM_PEER_LOST, 10000);
    CHECK_OK(sender ? ib_close_send(comm) : ib_close_recv(comm));
    close(peer);
  }
}

TEST(lingers_until_the_end_of_the_stream) {
  struct left before = live();
  int peer;
  struct ib_comm *comm = rig_comm(false, RIG_WATCHED, 2, &peer);
  CHECK_OK(ib_close_recv(comm));
  poll(NULL, 0, 30);
  CHECK(!same(before));
  close(peer);
  RIG_WAIT(same(before), 500);
}

TEST(lingers_for_its_time_at_most) {
  struct left before = live();
  int peer;
  ib_params.linger_ms = 150;
  uint64_t then = rail_now_ns();
  struct ib_comm *comm = rig_comm(false, RIG_WATCHED, 2, &peer);
  CHECK_OK(ib_close_recv(comm));
  RIG_WAIT(same(before), 2000);
  CHECK(rail_now_ns() - then >= 150 * 1000000ull);
  ib_params.linger_ms = 1000;
  close(peer);
}

/* Nothing can still need its answers, or it has none to give. */
TEST(does_not_linger_for_nothing) {
  struct left before = live();
  int peer;
  for (int why = 0; why < 6; why++) {
    struct ib_comm *comm = rig_comm(false, RIG_WATCHED, 2, &peer);
    if (why == 0) (void)rail_first_error_set(&comm->error, RAIL_REMOTE_ERROR);
    if (why == 1) atomic_store(&comm->outstanding, 1);
    if (why == 2) atomic_fetch_or(&comm->pending_work, IB_COMM_PEER_CLOSED);
    if (why == 3) atomic_fetch_or(&comm->pending_work, IB_COMM_QP_FATAL);
    if (why == 4) ib_comm_stop(comm);
    if (why == 5) ib_params.linger_ms = 0;
    CHECK_OK(ib_close_recv(comm));
    CHECK_MSG(same(before), "case %d lingers", why);
    ib_params.linger_ms = 1000;
    close(peer);
  }
}

/* The last context waits for those that linger, but not for longer than they do. */
TEST(finalize_waits_for_lingerers) {
  struct left before = live();
  int peers[3];
  ib_params.linger_ms = 100;
  for (int i = 0; i < 3; i++) CHECK_OK(ib_close_recv(rig_comm(false, RIG_WATCHED, 1, &peers[i])));
  uint64_t then = rail_now_ns();
  rail_watch_end(&ib_watch);
  CHECK(same(before));
  CHECK(rail_now_ns() - then < 1000 * 1000000ull);
  for (int i = 0; i < 3; i++) close(peers[i]);
  ib_params.linger_ms = 1000;
  CHECK_OK(rail_watch_begin(&ib_watch));
}

/* Comms that were never closed stop at the last finalize, and a late close finds them. */
TEST(never_closed) {
  struct left before = live();
  int peer;
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  log_forget();
  rail_watch_end(&ib_watch);
  CHECK(atomic_load(&comm->stopped));
  CHECK(log_said("never closed"));
  CHECK_INT(recv_frame(peer, NULL, 1000), RAIL_OOB_GOODBYE);
  CHECK_INT(recv_frame(peer, NULL, 1000), 0);
  CHECK_OK(ib_close_send(comm));
  CHECK(same(before));
  CHECK_OK(rail_watch_begin(&ib_watch));
  close(peer);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(half_made_ones),
    TEST_CASE(a_sender_says_goodbye),
    TEST_CASE(success_whatever_it_is_given),
    TEST_CASE(lingers_until_told),
    TEST_CASE(a_goodbye_at_the_end_is_not_reset_away), TEST_CASE(how_long_it_lingers),
    TEST_CASE(a_sender_says_that_it_is_drained),
    TEST_CASE(drained_out_of_turn),
    TEST_CASE(lingers_until_the_end_of_the_stream),
    TEST_CASE(lingers_for_its_time_at_most),
    TEST_CASE(does_not_linger_for_nothing),
    TEST_CASE(finalize_waits_for_lingerers),
    TEST_CASE(never_closed),
  };
  rig_use(NULL);
  return rig_main_watched(argc, argv, cases, RAIL_COUNT_OF(cases));
}
