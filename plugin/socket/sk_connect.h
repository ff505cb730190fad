/* SPDX-License-Identifier: Apache-2.0
 *
 * Connection set-up: the calls, the dialer of a stream, and the acceptor. Connections with FAILOVER keep the last two
 * for streams that come back. Nothing here waits.
 */
#ifndef SK_CONNECT_H
#define SK_CONNECT_H

#include <pthread.h>
#include <sys/queue.h>

#include "common/conn/dial.h"
#include "common/conn/listener.h"
#include "common/net/net_ctx.h"
#include "plugin/socket/sk_device.h"
#include "plugin/socket/sk_wire.h"

struct sk_tls;

/* ---- sk_connect.c: the calls ------------------------------------------------- */

rail_result_t sk_connect(void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                         struct rail_net_device_handle **dev_handle);
void sk_connect_drop(void *attempt); /* of a context's attempts */
rail_result_t sk_listen(void *ctx, int dev, void *handle, void **listen_comm);
rail_result_t sk_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);
rail_result_t sk_close_listen(void *listen_comm);
void sk_listener_close(struct rail_net_ctx_link *link); /* of a context's listeners */

/* ---- sk_dial.c: a stream's way to the acceptor; one thread at a time ------------ */

struct sk_dial {
  struct rail_dial dial;
  const struct sk_device *nic; /* one interface */
  struct rail_hello hello;
  uint8_t bytes[RAIL_HELLO_MAX]; /* of it */
};

/* Not begun; sk_dial_hello before the first step. */
void sk_dial_init(struct sk_dial *dial, const struct sk_device *nic, const union rail_addr *peer, unsigned int stream,
                  int traffic_class, enum rail_dial_bind bind);
/* What it sends; dial->hello with comm id, stream and streams is the caller's to fill before. */
rail_result_t sk_dial_hello(struct sk_dial *dial, const struct rail_handle *listener, const struct sk_limits *limits,
                            bool reconnect, uint64_t counter);
/* rail_dial_step: RAIL_OK when HELLO is written. */
rail_result_t sk_dial_step(struct sk_dial *dial);

/* How streams of one connection are dialled again. */
struct sk_reconnect;

/* NULL when memory is out. `dials` are those of the connection's streams. */
struct sk_reconnect *sk_reconnect_new(const struct rail_handle *listener, const struct sk_limits *limits,
                                      const struct sk_dial *dials, unsigned int streams);
void sk_reconnect_free(struct sk_reconnect *r); /* NULL is fine */

/* One step of reconnecting a lost `stream`. RAIL_OK: *fd is a stream that may carry frames, with *tls over it where the
 * connection is encrypted, both the caller's. RAIL_IN_PROGRESS: later; it keeps trying for as long as it is called.
 * RAIL_REMOTE_ERROR, after one line: the peer will never take it back. */
rail_result_t sk_reconnect_lost(struct sk_reconnect *r, unsigned int stream, int *fd, struct sk_tls **tls);

/* The same for a stream whose HELLO was not answered: RAIL_OK when it is sent again, and *session that of the ANSWER to
 * come. RAIL_REMOTE_ERROR, with an errno: no process listens there any more, or RAIL_SOCKET_CONNECT_TIMEOUT has passed
 * since the stream was cut for the first time. */
rail_result_t sk_reconnect_unanswered(struct sk_reconnect *r, unsigned int stream, struct rail_session *session,
                                      int *fd);

/* ---- sk_acceptor.c: the accepting side ----------------------------------------
 *
 * An acceptor is a listener of common/conn/listener.h with one socket per rail, shared by the listen comm that made it
 * and by those of its connections whose lost streams may come back here, which keep it after closeListen. A HELLO goes
 * to one of two lists:
 *
 *   half-open comms  streams of a new connection, until all of them are here and accept takes them
 *   accepted comms   connections with failover; a stream of theirs that was lost comes back
 *
 * Locking. `lock` guards everything below it. Two threads meet here at most: the one that calls accept and the one that
 * reconnects streams. Each call does a bounded amount of work.
 */

/* RAIL_SOCKET_PORTS and RAIL_SOCKET_BIND: common/conn/ports.h. Once per process, under the plugin's lock. */
void sk_ports_load(void);

#define SK_LISTEN_MAGIC RAIL_OBJECT_MAGIC(SK_TAG, 'L')

struct sk_half_open_comm {
  TAILQ_ENTRY(sk_half_open_comm) next;
  uint8_t comm_id[RAIL_COMM_ID_SIZE];
  uint64_t deadline; /* for the missing streams */
  struct sk_limits limits;
  unsigned int nstreams, have;
  union rail_addr peer; /* of the first that came */
  struct {
    int fd;
    unsigned int rail;
    union rail_addr peer;
    struct rail_session session;
  } streams[SK_MAX_STREAMS];
};

struct sk_accepted_comm;

struct sk_acceptor {
  const struct sk_device *device;
  int traffic_class;

  pthread_mutex_t lock;
  unsigned int refs;
  bool closed; /* by closeListen: nothing new, only what comes back */
  struct rail_listener listener;
  TAILQ_HEAD(, sk_half_open_comm) half_open; /* in the order of their first HELLO */
  LIST_HEAD(, sk_accepted_comm) accepted;
};

/* What the caller of listen holds. */
struct sk_listen {
  uint32_t magic;
  struct rail_net_ctx_link in_ctx;
  struct sk_acceptor *acceptor;
};

/* Opens the sockets and makes the handle; one reference, the caller's. Logs why not. */
rail_result_t sk_acceptor_open(const struct sk_device *device, int traffic_class, struct sk_acceptor **out);
/* closeListen: half-open comms go, and the caller's reference. */
void sk_acceptor_close(struct sk_acceptor *acceptor);
/* Accepts and reads what is there, within a bound of time. Under the lock. */
rail_result_t sk_acceptor_poll(struct sk_acceptor *acceptor);

/* The oldest half-open comm that is complete, out of the list and welcomed: the caller takes its sockets and frees it.
 * NULL: there is none. Under the lock. */
struct sk_half_open_comm *sk_acceptor_take(struct sk_acceptor *acceptor);
void sk_half_open_free(struct sk_half_open_comm *comm); /* closes what it still has */

/* A connection whose streams may come back, from `comm` as accept took it. It holds a reference of the acceptor. NULL
 * when memory is out. Under the lock. */
struct sk_accepted_comm *sk_accepted_new(struct sk_acceptor *acceptor, const struct sk_half_open_comm *comm);
/* Which stream has come back, if any: RAIL_OK with *fd and, where the connection is encrypted, *tls, the caller's; else
 * RAIL_IN_PROGRESS. A peer may give a stream up before this side has noticed, and again later: the latest one counts.
 * Takes the lock. */
rail_result_t sk_accepted_take(struct sk_accepted_comm *accepted, unsigned int *stream, int *fd, struct sk_tls **tls);
void sk_accepted_free(struct sk_accepted_comm *accepted); /* NULL is fine */

#endif
