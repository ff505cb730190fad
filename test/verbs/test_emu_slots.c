/* SPDX-License-Identifier: Apache-2.0
 * The files of processes over the emulated device: slots that are taken anew, a file system that is full, a packet of
 * a peer that means no good. */
#include <limits.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "test/verbs/processes.h"

/* Its receive was posted before the sender knew of it. */
static void answer_a_datagram(int fd, struct end *e, struct end *peer) {
  struct ibv_ah *ah = path_to(e, peer);
  receive(e, 1, 0, 4096);
  swap_ready(fd);
  CHECK_COMPLETION(e, 1, IBV_WC_SUCCESS);
  send_datagram(e, ah, peer->qp->qp_num, 2, 100);
  CHECK_COMPLETION(e, 2, IBV_WC_SUCCESS);
  CHECK_OK(ibv_destroy_ah(ah));
  until_told(fd, e, peer);
}

static void wait_to_be_told(int fd, struct end *e, struct end *peer) {
  char c;
  struct shape s = USUAL_SHAPE;
  s.type = IBV_QPT_UD;
  hear(fd, &c, 1);
  connect_over(fd, e, peer, &s);
  answer_a_datagram(fd, e, peer);
}

/* Names that nobody can take or remove, of all slots but those of two processes at a time. */
static void take_slots(void) {
  char path[600];
  for (unsigned int slot = 2; slot < 2048; slot++) {
    snprintf(path, sizeof path, "%s/rail-emu.%u.%u", folder, (unsigned int)geteuid(), slot);
    CHECK_OK(symlink("nowhere", path));
  }
}

/* As processes of containers, whose numbers are the same: one after the other, ended or killed. */
TEST(datagrams_of_processes_in_one_slot) {
  enum { ROUNDS = 4 };
  struct shape s = USUAL_SHAPE;
  struct other others[ROUNDS];
  struct end e, peer;
  uint32_t slot = 0;
  s.type = IBV_QPT_UD;
  for (int i = 0; i < ROUNDS; i++) others[i] = start(wait_to_be_told, NULL);
  take_slots();
  end_open(&e, 0);
  end_make_qp(&e, &s);
  to_init(&e, &s);
  to_rtr(&e, &e, &s);
  to_rts(&e, &s);
  for (unsigned int i = 0; i < ROUNDS; i++) {
    say(others[i].fd, "g", 1);
    swap_hellos(others[i].fd, &e, &peer);
    swap_ready(others[i].fd); /* its queue pair is ready; then its receive */
    swap_ready(others[i].fd);
    if (i) CHECK_INT(peer.qp->qp_num >> 13, slot);
    slot = peer.qp->qp_num >> 13;
    struct ibv_ah *ah = path_to(&e, &peer);
    receive(&e, 2 * i, 0, 4096);
    send_datagram(&e, ah, peer.qp->qp_num, 2 * i + 1, 100);
    CHECK_COMPLETION(&e, 2 * i + 1, IBV_WC_SUCCESS);
    CHECK_COMPLETION(&e, 2 * i, IBV_WC_SUCCESS);
    CHECK_OK(ibv_destroy_ah(ah));
    if (i % 2) join_other(&others[i]);
    else kill_other(&others[i]);
  }
  end_close(&e);
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

/* Its packet, a write of no byte, becomes one with an operation that there is not. 8 and 64: where the header has the
 * receiver's number and what an atomic would write. */
static void forge_an_operation(int fd, struct end *e, struct end *peer) {
  char path[600];
  struct stat st;
  snprintf(path, sizeof path, "%s/rail-emu.%u.%u", folder, (unsigned int)geteuid(), e->qp->qp_num >> 13);
  int own = open(path, O_RDWR | O_CLOEXEC);
  send_work(e, peer, IBV_WR_RDMA_WRITE, 1, 0, 0);
  CHECK(own >= 0 && fstat(own, &st) == 0);
  char *all = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
  CHECK(all != MAP_FAILED);
  const uint64_t value = 77;
  bool found = false;
  for (char *p = all + 65536; p < all + st.st_size - 128 && !found; p += 16) {
    found = memcmp(p + 8, &peer->qp->qp_num, 4) == 0;
    if (!found) continue;
    p[4] = 99;
    memcpy(p + 64, &value, sizeof value);
  }
  CHECK(found);
  swap_ready(fd);
  until_told(fd, e, peer);
}

TEST(an_operation_that_there_is_not) {
  struct shape s = USUAL_SHAPE;
  struct other o = start(forge_an_operation, &s);
  struct end e, peer;
  end_open(&e, 0);
  CHECK(emu_command("progress poll"));
  end_make_qp(&e, &s);
  swap_hellos(o.fd, &e, &peer);
  to_init(&e, &s);
  to_rtr(&e, &peer, &s);
  to_rts(&e, &s);
  swap_ready(o.fd);
  swap_ready(o.fd); /* the packet is forged */
  struct ibv_wc wc;
  CHECK_INT(ibv_poll_cq(e.cq, 1, &wc), 0);
  CHECK_INT(*(uint64_t *)(void *)e.data, 0);
  kill_other(&o);
  CHECK(emu_command("progress thread"));
  end_close(&e);
}

static const struct tap_case cases[] = {TEST_CASE(datagrams_of_processes_in_one_slot),
                                        TEST_CASE(a_full_file_system_is_no_crash),
                                        TEST_CASE(an_operation_that_there_is_not)};

int main(int argc, char **argv) { return processes_main(argc, argv, cases, sizeof cases / sizeof cases[0]); }
