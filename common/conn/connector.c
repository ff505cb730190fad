/* SPDX-License-Identifier: Apache-2.0
 * Dial, HELLO, ANSWER. */
#include "common/conn/connector.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/sockopt.h"

bool rail_connector_agree_auth(const struct rail_protocol *protocol, const struct rail_handle *listener,
                               const char *device) {
  char peer[RAIL_ADDR_TEXT];
  if (listener->auth == rail_key_on(protocol->key)) return true;
  RAIL_WARN("%s: connect to %s over %s: %s is set %s; set it on both sides, to the same key, or on neither",
            protocol->plugin, rail_addr_text(&listener->addrs[0], peer), device, protocol->key->param,
            listener->auth ? "there and not here" : "here and not there");
  return false;
}

__attribute__((format(printf, 3, 4)))
static rail_result_t fail(struct rail_connector *c, rail_result_t result, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(c->why, sizeof c->why, fmt, ap);
  va_end(ap);
  return result;
}

/* A listener may have received an earlier HELLO: each has its own id. */
static rail_result_t make_hello(struct rail_connector *c) {
  RAIL_TRY(rail_random_bytes(c->hello.comm_id, sizeof c->hello.comm_id));
  return rail_hello_encode(c->protocol, &c->listener, &c->hello, c->bytes);
}

rail_result_t rail_connector_init(struct rail_connector *c, const struct rail_protocol *protocol,
                                  const struct rail_handle *listener, const struct rail_dial_args *args,
                                  const void *payload, const struct rail_connector_limits *limits, const char *device,
                                  struct rail_handshake *handshake) {
  *c = (struct rail_connector){.protocol = protocol, .limits = limits, .device = device, .handshake = handshake,
                               .listener = *listener, .hello = {.streams = 1}};
  if (payload) memcpy(c->hello.payload, payload, protocol->hello_payload);
  rail_dial_init(&c->dial, args, &listener->addrs[0]);
  rail_result_t result = make_hello(c);
  return result == RAIL_OK ? RAIL_OK : fail(c, result, "no random bytes or no HMAC: %s", strerror(errno));
}

void rail_connector_close(struct rail_connector *c) { rail_dial_close(&c->dial); }

rail_result_t rail_connector_dial(struct rail_connector *c) {
  if (c->handshake->fd >= 0) return RAIL_OK;
  rail_result_t result = rail_dial_step(&c->dial, c->bytes, rail_hello_size(c->protocol));
  int err = c->dial.last_errno;
  if (result == RAIL_OK) {
    rail_sockopt_host_deadline(c->dial.fd, c->limits->deadline_ms, 0);
    rail_handshake_begin(c->handshake, c->protocol, c->dial.fd, true, &c->hello);
    c->dial.fd = -1;
    c->handshake->waited.ns = 0;
    return RAIL_OK;
  }
  if (result == RAIL_IN_PROGRESS && c->drops && err == ECONNREFUSED)
    return fail(c, RAIL_REMOTE_ERROR, "it dropped the connection, and the listener is gone; did the peer's process "
                "end? Its log says more");
  if (result != RAIL_IN_PROGRESS)
    return fail(c, result, "%s%s", strerror(err),
                err == EMFILE || err == ENFILE ? "; raise the limit of open files (ulimit -n)" : "");
  if (!rail_handshake_has_waited(c->handshake, c->limits->connect_ms)) return result;
  return fail(c, RAIL_REMOTE_ERROR, "no TCP connection from %s within %lld ms (%s): %s; is the peer alive, is that "
              "address reachable, does a firewall block the port?", c->dial.args.interface,
              (long long)c->limits->connect_ms, c->limits->connect_param, err ? strerror(err) : "no answer");
}

/* A listener drops a connection that it has not answered when others leave it no room. Another try may succeed. */
static rail_result_t dial_again(struct rail_connector *c, const char *why) {
  uint64_t now = rail_now_ns(), limit = (uint64_t)c->limits->connect_ms * 1000000;
  char peer[RAIL_ADDR_TEXT];
  if (!c->drops || (limit && now - c->last_drop > limit)) { /* a connection that lasted ends the row */
    c->drops = 0;
    c->first_drop = now;
  }
  c->drops++;
  c->last_drop = now;
  if (limit && now - c->first_drop >= limit)
    return fail(c, RAIL_REMOTE_ERROR, "it dropped %u connections in a row, within %lld ms (%s), before it "
                "answered; is its port flooded, is it another program's now? The peer's log says more", c->drops,
                (long long)c->limits->connect_ms, c->limits->connect_param);
  RAIL_INFO(RAIL_SUB_NET, "%s: connect to %s over %s: the peer dropped the connection before it answered (%s); "
            "trying again", c->protocol->plugin, rail_addr_text(&c->dial.peer, peer), c->device, why);
  rail_handshake_close(c->handshake);
  if (make_hello(c) != RAIL_OK)
    return fail(c, RAIL_SYSTEM_ERROR, "no random bytes or no HMAC: %s", strerror(errno));
  rail_dial_again(&c->dial, ECONNRESET);
  c->handshake->waited.ns = 0;
  return RAIL_IN_PROGRESS;
}

/* One line for all connections of this process that wait. */
static void report_no_accept(struct rail_connector *c) {
  static _Atomic uint64_t next_line;
  uint64_t now = rail_now_ns(), next = atomic_load(&next_line), every = (uint64_t)c->limits->warn_ms * 1000000;
  char peer[RAIL_ADDR_TEXT];
  if (c->reported || !every || c->handshake->waited.ns < every) return;
  c->reported = true;
  if (now < next || !atomic_compare_exchange_strong(&next_line, &next, now + every)) return;
  RAIL_WARN("%s: connect to %s over %s: not accepted for %.1f s, though the peer's host answers; still waiting; check: "
            "does the peer's process run, and does it call accept?", c->protocol->plugin,
            rail_addr_text(&c->dial.peer, peer), c->device, (double)c->handshake->waited.ns / 1e9);
}

rail_result_t rail_connector_answer(struct rail_connector *c, struct rail_message *message, enum rail_reason *reason) {
  struct rail_handshake *h = c->handshake;
  const char *why = "";
  *reason = RAIL_REASON_NONE;
  errno = 0;
  rail_result_t result = rail_handshake_recv(h, message, reason, &why);
  int err = errno;
  if (result == RAIL_IN_PROGRESS) {
    report_no_accept(c);
    return result;
  }
  if (result != RAIL_OK && err == ETIMEDOUT)
    return fail(c, result, "the peer's host has not answered for %lld ms (%s); is it up, is the network between cut?",
                (long long)c->limits->deadline_ms, c->limits->deadline_param);
  if (result != RAIL_OK && *reason == RAIL_REASON_NONE && !h->have && (!err || err == ECONNRESET || err == EPIPE))
    return dial_again(c, err ? strerror(err) : "end of the stream");
  if (result != RAIL_OK) return fail(c, RAIL_REMOTE_ERROR, "%s", why);
  if (message->type == RAIL_MESSAGE_ANSWER && message->reason == RAIL_REASON_BUSY)
    return dial_again(c, rail_reason_text(c->protocol, RAIL_REASON_BUSY));
  h->waited.ns = 0;
  return RAIL_OK;
}
