/* SPDX-License-Identifier: Apache-2.0
 *
 * A libibverbs.so.1 without hardware: RC, UC and UD queue pairs between processes of one machine, over shared memory.
 * It is chosen by library path (LD_LIBRARY_PATH=build/lib/emu) or NCCL_IBVERBS_LIB; docs/emu.md is its manual.
 *
 *   emu_state         what the process has; the clock
 *   emu_segment       the process' file in shared memory, and those of others
 *   emu_wire          links to other processes, and the rings of packets between them
 *   emu_sched         timers, queue pairs with something to send; emu_turn: those that posts or polls alone carry out
 *   emu_cq            completions, completion events, asynchronous events
 *   emu_error         queue pairs in ERR
 *   emu_fault         the table of faults: calls, requests; emu_fault_packet: packets
 *   emu_object        protection domains, memory regions (a GPU's: emu_gpu), CQs, channels, SRQs, address handles
 *   emu_req           the requester: packets out, ACKs and responses in, timers
 *   emu_resp          the responder: packets in, ACKs and responses out
 *   emu_statement     words of a statement; emu_config: devices and ports; emu_fault_script: faults
 *   emu_script        where statements come from; statements that hold others
 *   emu_sysfs         a directory like /sys, with PCI devices
 *   emu_engine        the thread, progress
 *   emu_post          work requests as they are posted, ibv_wr_*; completions as they are polled
 *   emu_qp            queue pairs and their states
 *   emu_device        the list of devices, contexts, queries; emu_names: words for values
 *
 * One lock per process guards all objects. Work is done by whoever holds it: the caller that posts or polls, or the
 * process' thread where nobody does. A packet is what it is on a real wire: at most the path's MTU, with a PSN, dropped
 * when its address, its queue pair or its state is wrong. Between two processes there is a ring in each direction. Each
 * ring lies in memory that only the sender writes; the receiver maps it read-only, copies every header, and checks all
 * of it before use. So a process that is killed leaves its peers with nothing but silence.
 */
#ifndef EMU_H
#define EMU_H

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port
#undef ibv_get_device_list

enum {
  EMU_DEVICES = 16,
  EMU_PORTS = 4,
  EMU_GIDS = 64,
  EMU_PKEYS = 4,
  EMU_SLOTS = 2048, /* processes on a machine; a QP number is 11 bits of process and 13 of its own */
  EMU_QP_BITS = 13,
  EMU_QPS = 1 << EMU_QP_BITS,
  EMU_MAX_PACKET = 4096,
  EMU_MAX_RD_ATOMIC = 128,
  EMU_MAX_SGE = 32,
};

/* ---- devices -------------------------------------------------------------- */

struct emu_gid {
  union ibv_gid gid;
  bool valid;
  uint32_t type, ifindex;
};

struct emu_port {
  enum ibv_port_state state;
  bool ib, grh, one_way; /* one_way: what arrives is lost */
  uint8_t mtu, speed, width;
  uint16_t lid;
  uint32_t max_msg, packet; /* packet: larger ones are lost */
  uint64_t bandwidth, busy_until; /* bytes per second, 0: unlimited; when what was sent so far has left */
  uint64_t latency, subnet;       /* latency: ns that packets are under way to it */
  struct emu_gid gids[EMU_GIDS];
  uint64_t gid_hash[EMU_GIDS]; /* 0: not valid */
};

struct emu_device {
  struct ibv_device ibv; /* first: what callers hold */
  unsigned int index, nports;
  uint64_t guid;
  uint32_t vendor, part;
  char pci[32];
  int max_qp, max_qp_wr, max_sge, max_inline, max_cq, max_cqe, max_mr, max_pd, max_srq, max_srq_wr, max_rd_atomic;
  bool dmabuf, ece, atomics, srq, imm;
  bool zero_byte_rkey; /* an operation without bytes is refused, too, when its rkey is wrong */
  bool endless_retry;  /* a retry count of 7 is for ever, as on rxe */
  bool fatal;
  struct emu_port ports[EMU_PORTS];
  int nqp, ncq, nmr, npd, nsrq;
  uint64_t locked; /* bytes of the pages of its memory regions, each counted for itself */
  LIST_HEAD(emu_contexts, emu_context) contexts;
};

