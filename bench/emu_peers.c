/* SPDX-License-Identifier: Apache-2.0
 * What many peers of one process cost on the emulated device: processes that connect to it at once over the RDMA CM,
 * send a message each and end. make bench-emu; emu_peers N: so many (1000). Figures of one machine, to be compared with
 * each other only. */
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "test/verbs/cm.h"

enum { QUEUE = 16 };

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double resident_kib(void) {
  long pages = 0, ignored;
  FILE *in = fopen("/proc/self/statm", "re");
  if (in && fscanf(in, "%ld %ld", &ignored, &pages) != 2) pages = 0;
  if (in) fclose(in);
  return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1024;
}

/* What the files of all processes take of shared memory. */
static double shared_kib(const char *folder) {
  double kib = 0;
  DIR *dir = opendir(folder);
  for (struct dirent *d; dir && (d = readdir(dir)) != NULL;) {
    struct stat st;
    if (fstatat(dirfd(dir), d->d_name, &st, 0) == 0 && S_ISREG(st.st_mode)) kib += (double)st.st_blocks / 2;
  }
  if (dir) closedir(dir);
  return kib;
}

static void make_qp(struct side *s) {
  struct ibv_qp_init_attr init = {.cap = {QUEUE, QUEUE, 1, 1, 0}, .qp_type = IBV_QPT_RC, .sq_sig_all = 1};
  CHECK_OK(rdma_create_qp(s->id, NULL, &init));
}

/* Waits until all are there, connects, sends, waits until it may end. */
static void be_peer(int go, int end) {
  struct side s;
  uint16_t port;
  char c;
  CHECK(read(go, &port, sizeof port) == sizeof port);
  side_open(&s, RDMA_PS_TCP);
  side_resolve(&s, "10.77.0.1", port);
  make_qp(&s);
  s.mr = ibv_reg_mr(s.id->pd, s.data, sizeof s.data, ALL_ACCESS);
  CHECK(s.mr);
  CHECK_OK(side_connect(&s, NULL));
  expect(s.channel, RDMA_CM_EVENT_ESTABLISHED, 0);
  struct ibv_sge sge = {(uintptr_t)s.data, 8, s.mr->lkey};
  struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
  CHECK_OK(ibv_post_send(s.id->qp, &wr, &bad));
  wait_completion(s.id->send_cq, IBV_WC_SUCCESS);
  CHECK(read(end, &c, 1) == 0);
}

static void start_peers(int n, const int go[2], const int end[2]) {
  fflush(stdout);
  for (int i = 0; i < n; i++) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid) continue;
    close(go[1]);
    close(end[1]);
    if (setjmp(tap_end_) != 0) _exit(1);
    be_peer(go[0], end[0]);
    _exit(0);
  }
  close(go[0]);
  close(end[0]);
}

/* All connect, each sends one message. */
static void serve(struct side *listener, struct side *servers, int n) {
  int connected = 0, accepted = 0, received = 0;
  struct rdma_conn_param p = param_with(NULL);
  while (connected < n) {
    struct rdma_cm_event *event;
    CHECK_OK(rdma_get_cm_event(listener->channel, &event));
    enum rdma_cm_event_type type = event->event;
    CHECK_MSG(type == RDMA_CM_EVENT_CONNECT_REQUEST || type == RDMA_CM_EVENT_ESTABLISHED, "%s, status %d",
              rdma_event_str(type), event->status);
    if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
      struct side *s = &servers[accepted++];
      struct ibv_recv_wr *bad;
      s->id = event->id;
      make_qp(s);
      s->mr = ibv_reg_mr(s->id->pd, s->data, sizeof s->data, ALL_ACCESS);
      CHECK(s->mr);
      struct ibv_sge sge = {(uintptr_t)s->data, sizeof s->data, s->mr->lkey};
      struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1};
      CHECK_OK(ibv_post_recv(s->id->qp, &wr, &bad));
      CHECK_OK(rdma_accept(s->id, &p));
    } else {
      connected++;
    }
    CHECK_OK(rdma_ack_cm_event(event));
  }
  for (; received < accepted; received++) wait_completion(servers[received].id->recv_cq, IBV_WC_SUCCESS);
}

static void many_peers(int n, const char *folder) {
  int go[2], end[2];
  struct side listener;
  CHECK_OK(pipe(go));
  CHECK_OK(pipe(end));
  start_peers(n, go, end);
  struct side *servers = calloc((size_t)n, sizeof *servers);
  CHECK(servers);
  side_open(&listener, RDMA_PS_TCP);
  uint16_t port = side_listen(&listener, "10.77.0.1", 1024);
  double memory = resident_kib(), begin = seconds();
  for (int i = 0; i < n; i++) CHECK(write(go[1], &port, sizeof port) == sizeof port);
  serve(&listener, servers, n);
  double took = seconds() - begin;
  printf("%d processes connect to one at once, and send (%d+%d): %.2f s, %.2f ms each; %.0f KiB of the listener's "
         "memory each, %.0f KiB of shared memory each\n",
         n, QUEUE, QUEUE, took, took * 1000 / n, (resident_kib() - memory) / n, shared_kib(folder) / n);
  close(end[1]);
  for (int i = 0, status; i < n; i++) {
    CHECK(wait(&status) > 0);
    CHECK_INT(status, 0);
  }
  begin = seconds();
  for (int i = 0; i < n; i++) side_close(&servers[i]);
  side_close(&listener);
  printf("… and all are closed: %.2f s\n", seconds() - begin);
  free(servers);
}

int main(int argc, char **argv) {
  static char folder[] = "/dev/shm/emu-peers.XXXXXX";
  int n = argc > 1 ? atoi(argv[1]) : 1000;
  struct rlimit files;
  if (n < 1 || n > 1500 || !mkdtemp(folder)) return 2;
  setenv("RAIL_EMU_DIR", folder, 1);
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
  }
  bool good = setjmp(tap_end_) == 0;
  if (good) many_peers(n, folder);
  DIR *dir = opendir(folder);
  for (struct dirent *d; dir && (d = readdir(dir)) != NULL;) (void)unlinkat(dirfd(dir), d->d_name, 0);
  if (dir) closedir(dir);
  rmdir(folder);
  return good ? 0 : 1;
}
