/* SPDX-License-Identifier: Apache-2.0
 * Operations: posted at an endpoint (tx), in flight to their target (inbox), there without a receive (unexpected). */
#include <string.h>

#include "test/preload/fakefabric/ff.h"

enum { SENDS = 1, WRITES = 2, READS = 4 }; /* for orders */

static const uint64_t caps_of[FF_KINDS] = {FI_MSG | FI_SEND, FI_TAGGED | FI_SEND, FI_RMA | FI_WRITE,
                                           FI_RMA | FI_READ, FI_MSG | FI_RECV,    FI_TAGGED | FI_RECV};
static const uint64_t access_of[FF_KINDS] = {FI_SEND, FI_SEND, FI_WRITE, FI_READ, FI_RECV, FI_RECV};

static bool receives(enum ff_kind kind) { return kind == FF_RECV || kind == FF_TRECV; }
static bool is_rma(enum ff_kind kind) { return kind == FF_WRITE || kind == FF_READ; }

static void append(struct ff_list *list, struct ff_op *op) {
  if (!list->last) list->last = &list->first;
  op->next = NULL;
  *list->last = op;
  list->last = &op->next;
}

static struct ff_op *take_out(struct ff_list *list, struct ff_op **at) {
  struct ff_op *op = *at;
  *at = op->next;
  if (!op->next) list->last = at;
  return op;
}

/* Of the first bytes of what is sent from the caller's memory. */
static uint64_t sum_of(const struct ff_op *op) {
  uint64_t sum = 14695981039346656037u;
  for (size_t i = 0, left = 4096, n; i < op->n && left; i++, left -= n) {
    const volatile unsigned char *at = op->iov[i].iov_base;
    n = op->iov[i].iov_len < left ? op->iov[i].iov_len : left;
    if (ff_poisoned(op->iov[i].iov_base, n)) return op->sum; /* another violation */
    for (size_t b = 0; b < n; b++) sum = (sum ^ at[b]) * 1099511628211u;
  }
  return sum;
}

static void check_unchanged(const struct ff_op *op) {
  if (op->copy || op->kind == FF_READ || sum_of(op) == op->sum) return;
  ff_violate("a buffer was changed while its %s was in flight", ff_kind_names[op->kind]);
}

/* ---- the end of an operation ------------------------------------------- */

static void dispose(struct ff_op *op) {
  ff_free(op->copy);
  ff_free(op);
}

/* What is local of it is the caller's again. */
static void release(struct ff_op *op) {
  for (size_t i = 0; i < op->n; i++)
    if (op->mrs[i]) op->mrs[i]->uses--;
  if (receives(op->kind)) op->ep->nrx--;
  else op->ep->ntx--;
  op->done = true;
}

/* Of one that was sent. */
static void finish(struct ff_op *op, int err, int prov) {
  static const uint64_t flags[FF_KINDS] = {
      FI_SEND | FI_MSG, FI_SEND | FI_TAGGED, FI_RMA | FI_WRITE, FI_RMA | FI_READ, 0, 0};
  struct fi_cq_err_entry e = {.op_context = op->context, .flags = flags[op->kind], .err = err, .prov_errno = prov};
  if (op->done) return;
  if (op->kind == FF_READ)
    e.buf = op->iov[0].iov_base, e.len = op->len < op->iov[0].iov_len ? op->len : op->iov[0].iov_len;
  if (!err) check_unchanged(op);
  release(op);
  if (err || !op->quiet) ff_complete(op->ep->tx_cq, op->ep, &e, FI_ADDR_NOTAVAIL, op->stamped);
}

/* ---- bytes ------------------------------------------------------------- */

/* `len` bytes at `from` of what an operation's pieces are, from or to `flat`. */
static void move(const struct ff_op *op, size_t from, char *flat, size_t len, bool in) {
  for (size_t i = 0; i < op->n && len; i++) {
    size_t room = op->iov[i].iov_len;
    if (from >= room) {
      from -= room;
      continue;
    }
    size_t n = room - from < len ? room - from : len;
    char *at = (char *)op->iov[i].iov_base + from;
    if (ff_poisoned(at, n)) ff_violate("a buffer was freed while its %s was in flight", ff_kind_names[op->kind]);
    else if (in) memcpy(at, flat, n);
    else memcpy(flat, at, n);
    flat += n, len -= n, from = 0;
  }
}

