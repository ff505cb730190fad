/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the Nth call of a kind fail, for sweeps: run the same thing with
 * N = 1, 2, 3 … until it gets through without a failure; each run must end
 * with a clean error and nothing leaked. Loaded with LD_PRELOAD.
 *
 * Only calls made from our own code count, decided by the object that the
 * return address lies in; what libc, the loader or the sanitizers call for
 * themselves is left alone. The count runs over all threads of a process; a
 * forked child goes on with its parent's count.
 *
 * From a program (find them with dlsym(RTLD_DEFAULT, …), see test/harness/failnth.h):
 *   rail_failnth_arm(n, kinds)  start counting at 1, fail call n; n = 0 only counts
 *   rail_failnth_disarm()       stop; the count stays readable
 *   rail_failnth_seen()         calls counted since arm
 *   rail_failnth_hit()          name of the call that failed last, or NULL
 *
 * From outside, through the environment:
 *   RAIL_FAIL_NTH=n             arm at start-up
 *   RAIL_FAIL_KIND              alloc | syscall | all (default all)
 *   RAIL_FAIL_COUNT=m           fail m calls in a row instead of one
 *   RAIL_FAIL_IN=a,b            count calls from objects whose path contains a or b; "@program" is the
 *                               executable (default @program,librailyard.so,libnccl-net-)
 *   RAIL_FAIL_COUNT_FILE=path   each process appends a line "PID SEEN FAILED NAME" when it exits
 *   RAIL_FAIL_VERBOSE=1         say on stderr which call failed and where
 *
 * Not counted: read and write on anything but regular files and sockets (an
 * eventfd or pipe that exists cannot fail that way), and close and munmap,
 * whose failure nobody can act on.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { KIND_ALLOC = 1, KIND_SYSCALL = 2 };
enum { MAX_PARTS = 8, MAX_PART = 64 };

static atomic_int armed_kinds; /* 0: nothing is counted, calls go straight through */
static atomic_long seen_calls, failed_calls;
static atomic_long fail_from, fail_run = 1;
static _Atomic(const char *) last_hit;

static struct {
  char part[MAX_PARTS][MAX_PART];
  int n;
  bool program;
  bool verbose;
  char count_file[512];
} config;

void rail_failnth_arm(long n, int kinds);
void rail_failnth_disarm(void);
long rail_failnth_seen(void);
const char *rail_failnth_hit(void);

/* ---- whose call is it ------------------------------------------------- */

/* _dl_find_object takes no lock and allocates nothing, which dladdr and
 * dl_iterate_phdr do not promise; both would be fatal inside malloc. */
static bool is_ours(const void *caller) {
  struct dl_find_object found;
  if (_dl_find_object((void *)(uintptr_t)caller, &found) != 0) return false;
  const char *path = found.dlfo_link_map->l_name;
  if (!path[0]) return config.program;
  for (int i = 0; i < config.n; i++)
    if (strstr(path, config.part[i])) return true;
  return false;
}

static void tell(const char *name, long number, int error, const void *caller) {
  struct dl_find_object found;
  char text[256];
  bool known = _dl_find_object((void *)(uintptr_t)caller, &found) == 0;
  int len = snprintf(text, sizeof text, "failnth: call %ld, %s from %s+0x%zx, fails with errno %d\n", number, name,
                     known && found.dlfo_link_map->l_name[0] ? found.dlfo_link_map->l_name : "the program",
                     known ? (size_t)((uintptr_t)caller - found.dlfo_link_map->l_addr) : 0, error);
  if (len > 0) (void)!syscall(SYS_write, 2, text, (size_t)len);
}

/* Counts the call; true: it is its turn to fail. errno is touched only then. */
static bool must_fail(int kind, const char *name, int error, const void *caller) {
  if (!(atomic_load_explicit(&armed_kinds, memory_order_acquire) & kind) || !is_ours(caller)) return false;
  long number = atomic_fetch_add(&seen_calls, 1) + 1, from = atomic_load(&fail_from);
  if (from <= 0 || number < from || number >= from + atomic_load(&fail_run)) return false;
  atomic_fetch_add(&failed_calls, 1);
  atomic_store(&last_hit, name);
  if (config.verbose) tell(name, number, error, caller);
  errno = error;
  return true;
}

