/* SPDX-License-Identifier: Apache-2.0
 * Messages of any size and alignment arrive whole, report their size, and never touch a byte beyond the receive. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"

static const size_t sizes[] = {0,    1,    2,    7,     8,     9,     63,     64,     65,     127,    128,
                               129,  255,  256,  257,   1023,  4095,  4096,   4097,   8191,   8192,   8193,
                               65535, 65536, 65537, 131071, 131072, 131073, 262147, 1048575, 1048576, 1048577};
enum { NSIZES = sizeof sizes / sizeof sizes[0] };

/* Sends `size` bytes at `out` into a receive of `room` at `in` and checks all of it. */
static void cross(struct kit_conn *conn, uint8_t *out, size_t size, uint8_t *in, size_t room, uint64_t seed) {
  if (conn->sends) kit_pattern_fill(out, size, seed);
  if (conn->receives) memset(in, 0xcc, room);
  struct kit_op ops[2] = {kit_conn_recv(conn, in, room, 3), kit_conn_send(conn, out, size, 3)};
  kit_conn_run(conn, ops, 2, KIT_OPS_OLDEST);
  if (conn->receives) {
    ENSURE(ops[0].sizes[0] == (int)size, "test reported %d bytes of a message of %zu: NCCL skips the flush of what it "
           "takes for empty", ops[0].sizes[0], size);
    ssize_t wrong = kit_pattern_check(in, size, seed);
    ENSURE(wrong < 0, "byte %zd of %zu is %#x, another one was sent", wrong, size, in[wrong < 0 ? 0 : wrong]);
    wrong = kit_bytes_check(in + size, room - size, 0xcc);
    ENSURE(wrong < 0, "%zu bytes into a receive of %zu: byte %zd, behind the message, was written", size, room,
           wrong + (ssize_t)size);
  }
  ssize_t changed = conn->sends ? kit_pattern_check(out, size, seed) : -1;
  ENSURE(changed < 0, "byte %zd of a send buffer of %zu was changed", changed, size);
}

static void against_guard_pages(struct kit_process *self) {
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  for (int i = 0; i < 2 * NSIZES; i++) {
    size_t size = sizes[i / 2];
    uint8_t *out = i % 2 ? kit_conn_low(&conn, size) : kit_conn_high(&conn, size);
    uint8_t *in = i % 2 ? kit_conn_low(&conn, size) : kit_conn_high(&conn, size);
    cross(&conn, out, size, in, size, (uint64_t)i);
    kit_conn_free(&conn, out);
    kit_conn_free(&conn, in);
  }
  kit_conn_close(&conn);
}

static void unaligned(struct kit_process *self) {
  static const size_t some[] = {1, 8, 127, 4097, 65537};
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  uint8_t *out = kit_conn_low(&conn, 70000), *in = kit_conn_low(&conn, 70000);
  for (size_t a = 0; a < 16; a++)
    for (size_t s = 0; s < sizeof some / sizeof some[0]; s++)
      cross(&conn, out + a, some[s], in + (a * 7) % 16, some[s], a * 100 + s);
  kit_conn_close(&conn);
}

static void receive_larger_than_send(struct kit_process *self) {
  static const size_t extra[] = {1, 8, 1000, 100000, 3000000};
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  for (int i = 0; i < NSIZES; i++) {
    size_t room = sizes[i] + extra[i % 5];
    uint8_t *out = kit_conn_high(&conn, sizes[i]), *in = kit_conn_high(&conn, room);
    cross(&conn, out, sizes[i], in, room, (uint64_t)i);
    kit_conn_free(&conn, out);
    kit_conn_free(&conn, in);
  }
  kit_conn_close(&conn);
}

static void sixteen_megabytes_and_three(struct kit_process *self) {
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  size_t size = ((size_t)16 << 20) + 3;
  uint8_t *out = kit_conn_high(&conn, size), *in = kit_conn_high(&conn, size);
  for (size_t i = 0; i < (size_t)kit_scaled(5); i++) cross(&conn, out + i, size - i, in + i, size - i, i);
  kit_conn_close(&conn);
}

