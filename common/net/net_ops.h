/* SPDX-License-Identifier: Apache-2.0
 *
 * The internal contract of a Railyard plugin: one table, from which
 * common/net/abi_vN.c make the vtables of every version. It is v12's shape with
 * two simplifications: sizes are size_t throughout, and what a version lacks
 * (context, phandles, traffic class) is filled in by the shim.
 *
 * It is also the shape in which loader/netload.h presents a loaded plugin of
 * any version, so that the runtime and the kit know one interface.
 *
 * Threads. Calls on one comm come from at most two threads of the caller at a
 * time: its progress thread (NCCL: ncclProxyProgress) makes isend, irecv, test,
 * iflush, irecv_consumed; its service thread (NCCL: ncclProxyService) makes the
 * rest. Calls on different comms are fully concurrent. No call waits for the peer,
 * and each returns within a millisecond, but for these:
 *   init, devices        the first loads libraries and finds the hardware
 *   connect, accept      where they make an object of the driver's or libfabric's (a queue
 *                        pair, an endpoint)
 *   reg_mr, dereg_mr     the driver's registration, and those of other threads before it
 *   dereg_mr, close      with data under way: until no HCA, kernel or thread uses the
 *                        caller's memory, as long as the plugin's parameters say (seconds)
 *   the last finalize    until what was sent has left, as long
 *
 * Outputs. No pointer that a call writes through is NULL. The caller, a shim or netload.h, writes first: *ctx, *_comm,
 * *mhandle and *request are NULL, *done is 0. A call writes them when it has something to give, and nobody reads them
 * after an error. irecv alone finds a hint in *request, and so writes it whenever it returns RAIL_OK.
 *
 * The rules below are what NCCL's callers rely on (nccl 2.13-2.30).
 */
#ifndef RAIL_NET_OPS_H
#define RAIL_NET_OPS_H

#include <stdbool.h>

#include "common/base/param.h"
#include "common/base/result.h"

struct rail_net_init {
  int version;               /* of the vtable that the caller came by; a caller of netload.h leaves it 0 */
  uint64_t comm_id;          /* 0 before v11 */
  int traffic_class;         /* -1 undefined */
  rail_logger_fn log;        /* may be NULL */
  rail_profiler_fn profiler; /* NULL before v10 */
  const char *net_name;      /* rail_net_select only: config.netName, or NULL; NCCL_NET overrides it */
};

struct rail_net_ops {
  /* Name that NCCL_NET selects: rail_plugin_name below. */
  const char *name;
  const struct rail_param_table *params; /* for rail-kit inspect --params */

  /* One context per top-level communicator (v11+), or one per process below.
   * A plugin whose library or hardware is absent
   * succeeds and reports 0 devices. */
  rail_result_t (*init)(void **ctx, const struct rail_net_init *args);

  /* Frees the context and every comm that was left half open. NULL is fine. */
  rail_result_t (*finalize)(void *ctx);

  /* Device count; stable for the life of the process except for make_vdevice. */
  rail_result_t (*devices)(int *ndev);

  /* Fills every field. Strings live as long as the process. */
  rail_result_t (*get_properties)(int dev, struct rail_net_props_v12 *props);

  /* Fuses devices; *dev is the new index. See fuse.h for what NCCL's releases need. */
  rail_result_t (*make_vdevice)(int *dev, const struct rail_net_vprops_v12 *props);

  /* Fills all RAIL_NET_HANDLE_SIZE bytes of handle. Thousands may be open. */
  rail_result_t (*listen)(void *ctx, int dev, void *handle, void **listen_comm);

  /* traffic_class -1: the one given to init.
   * RAIL_OK with *send_comm NULL: in progress, call again with the same handle
   * bytes (they may hold state, never their own address).
   * dev_handle is for offloading plugins, the others leave it alone; NULL through v6. */
  rail_result_t (*connect)(void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                           struct rail_net_device_handle **dev_handle);

  /* The same, for the receiving side; state lives in listen_comm. */
  rail_result_t (*accept)(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);

  /* Any address and length; ranges may overlap; concurrent with traffic on the same comm. */
  rail_result_t (*reg_mr)(void *comm, void *data, size_t size, int type, void **mhandle);
  rail_result_t (*reg_mr_dmabuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                 void **mhandle);
  /* After return no byte of the range is touched again, even with requests
   * outstanding. NULL is fine. */
  rail_result_t (*dereg_mr)(void *comm, void *mhandle);
  /* For the device's code of offloading plugins. Optional: unsupported says RAIL_INTERNAL_ERROR. */
  rail_result_t (*get_device_mr)(void *comm, void *mhandle, void **dptr_mhandle);

