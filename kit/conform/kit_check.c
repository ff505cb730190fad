/* SPDX-License-Identifier: Apache-2.0
 * What checks share. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"

bool kit_sends(const struct kit_process *self) { return kit_process_rank(self) == 0; }
bool kit_receives(const struct kit_process *self) { return kit_process_rank(self) == kit_process_count(self) - 1; }

void kit_check_connect(struct kit_process *self, struct kit_net *n, struct kit_pair *p) {
  if (kit_process_count(self) == 1) {
    kit_pair_open(n, p);
    return;
  }
  memset(p, 0, sizeof *p);
  p->net = n;
  memset(p->handle, 0xa5, sizeof p->handle);
  if (kit_sends(self)) {
    kit_recv_bytes(self, 1, p->handle, sizeof p->handle);
    p->send = kit_net_connect(n, p->handle);
    return;
  }
  p->listen = kit_net_listen(n, p->handle);
  kit_send_bytes(self, 0, p->handle, sizeof p->handle);
  p->recv = kit_net_accept(n, p->listen);
  int rc = n->vt->close_listen(p->listen);
  p->listen = NULL;
  ENSURE(rc == 0, "closeListen returned %s", kit_rc_text(rc));
}

void kit_check_disconnect(struct kit_process *self, struct kit_pair *p) {
  (void)self;
  int send = p->send ? p->net->vt->close_send(p->send) : 0;
  int recv = p->recv ? p->net->vt->close_recv(p->recv) : 0;
  p->send = p->recv = NULL;
  ENSURE(send == 0, "closeSend returned %s", kit_rc_text(send));
  ENSURE(recv == 0, "closeRecv returned %s", kit_rc_text(recv));
}

/* ---- connections with registered memory ---- */

static void conn_start(struct kit_conn *conn, int number) {
  conn->sends = kit_sends(conn->self);
  conn->receives = kit_receives(conn->self);
  conn->rng.state = kit_process_job(conn->self)->seed + (uint64_t)number * 0x9e3779b97f4a7c15ull;
  conn->own_rng.state = conn->rng.state ^ ((uint64_t)kit_process_rank(conn->self) << 32);
  struct rail_net_props_v12 props;
  memset(&props, 0, sizeof props);
  int rc = conn->net->vt->get_properties(conn->net->dev, &props);
  ENSURE(rc == 0, "getProperties(%d) returned %s", conn->net->dev, kit_rc_text(rc));
  conn->max_recvs = props.max_recvs < 1 ? 1 : props.max_recvs > KIT_MAX_GROUP ? KIT_MAX_GROUP : props.max_recvs;
  kit_check_connect(conn->self, conn->net, &conn->pair);
}

void kit_conn_open(struct kit_conn *conn, struct kit_process *self) {
  memset(conn, 0, sizeof *conn);
  conn->self = self;
  conn->net = &conn->own;
  kit_net_open(conn->net);
  conn_start(conn, 0);
}

void kit_conn_join(struct kit_conn *conn, const struct kit_conn *with, int number) {
  memset(conn, 0, sizeof *conn);
  conn->self = with->self;
  conn->net = with->net;
  conn_start(conn, number);
}

static void region_free(struct kit_conn *conn, struct kit_conn_region *r) {
  if (conn->sends) kit_mr_dereg(conn->net, conn->pair.send, r->send_mh);
  if (conn->receives) kit_mr_dereg(conn->net, conn->pair.recv, r->recv_mh);
  kit_guard_free(&r->mem);
  *r = (struct kit_conn_region){0};
}

void kit_conn_close(struct kit_conn *conn) {
  for (int i = 0; i < KIT_CONN_REGIONS; i++)
    if (conn->region[i].mem.data) region_free(conn, &conn->region[i]);
  kit_check_disconnect(conn->self, &conn->pair);
  if (conn->net == &conn->own) kit_net_close(conn->net);
}

