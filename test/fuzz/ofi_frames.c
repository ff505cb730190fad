/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * Control messages into both sides of an ofi connection with requests outstanding, over the scripted libfabric. What
 * the connection itself sends is lost, so that all that it learns are these messages. Input: which side and protocol,
 * then messages, each "length (2 bytes), bytes"; between two of them everything is posted and tested that can be.
 *
 * Held: no call fails in any other way than with its errors; a receive that is done has a message in each of its
 * buffers, and no more than they hold; nothing beside the buffers is written; the connection closes, and its endpoint
 * stays open.
 */
#include <stdlib.h>
#include <unistd.h>

#include "plugin/ofi/ofi_progress.h"
#include "test/fuzz/lib/fuzz.h"
#include "test/unit/ofi_fake.h"

#define BUFFERS 6
#define GROUP 3 /* buffers of a receive; a send has one */
#define GAP 64
#define AREA (100000u)
#define GUARD 0xa5
#define EAGER 8

static const size_t sizes[BUFFERS] = {0, 8, 100, 4096, 20000, 70000};
static const int tags[BUFFERS] = {0, 1, 2, 0, 1, 2};
enum { SENDS = 1, TAGGED = 2, NO_CREDIT = 4 };

static void *ctx;
static uint8_t target[70000]; /* what a GRANT's buffers are made to be */
static struct fid_mr *target_mr[2];

struct bed {
  bool sends;
  int dev;
  struct ofi_endpoint *endpoint;
  struct ofi_comm *comm;
  uint8_t *area;
  void *mhandle;
  void *buffers[BUFFERS];
  void *requests[BUFFERS]; /* of a receive: its first buffer's */
  bool over[BUFFERS];
};

static struct ofi_endpoint *get_endpoint(int dev) {
  struct ofi_endpoint *endpoint;
  const struct ofi_device *device = ofi_device_at(dev, "fuzz");
  FUZZ_CHECK(device && ofi_endpoint_get(ctx, device, &ofi_progress_ops, &endpoint) == RAIL_OK);
  return endpoint;
}

