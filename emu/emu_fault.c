/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of faults (docs/emu.md), and whether it is time for one: calls that fail, requests that end with a status
 * or never. What is random follows from the seed. */
#include "emu/emu_fault.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>

#include "emu/rail_emu.h"

enum { MAX_CALLS = 32 };

struct emu_faults emu_faults = {.random = 0x9e3779b97f4a7c15u};
static struct called { char name[24]; long count; } calls[MAX_CALLS];

void emu_faults_seed(uint64_t seed) { emu_faults.random = seed * 0x9e3779b97f4a7c15u + 1; }

static uint64_t emu_fault_random(void) {
  emu_faults.random ^= emu_faults.random << 13;
  emu_faults.random ^= emu_faults.random >> 7;
  emu_faults.random ^= emu_faults.random << 17;
  return emu_faults.random;
}

void emu_faults_changed(void) {
  emu_faults.packets = emu_faults.requests = emu_faults.receives = emu_faults.slow = emu_faults.calls = 0;
  for (int i = 0; i < emu_faults.n; i++) {
    enum emu_fault_kind kind = emu_faults.all[i].kind;
    emu_faults.packets += emu_fault_of_packets(&emu_faults.all[i]);
    emu_faults.requests += kind == EMU_FAULT_COMPLETE || kind == EMU_FAULT_STALL;
    emu_faults.receives += kind == EMU_FAULT_COMPLETE || kind == EMU_FAULT_IMMEDIATE;
    emu_faults.slow += kind == EMU_FAULT_SLOW;
    emu_faults.calls += kind == EMU_FAULT_CALL;
  }
}

/* ---- whether it is time ------------------------------------------------------------- */

bool emu_fault_is_due(struct emu_fault *f) {
  f->seen++;
  if (f->seen < f->from || f->seen - f->from >= f->times) return false;
  return f->rate == 0 || emu_fault_random() % f->rate == 0;
}

static int error_of(const char *call, int to_state) {
  int err = 0;
  for (int i = 0; i < emu_faults.n && emu_faults.calls; i++) {
    struct emu_fault *f = &emu_faults.all[i];
    bool is_about = f->kind == EMU_FAULT_CALL && strcmp(f->call, call) == 0 && (f->to < 0 || f->to == to_state);
    if (is_about && emu_fault_is_due(f) && !err) err = f->err;
  }
  return err;
}

int emu_fault_poll(void) { return emu_faults.calls ? error_of("poll_cq", -1) : 0; }

/* Calls move before those that were made less often: a post finds its own at once. */
static void count_call(const char *call) {
  int i = 0;
  while (i < MAX_CALLS && calls[i].name[0] && strcmp(calls[i].name, call) != 0) i++;
  if (i == MAX_CALLS) return;
  if (!calls[i].name[0]) snprintf(calls[i].name, sizeof calls[i].name, "%s", call);
  calls[i].count++;
  if (i == 0 || calls[i].count <= calls[i - 1].count) return;
  const struct called more = calls[i];
  calls[i] = calls[i - 1];
  calls[i - 1] = more;
}

int emu_fault_call(const char *call, int to_state) {
  count_call(call);
  return error_of(call, to_state);
}

long rail_emu_calls(const char *call) {
  long count = strcmp(call, "poll_cq") == 0 ? (long)atomic_load(&emu.polls) : 0;
  pthread_mutex_lock(&emu.lock);
  for (int i = 0; i < MAX_CALLS; i++)
    if (strcmp(calls[i].name, call) == 0) count = calls[i].count;
  pthread_mutex_unlock(&emu.lock);
  return count;
}

/* ---- requests ------------------------------------------------------------------------------- */

static const char *name_of(enum ibv_wr_opcode op) {
  switch (op) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM: return "send";
    case IBV_WR_RDMA_WRITE: return "write";
    case IBV_WR_RDMA_WRITE_WITH_IMM: return "imm";
    case IBV_WR_RDMA_READ: return "read";
    default: return "atomic";
  }
}

bool emu_fault_is_about(const struct emu_fault *f, const struct emu_qp *qp, const char *op) {
  return (strcmp(f->op, "any") == 0 || strcmp(f->op, op) == 0) && (!f->qp || f->qp == qp->ex.qp_base.qp_num);
}

/* Statements whose request this is wait for the end of the current call: they may break the QP that is just sending. */
static void look_for_later(void) {
  emu_faults.begun++;
  for (int i = 0; i < emu_faults.nlater; i++) {
    if (emu_faults.later[i].request != emu_faults.begun) continue;
    size_t used = strlen(emu_faults.due_text);
    snprintf(emu_faults.due_text + used, sizeof emu_faults.due_text - used, "%s;", emu_faults.later[i].text);
    emu_faults.later[i] = emu_faults.later[--emu_faults.nlater];
    i--;
  }
}

struct emu_verdict emu_fault_request(struct emu_qp *qp, enum ibv_wr_opcode op) {
  struct emu_verdict verdict = {.status = IBV_WC_SUCCESS};
  look_for_later();
  for (int i = 0; i < emu_faults.n && emu_faults.requests; i++) {
    struct emu_fault *f = &emu_faults.all[i];
    bool of_requests = f->kind == EMU_FAULT_COMPLETE || f->kind == EMU_FAULT_STALL;
    if (!of_requests || !emu_fault_is_about(f, qp, name_of(op)) || !emu_fault_is_due(f)) continue;
    if (f->kind == EMU_FAULT_STALL) verdict.stall = true;
    else if (verdict.status == IBV_WC_SUCCESS) {
      verdict.status = (enum ibv_wc_status)f->status;
      verdict.vendor = f->vendor;
    }
  }
  return verdict;
}

bool emu_fault_is_pending(void) { return emu_faults.due_text[0]; }

/* A receive that has failed for a reason of its own keeps it. */
void emu_fault_receive(struct emu_qp *qp, struct ibv_wc *wc) {
  for (int i = 0; i < emu_faults.n && emu_faults.receives; i++) {
    struct emu_fault *f = &emu_faults.all[i];
    bool ends = f->kind == EMU_FAULT_COMPLETE && strcmp(f->op, "recv") == 0;
    bool twists = f->kind == EMU_FAULT_IMMEDIATE && (wc->wc_flags & IBV_WC_WITH_IMM);
    if ((!ends && !twists) || (f->qp && f->qp != qp->ex.qp_base.qp_num) || !emu_fault_is_due(f)) continue;
    if (twists) wc->imm_data ^= htobe32(f->xor);
    if (!ends || wc->status != IBV_WC_SUCCESS) continue;
    wc->status = (enum ibv_wc_status)f->status;
    wc->vendor_err = f->vendor;
  }
}

uint64_t emu_fault_slow(struct emu_qp *qp) {
  uint64_t ns = 0;
  for (int i = 0; i < emu_faults.n && emu_faults.slow; i++) {
    struct emu_fault *f = &emu_faults.all[i];
    if (f->kind == EMU_FAULT_SLOW && emu_fault_is_about(f, qp, "any") && emu_fault_is_due(f)) ns += f->ns;
  }
  return ns;
}
