/* SPDX-License-Identifier: Apache-2.0
 * Bytes out, bytes in, and whether the peer's host answers. */
#include "plugin/socket/sk_stream.h"

#include <assert.h>
#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/ordered_copy.h"
#include "common/base/sockopt.h"
#include "plugin/socket/sk_param.h"

#define MS 1000000ull
#define SAME_ANSWER (100 * MS) /* the kernel's times are of its own clock's ticks */
#define CLOSED_MS (15 * 60 * 1000) /* for what a closed stream still has to deliver: as the kernel does unasked */

rail_result_t sk_stream_init(struct sk_stream *s, int fd, unsigned int index, uint32_t buffer,
                             struct sk_traffic *traffic) {
  *s = (struct sk_stream){.fd = fd, .index = (uint16_t)index, .cap = buffer, .read_past = buffer, .traffic = traffic};
  s->buf = malloc(buffer);
  s->stage = malloc(SK_STAGE);
  return s->buf && s->stage ? RAIL_OK : RAIL_SYSTEM_ERROR;
}

void sk_stream_destroy(struct sk_stream *s) {
  rail_sock_close(&s->fd);
  free(s->buf);
  free(s->stage);
  free(s->zerocopy);
  sk_tls_free(s->tls);
  s->buf = s->stage = NULL;
  s->zerocopy = NULL;
  s->tls = NULL;
  s->out_count = 0;
}

const char *sk_stream_error_text(const struct sk_stream *s, int err) {
  const char *why = s->tls ? sk_tls_error(s->tls) : NULL;
  return why ? why : strerror(err);
}

/* RAIL_SOCKET_USER_TIMEOUT, else `ms`, 0 being none. */
static void set_user_timeout(struct sk_stream *s, int64_t ms) {
  rail_sockopt_user_timeout(s->fd, sk_params.user_timeout_ms ? sk_params.user_timeout_ms : ms);
}

void sk_stream_limit_unsent(const struct sk_stream *s, uint32_t bytes) {
  const int unsent = (int)bytes;
  (void)setsockopt(s->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent); /* works without */
}

/* Without RAIL_SOCKET_DEADLINE the kernel must not give up either, which it does with a quiet stream after two probes
 * that were not answered, unless this option says how long it takes. */
void sk_stream_set_options(struct sk_stream *s, uint32_t nstreams) {
  int64_t deadline = sk_params.deadline_ms;
  set_user_timeout(s, deadline ? 0 : INT32_MAX);
  rail_sockopt_keepalive(s->fd, sk_params.keepalive_ms, deadline);
  if (deadline) rail_sockopt_max_rto(s->fd, deadline / 6);
  if (nstreams > 1) sk_stream_limit_unsent(s, SK_MOST_UNSENT);
  s->host = (struct sk_host){0};
}

void sk_stream_set_closed(struct sk_stream *s) {
  if (s->fd >= 0 && !sk_params.deadline_ms) set_user_timeout(s, CLOSED_MS);
}

uint64_t sk_stream_held(const struct sk_stream *s) {
  int unacked = 0;
  if (s->fd < 0 || ioctl(s->fd, SIOCOUTQ, &unacked) != 0 || unacked < 0) unacked = 0;
  return s->out_bytes + (uint64_t)unacked;
}

uint64_t sk_stream_min_rtt_ns(const struct sk_stream *s) {
  struct tcp_info info = {0};
  socklen_t len = sizeof info;
  (void)getsockopt(s->fd, IPPROTO_TCP, TCP_INFO, &info, &len);
  return info.tcpi_min_rtt * 1000ull;
}

/* ---- several streams at once --------------------------------------------- */

/* Which of them can be written, or read, now? So that no thread is woken for a socket that is full, or empty. */
static void poll_streams(struct sk_stream *const streams[], uint32_t n, short events, bool ready[]) {
  struct pollfd fds[SK_MAX_STREAMS];
  for (uint32_t i = 0; i < n; i++) fds[i] = (struct pollfd){.fd = streams[i]->fd, .events = events};
  int found = poll(fds, n, 0);
  for (uint32_t i = 0; i < n; i++)
    ready[i] = found < 0 || fds[i].revents || (streams[i]->tls && sk_tls_is_pending(streams[i]->tls));
}

