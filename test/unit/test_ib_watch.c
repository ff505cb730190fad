/* SPDX-License-Identifier: Apache-2.0
 * The watch thread in this plugin: what it reads from HCAs, and that a fork leaves the parent's verbs objects alone.
 * What it makes of silence is test_ib_silence.c's; the rest is test_oob_watch.c's. */
#include <sched.h>
#include <sys/wait.h>

#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_failover.h"
#include "plugin/ib/ib_progress.h"
#include "test/unit/ib_watch_rig.h"

/* Parameters are read once, before there is a thread. */
static void with_events(int64_t return_async_events) {
  rail_watch_end(&ib_watch);
  ib_params.return_async_events = return_async_events;
  CHECK_OK(rail_watch_begin(&ib_watch));
}

/* The function that reads them is set before there is a thread, too. */
static void with_reader(int (*get_async_event)(struct ibv_context *context, struct ibv_async_event *event)) {
  rail_watch_end(&ib_watch);
  ib_verbs.get_async_event = get_async_event;
  CHECK_OK(rail_watch_begin(&ib_watch));
}

/* ---- events of HCAs ---- */

static uint64_t counter(enum ib_stats_device which) {
  return rail_stats_get(&ib_device_at(0, "test")->rails[0]->stats[which]);
}

TEST(events_of_queue_pairs) {
  static const struct { const char *name; uint32_t faults; } events[] = {
    {"qp_fatal", IB_COMM_QP_FATAL},      {"qp_req_err", IB_COMM_QP_FATAL}, {"qp_access_err", IB_COMM_QP_FATAL},
    {"cq_err", IB_COMM_CQ_ERROR}};
  for (int returned = 1; returned >= 0; returned--) {
    with_events(returned);
    for (size_t i = 0; i < RAIL_COUNT_OF(events); i++) {
      char text[80];
      struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 2, NULL), *other = rig_comm(true, RIG_WATCHED, 2, NULL);
      uint64_t errors = counter(IB_DEVICE_ERRORS);
      log_forget();
      snprintf(text, sizeof text, "event emu0 %s qp=%u", events[i].name, comm->qps[1].qp->qp_num);
      emu_do(text);
      RIG_WAIT(counter(IB_DEVICE_ERRORS) == errors + 1, 10000);
      RIG_WAIT(log_warnings() == 1, 10000);
      CHECK(log_said("emu0 reports"));
      if (returned) RIG_WAIT(PENDING(comm) & events[i].faults, 10000);
      CHECK_INT(PENDING(comm) & (IB_COMM_QP_FATAL | IB_COMM_CQ_ERROR), returned ? events[i].faults : 0);
      CHECK_INT(PENDING(other) & (IB_COMM_QP_FATAL | IB_COMM_CQ_ERROR), 0);
      done(comm, -1); /* waits until the event is acknowledged */
      done(other, -1);
    }
  }
  with_events(1);
}

/* A flush QP's stands for its rail: with failover the QPs of that, not the connection. */
TEST(an_event_of_a_flush_queue_pair) {
  char text[80];
  struct ib_comm *comm = rig_comm(false, RIG_COUNTED, 2, NULL);
  rail_result_t result;
  ib_params.flush = IB_FLUSH_ALWAYS;
  CHECK_OK(ib_failover_init(comm));
  do result = ib_flush_open(comm);
  while (result == RAIL_IN_PROGRESS);
  CHECK_OK(result);
  CHECK_OK(ib_watch_add(comm));
  snprintf(text, sizeof text, "event emu0 qp_fatal qp=%u", ib_recv_comm_of(comm)->flush->qps[0].qp->qp_num);
  emu_do(text);
  RIG_WAIT(PENDING(comm) & IB_COMM_FAILOVER, 10000);
  for (int i = 0; i < 2; i++) RIG_WAIT(atomic_load(&comm->failover->qps[i].faults) == IB_FAULT_EVENT, 10000);
  CHECK_INT(PENDING(comm) & IB_COMM_QP_FATAL, 0);
  CHECK_OK(ib_close_recv(comm));
  ib_params_load();
}

TEST(events_without_consequence) {
  static const char *const names[] = {"comm_est", "path_mig"};
  int peer;
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  log_forget();
  for (size_t i = 0; i < RAIL_COUNT_OF(names); i++) {
    char text[80];
    uint64_t events = counter(IB_DEVICE_EVENTS);
    snprintf(text, sizeof text, "event emu0 %s", names[i]);
    emu_do(text);
    RIG_WAIT(counter(IB_DEVICE_EVENTS) == events + 1, 10000);
  }
  ib_comm_stop(comm); /* what a QP in its error state says is no news */
  emu_do("event emu0 qp_access_err");
  poll(NULL, 0, 30);
  CHECK_INT(PENDING(comm), 0);
  CHECK_INT(log_warnings(), 0);
  done(comm, peer);
}