static void sizes_at_random(struct kit_process *self) {
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  uint8_t *out = kit_conn_high(&conn, 1 << 20), *in = kit_conn_high(&conn, (1 << 20) + 64);
  for (int i = 0; i < kit_scaled(1500); i++) {
    size_t size = kit_rng_below(&conn.rng, 1u << (1 + kit_rng_below(&conn.rng, 20)));
    size_t room = size + kit_rng_below(&conn.rng, 64);
    cross(&conn, out, size, in, room, kit_rng_next(&conn.rng));
  }
  kit_conn_close(&conn);
}

/* ---- several connections at once ---- */

enum { COMMS = 4, EACH = 24, ROOM = 300000 };

static void several_comms_prepare(struct kit_conn *conn, struct kit_op *ops, uint8_t *out, uint8_t *in, uint64_t seed) {
  for (int i = 0; i < EACH; i++) {
    size_t size = 0;
    if (kit_rng_below(&conn->rng, 8)) size = kit_rng_below(&conn->rng, 1u << (1 + kit_rng_below(&conn->rng, 18)));
    uint8_t *from = out + (size_t)i * ROOM, *to = in + (size_t)i * ROOM;
    if (conn->sends) kit_pattern_fill(from, size, seed + (uint64_t)i);
    ops[2 * i * COMMS] = kit_conn_recv(conn, to, ROOM, 9);
    ops[(2 * i + 1) * COMMS] = kit_conn_send(conn, from, size, 9);
  }
}

static void several_comms_verify(const struct kit_conn *conn, int comm, const struct kit_op *ops, uint64_t seed) {
  for (int i = 0; conn->receives && i < EACH; i++) {
    const struct kit_op *recv = &ops[2 * i * COMMS], *send = &ops[(2 * i + 1) * COMMS];
    ENSURE(recv->sizes[0] == (int)send->size[0], "comm %d of %d: receive %d has %d bytes, send %d had %zu", comm, COMMS,
           i, recv->sizes[0], i, send->size[0]);
    ssize_t wrong = kit_pattern_check(recv->data[0], send->size[0], seed + (uint64_t)i);
    ENSURE(wrong < 0, "comm %d of %d: byte %zd of message %d (%zu bytes) arrived wrong while the others were busy",
           comm, COMMS, wrong, i, send->size[0]);
  }
}

static void several_comms_at_random(struct kit_process *self) {
  static struct kit_conn conn[COMMS];
  static struct kit_op ops[2 * EACH * COMMS];
  uint8_t *out[COMMS], *in[COMMS];
  for (int c = 0; c < COMMS; c++) {
    if (c == 0) kit_conn_open(&conn[c], self);
    else kit_conn_join(&conn[c], &conn[0], c);
    out[c] = kit_conn_high(&conn[c], (size_t)EACH * ROOM);
    in[c] = kit_conn_high(&conn[c], (size_t)EACH * ROOM);
  }
  for (int round = 0; round < kit_scaled(10); round++) {
    uint64_t seed = (uint64_t)round * 1000;
    for (int c = 0; c < COMMS; c++) several_comms_prepare(&conn[c], ops + c, out[c], in[c], seed + (uint64_t)c * EACH);
    kit_conn_run(&conn[0], ops, 2 * EACH * COMMS, KIT_OPS_OLDEST);
    for (int c = 0; c < COMMS; c++) several_comms_verify(&conn[c], c, ops + c, seed + (uint64_t)c * EACH);
  }
  for (int c = COMMS - 1; c >= 0; c--) kit_conn_close(&conn[c]);
}

/* ---- the caller's arrays ---- */

