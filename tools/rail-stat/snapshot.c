/* SPDX-License-Identifier: Apache-2.0
 * One snapshot of all pages, and what has changed since the previous snapshot. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/rail-stat/stat.h"

static bool is_wanted(const struct rs_options *o, int64_t pid) {
  for (int i = 0; i < o->npids; i++)
    if (o->pids[i] == pid) return true;
  return o->npids == 0;
}

static int by_name(const void *a, const void *b) {
  return strverscmp(((const struct rs_page *)a)->file, ((const struct rs_page *)b)->file);
}

int rs_snapshot_take(const struct rs_options *o, struct rs_snapshot *shot) {
  size_t cap = 0;
  *shot = (struct rs_snapshot){0};
  DIR *dir = opendir(o->dir);
  if (!dir) {
    fprintf(stderr, RS_NAME ": cannot read the directory %s: %s\n", o->dir, strerror(errno));
    return -1;
  }
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    int64_t pid;
    const char *name;
    if (!rail_stats_file_name(entry->d_name, &pid, &name) || !is_wanted(o, pid)) continue;
    if (shot->n == cap) {
      cap = cap ? 2 * cap : 16;
      struct rs_page *more = realloc(shot->pages, cap * sizeof *more);
      if (!more) goto fail;
      shot->pages = more;
    }
    struct rs_page *page = &shot->pages[shot->n];
    *page = (struct rs_page){0};
    snprintf(page->file, sizeof page->file, "%s", entry->d_name);
    page->view = kit_stats_read(o->dir, entry->d_name, page->why, sizeof page->why);
    page->err = page->view ? 0 : errno;
    if (page->err == ENOENT) continue; /* its process ended just now */
    shot->n++;
  }
  closedir(dir);
  if (shot->n) qsort(shot->pages, shot->n, sizeof shot->pages[0], by_name);
  return 0;
fail:
  fprintf(stderr, RS_NAME ": out of memory\n");
  closedir(dir);
  rs_snapshot_free(shot);
  return -1;
}

void rs_snapshot_free(struct rs_snapshot *shot) {
  for (size_t i = 0; i < shot->n; i++) kit_stats_view_free(shot->pages[i].view);
  free(shot->pages);
  *shot = (struct rs_snapshot){0};
}

bool rs_page_shows(const struct rs_page *page) { return page->view && page->view->alive != RAIL_STATS_DEAD; }

/* ---- what is not shown ---- */

struct hidden { int dead, foreign, bad; };

static struct hidden count_hidden(const struct rs_snapshot *shot) {
  struct hidden h = {0};
  for (size_t i = 0; i < shot->n; i++) {
    const struct rs_page *page = &shot->pages[i];
    if (page->view) h.dead += page->view->alive == RAIL_STATS_DEAD;
    else if (page->err == EACCES) h.foreign++;
    else h.bad += page->err != EAGAIN;
  }
  return h;
}

void rs_report_hidden(const struct rs_snapshot *shot) {
  static bool said;
  struct hidden h = count_hidden(shot);
  if (said || h.dead + h.foreign + h.bad == 0) return;
  said = true;
  if (h.dead)
    fprintf(stderr, RS_NAME ": %d page%s left by processes that are dead; " RS_NAME " --clean removes %s\n", h.dead,
            h.dead > 1 ? "s" : "", h.dead > 1 ? "them" : "it");
  if (h.foreign)
    fprintf(stderr, RS_NAME ": %d page%s of other users, not readable for this one\n", h.foreign,
            h.foreign > 1 ? "s" : "");
  for (size_t i = 0; i < shot->n; i++) {
    const struct rs_page *page = &shot->pages[i];
    if (!page->view && page->err != EACCES && page->err != EAGAIN)
      fprintf(stderr, RS_NAME ": %s is not shown: %s\n", page->file, page->why);
  }
}

void rs_hidden_text(const struct rs_snapshot *shot, char *text, size_t size) {
  struct hidden h = count_hidden(shot);
  text[0] = 0;
  if (h.dead + h.foreign + h.bad)
    snprintf(text, size, "not shown: %d of dead processes, %d of other users, %d unreadable", h.dead, h.foreign, h.bad);
}

/* ---- names, rates, labels ---- */

const char *rs_page_name(const struct rs_page *page) {
  int64_t pid;
  const char *name = page->file;
  rail_stats_file_name(page->file, &pid, &name);
  return name;
}

int rs_counter(const struct kit_stats_view_group *group, const char *name) {
  for (uint32_t i = 0; i < group->ncounters; i++)
    if (strcmp(group->counters[i].name, name) == 0) return (int)i;
  return -1;
}

static const struct kit_stats_view *same_page(const struct rs_snapshot *shot, const struct rs_page *page) {
  const struct rs_page *found =
      shot && shot->n ? bsearch(page, shot->pages, shot->n, sizeof shot->pages[0], by_name) : NULL;
  if (!found || !found->view || found->view->start_time != page->view->start_time ||
      found->view->opened_ns != page->view->opened_ns)
    return NULL;
  return found->view;
}

static const struct kit_stats_view_record *same_record(const struct kit_stats_view_group *group,
                                                        const struct kit_stats_view_record *record) {
  uint32_t low = 0, high = group->nrecords;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (group->records[middle].index < record->index) low = middle + 1;
    else high = middle;
  }
  bool same = low < group->nrecords && group->records[low].index == record->index &&
              group->records[low].life == record->life;
  return same ? &group->records[low] : NULL;
}

double rs_rate(const struct rs_snapshot *before, const struct rs_page *page, uint32_t group,
               const struct kit_stats_view_record *record, int counter) {
  const struct kit_stats_view *old = same_page(before, page);
  if (!old || old->read_ns >= page->view->read_ns || group >= old->ngroups ||
      old->groups[group].ncounters != page->view->groups[group].ncounters)
    return -1;
  /* A record that was not there began at 0 in between. */
  const struct kit_stats_view_record *was = same_record(&old->groups[group], record);
  uint64_t from = was ? was->values[counter] : 0, to = record->values[counter];
  return to < from ? 0 : (double)(to - from) / ((double)(page->view->read_ns - old->read_ns) / 1e9);
}

bool rs_label_next(const char **at, char *key, char *value) {
  while (**at == ',') (*at)++;
  size_t len = strcspn(*at, ","), klen = strcspn(*at, "=,");
  if (len == 0) return false;
  if (klen == len) { /* no '=': a value without a key */
    strcpy(key, "label");
    memcpy(value, *at, len);
    value[len] = 0;
  } else {
    memcpy(key, *at, klen);
    key[klen] = 0;
    memcpy(value, *at + klen + 1, len - klen - 1);
    value[len - klen - 1] = 0;
  }
  *at += len;
  return true;
}
