/* SPDX-License-Identifier: Apache-2.0
 *
 * Which block of a GPU runs which of a group's sends and receives, when they are more than run side by side: each block
 * runs a list of them, one after the other. Pure.
 *
 * Some blocks send, others receive, each in the order of the distance, which is how far behind the sender the receiver
 * is among the ranks. So no rank waits for ever: a message at distance d waits for messages at smaller distances only,
 * those before it in the sender's list and those before it in the receiver's. The two ends need not have as many
 * blocks.
 */
#ifndef RT_P2P_BLOCKS_H
#define RT_P2P_BLOCKS_H

#include <stdbool.h>

struct rt_p2p_op {
  int distance; /* (receiver - sender) modulo the number of ranks; 0: a copy, which waits for no rank */
  bool is_recv;
  int job;                /* the caller's number, by which operations at one distance are ordered */
  int block, index, next; /* found: its block, its index in that block's list, which operation follows there, or -1 */
};

/* Shares n operations among at most `most` blocks, 2 or more, and sorts them: first the first ones of all blocks, by
 * block, then the second ones, and so on. Operations at one distance stay in one block, in their order. Returns the
 * number of blocks, each of which has one operation at least; -1 without memory. */
int rt_p2p_share_blocks(struct rt_p2p_op *ops, int n, int most);

#endif
