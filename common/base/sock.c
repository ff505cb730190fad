/* SPDX-License-Identifier: Apache-2.0
 *
 * Non-blocking TCP. Every function either moves bytes now or says
 * RAIL_IN_PROGRESS; the four *_all forms at the end wait in slices, so that an
 * abort flag is seen soon.
 */
#include "common/base/sock.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/base/clock.h"

#define WAIT_SLICE_MS 50     /* longest time an abort flag stays unseen */
#define RECONNECT_PAUSE_MS 20 /* between attempts to reach a peer that does not listen yet */

union rail_addr rail_sock_local(int fd) {
  union rail_addr addr = {0};
  socklen_t len = sizeof addr;
  (void)getsockname(fd, &addr.sa, &len);
  return addr;
}

void rail_sock_close(int *fd) {
  if (*fd < 0) return;
  int saved = errno;
  close(*fd); /* Linux frees the number even on EINTR: never retry */
  errno = saved;
  *fd = -1;
}

/* Sets what every data socket has; a socket that refuses TCP_NODELAY is not TCP. */
static bool set_nodelay(int fd) {
  int one = 1;
  return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0;
}

/* A connection that was closed keeps its port for a minute (TIME_WAIT); with this, a program that wants to listen there
 * may. Only after the port is chosen: before, it would let two sockets share one. */
