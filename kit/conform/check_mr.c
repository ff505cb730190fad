/* SPDX-License-Identifier: Apache-2.0
 * Item 11, memory registration: any range at any time, from another thread than the one that moves data. */
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"

/* ---- which ranges ---- */

static void odd_and_overlapping_ranges(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  size_t size = (size_t)1 << 20, some = 1000;
  uint8_t *buf = kit_pages(size), *in = kit_pages(some);
  void *mh[64];
  for (size_t i = 0; i < 32; i++) {
    mh[i] = kit_mr_reg(&n, p.send, buf + i * 1001 + i % 7, 4915200 % (i * 997 + 1) + 1);
    mh[32 + i] = kit_mr_reg(&n, p.recv, buf + i * 1001 + i % 5, i * 3000 + 1);
  }
  void *twin_a = kit_mr_reg(&n, p.send, buf, size), *twin_b = kit_mr_reg(&n, p.send, buf, size);
  kit_mr_dereg(&n, p.send, twin_a);
  kit_pattern_fill(buf, some, 4);
  struct kit_op ops[2] = {kit_op_recv(p.recv, in, some, 0), kit_op_send(p.send, buf, some, 0)};
  ops[0].mh[0] = kit_mr_reg(&n, p.recv, in, some);
  ops[1].mh[0] = twin_b;
  kit_ops_run(&n, ops, 2, (struct kit_ops_options){0});
  ENSURE(kit_pattern_check(in, some, 4) < 0,
         "data sent from a range registered twice arrived wrong after one of the two handles was deregistered");
  kit_mr_dereg(&n, p.recv, ops[0].mh[0]);
  kit_mr_dereg(&n, p.send, twin_b);
  for (size_t i = 0; i < 32; i++) {
    kit_mr_dereg(&n, p.send, mh[31 - i]);
    kit_mr_dereg(&n, p.recv, mh[32 + i]);
  }
  kit_pair_close(&p);
  kit_net_close(&n);
  kit_pages_free(buf, size);
  kit_pages_free(in, some);
}

/* LL, LL128 and Simple of one connection, one after the other in one allocation, as NCCL lays them out. */
struct protocol { size_t at, size, step; };

static void protocol_buffers(struct kit_process *self) {
  (void)self;
  static const struct protocol protocols[3] = {
      {64, 512 << 10, 64 << 10}, {64 + (512 << 10), 4915200, 614400}, {64 + (512 << 10) + 4915200, 4 << 20, 512 << 10}};
  enum { STEPS = 8 };
  size_t size = protocols[2].at + protocols[2].size;
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  uint8_t *out = kit_pages(size), *in = kit_pages(size);
  kit_pattern_fill(out, size, 7);
  for (int k = 0; k < 3; k++) {
    const struct protocol *b = &protocols[k];
    void *mh_out = kit_mr_reg(&n, p.send, out + b->at, b->size), *mh_in = kit_mr_reg(&n, p.recv, in + b->at, b->size);
    struct kit_op ops[2 * STEPS];
    for (int i = 0; i < STEPS; i++) {
      size_t at = b->at + (size_t)i * b->step;
      ops[2 * i] = kit_op_recv(p.recv, in + at, b->step, 3);
      ops[2 * i + 1] = kit_op_send(p.send, out + at, b->step, 3);
      ops[2 * i].mh[0] = mh_in;
      ops[2 * i + 1].mh[0] = mh_out;
    }
    kit_ops_run(&n, ops, 2 * STEPS, (struct kit_ops_options){0});
    kit_mr_dereg(&n, p.send, mh_out);
    kit_mr_dereg(&n, p.recv, mh_in);
    ENSURE(memcmp(in + b->at, out + b->at, b->size) == 0,
           "a buffer of %zu bytes at an address that is no multiple of a page arrived wrong, sent in %d slices",
           b->size, STEPS);
  }
  kit_pair_close(&p);
  kit_net_close(&n);
  kit_pages_free(out, size);
  kit_pages_free(in, size);
}

