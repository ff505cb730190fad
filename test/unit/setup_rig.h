/* SPDX-License-Identifier: Apache-2.0
 * A plugin whose handshake has a few steps of common/conn/setup.h, with listen, accept and connect; peers and a
 * listener made of bare sockets. Definitions, for one test program. */
#ifndef SETUP_RIG_TEST_H
#define SETUP_RIG_TEST_H

#include <arpa/inet.h>
#include <sched.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "common/conn/setup.h"
#include "test/harness/log_lines.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 20000
#define LIMIT_MS 3600000 /* of a handshake: reached only by be_late */
enum { MESSAGE_OFFER = 2, MESSAGE_READY = 3, OWN_REASON = RAIL_REASON_PLUGIN, PIECES = 3, MOST = 3 };

/* ---- the plugin ---------------------------------------------------------------- */

struct side {
  struct rail_setup base;
  unsigned int pieces;
};

static const struct rail_connector_limits limits = {.connect_ms = LIMIT_MS, .connect_param = "TEST_TIMEOUT",
                                                    .deadline_param = "TEST_DEADLINE"};
static unsigned int fail_with; /* RAIL_REASON_NONE: step_work does not fail */
static bool forgives;          /* step_forgive forgets how long it waited */
static int refusals;           /* that the op `refused` has seen */

static struct side *side_of(struct rail_setup *base) { return rail_container_of(base, struct side, base); }

static rail_result_t send_offer(struct rail_setup *s) {
  return rail_handshake_send(&s->handshake, MESSAGE_OFFER, "offer", 5);
}

static rail_result_t recv_offer(struct rail_setup *s) {
  struct rail_message message;
  RAIL_TRY(rail_setup_recv(s, MESSAGE_OFFER, &message));
  CHECK(message.size == 5 && memcmp(message.body, "offer", 5) == 0);
  return RAIL_OK;
}

static rail_result_t step_work(struct rail_setup *s) {
  if (fail_with) return rail_setup_fail(s, fail_with, RAIL_SYSTEM_ERROR, "piece %u went wrong", s->piece);
  side_of(s)->pieces++;
  return rail_setup_piece_done(s, PIECES);
}

static rail_result_t send_ready(struct rail_setup *s) {
  return rail_handshake_send(&s->handshake, MESSAGE_READY, NULL, 0);
}

static rail_result_t recv_ready(struct rail_setup *s) {
  struct rail_message message;
  if (forgives) s->handshake.waited.ns = 0;
  return rail_setup_recv(s, MESSAGE_READY, &message);
}

enum connector_row { C_WORK, C_DIAL, C_SEND_OFFER, C_ANSWER, C_SEND_READY, C_SENT };
static const struct rail_setup_row connector_rows[] = {
  [C_WORK] = {"work", step_work, NULL, false},
  [C_DIAL] = {"dial", rail_setup_dial, "a TCP connection", false},
  [C_SEND_OFFER] = {"send offer", send_offer, NULL, false},
  [C_ANSWER] = {"recv answer", rail_setup_answer, "the answer", true},
  [C_SEND_READY] = {"send ready", send_ready, NULL, false},
  [C_SENT] = {"all sent", rail_setup_flushed, NULL, false},
};

enum acceptor_row { A_OFFER, A_WORK, A_WELCOME, A_READY, A_SENT };
static const struct rail_setup_row acceptor_rows[] = {
  [A_OFFER] = {"recv offer", recv_offer, "the peer's offer", false},
  [A_WORK] = {"work", step_work, NULL, false},
  [A_WELCOME] = {"welcome", rail_setup_welcome, NULL, false},
  [A_READY] = {"recv ready", recv_ready, NULL, false},
  [A_SENT] = {"all sent", rail_setup_flushed, NULL, false},
};

/* A refusal of the plugin's own has a word in its payload; one without is invalid. */
static rail_result_t on_refused(struct rail_setup *s, const struct rail_message *answer, char *text, size_t size) {
  refusals++;
  if (answer->reason != OWN_REASON) return RAIL_OK;
  CHECK_INT(answer->size, 8);
  const char *word = answer->body;
  if (!word[0]) return rail_setup_fail(s, RAIL_REASON_MESSAGE, RAIL_REMOTE_ERROR, "it sent a refusal without a word");
  snprintf(text, size, "refused, and said %.8s", word);
  return RAIL_OK;
}