/* ---- out -------------------------------------------------------------- */

/* A system call that writes. Another thread than the owner may do_write. */
struct write_call {
  struct sk_stream *s;
  struct iovec iov[SK_OUT_IOV];
  int niov, flags;
  size_t asked;
  ssize_t n;
  int err;
};

/* The steps of a write, in their order; each is explained at its definition. */
static bool is_zerocopy_next(const struct sk_stream *s);
static bool write_zerocopy(struct sk_stream *s, uint64_t *bytes, rail_result_t *result);
static inline void begin_write(struct write_call *w, struct sk_stream *s, uint32_t below);
static inline void do_write(struct write_call *w);
static inline rail_result_t end_write(struct write_call *w, uint64_t *bytes);
static inline ssize_t send_iov(int fd, struct iovec *iov, int niov, int flags);
static rail_result_t wrote_nothing(struct sk_stream *s, ssize_t n, int err);

rail_result_t sk_stream_flush(struct sk_stream *s, uint64_t *bytes) {
  if (!s->out_count) return RAIL_OK;
  if (s->out_errno) return RAIL_REMOTE_ERROR;

  /* What goes by copy ends before the next payload of `below` bytes and more. */
  uint32_t below = UINT32_MAX;
  rail_result_t result;
  if (rail_unlikely(s->zerocopy != NULL) && sk_zerocopy_is_on(s)) {
    if (!is_zerocopy_next(s)) below = s->zerocopy->from;
    else if (write_zerocopy(s, bytes, &result)) return result;
  }

  struct write_call w;
  begin_write(&w, s, below);
  do_write(&w);
  result = end_write(&w, bytes);
  if (result != RAIL_OK || rail_likely(below == UINT32_MAX) || !is_zerocopy_next(s)) return result;
  return sk_stream_flush(s, bytes); /* the payload for zero copy, which is first now */
}

/* The first frame has a payload for zero copy, and all before it is in the kernel. */
static bool is_zerocopy_next(const struct sk_stream *s) {
  const struct sk_out *out = &s->out[s->out_first];
  return s->out_count && out->len >= s->zerocopy->from && s->out_done >= out->staged;
}

/* Writes that payload. False: the kernel cannot note another call, so this one must copy. */
static bool write_zerocopy(struct sk_stream *s, uint64_t *bytes, rail_result_t *result) {
  struct sk_zerocopy *zc = s->zerocopy;
  const struct sk_out *out = &s->out[s->out_first];
  size_t skip = s->out_done - out->staged;
  struct iovec iov = {.iov_base = (void *)(uintptr_t)(out->data + skip),
                      .iov_len = RAIL_MIN(out->len - skip, SK_IO_BYTES)};
  struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
  ssize_t n;
  do n = sendmsg(s->fd, &msg, MSG_ZEROCOPY | MSG_DONTWAIT | MSG_NOSIGNAL);
  while (n < 0 && errno == EINTR);
  rail_stats_add(&s->traffic->calls, 1);
  if (n < 0 && errno == ENOBUFS) return false;
  if (n <= 0) {
    *result = wrote_nothing(s, n, errno);
    return true;
  }
  assert(out->completion); /* a payload of this size is the caller's */
  zc->calls[zc->next++ % SK_ZEROCOPY_CALLS] = out->completion;
  sk_completion_add(out->completion);
  *bytes += (uint64_t)n;
  sk_stream_wrote(s, (size_t)n);
  *result = (size_t)n == iov.iov_len ? RAIL_OK : RAIL_IN_PROGRESS;
  return true;
}

static inline void begin_write(struct write_call *w, struct sk_stream *s, uint32_t below) {
  w->s = s;
  w->niov = sk_stream_out_iov(s, w->iov, SK_OUT_IOV, &w->asked, below);
  w->flags = MSG_DONTWAIT | MSG_NOSIGNAL | (below != UINT32_MAX && s->out_bytes > w->asked ? MSG_MORE : 0);
}

