/* SPDX-License-Identifier: Apache-2.0
 * What one side saw of a misfortune: crosses to the parent as it lies in memory. */
#ifndef RAIL_KIT_FAULT_TOLD_H
#define RAIL_KIT_FAULT_TOLD_H

#include <stdbool.h>
#include <stdint.h>

enum kit_phase { KIT_PHASE_START, KIT_PHASE_CONNECT, KIT_PHASE_STREAM, KIT_PHASE_CLOSE };

struct kit_usage {
  int32_t fds, threads, listeners;
  int64_t heap; /* bytes that the allocator has handed out */
};

struct kit_told {
  int32_t rank;
  int32_t phase;               /* how far it came before it began to close */
  int32_t connections, errors, finished;
  int32_t code;                /* of the first error; 0: none */
  char call[16];               /* which said so */
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
  char shm[120];               /* a file of /dev/shm that it had mapped, or "" */
  double stuck_s;              /* from the event until the first error, or until patience was over */
  double stuck_cpu, stuck_cpu_plugin; /* seconds of CPU in that time: all threads; all but the caller's */
  int64_t seen, shaped;        /* calls that the preload library counted, changed */
  char failed[32];             /* the call that it made fail, or "" */
  int32_t strangers, accepted; /* strangers that came in; that were handed out as a connection */
  int32_t signals;
};

#endif
