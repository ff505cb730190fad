/* SPDX-License-Identifier: Apache-2.0
 * Rings, and the thread that empties them. */
#include "plugin/railtrace/tr_record.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/base/compiler.h"
#include "common/base/log.h"
#include "plugin/railtrace/tr_param.h"

#define PERIOD_NS 10000000  /* between two rounds while calls come */
#define IDLE_NS 50000000    /* and while none do */
#define TR_PATH_MAX 4096

/* ---- the file's name: %h, %p, and names that are taken ---- */

#define MAX_COPIES 1000

static void host_name(char *to, size_t size) {
  if (gethostname(to, size) != 0) snprintf(to, size, "unknown");
  to[size - 1] = 0;
}

/* False: it is too long. */
static bool expand(const char *pattern, char path[TR_PATH_MAX]) {
  size_t used = 0;
  for (const char *p = pattern; *p; p++) {
    char piece[256] = {*p, 0};
    if (p[0] == '%' && p[1] == 'h') host_name(piece, sizeof piece);
    if (p[0] == '%' && p[1] == 'p') snprintf(piece, sizeof piece, "%d", (int)getpid());
    if (p[0] == '%' && p[1] && strchr("hp%", p[1])) p++;
    size_t len = strlen(piece);
    if (used + len + sizeof ".1000" > TR_PATH_MAX) return false;
    memcpy(path + used, piece, len);
    used += len;
  }
  path[used] = 0;
  return used > 0;
}

/* Makes the file that `pattern` names (%h host, %p process, %% a percent sign); one that exists is kept, and ".2", ".3"
 * … are tried. Returns its descriptor, or -1 after a line in the log. */
static int create_file(const char *pattern, char path[TR_PATH_MAX]) {
  if (!expand(pattern, path)) {
    RAIL_WARN("RAIL_TRACE_FILE=%s: not a file's name, or one too long; nothing is recorded", pattern);
    path[0] = 0;
    return -1;
  }
  size_t len = strlen(path);
  int fd = -1;
  for (int copy = 1; fd < 0 && copy <= MAX_COPIES; copy++) {
    if (copy > 1) snprintf(path + len, TR_PATH_MAX - len, ".%d", copy);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 && errno != EEXIST) break;
  }
  if (fd < 0) {
    RAIL_WARN("RAIL_TRACE_FILE: %s: %s; nothing is recorded", path, strerror(errno));
    path[0] = 0;
  }
  return fd;
}

/* One calling thread. The first part is the caller's, the second the writer's. */
struct ring {
  RAIL_ALIGNED(RAIL_CACHELINE) _Atomic uint64_t head; /* bytes ever put in */
  uint64_t tail_seen;                                 /* the writer's tail, when the caller last looked */
  uint64_t before;                                    /* time of the last record */
  _Atomic uint64_t calls, dropped;                    /* written by the caller alone */
  uint64_t unreported;                                    /* dropped, and no record says so yet */
  atomic_bool exited;                                 /* the thread has ended */
  RAIL_ALIGNED(RAIL_CACHELINE) _Atomic uint64_t tail; /* bytes ever taken out */
  bool registered;                                    /* the thread is in the file */
  uint32_t thread;
  uint64_t tid;
  char name[16];
  uint64_t size; /* a power of 2 */
  struct ring *next;
  uint8_t bytes[];
};

static struct {
  atomic_bool on, full, failed; /* full: the file takes no more calls; failed: it cannot be written */
  int fd;
  char path[TR_PATH_MAX];
  uint64_t clock_ns, written;
  pthread_t writer;
  _Atomic(struct ring *) new_rings; /* not the writer's yet: callers take no lock that it holds while it writes */
  _Atomic uint32_t threads;
  pthread_mutex_t lock; /* guards what follows, and draining */
  pthread_cond_t wake;
  bool stop;
  struct ring *rings;
  uint64_t past_calls, past_dropped; /* of rings whose threads have exited */
} rec = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static pthread_key_t key;
static bool has_key;
static __thread struct ring *mine;

/* ---- threads ----------------------------------------------------------- */

