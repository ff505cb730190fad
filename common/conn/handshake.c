/* SPDX-License-Identifier: Apache-2.0
 * Messages through a socket, as far as it goes. */
#include "common/conn/handshake.h"

#include <errno.h>
#include <string.h>

#include "common/base/clock.h"

void rail_handshake_init(struct rail_handshake *h) {
  memset(h, 0, sizeof *h);
  h->fd = -1;
  rail_waited_begin(&h->waited);
  h->begun = h->waited.noted;
}

void rail_handshake_begin(struct rail_handshake *h, const struct rail_protocol *protocol, int fd, bool connector,
                          const struct rail_hello *hello) {
  h->fd = fd;
  h->out_size = h->out_done = h->have = 0;
  rail_session_init(&h->session, protocol, connector, hello);
}

void rail_handshake_close(struct rail_handshake *h) { rail_sock_close(&h->fd); }

/* ---- time ----------------------------------------------------------------- */

void rail_handshake_note_time(struct rail_handshake *h) { rail_waited_note(&h->waited); }

bool rail_handshake_has_waited(const struct rail_handshake *h, int64_t limit_ms) {
  return rail_waited_is_late(&h->waited, limit_ms);
}

/* ---- out ------------------------------------------------------------------ */

static bool has_room(const struct rail_handshake *h, size_t size) { return size <= sizeof h->out - h->out_size; }

rail_result_t rail_handshake_send(struct rail_handshake *h, unsigned int type, const void *body, size_t size) {
  if (size > h->session.protocol->max_body || !has_room(h, rail_message_size(size))) return RAIL_INTERNAL_ERROR;
  RAIL_TRY(rail_message_encode(&h->session, type, body, size, h->out + h->out_size));
  h->out_size += rail_message_size(size);
  return RAIL_OK;
}

rail_result_t rail_handshake_welcome(struct rail_handshake *h, const void *payload) {
  size_t size = rail_answer_size(h->session.protocol);
  if (!has_room(h, size)) return RAIL_INTERNAL_ERROR;
  RAIL_TRY(rail_welcome_encode(&h->session, payload, h->out + h->out_size));
  h->out_size += size;
  return RAIL_OK;
}

rail_result_t rail_handshake_flush(struct rail_handshake *h) {
  if (h->out_done == h->out_size) return RAIL_OK;
  rail_result_t result = rail_sock_send_some(h->fd, h->out, h->out_size, &h->out_done);
  if (result == RAIL_OK) h->out_done = h->out_size = 0;
  return result;
}

/* ---- refusing ------------------------------------------------------------- */

/* A fresh socket takes these bytes. Reading first what came keeps close from resetting the connection before the peer
 * has read them. */
static void refuse(const struct rail_protocol *protocol, int *fd, unsigned int reason, const void *payload) {
  uint8_t refusal[RAIL_ANSWER_MAX], scratch[512];
  size_t done = 0, n;
  rail_refusal_encode(protocol, reason, payload, refusal);
  (void)rail_sock_send_some(*fd, refusal, rail_answer_size(protocol), &done);
  shutdown(*fd, SHUT_WR);
  (void)rail_sock_recvv(*fd, &(struct iovec){.iov_base = scratch, .iov_len = sizeof scratch}, 1, &n);
  rail_sock_close(fd);
}

void rail_refuse(const struct rail_protocol *protocol, int *fd, unsigned int reason) {
  refuse(protocol, fd, reason, NULL);
}

void rail_handshake_refuse(struct rail_handshake *h, unsigned int reason, const void *payload) {
  if (h->fd >= 0 && !h->out_done && reason != RAIL_REASON_NONE) refuse(h->session.protocol, &h->fd, reason, payload);
}

/* ---- in ------------------------------------------------------------------- */

rail_result_t rail_handshake_recv(struct rail_handshake *h, struct rail_message *message, enum rail_reason *reason,
                                  const char **why) {
  size_t need = rail_message_need(h->session.protocol, h->in, h->have);
  do {
    rail_result_t result = rail_sock_recv_some(h->fd, h->in, need, &h->have);
    if (result == RAIL_IN_PROGRESS) return result;
    if (result != RAIL_OK) {
      *reason = RAIL_REASON_NONE;
      *why = errno ? strerror(errno) : "it closed the connection in the middle of the handshake";
      return RAIL_REMOTE_ERROR;
    }
    need = rail_message_need(h->session.protocol, h->in, h->have);
  } while (h->have < need);
  RAIL_TRY(rail_message_decode(&h->session, h->in, message, reason, why));
  h->have = 0;
  return RAIL_OK;
}

rail_result_t rail_handshake_peek(const struct rail_handshake *h) {
  uint8_t magic[4] = {0};
  ssize_t n;
  if (h->have) return RAIL_OK;
  do n = recv(h->fd, magic, sizeof magic, MSG_PEEK | MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? RAIL_IN_PROGRESS : RAIL_REMOTE_ERROR;
  if (n == 0) errno = 0;
  if (n == 0) return RAIL_REMOTE_ERROR;
  return n == sizeof magic && rail_is_message(h->session.protocol, magic) ? RAIL_OK : RAIL_IN_PROGRESS;
}
