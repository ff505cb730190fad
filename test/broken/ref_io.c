/* SPDX-License-Identifier: Apache-2.0
 * The bytes of a connection. Everything here runs in the caller's thread with the comm's lock held, and never waits. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/uio.h>

#include "test/broken/ref.h"

#define PER_CALL ((size_t)1 << 20) /* bytes each way at most, so that no call is long */

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* ---- the sender's half: grants, and who takes them ---- */

/* The oldest grant of its tag, if there is one; else it waits. */
void ref_send_match(struct ref_request *r) {
  struct ref_comm *c = r->comm;
  struct ref_request **p = &c->oldest;
  while (*p) p = &(*p)->next;
  *p = r;
  for (int k = 0; k < c->nopen; k++) {
    int i = BROKEN(messages_swapped) ? c->nopen - 1 - k : k;
    if (c->open[i].tag != r->tag[0] && !BROKEN(tag_ignored)) continue;
    r->grant = c->open[i];
    r->state = REF_GRANTED;
    c->nopen--;
    memmove(&c->open[i], &c->open[i + 1], sizeof c->open[0] * (size_t)(c->nopen - i));
    return;
  }
}

static int take_grant(struct ref_comm *c, const struct ref_frame *f) {
  if (f->slot >= REF_SLOTS || c->granted[f->slot]) return RAIL_REMOTE_ERROR;
  c->granted[f->slot] = true;
  for (struct ref_request *r = c->oldest; r; r = r->next) {
    if (r->state != REF_WAITING || (r->tag[0] != f->tag && !BROKEN(tag_ignored))) continue;
    r->grant = *f;
    r->state = REF_GRANTED;
    return RAIL_OK;
  }
  c->open[c->nopen++] = *f; /* there is room: no slot is granted twice */
  return RAIL_OK;
}

static int take_ack(struct ref_comm *c, const struct ref_frame *f) {
  if (f->slot >= REF_SLOTS || !c->sent[f->slot]) return RAIL_REMOTE_ERROR;
  c->sent[f->slot]->state = c->sent[f->slot]->orphan ? REF_FREE : REF_DONE;
  c->sent[f->slot] = NULL;
  c->granted[f->slot] = false;
  return RAIL_OK;
}

/* ---- the receiver's half: buffers, and what has come ---- */

/* There is always room: a slot has one grant or one acknowledgement to be written, never two of either. */
static void say(struct ref_comm *c, enum ref_kind kind, const struct ref_request *r, int i) {
  struct ref_frame f = {.kind = kind, .slot = (uint32_t)((r - c->request) * REF_GROUP + i), .tag = r->tag[i],
                        .size = r->size[i]};
  c->out[(c->out_first + c->out_count++) % (2 * REF_SLOTS)] = f;
}

void ref_grant_all(struct ref_request *r) {
  for (int i = 0; i < r->n; i++) say(r->comm, REF_GRANT, r, i);
}

static void filled(struct ref_comm *c, struct ref_request *r, int i, size_t size) {
  r->filled[i] = true;
  r->got[i] = size;
  c->bytes += size;
  r->by_arrival[r->n - r->left] = size;
  if (BROKEN(corrupt_byte) && ++c->arrived % 50 == 0 && size > 0) r->data[i][size - 1] ^= 1;
  if (BROKEN(one_byte_more) && size < r->size[i]) r->data[i][size] ^= 1;
  say(c, REF_ACK, r, i);
  if (--r->left == 0 || BROKEN(group_done_early)) r->state = REF_DONE;
}

static int take_data(struct ref_comm *c, const struct ref_frame *f) {
  struct ref_request *r = f->slot < REF_SLOTS ? &c->request[f->slot / REF_GROUP] : NULL;
  int i = (int)(f->slot % REF_GROUP);
  if (!r || r->state != REF_POSTED || i >= r->n || r->filled[i]) return RAIL_REMOTE_ERROR;
  if (f->size > r->size[i] && !BROKEN(oversize_overrun)) {
    return BROKEN(oversize_remote) ? RAIL_REMOTE_ERROR : RAIL_BAD_USAGE; /* the sender knows, and sends no more of it */
  }
  if (f->size == 0 && !BROKEN(zero_never_done)) {
    filled(c, r, i, 0);
    return RAIL_OK;
  }
  c->into = r;
  c->into_at = i;
  c->into_got = 0;
  return RAIL_OK;
}

