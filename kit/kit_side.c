/* SPDX-License-Identifier: Apache-2.0 */
#include "kit/kit_side.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/kit_group_impl.h"
#include "kit/kit_net.h"
#include "kit/kit_trail.h"
#include "kit/kit_world.h"

#define LOG_LINES 40 /* warnings passed on; a plugin in trouble logs without end */

/* Bytes from one peer that nobody has asked for yet. */
struct inbox {
  uint8_t *data;
  size_t first, end, room;
  bool gone;  /* it has ended */
  bool spare; /* … and may */
};

struct kit_side {
  struct kit_job job;
  uint64_t deadline;
  uint32_t meetings, met;
  struct inbox from[KIT_MAX_SIDES];
};

static struct kit_side self;
static atomic_int logged;

/* A failed side's connections stay for so long, that the parent hears of it before it hears of what follows from it. */
#define LINGER_US 50000

/* ---- out ---- */

static void send_frame(uint32_t kind, int to, const void *data, size_t size) {
  struct kit_frame f = {.kind = kind, .from = self.job.rank, .to = to, .size = (uint32_t)size};
  if (size > 0) memcpy(f.data, data, size);
  while (send(KIT_SIDE_FD, &f, KIT_FRAME_HEAD + size, MSG_NOSIGNAL) < 0)
    if (errno != EINTR) _exit(3); /* the parent is gone: nobody is left to tell */
}

static void send_text(uint32_t kind, const char *text) {
  char cut[2048];
  size_t len = strnlen(text, sizeof cut - 1);
  memcpy(cut, text, len);
  cut[len] = 0;
  send_frame(kind, KIT_PARENT, cut, len + 1);
}

static void send_end(enum kit_end end, const char *text) {
  struct { int32_t end; char text[1024]; } word = {.end = (int32_t)end};
  snprintf(word.text, sizeof word.text, "%s", text);
  send_frame(KIT_FRAME_END, KIT_PARENT, &word, offsetof(__typeof__(word), text) + strlen(word.text) + 1);
}

_Noreturn static void end_now(enum kit_end end, const char *text) {
  send_end(end, text);
  _exit(end == KIT_END_SKIPPED ? 0 : 1);
}

__attribute__((format(printf, 3, 4))) static void on_failure(const char *file, int line, const char *fmt, ...) {
  char text[1024];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  if (getenv("RAIL_TEST_VERBOSE")) fprintf(stderr, "# %s:%d: %s\n", file, line, text);
  send_end(KIT_END_FAILED, text);
  usleep(LINGER_US);
  _exit(1);
}

static void on_skip(const char *why) { end_now(KIT_END_SKIPPED, why); }

static void on_warning(const char *text) {
  if (atomic_fetch_add(&logged, 1) < LOG_LINES) send_text(KIT_FRAME_LOG, text);
}

void kit_note(struct kit_side *side, const char *fmt, ...) {
  char text[2048];
  va_list ap;
  (void)side;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  send_text(KIT_FRAME_NOTE, text);
}

void kit_metric(struct kit_side *side, const char *name, double value, const char *unit) {
  struct { double value; char unit[16]; char name[64]; } word = {.value = value};
  (void)side;
  snprintf(word.unit, sizeof word.unit, "%s", unit);
  snprintf(word.name, sizeof word.name, "%s", name);
  send_frame(KIT_FRAME_METRIC, KIT_PARENT, &word, sizeof word);
}

void kit_tell(struct kit_side *side, const void *data, size_t size) {
  (void)side;
  ENSURE(size <= KIT_FRAME_ROOM, "a record of %zu bytes; %d fit", size, KIT_FRAME_ROOM);
  send_frame(KIT_FRAME_ROLE, KIT_PARENT, data, size);
}

void kit_put(struct kit_side *side, int to, const void *data, size_t size) {
  const char *p = data;
  ENSURE(to >= 0 && to < side->job.nsides && to != side->job.rank, "no side %d to send to", to);
  for (size_t n; size > 0; p += n, size -= n) {
    n = size < KIT_FRAME_ROOM ? size : KIT_FRAME_ROOM;
    send_frame(KIT_FRAME_BYTES, to, p, n);
  }
}

/* ---- in ---- */

static void inbox_add(struct inbox *in, const void *data, size_t size) {
  if (in->room - in->end < size) {
    size_t have = in->end - in->first, room = 2 * (have + size);
    uint8_t *bigger = malloc(room);
    ENSURE(bigger, "out of memory");
    if (have > 0) memcpy(bigger, in->data + in->first, have);
    free(in->data);
    *in = (struct inbox){.data = bigger, .end = have, .room = room, .gone = in->gone, .spare = in->spare};
  }
  memcpy(in->data + in->end, data, size);
  in->end += size;
}

