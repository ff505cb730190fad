/* SPDX-License-Identifier: Apache-2.0
 *
 * The writer of a page. Opening, taking and dropping are rare and go under one
 * lock; counting happens in the caller, on memory that is its own.
 *
 * Shared memory has two traps, and both would kill the process that only wanted
 * to count. Writing to a page that tmpfs has no room for is SIGBUS: so bytes
 * are allocated (fallocate) before they are touched. And a forked child shares
 * the mapping: so a handler puts private memory in its place, at the same
 * addresses, before the child runs.
 */
#include "common/obs/stats.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/param.h"
#include "common/obs/stats_page.h"

#define COPIES 16 /* pages of one name in one process: a plugin may be loaded twice */
#define CLEANED 128 /* pages at which a new process looks whether theirs are dead: not those of a thousand ranks */

struct group {
  uint32_t ncounters, max, record_size;
  uint32_t used;
  uint64_t counters_at, records_at;
  uint8_t *taken; /* private, where no other process can write */
};

struct rail_stats {
  struct rail_stats *next;
  uint8_t *page; /* NULL: all records are private */
  uint64_t size;
  int fd;           /* of the file; -1: the page is not, or no longer, in one */
  pid_t owner;      /* of the file */
  char path[128];   /* "": nothing to remove */
  uint32_t records; /* taken, private ones too */
  bool closed;
  uint32_t ngroups;
  struct group groups[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list, and the pages but for values */
static struct rail_stats *pages;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool fork_is_safe;
static struct { int64_t on; } params;

static const struct rail_param rows[] = {
  {.name = "RAIL_STATS", .type = RAIL_PARAM_BOOL, .def = "1", .lo = 0, .hi = 1, .offset = 0,
   .doc = "Counters are kept in shared memory, a file /dev/shm/rail-stat.PID.NAME that rail-stat reads; 0: in "
          "memory of the process."},
};
const struct rail_param_table rail_stats_param_table = {
  .module = "stats", .rows = rows, .count = RAIL_COUNT_OF(rows)};

/* ---- fork, exit -------------------------------------------------------- */

static void before_fork(void) { pthread_mutex_lock(&lock); }

static void after_fork_parent(void) { pthread_mutex_unlock(&lock); }

static void after_fork_child(void) {
  for (struct rail_stats *s = pages; s; s = s->next) {
    if (s->fd < 0) continue;
    (void)!mmap(s->page, s->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    close(s->fd);
    s->fd = -1;
    s->path[0] = 0;
  }
  pthread_mutex_unlock(&lock);
}

static void prepare(void) {
  rail_param_load(&rail_stats_param_table, &params);
  fork_is_safe = pthread_atfork(before_fork, after_fork_parent, after_fork_child) == 0;
}

/* The pid is compared for a child that was made by a bare clone(), without the handlers. */
static void remove_file(struct rail_stats *s) {
  if (s->path[0] && s->owner == getpid()) unlink(s->path);
  s->path[0] = 0;
}

/* A process that exits or unloads without closing leaves no file either. */
__attribute__((destructor)) static void remove_files(void) {
  pthread_mutex_lock(&lock);
  for (struct rail_stats *s = pages; s; s = s->next) remove_file(s);
  pthread_mutex_unlock(&lock);
}

/* ---- the file ---------------------------------------------------------- */

/* Bytes [from, from + count) become real memory. -1 with errno. */
static int allocate(const struct rail_stats *s, uint64_t from, uint64_t count) {
  if (s->fd < 0) return 0;
  int r;
  do r = fallocate(s->fd, 0, (off_t)from, (off_t)count);
  while (r != 0 && errno == EINTR);
  return r;
}

/* A text field; the rest of it is 0 already. */
static void put_text(char *to, size_t size, const char *text) { memcpy(to, text, strnlen(text, size - 1)); }

static void put_process_name(char *to, size_t size) {
  char text[RAIL_STATS_NAME] = "";
  int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
  if (fd >= 0) close(fd);
  text[n > 0 ? n : 0] = 0;
  text[strcspn(text, "\n")] = 0;
  put_text(to, size, text);
}

/* Where everything lies; false: more than a page may have. */
static bool lay_out(struct rail_stats *s, const struct rail_stats_group *groups) {
  uint64_t at = sizeof(struct rail_stats_head) + s->ngroups * sizeof(struct rail_stats_group_desc);
  if (s->ngroups > RAIL_STATS_MAX_GROUPS) return false;
  for (uint32_t i = 0; i < s->ngroups; i++) {
    struct group *g = &s->groups[i];
    if (groups[i].ncounters > RAIL_STATS_MAX_COUNTERS || groups[i].max_records > RAIL_STATS_MAX_RECORDS) return false;
    g->counters_at = at;
    at += g->ncounters * sizeof(struct rail_stats_counter_desc);
  }
  for (uint32_t i = 0; i < s->ngroups; i++) {
    struct group *g = &s->groups[i];
    at = RAIL_ROUND_UP(at, RAIL_CACHELINE);
    g->records_at = at;
    at += (uint64_t)g->max * g->record_size;
  }
  s->size = RAIL_ROUND_UP(at, 4096u);
  return s->size <= RAIL_STATS_MAX_SIZE;
}

static void describe(struct rail_stats *s, const char *name, const struct rail_stats_group *groups, uint64_t start) {
  struct rail_stats_head *head = (struct rail_stats_head *)s->page;
  struct rail_stats_group_desc *desc = (struct rail_stats_group_desc *)(head + 1);
  head->version = RAIL_STATS_VERSION;
  head->ngroups = s->ngroups;
  head->size = s->size;
  head->groups_at = sizeof *head;
  head->pid = s->owner;
  head->pid_ns = rail_stats_pid_ns();
  head->start_time = start;
  head->opened_ns = rail_now_ns();
  put_text(head->name, sizeof head->name, name);
  put_process_name(head->process, sizeof head->process);
  for (uint32_t i = 0; i < s->ngroups; i++, desc++) {
    const struct group *g = &s->groups[i];
    struct rail_stats_counter_desc *c = (struct rail_stats_counter_desc *)(s->page + g->counters_at);
    put_text(desc->name, sizeof desc->name, groups[i].name);
    desc->counters_at = g->counters_at;
    desc->records_at = g->records_at;
    desc->ncounters = g->ncounters;
    desc->max_records = g->max;
    desc->record_size = g->record_size;
    desc->values_at = sizeof(struct rail_stats_record_head);
    for (uint32_t k = 0; k < g->ncounters; k++, c++) {
      put_text(c->name, sizeof c->name, groups[i].counters[k].name);
      put_text(c->doc, sizeof c->doc, groups[i].counters[k].doc);
      c->kind = groups[i].counters[k].kind;
    }
  }
  __atomic_store_n(&head->magic, RAIL_STATS_MAGIC, __ATOMIC_RELEASE);
}

/* Makes the file under the first free name. -1 with errno. */
static int make_file(struct rail_stats *s, const char *name) {
  char clean[48];
  snprintf(clean, sizeof clean, "%s", name);
  for (char *c = clean; *c; c++)
    if (!strchr(RAIL_STATS_NAME_LETTERS, *c)) *c = '_';
  for (int copy = 1; copy <= COPIES; copy++) {
    char suffix[16] = "";
    if (copy > 1) snprintf(suffix, sizeof suffix, ".%d", copy);
    snprintf(s->path, sizeof s->path, RAIL_STATS_DIR "/" RAIL_STATS_PREFIX "%d.%s%s", (int)s->owner, clean, suffix);
    int fd = open(s->path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0 || errno != EEXIST) return fd;
  }
  return -1;
}

/* Puts the page into a file. false: *what failed, with errno, and nothing is left of it. */
static bool share(struct rail_stats *s, const char *name, const struct rail_stats_group *groups, const char **what) {
  struct rlimit limit;
  uint64_t start = 0;
  s->owner = getpid();
  *what = "its start time in /proc";
  errno = ENOENT;
  if (!rail_stats_process_start(s->owner, &start)) return false;
  rail_stats_clean(RAIL_STATS_DIR, false, CLEANED, NULL);
  *what = "open";
  s->fd = make_file(s, name);
  if (s->fd < 0) goto fail_path;
  *what = "fchmod";
  if (fchmod(s->fd, 0600) != 0) goto fail_file; /* whatever the umask says: the user's own, and readable for it */
  *what = "ftruncate";
  errno = EFBIG;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < s->size) goto fail_file; /* it would be SIGXFSZ */
  if (ftruncate(s->fd, (off_t)s->size) != 0) goto fail_file;
  *what = "fallocate";
  if (allocate(s, 0, s->groups[0].records_at) != 0) goto fail_file;
  *what = "mmap";
  s->page = mmap(NULL, s->size, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
  if (s->page == MAP_FAILED) goto fail_file;
  describe(s, name, groups, start);
  return true;

fail_file:
  unlink(s->path);
  close(s->fd);
fail_path:
  s->page = NULL;
  s->fd = -1;
  s->path[0] = 0;
  return false;
}

/* ---- pages ------------------------------------------------------------- */

static void stats_free(struct rail_stats *s) {
  if (!s) return;
  if (s->page) munmap(s->page, s->size);
  if (s->fd >= 0) close(s->fd);
  for (uint32_t i = 0; i < s->ngroups; i++) free(s->groups[i].taken);
  free(s);
}

struct rail_stats *rail_stats_open(const char *name, const struct rail_stats_group *groups, uint32_t ngroups) {
  pthread_once(&once, prepare);
  struct rail_stats *s = calloc(1, sizeof *s + ngroups * sizeof s->groups[0]);
  if (!s) return NULL;
  s->fd = -1;
  s->ngroups = ngroups;
  for (uint32_t i = 0; i < ngroups; i++) {
    struct group *g = &s->groups[i];
    g->ncounters = groups[i].ncounters;
    g->max = groups[i].max_records;
    g->record_size = (uint32_t)(sizeof(struct rail_stats_record_head) +
                                RAIL_ROUND_UP(g->ncounters * sizeof(uint64_t), RAIL_CACHELINE));
    g->taken = calloc(RAIL_MAX(g->max, 1u), 1);
    if (!g->taken) goto fail;
  }
  const char *what = NULL;
  pthread_mutex_lock(&lock); /* no fork between the mapping and the list */
  if (params.on && fork_is_safe && ngroups > 0 && lay_out(s, groups) && !share(s, name, groups, &what))
    RAIL_INFO(RAIL_SUB_INIT, "counters of %s are not visible to rail-stat: %s: %s", name, what, strerror(errno));
  s->next = pages;
  pages = s;
  pthread_mutex_unlock(&lock);
  return s;
fail:
  stats_free(s);
  return NULL;
}

void rail_stats_close(struct rail_stats *s) {
  if (!s) return;
  pthread_mutex_lock(&lock);
  remove_file(s);
  s->closed = true;
  bool last = s->records == 0;
  if (last) {
    struct rail_stats **at = &pages;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
  }
  pthread_mutex_unlock(&lock);
  if (last) stats_free(s);
}

/* ---- records ----------------------------------------------------------- */

static uint8_t *record_at(const struct rail_stats *s, const struct group *g, uint32_t i) {
  return s->page + g->records_at + (uint64_t)i * g->record_size;
}

static struct rail_stats_group_desc *desc_at(const struct rail_stats *s, uint32_t group) {
  return (struct rail_stats_group_desc *)(s->page + sizeof(struct rail_stats_head)) + group;
}

/* Takes a free slot of the group. NULL: there is none. */
static uint64_t *take_slot(struct rail_stats *s, uint32_t group, const uint64_t *label) {
  struct group *g = &s->groups[group];
  uint32_t i = 0;
  while (i < g->used && g->taken[i]) i++;
  if (i == g->max || (i == g->used && allocate(s, g->records_at + (uint64_t)i * g->record_size, g->record_size) != 0)) {
    rail_stats_add(&desc_at(s, group)->left_out, 1);
    return NULL;
  }
  g->taken[i] = 1;
  /* `life` is even: a reader that sees one of these stores sees that too. */
  struct rail_stats_record_head *head = (struct rail_stats_record_head *)record_at(s, g, i);
  uint64_t *values = (uint64_t *)(head + 1), *to = (uint64_t *)(void *)head->label;
  for (uint32_t k = 0; k < g->ncounters; k++) __atomic_store_n(&values[k], 0, __ATOMIC_RELEASE);
  for (size_t k = 0; k < RAIL_STATS_LABEL / sizeof *to; k++) __atomic_store_n(&to[k], label[k], __ATOMIC_RELEASE);
  __atomic_store_n(&head->life, __atomic_load_n(&head->life, __ATOMIC_RELAXED) + 1, __ATOMIC_RELEASE);
  if (i == g->used) __atomic_store_n(&desc_at(s, group)->used, ++g->used, __ATOMIC_RELEASE);
  return values;
}

static uint64_t *private_record(const struct group *g) {
  size_t size = RAIL_ROUND_UP(RAIL_MAX(g->ncounters, 1u) * sizeof(uint64_t), RAIL_CACHELINE);
  void *record = NULL;
  if (posix_memalign(&record, RAIL_CACHELINE, size) != 0) return NULL;
  return memset(record, 0, size);
}

uint64_t *rail_stats_take(struct rail_stats *s, uint32_t group, const char *fmt, ...) {
  union {
    char text[RAIL_STATS_LABEL];
    uint64_t words[RAIL_STATS_LABEL / sizeof(uint64_t)];
  } label = {{0}};
  char text[4 * RAIL_STATS_LABEL] = "";
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  if (strlen(text) >= sizeof label.text) { /* only whole pairs */
    char *cut = memrchr(text, ',', sizeof label.text);
    if (cut) *cut = 0;
  }
  put_text(label.text, sizeof label.text, text);

  pthread_mutex_lock(&lock);
  uint64_t *record = s->page && !s->closed ? take_slot(s, group, label.words) : NULL;
  if (!record) record = private_record(&s->groups[group]);
  if (record) s->records++;
  pthread_mutex_unlock(&lock);
  return record;
}

void rail_stats_drop(struct rail_stats *s, uint32_t group, uint64_t *record) {
  if (!record) return;
  struct group *g = &s->groups[group];
  pthread_mutex_lock(&lock);
  uint8_t *at = (uint8_t *)record - sizeof(struct rail_stats_record_head);
  uintptr_t first = s->page ? (uintptr_t)record_at(s, g, 0) : 0, here = (uintptr_t)at;
  if (s->page && here >= first && here < first + (uint64_t)g->max * g->record_size) {
    uint64_t *life = &((struct rail_stats_record_head *)at)->life;
    /* Up to the next even number, or as it is: a forked child, whose page began anew at 0, finds an even one. */
    __atomic_store_n(life, (__atomic_load_n(life, __ATOMIC_RELAXED) + 1) & ~1ull, __ATOMIC_RELEASE);
    g->taken[(here - first) / g->record_size] = 0;
  } else {
    free(record);
  }
  bool last = --s->records == 0 && s->closed;
  pthread_mutex_unlock(&lock);
  if (last) rail_stats_close(s); /* that was the last record of a closed page */
}

/* ---- a plugin's page: who uses it, and its devices ---- */

struct rail_stats_device {
  struct rail_stats_device *next;
  uint64_t *record;
  char name[RAIL_STATS_VALUE];
};

rail_result_t rail_plugin_stats_open(struct rail_plugin_stats *plugin) {
  pthread_mutex_lock(&plugin->lock);
  if (!plugin->page) plugin->page = rail_stats_open(plugin->name, plugin->groups, plugin->ngroups);
  bool ok = plugin->page != NULL;
  if (ok) plugin->users++;
  pthread_mutex_unlock(&plugin->lock);
  if (ok) return RAIL_OK;
  RAIL_WARN("%s: init: out of memory for counters", plugin->name);
  return RAIL_SYSTEM_ERROR;
}

/* Under the lock. */
static void release(struct rail_plugin_stats *plugin) {
  if (--plugin->users > 0) return;
  /* The page is not closed yet, so dropping a record does not free it; the analyzer cannot know. */
  while (plugin->devices) {
    struct rail_stats_device *d = plugin->devices;
    plugin->devices = d->next;
    rail_stats_drop(plugin->page, plugin->device_group, d->record); // NOLINT(clang-analyzer-unix.Malloc)
    free(d);
  }
  rail_stats_close(plugin->page); // NOLINT(clang-analyzer-unix.Malloc)
  plugin->page = NULL;
}

void rail_plugin_stats_close(struct rail_plugin_stats *plugin) {
  pthread_mutex_lock(&plugin->lock);
  release(plugin);
  pthread_mutex_unlock(&plugin->lock);
}

uint64_t *rail_plugin_stats_take(struct rail_plugin_stats *plugin, uint32_t group, const char *label, ...) {
  char text[RAIL_STATS_LABEL + 1]; /* one more: what is too long is seen and cut as ever */
  va_list ap;
  va_start(ap, label);
  vsnprintf(text, sizeof text, label, ap);
  va_end(ap);
  pthread_mutex_lock(&plugin->lock);
  uint64_t *record = plugin->page ? rail_stats_take(plugin->page, group, "%s", text) : NULL;
  if (record) plugin->users++;
  pthread_mutex_unlock(&plugin->lock);
  return record;
}

void rail_plugin_stats_drop(struct rail_plugin_stats *plugin, uint32_t group, uint64_t *record) {
  if (!record) return;
  pthread_mutex_lock(&plugin->lock);
  rail_stats_drop(plugin->page, group, record);
  release(plugin);
  pthread_mutex_unlock(&plugin->lock);
}

const char *rail_stats_value(char to[RAIL_STATS_VALUE], const char *from) {
  snprintf(to, RAIL_STATS_VALUE, "%s", from);
  for (char *c = to; *c; c++)
    if (*c == ',') *c = '_';
  return to;
}

uint64_t *rail_plugin_stats_device(struct rail_plugin_stats *plugin, const char *name) {
  char label[RAIL_STATS_VALUE];
  rail_stats_value(label, name);
  pthread_mutex_lock(&plugin->lock);
  struct rail_stats_device *d = plugin->devices;
  while (d && strcmp(d->name, label) != 0) d = d->next;
  if (!d && plugin->page && (d = calloc(1, sizeof *d)) != NULL) {
    snprintf(d->name, sizeof d->name, "%s", label);
    d->record = rail_stats_take(plugin->page, plugin->device_group, "device=%s", label);
    d->next = plugin->devices;
    if (d->record) {
      plugin->devices = d;
    } else {
      free(d);
      d = NULL;
    }
  }
  uint64_t *record = d ? d->record : NULL;
  pthread_mutex_unlock(&plugin->lock);
  return record;
}

void rail_plugin_stats_count(struct rail_plugin_stats *plugin, const char *device, unsigned int counter) {
  uint64_t *record = rail_plugin_stats_device(plugin, device);
  if (record) rail_stats_add_shared(&record[counter], 1);
}