/* irecv's arrays name other places as soon as it has returned: what reads them again fills the wrong buffer. */
static void arrays_of(struct kit_conn *conn, int n, uint8_t *real, uint8_t *decoy, uint8_t *out) {
  enum { LEN = 5000 };
  struct kit_op group = kit_conn_group(conn), wrong = kit_conn_group(conn), send[KIT_MAX_GROUP];
  memset(real, 0xcc, (size_t)n * LEN);
  memset(decoy, 0xcc, (size_t)n * LEN);
  for (int i = 0; i < n; i++) {
    kit_conn_add(conn, &group, real + (size_t)i * LEN, LEN, 40 + i);
    kit_conn_add(conn, &wrong, decoy + (size_t)i * LEN, 16, 40 + (i + 1) % n);
    kit_pattern_fill(out + (size_t)i * LEN, LEN, (uint64_t)i);
    send[i] = kit_conn_send(conn, out + (size_t)i * LEN, LEN, 40 + i);
  }
  struct kit_op arrays;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS / 2));
  do { /* NULL: the arrays are the right ones again at the next call */
    memcpy(&arrays, &group, sizeof arrays);
    int rc = conn->net->vt->irecv(group.comm, n, arrays.data, arrays.size, arrays.tag, arrays.mh, NULL, &group.req);
    ENSURE(rc == 0, "irecv of %d buffers returned %s", n, kit_rc_text(rc));
    ENSURE(!rail_deadline_passed(deadline), "irecv of %d buffers gives NULL for ever, with nothing outstanding", n);
    memcpy(&arrays, &wrong, sizeof arrays);
  } while (!group.req);
  for (int left = n + 1; left > 0;) {
    for (int i = 0; i < n; i++) {
      if (send[i].done || send[i].error) continue;
      if (!send[i].req) kit_op_post(conn->net, &send[i]);
      else if (kit_op_test(conn->net, &send[i])) left--;
    }
    if (!group.done && kit_op_test(conn->net, &group)) left--;
    ENSURE(!group.error && kit_bytes_check(decoy, (size_t)n * LEN, 0xcc) < 0,
           "a receive of %d buffers whose arrays changed after irecv ended with error %s or in the wrong buffer: data, "
           "sizes, tags and mhandles are on NCCL's stack and valid only during the call", n, kit_rc_text(group.error));
    ENSURE(!rail_deadline_passed(deadline), "a receive of %d buffers whose arrays changed after irecv is never done: "
           "they are on NCCL's stack and valid only during the call", n);
  }
  for (int i = 0; i < n; i++) {
    ENSURE(group.sizes[i] == LEN, "sizes[%d] is %d, sent %d", i, group.sizes[i], LEN);
    ENSURE(kit_pattern_check(real + (size_t)i * LEN, LEN, (uint64_t)i) < 0, "buffer %d of %d does not hold its message "
           "after irecv's arrays have changed", i, n);
  }
}

static void arrays_are_the_callers(struct kit_process *self) {
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  uint8_t *real = kit_conn_high(&conn, 40000), *decoy = kit_conn_high(&conn, 40000), *out = kit_conn_high(&conn, 40000);
  for (int n = 1; n <= conn.max_recvs; n++) arrays_of(&conn, n, real, decoy, out);
  kit_conn_close(&conn);
}

/* ---- a send that is larger than its receive: the caller's mistake ---- */

struct oversize {
  struct kit_conn conn;
  struct kit_op recv, send;
  char what[80];
};

/* Both to their end, whatever it is; false: not within the time. */
static bool oversize_run(struct oversize *o, bool receive_first, uint64_t ms) {
  struct kit_op *op[2] = {receive_first ? &o->recv : &o->send, receive_first ? &o->send : &o->recv};
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(ms));
  while (!rail_deadline_passed(deadline)) {
    int left = 0;
    for (int i = 0; i < 2; i++) {
      if (op[i]->done || op[i]->error) continue;
      op[i]->req ? kit_op_test(o->conn.net, op[i]) : kit_op_post(o->conn.net, op[i]);
      left++;
    }
    if (!left) return true;
    sched_yield();
  }
  return false;
}

/* A connection that has worked, and a send of `size` bytes into a receive of `room` between guard pages. */
static void oversize_open(struct oversize *o, const struct kit_conn *with, size_t size, size_t room) {
  memset(o, 0, sizeof *o);
  kit_conn_join(&o->conn, with, 1);
  kit_pair_ping(&o->conn.pair, 100, 1);
  snprintf(o->what, sizeof o->what, "%zu bytes into a receive of %zu", size, room);
  o->recv = kit_conn_recv(&o->conn, kit_conn_high(&o->conn, room), room, 3);
  o->send = kit_conn_send(&o->conn, kit_conn_high(&o->conn, size), size, 3);
}

