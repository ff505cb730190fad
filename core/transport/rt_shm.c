/* SPDX-License-Identifier: Apache-2.0
 *
 * SHM: two ranks of one host share a segment that the receiver makes: counters,
 * slots, buffers. Their programs or kernels use it directly; no proxy. P2P has such a segment, too.
 *
 * The segment is a memfd that the sender opens through /proc/PID/fd/N: it has no
 * name, so a killed rank leaves nothing behind in /dev/shm.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "core/comm/rt_comm.h"
#include "core/comm/rt_param.h"
#include "core/transport/rt_shm.h"

#define SHM_MAGIC 0x7261696c73686d32ull

static size_t header_size(void) { return RAIL_ROUND_UP(sizeof(struct rt_shm_segment), RT_PAGE); }

static size_t segment_size(void) {
  const struct rt_params *p = rt_params();
  return header_size() + rt_slots_size(p->buffsize) + rt_slots_size(p->ll_buffsize);
}

bool rt_shm_can_connect(const struct rt_peer *a, const struct rt_peer *b) {
  return a->host_hash == b->host_hash && a->pid_ns == b->pid_ns && !a->shm_disable && !b->shm_disable;
}

static void bind_conn(struct rt_connector *c, struct rt_shm_segment *seg) {
  const struct rt_params *p = rt_params();
  struct rt_conn *conn = &c->conn;
  conn->buff[RT_SIMPLE] = (char *)seg + header_size();
  conn->slot_size[RT_SIMPLE] = rt_slot_size(p->buffsize);
  conn->buff[RT_LL] = conn->buff[RT_SIMPLE] + rt_slots_size(p->buffsize);
  conn->slot_size[RT_LL] = rt_slot_size(p->ll_buffsize);
  /* A step of the one is gone when one of the other comes: the slot is free then. */
  conn->buff[RD_LL128] = conn->buff[RT_SIMPLE];
  conn->slot_size[RD_LL128] = rt_ll128_slot_size(p->buffsize);
  conn->flags = RT_CONN_TORN;
  conn->slot = seg->slot;
  conn->tail = &seg->tail;
  conn->credit = &seg->credit;
  conn->granted = RT_STEPS;
}

static void *map_segment(int fd, size_t size) {
  void *mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return mem == MAP_FAILED ? NULL : mem;
}

static struct rt_shm_end *new_end(struct rt_connector *c, size_t res_size) {
  struct rt_shm_end *end = c->res = calloc(1, res_size);
  if (end) end->fd = -1;
  return end;
}

rail_result_t rt_shm_recv_setup(struct ncclComm *comm, struct rt_connector *c, struct rt_connect_record *mine,
                                size_t res_size) {
  struct rt_shm_end *res = new_end(c, res_size);
  if (!res) return RAIL_SYSTEM_ERROR;
  res->size = segment_size();
  res->fd = memfd_create("railyard", MFD_CLOEXEC);
  if (res->fd < 0 || ftruncate(res->fd, (off_t)res->size) < 0) goto fail;
  res->segment = map_segment(res->fd, res->size);
  if (!res->segment) goto fail;
  c->host_bytes = res->size;
  res->segment->size = res->size;
  res->segment->credit = RT_STEPS;
  __atomic_store_n(&res->segment->magic, SHM_MAGIC, __ATOMIC_RELEASE);
  bind_conn(c, res->segment);
  struct rt_shm_record r = {.pid = getpid(), .fd = res->fd, .size = res->size};
  memcpy(mine->body, &r, sizeof r);
  return RAIL_OK;
fail:
  RAIL_WARN(
      "SHM: rank %d cannot make a segment of %zu bytes for messages from rank %d: %s; raise the memory limit, lower "
      "NCCL_BUFFSIZE, or set NCCL_SHM_DISABLE=1",
      comm->rank, res->size, c->peer, strerror(errno));
  return RAIL_SYSTEM_ERROR;
}

rail_result_t rt_shm_recv_connect(struct rt_connector *c) {
  struct rt_shm_end *res = c->res;
  if (!__atomic_load_n(&res->segment->attached, __ATOMIC_ACQUIRE)) return RAIL_IN_PROGRESS;
  if (res->fd >= 0) close(res->fd);
  res->fd = -1;
  return RAIL_OK;
}

rail_result_t rt_shm_send_setup(struct rt_connector *c, size_t res_size) {
  return new_end(c, res_size) ? RAIL_OK : RAIL_SYSTEM_ERROR;
}

