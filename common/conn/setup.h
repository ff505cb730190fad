/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection that is being set up, step by step, for plugins whose handshake goes on after HELLO: both sides' tables
 * of steps, run in order by connect and accept. For communicators with one TCP connection.
 *
 *   step      returns RAIL_OK (the next one follows), RAIL_IN_PROGRESS (called again later), or the result of
 *             rail_setup_fail. A step with several pieces does one per call (rail_setup_piece_done), each with at most
 *             one call that may take long, so that connect and accept stay short
 *   connect   rail_setup_init, rail_setup_begin_dial; its table has rail_setup_dial and rail_setup_answer as steps.
 *             Then rail_setup_run in each call of connect
 *   accept    the listener's on_hello puts a plugin's own structure, which begins with a struct rail_setup, into a
 *             struct rail_accepting; rail_accepting_next runs them in each call of accept
 *
 * A peer that goes silent, closes or sends something invalid is dropped with a line, and accept waits for the next one.
 * Failures that any peer would meet end accept with an error.
 *
 * One thread at a time.
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
  unsigned int dial_row; /* of a connector: where rail_setup_dial is */
  /* The peer refused with one of the plugin's own reasons: the words for the log line, in `text`; NULL function: those
   * of rail_reason_text. */
  void (*refused)(struct rail_setup *s, const struct rail_message *answer, char *text, size_t size);
};

struct rail_setup {
  const struct rail_setup_ops *ops;
  const struct rail_connector_limits *limits; /* connect_ms and its parameter; kept */
  const char *device;                         /* for log lines; kept */
  bool connector;
  union rail_addr peer;
  unsigned int state;  /* row */
  unsigned int piece;  /* of its step */
  bool more;           /* the step has pieces left that need not wait */
  unsigned int reason; /* after a failure: enum rail_reason, or the plugin's */
  struct rail_handshake handshake;
  struct rail_connector *dialing; /* a connector's: the plugin's, kept */
  TAILQ_ENTRY(rail_setup) link;   /* in a struct rail_accepting */
};

/* The peer is known; the TCP connection is not there yet (handshake.fd -1). */
void rail_setup_init(struct rail_setup *s, const struct rail_setup_ops *ops, const char *device, bool connector,
                     const union rail_addr *peer, const struct rail_connector_limits *limits);
/* A connector's: `dialing` is initialized (rail_connector_init with s->handshake). An error is logged. */
rail_result_t rail_setup_begin_dial(struct rail_setup *s, struct rail_connector *dialing,
                                    const struct rail_handle *listener, const struct rail_dial_args *args);
/* Closes the socket, unless it was taken, and what is dialled. */
void rail_setup_close(struct rail_setup *s);

/* Runs steps until `until` (rail_now_ns), at least one. RAIL_OK after the last row; RAIL_IN_PROGRESS; or the failure,
 * after a line and a refusal for the peer. */
rail_result_t rail_setup_run(struct rail_setup *s, uint64_t until);
/* One line, "PLUGIN: connect to PEER over DEVICE: ...", and a refusal for the peer unless `reason` is NONE. Returns
 * `result`. */
RAIL_PRINTF(4, 5) rail_result_t rail_setup_fail(struct rail_setup *s, unsigned int reason, rail_result_t result,
                                                const char *fmt, ...);
/* Has the peer taken longer than limits->connect_ms? */
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
rail_result_t rail_setup_answer(struct rail_setup *s);  /* connector: until the acceptor has welcomed it */
rail_result_t rail_setup_flushed(struct rail_setup *s); /* all messages are with the kernel */

/* ---- a listener's connections that are being set up ---- */

struct rail_accepting {
  TAILQ_HEAD(, rail_setup) list; /* in the order in which accept serves them */
  unsigned int count, most;
  struct rail_listener *listener; /* for log lines */
  void (*drop)(struct rail_setup *s); /* frees the plugin's structure */
};

void rail_accepting_init(struct rail_accepting *a, struct rail_listener *listener, unsigned int most,
                         void (*drop)(struct rail_setup *s));
void rail_accepting_close(struct rail_accepting *a);
/* Is there room for one more? Without a key a HELLO proves little: of too many the oldest that sent nothing after it is
 * dropped. False: all places are taken by peers that are further. */
bool rail_accepting_make_room(struct rail_accepting *a);
void rail_accepting_add(struct rail_accepting *a, struct rail_setup *s);
/* Runs each once, as far as `until` allows. *ready: the first that is through its table, out of the list; NULL: none.
 * An error is one that any peer would meet. */
rail_result_t rail_accepting_next(struct rail_accepting *a, uint64_t until, struct rail_setup **ready);

#endif
