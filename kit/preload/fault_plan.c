/* SPDX-License-Identifier: Apache-2.0
 *
 * Which call fails, or is cut short. Only calls made from the code under test
 * count, decided by the object that the return address lies in; what libc,
 * the loader, the sanitizers and the program call for themselves is left
 * alone. The count runs over all threads of a process; a forked child goes on
 * with its parent's count.
 *
 * From a program: kit/preload/preload.h. From outside, through the environment:
 *   RAIL_FAIL_NTH=n             arm at start-up
 *   RAIL_FAIL_KIND              alloc | syscall | verbs | post | all (default all)
 *   RAIL_FAIL_COUNT=m           fail m calls in a row instead of one
 *   RAIL_FAIL_IN=a,b            count calls from objects whose path contains a or b; "@program" is the executable,
 *                               "@later" whatever is loaded after the start: a plugin and the libraries it brings
 *                               (default @later)
 *   RAIL_FAIL_COUNT_FILE=path   each process appends a line "PID SEEN FAILED NAME" when it exits
 *   RAIL_FAIL_VERBOSE=1         say on stderr which call failed and where
 */
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kit/preload/fault.h"

enum { MAX_PARTS = 8, MAX_PART = 64, MAX_EARLY = 64, PLACES = 1021 };

static atomic_int armed_kinds; /* 0: nothing is counted, calls go straight through */
static atomic_long seen_calls, failed_calls;
static atomic_long fail_from, fail_run = 1;
static _Atomic(const char *) last_hit;

static atomic_size_t piece; /* 0: transfers are whole */
static atomic_int buffer;   /* 0: buffers are free */
static atomic_int one_in;   /* calls is interrupted; 0: none */
static atomic_long shaped_calls;
static _Atomic uint64_t rng_state;

static struct {
  char part[MAX_PARTS][MAX_PART];
  int n;
  const struct link_map *early[MAX_EARLY]; /* what was there at the start */
  int nearly;
  bool program, later, verbose;
  char count_file[512];
} config;

void rail_fault_arm(long n, int kinds);
void rail_fault_disarm(void);
long rail_fault_seen(void);
const char *rail_fault_hit(void);
void rail_fault_shape(size_t bytes, int size, int interrupt, uint64_t seed);
long rail_fault_shaped(void);

/* ---- whose call is it ------------------------------------------------- */

/* _dl_find_object takes no lock and allocates nothing, which dladdr and
 * dl_iterate_phdr do not promise; both would be fatal inside malloc. */
bool kit_fault_is_ours(const void *caller) {
  struct dl_find_object found;
  if (_dl_find_object((void *)(uintptr_t)caller, &found) != 0) return false;
  const struct link_map *map = found.dlfo_link_map;
  if (!map->l_name[0]) return config.program;
  for (int i = 0; i < config.n; i++)
    if (strstr(map->l_name, config.part[i])) return true;
  for (int i = 0; i < config.nearly && config.later; i++)
    if (config.early[i] == map) return false;
  return config.later;
}

static void report(const char *name, long number, int error, const void *caller) {
  struct dl_find_object found;
  char text[256];
  bool known = _dl_find_object((void *)(uintptr_t)caller, &found) == 0;
  int len = snprintf(text, sizeof text, "rail-fault: call %ld, %s from %s+0x%zx, fails with errno %d\n", number, name,
                     known && found.dlfo_link_map->l_name[0] ? found.dlfo_link_map->l_name : "the program",
                     known ? (size_t)((uintptr_t)caller - found.dlfo_link_map->l_addr) : 0, error);
  if (len > 0) (void)!syscall(SYS_write, 2, text, (size_t)len);
}

bool kit_fault_armed(void) { return atomic_load_explicit(&armed_kinds, memory_order_relaxed) != 0; }

bool kit_fault_must_fail(int kind, const char *name, int error, const void *caller) {
  if (!(atomic_load_explicit(&armed_kinds, memory_order_acquire) & kind) || !kit_fault_is_ours(caller)) return false;
  long number = atomic_fetch_add(&seen_calls, 1) + 1, from = atomic_load(&fail_from);
  if (from <= 0 || number < from || number >= from + atomic_load(&fail_run)) return false;
  atomic_fetch_add(&failed_calls, 1);
  atomic_store(&last_hit, name);
  if (config.verbose) report(name, number, error, caller);
  errno = error;
  return true;
}

/* ---- less than asked for ---------------------------------------------- */