static void leave_port_free(int fd) {
  int one = 1;
  (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
}

rail_result_t rail_sock_listen(union rail_addr *addr, int backlog, int *fd) {
  int one = 1;
  socklen_t len = sizeof *addr;
  *fd = socket(addr->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (*fd < 0) return RAIL_SYSTEM_ERROR;
  /* Only for a chosen port: with port 0 it would let two sockets share one. */
  if (rail_addr_port(addr) && setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0) goto failed;
  if (bind(*fd, &addr->sa, rail_addr_len(addr)) != 0) goto failed;
  if (listen(*fd, backlog) != 0) goto failed;
  leave_port_free(*fd); /* the accepted sockets inherit it */
  if (getsockname(*fd, &addr->sa, &len) != 0) goto failed;
  return RAIL_OK;

failed:
  rail_sock_close(fd);
  return RAIL_SYSTEM_ERROR;
}

/* Errors that belong to the one connection in the queue, not to the listener (accept(2)). */
static bool died_in_queue(int err) {
  switch (err) {
    case ECONNABORTED:
    case ENETDOWN:
    case EPROTO:
    case ENOPROTOOPT:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case EOPNOTSUPP:
    case ENETUNREACH:
    case EINTR:
      return true;
    default:
      return false;
  }
}

rail_result_t rail_sock_accept(int listen_fd, int *fd, union rail_addr *peer) {
  union rail_addr from;
  *fd = -1;
  /* Bounded: a listener that is not one answers EOPNOTSUPP for ever. */
  for (int tries = 0; tries < 64; tries++) {
    socklen_t len = sizeof from;
    *fd = accept4(listen_fd, &from.sa, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (*fd >= 0) {
      if (!set_nodelay(*fd)) { /* gone already */
        rail_sock_close(fd);
        continue;
      }
      if (peer) *peer = from;
      return RAIL_OK;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return RAIL_IN_PROGRESS;
    if (!died_in_queue(errno)) return RAIL_SYSTEM_ERROR;
  }
  return errno == EOPNOTSUPP ? RAIL_SYSTEM_ERROR : RAIL_IN_PROGRESS;
}

rail_result_t rail_sock_open(const union rail_addr *to, const union rail_addr *from, int *fd) {
  *fd = socket(to->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (*fd < 0) return RAIL_SYSTEM_ERROR;
  if (!set_nodelay(*fd)) goto failed;
  if (from) {
#ifdef IP_BIND_ADDRESS_NO_PORT
    /* The port is chosen at connect, per destination: many more connections fit. */
    int one = 1;
    (void)setsockopt(*fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
#endif
    union rail_addr local = *from;
    rail_addr_set_port(&local, 0);
    if (bind(*fd, &local.sa, rail_addr_len(&local)) != 0) goto failed;
  }
  leave_port_free(*fd);
  return RAIL_OK;

failed:
  rail_sock_close(fd);
  return RAIL_SYSTEM_ERROR;
}

rail_result_t rail_sock_start(int fd, const union rail_addr *to) {
  if (connect(fd, &to->sa, rail_addr_len(to)) == 0) return RAIL_OK;
  /* Interrupted means started (connect(2)): the outcome arrives as for EINPROGRESS. */
  if (errno == EINPROGRESS || errno == EINTR) return RAIL_IN_PROGRESS;
  return rail_result_of_errno(errno);
}

rail_result_t rail_sock_connect(const union rail_addr *to, const union rail_addr *from, int *fd) {
  RAIL_TRY(rail_sock_open(to, from, fd));
  rail_result_t result = rail_sock_start(*fd, to);
  if (result != RAIL_OK && result != RAIL_IN_PROGRESS) rail_sock_close(fd);
  return result;
}

rail_result_t rail_sock_connected(int fd) {
  struct pollfd pfd = {.fd = fd, .events = POLLOUT};
  int ready = poll(&pfd, 1, 0);
  if (ready == 0 || (ready < 0 && errno == EINTR)) return RAIL_IN_PROGRESS;
  if (ready < 0) return RAIL_SYSTEM_ERROR;
  if (pfd.revents & POLLNVAL) {
    errno = EBADF;
    return RAIL_SYSTEM_ERROR;
  }
  int err = 0;
  socklen_t len = sizeof err;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0) return RAIL_SYSTEM_ERROR;
  if (err == 0 && (pfd.revents & POLLHUP)) err = ENOTCONN; /* never started */
  if (err == 0) return RAIL_OK;
  errno = err;
  return rail_result_of_errno(err);
}

/* One piece, the most frequent case, needs no vector: the kernel copies and checks less. */
static ssize_t send_once(int fd, const struct iovec *iov, int niov) {
  if (rail_likely(niov == 1)) return send(fd, iov->iov_base, iov->iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
  struct msghdr msg = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)niov};
  return sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static ssize_t recv_once(int fd, const struct iovec *iov, int niov) {
  if (rail_likely(niov == 1)) return recv(fd, iov->iov_base, iov->iov_len, MSG_DONTWAIT);
  struct msghdr msg = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)niov};
  return recvmsg(fd, &msg, MSG_DONTWAIT);
}

rail_result_t rail_sock_sendv(int fd, const struct iovec *iov, int niov, size_t *n) {
  *n = 0;
  for (;;) {
    ssize_t sent = send_once(fd, iov, niov);
    if (rail_likely(sent > 0)) {
      *n = (size_t)sent;
      return RAIL_OK;
    }
    if (sent == 0) return RAIL_OK; /* only when nothing was asked */
    if (errno == EAGAIN || errno == EWOULDBLOCK) return RAIL_IN_PROGRESS;
    if (errno != EINTR) return rail_result_of_errno(errno);
  }
}

static bool iov_is_empty(const struct iovec *iov, int niov) {
  for (int i = 0; i < niov; i++)
    if (iov[i].iov_len) return false;
  return true;
}

rail_result_t rail_sock_recvv(int fd, const struct iovec *iov, int niov, size_t *n) {
  *n = 0;
  for (;;) {
    ssize_t got = recv_once(fd, iov, niov);
    if (rail_likely(got > 0)) {
      *n = (size_t)got;
      return RAIL_OK;
    }
    if (got == 0) {
      if (iov_is_empty(iov, niov)) return RAIL_OK;
      errno = 0;
      return RAIL_REMOTE_ERROR;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return RAIL_IN_PROGRESS;
    if (errno != EINTR) return rail_result_of_errno(errno);
  }
}

rail_result_t rail_sock_send_some(int fd, const void *data, size_t size, size_t *done) {
  while (*done < size) {
    struct iovec iov = {.iov_base = (char *)data + *done, .iov_len = size - *done};
    size_t n;
    RAIL_TRY(rail_sock_sendv(fd, &iov, 1, &n));
    *done += n;
  }
  return RAIL_OK;
}

rail_result_t rail_sock_recv_some(int fd, void *data, size_t size, size_t *done) {
  while (*done < size) {
    struct iovec iov = {.iov_base = (char *)data + *done, .iov_len = size - *done};
    size_t n;
    RAIL_TRY(rail_sock_recvv(fd, &iov, 1, &n));
    *done += n;
  }
  return RAIL_OK;
}

/* ---- waiting forms ---------------------------------------------------- */

static rail_result_t check_wait(uint64_t deadline, const _Atomic int *abort_flag) {
  if (abort_flag && atomic_load_explicit(abort_flag, memory_order_relaxed)) {
    errno = ECANCELED;
    return RAIL_REMOTE_ERROR;
  }
  if (rail_deadline_passed(deadline)) {
    errno = ETIMEDOUT;
    return RAIL_REMOTE_ERROR;
  }
  return RAIL_OK;
}

/* One slice of waiting for `events` on fd (-1: just time). Whatever poll says,
 * the caller tries again and learns from the operation itself. */
static rail_result_t wait_slice(int fd, short events, int slice_ms, uint64_t deadline, const _Atomic int *abort_flag) {
  RAIL_TRY(check_wait(deadline, abort_flag));
  struct pollfd pfd = {.fd = fd, .events = events};
  int left = rail_deadline_left_ms(deadline);
  if (left < 0 || left > slice_ms) left = slice_ms;
  if (poll(&pfd, 1, left) < 0 && errno != EINTR) return RAIL_SYSTEM_ERROR;
  return RAIL_OK;
}

rail_result_t rail_sock_send_all(int fd, const void *data, size_t size, uint64_t deadline,
                                 const _Atomic int *abort_flag) {
  for (size_t done = 0;;) {
    rail_result_t result = rail_sock_send_some(fd, data, size, &done);
    if (result != RAIL_IN_PROGRESS) return result;
    RAIL_TRY(wait_slice(fd, POLLOUT, WAIT_SLICE_MS, deadline, abort_flag));
  }
}

rail_result_t rail_sock_recv_all(int fd, void *data, size_t size, uint64_t deadline, const _Atomic int *abort_flag) {
  for (size_t done = 0;;) {
    rail_result_t result = rail_sock_recv_some(fd, data, size, &done);
    if (result != RAIL_IN_PROGRESS) return result;
    RAIL_TRY(wait_slice(fd, POLLIN, WAIT_SLICE_MS, deadline, abort_flag));
  }
}

/* A peer that is not there yet is the usual case at start-up: ranks start in
 * any order. Only errors that may pass with time are retried. */
static bool worth_retrying(int err) {
  return err == ECONNREFUSED || err == EHOSTUNREACH || err == ENETUNREACH || err == ETIMEDOUT || err == ECONNRESET ||
         err == EADDRNOTAVAIL; /* ephemeral ports used up */
}

rail_result_t rail_sock_connect_all(const union rail_addr *to, const union rail_addr *from, uint64_t deadline,
                                    const _Atomic int *abort_flag, int *fd) {
  for (;;) {
    rail_result_t result = rail_sock_connect(to, from, fd);
    while (result == RAIL_IN_PROGRESS) {
      result = wait_slice(*fd, POLLOUT, WAIT_SLICE_MS, deadline, abort_flag);
      if (result != RAIL_OK) {
        rail_sock_close(fd);
        return result;
      }
      result = rail_sock_connected(*fd);
    }
    if (result == RAIL_OK) return RAIL_OK;
    rail_sock_close(fd);
    if (!worth_retrying(errno)) return result;
    RAIL_TRY(wait_slice(-1, 0, RECONNECT_PAUSE_MS, deadline, abort_flag));
  }
}

rail_result_t rail_sock_accept_all(int listen_fd, uint64_t deadline, const _Atomic int *abort_flag, int *fd,
                                   union rail_addr *peer) {
  for (;;) {
    rail_result_t result = rail_sock_accept(listen_fd, fd, peer);
    if (result != RAIL_IN_PROGRESS) return result;
    RAIL_TRY(wait_slice(listen_fd, POLLIN, WAIT_SLICE_MS, deadline, abort_flag));
  }
}

/* ---- options, randomness and secrets ---------------------------------- */

static rail_result_t set_buffer(int fd, int option, int64_t bytes) {
  if (bytes < 0) return RAIL_OK;
  int value = bytes > 0x3fffffff ? 0x3fffffff : (int)bytes; /* the kernel doubles it */
  return setsockopt(fd, SOL_SOCKET, option, &value, sizeof value) == 0 ? RAIL_OK : RAIL_SYSTEM_ERROR;
}

rail_result_t rail_sock_set_buffers(int fd, int64_t sndbuf, int64_t rcvbuf) {
  RAIL_TRY(set_buffer(fd, SO_SNDBUF, sndbuf));
  return set_buffer(fd, SO_RCVBUF, rcvbuf);
}

void rail_sock_ack_now(int fd) {
  static const int now = 2, wait = 0; /* the second, because the first leaves it as it is where none is due */
  (void)setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &now, sizeof now);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &wait, sizeof wait);
}

/* Asking for so many bytes at once makes the kernel grow the buffer for them; asking for one again leaves it so. */
rail_result_t rail_sock_open_window(int fd, int64_t bytes) {
  const int want[2] = {(int)RAIL_MIN(bytes, (int64_t)1 << 30), 1};
  for (int i = 0; i < 2 && bytes > 0; i++)
    if (setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &want[i], sizeof want[i]) != 0) return RAIL_SYSTEM_ERROR;
  return RAIL_OK;
}

rail_result_t rail_random_bytes(void *out, size_t size) {
  for (size_t have = 0; have < size;) {
    ssize_t n = getrandom((char *)out + have, size - have, 0);
    if (n > 0) have += (size_t)n;
    else if (errno != EINTR) return RAIL_SYSTEM_ERROR;
  }
  return RAIL_OK;
}

bool rail_same_bytes(const void *a, const void *b, size_t size) {
  const uint8_t *x = a, *y = b;
  volatile uint8_t differ = 0;
  for (size_t i = 0; i < size; i++) differ = differ | (x[i] ^ y[i]);
  return differ == 0;
}
