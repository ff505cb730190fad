/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin under test, connections over it, and transfers driven to their end.
 *
 * The plugin is RAIL_TEST_PLUGIN, else RAIL_BUILD/lib/libnccl-net-socket.so,
 * else the one beside the test program (../../lib). Calls go through its v12
 * vtable, taken with dlsym, so that nothing of ours stands between test and
 * plugin; with RAIL_TEST_ABI=6…12, or net_open_version, they go through
 * common/netload.h and the plugin's vtable of that version instead.
 *
 * Every function here fails the case (ENSURE) when the plugin breaks the
 * contract: an error nobody expected, an output left unwritten, a deadline.
 */
#ifndef RAIL_TEST_PAIR_H
#define RAIL_TEST_PAIR_H

#include "rail/net.h"
#include "test/harness/ensure.h"
#include "test/harness/mem.h"

#define PAIR_PATIENCE_MS 20000        /* the deadline of every wait that has no other */
#define PAIR_POISON ((void *)0x5a5a5a5a5a5a5a5aull)
#define PAIR_MAX_GROUP 8

struct net {
  const struct rail_net_v12 *vt; /* the calls */
  void *dl;                      /* dlopen's, when raw */
  struct rail_net *any;          /* netload's, when through a version */
  void *ctx;
  int ndev;
  int dev;                       /* RAIL_TEST_DEV, default 0 */
  int version;
};

const char *plugin_path(void);

void net_open(struct net *n);                       /* open, init, find a device */
void net_open_version(struct net *n, int version);  /* through netload */
void net_close(struct net *n);                      /* finalize, unload */

/* netload's operations in the shape of a v12 vtable; one loaded plugin at a time (pair_any.c). */
int any_load(const char *path, int version, struct rail_net **net, char *why, size_t why_size);
void any_unload(struct rail_net *net);
const struct rail_net_v12 *any_vtable(void);

/* The log function given to plugins: keeps the last warnings, prints them when RAIL_TEST_VERBOSE is set. */
void net_log(enum rail_log_level level, unsigned long flags, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
int net_warnings(void); /* how many so far */

/* ---- connections ---- */

struct pair {
  struct net *net;
  void *listen, *send, *recv;
  char handle[RAIL_NET_HANDLE_SIZE];
};

void *net_listen(struct net *n, void *handle);
/* One call. True when *comm came; fails on an error or an unwritten *comm. */
bool connect_step(struct net *n, void *handle, void **comm);
bool accept_step(struct net *n, void *listen, void **comm);
void *net_connect(struct net *n, void *handle); /* until the deadline */
void *net_accept(struct net *n, void *listen);
/* Alternates both on this thread, then closes the listen comm as NCCL does. */
void pair_open(struct net *n, struct pair *p);
void pair_close(struct pair *p);

/* ---- transfers ---- */

enum op_kind { OP_SEND, OP_RECV };

/* One isend or irecv and what came of it. */
struct op {
  enum op_kind kind;
  void *comm;
  int n; /* buffers; 0 means 1 */
  void *data[PAIR_MAX_GROUP];
  size_t size[PAIR_MAX_GROUP];
  int tag[PAIR_MAX_GROUP];
  void *mh[PAIR_MAX_GROUP];
  bool optional; /* preset RAIL_NET_OPTIONAL_RECV */
  /* outcome */
  void *req;
  int sizes[PAIR_MAX_GROUP];
  bool done;
  int error;
};

struct op op_send(void *comm, const void *data, size_t size, int tag);
struct op op_recv(void *comm, void *data, size_t size, int tag);

/* One isend/irecv: true when a request came. With `error` set an error is stored there, not fatal. */
bool op_post(struct net *n, struct op *op);
/* One test: true when done (or failed, with op->error). */
bool op_test(struct net *n, struct op *op);

enum ops_order { OPS_FORWARD, OPS_BACKWARD, OPS_SHUFFLED };
struct ops_how {
  enum ops_order order;  /* in which posted requests are tested */
  bool errors_are_fine;  /* keep op->error and go on; else it fails the case */
  uint64_t deadline_ms;  /* 0: PAIR_PATIENCE_MS */
  struct rng *rng;       /* for OPS_SHUFFLED */
};

/* Posts each op when it is its comm's turn (array order) and tests what is posted,
 * until all are done. False only with errors_are_fine: some op failed. */
bool ops_run(struct net *n, struct op *ops, int count, struct ops_how how);
void op_finish(struct net *n, struct op *op); /* post if need be, and wait */
/* One message across, its arrival checked. */
void pair_ping(struct pair *p, size_t size, uint64_t seed);

void *mr_reg(struct net *n, void *comm, void *data, size_t size);
void mr_dereg(struct net *n, void *comm, void *mh);

#endif
