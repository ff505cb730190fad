/* SPDX-License-Identifier: Apache-2.0
 * Messages of the handshake, in and out of a TCP socket. */
#include "plugin/ib/ib_oob.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#include "common/base/log.h"
#include "plugin/ib/ib_keepalive.h"

void ib_oob_init(struct ib_oob *oob, int fd, bool connector, bool authenticated, const struct ib_hello_wire *hello) {
  memset(oob, 0, sizeof *oob);
  oob->fd = fd;
  oob->connector = connector;
  oob->authenticated = authenticated;
  memcpy(oob->session.hello_mac, hello->mac, sizeof oob->session.hello_mac);
  ib_keepalive_enable(fd, 0); /* the peer's process may take any time, its host may not */
}

void ib_oob_close(struct ib_oob *oob) { rail_sock_close(&oob->fd); }

/* Refusals carry no mac: a peer with another key must understand them. */
static bool has_mac(const struct ib_oob *oob, unsigned int type, const struct ib_answer *answer) {
  return oob->authenticated && (type != IB_MESSAGE_ANSWER || answer->reason == IB_REASON_NONE);
}

static void note_nonce(struct ib_oob *oob, unsigned int type, const struct ib_answer *answer) {
  if (type == IB_MESSAGE_ANSWER) memcpy(oob->session.nonce, answer->nonce, sizeof oob->session.nonce);
}

/* ---- out ----------------------------------------------------------------- */

rail_result_t ib_oob_send(struct ib_oob *oob, enum ib_message_type type, const void *body, size_t size) {
  struct ib_answer answer = {0};
  struct ib_head_wire head;
  uint8_t *at = oob->out + oob->out_size;
  if (size > IB_BODY_MAX || sizeof head + size + RAIL_MAC_SIZE > sizeof oob->out - oob->out_size) {
    RAIL_WARN("RailIB: handshake: no room for another message");
    return RAIL_INTERNAL_ERROR;
  }
  if (type == IB_MESSAGE_ANSWER) (void)ib_answer_decode(body, size, &answer);
  ib_head_encode(type, size, &head);
  memcpy(at, &head, sizeof head);
  if (size) memcpy(at + sizeof head, body, size);
  memset(at + sizeof head + size, 0, RAIL_MAC_SIZE);
  if (has_mac(oob, type, &answer))
    RAIL_TRY(ib_auth_mac(&oob->session, oob->connector, oob->sent++, at, sizeof head + size,
                         at + sizeof head + size));
  note_nonce(oob, type, &answer);
  oob->out_size += sizeof head + size + RAIL_MAC_SIZE;
  return RAIL_OK;
}

rail_result_t ib_oob_flush(struct ib_oob *oob) {
  if (oob->out_done == oob->out_size) return RAIL_OK;
  rail_result_t result = rail_sock_send_some(oob->fd, oob->out, oob->out_size, &oob->out_done);
  if (result == RAIL_OK) oob->out_done = oob->out_size = 0;
  return result;
}

/* ---- in ------------------------------------------------------------------ */

static rail_result_t broken(enum ib_reason reason, const char *what, enum ib_reason *to, const char **why) {
  *to = reason;
  *why = what;
  return RAIL_REMOTE_ERROR;
}

static rail_result_t read_to(struct ib_oob *oob, size_t size, enum ib_reason *reason, const char **why) {
  rail_result_t result = rail_sock_recv_some(oob->fd, oob->in, size, &oob->have);
  if (result == RAIL_OK || result == RAIL_IN_PROGRESS) return result;
  const char *what = errno ? strerror(errno) : "it closed the connection in the middle of the handshake";
  return broken(IB_REASON_NONE, what, reason, why);
}

/* Only refusals may be of another version. */
static bool is_ours(const struct ib_oob *oob) {
  struct ib_head_wire wire;
  memcpy(&wire, oob->in, sizeof wire);
  return le16toh(wire.version) == IB_WIRE_VERSION;
}

/* A whole message is here. Is its version right, and does its mac fit this handshake? */
static rail_result_t check(struct ib_oob *oob, enum ib_reason *reason, const char **why) {
  const size_t signed_size = sizeof(struct ib_head_wire) + oob->body;
  const uint8_t *body = oob->in + sizeof(struct ib_head_wire);
  struct ib_answer answer = {0};
  uint8_t mac[RAIL_MAC_SIZE];
  if (oob->type == IB_MESSAGE_ANSWER) {
    const char *wrong = ib_answer_decode(body, oob->body, &answer);
    if (wrong) return broken(IB_REASON_MESSAGE, wrong, reason, why);
    if (answer.reason == IB_REASON_NONE && !is_ours(oob))
      return broken(IB_REASON_VERSION, ib_reason_text(IB_REASON_VERSION), reason, why);
  }
  if (has_mac(oob, oob->type, &answer)) {
    if (ib_auth_mac(&oob->session, !oob->connector, oob->received++, oob->in, signed_size, mac) != RAIL_OK)
      return broken(IB_REASON_FAILED, "no HMAC", reason, why);
    if (!rail_same_bytes(mac, oob->in + signed_size, sizeof mac))
      return broken(IB_REASON_MAC, ib_reason_text(IB_REASON_MAC), reason, why);
  }
  note_nonce(oob, oob->type, &answer);
  return RAIL_OK;
}

rail_result_t ib_oob_recv(struct ib_oob *oob, struct ib_message *message, enum ib_reason *reason,
                           const char **why) {
  const size_t head = sizeof(struct ib_head_wire);
  if (oob->have < head) {
    struct ib_head_wire wire;
    RAIL_TRY(read_to(oob, head, reason, why));
    memcpy(&wire, oob->in, sizeof wire);
    const char *wrong = ib_head_decode(&wire, &oob->type, &oob->body);
    if (wrong) return broken(IB_REASON_MESSAGE, wrong, reason, why);
  }
  RAIL_TRY(read_to(oob, head + oob->body + RAIL_MAC_SIZE, reason, why));
  RAIL_TRY(check(oob, reason, why));
  *message = (struct ib_message){(enum ib_message_type)oob->type, oob->in + head, oob->body};
  oob->have = 0;
  return RAIL_OK;
}

rail_result_t ib_oob_peek(const struct ib_oob *oob) {
  uint32_t magic = 0;
  ssize_t n;
  if (oob->have) return RAIL_OK;
  do n = recv(oob->fd, &magic, sizeof magic, MSG_PEEK | MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? RAIL_IN_PROGRESS : RAIL_REMOTE_ERROR;
  if (n == 0) errno = 0;
  if (n == 0) return RAIL_REMOTE_ERROR;
  return n == sizeof magic && le32toh(magic) == IB_MESSAGE_MAGIC ? RAIL_OK : RAIL_IN_PROGRESS;
}