static uint64_t next_random(void) { /* splitmix64, shared by all threads */
  uint64_t x = atomic_fetch_add_explicit(&rng_state, 0x9e3779b97f4a7c15ull, memory_order_relaxed);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

static bool is_stream(int fd) {
  int type = 0, saved = errno;
  socklen_t size = sizeof type;
  bool stream = syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
  errno = saved;
  return stream;
}

#define EDGES 65536 /* descriptors beyond are cut */
static atomic_bool has_edges[EDGES];

void kit_fault_edges(int fd, bool edges) {
  if (fd >= 0 && fd < EDGES) atomic_store_explicit(&has_edges[fd], edges, memory_order_relaxed);
}

static bool waits_for_edges(int fd) {
  return fd >= 0 && fd < EDGES && atomic_load_explicit(&has_edges[fd], memory_order_relaxed);
}

size_t kit_fault_cut(int fd, size_t n, int flags, const void *caller) {
  size_t most = atomic_load_explicit(&piece, memory_order_relaxed);
  bool whole = most == 0 || n < 2 || (flags & (MSG_WAITALL | MSG_PEEK)) || waits_for_edges(fd);
  if (whole || !kit_fault_is_ours(caller) || !is_stream(fd)) return n;
  uint64_t r = next_random();
  size_t allowed = r % 8 == 0 ? 1 : 1 + (size_t)((r >> 8) % most);
  if (allowed >= n) return n;
  atomic_fetch_add(&shaped_calls, 1);
  return allowed;
}

int kit_fault_buffer(const void *caller) {
  int size = atomic_load_explicit(&buffer, memory_order_relaxed);
  if (size == 0 || !kit_fault_is_ours(caller)) return 0;
  atomic_fetch_add(&shaped_calls, 1);
  return size;
}

/* Has this place of the code never asked before? */
static bool is_first(const void *caller) {
  static _Atomic(const void *) places[PLACES];
  for (unsigned i = 0; i < PLACES; i++) { /* the place that follows, where another one is there */
    const void *there = NULL;
    if (atomic_compare_exchange_strong(&places[((uintptr_t)caller + i) % PLACES], &there, caller)) return true;
    if (there == caller) return false;
  }
  return false;
}

bool kit_fault_interrupts(const void *caller) {
  int n = atomic_load_explicit(&one_in, memory_order_relaxed);
  if (n == 0 || !kit_fault_is_ours(caller) || (!is_first(caller) && next_random() % (uint64_t)n != 0)) return false;
  atomic_fetch_add(&shaped_calls, 1);
  errno = EINTR;
  return true;
}

/* ---- control ---------------------------------------------------------- */

PUBLIC void rail_fault_arm(long n, int kinds) {
  atomic_store(&armed_kinds, 0);
  atomic_store(&seen_calls, 0);
  atomic_store(&failed_calls, 0);
  atomic_store(&last_hit, NULL);
  atomic_store(&fail_from, n);
  atomic_store_explicit(&armed_kinds, kinds, memory_order_release);
}

PUBLIC void rail_fault_disarm(void) { atomic_store(&armed_kinds, 0); }
PUBLIC long rail_fault_seen(void) { return atomic_load(&seen_calls); }
PUBLIC const char *rail_fault_hit(void) { return atomic_load(&last_hit); }

PUBLIC void rail_fault_shape(size_t bytes, int size, int interrupt, uint64_t seed) {
  atomic_store(&rng_state, seed);
  atomic_store(&shaped_calls, 0);
  atomic_store(&piece, bytes);
  atomic_store(&buffer, size);
  atomic_store(&one_in, interrupt);
}

PUBLIC long rail_fault_shaped(void) { return atomic_load(&shaped_calls); }

/* A sweep that is set wrongly would fail nothing, or something else. */
static _Noreturn void refuse(const char *name, const char *value, const char *allowed) {
  char text[512];
  int len = snprintf(text, sizeof text, "rail-fault: %s='%.200s'; allowed: %s\n", name, value, allowed);
  (void)!syscall(SYS_write, 2, text, (size_t)len);
  _exit(2);
}

/* The variable's number, from `least` on; `otherwise` where it is not set. */
static long number_from(const char *name, long least, long otherwise) {
  const char *text = getenv(name);
  char *end;
  if (!text) return otherwise;
  errno = 0;
  long value = strtol(text, &end, 10);
  if (!*text || *end || errno || value < least) refuse(name, text, least ? "a number from 1" : "a number from 0");
  return value;
}

static int kinds_from(const char *name) {
  static const struct { const char *word; int kinds; } known[] = {
      {"all", KIT_FAIL_ALL}, {"alloc", KIT_FAIL_ALLOC}, {"syscall", KIT_FAIL_SYSCALL}, {"verbs", KIT_FAIL_VERBS},
      {"post", KIT_FAIL_POST}};
  const char *word = getenv(name);
  if (!word) return KIT_FAIL_ALL;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(known[i].word, word) == 0) return known[i].kinds;
  refuse(name, word, "alloc, syscall, verbs, post, all");
}

static void read_objects(const char *list) {
  const char *all = list;
  while (*list) {
    size_t len = strcspn(list, ",");
    if (len == strlen("@program") && strncmp(list, "@program", len) == 0) {
      config.program = true;
    } else if (len == strlen("@later") && strncmp(list, "@later", len) == 0) {
      config.later = true;
    } else if (len >= MAX_PART || config.n == MAX_PARTS) {
      refuse("RAIL_FAIL_IN", all, "up to 8 parts of paths, of less than 64 characters each");
    } else if (len > 0) {
      memcpy(config.part[config.n], list, len);
      config.part[config.n++][len] = 0;
    }
    list += len + (list[len] == ',');
  }
}

static void note_early(void) {
  void *self = dlopen(NULL, RTLD_LAZY);
  struct link_map *map = NULL;
  if (!self || dlinfo(self, RTLD_DI_LINKMAP, &map) != 0) return;
  for (; map && config.nearly < MAX_EARLY; map = map->l_next) config.early[config.nearly++] = map;
  dlclose(self);
}

__attribute__((constructor)) static void start(void) {
  const char *in = getenv("RAIL_FAIL_IN");
  long nth = number_from("RAIL_FAIL_NTH", 0, -1);
  int kinds = kinds_from("RAIL_FAIL_KIND");
  const char *file = getenv("RAIL_FAIL_COUNT_FILE");
  note_early();
  read_objects(in ? in : "@later");
  config.verbose = getenv("RAIL_FAIL_VERBOSE") != NULL;
  if (file) snprintf(config.count_file, sizeof config.count_file, "%s", file);
  atomic_store(&fail_run, number_from("RAIL_FAIL_COUNT", 1, 1));
  if (nth >= 0) rail_fault_arm(nth, kinds);
}

static void write_count(void) {
  if (!config.count_file[0]) return;
  rail_fault_disarm();
  const char *hit = rail_fault_hit();
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
PUBLIC void _exit(int status) {
  write_count();
  syscall(SYS_exit_group, status);
  __builtin_unreachable();
}