/* The pool of shared connections: registered on each of them, deregistered one by one. */
static void one_pool_on_many_connections(struct kit_process *self) {
  (void)self;
  enum { COUNT = 4 };
  size_t share = 131072, size = 2 * COUNT * share;
  struct kit_net n;
  struct kit_pair p[COUNT];
  void *mh_out[COUNT], *mh_in[COUNT];
  kit_net_open(&n);
  uint8_t *pool = kit_pages(size);
  for (int i = 0; i < COUNT; i++) {
    kit_pair_open(&n, &p[i]);
    mh_out[i] = kit_mr_reg(&n, p[i].send, pool, size);
    mh_in[i] = kit_mr_reg(&n, p[i].recv, pool, size);
  }
  for (int gone = 0; gone < COUNT; gone++) { /* with one connection less each time */
    struct kit_op ops[2 * COUNT];
    int count = 0;
    for (int i = gone; i < COUNT; i++, count += 2) {
      uint8_t *out = pool + 2 * (size_t)i * share, *in = out + share;
      kit_pattern_fill(out, share, (uint64_t)gone * COUNT + (uint64_t)i);
      memset(in, 0xcc, share);
      ops[count] = kit_op_recv(p[i].recv, in, share, 0);
      ops[count + 1] = kit_op_send(p[i].send, out, share, 0);
      ops[count].mh[0] = mh_in[i];
      ops[count + 1].mh[0] = mh_out[i];
    }
    kit_ops_run(&n, ops, count, (struct kit_ops_options){0});
    for (int i = gone; i < COUNT; i++)
      ENSURE(memcmp(pool + 2 * (size_t)i * share, pool + (2 * (size_t)i + 1) * share, share) == 0,
             "connection %d of %d brought wrong data from a pool that %d others had deregistered", i, COUNT, gone);
    kit_mr_dereg(&n, p[gone].send, mh_out[gone]);
    kit_mr_dereg(&n, p[gone].recv, mh_in[gone]);
    kit_pair_close(&p[gone]);
  }
  kit_net_close(&n);
  kit_pages_free(pool, size);
}

static void dereg_of_null(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  int a = n.vt->dereg_mr(p.send, NULL), b = n.vt->dereg_mr(p.recv, NULL);
  ENSURE(a == 0 && b == 0,
         "deregMr(NULL) returned %s for a sendComm, %s for a recvComm, expected 0: NCCL makes this call at teardown "
         "for buffers whose regMr gave a NULL handle, and leaks the rest on an error", kit_rc_text(a), kit_rc_text(b));
  kit_pair_ping(&p, 10, 1);
  kit_pair_close(&p);
  kit_net_close(&n);
}

/* ---- kinds of memory ---- */

static void device_memory_is_refused_if_not_supported(struct kit_process *self) {
  struct kit_net n;
  struct kit_pair p;
  struct rail_net_props_v12 props;
  kit_net_open(&n);
  int rc = n.vt->get_properties(n.dev, &props);
  ENSURE(rc == 0, "getProperties returned %s", kit_rc_text(rc));
  if (props.ptr_support & RAIL_PTR_CUDA) {
    kit_note(self, "the plugin supports device memory (ptrSupport %#x)", (unsigned)props.ptr_support);
    kit_net_close(&n);
    return;
  }
  kit_pair_open(&n, &p);
  uint8_t *buf = kit_pages(4096);
  void *mh = NULL;
  rc = n.vt->reg_mr(p.send, buf, 4096, RAIL_PTR_CUDA, &mh);
  ENSURE(rc != 0, "regMr of device memory returned 0, but ptrSupport is %#x: the data would be read with the CPU",
         (unsigned)props.ptr_support);
  kit_pair_ping(&p, 100, 1); /* and nothing is wrong with the connection */
  kit_pair_close(&p);
  kit_net_close(&n);
  kit_pages_free(buf, 4096);
}

/* Whether or not it can register this one (a memory file is no DMA-BUF): the descriptor stays the caller's. */
static void dmabuf_descriptor_is_the_callers(struct kit_process *self) {
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  if (!n.vt->reg_mr_dmabuf) {
    kit_note(self, "the plugin has no regMrDmaBuf");
  } else {
    size_t size = 65536;
    int fd = memfd_create("kit", MFD_CLOEXEC);
    ENSURE(fd >= 0 && ftruncate(fd, (off_t)size) == 0, "memfd_create failed");
    uint8_t *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ENSURE(data != MAP_FAILED, "mmap failed");
    struct stat before, after;
    fstat(fd, &before);
    void *mh = NULL;
    int rc = n.vt->reg_mr_dmabuf(p.send, data, size, RAIL_PTR_CUDA, 0, fd, &mh);
    bool open = fstat(fd, &after) == 0 && after.st_ino == before.st_ino;
    ENSURE(open, "regMrDmaBuf returned %s and closed the caller's descriptor: NCCL closes it, too, by then perhaps "
           "somebody else's of that number", kit_rc_text(rc));
    close(fd); /* as NCCL does at once; what needs it later has a copy */
    if (rc == 0) kit_mr_dereg(&n, p.send, mh);
    kit_note(self, "regMrDmaBuf of a memory file returned %s", kit_rc_text(rc));
    munmap(data, size);
  }
  kit_pair_ping(&p, 1000, 1);
  kit_pair_close(&p);
  kit_net_close(&n);
}

/* ---- registration from a second thread, as NCCL's service thread does ---- */

