/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection: its state, its requests, the two kinds of comm, and the functions that make, register, watch and end
 * one. Those that move its data are in ofi_progress.h.
 *
 * Threads, as common/net/net_ops.h has them: isend, irecv, iflush and test run in the caller's progress thread; regMr,
 * deregMr and close in its service thread. Any thread that polls the endpoint may complete requests of this comm. So
 * what both may touch is guarded by the endpoint's lock, but for the state of a request: whoever completes it stores
 * that last, and the progress thread reads it without the lock. The lists of free requests are the progress thread's
 * alone. The watch thread writes `pending_work` and `peer_silent`, and reads counters.
 */
#ifndef OFI_COMM_H
#define OFI_COMM_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "common/base/log.h"
#include "common/base/sock.h"
#include "common/conn/first_error.h"
#include "common/conn/oob.h"
#include "common/net/net_memory.h"
#include "plugin/ofi/ofi_endpoint.h"
#include "plugin/ofi/ofi_stats.h"

#define OFI_SEND_COMM_MAGIC RAIL_OBJECT_MAGIC(OFI_TAG, 'S')
#define OFI_RECV_COMM_MAGIC RAIL_OBJECT_MAGIC(OFI_TAG, 'R')

/* In comm->pending_work, fault bits: the peer will take part in nothing any more. */
#define OFI_PEER_FAULTS \
  (RAIL_OOB_PEER_CLOSED | RAIL_OOB_PEER_GONE | RAIL_OOB_PEER_LOST | RAIL_OOB_PEER_SILENT | RAIL_OOB_HOST_SILENT)

/* In comm->pending_work, no fault: a flush is to be posted. */
#define OFI_FLUSH_LATER (1u << 0)

struct rail_net_device_handle;
struct rail_watch;
struct rail_watched;

/* A registration as regMr returns it. */
struct ofi_mhandle {
  struct rail_net_memory memory; /* `outstanding` is written under the endpoint's lock */
  LIST_ENTRY(ofi_mhandle) link;  /* in comm->mhandles, under it */
  int cuda_device;               /* of GPU memory */
  struct fid_mr *mrs[OFI_MAX_PATHS]; /* by our NIC; NULL where the provider needs none */
  void *descs[OFI_MAX_PATHS];
  uint64_t keys[OFI_MAX_PATHS];
};

/* A way from an endpoint to the peer's: path i is NIC i % n of each side, n being its number of NICs. */
struct ofi_path {
  struct ofi_endpoint_nic *nic;
  uint8_t local_nic, remote_nic; /* their indices */
  struct ofi_peer *peer;
  fi_addr_t to; /* its address */
};

/* What ofi_comm_check_stall knows. Numbers of thirds of RAIL_OFI_DEADLINE without activity, in a row, in which … */
struct ofi_stall {
  uint8_t busy;       /* libfabric has completed none of the operations that are posted */
  uint8_t unanswered; /* not all paths have carried a PING and its PONG */
  uint8_t differing;  /* both sides were idle, and their unequal counts were last_theirs and last_mine */
  uint8_t pinged, ponged; /* paths, as bits, of the third that goes on */
  bool peer_idle;         /* with the last PONG: the peer had nothing under way */
  struct ofi_counts theirs, last_theirs, last_mine;
};

struct ofi_comm {
  uint32_t magic;
  bool sender;
  const struct ofi_device *device;
  struct ofi_endpoint *endpoint;
  uint32_t index, remote_index; /* in frames to us, and to the peer */
  uint64_t token, remote_token;
  unsigned int npaths, remote_nics;
  struct ofi_path paths[OFI_MAX_PATHS];
  uint32_t max_inline; /* most payload of a frame: the eager size, and that of a DATA */
  uint32_t eager_count; /* EAGERs that the receiver has places for; 0: none are sent */

  char peer_text[RAIL_ADDR_TEXT]; /* address of the oob connection */
  uint64_t peer_process;          /* the same in all connections with one process */
  int oob_fd;                     /* the watch thread's while `watched` */
  struct rail_watch *watch;       /* NULL: the handshake is not over */
  struct rail_watched *watched;

