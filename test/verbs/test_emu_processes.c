/* SPDX-License-Identifier: Apache-2.0
 * The emulated device between processes: peers that are killed, stopped, forked, or write nonsense. TEST-LIMIT: 240 */
#include <sys/stat.h>

#include "test/verbs/processes.h"

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
  TEST_CASE(a_stopped_peer_is_waited_for), TEST_CASE(a_fork_leaves_connections_alone),
  TEST_CASE(a_child_closes_what_it_inherited),
  TEST_CASE(nonsense_from_a_peer_hurts_nobody), TEST_CASE(many_come_and_go)};

int main(int argc, char **argv) { return processes_main(argc, argv, cases, sizeof cases / sizeof cases[0]); }
