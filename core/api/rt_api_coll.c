/* SPDX-License-Identifier: Apache-2.0
 * Public calls that move data: check the arguments, make a task and add it to the group. */
#include <string.h>

#include "common/base/log.h"
#include "core/api/rt_api.h"
#include "core/host/rt_types.h"
#include "core/plan/rt_buffer.h"

enum which_ranks { NONE, ROOT, ALL };

/* A call's arguments, and what can be checked alike for all calls. */
struct call {
  const char *name;
  const void *send;
  void *recv;
  enum which_ranks sends, receives; /* ranks on which the buffer is used */
  size_t count;
  bool per_rank; /* the larger buffer holds count elements for each rank */
  const char *root_name; /* "root" or "peer"; NULL: the call has none */
  bool reduces;  /* the call has an operator */
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;
  cudaStream_t stream;
};

static bool needs(const struct ncclComm *comm, const struct call *c, enum which_ranks which) {
  return c->count && (which == ALL || (which == ROOT && comm->rank == c->root));
}

/* *factor: of an operator that scales by a number which is read when the call runs, else NULL. */
static ncclResult_t check_op(const struct call *c, const struct ncclComm *comm, const void **factor) {
  int i = (int)c->op - ncclNumOps;
  *factor = NULL;
  if ((int)c->op >= 0 && i < 0) return ncclSuccess;
  if (i < 0 || i >= comm->npremuls || !comm->premuls[i].used)
    return rt_error(RAIL_BAD_ARGUMENT, "%s: op is %d; allowed are 0 to %d and operators made for this communicator",
                    c->name, (int)c->op, ncclNumOps - 1);
  const struct rt_premul *m = &comm->premuls[i];
  if (m->type != c->type)
    return rt_error(RAIL_BAD_ARGUMENT, "%s: the operator was made for datatype %s, the call has %s", c->name,
                    rt_type_name((int)m->type), rt_type_name((int)c->type));
  if (m->deferred && c->count) *factor = m->scalar;
  return ncclSuccess;
}

static ncclResult_t check_arguments(const struct call *c, struct ncclComm *comm) {
  ncclResult_t r = rt_check_comm(comm, c->name);
  if (r != ncclSuccess) return r;
  size_t esize = rt_type_size((int)c->type);
  if (esize == 0)
    return rt_error(RAIL_BAD_ARGUMENT, "%s: datatype is %d; allowed are 0 to %d", c->name, (int)c->type,
                    ncclNumTypes - 1);
  if (c->root_name && (c->root < 0 || c->root >= comm->nranks))
    return rt_error(RAIL_BAD_ARGUMENT, "%s: %s is %d; allowed are 0 to %d", c->name, c->root_name, c->root,
                    comm->nranks - 1);
  size_t blocks = c->per_rank ? (size_t)comm->nranks : 1;
  if (c->count > (size_t)PTRDIFF_MAX / esize / blocks)
    return rt_error(RAIL_BAD_ARGUMENT, "%s: count is %zu; %zu blocks of %zu-byte elements do not fit the address space",
                    c->name, c->count, blocks, esize);
  const void *send = needs(comm, c, c->sends) ? c->send : NULL;
  const void *recv = needs(comm, c, c->receives) ? c->recv : NULL;
  if (needs(comm, c, c->sends) && !send)
    return rt_error(RAIL_BAD_ARGUMENT, "%s: sendbuff is NULL with count %zu", c->name, c->count);
  if (needs(comm, c, c->receives) && !recv)
    return rt_error(RAIL_BAD_ARGUMENT, "%s: recvbuff is NULL with count %zu", c->name, c->count);
  const void *factor = NULL;
  if (c->reduces) r = check_op(c, comm, &factor);
  /* Last, since a communicator's first call with data decides which kind of memory it works on. */
  if (r == ncclSuccess) r = rt_buffer_check(comm, c->name, send, recv, c->stream);
  return r == ncclSuccess && factor ? rt_buffer_check_scalar(comm, c->name, factor) : r;
}

/* A wrong call drops the group that it is in. */
static ncclResult_t check(const struct call *c, struct ncclComm *comm) {
  return rt_group_note(check_arguments(c, comm));
}

static ncclResult_t enqueue(struct ncclComm *comm, enum rt_coll coll, const struct call *c) {
  ncclResult_t r = check(c, comm);
  if (r != ncclSuccess) return r;
  struct rt_task t = {.comm = comm,
                      .coll = coll,
                      .send = c->send,
                      .recv = c->recv,
                      .count = c->count,
                      .type = c->type,
                      .op = c->op,
                      .root = c->root,
                      .stream = c->stream};
  if (c->op >= ncclNumOps) t.premul = comm->premuls[c->op - ncclNumOps];
  return rt_group_add(&t);
}

/* ---- collectives ------------------------------------------------------------------------ */

RAIL_EXPORT ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                       ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const struct call c = {.name = "ncclAllReduce", .reduces = true, .op = op, .send = sendbuff, .recv = recvbuff,
                         .sends = ALL, .receives = ALL, .count = count, .type = datatype, .stream = stream};
  return enqueue(comm, RT_ALLREDUCE, &c);
}

RAIL_EXPORT ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                           cudaStream_t stream) {
  const struct call c = {.name = "ncclReduceScatter", .reduces = true, .op = op, .send = sendbuff, .recv = recvbuff,
                         .sends = ALL, .receives = ALL, .count = recvcount, .per_rank = true, .type = datatype,
                         .stream = stream};
  return enqueue(comm, RT_REDUCE_SCATTER, &c);
}