static void thread_ends(void *arg) {
  struct ring *r = arg;
  atomic_store_explicit(&r->exited, true, memory_order_release);
}

static uint64_t floor_power(uint64_t v) {
  while (v & (v - 1)) v &= v - 1;
  return v;
}

/* A thread's first call: the only one that allocates. */
RAIL_COLD static struct ring *ring_create(void) {
  uint64_t size = floor_power((uint64_t)RAIL_MIN(tr_params.buffer, tr_params.limit / 16));
  struct ring *r = aligned_alloc(RAIL_CACHELINE, RAIL_ROUND_UP(sizeof *r + size, RAIL_CACHELINE));
  if (!r) return NULL;
  memset(r, 0, sizeof *r);
  r->size = size;
  r->tid = (uint64_t)syscall(SYS_gettid);
  (void)prctl(PR_GET_NAME, r->name);
  r->thread = atomic_fetch_add(&rec.threads, 1) + 1;
  r->next = atomic_load(&rec.new_rings);
  while (!atomic_compare_exchange_weak(&rec.new_rings, &r->next, r)) continue;
  mine = r;
  if (has_key) (void)pthread_setspecific(key, r);
  return r;
}

static inline struct ring *my_ring(void) { return rail_likely(mine != NULL) ? mine : ring_create(); }

/* One writer for each of these counters: no locked instruction is needed. */
static inline void add(_Atomic uint64_t *to, uint64_t n) {
  atomic_store_explicit(to, atomic_load_explicit(to, memory_order_relaxed) + n, memory_order_relaxed);
}

/* ---- the caller's side ------------------------------------------------- */

static bool has_room(struct ring *r, uint64_t head, size_t size) {
  if (head + size - r->tail_seen <= r->size) return true;
  r->tail_seen = atomic_load_explicit(&r->tail, memory_order_acquire);
  return head + size - r->tail_seen <= r->size;
}

static void copy_in(struct ring *r, uint64_t head, const uint8_t *from, size_t size) {
  uint64_t at = head & (r->size - 1), first = RAIL_MIN(size, r->size - at);
  memcpy(r->bytes + at, from, first);
  memcpy(r->bytes, from + first, size - first);
}

static bool push(struct ring *r, const struct rail_trace_event *e) {
  uint8_t record[RAIL_TRACE_MAX_RECORD];
  uint64_t before = r->before, head = atomic_load_explicit(&r->head, memory_order_relaxed);
  size_t size = rail_trace_put_event(record, e, &before);
  if (!has_room(r, head, size)) return false;
  copy_in(r, head, record, size);
  r->before = before;
  atomic_store_explicit(&r->head, head + size, memory_order_release);
  return true;
}

RAIL_COLD static bool record_dropped(struct ring *r, uint64_t ns) {
  const struct rail_trace_event e = {.kind = RAIL_TRACE_DROPPED, .ns = ns, .value = r->unreported};
  if (!push(r, &e)) return false;
  r->unreported = 0;
  return true;
}

void tr_record(struct rail_trace_event *e) {
  if (!atomic_load_explicit(&rec.on, memory_order_relaxed)) return;
  struct ring *r = my_ring();
  if (rail_unlikely(!r)) return;
  bool call = e->kind != RAIL_TRACE_FINDING;
  if (call) add(&r->calls, 1);
  e->ns -= RAIL_MIN(e->ns, rec.clock_ns);
  if (rail_likely(!atomic_load_explicit(&rec.full, memory_order_relaxed)) &&
      (rail_likely(!r->unreported) || record_dropped(r, e->ns)) && push(r, e))
    return;
  if (!call) return; /* findings have counters of their own */
  r->unreported++;
  add(&r->dropped, 1);
}

struct tr_call_name tr_call_name(void) {
  struct ring *r = atomic_load_explicit(&rec.on, memory_order_relaxed) ? my_ring() : NULL;
  if (!r) return (struct tr_call_name){0};
  return (struct tr_call_name){r->thread, atomic_load_explicit(&r->calls, memory_order_relaxed) + 1};
}

/* ---- the file ---------------------------------------------------------- */

