/* SPDX-License-Identifier: Apache-2.0
 *
 * What is to be done again. Each process of a replay reads all files and comes to
 * the same plan: which comm of which file talks to which, which send fills
 * which receive, what every message contains. Of its own file it keeps the
 * calls, comm by comm, in their order.
 */
#ifndef RAIL_KIT_REPLAY_PLAN_H
#define RAIL_KIT_REPLAY_PLAN_H

#include "kit/kit_job.h"
#include "kit/trace/kit_trace.h"
#include "plugin/railtrace/trace_file.h"

#define REPLAY_NONE UINT32_MAX

/* A message as its sender posted it. */
struct replay_msg {
  uint64_t size, mr, at;
  int64_t tag;
  uint32_t text;    /* message whose contents it has: its own, or one in flight from the same place; NONE: not known */
  uint64_t id;      /* of its request, in the file */
  bool matched;     /* a receive for it is in the other file */
};

/* One buffer of a receive. */
struct replay_slot {
  uint64_t size;
  int64_t tag;
  uint32_t msg;   /* what comes into it; NONE: nothing in these files */
};

enum replay_kind { REPLAY_LISTEN, REPLAY_CONNECT, REPLAY_ACCEPT, REPLAY_REG, REPLAY_DEREG, REPLAY_SEND, REPLAY_RECV,
                   REPLAY_DONE, REPLAY_CLOSE };

/* One call of the process's own file. */
struct replay_call {
  enum replay_kind kind;
  uint32_t thread;
  uint64_t number;
  uint64_t ns;    /* after the beginning of the earliest file */
  uint64_t value; /* ACCEPT: comm; REG, DEREG: memory; DONE: index of the post */
  uint64_t size;  /* REG; SEND, RECV: recorded time from the post to done, 0: it was never done */
  int dev;        /* of LISTEN, CONNECT; REG: type */
  unsigned int n; /* buffers */
  uint32_t first; /* SEND: message; RECV: first of n slots */
  uint32_t bufs;  /* RECV: first of n in plan->bufs */
};

struct replay_comm {
  uint64_t id;
  enum rail_trace_kind made_by;
  uint64_t order_ns;         /* when it was made, in real time */
  uint8_t handle[RAIL_NET_HANDLE_SIZE]; /* listen, connect; accept: of its listening comm */
  uint64_t listen;           /* accept: id of that */
  int peer_file;             /* -1: its other end is in none of the files */
  uint32_t peer;             /* index there */
  struct replay_msg *msgs;   /* a send comm's */
  size_t nmsgs, msgs_cap;
  struct replay_slot *slots; /* a receive comm's */
  size_t nslots, slots_cap;
  uint32_t *live;            /* messages in flight, while the file is read */
  size_t nlive, live_cap;
  bool paired;
  struct replay_call *calls; /* in the process's own file */
  size_t ncalls, calls_cap;
};

struct replay_file {
  uint64_t realtime_ns;
  struct replay_comm *comms;
  size_t ncomms, cap;
  struct kit_trace_map by_id;
  uint64_t errors, dropped, flushes; /* calls that are not done again */
  unsigned int max_group;
};

struct replay_plan {
  struct replay_file files[KIT_MAX_PROCESSES];
  int nfiles, own;
  struct rail_trace_buf *bufs; /* of the own file's receives */
  size_t nbufs, bufs_cap;
  uint64_t unmatched, unknown; /* own messages and slots without a counterpart; messages whose contents are not known */
  uint64_t first_ns, last_ns;  /* of the own file's messages, recorded */
};

/* False: `why` names file and reason. Free it in either case. */
bool replay_plan_make(struct replay_plan *plan, char *const *files, int nfiles, int own, char *why, size_t why_size);
void replay_plan_free(struct replay_plan *plan);
/* Its steps: one file after the other into a plan of zeros but for `own`, then all of them together. */
bool replay_plan_add(struct replay_plan *plan, struct rail_trace *trace, char *why, size_t why_size);
bool replay_plan_settle(struct replay_plan *plan);
struct replay_comm *replay_comm_of(struct replay_file *file, uint64_t id); /* NULL: there is none */

#endif