/* ---- reading ---- */

static void finish_all(struct ref_comm *c) {
  for (int i = 0; i < c->nrequests; i++)
    if (c->request[i].state != REF_FREE) c->request[i].state = REF_DONE;
}

/* 0: nothing now, or nothing ever again, in which case the comm has failed. */
static size_t read_some(struct ref_comm *c, void *to, size_t size) {
  ssize_t n = recv(c->fd, to, size, MSG_DONTWAIT);
  if (n > 0) return (size_t)n;
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (BROKEN(reset_is_success)) finish_all(c);
  else if (BROKEN(death_other_error)) ref_comm_fail(c, RAIL_SYSTEM_ERROR, strerror(errno));
  else if (!BROKEN(death_unnoticed)) ref_comm_fail(c, RAIL_REMOTE_ERROR, n < 0 ? strerror(errno) : "closed by it");
  return 0;
}

/* Straight into its place and in order, which is what the LL protocols of NCCL need. */
static size_t read_payload(struct ref_comm *c) {
  struct ref_request *r = c->into;
  size_t all = (size_t)c->in.size;
  uint8_t *to = BROKEN(arrays_kept) ? r->kept[c->into_at] : r->data[c->into_at];
  size_t want = smaller(all - c->into_got, PER_CALL);
  bool bounced = BROKEN(static_buffer) || BROKEN(bytewise_copy) || BROKEN(torn_line);
  size_t n = bounced ? ref_break_reading(c->fd, to + c->into_got, want) : read_some(c, to + c->into_got, want);
  c->into_got += n;
  if (n > 0 && c->into_got == all) {
    c->into = NULL;
    filled(c, r, c->into_at, all);
  }
  return n;
}

static size_t read_frame(struct ref_comm *c) {
  size_t n = read_some(c, (uint8_t *)&c->in + c->in_got, sizeof c->in - c->in_got);
  c->in_got += n;
  if (c->in_got < sizeof c->in) return n;
  int rc = RAIL_REMOTE_ERROR; /* what does not belong here */
  c->in_got = 0;
  if (c->in.kind == REF_GRANT && c->sends) rc = take_grant(c, &c->in);
  if (c->in.kind == REF_ACK && c->sends) rc = take_ack(c, &c->in);
  if (c->in.kind == REF_DATA && !c->sends) rc = take_data(c, &c->in);
  if (rc != RAIL_OK) ref_comm_fail(c, rc, rc == RAIL_BAD_USAGE ? "a message is too large" : "not our protocol");
  return n;
}

static void read_all(struct ref_comm *c) {
  for (size_t budget = PER_CALL; budget > 0 && !c->error;) {
    size_t n = c->into ? read_payload(c) : read_frame(c);
    if (n == 0) return;
    budget -= smaller(n, budget);
  }
}

/* ---- writing ---- */

