/* SPDX-License-Identifier: Apache-2.0
 *
 * The two binary trees that an all-reduce goes by (Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth
 * broadcast, reduction and scan"). Half of the data takes each. An inner rank of a tree
 * passes on all of that half while a leaf only gives and takes it; who is an inner rank of one tree is a leaf of the
 * other, so both together load all ranks alike. Depth: at most log2(ranks), rounded down.
 *
 * Pure functions of the number of ranks: every rank finds the same trees.
 */
#ifndef RT_TREE_H
#define RT_TREE_H

#define RT_TREES 2

struct rt_tree {
  int parent;   /* rank, or -1: the root */
  int child[2]; /* ranks, or -1; there is no second without a first, nor is it above more ranks */
  int depth;    /* edges to the root */
};

/* Where `rank` stands in tree number `tree` of `nranks` > 0. */
struct rt_tree rt_tree_of(int tree, int rank, int nranks);

/* Of the deepest rank. */
int rt_tree_depth(int nranks);

#endif
