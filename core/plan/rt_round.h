/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends and receives of a group that are too many for a GPU at once, cut into
 * rounds that follow each other. Pure: both ends of a pair must come to the same round, and both its
 * directions to one, or a rank would wait in one round for what another has in a later one.
 */
#ifndef RT_ROUND_H
#define RT_ROUND_H

/* How many distances a round has, where every GPU has room for `room` blocks of a rank; 0: nothing need be cut, or a
 * rank has no GPU (room 0). One send and one receive for each of the others, and a copy to oneself, then fit. */
int rt_round_width(int nranks, int room);
/* Of what `rank` and `peer` send each other: near ones first. One's own is of round 0. */
int rt_round_of(int rank, int peer, int nranks, int width);
int rt_round_count(int nranks, int width);

#endif