int sk_stream_out_iov(const struct sk_stream *s, struct iovec *iov, int max, size_t *asked, uint32_t below) {
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

static inline void do_write(struct write_call *w) {
  struct sk_stream *s = w->s;
  w->n = rail_likely(!s->tls) ? send_iov(s->fd, w->iov, w->niov, w->flags) : sk_tls_writev(s->tls, w->iov, w->niov);
  w->err = errno;
}

static inline ssize_t send_iov(int fd, struct iovec *iov, int niov, int flags) {
  struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)niov};
  ssize_t n;
  do n = niov == 1 ? send(fd, iov->iov_base, iov->iov_len, flags) : sendmsg(fd, &msg, flags);
  while (rail_unlikely(n < 0) && errno == EINTR);
  return n;
}

static inline rail_result_t end_write(struct write_call *w, uint64_t *bytes) {
  rail_stats_add(&w->s->traffic->calls, 1);
  if (rail_unlikely(w->n <= 0)) return wrote_nothing(w->s, w->n, w->err);
  *bytes += (uint64_t)w->n;
  sk_stream_wrote(w->s, (size_t)w->n);
  return (size_t)w->n == w->asked ? RAIL_OK : RAIL_IN_PROGRESS;
}

void sk_stream_wrote(struct sk_stream *s, size_t moved) {
  rail_stats_add(&s->traffic->out, moved);
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
    if (out->completion) sk_completion_drop(out->completion);
  }
  s->out_done = (uint32_t)moved;
  if (!s->out_count) s->stage_head = s->stage_tail = 0;
}

/* A system call has written nothing. */
static rail_result_t wrote_nothing(struct sk_stream *s, ssize_t n, int err) {
  if (n == 0 || err == EAGAIN || err == EWOULDBLOCK) return RAIL_IN_PROGRESS;
  sk_stream_out_failed(s, err);
  return RAIL_REMOTE_ERROR;
}

void sk_stream_out_failed(struct sk_stream *s, int err) {
  s->out_errno = err ? err : EPIPE;
  shutdown(s->fd, SHUT_WR); /* tells the peer to close, even if the TCP connection itself works */
}

static void run_write(void *items, uint32_t i) { do_write(&((struct write_call *)items)[i]); }

void sk_streams_write_shared(struct sk_stream *const streams[], uint32_t n, rail_result_t results[], uint64_t *bytes) {
  struct write_call writes[SK_MAX_STREAMS];
  bool ready[SK_MAX_STREAMS];
  uint32_t nwrites = 0;
  poll_streams(streams, n, POLLOUT, ready);
  for (uint32_t i = 0; i < n; i++)
    if (ready[i]) begin_write(&writes[nwrites++], streams[i], UINT32_MAX);
  if (nwrites > 1) sk_engine_share(run_write, writes, nwrites);
  else if (nwrites) do_write(&writes[0]);
  for (uint32_t i = 0, k = 0; i < n; i++) results[i] = ready[i] ? end_write(&writes[k++], bytes) : RAIL_IN_PROGRESS;
}

void sk_streams_flush(struct sk_stream *streams, uint32_t n) {
  uint64_t written = 0;
  for (uint32_t i = 0; i < n; i++)
    while (streams[i].out_count && sk_stream_flush(&streams[i], &written) == RAIL_OK) continue;
}

void sk_stream_queue_frame(struct sk_stream *s, enum sk_frame_type type, uint32_t frames, uint64_t generation,
                           uint32_t stream) {
  if (!sk_stream_can_queue(s)) return;
  sk_frame_encode(sk_stream_queue(s, SK_HEAD, NULL, 0, NULL), type, 0, frames, generation, 0, stream);
}

void sk_stream_send_frame(struct sk_stream *s, enum sk_frame_type type, uint32_t frames, uint64_t generation,
                          uint32_t stream) {
  sk_stream_queue_frame(s, type, frames, generation, stream);
  (void)sk_stream_flush(s, &(uint64_t){0});
}

bool sk_stream_drop_queue(struct sk_stream *s) {
  bool whole = !s->out_done;
  s->out_count = s->out_done = s->stage_head = s->stage_tail = 0;
  s->out_bytes = 0;
  return whole;
}

