/* SPDX-License-Identifier: Apache-2.0
 *
 * The connecting side, for a comm with one TCP connection: dial, send HELLO,
 * await the acceptor's ANSWER. Never blocks; connect calls it again.
 *
 * Use, from a plugin's connect:
 *   first call   rail_handle_decode; rail_connector_agree_auth; rail_handshake_init;
 *                rail_connector_init; then as a later call
 *   each call    rail_handshake_note_time, then rail_connector_dial until RAIL_OK, then
 *                rail_connector_answer until RAIL_OK. Both return RAIL_IN_PROGRESS for "call again
 *                later". When answer finds the connection dropped before the acceptor sent anything,
 *                it closes it (handshake->fd is -1): go on with rail_connector_dial.
 *   at the end   rail_connector_close; the socket is the handshake's, take it there
 * Between HELLO and ANSWER the plugin may send messages of its own.
 *
 * Deadlines. The TCP connection has to be there within limits.connect_ms. The
 * acceptor's ANSWER may then take any time, as long as its host answers
 * (limits.deadline_ms, by TCP keepalive): it comes when the peer's process calls
 * accept. A listener that is flooded drops connections or refuses them as busy
 * before it answers; those are dialled again, with a new HELLO, until such tries
 * have failed in a row for connect_ms, or no process listens there any more.
 *
 * Errors: the result, with connector->why, a text for the plugin's log line
 * "connect to PEER over DEVICE: WHY". Nothing else is logged but a redial (INFO) and,
 * once in limits.warn_ms and process, that a peer does not accept (WARN).
 *
 * One thread at a time.
 */
#ifndef RAIL_CONNECTOR_H
#define RAIL_CONNECTOR_H

#include "common/conn/dial.h"
#include "common/conn/handshake.h"

/* Milliseconds, 0: no limit; and the parameters that set them, for log lines. */
struct rail_connector_limits {
  int64_t connect_ms, deadline_ms, warn_ms;
  const char *connect_param, *deadline_param;
};

struct rail_connector {
  const struct rail_protocol *protocol;
  const struct rail_connector_limits *limits; /* kept */
  const char *device;                         /* for log lines; kept */
  struct rail_handshake *handshake;           /* the plugin's, kept */
  struct rail_handle listener;
  struct rail_dial dial;
  struct rail_hello hello;
  uint8_t bytes[RAIL_HELLO_MAX];
  unsigned int drops;             /* connections that the peer dropped before it answered, in a row: */
  uint64_t first_drop, last_drop; /* from when to when */
  bool reported;                  /* that the peer does not accept */
  char why[320];
};

/* Both sides with a key, or both without. False after one line. */
bool rail_connector_agree_auth(const struct rail_protocol *protocol, const struct rail_handle *listener,
                               const char *device);

/* Nothing is dialled yet. `payload`: protocol->hello_payload bytes; NULL: zeros. An error is one of the kernel's random
 * source or of HMAC. The first address of the handle is dialled. */
rail_result_t rail_connector_init(struct rail_connector *connector, const struct rail_protocol *protocol,
                                  const struct rail_handle *listener, const struct rail_dial_args *args,
                                  const void *payload, const struct rail_connector_limits *limits, const char *device,
                                  struct rail_handshake *handshake);
/* RAIL_OK: HELLO is written, and the handshake has the socket. */
rail_result_t rail_connector_dial(struct rail_connector *connector);
/* RAIL_OK: the acceptor's first message is here; whether it is a welcome is for the caller to see. With an error
 * *reason is what to refuse the peer with. */
rail_result_t rail_connector_answer(struct rail_connector *connector, struct rail_message *message,
                                    enum rail_reason *reason);
void rail_connector_close(struct rail_connector *connector);

#endif
