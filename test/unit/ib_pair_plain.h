/* SPDX-License-Identifier: Apache-2.0
 * A pair with one registered megabyte on each side. */
#ifndef IB_PAIR_PLAIN_H
#define IB_PAIR_PLAIN_H

#include "test/unit/ib_pair.h"

static const struct pair_shape simple = {1, 1, 1, 30, IB_SEND_DEPTH, 128};
static struct pair p;
static uint8_t out[1 << 20], in[1 << 20];
static struct ib_mhandle *mh_out, *mh_in;

static void open_simple(const struct pair_shape *shape) {
  pair_open(&p, shape);
  mh_out = pair_reg(&p, p.sc, out, sizeof out);
  mh_in = pair_reg(&p, p.rc, in, sizeof in);
  for (size_t i = 0; i < sizeof out; i++) out[i] = (uint8_t)(i * 31 + (i >> 8));
  memset(in, 0xee, sizeof in);
}

static void check_untouched(size_t from, size_t to) {
  for (size_t i = from; i < to; i++) CHECK_MSG(in[i] == 0xee, "byte %zu was written", i);
}

/* One message through a buffer of that size, and nothing beside it. */
static void send_and_check(size_t size, size_t capacity) {
  memset(in, 0xee, capacity + 64);
  void *r = pair_irecv(&p, in + 16, capacity, 1, capacity ? mh_in : NULL);
  CHECK(r);
  (void)ib_progress(p.rc);
  void *s = pair_isend(&p, out + 3, size, 1, size ? mh_out : NULL);
  CHECK(s);
  CHECK_INT(pair_finish(s, RAIL_OK), size);
  CHECK_INT(pair_finish(r, RAIL_OK), size);
  CHECK(memcmp(in + 16, out + 3, size) == 0);
  check_untouched(16 + size, capacity + 64);
  check_untouched(0, 16);
}

#endif
