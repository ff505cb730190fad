/* SPDX-License-Identifier: Apache-2.0
 *
 * Item 12, the peer's end: killed, stopped, gone or reset, at any moment. NCCL has no timeout of its own: only an error
 * from the plugin is how the application learns that a rank is lost.
 *
 * One process ends, the other observes. The first announces its end, so that the other knows when its time begins. */
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"
#include "kit/kit_tcp.h"

enum death { BY_KILL, BY_EXIT, BY_RESET };
enum { SENDER = 0, RECEIVER = 1 }; /* ranks */
enum { NOTICE_MS = 5000, SMALL = 1000, OPS = 4, FILL = 0x11 };
#define BIG ((size_t)32 << 20) /* takes long enough to be interrupted */

struct script { int dies; enum death death; bool mid_transfer; };

static bool dies(const struct kit_process *self, const struct script *s) { return kit_process_rank(self) == s->dies; }

static const char *how(enum death death) {
  return death == BY_KILL ? "was killed" : death == BY_EXIT ? "exited" : "reset its connections";
}

/* What one end has: its comm, and registered memory. */
struct end { struct kit_net n; struct kit_pair p; void *comm, *mh; bool sends; uint8_t *data; };

static void open_end(struct kit_process *self, struct end *e) {
  kit_net_open(&e->n);
  kit_check_connect(self, &e->n, &e->p);
  e->sends = kit_sends(self);
  e->comm = e->sends ? e->p.send : e->p.recv;
  e->data = kit_pages(BIG);
  if (e->sends) memset(e->data, FILL, BIG);
  e->mh = kit_mr_reg(&e->n, e->comm, e->data, BIG);
}

static struct kit_op end_op(const struct end *e, size_t size) {
  struct kit_op op = e->sends ? kit_op_send(e->comm, e->data, size, 0) : kit_op_recv(e->comm, e->data, size, 0);
  op.mh[0] = e->mh;
  return op;
}

static void some_messages(struct end *e) {
  for (int i = 0; i < 3; i++) {
    struct kit_op op = end_op(e, SMALL);
    kit_op_finish(&e->n, &op);
  }
}

/* NCCL's order. */
static void close_end(struct end *e) {
  kit_mr_dereg(&e->n, e->comm, e->mh);
  kit_pages_free(e->data, BIG);
  if (e->sends) kit_close_within(e->n.vt->close_send, e->comm, "closeSend, after the peer's end,", KIT_CLOSE_HUNG_MS);
  else kit_close_within(e->n.vt->close_recv, e->comm, "closeRecv, after the peer's end,", KIT_CLOSE_HUNG_MS);
}

/* Not by connect(), which a thread sanitizer watches: to it this is a race with the plugin's threads. */
static int reset_connections(void) {
  static struct kit_tcp_socket s[256];
  int n = kit_tcp_sockets(s, 256), done = 0;
  struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
  for (int i = 0; i < n; i++)
    if (s[i].connected) done += syscall(SYS_connect, s[i].fd, &nowhere, sizeof nowhere) == 0;
  return done;
}

/* Announces the end to the peer, and ends as the script has it. Returns after a reset or before an exit. */
static void end_process(struct kit_process *self, const struct script *s) {
  static struct kit_tcp_socket sockets[256];
  char announcement = 'x';
  int other = 1 - s->dies;
  if (s->death == BY_RESET) {
    announcement = 0;
    for (int n = kit_tcp_sockets(sockets, 256), i = 0; i < n; i++) announcement |= sockets[i].connected;
  }
  if (s->death == BY_KILL) kit_process_expect_death(self);
  kit_send_bytes(self, other, &announcement, 1);
  if (s->death == BY_KILL) kill(getpid(), SIGKILL);
  if (s->death == BY_RESET && !announcement) kit_skip("the plugin has no TCP connection that could be reset");
  if (s->death == BY_RESET) reset_connections();
}

/* Has any of a long message arrived? */
static bool begun(const struct end *e) {
  for (size_t at = SMALL; at < BIG; at += 64 << 10)
    if (((const volatile uint8_t *)e->data)[at]) return true;
  return false;
}