/* ---- events --------------------------------------------------------------- */

struct emu_event {
  STAILQ_ENTRY(emu_event) link;
  struct ibv_async_event event;
};

struct emu_context {
  struct verbs_context verbs;
  struct emu_device *device;
  LIST_ENTRY(emu_context) link;
  STAILQ_HEAD(, emu_event) events; /* those that nobody has read; verbs.context.async_fd counts them */
  bool inherited; /* by a fork: not one of emu.contexts */
};

struct emu_channel {
  struct ibv_comp_channel ibv;
  STAILQ_HEAD(, emu_cq) ready; /* CQs with an event that nobody has read; ibv.fd counts them */
};

/* ---- objects -------------------------------------------------------------- */

struct emu_pd {
  struct ibv_pd ibv;
  unsigned int users;
};

struct emu_mr {
  struct ibv_mr ibv;
  uint64_t iova;
  char *memory; /* what iova stands for */
  void *mapped; /* of a dma-buf */
  size_t mapped_size;
  unsigned int access;
  bool on_gpu; /* an emulated GPU is told of what is written and read */
};

struct emu_cqe {
  struct ibv_wc wc;
  uint64_t place; /* in its queue: it and all before are free once this was polled */
  bool recv;
};

enum emu_arm { EMU_UNARMED, EMU_ARM_SOLICITED, EMU_ARM_ALL };

struct emu_cq {
  struct ibv_cq ibv;
  struct emu_cqe *ring;
  uint32_t cap, head;
  _Atomic uint32_t count; /* changed under the lock; read without it by a poll that may find nothing */
  unsigned int users, async_events, comp_events; /* events: given out and not acknowledged */
  _Atomic(enum emu_arm) armed;
  bool overrun, is_ready;
  uint32_t since_progress;
  STAILQ_ENTRY(emu_cq) ready;
};

struct emu_recv {
  uint64_t wr_id;
  int nsge;
  struct ibv_sge *sge;
};

struct emu_rq {
  uint32_t cap, max_sge;
  uint64_t posted, taken, freed; /* counts */
  struct emu_recv *wqes;
  struct ibv_sge *sges;
};

struct emu_srq {
  struct ibv_srq ibv;
  struct emu_rq rq;
  uint32_t limit;
  unsigned int users, events;
};

struct emu_ah { struct ibv_ah ibv; struct ibv_ah_attr attr; };

/* ---- packets -------------------------------------------------------------- */

enum emu_op {
  EMU_OP_PAD, /* fills the end of a ring */
  EMU_OP_SEND,
  EMU_OP_WRITE,
  EMU_OP_READ,
  EMU_OP_CMP_SWAP,
  EMU_OP_FETCH_ADD,
  EMU_OP_ACK, /* of all up to its PSN; syndrome says what kind */
  EMU_OP_READ_RESPONSE,
  EMU_OP_ATOMIC_RESPONSE,
  EMU_OP_UD,
};

enum emu_packet_flag {
  EMU_FIRST = 1,
  EMU_LAST = 2, /* both: an only packet */
  EMU_IMM = 4,
  EMU_SOLICITED = 8,
  EMU_ACK_REQ = 16,
  EMU_UC = 32,
  EMU_INV = 64,
  EMU_GRH = 128,
};

/* Of an ACK; the low 5 bits of an RNR NAK are its timer. */
enum emu_syndrome {
  EMU_ACK = 0x00,
  EMU_RNR_NAK = 0x20,
  EMU_NAK_SEQUENCE = 0x60,
  EMU_NAK_INVALID_REQUEST = 0x61,
  EMU_NAK_REMOTE_ACCESS = 0x62,
  EMU_NAK_REMOTE_OPERATION = 0x63,
};