  _Atomic uint32_t pending_work; /* OFI_PEER_FAULTS and RAIL_OOB_PEER_GAVE_UP, which stay; RAIL_OOB_STALLED and
                                  * OFI_FLUSH_LATER until they are handled */
  _Atomic bool peer_silent;   /* PINGs over the oob connection were unanswered, since ofi_comm_check_stall has looked */
  _Atomic bool stopped;       /* deregMr or close ended it: no memory of the caller's may be touched any more */
  bool forked;                /* in a child of fork, and thus stopped: its objects are the parent's */
  struct rail_first_error error;
  _Atomic uint32_t outstanding; /* requests given out and not done; written under the lock */
  uint64_t *stats;              /* of the group "comm"; never NULL */
  bool stats_private;           /* not in the shared page */

  /* Under the endpoint's lock: */
  uint32_t nops;    /* operations that are not idle */
  uint32_t noutgoing; /* of these, those that do not wait for the peer to send; without probes */
  uint32_t late_frames; /* EAGER, DATA, FIN that have come since it has failed or was stopped */
  struct ofi_stall stall;
  bool closed;      /* by its caller; it is freed when nops is 0 */
  bool revoked;     /* a sender: the peer wants no more. A receiver: the peer says that nothing will come */
  bool revoked_due; /* a sender: its answer to the latest REVOKE is not posted yet */
  uint32_t verified; /* paths that have carried a PING to us, as bits */
  /* When to give up on a peer that is gone: later than this time and this number of polls. 0: it is not gone. */
  uint64_t gone_deadline, gone_polls;
  LIST_HEAD(, ofi_mhandle) mhandles;
  struct ofi_memory frames; /* of what is posted */
  struct ofi_op pings[OFI_MAX_PATHS], pongs[OFI_MAX_PATHS], revoke;
};

/* ---- requests --------------------------------------------------------------
 *
 * Fixed pools inside their comm. A request is freed by the test that reports it done, in the caller's progress thread,
 * and one that no test has reported done with the comm: by the thread that closes it, or, where operations are left,
 * by the one that ends the last of them. All kinds begin with struct ofi_request, whose magic tells them apart from
 * each other and from a pointer that was returned already.
 */

#define OFI_REQ_SEND RAIL_OBJECT_MAGIC(OFI_TAG, 's')
#define OFI_REQ_RECV RAIL_OBJECT_MAGIC(OFI_TAG, 'r')
#define OFI_REQ_FLUSH RAIL_OBJECT_MAGIC(OFI_TAG, 'f')
#define OFI_REQ_FREE RAIL_OBJECT_MAGIC(OFI_TAG, 'e')

enum ofi_state { OFI_ACTIVE, OFI_COMPLETE };

struct ofi_request {
  uint32_t magic;
  _Atomic int state; /* enum ofi_state */
  struct ofi_comm *comm;
  SLIST_ENTRY(ofi_request) free;
};
SLIST_HEAD(ofi_request_pool, ofi_request);

/* A part of a message: what carries it, and the control message behind a write. */
struct ofi_part {
  struct ofi_op data; /* DATA, TSEND, WRITE or TOO_LARGE */
  uint64_t left;      /* to be written behind this write: a provider's largest message may be smaller than a part */
  struct ofi_op fin;
};

/* A send. Life: matched, or on credit → posted → its operations complete → done; done at once where it is injected. */
struct ofi_send {
  struct ofi_request base;
  const void *data;
  uint64_t size;
  struct ofi_mhandle *mr;
  uint32_t grant_seq; /* number of the GRANT whose buffer it goes to; on credit: unused, as the next */
  uint8_t index;      /* of that buffer */
  uint8_t nparts;
  uint32_t pending; /* operations */
  uint8_t *frames;  /* OFI_MAX_PATHS of OFI_FRAME_SIZE, in comm->frames */
  struct ofi_part parts[OFI_MAX_PATHS];
};

