/* SPDX-License-Identifier: Apache-2.0
 *
 * Pending connections: those that a listening socket has accepted and that have
 * not sent the whole of their first message. For the plugins' listeners
 * (listener.h) and for the runtime's bootstrap and rendezvous, whose first
 * messages differ: the owner reads them, and takes the connection or drops it.
 *
 * Accepts unauthenticated connections. One that sends nothing, or garbage, holds
 * an entry of the set, with room for that message (HELLO: RAIL_HELLO_MAX bytes
 * at most), until its deadline, and costs at most one log line a second and set,
 * ten a second and process. One that has sent its whole message by the time of
 * the poll is never waited for.
 *
 * A set that is full, or that finds no descriptor to accept with, drops the
 * oldest of those that have sent nothing, and where there is none the oldest. In
 * a set with `max` one that has sent nothing has to be a second old for that;
 * else the oldest goes. For want of a descriptor an owner that sleeps
 * (rail_pending_watch) drops none that is younger than a second: it waits.
 *
 * A set with `max` 0 shares its limits with all such sets of the plugin: at most
 * 1024 connections and at most a quarter of the files that the process may open
 * (RLIMIT_NOFILE). Each set has 2 entries whatever the others have, so that a flood
 * of one does not block another. None of them keeps any that would leave less than a
 * quarter of the files.
 *
 * Not thread-safe: one thread at a time, or the owner's lock. Nothing here waits; a
 * poll takes less than a millisecond however many clients there are.
 */
#ifndef RAIL_PENDING_H
#define RAIL_PENDING_H

#include <sys/queue.h>

#include "common/base/sock.h"

struct rail_pending {
  TAILQ_ENTRY(rail_pending) next; /* in the set */
  int fd;
  bool watched;       /* in the epoll set */
  unsigned int index; /* of the listening socket it came through */
  union rail_addr peer;
  uint64_t deadline;
  size_t have;                  /* bytes of its first message */
  _Alignas(16) uint8_t bytes[]; /* `size` of the set; zero from `have` on */
};

struct rail_pending_ops {
  /* Reads what came, e.g. with rail_pending_read. True: the connection has left the set, by rail_pending_remove or
   * rail_pending_drop. Must not touch any other one. */
  bool (*read)(void *owner, struct rail_pending *conn);
  void (*dropped)(void *owner); /* for statistics; NULL: not counted */
};

struct rail_pending_set {
  const struct rail_pending_ops *ops;
  void *owner;
  const char *module, *name; /* "MODULE: accept on NAME: ...", in log lines; kept */
  size_t size;               /* of the first message at most */
  uint32_t max;              /* connections; 0: as above */
  uint64_t hello_ms;         /* time that a client has for its first message */
  TAILQ_HEAD(rail_pending_list, rail_pending) list; /* the oldest first */
  uint32_t count;
  int epoll;          /* -1 until a connection has to be waited for */
  int listen_fd;      /* in the epoll set too; -1: none */
  uint64_t resume;    /* when it is watched again; 0: it is */
  uint64_t next_line; /* when a dropped connection may be logged again */
  uint32_t unlogged;
};

/* ops to hello_ms are set; a zeroed set has to be initialized before it can be closed. */
void rail_pending_init(struct rail_pending_set *set);
/* Closes the connections in it. */
void rail_pending_close(struct rail_pending_set *set);

/* For an owner that sleeps: set->epoll becomes readable when rail_pending_poll(set, &listen_fd, 1) has something to do
 * but for deadlines. False with errno. */
bool rail_pending_watch(struct rail_pending_set *set, int listen_fd);
/* When the next poll is due though nothing came; 0: never. */
uint64_t rail_pending_deadline(const struct rail_pending_set *set);

/* Accepts from `n` listening sockets, has what came read, and drops those that are late. An error, with errno and
 * without a line, is one of a listening socket itself; a shortage of files or memory, which may pass, is not one. */
rail_result_t rail_pending_poll(struct rail_pending_set *set, const int *listen_fds, unsigned int n);
/* What poll does with a connection that it accepted, which came through the listening socket `index`. */
void rail_pending_add(struct rail_pending_set *set, int fd, unsigned int index, const union rail_addr *peer);

/* Files that the process may open (RLIMIT_NOFILE). */
uint64_t rail_pending_file_limit(void);

/* ---- for ops->read ---- */

/* Reads up to `size` bytes of the first message: as rail_sock_recv_some. */
static inline rail_result_t rail_pending_read(struct rail_pending *conn, size_t size) {
  return rail_sock_recv_some(conn->fd, conn->bytes, size, &conn->have);
}
/* Out of the set and freed; the socket is the caller's. */
int rail_pending_remove(struct rail_pending_set *set, struct rail_pending *conn);
/* Closed, after a line. */
void rail_pending_drop(struct rail_pending_set *set, struct rail_pending *conn, const char *why);
/* "WHAT a connection from PEER: WHY", where WHAT is "dropped" or "refused", within the limits of lines; also for
 * connections that were taken and are dropped later. */
void rail_pending_log(struct rail_pending_set *set, const char *what, const union rail_addr *peer, const char *why);

#endif
