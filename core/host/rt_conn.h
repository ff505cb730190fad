/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection as a program or a kernel uses it: an 8-slot FIFO between one producer and
 * one consumer. Over P2P and SHM these are the programs or kernels of two ranks; over NET one is
 * a program or kernel and the other the proxy of the same rank. Plain C that CUDA compiles too.
 *
 * Two counters that only grow, each written by one side:
 *   tail    steps produced: slot (s % 8) holds step s for every s < tail
 *   credit  steps that may be produced: the producer may fill slot (s % 8) when s < credit
 * A step is published by writing the slot, then tail with release order; the
 * consumer reads tail with acquire order before the slot. Returning a slot is
 * the same with credit. Nothing else is shared.
 *
 * Over SHM a consumed slot is returned at once (credit = consumed + 8). Towards
 * a proxy, credit also publishes the destination of a step (slot.ptr), so that a
 * message can be received directly into the user's buffer.
 *
 * Slots of a device's connection may lie in a GPU's memory: that of either rank, or this end's own towards a proxy.
 */
#ifndef RT_CONN_H
#define RT_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

#define RT_STEPS 8

enum rt_proto { RT_SIMPLE = 0, RT_LL = 1, RT_NPROTO = 2 };
/* A protocol of kernels on a GPU only, with slots of its own. */
#define RD_LL128 RT_NPROTO
#define RT_LL128_LINE 128u
#define RT_LL128_PAYLOAD 120u

struct rt_slot {
  uint64_t bytes : 56; /* of the step's message */
  uint64_t proto : 8;  /* over shared memory, enum rt_proto of the producer's call: the consumer's must be equal */
  void *ptr;           /* the step's data, or where to receive it; NULL: the slot's own buffer */
  void *mhandle;       /* of ptr's registration with the plugin, for the proxy */
  union {
    uint64_t capacity; /* of ptr, where it is to be received */
    uint64_t call;     /* over shared memory: which call the step belongs to, struct rt_program's `call` */
  };
};

#define RT_CONN_PROXY 0x1u /* the other side of the FIFO is a proxy */
#define RT_CONN_TORN 0x2u /* stores of LL128 lines to `buff` are not atomic: read a step when tail includes it */

struct rt_conn {
  char *buff[RT_NPROTO + 1]; /* RT_STEPS slots each; RD_LL128's at a multiple of 128, NULL where it is not used */
  uint64_t slot_size[RT_NPROTO + 1];
  struct rt_slot *slot;
  uint64_t *tail, *credit;
  uint64_t step;    /* next step of this side */
  uint64_t granted; /* recv side: credit as last written */
  uint64_t seen;    /* the other side's counter as last read; saves a cache miss per step */
  unsigned flags;
  /* Programs use a connection in the order in which they were enqueued: each takes a ticket and waits until it is
   * served. */
  uint64_t serving, next_ticket;
};

/* A store that publishes, and the load that pairs with it. */
static inline void rt_publish(uint64_t *counter, uint64_t value) { __atomic_store_n(counter, value, __ATOMIC_RELEASE); }
static inline uint64_t rt_observe(const uint64_t *counter) { return __atomic_load_n(counter, __ATOMIC_ACQUIRE); }

/* For a thread sanitizer alone: in an all-reduce in place, a step that leaves over shared memory is read before what
 * comes for it over the network is written to the same place. What is between them happens in other processes, which
 * the sanitizer does not see. */
#ifdef __SANITIZE_THREAD__
extern char rt_tsan_steps;
static inline void rt_tsan_release_step(void) { __tsan_release(&rt_tsan_steps); }
static inline void rt_tsan_acquire_steps(void) { __tsan_acquire(&rt_tsan_steps); }
#else
static inline void rt_tsan_release_step(void) {}
static inline void rt_tsan_acquire_steps(void) {}
#endif

static inline char *rt_conn_slot_buff(const struct rt_conn *c, enum rt_proto proto, uint64_t step) {
  return c->buff[proto] + (step % RT_STEPS) * c->slot_size[proto];
}

#endif
