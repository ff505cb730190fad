/* SPDX-License-Identifier: Apache-2.0
 * Send and receive. */
#include "ghost/driver/gh_driver.h"
#include "ghost/nccl/gh_coll.h"

#define MAX_WORKS 8 /* that run at the same time */

/* Sizes travel in 8 bits: 3 of them lie behind a leading one. */
static uint32_t chunk_size(uint8_t x) {
  uint32_t exponent = x >> 3, mantissa = (x & 7u) | (exponent ? 8 : 0);
  return mantissa << (exponent ? exponent - 1 : 0);
}

/* The channels share a transfer: this one's part, in units of pages. */
static void part_of(uint64_t bytes, int parts, int part, uint64_t *from, uint64_t *to) {
  uint64_t each = ((bytes + (uint64_t)parts - 1) / (uint64_t)parts + 4095) / 4096 * 4096;
  *from = (uint64_t)part * each < bytes ? (uint64_t)part * each : bytes;
  *to = (uint64_t)(part + 1) * each < bytes ? (uint64_t)(part + 1) * each : bytes;
}

/* Which part is this channel's: `all`, a power of two, counts the channels that take part, the first is `base`. */
static int part_of_channel(const struct gh_block *b, int base, int all) {
  int number = (b->id - base) & (all - 1), part = 0;
  if (!b->layout->parts_reversed) return number;
  for (int bit = 1; bit < all; bit *= 2) part = 2 * part + !!(number & bit);
  return part;
}

struct transfer {
  struct gh_block *b;
  char *buffer;
  uint64_t bytes, chunk;
  int peer, proto;
  bool sends;
};

static bool run_transfer(void *arg) {
  struct transfer *t = arg;
  struct gh_prims p;
  struct gh_prims_setup s = {.reduction = {GH_COPY, GH_INT8, 0}, .proto = t->proto, .slices = 1, .steps = 1, .conn = 1,
                             .step_size = (size_t)GH_FIELD(int, t->b->comm, GH_COMM_P2P_CHUNK),
                             .recv = {t->sends ? -1 : t->peer, -1}, .send = {t->sends ? t->peer : -1, -1}};
  bool good = gh_prims_open(&p, t->b, &s);
  uint64_t done = 0;
  do { /* also for no bytes at all */
    uint64_t now = t->bytes - done < t->chunk ? t->bytes - done : t->chunk;
    struct gh_move m = {.from = t->sends ? t->buffer + done : NULL, .to = t->sends ? NULL : t->buffer + done,
                        .recv = !t->sends, .send = t->sends, .n = (int64_t)now};
    good = good && gh_prims_move(&p, &m);
    done += now;
  } while (good && done < t->bytes);
  gh_prims_close(&p);
  return good;
}

/* One direction of a work. False: it has nothing for this channel. */
static bool read_transfer(struct gh_block *b, const char *work, bool sends, struct transfer *t) {
  int base = GH_FIELD(uint8_t, work, GH_P2P_BASE), all = GH_FIELD(uint8_t, work, GH_P2P_CHANNELS);
  int parts = GH_FIELD(uint8_t, work, sends ? GH_P2P_SEND_CHANNELS : GH_P2P_RECV_CHANNELS),
      part = part_of_channel(b, base, all);
  uint8_t flags = GH_FIELD(uint8_t, work, GH_P2P_FLAGS);
  uint64_t from, to;
  if (part >= parts) return false;
  part_of(GH_FIELD(uint64_t, work, sends ? GH_P2P_SEND_BYTES : GH_P2P_RECV_BYTES), parts, part, &from, &to);
  *t = (struct transfer){.b = b, .bytes = to - from, .sends = sends, .proto = flags >> !sends & 1 ? GH_LL : GH_SIMPLE,
                         .peer = GH_FIELD(int, work, sends ? GH_P2P_SEND_RANK : GH_P2P_RECV_RANK),
                         .chunk = chunk_size(GH_FIELD(uint8_t, work, sends ? GH_P2P_SEND_CHUNK : GH_P2P_RECV_CHUNK)),
                         .buffer = GH_FIELD(char *, work, sends ? GH_P2P_SEND : GH_P2P_RECV) + from};
  return true;
}

static bool check_transfer(const struct transfer *t, const char *work) {
  if (GH_FIELD(uint8_t, work, GH_P2P_FLAGS) >> 2 & 0xf)
    return gh_block_fail(t->b, "a buffer is registered, which ghost has no kernels for: NCCL_LOCAL_REGISTER=0");
  if (t->bytes && !t->chunk) return gh_block_fail(t->b, "chunks without bytes");
  if (t->bytes && !gh_reachable(t->buffer, t->bytes, t->b->context))
    return gh_block_fail(t->b, "the buffer %p of rank %d is no %llu bytes of this device's memory", (void *)t->buffer,
                         t->peer, (unsigned long long)t->bytes);
  return true;
}

bool gh_p2p_run(struct gh_block *b, char *const *works, int n) {
  struct transfer all[2 * MAX_WORKS];
  void *args[2 * MAX_WORKS];
  int used = 0;
  if (n > MAX_WORKS) return gh_block_fail(b, "%d transfers in one batch", n);
  for (int i = 0; i < n; i++) {
    struct transfer out, in;
    bool sends = read_transfer(b, works[i], true, &out), receives = read_transfer(b, works[i], false, &in);
    if ((sends && !check_transfer(&out, works[i])) || (receives && !check_transfer(&in, works[i]))) return false;
    if (GH_FIELD(int, works[i], GH_P2P_SEND_RANK) == b->rank) {
      if (sends && receives) memmove(in.buffer, out.buffer, out.bytes < in.bytes ? out.bytes : in.bytes);
      continue;
    }
    if (sends) all[used++] = out;
    if (receives) all[used++] = in;
  }
  for (int i = 0; i < used; i++) args[i] = &all[i];
  return used == 0 || gh_threads_run(b, run_transfer, args, used);
}
