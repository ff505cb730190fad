/* SPDX-License-Identifier: Apache-2.0 */
#include "kit/conform/kit_many.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "common/base/clock.h"

void kit_close_within(int (*close)(void *comm), void *comm, const char *call, uint64_t limit_ms) {
  uint64_t start = rail_now_ns();
  int rc = close(comm);
  double seconds = (double)(rail_now_ns() - start) / 1e9;
  ENSURE(rc == 0, "%s returned %d, expected 0: NCCL stops freeing at the first error and leaks all that is left", call,
         rc);
  ENSURE(seconds * 1000 < (double)kit_patience_ms(limit_ms),
         "%s took %.1f s, expected less than %.1f: NCCL closes connections one by one, on one thread", call, seconds,
         (double)kit_patience_ms(limit_ms) / 1000);
}

void kit_close_pair_within(struct kit_pair *p, bool send_first, uint64_t limit_ms) {
  const struct rail_net_v12 *vt = p->net->vt;
  if (send_first) kit_close_within(vt->close_send, p->send, "closeSend", limit_ms);
  kit_close_within(vt->close_recv, p->recv, "closeRecv", limit_ms);
  if (!send_first) kit_close_within(vt->close_send, p->send, "closeSend", limit_ms);
  p->send = p->recv = NULL;
}

bool kit_op_step(struct kit_net *n, struct kit_op *op) {
  if (op->done || op->error) return true;
  if (op->req) kit_op_test(n, op);
  else kit_op_post(n, op);
  return op->done || op->error;
}

bool kit_op_within(struct kit_net *n, struct kit_op *op, uint64_t ms) {
  uint64_t until = rail_deadline_in_ms(ms);
  while (!kit_op_step(n, op) && !rail_deadline_passed(until)) kit_nap();
  return op->done || op->error;
}

void kit_op_start(struct kit_net *n, struct kit_op *op) {
  const char *call = op->kind == KIT_OP_SEND ? "isend" : "irecv";
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (!kit_op_post(n, op)) {
    ENSURE(!op->error, "%s returned %d, expected 0: nothing is wrong with the connection", call, op->error);
    ENSURE(!rail_deadline_passed(deadline), "%s gave no request for %.0f s although nothing else is outstanding", call,
           (double)kit_patience_ms(KIT_PATIENCE_MS) / 1000);
    sched_yield();
  }
}

void kit_op_stray(struct kit_net *n, struct kit_op *op, int times) {
  int done = 0, sizes[KIT_MAX_GROUP];
  for (int i = 0; i < times && op->req && !done; i++)
    if (n->vt->test(op->req, &done, sizes) != 0) break;
  if (!done) return;
  op->req = NULL;
  op->done = true;
}

void kit_cross(struct kit_side *side, struct kit_net *n, struct kit_pair *p, int count) {
  size_t size = (size_t)count * RAIL_NET_HANDLE_SIZE;
  int other = 1 - kit_side_rank(side), left = 2 * count;
  char *mine = calloc(2, size), *theirs = mine + size;
  ENSURE(mine, "out of memory");
  for (int i = 0; i < count; i++) {
    p[i] = (struct kit_pair){.net = n};
    p[i].listen = kit_net_listen(n, p[i].handle);
    memcpy(mine + (size_t)i * RAIL_NET_HANDLE_SIZE, p[i].handle, RAIL_NET_HANDLE_SIZE);
  }
  kit_swap(side, other, mine, theirs, size);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (left > 0) {
    for (int i = 0; i < count; i++) {
      if (!p[i].send && kit_connect_step(n, theirs + (size_t)i * RAIL_NET_HANDLE_SIZE, &p[i].send)) left--;
      if (!p[i].recv && kit_accept_step(n, p[i].listen, &p[i].recv)) left--;
    }
    ENSURE(!rail_deadline_passed(deadline), "%d of %d ends are not connected after %.0f s, polled by turns", left,
           2 * count, (double)kit_patience_ms(KIT_PATIENCE_MS) / 1000);
    sched_yield();
  }
  free(mine);
  for (int i = 0; i < count; i++) {
    kit_close_within(n->vt->close_listen, p[i].listen, "closeListen", KIT_CLOSE_HUNG_MS);
    p[i].listen = NULL;
  }
}

uint8_t *kit_pages(size_t size) {
  void *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ENSURE(data != MAP_FAILED, "out of memory: %zu bytes", size);
  return data;
}

void kit_pages_free(uint8_t *data, size_t size) {
  void *gone = mmap(data, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  ENSURE(gone == data, "out of memory: %zu bytes cannot be given back", size);
}

void kit_nap(void) { nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL); }

void kit_sleep_ms(uint64_t ms) {
  uint64_t until = rail_deadline_in_ms(ms);
  for (uint64_t now = rail_now_ns(); now < until; now = rail_now_ns()) {
    struct timespec left = {(time_t)((until - now) / 1000000000), (long)((until - now) % 1000000000)};
    nanosleep(&left, NULL);
  }
}

double kit_cpu_asleep(uint64_t ms) {
  uint64_t cpu = kit_cpu_ns(), start = rail_now_ns();
  kit_sleep_ms(ms);
  return (double)(kit_cpu_ns() - cpu) / (double)(rail_now_ns() - start);
}