TEST(a_port_goes_down_and_up) {
  struct ib_port *port = ib_device_at(0, "test")->rails[0];
  int peer;
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  uint64_t flaps = atomic_load(&port->flaps), downs = counter(IB_DEVICE_PORT_DOWNS), ups = counter(IB_DEVICE_PORT_UPS);
  log_forget();
  for (uint64_t i = 1; i <= 3; i++) {
    emu_do("event emu0 port_err");
    RIG_WAIT(atomic_load(&port->faults) & IB_PORT_DOWN, 10000);
    emu_do("event emu0 port_err"); /* nothing new */
    emu_do("event emu0 port_active");
    RIG_WAIT(counter(IB_DEVICE_PORT_UPS) == ups + i, 10000);
    CHECK(!(atomic_load(&port->faults) & IB_PORT_DOWN));
    CHECK_INT(atomic_load(&port->flaps), flaps + i);
    CHECK_INT(counter(IB_DEVICE_PORT_DOWNS), downs + i);
    CHECK_INT(log_warnings(), i);
  }
  CHECK(log_said("is up again after") && log_said(" UTC (3 times so far)"));
  CHECK_INT(PENDING(comm), 0); /* by itself no error */
  done(comm, peer);
}

TEST(a_port_changes) {
  static const char *const names[] = {"lid_change", "gid_change", "pkey_change", "sm_change", "client_reregister"};
  log_forget();
  for (size_t i = 0; i < RAIL_COUNT_OF(names); i++) {
    char text[80];
    uint64_t events = counter(IB_DEVICE_EVENTS);
    snprintf(text, sizeof text, "event emu0 %s", names[i]);
    emu_do(text);
    RIG_WAIT(counter(IB_DEVICE_EVENTS) == events + 1, 10000);
  }
  RIG_WAIT(log_said("table of GIDs changed") && log_said("registrations anew"), 10000);
  CHECK_INT(log_warnings(), 0);
}

/* Every connection over the HCA, and no other. Not undone: the last test with emu1. */
TEST(an_hca_dies) {
  int peer;
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  struct ib_hca *other = ib_device_at(1, "test")->rails[0]->hca;
  emu_do("event emu1 device_fatal");
  RIG_WAIT(atomic_load(&other->faults) & IB_HCA_FATAL, 10000);
  poll(NULL, 0, 20);
  CHECK_INT(PENDING(comm), 0);
  emu_do("event emu0 device_fatal");
  RIG_WAIT(PENDING(comm) & IB_COMM_DEVICE_FATAL, 10000);
  done(comm, peer);
}

static int (*real_get_async_event)(struct ibv_context *context, struct ibv_async_event *event);

static int one_event_then_eio(struct ibv_context *context, struct ibv_async_event *event) {
  static bool told;
  if (told) return errno = EIO, -1;
  told = true;
  return real_get_async_event(context, event);
}

/* The kernel tells DEVICE_FATAL of an HCA that is removed, then reads of its events fail. */
TEST(an_hca_is_removed) {
  int peer;
  real_get_async_event = ib_verbs.get_async_event;
  with_reader(one_event_then_eio);
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  log_forget();
  emu_do("event emu0 device_fatal");
  RIG_WAIT(log_said("can no longer be read"), 10000);
  RIG_WAIT(PENDING(comm) & IB_COMM_DEVICE_FATAL, 10000);
  done(comm, peer);
  with_reader(real_get_async_event);
}

/* One that a fused device has only among its further rails. */
TEST(an_hca_of_a_later_rail_dies) {
  int peer;
  struct ib_comm *comm = rig_comm(true, RIG_COUNTED, 1, &peer);
  comm->rails[1] = comm->rails[0];
  comm->rails[0].port = ib_device_at(1, "test")->rails[0];
  comm->nrails = 2;
  CHECK_OK(ib_watch_add(comm)); /* nothing of it changes while the thread may look */
  emu_do("event emu0 device_fatal");
  RIG_WAIT(PENDING(comm) & IB_COMM_DEVICE_FATAL, 10000);
  rail_watch_remove(&ib_watch, &comm->watched, true);
  comm->rails[0] = comm->rails[1];
  comm->nrails = 1;
  done(comm, peer);
}

/* ---- the thread ---- */

/* A child keeps no connection of its parent's alive, says nothing for it, and touches no verbs object. */
TEST(fork_leaves_the_parent_alone) {
  int peer, status;
  uint64_t number;
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  long qps = emu_live("qp");
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    bool ok = comm->oob_fd < 0 && atomic_load(&comm->stopped) && !comm->watched;
    ib_comm_stop(comm);
    ok = ok && ib_close_send(comm) == RAIL_OK && emu_live("qp") == qps;
    rail_watch_end(&ib_watch);
    _exit(ok ? 0 : 1);
  }
  CHECK_INT(waitpid(pid, &status, 0), pid);
  CHECK(WIFEXITED(status));
  CHECK_INT(WEXITSTATUS(status), 0);
  CHECK_INT(recv_frame(peer, NULL, 20), -1);
  send_frame(peer, RAIL_OOB_PING, 77);
  CHECK_INT(recv_frame(peer, &number, 1000), RAIL_OOB_PONG);
  CHECK_INT(PENDING(comm), 0);
  done(comm, peer);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(events_of_queue_pairs), TEST_CASE(an_event_of_a_flush_queue_pair),
    TEST_CASE(events_without_consequence),
    TEST_CASE(a_port_goes_down_and_up),
    TEST_CASE(a_port_changes),
    TEST_CASE(fork_leaves_the_parent_alone),
    TEST_CASE(an_hca_is_removed),
    TEST_CASE(an_hca_dies),
    TEST_CASE(an_hca_of_a_later_rail_dies),
  };
  rig_use(NULL);
  return rig_main_watched(argc, argv, cases, RAIL_COUNT_OF(cases));
}
