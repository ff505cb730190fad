/* SPDX-License-Identifier: Apache-2.0
 *
 * Listening sockets, and the strangers behind them: connections that have not
 * said their first message yet. Its size is fixed; what it says is judged by
 * the host, the protocol's side of the listener (struct rail_door_rules).
 *
 * Anybody may knock. A stranger that says nothing or nonsense costs a place in
 * a table until its deadline and, at the end, one line in the log: at most one
 * a second and listener, ten a second and plugin. Whoever has said everything
 * by the time we look never enters the epoll set. All listeners of a process
 * together keep no more than 1024 strangers, nor than a quarter of the files
 * that it may open (RLIMIT_NOFILE), and none that would leave it fewer than a
 * quarter; those silent longest make room. Each listener has 2 places all the
 * same, so that a flood of one cannot shut another.
 *
 * Not thread-safe: the host's lock. Nothing here waits, and a step takes less
 * than a millisecond however many knock.
 */
#ifndef RAIL_DOOR_H
#define RAIL_DOOR_H

#include "common/base/sock.h"

#define RAIL_DOORS_MAX 8       /* listening sockets of one listener */
#define RAIL_DOOR_BACKLOG 4096 /* for their listen(2); the kernel lowers it to net.core.somaxconn */
#define RAIL_REPLY_MAX 256

struct rail_stranger {
  struct rail_stranger *older, *younger; /* in the table */
  int fd;
  bool watched;      /* in the epoll set */
  unsigned int door; /* index of the listening socket it came through */
  union rail_addr peer;
  uint64_t deadline;
  size_t have; /* bytes of its message */
  _Alignas(16) uint8_t message[]; /* of rules->message_size bytes; zero from `have` on */
};

/* Why somebody is turned away. The host fills it, zeroed before. */
struct rail_refusal {
  char why[160];    /* for the log: "wrong secret" */
  size_t reply_size; /* 0: it would not understand, and is hung up on without a word */
  uint8_t reply[RAIL_REPLY_MAX];
};

enum rail_door_event {
  RAIL_DOOR_STRANGER, /* turned away without a word: silence, nonsense, no room */
  RAIL_DOOR_REFUSED,  /* turned away with a reply */
};

struct rail_door_rules {
  const char *plugin; /* "RailSocket", for lines in the log */
  size_t message_size; /* > 0 */
  /* A part of the message is here, have < message_size. True: it may still become one. Else `refusal` says why not. */
  bool (*plausible)(void *host, const struct rail_stranger *stranger, struct rail_refusal *refusal);
  /* The whole message is here, and nothing after it was read. True: the stranger's socket (stranger->fd) is the host's
   * from here on, the rest of the stranger is gone after the call. Else `refusal` says why not. */
  bool (*whole)(void *host, const struct rail_stranger *stranger, struct rail_refusal *refusal);
  /* For statistics; NULL: not counted. */
  void (*count)(void *host, enum rail_door_event event);
};

struct rail_doors {
  const struct rail_door_rules *rules; /* kept */
  void *host;
  const char *name;     /* of the device, for lines in the log; kept */
  uint64_t patience_ms; /* for a stranger's message */
  unsigned int ndoors;
  int fds[RAIL_DOORS_MAX]; /* listening sockets */
  int epoll;               /* -1 until somebody has to be waited for */
  struct rail_stranger *oldest, *youngest;
  uint32_t nstrangers;
  uint64_t next_line; /* when a line about somebody dropped may be logged again */
  uint32_t unlogged;
};

/* No door yet. Cannot fail. */
void rail_doors_init(struct rail_doors *doors, const struct rail_door_rules *rules, void *host, const char *name,
                     uint64_t patience_ms);
/* A listening socket (common/conn/ports.h), with its options set: accepted sockets inherit them. It is the doors' from here
 * on; its index is the number of those before. At most RAIL_DOORS_MAX. */
void rail_doors_add(struct rail_doors *doors, int fd);
/* Strangers and doors are closed. */
void rail_doors_close(struct rail_doors *doors);

/* Looks once at whoever has news, and calls the host for those that said something. An error, after one line, is one
 * of a listening socket itself; what may pass (EMFILE) is not one. */
rail_result_t rail_doors_step(struct rail_doors *doors);

/* For the host's own clients that have to go later: "dropped a connection from PEER: WHY", within the same limits. */
void rail_doors_log(struct rail_doors *doors, const union rail_addr *peer, const char *why);
/* Says why, best effort, and hangs up so that the reply arrives. */
void rail_door_refuse(int *fd, const void *reply, size_t size);

#endif
