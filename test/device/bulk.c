/* SPDX-License-Identifier: Apache-2.0 */
#include "test/device/bulk.h"

#include <stdio.h>
#include <string.h>

#include "common/base/compiler.h"
#include "test/device/pairs.h"

#define BLOCKS 2u
#define TURN 128u /* bytes of a thread's */
#define GUARD 64u
#define UNTOUCHED 0x5a

struct one {
  struct rt_reduce_copy w; /* without addresses */
  bool in_place;
};

/* Sources, then destinations. */
static char image[BULK_MEMORY], after[BULK_MEMORY], expected[BULK_REGION];

static char *region(char *memory, unsigned i) { return memory + (size_t)i * BULK_REGION; }

static void expect(const struct one *c) {
  const struct rt_reduce_fns *f = rt_reduce_lookup(c->w.type, c->w.op);
  memcpy(expected, image, c->w.count * rt_type_size(c->w.type));
  if (f->pre && c->w.npre > 0) f->pre(expected, expected, c->w.count, &c->w.scalar);
  if (c->w.nsrc > 1) f->reduce(expected, expected, region(image, 1), c->w.count);
  if (f->post && c->w.last) f->post(expected, expected, c->w.count, &c->w.scalar);
}

/* The sources are in `image`. */
static bool run(const struct cases_machine *m, const struct one *c, unsigned threads, char *why, size_t size) {
  const size_t bytes = c->w.count * rt_type_size(c->w.type);
  const unsigned first = c->in_place ? 0 : 2;
  struct rt_reduce_copy w = c->w;
  bool good = true;
  expect(c);
  for (unsigned i = 0; i < 2; i++) {
    w.src[i] = region(m->memory, i);
    w.dst[i] = region(m->memory, i == 0 ? first : 3);
    memset(region(image, 2 + i), UNTOUCHED, bytes + GUARD);
  }
  for (unsigned i = 0; i < 4; i++) good = good && m->write(region(m->memory, i), region(image, i), bytes + GUARD);
  good = good && m->reduce_copy(&w, BLOCKS, threads);
  for (unsigned i = 0; i < 4; i++) good = good && m->read(region(after, i), region(m->memory, i), bytes + GUARD);
  if (!good) {
    snprintf(why, size, "the memory or the kernel fails");
    return false;
  }
  for (int d = 0; d < w.ndst; d++) {
    const char *got = region(after, d == 0 ? first : 3), *before = region(image, d == 0 ? first : 3);
    for (size_t i = 0; i < bytes + GUARD; i++) {
      const unsigned char want = (unsigned char)(i < bytes ? expected : before)[i];
      if ((unsigned char)got[i] == want) continue;
      snprintf(why, size, "%s op %d, %d to %d, npre %d, %zu bytes, %u threads%s: byte %zu of destination %d is 0x%02x, "
               "the host's kernels say 0x%02x", rt_type_name(w.type), w.op, w.nsrc, w.ndst, w.npre, bytes, threads,
               c->in_place ? ", in place" : "", i, d, (unsigned char)got[i], want);
      return false;
    }
  }
  return true;
}

static struct one make(int type, int op, unsigned number, size_t bytes) {
  const size_t esize = rt_type_size(type);
  struct one c = {.w = {.type = type, .op = op, .count = esize ? bytes / esize : 0, .last = true}};
  uint64_t factor = 0x3c003c003c003c00u; /* a number in each type */
  c.w.nsrc = 1 + (int)(number & 1);
  c.w.ndst = 1 + (int)(number >> 1 & 1);
  c.w.npre = (int)(number >> 2 & 1);
  c.in_place = number >> 3 & 1;
  if (op == RT_AVG) rt_scalar_avg(&c.w.scalar, type, 3);
  if (op == RT_PREMULSUM) rt_scalar_premul(&c.w.scalar, type, &factor);
  return c;
}

static int run_shapes(const struct cases_machine *m, int type, unsigned threads, bool few, char *why, size_t size) {
  static const int ops[] = {RT_SUM, RT_AVG, RT_PREMULSUM};
  const size_t turn = (size_t)BLOCKS * threads * TURN;
  const size_t sizes[] = {16, turn / 2 + 48, turn - 16, turn, 2 * turn + turn / 3, 3 * turn + 8};
  uint64_t v = 88172645463325252u;
  int done = 0;
  for (unsigned r = 0; r < 2; r++)
    for (size_t i = 0; i < 3 * turn + GUARD; i += 8) {
      v ^= v << 13, v ^= v >> 7, v ^= v << 17;
      memcpy(region(image, r) + i, &v, 8);
    }
  for (unsigned o = 0; o < RAIL_COUNT_OF(ops); o++)
    for (unsigned s = 0; s < RAIL_COUNT_OF(sizes); s++)
      for (unsigned number = 0; number < 16; number++) {
        const struct one c = make(type, ops[o], number, sizes[s]);
        if (few && (number + s + o) % 7 != 0) continue;
        if (!run(m, &c, threads, why, size)) return -1;
        done++;
      }
  return done;
}

static int run_pairs(const struct cases_machine *m, int type, unsigned threads, bool few, char *why, size_t size) {
  static const int ops[] = {RT_SUM, RT_PROD, RT_MAX, RT_MIN, RT_PREMULSUM};
  int done = 0;
  for (unsigned round = 0; round < pairs_rounds(type); round += few ? 13 : 1) {
    pairs_fill(type, round, image, region(image, 1));
    for (unsigned o = 0; o < RAIL_COUNT_OF(ops); o++) {
      struct one c = make(type, ops[o], 5, PAIRS * rt_type_size(type));
      if (ops[o] == RT_PREMULSUM) rt_scalar_premul(&c.w.scalar, type, region(image, 1) + 2 * (size_t)round);
      if (!run(m, &c, threads, why, size)) return -1;
      done++;
    }
  }
  return done;
}

int bulk_run(const struct cases_machine *m, int type, unsigned threads, bool few, char *why, size_t size) {
  const int shapes = run_shapes(m, type, threads, few, why, size);
  const int pairs = shapes < 0 ? -1 : run_pairs(m, type, threads, few, why, size);
  return pairs < 0 ? -1 : shapes + pairs;
}
