/* SPDX-License-Identifier: Apache-2.0
 *
 * The segment that two ranks of a host share, for the transports that have one:
 * SHM, where all slots lie in it, and P2P, where a device's may lie in a GPU's memory.
 */
#ifndef RT_SHM_H
#define RT_SHM_H

#include "core/transport/rt_transport.h"

enum { RT_SHM_RECV, RT_SHM_SEND, RT_SHM_SIDES };

/* Layout of the segment; counters have a cache line each. */
struct rt_shm_segment {
  uint64_t magic, size;
  uint64_t attached;           /* set by the sender once it has mapped the segment */
  uint64_t left[RT_SHM_SIDES]; /* set when an end is taken down */
  uint64_t pad0[3];
  RAIL_ALIGNED(64) uint64_t tail;
  RAIL_ALIGNED(64) uint64_t credit;
  RAIL_ALIGNED(64) struct rt_slot slot[RT_STEPS];
  /* P2P: what became of the memory that each side exported, enum rt_import_state; and how far the importer's GPU is
   * from it, enum rt_distance. */
  RAIL_ALIGNED(64) uint32_t import[RT_SHM_SIDES], path[RT_SHM_SIDES];
};

/* What the record's body begins with. */
struct rt_shm_record {
  int64_t pid, fd;
  uint64_t size;
};

/* What a connector's `res` begins with. */
struct rt_shm_end {
  struct rt_shm_segment *segment;
  size_t size;
  int fd; /* receiver: until the sender has mapped it */
};

bool rt_shm_can_connect(const struct rt_peer *a, const struct rt_peer *b);

/* The parts of a transport's functions of the same names. `res_size` bytes are allocated for `res`, zeroed. */
rail_result_t rt_shm_recv_setup(struct ncclComm *comm, struct rt_connector *c, struct rt_connect_record *mine,
                                size_t res_size);
rail_result_t rt_shm_recv_connect(struct rt_connector *c);
rail_result_t rt_shm_send_setup(struct rt_connector *c, size_t res_size);
/* Maps the segment; nothing if that was done. The receiver sees it by rt_shm_attached. */
rail_result_t rt_shm_send_connect(struct ncclComm *comm, struct rt_connector *c,
                                  const struct rt_connect_record *theirs);
void rt_shm_attached(struct rt_connector *c);
bool rt_shm_peer_left(const struct rt_connector *c);
int rt_shm_ranges(const struct rt_connector *c, struct rt_range *out);
/* The other side learns that this one is gone. Then free: */
void rt_shm_leave(struct rt_connector *c);
/* `kept`: the segment stays mapped; rt_export_free has taken it over. */
void rt_shm_free(struct rt_connector *c, bool kept);

#endif
