/* SPDX-License-Identifier: Apache-2.0
 * Registrations of a connection: what is refused and how, handles that requests still refer to, two threads. */
#include <pthread.h>
#include <sys/mman.h>

#include "plugin/ib/ib_comm.h"
#include "test/unit/ib_rig.h"

static char memory[8 * 4096] RAIL_ALIGNED(4096);
static struct ib_hca *hca;

TEST(register_and_back) {
  void *handle, *again;
  long before = emu_live("mr");
  struct ib_comm *comm = rig_comm(false, RIG_WATCHED, 2, NULL);
  long with_comm = emu_live("mr");
  CHECK_OK(ib_reg_mr(comm, memory + 10, 100, RAIL_PTR_HOST, &handle));
  CHECK_OK(ib_reg_mr(comm, memory + 20, 50, RAIL_PTR_HOST, &again));
  const struct ib_mhandle *h = handle, *a = again;
  CHECK(h != a && h->lkeys[0] && h->lkeys[0] == a->lkeys[0] && h->rkeys[0] == a->rkeys[0]);
  CHECK_INT(h->memory.size, 100);
  CHECK_INT(h->memory.type, RAIL_PTR_HOST);
  CHECK_INT(emu_live("mr"), with_comm + 1);
  CHECK_INT(rail_stats_get(&comm->rails[0].port->stats[IB_DEVICE_REGISTERED]), 1);
  CHECK_OK(ib_dereg_mr(comm, handle));
  CHECK_INT(emu_live("mr"), with_comm + 1);
  CHECK_OK(ib_dereg_mr(comm, again));
  CHECK_INT(emu_live("mr"), with_comm);
  CHECK_INT(rail_stats_get(&comm->rails[0].port->stats[IB_DEVICE_REGISTERED]), 0);
  CHECK_OK(ib_dereg_mr(comm, NULL));
  CHECK_OK(ib_reg_mr(comm, memory, 0, RAIL_PTR_HOST, &handle)); /* nothing to register */
  CHECK(handle && emu_live("mr") == with_comm);
  CHECK_OK(ib_reg_mr(comm, memory, 4096, RAIL_PTR_HOST, &handle));
  ib_comm_destroy(comm); /* takes the last two handles along */
  CHECK_INT(emu_live("mr"), before);
}

/* Two rails of two HCAs: what the first has registered goes when the second cannot. */
TEST(a_later_rail_that_cannot) {
  void *handle = NULL;
  long before = emu_live("mr");
  struct ib_comm *comm = rig_comm(false, RIG_WATCHED, 1, NULL);
  long with_comm = emu_live("mr");
  comm->rails[1] = (struct ib_rail){.port = ib_device_at(1, "test")->rails[0]};
  comm->nrails = 2;
  emu_do("fail reg_mr from=2");
  CHECK_INT(ib_reg_mr(comm, memory, 100, RAIL_PTR_HOST, &handle), RAIL_SYSTEM_ERROR);
  CHECK(!handle && LIST_EMPTY(&comm->mhandles));
  CHECK_INT(emu_live("mr"), with_comm);
  emu_do("reset");
  CHECK_OK(ib_reg_mr(comm, memory, 100, RAIL_PTR_HOST, &handle));
  CHECK_INT(emu_live("mr"), with_comm + 2);
  CHECK_OK(ib_dereg_mr(comm, handle));
  comm->nrails = 1;
  ib_comm_destroy(comm);
  CHECK_INT(emu_live("mr"), before);
}

static void refused(struct ib_comm *comm, void *data, size_t size, int type, int result, const char *words) {
  void *handle = NULL;
  log_forget();
  CHECK_INT(ib_reg_mr(comm, data, size, type, &handle), result);
  CHECK(!handle && LIST_EMPTY(&comm->mhandles));
  CHECK_INT(log_warnings(), 1);
  CHECK_MSG(log_said(words), "it says \"%s\", not \"%s\"", log_lines, words);
}

