/* SPDX-License-Identifier: Apache-2.0
 * The emulated device between processes: peers that are killed, stopped, forked, or write nonsense. TEST-LIMIT: 240 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "test/verbs/verbs.h"

/* What one end says to the other. */
struct hello {
  uint32_t qpn, rkey;
  uint64_t addr;
  union ibv_gid gid;
  uint16_t lid;
};

/* As a program ends, with its exit handlers; the leak checker's takes other processes' threads for its own. */
#ifdef __SANITIZE_ADDRESS__
#define CHILD_EXIT _exit
#else
#define CHILD_EXIT exit
#endif

static char folder[] = "/dev/shm/emu-test.XXXXXX";

/* Reads or writes all of it; a peer that ends early is a failure of the case. */
static void say(int fd, const void *what, size_t size) { CHECK(write(fd, what, size) == (ssize_t)size); }
static void hear(int fd, void *what, size_t size) { CHECK(read(fd, what, size) == (ssize_t)size); }

/* Connects `e` with the process behind `fd`; `peer` becomes what is known of its end. */
static void connect_over(int fd, struct end *e, struct end *peer, const struct shape *s) {
  static struct ibv_qp qp;
  static struct ibv_mr mr;
  end_open(e, 0);
  end_make_qp(e, s);
  struct hello own = {e->qp->qp_num, e->mr->rkey, (uintptr_t)e->data, e->gid, e->port.lid}, its;
  say(fd, &own, sizeof own);
  hear(fd, &its, sizeof its);
  memset(peer, 0, sizeof *peer);
  qp.qp_num = its.qpn;
  mr.rkey = its.rkey;
  peer->qp = &qp;
  peer->mr = &mr;
  peer->data = (char *)(uintptr_t)its.addr; /* an address of the other process */
  peer->gid = its.gid;
  peer->port.lid = its.lid;
  to_init(e, s);
  to_rtr(e, peer, s);
  to_rts(e, s);
  char ready = 1;
  say(fd, &ready, 1);
  hear(fd, &ready, 1);
}

struct other {
  pid_t pid;
  int fd;
};

/* A process that connects, then does that. It is made by one that has no device open: ThreadSanitizer cannot follow a
 * fork beside the device's thread into a process that starts one of its own. */
static struct other start(void (*body)(int fd, struct end *e, struct end *peer), const struct shape *s) {
  int fds[2];
  struct other o;
  CHECK_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
  fflush(stdout);
  o.pid = fork();
  CHECK(o.pid >= 0);
  if (o.pid == 0) {
    struct end e, peer;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* stopped or not, it ends with the test */
    close(fds[0]);
    if (setjmp(tap_end_) == 0) {
      connect_over(fds[1], &e, &peer, s);
      body(fds[1], &e, &peer);
      _exit(0);
    }
    _exit(1);
  }
  close(fds[1]);
  o.fd = fds[0];
  return o;
}

static void kill_other(struct other *o) {
  kill(o->pid, SIGKILL);
  waitpid(o->pid, NULL, 0);
  close(o->fd);
}

/* Ends it; that must be a good end. */
static void join_other(struct other *o) {
  int status;
  say(o->fd, "e", 1); /* closing is not enough: processes that were made later have the descriptor, too */
  close(o->fd);
  CHECK(waitpid(o->pid, &status, 0) == o->pid);
  CHECK_INT(status, 0);
}

static void until_told(int fd, struct end *e, struct end *peer) {
  char c;
  (void)peer;
  hear(fd, &c, 1);
  end_close(e);
}

static unsigned int files(void) {
  unsigned int n = 0;
  DIR *dir = opendir(folder);
  CHECK(dir);
  for (struct dirent *d; (d = readdir(dir)) != NULL;) n += strncmp(d->d_name, "rail-emu.", 9) == 0;
  closedir(dir);
  return n;
}

static struct shape short_shape(void) {
  struct shape s = USUAL_SHAPE;
  s.timeout = 10; /* 4 ms */
  s.retry_cnt = 2;
  return s;
}

/* ---- cases ----------------------------------------------------------------------------- */

TEST(bytes_between_processes) {
  struct shape s = USUAL_SHAPE;
  struct other o = start(until_told, &s);
  struct end e, peer;
  connect_over(o.fd, &e, &peer, &s);
  fill(e.data, BYTES, 4);
  struct work w;
  work(&w, &e, &peer, IBV_WR_RDMA_WRITE, 1, 0, BYTES / 2);
  CHECK_OK(post(&e, &w.wr));
  work(&w, &e, &peer, IBV_WR_RDMA_READ, 2, 0, BYTES / 2);
  w.sge.addr += BYTES / 2;
  w.wr.send_flags |= IBV_SEND_FENCE;
  CHECK_OK(post(&e, &w.wr));
  CHECK_COMPLETION(&e, 1, IBV_WC_SUCCESS);
  CHECK_COMPLETION(&e, 2, IBV_WC_SUCCESS);
  CHECK(memcmp(e.data, e.data + BYTES / 2, BYTES / 2) == 0);
  join_other(&o);
  end_close(&e);
  CHECK_INT(files(), 0);
}

