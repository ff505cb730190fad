/* SPDX-License-Identifier: Apache-2.0
 * A process of a group: frames to and from its parent, how it reports its end, and the program that runs its role. */
#include "kit/kit_process.h"

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
#include "kit/kit_call_trace.h"
#include "kit/kit_group.h"
#include "kit/kit_group_impl.h"
#include "kit/kit_net.h"

#define LOG_LINES 40 /* warnings passed on; a plugin in trouble logs without end */

/* Bytes from one peer that were not read yet. */
struct rx_buf {
  uint8_t *data;
  size_t first, end, room;
  bool gone;    /* the peer has ended */
  bool may_end; /* … and is allowed to */
};

struct kit_process {
  struct kit_job job;
  uint64_t deadline;
  uint32_t barriers, passed;
  struct rx_buf from[KIT_MAX_PROCESSES];
};

static struct kit_process this_process;
static atomic_int logged;

/* A failed process keeps its connections open so long that the parent gets its report before those of its peers. */
#define LINGER_US 50000

/* ---- out ---- */

static void send_frame(uint32_t kind, int to, const void *data, size_t size) {
  struct kit_frame f = {.kind = kind, .from = this_process.job.rank, .to = to, .size = (uint32_t)size};
  if (size > 0) memcpy(f.data, data, size);
  while (send(KIT_PROCESS_FD, &f, KIT_FRAME_HEAD + size, MSG_NOSIGNAL) < 0)
    if (errno != EINTR) _exit(3); /* the parent is gone: nothing can be reported */
}

static void send_text(uint32_t kind, const char *text) {
  char cut[2048];
  size_t len = strnlen(text, sizeof cut - 1);
  memcpy(cut, text, len);
  cut[len] = 0;
  send_frame(kind, KIT_PARENT, cut, len + 1);
}

