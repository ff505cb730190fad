/* SPDX-License-Identifier: Apache-2.0
 *
 * libfakeverbs.so: a libibverbs of its own, chosen by NCCL_IBVERBS_LIB, for
 * tests of error paths without a device. RC QPs of one process reach each other;
 * data is copied when it is posted, or when somebody polls. It is stricter than
 * most hardware: keys, ranges, access flags, states, masks and addresses are
 * checked, send and receive queues have their size, and a place in a send queue
 * is free again only when a completion at or behind it has been polled.
 *
 * What there is and what goes wrong is said by a script: in FAKEVERBS, in the file
 * that FAKEVERBS=@FILE names, and later through fakeverbs_script() (below).
 * Statements end at ';' or a line's end; '#' begins a comment.
 *
 *   device NAME [key=value...]        a device; without any there are fake0 and fake1
 *   empty                             there is no device at all
 *       ports=N (1)  guid=HEX  vendor=HEX  max_qp=N  max_qp_wr=N  inline=BYTES (256)
 *       cq_size=N (overrides what is asked for)  transport=N (enum ibv_transport_type; 0: InfiniBand and RoCE)
 *       dmabuf=0|1 (1; any fd that can be mapped is one)  ece=0|1 (1)
 *       and all keys of `port`, for each of its ports
 *   port NAME NUMBER key=value...     changes one; a new state also sends its event
 *       state=active|down|init|armed  link=eth|ib  mtu=1..5 (5)  lid=N  subnet=HEX (IB)  grh=0|1  max_msg=BYTES
 *       packet=BYTES (what its network carries at most: larger packets are lost)
 *       speed=CODE width=CODE (EDR 4x)  gids=none (empties the table)
 *   gid NAME PORT INDEX ADDRESS|none [type=ib|v1|v2] [ifindex=N]
 *       unless `gids=none`: Ethernet has fe80::... and 10.77.DEVICE.PORT, each as v1 and v2 (0 to 3); IB has fe80::GUID
 *   gid_table 0|1                     0: ibv_query_gid_table fails, so types come from sysfs ($SYSFS_PATH)
 *   fail CALL [from=N] [times=N|ever] [errno=NAME] [to=init|rtr|rts|err|reset]
 *       the N-th call from now on (1) fails so often (1) with that (ENOMEM; modify_qp: ETIMEDOUT). CALL:
 *       get_device_list open_device query_device query_port query_gid alloc_pd reg_mr reg_dmabuf_mr create_cq create_qp
 *       modify_qp query_qp post_send post_recv poll_cq fork_init query_ece set_ece
 *   complete STATUS [op=write|imm|read|recv|any] [from=N] [times=N|ever] [vendor=HEX]
 *       (any: all but recv, which is the completion at the receiver's)
 *       the N-th work request from now on completes with it (retry_exc_err, rem_access_err, ... as in enum
 *       ibv_wc_status, small, without IBV_WC_); nothing is moved, and its QP goes to ERR
 *   stall [op=...] [from=N]           it never completes, nor what is posted behind it
 *   twist xor=HEX [from=N] [times=N|ever]   changes the immediate of the N-th write with immediate
 *   progress post|poll [burst=N] [skip=SEED]   data moves when it is posted (default); or when its sender's CQ is
 *                                     polled, at most N requests of each QP a call; with skip about half of the QPs are
 *                                     passed over each time
 *   event NAME KIND [port=N] [qp=NUMBER]   an asynchronous event: device_fatal port_active port_err lid_change
 *       gid_change pkey_change sm_change client_reregister qp_fatal qp_req_err qp_access_err comm_est path_mig cq_err
 *       (of that QP's send CQ). qp absent: the last one made
 *   events deliver|hold|lose          later ones come as ever (and those held come now), wait, or are lost
 *   reset                             forgets all faults; devices stay
 *
 * While a port is down its QPs hold what is posted. A QP whose peer is gone, in ERR, elsewhere connected or at another
 * address completes with retry_exc_err at once. A CQ that is full when a completion comes is lost: IBV_EVENT_CQ_ERR.
 *
 * For tests in the same process, by dlsym on the library (dlopen it with RTLD_NOLOAD):
 *   int fakeverbs_script(const char *text);           0, or -1 after a line on stderr
 *   long fakeverbs_live(const char *kind);            how many there are: context pd mr cq qp
 *   long fakeverbs_calls(const char *call);           how often it was called (the names of `fail`)
 */
#ifndef FV_H
#define FV_H

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#undef ibv_reg_mr
#undef ibv_query_port
#undef ibv_get_device_list

