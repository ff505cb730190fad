/* SPDX-License-Identifier: Apache-2.0
 * Bytes out, bytes in. */
#include "plugin/socket/sk_stream.h"

#include <errno.h>
#include <stdlib.h>

#include "plugin/socket/upward.h"
#include "plugin/socket/sk_zerocopy.h"

rail_result_t sk_stream_init(struct sk_stream *s, int fd, unsigned int index, uint32_t buffer, struct sk_moved *moved) {
  *s = (struct sk_stream){.fd = fd, .index = (uint16_t)index, .cap = buffer, .ahead = buffer, .moved = moved};
  s->buf = malloc(buffer);
  s->stage = malloc(SK_STAGE);
  return s->buf && s->stage ? RAIL_OK : RAIL_SYSTEM_ERROR;
}

void sk_stream_destroy(struct sk_stream *s) {
  rail_sock_close(&s->fd);
  free(s->buf);
  free(s->stage);
  free(s->zerocopy);
  s->buf = s->stage = NULL;
  s->zerocopy = NULL;
  s->out_count = 0;
}

/* ---- out -------------------------------------------------------------- */

static inline int gather(const struct sk_stream *s, struct iovec *iov, int max, size_t *asked, uint32_t below) {
  size_t room = SK_IO_BYTES;
  uint32_t skip = s->out_done, at = s->stage_head;
  int n = 0;
  *asked = 0;
  for (uint32_t i = 0; i < s->out_count && room && n < max - 1; i++) {
    const struct sk_out *out = &s->out[(s->out_first + i) % SK_OUT_FRAMES];
    if (skip < out->staged) {
      uint8_t *from = s->stage + at + skip;
      size_t len = out->staged - skip;
      /* Frames without payload of their own stand side by side. */
      if (n && (uint8_t *)iov[n - 1].iov_base + iov[n - 1].iov_len == from) iov[n - 1].iov_len += len;
      else iov[n++] = (struct iovec){.iov_base = from, .iov_len = len};
      *asked += len;
      skip = 0;
    } else {
      skip -= out->staged;
    }
    at += out->staged;
    if (out->len >= below) break;
    size_t len = RAIL_MIN(out->len - skip, room);
    if (len) iov[n++] = (struct iovec){.iov_base = (void *)(uintptr_t)(out->data + skip), .iov_len = len};
    *asked += len;
    room -= len;
    skip = 0;
  }
  return n;
}

int sk_stream_out_iov(const struct sk_stream *s, struct iovec *iov, int max, size_t *asked) {
  return gather(s, iov, max, asked, UINT32_MAX);
}

int sk_stream_out_iov_below(const struct sk_stream *s, struct iovec *iov, int max, size_t *asked, uint32_t below) {
  return gather(s, iov, max, asked, below);
}

void sk_stream_wrote(struct sk_stream *s, size_t moved) {
  rail_stats_add(&s->moved->out, moved);
  s->out_bytes -= moved;
  moved += s->out_done;
  while (s->out_count) {
    const struct sk_out *out = &s->out[s->out_first];
    size_t all = (size_t)out->staged + out->len;
    if (moved < all) break;
    moved -= all;
    s->stage_head += out->staged;
    s->out_first = (s->out_first + 1) % SK_OUT_FRAMES;
    s->out_count--;
    if (out->pending) sk_pending_drop(out->pending);
  }
  s->out_done = (uint32_t)moved;
  if (!s->out_count) s->stage_head = s->stage_tail = 0;
}

void sk_stream_out_failed(struct sk_stream *s, int err) {
  s->out_errno = err ? err : EPIPE;
  shutdown(s->fd, SHUT_WR); /* the peer shall know, and close, whether or not the connection itself is well */
}

rail_result_t sk_stream_flush(struct sk_stream *s, uint64_t *bytes) {
  struct iovec iov[SK_OUT_IOV];
  size_t moved, asked;
  if (!s->out_count) return RAIL_OK;
  if (s->out_errno) return RAIL_REMOTE_ERROR;
  if (rail_unlikely(s->zerocopy != NULL) && sk_zerocopy_is_on(s)) return sk_zerocopy_flush(s, bytes);
  int niov = sk_stream_out_iov(s, iov, SK_OUT_IOV, &asked);
  rail_result_t result = rail_sock_sendv(s->fd, iov, niov, &moved);
  rail_stats_add(&s->moved->calls, 1);
  if (rail_likely(result == RAIL_OK)) {
    sk_stream_wrote(s, moved);
    *bytes += moved;
    return moved == asked ? RAIL_OK : RAIL_IN_PROGRESS;
  }
  if (result == RAIL_IN_PROGRESS) return result;
  sk_stream_out_failed(s, errno);
  return RAIL_REMOTE_ERROR;
}

/* ---- in --------------------------------------------------------------- */

int sk_stream_in_iov(struct sk_stream *s, struct iovec iov[2], size_t *want) {
  size_t direct = s->left, ahead;
  int n = 0;
  if (s->head == s->tail) {
    s->head = s->tail = 0;
  } else if (s->head && s->cap - s->tail < s->cap / 2) {
    memmove(s->buf, s->buf + s->head, s->tail - s->head);
    s->tail -= s->head;
    s->head = 0;
  }
  *want = 0;
  if (direct) {
    *want = RAIL_MIN(direct, SK_IO_BYTES);
    iov[n++] = (struct iovec){.iov_base = s->to, .iov_len = *want};
  }
  ahead = direct > SK_IO_BYTES ? 0 : RAIL_MIN(s->ahead, s->cap - s->tail);
  if (ahead) iov[n++] = (struct iovec){.iov_base = s->buf + s->tail, .iov_len = ahead};
  *want += ahead;
  return n;
}

void sk_stream_got(struct sk_stream *s, size_t moved, size_t direct) {
  rail_stats_add(&s->moved->in, moved);
  uint32_t placed = (uint32_t)RAIL_MIN(moved, direct);
  if (placed) s->to += placed; /* else it may be NULL */
  s->left -= placed;
  s->tail += (uint32_t)(moved - placed);
}

rail_result_t sk_stream_fill(struct sk_stream *s, uint64_t *bytes, bool *more) {
  struct iovec iov[2];
  size_t moved, want, direct = RAIL_MIN(s->left, SK_IO_BYTES);
  *more = false;
  int n = sk_stream_in_iov(s, iov, &want);
  if (!n) return RAIL_IN_PROGRESS;
  rail_result_t result = rail_sock_recvv(s->fd, iov, n, &moved);
  rail_stats_add(&s->moved->calls, 1);
  if (result != RAIL_OK) {
    if (result == RAIL_IN_PROGRESS) return result;
    s->eof = true;
    s->in_errno = errno;
    return RAIL_REMOTE_ERROR;
  }
  *bytes += moved;
  *more = moved == want;
  sk_stream_got(s, moved, direct);
  return RAIL_OK;
}

bool sk_stream_take_payload(struct sk_stream *s) {
  uint32_t n = RAIL_MIN(s->left, s->tail - s->head);
  if (n) {
    rail_copy_upward(s->to, s->buf + s->head, n);
    s->to += n;
    s->left -= n;
    s->head += n;
  }
  return s->left == 0;
}