  /* RAIL_OK with *request NULL: "not now, call again with the same arguments",
   * as where the table is full. `data` must stay valid until the request is
   * done, the arrays only during the call. */
  rail_result_t (*isend)(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                         void **request);
  /* n grouped receives complete as one request. *request may be
   * RAIL_NET_OPTIONAL_RECV on entry: a hint, not a pointer; it must not be left there. */
  rail_result_t (*irecv)(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                         void **phandles, void **request);
  rail_result_t (*iflush)(void *recv_comm, int n, void **data, const int *sizes, void **mhandles, void **request);

  /* *done is 1 when the request is done. sizes may be NULL; else one entry per buffer is
   * written when done. After done the request belongs to the plugin again.
   * Requests of one comm may be tested in any order, or not at all while another is. */
  rail_result_t (*test)(void *request, int *done, int *sizes);
  rail_result_t (*irecv_consumed)(void *recv_comm, int n, void *request);

  /* Succeed always, in bounded time, with requests outstanding; NULL is fine. */
  rail_result_t (*close_send)(void *send_comm);
  rail_result_t (*close_recv)(void *recv_comm);
  rail_result_t (*close_listen)(void *listen_comm);

  /* Hints; ignoring them is fine. Called from two threads at once. */
  rail_result_t (*set_net_attr)(void *ctx, const struct rail_net_attr *attr);
};

/* A plugin library defines exactly one of each; the shims refer to them. The
 * name is an object of its own because the vtables are constants, and C allows
 * the address of an array in a constant but not a field of another object. It
 * is not const because railtrace learns its name when it is loaded:
 *   char rail_plugin_name[] = "RailSocket";
 *   const struct rail_net_ops rail_plugin_ops = {.name = rail_plugin_name, ...}; */
extern char rail_plugin_name[];
extern const struct rail_net_ops rail_plugin_ops;

/* Every field, as most plugins have it: a host device, messages of up to 1 TiB, no rail or plane; `members` are the
 * devices that it is made of, itself if it is not fused. The strings, guid, kinds of memory, speed, port, most
 * connections and receives are 0, and the plugin's to fill in. */
void rail_net_props_usual(struct rail_net_props_v12 *props, const int *members, int nmembers);

/* Logs that a pointer is no comm of that kind, "send comm", that is open. NULL. `plugin` begins the line: "RailSocket".
 */
RAIL_COLD void *rail_net_refuse_comm(const char *plugin, const void *comm, const char *kind, const char *call);
/* A caller's pointer to a comm, which begins with its magic, `send` or `recv`: the one that is wanted, 0: either. NULL
 * after one line if it is none that is open. */
static inline void *rail_net_comm_of(const char *plugin, void *comm, uint32_t send, uint32_t recv, uint32_t wanted,
                                     const char *call) {
  if (rail_likely(comm != NULL)) {
    const uint32_t magic = *(const uint32_t *)comm;
    if (rail_likely(wanted ? magic == wanted : magic == send || magic == recv)) return comm;
  }
  return rail_net_refuse_comm(plugin, comm, wanted == send ? "send comm" : wanted == recv ? "receive comm" : "comm",
                              call);
}

/* An irecv's number of buffers, at most `max`, and its arrays. */
static inline bool rail_net_recv_args_ok(int n, int max, void **data, const size_t *sizes, const int *tags) {
  return data && sizes && tags && n >= 1 && n <= max;
}
/* Logs what is wrong with them and what is allowed. RAIL_BAD_ARGUMENT. */
rail_result_t rail_net_refuse_recv_args(const char *plugin, int n, int max, void **data, const size_t *sizes,
                                        const int *tags);

/* Logs that a pointer given to test is no request, or none that is outstanding. RAIL_BAD_ARGUMENT. */
rail_result_t rail_net_refuse_request(const char *plugin, const void *request);

/* Slots for operations a plugin does not have; no table of ours holds a NULL. */
rail_result_t rail_net_no_make_vdevice(int *dev, const struct rail_net_vprops_v12 *props);
rail_result_t rail_net_no_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                        void **mhandle);
rail_result_t rail_net_no_get_device_mr(void *comm, void *mhandle, void **dptr_mhandle);
rail_result_t rail_net_no_iflush(void *recv_comm, int n, void **data, const int *sizes, void **mhandles,
                                 void **request);
rail_result_t rail_net_no_irecv_consumed(void *recv_comm, int n, void *request);
rail_result_t rail_net_no_set_net_attr(void *ctx, const struct rail_net_attr *attr);

#endif