/* The event of a completion, without a post or a poll before it. */
static void wait_completion_event(struct end *e) {
  struct pollfd fd = {.fd = e->channel->fd, .events = POLLIN};
  struct ibv_cq *cq;
  void *context;
  CHECK_MSG(poll(&fd, 1, WAIT_MS) == 1, "no event within %d ms", WAIT_MS);
  CHECK_OK(ibv_get_cq_event(e->channel, &cq, &context));
  ibv_ack_cq_events(cq, 1);
}

/* A program that waits for events alone: a request has more packets than are sent at once, or than the bandwidth lets
 * leave, or it may be sent only later. The device's thread is given time to fall asleep. */
TEST(events_alone_end_a_request) {
  enum { LONG = 200000, SHORT = 4000 };
  static const struct {
    uint32_t length, bandwidth;
    bool drained;
  } ways[] = {{LONG, 0, false}, {SHORT, 1, false}, {SHORT, 0, true}};
  struct shape s = USUAL_SHAPE;
  s.channel = true;
  struct other o = start(until_told, &s);
  struct end e, peer;
  connect_over(o.fd, &e, &peer, &s);
  for (unsigned int i = 0; i < sizeof ways / sizeof ways[0]; i++) {
    emu_port(&e, "bandwidth", (int)ways[i].bandwidth);
    CHECK_OK(ibv_req_notify_cq(e.cq, 0));
    if (ways[i].drained) to_state(&e, IBV_QPS_SQD);
    poll(NULL, 0, 50);
    send_work(&e, &peer, IBV_WR_RDMA_WRITE, i, 0, ways[i].length);
    if (ways[i].drained) to_state(&e, IBV_QPS_RTS);
    wait_completion_event(&e);
    CHECK_COMPLETION(&e, i, IBV_WC_SUCCESS);
  }
  join_other(&o);
  end_close(&e);
}

/* It is at work when it is killed: sends as fast as it can. */
static void send_for_ever(int fd, struct end *e, struct end *peer) {
  (void)fd;
  for (unsigned int i = 0;; i++) {
    struct work w;
    if (post(e, work(&w, e, peer, IBV_WR_RDMA_WRITE, i, 0, 1 + i * 977 % 60000)) != 0) poll(NULL, 0, 1);
    struct ibv_wc wc;
    while (ibv_poll_cq(e->cq, 1, &wc) > 0) CHECK_INT(wc.status, IBV_WC_SUCCESS);
  }
}

TEST(a_killed_peer_is_silence) {
  struct shape s = short_shape();
  for (unsigned int round = 0; round < 10; round++) {
    struct other o = start(send_for_ever, &s);
    struct end e, peer;
    connect_over(o.fd, &e, &peer, &s);
    for (unsigned int i = 0; i < DEPTH; i++) send_work(&e, &peer, IBV_WR_RDMA_WRITE, i, 0, 8 + 100 * i);
    unsigned int done = 0;
    for (; done < 7 * round; done++) CHECK_COMPLETION(&e, done, IBV_WC_SUCCESS);
    kill_other(&o);
    struct ibv_wc wc = completion(&e);
    while (wc.status == IBV_WC_SUCCESS && done + 1 < DEPTH) { /* what had arrived by then */
      CHECK_INT(wc.wr_id, done++);
      wc = completion(&e);
    }
    if (wc.status == IBV_WC_SUCCESS) {
      done++;
      send_work(&e, &peer, IBV_WR_RDMA_WRITE, done, 0, 8);
      wc = completion(&e);
    }
    CHECK_INT(wc.status, IBV_WC_RETRY_EXC_ERR);
    CHECK_INT(wc.wr_id, done);
    for (unsigned int i = done + 1; i < DEPTH; i++) CHECK_COMPLETION(&e, i, IBV_WC_WR_FLUSH_ERR);
    end_close(&e);
  }
  CHECK_INT(files(), 1); /* that of the last one */
  struct end e;
  end_open(&e, 0);
  CHECK_INT(files(), 1); /* its own: that one is gone */
  end_close(&e);
  CHECK_INT(files(), 0);
}

