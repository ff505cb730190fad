/* SPDX-License-Identifier: Apache-2.0
 * A plugin's page: users and devices. */
#include "common/obs/stats_book.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"

struct rail_stats_device {
  struct rail_stats_device *next;
  uint64_t *record;
  char name[RAIL_STATS_VALUE];
};

rail_result_t rail_stats_book_open(struct rail_stats_book *book) {
  pthread_mutex_lock(&book->lock);
  if (!book->page) book->page = rail_stats_open(book->name, book->groups, book->ngroups);
  bool ok = book->page != NULL;
  if (ok) book->users++;
  pthread_mutex_unlock(&book->lock);
  if (ok) return RAIL_OK;
  RAIL_WARN("%s: init: out of memory for counters", book->name);
  return RAIL_SYSTEM_ERROR;
}

/* Under the lock. */
static void one_user_less(struct rail_stats_book *book) {
  if (--book->users > 0) return;
  while (book->devices) {
    struct rail_stats_device *d = book->devices;
    book->devices = d->next;
    rail_stats_drop(book->page, book->device_group, d->record);
    free(d);
  }
  rail_stats_close(book->page);
  book->page = NULL;
}

void rail_stats_book_close(struct rail_stats_book *book) {
  pthread_mutex_lock(&book->lock);
  one_user_less(book);
  pthread_mutex_unlock(&book->lock);
}

uint64_t *rail_stats_book_take(struct rail_stats_book *book, uint32_t group, const char *label, ...) {
  char text[RAIL_STATS_LABEL + 1]; /* one more: what is too long is seen and cut as ever */
  va_list ap;
  va_start(ap, label);
  vsnprintf(text, sizeof text, label, ap);
  va_end(ap);
  pthread_mutex_lock(&book->lock);
  uint64_t *record = book->page ? rail_stats_take(book->page, group, "%s", text) : NULL;
  if (record) book->users++;
  pthread_mutex_unlock(&book->lock);
  return record;
}

void rail_stats_book_drop(struct rail_stats_book *book, uint32_t group, uint64_t *record) {
  if (!record) return;
  pthread_mutex_lock(&book->lock);
  rail_stats_drop(book->page, group, record);
  one_user_less(book);
  pthread_mutex_unlock(&book->lock);
}

const char *rail_stats_value(char to[RAIL_STATS_VALUE], const char *from) {
  snprintf(to, RAIL_STATS_VALUE, "%s", from);
  for (char *c = to; *c; c++)
    if (*c == ',') *c = '_';
  return to;
}

uint64_t *rail_stats_book_device(struct rail_stats_book *book, const char *name) {
  char label[RAIL_STATS_VALUE];
  rail_stats_value(label, name);
  pthread_mutex_lock(&book->lock);
  struct rail_stats_device *d = book->devices;
  while (d && strcmp(d->name, label) != 0) d = d->next;
  if (!d && book->page && (d = calloc(1, sizeof *d)) != NULL) {
    snprintf(d->name, sizeof d->name, "%s", label);
    d->record = rail_stats_take(book->page, book->device_group, "device=%s", label);
    d->next = book->devices;
    if (d->record) {
      book->devices = d;
    } else {
      free(d);
      d = NULL;
    }
  }
  uint64_t *record = d ? d->record : NULL;
  pthread_mutex_unlock(&book->lock);
  return record;
}