/* 0: not now. MSG_NOSIGNAL: a peer that is gone must not kill the process. */
static size_t write_some(struct ref_comm *c, struct iovec *iov, size_t count) {
  struct msghdr msg = {.msg_iov = iov, .msg_iovlen = count};
  ssize_t n;
  do { /* not left for later: there may be no later */
    n = sendmsg(c->back ? c->back : c->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n >= 0) return (size_t)n;
  if (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM) return 0;
  /* The peer is gone. Its last acknowledgements may still lie there to be read; then comes the end. */
  if (errno == EPIPE || errno == ECONNRESET || errno == ETIMEDOUT) c->mute = true;
  else ref_comm_fail(c, RAIL_SYSTEM_ERROR, strerror(errno));
  return 0;
}

static void write_frames(struct ref_comm *c) {
  while (c->out_count > 0 && !c->mute) {
    size_t run = smaller(c->out_count, 2 * REF_SLOTS - c->out_first);
    struct iovec iov = {(uint8_t *)&c->out[c->out_first] + c->out_sent, sizeof c->out[0] * run - c->out_sent};
    size_t n = write_some(c, &iov, 1);
    if (n == 0) return;
    c->out_sent += n;
    size_t whole = c->out_sent / sizeof c->out[0];
    c->out_first = (c->out_first + whole) % (2 * REF_SLOTS);
    c->out_count -= whole;
    c->out_sent %= sizeof c->out[0];
  }
}

static bool too_large(const struct ref_request *r) {
  return r->size[0] > r->grant.size && !BROKEN(oversize_overrun);
}

/* The next message that has a place to go to. */
static bool pick(struct ref_comm *c) {
  struct ref_request *r = c->oldest;
  while (r && r->state != REF_GRANTED) r = r->next;
  if (!r) return false;
  if (BROKEN(oversize_silent) && too_large(r)) r->size[0] = (size_t)r->grant.size;
  c->now = r;
  c->now_sent = 0;
  c->now_head = (struct ref_frame){.kind = REF_DATA, .slot = r->grant.slot, .tag = r->tag[0], .size = r->size[0]};
  return true;
}

static void on_the_wire(struct ref_comm *c, struct ref_request *r) {
  struct ref_request **p = &c->oldest;
  while (*p != r) p = &(*p)->next;
  *p = r->next;
  r->state = REF_SENT;
  c->bytes += r->size[0];
  c->sent[r->grant.slot] = r;
  if (BROKEN(close_resets)) r->state = REF_DONE; /* as far as we are concerned */
  c->now = NULL;
  if (!too_large(r)) return;
  /* Only its head was sent, so that the receiver says the same. */
  ref_comm_fail(c, BROKEN(oversize_remote) ? RAIL_REMOTE_ERROR : RAIL_BAD_USAGE, "a message is too large");
}

static void write_messages(struct ref_comm *c) {
  const size_t most = BROKEN(heads_interleave) ? 512 : PER_CALL;
  for (size_t budget = most; budget > 0 && !c->mute && !c->error && (c->now || pick(c));) {
    struct ref_request *r = c->now;
    size_t head = sizeof c->now_head, body = too_large(r) ? 0 : r->size[0];
    size_t head_at = smaller(c->now_sent, head), body_at = c->now_sent - head_at;
    struct iovec iov[2] = {{(uint8_t *)&c->now_head + head_at, head - head_at},
                           {r->data[0] + body_at, smaller(body - body_at, most)}};
    size_t n = write_some(c, iov, 2);
    if (n == 0) return;
    c->now_sent = BROKEN(short_write) ? head + body : c->now_sent + n;
    budget -= smaller(n, budget);
    if (c->now_sent == head + body) on_the_wire(c, r);
  }
}

/* heads_interleave: as if each request's test wrote its own message. */
void ref_break_order(struct ref_request *r) {
  struct ref_comm *c = r->comm;
  if (r->state != REF_GRANTED || !c->now || c->now == r) return;
  c->now = r;
  c->now_sent = 0;
  c->now_head = (struct ref_frame){.kind = REF_DATA, .slot = r->grant.slot, .tag = r->tag[0], .size = r->size[0]};
}

void ref_progress(struct ref_comm *c) {
  struct pollfd ready = {.fd = c->fd, .events = POLLIN};
  if (c->error) return;
  if (BROKEN(context_shared) && ref_stopped) ref_comm_fail(c, RAIL_INTERNAL_ERROR, "stopped");
  if (poll(&ready, 1, BROKEN(eintr_is_death) ? 1 : 0) < 0) { /* a signal: the next call looks again */
    if (BROKEN(eintr_is_death)) ref_comm_fail(c, RAIL_REMOTE_ERROR, "interrupted");
    return;
  }
  if (ready.revents) read_all(c);
  if (c->error) return;
  if (c->sends) write_messages(c);
  else write_frames(c);
}
