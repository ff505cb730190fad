/* SPDX-License-Identifier: Apache-2.0
 * NCCL's device API, for user kernels that access other ranks' memory: Railyard has none. The functions that create
 * something return an error; those that only describe ranks work. */
#include "core/api/rt_api.h"

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
