/* SPDX-License-Identifier: Apache-2.0
 * Large payloads without a copy into the kernel. */
#include "plugin/socket/sk_zerocopy.h"

#include <assert.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/socket/sk_param.h"

#define GRACE_MS 5  /* before a stream is reset under what it has not delivered */
#define END_MS 1000 /* after that, for what the device still holds */

/* ---- which streams ------------------------------------------------------ */

/* Loopback, veth and the like copy in any case; bonds and VLANs may not, but do not say so here. */
static bool has_hardware(const struct sk_device *path) {
  char file[64 + sizeof path->name];
  if (!path) return false;
  snprintf(file, sizeof file, "/sys/class/net/%s/device", path->name);
  return access(file, F_OK) == 0;
}

void sk_zerocopy_init(struct sk_comm *comm, const struct sk_comm_args *args) {
  if (comm->rails || sk_params.zerocopy == 0) return;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_stream *s = &comm->streams[i];
    if (sk_params.zerocopy < 0 && !has_hardware(args->paths[i])) continue;
    if (setsockopt(s->fd, SOL_SOCKET, SO_ZEROCOPY, &(int){1}, sizeof(int)) != 0) continue;
    s->zerocopy = calloc(1, sizeof *s->zerocopy);
    if (!s->zerocopy) return; /* it goes without, too */
    s->zerocopy->from = sk_params.zerocopy < 0 ? SK_ZEROCOPY_AUTO : (uint32_t)sk_params.zerocopy;
  }
}

void sk_zerocopy_reconnected(struct sk_stream *s) {
  if (!s->zerocopy || setsockopt(s->fd, SOL_SOCKET, SO_ZEROCOPY, &(int){1}, sizeof(int)) == 0) return;
  free(s->zerocopy);
  s->zerocopy = NULL;
}

/* ---- out ---------------------------------------------------------------- */

static ssize_t send_iov(struct sk_stream *s, struct iovec *iov, int niov, int flags) {
  struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)niov};
  ssize_t n;
  do n = sendmsg(s->fd, &msg, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
  while (n < 0 && errno == EINTR);
  rail_stats_add(&s->moved->calls, 1);
  return n;
}

static rail_result_t account(struct sk_stream *s, ssize_t n, size_t asked, uint64_t *bytes) {
  if (n > 0) {
    sk_stream_wrote(s, (size_t)n);
    *bytes += (uint64_t)n;
    return (size_t)n == asked ? RAIL_OK : RAIL_IN_PROGRESS;
  }
  if (n == 0 || errno == EAGAIN || errno == EWOULDBLOCK) return RAIL_IN_PROGRESS;
  sk_stream_out_failed(s, errno);
  return RAIL_REMOTE_ERROR;
}

/* By copy: all that stands before the next payload of `below` bytes and more. */
static rail_result_t flush_copied(struct sk_stream *s, uint32_t below, uint64_t *bytes) {
  struct iovec iov[SK_OUT_IOV];
  size_t asked;
  int n = sk_stream_out_iov_below(s, iov, SK_OUT_IOV, &asked, below);
  return account(s, send_iov(s, iov, n, s->out_bytes > asked ? MSG_MORE : 0), asked, bytes);
}

/* The first frame's, if all before it is in the kernel. */
static struct iovec payload_due(const struct sk_stream *s) {
  const struct sk_out *out = &s->out[s->out_first];
  if (!s->out_count || out->len < s->zerocopy->from || s->out_done < out->staged) return (struct iovec){0};
  size_t skip = s->out_done - out->staged;
  return (struct iovec){.iov_base = (void *)(uintptr_t)(out->data + skip),
                        .iov_len = RAIL_MIN(out->len - skip, SK_IO_BYTES)};
}

