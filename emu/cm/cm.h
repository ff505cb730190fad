/* SPDX-License-Identifier: Apache-2.0
 *
 * A librdmacm.so.1 over the emulated devices: connections are agreed on over Unix sockets between processes of one
 * machine, by messages that stand for those of the InfiniBand CM (REQ, REP, RTU, REJ, DREQ, DREP). Which address
 * belongs to which port is in docs/emu.md.
 *
 *   cm_loop    the lock, the thread that waits for sockets and timers
 *   cm_event   channels and events
 *   cm_addr    addresses, the ports that they belong to, devices that are open
 *   cm_wire    messages, and the sockets that bring them
 *   cm_qp      queue pairs of an id
 *   cm_conn    a connection from REQ to its end
 *   cm_id      ids: made, resolved, destroyed; options
 *   cm_ep      endpoints: an id, its queue pair and its route in one call; rdma_getaddrinfo
 *
 * One lock guards everything. Calls of libibverbs are made under it, and never the other way round.
 */
#ifndef EMU_CM_H
#define EMU_CM_H

#include <netinet/in.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

enum {
  CM_DEVICES = 16,
  CM_MAX_PRIVATE = 255,
  /* What messages of the InfiniBand CM have room for. An event brings all of it, with zeros behind what was sent. */
  CM_PRIVATE_REQ = 56,
  CM_PRIVATE_REP = 196,
  CM_PRIVATE_REJ = 148,
  CM_PRIVATE_SIDR_REQ = 180,
  CM_PRIVATE_SIDR_REP = 136,
  /* Linux's: 16 times 4.3 s for an answer; RoCE's time of a packet's life, twice. */
  CM_ANSWER_MS = 68000,
  CM_TIMEWAIT_MS = 500,
  CM_ACK_TIMEOUT = 17,
  CM_MAX_BACKLOG = 1024,
  /* Reasons of a REJ. */
  CM_REJ_TIMEOUT = 4,
  CM_REJ_INVALID_SERVICE_ID = 8,
  CM_REJ_CONSUMER_DEFINED = 28,
};

/* ---- addresses --------------------------------------------------------------- */

struct cm_device {
  struct ibv_context *context; /* open from its first use to the process' end, as ids' users expect */
  struct ibv_pd *pd;           /* for QPs that are given none */
  unsigned int pd_users;
  uint8_t max_resources;
};

/* A port, and the GID that stands for an address there. */
struct cm_place {
  struct cm_device *device;
  uint8_t port;
  int gid_index;
  union ibv_gid gid;
  struct ibv_port_attr attr;
};

struct cm_addr {
  struct in6_addr ip; /* IPv4 mapped */
  uint16_t port;      /* host order */
};

/* ---- messages ------------------------------------------------------------------ */

enum cm_type { CM_REQ = 1, CM_REP, CM_RTU, CM_REJ, CM_DREQ, CM_DREP };

struct cm_message {
  uint32_t magic;
  uint8_t type, udp, mtu, private_len;
  uint8_t responder_resources, initiator_depth, retry_count, rnr_retry_count;
  uint8_t flow_control, srq, reason, ipv4; /* ipv4: family of the addresses */
  uint32_t qpn, psn, qkey;
  uint32_t ece_vendor, ece_options;
  uint16_t lid, unused;
  union ibv_gid gid;        /* the sender's port */
  struct cm_addr src, dst; /* REQ */
  uint8_t private_data[CM_MAX_PRIVATE];
};

/* ---- ids ------------------------------------------------------------------------- */

enum cm_state {
  CM_IDLE,
  CM_RESOLVING_ADDR,
  CM_ADDR_RESOLVED,
  CM_RESOLVING_ROUTE,
  CM_ROUTE_RESOLVED,
  CM_CONNECTING, /* REQ sent */
  CM_RESPONDED,  /* REP received, RTU not sent */
  CM_LISTENING,
  CM_EMBRYO,    /* a socket was accepted, no REQ yet */
  CM_REQUESTED, /* REQ received */
  CM_ACCEPTED,  /* REP sent, no RTU yet */
  CM_CONNECTED,
  CM_DISCONNECTING, /* DREQ sent */
  CM_DISCONNECTED,  /* DREQ received */
  CM_OVER,
};

struct cm_id;

struct cm_event {
  struct rdma_cm_event event; /* first: what callers hold */
  STAILQ_ENTRY(cm_event) link;
  struct cm_id *counted; /* the id whose end waits for the acknowledgement */
  uint8_t private_data[CM_MAX_PRIVATE + 1];
};
STAILQ_HEAD(cm_events, cm_event);

struct cm_channel {
  struct rdma_event_channel ch; /* first; an eventfd, readable while there are events */
  struct cm_events events;
  unsigned int readers; /* threads inside rdma_get_cm_event */
  bool is_destroyed;    /* freed by the last of them */
};