static uint8_t *region_add(struct kit_conn *conn, struct kit_guarded mem) {
  for (int i = 0; i < KIT_CONN_REGIONS; i++) {
    struct kit_conn_region *r = &conn->region[i];
    if (r->mem.data) continue;
    r->mem = mem;
    if (conn->sends) r->send_mh = kit_mr_reg(conn->net, conn->pair.send, mem.data, mem.size);
    if (conn->receives) r->recv_mh = kit_mr_reg(conn->net, conn->pair.recv, mem.data, mem.size);
    return mem.data;
  }
  kit_failed(__FILE__, __LINE__, "the check's own mistake: more than %d buffers of one connection", KIT_CONN_REGIONS);
}

uint8_t *kit_conn_high(struct kit_conn *conn, size_t size) { return region_add(conn, kit_guard_high(size ? size : 1)); }
uint8_t *kit_conn_low(struct kit_conn *conn, size_t size) { return region_add(conn, kit_guard_low(size ? size : 1)); }

void kit_conn_reg(struct kit_conn *conn, void *data, size_t size) {
  region_add(conn, (struct kit_guarded){.data = data, .size = size});
}

static const struct kit_conn_region *region_of(const struct kit_conn *conn, const void *data, size_t size) {
  if (size == 0) size = 1; /* a pointer to within, as NCCL's is */
  for (int i = 0; i < KIT_CONN_REGIONS; i++) {
    const struct kit_guarded *m = &conn->region[i].mem;
    if (!m->data || (const uint8_t *)data < m->data) continue;
    if ((const uint8_t *)data + size <= m->data + m->size) return &conn->region[i];
  }
  kit_failed(__FILE__, __LINE__, "the check's own mistake: %zu bytes at %p are not registered", size, data);
}

void kit_conn_free(struct kit_conn *conn, const void *data) {
  region_free(conn, (struct kit_conn_region *)(uintptr_t)region_of(conn, data, 0));
}

struct kit_op kit_conn_send(const struct kit_conn *conn, const void *data, size_t size, int tag) {
  struct kit_op op = kit_op_send(conn->pair.send, data, size, tag);
  op.mh[0] = region_of(conn, data, size)->send_mh;
  return op;
}

struct kit_op kit_conn_group(const struct kit_conn *conn) {
  return (struct kit_op){.kind = KIT_OP_RECV, .comm = conn->pair.recv};
}

void kit_conn_add(const struct kit_conn *conn, struct kit_op *group, void *data, size_t size, int tag) {
  ENSURE(group->n < KIT_MAX_GROUP, "the check's own mistake: a group of more than %d", KIT_MAX_GROUP);
  group->data[group->n] = data;
  group->size[group->n] = size;
  group->tag[group->n] = tag;
  group->mh[group->n++] = region_of(conn, data, size)->recv_mh;
}

struct kit_op kit_conn_recv(const struct kit_conn *conn, void *data, size_t size, int tag) {
  struct kit_op op = kit_conn_group(conn);
  kit_conn_add(conn, &op, data, size, tag);
  return op;
}

void kit_conn_run(struct kit_conn *conn, struct kit_op *ops, int count, enum kit_ops_order order) {
  kit_ops_run(conn->net, ops, count,
              (struct kit_ops_options){.order = order, .deadline_ms = 10000, .rng = &conn->own_rng});
}

void kit_conn_needs_groups(const struct kit_conn *conn) {
  if (conn->max_recvs < 2) kit_skip("the plugin's maxRecvs is 1: NCCL never asks it for grouped receives");
}

/* ---- closing, single requests, memory, sleep ---- */

void kit_close_within(int (*close)(void *comm), void *comm, const char *call, uint64_t limit_ms) {
  uint64_t start = rail_now_ns();
  int rc = close(comm);
  double seconds = (double)(rail_now_ns() - start) / 1e9;
  ENSURE(rc == 0, "%s returned %s, expected 0: NCCL stops freeing at the first error and leaks all that is left", call,
         kit_rc_text(rc));
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
  while (!kit_op_step(n, op) && !rail_deadline_passed(until)) kit_short_sleep();
  return op->done || op->error;
}

