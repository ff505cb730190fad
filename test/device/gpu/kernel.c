/* SPDX-License-Identifier: Apache-2.0
 *
 * libfakegpu.so's one kernel, the runtime's. First what a GPU's memory management would find: may
 * it touch what its argument leads to? Then the kernel's own source, on the CPU executor.
 */
#include <stdio.h>
#include <string.h>

#include "core/host/rt_device.h"
#include "ghost/driver/gh_driver.h"
#include "ghost/driver/gh_kernel.h"
#include "test/device/emu.h"

/* Threads of the system that stand for a block's: few, since every barrier of theirs is a matter of system calls. */
#define EMU_THREADS 3
#define EMU_THREADS_LL128 8 /* a line's lanes */

static size_t launch_size(unsigned jobs) {
  return sizeof(struct rt_device_launch) + jobs * sizeof(struct rt_device_job);
}

int gh_kernel_parameters(const char *name, const size_t **sizes) {
  static const size_t size = sizeof(void *);
  if (strcmp(name, "rd_collective") != 0) return -1;
  if (sizes) *sizes = &size;
  return 1;
}

static struct rt_device_launch *launch_of(const struct gh_launch *l) {
  return *(struct rt_device_launch **)l->arguments;
}

int gh_kernel_check(const struct gh_launch *launch) {
  const struct rt_device_launch *l = launch_of(launch);
  if (launch->shared || !gh_reachable(l, launch_size(launch->blocks), NULL)) return INVALID_VALUE;
  return l->nblocks == (int)launch->blocks ? OK : INVALID_VALUE;
}

/* Says what cannot be reached: the error that the program sees comes later, and names nothing. */
static bool reaches(const char *what, const void *p, size_t size, const struct gh_context *by) {
  if (gh_reachable(p, size, by)) return true;
  fprintf(stderr, "ghost: a kernel on device %d cannot reach %s: %zu bytes at %p\n", by->device, what, size, p);
  return false;
}

/* And may it speak this protocol there? What a plugin writes has no lines. */
static bool conn_reachable(const struct rt_conn *c, int proto, const struct gh_context *by) {
  if (!c) return true;
  if (!reaches("a connection", c, sizeof *c, by) || (c->flags & RT_CONN_PROXY && proto != RT_SIMPLE)) return false;
  return reaches("slots' words", c->slot, RT_STEPS * sizeof *c->slot, by) && reaches("a tail", c->tail, 8, by) &&
         reaches("credit", c->credit, 8, by) && reaches("slots", c->buff[proto], RT_STEPS * c->slot_size[proto], by);
}

/* The first and the last byte that the schedule may touch of a buffer lie in one allocation. */
static bool buffer_reachable(const struct rt_sched *s, const char *p, bool all_ranks, const struct gh_context *by) {
  size_t bytes = s->count * s->esize * (all_ranks ? (size_t)s->nranks : 1);
  return !p || !bytes || reaches("a buffer", p, bytes, by);
}

static bool conns_reachable(const struct rt_device_job *j, const struct gh_context *by) {
  for (int p = 0; p < RT_PEERS; p++)
    if (!conn_reachable(j->recv[p], j->proto, by) || !conn_reachable(j->send[p], j->proto, by)) return false;
  return true;
}

static bool job_reachable(const struct rt_device_job *j, const struct gh_context *by) {
  const struct rt_sched *s = &j->sched;
  bool sends = s->coll != RT_RECV && !(s->coll == RT_BROADCAST && s->rank != s->root);
  bool receives = s->coll != RT_SEND && !(s->coll == RT_REDUCE && s->rank != s->root);
  if (s->order && !reaches("the ring's order", s->order, (size_t)s->nranks * sizeof *s->order, by)) return false;
  return conns_reachable(j, by) && (!sends || buffer_reachable(s, s->send, s->coll == RT_REDUCE_SCATTER, by)) &&
         (!receives || buffer_reachable(s, s->recv, s->coll == RT_ALLGATHER, by)) &&
         (!j->deferred || reaches("a scalar", j->deferred, s->esize, by));
}

/* Where do the job's steps to other kernels lie? For tests. */
static void count_slots(const struct rt_device_job *j) {
  static const char *const names[2][RD_LL128 + 1] = {{"host: Simple", "host: LL", "host: LL128"},
                                                     {"GPU: Simple", "GPU: LL", "GPU: LL128"}};
  for (int p = 0; p < RT_PEERS; p++) {
    const struct rt_conn *c = j->send[p];
    if (c && !(c->flags & RT_CONN_PROXY)) gh_should_fail(names[gh_on_device(c->buff[j->proto])][j->proto]);
  }
}

int gh_kernel_run(const struct gh_launch *launch) {
  struct rt_device_launch *l = launch_of(launch);
  const struct gh_context *context = launch->context;
  unsigned blocks = launch->blocks;
  if (!reaches("its launch", l, launch_size(blocks), context) || !reaches("its abort word", l->abort, 4, context) ||
      launch->threads % 32)
    return ILLEGAL_ADDRESS;
  bool ll128 = false;
  for (int block = 0; block < (int)blocks; block++)
    for (int i = block, first = 1; first || i; i = l->job[i].next, first = 0) {
      if (!reaches("a job", &l->job[i], sizeof l->job[i], context) || !job_reachable(&l->job[i], context))
        return ILLEGAL_ADDRESS;
      count_slots(&l->job[i]);
      ll128 |= l->job[i].proto == RD_LL128;
    }
  emu_collective(l, ll128 ? EMU_THREADS_LL128 : EMU_THREADS);
  return OK;
}
