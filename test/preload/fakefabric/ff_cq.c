/* SPDX-License-Identifier: Apache-2.0
 * Completion queues, and the contexts that FI_CONTEXT gives to the provider while an operation is in flight. */
#include <stdio.h>
#include <string.h>

#include "test/preload/fakefabric/ff.h"

/* ---- contexts ---------------------------------------------------------- */

#define STAMP 0xfabc0de500000000u

static size_t words_of(uint64_t mode) { return mode & FI_CONTEXT2 ? 8 : 4; }
static uint64_t stamp_of(const uint64_t *words, size_t i) { return (STAMP | i) ^ (uintptr_t)words; }

/* What is written over the caller's memory says whose it is, so that a second use before the first's end is seen. */
void ff_stamp(void *context, uint64_t mode) {
  uint64_t *words = context;
  for (size_t i = 0; i < words_of(mode); i++) words[i] = stamp_of(words, i);
}

bool ff_stamped(const void *context) {
  const uint64_t *words = context;
  return words[0] == stamp_of(words, 0) && words[1] == stamp_of(words, 1);
}

void ff_unstamp(void *context, uint64_t mode) {
  uint64_t *words = context;
  bool whole = true;
  if (ff_poisoned(context, 8 * words_of(mode))) {
    ff_violate("a context was freed while its operation was in flight");
    return;
  }
  for (size_t i = 0; i < words_of(mode); i++) {
    whole &= words[i] == stamp_of(words, i);
    words[i] = 0xdddddddddddddddd;
  }
  if (!whole) ff_violate("a context was changed while its operation was in flight");
}

void ff_cq_forget(struct ff_cq *cq, const struct ff_ep *ep) {
  for (struct ff_cqe *c = cq->first; c; c = c->next) {
    if (c->ep != ep) continue;
    if (c->stamped) ff_unstamp(c->e.op_context, ep->o.domain->nic.mode);
    c->stamped = false;
  }
}

/* ---- completions ------------------------------------------------------- */

void ff_complete(struct ff_cq *cq, struct ff_ep *ep, const struct fi_cq_err_entry *e, fi_addr_t src, bool stamped) {
  struct ff_cqe *c = ff_alloc(sizeof *c), **at = &cq->first;
  bool strict = ep->o.domain->nic.strict;
  if (cq->overrun || (ff.overrun && cq->count >= cq->size) || !c) {
    cq->overrun = cq->overrun || c;
    ff_free(c);
    return;
  }
  c->ep = ep;
  c->e = *e;
  c->src = src;
  c->stamped = stamped;
  c->due = cq->polls + ff_draw(ff.late + 1);
  if (strict && c->due < cq->last_due) c->due = cq->last_due;
  cq->last_due = c->due;
  if (!cq->last) cq->last = &cq->first;
  if (!strict && ff_chance(ff.reorder))
    for (uint64_t i = ff_draw(cq->count + 1); i > 0; i--) at = &(*at)->next;
  else at = cq->last;
  c->next = *at;
  *at = c;
  if (!c->next) cq->last = &c->next;
  cq->count++;
}

static void fill(enum fi_cq_format format, char *buf, size_t i, const struct fi_cq_err_entry *e) {
  if (format == FI_CQ_FORMAT_CONTEXT) ((struct fi_cq_entry *)(void *)buf)[i].op_context = e->op_context;
  else if (format == FI_CQ_FORMAT_MSG)
    ((struct fi_cq_msg_entry *)(void *)buf)[i] = (struct fi_cq_msg_entry){e->op_context, e->flags, e->len};
  else if (format == FI_CQ_FORMAT_DATA)
    ((struct fi_cq_data_entry *)(void *)buf)[i] =
      (struct fi_cq_data_entry){e->op_context, e->flags, e->len, e->buf, e->data};
  else
    ((struct fi_cq_tagged_entry *)(void *)buf)[i] =
      (struct fi_cq_tagged_entry){e->op_context, e->flags, e->len, e->buf, e->data, e->tag};
}

static void take_out(struct ff_cq *cq, struct ff_cqe **at) {
  struct ff_cqe *c = *at;
  *at = c->next;
  if (!c->next) cq->last = at;
  cq->count--;
  if (c->stamped) ff_unstamp(c->e.op_context, c->ep->o.domain->nic.mode);
  if (c->e.flags & (FI_RECV | FI_READ) && !c->ep->o.closed) ff_will_write(c->e.buf, c->e.len);
  ff_free(c);
}

