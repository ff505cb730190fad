/* SPDX-License-Identifier: Apache-2.0
 *
 * A small ncclNet plugin over TCP that keeps the whole contract: the yardstick
 * of the kit, and something to read for those who write a plugin of their own.
 * It needs rail/net.h, libc and pthread, has no threads, and is not fast.
 *
 *   ref_device.c   which interfaces there are, and their properties
 *   ref_listen.c   contexts; listening, pending connections, accept
 *   ref_connect.c  the dialling side
 *   ref_comm.c     a connection: requests, registrations, close
 *   ref_io.c       its bytes: frames in and out, and what they mean
 *   ref_abi.c      the vtables, v6 to v12
 *
 * One TCP connection is one comm. The receiver announces each buffer that is
 * posted (GRANT), the sender picks for each message the oldest announced buffer
 * of its tag and sends it (DATA), the receiver tells when it is there (ACK); a
 * send is done when it is acknowledged. So nothing is ever received that has no
 * place, the sender learns about a message that is too large, and the side that closes
 * after its last completion leaves nothing behind that could get lost.
 *
 * test/broken/ref_defects.h lists what can be broken in it, one defect a library.
 */
#ifndef REF_H
#define REF_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "rail/net.h"
#include "test/broken/ref_defects.h"

enum {
  REF_GROUP = 8,                                   /* maxRecvs: buffers of one irecv */
  REF_RECVS = RAIL_NET_MAX_REQUESTS,               /* receives outstanding on one comm */
  REF_SENDS = RAIL_NET_MAX_REQUESTS * REF_GROUP,   /* sends: one for each of their buffers */
  REF_SLOTS = REF_RECVS * REF_GROUP,
  REF_DEVICES = 16,
  REF_PENDING = 128,                               /* connections that have not greeted yet, per listen comm */
  REF_DIAL_MS = 10000,                             /* until a connect without an answer is an error */
  REF_GREETING_MS = 5000,                          /* until a connection without a greeting is dropped */
};

#define REF_MAGIC 0x31306c6961724652ull /* also says the byte order: hosts of different ones do not meet */

/* ---- devices ---- */

struct ref_device {
  char name[64];      /* of a fused device: its members' */
  char pci_path[256]; /* empty: none */
  int index;          /* of the interface */
  int speed;          /* Mb/s */
  union { struct sockaddr sa; struct sockaddr_in in; struct sockaddr_in6 in6; } addr;
  struct rail_net_vprops_v12 members; /* itself, or what it was fused from; the first one's address is used */
};

int ref_devices_load(void); /* once a process; later calls find it done */
const struct ref_device *ref_device(int dev); /* NULL: no such device */
int ref_devices(int *ndev);
int ref_get_properties(int dev, struct rail_net_props_v12 *props);
int ref_make_vdevice(int *dev, struct rail_net_vprops_v12 *members);

/* ---- making connections ---- */

struct ref_hello { uint64_t magic, zero; uint8_t secret[16]; };

/* What listen gives away. Travels as bytes; `dial` names the attempt in
 * progress in the connecting context, so that the bytes may lie anywhere. */
struct ref_handle {
  struct ref_hello hello;
  struct sockaddr_in6 addr; /* or a sockaddr_in */
  uint64_t dial;
};
_Static_assert(sizeof(struct ref_handle) <= RAIL_NET_HANDLE_SIZE, "the handle is too large");

struct ref_pending {
  int fd;
  size_t got;
  struct ref_hello hello;
  uint64_t deadline;
  int back; /* streams_crossed: as in ref_comm */
};

struct ref_listen {
  struct ref_listen *next;
  struct ref_ctx *ctx;
  const struct ref_device *device;
  int fd;
  struct ref_hello hello;
  int npending;
  struct ref_pending pending[REF_PENDING]; /* oldest first */
};

struct ref_dial {
  struct ref_dial *next;
  uint64_t id, deadline;
  int fd;
  bool connected;
  int calls;  /* for handle_address: the calls so far, */
  void *from; /* and where the handle lay */
  size_t sent;
  struct ref_hello hello;
  struct sockaddr_in6 to;
  socklen_t to_len;
};

/* One a communicator. Knows what is half open, for finalize. */
struct ref_ctx {
  pthread_mutex_t lock;
  struct ref_listen *listens;
  struct ref_dial *dials;
  struct rail_net_attr attr;
  rail_profiler_fn profiler;
};

extern _Atomic bool ref_stopped;
extern _Atomic int ref_accepts;