/* The sender's record of one GRANT: in `grants`, at its number modulo OFI_MAX_GRANTS. */
struct ofi_grant {
  uint32_t seq;
  uint8_t n;
  bool kept;    /* it is here, and not all of its buffers are taken; it counts from grants_applied on */
  uint8_t taken; /* buffers, as bits */
  struct ofi_report report;
  struct ofi_buffer buffers[OFI_MAX_GROUP];
};

/* One buffer of an irecv. */
struct ofi_recv_buffer {
  void *data;
  uint64_t capacity;
  uint64_t size; /* of its message, known from the first FIN on, or once it is filled */
  uint32_t tag;
  enum ofi_buffer_kind kind;
  bool takes_data, done;
  bool cancelled;      /* an EAGER has filled it; it is done when its TRECV has ended */
  uint8_t parts, left; /* of its message, by fi_write; parts is 0 until the first FIN */
  struct ofi_mhandle *mr;
  struct ofi_op op; /* TRECV */
};

/* A receive. Its slot in `recvs` is its number modulo OFI_MAX_RECVS. */
struct ofi_recv {
  struct ofi_request base;
  uint32_t seq;        /* of the receives of this comm */
  uint32_t grant_seq;  /* number of its GRANT, once `trecvs_posted` */
  bool trecvs_posted;  /* post_trecvs has run; some may wait for room still */
  bool granted;        /* its GRANT is sent, perhaps in the frame of an earlier receive */
  uint32_t n, pending; /* buffers; those without their message */
  struct ofi_op grant; /* carries the frame that begins with this receive's GRANT */
  uint8_t *frame;      /* OFI_FRAME_MAX, in comm->frames */
  struct ofi_recv_buffer buffers[OFI_MAX_GROUP];
};

/* A place for an EAGER: in `places`, at its number modulo OFI_MAX_GRANTS. One that is not free has a payload. */
struct ofi_place {
  enum { OFI_PLACE_FREE, OFI_PLACE_AHEAD /* others before it are missing */, OFI_PLACE_UNEXPECTED } state;
  uint32_t tag, first_unknown, size, payload; /* of the EAGER in it */
};

struct ofi_flush {
  struct ofi_request base;
  struct ofi_mhandle *mr;
  const void *data;
  bool later; /* test posts it: another thread had the endpoint. Nothing of it is counted until then */
  uint32_t pending;
  struct ofi_op ops[OFI_MAX_PATHS];
};

/* ---- the two kinds of comm --------------------------------------------------- */

struct ofi_send_comm {
  struct ofi_comm base;
  struct ofi_request_pool free;
  uint32_t sends_used; /* of the pool's memory: the rest was never taken */
  struct ofi_send *sends; /* OFI_MAX_SENDS */
  uint8_t *send_frames; /* the frames of all sends, in comm->frames */
  uint32_t grants_applied; /* number of the first GRANT that does not count yet: it, or one before it, is missing */
  uint32_t grants_used;    /* all buffers of the GRANTs before this number are taken */
  struct ofi_grant grants[OFI_MAX_GRANTS];
  bool expects_grants; /* the latest message went to a buffer that was granted: the next may, too */

  uint32_t next_eager;      /* number of the next EAGER */
  uint32_t granted_sends;   /* messages for buffers that were granted, ever */
  struct ofi_report report; /* the latest */
  bool unreported;          /* it does not have all that was sent */
  bool report_held;         /* `held` is of an ACK that overtook GRANTs before `held_seq` */
  uint32_t held_seq;
  struct ofi_report held;
  struct { uint32_t tag; bool has_grant; } in_flight[OFI_MAX_GRANTS]; /* EAGERs from report.seen on, by number */

  uint64_t unmatched_since_ns; /* since when isend has found neither a GRANT nor credit; 0: it has */
  bool asked;                  /* and neither a GRANT nor credit has come since ASK */
  struct ofi_op ask;
  uint8_t *ask_frame;
};

