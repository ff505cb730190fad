/* SPDX-License-Identifier: Apache-2.0
 *
 * TEST-LIMIT: 180
 *
 * Event-driven progress (RAIL_IB_PROGRESS), over connections that a handshake made. */
#include <sys/epoll.h>
#include <sys/wait.h>

#include "test/unit/ib_wait_rig.h"

/* ---- poll ------------------------------------------------------------------------------------- */

TEST(polls_unless_asked) {
  open_over(DEV_B, IB_PROGRESS_POLL, 1);
  struct pair *p = &pairs[0];
  CHECK(!p->r.comm->event_driven && !p->r.comm->test_has_more && !p->r.comm->rails[0].channel && !p->r.comm->wait.set);
  begin_recv(&p->r);
  CHECK(!test_until_waits(&p->r, 1));
  send_one(p);
  CHECK(!hs_logged("waits for events"));
  close_all();
}

/* ---- event --------------------------------------------------------------------------------------- */

TEST(waits_when_nothing_comes) {
  open_over(DEV_B, IB_PROGRESS_EVENT, 1);
  struct pair *p = &pairs[0];
  CHECK(hs_logged("waits for events"));
  begin_recv(&p->r);
  CHECK(test_until_waits(&p->r, 3));
  CHECK_INT(counted(&p->r, IB_COMM_WAITS_EVENT), atomic_load(&waits));
  CHECK_INT(counted(&p->r, IB_COMM_WAKEUPS), atomic_load(&woken));
  send_one(p);
  begin_recv(&p->r);
  const int before = atomic_load(&waits);
  for (int i = 0; i < 10; i++) CHECK(!test_once(&p->r));
  CHECK_INT(atomic_load(&waits), before); /* first it polls again */
  for (int i = 0; i < 500 && atomic_load(&waits) == before; i++) CHECK(!test_once(&p->r));
  CHECK(atomic_load(&waits) > before);
  send_one(p);
  for (int i = 0; i < 50; i++) {
    begin_recv(&p->r);
    send_one(p);
  }
  close_all();
}

/* A caller looks at other things, too, after each round of its tests. */
TEST(waits_once_for_all) {
  open_over(DEV_B, IB_PROGRESS_EVENT, PAIRS);
  wait_how = AT_ONCE;
  for (int i = 0; i < PAIRS; i++) begin_recv(&pairs[i].r);
  for (int i = 0; i < MANY_TESTS && atomic_load(&waits) == 0; i++) CHECK(!test_once(&pairs[i % PAIRS].r));
  const int before = atomic_load(&waits);
  CHECK_INT(before, 1);
  for (int i = 0; i < 100 * PAIRS; i++) CHECK(!test_once(&pairs[i % PAIRS].r));
  CHECK_INT(atomic_load(&waits) - before, 100);
  for (int i = 0; i < PAIRS; i++) send_one(&pairs[i]);
  close_all();
}

/* What has requests and is not armed may have completed. */
TEST(waits_for_none_that_is_not_armed) {
  open_over(DEV_B, IB_PROGRESS_EVENT, 2);
  wait_how = AT_ONCE;
  for (int i = 0; i < 2; i++) begin_recv(&pairs[i].r);
  CHECK(!test_once(&pairs[1].r)); /* it is the thread's */
  CHECK(!test_until_waits(&pairs[0].r, 1));
  while (!atomic_load(&pairs[1].r.comm->wait.armed)) CHECK(!test_once(&pairs[1].r));
  CHECK(test_until_waits(&pairs[0].r, 1));
  for (int i = 0; i < 2; i++) send_one(&pairs[i]);
  CHECK(!atomic_load(&pairs[0].r.comm->wait.armed));
  close_all();
}

static int (*real_notify)(struct ibv_cq *, int);
static bool is_sent;

/* A message arrives right before the receiver's queue is to notify. */
static int send_before_notify(struct ibv_cq *cq, int solicited_only) {
  if (cq == pairs[1].r.comm->rails[0].cq && !is_sent) {
    is_sent = true;
    begin_send(&pairs[1].s);
    finish(&pairs[1].s);
  }
  return real_notify(cq, solicited_only);
}

