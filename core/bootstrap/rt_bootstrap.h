/* SPDX-License-Identifier: Apache-2.0
 *
 * Bootstrap: how ranks find each other and exchange small messages over TCP before, beside and after the data
 * connections; and how a rank learns that another one died.
 *
 * A unique id is the rendezvous' address and a secret. Every rank connects to the rendezvous with (rank, nranks, own
 * address), gets the table of all addresses, and from then on ranks talk directly: a ring for allgather, a connection
 * per pair on first use for send/recv. One bootstrap thread per communicator accepts connections, queues messages by
 * (peer, tag), sends heartbeats along the ring and notices dead neighbours.
 *
 * Every message is versioned and length-checked, the first message of every connection carries the secret;
 * unauthenticated connections are dropped with a log line. Every wait ends with success, the abort flag, a failure that
 * the bootstrap thread found, or the deadline.
 */
#ifndef RT_BOOTSTRAP_H
#define RT_BOOTSTRAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/result.h"

#define RT_UNIQUE_ID_BYTES 128

struct rt_bootstrap;

/* What a communicator shares with its bootstrap. All outlive it. */
struct rt_bootstrap_args {
  int rank, nranks;
  uint64_t timeout_ms;           /* for the rendezvous: all ranks must have arrived by then */
  uint64_t heartbeat_ms;         /* interval; 0 off */
  uint64_t heartbeat_timeout_ms; /* a neighbour that is silent for this long is taken for dead */
  const _Atomic int *abort_flag; /* nonzero ends every wait with RAIL_REMOTE_ERROR */
  /* Called at most once, from the bootstrap thread, when a peer died, aborted or went silent. `why`
   * names it. May be NULL. Must not call back into the bootstrap. */
  void (*on_failure)(void *arg, rail_result_t result, const char *why);
  void *arg;
};

/* Fills `id` and starts a rendezvous thread in this process, which ends when
 * all ranks have joined or its deadline has passed. NCCL_COMM_ID=host:port: the id holds that
 * address and nothing is started (rank 0 starts it in rt_bootstrap_open). */
rail_result_t rt_unique_id_create(char id[RT_UNIQUE_ID_BYTES]);
/* An id for a well-known address; all ranks compute the same one. The secret is derived from `cookie`. */
rail_result_t rt_unique_id_from_address(const char *host_port, uint64_t cookie, char id[RT_UNIQUE_ID_BYTES]);

/* Ends the rendezvous of an id that no rank will use. Errors do not matter: it also ends by itself. */
void rt_unique_id_drop(const char id[RT_UNIQUE_ID_BYTES]);

/* Of an id that this process has made: does its rendezvous still wait for ranks? And ends it: ranks that wait there get
 * the reason. Neither call waits. */
bool rt_unique_id_waits(const char id[RT_UNIQUE_ID_BYTES]);
void rt_unique_id_cancel(const char id[RT_UNIQUE_ID_BYTES], const char *why);

/* Collective. On failure *out is NULL and nothing is left behind. */
rail_result_t rt_bootstrap_open(const char id[RT_UNIQUE_ID_BYTES], const struct rt_bootstrap_args *args,
                                struct rt_bootstrap **out);

/* A bootstrap among some ranks of `parent`, which all call this: ranks[i] is the parent's rank of the new rank i;
 * args->rank and nranks are the new ones. `serial` differs between successive splits of one parent. */
rail_result_t rt_bootstrap_split(struct rt_bootstrap *parent, const int *ranks, uint32_t serial,
                                 const struct rt_bootstrap_args *args, struct rt_bootstrap **out);

/* The same among the ranks of `parent` that stay, in their order. The others need not live, and the parent may have
 * failed; all waits have a deadline. */
rail_result_t rt_bootstrap_shrink(struct rt_bootstrap *parent, const int *ranks, const struct rt_bootstrap_args *args,
                                  struct rt_bootstrap **out);

/* all[rank * each] holds this rank's block on entry, all[] those of all ranks on return. A rank that does not come is
 * an error that names it, when b's timeout_ms have passed. */
rail_result_t rt_bootstrap_allgather(struct rt_bootstrap *b, void *all, size_t each);

/* The making of a communicator from b's ranks, all of which take part. */
struct rt_bootstrap_child {
  const char *call; /* the public call, for error lines */
  uint32_t serial;  /* below 2^31; differs between successive children, the same on all ranks */
  const _Atomic int *abort_flag; /* the new communicator's: ends the wait, as b's own does */
};
/* The same for small records that the ranks exchange to make a child. Several may be under way in different threads.
 * A rank that does not take part is an error that names it, when b's timeout_ms have passed. */
rail_result_t rt_bootstrap_gather_for_child(struct rt_bootstrap *b, const struct rt_bootstrap_child *child, void *all,
                                            size_t each);

/* One message; several threads may use different (peer, tag) at once. Sending to oneself works. Only failure and abort
 * end the wait: the peer may be busy. */
rail_result_t rt_bootstrap_send(struct rt_bootstrap *b, int peer, uint32_t tag, const void *data, size_t size);
/* Does not wait: RAIL_IN_PROGRESS when the message has not come. A message of another size is RAIL_REMOTE_ERROR. */
rail_result_t rt_bootstrap_try_recv(struct rt_bootstrap *b, int peer, uint32_t tag, void *data, size_t size);

/* Has the rank ended its communicator, or died? Known once it has a connection to or from this rank, which this call
 * opens if there is none, within a second. */
bool rt_bootstrap_peer_left(struct rt_bootstrap *b, int peer);

/* Reports to every other rank, through both neighbours, that this communicator has failed; does not wait for them. */
void rt_bootstrap_abort(struct rt_bootstrap *b, rail_result_t result, const char *why);

/* Says goodbye (so that closing is not taken for dying), stops the bootstrap thread, frees. Takes a second at most.
 * NULL is fine. */
void rt_bootstrap_close(struct rt_bootstrap *b);

/* RAIL_OK, or the failure that ended the communicator, with its reason ("rank 2 (10.0.0.2:41234) died: connection
 * closed"; "" if none) in `why`. From any thread. */
rail_result_t rt_bootstrap_failure(struct rt_bootstrap *b, char *why, size_t cap);

/* Printable address of a rank ("10.0.0.2:41234"), for error lines. Valid until this thread's fourth call after. */
const char *rt_bootstrap_peer_text(const struct rt_bootstrap *b, int peer);

#endif
