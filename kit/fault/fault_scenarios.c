/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of scenarios. A last_ms of 1 and a patience_ms of 0 stand for
 * what --stop-time and --patience say.
 */
#include "kit/fault/kit_fault.h"
#include "kit/kit_traffic.h"
#include "kit/preload/preload.h"

#define ERROR_SEEN .goal = KIT_GOAL_ERROR
#define SURVIVE .goal = KIT_GOAL_SURVIVE
#define EITHER .goal = KIT_GOAL_EITHER

#define DIES "its peer ends every connection in the remote error (6), in time"
#define UNHARMED "everything arrives, and no call returns an error"
#define ENDS "every call ends in an error or succeeds, the peer gets an error, nothing is left, and all can be closed"

const struct kit_scenario kit_scenarios[] = {
    /* ---- 1: death ---- */
    {"1.1", "kill.receiver", KIT_SHOULD, 0, 4, "When a process that only receives is killed, " DIES,
     {.act = KIT_ACT_KILL, .dirs = KIT_DIRS_FORTH, .victims = 2, ERROR_SEEN}},
    {"1.2", "kill.sender", KIT_SHOULD, 0, 4, "When a process that only sends is killed, " DIES,
     {.act = KIT_ACT_KILL, .dirs = KIT_DIRS_FORTH, .victims = 1, ERROR_SEEN}},
    {"1.3", "kill.both_ways", KIT_SHOULD, 0, 6, "When a process is killed while data flows both ways, " DIES,
     {.act = KIT_ACT_KILL, ERROR_SEEN}},
    {"1.4", "kill.idle", KIT_SHOULD, 0, 3, "When a process is killed while nothing is sent, " DIES,
     {.act = KIT_ACT_KILL, .when = KIT_WHEN_IDLE, ERROR_SEEN}},
#define KILL_SOON \
  .act = KIT_ACT_KILL, .when = KIT_WHEN_CONNECTING, .dirs = KIT_DIRS_FORTH, .patience_ms = 2000
    {"1.5", "kill.connecting_listener", KIT_MUST, 0, 2,
     "When the listening process is killed while connections are made, no call hangs and all can be closed",
     {KILL_SOON, .victims = 2, ERROR_SEEN}},
    {"1.6", "kill.connecting_dialler", KIT_MUST, 0, 2,
     "When the connecting process is killed while connections are made, no call hangs and all can be closed",
     {KILL_SOON, .victims = 1, ERROR_SEEN}},
    /* ---- 2: standstill ---- */
    {"2.1", "stop.short", KIT_MUST, 0, 4, "When a process is stopped for 0.4 s, " UNHARMED,
     {.act = KIT_ACT_STOP, .last_ms = 400, SURVIVE}},
    {"2.2", "stop.both", KIT_MUST, 0, 1, "When both processes are stopped for 0.4 s, " UNHARMED,
     {.act = KIT_ACT_STOP, .last_ms = 400, .victims = 3, SURVIVE}},
    {"2.3", "stop.connecting", KIT_SHOULD, 0, 1, "When a process is stopped for 0.4 s while connecting, " UNHARMED,
     {.act = KIT_ACT_STOP, .when = KIT_WHEN_CONNECTING, .last_ms = 400, SURVIVE}},
    {"2.4", "stop.long", KIT_OBSERVED, 0, 0,
     "When a process is stopped for long: after what time is that an error, if ever, and does it go on afterwards?",
     {.act = KIT_ACT_STOP, .last_ms = 1, EITHER}},
    /* ---- 3: one process goes ---- */
    {"3.1", "close.outstanding", KIT_SHOULD, 0, 3, "When a process closes with everything outstanding, " DIES,
     {.act = KIT_ACT_CLOSE, ERROR_SEEN}},
    {"3.2", "close.both", KIT_MUST, 0, 2, "Both processes can close at the same time with everything outstanding",
     {.act = KIT_ACT_CLOSE, .victims = 3, ERROR_SEEN}},
    {"3.3", "close.idle", KIT_SHOULD, 0, 2, "When a process closes while only receives are posted, " DIES,
     {.act = KIT_ACT_CLOSE, .when = KIT_WHEN_IDLE, ERROR_SEEN}},
    {"3.4", "close.dereg", KIT_MUST, 0, 3,
     "Memory that was deregistered with requests outstanding is neither written nor sent any more",
     {.act = KIT_ACT_DEREG, ERROR_SEEN}},
    {"3.5", "close.reset", KIT_SHOULD, 0, 4, "When TCP connections are reset, both ends get the remote error (6)",
     {.act = KIT_ACT_RESET, ERROR_SEEN}},
    /* ---- 4: foreign clients ---- */
#define CLIENTS(kind, n, ms) \
  .act = KIT_ACT_CLIENTS, .how = kind, .when = KIT_WHEN_CONNECTING, .count = n, .last_ms = ms, .victims = 3, SURVIVE
    {"4.1", "foreign.silent", KIT_SHOULD, 0, 2,
     "When foreign clients connect to the ports it listens on and say nothing, " UNHARMED,
     {CLIENTS(KIT_CLIENTS_SILENT, 40, 300)}},
    {"4.2", "foreign.garbage", KIT_SHOULD, 0, 2,
     "When foreign clients send garbage to the ports it listens on, " UNHARMED,
     {CLIENTS(KIT_CLIENTS_GARBAGE, 60, 300)}},
    {"4.3", "foreign.flood", KIT_SHOULD, 0, 2, "When foreign clients send without end, " UNHARMED,
     {CLIENTS(KIT_CLIENTS_FLOOD, 8, 300)}},
    {"4.4", "foreign.reset", KIT_SHOULD, 0, 2, "When foreign clients connect and reset, again and again, " UNHARMED,
     {CLIENTS(KIT_CLIENTS_RESET, 40, 300)}},
    {"4.5", "foreign.crowd", KIT_SHOULD, 0, 3, "When 600 foreign clients of all kinds connect at once, " UNHARMED,
     {CLIENTS(KIT_CLIENTS_MIXED, 600, 500)}},
    {"4.6", "foreign.no_files", KIT_SHOULD, 0, 1,
     "When foreign clients use up the file descriptors and leave, connections are made after all, and " UNHARMED,
     {CLIENTS(KIT_CLIENTS_SILENT, 120, 600), .files = 60, .comms = 2}},
    /* ---- 5: the network ---- */
#define LINK(kind, who, ms) .act = KIT_ACT_LINK, .how = kind, .victims = who, .last_ms = ms
    {"5.1", "link.down_short", KIT_SHOULD, KIT_NEEDS_NETNS, 2, "When the link is down for 0.4 s, " UNHARMED,
     {LINK(KIT_LINK_DOWN, 0, 400), SURVIVE}},
    {"5.2", "link.silent_short", KIT_SHOULD, KIT_NEEDS_NETNS, 2, "When everything sent is lost for 0.4 s, " UNHARMED,
     {LINK(KIT_LINK_SILENCE, 3, 400), SURVIVE}},
    {"5.3", "link.mtu", KIT_SHOULD, KIT_NEEDS_NETNS, 1, "When the interfaces' MTU shrinks for a while, " UNHARMED,
     {LINK(KIT_LINK_MTU, 3, 300), SURVIVE}},
    {"5.4", "link.slow", KIT_SHOULD, KIT_NEEDS_NETNS | KIT_NEEDS_SHAPE, 1,
     "When the link is held at 100 Mb/s for a while, " UNHARMED,
     {LINK(KIT_LINK_SHAPE, 3, 500), .max = 65536, .window = 4, SURVIVE}},
    {"5.5", "link.lossy", KIT_SHOULD, KIT_NEEDS_NETNS | KIT_NEEDS_DELAY, 1,
     "When the link delays packets by 3 ms and loses one in a hundred, " UNHARMED,
     {LINK(KIT_LINK_DELAY, 3, 500), .max = 65536, .window = 4, SURVIVE}},
    {"5.6", "link.down_long", KIT_OBSERVED, KIT_NEEDS_NETNS, 0,
     "When the link is down for long: after what time is that an error, if ever, and does it go on afterwards?",
     {LINK(KIT_LINK_DOWN, 1, 1), EITHER}},
    {"5.7", "link.silent_long", KIT_OBSERVED, KIT_NEEDS_NETNS, 0,
     "When everything sent is lost for long: after what time is that an error, if ever, and does it go on afterwards?",
     {LINK(KIT_LINK_SILENCE, 3, 1), EITHER}},
    /* ---- 6: a system that gives little ---- */
    {"6.1", "io.tiny_buffers", KIT_SHOULD, KIT_NEEDS_PRELOAD, 1, "With socket buffers of 4 KiB " UNHARMED,
     {.buffer = 4096, .max = 300000, .victims = 1, SURVIVE}},
    {"6.2", "io.short_pieces", KIT_SHOULD, KIT_NEEDS_PRELOAD, 2,
     "When sends and receives of sockets move less than they are asked to, " UNHARMED,
     {.piece = 3000, .max = 65536, .window = 8, .victims = 1, SURVIVE}},
    {"6.3", "io.interrupted", KIT_SHOULD, 0, 3, "When signals interrupt every system call of all threads, " UNHARMED,
     {.act = KIT_ACT_SIGNALS, .victims = 3, SURVIVE}},
    {"6.4", "io.eintr", KIT_SHOULD, KIT_NEEDS_PRELOAD, 2,
     "When one system call in three that may say EINTR does, and each at its first, " UNHARMED,
     {.interrupt = 3, .victims = 1, SURVIVE}},
    /* ---- 7: failing calls ---- */
#define FAILING(set) .act = KIT_ACT_FAIL, .kinds = set, .comms = 2, .window = 4, .max = 65536, .delay_us = 1000, \
  .after_ms = 60, .victims = 1, EITHER
    {"7.1", "fail.memory", KIT_SHOULD, KIT_NEEDS_PRELOAD, 2, "Whichever allocation fails, " ENDS,
     {FAILING(KIT_FAIL_ALLOC | KIT_FAIL_MAP)}},
    {"7.2", "fail.sockets", KIT_SHOULD, KIT_NEEDS_PRELOAD, 2, "Whichever call that makes sockets fails, " ENDS,
     {FAILING(KIT_FAIL_SOCKET)}},
    {"7.3", "fail.io", KIT_SHOULD, KIT_NEEDS_PRELOAD, 2, "Whichever send or receive of a socket fails, " ENDS,
     {FAILING(KIT_FAIL_IO)}},
    {"7.4", "fail.waiting", KIT_SHOULD, KIT_NEEDS_PRELOAD, 1, "Whichever call of epoll, poll or eventfd fails, " ENDS,
     {FAILING(KIT_FAIL_POLL)}},
    {"7.5", "fail.threads", KIT_SHOULD, KIT_NEEDS_PRELOAD, 1, "Whichever thread cannot be started, " ENDS,
     {FAILING(KIT_FAIL_THREAD)}},
    {"7.6", "fail.files", KIT_SHOULD, KIT_NEEDS_PRELOAD, 1, "Whichever file or list cannot be read, " ENDS,
     {FAILING(KIT_FAIL_FILE)}},
    {"7.7", "fail.verbs", KIT_SHOULD, KIT_NEEDS_PRELOAD, 1, "Whichever call of libibverbs fails, " ENDS,
     {FAILING(KIT_FAIL_VERBS)}},
    {"7.8", "fail.posting", KIT_SHOULD, KIT_NEEDS_PRELOAD, 1,
     "Whichever work request is not taken by its queue pair, or completion is lost, " ENDS, {FAILING(KIT_FAIL_POST)}},
    {NULL, NULL, KIT_MUST, 0, 0, NULL, {0}},
};