struct emu_packet {
  uint32_t size; /* of the record: this header, payload, padding to 16 */
  uint8_t op, flags, mtu, syndrome;
  uint32_t dqpn, sqpn, psn;
  uint32_t payload;
  uint32_t rkey, length; /* of the whole message */
  uint64_t va;
  uint64_t to, from; /* hashes of the addresses */
  union {
    uint32_t imm;
    uint32_t qkey;
    uint64_t compare;
  };
  uint64_t swap; /* and an atomic's result; UD: the immediate */
  union ibv_gid sgid, dgid; /* UD only: what the receiver's GRH says */
};
#define EMU_HEADER offsetof(struct emu_packet, sgid) /* all but UD's end before the GIDs */

/* ---- queue pairs ---------------------------------------------------------- */

struct emu_sqe {
  uint64_t wr_id, raddr, compare, swap;
  uint32_t rkey, imm, length;
  uint32_t first_psn, npackets, received; /* received: bytes of a read's response */
  uint32_t qpn, qkey;
  struct ibv_ah_attr path; /* of a datagram: its address handle may be destroyed before it leaves */
  enum ibv_wr_opcode opcode;
  unsigned int flags;
  int nsge;
  bool is_inline, counted, stall; /* counted: by the faults, whose verdict follows */
  enum ibv_wc_status fault;
  uint32_t fault_vendor;
};

enum emu_timer { EMU_TIMER_ACK, EMU_TIMER_PAUSE, EMU_TIMERS }; /* PAUSE: no packet leaves before (RNR, slow) */

struct emu_response {
  uint64_t asked_at; /* position of its request in the peer's ring */
  uint8_t op, syndrome;
  uint32_t psn, npackets, sent;
  uint32_t rkey, length;
  uint64_t va, result;
};

struct emu_saved_atomic {
  uint32_t psn;
  uint64_t result;
  bool valid;
};

struct emu_held;

struct emu_qp {
  struct ibv_qp_ex ex; /* first; ex.qp_base is what callers hold */
  struct emu_device *device;
  struct emu_pd *pd;
  struct emu_srq *srq;
  struct emu_link *link; /* to the peer's process; NULL: nobody is there */
  struct ibv_qp_attr attr;
  struct ibv_qp_cap cap;
  unsigned int events; /* given out and not acknowledged */
  bool sq_sig_all, wants_room, behind; /* the ring was full; it has waited for bandwidth since it had nothing to send */
  uint32_t mtu; /* in bytes */
  uint64_t to, from;

  /* requester */
  struct emu_sqe *sq;
  struct ibv_sge *sq_sges;
  char *sq_inline;
  uint32_t sq_cap;
  uint64_t sq_posted, sq_next, sq_una, sq_freed; /* counts: posted, next to send, oldest not done, given back */
  uint32_t next_packet, reads_outstanding;       /* next_packet: of sq_next */
  uint32_t post_psn, una_psn, high_psn; /* of the next request; oldest not acknowledged; behind all that was sent */
  uint32_t asked_psn; /* behind the latest packet that asks for an ACK and was sent since the last retry */
  uint64_t sent_at, timed_at, answers_at; /* behind the latest packet; that when the ACK timer began; its answers */
  unsigned int retries_left, rnr_left;
  uint64_t timer_at[EMU_TIMERS]; /* 0: off */
  bool in_timers, in_run, slowed, implied_nak; /* the next packet has waited (slow); a response is known to be lost */
  uint32_t turn; /* requests that may begin now, where polls carry them out */
  LIST_ENTRY(emu_qp) timers;
  TAILQ_ENTRY(emu_qp) run;

  /* ibv_wr_* */
  pthread_mutex_t batch_lock; /* from wr_start to wr_complete or wr_abort */
  struct ibv_send_wr *batch;
  struct ibv_sge *batch_sges;
  uint32_t batch_n;
  int batch_error;

