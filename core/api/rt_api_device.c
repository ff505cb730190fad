/* SPDX-License-Identifier: Apache-2.0
 * NCCL's device API, for user kernels that access other ranks' memory, and its one-sided calls: Railyard has neither.
 * The functions that create or move something return an error; those that only describe ranks work. */
#include <string.h>

#include "common/base/log.h"
#include "core/api/rt_api.h"

/* ---- properties ---------------------------------------------------------------------------- */

RAIL_EXPORT ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *props) {
  ncclResult_t r = rt_check_made(comm, "ncclCommQueryProperties");
  if (r != ncclSuccess) return r;
  const size_t header = offsetof(ncclCommProperties_t, rank);
  if (!props) return rt_error(RAIL_BAD_ARGUMENT, "ncclCommQueryProperties: props is NULL");
  if (props->magic != NCCL_API_MAGIC || props->size < header)
    return rt_error(RAIL_BAD_ARGUMENT,
                    "ncclCommQueryProperties: props has magic %#x and size %zu; allowed are %#x and at least %zu, as "
                    "NCCL_COMM_PROPERTIES_INITIALIZER has them",
                    props->magic, props->size, NCCL_API_MAGIC, header);
  const ncclCommProperties_t all = {.rank = comm->rank,
                                    .nRanks = comm->nranks,
                                    .cudaDev = comm->device,
                                    .nvmlDev = comm->device,
                                    .ginType = NCCL_GIN_TYPE_NONE,
                                    .nLsaTeams = comm->nranks,
                                    .railedGinType = NCCL_GIN_TYPE_NONE};
  memcpy((char *)props + header, (const char *)&all + header, RAIL_MIN(props->size, sizeof all) - header);
  return ncclSuccess;
}

/* ---- teams ------------------------------------------------------------------------------- */

static const ncclTeam_t no_team;

RAIL_EXPORT ncclTeam_t ncclTeamWorld(ncclComm_t comm) {
  if (rt_check_handle(comm, "ncclTeamWorld") != ncclSuccess) return no_team;
  return (ncclTeam_t){.nRanks = comm->nranks, .rank = comm->rank, .stride = 1};
}

RAIL_EXPORT ncclTeam_t ncclTeamLsa(ncclComm_t comm) {
  if (rt_check_handle(comm, "ncclTeamLsa") != ncclSuccess) return no_team;
  return (ncclTeam_t){.nRanks = 1, .rank = 0, .stride = 1};
}

RAIL_EXPORT ncclTeam_t ncclTeamRail(ncclComm_t comm) {
  if (rt_check_handle(comm, "ncclTeamRail") != ncclSuccess) return no_team;
  return (ncclTeam_t){.nRanks = comm->nranks, .rank = comm->rank, .stride = 1};
}

RAIL_EXPORT int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank) {
  if (rt_check_handle(comm, "ncclTeamRankToWorld") != ncclSuccess) return -1;
  return comm->rank + (rank - team.rank) * team.stride;
}

RAIL_EXPORT int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank) {
  if (rt_check_handle(comm, "ncclTeamRankToLsa") != ncclSuccess) return -1;
  return (rank - team.rank) * team.stride;
}

/* ---- what is refused --------------------------------------------------------------------- */

static ncclResult_t refuse(const char *call) {
  return rt_error(RAIL_BAD_USAGE,
                  "%s: Railyard has no symmetric memory, and so none of NCCL's device API; use the calls of nccl.h",
                  call);
}

RAIL_EXPORT ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t *reqs,
                                           ncclDevComm_t *outDevComm) {
  (void)comm, (void)reqs, (void)outDevComm;
  return refuse("ncclDevCommCreate");
}

RAIL_EXPORT ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t *devComm) {
  (void)comm, (void)devComm;
  return refuse("ncclDevCommDestroy");
}

RAIL_EXPORT ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t team, int nBarriers,
                                                         ncclLsaBarrierHandle_t *outHandle,
                                                         ncclDevResourceRequirements_t *outReq) {
  (void)team, (void)nBarriers, (void)outHandle, (void)outReq;
  return refuse("ncclLsaBarrierCreateRequirement");
}

RAIL_EXPORT ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int nBarriers,
                                                         ncclGinBarrierHandle_t *outHandle,
                                                         ncclDevResourceRequirements_t *outReq) {
  (void)comm, (void)team, (void)nBarriers, (void)outHandle, (void)outReq;
  return refuse("ncclGinBarrierCreateRequirement");
}

