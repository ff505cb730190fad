/* SPDX-License-Identifier: Apache-2.0
 *
 * The ncclNet plugin ABI, versions 6 to 12, in Railyard's own words.
 *
 * NCCL finds a network plugin with dlopen and looks up the data symbol
 * `ncclNetPlugin_vN`, newest N first (2.13-2.18 know v6; 2.19 v7; 2.20-2.23
 * v8; 2.24-2.25 v9; 2.26-2.27 v10; 2.28-2.29 v11; 2.30 v12, each also the
 * older ones). The symbol is one of the structures below. Layouts are LP64;
 * sizes and offsets are asserted at the end of this file, so that a wrong
 * edit fails to compile.
 *
 * This header needs neither NCCL nor CUDA. What each call must do is written
 * once, in common/net/net_ops.h for plugins of this repository, and in docs/kit.md
 * for plugin authors elsewhere.
 */
#ifndef RAIL_NET_H
#define RAIL_NET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Result codes of every call. Values are NCCL's ncclResult_t. */
enum rail_result {
  RAIL_OK = 0,
  RAIL_CUDA_ERROR = 1,     /* a CUDA call failed */
  RAIL_SYSTEM_ERROR = 2,   /* this host's OS or NIC failed */
  RAIL_INTERNAL_ERROR = 3, /* the contract was broken: a bug here or in the caller */
  RAIL_BAD_ARGUMENT = 4,   /* an argument's value is wrong */
  RAIL_BAD_USAGE = 5,      /* calls that do not fit together, e.g. send larger than receive */
  RAIL_REMOTE_ERROR = 6,   /* the peer is gone or broke the protocol */
  RAIL_IN_PROGRESS = 7,    /* not finished; never returned through a vtable */
};

enum rail_log_level {
  RAIL_LOG_NONE = 0,
  RAIL_LOG_VERSION = 1,
  RAIL_LOG_WARN = 2,
  RAIL_LOG_INFO = 3,
  RAIL_LOG_ABORT = 4,
  RAIL_LOG_TRACE = 5,
};

/* Subsystem bits for the logger's `flags` (NCCL_DEBUG_SUBSYS names). */
enum rail_log_subsys {
  RAIL_SUB_INIT = 0x1,
  RAIL_SUB_COLL = 0x2,
  RAIL_SUB_P2P = 0x4,
  RAIL_SUB_SHM = 0x8,
  RAIL_SUB_NET = 0x10,
  RAIL_SUB_GRAPH = 0x20,
  RAIL_SUB_TUNING = 0x40,
  RAIL_SUB_ENV = 0x80,
  RAIL_SUB_ALLOC = 0x100,
  RAIL_SUB_CALL = 0x200,
  RAIL_SUB_PROXY = 0x400,
  RAIL_SUB_NVLS = 0x800,
  RAIL_SUB_BOOTSTRAP = 0x1000,
  RAIL_SUB_REG = 0x2000,
  RAIL_SUB_PROFILE = 0x4000,
  RAIL_SUB_RAS = 0x8000,
};

/* NCCL hands this to init; a plugin logs through it and nowhere else.
 * Thread-safe; `fmt` is printf's and needs no newline. */
typedef void (*rail_logger_fn)(enum rail_log_level level, unsigned long flags, const char *file, int line,
                               const char *fmt, ...);

/* Profiler callback of v10 and later. Never call it with a NULL pHandle:
 * NCCL's bootstrap passes NULL phandles and the core dereferences them. */
typedef int (*rail_profiler_fn)(void **e_handle, int type, void *p_handle, int64_t plugin_id, void *ext_data);

