/* SPDX-License-Identifier: Apache-2.0
 *
 * One fault, completely: the traffic it happens to, what happens, to which process and
 * when, and what is required of the others; and what each process observed.
 * The plan is drawn by the parent and crosses to the processes as the job's
 * arguments; each of them gets all of it.
 */
#ifndef RAIL_KIT_FAULT_PLAN_H
#define RAIL_KIT_FAULT_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "kit/kit_ensure.h"
#include "kit/kit_job.h"

enum kit_act {
  KIT_ACT_NOTHING,   /* no event: the whole run is as preload, namespace or signals make it */
  KIT_ACT_KILL,      /* SIGKILL */
  KIT_ACT_STOP,      /* SIGSTOP, and SIGCONT after last_ms */
  KIT_ACT_CLOSE,     /* closes everything with requests outstanding */
  KIT_ACT_DEREG,     /* takes its memory back with requests outstanding, writes over it, then closes */
  KIT_ACT_RESET,     /* its TCP connections are reset, the process lives */
  KIT_ACT_CLIENTS,   /* foreign clients connect, from the listen on; `how` is a kit_client_kind */
  KIT_ACT_SIGNALS,   /* signals to all its threads, without SA_RESTART, from init to finalize */
  KIT_ACT_LINK,      /* its network interface; `how` is a kit_link_act */
  KIT_ACT_FAIL,      /* its call number `nth` of `kinds` fails */
};

enum kit_client_kind {
  KIT_CLIENTS_SILENT, KIT_CLIENTS_GARBAGE, KIT_CLIENTS_FLOOD, KIT_CLIENTS_RESET, KIT_CLIENTS_MIXED,
};

enum kit_link_act { KIT_LINK_DOWN, KIT_LINK_SILENCE, KIT_LINK_MTU, KIT_LINK_SHAPE, KIT_LINK_DELAY };

enum kit_when { KIT_WHEN_FLOWING, KIT_WHEN_CONNECTING, KIT_WHEN_IDLE };

enum kit_goal {
  KIT_GOAL_SURVIVE, /* everything arrives, no call returns an error */
  KIT_GOAL_ERROR,   /* all connections of the others end in the remote error, in time */
  KIT_GOAL_EITHER,  /* every failure is reported, or there was none */
};

enum kit_dirs { KIT_DIRS_BOTH, KIT_DIRS_FORTH /* side 0 sends */, KIT_DIRS_BACK /* side 1 does */ };

struct kit_fault_plan {
  uint64_t seed;
  uint64_t comms, dirs, mix, max, group, window; /* traffic, as in kit_traffic.h; comms: connections in all */
  uint64_t act, how, when;
  uint64_t victims;           /* a set of processes */
  uint64_t delay_us;          /* from the agreed moment until it happens */
  uint64_t last_ms;           /* until it is undone */
  uint64_t count;             /* foreign clients */
  uint64_t nth, kinds;        /* failing calls; nth 0: only counts them */
  uint64_t piece, buffer, interrupt; /* preload: kit_fail_shape's */
  uint64_t files;             /* descriptors that the process may open beyond what it has; 0: as ever */
  uint64_t goal;
  uint64_t patience_ms;       /* until the error must have come */
  uint64_t after_ms;          /* traffic goes on for so long once it is over */
};

void kit_fault_plan_put(const struct kit_fault_plan *plan, struct kit_job *job);
/* Fails the process when a value is missing or out of range. */
struct kit_fault_plan kit_fault_plan_get(const struct kit_job *job);

/* What the plan leaves at 0 of traffic and moment, at random. */
void kit_fault_plan_draw(struct kit_fault_plan *plan, struct kit_rng *rng);

static inline bool kit_fault_is_victim(const struct kit_fault_plan *plan, int rank) {
  return plan->victims >> rank & 1;
}

/* ---- What one process saw of a fault: crosses to the parent as it lies in memory ---- */

enum kit_phase { KIT_PHASE_START, KIT_PHASE_CONNECT, KIT_PHASE_STREAM, KIT_PHASE_CLOSE };

struct kit_usage {
  int32_t fds, threads, listeners;
  int64_t heap; /* bytes that the allocator has handed out */
};

struct kit_fault_record {
  int32_t rank;
  int32_t phase;               /* how far it came before it began to close */
  int32_t connections, errors, finished;
  int32_t code;                /* of the first error; 0: none */
  char call[16];               /* which returned it */
  int32_t other_code;          /* of an error of another kind than the remote one, else 0 */
  int64_t first_ns, last_ns;   /* from the event to the first and the last connection's error; -1: there was none */
  int64_t connect_ns;          /* until all were connected; -1: they were not */
  uint64_t bytes, messages, wrong;
  char why[200];               /* about the first wrong one */
  int64_t pause_ns;            /* the longest that a message was the oldest outstanding one */
  int64_t call_ns;             /* the longest connect, accept, or turn of calls while streaming */
  int64_t close_ns;            /* the longest close, finalize included */
  int32_t close_code;          /* the first result other than 0 of a call that must succeed */
  char close_call[16];
  int32_t moved;               /* bytes changed after deregMr */
  struct kit_usage before, after;
  char left[160];              /* the descriptors that are new after finalize, or "" */
  char shm[120];               /* a file of /dev/shm that it had mapped, or "" */
  double stuck_s;              /* from the event until the first error, or until patience was over */
  double stuck_cpu, stuck_cpu_plugin; /* seconds of CPU in that time: all threads; all but the caller's */
  int64_t seen, shaped;        /* calls that the preload library counted, changed */
  char failed[32];             /* the call that it made fail, or "" */
  int32_t clients, accepted;   /* foreign clients that connected; that accept returned as a connection */
  int32_t signals;
};

#endif
