/* SPDX-License-Identifier: Apache-2.0
 * A peer that dies, resets or leaves between messages is an error 6 within seconds, never a hang or a crash.
 * TEST-LIMIT: 60 */
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "common/clock.h"
#include "kit/kit_tcp.h"
#include "test/harness/proc.h"
#include "test/harness/program.h"

enum death { BY_KILL, BY_RESET, BY_EXIT };
enum { LIMIT_MS = 5000 };
static const size_t big = (size_t)4 << 20;

struct script { bool peer_sends; enum death death; bool mid_transfer; };

static void reset_all(void) {
  static struct kit_tcp_socket s[256];
  int n = kit_tcp_sockets(s, 256);
  for (int i = 0; i < n; i++) {
    kit_tcp_reset_on_close(s[i].fd);
    close(s[i].fd);
  }
}

/* Connects the way its script says, moves a few messages, tells the parent, and ends. */
static void peer(struct pipes *io, void *arg) {
  const struct script *s = arg;
  struct kit_net n;
  char handle[RAIL_NET_HANDLE_SIZE], word = 'x';
  void *comm, *listen = NULL;
  kit_net_open(&n);
  if (s->peer_sends) {
    pipe_read(io, handle, sizeof handle);
    comm = kit_net_connect(&n, handle);
  } else {
    listen = kit_net_listen(&n, handle);
    pipe_write(io, handle, sizeof handle);
    comm = kit_net_accept(&n, listen);
  }
  uint8_t *data = calloc(1, big);
  ENSURE(data, "out of memory");
  for (int i = 0; i < 3; i++) {
    struct kit_op op = s->peer_sends ? kit_op_send(comm, data, 1000, 0) : kit_op_recv(comm, data, 1000, 0);
    kit_op_finish(&n, &op);
  }
  if (s->mid_transfer) { /* some of a long message moves, then silence */
    struct kit_op op = s->peer_sends ? kit_op_send(comm, data, big, 0) : kit_op_recv(comm, data, big, 0);
    uint64_t until = rail_deadline_in_ms(20);
    while (!rail_deadline_passed(until) && !op.done)
      if (op.req) kit_op_test(&n, &op);
      else kit_op_post(&n, &op);
  }
  pipe_write(io, &word, 1);
  pipe_read(io, &word, 1);
  if (s->death == BY_KILL) kill(getpid(), SIGKILL);
  if (s->death == BY_RESET) reset_all();
  fflush(NULL);
  _exit(0);
}

static void survive(struct script s) {
  struct proc c = proc_start(peer, &s);
  struct kit_net n;
  char handle[RAIL_NET_HANDLE_SIZE], word;
  void *comm, *listen = NULL;
  kit_net_open(&n);
  if (s.peer_sends) {
    listen = kit_net_listen(&n, handle);
    pipe_write(&c.io, handle, sizeof handle);
    comm = kit_net_accept(&n, listen);
  } else {
    pipe_read(&c.io, handle, sizeof handle);
    comm = kit_net_connect(&n, handle);
  }
  static uint8_t small[1000];
  struct kit_guarded data = kit_guard_high(2 * big);
  for (int i = 0; i < 3; i++) {
    struct kit_op op = s.peer_sends ? kit_op_recv(comm, small, 1000, 0) : kit_op_send(comm, small, 1000, 0);
    kit_op_finish(&n, &op);
  }
  struct kit_op op[4];
  for (int i = 0; i < 4; i++)
    op[i] = s.peer_sends ? kit_op_recv(comm, data.data, big, 0) : kit_op_send(comm, data.data, big, 0);
  bool failed = false;
  uint64_t settle = rail_deadline_in_ms(20);
  for (int k = 0; s.mid_transfer && !rail_deadline_passed(settle); k++) {
    if (!op[0].req && !op[0].done) kit_op_post(&n, &op[0]);
    if (op[0].req) kit_op_test(&n, &op[0]);
    CHECK_INT(op[0].error, 0);
  }
  pipe_read(&c.io, &word, 1);
  uint64_t start = rail_now_ns();
  pipe_write(&c.io, &word, 1);
  for (int i = 0; !failed;) {
    if (op[i].req) {
      if (kit_op_test(&n, &op[i])) failed = op[i].error != 0;
    } else if (!op[i].done) {
      kit_op_post(&n, &op[i]);
      failed = op[i].error != 0;
    }
    if (failed) {
      CHECK_MSG(op[i].error == RAIL_REMOTE_ERROR, "the death of a peer is error %d, expected %d", op[i].error,
                RAIL_REMOTE_ERROR);
    } else if (i < 3 && op[i].done) {
      i++;
    } else {
      CHECK_MSG(!op[i].done, "16 MiB were %s a dead peer", s.peer_sends ? "received from" : "sent to");
    }
    CHECK_MSG(rail_now_ns() - start < kit_patience_ms(LIMIT_MS) * 1000000, "no error %d ms after the peer's end",
              LIMIT_MS);
    sched_yield();
  }
  /* The same request and its siblings may be asked again in the same pass; new calls fail too, or wait. */
  for (int i = 0; i < 4; i++) {
    int done = 0, sizes[KIT_MAX_GROUP];
    if (op[i].req) n.vt->test(op[i].req, &done, sizes);
    struct kit_op late = op[i];
    late.error = 0;
    kit_op_post(&n, &late);
  }
  CHECK_OK(s.peer_sends ? n.vt->close_recv(comm) : n.vt->close_send(comm));
  CHECK_OK(n.vt->close_listen(listen));
  kit_guard_free(&data);
  proc_kill(&c);
  kit_net_close(&n);
}