/* Some of a long message moves, then silence. */
static void half_a_message(struct end *e) {
  struct kit_op op = end_op(e, BIG);
  kit_op_start(&e->n, &op);
  uint64_t until = rail_deadline_in_ms(e->sends ? 2 : 1000);
  while (!rail_deadline_passed(until) && !kit_op_step(&e->n, &op) && (e->sends || !begun(e))) sched_yield();
}

/* The part of the side that ends. */
static void run_ending_side(struct kit_process *self, const struct script *s, struct end *e) {
  if (s->mid_transfer) half_a_message(e);
  end_process(self, s);
  if (s->death != BY_RESET) return;
  kit_barrier(self); /* the peer has seen it */
  close_end(e);
  kit_net_close(&e->n);
}

/* The survivor's part up to the announcement. The end itself may be seen a little earlier. */
static void step_until_announced(struct kit_process *self, const struct script *s, struct end *e, struct kit_op *op) {
  char announcement;
  int quiet = 0;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS)), early = deadline;
  kit_process_allow_loss(self, s->dies);
  while (!kit_bytes_ready(self, s->dies, 1)) {
    if (s->mid_transfer && !op->error && kit_op_step(&e->n, op) && op->error) early = rail_deadline_in_ms(2000);
    ENSURE(!op->error || !rail_deadline_passed(early), "error %s while the peer was still there",
           kit_rc_text(op->error));
    ENSURE(!rail_deadline_passed(deadline), "the other side does not come to its end");
    kit_rest(&quiet);
  }
  kit_recv_bytes(self, s->dies, &announcement, 1);
  if (s->death == BY_RESET && !announcement) kit_skip("the plugin has no TCP connection that could be reset");
}

/* The survivor goes on with transfers of BIG until one fails. Returns the error; 0: none within the time. */
static int until_error(struct end *e, struct kit_op op[OPS], const struct script *s, uint64_t ms) {
  uint64_t start = rail_now_ns(), until = rail_deadline_in_ms(ms);
  for (int i = 0, quiet = 0;;) {
    if (kit_op_step(&e->n, &op[i]) && op[i].error) return op[i].error;
    if (op[i].done) quiet = 0;
    if (op[i].done && i++ == 0 && !e->sends) /* what was in flight; for a sender, what the kernel still takes */
      ENSURE(kit_bytes_check(e->data, BIG, FILL) < 0, "a receive was done without its data: the peer %s halfway",
             how(s->death));
    ENSURE(i < OPS, "%d MiB were %s a peer that %s %.1f s ago: NCCL takes this for delivered", (int)(OPS * BIG >> 20),
           e->sends ? "sent to" : "received from", how(s->death), (double)(rail_now_ns() - start) / 1e9);
    if (rail_deadline_passed(until)) return 0;
    kit_rest(&quiet);
  }
}

static void post_more(struct end *e, struct kit_op op[OPS]) {
  for (int i = 0; i < OPS; i++) {
    struct kit_op late = end_op(e, BIG);
    kit_op_test_again(&e->n, &op[i], 1);
    kit_op_post(&e->n, &late);
  }
}

static void error_is_reported(struct kit_process *self, struct script s) {
  static struct end e; /* a process that exits without closing leaks nothing, to a leak checker */
  open_end(self, &e);
  some_messages(&e);
  if (dies(self, &s)) {
    run_ending_side(self, &s, &e);
    return;
  }
  struct kit_op op[OPS];
  for (int i = 0; i < OPS; i++) op[i] = end_op(&e, BIG);
  step_until_announced(self, &s, &e, &op[0]);
  uint64_t limit = kit_patience_ms(NOTICE_MS), start = rail_now_ns();
  int error = until_error(&e, op, &s, limit);
  ENSURE(error, "the peer %s, and %.1f s later there is no error: NCCL has no timeout, so the job hangs",
         how(s.death), (double)limit / 1000);
  kit_note(self, "error %s after %.3f s", kit_rc_text(error), (double)(rail_now_ns() - start) / 1e9);
  post_more(&e, op);
  close_end(&e);
  kit_net_close(&e.n);
  if (s.death == BY_RESET) kit_barrier(self);
  ENSURE(error == RAIL_REMOTE_ERROR,
         "a peer that %s is error %s, expected %d (ncclRemoteError): by it users tell a lost peer from a fault here",
         how(s.death), kit_rc_text(error), RAIL_REMOTE_ERROR);
}

