/* SPDX-License-Identifier: Apache-2.0
 *
 * Sockets, and moving data: these calls can fail, and stream sockets can move
 * less than they are asked to, and have hardly any buffer.
 *
 * read, write and their kin serve files, sockets and wake-up descriptors
 * alike; an eventfd or pipe that exists cannot fail that way and is not
 * counted.
 */
#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "kit/preload/fault.h"

#define MAX_PIECES 64 /* pieces of one vector that are looked at; a longer one is cut there */

static void hold_buffers(int fd, int size) {
  int saved = errno;
  if (fd < 0 || size == 0) return;
  syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_SNDBUF, &size, (socklen_t)sizeof size);
  syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_RCVBUF, &size, (socklen_t)sizeof size);
  errno = saved;
}

PUBLIC int socket(int domain, int type, int protocol) {
  if (kit_fault_must_fail(KIT_FAIL_SOCKET, "socket", EMFILE, CALLER)) return -1;
  NEXT(socket);
  int fd = real(domain, type, protocol);
  if ((domain == AF_INET || domain == AF_INET6) && (type & 0xf) == SOCK_STREAM)
    hold_buffers(fd, kit_fault_buffer(CALLER)); /* accepted sockets have their listener's */
  return fd;
}

PUBLIC int setsockopt(int fd, int level, int name, const void *value, socklen_t len) {
  if (kit_fault_must_fail(KIT_FAIL_SOCKET, "setsockopt", ENOMEM, CALLER)) return -1;
  bool buffer = level == SOL_SOCKET && (name == SO_SNDBUF || name == SO_RCVBUF || name == SO_SNDBUFFORCE ||
                                        name == SO_RCVBUFFORCE || name == SO_RCVLOWAT);
  if (buffer && kit_fault_buffer(CALLER) > 0) return 0;
  NEXT(setsockopt);
  return real(fd, level, name, value, len);
}

CALL(KIT_FAIL_SOCKET, EMFILE, socketpair, (int domain, int type, int protocol, int fds[2]),
     (domain, type, protocol, fds))
CALL(KIT_FAIL_SOCKET, EADDRINUSE, bind, (int fd, const struct sockaddr *addr, socklen_t len), (fd, addr, len))
CALL(KIT_FAIL_SOCKET, EADDRINUSE, listen, (int fd, int backlog), (fd, backlog))
PUBLIC int accept(int fd, struct sockaddr *restrict addr, socklen_t *restrict len) {
  if (kit_fault_must_fail(KIT_FAIL_SOCKET, "accept", EMFILE, CALLER) || kit_fault_interrupts(CALLER)) return -1;
  NEXT(accept);
  return real(fd, addr, len);
}

PUBLIC int accept4(int fd, struct sockaddr *restrict addr, socklen_t *restrict len, int flags) {
  if (kit_fault_must_fail(KIT_FAIL_SOCKET, "accept4", EMFILE, CALLER) || kit_fault_interrupts(CALLER)) return -1;
  NEXT(accept4);
  return real(fd, addr, len, flags);
}

CALL(KIT_FAIL_SOCKET, ENETUNREACH, connect, (int fd, const struct sockaddr *addr, socklen_t len), (fd, addr, len))
CALL(KIT_FAIL_SOCKET, ENOBUFS, getsockname, (int fd, struct sockaddr *restrict addr, socklen_t *restrict len),
     (fd, addr, len))
CALL(KIT_FAIL_SOCKET, ENOTCONN, getpeername, (int fd, struct sockaddr *restrict addr, socklen_t *restrict len),
     (fd, addr, len))
CALL(KIT_FAIL_SOCKET, ENOBUFS, getsockopt, (int fd, int level, int name, void *restrict value,
     socklen_t *restrict len), (fd, level, name, value, len))

static bool can_fail_io(int fd) {
  struct stat st;
  if (!kit_fault_armed()) return false;
  int saved = errno;
  bool can = fstat(fd, &st) == 0 && (S_ISREG(st.st_mode) || S_ISSOCK(st.st_mode));
  errno = saved;
  return can;
}

static bool is_tcp(int fd) {
  int domain = 0;
  socklen_t size = sizeof domain;
  return syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 &&
         (domain == AF_INET || domain == AF_INET6);
}

/* A connection that fails is lost for good: whoever looks at the next call instead must find the same. Sending then
 * fails by itself, with EPIPE, and with SIGPIPE for those who forgot about it. */
static bool fails(int fd, bool sends, const char *name, const void *caller) {
  if (kit_fault_interrupts(caller)) return true;
  if (!can_fail_io(fd) || !kit_fault_must_fail(KIT_FAIL_IO, name, ECONNRESET, caller)) return false;
  if (syscall(SYS_shutdown, fd, SHUT_RDWR) == 0 && sends && is_tcp(fd)) return false;
  errno = ECONNRESET;
  return true;
}

/* ---- one buffer ---- */

#define FAILS(sends, name) fails(fd, sends, name, CALLER)