/* What needs no answer is done when it has left, wherever it goes: more of it than a ring has room for. */
static void check_unreliable(enum ibv_qp_type type) {
  struct shape s = USUAL_SHAPE;
  s.type = type;
  struct other o = start(until_told, &s);
  struct end e, peer;
  connect_over(o.fd, &e, &peer, &s);
  struct ibv_ah *ah = type == IBV_QPT_UD ? path_to(&e, &peer) : NULL;
  for (unsigned int i = 0; i < 500; i++) {
    if (i == 1) kill_other(&o);
    if (ah) send_datagram(&e, ah, peer.qp->qp_num, i, 4000);
    else send_work(&e, &peer, IBV_WR_RDMA_WRITE, i, 0, 4000);
    CHECK_COMPLETION(&e, i, IBV_WC_SUCCESS);
  }
  if (ah) CHECK_OK(ibv_destroy_ah(ah));
  end_close(&e);
}
TEST(unreliable_writes_to_a_killed_peer) { check_unreliable(IBV_QPT_UC); }
TEST(datagrams_to_a_killed_peer) { check_unreliable(IBV_QPT_UD); }

/* Hours of silence are none if the other process could not run. */
TEST(a_stopped_peer_is_waited_for) {
  struct shape s = short_shape();
  s.retry_cnt = 0;
  struct other o = start(until_told, &s);
  struct end e, peer;
  connect_over(o.fd, &e, &peer, &s);
  kill(o.pid, SIGSTOP);
  CHECK(waitpid(o.pid, NULL, WUNTRACED) == o.pid);
  for (unsigned int i = 0; i < 30; i++) send_work(&e, &peer, IBV_WR_RDMA_WRITE, i, 0, 100000); /* more than a ring */
  for (int i = 0; i < 200; i++) {
    struct ibv_wc wc;
    int n = ibv_poll_cq(e.cq, 1, &wc);
    CHECK_MSG(n == 0, "request %llu ended with status %d", (unsigned long long)wc.wr_id, (int)wc.status);
    poll(NULL, 0, 1);
  }
  kill(o.pid, SIGCONT);
  for (unsigned int i = 0; i < 30; i++) CHECK_COMPLETION(&e, i, IBV_WC_SUCCESS);
  join_other(&o);
  end_close(&e);
}

/* The child of a process with connections has none of them, and disturbs none. */
TEST(a_fork_leaves_connections_alone) {
  struct shape s = USUAL_SHAPE;
  struct other o = start(until_told, &s);
  struct end e, peer;
  connect_over(o.fd, &e, &peer, &s);
  for (unsigned int i = 0; i < 10; i++) {
    send_work(&e, &peer, IBV_WR_RDMA_WRITE, i, 0, 50000);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      struct ibv_wc wc;
      (void)ibv_poll_cq(e.cq, 1, &wc);
      (void)ibv_destroy_qp(e.qp);
      CHILD_EXIT(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_INT(status, 0);
    CHECK_COMPLETION(&e, i, IBV_WC_SUCCESS);
  }
  CHECK_INT(files(), 2);
  join_other(&o);
  end_close(&e);
}

/* Nor does it lose what it opens itself when it closes what it has from its parent. */
TEST(a_child_closes_what_it_inherited) {
  struct end e;
  end_open(&e, 0);
  fflush(stdout);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    struct ibv_context *own = open_device(0);
    bool good = files() == 2; /* the parent's and its own */
    ibv_close_device(e.context);
    good &= files() == 2;
    ibv_close_device(own);
    CHILD_EXIT(good && files() == 1 ? 0 : 1);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK_INT(status, 0);
  end_close(&e);
  CHECK_INT(files(), 0);
}

/* Overwrites all that the process shows to others with nonsense, for as long as it lives. */
static void write_nonsense(int fd, struct end *e, struct end *peer) {
  char path[600];
  DIR *dir = opendir(folder);
  uint64_t random = 88172645463325252u;
  (void)fd, (void)e, (void)peer;
  snprintf(path, sizeof path, "%s/rail-emu.%u.%u", folder, (unsigned int)geteuid(), e->qp->qp_num >> 13);
  closedir(dir);
  int own = open(path, O_RDWR | O_CLOEXEC);
  struct stat st;
  CHECK(own >= 0 && fstat(own, &st) == 0);
  char *all = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
  CHECK(all != MAP_FAILED);
  for (;;) { /* small numbers are worse than large ones: they pass more checks */
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    size_t at = 4096 + random % ((size_t)st.st_size - 4104);
    uint64_t value = random >> (random % 64);
    memcpy(all + at / 8 * 8, &value, 8);
  }
}

TEST(nonsense_from_a_peer_hurts_nobody) {
  struct shape s = short_shape();
  for (unsigned int round = 0; round < 8; round++) {
    struct shape usual = USUAL_SHAPE;
    struct other o = start(write_nonsense, &s), good = start(until_told, &usual);
    struct end e, peer, e2, peer2;
    connect_over(o.fd, &e, &peer, &s);
    for (unsigned int i = 0; i < DEPTH; i++) {
      send_work(&e, &peer, i % 3 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, i, 0, 8 + 100 * i);
      receive(&e, 1000 + i, 0, 4096);
    }
    struct ibv_wc wc;
    for (int i = 0; i < 3000; i++) (void)ibv_poll_cq(e.cq, 1, &wc);
    kill_other(&o);
    to_state(&e, IBV_QPS_ERR);
    connect_over(good.fd, &e2, &peer2, &usual); /* and the process can still talk with others */
    send_work(&e2, &peer2, IBV_WR_RDMA_WRITE, 1, 0, 8);
    CHECK_COMPLETION(&e2, 1, IBV_WC_SUCCESS);
    join_other(&good);
    end_close(&e2);
    end_close(&e);
  }
}

/* In a process with /dev/shm of that size. What is sent where there is no room is lost; nothing is touched that is not
 * there. 77: no such file system may be mounted here. */
static int on_a_small_disk(const char *size) {
  struct shape s = short_shape();
  struct end a, b;
  struct ibv_wc wc;
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return 77;
  if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return 77;
  if (mount("tmpfs", folder, "tmpfs", 0, size) != 0) return 77;
  int n = 0;
  struct ibv_device **list = ibv_get_device_list(&n);
  struct ibv_context *context = n ? ibv_open_device(list[0]) : NULL;
  if (!context) return errno == ENOSPC ? 2 : 3;
  ibv_free_device_list(list);
  pair_open(&a, &b, &s);
  unsigned int done = 0;
  do {
    send_work(&a, &b, IBV_WR_RDMA_WRITE, done, 0, 4000);
    wc = completion(&a);
  } while (wc.status == IBV_WC_SUCCESS && ++done < 100);
  CHECK_INT(wc.status, IBV_WC_RETRY_EXC_ERR);
  CHECK(done > 5);
  CHECK_OK(ibv_close_device(context));
  pair_close(&a, &b);
  return 0;
}

static int status_on_a_small_disk(const char *size) {
  int status;
  fflush(stdout);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    if (setjmp(tap_end_) != 0) _exit(1);
    _exit(on_a_small_disk(size));
  }
  CHECK(waitpid(child, &status, 0) == child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) tap_skip_case("no file system may be mounted here");
  return status;
}