TEST(what_is_refused) {
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, NULL), *other = rig_comm(true, RIG_WATCHED, 1, NULL);
  void *handle = NULL;
  bool had = hca->gpu_direct;
  hca->gpu_direct = false;
  refused(comm, memory, 100, 0, RAIL_BAD_ARGUMENT, "pointer type 0");
  refused(comm, memory, 100, 3, RAIL_BAD_ARGUMENT, "pointer type 3");
  refused(comm, memory, 100, RAIL_PTR_DMABUF, RAIL_BAD_ARGUMENT, "file descriptor");
  refused(comm, NULL, 100, RAIL_PTR_HOST, RAIL_BAD_ARGUMENT, "NULL with size 100");
  refused(comm, memory, 100, RAIL_PTR_CUDA, RAIL_SYSTEM_ERROR, "peer memory");
  hca->gpu_direct = had;
  log_forget();
  CHECK_INT(ib_reg_mr(NULL, memory, 100, RAIL_PTR_HOST, &handle), RAIL_BAD_ARGUMENT);
  CHECK_INT(ib_reg_mr(memory, memory, 100, RAIL_PTR_HOST, &handle), RAIL_BAD_ARGUMENT);
  CHECK_INT(ib_reg_mr_dmabuf(comm, memory, 100, RAIL_PTR_CUDA, 0, -1, &handle), RAIL_BAD_ARGUMENT);
  CHECK(!handle);
  CHECK_OK(ib_reg_mr(comm, memory, 100, RAIL_PTR_HOST, &handle));
  CHECK_INT(ib_dereg_mr(other, handle), RAIL_BAD_ARGUMENT);
  CHECK_INT(log_warnings(), 4);
  emu_do("fail reg_mr from=1");
  void *second = NULL;
  CHECK_INT(ib_reg_mr(comm, memory + 8192, 100, RAIL_PTR_HOST, &second), RAIL_SYSTEM_ERROR);
  CHECK(!second && LIST_FIRST(&comm->mhandles) == handle);
  CHECK_OK(ib_dereg_mr(comm, handle));
  ib_comm_destroy(comm);
  ib_comm_destroy(other);
}

TEST(dma_bufs) {
  struct ib_comm *comm = rig_comm(false, RIG_WATCHED, 1, NULL);
  int fd = memfd_create("buffer", MFD_CLOEXEC);
  void *handle, *again;
  bool had = hca->dmabuf;
  CHECK_OK(ftruncate(fd, sizeof memory));
  CHECK_OK(ib_reg_mr_dmabuf(comm, memory, 4096, RAIL_PTR_CUDA, 0, fd, &handle));
  close(dup(fd)); /* NCCL closes its descriptor after the call; the next one is another */
  CHECK_OK(ib_reg_mr_dmabuf(comm, memory, 4096, RAIL_PTR_CUDA, 0, fd, &again));
  CHECK_INT(((struct ib_mhandle *)handle)->rkeys[0], ((struct ib_mhandle *)again)->rkeys[0]);
  close(fd);
  CHECK_OK(ib_dereg_mr(comm, handle));
  CHECK_OK(ib_dereg_mr(comm, again));
  hca->dmabuf = false;
  handle = NULL;
  log_forget();
  CHECK_INT(ib_reg_mr_dmabuf(comm, memory, 4096, RAIL_PTR_CUDA, 0, 0, &handle), RAIL_SYSTEM_ERROR);
  CHECK(!handle && log_said("dma-buf"));
  hca->dmabuf = had;
  ib_comm_destroy(comm);
}

static void host_memory_only(struct ib_comm *comm, int fd, const char *words) {
  void *handle = NULL;
  refused(comm, memory, 100, RAIL_PTR_CUDA, RAIL_SYSTEM_ERROR, words);
  for (int type = RAIL_PTR_HOST; type <= RAIL_PTR_DMABUF; type *= 2) {
    log_forget();
    CHECK_INT(ib_reg_mr_dmabuf(comm, memory, 4096, type, 0, fd, &handle), RAIL_SYSTEM_ERROR);
    CHECK(!handle && log_said(words));
  }
  CHECK_OK(ib_reg_mr(comm, memory, 100, RAIL_PTR_HOST, &handle));
  CHECK_OK(ib_dereg_mr(comm, handle));
}

TEST(no_gpu_memory_by_send_or_over_iwarp) {
  struct ib_comm *comm = rig_comm(false, RIG_WATCHED, 1, NULL);
  struct ib_port *port = comm->rails[0].port;
  int fd = memfd_create("buffer", MFD_CLOEXEC);
  bool had = hca->gpu_direct;
  hca->gpu_direct = true;
  CHECK_OK(ftruncate(fd, sizeof memory));
  comm->plan.two_sided = true;
  host_memory_only(comm, fd, "RAIL_IB_PROTOCOL=send");
  comm->plan.two_sided = false;
  port->iwarp = true;
  host_memory_only(comm, fd, "iWARP");
  port->iwarp = false;
  hca->gpu_direct = had;
  close(fd);
  ib_comm_destroy(comm);
}

