/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract as numbered checks, and what checks share. Each check_*.c has
 * functions and their table; kit_conform.c lists the tables and runs them.
 *
 * A check's function runs in one or two processes. It opens the plugin
 * (kit_net_open), does what NCCL might do, and fails by ENSURE. It may leave
 * everything open when it fails: the process ends.
 */
#ifndef RAIL_KIT_CHECK_H
#define RAIL_KIT_CHECK_H

#include "kit/kit_mem.h"
#include "kit/kit_net.h"
#include "kit/kit_process.h"
#include "kit/kit_report.h"
#include "loader/netload.h"

enum kit_mode {
  KIT_ONE, /* one process has both ends of every connection, as one proxy thread would */
  KIT_TWO, /* side 0 sends, side 1 receives; the same function runs on both */
};

struct kit_check {
  const char *id;     /* "4.2": the contract's item, and the place within it */
  const char *name;   /* "connect.no_call_waits" */
  enum kit_level level;
  enum kit_mode mode;
  unsigned limit_s;   /* 0: 20 s */
  unsigned versions;  /* a set of KIT_V(n); 0: all */
  const char *what;   /* one sentence: what the plugin must do */
  const char *source; /* where NCCL relies on it: "src/transport/net.cc:1414" and so on, of 2.30.7 if not named */
  void (*run)(struct kit_process *self);
};

#define KIT_V(n) (1u << (n))
#define KIT_SINCE(n) (KIT_V(RAIL_NET_VERSION_MAX + 1) - KIT_V(n)) /* version n and later */

/* A table ends with an entry whose id is NULL. A new area: its table here and in kit_conform.c's list. */
extern const struct kit_check kit_checks_lifecycle[], kit_checks_properties[], kit_checks_listen[],
    kit_checks_foreign[], kit_checks_connect[], kit_checks_handles[], kit_checks_dead_port[], kit_checks_requests[],
    kit_checks_sizes[], kit_checks_order[], kit_checks_grouped[], kit_checks_optional[], kit_checks_flush[],
    kit_checks_tear[], kit_checks_mr[], kit_checks_dereg[], kit_checks_close[], kit_checks_peer_close[],
    kit_checks_death[], kit_checks_threads[], kit_checks_forks[], kit_checks_wakeups[], kit_checks_attrs[],
    kit_checks_leaks[], kit_checks_cost[];

/* ---- what checks share (kit_check.c) ---- */

/* A connection across the process group, whatever the mode: KIT_ONE gives both ends here; KIT_TWO gives p->send on
 * side 0 and p->recv on side 1, the other stays NULL. Handles go by kit_send_bytes. */
void kit_check_connect(struct kit_process *self, struct kit_net *n, struct kit_pair *p);
/* Closes what there is here. */
void kit_check_disconnect(struct kit_process *self, struct kit_pair *p);
/* Is this process the one that sends, receives? Both in KIT_ONE. */
bool kit_sends(const struct kit_process *self);
bool kit_receives(const struct kit_process *self);

/* A connection of the process group with memory registered for it: what most checks of the data path need, in one
 * process or two. Both processes run the same lines: they take the same numbers from `rng`, make the same buffers and
 * lists of ops, and each drives its own end. */

#define KIT_CONN_REGIONS 64

struct kit_conn_region { struct kit_guarded mem; void *send_mh, *recv_mh; };

struct kit_conn {
  struct kit_process *self;
  struct kit_net *net; /* &own, or that of the connection given to kit_conn_join */
  struct kit_net own;
  struct kit_pair pair;
  int max_recvs;
  bool sends, receives; /* this process's ends */
  struct kit_rng rng;     /* the same numbers in both processes: for what they must agree on */
  struct kit_rng own_rng; /* for the rest, as the order of tests */
  struct kit_conn_region region[KIT_CONN_REGIONS];
};

/* Opens the plugin and a connection. A struct kit_conn that is open must not be moved. */
void kit_conn_open(struct kit_conn *conn, struct kit_process *self);
/* One more connection over the same plugin; `number`, from 1, makes its seed. */
void kit_conn_join(struct kit_conn *conn, const struct kit_conn *with, int number);
void kit_conn_close(struct kit_conn *conn); /* memory, connection; the plugin with the connection that opened it */

/* `size` registered bytes (at least 1) whose end, or start, touches a page that faults. */
uint8_t *kit_conn_high(struct kit_conn *conn, size_t size);
uint8_t *kit_conn_low(struct kit_conn *conn, size_t size);
/* Registers memory of the caller's. */
void kit_conn_reg(struct kit_conn *conn, void *data, size_t size);
/* Deregisters it, and frees what kit_conn_high, kit_conn_low made: an access from now on faults. */
void kit_conn_free(struct kit_conn *conn, const void *data);

/* Transfers out of and into registered memory. */
struct kit_op kit_conn_send(const struct kit_conn *conn, const void *data, size_t size, int tag);
struct kit_op kit_conn_recv(const struct kit_conn *conn, void *data, size_t size, int tag);
/* One more buffer of a grouped receive; begin with kit_conn_group. */
struct kit_op kit_conn_group(const struct kit_conn *conn);
void kit_conn_add(const struct kit_conn *conn, struct kit_op *group, void *data, size_t size, int tag);

/* kit_ops_run of the connection's plugin, with an order of testing. */
void kit_conn_run(struct kit_conn *conn, struct kit_op *ops, int count, enum kit_ops_order order);
/* Ends the check where the plugin receives no groups. */
void kit_conn_needs_groups(const struct kit_conn *conn);

/* Many connections, requests that may fail, and closing: what the checks of items 11, 12, 13 and 15 share. */

/* What closes a connection has this long before it counts as hung; the shorter one is asked for by SHOULD checks. */
#define KIT_CLOSE_HUNG_MS 10000
#define KIT_CLOSE_SOON_MS 1000

/* close(comm) succeeds, and within limit_ms. */
void kit_close_within(int (*close)(void *comm), void *comm, const char *call, uint64_t limit_ms);
/* Both ends of a connection of this process, of either order. */
void kit_close_pair_within(struct kit_pair *p, bool send_first, uint64_t limit_ms);

/* One call for a request: posts it, or tests it. True when it is settled: op->done or op->error. */
bool kit_op_step(struct kit_net *n, struct kit_op *op);
/* Steps until settled or the time is over; returns whether it is. */
bool kit_op_within(struct kit_net *n, struct kit_op *op, uint64_t ms);
/* Posts, trying again while there is no request; fails at the usual deadline or by an error. */
void kit_op_start(struct kit_net *n, struct kit_op *op);
/* Tests what is outstanding `times` times, whatever comes of it: as NCCL may after an error, before it closes. */
void kit_op_test_again(struct kit_net *n, struct kit_op *op, int times);

/* `count` connections to the peer and as many from it, all made at once: p[i].send and p[i].recv are ends of two
 * connections. Only in KIT_TWO. kit_pair_close closes them. */
void kit_check_connect_both_ways(struct kit_process *self, struct kit_net *n, struct kit_pair *p, int count);

/* Whole pages, all zero, of this process alone. */
uint8_t *kit_pages(size_t size);
/* Gives the memory back. The addresses fault from then on: nothing else comes to lie there. */
void kit_pages_free(uint8_t *data, size_t size);

/* Between two looks at what time brings and not the peer's next call: a core is for others meanwhile. */
void kit_short_sleep(void);
/* Sleeps, also through signals. */
void kit_sleep_ms(uint64_t ms);
/* The share of one core that this process uses while it sleeps so long: the most of several such sleeps where other
 * processes keep the machine busy. */
double kit_cpu_asleep(uint64_t ms);

#endif
