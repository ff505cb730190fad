/* SPDX-License-Identifier: Apache-2.0 */
#include "kit/kit_world.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "common/base/clock.h"
#include "kit/kit_group_impl.h"

#define TICK_MS 10
#define GRACE_MS 500  /* for the others, when one side has failed */
#define LONG_S 0.25   /* no call of a plugin lasts so long */
#define EXIT_MS 10000 /* for a process that has said its last word */

struct kit_world {
  const struct kit_world_how *how;
  struct kit_link *link;
  bool leads;
  int nsides;
  uint64_t start_ns, limit_ms;
  uint64_t grace; /* deadline of the others; 0: nobody has failed */
  int first;      /* the side that failed first; -1 */
  bool lost_link, dismissed;
  struct kit_child child[KIT_MAX_SIDES];
};

const char *kit_end_text(enum kit_end end) {
  static const char *const names[] = {[KIT_END_FINE] = "fine", [KIT_END_SKIPPED] = "skipped",
                                      [KIT_END_FAILED] = "failed", [KIT_END_CRASH] = "crashed",
                                      [KIT_END_HANG] = "hung", [KIT_END_LOST] = "lost", [KIT_END_ERROR] = "not run"};
  return names[end];
}

/* ---- words on their way ---- */

static bool valid_rank(const struct kit_world *w, int rank) { return rank >= 0 && rank < w->nsides; }

static void send_to(struct kit_world *w, struct kit_frame *f) {
  if (valid_rank(w, f->to)) {
    if (w->child[f->to].here) kit_child_send(&w->child[f->to], f);
    else if (w->link) kit_link_send(w->link, f);
  } else if (f->to == KIT_ALL) {
    for (int i = 0; i < w->nsides; i++)
      if (w->child[i].here) kit_child_send(&w->child[i], f);
    if (w->leads && w->link) kit_link_send(w->link, f);
  }
}

static void announce(struct kit_world *w, uint32_t kind, int from) {
  struct kit_frame f = {.kind = kind, .from = from, .to = KIT_ALL};
  send_to(w, &f);
}

static void check_meeting(struct kit_world *w) {
  bool any = false;
  for (int i = 0; i < w->nsides; i++) {
    const struct kit_child *c = &w->child[i];
    if (!c->met && !(c->over && c->end.end == KIT_END_FINE)) return;
    any |= c->met;
  }
  if (!any) return;
  for (int i = 0; i < w->nsides; i++) w->child[i].met = false;
  announce(w, KIT_FRAME_GO, KIT_PARENT);
}

static bool is_bad(enum kit_end end) { return end != KIT_END_FINE && end != KIT_END_LOST; }

/* Others see these ends before they are known here, and say first what follows from them. */
static int silent(enum kit_end end) { return end == KIT_END_CRASH ? 2 : end == KIT_END_ERROR ? 1 : 0; }

/* The side that the others' failures follow from: the first to say so, but for one that could not. */
static void blame(struct kit_world *w, int rank) {
  enum kit_end end = w->child[rank].end.end;
  if (!is_bad(end) || (w->child[rank].dying && end != KIT_END_ERROR)) return;
  if (w->first < 0 || silent(end) > silent(w->child[w->first].end.end)) w->first = rank;
}

static void ended(struct kit_world *w, int rank) {
  struct kit_child *c = &w->child[rank];
  c->over = true;
  if (!w->leads) {
    struct kit_frame f = {.kind = KIT_FRAME_ENDED, .from = rank, .to = KIT_PARENT, .size = sizeof c->end};
    memcpy(f.data, &c->end, sizeof c->end);
    kit_link_send(w->link, &f);
    return;
  }
  announce(w, KIT_FRAME_GONE, rank);
  blame(w, rank);
  if (is_bad(c->end.end) && !w->grace) w->grace = rail_deadline_in_ms(GRACE_MS);
  check_meeting(w);
}

static void give_word(struct kit_world *w, struct kit_frame *f) {
  struct kit_word word = {.rank = f->from};
  struct { double value; char unit[16]; char name[64]; } metric;
  if (!w->how->on_word) return;
  if (f->kind == KIT_FRAME_ROLE) {
    word.kind = KIT_WORD_ROLE;
    word.data = f->data;
    word.size = f->size;
  } else if (f->kind == KIT_FRAME_METRIC) {
    if (f->size != sizeof metric) return;
    memcpy(&metric, f->data, sizeof metric);
    metric.unit[sizeof metric.unit - 1] = metric.name[sizeof metric.name - 1] = 0;
    word.kind = KIT_WORD_METRIC;
    word.text = metric.name;
    word.value = metric.value;
    word.unit = metric.unit;
  } else {
    if (f->size == 0) return;
    f->data[f->size - 1] = 0;
    word.kind = f->kind == KIT_FRAME_LOG ? KIT_WORD_LOG : KIT_WORD_NOTE;
    word.text = (const char *)f->data;
  }
  w->how->on_word(w, &word, w->how->arg);
}

