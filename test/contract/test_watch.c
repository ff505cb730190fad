/* SPDX-License-Identifier: Apache-2.0
 * What happens to a connection while its callers make no call: it is served, watched by one thread, and safe to close
 * or to fork.
 * TEST-LIMIT: 60 */
#include <dirent.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/kit_tcp.h"
#include "test/harness/program.h"

enum { SMALL = 512, LARGE = 200000 };

/* Puts what the file says for `field` ("SigBlk:") of each thread of that name there; returns how many there are. */
static int threads_named(const char *name, const char *field, char *value, size_t size) {
  DIR *dir = opendir("/proc/self/task");
  ENSURE(dir, "no /proc/self/task");
  int found = 0;
  for (struct dirent *d; (d = readdir(dir));) {
    char path[300], line[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/status", d->d_name);
    FILE *f = fopen(path, "r");
    bool ours = f && fgets(line, sizeof line, f) && strncmp(line, "Name:\t", 6) == 0 &&
                strncmp(line + 6, name, strlen(name)) == 0 && line[6 + strlen(name)] == '\n';
    found += ours;
    while (ours && field && fgets(line, sizeof line, f))
      if (strncmp(line, field, strlen(field)) == 0) snprintf(value, size, "%s", line + strlen(field));
    if (f) fclose(f);
  }
  closedir(dir);
  return found;
}

TEST(one_thread_that_takes_no_signals) {
  struct kit_net n;
  struct kit_pair p[3];
  char blocked[64] = "";
  kit_net_open(&n);
  for (int i = 0; i < 3; i++) kit_pair_open(&n, &p[i]);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(2000)); /* until it has named itself */
  while (threads_named("rail-watch", "SigBlk:", blocked, sizeof blocked) == 0 && !rail_deadline_passed(deadline))
    usleep(1000);
  CHECK_INT(threads_named("rail-watch", "SigBlk:", blocked, sizeof blocked), 1);
  unsigned long long mask = strtoull(blocked, NULL, 16);
  for (int sig = 1; sig < SIGRTMIN; sig++)
    if (sig != SIGKILL && sig != SIGSTOP && sig < 32) CHECK_MSG(mask >> (sig - 1) & 1, "signal %d is not blocked", sig);
  for (int i = 0; i < 3; i++) kit_pair_close(&p[i]);
  kit_net_close(&n);
  CHECK_INT(threads_named("rail-watch", NULL, NULL, 0), 0);
}

/* Makes no call for so long. Naps are counted, not timed: where the machine is late the watch thread has as many
 * turns. */
static void stay_away(uint64_t ms) {
  enum { NAP_MS = 10 };
  for (uint64_t naps = ms / NAP_MS; naps > 0; naps--) usleep(NAP_MS * 1000);
}

/* More small sends than leave at once, and then silence: they arrive. */
TEST(a_sender_that_goes_away) {
  enum { COUNT = 32 };
  struct kit_net n;
  struct kit_pair p;
  struct kit_op sends[COUNT], recvs[COUNT];
  static uint8_t from[COUNT][SMALL], to[COUNT][SMALL];
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  kit_pair_ping(&p, LARGE, 1); /* which needs the peer's answer: nothing is left to be read */
  for (int i = 0; i < COUNT; i++) {
    memset(from[i], i + 1, SMALL);
    sends[i] = kit_op_send(p.send, from[i], SMALL, 0);
    CHECK(kit_op_post(&n, &sends[i]));
  }
  stay_away(kit_patience_ms(1500));
  for (int i = 0; i < COUNT; i++) { /* it is here before the first test */
    recvs[i] = kit_op_recv(p.recv, to[i], SMALL, 0);
    CHECK(kit_op_post(&n, &recvs[i]));
    CHECK_MSG(kit_op_test(&n, &recvs[i]), "message %d has not arrived", i);
    CHECK(memcmp(from[i], to[i], SMALL) == 0);
  }
  for (int i = 0; i < COUNT; i++) kit_op_finish(&n, &sends[i]);
  kit_pair_close(&p);
  kit_net_close(&n);
}

/* A buffer is posted, and then silence: the sender hears of it, and what it sends is taken in. */
TEST(a_receiver_that_goes_away) {
  struct kit_net n;
  struct kit_pair p;
  static uint8_t from[4 * LARGE], to[4 * LARGE];
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  kit_pair_ping(&p, 100, 1);
  memset(from, 7, sizeof from);
  struct kit_op recv = kit_op_recv(p.recv, to, sizeof to, 0), send = kit_op_send(p.send, from, sizeof from, 0);
  CHECK(kit_op_post(&n, &recv));
  uint64_t start = rail_now_ns();
  kit_op_finish(&n, &send);
  CHECK_MSG(rail_now_ns() - start < kit_patience_ms(2000) * 1000000, "the sender heard of the buffer after %.1f s",
            (double)(rail_now_ns() - start) / 1e9);
  kit_op_finish(&n, &recv);
  CHECK(memcmp(from, to, sizeof to) == 0);
  kit_pair_close(&p);
  kit_net_close(&n);
}