static void send_end(enum kit_end end, const char *text) {
  struct { int32_t end; char text[1024]; } report = {.end = (int32_t)end};
  snprintf(report.text, sizeof report.text, "%s", text);
  send_frame(KIT_FRAME_END, KIT_PARENT, &report, offsetof(__typeof__(report), text) + strlen(report.text) + 1);
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

void kit_note(struct kit_process *self, const char *fmt, ...) {
  char text[2048];
  va_list ap;
  (void)self;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  send_text(KIT_FRAME_NOTE, text);
}

void kit_metric(struct kit_process *self, const char *name, double value, const char *unit) {
  struct { double value; char unit[16]; char name[64]; } metric = {.value = value};
  (void)self;
  snprintf(metric.unit, sizeof metric.unit, "%s", unit);
  snprintf(metric.name, sizeof metric.name, "%s", name);
  send_frame(KIT_FRAME_METRIC, KIT_PARENT, &metric, sizeof metric);
}

void kit_send_record(struct kit_process *self, const void *data, size_t size) {
  (void)self;
  ENSURE(size <= KIT_FRAME_ROOM, "a record of %zu bytes; %d fit", size, KIT_FRAME_ROOM);
  send_frame(KIT_FRAME_RECORD, KIT_PARENT, data, size);
}

void kit_send_bytes(struct kit_process *self, int to, const void *data, size_t size) {
  const char *p = data;
  ENSURE(to >= 0 && to < self->job.nprocesses && to != self->job.rank, "no side %d to send to", to);
  for (size_t n; size > 0; p += n, size -= n) {
    n = size < KIT_FRAME_ROOM ? size : KIT_FRAME_ROOM;
    send_frame(KIT_FRAME_BYTES, to, p, n);
  }
}

/* ---- in ---- */

static void rx_buf_add(struct rx_buf *in, const void *data, size_t size) {
  if (in->room - in->end < size) {
    size_t have = in->end - in->first, room = 2 * (have + size);
    uint8_t *bigger = malloc(room);
    ENSURE(bigger, "out of memory");
    if (have > 0) memcpy(bigger, in->data + in->first, have);
    free(in->data);
    *in = (struct rx_buf){.data = bigger, .end = have, .room = room, .gone = in->gone, .may_end = in->may_end};
  }
  memcpy(in->data + in->end, data, size);
  in->end += size;
}

static void take(struct kit_process *self, const struct kit_frame *f) {
  if (f->kind != KIT_FRAME_RELEASE && (f->from < 0 || f->from >= KIT_MAX_PROCESSES)) return;
  switch (f->kind) {
  case KIT_FRAME_BYTES: rx_buf_add(&self->from[f->from], f->data, f->size); break;
  case KIT_FRAME_RELEASE: self->passed++; break;
  case KIT_FRAME_EXITED: self->from[f->from].gone = true; break;
  default: break;
  }
}

/* Waits for one frame, `wait_ms` at most. False: none came. */
static bool receive(struct kit_process *self, int wait_ms) {
  static struct kit_frame f;
  struct pollfd p = {.fd = KIT_PROCESS_FD, .events = POLLIN};
  if (poll(&p, 1, wait_ms) <= 0) return false;
  ssize_t n = recv(KIT_PROCESS_FD, &f, sizeof f, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) _exit(3); /* as above */
  if ((size_t)n >= KIT_FRAME_HEAD && f.size == (size_t)n - KIT_FRAME_HEAD) take(self, &f);
  return true;
}

static void receive_all(struct kit_process *self) {
  while (receive(self, 0)) {}
}

bool kit_bytes_ready(struct kit_process *self, int from, size_t size) {
  receive_all(self);
  const struct rx_buf *in = &self->from[from];
  return in->end - in->first >= size;
}

/* Waiting in vain is not this process's fault: the one that does not come is what the report is about. */
_Noreturn static void lost(const char *what, int number) {
  char text[128];
  snprintf(text, sizeof text, "%s %d", what, number);
  end_now(KIT_END_LOST, text);
}

void kit_recv_bytes(struct kit_process *self, int from, void *data, size_t size) {
  struct rx_buf *in = &self->from[from];
  while (!kit_bytes_ready(self, from, size)) {
    if (in->gone) lost("the other side had ended: side", from);
    if (rail_deadline_passed(self->deadline)) lost("nothing was received until the deadline from side", from);
    receive(self, 100);
  }
  memcpy(data, in->data + in->first, size);
  in->first += size;
  if (in->first == in->end) in->first = in->end = 0;
}

void kit_exchange(struct kit_process *self, int with, const void *mine, void *theirs, size_t size) {
  kit_send_bytes(self, with, mine, size);
  kit_recv_bytes(self, with, theirs, size);
}

void kit_barrier(struct kit_process *self) {
  send_frame(KIT_FRAME_BARRIER, KIT_PARENT, NULL, 0);
  self->barriers++;
  while (self->passed < self->barriers) {
    for (int i = 0; i < self->job.nprocesses; i++)
      if (self->from[i].gone && !self->from[i].may_end) lost("the other side had ended: side", i);
    if (rail_deadline_passed(self->deadline)) lost("not all sides have reached barrier", (int)self->barriers);
    receive(self, 100);
  }
}

void kit_process_expect_death(struct kit_process *self) {
  (void)self;
  send_frame(KIT_FRAME_EXPECT_DEATH, KIT_PARENT, NULL, 0);
}

void kit_process_allow_loss(struct kit_process *self, int rank) { self->from[rank].may_end = true; }

const struct kit_job *kit_process_job(const struct kit_process *self) { return &self->job; }
int kit_process_rank(const struct kit_process *self) { return self->job.rank; }
int kit_process_count(const struct kit_process *self) { return self->job.nprocesses; }

/* ---- life ---- */

static void read_job(void) {
  static struct kit_frame f;
  ssize_t n;
  while ((n = recv(KIT_PROCESS_FD, &f, sizeof f, 0)) < 0 && errno == EINTR) {}
  if (n != (ssize_t)(KIT_FRAME_HEAD + sizeof this_process.job) || f.kind != KIT_FRAME_JOB) {
    fprintf(stderr, "rail-kit side: is started by rail-kit, not by hand\n");
    exit(2);
  }
  memcpy(&this_process.job, f.data, sizeof this_process.job);
  if (!kit_job_check(&this_process.job)) exit(3);
}

_Noreturn void kit_process_main(const struct kit_role *roles) {
  struct rlimit none = {0, 0};
  read_job();
  setrlimit(RLIMIT_CORE, &none); /* a crash is a result here */
  struct kit_call_trace *trace = kit_call_trace_map(KIT_CALL_TRACE_FD);
  if (trace) kit_call_trace_use(trace);
  close(KIT_CALL_TRACE_FD);
  dup2(STDERR_FILENO, STDOUT_FILENO); /* the parent's standard output is for its report */
  /* Below the limit: it reports what it waits for before it is killed. */
  this_process.deadline = rail_deadline_in_ms(this_process.job.limit_ms * 9 / 10);
  kit_patience_cap(this_process.job.limit_ms * 8 / 10);
  kit_seed(this_process.job.seed);
  kit_net_target(this_process.job.plugin, this_process.job.version, this_process.job.dev);
  kit_net_target_fused(&this_process.job.fuse);
  kit_net_on_warning(on_warning);
  kit_on_failure(on_failure);
  kit_on_skip(on_skip);
  for (; roles->kind; roles++) {
    if (strcmp(roles->kind, this_process.job.kind) != 0) continue;
    roles->run(&this_process);
    send_end(KIT_END_FINE, "");
    kit_call_begin(KIT_CALL_EXIT); /* the plugin's destructors */
    exit(0);
  }
  end_now(KIT_END_ERROR, "this rail-kit has no such role");
}
