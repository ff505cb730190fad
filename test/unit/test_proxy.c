/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves: the proxy's two chains, over a transport that is made here: operations of a connector run one after the
 * other, connectors side by side and fairly; operations retire while others stay; an error ends the communicator and
 * nothing is touched after it; the thread sleeps when there is nothing to do. Driven both ways.
 */
#include "core/transport/rt_proxy.h"

#include <sched.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "core/comm/rt_comm.h"
#include "test/harness/program.h"

#define MAX_CONNECTORS 64
#define MAX_OPS 40

/* What the fake transport does with a connector; res points to it. */
struct fake {
  int every; /* a step moves in every n-th call */
  int calls;
  int fail_after;              /* calls until an error; 0 never */
  struct rt_proxy_op *current; /* the operation under way: none other may come before it is finished */
  int order[MAX_OPS], ndone;   /* numbers of the finished ones */
};

struct numbered {
  struct rt_proxy_op op;
  int number;
};

static atomic_bool entered, broken, strict, network_failed;
static char fault[128];

static void complain(const char *text) {
  if (atomic_exchange(&broken, true)) return;
  snprintf(fault, sizeof fault, "%s", text);
}

static rail_result_t progress(struct ncclComm *comm, struct rt_connector *c, struct rt_proxy_op *op) {
  struct fake *f = c->res;
  if (atomic_exchange(&entered, true)) complain("two threads make a pass");
  if (rt_comm_failed(comm) && strict) complain("progress after the failure");
  if (op->connector != c) complain("an operation of another connector");
  if (f->current && f->current != op) complain("an operation before the one in front of it has finished");
  f->calls++;
  rail_result_t r = RAIL_IN_PROGRESS;
  if (f->fail_after && f->calls >= f->fail_after) {
    r = RAIL_REMOTE_ERROR;
    atomic_store(&network_failed, true);
  } else if (f->calls % f->every == 0) {
    f->current = op;
    if (!op->started) op->started = true;
    op->done++;
    if (op->done == op->nsteps) {
      f->order[f->ndone++] = ((struct numbered *)(void *)op)->number;
      f->current = NULL;
    }
    r = RAIL_OK;
  }
  atomic_store(&entered, false);
  return r;
}

static const struct rt_transport_end end = {.progress = progress};

struct world {
  struct ncclComm *comm;
  struct rt_connector c[MAX_CONNECTORS];
  struct fake fake[MAX_CONNECTORS];
  struct numbered *ops; /* [connector * MAX_OPS + number] */
};

static struct world *world_open(bool threaded) {
  struct world *w = calloc(1, sizeof *w);
  w->ops = calloc((size_t)MAX_CONNECTORS * MAX_OPS, sizeof *w->ops);
  struct rt_init_args args = {.rank = 0, .nranks = 1};
  w->comm = rt_comm_alloc(&args);
  for (int i = 0; i < MAX_CONNECTORS; i++) {
    w->fake[i].every = 1;
    w->c[i].end = &end;
    w->c[i].res = &w->fake[i];
    w->c[i].peer = i;
  }
  atomic_store(&broken, false);
  atomic_store(&strict, false);
  atomic_store(&network_failed, false);
  fault[0] = 0;
  ENSURE_INT(rt_proxy_init(&w->comm->proxy, w->comm, threaded), 0);
  return w;
}

static void world_close(struct world *w) {
  rt_proxy_destroy(&w->comm->proxy);
  rt_comm_free(w->comm);
  free(w->ops);
  free(w);
  ENSURE(!broken, "%s", fault);
}

static struct numbered *submit(struct world *w, int connector, int number, uint64_t steps) {
  struct numbered *op = &w->ops[connector * MAX_OPS + number];
  op->number = number;
  op->op.connector = &w->c[connector];
  op->op.nsteps = steps;
  rt_proxy_submit(&w->comm->proxy, &op->op);
  return op;
}

static bool finished(struct numbered *op) { return atomic_load_explicit(&op->op.finished, memory_order_acquire); }

/* Until all operations are finished, or the deadline. */
static void drive(struct world *w) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(10000));
  while (atomic_load(&w->comm->proxy.unfinished) > 0) {
    ENSURE(!rail_deadline_passed(deadline), "%d operations never finish", atomic_load(&w->comm->proxy.unfinished));
    if (w->comm->proxy.threaded)
      sched_yield();
    else
      rt_proxy_pass(&w->comm->proxy);
  }
  rt_proxy_quiesce(&w->comm->proxy); /* the pass that finished the last one may still be putting things away */
}

