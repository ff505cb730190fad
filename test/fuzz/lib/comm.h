/* SPDX-License-Identifier: Apache-2.0
 *
 * One side of a connection of the socket plugin, made as the handshake makes
 * it, with the other ends of its streams in the fuzzer's hands.
 */
#ifndef FUZZ_COMM_H
#define FUZZ_COMM_H

#include "plugin/socket/sk_comm.h"
#include "test/fuzz/lib/fuzz.h"

#define FUZZ_STREAMS 4
#define FUZZ_QUEUE ((size_t)1 << 18)

/* Bytes on their way to one stream, delivered as the input says. */
struct fuzz_queue {
  uint8_t *bytes;
  size_t size, done;
};

struct fuzz_comm {
  void *comm;
  struct sk_comm_args args;
  int ends[FUZZ_STREAMS];
  struct fuzz_queue queues[FUZZ_STREAMS];
};

/* The connection, as the input's first byte chooses it. With failover no stream comes back: the peer neither answers
 * nor dials. */
struct fuzz_shape {
  unsigned int nstreams;
  bool failover;
  uint32_t eager_size, eager_count;
};
struct fuzz_shape fuzz_shape(uint8_t head, uint32_t eager_size, uint32_t least_count);

void fuzz_open_recv(struct fuzz_comm *c, const struct fuzz_shape *shape);
void fuzz_open_send(struct fuzz_comm *c, const struct fuzz_shape *shape);

/* The peer ends a stream; what it had queued is lost. */
void fuzz_end_stream(struct fuzz_comm *c, unsigned int stream);

/* Queues bytes; false, and nothing queued, if there is no room. */
bool fuzz_queue(struct fuzz_comm *c, unsigned int stream, const void *bytes, size_t size);
/* Up to `size` queued bytes go to the stream. */
void fuzz_deliver(struct fuzz_comm *c, unsigned int stream, size_t size);
void fuzz_deliver_all(struct fuzz_comm *c);

/* A header, whatever its fields mean. */
void fuzz_frame(uint8_t bytes[SK_HEAD], unsigned int type, unsigned int flags, uint32_t seq, uint64_t size,
                uint32_t len, uint32_t tag);

/* Closes the comm and forgets its sockets; the other ends too. */
void fuzz_close_comm(struct fuzz_comm *c);

/* Sizes that are on, below and above the plugin's limits. */
size_t fuzz_size(uint8_t choice);

#endif
