/* SPDX-License-Identifier: Apache-2.0
 * What the emulated device gives between two processes: messages per second, bytes per second, what connections
 * cost. Each is measured in rounds that are shorter than what a scheduler gives at once, and so is memcpy of one thread
 * beside it: the best one is what the code can do, the median what the machine left of it. make bench-emu; figures of
 * one machine, to be compared with each other only. */
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "test/verbs/verbs.h"

enum { RATE_DEPTH = 1024, RECEIVES = 8192, BATCH = 32, MANY = 4096, ROUNDS = 41 };

struct hello {
  uint32_t qpn, rkey;
  uint64_t addr;
  union ibv_gid gid;
  uint16_t lid;
};

static void swap(int fd, const void *own, void *its, size_t size) {
  CHECK(write(fd, own, size) == (ssize_t)size);
  CHECK(recv(fd, its, size, MSG_WAITALL) == (ssize_t)size);
}

static void connect_over(int fd, struct end *e, struct end *peer, const struct shape *s) {
  static struct ibv_qp qp;
  static struct ibv_mr mr;
  char own_byte = 1, its_byte;
  end_open(e, 0);
  end_make_qp(e, s);
  const struct hello own = {e->qp->qp_num, e->mr->rkey, (uintptr_t)e->data, e->gid, e->port.lid};
  struct hello its;
  swap(fd, &own, &its, sizeof own);
  *peer = (struct end){.qp = &qp, .mr = &mr, .data = (char *)(uintptr_t)its.addr, .gid = its.gid};
  qp.qp_num = its.qpn;
  mr.rkey = its.rkey;
  peer->port.lid = its.lid;
  to_init(e, s);
  struct ibv_qp_attr a = rtr_attr(e, peer, s);
  a.path_mtu = e->port.active_mtu;
  CHECK_OK(ibv_modify_qp(e->qp, &a, RTR_MASK));
  to_rts(e, s);
  swap(fd, &own_byte, &its_byte, 1);
}

