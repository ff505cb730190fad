/* SPDX-License-Identifier: Apache-2.0
 * Hundreds of thousands of small messages, the sender as far ahead as it may run: none lost, doubled or out of order.
 * TEST-LIMIT: 60 */
#include <sched.h>

#include "common/clock.h"
#include "test/harness/proc.h"
#include "test/harness/program.h"

enum { DEPTH = 16, MOST = 300 };

static size_t size_of(uint64_t i) {
  uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull;
  return (size_t)((x >> 33) % (MOST + 1));
}

/* The message index, then bytes that follow from it; short ones hold what fits. */
static void compose(uint8_t *data, uint64_t i) {
  uint8_t whole[MOST + 8];
  memcpy(whole, &i, 8);
  memset(whole + 8, (int)(i * 7 + 1) & 0xff, MOST);
  memcpy(data, whole, size_of(i));
}

/* A ring of DEPTH requests over messages 0 … count-1. */
struct stream {
  struct kit_net *net;
  void *comm;
  enum kit_op_kind kind;
  uint64_t count, posted, done;
  struct kit_op op[DEPTH];
  uint8_t buf[DEPTH][MOST + 8];
};

static void arrived(const struct stream *s, const struct kit_op *op, uint64_t i) {
  uint8_t expected[MOST + 8];
  compose(expected, i);
  ENSURE(op->sizes[0] == (int)size_of(i), "message %llu has %d bytes, sent %zu", (unsigned long long)i, op->sizes[0],
         size_of(i));
  ENSURE(memcmp(s->buf[i % DEPTH], expected, size_of(i)) == 0, "message %llu holds something else",
         (unsigned long long)i);
}

/* Posts what fits, retires what is done. True if anything moved. */
static bool stream_step(struct stream *s) {
  uint64_t before = s->posted + s->done;
  while (s->posted < s->count && s->posted < s->done + DEPTH) {
    uint64_t i = s->posted;
    struct kit_op *op = &s->op[i % DEPTH];
    if (s->kind == KIT_OP_SEND) compose(s->buf[i % DEPTH], i);
    *op = s->kind == KIT_OP_SEND ? kit_op_send(s->comm, s->buf[i % DEPTH], size_of(i), 4)
                             : kit_op_recv(s->comm, s->buf[i % DEPTH], MOST, 4);
    if (!kit_op_post(s->net, op)) {
      ENSURE(!op->error, "message %llu: error %d", (unsigned long long)i, op->error);
      break;
    }
    s->posted++;
  }
  while (s->done < s->posted) {
    struct kit_op *op = &s->op[s->done % DEPTH];
    if (!kit_op_test(s->net, op)) break;
    ENSURE(!op->error, "message %llu: error %d", (unsigned long long)s->done, op->error);
    if (s->kind == KIT_OP_RECV) arrived(s, op, s->done);
    else memset(s->buf[s->done % DEPTH], 0xdd, sizeof s->buf[0]); /* ours again */
    s->done++;
  }
  return s->posted + s->done != before;
}

static void stream_run(struct stream *s) {
  uint64_t idle = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (s->done < s->count) {
    if (stream_step(s)) idle = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    else sched_yield();
    ENSURE(!rail_deadline_passed(idle), "stuck at message %llu of %llu", (unsigned long long)s->done,
           (unsigned long long)s->count);
  }
}

TEST(on_one_thread) {
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  static struct stream out, in;
  out = (struct stream){.net = &n, .comm = p.send, .kind = KIT_OP_SEND, .count = (uint64_t)kit_scaled(200000)};
  in = (struct stream){.net = &n, .comm = p.recv, .kind = KIT_OP_RECV, .count = out.count};
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (in.done < in.count || out.done < out.count) {
    bool moved = stream_step(&out);
    moved |= stream_step(&in);
    if (moved) deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    CHECK_MSG(!rail_deadline_passed(deadline), "stuck: %d sent, %d received", (int)out.done, (int)in.done);
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

static void flood_sender(struct pipes *io, void *arg) {
  struct kit_net n;
  char handle[RAIL_NET_HANDLE_SIZE];
  kit_net_open(&n);
  pipe_read(io, handle, sizeof handle);
  static struct stream out;
  out = (struct stream){.net = &n, .comm = kit_net_connect(&n, handle), .kind = KIT_OP_SEND, .count = *(uint64_t *)arg};
  stream_run(&out);
  int rc = n.vt->close_send(out.comm);
  ENSURE(rc == 0, "closeSend returned %d", rc);
  kit_net_close(&n);
}

TEST(from_another_process) {
  uint64_t count = (uint64_t)kit_scaled(200000);
  struct proc c = proc_start(flood_sender, &count);
  struct kit_net n;
  char handle[RAIL_NET_HANDLE_SIZE];
  kit_net_open(&n);
  void *listen = kit_net_listen(&n, handle);
  pipe_write(&c.io, handle, sizeof handle);
  static struct stream in;
  in = (struct stream){.net = &n, .comm = kit_net_accept(&n, listen), .kind = KIT_OP_RECV, .count = count};
  stream_run(&in);
  proc_join(&c);
  CHECK_OK(n.vt->close_recv(in.comm));
  CHECK_OK(n.vt->close_listen(listen));
  kit_net_close(&n);
}

TEST_MAIN(TEST_CASE(on_one_thread), TEST_CASE(from_another_process))