static void take(struct kit_side *side, const struct kit_frame *f) {
  if (f->kind != KIT_FRAME_GO && (f->from < 0 || f->from >= KIT_MAX_SIDES)) return;
  switch (f->kind) {
  case KIT_FRAME_BYTES: inbox_add(&side->from[f->from], f->data, f->size); break;
  case KIT_FRAME_GO: side->met++; break;
  case KIT_FRAME_GONE: side->from[f->from].gone = true; break;
  default: break;
  }
}

/* Waits for one frame, `wait_ms` at most. False: none came. */
static bool receive(struct kit_side *side, int wait_ms) {
  static struct kit_frame f;
  struct pollfd p = {.fd = KIT_SIDE_FD, .events = POLLIN};
  if (poll(&p, 1, wait_ms) <= 0) return false;
  ssize_t n = recv(KIT_SIDE_FD, &f, sizeof f, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) _exit(3); /* as above */
  if ((size_t)n >= KIT_FRAME_HEAD && f.size == (size_t)n - KIT_FRAME_HEAD) take(side, &f);
  return true;
}

static void receive_all(struct kit_side *side) {
  while (receive(side, 0)) {}
}

bool kit_heard(struct kit_side *side, int from, size_t size) {
  receive_all(side);
  const struct inbox *in = &side->from[from];
  return in->end - in->first >= size;
}

/* Waiting in vain is not this side's fault: the one that does not come is what the report is about. */
_Noreturn static void lost(const char *what, int number) {
  char text[128];
  snprintf(text, sizeof text, "%s %d", what, number);
  end_now(KIT_END_LOST, text);
}

void kit_get(struct kit_side *side, int from, void *data, size_t size) {
  struct inbox *in = &side->from[from];
  while (!kit_heard(side, from, size)) {
    if (in->gone) lost("the other side had ended: side", from);
    if (rail_deadline_passed(side->deadline)) lost("nothing was heard until the deadline from side", from);
    receive(side, 100);
  }
  memcpy(data, in->data + in->first, size);
  in->first += size;
  if (in->first == in->end) in->first = in->end = 0;
}

void kit_swap(struct kit_side *side, int with, const void *mine, void *theirs, size_t size) {
  kit_put(side, with, mine, size);
  kit_get(side, with, theirs, size);
}

void kit_meet(struct kit_side *side) {
  send_frame(KIT_FRAME_MEET, KIT_PARENT, NULL, 0);
  side->meetings++;
  while (side->met < side->meetings) {
    for (int i = 0; i < side->job.nsides; i++)
      if (side->from[i].gone && !side->from[i].spare) lost("the other side had ended: side", i);
    if (rail_deadline_passed(side->deadline)) lost("not all sides have come to meeting", (int)side->meetings);
    receive(side, 100);
  }
}

void kit_side_will_die(struct kit_side *side) {
  (void)side;
  send_frame(KIT_FRAME_DYING, KIT_PARENT, NULL, 0);
}

void kit_side_may_lose(struct kit_side *side, int rank) { side->from[rank].spare = true; }

const struct kit_job *kit_side_job(const struct kit_side *side) { return &side->job; }
int kit_side_rank(const struct kit_side *side) { return side->job.rank; }
int kit_side_count(const struct kit_side *side) { return side->job.nsides; }

/* ---- life ---- */

static void read_job(void) {
  static struct kit_frame f;
  ssize_t n;
  while ((n = recv(KIT_SIDE_FD, &f, sizeof f, 0)) < 0 && errno == EINTR) {}
  if (n != (ssize_t)(KIT_FRAME_HEAD + sizeof self.job) || f.kind != KIT_FRAME_JOB) {
    fprintf(stderr, "rail-kit side: is started by rail-kit, not by hand\n");
    exit(2);
  }
  memcpy(&self.job, f.data, sizeof self.job);
  if (!kit_job_check(&self.job)) exit(3);
}

_Noreturn void kit_side_main(const struct kit_role *roles) {
  struct rlimit none = {0, 0};
  read_job();
  setrlimit(RLIMIT_CORE, &none); /* a crash is a result here */
  struct kit_trail *trail = kit_trail_map(KIT_TRAIL_FD);
  if (trail) kit_trail_use(trail);
  close(KIT_TRAIL_FD);
  dup2(STDERR_FILENO, STDOUT_FILENO); /* the parent's standard output is for its report */
  self.deadline = rail_deadline_in_ms(self.job.limit_ms * 9 / 10); /* to say what it waits for, before it is killed */
  kit_patience_cap(self.job.limit_ms * 8 / 10);
  kit_seed(self.job.seed);
  kit_net_target(self.job.plugin, self.job.version, self.job.dev);
  kit_net_target_fused(&self.job.fuse);
  kit_net_on_warning(on_warning);
  kit_on_failure(on_failure);
  kit_on_skip(on_skip);
  for (; roles->kind; roles++) {
    if (strcmp(roles->kind, self.job.kind) != 0) continue;
    roles->run(&self);
    send_end(KIT_END_FINE, "");
    kit_trail_enter(KIT_CALL_EXIT); /* the plugin's destructors */
    exit(0);
  }
  end_now(KIT_END_ERROR, "this rail-kit has no such role");
}