TEST(a_full_file_system_is_no_crash) {
  CHECK_INT(status_on_a_small_disk("size=160k"), 0);           /* for some packets */
  CHECK_INT(status_on_a_small_disk("size=32k"), 2 << CHAR_BIT); /* not even for the process: ENOSPC */
}

/* One after the other. */
TEST(many_come_and_go) {
  struct shape s = USUAL_SHAPE;
  struct other others[20];
  struct end keep;
  for (unsigned int i = 0; i < 20; i++) others[i] = start(until_told, &s);
  end_open(&keep, 0); /* so that the process' memory stays the same */
  for (unsigned int i = 0; i < 20; i++) {
    struct other o = others[i];
    struct end e, peer;
    connect_over(o.fd, &e, &peer, &s);
    send_work(&e, &peer, IBV_WR_RDMA_WRITE, i, 0, 300000);
    CHECK_COMPLETION(&e, i, IBV_WC_SUCCESS);
    if (i % 2) join_other(&o);
    else kill_other(&o);
    end_close(&e);
  }
  end_close(&keep);
}

static const struct tap_case cases[] = {
  TEST_CASE(bytes_between_processes), TEST_CASE(events_alone_end_a_request), TEST_CASE(a_killed_peer_is_silence),
  TEST_CASE(unreliable_writes_to_a_killed_peer), TEST_CASE(datagrams_to_a_killed_peer),
  TEST_CASE(a_stopped_peer_is_waited_for),
  TEST_CASE(a_fork_leaves_connections_alone), TEST_CASE(a_child_closes_what_it_inherited),
  TEST_CASE(nonsense_from_a_peer_hurts_nobody), TEST_CASE(a_full_file_system_is_no_crash),
  TEST_CASE(many_come_and_go)};

int main(int argc, char **argv) {
  if (!mkdtemp(folder)) return 2;
  setenv("RAIL_EMU_DIR", folder, 1);
  signal(SIGPIPE, SIG_IGN);
  int status = tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
  DIR *dir = opendir(folder);
  for (struct dirent *d; dir && (d = readdir(dir)) != NULL;) (void)unlinkat(dirfd(dir), d->d_name, 0);
  if (dir) closedir(dir);
  rmdir(folder);
  return status;
}
