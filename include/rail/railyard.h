/* SPDX-License-Identifier: Apache-2.0
 *
 * Railyard's collective runtime: NCCL's API (names, values and binary layout
 * of libnccl.so.2, checked against 2.30.7) in a header that needs neither
 * CUDA nor NCCL. A program built against NCCL's own nccl.h links or preloads
 * librailyard.so unchanged; a program without CUDA includes this header.
 *
 * Calls enqueue and return, as NCCL's do; a communicator's operations run in the order in which they were enqueued.
 * Where they run is decided by its first call with a buffer:
 *   - Buffers in host memory: on the host. The `stream` argument is ignored;
 *     railCommWait is what cudaStreamSynchronize is to a CUDA communicator.
 *   - Buffers in the memory of a CUDA device, managed memory, or host memory that
 *     is registered with CUDA: on the device, as work of the stream; also in a
 *     stream capture. The communicator's device is that of the first buffer.
 * Both buffers of a call must be of one kind (ncclInvalidArgument), later calls of the communicator of the same
 * kind (ncclInvalidUsage), and so must be the calls of all its ranks: ranks that differ fail when they connect.
 * Memory that is registered with CUDA is of both kinds. A graph with captured calls must be ordered with other calls of
 * the communicator by the program (one stream will do), and not run after its end.
 *
 * Threads: one thread at a time per communicator. While it waits in a call for other ranks, other threads may call
 * ncclCommAbort, ncclCommRevoke and ncclCommGetAsyncError; an abort frees the communicator, so no call of it may begin
 * meanwhile. Different communicators are independent.
 *
 * All that libnccl.so.2 of that release exports is here; docs/standin.md says what of it is honoured, ignored or
 * refused.
 *
 * Every call returns an ncclResult_t. ncclGetLastError is the text of the calling thread's last error; given a
 * communicator that has failed, of that failure, unless a call of this thread was refused since for another reason.
 */
#ifndef RAIL_RAILYARD_H
#define RAIL_RAILYARD_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* CUDA's own declaration of the same name is compatible with this one. */
struct CUstream_st;
typedef struct CUstream_st *cudaStream_t;

/* The NCCL release whose API and ABI this library follows. */
#define NCCL_MAJOR 2
#define NCCL_MINOR 30
#define NCCL_PATCH 7
#define NCCL_SUFFIX ""
#define NCCL_VERSION_CODE 23007
#define NCCL_VERSION(X, Y, Z) (((X) <= 2 && (Y) <= 8) ? (X)*1000 + (Y)*100 + (Z) : (X)*10000 + (Y)*100 + (Z))

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
#define NCCL_COMM_NULL NULL

/* Made by one rank, copied to all: address of the rendezvous and a random secret. */
#define NCCL_UNIQUE_ID_BYTES 128
typedef struct { char internal[NCCL_UNIQUE_ID_BYTES]; } ncclUniqueId;

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
  ncclTimeout = 8, /* of NCCL's device barriers; no call here returns it */
  ncclNumResults = 9
} ncclResult_t;

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_SPLIT_NOCOLOR -1
#define NCCL_UNDEF_FLOAT -1.0f

/* Flags of ncclCommWindowRegister. */
#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_STRICT_ORDERING 0x02
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

/* ncclConfig_t.CTAPolicy */
#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02

/* Flags of ncclCommShrink and ncclCommRevoke. */
#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01 /* ends the parent's operations first, and works after a failure */
#define NCCL_REVOKE_DEFAULT 0x00

/* Flag of ncclCommSuspend. */
#define NCCL_SUSPEND_MEM 0x01

/* In the structs that a caller makes by an initializer. */
#define NCCL_API_MAGIC 0xcafebeefu

/* Start from NCCL_CONFIG_INITIALIZER; the first three fields belong to the library. A struct of an older release is
 * taken as far as its size and version go. A value that NCCL does not allow is ncclInvalidArgument, with a line that
 * names the field, the value and what is allowed. Railyard honours blocking, minCTAs/maxCTAs (bounds on channels),
 * netName and trafficClass, keeps commName, and ignores the rest: hints about hardware that it does not use. */
typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char *netName;
  int splitShare;
  int trafficClass;
  const char *commName;
  int collnetEnable;
  int CTAPolicy;
  int shrinkShare;
  int nvlsCTAs;
  int nChannelsPerNetPeer;
  int nvlinkCentricSched;
  int graphUsageMode;
  int numRmaCtx;
  int maxP2pPeers;
  int graphStreamOrdering;
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                                              \
  {                                                                                                          \
    sizeof(ncclConfig_t), NCCL_API_MAGIC, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH),                  \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,          \
        NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR,          \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,          \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,          \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT                                                         \
  }

/* Start from NCCL_SIM_INFO_INITIALIZER. */
typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  float estimatedTime; /* us */
} ncclSimInfo_t;

#define NCCL_SIM_INFO_MAGIC 0x74685283u
#define NCCL_SIM_INFO_INITIALIZER \
  { sizeof(ncclSimInfo_t), NCCL_SIM_INFO_MAGIC, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), NCCL_UNDEF_FLOAT }

typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;
typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5, /* also the least value of an operator made by ncclRedOpCreatePreMulSum */
  ncclMaxRedOp = 0x7fffffff >> (32 - 8 * sizeof(ncclRedOp_dummy_t))
} ncclRedOp_t;

typedef enum {
  ncclInt8 = 0, ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2, ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6, ncclHalf = 6,
  ncclFloat32 = 7, ncclFloat = 7,
  ncclFloat64 = 8, ncclDouble = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

typedef enum {
  ncclScalarDevice = 0,       /* read while the collective runs */
  ncclScalarHostImmediate = 1 /* read before the call returns */
} ncclScalarResidence_t;

/* ---- library ---- */

/* NCCL_VERSION_CODE of the API that is followed (not Railyard's own version). */
ncclResult_t ncclGetVersion(int *version);
ncclResult_t pncclGetVersion(int *version);

/* Text of a result; never NULL. */
const char *ncclGetErrorString(ncclResult_t result);
const char *pncclGetErrorString(ncclResult_t result);

/* Last error of `comm`, or of the calling thread when comm is NULL; "" if none. Valid until the next call. */
const char *ncclGetLastError(ncclComm_t comm);
const char *pncclGetLastError(ncclComm_t comm);

/* Reads NCCL_DEBUG again. */
void ncclResetDebugInit(void);
void pncclResetDebugInit(void);
void ncclResetDebugInitInternal(void);

/* ---- communicators ---- */

/* Call on one rank, copy the bytes to all. Starts a rendezvous in this process,
 * unless NCCL_COMM_ID=host:port names one. */
ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId);
ncclResult_t pncclGetUniqueId(ncclUniqueId *uniqueId);

/* Collective over nranks callers; blocks until all have arrived, or the bootstrap deadline
 * (RAIL_BOOTSTRAP_TIMEOUT) has passed. Inside a group it is deferred to ncclGroupEnd, unless it does not block. */
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank);
ncclResult_t pncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank);

/* With config->blocking 0 it returns ncclInProgress, as the end of a group around it does; poll
 * ncclCommGetAsyncError. */
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t *config);
ncclResult_t pncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                     ncclConfig_t *config);

/* Up to one id a rank, the same on all. The first is where the ranks meet; the others' rendezvous are ended. */
ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds,
                                      ncclConfig_t *config);
ncclResult_t pncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds,
                                       ncclConfig_t *config);

/* ndev ranks in this process; devlist only labels them. */
ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist);
ncclResult_t pncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist);

/* Finishes what was enqueued here and waits for no other rank, so that ranks may finalize their communicators in
 * different orders, and one thread several of them. It is not deferred to a group's end: ncclInvalidUsage if the open
 * group has calls of comm. */
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t pncclCommFinalize(ncclComm_t comm);

/* Finishes what was enqueued here, waits for communicators that are being made from this one, and frees. Returns an
 * error that no earlier call has returned. */
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t pncclCommDestroy(ncclComm_t comm);