static void source(const struct ff_op *op, size_t from, char *to, size_t len) {
  if (op->copy) memcpy(to, op->copy + from, len);
  else move(op, from, to, len, false);
}

static bool keep_copy(struct ff_op *op) {
  char *copy = op->copy ? op->copy : ff_alloc(op->len + 1);
  if (!op->copy && copy) {
    check_unchanged(op);
    move(op, 0, copy, op->len, false);
  }
  op->copy = copy;
  return copy;
}

/* ---- posting ----------------------------------------------------------- */

static ssize_t check_local(const struct ff_ep *ep, const struct ff_request *r, bool copied, size_t *total) {
  const struct ff_domain *d = ep->o.domain;
  const char *what = ff_kind_names[r->kind];
  bool first_on_device = false;
  *total = 0;
  for (size_t i = 0; i < r->n; i++) {
    void *desc = r->desc ? r->desc[i] : NULL;
    const char *base = r->iov[i].iov_base;
    size_t len = r->iov[i].iov_len;
    const struct ff_mr *mr = desc ? ff_mr_of_desc(desc) : NULL;
    *total += len;
    if (ff_poisoned(base, len)) {
      ff_violate("%s of memory that is not the caller's", what);
      return -FI_EFAULT;
    }
    if (copied || !len) continue;
    const char *wrong = NULL;
    bool local = d->mr_mode & FI_MR_LOCAL;
    if (desc && !mr) wrong = "is of no open MR";
    else if (!mr) wrong = local ? "is missing (FI_MR_LOCAL)" : NULL;
    else if (mr->o.domain != d) wrong = "is another domain's";
    else if (base < mr->base || base + len > mr->base + mr->len) wrong = "is of another range";
    else if (local && !(mr->access & access_of[r->kind])) wrong = "is without this access";
    if (!i) first_on_device = mr && mr->device;
    else if (!wrong && first_on_device != (mr && mr->device)) wrong = "is of another kind of memory than the first";
    if (!wrong) continue;
    ff_violate("%s: the descriptor %s", what, wrong);
    return -FI_EINVAL;
  }
  return 0;
}

static uint64_t tag_mask(uint64_t format) {
  for (int shift = 1; shift < 64; shift *= 2) format |= format >> shift;
  return format;
}

static ssize_t check(const struct ff_ep *ep, const struct ff_request *r, uint64_t flags, size_t *total) {
  const struct ff_nic *nic = &ep->o.domain->nic;
  const char *what = ff_kind_names[r->kind], *wrong = NULL;
  bool rx = receives(r->kind);
  ssize_t err = check_local(ep, r, flags & FI_INJECT, total);
  if (err) return err;
  err = -FI_EINVAL;
  if (!ep->enabled) wrong = "the endpoint is not enabled", err = -FI_EOPBADSTATE;
  else if ((ep->caps & caps_of[r->kind]) != caps_of[r->kind]) wrong = "no capability for it", err = -FI_EOPNOTSUPP;
  else if (r->n > nic->iov || r->n > FF_IOVS || r->nrma > 1) wrong = "more pieces than iov_limit";
  else if (!rx && *total > nic->max_msg) wrong = "larger than max_msg_size", err = -FI_EMSGSIZE;
  else if (flags & FI_INJECT && *total > nic->inject) wrong = "larger than inject_size", err = -FI_EMSGSIZE;
  else if (flags & FI_REMOTE_CQ_DATA && !rx && (!nic->cq_data || (nic->cq_data < 8 && r->data >> 8 * nic->cq_data)))
    wrong = "more data for the remote CQ than cq_data_size";
  else if (flags & FI_DELIVERY_COMPLETE && !nic->delivery) wrong = "no FI_DELIVERY_COMPLETE", err = -FI_EOPNOTSUPP;
  else if (flags & FI_MULTI_RECV && !(ep->caps & FI_MULTI_RECV)) wrong = "no FI_MULTI_RECV", err = -FI_EOPNOTSUPP;
  else if (r->tag & ~tag_mask(nic->tag_format)) wrong = "a tag outside of mem_tag_format";
  else if (!rx && !ff_av_number(ep->av, r->addr)) wrong = "an address that is not in the AV";
  else if (is_rma(r->kind) && (r->nrma != 1 || r->rma->len != *total)) wrong = "sizes that differ";
  else return 0;
  ff_violate("%s: %s", what, wrong);
  return err;
}