static void too_large(const struct kit_conn *with, size_t size, size_t room, bool receive_first) {
  static struct oversize o;
  oversize_open(&o, with, size, room);
  oversize_run(&o, receive_first, 5000);
  ENSURE(o.recv.error || !o.recv.done, "%s: test says done, and nobody learns that the message is cut short", o.what);
  ENSURE(o.recv.error, "%s: the receive is neither done nor failed after 5 s", o.what);
  ENSURE(o.recv.error == RAIL_BAD_USAGE, "%s: the receiver got error %s, expected ncclInvalidUsage (%d)", o.what,
         kit_rc_text(o.recv.error), RAIL_BAD_USAGE);
  if (o.recv.req) { /* once more, as for another sub in the same pass */
    int done = 0, got[KIT_MAX_GROUP] = {0};
    o.conn.net->vt->test(o.recv.req, &done, got);
  }
  kit_conn_close(&o.conn);
}

static const size_t rooms[] = {0, 1, 99, 4096, 65536, 1 << 20};
enum { NROOMS = sizeof rooms / sizeof rooms[0] };

static void send_larger_than_receive(struct kit_process *self) {
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  for (size_t i = 0; i < NROOMS; i++) {
    too_large(&conn, rooms[i] + 1, rooms[i], true);
    too_large(&conn, rooms[i] + 1, rooms[i], false);
    too_large(&conn, 3 * rooms[i] + 5000000, rooms[i], true);
  }
  kit_pair_ping(&conn.pair, 1000, 2); /* other connections are unharmed */
  kit_conn_close(&conn);
}

  /* A send that went ahead of its receive was done before this could be known; a later call must return the error. */
static int sender_learns(struct oversize *o, int error) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(5000));
  while (!error && !rail_deadline_passed(deadline)) {
    struct kit_op later = kit_conn_send(&o->conn, o->send.data[0], 1, 3);
    if (kit_op_post(o->conn.net, &later))
      while (!later.done && !later.error && !rail_deadline_passed(deadline)) kit_op_test(o->conn.net, &later);
    error = later.error;
    if (o->recv.req && !o->recv.error) kit_op_test(o->conn.net, &o->recv);
  }
  return error;
}

static void the_sender_learns_of_it(struct kit_process *self) {
  static struct oversize o;
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  for (size_t i = 0; i < NROOMS; i++) {
    oversize_open(&o, &conn, rooms[i] + 5, rooms[i]);
    oversize_run(&o, true, 2000);
    int error = sender_learns(&o, o.send.error);
    ENSURE(error == RAIL_BAD_USAGE, "%s: the sender got %d, expected ncclInvalidUsage (%d) from this or a later call",
           o.what, error, RAIL_BAD_USAGE);
    kit_conn_close(&o.conn);
  }
  kit_conn_close(&conn);
}

/* Whatever else comes of it: what lies behind the receive, registered or not, stays. */
static void nothing_behind_a_receive_is_written(struct kit_process *self) {
  static struct oversize o;
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  for (size_t i = 0; i < 2 * NROOMS; i++) {
    size_t room = rooms[i / 2], size = room + 4096, whole = room + 2 * size;
    oversize_open(&o, &conn, size, room);
    struct kit_guarded in = kit_guard_high(whole);
    memset(in.data, 0xcc, whole);
    kit_conn_reg(&o.conn, in.data, i % 2 || !room ? whole : room);
    o.recv = kit_conn_recv(&o.conn, in.data, room, 3);
    oversize_run(&o, true, 500);
    ssize_t wrong = kit_bytes_check(in.data + room, whole - room, 0xcc);
    ENSURE(wrong < 0, "%s: byte %zd behind the receive was overwritten", o.what, wrong);
    kit_conn_close(&o.conn);
    kit_guard_free(&in);
  }
  kit_conn_close(&conn);
}