/* No event tells of it, and the thread's next wait may be in the test of another connection. */
TEST(looks_once_more_when_armed) {
  open_over(DEV_B, IB_PROGRESS_EVENT, 2);
  wait_how = AT_ONCE;
  struct ibv_context *context = pairs[1].r.comm->rails[0].cq->context;
  for (int i = 0; i < 2; i++) begin_recv(&pairs[i].r);
  is_sent = false;
  real_notify = context->ops.req_notify_cq;
  context->ops.req_notify_cq = send_before_notify;
  bool done = false;
  for (int i = 0; i < MANY_TESTS && !is_sent; i++) done = test_once(&pairs[1].r);
  context->ops.req_notify_cq = real_notify;
  CHECK(is_sent && done);
  send_one(&pairs[0]);
  close_all();
}

/* Its event has ended one wait; the next one would not end for it. */
TEST(waits_no_more_until_what_came_is_tested) {
  open_over(DEV_B, IB_PROGRESS_EVENT, 2);
  wait_how = AT_ONCE;
  for (int i = 0; i < 2; i++) begin_recv(&pairs[i].r);
  for (int i = 0; i < MANY_TESTS && atomic_load(&waits) == 0; i++) CHECK(!test_once(&pairs[i % 2].r));
  begin_send(&pairs[1].s);
  finish(&pairs[1].s);
  const int before = atomic_load(&woken);
  for (int i = 0; i < MANY_TESTS && atomic_load(&woken) == before; i++) CHECK(!test_once(&pairs[0].r));
  CHECK_INT(atomic_load(&woken), before + 1);
  CHECK(!test_until_waits(&pairs[0].r, atomic_load(&waits) + 1));
  finish(&pairs[1].r);
  send_one(&pairs[0]);
  close_all();
}

/* ---- no wake-up is lost -------------------------------------------------------------------------- */

#define MESSAGES 300

static int pair_of(int message) { return (message * 7 + message / 5) % PAIRS; }

static void send_all(void) {
  for (int i = 0; i < kit_scaled(MESSAGES); i++) {
    struct end *s = &pairs[pair_of(i)].s;
    memset(s->data, i, BYTES);
    begin_send(s);
    if (i % 3 == 0) usleep((useconds_t)(i % 11) * 30);
    finish(s);
  }
}

static void receive_all(void) {
  int left[PAIRS] = {0}, all = kit_scaled(MESSAGES);
  for (int i = 0; i < all; i++) left[pair_of(i)]++;
  for (int i = 0; i < PAIRS; i++)
    if (left[i]) begin_recv(&pairs[i].r);
  while (all > 0)
    for (int i = 0; i < PAIRS; i++) {
      struct end *r = &pairs[i].r;
      if (!left[i] || !test_once(r)) continue;
      for (int b = 1; b < BYTES; b++) ENSURE_INT(r->data[b], r->data[0]);
      all--;
      if (--left[i]) begin_recv(r);
    }
}

static void run_side(void *sends) {
  if (*(const bool *)sends) send_all();
  else receive_all();
}

/* Both sides wait without limit: the sender for its sends, the receiver for whichever connection's message comes. */
static void run_both(int dev) {
  bool sends[2] = {true, false};
  open_over(dev, IB_PROGRESS_EVENT, PAIRS);
  wait_how = UNTIL_AN_EVENT;
  kit_run_threads(2, run_side, sends, sizeof sends[0]);
  printf("# %d waits, %d woken\n", atomic_load(&waits), atomic_load(&woken));
  CHECK_INT(atomic_load(&lost), 0);
  close_all();
}

TEST(no_wake_up_is_lost) { run_both(DEV_B); }
TEST(nor_over_three_ports) { run_both(DEV_FUSED); }

/* ---- what ends with a wait open -------------------------------------------------------------------- */

/* Events that were read are acknowledged, or the queue is never destroyed; descriptors go. */
TEST(closes_armed_and_with_events) {
  open_over(DEV_B, IB_PROGRESS_EVENT, 1);
  close_all();
  const int before = kit_fd_count();
  open_over(DEV_B, IB_PROGRESS_EVENT, 2);
  for (int i = 0; i < 2; i++) {
    struct pair *p = &pairs[i];
    for (int k = 0; k < 3; k++) {
      atomic_store(&waits, 0);
      begin_recv(&p->r);
      CHECK(test_until_waits(&p->r, 1));
      send_one(p);
    }
    atomic_store(&waits, 0);
    begin_recv(&p->r);
    CHECK(test_until_waits(&p->r, 1)); /* armed again, after its events were read */
    CHECK(p->r.comm->rails[0].unacknowledged > 0);
  }
  close_all();
  CHECK_INT(kit_fd_count(), before);
}

