/* SPDX-License-Identifier: Apache-2.0
 *
 * libfakefabric.so: a libfabric of its own (API 1.17, FI_EP_RDM), chosen by RAIL_OFI_LIBRARY, for tests of the ofi
 * plugin without a fabric. Endpoints of one process reach each other. Progress is manual: data moves only while a
 * completion queue is read. It is as strict as the strictest provider: what a caller does against the interface is a
 * violation. Each is a line on stderr, is counted, and ends as an error of that call.
 *
 * What it offers and what goes wrong is said by words `key=value` in FAKEFABRIC, in the file that FAKEFABRIC=@FILE
 * names, and later through fakefabric_script(). Spaces and line ends separate them; '#' begins a comment; LIST is
 * words joined by commas; KIND is send tsend write read recv trecv or any.
 *
 * Offers. Before the first `nic` they hold for all NICs that follow, behind one for that one. Without any there is one,
 * fake0. At run time they change the NIC that `nic` names (fi_getinfo calls see it), or all.
 *   nic=NAME                  a domain of this name (two of one name: two providers of one NIC)
 *   nics=none                 fi_getinfo finds none; forgets those there are, and what holds for all
 *   prov=NAME fabric=NAME net=NAME (of the link)   nic_addr=TEXT (of the link)   addr=in|in6|str|raw (in)
 *   speed=GBIT (100; 0: not known)   link=up|down|unknown   pci=DDDD:BB:DD.F|none   nic_attr=0|1 (0: no struct fid_nic)
 *   no=LIST, add=LIST         takes away, adds: msg rma tagged read source multi_recv directed hmem local remote,
 *                             orders sas saw was waw raw war rar sar ras, delivery (complete), strict (order of
 *                             completions). All but hmem and strict are there.
 *   inject=N (64) cq_data=N (8) mr_key=N (8) max_msg=N (2^30) tx_size=N (256) rx_size=N (1024) iov=N (4) mr_cnt=N
 *   ep_cnt=N cq_cnt=N (0: no limit is said)   tag_format=HEX (64 bits)
 *   mr_mode=LIST|none         local virt_addr allocated prov_key endpoint hmem (virt_addr,allocated,prov_key)
 *                             endpoint: one with MRs answers fi_close with -FI_EBUSY, then they may be closed first
 *   mode=context|context2|none   threading=safe|fid|endpoint|completion|domain (domain)
 *   data=manual|auto (manual)   what is said of progress; `move` is what is done
 *   av=map|table|any (any)    rm=0|1 (1: resource management)
 *
 * Behaviour:
 *   move=both|sender|receiver|any   whose reads of a CQ move data: first the sender's, then the receiver's (both); one
 *                             side's alone; anybody's
 *   eager=BYTES (4096)        larger messages complete at the sender when they were received. Smaller ones, and writes
 *                             without FI_DELIVERY_COMPLETE, complete when they were sent, before they are there
 *   early=0|1 (1)             0: writes complete when they are placed
 *   burst=N                   at most N operations of an endpoint move in one read of a CQ
 *   eagain=PERCENT, eagain_next=N   posting answers -FI_EAGAIN so often, or the next N times
 *   late=POLLS                a completion waits for up to that many reads of its CQ (drawn)
 *   reorder=PERCENT           so many completions overtake others of their CQ
 *   overtake=PERCENT          so many messages, writes and reads are overtaken where the orders offered allow it
 *   torn=BYTES                writes are placed in pieces of that size, one a read of a CQ, the last piece first
 *   fail=WHAT:N[:ERROR[:PROV[:TIMES]]]   the N-th from now on (1) fails TIMES (1) with FI_ERROR (EIO). WHAT is a KIND
 *                             (it completes with that error and prov_errno PROV), or a call: getinfo fabric domain
 *                             endpoint enable cq_open av_open av_insert mr_reg mr_hmem (of device memory) getname
 *                             setopt ep_bind
 *   err_text=TEXT             what fi_cq_strerror says of it ('_' for a space)
 *                             TIMES may be `ever`, here and below
 *   hang=KIND:N[:TIMES]       it never completes.   lose=KIND:N[:TIMES]   it completes as sent and never arrives
 *   dead=N[:ERROR]            the N-th endpoint made (1) is dead (0: all are): nothing of it or to it moves, or all
 *                             fails with ERROR
 *   gone=ERROR|silent         how operations to an endpoint that was closed end (ECONNREFUSED)
 *   cuda=0|1 (0)              1: fi_getparams names a parameter that only a library built with CUDA has
 *   av_size=N (0: no limit)   addresses in an AV: more end with -FI_ENOSPC
 *   cq_size=N                 instead of what is asked for.   overrun=0|1|2 (0)   1: a full CQ is lost: an error event
 *                             FI_EOVERRUN. 2: its reads return it
 *   seed=N                    of all that is drawn
 *   strict=report|abort       abort: the first violation ends the process
 *   reset=1                   behaviour as in the beginning; offers, objects and violations stay
 *
 * For tests in the same process, by dlsym on the library (dlopen it with RTLD_NOLOAD):
 *   int fakefabric_script(const char *text);            0, or -1 after a line on stderr
 *   long fakefabric_live(const char *kind);             how many are open: fabric domain ep cq av mr info
 *   long fakefabric_calls(const char *what);            how often it was called or begun (the names of `fail`)
 *   long fakefabric_violations(void);                   how many there were
 *   const char *fakefabric_violation(long i);           what the i-th was, from 0
 *   void fakefabric_forget_violations(void);
 *
 * Not there (a call of it ends the process): event queues, counters, wait objects and fi_cq_sread, scalable and
 * passive endpoints, atomics, fi_av_insertsvc; FI_PEEK, more than one piece of an MR or of remote memory, auth keys are
 * refused. Device memory (FI_HMEM), of the GPU that the driver says, is registered as it is described and used as host
 * memory. A getinfo that asks for capabilities must ask for FI_HMEM; one with other hints does not get it.
 *
 * Sanitizers. The library is not sanitized, and its lock and its copies are its own (ff_memory.c), so that they make no
 * happens-before edges: a caller that relies on this library's lock instead of its own is seen. What a provider does to
 * the caller's memory is told to the sanitizer that runs: buffers are read where they are posted and written where
 * their completion is read, each call writes what its threading model says is used by one thread at a time, and
 * poisoned memory is a violation.
 */
