/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin under test, connections over it, and transfers driven to their end.
 *
 * Which plugin, which version of its vtable and which device: what
 * kit_net_target said, else, in test programs, RAIL_TEST_PLUGIN (or the socket
 * plugin beside them), RAIL_TEST_ABI and RAIL_TEST_DEV. A v12 vtable is called
 * as it is, but for a note of which call it is (kit_call_trace.h); older ones
 * through loader/netload.h.
 *
 * Every function here fails the case (ENSURE) when the plugin breaks the
 * contract: an unexpected error, a request or a done left unwritten, a
 * deadline. Outputs that NCCL presets to NULL (contexts, comms, registration
 * handles) are preset here, too: whether they are written has checks of its own.
 */
#ifndef RAIL_KIT_NET_H
#define RAIL_KIT_NET_H

#include "kit/kit_ensure.h"
#include "kit/kit_mem.h"
#include "rail/net.h"

#define KIT_PATIENCE_MS 20000        /* the deadline of every wait that has no other */
#define KIT_SETTLE_MS 10000          /* what was closed may keep its threads and files so long */
#define KIT_POISON ((void *)0x5a5a5a5a5a5a5a5aull)
#define KIT_MAX_GROUP 8
#define KIT_NCCL_BUS_ID_BYTES 16     /* of NCCL's buffer for the last part of pciPath (nvmlwrap.h) */

struct kit_net {
  const struct rail_net_v12 *vt; /* the calls */
  struct rail_net *any;          /* netload's */
  void *ctx;
  int ndev;
  int dev;
  int version;
};

/* For the rest of this process. version 0: the newest there is. */
void kit_net_target(const char *plugin, int version, int dev);
/* From then on the device is the one that makeVDevice makes of these; ndevs 0: it is dev. Every initialisation makes it
 * anew: where devices outlive contexts it is the same one again. */
void kit_net_target_fused(const struct rail_net_vprops_v12 *devices);
/* After devices: makes it, and sets dev and ndev. Returns the plugin's result; a skip if it cannot fuse at all. */
int kit_net_fuse(struct kit_net *n);
const char *kit_plugin_path(void);

#define KIT_TARGET (-1) /* as a version: the target's */

void kit_net_open(struct kit_net *n);                       /* load, init, find a device */
void kit_net_open_version(struct kit_net *n, int version);  /* of another version than the target's */
void kit_net_load(struct kit_net *n, int version);          /* no more than loaded: no init, no device */
/* Then init, with a profiler (NULL: none) and a traffic class, and devices. Returns what init did; only after 0 there
 * are a context and devices. */
int kit_net_init(struct kit_net *n, rail_profiler_fn profiler, int traffic_class);
void kit_net_unload(struct kit_net *n);                     /* what kit_net_load did */
void kit_net_close(struct kit_net *n);                      /* finalize, unload */

/* The log function given to plugins: counts warnings, gives lines to the functions that are set here, prints everything
 * when RAIL_TEST_VERBOSE is set. */
void kit_net_on_warning(void (*fn)(const char *text));
void kit_net_on_info(void (*fn)(const char *text));
void kit_net_log(enum rail_log_level level, unsigned long flags, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
int kit_net_warnings(void); /* how many so far */

/* ---- connections ---- */

struct kit_pair {
  struct kit_net *net;
  void *listen, *send, *recv;
  char handle[RAIL_NET_HANDLE_SIZE];
};

void *kit_net_listen(struct kit_net *n, void *handle);
/* One call. True when *comm came; fails on an error or an unwritten *comm. */
bool kit_connect_step(struct kit_net *n, void *handle, void **comm);
bool kit_accept_step(struct kit_net *n, void *listen, void **comm);
void *kit_net_connect(struct kit_net *n, void *handle); /* until the deadline */
void *kit_net_accept(struct kit_net *n, void *listen);
/* Alternates connect and accept on this thread until p, which has a listen comm and its handle, has both ends. */
void kit_pair_connect(struct kit_pair *p);
/* Listens, connects, then closes the listen comm as NCCL does. */
void kit_pair_open(struct kit_net *n, struct kit_pair *p);
void kit_pair_close(struct kit_pair *p);

/* ---- transfers ---- */

enum kit_op_kind { KIT_OP_SEND, KIT_OP_RECV };

/* One isend or irecv and its outcome. Without a comm it is the peer's (a process group of two, kit_process.h): it
 * counts as done here, and no call is made, so that both processes can run the same list. */
struct kit_op {
  enum kit_op_kind kind;
  void *comm;
  int n; /* buffers; 0 means 1 */
  void *data[KIT_MAX_GROUP];
  size_t size[KIT_MAX_GROUP];
  int tag[KIT_MAX_GROUP];
  void *mh[KIT_MAX_GROUP];
  bool optional; /* preset RAIL_NET_OPTIONAL_RECV */
  /* outcome */
  void *req;
  int sizes[KIT_MAX_GROUP];
  bool done;
  int error;
};

struct kit_op kit_op_send(void *comm, const void *data, size_t size, int tag);
struct kit_op kit_op_recv(void *comm, void *data, size_t size, int tag);

/* One isend/irecv: true when a request came. With `error` set an error is stored there, not fatal. */
bool kit_op_post(struct kit_net *n, struct kit_op *op);
/* One test: true when done (or failed, with op->error). */
bool kit_op_test(struct kit_net *n, struct kit_op *op);

enum kit_ops_order {
  KIT_OPS_OLDEST,   /* of each comm only the oldest that is not done, as NCCL does where a comm is not shared */
  KIT_OPS_FORWARD,  /* all that are posted, oldest first */
  KIT_OPS_BACKWARD,
  KIT_OPS_SHUFFLED,
};
struct kit_ops_options {
  enum kit_ops_order order;  /* in which posted requests are tested */
  bool errors_are_fine;  /* keep op->error and go on; else it fails the case */
  uint64_t deadline_ms;  /* 0: KIT_PATIENCE_MS */
  struct kit_rng *rng;       /* for KIT_OPS_SHUFFLED */
};

/* Posts each op when it is its comm's turn (array order) and tests what is posted,
 * until all are done. False only with errors_are_fine: some op failed. */
bool kit_ops_run(struct kit_net *n, struct kit_op *ops, int count, struct kit_ops_options how);
void kit_op_finish(struct kit_net *n, struct kit_op *op); /* post if need be, and wait */
/* One message across, registered, its arrival checked; of one end, with a pair that has only that. */
void kit_pair_ping(struct kit_pair *p, size_t size, uint64_t seed);

void *kit_mr_reg(struct kit_net *n, void *comm, void *data, size_t size);
void kit_mr_dereg(struct kit_net *n, void *comm, void *mh);

#endif
