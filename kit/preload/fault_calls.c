/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls that can be made to fail: memory, files, threads, waiting, and
 * sockets but for moving data (fault_io.c). close and munmap are not among
 * them: no caller can act on their failure.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kit/preload/fault.h"

/* ---- memory ---- */

/* glibc's own names: they need no look-up, which itself would allocate. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);
void *__libc_memalign(size_t align, size_t size);

#define NO_MEMORY(name) kit_fault_must_fail(KIT_FAIL_ALLOC, name, ENOMEM, CALLER)

PUBLIC void *malloc(size_t size) { return NO_MEMORY("malloc") ? NULL : __libc_malloc(size); }
PUBLIC void *calloc(size_t n, size_t size) { return NO_MEMORY("calloc") ? NULL : __libc_calloc(n, size); }
PUBLIC void *realloc(void *p, size_t size) { return NO_MEMORY("realloc") ? NULL : __libc_realloc(p, size); }
PUBLIC void *aligned_alloc(size_t align, size_t size) {
  return NO_MEMORY("aligned_alloc") ? NULL : __libc_memalign(align, size);
}

PUBLIC int posix_memalign(void **p, size_t align, size_t size) {
  int saved = errno;
  if (NO_MEMORY("posix_memalign")) {
    errno = saved; /* it reports by its result */
    return ENOMEM;
  }
  NEXT(posix_memalign);
  return real(p, align, size);
}

FORWARD(KIT_FAIL_ALLOC, ENOMEM, NULL, char *, strdup, (const char *s), (s))
FORWARD(KIT_FAIL_ALLOC, ENOMEM, NULL, char *, strndup, (const char *s, size_t n), (s, n))

FORWARD(KIT_FAIL_MAP, ENOMEM, MAP_FAILED, void *, mmap, (void *p, size_t n, int prot, int flags, int fd, off_t at),
        (p, n, prot, flags, fd, at))
NAME_64(mmap64, mmap);
CALL(KIT_FAIL_MAP, EMFILE, shm_open, (const char *name, int flags, mode_t mode), (name, flags, mode))
CALL(KIT_FAIL_MAP, ENOSPC, ftruncate, (int fd, off_t len), (fd, len))
NAME_64(ftruncate64, ftruncate);
CALL(KIT_FAIL_MAP, EMFILE, memfd_create, (const char *name, unsigned int flags), (name, flags))

/* ---- waiting ---- */

CALL(KIT_FAIL_POLL, EMFILE, epoll_create, (int size), (size))
CALL(KIT_FAIL_POLL, EMFILE, epoll_create1, (int flags), (flags))
PUBLIC int epoll_ctl(int ep, int op, int fd, struct epoll_event *event) {
  if (kit_fault_must_fail(KIT_FAIL_POLL, "epoll_ctl", ENOMEM, CALLER)) return -1;
  NEXT(epoll_ctl);
  int result = real(ep, op, fd, event);
  if (result == 0) kit_fault_edges(fd, op != EPOLL_CTL_DEL && event && (event->events & EPOLLET));
  return result;
}

CALL(KIT_FAIL_POLL, EMFILE, eventfd, (unsigned int value, int flags), (value, flags))
CALL(KIT_FAIL_POLL, EMFILE, pipe, (int fds[2]), (fds))
CALL(KIT_FAIL_POLL, EMFILE, pipe2, (int fds[2], int flags), (fds, flags))

/* `kind` 0: it can be interrupted only. */
#define WAIT(kind, name, params, args)                                                                     \
  PUBLIC int name params {                                                                                 \
    if (kit_fault_must_fail(kind, #name, ENOMEM, CALLER) || kit_fault_interrupts(CALLER)) return -1;       \
    NEXT(name);                                                                                            \
    return real args;                                                                                      \
  }

WAIT(KIT_FAIL_POLL, poll, (struct pollfd *fds, nfds_t n, int timeout), (fds, n, timeout))
WAIT(KIT_FAIL_POLL, ppoll, (struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask),
     (fds, n, timeout, mask))
WAIT(0, epoll_wait, (int ep, struct epoll_event *events, int n, int timeout), (ep, events, n, timeout))
WAIT(0, epoll_pwait, (int ep, struct epoll_event *events, int n, int timeout, const sigset_t *mask),
     (ep, events, n, timeout, mask))

/* Under _FORTIFY_SOURCE. */
int __poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t size);
int __ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask, size_t size);
WAIT(KIT_FAIL_POLL, __poll_chk, (struct pollfd *fds, nfds_t n, int timeout, size_t size), (fds, n, timeout, size))
WAIT(KIT_FAIL_POLL, __ppoll_chk, (struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask,
     size_t size), (fds, n, timeout, mask, size))

/* ---- threads ---- */

FORWARD(KIT_FAIL_THREAD, EAGAIN, -1, pid_t, fork, (void), ())

PUBLIC int pthread_create(pthread_t *restrict t, const pthread_attr_t *restrict attr, void *(*run)(void *),
                          void *restrict arg) {
  int saved = errno;
  if (kit_fault_must_fail(KIT_FAIL_THREAD, "pthread_create", EAGAIN, CALLER)) {
    errno = saved; /* it reports by its result */
    return EAGAIN;
  }
  NEXT(pthread_create);
  return real(t, attr, run, arg);
}

/* ---- files ---- */

CALL(KIT_FAIL_FILE, ENOMEM, getifaddrs, (struct ifaddrs **list), (list))
FORWARD(KIT_FAIL_FILE, ENOSYS, -1, ssize_t, getrandom, (void *p, size_t n, unsigned int flags), (p, n, flags))
FORWARD(KIT_FAIL_FILE, EMFILE, NULL, FILE *, fopen, (const char *restrict path, const char *restrict mode),
        (path, mode))
NAME_64(fopen64, fopen);
FORWARD(KIT_FAIL_FILE, EMFILE, NULL, DIR *, opendir, (const char *path), (path))

static mode_t mode_of(int flags, va_list ap) {
  return flags & (O_CREAT | __O_TMPFILE) ? (mode_t)va_arg(ap, int) : 0;
}

PUBLIC int open(const char *path, int flags, ...) {
  if (kit_fault_must_fail(KIT_FAIL_FILE, "open", EMFILE, CALLER)) return -1;
  va_list ap;
  va_start(ap, flags);
  mode_t mode = mode_of(flags, ap);
  va_end(ap);
  NEXT(open);
  return real(path, flags, mode);
}

PUBLIC int openat(int dir, const char *path, int flags, ...) {
  if (kit_fault_must_fail(KIT_FAIL_FILE, "openat", EMFILE, CALLER)) return -1;
  va_list ap;
  va_start(ap, flags);
  mode_t mode = mode_of(flags, ap);
  va_end(ap);
  NEXT(openat);
  return real(dir, path, flags, mode);
}

NAME_64(open64, open);
NAME_64(openat64, openat);

/* Under _FORTIFY_SOURCE, where the compiler does not see the flags. */
int __open_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);
CALL(KIT_FAIL_FILE, EMFILE, __open_2, (const char *path, int flags), (path, flags))
CALL(KIT_FAIL_FILE, EMFILE, __openat_2, (int dir, const char *path, int flags), (dir, path, flags))
NAME_64(__open64_2, __open_2);
NAME_64(__openat64_2, __openat_2);