rail_result_t sk_zerocopy_flush(struct sk_stream *s, uint64_t *bytes) {
  struct sk_zerocopy *zc = s->zerocopy;
  struct iovec iov = payload_due(s);
  if (!iov.iov_len) {
    rail_result_t result = flush_copied(s, zc->from, bytes);
    if (result != RAIL_OK) return result;
    iov = payload_due(s);
    if (!iov.iov_len) return RAIL_OK;
  }
  ssize_t n = send_iov(s, &iov, 1, MSG_ZEROCOPY);
  if (n < 0 && errno == ENOBUFS) return flush_copied(s, UINT32_MAX, bytes);
  if (n > 0) {
    sk_pending *pending = s->out[s->out_first].pending;
    assert(pending); /* what is so large is the caller's */
    zc->calls[zc->next++ % SK_ZEROCOPY_CALLS] = pending;
    sk_pending_add(pending);
  }
  return account(s, n, iov.iov_len, bytes);
}

/* ---- what the kernel says ------------------------------------------------ */

void sk_zerocopy_over(struct sk_zerocopy *zc, uint32_t lo, uint32_t hi) {
  uint32_t open = zc->next - zc->first;
  if (lo - zc->first >= open || hi - lo >= open - (lo - zc->first)) return; /* not of calls that are open */
  for (uint32_t i = lo; i != hi + 1; i++) {
    sk_pending **call = &zc->calls[i % SK_ZEROCOPY_CALLS];
    if (*call) sk_pending_drop(*call);
    *call = NULL;
  }
  while (zc->first != zc->next && !zc->calls[zc->first % SK_ZEROCOPY_CALLS]) zc->first++;
}

static void on_notice(struct sk_zerocopy *zc, struct msghdr *msg) {
  for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
    struct sock_extended_err e;
    if (!(c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVERR) &&
        !(c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_RECVERR))
      continue;
    memcpy(&e, CMSG_DATA(c), sizeof e);
    if (e.ee_origin != SO_EE_ORIGIN_ZEROCOPY || e.ee_errno != 0) continue;
    if (e.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) zc->copied = true;
    sk_zerocopy_over(zc, e.ee_info, e.ee_data);
  }
}

void sk_zerocopy_reap(struct sk_stream *s) {
  struct sk_zerocopy *zc = s->zerocopy;
  while (zc->first != zc->next) {
    _Alignas(struct cmsghdr) char control[256];
    struct msghdr msg = {.msg_control = control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(s->fd, &msg, MSG_ERRQUEUE | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;
    on_notice(zc, &msg);
  }
}

/* ---- the end -------------------------------------------------------------- */

static bool is_open(const struct sk_stream *s) { return s->zerocopy && s->zerocopy->first != s->zerocopy->next; }

/* True when nothing is open any more. */
static bool wait_for_all(struct sk_comm *comm, int ms) {
  uint64_t deadline = rail_deadline_in_ms((uint64_t)ms);
  for (;;) {
    struct pollfd fds[SK_MAX_STREAMS];
    nfds_t n = 0;
    for (uint32_t i = 0; i < comm->nstreams; i++) {
      struct sk_stream *s = &comm->streams[i];
      if (is_open(s)) sk_zerocopy_reap(s);
      if (is_open(s)) fds[n++] = (struct pollfd){.fd = s->fd}; /* POLLERR comes unasked */
    }
    if (!n) return true;
    if (rail_deadline_passed(deadline)) return false;
    poll(fds, n, 1);
  }
}

/* Closing the sockets would not do: a close hands the queue to the kernel, which goes on reading the pages, and with
 * it goes the error queue that could tell. To disconnect a socket throws its queue away and leaves it open; what is
 * left then are packets that the device has in hand. */
void sk_zerocopy_end(struct sk_comm *comm) {
  if (wait_for_all(comm, GRACE_MS)) return;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    if (is_open(&comm->streams[i])) (void)connect(comm->streams[i].fd, &none, sizeof none);
  }
  if (!wait_for_all(comm, END_MS))
    RAIL_WARN("RailSocket: %s has held on to memory that is being sent for %d ms after the connection was reset; "
              "what is written there now may reach the wire", comm->device_name, END_MS);
}