rail_result_t rt_shm_send_connect(struct ncclComm *comm, struct rt_connector *c,
                                  const struct rt_connect_record *theirs) {
  struct rt_shm_end *res = c->res;
  if (res->segment) return RAIL_OK;
  struct rt_shm_record r;
  struct stat st;
  memcpy(&r, theirs->body, sizeof r);
  char path[64];
  snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)r.pid, (long long)r.fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &st) < 0) goto fail;
  if (r.size != segment_size() || (uint64_t)st.st_size != r.size) {
    errno = EPROTO;
    goto fail;
  }
  res->size = (size_t)r.size;
  res->segment = map_segment(fd, res->size);
  if (!res->segment) goto fail;
  close(fd);
  fd = -1;
  if (__atomic_load_n(&res->segment->magic, __ATOMIC_ACQUIRE) != SHM_MAGIC) {
    errno = EPROTO;
    goto fail;
  }
  bind_conn(c, res->segment);
  return RAIL_OK;
fail:
  RAIL_WARN(
      "SHM: rank %d cannot map the segment %s of rank %d (process %lld): %s; ranks of one host must run as one user, "
      "or set NCCL_SHM_DISABLE=1",
      comm->rank, path, c->peer, (long long)r.pid, strerror(errno));
  if (fd >= 0) close(fd);
  return RAIL_SYSTEM_ERROR;
}

void rt_shm_attached(struct rt_connector *c) {
  const struct rt_shm_end *res = c->res;
  __atomic_store_n(&res->segment->attached, 1, __ATOMIC_RELEASE);
}

void rt_shm_leave(struct rt_connector *c) {
  const struct rt_shm_end *res = c->res;
  if (res && res->segment) __atomic_store_n(&res->segment->left[c->is_send], 1, __ATOMIC_SEQ_CST);
}

void rt_shm_free(struct rt_connector *c, bool kept) {
  struct rt_shm_end *res = c->res;
  if (!res) return;
  if (res->segment && !kept) munmap(res->segment, res->size);
  if (res->fd >= 0) close(res->fd);
  free(res);
  c->res = NULL;
}

bool rt_shm_peer_left(const struct rt_connector *c) {
  const struct rt_shm_end *res = c->res;
  return __atomic_load_n(&res->segment->left[!c->is_send], __ATOMIC_ACQUIRE) != 0;
}

int rt_shm_ranges(const struct rt_connector *c, struct rt_range *out) {
  const struct rt_shm_end *res = c->res;
  out[0] = (struct rt_range){res->segment, RAIL_ROUND_UP(res->size, (size_t)RT_PAGE)};
  return 1;
}

/* ---- the transport --------------------------------------------------------------------- */

static rail_result_t recv_setup(struct ncclComm *comm, struct rt_connector *c, struct rt_connect_record *mine) {
  return rt_shm_recv_setup(comm, c, mine, sizeof(struct rt_shm_end));
}

static rail_result_t recv_connect(struct ncclComm *comm, struct rt_connector *c,
                                  const struct rt_connect_record *theirs) {
  (void)comm, (void)theirs;
  return rt_shm_recv_connect(c);
}

static rail_result_t send_setup(struct ncclComm *comm, struct rt_connector *c, struct rt_connect_record *mine) {
  (void)comm, (void)mine;
  return rt_shm_send_setup(c, sizeof(struct rt_shm_end));
}

static rail_result_t send_connect(struct ncclComm *comm, struct rt_connector *c,
                                  const struct rt_connect_record *theirs) {
  RAIL_TRY(rt_shm_send_connect(comm, c, theirs));
  rt_shm_attached(c);
  return RAIL_OK;
}

static void shm_free(struct ncclComm *comm, struct rt_connector *c) {
  (void)comm;
  rt_shm_leave(c);
  rt_shm_free(c, false);
}

const struct rt_transport rt_shm_transport = {
    .name = "SHM",
    .can_connect = rt_shm_can_connect,
    .send = {.setup = send_setup,
             .connect = send_connect,
             .free = shm_free,
             .peer_left = rt_shm_peer_left,
             .ranges = rt_shm_ranges},
    .recv = {.setup = recv_setup,
             .connect = recv_connect,
             .free = shm_free,
             .peer_left = rt_shm_peer_left,
             .ranges = rt_shm_ranges},
};
