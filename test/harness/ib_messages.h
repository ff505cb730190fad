/* SPDX-License-Identifier: Apache-2.0
 *
 * A run of numbered messages over a connection of the ib plugin within this process, over emulated devices of which
 * some fail meanwhile. Of every message each byte is checked when its receive is done; what is written into its buffer
 * after that shows when that is used again. A sender's buffer is overwritten as soon as its send is done. Time is
 * virtual: it is later where nothing moves. A side that gets an error is closed at once, as NCCL does.
 */
#ifndef RAIL_TEST_IB_MESSAGES_H
#define RAIL_TEST_IB_MESSAGES_H

#include <sched.h>

#include "common/base/compiler.h"
#include "test/harness/emu.h"
#include "test/harness/ib_rails.h"
#include "test/harness/virtual_time.h"

enum { RUN_RAILS = 8, RUN_WINDOW = 12, RUN_MOST = 9000, RUN_GUARD = 64, RUN_SLOT = RUN_MOST + RUN_GUARD };
#define RUN_SKIP_NS 50000000u /* when nothing moves */

struct run_side {
  void *requests[RUN_WINDOW], *mh;
  long posted, done;
  int error;
};

static struct run {
  struct kit_net net;
  struct kit_pair pair;
  struct run_side send, recv;
  char handle[RAIL_NET_HANDLE_SIZE]; /* as listen wrote it */
  uint8_t *out, *in;
  int rails;
  int quiet;         /* steps in which nothing was done */
  uint64_t deadline; /* real time: a message is done by then */
  void (*before_send)(long message); /* NULL, or called before each isend that may begin that message */
  /* From the plugin's log: queue pairs of both sides. */
  atomic_int lost, returned;
  atomic_bool port_down[2 * RUN_RAILS]; /* by device */
  char error[1024]; /* the latest line that says what to check */
} run_;

/* ---- what a message holds ----------------------------------------------------------------- */

static uint64_t run_mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 32);
}

static size_t run_size(long message) { return run_mix((uint64_t)message) % (message % 4 ? 200 : RUN_MOST); }

/* What is around it, and whose buffer it was, shows too. */
static void run_fill(uint8_t *data, long message, size_t size) {
  uint64_t value = run_mix((uint64_t)message * 3 + 1);
  for (; size >= sizeof value; size -= sizeof value, data += sizeof value, value += 0x0123456789abcdefu)
    memcpy(data, &value, sizeof value);
  memcpy(data, &value, size);
}

enum { RUN_BEFORE = 0xee, RUN_AFTER = 0xdd, RUN_SENT = 0x11 };

static bool run_is(const uint8_t *data, uint8_t value, size_t size) {
  return size == 0 || (data[0] == value && memcmp(data, data + 1, size - 1) == 0);
}

static void run_check(const uint8_t *data, long message, size_t size) {
  static uint8_t wanted[RUN_SLOT];
  const size_t around = size + RUN_GUARD;
  run_fill(wanted, message, size);
  memset(wanted + size, RUN_BEFORE, RUN_GUARD);
  if (memcmp(data, wanted, around) == 0) return;
  for (size_t i = 0; i < around; i++)
    ENSURE(data[i] == wanted[i], "byte %zu of message %ld, which has %zu, is %02x and not %02x", i, message, size,
           data[i], wanted[i]);
}

/* ---- the connection ------------------------------------------------------------------------- */

/* Of a line about a port; -1: it is about none, or says nothing of that kind. */
static int run_port_of(const char *text, const char *kind) {
  const char *port = strstr(text, kind) ? strstr(text, "port emu") : NULL;
  return port ? atoi(port + strlen("port emu")) : -1;
}

/* The watch thread's lines about ports have no error behind them. */
static void run_on_warning(const char *text) {
  const char *line = strstr(text, "goes on without ");
  const int down = run_port_of(text, " went down at ");
  if (line) atomic_fetch_add(&run_.lost, atoi(line + strlen("goes on without ")));
  else if (down >= 0) atomic_store(&run_.port_down[down], true);
  else if (strstr(text, "; check: ")) snprintf(run_.error, sizeof run_.error, "%s", text);
}