TEST(killed_receiver_mid_transfer) { for (int i = 0; i < 3; i++) survive((struct script){false, BY_KILL, true}); }
TEST(killed_sender_mid_transfer) { for (int i = 0; i < 3; i++) survive((struct script){true, BY_KILL, true}); }
TEST(killed_between_messages) {
  survive((struct script){false, BY_KILL, false});
  survive((struct script){true, BY_KILL, false});
}
TEST(reset_mid_transfer) {
  survive((struct script){false, BY_RESET, true});
  survive((struct script){true, BY_RESET, true});
}
TEST(exit_between_messages) {
  survive((struct script){false, BY_EXIT, false});
  survive((struct script){true, BY_EXIT, false});
}

/* Death while the connection is being made: connect and accept report or wait, and closing works. */
static void dies_at_once(struct pipes *io, void *arg) {
  struct kit_net n;
  char handle[RAIL_NET_HANDLE_SIZE];
  void *comm;
  (void)arg;
  kit_net_open(&n);
  pipe_read(io, handle, sizeof handle);
  for (int i = 0; i < 2; i++)
    if (kit_connect_step(&n, handle, &comm)) break;
  kill(getpid(), SIGKILL);
}

TEST(killed_while_connecting) {
  struct kit_net n;
  for (int round = 0; round < 3; round++) {
    struct proc c = proc_start(dies_at_once, NULL);
    char handle[RAIL_NET_HANDLE_SIZE];
    kit_net_open(&n);
    void *listen = kit_net_listen(&n, handle), *comm;
    pipe_write(&c.io, handle, sizeof handle);
    uint64_t until = rail_deadline_in_ms(300);
    while (!rail_deadline_passed(until))
      if (kit_accept_step(&n, listen, &comm)) CHECK_OK(n.vt->close_recv(comm));
    proc_kill(&c);
    struct kit_pair p = {.net = &n, .listen = listen}; /* the next peer is not kept out by the dead one */
    memcpy(p.handle, handle, sizeof handle);
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    while (!p.send || !p.recv) {
      if (!p.send) kit_connect_step(&n, p.handle, &p.send);
      if (!p.recv) kit_accept_step(&n, listen, &p.recv);
      CHECK(!rail_deadline_passed(deadline));
    }
    kit_pair_ping(&p, 100, 1);
    kit_pair_close(&p);
    kit_net_close(&n);
  }
}

TEST_MAIN(TEST_CASE(killed_receiver_mid_transfer), TEST_CASE(killed_sender_mid_transfer),
          TEST_CASE(killed_between_messages), TEST_CASE(reset_mid_transfer), TEST_CASE(exit_between_messages),
          TEST_CASE(killed_while_connecting))
