/* SPDX-License-Identifier: Apache-2.0
 *
 * One end of a connection goes through its recorded calls. It keeps their
 * order, posts and completions alike: a receive that was posted after another
 * was done is posted after that again. Ends do not wait for each other
 * otherwise, so no order between connections that the first plugin happened to
 * give can make the second one stand still.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "common/base/result.h"
#include "kit/trace/replay_run.h"

static const char *const kind_texts[] = {"listen", "connect", "accept", "regMr", "deregMr", "isend", "irecv", "done",
                                         "close"};

static void fail(struct replay *r, struct replay_end *end, const struct replay_call *call, const char *what,
                 int result) {
  end->dead = true;
  replay_differs(r, &r->result.failures, "%s of comm %" PRIu64 " (call %u.%" PRIu64 "): %s, recorded was success", what,
                 end->plan->id, call->thread, call->number, rail_result_name(result));
}

/* ---- requests ---------------------------------------------------------- */

static void drop_loose(struct replay *r, struct replay_live *l) {
  for (int i = 0; i < KIT_MAX_GROUP; i++) replay_memory_drop(r, &l->loose[i]);
}

static void finished(struct replay *r, struct replay_end *end, struct replay_live *l) {
  const struct replay_call *call = &end->plan->calls[l->call];
  int side = call->kind == REPLAY_RECV;
  uint64_t now = rail_now_ns();
  r->last_ns = now;
  end->done[l->call] = 1;
  if (call->size) { /* it was done in the recording, too */
    (void)kit_trace_list_add(&r->recorded[side], call->size);
    (void)kit_trace_list_add(&r->replayed[side], now - l->posted_ns);
  }
  if (side) {
    replay_check(r, end, l);
  } else {
    r->result.messages++;
    r->result.bytes += end->plan->msgs[call->first].size;
  }
  drop_loose(r, l);
}

/* Tests what is outstanding. The call that `next` waits for is the one that was done first in the recording. */
static bool poll_live(struct replay *r, struct replay_end *end) {
  bool moved = false;
  for (size_t i = 0; i < end->nlive;) {
    struct replay_live *l = &end->live[i];
    const struct replay_call *call = &end->plan->calls[l->call];
    int done = 0, result = r->net.vt->test(l->request, &done, l->sizes);
    if (result != RAIL_OK) {
      fail(r, end, call, call->kind == REPLAY_SEND ? "test of an isend" : "test of an irecv", result);
      return true;
    }
    if (!done) {
      i++;
      continue;
    }
    if (end->next < end->plan->ncalls) {
      const struct replay_call *next = &end->plan->calls[end->next];
      r->result.overtaken += next->kind == REPLAY_DONE && next->value != l->call && !end->done[next->value];
    }
    finished(r, end, l);
    memmove(l, l + 1, (end->nlive - i - 1) * sizeof *l);
    end->nlive--;
    moved = true;
  }
  return moved;
}

static struct replay_live *live_new(struct replay_end *end, uint32_t call) {
  if (end->nlive == end->cap) {
    size_t cap = end->cap ? 2 * end->cap : 16;
    struct replay_live *grown = realloc(end->live, cap * sizeof *grown);
    ENSURE(grown, "out of memory");
    end->live = grown;
    end->cap = cap;
  }
  struct replay_live *l = &end->live[end->nlive];
  memset(l, 0, sizeof *l);
  l->call = call;
  for (int i = 0; i < RAIL_TRACE_GROUP; i++) l->sizes[i] = -1;
  return l;
}

/* True: the call is made. */
static bool posted(struct replay *r, struct replay_end *end, struct replay_live *l, const char *what, int result) {
  if (result != RAIL_OK) fail(r, end, &end->plan->calls[end->next], what, result);
  if (result != RAIL_OK || !l->request) {
    drop_loose(r, l);
    return result != RAIL_OK;
  }
  if (!r->first_ns) r->first_ns = l->posted_ns;
  end->nlive++;
  return true;
}

/* With relaxed order the place of a message may still be in use by one that was done by then in the recording. */
static bool is_taken(const struct replay_end *end, const struct replay_msg *m) {
  for (size_t i = 0; i < end->nlive; i++) {
    const struct replay_call *call = &end->plan->calls[end->live[i].call];
    const struct replay_msg *o = &end->plan->msgs[call->first];
    if (call->kind != REPLAY_SEND || o->mr != m->mr || o->text == m->text) continue;
    if (o->at < m->at ? m->at - o->at < o->size : o->at - m->at < m->size) return true;
  }
  return false;
}