static struct rail_key key = {.plugin = "RailTest", .param = "NO_KEY"};
static const struct rail_protocol protocol = {.plugin = "RailTest", .tag = "RTT", .version = 7, .key = &key,
                                              .answer_payload = 8, .max_body = 64};
static const struct rail_setup_ops connector_ops = {.protocol = &protocol, .rows = connector_rows,
                                                    .nrows = RAIL_COUNT_OF(connector_rows), .refused = on_refused};
static const struct rail_setup_ops acceptor_ops = {.protocol = &protocol, .rows = acceptor_rows,
                                                   .nrows = RAIL_COUNT_OF(acceptor_rows)};

static struct side *side_new(const struct rail_setup_ops *ops, const union rail_addr *peer) {
  struct side *s = calloc(1, sizeof *s);
  CHECK(s);
  rail_setup_init(&s->base, ops, "dev0", ops == &connector_ops, peer, &limits);
  return s;
}

static int freed;

static void side_free(struct rail_setup *base) {
  freed++;
  rail_setup_close(base);
  free(side_of(base));
}

/* ---- listen, accept, connect ------------------------------------------------------ */

struct rig {
  struct rail_listener listener;
  struct rail_half_open half_open;
};

static struct rail_setup *begin(void *owner, const union rail_addr *peer) {
  (void)owner;
  return &side_new(&acceptor_ops, peer)->base;
}

static unsigned int on_hello(void *owner, const struct rail_pending *conn, const struct rail_hello *hello) {
  struct rig *r = owner;
  return rail_half_open_hello(&r->half_open, conn, hello);
}

static const struct rail_listener_ops listener_ops = {.protocol = &protocol, .on_hello = on_hello};
static struct rail_ports ports = {.plugin = "RailTest", .range_param = "PORTS", .bind_param = "BIND"};