RAIL_EXPORT ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                                       ncclComm_t comm, cudaStream_t stream) {
  const struct call c = {.name = "ncclAllGather", .send = sendbuff, .recv = recvbuff, .sends = ALL, .receives = ALL,
                         .count = sendcount, .per_rank = true, .type = datatype, .stream = stream};
  return enqueue(comm, RT_ALLGATHER, &c);
}

RAIL_EXPORT ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                       int root, ncclComm_t comm, cudaStream_t stream) {
  const struct call c = {.name = "ncclBroadcast", .send = sendbuff, .recv = recvbuff, .sends = ROOT, .receives = ALL,
                         .count = count, .root_name = "root", .type = datatype, .root = root, .stream = stream};
  return enqueue(comm, RT_BROADCAST, &c);
}

RAIL_EXPORT ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                                   cudaStream_t stream) {
  return ncclBroadcast(buff, buff, count, datatype, root, comm, stream);
}

RAIL_EXPORT ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                    ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  const struct call c = {.name = "ncclReduce", .reduces = true, .op = op, .send = sendbuff, .recv = recvbuff,
                         .sends = ALL, .receives = ROOT, .count = count, .root_name = "root", .type = datatype,
                         .root = root, .stream = stream};
  return enqueue(comm, RT_REDUCE, &c);
}

/* ---- point to point, and calls made of it -------------------------------------------------- */

RAIL_EXPORT ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
                                  ncclComm_t comm, cudaStream_t stream) {
  const struct call c = {.name = "ncclSend", .send = sendbuff, .sends = ALL, .count = count, .root_name = "peer",
                         .type = datatype, .root = peer, .stream = stream};
  return enqueue(comm, RT_SEND, &c);
}

RAIL_EXPORT ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                                  cudaStream_t stream) {
  const struct call c = {.name = "ncclRecv", .recv = recvbuff, .receives = ALL, .count = count, .root_name = "peer",
                         .type = datatype, .root = peer, .stream = stream};
  return enqueue(comm, RT_RECV, &c);
}

enum { ALL_RANKS = -1, NO_RANK = -2 };

/* Sends block r of `send` to rank r and receives block r of `recv` from it, for each r that `sends`
 * and `receives` name: a rank, ALL_RANKS or NO_RANK. */
static ncclResult_t exchange(const struct call *c, struct ncclComm *comm, int sends, int receives, bool send_blocks,
                             bool recv_blocks) {
  if (c->count == 0) return ncclSuccess;
  size_t bytes = c->count * rt_type_size((int)c->type);
  ncclResult_t r = ncclSuccess;
  ncclGroupStart();
  /* Each rank starts with itself, so that not all begin with the same peer. */
  for (int i = 0; i < comm->nranks && r == ncclSuccess; i++) {
    int to = (comm->rank + i) % comm->nranks, from = (comm->rank + comm->nranks - i) % comm->nranks;
    struct rt_task send = {.comm = comm, .coll = RT_SEND, .count = c->count, .type = c->type, .root = to};
    struct rt_task recv = {.comm = comm, .coll = RT_RECV, .count = c->count, .type = c->type, .root = from};
    send.stream = recv.stream = c->stream;
    send.send = (const char *)c->send + (send_blocks ? (size_t)to * bytes : 0);
    recv.recv = (char *)c->recv + (recv_blocks ? (size_t)from * bytes : 0);
    if (sends == ALL_RANKS || sends == to) r = rt_group_add(&send);
    if (r == ncclSuccess && (receives == ALL_RANKS || receives == from)) r = rt_group_add(&recv);
  }
  ncclResult_t end = ncclGroupEnd();
  return r == ncclSuccess ? end : r;
}

RAIL_EXPORT ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                      ncclComm_t comm, cudaStream_t stream) {
  const struct call c = {.name = "ncclAlltoAll", .send = sendbuff, .recv = recvbuff, .sends = ALL, .receives = ALL,
                         .count = count, .per_rank = true, .type = datatype, .stream = stream};
  ncclResult_t r = check(&c, comm);
  return r == ncclSuccess ? exchange(&c, comm, ALL_RANKS, ALL_RANKS, true, true) : r;
}

RAIL_EXPORT ncclResult_t ncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                    int root, ncclComm_t comm, cudaStream_t stream) {
  const struct call c = {.name = "ncclGather", .send = sendbuff, .recv = recvbuff, .sends = ALL, .receives = ROOT,
                         .count = count, .per_rank = true, .root_name = "root", .type = datatype, .root = root,
                         .stream = stream};
  ncclResult_t r = check(&c, comm);
  return r == ncclSuccess ? exchange(&c, comm, root, comm->rank == root ? ALL_RANKS : NO_RANK, false, true) : r;
}

RAIL_EXPORT ncclResult_t ncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                     int root, ncclComm_t comm, cudaStream_t stream) {
  const struct call c = {.name = "ncclScatter", .send = sendbuff, .recv = recvbuff, .sends = ROOT, .receives = ALL,
                         .count = count, .per_rank = true, .root_name = "root", .type = datatype, .root = root,
                         .stream = stream};
  ncclResult_t r = check(&c, comm);
  return r == ncclSuccess ? exchange(&c, comm, comm->rank == root ? ALL_RANKS : NO_RANK, root, true, false) : r;
}

RT_PNAME(AllReduce);
RT_PNAME(ReduceScatter);
RT_PNAME(AllGather);
RT_PNAME(Broadcast);
RT_PNAME(Bcast);
RT_PNAME(Reduce);
RT_PNAME(Send);
RT_PNAME(Recv);
RT_PNAME(AlltoAll);
RT_PNAME(Gather);
RT_PNAME(Scatter);
