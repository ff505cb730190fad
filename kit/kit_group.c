/* SPDX-License-Identifier: Apache-2.0
 * The parent of a process group: passes frames between its processes and those of the other host, keeps their barriers,
 * says how each process has ended, and ends those that do not. */
#include "kit/kit_group.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "common/base/clock.h"
#include "kit/kit_ensure.h"
#include "kit/kit_group_impl.h"
#include "kit/kit_report.h"

#define TICK_MS 10
#define GRACE_MS 500  /* for the others, when one process has failed */
#define AT_ONCE 1     /* a deadline that has passed */
#define LONG_S 0.25   /* no call of a plugin lasts so long */
#define HOST_MS 10000 /* for the other host beyond the time limit, at which it ends its processes itself */
#define EXIT_MS 10000 /* to exit, for a process that has reported its end */

struct kit_group {
  const struct kit_group_options *how;
  struct kit_link *link;
  bool leads;
  int nprocesses;
  uint64_t start_ns, limit_ms;
  uint64_t grace; /* deadline of the others; 0: no one has failed */
  int first;      /* the process that failed first; -1 */
  bool link_lost, released;
  struct kit_child child[KIT_MAX_PROCESSES];
};

const char *kit_end_text(enum kit_end end) {
  static const char *const names[] = {[KIT_END_FINE] = "fine", [KIT_END_SKIPPED] = "skipped",
                                      [KIT_END_FAILED] = "failed", [KIT_END_CRASH] = "crashed",
                                      [KIT_END_HANG] = "hung", [KIT_END_LOST] = "lost", [KIT_END_ERROR] = "not run"};
  return names[end];
}

/* ---- frames between processes ---- */

static bool valid_rank(const struct kit_group *g, int rank) { return rank >= 0 && rank < g->nprocesses; }

static void send_to(struct kit_group *g, struct kit_frame *f) {
  if (valid_rank(g, f->to)) {
    if (g->child[f->to].here) kit_child_send(&g->child[f->to], f);
    else if (g->link) kit_link_send(g->link, f);
  } else if (f->to == KIT_ALL) {
    for (int i = 0; i < g->nprocesses; i++)
      if (g->child[i].here) kit_child_send(&g->child[i], f);
    if (g->leads && g->link) kit_link_send(g->link, f);
  }
}

static void broadcast(struct kit_group *g, uint32_t kind, int from) {
  struct kit_frame f = {.kind = kind, .from = from, .to = KIT_ALL};
  send_to(g, &f);
}

static void check_barrier(struct kit_group *g) {
  bool any = false;
  for (int i = 0; i < g->nprocesses; i++) {
    const struct kit_child *c = &g->child[i];
    if (!c->at_barrier && !(c->over && c->end.end == KIT_END_FINE)) return;
    any |= c->at_barrier;
  }
  if (!any) return;
  for (int i = 0; i < g->nprocesses; i++) g->child[i].at_barrier = false;
  broadcast(g, KIT_FRAME_RELEASE, KIT_PARENT);
}

static bool is_bad(enum kit_end end) { return end != KIT_END_FINE && end != KIT_END_LOST; }

/* Peers see these ends before the parent does, and report the consequences first. */
static int reported_late(enum kit_end end) { return end == KIT_END_CRASH ? 2 : end == KIT_END_ERROR ? 1 : 0; }

/* The process that caused the others' failures: the first to report one, except for one that could not report. */
static void note_failure(struct kit_group *g, int rank) {
  enum kit_end end = g->child[rank].end.end;
  if (!is_bad(end) || (g->child[rank].death_expected && end != KIT_END_ERROR)) return;
  if (g->first < 0 || reported_late(end) > reported_late(g->child[g->first].end.end)) g->first = rank;
}

static void ended(struct kit_group *g, int rank) {
  struct kit_child *c = &g->child[rank];
  c->over = true;
  if (!g->leads) {
    struct kit_frame f = {.kind = KIT_FRAME_ENDED, .from = rank, .to = KIT_PARENT, .size = sizeof c->end};
    memcpy(f.data, &c->end, sizeof c->end);
    kit_link_send(g->link, &f);
    return;
  }
  broadcast(g, KIT_FRAME_EXITED, rank);
  note_failure(g, rank);
  if (is_bad(c->end.end) && !g->grace) g->grace = rail_deadline_in_ms(GRACE_MS);
  check_barrier(g);
}

