/* SPDX-License-Identifier: Apache-2.0
 * Scripted faults. */
#include "emu/emu_fault.h"
#include "emu/rail_emu.h"

bool emu_fault_statement(const struct emu_statement *s, bool *good) {
  (void)s, (void)good;
  return false;
}
int emu_fault_call(const char *call, int to_state) {
  (void)call, (void)to_state;
  return 0;
}
struct emu_verdict emu_fault_request(struct emu_qp *qp, enum ibv_wr_opcode op) {
  (void)qp, (void)op;
  return (struct emu_verdict){.status = IBV_WC_SUCCESS};
}
bool emu_fault_packet(struct emu_qp *qp, const struct emu_packet *packet, const char *payload) {
  (void)qp, (void)packet, (void)payload;
  return false;
}
uint64_t emu_fault_slow(struct emu_qp *qp) {
  (void)qp;
  return 0;
}
void emu_fault_commands(void) {}
uint64_t emu_fault_next_look(void) { return UINT64_MAX; }
void emu_fault_forget(struct emu_qp *qp) { (void)qp; }
uint64_t emu_fault_due(uint64_t now, void (*give)(struct emu_qp *, const struct emu_packet *, const char *)) {
  (void)now, (void)give;
  return UINT64_MAX;
}
long rail_emu_calls(const char *call) {
  (void)call;
  return 0;
}