static ssize_t check_context(const struct ff_ep *ep, const struct ff_request *r) {
  uint64_t mode = ep->o.domain->nic.mode;
  const char *wrong = NULL;
  if (!r->context) wrong = "no context (FI_CONTEXT)";
  else if (ff_poisoned(r->context, mode & FI_CONTEXT2 ? 64 : 32)) wrong = "a context that is not the caller's memory";
  else if (ff_stamped(r->context)) wrong = "the context of an operation in flight";
  if (wrong) ff_violate("%s: %s", ff_kind_names[r->kind], wrong);
  return wrong ? -FI_EINVAL : 0;
}

static struct ff_op *make(struct ff_ep *ep, const struct ff_request *r, uint64_t flags, size_t total) {
  struct ff_op *op = ff_alloc(sizeof *op);
  bool rx = receives(r->kind);
  if (!op) return NULL;
  op->kind = r->kind;
  op->ep = ep;
  op->to = rx ? 0 : ff_av_number(ep->av, r->addr);
  op->src_addr = r->addr;
  op->tag = r->tag;
  op->ignore = r->ignore;
  op->data = flags & FI_REMOTE_CQ_DATA ? r->data : 0;
  op->flags = flags;
  op->context = r->context;
  op->n = r->n;
  op->len = total;
  if (r->nrma) op->rma = *r->rma;
  op->quiet = flags & FF_QUIET || ((rx ? ep->rx_selective : ep->tx_selective) && !(flags & FI_COMPLETION));
  for (size_t i = 0; i < r->n; i++) {
    op->iov[i] = r->iov[i];
    if (!rx && r->kind != FF_READ) ff_will_read(r->iov[i].iov_base, r->iov[i].iov_len);
  }
  if (!rx && r->kind != FF_READ) op->sum = sum_of(op);
  if (flags & FI_INJECT && !keep_copy(op)) {
    dispose(op);
    return NULL;
  }
  if (op->copy) op->n = 0;
  for (size_t i = 0; i < op->n && r->desc; i++)
    if (r->desc[i] && (op->mrs[i] = ff_mr_of_desc(r->desc[i]))) op->mrs[i]->uses++;
  return op;
}

ssize_t ff_post(struct fid_ep *fid, const struct ff_request *r) {
  struct ff_ep *ep = (struct ff_ep *)(void *)fid;
  bool rx = receives(r->kind);
  size_t total = 0;
  uint64_t flags = r->flags | (r->flags & FF_DEFAULTS ? (rx ? ep->rx_flags : ep->tx_flags) : 0), mode;
  if (!ff_enter(&ep->o, ff_kind_names[r->kind])) return -FI_EBADF;
  bool no_context = flags & FF_QUIET || !(mode = ep->o.domain->nic.mode);
  ssize_t err = check(ep, r, flags, &total);
  if (!err && !no_context) err = check_context(ep, r);
  if (!err && (ff_chance(ff.eagain) || (ff.eagain_next && ff.eagain_next--))) err = -FI_EAGAIN;
  if (!err && (rx ? ep->nrx >= ep->rx_size : ep->ntx >= ep->tx_size)) err = -FI_EAGAIN;
  struct ff_op *op = err ? NULL : make(ep, r, flags, total);
  if (op) {
    if (rx) ep->nrx++;
    else ep->ntx++;
    op->stamped = !no_context && !op->quiet;
    if (op->stamped) ff_stamp(op->context, mode);
    append(rx ? &ep->rx_new : &ep->tx, op);
  }
  ff_leave(&ep->o);
  return err ? err : op ? 0 : -FI_ENOMEM;
}