enum { FV_DEVICES = 16, FV_PORTS = 4, FV_GIDS = 64, FV_SGES = 4, FV_EVENTS = 64, FV_INLINE_MOST = 4096 };

struct fv_gid {
  union ibv_gid gid;
  bool valid;
  uint32_t type, ifindex;
};

struct fv_port {
  enum ibv_port_state state;
  bool ib, grh;
  uint8_t mtu, speed, width;
  uint16_t lid;
  uint32_t max_msg, packet;
  uint64_t subnet;
  struct fv_gid gids[FV_GIDS];
};

struct fv_device {
  struct ibv_device ibv; /* first: what callers hold */
  unsigned int index, nports;
  uint64_t guid;
  uint32_t vendor;
  int max_qp, max_qp_wr, max_inline, cq_size;
  bool dmabuf, ece;
  struct fv_port ports[FV_PORTS];
  struct fv_context *contexts;
};

struct fv_context {
  struct ibv_context ibv;
  struct fv_device *device;
  struct fv_context *next;
  int event_out; /* the other end of async_fd */
};

struct fv_mr {
  struct ibv_mr ibv;
  struct fv_mr *next;
  uint64_t iova;
  char *memory; /* what iova stands for */
  void *mapped; /* of a dma-buf */
  size_t mapped_size;
  unsigned int access;
};

struct fv_cqe {
  struct ibv_wc wc;
  uint64_t place; /* in its queue: it and all before are free when this was polled */
  bool recv;
};

struct fv_cq {
  struct ibv_cq ibv;
  struct fv_cq *next;
  struct fv_cqe *ring;
  uint32_t cap, head, count;
  unsigned int users; /* QPs */
  unsigned int events; /* given out and not acknowledged */
  bool overrun;
};

struct fv_wr {
  uint64_t wr_id, remote_addr;
  enum ibv_wr_opcode opcode;
  unsigned int flags;
  uint32_t imm, rkey, twist;
  int nsge;
  bool counted; /* by the script's faults */
  struct ibv_sge sge[FV_SGES];
  char *copy; /* inline data */
};

struct fv_queue {
  uint32_t cap;
  uint64_t posted, run, free; /* counts: posted, carried out, and given back by a polled completion */
};

struct fv_qp {
  struct ibv_qp ibv;
  struct fv_qp *next;
  struct fv_queue sq, rq;
  struct fv_wr *sends;
  uint64_t *recvs;
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  unsigned int events;
  bool stalled;
};

/* Everything, under one lock. */
extern struct fv_state {
  pthread_mutex_t lock;
  pthread_cond_t acked;
  unsigned int ndevices;
  struct fv_device devices[FV_DEVICES];
  struct fv_mr *mrs;
  struct fv_qp *qps, *last_qp;
  struct fv_cq *cqs;
  long contexts, pds;
  uint32_t numbers; /* of QPs and keys */
  bool poll_mode, no_gid_table;
  unsigned int burst;
  uint64_t skip; /* 0: none is */
} fv;

/* fv_script.c */
void fv_load(void); /* once */
/* Counts the call; 0, or the errno that it is to fail with. */
int fv_fault(const char *call, int to_state);
struct fv_verdict {
  bool stall;
  enum ibv_wc_status status;
  uint32_t vendor, twist;
};
struct fv_verdict fv_judge(const char *op);

/* fv_device.c */
struct fv_device *fv_device_named(const char *name);
void fv_default_gids(struct fv_device *device, unsigned int port);
/* fv_event.c */
void fv_raise(struct fv_device *device, const struct ibv_async_event *event);
enum fv_delivery { FV_DELIVER, FV_HOLD, FV_LOSE };
void fv_deliver(enum fv_delivery how);
/* Waits until all events of an object were acknowledged, as the real one does; not for ever. */
void fv_wait_acked(const unsigned int *events);

/* fv_object.c */
struct fv_qp *fv_qp_numbered(uint32_t number);
struct fv_mr *fv_mr_keyed(uint32_t key);

/* fv_data.c */
int fv_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int fv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int fv_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
void fv_flush(struct fv_qp *qp); /* all that is posted completes with an error */
void fv_forget(struct fv_qp *qp); /* its completions vanish, as when a QP is destroyed */

static inline struct fv_device *fv_device_of(struct ibv_context *context) {
  return ((struct fv_context *)(void *)context)->device;
}
static inline struct fv_port *fv_port_of(struct fv_qp *qp) {
  return &fv_device_of(qp->ibv.context)->ports[qp->attr.port_num - 1];
}

#endif