static void leader_hears(struct kit_world *w, struct kit_frame *f) {
  struct kit_child *c = &w->child[f->from];
  switch (f->kind) {
  case KIT_FRAME_MEET:
    c->met = true;
    check_meeting(w);
    break;
  case KIT_FRAME_NOTE:
  case KIT_FRAME_METRIC:
  case KIT_FRAME_LOG:
  case KIT_FRAME_ROLE: give_word(w, f); break;
  case KIT_FRAME_ENDED:
    if (c->here || c->over || f->size != sizeof c->end) break;
    memcpy(&c->end, f->data, sizeof c->end);
    c->end.text[sizeof c->end.text - 1] = c->end.call[sizeof c->end.call - 1] = 0;
    if ((unsigned)c->end.end > KIT_END_ERROR) c->end.end = KIT_END_ERROR; /* it came over the wire */
    ended(w, f->from);
    break;
  default: break;
  }
}

static void last_word(struct kit_child *c, struct kit_frame *f) {
  int32_t end;
  if (f->size <= sizeof end) return;
  memcpy(&end, f->data, sizeof end);
  if (end < KIT_END_FINE || end > KIT_END_ERROR) return;
  f->data[f->size - 1] = 0;
  c->spoke = true;
  c->end.end = (enum kit_end)end;
  snprintf(c->end.text, sizeof c->end.text, "%s", (const char *)f->data + sizeof end);
}

static void child_says(struct kit_world *w, int rank, struct kit_frame *f) {
  struct kit_child *c = &w->child[rank];
  f->from = rank; /* whatever it says */
  if (f->kind == KIT_FRAME_END) last_word(c, f), blame(w, rank);
  else if (f->kind == KIT_FRAME_DYING) c->dying = true;
  else if (f->kind == KIT_FRAME_BYTES && valid_rank(w, f->to)) send_to(w, f);
  else if (f->kind == KIT_FRAME_ENDED || f->kind == KIT_FRAME_BYTES) return;
  else if (w->leads) leader_hears(w, f);
  else kit_link_send(w->link, f);
}

static void read_child(struct kit_world *w, int rank) {
  static struct kit_frame f;
  for (int n = 0; n < 256 && kit_child_receive(&w->child[rank], &f) > 0; n++) child_says(w, rank, &f);
}

static void link_says(struct kit_world *w, struct kit_frame *f) {
  if (f->kind == KIT_FRAME_BYTES && valid_rank(w, f->to) && w->child[f->to].here) kit_child_send(&w->child[f->to], f);
  else if (w->leads && valid_rank(w, f->from)) leader_hears(w, f);
  else if (w->leads) return;
  else if (f->kind == KIT_FRAME_GO || f->kind == KIT_FRAME_GONE) send_to(w, f);
  else if (f->kind == KIT_FRAME_OVER) w->dismissed = true;
  else if (f->kind == KIT_FRAME_KILL) w->grace = 1;
}

static void read_link(struct kit_world *w) {
  static struct kit_frame f;
  int got = 0;
  while (!w->dismissed && (got = kit_link_receive(w->link, &f)) > 0) link_says(w, &f);
  if (got < 0) w->lost_link = true;
}

/* ---- ends ---- */

static void where(struct kit_child *c, bool lasting, char *text, size_t size) {
  double seconds;
  unsigned call = kit_trail_longest(c->trail, &seconds);
  snprintf(c->end.call, sizeof c->end.call, "%s", kit_call_text(call));
  if (call == KIT_CALL_NONE) snprintf(text, size, "outside of the plugin's calls");
  else if (call == KIT_CALL_EXIT) snprintf(text, size, "at the end of the process, in destructors");
  else if (!lasting) snprintf(text, size, "in %s", kit_call_text(call));
  else snprintf(text, size, "in %s, which had lasted %.3g s", kit_call_text(call), seconds);
}

static const char *signal_text(int number) {
  const char *name = sigabbrev_np(number);
  return name ? name : "unknown";
}