static void killed_receiver_mid_transfer(struct kit_process *self) {
  error_is_reported(self, (struct script){RECEIVER, BY_KILL, true});
}
static void killed_sender_mid_transfer(struct kit_process *self) {
  error_is_reported(self, (struct script){SENDER, BY_KILL, true});
}
static void killed_receiver_between_messages(struct kit_process *self) {
  error_is_reported(self, (struct script){RECEIVER, BY_KILL, false});
}
static void killed_sender_between_messages(struct kit_process *self) {
  error_is_reported(self, (struct script){SENDER, BY_KILL, false});
}
static void exit_of_the_receiver(struct kit_process *self) {
  error_is_reported(self, (struct script){RECEIVER, BY_EXIT, false});
}
static void exit_of_the_sender(struct kit_process *self) {
  error_is_reported(self, (struct script){SENDER, BY_EXIT, true});
}
static void reset_by_the_receiver(struct kit_process *self) {
  error_is_reported(self, (struct script){RECEIVER, BY_RESET, true});
}
static void reset_by_the_sender(struct kit_process *self) {
  error_is_reported(self, (struct script){SENDER, BY_RESET, true});
}

/* ---- whatever is noticed: nothing breaks ---- */

/* A second connection, within this process, and a third that is made afterwards. */
static void others_go_on(struct end *e, struct kit_pair *bystander) {
  for (int i = 0; i < 10; i++) kit_pair_ping(bystander, (size_t)i * 20000, (uint64_t)i);
  struct kit_pair fresh;
  kit_pair_open(&e->n, &fresh);
  kit_pair_ping(&fresh, 300000, 77);
  kit_pair_close(&fresh);
}

static void others_are_unaffected(struct kit_process *self, struct script s) {
  static struct end e;
  open_end(self, &e);
  some_messages(&e);
  if (dies(self, &s)) {
    run_ending_side(self, &s, &e);
    return;
  }
  struct kit_op op[OPS];
  struct kit_pair bystander;
  kit_pair_open(&e.n, &bystander);
  for (int i = 0; i < OPS; i++) op[i] = end_op(&e, BIG);
  step_until_announced(self, &s, &e, &op[0]);
  others_go_on(&e, &bystander); /* before it is noticed */
  until_error(&e, op, &s, 1000);
  post_more(&e, op);
  others_go_on(&e, &bystander);
  close_end(&e);
  others_go_on(&e, &bystander);
  kit_pair_close(&bystander);
  kit_net_close(&e.n);
}

static void others_survive_a_receiver(struct kit_process *self) {
  others_are_unaffected(self, (struct script){RECEIVER, BY_KILL, true});
}
static void others_survive_a_sender(struct kit_process *self) {
  others_are_unaffected(self, (struct script){SENDER, BY_KILL, true});
}

/* The loss of a peer is no reason to use the processor: an end of file stays readable forever. */
static void no_busy_wait(struct kit_process *self) {
  const struct script s = {SENDER, BY_KILL, true};
  const uint64_t ms = 300;
  static struct end e;
  open_end(self, &e);
  some_messages(&e);
  if (dies(self, &s)) {
    run_ending_side(self, &s, &e);
    return;
  }
  struct kit_op op[OPS];
  for (int i = 0; i < OPS; i++) op[i] = end_op(&e, BIG);
  step_until_announced(self, &s, &e, &op[0]);
  kit_sleep_ms(100);
  double before = kit_cpu_asleep(ms);
  int error = until_error(&e, op, &s, kit_patience_ms(NOTICE_MS));
  double after = kit_cpu_asleep(ms);
  ENSURE(before < 0.1 && after < 0.1,
         "with a dead peer and no call being made the plugin uses %.0f %% of a core (%.0f %% after error %s), expected "
         "less than 10: it takes the processor from the ranks that are left", before * 100, after * 100,
         kit_rc_text(error));
  close_end(&e);
  kit_net_close(&e.n);
}