static void deliver_message(struct kit_group *g, struct kit_frame *f) {
  struct kit_message message = {.rank = f->from};
  struct { double value; char unit[16]; char name[64]; } metric;
  if (!g->how->on_message) return;
  if (f->kind == KIT_FRAME_RECORD) {
    message.kind = KIT_MESSAGE_RECORD;
    message.data = f->data;
    message.size = f->size;
  } else if (f->kind == KIT_FRAME_METRIC) {
    if (f->size != sizeof metric) return;
    memcpy(&metric, f->data, sizeof metric);
    metric.unit[sizeof metric.unit - 1] = metric.name[sizeof metric.name - 1] = 0;
    message.kind = KIT_MESSAGE_METRIC;
    message.text = metric.name;
    message.value = metric.value;
    message.unit = metric.unit;
  } else {
    if (f->size == 0) return;
    f->data[f->size - 1] = 0;
    message.kind = f->kind == KIT_FRAME_LOG ? KIT_MESSAGE_LOG : KIT_MESSAGE_NOTE;
    message.text = (const char *)f->data;
  }
  g->how->on_message(g, &message, g->how->arg);
}

static void handle_leader_frame(struct kit_group *g, struct kit_frame *f) {
  struct kit_child *c = &g->child[f->from];
  switch (f->kind) {
  case KIT_FRAME_BARRIER:
    c->at_barrier = true;
    check_barrier(g);
    break;
  case KIT_FRAME_NOTE:
  case KIT_FRAME_METRIC:
  case KIT_FRAME_LOG:
  case KIT_FRAME_RECORD: deliver_message(g, f); break;
  case KIT_FRAME_ENDED:
    if (c->here || c->over || f->size != sizeof c->end) break;
    memcpy(&c->end, f->data, sizeof c->end);
    c->end.text[sizeof c->end.text - 1] = c->end.call[sizeof c->end.call - 1] = 0;
    if ((unsigned)c->end.end > KIT_END_ERROR) c->end.end = KIT_END_ERROR; /* it came over the wire */
    ended(g, f->from);
    break;
  default: break;
  }
}

static void read_end_frame(struct kit_group *g, int rank, struct kit_frame *f) {
  struct kit_child *c = &g->child[rank];
  int32_t end;
  if (f->size <= sizeof end) return;
  memcpy(&end, f->data, sizeof end);
  if (end < KIT_END_FINE || end > KIT_END_ERROR) return;
  f->data[f->size - 1] = 0;
  c->reported = true;
  c->exit_by = rail_deadline_in_ms(kit_patience_ms(EXIT_MS));
  c->end.end = (enum kit_end)end;
  snprintf(c->end.text, sizeof c->end.text, "%s", (const char *)f->data + sizeof end);
  note_failure(g, rank);
}

static void handle_child_frame(struct kit_group *g, int rank, struct kit_frame *f) {
  struct kit_child *c = &g->child[rank];
  f->from = rank; /* whatever it claims */
  if (f->kind == KIT_FRAME_END) read_end_frame(g, rank, f);
  else if (f->kind == KIT_FRAME_EXPECT_DEATH) c->death_expected = true;
  else if (f->kind == KIT_FRAME_BYTES && valid_rank(g, f->to)) send_to(g, f);
  else if (f->kind == KIT_FRAME_ENDED || f->kind == KIT_FRAME_BYTES) return;
  else if (g->leads) handle_leader_frame(g, f);
  else kit_link_send(g->link, f);
}

static void read_child(struct kit_group *g, int rank) {
  static struct kit_frame f;
  for (int n = 0; n < 256 && kit_child_receive(&g->child[rank], &f) > 0; n++) handle_child_frame(g, rank, &f);
}

