/* SPDX-License-Identifier: Apache-2.0
 *
 * Both trees have one shape, over positions 1..n. The lowest set bit of a position is its height above the leaves:
 * odd positions are leaves; an even one is half of its lowest bit away from each of its children; the root is the
 * greatest power of two. A position beyond n does not exist: the subtree below it is attached to its parent.
 *
 * The second tree has every rank at a position of the other parity: in reverse order when n is even, shifted by one
 * when n is odd. In that case only the last rank is a leaf of both.
 */
#include "core/plan/rt_tree.h"

static unsigned lowest_bit(unsigned p) { return p & (~p + 1); }

static unsigned position_of(int tree, int rank, int n) {
  if (tree == 0) return (unsigned)rank + 1;
  return n % 2 ? (unsigned)((rank + 1) % n) + 1 : (unsigned)(n - rank);
}

static int rank_at(int tree, unsigned position, int n) {
  int p = (int)position;
  if (tree == 0) return p - 1;
  return n % 2 ? (p + n - 2) % n : n - p;
}

int rt_tree_depth(int nranks) {
  int depth = 0;
  while (nranks >> (depth + 1)) depth++;
  return depth;
}

/* 0: the root. */
static unsigned above(unsigned p, unsigned n) {
  const unsigned root = 1u << rt_tree_depth((int)n);
  if (p == root) return 0;
  do p = (p ^ lowest_bit(p)) | lowest_bit(p) << 1;
  while (p > n);
  return p;
}

struct rt_tree rt_tree_of(int tree, int rank, int nranks) {
  struct rt_tree t = {.parent = -1, .child = {-1, -1}};
  const unsigned n = (unsigned)nranks, p = position_of(tree, rank, nranks);
  unsigned right = lowest_bit(p) / 2;
  for (unsigned up = above(p, n); up; up = above(up, n)) {
    if (t.depth++ == 0) t.parent = rank_at(tree, up, nranks);
  }
  if (right) t.child[0] = rank_at(tree, p - right, nranks);
  while (right && p + right > n) right /= 2;
  if (right) t.child[1] = rank_at(tree, p + right, nranks);
  return t;
}