static void run_on_info(const char *text) {
  const int up = run_port_of(text, " is up again after ");
  if (strstr(text, "is in use again")) atomic_fetch_add(&run_.returned, 1);
  else if (up >= 0) atomic_store(&run_.port_down[up], false);
}

static void run_connect(void) {
  struct kit_net *net = &run_.net;
  run_.send = run_.recv = (struct run_side){.posted = 0};
  run_.quiet = 0;
  memcpy(run_.pair.handle, run_.handle, sizeof run_.handle); /* each connect keeps its own state there */
  kit_pair_connect(&run_.pair);
  memset(run_.in, RUN_AFTER, (size_t)RUN_WINDOW * RUN_SLOT);
  run_.send.mh = kit_mr_reg(net, run_.pair.send, run_.out, (size_t)RUN_WINDOW * RUN_SLOT);
  run_.recv.mh = kit_mr_reg(net, run_.pair.recv, run_.in, (size_t)RUN_WINDOW * RUN_SLOT);
}

/* Devices are emu0 … of the sender, then those of the receiver. */
static void run_open(int rails) {
  char devices[512];
  size_t used = 0;
  for (int i = 0; i < 2 * rails; i++)
    used += (size_t)snprintf(devices + used, sizeof devices - used, "device emu%d;", i);
  run_.rails = rails;
  emu_use(devices);
  time_begin();
  kit_net_on_warning(run_on_warning);
  kit_net_on_info(run_on_info);
  setenv("NCCL_IB_SPLIT_DATA_ON_QPS", "1", 1);
  setenv("RAIL_IB_PORT_GRACE", "0", 1);
  setenv("RAIL_IB_TAG_TIMEOUT", "0", 1);
  setenv("RAIL_IB_MAX_WRITE", "4096", 1);
  setenv("RAIL_IB_MIN_PART", "1024", 1);
  run_.out = calloc(RUN_WINDOW, RUN_SLOT);
  run_.in = calloc(RUN_WINDOW, RUN_SLOT);
  ENSURE(run_.out && run_.in, "out of memory");
  rails_open(&run_.net, &run_.pair, rails);
  memcpy(run_.handle, run_.pair.handle, sizeof run_.handle);
  run_connect();
  time_count_threads();
}

static void run_close_side(struct run_side *side, void **comm, bool sends) {
  if (!*comm) return;
  kit_mr_dereg(&run_.net, *comm, side->mh);
  ENSURE_INT(sends ? run_.net.vt->close_send(*comm) : run_.net.vt->close_recv(*comm), 0);
  *comm = NULL;
}

/* Nothing is written behind the end of a receive. */
static void run_disconnect(void) {
  run_close_side(&run_.send, &run_.pair.send, true);
  run_close_side(&run_.recv, &run_.pair.recv, false);
  for (long i = 0; i < RUN_WINDOW; i++)
    ENSURE(run_.recv.requests[i] || run_is(run_.in + i * RUN_SLOT, RUN_AFTER, RUN_SLOT),
           "the latest message in slot %ld was written after its end", i);
}

static void run_close(void) {
  static const char *const objects[] = {"qp", "cq", "mr", "pd", "context"};
  run_disconnect();
  ENSURE_INT(run_.net.vt->close_listen(run_.pair.listen), 0);
  kit_net_close(&run_.net);
  for (size_t i = 0; i < RAIL_COUNT_OF(objects); i++)
    ENSURE(emu_live(objects[i]) == 0, "%ld %s left", emu_live(objects[i]), objects[i]);
  free(run_.out);
  free(run_.in);
}

/* ---- the run ---------------------------------------------------------------------------------- */

static bool run_has_room(const struct run_side *s, long n) {
  return !s->error && s->posted < n && (s->posted < RUN_WINDOW || !s->requests[s->posted % RUN_WINDOW]);
}