static void handle_link_frame(struct kit_group *g, struct kit_frame *f) {
  if (f->kind == KIT_FRAME_BYTES && valid_rank(g, f->to) && g->child[f->to].here) kit_child_send(&g->child[f->to], f);
  else if (g->leads && valid_rank(g, f->from)) handle_leader_frame(g, f);
  else if (g->leads) return;
  else if (f->kind == KIT_FRAME_RELEASE || f->kind == KIT_FRAME_EXITED) send_to(g, f);
  else if (f->kind == KIT_FRAME_DONE) g->released = true;
  else if (f->kind == KIT_FRAME_KILL) g->grace = AT_ONCE;
}

static void read_link(struct kit_group *g) {
  static struct kit_frame f;
  int got = 0;
  while (!g->released && (got = kit_link_receive(g->link, &f)) > 0) handle_link_frame(g, &f);
  if (got < 0) g->link_lost = true;
}

/* ---- ends ---- */

static void describe_call(struct kit_child *c, bool lasting, char *text, size_t size) {
  double seconds;
  unsigned call = kit_call_trace_longest(c->calls, &seconds);
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

/* What a process's end means; its report, if any, is known. */
static void classify_exit(struct kit_child *c, int status) {
  char place[128];
  if (c->killed) return; /* `end` has the reason */
  if (c->death_expected) {
    c->end.end = KIT_END_FINE;
    return;
  }
  describe_call(c, false, place, sizeof place);
  if (WIFSIGNALED(status)) {
    c->end.end = KIT_END_CRASH;
    c->end.signal = WTERMSIG(status);
    snprintf(c->end.text, sizeof c->end.text, "SIG%s %s", signal_text(WTERMSIG(status)), place);
  } else if (!c->reported && WEXITSTATUS(status) == 127 && !c->end.call[0]) { /* ld.so ends with 127, too, in dlopen */
    c->end.end = KIT_END_ERROR;
    snprintf(c->end.text, sizeof c->end.text, "the process could not be started");
  } else if (!c->reported || (c->end.end == KIT_END_FINE && WEXITSTATUS(status) != 0)) {
    c->end.end = KIT_END_CRASH;
    snprintf(c->end.text, sizeof c->end.text, "the process ended with exit status %d %s", WEXITSTATUS(status), place);
  }
}

static void reap(struct kit_group *g, int rank) {
  struct kit_child *c = &g->child[rank];
  int status;
  if (c->pid <= 0 || !kit_child_reap(c, &status)) return;
  read_child(g, rank);
  classify_exit(c, status);
  kit_child_release(c);
  ended(g, rank);
}

static void end_child(struct kit_child *c, enum kit_end end, const char *why, const char *place) {
  if (c->killed || c->pid <= 0) return;
  c->killed = true;
  if (end != KIT_END_LOST || !is_bad(c->end.end)) { /* its own report of its failure stays */
    c->end.end = end;
    snprintf(c->end.text, sizeof c->end.text, "%s%s", why, place);
  }
  kit_child_kill(c);
}

/* One that is ended because another had failed; a call that it does not come back from may be why. */
static void end_other(struct kit_child *c) {
  char place[128];
  double seconds = 0;
  unsigned call = c->calls ? kit_call_trace_longest(c->calls, &seconds) : KIT_CALL_NONE;
  if (call == KIT_CALL_NONE || seconds < LONG_S) {
    end_child(c, KIT_END_LOST, "another side had failed", "");
    return;
  }
  describe_call(c, true, place, sizeof place);
  end_child(c, KIT_END_LOST, "another side had failed; still ", place);
}

/* A process that was to die and is silent instead (stopped, say) is ended with the others. */
static void end_late(struct kit_group *g) {
  char place[128];
  bool late = rail_now_ns() - g->start_ns > g->limit_ms * 1000000;
  bool others = g->grace && rail_deadline_passed(g->grace);
  bool alone = true; /* only processes that shall die are left */
  for (int i = 0; i < g->nprocesses; i++) alone &= g->child[i].over || g->child[i].death_expected;
  for (int i = 0; i < g->nprocesses; i++) {
    struct kit_child *c = &g->child[i];
    if (c->pid <= 0 || c->killed) continue;
    if (c->death_expected && (alone || late || others)) end_child(c, KIT_END_FINE, "", "");
    else if (others) end_other(c);
    else if (late || (c->reported && rail_deadline_passed(c->exit_by))) {
      describe_call(c, true, place, sizeof place);
      end_child(c, KIT_END_HANG, c->reported ? "does not exit: still " : "no end in time: still ", place);
    }
  }
}

/* The other host's processes, or its leader's DONE, are awaited no longer. */
static void give_up_host(struct kit_group *g) {
  if (!g->link || g->link_lost || rail_now_ns() - g->start_ns <= (g->limit_ms + HOST_MS) * 1000000) return;
  kit_link_abandon(g->link);
  g->link_lost = true;
}

static void end_remote(struct kit_group *g) {
  for (int i = 0; i < g->nprocesses; i++) {
    struct kit_child *c = &g->child[i];
    if (c->over || c->here) continue;
    c->end.end = KIT_END_ERROR;
    snprintf(c->end.text, sizeof c->end.text, "%s", KIT_HOST_LOST);
    ended(g, i);
  }
}

/* ---- the loop ---- */

static bool all_over(const struct kit_group *g) {
  for (int i = 0; i < g->nprocesses; i++)
    if (!g->child[i].over && (g->leads || g->child[i].here)) return false;
  return g->leads || g->released || g->link_lost;
}

static void wait_for_frames(struct kit_group *g) {
  struct pollfd p[KIT_MAX_PROCESSES + 1];
  int ranks[KIT_MAX_PROCESSES + 1], n = 0;
  for (int i = 0; i < g->nprocesses; i++) {
    struct kit_child *c = &g->child[i];
    if (c->fd < 0) continue;
    kit_child_flush(c);
    ranks[n] = i;
    p[n++] = (struct pollfd){c->fd, (short)(POLLIN | (c->out.first < c->out.end ? POLLOUT : 0)), 0};
  }
  if (g->link && !g->link_lost) {
    bool sent = kit_link_flush(g->link);
    ranks[n] = -1;
    p[n++] = (struct pollfd){kit_link_fd(g->link), (short)(POLLIN | (sent ? 0 : POLLOUT)), 0};
  }
  poll(p, (nfds_t)n, TICK_MS);
  for (int k = 0; k < n; k++) {
    if (!(p[k].revents & (POLLIN | POLLHUP | POLLERR))) continue;
    if (ranks[k] >= 0) read_child(g, ranks[k]);
    else read_link(g);
  }
}

static void run(struct kit_group *g) {
  while (!all_over(g)) {
    wait_for_frames(g);
    for (int i = 0; i < g->nprocesses; i++) reap(g, i);
    give_up_host(g);
    if (g->link_lost && g->leads) end_remote(g);
    if (g->link_lost && !g->leads) g->grace = AT_ONCE;
    end_late(g);
    if (g->how && g->how->on_tick) g->how->on_tick(g, g->how->arg);
  }
}

static void start(struct kit_group *g, const struct kit_job *job, int first, int end,
                  const struct kit_process_setup *setup) {
  static const struct kit_process_setup plain;
  g->start_ns = rail_now_ns();
  g->limit_ms = job->limit_ms;
  g->first = -1;
  for (int i = 0; i < g->nprocesses; i++) g->child[i].pid = g->child[i].fd = -1;
  for (int i = first; i < end; i++) {
    struct kit_job mine = *job;
    mine.rank = i;
    if (!kit_spawn(&g->child[i], &mine, setup ? &setup[i] : &plain)) {
      kit_child_release(&g->child[i]);
      ended(g, i);
    }
  }
}

static void set_outcome(struct kit_group *g, struct kit_outcome *outcome) {
  *outcome = (struct kit_outcome){.rank = g->first, .seconds = (double)(rail_now_ns() - g->start_ns) / 1e9};
  for (int i = 0; i < g->nprocesses; i++) {
    outcome->sides[i] = g->child[i].end;
    if (g->first < 0 && g->child[i].end.end == KIT_END_LOST) g->first = i; /* a process that ended too early */
  }
  if (g->first < 0) return;
  outcome->rank = g->first;
  outcome->end = outcome->sides[g->first].end == KIT_END_LOST ? KIT_END_FAILED : outcome->sides[g->first].end;
}

void kit_group_run(struct kit_link *link, const struct kit_group_options *how, struct kit_outcome *outcome) {
  struct kit_group *g = calloc(1, sizeof *g);
  struct kit_frame f = {.kind = KIT_FRAME_JOB, .from = KIT_PARENT, .to = KIT_PARENT, .size = sizeof how->job};
  struct kit_job job = how->job;
  if (!g) {
    *outcome = (struct kit_outcome){.end = KIT_END_ERROR, .sides[0] = {.end = KIT_END_ERROR, .text = "out of memory"}};
    return;
  }
  *g = (struct kit_group){.how = how, .link = link, .leads = true, .nprocesses = how->nprocesses};
  job.nprocesses = how->nprocesses;
  job.hosts = link ? 2 : 1;
  job.rank = 0;
  if (link) {
    memcpy(f.data, &job, sizeof job);
    kit_link_send(link, &f);
  }
  start(g, &job, 0, link ? (how->nprocesses + 1) / 2 : how->nprocesses, how->setup);
  run(g);
  set_outcome(g, outcome);
  if (link) {
    f = (struct kit_frame){.kind = KIT_FRAME_DONE, .from = KIT_PARENT, .to = KIT_PARENT};
    kit_link_send(link, &f);
    kit_link_flush(link);
  }
  free(g);
}

static bool follow(struct kit_link *link, const struct kit_job *job) {
  struct kit_group *g = calloc(1, sizeof *g);
  if (!g) return false;
  *g = (struct kit_group){.link = link, .nprocesses = job->nprocesses};
  start(g, job, (job->nprocesses + 1) / 2, job->nprocesses, NULL);
  run(g);
  free(g);
  return true;
}

const char *kit_group_serve(struct kit_link *link, const char *plugin) {
  static struct kit_frame f;
  for (;;) {
    struct pollfd p = {.fd = kit_link_fd(link), .events = POLLIN};
    poll(&p, 1, 1000);
    int got = kit_link_receive(link, &f);
    if (got < 0) return KIT_HOST_LOST;
    if (got > 0 && f.kind == KIT_FRAME_BYE) return NULL;
    if (got == 0 || f.kind != KIT_FRAME_JOB || f.size != sizeof(struct kit_job)) continue;
    struct kit_job job;
    memcpy(&job, f.data, sizeof job);
    if (!kit_job_check(&job)) return "the other host sent an invalid job";
    snprintf(job.plugin, sizeof job.plugin, "%s", plugin);
    if (!follow(link, &job)) return "out of memory";
  }
}

/* ---- inside on_message, on_tick ---- */

unsigned kit_group_call(const struct kit_group *g, int rank, double *seconds) {
  *seconds = 0;
  bool known = valid_rank(g, rank) && g->child[rank].calls && !g->child[rank].over;
  return known ? kit_call_trace_longest(g->child[rank].calls, seconds) : KIT_CALL_NONE;
}

void kit_group_stop(struct kit_group *g) {
  struct kit_frame f = {.kind = KIT_FRAME_KILL, .from = KIT_PARENT, .to = KIT_PARENT};
  if (g->link) kit_link_send(g->link, &f);
  g->grace = AT_ONCE;
}

/* ---- places ---- */

void kit_placement_apply(const struct kit_placement *placement, int rank, struct kit_process_setup *setup) {
  const struct kit_location *place = &placement->at[rank % 2];
  if (place->netns[0]) setup->netns = place->netns;
  if (place->bound) setup->cpu = &place->cpu;
  setup->place_env = place->env;
}

void kit_placement_append(const struct kit_placement *placement, char *text, size_t size) {
  size_t at = strlen(text);
  if (placement->at[0].netns[0])
    snprintf(text + at, size - at, " --netns %s,%s", placement->at[0].netns, placement->at[1].netns);
  at = strlen(text);
  if (placement->at[0].bound)
    snprintf(text + at, size - at, " --bind %d,%d", placement->at[0].cpu, placement->at[1].cpu);
  for (int i = 0; i < 2; i++)
    for (const char *const *e = placement->at[i].env; *e; e++) {
      char word[512];
      snprintf(word, sizeof word, "%d:%s", i, *e);
      at = strlen(text);
      snprintf(text + at, size - at, " --side-env ");
      kit_append_quoted(text, size, word);
    }
}