/* Ends every pending call here and, through the bootstrap, on every other rank, and frees. */
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t pncclCommAbort(ncclComm_t comm);

/* Ends what is enqueued here, on this rank alone, without finishing it, and leaves a communicator of which others can
 * be made (shrink, split) and which can be destroyed; everything else it refuses. Without blocking:
 * ncclCommGetAsyncError gives ncclInProgress until nothing is under way any more, then ncclSuccess, even after a
 * failure. Not after ncclCommFinalize, and not twice. */
ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags);
ncclResult_t pncclCommRevoke(ncclComm_t comm, int revokeFlags);

/* Collective over comm. Ranks of equal color form a new communicator ordered by key, then rank;
 * NCCL_SPLIT_NOCOLOR gives NULL. Of a failed communicator none can be split. A rank that does not make the call is an
 * error on the others after RAIL_BOOTSTRAP_TIMEOUT, and is named; the ranks then no longer agree which split or grow
 * comes next, so make no more of comm. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);
ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);

/* Collective over the ranks that stay; they keep their order. The excluded ones are not asked and may be dead.
 * NCCL_SHRINK_ABORT revokes comm first, and is what a communicator needs that has failed. A rank that comes too late
 * (RAIL_BOOTSTRAP_TIMEOUT) is an error on the others, and may be one again in a second attempt with the same list. */
ncclResult_t ncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm,
                            ncclConfig_t *config, int shrinkFlags);
ncclResult_t pncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm,
                             ncclConfig_t *config, int shrinkFlags);

/* A new communicator of comm's ranks and new ones. One rank of comm gets an id, which starts a rendezvous in its
 * process, and copies it to the new ranks; then all ranks of comm and all new ranks call ncclCommGrow:
 *   ranks of comm   comm, uniqueId NULL or, where the id was made, that id; rank -1: each keeps its number
 *   new ranks       comm NULL, the id, a rank between comm's size and nRanks - 1
 * nRanks is the new size, the same everywhere. Collective, as ncclCommInitRankConfig; comm stays as it is. Without a
 * config ranks of comm take comm's, new ranks the defaults.
 * A rank of comm that does not make the call: as for ncclCommSplit.
 * An id is for one grow, whether that succeeds or not. A second one is ncclInvalidUsage while new ranks can still come
 * by the first (RAIL_BOOTSTRAP_TIMEOUT after one has, else ten minutes), and with NCCL_COMM_ID, one address for all.
 * New ranks that wait when the grow fails, or comm ends without it, get ncclRemoteError. Once the ranks of comm have
 * the id, comm may be aborted. */
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *uniqueId);
ncclResult_t pncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *uniqueId);
ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank, ncclComm_t *newcomm,
                          ncclConfig_t *config);
ncclResult_t pncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank, ncclComm_t *newcomm,
                           ncclConfig_t *config);

/* Gives back the memory of comm's connections, once nothing is enqueued any more (it waits for that); until
 * ncclCommResume operations, registrations, finalize and what makes a communicator of comm are ncclInvalidUsage; what
 * is left are queries, giving registrations back, ncclCommRevoke (also by NCCL_SHRINK_ABORT), abort and destroy.
 * Each rank does it for itself, and all must, between the same two operations. Nothing checks that: where one suspends
 * and another does not, a message between them may be lost, and its receiver waits for ever, or an operation fails.
 * The first operation after a resume makes the connections again. Registrations and windows stay.
 * `flags` is NCCL_SUSPEND_MEM. ncclInvalidUsage: calls of comm wait for this group's end, a captured graph still has
 * the connections, or, on a device, kernels of other communicators of the process run for two seconds more. */
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t pncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t ncclCommResume(ncclComm_t comm);
ncclResult_t pncclCommResume(ncclComm_t comm);

/* Bytes that this rank has allocated for comm, of the kind of memory that comm works on: a GPU's, or the host's if its
 * first call had host buffers or none was made. What ranks share counts where it was allocated. */
