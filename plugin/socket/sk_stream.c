/* SPDX-License-Identifier: Apache-2.0
 * One system call out, one system call in. */
#include "plugin/socket/sk_stream.h"

#include <errno.h>
#include <stdlib.h>

#include "common/compiler.h"

#define HEAD sizeof(struct sk_frame_wire)

rail_result_t sk_stream_init(struct sk_stream *s, int fd, unsigned int index, int dev, uint32_t buffer) {
  *s = (struct sk_stream){.fd = fd, .index = (uint16_t)index, .dev = dev, .cap = buffer, .ahead = buffer};
  s->buf = malloc(buffer);
  return s->buf ? RAIL_OK : RAIL_SYSTEM_ERROR;
}

void sk_stream_destroy(struct sk_stream *s) {
  rail_sock_close(&s->fd);
  free(s->buf);
  s->buf = NULL;
  s->out_count = 0;
}

/* ---- out -------------------------------------------------------------- */

static int build_iov(struct sk_stream *s, struct iovec *iov, size_t *asked) {
  size_t room = SK_IO_BYTES, skip = s->out_done;
  int n = 0;
  *asked = 0;
  for (uint32_t i = 0; i < s->out_count && room; i++) {
    struct sk_out *out = &s->out[(s->out_first + i) % SK_OUT_FRAMES];
    if (skip < HEAD) {
      iov[n++] = (struct iovec){.iov_base = out->head + skip, .iov_len = HEAD - skip};
      *asked += HEAD - skip;
      skip = 0;
    } else {
      skip -= HEAD;
    }
    size_t len = RAIL_MIN(out->len - skip, room);
    if (len) iov[n++] = (struct iovec){.iov_base = (void *)(uintptr_t)(out->data + skip), .iov_len = len};
    *asked += len;
    room -= len;
    skip = 0;
  }
  return n;
}

static void advance(struct sk_stream *s, size_t moved) {
  s->out_done += moved;
  while (s->out_count) {
    struct sk_out *out = &s->out[s->out_first];
    if (s->out_done < HEAD + out->len) break;
    s->out_done -= HEAD + out->len;
    if (out->unwritten) --*out->unwritten;
    s->out_first = (s->out_first + 1) % SK_OUT_FRAMES;
    s->out_count--;
  }
}

rail_result_t sk_stream_flush(struct sk_stream *s, uint64_t *bytes) {
  struct iovec iov[2 * SK_OUT_FRAMES];
  size_t moved, asked;
  if (!s->out_count) return RAIL_OK;
  if (s->out_errno) return RAIL_REMOTE_ERROR;
  int niov = build_iov(s, iov, &asked);
  rail_result_t result = rail_sock_sendv(s->fd, iov, niov, &moved);
  if (rail_likely(result == RAIL_OK)) {
    advance(s, moved);
    *bytes += moved;
    return moved == asked ? RAIL_OK : RAIL_IN_PROGRESS;
  }
  if (result == RAIL_IN_PROGRESS) return result;
  s->out_errno = errno ? errno : EPIPE;
  shutdown(s->fd, SHUT_WR); /* the peer shall know, and close, whether or not the connection itself is well */
  return RAIL_REMOTE_ERROR;
}

/* ---- in --------------------------------------------------------------- */

rail_result_t sk_stream_fill(struct sk_stream *s, uint64_t *bytes, bool *more) {
  struct iovec iov[2];
  int n = 0;
  size_t moved, want, direct = s->left;
  *more = false;
  if (s->head == s->tail) {
    s->head = s->tail = 0;
  } else if (s->head && s->cap - s->tail < s->cap / 2) {
    memmove(s->buf, s->buf + s->head, s->tail - s->head);
    s->tail -= s->head;
    s->head = 0;
  }
  if (direct) iov[n++] = (struct iovec){.iov_base = s->to, .iov_len = RAIL_MIN(direct, SK_IO_BYTES)};
  want = direct > SK_IO_BYTES ? 0 : RAIL_MIN(s->ahead, s->cap - s->tail);
  if (want) iov[n++] = (struct iovec){.iov_base = s->buf + s->tail, .iov_len = want};
  if (direct) want += iov[0].iov_len;
  if (!want) return RAIL_IN_PROGRESS; /* full of what cannot be used yet */
  rail_result_t result = rail_sock_recvv(s->fd, iov, n, &moved);
  if (result != RAIL_OK) {
    if (result == RAIL_IN_PROGRESS) return result;
    s->eof = true;
    s->in_errno = errno;
    return RAIL_REMOTE_ERROR;
  }
  *bytes += moved;
  *more = moved == want;
  if (direct) {
    size_t placed = RAIL_MIN(moved, iov[0].iov_len);
    s->to += placed;
    s->left -= (uint32_t)placed;
    moved -= placed;
  }
  s->tail += (uint32_t)moved;
  return RAIL_OK;
}

bool sk_stream_take_payload(struct sk_stream *s) {
  uint32_t n = RAIL_MIN(s->left, s->tail - s->head);
  if (n) {
    memcpy(s->to, s->buf + s->head, n);
    s->to += n;
    s->left -= n;
    s->head += n;
  }
  return s->left == 0;
}