/* ---- from the sender --------------------------------------------------- */

/* It is on its way. The caller may have its buffer back before it arrives, if nothing more was asked for, and if the
 * target is not going to refuse it. */
static void depart(struct ff_op *op, struct ff_ep *to) {
  int err = 0;
  if (op->kind == FF_WRITE && op->len) (void)ff_mr_reach(to, &op->rma, FI_REMOTE_WRITE, &err, false);
  bool early = op->kind == FF_WRITE ? ff.early && !err : op->kind != FF_READ && op->len <= ff.eager;
  if (early && !(op->flags & FI_DELIVERY_COMPLETE) && keep_copy(op)) finish(op, 0, 0);
}

static void push(struct ff_ep *ep) {
  struct ff_op **at = &ep->tx.first, *op;
  int dead = ff_dead(ep->number);
  for (uint64_t n = 0; dead >= 0 && (op = *at) && (!ff.burst || n < ff.burst); n++) {
    struct ff_ep *peer = ff.ep_of[op->to];
    struct ff_verdict verdict = {dead, 0};
    if (!dead && !op->judged) verdict = ff_judge(op->kind);
    op->judged = true;
    bool gone = !peer || peer->o.closed, silent = gone ? !ff.gone : ff_dead(peer->number) < 0;
    if (!verdict.err && !silent) verdict.err = gone ? ff.gone : ff_dead(peer->number);
    if (!verdict.err && silent) {
      at = &op->next;
      continue;
    }
    take_out(&ep->tx, at);
    if (verdict.err == FF_HANGS) append(&ep->hung, op);
    else if (verdict.err) {
      finish(op, verdict.err > 0 ? verdict.err : 0, verdict.prov);
      dispose(op);
    } else {
      append(&peer->inbox, op);
      depart(op, peer);
    }
  }
}

/* ---- at the target ----------------------------------------------------- */

static bool matches(const struct ff_op *recv, const struct ff_op *msg) {
  const struct ff_ep *ep = recv->ep;
  bool directed = ep->caps & FI_DIRECTED_RECV && recv->src_addr != FI_ADDR_UNSPEC;
  if (directed && ff_av_number(ep->av, recv->src_addr) != msg->ep->number) return false;
  return recv->kind == FF_RECV || (recv->tag | recv->ignore) == (msg->tag | recv->ignore);
}

/* A message into a receive. True: the receive is used up and gone; the message always is. */
static bool deliver(struct ff_op *recv, struct ff_op *msg) {
  struct ff_ep *ep = recv->ep;
  struct ff_verdict verdict = ff_judge(recv->kind);
  size_t room = recv->len - recv->placed, n = msg->len < room ? msg->len : room;
  bool multi = recv->flags & FI_MULTI_RECV, hung = verdict.err < 0;
  struct fi_cq_err_entry e = {
    .op_context = recv->context, .len = n, .tag = msg->tag, .data = msg->data, .err = verdict.err,
    .prov_errno = verdict.prov, .buf = recv->n ? (char *)recv->iov[0].iov_base + recv->placed : NULL,
    .flags = FI_RECV | (recv->kind == FF_RECV ? FI_MSG : FI_TAGGED) | (msg->flags & FI_REMOTE_CQ_DATA)};
  for (size_t at = 0, piece; !verdict.err && at < n; at += piece) {
    char buffer[4096];
    piece = n - at < sizeof buffer ? n - at : sizeof buffer;
    source(msg, at, buffer, piece);
    move(recv, recv->placed + at, buffer, piece, true);
  }
  if (!verdict.err && n < msg->len) e.err = FI_ETRUNC, e.olen = msg->len - n;
  recv->placed += n;
  bool used = !multi || e.err || recv->len - recv->placed < ep->min_multi_recv;
  if (used && multi) e.flags |= FI_MULTI_RECV;
  if (used && !hung) release(recv);
  if (e.err) e.len = 0;
  fi_addr_t src = ep->caps & FI_SOURCE ? ff_av_addr(ep->av, msg->ep->number) : FI_ADDR_NOTAVAIL;
  if (!hung && (e.err || !recv->quiet)) ff_complete(ep->rx_cq, ep, &e, src, recv->stamped && used);
  finish(msg, 0, 0);
  dispose(msg);
  if (hung) append(&ep->hung, recv);
  else if (used) dispose(recv);
  return used;
}

