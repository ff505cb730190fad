/* SPDX-License-Identifier: Apache-2.0
 *
 * A comm: one end of a TCP connection that carries messages one way. A struct tpl_comm is the beginning of a
 * struct tpl_send_comm (tpl_send.c) or a struct tpl_recv_comm (tpl_recv.c).
 *
 * Threads. NCCL calls isend, irecv and test on one thread, regMr and deregMr on another: comm->lock guards
 * everything that both may touch. It is held across the system calls of a step, and deregMr waits for one at most; a
 * plugin that has to be fast lets one thread own the data path, and the other queue requests for it (plugin/socket).
 * The plugin has no thread of its own: a connection makes progress only inside calls.
 */
#ifndef TPL_COMM_H
#define TPL_COMM_H

#include <pthread.h>
#include <sys/queue.h>

#include "common/conn/first_error.h"
#include "common/conn/protocol.h"
#include "common/net/net_ctx.h"
#include "plugin/template/tpl_device.h"
#include "plugin/template/tpl_stats.h"
#include "plugin/template/tpl_wire.h"

#define TPL_STEP_BYTES (512 << 10) /* that one call moves at most: it has to return within a millisecond */

struct tpl_comm {
  uint32_t magic; /* which kind it is, and that it is open */
  const struct tpl_device *device;
  char peer[RAIL_ADDR_TEXT];
  uint64_t *counters; /* by enum tpl_comm_counter, or NULL */
  struct rail_first_error error;

  pthread_mutex_t lock; /* guards all below */
  int fd;               /* -1: the acceptor's welcome is not here yet */
  LIST_HEAD(, tpl_mr) mrs;
};

struct tpl_mr {
  LIST_ENTRY(tpl_mr) link;
  struct tpl_comm *comm;
  unsigned int in_use; /* by transfers that are not done */
};

enum tpl_state {
  TPL_FREE,
  TPL_ACTIVE,
  TPL_COMPLETE, /* and test has not said so */
};

/* The beginning of a struct tpl_send or struct tpl_recv, which lie in their comm. A request is freed by the test that
 * reports it done, in the caller's progress thread, and one that no test has reported done with the comm, by the thread
 * that closes it. */
struct tpl_request {
  struct tpl_comm *comm;
  enum tpl_state state;
};

#define TPL_SEND_MAGIC RAIL_OBJECT_MAGIC(TPL_TAG, 'S')
#define TPL_RECV_MAGIC RAIL_OBJECT_MAGIC(TPL_TAG, 'R')

/* A caller's pointer; NULL, after one line, if it is none of that kind. magic 0: either kind. */
struct tpl_comm *tpl_comm_of(void *arg, uint32_t magic, const char *call);
rail_result_t tpl_comm_init(struct tpl_comm *comm, uint32_t magic, const struct tpl_device *device,
                            const union rail_addr *peer, int fd);
/* Hangs up and frees what tpl_comm_init and regMr made; the comm's own memory is the caller's. */
void tpl_comm_end(struct tpl_comm *comm);

/* Ends the connection. The first error is logged, "send to PEER over DEVICE: ...", and returned by every later call. */
RAIL_PRINTF(3, 4) rail_result_t tpl_fail(struct tpl_comm *comm, rail_result_t result, const char *fmt, ...);
/* The same after a socket call: says what errno means, and what to do. */
rail_result_t tpl_fail_errno(struct tpl_comm *comm, rail_result_t result);

/* A transfer begins and ends to use its memory; mhandle may be NULL, as for messages without bytes. */
static inline void tpl_mr_hold(struct tpl_mr *mr) { if (mr) mr->in_use++; }
static inline void tpl_mr_release(struct tpl_mr *mr) { if (mr) mr->in_use--; }
static inline void tpl_count(struct tpl_comm *comm, enum tpl_comm_counter counter, uint64_t n) {
  if (comm->counters) rail_stats_add(&comm->counters[counter], n);
}

/* ---- the calls of the table, by file ----------------------------------- */

/* tpl_connect.c */
rail_result_t tpl_handshake_load(void); /* RAIL_BAD_USAGE, after one line: no key, so no devices */
rail_result_t tpl_listen(void *ctx, int dev, void *handle, void **listen_comm);
rail_result_t tpl_connect(void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                          struct rail_net_device_handle **dev_handle);
rail_result_t tpl_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);
rail_result_t tpl_close_listen(void *listen_comm);
void tpl_listener_close(struct rail_net_ctx_link *link);
void tpl_connect_drop(void *attempt);

/* tpl_comm.c */
rail_result_t tpl_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle);
rail_result_t tpl_dereg_mr(void *comm, void *mhandle);

/* tpl_send.c */
struct tpl_attempt;
rail_result_t tpl_send_create(const struct tpl_device *device, struct tpl_attempt *attempt, void **send_comm);
rail_result_t tpl_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                        void **request);
rail_result_t tpl_send_progress(struct tpl_comm *comm);
void tpl_send_finish(struct tpl_request *request, int *sizes);
rail_result_t tpl_close_send(void *send_comm);

/* tpl_recv.c */
rail_result_t tpl_recv_create(const struct tpl_device *device, const union rail_addr *peer, int fd, void **recv_comm);
rail_result_t tpl_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                        void **phandles, void **request);
rail_result_t tpl_recv_progress(struct tpl_comm *comm);
void tpl_recv_finish(struct tpl_request *request, int *sizes);
rail_result_t tpl_close_recv(void *recv_comm);

/* tpl_progress.c */
rail_result_t tpl_test(void *request, int *done, int *sizes);

#endif
