/* SPDX-License-Identifier: Apache-2.0
 *
 * An endpoint: what the connections of one context over one device share. For each NIC of the device it has a libfabric
 * domain, an FI_EP_RDM endpoint, a completion queue, an address vector and receives posted for control messages. So a
 * process with thousands of connections has a handful of each.
 *
 * The files below it: ofi_op.c posts operations, reads completions and closes the endpoint, ofi_memory.c registers
 * memory with it.
 *
 * Threads. endpoint->lock guards the endpoint, its comms' state, and every call of libfabric on its objects: they are
 * opened with FI_THREAD_DOMAIN, those of shm and tcp;ofi_rxm also with FI_PROGRESS_CONTROL_UNIFIED where libfabric
 * knows it, so it needs no locks of its own. Without it are `wanted`, which any thread stores, and libfabric's calls
 * that open the endpoint before anybody knows it, and that destroy it behind its last user. isend, irecv and test only
 * try the lock (ofi_endpoint_try): where another thread has it, that thread polls for all connections of the endpoint.
 * libfabric makes its system calls under it. iflush tries it, too, and leaves its reads to test where that fails.
 */
#ifndef OFI_ENDPOINT_H
#define OFI_ENDPOINT_H

#include <sys/queue.h>

#include "common/base/lock.h"
#include "common/net/net_ctx.h"
#include "plugin/ofi/ofi_device.h"
#include "plugin/ofi/ofi_op.h"
#include "plugin/ofi/ofi_wire.h"

struct ofi_comm;

/* Memory of ours that libfabric reads or writes, registered where the provider wants it (FI_MR_LOCAL). */
struct ofi_memory {
  void *bytes;
  size_t size;
  struct fid_mr *mrs[OFI_MAX_PATHS]; /* NULL: not needed */
  void *descs[OFI_MAX_PATHS];
};

/* Another endpoint in an address vector. Comms with the same peer share it, by count. Some that no comm uses are kept:
 * a peer whose connection is being made may have sent its first message before this side knows of it, and a provider
 * would drop that with the address. */
#define OFI_IDLE_PEERS 16
struct ofi_peer {
  SLIST_ENTRY(ofi_peer) link;
  fi_addr_t addr;
  unsigned int users; /* paths of comms; one of flushes for the endpoint itself */
  uint64_t idle_since; /* 0 users: orders those */
  uint64_t full; /* the last pass over what waits in which it took nothing */
  struct ofi_address name;
};

/* Which list of those that have GRANTs or ACKs to send a receiver is in (ofi_grant.c). */
enum ofi_control_due {
  OFI_CONTROL_NONE,
  OFI_CONTROL_LATER, /* when no caller polls any more: the next GRANT has it, if there is one before */
  OFI_CONTROL_NOW,   /* at the end of this poll, or in the next: the sender may wait for it */
};
struct ofi_control_link {
  TAILQ_ENTRY(ofi_control_link) link;
  enum ofi_control_due due; /* the list that it is in */
};
TAILQ_HEAD(ofi_control_list, ofi_control_link);

/* The endpoint's part of one NIC. */
struct ofi_endpoint_nic {
  const struct ofi_nic *device_nic; /* of device->rails: the NIC itself, the same for all endpoints */
  struct fid_fabric *fabric;
  struct fid_domain *domain;
  struct fid_cq *cq;
  struct fid_av *av;
  struct fid_ep *ep;
  struct ofi_address name;
  struct ofi_peer *self; /* for flushes; NULL until needed */
  SLIST_HEAD(, ofi_peer) peers;
  unsigned int nidle;      /* of them: without users */
  uint64_t idle_count;     /* that became so, ever */
  /* Operations that libfabric had no room for, and those that queue behind them: for the same peer, or receives. */
  struct ofi_op_list waiting, waiting_receives;
  struct ofi_op *receives;
  unsigned int nreceives;
  struct ofi_op_list used_receives; /* of them: completed, and not posted anew yet */
  unsigned int nused;
  struct ofi_memory frames_in;
  unsigned int failed_receives; /* in a row */
  uint64_t next_key;     /* of registrations, where the provider leaves keys to us */
  uint64_t bytes_outstanding; /* of the operations of comms */
  uint64_t passes; /* over what waits */
  size_t max_inject;    /* bytes of a frame and its payload that go by fi_inject; 0: none go so */
};

struct ofi_completion {
  size_t size;
  int err, prov_errno; /* err 0: good */
  const char *text;    /* the provider's, of an error */
};

/* What completions mean: ofi_progress.c. Called under the lock. */
struct ofi_endpoint_ops {
  /* An operation of a comm; it is idle again. */
  void (*completed)(struct ofi_op *op, const struct ofi_completion *completion);
  /* A control message for the comm, which may be anything that ofi_frame_decode accepts. */
  void (*frame)(struct ofi_comm *comm, const struct ofi_frame *frame, const void *payload);
  /* An EAGER for the comm: a message of so many bytes that ofi_is_eager accepts. */
  void (*eager)(struct ofi_comm *comm, const struct ofi_frame_wire *wire, size_t size);
  /* A message of so many bytes that names the comm, and that neither accepts. */
  void (*malformed)(struct ofi_comm *comm, unsigned int type, size_t size);
  /* A receiver's GRANTs or ACK are due (ofi_endpoint_set_control); it is in no list any more. */
  void (*send_control)(struct ofi_control_link *link);
  /* Closes all registrations of the comm. */
  void (*unbind)(struct ofi_comm *comm);
  /* The endpoint is shut: no operation of the comm will complete. Closes the comm's registrations. */
  void (*shut)(struct ofi_comm *comm, const char *why);
};