/* New receives take what is there already, in the order in which it came. */
static void match_new(struct ff_ep *ep) {
  while (ep->rx_new.first) {
    struct ff_op *recv = take_out(&ep->rx_new, &ep->rx_new.first);
    int i = recv->kind == FF_TRECV;
    bool used = false;
    for (struct ff_op **at = &ep->unexpected[i].first; *at && !used;)
      if (matches(recv, *at)) used = deliver(recv, take_out(&ep->unexpected[i], at));
      else at = &(*at)->next;
    if (!used) append(&ep->rx[i], recv);
  }
}

static void arrive(struct ff_ep *ep, struct ff_op *msg) {
  int i = msg->kind == FF_TSEND;
  struct ff_op **at = &ep->rx[i].first;
  while (*at && !matches(*at, msg)) at = &(*at)->next;
  if (!*at) append(&ep->unexpected[i], msg);
  else {
    /* A receive that is used up leaves its list before it goes. */
    struct ff_op *recv = *at, *before = recv->next;
    take_out(&ep->rx[i], at);
    if (!deliver(recv, msg)) {
      recv->next = before;
      *at = recv;
      if (!before) ep->rx[i].last = &recv->next;
    }
  }
}

/* A step of a write or read in the target's memory; true: it is over. */
static bool place(struct ff_ep *ep, struct ff_op *op) {
  bool write = op->kind == FF_WRITE;
  uint64_t access = write ? FI_REMOTE_WRITE : FI_REMOTE_READ;
  int err = 0;
  size_t left = op->len - op->placed, n = write && ff.torn && ff.torn < left ? ff.torn : left, at = left - n;
  char *memory = op->len ? ff_mr_reach(ep, &op->rma, access, &err, true) : NULL;
  if (!err && !(ep->caps & access)) err = FI_EACCES, ff_violate("RMA into an endpoint without this capability");
  if (!err && memory && ff_poisoned(memory + at, n))
    err = FI_EFAULT, ff_violate("RMA into memory that was freed, in an open MR");
  if (!err && memory && write) source(op, at, memory + at, n);
  else if (!err && memory) move(op, at, memory + at, n, true);
  op->placed += n;
  if (!err && op->placed < op->len) return false;
  if (!err && write && op->flags & FI_REMOTE_CQ_DATA) {
    const struct fi_cq_err_entry e = {
        .flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA, .len = op->len, .data = op->data};
    fi_addr_t src = ep->caps & FI_SOURCE ? ff_av_addr(ep->av, op->ep->number) : FI_ADDR_NOTAVAIL;
    ff_complete(ep->rx_cq, ep, &e, src, false);
  }
  finish(op, err, 0);
  dispose(op);
  return true;
}

/* What may not overtake what, by the orders that the sender's NIC offers. */
static bool must_wait(const struct ff_op *op, uint64_t seen) {
  static const uint64_t orders[3][3] = {{FI_ORDER_SAS, FI_ORDER_SAW, FI_ORDER_SAR},
                                        {FI_ORDER_WAS, FI_ORDER_WAW, FI_ORDER_WAR},
                                        {FI_ORDER_RAS, FI_ORDER_RAW, FI_ORDER_RAR}};
  const uint64_t *of = orders[op->kind == FF_WRITE ? 1 : op->kind == FF_READ ? 2 : 0];
  uint64_t order = op->ep->o.domain->nic.order;
  uint64_t after = (order & of[0] ? SENDS : 0u) | (order & of[1] ? WRITES : 0u) | (order & of[2] ? READS : 0u);
  return seen & after;
}