#define RAIL_NET_HANDLE_SIZE 128                /* bytes of a listen handle since NCCL 2.12 */
#define RAIL_NET_MAX_BYTES 0x10000000000ull     /* 1 TiB: largest maxP2pBytes (v9+) */
#define RAIL_NET_MAX_BYTES_V8 0x40000000        /* 1 GiB: largest message through v6-v8 */
#define RAIL_NET_MAX_REQUESTS 32                /* requests per comm a plugin must bear, times maxRecvs for sends */
#define RAIL_NET_OPTIONAL_RECV ((void *)0x1)    /* preset in *request of irecv (v9+): completion is optional */
#define RAIL_NET_ID_UNDEF (-1)                  /* railId, planeId unknown */
#define RAIL_NET_ATTR_UNDEF (-1)

enum rail_ptr_type { RAIL_PTR_HOST = 0x1, RAIL_PTR_CUDA = 0x2, RAIL_PTR_DMABUF = 0x4 };
enum rail_net_device_type { RAIL_NET_DEVICE_HOST = 0, RAIL_NET_DEVICE_UNPACK = 1 };

#define RAIL_NET_DEVICE_INVALID_VERSION 0x0
#define RAIL_NET_DEVICE_UNPACK_VERSION 0x7

/* Device-side handle of offloading plugins; Railyard's plugins never set one. */
struct rail_net_device_handle {
  int type;
  int version;
  void *handle;
  size_t size;
  int needs_proxy_progress;
};

struct rail_net_vprops_v9 { int ndevs; int devs[4]; };
struct rail_net_vprops_v12 { int ndevs; int devs[8]; };

struct rail_net_config { int traffic_class; /* -1: undefined */ };

struct rail_net_comm_attr {
  int32_t max_concurrent_peers, min_concurrent_peers;
  int32_t max_flows_per_peer, min_flows_per_peer;
};
struct rail_net_attr {
  struct rail_net_comm_attr send, recv;
  uint32_t op, algo, proto;
};

/* ---- properties ------------------------------------------------------- */

struct rail_net_props_v6 {
  char *name;      /* unique, stable for the life of the process */
  char *pci_path;  /* real sysfs path or NULL */
  uint64_t guid;
  int ptr_support; /* enum rail_ptr_type bits */
  int speed;       /* Mb/s */
  int port;
  float latency;   /* microseconds */
  int max_comms;
  int max_recvs;   /* grouped receives per irecv */
};
struct rail_net_props_v7 {
  char *name; char *pci_path; uint64_t guid; int ptr_support;
  int speed; int port; float latency; int max_comms; int max_recvs;
  int net_device_type; int net_device_version;
};
struct rail_net_props_v8 {
  char *name; char *pci_path; uint64_t guid; int ptr_support; int reg_is_global;
  int speed; int port; float latency; int max_comms; int max_recvs;
  int net_device_type; int net_device_version;
};
struct rail_net_props_v9 {
  char *name; char *pci_path; uint64_t guid; int ptr_support; int reg_is_global; int force_flush;
  int speed; int port; float latency; int max_comms; int max_recvs;
  int net_device_type; int net_device_version;
  struct rail_net_vprops_v9 vprops;
  size_t max_p2p_bytes; size_t max_coll_bytes;
};
struct rail_net_props_v11 {
  char *name; char *pci_path; uint64_t guid; int ptr_support; int reg_is_global; int force_flush;
  int speed; int port; float latency; int max_comms; int max_recvs;
  int net_device_type; int net_device_version;
  struct rail_net_vprops_v9 vprops;
  size_t max_p2p_bytes; size_t max_coll_bytes;
  int max_multi_request_size;
};
struct rail_net_props_v12 {
  char *name; char *pci_path; uint64_t guid; int ptr_support; int reg_is_global; int force_flush;
  int speed; int port; float latency; int max_comms; int max_recvs;
  int net_device_type; int net_device_version;
  struct rail_net_vprops_v12 vprops;
  size_t max_p2p_bytes; size_t max_coll_bytes;
  int max_multi_request_size;
  int16_t rail_id, plane_id;
};

/* ---- vtables ---------------------------------------------------------- */

