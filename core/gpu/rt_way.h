/* SPDX-License-Identifier: Apache-2.0
 *
 * Ways by which another rank comes to use memory of a GPU, best first. Which one it is the owner chooses, among those
 * that both can, and tells in its offer.
 */
#ifndef RT_WAY_H
#define RT_WAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/gpu/rt_inbox.h"
#include "core/gpu/rt_mem.h"

struct ncclComm;
struct rt_peer;

enum rt_way {
  RT_WAY_NONE,
  /* To another process: */
  RT_WAY_FABRIC, /* mapped memory, by 64 bytes */
  RT_WAY_FD,     /* mapped memory, by a file descriptor that lies in the taker's inbox */
  RT_WAY_IPC,    /* cuMemAlloc's memory, by 64 bytes */
  /* Within one: */
  RT_WAY_MAPPED, /* mapped memory, by its address; the taker's device is allowed to use it */
  RT_WAY_PLAIN,  /* cuMemAlloc's, by its address; the taker's context is allowed to use its context's */
  RT_WAYS
};
#define RT_WAY_BIT(way) (1u << (way))

/* What an offer says of the way; whatever it says is checked before it is used. */
struct rt_way_to {
  uint32_t way;         /* enum rt_way */
  uint32_t granularity; /* the size is a whole number of these */
  union {
    struct rt_cuda_fabric fabric;
    struct rt_cuda_ipc ipc;
    uint8_t key[RT_INBOX_KEY];
  };
};

/* Bits of all that this process can do with this device. Opens the inbox if one of them needs it. */
uint32_t rt_ways_open(int device, struct rt_inbox *inbox);
/* Those that `comm` may try towards this peer. */
uint32_t rt_ways_to(const struct ncclComm *comm, const struct rt_peer *peer);
const char *rt_way_text(uint32_t way);

/* All of these want the communicator's context to be current. */

/* Memory that the peer can take that way. */
bool rt_way_make(struct ncclComm *comm, const struct rt_peer *peer, enum rt_way way, size_t size, struct rt_mem *mem,
                 struct rt_way_to *to, char why[RT_WHY]);
/* Another process' memory of `size` bytes. `fd`: of RT_WAY_FD, the caller's own. */
bool rt_way_take(struct ncclComm *comm, const struct rt_way_to *to, size_t size, int fd, struct rt_mem *mem,
                 char why[RT_WHY]);
/* It has been taken so; returns it. */
void rt_way_return(enum rt_way way, struct rt_mem *mem);
/* May there be such an area, if `wanted` bytes were agreed upon? */
bool rt_way_size_fits(const struct rt_way_to *to, uint64_t size, size_t wanted);

#endif