/* One thread moves data through buffers that were registered before; the other registers. Never both: registering, too,
 * is one thread's work. */
struct traffic {
  struct kit_net *net;
  struct kit_pair *pair;
  atomic_bool *over;
  bool registers;
  int rounds;
  uint8_t *out, *in; /* MAX_BYTES each */
  void *mh_out, *mh_in;
};
enum { MAX_BYTES = 300000 };

static void register_until_over(struct traffic *t) {
  uint8_t *spare = kit_pages(2 * MAX_BYTES);
  for (size_t i = 0; !atomic_load(t->over); i++) {
    size_t size = i * 4099 % MAX_BYTES + 1;
    void *a = kit_mr_reg(t->net, t->pair->send, spare, size);
    void *b = kit_mr_reg(t->net, t->pair->recv, spare + MAX_BYTES, size);
    void *c = kit_mr_reg(t->net, t->pair->send, spare + size / 2, size / 2 + 1);
    kit_mr_dereg(t->net, t->pair->send, a);
    kit_mr_dereg(t->net, t->pair->recv, b);
    kit_mr_dereg(t->net, t->pair->send, c);
    if (i % 16 == 0) sched_yield();
  }
  kit_pages_free(spare, 2 * MAX_BYTES);
}

static void move_data(void *arg) {
  struct traffic *t = arg;
  for (int i = 0; i < t->rounds; i++) {
    size_t size = (size_t)i * 7919 % 200000;
    kit_pattern_fill(t->out, size, (uint64_t)i);
    struct kit_op ops[2] = {kit_op_recv(t->pair->recv, t->in, MAX_BYTES, 1),
                            kit_op_send(t->pair->send, t->out, size, 1)};
    ops[0].mh[0] = t->mh_in;
    ops[1].mh[0] = t->mh_out;
    kit_ops_run(t->net, ops, 2, (struct kit_ops_options){0});
    ENSURE(ops[0].sizes[0] == (int)size && kit_pattern_check(t->in, size, (uint64_t)i) < 0,
           "message %d, of %zu bytes, arrived wrong (%d bytes)", i, size, ops[0].sizes[0]);
  }
}

static void traffic_or_registration(void *arg) {
  struct traffic *t = arg;
  char why[1024] = "";
  if (t->registers) {
    register_until_over(t);
    return;
  }
  bool fine = kit_catch(move_data, t, why, sizeof why);
  atomic_store(t->over, true); /* in any case: the other one must end, too */
  ENSURE(fine, "while another thread registers memory: %s", why);
}

static void while_traffic_runs(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_pair p;
  atomic_bool over = false;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  struct traffic t[2] = {{.net = &n, .pair = &p, .over = &over, .rounds = kit_scaled(6000)},
                         {.net = &n, .pair = &p, .over = &over, .registers = true}};
  t[0].out = kit_pages(MAX_BYTES);
  t[0].in = kit_pages(MAX_BYTES);
  t[0].mh_out = kit_mr_reg(&n, p.send, t[0].out, MAX_BYTES);
  t[0].mh_in = kit_mr_reg(&n, p.recv, t[0].in, MAX_BYTES);
  kit_run_threads(2, traffic_or_registration, t, sizeof t[0]);
  kit_mr_dereg(&n, p.send, t[0].mh_out);
  kit_mr_dereg(&n, p.recv, t[0].mh_in);
  kit_pair_close(&p);
  kit_net_close(&n);
  kit_pages_free(t[0].out, MAX_BYTES);
  kit_pages_free(t[0].in, MAX_BYTES);
}

/* A user's buffer: registered and deregistered by one thread, used by the other. */
enum turn { SERVICE, PROGRESS, OVER };
struct handover {
  struct kit_net *net;
  struct kit_pair *pair;
  atomic_int *turn;
  bool serves;
  int rounds;
  uint8_t *out, *in;
  size_t size;
  void **mh; /* [0] out, [1] in */
};

/* False: the other thread has failed. */
static bool wait_turn(const struct handover *h, int whose) {
  uint64_t deadline = rail_deadline_in_ms(2 * kit_patience_ms(KIT_PATIENCE_MS));
  int now;
  while ((now = atomic_load(h->turn)) != whose && now != OVER) {
    ENSURE(!rail_deadline_passed(deadline), "the other thread does not come to its end");
    sched_yield();
  }
  return now == whose;
}