/* ---- while the connection is made ---- */

/* A peer begins to connect and dies. The next one is not kept out by it. */
static void killed_while_connecting(struct kit_process *self) {
  struct kit_net n;
  struct kit_pair p = {.net = &n};
  void *comm;
  kit_net_open(&n);
  if (kit_process_rank(self) == SENDER) {
    kit_recv_bytes(self, RECEIVER, p.handle, sizeof p.handle);
    kit_connect_step(&n, p.handle, &comm); /* begun, most likely not finished */
    kit_process_expect_death(self);
    kit_send_bytes(self, RECEIVER, "x", 1);
    kill(getpid(), SIGKILL);
  }
  p.listen = kit_net_listen(&n, p.handle);
  kit_send_bytes(self, SENDER, p.handle, sizeof p.handle);
  kit_process_allow_loss(self, SENDER);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS)), until = 0;
  for (int quiet = 0; !rail_deadline_passed(until ? until : deadline); kit_rest(&quiet)) {
    if (!until && kit_bytes_ready(self, SENDER, 1)) until = rail_deadline_in_ms(300);
    if (kit_accept_step(&n, p.listen, &comm)) /* it had come far enough */
      kit_close_within(n.vt->close_recv, comm, "closeRecv", KIT_CLOSE_HUNG_MS);
  }
  ENSURE(until, "the other side does not come to its end");
  kit_pair_connect(&p);
  kit_pair_ping(&p, 100, 1);
  kit_pair_close(&p);
  kit_net_close(&n);
}

/* Over a connection that no one has accepted. */
static void send_to_nobody(struct kit_net *n, void *comm) {
  const size_t size = 100000;
  uint8_t *data = kit_pages(size);
  void *mh = kit_mr_reg(n, comm, data, size);
  uint64_t until = rail_deadline_in_ms(kit_patience_ms(NOTICE_MS));
  struct kit_op op = {.done = true};
  for (int i = 0; i < 10000 && !op.error && !rail_deadline_passed(until); sched_yield()) {
    if (op.done) op = kit_op_send(comm, data, size, i++); /* what the kernel still takes */
    op.mh[0] = mh;
    kit_op_step(n, &op);
  }
  ENSURE(op.error, "connect to a listener that was killed gave a comm, and sending over it ends in no error: NCCL has "
         "no timeout, so the job hangs");
  kit_mr_dereg(n, comm, mh);
  kit_close_within(n->vt->close_send, comm, "closeSend", KIT_CLOSE_HUNG_MS);
}

/* A listener dies under a peer that connects, before it has accepted. */
static void killed_listener(struct kit_process *self) {
  struct kit_net n;
  char handle[RAIL_NET_HANDLE_SIZE];
  void *comm = NULL;
  struct rail_net_device_handle *dh = NULL;
  kit_net_open(&n);
  if (kit_process_rank(self) == RECEIVER) {
    kit_net_listen(&n, handle);
    kit_send_bytes(self, SENDER, handle, sizeof handle);
    char announcement;
    kit_recv_bytes(self, SENDER, &announcement, 1); /* connect has been called; accept is not */
    kit_process_expect_death(self);
    kit_send_bytes(self, SENDER, "x", 1);
    kill(getpid(), SIGKILL);
  }
  kit_recv_bytes(self, RECEIVER, handle, sizeof handle);
  int rc = n.vt->connect(n.ctx, n.dev, handle, &comm, &dh);
  kit_process_allow_loss(self, RECEIVER);
  kit_send_bytes(self, RECEIVER, "x", 1);
  uint64_t limit = kit_patience_ms(2 * NOTICE_MS), until = rail_deadline_in_ms(limit);
  for (int quiet = 0; rc == 0 && !comm && !rail_deadline_passed(until); kit_rest(&quiet))
    rc = n.vt->connect(n.ctx, n.dev, handle, &comm, &dh);
  ENSURE(rc == 0 || !comm, "connect returned %s and left a comm in *sendComm: NCCL closes it twice", kit_rc_text(rc));
  ENSURE(rc || comm, "the listener was killed, and connect has been waiting for %.0f s: NCCL calls it for ever",
         (double)limit / 1000);
  if (comm) send_to_nobody(&n, comm);
  kit_net_close(&n);
}

