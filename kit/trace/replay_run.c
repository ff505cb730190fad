/* SPDX-License-Identifier: Apache-2.0
 * Makes the recorded calls again, each when what came before it in the recording is done, and compares what comes of
 * them. */
#include "kit/trace/replay_run.h"

#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "common/base/result.h"
#include "kit/trace/kit_replay.h"

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
  int dir = call->kind == REPLAY_RECV;
  uint64_t now = rail_now_ns();
  r->last_ns = now;
  end->done[l->call] = 1;
  if (call->size) { /* it was done in the recording, too */
    (void)kit_trace_list_add(&r->recorded[dir], call->size);
    (void)kit_trace_list_add(&r->replayed[dir], now - l->posted_ns);
  }
  if (dir) {
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
  if (!m->matched) return true; /* no one would receive it */
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

/* The message that carries a handle to the process that connects. */
struct handle_message {
  uint32_t comm; /* index there */
  uint8_t handle[RAIL_NET_HANDLE_SIZE];
};

static int device_of(const struct replay *r, const struct replay_call *call) {
  return r->own_devices ? call->dev % r->net.ndev : kit_process_job(r->self)->dev;
}

static void give_handle(struct replay *r, const struct replay_end *listen) {
  struct replay_file *own = &r->plan.files[r->plan.own];
  for (size_t i = 0; i < own->ncomms; i++) {
    const struct replay_comm *c = &own->comms[i];
    if (c->made_by != RAIL_TRACE_ACCEPT || c->listen != listen->plan->id || c->peer_file < 0) continue;
    struct handle_message message = {.comm = c->peer};
    memcpy(message.handle, listen->handle, sizeof message.handle);
    if (c->peer_file == r->plan.own) {
      memcpy(r->ends[c->peer].handle, message.handle, sizeof message.handle);
      r->ends[c->peer].has_handle = true;
    } else {
      kit_send_bytes(r->self, c->peer_file, &message, sizeof message);
    }
  }
}

static void take_handles(struct replay *r, int from) {
  struct handle_message message;
  while (from != r->plan.own && kit_bytes_ready(r->self, from, sizeof message)) {
    kit_recv_bytes(r->self, from, &message, sizeof message);
    ENSURE(message.comm < r->plan.files[r->plan.own].ncomms, "side %d names comm %u, which is not there", from,
           message.comm);
    memcpy(r->ends[message.comm].handle, message.handle, sizeof message.handle);
    r->ends[message.comm].has_handle = true;
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
  if (!to || made->peer_file < 0) return true; /* no one will connect */
  int result = r->net.vt->accept(end->comm, &to->comm, &unused);
  if (result != RAIL_OK) {
    to->comm = NULL;
    to->dead = true;
    fail(r, end, call, "accept", result);
    return true;
  }
  return to->comm != NULL;
}

/* The plugin's result. */
static int close_comm(struct replay *r, struct replay_end *end) {
  int result = RAIL_OK;
  for (size_t i = 0; i < end->nlive; i++) drop_loose(r, &end->live[i]);
  end->nlive = 0;
  if (end->comm && end->plan->made_by == RAIL_TRACE_LISTEN) result = r->net.vt->close_listen(end->comm);
  else if (end->comm && end->plan->made_by == RAIL_TRACE_CONNECT) result = r->net.vt->close_send(end->comm);
  else if (end->comm) result = r->net.vt->close_recv(end->comm);
  end->comm = NULL;
  return result;
}

static bool do_close(struct replay *r, struct replay_end *end, const struct replay_call *call) {
  for (size_t i = 0; i < r->nmemory; i++)
    if (r->memory[i].end == end) replay_memory_drop(r, &r->memory[i]);
  int result = close_comm(r, end);
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

/* Makes the next calls of an end whose time has come. True: something moved. */
static bool step_end(struct replay *r, struct replay_end *end) {
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

/* What it waits for, for people. */
static void describe_wait(const struct replay_end *end, char *text, size_t size) {
  const struct replay_call *call = &end->plan->calls[end->next];
  const struct replay_call *of = call->kind == REPLAY_DONE ? &end->plan->calls[call->value] : call;
  snprintf(text, size, "comm %" PRIu64 " waits %s %s, recorded as call %u.%" PRIu64, end->plan->id,
           call->kind == REPLAY_DONE ? "for the end of" : "in", kind_texts[of->kind], of->thread, of->number);
}

/* ---- one process of a replay: one recorded file ---- */

#define RELAX_MS 500   /* nothing moves for so long: perhaps because sends are done later than recorded */
#define STALL_MS 20000 /* nothing moves for so long: it never will */
#define SPIN_ROUNDS 500

static void read_plan(struct replay *r) {
  const struct kit_job *job = kit_process_job(r->self);
  char *files[KIT_MAX_PROCESSES], why[700];
  for (int i = 0; i < job->nprocesses; i++) {
    char key[16];
    snprintf(key, sizeof key, "file%d", i);
    const char *file = kit_job_arg(job, key);
    ENSURE(file && (files[i] = strdup(file)), "no %s in the job", key);
  }
  bool ok = replay_plan_make(&r->plan, files, job->nprocesses, job->rank, why, sizeof why);
  for (int i = 0; i < job->nprocesses; i++) free(files[i]);
  ENSURE(ok, "%s", why);
}

static void prepare(struct replay *r) {
  struct rail_net_props_v12 props;
  struct replay_file *own = &r->plan.files[r->plan.own];
  const struct kit_job *job = kit_process_job(r->self);
  kit_net_open(&r->net);
  ENSURE_INT(r->net.vt->get_properties(RAIL_MAX(job->dev, 0), &props), RAIL_OK);
  ENSURE(own->max_group <= (unsigned int)RAIL_MIN(props.max_recvs, KIT_MAX_GROUP),
         "the recording has receives of %u buffers, the plugin takes %d", own->max_group, props.max_recvs);
  r->ends = calloc(own->ncomms + 1, sizeof *r->ends);
  ENSURE(r->ends && replay_text_make(r), "out of memory");
  for (size_t i = 0; i < own->ncomms; i++) {
    r->ends[i].plan = &own->comms[i];
    r->ends[i].done = calloc(own->comms[i].ncalls + 1, 1);
    ENSURE(r->ends[i].done, "out of memory");
  }
}

/* Nothing moves: is it that nothing is due yet? */
static bool all_in_future(const struct replay *r) {
  uint64_t now = rail_now_ns();
  for (size_t i = 0; i < r->plan.files[r->plan.own].ncomms; i++) {
    const struct replay_end *end = &r->ends[i];
    if (end->over) continue;
    const struct replay_call *call = &end->plan->calls[end->next];
    if (call->kind == REPLAY_DONE || now >= r->start_ns + call->ns) return false;
  }
  return true;
}

static void stuck(struct replay *r) {
  char text[200];
  for (size_t i = 0; i < r->plan.files[r->plan.own].ncomms; i++) {
    struct replay_end *end = &r->ends[i];
    if (end->over) continue;
    describe_wait(end, text, sizeof text);
    replay_differs(r, &r->result.undone, "nothing has moved for %d s: %s", STALL_MS / 1000, text);
  }
}

/* A plugin that buffers lets the caller go on where one that does not waits for the receiver: what the recording has
 * then can be an order in which both processes would wait for each other. */
static void relax(struct replay *r) {
  if (r->relaxed) return;
  r->relaxed = true;
  kit_note(r->self, "sends are done later than in the recording: posts do not wait for them any more");
}

static void run(struct replay *r) {
  size_t n = r->plan.files[r->plan.own].ncomms;
  uint64_t deadline = 0, patience = 0;
  unsigned int idle = 0;
  for (bool left = true; left;) {
    bool moved = false;
    left = false;
    for (size_t i = 0; i < n; i++) {
      moved |= step_end(r, &r->ends[i]);
      left |= !r->ends[i].over;
    }
    if (moved || !deadline || (r->timed && all_in_future(r))) {
      deadline = rail_deadline_in_ms(kit_patience_ms(STALL_MS));
      patience = rail_deadline_in_ms(RELAX_MS);
    }
    if (left && rail_deadline_passed(patience)) relax(r);
    idle = moved ? 0 : idle + 1;
    if (idle > SPIN_ROUNDS) sched_yield(); /* the peer may need this core */
    else if (idle) rail_cpu_relax();
    if (left && rail_deadline_passed(deadline)) {
      stuck(r);
      return;
    }
  }
}

/* What the recording left open. All processes have made all calls by now. */
static void tidy(struct replay *r) {
  size_t n = r->plan.files[r->plan.own].ncomms;
  for (size_t i = 0; i < r->nmemory; i++) replay_memory_drop(r, &r->memory[i]);
  for (size_t i = 0; i < n; i++) {
    struct replay_end *end = &r->ends[i];
    (void)close_comm(r, end);
    free(end->live);
    free(end->done);
  }
  kit_net_close(&r->net);
}

static void sum_up(struct replay *r) {
  static const double quantiles[REPLAY_QUANTILES] = {0.5, 0.99, 1};
  struct replay_result *to = &r->result;
  const struct replay_file *own = &r->plan.files[r->plan.own];
  to->left_out = r->plan.unmatched;
  to->unknown = r->plan.unknown;
  to->errors = own->errors;
  to->dropped = own->dropped;
  to->flushes = own->flushes;
  to->recorded_ns = r->plan.last_ns - r->plan.first_ns;
  to->replayed_ns = r->last_ns > r->first_ns ? r->last_ns - r->first_ns : 0;
  for (int dir = 0; dir < 2; dir++) {
    for (int q = 0; q < REPLAY_QUANTILES; q++) {
      to->recorded[dir][q] = kit_trace_list_at(&r->recorded[dir], quantiles[q]);
      to->replayed[dir][q] = kit_trace_list_at(&r->replayed[dir], quantiles[q]);
    }
    free(r->recorded[dir].v);
    free(r->replayed[dir].v);
  }
}

void kit_replay_process(struct kit_process *self) {
  static struct replay r; /* a process has one */
  r.self = self;
  r.timed = kit_job_number(kit_process_job(self), "speed", 0) == 1;
  r.own_devices = kit_job_number(kit_process_job(self), "recorded_devices", 1) == 1;
  r.check = kit_job_number(kit_process_job(self), "check", 1) == 1;
  read_plan(&r);
  prepare(&r);
  kit_barrier(self);
  r.start_ns = rail_now_ns();
  run(&r);
  kit_barrier(self);
  sum_up(&r);
  tidy(&r);
  kit_send_record(self, &r.result, sizeof r.result);
  free(r.text);
  free(r.ends);
  free(r.memory);
  kit_trace_map_free(&r.memory_by_id);
  replay_plan_free(&r.plan);
}
