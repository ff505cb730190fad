/* SPDX-License-Identifier: Apache-2.0
 *
 * exchange PLUGIN SIZE MESSAGES: one message at a time over one connection within this process, by a fixed list of
 * calls. Each kind of call is made from a function of its own, so that callgrind can be told to count within it alone
 * (instructions.py). What was posted must be done at the first test.
 *
 * Over verbs the provider is the emulated device (NCCL_IBVERBS_LIB), which is told to move all data before anybody
 * tests, and which counts: printed is how often each kind asked it for what, in work requests and polls. Over libfabric
 * nothing is printed, and a call that finds the endpoint in the watch thread's hands is made again: of 100 messages one
 * at most.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kit/kit_net.h"

static struct kit_net net;
static struct kit_pair pair;
static void *mr[2]; /* of the sender's buffer, of the receiver's */

/* The comment in the code keeps the compiler from making one function of two that do the same. */
#define CALL __attribute__((noinline)) static void
#define MARK(name) __asm__ volatile("# " name)

CALL call_irecv(void *data, size_t size, void **req) {
  MARK("call_irecv");
  int tag = 0;
  ENSURE(net.vt->irecv(pair.recv, 1, &data, &size, &tag, &mr[1], NULL, req) == 0, "irecv failed");
}

CALL call_isend(void *data, size_t size, void **req) {
  MARK("call_isend");
  ENSURE(net.vt->isend(pair.send, data, size, 0, mr[0], NULL, req) == 0, "isend failed");
}

/* Told apart by what they find. */
CALL call_test_waiting(void *req, int *done) {
  MARK("call_test_waiting");
  ENSURE(net.vt->test(req, done, NULL) == 0, "test failed");
}

CALL call_test_received(void *req, int *done) {
  MARK("call_test_received");
  int size = 0;
  ENSURE(net.vt->test(req, done, &size) == 0, "test failed");
}

CALL call_test_sent(void *req, int *done) {
  MARK("call_test_sent");
  ENSURE(net.vt->test(req, done, NULL) == 0, "test failed");
}

/* ---- what the emulated device was asked for meanwhile ---- */

enum { KINDS = 5, VERBS = 3 };
static const char *const kinds[KINDS] = {"irecv", "test_waiting", "isend", "test_received", "test_sent"};
static const char *const verbs[VERBS] = {"post_send", "post_recv", "poll_cq"};
static long (*calls_of)(const char *verb);
static void (*quiesce)(void);
static long seen[VERBS], tally[KINDS][VERBS];

/* Over libfabric calls_of stays NULL. */
static void find_verbs(void) {
  const char *path = getenv("NCCL_IBVERBS_LIB");
  if (!path) return;
  void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD), *found;
  ENSURE(library, "NCCL_IBVERBS_LIB names no library that the plugin has opened");
  found = dlsym(library, "rail_emu_quiesce");
  ENSURE(found, "%s is not the emulated device", path);
  memcpy(&quiesce, &found, sizeof quiesce);
  found = dlsym(library, "rail_emu_calls");
  memcpy(&calls_of, &found, sizeof calls_of);
  for (int v = 0; v < VERBS; v++) seen[v] = calls_of(verbs[v]);
}

static void note(int kind) {
  for (int v = 0; calls_of && v < VERBS; v++) {
    long now = calls_of(verbs[v]);
    tally[kind][v] += now - seen[v];
    seen[v] = now;
  }
}

static void print_tally(void) {
  for (int k = 0; k < KINDS; k++)
    for (int v = 0; calls_of && v < VERBS; v++) printf("%s %s %ld\n", kinds[k], verbs[v], tally[k][v]);
}

static int messages, repeated;

static bool repeat(const char *what) {
  ENSURE(!calls_of && ++repeated <= messages / 100, "not the fixed list of calls: %s", what);
  return true;
}

static void one_message(void *from, void *to, size_t size) {
  void *sent = NULL, *received = NULL;
  int waiting = 0, arrived = 0, gone = 0;
  do call_irecv(to, size, &received);
  while (!received && repeat("irecv gave no request"));
  note(0);
  if (quiesce) quiesce();
  call_test_waiting(received, &waiting);
  note(1);
  do call_isend(from, size, &sent);
  while (!sent && repeat("isend gave no request: the receiver's buffer is not known"));
  note(2);
  if (quiesce) quiesce();
  do call_test_received(received, &arrived);
  while (!arrived && repeat("the receive is not done at the first test"));
  note(3);
  do call_test_sent(sent, &gone);
  while (!gone && repeat("the send is not done at the first test"));
  note(4);
  ENSURE(!waiting, "not the fixed list of calls: done before it was sent");
}

/* However long it takes: under callgrind, beside others, a provider's endpoint takes half a minute. Who runs this has a
 * limit. */
static void connect_pair(void) {
  pair.net = &net;
  pair.listen = kit_net_listen(&net, pair.handle);
  for (int quiet = 0; !pair.send || !pair.recv; kit_rest(&quiet)) {
    if (!pair.send) (void)kit_connect_step(&net, pair.handle, &pair.send);
    if (!pair.recv) (void)kit_accept_step(&net, pair.listen, &pair.recv);
  }
}

static void failed(const char *file, int line, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  fprintf(stderr, "exchange: %s:%d: ", file, line);
  vfprintf(stderr, fmt, ap);
  fputc('\n', stderr);
  va_end(ap);
  exit(1);
}

int main(int argc, char **argv) {
  if (argc != 4 || atol(argv[2]) < 1 || atoi(argv[3]) < 1) {
    fprintf(stderr, "usage: %s PLUGIN SIZE MESSAGES\n", argv[0]);
    return 2;
  }
  size_t size = (size_t)atol(argv[2]);
  kit_on_failure(failed);
  char *from = calloc(1, size), *to = calloc(1, size);
  ENSURE(from && to, "out of memory");
  kit_net_target(argv[1], 0, 0);
  kit_net_open(&net);
  messages = atoi(argv[3]);
  connect_pair();
  mr[0] = kit_mr_reg(&net, pair.send, from, size);
  mr[1] = kit_mr_reg(&net, pair.recv, to, size);
  find_verbs();
  for (int i = 0; i < messages; i++) one_message(from, to, size);
  print_tally();
  kit_mr_dereg(&net, pair.send, mr[0]);
  kit_mr_dereg(&net, pair.recv, mr[1]);
  kit_pair_close(&pair);
  kit_net_close(&net);
  free(from);
  free(to);
  return 0;
}