/* ---- stopped: by a debugger, a scheduler, a machine that swaps ---- */

/* Stops this process. A timer, which goes on meanwhile, continues it. */
static void stop_for(uint64_t ms) {
  timer_t timer;
  struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGCONT};
  struct itimerspec when = {.it_value = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000}};
  int rc = timer_create(CLOCK_MONOTONIC, &event, &timer);
  ENSURE(rc == 0 && timer_settime(timer, 0, &when, NULL) == 0, "the kit could not set a timer");
  kill(getpid(), SIGSTOP);
  timer_delete(timer);
}

static void a_stop_is_waited_for(struct kit_process *self) {
  const size_t some = (size_t)4 << 20;
  static struct end e;
  open_end(self, &e);
  for (int stops = 0; stops < 2; stops++)
    for (int i = 0; i < OPS; i++) {
      uint64_t seed = (uint64_t)stops * OPS + (uint64_t)i;
      struct kit_op op = end_op(&e, some);
      if (e.sends) kit_pattern_fill(e.data, some, seed);
      kit_op_start(&e.n, &op);
      if (kit_process_rank(self) == stops && i == 1) stop_for(1000);
      bool ended = kit_op_within(&e.n, &op, kit_patience_ms(KIT_PATIENCE_MS));
      ENSURE(ended && !op.error, "a process was stopped for one second, and a %s of it or with it %s (error %s)",
             e.sends ? "send" : "receive", ended ? "failed" : "never ended", kit_rc_text(op.error));
      if (!e.sends)
        ENSURE(kit_pattern_check(e.data, some, seed) < 0,
               "a message that was interrupted for one second arrived wrong");
    }
  kit_barrier(self);
  close_end(&e);
  kit_net_close(&e.n);
}

static void when_a_stop_is_noticed(struct kit_process *self) {
  enum { STOP_MS = 3000 };
  static struct end e;
  open_end(self, &e);
  some_messages(&e);
  if (kit_process_rank(self) == RECEIVER) {
    struct kit_op op = end_op(&e, BIG);
    kit_op_start(&e.n, &op);
    kit_send_bytes(self, SENDER, "x", 1);
    stop_for(STOP_MS);
  } else {
    char announcement;
    struct kit_op op[64]; /* more than any buffer takes */
    int i = 0, last = (int)(sizeof op / sizeof op[0]) - 1;
    kit_recv_bytes(self, RECEIVER, &announcement, 1);
    uint64_t start = rail_now_ns(), until = rail_deadline_in_ms(STOP_MS - 200);
    for (op[0] = end_op(&e, BIG); !op[i].error && i < last && !rail_deadline_passed(until); kit_short_sleep())
      if (kit_op_step(&e.n, &op[i]) && op[i].done) op[++i] = end_op(&e, BIG);
    double seconds = (double)(rail_now_ns() - start) / 1e9;
    if (op[i].error) kit_metric(self, "stopped peer noticed after", seconds, "s");
    else kit_note(self, "a peer that was stopped for %.1f s was waited for", seconds);
  }
  kit_barrier(self);
  close_end(&e);
  kit_net_close(&e.n);
}

#define NOTICED "a transfer ends with ncclRemoteError, soon, and is not reported as done, when its peer "