/* A receiver's HCA may have a packet in hand: deregMr waits until it is through. Here no receive is there to say so. */
TEST(deregister_waits_for_the_hca) {
  void *handle = NULL;
  struct ib_comm *comm = rig_comm(false, RIG_WATCHED, 2, NULL);
  CHECK_OK(ib_reg_mr(comm, memory, 4096, RAIL_PTR_HOST, &handle));
  struct ib_mhandle *h = handle;
  atomic_store(&h->memory.outstanding, 1);
  uint64_t began = rail_now_ns();
  CHECK_OK(ib_dereg_mr(comm, handle));
  CHECK(rail_now_ns() - began >= 1000000000);
  atomic_store(&h->memory.outstanding, 0);
  ib_comm_destroy(comm);
}

/* After deregMr nobody touches the range; a request that is done and not yet tested may still look at the handle. */
TEST(deregister_with_requests_outstanding) {
  int peer;
  char word[32];
  void *handle, *fresh;
  long before = emu_live("mr");
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 2, &peer);
  CHECK_OK(ib_reg_mr(comm, memory, 4096, RAIL_PTR_HOST, &handle));
  struct ib_mhandle *h = handle;
  atomic_store(&h->memory.outstanding, 1);
  long with_handle = emu_live("mr");
  CHECK_OK(ib_dereg_mr(comm, handle));
  CHECK(atomic_load(&comm->stopped));
  for (int i = 0; i < 2; i++) {
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK_OK(ib_verbs.query_qp(comm->qps[i].qp, &attr, IBV_QP_STATE, &init));
    CHECK_INT(attr.qp_state, IBV_QPS_ERR);
  }
  /* A stopped QP may hold the registration: it goes with the connection, and serves nobody else. */
  struct ib_comm *other = rig_comm(false, RIG_WATCHED, 1, NULL);
  long with_other = emu_live("mr");
  CHECK_OK(ib_reg_mr(other, memory, 4096, RAIL_PTR_HOST, &fresh));
  CHECK_INT(emu_live("mr"), with_other + 1);
  ib_comm_destroy(other);
  CHECK_INT(emu_live("mr"), with_handle);
  CHECK_INT(atomic_load(&h->memory.outstanding), 1); /* it is still there */
  CHECK_INT(read(peer, word, sizeof word), sizeof word); /* goodbye */
  CHECK_INT(ib_dereg_mr(comm, handle), RAIL_BAD_ARGUMENT); /* but no handle any more */
  atomic_store(&h->memory.outstanding, 0);
  ib_comm_destroy(comm);
  CHECK_INT(emu_live("mr"), before);
  close(peer);
}

static void *in_a_thread(void *comm) {
  for (int i = 0; i < 2000; i++) {
    void *handles[3];
    for (int k = 0; k < 3; k++)
      if (ib_reg_mr(comm, memory + 4096 * (i + k) % 7, 4096, RAIL_PTR_HOST, &handles[k]) != RAIL_OK) return comm;
    for (int k = 0; k < 3; k++)
      if (ib_dereg_mr(comm, handles[k]) != RAIL_OK) return comm;
  }
  return NULL;
}

TEST(two_threads_on_one_comm) {
  pthread_t threads[2];
  void *failed;
  long before = emu_live("mr");
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, NULL);
  for (int i = 0; i < 2; i++) CHECK_OK(pthread_create(&threads[i], NULL, in_a_thread, comm));
  for (int i = 0; i < 2; i++) {
    CHECK_OK(pthread_join(threads[i], &failed));
    CHECK(!failed);
  }
  CHECK(LIST_EMPTY(&comm->mhandles));
  ib_comm_destroy(comm);
  CHECK_INT(emu_live("mr"), before);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(register_and_back),
    TEST_CASE(a_later_rail_that_cannot),
    TEST_CASE(what_is_refused),
    TEST_CASE(dma_bufs), TEST_CASE(no_gpu_memory_by_send_or_over_iwarp),
    TEST_CASE(deregister_with_requests_outstanding),
    TEST_CASE(deregister_waits_for_the_hca),
    TEST_CASE(two_threads_on_one_comm),
  };
  rig_use(NULL);
  hca = ib_device_at(0, "test")->rails[0]->hca;
  return rig_main_watched(argc, argv, cases, RAIL_COUNT_OF(cases));
}