/* What a process's end means, its last word known. */
static void judge(struct kit_child *c, int status) {
  char place[128];
  if (c->killed) return; /* `end` says why */
  if (c->dying) {
    c->end.end = KIT_END_FINE;
    return;
  }
  where(c, false, place, sizeof place);
  if (WIFSIGNALED(status)) {
    c->end.end = KIT_END_CRASH;
    c->end.signal = WTERMSIG(status);
    snprintf(c->end.text, sizeof c->end.text, "SIG%s %s", signal_text(WTERMSIG(status)), place);
  } else if (!c->spoke && WEXITSTATUS(status) == 127 && !c->end.call[0]) { /* ld.so ends with 127, too, in dlopen */
    c->end.end = KIT_END_ERROR;
    snprintf(c->end.text, sizeof c->end.text, "the process could not be started");
  } else if (!c->spoke || (c->end.end == KIT_END_FINE && WEXITSTATUS(status) != 0)) {
    c->end.end = KIT_END_CRASH;
    snprintf(c->end.text, sizeof c->end.text, "the process ended with exit status %d %s", WEXITSTATUS(status), place);
  }
}

static void reap(struct kit_world *w, int rank) {
  struct kit_child *c = &w->child[rank];
  int status;
  if (c->pid <= 0 || !kit_child_reap(c, &status)) return;
  read_child(w, rank);
  judge(c, status);
  kit_child_release(c);
  ended(w, rank);
}

static void end_child(struct kit_child *c, enum kit_end end, const char *why, const char *place) {
  if (c->killed || c->pid <= 0) return;
  c->killed = true;
  if (end != KIT_END_LOST || !is_bad(c->end.end)) { /* its own word about its failure stays */
    c->end.end = end;
    snprintf(c->end.text, sizeof c->end.text, "%s%s", why, place);
  }
  kit_child_kill(c);
}

/* One that is ended because another had failed; a call that it does not come back from may be why. */
static void end_other(struct kit_child *c) {
  char place[128];
  double seconds = 0;
  unsigned call = c->trail ? kit_trail_longest(c->trail, &seconds) : KIT_CALL_NONE;
  if (call == KIT_CALL_NONE || seconds < LONG_S) {
    end_child(c, KIT_END_LOST, "another side had failed", "");
    return;
  }
  where(c, true, place, sizeof place);
  end_child(c, KIT_END_LOST, "another side had failed; still ", place);
}

/* A side that was to die and is silent instead (stopped, say) is ended with the others. */
static void end_late(struct kit_world *w) {
  char place[128];
  bool late = rail_now_ns() - w->start_ns > w->limit_ms * 1000000;
  bool others = w->grace && rail_deadline_passed(w->grace);
  bool alone = true; /* only sides that shall die are left */
  for (int i = 0; i < w->nsides; i++) alone &= w->child[i].over || w->child[i].dying;
  for (int i = 0; i < w->nsides; i++) {
    struct kit_child *c = &w->child[i];
    if (c->pid <= 0 || c->killed) continue;
    if (c->dying && (alone || late || others)) end_child(c, KIT_END_FINE, "", "");
    else if (others) end_other(c);
    else if (late) {
      where(c, true, place, sizeof place);
      end_child(c, KIT_END_HANG, c->spoke ? "does not exit: still " : "no end in time: still ", place);
    }
  }
}

static void end_remote(struct kit_world *w) {
  for (int i = 0; i < w->nsides; i++) {
    struct kit_child *c = &w->child[i];
    if (c->over || c->here) continue;
    c->end.end = KIT_END_ERROR;
    snprintf(c->end.text, sizeof c->end.text, "%s", KIT_HOST_LOST);
    ended(w, i);
  }
}

/* ---- the loop ---- */

static bool all_over(const struct kit_world *w) {
  for (int i = 0; i < w->nsides; i++)
    if (!w->child[i].over && (w->leads || w->child[i].here)) return false;
  return w->leads || w->dismissed || w->lost_link;
}

static void wait_for_words(struct kit_world *w) {
  struct pollfd p[KIT_MAX_SIDES + 1];
  int ranks[KIT_MAX_SIDES + 1], n = 0;
  for (int i = 0; i < w->nsides; i++) {
    struct kit_child *c = &w->child[i];
    if (c->fd < 0) continue;
    kit_child_flush(c);
    ranks[n] = i;
    p[n++] = (struct pollfd){c->fd, (short)(POLLIN | (c->out.first < c->out.end ? POLLOUT : 0)), 0};
  }
  if (w->link && !w->lost_link) {
    bool sent = kit_link_flush(w->link);
    ranks[n] = -1;
    p[n++] = (struct pollfd){kit_link_fd(w->link), (short)(POLLIN | (sent ? 0 : POLLOUT)), 0};
  }
  poll(p, (nfds_t)n, TICK_MS);
  for (int k = 0; k < n; k++) {
    if (!(p[k].revents & (POLLIN | POLLHUP | POLLERR))) continue;
    if (ranks[k] >= 0) read_child(w, ranks[k]);
    else read_link(w);
  }
}

