/* SPDX-License-Identifier: Apache-2.0
 * iflush: data that GPUs read are made visible between the end of their receive and the GPU's first look. NCCL calls it
 * for GPU memory only; plugins that do the same for host memory can be tried without a GPU. */
#include <string.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"

enum { ROOM = 65536, FLUSHES = 8 /* NCCL's steps */ };

/* What NCCL passes: addresses, sizes as test gave them, handles of the receive; *request is NULL before. */
static int flush(const struct kit_conn *conn, struct kit_op *received, void **request) {
  *request = NULL;
  return conn->net->vt->iflush(conn->pair.recv, received->n, received->data, received->sizes, received->mh, request);
}

/* NULL: there is nothing to wait for. */
static int await_flush(const struct kit_conn *conn, void *request) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(10000));
  for (int done = 0, rc; request && !done;) {
    done = -1;
    if ((rc = conn->net->vt->test(request, &done, NULL)) != 0) return rc;
    ENSURE(done == 0 || done == 1, "test of a flush said done is %d", done);
    ENSURE(done || !rail_deadline_passed(deadline), "a flush was not done after 10 s");
  }
  return 0;
}

/* A group of `n` messages of these sizes, one after the other in `in`, across and whole. */
static struct kit_op receive(struct kit_conn *conn, uint8_t *out, uint8_t *in, int n, const size_t *sizes,
                             uint64_t seed) {
  struct kit_op ops[1 + KIT_MAX_GROUP] = {kit_conn_group(conn)};
  memset(in, 0xcc, (size_t)n * ROOM);
  for (int i = 0; i < n; i++) {
    kit_pattern_fill(out + i * ROOM, sizes[i], seed + (uint64_t)i);
    kit_conn_add(conn, &ops[0], in + i * ROOM, ROOM, i);
    ops[1 + i] = kit_conn_send(conn, out + i * ROOM, sizes[i], i);
  }
  kit_conn_run(conn, ops, 1 + n, KIT_OPS_FORWARD);
  return ops[0];
}

static void is_whole(const struct kit_op *received, uint64_t seed) {
  for (int i = 0; i < received->n; i++) {
    const uint8_t *in = received->data[i];
    size_t size = (size_t)received->sizes[i];
    ENSURE(kit_pattern_check(in, size, seed + (uint64_t)i) < 0 && kit_bytes_check(in + size, ROOM - size, 0xcc) < 0,
           "after a flush buffer %d of %d, which had received %zu bytes, holds something else", i, received->n, size);
  }
}

static void flushed(struct kit_conn *conn, struct kit_op *received, uint64_t seed) {
  void *request;
  int rc = flush(conn, received, &request);
  ENSURE(rc == 0, "iflush of %d buffers returned %s", received->n, kit_rc_text(rc));
  ENSURE((rc = await_flush(conn, request)) == 0, "test of a flush returned %s", kit_rc_text(rc));
  is_whole(received, seed);
}

/* The connection, and its memory. Ends the check where host memory is not flushed. */
static void open_flushing(struct kit_conn *conn, struct kit_process *self, uint8_t **out, uint8_t **in, int buffers) {
  void *request;
  int rc;
  kit_conn_open(conn, self);
  if (!conn->net->vt->iflush) kit_skip("the plugin has no iflush");
  *out = kit_conn_high(conn, (size_t)buffers * ROOM);
  *in = kit_conn_high(conn, (size_t)buffers * ROOM);
  struct kit_op first = receive(conn, *out, *in, 1, (const size_t[]){100}, 1);
  if ((rc = flush(conn, &first, &request)) != 0)
    kit_skip("iflush says %s of host memory: NCCL asks for GPU memory only", kit_rc_text(rc));
  ENSURE((rc = await_flush(conn, request)) == 0, "test of a flush returned %s", kit_rc_text(rc));
}

static void after_a_receive(struct kit_process *self) {
  static const size_t sizes[] = {1, 7, 4096, ROOM - 1, ROOM, 0};
  struct kit_conn conn;
  uint8_t *out, *in;
  open_flushing(&conn, self, &out, &in, 1);
  for (int i = 0; i < kit_scaled(60); i++) {
    struct kit_op received = receive(&conn, out, in, 1, &sizes[i % 6], (uint64_t)i);
    flushed(&conn, &received, (uint64_t)i);
  }
  kit_conn_close(&conn);
}