typedef enum {
  ncclStatGpuMemSuspend = 0,   /* of its connections: ncclCommSuspend gives them back */
  ncclStatGpuMemSuspended = 1, /* 1: comm is suspended; else 0 */
  ncclStatGpuMemPersist = 2,   /* what stays */
  ncclStatGpuMemTotal = 3      /* both */
} ncclCommMemStat_t;
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);
ncclResult_t pncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);

/* ncclInProgress while initialising without blocking; ncclSuccess; or the error that ended the communicator. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);
ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count);
ncclResult_t pncclCommCount(const ncclComm_t comm, int *count);

/* devlist's entry, or the CUDA device that was current when the communicator was made; without one the rank on this
 * host. */
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device);
ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int *device);

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank);
ncclResult_t pncclCommUserRank(const ncclComm_t comm, int *rank);

/* ---- memory ---- */

/* In a thread that has a CUDA context current: memory of its device, with undefined contents. Else, and in a program
 * without a driver: page-aligned host memory, zeroed. 0 bytes are some. */
ncclResult_t ncclMemAlloc(void **ptr, size_t size);
ncclResult_t pncclMemAlloc(void **ptr, size_t size);

/* From any thread, once nothing uses it. NULL is fine; a pointer not from ncclMemAlloc is ncclInvalidArgument. */
ncclResult_t ncclMemFree(void *ptr);
ncclResult_t pncclMemFree(void *ptr);

/* Registers a buffer with the network ahead of its use; the handle is opaque. */
ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle);
ncclResult_t pncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle);

/* ncclInvalidUsage while operations are unfinished: wait for them first, by the stream or railCommWait. */
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle);
ncclResult_t pncclCommDeregister(const ncclComm_t comm, void *handle);

/* Host memory: as ncclCommRegister; local, not collective; the window is opaque. Memory of a GPU: success and a NULL
 * window, as NCCL where it has no symmetric memory, since a kernel may use a window as an address; then nothing is
 * registered: ncclCommRegister does that. */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags);
ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags);

/* NULL is fine. */
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);
ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);

/* The buffer that a window was made of. For a NULL window NULL. */
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **outUserPtr);
ncclResult_t pncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **outUserPtr);

/* ---- parameters: those of docs/parameters.md that the runtime reads, as they are in effect ----
 *
 * Any thread, at any time; the first call reads the environment. A name that is not the runtime's, or a value that
 * does not fit, is ncclInvalidArgument with a line. Sizes are in bytes, times in milliseconds, of words the number is
 * the place in the list of what is allowed. Plugins have parameters of their own, which these calls do not know. */

typedef struct ncclParamHandle *ncclParamHandle_t;

/* *out belongs to the library and stays valid. */
ncclResult_t ncclParamBind(ncclParamHandle_t *out, const char *key);
ncclResult_t pncclParamBind(ncclParamHandle_t *out, const char *key);

/* A number, if it fits the type. */
ncclResult_t ncclParamGetI8(ncclParamHandle_t h, int8_t *out);
ncclResult_t pncclParamGetI8(ncclParamHandle_t h, int8_t *out);
ncclResult_t ncclParamGetI16(ncclParamHandle_t h, int16_t *out);
ncclResult_t pncclParamGetI16(ncclParamHandle_t h, int16_t *out);
ncclResult_t ncclParamGetI32(ncclParamHandle_t h, int32_t *out);
ncclResult_t pncclParamGetI32(ncclParamHandle_t h, int32_t *out);
ncclResult_t ncclParamGetI64(ncclParamHandle_t h, int64_t *out);
ncclResult_t pncclParamGetI64(ncclParamHandle_t h, int64_t *out);
ncclResult_t ncclParamGetU8(ncclParamHandle_t h, uint8_t *out);
ncclResult_t pncclParamGetU8(ncclParamHandle_t h, uint8_t *out);
ncclResult_t ncclParamGetU16(ncclParamHandle_t h, uint16_t *out);
ncclResult_t pncclParamGetU16(ncclParamHandle_t h, uint16_t *out);
ncclResult_t ncclParamGetU32(ncclParamHandle_t h, uint32_t *out);
ncclResult_t pncclParamGetU32(ncclParamHandle_t h, uint32_t *out);
ncclResult_t ncclParamGetU64(ncclParamHandle_t h, uint64_t *out);
ncclResult_t pncclParamGetU64(ncclParamHandle_t h, uint64_t *out);