static bool run_post_receive(long n) {
  struct run_side *s = &run_.recv;
  long slot = s->posted % RUN_WINDOW;
  void *data = run_.in + slot * RUN_SLOT;
  size_t size = RUN_MOST;
  int tag = 0;
  if (!run_has_room(s, n)) return false;
  ENSURE(run_is(data, RUN_AFTER, RUN_SLOT), "message %ld was written after its end", s->posted - RUN_WINDOW);
  memset(data, RUN_BEFORE, RUN_SLOT);
  s->error = run_.net.vt->irecv(run_.pair.recv, 1, &data, &size, &tag, &s->mh, NULL, &s->requests[slot]);
  if (!s->requests[slot]) memset(data, RUN_AFTER, RUN_SLOT);
  else s->posted++;
  return s->requests[slot];
}

/* Where it may not send it asks for a receive of a tag that none has: as a sender that waits for its receiver. */
static bool run_post_send(long n) {
  struct run_side *s = &run_.send;
  long slot = s->posted % RUN_WINDOW;
  uint8_t *data = run_.out + slot * RUN_SLOT;
  if (s->error) return false;
  if (s->posted >= n && s->posted == s->done) {
    void *none = NULL;
    s->error = run_.net.vt->isend(run_.pair.send, data, 1, 1, s->mh, NULL, &none);
    ENSURE(!none, "a send of tag 1 has begun, of which there is no receive");
  }
  if (!run_has_room(s, n)) return false;
  if (run_.before_send) run_.before_send(s->posted);
  run_fill(data, s->posted, run_size(s->posted));
  s->error = run_.net.vt->isend(run_.pair.send, data, run_size(s->posted), 0, s->mh, NULL, &s->requests[slot]);
  if (s->requests[slot]) s->posted++;
  return s->requests[slot];
}

static void run_done(const struct run_side *s, long slot, int size) {
  uint8_t *buffer = (s == &run_.send ? run_.out : run_.in) + slot * RUN_SLOT;
  long message = s->posted - 1 - (s->posted - 1 - slot) % RUN_WINDOW; /* the last one of that slot */
  if (s == &run_.send) {
    memset(buffer, RUN_SENT, run_size(message)); /* the caller's again: what is read now is wrong */
    return;
  }
  ENSURE(size >= 0 && (size_t)size == run_size(message), "message %ld has %d bytes, %zu were sent", message, size,
         run_size(message));
  run_check(buffer, message, run_size(message));
  memset(buffer, RUN_AFTER, RUN_SLOT);
}

/* One call for each that is outstanding. */
static bool run_test(struct run_side *s) {
  bool any = false;
  for (long i = 0; i < RUN_WINDOW && !s->error; i++) {
    int done = 0, size = -1;
    if (!s->requests[i]) continue;
    s->error = run_.net.vt->test(s->requests[i], &done, &size);
    ENSURE(!done || !s->error, "done, with error %d", s->error);
    if (!done) continue;
    s->requests[i] = NULL;
    s->done++;
    run_done(s, i, size);
    any = true;
  }
  return any;
}

static void run_rest(void) {
  if (++run_.quiet > 4 && time_thread_sleeps()) time_skip(RUN_SKIP_NS);
  else sched_yield();
}

/* Each call that can be made is made once; sends before message n, receives before `receives`. */
static void run_step(long n, long receives) {
  bool any = false;
  while (run_post_receive(receives)) any = true;
  while (run_post_send(n)) any = true;
  any |= run_test(&run_.recv);
  any |= run_test(&run_.send);
  if (run_.send.error) run_close_side(&run_.send, &run_.pair.send, true);
  if (run_.recv.error) run_close_side(&run_.recv, &run_.pair.recv, false);
  if (any) run_.quiet = 0;
  if (any || !run_.deadline) run_.deadline = time_real_ns() + kit_patience_ms(30000) * 1000000u;
  ENSURE(time_real_ns() < run_.deadline, "nothing moves: %ld of %ld sends, %ld of %ld receives are done; %d queue "
         "pairs are lost, %d in use again", run_.send.done, run_.send.posted, run_.recv.done, run_.recv.posted,
         run_.lost, run_.returned);
  if (!any) run_rest();
}

#endif