static void of_a_group(struct kit_process *self) {
  struct kit_conn conn;
  uint8_t *out, *in;
  size_t sizes[KIT_MAX_GROUP];
  open_flushing(&conn, self, &out, &in, KIT_MAX_GROUP);
  kit_conn_needs_groups(&conn);
  int most = conn.max_recvs < KIT_MAX_GROUP ? conn.max_recvs : KIT_MAX_GROUP;
  for (int i = 0; i < kit_scaled(100); i++) {
    int n = 1 + i % most;
    for (int k = 0; k < n; k++) sizes[k] = kit_rng_below(&conn.rng, 3) ? kit_rng_below(&conn.rng, ROOM + 1) : 0;
    if (i % 10 == 9) memset(sizes, 0, sizeof sizes);
    struct kit_op received = receive(&conn, out, in, n, sizes, (uint64_t)i);
    flushed(&conn, &received, (uint64_t)i);
  }
  kit_conn_close(&conn);
}

/* As NCCL's proxy has them: up to a flush for each step, received at different times, and tested oldest first or not,
 * while the next messages arrive. */
static void several_at_once(struct kit_process *self) {
  struct kit_conn conn;
  uint8_t *out, *in;
  open_flushing(&conn, self, &out, &in, FLUSHES + 1);
  for (int round = 0; round < kit_scaled(40); round++) {
    struct kit_op received[FLUSHES];
    void *request[FLUSHES];
    int rc;
    for (int i = 0; i < FLUSHES; i++) {
      size_t size = 1 + kit_rng_below(&conn.rng, ROOM);
      received[i] = receive(&conn, out, in + i * ROOM, 1, &size, (uint64_t)round * FLUSHES + (uint64_t)i);
      ENSURE((rc = flush(&conn, &received[i], &request[i])) == 0, "iflush returned %s with %d outstanding",
             kit_rc_text(rc), i);
    }
    for (int k = 0; k < FLUSHES; k++) {
      int i = round % 2 ? FLUSHES - 1 - k : k;
      ENSURE((rc = await_flush(&conn, request[i])) == 0, "test of flush %d of %d returned %s", i, FLUSHES,
             kit_rc_text(rc));
      is_whole(&received[i], (uint64_t)round * FLUSHES + (uint64_t)i);
    }
  }
  kit_conn_close(&conn);
}

/* Whatever its result, it comes soon, and everything can be closed. */
static void after_the_sender_has_gone(struct kit_process *self) {
  static struct kit_conn conn;
  uint8_t *out, *in;
  void *request = NULL;
  open_flushing(&conn, self, &out, &in, 1);
  struct kit_op received = receive(&conn, out, in, 1, (const size_t[]){ROOM}, 1);
  int before = flush(&conn, &received, &request);
  ENSURE(before == 0, "iflush returned %s", kit_rc_text(before));
  for (int i = 0; i < KIT_CONN_REGIONS; i++)
    if (conn.region[i].send_mh) kit_mr_dereg(conn.net, conn.pair.send, conn.region[i].send_mh);
  ENSURE(conn.net->vt->close_send(conn.pair.send) == 0, "closeSend failed");
  await_flush(&conn, request);
  struct kit_op never = kit_conn_recv(&conn, in, ROOM, 9);
  int error = 0;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(10000));
  for (bool posted = false; !error && !never.error && !rail_deadline_passed(deadline);) {
    posted = posted || kit_op_post(conn.net, &never);
    int done = 0;
    if (posted) error = conn.net->vt->test(never.req, &done, never.sizes);
  }
  if (flush(&conn, &received, &request) == 0) await_flush(&conn, request);
  for (int i = 0; i < KIT_CONN_REGIONS; i++)
    if (conn.region[i].recv_mh) kit_mr_dereg(conn.net, conn.pair.recv, conn.region[i].recv_mh);
  ENSURE(conn.net->vt->close_recv(conn.pair.recv) == 0, "closeRecv failed");
  kit_net_close(conn.net);
}

#define NET "src/transport/net.cc:"

const struct kit_check kit_checks_flush[] = {
    {"9.11", "flush.after_a_receive", KIT_SHOULD, KIT_ONE, .limit_s = 40,
     .what = "iflush of what a receive brought gives no request or one that ends, and leaves the data as they are.",
     .source = NET "1622-1641, 1699", .run = after_a_receive},
    {"9.12", "flush.of_a_group", KIT_SHOULD, KIT_ONE, .limit_s = 40,
     .what = "One iflush is for all buffers of a grouped receive, some of them or all without data.",
     .source = NET "1622-1641", .run = of_a_group},
    {"9.13", "flush.several_at_once", KIT_SHOULD, KIT_ONE, .limit_s = 40,
     .what = "A flush for each of NCCL's 8 steps may be outstanding, and be tested in any order while messages arrive.",
     .source = NET "1684-1700", .run = several_at_once},
    {"9.14", "flush.after_the_sender_has_gone", KIT_SHOULD, KIT_ONE, .limit_s = 40,
     .what = "When the connection has failed, iflush and the test of a flush come back, and closing works.",
     .source = NET "1640", .run = after_the_sender_has_gone},
    {0},
};