/* Any parameter as text that the environment variable would take; "" is unset. Valid until this thread's next call. */
ncclResult_t ncclParamGetStr(ncclParamHandle_t h, const char **out);
ncclResult_t pncclParamGetStr(ncclParamHandle_t h, const char **out);
ncclResult_t ncclParamGetParameter(const char *key, const char **value, int *valueLen);
ncclResult_t pncclParamGetParameter(const char *key, const char **value, int *valueLen);

/* The bytes of an int64_t, or of the text with its NUL: *len of at most maxLen. */
ncclResult_t ncclParamGet(ncclParamHandle_t h, void *out, int maxLen, int *len);
ncclResult_t pncclParamGet(ncclParamHandle_t h, void *out, int maxLen, int *len);

/* All names. The table belongs to the library and stays valid. */
ncclResult_t ncclParamGetAllParameterKeys(const char ***table, int *tableLen);
ncclResult_t pncclParamGetAllParameterKeys(const char ***table, int *tableLen);

/* All names and values, a line each, on the standard output, as NCCL. */
void ncclParamDumpAll(void);
void pncclParamDumpAll(void);

/* ---- groups ---- */

/* Calls between start and end are enqueued together at the outermost end; sends and
 * receives inside one group progress together. Per thread. */
ncclResult_t ncclGroupStart(void);
ncclResult_t pncclGroupStart(void);

ncclResult_t ncclGroupEnd(void);
ncclResult_t pncclGroupEnd(void);

/* Ends the group without doing what is in it, and says how long that might have taken. */
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *simInfo);
ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t *simInfo);

/* ---- collectives: counts are elements; in place where NCCL allows it ---- */

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                            ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);

ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                            ncclComm_t comm, cudaStream_t stream);

ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream);
ncclResult_t pncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                        cudaStream_t stream);

/* recvbuff may be NULL except on root. */
ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                         int root, ncclComm_t comm, cudaStream_t stream);

/* recvbuff holds nranks * sendcount. In place: sendbuff == recvbuff + rank * sendcount. */
ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                            ncclComm_t comm, cudaStream_t stream);

/* sendbuff holds nranks * recvcount. In place: recvbuff == sendbuff + rank * recvcount. */
ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,
                                ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);

/* Both buffers hold nranks * count. sendbuff == recvbuff is accepted, and what arrives is then not defined (NCCL 2.28:
 * its documentation excludes it, nccl-tests calls it). */
ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                          ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream);

/* recvbuff (root only) holds nranks * count. */
ncclResult_t ncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                        ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                         ncclComm_t comm, cudaStream_t stream);

/* sendbuff (root only) holds nranks * count. */
ncclResult_t ncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                         ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                          ncclComm_t comm, cudaStream_t stream);

/* A send completes with the matching receive; concurrent ones belong in one group. */
ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t pncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                       cudaStream_t stream);

ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t pncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                       cudaStream_t stream);

/* An operator that multiplies each rank's own input by *scalar (of `datatype`) before summing. With ncclScalarDevice
 * the scalar lies where the buffers of the calls do. */
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                       ncclScalarResidence_t residence, ncclComm_t comm);

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);
ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

/* ---- one-sided calls: refused ----
 *
 * ncclInvalidUsage with a line, as NCCL where its properties say hostRmaSupport false: the ncclNet ABI has two-sided
 * operations only. Use ncclSend and ncclRecv. */

typedef struct {
  int opCnt;
  int peer;
  int sigIdx;
  int ctx;
} ncclWaitSignalDesc_t;