/* ---- control ---------------------------------------------------------- */

__attribute__((visibility("default"))) void rail_failnth_arm(long n, int kinds) {
  atomic_store(&armed_kinds, 0);
  atomic_store(&seen_calls, 0);
  atomic_store(&failed_calls, 0);
  atomic_store(&last_hit, NULL);
  atomic_store(&fail_from, n);
  atomic_store_explicit(&armed_kinds, kinds, memory_order_release);
}

__attribute__((visibility("default"))) void rail_failnth_disarm(void) { atomic_store(&armed_kinds, 0); }
__attribute__((visibility("default"))) long rail_failnth_seen(void) { return atomic_load(&seen_calls); }
__attribute__((visibility("default"))) const char *rail_failnth_hit(void) { return atomic_load(&last_hit); }

static int kinds_from(const char *word) {
  if (word && strcmp(word, "alloc") == 0) return KIND_ALLOC;
  if (word && strcmp(word, "syscall") == 0) return KIND_SYSCALL;
  return KIND_ALLOC | KIND_SYSCALL;
}

static void read_objects(const char *list) {
  while (*list) {
    size_t len = strcspn(list, ",");
    if (len == strlen("@program") && strncmp(list, "@program", len) == 0) {
      config.program = true;
    } else if (len > 0 && len < MAX_PART && config.n < MAX_PARTS) {
      memcpy(config.part[config.n], list, len);
      config.part[config.n++][len] = 0;
    }
    list += len + (list[len] == ',');
  }
}

__attribute__((constructor)) static void start(void) {
  const char *in = getenv("RAIL_FAIL_IN"), *nth = getenv("RAIL_FAIL_NTH"), *run = getenv("RAIL_FAIL_COUNT");
  const char *file = getenv("RAIL_FAIL_COUNT_FILE");
  read_objects(in ? in : "@program,librailyard.so,libnccl-net-");
  config.verbose = getenv("RAIL_FAIL_VERBOSE") != NULL;
  if (file) snprintf(config.count_file, sizeof config.count_file, "%s", file);
  if (run && atol(run) > 0) atomic_store(&fail_run, atol(run));
  if (nth) rail_failnth_arm(atol(nth), kinds_from(getenv("RAIL_FAIL_KIND")));
}

