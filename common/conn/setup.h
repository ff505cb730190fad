/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection that is being set up, step by step, for plugins whose handshake goes on after HELLO: both sides' tables
 * of steps, run in order by connect and accept. For comms with one TCP connection.
 *
 *   step      returns RAIL_OK (the next one follows), RAIL_IN_PROGRESS (called again later), or the result of
 *             rail_setup_fail. A step with several pieces does one per call (rail_setup_piece_done), each with at most
 *             one call that may take long, so that connect and accept stay short
 *   connect   rail_setup_init, rail_setup_begin_dial; its table has rail_setup_dial and, later, rail_setup_answer as
 *             steps. Then rail_setup_run in each call of connect
 *   accept    a struct rail_half_open beside the listener, whose on_hello calls rail_half_open_hello; then
 *             rail_half_open_next in each call of accept
 * A plugin's own structure begins with a struct rail_setup.
 *
 * A peer that goes silent, closes or sends something invalid is dropped with a line, and accept waits for the next one.
 * Failures that any peer would meet end accept with an error.
 *
 * One thread at a time.
 *
 * ---- what ends the set-up of a connection, in every plugin of ours --------------------------------
 *
 * P is RAIL_SOCKET, RAIL_IB, RAIL_OFI or RAIL_TEMPLATE. Of P_CONNECT_TIMEOUT only time in which the process made calls
 * counts. ib and ofi wait for ANSWER in connect; socket and template hand the comm out when HELLO is written, and
 * wait for it in isend and test.
 *
 *   connect, until HELLO is written   P_CONNECT_TIMEOUT (connector.c; socket: run_dials)
 *   then, until the peer's ANSWER,    ib, ofi, template: nothing while the peer's host answers; it may be silent for
 *   which comes when it calls accept  P_DEADLINE (TCP keepalive). socket: the same, and with sends outstanding
 *                                     P_PEER_TIMEOUT, as nothing shows that the peer's process lives
 *   dropped, or refused as busy,      dialled again, for P_CONNECT_TIMEOUT from the first of such failures in a row on
 *   before ANSWER                     (connector.c; socket: of this stream, sk_dial.c), or until no process listens
 *   from ANSWER to the end            ib, ofi: P_CONNECT_TIMEOUT. socket with TLS: P_HANDSHAKE_TIMEOUT a stream
 *   accept's side, without a HELLO    P_HANDSHAKE_TIMEOUT (pending.c; template: 10 s)
 *   with one: half-open               ib, ofi: P_CONNECT_TIMEOUT. socket: P_HANDSHAKE_TIMEOUT until all streams are
 *                                     there, then nothing. template: nothing while the peer's host answers
 *
 * How many there may be, in one process with one plugin. A HELLO too many is refused as busy (ib, ofi: first the oldest
 * that sent nothing after its HELLO is dropped); a connection too many without a HELLO is dropped:
 *
 *   without a HELLO, of all listeners   1,024, and a quarter of the files it may open (pending.h)
 *   half-open sockets, of all listeners 16,384, and half of those files (listener.h)
 *   half-open, of one listener          ib, ofi: 64 (net_setup.h); template: 64 (tpl_connect.c); socket: no limit
 *   HELLOs of one listener with a key   65,536 (replay.h)
 *
 * ---- what each side sees of a refusal: of a wrong secret, another version, another key ---------------
 *
 * listener.c has each HELLO checked (rail_hello_decode in protocol.c) and refuses it. TEXT is that of rail_reason_text,
 * for a wrong secret "wrong secret (a stale handle, or not a peer)"; that refusal does not say which version this
 * is. The connector does not try again, but where it is told "busy".
 *
 *   listener     one line, within the limits of pending.c: "PLUGIN: accept on DEVICE: refused a connection from PEER:
 *                TEXT; still listening". It goes on, and accept returns RAIL_OK without a comm
 *   connector    one line, and RAIL_REMOTE_ERROR:
 *     ib, ofi    from connect: "PLUGIN: connect to PEER over DEVICE: refused: TEXT" (refused in setup.c)
 *     socket     from isend or test: "PLUGIN: sending to PEER over DEVICE: the peer refused stream N: TEXT"
 *     template   from isend or test: "PLUGIN: send to PEER over DEVICE: it refused the connection: TEXT"
 *
 * What the handle shows already ends connect before the listener sees anything:
 *
 *   another version   "PLUGIN: connect: this handle cannot be used: WHY", RAIL_BAD_ARGUMENT (net_ctx.c)
 *   a key on one side "PLUGIN: connect to PEER over DEVICE: PARAM is set there and not here; ...", or the other way
 *                     round, RAIL_BAD_USAGE (connector.c); socket, where only one side encrypts: the listener refuses
 */
#ifndef RAIL_SETUP_H
#define RAIL_SETUP_H

#include <sys/queue.h>

#include "common/conn/connector.h"
#include "common/conn/handshake.h"
#include "common/conn/listener.h"

struct rail_setup;