struct cm_id {
  struct rdma_cm_id id; /* first: what callers hold */
  LIST_ENTRY(cm_id) link;
  uint64_t serial; /* by which the loop finds it */
  enum cm_state state;
  bool sync, own_cqs, own_pd; /* sync: it has a channel of its own, and its calls wait for their events */
  unsigned int events;        /* given out and not acknowledged */

  struct cm_place place;
  struct cm_addr src, dst;
  bool src_is_any, is_bound;
  struct ibv_sa_path_rec *path;

  int fd; /* a Unix socket; while it is open, address and port are taken */
  bool is_watched;
  void (*on_readable)(struct cm_id *id);
  uint64_t dial_until; /* ms: so long it is tried to reach a listener whose queue is full */
  uint64_t deadline; /* ms; 0: none */
  void (*on_deadline)(struct cm_id *id);

  struct cm_id *listener; /* of an id that a REQ made, until its event was read */
  int backlog, requests;
  struct ibv_qp_init_attr *ep_attr; /* of rdma_create_ep: for the ids that requests make */

  struct cm_message peer;        /* REQ or REP */
  struct cm_message *late;       /* a message that a fault delays; nothing is read behind it */
  uint8_t responder_resources, initiator_depth, retry_count, rnr_retry_count, ack_timeout, tos;
  uint32_t qpn, psn, qkey;
  struct ibv_ece ece;
};

static inline struct cm_id *cm_id_of(struct rdma_cm_id *id) { return (struct cm_id *)(void *)id; }
static inline bool cm_is_udp(const struct cm_id *id) { return id->id.ps == RDMA_PS_UDP; }

extern struct cm_all {
  pthread_mutex_t lock;
  pthread_cond_t acked;
  LIST_HEAD(cm_ids, cm_id) ids;
} cm;

/* 0, or -1 with errno: what every call of this interface returns. */
int cm_result(int err);

/* cm_loop.c */
uint64_t cm_now(void);                  /* ms */
void cm_add(struct cm_id *id);          /* to the list, with a serial number */
void cm_remove(struct cm_id *id);       /* off the list; its socket is closed */
int cm_watch(struct cm_id *id);         /* on_readable is called when its socket has something; 0 or errno */
void cm_unwatch(struct cm_id *id);
int cm_set_deadline(struct cm_id *id, uint64_t ms, void (*on_deadline)(struct cm_id *id)); /* from now; 0 or errno */

/* cm_event.c */
void cm_free(struct cm_id *id); /* nobody knows it any more */
struct cm_event *cm_event_alloc(struct cm_id *id, enum rdma_cm_event_type type, int status);
void cm_event_push(struct cm_event *event); /* to the channel of its id, or of the id that listens */
void cm_report(struct cm_id *id, enum rdma_cm_event_type type, int status); /* both */
/* The next one of a channel; without the lock, under which on_read sees it. NULL: errno says why. */
struct cm_event *cm_event_read(struct cm_channel *channel, void (*on_read)(struct cm_event *event));
void cm_events_withdraw(struct cm_id *id); /* all that nobody has read */
bool cm_own_channel(struct cm_id *id); /* gives it a channel of its own, to which its events move; false: no memory */
void cm_wait_acked(const struct cm_id *id);

/* cm_addr.c */
struct cm_device *cm_device_at(unsigned int index); /* opens it; NULL: there is none, or it cannot be opened */
bool cm_addr_read(const struct sockaddr *from, struct cm_addr *to);
void cm_addr_write(const struct cm_addr *from, bool ipv4, struct sockaddr_storage *to);
bool cm_addr_is_any(const struct cm_addr *addr);
bool cm_place_of(const struct cm_addr *addr, struct cm_place *place); /* false: no port has this address */
bool cm_place_is_up(const struct cm_place *place);
void cm_enter(struct cm_id *id, const struct cm_place *place); /* the id is of that device and port */

/* cm_wire.c */
/* Takes address and port, any port if that is 0; 0 or errno. */
int cm_wire_bind(struct cm_id *id);
int cm_wire_listen(struct cm_id *id);
int cm_wire_accept(const struct cm_id *id);  /* a socket of a process of this user, -1: none waits */
int cm_wire_connect(const struct cm_id *id); /* 0; ECONNREFUSED: nobody listens; EAGAIN: too many wait there */
bool cm_wire_send(const struct cm_id *id, struct cm_message *message);
/* 1: a message that makes sense; 0: none now; -1: the other end is gone. */
int cm_wire_receive(const struct cm_id *id, struct cm_message *message);

/* cm_qp.c */
int cm_qp_attr(const struct cm_id *id, struct ibv_qp_attr *attr, int *mask); /* for attr->qp_state; 0 or errno */
/* The id's own, or of an iWARP device the one that rdma_connect or rdma_accept named by its number, which such a device
 * moves as the connection goes; NULL: the program moves it. */
struct ibv_qp *cm_qp_of(const struct cm_id *id);
int cm_qp_connect(struct cm_id *id);  /* to RTS; 0 or errno */
void cm_qp_error(struct cm_id *id);

/* cm_conn.c */
int cm_complete(struct cm_id *id); /* of a sync id: waits for its event; 0, or -1 with errno */

#endif