/* `n` and `flags` are names of parameters; 0 for a call without flags. */
#define MOVE(name, sends, flags, params, args)                 \
  PUBLIC ssize_t name params {                           \
    if (FAILS(sends, #name)) return -1;                  \
    NEXT(name);                                          \
    n = kit_fault_cut(fd, n, flags, CALLER);             \
    return real args;                                    \
  }

MOVE(send, true, flags, (int fd, const void *p, size_t n, int flags), (fd, p, n, flags))
MOVE(recv, false, flags, (int fd, void *p, size_t n, int flags), (fd, p, n, flags))
MOVE(sendto, true, flags, (int fd, const void *p, size_t n, int flags, const struct sockaddr *to, socklen_t size),
     (fd, p, n, flags, to, size))
MOVE(recvfrom, false, flags, (int fd, void *restrict p, size_t n, int flags, struct sockaddr *restrict from,
     socklen_t *restrict size), (fd, p, n, flags, from, size))
MOVE(read, false, 0, (int fd, void *p, size_t n), (fd, p, n))
MOVE(write, true, 0, (int fd, const void *p, size_t n), (fd, p, n))

/* What a plugin built with _FORTIFY_SOURCE calls instead. */
ssize_t __read_chk(int fd, void *p, size_t n, size_t size);
ssize_t __recv_chk(int fd, void *p, size_t n, size_t size, int flags);
MOVE(__read_chk, false, 0, (int fd, void *p, size_t n, size_t size), (fd, p, n, size))
MOVE(__recv_chk, false, flags, (int fd, void *p, size_t n, size_t size, int flags), (fd, p, n, size, flags))
ssize_t __recvfrom_chk(int fd, void *restrict p, size_t n, size_t size, int flags, struct sockaddr *restrict from,
                       socklen_t *restrict len);
MOVE(__recvfrom_chk, false, flags, (int fd, void *restrict p, size_t n, size_t size, int flags,
     struct sockaddr *restrict from, socklen_t *restrict len), (fd, p, n, size, flags, from, len))

/* ---- several buffers ---- */

static size_t total(const struct iovec *v, size_t n) {
  size_t sum = 0;
  for (size_t i = 0; i < n; i++) sum += v[i].iov_len;
  return sum;
}

/* Copies the pieces that the first `allowed` bytes lie in; returns how many those are. */
static size_t cut_vector(struct iovec *to, const struct iovec *v, size_t n, size_t allowed) {
  size_t used = 0;
  for (; used < n && used < MAX_PIECES && allowed > 0; used++) {
    to[used] = v[used];
    if (to[used].iov_len > allowed) to[used].iov_len = allowed;
    allowed -= to[used].iov_len;
  }
  return used;
}

#define MOVE_VECTOR(name, sends)                                    \
  PUBLIC ssize_t name(int fd, const struct iovec *v, int n) {      \
    if (FAILS(sends, #name)) return -1;                            \
    NEXT(name);                                                    \
    size_t all = n > 0 ? total(v, (size_t)n) : 0;                  \
    size_t allowed = kit_fault_cut(fd, all, 0, CALLER);            \
    if (allowed == all) return real(fd, v, n);                     \
    struct iovec part[MAX_PIECES];                                  \
    return real(fd, part, (int)cut_vector(part, v, (size_t)n, allowed)); \
  }

MOVE_VECTOR(readv, false)
MOVE_VECTOR(writev, true)

/* Copies what is needed of *m for `allowed` bytes. */
static struct msghdr cut_message(const struct msghdr *m, struct iovec *part, size_t allowed) {
  struct msghdr less = *m;
  less.msg_iovlen = cut_vector(part, m->msg_iov, m->msg_iovlen, allowed);
  less.msg_iov = part;
  return less;
}

PUBLIC ssize_t sendmsg(int fd, const struct msghdr *m, int flags) {
  if (FAILS(true, "sendmsg")) return -1;
  NEXT(sendmsg);
  size_t all = total(m->msg_iov, m->msg_iovlen), allowed = kit_fault_cut(fd, all, flags, CALLER);
  if (allowed == all) return real(fd, m, flags);
  struct iovec part[MAX_PIECES];
  struct msghdr less = cut_message(m, part, allowed);
  return real(fd, &less, flags);
}

PUBLIC ssize_t recvmsg(int fd, struct msghdr *m, int flags) {
  if (FAILS(false, "recvmsg")) return -1;
  NEXT(recvmsg);
  size_t all = total(m->msg_iov, m->msg_iovlen), allowed = kit_fault_cut(fd, all, flags, CALLER);
  if (allowed == all) return real(fd, m, flags);
  struct iovec part[MAX_PIECES];
  struct msghdr less = cut_message(m, part, allowed);
  ssize_t got = real(fd, &less, flags);
  m->msg_flags = less.msg_flags;
  m->msg_namelen = less.msg_namelen;
  m->msg_controllen = less.msg_controllen;
  return got;
}

/* ---- several messages: fewer of them, each whole ---- */

static unsigned cut_count(int fd, unsigned n, int flags, const void *caller) {
  return (unsigned)kit_fault_cut(fd, n, flags, caller);
}

PUBLIC int sendmmsg(int fd, struct mmsghdr *v, unsigned n, int flags) {
  if (FAILS(true, "sendmmsg")) return -1;
  NEXT(sendmmsg);
  return real(fd, v, cut_count(fd, n, flags, CALLER), flags);
}

PUBLIC int recvmmsg(int fd, struct mmsghdr *v, unsigned n, int flags, struct timespec *timeout) {
  if (FAILS(false, "recvmmsg")) return -1;
  NEXT(recvmmsg);
  return real(fd, v, cut_count(fd, n, flags, CALLER), flags, timeout);
}
