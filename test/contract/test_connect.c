/* SPDX-License-Identifier: Apache-2.0
 * Connecting several peers through one listen comm, and cleanly not at all: what the socket plugin promises beyond
 * kit/conform/check_connect.c.
 * TEST-LIMIT: 60 */
#include <sched.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "test/harness/proc.h"
#include "test/harness/program.h"

TEST(several_at_once_through_one_door) {
  enum { MANY = 6 };
  struct kit_net n;
  kit_net_open(&n);
  char handle[MANY][RAIL_NET_HANDLE_SIZE];
  void *listen = kit_net_listen(&n, handle[0]), *send[MANY] = {0}, *recv[MANY] = {0};
  for (int i = 1; i < MANY; i++) memcpy(handle[i], handle[0], sizeof handle[0]);
  int nsend = 0, nrecv = 0;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (nsend < MANY || nrecv < MANY) {
    for (int i = 0; i < MANY; i++)
      if (!send[i] && kit_connect_step(&n, handle[i], &send[i])) nsend++;
    if (nrecv < MANY && kit_accept_step(&n, listen, &recv[nrecv])) nrecv++;
    CHECK_MSG(!rail_deadline_passed(deadline), "%d of %d connected, %d accepted", nsend, MANY, nrecv);
  }
  int out[MANY], in[MANY], seen = 0;
  struct kit_op ops[2 * MANY];
  for (int i = 0; i < MANY; i++) {
    out[i] = 1 << i;
    ops[i] = kit_op_recv(recv[i], &in[i], sizeof in[i], 0);
    ops[MANY + i] = kit_op_send(send[i], &out[i], sizeof out[i], 0);
  }
  kit_ops_run(&n, ops, 2 * MANY, (struct kit_ops_options){0});
  for (int i = 0; i < MANY; i++) seen += in[i];
  CHECK_INT(seen, (1 << MANY) - 1);
  for (int i = 0; i < MANY; i++) {
    CHECK_OK(n.vt->close_send(send[i]));
    CHECK_OK(n.vt->close_recv(recv[i]));
  }
  CHECK_OK(n.vt->close_listen(listen));
  kit_net_close(&n);
}

/* ---- no listener ---- */

static void connect_to_nobody(struct pipes *io, void *arg) {
  struct kit_net n;
  (void)io, (void)arg;
  setenv("RAIL_SOCKET_CONNECT_TIMEOUT", "300ms", 1);
  kit_net_open(&n);
  char handle[RAIL_NET_HANDLE_SIZE];
  int rc = n.vt->close_listen(kit_net_listen(&n, handle)), fds = kit_fd_count();
  ENSURE(rc == 0, "closeListen returned %d", rc);
  uint64_t deadline = rail_deadline_in_ms(3000);
  while (rc == 0 && !rail_deadline_passed(deadline)) {
    void *comm = KIT_POISON;
    struct rail_net_device_handle *dh = NULL;
    rc = n.vt->connect(n.ctx, n.dev, handle, &comm, &dh);
    ENSURE(comm == NULL, "connect to nobody returned %d and comm %p", rc, comm);
    sched_yield();
  }
  printf("# connect to a closed port returned %d\n", rc);
  ENSURE(rc == 0 || rc == RAIL_REMOTE_ERROR || rc == RAIL_SYSTEM_ERROR, "connect to nobody returned %d", rc);
  if (rc != 0) ENSURE_INT(kit_fd_count(), fds);
  rc = n.vt->close_send(NULL); /* what NCCL does next */
  ENSURE(rc == 0, "closeSend(NULL) returned %d", rc);
  struct kit_pair p;
  kit_pair_open(&n, &p);
  kit_pair_ping(&p, 10, 7);
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(dead_port) { /* in a process of its own, for the sake of a short timeout */
  struct proc c = proc_start(connect_to_nobody, NULL);
  proc_join(&c);
}

TEST(a_handle_of_junk) { /* an error, at once or never, and no comm */
  struct kit_net n;
  kit_net_open(&n);
  static const uint8_t fill[] = {0x00, 0xff, 0x5a};
  for (size_t i = 0; i < sizeof fill; i++) {
    char handle[RAIL_NET_HANDLE_SIZE];
    memset(handle, fill[i], sizeof handle);
    void *comm = KIT_POISON;
    struct rail_net_device_handle *dh = NULL;
    int rc = n.vt->connect(n.ctx, n.dev, handle, &comm, &dh);
    CHECK_MSG(rc != 0, "a handle of bytes %#x was taken for one", fill[i]);
    CHECK(comm == NULL);
  }
  kit_net_close(&n);
}

TEST_MAIN(TEST_CASE(several_at_once_through_one_door), TEST_CASE(dead_port), TEST_CASE(a_handle_of_junk))