static double seconds(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Writes of that size, `n` in all; each BATCH-th is signaled. With immediate data the other process receives. */
static double send_all(struct end *e, const struct end *peer, bool imm, uint32_t size, uint64_t n) {
  struct work works[BATCH];
  struct ibv_wc wc[BATCH];
  uint64_t posted = 0, done = 0;
  for (int i = 0; i < BATCH; i++) {
    work(&works[i], e, peer, imm ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE, BATCH, 0, size);
    works[i].wr.send_flags = i == BATCH - 1 ? IBV_SEND_SIGNALED : 0;
    works[i].wr.next = i == BATCH - 1 ? NULL : &works[i + 1].wr;
  }
  double begin = seconds(CLOCK_MONOTONIC);
  while (done < n) {
    while (posted < n && posted - done + BATCH <= RATE_DEPTH) {
      CHECK_OK(post(e, &works[0].wr));
      posted += BATCH;
    }
    int got = ibv_poll_cq(e->cq, BATCH, wc);
    for (int i = 0; i < got; i++) {
      CHECK_INT(wc[i].status, IBV_WC_SUCCESS);
      done += BATCH;
    }
  }
  return (double)n / (seconds(CLOCK_MONOTONIC) - begin);
}

static void receive_all(struct end *e, uint64_t n) {
  struct ibv_wc wc[BATCH];
  struct ibv_recv_wr wrs[BATCH] = {{0}}, *bad;
  for (uint64_t done = 0; done < n;) {
    int got = ibv_poll_cq(e->cq, BATCH, wc);
    for (int i = 0; i < got; i++) {
      CHECK_INT(wc[i].status, IBV_WC_SUCCESS);
      wrs[i].next = i + 1 < got ? &wrs[i + 1] : NULL;
    }
    if (got > 0) CHECK_OK(ibv_post_recv(e->qp, wrs, &bad));
    done += (uint64_t)(got > 0 ? got : 0);
  }
}

static long resident_kib(void) {
  long pages = 0, ignored;
  FILE *in = fopen("/proc/self/statm", "re");
  if (in && fscanf(in, "%ld %ld", &ignored, &pages) != 2) pages = 0;
  if (in) fclose(in);
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* QPs of one process, each connected with the next one. */
static void many_connections(void) {
  static struct ibv_qp *qps[MANY];
  struct end e;
  struct shape s = USUAL_SHAPE;
  end_open(&e, 0);
  e.cq = ibv_create_cq(e.context, 4096, NULL, NULL, 0);
  CHECK(e.cq);
  long before = resident_kib();
  double begin = seconds(CLOCK_MONOTONIC);
  for (int i = 0; i < MANY; i++) {
    struct ibv_qp_init_attr init = {.send_cq = e.cq, .recv_cq = e.cq, .cap = {16, 16, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    qps[i] = ibv_create_qp(e.pd, &init);
    CHECK(qps[i]);
  }
  for (int i = 0; i < MANY; i++) {
    struct end peer = e;
    peer.qp = qps[i ^ 1];
    e.qp = qps[i];
    to_init(&e, &s);
    to_rtr(&e, &peer, &s);
    to_rts(&e, &s);
  }
  double took = seconds(CLOCK_MONOTONIC) - begin;
  printf("%-42s %8.1f KiB each, %.1f us each\n", "4,096 connections of a process (16+16)",
         (double)(resident_kib() - before) / MANY, took * 1e6 / MANY);
  for (int i = 0; i < MANY; i++) CHECK_OK(ibv_destroy_qp(qps[i]));
  e.qp = NULL;
  end_close(&e);
}

static const struct { const char *name; bool imm; uint32_t size; uint64_t n; } runs[] = {
  {"8 B, write with immediate", true, 8, 48000}, {"8 B, write", false, 8, 48000},
  {"64 KiB, write", false, 65536, 800},          {"1 MiB, write", false, BYTES, 64}};
enum { RUNS = sizeof runs / sizeof runs[0] };

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? 1 : x > y ? -1 : 0;
}

/* Copies per second. */
static double copy_all(char *data, uint32_t size, uint64_t n) {
  static char other[BYTES];
  double begin = seconds(CLOCK_MONOTONIC);
  for (uint64_t i = 0; i < n; i++) {
    memcpy(other, data, size);
    __asm__ volatile("" : : "r"(other) : "memory");
  }
  return (double)n / (seconds(CLOCK_MONOTONIC) - begin);
}

static void print_rates(const char *name, double rates[ROUNDS], uint32_t size) {
  qsort(rates, ROUNDS, sizeof rates[0], compare);
  printf("%-42s best %8.2f M/s %8.2f GB/s; median %8.2f M/s %8.2f GB/s\n", name, rates[0] / 1e6, rates[0] * size / 1e9,
         rates[ROUNDS / 2] / 1e6, rates[ROUNDS / 2] * size / 1e9);
  fflush(stdout);
}

/* One end of a round; `fd` leads to the other process. */
static double run_round(int fd, bool sends, int i, struct end *e, const struct end *peer) {
  char own = 1, its;
  double rate = 0;
  swap(fd, &own, &its, 1);
  if (sends) {
    rate = send_all(e, peer, runs[i].imm, runs[i].size, runs[i].n);
  } else if (runs[i].imm) {
    receive_all(e, runs[i].n);
  } else { /* a process that does something else but still looks, as NCCL's does */
    struct ibv_wc wc;
    while (recv(fd, &its, 1, MSG_PEEK | MSG_DONTWAIT) < 0)
      for (int k = 0; k < 100; k++) (void)ibv_poll_cq(e->cq, 1, &wc);
  }
  swap(fd, &own, &its, 1);
  return rate;
}

int main(void) {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) return 3;
  pid_t pid = fork();
  if (pid < 0) return 3;
  bool sends = pid != 0;
  int fd = fds[sends];
  struct end e, peer;
  struct shape s = USUAL_SHAPE;
  s.sends = RATE_DEPTH;
  s.recvs = RECEIVES;
  s.cqe = 2 * RECEIVES;
  s.min_rnr_timer = 1;
  if (setjmp(tap_end_) != 0) {
    if (sends) kill(pid, 9);
    return 1;
  }
  connect_over(fd, &e, &peer, &s);
  for (int i = 0; !sends && i < RECEIVES; i++) receive(&e, 0, 0, 0);
  for (int i = 0; i < RUNS; i++) {
    double rates[ROUNDS], copies[ROUNDS];
    for (int k = 0; k < ROUNDS; k++) {
      rates[k] = run_round(fd, sends, i, &e, &peer);
      copies[k] = sends && runs[i].size > 8 ? copy_all(e.data, runs[i].size, runs[i].n / 8) : 0;
    }
    if (!sends) continue;
    print_rates(runs[i].name, rates, runs[i].size);
    if (runs[i].size > 8) print_rates("  memcpy of one thread", copies, runs[i].size);
  }
  end_close(&e);
  if (!sends) return 0;
  int status = 1;
  waitpid(pid, &status, 0);
  many_connections();
  return status ? 1 : 0;
}
