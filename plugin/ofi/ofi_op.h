/* SPDX-License-Identifier: Apache-2.0
 *
 * One operation: a call of libfabric's that completes later. It is posted by ofi_op_post, and is libfabric's from then
 * until ofi_poll has read its completion, or until the endpoint is shut. What libfabric has no room for (-FI_EAGAIN)
 * waits in its NIC's list, and behind it, not tried, what goes to the same peer; a later poll posts them in order. All
 * under the endpoint's lock.
 */
#ifndef OFI_OP_H
#define OFI_OP_H

#include <sys/queue.h>

#include "plugin/ofi/ofi_fabric.h"

struct ofi_comm;
struct ofi_endpoint;
struct ofi_endpoint_nic;
struct ofi_nic;

/* The order matters: what stands behind TRECV goes out, and completes whether or not the peer sends; comm->noutgoing
 * counts it. */
enum ofi_op_kind {
  OFI_OP_FRAME_IN, /* a receive of a control message; the endpoint's own */
  OFI_OP_PROBE,    /* PING of a connection in use, and PONG */
  OFI_OP_TRECV,
  OFI_OP_PING,     /* of the handshake */
  OFI_OP_REVOKE,   /* and REVOKED */
  OFI_OP_GRANT,
  OFI_OP_ACK,
  OFI_OP_TSEND,
  OFI_OP_EAGER,
  OFI_OP_DATA,
  OFI_OP_WRITE,
  OFI_OP_FIN,
  OFI_OP_TOO_LARGE, /* from the sender */
  OFI_OP_REFUSAL,   /* TOO_LARGE from the receiver, of an EAGER */
  OFI_OP_ASK,
  OFI_OP_FLUSH,
};

/* Where an operation is. */
enum ofi_op_state {
  OFI_OP_IDLE,
  OFI_OP_WAITING, /* in its NIC's list */
  OFI_OP_POSTED,  /* libfabric's */
};

struct ofi_op {
  struct fi_context2 context; /* libfabric's while it is posted */
  enum ofi_op_kind kind;
  enum ofi_op_state state;
  uint8_t path;          /* of the comm */
  struct ofi_endpoint_nic *nic;
  struct ofi_comm *comm; /* NULL: the endpoint's own */
  void *request;         /* of a send's operations, of TRECV and FLUSH: struct ofi_send, ofi_recv, ofi_flush */
  STAILQ_ENTRY(ofi_op) link;
  fi_addr_t to;
  /* A frame, then user memory, which is host memory; or user memory alone. */
  void *head;
  size_t head_size;
  void *head_desc;
  void *data;
  size_t size;
  void *desc;
  uint64_t remote_addr, key; /* WRITE, FLUSH */
  uint64_t tag;              /* TSEND, TRECV */
};
STAILQ_HEAD(ofi_op_list, ofi_op);

/* All that follows is in ofi_op.c.
 *
 * ---- from post to completion ------------------------------------------------ */

/* Posts an operation of a comm, or puts it into its NIC's list. 0: it will complete; or it is over, and idle, where
 * libfabric has taken a copy (fi_inject). Else libfabric's error, and it is idle. */
int ofi_op_post(struct ofi_op *op);

/* Bytes of a frame and its payload that are copied for fi_inject; over tcp, whose own copies have 128. */
#define OFI_MAX_INJECT 4096
#define OFI_MAX_INJECT_TCP 128
/* A message of at most max_inject bytes, without an operation: libfabric takes a copy. False: nothing was sent. There
 * is no room, or an operation waits, perhaps for the same peer; or an error, which ofi_op_post returns. */
bool ofi_op_inject(const struct ofi_endpoint *endpoint, const struct ofi_endpoint_nic *nic, const void *bytes,
                   size_t size, fi_addr_t to);

/* Reads what has completed, posts what waits, has the GRANTs and ACKs sent that are due now. What a completion or a
 * frame means is ofi_progress.c's (struct ofi_endpoint_ops). False: nothing had completed. */
bool ofi_poll(struct ofi_endpoint *endpoint);
/* The same for who is no caller, the watch thread or the end of the endpoint: what is due later is sent, too. */
bool ofi_poll_background(struct ofi_endpoint *endpoint);

/* One that waits is idle afterwards; of one that is posted the provider is asked to end it, which its completion says.
 * 0, or libfabric's error: it goes on. */
int ofi_op_cancel(struct ofi_op *op);

/* ---- the endpoint's own: its receives, its end ------------------------------- */

/* As ofi_op_post, for a receive of control messages (OFI_OP_FRAME_IN), which only its endpoint posts. */
int ofi_op_receive_frame(struct ofi_endpoint *endpoint, struct ofi_op *op);

/* Closes the endpoint's libfabric endpoints, so that none of the memory that was posted is touched again; every comm is
 * told. `why` is for log lines. */
void ofi_shut(struct ofi_endpoint *endpoint, const char *why);
/* The same without a line of its own. */
void ofi_shut_unlogged(struct ofi_endpoint *endpoint, const char *why);
/* Closes any object of a NIC, with a line if that fails. */
void ofi_close_fid(struct fid *fid, const char *what, const struct ofi_nic *nic);

/* ---- the timer that wakes the watch thread: one for all endpoints of the process. Any thread may call ---- */

#define OFI_FIRST_MS 2 /* from when something is outstanding to the watch thread's first look */

/* Its descriptor, for the watch thread; -1 with errno. */
int ofi_timer_open(void);
void ofi_timer_close(void);
/* It fires within so many: sets it unless it does already. One system call in some milliseconds. */
void ofi_timer_set(long ms);
/* It has fired, and may be set again. */
void ofi_timer_read(void);

#endif