struct rail_setup_row {
  const char *name;
  rail_result_t (*step)(struct rail_setup *s);
  const char *waits_for; /* NULL: does not wait */
  bool unlimited; /* the peer's process may take any time, or drop the connection: the step handles both */
};

struct rail_setup_ops {
  const struct rail_protocol *protocol;
  const struct rail_setup_row *rows;
  unsigned int nrows;
  /* The peer has refused: may count that, and put other words for the log line into `text`, which holds "refused: " and
   * those of rail_reason_text. Not RAIL_OK: the refusal itself is invalid, the result is one of rail_setup_fail. NULL:
   * nothing to add. */
  rail_result_t (*refused)(struct rail_setup *s, const struct rail_message *answer, char *text, size_t size);
};

struct rail_setup {
  const struct rail_setup_ops *ops;
  struct rail_connector_limits limits;
  const char *device; /* for log lines; kept */
  bool connector;
  union rail_addr peer;
  unsigned int state;  /* row */
  unsigned int piece;  /* of its step */
  bool more;           /* the step has pieces left that need not wait */
  unsigned int reason; /* after a failure: enum rail_reason, or the plugin's */
  struct rail_handshake handshake;
  struct rail_connector dialing; /* a connector's, from rail_setup_begin_dial on */
  union rail_addr from;          /* and its interface's address */
  TAILQ_ENTRY(rail_setup) link;  /* in a struct rail_half_open */
};

/* The peer is known; the TCP connection is not there yet (handshake.fd -1). */
void rail_setup_init(struct rail_setup *s, const struct rail_setup_ops *ops, const char *device, bool connector,
                     const union rail_addr *peer, const struct rail_connector_limits *limits);
/* A connector's: from this interface, whose name is kept, and address. An error is logged. */
rail_result_t rail_setup_begin_dial(struct rail_setup *s, const struct rail_handle *listener, const char *interface,
                                    const union rail_addr *from);
/* Closes the socket, unless it was taken, and what is dialled. */
void rail_setup_close(struct rail_setup *s);

/* Runs steps until `until` (rail_now_ns), at least one. RAIL_OK after the last row; RAIL_IN_PROGRESS; or the failure,
 * after a line and a refusal for the peer. */
rail_result_t rail_setup_run(struct rail_setup *s, uint64_t until);
/* One line, "PLUGIN: connect to PEER over DEVICE: ...", and a refusal for the peer unless `reason` is NONE. Returns
 * `result`. */
RAIL_PRINTF(4, 5) rail_result_t rail_setup_fail(struct rail_setup *s, unsigned int reason, rail_result_t result,
                                                const char *fmt, ...);
/* Has the peer taken longer than limits.connect_ms? */
bool rail_setup_is_late(const struct rail_setup *s);
/* Counts pieces: RAIL_OK when that was the last of `n`. */
rail_result_t rail_setup_piece_done(struct rail_setup *s, unsigned int n);

/* The next message. Fails with "refused" if the peer has, or with what is wrong with its message instead of a `wanted`
 * one. RAIL_OK: it is one, valid until the next call. */
rail_result_t rail_setup_recv(struct rail_setup *s, unsigned int wanted, struct rail_message *message);

/* Random, the same in all connections of a process: by it a peer knows which those are. A child of fork is another
 * process. */
uint64_t rail_setup_process_id(void);

/* ---- steps ---- */

rail_result_t rail_setup_dial(struct rail_setup *s);    /* connector: until HELLO is written */
rail_result_t rail_setup_answer(struct rail_setup *s);  /* connector: until it is welcome; if dropped, back to dial */
rail_result_t rail_setup_welcome(struct rail_setup *s); /* acceptor: the peer is welcome, without a payload */
rail_result_t rail_setup_flushed(struct rail_setup *s); /* all messages are with the kernel */

/* ---- a listener's half-open connections, which are being set up ---- */

struct rail_half_open {
  TAILQ_HEAD(, rail_setup) list; /* in the order in which accept serves them */
  unsigned int count, max;
  struct rail_listener *listener;
  struct rail_setup *(*begin)(void *owner, const union rail_addr *peer);
  void (*drop)(struct rail_setup *s);
};

/* `begin`: makes the plugin's structure, for the listener's owner; NULL: out of memory. `drop` frees it. */
void rail_half_open_init(struct rail_half_open *a, struct rail_listener *listener, unsigned int max,
                         struct rail_setup *(*begin)(void *owner, const union rail_addr *peer),
                         void (*drop)(struct rail_setup *s));
void rail_half_open_close(struct rail_half_open *a);
/* What the listener's on_hello returns. There may be `max`, and what the process allows (rail_listener_reserve).
 * Without a key a HELLO proves little: of too many connections the oldest that sent nothing after it is dropped.
 * Refused as busy: all of them are further. */
unsigned int rail_half_open_hello(struct rail_half_open *a, const struct rail_pending *conn,
                                  const struct rail_hello *hello);
/* Runs each once, as far as `until` allows. *ready: the first that is through its table, out of the list; NULL: none.
 * An error is one that any peer would meet. */
rail_result_t rail_half_open_next(struct rail_half_open *a, uint64_t until, struct rail_setup **ready);

#endif
