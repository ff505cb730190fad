/* SPDX-License-Identifier: Apache-2.0
 *
 * The accepting side. An acceptor is a listener of common/conn/listener.h with
 * one socket per rail, shared by the listen comm that made it and by those of
 * its connections whose lost streams may come back here, which keep it after
 * closeListen. A HELLO goes to one of two lists:
 *
 *   half-open comms  streams of a new connection, until all of them are here and
 *                    accept takes them
 *   accepted comms   connections with failover; a stream of theirs that was lost
 *                    comes back
 *
 * Locking. `lock` guards everything below it. Two threads meet here at most:
 * the one that calls accept and the one that reconnects streams. Each call does
 * a bounded amount of work.
 */
#ifndef SK_ACCEPTOR_H
#define SK_ACCEPTOR_H

#include <pthread.h>
#include <sys/queue.h>

#include "common/conn/listener.h"
#include "common/net/net_ctx.h"
#include "plugin/socket/sk_device.h"
#include "plugin/socket/sk_wire.h"

struct sk_tls;

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

/* RAIL_SOCKET_PORTS and RAIL_SOCKET_BIND: common/conn/ports.h. Once per process, under the plugin's lock. */
void sk_ports_load(void);

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
