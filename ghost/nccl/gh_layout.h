/* SPDX-License-Identifier: Apache-2.0
 *
 * What an NCCL release's host code and its kernels have agreed on: the structs of a launch, as offsets. A release that
 * is not in the table is refused; NCCL promises nothing about these.
 */
#ifndef GH_LAYOUT_H
#define GH_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* What is the same in all releases of the table. */
enum {
  GH_STEPS = 8,         /* of a connection's buffer */
  GH_MAX_CHANNELS = 64, /* of any release */
  GH_CONNS = 2,         /* between two ranks on a channel: 0 for collectives, 1 for send and receive */
  GH_TREE_ARITY = 3,

  GH_LL = 0, GH_LL128 = 1, GH_SIMPLE = 2, GH_PROTOS = 3,

  /* struct ncclConnInfo */
  GH_CONN_BUFFS = 0, GH_CONN_TAIL = 48, GH_CONN_HEAD = 56, GH_CONN_FLAGS = 64, GH_CONN_STEP_SIZE = 72,
  GH_CONN_FIFO = 96, GH_CONN_STEP = 104, GH_CONN_NET_DEVICE = 120, GH_CONN_SIZE = 152,
  /* struct ncclDevChannelPeer: GH_CONNS of them to send with, then as many to receive with */
  GH_PEER_SEND = 0, GH_PEER_RECV = GH_CONNS * GH_CONN_SIZE,
  /* struct ncclConnFifo: one a step; a size is -1 until it is set */
  GH_FIFO_MODE = 0, GH_FIFO_OFFSET = 4, GH_FIFO_BYTES = 8, GH_FIFO_SIZE = 24, GH_FIFO_MODE_OFFSET = 1,

  /* struct ncclDevKernelArgs, and behind it a struct ncclDevWorkBatch for each block, and more */
  GH_ARGS_COMM = 0, GH_ARGS_CHANNELS = 8, GH_ARGS_STORAGE = 16, GH_ARGS_MASK = 20, GH_ARGS_BUFFER = 24,
  GH_ARGS_SIZE = 32,
  GH_BATCH_FLAGS = 0, GH_BATCH_OFFSET = 4, GH_BATCH_BITS = 8, GH_BATCH_SIZE = 16,
  /* struct ncclDevWorkP2p */
  GH_P2P_SEND = 0, GH_P2P_RECV = 8, GH_P2P_SEND_BYTES = 16, GH_P2P_RECV_BYTES = 24, GH_P2P_SEND_RANK = 32,
  GH_P2P_RECV_RANK = 36, GH_P2P_CHANNELS = 40, GH_P2P_BASE = 41, GH_P2P_SEND_CHANNELS = 42, GH_P2P_RECV_CHANNELS = 43,
  GH_P2P_SEND_CHUNK = 44, GH_P2P_RECV_CHUNK = 45, GH_P2P_FLAGS = 46, GH_P2P_SIZE = 48,
  /* struct ncclDevWorkColl: what all have; bits 0 to 7 and 8 to 15 are the first and the last channel */
  GH_COLL_FLAGS = 0, GH_COLL_ROOT = 4,
  /* struct ncclKernelComm: what all have */
  GH_COMM_RANK = 0, GH_COMM_NRANKS = 4, GH_COMM_BUFF_SIZES = 16, GH_COMM_P2P_CHUNK = 28,
  GH_EVENTS = 64,
  /* struct ncclDevChannel: what all have */
  GH_CHANNEL_PEERS = 0, GH_CHANNEL_PREV = 8, GH_CHANNEL_NEXT = 12, GH_CHANNEL_RANKS = 16,
};

/* How a kernel says that its works have begun and ended. */
enum gh_profiler {
  GH_PROFILER_NONE,   /* it does not */
  GH_PROFILER_COUNTS, /* one count a channel */
  GH_PROFILER_EVENTS, /* struct ncclDevProfiler, one a channel: GH_EVENTS times a counter and a time */
};

struct gh_layout {
  int oldest, newest; /* releases, as ncclGetVersion says them: 22803, 22809 */
  int max_channels;
  enum gh_profiler profiler;
  bool parts_reversed; /* sends and receives: a part's number is that of its channel, bits reversed */
  /* struct ncclKernelComm; consumed 0: kernels do not say what they have read of the ring of works */
  size_t comm_consumed, comm_abort, comm_channels, comm_started, comm_completed;
  size_t channels; /* from the start of ncclKernelComm to that of the channels behind it */
  size_t channel_size, channel_index, channel_up, channel_down, channel_counter;
  size_t coll_size, coll_recv, coll_send, coll_counts, coll_grains, coll_argument;
  int rows_before_all_reduce; /* in the table of functions */
};

/* NULL: not in the table. */
const struct gh_layout *gh_layout_of(int version);
/* "2.28.3 to 2.28.9, 2.30.3 to 2.30.7" */
const char *gh_layout_versions(void);

/* A field of any struct above. */
#define GH_FIELD(type, base, offset) (*(type *)(void *)((char *)(uintptr_t)(base) + (offset)))

#endif