static void send_larger_than_receive_in_a_group(struct kit_process *self) {
  static struct oversize o;
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  kit_conn_needs_groups(&conn);
  oversize_open(&o, &conn, 500, 100);
  struct kit_op other = kit_conn_send(&o.conn, o.send.data[0], 500, 1), group = kit_conn_group(&o.conn);
  kit_conn_add(&o.conn, &group, kit_conn_high(&o.conn, 500), 500, 1);
  kit_conn_add(&o.conn, &group, o.recv.data[0], 100, 3);
  o.recv = group;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(5000));
  while (!other.done && !other.error && !rail_deadline_passed(deadline)) {
    if (!o.recv.req && !o.recv.error) kit_op_post(o.conn.net, &o.recv);
    other.req ? kit_op_test(o.conn.net, &other) : kit_op_post(o.conn.net, &other);
    if (!o.send.done && !o.send.error) o.send.req ? kit_op_test(o.conn.net, &o.send) : kit_op_post(o.conn.net, &o.send);
  }
  oversize_run(&o, true, 5000);
  ENSURE(o.recv.error == RAIL_BAD_USAGE,
         "%s, one of a group of 2: the receive got %s %d, expected ncclInvalidUsage (%d)", o.what,
         o.recv.error ? "error" : o.recv.done ? "done, error" : "nothing, error", o.recv.error, RAIL_BAD_USAGE);
  kit_conn_close(&o.conn);
  kit_conn_close(&conn);
}

/* ---- more than an int ---- */

/* Gigabytes of address over 16 MiB of memory: fresh memory would cost more time than all other checks. What is lost
 * puts the stream out of step; what lands beside its place is seen if it comes last there, as the end of a message
 * does. */
#define PERIOD (((size_t)16 << 20) + 4096) /* 2^30, 2^31, 2^32 are no multiples: what wraps around there is wrong */

