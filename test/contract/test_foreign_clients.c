/* SPDX-License-Identifier: Apache-2.0
 * Ten thousand TCP clients that say nothing, 64 listeners, 1024 files: real peers connect, and the process can still
 * open files of its own.
 * TEST-LIMIT: 60 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/sock.h"
#include "kit/kit_tcp.h"
#include "test/harness/program.h"

enum { LISTENERS = 64, FILES = 1024, CLIENTS = 10000, OWN_FILES = 200, FLOOD_MS = 1500 };

static struct kit_net net;
static char handles[LISTENERS][RAIL_NET_HANDLE_SIZE];
static void *listens[LISTENERS];
static union rail_addr addrs[LISTENERS];

static void set_file_limit(rlim_t files) {
  struct rlimit limit;
  CHECK_OK(getrlimit(RLIMIT_NOFILE, &limit));
  limit.rlim_cur = RAIL_MIN(files, limit.rlim_max);
  CHECK_OK(setrlimit(RLIMIT_NOFILE, &limit));
}

static int find_listeners(void) {
  static struct kit_tcp_socket s[4 * LISTENERS];
  int count = kit_tcp_sockets(s, 4 * LISTENERS), found = 0;
  for (int i = 0; i < count && found < LISTENERS; i++) {
    socklen_t len = sizeof addrs[0];
    if (s[i].listening && getsockname(s[i].fd, &addrs[found].sa, &len) == 0) found++;
  }
  return found;
}

/* Another process: connects so many times, over all listeners, and again wherever it is hung up on. */
static _Noreturn void flood(int clients, int ready) {
  static int fds[CLIENTS];
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int fd = 3; fd < FILES; fd++)
    if (fd != ready) close(fd);
  set_file_limit(CLIENTS + 100);
  for (int i = 0; i < CLIENTS; i++) fds[i] = -1;
  for (bool first = true;; first = false) {
    for (int i = 0; i < clients; i++) {
      char byte;
      if (fds[i] >= 0 && recv(fds[i], &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN) continue;
      rail_sock_close(&fds[i]);
      (void)rail_sock_connect(&addrs[i % LISTENERS], NULL, &fds[i]);
    }
    if (first && write(ready, "", 1) != 1) _exit(1);
    poll(NULL, 0, 20);
  }
}

/* One accept of every listener but one; none may give a connection. */
static void accept_none(int but) {
  for (int i = 0; i < LISTENERS; i++) {
    void *comm = NULL;
    if (i == but) continue;
    CHECK(!kit_accept_step(&net, listens[i], &comm));
  }
}

static void connect_pair(struct kit_pair *p, int i) {
  uint64_t start = rail_now_ns(), deadline = rail_deadline_in_ms(kit_patience_ms(5000));
  while (!p->send || !p->recv) {
    if (!p->send) kit_connect_step(&net, handles[i], &p->send);
    if (!p->recv) kit_accept_step(&net, listens[i], &p->recv);
    accept_none(i);
    CHECK_MSG(!rail_deadline_passed(deadline), "no connection through listener %d after %.1f s", i,
              (double)(rail_now_ns() - start) / 1e9);
  }
}

TEST(ten_thousand_silent_clients) {
  static struct kit_pair pairs[LISTENERS];
  static int own[OWN_FILES];
  int ready[2], clients = CLIENTS;
  struct rlimit limit;
  CHECK_OK(getrlimit(RLIMIT_NOFILE, &limit));
  if (limit.rlim_max < CLIENTS + 100) {
    clients = (int)limit.rlim_max - 100;
    printf("# only %d clients: the hard limit of open files is %d\n", clients, (int)limit.rlim_max);
  }
  set_file_limit(FILES);
  kit_net_open(&net);
  for (int i = 0; i < LISTENERS; i++) listens[i] = kit_net_listen(&net, handles[i]);
  CHECK_INT(find_listeners(), LISTENERS);
  CHECK_OK(pipe2(ready, O_CLOEXEC));
  pid_t pid = fork();
  if (pid == 0) flood(clients, ready[1]);
  CHECK(pid > 0);
  struct pollfd news = {.fd = ready[0], .events = POLLIN};
  uint64_t until = 0;
  int most = 0;
  do { /* from the first client on, and for a while when all are there */
    accept_none(-1);
    most = RAIL_MAX(most, kit_fd_count());
    if (!until && poll(&news, 1, 0) > 0) until = rail_deadline_in_ms(FLOOD_MS);
  } while (!until || !rail_deadline_passed(until));
  printf("# at most %d files open\n", most);
  for (int i = 0; i < OWN_FILES; i++) {
    own[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    CHECK_MSG(own[i] >= 0, "file %d of its own: %s, with %d open", i, strerror(errno), kit_fd_count());
  }
  for (int i = 0; i < LISTENERS; i++) {
    pairs[i] = (struct kit_pair){.net = &net};
    connect_pair(&pairs[i], i);
    kit_pair_ping(&pairs[i], 1000, (uint64_t)i);
  }
  CHECK_OK(kill(pid, SIGKILL));
  CHECK_INT(waitpid(pid, NULL, 0), pid);
  for (int i = 0; i < OWN_FILES; i++) close(own[i]);
  for (int i = 0; i < LISTENERS; i++) {
    CHECK_OK(net.vt->close_send(pairs[i].send));
    CHECK_OK(net.vt->close_recv(pairs[i].recv));
    CHECK_OK(net.vt->close_listen(listens[i]));
  }
  close(ready[0]);
  close(ready[1]);
  kit_net_close(&net);
}

TEST_MAIN(TEST_CASE(ten_thousand_silent_clients))