ncclResult_t ncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
                           ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
                            ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags,
                            ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclWaitSignal(int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclWaitSignal(int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm, cudaStream_t stream);

/* ---- NCCL's device API (its nccl_device.h): ranks and teams are described, the rest is refused ---- */

typedef enum {
  NCCL_GIN_TYPE_NONE = 0,
  NCCL_GIN_TYPE_PROXY = 2,
  NCCL_GIN_TYPE_GDAKI = 3,
  NCCL_GIN_TYPE_GPI = 4
} ncclGinType_t;

/* Start from NCCL_COMM_PROPERTIES_INITIALIZER. */
typedef struct ncclCommProperties {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int rank;
  int nRanks;
  int cudaDev; /* as ncclCommCuDevice */
  int nvmlDev; /* the same: Railyard does not translate CUDA_VISIBLE_DEVICES */
  bool deviceApiSupport; /* false */
  bool multimemSupport;  /* false */
  ncclGinType_t ginType; /* none */
  int nLsaTeams;         /* one a rank: no kernel reaches another rank's memory through this API */
  bool hostRmaSupport;   /* false: ncclPutSignal is refused */
  ncclGinType_t railedGinType; /* none */
} ncclCommProperties_t;

#define NCCL_COMM_PROPERTIES_INITIALIZER \
  { sizeof(ncclCommProperties_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, 0, 0, 0, 0, false, false, NCCL_GIN_TYPE_NONE, \
    0, false, NCCL_GIN_TYPE_NONE }

/* A struct of an older release is filled as far as its size goes. */
ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *props);
ncclResult_t pncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *props);

typedef struct ncclDevComm ncclDevComm_t;
typedef struct ncclDevCommRequirements ncclDevCommRequirements_t;
typedef struct ncclDevResourceRequirements ncclDevResourceRequirements_t;
typedef struct ncclLsaBarrierHandle ncclLsaBarrierHandle_t;
typedef struct ncclGinBarrierHandle ncclGinBarrierHandle_t;
struct ncclGinOutboxHandle;
struct ncclGinInboxA2AHandle;
typedef struct ncclLLA2AHandle ncclLLA2AHandle_t;
typedef struct ncclMultimemHandle {
  void *mcBasePtr;
} ncclMultimemHandle_t;
typedef struct ncclTeam {
  int nRanks, rank, stride;
} ncclTeam_t;

/* All ranks; those whose memory this rank's kernels may touch, which is itself alone; those of the same place in
 * theirs, which is all again. Without a communicator: zeros. */
ncclTeam_t ncclTeamWorld(ncclComm_t comm);
ncclTeam_t pncclTeamWorld(ncclComm_t comm);
ncclTeam_t ncclTeamLsa(ncclComm_t comm);
ncclTeam_t pncclTeamLsa(ncclComm_t comm);
ncclTeam_t ncclTeamRail(ncclComm_t comm);
ncclTeam_t pncclTeamRail(ncclComm_t comm);

/* The number in the first, or the second of these teams of `rank` of `team`, of which this rank is a member. */
int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);
int pncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);
int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);
int pncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);

/* ncclInvalidUsage, as NCCL where it has no symmetric memory. */
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t *reqs, ncclDevComm_t *outDevComm);
ncclResult_t pncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t *reqs, ncclDevComm_t *outDevComm);
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t *devComm);
ncclResult_t pncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t *devComm);
ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t team, int nBarriers, ncclLsaBarrierHandle_t *outHandle,
                                             ncclDevResourceRequirements_t *outReq);
ncclResult_t pncclLsaBarrierCreateRequirement(ncclTeam_t team, int nBarriers, ncclLsaBarrierHandle_t *outHandle,
                                              ncclDevResourceRequirements_t *outReq);
ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int nBarriers,
                                             ncclGinBarrierHandle_t *outHandle, ncclDevResourceRequirements_t *outReq);
ncclResult_t pncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int nBarriers,
                                              ncclGinBarrierHandle_t *outHandle,
                                              ncclDevResourceRequirements_t *outReq);
ncclResult_t ncclLLA2ACreateRequirement(int nBlocks, int nSlots, ncclLLA2AHandle_t *outHandle,
                                        ncclDevResourceRequirements_t *outReq);
ncclResult_t pncclLLA2ACreateRequirement(int nBlocks, int nSlots, ncclLLA2AHandle_t *outHandle,
                                         ncclDevResourceRequirements_t *outReq);
