/* SPDX-License-Identifier: Apache-2.0
 * The pump. */
#include "plugin/ib/ib_side.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/sockopt.h"
#include "plugin/ib/ib_param.h"

#define KEEPALIVE_MS 10000 /* between two probes, at most */

void ib_side_init(struct ib_side *side, int fd, bool connector, bool keyed, const struct ib_hello_wire *hello) {
  memset(side, 0, sizeof *side);
  side->fd = fd;
  side->connector = connector;
  side->keyed = keyed;
  memcpy(side->session.hello_mac, hello->mac, sizeof side->session.hello_mac);
  ib_side_watch_host(fd, 0); /* while the peer's process may take any time */
}

void ib_side_watch_host(int fd, int64_t grace_ms) {
  int64_t deadline = ib_params.deadline_ms;
  if (!deadline) return;
  rail_sockopt_keepalive(fd, RAIL_MIN(deadline / 3, KEEPALIVE_MS), deadline);
  rail_sockopt_user_timeout(fd, deadline + grace_ms);
}

void ib_side_close(struct ib_side *side) { rail_sock_close(&side->fd); }

/* Refusals are for everybody, also for those whose key is another. */
static bool has_mac(const struct ib_side *side, unsigned int type, const struct ib_answer *answer) {
  return side->keyed && (type != IB_MESSAGE_ANSWER || answer->reason == IB_REASON_NONE);
}

static void note_nonce(struct ib_side *side, unsigned int type, const struct ib_answer *answer) {
  if (type == IB_MESSAGE_ANSWER) memcpy(side->session.nonce, answer->nonce, sizeof side->session.nonce);
}

/* ---- out ----------------------------------------------------------------- */

rail_result_t ib_side_say(struct ib_side *side, enum ib_message_type type, const void *body, size_t size) {
  struct ib_answer answer = {0};
  struct ib_head_wire head;
  uint8_t *at = side->out + side->out_size;
  if (size > IB_BODY_MAX || sizeof head + size + RAIL_MAC_SIZE > sizeof side->out - side->out_size) {
    RAIL_WARN("RailIB: handshake: more is said than there is room for");
    return RAIL_INTERNAL_ERROR;
  }
  if (type == IB_MESSAGE_ANSWER) (void)ib_answer_decode(body, size, &answer);
  ib_head_encode(type, size, &head);
  memcpy(at, &head, sizeof head);
  if (size) memcpy(at + sizeof head, body, size);
  memset(at + sizeof head + size, 0, RAIL_MAC_SIZE);
  if (has_mac(side, type, &answer))
    RAIL_TRY(ib_auth_mac(&side->session, side->connector, side->sent++, at, sizeof head + size,
                         at + sizeof head + size));
  note_nonce(side, type, &answer);
  side->out_size += sizeof head + size + RAIL_MAC_SIZE;
  return RAIL_OK;
}

rail_result_t ib_side_flush(struct ib_side *side) {
  if (side->out_done == side->out_size) return RAIL_OK;
  rail_result_t result = rail_sock_send_some(side->fd, side->out, side->out_size, &side->out_done);
  if (result == RAIL_OK) side->out_done = side->out_size = 0;
  return result;
}

/* ---- in ------------------------------------------------------------------ */

static rail_result_t broken(enum ib_reason reason, const char *what, enum ib_reason *to, const char **why) {
  *to = reason;
  *why = what;
  return RAIL_REMOTE_ERROR;
}

static rail_result_t read_to(struct ib_side *side, size_t size, enum ib_reason *reason, const char **why) {
  rail_result_t result = rail_sock_recv_some(side->fd, side->in, size, &side->have);
  if (result == RAIL_OK || result == RAIL_IN_PROGRESS) return result;
  const char *what = errno ? strerror(errno) : "it closed the connection in the middle of the handshake";
  return broken(IB_REASON_NONE, what, reason, why);
}

/* Of our version; only refusals may be of another. */
static bool is_ours(const struct ib_side *side) {
  struct ib_head_wire wire;
  memcpy(&wire, side->in, sizeof wire);
  return le16toh(wire.version) == IB_WIRE_VERSION;
}

/* A whole message is here: is it the peer's, and of this handshake? */
static rail_result_t check(struct ib_side *side, enum ib_reason *reason, const char **why) {
  const size_t signed_size = sizeof(struct ib_head_wire) + side->body;
  const uint8_t *body = side->in + sizeof(struct ib_head_wire);
  struct ib_answer answer = {0};
  uint8_t mac[RAIL_MAC_SIZE];
  if (side->type == IB_MESSAGE_ANSWER) {
    const char *wrong = ib_answer_decode(body, side->body, &answer);
    if (wrong) return broken(IB_REASON_MESSAGE, wrong, reason, why);
    if (answer.reason == IB_REASON_NONE && !is_ours(side))
      return broken(IB_REASON_VERSION, ib_reason_text(IB_REASON_VERSION), reason, why);
  }
  if (has_mac(side, side->type, &answer)) {
    if (ib_auth_mac(&side->session, !side->connector, side->heard++, side->in, signed_size, mac) != RAIL_OK)
      return broken(IB_REASON_FAILED, "no HMAC", reason, why);
    if (!rail_same_bytes(mac, side->in + signed_size, sizeof mac))
      return broken(IB_REASON_MAC, ib_reason_text(IB_REASON_MAC), reason, why);
  }
  note_nonce(side, side->type, &answer);
  return RAIL_OK;
}

rail_result_t ib_side_hear(struct ib_side *side, struct ib_message *message, enum ib_reason *reason,
                           const char **why) {
  const size_t head = sizeof(struct ib_head_wire);
  if (side->have < head) {
    struct ib_head_wire wire;
    RAIL_TRY(read_to(side, head, reason, why));
    memcpy(&wire, side->in, sizeof wire);
    const char *wrong = ib_head_decode(&wire, &side->type, &side->body);
    if (wrong) return broken(IB_REASON_MESSAGE, wrong, reason, why);
  }
  RAIL_TRY(read_to(side, head + side->body + RAIL_MAC_SIZE, reason, why));
  RAIL_TRY(check(side, reason, why));
  *message = (struct ib_message){(enum ib_message_type)side->type, side->in + head, side->body};
  side->have = 0;
  return RAIL_OK;
}

rail_result_t ib_side_peek(const struct ib_side *side) {
  uint32_t magic = 0;
  ssize_t n;
  if (side->have) return RAIL_OK;
  do n = recv(side->fd, &magic, sizeof magic, MSG_PEEK | MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? RAIL_IN_PROGRESS : RAIL_REMOTE_ERROR;
  if (n == 0) errno = 0;
  if (n == 0) return RAIL_REMOTE_ERROR;
  return n == sizeof magic && le32toh(magic) == IB_MESSAGE_MAGIC ? RAIL_OK : RAIL_IN_PROGRESS;
}