bool sk_stream_drop_awaited(struct sk_stream *s) {
  uint32_t kept = 0, at = s->stage_head, kept_at = s->stage_head;
  uint64_t kept_bytes = 0;
  if (s->out_done && s->out[s->out_first].completion) return sk_stream_drop_queue(s);
  for (uint32_t i = 0; i < s->out_count; i++) {
    const struct sk_out out = s->out[(s->out_first + i) % SK_OUT_FRAMES];
    if (!out.completion) {
      memmove(s->stage + kept_at, s->stage + at, out.staged);
      kept_at += out.staged;
      kept_bytes += out.staged + (uint64_t)out.len;
      s->out[(s->out_first + kept++) % SK_OUT_FRAMES] = out;
    }
    at += out.staged;
  }
  s->out_count = kept;
  s->stage_tail = kept_at;
  s->out_bytes = kept_bytes - s->out_done;
  return true;
}

bool sk_stream_copy_queue(const struct sk_stream *s, uint8_t **bytes, size_t *size) {
  const uint8_t *staged = s->stage + s->stage_head;
  size_t all = 0;
  for (uint32_t i = 0; i < s->out_count; i++) {
    const struct sk_out *out = &s->out[(s->out_first + i) % SK_OUT_FRAMES];
    all += (size_t)out->staged + out->len;
  }
  uint8_t *to = all ? malloc(all) : NULL;
  *bytes = to;
  *size = to ? all : 0;
  if (!to) return !all;
  for (uint32_t i = 0; i < s->out_count; i++) {
    const struct sk_out *out = &s->out[(s->out_first + i) % SK_OUT_FRAMES];
    memcpy(to, staged, out->staged);
    staged += out->staged;
    to += out->staged;
    if (out->len) memcpy(to, out->data, out->len);
    to += out->len;
  }
  return true;
}

/* ---- in --------------------------------------------------------------- */

/* A system call that reads. Another thread than the owner may do_read. */
struct read_call {
  struct sk_stream *s;
  struct iovec iov[2];
  int niov, err;
  size_t want, direct, moved;
  rail_result_t result;
};

/* The steps of a read. */
static inline bool begin_read(struct read_call *r, struct sk_stream *s);
static int in_iov(struct sk_stream *s, struct iovec iov[2], size_t *want);
static inline void do_read(struct read_call *r);
static inline rail_result_t end_read(const struct read_call *r, uint64_t *bytes, bool *more);

rail_result_t sk_stream_fill(struct sk_stream *s, uint64_t *bytes, bool *more) {
  struct read_call r;
  *more = false;
  if (!begin_read(&r, s)) return RAIL_IN_PROGRESS;
  do_read(&r);
  return end_read(&r, bytes, more);
}

/* False: nothing can be read now. */
static inline bool begin_read(struct read_call *r, struct sk_stream *s) {
  r->s = s;
  r->direct = RAIL_MIN(s->left, SK_IO_BYTES);
  r->niov = in_iov(s, r->iov, &r->want);
  return r->niov > 0;
}

/* Where the next bytes go; 0 when the buffer is full of what cannot be used yet. */
static int in_iov(struct sk_stream *s, struct iovec iov[2], size_t *want) {
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
  ahead = direct > SK_IO_BYTES ? 0 : RAIL_MIN(s->read_past, s->cap - s->tail);
  if (ahead) iov[n++] = (struct iovec){.iov_base = s->buf + s->tail, .iov_len = ahead};
  *want += ahead;
  return n;
}

static inline void do_read(struct read_call *r) {
  struct sk_stream *s = r->s;
  r->result = rail_likely(!s->tls) ? rail_sock_recvv(s->fd, r->iov, r->niov, &r->moved)
                                   : sk_tls_recvv(s->tls, s->fd, r->iov, r->niov, &r->moved);
  r->err = errno;
}