ncclResult_t ncclGinOutboxCreateRequirement(int nBlocks, int size_log2, struct ncclGinOutboxHandle *outHandle,
                                            ncclDevResourceRequirements_t *outReq);
ncclResult_t pncclGinOutboxCreateRequirement(int nBlocks, int size_log2, struct ncclGinOutboxHandle *outHandle,
                                             ncclDevResourceRequirements_t *outReq);
ncclResult_t ncclGinInboxA2ACreateRequirement(ncclTeam_t peers, int nBlocks, int size_log2,
                                              struct ncclGinInboxA2AHandle *outHandle,
                                              ncclDevResourceRequirements_t *outReq);
ncclResult_t pncclGinInboxA2ACreateRequirement(ncclTeam_t peers, int nBlocks, int size_log2,
                                               struct ncclGinInboxA2AHandle *outHandle,
                                               ncclDevResourceRequirements_t *outReq);
ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank, void **outPtr);
ncclResult_t pncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank, void **outPtr);
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **outPtr);
ncclResult_t pncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **outPtr);
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void **outPtr);
ncclResult_t pncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void **outPtr);
ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset, ncclMultimemHandle_t multimem,
                                          void **outPtr);
ncclResult_t pncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset, ncclMultimemHandle_t multimem,
                                           void **outPtr);
/* 0, for the same reason. */
int ncclLLA2ACalcSlots(int maxElts, int maxEltSize);
int pncclLLA2ACalcSlots(int maxElts, int maxEltSize);

/* ---- Railyard's own ---- */

/* Waits until everything enqueued on comm is finished, and returns how it went: ncclSuccess, or the error that ended
 * the communicator. The calling thread helps with the work. Until it, or ncclCommAbort, has returned the buffers are in
 * use, also where a later call has failed meanwhile. ncclInProgress, without waiting, while the communicator itself is
 * still being made. */
ncclResult_t railCommWait(ncclComm_t comm);

/* The same without waiting: *done is 1 when nothing that was enqueued is unfinished. */
ncclResult_t railCommQuery(ncclComm_t comm, int *done);

/* Which transports the communicator uses, as text ("SHM", "NET/RailSocket", "SHM+NET/RailSocket"), and the
 * plugin's file; for tools. Valid until the communicator is destroyed. */
const char *railCommTransports(ncclComm_t comm);
const char *railCommNetPlugin(ncclComm_t comm);

/* What the launcher's environment says of this process: torchrun (RANK, WORLD_SIZE, LOCAL_RANK...), Open MPI
 * (OMPI_COMM_WORLD_RANK...), a Slurm step (SLURM_PROCID... with SLURM_STEP_ID; a batch script is no rank), in this
 * order. ncclInvalidUsage when there is no launcher; ncclInvalidArgument, and a line, when its rank or count is not
 * valid. */
typedef struct {
  int rank, nranks;
  int localRank, localSize; /* among the ranks of this host; -1 unknown */
  const char *source;       /* "torchrun", "slurm", "openmpi" */
} railLaunch_t;
ncclResult_t railLaunchFromEnv(railLaunch_t *launch);

/* One unique id for all ranks of a launch, without other means to copy it. In this order: RAIL_STORE=directory (a
 * file store on a file system that all ranks share), NCCL_COMM_ID=host:port, MASTER_ADDR and MASTER_PORT, the
 * launcher's node list, and for ranks of one host a file store in the temporary directory named after the job.
 * Collective in the sense that rank 0 publishes and the others wait, RAIL_BOOTSTRAP_TIMEOUT at most. */
ncclResult_t railUniqueIdFromEnv(const railLaunch_t *launch, ncclUniqueId *id);

/* Prints the runtime's parameters: name, type, default, allowed values, doc; markdown 1 for docs. */
void railParamPrint(int markdown);

/* Prints which algorithm, protocol and number of channels each call takes, by size, with this environment. */
void railTuningPrint(void);

#ifdef __cplusplus
}
#endif
#endif