struct rail_net_v6 {
  const char *name;
  int (*init)(rail_logger_fn log);
  int (*devices)(int *ndev);
  int (*get_properties)(int dev, struct rail_net_props_v6 *props);
  int (*listen)(int dev, void *handle, void **listen_comm);
  int (*connect)(int dev, void *handle, void **send_comm);
  int (*accept)(void *listen_comm, void **recv_comm);
  int (*reg_mr)(void *comm, void *data, int size, int type, void **mhandle);
  int (*reg_mr_dmabuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
  int (*dereg_mr)(void *comm, void *mhandle);
  int (*isend)(void *send_comm, void *data, int size, int tag, void *mhandle, void **request);
  int (*irecv)(void *recv_comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request);
  int (*iflush)(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request);
  int (*test)(void *request, int *done, int *sizes);
  int (*close_send)(void *send_comm);
  int (*close_recv)(void *recv_comm);
  int (*close_listen)(void *listen_comm);
};

struct rail_net_v7 {
  const char *name;
  int (*init)(rail_logger_fn log);
  int (*devices)(int *ndev);
  int (*get_properties)(int dev, struct rail_net_props_v7 *props);
  int (*listen)(int dev, void *handle, void **listen_comm);
  int (*connect)(int dev, void *handle, void **send_comm, struct rail_net_device_handle **dev_handle);
  int (*accept)(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);
  int (*reg_mr)(void *comm, void *data, int size, int type, void **mhandle);
  int (*reg_mr_dmabuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
  int (*dereg_mr)(void *comm, void *mhandle);
  int (*isend)(void *send_comm, void *data, int size, int tag, void *mhandle, void **request);
  int (*irecv)(void *recv_comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request);
  int (*iflush)(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request);
  int (*test)(void *request, int *done, int *sizes);
  int (*close_send)(void *send_comm);
  int (*close_recv)(void *recv_comm);
  int (*close_listen)(void *listen_comm);
  int (*get_device_mr)(void *comm, void *mhandle, void **dptr_mhandle);
  int (*irecv_consumed)(void *recv_comm, int n, void *request);
};

struct rail_net_v8 {
  const char *name;
  int (*init)(rail_logger_fn log);
  int (*devices)(int *ndev);
  int (*get_properties)(int dev, struct rail_net_props_v8 *props);
  int (*listen)(int dev, void *handle, void **listen_comm);
  int (*connect)(int dev, void *handle, void **send_comm, struct rail_net_device_handle **dev_handle);
  int (*accept)(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);
  int (*reg_mr)(void *comm, void *data, size_t size, int type, void **mhandle);
  int (*reg_mr_dmabuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
  int (*dereg_mr)(void *comm, void *mhandle);
  int (*isend)(void *send_comm, void *data, int size, int tag, void *mhandle, void **request);
  int (*irecv)(void *recv_comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request);
  int (*iflush)(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request);
  int (*test)(void *request, int *done, int *sizes);
  int (*close_send)(void *send_comm);
  int (*close_recv)(void *recv_comm);
  int (*close_listen)(void *listen_comm);
  int (*get_device_mr)(void *comm, void *mhandle, void **dptr_mhandle);
  int (*irecv_consumed)(void *recv_comm, int n, void *request);
};

struct rail_net_v9 {
  const char *name;
  int (*init)(rail_logger_fn log);
  int (*devices)(int *ndev);
  int (*get_properties)(int dev, struct rail_net_props_v9 *props);
  int (*listen)(int dev, void *handle, void **listen_comm);
  int (*connect)(int dev, void *handle, void **send_comm, struct rail_net_device_handle **dev_handle);
  int (*accept)(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);
  int (*reg_mr)(void *comm, void *data, size_t size, int type, void **mhandle);
  int (*reg_mr_dmabuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
  int (*dereg_mr)(void *comm, void *mhandle);
  int (*isend)(void *send_comm, void *data, size_t size, int tag, void *mhandle, void **request);
  int (*irecv)(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request);
  int (*iflush)(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request);
  int (*test)(void *request, int *done, int *sizes);
  int (*close_send)(void *send_comm);
  int (*close_recv)(void *recv_comm);
  int (*close_listen)(void *listen_comm);
  int (*get_device_mr)(void *comm, void *mhandle, void **dptr_mhandle);
  int (*irecv_consumed)(void *recv_comm, int n, void *request);
  int (*make_vdevice)(int *dev, struct rail_net_vprops_v9 *props);
};

struct rail_net_v10 {
  const char *name;
  int (*init)(rail_logger_fn log, rail_profiler_fn prof);
  int (*devices)(int *ndev);
  int (*get_properties)(int dev, struct rail_net_props_v9 *props);
  int (*listen)(int dev, void *handle, void **listen_comm);
  int (*connect)(int dev, struct rail_net_config *config, void *handle, void **send_comm,
                 struct rail_net_device_handle **dev_handle);
  int (*accept)(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);
  int (*reg_mr)(void *comm, void *data, size_t size, int type, void **mhandle);
  int (*reg_mr_dmabuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
  int (*dereg_mr)(void *comm, void *mhandle);
  int (*isend)(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request);
  int (*irecv)(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
               void **request);
  int (*iflush)(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request);
  int (*test)(void *request, int *done, int *sizes);
  int (*close_send)(void *send_comm);
  int (*close_recv)(void *recv_comm);
  int (*close_listen)(void *listen_comm);
  int (*get_device_mr)(void *comm, void *mhandle, void **dptr_mhandle);
  int (*irecv_consumed)(void *recv_comm, int n, void *request);
  int (*make_vdevice)(int *dev, struct rail_net_vprops_v9 *props);
};

#define RAIL_NET_V11_SLOTS(PROPS, VPROPS)                                                                             \
  const char *name;                                                                                                   \
  int (*init)(void **ctx, uint64_t comm_id, struct rail_net_config *config, rail_logger_fn log,                \
              rail_profiler_fn prof);                                                                                 \
  int (*devices)(int *ndev);                                                                                          \
  int (*get_properties)(int dev, PROPS *props);                                                                       \
  int (*listen)(void *ctx, int dev, void *handle, void **listen_comm);                                                \
  int (*connect)(void *ctx, int dev, void *handle, void **send_comm, struct rail_net_device_handle **dev_handle);     \
  int (*accept)(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);                     \
  int (*reg_mr)(void *comm, void *data, size_t size, int type, void **mhandle);                                       \
  int (*reg_mr_dmabuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);       \
  int (*dereg_mr)(void *comm, void *mhandle);                                                                         \
  int (*isend)(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request);      \
  int (*irecv)(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,       \
               void **request);                                                                                       \
  int (*iflush)(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request);                    \
  int (*test)(void *request, int *done, int *sizes);                                                                  \
  int (*close_send)(void *send_comm);                                                                                 \
  int (*close_recv)(void *recv_comm);                                                                                 \
  int (*close_listen)(void *listen_comm);                                                                             \
  int (*get_device_mr)(void *comm, void *mhandle, void **dptr_mhandle);                                               \
  int (*irecv_consumed)(void *recv_comm, int n, void *request);                                                       \
  int (*make_vdevice)(int *dev, VPROPS *props);                                                                       \
  int (*finalize)(void *ctx);                                                                                         \
  int (*set_net_attr)(void *ctx, struct rail_net_attr *attr);

/* v11 and v12 have the same slots; only the properties grew. */
struct rail_net_v11 { RAIL_NET_V11_SLOTS(struct rail_net_props_v11, struct rail_net_vprops_v9) };
struct rail_net_v12 { RAIL_NET_V11_SLOTS(struct rail_net_props_v12, struct rail_net_vprops_v12) };

/* ---- the ABI as numbers (LP64) ---------------------------------------- */

#if defined(__cplusplus)
#define RAIL_NET_ASSERT(cond) static_assert(cond, #cond)
#else
#define RAIL_NET_ASSERT(cond) _Static_assert(cond, #cond)
#endif

RAIL_NET_ASSERT(sizeof(struct rail_net_v6) == 136);
RAIL_NET_ASSERT(sizeof(struct rail_net_v7) == 152);
RAIL_NET_ASSERT(sizeof(struct rail_net_v8) == 152);
RAIL_NET_ASSERT(sizeof(struct rail_net_v9) == 160);
RAIL_NET_ASSERT(sizeof(struct rail_net_v10) == 160);
RAIL_NET_ASSERT(sizeof(struct rail_net_v11) == 176);
RAIL_NET_ASSERT(sizeof(struct rail_net_v12) == 176);
RAIL_NET_ASSERT(sizeof(struct rail_net_props_v6) == 48);
RAIL_NET_ASSERT(sizeof(struct rail_net_props_v7) == 56);
RAIL_NET_ASSERT(sizeof(struct rail_net_props_v8) == 64);
RAIL_NET_ASSERT(sizeof(struct rail_net_props_v9) == 104);
RAIL_NET_ASSERT(sizeof(struct rail_net_props_v11) == 112);
RAIL_NET_ASSERT(sizeof(struct rail_net_props_v12) == 128);
RAIL_NET_ASSERT(sizeof(struct rail_net_device_handle) == 32);
RAIL_NET_ASSERT(sizeof(struct rail_net_config) == 4);
RAIL_NET_ASSERT(sizeof(struct rail_net_attr) == 44);
RAIL_NET_ASSERT(offsetof(struct rail_net_props_v12, guid) == 16);
RAIL_NET_ASSERT(offsetof(struct rail_net_props_v12, ptr_support) == 24);
RAIL_NET_ASSERT(offsetof(struct rail_net_props_v12, reg_is_global) == 28);
RAIL_NET_ASSERT(offsetof(struct rail_net_props_v12, force_flush) == 32);
RAIL_NET_ASSERT(offsetof(struct rail_net_props_v12, speed) == 36);
RAIL_NET_ASSERT(offsetof(struct rail_net_props_v12, port) == 40);
RAIL_NET_ASSERT(offsetof(struct rail_net_props_v12, latency) == 44);
RAIL_NET_ASSERT(offsetof(struct rail_net_props_v12, max_comms) == 48);
RAIL_NET_ASSERT(offsetof(struct rail_net_props_v12, max_recvs) == 52);
RAIL_NET_ASSERT(offsetof(struct rail_net_props_v12, net_device_type) == 56);
RAIL_NET_ASSERT(offsetof(struct rail_net_props_v12, vprops) == 64);
RAIL_NET_ASSERT(offsetof(struct rail_net_props_v12, max_p2p_bytes) == 104);
RAIL_NET_ASSERT(offsetof(struct rail_net_props_v12, max_coll_bytes) == 112);
RAIL_NET_ASSERT(offsetof(struct rail_net_props_v12, max_multi_request_size) == 120);
RAIL_NET_ASSERT(offsetof(struct rail_net_props_v12, rail_id) == 124);
RAIL_NET_ASSERT(offsetof(struct rail_net_props_v12, plane_id) == 126);
RAIL_NET_ASSERT(offsetof(struct rail_net_props_v11, vprops) == 64);
RAIL_NET_ASSERT(offsetof(struct rail_net_props_v11, max_p2p_bytes) == 88);
RAIL_NET_ASSERT(offsetof(struct rail_net_props_v11, max_coll_bytes) == 96);
RAIL_NET_ASSERT(offsetof(struct rail_net_props_v11, max_multi_request_size) == 104);
RAIL_NET_ASSERT(offsetof(struct rail_net_v12, test) == 13 * sizeof(void *));
RAIL_NET_ASSERT(offsetof(struct rail_net_v12, set_net_attr) == 21 * sizeof(void *));

#ifdef __cplusplus
}
#endif
#endif