struct ref_ctx *ref_process_ctx(void); /* of the versions that have none */
int ref_init(void **ctx, rail_logger_fn log, rail_profiler_fn profiler);
int ref_finalize(void *ctx);
int ref_set_net_attr(void *ctx, struct rail_net_attr *attr);
int ref_listen(void *ctx, int dev, void *handle, void **listen_comm);
int ref_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);
int ref_close_listen(void *listen_comm);
int ref_connect(void *ctx, int dev, void *handle, void **send_comm, struct rail_net_device_handle **dev_handle);
void ref_dial_free(struct ref_dial *dial);

/* ---- connections ---- */

enum ref_kind { REF_GRANT = 1, REF_DATA, REF_ACK };

/* All that is ever said, apart from the greeting; after DATA come `size` bytes. */
struct ref_frame {
  uint32_t kind; /* enum ref_kind */
  uint32_t slot; /* of the receiver: request * REF_GROUP + buffer */
  int32_t tag;
  uint32_t zero;
  uint64_t size; /* GRANT: room; DATA: bytes */
};

struct ref_mr { struct ref_mr *next; void *data; size_t size; };

enum ref_state { REF_FREE, REF_WAITING /* a send: for a grant */, REF_GRANTED, REF_SENT, REF_POSTED, REF_DONE };

struct ref_request {
  struct ref_comm *comm;
  enum ref_state state;
  int n;    /* buffers; 1 for a send */
  int left; /* not yet filled */
  uint8_t *data[REF_GROUP];
  size_t size[REF_GROUP]; /* room, or bytes to send */
  int tag[REF_GROUP];
  struct ref_mr *mr[REF_GROUP];
  bool filled[REF_GROUP];
  size_t got[REF_GROUP];
  size_t by_arrival[REF_GROUP];  /* for sizes_by_arrival, */
  void **kept;                   /* arrays_kept, */
  unsigned long order;           /* test_in_order, */
  bool orphan;                   /* early_done */
  /* sends */
  struct ref_request *next; /* in posting order, until sent */
  struct ref_frame grant;
  void *phandle, *event; /* the profiler's */
};

struct ref_comm {
  pthread_mutex_t lock; /* of everything below: traffic on one thread, registrations on another */
  int fd;
  int back; /* streams_crossed: the socket that is written to; 0: fd */
  bool sends;
  bool mute;            /* writing has failed; what the peer said before is still read */
  int error;            /* the first; all later calls repeat it */
  const struct ref_device *device;
  char peer[64]; /* its address, for those who read the log */
  uint64_t bytes;
  struct ref_mr *mrs;
  rail_profiler_fn profiler;
  struct ref_request *request; /* REF_SENDS or REF_RECVS */
  int nrequests, next_request;
  int first_n;                 /* for group_n_kept, */
  unsigned long posted;        /* test_in_order, */
  unsigned long arrived;       /* corrupt_byte */

  struct ref_frame in; /* being read */
  size_t in_got;       /* of its bytes */

  /* receiving */
  struct ref_request *into; /* whose payload is coming, into buffer into_at, into_got bytes so far */
  int into_at;
  size_t into_got;
  struct ref_frame out[2 * REF_SLOTS]; /* to be written: a ring */
  size_t out_first, out_count, out_sent; /* out_sent: bytes of the first */

  /* sending */
  struct ref_frame open[REF_SLOTS]; /* grants that no send has taken, oldest first */
  int nopen;
  bool granted[REF_SLOTS];              /* and not acknowledged yet */
  struct ref_request *oldest; /* sends not on the wire yet, in posting order */
  struct ref_request *now;    /* the one that is being written */
  struct ref_frame now_head;
  size_t now_sent; /* bytes, head and payload */
  struct ref_request *sent[REF_SLOTS]; /* waiting for ACK, by slot */
};

/* Takes the socket, also when it fails. */
int ref_comm_open(int fd, const struct ref_device *device, bool sends, rail_profiler_fn profiler, void **comm);
void ref_comm_fail(struct ref_comm *c, int error, const char *why);
void ref_progress(struct ref_comm *c); /* with the lock held; never waits */
void ref_grant_all(struct ref_request *r);
void ref_send_match(struct ref_request *r);
void ref_break_order(struct ref_request *r);

int ref_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle);
int ref_dereg_mr(void *comm, void *mhandle);
int ref_isend(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request);
int ref_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
              void **request);
int ref_iflush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request);
int ref_test(void *request, int *done, int *sizes);
int ref_irecv_consumed(void *comm, int n, void *request);
int ref_close(void *comm);

/* ---- everywhere ---- */

uint64_t ref_now_ms(void);
void ref_log_to(rail_logger_fn log);
void ref_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
