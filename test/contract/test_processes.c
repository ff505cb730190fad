/* SPDX-License-Identifier: Apache-2.0
 * Several processes, comms and threads at once; programs started meanwhile inherit nothing.
 * TEST-LIMIT: 60 */
#include <dirent.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "kit/kit_tcp.h"
#include "test/harness/proc.h"
#include "test/harness/program.h"

enum { COMMS = 8 };

struct side {
  struct kit_net net;
  void *listen[COMMS], *send[COMMS], *recv[COMMS];
  char handle[COMMS][RAIL_NET_HANDLE_SIZE];
};

static size_t size_of(int me, int comm, int round) {
  return (size_t)((me * 31 + comm * 7 + round * 131) * 977) % 60000;
}

static uint64_t seed_of(int me, int comm, int round) {
  return (uint64_t)me * 100000 + (uint64_t)round * 10 + (uint64_t)comm;
}

/* 8 comms to the other process and 8 from it, all moving at once. */
static void two_way(struct pipes *io, int me, int rounds) {
  static struct side s;
  static uint8_t out[COMMS][60000], in[COMMS][60000];
  char theirs[COMMS][RAIL_NET_HANDLE_SIZE];
  kit_net_open(&s.net);
  for (int i = 0; i < COMMS; i++) s.listen[i] = kit_net_listen(&s.net, s.handle[i]);
  pipe_write(io, s.handle, sizeof s.handle);
  pipe_read(io, theirs, sizeof theirs);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  for (int left = 2 * COMMS; left > 0;) {
    for (int i = 0; i < COMMS; i++) {
      if (!s.send[i] && kit_connect_step(&s.net, theirs[i], &s.send[i])) left--;
      if (!s.recv[i] && kit_accept_step(&s.net, s.listen[i], &s.recv[i])) left--;
    }
    ENSURE(!rail_deadline_passed(deadline), "%d ends are not connected", left);
    sched_yield();
  }
  for (int i = 0; i < COMMS; i++) ENSURE(s.net.vt->close_listen(s.listen[i]) == 0, "closeListen failed");
  for (int round = 0; round < rounds; round++) {
    struct kit_op ops[2 * COMMS];
    for (int i = 0; i < COMMS; i++) {
      kit_pattern_fill(out[i], size_of(me, i, round), seed_of(me, i, round));
      ops[i] = kit_op_recv(s.recv[i], in[i], sizeof in[i], round);
      ops[COMMS + i] = kit_op_send(s.send[i], out[i], size_of(me, i, round), round);
    }
    kit_ops_run(&s.net, ops, 2 * COMMS, (struct kit_ops_how){0});
    for (int i = 0; i < COMMS; i++) {
      ENSURE_INT(ops[i].sizes[0], size_of(1 - me, i, round));
      ssize_t wrong = kit_pattern_check(in[i], size_of(1 - me, i, round), seed_of(1 - me, i, round));
      ENSURE(wrong < 0, "comm %d round %d: byte %zd arrived wrong", i, round, wrong);
    }
  }
  for (int i = 0; i < COMMS; i++) {
    ENSURE(s.net.vt->close_send(s.send[i]) == 0, "closeSend failed");
    ENSURE(s.net.vt->close_recv(s.recv[i]) == 0, "closeRecv failed");
  }
  kit_net_close(&s.net);
}

static void two_way_child(struct pipes *io, void *arg) { two_way(io, 1, *(int *)arg); }

TEST(eight_comms_each_way) {
  int rounds = kit_scaled(200);
  struct proc c = proc_start(two_way_child, &rounds);
  two_way(&c.io, 0, rounds);
  proc_join(&c);
}

struct worker { struct kit_net *net; int id, rounds; };

static void own_pair(void *arg) {
  struct worker *w = arg;
  struct kit_pair p;
  kit_pair_open(w->net, &p);
  for (int i = 0; i < w->rounds; i++)
    kit_pair_ping(&p, (size_t)((w->id + 1) * i * 1013) % 100000, (uint64_t)w->id * 1000 + (uint64_t)i);
  kit_pair_close(&p);
}

TEST(comms_on_different_threads) {
  struct kit_net n;
  kit_net_open(&n);
  for (int round = 0; round < 3; round++) {
    struct worker w[4];
    for (int i = 0; i < 4; i++) w[i] = (struct worker){&n, i, kit_scaled(200)};
    kit_run_threads(4, own_pair, w, sizeof w[0]);
  }
  kit_net_close(&n);
}