static bool do_send(struct replay *r, struct replay_end *end, const struct replay_call *call) {
  const struct replay_msg *m = &end->plan->msgs[call->first];
  struct rail_trace_buf buf = {.mr = m->mr, .at = m->at, .size = m->size};
  void *mhandle = NULL;
  if (!m->matched) return true; /* nobody would receive it */
  if (r->relaxed && m->text == call->first && is_taken(end, m)) buf.mr = 0; /* gets memory of its own */
  struct replay_live *l = live_new(end, (uint32_t)end->next);
  uint8_t *data = replay_buffer(r, end, &buf, &l->loose[0], &mhandle);
  ENSURE(data, "no memory for a message of %" PRIu64 " bytes (call %u.%" PRIu64 ")", m->size, call->thread,
         call->number);
  if (r->check) replay_fill(r, end, m, data);
  l->posted_ns = rail_now_ns();
  int result = r->net.vt->isend(end->comm, data, m->size, (int)m->tag, mhandle, NULL, &l->request);
  return posted(r, end, l, "isend", result);
}

static bool do_recv(struct replay *r, struct replay_end *end, const struct replay_call *call) {
  void *data[KIT_MAX_GROUP], *mhandles[KIT_MAX_GROUP];
  size_t sizes[KIT_MAX_GROUP];
  int tags[KIT_MAX_GROUP];
  bool wanted = true;
  for (unsigned int i = 0; i < call->n; i++) wanted &= end->plan->slots[call->first + i].msg != REPLAY_NONE;
  if (!wanted) return true; /* it would never be done */
  struct replay_live *l = live_new(end, (uint32_t)end->next);
  for (unsigned int i = 0; i < call->n; i++) {
    const struct rail_trace_buf *buf = &r->plan.bufs[call->bufs + i];
    data[i] = l->data[i] = replay_buffer(r, end, buf, &l->loose[i], &mhandles[i]);
    ENSURE(data[i], "no memory for a buffer of %" PRIu64 " bytes (call %u.%" PRIu64 ")", buf->size, call->thread,
           call->number);
    sizes[i] = buf->size;
    tags[i] = (int)buf->tag;
    const struct replay_slot *slot = &end->plan->slots[call->first + i];
    const struct replay_comm *peer = &r->plan.files[end->plan->peer_file].comms[end->plan->peer];
    replay_scrub(r, l->data[i], RAIL_MIN(buf->size, peer->msgs[slot->msg].size));
  }
  l->posted_ns = rail_now_ns();
  int result =
      r->net.vt->irecv(end->comm, (int)call->n, data, sizes, tags, mhandles, NULL, &l->request);
  return posted(r, end, l, "irecv", result);
}

/* ---- connections ------------------------------------------------------- */

/* The word that takes a handle to the side that connects. */
struct handle_word {
  uint32_t comm; /* index there */
  uint8_t handle[RAIL_NET_HANDLE_SIZE];
};

static int device_of(const struct replay *r, const struct replay_call *call) {
  return r->own_devices ? call->dev % r->net.ndev : kit_side_job(r->side)->dev;
}

static void give_handle(struct replay *r, const struct replay_end *listen) {
  struct replay_file *own = &r->plan.files[r->plan.own];
  for (size_t i = 0; i < own->ncomms; i++) {
    const struct replay_comm *c = &own->comms[i];
    if (c->made_by != RAIL_TRACE_ACCEPT || c->listen != listen->plan->id || c->peer_file < 0) continue;
    struct handle_word word = {.comm = c->peer};
    memcpy(word.handle, listen->handle, sizeof word.handle);
    if (c->peer_file == r->plan.own) {
      memcpy(r->ends[c->peer].handle, word.handle, sizeof word.handle);
      r->ends[c->peer].has_handle = true;
    } else {
      kit_put(r->side, c->peer_file, &word, sizeof word);
    }
  }
}

static void take_handles(struct replay *r, int from) {
  struct handle_word word;
  while (from != r->plan.own && kit_heard(r->side, from, sizeof word)) {
    kit_get(r->side, from, &word, sizeof word);
    ENSURE(word.comm < r->plan.files[r->plan.own].ncomms, "side %d names comm %u, which is not there", from, word.comm);
    memcpy(r->ends[word.comm].handle, word.handle, sizeof word.handle);
    r->ends[word.comm].has_handle = true;
  }
}

static bool do_listen(struct replay *r, struct replay_end *end, const struct replay_call *call) {
  int result = r->net.vt->listen(r->net.ctx, device_of(r, call), end->handle, &end->comm);
  if (result != RAIL_OK || !end->comm) fail(r, end, call, "listen", result);
  else give_handle(r, end);
  return true;
}

static bool do_connect(struct replay *r, struct replay_end *end, const struct replay_call *call) {
  struct rail_net_device_handle *unused = NULL;
  if (!end->has_handle) take_handles(r, end->plan->peer_file);
  if (!end->has_handle) return false;
  int result = r->net.vt->connect(r->net.ctx, device_of(r, call), end->handle, &end->comm, &unused);
  if (result != RAIL_OK) {
    end->comm = NULL;
    fail(r, end, call, "connect", result);
    return true;
  }
  return end->comm != NULL;
}