const struct kit_check kit_checks_death[] = {
    {"12.20", "peer_death.killed_receiver_mid_transfer", KIT_SHOULD, KIT_TWO, .limit_s = 60,
     .what = NOTICED "is killed while it receives",
     .source = "src/proxy.cc:801,977, plugins/net/README.md:128", .run = killed_receiver_mid_transfer},
    {"12.21", "peer_death.killed_sender_mid_transfer", KIT_SHOULD, KIT_TWO, .limit_s = 60,
     .what = NOTICED "is killed while it sends",
     .source = "src/proxy.cc:801,977, plugins/net/README.md:128", .run = killed_sender_mid_transfer},
    {"12.22", "peer_death.killed_receiver_between_messages", KIT_SHOULD, KIT_TWO, .limit_s = 60,
     .what = NOTICED "was killed before it began",
     .source = "src/proxy.cc:801,977, plugins/net/README.md:128", .run = killed_receiver_between_messages},
    {"12.23", "peer_death.killed_sender_between_messages", KIT_SHOULD, KIT_TWO, .limit_s = 60,
     .what = NOTICED "was killed before it sent",
     .source = "src/proxy.cc:801,977, plugins/net/README.md:128", .run = killed_sender_between_messages},
    {"12.24", "peer_death.exit_of_the_receiver", KIT_SHOULD, KIT_TWO, .limit_s = 60,
     .what = NOTICED "has ended its program without closing",
     .source = "src/proxy.cc:801,977, plugins/net/README.md:128", .run = exit_of_the_receiver},
    {"12.25", "peer_death.exit_of_the_sender", KIT_SHOULD, KIT_TWO, .limit_s = 60,
     .what = NOTICED "ends its program in the middle of a send",
     .source = "src/proxy.cc:801,977, plugins/net/README.md:128", .run = exit_of_the_sender},
    {"12.26", "peer_death.reset_by_the_receiver", KIT_SHOULD, KIT_TWO, .limit_s = 60,
     .what = NOTICED "resets its connections while it receives",
     .source = "src/misc/socket.cc:48, plugins/net/README.md:128", .run = reset_by_the_receiver},
    {"12.27", "peer_death.reset_by_the_sender", KIT_SHOULD, KIT_TWO, .limit_s = 60,
     .what = NOTICED "resets its connections while it sends",
     .source = "src/misc/socket.cc:48, plugins/net/README.md:128", .run = reset_by_the_sender},
    {"12.28", "peer_death.others_survive_a_receiver", KIT_MUST, KIT_TWO, .limit_s = 60,
     .what = "the death of a receiver crashes nothing, is never a success, and leaves other connections alone; "
             "closing works",
     .source = "src/proxy.cc:801,1112", .run = others_survive_a_receiver},
    {"12.29", "peer_death.others_survive_a_sender", KIT_MUST, KIT_TWO, .limit_s = 60,
     .what = "the death of a sender crashes nothing, is never a success, and leaves other connections alone; closing "
             "works",
     .source = "src/proxy.cc:801,1112", .run = others_survive_a_sender},
    {"12.30", "peer_death.no_busy_wait", KIT_SHOULD, KIT_TWO, .limit_s = 60,
     .what = "a dead peer costs no processor time while no call is made",
     .source = "src/proxy.cc:848", .run = no_busy_wait},
    {"12.31", "peer_death.killed_while_connecting", KIT_SHOULD, KIT_TWO, .limit_s = 60,
     .what = "a peer that dies while it connects fails no accept, and the next peer is accepted",
     .source = "src/transport/net.cc:1075", .run = killed_while_connecting},
    {"12.32", "peer_death.killed_listener", KIT_SHOULD, KIT_TWO, .limit_s = 60,
     .what = "connecting to a listener that has been killed fails, by connect and *sendComm NULL or by the first send",
     .source = "src/proxy.cc:1637, src/transport/net.cc:890", .run = killed_listener},
    {"12.33", "peer_death.a_stop_is_waited_for", KIT_MUST, KIT_TWO, .limit_s = 60,
     .what = "a process that is stopped for a second in the middle of a transfer loses nothing",
     .source = "src/transport/net.cc:1433", .run = a_stop_is_waited_for},
    {"12.34", "peer_death.when_a_stop_is_noticed", KIT_OBSERVED, KIT_TWO, .limit_s = 60,
     .what = "how long a stopped peer is waited for, up to three seconds",
     .source = "src/proxy.cc:1637", .run = when_a_stop_is_noticed},
    {0},
};