  /* responder */
  struct emu_rq rq;
  uint32_t exp_psn;
  bool nak_sent, in_message, recv_taken;
  uint8_t message_op;
  uint32_t message_rkey, message_left, message_done;
  uint64_t message_va;
  struct emu_recv recv;
  struct ibv_sge recv_sges[EMU_MAX_SGE];
  uint64_t recv_place;
  struct emu_response *responses;
  uint32_t responses_cap, responses_first, responses_n;
  struct emu_saved_atomic *saved;
  uint32_t saved_next;

  STAILQ_HEAD(, emu_held) held; /* packets that are given to it later (latency, delay, tear) */
  LIST_ENTRY(emu_qp) holding;
};

/* ---- the process ---------------------------------------------------------- */

/* Who carries out requests (statement `progress`). */
enum emu_by { EMU_BY_THREAD, EMU_BY_POST, EMU_BY_POLL };

extern struct emu_state {
  pthread_mutex_t lock;
  pthread_cond_t acked;
  unsigned int ndevices, contexts;
  struct emu_device devices[EMU_DEVICES];
  bool no_gid_table, no_devices, virtual_clock, overrun; /* overrun: a CQ has lost a completion */
  bool engine_running, engine_idle; /* engine_idle: the thread sleeps, and had nothing to send */
  _Atomic enum emu_by progress_by; /* changed under the lock; read without it by a poll */
  uint32_t burst, ring_bytes; /* burst: of a turn */
  uint64_t skip; /* which queue pairs have none; 0: each has one */
  struct emu_qp *qps[EMU_QPS];
  struct emu_qp *last_qp;
  unsigned int next_qp, nqps, ndatagram_qps;
  struct emu_mr **mrs;
  uint32_t mrs_cap, next_mr, nmrs;
  uint8_t mr_generation;
  TAILQ_HEAD(emu_run, emu_qp) run;       /* with something to send */
  LIST_HEAD(emu_timers, emu_qp) timers;
  uint64_t next_timer, next_held; /* no timer is earlier; no packet that is held back is due earlier */
  uint64_t reading;      /* position, in its ring, of the packet that is just given to its queue pair */
  uint64_t engine_until; /* the thread sleeps no longer than that; 0: it is awake */
  int64_t clock_skip;    /* of the virtual clock: ns before real time */
  _Atomic uint64_t polls, armed_polls; /* all of them; those of CQs that were to notify */
} emu;

static inline struct emu_qp *emu_qp_find(uint32_t qpn) {
  struct emu_qp *qp = emu.qps[qpn & (EMU_QPS - 1)];
  return qp && qp->ex.qp_base.qp_num == qpn ? qp : NULL;
}

/* emu_sysfs.c */
bool emu_is_pci(const char *address);
const char *emu_sysfs(void); /* a directory like /sys, for devices with a PCI address; NULL: none has one */
void emu_sysfs_remove(void);

/* emu_config.c */
void emu_default_gids(struct emu_device *device, unsigned int port);
void emu_hash_gids(struct emu_device *device, unsigned int port);
uint64_t emu_hash_address(const struct emu_port *port, const union ibv_gid *gid, uint16_t lid);

/* emu_cq.c */
void emu_complete(struct emu_qp *qp, bool recv, uint64_t place, bool solicited, const struct ibv_wc *wc);
void emu_cq_forget(struct emu_cq *cq, uint32_t qpn);
void emu_cq_withdraw_event(struct emu_cq *cq); /* the one that nobody has read */
int emu_cq_take(struct emu_cq *cq, int n, struct ibv_wc *wc); /* up to n completions; how many */
void emu_raise(struct emu_device *device, const struct ibv_async_event *event);
void emu_raise_qp(struct emu_qp *qp, enum ibv_event_type type);
void emu_forget_events(struct emu_context *context, const void *object);
/* Waits, under the lock, until all events of an object were acknowledged. */
void emu_wait_acked(const unsigned int *events);