/* Stands among the calls of the listening comm, which make it, and of the comm that comes of it, which waits. */
static bool do_accept(struct replay *r, struct replay_end *end, const struct replay_call *call) {
  struct rail_net_device_handle *unused = NULL;
  if (end->plan->made_by == RAIL_TRACE_ACCEPT) return end->comm || end->dead;
  struct replay_comm *made = replay_comm_of(&r->plan.files[r->plan.own], call->value);
  struct replay_end *to = made ? &r->ends[made - r->plan.files[r->plan.own].comms] : NULL;
  if (!to || made->peer_file < 0) return true; /* nobody will connect */
  int result = r->net.vt->accept(end->comm, &to->comm, &unused);
  if (result != RAIL_OK) {
    to->comm = NULL;
    to->dead = true;
    fail(r, end, call, "accept", result);
    return true;
  }
  return to->comm != NULL;
}

static bool do_close(struct replay *r, struct replay_end *end, const struct replay_call *call) {
  int result = RAIL_OK;
  for (size_t i = 0; i < r->nmemory; i++)
    if (r->memory[i].comm == end->comm) replay_memory_drop(r, &r->memory[i]);
  for (size_t i = 0; i < end->nlive; i++) drop_loose(r, &end->live[i]);
  end->nlive = 0;
  if (end->comm && end->plan->made_by == RAIL_TRACE_LISTEN) result = r->net.vt->close_listen(end->comm);
  else if (end->comm && end->plan->made_by == RAIL_TRACE_CONNECT) result = r->net.vt->close_send(end->comm);
  else if (end->comm) result = r->net.vt->close_recv(end->comm);
  end->comm = NULL;
  if (result != RAIL_OK) fail(r, end, call, "close", result);
  return true;
}

/* ---- one step ---------------------------------------------------------- */

/* What was passed over must come to its end before memory and comm go. */
static bool has_sends(const struct replay *r, const struct replay_end *end) {
  return r->relaxed && end->nlive && end->plan->made_by == RAIL_TRACE_CONNECT && !end->dead;
}

static bool do_call(struct replay *r, struct replay_end *end, const struct replay_call *call) {
  struct replay_memory *m;
  switch (call->kind) {
    case REPLAY_LISTEN: return do_listen(r, end, call);
    case REPLAY_CONNECT: return do_connect(r, end, call);
    case REPLAY_ACCEPT: return do_accept(r, end, call);
    case REPLAY_REG:
      ENSURE(replay_memory_add(r, end, call), "regMr of %" PRIu64 " bytes failed (call %u.%" PRIu64 ")", call->size,
             call->thread, call->number);
      return true;
    case REPLAY_DEREG:
      if (has_sends(r, end)) return false;
      if ((m = replay_memory_of(r, call->value)) != NULL) replay_memory_drop(r, m);
      return true;
    case REPLAY_SEND: return do_send(r, end, call);
    case REPLAY_RECV: return do_recv(r, end, call);
    case REPLAY_DONE:
      return end->done[call->value] != 0 || (r->relaxed && end->plan->calls[call->value].kind == REPLAY_SEND);
    case REPLAY_CLOSE: return !has_sends(r, end) && do_close(r, end, call);
  }
  return true;
}

/* A request that is not made again is not waited for; with an error nothing but the closing is left. */
static bool leave_out(const struct replay_end *end, const struct replay_call *call) {
  const struct replay_comm *c = end->plan;
  if (call->kind == REPLAY_CLOSE) return false;
  if (end->dead || (c->peer_file < 0 && c->made_by != RAIL_TRACE_LISTEN)) return true;
  if (call->kind != REPLAY_DONE) return false;
  const struct replay_call *post = &c->calls[call->value];
  if (post->kind == REPLAY_SEND) return !c->msgs[post->first].matched;
  for (unsigned int i = 0; i < post->n; i++)
    if (c->slots[post->first + i].msg == REPLAY_NONE) return true;
  return false;
}

bool replay_step(struct replay *r, struct replay_end *end) {
  bool moved = false;
  if (end->over) return false;
  if (!end->dead && end->nlive) moved = poll_live(r, end);
  while (end->next < end->plan->ncalls) {
    const struct replay_call *call = &end->plan->calls[end->next];
    if (!leave_out(end, call)) {
      if (r->timed && call->kind != REPLAY_DONE && rail_now_ns() < r->start_ns + call->ns) return moved;
      if (!do_call(r, end, call)) return moved;
    }
    end->next++;
    moved = true;
  }
  end->over = true;
  return true;
}

void replay_waits(const struct replay_end *end, char *text, size_t size) {
  const struct replay_call *call = &end->plan->calls[end->next];
  const struct replay_call *of = call->kind == REPLAY_DONE ? &end->plan->calls[call->value] : call;
  snprintf(text, size, "comm %" PRIu64 " waits %s %s, recorded as call %u.%" PRIu64, end->plan->id,
           call->kind == REPLAY_DONE ? "for the end of" : "in", kind_texts[of->kind], of->thread, of->number);
}