static void run(struct kit_world *w) {
  while (!all_over(w)) {
    wait_for_words(w);
    for (int i = 0; i < w->nsides; i++) reap(w, i);
    if (w->lost_link && w->leads) end_remote(w);
    if (w->lost_link && !w->leads) w->grace = 1;
    end_late(w);
    if (w->how && w->how->on_tick) w->how->on_tick(w, w->how->arg);
  }
}

static void start(struct kit_world *w, const struct kit_job *job, int first, int end, const struct kit_setup *setup) {
  static const struct kit_setup plain;
  w->start_ns = rail_now_ns();
  w->limit_ms = job->limit_ms;
  w->first = -1;
  for (int i = 0; i < w->nsides; i++) w->child[i].pid = w->child[i].fd = -1;
  for (int i = first; i < end; i++) {
    struct kit_job mine = *job;
    mine.rank = i;
    if (!kit_spawn(&w->child[i], &mine, setup ? &setup[i] : &plain)) {
      kit_child_release(&w->child[i]);
      ended(w, i);
    }
  }
}

static void conclude(struct kit_world *w, struct kit_outcome *outcome) {
  *outcome = (struct kit_outcome){.rank = w->first, .seconds = (double)(rail_now_ns() - w->start_ns) / 1e9};
  for (int i = 0; i < w->nsides; i++) {
    outcome->sides[i] = w->child[i].end;
    if (w->first < 0 && w->child[i].end.end == KIT_END_LOST) w->first = i; /* a side that ended too early */
  }
  if (w->first < 0) return;
  outcome->rank = w->first;
  outcome->end = outcome->sides[w->first].end == KIT_END_LOST ? KIT_END_FAILED : outcome->sides[w->first].end;
}

void kit_world_run(struct kit_link *link, const struct kit_world_how *how, struct kit_outcome *outcome) {
  struct kit_world *w = calloc(1, sizeof *w);
  struct kit_frame f = {.kind = KIT_FRAME_JOB, .from = KIT_PARENT, .to = KIT_PARENT, .size = sizeof how->job};
  struct kit_job job = how->job;
  if (!w) {
    *outcome = (struct kit_outcome){.end = KIT_END_ERROR, .sides[0] = {.end = KIT_END_ERROR, .text = "out of memory"}};
    return;
  }
  *w = (struct kit_world){.how = how, .link = link, .leads = true, .nsides = how->nsides};
  job.nsides = how->nsides;
  job.hosts = link ? 2 : 1;
  job.rank = 0;
  if (link) {
    memcpy(f.data, &job, sizeof job);
    kit_link_send(link, &f);
  }
  start(w, &job, 0, link ? (how->nsides + 1) / 2 : how->nsides, how->setup);
  run(w);
  conclude(w, outcome);
  if (link) {
    f = (struct kit_frame){.kind = KIT_FRAME_OVER, .from = KIT_PARENT, .to = KIT_PARENT};
    kit_link_send(link, &f);
    kit_link_flush(link);
  }
  free(w);
}

static void follow(struct kit_link *link, const struct kit_job *job) {
  struct kit_world *w = calloc(1, sizeof *w);
  if (!w) return;
  *w = (struct kit_world){.link = link, .nsides = job->nsides};
  start(w, job, (job->nsides + 1) / 2, job->nsides, NULL);
  run(w);
  free(w);
}

int kit_world_serve(struct kit_link *link, const char *plugin) {
  static struct kit_frame f;
  for (;;) {
    struct pollfd p = {.fd = kit_link_fd(link), .events = POLLIN};
    poll(&p, 1, 1000);
    int got = kit_link_receive(link, &f);
    if (got < 0) return 0; /* the leader is done */
    if (got == 0 || f.kind != KIT_FRAME_JOB || f.size != sizeof(struct kit_job)) continue;
    struct kit_job job;
    memcpy(&job, f.data, sizeof job);
    if (!kit_job_check(&job)) return 3;
    snprintf(job.plugin, sizeof job.plugin, "%s", plugin);
    follow(link, &job);
  }
}

/* ---- inside on_word, on_tick ---- */

unsigned kit_world_call(const struct kit_world *w, int rank, double *seconds) {
  *seconds = 0;
  bool known = valid_rank(w, rank) && w->child[rank].trail && !w->child[rank].over;
  return known ? kit_trail_longest(w->child[rank].trail, seconds) : KIT_CALL_NONE;
}

void kit_world_stop(struct kit_world *w) {
  struct kit_frame f = {.kind = KIT_FRAME_KILL, .from = KIT_PARENT, .to = KIT_PARENT};
  if (w->link) kit_link_send(w->link, &f);
  w->grace = 1;
}