struct ofi_recv_comm {
  struct ofi_comm base;
  uint32_t next_seq;
  uint32_t first_incomplete; /* receives before it have all their messages */
  uint32_t first_ungranted; /* receives before it are granted, or done */
  uint32_t ngrants;   /* number of the next GRANT */
  bool grants_due;    /* the next poll grants all receives that are not; control is in the list */
  uint64_t last_grant_poll; /* endpoint->polls when an irecv granted at once */
  struct ofi_recv *by_grant[OFI_MAX_RECVS]; /* by its number */
  bool grant_wanted;       /* the sender asks for the GRANT of the next receive, whatever it is */
  bool sender_unreachable; /* a control message to it failed while no receive was outstanding */

  struct ofi_report have, reported; /* what has arrived, and what credit is free; what of it the sender knows */
  bool report_wanted;                 /* by the sender, when as much is here as report_wanted_at says */
  struct ofi_report report_wanted_at;
  struct ofi_control_link control;
  uint32_t unexpected;  /* places in this state */
  struct ofi_place places[OFI_MAX_GRANTS];
  /* OFI_MAX_EAGER of comm->max_inline. Those given back last are used first: of the memory no more is ever touched than
   * messages were here at a time. */
  uint8_t *payloads;
  uint8_t free_payloads[OFI_MAX_EAGER];
  uint32_t nfree_payloads;

  struct ofi_op ack, refusal;
  uint8_t *ack_frame, *refusal_frame;
  struct ofi_request_pool free_flushes;
  struct ofi_memory flush_target; /* what flushes read into */
  struct ofi_recv recvs[OFI_MAX_RECVS];
  struct ofi_flush flushes[OFI_MAX_RECVS];
};

static inline struct ofi_send_comm *ofi_send_comm_of(struct ofi_comm *comm) {
  return rail_container_of(comm, struct ofi_send_comm, base);
}
static inline struct ofi_recv_comm *ofi_recv_comm_of(struct ofi_comm *comm) {
  return rail_container_of(comm, struct ofi_recv_comm, base);
}

static inline struct ofi_recv *ofi_recv_at(struct ofi_recv_comm *rc, uint32_t seq) {
  return &rc->recvs[seq % OFI_MAX_RECVS];
}
static inline bool ofi_recv_is_unfilled(const struct ofi_recv_buffer *b) { return !b->done && !b->cancelled; }

/* ---- what both kinds share: ofi_comm.c ----------------------------------------- */

/* A caller's pointer; NULL after one line if it is not an open comm. kind_magic 0: either kind. */
static inline struct ofi_comm *ofi_comm_of(void *arg, uint32_t kind_magic, const char *call) {
  return rail_net_comm_of("RailOFI", arg, OFI_SEND_COMM_MAGIC, OFI_RECV_COMM_MAGIC, kind_magic, call);
}

/* May a call begin? RAIL_OK, or why not. */
static inline rail_result_t ofi_comm_status(const struct ofi_comm *comm) {
  if (rail_unlikely(atomic_load_explicit(&comm->stopped, memory_order_relaxed))) return RAIL_BAD_USAGE;
  return rail_first_error(&comm->error);
}

/* A comm of that kind, known to its endpoint by index and token; the peer's side is unknown. NULL after one line. */
struct ofi_comm *ofi_comm_new(bool sender, struct ofi_endpoint *endpoint);
/* What the two sides' OFFERs say. 0, or libfabric's error of an address. */
int ofi_comm_connect(struct ofi_comm *comm, const struct ofi_offer *mine, const struct ofi_offer *peer);
/* Takes it from its endpoint and frees everything; no operation is posted. Under the endpoint's lock. */
void ofi_comm_free(struct ofi_comm *comm);
/* Closes its registrations. Under the lock. */
void ofi_comm_close_mrs(struct ofi_comm *comm);

/* Ends the connection; every later isend, irecv and test returns the first error. Logs one line, "RailOFI: sending to
 * PEER over DEVICE: ...". Returns the first error. */
