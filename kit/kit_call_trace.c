/* SPDX-License-Identifier: Apache-2.0
 * The page in which a process notes its calls of the plugin: made, written, and read by the parent. */
#include "kit/kit_call_trace.h"

#include <sys/mman.h>
#include <unistd.h>

#include "common/base/clock.h"

static struct kit_call_trace unshared;
static struct kit_call_trace *trace = &unshared;
static _Thread_local uint32_t my_slot; /* from 1; 0: none yet */

const char *kit_call_text(unsigned call) {
  static const char *const names[KIT_CALLS] = {
      [KIT_CALL_NONE] = "", [KIT_CALL_LOAD] = "dlopen", [KIT_CALL_INIT] = "init", [KIT_CALL_DEVICES] = "devices",
      [KIT_CALL_PROPERTIES] = "getProperties", [KIT_CALL_LISTEN] = "listen", [KIT_CALL_CONNECT] = "connect",
      [KIT_CALL_ACCEPT] = "accept", [KIT_CALL_REG_MR] = "regMr", [KIT_CALL_REG_MR_DMABUF] = "regMrDmaBuf",
      [KIT_CALL_DEREG_MR] = "deregMr", [KIT_CALL_ISEND] = "isend", [KIT_CALL_IRECV] = "irecv",
      [KIT_CALL_IFLUSH] = "iflush", [KIT_CALL_TEST] = "test", [KIT_CALL_CLOSE_SEND] = "closeSend",
      [KIT_CALL_CLOSE_RECV] = "closeRecv", [KIT_CALL_CLOSE_LISTEN] = "closeListen",
      [KIT_CALL_GET_DEVICE_MR] = "getDeviceMr", [KIT_CALL_IRECV_CONSUMED] = "irecvConsumed",
      [KIT_CALL_MAKE_VDEVICE] = "makeVDevice", [KIT_CALL_FINALIZE] = "finalize", [KIT_CALL_SET_ATTR] = "setNetAttr",
      [KIT_CALL_UNLOAD] = "dlclose", [KIT_CALL_EXIT] = "exit", [KIT_CALL_COMM_INIT] = "ncclCommInitRank",
      [KIT_CALL_COMM_DESTROY] = "ncclCommDestroy", [KIT_CALL_COMM_ABORT] = "ncclCommAbort",
      [KIT_CALL_COLLECTIVE] = "a collective",
  };
  return call < KIT_CALLS ? names[call] : "?";
}

int kit_call_trace_create(void) {
  int fd = memfd_create("rail-kit-calls", MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, sizeof(struct kit_call_trace)) != 0) {
    close(fd);
    fd = -1;
  }
  return fd;
}

struct kit_call_trace *kit_call_trace_map(int fd) {
  void *p = mmap(NULL, sizeof(struct kit_call_trace), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return p == MAP_FAILED ? NULL : p;
}

void kit_call_trace_unmap(struct kit_call_trace *t) {
  if (t) munmap(t, sizeof *t);
}

void kit_call_trace_use(struct kit_call_trace *t) { trace = t; }

static void take_slot(void) {
  if (rail_unlikely(!my_slot)) my_slot = atomic_fetch_add(&trace->threads, 1) + 1;
}

struct kit_call_slot *kit_call_slot(void) {
  static _Thread_local struct kit_call_slot nowhere;
  take_slot();
  return my_slot > KIT_CALL_TRACE_THREADS ? &nowhere : &trace->thread[my_slot - 1];
}

void kit_call_begin(enum kit_call call) {
  take_slot();
  if (my_slot > KIT_CALL_TRACE_THREADS) return;
  atomic_store_explicit(&trace->thread[my_slot - 1].since_ns, rail_now_ns(), memory_order_relaxed);
  atomic_store_explicit(&trace->thread[my_slot - 1].call, call, memory_order_release);
}

void kit_call_end(void) {
  if (my_slot <= KIT_CALL_TRACE_THREADS)
    atomic_store_explicit(&trace->thread[my_slot - 1].call, KIT_CALL_NONE, memory_order_release);
}

unsigned kit_call_trace_longest(const struct kit_call_trace *t, double *seconds) {
  uint64_t now = rail_now_ns(), least = UINT64_MAX;
  unsigned found = KIT_CALL_NONE;
  for (int i = 0; i < KIT_CALL_TRACE_THREADS; i++) {
    unsigned call = atomic_load_explicit(&t->thread[i].call, memory_order_acquire);
    uint64_t since = atomic_load_explicit(&t->thread[i].since_ns, memory_order_relaxed);
    if (call == KIT_CALL_NONE || since >= least) continue;
    least = since;
    found = call;
  }
  *seconds = found == KIT_CALL_NONE || least > now ? 0 : (double)(now - least) / 1e9;
  return found;
}