static void both(void (*run)(bool threaded)) {
  run(false);
  run(true);
}

static void chains(bool threaded) {
  struct world *w = world_open(threaded);
  for (int n = 0; n < MAX_OPS; n++)
    for (int c = 0; c < MAX_CONNECTORS; c++) submit(w, c, n, (uint64_t)(1 + (c * 7 + n * 3) % 11));
  drive(w);
  for (int c = 0; c < MAX_CONNECTORS; c++) {
    ENSURE_INT(w->fake[c].ndone, MAX_OPS);
    for (int n = 0; n < MAX_OPS; n++) {
      ENSURE_INT(w->fake[c].order[n], n);
      ENSURE(finished(&w->ops[c * MAX_OPS + n]), "connector %d, operation %d", c, n);
    }
    ENSURE(w->c[c].ops == NULL && w->c[c].next_active == NULL, "connector %d was left in a chain", c);
  }
  ENSURE(w->comm->proxy.active == NULL, "the circle is not empty");
  world_close(w);
}
TEST(operations_run_in_order) { both(chains); }

/* Connectors go and come back while others stay; new operations arrive between. */
static void comings_and_goings(bool threaded) {
  struct world *w = world_open(threaded);
  struct kit_rng rng;
  kit_rng_start(&rng);
  for (int c = 0; c < MAX_CONNECTORS; c++) w->fake[c].every = 1 + (int)kit_rng_below(&rng, 4);
  int next[MAX_CONNECTORS] = {0};
  for (int i = 0; i < MAX_CONNECTORS * MAX_OPS / 2; i++) {
    int c = (int)kit_rng_below(&rng, MAX_CONNECTORS);
    if (next[c] < MAX_OPS) submit(w, c, next[c]++, 1 + kit_rng_below(&rng, 5));
    for (uint32_t p = kit_rng_below(&rng, 4); !threaded && p > 0; p--) rt_proxy_pass(&w->comm->proxy);
  }
  drive(w);
  for (int c = 0; c < MAX_CONNECTORS; c++) {
    ENSURE_INT(w->fake[c].ndone, next[c]);
    for (int n = 0; n < next[c]; n++) ENSURE_INT(w->fake[c].order[n], n);
  }
  world_close(w);
}
TEST(connectors_come_and_go) { both(comings_and_goings); }

/* One pass gives everybody one call, also when some retire in it. */
TEST(a_pass_is_fair) {
  for (int odd = 0; odd < 2; odd++) { /* whichever comes first in the circle retires once */
    struct world *w = world_open(false);
    for (int c = 0; c < 10; c++) submit(w, c, 0, c % 2 == odd ? 5 : 1);
    for (int p = 1; p < 4; p++) {
      rt_proxy_pass(&w->comm->proxy);
      for (int c = 0; c < 10; c++) {
        int want = c % 2 == odd ? p : 1;
        CHECK_MSG(w->fake[c].calls == want, "pass %d: connector %d got %d calls, expected %d", p, c, w->fake[c].calls,
                  want);
      }
    }
    drive(w);
    world_close(w);
  }
}

/* A connector that never moves does not hold up the others, and `finished` is not said early. */
TEST(a_stuck_connector_delays_nobody) {
  struct world *w = world_open(false);
  w->fake[3].every = 1 << 30;
  struct numbered *stuck = submit(w, 3, 0, 1);
  for (int c = 4; c < 9; c++) submit(w, c, 0, 20);
  for (int i = 0; i < 25; i++) rt_proxy_pass(&w->comm->proxy);
  for (int c = 4; c < 9; c++) CHECK(finished(&w->ops[c * MAX_OPS]));
  CHECK(!finished(stuck));
  CHECK(!rt_proxy_pass(&w->comm->proxy)); /* and it says that nothing moves */
  w->fake[3].every = 1;
  drive(w);
  CHECK(finished(stuck));
  world_close(w);
}

static void silent(enum rail_log_level level, unsigned long flags, const char *file, int line, const char *fmt, ...) {
  (void)level, (void)flags, (void)file, (void)line, (void)fmt;
}