struct ofi_endpoint {
  LIST_ENTRY(ofi_endpoint) link; /* of all endpoints, under their lock */
  struct rail_net_ctx *ctx;      /* NULL: finalized */
  const struct ofi_device *device;
  unsigned int users; /* context and comms, under that lock */
  const struct ofi_endpoint_ops *ops;

  pid_t process;                 /* that opened it: a forked child must not close it */

  struct rail_lock lock; /* guards all below */
  _Atomic bool shut;    /* its endpoints are closed; written under the lock */
  bool kept;            /* one of them could not be closed: what was posted stays libfabric's, and is never freed */
  bool ending;          /* its last user has gone: completed receives are not posted again, failures change nothing */
  unsigned int nnics;
  struct ofi_endpoint_nic nics[OFI_MAX_PATHS];
  size_t frame_size; /* of a receive of control messages */
  struct ofi_comm **comms; /* by the index in frames; NULL: free */
  uint32_t ncomms, next_comm;
  struct ofi_control_list control_now, control_later;
  uint32_t nops;        /* of comms, not idle */
  uint32_t nrequests;   /* of comms, not done */
  uint32_t nunreported; /* senders whose peers have not reported all that was sent */
  uint64_t polls;       /* made, ever */
  /* The watch thread's: */
  _Atomic uint32_t wanted; /* polls, whether or not operations are under way */
  uint64_t polls_seen; /* at its last look or poll */
  long pause_ms; /* between its last poll and the next */
};

/* The endpoint of this context and device, opened at the first call; one more user. The ops are kept. An error after
 * one line. May take milliseconds. */
rail_result_t ofi_endpoint_get(struct rail_net_ctx *ctx, const struct ofi_device *device,
                               const struct ofi_endpoint_ops *ops, struct ofi_endpoint **endpoint);
/* One user less; the last one closes it. Not under its lock. */
void ofi_endpoint_put(struct ofi_endpoint *endpoint);
/* The context is about to be freed: its endpoints are left to their comms. */
void ofi_endpoint_drop_ctx(const struct rail_net_ctx *ctx);

static inline void ofi_endpoint_lock(struct ofi_endpoint *endpoint) { rail_lock_wait(&endpoint->lock); }
static inline bool ofi_endpoint_try(struct ofi_endpoint *endpoint) { return rail_lock_try(&endpoint->lock); }
static inline void ofi_endpoint_unlock(struct ofi_endpoint *endpoint) { rail_lock_release(&endpoint->lock); }

/* ---- the watch thread's polls --------------------------------------------------
 *
 * It polls an endpoint that has operations, requests or reports outstanding while no caller does: a caller whose sends
 * are done need not call again, and yet what a provider still holds of them must go out; and a peer whose process
 * answers PINGs takes part in the fabric's transfers, whatever its caller does. */

/* Once per process: what follows works in a child of fork. */
void ofi_endpoint_handle_fork(void);
/* A peer has said something over an oob connection, and may wait for an answer over the fabric, which only a poll
 * finds, or for a report that callers' polls leave for later: the watch thread polls a few times. */
void ofi_endpoint_wake(struct ofi_endpoint *endpoint);
/* The timer has become readable. True. */
bool ofi_endpoint_timer_fired(void *arg);

/* ---- under the lock --------------------------------------------------------- */

static inline bool ofi_endpoint_is_shut(const struct ofi_endpoint *endpoint) {
  return atomic_load_explicit(&endpoint->shut, memory_order_relaxed);
}

static inline struct ofi_control_list *ofi_endpoint_control_list(struct ofi_endpoint *endpoint,
                                                                 enum ofi_control_due due) {
  return due == OFI_CONTROL_NOW ? &endpoint->control_now : &endpoint->control_later;
}
/* When a poll is to call ops->send_control for it. NONE: it has been sent. What is due now stays so until then. */
static inline void ofi_endpoint_set_control(struct ofi_endpoint *endpoint, struct ofi_control_link *link,
                                            enum ofi_control_due due) {
  if (link->due == due || (link->due == OFI_CONTROL_NOW && due == OFI_CONTROL_LATER)) return;
  if (link->due) TAILQ_REMOVE(ofi_endpoint_control_list(endpoint, link->due), link, link);
  if (due) TAILQ_INSERT_TAIL(ofi_endpoint_control_list(endpoint, due), link, link);
  link->due = due;
  if (due) ofi_timer_set(OFI_FIRST_MS);
}

/* An index for the comm, and the comm under it; false: out of memory, or too many. */
bool ofi_endpoint_add(struct ofi_endpoint *endpoint, struct ofi_comm *comm, uint32_t *index);
void ofi_endpoint_remove(struct ofi_endpoint *endpoint, uint32_t index);
/* A peer's endpoint for this NIC, by its address; one user more. 0, or libfabric's error. */
int ofi_endpoint_resolve(struct ofi_endpoint *endpoint, unsigned int nic, const struct ofi_address *name,
                         struct ofi_peer **out);
/* One user less. Those that have been without one for longest are removed from the address vector. */
void ofi_endpoint_release(struct ofi_endpoint *endpoint, unsigned int nic, struct ofi_peer *peer);

/* ---- ofi_memory.c ------------------------------------------------------------ */

/* Memory for libfabric, on pages of its own, registered with every NIC that wants it. False after one line. */
bool ofi_memory_alloc(struct ofi_endpoint *endpoint, size_t size, struct ofi_memory *memory);
void ofi_memory_free(struct ofi_memory *memory);
/* Closes its registrations alone. */
void ofi_memory_close_mrs(struct ofi_memory *memory);
/* Registers a range with one NIC. 0, or libfabric's error. attr->iface: FI_HMEM_SYSTEM or another. */
int ofi_memory_register(struct ofi_endpoint *endpoint, unsigned int nic, const struct fi_mr_attr *attr,
                        struct fid_mr **mr);

#endif