#ifndef FF_H
#define FF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#define FF_ORDER_STRICT 0x1ffu /* FI_ORDER_STRICT: a use of that name warns with headers of 2.x */
enum { FF_NICS = 32, FF_IOVS = 8, FF_ADDR = 32, FF_EPS = 1 << 16, FF_MRS = 1 << 20, FF_VIOLATIONS = 64 };
enum ff_kind { FF_SEND, FF_TSEND, FF_WRITE, FF_READ, FF_RECV, FF_TRECV, FF_KINDS };
enum ff_move { FF_BOTH, FF_SENDER, FF_RECEIVER, FF_ANY };

/* What is offered: one fi_info. Numbers are uint64_t, so that one table names them all. */
struct ff_nic {
  char name[64], prov[64], fabric[64], net[32], link_address[64], pci[32];
  uint64_t caps, order, delivery, strict, mode, mr_mode, threading, data, av, addr_format, rm, link, nic_attr, speed;
  uint64_t inject, cq_data, mr_key, max_msg, tx_size, rx_size, iov, mr_cnt, ep_cnt, cq_cnt, tag_format, index;
};

enum ff_class { FF_FABRIC, FF_DOMAIN, FF_EP, FF_CQ, FF_AV, FF_MR, FF_INFO, FF_CLASSES };