static ssize_t cq_readfrom(struct fid_cq *fid, void *buf, size_t n, fi_addr_t *src) {
  struct ff_cq *cq = (struct ff_cq *)(void *)fid;
  size_t got = 0;
  if (!ff_enter(&cq->o, "fi_cq_read")) return -FI_EBADF;
  cq->polls++;
  ff_progress(cq);
  bool error = false;
  for (struct ff_cqe **at = &cq->first; *at && got < n && !error;) {
    struct ff_cqe *c = *at;
    error = c->due <= cq->polls && c->e.err;
    if (c->due > cq->polls) at = &c->next;
    else if (!error) {
      if (src) src[got] = c->src;
      fill(cq->format, buf, got++, &c->e);
      take_out(cq, at);
    }
  }
  ssize_t lost = cq->overrun && !cq->first ? (ff.overrun == 2 ? -FI_EOVERRUN : -FI_EAVAIL) : -FI_EAGAIN;
  ff_leave(&cq->o);
  return got ? (ssize_t)got : error ? -FI_EAVAIL : lost;
}

static ssize_t cq_read(struct fid_cq *fid, void *buf, size_t n) { return cq_readfrom(fid, buf, n, NULL); }

static ssize_t cq_readerr(struct fid_cq *fid, struct fi_cq_err_entry *buf, uint64_t flags) {
  struct ff_cq *cq = (struct ff_cq *)(void *)fid;
  void *theirs = buf->err_data;
  size_t room = buf->err_data_size;
  (void)flags;
  if (!ff_enter(&cq->o, "fi_cq_readerr")) return -FI_EBADF;
  struct ff_cqe **at = &cq->first;
  while (*at && (*at)->due > cq->polls) at = &(*at)->next;
  bool found = *at && (*at)->e.err, lost = !found && cq->overrun && !cq->first;
  if (found) {
    *buf = (*at)->e;
    ff_print(cq->err_data, sizeof cq->err_data, "%s", buf->prov_errno ? ff.err_text : fi_strerror(buf->err));
    take_out(cq, at);
  } else if (lost) {
    memset(buf, 0, sizeof *buf);
    buf->err = FI_EOVERRUN;
    ff_print(cq->err_data, sizeof cq->err_data, "completions were lost");
  }
  if (found || lost) {
    size_t n = strlen(cq->err_data) + 1;
    buf->err_data = room ? theirs : cq->err_data;
    buf->err_data_size = room && room < n ? room : n;
    if (room) memcpy(theirs, cq->err_data, buf->err_data_size);
  }
  ff_leave(&cq->o);
  return found || lost ? 1 : -FI_EAGAIN;
}

static const char *cq_strerror(struct fid_cq *fid, int prov_errno, const void *err_data, char *buf, size_t len) {
  static _Thread_local char text[128];
  (void)fid;
  ff_print(text, sizeof text, "%s (%d)", err_data ? (const char *)err_data : "no more is known", prov_errno);
  if (buf && len) ff_print(buf, len, "%s", text);
  return buf && len ? buf : text;
}

static int cq_close(struct fid *fid) {
  struct ff_cq *cq = (struct ff_cq *)(void *)fid;
  if (!ff_enter(&cq->o, "fi_close")) return -FI_EBADF;
  int err = ff_shut(&cq->o);
  for (struct ff_cqe *c = err ? NULL : cq->first, *next; c; c = next) {
    next = c->next;
    ff_free(c);
  }
  ff_leave(&cq->o);
  return err;
}

static struct fi_ops cq_fid_ops = {sizeof cq_fid_ops, cq_close, ff_no_bind, ff_no_control, ff_no_ops, NULL, NULL};
static struct fi_ops_cq cq_ops = {
    .size = sizeof cq_ops, .read = cq_read, .readfrom = cq_readfrom, .readerr = cq_readerr, .strerror = cq_strerror};

int ff_cq_open(struct fid_domain *fid, struct fi_cq_attr *attr, struct fid_cq **out, void *context) {
  struct ff_domain *d = (struct ff_domain *)(void *)fid;
  if (!ff_enter(&d->o, "fi_cq_open")) return -FI_EBADF;
  int err = ff_fault("cq_open");
  if (!err && attr->wait_obj != FI_WAIT_NONE) err = -FI_ENOSYS;
  if (!err && d->nic.cq_cnt && (uint64_t)ff.live[FF_CQ] >= d->nic.cq_cnt) err = -FI_ENOSPC;
  struct ff_cq *cq = err ? NULL : ff_alloc(sizeof *cq);
  if (cq) {
    cq->fid = (struct fid_cq){{FI_CLASS_CQ, context, &cq_fid_ops}, &cq_ops};
    cq->format = attr->format ? attr->format : FI_CQ_FORMAT_TAGGED;
    cq->size = ff.cq_size ? ff.cq_size : attr->size ? attr->size : 1024;
    ff_open(&cq->o, FF_CQ, &d->o);
    *out = &cq->fid;
  }
  ff_leave(&d->o);
  return err ? err : cq ? 0 : -FI_ENOMEM;
}