static void own_context(void *arg) {
  struct worker *w = arg;
  struct kit_net n;
  for (int i = 0; i < 5; i++) {
    kit_net_open(&n);
    struct worker mine = {&n, w->id, w->rounds};
    own_pair(&mine);
    kit_net_close(&n);
  }
}

TEST(contexts_on_different_threads) {
  if (getenv("RAIL_TEST_ABI")) tap_skip_case("below v11 there is one context");
  setenv("NCCL_SOCKET_IFNAME", "lo", 0); /* before there are threads */
  struct worker w[4];
  for (int i = 0; i < 4; i++) w[i] = (struct worker){NULL, i, kit_scaled(20)};
  kit_run_threads(4, own_context, w, sizeof w[0]);
}

/* ---- fork and exec during traffic ---- */

static void sockets_of_a_child(char *text, size_t cap) {
  FILE *f = popen("ls -l /proc/self/fd", "re");
  CHECK(f);
  size_t len = fread(text, 1, cap - 1, f);
  text[len] = 0;
  pclose(f);
}

TEST(programs_started_meanwhile) {
  struct kit_net n;
  struct kit_pair p, q;
  static struct kit_tcp_socket before[256], after[256];
  int nbefore = kit_tcp_sockets(before, 256);
  char handle[RAIL_NET_HANDLE_SIZE];
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  kit_pair_open(&n, &q);
  void *listen = kit_net_listen(&n, handle);
  int nafter = kit_tcp_sockets(after, 256), fds = kit_fd_count();
  for (int round = 0; round < 20; round++) {
    static uint8_t out[1 << 20], in[1 << 20];
    kit_pattern_fill(out, sizeof out, (uint64_t)round);
    struct kit_op ops[2] = {kit_op_recv(p.recv, in, sizeof in, 0), kit_op_send(p.send, out, sizeof out, 0)};
    kit_op_post(&n, &ops[0]);
    kit_op_post(&n, &ops[1]); /* in flight while the child starts */
    if (round == 10) {
      char text[16384];
      sockets_of_a_child(text, sizeof text);
      CHECK_MSG(strstr(text, "->"), "no listing: %s", text);
      for (int i = 0; i < nafter; i++) {
        bool ours = true;
        for (int k = 0; k < nbefore; k++) ours &= before[k].inode != after[i].inode;
        char word[64];
        snprintf(word, sizeof word, "socket:[%lu]", after[i].inode);
        CHECK_MSG(!ours || !strstr(text, word), "a child that called exec holds our socket %s", word);
      }
    } else {
      pid_t pid = fork();
      CHECK(pid >= 0);
      if (pid == 0) {
        if (round % 2) execl("/bin/true", "true", (char *)NULL);
        _exit(0); /* a bare fork leaves without touching anything */
      }
      CHECK(waitpid(pid, NULL, 0) == pid);
    }
    kit_ops_run(&n, ops, 2, (struct kit_ops_how){0});
    CHECK(kit_pattern_check(in, sizeof in, (uint64_t)round) < 0);
  }
  CHECK_INT(kit_fd_count(), fds);
  CHECK_OK(n.vt->close_listen(listen));
  kit_pair_close(&p);
  kit_pair_close(&q);
  kit_net_close(&n);
}

/* A forked child that lives on, without exec, keeps copies of the sockets open.
 * Its parent's close must reach the peer all the same. */
TEST(a_forked_bystander_does_not_hide_a_close) {
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  kit_pair_ping(&p, 100, 1);
  int hold[2];
  CHECK(pipe(hold) == 0);
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    char c;
    close(hold[1]);
    _exit(read(hold[0], &c, 1) == 1);
  }
  close(hold[0]);
  uint8_t byte;
  struct kit_op op = kit_op_recv(p.recv, &byte, 1, 0);
  int rc = n.vt->close_send(p.send);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(5000));
  bool noticed = false;
  while (!noticed && !rail_deadline_passed(deadline)) {
    if (op.req) kit_op_test(&n, &op);
    else kit_op_post(&n, &op);
    noticed = op.error != 0;
    sched_yield();
  }
  close(hold[1]);
  waitpid(pid, NULL, 0);
  CHECK_INT(rc, 0);
  CHECK_MSG(noticed, "the close did not reach the peer while a forked child lived");
  CHECK_OK(n.vt->close_recv(p.recv));
  kit_net_close(&n);
}

TEST_MAIN(TEST_CASE(eight_comms_each_way), TEST_CASE(comms_on_different_threads),
          TEST_CASE(contexts_on_different_threads), TEST_CASE(programs_started_meanwhile),
          TEST_CASE(a_forked_bystander_does_not_hide_a_close))