/* Objects are never freed, so that calls on closed ones can be told. */
struct ff_object {
  enum ff_class class;
  bool closed;
  struct ff_object *parent;
  unsigned int users; /* open objects that need it */
  struct ff_domain *domain;
  int inside;       /* threads that are in a call of what this serialises */
  uint64_t witness; /* written for the race detector */
};

struct ff_fabric {
  struct fid_fabric fid;
  struct ff_object o;
};

struct ff_domain {
  struct fid_domain fid;
  struct ff_object o;
  struct ff_nic nic;
  int mr_mode;
  enum fi_threading threading;
};

struct ff_mr {
  struct fid_mr fid;
  struct ff_object o;
  struct ff_mr *next; /* of the same hash */
  uint64_t key, access, id;
  char *base;
  size_t len;
  struct ff_ep *ep; /* FI_MR_ENDPOINT */
  bool enabled, device; /* device: of memory of a device */
  unsigned int uses; /* by operations */
};

struct ff_cqe {
  struct ff_cqe *next;
  struct ff_ep *ep;
  struct fi_cq_err_entry e;
  fi_addr_t src;
  uint64_t due; /* the read of the CQ that may see it */
  bool stamped; /* the context has our stamp */
};

struct ff_cq {
  struct fid_cq fid;
  struct ff_object o;
  enum fi_cq_format format;
  uint64_t size, count, polls, last_due;
  struct ff_cqe *first, **last;
  bool overrun;
  char err_data[128];
};

struct ff_av {
  struct fid_av fid;
  struct ff_object o;
  enum fi_av_type type;
  uint64_t count, room;
  uint32_t *numbers; /* of endpoints; 0: removed */
};

struct ff_request {
  enum ff_kind kind;
  const struct iovec *iov;
  void **desc;
  size_t n, nrma;
  const struct fi_rma_iov *rma;
  fi_addr_t addr;
  uint64_t tag, ignore, data, flags;
  void *context;
};
/* In flags, where libfabric has none: those of the endpoint; no completion but an error's. */
#define FF_DEFAULTS (1u << 0)
#define FF_QUIET (1u << 7)

/* An operation: in a list of its endpoint, then, what is sent, in one of its target. */
struct ff_op {
  struct ff_op *next;
  enum ff_kind kind;
  struct ff_ep *ep;
  uint32_t to;
  fi_addr_t src_addr; /* of receives */
  uint64_t tag, ignore, data, flags;
  void *context;
  struct iovec iov[FF_IOVS];
  struct ff_mr *mrs[FF_IOVS];
  struct fi_rma_iov rma;
  uint64_t sum;
  size_t n, len, placed;
  char *copy;
  bool judged, done, quiet, stamped;
};

struct ff_list {
  struct ff_op *first, **last;
};

struct ff_ep {
  struct fid_ep fid;
  struct ff_object o;
  struct ff_ep *next;
  uint64_t caps, tx_flags, rx_flags, tx_size, rx_size, inject, ntx, nrx, min_multi_recv;
  struct ff_cq *tx_cq, *rx_cq;
  struct ff_av *av;
  bool tx_selective, rx_selective, enabled, closing;
  unsigned int bound; /* open MRs (FI_MR_ENDPOINT) */
  uint32_t number;
  struct ff_list tx, hung, rx_new, rx[2], inbox, unexpected[2];
  uint64_t scan, seen; /* which kinds of this sender one walk through an inbox has left behind */
};

enum { FF_HANGS = -1, FF_LOST = -2 };
struct ff_verdict {
  int err, prov; /* err: FI_ERROR or one of these */
};

/* Everything, under one lock. */
extern struct ff_state {
  unsigned int nnics;
  struct ff_nic defaults, nics[FF_NICS];
  bool none, abort_on_violation;
  uint64_t move, eager, early, burst, eagain, eagain_next, late, reorder, overtake, torn, av_size, cq_size, overrun;
  uint64_t cuda, seed;
  uint64_t scans;
  int gone; /* an error; 0: silent */
  char err_text[96];
  long live[FF_CLASSES], violations;
  char violation[FF_VIOLATIONS][240];
  struct ff_ep *eps;
  uint32_t neps, nmrs;
  struct ff_ep *ep_of[FF_EPS];
  struct ff_mr *mr_of[FF_MRS], *keys[4096];
} ff;

