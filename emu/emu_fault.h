/* SPDX-License-Identifier: Apache-2.0
 * Statements, and the faults among them. */
#ifndef EMU_FAULT_H
#define EMU_FAULT_H

#include "emu/emu.h"

enum { EMU_WORDS = 32 };

struct emu_statement {
  int n;
  char *words[EMU_WORDS];
};
struct emu_word {
  const char *name;
  int value;
};

/* emu_config.c */
bool emu_complain(const struct emu_statement *s, const char *what); /* false */
const char *emu_value(const struct emu_statement *s, const char *key); /* of key=, or NULL */
uint64_t emu_number(const struct emu_statement *s, const char *key, uint64_t otherwise, int base);
bool emu_word(const struct emu_word *words, const char *text, int *value);
struct emu_device *emu_device_and_port(const struct emu_statement *s, unsigned int *number); /* words 1 and 2 */

/* emu_fault.c */
int emu_fault_call(const char *call, int to_state); /* 0, or the errno that the call is to fail with */
struct emu_verdict {
  bool stall; /* it never completes */
  enum ibv_wc_status status;
  uint32_t vendor;
};
struct emu_verdict emu_fault_request(struct emu_qp *qp, enum ibv_wr_opcode op); /* before its first packet */
typedef void (*emu_give)(struct emu_qp *qp, const struct emu_packet *packet, const char *payload);
/* True: the packet was dropped, or is held back. */
bool emu_fault_packet(struct emu_qp *qp, const struct emu_packet *packet, const char *payload, emu_give give);
bool emu_fault_is_holding(void);
/* Statements that wait for this moment: nothing is sent before they have been run. */
bool emu_fault_is_pending(void);
void emu_fault_run_pending(void);
uint64_t emu_fault_slow(struct emu_qp *qp); /* ns to wait before the next packet */
void emu_fault_commands(void);       /* statements that were appended to the file RAIL_EMU_CONTROL */
uint64_t emu_fault_next_look(void); /* when that is to be done again */
void emu_fault_forget(struct emu_qp *qp);
/* Delivers held packets whose time has come; returns when the next is due, UINT64_MAX: there is none. */
uint64_t emu_fault_due(uint64_t now, emu_give give);
/* False if the statement is none of a fault. */
bool emu_fault_statement(const struct emu_statement *s, bool *good);

#endif