/* Writes all, or stops recording: an error of the file must not fail a call, so it is logged once. */
static bool write_all(struct iovec *v, int n) {
  while (n > 0) {
    ssize_t wrote = writev(rec.fd, v, n);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      if (atomic_load(&rec.failed)) return false;
      atomic_store(&rec.failed, true);
      RAIL_WARN("%s: %s; from here on calls are not recorded", rec.path, strerror(errno));
      atomic_store(&rec.full, true);
      return false;
    }
    rec.written += (uint64_t)wrote;
    while (n > 0 && (size_t)wrote >= v->iov_len) {
      wrote -= (ssize_t)v->iov_len;
      v++;
      n--;
    }
    if (n > 0) {
      v->iov_base = (char *)v->iov_base + wrote;
      v->iov_len -= (size_t)wrote;
    }
  }
  return true;
}

static bool write_chunk(enum rail_trace_chunk_kind kind, uint32_t thread, const void *first, size_t nfirst,
                        const void *second, size_t nsecond) {
  uint8_t header[RAIL_TRACE_CHUNK_HEADER];
  rail_trace_put_chunk(header, kind, thread, first, nfirst, second, nsecond);
  struct iovec v[3] = {
    {header, sizeof header}, {(void *)(uintptr_t)first, nfirst}, {(void *)(uintptr_t)second, nsecond}};
  return write_all(v, 3);
}

static bool write_thread(struct ring *r) {
  uint8_t bytes[64];
  size_t size = rail_trace_put_thread(bytes, r->tid, r->name);
  r->registered = write_chunk(RAIL_TRACE_CHUNK_THREAD, r->thread, bytes, size, NULL, 0);
  return r->registered;
}

static bool drain(struct ring *r) {
  uint64_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
  uint64_t head = atomic_load_explicit(&r->head, memory_order_acquire), size = head - tail;
  if (size == 0) return false;
  if (r->registered || write_thread(r)) {
    uint64_t at = tail & (r->size - 1), first = RAIL_MIN(size, r->size - at);
    (void)write_chunk(RAIL_TRACE_CHUNK_CALLS, r->thread, r->bytes + at, first, r->bytes, size - first);
  }
  atomic_store_explicit(&r->tail, head, memory_order_release);
  return true;
}

/* What is in the rings already is always written, so the callers are stopped while there is room for all rings: once
 * for what they hold now, once for what they put in before they see the word. */
static void check_limit(void) {
  uint64_t room = RAIL_TRACE_CHUNK_HEADER + 1024;
  for (struct ring *r = rec.rings; r; r = r->next) room += 2 * (r->size + 4 * RAIL_TRACE_CHUNK_HEADER);
  if (rec.written + room > (uint64_t)tr_params.limit) atomic_store(&rec.full, true);
}

static void forget(struct ring **at) {
  struct ring *r = *at;
  *at = r->next;
  rec.past_calls += atomic_load_explicit(&r->calls, memory_order_relaxed);
  rec.past_dropped += atomic_load_explicit(&r->dropped, memory_order_relaxed);
  free(r);
}

/* Under the lock. */
static void take_new_rings(void) {
  struct ring *r = atomic_exchange(&rec.new_rings, NULL);
  while (r) {
    struct ring *next = r->next;
    r->next = rec.rings;
    rec.rings = r;
    r = next;
  }
}

/* Under the lock. */
static bool drain_all(void) {
  bool any = false;
  take_new_rings();
  for (struct ring **at = &rec.rings; *at;) {
    bool exited = atomic_load_explicit(&(*at)->exited, memory_order_acquire); /* before the last look */
    any |= drain(*at);
    if (exited) forget(at);
    else at = &(*at)->next;
  }
  check_limit();
  return any;
}

static void *writer(void *unused) {
  (void)unused;
  (void)prctl(PR_SET_NAME, "railtrace");
  pthread_mutex_lock(&rec.lock);
  while (!rec.stop) {
    uint64_t ns = drain_all() ? PERIOD_NS : IDLE_NS;
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    ns += (uint64_t)at.tv_nsec;
    at.tv_sec += (time_t)(ns / 1000000000);
    at.tv_nsec = (long)(ns % 1000000000);
    (void)pthread_cond_timedwait(&rec.wake, &rec.lock, &at);
  }
  pthread_mutex_unlock(&rec.lock);
  return NULL;
}