/* emu_object.c */
struct emu_mr *emu_mr_find(uint32_t key);
char *emu_mr_reach(const struct emu_mr *mr, uint64_t addr, uint64_t length); /* NULL: that is not in its range */
bool emu_mr_allows(const struct emu_mr *mr, const struct emu_pd *pd, uint64_t addr, uint64_t length,
                   unsigned int access);
/* Bytes of a queue pair's peer into a region, and out of it for a read's response. The region has the range. */
void emu_mr_write(const struct emu_mr *mr, uint64_t addr, const char *from, uint32_t size);
void emu_mr_read(const struct emu_mr *mr, uint64_t addr, char *to, uint32_t size);
int emu_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
struct ibv_srq *emu_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr);
struct ibv_cq_ex *emu_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
bool emu_rq_init(struct emu_rq *rq, uint32_t cap, uint32_t max_sge);
void emu_rq_free(struct emu_rq *rq);
int emu_rq_post(struct emu_rq *rq, const struct ibv_recv_wr *wr);

/* emu_qp.c */
struct ibv_qp *emu_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
void emu_qp_forget(struct emu_qp *qp); /* nothing leads to it any more, and it leads nowhere */
static inline struct emu_qp *emu_qp_of(struct ibv_qp *qp) { return (struct emu_qp *)(void *)qp; }
static inline struct emu_port *emu_port_of(const struct emu_qp *qp) {
  return &qp->device->ports[qp->attr.port_num ? qp->attr.port_num - 1 : 0];
}

/* emu_error.c */
void emu_qp_error(struct emu_qp *qp); /* to ERR: everything outstanding is flushed */
void emu_sq_error(struct emu_qp *qp); /* the same, of a request's own error: UC and UD to SQE, and receives go on */
void emu_qp_flush(struct emu_qp *qp); /* in SQE: its send queue */
void emu_device_fatal(struct emu_device *device);
void emu_cqs_overrun(void); /* the queue pairs of CQs that have lost completions */

/* emu_post.c */
int emu_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int emu_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
bool emu_wr_init(struct emu_qp *qp); /* it is used by ibv_wr_*; false: no memory */
int emu_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int emu_req_notify_cq(struct ibv_cq *cq, int solicited_only);

/* emu_req.c */
void emu_req_reset(struct emu_qp *qp);
bool emu_req_run(struct emu_qp *qp); /* false: something is left that can be sent only later */
void emu_req_packet(struct emu_qp *qp, const struct emu_packet *packet, const char *payload);
void emu_req_timeout(struct emu_qp *qp, enum emu_timer kind, uint64_t now);
void emu_req_fail(struct emu_qp *qp, enum ibv_wc_status status, uint32_t vendor_err);
bool emu_req_is_outstanding(const struct emu_qp *qp);
void emu_req_drained(struct emu_qp *qp); /* raises SQ_DRAINED where that is so and asked for */

/* emu_resp.c */
void emu_resp_reset(struct emu_qp *qp);
bool emu_resp_run(struct emu_qp *qp);
void emu_resp_packet(struct emu_qp *qp, const struct emu_packet *packet, const char *payload);

/* emu_wire.c */
int emu_wire_open(void); /* the process' own memory; 0 or errno */
void emu_wire_close(void);
void emu_wire_exit(void); /* at the end of the process: nobody finds the memory any more; it stays mapped */
void emu_wire_forget(void); /* in a child, which has none */
uint32_t emu_wire_slot(void);
struct emu_link *emu_link_get(uint32_t slot); /* NULL: there is no such process */
struct emu_link *emu_link_keep(struct emu_link *link, uint32_t slot); /* that one, if it leads there; else another */
void emu_link_put(struct emu_link *link);
bool emu_link_is_alive(const struct emu_link *link); /* its process lives; asks the system */
bool emu_link_has_memory(struct emu_link *link); /* for the next packet; else it is lost */
/* Room for a packet in the ring; NULL: it is full. Then fill it, and commit. */
struct emu_packet *emu_link_reserve(struct emu_link *link, uint32_t header, uint32_t payload);
void emu_link_commit(struct emu_link *link, struct emu_packet *packet);
uint64_t emu_link_position(const struct emu_link *link);
/* False while what was sent up to `position` may still be answered: the peer lives and has not processed it, or its
 * answers are not read yet. Their end is kept in `answers`, which is 0 at first. */
