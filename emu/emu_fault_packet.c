/* SPDX-License-Identifier: Apache-2.0
 * Packets that are lost, late, double or torn, and a port's latency. They are taken where they arrive. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emu/emu_fault.h"

/* Of the process: 25 ms of what leaves at 10 GB/s. */
#define MAX_HELD_BYTES (256u << 20)

struct emu_held {
  STAILQ_ENTRY(emu_held) link;
  uint64_t due, at; /* at: its position in the ring */
  struct emu_packet packet;
  char payload[];
};
static size_t held_bytes;
static LIST_HEAD(, emu_qp) holding = LIST_HEAD_INITIALIZER(holding);

static const char *packet_name(const struct emu_packet *p) {
  switch (p->op) {
    case EMU_OP_SEND:
    case EMU_OP_UD: return "send";
    case EMU_OP_WRITE: return p->flags & EMU_IMM ? "imm" : "write";
    case EMU_OP_READ: return "read";
    case EMU_OP_ACK: return "ack";
    case EMU_OP_READ_RESPONSE:
    case EMU_OP_ATOMIC_RESPONSE: return "answer";
    default: return "atomic";
  }
}

static size_t bytes_of(const struct emu_held *h) { return sizeof *h + h->packet.payload; }

static void say_lost(void) {
  static bool said;
  if (!said)
    fprintf(stderr, "rail-emu: packets are lost: more than %u MiB are held back by latency=, delay or tear, or there "
            "is no memory for them; fewer requests at once, or less latency, keep them\n", MAX_HELD_BYTES >> 20);
  said = true;
}

/* Behind those of its QP that are held already; lost where there are too many, or no memory. */
static void hold(struct emu_qp *qp, const struct emu_packet *p, const char *payload, uint64_t due) {
  struct emu_held *h = held_bytes < MAX_HELD_BYTES ? malloc(sizeof *h + p->payload) : NULL;
  if (!h) {
    say_lost();
    return;
  }
  if (STAILQ_EMPTY(&qp->held)) LIST_INSERT_HEAD(&holding, qp, holding);
  h->packet = *p;
  held_bytes += bytes_of(h);
  h->due = due;
  h->at = emu.reading;
  emu_move(h->payload, payload, p->payload);
  STAILQ_INSERT_TAIL(&qp->held, h, link);
  if (due < emu.next_held) emu.next_held = due;
  if (emu.engine_until && due < emu.engine_until) emu_engine_wake();
}

/* The second half of what a write brings is there long before the first, and both before its completion. Lines of 128
 * bytes stay whole: what NCCL's LL128 relies on holds for devices that write them at once. */
static bool tear(struct emu_qp *qp, const struct emu_packet *p, const char *payload) {
  bool first = p->flags & EMU_FIRST;
  uint64_t va = first ? p->va : qp->message_va;
  const struct emu_mr *mr = emu_mr_find(first ? p->rkey : qp->message_rkey);
  if (p->op != EMU_OP_WRITE || p->psn != qp->exp_psn || first == qp->in_message ||
      !(qp->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) ||
      !emu_mr_allows(mr, qp->pd, va, p->payload, IBV_ACCESS_REMOTE_WRITE))
    return false;
  uint64_t middle = (va + p->payload / 2) & ~(uint64_t)127;
  if (middle <= va) return false;
  uint32_t half = (uint32_t)(middle - va);
  emu_mr_write(mr, va + half, payload + half, p->payload - half);
  return true;
}

bool emu_fault_packet(struct emu_qp *qp, const struct emu_packet *p, const char *payload, emu_give give) {
  uint64_t wait = emu_port_of(qp)->latency;
  if (!emu_faults.packets && !wait && STAILQ_EMPTY(&qp->held)) return false;
  bool dropped = false, doubled = false;
  for (int i = 0; i < emu_faults.n && !dropped; i++) {
    struct emu_fault *f = &emu_faults.all[i];
    if (!emu_fault_of_packets(f) || !emu_fault_is_about(f, qp, packet_name(p)) || !emu_fault_is_due(f)) continue;
    if (f->kind == EMU_FAULT_DROP) dropped = true;
    if (f->kind == EMU_FAULT_DUPLICATE) doubled = true;
    bool torn = f->kind == EMU_FAULT_TEAR && STAILQ_EMPTY(&qp->held) && tear(qp, p, payload);
    if (f->kind == EMU_FAULT_DELAY || torn) wait += f->ns;
  }
  if (dropped) return true;
  if (wait || !STAILQ_EMPTY(&qp->held)) {
    if (doubled) hold(qp, p, payload, emu_now() + wait);
    hold(qp, p, payload, emu_now() + wait);
    return true;
  }
  if (doubled) give(qp, p, payload);
  return false;
}

void emu_fault_forget(struct emu_qp *qp) {
  if (!STAILQ_EMPTY(&qp->held)) LIST_REMOVE(qp, holding);
  for (struct emu_held *h; (h = STAILQ_FIRST(&qp->held)) != NULL;) {
    STAILQ_REMOVE_HEAD(&qp->held, link);
    held_bytes -= bytes_of(h);
    free(h);
  }
}

uint64_t emu_fault_due(uint64_t now, emu_give give) {
  uint64_t next = UINT64_MAX;
  for (struct emu_qp *qp = LIST_FIRST(&holding), *behind; qp; qp = behind) {
    behind = LIST_NEXT(qp, holding);
    for (struct emu_held *h; (h = STAILQ_FIRST(&qp->held)) != NULL;) {
      if (h->due > now) {
        if (h->due < next) next = h->due;
        break;
      }
      STAILQ_REMOVE_HEAD(&qp->held, link);
      if (STAILQ_EMPTY(&qp->held)) LIST_REMOVE(qp, holding);
      held_bytes -= bytes_of(h);
      emu.reading = h->at;
      give(qp, &h->packet, h->payload);
      free(h);
    }
  }
  return next;
}

void emu_fault_each_held(void (*fn)(const struct emu_qp *qp, uint64_t at)) {
  struct emu_qp *qp;
  LIST_FOREACH(qp, &holding, holding) fn(qp, STAILQ_FIRST(&qp->held)->at);
}