/* ---- open, flush, close ------------------------------------------------ */

/* The thread is not in the child, and the file is the parent's. Nor is the one that may have held the lock. */
static void after_fork_child(void) {
  atomic_store(&rec.on, false);
  pthread_mutex_init(&rec.lock, NULL);
  if (rec.fd >= 0) close(rec.fd);
  rec.fd = -1;
  rec.rings = NULL;
  atomic_store(&rec.new_rings, NULL);
  mine = NULL;
}

static bool start_writer(void) {
  pthread_condattr_t attr;
  if (pthread_condattr_init(&attr) != 0) return false;
  (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  bool ok = pthread_cond_init(&rec.wake, &attr) == 0;
  pthread_condattr_destroy(&attr);
  if (!ok) return false;
  if (!has_key) has_key = pthread_key_create(&key, thread_ends) == 0;
  return has_key && pthread_atfork(NULL, NULL, after_fork_child) == 0 &&
         pthread_create(&rec.writer, NULL, writer, NULL) == 0;
}

void tr_record_open(const struct rail_trace_header *header) {
  uint8_t bytes[RAIL_TRACE_HEADER_MAX];
  static bool tried;
  if (tried || !strcmp(tr_params.file, "none")) return;
  tried = true;
  rec.fd = create_file(tr_params.file, rec.path);
  if (rec.fd < 0) return;
  rec.clock_ns = header->clock_ns;
  struct iovec v = {bytes, rail_trace_put_header(bytes, header)};
  if (!write_all(&v, 1) || !start_writer()) {
    RAIL_WARN("%s: calls cannot be recorded", rec.path);
    close(rec.fd);
    rec.fd = -1;
    rec.path[0] = 0;
    return;
  }
  atomic_store(&rec.on, true);
}

void tr_record_flush(void) {
  if (!atomic_load(&rec.on)) return;
  pthread_mutex_lock(&rec.lock);
  (void)drain_all();
  pthread_mutex_unlock(&rec.lock);
}

void tr_record_close(const struct rail_trace_end *end) {
  uint8_t bytes[1024];
  struct rail_trace_end e = *end;
  if (!atomic_exchange(&rec.on, false)) return;
  pthread_mutex_lock(&rec.lock);
  rec.stop = true;
  pthread_cond_signal(&rec.wake);
  pthread_mutex_unlock(&rec.lock);
  pthread_join(rec.writer, NULL);
  (void)drain_all();
  e.limited = atomic_load(&rec.full);
  e.dropped = tr_dropped();
  e.recorded = tr_recorded() - e.dropped;
  (void)write_chunk(RAIL_TRACE_CHUNK_END, 0, bytes, rail_trace_put_end(bytes, &e), NULL, 0);
  close(rec.fd);
  rec.fd = -1;
  (void)pthread_key_delete(key); /* threads that end later must not call into a library that is gone */
  has_key = false;
  /* At exit other threads may still be in a call: their rings stay. */
  for (struct ring **at = &rec.rings; *at;) {
    if (*at == mine || atomic_load(&(*at)->exited)) forget(at);
    else at = &(*at)->next;
  }
  mine = NULL;
}

static uint64_t sum(size_t offset, uint64_t past) {
  uint64_t total = past;
  take_new_rings();
  for (struct ring *r = rec.rings; r; r = r->next)
    total += atomic_load_explicit((_Atomic uint64_t *)(void *)((char *)r + offset), memory_order_relaxed);
  return total;
}

uint64_t tr_recorded(void) {
  pthread_mutex_lock(&rec.lock);
  uint64_t n = sum(offsetof(struct ring, calls), rec.past_calls);
  pthread_mutex_unlock(&rec.lock);
  return n;
}

uint64_t tr_dropped(void) {
  pthread_mutex_lock(&rec.lock);
  uint64_t n = sum(offsetof(struct ring, dropped), rec.past_dropped);
  pthread_mutex_unlock(&rec.lock);
  return n;
}

const char *tr_record_path(void) { return rec.path; }
