/* SPDX-License-Identifier: Apache-2.0
 * Words and numbers for enumerations, as libibverbs gives them. */
#include <stddef.h>

#include "emu/emu.h"

#define NAME(value, text) [value] = (text)
static const char *of(const char *const *names, size_t n, unsigned int value) {
  return value < n && names[value] ? names[value] : "unknown";
}
#define OF(names, value) of(names, sizeof(names) / sizeof((names)[0]), (unsigned int)(value))

const char *ibv_wc_status_str(enum ibv_wc_status status) {
  static const char *const names[] = {
    NAME(IBV_WC_SUCCESS, "success"), NAME(IBV_WC_LOC_LEN_ERR, "local length error"),
    NAME(IBV_WC_LOC_QP_OP_ERR, "local QP operation error"), NAME(IBV_WC_LOC_EEC_OP_ERR, "local EEC operation error"),
    NAME(IBV_WC_LOC_PROT_ERR, "local protection error"), NAME(IBV_WC_WR_FLUSH_ERR, "Work Request Flushed Error"),
    NAME(IBV_WC_MW_BIND_ERR, "memory window bind error"), NAME(IBV_WC_BAD_RESP_ERR, "bad response error"),
    NAME(IBV_WC_LOC_ACCESS_ERR, "local access error"), NAME(IBV_WC_REM_INV_REQ_ERR, "remote invalid request error"),
    NAME(IBV_WC_REM_ACCESS_ERR, "remote access error"), NAME(IBV_WC_REM_OP_ERR, "remote operation error"),
    NAME(IBV_WC_RETRY_EXC_ERR, "transport retry counter exceeded"),
    NAME(IBV_WC_RNR_RETRY_EXC_ERR, "RNR retry counter exceeded"),
    NAME(IBV_WC_LOC_RDD_VIOL_ERR, "local RDD violation error"),
    NAME(IBV_WC_REM_INV_RD_REQ_ERR, "remote invalid RD request"), NAME(IBV_WC_REM_ABORT_ERR, "aborted error"),
    NAME(IBV_WC_INV_EECN_ERR, "invalid EE context number"),
    NAME(IBV_WC_INV_EEC_STATE_ERR, "invalid EE context state"), NAME(IBV_WC_FATAL_ERR, "fatal error"),
    NAME(IBV_WC_RESP_TIMEOUT_ERR, "response timeout error"), NAME(IBV_WC_GENERAL_ERR, "general error")};
  return OF(names, status);
}

const char *ibv_event_type_str(enum ibv_event_type type) {
  static const char *const names[] = {
    NAME(IBV_EVENT_CQ_ERR, "CQ error"), NAME(IBV_EVENT_QP_FATAL, "local work queue catastrophic error"),
    NAME(IBV_EVENT_QP_REQ_ERR, "invalid request local work queue error"),
    NAME(IBV_EVENT_QP_ACCESS_ERR, "local access violation work queue error"),
    NAME(IBV_EVENT_COMM_EST, "communication established"), NAME(IBV_EVENT_SQ_DRAINED, "send queue drained"),
    NAME(IBV_EVENT_PATH_MIG, "path migrated"), NAME(IBV_EVENT_PATH_MIG_ERR, "path migration request error"),
    NAME(IBV_EVENT_DEVICE_FATAL, "local catastrophic error"), NAME(IBV_EVENT_PORT_ACTIVE, "port active"),
    NAME(IBV_EVENT_PORT_ERR, "port error"), NAME(IBV_EVENT_LID_CHANGE, "LID change"),
    NAME(IBV_EVENT_PKEY_CHANGE, "P_Key change"), NAME(IBV_EVENT_SM_CHANGE, "SM change"),
    NAME(IBV_EVENT_SRQ_ERR, "SRQ catastrophic error"), NAME(IBV_EVENT_SRQ_LIMIT_REACHED, "SRQ limit reached"),
    NAME(IBV_EVENT_QP_LAST_WQE_REACHED, "last WQE reached"),
    NAME(IBV_EVENT_CLIENT_REREGISTER, "client reregistration"), NAME(IBV_EVENT_GID_CHANGE, "GID table change"),
    NAME(IBV_EVENT_WQ_FATAL, "WQ fatal")};
  return OF(names, type);
}

const char *ibv_node_type_str(enum ibv_node_type type) {
  static const char *const names[] = {NAME(IBV_NODE_CA, "InfiniBand channel adapter"),
                                      NAME(IBV_NODE_SWITCH, "InfiniBand switch"),
                                      NAME(IBV_NODE_ROUTER, "InfiniBand router"), NAME(IBV_NODE_RNIC, "iWARP NIC"),
                                      NAME(IBV_NODE_USNIC, "usNIC"), NAME(IBV_NODE_USNIC_UDP, "usNIC UDP")};
  return type < 0 ? "unknown" : OF(names, type);
}

const char *ibv_port_state_str(enum ibv_port_state state) {
  static const char *const names[] = {
    NAME(IBV_PORT_NOP, "no state change (NOP)"), NAME(IBV_PORT_DOWN, "down"), NAME(IBV_PORT_INIT, "init"),
    NAME(IBV_PORT_ARMED, "armed"), NAME(IBV_PORT_ACTIVE, "active"), NAME(IBV_PORT_ACTIVE_DEFER, "active defer")};
  return OF(names, state);
}

/* Multiples of 2.5 Gb/s, and Mb/s. */
static const struct { enum ibv_rate rate; int mult, mbps; } rates[] = {
  {IBV_RATE_2_5_GBPS, 1, 2500}, {IBV_RATE_5_GBPS, 2, 5000}, {IBV_RATE_10_GBPS, 4, 10000},
  {IBV_RATE_20_GBPS, 8, 20000}, {IBV_RATE_30_GBPS, 12, 30000}, {IBV_RATE_40_GBPS, 16, 40000},
  {IBV_RATE_60_GBPS, 24, 60000}, {IBV_RATE_80_GBPS, 32, 80000}, {IBV_RATE_120_GBPS, 48, 120000},
  {IBV_RATE_14_GBPS, 6, 14062}, {IBV_RATE_56_GBPS, 22, 56250}, {IBV_RATE_112_GBPS, 45, 112500},
  {IBV_RATE_168_GBPS, 67, 168750}, {IBV_RATE_25_GBPS, 10, 25781}, {IBV_RATE_100_GBPS, 40, 103125},
  {IBV_RATE_200_GBPS, 80, 206250}, {IBV_RATE_300_GBPS, 120, 309375}, {IBV_RATE_28_GBPS, 11, 28125},
  {IBV_RATE_50_GBPS, 20, 53125}, {IBV_RATE_400_GBPS, 160, 425000}, {IBV_RATE_600_GBPS, 240, 637500}};
enum { RATES = sizeof rates / sizeof rates[0] };

int ibv_rate_to_mult(enum ibv_rate rate) {
  for (int i = 0; i < RATES; i++)
    if (rates[i].rate == rate) return rates[i].mult;
  return -1;
}
enum ibv_rate mult_to_ibv_rate(int mult) {
  for (int i = 0; i < RATES; i++)
    if (rates[i].mult == mult) return rates[i].rate;
  return IBV_RATE_MAX;
}
int ibv_rate_to_mbps(enum ibv_rate rate) {
  for (int i = 0; i < RATES; i++)
    if (rates[i].rate == rate) return rates[i].mbps;
  return -1;
}
enum ibv_rate mbps_to_ibv_rate(int mbps) {
  for (int i = 0; i < RATES; i++)
    if (rates[i].mbps == mbps) return rates[i].rate;
  return IBV_RATE_MAX;
}