static uint8_t *repeated(size_t size) {
  int fd = memfd_create("pattern", MFD_CLOEXEC);
  ENSURE(fd >= 0 && ftruncate(fd, (off_t)PERIOD) == 0, "no memory for a pattern of %zu bytes", PERIOD);
  uint8_t *base = mmap(NULL, size + PERIOD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ENSURE(base != MAP_FAILED, "no addresses for %zu bytes", size);
  for (size_t at = 0; at < size; at += PERIOD)
    ENSURE(mmap(base + at, PERIOD, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED,
           "no mapping of %zu bytes", PERIOD);
  close(fd);
  return base;
}

/* A message of `size` bytes that repeats its contents every PERIOD bytes. Returns what test reported. */
static int one_huge(struct kit_process *self, size_t size) {
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  uint8_t *out = repeated(size), *in = repeated(size);
  kit_pattern_fill(out, PERIOD, 77);
  kit_conn_reg(&conn, out, size);
  kit_conn_reg(&conn, in, size);
  struct kit_op ops[2] = {kit_conn_recv(&conn, in, size, 0), kit_conn_send(&conn, out, size, 0)};
  kit_ops_run(conn.net, ops, 2, (struct kit_ops_options){.deadline_ms = 90000});
  if (conn.receives) {
    size_t wrong = 0;
    while (wrong < PERIOD && in[wrong] == out[wrong]) wrong++;
    ENSURE(wrong == PERIOD, "a message of %zu bytes arrived wrong: byte %zu of every %zu is %#x, expected %#x", size,
           wrong, PERIOD, in[wrong], out[wrong]);
  }
  kit_pair_ping(&conn.pair, 1000, 5); /* the stream is in step afterwards */
  kit_conn_close(&conn);
  munmap(out, size + PERIOD);
  munmap(in, size + PERIOD);
  return ops[0].sizes[0];
}

static void one_gigabyte(struct kit_process *self) {
  int got = one_huge(self, (size_t)1 << 30);
  if (kit_receives(self)) ENSURE(got == 1 << 30, "test reported %d bytes of a message of 1 GiB", got);
}

static void two_gigabytes_and_five(struct kit_process *self) { one_huge(self, ((size_t)2 << 30) + 5); }

static void four_gigabytes_and_five(struct kit_process *self) {
  int got = one_huge(self, ((size_t)4 << 30) + 5);
  if (kit_receives(self)) kit_note(self, "4 GiB and 5 bytes arrive whole, and test, whose sizes are int, says %d", got);
}

#define NET "src/transport/net.cc:"

const struct kit_check kit_checks_sizes[] = {
    {"7.1", "sizes.against_guard_pages", KIT_MUST, KIT_TWO, .limit_s = 40,
     .what = "A message of any size up to 1 MiB, 0 too, arrives whole, is reported, and no byte beside it is touched.",
     .source = NET "1414, 1617-1620; src/enqueue.cc:1075", .run = against_guard_pages},
    {"7.2", "sizes.unaligned", KIT_MUST, KIT_TWO, .limit_s = 40,
     .what = "Send and receive buffers may begin at any address.",
     .source = NET "984-1015, 1157-1188", .run = unaligned},
    {"7.3", "sizes.receive_larger_than_send", KIT_MUST, KIT_TWO, .limit_s = 40,
     .what = "A receive may be larger than the message: NCCL gives the size of its slot; what is behind the message "
             "stays.",
     .source = NET "1567, 1572", .run = receive_larger_than_send},
    {"7.4", "sizes.sixteen_megabytes_and_three", KIT_MUST, KIT_TWO, .limit_s = 60,
     .what = "Messages of 16 MiB and odd sizes arrive whole.",
     .source = NET "1398, 1548-1550", .run = sixteen_megabytes_and_three},
    {"7.5", "sizes.sizes_at_random", KIT_MUST, KIT_TWO, .limit_s = 60,
     .what = "A thousand messages of random sizes up to 1 MiB arrive whole.",
     .source = NET "1414", .run = sizes_at_random},
    {"7.6", "sizes.several_comms_at_random", KIT_MUST, KIT_TWO, .limit_s = 60,
     .what = "Four connections carry messages of differing sizes at once, and keep them apart.",
     .source = NET "1304-1765", .run = several_comms_at_random},
    {"7.7", "sizes.arrays_are_the_callers", KIT_MUST, KIT_ONE, .limit_s = 40,
     .what = "The arrays data, sizes, tags and mhandles belong to the plugin only during irecv: they are on NCCL's "
             "stack.",
     .source = NET "1523-1527", .run = arrays_are_the_callers},
    {"7.8", "sizes.nothing_behind_a_receive_is_written", KIT_MUST, KIT_ONE, .limit_s = 60,
     .what = "A message that is larger than its receive never overwrites what lies behind it.",
     .source = "src/transport/net_ib/p2p.cc:295; src/transport/net_socket.cc:632-641",
     .run = nothing_behind_a_receive_is_written},
    {"7.9", "sizes.send_larger_than_receive", KIT_SHOULD, KIT_ONE, .limit_s = 60,
     .what = "A receive that is too small ends with ncclInvalidUsage; cut short in silence, a caller's mistake "
             "becomes wrong results.",
     .source = "src/transport/net_socket.cc:632-641; plugins/net/README.md:128-145", .run = send_larger_than_receive},
    {"7.10", "sizes.send_larger_than_receive_in_a_group", KIT_SHOULD, KIT_ONE, .limit_s = 60,
     .what = "The same of one buffer of a grouped receive.",
     .source = "plugins/net/README.md:128-145", .run = send_larger_than_receive_in_a_group},
    {"7.11", "sizes.the_sender_learns_of_it", KIT_SHOULD, KIT_ONE, .limit_s = 120,
     .what = "The sender of a message that was too large gets ncclInvalidUsage, too, then or by a later call.",
     .source = "plugins/net/README.md:128-145", .run = the_sender_learns_of_it},
    {"7.12", "sizes.one_gigabyte", KIT_MUST, KIT_TWO, .limit_s = 120,
     .what = "A message of 1 GiB, NCCL's largest, arrives whole; maxP2pBytes is not used to cut messages.",
     .source = NET "1398, 1548-1550", .run = one_gigabyte},
    {"7.13", "sizes.two_gigabytes_and_five", KIT_SHOULD, KIT_TWO, .limit_s = 120, .versions = KIT_SINCE(9),
     .what = "Where the vtable's size is a size_t a message of more than 2^31 bytes arrives whole.",
     .source = NET "1364, 760-766", .run = two_gigabytes_and_five},
    {"7.14", "sizes.four_gigabytes_and_five", KIT_OBSERVED, KIT_TWO, .limit_s = 120, .versions = KIT_SINCE(9),
     .what = "What becomes of a message of more than 2^32 bytes.",
     .source = NET "760-766", .run = four_gigabytes_and_five},
    {0},
};