static void serve(void *arg) {
  const struct handover *h = arg;
  for (int i = 0; i < h->rounds; i++) {
    size_t page = (size_t)i % 16 * 4096;
    h->mh[0] = kit_mr_reg(h->net, h->pair->send, h->out + page, h->size);
    h->mh[1] = kit_mr_reg(h->net, h->pair->recv, h->in + page, h->size);
    atomic_store(h->turn, PROGRESS);
    if (!wait_turn(h, SERVICE)) return;
    kit_mr_dereg(h->net, h->pair->send, h->mh[0]);
    kit_mr_dereg(h->net, h->pair->recv, h->mh[1]);
  }
}

static void progress(void *arg) {
  const struct handover *h = arg;
  for (int i = 0; i < h->rounds; i++) {
    if (!wait_turn(h, PROGRESS)) return;
    uint8_t *out = h->out + (size_t)i % 16 * 4096, *in = h->in + (size_t)i % 16 * 4096;
    kit_pattern_fill(out, h->size, (uint64_t)i);
    struct kit_op ops[2] = {kit_op_recv(h->pair->recv, in, h->size, 1), kit_op_send(h->pair->send, out, h->size, 1)};
    ops[0].mh[0] = h->mh[1];
    ops[1].mh[0] = h->mh[0];
    kit_ops_run(h->net, ops, 2, (struct kit_ops_options){0});
    ENSURE(kit_pattern_check(in, h->size, (uint64_t)i) < 0,
           "round %d: a buffer that another thread had just registered arrived wrong", i);
    atomic_store(h->turn, SERVICE);
  }
}

static void serve_or_progress(void *arg) {
  const struct handover *h = arg;
  char why[1024] = "";
  if (kit_catch(h->serves ? serve : progress, arg, why, sizeof why)) return;
  atomic_store(h->turn, OVER);
  ENSURE(false, "%s", why);
}

static void registered_by_another_thread(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_pair p;
  atomic_int turn = SERVICE;
  void *mh[2];
  size_t size = 65536, all = size + 16 * 4096;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  uint8_t *out = kit_pages(all), *in = kit_pages(all);
  struct handover h[2] = {{&n, &p, &turn, true, kit_scaled(2000), out, in, size, mh},
                          {&n, &p, &turn, false, kit_scaled(2000), out, in, size, mh}};
  kit_run_threads(2, serve_or_progress, h, sizeof h[0]);
  kit_pair_close(&p);
  kit_net_close(&n);
  kit_pages_free(out, all);
  kit_pages_free(in, all);
}

const struct kit_check kit_checks_mr[] = {
    {"11.1", "mr.odd_and_overlapping_ranges", KIT_MUST, KIT_ONE, .limit_s = 30,
     .what = "regMr takes ranges of any address and size, also overlapping and the same one twice; each has its own "
             "deregMr",
     .source = "src/transport/net.cc:984", .run = odd_and_overlapping_ranges},
    {"11.2", "mr.protocol_buffers", KIT_MUST, KIT_ONE, .limit_s = 30,
     .what = "the buffers of LL, LL128 and Simple, neighbours in one allocation, are registered and moved slice by "
             "slice",
     .source = "src/init.cc:810, src/transport/net.cc:984,1157", .run = protocol_buffers},
    {"11.3", "mr.one_pool_on_many_connections", KIT_MUST, KIT_ONE, .limit_s = 30,
     .what = "the same memory is registered on many connections, and deregMr on one leaves it to the others",
     .source = "src/transport/net.cc:647", .run = one_pool_on_many_connections},
    {"11.4", "mr.dereg_of_null", KIT_MUST, KIT_ONE, .limit_s = 30,
     .what = "deregMr(comm, NULL) returns success", .source = "src/transport/net.cc:1211", .run = dereg_of_null},
    {"11.5", "mr.device_memory_is_refused_if_not_supported", KIT_SHOULD, KIT_ONE, .limit_s = 30,
     .what = "regMr of device memory fails when ptrSupport does not name it",
     .source = "src/graph/topo.cc:1650", .run = device_memory_is_refused_if_not_supported},
    {"11.6", "mr.dmabuf_descriptor_is_the_callers", KIT_MUST, KIT_ONE, .limit_s = 30,
     .what = "regMrDmaBuf does not close the descriptor it is given, and needs it no longer when it returns",
     .source = "src/transport/net.cc:994", .run = dmabuf_descriptor_is_the_callers},
    {"11.7", "mr.while_traffic_runs", KIT_MUST, KIT_ONE, .limit_s = 60,
     .what = "regMr and deregMr on one thread do not disturb isend, irecv and test of the same connection on another",
     .source = "src/transport/net.cc:1804,2047", .run = while_traffic_runs},
    {"11.8", "mr.registered_by_another_thread", KIT_MUST, KIT_ONE, .limit_s = 60,
     .what = "a handle that one thread has just got from regMr is good for another thread's isend and irecv",
     .source = "src/transport/net.cc:1804,1921", .run = registered_by_another_thread},
    {0},
};
