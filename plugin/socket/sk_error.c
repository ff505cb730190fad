/* SPDX-License-Identifier: Apache-2.0
 * The first error of a comm, with what to look at; the peer's ERROR frame. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "plugin/socket/sk_comm.h"

rail_result_t sk_comm_fail(struct sk_comm *comm, rail_result_t result, const char *fmt, ...) {
  static const char *const side_text[] = {[SK_SENDER] = "sending to", [SK_RECEIVER] = "receiving from"};
  char why[512], peer[RAIL_ADDR_TEXT];
  va_list ap;
  if (sk_comm_error(comm) != RAIL_OK) return sk_comm_error(comm);
  va_start(ap, fmt);
  vsnprintf(why, sizeof why, fmt, ap);
  va_end(ap);
  if (!rail_first_error_set(&comm->error, result)) return sk_comm_error(comm);
  rail_stats_add(&comm->counts.comm[SK_COMM_ERRORS], sk_comm_in_use(comm));
  rail_stats_add_shared(&comm->counts.device[SK_DEVICE_ERRORS], 1);
  RAIL_WARN("RailSocket: %s %s over %s: %s (%llu messages, %llu bytes done)", side_text[comm->side],
            rail_addr_text(&comm->peer, peer), comm->device_name, why,
            (unsigned long long)sk_stats_messages(&comm->counts), (unsigned long long)sk_stats_bytes(&comm->counts));
  return result;
}

rail_result_t sk_comm_fail_lost(struct sk_comm *comm, const struct sk_stream *s) {
  int err = s->out_errno ? s->out_errno : s->in_errno;
  if (err == 0 && !s->welcomed)
    return sk_comm_fail(comm, RAIL_REMOTE_ERROR,
                        "the peer closed stream %u before it answered the handshake; it has ended or given up waiting",
                        s->index);
  if (err == 0)
    return sk_comm_fail(comm, RAIL_REMOTE_ERROR,
                        "the peer closed the connection with requests outstanding; see the first error in its log");
  const char *when = s->welcomed && !s->established ? " in TLS' handshake" : "";
  return sk_comm_fail(comm, rail_result_of_errno(err),
                      "stream %u broke%s: %s; look for the first error in the peer's log", s->index, when,
                      sk_stream_error_text(s, err));
}

rail_result_t sk_comm_fail_size(struct sk_comm *comm, struct sk_stream *s, uint32_t seq, uint32_t tag, uint64_t size,
                                uint64_t capacity) {
  if (sk_comm_error(comm) != RAIL_OK) return sk_comm_error(comm);
  comm->error_payload = (struct sk_error){.message_size = htole64(size), .capacity = htole64(capacity)};
  if (sk_stream_can_queue(s)) {
    uint8_t *head = sk_stream_queue(s, SK_HEAD, &comm->error_payload, sizeof comm->error_payload, NULL);
    sk_frame_encode(head, SK_FRAME_ERROR, 0, seq, RAIL_BAD_USAGE, sizeof comm->error_payload, tag);
  }
  sk_comm_fail(comm, RAIL_BAD_USAGE,
               "a message of %llu bytes with tag %u meets a receive buffer of %llu bytes; "
               "send and receive do not fit together",
               (unsigned long long)size, tag, (unsigned long long)capacity);
  sk_comm_send_error(comm);
  return RAIL_BAD_USAGE;
}

void sk_comm_send_error(struct sk_comm *comm) {
  if (!comm->not_established) sk_streams_flush(comm->streams, comm->nstreams);
}

rail_result_t sk_error_on_frame(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame) {
  struct sk_error body;
  if (sk_stream_have(s) < SK_HEAD + sizeof body) return RAIL_IN_PROGRESS;
  memcpy(&body, s->buf + s->head + SK_HEAD, sizeof body);
  if (frame->code == RAIL_BAD_USAGE)
    return sk_comm_fail(comm, RAIL_BAD_USAGE,
                        "the peer says: a message of %llu bytes with tag %u meets a receive buffer of %llu bytes; "
                        "send and receive do not fit together",
                        (unsigned long long)le64toh(body.message_size), frame->tag,
                        (unsigned long long)le64toh(body.capacity));
  return sk_comm_fail(comm, RAIL_REMOTE_ERROR, "the peer gave up: %s",
                      rail_result_name(frame->code < RAIL_IN_PROGRESS ? (int)frame->code : RAIL_REMOTE_ERROR));
}

rail_result_t sk_refuse_buffer(const char *call, const struct sk_comm *comm, const struct sk_mr *mr,
                               const void *data, size_t size) {
  return rail_net_refuse_buffer("RailSocket", call, mr ? &mr->memory : NULL, comm, data, size);
}
