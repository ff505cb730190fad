/* SPDX-License-Identifier: Apache-2.0
 * The handle that connect is given, and what connect and accept give back. */
#include <sched.h>
#include <string.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"

static uint64_t soon(void) { return rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS)); }

static void handle_may_move(struct kit_process *self) { /* it holds state, never its own address */
  (void)self;
  enum { PLACES = 256 };
  static char place[PLACES][RAIL_NET_HANDLE_SIZE];
  struct kit_net n;
  kit_net_open(&n);
  for (int round = 0; round < 20; round++) {
    struct kit_pair p = {.net = &n};
    int at = 0;
    p.listen = kit_net_listen(&n, place[0]);
    uint64_t deadline = soon();
    while (!p.send || !p.recv) {
      if (!p.send) kit_connect_step(&n, place[at], &p.send);
      if (!p.recv) kit_accept_step(&n, p.listen, &p.recv);
      int next = (at + 1) % PLACES;
      memcpy(place[next], place[at], RAIL_NET_HANDLE_SIZE);
      memset(place[at], 0xdd, RAIL_NET_HANDLE_SIZE);
      at = next;
      ENSURE(!rail_deadline_passed(deadline), "no connection from a handle that lies elsewhere at each call");
    }
    kit_pair_ping(&p, 50, 6);
    kit_pair_close(&p);
  }
  kit_net_close(&n);
}

static void several_through_one_door(struct kit_process *self) { /* one after another, each from the pristine handle */
  (void)self;
  struct kit_net n;
  struct kit_pair p[4];
  char handle[RAIL_NET_HANDLE_SIZE];
  kit_net_open(&n);
  void *listen = kit_net_listen(&n, handle);
  for (int i = 0; i < 4; i++) {
    p[i] = (struct kit_pair){.net = &n, .listen = listen};
    memcpy(p[i].handle, handle, sizeof handle);
    kit_pair_connect(&p[i]);
    p[i].listen = NULL;
  }
  int rc = n.vt->close_listen(listen);
  ENSURE(rc == 0, "closeListen returned %d", rc);
  for (int i = 0; i < 4; i++) kit_pair_ping(&p[i], 3000, (uint64_t)i);
  for (int i = 0; i < 4; i++) kit_pair_close(&p[i]);
  kit_net_close(&n);
}

/* What NCCL presets to NULL it may one day leave on the stack. */
static void comms_are_written(struct kit_process *self) {
  (void)self;
  struct rail_net_device_handle *dh = NULL;
  struct kit_net n;
  struct kit_pair p = {.net = &n};
  void *handle = p.handle, *comm = KIT_POISON;
  kit_net_load(&n, KIT_TARGET);
  int rc = kit_net_init(&n, NULL, -1);
  ENSURE(rc == 0, "init returned %d", rc);
  rc = n.vt->listen(n.ctx, n.dev, handle, &comm);
  ENSURE(rc == 0 && comm && comm != KIT_POISON, "listen returned %d and *listenComm %p", rc, comm);
  p.listen = comm;
  comm = KIT_POISON;
  rc = n.vt->accept(p.listen, &comm, &dh);
  ENSURE(rc == 0 && !comm, "accept with nobody there returned %d and *recvComm %p, expected NULL", rc, comm);
  uint64_t deadline = soon();
  while (!p.send || !p.recv) {
    comm = KIT_POISON;
    if (!p.send) rc = n.vt->connect(n.ctx, n.dev, handle, &comm, &dh);
    ENSURE(rc == 0, "connect returned %d", rc);
    if (!p.send) ENSURE(comm != KIT_POISON, "connect in progress did not write *sendComm, expected NULL");
    if (!p.send) p.send = comm;
    comm = KIT_POISON;
    if (!p.recv) rc = n.vt->accept(p.listen, &comm, &dh);
    ENSURE(rc == 0, "accept returned %d", rc);
    if (!p.recv) ENSURE(comm != KIT_POISON, "accept in progress did not write *recvComm, expected NULL");
    if (!p.recv) p.recv = comm;
    ENSURE(!rail_deadline_passed(deadline), "no connection within the deadline");
    sched_yield();
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

static void device_handle_is_left_alone(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct rail_net_props_v12 props;
  struct rail_net_device_handle canary, *to_send = &canary, *to_recv = &canary;
  kit_net_open(&n);
  int rc = n.vt->get_properties(n.dev, &props);
  ENSURE(rc == 0, "getProperties returned %d", rc);
  kit_net_close(&n);
  if (props.net_device_type != RAIL_NET_DEVICE_HOST) kit_skip("the device offloads to the GPU");
  kit_net_load(&n, KIT_TARGET);
  rc = kit_net_init(&n, NULL, -1);
  ENSURE(rc == 0, "init returned %d", rc);
  struct kit_pair p = {.net = &n};
  p.listen = kit_net_listen(&n, p.handle);
  uint64_t deadline = soon();
  while (!p.send || !p.recv) {
    if (!p.send) rc = n.vt->connect(n.ctx, n.dev, p.handle, &p.send, &to_send);
    if (!p.recv && rc == 0) rc = n.vt->accept(p.listen, &p.recv, &to_recv);
    ENSURE(rc == 0, "connect or accept returned %d", rc);
    ENSURE(!rail_deadline_passed(deadline), "no connection within the deadline");
    sched_yield();
  }
  ENSURE(to_send == &canary && to_recv == &canary,
         "%s of a host device wrote *%sDevComm; NCCL would hand that to the GPU's kernels",
         to_send != &canary ? "connect" : "accept", to_send != &canary ? "send" : "recv");
  kit_pair_close(&p);
  kit_net_close(&n);
}

const struct kit_check kit_checks_handles[] = {
  {"4.20", "connect.handle_may_move", KIT_MUST, KIT_ONE, 0, 0, false,
   "State that connect keeps in the handle does not depend on where the handle lies.",
   "src/proxy.cc:1670-1690, src/transport/net.cc:844, 874", handle_may_move},
  {"4.21", "connect.several_through_one_door", KIT_SHOULD, KIT_ONE, 0, 0, false,
   "One listen comm accepts several connections, one after another.",
   "src/transport/net_ib/gin.cc:174-207, src/rma/rma_proxy.cc:420-435", several_through_one_door},
  {"4.22", "connect.device_handle_is_left_alone", KIT_MUST, KIT_ONE, 0, KIT_SINCE(7), false,
   "connect and accept of a host device leave *sendDevComm and *recvDevComm as they are.",
   "src/transport/net.cc:817-837", device_handle_is_left_alone},
  {"4.23", "connect.comms_are_written", KIT_SHOULD, KIT_ONE, 0, 0, false,
   "listen, connect and accept write *comm in every call, with NULL while in progress.",
   "plugins/net/README.md:286-300, src/transport/net.cc:890-892", comms_are_written},
  {0},
};