void kit_op_start(struct kit_net *n, struct kit_op *op) {
  const char *call = op->kind == KIT_OP_SEND ? "isend" : "irecv";
  int quiet = 0;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (!kit_op_post(n, op)) {
    ENSURE(!op->error, "%s returned %s, expected 0: nothing is wrong with the connection", call,
           kit_rc_text(op->error));
    ENSURE(!rail_deadline_passed(deadline), "%s gave no request for %.0f s although nothing else is outstanding", call,
           (double)kit_patience_ms(KIT_PATIENCE_MS) / 1000);
    kit_rest(&quiet);
  }
}

void kit_op_test_again(struct kit_net *n, struct kit_op *op, int times) {
  int done = 0, sizes[KIT_MAX_GROUP];
  for (int i = 0; i < times && op->req && !done; i++)
    if (n->vt->test(op->req, &done, sizes) != 0) break;
  if (!done) return;
  op->req = NULL;
  op->done = true;
}

void kit_check_connect_both_ways(struct kit_process *self, struct kit_net *n, struct kit_pair *p, int count) {
  size_t size = (size_t)count * RAIL_NET_HANDLE_SIZE;
  int other = 1 - kit_process_rank(self), left = 2 * count;
  char *mine = calloc(2, size), *theirs = mine + size;
  ENSURE(mine, "out of memory");
  for (int i = 0; i < count; i++) {
    p[i] = (struct kit_pair){.net = n};
    p[i].listen = kit_net_listen(n, p[i].handle);
    memcpy(mine + (size_t)i * RAIL_NET_HANDLE_SIZE, p[i].handle, RAIL_NET_HANDLE_SIZE);
  }
  kit_exchange(self, other, mine, theirs, size);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  for (int quiet = 0; left > 0;) {
    const int before = left;
    for (int i = 0; i < count; i++) {
      if (!p[i].send && kit_connect_step(n, theirs + (size_t)i * RAIL_NET_HANDLE_SIZE, &p[i].send)) left--;
      if (!p[i].recv && kit_accept_step(n, p[i].listen, &p[i].recv)) left--;
    }
    ENSURE(!rail_deadline_passed(deadline), "%d of %d ends are not connected after %.0f s, polled by turns", left,
           2 * count, (double)kit_patience_ms(KIT_PATIENCE_MS) / 1000);
    if (left < before) quiet = 0;
    else kit_rest(&quiet);
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

void kit_short_sleep(void) { nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL); }

void kit_sleep_ms(uint64_t ms) {
  uint64_t until = rail_deadline_in_ms(ms);
  for (uint64_t now = rail_now_ns(); now < until; now = rail_now_ns()) {
    struct timespec left = {(time_t)((until - now) / 1000000000), (long)((until - now) % 1000000000)};
    nanosleep(&left, NULL);
  }
}

/* What the kernel counts for a thread, summed: nanoseconds that it waited for a processor while it could have run. */
static uint64_t waited_for_cpu_ns(void) {
  uint64_t all = 0;
  DIR *tasks = opendir("/proc/self/task");
  for (struct dirent *d; tasks && (d = readdir(tasks));) {
    char path[64 + sizeof d->d_name];
    unsigned long long ran, waited;
    snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", d->d_name);
    FILE *f = d->d_name[0] == '.' ? NULL : fopen(path, "re");
    if (f && fscanf(f, "%llu %llu", &ran, &waited) == 2) all += waited;
    if (f) fclose(f);
  }
  if (tasks) closedir(tasks);
  return all;
}

/* On a busy machine a thread that never sleeps may get no processor for as long as one look takes: where threads waited
 * for one, or the sleep was much longer than it should have been, it looks again. */
double kit_cpu_asleep(uint64_t ms) {
  enum { LOOKS = 10 };
  double most = 0;
  for (int i = 0; i < LOOKS; i++) {
    uint64_t cpu = kit_cpu_ns(), waited = waited_for_cpu_ns(), start = rail_now_ns();
    kit_sleep_ms(ms);
    uint64_t took = rail_now_ns() - start, waits = waited_for_cpu_ns();
    double used = (double)(kit_cpu_ns() - cpu) / (double)took;
    if (used > most) most = used;
    if (took < 2 * ms * 1000000 && waits < waited + took / 5) break;
  }
  return most;
}