RAIL_PRINTF(3, 4) rail_result_t ofi_comm_fail(struct ofi_comm *comm, rail_result_t result, const char *fmt, ...);
/* The same for an operation that failed. */
rail_result_t ofi_comm_fail_op(struct ofi_op *op, const struct ofi_completion *completion);
/* The same for fault bits of the watch thread's. */
rail_result_t ofi_comm_fail_faults(struct ofi_comm *comm, uint32_t faults);

/* The same for an operation that could not be posted. */
rail_result_t ofi_comm_post_failed(struct ofi_op *op, int err);

/* An operation goes out in two steps: ofi_comm_prepare says what it is and over which path it goes, ofi_op_post gives
 * it to libfabric. Where a control message goes, ofi_comm_prepare_frame or ofi_comm_prepare_report writes it first;
 * ofi_comm_post_frame does all three. */
static inline void ofi_comm_prepare(struct ofi_comm *comm, struct ofi_op *op, enum ofi_op_kind kind,
                                    unsigned int path) {
  op->kind = kind;
  op->comm = comm;
  op->path = (uint8_t)path;
  op->nic = comm->paths[path].nic;
  op->to = comm->paths[path].to;
}

/* A frame to the peer, whose bytes will lie in comm->frames. op->data and op->size follow it. */
static inline void ofi_comm_address(struct ofi_comm *comm, struct ofi_op *op, unsigned int path,
                                    struct ofi_frame *frame, uint8_t *bytes) {
  frame->comm = comm->remote_index;
  frame->token = comm->remote_token;
  op->head = bytes;
  op->head_desc = comm->frames.descs[comm->paths[path].local_nic];
  rail_stats_add(&comm->stats[OFI_COMM_FRAMES], 1);
}

/* Prepares a frame without a report. */
RAIL_HOT_INLINE void ofi_comm_prepare_frame(struct ofi_comm *comm, struct ofi_op *op, enum ofi_op_kind kind,
                                            unsigned int path, struct ofi_frame *frame, uint8_t *bytes) {
  ofi_comm_address(comm, op, path, frame, bytes);
  op->head_size = OFI_FRAME_SIZE;
  ofi_head_encode(frame, bytes);
  ofi_comm_prepare(comm, op, kind, path);
}

/* Prepares any frame, also one with a report: GRANT, ACK. */
static inline void ofi_comm_prepare_report(struct ofi_comm *comm, struct ofi_op *op, enum ofi_op_kind kind,
                                           unsigned int path, struct ofi_frame *frame, uint8_t *bytes) {
  ofi_comm_address(comm, op, path, frame, bytes);
  op->head_size = ofi_frame_encode(frame, bytes);
  ofi_comm_prepare(comm, op, kind, path);
}

/* Prepares any frame, and posts it. An error has failed the comm. */
static inline rail_result_t ofi_comm_post_frame(struct ofi_comm *comm, struct ofi_op *op, enum ofi_op_kind kind,
                                                unsigned int path, struct ofi_frame *frame, uint8_t *bytes) {
  ofi_comm_prepare_report(comm, op, kind, path, frame, bytes);
  int err = ofi_op_post(op);
  return rail_likely(err == 0) ? RAIL_OK : ofi_comm_post_failed(op, err);
}

/* PING over one path, in the handshake. */
rail_result_t ofi_comm_ping(struct ofi_comm *comm, unsigned int path);
/* A PING has come. */
void ofi_comm_pinged(struct ofi_comm *comm, const struct ofi_frame *frame);
/* A PONG has come. False: of no path. */
bool ofi_comm_ponged(struct ofi_comm *comm, const struct ofi_frame *frame);
/* RAIL_OOB_STALLED: nothing was posted or completed for a third of RAIL_OFI_DEADLINE, though the caller waits. Asks the
 * peer over each path, and fails the comm where all thirds have shown the same: operations that do not complete, a
 * fabric that carries nothing, messages that it has lost. */
void ofi_comm_check_stall(struct ofi_comm *comm);
/* REVOKE, or a sender's REVOKED, unless an earlier one is under way. */
void ofi_comm_revoke(struct ofi_comm *comm);
/* ASK: the receiver grants all its receives, and reports when all that was sent is there. False: an earlier one is not
 * through yet. */