bool emu_link_is_silent(struct emu_link *link, uint64_t position, uint64_t *answers);
void emu_wire_flush(void); /* makes packets visible, wakes their receivers */
bool emu_wire_receive(void (*deliver)(const struct emu_packet *packet, const char *payload)); /* true: some came */
bool emu_wire_has_input(void);
void emu_wire_answered(void (*each_held)(void (*fn)(const struct emu_qp *qp, uint64_t at))); /* emu_fault_each_held */
_Atomic uint32_t *emu_wire_doorbell(void);
void emu_wire_sleeping(bool sleeping);
/* Bytes between user memory, rings and saved packets; as by a device: sanitizers do not see it. */
void emu_move(void *to, const void *from, size_t size);

uint64_t emu_now(void); /* emu_state.c */

/* emu_gpu.c. Is that the memory of an emulated GPU? Where the memory of its dma-buf is; NULL: it is none of that. */
bool emu_gpu_holds(const void *p, size_t size);
char *emu_gpu_dma_buf(int fd, uint64_t offset, size_t size);
/* The device writes there; it answers a read from there. Only for memory of an emulated GPU. */
void emu_gpu_wrote(const struct emu_device *d, const void *p, size_t size);
void emu_gpu_read(const struct emu_device *d);

/* emu_sched.c */
void emu_engine_wake(void);
void emu_timer_set(struct emu_qp *qp, enum emu_timer kind, uint64_t at);
void emu_timer_off(struct emu_qp *qp, enum emu_timer kind);
void emu_timer_remove(struct emu_qp *qp);
void emu_run_later(struct emu_qp *qp);
void emu_run_remove(struct emu_qp *qp);
/* What leaves this QP's port does not arrive: the port is down, the packet too large, nobody is there. */
bool emu_is_lost(struct emu_qp *qp, uint32_t payload);
bool emu_is_throttled(struct emu_qp *qp, uint32_t payload); /* the port's bandwidth is used up; else counts the bytes */

/* emu_turn.c */
void emu_quiesce(void); /* until all that was sent has been answered, as far as it stays within this process */
void emu_turn_polled(const struct emu_cq *cq); /* its queue pairs have their turns */

/* emu_engine.c */
void emu_progress(void);
/* Of the devices that are open, the process' memory and its thread: opening, closing and forking change them one at a
 * time, under this lock. It is taken before emu.lock. */
extern pthread_mutex_t emu_lifecycle;
int emu_engine_start(void);
void emu_engine_stop(void); /* under emu_lifecycle */
void emu_engine_forget(void);
void emu_engine_handover(void); /* nobody polls from here on */

static inline struct emu_context *emu_context_of(struct ibv_context *context) {
  return (struct emu_context *)(void *)((char *)verbs_get_ctx(context) - offsetof(struct emu_context, verbs));
}
static inline struct emu_device *emu_device_of(struct ibv_context *c) { return emu_context_of(c)->device; }
static inline bool emu_is_atomic(enum ibv_wr_opcode op) {
  return op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
/* None of its requests may begin before its send CQ is polled. */
static inline bool emu_turn_is_over(const struct emu_qp *qp) { return emu.progress_by == EMU_BY_POLL && qp->turn == 0; }
static inline uint32_t emu_psn(uint32_t psn) { return psn & 0xffffff; }
/* The distance from b to a, -2^23 to 2^23 - 1. */
static inline int32_t emu_psn_diff(uint32_t a, uint32_t b) { return (int32_t)((a - b) << 8) >> 8; }

#endif
