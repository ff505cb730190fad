/* SPDX-License-Identifier: Apache-2.0
 *
 * Areas: memory of a GPU that kernels of another rank use as well. Its owner offers it in memory that both processes
 * share; the taker finds it by address when it is the same process, else by what the driver exports (rt_way.h).
 *
 * An offer goes one way:
 *   NONE → OFFERED → TAKEN → USED → RETURNED   the taker has it; is ready to use it; has let go of it for good
 *                          → REFUSED           the taker cannot use it
 *                  → WITHDRAWN                 the owner is gone before it was taken
 *   NONE → WITHDRAWN                           there will be none
 * The memory lives as long as one of the two has it: a kernel of the taker may write on when the owner's end is
 * gone. Of mapped memory the driver sees to that; else another process' share ends with RETURNED, or with the process.
 */
#ifndef RT_AREA_H
#define RT_AREA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/result.h"
#include "core/gpu/rt_cuda.h"
#include "core/gpu/rt_gpu.h"
#include "core/topo/rt_pci.h"
#include "core/gpu/rt_way.h"

enum rt_offer_state {
  RT_OFFER_NONE,
  RT_OFFER_OFFERED,
  RT_OFFER_TAKEN,
  RT_OFFER_USED,
  RT_OFFER_REFUSED,
  RT_OFFER_RETURNED,
  RT_OFFER_WITHDRAWN,
};

/* In memory that two processes share. */
struct rt_area_offer {
  uint32_t state; /* enum rt_offer_state; the rest is there once it is OFFERED */
  uint32_t path;  /* enum rt_distance, the taker's answer; there once it is USED */
  uint64_t size, address, serial; /* the last two: within the owner's process */
  char bus_id[RT_CUDA_BUS_ID];
  struct rt_way_to to;
};

struct rt_area;

/* An area as its taker has it. */
struct rt_area_view {
  char *base;             /* NULL: none */
  void *context;          /* the taker's */
  struct rt_area *shared; /* of this process; NULL: `mem` is another's */
  struct rt_mem mem;
  enum rt_way way;
  enum rt_distance path; /* between the GPU it lies in, and the one that uses it */
};

/* All of these make the context that they need current themselves. A refusal's reason is in `why`. */

/* Zeroed memory of the communicator's GPU, which this peer can take as the offer will say: by the best of the ways that
 * both have and that works. */
struct rt_area *rt_area_make(struct ncclComm *comm, int peer, size_t size, struct rt_area_offer *offer,
                             char why[RT_WHY]);
char *rt_area_base(const struct rt_area *area);
/* From now on the peer may take it, and write there. */
void rt_area_publish(struct rt_area_offer *offer);
/* There will be none. */
void rt_area_withhold(struct rt_area_offer *offer);
/* False: it cannot be used; the offer is REFUSED then. To be called when it is OFFERED. */
bool rt_area_take(struct ncclComm *comm, struct rt_area_offer *offer, size_t size, int owner,
                  enum rt_distance farthest, struct rt_area_view *view, char why[RT_WHY]);
/* The taker has told its kernels where to find it. */
void rt_area_use(const struct rt_area_view *view, struct rt_area_offer *offer);
void rt_area_return(struct rt_area_view *view, struct rt_area_offer *offer);
/* The owner lets go. True: `taker`, another process, still has it; then `shared`, where the offer lies, is unmapped
 * with it later. */
bool rt_area_leave(struct rt_area *area, struct rt_area_offer *offer, int64_t taker, struct rt_range shared);

/* Gives other processes some time to return what the communicator has let go of. */
void rt_area_settle(const struct ncclComm *comm, uint64_t ms);

static inline enum rt_offer_state rt_offer_state(const struct rt_area_offer *o) {
  return (enum rt_offer_state)__atomic_load_n(&o->state, __ATOMIC_ACQUIRE);
}

#endif