static void write_count(void) {
  if (!config.count_file[0]) return;
  rail_failnth_disarm();
  const char *hit = rail_failnth_hit();
  char text[128];
  int len = snprintf(text, sizeof text, "%d %ld %ld %s\n", (int)getpid(), atomic_load(&seen_calls),
                     atomic_load(&failed_calls), hit ? hit : "-");
  int fd = (int)syscall(SYS_openat, AT_FDCWD, config.count_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return;
  (void)!syscall(SYS_write, fd, text, (size_t)len);
  syscall(SYS_close, fd);
}

__attribute__((destructor)) static void stop(void) { write_count(); }

/* Children of a test often leave this way, past every destructor. */
__attribute__((visibility("default"))) void _exit(int status) {
  write_count();
  syscall(SYS_exit_group, status);
  __builtin_unreachable();
}

/* ---- the calls -------------------------------------------------------- */

/* glibc's own names: they need no look-up, which itself would allocate. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);
void *__libc_memalign(size_t align, size_t size);

#define PUBLIC __attribute__((visibility("default")))
#define CALLER __builtin_return_address(0)

/* The next definition of a function, looked up once. Two threads may both look; they find the same. */
#define NEXT(name)                                                                      \
  static _Atomic(void *) next_##name;                                                   \
  __typeof__(&name) real;                                                               \
  void *found = atomic_load_explicit(&next_##name, memory_order_relaxed);               \
  if (!found) atomic_store(&next_##name, found = dlsym(RTLD_NEXT, #name));              \
  memcpy(&real, &found, sizeof real)

PUBLIC void *malloc(size_t size) {
  return must_fail(KIND_ALLOC, "malloc", ENOMEM, CALLER) ? NULL : __libc_malloc(size);
}

PUBLIC void *calloc(size_t n, size_t size) {
  return must_fail(KIND_ALLOC, "calloc", ENOMEM, CALLER) ? NULL : __libc_calloc(n, size);
}

PUBLIC void *realloc(void *p, size_t size) {
  return must_fail(KIND_ALLOC, "realloc", ENOMEM, CALLER) ? NULL : __libc_realloc(p, size);
}

PUBLIC void *aligned_alloc(size_t align, size_t size) {
  return must_fail(KIND_ALLOC, "aligned_alloc", ENOMEM, CALLER) ? NULL : __libc_memalign(align, size);
}

PUBLIC int posix_memalign(void **p, size_t align, size_t size) {
  int saved = errno;
  if (must_fail(KIND_ALLOC, "posix_memalign", ENOMEM, CALLER)) {
    errno = saved; /* it reports by its result */
    return ENOMEM;
  }
  NEXT(posix_memalign);
  return real(p, align, size);
}

/* Forwarders of one shape: count, fail with BAD and errno, or pass on. */
#define FORWARD(kind, error, bad, type, name, params, args)        \
  PUBLIC type name params {                                        \
    if (must_fail(kind, #name, error, CALLER)) return bad;         \
    NEXT(name);                                                    \
    return real args;                                              \
  }

FORWARD(KIND_ALLOC, ENOMEM, NULL, char *, strdup, (const char *s), (s))
FORWARD(KIND_ALLOC, ENOMEM, NULL, char *, strndup, (const char *s, size_t n), (s, n))

#define CALL(error, name, params, args) FORWARD(KIND_SYSCALL, error, -1, int, name, params, args)

CALL(EMFILE, socket, (int domain, int type, int protocol), (domain, type, protocol))
CALL(EMFILE, socketpair, (int domain, int type, int protocol, int fds[2]), (domain, type, protocol, fds))
CALL(EADDRINUSE, bind, (int fd, const struct sockaddr *addr, socklen_t len), (fd, addr, len))
CALL(EADDRINUSE, listen, (int fd, int backlog), (fd, backlog))
CALL(EMFILE, accept4, (int fd, struct sockaddr *restrict addr, socklen_t *restrict len, int flags),
     (fd, addr, len, flags))
CALL(ENETUNREACH, connect, (int fd, const struct sockaddr *addr, socklen_t len), (fd, addr, len))
CALL(ENOBUFS, getsockname, (int fd, struct sockaddr *restrict addr, socklen_t *restrict len), (fd, addr, len))
CALL(ENOTCONN, getpeername, (int fd, struct sockaddr *restrict addr, socklen_t *restrict len), (fd, addr, len))
CALL(ENOMEM, setsockopt, (int fd, int level, int name, const void *value, socklen_t len), (fd, level, name, value, len))
CALL(ENOBUFS, getsockopt, (int fd, int level, int name, void *restrict value, socklen_t *restrict len),
     (fd, level, name, value, len))
CALL(EMFILE, epoll_create1, (int flags), (flags))
CALL(ENOMEM, epoll_ctl, (int ep, int op, int fd, struct epoll_event *event), (ep, op, fd, event))
CALL(EMFILE, eventfd, (unsigned int value, int flags), (value, flags))
CALL(EMFILE, pipe2, (int fds[2], int flags), (fds, flags))
CALL(EMFILE, shm_open, (const char *name, int flags, mode_t mode), (name, flags, mode))
CALL(ENOSPC, ftruncate, (int fd, off_t len), (fd, len))
CALL(EMFILE, memfd_create, (const char *name, unsigned int flags), (name, flags))
CALL(ENOMEM, getifaddrs, (struct ifaddrs **list), (list))
CALL(ENOMEM, poll, (struct pollfd *fds, nfds_t n, int timeout), (fds, n, timeout))
FORWARD(KIND_SYSCALL, EAGAIN, -1, pid_t, fork, (void), ())
FORWARD(KIND_SYSCALL, ENOSYS, -1, ssize_t, getrandom, (void *p, size_t n, unsigned int flags), (p, n, flags))
FORWARD(KIND_SYSCALL, ENOMEM, MAP_FAILED, void *, mmap, (void *p, size_t n, int prot, int flags, int fd, off_t at),
        (p, n, prot, flags, fd, at))
FORWARD(KIND_SYSCALL, EMFILE, NULL, FILE *, fopen, (const char *restrict path, const char *restrict mode),
        (path, mode))
FORWARD(KIND_SYSCALL, EMFILE, NULL, DIR *, opendir, (const char *path), (path))
FORWARD(KIND_SYSCALL, ECONNRESET, -1, ssize_t, send, (int fd, const void *p, size_t n, int flags), (fd, p, n, flags))
FORWARD(KIND_SYSCALL, ECONNRESET, -1, ssize_t, recv, (int fd, void *p, size_t n, int flags), (fd, p, n, flags))
FORWARD(KIND_SYSCALL, ECONNRESET, -1, ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
FORWARD(KIND_SYSCALL, ECONNRESET, -1, ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags))

/* read and its kin serve files, sockets and wake-up descriptors alike. */
static bool can_fail_io(int fd) {
  struct stat st;
  if (!atomic_load_explicit(&armed_kinds, memory_order_relaxed)) return false;
  return fstat(fd, &st) == 0 && (S_ISREG(st.st_mode) || S_ISSOCK(st.st_mode));
}

#define FORWARD_IO(error, name, params, args)                                                    \
  PUBLIC ssize_t name params {                                                                   \
    int saved = errno;                                                                           \
    if (can_fail_io(fd) && must_fail(KIND_SYSCALL, #name, error, CALLER)) return -1;             \
    errno = saved;                                                                               \
    NEXT(name);                                                                                  \
    return real args;                                                                            \
  }

FORWARD_IO(ECONNRESET, read, (int fd, void *p, size_t n), (fd, p, n))
FORWARD_IO(ECONNRESET, write, (int fd, const void *p, size_t n), (fd, p, n))
FORWARD_IO(ECONNRESET, readv, (int fd, const struct iovec *v, int n), (fd, v, n))
FORWARD_IO(ECONNRESET, writev, (int fd, const struct iovec *v, int n), (fd, v, n))

PUBLIC int pthread_create(pthread_t *restrict t, const pthread_attr_t *restrict attr, void *(*run)(void *),
                          void *restrict arg) {
  int saved = errno;
  if (must_fail(KIND_SYSCALL, "pthread_create", EAGAIN, CALLER)) {
    errno = saved; /* it reports by its result */
    return EAGAIN;
  }
  NEXT(pthread_create);
  return real(t, attr, run, arg);
}

static mode_t mode_of(int flags, va_list ap) {
  return flags & (O_CREAT | __O_TMPFILE) ? (mode_t)va_arg(ap, int) : 0;
}

PUBLIC int open(const char *path, int flags, ...) {
  if (must_fail(KIND_SYSCALL, "open", EMFILE, CALLER)) return -1;
  va_list ap;
  va_start(ap, flags);
  mode_t mode = mode_of(flags, ap);
  va_end(ap);
  NEXT(open);
  return real(path, flags, mode);
}

PUBLIC int openat(int dir, const char *path, int flags, ...) {
  if (must_fail(KIND_SYSCALL, "openat", EMFILE, CALLER)) return -1;
  va_list ap;
  va_start(ap, flags);
  mode_t mode = mode_of(flags, ap);
  va_end(ap);
  NEXT(openat);
  return real(dir, path, flags, mode);
}