RAIL_EXPORT ncclResult_t ncclLLA2ACreateRequirement(int nBlocks, int nSlots, ncclLLA2AHandle_t *outHandle,
                                                    ncclDevResourceRequirements_t *outReq) {
  (void)nBlocks, (void)nSlots, (void)outHandle, (void)outReq;
  return refuse("ncclLLA2ACreateRequirement");
}

RAIL_EXPORT int ncclLLA2ACalcSlots(int maxElts, int maxEltSize) {
  (void)maxElts, (void)maxEltSize;
  refuse("ncclLLA2ACalcSlots");
  return 0;
}

RAIL_EXPORT ncclResult_t ncclGinOutboxCreateRequirement(int nBlocks, int size_log2,
                                                        struct ncclGinOutboxHandle *outHandle,
                                                        ncclDevResourceRequirements_t *outReq) {
  (void)nBlocks, (void)size_log2, (void)outHandle, (void)outReq;
  return refuse("ncclGinOutboxCreateRequirement");
}

RAIL_EXPORT ncclResult_t ncclGinInboxA2ACreateRequirement(ncclTeam_t peers, int nBlocks, int size_log2,
                                                          struct ncclGinInboxA2AHandle *outHandle,
                                                          ncclDevResourceRequirements_t *outReq) {
  (void)peers, (void)nBlocks, (void)size_log2, (void)outHandle, (void)outReq;
  return refuse("ncclGinInboxA2ACreateRequirement");
}

RAIL_EXPORT ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank, void **outPtr) {
  (void)window, (void)offset, (void)lsaRank, (void)outPtr;
  return refuse("ncclGetLsaDevicePointer");
}

RAIL_EXPORT ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **outPtr) {
  (void)window, (void)offset, (void)peer, (void)outPtr;
  return refuse("ncclGetPeerDevicePointer");
}

RAIL_EXPORT ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void **outPtr) {
  (void)window, (void)offset, (void)outPtr;
  return refuse("ncclGetLsaMultimemDevicePointer");
}

RAIL_EXPORT ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset, ncclMultimemHandle_t multimem,
                                                      void **outPtr) {
  (void)window, (void)offset, (void)multimem, (void)outPtr;
  return refuse("ncclGetMultimemDevicePointer");
}

/* ---- one-sided calls: refused ---------------------------------------------------------------- */

static ncclResult_t refuse_one_sided(const char *call) {
  return rt_group_note(rt_error(RAIL_BAD_USAGE,
                                "%s: Railyard has no one-sided calls (ncclCommQueryProperties says hostRmaSupport 0); "
                                "use ncclSend and ncclRecv",
                                call));
}

RAIL_EXPORT ncclResult_t ncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
                                       ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
                                       unsigned int flags, ncclComm_t comm, cudaStream_t stream) {
  (void)localbuff, (void)count, (void)datatype, (void)peer, (void)peerWin, (void)peerWinOffset, (void)sigIdx;
  (void)ctx, (void)flags, (void)comm, (void)stream;
  return refuse_one_sided("ncclPutSignal");
}

RAIL_EXPORT ncclResult_t ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                                    cudaStream_t stream) {
  (void)peer, (void)sigIdx, (void)ctx, (void)flags, (void)comm, (void)stream;
  return refuse_one_sided("ncclSignal");
}

RAIL_EXPORT ncclResult_t ncclWaitSignal(int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm,
                                        cudaStream_t stream) {
  (void)nDesc, (void)signalDescs, (void)comm, (void)stream;
  return refuse_one_sided("ncclWaitSignal");
}

RT_PNAME(CommQueryProperties);
RT_PNAME(TeamWorld);
RT_PNAME(TeamLsa);
RT_PNAME(TeamRail);
RT_PNAME(TeamRankToWorld);
RT_PNAME(TeamRankToLsa);
RT_PNAME(DevCommCreate);
RT_PNAME(DevCommDestroy);
RT_PNAME(LsaBarrierCreateRequirement);
RT_PNAME(GinBarrierCreateRequirement);
RT_PNAME(LLA2ACreateRequirement);
RT_PNAME(LLA2ACalcSlots);
RT_PNAME(GinOutboxCreateRequirement);
RT_PNAME(GinInboxA2ACreateRequirement);
RT_PNAME(GetLsaDevicePointer);
RT_PNAME(GetPeerDevicePointer);
RT_PNAME(GetLsaMultimemDevicePointer);
RT_PNAME(GetMultimemDevicePointer);
RT_PNAME(PutSignal);
RT_PNAME(Signal);
RT_PNAME(WaitSignal);