static inline rail_result_t end_read(const struct read_call *r, uint64_t *bytes, bool *more) {
  struct sk_stream *s = r->s;
  rail_stats_add(&s->traffic->calls, 1);
  if (r->result != RAIL_OK) {
    if (r->result == RAIL_IN_PROGRESS) return r->result;
    s->eof = true;
    s->in_errno = r->err;
    return RAIL_REMOTE_ERROR;
  }
  rail_stats_add(&s->traffic->in, r->moved);
  *bytes += r->moved;
  *more = r->moved == r->want;
  uint32_t placed = (uint32_t)RAIL_MIN(r->moved, r->direct);
  if (placed) s->to += placed; /* else it may be NULL */
  s->left -= placed;
  s->tail += (uint32_t)(r->moved - placed);
  return RAIL_OK;
}

static void run_read(void *items, uint32_t i) { do_read(&((struct read_call *)items)[i]); }

void sk_streams_fill_shared(struct sk_stream *const streams[], uint32_t n, rail_result_t results[], uint64_t *bytes,
                            bool more[]) {
  struct read_call reads[SK_MAX_STREAMS];
  bool ready[SK_MAX_STREAMS];
  uint32_t nreads = 0;
  poll_streams(streams, n, POLLIN, ready);
  for (uint32_t i = 0; i < n; i++)
    if (ready[i]) (void)begin_read(&reads[nreads++], streams[i]); /* a payload has room of its own */
  if (nreads > 1) sk_engine_share(run_read, reads, nreads);
  else if (nreads) do_read(&reads[0]);
  for (uint32_t i = 0, k = 0; i < n; i++) {
    more[i] = false;
    results[i] = ready[i] ? end_read(&reads[k++], bytes, &more[i]) : RAIL_IN_PROGRESS;
  }
}

bool sk_stream_take_payload(struct sk_stream *s) {
  uint32_t n = RAIL_MIN(s->left, s->tail - s->head);
  if (n) {
    rail_ordered_copy(s->to, s->buf + s->head, n);
    s->to += n;
    s->left -= n;
    s->head += n;
  }
  return s->left == 0;
}

/* ---- the peer's host --------------------------------------------------------
 *
 * The kernel's own timeouts do not do. With TCP_USER_TIMEOUT it ends a stream whose peer keeps its window shut although
 * it answers each probe: a peer that is merely stopped. Without, it takes 15 minutes to give up a host that is gone. So
 * the option stays off, and the watch thread looks at what the kernel has seen.
 */

/* The peer's window is shut, so that not even what arrives is acknowledged further: then any answer counts. Kernels
 * before Linux 5.4 do not tell; then any answer always counts. */
static bool is_window_shut(const struct tcp_info *info, socklen_t len) {
  return len < offsetof(struct tcp_info, tcpi_snd_wnd) + sizeof info->tcpi_snd_wnd || info->tcpi_snd_wnd == 0;
}

uint64_t sk_stream_host_silence(struct sk_stream *s, uint64_t now, uint64_t idle_until) {
  struct sk_host *host = &s->host;
  struct tcp_info info = {0};
  socklen_t len = sizeof info;
  if (getsockopt(s->fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0) return 0;
  uint64_t ago_ms = RAIL_MIN(info.tcpi_last_ack_recv, info.tcpi_last_data_recv);
  bool acked = info.tcpi_bytes_acked != host->acked, shut = is_window_shut(&info, len);
  bool unanswered = info.tcpi_unacked && (ago_ms > info.tcpi_last_data_sent || (!acked && !shut));
  host->acked = info.tcpi_bytes_acked;
  host->has_unacked = info.tcpi_unacked || info.tcpi_notsent_bytes;
  if (!unanswered && !info.tcpi_probes) { /* of probes, those since the last answer are counted */
    host->unanswered = 0;
    host->idle_at = now;
    return 0;
  }
  uint32_t retransmits = info.tcpi_total_retrans + info.tcpi_retransmits + info.tcpi_probes;
  uint64_t answered = now > ago_ms * MS ? now - ago_ms * MS : 1;
  answered = RAIL_MAX(answered, RAIL_MAX(host->idle_at, idle_until));
  /* Packets of a host may arrive that does not receive ours: then only what it acknowledges counts. */
  bool anew = shut ? answered > host->unanswered + SAME_ANSWER : acked;
  if (!host->unanswered || anew) {
    host->unanswered = answered;
    host->retransmits_at_start = retransmits;
  }
  return retransmits != host->retransmits_at_start ? now - host->unanswered : 0;
}