static void test_in_thread(void *pair) {
  struct pair *p = pair;
  atomic_store(&waits, 0);
  ENSURE(test_until_waits(&p->r, 1), "it does not wait");
}

/* The caller's threads may take turns, with one connection. */
TEST(another_thread_goes_on) {
  open_over(DEV_B, IB_PROGRESS_EVENT, 2);
  struct pair *p = &pairs[0];
  for (int i = 0; i < 2; i++) begin_recv(&pairs[i].r);
  for (int i = 0; i < MANY_TESTS && atomic_load(&waits) == 0; i++) CHECK(!test_once(&pairs[i % 2].r));
  const struct ib_wait_set *first = p->r.comm->wait.set;
  CHECK(first && first == pairs[1].r.comm->wait.set);
  kit_run_threads(1, test_in_thread, p, sizeof *p);
  CHECK(p->r.comm->wait.set != first && pairs[1].r.comm->wait.set == first);
  for (int i = 0; i < 2; i++) send_one(&pairs[i]);
  close_all();
}

static _Thread_local bool stops; /* in its next epoll_ctl, which has the lock of the wait sets, */
static atomic_bool stopped;      /* until this is false again */

int epoll_ctl(int epfd, int op, int fd, struct epoll_event *event) {
  if (stops) atomic_store(&stopped, true);
  while (stops && atomic_load(&stopped)) usleep(100);
  stops = false;
  return (int)syscall(SYS_epoll_ctl, epfd, op, fd, event);
}

static void forks_meanwhile(void *unused) {
  struct ib_comm fresh = {.event_driven = true}; /* of the child's own */
  int status;
  (void)unused;
  while (!atomic_load(&stopped)) usleep(100);
  pid_t child = fork();
  if (child == 0) {
    alarm((unsigned int)kit_patience_ms(TIMEOUT_MS) / 1000);
    ib_wait_close(&fresh);
    _exit(0);
  }
  atomic_store(&stopped, false);
  ENSURE(child > 0 && waitpid(child, &status, 0) == child, "no child");
  ENSURE(WIFEXITED(status), "the child waits for a lock that a thread of its parent had");
}

static void stops_and_tests(void *unused) {
  (void)unused;
  stops = true; /* while it makes a set of its own */
  test_in_thread(&pairs[0]);
}

static void (*const both[])(void *) = {forks_meanwhile, stops_and_tests};
static void one_of_both(void *fn) { (*(void (*const *)(void *))fn)(NULL); }

/* While another thread of the parent changes the sets. The parent is woken as before. */
TEST(a_forked_child_takes_no_part) {
  open_over(DEV_B, IB_PROGRESS_EVENT, 1);
  struct pair *p = &pairs[0];
  begin_recv(&p->r);
  CHECK(test_until_waits(&p->r, 1));
  kit_run_threads(2, one_of_both, (void *)both, sizeof *both);
  wait_how = UNTIL_AN_EVENT;
  send_one(p);
  CHECK_INT(atomic_load(&lost), 0);
  close_all();
}

/* What the watch thread finds is seen by the next test. */
TEST(a_fault_ends_it) {
  int done = 0;
  open_over(DEV_B, IB_PROGRESS_EVENT, 1);
  struct pair *p = &pairs[0];
  begin_recv(&p->r);
  CHECK(test_until_waits(&p->r, 2));
  atomic_fetch_or(&p->r.comm->pending_work, IB_COMM_PEER_LOST);
  const int before = atomic_load(&waits);
  CHECK_INT(ib_test(p->r.request, &done, NULL), RAIL_REMOTE_ERROR);
  CHECK_INT(atomic_load(&waits), before);
  close_all();
}

/* ---- devices without events -------------------------------------------------------------------------- */

static struct ib_verbs real;
static int no_channel_is_made, no_queue_has_one;

static struct ibv_comp_channel *create_channel(struct ibv_context *context) {
  if (!no_channel_is_made) return real.create_comp_channel(context);
  errno = EOPNOTSUPP;
  return NULL;
}

static struct ibv_cq *create_cq(struct ibv_context *context, int cqe, void *comm, struct ibv_comp_channel *channel,
                                int vector) {
  if (!channel || !no_queue_has_one) return real.create_cq(context, cqe, comm, channel, vector);
  errno = EOPNOTSUPP;
  return NULL;
}

