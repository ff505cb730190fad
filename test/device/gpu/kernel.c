/* SPDX-License-Identifier: Apache-2.0
 *
 * The fake driver's one kernel. First what a GPU's memory management would find: may
 * it touch what its argument leads to? Then the kernel's own source, on the CPU executor.
 */
#include "core/kernel/rt_device.h"
#include "test/device/emu.h"
#include "test/device/gpu/fake.h"

/* Threads of the system that stand for a block's: few, since every barrier of theirs is a matter of system calls. */
#define EMU_THREADS 3

static size_t launch_size(unsigned jobs) {
  return sizeof(struct rt_device_launch) + jobs * sizeof(struct rt_device_job);
}

int fake_check_kernel(void *argument, unsigned blocks) {
  const struct rt_device_launch *l = argument;
  if (!fake_reachable(l, launch_size(blocks))) return INVALID_VALUE;
  return l->njobs == (int)blocks ? OK : INVALID_VALUE;
}

/* And may it speak this protocol there? What a plugin writes has no lines. */
static bool conn_reachable(const struct rt_conn *c, int proto) {
  if (c && fake_reachable(c, sizeof *c) && c->flags & RT_CONN_PROXY && proto != RT_SIMPLE) return false;
  const char *own = c && proto == RT_SIMPLE ? c->device_buff : NULL;
  return !c || (fake_reachable(c, sizeof *c) && fake_reachable(c->slot, RT_STEPS * sizeof *c->slot) &&
                fake_reachable(c->tail, 8) && fake_reachable(c->credit, 8) &&
                fake_reachable(own ? own : c->buff[proto], RT_STEPS * c->slot_size[proto]));
}

/* The first and the last byte that the schedule may touch of a buffer lie in one allocation. */
static bool buffer_reachable(const struct rt_sched *s, const char *p, bool all_ranks) {
  size_t bytes = s->count * s->esize * (all_ranks ? (size_t)s->nranks : 1);
  return !p || !bytes || fake_reachable(p, bytes);
}

static bool conns_reachable(const struct rt_device_job *j) {
  for (int p = 0; p < RT_PEERS; p++)
    if (!conn_reachable(j->recv[p], j->proto) || !conn_reachable(j->send[p], j->proto)) return false;
  return true;
}

static bool job_reachable(const struct rt_device_job *j) {
  const struct rt_sched *s = &j->sched;
  bool sends = s->coll != RT_RECV && !(s->coll == RT_BROADCAST && s->rank != s->root);
  bool receives = s->coll != RT_SEND && !(s->coll == RT_REDUCE && s->rank != s->root);
  if (s->order && !fake_reachable(s->order, (size_t)s->nranks * sizeof *s->order)) return false;
  return conns_reachable(j) &&
         (!sends || buffer_reachable(s, s->send, s->coll == RT_REDUCE_SCATTER)) &&
         (!receives || buffer_reachable(s, s->recv, s->coll == RT_ALLGATHER)) &&
         (!j->deferred || fake_reachable(j->deferred, s->esize));
}

int fake_run_kernel(void *argument, unsigned blocks, unsigned threads) {
  struct rt_device_launch *l = argument;
  if (!fake_reachable(l, launch_size(blocks)) || !fake_reachable(l->abort, 4) || threads % 32) return ILLEGAL_ADDRESS;
  for (unsigned i = 0; i < blocks; i++)
    if (!job_reachable(&l->job[i])) return ILLEGAL_ADDRESS;
  emu_collective(l, EMU_THREADS);
  return OK;
}