static void start(void) {
  char program[PATH_MAX];
  if (ctx) return;
  ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
  FUZZ_CHECK(n > 0);
  program[n] = 0;
  fake_use(program, "nic=fake0 nic=fake1 no=rma lose=send:1:2000000000 lose=tsend:1:2000000000 "
                    "lose=write:1:2000000000");
  setenv("RAIL_OFI_PROVIDER", "fake", 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  fuzz_quiet();
  FUZZ_CHECK(rail_plugin_ops.init(&ctx, &(struct rail_net_init){.version = 12}) == RAIL_OK);
  fuzz_quiet();
  FUZZ_CHECK(ofi_device_count() == 2);
  for (int dev = 0; dev < 2; dev++) { /* they stay open */
    struct ofi_endpoint *endpoint = get_endpoint(dev);
    const struct iovec iov = {.iov_base = target, .iov_len = sizeof target};
    const struct fi_mr_attr attr = {.mr_iov = &iov, .iov_count = 1, .access = FI_REMOTE_WRITE};
    ofi_endpoint_lock(endpoint);
    FUZZ_CHECK(ofi_memory_register(endpoint, 0, &attr, &target_mr[dev]) == 0);
    ofi_endpoint_unlock(endpoint);
  }
  ofi_params.close_ms = 20000;
}

static void bed_open(struct bed *b, unsigned int flags) {
  memset(b, 0, sizeof *b);
  b->sends = flags & SENDS;
  b->dev = flags & TAGGED ? 1 : 0;
  b->endpoint = get_endpoint(b->dev);
  struct ofi_offer peer = {.comm = OFI_MAX_COMMS - 1, .token = 7, .nnics = 1, .max_inline = 2048,
                           .eager_count = flags & NO_CREDIT ? 0 : EAGER, .addrs = {b->endpoint->nics[0].name}};
  ofi_endpoint_lock(b->endpoint);
  b->comm = ofi_comm_new(b->sends, b->endpoint);
  FUZZ_CHECK(b->comm && ofi_comm_connect(b->comm, &peer, &peer) == 0);
  ofi_endpoint_unlock(b->endpoint);
  FUZZ_CHECK(ofi_stats_comm_begin(b->comm) == RAIL_OK);
  b->area = malloc(AREA);
  FUZZ_CHECK(b->area);
  memset(b->area, GUARD, AREA);
  FUZZ_CHECK(rail_plugin_ops.reg_mr(b->comm, b->area, AREA, RAIL_PTR_HOST, &b->mhandle) == RAIL_OK);
  size_t at = GAP;
  for (int i = 0; i < BUFFERS; at += sizes[i++] + GAP) b->buffers[i] = b->area + at;
  FUZZ_CHECK(at <= AREA);
}

/* One pass over the requests. */
static void bed_step(struct bed *b) {
  int group = b->sends ? 1 : GROUP;
  for (int i = 0; i < BUFFERS; i += group) {
    int done = 0, got[GROUP] = {-1, -1, -1};
    void *mhandles[GROUP] = {b->mhandle, b->mhandle, b->mhandle};
    rail_result_t result = RAIL_OK;
    if (!b->over[i] && !b->requests[i])
      result = b->sends
                   ? ofi_isend(b->comm, b->buffers[i], sizes[i], tags[i], b->mhandle, NULL, &b->requests[i])
                   : ofi_irecv(b->comm, GROUP, &b->buffers[i], &sizes[i], &tags[i], mhandles, NULL, &b->requests[i]);
    if (result == RAIL_OK && b->requests[i]) result = ofi_test(b->requests[i], &done, got);
    FUZZ_CHECK(result == RAIL_OK || (!done && (result == RAIL_REMOTE_ERROR || result == RAIL_BAD_USAGE)));
    for (int k = 0; done && k < group; k++) FUZZ_CHECK(got[k] >= 0 && (size_t)got[k] <= sizes[i + k]);
    const struct ofi_recv *recv = b->requests[i]; /* it is free, and not used again before the next irecv */
    for (int k = 0; done && !b->sends && k < group; k++) FUZZ_CHECK(recv->buffers[k].done);
    if (done || result != RAIL_OK) {
      b->requests[i] = NULL;
      b->over[i] = true;
    }
  }
}

static void bed_close(struct bed *b) {
  ofi_endpoint_lock(b->endpoint);
  b->comm->revoked = true; /* no peer answers, or reports what has arrived */
  if (b->sends) atomic_fetch_or(&b->comm->pending_work, RAIL_OOB_PEER_GONE);
  ofi_endpoint_unlock(b->endpoint);
  FUZZ_CHECK((b->sends ? ofi_close_send : ofi_close_recv)(b->comm) == RAIL_OK);
  FUZZ_CHECK(!b->endpoint->shut);
  const uint8_t *at = b->area;
  for (int i = 0; i <= BUFFERS; at += GAP + (i < BUFFERS ? sizes[i] : 0), i++) FUZZ_CHECK(fuzz_all(at, GAP, GUARD));
  free(b->area);
}

/* A message as frame_done of ofi_op.c takes it. A peer may name any memory of its own: here it is `target`. */
static void message(struct bed *b, const uint8_t *bytes, size_t size) {
  struct ofi_frame frame;
  const void *payload;
  uint8_t *copy = fuzz_guarded(size);
  if (size) memcpy(copy, bytes, size);
  bool eager = ofi_is_eager((void *)copy, size), good = !eager && ofi_frame_decode(copy, size, &frame, &payload);
  for (unsigned int i = 0; good && i < frame.nbuffers; i++) {
    struct ofi_buffer *buffer = &frame.buffers[i];
    if (buffer->size > sizeof target) buffer->size = sizeof target;
    buffer->addr = (uintptr_t)target;
    for (unsigned int k = 0; k < OFI_MAX_PATHS; k++) buffer->keys[k] = fi_mr_key(target_mr[b->dev]);
  }
  ofi_endpoint_lock(b->endpoint);
  if (eager) ofi_progress_ops.eager(b->comm, (void *)copy, size);
  else if (good) ofi_progress_ops.frame(b->comm, &frame, payload);
  ofi_endpoint_unlock(b->endpoint);
  fuzz_guarded_free(copy, size);
}

void fuzz_one(const uint8_t *data, size_t size) {
  struct fuzz_in in = {data, size};
  struct bed b;
  start();
  bed_open(&b, fuzz_u8(&in));
  bed_step(&b);
  while (in.left) {
    size_t piece = fuzz_u16(&in) % (OFI_FRAME_MAX + OFI_MAX_INLINE);
    const uint8_t *bytes = fuzz_take(&in, &piece);
    message(&b, bytes, piece);
    bed_step(&b);
  }
  bed_close(&b);
}

static void put(struct fuzz_out *out, const struct ofi_frame *frame) {
  uint8_t bytes[OFI_FRAME_MAX + 4096];
  size_t size = ofi_frame_encode(frame, bytes);
  if (frame->type == OFI_FRAME_DATA || frame->type == OFI_FRAME_EAGER) {
    memset(bytes + size, 0x5a, frame->size);
    size += frame->size;
  }
  fuzz_put16(out, (unsigned int)size);
  fuzz_put(out, bytes, size);
}

void fuzz_make_seeds(void) {
  const uint32_t seq = OFI_FIRST_SEQ;
  static const char *const receivers[] = {"receiver-written", "receiver-tagged"};
  static const char *const senders[] = {"sender-written", "sender-tagged"};
  static const char *const without[] = {"sender-written-no-credit", "sender-tagged-no-credit"};
  for (unsigned int tagged = 0; tagged < 2; tagged++) {
    struct fuzz_out out = {.size = 0};
    fuzz_put8(&out, tagged ? TAGGED : 0);
    put(&out, &(struct ofi_frame){.type = OFI_FRAME_EAGER, .seq = seq + 2, .tag = 1, .count = seq + 2, .size = 5});
    put(&out, &(struct ofi_frame){.type = OFI_FRAME_EAGER, .seq = seq, .tag = 1, .count = seq, .size = 8});
    put(&out, &(struct ofi_frame){.type = OFI_FRAME_EAGER, .seq = seq + 1, .tag = 2, .count = seq + 1, .size = 2000});
    put(&out, &(struct ofi_frame){.type = OFI_FRAME_DATA, .seq = seq, .index = 0});
    put(&out, &(struct ofi_frame){.type = OFI_FRAME_DATA, .seq = seq, .index = 2, .size = 90});
    put(&out, &(struct ofi_frame){.type = OFI_FRAME_FIN, .seq = seq + 1, .index = 0, .parts = 1, .size = 4096});
    put(&out, &(struct ofi_frame){.type = OFI_FRAME_FIN, .seq = seq + 1, .index = 1, .parts = 2, .size = 9000});
    put(&out, &(struct ofi_frame){.type = OFI_FRAME_FIN, .seq = seq + 1, .index = 1, .parts = 2, .size = 9000});
    put(&out, &(struct ofi_frame){.type = OFI_FRAME_ASK, .seq = seq + 3, .count = 4});
    put(&out, &(struct ofi_frame){.type = OFI_FRAME_TOO_LARGE, .seq = seq + 1, .index = 2, .size = 70001});
    put(&out, &(struct ofi_frame){.type = OFI_FRAME_REVOKED});
    fuzz_seed(receivers[tagged], out.bytes, out.size);
    out.size = 0;
    fuzz_put8(&out, SENDS | (tagged ? TAGGED : 0));
    /* Three messages went on credit. The third is in flight when its buffer is granted. */
    struct ofi_frame grant = {.type = OFI_FRAME_GRANT, .seq = seq, .nkeys = 1, .nbuffers = 3,
                              .report = {seq + 2, seq + 1, 0}};
    for (unsigned int i = 0; i < 3; i++)
      grant.buffers[i] = (struct ofi_buffer){.size = i ? sizes[i] : 0, .tag = i,
                                             .kind = i < 2 ? OFI_BUFFER_FILLED : OFI_BUFFER_INLINE,
                                             .takes_data = true, .last = i == 2};
    put(&out, &grant);
    put(&out, &(struct ofi_frame){.type = OFI_FRAME_ACK, .seq = seq + 3, .report = {seq + 3, seq + 3, 0}});
    grant.seq++;
    for (unsigned int i = 0; i < 3; i++)
      grant.buffers[i] = (struct ofi_buffer){.size = sizes[i + 3], .tag = i,
                                             .kind = tagged ? OFI_BUFFER_TAGGED : OFI_BUFFER_RMA,
                                             .takes_data = !tagged, .last = i > 0}; /* two receives */
    put(&out, &grant);
    put(&out, &(struct ofi_frame){.type = OFI_FRAME_ACK, .seq = seq + 3, .report = {seq + 3, seq + 3, 3}});
    put(&out, &(struct ofi_frame){.type = OFI_FRAME_PING, .index = 1});
    put(&out, &(struct ofi_frame){.type = OFI_FRAME_REVOKE});
    fuzz_seed(senders[tagged], out.bytes, out.size);
    out.bytes[0] |= NO_CREDIT;
    fuzz_seed(without[tagged], out.bytes, out.size);
  }
}