/* The kernel's own means are set on every stream of both sides. */
TEST(kernel_timeouts) {
  struct kit_net n;
  struct kit_pair p;
  struct kit_tcp_socket s[64];
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  int count = kit_tcp_sockets(s, 64), seen = 0;
  for (int i = 0; i < count; i++) {
    int timeout = -1, alive = 0, idle = 0;
    socklen_t len = sizeof(int);
    if (!s[i].connected || s[i].listening) continue;
    seen++;
    CHECK_OK(getsockopt(s[i].fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, &len));
    CHECK_OK(getsockopt(s[i].fd, SOL_SOCKET, SO_KEEPALIVE, &alive, &len));
    CHECK_OK(getsockopt(s[i].fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, &len));
    CHECK_INT(timeout, 0); /* a shut window that is answered would end the stream, too */
    CHECK_INT(alive, 1);
    CHECK_INT(idle, 10);
  }
  CHECK_MSG(seen >= 2, "%d connected sockets", seen);
  kit_pair_close(&p);
  kit_net_close(&n);
}

/* A network of this process' own, whose one interface can be taken down. */
static void set_loopback(bool up) {
  struct ifreq ifr = {.ifr_name = "lo", .ifr_flags = up ? IFF_UP | IFF_RUNNING : 0};
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  CHECK(fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &ifr) == 0);
  close(fd);
}

/* Sends that are done, because the kernel has their bytes, and none outstanding: when the peer's host is gone the next
 * call says so, the deadline having passed. */
TEST(a_sender_with_nothing_outstanding_and_a_host_that_is_gone) {
  struct kit_net n;
  struct kit_pair p;
  static uint8_t bytes[SMALL];
  if (unshare(CLONE_NEWNET) != 0) tap_skip_case("no network namespace of one's own: %s", strerror(errno));
  set_loopback(true);
  setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
  setenv("RAIL_SOCKET_DEADLINE", "2s", 1);
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  kit_pair_ping(&p, 100, 1);
  usleep(600000); /* idle for more than a tick */
  set_loopback(false);
  struct kit_op send = kit_op_send(p.send, bytes, SMALL, 0);
  CHECK(kit_op_post(&n, &send));
  kit_op_finish(&n, &send);
  int result = 0;
  for (uint64_t tries = kit_patience_ms(5000) / 1000; result == 0 && tries > 0; tries--) {
    void *request = NULL;
    int done = 0;
    stay_away(1000);
    result = n.vt->isend(p.send, bytes, SMALL, 0, NULL, NULL, &request);
    for (int i = 0; result == 0 && request && !done && i < 1000; i++) result = n.vt->test(request, &done, NULL);
  }
  CHECK_INT(result, RAIL_REMOTE_ERROR);
  kit_pair_close(&p);
  kit_net_close(&n);
}

/* In the child: nothing of the parent's moves, everything closes, and nothing waits. */
static void child(struct kit_net *n, struct kit_pair *p, int fds) {
  uint64_t start = rail_now_ns();
  uint8_t byte = 0;
  alarm((unsigned)(kit_patience_ms(10000) / 1000));
  if (kit_fd_count() > fds - 2) _exit(2); /* its connections' sockets are gone */
  void *req = NULL;
  if (n->vt->isend(p->send, &byte, 1, 0, NULL, NULL, &req) == 0) _exit(3);
  if (n->vt->close_send(p->send) || n->vt->close_recv(p->recv)) _exit(4);
  if (n->vt->finalize(n->ctx)) _exit(5);
  _exit(rail_now_ns() - start > kit_patience_ms(1000) * 1000000 ? 6 : 0);
}

TEST(a_forked_child) {
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  for (int i = 0; i < 20; i++) { /* at any moment of the thread's */
    kit_pair_ping(&p, 3000, (uint64_t)i);
    int fds = kit_fd_count(), status = 0;
    pid_t pid = fork();
    if (pid == 0) child(&n, &p, fds);
    CHECK(pid > 0);
    usleep((useconds_t)i * 1000);
    CHECK_INT(waitpid(pid, &status, 0), pid);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %#x", (unsigned)status);
    kit_pair_ping(&p, 3000, (uint64_t)i);
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST_MAIN(TEST_CASE(one_thread_that_takes_no_signals), TEST_CASE(a_sender_that_goes_away),
          TEST_CASE(a_receiver_that_goes_away), TEST_CASE(kernel_timeouts), TEST_CASE(a_forked_child),
          TEST_CASE(a_sender_with_nothing_outstanding_and_a_host_that_is_gone) /* last: in a network of its own */)
