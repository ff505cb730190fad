/* SPDX-License-Identifier: Apache-2.0
 * Connecting where no one is. Where a process has just died: check_death.c. */
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"
#include "kit/kit_tcp.h"

#define MOST_PORTS 64 /* of one process, that hold_ports takes */

struct try { int rc; void *comm; double seconds; };

/* Polls connect until it gives an error or a connection, or for `ms`, gently. */
static struct try try_to_connect(struct kit_net *n, char *handle, uint64_t ms) {
  struct try t = {0};
  uint64_t begin = rail_now_ns(), deadline = rail_deadline_in_ms(ms);
  while (t.rc == 0 && !t.comm && !rail_deadline_passed(deadline)) {
    struct rail_net_device_handle *dh = NULL;
    t.rc = n->vt->connect(n->ctx, n->dev, handle, &t.comm, &dh);
    ENSURE(t.rc == 0 || !t.comm, "connect returned %s and left *sendComm at %p; NCCL closes that, twice",
           kit_rc_text(t.rc), t.comm);
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
  }
  t.seconds = (double)(rail_now_ns() - begin) / 1e9;
  return t;
}

static void close_send(struct kit_net *n, void *comm) {
  int rc = n->vt->close_send(comm);
  ENSURE(rc == 0, "closeSend(%s) returned %s", comm ? "a connection without a peer" : "NULL", kit_rc_text(rc));
}

static void check_still_works(struct kit_net *n) {
  struct kit_pair p;
  kit_pair_open(n, &p);
  kit_pair_ping(&p, 10, 7);
  kit_pair_close(&p);
  kit_net_close(n);
}

static void close_listen(struct kit_net *n, void *comm) {
  int rc = n->vt->close_listen(comm);
  ENSURE(rc == 0, "closeListen returned %s", kit_rc_text(rc));
}

/* A handle whose listen comm is closed. */
static void dead_handle(struct kit_net *n, char *handle) { close_listen(n, kit_net_listen(n, handle)); }

static void dead_port(struct kit_process *self) {
  struct kit_net n;
  char handle[RAIL_NET_HANDLE_SIZE];
  kit_net_open(&n);
  dead_handle(&n, handle);
  struct try t = try_to_connect(&n, handle, 1000);
  if (t.rc) kit_note(self, "connect to a port that was closed returned %s after %.2f s", kit_rc_text(t.rc), t.seconds);
  close_send(&n, t.comm); /* NCCL does that with NULL, too */
  check_still_works(&n);
}

/* Binds what a closed listen comm was bound to, and does not listen: connections are refused, and no other program can
 * listen there meanwhile. A plugin may have no TCP port, or close it later: then nothing is held. */
static int hold_ports(const struct kit_tcp_socket *listening, int n, int *fds) {
  int held = 0;
  for (int i = 0; i < n; i++) {
    int fd = socket(listening[i].local.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    if (bind(fd, (const struct sockaddr *)&listening[i].local, listening[i].local_len) == 0) fds[held++] = fd;
    else close(fd);
  }
  return held;
}

static void dead_port_is_noticed(struct kit_process *self) {
  struct kit_net n;
  struct kit_tcp_socket listening[MOST_PORTS];
  char handle[RAIL_NET_HANDLE_SIZE];
  int fds[MOST_PORTS];
  kit_net_open(&n);
  void *comm = kit_net_listen(&n, handle);
  int ports = kit_tcp_new_listeners(NULL, 0, listening, MOST_PORTS);
  close_listen(&n, comm);
  int held = hold_ports(listening, ports, fds);
  struct try t = try_to_connect(&n, handle, 45000);
  ENSURE(!t.comm, "connect to a port that was closed gave a connection");
  ENSURE(t.rc != 0, "connect to a port that was closed has waited for %.0f s; NCCL has no limit", t.seconds);
  ENSURE(t.rc == RAIL_REMOTE_ERROR || t.rc == RAIL_SYSTEM_ERROR,
         "connect to a port that was closed returned %s; expected ncclRemoteError (6) or ncclSystemError (2)",
         kit_rc_text(t.rc));
  kit_metric(self, "noticed_after", t.seconds, "s");
  while (held > 0) close(fds[--held]);
  close_send(&n, NULL);
  check_still_works(&n);
}

static void given_up_quietly(struct kit_process *self) { /* many of them, dropped; finalize has to do with it */
  (void)self;
  struct kit_net n;
  char handle[RAIL_NET_HANDLE_SIZE];
  kit_net_open(&n);
  for (int i = 0; i < 50; i++) {
    dead_handle(&n, handle);
    struct try t = try_to_connect(&n, handle, 1);
    close_send(&n, t.comm);
  }
  check_still_works(&n);
}

static void a_handle_of_junk(struct kit_process *self) { /* an error, at once or never, and no comm */
  (void)self;
  static const uint8_t fill[] = {0x00, 0xff, 0x5a};
  struct kit_net n;
  kit_net_open(&n);
  for (size_t i = 0; i < sizeof fill; i++) {
    char handle[RAIL_NET_HANDLE_SIZE];
    memset(handle, fill[i], sizeof handle);
    struct try t = try_to_connect(&n, handle, 100);
    ENSURE(!t.comm, "a handle of bytes %#x, which no listen has written, gave a connection", fill[i]);
  }
  check_still_works(&n);
}

const struct kit_check kit_checks_dead_port[] = {
  {"5.1", "connect.dead_port", KIT_MUST, KIT_ONE,
   .what = "connect to a closed port fails or waits; with an error *sendComm is NULL, and closeSend(NULL) is accepted.",
   .source = "src/transport/net.cc:890-892, 1204-1244, src/proxy.cc:1583, 1620-1632", .run = dead_port},
  {"5.2", "connect.dead_port_is_noticed", KIT_SHOULD, KIT_ONE, .limit_s = 60,
   .what = "connect to a closed port is an error within 45 seconds: NCCL itself has no time limit.",
   .source = "src/proxy.cc:1637-1640", .run = dead_port_is_noticed},
  {"5.3", "connect.given_up_quietly", KIT_MUST, KIT_ONE,
   .what = "Connections that never came about are simply dropped; everything else goes on, and finalize succeeds.",
   .source = "src/transport/net.cc:1204, 1259", .run = given_up_quietly},
  {"5.4", "connect.a_handle_of_junk", KIT_SHOULD, KIT_ONE,
   .what = "connect with a handle that no listen has written never gives a connection, and does not crash.",
   .source = "src/transport/net_socket.cc:460", .run = a_handle_of_junk},
  {0},
};
