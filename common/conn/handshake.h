/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages of a handshake over one connected TCP socket, after HELLO:
 * those that wait to be written, and the one that is coming in. A resumable
 * carrier: every function returns at once, RAIL_IN_PROGRESS means "call again
 * later". It never reads beyond the message it is at, so what the peer sends
 * after the last one is still in the socket for the data path.
 *
 * Use. The acceptor makes one in listener.h's on_hello, the connector gets one
 * from connector.h. Then each side sends and receives in the order that its
 * protocol has; the first message from the acceptor is ANSWER:
 *
 *   acceptor    rail_handshake_init(&h); rail_handshake_begin(&h, protocol, fd, false, hello);
 *               rail_handshake_welcome(&h, payload); then rail_handshake_flush until RAIL_OK
 *   connector   rail_handshake_recv(&h, &message, &reason, &why) until RAIL_OK;
 *               message.type == RAIL_MESSAGE_ANSWER, message.reason == RAIL_REASON_NONE: welcome
 *
 * When it is over the socket is taken: fd = h.fd; h.fd = -1.
 *
 * Errors are returned, not logged. With one of recv come *reason, to refuse the
 * peer with (rail_handshake_refuse), and *why, to log.
 *
 * Deadlines: rail_handshake_note_time once per call of connect or accept counts the
 * time in `waited`, at most a second per call: a process that was stopped does
 * not blame its peer. The plugin compares it with its limit (rail_handshake_has_waited)
 * and sets waited.ns to 0 where counting begins anew, as after ANSWER.
 *
 * One thread at a time. Owns its socket until that is taken.
 */
#ifndef RAIL_HANDSHAKE_H
#define RAIL_HANDSHAKE_H

#include "common/base/clock.h"
#include "common/conn/protocol.h"

#define RAIL_HANDSHAKE_OUT 8192 /* more than one side ever has waiting */

struct rail_handshake {
  int fd; /* -1: none */
  struct rail_session session;
  uint64_t begun;            /* rail_now_ns() of init */
  struct rail_waited waited; /* what counts for the deadline */
  size_t out_size, out_done;
  size_t have; /* bytes of the message that is coming in */
  uint8_t out[RAIL_HANDSHAKE_OUT];
  _Alignas(8) uint8_t in[RAIL_MESSAGE_MAX];
};

/* Without socket yet: a connector that still dials. */
void rail_handshake_init(struct rail_handshake *h);
/* The socket is there, HELLO was sent or received over it; `fd` is the handshake's from here on. `waited` goes on. */
void rail_handshake_begin(struct rail_handshake *h, const struct rail_protocol *protocol, int fd, bool connector,
                          const struct rail_hello *hello);
void rail_handshake_close(struct rail_handshake *h);

/* Adds a message to what is written by flush. RAIL_INTERNAL_ERROR: too long, or no room. */
rail_result_t rail_handshake_send(struct rail_handshake *h, unsigned int type, const void *body, size_t size);
/* The acceptor's first message; `payload`: protocol->answer_payload bytes, NULL: zeros. */
rail_result_t rail_handshake_welcome(struct rail_handshake *h, const void *payload);
/* RAIL_OK: all that was sent is with the kernel. RAIL_IN_PROGRESS. Else the peer is gone, see errno. */
rail_result_t rail_handshake_flush(struct rail_handshake *h);
/* Tells the peer `reason`, best effort, and closes. Sends nothing in the middle of a message of ours, or for NONE.
 * `payload` as for welcome. */
void rail_handshake_refuse(struct rail_handshake *h, unsigned int reason, const void *payload);
/* The same for a connection without a handshake of its own, without a payload. The socket is closed so
 * that the refusal arrives. */
void rail_refuse(const struct rail_protocol *protocol, int *fd, unsigned int reason);

/* RAIL_OK: one whole message, valid until the next call. RAIL_IN_PROGRESS. Else *reason says what to refuse with and
 * *why what happened; NONE: nothing to refuse, the peer is gone, and errno says how, 0 being the end of the stream. */
rail_result_t rail_handshake_recv(struct rail_handshake *h, struct rail_message *message, enum rail_reason *reason,
                                  const char **why);
/* Has a message begun to arrive? RAIL_OK: yes. RAIL_IN_PROGRESS: nothing, or what is not the handshake's. Else the peer
 * closed the connection, errno as for recv. Reads nothing. */
rail_result_t rail_handshake_peek(const struct rail_handshake *h);

void rail_handshake_note_time(struct rail_handshake *h);
/* limit_ms 0: never. */
bool rail_handshake_has_waited(const struct rail_handshake *h, int64_t limit_ms);

#endif