static void pull(struct ff_ep *ep) {
  if (ff_dead(ep->number)) return;
  match_new(ep);
  ff.scans++;
  struct ff_op **at = &ep->inbox.first, *op;
  for (uint64_t n = 0; (op = *at) && (!ff.burst || n < ff.burst); n++) {
    struct ff_ep *from = op->ep;
    unsigned int bit = op->kind == FF_WRITE ? WRITES : op->kind == FF_READ ? READS : SENDS;
    if (from->scan != ff.scans) from->scan = ff.scans, from->seen = 0;
    bool stays = ff_dead(from->number) || must_wait(op, from->seen) || (op->placed == 0 && ff_chance(ff.overtake));
    if (!stays) {
      take_out(&ep->inbox, at);
      if (!is_rma(op->kind)) arrive(ep, op);
      else if (!place(ep, op)) {
        stays = true;
        op->next = *at;
        *at = op;
        if (!op->next) ep->inbox.last = &op->next;
      }
    }
    if (stays) {
      from->seen |= bit;
      at = &op->next;
    }
  }
}

void ff_progress(struct ff_cq *cq) {
  for (int stage = 0; stage < 2; stage++)
    for (struct ff_ep *ep = ff.eps; ep; ep = ep->next) {
      bool own = ep->enabled && (ep->tx_cq == cq || ep->rx_cq == cq);
      bool all = ff.move == FF_ANY || ff.move == (stage ? FF_SENDER : FF_RECEIVER);
      if (!ep->enabled || !(own || all)) continue;
      if (stage) pull(ep);
      else push(ep);
    }
}

/* ---- cancelled and closed ---------------------------------------------- */

ssize_t ff_cancel(fid_t fid, void *context) {
  struct ff_ep *ep = (struct ff_ep *)(void *)fid;
  struct ff_list *lists[] = {&ep->rx_new, &ep->rx[0], &ep->rx[1]};
  bool found = false;
  if (!ff_enter(&ep->o, "fi_cancel")) return -FI_EBADF;
  for (int i = 0; i < 3 && !found; i++)
    for (struct ff_op **at = &lists[i]->first; *at && !found;) {
      found = (*at)->context == context;
      if (!found) at = &(*at)->next;
      else {
        struct ff_op *op = take_out(lists[i], at);
        const struct fi_cq_err_entry e = {.op_context = context, .err = FI_ECANCELED,
                                          .flags = FI_RECV | (op->kind == FF_RECV ? FI_MSG : FI_TAGGED)};
        release(op);
        ff_complete(ep->rx_cq, ep, &e, FI_ADDR_NOTAVAIL, op->stamped);
        dispose(op);
      }
    }
  ff_leave(&ep->o);
  return found ? 0 : -FI_ENOENT;
}

static void abandon(struct ff_op *op) {
  if (!op->done) {
    release(op);
    if (op->stamped) ff_unstamp(op->context, op->ep->o.domain->nic.mode);
  }
  dispose(op);
}

/* What is in flight from it and still reads or writes its memory ends; what was copied arrives. */
static void drop_from(struct ff_list *list, const struct ff_ep *ep) {
  for (struct ff_op **at = &list->first; *at;)
    if ((*at)->ep == ep && !(*at)->done) abandon(take_out(list, at));
    else at = &(*at)->next;
}

void ff_drop(struct ff_ep *ep) {
  struct ff_list *own[] = {&ep->tx, &ep->hung, &ep->rx_new, &ep->rx[0], &ep->rx[1]};
  struct ff_list *others[] = {&ep->inbox, &ep->unexpected[0], &ep->unexpected[1]};
  for (int i = 0; i < 5; i++)
    while (own[i]->first) abandon(take_out(own[i], &own[i]->first));
  for (struct ff_ep *e = ff.eps; e; e = e->next) {
    drop_from(&e->inbox, ep);
    drop_from(&e->unexpected[0], ep);
    drop_from(&e->unexpected[1], ep);
  }
  for (int i = 0; i < 3; i++)
    while (others[i]->first) {
      struct ff_op *op = take_out(others[i], &others[i]->first);
      if (!op->done && !ff.gone) append(&op->ep->hung, op);
      else {
        finish(op, ff.gone, 0);
        dispose(op);
      }
    }
  if (ep->tx_cq) ff_cq_forget(ep->tx_cq, ep);
  if (ep->rx_cq && ep->rx_cq != ep->tx_cq) ff_cq_forget(ep->rx_cq, ep);
}