static void failure(bool threaded) {
  struct world *w = world_open(threaded);
  rail_log_set_sink(silent);
  w->fake[5].fail_after = 7;
  for (int c = 0; c < 8; c++) submit(w, c, 0, c == 5 ? 100 : 1000000);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(10000));
  while (!rt_comm_failed(w->comm) && !rail_deadline_passed(deadline)) {
    if (threaded)
      sched_yield();
    else
      rt_proxy_pass(&w->comm->proxy);
  }
  ENSURE(rt_comm_failed(w->comm), "the error was not noticed");
  rt_proxy_quiesce(&w->comm->proxy);
  rail_log_set_sink(NULL);
  ENSURE_INT(atomic_load(&w->comm->failed), RAIL_REMOTE_ERROR);
  ENSURE(strstr(w->comm->error, "rank 5"), "\"%s\" does not name the peer", w->comm->error);
  atomic_store(&strict, true); /* from here on the plans' memory may go */
  atomic_store(&entered, false);
  for (int i = 0; i < 100; i++) ENSURE(!rt_proxy_pass(&w->comm->proxy), "a pass after the failure");
  if (threaded) usleep(20000);
  ENSURE(!finished(&w->ops[5 * MAX_OPS]), "the failed operation counts as finished");
  world_close(w);
}
TEST(an_error_ends_everything) { both(failure); }

/* A connection often breaks because a rank died: what the bootstrap says a little later is the better reason. The proxy
 * waits 200 ms for it, so it is said when the connection has broken. */
static void *tell_later(void *arg) {
  while (!atomic_load(&network_failed)) usleep(1000);
  rt_comm_fail(arg, RAIL_BAD_USAGE, "rank 3 died");
  return NULL;
}

static void reason(bool threaded) {
  struct world *w = world_open(threaded);
  pthread_t teller;
  rail_log_set_sink(silent);
  w->fake[5].fail_after = 1;
  ENSURE(pthread_create(&teller, NULL, tell_later, w->comm) == 0, "no thread");
  submit(w, 5, 0, 100);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(10000));
  while (!rt_comm_failed(w->comm) && !rail_deadline_passed(deadline)) {
    if (threaded)
      sched_yield();
    else
      rt_proxy_pass(&w->comm->proxy);
  }
  atomic_store(&network_failed, true);
  pthread_join(teller, NULL);
  rt_proxy_quiesce(&w->comm->proxy);
  rail_log_set_sink(NULL);
  ENSURE(strcmp(w->comm->error, "rank 3 died") == 0, "\"%s\"", w->comm->error);
  atomic_store(&entered, false);
  world_close(w);
}
TEST(the_bootstraps_reason_comes_first) { both(reason); }

TEST(the_thread_sleeps) {
  struct world *w = world_open(true);
  submit(w, 0, 0, 100);
  drive(w);
  usleep(20000);
  uint64_t before = kit_cpu_ns();
  usleep(300000);
  uint64_t used = kit_cpu_ns() - before;
  CHECK_MSG(used < 30000000, "%llu us of CPU in 300 ms of idleness", (unsigned long long)used / 1000);
  submit(w, 0, 1, 100); /* and it wakes up again */
  drive(w);
  world_close(w);
}

/* Two threads that both pass: one at a time, and neither waits for the other. */
struct passer { struct world *w; };
static void passer(void *arg) {
  struct world *w = ((struct passer *)arg)->w;
  for (int i = 0; i < 200000 && atomic_load(&w->comm->proxy.unfinished) > 0; i++) rt_proxy_pass(&w->comm->proxy);
}
TEST(one_driver_at_a_time) {
  struct world *w = world_open(false);
  for (int n = 0; n < MAX_OPS; n++)
    for (int c = 0; c < 16; c++) submit(w, c, n, 30);
  struct passer args[3] = {{w}, {w}, {w}};
  kit_run_threads(3, passer, args, sizeof args[0]);
  drive(w);
  world_close(w);
}

TEST(destroy_accepts_what_was_never_made) {
  struct rt_proxy p;
  memset(&p, 0, sizeof p);
  rt_proxy_destroy(&p);
}

TEST(destroy_with_operations_left) {
  for (int threaded = 0; threaded < 2; threaded++) {
    struct world *w = world_open(threaded);
    rail_log_set_sink(silent);
    for (int c = 0; c < 8; c++) submit(w, c, 0, UINT64_MAX);
    rt_comm_fail(w->comm, RAIL_REMOTE_ERROR, "told so");
    rail_log_set_sink(NULL);
    world_close(w);
  }
}

TEST_MAIN(TEST_CASE(operations_run_in_order), TEST_CASE(connectors_come_and_go), TEST_CASE(a_pass_is_fair),
          TEST_CASE(a_stuck_connector_delays_nobody), TEST_CASE(an_error_ends_everything),
          TEST_CASE(the_bootstraps_reason_comes_first), TEST_CASE(the_thread_sleeps),
          TEST_CASE(one_driver_at_a_time), TEST_CASE(destroy_accepts_what_was_never_made),
          TEST_CASE(destroy_with_operations_left))
