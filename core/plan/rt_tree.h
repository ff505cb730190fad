/* SPDX-License-Identifier: Apache-2.0
 *
 * The two binary trees of an all-reduce (Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth
 * broadcast, reduction and scan"). Each reduces half of the data. An inner rank of a tree
 * forwards that half while a leaf only sends and receives it; an inner rank of one tree is a leaf of the
 * other, so both together load all ranks equally. Depth: at most log2(ranks), rounded down.
 *
 * Pure functions of the number of ranks: every rank computes the same trees.
 */
#ifndef RT_TREE_H
#define RT_TREE_H

#define RT_TREES 2

struct rt_tree {
  int parent;   /* rank, or -1: the root */
  int child[2]; /* ranks, or -1; the second only with a first, and with a subtree that is not larger */
  int depth;    /* edges to the root */
};

/* The node of `rank` in tree number `tree` of `nranks` > 0. */
struct rt_tree rt_tree_of(int tree, int rank, int nranks);

/* Of the deepest node. */
int rt_tree_depth(int nranks);

#endif
