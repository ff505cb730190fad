/* SPDX-License-Identifier: Apache-2.0
 *
 * The watch thread of a plugin whose data path is not TCP: one per process while there is a context. It serves the oob
 * connections of all comms (oob.h) and other descriptors that the plugin names, such as a NIC's asynchronous events. It
 * never calls the data path: it sets bits of a comm's `pending_work`, through rail_oob_ops. What the plugin does for a
 * descriptor of its own may: ofi polls an endpoint that no caller polls.
 *
 *   init, finalize  rail_watch_begin, rail_watch_end
 *   handshake done  rail_watch_add, with the socket of the handshake
 *   close           rail_watch_remove; or rail_watch_linger, for a comm that must go on answering its peer's
 *                   retransmissions: then the thread owns it, and destroys it
 *
 * A plugin has one static struct rail_watch. Any thread may call these functions; none but rail_watch_end waits for
 * more than one pass over the connections.
 *
 * A child of fork has no thread and none of its parent's connections. A library that is unloaded without finalize
 * ends its thread first.
 */
#ifndef RAIL_WATCH_H
#define RAIL_WATCH_H

#include <pthread.h>
#include <sys/queue.h>

#include "common/base/result.h"
#include "common/conn/oob.h"

struct rail_watch;
struct rail_watched; /* a comm that is watched */

/* What a plugin says of itself. All are called with the lock of rail_watch_* held but where it says otherwise. */
struct rail_watch_ops {
  const char *plugin;      /* "RailIB", for log lines */
  const char *thread_name; /* 15 characters at most */
  const struct rail_oob_ops *oob;
  /* Sets what the parameters say. Called by each rail_watch_begin that starts the thread, and by each add. */
  void (*load_limits)(struct rail_oob_limits *limits);
  /* NULL, or adds descriptors, before the thread starts (rail_watch_add_fd). False with errno: begin fails. */
  bool (*add_fds)(struct rail_watch *watch);
  /* The last context is finalized, and the caller has not closed this comm: stops its transfers, calls
   * rail_watch_remove, closes its socket. The comm stays for a late close. Without the lock, after the thread. */
  void (*abandon)(void *comm);
  /* In a child of fork: the comm is the parent's, and is not watched. Closes its socket, so that a child that outlives
   * its parent does not keep it open. Calls no rail_watch_*. */
  void (*forked)(void *comm);
};

LIST_HEAD(rail_watched_list, rail_watched);
TAILQ_HEAD(rail_lingering, rail_watched);

/* Its fields are watch.c's, but for ops. */
struct rail_watch {
  const struct rail_watch_ops *ops;
  struct rail_oob_limits limits;
  struct rail_watched_list watched; /* all */
  struct rail_watched_list polled;  /* of those: the ones that wait for what wakes no thread */
  struct rail_lingering lingering;  /* of those: the first to end first */
  struct rail_watched_list unlinked;
  unsigned int users; /* contexts */
  pthread_t thread;
  bool running, ending;
  bool at_once; /* without waiting for those that linger */
  int epoll_fd, wake_fd; /* while running */
  uint64_t now_ns;       /* counts only time in which the thread ran */
  LIST_ENTRY(rail_watch) link; /* while running */
};

/* Starts the thread with the first context, and ends it with the last, when no comm lingers any more. One caller at a
 * time: the plugin's lock of init and finalize. */
rail_result_t rail_watch_begin(struct rail_watch *watch);
void rail_watch_end(struct rail_watch *watch);

/* A descriptor besides the oob connections; it does not block. Kept, as `fd` is, until the thread has ended. */
struct rail_watch_fd {
  int kind; /* watch.c's */
  int fd;
  /* By the thread, without the lock. False: do not ask again. */
  bool (*readable)(void *arg);
  void *arg;
};
/* From ops->add_fds, or between begin and end. False with errno. */
bool rail_watch_add_fd(struct rail_watch *watch, struct rail_watch_fd *source);

/* Everything here is kept. */
struct rail_watch_args {
  void *comm; /* handed to the ops */
  int fd;     /* the oob connection; it stays the comm's, which closes it after rail_watch_remove */
  bool sender;
  const char *peer, *device; /* for log lines */
  uint64_t peer_process;     /* the same in all connections with one process, which is reported as silent once */
  struct rail_watched **handle; /* set by add; NULL again when it is not watched any more. Under the lock */
};

/* Call when the handshake's last byte has been read. Logs why not. */
rail_result_t rail_watch_add(struct rail_watch *watch, const struct rail_watch_args *args);
/* When this returns the thread does not know the comm any more. `goodbye`: sends GOODBYE first. Does nothing where
 * *handle is NULL. */
void rail_watch_remove(struct rail_watch *watch, struct rail_watched **handle, bool goodbye);
/* Wakes the peer's thread: its ops->oob->heard is called. Does nothing where *handle is NULL. */
void rail_watch_ping(struct rail_watch *watch, struct rail_watched *const *handle);
/* The plugin has frames of its own to send (rail_oob_ops.next): writes as many as the socket takes. False: it cannot,
 * now or ever, because the connection has ended or its network is down. */
bool rail_watch_send_frames(struct rail_watched *const *handle);
/* The comm is closed and has nothing outstanding. The thread calls `destroy`, without the lock, when the peer has
 * closed or has sent DRAINED, or after ms. GOODBYE is sent at once, or with `goodbye_last` right before `destroy`,
 * where what the comm has sent may still be on its way to a peer that waits. False: it is not watched, and still the
 * caller's. */
bool rail_watch_linger(struct rail_watch *watch, struct rail_watched **handle, uint64_t ms, bool goodbye_last,
                       void (*destroy)(void *comm));
/* Calls fn(comm, arg) for each comm that is watched, also those that linger, under the lock. */
void rail_watch_each(struct rail_watch *watch, void (*fn)(void *comm, void *arg), void *arg);

#endif
