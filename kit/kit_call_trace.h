/* SPDX-License-Identifier: Apache-2.0
 *
 * Which call of the plugin each thread of a process is in, and since when, in a
 * page that the process shares with its parent: readable after the process
 * has crashed or while it hangs.
 */
#ifndef RAIL_KIT_CALL_TRACE_H
#define RAIL_KIT_CALL_TRACE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/compiler.h"

enum kit_call {
  KIT_CALL_NONE, KIT_CALL_LOAD, KIT_CALL_INIT, KIT_CALL_DEVICES, KIT_CALL_PROPERTIES, KIT_CALL_LISTEN,
  KIT_CALL_CONNECT, KIT_CALL_ACCEPT, KIT_CALL_REG_MR, KIT_CALL_REG_MR_DMABUF, KIT_CALL_DEREG_MR, KIT_CALL_ISEND,
  KIT_CALL_IRECV, KIT_CALL_IFLUSH, KIT_CALL_TEST, KIT_CALL_CLOSE_SEND, KIT_CALL_CLOSE_RECV, KIT_CALL_CLOSE_LISTEN,
  KIT_CALL_GET_DEVICE_MR, KIT_CALL_IRECV_CONSUMED, KIT_CALL_MAKE_VDEVICE, KIT_CALL_FINALIZE, KIT_CALL_SET_ATTR,
  KIT_CALL_UNLOAD, KIT_CALL_EXIT,
  /* NCCL's, where it calls the plugin */
  KIT_CALL_COMM_INIT, KIT_CALL_COMM_DESTROY, KIT_CALL_COMM_ABORT, KIT_CALL_COLLECTIVE, KIT_CALLS
};
const char *kit_call_text(unsigned call); /* NCCL's name of it: "regMrDmaBuf", "closeSend" */

#define KIT_CALL_TRACE_THREADS 63

/* A thread's. */
struct kit_call_slot {
  RAIL_ALIGNED(RAIL_CACHELINE) _Atomic uint64_t since_ns; /* rail_now_ns at its start */
  _Atomic uint32_t call;
};

struct kit_call_trace {
  struct kit_call_slot thread[KIT_CALL_TRACE_THREADS]; /* threads beyond these are not traced */
  RAIL_ALIGNED(RAIL_CACHELINE) _Atomic uint32_t threads;
};

/* A descriptor of a fresh page, CLOEXEC; -1 with errno. */
int kit_call_trace_create(void);
struct kit_call_trace *kit_call_trace_map(int fd); /* NULL with errno */
void kit_call_trace_unmap(struct kit_call_trace *trace);
/* This process writes to `trace` from now on. */
void kit_call_trace_use(struct kit_call_trace *trace);

/* Around a call of the plugin, or of NCCL. */
void kit_call_begin(enum kit_call call);
void kit_call_end(void);

/* This thread's slot, for timed loops in which reading the clock at each call would show. They write `call`
 * themselves, and `since_ns` whenever they read the clock anyway. */
struct kit_call_slot *kit_call_slot(void);

/* The call that has lasted longest and its seconds; KIT_CALL_NONE: no thread is in one. */
unsigned kit_call_trace_longest(const struct kit_call_trace *trace, double *seconds);

#endif
