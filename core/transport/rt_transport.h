/* SPDX-License-Identifier: Apache-2.0
 *
 * Transports: ways for two ranks to have a connection. They are tried in the
 * table's order, and both ranks come to the same choice because can_connect is
 * symmetric. P2P: kernels of two GPUs share memory of one. SHM: two host programs or kernels share
 * the host's memory. NET: proxies move the bytes through a plugin.
 *
 * A connector is one end of one directed connection on one channel. It is made in
 * three steps, so that a rank can have many under way at once:
 *   setup    creates what is local and fills the record that is sent to the peer
 *   connect  gets the peer's record; RAIL_IN_PROGRESS: call again
 *   free     takes down whatever was built, half-built included
 */
#ifndef RT_TRANSPORT_H
#define RT_TRANSPORT_H

#include "common/base/result.h"
#include "core/comm/rt_peer.h"
#include "core/gpu/rt_gpu.h"
#include "core/host/rt_conn.h"

struct ncclComm;
struct rt_proxy_op;

/* What a communicator's calls work on. ANY: no call has had a buffer yet. */
enum rt_memory_kind { RT_ANY_MEMORY, RT_HOST_MEMORY, RT_DEVICE_MEMORY };

/* What one end sends the other through the bootstrap; the same size for all transports. */
struct rt_connect_record {
  uint32_t version;   /* RT_CONNECT_VERSION */
  uint32_t transport; /* index in rt_transports: both ends must agree */
  uint32_t memory;    /* enum rt_memory_kind: both ends must agree, but for RT_ANY_MEMORY */
  char net_name[32];  /* NET: the plugin's vtable name: both ends must agree */
  uint32_t schedule;  /* enum rt_coll of the call that makes the connection: both must agree, but for RT_ANY_SCHEDULE */
  unsigned char body[176];
};
#define RT_ANY_SCHEDULE UINT32_MAX
#define RT_CONNECT_VERSION 4u
_Static_assert(sizeof(struct rt_connect_record) == 224, "the record has one size");

struct rt_connector;

struct rt_transport_end {
  rail_result_t (*setup)(struct ncclComm *comm, struct rt_connector *c, struct rt_connect_record *mine);
  rail_result_t (*connect)(struct ncclComm *comm, struct rt_connector *c, const struct rt_connect_record *theirs);
  void (*free)(struct ncclComm *comm, struct rt_connector *c);
  /* Moves an operation on. RAIL_OK: something moved (op->done tells how far); RAIL_IN_PROGRESS: nothing did.
   * NULL: no proxy is involved. */
  rail_result_t (*progress)(struct ncclComm *comm, struct rt_connector *c, struct rt_proxy_op *op);
  /* Has the peer closed its end for good? NULL: progress says so, with an error. */
  bool (*peer_left)(const struct rt_connector *c);
  /* Registers user memory for steps without a copy; NULL: the transport cannot. */
  rail_result_t (*reg)(struct ncclComm *comm, struct rt_connector *c, void *data, size_t size, void **mhandle);
  void (*dereg)(struct ncclComm *comm, struct rt_connector *c, void *mhandle);
  /* Where the FIFO lies, for a device that shall reach it: fills in at most RT_MAX_RANGES - 1, returns how many. */
  int (*ranges)(const struct rt_connector *c, struct rt_range *out);
};

struct rt_transport {
  const char *name;
  bool (*can_connect)(const struct rt_peer *a, const struct rt_peer *b);
  struct rt_transport_end send, recv;
};

enum { RT_TRANSPORT_P2P, RT_TRANSPORT_SHM, RT_TRANSPORT_NET, RT_TRANSPORT_COUNT };
extern const struct rt_transport *const rt_transports[RT_TRANSPORT_COUNT];
extern const struct rt_transport rt_p2p_transport, rt_shm_transport, rt_net_transport;

/* In pages of its own: a device may have to reach `conn`. */
struct rt_connector {
  struct rt_conn conn; /* the view of a program or kernel */
  const struct rt_transport *transport;
  const struct rt_transport_end *end; /* transport->send or ->recv */
  void *res;                          /* the transport's own */
  int peer, channel;
  uint32_t schedule; /* of the record */
  bool is_send, connected;
  bool in_gpu; /* P2P: slots lie in a GPU's memory */
  size_t host_bytes, gpu_bytes; /* that this end has allocated for slots */
  /* Proxy: operations in order, the first one active; next in the circle of active connectors. */
  struct rt_proxy_op *ops, *ops_last;
  struct rt_connector *next_active;
  /* What is registered with CUDA. */
  struct rt_range mapped[RT_MAX_RANGES];
  int nmapped;
  int launches;     /* jobs of launches on a device that are not over; under the lock of struct rt_gpu, as the next */
  uint64_t planned; /* then: steps, once they are */
};

/* Unloads the network plugin, if a NET connection has loaded it. After all connectors are freed. */
void rt_net_close(struct ncclComm *comm);

/* Do the programs or kernels of the two ranks share a FIFO? Otherwise each shares one with a proxy. */
static inline bool rt_transport_direct(const struct rt_transport *t) { return !t->send.progress; }

/* The first transport that can connect the two; NET always can. */
const struct rt_transport *rt_transport_choose(const struct rt_peer *a, const struct rt_peer *b);

/* Fails the communicator when a peer's kind of memory, enum rt_memory_kind, is another one than ours. */
rail_result_t rt_check_memory(struct ncclComm *comm, int peer, uint32_t theirs);
/* Connects every connector of the list that is not connected yet; the peers do the same for their ends. */
rail_result_t rt_connect_all(struct ncclComm *comm, struct rt_connector **list, int n);
void rt_connector_free(struct ncclComm *comm, struct rt_connector *c);

#endif
