/* SPDX-License-Identifier: Apache-2.0
 *
 * The oob (out-of-band) connection during the handshake: a TCP connection, with messages that are queued to be sent and
 * the one that is being received. Never waits, and never reads beyond the current message: what follows the handshake
 * is for the watch thread (ib_keepalive.h).
 */
#ifndef IB_OOB_H
#define IB_OOB_H

#include "plugin/ib/ib_auth.h"

#define IB_OOB_OUT 8192 /* more than one side ever sends */

struct ib_oob {
  int fd; /* -1: none */
  bool connector;
  bool authenticated; /* messages carry macs */
  struct ib_auth_session session;
  uint32_t sent, received; /* messages with a mac, counted */
  size_t out_size, out_done;
  size_t have; /* bytes of the incoming message */
  size_t body; /* its size; 0 until the head is received */
  unsigned int type;
  uint8_t out[IB_OOB_OUT];
  _Alignas(8) uint8_t in[IB_MESSAGE_MAX];
};

/* Takes ownership of `fd`. */
void ib_oob_init(struct ib_oob *oob, int fd, bool connector, bool authenticated, const struct ib_hello_wire *hello);
void ib_oob_close(struct ib_oob *oob);

/* Queues a message. A welcome's nonce is used from the next message on. */
rail_result_t ib_oob_send(struct ib_oob *oob, enum ib_message_type type, const void *body, size_t size);
/* RAIL_OK: everything queued is sent. RAIL_IN_PROGRESS. Else the peer is gone, see errno. */
rail_result_t ib_oob_flush(struct ib_oob *oob);

struct ib_message {
  enum ib_message_type type;
  const void *body; /* aligned; until the next call */
  size_t size;
};
/* RAIL_OK: one whole message. RAIL_IN_PROGRESS. Else *why says what happened, and *reason is for a refusal
 * (IB_REASON_NONE: the peer is gone). */
rail_result_t ib_oob_recv(struct ib_oob *oob, struct ib_message *message, enum ib_reason *reason, const char **why);
/* RAIL_OK: a message of the handshake is there or begins. RAIL_IN_PROGRESS: nothing, or bytes for the watch thread.
 * Else the peer closed the connection. Consumes nothing. */
rail_result_t ib_oob_peek(const struct ib_oob *oob);

#endif