static void open_without(int channels, int queues) {
  real = ib_verbs;
  ib_verbs.create_comp_channel = create_channel;
  ib_verbs.create_cq = create_cq;
  no_channel_is_made = channels;
  no_queue_has_one = queues;
  open_over(DEV_B, IB_PROGRESS_EVENT, 2);
  ib_verbs = real;
}

static int count_lines(const char *words) {
  int n = 0;
  for (const char *at = hs_lines; (at = strstr(at, words)) != NULL; at++) n++;
  return n;
}

TEST(a_device_without_events_is_polled) {
  for (int i = 0; i < 2; i++) {
    open_without(i == 0, i == 1);
    CHECK_INT(count_lines("gives no completion events"), 1);
    CHECK(hs_logged(i == 0 ? "ibv_create_comp_channel" : "ibv_create_cq"));
    begin_recv(&pairs[0].r);
    CHECK(!test_until_waits(&pairs[0].r, 1));
    send_one(&pairs[0]);
    begin_recv(&pairs[1].r);
    send_one(&pairs[1]);
    close_all();
  }
}

static int never_notifies(struct ibv_cq *cq, int solicited_only) {
  (void)cq, (void)solicited_only;
  return EOPNOTSUPP;
}

TEST(a_queue_that_cannot_notify_is_polled) {
  open_over(DEV_B, IB_PROGRESS_EVENT, 1);
  struct pair *p = &pairs[0];
  struct ibv_context *context = p->r.comm->rails[0].cq->context;
  int (*notifies)(struct ibv_cq *, int) = context->ops.req_notify_cq;
  context->ops.req_notify_cq = never_notifies;
  begin_recv(&p->r);
  CHECK(!test_until_waits(&p->r, 1));
  CHECK_INT(count_lines("is polled from here on"), 1);
  send_one(p);
  context->ops.req_notify_cq = notifies;
  close_all();
}

/* ---- auto ------------------------------------------------------------------------------------------------ */

/* Whoever has a core for itself polls. */
TEST(auto_polls_while_nobody_waits_for_the_core) {
  open_over(DEV_B, IB_PROGRESS_AUTO, 1);
  switches = 5;
  begin_recv(&pairs[0].r);
  for (uint64_t end = rail_deadline_in_ms(50); !rail_deadline_passed(end);) CHECK(!test_once(&pairs[0].r));
  CHECK_INT(atomic_load(&waits), 0);
  send_one(&pairs[0]);
  close_all();
}

static atomic_bool is_over;
static void *be_busy(void *arg) {
  while (!atomic_load(&is_over)) continue;
  return arg;
}

static void stay_on(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  CHECK_OK(sched_setaffinity(0, sizeof set, &set));
}

/* Two threads on one core: the other is begun here, and has its place. */
TEST(auto_waits_beside_a_busy_thread) {
  cpu_set_t before;
  pthread_t busy;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  open_over(DEV_B, IB_PROGRESS_AUTO, 1);
  CHECK_OK(sched_getaffinity(0, sizeof before, &before));
  stay_on(sched_getcpu());
  atomic_store(&is_over, false);
  CHECK_OK(pthread_create(&busy, NULL, be_busy, NULL));
  begin_recv(&pairs[0].r);
  while (atomic_load(&waits) == 0 && !rail_deadline_passed(deadline)) CHECK(!test_once(&pairs[0].r));
  atomic_store(&is_over, true);
  CHECK_OK(pthread_join(busy, NULL));
  CHECK_OK(sched_setaffinity(0, sizeof before, &before));
  CHECK(atomic_load(&waits) > 0);
  send_one(&pairs[0]);
  close_all();
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(polls_unless_asked),
    TEST_CASE(waits_when_nothing_comes),
    TEST_CASE(waits_once_for_all),
    TEST_CASE(waits_for_none_that_is_not_armed),
    TEST_CASE(looks_once_more_when_armed),
    TEST_CASE(waits_no_more_until_what_came_is_tested),
    TEST_CASE(no_wake_up_is_lost),
    TEST_CASE(nor_over_three_ports),
    TEST_CASE(closes_armed_and_with_events),
    TEST_CASE(another_thread_goes_on), TEST_CASE(a_forked_child_takes_no_part),
    TEST_CASE(a_fault_ends_it),
    TEST_CASE(a_device_without_events_is_polled),
    TEST_CASE(a_queue_that_cannot_notify_is_polled),
    TEST_CASE(auto_polls_while_nobody_waits_for_the_core),
    TEST_CASE(auto_waits_beside_a_busy_thread),
  };
  hs_main();
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
