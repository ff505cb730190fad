/* SPDX-License-Identifier: Apache-2.0
 * The reader of a page: everything is checked, everything is copied. */
#include "kit/kit_stats.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/barrier.h"
#include "common/base/clock.h"

#define SLICE 65536u /* bytes of records that are looked at together */

struct reading {
  int fd;
  uint64_t size;
  char *why;
  size_t why_size;
};

/* False, so that a check reads `return fail(…)`. */
RAIL_PRINTF(3, 4) static bool fail(const struct reading *r, int err, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(r->why, r->why_size, fmt, ap);
  va_end(ap);
  errno = err;
  return false;
}

/* The bytes [at, at + size) of the file; the caller has checked the range against r->size. Two calls read in the order
 * in which they are made: a system call alone does not promise that on every processor. */
static bool get(const struct reading *r, uint64_t at, void *to, size_t size) {
  for (size_t done = 0; done < size;) {
    ssize_t n = pread(r->fd, (char *)to + done, size - done, (off_t)(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(r, errno, "it cannot be read: %s", strerror(errno));
    if (n == 0) return fail(r, EPROTO, "it ends early, at byte %" PRIu64, at + done);
    done += (size_t)n;
  }
  rail_loads_in_order();
  return true;
}

/* Do `count` items of `size` bytes lie inside of the file? No sum here can overflow. */
static bool inside(const struct reading *r, uint64_t at, uint64_t count, uint64_t size) {
  return at <= r->size && count <= (r->size - at) / size;
}

static void make_printable(char *text, size_t size) {
  text[size - 1] = 0;
  for (char *c = text; *c; c++)
    if (*c < 0x20 || *c > 0x7e) *c = '?';
}

static bool is_name(const char *text) {
  if (!((*text >= 'a' && *text <= 'z') || *text == '_')) return false;
  for (; *text; text++)
    if (!((*text >= 'a' && *text <= 'z') || (*text >= '0' && *text <= '9') || *text == '_')) return false;
  return true;
}

static bool check_head(const struct reading *r, const struct rail_stats_head *head, int64_t pid) {
  if (head->magic == 0) return fail(r, EAGAIN, "it is not finished");
  if (head->magic != RAIL_STATS_MAGIC) return fail(r, EPROTO, "it is no page of counters");
  if (head->version != RAIL_STATS_VERSION)
    return fail(r, EPROTO, "it has version %u, this program knows %u", head->version, RAIL_STATS_VERSION);
  if (head->size != r->size)
    return fail(r, EPROTO, "it says it has %" PRIu64 " bytes and has %" PRIu64, head->size, r->size);
  if (head->pid != pid) return fail(r, EPROTO, "it says it is of process %" PRId64, head->pid);
  if (head->ngroups == 0 || head->ngroups > RAIL_STATS_MAX_GROUPS)
    return fail(r, EPROTO, "it has %u groups; allowed: 1 to %u", head->ngroups, RAIL_STATS_MAX_GROUPS);
  if (!inside(r, head->groups_at, head->ngroups, sizeof(struct rail_stats_group_desc)))
    return fail(r, EPROTO, "its groups lie outside of it");
  return true;
}

/* A page in the name of a process must belong to that process' user. */
static bool check_owner(const struct reading *r, const struct kit_stats_view *view) {
  char path[64];
  struct stat st;
  if (view->alive != RAIL_STATS_LIVE) return true;
  snprintf(path, sizeof path, "/proc/%" PRId64, view->pid);
  if (stat(path, &st) != 0 || st.st_uid == view->uid) return true;
  return fail(r, EPROTO, "it belongs to user %u, and process %" PRId64 " to user %u", (unsigned)view->uid, view->pid,
              (unsigned)st.st_uid);
}

static bool read_counters(const struct reading *r, struct kit_stats_view_group *g, uint64_t at) {
  g->counters = calloc(g->ncounters, sizeof *g->counters);
  if (!g->counters) return fail(r, ENOMEM, "out of memory");
  for (uint32_t i = 0; i < g->ncounters; i++) {
    struct rail_stats_counter_desc desc;
    struct kit_stats_view_counter *c = &g->counters[i];
    if (!get(r, at + i * sizeof desc, &desc, sizeof desc)) return false;
    memcpy(c->name, desc.name, sizeof c->name);
    memcpy(c->doc, desc.doc, sizeof c->doc);
    make_printable(c->name, sizeof c->name);
    make_printable(c->doc, sizeof c->doc);
    if (!is_name(c->name)) return fail(r, EPROTO, "'%s' is no counter's name", c->name);
    for (uint32_t k = 0; k < i; k++)
      if (strcmp(g->counters[k].name, c->name) == 0) return fail(r, EPROTO, "counter %s is there twice", c->name);
    if (desc.kind > RAIL_STATS_TIME) return fail(r, EPROTO, "counter %s is of kind %u", c->name, desc.kind);
    c->kind = (enum rail_stats_kind)desc.kind;
  }
  return true;
}

/* The three reads of a slice of records; whole[] is between the other two. */
struct reads { uint8_t before[SLICE], whole[SLICE], after[SLICE]; };

static uint64_t life_at(const uint8_t *slice, uint64_t at) {
  uint64_t life;
  memcpy(&life, slice + at, sizeof life);
  return life;
}

/* Keeps those of a slice's `n` records that were taken and stayed so. */
static void keep(struct kit_stats_view_group *g, const struct rail_stats_group_desc *desc, const struct reads *reads,
                 uint32_t first, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    uint64_t at = (uint64_t)i * desc->record_size, life = life_at(reads->before, at);
    if (life % 2 == 0 || life != life_at(reads->after, at)) continue;
    struct kit_stats_view_record *record = &g->records[g->nrecords];
    record->index = first + i;
    record->life = life;
    record->values = g->values + (size_t)g->nrecords * g->ncounters;
    memcpy(record->label, reads->whole + at + offsetof(struct rail_stats_record_head, label), sizeof record->label);
    memcpy(record->values, reads->whole + at + desc->values_at, g->ncounters * sizeof(uint64_t));
    make_printable(record->label, sizeof record->label);
    g->nrecords++;
  }
}

static bool read_records(const struct reading *r, struct kit_stats_view_group *g,
                         const struct rail_stats_group_desc *desc) {
  uint32_t per_slice = SLICE / desc->record_size;
  struct reads *reads = malloc(sizeof *reads);
  g->records = calloc(RAIL_MAX(desc->used, 1u), sizeof *g->records);
  g->values = calloc((size_t)RAIL_MAX(desc->used, 1u) * g->ncounters, sizeof *g->values);
  bool ok = reads && g->records && g->values;
  if (!ok) fail(r, ENOMEM, "out of memory");
  for (uint32_t first = 0; ok && first < desc->used; first += per_slice) {
    uint32_t n = RAIL_MIN(per_slice, desc->used - first);
    uint64_t at = desc->records_at + (uint64_t)first * desc->record_size;
    size_t size = (size_t)n * desc->record_size;
    ok = get(r, at, reads->before, size) && get(r, at, reads->whole, size) && get(r, at, reads->after, size);
    if (ok) keep(g, desc, reads, first, n);
  }
  free(reads);
  return ok;
}

static bool read_group(const struct reading *r, struct kit_stats_view_group *g, uint64_t at) {
  struct rail_stats_group_desc desc;
  if (!get(r, at, &desc, sizeof desc)) return false;
  memcpy(g->name, desc.name, sizeof g->name);
  make_printable(g->name, sizeof g->name);
  if (!is_name(g->name)) return fail(r, EPROTO, "'%s' is no group's name", g->name);
  if (desc.ncounters == 0 || desc.ncounters > RAIL_STATS_MAX_COUNTERS)
    return fail(r, EPROTO, "group %s has %u counters; allowed: 1 to %u", g->name, desc.ncounters,
                RAIL_STATS_MAX_COUNTERS);
  if (desc.max_records > RAIL_STATS_MAX_RECORDS || desc.used > desc.max_records)
    return fail(r, EPROTO, "group %s has %u records of %u", g->name, desc.used, desc.max_records);
  if (desc.record_size > SLICE || desc.record_size % RAIL_CACHELINE != 0 ||
      desc.values_at < sizeof(struct rail_stats_record_head) || desc.values_at > desc.record_size ||
      desc.ncounters > (desc.record_size - desc.values_at) / sizeof(uint64_t))
    return fail(r, EPROTO, "group %s has records of %u bytes with %u values at %u", g->name, desc.record_size,
                desc.ncounters, desc.values_at);
  if (!inside(r, desc.counters_at, desc.ncounters, sizeof(struct rail_stats_counter_desc)) ||
      desc.records_at % RAIL_CACHELINE != 0 || !inside(r, desc.records_at, desc.max_records, desc.record_size))
    return fail(r, EPROTO, "group %s lies outside of it", g->name);
  g->ncounters = desc.ncounters;
  g->left_out = desc.left_out;
  return read_counters(r, g, desc.counters_at) && read_records(r, g, &desc);
}

static struct kit_stats_view *read_page(const struct reading *r, int64_t pid, uid_t uid) {
  struct rail_stats_head head;
  uint64_t magic; /* stored last, so read first */
  if (r->size < sizeof head) {
    fail(r, r->size == 0 ? EAGAIN : EPROTO, "it has %" PRIu64 " bytes only", r->size);
    return NULL;
  }
  if (!get(r, offsetof(struct rail_stats_head, magic), &magic, sizeof magic)) return NULL;
  if (!get(r, 0, &head, sizeof head)) return NULL;
  head.magic = magic;
  if (!check_head(r, &head, pid)) return NULL;
  struct kit_stats_view *view = calloc(1, sizeof *view + head.ngroups * sizeof view->groups[0]);
  if (!view) {
    fail(r, ENOMEM, "out of memory");
    return NULL;
  }
  view->pid = pid;
  view->start_time = head.start_time;
  view->pid_ns = head.pid_ns;
  view->opened_ns = head.opened_ns;
  view->uid = uid;
  view->alive = rail_stats_alive(pid, head.start_time, head.pid_ns);
  memcpy(view->name, head.name, sizeof view->name);
  memcpy(view->process, head.process, sizeof view->process);
  make_printable(view->name, sizeof view->name);
  make_printable(view->process, sizeof view->process);
  view->ngroups = head.ngroups;
  bool ok = check_owner(r, view);
  for (uint32_t i = 0; ok && i < view->ngroups; i++) {
    ok = read_group(r, &view->groups[i], head.groups_at + i * sizeof(struct rail_stats_group_desc));
    for (uint32_t k = 0; ok && k < i; k++)
      if (strcmp(view->groups[k].name, view->groups[i].name) == 0)
        ok = fail(r, EPROTO, "group %s is there twice", view->groups[i].name);
  }
  view->read_ns = rail_now_ns();
  if (ok) return view;
  int saved = errno;
  kit_stats_view_free(view);
  errno = saved;
  return NULL;
}

struct kit_stats_view *kit_stats_read(const char *dir, const char *file, char *why, size_t why_size) {
  char path[4096];
  struct stat st;
  struct kit_stats_view *view = NULL;
  struct reading r = {.fd = -1, .why = why, .why_size = why_size};
  int64_t pid = 0;
  const char *name;
  if (!rail_stats_file_name(file, &pid, &name)) {
    fail(&r, EPROTO, "its name is not " RAIL_STATS_PREFIX "PID.NAME");
    return NULL;
  }
  int n = snprintf(path, sizeof path, "%s/%s", dir, file);
  /* O_NONBLOCK: it may be a pipe. */
  if (n > 0 && (size_t)n < sizeof path) r.fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  else errno = ENAMETOOLONG;
  if (r.fd < 0 || fstat(r.fd, &st) != 0) fail(&r, errno, "it cannot be opened: %s", strerror(errno));
  else if (!S_ISREG(st.st_mode)) fail(&r, EPROTO, "it is no regular file");
  else if (st.st_size < 0 || (uint64_t)st.st_size > RAIL_STATS_MAX_SIZE)
    fail(&r, EPROTO, "it has %lld bytes", (long long)st.st_size);
  else {
    r.size = (uint64_t)st.st_size;
    view = read_page(&r, pid, st.st_uid);
  }
  int saved = errno;
  if (r.fd >= 0) close(r.fd);
  errno = saved;
  return view;
}

void kit_stats_view_free(struct kit_stats_view *view) {
  if (!view) return;
  for (uint32_t i = 0; i < view->ngroups; i++) {
    free(view->groups[i].counters);
    free(view->groups[i].records);
    free(view->groups[i].values);
  }
  free(view);
}