static void rig_open(struct rig *r) {
  union rail_addr addr = {.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
  CHECK_OK(rail_listener_init(&r->listener, &listener_ops, r, "dev0", TIMEOUT_MS));
  CHECK_OK(rail_listener_add(&r->listener, &ports, "lo", &addr));
  rail_half_open_init(&r->half_open, &r->listener, MOST, begin, side_free);
  rail_log_set_sink(log_capture);
  log_forget();
  fail_with = RAIL_REASON_NONE;
  forgives = false;
  freed = refusals = 0;
}

static void rig_close(struct rig *r) {
  rail_half_open_close(&r->half_open);
  CHECK_INT(r->half_open.count, 0);
  rail_listener_close(&r->listener);
  rail_log_set_sink(NULL);
}

/* One call of accept. */
static rail_result_t rig_accept(struct rig *r, struct rail_setup **ready) {
  CHECK_OK(rail_listener_poll(&r->listener));
  return rail_half_open_next(&r->half_open, UINT64_MAX, ready);
}

static void accept_nobody(struct rig *r) {
  struct rail_setup *ready;
  CHECK_OK(rig_accept(r, &ready));
  CHECK(!ready);
}

/* What a loop ends with that waits for something: for (uint64_t d = 0; !there; again(&d)) ... */
static void again(uint64_t *deadline) {
  if (!*deadline) *deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  CHECK_MSG(!rail_deadline_passed(*deadline), "what is waited for does not come: %s", log_lines);
  sched_yield();
}

static struct rail_setup *accept_one(struct rig *r) {
  struct rail_setup *ready = NULL;
  for (uint64_t d = 0; !ready; again(&d)) CHECK_OK(rig_accept(r, &ready));
  return ready;
}

static unsigned int at_row(const struct rig *r, enum acceptor_row row) {
  const struct rail_setup *s;
  unsigned int n = 0;
  TAILQ_FOREACH(s, &r->half_open.list, link) n += s->state == row;
  return n;
}

/* Until so many are at this row. */
static void accept_until(struct rig *r, unsigned int count, enum acceptor_row row) {
  for (uint64_t d = 0; at_row(r, row) != count; again(&d)) accept_nobody(r);
}

static struct side *connect_begin(const struct rail_handle *listener) {
  struct side *s = side_new(&connector_ops, &listener->addrs[0]);
  union rail_addr from;
  CHECK_OK(rail_addr_parse("127.0.0.1:0", &from));
  CHECK_OK(rail_setup_begin_dial(&s->base, listener, "lo", &from));
  return s;
}

static rail_result_t connect_once(struct side *s) { return rail_setup_run(&s->base, UINT64_MAX); }

static void connect_until(struct side *s, enum connector_row row) {
  for (uint64_t d = 0; s->base.state != row; again(&d)) CHECK_INT(connect_once(s), RAIL_IN_PROGRESS);
}

static rail_result_t connect_result(struct side *s) {
  rail_result_t result = RAIL_IN_PROGRESS;
  for (uint64_t d = 0; result == RAIL_IN_PROGRESS; again(&d)) result = connect_once(s);
  return result;
}

/* The peer has taken too long. */
static void be_late(struct rail_setup *s) { s->handshake.waited.ns += LIMIT_MS * 1000000ull; }

/* ---- peers made of bare sockets ----------------------------------------------------- */

/* Dials and says HELLO; accept runs in the caller. */
static void raw_begin_with(struct rail_handshake *raw, const struct rig *r, struct rail_hello hello) {
  uint8_t bytes[RAIL_HELLO_MAX];
  size_t done = 0;
  int fd;
  CHECK_OK(rail_random_bytes(hello.comm_id, sizeof hello.comm_id));
  CHECK_OK(rail_hello_encode(&protocol, &r->listener.handle, &hello, bytes));
  CHECK_OK(rail_sock_connect_all(&r->listener.handle.addrs[0], NULL, rail_deadline_in_ms(TIMEOUT_MS), NULL, &fd));
  CHECK_OK(rail_sock_send_some(fd, bytes, rail_hello_size(&protocol), &done));
  rail_handshake_init(raw);
  rail_handshake_begin(raw, &protocol, fd, true, &hello);
}

static void raw_begin(struct rail_handshake *raw, const struct rig *r) {
  raw_begin_with(raw, r, (struct rail_hello){.streams = 1});
}

static void raw_send(struct rail_handshake *raw, unsigned int type, const char *text) {
  CHECK_OK(rail_handshake_send(raw, type, text, strlen(text)));
  CHECK_OK(rail_handshake_flush(raw));
}

/* What it is refused with, while accept runs; RAIL_REASON_NONE: the connection is closed without an answer. */
static unsigned int raw_verdict(struct rail_handshake *raw, struct rig *r) {
  struct rail_message message = {.type = 0};
  for (uint64_t d = 0;; again(&d)) {
    enum rail_reason reason;
    const char *why;
    rail_result_t result = rail_handshake_recv(raw, &message, &reason, &why);
    if (result == RAIL_OK && message.type == RAIL_MESSAGE_ANSWER && message.reason) return message.reason;
    if (result != RAIL_OK && result != RAIL_IN_PROGRESS) return RAIL_REASON_NONE;
    accept_nobody(r);
  }
}

static void comes_through(struct rig *r) {
  struct rail_handshake raw;
  raw_begin(&raw, r);
  raw_send(&raw, MESSAGE_OFFER, "offer");
  raw_send(&raw, MESSAGE_READY, "");
  side_free(accept_one(r));
  rail_handshake_close(&raw);
}

/* ---- a listener made of a bare socket -------------------------------------------------- */

static void listen_raw(struct rail_handle *handle, int *fd) {
  *handle = (struct rail_handle){.secret = "fifteen letters", .naddrs = 1};
  CHECK_OK(rail_addr_parse("127.0.0.1:0", &handle->addrs[0]));
  CHECK_OK(rail_sock_listen(&handle->addrs[0], 16, fd));
}

static int accept_raw(int listener) {
  union rail_addr peer;
  int fd;
  CHECK_OK(rail_sock_accept_all(listener, rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS)), NULL, &fd, &peer));
  return fd;
}

#endif