bool ofi_comm_ask(struct ofi_send_comm *sc);
/* Is there something that the receiver has not reported? Then the endpoint is polled until it does. */
static inline void ofi_comm_set_unreported(struct ofi_send_comm *sc, bool unreported) {
  if (unreported == sc->unreported) return;
  sc->unreported = unreported;
  if (unreported) sc->base.endpoint->nunreported++;
  else sc->base.endpoint->nunreported--;
}
/* Has the peer all that was sent? It has reported so, or closed and gave nothing up. */
static inline bool ofi_comm_has_arrived(const struct ofi_send_comm *sc) {
  const uint32_t work = atomic_load_explicit(&sc->base.pending_work, memory_order_acquire);
  return !sc->unreported || (work & RAIL_OOB_PEER_CLOSED && !(work & RAIL_OOB_PEER_GAVE_UP));
}
/* The path over which least is outstanding. */
unsigned int ofi_comm_least_path(const struct ofi_comm *comm);

static inline void ofi_request_begin(struct ofi_request *r, uint32_t magic) {
  struct ofi_comm *comm = r->comm;
  uint32_t n = atomic_load_explicit(&comm->outstanding, memory_order_relaxed) + 1;
  r->magic = magic;
  atomic_store_explicit(&r->state, OFI_ACTIVE, memory_order_relaxed);
  comm->endpoint->nrequests++;
  atomic_store_explicit(&comm->outstanding, n, memory_order_relaxed);
  rail_stats_set(&comm->stats[OFI_COMM_OUTSTANDING], n);
}

/* None of the caller's memory will be touched for it. The last store to the request that is made under the lock. */
static inline void ofi_request_end(struct ofi_request *r) {
  struct ofi_comm *comm = r->comm;
  uint32_t n = atomic_load_explicit(&comm->outstanding, memory_order_relaxed) - 1;
  comm->endpoint->nrequests--;
  atomic_store_explicit(&comm->outstanding, n, memory_order_relaxed);
  rail_stats_set(&comm->stats[OFI_COMM_OUTSTANDING], n);
  atomic_store_explicit(&r->state, OFI_COMPLETE, memory_order_release);
}

static inline bool ofi_request_is_complete(const struct ofi_request *r) {
  return atomic_load_explicit(&r->state, memory_order_acquire) == OFI_COMPLETE;
}

/* ---- its life: ofi_connect.c, ofi_mr.c, ofi_watch.c, ofi_close.c ------------------ */

/* Key file, ports to listen on: once, under the plugin's lock. False, after one line: there must be no devices. */
bool ofi_handshake_load(void);
rail_result_t ofi_listen(void *ctx, int dev, void *handle, void **listen_comm);
rail_result_t ofi_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);
rail_result_t ofi_close_listen(void *listen_comm);
rail_result_t ofi_connect(void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                          struct rail_net_device_handle **dev_handle);

rail_result_t ofi_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle);
rail_result_t ofi_dereg_mr(void *comm, void *mhandle);

/* The watch thread (common/conn/watch.h) and the oob connections of the comms. rail_watch_remove sends GOODBYE, with
 * the number of requests that this side gives up. */
extern struct rail_watch ofi_watch;
/* The comm's handshake is over. Logs why not. */
rail_result_t ofi_watch_add(struct ofi_comm *comm);

rail_result_t ofi_close_send(void *send_comm);
rail_result_t ofi_close_recv(void *recv_comm);
/* Ends the connection, with whatever is outstanding: when it returns, none of the caller's memory is touched any more.
 * Waits for what libfabric and the peer have of it; where nothing has moved for RAIL_OFI_CLOSE_TIMEOUT the endpoint is
 * shut. Once. */
void ofi_comm_stop(struct ofi_comm *comm);
/* Everything of a comm, whole or half made. Its user of the endpoint too. */
void ofi_comm_destroy(struct ofi_comm *comm);

#endif
