/* SPDX-License-Identifier: Apache-2.0
 * Zero copy: where it is used, what the kernel reports of it, and its end. The calls are made in sk_stream.c. */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <linux/errqueue.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_stream.h"

#define GRACE_MS 5  /* before a stream is reset under what it has not delivered */
#define END_MS 1000 /* after that, for what the device still holds */

/* Loopback, veth and the like copy in any case; bonds and VLANs may not, but do not say so here. */
static bool has_hardware(const char *interface) {
  char file[512];
  if (!interface) return false;
  snprintf(file, sizeof file, "/sys/class/net/%s/device", interface);
  return access(file, F_OK) == 0;
}

void sk_zerocopy_init(struct sk_stream *s, const char *interface) {
  if (sk_params.zerocopy == 0 || (sk_params.zerocopy < 0 && !has_hardware(interface))) return;
  if (setsockopt(s->fd, SOL_SOCKET, SO_ZEROCOPY, &(int){1}, sizeof(int)) != 0) return;
  s->zerocopy = calloc(1, sizeof *s->zerocopy);
  if (!s->zerocopy) return; /* it works without, too */
  s->zerocopy->from = sk_params.zerocopy < 0 ? SK_ZEROCOPY_AUTO : (uint32_t)sk_params.zerocopy;
}

void sk_zerocopy_reconnected(struct sk_stream *s) {
  if (!s->zerocopy || setsockopt(s->fd, SOL_SOCKET, SO_ZEROCOPY, &(int){1}, sizeof(int)) == 0) return;
  free(s->zerocopy);
  s->zerocopy = NULL;
}

void sk_zerocopy_finished(struct sk_zerocopy *zc, uint32_t lo, uint32_t hi) {
  uint32_t open = zc->next - zc->first;
  if (lo - zc->first >= open || hi - lo >= open - (lo - zc->first)) return; /* not of calls that are open */
  for (uint32_t i = lo; i != hi + 1; i++) {
    sk_completion **call = &zc->calls[i % SK_ZEROCOPY_CALLS];
    if (*call) sk_completion_drop(*call);
    *call = NULL;
  }
  while (zc->first != zc->next && !zc->calls[zc->first % SK_ZEROCOPY_CALLS]) zc->first++;
}

static void on_notification(struct sk_zerocopy *zc, struct msghdr *msg) {
  for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
    struct sock_extended_err e;
    if (!(c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVERR) &&
        !(c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_RECVERR))
      continue;
    memcpy(&e, CMSG_DATA(c), sizeof e);
    if (e.ee_origin != SO_EE_ORIGIN_ZEROCOPY || e.ee_errno != 0) continue;
    if (e.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) zc->copied = true;
    sk_zerocopy_finished(zc, e.ee_info, e.ee_data);
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
    on_notification(zc, &msg);
  }
}

static bool has_open_calls(const struct sk_stream *s) {
  return s->zerocopy && s->zerocopy->first != s->zerocopy->next;
}

/* True when no call is open any more. */
static bool wait_for_calls(struct sk_stream *streams, uint32_t n, int ms) {
  uint64_t deadline = rail_deadline_in_ms((uint64_t)ms);
  for (;;) {
    struct pollfd fds[SK_MAX_STREAMS];
    nfds_t nfds = 0;
    for (uint32_t i = 0; i < n; i++) {
      struct sk_stream *s = &streams[i];
      if (has_open_calls(s)) sk_zerocopy_reap(s);
      if (has_open_calls(s)) fds[nfds++] = (struct pollfd){.fd = s->fd}; /* POLLERR comes without being asked for */
    }
    if (!nfds) return true;
    if (rail_deadline_passed(deadline)) return false;
    poll(fds, nfds, 1);
  }
}

/* Closing the sockets is not enough: a close hands the queue to the kernel, which goes on reading the pages, and with
 * it goes the error queue that could tell. To disconnect a socket throws its queue away and leaves it open; what is
 * left then are packets that the device has in hand. */
void sk_zerocopy_end(struct sk_stream *streams, uint32_t n, const char *device_name) {
  if (wait_for_calls(streams, n, GRACE_MS)) return;
  for (uint32_t i = 0; i < n; i++) {
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    if (has_open_calls(&streams[i])) (void)connect(streams[i].fd, &none, sizeof none);
  }
  if (!wait_for_calls(streams, n, END_MS))
    RAIL_WARN("RailSocket: %s has held on to memory that is being sent for %d ms after the connection was reset; "
              "what is written there now may reach the wire", device_name, END_MS);
}