/* ff_memory.c */
void ff_lock(void);
void ff_unlock(void);
void *ff_alloc(size_t size); /* zeroed, unknown to sanitizers */
void ff_free(void *p);
/* As snprintf, seen as little. */
__attribute__((format(printf, 3, 4))) int ff_print(char *to, size_t size, const char *fmt, ...);
__attribute__((format(printf, 3, 0))) int ff_vprint(char *to, size_t size, const char *fmt, va_list ap);
void ff_will_read(const void *p, size_t size); /* by the caller's thread, for sanitizers */
void ff_will_write(void *p, size_t size);
bool ff_poisoned(const void *p, size_t size);

/* ff_script.c */
extern const char *const ff_kind_names[FF_KINDS];
void ff_load(void); /* once */
uint64_t ff_draw(uint64_t below);
bool ff_chance(uint64_t percent);
int ff_fault(const char *call); /* counts it; 0, or the negative error that it is to return */
struct ff_verdict ff_judge(enum ff_kind kind);
int ff_dead(uint32_t number); /* an error; -1: silent; 0: it lives */
__attribute__((format(printf, 1, 2))) void ff_violate(const char *fmt, ...);

/* ff_info.c */
struct ff_nic *ff_nic_of(const struct fi_info *info);

/* ff_object.c */
bool ff_enter(struct ff_object *o, const char *call); /* takes the lock, unless it says false */
void ff_leave(struct ff_object *o);
void ff_open(struct ff_object *o, enum ff_class class, struct ff_object *parent);
int ff_shut(struct ff_object *o); /* 0, or -FI_EBUSY; with the lock */
int ff_no_bind(struct fid *fid, struct fid *to, uint64_t flags);
int ff_no_control(struct fid *fid, int command, void *arg);
int ff_no_ops(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context);

/* ff_mr.c */
extern struct fi_ops_mr ff_mr_ops;
struct ff_mr *ff_mr_of_desc(void *desc);
/* Where the bytes are that a peer names; NULL and an error, which is a violation, if it is to be reported, but for keys
 * of MRs that are closed: their owner may close them any time. */
char *ff_mr_reach(struct ff_ep *ep, const struct fi_rma_iov *rma, uint64_t access, int *err, bool report);

/* ff_endpoint.c */
int ff_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context);
int ff_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context);
size_t ff_address(const struct ff_nic *nic, uint32_t number, void *addr);
uint32_t ff_av_number(const struct ff_av *av, fi_addr_t addr);
fi_addr_t ff_av_addr(const struct ff_av *av, uint32_t number);

/* ff_calls.c */
extern struct fi_ops_msg ff_msg_ops;
extern struct fi_ops_tagged ff_tagged_ops;
extern struct fi_ops_rma ff_rma_ops;

/* ff_data.c */
ssize_t ff_post(struct fid_ep *ep, const struct ff_request *request);
ssize_t ff_cancel(fid_t fid, void *context);
void ff_progress(struct ff_cq *cq);
void ff_drop(struct ff_ep *ep); /* what it has in flight, when it closes */

/* ff_cq.c */
int ff_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context);
void ff_complete(struct ff_cq *cq, struct ff_ep *ep, const struct fi_cq_err_entry *e, fi_addr_t src, bool stamped);
void ff_stamp(void *context, uint64_t mode);
bool ff_stamped(const void *context);
void ff_unstamp(void *context, uint64_t mode);
void ff_cq_forget(struct ff_cq *cq, const struct ff_ep *ep); /* closes: contexts of its completions are the caller's */

#endif
