/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of the handshake over the oob connection: what was said and has not
 * left yet, and the one that is coming in. Never waits, never reads beyond the
 * message it is at: what follows the last one is the watch thread's.
 */
#ifndef IB_OOB_H
#define IB_OOB_H

#include "plugin/ib/ib_auth.h"

#define IB_OOB_OUT 8192 /* more than all that one side ever says */

struct ib_oob {
  int fd; /* -1: none */
  bool connector;
  bool keyed; /* messages carry macs */
  struct ib_auth_session session;
  uint32_t sent, received; /* messages with a mac of their own */
  size_t out_size, out_done;
  size_t have; /* bytes of the message that is coming in */
  size_t body; /* its size; 0 until the head is there */
  unsigned int type;
  uint8_t out[IB_OOB_OUT];
  _Alignas(8) uint8_t in[IB_MESSAGE_MAX];
};

/* `fd` is its own from here on. */
void ib_oob_init(struct ib_oob *oob, int fd, bool connector, bool keyed, const struct ib_hello_wire *hello);
void ib_oob_close(struct ib_oob *oob);

/* Adds one to what leaves. A welcome's nonce counts from the next message on. */
rail_result_t ib_oob_send(struct ib_oob *oob, enum ib_message_type type, const void *body, size_t size);
/* RAIL_OK: all that was said has left. RAIL_IN_PROGRESS. Else the peer is gone, see errno. */
rail_result_t ib_oob_flush(struct ib_oob *oob);

struct ib_message {
  enum ib_message_type type;
  const void *body; /* aligned; until the next call */
  size_t size;
};
/* RAIL_OK: one whole message. RAIL_IN_PROGRESS. Else *reason says what to tell the peer (IB_REASON_NONE: nothing, it is
 * gone), *why what happened. */
rail_result_t ib_oob_recv(struct ib_oob *oob, struct ib_message *message, enum ib_reason *reason, const char **why);
/* Is there anything to hear? RAIL_OK: one of the handshake's messages has begun. RAIL_IN_PROGRESS: nothing, or what is
 * the watch thread's. Else the peer closed the connection. Reads nothing. */
rail_result_t ib_oob_peek(const struct ib_oob *oob);

#endif
